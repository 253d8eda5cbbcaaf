"""DuckDB, which answers on a small log before Spark has started. It runs in this process, on one
machine, and reads the columns that a statement needs through the same readers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from tupelo.errors import PipelineError, TupeloError
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.schema import schema_of
from tupelo.pipeline.source.living import living
from tupelo.pipeline.source.locations import LogPart, bounds_of
from tupelo.pipeline.source.options import ReadOptions
from tupelo.pipeline.sql.statements import as_duckdb
from tupelo.pipeline.sql.tables import Tables

_SETTINGS = (
    "set TimeZone = 'UTC'",
    "set default_null_order = 'nulls_first_on_asc_last_on_desc'",  # as Spark
    # Functions of Spark that statements about logs use.
    "create macro get_json_object(text, path) as json_extract_string(text, path)",
    "create macro unix_micros(moment) as epoch_us(moment)",
    "create macro xxhash64(text) as hash(text)",
    "create macro make_dt_interval(d, h, m, s) as to_microseconds(cast(s * 1000000 as bigint))",
    # A statement reads logs, and nothing else.
    "set enable_external_access = false",
    "set lock_configuration = true",
)
_WHOLE = pa.decimal128(38, 0)
"""DuckDB's type of a sum of integers, which is Spark's bigint."""
_PART = re.compile(r'"((?:[^"]|"")*)"(\.?)|([^." ]+)(\.?)')


class LogTable(ds.Dataset):  # type: ignore[misc]
    """Logs up to their present ends, as a dataset of Arrow: DuckDB says which columns and rows it
    needs. `failed` is the error with which reading ended."""

    def __init__(self, logs: Sequence[Log], options: ReadOptions) -> None:
        self._options = options
        self._parts = [LogPart(log, *bounds_of(log)) for log in logs]
        self.failed: TupeloError | None = None

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self._options.columns, self._options.entry)

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None) -> _Scanner:
        """What DuckDB asks for: these columns of the rows that match an expression of Arrow."""
        names = list(columns or self.schema.names)
        # Arrow does not tell which columns an expression uses; all that it could are read.
        used = set(re.findall(r"\w+", str(filter))) - set(names)
        found = self._batches([*names, *(name for name in self.schema.names if name in used)])
        if filter is not None:
            found = (batch.filter(filter).select(names) for batch in found)
        schema = schema_of(names, self._options.entry)
        return _Scanner(pa.RecordBatchReader.from_batches(schema, found))

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        moment, entry = self._options.as_of, self._options.entry
        try:
            for part in self._parts:
                if moment is None:
                    yield from part.batches(columns, entry)
                else:
                    yield from living(part.log, moment, columns, entry)
        except TupeloError as error:
            self.failed = error
            raise


class _Scanner:
    """Arrow's own scanner reads ahead in threads, which go on when DuckDB has enough rows."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader
        self.projected_schema = reader.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader


class DuckDB:
    """An engine of `tupelo sql`, and of the audit."""

    name = "DuckDB"

    def __init__(self) -> None:
        self._db = duckdb.connect()
        for setting in _SETTINGS:
            self._db.execute(setting)
        self._made: dict[str, LogTable | pa.Table] = {}

    def ask(self, statement: str, tables: Tables, limit: int | None = None) -> pa.Table:
        statement = as_duckdb(statement)
        try:
            with self.complaints():
                for name in self._db.get_table_names(statement, qualified=True):
                    table = tables.named(_parts(name))
                    options = ReadOptions.read(tables.options_of(table))
                    self.add(table, LogTable(tables.logs_of(table, options), options))
                return self.run(statement, limit)
        finally:
            for made in self._made:
                self._db.unregister(made)
            self._made.clear()

    def add(self, name: str, table: LogTable | pa.Table) -> None:
        """Make a table for statements."""
        self._db.register(name, table)
        self._made[name] = table

    def run(self, statement: str, limit: int | None = None) -> pa.Table:
        """The result of a statement in DuckDB's SQL."""
        found = self._db.sql(statement)
        if found is None:  # It has no result.
            return pa.table({})
        rows: pa.Table = (found if limit is None else found.limit(limit)).to_arrow_table()
        for place, field in enumerate(rows.schema):
            if field.type == _WHOLE:
                with suppress(pa.ArrowInvalid):  # beyond 64 bits
                    whole = rows.column(place).cast(pa.int64())
                    rows = rows.set_column(place, field.name, whole)
        return rows

    @contextmanager
    def complaints(self) -> Iterator[None]:
        """Raises our own error instead of DuckDB's, or DuckDB's in one line."""
        try:
            yield
        except duckdb.Error as error:
            for table in self._made.values():
                if isinstance(table, LogTable) and table.failed is not None:
                    raise table.failed from error
            told = str(error).partition("\n")[0]
            raise PipelineError(f"{told} (says DuckDB; for Spark's SQL, --engine spark)") from error

    def close(self) -> None:
        self._db.close()


def _parts(name: str) -> list[str]:
    """The parts of a name that DuckDB has qualified: "a b".c AS d."""
    parts = []
    for quoted, dot, plain, plain_dot in _PART.findall(name):
        parts.append(plain or quoted.replace('""', '"'))
        if not (dot or plain_dot):
            break
    return parts
