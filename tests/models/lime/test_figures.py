"""The figures of the paper that show messages, as scenarios: 7 (a weak reaction over three hosts),
8 (a distributed in) and 9 (engagement and disengagement)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tests.models.lime.field import ServerWorld
from tupelo.federation.groups.group import Group
from tupelo.federation.links import wire
from tupelo.lab.loop import VirtualLoop, run
from tupelo.models.lime.locations import AgentLocation, HostLocation
from tupelo.models.lime.messages import place_of
from tupelo.models.lime.reactions import ONCE, ONCE_PER_TUPLE, Mode, ReactionCall, ReactionRecord
from tupelo.models.lime.spaces import InterfaceSpace

T = TypeVar("T")
TASK = ("task", int)
OVER = pytest.mark.parametrize("over", ["collect", "publish"])


class Stage(ServerWorld):
    """Hosts with an agent each, which share a space "jobs"."""

    async def set(self, links: str) -> None:
        await self.start()
        self.interface: dict[str, InterfaceSpace] = {}
        for name, server in self.servers.items():
            agent = await server.enter(f"agent {name}")
            self.interface[name] = server.space(agent, "jobs")
            await server.set_shared([self.interface[name]], True)
        await self.link(links)

    async def link(self, links: str, *, silently: bool = False) -> None:
        """Draw these links, "ab bc", and wait until the groups are as they say."""
        self.draw(links, silently=silently)
        await self.grouped()

    def draw(self, links: str, *, silently: bool = False) -> None:
        self.relink(links.split(), silently=silently)

    async def grouped(self) -> None:
        await self.settle({name: self._reached(name) for name in self.names})

    async def halted(self, names: str) -> None:
        """Until operations at these hosts are held, all at the same time."""
        while not all(self.servers[name].group.halted for name in names):
            await asyncio.sleep(0.0005)

    def _reached(self, name: str) -> frozenset[str]:
        found: frozenset[str] = frozenset(name)
        while True:
            more = found.union(*(link for link in self._links if link & found))
            if more == found:
                return found
            found = more

    def location(self, name: str) -> AgentLocation:
        return self.interface[name].agent.location

    # What the agent of a host does

    async def out(self, name: str, number: int, to: str | None = None) -> None:
        destination = None if to is None else self.location(to)
        await self.servers[name].out(self.interface[name], ("task", number), destination)

    async def rdg(self, name: str, current: Any = None, destination: Any = None) -> list[int]:
        found = await self.servers[name].rdg(
            self.interface[name], TASK, place_of(current, destination)
        )
        return sorted(number for _, number in found)

    async def react(self, name: str, mode: Mode) -> tuple[ReactionRecord, list[ReactionCall]]:
        events: list[ReactionCall] = []
        registered = ReactionRecord(
            self.interface[name], TASK, mode, True, None, None, events.append
        )
        await self.servers[name].add_reactions([registered])
        return registered, events

    def waits(self, name: str) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.servers[name].in_(self.interface[name], TASK))

    async def quiet(self) -> None:
        await asyncio.sleep(1.0)


def play(names: str, scenario: Any, **options: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        stage = Stage(loop, names, **options)
        await scenario(stage)
        await stage.stop()

    run(main, 7)


# Figure 7


@OVER
def test_figure_7_a_weak_reaction_over_three_hosts(over):
    async def scenario(stage: Stage) -> None:
        await stage.set("ab bc")
        await stage.out("c", 1)
        _, events = await stage.react("a", ONCE_PER_TUPLE)
        await stage.quiet()
        assert told(events) == [1]  # It was there before.
        await stage.out("b", 2)
        await stage.quiet()
        await stage.out("a", 3)
        await stage.quiet()
        assert told(events) == [1, 2, 3]
        assert [event.source for event in events] == [stage.location(name) for name in "cba"]
        await stage.servers["c"].group.leave()
        await stage.out("c", 4)
        await stage.out("b", 5)
        await stage.quiet()
        assert told(events) == [1, 2, 3, 5]
        await stage.servers["c"].group.join()
        await stage.quiet()
        assert told(events) == [1, 2, 3, 5, 4]

    play("abc", scenario, over=over)


@OVER
def test_figure_7_once_fires_one_time_though_several_hosts_answer(over):
    async def scenario(stage: Stage) -> None:
        await stage.set("ab ac")
        registered, events = await stage.react("a", ONCE)
        await asyncio.gather(stage.out("b", 1), stage.out("c", 2))
        await stage.quiet()
        assert len(events) == 1
        assert not registered.registered
        await stage.out("b", 3)
        await stage.quiet()
        assert len(events) == 1

    play("abc", scenario, over=over)


def test_figure_7_what_is_taken_right_after_an_engagement_was_reacted_to():
    """The watchdogs are in place before operations go on: nobody is faster."""

    async def scenario(stage: Stage) -> None:
        await stage.set("ab")
        _, events = await stage.react("a", ONCE_PER_TUPLE)
        await stage.out("c", 1)
        stage.draw("ab bc")
        await stage.halted("c")
        assert await stage.rdg("c") == [1]  # It has waited at the gate.
        taken = await stage.servers["c"].inp(stage.interface["c"], TASK)
        assert taken == ("task", 1)
        await stage.quiet()
        assert told(events) == [1]

    play("abc", scenario)


# Figure 8


@OVER
def test_figure_8_a_distributed_in(over):
    async def scenario(stage: Stage) -> None:
        await stage.set("ab bc")
        waiting = stage.waits("a")
        await stage.quiet()
        await stage.out("c", 1)
        assert await waiting == ("task", 1)
        assert await stage.rdg("b") == []

    play("abc", scenario, over=over)


@OVER
def test_figure_8_two_hosts_answer_at_once(over):
    async def scenario(stage: Stage) -> None:
        await stage.set("ab ac")
        waiting = stage.waits("a")
        await stage.quiet()
        await asyncio.gather(stage.out("b", 1), stage.out("c", 2))
        _, number = await waiting
        assert await stage.rdg("a") == [3 - number]

    play("abc", scenario, over=over)


@OVER
def test_figure_8_a_tuple_that_is_withdrawn_in_between(over):
    async def scenario(stage: Stage) -> None:
        await stage.set("ab ac")
        stage.network.slow("a", "b", 20)
        waiting = stage.waits("a")
        await stage.quiet()
        await stage.out("b", 1)
        assert await stage.servers["b"].inp(stage.interface["b"], TASK) == ("task", 1)
        await stage.quiet()
        assert not waiting.done()
        await stage.out("c", 2)
        assert await waiting == ("task", 2)

    play("abc", scenario, over=over)


@OVER
def test_figure_8_two_who_want_the_same(over):
    async def scenario(stage: Stage) -> None:
        await stage.set("ab ac")
        waiting = {stage.waits("a"), stage.waits("b")}
        await stage.quiet()
        await stage.out("c", 1)
        await stage.quiet()
        done = {task for task in waiting if task.done()}
        assert len(done) == 1
        await stage.out("c", 2)
        assert {await task for task in waiting} == {("task", 1), ("task", 2)}

    play("abc", scenario, over=over)


# Figure 9


def test_figure_9_the_messages_of_an_engagement(monkeypatch):
    """Everyone is asked to halt, and says when it is ready; then the new group is told, misplaced
    tuples are exchanged, and when all have said that this is done everyone goes on."""
    said: list[tuple[str, str, str]] = []
    say: Any = Group._say

    def listen(group: Group, host: str, message: Any) -> None:
        what = message.message if isinstance(message, wire.Routed) else message
        said.append((group._core.id, host, type(what).__name__))
        say(group, host, message)

    monkeypatch.setattr(Group, "_say", listen)

    async def scenario(stage: Stage) -> None:
        await stage.set("ab")
        await stage.out("a", 1, to="c")
        said.clear()
        await stage.link("ab bc")

        def heard(host: str) -> list[str]:
            """What this host was told, or has told those who wait for it."""
            kinds = [kind for source, target, kind in said if host in (source, target)]
            return list(dict.fromkeys(kinds))

        for host in "abc":
            kinds = [kind for kind in heard(host) if kind not in ("Join", "Flush")]
            assert kinds[:3] == ["Probe", "Echo", "Commit"]
            assert kinds[-2:] == ["Settled", "Resume"]
        exchanged = [kind for kind in heard("c") if kind in ("Commit", "PartRequest", "Settled")]
        assert exchanged == ["Commit", "PartRequest", "Settled"]
        assert await stage.rdg("b", stage.location("c")) == [1]

    play("abc", scenario)


def test_figure_9_no_operation_sees_half_of_an_engagement():
    """Those that are under way end among those who were there; those that wait see everyone."""

    async def scenario(stage: Stage) -> None:
        await stage.set("ab cd")
        for number, name in enumerate("abcd"):
            await stage.out(name, number)
        stage.network.slow("a", "b", 50)
        before = asyncio.ensure_future(stage.rdg("a"))
        await asyncio.sleep(0)
        stage.draw("ab bc cd")
        await stage.halted("abcd")
        assert not before.done()  # so the others wait for it
        after = asyncio.gather(*(stage.rdg(name) for name in "abcd"))
        assert await before == [0, 1]
        assert await after == [[0, 1, 2, 3]] * 4

    play("abcd", scenario)


def test_figure_9_groups_engage_with_groups_and_misplaced_tuples_go_home_first():
    async def scenario(stage: Stage) -> None:
        await stage.set("ab cd")
        await stage.out("a", 1, to="d")
        await stage.out("d", 2, to="a")
        stage.draw("ab bc cd")
        await stage.halted("a")
        first = await asyncio.gather(*(stage.rdg(name, stage.location("d")) for name in "abcd"))
        assert first == [[1]] * 4
        assert await stage.rdg("c", HostLocation("a")) == [2]

    play("abcd", scenario)


def test_figure_9_a_host_that_vanishes_while_it_engages_holds_nobody():
    async def scenario(stage: Stage) -> None:
        await stage.set("ab")
        await stage.out("a", 1, to="c")
        stage.draw("ab bc")
        await stage.halted("a")
        waiting = asyncio.ensure_future(stage.rdg("a"))
        await stage.link("ab", silently=True)
        await waiting
        assert not any(one.group.halted for one in stage.servers.values())
        await stage.link("ab bc")
        assert await stage.rdg("a", stage.location("c")) == [1]
        assert await stage.rdg("a") == [1]

    play("abc", scenario)


def test_figure_9_disengagement():
    """It is told to everyone, and nothing changes hands."""

    async def scenario(stage: Stage) -> None:
        await stage.set("ab bc")
        for number, name in enumerate("abc"):
            await stage.out(name, number)
        await stage.out("a", 7, to="b")
        under_way = asyncio.ensure_future(stage.rdg("c"))
        await asyncio.sleep(0)
        await stage.servers["b"].group.leave()
        assert await under_way in ([0, 1, 2, 7], [0], [2])  # before it, or after
        await stage.quiet()
        assert await asyncio.gather(*map(stage.rdg, "abc")) == [[0], [1, 7], [2]]
        for name in "abc":
            assert known_hosts(stage, name) == {name}
        await stage.servers["b"].group.join()
        await stage.grouped()
        assert await asyncio.gather(*map(stage.rdg, "abc")) == [[0, 1, 2, 7]] * 3
        assert known_hosts(stage, "a") == set("abc")

    play("abc", scenario)


def test_figure_9_reactions_that_feed_each_other_cannot_keep_a_host():
    async def scenario(stage: Stage) -> None:
        await stage.set("ab")
        tasks: list[asyncio.Task[None]] = []
        for name, hears, says in (("a", "pong", "ping"), ("b", "ping", "pong")):

            def answer(event: ReactionCall, name: str = name, says: str = says) -> None:
                work = stage.servers[name].out(stage.interface[name], (says, len(tasks)))
                tasks.append(asyncio.ensure_future(work))

            registered = ReactionRecord(
                stage.interface[name], (hears, int), ONCE_PER_TUPLE, True, None, None, answer
            )
            await stage.servers[name].add_reactions([registered])
        for _ in range(5):
            await stage.servers["a"].out(stage.interface["a"], ("ping", 0))
        await stage.until(lambda: len(tasks) > 50)
        await timely(stage.servers["b"].group.leave())
        assert known_hosts(stage, "b") == {"b"}
        await stage.quiet()
        assert known_hosts(stage, "a") == {"a"}
        once = len(tasks)
        await stage.servers["b"].group.join()
        await stage.until(lambda: len(tasks) > once + 50)
        await timely(stage.servers["b"].group.leave())
        await asyncio.gather(*tasks)

    play("ab", scenario)


async def timely(work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(30.0):
        return await work


def told(events: list[ReactionCall]) -> list[int]:
    return [event.tuple[1] for event in events]


def known_hosts(stage: Stage, name: str) -> set[str]:
    store = stage.servers[name].system.tuple_store.entries()
    return {entry.fields[1] for entry in store if entry.fields[0] == "host"}
