"""Of what one host has stored, for anyone or for us, the oldest comes first."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import seeds
from tests.models.melon.world import MelonHost, MelonWorld, play
from tupelo.lab.virtual_world import SlowFlusher
from tupelo.models.melon import Copies

MESH = ("ab", "bc", "ca")


async def mixed(member: MelonHost, to: str, count: int, random: Random | None = None) -> None:
    """Store messages of both sorts, numbered."""
    for number in range(count):
        for_one = number % 3 == 1 if random is None else random.random() < 0.5
        await member.store((member.name, number), to=to if for_one else None)


@pytest.mark.parametrize("folder", [False, True], ids=["in-memory", "on-disk"])
@pytest.mark.parametrize("names", ["ab", "ba", "aa"], ids=["near", "near-too", "own"])
def test_both_sorts_come_in_the_order_of_their_host(
    names: str, folder: bool, tmp_path: Path
) -> None:
    async def scene(world: MelonWorld) -> None:
        storing, taking = (world[name] for name in names)
        await mixed(storing, taking.key, 12)
        got = [await taking.take((str, int)) for _ in range(6)]
        got += await taking.take_all((str, int))
        assert got == [(storing.name, number) for number in range(12)]
        assert await taking.take_all((str, int)) == []

    play(scene, "ab", identities=True, folder=tmp_path if folder else None)


def test_who_waits_gets_them_in_order() -> None:
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        for number in range(0, 30, 3):
            waiting = c.take((str, int), 100)
            await asyncio.sleep(1)
            await a.store(("n", number), to=c.key)
            await a.store(("n", number + 1))
            await a.store(("n", number + 2), to=c.key)
            got = [await waiting, await c.take((str, int), 10)]
            got += await c.take_all((str, int), 10)
            assert got == [("n", number), ("n", number + 1), ("n", number + 2)]

    play(scene, *MESH, identities=True)


def test_only_what_matches_counts() -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.store(("plain", 1))
        await a.store(("sealed", 2), to=b.key)
        await a.store(("plain", 3))
        assert await b.take(("sealed", int)) == ("sealed", 2)
        assert await b.take(("plain", int)) == ("plain", 1)
        assert await b.take((str, int)) == ("plain", 3)

    play(scene, "ab", identities=True)


def test_what_goes_back_is_taken_by_others_in_its_place() -> None:
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await a.store(("n", 0), to=b.key)
        await a.store(("n", 1), ("n", 2))
        assert await b.take((str, int), 10) == ("n", 0)
        assert await c.take((str, int), 10) == ("n", 1)
        assert await b.take((str, int), 10) == ("n", 2)

    play(scene, *MESH, identities=True)


def test_a_host_that_is_slow_to_say_what_it_has_is_awaited(tmp_path: Path) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await world.parted("a", "b")
        await a.store(("n", 0), to=b.key)
        await a.store(("n", 1))
        waiting = b.take((str, int), 100)
        world.network.heal()
        assert await waiting == ("n", 0)
        assert await b.take((str, int), 10) == ("n", 1)

    for durable in (None, tmp_path):
        play(scene, "ab", identities=True, folder=durable)


def test_what_was_stored_before_a_crash_comes_first(tmp_path: Path) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await world.parted("a", "b")
        await mixed(a, b.key, 6)
        await a.crash()
        await a.start()
        world.network.heal()
        await world.met("ab")
        await a.store(("a", 6))
        await a.store(("a", 7), to=b.key)
        got = [await b.take((str, int), 10) for _ in range(8)]
        assert got == [("a", number) for number in range(8)]

    play(scene, "ab", identities=True, folder=tmp_path)


def test_what_is_for_us_of_an_earlier_life_comes_before_what_is_stored_now() -> None:
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await a.store(*(("for", number) for number in range(5)))  # so that numbers are used
        await world.parted("ab", "c")
        await a.store(("n", 0), to=c.key)
        held = b.message_store.directed.feed.exchange.streams
        await world.until(lambda: any(one.items for one in held.values()), "with b")
        await a.crash()
        await a.start()
        world.network.heal()
        await world.met("ab", "bc", "ca")
        await a.store(("n", 1))
        await world.until(
            lambda: bool(list(c.message_store.directed.letters.matching(("n", int)))),
            "with c",
        )
        assert [await c.take(("n", int)) for _ in range(2)] == [("n", 0), ("n", 1)]

    play(scene, *MESH, identities=True)


class Takers:
    """Take all the time, one or all, and sometimes give up."""

    def __init__(self) -> None:
        self.got: dict[tuple[str, str], list[int]] = defaultdict(list)

    @property
    def all(self) -> list[tuple[str, int]]:
        return sorted((who, n) for (_, who), numbers in self.got.items() for n in numbers)

    async def take(self, member: MelonHost, random: Random) -> None:
        while True:
            wait: Any = random.choice((0, 0.1, 2.0))
            if random.random() < 0.5:
                found = await member.melon.take_all((str, int), wait)
            else:
                one = await member.melon.take((str, int), wait)
                found = [] if one is None else [one]
            for who, number in found:
                self.got[member.name, who].append(number)
            await asyncio.sleep(random.choice((0, 0.01)))


@pytest.mark.parametrize("takers", ["c", "cd"], ids=["alone", "two"])
@pytest.mark.parametrize("seed", seeds(2))
def test_in_a_storm_they_come_in_order(seed: int, takers: str) -> None:
    """a and b store for anyone and for c or d."""

    async def scene(world: MelonWorld) -> None:
        taking = Takers()
        users = [
            world[name].do(taking.take(world[name], Random(f"{seed} {name}"))) for name in takers
        ]
        chance = Random(seed)
        for number in range(60):
            for name in "ab":
                to = chance.choice((None, *(world[taker].key for taker in takers)))
                await world[name].store((name, number), to=to)
            await asyncio.sleep(chance.choice((0, 0.001, 0.02, 0.5)))
        await world.until(lambda: len(taking.all) >= 120, "taken")
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
        assert taking.all == [(who, n) for who in "ab" for n in range(60)]
        if takers == "c":  # Of two, one may pass by what is under way to the other, and goes back.
            for numbers in taking.got.values():
                assert numbers == sorted(numbers)

    edges = ("ca", "cb", "da", "db", "dc", "ba")
    play(scene, *edges, identities=True, seed=seed, copies=Copies(directed=seed % 3 or None))


@pytest.mark.parametrize("identities", [False, True], ids=["nameless", "with-identities"])
@pytest.mark.parametrize("wait", [0, 5], ids=["at-once", "waiting"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "all"])
def test_who_does_not_wait_for_the_disk_leaves_the_message_in_its_place(
    many: bool, wait: float, identities: bool, tmp_path: Path
) -> None:
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        for moment in range(20):
            for hosted in a.core.spaces.values():
                hosted.port.flusher = SlowFlusher(hosted.port, a.core.rng, 0.2)
            await a.store(("n", 1), ("n", 2), ("n", 3))
            taking = (a.take_all if many else a.take)(("n", int), wait)
            await asyncio.sleep(moment / 50)
            taking.cancel()
            got: list[Any] = [*await asyncio.gather(taking, return_exceptions=True)]
            got = [one for one in got if not isinstance(one, asyncio.CancelledError)]
            got = [*got[0]] if many and got else got
            await asyncio.sleep(1)
            if moment % 4 == 0:
                await a.crash()
                await a.start()
            got += await a.take_all(("n", int))
            assert got == [("n", 1), ("n", 2), ("n", 3)]

    play(scene, names="a", folder=tmp_path, identities=identities)
