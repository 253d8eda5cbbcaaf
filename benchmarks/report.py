"""The report of a run: tables on the screen, and JSON, Markdown and plots in the folder OUT."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from rich import table as rich_table
from rich.console import Console

from benchmarks import doors, thesis
from benchmarks.measure import Line, Settings, Table

OUT = Path(__file__).parent / "out"
WIDTH_PIPED = 150

Cells = list[tuple[str, ...]]
Plots = dict[str, tuple[Callable[[Any, Path], None], Any]]
"""By the name of a benchmark: the function that draws its figure, and the data."""
PLOT_TITLES = {
    "lime": "messages of LIME's operations",
    "melon": "messages from one host to its readers",
    "unread": "the size of a record of what was read",
    "event_heap": "a view of total order",
}

LINE_HEADS = ("what was compared", "ours", "theirs", "ratio", "target", "reached")
THESIS_HEADS = ("n", "write n, ms", "read 1, ms", "take n, ms", "write/s", "take/s")

DOOR_HEADS = ("door", "n", "write n, ms", "read 1, ms", "take n, ms", "write/s", "take/s")


def circumstances_of(settings: Settings, load_before: float) -> str:
    """The circumstances that a reader of the figures must know, such as the load."""
    sizes = "" if settings.cut == 1 else f", sizes cut by {settings.cut}"
    return (
        f"Medians of {settings.rounds} rounds in turns, and of the rounds' ratios{sizes}; "
        f"Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


def show(
    lines: list[Line],
    rows: list[thesis.Row],
    door_rows: list[doors.Row],
    tables: list[Table],
    circumstances: str,
) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH_PIPED)
    if lines:
        console.print(_table(circumstances, LINE_HEADS, _line_cells(lines)))
    if rows:
        title = "The thesis' benchmark 6.4, through tupelo.Space"
        console.print(_table(title, THESIS_HEADS, _thesis_cells(rows)))
    if door_rows:
        title = "The thesis' benchmark 8.2, through the doors"
        console.print(_table(title, DOOR_HEADS, _door_cells(door_rows)))
    for table in tables:
        console.print(_table(table.title, table.heads, table.rows), table.how, "")


def keep(
    lines: list[Line],
    rows: list[thesis.Row],
    door_rows: list[doors.Row],
    plots: Plots,
    tables: list[Table],
    circumstances: str,
) -> None:
    OUT.mkdir(exist_ok=True)
    results = {
        "circumstances": circumstances,
        "lines": [{**asdict(line), "ratio": line.ratio, "reached": line.reached} for line in lines],
        "thesis": [asdict(row) for row in rows],
        "doors": [asdict(row) for row in door_rows],
        "plots": msgspec.to_builtins({name: rows for name, (_, rows) in plots.items()}),
        "tables": [asdict(table) for table in tables],
    }
    (OUT / "results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    parts = ["# Benchmarks", circumstances + "."]
    if lines:
        parts.append(_markdown(LINE_HEADS, _line_cells(lines)))
    if rows:
        thesis.plot(rows, OUT / "thesis.png")
        parts.append("## The thesis' benchmark 6.4")
        parts.append(_markdown(THESIS_HEADS, _thesis_cells(rows)))
        parts.append("![write, read and take over n](thesis.png)")
    if door_rows:
        doors.plot(door_rows, OUT / "doors.png")
        parts.append("## The thesis' benchmark 8.2")
        parts.append(_markdown(DOOR_HEADS, _door_cells(door_rows)))
        parts.append("![write, read and take over n, door by door](doors.png)")
    for name, (plot, data) in plots.items():
        plot(data, OUT / f"{name}.png")
        parts.append(f"![{PLOT_TITLES[name]}]({name}.png)")
    for table in tables:
        parts += [f"## {table.title}", table.how, _markdown(table.heads, table.rows)]
    (OUT / "results.md").write_text("\n\n".join(parts) + "\n")


def _line_cells(lines: list[Line]) -> Cells:
    return [
        (
            f"{line.what} / {line.against}",
            _figure(line.ours, line.unit),
            "–" if line.theirs is None else _figure(line.theirs, line.unit),
            "–" if line.ratio is None else _number(line.ratio),
            _target(line),
            _verdict(line),
        )
        for line in lines
    ]


def _target(line: Line) -> str:
    if line.target.of == "ratio":
        return f"{line.target.sign} {_number(line.target.bound)} ×"
    return f"{line.target.sign} {_figure(line.target.bound, line.unit)}"


def _verdict(line: Line) -> str:
    if line.measured is None:
        return line.absent
    if line.reached:
        return "yes"
    return f"not reached: {_number(line.measured)} of {_number(line.target.bound)}"


def _timing_cells(row: thesis.Row | doors.Row) -> tuple[str, ...]:
    return (
        f"{row.n:,}",
        f"{row.write_ms:,.2f}",
        f"{row.read_ms:.4f}",
        f"{row.take_ms:,.2f}",
        f"{row.n / row.write_ms * 1e3:,.0f}",
        f"{row.n / row.take_ms * 1e3:,.0f}",
    )


def _thesis_cells(rows: list[thesis.Row]) -> Cells:
    return [_timing_cells(row) for row in rows]


def _door_cells(rows: list[doors.Row]) -> Cells:
    return [(row.door, *_timing_cells(row)) for row in rows]


def _figure(value: float, unit: str) -> str:
    return f"{_number(value)}{unit}" if unit.startswith("/") else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(title: str, heads: tuple[str, ...], cells: Cells) -> rich_table.Table:
    table = rich_table.Table(title=title)
    for place, head in enumerate(heads):
        left = head == "reached" or (place == 0 and not cells[0][0].isdigit())
        table.add_column(head, justify="left" if left else "right")
    for row in cells:
        table.add_row(*row)
    return table


def _markdown(heads: tuple[str, ...], cells: Cells) -> str:
    rule = tuple("---" for _ in heads)
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, rule, *cells))
