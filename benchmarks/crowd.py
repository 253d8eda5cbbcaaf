"""A crowd: many clients of one host, each with many calls in flight, and newcomers among them.

Each call in flight writes an entry of its own and takes it again, without a pause. Host, clients
and newcomers are processes of their own. Every half second a newcomer connects, writes, takes and
leaves; one that has not done so within a minute has failed.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import uvloop

from benchmarks.elsewhere import SPACE, Elsewhere
from benchmarks.measure import Findings, Settings, Table
from tupelo import aio
from tupelo.errors import TupeloError

CLIENTS, IN_FLIGHT, SECONDS = 1_000, 64, 20.0
PROCESSES = 2
NEWCOMERS_SECONDS = 0.5
NEWCOMER_PATIENCE_SECONDS = 60.0
DRAIN_SECONDS = 120.0
HEARTBEAT_SECONDS = 10.0


def run_host(pipe: Connection, folder: str | None) -> None:
    """A host. Sends its address."""
    uvloop.run(_run_host(pipe, folder))


async def _run_host(pipe: Connection, folder: str | None) -> None:
    # Five hundred clients share a process and its loop, which may be late with their heartbeats.
    async with aio.Host(
        "host", listen="127.0.0.1:0", path=folder, heartbeat=HEARTBEAT_SECONDS
    ) as host:
        host.space(SPACE)
        pipe.send(host.address)
        await asyncio.to_thread(pipe.recv)


def run_clients(
    pipe: Connection, url: str, clients: int, in_flight: int, seconds: float, who: int
) -> None:
    """So many clients. Sends a value when they are connected, starts on the next message, and sends
    the time of each operation and the errors."""
    uvloop.run(_run_clients(pipe, url, clients, in_flight, seconds, who))


async def _run_clients(
    pipe: Connection, url: str, clients: int, in_flight: int, seconds: float, who: int
) -> None:
    spaces = [await aio.connect(url) for _ in range(clients)]
    pipe.send(len(spaces))
    await asyncio.to_thread(pipe.recv)
    took: list[float] = []
    in_time = 0
    failed: list[str] = []
    end = perf_counter() + seconds

    async def work(space: Any, name: str) -> None:
        nonlocal in_time
        number = 0
        try:
            while (start := perf_counter()) < end:
                number += 1
                await space.write((name, number))
                written = perf_counter()
                await space.take((name, number))
                taken = perf_counter()
                took.extend((written - start, taken - written))
                in_time += (written < end) + (taken < end)
        except TupeloError as error:
            failed.append(f"{type(error).__name__}: {error}")

    tasks = []
    for i, space in enumerate(spaces):
        tasks += [asyncio.ensure_future(work(space, f"{who}-{i}-{n}")) for n in range(in_flight)]
        await asyncio.sleep(0)
    _, late = await asyncio.wait(tasks, timeout=seconds + DRAIN_SECONDS)
    pipe.send((took, in_time, failed, len(late)))
    await asyncio.to_thread(pipe.recv)


def run_newcomers(pipe: Connection, url: str, seconds: float) -> None:
    """New clients, started one after another. Starts on the first message; sends the times until
    each was connected and had its first entry, and how many failed."""
    uvloop.run(_run_newcomers(pipe, url, seconds))


async def _run_newcomers(pipe: Connection, url: str, seconds: float) -> None:
    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    connected: list[float] = []
    served: list[float] = []
    failed: list[str] = []

    async def come(number: int) -> None:
        start = perf_counter()
        try:
            async with asyncio.timeout(NEWCOMER_PATIENCE_SECONDS):
                async with await aio.connect(url) as space:
                    connected.append(perf_counter() - start)
                    await space.write(("newcomer", number))
                    await space.take(("newcomer", number))
                    served.append(perf_counter() - start)
        except (TupeloError, TimeoutError) as error:
            failed.append(f"{type(error).__name__}: {error}")

    coming = []
    for number in range(int(seconds / NEWCOMERS_SECONDS)):
        coming.append(asyncio.ensure_future(come(number)))
        await asyncio.sleep(NEWCOMERS_SECONDS)
    await asyncio.gather(*coming)
    pipe.send((connected, served, failed))
    await asyncio.to_thread(pipe.recv)


HEADS = (
    *("the space", "operations/s", "median, ms", "p99, ms", "longest, ms", "failed"),
    *("per processor second", "MiB", "newcomers served", "connected, median and longest, ms"),
)


def run(settings: Settings) -> Findings:
    clients, seconds = settings.size(CLIENTS), SECONDS / settings.cut
    rows = []
    for where in ("in memory", "durable"):
        with ExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory()) if where == "durable" else None
            rows.append((where, *_figures(stack, folder, clients, seconds)))
    table = Table(
        f"{clients:,} clients of one host, each with {IN_FLIGHT} calls in flight",
        HEADS,
        rows,
        f"For {seconds:.0f} s, once; operations that failed or did not end within "
        f"{DRAIN_SECONDS:.0f} s more count as failed. Operations per processor second are of the "
        "host's process.",
    )
    return Findings(tables=[table])


def _figures(stack: ExitStack, folder: str | None, clients: int, seconds: float) -> tuple[str, ...]:
    host = stack.enter_context(Elsewhere(run_host, folder))
    url = f"tupelo://{host.said()}/{SPACE}"
    newcomers = stack.enter_context(Elsewhere(run_newcomers, url, seconds))
    each = clients // PROCESSES
    crowds = [
        stack.enter_context(Elsewhere(run_clients, url, each, IN_FLIGHT, seconds, who))
        for who in range(PROCESSES)
    ]
    for one in (newcomers, *crowds):
        one.said()
    used = host.cpu_seconds
    for one in (*crowds, newcomers):
        one.tell("begin")
    took: list[float] = []
    in_time = failed = 0
    for crowd in crowds:
        times, count, errors, unfinished = crowd.answered()
        took += times
        in_time += count
        failed += len(errors) + unfinished
    connected, served, turned_away = newcomers.answered()
    used = host.cpu_seconds - used
    return (
        f"{in_time / seconds:,.0f}",
        *(_ms(took, share) for share in (0.5, 0.99, 1.0)),
        f"{failed:,}",
        f"{len(took) / used:,.0f}",
        f"{host.resident_bytes / 2**20:,.0f}",
        f"{len(served)} of {len(served) + len(turned_away)}",
        f"{_ms(connected, 0.5)}, {_ms(connected, 1.0)}",
    )


def _ms(seconds: list[float], share: float) -> str:
    ordered = sorted(seconds)
    return f"{ordered[int(share * (len(ordered) - 1))] * 1e3:,.0f}" if ordered else "–"
