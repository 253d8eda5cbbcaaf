"""A crowd: many clients of one host, each with many calls in flight, and newcomers among them.

`python -m benchmarks.crowd [--clients 1000] [--in-flight 64] [--seconds 20] [--durable]`

Each call in flight writes an entry of its own and takes it again, without a pause. Host, clients
and newcomers are processes of their own. Every half second a newcomer connects, writes, takes and
leaves; one that has not done so within a minute has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter
from typing import Any

import uvloop

from benchmarks.elsewhere import SPACE, Elsewhere
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Many clients of one host.")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--durable", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if given.durable else None
        host = stack.enter_context(Elsewhere(run_host, folder))
        url = f"tupelo://{host.said()}/{SPACE}"
        newcomers = stack.enter_context(Elsewhere(run_newcomers, url, given.seconds))
        crowds = [
            stack.enter_context(
                Elsewhere(
                    run_clients,
                    url,
                    given.clients // PROCESSES,
                    given.in_flight,
                    given.seconds,
                    who,
                )
            )
            for who in range(PROCESSES)
        ]
        for one in (newcomers, *crowds):
            one.said()
        used = host.cpu_seconds
        for one in (*crowds, newcomers):
            one.tell("begin")
        took, in_time, failed, late = [], 0, [], 0
        for crowd in crowds:
            times, count, errors, unfinished = crowd.answered()
            took += times
            in_time += count
            failed += errors
            late += unfinished
        connected, served, turned_away = newcomers.answered()
        used = host.cpu_seconds - used
        megabytes = host.resident_bytes / 2**20
        kind = "durable" if given.durable else "in memory"
        print(f"{given.clients:,} clients with {given.in_flight} in flight, {kind}:")
        print(
            f"  {in_time / given.seconds:,.0f} operations/s; "
            f"median {_ms(took, 0.5)}, p99 {_ms(took, 0.99)}, longest {_ms(took, 1.0)}; "
            f"failed {len(failed):,}, not ended {late:,}; host {megabytes:,.0f} MiB, "
            f"{len(took) / used:,.0f} operations per second of its processor"
        )
        print(
            f"  newcomers: {len(served)} of {len(served) + len(turned_away)} served; "
            f"connect median {_ms(connected, 0.5)}, longest {_ms(connected, 1.0)}; "
            f"until served median {_ms(served, 0.5)}, longest {_ms(served, 1.0)}"
        )
        for error in sorted({*failed, *turned_away})[:5]:
            print(f"  {error}")


def _ms(seconds: list[float], share: float) -> str:
    if not seconds:
        return "-"
    ordered = sorted(seconds)
    found = median(ordered) if share == 0.5 else ordered[int(share * (len(ordered) - 1))]
    return f"{found * 1e3:,.0f} ms"


if __name__ == "__main__":
    main()
