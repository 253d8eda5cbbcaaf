"""Factories make what is asked for by an event."""

from __future__ import annotations

import asyncio

import pytest

import tupelo
from tests.models.event_heap.world import HEAP, HeapWorld, meet
from tupelo.errors import BadArgument, HeapDestroyed, NotAllowed
from tupelo.federation.identity.access import Access
from tupelo.models.event_heap import (
    DestroyRequest,
    Event,
    EventHeap,
    HeapRequest,
    Made,
    SessionRequest,
    ViewRequest,
)


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


def made(office: tupelo.SpaceLike, request: str | None) -> Made:
    answer = office.take(Made(request), wait=20.0)
    assert answer is not None
    return answer


def test_a_program_elsewhere_asks_a_host_by_events():
    with (
        tupelo.Host("one", listen=0) as one,
        EventHeap(one, "first"),
        tupelo.connect(f"{one.url}event heaps") as office,
    ):
        office.write(HeapRequest("r1", "second"))
        assert office.take(Made("r1"), wait=20.0) == Made("r1", "second")
        office.write(ViewRequest("r2", "second", "total"))
        view = made(office, "r2").id
        office.write(SessionRequest("r3", "second"))
        session = made(office, "r3").id
        with tupelo.connect(f"{one.url}second") as heap:
            heap.write(Event("n", i=1))
        with EventHeap(one, "second") as second:
            assert second.view(view).wait(wait=20.0) == Event("n", i=1)
            assert second.session(session).wait(wait=20.0) == Event("n", i=1)
            office.write(DestroyRequest("r4", "second"))
            assert made(office, "r4").error is None
            with pytest.raises(HeapDestroyed):
                second.get()
        for request in (
            ViewRequest("bad1", "first", "mess"),
            ViewRequest("bad2", "unknown", "total"),
            HeapRequest("bad3", ""),
            HeapRequest("bad4", "heap", -1.0),
        ):
            office.write(request)
            refused = made(office, request.request)
            assert refused.id is None and str(refused.error).startswith("BadArgument")


def test_a_heap_is_made_at_run_time_destroyed_and_made_anew():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        first = await a.do(EventHeap.create(a.host, "later"))
        second = await b.do(EventHeap.create(b.host, "later"))
        await a.do(first.put(Event("n", i=1)))
        assert await b.do(second.wait(wait=20.0)) == Event("n", i=1)
        await b.do(second.destroy())
        await asyncio.sleep(2)
        with pytest.raises(HeapDestroyed):
            await a.do(first.get())
        with pytest.raises(HeapDestroyed):
            await a.do(first.view())
        again = await a.do(EventHeap.create(a.host, "later"))
        await a.do(again.put(Event("n", i=2)))
        other = await b.do(EventHeap.create(b.host, "later"))
        assert await b.do(other.wait(wait=20.0)) == Event("n", i=2)
        assert await b.do(other.snoop_all()) == [Event("n", i=2)]

    meet(scene, "ba")


def test_a_heap_that_is_made_anew_has_nothing_of_the_one_before(folder):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        await a.put(Event("n", i=1))
        old = await a.do(a.heap.view())
        shared = await a.do((await a.do(a.heap.session())).share())
        await world.together()
        await a.do(a.heap.destroy())
        await asyncio.sleep(2)
        for member in (a, b):
            again = await member.do(EventHeap.create(member.host, HEAP))
            with pytest.raises(BadArgument):
                await member.do(again.view(old.id))
            with pytest.raises(BadArgument):
                await member.do(again.session(shared))
            assert not member.replica.orders.made
        view = await a.do((await a.do(EventHeap.create(a.host, HEAP))).view())
        await a.do(view.put(Event("n", i=2)))
        other = await b.do(again.view(view.id, wait=20.0))
        assert await b.do(other.wait(wait=20.0)) == Event("n", i=2)

    meet(scene, "ba", folder=folder)


def test_what_a_host_that_is_gone_has_said_of_a_heap_is_not_said_of_the_next():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        old = await a.do(a.heap.view())
        await world.together()
        await a.citizen.crash()  # It cannot take back what it has said.
        await b.do(b.heap.destroy())
        again = await b.do(EventHeap.create(b.host, HEAP))
        with pytest.raises(BadArgument):
            await b.do(again.view(old.id))

    meet(scene, "ba")


def test_who_may_not_take_from_a_host_does_not_destroy_what_is_there(folder):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        space = a.citizen.core.spaces[HEAP]
        space.access = Access(take=())
        await a.put(Event("n", i=1))
        await world.together()
        with pytest.raises(NotAllowed):
            await b.do(b.heap.destroy())
        assert await b.do(b.heap.snoop()) == Event("n", i=1)
        world.network.partition("a", "b")
        await asyncio.sleep(5)
        await b.do(b.heap.destroy())  # Who cannot be asked decides when it hears of it.
        world.network.heal()
        await asyncio.sleep(5)
        assert await a.do(a.heap.snoop()) == Event("n", i=1)
        await a.put(Event("n", i=2))
        assert len(await a.do(a.heap.snoop_all())) == 2
        with pytest.raises(HeapDestroyed):
            await b.do(b.heap.snoop())

    meet(scene, "ba", folder=folder)
