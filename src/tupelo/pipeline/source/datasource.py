"""The format "tupelo" of Spark: the change log as a table, as a stream, and a place to write to."""

from __future__ import annotations

from typing import Any

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
from tupelo.pipeline.schema import check_columns, ddl_of, schema_of
from tupelo.pipeline.sink.writing import BatchWriter, StreamWriter, WriteOptions
from tupelo.pipeline.source.options import ReadOptions
from tupelo.pipeline.source.reading import TableReader
from tupelo.pipeline.source.streaming import StreamReader


class TupeloSource(DataSource):
    """spark.read, spark.readStream, df.write and df.writeStream, each .format("tupelo")."""

    @classmethod
    def name(cls) -> str:
        return "tupelo"

    def schema(self) -> str:
        options = ReadOptions.read(self.options)
        return ddl_of(schema_of(options.columns, options.entry))

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


def _columns(schema: StructType, options: ReadOptions) -> list[str]:
    """The columns that are wanted: Spark has been told by the user, or by us."""
    names: list[str] = schema.fieldNames()
    check_columns(names, options.entry)
    ours = schema_of(names, options.entry)
    given: Any = to_arrow_schema(schema, timezone="UTC")
    if not ours.equals(given):
        raise BadArgument("schema", ddl_of(ours), schema.simpleString())
    return names
