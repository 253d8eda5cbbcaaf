"""What one client can do to the others: a host with 200,000 entries in a process of its own, a
client that sends the most expensive requests that it may, one after another, and another that
measures a write and a take of its own. The host measures the processor time between two turns of a
task that runs every millisecond, which does not depend on other programs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import islice
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import uvloop

import tupelo
from benchmarks.elsewhere import JOBS, SPACE, STORE_AT_ONCE, Elsewhere, job
from benchmarks.measure import Findings, Settings, Table
from tupelo import ANY, Between, Key, Lifo, Not, OneOf, Template, TupeloError, aio

STORED = 200_000
PINGS = 200
"""The maximum number of latency samples under each load."""
SECONDS = 8.0
"""The maximum duration of each load."""

Request = Callable[[Any], object]
Row = tuple[str, ...]


def _patterns(many: int) -> Any:
    """Alternatives that no index can find: each is tested with each entry."""
    return OneOf(*[Between(f"~{i}", f"~{i}x") for i in range(many)])


def _nested(depth: int) -> Any:
    part: Any = Between("~", "~~")
    for _ in range(depth):
        part = Not(Not(part))
    return part


def _half(space: Any) -> None:
    with space.transaction() as txn:
        for start in range(0, 20_000, 1_000):
            space.write_all([("held", i, "") for i in range(start, start + 1_000)], txn=txn)
        txn.abort()


def _written_and_taken(space: Any) -> None:
    space.write_all([("bulk", i, "x") for i in range(STORE_AT_ONCE)])
    while space.take_all(("bulk", int, str), limit=STORE_AT_ONCE):
        pass


REQUESTS: dict[str, Request] = {
    "read: a value without an index": lambda s: s.read(("none", int, str), wait=0),
    "read: Between, no match": lambda s: s.read((ANY, Between(-2, -1), ANY), wait=0),
    "take: Between, no match": lambda s: s.take((ANY, Between(-2, -1), ANY), wait=0),
    "take: Between, waits 10 ms": lambda s: s.take((ANY, Between(-2, -1), ANY), wait=0.01),
    "read: OneOf of 100 patterns": lambda s: s.read((_patterns(100), ANY, ANY), wait=0),
    "read: Not of Not, 20 deep": lambda s: s.read((_nested(20), ANY, ANY), wait=0),
    "read: & of Between": lambda s: s.read(
        Template((Between("a", None), ANY, ANY)) & Template((ANY, Between(-2, -1), ANY)), wait=0
    ),
    "read: newest first, no match": lambda s: s.read(
        (ANY, Between(-2, -1), ANY), wait=0, order=Lifo()
    ),
    "read: by key, all match": lambda s: s.read(JOBS, wait=0, order=Key(1, reverse=True)),
    "count: half match": lambda s: s.count((ANY, Between(0, STORED // 2), ANY)),
    "match_set of all, 10 read": lambda s: list(islice(s.match_set(JOBS), 10)),
    "read_all of all": lambda s: s.read_all(JOBS),
    "read_all of 10,000": lambda s: s.read_all((ANY, Between(0, 9_999), ANY)),
    "write_all and take_all of 10,000": _written_and_taken,
    "a transaction of 20,000, aborted": _half,
    "read of a session, no match": lambda s: _in_session(s),
}


def _in_session(space: Any) -> None:
    with space.session() as session:
        for _ in range(3):
            session.read((ANY, Between(-2, -1), ANY), wait=0)


def run_host(pipe: Connection) -> None:
    """A host. Sends its address, and on each command the longest turn of its loop since the
    last."""
    uvloop.run(_run_host(pipe))


async def _run_host(pipe: Connection) -> None:
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, thread_time() - before)

    async with aio.Host("host", listen=0) as host:
        host.space(SPACE)
        pipe.send([host.address])
        watching = asyncio.create_task(watch())
        while await asyncio.to_thread(pipe.recv) is not None:
            pipe.send(longest * 1_000)
            longest = 0.0
        watching.cancel()


def run_load(pipe: Connection, url: str) -> None:
    """Repeat the named request until the next command; then send how often, and the last error."""
    name = pipe.recv()
    while name is not None:
        with tupelo.connect(url) as space:
            sent, error = 0, ""
            pipe.send("begun")
            while not pipe.poll():
                try:
                    REQUESTS[name](space)
                except TupeloError as raised:
                    error = type(raised).__name__
                sent += 1
            pipe.recv()
            pipe.send((sent, error))
        name = pipe.recv()


def _latencies(url: str) -> list[float]:
    """The latencies of a write and a take in a space of its own, in milliseconds."""
    found: list[float] = []
    with tupelo.connect(url) as space:
        end = perf_counter() + SECONDS
        while len(found) < PINGS and perf_counter() < end:
            start = perf_counter()
            space.write(("ping", 1))
            space.take(("ping", int), wait=0)
            found.append((perf_counter() - start) * 1_000)
    return found


def run(settings: Settings) -> Findings:
    stored = settings.size(STORED)
    rows: list[Row] = []
    with Elsewhere(run_host) as host:
        url = f"tupelo://{host.said()[0]}/{SPACE}"
        with tupelo.connect(url) as space:
            for start in range(0, stored, STORE_AT_ONCE):
                space.write_all([job(i) for i in range(start, min(start + STORE_AT_ONCE, stored))])
        host.ask("longest")
        rows.append(_row("none", _latencies(url), host.ask("longest"), 0, ""))
        with Elsewhere(run_load, url) as load:
            for name in REQUESTS:
                load.tell(name)
                load.said()
                try:
                    found = _latencies(url)
                except TupeloError as error:  # its link was lost: the host was away for too long
                    rows.append((name, type(error).__name__, "", "", "", "", ""))
                    found = []
                sent, error_name = load.ask("enough")
                longest = host.ask("longest")
                if found:
                    rows.append(_row(name, found, longest, sent, error_name))
    table = Table(
        f"Write and take of one client while another sends costly requests, {stored:,} entries",
        ("the other's request", "median", "p99", "max", "longest turn", "measured", "sent"),
        rows,
        "Milliseconds; the longest turn of the host's loop is in processor time. The host, the "
        "client that requests and the one that measures are each a process of their own on this "
        "machine; a request is sent when the last is answered.",
    )
    return Findings(tables=[table])


def _row(name: str, found: list[float], longest: float, sent: int, error: str) -> Row:
    ordered = sorted(found)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    figures = [f"{figure:.1f}" for figure in (median(found), p99, ordered[-1], longest)]
    return (name, *figures, str(len(found)), f"{sent} {error}".strip())
