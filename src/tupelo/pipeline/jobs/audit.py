"""The audit: what the logs say that cannot be. An empty answer is a sound federation.

lost            it moved to a host whose whole log is there, and is not in it
duplicated      it was in two places at once
taken twice     and was taken in both, or from one place more than once
ended twice     it was taken, say, and expired as well
returned twice  it was given back more often than it was taken
never written   the log speaks of it, and not of its writing
never taken     it is there still; a fault only if it was said that the space is drained, and not of
                what a space remembers of a sink
reordered       it stands before or behind where its number says
gap             positions of a log are missing
repeated        positions of a log are there more than once
empty           there are no changes at all: nothing was looked at, and nothing is known to be sound

What it cannot know: what was done in spaces that keep no log; and what a reader was given that the
log does not say. It reads logs as they are: logs of hosts that go on are of different moments, and
what moves between them meanwhile may look lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.errors import AuditFailed
from tupelo.pipeline.jobs.life import FAULTY, lives
from tupelo.pipeline.jobs.ordered import gaps, reordered
from tupelo.pipeline.jobs.stays import ENTRY, of_kind
from tupelo.space.capacity import SUNK

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

FAULTS = (*FAULTY, "never taken", "reordered", "gap", "repeated", "empty")

_TALLY = ("written", "taken", "returned", "moved", "expired", "cancelled", "evicted")


def audit(
    changes: DataFrame,
    *,
    drained: bool = False,
    skew_seconds: float = 0.0,
    observed: Observation | None = None,
) -> DataFrame:
    """One row a fault. If the spaces are said to be `drained`, what is still there is one.
    `skew_seconds` is by how much the clocks of the hosts may differ. When the faults are asked for,
    `observed` is told how many `entries` there are, how many `living`, and how many `in_doubt`.
    """
    found = lives(changes, skew_seconds)
    if drained:
        found = found.join(_remembered(changes), [*ENTRY], "left")
    if observed is not None:
        found = found.observe(
            observed,
            f.count(f.lit(1)).alias("entries"),
            f.count(f.when(f.col("fate") == "living", 1)).alias("living"),
            f.count(f.when(f.col("fate") == "in doubt", 1)).alias("in_doubt"),
        )
    kinds = [
        f.when(f.col("fate").isin(*FAULTY), f.col("fate")),
        f.when(f.col("astray") > 0, "reordered"),
    ]
    if drained:
        left = (f.col("fate") == "living") & f.col("remembered").isNull()
        kinds.append(f.when(left, "never taken"))
    nowhere = f.lit(None)
    of_entries = found.withColumn("fault", f.explode(f.array_compact(f.array(*kinds)))).select(
        "fault",
        nowhere.cast("string").alias("host"),
        "space",
        "origin",
        "n",
        nowhere.cast("long").alias("first"),
        nowhere.cast("long").alias("last"),
        _told().alias("told"),
    )
    late = reordered(changes).select(
        f.lit("reordered").alias("fault"),
        "host",
        "space",
        "origin",
        "n",
        f.col("position").alias("first"),
        f.col("position").alias("last"),
        f.lit("it was written before, by its number").alias("told"),
    )
    of_logs = gaps(changes).select(
        f.when(f.col("twice"), "repeated").otherwise("gap").alias("fault"),
        "host",
        "space",
        nowhere.cast("string").alias("origin"),
        nowhere.cast("long").alias("n"),
        "first",
        "last",
        f.when(f.col("twice"), "some of these positions are there twice")
        .otherwise("these positions are not there")
        .alias("told"),
    )
    of_nothing = (
        changes.limit(1)
        .agg(f.count(f.lit(1)).alias("changes"))
        .where("changes = 0")
        .select(
            f.lit("empty").alias("fault"),
            *(nowhere.cast("string").alias(name) for name in ("host", "space", "origin")),
            *(nowhere.cast("long").alias(name) for name in ("n", "first", "last")),
            f.lit("there are no changes to look at").alias("told"),
        )
    )
    return of_entries.unionAll(late).unionAll(of_logs).unionAll(of_nothing)


def _remembered(changes: DataFrame) -> DataFrame:
    """The entries by which spaces remember what Spark wrote: nobody is to take them."""
    sunk = changes.where(of_kind("written") & (f.col("type") == SUNK))
    return sunk.select(*ENTRY).distinct().withColumn("remembered", f.lit(True))


def _told() -> Column:
    """What happened to it, in words: written 2, taken 1."""
    said = [
        f.when(f.col(kind) > 0, f.concat(f.lit(f"{kind} "), f.col(kind).cast("string")))
        for kind in _TALLY
    ]
    places = f.concat(f.col("stays").cast("string"), f.lit(" stays"))
    return f.concat_ws(", ", *said, f.when(f.col("stays") > 1, places))


def tally() -> list[Column]:
    """How many there are of each fault, as columns to observe or to ask for."""
    return [f.count(f.when(f.col("fault") == name, 1)).alias(name) for name in FAULTS]


def require_sound(changes: DataFrame, *, drained: bool = False, skew_seconds: float = 0.0) -> None:
    """AuditFailed if there is a fault."""
    faults = audit(changes, drained=drained, skew_seconds=skew_seconds)
    (counts,) = faults.agg(*tally()).collect()
    found = {name: count for name, count in counts.asDict().items() if count}
    if found:
        raise AuditFailed(found)
