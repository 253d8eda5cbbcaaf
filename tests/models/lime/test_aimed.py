"""Whom operations ask: those that are aimed at one agent, or host, go there and to nobody else, and
branches that have promised to be empty are not asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.models.lime.world import LimeWorld, play
from tupelo.federation.identity.access import Access
from tupelo.models.lime.reactions import ONCE
from tupelo.space.query import Query
from tupelo.values.parts import ANY

NAMES = "abcdefghij"
STAR = ["a" + name for name in NAMES[1:]]
"""Ten hosts: it is two steps from one to another, but for a, which is in the middle."""


def said(world: LimeWorld) -> Counter[str]:
    """What all hosts have said, also in passing on what others say."""
    counted: Counter[str] = Counter()
    for host in world.hosts.values():
        counted += host.server.broker.sent
        counted["routed"] += host.group.sent["Routed"]
    return counted


def idle(world: LimeWorld) -> bool:
    """Does no collect stand anywhere?"""
    return all(host.server.broker._epoch.collecting.is_idle for host in world.hosts.values())


@pytest.mark.parametrize("at", ["agent", "host"])
@pytest.mark.parametrize("verb", ["rdp", "rdg", "rd", "inp", "ing", "in_"])
def test_what_is_there_is_asked_for_there(verb: str, at: str) -> None:
    async def scene(world: LimeWorld) -> None:
        agents = {name: await world[name].agent(name, "s") for name in NAMES}
        await agents["b"].out("x")
        await world.quiet()
        before = said(world)
        where = agents["b"].location if at == "agent" else world["b"].location
        found = await agents["c"].call(verb, ANY, where)
        assert found == ([("x",)] if verb.endswith("g") else ("x",))
        await world.quiet()
        new = said(world) - before
        # A request and its answer; who takes confirms. Each of them makes two steps.
        assert new == Counter(routed=4 if verb.startswith("r") else 6)

    play(scene, *STAR)


@pytest.mark.parametrize("verb", ["rd", "in_", "ONCE"])
def test_who_waits_for_one_agent_stands_on_the_way_to_it_only(verb: str) -> None:
    async def scene(world: LimeWorld) -> None:
        agents = {name: await world[name].agent(name, "s") for name in NAMES}
        await world.quiet()
        before = said(world)
        aim = agents["b"].location
        heard: Any = None
        if verb == "ONCE":
            heard = await agents["c"].react(mode=ONCE, current=aim)
        else:
            waiting = agents["c"].call(verb, ANY, aim)
        await world.quiet()
        assert (said(world) - before)["CollectRequest"] == 2
        await agents["b"].out("x")
        await world.quiet()
        assert (heard.tuples if heard else [await waiting]) == [("x",)]
        assert idle(world)

    play(scene, *STAR)


@pytest.mark.parametrize("verb", ["rd", "in_"])
def test_who_waits_for_an_agent_follows_it(verb: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["c"].agent("one", "s")
        two = await world["b"].agent("two", "s")
        waiting = [one.call(verb, ("x", n), two.location) for n in range(3)]
        await world.quiet()
        await two.out("x", 0)
        await two.go(world["d"])
        await world.quiet()
        await two.out("x", 1)
        await world.quiet()
        world.network.partition("abc", "d")
        await world.agreed("abc", "d")
        await world.quiet()
        await two.out("x", 2)
        assert [call.done() for call in waiting] == [True, True, False]
        world.network.heal()
        await world.agreed("abcd")
        await world.quiet()
        assert [call.result() for call in waiting] == [("x", 0), ("x", 1), ("x", 2)]
        assert idle(world)

    play(scene, "ab", "ac", "ad")


def test_who_stops_waiting_for_one_agent_stands_nowhere() -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["c"].agent("one", "s")
        two = await world["b"].agent("two", "s")
        waiting = one.call("in_", ANY, two.location)
        await world.quiet()
        # In the next membership all know of the collect.
        await world["d"].do(world["d"].group.renew())
        await world.quiet()
        assert not idle(world)
        waiting.cancel()
        await world.quiet()
        assert idle(world)

    play(scene, "ab", "ac", "ad")


def test_a_reaction_to_one_agent_asks_its_host_only() -> None:
    async def scene(world: LimeWorld) -> None:
        agents = {name: await world[name].agent(name, "s") for name in NAMES}
        await agents["b"].out("x")
        await world.quiet()
        before = said(world)
        heard = await agents["c"].react(current=agents["b"].location)
        await world.quiet()
        assert heard.tuples == [("x",)]
        assert (said(world) - before)["ProbeRequest"] == 2
        await agents["b"].go(world["d"])
        await agents["b"].out("y")
        await world.quiet()
        assert heard.tuples == [("x",), ("y",)]

    play(scene, *STAR)


@pytest.mark.parametrize("verb", ["rd", "in_"])
def test_who_waits_for_an_agent_whose_metadata_is_on_its_way_finds_it(verb: str) -> None:
    async def scene(world: LimeWorld) -> None:
        one = await world["c"].agent("one", "s")
        world.network.slow("a", "c", 100)
        before = set(world["b"].server.agents)
        entering = world["b"].do(world["b"].agent("two", "s"))
        while len(world["b"].server.agents) == len(before):
            await asyncio.sleep(0.001)
        (two,) = (agent for agent in world["b"].server.agents.values() if agent.id not in before)
        assert one.server.directory.host_of(two.id) is None
        waiting = one.call(verb, ANY, two.location, wait=60.0)
        agent = await entering
        await agent.out("x")
        assert await waiting == ("x",)

    play(scene, "ab", "ac")


# Pruning: a standing reaction of the template is told of updates, so branches that are empty say so


LINE = ("ab", "bc", "cd", "de")
X = ("x", int)


async def asked(world: LimeWorld, work: Any) -> tuple[Any, int]:
    """What an operation finds, and how many questions and collects it costs."""
    before = said(world)
    found = await work
    new = said(world) - before
    return found, new["ProbeRequest"] + new["CollectRequest"]


@pytest.mark.parametrize("verb", ["rdp", "inp", "in_", "rdg", "ing"])
def test_branches_without_a_match_are_not_asked_by_those_who_take_either(verb: str) -> None:
    async def scene(world: LimeWorld) -> None:
        agents = {name: await world[name].agent(name, "s") for name in "abcde"}
        for name in "abcde":
            await agents[name].out("y", 1)
        await agents["b"].out("x", 1)
        many = verb.endswith("g")
        found, questions = await asked(world, agents["a"].call(verb, X))
        assert found == ([("x", 1)] if many else ("x", 1))
        assert questions == (4 if many else 1), "without a reaction all are asked, if need be"
        if not verb.startswith("r"):
            await agents["b"].out("x", 1)
        heard = await agents["a"].react(X)
        await world.quiet()
        found, questions = await asked(world, agents["a"].call(verb, X))
        assert (found, questions) == ([("x", 1)] if many else ("x", 1), 1)  # b
        await agents["e"].out("x", 2)
        await agents["b"].call("ing", ("x", 1))
        found, questions = await asked(world, agents["a"].call(verb, X))
        assert (found, questions) == ([("x", 2)] if many else ("x", 2), 4), "it was told at once"
        assert heard.tuples == [*heard.tuples[:1], ("x", 2)]

    play(scene, *LINE)


def test_one_who_waits_to_take_is_not_known_where_nothing_is_and_gets_what_comes() -> None:
    async def scene(world: LimeWorld) -> None:
        agents = {name: await world[name].agent(name, "s") for name in "abcde"}
        await agents["a"].react(X)
        await world.quiet()
        before = said(world)
        taking = agents["a"].call("in_", X)
        await world.quiet()
        assert not (said(world) - before)
        await agents["e"].out("x", 1)
        assert await taking == ("x", 1)
        assert await agents["e"].all() == []
        nothing, questions = await asked(world, agents["a"].call("inp", X))
        assert (nothing, questions) == (None, 4), "that branch has promised nothing since"
        assert await asked(world, agents["a"].call("inp", X)) == (None, 0)
        assert await asked(world, agents["a"].call("rdp", X)) == (None, 0)

    play(scene, *LINE)


def test_what_may_be_read_but_not_taken_is_no_empty_branch() -> None:
    async def scene(world: LimeWorld) -> None:
        agents = {name: await world[name].agent(name, "s") for name in "abc"}
        await agents["c"].out("x", 1)
        await agents["a"].react(X)
        await world.quiet()
        port = agents["c"].host.core.spaces["s"].port
        reading = port.begin(None)
        port.get_now(Query(X, txn=reading))
        assert await agents["a"].call("inp", X) is None  # Someone holds it.
        assert await agents["a"].call("rdp", X) == ("x", 1)
        taking = agents["a"].call("in_", X)
        await world.quiet()
        port.abort(reading)
        assert await taking == ("x", 1)

    play(scene, *LINE)


@pytest.mark.parametrize("forbidden", ["read", "take"])
def test_a_branch_that_keeps_something_from_us_does_not_count_as_empty(forbidden: str) -> None:
    async def scene(world: LimeWorld) -> None:
        agents = {name: await world[name].agent(name, "s") for name in "abc"}
        rules: dict[str, Any] = {forbidden: []}
        world["b"].core.change_access("s", Access(**rules))
        await agents["b"].out("x", 1)
        await agents["a"].react(X)
        await world.quiet()
        allowed, refused = ("inp", "rdp") if forbidden == "read" else ("rdp", "inp")
        assert await agents["a"].call(refused, X) is None
        assert await agents["a"].call(allowed, X) == ("x", 1)

    play(scene, *LINE)
