"""Which reads and takes count; the stays of entries are in `sql.audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENTRY = ("space", "origin", "n")
"""The columns that identify an entry."""


def of_kind(*kinds: str) -> Column:
    return f.col("kind").isin(*kinds)


def gotten(changes: DataFrame) -> DataFrame:
    """The reads and takes that were not undone: of a stay, only takes after the last return
    count."""
    stay = ["host", "space", "arrival"]
    returns = changes.where(of_kind("returned") & f.col("n").isNotNull())
    last = returns.groupBy(*stay).agg(f.max("position").alias("returned_at"))
    return (
        changes.where(of_kind("read", "taken") & f.col("n").isNotNull())
        .join(last, stay, "left")
        .where(
            of_kind("read")
            | f.col("returned_at").isNull()
            | (f.col("position") > f.col("returned_at"))
        )
    )
