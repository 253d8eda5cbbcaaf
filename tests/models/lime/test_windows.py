"""Answers that are larger than a message come in windows; what cannot be sent is
refused where it is written; and the steps of a take do not grow with what is stored."""

from __future__ import annotations

import asyncio
import cProfile
from typing import Any

import pytest

from tests.models.lime.world import SPACE, LimeAgent, LimeWorld, play
from tupelo.errors import BadEntry, ReactionFailed
from tupelo.federation.brokers.tables import ANSWER_BYTES_MAX
from tupelo.models.lime.messages import PAYLOAD_BYTES_MAX
from tupelo.models.lime.reactions import ReactionCall
from tupelo.space.tasks import TaskSignal
from tupelo.values.entry import freeze
from tupelo.values.parts import ANY

MEBI = bytes(2**20)
MANY = ANSWER_BYTES_MAX // 2**20 + 1
"""So many tuples of a mebibyte are more than brokers pass on in one answer."""
TOO_LONG = bytes(PAYLOAD_BYTES_MAX + 1)


def write_many(agent: LimeAgent, number: int, value: Any = None) -> None:
    """By another door, all at once."""
    items = [freeze((n, value)) for n in range(number)]
    agent.host.core.make_space(SPACE).port.write_items(items, None, None, None, TaskSignal, 0)


@pytest.mark.parametrize("verb", ["rdg", "ing"])
@pytest.mark.parametrize("where", ["anywhere", "there"])
def test_more_than_an_answer_comes_in_windows(verb: str, where: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        await world["b"].agent("between", "s")
        two = await world["c"].agent("two", "s")
        write_many(two, MANY, MEBI)
        await world.quiet()
        current = world["c"].location if where == "there" else None
        found = await one.call(verb, (int, bytes), current)
        assert sorted(n for n, _ in found) == list(range(MANY))
        assert await one.call("rdp", ANY, current) == (None if verb == "ing" else (0, MEBI))

    play(scene, "ab", "bc")


def test_a_reaction_is_told_of_more_than_an_answer() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        two = await world["b"].agent("two", "s")
        write_many(two, MANY, MEBI)
        write_many(one, 2, MEBI)
        await world.quiet()
        heard = await one.react((int, bytes))
        await world.quiet()
        assert sorted(n for n, _ in heard.tuples) == sorted([*range(MANY), 0, 1])
        await two.out(-1, b"")
        await world.quiet()
        assert heard.tuples[-1] == (-1, b"")

    play(scene, "ab")


def test_a_reader_that_gives_up_leaves_nothing_behind() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        write_many(two, 4, MEBI)
        await world.quiet()
        listings = world["b"].server.transfer.listings
        reading = one.call("rdg", ANY)
        while not listings.open_for("a"):
            await asyncio.sleep(0.0005)
        reading.cancel()
        await world.quiet()
        assert not listings.open_for("a")
        assert len(await one.all()) == 4
        assert not listings.open_for("a")

    play(scene, "ab")


def test_what_cannot_be_sent_is_refused_where_it_is_written() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        for destination in (None, two.location):
            with pytest.raises(BadEntry, match=f"{PAYLOAD_BYTES_MAX:,}"):
                await one.out(TOO_LONG, to=destination)
        assert await one.all() == []

        def answer(event: ReactionCall) -> None:
            assert event.step is not None
            event.step.out((TOO_LONG,))

        heard = await one.react(("go",), weak=False, current=world["a"].location, deliver=answer)
        with pytest.raises(ReactionFailed):
            await one.out("go")
        assert isinstance(heard.registered.error, BadEntry)
        assert await one.all() == []

    play(scene, "ab")


def test_what_cannot_be_sent_is_private() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one")
        await one.out(TOO_LONG)
        with pytest.raises(BadEntry, match=f"{PAYLOAD_BYTES_MAX:,}"):
            await one.share()
        assert not one.interface().shared
        assert await one.call("inp", ANY) == (TOO_LONG,)
        await one.share()

    play(scene, "ab")


def calls_of(verb: str, number: int) -> int:
    """How many function calls it takes to take from afar, where so many tuples match."""
    counted: list[int] = []

    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        write_many(two, number)
        await world.quiet()
        profile = cProfile.Profile()
        profile.enable()
        found = await one.call(verb, (int, None))
        profile.disable()
        assert len(found) == (number if verb == "ing" else 2)
        counted.append(sum(one.callcount for one in profile.getstats()))

    play(scene, "ab")
    return counted[0]


def test_a_take_from_afar_does_not_depend_on_the_number_of_matches() -> None:
    calls_of("inp", 10)  # What is made once in a program is there afterwards.
    assert calls_of("inp", 5_000) < 1.1 * calls_of("inp", 10)


def test_the_cost_of_ing_from_afar_is_linear() -> None:
    calls_of("ing", 10)
    assert calls_of("ing", 8_000) < 5 * calls_of("ing", 2_000)
