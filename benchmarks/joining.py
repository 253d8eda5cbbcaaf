"""LIME: a local out while another host joins the group.

Every host has a process of its own, all are engaged with all, and all processes share one core.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import quantiles
from time import perf_counter
from typing import Any

import uvloop

from benchmarks.elsewhere import Elsewhere
from benchmarks.field import Camp, reading
from benchmarks.measure import Findings, Settings, Table, require
from tupelo import aio

HOSTS = 50
PAUSE_SECONDS = 0.001
QUIET_SECONDS = 1.0
HELD_MS_MAX = 20.0
"""The target for the 99th percentile."""


def run(settings: Settings) -> Findings:
    hosts = max(3, settings.size(HOSTS))
    rounds = max(3, settings.rounds // 3)
    with ExitStack() as stack:
        members: list[Elsewhere] = []
        addresses: list[str] = []
        for number in range(hosts):
            members.append(_begin(stack, f"host-{number}"))
            addresses.append(members[-1].said())
        for number, member in enumerate(members):
            member.ask(("dial", addresses[:number]))
        for member in members:
            member.ask(("grouped", hosts))
        writer = members[-1]
        quiet = writer.ask(("quiet", QUIET_SECONDS))
        joining, halted = [], []
        for number in range(rounds):
            with ExitStack() as briefly:
                newcomer = _begin(briefly, f"newcomer-{number}")
                newcomer.said()
                writer.tell(("joined", hosts + 1))
                newcomer.ask(("dial", addresses))
                took, held = writer.answered()
                joining += took
                halted.append(held)
            for member in members:
                member.ask(("grouped", hosts))
    table = Table(
        f"A local out at one of {hosts} hosts, on one core for all of them",
        ("while", "outs", "p50, ms", f"p99, ms (≤ {HELD_MS_MAX:.0f})", "most, ms", "held, ms"),
        [
            ("nothing happens", *_figures(quiet), "–"),
            (f"a host joins, {rounds} times", *_figures(joining), f"{max(halted) * 1e3:,.0f}"),
        ],
        f"An out every {PAUSE_SECONDS * 1e3:.0f} ms, from the time at which the new host dials all "
        "others until it is in the group and operations over hosts continue at the writer's host. "
        "Every host is a process, and all processes share one core. Held is the longest time that "
        "operations over hosts had to wait there.",
    )
    return Findings(tables=[table])


def _figures(seconds: list[float]) -> tuple[str, ...]:
    cuts = quantiles(seconds, n=100)
    times = (cuts[49], cuts[98], max(seconds))
    return (f"{len(seconds):,}", *(f"{one * 1e3:,.2f}" for one in times))


def _begin(stack: ExitStack, name: str) -> Elsewhere:
    started = Elsewhere(_run, name, min(os.sched_getaffinity(0)))
    stack.callback(started.kill)
    return started


# One host


def _run(pipe: Connection, name: str, core: int) -> None:
    os.sched_setaffinity(0, {core})
    uvloop.run(_serve(pipe, name))


async def _serve(pipe: Connection, name: str) -> None:
    loop = asyncio.get_running_loop()
    async with aio.Host(name, listen="127.0.0.1:0") as host:
        camp = Camp(host._core)
        await camp.start()
        await camp.share()
        pipe.send(host.address)
        while (asked := await loop.run_in_executor(None, pipe.recv)) is not None:
            pipe.send(await _answer(camp, *asked))


async def _answer(camp: Camp, what: str, about: Any) -> Any:
    match what:
        case "dial":
            for address in about:
                camp.core.dial(address)
        case "grouped":
            await _grouped(camp, about)
        case "quiet":
            return await _time(camp, asyncio.sleep(about))
        case "joined":
            camp.server.group.held.clear()
            took = await _time(camp, _grouped(camp, about))
            require(bool(camp.server.group.held), "the group should have changed")
            return took, sum(camp.server.group.held)
    return None


async def _grouped(camp: Camp, hosts: int) -> None:
    while len(camp.server.directory.hosts) != hosts or camp.server.group.halted:
        await asyncio.sleep(PAUSE_SECONDS)


async def _time(camp: Camp, work: Any) -> list[float]:
    """The seconds of each `out`, repeated until this work is done."""
    took: list[float] = []
    done = asyncio.ensure_future(work)
    while not done.done():
        start = perf_counter()
        await camp.out(reading(len(took)))
        took.append(perf_counter() - start)
        await asyncio.sleep(PAUSE_SECONDS)
    await done
    return took
