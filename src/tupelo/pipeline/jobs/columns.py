"""The columns, selections and aggregates that jobs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.pipeline.intervals import t_quantile

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENTRY = ("space", "origin", "n")
"""The columns that identify an entry."""
STAY = ("host", "space", "arrival")
"""The columns that identify the time of an entry in one space."""
WORKER = ("worker", "worker_name")
"""The connections of one program have one agent, and may have names of their own."""
WAITING = "tupelo.queue.Waiting"
PERCENTILES = (50, 90, 99)
_FREEDOM_MAX = 100


def of_kind(*kinds: str) -> Column:
    return f.col("kind").isin(*kinds)


def gotten(changes: DataFrame) -> DataFrame:
    """The reads and takes that were not undone: of a stay, only takes after the last return
    count."""
    returns = changes.where(of_kind("returned") & f.col("n").isNotNull())
    last = returns.groupBy(*STAY).agg(f.max("position").alias("returned_at"))
    return (
        changes.where(of_kind("read", "taken") & f.col("n").isNotNull())
        .join(last, [*STAY], "left")
        .where(
            of_kind("read")
            | f.col("returned_at").isNull()
            | (f.col("position") > f.col("returned_at"))
        )
    )


def entry_kind(*of_queue: str) -> Column:
    """The task of a waiting job of `tupelo.queue`, or of its other entries of these types; else the
    name of a dataclass, the first field of a tuple if that is a text, or the shape."""
    return f.coalesce(
        f.when(f.col("type").isin(WAITING, *of_queue), f.get_json_object("fields", "$.task")),
        f.col("type"),
        f.when(f.col("fields").startswith('["'), f.get_json_object("fields", "$[0]")),
        f.col("shape"),
    )


def agent_names(column: str) -> Column:
    """The names of an agent, null without any: the connections of a program may have several."""
    return f.nullif(f.array_join(f.array_sort(f.collect_set(column)), ", "), f.lit(""))


def seconds_of(column: str) -> Column:
    """A time in seconds since 1970."""
    return f.unix_micros(column) / 1e6


def percentiles(column: str, prefix: str = "") -> list[Column]:
    """p50, p90 and p99, with an error of at most 1/10000 of the rank."""
    return [
        f.percentile_approx(column, share / 100, 10_000).alias(f"{prefix}p{share}")
        for share in PERCENTILES
    ]


def mean_of(column: str, prefix: str = "") -> list[Column]:
    """The mean, and half the width of its confidence interval of 95 % by Student's t (null below
    two values). Above 101 values the t of 101 is used: 1.3 % too much at most."""
    quantiles = f.array(*(f.lit(t_quantile(freedom)) for freedom in range(1, _FREEDOM_MAX + 1)))
    number = f.count(column)
    half = f.get(quantiles, f.least(number, f.lit(_FREEDOM_MAX + 1)) - 2)
    return [
        f.avg(column).alias(f"{prefix}mean"),
        (half.cast("double") * f.stddev_samp(column) / f.sqrt(number)).alias(f"{prefix}ci"),
    ]
