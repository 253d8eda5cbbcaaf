"""What a host has put that is gone for good lives on at another."""

from __future__ import annotations

import asyncio

import pytest

from tests.models.event_heap.test_views import ROW, open_all, read
from tests.models.event_heap.world import HEAP, HeapWorld, meet
from tupelo.errors import BadArgument, SourceAway
from tupelo.federation.identity.access import Access
from tupelo.models.event_heap import Event
from tupelo.values.parts import ANY


def test_events_of_a_host_that_is_gone_for_good_can_be_removed_once():
    async def scene(world: HeapWorld) -> None:
        b, c = world["b"], world["c"]
        await world["a"].put(*[Event("n", i=i) for i in range(3)])
        await world["a"].put(Event("brief", i=9), ttl=60.0)
        await world.together()
        session = await c.do(c.heap.session())
        assert await c.do(session.get()) == Event("n", i=0)
        with pytest.raises(BadArgument, match="host"):
            await b.do(b.heap.adopt("a"))  # It is there.
        await world["a"].citizen.crash()
        await world.until(lambda: "a" not in c.replica.membership.members)
        with pytest.raises(SourceAway) as away:
            await c.do(c.heap.remove(Event("n", i=1)))
        await b.do(b.heap.adopt(away.value.hosts[0]))
        await world.alike("bc")
        assert await c.do(c.heap.remove(Event("n", i=1))) == Event("n", i=1)
        await world.alike("bc")
        for member in (b, c):
            left = await member.do(member.heap.snoop_all())
            assert sorted(event["i"] for event in left) == [0, 2, 9]
            assert await member.do(member.heap.remove(Event("n", i=1))) is None
        got = await c.do(session.get_all())
        assert sorted(event["i"] for event in got) == [2, 9]  # and not what it has seen
        await asyncio.sleep(60)
        assert await b.do(b.heap.snoop(Event("brief"))) is None

    meet(scene, *ROW)


def test_who_comes_back_does_not_bring_what_was_adopted(tmp_path):
    async def scene(world: HeapWorld) -> None:
        b, c = world["b"], world["c"]
        views = await open_all(world, "bc", maker="b")
        await world["a"].put(Event("n", i=0), Event("n", i=1))
        await world.together()
        assert await read(c, views["c"], 2) == [0, 1]
        world.network.partition("a", "bc")
        await world["a"].put(Event("n", i=2))  # of which the others have not heard
        await world.until(lambda: "a" not in c.replica.membership.members)
        await b.do(b.heap.adopt("a"))
        assert await c.do(c.heap.wait_to_remove(Event("n", i=0), wait=30.0)) == Event("n", i=0)
        await world["a"].citizen.crash()
        await world["a"].citizen.start()
        world["a"].begin()
        world.network.heal()
        await world.together()
        for name in "abc":
            left = await world[name].do(world[name].heap.snoop_all())
            assert sorted(event["i"] for event in left) == [1, 2]
        assert await read(c, views["c"], 1) == [2]
        assert await c.do(views["c"].get()) is None
        assert await c.do(c.heap.remove(Event("n", i=2))) == Event("n", i=2)

    meet(scene, *ROW, folder=tmp_path)


def test_who_may_not_take_from_a_host_does_not_adopt_what_is_there():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        a.citizen.core.spaces[HEAP].access = Access(take=())
        await a.put(Event("n", i=1))
        await world.together()
        world.network.partition("a", "b")
        await world.until(lambda: "a" not in b.replica.membership.members)
        await b.do(b.heap.adopt("a"))
        world.network.heal()
        await asyncio.sleep(10)
        own = a.citizen.core.spaces[HEAP].port
        assert own.count(ANY, None) == 1
        assert await a.do(a.heap.snoop_all()) == [Event("n", i=1)]

    meet(scene, "ba")
