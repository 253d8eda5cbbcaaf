"""Every job of the pipeline on ten million changes, against the same job on one million.

The logs are made: jobs that workers take, doing each in a transaction that writes a result; one in
a hundred is given up, and its lease runs out. A hundredth as many changes are of the presence of
other hosts, which come and go. They are kept for the next run, until `make clean`.

Each job runs once on each log. The large one is first, so it pays for what Spark compiles. Where
other programs are at work, the processor time is the fairer figure: it is of the JVM, the driver
and the Python workers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console

from benchmarks.measure import Findings, Line, Settings, Table, Target
from benchmarks.pipeline import (
    A_SECOND,
    AGENTS,
    BEGIN,
    LAG,
    MadeLog,
    drain,
    processor_seconds,
)
from benchmarks.report import OUT
from tupelo.federation.hosts.presence import HostPresence
from tupelo.federation.names import PRESENCE
from tupelo.pipeline import TITLES
from tupelo.pipeline.logs.segments import seal
from tupelo.values.codec import encode_entry
from tupelo.values.entry import freeze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = (1_000_000, 10_000_000)
KEPT = OUT / "changes"
PRESENCE_SHARE = 100


def run(settings: Settings) -> Findings:
    from tupelo.pipeline import session

    small, large = (settings.size(size) for size in SIZES)
    for count in (small, large):
        make(KEPT / str(count), count)
    progress = Console(stderr=True)
    lines: list[Line] = []
    rows: list[tuple[str, ...]] = []
    spark = session("local[2]")
    try:
        spark.range(3).count()
        for job in settings.only or TITLES:
            of_large, of_small = (_cost(spark, job, KEPT / str(count)) for count in (large, small))
            line = Line(
                f"the job {job} on {large:,} changes",
                f"on {small:,}",
                "s",
                Target("≤", 12),
                [of_large.passed],
                [of_small.passed],
            )
            row = (
                job,
                *(f"{cost.passed:.1f}" for cost in (of_small, of_large)),
                f"{of_large.passed / of_small.passed:.1f}",
                *(f"{cost.used:.1f}" for cost in (of_small, of_large)),
                f"{of_large.used / of_small.used:.1f}",
                f"{os.getloadavg()[0]:.0f}",
            )
            progress.print(" | ".join(row))
            lines.append(line)
            rows.append(row)
        peak = _peak_bytes()
    finally:
        spark.stop()
    title = f"The jobs of the pipeline on {large:,} changes"
    heads = (
        *("job", f"{small:,}, s", f"{large:,}, s", "ratio"),
        *("processor, s", "processor, s", "ratio", "load"),
    )
    how = f"Memory of the JVM, the driver and the workers, at most: {peak / 1e6:,.0f} MB."
    return Findings(lines, [Table(title, heads, rows, how)])


def make(archive: Path, count: int) -> None:
    """The sealed logs of a host: so many changes in all. What is sealed already stays."""
    presence = count // PRESENCE_SHARE
    seal(MadeWork("host-1", count - presence), archive)
    seal(MadePresence("host-1", presence), archive)


@dataclass(frozen=True)
class Cost:
    """The seconds that passed, and those of processors that were used."""

    passed: float
    used: float


def _cost(spark: SparkSession, name: str, archive: Path) -> Cost:
    from tupelo.pipeline import changes
    from tupelo.pipeline.jobs import JOBS

    before, start = processor_seconds(), perf_counter()
    drain(JOBS[name].run(changes(spark, str(archive)).drop("payload")))
    passed, after = perf_counter() - start, processor_seconds()
    return Cost(passed, sum(used - before.get(pid, 0.0) for pid, used in after.items()))


def _peak_bytes() -> int:
    """The most memory that this process and each below it had, together."""
    lines = [
        line
        for pid in processor_seconds()
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return sum(int(line.split()[1]) * 1024 for line in lines)


class MadeWork(MadeLog):
    """A generated log of workers: a job is written; a little later a worker takes it and writes its
    result in the same transaction. One job in a hundred comes back instead, and runs out."""

    def _batch(self, position: Any) -> pa.RecordBatch:
        turn, phase = (position - 1) // 3, (position - 1) % 3
        started = turn >= LAG
        fails = turn % 100 == 99
        takes, ends = (phase == 1) & started, (phase == 2) & started & fails
        in_txn = (phase > 0) & started & ~ends
        result = (phase == 2) & started & ~fails
        # A job is LAG turns older than its take; LAG is a multiple of the number of agents.
        arrival = np.where(takes | ends, position - phase - 3 * LAG, position)
        kind = np.where(takes, np.where(fails, 2, 1), np.where(ends, 3, 0))
        encode = msgspec.msgpack.Encoder().encode
        texts = [f"{t:032x}" if inside else None for t, inside in zip(turn, in_txn, strict=True)]
        who, number = self._agents(), turn % AGENTS
        leased = fails & ((phase == 0) | takes | ends)
        until = BEGIN + (turn + LAG * (phase == 0)) / A_SECOND
        return self._built(
            position,
            arrival=pa.array(arrival, pa.int64()),
            time=BEGIN + turn / A_SECOND,
            kind=pa.array(["written", "taken", "released", "expired"]).take(pa.array(kind)),
            origin=who.take(pa.array(result * AGENTS + number)),
            agent=who.take(pa.array(in_txn * AGENTS + number)),
            session=pa.array(
                [f"session-{n}" if t else None for n, t in zip(number, takes, strict=True)]
            ),
            txn=pa.array(texts, pa.string()),
            waited=pa.array(np.where(takes, position % 100 / 1e3, 0.0)),
            expires=np.where(leased, until, np.nan),
            deliveries=pa.array(((takes | ends) & fails).astype(np.int64)),
            payload=[
                encode(("result" if is_result else "job", i, i / 7, f"image-{i}.png"))
                for i, is_result in zip(arrival.tolist(), result.tolist(), strict=True)
            ],
        )


class MadePresence(MadeLog):
    """A generated log of presence: eight hosts come and go, in turns, as long as the work lasts."""

    space = PRESENCE
    _HOSTS = 8
    _CYCLE = ("written", "engaged", "taken", "written", "disengaged", "taken")

    def _batch(self, position: Any) -> pa.RecordBatch:
        phase, turn = (position - 1) % 6, (position - 1) // 6
        since = position * (PRESENCE_SHARE / 3) / A_SECOND
        arrival = position - phase % 3
        payloads = []
        for n, is_here, at in zip(
            (turn % self._HOSTS).tolist(), (phase < 3).tolist(), since.tolist(), strict=True
        ):
            state, how = ("engaged", "") if is_here else ("departed", "goodbye")
            id, address = f"host-{n + 2}", f"10.0.0.{n + 2}:7700"
            payloads.append(
                encode_entry(*freeze(HostPresence(id, f"kitchen-{n}", address, state, how, at)))
            )
        return self._built(
            position,
            arrival=pa.array(arrival, pa.int64()),
            time=BEGIN + since,
            kind=pa.array(self._CYCLE).take(pa.array(phase)),
            agent=pa.repeat(self.host, len(position)),
            waited=pa.array(np.zeros(len(position))),
            payload=payloads,
        )
