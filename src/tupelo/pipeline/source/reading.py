"""Reading logs as a table: which parts of them, in which tasks, and which columns and rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from datetime import datetime
from math import ceil
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tupelo.errors import BadArgument, LogTrimmed
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.logs.segments import ArchivedLog, Segment
from tupelo.pipeline.source.filters import RowFilter
from tupelo.pipeline.source.living import living
from tupelo.pipeline.source.locations import (
    JoinedLog,
    LogPart,
    bounds_of,
    by_name,
    name_of,
    resolve,
)
from tupelo.pipeline.source.options import Moment, ReadOptions, from_option, matching

TASK_ROWS_MIN, TASK_ROWS_MAX = 50_000, 1_000_000
TASKS_MAX = 10_000
"""The largest number of tasks of a query; tasks then have more rows."""


class ReadTask(InputPartition):
    """The parts that one task of Spark reads, in this order."""

    def __init__(self, parts: Sequence[LogPart]) -> None:
        self.parts = list(parts)


class Rows:
    """The wanted columns and rows."""

    def __init__(
        self,
        columns: Sequence[str],
        entry: Declared | None,
        wanted: RowFilter,
        template: str | None,
    ) -> None:
        self.columns = list(columns)
        self.entry = entry
        self.wanted = wanted
        self.template = template

    @property
    def needed(self) -> list[str]:
        more = self.wanted.columns | ({"payload"} if self.template is not None else set())
        return [*self.columns, *sorted(more - set(self.columns))]

    def read(self, parts: Iterable[LogPart]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield from self.chosen(part.batches(self.needed, self.entry))

    def chosen(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        expression: pc.Expression | None = self.wanted.expression()
        template = None if self.template is None else from_option(self.template)
        for batch in batches:
            if expression is not None:
                batch = batch.filter(expression)
            if template is not None and batch.num_rows:
                batch = batch.filter(matching(template, batch.column("payload")))
            if batch.num_rows:
                yield batch.select(self.columns)


class TableReader(DataSourceReader):
    """Reads changes, or with `asOf` the entries at a moment."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._wanted = wanted_by(options)
        self._rows = Rows(columns, options.entry, self._wanted, options.template)

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        """The filters that are left to Spark. Up to 4.3 they are only applied on request: Spark
        uses the filters of one use of a table for all its other uses, which then miss rows."""
        for pushed in filters:
            if not (self._options.pushdown and self._wanted.add(pushed)):
                yield pushed

    def partitions(self) -> Sequence[ReadTask]:
        found = resolve(self._options)
        after = self._options.after
        if after and (unknown := after.keys() - by_name(found).keys()):
            named = ", ".join(sorted(unknown))
            raise BadArgument("after", "the names of logs that are read", named)
        may_be = self._wanted.may_be
        logs = [log for log in found if may_be("host", log.host) and may_be("space", log.space)]
        moment = self._options.as_of
        if moment is not None:
            return self._moments(logs, moment)
        parts = [
            part for log in logs for part in parts_of(log, self._wanted, after.get(name_of(log)))
        ]
        total = sum(part.rows for part in parts)
        return tasks_of(parts, self._task_rows(total)) or [ReadTask([])]

    def _moments(self, logs: list[Log], moment: Moment) -> list[ReadTask]:
        if isinstance(moment, int) and len(logs) > 1:
            expected = "a time: positions are of one log, and there are several"
            raise BadArgument("asOf", expected, moment)
        return [ReadTask([LogPart(log, *bounds_of(log))]) for log in logs] or [ReadTask([])]

    def _task_rows(self, total: int) -> int:
        if self._options.partitions is not None:
            return max(1, ceil(total / self._options.partitions))
        if self._options.rows_a_task is not None:
            return self._options.rows_a_task
        each = ceil(total / (os.cpu_count() or 1))
        return max(TASK_ROWS_MIN, min(TASK_ROWS_MAX, each))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        moment = self._options.as_of
        if moment is None:
            return self._rows.read(partition.parts)
        return self._rows.chosen(
            batch
            for part in partition.parts
            for batch in living(part.log, moment, self._rows.needed, self._rows.entry)
        )


def wanted_by(options: ReadOptions) -> RowFilter:
    """The rows that the options select."""
    wanted = RowFilter()
    if options.kinds is not None:
        wanted.only("kind", options.kinds)
    return wanted


def parts_of(log: Log, wanted: RowFilter, after: int | None = None) -> list[LogPart]:
    """The parts of a log after a position that may have wanted rows. Raises LogTrimmed if changes
    after that position are no longer kept."""
    first, last = bounds_of(log)
    if after is None:
        after = first - 1
    elif after + 1 < first:
        raise LogTrimmed(
            f"the log {name_of(log)} was asked for after {after}, but it begins at {first}: what"
            " was between is no longer kept; give an archive= that has it",
            first,
        )
    if isinstance(log, ArchivedLog):
        return _sealed_parts(log, wanted, after)
    first = max(first, after + 1)
    parts: list[LogPart] = []
    if isinstance(log, JoinedLog) and (sealed := log.sealed()) is not None:
        parts = _sealed_parts(sealed, wanted, after)
        first = max(first, sealed.last + 1)
    return [*parts, *_narrowed(log, first, last, wanted)]


def _sealed_parts(log: ArchivedLog, wanted: RowFilter, after: int) -> list[LogPart]:
    """The segments that may have wanted rows, by the manifest."""
    parts: list[LogPart] = []
    for segment in log.segments:
        if _may_match(segment, wanted):
            alone = copy(log)
            alone.segments = [segment]  # The others need not be sent along.
            parts += _narrowed(alone, max(segment.first, after + 1), segment.last, wanted)
    return parts


def _narrowed(log: Log, first: int, last: int, wanted: RowFilter) -> list[LogPart]:
    low, high = wanted.between.get("position", (None, None))
    first = first if low is None else max(first, low)
    last = last if high is None else min(last, high)
    return [LogPart(log, first, last)] if first <= last else []


def _may_match(segment: Segment, wanted: RowFilter) -> bool:
    kinds = wanted.among.get("kind")
    if kinds is not None and kinds.isdisjoint(segment.kinds):
        return False
    low, high = wanted.between.get("time", (None, None))
    return (low is None or _micros_of(low) <= segment.last_time) and (
        high is None or _micros_of(high) >= segment.first_time
    )


def _micros_of(moment: datetime) -> int:
    scalar: Any = pa.scalar(moment, pa.timestamp("us", tz="UTC"))
    value: int = scalar.value
    return value


def tasks_of(parts: Iterable[LogPart], rows: int) -> list[ReadTask]:
    """Tasks of at most so many rows: long parts are split, short ones combined.

    Equal parts always give equal tasks, so that a sink recognises a repeated one.
    """
    parts = list(parts)
    rows = max(rows, ceil(sum(part.rows for part in parts) / TASKS_MAX))
    tasks: list[ReadTask] = []
    gathered: list[LogPart] = []
    room = rows
    for part in parts:
        first = part.first
        while first <= part.last:
            last = min(part.last, first + room - 1)
            gathered.append(LogPart(part.log, first, last))
            room -= last - first + 1
            first = last + 1
            if not room:
                tasks.append(ReadTask(gathered))
                gathered, room = [], rows
    return [*tasks, ReadTask(gathered)] if gathered else tasks
