"""Large groups of LIME in virtual time, with changes all the time: what is done at one host waits
for no change of the group, agents enter and share without halting anyone, and a host that falls
silent holds others no longer than its heartbeats are waited for."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.virtual_world import VirtualWorld, WorldHost
from tupelo.lab.virtual_world import play as play_virtually
from tupelo.models.lime.reactions import ONCE_PER_TUPLE, ReactionRecord
from tupelo.models.lime.server import Server
from tupelo.models.lime.spaces import InterfaceSpace

HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 4 * HEARTBEAT_SECONDS
"""A host is dropped after three missed heartbeats: so long after its last word at the latest."""
CHANGE_SECONDS = 0.2
"""Longer than a change takes that waits for nobody."""
DELAY_SECONDS = (0.001, 0.004)
BRANCHES = 10
"""So many hosts each has dialled, at most: the first is in the middle."""
PATIENCE_SECONDS = 60.0
HOSTS = 30
"""A tree of three levels."""
LARGER = [(50, 0.01, 3), (200, 0.05, 1)] if "TUPELO_SEEDS" in os.environ else []
"""Groups that take minutes: run with the many seeds of the other simulations."""


class Home(WorldHost):
    """A host, its agent, and the agent's space, which is shared."""

    server: Server
    interface: InterfaceSpace

    def __init__(self, town: Town, number: int) -> None:
        peers = [f"h{(number - 1) // BRANCHES}"] if number else []
        super().__init__(town, f"h{number}", peers=peers, heartbeat=HEARTBEAT_SECONDS)

    async def open(self) -> None:
        self.server = Server(self.core)
        await self.server.start()
        self.interface = await self.enter()

    async def enter(self) -> InterfaceSpace:
        agent = await self.server.enter("agent")
        interface = self.server.space(agent, "s")
        await self.server.set_shared([interface], True)
        return interface

    # What is done here, and needs no other host

    async def out(self, number: int) -> None:
        await self.server.out(self.interface, (self.name, number))

    async def rdp(self, number: int) -> None:
        assert await self.server.rdp(self.interface, (self.name, number)) == (self.name, number)

    async def rd(self, number: int) -> None:
        assert await self.server.rd(self.interface, (self.name, number)) == (self.name, number)

    async def inp(self, number: int) -> None:
        assert await self.server.inp(self.interface, (self.name, number)) == (self.name, number)

    async def out_again(self, number: int) -> None:
        await self.out(number)

    async def in_(self, number: int) -> None:
        assert await self.server.in_(self.interface, (self.name, number)) == (self.name, number)

    async def react(self, number: int) -> None:
        """A weak reaction to what is here, and to what is written here."""
        template, here = ("heard", self.name, number), self.server.here
        self.heard: list[Any] = []
        self.reaction = ReactionRecord(
            self.interface, template, ONCE_PER_TUPLE, True, here, None, self.heard.append
        )
        await self.server.out(self.interface, template)
        await self.server.add_reactions([self.reaction])
        assert len(self.heard) == 1
        await self.server.out(self.interface, template)

    def has_heard(self) -> bool:
        return len(self.heard) == 2

    async def unreact(self, number: int) -> None:
        await self.server.remove_reaction(self.reaction)
        for _ in range(2):
            await self.server.inp(self.interface, ("heard", self.name, number))

    async def live_privately(self, number: int) -> None:
        """A space that is not shared, and LimeSystem."""
        private = self.server.space(self.interface.agent, "private")
        await self.server.out(private, (number,))
        assert await self.server.ing(private, (int,)) == [(number,)]
        assert await self.server.rdg(private, (int,)) == []
        assert await self.server.rdg(self.interface.agent.system, ("host", self.name, str))


LOCAL = (
    Home.out,
    Home.rdp,
    Home.rd,
    Home.inp,
    Home.out_again,
    Home.in_,
    Home.react,
    Home.unreact,
    Home.live_privately,
)


class Town(VirtualWorld[Home]):
    """Hosts in one group, each of which does all that it can do alone, again and again."""

    def __init__(self, loop: VirtualLoop, hosts: int) -> None:
        super().__init__(loop, VirtualNetwork(loop, delay=DELAY_SECONDS))
        self.members = [Home(self, number) for number in range(hosts)]
        self.held: dict[str, float] = {}
        """The longest that each kind of operation took."""
        self.halted: Counter[str] = Counter()
        """How many operations of each kind began while their host was halted."""
        self._working: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the hosts alone; then let all meet at once."""
        self.network.partition(*([home.name] for home in self.members))
        await super().start()
        self.network.heal()
        await self.grouped()

    async def stop(self) -> None:
        for task in self._working:
            task.cancel()
        await super().stop()

    async def until(self, condition: Callable[[], bool]) -> None:
        end = self.loop.time() + PATIENCE_SECONDS
        while not condition():
            assert self.loop.time() < end
            await asyncio.sleep(0.01)

    async def grouped(self) -> None:
        def is_one() -> bool:
            groups = [home.server.group for home in self.members]
            return all(
                len(group.membership.members) == len(groups) and not group.halted
                for group in groups
            )

        await self.until(is_one)

    async def timed(self, kind: str, group: Any, work: Awaitable[Any]) -> None:
        begin, halted = self.loop.time(), group.halted
        await work
        self.held[kind] = max(self.held.get(kind, 0.0), self.loop.time() - begin)
        self.halted[kind] += halted

    def work(self, pause_seconds: float) -> None:
        self._working = [
            self.loop.create_task(self._work(home, pause_seconds)) for home in self.members
        ]

    async def _work(self, home: Home, pause_seconds: float) -> None:
        rng, number = Random(home.name), 0
        while True:
            number += 1
            for operation in LOCAL:
                await asyncio.sleep(rng.expovariate(1 / pause_seconds))
                kind = operation.__name__
                await self.timed(kind, home.server.group, operation(home, number))
                if operation is Home.react:
                    await self.until(home.has_heard)

    def check(self) -> None:
        """Nobody has failed, and nothing took any time, though much began during a change."""
        for task in self._working:
            assert not task.done(), task
        assert self.held == {operation.__name__: 0.0 for operation in LOCAL}
        assert all(self.halted[operation.__name__] for operation in LOCAL), self.halted


def play(hosts: int, scene: Callable[[Town], Awaitable[None]]) -> None:
    play_virtually(lambda loop: Town(loop, hosts), scene, 1)


async def change_all_the_time(town: Town, times: int) -> None:
    """Hosts come and go, agents enter and share, one after the other and together."""
    for _ in range(times):
        newcomer = Home(town, len(town.members))
        await newcomer.start()
        town.members.append(newcomer)
        await asyncio.gather(*(home.enter() for home in town.members[1:3]))
        await town.grouped()
        gone = town.members.pop()
        await gone.server.group.leave()
        await gone.leave()
        await town.grouped()


@pytest.mark.parametrize(("hosts", "pause_seconds", "times"), [(HOSTS, 0.2, 2), *LARGER])
def test_local_operations_wait_for_no_change(hosts: int, pause_seconds: float, times: int) -> None:
    async def scene(town: Town) -> None:
        town.work(pause_seconds)
        await change_all_the_time(town, times)
        town.check()

    play(hosts, scene)


def test_nobody_halts_when_an_agent_enters_or_shares() -> None:
    async def scene(town: Town) -> None:
        changes = [len(home.server.group.held) for home in town.members]
        its = await asyncio.gather(*(home.enter() for home in town.members[:10]))
        for one, home in zip(its, town.members, strict=False):
            await home.server.out(one, ("from", home.name))
        for home in town.members:
            said = await home.server.rdg(home.interface.agent.system, ("space", "s", str, str))
            assert len(said) == len(town.members) + len(its)
            assert len(await home.server.rdg(home.interface, ("from", str))) == len(its)
        for one, home in zip(its, town.members, strict=False):
            await home.server.set_shared([one], False)
            await home.server.depart(one.agent)
        assert await town.members[-1].server.rdg(town.members[-1].interface, ("from", str)) == []
        assert changes == [len(home.server.group.held) for home in town.members]

    play(HOSTS, scene)


def test_a_silent_host_holds_others_no_longer_than_its_heartbeats_are_waited_for() -> None:
    """What is asked of all hosts waits so long; what is done here does not."""

    async def scene(town: Town) -> None:
        silent = town.members.pop(HOSTS // 2)
        others = [home.name for home in town.members]
        town.network.partition(others, [silent.name])
        newcomer = Home(town, HOSTS)
        town.network.partition([*others, newcomer.name], [silent.name])
        town.work(0.1)
        joining = asyncio.ensure_future(newcomer.start())
        await town.until(lambda: all(home.server.group.halted for home in town.members))
        begin = town.loop.time()
        await asyncio.gather(*(home.server.rdg(home.interface, ("x",)) for home in town.members))
        assert town.loop.time() - begin < SILENCE_SECONDS + CHANGE_SECONDS
        await joining
        town.check()
        await newcomer.leave()
        await silent.leave()

    play(HOSTS, scene)
