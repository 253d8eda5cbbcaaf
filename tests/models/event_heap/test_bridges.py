"""Bridges carry events from heap to heap, and nothing twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.models.event_heap.world import HeapHost, HeapWorld, meet
from tupelo import ANY
from tupelo.errors import BadArgument
from tupelo.models.event_heap import Bridge, Event, EventHeap


def heap_of(member: HeapHost, name: str) -> EventHeap:
    assert member.citizen.life is not None
    return member.citizen.life.call(lambda: EventHeap(member.host, name))


def bridge(member: HeapHost, a: str, b: str, template: object = ANY, both: bool = False) -> Bridge:
    assert member.citizen.life is not None
    heaps = heap_of(member, a), heap_of(member, b)
    return member.citizen.life.call(lambda: Bridge(*heaps, template, both=both))


async def numbers(member: HeapHost, name: str) -> list[int]:
    return [event["i"] for event in await member.do(heap_of(member, name).get_all())]


def test_everything_or_what_matches_is_carried():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
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
    async def scene(world: HeapWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        bridge(a, "board", "two", both=True)
        bridge(b, "two", "three", both=True)
        bridge(c, "three", "board", both=True)
        bridge(c, "board", "two", both=True)  # beside the first
        await asyncio.sleep(2)
        await a.put(Event("n", i=1))
        await b.do(heap_of(b, "two").put(Event("n", i=2)))
        await c.do(heap_of(c, "three").put(Event("n", i=3)))
        await asyncio.sleep(10)
        for member, names in ((a, ("board", "two")), (b, ("two", "three")), (c, ("three",))):
            for name in names:
                assert sorted(await numbers(member, name)) == [1, 2, 3], name
        counts = [len(member.replica.feed.marks) for member in (a, b)]
        sent = c.citizen.replication.sent.total()
        await asyncio.sleep(20)
        assert [len(member.replica.feed.marks) for member in (a, b)] == counts
        assert c.citizen.replication.sent.total() == sent  # Nothing goes round.

    meet(scene, "ba", "cb")


def test_a_total_view_gives_what_two_bridges_carried_once():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        for member in (a, b):
            bridge(member, "board", "two")
        await asyncio.sleep(1)
        world.network.partition("a", "b")  # So that neither knows what the other has carried.
        await a.put(Event("n", i=1))
        await asyncio.sleep(5)
        world.network.heal()
        await b.put(Event("n", i=2))
        await asyncio.sleep(5)
        view = await a.do(heap_of(a, "two").view())
        got = await a.do(view.get_all(Event("n")))
        assert sorted(event["i"] for event in got) == [1, 2]
        assert len(await a.do(view.replay())) == 2

    meet(scene, "ba")


def test_a_bridge_joins_two_heaps_of_one_host():
    async def scene(world: HeapWorld) -> None:
        with pytest.raises(BadArgument):
            Bridge(world["a"].heap, world["b"].heap)
        with pytest.raises(BadArgument):
            Bridge(world["a"].heap, "other")  # type: ignore[arg-type]

    meet(scene, "ba")
