"""The report of a run: tables on the screen, and JSON, Markdown and plots in the folder OUT."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import msgspec
from rich import table as rich_table
from rich.console import Console

from benchmarks.measure import Findings, Line, Settings, Table

OUT = Path(__file__).parent / "out"
WIDTH_PIPED = 150
LINE_HEADS = ("what was compared", "ours", "theirs", "ratio", "target", "reached")


def circumstances_of(settings: Settings, load_before: float) -> str:
    """The circumstances that a reader of the figures must know, such as the load."""
    sizes = "" if settings.cut == 1 else f", sizes cut by {settings.cut}"
    return (
        f"Medians of {settings.rounds} rounds in turns, and of the rounds' ratios{sizes}; "
        f"Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


def show(found: dict[str, Findings], circumstances: str) -> None:
    """Print all tables."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH_PIPED)
    for table in _tables(found, circumstances):
        shown = rich_table.Table(title=table.title)
        for place, head in enumerate(table.heads):
            left = head == "reached" or (place == 0 and not table.rows[0][0][0].isdigit())
            shown.add_column(head, justify="left" if left else "right")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown, table.how, "")


def keep(found: dict[str, Findings], circumstances: str) -> None:
    """Write results.json, results.md and the plots."""
    OUT.mkdir(exist_ok=True)
    lines = chain.from_iterable(findings.lines for findings in found.values())
    plots = {name: findings.plot for name, findings in found.items() if findings.plot}
    results = {
        "circumstances": circumstances,
        "lines": [{**asdict(line), "ratio": line.ratio, "reached": line.reached} for line in lines],
        "plots": msgspec.to_builtins({name: plot.data for name, plot in plots.items()}),
        "tables": [asdict(table) for findings in found.values() for table in findings.tables],
    }
    (OUT / "results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    parts = ["# Benchmarks"]
    for table in _tables(found, circumstances):
        parts += [f"## {table.title}", table.how, _markdown(table)]
    for name, plot in plots.items():
        plot.draw(plot.data, OUT / f"{name}.png")
        parts.append(f"![{plot.title}]({name}.png)")
    (OUT / "results.md").write_text("\n\n".join(filter(None, parts)) + "\n")


def _tables(found: dict[str, Findings], circumstances: str) -> list[Table]:
    """One table of all lines with a target, and the tables of the sections."""
    cells = [_cells(line) for findings in found.values() for line in findings.lines]
    lines = [Table(circumstances, LINE_HEADS, cells)] if cells else []
    return lines + [table for findings in found.values() for table in findings.tables]


def _cells(line: Line) -> tuple[str, ...]:
    return (
        f"{line.what} / {line.against}",
        _figure(line.ours, line.unit),
        "–" if line.theirs is None else _figure(line.theirs, line.unit),
        "–" if line.ratio is None else _number(line.ratio),
        _target(line),
        _verdict(line),
    )


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


def _figure(value: float, unit: str) -> str:
    return f"{_number(value)}{unit}" if unit.startswith("/") else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _markdown(table: Table) -> str:
    rule = tuple("---" for _ in table.heads)
    return "\n".join("| " + " | ".join(row) + " |" for row in (table.heads, rule, *table.rows))
