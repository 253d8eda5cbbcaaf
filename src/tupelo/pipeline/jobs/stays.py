"""Stays: the periods that an entry is in a space at a host, and how each ended.

An entry is (space, origin, n). Its writing begins a stay, and the position of that change, its
`arrival`, identifies the stay in later changes there. A sound stay is

    written  (taken returned)*  [taken | moved | expired | cancelled | evicted]

An entry that left may be written again under its identity, which begins another stay: it moved to
the host of its agent; or its taker was lost, and the entry stays at the taker's host; or an agent
of LIME took it along. Two stays of one entry are sound if the first ends before the second begins.
On one host the positions decide that. Between hosts the first stay may name the destination, and
then the second one is its arrival; otherwise the clocks decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.values.change import ENDINGS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DECISIONS = ("prepared", "committed", "aborted")
ENTRY = ("space", "origin", "n")
"""The columns that identify an entry."""

# Ids of transactions for entries on their way to another host: see `spanning` in the federation,
# and `handover` in LIME. The first group is the host.
_TO_A_HOST = r"^(?:move|handover:host|lime-(?:move|take):[^:]*):([^:]+):"
# A single entry that moves: the groups are its origin and number.
_MOVE = r"^move:[^:]+:(.+):(\d+)$"
# Tuples of LIME move together, and the id does not name them.
_PARCEL = "lime-move:"


def of_kind(*kinds: str) -> Column:
    return f.col("kind").isin(*kinds)


def count_of(condition: Column) -> Column:
    return f.count(f.when(condition, 1))


def stays(changes: DataFrame) -> DataFrame:
    """One row per stay: how often it began and ended, when, and where the entry went. Decisions
    about moving entries are rows of their own, without an arrival. A stay of a delayed entry begins
    when the entry becomes visible."""
    ending = of_kind(*ENDINGS)
    written, taken, moved = of_kind("written"), of_kind("taken"), of_kind("moved")
    decision = of_kind(*_DECISIONS)
    spoken_of = changes.where(
        (of_kind("written", "delayed", "read", "returned", *ENDINGS) & f.col("n").isNotNull())
        | (decision & f.col("txn").startswith("move:"))
    ).select(
        "*",
        f.regexp_extract("txn", _TO_A_HOST, 1).alias("there"),
        *(_moving(name, group).alias(f"its_{name}") for group, name in enumerate(ENTRY[1:], 1)),
    )
    # Only numbers are aggregated, which Spark does in place: a host is the hash of its id.
    found = spoken_of.groupBy(
        "space",
        f.coalesce("origin", "its_origin").alias("origin"),
        f.coalesce("n", f.col("its_n").cast("long")).alias("n"),
        "host",
        "arrival",
    ).agg(
        *(count_of(of_kind(kind)).alias(kind) for kind in ("written", "returned", *ENDINGS)),
        # Within a transaction an entry may be read before it is in the log.
        count_of(of_kind("read") & (f.col("position") > f.col("arrival"))).alias("read"),
        count_of(_is_astray()).alias("astray"),
        count_of(moved & (f.col("expires") <= f.col("time"))).alias("lapsed"),
        _undecided(decision).alias("doubt"),
        f.min(f.when(written, f.col("time"))).alias("began"),
        f.max(f.when(ending, f.col("time"))).alias("left"),
        f.max(f.when(taken, f.col("time"))).alias("taken_at"),
        f.max(f.when(ending, f.col("position"))).alias("left_at"),
        f.max(f.when(taken | moved, f.xxhash64("there"))).alias("goes"),
        f.max(f.when(written, f.col("bytes"))).alias("bytes"),
        count_of(of_kind("delayed")).alias("delayed"),
    )
    return found.where("delayed = 0").drop("delayed")


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


def logs(changes: DataFrame) -> DataFrame:
    """One row per log: its first position, and the number of `parcels` on their way at its end."""
    parcels = of_kind(*_DECISIONS) & f.col("txn").startswith(_PARCEL)
    return changes.groupBy("host", "space").agg(
        f.min("position").alias("first"), _undecided(parcels).alias("parcels")
    )


def _undecided(decision: Column) -> Column:
    """The number of these transactions that are prepared and not decided."""
    step = f.when(of_kind("prepared"), 1).otherwise(-1)
    return f.coalesce(f.sum(f.when(decision, step)), f.lit(0))


def _moving(name: str, group: int) -> Column:
    """A part of the identity of an entry that is only in the id of the transaction."""
    return f.when(f.col(name).isNull(), f.regexp_extract("txn", _MOVE, group))


def _is_astray() -> Column:
    """Whether a change is at a wrong position: a writing is at its arrival, others are later."""
    position, arrival = f.col("position"), f.col("arrival")
    return f.when(of_kind("written"), position != arrival).otherwise(
        ~of_kind("read") & (position <= arrival)
    )
