"""What a researcher plots: contacts of hosts, partitions, and how far entries spread."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.federation.names import PRESENCE
from tupelo.pipeline.jobs.columns import (
    ENTRY,
    entry_kind,
    gotten,
    mean_of,
    of_kind,
    percentiles,
    seconds_of,
)
from tupelo.pipeline.jobs.measures import presence
from tupelo.pipeline.schema import TIME, ddl_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def contacts(changes: DataFrame) -> DataFrame:
    """One row per host and other host that it was engaged with: the number of contacts, mean and
    percentiles of their durations in seconds (of those that have ended), and of the times between
    them (`between_…`)."""
    return (
        each_contact(changes)
        .groupBy("host", "peer")
        .agg(
            f.max("name").alias("peer_name"),
            f.count("*").alias("contacts"),
            f.sum("seconds").alias("seconds"),
            *mean_of("seconds"),
            *percentiles("seconds"),
            *mean_of("between", "between_"),
            *percentiles("between", "between_"),
        )
    )


def each_contact(changes: DataFrame) -> DataFrame:
    """`presence`, with the seconds since the contact of the two before (`between`)."""
    following = Window.partitionBy("host", "peer").orderBy("since")
    before = f.lag("until").over(following)
    return (
        presence(changes)
        .withColumn("before", before)
        .withColumn("between", seconds_of("since") - seconds_of("before"))
        .drop("before")
    )


_PARTITION = pa.schema(
    [
        ("at", TIME),
        ("hosts", pa.int64()),
        ("groups", pa.int64()),
        ("largest", pa.int64()),
        ("members", pa.string()),
    ]
)


def partitions(changes: DataFrame) -> DataFrame:
    """One row per moment at which the groups of hosts that reach each other changed: the number of
    `hosts` that were at work, of `groups`, the size of the largest, and the `members` of each. Two
    hosts reach each other while both are engaged with each other, as far as their logs are there,
    or over others."""
    met = changes.where((f.col("space") == PRESENCE) & of_kind("engaged", "disengaged")).select(
        f.lit(1).alias("all"),
        "time",
        "host",
        "position",
        "kind",
        f.get_json_object("fields", "$.id").alias("peer"),
    )
    return met.groupBy("all").applyInArrow(_groups_over_time, ddl_of(_PARTITION))


def _groups_over_time(met: pa.Table) -> pa.Table:
    order = [("time", "ascending"), ("host", "ascending"), ("position", "ascending")]
    there: set[tuple[str, str]] = set()
    logged = set(met.column("host").to_pylist())
    rows = []
    last: list[list[str]] = []
    for at, moments in groupby(met.sort_by(order).to_pylist(), key=lambda row: row["time"]):
        for row in moments:
            link = row["host"], row["peer"]
            if row["kind"] == "engaged":
                there.add(link)
            else:
                there.discard(link)
                if row["host"] == row["peer"]:  # It has stopped.
                    there = {link for link in there if link[0] != row["host"]}
        groups = groups_of(
            {(one, two) for one, two in there if two not in logged or (two, one) in there}
        )
        if groups != last:
            sizes = [len(group) for group in groups]
            rows.append(
                {
                    "at": at,
                    "hosts": sum(sizes),
                    "groups": len(groups),
                    "largest": max(sizes, default=0),
                    "members": " | ".join(" ".join(group) for group in groups),
                }
            )
            last = groups
    return pa.Table.from_pylist(rows, _PARTITION)


def groups_of(links: set[tuple[str, str]]) -> list[list[str]]:
    """The connected components, sorted."""
    parent: dict[str, str] = {}

    def root(host: str) -> str:
        parent.setdefault(host, host)
        while parent[host] != host:
            parent[host] = host = parent[parent[host]]
        return host

    for one, other in links:
        parent[root(one)] = root(other)
    found: dict[str, list[str]] = {}
    for host in sorted(parent):
        found.setdefault(root(host), []).append(host)
    return sorted(found.values())


def spread(changes: DataFrame) -> DataFrame:
    """One row per space, kind of entry, number of hosts that had a copy (`copies`) and of times
    that the entry went on to another host (`hops`): how many entries, how many that somebody other
    than their writer got, their share (`ratio`), and the mean and percentiles of the seconds from
    the first writing to that."""
    of_entries = changes.where(f.col("n").isNotNull())
    written = (
        of_entries.where(of_kind("written"))
        # In two steps: a count of distinct values would take several times as long.
        .groupBy(*ENTRY, "host")
        .agg(
            f.max(entry_kind()).alias("entry_kind"),
            f.min("time").alias("written_at"),
            f.count("*").alias("stays"),
        )
        .groupBy(*ENTRY)
        .agg(
            f.max("entry_kind").alias("entry_kind"),
            f.min("written_at").alias("written_at"),
            f.count("*").alias("copies"),
            (f.sum("stays") - 1).alias("hops"),
        )
    )
    got = (
        gotten(changes).where("agent <> origin").groupBy(*ENTRY).agg(f.min("time").alias("got_at"))
    )
    return (
        written.join(got, [*ENTRY], "left")
        .withColumn("seconds", seconds_of("got_at") - seconds_of("written_at"))
        .groupBy("space", "entry_kind", "copies", "hops")
        .agg(
            f.count("*").alias("entries"),
            f.count("got_at").alias("delivered"),
            (f.count("got_at") / f.count("*")).alias("ratio"),
            *mean_of("seconds"),
            *percentiles("seconds"),
        )
    )
