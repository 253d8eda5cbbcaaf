"""Spark, for logs of any size, on this machine or a cluster."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from tupelo.errors import PipelineError
from tupelo.pipeline.source.datasource import changes_of
from tupelo.pipeline.spark import complaints
from tupelo.pipeline.sql.tables import CHANGES, ENTRIES, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISSING = "TABLE_OR_VIEW_NOT_FOUND"
_NOT_A_FILE = "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"
"""Spark's error for tupelo.presence, which it reads like parquet.`a/file`."""
_PART = re.compile(r"`((?:[^`]|``)*)`")
_SAYS_IT_ALL = "SQLQueryContextLogger"
"""Spark's logger that prints every failing statement with its stack."""


class Spark:
    """An engine of `tupelo sql`. A table is created when Spark does not find it, so that only the
    spaces in the statement are read."""

    name = "Spark"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        PySparkLogger.getLogger(_SAYS_IT_ALL).setLevel(logging.CRITICAL)

    def ask(self, statement: str, tables: Tables, limit: int | None = None) -> pa.Table:
        made: list[str] = []
        try:
            while True:
                try:
                    with complaints():
                        answer = self._spark.sql(statement)
                        return (answer if limit is None else answer.limit(limit)).toArrow()
                except PipelineError as error:
                    name = _missing(error.__cause__, tables)
                    if name is None or name in made:  # in made: it is not what Spark looks for
                        raise
                self.make(name, tables)
                made.append(name)
        finally:
            for name in made:
                self._spark.catalog.dropTempView(name)

    def make(self, name: str, tables: Tables) -> None:
        """Make this table a temporary view."""
        options = tables.options_of(name)
        table = changes_of(self._spark, json.loads(options.pop("paths")), options)
        if name not in (CHANGES, ENTRIES) and "space" not in options:
            table = table.where(table["space"] == name)
        quoted = name.replace("`", "``")
        table.createOrReplaceTempView(f"`{quoted}`")

    def close(self) -> None:
        """The session stays, for others in this process."""


def _missing(error: BaseException | None, tables: Tables) -> str | None:
    """The table that Spark did not find; None if the error is another one."""
    if not isinstance(error, AnalysisException):
        return None
    parameters = error.getMessageParameters() or {}
    if error.getCondition() == _NOT_A_FILE and "tupelo" in parameters.values():
        raise PipelineError("a name with a dot in it is quoted: `tupelo.presence`") from error
    if error.getCondition() != _MISSING:
        return None
    parts = _PART.findall(parameters.get("relationName", ""))
    return tables.named([part.replace("``", "`") for part in parts])
