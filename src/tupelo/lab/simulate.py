"""Simulating the federation: one seed is one world, its load, its faults, and a verdict."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from random import Random

from tupelo.federation.scope import HERE
from tupelo.lab.history import History
from tupelo.lab.judge import Fault, judge_entries, judge_remains, judge_sessions
from tupelo.lab.load import Agent, Client, listen
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.world import DOUBT_SECONDS, Member, World, peace, trouble

SETTLE_SECONDS = DOUBT_SECONDS + 5.0


@dataclass(frozen=True)
class Report:
    """What became of one seed."""

    seed: int
    digest: str
    faults: tuple[Fault, ...]
    acts: int
    trace: list[str]


def simulate(seed: int) -> Report:
    return run(lambda loop: _simulate(loop, seed), seed)


async def _simulate(loop: VirtualLoop, seed: int) -> Report:
    world = World(loop, seed)
    try:
        history = History(world)
        agents: list[asyncio.Task[None]] = []
        listeners: list[asyncio.Task[None]] = []

        def populate(member: Member) -> None:
            life = member.life
            assert life is not None
            for number in range(1, world.plan.agents + 1):
                name = f"{member.name}{number}.{member.lives}"
                agent = Agent(history, world, member, life, name)
                agents.append(life.start(agent.run(), name))
            listeners.append(life.start(listen(history, member), f"{member.name} listens"))

        world.populate = populate
        await world.start()
        for member in world.members:
            populate(member)
        clients = [Client(history, world, number, 1) for number in range(world.plan.clients)]
        agents += [client.life.start(client.run(), client.name) for client in clients]
        rng = Random(f"{seed} trouble")
        await trouble(world, rng, world.plan.load_seconds)
        if rng.random() < 0.5:
            for client in clients[:1]:
                await client.life.kill([])
        await _end(agents)
        await peace(world)
        faults: list[Fault] = []
        if not await world.until(world.all_engaged):
            faults.append(Fault("apart", "not all hosts have met again"))
        for client in clients:
            await client.leave()
        await asyncio.sleep(SETTLE_SECONDS)
        await _end(listeners)
        await asyncio.sleep(1.0)
        faults += judge_remains(world)
        faults += judge_sessions(history)
        left = {member.name: await member.space.take_all(scope=HERE) for member in world.members}
        faults += judge_entries(world, history, left)
        await world.stop()
        return Report(
            seed, world.network.digest, tuple(faults), len(history.acts), world.network.trace
        )
    finally:
        world.clear()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    import logging

    logging.disable(logging.WARNING)
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        try:
            report = simulate(seed)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            print(seed, "raised", repr(error)[:1500])
            if "-t" in sys.argv:
                raise
            continue
        if report.faults:
            print(seed, *report.faults, sep="\n   ")
        if "-t" in sys.argv:
            print(*report.trace, sep="\n")
            print(report.digest, report.acts)
