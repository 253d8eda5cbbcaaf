"""Recorded logs, for the jobs: real spaces that keep their logs, used at random; and what was
logged as a table of Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import tupelo
from tests.conftest import HandClock
from tupelo import aio
from tupelo.errors import ReactionError, Refused, TupeloError
from tupelo.pipeline.schema import CHANGES
from tupelo.pipeline.source.locations import resolve
from tupelo.pipeline.source.options import ReadOptions

Row = dict[str, Any]


def rows_of(*locations: Path, space: str | None = None) -> list[Row]:
    """All changes that were logged there; as if of the space of this name, so that the logs of
    several runs can be looked at together."""
    logs = resolve(ReadOptions(tuple(map(str, locations))))
    batches = [batch for log in logs for batch in log.batches(*log.bounds())]
    rows = pa.Table.from_batches(batches, CHANGES).to_pylist()
    return rows if space is None else [{**row, "space": f"{space} {row['space']}"} for row in rows]


def table_of(spark: Any, rows: Iterable[Row]) -> Any:
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), CHANGES))


def faults_in(faults: Any) -> list[tuple[str, str, int | None]]:
    """Each fault with the space, and the number of the entry or the first position."""
    return sorted(
        (row["fault"], row["space"], row["first"] if row["n"] is None else row["n"])
        for row in faults.collect()
    )


class RandomRun:
    """Someone who does everything that can be done with a durable space, as a seed will have it."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._rng = Random(seed)
        self._clock = HandClock()
        self._leases: list[Any] = []
        self._open()

    def _open(self) -> None:
        capacity = tupelo.Capacity(12, evict=self._rng.choice(["fifo", "lru"]))
        self._space = tupelo.Space(
            "jobs",
            path=self._path,
            clock=self._clock,
            capacity=self._rng.choice([None, capacity]),
            durability="none",
            log_keep="all",
            log_reads=True,
        )
        self._other = tupelo.Space("other", clock=self._clock)
        if self._rng.random() < 0.5:
            self._space.react(("job", int), self._react, existing=False)

    def _react(self, entry: Any, step: Any) -> None:
        if entry[1] % 5 == 0:
            raise ValueError("not this one")
        if entry[1] % 3 == 0:
            step.take(entry)
        step.write(("note", entry[1]))

    def play(self, steps: int) -> None:
        acts: list[Callable[[], None]] = [
            self._write,
            self._write,
            self._write_all,
            self._take,
            self._take,
            self._read,
        ]
        acts += [self._lease, self._pass_time, self._transaction, self._both, self._vanish]
        for _ in range(steps):
            with suppress(ReactionError, Refused):
                self._rng.choice(acts)()
            if self._rng.random() < 0.03:
                self._space.close()
                self._leases.clear()
                self._open()
        self._space.close()
        self._other.close()

    def _entry(self) -> tuple[str, int]:
        return self._rng.choice(["job", "note"]), self._rng.randrange(10)

    def _template(self) -> tuple[Any, Any]:
        kind = self._rng.choice(["job", "note", str])
        return kind, self._rng.choice([int, self._rng.randrange(10)])

    def _write(self, **how: Any) -> None:
        lease = self._rng.choice([None, None, 1.0, 5.0])
        delay = self._rng.choice([None, None, None, 2.0])
        self._leases.append(self._space.write(self._entry(), lease=lease, delay=delay, **how))

    def _write_all(self, **how: Any) -> None:
        self._space.write_all([self._entry() for _ in range(self._rng.randrange(4))], **how)

    def _take(self, **how: Any) -> None:
        if self._rng.random() < 0.2:
            self._space.take_all(self._template(), limit=3, **how)
        else:
            self._space.take(self._template(), wait=0, **how)

    def _read(self, **how: Any) -> None:
        self._space.read(self._template(), wait=0, **how)

    def _lease(self) -> None:
        if self._leases:
            lease = self._rng.choice(self._leases)
            with suppress(TupeloError):
                lease.renew(3.0) if self._rng.random() < 0.5 else lease.cancel()

    def _pass_time(self) -> None:
        self._clock.advance(self._rng.random() * 2)

    def _within(self, **how: Any) -> None:
        acts: list[Callable[..., None]] = [self._write, self._write_all, self._take, self._read]
        for _ in range(self._rng.randrange(5)):
            self._rng.choice(acts)(**how)
            if self._rng.random() < 0.2:
                self._rng.choice([self._write, self._take])()  # someone else

    def _transaction(self) -> None:
        with suppress(TupeloError):
            txn = self._space.transaction(lease=self._rng.choice([None, 2.0]))
            self._within(txn=txn)
            if self._rng.random() < 0.3:
                nested = txn.transaction()
                self._within(txn=nested)
                nested.commit() if self._rng.random() < 0.5 else nested.abort()
                self._within(txn=txn)
            if self._rng.random() < 0.3:
                self._pass_time()
            txn.commit() if self._rng.random() < 0.6 else txn.abort()

    def _both(self) -> None:
        """A transaction over two spaces, which is prepared before it is committed."""
        with suppress(TupeloError), tupelo.transaction(self._space, self._other) as txn:
            self._within(txn=txn)
            self._other.write(("told",), txn=txn)

    def _vanish(self) -> None:
        """One who waits is gone at the moment when it gets the entry."""

        async def main() -> None:
            door = aio.Space(self._space)
            taking = asyncio.ensure_future(door.take(self._template(), wait=None))
            await asyncio.sleep(0)
            with suppress(ReactionError, Refused):
                self._write()
            taking.cancel()
            await asyncio.wait([taking])

        asyncio.run(main())
