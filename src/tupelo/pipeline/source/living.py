"""The entries at a moment, from the changes of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from time import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tupelo.errors import BadArgument, LogTrimmed
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.schema import TIME, check_columns
from tupelo.pipeline.source.locations import bounds_of
from tupelo.pipeline.source.options import Moment
from tupelo.values.change import ENDINGS

_ABOUT = ["position", "arrival", "kind", "time", "expires"]
_NEVER = np.iinfo(np.int64).max
_NEAR = 4_096
"""Entries within so many positions are read together."""


def living(
    log: Log, moment: Moment, columns: Sequence[str], entry: Declared | None
) -> Iterator[pa.RecordBatch]:
    """The entries at a moment: the rows of their writing, with the leases that they had then."""
    columns = check_columns(columns, entry)
    first, last = bounds_of(log)
    now = None
    if moment == "now":
        moment, now = last, time()
    if isinstance(moment, int):
        if moment > last:
            raise BadArgument("asOf", f"at most {last}, the last position of the log", moment)
        last = moment
    needed = list(dict.fromkeys([*columns, "arrival", "position", "kind", "expires"]))
    before = []
    if first > 1:
        earlier = log.before(needed, entry)
        if earlier is None:
            raise _unknown(log, moment, first, ", and what was there before is not known")
        _check_begun(log, moment, first, last)
        before = [earlier]
    history = _History(before)
    for batch in log.batches(first, last, _ABOUT):
        history.add(batch)
    alive = history.alive(moment, now)
    for batch in before:
        yield from alive.of(batch, columns)
    for begin, end in alive.ranges(first, last):
        for batch in log.batches(begin, end, needed, entry):
            yield from alive.of(batch, columns)


def _check_begun(log: Log, moment: int | datetime, first: int, last: int) -> None:
    """Raise LogTrimmed if the log begins too late. Its file has the entries that existed when the
    log begins, but not since when: a time must be within the log."""
    if isinstance(moment, int):
        if last < first - 1:
            raise _unknown(log, moment, first)
        return
    begun = [time for b in log.batches(first, first, ["time"]) for time in b.column("time")]
    if not begun:
        raise _unknown(log, moment, first, ", and nothing has happened since")
    if pa.scalar(moment, TIME).value < begun[0].value:
        raise _unknown(log, moment, first, f", with what happened at {begun[0]}")


def _unknown(log: Log, moment: int | datetime, first: int, why: str = "") -> LogTrimmed:
    return LogTrimmed(
        f"what was in {log.space!r} at {moment} cannot be told: its log begins at {first}{why}",
        first,
    )


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

    def alive(self, moment: int | datetime, now: float | None = None) -> _Alive:
        """The entries at this moment; leases that end before `now` (seconds since 1970) are over,
        whether or not that is in the log."""
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
            at = times.max(initial=np.iinfo(np.int64).min if now is None else int(now * 1e6))
        # The last change of each entry is the first one in reverse.
        each, back = np.unique(arrivals[::-1], return_index=True)
        newest = len(arrivals) - 1 - back
        there = ~ended[newest] & (expires[newest] > at)
        there &= np.isin(each, arrivals[written])  # A delayed entry is not visible before.
        alive, leases = each[there], expires[newest][there]
        begun = np.isin(arrivals, alive) & written
        return _Alive(alive, positions[begun], leases)


def _micros(column: pa.Array) -> Any:
    """Microseconds since 1970; null is never."""
    return column.cast(pa.int64()).fill_null(_NEVER).to_numpy()
