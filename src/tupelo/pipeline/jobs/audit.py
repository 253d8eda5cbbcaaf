"""The life of every entry, and the audit: contradictions in the logs. A sound federation gives an
empty result.

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
from tupelo.pipeline.jobs.columns import ENTRY
from tupelo.pipeline.jobs.ordered import gaps, reordered
from tupelo.pipeline.sql.audit import FAULTS, faults_sql, lives_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation


def life(changes: DataFrame, *, skew_seconds: float = 0.0) -> DataFrame:
    """One row per entry: when it was written, when it left (null: it has not), its fate, and the
    number of its stays. `skew_seconds` is the largest difference between the clocks of the hosts.

    The fate is "living", "taken", "expired", "cancelled", "evicted", "moved" to a host whose log is
    missing or incomplete, "in doubt" if it was on its way when the logs ended, or a fault.
    """
    return lives(changes, skew_seconds).select(
        *ENTRY,
        "fate",
        "written_at",
        "taken_at",
        f.when(f.col("living") == 0, f.col("ended_time")).alias("left_at"),
        "stays",
        "reads",
        "bytes",
    )


def lives(changes: DataFrame, skew_seconds: float = 0.0) -> DataFrame:
    """`life` with the columns that determine the fate."""
    return changes.sparkSession.sql(lives_sql(skew_seconds), changes=changes)


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
    if observed is not None:
        found = found.observe(
            observed,
            f.count(f.lit(1)).alias("entries"),
            f.count(f.when(f.col("fate") == "living", 1)).alias("living"),
            f.count(f.when(f.col("fate") == "in doubt", 1)).alias("in_doubt"),
        )
    faults = changes.sparkSession.sql(
        faults_sql(drained),
        lives=found,
        changes=changes,
        late=reordered(changes),
        gaps=gaps(changes),
    )
    # Spark looks for the observation in the plan as it was given, where SQL only names a view.
    return faults.select("*")


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
