"""Delivery: how much of what each writer wrote reached each reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.pipeline.jobs.stays import ENTRY, gotten, of_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def delivery(changes: DataFrame) -> DataFrame:
    """One row for a writer, a shape of entries and a reader: how many were written, how many of
    these the reader has read or taken, and the rate. A template is not in the log, but the shape
    of what it matched is. Of what nobody got the reader is null; who took what was returned did not
    get it. Reads count where the space logs them."""
    stream = ["space", "shape", "origin"]
    written = (
        changes.where(of_kind("written") & f.col("n").isNotNull())
        .groupBy(*ENTRY, "shape")
        .agg(f.lit(1).alias("one"))
        .groupBy(*stream)
        .agg(f.count("*").alias("written"))
    )
    reached = (
        gotten(changes)
        .groupBy(*ENTRY, "shape", "agent")
        .agg(f.max(of_kind("taken").cast("int")).alias("taken"))
        .groupBy(*stream, "agent")
        .agg(f.count("*").alias("reached"), f.sum("taken").alias("taken"))
    )
    return written.join(reached, stream, "left").select(
        "space",
        "shape",
        f.col("origin").alias("writer"),
        f.col("agent").alias("reader"),
        "written",
        f.coalesce("reached", f.lit(0)).alias("reached"),
        f.coalesce("taken", f.lit(0)).alias("taken"),
        (f.coalesce("reached", f.lit(0)) / f.col("written")).alias("rate"),
    )
