"""The format "tupelo" of Spark: the change log as a table or a stream, and the sink."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tupelo.errors import BadArgument
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.logs.segments import ArchivedLog
from tupelo.pipeline.schema import CHANGES, COLUMNS, check_columns, ddl_of, schema_of
from tupelo.pipeline.sink import BatchWriter, StreamWriter, WriteOptions
from tupelo.pipeline.source.locations import JoinedLog, name_of, resolve
from tupelo.pipeline.source.options import ReadOptions
from tupelo.pipeline.source.reading import TableReader
from tupelo.pipeline.source.streaming import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TupeloSource(DataSource):
    """spark.read, spark.readStream, df.write and df.writeStream, each .format("tupelo")."""

    @classmethod
    def name(cls) -> str:
        return "tupelo"

    def schema(self) -> str:
        options = ReadOptions.read(self.options)
        return ddl_of(schema_of(options.columns, options.entry), comments=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.read(self.options)
        return TableReader(options, _columns(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = ReadOptions.read(self.options)
        return StreamReader(options, _columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(WriteOptions.read(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return StreamWriter(WriteOptions.read(self.options), schema, overwrite)


class PushingSource(TupeloSource):
    """The same, with `pushdown=true` by default: for a Spark that keeps filters apart."""

    def reader(self, schema: StructType) -> DataSourceReader:
        self.options.setdefault("pushdown", "true")
        return super().reader(schema)


def _columns(schema: StructType, options: ReadOptions) -> list[str]:
    """The requested columns, by the user's or our own schema."""
    names: list[str] = schema.fieldNames()
    check_columns(names, options.entry)
    ours = schema_of(names, options.entry)
    given: Any = to_arrow_schema(schema, timezone="UTC")
    if not ours.equals(given):
        raise BadArgument("schema", ddl_of(ours), schema.simpleString())
    return names


_CHECKED = {"parquet.page.verify-checksum.enabled": "true"}
"""Altered data on disk is an error, as in our own reader."""
_PATTERN = frozenset("[]{}*?\\")
"""Characters that make a path a pattern for Spark."""


def changes_of(
    spark: SparkSession, locations: Sequence[str], options: Mapping[str, str]
) -> DataFrame:
    given = {**options, "paths": json.dumps([str(location) for location in locations])}
    parsed = ReadOptions.read(given)
    through_us = spark.read.format("tupelo").options(**given)
    if parsed.after or parsed.entry or parsed.template or parsed.as_of is not None:
        return through_us.load()  # Spark cannot decode entries.
    logs = resolve(parsed)
    sealed = {name_of(log): found for log in logs if (found := sealed_part(log)) is not None}
    # With a scheme: the cluster may have another default file system.
    files = [f"file:{file}" for log in sealed.values() for file in log.files()]
    if not files or any(not _PATTERN.isdisjoint(file) for file in files):
        return through_us.load()
    if len({name_of(log) for log in logs}) < len(logs):
        return through_us.load()  # With equal names the rest could not be told apart.
    table = spark.read.options(**_CHECKED).schema(ddl_of(CHANGES, comments=True)).parquet(*files)
    if parsed.kinds is not None:
        table = table.where(table["kind"].isin(*parsed.kinds))
    table = table.select(*(parsed.columns or COLUMNS))
    if all(isinstance(log, ArchivedLog) for log in logs):
        return table
    after = {name: log.last for name, log in sealed.items()}
    return table.unionAll(through_us.option("after", json.dumps(after)).load())


def sealed_part(log: Log) -> ArchivedLog | None:
    """The sealed part of a log, at this moment."""
    if isinstance(log, JoinedLog):
        return log.sealed()
    return log if isinstance(log, ArchivedLog) else None
