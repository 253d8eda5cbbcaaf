"""Memory: the growth of a new process by a million entries, including the entries themselves."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

from benchmarks.index import index_count
from benchmarks.measure import (
    Line,
    Settings,
    Target,
    compare,
    fields,
    in_fresh_process,
    require,
)
from tupelo import Space


def run(settings: Settings) -> list[Line]:
    count = settings.size(1_000_000)

    def line(what: str, indexed: bool, bytes_max: float) -> Line:
        return compare(
            f"memory an entry, {count:,} stored, {what}",
            "a list of the same tuples",
            "B",
            Target("≤", bytes_max, of="ours"),
            lambda: in_fresh_process(_in_space, count, indexed),
            lambda: in_fresh_process(_in_list, count),
            settings.rounds,
            warm_up=False,
        )

    return [line("no index", False, 600), line("one on a unique field", True, 900)]


def _in_space(count: int, indexed: bool) -> float:
    space = Space()
    before = resident_bytes()
    for i in range(count):
        space.write(fields(i))
    if indexed:
        require(space.read((str, count - 1, float, bool), wait=0) is not None, "it is there")
    after = resident_bytes()
    require(index_count(space) == int(indexed), "there should be an index only if it is wanted")
    return (after - before) / count


def _in_list(count: int) -> float:
    before = resident_bytes()
    held = [fields(i) for i in range(count)]
    return (resident_bytes() - before) / len(held)


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
