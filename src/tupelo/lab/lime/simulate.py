"""Simulating LIME: one seed is one world, its agents, its faults, and a verdict.

There is trouble: agents work while groups part and merge, links are cut and slow, hosts crash,
return with nothing, disengage and engage. Then there is peace: everyone is in one group, and what
was in doubt is settled. At last the judge looks at what is there, and at all that has happened.
"""

from __future__ import annotations

import asyncio
from random import Random

from tupelo.lab.judge import Fault
from tupelo.lab.lime.judge import judge
from tupelo.lab.lime.load import LATE, BlockedRead, LimeWorker, write_late
from tupelo.lab.lime.world import LimeWorld, SimulatedLimeHost, heal, nemesis
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.simulate import Report, bounded, played
from tupelo.lab.world import DOUBT_SECONDS

SETTLE_SECONDS = DOUBT_SECONDS + 5.0
SERVED_SECONDS = 5.0


def simulate(seed: int) -> Report:
    """Play one seed, from its beginning to the verdict."""
    return played(_LimeRun(seed), seed)


class _LimeRun:
    """One seed, while it is played."""

    def __init__(self, seed: int) -> None:
        self.faults: list[Fault] = []
        self._seed = seed
        self._world: LimeWorld
        self._waiters: list[BlockedRead] = []

    async def play(self, loop: VirtualLoop) -> None:
        self._world = LimeWorld(loop, self._seed, [LimeWorker, BlockedRead])
        async with bounded():
            await self._play()

    async def _play(self) -> None:
        world = self._world
        world.populate = self._populate
        await world.start()
        for member in world.members:
            await self._populate(member)
        await nemesis(world, Random(f"{self._seed} trouble"), world.plan.load_seconds)
        world.calm = True
        await self._wait_alone()
        await heal(world)
        if await world.until(world.is_one_group):
            await self._say_last()
            await self._serve()
        await asyncio.sleep(SETTLE_SECONDS)
        await world.until(world.is_one_group)
        self.faults += judge(world)
        await world.stop()

    async def _populate(self, member: SimulatedLimeHost) -> None:
        for _ in range(self._world.plan.agents):
            await self._load(member, LimeWorker)

    async def _load(
        self, member: SimulatedLimeHost, cls: type[LimeWorker] | type[BlockedRead]
    ) -> LimeWorker | BlockedRead:
        assert member.life is not None
        loaded: LimeWorker | BlockedRead = await member.life.start(
            member.host.load(cls), f"an agent comes to {member.name}"
        )
        return loaded

    async def _wait_alone(self) -> None:
        """While no host hears another, an agent at each begins to wait for a tuple."""
        world = self._world
        world.network.partition(*([member.name] for member in world.members))
        up = [member for member in world.members if member.is_up]
        await world.until(lambda: not any(member.core.peers for member in up))
        for member in up:
            waiter = await self._load(member, BlockedRead)
            assert isinstance(waiter, BlockedRead)
            self._waiters.append(waiter)

    async def _say_last(self) -> None:
        """Before the group changes once more, everyone has news for those who have come."""
        self._world.last.set()
        await asyncio.sleep(1.0)

    async def _serve(self) -> None:
        """It is written elsewhere, and must be found there."""
        members = self._world.members
        for waiter in self._waiters:
            member = self._world.member(waiter.host.host.id)
            other = members[(member.number + 1) % len(members)]
            assert other.life is not None
            work = write_late(other, (LATE, member.name))
            await other.life.start(work, f"{other.name} writes for {member.name}")
        await self._world.until(lambda: all(one.served for one in self._waiters), SERVED_SECONDS)
        for waiter in self._waiters:
            if not waiter.served:
                text = f"who waits at {waiter.host.name} has not found what was written elsewhere"
                self.faults.append(Fault("not served", text))

    def report(self) -> Report:
        network = self._world.network
        acts = len(self._world.history.acts)
        return Report(self._seed, network.digest, tuple(self.faults), acts, tuple(network.trace))
