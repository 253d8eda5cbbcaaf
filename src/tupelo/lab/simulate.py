"""Running simulations: `simulate` runs one seed of a model and checks it, `simulate_many` many of
one model, `simulate_for` those of all models until the time is over."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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
class SimulatedModel:
    """How a model is simulated."""

    workload: Callable[[VirtualLoop], Simulation[Any]]
    check: Callable[[Any], Sequence[Fault]]
    """Called when all is settled, with the simulation; the hosts still run."""


MODELS = {
    "federation": SimulatedModel(SpacesSimulation, spaces_checker.check),
    "lime": SimulatedModel(LimeSimulation, lime_checker.check),
    "melon": SimulatedModel(MelonSimulation, melon_checker.check),
    "event-heap": SimulatedModel(HeapSimulation, event_heap_checker.check),
}


def simulate(
    seed: int, model: str = "federation", *, trace: bool = False, disks: bool = False
) -> Report:
    """Run one seed of a model from its beginning to its report, with the trace if it is asked for.
    With `disks`, those of durable hosts fill and fail. A run that fails, or does not end, is
    reported as a fault."""
    simulated = MODELS[model]
    world: Simulation[Any] | None = None

    async def main(loop: VirtualLoop) -> None:
        nonlocal world
        world = simulated.workload(loop)
        world.disk_faults = disks
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
    found = (*world.faults, *faults)
    return Report(seed, network.digest, found, world.acts, world.loop.time(), lines, model, disks)


def simulate_many(
    seeds: Iterable[int], processes: int, model: str = "federation", *, disks: bool = False
) -> Iterator[Report]:
    """Run many seeds, in so many processes."""
    with _pool(processes) as pool:
        yield from pool.map(partial(simulate, model=model, disks=disks), seeds, chunksize=4)


def simulate_for(
    seconds: float, first: int, processes: int, models: Sequence[str], *, disks: bool
) -> Iterator[Report]:
    """For so many seconds, run seeds of the models in turn, from the first seed on, in so many
    processes. Yields the reports as they come."""
    end = time.monotonic() + seconds
    runs = ((seed, model) for seed in itertools.count(first) for model in models)
    with _pool(processes) as pool:
        running: set[Future[Report]] = set()
        while True:
            while len(running) < 2 * processes and time.monotonic() < end:
                seed, model = next(runs)
                running.add(pool.submit(simulate, seed, model, disks=disks))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)


def _pool(processes: int) -> ProcessPoolExecutor:
    level = logging.getLogger("tupelo").level
    return ProcessPoolExecutor(processes, get_context("spawn"), _set_level, (level,))


def _set_level(level: int) -> None:
    logging.getLogger("tupelo").setLevel(level)


def in_one_line(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(in_one_line(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"
