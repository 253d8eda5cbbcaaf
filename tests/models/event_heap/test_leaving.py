"""What becomes of shared sessions when hosts leave, in order or not."""

from __future__ import annotations

import asyncio

import pytest

from tests.models.event_heap.room import Room, meet
from tupelo.errors import SessionLost
from tupelo.models.event_heap import Event, Session


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


async def share(room: Room, names: str) -> dict[str, Session]:
    """A session that all of these have opened, and of which each has read one event."""
    first = room[names[0]]
    await first.put(*[Event("n", i=i) for i in range(6)])
    shared = await first.do((await first.do(first.heap.session())).share())
    await room.together()
    opened = {}
    for i, name in enumerate(names):
        opened[name] = await room[name].do(room[name].heap.session(shared, wait=30.0))
        assert await room[name].do(opened[name].get()) == Event("n", i=i)
    return opened


def test_a_host_that_leaves_hands_its_sessions_to_others(folder):
    async def scene(room: Room) -> None:
        opened = await share(room, "abc")
        await room["c"].citizen.leave()
        assert await room["a"].do(opened["a"].get()) == Event("n", i=3)
        assert await room["b"].do(opened["b"].wait()) == Event("n", i=4)
        assert await room["a"].do(opened["a"].get()) == Event("n", i=5)

    meet(scene, "ba", "cb", folder=folder)


def test_hosts_that_leave_at_once_do_not_wait_for_each_other():
    async def scene(room: Room) -> None:
        opened = await share(room, "abc")
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*[room[name].citizen.leave() for name in "cb"])
        assert asyncio.get_running_loop().time() < begun + 2.0
        assert await room["a"].do(opened["a"].get()) == Event("n", i=3)

    meet(scene, "ba", "ca", "cb")


def test_a_host_that_leaves_a_session_that_it_has_not_opened_hands_it_over():
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
        await b.put(Event("n"))
        shared = await a.do((await a.do(a.heap.session())).share())
        await room.together()
        await room.until(lambda: a.replica.others == ["b"], "they have met")
        await a.citizen.leave()
        theirs = await b.do(b.heap.session(shared))
        assert await b.do(theirs.get()) == Event("n")

    meet(scene, "ba")


def test_a_session_whose_record_was_in_no_folder_is_lost_with_its_host():
    async def scene(room: Room) -> None:
        opened = await share(room, "abc")
        a = room["a"]
        waiting = a.do(opened["a"].wait())
        assert (await waiting)["i"] == 3
        assert (await room["c"].do(opened["c"].get()))["i"] == 4
        waiting, cancelled = [a.do(opened["a"].wait()) for _ in range(2)]
        await room["c"].citizen.crash()
        await asyncio.sleep(1)
        cancelled.cancel()
        with pytest.raises(SessionLost, match="share a new one"):
            await asyncio.wait_for(waiting, 30.0)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(SessionLost):
            await a.do(opened["a"].get_all())
        assert asyncio.get_running_loop().time() == begun
        anew = await a.do((await a.do(opened["a"].clone())).share())
        ours = await room["b"].do(room["b"].heap.session(anew, wait=30.0))
        # What is known here is what was read when the session was here for the last time.
        assert await room["b"].do(ours.get()) == Event("n", i=4)

    meet(scene, "ba", "cb")


def test_a_session_is_not_lost_when_its_host_was_only_out_of_reach():
    async def scene(room: Room) -> None:
        opened = await share(room, "ab")
        room.network.partition("a", "b")
        with pytest.raises(SessionLost):
            await asyncio.wait_for(room["a"].do(opened["a"].wait()), 30.0)
        room.network.heal()
        await room.together()
        assert await room["a"].do(opened["a"].wait(wait=30.0)) == Event("n", i=2)

    meet(scene, "ba")
