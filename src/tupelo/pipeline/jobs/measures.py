"""Measures: latency, delivery, waiting, throughput, overhead and presence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.errors import BadArgument
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.jobs.columns import (
    ENTRY,
    agent_names,
    gotten,
    of_kind,
    percentiles,
    seconds_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latency(changes: DataFrame) -> DataFrame:
    """One row per reader and kind of access, read or taken: percentiles of the seconds since the
    entry was first written, at any host. The first read of a reader counts, and the last take that
    was not returned."""
    writes = changes.where(of_kind("written") & f.col("n").isNotNull())
    written = writes.groupBy(*ENTRY).agg(f.min("time").alias("written_at"))
    got = (
        gotten(changes)
        .groupBy(*ENTRY, "agent", "kind")
        .agg(
            f.min("time").alias("first"),
            f.max("time").alias("last"),
            f.max("agent_name").alias("agent_name"),
        )
        .withColumn("got_at", f.when(of_kind("read"), f.col("first")).otherwise(f.col("last")))
    )
    return (
        got.join(written, [*ENTRY])
        .withColumn("seconds", seconds_of("got_at") - seconds_of("written_at"))
        .groupBy("space", f.col("agent").alias("reader"), f.col("kind").alias("how"))
        .agg(
            agent_names("agent_name").alias("reader_name"),
            f.count("*").alias("entries"),
            f.avg("seconds").alias("mean"),
            *percentiles("seconds"),
            f.max("seconds").alias("max"),
        )
    )


def delivery(changes: DataFrame) -> DataFrame:
    """One row per writer, shape and reader: the number of entries written, the number that the
    reader has read or taken, and the rate. Templates are not in the log, but the shapes of their
    matches are. The reader is null for entries that nobody got; a take that was returned does not
    count. Reads count where the space logs them."""
    stream = ["space", "shape", "origin"]
    written = (
        changes.where(of_kind("written") & f.col("n").isNotNull())
        .groupBy(*ENTRY, "shape")
        .agg(f.lit(1).alias("one"))
        .groupBy(*stream)
        .agg(f.count("*").alias("written"))
    )
    reached = (
        gotten(changes)
        .groupBy(*ENTRY, "shape", "agent")
        .agg(
            f.max(of_kind("taken").cast("int")).alias("taken"),
            f.max("agent_name").alias("agent_name"),
        )
        .groupBy(*stream, "agent")
        .agg(
            f.count("*").alias("reached"),
            f.sum("taken").alias("taken"),
            agent_names("agent_name").alias("reader_name"),
        )
    )
    return written.join(reached, stream, "left").select(
        "space",
        "shape",
        f.col("origin").alias("writer"),
        f.col("agent").alias("reader"),
        "reader_name",
        "written",
        f.coalesce("reached", f.lit(0)).alias("reached"),
        f.coalesce("taken", f.lit(0)).alias("taken"),
        (f.coalesce("reached", f.lit(0)) / f.col("written")).alias("rate"),
    )


def waiting(changes: DataFrame) -> DataFrame:
    """One row per space and shape: the number of reads and takes, how many of them waited,
    percentiles of their waiting times, and the largest number that waited at once. Templates are
    not in the log, but the shapes of their matches are; waits that timed out are not in the log."""
    kind = ["space", "shape"]
    got = changes.where(of_kind("read", "taken") & f.col("n").isNotNull())
    waited = got.where(f.col("waited") > 0)
    each = got.groupBy(*kind).agg(f.count("*").alias("got"))
    times = waited.groupBy(*kind).agg(
        f.count("*").alias("waited"), *percentiles("waited"), f.max("waited").alias("max")
    )
    until = seconds_of("time")
    steps = waited.select(
        *kind,
        f.explode(
            f.array(
                f.struct((until - f.col("waited")).alias("at"), f.lit(1).alias("step")),
                f.struct(until.alias("at"), f.lit(-1).alias("step")),
            )
        ).alias("moment"),
    ).select(*kind, "moment.at", "moment.step")
    # At equal times, ends come before begins.
    so_far = (
        Window.partitionBy(*kind)
        .orderBy("at", "step")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    at_once = (
        steps.withColumn("there", f.sum("step").over(so_far))
        .groupBy(*kind)
        .agg(f.max("there").alias("at_once"))
    )
    return (
        each.join(times, kind, "left")
        .join(at_once, kind, "left")
        .select(
            *kind,
            "got",
            f.coalesce("waited", f.lit(0)).alias("waited"),
            (f.coalesce("waited", f.lit(0)) / f.col("got")).alias("share"),
            *("p50", "p90", "p99", "max"),
            f.coalesce("at_once", f.lit(0)).alias("at_once"),
        )
    )


def throughput(changes: DataFrame, *, seconds: int = 1) -> DataFrame:
    """One row per interval and kind of change: the number of changes at all hosts in the interval
    of `seconds`. Intervals without changes have no row."""
    if seconds < 1:
        raise BadArgument("seconds", "1 or more", seconds)
    since = f.floor(f.unix_micros("time") / (seconds * 1_000_000)) * seconds
    return (
        changes.groupBy(f.timestamp_seconds(since).alias("at"), "kind")
        .agg(f.count("*").alias("changes"), f.sum("bytes").cast("long").alias("bytes"))
        .withColumn("per_second", f.col("changes") / seconds)
    )


_NUMBERS = 6 * 8 + 1
"""Position, arrival, n, time, expires and waited, and the kind."""
_TEXTS = ("origin", "agent", "agent_name", "session", "txn", "to")


def overhead(changes: DataFrame) -> DataFrame:
    """One row per log and kind of change: `payload` is the size of the entries, which are stored
    once, with their writing; `log` is the size of the changes, uncompressed, with 8 bytes per
    number; and `overhead` is the part of `log` beyond `payload`, per byte of the log's entries."""
    size = sum((f.coalesce(f.octet_length(name), f.lit(0)) for name in _TEXTS), f.lit(_NUMBERS))
    payload = f.when(of_kind("written"), f.coalesce("bytes", f.lit(0))).otherwise(0)
    each = changes.groupBy("host", "space", "kind").agg(
        f.count("*").alias("changes"),
        f.sum(payload).alias("payload"),
        f.sum(size + payload).alias("log"),
    )
    totals = each.groupBy("host", "space").agg(f.sum("payload").alias("entries"))
    share = f.when(f.col("entries") > 0, (f.col("log") - f.col("payload")) / f.col("entries"))
    return each.join(totals, ["host", "space"]).withColumn("overhead", share).drop("entries")


def presence(changes: DataFrame) -> DataFrame:
    """One row per engagement of a host with another: begin and end (null: still engaged), by its
    own clock, and how it ended: "goodbye", "closed" or "silent"."""
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
