"""The laws of the models, as checks on a log of any size.

isolation            nobody else gets an entry before its transaction is committed, nobody gets one
                     that is taken, and the changes of a transaction are not interleaved with others
once per session     a session gets an entry at most once
atomic engagement    a host is engaged before it is disengaged; and when one host was engaged with
                     another, then also the other with it
fifo per source      a reader gets the entries of one writer in the order of their numbers
total order          all readers get the entries in the same order

The first three hold in every space. The others hold where the space promises them, and for readers
that ask with one template: they are checked only where they are named. An order is that of the
first access to each entry by a reader: an agent in a session at a host. In `total order` readers
are compared with the one that got the most. Reads count where the space logs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.errors import BadArgument
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.jobs.columns import ENTRY, STAY, gotten, of_kind
from tupelo.pipeline.jobs.measures import presence
from tupelo.values.change import ENDINGS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NOTICED = 1.0
"""So many seconds apart two hosts may notice an engagement."""
_READER = ("host", "space", "agent", "session")
_UNTIL = (Window.unboundedPreceding, -1)


def conformance(
    changes: DataFrame, *, laws: Sequence[str] | None = None, skew_seconds: float = NOTICED
) -> DataFrame:
    """One row per violation: the law, the host and space, who (an agent, a host or a transaction),
    the entry, and the first and last position that show it. `laws` are some of `LAWS`, or those of
    every space. Two hosts may notice an engagement `skew_seconds` apart."""
    chosen = ALWAYS if laws is None else tuple(laws)
    if not chosen or isinstance(laws, str) or not {*chosen} <= LAWS.keys():
        raise BadArgument("laws", f"some of {', '.join(LAWS)}", laws)
    found = [LAWS[name](changes, skew_seconds) for name in chosen]
    return reduce(lambda one, other: one.unionByName(other), found)


def _violation(
    table: DataFrame, law: str, told: str, who: str, first: str, last: str, entry: bool = True
) -> DataFrame:
    return table.select(
        f.lit(law).alias("law"),
        "host",
        "space",
        f.col(who).alias("who"),
        (f.col("origin") if entry else f.lit(None).cast("string")).alias("origin"),
        (f.col("n") if entry else f.lit(None).cast("long")).alias("n"),
        f.col(first).alias("first"),
        f.col(last).alias("last"),
        f.lit(told).alias("told"),
    )


def _of_program(txn: str) -> Column:
    """Whether this is a transaction of a program: deliveries and moves have ids with colons."""
    return f.col(txn).isNotNull() & ~f.col(txn).contains(":")


def _isolation(changes: DataFrame, _: float) -> DataFrame:
    law = "isolation"
    of_entries = changes.where(f.col("n").isNotNull())
    got = of_kind("read", "taken")
    stay = Window.partitionBy(*STAY).orderBy("position")
    whole = Window.partitionBy(*STAY)
    gone = f.when(of_kind(*ENDINGS), f.col("position"))
    back = f.when(of_kind("returned"), f.col("position"))
    about = (
        of_entries.where(of_kind("written", "read", "returned", *ENDINGS))
        .withColumn("written_in", f.max(f.when(of_kind("written"), f.col("txn"))).over(whole))
        .withColumn("visible", f.max(f.when(of_kind("written"), f.col("position"))).over(whole))
        .withColumn("gone", f.max(gone).over(stay.rowsBetween(*_UNTIL)))
        .withColumn("back", f.max(back).over(stay.rowsBetween(*_UNTIL)))
    )
    early = about.where(
        got & (f.col("position") < f.col("visible")) & ~f.col("txn").eqNullSafe(f.col("written_in"))
    )
    late = about.where(
        got & f.col("gone").isNotNull() & (f.coalesce("back", f.lit(0)) < f.col("gone"))
    )
    # A transaction is logged at its commit, at once.
    committed = changes.where(of_kind("written", "taken"))
    of_log = Window.partitionBy("host", "space").orderBy("position")
    runs = (
        committed.withColumn("before", f.lag("txn").over(of_log))
        .withColumn("begins", ~f.col("txn").eqNullSafe(f.col("before")))
        .where(_of_program("txn"))
        .groupBy("host", "space", "txn")
        .agg(
            f.count(f.when(f.col("begins"), 1)).alias("runs"),
            f.min("position").alias("first"),
            f.max("position").alias("last"),
        )
        .where("runs > 1")
    )
    return (
        _violation(
            early, law, "it was got before its transaction was committed", "agent", "position",
            "visible",
        )
        .unionByName(
            _violation(late, law, "it was got when it was gone", "agent", "gone", "position")
        )
        .unionByName(
            _violation(
                runs, law, "other changes are between those of this transaction", "txn", "first",
                "last", entry=False,
            )
        )
    )  # fmt: skip


def _once(changes: DataFrame, _: float) -> DataFrame:
    again = (
        gotten(changes)
        .where(f.col("session").isNotNull())
        .groupBy(*_READER, "origin", "n")
        .agg(
            f.count("*").alias("times"),
            f.min("position").alias("first"),
            f.max("position").alias("last"),
        )
        .where("times > 1")
    )
    return _violation(
        again, "once per session", "one session got it more than once", "agent", "first", "last"
    )


def _engagement(changes: DataFrame, skew_seconds: float) -> DataFrame:
    law = "atomic engagement"
    met = changes.where((f.col("space") == PRESENCE) & of_kind("engaged", "disengaged")).select(
        "host",
        "space",
        "position",
        "kind",
        f.get_json_object("fields", "$.id").alias("peer"),
    )
    logs = (
        changes.where(f.col("space") == PRESENCE)
        .groupBy("host")
        .agg(f.max("time").alias("log_until"), f.min("position").alias("log_first"))
    )
    in_order = Window.partitionBy("host", "peer").orderBy("position")
    alone = (
        met.withColumn("before", f.lag("kind").over(in_order))
        .join(f.broadcast(logs), "host")
        .where(
            of_kind("disengaged")
            & (
                (f.col("before") == "disengaged")
                # A log that does not begin at 1 may have lost the engagement.
                | (f.col("before").isNull() & (f.col("log_first") == 1))
            )
        )
    )
    spans = presence(changes)
    skew = f.expr(f"make_dt_interval(0, 0, 0, {skew_seconds:.6f})")
    mine = spans.join(f.broadcast(logs.withColumnRenamed("host", "peer")), "peer").where(
        # The other log is there from before the begin until after it.
        (f.col("log_first") == 1) & (f.col("log_until") >= f.col("since") + skew)
    )
    theirs = spans.select(
        f.col("host").alias("peer"),
        f.col("peer").alias("host"),
        f.col("since").alias("their_since"),
        f.col("until").alias("their_until"),
    )
    one_sided = mine.join(
        theirs,
        (mine["host"] == theirs["host"])
        & (mine["peer"] == theirs["peer"])
        & (theirs["their_since"] <= f.coalesce(mine["until"], theirs["their_since"]) + skew)
        & (f.coalesce(theirs["their_until"], mine["since"]) + skew >= mine["since"]),
        "left_anti",
    )
    placed = (
        met.where(of_kind("engaged"))
        .join(
            changes.where(f.col("space") == PRESENCE).select("host", "position", "time"),
            ["host", "position"],
        )
        .join(
            one_sided.select("host", "peer", f.col("since").alias("time")),
            ["host", "peer", "time"],
        )
    )
    return _violation(
        alone, law, "disengaged without being engaged", "peer", "position", "position", entry=False
    ).unionByName(
        _violation(
            placed, law, "the other host was not engaged", "peer", "position", "position",
            entry=False,
        )
    )  # fmt: skip


def _first_gets(changes: DataFrame, *more: str) -> DataFrame:
    return gotten(changes).groupBy(*_READER, "origin", "n", *more).agg(
        f.min("position").alias("position")
    )  # fmt: skip


def _after_later(got: DataFrame, number: str, per: Sequence[str], law: str, how: str) -> DataFrame:
    """The entries that were got after an entry with a larger `number` of the same group."""
    earlier = Window.partitionBy(*per).orderBy("position").rowsBetween(*_UNTIL)
    late = (
        got.withColumn("before", f.max(f.struct(number, "position")).over(earlier))
        .where(f.col("before")[number] > f.col(number))
        .withColumn("first", f.col("before.position"))
    )
    return _violation(late, law, how, "agent", "first", "position")


def _fifo(changes: DataFrame, _: float) -> DataFrame:
    law, how = "fifo per source", "a later one of its writer was got first"
    return _after_later(_first_gets(changes, "shape"), "n", (*_READER, "origin", "shape"), law, how)


def _total(changes: DataFrame, _: float) -> DataFrame:
    got = _first_gets(changes)
    reader = f.struct("host", "agent", "session")
    most = (
        got.groupBy(*_READER)
        .agg(f.count("*").alias("number"))
        .groupBy("space")
        .agg(f.max_by(reader, f.struct("number", "host", "agent", "session")).alias("most"))
    )
    ranked = got.join(f.broadcast(most), "space").withColumn("reader", reader)
    ranks = ranked.where(f.col("reader").eqNullSafe(f.col("most"))).select(
        *ENTRY, f.col("position").alias("rank")
    )
    law, how = "total order", "another reader got these in another order"
    return _after_later(got.join(ranks, [*ENTRY]), "rank", _READER, law, how)


LAWS: dict[str, Callable[[DataFrame, float], DataFrame]] = {
    "isolation": _isolation,
    "once per session": _once,
    "atomic engagement": _engagement,
    "fifo per source": _fifo,
    "total order": _total,
}
ALWAYS = ("isolation", "once per session", "atomic engagement")
"""The laws of every space."""
