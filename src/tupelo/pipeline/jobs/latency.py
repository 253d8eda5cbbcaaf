"""Latency: how long it took from the writing of an entry until a reader had it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.pipeline.jobs.stays import ENTRY, gotten, of_kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PERCENTILES = (50, 90, 99)


def latency(changes: DataFrame) -> DataFrame:
    """One row for a reader and a way of getting, read or taken: percentiles of the seconds since
    the entry was first written, at whichever host. The first read of a reader counts, and the last
    take that was not returned."""
    writes = changes.where(of_kind("written") & f.col("n").isNotNull())
    written = writes.groupBy(*ENTRY).agg(f.min("time").alias("written_at"))
    got = (
        gotten(changes)
        .groupBy(*ENTRY, "agent", "kind")
        .agg(f.min("time").alias("first"), f.max("time").alias("last"))
        .withColumn("got_at", f.when(of_kind("read"), f.col("first")).otherwise(f.col("last")))
    )
    return (
        got.join(written, [*ENTRY])
        .withColumn("seconds", seconds_of("got_at") - seconds_of("written_at"))
        .groupBy("space", f.col("agent").alias("reader"), f.col("kind").alias("how"))
        .agg(
            f.count("*").alias("entries"),
            f.avg("seconds").alias("mean"),
            *percentiles("seconds"),
            f.max("seconds").alias("max"),
        )
    )


def seconds_of(column: str) -> Column:
    """A time as seconds since 1970."""
    return f.unix_micros(column) / 1e6


def percentiles(column: str) -> list[Column]:
    """p50, p90 and p99, to within one part in ten thousand of the rank."""
    return [
        f.percentile_approx(column, share / 100, 10_000).alias(f"p{share}") for share in PERCENTILES
    ]
