"""Overhead: what the log costs, in bytes, beyond what the entries are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.pipeline.jobs.stays import of_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBERS = 6 * 8 + 1
"""Position, arrival, n, time, expires and waited, and the kind."""
_TEXTS = ("origin", "agent", "session", "txn", "to")


def overhead(changes: DataFrame) -> DataFrame:
    """One row for a log and a kind of change: `payload` is the bytes of the entries, which are kept
    once, where they are written; `log` is the bytes of the changes with all that they say, numbers
    as 8 bytes and texts as long as they are, before anything is packed; and `overhead` is what
    comes to each byte of the log's entries."""
    said = sum((f.coalesce(f.octet_length(name), f.lit(0)) for name in _TEXTS), f.lit(_NUMBERS))
    payload = f.when(of_kind("written"), f.coalesce("bytes", f.lit(0))).otherwise(0)
    each = changes.groupBy("host", "space", "kind").agg(
        f.count("*").alias("changes"),
        f.sum(payload).alias("payload"),
        f.sum(said + payload).alias("log"),
    )
    whole = each.groupBy("host", "space").agg(f.sum("payload").alias("entries"))
    share = f.when(f.col("entries") > 0, (f.col("log") - f.col("payload")) / f.col("entries"))
    return each.join(whole, ["host", "space"]).withColumn("overhead", share).drop("entries")
