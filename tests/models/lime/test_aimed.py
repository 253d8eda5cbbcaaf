"""Operations that are aimed at one agent, or host, go there and to nobody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.models.lime.camp import Camp, play
from tupelo.models.lime.reactions import ONCE
from tupelo.values.parts import ANY

NAMES = "abcdefghij"
STAR = ["a" + name for name in NAMES[1:]]
"""Ten hosts: it is two steps from one to another, but for a, which is in the middle."""


def said(camp: Camp) -> Counter[str]:
    """What all hosts have said, also in passing on what others say."""
    counted: Counter[str] = Counter()
    for tent in camp.tents.values():
        counted += tent.server.broker.sent
        counted["routed"] += tent.group.sent["Routed"]
    return counted


def idle(camp: Camp) -> bool:
    """Does no collect stand anywhere?"""
    return all(tent.server.broker._now.collecting.is_idle for tent in camp.tents.values())


@pytest.mark.parametrize("at", ["agent", "host"])
@pytest.mark.parametrize("verb", ["rdp", "rdg", "rd", "inp", "ing", "in_"])
def test_what_is_there_is_asked_for_there(verb: str, at: str) -> None:
    async def scene(camp: Camp) -> None:
        agents = {name: await camp[name].agent(name, "s") for name in NAMES}
        await agents["b"].out("x")
        await camp.quiet()
        before = said(camp)
        where = agents["b"].location if at == "agent" else camp["b"].location
        found = await agents["c"].call(verb, ANY, where)
        assert found == ([("x",)] if verb.endswith("g") else ("x",))
        await camp.quiet()
        new = said(camp) - before
        # A request and its answer; who takes confirms. Each of them makes two steps.
        assert new == Counter(routed=4 if verb.startswith("r") else 6)

    play(scene, *STAR)


@pytest.mark.parametrize("verb", ["rd", "in_", "ONCE"])
def test_who_waits_for_one_agent_stands_on_the_way_to_it_only(verb: str) -> None:
    async def scene(camp: Camp) -> None:
        agents = {name: await camp[name].agent(name, "s") for name in NAMES}
        await camp.quiet()
        before = said(camp)
        aim = agents["b"].location
        heard: Any = None
        if verb == "ONCE":
            heard = await agents["c"].react(mode=ONCE, current=aim)
        else:
            waiting = agents["c"].call(verb, ANY, aim)
        await camp.quiet()
        assert (said(camp) - before)["Collect"] == 2
        await agents["b"].out("x")
        await camp.quiet()
        assert (heard.tuples if heard else [await waiting]) == [("x",)]
        assert idle(camp)

    play(scene, *STAR)


@pytest.mark.parametrize("verb", ["rd", "in_"])
def test_who_waits_for_an_agent_follows_it(verb: str) -> None:
    async def scene(camp: Camp) -> None:
        one = await camp["c"].agent("one", "s")
        two = await camp["b"].agent("two", "s")
        waiting = [one.call(verb, ("x", n), two.location) for n in range(3)]
        await camp.quiet()
        await two.out("x", 0)
        await two.go(camp["d"])
        await camp.quiet()
        await two.out("x", 1)
        await camp.quiet()
        camp.network.partition("abc", "d")
        await camp.agreed("abc", "d")
        await camp.quiet()
        await two.out("x", 2)
        assert [call.done() for call in waiting] == [True, True, False]
        camp.network.heal()
        await camp.agreed("abcd")
        await camp.quiet()
        assert [call.result() for call in waiting] == [("x", 0), ("x", 1), ("x", 2)]
        assert idle(camp)

    play(scene, "ab", "ac", "ad")


def test_who_stops_waiting_for_one_agent_stands_nowhere() -> None:
    async def scene(camp: Camp) -> None:
        one = await camp["c"].agent("one", "s")
        two = await camp["b"].agent("two", "s")
        waiting = one.call("in_", ANY, two.location)
        await camp.quiet()
        await camp["d"].do(camp["d"].group.renew())  # a roster in which all know of the collect
        await camp.quiet()
        assert not idle(camp)
        waiting.cancel()
        await camp.quiet()
        assert idle(camp)

    play(scene, "ab", "ac", "ad")


def test_a_reaction_to_one_agent_asks_its_host_only() -> None:
    async def scene(camp: Camp) -> None:
        agents = {name: await camp[name].agent(name, "s") for name in NAMES}
        await agents["b"].out("x")
        await camp.quiet()
        before = said(camp)
        heard = await agents["c"].react(current=agents["b"].location)
        await camp.quiet()
        assert heard.tuples == [("x",)]
        assert (said(camp) - before)["Question"] == 2
        await agents["b"].go(camp["d"])
        await agents["b"].out("y")
        await camp.quiet()
        assert heard.tuples == [("x",), ("y",)]

    play(scene, *STAR)


@pytest.mark.parametrize("verb", ["rd", "in_"])
def test_who_waits_for_an_agent_whose_card_is_on_its_way_finds_it(verb: str) -> None:
    async def scene(camp: Camp) -> None:
        one = await camp["c"].agent("one", "s")
        camp.network.slow("a", "c", 100)
        before = set(camp["b"].server.agents)
        entering = camp["b"].do(camp["b"].agent("two", "s"))
        while len(camp["b"].server.agents) == len(before):
            await asyncio.sleep(0.001)
        (two,) = (agent for agent in camp["b"].server.agents.values() if agent.id not in before)
        assert one.server.directory.host_of(two.id) is None
        waiting = one.call(verb, ANY, two.location, wait=60.0)
        camper = await entering
        await camper.out("x")
        assert await waiting == ("x",)

    play(scene, "ab", "ac")
