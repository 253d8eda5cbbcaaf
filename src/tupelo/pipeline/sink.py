"""The sink: rows become entries of a space at a host or in a database; each task writes in one
transaction.

Exactly once, also if tasks are repeated or a query is restarted: with its entries a task writes a
record (query, batch, partition), and before it commits it checks for the record of another attempt.
If another attempt is about to commit, it waits; if two wait for each other, the space detects the
deadlock and one gives way. In a database, attempts at the same partition check one after another,
under a lock until the commit. Only the record of the last batch is kept, one entry per partition.

A replayed batch must have the same rows in the same partitions, as Spark guarantees for
deterministic queries; a different number of rows is an error, not a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from itertools import repeat
from time import monotonic
from typing import TYPE_CHECKING, Any, get_type_hints
from uuid import UUID, uuid4

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as spark
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tupelo.errors import BadArgument, CannotSink, Deadlock, JournalFailed, PeerLost
from tupelo.federation.links.address import is_database, parse_url
from tupelo.pipeline.declared import imported, plain_type
from tupelo.pipeline.logs.database import open_database
from tupelo.pipeline.logs.remote import Way
from tupelo.pipeline.source.options import known_options
from tupelo.space.capacity import SUNK
from tupelo.space.dual_api import run_sync
from tupelo.values.entry import SCALARS, FrozenEntry, Shape, shape_of, thaw, types_of
from tupelo.values.kind import Kind, entry, kind_of
from tupelo.values.lease import check_lease
from tupelo.values.parts import Between, Not
from tupelo.values.scope import HERE

if TYPE_CHECKING:
    from tupelo.postgres.space import PostgresSpace
    from tupelo.postgres.transactions import PostgresTransaction

_SCALARS: dict[type[spark.DataType], type] = {
    spark.StringType: str,
    spark.ByteType: int,
    spark.ShortType: int,
    spark.IntegerType: int,
    spark.LongType: int,
    spark.FloatType: float,
    spark.DoubleType: float,
    spark.BooleanType: bool,
    spark.BinaryType: bytes,
    spark.TimestampType: datetime,
    spark.TimestampNTZType: datetime,
    spark.DecimalType: Decimal,
}


class Encoding:
    """How the rows of one schema become entries: instances of a dataclass, or tuples; which columns
    are strings of UUIDs, and which are never null."""

    def __init__(
        self, name: str | None, columns: list[str], uuids: list[int], never_null: list[int]
    ) -> None:
        self._name = name
        self._columns = columns
        self._uuids = uuids
        self._never_null = never_null

    def entries(self, batch: pa.RecordBatch) -> list[FrozenEntry]:
        """The entries of some rows. Raises CannotSink if a row does not fit."""
        for place in self._never_null:
            name = self._columns[place]
            if batch.column(name).null_count:
                raise CannotSink(
                    f"the column {name} is null in some row, and in {self._name} it is never None"
                )
        columns = [batch.column(name).to_pylist() for name in self._columns]
        for place in self._uuids:
            columns[place] = [self._uuid(place, text) for text in columns[place]]
        kind = None if self._name is None else kind_of(imported(self._name))
        rows = zip(*columns, strict=True)
        if batch.num_rows and not any(batch.column(name).null_count for name in self._columns):
            # Each column has values of one type then, so all entries have one shape.
            one = shape_of(kind, tuple([type(column[0]) for column in columns]))
            return list(zip(repeat(one, batch.num_rows), rows, strict=True))
        shapes: dict[tuple[type, ...], Shape] = {}
        items = []
        for fields in rows:
            types = types_of(fields)
            shape = shapes.get(types)
            if shape is None:
                shape = shapes[types] = shape_of(kind, types)
            items.append((shape, fields))
        return items

    def _uuid(self, place: int, text: str | None) -> UUID | None:
        try:
            return None if text is None else UUID(text)
        except ValueError:
            raise CannotSink(
                f"the column {self._columns[place]} is {text!r} in some row, which is no UUID"
            ) from None


def encoding_of(schema: spark.StructType, entry: str | None) -> Encoding:
    """The encoding for such rows. Raises CannotSink if there is none."""
    kinds = {field.name: _python_type(field.name, field.dataType) for field in schema.fields}
    if len(kinds) != len(schema.fields):
        raise CannotSink("two columns have the same name")
    if not kinds:
        raise CannotSink("rows without columns are no entries")
    if entry is None:
        return Encoding(None, list(kinds), [], [])
    hints = _declared(entry, kinds)
    columns = list(hints)
    uuids = [
        place
        for place, name in enumerate(columns)
        if kinds[name] is str and plain_type(hints[name]) is UUID
    ]
    never_null = [place for place, name in enumerate(columns) if hints[name] in SCALARS]
    return Encoding(entry, columns, uuids, never_null)


def _declared(entry: str, kinds: dict[str, type]) -> dict[str, Any]:
    """The fields of a dataclass in order, with their declared types."""
    cls = imported(entry)
    kind: Kind = kind_of(cls)
    hints = get_type_hints(cls)
    missing = [name for name in kind.names if name not in kinds]
    extra = [name for name in kinds if name not in kind.names]
    if missing or extra:
        raise CannotSink(
            f"the columns do not fit {entry}: "
            + "; ".join(
                [f"there is no column {', '.join(missing)}"] * bool(missing)
                + [f"it has no field {', '.join(extra)}"] * bool(extra)
            )
        )
    for name in kind.names:
        hint = plain_type(hints[name])
        if hint in SCALARS and not _fits(kinds[name], hint):
            raise CannotSink(
                f"the column {name} does not fit {entry}: it is {kinds[name].__name__}, and the"
                f" field is {hint.__name__}"
            )
    return {name: hints[name] for name in kind.names}


def _fits(found: type, wanted: type) -> bool:
    return found is wanted or (found is str and wanted is UUID)


def _python_type(name: str, kind: spark.DataType) -> type:
    """The Python type of the values of a column."""
    found = _SCALARS.get(type(kind))
    if found is not None:
        return found
    if isinstance(kind, spark.ArrayType):
        _python_type(f"{name}[]", kind.elementType)
        return list
    if isinstance(kind, spark.StructType):
        for field in kind.fields:
            _python_type(f"{name}.{field.name}", field.dataType)
        return dict
    raise CannotSink(
        f"the column {name} is {kind.simpleString()}, which no entry can hold: cast it to string,"
        " a number, binary or timestamp"
    )


ROWS_AT_ONCE = 2_000
"""The number of entries in one message."""
RIVAL_SECONDS = 120.0
"""How long to wait for another attempt of the same task."""
FORGET_SECONDS = 86_400.0
"""How long the record of a batch write with a random id is kept: a late attempt of a task may need
it."""

_BATCH_MAX = 2**63 - 1
_KNOWN = (
    *("path", "entry", "lease", "writeId", "password", "tls", "reconnect"),
    *("checkpointLocation", "queryName"),
)


@entry(SUNK)
@dataclass(frozen=True)
class Sunk:
    """The record of a query in a space: its last batch in a partition, and the number of rows."""

    query: Any = None
    partition: Any = None
    batch: Any = None
    attempt: Any = None
    rows: int | None = None


@dataclass(frozen=True)
class WriteOptions:
    """Where rows go, and as what.

    path       tupelo://host:port/space or postgresql://host/database?space=name
    entry      "module:Class", a dataclass whose fields are the columns; else entries are tuples
    lease      the seconds for which the entries live; else for ever
    writeId    of a batch: what is written once under this id is not written again
    password   of the space
    tls        true or false: whether the host is met under TLS
    reconnect  the seconds for which a task waits for a host that is away: 10 if left out
    """

    address: str = field(repr=False)  # With that of a database there may be a password.
    is_database: bool
    space: str
    entry: str | None
    lease: float | None
    write_id: str | None
    way: Way

    @classmethod
    def read(cls, options: Mapping[str, str]) -> WriteOptions:
        given = known_options(options, _KNOWN)
        path = given.get("path", "")
        if "://" not in path:
            expected = "tupelo://host:port/space: a space is written to at its host"
            raise BadArgument("path", expected, path or None)
        address, space = _database(path) if is_database(path) else _host(path)
        return cls(
            address,
            is_database(path),
            space,
            given.get("entry"),
            _lease(given.get("lease")),
            given.get("writeid") or None,
            Way.read(given),
        )


def _host(url: str) -> tuple[str, str]:
    address, space = parse_url(url)
    if space is None:
        raise BadArgument("path", "one that names a space: tupelo://host:port/space", url)
    return str(address), space


def _database(url: str) -> tuple[str, str]:
    from tupelo.postgres.connect import split_url

    conninfo, space = split_url(url)
    if space is None:
        expected = "one that names a space: postgresql://host/database?space=jobs"
        raise BadArgument("path", expected, url)
    return conninfo, space


def _lease(value: str | None) -> float | None:
    try:
        return None if value is None else check_lease(float(value))
    except ValueError:
        raise BadArgument("lease", "a number of seconds", value) from None


@dataclass
class Wrote(WriterCommitMessage):
    """The result of a task: the number of entries, or none if another attempt had written them."""

    partition: int
    rows: int
    again: bool = False


class _Sink:
    """Common part of batch and stream writers."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise CannotSink('a space cannot be overwritten: use mode("append")')
        self._options = options
        self._encoding = encoding_of(schema, options.entry)

    def _write(
        self,
        query: str,
        batch: int,
        rows: Iterator[pa.RecordBatch],
        forget_seconds: float | None = None,
    ) -> Wrote:
        context = TaskContext.get()
        assert context is not None
        part = context.partitionId()
        return SinkTask(
            self._options, self._encoding, query, batch, part, forget_seconds=forget_seconds
        ).write(rows)


class BatchWriter(_Sink, DataSourceArrowWriter):
    """df.write.format("tupelo")"""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._id = options.write_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        forget = FORGET_SECONDS if self._options.write_id is None else None
        return self._write(f"write {self._id}", 0, iterator, forget)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """df.writeStream.format("tupelo")"""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise CannotSink("Spark does not say which batch of which query this is")
        return self._write(query, int(batch), iterator)


class SinkTask:
    """One attempt to write one partition of one batch."""

    def __init__(
        self,
        options: WriteOptions,
        encoding: Encoding,
        query: str,
        batch: int,
        partition: int,
        *,
        forget_seconds: float | None = None,
    ) -> None:
        self._options = options
        self._encoding = encoding
        self._query = query
        self._batch = batch
        self._partition = partition
        self._forget_seconds = forget_seconds
        self._attempt = uuid4().hex
        self._rows = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> Wrote:
        first = next((batch for batch in batches if batch.num_rows), None)
        with closing(self._connect()) as space:
            done = self._look(space)
            if done is not None:
                more = sum(batch.num_rows for batch in batches)
                self._rows = more if first is None else first.num_rows + more
                return self._again(done)
            if first is None:
                return Wrote(self._partition, 0)
            txn = space.transaction()  # It ends with the connection, however slowly the rows come.
            try:
                self._write_rows(space, txn, first)
                for batch in batches:
                    self._write_rows(space, txn, batch)
                rival = self._seal(space, txn)
                if rival is None:
                    txn.commit()
                    return Wrote(self._partition, self._rows)
            except PeerLost as lost:
                rival = self._find_out(lost)
            except BaseException:
                with suppress(Exception):  # It ends with the connection.
                    txn.abort()
                raise
            else:
                txn.abort()
        return self._again(rival)

    def _connect(self) -> Any:
        options = self._options
        if not options.is_database:
            return options.way.connect(options.address, options.space, patiently=True)
        space = open_database(options.address, options.space, options.way.reconnect, create=True)
        if space.options.evict is not None:
            space.close()
            raise CannotSink(
                f"the space {options.space!r} in the database makes room by removing entries, also"
                " the records of what was written"
            )
        return space

    def _write_rows(self, space: Any, txn: Any, batch: pa.RecordBatch) -> None:
        items = self._encoding.entries(batch)
        self._rows += len(items)
        lease = self._options.lease
        for start in range(0, len(items), ROWS_AT_ONCE):
            some = items[start : start + ROWS_AT_ONCE]
            if self._options.is_database:
                entries = [thaw(shape, fields) for shape, fields in some]
                space.write_all(entries, lease=lease, txn=txn, wait=0)
            else:
                run_sync(partial(space.write_items, some, lease, txn, None, 0, None, leases=False))

    def _seal(self, space: Any, txn: Any) -> Sunk | None:
        """Write the record with the entries. Returns the record of an earlier attempt, if any."""
        if self._options.is_database:
            self._lock(space, txn)
        older = Sunk(self._query, self._partition, Between(-1, self._batch - 1))
        space.take_all(older, txn=txn)
        mine = Sunk(self._query, self._partition, self._batch, self._attempt, self._rows)
        space.write(mine, lease=self._forget_seconds, txn=txn)
        try:
            rival = self._look(space, txn)
        except Deadlock:  # Two attempts wait for each other: this one gives way.
            txn.abort()
            rival = self._look(space)
            if rival is None:
                raise CannotSink(
                    f"another attempt to write partition {self._partition} was under way, and"
                    " failed as well"
                ) from None
        return rival

    def _lock(self, space: PostgresSpace, txn: PostgresTransaction) -> None:
        """Wait for other attempts to end, until this one does."""
        name = msgspec.msgpack.encode((space.id, self._query, self._partition))
        key = int.from_bytes(blake2b(name, digest_size=8).digest(), "big", signed=True)

        async def lock(link: Any) -> tuple[None, None]:
            limit = "SELECT set_config('lock_timeout', %(limit)s, true)"
            await space.run(link, limit, limit=f"{RIVAL_SECONDS:.0f}s")
            await space.run(link, "SELECT pg_advisory_xact_lock(%(key)s)", key=key)
            await space.run(link, limit, limit="0")
            return None, None

        try:
            run_sync(partial(txn.run, lock))
        except JournalFailed as error:
            raise self._endless() from error

    def _endless(self) -> CannotSink:
        return CannotSink(
            f"another attempt to write partition {self._partition} of batch {self._batch} is"
            " under way, and does not end"
        )

    def _look(self, space: Any, txn: Any = None) -> Sunk | None:
        """The record that another attempt wrote for this or a later batch. Waits for an attempt
        that is about to commit; raises CannotSink after a timeout."""
        theirs = Sunk(
            self._query, self._partition, Between(self._batch, _BATCH_MAX), Not(self._attempt)
        )
        where = {"scope": HERE} if txn is None else {"txn": txn}
        if self._options.is_database:  # It is waited for by the lock.
            there: Sunk | None = space.read(theirs, wait=0, **where)
            return there
        begun = monotonic()
        found: Sunk | None = space.read(theirs, wait=RIVAL_SECONDS, if_exists=True, **where)
        # An immediate None is certain; after a long wait it may mean that it is not known.
        if found is None and monotonic() - begun > RIVAL_SECONDS / 2:
            raise self._endless()
        return found

    def _find_out(self, lost: PeerLost) -> Sunk:
        """The connection was lost. If that was during the commit, find out whether it was done."""
        if lost.in_doubt:
            with closing(self._connect()) as space:
                mine = Sunk(self._query, self._partition, attempt=self._attempt)
                done: Sunk | None = space.read(mine, wait=RIVAL_SECONDS, if_exists=True, scope=HERE)
            if done is not None:
                return done
        raise lost

    def _again(self, done: Sunk) -> Wrote:
        if done.batch == self._batch and done.rows != self._rows:
            raise CannotSink(
                f"partition {self._partition} of batch {self._batch} was written with {done.rows}"
                f" rows before, and has {self._rows} now: a query whose partitions depend on"
                " chance cannot be written exactly once"
            )
        return Wrote(self._partition, self._rows, again=done.attempt != self._attempt)
