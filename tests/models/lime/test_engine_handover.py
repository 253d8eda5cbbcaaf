"""Tuples that change hosts while links are lost and hosts crash: none is lost, none is doubled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.models.lime.world import ON_A_SPACE, LimeWorld, play
from tupelo.errors import BadEntry, UnknownType
from tupelo.federation.identity.access import Access
from tupelo.federation.spaces.hosted import Doubt
from tupelo.models.lime.messages import TuplePlace
from tupelo.space.tasks import TaskSignal
from tupelo.values.entry import Entry, freeze, shape_of
from tupelo.values.kind import kind_named
from tupelo.values.parts import ANY

pytestmark = pytest.mark.usefixtures("each_engine")
MOMENTS = pytest.mark.parametrize("moment", range(0, 60, 5))


@MOMENTS
@pytest.mark.parametrize("verb", ["inp", "in_", "ing"])
def test_a_link_that_is_lost_during_a_take(verb: str, moment: int) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        for number in range(3):
            await two.out(number)
        options: dict[str, Any] = {"wait": 5.0} if verb == "in_" else {}
        taking = one.call(verb, ANY, **options)
        await asyncio.sleep(moment * 0.001)
        world.network.cut("a", "b")
        await world.agreed("ab")
        got = await taking
        taken = [] if got is None else got if verb == "ing" else [got]
        await world.quiet()
        assert sorted(taken + await one.all()) == [(0,), (1,), (2,)]
        assert await one.all(two.location) == await one.all()

    play(scene, "ab", seed=moment + 1)


@MOMENTS
def test_a_link_that_is_lost_during_a_move(moment: int) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two")
        heard = await one.react()
        for number in range(3):
            await one.out(number, to=two.location)
        sharing = two.do(two.server.set_shared([two.interface()], True))
        await asyncio.sleep(moment * 0.001)
        world.network.cut("a", "b")
        await sharing
        out = one.do(one.server.out(one.interface(), (3,), two.location))
        await asyncio.sleep(0.003)
        world.network.cut("a", "b")
        await out
        await world.agreed("ab")
        await world.quiet()
        everything = [(number,) for number in range(4)]
        assert await one.all() == everything
        assert await one.all(two.location) == everything
        assert sorted(heard.tuples) == everything

    play(scene, "ab", seed=moment + 1)


LONG_SECONDS = 600.0
"""Longer than every timeout."""


async def part(world: LimeWorld) -> None:
    """The hosts lose each other in the middle of something, and stay apart for long."""
    world.network.partition(["a"], ["b"])
    await asyncio.sleep(LONG_SECONDS)


async def meet(world: LimeWorld) -> None:
    world.network.heal()
    await world.agreed("ab")
    await world.quiet()


@MOMENTS
@pytest.mark.parametrize("verb", ["inp", "ing"])
def test_hosts_that_part_for_long_during_a_take(verb: str, moment: int) -> None:
    """A tuple is with the one who took it or with its owner, or late; never with both."""

    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        for number in range(3):
            await two.out(number)
        taking = one.call(verb, ANY)
        await asyncio.sleep(moment * 0.001)
        await part(world)
        got = await taking
        taken = [] if got is None else got if verb == "ing" else [got]
        assert not set(taken) & set(await two.all())
        await meet(world)
        assert sorted(taken + await one.all()) == [(0,), (1,), (2,)]

    play(scene, "ab", seed=moment + 1)


@MOMENTS
def test_hosts_that_part_for_long_during_a_move(moment: int) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two")
        for number in range(3):
            await one.out(number, to=two.location)
        sharing = two.do(two.server.set_shared([two.interface()], True))
        await asyncio.sleep(moment * 0.001)
        await part(world)
        await sharing
        assert not set(await one.all()) & set(await two.all())
        await meet(world)
        assert await one.all() == await one.all(two.location) == [(0,), (1,), (2,)]

    play(scene, "ab", seed=moment + 1)


def test_who_would_rather_have_a_tuple_twice_than_late_says_so() -> None:
    """What the tests above look for is found, where the space has another `Doubt`."""
    twice = []

    def scene_at(moment: int) -> Any:
        async def scene(world: LimeWorld) -> None:
            one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
            await two.out(1)
            taking = one.call("inp", ANY)
            await asyncio.sleep(moment * 0.001)
            await part(world)
            twice.append(await taking is not None and await two.all() == [(1,)])

        return scene

    for moment in range(10, 40):
        play(scene_at(moment), "ab", seed=moment + 1, doubt=Doubt(apart_seconds=30.0))
        if twice[-1]:
            return
    pytest.fail("nobody has it twice")


def test_a_host_that_will_not_come_back_can_be_given_up() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        await two.out(1)
        one.call("inp", ANY)
        while two.interface().tuple_store.look(ANY, TuplePlace(), one=True):
            await asyncio.sleep(0.0005)
        await world["a"].crash()
        await asyncio.sleep(LONG_SECONDS)
        core = world["b"].core
        assert await two.all() == []
        assert core.in_doubt() == {"a": 1}
        assert core.give_up("nobody") == 0
        assert core.give_up("a") == 1
        assert await two.all() == [(1,)] and core.in_doubt() == {}

    play(scene, "ab")


@pytest.mark.parametrize("then", ["return", "forget"])
def test_who_never_comes_back_leaves_it_to_the_doubt_of_the_space(then: Any) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        await two.out(1)
        one.call("inp", ANY)
        while two.interface().tuple_store.look(ANY, TuplePlace(), one=True):
            await asyncio.sleep(0.0005)
        await world["a"].crash()
        await world.agreed("b")
        assert await two.all() == []
        await asyncio.sleep(10.0)
        assert await two.all() == ([(1,)] if then == "return" else [])

    play(scene, "ab", doubt=Doubt(apart_seconds=5.0, then=then))


def test_what_a_crashed_taker_had_is_there_again_when_it_is_back() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        await two.out(1)
        one.call("inp", ANY)
        while two.interface().tuple_store.look(ANY, TuplePlace(), one=True):
            await asyncio.sleep(0.0005)
        await world["a"].crash()
        await world.agreed("b")
        assert await two.all() == []
        await world["a"].start()
        await world.agreed("ab")
        assert await two.all() == [(1,)]

    play(scene, "ab")


@pytest.mark.parametrize("moment", range(0, 60, 6))
@pytest.mark.parametrize("who", ["a", "b"])
def test_a_durable_host_that_crashes_during_a_move(who: str, moment: int, tmp_path: Path) -> None:
    """What an agent at a wrote for one at b is on one disk or the other, and not on both."""

    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two")
        await one.out("x", to=two.location)
        sharing = two.do(two.server.set_shared([two.interface()], True))
        await asyncio.sleep(moment * 0.001)
        await world[who].crash()
        if who == "a":
            await sharing
        await world.agreed("b" if who == "a" else "a")
        await world[who].start()
        await world.agreed("ab")
        looking = await world[who].agent("new", "s")
        if who == "a":  # One more membership, for what is recovered with the space.
            await looking.do(looking.server.set_state(looking.state, "looking"))
        await world.quiet()
        assert await looking.all() == [("x",)]

    play(scene, "ab", seed=moment + 1, folder=tmp_path)


@pytest.mark.parametrize("moment", range(0, 60, 6))
def test_a_durable_owner_that_crashes_during_a_take(moment: int, tmp_path: Path) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        await two.out("x")
        taking = one.call("inp", ANY)
        await asyncio.sleep(moment * 0.001)
        await world["b"].crash()
        got = await taking
        await world["b"].start()
        await world.agreed("ab")
        again = await world["b"].agent("again", "s")
        await again.do(again.server.set_state(again.state, "looking"))
        await world.quiet()
        assert await one.all() == ([] if got else [("x",)])

    play(scene, "ab", seed=moment + 1, folder=tmp_path)


def test_who_may_not_read_sees_nothing_and_who_may_not_take_takes_nothing() -> None:
    async def scene(world: LimeWorld) -> None:
        world["b"].core.make_space("read only", Access(take=()))
        world["b"].core.make_space("closed", Access(read=(), take=(), write=()))
        one = await world["a"].agent("one", "read only", "closed")
        two = await world["b"].agent("two", "read only", "closed")
        for space in ("read only", "closed"):
            await two.out("x", space=space)
        assert await one.all(space="read only") == [("x",)]
        assert await one.call("inp", ANY, space="read only") is None
        assert await one.call("inp", ANY, two.location, space="read only") is None
        assert await one.call("ing", ANY, space="read only") == []
        waiting = one.call("in_", ANY, space="read only")
        heard = await one.react(space="closed")
        assert await one.all(space="closed") == []
        assert await one.all(world["b"].location, space="closed") == []
        await one.out("for you", to=two.location, space="closed")
        await two.out("y", space="closed")
        await world.quiet()
        assert heard.tuples == [("for you",)]
        assert await one.all(one.location, space="closed") == [("for you",)]
        assert not waiting.done()
        waiting.cancel()

    play(scene, "ab")


def test_a_tuple_of_an_unknown_class_is_not_taken() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        shape = shape_of(kind_named("far.Photo", ("name",), ("far.Photo",)), (str,))
        strange = Entry(("sunset",), shape, two.state.id, two.state.next_number(), 0)
        await one.out("of one")
        two.interface().tuple_store.put([strange])
        await two.out("of two")
        for verb in ("in_", "inp", "ing", "rdg"):
            with pytest.raises(UnknownType):
                await one.call(verb, ANY, two.location)
        with pytest.raises(UnknownType):
            await one.call("ing", ANY)
        await world.quiet()
        assert await one.call("rdg", (str,)) == [("of one",), ("of two",)]
        assert await one.call("rdg", (str,), two.location) == [("of two",)]
        there = two.interface().tuple_store.look(ANY, TuplePlace(), one=False, known=False)
        assert [entry.fields for entry in there] == [("sunset",), ("of two",)]

    play(scene, "ab")


@ON_A_SPACE
def test_what_has_no_encoding_stays_where_it_is() -> None:
    """LIME does not write it where it is shared; another door may."""

    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        for destination in (None, two.location):
            with pytest.raises(BadEntry, match="not valid Unicode"):
                await one.out("\ud800", to=destination)
        one.host.core.spaces["s"].port.write_items(
            [freeze(("\ud800",))], None, None, None, TaskSignal, 0
        )
        await one.out("fine")
        assert await one.all(world["a"].location) == [("fine",), ("\ud800",)]
        assert await two.all() == [("fine",)]
        assert await two.call("inp", ANY) == ("fine",)
        assert await two.call("inp", ANY) is None

    play(scene, "ab")
