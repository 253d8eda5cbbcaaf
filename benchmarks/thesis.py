"""Keszthelyi's benchmark 6.4: write n tuples, read the predefined one, take all, one at a time.

The predefined tuple is written first and read by its values; all are taken by the template of
types. His figures have no numbers, so only ours are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from matplotlib.figure import Figure

from benchmarks.measure import TYPES, Findings, Plot, Settings, Table, require
from tupelo import Space

SIZES = (10, 100, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000)
PREDEFINED = ("Benchmark", 42, 3.14159265, True)


@dataclass(frozen=True)
class Row:
    """Milliseconds for n tuples; the read is of one."""

    n: int
    write_ms: float
    read_ms: float
    take_ms: float


HEADS = ("n", "write n, ms", "read 1, ms", "take n, ms", "write/s", "take/s")


def run(settings: Settings) -> Findings:
    _once(1_000)  # to warm up
    rows = [_row(n, settings.rounds) for n in SIZES if n <= settings.size(SIZES[-1])]
    cells = [timing_cells(row.n, row.write_ms, row.read_ms, row.take_ms) for row in rows]
    table = Table("The thesis' benchmark 6.4, through tupelo.Space", HEADS, cells)
    return Findings(tables=[table], plot=Plot("write, read and take over n", plot, rows))


def timing_cells(n: int, write_ms: float, read_ms: float, take_ms: float) -> tuple[str, ...]:
    """The cells of HEADS."""
    return (
        f"{n:,}",
        f"{write_ms:,.2f}",
        f"{read_ms:.4f}",
        f"{take_ms:,.2f}",
        f"{n / write_ms * 1e3:,.0f}",
        f"{n / take_ms * 1e3:,.0f}",
    )


def _row(n: int, rounds: int) -> Row:
    write, read, take = zip(*(_once(n) for _ in range(rounds)), strict=True)
    return Row(n, median(write), median(read), median(take))


def _once(n: int) -> tuple[float, float, float]:
    normal = [("Tuple", i, 3.14159, True) for i in range(n - 1)]
    space = Space()
    start = perf_counter()
    space.write(PREDEFINED)
    for item in normal:
        space.write(item)
    written = perf_counter()
    found = space.read(PREDEFINED)
    read = perf_counter()
    for _ in range(n):
        space.take(TYPES)
    taken = perf_counter()
    require(found == PREDEFINED and space.count() == 0, "one should be read and all taken")
    return (written - start) * 1e3, (read - written) * 1e3, (taken - read) * 1e3


def plot(rows: list[Row], path: Path) -> None:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    sizes = [row.n for row in rows]
    axes.loglog(sizes, [row.write_ms for row in rows], "o-", label="write n")
    axes.loglog(sizes, [row.take_ms for row in rows], "s-", label="take n, by types")
    axes.loglog(sizes, [row.read_ms for row in rows], "^-", label="read 1, by values")
    axes.set(xlabel="n, tuples", ylabel="milliseconds", title="The thesis' benchmark 6.4 on Tupelo")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
