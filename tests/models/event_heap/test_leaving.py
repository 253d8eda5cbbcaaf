"""What becomes of shared sessions when hosts leave, in order or not."""

from __future__ import annotations

import asyncio

import pytest

from tests.models.event_heap.world import HeapWorld, meet
from tupelo.errors import SessionLost
from tupelo.models.event_heap import Event, Session


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


async def share(world: HeapWorld, names: str) -> dict[str, Session]:
    """A session that all of these have opened, and of which each has read one event."""
    first = world[names[0]]
    await first.put(*[Event("n", i=i) for i in range(6)])
    shared = await first.do((await first.do(first.heap.session())).share())
    await world.together()
    opened = {}
    for i, name in enumerate(names):
        opened[name] = await world[name].do(world[name].heap.session(shared, wait=30.0))
        assert await world[name].do(opened[name].get()) == Event("n", i=i)
    return opened


def test_a_host_that_leaves_hands_its_sessions_to_others(folder):
    async def scene(world: HeapWorld) -> None:
        opened = await share(world, "abc")
        await world["c"].citizen.leave()
        assert await world["a"].do(opened["a"].get()) == Event("n", i=3)
        assert await world["b"].do(opened["b"].wait()) == Event("n", i=4)
        assert await world["a"].do(opened["a"].get()) == Event("n", i=5)

    meet(scene, "ba", "cb", folder=folder)


def test_hosts_that_leave_at_once_do_not_wait_for_each_other():
    async def scene(world: HeapWorld) -> None:
        opened = await share(world, "abc")
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*[world[name].citizen.leave() for name in "cb"])
        assert asyncio.get_running_loop().time() < begun + 2.0
        assert await world["a"].do(opened["a"].get()) == Event("n", i=3)

    meet(scene, "ba", "ca", "cb")


def test_a_host_that_leaves_a_session_that_it_has_not_opened_hands_it_over():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        await b.put(Event("n"))
        shared = await a.do((await a.do(a.heap.session())).share())
        await world.together()
        await world.until(lambda: a.replica.others == ["b"], "they have met")
        await a.citizen.leave()
        theirs = await b.do(b.heap.session(shared))
        assert await b.do(theirs.get()) == Event("n")

    meet(scene, "ba")


def test_a_session_whose_record_was_in_no_folder_is_lost_with_its_host():
    async def scene(world: HeapWorld) -> None:
        opened = await share(world, "abc")
        a = world["a"]
        waiting = a.do(opened["a"].wait())
        assert (await waiting)["i"] == 3
        assert (await world["c"].do(opened["c"].get()))["i"] == 4
        waiting, cancelled = [a.do(opened["a"].wait()) for _ in range(2)]
        await world["c"].citizen.crash()
        await asyncio.sleep(1)
        cancelled.cancel()
        with pytest.raises(SessionLost, match="share a new one"):
            await asyncio.wait_for(waiting, 30.0)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(SessionLost):
            await a.do(opened["a"].get_all())
        assert asyncio.get_running_loop().time() == begun
        anew = await a.do((await a.do(opened["a"].clone())).share())
        ours = await world["b"].do(world["b"].heap.session(anew, wait=30.0))
        # What is known here is what was read when the session was here for the last time.
        assert await world["b"].do(ours.get()) == Event("n", i=4)

    meet(scene, "ba", "cb")


def test_a_session_is_not_lost_when_its_host_was_only_out_of_reach():
    async def scene(world: HeapWorld) -> None:
        opened = await share(world, "ab")
        world.network.partition("a", "b")
        with pytest.raises(SessionLost):
            await asyncio.wait_for(world["a"].do(opened["a"].wait()), 30.0)
        world.network.heal()
        await world.together()
        assert await world["a"].do(opened["a"].wait(wait=30.0)) == Event("n", i=2)

    meet(scene, "ba")
