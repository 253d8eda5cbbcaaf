"""The index: keyed reads and takes among few and many, writes with and without it, and a scan.

Keys are drawn by a seeded generator. The garbage collector runs as it does for a user.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import perf_counter

from benchmarks.measure import Fields, Line, Settings, Target, compare, fields, require
from tupelo import ANY, Space

FEW = 1_000
BATCH = 1_000
TAKEN_AT_ONCE = 100  # of the few, so that there are about as many during the batch
BATCHES_PER_ROUND = 10
SEEN_BEFORE_ASKING = 100  # more than the entries that a search passes over before it builds


def run(settings: Settings) -> list[Line]:
    return [*_keyed(settings), _write(settings), _selective(settings)]


# Keyed reads and takes


def _keyed(settings: Settings) -> list[Line]:
    many = settings.size(1_000_000)
    few_space, many_space = _space_of(FEW), _space_of(many)
    for space in (few_space, many_space):
        space.read((str, FEW - 1, float, bool), wait=0)
        require(index_count(space) == 1, "one field should be indexed")
    random = Random(64)

    def line(verb: str, batch: Callable[[Space, int, Random], float]) -> Line:
        return compare(
            f"keyed {verb} with {many:,} stored",
            f"with {FEW:,} stored",
            "µs",
            Target("≤", 1.5),
            lambda: batch(many_space, many, random),
            lambda: batch(few_space, FEW, random),
            settings.rounds * BATCHES_PER_ROUND,
        )

    return [line("read", _read_batch), line("take", _take_batch)]


def _read_batch(space: Space, stored: int, random: Random) -> float:
    """Microseconds a read."""
    keys = [random.randrange(stored) for _ in range(BATCH)]
    templates = [(str, key, float, bool) for key in keys]
    read = space.read
    start = perf_counter()
    found = [read(template, wait=0) for template in templates]
    seconds = perf_counter() - start
    require(found == [fields(key) for key in keys], "every key should be read")
    return seconds / BATCH * 1e6


def _take_batch(space: Space, stored: int, random: Random) -> float:
    """Microseconds a take. What was taken is written again between the timed parts."""
    seconds = 0.0
    take = space.take
    for _ in range(BATCH // TAKEN_AT_ONCE):
        keys = random.sample(range(stored), TAKEN_AT_ONCE)
        templates = [(str, key, float, bool) for key in keys]
        start = perf_counter()
        found = [take(template, wait=0) for template in templates]
        seconds += perf_counter() - start
        require(found == [fields(key) for key in keys], "every key should be taken")
        for key in keys:
            space.write(fields(key))
    return seconds / BATCH * 1e6


# Writing


def _write(settings: Settings) -> Line:
    items = [fields(i) for i in range(settings.size(100_000))]

    def not_indexed() -> float:
        space = _space_of(SEEN_BEFORE_ASKING)
        rate = _writes_per_second(space, items)
        require(index_count(space) == 0, "no field should be indexed")
        return rate

    def indexed() -> float:
        space = _space_of(SEEN_BEFORE_ASKING)
        # A value that no entry has, in each field by itself: each search passes over them all.
        for template in (
            ("nothing", ANY, ANY, ANY),
            (ANY, -1, ANY, ANY),
            (ANY, ANY, -1.0, ANY),
            (ANY, ANY, ANY, False),
        ):
            require(space.read(template, wait=0) is None, "nothing should match")
        rate = _writes_per_second(space, items)
        require(index_count(space) == 4, "four fields should be indexed")
        return rate

    return compare(
        "write while no template asks for a value",
        "with four fields indexed",
        "/s",
        Target("≥", 1.5),
        not_indexed,
        indexed,
        settings.rounds,
    )


def _writes_per_second(space: Space, items: list[Fields]) -> float:
    write = space.write
    start = perf_counter()
    for item in items:
        write(item)
    return len(items) / (perf_counter() - start)


# A selective read against a scan


def _selective(settings: Settings) -> Line:
    stored = settings.size(100_000)
    items = [fields(i) for i in range(stored)]
    space = _space_of(stored)
    # All keys of a stretch in the middle are read, and every fiftieth is scanned for.
    keys = range(stored // 2 - BATCH // 2, stored // 2 + BATCH // 2)
    scanned = keys[::50]
    templates = [(str, key, float, bool) for key in keys]

    def reads() -> float:
        read = space.read
        start = perf_counter()
        found = [read(template, wait=0) for template in templates]
        seconds = perf_counter() - start
        require(found == [items[key] for key in keys], "the entries in the middle should be read")
        return len(keys) / seconds

    def scans() -> float:
        start = perf_counter()
        found = [_scan(items, key) for key in scanned]
        seconds = perf_counter() - start
        require(found == [items[key] for key in scanned], "each in the middle should be found")
        return len(scanned) / seconds

    return compare(
        f"read of an entry in the middle of {stored:,}",
        "a scan of a list, in Python",
        "/s",
        Target("≥", 200 / settings.cut),
        reads,
        scans,
        settings.rounds,
    )


def _scan(items: list[Fields], key: int) -> Fields | None:
    """The quickest such loop: it compares one field, and stops at the first match."""
    for item in items:
        if item[1] == key:
            return item
    return None


# Common ground


def _space_of(count: int) -> Space:
    space = Space()
    for i in range(count):
        space.write(fields(i))
    return space


def index_count(space: Space) -> int:
    """The number of indexes in the store of a space, for which there is no public name."""
    buckets = space._port._core.store.buckets.values()
    return sum(len(bucket.indexes) for bucket in buckets)
