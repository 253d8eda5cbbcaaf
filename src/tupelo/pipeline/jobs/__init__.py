"""Jobs: what is asked of a log. Each is a function from the table of changes to another table; it
starts nothing, and orders by positions and times that are in the rows, never by how rows come.

faults = jobs.audit(tupelo.pipeline.changes(spark, "archive"))
"""

from __future__ import annotations

from tupelo.pipeline.jobs.audit import audit, require_sound
from tupelo.pipeline.jobs.delivery import delivery
from tupelo.pipeline.jobs.job import Job
from tupelo.pipeline.jobs.latency import latency
from tupelo.pipeline.jobs.life import life
from tupelo.pipeline.jobs.ordered import order
from tupelo.pipeline.jobs.overhead import overhead
from tupelo.pipeline.jobs.presence import presence
from tupelo.pipeline.jobs.throughput import throughput
from tupelo.pipeline.jobs.waiting import waiting

__all__ = [
    "JOBS",
    "Job",
    "audit",
    "delivery",
    "latency",
    "life",
    "order",
    "overhead",
    "presence",
    "require_sound",
    "throughput",
    "waiting",
]

JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job(
            "audit",
            "What cannot be: lost, duplicated, taken twice, reordered; gaps in the logs",
            audit,
            ("fault", "host", "space", "origin", "n", "first"),
        ),
        Job(
            "life",
            "What became of every entry",
            life,
            ("space", "origin", "n"),
        ),
        Job(
            "delivery",
            "How much of what each writer wrote reached each reader",
            delivery,
            ("space", "shape", "writer", "reader"),
            "bars",
        ),
        Job(
            "latency",
            "How many seconds passed from writing to reading or taking, by reader",
            latency,
            ("space", "reader", "how"),
            "bars",
        ),
        Job(
            "throughput",
            "How many changes there were, over time",
            throughput,
            ("at", "kind"),
            "lines",
        ),
        Job(
            "order",
            "How much readers got out of order, at one host and over all hosts",
            order,
            ("over", "host", "space", "reader"),
            "bars",
        ),
        Job(
            "overhead",
            "How many bytes the log has beyond those of the entries",
            overhead,
            ("host", "space", "kind"),
            "bars",
        ),
        Job(
            "waiting",
            "How long readers and takers waited, and how many at once",
            waiting,
            ("space", "shape"),
            "bars",
        ),
        Job(
            "presence",
            "Who was engaged with whom, and when",
            presence,
            ("host", "since"),
            "spans",
        ),
    )
}
"""In the order in which a report shows them."""
