"""Copies at some hosts only: who holds them, and what happens when there is no room."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.federation.replication.town import FEED, Citizen, Town, play
from tupelo.federation.replication.placement import NOTHING, CopyAll, CopySome
from tupelo.space.capacity import Capacity
from tupelo.values.entry import Entry

MESH = ("ba", "ca", "da", "cb", "db", "dc")


def held_at(town: Town, source: str) -> str:
    return "".join(name for name in "abcd" if name != source and town[name].copies(source))


def test_a_stream_is_held_at_so_many_hosts():
    async def scene(town: Town) -> None:
        for name in "abcd":
            await town[name].write((name, 1), (name, 2))
        await town.until(lambda: all(len(town[name].feed.replica_hosts) == 2 for name in "abcd"))
        await town.until(lambda: all(len(held_at(town, name)) == 2 for name in "abcd"))
        await asyncio.sleep(5)
        assert all(len(held_at(town, name)) == 2 for name in "abcd")
        for name in held_at(town, "a"):
            assert town[name].copies("a") == [("a", 1), ("a", 2)]

    play(scene, *MESH, policy=CopySome(copies=2, room=None))


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

    play(scene, *MESH, policy=CopySome(copies=2, room=None))


def test_who_has_no_room_is_not_asked_again():
    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1))
        await town.until(lambda: len(town["a"].feed.partners) == 3)
        await asyncio.sleep(5)
        assert held_at(town, "a") == ""
        assert town["a"].replication.sent["HoldRequest"] == 3

    play(scene, *MESH, policy=CopySome(copies=1))


def has(citizen: Citizen, entry: tuple[str, int]) -> bool:
    return entry in citizen.copies()


def numbers(*some: int) -> list[tuple[str, int]]:
    return [("n", number) for number in some]


def test_at_a_holder_under_pressure_the_oldest_give_way():
    async def scene(town: Town) -> None:
        await town["a"].write(*numbers(*range(8)))
        await town.until(lambda: len(held_at(town, "a")) == 1)
        holder = town[held_at(town, "a")]
        gone: list[Entry] = []
        holder.feed.gave_way.append(gone.extend)
        await town["a"].write(*numbers(*range(8, 12)))
        await town.until(lambda: holder.copies("a") == numbers(*range(2, 12)))
        assert [entry.fields for entry in gone] == numbers(0, 1)
        asked = Counter(holder.replication.sent)
        await asyncio.sleep(5)
        assert held_at(town, "a") == holder.name
        assert Counter(holder.replication.sent) == asked  # and nobody asks for what is gone
        await town["a"].take(("n", 1))
        await town["a"].take(("n", 3))
        await town.until(lambda: ("n", 3) not in holder.copies("a"))
        await town["a"].write(*numbers(12, 13))
        await town.until(lambda: holder.copies("a") == numbers(2, *range(4, 14))[1:])

    play(scene, *MESH, policy=CopySome(copies=1, room=Capacity(entries=10)))


def test_the_oldest_of_all_streams_give_way():
    async def scene(town: Town) -> None:
        b = town["b"]
        for number in range(4):
            for name in "ac":
                await town[name].write((name, number))
                await town.until(partial(has, b, (name, number)))
        assert b.copies("a") == [("a", 2), ("a", 3)]
        assert b.copies("c") == [("c", 1), ("c", 2), ("c", 3)]

    play(scene, "ba", "bc", policy=CopySome(copies=1, room=Capacity(entries=5)))


@pytest.mark.parametrize("restarts", [False, True], ids=["stays", "restarts"])
def test_what_gave_way_at_one_holder_is_not_dead_at_another(tmp_path: Path, restarts: bool) -> None:
    """c has all; b has the newest, and knows of more tombstones. d gets what b has, and passes on
    to c that some are dead, but not that those are that gave way at b."""

    async def scene(town: Town) -> None:
        a, b, c, d = (town[name] for name in "abcd")
        source = a.feed.source
        c.call(c.feed.hold, source)
        d.call(d.feed.hold, source)
        town.network.partition("abc", "d")
        await a.write(*numbers(0))
        await town.until(lambda: c.copies("a") == numbers(0))
        await a.write(*numbers(*range(1, 12)))
        await town.until(lambda: c.copies("a") == numbers(*range(12)))
        assert b.copies("a") == numbers(*range(7, 12))
        town.network.partition("ab", "c", "d")
        await town.until(lambda: b.feed.partners == ["a"])
        await a.take(("n", 3))
        await a.take(("n", 8))
        await town.until(lambda: ("n", 8) not in b.copies("a"))
        await a.crash()
        left = numbers(7, 9, 10, 11)
        if restarts:
            await b.crash()
            await b.start()
            assert b.copies("a") == left
        town.network.partition("bd", "c")
        await town.until(lambda: d.copies("a") == left)
        town.network.partition("cd", "b")
        await town.until(lambda: c.feed.marks[source] == d.feed.marks[source])
        assert c.copies("a") == numbers(0, 1, 2, 4, 5, 6, 7, 9, 10, 11)
        assert d.copies("a") == left

    policy = CopySome(copies=1, room=Capacity(entries=5))
    play(scene, "ba", "cb", "db", "dc", policy=policy, folder=tmp_path)


def test_whoever_hears_of_it_from_a_holder_gets_it_before_it_gives_way():
    async def scene(town: Town) -> None:
        a, b, c = (town[name] for name in "abc")
        source = a.feed.source
        await a.write(("n", 0))
        await town.until(lambda: source in c.feed.offered)
        c.call(c.feed.hold, source)
        await town.until(lambda: c.copies("a") == [("n", 0)])
        await a.write(*numbers(*range(1, 20)))
        await town.until(lambda: c.copies("a") == numbers(*range(20)))
        assert b.copies("a") == numbers(*range(15, 20))

    play(scene, "ba", "cb", policy=CopySome(copies=1, room=Capacity(entries=5)))


def test_bytes_are_counted_as_well():
    async def scene(town: Town) -> None:
        await town["a"].write(("n", "x" * 400))
        await town.until(lambda: len(held_at(town, "a")) == 1)
        await town["a"].take(("n", str))
        await town["a"].write(("n", "x" * 700))
        await town.until(lambda: len(held_at(town, "a")) == 1)
        await town["a"].write(("n", "y" * 700))
        await town.until(lambda: town[held_at(town, "a")].copies("a") == [("n", "y" * 700)])
        # For this one there is no room anywhere, and all have said so.
        await town["a"].write(("n", "z" * 1_700))
        await asyncio.sleep(5)
        assert held_at(town, "a") == ""
        assert not town["a"].feed.replica_hosts

    play(scene, *MESH, policy=CopySome(copies=1, room=Capacity(size_bytes=1_000)))


def test_a_copy_crosses_a_partition_with_the_one_who_holds_it():
    """b is engaged with a, and later with c, which takes what b has."""

    async def scene(town: Town) -> None:
        await town["a"].write(("n", 1), ("n", 2))
        await town.until(lambda: town["b"].copies("a") != [])
        await town["a"].crash()
        source = town["a"].feed.source
        town["c"].dial("b")
        await town.until(lambda: source in town["c"].feed.offered)
        town["c"].call(town["c"].feed.hold, source)
        await town.until(lambda: town["c"].copies("a") == [("n", 1), ("n", 2)])
        town["c"].call(town["c"].feed.drop, source)
        assert town["c"].copies("a") == []
        assert town["b"].copies("a") == [("n", 1), ("n", 2)]

    play(scene, "ba", names="c", policy=CopySome(copies=1, room=None))


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
            lambda: a.replication.feed(FEED, CopyAll(), only=lambda e: e.fields[0] == "news")
        )
        await a.write(("news", 1), ("job", 2), ("news", 3))
        await town.alike("ab")
        assert town["b"].copies() == [("news", 1), ("news", 3)]

    play(scene, "ba")
