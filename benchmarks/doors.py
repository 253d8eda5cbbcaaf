"""Keszthelyi's benchmark 8.2 through the doors: write n entries, read the predefined one, take all.

Each door does it side by side with the same work on `tupelo.Space` itself, one entry at a time. The
predefined entry is written first, and read a hundred times: the median says what one costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from matplotlib.figure import Figure

from benchmarks.measure import Findings, Line, Plot, Settings, Table, Target, compare, require
from benchmarks.thesis import HEADS, timing_cells
from tupelo import ANY, Space
from tupelo.models.javaspaces import Entry, JavaSpace
from tupelo.models.xvsm import (
    INFINITE,
    Capi,
    KeyCoordinator,
    KeySelector,
    LindaCoordinator,
    LindaSelector,
)
from tupelo.models.xvsm import Entry as Kept

SIZES = (100, 500, 1_000, 2_500, 5_000, 7_500, 10_000, 25_000, 50_000, 500_000)
COMPARED = 50_000
FEW, MANY = 500, 500_000
READS = 100
VERBS = ("write", "read", "take")


@dataclass
class SimpleEntry(Entry):
    """The thesis' entry: figure 8.1."""

    integer: int | None = None
    string: str | None = None
    boolean: bool | None = None


Fields = tuple[int, str, bool]
PREDEFINED: Fields = (42, "Benchmark", True)


@dataclass(frozen=True)
class Way:
    """One API under test: its operations on one item, created for each run; `items` are the
    items."""

    name: str
    begin: Callable[[], tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]]
    items: Callable[[list[Fields]], list[Any]]


@dataclass(frozen=True)
class Cost:
    """Microseconds an operation."""

    write: float
    read: float
    take: float


@dataclass(frozen=True)
class Row:
    """Milliseconds for n entries through one door; the read is of one."""

    door: str
    n: int
    write_ms: float
    read_ms: float
    take_ms: float


def run(settings: Settings) -> Findings:
    lines = [
        line
        for door, space, bound in (
            (JAVASPACE, TYPED, 1.5),
            (XVSM_LINDA, TUPLES, 2.0),
            (XVSM_KEY, KEYED, 2.0),
        )
        for line in _beside(door, space, bound, settings)
    ]
    lines += [*_flat(JAVASPACE, settings), _snapshot(settings)]
    rows = _rows(settings)
    cells = [
        (row.door, *timing_cells(row.n, row.write_ms, row.read_ms, row.take_ms)) for row in rows
    ]
    table = Table("The thesis' benchmark 8.2, through the doors", ("door", *HEADS), cells)
    return Findings(lines, [table], Plot("write, read and take over n, door by door", plot, rows))


def _rows(settings: Settings) -> list[Row]:
    """The figures of 8.2 for each door, up to 50,000 entries as there, then 500,000."""
    rounds = max(3, settings.rounds // 3)
    sizes = [n for n in SIZES if n <= settings.size(SIZES[-1])]
    return [_row(way, n, rounds) for way in (JAVASPACE, XVSM_LINDA, XVSM_KEY) for n in sizes]


# The lines


def _beside(door: Way, space: Way, bound: float, settings: Settings) -> list[Line]:
    """Measure the door and the space in turns; one line for each operation."""
    n = settings.size(COMPARED)
    _measure(door, n), _measure(space, n)  # to warm up
    pairs = [(_measure(door, n), _measure(space, n)) for _ in range(settings.rounds)]
    return [
        Line(
            f"8.2, {n:,} entries: {verb} through {door.name}",
            "tupelo.Space",
            "µs",
            Target("≤", bound),
            [getattr(ours, verb) for ours, _ in pairs],
            [getattr(theirs, verb) for _, theirs in pairs],
        )
        for verb in VERBS
    ]


def _flat(door: Way, settings: Settings) -> list[Line]:
    """Compare the cost of an operation with many entries stored and with few."""
    many = settings.size(MANY)
    _measure(door, FEW)
    pairs = [(_measure(door, many), _median_of(door, FEW, 20)) for _ in range(settings.rounds)]
    return [
        Line(
            f"8.2: {verb} through {door.name} with {many:,} entries",
            f"with {FEW}",
            "µs",
            Target("≤", 1.5),
            [getattr(ours, verb) for ours, _ in pairs],
            [getattr(theirs, verb) for _, theirs in pairs],
        )
        for verb in ("read", "write")
    ]


def _snapshot(settings: Settings) -> Line:
    space = JavaSpace("snapshots")
    for i in range(1_000):
        space.write(SimpleEntry(i, "Tuple", True))
    template = SimpleEntry(500, "Tuple", True)
    snapshot = space.snapshot(template)

    def read_by(asked: Any) -> float:
        start = perf_counter()
        for _ in range(10_000):
            space.read(asked, None, 0)
        return (perf_counter() - start) / 10_000 * 1e6

    require(space.read(snapshot, None, 0) == template, "a snapshot should find what it is of")
    return compare(
        "keyed read by the entry",
        "by its snapshot",
        "µs",
        Target("≥", 1.1),
        lambda: read_by(template),
        lambda: read_by(snapshot),
        settings.rounds,
    )


# One run


def _measure(way: Way, n: int) -> Cost:
    write, read, take = way.begin()
    items = way.items([PREDEFINED, *((i, "Tuple", True) for i in range(n - 1))])
    start = perf_counter()
    for item in items:
        write(item)
    written = perf_counter()
    reads = []
    for _ in range(READS):
        before = perf_counter()
        found = read(items[0])
        reads.append(perf_counter() - before)
    done_reading = perf_counter()
    for item in items:
        taken = take(item)
    end = perf_counter()
    require(bool(found) and bool(taken), "one should be read and all taken")
    return Cost(
        (written - start) / n * 1e6,
        median(reads) * 1e6,
        (end - done_reading) / n * 1e6,
    )


def _median_of(way: Way, n: int, times: int) -> Cost:
    costs = [_measure(way, n) for _ in range(times)]
    return Cost(*(median(getattr(cost, verb) for cost in costs) for verb in VERBS))


def _row(way: Way, n: int, rounds: int) -> Row:
    cost = _median_of(way, n, rounds)
    return Row(way.name, n, cost.write * n / 1e3, cost.read / 1e3, cost.take * n / 1e3)


# The ways

Verbs = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]


def _typed_items(rows: list[Fields]) -> list[Any]:
    return [SimpleEntry(*row) for row in rows]


def _javaspace() -> Verbs:
    space, blank = JavaSpace("8.2"), SimpleEntry()
    return (
        space.write,
        lambda entry: space.read(entry, None, 0),
        lambda entry: space.take(blank, None, 0),
    )


def _typed() -> Verbs:
    space, blank = Space("8.2"), SimpleEntry()
    return (
        space.write,
        lambda entry: space.read(entry, wait=0),
        lambda entry: space.take(blank, wait=0),
    )


def _xvsm_linda() -> Verbs:
    capi = Capi()
    container = capi.create_container(None, None, "8.2", INFINITE, LindaCoordinator())
    blank = LindaSelector((None, None, None))
    return (
        lambda entry: capi.write(container, 0, None, entry),
        lambda entry: capi.read(container, 0, None, LindaSelector(entry)),
        lambda entry: capi.take(container, 0, None, blank),
    )


def _tuples() -> Verbs:
    space, blank = Space("8.2"), (ANY, ANY, ANY)
    return (
        space.write,
        lambda entry: space.read(entry, wait=0),
        lambda entry: space.take(blank, wait=0),
    )


def _xvsm_key() -> Verbs:
    capi = Capi()
    container = capi.create_container(None, None, "8.2", INFINITE, KeyCoordinator())
    return (
        lambda item: capi.write(container, 0, None, item),
        lambda item: capi.read(container, 0, None, item.selectors[0]),
        lambda item: capi.take(container, 0, None, item.selectors[0]),
    )


def _keyed() -> Verbs:
    space = Space("8.2")
    return (
        space.write,
        lambda item: space.read((item[0], ANY, ANY, ANY), wait=0),
        lambda item: space.take((item[0], ANY, ANY, ANY), wait=0),
    )


def _entries_with_keys(rows: list[Fields]) -> list[Any]:
    return [Kept(row, KeySelector(f"key-{i}")) for i, row in enumerate(rows)]


def _keyed_items(rows: list[Fields]) -> list[Any]:
    return [(f"key-{i}", *row) for i, row in enumerate(rows)]


JAVASPACE = Way("javaspaces", _javaspace, _typed_items)
TYPED = Way("tupelo.Space", _typed, _typed_items)
XVSM_LINDA = Way("xvsm, Linda", _xvsm_linda, list)
TUPLES = Way("tupelo.Space", _tuples, list)
XVSM_KEY = Way("xvsm, Key", _xvsm_key, _entries_with_keys)
KEYED = Way("tupelo.Space", _keyed, _keyed_items)


def plot(rows: list[Row], path: Path) -> None:
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    for axes, verb in zip(figure.subplots(1, 3), VERBS, strict=True):
        for door in dict.fromkeys(row.door for row in rows):
            mine = [row for row in rows if row.door == door]
            axes.loglog(
                [r.n for r in mine], [getattr(r, f"{verb}_ms") for r in mine], "o-", label=door
            )
        axes.set(xlabel="n, entries", ylabel="milliseconds", title=verb)
        axes.grid(True, which="major", alpha=0.3)
        axes.legend()
    figure.suptitle("The thesis' benchmark 8.2 through Tupelo's doors")
    figure.savefig(path, dpi=120)
