"""Throughput: how much happened, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.errors import BadArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def throughput(changes: DataFrame, *, seconds: int = 1) -> DataFrame:
    """One row for a time and a kind of change: how many there were in the `seconds` from then on,
    at all hosts. A time at which nothing happened has no row."""
    if seconds < 1:
        raise BadArgument("seconds", "1 or more", seconds)
    since = f.floor(f.unix_micros("time") / (seconds * 1_000_000)) * seconds
    return (
        changes.groupBy(f.timestamp_seconds(since).alias("at"), "kind")
        .agg(f.count("*").alias("changes"), f.sum("bytes").cast("long").alias("bytes"))
        .withColumn("per_second", f.col("changes") / seconds)
    )
