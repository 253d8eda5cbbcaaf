"""What a host has put that is gone for good lives on at another."""

from __future__ import annotations

import asyncio

import pytest

from tests.models.event_heap.room import HEAP, Room, meet
from tests.models.event_heap.test_views import ROW, open_all, read
from tupelo.errors import BadArgument, SourceAway
from tupelo.federation.identity.access import Access
from tupelo.models.event_heap import Event
from tupelo.values.parts import ANY


def test_events_of_a_host_that_is_gone_for_good_can_be_removed_once():
    async def scene(room: Room) -> None:
        b, c = room["b"], room["c"]
        await room["a"].put(*[Event("n", i=i) for i in range(3)])
        await room["a"].put(Event("brief", i=9), ttl=60.0)
        await room.together()
        session = await c.do(c.heap.session())
        assert await c.do(session.get()) == Event("n", i=0)
        with pytest.raises(BadArgument, match="host"):
            await b.do(b.heap.adopt("a"))  # It is there.
        await room["a"].citizen.crash()
        await room.until(lambda: "a" not in c.replica.membership.members)
        with pytest.raises(SourceAway) as away:
            await c.do(c.heap.remove(Event("n", i=1)))
        await b.do(b.heap.adopt(away.value.hosts[0]))
        await room.alike("bc")
        assert await c.do(c.heap.remove(Event("n", i=1))) == Event("n", i=1)
        await room.alike("bc")
        for person in (b, c):
            left = await person.do(person.heap.snoop_all())
            assert sorted(event["i"] for event in left) == [0, 2, 9]
            assert await person.do(person.heap.remove(Event("n", i=1))) is None
        got = await c.do(session.get_all())
        assert sorted(event["i"] for event in got) == [2, 9]  # and not what it has seen
        await asyncio.sleep(60)
        assert await b.do(b.heap.snoop(Event("brief"))) is None

    meet(scene, *ROW)


def test_who_comes_back_does_not_bring_what_was_adopted(tmp_path):
    async def scene(room: Room) -> None:
        b, c = room["b"], room["c"]
        views = await open_all(room, "bc", maker="b")
        await room["a"].put(Event("n", i=0), Event("n", i=1))
        await room.together()
        assert await read(c, views["c"], 2) == [0, 1]
        room.network.partition("a", "bc")
        await room["a"].put(Event("n", i=2))  # of which the others have not heard
        await room.until(lambda: "a" not in c.replica.membership.members)
        await b.do(b.heap.adopt("a"))
        assert await c.do(c.heap.wait_to_remove(Event("n", i=0), wait=30.0)) == Event("n", i=0)
        await room["a"].citizen.crash()
        await room["a"].citizen.start()
        room["a"].begin()
        room.network.heal()
        await room.together()
        for name in "abc":
            left = await room[name].do(room[name].heap.snoop_all())
            assert sorted(event["i"] for event in left) == [1, 2]
        assert await read(c, views["c"], 1) == [2]
        assert await c.do(views["c"].get()) is None
        assert await c.do(c.heap.remove(Event("n", i=2))) == Event("n", i=2)

    meet(scene, *ROW, folder=tmp_path)


def test_who_may_not_take_from_a_host_does_not_adopt_what_is_there():
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
        a.citizen.core.spaces[HEAP].access = Access(take=())
        await a.put(Event("n", i=1))
        await room.together()
        room.network.partition("a", "b")
        await room.until(lambda: "a" not in b.replica.membership.members)
        await b.do(b.heap.adopt("a"))
        room.network.heal()
        await asyncio.sleep(10)
        own = a.citizen.core.spaces[HEAP].port
        assert own.count(ANY, None) == 1
        assert await a.do(a.heap.snoop_all()) == [Event("n", i=1)]

    meet(scene, "ba")
