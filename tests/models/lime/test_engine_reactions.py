"""Strong and weak reactions, and what they remember."""

from __future__ import annotations

from typing import Any

import pytest

from tests.models.lime.world import ON_A_SPACE, LimeWorld, play
from tupelo.errors import BadTemplate, ReactionFailed
from tupelo.models.lime.locations import AgentLocation
from tupelo.models.lime.reactions import ONCE, ReactionCall, ReactionRecord
from tupelo.space.tasks import TaskSignal
from tupelo.values.entry import freeze
from tupelo.values.parts import ANY, Where

pytestmark = pytest.mark.usefixtures("each_engine")
OVER = pytest.mark.parametrize("over", ["collect", "publish"])
LINE = ("ab", "bc")


@OVER
def test_a_weak_reaction_hears_of_every_tuple_once(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two, three = [await world[name].agent(name, "s") for name in "abc"]
        await three.out("x", "before")
        await one.out("x", "here")
        heard = await one.react(("x", ANY))
        await world.quiet()
        for agent in (one, two, three):
            await agent.out("x", agent.state.name)
            await agent.out("y", agent.state.name)
        await world.quiet()
        assert sorted(heard.tuples) == [("x", text) for text in ("a", "b", "before", "c", "here")]
        sources = {event.tuple: event.source for event in heard.events}
        assert sources[("x", "before")] == three.location
        assert sources[("x", "b")] == two.location

    play(scene, *LINE, over=over)


@OVER
def test_once_fires_once_though_several_hosts_have_a_match(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        agents = [await world[name].agent(name, "s") for name in "abc"]
        heard = await agents[0].react(mode=ONCE)
        await world.quiet()
        for agent in agents[1:]:
            await agent.out(agent.state.name)
        await world.quiet()
        assert len(heard.events) == 1
        assert not heard.registered.registered
        assert agents[0].state.reactions == []
        again = await agents[0].react(mode=ONCE)
        await world.quiet()
        assert len(again.events) == 1

    play(scene, *LINE, over=over)


@OVER
def test_a_weak_reaction_at_a_location(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one, mate = await world["a"].agent("one", "s"), await world["a"].agent("mate", "s")
        far = await world["b"].agent("far", "s")
        at_far = await one.react(current=far.location)
        at_a = await far.react(current=world["a"].location)
        for_mate = await far.react(destination=mate.location)
        await one.out("of one")
        await far.out("of far")
        await far.out("for mate", to=mate.location)
        await world.quiet()
        assert at_far.tuples == [("of far",)]
        assert at_a.tuples == [("of one",), ("for mate",)]
        assert for_mate.tuples == [("for mate",)]

    play(scene, "ab", over=over)


def test_a_strong_reaction_is_in_the_step_of_the_write() -> None:
    async def scene(world: LimeWorld) -> None:
        one, mate = await world["a"].agent("one", "s"), await world["a"].agent("mate", "s")
        watching = await mate.react(("job", int))

        def answer(event: ReactionCall) -> None:
            assert event.step is not None
            assert event.source == mate.location
            assert event.step.inp(("job", int)) == event.tuple
            assert event.step.rdp(("job", int)) is None
            event.step.out(("done", event.tuple[1]))
            assert event.step.rdg(("done", int)) == [("done", 1)]

        await one.react(("job", int), weak=False, current=world["a"].location, deliver=answer)
        await mate.out("job", 1)
        assert await mate.all() == [("done", 1)]
        assert await mate.all(one.location) == [("done", 1)]
        await world.quiet()
        assert watching.tuples == []

    play(scene, "ab")


def test_a_strong_reaction_reacts_only_to_what_is_at_its_location() -> None:
    async def scene(world: LimeWorld) -> None:
        one, mate = await world["a"].agent("one", "s"), await world["a"].agent("mate", "s")
        far = await world["b"].agent("far", "s")
        await mate.out("before")
        at_mate = await one.react(weak=False, current=mate.location)
        at_a = await one.react(weak=False, current=world["a"].location)
        at_b = await one.react(weak=False, current=world["b"].location)
        lost = AgentLocation("lost#0")
        misplaced = await one.react(weak=False, current=world["a"].location, destination=lost)
        await one.out("of one")
        await mate.out("of mate", to=lost)
        await far.out("of far")
        await far.out("for mate", to=mate.location)
        assert at_mate.tuples == [("before",), ("of mate",), ("for mate",)]
        assert at_a.tuples == [("before",), ("of one",), ("of mate",), ("for mate",)]
        assert at_b.tuples == []
        assert misplaced.tuples == [("of mate",)]
        await one.go(world["b"])
        assert [event.tuple for event in at_b.events] == [("of far",), ("of one",)]

    play(scene, "ab")


def test_a_strong_reaction_that_raises_undoes_the_write() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")

        def fail(event: ReactionCall) -> None:
            assert event.step is not None
            event.step.out(("trace",))
            raise ValueError("no")

        heard = await one.react(("bad",), weak=False, current=world["a"].location, deliver=fail)
        with pytest.raises(ReactionFailed):
            await one.out("bad")
        assert await one.all() == []
        assert isinstance(heard.registered.error, ValueError)
        await one.out("good")
        assert await one.all() == [("good",)]

    play(scene, "ab")


def test_once_and_enabling_again() -> None:
    async def scene(world: LimeWorld) -> None:
        one, far = await world["a"].agent("one", "s"), await world["b"].agent("far", "s")
        await one.out(1)
        await far.out(2)
        for weak in (True, False):
            at = None if weak else world["a"].location
            wanted = [(1,), (2,)] if weak else [(1,)]
            every = await one.react(weak=weak, current=at)
            await world.quiet()
            assert sorted(every.tuples) == wanted
            await one.do(one.server.disable(every.registered))
            await one.out(3)
            await world.quiet()
            assert sorted(every.tuples) == wanted
            assert every.registered.registered
            assert not every.registered.enabled
            await one.do(one.server.enable(every.registered))
            await world.quiet()
            assert sorted(every.tuples) == sorted([*wanted, *wanted, (3,)])
            await one.do(one.server.enable(every.registered))  # it is enabled, and remembers
            await world.quiet()
            assert sorted(every.tuples) == sorted([*wanted, *wanted, (3,)])
            await one.do(one.server.remove_reaction(every.registered))
            await one.out(4)
            await world.quiet()
            assert sorted(every.tuples) == sorted([*wanted, *wanted, (3,)])
            assert one.state.reactions == []
            once = await one.react(weak=weak, current=at, mode=ONCE)
            await world.quiet()
            assert len(once.tuples) == 1
            assert await one.call("ing", (3,)) == [(3,)]
            assert await one.call("ing", (4,)) == [(4,)]

    play(scene, "ab")


def test_reactions_go_with_their_space_when_it_is_private() -> None:
    async def scene(world: LimeWorld) -> None:
        one, far = await world["a"].agent("one"), await world["b"].agent("far", "s")
        weak = await one.react()
        strong = await one.react(weak=False, current=world["a"].location)
        await one.out(1)
        await world.quiet()
        assert weak.tuples == strong.tuples == [(1,)]
        await far.out(2)
        await one.share()
        await world.quiet()
        assert weak.tuples == [(1,), (2,)]
        assert strong.tuples == [(1,)]
        await one.unshare()
        await far.out(3)
        await one.out(4)
        await world.quiet()
        assert weak.tuples == [(1,), (2,), (4,)]
        assert strong.tuples == [(1,), (4,)]

    play(scene, "ab")


def test_what_reactions_have_seen_travels_with_their_agent() -> None:
    async def scene(world: LimeWorld) -> None:
        one, far = await world["a"].agent("one", "s"), await world["b"].agent("far", "s")
        weak = await one.react()
        strong = await one.react(weak=False, current=one.location)
        await one.out(1)
        await far.out(2)
        await world.quiet()
        assert weak.tuples == [(1,), (2,)]
        assert strong.tuples == [(1,)]
        for host in (world["c"], world["b"], world["a"]):
            await one.go(host)
            await world.quiet()
            assert weak.tuples == [(1,), (2,)]
            assert strong.tuples == [(1,)]
        await one.out(3)
        await world.quiet()
        assert weak.tuples == [(1,), (2,), (3,)]
        assert strong.tuples == [(1,), (3,)]
        assert await far.all(one.location) == [(1,), (3,)]

    play(scene, *LINE)


def test_a_strong_reaction_does_not_see_a_tuple_twice_that_went_away_and_came_back() -> None:
    async def scene(world: LimeWorld) -> None:
        one, traveller = await world["a"].agent("one", "s"), await world["a"].agent("two", "s")
        heard = await one.react(weak=False, current=world["a"].location)
        await traveller.out(1)
        await traveller.go(world["b"])
        for number in range(2_000):  # What is gone would be forgotten by now.
            await one.out("noise", number)
            await one.call("inp", ("noise", number))
        await traveller.go(world["a"])
        assert heard.tuples.count((1,)) == 1

    play(scene, "ab")


def test_a_strong_reaction_writes_for_an_agent_elsewhere() -> None:
    async def scene(world: LimeWorld) -> None:
        one, far = await world["a"].agent("one", "s"), await world["b"].agent("far", "s")

        def forward(event: ReactionCall) -> None:
            assert event.step is not None
            event.step.out(("forwarded",), far.location)

        await one.react(("x",), weak=False, current=world["a"].location, deliver=forward)
        await one.out("x")
        assert await one.all(far.location) == [("forwarded",)]
        assert await one.all(world["a"].location) == [("x",)]

    play(scene, "ab")


def test_reactions_that_feed_each_other_keep_nobody_from_leaving() -> None:
    async def scene(world: LimeWorld) -> None:
        one, far = await world["a"].agent("one", "s"), await world["b"].agent("far", "s")

        def throw(agent: Any, to: Any) -> Any:
            def back(event: ReactionCall) -> None:
                assert event.step is not None
                event.step.out(("ball", event.tuple[1] + 1), to.location)

            return agent.react(("ball", int), weak=False, current=agent.location, deliver=back)

        await throw(one, far)
        await throw(far, one)
        await one.out("ball", 0)
        await world.quiet()
        await far.do(far.server.group.leave())
        assert far.host.members() == "b"
        await world.quiet()
        assert [host for kind, host, *_ in world["a"].system() if kind == "host"] == ["a"]

    play(scene, "ab")


def test_all_reactions_are_registered_or_none() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        await one.out(1)
        heard: list[ReactionCall] = []

        def fail(event: ReactionCall) -> None:
            raise ValueError("no")

        here = world["a"].location
        good = ReactionRecord(one.interface(), ANY, ONCE, True, None, None, heard.append)
        bad = ReactionRecord(one.interface(), ANY, ONCE, False, here, None, fail)
        with pytest.raises(ReactionFailed):
            await one.do(one.server.add_reactions([bad, good]))
        assert one.state.reactions == []
        code = ReactionRecord(
            one.interface(), (Where(lambda v: True),), ONCE, True, None, None, heard.append
        )
        with pytest.raises(BadTemplate):
            await one.do(one.server.add_reactions([good, code]))
        await world.quiet()
        assert heard == []
        assert one.state.reactions == []

    play(scene, "ab")


def test_reactions_to_lime_system() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one")
        system: dict[str, Any] = {"space": "LimeSystem"}
        weak = await one.react(("agent", str, str, str), **system)
        strong = await one.react(("host", str, str), weak=False, **system)
        assert sorted(strong.tuples) == [("host", "a", "a"), ("host", "b", "b")]
        two = await world["b"].agent("two")
        await world.quiet()
        assert [fields[1] for fields in weak.tuples] == [one.state.id, two.state.id]
        await two.do(two.server.depart(two.state))
        three = await world["b"].agent("three")
        await world.quiet()
        assert [fields[1] for fields in weak.tuples][2:] == [three.state.id]

    play(scene, "ab")


@ON_A_SPACE
def test_a_weak_reaction_hears_of_what_was_there_before_its_host_shared_the_space():
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        heard = await one.react()
        life = world["b"].life
        assert life is not None
        port = life.call(world["b"].core.make_space, "s").port
        port.write_items([freeze(("early",))], None, None, None, TaskSignal, 0)
        await world["b"].agent("two", "s")
        await world.quiet()
        assert heard.tuples == [("early",)]

    play(scene, "ab")
