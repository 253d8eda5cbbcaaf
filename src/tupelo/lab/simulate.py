"""Simulating the federation: one seed is one world, its load, its faults, and a verdict."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from random import Random

from tupelo.federation.scope import HERE
from tupelo.lab.history import History
from tupelo.lab.judge import Fault, judge_entries, judge_remains
from tupelo.lab.load import Agent
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.world import Member, World, peace, trouble

SETTLE_SECONDS = 15.0


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

        def populate(member: Member) -> None:
            assert member.life is not None
            for number in range(1, world.plan.agents + 1):
                agent = Agent(history, world, member, number)
                agents.append(member.life.start(agent.run(), agent.name))

        world.populate = populate
        await world.start()
        for member in world.members:
            populate(member)
        await trouble(world, Random(f"{seed} trouble"), world.plan.load_seconds)
        for task in agents:
            task.cancel()
        await asyncio.gather(*agents, return_exceptions=True)
        await peace(world)
        faults: list[Fault] = []
        if not await world.until(world.all_engaged):
            faults.append(Fault("apart", "not all hosts have met again"))
        await asyncio.sleep(SETTLE_SECONDS)
        faults += judge_remains(world)
        left = {member.name: await member.space.take_all(scope=HERE) for member in world.members}
        faults += judge_entries(world, history, left)
        await world.stop()
        return Report(
            seed, world.network.digest, tuple(faults), len(history.acts), world.network.trace
        )
    finally:
        world.clear()


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
