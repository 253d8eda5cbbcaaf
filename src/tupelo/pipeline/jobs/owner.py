"""What the owner of a queue asks: backlog, work in hand, workers, turnaround and retries.

In a transaction the log has the moment of its end only. A worker is taken to do one transaction at
a time and to ask for more at once, so its work on an entry began when both were free: the entry was
there, and the worker's transaction before had ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.errors import BadArgument
from tupelo.pipeline.jobs.columns import (
    STAY,
    WAITING,
    WORKER,
    entry_kind,
    of_kind,
    percentiles,
    seconds_of,
)
from tupelo.values.change import ENDINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOMENTS = 240
"""The number of moments at which a backlog is counted, where no interval is given."""

_DEAD = "tupelo.queue.DeadLetter"
_BACK = ("returned", "released")


def backlog(changes: DataFrame, *, seconds: int | None = None) -> DataFrame:
    """One row per space, kind of entry and moment: the number of entries that were there, those in
    hand included, and the age of the oldest in seconds, null if there was none. The moments are
    `seconds` apart, or divide the time of the logs into 240 parts. Entries whose writing is not in
    the log are not counted."""
    of_entries = changes.where(f.col("n").isNotNull())
    written = of_entries.where(of_kind("written")).select(
        *STAY, f.col("time").alias("since"), entry_kind().alias("entry_kind")
    )
    ends = (
        of_entries.where(of_kind("returned", *ENDINGS))
        .groupBy(*STAY)
        .agg(
            f.sum(f.when(of_kind("returned"), -1).otherwise(1)).alias("ended"),
            f.max(f.when(~of_kind("returned"), f.col("time"))).alias("until"),
        )
        .where("ended > 0")
    )
    there = written.join(ends, [*STAY], "left")
    return _at_moments(there, changes, ["space", "entry_kind"], seconds).select(
        "space",
        "entry_kind",
        "at",
        f.col("number").alias("waiting"),
        (seconds_of("at") - seconds_of("since")).alias("oldest"),
    )


def load(changes: DataFrame, *, seconds: int | None = None) -> DataFrame:
    """One row per space, worker and moment: the number of entries that the worker had in its
    transactions, and for how many seconds it had the first of them. The moments are those of
    `backlog`."""
    worked = attempts(changes).where("in_transaction")
    found = _at_moments(worked, changes, ["space", *WORKER], seconds)
    return found.select(
        "space",
        *WORKER,
        "at",
        f.col("number").alias("in_hand"),
        (seconds_of("at") - seconds_of("since")).alias("longest"),
    )


def _at_moments(
    spans: DataFrame, changes: DataFrame, by: Sequence[str], seconds: int | None
) -> DataFrame:
    """The `number` of spans (`since` until `until`, which is null at the end of the logs) at each
    moment `at`, and the earliest `since` of them."""
    if seconds is not None and seconds < 1:
        raise BadArgument("seconds", "1 or more", seconds)
    step = (
        f.expr(f"greatest(1, (last - first + {MOMENTS - 1}) div {MOMENTS})")
        if seconds is None
        else f.lit(seconds * 1_000_000).cast("long")
    )
    grid = changes.agg(
        f.unix_micros(f.min("time")).alias("first"), f.unix_micros(f.max("time")).alias("last")
    ).withColumn("step", step)
    place = "(unix_micros({}) - first + step - 1) div step"  # of the first moment at or after it
    # Spans that begin and end between the same moments are counted once, before they are spread.
    alike = (
        spans.crossJoin(f.broadcast(grid))
        .withColumn("places", f.expr("(last - first + step - 1) div step + 1"))
        .withColumn("begin", f.expr(place.format("since")))
        .withColumn("end", f.expr(f"coalesce({place.format('until')}, places)"))
        .groupBy(*by, "first", "step", "places", "begin", "end")
        .agg(f.count("*").alias("number"), f.min("since").alias("since"))
    )
    # One that counts nothing, so that every moment has a row.
    nothing = alike.withColumns(
        {
            "number": f.lit(0).cast("long"),
            "begin": f.lit(0).cast("long"),
            "end": f.col("places"),
            "since": f.lit(None).cast("timestamp"),
        }
    ).dropDuplicates(list(by))
    return (
        alike.where("begin < end")
        .unionByName(nothing)
        .withColumn("place", f.explode(f.expr("sequence(begin, end - 1)")))
        .groupBy(*by, f.timestamp_micros(f.expr("first + place * step")).alias("at"))
        .agg(f.sum("number").alias("number"), f.min("since").alias("since"))
    )


def attempts(changes: DataFrame) -> DataFrame:
    """One row per take: its worker, the entry and its kind, since when the entry was visible and
    could be taken (`there`: again, where it came back), when the work began (`since`) and ended
    (`until`), and the outcome: "taken", "returned" or "released". Outside a transaction the work
    begins and ends with the take."""
    stay = Window.partitionBy(*STAY).orderBy("position")
    before = stay.rowsBetween(Window.unboundedPreceding, -1)
    there = f.when(of_kind("written", *_BACK), f.col("time"))
    takes = (
        changes.where(of_kind("written", "taken", *_BACK) & f.col("n").isNotNull())
        .select(
            *(*STAY, "position", "kind", "time", "origin", "n", "txn"),
            f.col("agent").alias("worker"),
            f.col("agent_name").alias("worker_name"),
            entry_kind().alias("entry_kind"),
        )
        .withColumn("visible", f.min(f.when(of_kind("written"), f.col("time"))).over(before))
        .withColumn("there", f.last(there, ignorenulls=True).over(before))
        .withColumn("next", f.lead("kind").over(stay))
        .where(of_kind("taken", "released"))
        # Deliveries have ids with colons.
        .withColumn("in_transaction", f.coalesce(~f.col("txn").contains(":"), f.lit(False)))
    )
    one_by_one = Window.partitionBy(*WORKER).orderBy("ended", "txn")
    ended = (
        takes.where("in_transaction")
        .groupBy("worker", "txn")
        .agg(f.max("time").alias("ended"), f.max("worker_name").alias("worker_name"))
        .withColumn("free", f.lag("ended").over(one_by_one))
        .drop("worker_name")
    )
    began = f.least("time", f.coalesce(f.greatest("there", "free"), "time"))
    outcome = f.when(f.col("next") == "returned", "returned").otherwise(f.col("kind"))
    return takes.join(ended, ["worker", "txn"], "left").select(
        *("space", "entry_kind", "origin", "n", *WORKER, "txn", "in_transaction"),
        *("visible", "there"),
        f.when(f.col("in_transaction"), began).otherwise(f.col("time")).alias("since"),
        f.col("time").alias("until"),
        outcome.alias("outcome"),
    )


def workers(changes: DataFrame) -> DataFrame:
    """One row per space and worker: how many entries it took and how many came back, the seconds
    that it worked in transactions, their share of the time from the first to the last (null where
    there was no transaction), and from when to when it worked."""
    worked = f.when(f.col("in_transaction"), seconds_of("until") - seconds_of("since"))
    back = f.count(f.when(f.col("outcome") != "taken", 1))
    return (
        attempts(changes)
        .groupBy("space", *WORKER)
        .agg(
            f.count("*").alias("tries"),
            back.alias("came_back"),
            f.sum(worked).alias("busy"),
            f.min("since").alias("since"),
            f.max("until").alias("until"),
        )
        .withColumn("span", seconds_of("until") - seconds_of("since"))
        .select(
            "space",
            *WORKER,
            (f.col("tries") - f.col("came_back")).alias("taken"),
            "came_back",
            "busy",
            f.when(f.col("span") > 0, f.col("busy") / f.col("span")).alias("utilisation"),
            "since",
            "until",
        )
    )


def turnaround(changes: DataFrame) -> DataFrame:
    """One row per space, kind of entry and worker, and one with a null worker for all of them:
    percentiles of the seconds that entries were visible until the worker had them (`wait_p50`, …),
    and until they were settled: taken for good, at the end of the transaction (`p50`, …)."""
    done = (
        attempts(changes)
        .where("outcome = 'taken' and visible is not null")
        .withColumn("wait", seconds_of("since") - seconds_of("visible"))
        .withColumn("settled", seconds_of("until") - seconds_of("visible"))
    )
    of_all = ["space", "entry_kind"]
    each = [*of_all, *WORKER]
    return done.groupingSets([of_all, each], *each).agg(
        f.count("*").alias("entries"),
        *percentiles("wait", "wait_"),
        *percentiles("settled"),
        f.max("settled").alias("max"),
    )


def retries(changes: DataFrame) -> DataFrame:
    """One row per entry that came back, and per job of `tupelo.queue` that failed: how often it
    came back because its worker was lost or its transaction was aborted, how often its function
    raised, whether it became a dead letter, and who had it last."""
    of_queue = f.col("type").isin(WAITING, _DEAD)
    failures = f.when(of_queue, f.get_json_object("fields", "$.failures").cast("long"))
    is_dead = of_kind("written") & (f.col("type") == _DEAD)
    again = of_kind("written", "delayed") & of_queue & (failures > 0)
    job = f.when(of_queue, f.get_json_object("fields", "$.id"))
    return (
        changes.where(f.col("n").isNotNull() & (of_kind(*_BACK) | is_dead | again))
        .withColumn("entry_kind", entry_kind(_DEAD))
        .withColumn("job", f.coalesce(job, f.concat_ws(" ", "origin", "n")))
        # A delayed entry is written when its time has come, by nobody's hand.
        .withColumn("moment", f.struct(~of_kind("written") | is_dead, "time", "host", "position"))
        .groupBy("space", "entry_kind", "job")
        .agg(
            f.count(f.when(of_kind(*_BACK), 1)).alias("came_back"),
            f.coalesce(f.max(failures), f.lit(0)).alias("failures"),
            (f.count(f.when(is_dead, 1)) > 0).alias("dead_letter"),
            f.max_by("agent", "moment").alias("worker"),
            f.max_by("agent_name", "moment").alias("worker_name"),
            f.max("time").alias("last_at"),
        )
    )
