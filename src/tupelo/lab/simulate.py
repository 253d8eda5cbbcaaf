"""Simulating the federation: one seed is one world, its load, its faults, and a verdict.

A run has three parts. There is trouble: agents work while hosts crash, leave and return, links are
cut, slow or silent. Then there is peace: all faults are over, everyone is back, and what was in
doubt is settled. At last what is left is counted, and the judge looks at all that has happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Any, Protocol

from tupelo.lab.history import History
from tupelo.lab.judge import Fault, judge_entries, judge_remains, judge_sessions
from tupelo.lab.load import RandomAgent, RandomClient, listen
from tupelo.lab.loop import LabError, VirtualLoop, run
from tupelo.lab.trade import Trader
from tupelo.lab.world import DOUBT_SECONDS, World, WorldHost, heal, nemesis
from tupelo.values.scope import HERE

SETTLE_SECONDS = DOUBT_SECONDS + 5.0
SERVED_SECONDS = 5.0
PLAY_SECONDS = 1_000.0
"""No world lasts longer, unless someone is stuck."""
LATE = "late"
"""The class of entries that are waited for before their host is there."""


@dataclass(frozen=True)
class Report:
    """What became of one seed. The same seed has the same digest, in every run."""

    seed: int
    digest: str
    faults: tuple[Fault, ...]
    acts: int
    trace: tuple[str, ...]


class RunningSimulation(Protocol):
    """One seed of some model, while it is played."""

    faults: list[Fault]

    async def play(self, loop: VirtualLoop) -> None: ...

    def report(self) -> Report: ...


def played(playing: RunningSimulation, seed: int) -> Report:
    """What became of it. A play that fails is a fault."""
    try:
        run(playing.play, seed)
    except (LabError, BaseExceptionGroup) as error:
        playing.faults.append(Fault("failed", in_one_line(error)))
    return playing.report()


@asynccontextmanager
async def bounded() -> AsyncIterator[None]:
    """LabError if what is played in it does not end."""
    try:
        async with asyncio.timeout(PLAY_SECONDS):
            yield
    except TimeoutError:
        raise LabError(f"someone waits for ever: {PLAY_SECONDS:g} s are over") from None


def simulate(seed: int) -> Report:
    """Play one seed, from its beginning to the verdict."""
    return played(_Run(seed), seed)


def simulate_many(
    seeds: Iterable[int], processes: int, play: Callable[[int], Report] = simulate
) -> Iterator[Report]:
    """Play many, in so many processes; only the trace of those with faults is kept."""
    level = logging.getLogger("tupelo").level
    with ProcessPoolExecutor(processes, get_context("spawn"), _set_level, (level,)) as pool:
        yield from pool.map(partial(_play_briefly, play), seeds, chunksize=4)


def _set_level(level: int) -> None:
    logging.getLogger("tupelo").setLevel(level)


def _play_briefly(play: Callable[[int], Report], seed: int) -> Report:
    report = play(seed)
    if report.faults:
        return report
    return Report(seed, report.digest, (), report.acts, ())


class _Run:
    """One seed, while it is played."""

    def __init__(self, seed: int) -> None:
        self.faults: list[Fault] = []
        self._seed = seed
        self._rng = Random(f"{seed} trouble")
        self._world: World
        self._history: History
        self._agents: list[asyncio.Task[None]] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._clients: list[RandomClient] = []
        self._trader: Trader | None = None

    async def play(self, loop: VirtualLoop) -> None:
        self._world = World(loop, self._seed)
        self._history = History(self._world)
        try:
            await self._have_nemesis()
            await self._have_heal()
            await self._judge()
            await self._world.stop()
        finally:
            self._world.clear()

    async def _have_nemesis(self) -> None:
        world = self._world
        world.populate = self._populate
        await world.start()
        for member in world.members:
            self._populate(member)
        for number in range(world.plan.clients):
            client = RandomClient(self._history, world, number)
            self._clients.append(client)
            self._agents.append(client.life.start(client.run(), client.name))
        if len(world.plan.durable) >= 2:
            self._trader = Trader(self._history, world)
            self._agents.append(self._trader.life.start(self._trader.run(), "trader"))
        await nemesis(world, self._rng, world.plan.load_seconds)
        if self._trader is not None:
            await self._trader.life.kill([])
        if self._clients and self._rng.random() < 0.5:
            await self._clients[0].life.kill([])
        await _end(self._agents)

    def _populate(self, member: WorldHost) -> None:
        life = member.life
        assert life is not None
        for number in range(1, self._world.plan.agents + 1):
            name = f"{member.name}{number}.{member.lives}"
            agent = RandomAgent(self._history, self._world, member, life, name)
            self._agents.append(life.start(agent.run(), name))
        listening = listen(self._history, member)
        self._listeners.append(life.start(listening, f"{member.name} listens"))

    async def _have_heal(self) -> None:
        waiting = await self._wait_alone()
        await heal(self._world)
        if not await self._world.until(self._world.all_engaged):
            self.faults.append(Fault("apart", "not all hosts have met again"))
        await self._serve(waiting)
        for client in self._clients:
            await client.leave()
        await asyncio.sleep(SETTLE_SECONDS)
        await _end(self._listeners)
        await asyncio.sleep(1.0)

    async def _wait_alone(self) -> dict[WorldHost, asyncio.Task[Any]]:
        """While no host hears another, an agent at each begins to wait for an entry."""
        world = self._world
        world.network.partition(*([member.name] for member in world.members))
        up = [member for member in world.members if member.life is not None]
        await world.until(lambda: not any(member.engaged for member in up))
        return {
            member: member.life.start(
                member.space.take((LATE, member.name)), f"{member.name} waits"
            )
            for member in up
            if member.life is not None
        }

    async def _serve(self, waiting: dict[WorldHost, asyncio.Task[Any]]) -> None:
        """It is written elsewhere, and must be found there."""
        members = self._world.members
        for member in waiting:
            other = members[(member.number + 1) % len(members)]
            await other.space.write((LATE, member.name))
        if waiting:
            await asyncio.wait(waiting.values(), timeout=SERVED_SECONDS)
        for member, task in waiting.items():
            if not task.done():
                text = f"who waits at {member.name} has not found what was written elsewhere"
                self.faults.append(Fault("not served", text))
        await _end(list(waiting.values()))

    async def _judge(self) -> None:
        world, history = self._world, self._history
        self.faults += judge_remains(world)
        left = {
            member.name: [one for one in await member.space.take_all(scope=HERE) if one[0] != LATE]
            for member in world.members
        }
        self.faults += judge_sessions(world, history, left)
        self.faults += judge_entries(world, history, left)

    def report(self) -> Report:
        network = self._world.network
        acts = len(self._history.acts) + len(self._history.deals)
        return Report(self._seed, network.digest, tuple(self.faults), acts, tuple(network.trace))


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise LabError(f"an agent has failed: {ended!r}") from ended


def in_one_line(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(in_one_line(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"
