"""Jobs: functions from the table of changes to a result table. They are lazy, and order by
positions and times in the rows, never by the order of the rows.

faults = jobs.audit(tupelo.pipeline.changes(spark, "archive"))

A job may use the table more than once: `persist` a table that is slow to read, or that grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from tupelo.pipeline import TITLES
from tupelo.pipeline.jobs.audit import audit, require_sound, tally
from tupelo.pipeline.jobs.life import life
from tupelo.pipeline.jobs.measures import delivery, latency, overhead, presence, throughput, waiting
from tupelo.pipeline.jobs.ordered import order
from tupelo.pipeline.jobs.owner import backlog, load, retries, turnaround, workers


@dataclass(frozen=True)
class Job:
    """`run` turns a table of changes into the result, lazily. `title` is one line for people, and
    `order` the columns by which the result is sorted for display."""

    name: str
    title: str
    run: Callable[[DataFrame], DataFrame]
    order: tuple[str, ...]


__all__ = [
    "JOBS",
    "Job",
    "audit",
    "backlog",
    "delivery",
    "latency",
    "life",
    "load",
    "order",
    "overhead",
    "presence",
    "require_sound",
    "retries",
    "tally",
    "throughput",
    "turnaround",
    "waiting",
    "workers",
]

_TABLES: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...]]] = {
    "backlog": (backlog, ("at", "space", "entry_kind")),
    "turnaround": (turnaround, ("space", "entry_kind", "worker")),
    "workers": (workers, ("space", "worker")),
    "load": (load, ("at", "space", "worker")),
    "retries": (retries, ("space", "entry_kind", "job")),
    "audit": (audit, ("fault", "host", "space", "origin", "n", "first")),
    "life": (life, ("space", "origin", "n")),
    "delivery": (delivery, ("space", "shape", "writer", "reader")),
    "latency": (latency, ("space", "reader", "how")),
    "throughput": (throughput, ("at", "kind")),
    "order": (order, ("over", "host", "space", "reader")),
    "overhead": (overhead, ("host", "space", "kind")),
    "waiting": (waiting, ("space", "shape")),
    "presence": (presence, ("host", "since", "peer")),
}

JOBS: dict[str, Job] = {name: Job(name, title, *_TABLES[name]) for name, title in TITLES.items()}
"""In the order of a report."""
