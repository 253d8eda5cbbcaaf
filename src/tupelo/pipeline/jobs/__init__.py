"""Jobs: functions from the table of changes to a result table. They are lazy (except `chains`), and
order by positions and times in the rows, never by the order of the rows.

faults = jobs.audit(tupelo.pipeline.changes(spark, "archive"))

A job may use the table more than once: `persist` a table that is slow to read, or that grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from tupelo.pipeline import TITLES
from tupelo.pipeline.jobs.audit import audit, life, require_sound, tally
from tupelo.pipeline.jobs.causes import chains, coordination
from tupelo.pipeline.jobs.conformance import ALWAYS, LAWS, conformance
from tupelo.pipeline.jobs.contacts import contacts, partitions, spread
from tupelo.pipeline.jobs.contended import contention, leases
from tupelo.pipeline.jobs.measures import delivery, latency, overhead, presence, throughput, waiting
from tupelo.pipeline.jobs.ordered import order
from tupelo.pipeline.jobs.owner import backlog, load, retries, turnaround, workers
from tupelo.pipeline.jobs.seeds import FIGURES, Run, over_seeds
from tupelo.pipeline.jobs.whatif import whatif


@dataclass(frozen=True)
class Job:
    """`run` turns a table of changes into the result, lazily. `title` is one line for people, and
    `order` the columns by which the result is sorted for display."""

    name: str
    title: str
    run: Callable[[DataFrame], DataFrame]
    order: tuple[str, ...]


__all__ = [
    "ALWAYS",
    "FIGURES",
    "JOBS",
    "LAWS",
    "Job",
    "Run",
    "audit",
    "backlog",
    "chains",
    "conformance",
    "contacts",
    "contention",
    "coordination",
    "delivery",
    "latency",
    "leases",
    "life",
    "load",
    "order",
    "over_seeds",
    "overhead",
    "partitions",
    "presence",
    "require_sound",
    "retries",
    "spread",
    "tally",
    "throughput",
    "turnaround",
    "waiting",
    "whatif",
    "workers",
]

_TABLES: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...]]] = {
    "backlog": (backlog, ("at", "space", "entry_kind")),
    "turnaround": (turnaround, ("space", "entry_kind", "worker")),
    "workers": (workers, ("space", "worker")),
    "load": (load, ("at", "space", "worker")),
    "retries": (retries, ("space", "entry_kind", "job")),
    "whatif": (whatif, ("space", "workers")),
    "audit": (audit, ("fault", "host", "space", "origin", "n", "first")),
    "conformance": (conformance, ("law", "host", "space", "first", "last")),
    "life": (life, ("space", "origin", "n")),
    "coordination": (coordination, ("space", "entry_kind", "writer", "reader")),
    "chains": (chains, ("space", "origin", "n")),
    "contention": (contention, ("space", "entry_kind", "worker")),
    "leases": (leases, ("space", "entry_kind")),
    "delivery": (delivery, ("space", "shape", "writer", "reader")),
    "latency": (latency, ("space", "reader", "how")),
    "throughput": (throughput, ("at", "kind")),
    "order": (order, ("over", "host", "space", "reader")),
    "overhead": (overhead, ("host", "space", "kind")),
    "waiting": (waiting, ("space", "shape")),
    "spread": (spread, ("space", "entry_kind", "copies", "hops")),
    "presence": (presence, ("host", "since", "peer")),
    "contacts": (contacts, ("host", "peer")),
    "partitions": (partitions, ("at",)),
}

JOBS: dict[str, Job] = {name: Job(name, title, *_TABLES[name]) for name, title in TITLES.items()}
"""In the order of a report."""
