"""Reading logs as a stream.

An offset has for every log, by name, the position up to which it was read, and the position after
which this query began with it: {"host/space": {"id": ..., "after": 0, "upto": 120}}. So a batch has
the same rows whenever it is read again; new logs join, and missing ones keep their position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import monotonic, sleep
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tupelo.errors import BadArgument, LinkError, LogTrimmed, PipelineError
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.source.locations import LogPart, bounds_of, by_name, resolve
from tupelo.pipeline.source.options import ROWS_A_TASK, ReadOptions
from tupelo.pipeline.source.reading import ReadTask, Rows, tasks_of, wanted_by

Offset = dict[str, dict[str, Any]]

_PAUSE_SECONDS = 0.2
_IDLE_SECONDS_MIN, _IDLE_SECONDS_MAX = 0.01, 0.1
"""How long a look that finds nothing new takes: longer after each, because Spark looks again after
10 milliseconds, and would connect to all hosts a hundred times a second."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes as a stream."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        if options.as_of is not None:
            raise BadArgument("asOf", "left out: a stream has no moment", options.as_of)
        self._options = options
        self._rows = Rows(columns, options.entry, wanted_by(options), options.template)
        self._target: Offset | None = None
        self._met = False  # whether all hosts have answered once
        self._idle_seconds = 0.0

    # Offsets

    def initialOffset(self) -> Offset:  # noqa: N802
        if not self._options.from_latest:
            return {}
        return {
            name: {"id": log.id, "after": last, "upto": last}
            for name, log, _, last in self._found()
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows = self._options.rows_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        ends = self._ends(start)
        if ends != start or self._target is not None:
            self._idle_seconds = 0.0
        else:
            sleep(self._idle_seconds)
            self._idle_seconds = min(
                max(_IDLE_SECONDS_MIN, 2 * self._idle_seconds), _IDLE_SECONDS_MAX
            )
        if isinstance(limit, ReadMaxRows):
            return _admitted(start, ends, limit.max_rows)
        return ends

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._now()

    def _ends(self, start: Offset) -> Offset:
        """The present ends of all logs, or those at the start of an `availableNow` query."""
        ends = dict(start)
        for name, now in (self._now() if self._target is None else self._target).items():
            begun = start.get(name)
            if begun is None:
                ends[name] = now
                continue
            _check_same(name, begun, now["id"])
            if now["upto"] > begun["upto"]:
                _check_kept(name, begun, now["after"] + 1)
                ends[name] = {**begun, "upto": now["upto"]}
            elif self._target is None or begun["upto"] > begun["after"]:
                _check_whole(name, begun, now["upto"])
        return ends

    def _now(self) -> Offset:
        return {
            name: {"id": log.id, "after": first - 1, "upto": last}
            for name, log, first, last in self._found()
        }

    def _found(self) -> list[tuple[str, Log, int, int]]:
        """The logs that can be reached, with their bounds. A host that answered once may be away
        later."""
        found = []
        logs = by_name(resolve(self._options, [] if self._met else None))
        for name, log in logs.items():
            try:
                found.append((name, log, *bounds_of(log)))
            except LinkError:
                if not self._met:
                    raise
        self._met = True
        return found

    # Reading

    def partitions(self, start: Offset, end: Offset) -> Sequence[ReadTask]:
        begins = {name: _begin(start.get(name), end[name]) for name in end}
        wanted = {name: after for name, after in begins.items() if end[name]["upto"] > after}
        logs = self._logs(wanted) if wanted else {}
        parts = []
        for name in sorted(wanted):
            first, last = wanted[name] + 1, end[name]["upto"]
            if name not in logs:
                raise PipelineError(
                    f"the log {name} cannot be found; it is needed from {first} to {last}"
                )
            _check_same(name, end[name], logs[name].id)
            parts.append(LogPart(logs[name], first, last))
        return tasks_of(parts, self._options.rows_a_task or ROWS_A_TASK)

    def _logs(self, wanted: Iterable[str]) -> dict[str, Log]:
        """The logs that can be reached. Logs of a planned batch existed when it was planned, and
        are waited for."""
        until = monotonic() + self._options.way.reconnect
        while True:
            logs = by_name(resolve(self._options, []))
            if logs.keys() >= set(wanted) or monotonic() + _PAUSE_SECONDS > until:
                return logs
            sleep(_PAUSE_SECONDS)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return self._rows.read(partition.parts)


def _begin(start: dict[str, Any] | None, end: dict[str, Any]) -> int:
    """The position after which a batch begins with a log. A start that does not fit the end is
    ignored: "latest" was requested again, and is later now."""
    if start is None or start["after"] != end["after"]:
        return int(end["after"])
    return int(start["upto"])


def _admitted(start: Offset, ends: Offset, rows: int) -> Offset:
    """At most so many rows, shared evenly, so that no log waits for a longer one."""
    begins = {name: _begin(start.get(name), end) for name, end in ends.items()}
    left = {name: end["upto"] - begins[name] for name, end in ends.items()}
    granted = dict.fromkeys(left, 0)
    waiting = sorted(name for name, count in left.items() if count)
    if waiting:  # Rotated, because there may be fewer rows than logs.
        turn = sum(begins.values()) % len(waiting)
        waiting = waiting[turn:] + waiting[:turn]
    while rows and waiting:
        share = max(1, rows // len(waiting))
        for name in waiting:
            more = min(share, left[name], rows)
            granted[name] += more
            left[name] -= more
            rows -= more
        waiting = [name for name in waiting if left[name]]
    return {
        name: {**end, "upto": begins[name] + granted[name]}
        for name, end in ends.items()
        if name in start or granted[name]
    }


def _check_same(name: str, begun: dict[str, Any], found: str) -> None:
    if begun["id"] != found:
        raise PipelineError(
            f"the log {name} is another one than the query began with: it was made anew; begin with"
            " another checkpoint"
        )


def _check_whole(name: str, begun: dict[str, Any], last: int) -> None:
    if last < begun["upto"]:
        raise PipelineError(
            f"the log {name} was read up to {begun['upto']}, but it ends at {last} now: it has lost"
            " changes, and those that come will have their positions; begin with another checkpoint"
        )


def _check_kept(name: str, begun: dict[str, Any], first: int) -> None:
    if begun["upto"] + 1 < first:
        raise LogTrimmed(
            f"the log {name} was read up to {begun['upto']}, but it begins at {first} now: what was"
            " between is no longer kept; give an archive= that has it, or begin with another"
            " checkpoint",
            first,
        )
