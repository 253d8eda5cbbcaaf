"""Push-down by default is for a Spark that keeps the filters of each use of a table apart."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import Filter, GreaterThanOrEqual
from pyspark.sql.types import LongType, StructField, StructType

import tupelo
from tupelo.pipeline.source.datasource import PushingSource, TupeloSource
from tupelo.pipeline.source.filters import is_later, is_right, keeps_filters_apart


def test_the_guard_knows_this_spark(spark):
    """If this fails with a new Spark, its fault is still there: see decision 0065."""
    assert keeps_filters_apart(spark) == is_later(spark.version) == is_right(spark)


@pytest.mark.parametrize(
    ("version", "later"),
    [
        *[("4.2.1", False), ("4.3.0", False), ("4.3.9-amzn-0", False), ("unknown", False)],
        *[("4.4.0-SNAPSHOT", True), ("4.10.0", True), ("5.0.0", True)],
    ],
)
def test_which_versions_are_asked(version, later):
    assert is_later(version) is later


@pytest.mark.parametrize(
    ("source", "options", "is_pushed"),
    [
        (TupeloSource, {}, False),
        (TupeloSource, {"pushdown": "true"}, True),
        (PushingSource, {}, True),
        (PushingSource, {"pushdown": "false"}, False),
    ],
)
def test_what_is_pushed_down_by_default(tmp_path, source, options, is_pushed):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        space.write_all([("job", n) for n in range(9)])
    made = source({"path": str(path), **options})
    wish: Filter = GreaterThanOrEqual(("position",), 8)
    reader = made.reader(StructType([StructField("position", LongType())]))
    assert [*reader.pushFilters([wish])] == ([] if is_pushed else [wish])
    parts = [part for task in reader.partitions() for part in task.parts]
    assert sum(part.rows for part in parts) == (2 if is_pushed else 9)
