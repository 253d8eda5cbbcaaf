"""A world: hosts on a virtual network that meet, lose each other, crash and come back."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import AsyncHost
from tupelo.federation.spaces.hosted import Doubt, HostedSpace
from tupelo.federation.spanning.space import AsyncFederatedSpaceLike
from tupelo.lab.life import ProgramLife
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.simulation import Simulation
from tupelo.space.asynchronous import Subscription
from tupelo.space.port import Port, port_of
from tupelo.space.tasks import Flusher
from tupelo.values.parts import ANY

SPACE = "s"
PORT = 7700
HEARTBEAT_SECONDS = 0.5
ANSWER_SECONDS = 2.0
DOUBT_SECONDS = 25.0
"""Longer than anyone is away: so it decides only about those who never come back."""


@dataclass(frozen=True)
class WorldConfig:
    """What a seed has decided about a world before it begins."""

    hosts: int
    durable: frozenset[int]
    agents: int
    """at each host"""

    load_seconds: float
    clients: int
    doubt: Doubt
    delay: tuple[float, float]
    disk_seconds: float
    """No commit takes longer."""


def plan_world(rng: Random) -> WorldConfig:
    hosts = rng.choice((2, 2, 3, 3, 4))
    durable = frozenset(number for number in range(hosts) if rng.random() < 0.6)
    seconds = rng.uniform(3.0, 8.0)
    return WorldConfig(
        hosts=hosts,
        durable=durable,
        agents=rng.choice((1, 2)),
        load_seconds=seconds,
        clients=rng.choice((0, 1, 2)),
        doubt=Doubt(seconds=DOUBT_SECONDS),
        delay=rng.choice(((0.001, 0.01), (0.001, 0.1), (0.02, 0.05))),
        disk_seconds=rng.choice((0.0, 0.01, 0.1)),
    )


class SpaceUnderTest(AsyncHost):
    """A host as its agents hold it."""

    def __init__(self, core: HostCore) -> None:
        self._core = core
        self._tasks = set()


class SlowFlusher(Flusher):
    """Lets tasks wait for a disk that takes its time."""

    def __init__(self, port: Port, rng: Random, seconds: float) -> None:
        super().__init__(port)
        self._rng = rng
        self._seconds = seconds

    async def flush(self, position: int) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, self._seconds))
        self._journaled.flush(position)


class WorldHost:
    """A host of the world, through all its lives."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.name = "abcdefgh"[number]
        self.address = f"{self.name}:{PORT}"
        self.durable = number in world.plan.durable
        self.lives = 0
        self.ends: list[int] = []
        """The ticks at which it crashed, began to leave, or had left."""
        self.life: ProgramLife | None = None
        self.core: HostCore
        self.space: AsyncFederatedSpaceLike

    @property
    def is_up(self) -> bool:
        return self.life is not None

    async def start(self) -> None:
        """A new life, on what the last one has left on disk."""
        world = self.world
        self.lives += 1
        self.life = ProgramLife(world.loop, world.network, self.name)
        await self.life.start(self._start(self.life), f"{self.name} starts")
        world.note(f"{self.name} has started, life {self.lives}")

    async def _start(self, life: ProgramLife) -> None:
        world = self.world
        self.core = HostCore(
            self.name,
            host_id=self.name,
            network=life,
            clock=world.clock,
            rng=Random(f"{world.seed} {self.name} {self.lives}"),
            new_id=world.new_id,
            listen=self.address,
            path=world.folder / self.name if self.durable else None,
            peers=[other.address for other in world.members if other is not self],
            doubt=world.plan.doubt,
            heartbeat=HEARTBEAT_SECONDS,
            answer_seconds=ANSWER_SECONDS,
            commit_in_place=True,
            durability="process" if self.durable else None,
        )
        await self.core.start()
        self.space = SpaceUnderTest(self.core).space(SPACE)
        if self.durable and world.plan.disk_seconds:
            self._slow_down(self.core.spaces[SPACE])
        self._watch(self.core.spaces[SPACE])

    def _slow_down(self, hosted: HostedSpace) -> None:
        """Let its commits take time, as on a disk."""
        hosted.port.flusher = SlowFlusher(hosted.port, self.core.rng, self.world.plan.disk_seconds)

    def _watch(self, hosted: HostedSpace) -> None:
        """Write down which entries come into sight here, also those that return."""
        for entry in hosted.port.entries():
            self.world.sightings[entry.fields] += 1
        state = hosted.port.subscribe(
            ANY, None, None, None, None, backlog_max=100_000, available=True
        )
        subscription = Subscription(hosted.port, state, None)

        async def listen() -> None:
            async for notice in subscription:
                self.world.sightings[notice.subject.fields] += 1

        assert self.life is not None
        self.watching = self.life.start(listen(), f"{self.name} watches")

    async def crash(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            self.world.note(f"{self.name} crashes")
            self.ends.append(self.world.tick())
            spaces = [hosted.space for hosted in self.core.spaces.values()]
            ports = [port_of(space) for space in [*spaces, self.core.deciding.space]]
            await life.kill(ports)
            self.world.note(f"{self.name} is gone")

    async def leave(self) -> None:
        """Say goodbye, close the spaces, and end."""
        life, self.life = self.life, None
        if life is not None:
            self.world.note(f"{self.name} leaves")
            life.leaving = True
            self.ends.append(self.world.tick())
            await life.start(self.core.stop("for a while"), f"{self.name} leaves")
            await life.end()
            self.ends.append(self.world.tick())  # What was written meanwhile has gone as well.
            self.world.network.crash(self.name)  # what is left of its links

    @property
    def engaged(self) -> int:
        return len(self.core.peers)


class World(Simulation[WorldHost]):
    """Everything there is in one run."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.plan = plan_world(Random(f"{seed} plan"))
        super().__init__(loop, seed, VirtualNetwork(loop, delay=self.plan.delay, trace_max=100_000))
        self.members = [WorldHost(self, number) for number in range(self.plan.hosts)]
        self.sightings: Counter[tuple[Any, ...]] = Counter()
        """How often each entry has come into sight: once, if it never had to return."""
        self._ticks = 0

    def tick(self) -> int:
        """The next moment: no two are the same, though virtual time may be."""
        self._ticks += 1
        return self._ticks

    async def start(self) -> None:
        for member in self.members:
            await member.start()
        await self.until(self.all_engaged)

    def all_engaged(self) -> bool:
        others = len(self.members) - 1
        return all(member.is_up and member.engaged == others for member in self.members)


async def nemesis(world: World, rng: Random, seconds: float) -> None:
    """Faults, one after the other, as the seed will have them."""
    kinds = ("partition", "partition", "heal", "cut", "crash", "return", "slow")
    end = world.loop.time() + seconds
    while (pause := rng.expovariate(1.2)) + world.loop.time() < end:
        await asyncio.sleep(pause)
        await world.befall(rng, kinds, slower=(1, 10, 100))


async def heal(world: World) -> None:
    """All faults are over, and everyone is back."""
    world.calm_down()
    for member in world.members:
        if not member.is_up:
            await member.start()
