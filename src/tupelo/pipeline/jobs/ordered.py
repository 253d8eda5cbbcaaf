"""Order: whether entries are where the numbers of their writers say, and whether readers got them
so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.pipeline.jobs.gaps import BLOCK
from tupelo.pipeline.jobs.stays import of_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = "transform(own, one -> one.n)"
# Those that stand behind one with a higher number, be it of this block or of one before.
_LATE = (
    "filter(own, (one, i) -> one.n <"
    " greatest(highest_before, array_max(transform(slice(own, 1, i), two -> two.n))))"
)


def reordered(changes: DataFrame) -> DataFrame:
    """What an agent wrote itself, in no transaction, and stands behind what it wrote later: such
    writes are in the log in the order of their numbers. Those of a transaction are numbered when
    they are made, and stand where it is committed; what comes from elsewhere stands where it came.
    """
    writer = ("host", "space", "origin")
    earlier = (
        Window.partitionBy(*writer).orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    )
    # In blocks, because the log of one writer may be too long for one task.
    blocks = (
        changes.where(of_kind("written") & f.col("txn").isNull())
        .where(f.col("agent") == f.col("origin"))
        .groupBy(*writer, f.floor(f.col("position") / BLOCK).alias("block"))
        .agg(
            f.array_sort(f.collect_list(f.struct("position", "n"))).alias("own"),
            f.min("n").alias("lowest"),
            f.max("n").alias("highest"),
        )
    )
    return (
        blocks.withColumn("highest_before", f.max("highest").over(earlier))
        .where(f"lowest < highest_before or {_NUMBERS} != array_sort({_NUMBERS})")
        .withColumn("late", f.explode(f.expr(_LATE)))
        .select(*writer, "late.n", "late.position")
    )


def order(changes: DataFrame) -> DataFrame:
    """How much every reader got out of order: at one host, by the arrival of the entries there; and
    over all hosts, of each writer, by its numbers, as the clocks of the hosts have it."""
    got = changes.where(of_kind("read", "taken") & f.col("n").isNotNull())
    at_host = Window.partitionBy("host", "space", "agent").orderBy("position")
    over_all = Window.partitionBy("space", "agent", "origin").orderBy("time", "host", "position")
    until = (Window.unboundedPreceding, -1)
    here = got.select(
        "host",
        "space",
        "agent",
        (f.col("arrival") < f.max("arrival").over(at_host.rowsBetween(*until))).alias("late"),
    )
    everywhere = got.select(
        f.lit(None).cast("string").alias("host"),
        "space",
        "agent",
        (f.col("n") < f.max("n").over(over_all.rowsBetween(*until))).alias("late"),
    )
    return (
        here.unionAll(everywhere)
        .groupBy("host", "space", "agent")
        .agg(
            f.count("*").alias("got"),
            f.count(f.when(f.col("late"), 1)).alias("out_of_order"),
        )
        .withColumn("share", f.col("out_of_order") / f.col("got"))
        .select(
            f.when(f.col("host").isNull(), "all hosts").otherwise("host").alias("over"),
            "host",
            "space",
            f.col("agent").alias("reader"),
            "got",
            "out_of_order",
            "share",
        )
    )
