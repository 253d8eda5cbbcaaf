"""Stays: each time that an entry is in a space at a host, from when to when, and how it left.

An entry is (space, origin, n). Where it is written it stays, and the position of that change, its
`arrival`, names the stay in every later change there. A sound stay is

    written  (taken returned)*  [taken | moved | expired | cancelled | evicted]

An entry that leaves may be written again under its own name, and has another stay then: it moved to
where the agent is that it is for; or whoever took it vanished before it got it, and it lives on
where that was; or an agent of LIME took it along. Two stays of one entry are sound if the first is
over when the second begins. On one host the positions say so. Between hosts the first may say where
the entry goes, and if it is there this is how it came; else their clocks decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.values.change import ENDINGS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DECISIONS = ("prepared", "committed", "aborted")
ENTRY = ("space", "origin", "n")
"""The columns that name an entry anywhere."""

# The transactions that keep what is on its way to another host, by their names: see `spanning` in
# the federation, and `handover` in LIME. The host is the first group.
_TO_A_HOST = r"^(?:move|handover:host|lime-(?:move|take):[^:]*):([^:]+):"
# An entry moves by itself: then they are its origin and its number.
_MOVE = r"^move:[^:]+:(.+):(\d+)$"
# Tuples of LIME move together, and the name does not say which.
_PARCEL = "lime-move:"


def of_kind(*kinds: str) -> Column:
    return f.col("kind").isin(*kinds)


def count_of(condition: Column) -> Column:
    return f.count(f.when(condition, 1))


def stays(changes: DataFrame) -> DataFrame:
    """One row a stay: how often it began and ended, when, and where the entry went. What was
    decided about the moving of an entry is a row of its own, without an arrival."""
    ending = of_kind(*ENDINGS)
    written, taken, moved = of_kind("written"), of_kind("taken"), of_kind("moved")
    decision = of_kind(*_DECISIONS)
    spoken_of = changes.where(
        (of_kind("written", "read", "returned", *ENDINGS) & f.col("n").isNotNull())
        | (decision & f.col("txn").startswith("move:"))
    ).select(
        "*",
        f.regexp_extract("txn", _TO_A_HOST, 1).alias("there"),
        *(_moving(name, group).alias(f"its_{name}") for group, name in enumerate(ENTRY[1:], 1)),
    )
    # Only numbers are gathered, which Spark does in place: a host is the hash of its id.
    return spoken_of.groupBy(
        "space",
        f.coalesce("origin", "its_origin").alias("origin"),
        f.coalesce("n", f.col("its_n").cast("long")).alias("n"),
        "host",
        "arrival",
    ).agg(
        *(count_of(of_kind(kind)).alias(kind) for kind in ("written", "returned", *ENDINGS)),
        # In a transaction an entry may be read before it is written, and has no place yet.
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
    )


def gotten(changes: DataFrame) -> DataFrame:
    """The reads and takes that stand. Whoever took what was returned did not get it: in a stay only
    what is taken after the last return counts."""
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
    """One row a log: where it begins, and how many `parcels` were on their way when it ended."""
    parcels = of_kind(*_DECISIONS) & f.col("txn").startswith(_PARCEL)
    return changes.groupBy("host", "space").agg(
        f.min("position").alias("first"), _undecided(parcels).alias("parcels")
    )


def _undecided(decision: Column) -> Column:
    """How many of these transactions were prepared, and not decided."""
    step = f.when(of_kind("prepared"), 1).otherwise(-1)
    return f.coalesce(f.sum(f.when(decision, step)), f.lit(0))


def _moving(name: str, group: int) -> Column:
    """A part of the name of an entry, if it is only told by that of the transaction."""
    return f.when(f.col(name).isNull(), f.regexp_extract("txn", _MOVE, group))


def _is_astray() -> Column:
    """What is written is so at its arrival, and all else comes after."""
    position, arrival = f.col("position"), f.col("arrival")
    return f.when(of_kind("written"), position != arrival).otherwise(
        ~of_kind("read") & (position <= arrival)
    )
