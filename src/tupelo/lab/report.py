"""The results of sweeps on disk, and one page that shows them beside the figures of the papers."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument
from tupelo.lab.reception import reception_of
from tupelo.lab.world import Row, save_rows

if TYPE_CHECKING:
    from tupelo.lab.experiment import Sweep

SWEEP_FILE = "sweep.json"
FIGURES_FILE = "figures"
"""`figures.csv` has a row for each run, `figures.parquet` the same if pyarrow is there."""


def save_sweep(folder: Path, sweep: Sweep, rows: list[Row], table: list[Row]) -> None:
    """Write the figures of each run, and their summary."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "experiment": sweep.experiment.name,
        "title": sweep.experiment.title,
        "settings": asdict(sweep.settings),
        "over": sweep.over,
        "seeds": list(sweep.seeds),
        "summary": table,
        "paper": [asdict(claim) for claim in sweep.experiment.paper],
    }
    (folder / SWEEP_FILE).write_text(json.dumps(about, indent=1, default=str) + "\n")
    save_rows(rows, folder / FIGURES_FILE)


def write_report(folder: Path, *, spark: bool | None = None) -> Path:
    """Write `report.html` from all sweeps in the folder, and return its path.

    Where the records are about messages, Spark computes how they reached each host: if Spark and
    Java are installed (None), always (True) or never (False). Raises BadArgument if there is no
    sweep, and PipelineError if Spark must be there and is not."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    files = sorted(folder.rglob(SWEEP_FILE))
    if not files:
        raise BadArgument("folder", f"a folder in which there is a {SWEEP_FILE}", str(folder))
    sweeps = []
    for file in files:
        about = json.loads(file.read_text())
        about["pictures"] = [Markup(svg) for svg in _pictures(about)]
        about["claims"] = [claim | {"ours": _ours(about, claim)} for claim in about["paper"]]
        about["reception"] = reception_of(file.parent, about, spark=spark)
        sweeps.append(about)
    pages = Environment(
        loader=PackageLoader("tupelo.lab"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = folder / "report.html"
    page.write_text(pages.get_template("report.html").render(sweeps=sweeps))
    return page


def _ours(about: Row, claim: Row) -> list[Row]:
    """The rows of our summary that a claim is about: those whose point does not contradict it."""
    settings = about["settings"] | about["settings"]["values"]
    return [
        row
        for row in about["summary"]
        if row["figure"] == claim["figure"]
        and all(row.get(key, settings.get(key)) == value for key, value in claim["setting"].items())
    ]


def _pictures(about: Row) -> list[str]:
    """One picture for each figure: over the first numeric axis, a line for each other point."""
    numeric = [key for key, values in about["over"].items() if all(map(_is_number, values))]
    if not numeric:
        return []
    axis = numeric[0]
    others = [key for key in about["over"] if key != axis]
    figures = dict.fromkeys(row["figure"] for row in about["summary"])
    return [_picture(about["summary"], figure, axis, others) for figure in figures]


def _picture(summary: list[Row], figure: str, axis: str, others: list[str]) -> str:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(5, 3), layout="constrained")
    axes = drawn.add_subplot()
    lines: dict[str, list[Row]] = {}
    for row in summary:
        if row["figure"] == figure:
            label = ", ".join(f"{key} {row[key]}" for key in others)
            lines.setdefault(label, []).append(row)
    for label, rows in lines.items():
        rows.sort(key=lambda row: row[axis])
        low = [max(0.0, row["mean"] - row["low"]) for row in rows]
        high = [max(0.0, row["high"] - row["mean"]) for row in rows]
        axes.errorbar(
            [row[axis] for row in rows],
            [row["mean"] for row in rows],
            yerr=[low, high],
            capsize=3,
            marker="o",
            label=label,
        )
    axes.set_xlabel(axis)
    axes.set_ylabel(figure.replace("_", " "))
    axes.set_ylim(bottom=0)
    if others:
        axes.legend()
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = text.getvalue()
    words = f"{figure} over {axis}"
    return svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{words}"', 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
