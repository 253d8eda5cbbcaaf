"""Gaps: positions of a log that are missing, or there more than once.

A log numbers its changes without gaps. Sixty-four positions are the bits of one number, so that a
log of millions is a table of some thousands; only where bits are missing is looked at more closely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOG = ("host", "space")
BLOCK = 64

_HAVE = f"filter(sequence(first, last), p -> getbit(there, cast(p % {BLOCK} as int)) = 1)"
_GAP = "named_struct('first', {}, 'last', {}, 'twice', {})"
_BETWEEN = _GAP.format("before + 1", "first - 1", "false")
# Both ends of a block are there, so a gap inside of it ends inside of it.
_INSIDE = (
    "transform(filter(have, p -> p < last and not array_contains(have, p + 1)), p -> "
    + _GAP.format("p + 1", "array_min(filter(have, q -> q > p)) - 1", "false")
    + ")"
)
_TWICE = _GAP.format("first", "last", "true")
_NONE = "cast(array() as array<struct<first: bigint, last: bigint, twice: boolean>>)"


def gaps(changes: DataFrame) -> DataFrame:
    """One row a gap, `first` and `last` of it; and one for each 64 positions of which some are
    there `twice`."""
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
