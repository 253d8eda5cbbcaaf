"""Running simulations: `simulate` runs one seed of a model and checks it, `simulate_many` many."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from tupelo.lab.event_heap import checker as event_heap_checker
from tupelo.lab.event_heap.workload import HeapSimulation
from tupelo.lab.lime import checker as lime_checker
from tupelo.lab.lime.workload import LimeSimulation
from tupelo.lab.loop import LabError, VirtualLoop, run
from tupelo.lab.melon import checker as melon_checker
from tupelo.lab.melon.workload import MelonSimulation
from tupelo.lab.simulation import Fault, Report, Simulation
from tupelo.lab.spaces import checker as spaces_checker
from tupelo.lab.spaces.workload import SpacesSimulation

RUN_SECONDS_MAX = 1_000.0
"""No simulation lasts longer in virtual time, unless a program is stuck."""


@dataclass(frozen=True)
class Model:
    """How a model is simulated."""

    workload: Callable[[VirtualLoop], Simulation[Any]]
    check: Callable[[Any], Sequence[Fault]]
    """Called when all is settled, with the simulation; the hosts still run."""


MODELS = {
    "federation": Model(SpacesSimulation, spaces_checker.check),
    "lime": Model(LimeSimulation, lime_checker.check),
    "melon": Model(MelonSimulation, melon_checker.check),
    "event-heap": Model(HeapSimulation, event_heap_checker.check),
}


def simulate(seed: int, model: str = "federation", *, trace: bool = False) -> Report:
    """Run one seed of a model from its beginning to its report, with the trace if it is asked for.
    A run that fails, or does not end, is reported as a fault."""
    simulated = MODELS[model]
    world: Simulation[Any] | None = None

    async def main(loop: VirtualLoop) -> None:
        nonlocal world
        world = simulated.workload(loop)
        try:
            async with asyncio.timeout(RUN_SECONDS_MAX):
                await world.play()
                world.faults += simulated.check(world)
                await world.stop()
        except TimeoutError:
            text = f"the simulation has not ended within {RUN_SECONDS_MAX:g} s"
            raise LabError(text) from None
        finally:
            world.clear()

    faults: list[Fault] = []
    try:
        run(main, seed)
    except (LabError, BaseExceptionGroup) as error:
        faults.append(Fault("failed", in_one_line(error)))
    assert world is not None
    network = world.network
    lines = tuple(network.trace) if trace else ()
    return Report(seed, network.digest, (*world.faults, *faults), world.acts, lines)


def simulate_many(
    seeds: Iterable[int], processes: int, model: str = "federation"
) -> Iterator[Report]:
    """Run many seeds, in so many processes."""
    level = logging.getLogger("tupelo").level
    with ProcessPoolExecutor(processes, get_context("spawn"), _set_level, (level,)) as pool:
        yield from pool.map(partial(simulate, model=model), seeds, chunksize=4)


def _set_level(level: int) -> None:
    logging.getLogger("tupelo").setLevel(level)


def in_one_line(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(in_one_line(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"
