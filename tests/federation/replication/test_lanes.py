"""Feeds that are parted into lanes: who holds which, and what is for whom."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.federation.replication.town import Citizen, Town, play
from tupelo.federation.replication.placement import CopySome, LaneRules
from tupelo.federation.replication.streams import base_of, host_of, lane_name, lane_of, spreads
from tupelo.space.capacity import Capacity
from tupelo.values.entry import Entry

MESH = ("ba", "ca", "da", "cb", "db", "dc")
ROW = ("ba", "cb", "dc")


def by_first(entry: Entry) -> tuple[str, bool]:
    """("x", 1) is in the lane x, and ("x all", 1) in that of the same name which spreads."""
    lane, _, all_of_them = str(entry.fields[0]).partition(" ")
    return lane, bool(all_of_them)


def lanes(name: str) -> LaneRules:
    return LaneRules(by_first, frozenset([name]))


def has(citizen: Citizen) -> list[tuple[Any, ...]]:
    """What it has of what a has written; lanes have no order among each other."""
    return sorted(citizen.copies("a"))


@pytest.mark.parametrize("host", ["a", "a/b", "0f"])
@pytest.mark.parametrize("spread", [True, False])
def test_the_name_of_a_lane_says_whose_it_is(host: str, spread: bool) -> None:
    base = f"{host}/id7"
    source = lane_name(base, "x", spreads=spread)
    assert (host_of(source), base_of(source), lane_of(source)) == (host, base, "x")
    assert spreads(source) == spread
    assert (host_of(base), base_of(base), lane_of(base), spreads(base)) == (host, base, "", False)


def test_each_gets_what_is_for_it_and_nothing_else() -> None:
    async def scene(town: Town) -> None:
        await town.until(lambda: len(town["a"].feed.partners) == 3)
        await town["a"].write(("b", 1), ("c", 1), ("b", 2), ("x", 1), ("c", 2))
        await town.until(lambda: all(has(town[one]) == [(one, 1), (one, 2)] for one in "bc"))
        await asyncio.sleep(3)
        assert has(town["d"]) == []
        assert has(town["a"]) == [("b", 1), ("b", 2), ("c", 1), ("c", 2), ("x", 1)]
        await town["a"].take(("b", 1))
        await town.until(lambda: has(town["b"]) == [("b", 2)])

    play(scene, *MESH, policy=CopySome(copies=0), lanes=lanes)


def test_what_spreads_is_held_by_all_who_hear_of_it() -> None:
    async def scene(town: Town) -> None:
        await town["a"].write(("x all", 1), ("x all", 2))
        wanted = [("x all", 1), ("x all", 2)]
        await town.until(lambda: all(has(town[name]) == wanted for name in "bcd"))
        await town["a"].take(("x all", 1))
        await town.until(lambda: all(has(town[name]) == [("x all", 2)] for name in "bcd"))

    play(scene, *ROW, policy=CopySome(room=None), lanes=lanes)


def test_who_has_no_room_holds_only_what_is_for_it() -> None:
    async def scene(town: Town) -> None:
        await town["a"].write(*(("x all", number) for number in range(5)))
        await town["a"].write(*(("b", number) for number in range(5)))
        await town.until(lambda: has(town["b"]) == [("b", number) for number in range(5)])
        await asyncio.sleep(3)
        assert has(town["b"]) == [("b", number) for number in range(5)]

    rooms: list[Capacity | Literal[0]] = [0, Capacity(entries=3), Capacity(size_bytes=60)]
    for room in rooms:
        play(scene, "ba", policy=CopySome(copies=1, room=room), lanes=lanes)


def test_each_lane_has_its_holders() -> None:
    async def scene(town: Town) -> None:
        await town.until(lambda: len(town["a"].feed.partners) == 3)
        numbers = range(12)
        await town["a"].write(*((f"x{number}", number) for number in numbers))

        def holders(number: int) -> list[str]:
            return [name for name in "bcd" if (f"x{number}", number) in has(town[name])]

        await town.until(lambda: all(len(holders(number)) == 1 for number in numbers))
        await asyncio.sleep(3)
        assert all(len(holders(number)) == 1 for number in numbers)
        assert len({holders(number)[0] for number in numbers}) > 1
        gone = holders(0)[0]
        town.network.partition(gone, set("abcd") - {gone})
        await town.until(lambda: len(holders(0)) == 2)
        town.network.heal()
        await town.until(lambda: all(len(holders(number)) == 1 for number in numbers))

    play(scene, *MESH, policy=CopySome(copies=1, room=None), lanes=lanes)


def test_an_addressee_is_not_talked_out_of_what_is_for_it() -> None:
    async def scene(town: Town) -> None:
        await town.until(lambda: len(town["a"].feed.partners) == 3)
        for number in range(20):
            await town["a"].write(("b", number))
            await asyncio.sleep(0.3)
        wanted = [("b", number) for number in range(20)]
        await town.until(lambda: has(town["b"]) == wanted)
        await asyncio.sleep(3)
        assert has(town["b"]) == wanted

    for copies in (0, 1, 2):
        play(scene, *MESH, policy=CopySome(copies=copies, room=None), lanes=lanes)


def test_lanes_outlive_their_hosts(tmp_path: Path) -> None:
    async def scene(town: Town) -> None:
        a, b, c = (town[name] for name in "abc")
        await a.write(("c", 1), ("c", 2), ("x all", 3))
        await town.until(lambda: len(has(b)) == 1 and len(has(c)) == 3)
        await asyncio.sleep(1)  # until it is on disk
        await a.crash()
        await c.crash()
        await c.start()
        assert has(c) == [("c", 1), ("c", 2), ("x all", 3)]
        await a.start()
        await a.take(("c", 1))
        await a.write(("c", 4))
        await town.until(lambda: set(has(c)) == {("c", 2), ("c", 4), ("x all", 3)})

    play(scene, "ba", "ca", policy=CopySome(room=None), folder=tmp_path, lanes=lanes)


def test_what_is_outgrown_goes_here_only() -> None:
    async def scene(town: Town) -> None:
        a, b, c = (town[name] for name in "abc")
        await a.write(("x all", 1), ("x all", 2))
        await town.until(lambda: len(has(b)) == 2 and len(has(c)) == 2)
        (source,) = a.feed.marks
        first = next(iter(b.feed.exchange.streams[source].items))
        b.call(b.feed.outgrow, source, [first, 999])
        b.call(b.feed.outgrow, "nobody/1", [1])
        assert has(b) == [("x all", 2)]
        assert has(c) == [("x all", 1), ("x all", 2)]
        a.call(a.feed.outgrow, source, [first])  # of its own nothing is outgrown
        await a.write(("x all", 3))
        await town.until(lambda: has(b) == [("x all", 2), ("x all", 3)])
        await a.take(("x all", 1))
        await town.until(lambda: has(c) == [("x all", 2), ("x all", 3)])
        assert b.feed.marks == c.feed.marks

    play(scene, "ba", "ca", "cb", policy=CopySome(room=None), lanes=lanes)
