"""The operations of LIME, with current and destination locations (table I)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.models.lime.world import ON_A_SPACE, LimeWorld, play
from tupelo.errors import AgentEnded, NotAllowed, PrivateSpace
from tupelo.models.lime.locations import AgentLocation, HostLocation
from tupelo.values.parts import ANY

pytestmark = pytest.mark.usefixtures("each_engine")
OVER = pytest.mark.parametrize("over", ["collect", "publish"])
LINE = ("ab", "bc")


@OVER
def test_tuples_of_all_hosts_are_one_space(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two, three = [await world[name].agent(name, "s") for name in "abc"]
        await one.out("x", 1)
        await three.out("x", 3)
        await three.out("y", 3)
        for agent in (one, two, three):
            assert await agent.all() == [("x", 1), ("x", 3), ("y", 3)]
            assert await agent.call("rdp", ("y", int)) == ("y", 3)
            assert await agent.call("rdp", ("z", int)) is None
        assert await two.call("inp", ("y", int)) == ("y", 3)
        assert await one.call("inp", ("y", int)) is None
        assert sorted(await two.call("ing", ("x", int))) == [("x", 1), ("x", 3)]
        assert await three.all() == []

    play(scene, *LINE, over=over)


@OVER
def test_a_private_space_is_its_agents_alone(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one, other = await world["a"].agent("one"), await world["a"].agent("other", "s")
        await one.out("mine")
        assert await one.call("rdp", ANY) == ("mine",)
        assert await other.all() == []
        with pytest.raises(PrivateSpace):
            await one.call("rd", ANY)
        with pytest.raises(PrivateSpace):
            await one.call("in_", ANY)
        await one.share()
        assert await other.all() == [("mine",)]
        await one.unshare()
        assert await other.all() == []
        assert await one.call("inp", ANY) == ("mine",)

    play(scene, "ab", over=over)


def test_spaces_of_other_names_are_not_shared() -> None:
    async def scene(world: LimeWorld) -> None:
        one, other = await world["a"].agent("one", "x"), await world["b"].agent("other", "x", "y")
        await other.out(1, space="x")
        await other.out(2, space="y")
        assert await one.all(space="x") == [(1,)]
        assert await one.call("rdg", ANY, space="y") == []
        await one.share("y")
        assert await one.all(space="y") == [(2,)]

    play(scene, "ab")


def test_each_row_of_table_one() -> None:
    async def scene(world: LimeWorld) -> None:
        one, mate = await world["a"].agent("one", "s"), await world["a"].agent("mate", "s")
        far = await world["b"].agent("far", "s")
        absent = AgentLocation("absent#0")
        await one.out("of one")
        await one.out("for far", to=far.location)
        await one.out("for absent", to=absent)
        await mate.out("of mate")
        await mate.out("for one", to=one.location)
        await far.out("of far")
        await far.out("far for absent", to=absent)
        everything = sorted(
            [(text,) for text in ("of one", "for far", "for absent", "of mate", "for one")]
            + [("of far",), ("far for absent",)]
        )
        rows: list[tuple[Any, Any, list[str]]] = [
            (one.location, None, ["for absent", "for one", "of one"]),
            (mate.location, None, ["of mate"]),
            (far.location, None, ["far for absent", "for far", "of far"]),
            (world["a"].location, None, ["for absent", "for one", "of mate", "of one"]),
            (world["b"].location, None, ["far for absent", "for far", "of far"]),
            (None, absent, ["far for absent", "for absent"]),
            (None, one.location, ["for one", "of one"]),
            (one.location, absent, ["for absent"]),
            (one.location, far.location, []),
            (world["b"].location, far.location, ["for far", "of far"]),
            (world["b"].location, absent, ["far for absent"]),
            (HostLocation("nobody"), None, []),
            (absent, None, []),
        ]
        for agent in (one, mate, far):
            assert await agent.all() == everything
            for current, destination, expected in rows:
                wanted = [(text,) for text in expected]
                assert await agent.all(current, destination) == wanted
                seen = await agent.call("rdp", ANY, current, destination)
                assert seen in wanted or (seen is None and not wanted)
        assert await mate.call("inp", ANY, far.location, absent) == ("far for absent",)
        assert await far.call("ing", ANY, world["a"].location, absent) == [("for absent",)]
        assert await far.call("inp", ANY, None, absent) is None

    play(scene, "ab")


@OVER
def test_who_waits_gets_what_comes_at_any_host(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two, three = [await world[name].agent(name, "s") for name in "abc"]
        taking = one.call("in_", ("job", int))
        reading = two.call("rd", ("job", int))
        await world.quiet()
        assert not taking.done()
        assert not reading.done()
        await three.out("job", 1)
        assert await taking == ("job", 1)
        assert await reading == ("job", 1)
        assert await three.all() == []

    play(scene, *LINE, over=over)


@OVER
def test_of_several_who_wait_to_take_one_gets_it(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        agents = [await world[name].agent(name, "s") for name in "abc"]
        waiting = [agent.call("in_", ("job", int)) for agent in agents for _ in range(2)]
        await world.quiet()
        got = []
        for number in range(6):
            await agents[number % 3].out("job", number)
            await world.quiet()
            got = [task.result() for task in waiting if task.done()]
            assert sorted(got) == [("job", n) for n in range(number + 1)]
        assert await agents[0].all() == []

    play(scene, *LINE, over=over)


def test_who_waits_at_a_location_gets_only_what_is_there() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        at_two = one.call("in_", ANY, two.location)
        for_one = one.call("rd", ANY, None, one.location)
        await world.quiet()
        await one.out("here", to=AgentLocation("absent#0"))
        await world.quiet()
        assert not at_two.done()
        assert not for_one.done()
        await two.out("there")
        assert await at_two == ("there",)
        await two.out("yours", to=one.location)
        assert await for_one == ("yours",)

    play(scene, "ab")


def test_a_wait_ends_with_its_time() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        before = world.loop.time()
        assert await one.call("in_", ANY, wait=2.0) is None
        assert await one.call("rd", ANY, wait=1.0) is None
        assert await one.call("rd", ANY, wait=0) is None
        assert world.loop.time() - before == pytest.approx(3.0, abs=0.1)

    play(scene, "ab")


def test_a_cancelled_wait_takes_nothing() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        waiting = one.call("in_", ANY)
        await world.quiet()
        waiting.cancel()
        await world.quiet()
        await two.out(1)
        assert await two.all() == [(1,)]

    play(scene, "ab")


@pytest.mark.parametrize("moment", range(1, 40))
def test_a_take_that_is_cancelled_at_any_moment_loses_nothing(moment: int) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        for number in range(3):
            await two.out(number)
        taking = one.call("in_", ANY)
        bulk = one.call("ing", ANY)
        await asyncio.sleep(moment * 0.001)
        taken: list[Any] = []
        for task in (taking, bulk):
            if task.done():
                taken += task.result() if task is bulk else [task.result()]
            task.cancel()
        await world.quiet()
        assert sorted(taken + await two.all()) == [(0,), (1,), (2,)]
        assert len(await two.all(two.location)) == 3 - len(taken)

    play(scene, "ab", seed=moment)


def test_waiting_ends_when_the_space_is_private_or_the_agent_has_ended() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s", "t")
        reading, taking = one.call("rd", ANY), one.call("in_", ANY, space="t")
        await world.quiet()
        await one.unshare("s")
        with pytest.raises(PrivateSpace):
            await reading
        await one.do(one.server.depart(one.state))
        with pytest.raises(AgentEnded):
            await taking
        with pytest.raises(AgentEnded):
            await one.out(1)

    play(scene, "ab")


def test_out_to_an_agent_is_seen_nowhere_else() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["c"].agent("two", "s")
        seen = await one.react(current=world["a"].location)
        arrived = await one.react(current=two.location)
        await one.out("for you", to=two.location)
        assert await two.all(two.location) == [("for you",)]
        assert await one.all(world["a"].location) == []
        await world.quiet()
        assert seen.tuples == []
        assert arrived.tuples == [("for you",)]

    play(scene, *LINE)


def test_what_is_misplaced_goes_home_when_its_agent_comes() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["c"].agent("two")
        await one.out("for you", to=two.location)
        assert await one.all(one.location, two.location) == [("for you",)]
        await two.share()
        assert await one.all(one.location) == []
        assert await one.all(two.location, two.location) == [("for you",)]
        await two.unshare()
        assert await one.all() == []
        assert await two.all() == [("for you",)]

    play(scene, *LINE)


def test_what_is_for_an_agent_of_the_same_host_is_with_it() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["a"].agent("two")
        await one.out(1, to=two.location)
        assert await one.all(one.location) == [(1,)]
        await two.share()
        assert await one.all(one.location) == []
        assert await one.all(two.location) == [(1,)]
        await one.unshare()
        assert await two.all() == [(1,)]
        assert await one.all() == []

    play(scene, "ab")


def test_several_spaces_are_shared_in_one_step() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one"), await world["b"].agent("two", "x", "y")
        await one.out(1, space="x")
        await one.out(1, space="y")
        sharing = one.do(one.server.set_shared([one.interface("x"), one.interface("y")], True))
        while not sharing.done():
            both = await two.all(space="x"), await two.all(space="y")
            assert both in (([], []), ([], [(1,)]), ([(1,)], [(1,)]))
        assert (await two.all(space="x"), await two.all(space="y")) == ([(1,)], [(1,)])

    play(scene, "ab")


@ON_A_SPACE
def test_other_doors_of_the_host_see_the_same_tuples() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        door = world["a"].core.spaces["s"].door
        heard = await two.react()
        waiting = two.call("in_", ("wanted",))
        await one.out("by LIME")
        assert await one.do(door.read(ANY, wait=0)) == ("by LIME",)
        await one.do(door.write(("wanted",)))
        assert await waiting == ("wanted",)
        await one.do(door.write(("by a door",)))
        await world.quiet()
        assert sorted(heard.tuples) == [("by LIME",), ("by a door",), ("wanted",)]
        assert heard.events[-1].source == world["a"].location
        assert await two.all(world["a"].location) == [("by LIME",), ("by a door",)]
        assert await two.all(one.location) == [("by LIME",)]

    play(scene, "ab")


@ON_A_SPACE
def test_what_another_transaction_holds_is_read_and_not_taken() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        await one.out(1)
        space = world["a"].core.spaces["s"].space
        with space.transaction() as txn:
            assert space.read(ANY, wait=0, txn=txn) == (1,)
            assert await two.all() == [(1,)]
            assert await two.call("inp", ANY) is None
            waiting = two.call("in_", ANY)
            await world.quiet()
            assert not waiting.done()
        assert await waiting == (1,)

    play(scene, "ab")


def test_many_tuples_are_taken_and_moved_in_portions() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two")
        for number in range(1_200):
            await one.out(number, to=two.location)
        await two.share()
        assert len(await one.all(two.location)) == 1_200
        assert len(await one.call("ing", (int,))) == 1_200
        assert await two.all() == []

    play(scene, "ab")


def test_lime_system_is_only_read() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        system: dict[str, Any] = {"space": "LimeSystem"}
        with pytest.raises(NotAllowed):
            await one.out("agent", "me", "a", "here", space="LimeSystem")
        for name in ("inp", "ing", "in_"):
            with pytest.raises(NotAllowed):
                await one.call(name, ANY, **system)
        assert await one.call("rdp", ("space", "s", str, str), **system) == (
            "space",
            "s",
            one.state.id,
            "a",
        )
        waiting = one.call("rd", ("agent", str, "b", str), **system)
        await world.quiet()
        two = await world["b"].agent("two")
        assert await waiting == ("agent", two.state.id, "b", "here")
        await two.do(two.server.set_state(two.state, "busy"))
        assert world["a"].system() == world["b"].system()
        assert ("agent", two.state.id, "b", "busy") in world["a"].system()

    play(scene, "ab")
