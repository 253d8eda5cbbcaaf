"""The life of every entry: its fate, and whether that is a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.pipeline.jobs.stays import ENTRY, logs, stays
from tupelo.values.change import ENDINGS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FAULTY = ("lost", "duplicated", "taken twice", "ended twice", "never written", "returned twice")
"""The fates that are faults."""


def life(changes: DataFrame, *, skew_seconds: float = 0.0) -> DataFrame:
    """One row per entry: when it was written, when it left (null: it has not), its fate, and the
    number of its stays. `skew_seconds` is the largest difference between the clocks of the hosts.

    The fate is "living", "taken", "expired", "cancelled", "evicted", "moved" to a host whose log is
    missing or incomplete, "in doubt" if it was on its way when the logs ended, or one of `FAULTY`.
    """
    return lives(changes, skew_seconds).select(
        *ENTRY,
        "fate",
        "written_at",
        "taken_at",
        f.when(f.col("living") == 0, f.col("left")).alias("left_at"),
        "stays",
        f.col("read").alias("reads"),
        "bytes",
    )


def lives(changes: DataFrame, skew_seconds: float = 0.0) -> DataFrame:
    """`life` with the columns that determine the fate."""
    in_time = Window.partitionBy(*ENTRY).orderBy(
        "stays", f.col("began").asc_nulls_first(), "host", "arrival"
    )
    followed = _placed(changes).select(
        "*",
        *(
            f.lag(name).over(in_time).alias(f"before_{name}")
            for name in ("host", "alive", "left", "left_at", "goes")
        ),
    )
    flags = {"living": f.col("alive"), "overlaps": _overlaps(skew_seconds)}
    flags |= {name: f.col(name) for name in ("stays", "away", "unwritten")}
    sums = ("written", "returned", *ENDINGS, "astray", "lapsed", "read", "doubt", "perhaps")
    tallied = followed.groupBy(*ENTRY).agg(
        *(f.sum(name).alias(name) for name in sums),
        *(f.sum(flag.cast("int")).alias(name) for name, flag in flags.items()),
        f.max(f.col("taken") - f.col("returned")).alias("most_taken"),
        f.max("ended").alias("most_ended"),
        f.min("ended").alias("least_ended"),
        f.max("written").alias("most_written"),
        f.min("began").alias("written_at"),
        f.max("taken_at").alias("taken_at"),
        f.max("left").alias("left"),
        f.max("bytes").alias("bytes"),
    )
    return tallied.where("stays > 0").withColumn("fate", _fate())


def _placed(changes: DataFrame) -> DataFrame:
    """The stays, combined with the other logs."""
    known = logs(changes)
    complete = known.where("first = 1").select(
        "space", f.xxhash64("host").alias("goes"), f.lit(True).alias("known")
    )
    ended = sum((f.col(kind) for kind in ENDINGS), f.lit(0)) - f.col("returned")
    is_stay = f.col("arrival").isNotNull()
    there = is_stay & (ended <= 0)
    return (
        stays(changes)
        .join(f.broadcast(known), ["host", "space"])
        .join(f.broadcast(complete), ["space", "goes"], "left")
        .select(
            *(*ENTRY, "host", "arrival", "written", "returned", *ENDINGS, "astray", "lapsed"),
            *("read", "began", "left", "taken_at", "left_at", "goes", "bytes"),
            is_stay.alias("stays"),
            ended.alias("ended"),
            there.alias("alive"),
            # A log may begin between the promise and the decision.
            f.greatest("doubt", f.lit(0)).alias("doubt"),
            f.when(there & (f.col("parcels") > 0), 1).otherwise(0).alias("perhaps"),
            (is_stay & (f.col("written") == 0) & (f.col("arrival") >= f.col("first"))).alias(
                "unwritten"
            ),
            ((f.col("moved") > 0) & f.col("known").isNull()).alias("away"),
        )
    )


def _overlaps(skew_seconds: float) -> Column:
    """Whether the previous stay had not ended when this one began."""
    here = f.col("before_host") == f.col("host")
    lasted = f.when(here, f.col("before_left_at") > f.col("arrival")).otherwise(
        f.col("before_left") > f.col("began") + f.make_dt_interval(secs=f.lit(skew_seconds))
    )
    # It came from there or, if the clocks differ, went there.
    handed = (f.col("before_goes") == f.xxhash64("host")) | (
        f.col("goes") == f.xxhash64("before_host")
    )
    came_so = ~here & f.coalesce(handed, f.lit(False))
    return f.coalesce(~came_so & (f.col("before_alive") | lasted), f.lit(False))


def _fate() -> Column:
    # An entry on its way may be at both hosts.
    excused = f.col("doubt") + f.col("perhaps")
    twice = (f.col("overlaps") > excused) | (f.col("living") > excused + 1)
    gone = (f.col("moved") > 0) & (f.col("away") == 0) & (f.col("lapsed") == 0)
    return (
        f.when(f.col("unwritten") > 0, "never written")
        .when(f.col("least_ended") < 0, "returned twice")
        .when(f.col("most_taken") > 1, "taken twice")
        .when(f.col("most_ended") > 1, "ended twice")
        .when(twice & (f.col("taken") - f.col("returned") > 1), "taken twice")
        .when(twice | (f.col("most_written") > 1), "duplicated")
        .when((f.col("doubt") > 0) | (f.col("living") > 1), "in doubt")
        .when(f.col("living") > 0, "living")
        .when(f.col("expired") > 0, "expired")
        .when(f.col("cancelled") > 0, "cancelled")
        .when(f.col("evicted") > 0, "evicted")
        .when(f.col("taken") > 0, "taken")
        .when(gone, "lost")
        .when(f.col("lapsed") > 0, "expired")
        .otherwise("moved")
    )
