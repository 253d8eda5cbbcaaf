"""Coordination: writers, readers and the entries between them; and chains of entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tupelo.errors import PipelineError
from tupelo.pipeline.jobs.columns import (
    ENTRY,
    STAY,
    agent_names,
    entry_kind,
    gotten,
    of_kind,
    seconds_of,
)
from tupelo.values.change import BY_REACTION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PATH_STEPS = 32
"""Of a longer path, the last steps are kept."""
_ROUNDS_MAX = 40


def coordination(changes: DataFrame) -> DataFrame:
    """One row per space, kind of entry, writer and reader: the number of entries of this writer
    that the reader has read and taken, from the first to the last of them, and how many a second.
    Reads count where the space logs them; a take that was returned does not. The names are those
    under which the programs wrote and got these entries."""
    stream = ["space", "entry_kind", "origin"]
    writes = changes.where(of_kind("written") & (f.col("agent") == f.col("origin")))
    writers = writes.withColumn("entry_kind", entry_kind()).groupBy(*stream)
    span = seconds_of("until") - seconds_of("since")
    return (
        gotten(changes)
        .withColumn("entry_kind", entry_kind())
        .groupBy(*ENTRY, "entry_kind", "agent")
        .agg(
            f.max(of_kind("read").cast("int")).alias("read"),
            f.max(of_kind("taken").cast("int")).alias("taken"),
            f.max("agent_name").alias("reader_name"),
            f.min("time").alias("since"),
            f.max("time").alias("until"),
        )
        .groupBy(*stream, f.col("agent").alias("reader"))
        .agg(
            agent_names("reader_name").alias("reader_name"),
            f.count("*").alias("entries"),
            f.sum("read").alias("read"),
            f.sum("taken").alias("taken"),
            f.min("since").alias("since"),
            f.max("until").alias("until"),
        )
        .join(writers.agg(agent_names("agent_name").alias("writer_name")), stream, "left")
        .select(
            "space",
            "entry_kind",
            f.col("origin").alias("writer"),
            "writer_name",
            "reader",
            "reader_name",
            "entries",
            "read",
            "taken",
            "since",
            "until",
            f.when(span > 0, f.col("entries") / span).alias("per_second"),
        )
    )


def chains(changes: DataFrame) -> DataFrame:
    """One row per entry from which others followed, directly or not: an entry follows from the one
    that was taken in the transaction that wrote it, or from the last written of several; or from
    the one to which the reaction reacted that wrote it, outside transactions. `entries`
    followed; the critical path goes to the last of them: when it was written, the `seconds` since
    the first, the number of `steps`, the `path` of spaces and kinds, and its slowest step.

    Unlike other jobs, this one computes before it returns: it needs about log2 of the longest
    chain rounds."""
    links = _links(changes).localCheckpoint()
    for _ in range(_ROUNDS_MAX):
        above = links.select(
            f.col("entry").alias("up"),
            *(f.col(name).alias(f"{name}_above") for name in ("steps", "slowest", "path", "root")),
            f.col("up").alias("up_above"),
        )
        joined = links.join(above, "up", "left").select(
            "entry",
            f.coalesce("up_above", "up").alias("up"),
            "at",
            f.coalesce("root_above", "root").alias("root"),
            (f.col("steps") + f.coalesce("steps_above", f.lit(0))).alias("steps"),
            f.greatest("slowest", "slowest_above").alias("slowest"),
            f.slice(
                f.concat(f.coalesce("path_above", f.array().cast("array<string>")), "path"),
                f.greatest(
                    f.lit(1),
                    f.size("path") + f.coalesce(f.size("path_above"), f.lit(0)) - PATH_STEPS + 1,
                ),
                f.lit(PATH_STEPS),
            ).alias("path"),
            f.col("up_above").isNotNull().alias("further"),
        )
        joined = joined.localCheckpoint()
        links = joined.drop("further")
        if not joined.where("further").take(1):
            break
    else:
        raise PipelineError("entries of these logs follow from themselves: see `audit`")
    last = f.struct("at", "steps", "entry")
    return (
        links.groupBy("up")
        .agg(
            f.count("*").alias("entries"),
            f.max("at").alias("last_at"),
            *(f.max_by(name, last).alias(name) for name in ("root", "steps", "slowest", "path")),
        )
        .select(
            *(f.col("up")[name].alias(name) for name in ENTRY),
            f.col("root.entry_kind").alias("entry_kind"),
            "entries",
            f.col("root.at").alias("written_at"),
            "last_at",
            (seconds_of("last_at") - seconds_of("root.at")).alias("seconds"),
            "steps",
            f.concat_ws(" → ", f.col("root.label"), "path").alias("path"),
            f.col("slowest.label").alias("slowest"),
            f.col("slowest.seconds").alias("slowest_seconds"),
        )
    )


def _links(changes: DataFrame) -> DataFrame:
    """Each entry with the one that it follows from (`up`): the first writing counts."""
    entry = f.struct(*ENTRY)
    of_program = f.col("txn").isNotNull() & ~f.col("txn").contains(":")  # not of a delivery
    of_entries = changes.where(f.col("n").isNotNull())
    written = (
        of_entries.where(of_kind("written"))
        .groupBy(*ENTRY)
        .agg(f.min(f.struct("time", "txn", entry_kind().alias("entry_kind"))).alias("first"))
        .select(
            entry.alias("entry"),
            f.col("first.time").alias("at"),
            f.col("first.txn").alias("txn"),
            f.col("first.entry_kind").alias("entry_kind"),
            f.concat_ws("/", "space", "first.entry_kind").alias("label"),
        )
    )
    taken = of_entries.where(of_kind("taken") & of_program).select(
        entry.alias("entry"), f.col("txn").alias("taken_in")
    )
    cause = f.struct("at", "entry", "entry_kind", "label")
    causes = (
        taken.join(written, "entry")
        .where(~f.col("txn").eqNullSafe(f.col("taken_in")))
        .groupBy("taken_in")
        .agg(f.max(cause).alias("cause"))
    )
    links = written.join(causes, written["txn"] == causes["taken_in"]).drop("txn", "taken_in")
    by_reaction = of_kind("written") & f.startswith("txn", f.lit(BY_REACTION))
    if of_entries.where(by_reaction).take(1):  # To look for their causes takes a while.
        reacted_to = f.expr(f"try_cast(substr(txn, {len(BY_REACTION) + 1}) as bigint)")
        effects = of_entries.where(by_reaction).select(
            entry.alias("effect"), "txn", "host", "space", reacted_to.alias("arrival")
        )
        stays = of_entries.where(of_kind("written")).select(*STAY, entry.alias("entry"))
        reacted = (
            effects.join(stays, [*STAY])
            .join(written.drop("txn"), "entry")
            .select("effect", "txn", cause.alias("cause"))
        )
        same = (written["entry"] == reacted["effect"]) & (written["txn"] == reacted["txn"])
        of_reactions = written.join(reacted, same).drop("txn", "effect")
        links = links.unionByName(of_reactions)
    seconds: Column = seconds_of("at") - seconds_of("cause.at")
    return links.select(
        "entry",
        f.col("cause.entry").alias("up"),
        "at",
        f.struct("cause.at", "cause.entry_kind", "cause.label").alias("root"),
        f.lit(1).cast("long").alias("steps"),
        f.struct(seconds.alias("seconds"), "label").alias("slowest"),
        f.array("label").alias("path"),
    )
