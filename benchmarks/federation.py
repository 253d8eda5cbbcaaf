"""Operations over 2, 5 and 20 hosts; hosts that come and go; many waiting takes at one host.

Messages and bytes are counted in the lab's network, without heartbeats; times are measured on
sockets of this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Literal

import uvloop

import tupelo
from benchmarks.elsewhere import SPACE, Elsewhere, job, run_hosts, run_waiters
from benchmarks.field import CountedHosts, Traffic
from benchmarks.measure import Findings, Line, Settings, Table, Target, require
from tupelo import Coverage, aio
from tupelo.federation.hosts.doors import RunningHost
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.loop import run as run_virtually

SIZES = (2, 5, 20)
COUNTED = 50
CLIENTS, EACH = 100, 100
NOBODY = ("nobody writes this", int, str)

SPANNING_HEADS = (
    "operation",
    "hosts",
    "p50, µs",
    "p99, µs",
    "messages",
    "bytes",
    "µs a host asked",
    "bytes a host asked",
)

Verb = Literal["read", "take"]
VERBS: tuple[Verb, ...] = ("read", "take")


def run(settings: Settings) -> Findings:
    return Findings(
        [_writes_past_waiters(settings)],
        [_spanning(settings), _coming_and_going(settings), _waiting(settings)],
    )


# Operations that span hosts


def _spanning(settings: Settings) -> Table:
    times = uvloop.run(_time_spanning(settings))
    traffic = {hosts: run_virtually(_counting(hosts), seed=1) for hosts in SIZES}
    rows: list[tuple[str, ...]] = []
    for verb in VERBS:
        for hosts in SIZES:
            rounds, sent = times[hosts, verb], traffic[hosts][verb]
            p50 = median(median(micros) for micros in rounds)
            p99 = quantiles([one for micros in rounds for one in micros], n=100)[-1]
            rows.append(
                (
                    verb,
                    str(hosts),
                    f"{p50:,.0f}",
                    f"{p99:,.0f}",
                    f"{sent.messages:.4g}",
                    f"{sent.bytes:,.0f}",
                    f"{p50 / (hosts - 1):,.0f}",
                    f"{sent.bytes / (hosts - 1):,.0f}",
                )
            )
    return Table(
        "A federated read and take of an entry that is at one other host",
        SPANNING_HEADS,
        rows,
        "The host that asks has a process of its own, all others share one loop in another; all "
        "are engaged with all. p50 is the median of the medians of the rounds, p99 is of all "
        "rounds together.",
    )


async def _time_spanning(settings: Settings) -> dict[tuple[int, Verb], list[list[float]]]:
    """Microseconds, by the number of hosts, operation and round; the sizes in turns."""
    each = settings.size(200)
    jobs = each * (settings.rounds + 1)
    times: dict[tuple[int, Verb], list[list[float]]] = {
        (hosts, verb): [] for hosts in SIZES for verb in VERBS
    }
    async with AsyncExitStack() as stack:
        spaces = {hosts: await _asker(stack, hosts, jobs) for hosts in SIZES}
        keys = [job(i)[0] for i in range(jobs)]
        Random(1).shuffle(keys)
        for start in range(0, jobs, each):
            for hosts, space in spaces.items():
                for verb in VERBS:
                    micros = await _time_each(getattr(space, verb), keys[start : start + each])
                    if start:  # The first round only warms up.
                        times[hosts, verb].append(micros)
        for space in spaces.values():
            require(await space.count() == 0, "all should be taken")
    return times


async def _asker(stack: AsyncExitStack, hosts: int, jobs: int) -> aio.SpaceLike:
    """A space at a host that is engaged with so many others, which hold the jobs."""
    others = [f"host-{i}" for i in range(1, hosts)]
    elsewhere = stack.enter_context(Elsewhere(run_hosts, others, jobs))
    host = await stack.enter_async_context(
        aio.Host("asker", listen="127.0.0.1:0", peers=elsewhere.said())
    )
    space = host.space(SPACE)
    while len(await _covered(space)) < hosts:
        await asyncio.sleep(0.01)
    return space


async def _covered(space: aio.SpaceLike) -> list[str]:
    coverage = Coverage()
    await space.read(NOBODY, wait=0, coverage=coverage)
    return coverage.covered


async def _time_each(verb: Callable[..., Any], keys: list[str]) -> list[float]:
    micros = []
    for key in keys:
        start = perf_counter()
        found = await verb((key, int, str), wait=0)
        micros.append((perf_counter() - start) * 1e6)
        require(found is not None and found[0] == key, "it should be found")
    return micros


def _counting(hosts: int) -> Any:
    return lambda loop: _count(loop, hosts)


async def _count(loop: VirtualLoop, hosts: int) -> dict[Verb, Traffic]:
    """Messages and bytes of an operation, without heartbeats."""
    field = CountedHosts(loop)
    for number in range(hosts):
        await field.start_host(range(number))
    spaces = [RunningHost(core).space(SPACE) for core in field.cores]
    while any(len(core.peers) < hosts - 1 for core in field.cores):
        await asyncio.sleep(1)
    for i in range(COUNTED):
        await spaces[1 + i % (hosts - 1)].write(job(i))
    await asyncio.sleep(1)
    traffic: dict[Verb, Traffic] = {}
    for verb in VERBS:
        _, sent = await field.counted(_find_each(getattr(spaces[0], verb)))
        traffic[verb] = Traffic(sent.messages / COUNTED, sent.bytes / COUNTED)
    require(await spaces[0].count() == 0, "all should be taken")
    await field.stop()
    return traffic


async def _find_each(verb: Callable[..., Any]) -> None:
    for i in range(COUNTED):
        require(await verb((job(i)[0], int, str), wait=0) == job(i), "it should be found")


# Coming and going


def _coming_and_going(settings: Settings) -> Table:
    few = max(3, settings.rounds // 3)
    arrivals: list[float] = []
    partings = {
        "a goodbye": (Elsewhere.leave, settings.rounds),
        "SIGKILL": (Elsewhere.kill, settings.rounds),
        "a silent cut (SIGSTOP)": (Elsewhere.stop, few),
    }
    rows = []
    for what, (part, rounds) in partings.items():
        pairs = [uvloop.run(_meet_and_part(part)) for _ in range(rounds)]
        arrivals += [arrival for arrival, _ in pairs]
        gone = [parting for _, parting in pairs]
        rows.append((f"from {what} to the first operation without the host", *_spread(gone)))
    found = [uvloop.run(_discover()) for _ in range(few)]
    return Table(
        "A host comes and goes",
        ("what", "least, ms", "median, ms", "most, ms", "times"),
        [
            ("from the dialling of a host to the first read of its entry", *_spread(arrivals)),
            (
                "from the start of a host to the first operation that covers it, by discovery",
                *_spread(found),
            ),
            *rows,
        ],
        "Operations one after another, without pauses. The heartbeat is one second; a host is "
        "dropped after three missed heartbeats.",
    )


def _spread(seconds: list[float]) -> tuple[str, ...]:
    millis = [f(seconds) * 1e3 for f in (min, median, max)]
    least, middle, most = (f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}" for ms in millis)
    return least, middle, most, str(len(seconds))


async def _meet_and_part(part: Callable[[Elsewhere], None]) -> tuple[float, float]:
    """Seconds until a host is seen, and until it is known to have gone."""
    with Elsewhere(run_hosts, ["other"], 1) as other:
        async with aio.Host("asker") as host:
            space = host.space(SPACE)
            [address] = other.said()
            start = perf_counter()
            host.engage(address)
            while await space.read(wait=0) is None:
                await asyncio.sleep(0)
            arrival = perf_counter() - start
            require("other" in await _covered(space), "it should be there")
            start = perf_counter()
            part(other)
            while "other" in await _covered(space):
                await asyncio.sleep(0)
            parting = perf_counter() - start
        other.kill()  # It may have been stopped, and then would not leave.
    return arrival, parting


async def _discover() -> float:
    """Seconds from the start of a host until an operation covers another, which ran before."""
    async with aio.Host("asker", listen="127.0.0.1:0", discover=True) as host:
        space = host.space(SPACE)
        start = perf_counter()
        async with aio.Host("other", listen="127.0.0.1:0", discover=True) as other:
            other.space(SPACE)
            while "other" not in await _covered(space):
                await asyncio.sleep(0)
            return perf_counter() - start


# Waiters


def _writes_past_waiters(settings: Settings) -> Line:
    """Without waiters, with them, and without again; not in turns, since starting them is slow."""
    each = settings.size(EACH)
    with Elsewhere(run_hosts, ["host"]) as host:
        url = f"tupelo://{host.said()[0]}/{SPACE}"
        with tupelo.connect(url) as space:
            _write(space, settings)
            before = [_write(space, settings) for _ in range(settings.rounds)]
            with Elsewhere(run_waiters, url, CLIENTS, each) as waiters:
                require(waiters.said() == CLIENTS * each, "all should wait")
                during = [_write(space, settings) for _ in range(settings.rounds)]
            after = [_write(space, settings) for _ in range(settings.rounds)]
    return Line(
        f"a write that matches none of {CLIENTS * each:,} waiters of {CLIENTS} clients",
        "with none waiting, before and after",
        "µs",
        Target("≤", 1.5),
        during,
        [(one + other) / 2 for one, other in zip(before, after, strict=True)],
    )


def _write(space: Any, settings: Settings) -> float:
    """Microseconds a write."""
    jobs = [job(i) for i in range(settings.size(2_000))]
    start = perf_counter()
    for one in jobs:
        space.write(one)
    seconds = perf_counter() - start
    require(len(space.take_all()) == len(jobs), "all that was written should be left")
    return seconds / len(jobs) * 1e6


def _waiting(settings: Settings) -> Table:
    rows: list[tuple[str, ...]] = []
    for clients, each in ((1, CLIENTS * EACH), (CLIENTS, EACH)):
        each = settings.size(each)
        with Elsewhere(run_hosts, ["host"]) as host:
            url = f"tupelo://{host.said()[0]}/{SPACE}"
            before = host.resident_bytes
            with Elsewhere(run_waiters, url, clients, each) as waiters:
                require(waiters.said() == clients * each, "all should wait")
                grown = host.resident_bytes - before
        rows.append(
            (f"{clients * each:,}", str(clients), f"{grown / clients / each:,.0f}"),
        )
    return Table(
        "Waiters at one host",
        ("waiters", "of clients", "bytes a waiter, their links included"),
        rows,
        "Growth of the host's process; each waiting take has a template of its own.",
    )
