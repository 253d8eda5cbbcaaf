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
    "backlog": "Backlog: entries over time, and the age of the oldest",
    "turnaround": "Turnaround: the wait for a worker, and the time until the work was done",
    "workers": "Workers: entries taken, and share of the time at work",
    "load": "Load: the entries that each worker was working on, over time",
    "retries": "Retries: entries that came back, failures and dead letters",
    "whatif": "What if: the same work with one worker more or less",
    "audit": "Audit: entries lost, duplicated, taken twice or reordered, and gaps in the logs",
    "conformance": "Conformance: breaches of isolation, once per session and other guarantees",
    "life": "Life: each entry, and whether it was taken, expired, moved or is still there",
    "coordination": "Coordination: how many entries of each writer went to each reader",
    "chains": "Chains: entries that were written because of an entry, and the critical path",
    "contention": "Contention: waits for the same kind of entry, and waits served out of turn",
    "leases": "Leases: entries that expired, and work that was lost to aborted transactions",
    "delivery": "Delivery: the share of each writer's entries that each reader got",
    "latency": "Latency: seconds from the writing of an entry to its reading or taking",
    "throughput": "Throughput: changes per second",
    "order": "Order: entries that readers got out of order",
    "overhead": "Overhead: the size of the log relative to that of the entries",
    "waiting": "Waiting: how long reads and takes waited, and how many at once",
    "spread": "Spread: delivery ratio and delay of entries, by number of copies and hops",
    "presence": "Presence: when hosts were connected",
    "contacts": "Contacts: how long hosts were connected, and the times between connections",
    "partitions": "Partitions: groups of hosts that reached each other, over time",
}
