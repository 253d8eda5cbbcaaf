"""Reading logs as a table: which parts of them, in which tasks, and which columns and rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tupelo.errors import BadArgument, LogTrimmed, PipelineError
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import POSITION_MAX, ArchivedLog, Segment
from tupelo.pipeline.schema import TIME, check_columns
from tupelo.pipeline.source.filters import RowFilter
from tupelo.pipeline.source.locations import JoinedLog, LogLike, by_name, name_of, resolve
from tupelo.pipeline.source.options import ReadOptions, from_option, matching
from tupelo.values.change import ENDINGS

if TYPE_CHECKING:
    import pyarrow.compute as pc


_ABOUT = ["position", "arrival", "kind", "time", "expires"]
_NEVER = np.iinfo(np.int64).max
_NEAR = 4_096
"""Entries within so many positions are read together."""


def living(
    log: LogLike, moment: int | datetime, columns: Sequence[str], entry: Declared | None
) -> Iterator[pa.RecordBatch]:
    """The entries at a position or time: the rows of their writing, with the leases that they had
    then."""
    columns = check_columns(columns, entry)
    first, last = log.bounds()
    if isinstance(moment, int):
        if moment > last:
            raise BadArgument("asOf", f"at most {last}, the last position of the log", moment)
        last = moment
    if first > 1:
        _check_known(log, moment, first, last)
    needed = list(dict.fromkeys([*columns, "arrival", "position", "kind", "expires"]))
    before = list(_before(log, first, needed, entry))
    history = _History(before)
    for batch in log.batches(first, last, _ABOUT):
        history.add(batch)
    alive = history.alive(moment)
    for batch in before:
        yield from alive.of(batch, columns)
    for begin, end in alive.ranges(first, last):
        for batch in log.batches(begin, end, needed, entry):
            yield from alive.of(batch, columns)


def _check_known(log: LogLike, moment: int | datetime, first: int, last: int) -> None:
    """Raise LogTrimmed if the log begins too late. Its file has the entries that existed when the
    log begins, but not since when: a time must be within the log."""
    message = f"what was in {log.space!r} at {moment} cannot be told: its log begins at {first}"
    if not isinstance(log, JournalLog):
        raise LogTrimmed(f"{message}, and what was there before is not known", first)
    if isinstance(moment, int):
        if last < first - 1:
            raise LogTrimmed(message, first)
        return
    begun = [time for b in log.batches(first, first, ["time"]) for time in b.column("time")]
    if not begun:
        raise LogTrimmed(f"{message}, and nothing has happened since", first)
    if pa.scalar(moment, TIME).value < begun[0].value:
        raise LogTrimmed(f"{message}, with what happened at {begun[0]}", first)


def _before(
    log: LogLike, first: int, columns: Sequence[str], entry: Declared | None
) -> Iterator[pa.RecordBatch]:
    """The entries that were written before the log begins and existed then, from the file."""
    if first > 1 and isinstance(log, JournalLog):
        yield log.before(columns, entry)


class _Alive:
    """The entries that existed: their arrivals, the positions of their writing, and the ends of
    their leases."""

    def __init__(self, arrivals: Any, positions: Any, expires: Any) -> None:
        self._arrivals = arrivals
        self._positions = np.sort(positions)
        self._expires = expires

    def ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The positions of their writing, as ranges without long gaps."""
        places = self._positions[(self._positions >= first) & (self._positions <= last)]
        if len(places):
            for run in np.split(places, np.flatnonzero(np.diff(places) > _NEAR) + 1):
                yield int(run[0]), int(run[-1])

    def of(self, batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows among these that wrote one of them."""
        if not len(self._arrivals):
            return
        arrivals = batch.column("arrival").fill_null(-1).to_numpy()
        places = np.minimum(np.searchsorted(self._arrivals, arrivals), len(self._arrivals) - 1)
        written = pc.equal(batch.column("kind"), "written").to_numpy(zero_copy_only=False)
        found = written & (self._arrivals[places] == arrivals)
        if not found.any():
            return
        chosen = batch.filter(pa.array(found))
        expires = self._expires[places[found]]
        leases = pa.array(expires, pa.int64(), mask=expires == _NEVER).cast(TIME)
        place = chosen.schema.get_field_index("expires")
        yield chosen.set_column(place, chosen.schema.field(place), leases).select(list(columns))


class _History:
    """The last change of every entry."""

    def __init__(self, before: list[pa.RecordBatch]) -> None:
        self._columns: list[tuple[Any, ...]] = []
        for batch in before:
            self._keep(batch, np.full(batch.num_rows, np.iinfo(np.int64).min))

    def add(self, batch: pa.RecordBatch) -> None:
        self._keep(batch, _micros(batch.column("time")))

    def _keep(self, batch: pa.RecordBatch, times: Any) -> None:
        about = batch.column("arrival").is_valid().to_numpy(zero_copy_only=False)
        kind = batch.column("kind")
        ended = pc.is_in(kind, pa.array(ENDINGS)).to_numpy(zero_copy_only=False)
        written = pc.equal(kind, "written").to_numpy(zero_copy_only=False)
        arrivals = batch.column("arrival").fill_null(-1).to_numpy()
        positions = batch.column("position").to_numpy()
        expires = _micros(batch.column("expires"))
        columns = (arrivals, positions, times, ended, written, expires)
        self._columns.append(tuple(column[about] for column in columns))

    def alive(self, moment: int | datetime) -> _Alive:
        if not self._columns:
            nothing = np.empty(0, dtype=np.int64)
            return _Alive(nothing, nothing, nothing)
        arrivals, positions, times, ended, written, expires = (
            np.concatenate(column) for column in zip(*self._columns, strict=True)
        )
        if isinstance(moment, datetime):
            at = pa.scalar(moment, TIME).value
            past = times <= at
            arrivals, positions, ended = arrivals[past], positions[past], ended[past]
            written, expires = written[past], expires[past]
        else:
            at = times.max(initial=np.iinfo(np.int64).min)
        # The last change of each entry is the first one in reverse.
        each, back = np.unique(arrivals[::-1], return_index=True)
        newest = len(arrivals) - 1 - back
        there = ~ended[newest] & (expires[newest] > at)
        alive, leases = each[there], expires[newest][there]
        begun = np.isin(arrivals, alive) & written
        return _Alive(alive, positions[begun], leases)


def _micros(column: pa.Array) -> Any:
    """Microseconds since 1970; null is never."""
    return column.cast(pa.int64()).fill_null(_NEVER).to_numpy()


TASK_ROWS_MIN, TASK_ROWS_MAX = 50_000, 1_000_000
TASKS_MAX = 10_000
"""The largest number of tasks of a query; tasks then have more rows."""


@dataclass(frozen=True)
class LogPart:
    """A part of a log between two positions, both included."""

    log: LogLike
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


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
            yield from self.chosen(self._all_rows(part))

    def _all_rows(self, part: LogPart) -> Iterator[pa.RecordBatch]:
        """All rows of a part. Raises an error if the log ends too early."""
        rows = 0
        for batch in part.log.batches(part.first, part.last, self.needed, self.entry):
            rows += batch.num_rows
            yield batch
        if rows != part.rows:
            raise PipelineError(
                f"{part.log!r} was to be read from {part.first} to {part.last}, and had {rows}"
                f" changes of {part.rows}"
            )

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
        """The filters that are left to Spark. Only applied on request: up to 4.3, Spark uses the
        filters of one use of a table for all its other uses, which then miss rows."""
        for pushed in filters:
            if not (self._options.pushdown and self._wanted.add(pushed)):
                yield pushed

    def partitions(self) -> Sequence[ReadTask]:
        found = resolve(self._options)
        after = self._options.after
        if after and (unknown := after.keys() - by_name(found).keys()):
            named = ", ".join(sorted(unknown))
            raise BadArgument("after", "the names of logs that are read", named)
        logs = [log for log in found if self._may_hold(log)]
        moment = self._options.as_of
        if moment is not None:
            return self._moments(logs, moment)
        parts = [
            part for log in logs for part in parts_of(log, self._wanted, after.get(name_of(log)))
        ]
        total = sum(part.rows for part in parts)
        return tasks_of(parts, self._task_rows(total)) or [ReadTask([])]

    def _may_hold(self, log: LogLike) -> bool:
        return self._wanted.may_be("host", log.host) and self._wanted.may_be("space", log.space)

    def _moments(self, logs: list[LogLike], moment: int | datetime) -> list[ReadTask]:
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


def parts_of(log: LogLike, wanted: RowFilter, after: int | None = None) -> list[LogPart]:
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


def bounds_of(log: LogLike) -> tuple[int, int]:
    """The bounds of a log, checked, because they may come from a host."""
    first, last = log.bounds()
    if not 1 <= first <= last + 1 <= POSITION_MAX + 1:
        raise PipelineError(f"{log!r} says that it goes from {first} to {last}")
    return first, last


def _sealed_parts(log: ArchivedLog, wanted: RowFilter, after: int) -> list[LogPart]:
    """The segments that may have wanted rows, by the manifest."""
    parts: list[LogPart] = []
    for segment in log.segments:
        if _may_match(segment, wanted):
            alone = copy(log)
            alone.segments = [segment]  # The others need not be sent along.
            parts += _narrowed(alone, max(segment.first, after + 1), segment.last, wanted)
    return parts


def _narrowed(log: LogLike, first: int, last: int, wanted: RowFilter) -> list[LogPart]:
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
