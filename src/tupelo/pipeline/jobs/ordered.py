"""Order: gaps in logs, entries out of the order of their numbers, and reads out of order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.pipeline.jobs.columns import of_kind
from tupelo.values.change import BY_REACTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


LOG = ("host", "space")
BLOCK = 64

_HAVE = f"filter(sequence(first, last), p -> getbit(there, cast(p % {BLOCK} as int)) = 1)"
_GAP = "named_struct('first', {}, 'last', {}, 'twice', {})"
_BETWEEN = _GAP.format("before + 1", "first - 1", "false")
# Both ends of a block are present, so a gap within it ends within it.
_INSIDE = (
    "transform(filter(have, p -> p < last and not array_contains(have, p + 1)), p -> "
    + _GAP.format("p + 1", "array_min(filter(have, q -> q > p)) - 1", "false")
    + ")"
)
_TWICE = _GAP.format("first", "last", "true")
_NONE = "cast(array() as array<struct<first: bigint, last: bigint, twice: boolean>>)"


def gaps(changes: DataFrame) -> DataFrame:
    """One row per gap, with its `first` and `last` position; and one per 64 positions with
    duplicates."""
    bit = f.call_function(
        "shiftleft", f.lit(1).cast("long"), (f.col("position") % BLOCK).cast("int")
    )
    blocks = changes.groupBy(*LOG, f.floor(f.col("position") / BLOCK).alias("block")).agg(
        f.count("*").alias("rows"),
        f.bit_or(bit).alias("there"),
        f.min("position").alias("first"),
        f.max("position").alias("last"),
    )
    of_log = Window.partitionBy(*LOG).orderBy("block")
    return (
        blocks.withColumn("before", f.lag("last").over(of_log))
        .where(
            "first > before + 1 or bit_count(there) < last - first + 1 or rows > bit_count(there)"
        )
        .withColumn("have", f.expr(_HAVE))
        .withColumn(
            "gap",
            f.explode(
                f.concat(
                    f.expr(f"if(first > before + 1, array({_BETWEEN}), {_NONE})"),
                    f.expr(_INSIDE),
                    f.expr(f"if(rows > size(have), array({_TWICE}), {_NONE})"),
                )
            ),
        )
        .select(*LOG, "gap.first", "gap.last", "gap.twice")
    )


_NUMBERS = "transform(own, one -> one.n)"
# Changes behind one with a higher number, in this block or an earlier one.
_LATE = (
    "filter(own, (one, i) -> one.n <"
    " greatest(highest_before, array_max(transform(slice(own, 1, i), two -> two.n))))"
)


def reordered(changes: DataFrame) -> DataFrame:
    """Entries that an agent wrote outside transactions and that are behind its later ones: such
    writes are in the log in the order of their numbers. Entries of a transaction are numbered when
    they are written, and logged at the commit; entries from other hosts are logged when they
    come, and delayed ones when they become visible."""
    writer = ("host", "space", "origin")
    earlier = (
        Window.partitionBy(*writer).orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    )
    # Logs of older versions tell only so that an entry was delayed.
    delayed = changes.where(of_kind("delayed")).select(*writer, "n").distinct()
    # In blocks, because the log of one writer may be too long for one task.
    outside = f.col("txn").isNull() | f.startswith("txn", f.lit(BY_REACTION))
    blocks = (
        changes.where(of_kind("written") & f.col("delayed").isNull() & outside)
        .where(f.col("agent") == f.col("origin"))
        .join(delayed, [*writer, "n"], "left_anti")
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
    """How many entries each reader got out of order: at each host, by their arrival; and over all
    hosts, for each writer, by number, with the order given by the clocks of the hosts."""
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
