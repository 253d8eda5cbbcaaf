"""The report as a notebook for Jupyter: the code of each section, to run and to change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tupelo.pipeline.jobs import JOBS
from tupelo.pipeline.reports.report import BY_CLOCKS, OF_HOSTS
from tupelo.pipeline.reports.sections import ROWS_SHOWN, about

_BEGIN = """\
import os

from tupelo import pipeline
from tupelo.pipeline import jobs
from tupelo.pipeline.reports.names import names_in, with_names

spark = pipeline.session({master})
changes = pipeline.changes(spark, {logs}).drop("payload").persist()
of_users = changes.where("space <> 'tupelo.presence'")
names = names_in(changes)"""
# With x_compat, because pandas draws regular times by an attribute that Matplotlib has deprecated.
_OVER_TIME = """\
rows.pivot_table(
    index="at", columns=["space", "{group}"], values="{value}", aggfunc="sum"
).plot(drawstyle="steps-post", ylabel="{value}", x_compat=True)"""
_BARS = "rows.set_index({labels!r})[{values!r}].plot.barh()"

_PERCENTILES = ["p50", "p90", "p99"]
_PLOTS = {
    "backlog": _OVER_TIME.format(group="entry_kind", value="waiting"),
    "load": _OVER_TIME.format(group="worker_name", value="in_hand"),
    "throughput": 'rows.pivot_table(index="at", columns="kind", values="per_second")'
    '.plot(ylabel="changes per second", x_compat=True)',
    "partitions": 'rows.set_index("at")[["hosts", "groups", "largest"]]'
    '.plot(drawstyle="steps-post", x_compat=True)',
    "life": 'rows.set_index("fate").plot.barh()',
} | {
    name: _BARS.format(labels=labels, values=values)
    for name, labels, values in (
        ("turnaround", ["space", "entry_kind"], _PERCENTILES),
        ("workers", ["space", "worker_name"], ["taken", "came_back"]),
        ("whatif", ["space", "workers"], ["mean", "p90"]),
        ("contention", ["space", "entry_kind", "worker_name"], ["contended", "overtaken"]),
        ("latency", ["space", "reader_name", "how"], _PERCENTILES),
        ("spread", ["entry_kind", "copies", "hops"], ["ratio"]),
        ("contacts", ["host_name", "peer_name"], ["mean"]),
    )
}
"""Code for a plot of `rows`, which is shown if the job has rows."""
_ROWS = {
    "life": 'table.groupBy("fate").count()',
    "turnaround": 'table.where("worker is null")',  # of all workers together
}
"""What is drawn, if not the table of the job."""


def notebook_of(
    locations: Sequence[str],
    options: Mapping[str, str],
    master: str | None = None,
    skew_seconds: float = 0.0,
) -> str:
    """A notebook (nbformat 4.5) that reads these logs and runs every job. A password is not written
    into it: it is read from TUPELO_PASSWORD."""
    named = [str(Path(one).resolve()) if Path(one).exists() else one for one in locations]
    given = {name: value for name, value in options.items() if name != "password"}
    arguments = [repr(one) for one in named] + [f"{n}={v!r}" for n, v in given.items()]
    if "password" in options:
        arguments.append('password=os.environ["TUPELO_PASSWORD"]')
    begin = _BEGIN.format(master="" if master is None else repr(master), logs=", ".join(arguments))
    cells = [
        _cell("title", "markdown", "# The report of these logs\n\nMade by Tupelo; times are UTC."),
        _cell("begin", "code", begin),
    ]
    for job in JOBS.values():
        cells.append(_cell(f"{job.name}-title", "markdown", f"## {job.title}\n\n{about(job.name)}"))
        source = "changes" if job.name in OF_HOSTS else "of_users"
        more = f", skew_seconds={skew_seconds}" if skew_seconds and job.name in BY_CLOCKS else ""
        order = ", ".join(map(repr, job.order))
        code = (
            f"table = with_names(jobs.{job.name}({source}{more}), names).persist()\n"
            f"table.orderBy({order}).limit({ROWS_SHOWN}).toPandas()"
        )
        cells.append(_cell(job.name, "code", code))
        if plot := _PLOTS.get(job.name):
            indented = plot.replace("\n", "\n    ")
            drawn = _ROWS.get(job.name, "table")
            code = f"rows = {drawn}.toPandas()\nif len(rows):\n    {indented}"
            cells.append(_cell(f"{job.name}-plot", "code", code))
    about_it = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": about_it, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cell(name: str, kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"id": name, "cell_type": kind, "metadata": {}, "source": text}
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}
