"""Whether Spark may push filters down by default.

Up to 4.3, Spark keeps the filters of one use of a Python data source with the source, and its other
uses then miss rows (decision 0065). A later version is asked to show that it does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAULTY = (4, 3)
"""The last version of Spark that is known to mix up filters; it is not asked."""

_NUMBERS = range(3)


class NumbersSource(DataSource):
    """The smallest source with push-down: the rows 0, 1, 2, or those that a filter wants."""

    @classmethod
    def name(cls) -> str:
        return "tupelo_numbers"

    def schema(self) -> str:
        return "n long"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NumbersReader()


class _NumbersReader(DataSourceReader):
    def __init__(self) -> None:
        self._wanted = [*_NUMBERS]

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        for pushed in filters:
            if isinstance(pushed, EqualTo):
                self._wanted = [n for n in self._wanted if n == pushed.value]
            else:
                yield pushed

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return ((n,) for n in self._wanted)


def is_right(spark: SparkSession) -> bool:
    """Whether each use of a table has its own filters in this Spark."""
    return is_later(spark.version) and keeps_filters_apart(spark)


def is_later(version: str) -> bool:
    """Whether this is a later version than those with the fault."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) > FAULTY


def keeps_filters_apart(spark: SparkSession) -> bool:
    """Try it: three uses of one table, with different filters."""
    spark.dataSource.register(NumbersSource)
    table = spark.read.format(NumbersSource.name()).load()
    one, two = table.where("n = 1"), table.where("n = 2")
    try:
        rows = one.unionAll(two).unionAll(table).collect()
    except PySparkException:  # push-down is switched off
        return False
    return sorted(row.n for row in rows) == sorted([1, 2, *_NUMBERS])
