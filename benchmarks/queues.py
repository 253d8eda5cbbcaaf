"""A space as a queue: fill it, drain it, against queue.Queue. As a list: read its first entry. And
as a priority queue: take the most urgent entry.

Both sides are handed the same tuples, made before the clock starts, and both drain with a call
that would block if there were nothing.
"""

from __future__ import annotations

import queue
import random
from time import perf_counter

from benchmarks.measure import TYPES, Fields, Line, Settings, Target, compare, fields, require
from tupelo import ANY, Key, Space, Vector

SAMPLES_PER_ROUND = 3
READS = 100
TAKES = 500


def run(settings: Settings) -> list[Line]:
    items = [fields(i) for i in range(settings.size(50_000))]

    def line(name: str, template: object) -> Line:
        return compare(
            f"write and take({name}), in pairs",
            "queue.Queue put and get",
            "/s",
            Target("≥", 0.8),
            lambda: _through_space(items, template),
            lambda: _through_queue(items),
            settings.rounds * SAMPLES_PER_ROUND,
        )

    most, least = settings.size(50_000), settings.size(1_000)
    vector = compare(
        f"read(types) of a Vector, {most:,} stored",
        f"with {least:,}",
        "µs",
        Target("≤", 1.5),
        lambda: _from_vector(items[:most]),
        lambda: _from_vector(items[:least]),
        settings.rounds,
    )
    return [
        line("types", TYPES),
        line("ANY", ANY),
        vector,
        _priority(settings, "ten priorities", 10),
        _priority(settings, "each its own", 10**9),
    ]


def _priority(settings: Settings, name: str, priorities: int) -> Line:
    most, least = settings.size(100_000), settings.size(1_000)
    return compare(
        f"take by priority ({name}), {most:,} stored",
        f"with {least:,}",
        "µs",
        Target("≤", 1.5),
        lambda: _by_priority(most, priorities),
        lambda: _by_priority(least, priorities),
        settings.rounds,
    )


def _by_priority(count: int, priorities: int) -> float:
    """Each take is followed by a write, so that the number stays the same."""
    draw = random.Random(count)
    space = Space()
    space.write_all([("job", draw.randrange(priorities), i) for i in range(count)])
    space.read(("job", int, int), order=Key(1))  # sorts the index
    seconds, last = 0.0, -1
    for _ in range(TAKES):
        start = perf_counter()
        job = space.take(("job", int, int), order=Key(1))
        seconds += perf_counter() - start
        require(job is not None and job[1] >= last, "the most urgent should come first")
        last = job[1] if job else last
        space.write(("job", priorities, 0))
    return seconds / TAKES * 1e6


def _from_vector(items: list[Fields]) -> float:
    space = Space(order=Vector())
    space.write_all(items)
    start = perf_counter()
    for _ in range(READS):
        require(space.read(TYPES, wait=0) == items[0], "the first should stand first")
    return (perf_counter() - start) / READS * 1e6


def _through_space(items: list[Fields], template: object) -> float:
    space = Space()
    write, take = space.write, space.take
    start = perf_counter()
    for item in items:
        write(item)
    for _ in items:
        take(template)
    seconds = perf_counter() - start
    require(space.count() == 0, "the space should be empty")
    return len(items) / seconds


def _through_queue(items: list[Fields]) -> float:
    channel: queue.Queue[Fields] = queue.Queue()
    put, get = channel.put, channel.get
    start = perf_counter()
    for item in items:
        put(item)
    for _ in items:
        get()
    seconds = perf_counter() - start
    require(channel.empty(), "the queue should be empty")
    return len(items) / seconds
