"""The audit: finds contradictions in the logs. A sound federation gives an empty result.

lost            moved to a host whose complete log does not have it
duplicated      in two places at once
taken twice     taken in two places, or more than once in one place
ended twice     for example taken and expired
returned twice  returned more often than taken
never written   in the log without its writing
never taken     still there; a fault only if the spaces are declared to be drained, and not for the
                records of a sink
reordered       out of the order of its number
gap             positions of a log are missing
repeated        positions of a log occur more than once
empty           there are no changes at all, so nothing was checked

The audit cannot know what happened in spaces without a log, nor reads that are not logged. It reads
the logs of running hosts at different moments, so entries that move meanwhile may look lost.
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
    """One row per fault. If the spaces are `drained`, remaining entries are faults. `skew_seconds`
    is the largest difference between the clocks of the hosts. When the result is computed,
    `observed` gets the number of `entries`, of `living` ones and of those `in_doubt`."""
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
        _description().alias("told"),
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
    """The records of the sink, which nobody takes."""
    sunk = changes.where(of_kind("written") & (f.col("type") == SUNK))
    return sunk.select(*ENTRY).distinct().withColumn("remembered", f.lit(True))


def _description() -> Column:
    """The changes of an entry in words: written 2, taken 1."""
    counts = [
        f.when(f.col(kind) > 0, f.concat(f.lit(f"{kind} "), f.col(kind).cast("string")))
        for kind in _TALLY
    ]
    places = f.concat(f.col("stays").cast("string"), f.lit(" stays"))
    return f.concat_ws(", ", *counts, f.when(f.col("stays") > 1, places))


def tally() -> list[Column]:
    """The number of each fault, as columns."""
    return [f.count(f.when(f.col("fault") == name, 1)).alias(name) for name in FAULTS]


def require_sound(changes: DataFrame, *, drained: bool = False, skew_seconds: float = 0.0) -> None:
    """Raise AuditFailed if there is a fault."""
    faults = audit(changes, drained=drained, skew_seconds=skew_seconds)
    (counts,) = faults.agg(*tally()).collect()
    found = {name: count for name, count in counts.asDict().items() if count}
    if found:
        raise AuditFailed(found)
