"""The change log on Spark: its schema, its archive, and the data source `tupelo`.

spark = tupelo.pipeline.session()
changes = spark.read.format("tupelo").load("jobs.tupelo")
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from tupelo.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["changes", "session", "template"]


def session(master: str | None = None, **options: str | int | bool) -> SparkSession:
    """A Spark session with the format "tupelo".

    `master` is Spark's ("local[4]", "spark://host:7077") or an address of Spark Connect
    ("sc://host"); None is this machine, all of it. The options are Spark's, and win over ours:
    session(**{"spark.sql.shuffle.partitions": 8}). A session that is there already is used as
    it is.
    """
    if find_spec("pyspark") is None:
        raise PipelineError('the pipeline needs pyspark: pip install "tupelo[pipeline]"')
    from tupelo.pipeline.spark import start

    return start(master, options)


def changes(spark: SparkSession, *locations: str, **options: str) -> DataFrame:
    """The changes of some logs, as spark.read.format("tupelo") has them, with the same options.

    What is sealed is read by Spark's own reader of Parquet, which is faster: it looks only at the
    columns that are used, and its rows do not go through Python.
    """
    from tupelo.pipeline.source.datasource import changes_of

    return changes_of(spark, locations, options)


def template(template: object) -> str:
    """A template as the option of a reader: .option("template", template(Job(name="resize")))."""
    from tupelo.pipeline.source.options import as_option

    return as_option(template)
