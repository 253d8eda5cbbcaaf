"""The sink: rows become entries of a space at a host, each task's in one transaction.

Exactly once, also if tasks are tried again or a query is restarted: with its entries a task writes
what it has sunk, (query, batch, partition), and before it commits it looks whether another attempt
has, or is about to. One who is about to is waited for; if two wait for each other the space finds
the circle, and one gives way. Of older batches nothing is kept: one entry for each partition.

That needs the same rows in the same partition when a batch is replayed, as Spark gives them for
what does not depend on chance; if their number differs, that is an error and not a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tupelo.errors import BadArgument, CannotSink, Deadlock, PeerLost
from tupelo.federation.client.handles import RemoteTransaction
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.links.address import parse_url
from tupelo.pipeline.logs.remote import Way
from tupelo.pipeline.sink.rows import Encoding, encoding_of
from tupelo.space.dual_api import run_sync
from tupelo.space.protected import SUNK
from tupelo.values.kind import entry
from tupelo.values.lease import check_lease
from tupelo.values.parts import Between, Not
from tupelo.values.scope import HERE

ROWS_AT_ONCE = 2_000
"""So many entries go in one message."""
RIVAL_SECONDS = 120.0
"""So long another attempt of the same task is waited for."""
FORGET_SECONDS = 86_400.0
"""So long a batch is remembered that nobody can write again, since its id is its own. An attempt of
one of its tasks may come late; none comes a day later."""

_BATCH_MAX = 2**63 - 1
_KNOWN = {
    name.lower(): name
    for name in (
        *("path", "entry", "lease", "writeId", "password", "tls", "reconnect"),
        *("checkpointLocation", "queryName"),
    )
}


@entry(SUNK)
@dataclass(frozen=True)
class Sunk:
    """What a space remembers of a query that writes to it: the last batch of which a partition was
    written, of so many rows."""

    query: Any = None
    partition: Any = None
    batch: Any = None
    attempt: Any = None
    rows: int | None = None


@dataclass(frozen=True)
class WriteOptions:
    """Where rows go, and as what.

    path       tupelo://host:port/space
    entry      "module:Class", a dataclass whose fields are the columns; else entries are tuples
    lease      the seconds for which the entries live; else for ever
    writeId    of a batch: what is written once under this id is not written again
    password   of the space
    tls        true or false: whether the host is met under TLS
    reconnect  the seconds for which a task waits for a host that is away: 10 if left out
    """

    address: str
    space: str
    entry: str | None
    lease: float | None
    write_id: str | None
    way: Way

    @classmethod
    def read(cls, options: Mapping[str, str]) -> WriteOptions:
        given = {key.lower(): value for key, value in options.items()}
        unknown = given.keys() - _KNOWN.keys()
        if unknown:
            known = ", ".join(_KNOWN.values())
            raise BadArgument("option", f"one of {known}", ", ".join(sorted(unknown)))
        path = given.get("path", "")
        if "://" not in path:
            expected = "tupelo://host:port/space: a space is written to at its host"
            raise BadArgument("path", expected, path or None)
        address, space = parse_url(path)
        if space is None:
            raise BadArgument("path", "one that names a space: tupelo://host:port/space", path)
        return cls(
            str(address),
            space,
            given.get("entry"),
            _lease(given.get("lease")),
            given.get("writeid") or None,
            Way.read(given),
        )


def _lease(value: str | None) -> float | None:
    try:
        return None if value is None else check_lease(float(value))
    except ValueError:
        raise BadArgument("lease", "a number of seconds", value) from None


@dataclass
class Wrote(WriterCommitMessage):
    """What a task has done: so many entries, or none since it was done before."""

    partition: int
    rows: int
    again: bool = False


class _Sink:
    """What batches and streams have in common."""

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
            txn = space.transaction()  # It ends with the link, however slowly the rows come.
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
                with suppress(Exception):  # It would hide the error, and ends with the link anyway.
                    txn.abort()
                raise
            else:
                txn.abort()
        return self._again(rival)

    def _connect(self) -> RemoteSpace:
        options = self._options
        return options.way.connect(options.address, options.space, patiently=True)

    def _write_rows(
        self, space: RemoteSpace, txn: RemoteTransaction, batch: pa.RecordBatch
    ) -> None:
        items = self._encoding.entries(batch)
        self._rows += len(items)
        for start in range(0, len(items), ROWS_AT_ONCE):
            some = items[start : start + ROWS_AT_ONCE]
            lease = self._options.lease
            run_sync(partial(space.write_items, some, lease, txn, None, 0, None, leases=False))

    def _seal(self, space: RemoteSpace, txn: RemoteTransaction) -> Sunk | None:
        """Write with the entries what they are; the one of another attempt that was first."""
        older = Sunk(self._query, self._partition, Between(-1, self._batch - 1))
        space.take_all(older, txn=txn)
        mine = Sunk(self._query, self._partition, self._batch, self._attempt, self._rows)
        space.write(mine, lease=self._forget_seconds, txn=txn)
        try:
            rival = self._look(space, txn)
        except Deadlock:  # Each waits for what becomes of the other: we give way.
            txn.abort()
            rival = self._look(space)
            if rival is None:
                raise CannotSink(
                    f"another attempt to write partition {self._partition} was under way, and"
                    " failed as well"
                ) from None
        return rival

    def _look(self, space: RemoteSpace, txn: RemoteTransaction | None = None) -> Sunk | None:
        """What another attempt has written, of this batch or of a later one. One that is about to
        is waited for; CannotSink if it still is when the time is up."""
        theirs = Sunk(
            self._query, self._partition, Between(self._batch, _BATCH_MAX), Not(self._attempt)
        )
        where = {"scope": HERE} if txn is None else {"txn": txn}
        begun = monotonic()
        found: Sunk | None = space.read(theirs, wait=RIVAL_SECONDS, if_exists=True, **where)
        # That there is none is said at once; after a long time it may only not be known.
        if found is None and monotonic() - begun > RIVAL_SECONDS / 2:
            raise CannotSink(
                f"another attempt to write partition {self._partition} of batch {self._batch} is"
                " under way, and does not end"
            )
        return found

    def _find_out(self, lost: PeerLost) -> Sunk:
        """The link was lost. If that was while it was committed, it may have been done."""
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
