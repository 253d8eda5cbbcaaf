"""Copies at some hosts only: who holds them, and what happens when there is no room."""

from __future__ import annotations

import asyncio

from tests.federation.replication.town import FEED, Town, play
from tupelo.federation.replication.placing import NOTHING, Everything, Some
from tupelo.space.capacity import Capacity

MESH = ("ba", "ca", "da", "cb", "db", "dc")


def held_at(town: Town, source: str) -> str:
    return "".join(name for name in "abcd" if name != source and town[name].copies(source))


def test_a_stream_is_held_at_so_many_hosts():
    async def scene(town: Town) -> None:
        for name in "abcd":
            await town[name].write((name, 1), (name, 2))
        await town.until(lambda: all(len(town[name].feed.holders) == 2 for name in "abcd"))
        await town.until(lambda: all(len(held_at(town, name)) == 2 for name in "abcd"))
        await asyncio.sleep(5)
        assert all(len(held_at(town, name)) == 2 for name in "abcd")
        for name in held_at(town, "a"):
            assert town[name].copies("a") == [("a", 1), ("a", 2)]

    play(scene, *MESH, policy=Some(copies=2, room=None))


def test_a_holder_that_is_gone_is_replaced_and_one_too_many_is_let_go():
    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1))
        await town.until(lambda: len(held_at(town, "a")) == 2)
        gone = held_at(town, "a")[0]
        town.network.partition(gone, set("abcd") - {gone})
        await town["a"].write(("n", 2))
        others = set("bcd") - {gone}
        await town.until(
            lambda: all(town[name].copies("a") == [("n", 1), ("n", 2)] for name in others)
        )
        assert town[gone].copies("a") == [("n", 1)]
        town.network.heal()
        await town.until(lambda: len(town["a"].feed.partners) == 3)
        await town.until(lambda: len(held_at(town, "a")) == 2)

    play(scene, *MESH, policy=Some(copies=2, room=None))


def test_who_has_no_room_is_not_asked_again():
    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1))
        await town.until(lambda: len(town["a"].feed.partners) == 3)
        await asyncio.sleep(5)
        assert held_at(town, "a") == ""
        assert town["a"].replication.sent["Hold"] == 3

    play(scene, *MESH, policy=Some(copies=1))


def test_a_holder_under_pressure_drops_a_stream_as_a_whole():
    async def scene(town: Town) -> None:
        await town["a"].write(*[("n", i) for i in range(8)])
        await town.until(lambda: len(held_at(town, "a")) == 1)
        first = held_at(town, "a")
        await town["a"].write(*[("n", i) for i in range(8, 12)])
        await asyncio.sleep(5)
        # Nobody has room for as many: all have refused, and none has a part of them.
        assert held_at(town, "a") == ""
        assert town[first].copies() == []
        assert not town["a"].feed.holders

    play(scene, *MESH, policy=Some(copies=1, room=Capacity(entries=10)))


def test_bytes_are_counted_as_well():
    async def scene(town: Town) -> None:
        await town["a"].write(("n", "x" * 400))
        await town.until(lambda: len(held_at(town, "a")) == 1)
        await town["a"].take(("n", str))
        await town["a"].write(("n", "x" * 700))
        await town.until(lambda: len(held_at(town, "a")) == 1)
        await town["a"].write(("n", "x" * 700))
        await asyncio.sleep(5)
        assert held_at(town, "a") == ""

    play(scene, *MESH, policy=Some(copies=1, room=Capacity(size_bytes=1_000)))


def test_a_copy_crosses_a_partition_with_the_one_who_holds_it():
    """b is engaged with a, and later with c, which takes what b has."""

    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1), ("n", 2))
        await town.until(lambda: town["b"].copies("a") != [])
        await town["a"].crash()
        source = town["a"].feed.source
        town["c"].core.dial("b")
        await town.until(lambda: source in town["c"].feed.offered)
        town["c"].call(town["c"].feed.hold, source)
        await town.until(lambda: town["c"].copies("a") == [("n", 1), ("n", 2)])
        town["c"].call(town["c"].feed.drop, source)
        assert town["c"].copies("a") == []
        assert town["b"].copies("a") == [("n", 1), ("n", 2)]

    play(scene, "ba", names="c", policy=Some(copies=1, room=None))


def test_nothing_is_copied_unless_it_is_asked_for():
    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1))
        await town.until(lambda: len(town["a"].feed.partners) == 3)
        await asyncio.sleep(2)
        assert held_at(town, "a") == ""
        assert town["a"].copies() == [("n", 1)]

    play(scene, *MESH, policy=NOTHING)


def test_only_what_is_to_be_copied_is():
    async def scene(town: Town) -> None:
        a = town["a"]
        a.call(a.feed.close)
        a.feed = a.call(
            lambda: a.replication.feed(FEED, Everything(), only=lambda e: e.fields[0] == "news")
        )
        await a.write(("news", 1), ("job", 2), ("news", 3))
        await town.alike("ab")
        assert town["b"].copies() == [("news", 1), ("news", 3)]

    play(scene, "ba")
