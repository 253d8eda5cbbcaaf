"""Waiting: how long readers and takers waited, and how many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.pipeline.jobs.latency import percentiles, seconds_of
from tupelo.pipeline.jobs.stays import of_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def waiting(changes: DataFrame) -> DataFrame:
    """One row for a space and a shape of entries: how often one was read or taken, how often it had
    to be waited for, percentiles of the seconds of those who waited, and how many waited at once,
    at most. A template is not in the log, but the shape of what it matched is; who waited in vain
    is not there either."""
    kind = ["space", "shape"]
    got = changes.where(of_kind("read", "taken") & f.col("n").isNotNull())
    waited = got.where(f.col("waited") > 0)
    each = got.groupBy(*kind).agg(f.count("*").alias("got"))
    times = waited.groupBy(*kind).agg(
        f.count("*").alias("waited"), *percentiles("waited"), f.max("waited").alias("max")
    )
    until = seconds_of("time")
    steps = waited.select(
        *kind,
        f.explode(
            f.array(
                f.struct((until - f.col("waited")).alias("at"), f.lit(1).alias("step")),
                f.struct(until.alias("at"), f.lit(-1).alias("step")),
            )
        ).alias("moment"),
    ).select(*kind, "moment.at", "moment.step")
    # Who goes makes room before another comes at the same time.
    so_far = (
        Window.partitionBy(*kind)
        .orderBy("at", "step")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    at_once = (
        steps.withColumn("there", f.sum("step").over(so_far))
        .groupBy(*kind)
        .agg(f.max("there").alias("at_once"))
    )
    return (
        each.join(times, kind, "left")
        .join(at_once, kind, "left")
        .select(
            *kind,
            "got",
            f.coalesce("waited", f.lit(0)).alias("waited"),
            (f.coalesce("waited", f.lit(0)) / f.col("got")).alias("share"),
            *("p50", "p90", "p99", "max"),
            f.coalesce("at_once", f.lit(0)).alias("at_once"),
        )
    )
