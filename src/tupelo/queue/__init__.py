"""A job queue on a space of any kind, and adapters that look like the queues, executors and dicts
of the standard library. Written with the public API of spaces only."""

from tupelo.queue.adapters import AsyncQueue, QueueExecutor, SpaceDict
from tupelo.queue.jobs import (
    DeadLetter,
    Job,
    JobCancelled,
    JobFailed,
    JobQueue,
    QueueStatus,
    queue_names,
)

__all__ = [
    "AsyncQueue",
    "DeadLetter",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobQueue",
    "QueueExecutor",
    "QueueStatus",
    "SpaceDict",
    "queue_names",
]
