"""How messages reached their receivers in the runs of an experiment, from the records of the runs.

Records are rows that the programs of an experiment write with `tupelo.lab.record`. These are used:

- `joined`: the host is to receive every message of the others;
- `sent`: the host has sent its message of this `number`; perhaps `cause_author` and `cause_number`,
  the message that it had received last;
- `received`: the host has received the message `number` of `author`, after `latency` seconds.

The table has the columns `RECORDS`, and `run` and `place`, the number of the record in its run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORDS = {
    "host": "string",
    "name": "string",
    "author": "string",
    "number": "long",
    "latency": "double",
    "cause_author": "string",
    "cause_number": "long",
}
"""The columns of a record that `reception` uses, besides `run` and `place`, with their types."""
FIGURES = ("delivered", "host_disordered", "global_disordered", "latency_median", "latency_95")
"""The figures in the result of `reception`."""
MESSAGE = ["run", "author", "number"]
HIGH = 0.95


def reception(records: DataFrame, *, by_host: bool = False) -> DataFrame:
    """One row per run, or per run and receiving host: how many messages were `expected` and
    `received` (each once), the share `delivered`, the shares out of order, and the latency.

    `host_disordered` is the share of arrivals after a later message of the same author (a message
    may arrive twice), `global_disordered` the share of messages that arrived before their cause, or
    without it. `latency_95` is the 95 % quantile of the latency. A share of nothing is null, and so
    are latencies where nothing was received.
    """
    key = ["run", "host"] if by_host else ["run"]
    expected = _expected(records).groupBy(*key).agg(f.sum("expected").alias("expected"))
    received = records.where(f.col("name") == "received")
    got = (
        received.withColumn("is_late", _is_after_a_later_one())
        .groupBy(*key)
        .agg(
            f.count("*").alias("arrivals"),
            f.count_distinct("author", "number", "host").alias("received"),
            f.sum(f.col("is_late").cast("long")).alias("late"),
            f.median("latency").alias("latency_median"),
            f.sort_array(f.collect_list("latency")).alias("latencies"),
        )
    )
    early = _before_their_cause(records, received).groupBy(*key).agg(f.count("*").alias("early"))
    place = f.floor(f.lit(HIGH) * f.size("latencies")).cast("int")
    return (
        expected.join(got, key, "left")
        .join(early, key, "left")
        .select(
            *key,
            "expected",
            _or_zero("received").alias("received"),
            f.try_divide(_or_zero("received"), "expected").alias("delivered"),
            f.try_divide("late", "arrivals").alias("host_disordered"),
            f.try_divide(_or_zero("early"), "received").alias("global_disordered"),
            "latency_median",
            f.get("latencies", place).alias("latency_95"),
        )
    )


def _or_zero(column: str) -> Column:
    return f.coalesce(column, f.lit(0))


def _expected(records: DataFrame) -> DataFrame:
    """The number of messages that each host that has joined is to receive."""
    joined = records.where(f.col("name") == "joined").select("run", "host").distinct()
    each = (
        records.where(f.col("name") == "sent").groupBy("run", "host").agg(f.count("*").alias("own"))
    )
    every = each.groupBy("run").agg(f.sum("own").alias("every"))
    return (
        joined.join(every, ["run"], "left")
        .join(each, ["run", "host"], "left")
        .withColumn("expected", _or_zero("every") - _or_zero("own"))
    )


def _is_after_a_later_one() -> Column:
    before = (
        Window.partitionBy("run", "host", "author")
        .orderBy("place")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return f.coalesce(f.col("number") < f.max("number").over(before), f.lit(False))


def _before_their_cause(records: DataFrame, received: DataFrame) -> DataFrame:
    """The received messages whose cause was received later at the same host, or never."""
    causes = records.where((f.col("name") == "sent") & f.col("cause_author").isNotNull()).select(
        "run", f.col("host").alias("author"), "number", "cause_author", "cause_number"
    )
    places = received.groupBy(*MESSAGE, "host").agg(f.max("place").alias("place"))
    of_causes = places.select(
        "run",
        "host",
        f.col("author").alias("cause_author"),
        f.col("number").alias("cause_number"),
        f.col("place").alias("cause_place"),
    )
    return (
        places.join(causes, MESSAGE)
        .where(f.col("cause_author") != f.col("host"))
        .join(of_causes, ["run", "host", "cause_author", "cause_number"], "left")
        .where(f.col("cause_place").isNull() | (f.col("cause_place") > f.col("place")))
    )
