"""The laws of MELON (chapter 4): on one, two and three hosts in virtual time, and on every kind of
space."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from tests.kinds import HOSTED
from tests.models.melon.kinds import play_on_kind
from tests.models.melon.world import MelonWorld, play
from tests.models.neighbours import Neighbourhood
from tupelo import ANY, entry

Scene = Callable[[MelonWorld], Awaitable[None]]

HOSTS = {"one": ("a", ()), "two": ("ab", ("ab",)), "three": ("abc", ("ab", "bc", "ca"))}
PLACES = [(f"{count} virtual", "memory spanning") for count in HOSTS] + HOSTED
for_tasks = pytest.mark.parametrize(
    "place", [one for one in PLACES if one[0] != "blocking"], ids="-".join, indirect=True
)
"""A thread cannot be cancelled."""


@pytest.fixture(params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Hosts in virtual time, or a door and a kind of space, with two hosts."""
    found: tuple[str, str] = request.param
    return found


def _hosts(place: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    return HOSTS.get(place[0].partition(" ")[0], HOSTS["two"])


@pytest.fixture
def names(place: tuple[str, str]) -> str:
    return _hosts(place)[0]


@pytest.fixture
def play_on(place: tuple[str, str], neighbourhood: Neighbourhood) -> Callable[[Scene], None]:
    """Plays a scene with hosts that have all met, or with a client of each."""
    names, edges = _hosts(place)
    if place in HOSTED:
        return lambda scene: play_on_kind(neighbourhood, place, scene, *edges, names=names)
    return lambda scene: play(scene, *edges, names=names)


def test_what_was_stored_is_taken_once_and_never_read(names, play_on):
    async def scene(world: MelonWorld) -> None:
        first, last = world[names[0]], world[names[-1]]
        await first.store(("job", 1))
        assert await last.read(("job", int)) is None
        assert await last.read_all(("job", int)) == []
        assert await last.take(("job", int)) == ("job", 1)
        for name in names:
            assert await world[name].take(("job", int)) is None
            assert await world[name].take_all(("job", int)) == []

    play_on(scene)


def test_what_was_written_is_read_once_by_each_and_never_taken(names, play_on):
    async def scene(world: MelonWorld) -> None:
        first = world[names[0]]
        await first.write(("news", 1))
        for name in names:
            assert await world[name].take(("news", int)) is None
            assert await world[name].take_all(("news", int)) == []
        for name in names:
            assert await world[name].read(("news", int)) == ("news", 1)
            assert await world[name].read(("news", int)) is None
            assert await world[name].read((str, 1)) is None
            assert await world[name].read_all(("news", int)) == []
            other = await world[name].another()
            assert await world[name].do(other.read_all(("news", int), 0)) == [("news", 1)]

    play_on(scene)


@entry("tests.melon.Job")
@dataclass
class Job:
    name: str | None = None


@entry("tests.melon.PrintJob")
@dataclass
class PrintJob(Job):
    pages: int | None = None


def test_a_message_is_matched_by_values_types_and_their_subtypes(names, play_on):
    async def scene(world: MelonWorld) -> None:
        first, last = world[names[0]], world[names[-1]]
        await first.write((1, "hello"))
        others: list[object] = [(2, str), (int, "bye"), (str, str), (int,)]
        for template in others:
            assert await last.read(template) is None
        fitting: list[object] = [(1, str), (int, "hello"), (int, str)]
        for template in fitting:
            await first.store((1, "hello"))
            assert await last.take(template) == (1, "hello")
        assert await last.read((int, str)) == (1, "hello")
        await first.store(("do", PrintJob("poster", 2)))
        assert await last.take(("do", Job)) == ("do", PrintJob("poster", 2))
        await first.store(Job("sweep"))
        assert await last.take(PrintJob()) is None
        assert await last.take(Job()) == Job("sweep")

    play_on(scene)


def test_the_oldest_of_a_host_comes_first(names, play_on):
    async def scene(world: MelonWorld) -> None:
        for number in range(5):
            for name in names:
                await world[name].write((name, number))
                await world[name].store((name, number))
        last = world[names[-1]]
        read = [await last.read((str, int)) for _ in range(3)]
        read += await last.read_all((str, int))
        taken = [await last.take((str, int)) for _ in range(3)]
        taken += await last.take_all((str, int))
        for got in (read, taken):
            assert len(got) == 5 * len(names)
            for name in names:
                assert [n for who, n in got if who == name] == [0, 1, 2, 3, 4]

    play_on(scene)


def test_who_waits_is_woken_by_the_message(names, play_on):
    async def scene(world: MelonWorld) -> None:
        first, last = world[names[0]], world[names[-1]]
        waiting = [
            last.read(("news", int), 100),
            last.take(("job", int), 100),
            last.do((await last.another()).read_all(("news", int), 100)),
            last.take_all(("task", int), 100),
        ]
        await world.pause(5)
        assert not any(task.done() for task in waiting)
        await first.write(("news", 1))
        await first.store(("job", 1), ("task", 1))
        assert await world.promptly(asyncio.gather(*waiting)) == [
            ("news", 1),
            ("job", 1),
            [("news", 1)],
            [("task", 1)],
        ]
        assert await last.read(("news", int), world.soon(3)) is None
        assert await last.take_all(("job", int), world.soon(3)) == []

    play_on(scene)


def test_one_of_many_who_wait_takes_it(names, play_on):
    async def scene(world: MelonWorld) -> None:
        waiting = [world[name].take(("job", int), 20) for name in names for _ in range(3)]
        await world.pause(1)
        for number in range(len(names)):
            await world[names[0]].store(("job", number))
        await world.until(lambda: sum(task.done() for task in waiting) == len(names), "taken")
        await world.pause(30)
        for task in waiting:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        got = [job for job in ended if isinstance(job, tuple)]
        assert sorted(got) == [("job", number) for number in range(len(names))]

    play_on(scene)


@for_tasks
def test_who_gives_up_loses_nothing(names, play_on):
    async def scene(world: MelonWorld) -> None:
        first, last = world[names[0]], world[names[-1]]
        gone = [last.read(("news", int), 100), last.take(("job", int), None)]
        await world.pause(1)
        await first.write(("news", 1))
        await first.store(("job", 1))
        for task in gone:
            task.cancel()
        got = await asyncio.gather(*gone, return_exceptions=True)
        await world.pause(1)
        if isinstance(got[0], asyncio.CancelledError):
            assert await last.read(("news", int), 5) == ("news", 1)
        if isinstance(got[1], asyncio.CancelledError):
            assert await last.take(("job", int), 5) == ("job", 1)

    play_on(scene)


def test_who_is_gone_is_read_again_when_it_is_back():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.write(("n", 1), ("n", 2))
        assert await b.read(("n", int)) == ("n", 1)
        await world.parted("a", "b")
        await a.write(("n", 3))
        assert await b.read(("n", int)) is None
        waiting = b.read_all(("n", int), 100)
        world.network.heal()
        assert await waiting == [("n", 2), ("n", 3)]

    play(scene, "ab")


def test_a_linda_out_is_taken_and_a_message_is_seen_by_linda(names, play_on):
    async def scene(world: MelonWorld) -> None:
        a, b = world[names[0]], world[names[-1]]
        await a.do((await a.space()).write(("from", "linda")))
        assert await b.take(("from", str)) == ("from", "linda")
        await a.store(("from", "melon"))
        assert await b.do((await b.space()).take(("from", str), wait=0)) == ("from", "melon")
        await a.write(("from", "melon"))
        assert await b.do((await b.space()).read(ANY, wait=0)) is None
        assert await b.read(("from", str)) == ("from", "melon")

    play_on(scene)


def test_who_reads_one_by_one_asks_for_many_at_a_time():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.write(*(("n", number) for number in range(500)))
        assert await b.read(("n", int), 10) == ("n", 0)
        before = world.network.sent["b", "a"].frames
        for number in range(1, 500):
            assert await b.read(("n", int)) == ("n", number)
        assert world.network.sent["b", "a"].frames - before < 50

    play(scene, "ab")


def test_what_was_read_ahead_is_there_for_other_questions_and_processes():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.write(*(("n", number) for number in range(10)))
        assert await b.read(("n", int), 10) == ("n", 0)
        assert await b.read(("n", 5)) == ("n", 5)
        assert await b.read(("n", int)) == ("n", 1)
        await a.write(("n", 10))
        other = await b.another()
        assert await b.do(other.read(("n", int))) == ("n", 0)
        assert await b.read_all((str, int)) == [
            ("n", number) for number in (2, 3, 4, *range(6, 11))
        ]
        assert await b.read_all(("n", int)) == []
        rest = [("n", number) for number in range(1, 11)]
        assert await b.do(other.read_all(("n", int))) == rest

    play(scene, "ab")
