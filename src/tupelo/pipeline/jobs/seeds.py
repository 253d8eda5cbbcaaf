"""Figures of several runs, with confidence intervals over their seeds: what plots need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f

from tupelo.errors import BadArgument
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.intervals import interval
from tupelo.pipeline.jobs.columns import seconds_of
from tupelo.pipeline.jobs.contacts import each_contact, partitions, spread
from tupelo.pipeline.jobs.measures import delivery, latency, overhead, waiting
from tupelo.pipeline.jobs.ordered import order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Run(NamedTuple):
    """The changes of one run of an experiment with a setting, and the seed of its random
    numbers."""

    setting: str
    seed: int
    changes: DataFrame


def over_seeds(job: str, runs: Iterable[Run]) -> pa.Table:
    """The figures of this job (one of `FIGURES`) for each run, and for each setting their mean over
    the seeds, with the bounds `low` and `high` of its confidence interval of 95 %.

    One row per setting, group of the job, figure and seed; `seed` is null for all seeds together,
    and `seeds` is the number of those that have the figure: a run without any entry of a group has
    none. Ids differ between runs, so the figures are over all hosts and agents.

    Unlike other jobs, this one computes before it returns, one run after the other."""
    if job not in FIGURES:
        raise BadArgument("job", f"one of {', '.join(FIGURES)}", job)
    table, groups, figures = FIGURES[job]
    found: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    seen: set[tuple[str, int]] = set()
    for run in runs:
        if run[:2] in seen:
            wanted = "runs of different settings or seeds"
            raise BadArgument("runs", wanted, f"twice {run.setting!r} with seed {run.seed}")
        seen.add(run[:2])
        aggregates = [f.expr(sql).cast("double").alias(name) for name, sql in figures.items()]
        for row in table(run.changes).groupBy(*groups).agg(*aggregates).collect():
            group = tuple("" if row[name] is None else str(row[name]) for name in groups)
            for figure in figures:
                if row[figure] is not None:
                    found[run.setting, *group, figure][run.seed] = row[figure]
    rows = []
    for key, values in sorted(found.items()):
        mean, low, high = interval([*values.values()])
        where = dict(zip(("setting", *groups, "figure"), key, strict=True))
        rows += [
            {**where, "seed": seed, "seeds": 1, "mean": value}
            for seed, value in sorted(values.items())
        ]
        rows.append({**where, "seeds": len(values), "mean": mean, "low": low, "high": high})
    texts = [(name, pa.string()) for name in ("setting", *groups, "figure")]
    bounds = [(name, pa.float64()) for name in ("mean", "low", "high")]
    counts = [(name, pa.int64()) for name in ("seed", "seeds")]
    return pa.Table.from_pylist(rows, pa.schema([*texts, *counts, *bounds]))


def _of_users(job: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
    return lambda changes: job(changes.where(f.col("space") != PRESENCE))


def _lasting_partitions(changes: DataFrame) -> DataFrame:
    """`partitions`, with the seconds that each lasted; the last one until the logs end."""
    end = changes.agg(f.max("time").alias("end"))
    following = f.lead("at").over(Window.orderBy("at"))
    return (
        partitions(changes)
        .withColumn("next", following)
        .crossJoin(f.broadcast(end))
        .withColumn("until", f.coalesce("next", "end"))
        .withColumn("lasted", seconds_of("until") - seconds_of("at"))
    )


def _delivery_by_pair(changes: DataFrame) -> DataFrame:
    """`delivery`, with the part of what each writer wrote (`own`) that makes the sum over its
    readers what it wrote."""
    readers = f.count("*").over(Window.partitionBy("space", "shape", "writer"))
    return delivery(changes).withColumn("own", f.col("written") / readers)


def _mean(column: str, weight: str) -> str:
    return f"try_divide(sum({column} * {weight}), sum({weight}))"


def _share(part: str, whole: str) -> str:
    return f"try_divide(sum({part}), sum({whole}))"


FIGURES: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...], dict[str, str]]] = {
    "contacts": (
        each_contact,
        (),
        {"contacts": "count(*)", "seconds": "avg(seconds)", "between": "avg(between)"},
    ),
    "partitions": (
        _lasting_partitions,
        (),
        {name: _mean(name, "lasted") for name in ("hosts", "groups", "largest")}
        | {"connected": _mean("cast(groups = 1 as int)", "lasted")},
    ),
    "spread": (
        _of_users(spread),
        ("space", "entry_kind", "copies", "hops"),
        {"entries": "sum(entries)", "ratio": _share("delivered", "entries"), "mean": "max(mean)"},
    ),
    "delivery": (
        _of_users(_delivery_by_pair),
        ("space", "shape"),
        {"written": "sum(own)", "readers": _share("reached", "own")},
    ),
    "latency": (
        _of_users(latency),
        ("space", "how"),
        {"entries": "sum(entries)", "mean": _mean("mean", "entries"), "max": "max(max)"},
    ),
    "waiting": (
        _of_users(waiting),
        ("space", "shape"),
        {"got": "sum(got)", "share": _share("waited", "got"), "p50": "max(p50)", "p99": "max(p99)"},
    ),
    "order": (
        _of_users(order),
        ("over", "space"),
        {"got": "sum(got)", "share": _share("out_of_order", "got")},
    ),
    "overhead": (
        _of_users(overhead),
        ("space",),
        {
            "changes": "sum(changes)",
            "overhead": "try_divide(sum(log) - sum(payload), sum(payload))",
        },
    ),
}
"""By job: its table, the columns that group it, and aggregates over the rest of it in SQL."""
