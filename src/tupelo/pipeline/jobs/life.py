"""The life of every entry: its fate, and whether that is a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.pipeline.jobs.stays import ENTRY
from tupelo.pipeline.sql.audit import lives_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
