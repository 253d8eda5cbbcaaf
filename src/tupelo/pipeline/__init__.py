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


__all__ = ["changes", "session", "tables", "template"]


def session(master: str | None = None, **options: str | int | bool) -> SparkSession:
    """Start a Spark session with the format "tupelo", or return the existing session unchanged.

    `master` is Spark's ("local[4]", "spark://host:7077") or an address of Spark Connect
    ("sc://host"); by default all cores of this machine. The options are Spark's, and override ours:
    session(**{"spark.sql.shuffle.partitions": 8}).
    """
    if find_spec("pyspark") is None:
        raise PipelineError('the pipeline needs pyspark: pip install "tupelo[pipeline]"')
    from tupelo.pipeline.spark import start

    return start(master, options)


def changes(spark: SparkSession, *locations: str, **options: str) -> DataFrame:
    """The changes of some logs as a table; the options are those of spark.read.format("tupelo").

    Sealed segments are read by Spark's own Parquet reader, which is faster: it reads only the used
    columns, and its rows do not go through Python.
    """
    from tupelo.pipeline.source.datasource import changes_of

    return changes_of(spark, locations, options)


def tables(spark: SparkSession, *locations: str, **options: str) -> list[str]:
    """Make a temporary view for each space with a log there, by its name; `changes` of all of them,
    and `entries` that are there now. Returns the names. The views have the logs as they are when a
    query reads them; for spaces that are new since, ask again. The options are those of
    spark.read.format("tupelo")."""
    from tupelo.pipeline.sql.on_spark import Spark
    from tupelo.pipeline.sql.tables import Tables

    found = Tables([str(location) for location in locations], options)
    engine = Spark(spark)
    for name in found.names:
        engine.make(name, found)
    return found.names


def template(template: object) -> str:
    """A template as the option of a reader: .option("template", template(Job(name="resize")))."""
    from tupelo.pipeline.source.options import as_option

    return as_option(template)


TITLES: dict[str, str] = {
    "backlog": "How many entries were there over time, and how old the oldest was",
    "turnaround": "How long entries waited for a worker, and until they were settled",
    "workers": "How much each worker did, and how busy it was",
    "load": "How much work each worker had in hand over time",
    "retries": "What came back or failed, how often, and what was given up",
    "whatif": "What one worker more or one less would have done, by a replay of the log",
    "audit": "What cannot be: entries lost, duplicated, taken twice or reordered, gaps in the logs",
    "conformance": "Which laws of the models the logs break, and which changes show it",
    "life": "What became of every entry",
    "coordination": "Who works with whom, through which kinds of entries, and how often",
    "chains": "What followed from which entry, and how long that took",
    "contention": "Who competed for which entries, and who was passed over",
    "leases": "Which leases ran out, and what was lost with them",
    "delivery": "How much of what each writer wrote reached each reader",
    "latency": "How many seconds passed from writing to reading or taking, by reader",
    "throughput": "How many changes there were, over time",
    "order": "How much readers got out of order, at one host and over all hosts",
    "overhead": "How many bytes the log has beyond those of the entries",
    "waiting": "How long readers and takers waited, and how many at once",
    "spread": "How many copies and hops entries had, how many arrived, and after how long",
    "presence": "Who was engaged with whom, and when",
    "contacts": "How long hosts were engaged, and how long they were apart",
    "partitions": "Which hosts reached each other, over time",
}
