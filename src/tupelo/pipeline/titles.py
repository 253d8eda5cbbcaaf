"""The names and titles of the jobs, in the order of a report. Known without loading Spark."""

from __future__ import annotations

TITLES: dict[str, str] = {
    "audit": "What cannot be: entries lost, duplicated, taken twice or reordered, gaps in the logs",
    "life": "What became of every entry",
    "delivery": "How much of what each writer wrote reached each reader",
    "latency": "How many seconds passed from writing to reading or taking, by reader",
    "throughput": "How many changes there were, over time",
    "order": "How much readers got out of order, at one host and over all hosts",
    "overhead": "How many bytes the log has beyond those of the entries",
    "waiting": "How long readers and takers waited, and how many at once",
    "presence": "Who was engaged with whom, and when",
}
