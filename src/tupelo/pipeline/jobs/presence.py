"""Presence: who was engaged with whom, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.federation.names import PRESENCE
from tupelo.pipeline.jobs.latency import seconds_of
from tupelo.pipeline.jobs.stays import of_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def presence(changes: DataFrame) -> DataFrame:
    """One row for each time that a host was engaged with another: since when and until when (null:
    it is), by its own clock, and how it ended: "goodbye", "closed" or "silent"."""
    met = changes.where((f.col("space") == PRESENCE) & of_kind("engaged", "disengaged")).select(
        "host",
        "position",
        "time",
        "kind",
        *(
            f.get_json_object("fields", f"$.{name}").alias(f"peer_{name}")
            for name in ("id", "name", "address", "how")
        ),
    )
    following = Window.partitionBy("host", "peer_id").orderBy("position")
    return (
        met.where(f.col("peer_id") != f.col("host"))
        .withColumn("until", f.lead("time").over(following))
        .withColumn("how", f.lead("peer_how").over(following))
        .where(of_kind("engaged"))
        .select(
            "host",
            f.col("peer_id").alias("peer"),
            f.col("peer_name").alias("name"),
            f.col("peer_address").alias("address"),
            f.col("time").alias("since"),
            "until",
            (seconds_of("until") - seconds_of("time")).alias("seconds"),
            "how",
        )
    )
