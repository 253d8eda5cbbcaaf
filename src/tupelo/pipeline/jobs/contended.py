"""What programs compete for, who is passed over, and what leases cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.pipeline.jobs.columns import STAY, WORKER, entry_kind, of_kind, seconds_of
from tupelo.pipeline.jobs.owner import attempts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def contention(changes: DataFrame) -> DataFrame:
    """One row per space, kind of entry and worker: how many entries it got, how often it waited,
    how often others waited for the same kind when it got one (`contended`), how many at most
    (`rivals`), how often another was served first that had begun to wait later (`overtaken`), and
    its `longest` wait in seconds. Templates are not in the log: those who wait for entries of one
    kind may have asked for different ones."""
    kind = ["space", "entry_kind"]
    got = changes.where(of_kind("read", "taken") & f.col("n").isNotNull()).select(
        "space",
        entry_kind().alias("entry_kind"),
        f.col("agent").alias("worker"),
        f.col("agent_name").alias("worker_name"),
        f.coalesce("waited", f.lit(0.0)).alias("waited"),
        f.unix_micros("time").alias("until"),
        "host",
        "position",
    )
    got = got.withColumn("since", f.col("until") - f.round(f.col("waited") * 1e6).cast("long"))
    waits = f.col("waited") > 0
    # A get is at its end, and a wait also at its begin. At equal times, begins come last: who
    # begins to wait when another is served was no rival.
    moments = got.withColumn(
        "moment",
        f.explode(f.when(waits, f.array(f.lit(1), f.lit(0))).otherwise(f.array(f.lit(0)))),
    ).withColumn("at", f.when(f.col("moment") == 1, f.col("since")).otherwise(f.col("until")))
    in_order = Window.partitionBy(*kind).orderBy("at", "moment", "host", "position")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    step = f.when(f.col("moment") == 1, 1).when(waits, -1).otherwise(0)
    served = f.when(f.col("moment") == 0, f.col("since"))
    return (
        moments.withColumn("rivals", f.sum(step).over(so_far))
        .withColumn("latest", f.max(served).over(before))
        .where("moment = 0")
        .groupBy(*kind, *WORKER)
        .agg(
            f.count("*").alias("got"),
            f.count(f.when(waits, 1)).alias("waited"),
            f.count(f.when(f.col("rivals") > 0, 1)).alias("contended"),
            f.max("rivals").alias("rivals"),
            f.count(f.when(waits & (f.col("latest") > f.col("since")), 1)).alias("overtaken"),
            f.max("waited").alias("longest"),
        )
    )


def leases(changes: DataFrame) -> DataFrame:
    """One row per space and kind of entry: how many entries had a lease, how often it was renewed,
    how many `expired`, how many of these nobody had read or taken (`unseen`; reads count where the
    space logs them), their bytes, and how many seconds they were there; how often work on an entry
    was undone because its transaction was aborted, also by its own lease (`undone`), and the
    seconds of work that this lost. Which transactions broke a deadlock is not in the log."""
    kind = ["space", "entry_kind"]
    stays = (
        changes.where(f.col("n").isNotNull())
        .where(of_kind("written", "renewed", "expired", "read", "taken"))
        .groupBy(*STAY)
        .agg(
            f.max(f.when(of_kind("written"), entry_kind())).alias("entry_kind"),
            f.max(f.when(of_kind("written"), f.col("time"))).alias("since"),
            f.max(f.when(of_kind("written"), f.col("bytes"))).alias("bytes"),
            f.count(f.when(of_kind("written", "renewed") & f.col("expires").isNotNull(), 1)).alias(
                "terms"
            ),
            f.count(f.when(of_kind("renewed"), 1)).alias("renewals"),
            f.count(f.when(of_kind("read", "taken"), 1)).alias("seen"),
            f.max(f.when(of_kind("expired"), f.col("time"))).alias("until"),
        )
        .where("entry_kind is not null")
    )
    gone = f.col("until").isNotNull()
    by_kind = stays.groupBy(*kind).agg(
        f.count(f.when((f.col("terms") > 0) | gone, 1)).alias("leased"),
        f.sum("renewals").alias("renewed"),
        f.count(f.when(gone, 1)).alias("expired"),
        f.count(f.when(gone & (f.col("seen") == 0), 1)).alias("unseen"),
        f.coalesce(f.sum(f.when(gone, f.col("bytes"))), f.lit(0)).cast("long").alias("bytes"),
        f.coalesce(
            f.sum(f.when(gone, seconds_of("until") - seconds_of("since"))), f.lit(0.0)
        ).alias("seconds"),
    )
    undone = (
        attempts(changes)
        .where("outcome = 'released'")
        .groupBy(*kind)
        .agg(
            f.count("*").alias("undone"),
            f.sum(seconds_of("until") - seconds_of("since")).alias("lost_seconds"),
        )
    )
    return (
        by_kind.join(undone, kind, "left")
        .withColumn("undone", f.coalesce("undone", f.lit(0)))
        .withColumn("lost_seconds", f.coalesce("lost_seconds", f.lit(0.0)))
        .where("leased > 0 or undone > 0")
    )
