"""Factories make what is asked for by an event."""

from __future__ import annotations

import asyncio

import pytest

import tupelo
from tests.models.event_heap.room import Room, meet
from tupelo.errors import HeapDestroyed
from tupelo.models.event_heap import (
    DestroyRequest,
    Event,
    EventHeap,
    HeapRequest,
    Made,
    SessionRequest,
    ViewRequest,
)


def test_a_program_elsewhere_asks_a_host_by_events():
    with (
        tupelo.Host("one", listen=0) as one,
        EventHeap(one, "first"),
        tupelo.connect(f"{one.url}event heaps") as office,
    ):
        office.write(HeapRequest("r1", "second"))
        assert office.take(Made("r1"), wait=20.0) == Made("r1", "second")
        office.write(ViewRequest("r2", "second", "total"))
        view = office.take(Made("r2"), wait=20.0).id
        office.write(SessionRequest("r3", "second"))
        session = office.take(Made("r3"), wait=20.0).id
        with tupelo.connect(f"{one.url}second") as heap:
            heap.write(Event("n", i=1))
        with EventHeap(one, "second") as second:
            assert second.view(view).wait(wait=20.0) == Event("n", i=1)
            assert second.session(session).wait(wait=20.0) == Event("n", i=1)
            office.write(DestroyRequest("r4", "second"))
            assert office.take(Made("r4"), wait=20.0).error is None
            with pytest.raises(HeapDestroyed):
                second.get()
        for request in (
            ViewRequest("bad1", "first", "mess"),
            ViewRequest("bad2", "unknown", "total"),
            HeapRequest("bad3", ""),
            HeapRequest("bad4", "heap", -1.0),
        ):
            office.write(request)
            made = office.take(Made(request.request), wait=20.0)
            assert made.id is None and made.error.startswith("BadArgument")


def test_a_heap_is_made_at_run_time_destroyed_and_made_anew():
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
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
