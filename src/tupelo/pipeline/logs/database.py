"""Logs in PostgreSQL databases. The server sends columns, not rows: all values of a column in one
string of bytes, which becomes an Arrow array without a step in Python for each. The driver is
imported when a database is asked."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tupelo.errors import CannotReach, LogTrimmed, PeerLost, PipelineError
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.logs.log import Log, in_batches
from tupelo.pipeline.schema import CHANGES, Raw, build, needed_for
from tupelo.space.dual_api import run_sync
from tupelo.values.codec import BadBytes

if TYPE_CHECKING:
    from tupelo.postgres.space import PostgresSpace

_SOURCES = {
    "agent_name": "nullif(agent_name, '')",
    "to": "addressee",
    "payload": "body",
}
_SENT = {
    pa.string(): ("textsend({})", "octet_length({})"),
    pa.binary(): ("{}", "octet_length({})"),
    pa.int64(): ("int8send({})", None),
    pa.float64(): ("float8send(coalesce({}, 'NaN'))", None),
    CHANGES.field("time").type: ("float8send(coalesce({}, 'NaN'))", None),
}
"""The bytes of a value, and their number where that varies."""
_PAUSE_SECONDS = 0.2
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_STATE = "SELECT log::text, trimmed, position FROM tupelo.spaces WHERE id = %(space)s"
_PLANS = """
    SELECT set_config(name, value, true) FROM (VALUES ('max_parallel_workers_per_gather', '0'),
        ('enable_sort', 'off'), ('enable_bitmapscan', 'off')) AS settings (name, value)
"""
"""For statements that follow in a transaction: one process of the server, since the tasks of Spark
are parallel themselves; and changes in the order of the index, not sorted on disk."""
_EARLIER = """
    SELECT string_agg(int8send(entry), ''::bytea), string_agg(int8send(position), ''::bytea) FROM (
        SELECT entry, position FROM tupelo.changes WHERE space = %(space)s AND {asked}
            AND position < %(first)s AND kind IN ('written', 'delayed') AND kind = ANY(%(kinds)s)
        UNION ALL
        SELECT entry, position FROM tupelo.arrived WHERE space = %(space)s AND {asked}
            AND kind = ANY(%(kinds)s)
    ) AS begun
"""
ROWS = 65_536
"""The largest number of rows in a batch."""
_DENSE = 4
"""Entries are looked up by a range of ids, if that has at most so many times as many ids."""


class PostgresLog(Log):
    """The log of one space of a database. `host` is the id of the database.

    A change has no position until somebody reads the log: `bounds` numbers what is committed.
    """

    def __init__(self, conninfo: str, space: str, reconnect: float) -> None:
        self.space = space
        self._conninfo = conninfo  # not shown: there may be a password in it
        self._reconnect = reconnect
        self.where, self.host, self.id = self._ask(self._identity)

    @staticmethod
    async def _identity(space: PostgresSpace, link: Any) -> tuple[str, str, str]:
        rows = await space.run(link, "SELECT id::text FROM tupelo.version")
        ((log, _, _),) = await space.run(link, _STATE)
        return space.database.where, rows[0][0].replace("-", ""), log.replace("-", "")

    def bounds(self) -> tuple[int, int]:
        with self._opened() as space:
            first, last = run_sync(space.log.bounds)
        return first, last

    def _read(
        self, first: int, last: int, columns: Sequence[str], entry: Declared | None
    ) -> Iterator[pa.RecordBatch]:
        """Each batch is read in its own snapshot, so that the server can vacuum meanwhile."""
        with self._opened(self._reconnect) as space:

            def read(first: int, last: int) -> pa.RecordBatch:
                changes = partial(self._changes, columns=columns, first=first, last=last)
                return self._build(_read(space, changes), columns, entry)

            yield from in_batches(read, first, last, ROWS // 256, ROWS)

    def before(self, columns: Sequence[str], entry: Declared | None) -> pa.RecordBatch:
        async def select(space: PostgresSpace, link: Any) -> Raw:
            where = "FROM tupelo.arrived WHERE space = %(space)s AND kind = 'written'"
            raw = _select(space, link, needed_for(columns) | {"position"}, where)
            raw["arrival"] = raw["position"]
            raw["delayed"] = pa.nulls(len(raw["position"]), pa.int64())
            return raw

        return self._build(self._ask(select), columns, entry)

    async def _changes(
        self, space: PostgresSpace, link: Any, columns: Sequence[str], first: int, last: int
    ) -> Raw:
        """The needed columns of the first of these changes."""
        state = await space.run(link, _STATE)
        if not state or state[0][0].replace("-", "") != self.id:
            raise PipelineError(f"the log of {self.space!r} at {self.where} is another one now")
        _, trimmed, position = state[0]
        if first <= trimmed:
            raise LogTrimmed(
                f"{self!r}: the change at {first} was asked for, but the log of {self.space!r}"
                f" begins at {trimmed + 1}",
                trimmed + 1,
            )
        last = min(last, position)
        needed = needed_for(columns)
        where = (
            "FROM tupelo.changes WHERE space = %(space)s"
            " AND position BETWEEN %(first)s AND %(last)s"
        )
        raw = _select(space, link, needed | {"position"}, where, first=first, last=last)
        if len(raw["position"]) != max(0, last - first + 1):
            raise PipelineError(f"{self!r}: not all changes from {first} to {last} are there")
        if last >= first and needed & {"arrival", "delayed"}:
            raw |= _arrivals(space, link, raw, needed, first)
        return raw

    def _build(self, raw: Raw, columns: Sequence[str], entry: Declared | None) -> pa.RecordBatch:
        try:
            return build(self.host, self.space, len(raw["position"]), raw, columns, entry)
        except (BadBytes, pa.ArrowException, TypeError, ValueError) as error:
            raise PipelineError(f"{self!r} has entries that cannot be read ({error})") from error

    # The database

    @contextmanager
    def _opened(self, reconnect: float = 0) -> Iterator[PostgresSpace]:
        with closing(open_database(self._conninfo, self.space, reconnect)) as space:
            yield space

    def _ask(self, work: Callable[[PostgresSpace, Any], Coroutine[Any, Any, Any]]) -> Any:
        with self._opened() as space:
            return _read(space, work)

    def __repr__(self) -> str:
        return f"PostgresLog({self.where!r}, {self.space!r})"


def open_database(
    conninfo: str, name: str, reconnect: float, *, create: bool = False
) -> PostgresSpace:
    """Open a space of a database; unless `create`, it must exist. A server that is away is waited
    for, for so many seconds."""
    from tupelo.postgres.space import PostgresSpace

    opened = partial(
        PostgresSpace.opened, conninfo, False, name, None, create, None, "pipeline", reconnect
    )
    until = monotonic() + reconnect
    while True:
        try:
            return run_sync(opened)
        except (CannotReach, PeerLost):
            if monotonic() + _PAUSE_SECONDS > until:
                raise
        sleep(_PAUSE_SECONDS)


def spaces_in(conninfo: str) -> list[str]:
    """The names of the spaces of a database."""
    from tupelo.postgres.driver import Database

    async def ask() -> list[str]:
        database = await Database.shared(conninfo, False)
        try:
            async with database.connection() as link:
                rows = await database.run(link, "SELECT name FROM tupelo.spaces ORDER BY name")
                return [name for (name,) in rows]
        finally:
            await database.release()

    return run_sync(ask)


def _read(
    space: PostgresSpace, work: Callable[[PostgresSpace, Any], Coroutine[Any, Any, Any]]
) -> Any:
    """Run statements on one snapshot; they are repeated after a lost connection."""

    async def read(link: Any) -> Any:
        await space.run(link, _BEGIN)
        try:
            await space.run(link, _PLANS)
            return await work(space, link)
        finally:
            await space.database.roll_back(link)

    return run_sync(partial(space.reading, read))


def _select(space: PostgresSpace, link: Any, names: set[str], where: str, **values: int) -> Raw:
    """These columns of some rows, in order of position, as Arrow arrays."""
    kept = sorted(names - {"arrival", "delayed"})
    if len(kept) < len(names):
        kept = sorted({*kept, "entry", "kind"})
    sent: list[str] = []
    for name in kept:
        value, length = _SENT[_type(name)]
        source = _SOURCES.get(name, name)
        sent.append(f"string_agg({value.format(source)}, ''::bytea)")
        if length is not None:
            length = length.format(source)
            sent.append(f"string_agg(int4send(coalesce({length}, -1)), ''::bytea)")
    part = f"(SELECT * {where} ORDER BY position) AS part"
    cells = iter(_columns(space, link, f"SELECT {', '.join(sent)} FROM {part}", **values))
    return {name: _array(_type(name), cells) for name in kept}


def _columns(
    space: PostgresSpace, link: Any, statement: str, **values: object
) -> tuple[bytes | None, ...]:
    """The only row of a statement, whose columns are bytes; None for columns without values."""
    with space.database.translated("reading the log"):
        cursor = link.execute(statement, {"space": space.id, **values}, binary=True)
        row: tuple[bytes | None, ...] = cursor.fetchone()
    return row


def _type(name: str) -> pa.DataType:
    return pa.int64() if name == "entry" else CHANGES.field(name).type


def _array(kind: pa.DataType, cells: Iterator[bytes | None]) -> Any:
    data = next(cells) or b""
    if pa.types.is_integer(kind):
        return pa.array(np.frombuffer(data, ">i8").astype(np.int64))
    if kind in (pa.string(), pa.binary()):
        lengths = np.frombuffer(next(cells) or b"", ">i4").astype(np.int32)
        return _texts(kind, data, lengths)
    seconds = np.frombuffer(data, ">f8").astype(np.float64)
    return pa.array(seconds) if kind == pa.float64() else seconds


def _texts(kind: pa.DataType, data: bytes, lengths: Any) -> pa.Array:
    """The texts or bytes of these lengths; -1 is null."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.maximum(lengths, 0), out=ends[1:])
    absent = lengths < 0
    valid = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent.any() else None
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(data)]
    found = pa.Array.from_buffers(kind, len(lengths), buffers)
    found.validate(full=True)
    return found


def _arrivals(space: PostgresSpace, link: Any, raw: Raw, needed: set[str], first: int) -> Raw:
    """The positions at which the entries of some changes were written or, for a delayed entry that
    is not visible yet, delayed; and for the writing of such an entry, where it was delayed.

    Most entries are written in the batch. If neither the log nor `arrived` has the writing, its
    position is not known; then the arrival is the id of the entry, negative, as it is earlier."""
    entries, positions = raw["entry"].to_numpy(), raw["position"].to_numpy()
    begins = pc.is_in(raw["kind"], pa.array(["written", "delayed"]))
    order = np.lexsort((positions, entries))
    ordered = positions[order]
    group = np.searchsorted(entries[order], entries[order])
    # The last beginning of the same entry up to each change, and before it.
    here = np.where(begins.to_numpy(zero_copy_only=False)[order], np.arange(len(order)), -1)
    latest = np.maximum.accumulate(here)
    found: Raw = {}
    if "arrival" in needed:
        arrivals = np.empty_like(positions)
        arrivals[order] = np.where(latest >= group, ordered[latest], 0)
        unknown = arrivals == 0
        earlier = _earlier(space, link, entries, unknown, first, "written", "delayed")
        arrivals = np.where(unknown, np.where(earlier == 0, -entries, earlier), arrivals)
        found["arrival"] = pa.array(arrivals)
    if "delayed" in needed:
        before = np.append(-1, latest[:-1])
        delayed = np.empty_like(positions)
        delayed[order] = np.where(before >= group, ordered[before], 0)
        written = pc.equal(raw["kind"], "written").to_numpy(zero_copy_only=False)
        unknown = written & (delayed == 0)
        delayed += _earlier(space, link, entries, unknown, first, "delayed")
        found["delayed"] = pa.array(delayed, mask=~written | (delayed == 0))
    return found


def _earlier(
    space: PostgresSpace, link: Any, entries: Any, asked: Any, first: int, *kinds: str
) -> Any:
    """Where the asked ones of these entries last began before a position, by a change of such a
    kind; otherwise 0."""
    found = np.zeros(len(entries), np.int64)
    ids = np.unique(entries[asked])
    if not len(ids):
        return found
    values: dict[str, Any] = {"low": int(ids[0]), "high": int(ids[-1])}
    where = "entry BETWEEN %(low)s AND %(high)s"
    if ids[-1] - ids[0] >= _DENSE * len(ids):
        values, where = {"ids": ids.tolist()}, "entry = ANY(%(ids)b::bigint[])"
    statement = _EARLIER.format(asked=where)
    cells = _columns(space, link, statement, first=first, kinds=list(kinds), **values)
    known, positions = (np.frombuffer(cell or b"", ">i8").astype(np.int64) for cell in cells)
    if len(known):
        order = np.lexsort((positions, known))
        known, positions = known[order], positions[order]
        place = np.searchsorted(known, entries, "right") - 1  # the last of each
        found = np.where(asked & (known[place] == entries), positions[place], 0)
    return found
