"""Bridges carry events from heap to heap, and nothing twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.models.event_heap.room import Person, Room, meet
from tupelo import ANY
from tupelo.errors import BadArgument
from tupelo.models.event_heap import Bridge, Event, EventHeap


def heap_of(person: Person, name: str) -> EventHeap:
    assert person.citizen.life is not None
    return person.citizen.life.call(lambda: EventHeap(person.host, name))


def bridge(person: Person, a: str, b: str, template: object = ANY, both: bool = False) -> Bridge:
    assert person.citizen.life is not None
    heaps = heap_of(person, a), heap_of(person, b)
    return person.citizen.life.call(lambda: Bridge(*heaps, template, both=both))


async def numbers(person: Person, name: str) -> list[int]:
    return [event["i"] for event in await person.do(heap_of(person, name).get_all())]


def test_everything_or_what_matches_is_carried():
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
        for name in ("all", "some"):
            heap_of(b, name)
        await a.put(Event("n", i=1))
        first = bridge(a, "board", "all")
        bridge(a, "board", "some", Event("m"))
        await b.put(Event("m", i=2))
        await a.put(Event("n", i=3), ttl=5.0)
        await asyncio.sleep(2)
        assert sorted(await numbers(b, "all")) == [1, 2, 3]
        assert await numbers(b, "some") == [2]
        assert first.carried == 3
        await b.do(heap_of(b, "all").put(Event("n", i=4)))
        await asyncio.sleep(4)
        assert 4 not in await numbers(a, "board")
        assert sorted(await numbers(a, "all")) == [1, 2, 4]  # One has run out there too.
        await a.do(first.close())
        await a.put(Event("n", i=5))
        await asyncio.sleep(2)
        assert 5 not in await numbers(b, "all")

    meet(scene, "ba")


def test_both_ways_and_rings_and_side_by_side():
    async def scene(room: Room) -> None:
        a, b, c = (room[name] for name in "abc")
        bridge(a, "board", "two", both=True)
        bridge(b, "two", "three", both=True)
        bridge(c, "three", "board", both=True)
        bridge(c, "board", "two", both=True)  # beside the first
        await asyncio.sleep(2)
        await a.put(Event("n", i=1))
        await b.do(heap_of(b, "two").put(Event("n", i=2)))
        await c.do(heap_of(c, "three").put(Event("n", i=3)))
        await asyncio.sleep(10)
        for person, names in ((a, ("board", "two")), (b, ("two", "three")), (c, ("three",))):
            for name in names:
                assert sorted(await numbers(person, name)) == [1, 2, 3], name
        counts = [len(person.replica.feed.marks) for person in (a, b)]
        sent = c.citizen.replication.sent.total()
        await asyncio.sleep(20)
        assert [len(person.replica.feed.marks) for person in (a, b)] == counts
        assert c.citizen.replication.sent.total() == sent  # Nothing goes round.

    meet(scene, "ba", "cb")


def test_a_total_view_gives_what_two_bridges_carried_once():
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
        for person in (a, b):
            bridge(person, "board", "two")
        await asyncio.sleep(1)
        room.network.partition("a", "b")  # So that neither knows what the other has carried.
        await a.put(Event("n", i=1))
        await asyncio.sleep(5)
        room.network.heal()
        await b.put(Event("n", i=2))
        await asyncio.sleep(5)
        view = await a.do(heap_of(a, "two").view())
        got = await a.do(view.get_all(Event("n")))
        assert sorted(event["i"] for event in got) == [1, 2]
        assert len(await a.do(view.replay())) == 2

    meet(scene, "ba")


def test_a_bridge_joins_two_heaps_of_one_host():
    async def scene(room: Room) -> None:
        with pytest.raises(BadArgument):
            Bridge(room["a"].heap, room["b"].heap)
        with pytest.raises(BadArgument):
            Bridge(room["a"].heap, "other")  # type: ignore[arg-type]

    meet(scene, "ba")
