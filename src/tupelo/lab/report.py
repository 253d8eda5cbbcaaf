"""The results of sweeps on disk, and one page that shows them beside the figures of the papers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadArgument
from tupelo.lab.reception import reception_of
from tupelo.lab.world import Row, save_rows, versions

if TYPE_CHECKING:
    from tupelo.lab.experiment import Sweep

SWEEP_FILE = "sweep.json"
FIGURES_FILE = "figures"
"""`figures.csv` has a row for each run, `figures.parquet` the same if pyarrow is there."""
LINES_MAX = 6
"""Of one panel of a picture; with more, there is a panel for each value of the first setting."""


def save_sweep(folder: Path, sweep: Sweep, rows: list[Row], table: list[Row]) -> None:
    """Write the figures of each run, and their summary."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "experiment": sweep.experiment.name,
        "title": sweep.experiment.title,
        "settings": asdict(sweep.settings),
        "over": sweep.over,
        "seeds": list(sweep.seeds),
        "versions": versions(),
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
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    files = sorted(folder.rglob(SWEEP_FILE))
    if not files:
        raise BadArgument("folder", f"a folder in which there is a {SWEEP_FILE}", str(folder))
    sweeps = [json.loads(file.read_text()) for file in files]
    for number, (file, about) in enumerate(zip(files, sweeps, strict=True)):
        about["folder"] = file.parent.relative_to(folder).as_posix()
        about["name"] = f"sweep{number}"
        about["heading"] = _heading(about, sweeps)
        about["claims"] = [line for claim in about["paper"] for line in _compared(about, claim)]
        about["constant"], varied = _constant(about)
        about["pictures"] = [
            (figure, Markup(_picture(about, figure)))
            for figure in (varied if about["over"] else [])
        ]
        about["reception"] = reception_of(file.parent, about, spark=spark)
    pages = Environment(
        loader=ChoiceLoader(
            [PackageLoader("tupelo.lab"), PackageLoader("tupelo.pipeline", "reports")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["short"] = _short
    page = folder / "report.html"
    page.write_text(pages.get_template("report.html").render(sweeps=sweeps))
    return page


def _heading(about: Row, sweeps: list[Row]) -> str:
    """The name of the experiment; if there are several sweeps of it, with what differs."""
    same = [_described(one) for one in sweeps if one["experiment"] == about["experiment"]]
    if len(same) == 1:
        return str(about["experiment"])
    mine = _described(about)
    apart = [key for key in mine if any(one.get(key) != mine[key] for one in same)]
    told = ", ".join(f"{key} {mine[key]}" for key in apart) or about["folder"]
    return f"{about['experiment']}: {told}"


def _described(about: Row) -> dict[str, str]:
    settings = about["settings"] | about["settings"]["values"]
    swept = {key: ", ".join(map(str, values)) for key, values in about["over"].items()}
    one = {key: str(value) for key, value in settings.items() if key not in ("seed", "values")}
    return one | swept | {"seeds": ", ".join(map(str, about["seeds"]))}


def _compared(about: Row, claim: Row) -> Iterator[Row]:
    """A line for each row of our summary that a claim is about: those whose point does not
    contradict it. If the claim is about the worst case, only our worst."""
    settings = about["settings"] | about["settings"]["values"]
    rows = [
        row
        for row in about["summary"]
        if row["figure"] == claim["figure"]
        and all(row.get(key, settings.get(key)) == value for key, value in claim["setting"].items())
    ]
    relation, why = claim.get("relation", "="), claim.get("why", "")
    if relation == "max":
        rows = sorted(rows, key=lambda row: float(row["median"]))[-1:]
    same: dict[str, list[Row]] = {}  # by what is said of them
    for row in rows:
        differs = _difference(relation, claim["value"], row["median"])
        same.setdefault(differs or "no", []).append(row)
    said = [(differs, one) for differs, alike in same.items() for one in _blocks(about, alike)]
    for differs, alike in said:
        low, high = (f(float(row["median"]) for row in alike) for f in (min, max))
        yield claim | {
            "relation": relation,
            "point": _common_point(about, alike),
            "ours": (low, high) if low < high else (low,),
            "interval": alike[0] if len(alike) == 1 and alike[0]["runs"] > 1 else None,
            "differs": differs,
            "why": "" if differs == "no" else why,
        }
    if not rows:
        known = {row["figure"] for row in about["summary"]}
        reason = "not in this sweep" if claim["figure"] in known else "no figure of this name"
        none = {"relation": relation, "point": claim["setting"], "ours": (), "interval": None}
        yield claim | none | {"differs": reason, "why": ""}


def _blocks(about: Row, rows: list[Row]) -> list[list[Row]]:
    """These rows together, if they are all combinations of some values; otherwise one by one."""
    combinations = prod(len({str(row[key]) for row in rows}) for key in about["over"])
    return [rows] if combinations == len(rows) else [[row] for row in rows]


def _common_point(about: Row, rows: list[Row]) -> Row:
    """The settings of these rows, with several values where they differ."""
    values = {key: dict.fromkeys(str(row[key]) for row in rows) for key in about["over"]}
    return {
        key: "any" if len(one) == len(about["over"][key]) > 1 else ", ".join(one)
        for key, one in values.items()
    }


def _difference(relation: str, paper: float, ours: float) -> str:
    """How far ours is from the value of the paper, or "" if it is not."""
    if ours == paper or (relation == "<" and ours < paper) or (relation == ">" and ours > paper):
        return ""
    if paper == 0 or ours / paper <= 0:
        return f"{ours - paper:+.3g}"
    ratio = ours / paper
    return f"{100 * (ratio - 1):+.2g} %" if 0.5 < ratio < 2 else f"× {ratio:.2g}"


def _constant(about: Row) -> tuple[dict[str, float], list[str]]:
    """The figures that are the same in all runs, with their values, and the others."""
    rows: dict[str, list[Row]] = {}
    for row in about["summary"]:
        rows.setdefault(row["figure"], []).append(row)
    constant = {
        figure: same[0]["mean"]
        for figure, same in rows.items()
        # Where all runs are 1, the interval of a share ends there, and begins below.
        if all(row["mean"] == same[0]["mean"] in (row["low"], row["high"]) for row in same)
    }
    return constant, [figure for figure in rows if figure not in constant]


def _picture(about: Row, figure: str) -> str:
    """The figure over the setting with the most values, numbers before texts, and a line for each
    other point."""
    from tupelo.pipeline.reports.plots import intervals

    over = about["over"]
    axis = max(over, key=lambda key: (all(map(_is_number, over[key])), len(over[key])))
    others = [key for key in over if key != axis]
    lines = prod(len(over[key]) for key in others)
    apart = others[:1] if lines > LINES_MAX and len(others) > 1 else []
    panels: dict[str, dict[str, list[Any]]] = {}
    for row in about["summary"]:
        if row["figure"] == figure:
            panel = ", ".join(f"{key} {row[key]}" for key in apart)
            line = ", ".join(str(row[key]) for key in others if key not in apart)
            point = row[axis], row["mean"], row["low"], row["high"]
            panels.setdefault(panel, {}).setdefault(line, []).append(point)
    for panel_lines in panels.values():
        for points in panel_lines.values():
            if _is_number(points[0][0]):
                points.sort()
    words = figure.replace("_", " ")
    legend = ", ".join(key for key in others if key not in apart)
    svg = intervals(f"{about['name']}-{figure}", axis, words, panels, legend)
    return svg.replace("<svg", f'<svg role="img" aria-label="{words} over {axis}"', 1)


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1_000 else f"{number:.4g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
