"""Anomalies of running spaces, as entries: a stream of Spark finds them in the log and writes them
to a space, where a reaction or a program can act.

Times are those in the log. A window is closed, and told, when a change comes that is later than its
end by more than `LATE_SECONDS`; while nothing at all happens, nothing is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.errors import BadArgument
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.jobs.columns import STAY, entry_kind, of_kind, seconds_of
from tupelo.space.capacity import SUNK
from tupelo.values.change import ENDINGS
from tupelo.values.kind import entry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

LATE_SECONDS = 5
"""So much later may a change be in the log than one with a later time: the clocks of hosts."""
ANOMALY = "tupelo.anomaly"
GROWS, QUIET, SLOW = "backlog grows", "worker is quiet", "latency is high"


@entry(ANOMALY)
@dataclass(frozen=True)
class Anomaly:
    """What is wrong: `value` is beyond `limit` from `since` to `until`. The subject is a kind of
    entry, or a worker (its agent), with its name."""

    what: str | None = None
    space: str | None = None
    subject: str | None = None
    name: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Limits:
    """What is an anomaly; None: it is not looked for.

    seconds  the length of a window
    grows    so many more entries of a kind were written than left, within a window
    quiet    a worker has taken nothing for so many seconds
    slow     one of ten entries of a kind that were written in a window took so many seconds or
             longer until it was taken; told after twice as many. Kinds of which nothing is taken in
             that time are left out
    """

    seconds: int = 60
    grows: int | None = 1_000
    quiet: int | None = 300
    slow: float | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "grows", "quiet", "slow"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise BadArgument(name, "more than 0", value)
        if self.grows is None and self.quiet is None and self.slow is None:
            raise BadArgument("limits", "one of grows, quiet and slow at least")


def anomalies(changes: DataFrame, limits: Limits) -> DataFrame:
    """The anomalies in a stream of changes, with the fields of `Anomaly` as columns."""
    of_others = ~f.coalesce("type", f.lit("")).isin(ANOMALY, SUNK)
    of_users = (f.col("space") != PRESENCE) & f.col("n").isNotNull() & of_others
    timed = changes.where(of_users).withWatermark("time", f"{LATE_SECONDS} seconds")
    found = []
    if limits.grows is not None:
        found.append(_growing(timed, limits.seconds, limits.grows))
    if limits.quiet is not None:
        found.append(_quiet(timed, limits.quiet))
    if limits.slow is not None:
        found.append(_slow(timed, limits.seconds, limits.slow))
    return reduce(lambda one, other: one.unionByName(other), found)


def _growing(changes: DataFrame, seconds: int, limit: int) -> DataFrame:
    step = f.when(of_kind("written", "returned"), 1).when(of_kind(*ENDINGS), -1).otherwise(0)
    grown = changes.withColumn("subject", entry_kind()).groupBy(
        f.window("time", f"{seconds} seconds").alias("at"), "space", "subject"
    )
    return _told(
        grown.agg(f.sum(step).alias("value"), f.lit(None).cast("string").alias("name")).where(
            f.col("value") >= limit
        ),
        GROWS,
        f.col("value"),
        limit,
    )


def _quiet(changes: DataFrame, seconds: int) -> DataFrame:
    """A worker is quiet from its last take: the window of a session of takes ends so much later."""
    sessions = (
        changes.where(of_kind("taken"))
        .groupBy(
            f.session_window("time", f"{seconds} seconds").alias("at"),
            "space",
            f.col("agent").alias("subject"),
        )
        .agg(f.max("agent_name").alias("name"), f.max("time").alias("last"))
    )
    quiet = sessions.withColumn(
        "at", f.struct(f.col("last").alias("start"), f.col("at.end").alias("end"))
    )
    return _told(quiet, QUIET, f.lit(seconds), seconds)


def _slow(changes: DataFrame, seconds: int, limit: float) -> DataFrame:
    """An entry that has not been taken when it is there for twice the limit counts as if it had
    been taken then: the stream need not remember it any longer."""
    longest = 2 * limit
    written = changes.where(of_kind("written")).select(
        *STAY, f.col("time").alias("written_at"), entry_kind().alias("subject")
    )
    taken = changes.where(of_kind("taken")).select(
        *(f.col(name).alias(f"taken_{name}") for name in STAY), f.col("time").alias("taken_at")
    )
    same = reduce(
        lambda one, other: one & other, (f.col(name) == f.col(f"taken_{name}") for name in STAY)
    )
    in_time = (f.col("taken_at") >= f.col("written_at")) & (
        f.col("taken_at") <= f.col("written_at") + f.expr(f"interval {longest:f} seconds")
    )
    took = seconds_of("taken_at") - seconds_of("written_at")
    high = (
        written.join(taken, same & in_time, "left")
        .groupBy(f.window("written_at", f"{seconds} seconds").alias("at"), "space", "subject")
        .agg(
            f.percentile_approx(f.coalesce(took, f.lit(longest)), 0.9, 10_000).alias("value"),
            f.count("taken_at").alias("taken"),
            f.lit(None).cast("string").alias("name"),
        )
        .where((f.col("value") >= limit) & (f.col("taken") > 0))
    )
    return _told(high, SLOW, f.col("value"), limit)


def _told(found: DataFrame, what: str, value: Column, limit: float) -> DataFrame:
    return found.select(
        f.lit(what).alias("what"),
        "space",
        "subject",
        "name",
        f.col("at.start").alias("since"),
        f.col("at.end").alias("until"),
        value.cast("double").alias("value"),
        f.lit(float(limit)).alias("limit"),
    )


def watch(
    changes: DataFrame,
    to: str,
    checkpoint: str,
    limits: Limits,
    *,
    once: bool = False,
    **options: str,
) -> StreamingQuery:
    """Start a query that writes the anomalies in a stream of changes to a space, each once; with
    `once` those of the changes that are there now, and then the query ends. Begin again with the
    same checkpoint and limits. The options are those of the sink: lease, password, tls."""
    told = anomalies(changes, limits).writeStream.format("tupelo").options(**options)
    told = told.options(entry=f"{__name__}:{Anomaly.__name__}", checkpointLocation=checkpoint)
    if once:
        told = told.trigger(availableNow=True)
    return told.start(to)
