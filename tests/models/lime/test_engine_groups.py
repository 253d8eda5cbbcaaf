"""Engagement and disengagement, announced and not: tuples stay with their agents, none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.conftest import seeds
from tests.models.lime.world import LimeAgent, LimeWorld, play
from tupelo.models.lime.locations import AgentLocation
from tupelo.models.lime.reactions import ONCE
from tupelo.values.parts import ANY

OVER = pytest.mark.parametrize("over", ["collect", "publish"])


@OVER
def test_on_disengagement_tuples_stay_with_their_agents(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        await one.out("of one")
        await two.out("of two")
        await one.out("for two", to=two.location)
        await one.do(one.server.group.leave())
        assert await one.all() == [("of one",)]
        await world.agreed("b")
        assert await two.all() == [("for two",), ("of two",)]
        await two.out("for one", to=one.location)
        assert await two.all(two.location, one.location) == [("for one",)]
        await one.do(one.server.group.join())
        await world.agreed("ab")
        for agent in (one, two):
            assert len(await agent.all()) == 4
            assert await agent.all(one.location) == [("for one",), ("of one",)]

    play(scene, "ab", over=over)


@OVER
def test_two_groups_meet_and_part(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        world.network.partition("ab", "cd")
        await world.agreed("ab", "cd")
        agents = {name: await world[name].agent(name, "s") for name in "abcd"}
        heard = await agents["a"].react()
        for name, agent in agents.items():
            await agent.out("of", name)
            for other in agents.values():
                await agent.out("for", other.state.name, name, to=other.location)
        await world.quiet()
        assert len(heard.tuples) == 10  # what is for those elsewhere as well
        world.network.heal()
        await world.agreed("abcd")
        await world.quiet()
        for name, agent in agents.items():
            assert len(await agent.all()) == 20
            mine = [("for", name, other) for other in "abcd"] + [("of", name)]
            assert await agent.all(agent.location) == mine
        assert len(heard.tuples) == 20
        assert len(set(heard.tuples)) == 20
        assert len({tuple(world[name].system()) for name in "abcd"}) == 1
        world.network.partition("a", "bcd")
        await world.agreed("a", "bcd")
        assert len(await agents["a"].all()) == 5
        assert len(await agents["c"].all()) == 15

    play(scene, "ab", "bc", "cd", over=over)


def test_departures_are_told_of_hosts_that_were_reached_through_others_too() -> None:
    async def scene(world: LimeWorld) -> None:
        far, near = await world["c"].agent("far", "s"), await world["b"].agent("near")
        heard = await (await world["a"].agent("one")).react(
            ("departed host", str, str), weak=False, space="LimeSystem"
        )
        assert world["a"].departed() == []
        await world["b"].crash()
        await world.agreed("a")
        gone = [
            *(("departed agent", far.state.id, "c"), ("departed agent", near.state.id, "b")),
            *(("departed host", "b", "b"), ("departed host", "c", "c")),
        ]
        assert sorted(world["a"].departed()) == sorted(gone)
        assert sorted(heard.tuples) == gone[2:]
        await world["b"].start()
        await world.agreed("abc")
        assert world["a"].departed() == [("departed agent", near.state.id, "b")]
        await far.do(far.server.depart(far.state))
        await world.quiet()
        assert world["a"].departed()[1:] == [("departed agent", far.state.id, "c")]

    play(scene, "ab", "bc")


@OVER
def test_watchdogs_are_there_again_after_a_parting(over: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        heard = await one.react()
        once = await one.react(("rare",), mode=ONCE)
        waiting = one.call("in_", ("job",))
        await two.out(1)
        await world.quiet()
        world.network.partition("a", "b")
        await world.agreed("a", "b")
        await two.out(2)
        await two.out("rare")
        await two.out("job")
        await world.quiet()
        assert heard.tuples == [(1,)]
        assert not waiting.done()
        world.network.heal()
        await world.agreed("ab")
        assert await waiting == ("job",)
        await world.quiet()
        assert sorted(heard.tuples, key=str) == [("job",), ("rare",), (1,), (2,)]
        assert once.tuples == [("rare",)]
        await two.out("rare")
        await two.out(3)
        await world.quiet()
        assert len(once.tuples) == 1
        assert (3,) in heard.tuples

    play(scene, "ab", over=over)


def test_a_host_that_comes_brings_and_gets_what_is_misplaced_in_one_step() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        world.network.partition("ab", "c")
        await world.agreed("ab", "c")
        late = await world["c"].agent("late", "s")
        await one.out("to late", to=late.location)
        await late.out("to one", to=one.location)
        alone = [("to late",)]
        assert await one.all(one.location) == alone
        world.network.heal()
        while not world.is_agreed("abc"):
            # It is with its writer, as before, or both are at home, and nothing in between.
            now = await one.all(one.location)
            assert now in (alone, [("to one",)]), now
            await asyncio.sleep(0.001)
        assert await one.all(one.location) == [("to one",)]
        assert await one.all(late.location) == [("to late",)]

    play(scene, "ab", "bc")


def test_a_host_that_vanishes_takes_its_tuples_along() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["c"].agent("two", "s")
        await two.out("of two")
        await one.out("of one")
        waiting = one.call("in_", ("never",))
        heard = await one.react()
        await world.quiet()
        await world["c"].crash()
        await world.agreed("ab")
        assert await one.all() == [("of one",)]
        assert ("agent", two.state.id, "c", "here") not in world["a"].system()
        assert not waiting.done()
        await world["c"].start()
        await world.agreed("abc")
        again = await world["c"].agent("two", "s")
        await again.out("never")
        assert await waiting == ("never",)
        await world.quiet()
        assert heard.tuples.count(("of two",)) == 1

    play(scene, "ab", "bc")


def test_sharing_that_is_taken_back_while_it_comes_about() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one"), await world["b"].agent("two", "s")
        await one.out(1)
        for pause in range(0, 40, 2):
            sharing = one.do(one.server.set_shared([one.interface()], True))
            await asyncio.sleep(pause * 0.001)
            await one.unshare()
            await sharing
            assert await two.all() == []
            leaving = one.do(one.server.set_shared([one.interface()], False))
            await one.share()
            await leaving
            assert await two.all(one.location) == [(1,)]
            assert one.interface().shared
            await one.unshare()

    play(scene, "ab")


def test_a_host_of_the_group_without_lime_passes_on_what_others_say() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["c"].agent("two", "s")
        await world["b"].do(world["b"].server.stop())
        heard = await two.react()
        await one.out("for two", to=two.location)
        await one.out("of one")
        await world.quiet()
        assert await two.all() == [("for two",), ("of one",)]
        assert await two.call("inp", ANY, one.location) == ("of one",)
        assert sorted(heard.tuples) == [("for two",), ("of one",)]
        assert [host for kind, host, *_ in world["a"].system() if kind == "host"] == ["a", "c"]

    play(scene, "ab", "bc")


def test_a_moved_agent_is_found_where_it_is() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s", "t"), await world["b"].agent("two", "s")
        await one.out("mine")
        await one.out("private", space="p")
        await one.out("other", space="t")
        await two.out("for one", to=one.location)
        before = one.state.number
        await one.go(world["c"])
        assert world["a"].server.directory.host_of(one.state.id) == world["c"].location.id
        assert world["a"].server.agents == {}
        assert one.state.number == before
        assert await two.all(world["c"].location) == [("for one",), ("mine",)]
        assert await two.all(world["a"].location) == []
        assert await one.call("rdg", ANY, space="p") == [("private",)]
        assert await one.all(space="t") == [("other",)]
        await two.out("later", to=one.location)
        assert await two.all(one.location) == [("for one",), ("later",), ("mine",)]
        assert len({tuple(world[name].system()) for name in "abc"}) == 1

    play(scene, "ab", "bc")


def test_a_journey_that_is_called_off_leaves_everything_as_it_was() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        heard = await one.react()
        await one.out(1)
        await one.do(one.server.pack(one.state))
        assert await two.all() == []
        assert await one.all() == [(1,)]
        await one.do(one.server.resume(one.state))
        assert await two.all(one.location) == [(1,)]
        await two.out(2)
        await world.quiet()
        assert heard.tuples == [(1,), (2,)]

    play(scene, "ab")


def test_events_on_their_way_to_listeners_travel() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        once = await one.react(("x",), mode=ONCE)
        await two.out("x")
        await world.quiet()
        packed = await one.do(one.server.pack(one.state, once.events))
        told: list[Any] = []
        one.server.forget(one.state)
        life = world["b"].life
        assert life is not None
        state = life.call(world["b"].server.unpack, packed, lambda one: told.append)
        assert state.reactions == []
        assert told == []
        await world["b"].do(world["b"].server.arrive(state))
        assert [(event.tuple, event.source, event.registered.tag) for event in told] == [
            (("x",), two.location, "tag")
        ]

    play(scene, "ab")


@pytest.mark.parametrize("seed", seeds(10))
def test_nothing_is_lost_or_doubled_whenever_links_are_cut(seed: int) -> None:
    """Agents write, also for each other, take and move, while links are cut and hosts parted."""

    async def scene(world: LimeWorld) -> None:
        rng = world.loop.rng
        agents = [await world[name].agent(name, "s") for name in "abcd"]
        heard = [await agent.react() for agent in agents]
        written: Counter[Any] = Counter()
        taken: Counter[Any] = Counter()
        busy = True

        async def work(agent: LimeAgent) -> None:
            number = 0
            while busy:
                number += 1
                value = (agent.state.name, number)
                to = rng.choice([None, *agents, AgentLocation("nobody#0")])
                verbs = ["out", "out", "out", "out", "inp", "inp", "in_", "in_", "ing", "ing"]
                match rng.choice([*verbs, "unshare", "go"]):
                    case "out":
                        target = to.location if isinstance(to, LimeAgent) else to
                        written[value] += 1
                        await agent.out(*value, to=target)
                    case "inp":
                        got = await agent.call("inp", ANY)
                        taken.update([got] if got else [])
                    case "in_":
                        got = await agent.call("in_", ANY, wait=0.05)
                        taken.update([got] if got else [])
                    case "ing":
                        taken.update(await agent.call("ing", (rng.choice("abcd"), int)))
                    case "unshare":
                        await agent.unshare()
                        await agent.share()
                    case "go":
                        await agent.go(world[rng.choice("abcd")])
                await asyncio.sleep(rng.uniform(0.0, 0.02))

        tasks = [asyncio.ensure_future(work(agent)) for agent in agents]
        for _ in range(12):
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            match rng.choice(("cut", "cut", "partition", "heal")):
                case "cut":
                    world.network.cut(*rng.choice(["ab", "bc", "cd", "ad"]))
                case "partition":
                    names = list("abcd")
                    rng.shuffle(names)
                    at = rng.randrange(1, 4)
                    world.network.partition(names[:at], names[at:])
                case "heal":
                    world.network.heal()
        busy = False
        await asyncio.gather(*tasks)
        world.network.heal()
        await world.agreed("abcd")
        await world.quiet()
        left = Counter(await agents[0].all())
        assert written == taken + left
        for agent in agents:
            mine = await agent.all(None, agent.location)
            assert await agent.all(agent.location, agent.location) == mine  # all are at home
        assert len({tuple(host.system()) for host in world.hosts.values()}) == 1
        for one in heard:
            assert max(Counter(one.tuples).values(), default=1) == 1
            assert set(left) <= set(one.tuples)

    play(scene, "ab", "bc", "cd", "ad", seed=seed)


@pytest.mark.parametrize(
    ("over", "loss"), [("collect", "killed"), ("collect", "silent"), ("publish", "killed")]
)
@pytest.mark.parametrize("verb", ["rdg", "rdp", "ing", "inp"])
def test_a_loss_hides_nobody_who_stays(verb: str, loss: str, over: str) -> None:
    """A host is lost while an operation is under way: those behind it in the tree are linked by
    other ways, and are asked again when the group has changed. (Over plain publish-subscribe
    nobody says that it has nothing: who waits for half a second only cannot know of a silence.)"""

    async def scene(world: LimeWorld) -> None:
        agents = {name: await world[name].agent(name, "s") for name in "abcd"}
        membership = world["a"].server.group.membership
        middle = next(name for name in "abcd" if len(membership.neighbours(name)) > 1)
        asker, *others = [name for name in "abcd" if name != middle]
        for name in others:
            await agents[name].out("of", name)
        await world.quiet()
        asking = agents[asker].call(verb, ("of", str))
        if loss == "killed":
            await world[middle].crash()
        else:
            world.network.partition(middle, "".join([asker, *others]))
        found = await asking
        values = [("of", name) for name in others]
        if verb in ("rdg", "ing"):
            assert sorted(found) == values
        else:
            assert found in values
        left = sorted(await agents[asker].call("rdg", ("of", str)))
        assert len(left) == len(values) - {"ing": 2, "inp": 1}.get(verb, 0)

    play(scene, "ab", "ac", "ad", "bc", "bd", "cd", over=over)


@pytest.mark.parametrize("verb", ["rdp", "inp", "rdg", "ing"])
def test_who_is_asked_alone_is_asked_by_another_way(verb: str) -> None:
    """The link to the one host that is asked is lost; there is a way around."""

    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        two = await world["b"].agent("two", "s")
        await two.out("of two")
        await world.quiet()
        asking = one.call(verb, ANY, two.location)
        world.network.partition("ac", "bc")
        found = await asking
        assert found == ([("of two",)] if verb in ("rdg", "ing") else ("of two",))

    play(scene, "ab", "ac", "bc")


# What goes on while the group changes


def test_what_is_taken_while_hosts_engage_is_nowhere_afterwards() -> None:
    """A local take does not wait; whoever comes into the group sees what is left."""

    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        world.network.partition("a", "b")
        await world.agreed("a", "b")
        for number in range(20):
            await one.out(number)
        world.network.heal()
        taken: list[Any] = []
        halted = 0
        while len(two.server.directory.hosts) < 2 or two.server.group.halted:
            halted += one.server.group.halted
            if one.server.group.halted:
                before = world.loop.time()
                taken.append(await one.call("inp", ANY))
                await one.out("new", len(taken))
                assert world.loop.time() == before
            await asyncio.sleep(0.001)
        assert halted
        left = [(number,) for number in range(20)] + [
            ("new", number) for number in range(1, len(taken) + 1)
        ]
        seen = await two.call("rdg", ANY)
        assert sorted(seen + taken, key=str) == sorted(left, key=str)

    play(scene, "ab")


def test_what_is_written_while_hosts_engage_is_reacted_to_everywhere() -> None:
    async def scene(world: LimeWorld) -> None:
        one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
        near, far = await one.react(), await two.react()
        three = await world["c"].agent("three", "s")
        coming = await three.react()
        world.network.partition("ab", "c")
        await world.agreed("ab", "c")
        world.network.heal()
        written = 0
        while len(one.server.directory.hosts) < 3 or one.server.group.halted:
            await one.out(written)
            written += 1
            await asyncio.sleep(0.0005)
        await world.quiet()
        everything = [(number,) for number in range(written)]
        for heard in (near, far, coming):
            assert sorted(heard.tuples) == everything

    play(scene, "ab", "bc")


def test_a_tuple_that_comes_too_late_for_one_agent_keeps_none_from_another() -> None:
    """An agent shares no more while a tuple for it is on its way. Another at the same host does."""
    refused = []

    def scene_at(moment: int) -> Any:
        async def scene(world: LimeWorld) -> None:
            one, two = await world["a"].agent("one", "s"), await world["b"].agent("two", "s")
            three = await world["b"].agent("three", "s")
            await world.quiet()
            ending = two.do(two.server.set_shared([two.interface()], False))
            await asyncio.sleep(moment * 0.0005)
            await one.out("late", to=two.location)
            await ending
            refused.append(await one.all(world["a"].location) == [("late",)])
            await one.out("for three", to=three.location)
            assert await one.all(three.location) == [("for three",)]
            await two.share()
            assert await one.all(two.location) == [("late",)]

        return scene

    for moment in range(10):
        play(scene_at(moment), "ab", seed=moment + 1)
    assert any(refused)


def test_spaces_that_are_shared_together_are_known_to_all_when_that_returns() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["a"].agent("one", "s")
        agents = [await world["b"].agent(f"two{number}") for number in range(3)]
        for two in agents:
            await one.out("for", two.state.id, to=two.location)
        world.network.slow("a", "b", 10)

        async def share(two: LimeAgent) -> None:
            await two.share()
            assert one.server.directory.sharers("s").get(two.state.id) == "b"
            assert ("for", two.state.id) in [
                entry.fields for entry in two.interface().tuple_store.entries()
            ]

        await asyncio.gather(*map(share, agents))

    play(scene, "ab")
