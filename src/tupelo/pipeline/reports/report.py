"""A report: the results of all jobs on some logs, as Parquet tables and one page.

It is written to a temporary folder, which is renamed when it is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pyspark import StorageLevel
from pyspark.sql import functions as f

from tupelo.errors import BadArgument, PipelineError
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.commands.prompt import text_of
from tupelo.pipeline.jobs import JOBS, Job, audit, conformance, life
from tupelo.pipeline.jobs.conformance import NOTICED
from tupelo.pipeline.reports.names import Names, names_in, with_names
from tupelo.pipeline.reports.sections import (
    Headline,
    Plot,
    Section,
    Shown,
    counts,
    headlines,
    number_text,
    section_of,
)
from tupelo.pipeline.schema import COLUMNS, TIME
from tupelo.pipeline.source.datasource import changes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tupelo.pipeline.logs.log import Log

PAGE = "report.html"
MARK = "report.json"
"""Marks the folder of a report, and lists its logs."""
VERSION = 1
STEPS = 1 + len(JOBS)

OF_HOSTS = ("audit", "conformance", "presence", "contacts", "partitions")
"""Other jobs ignore the spaces that hosts keep for themselves."""
_FIRST = ("backlog", "turnaround", "workers", "retries")
"""The jobs whose results are the headlines."""
BY_CLOCKS = {"audit": audit, "life": life, "conformance": conformance}
_VERDICTS = {"audit": "fault", "conformance": "law"}
"""Jobs whose rows are faults, and the column that says which."""
_ASKED = ",".join(name for name in COLUMNS if name != "payload")
"""No job uses the payload of entries."""


def write_report(
    spark: SparkSession,
    locations: Sequence[str],
    options: Mapping[str, str],
    folder: Path,
    made_at: datetime,
    skew_seconds: float = 0.0,
    begun: Callable[[str], None] = lambda step: None,
) -> dict[str, int]:
    """Write the tables and the page into this folder. Returns the number of each fault, and
    of the violations of each law.
    `skew_seconds` is the largest difference between the clocks of the hosts. The callback gets each
    of the `STEPS` when it begins."""
    begun("reading the logs")
    changes = changes_of(spark, locations, {**options, "columns": _ASKED})
    changes = changes.persist(StorageLevel.MEMORY_AND_DISK)  # The logs are read once.
    try:
        names = names_in(changes)
        logs = Shown(
            "The logs, and from where to where they were read", names.put(_logs_in(changes))
        )
        sections: list[Section] = []
        asked: dict[str, pa.Table] = {}
        faults: dict[str, int] = {}
        of_users = changes.where(f.col("space") != PRESENCE)
        for job in JOBS.values():
            begun(job.name)
            if (by_clocks := BY_CLOCKS.get(job.name)) is not None:
                skew = max(skew_seconds, NOTICED) if job.name == "conformance" else skew_seconds
                job = replace(job, run=partial(by_clocks, skew_seconds=skew))
            answer = _kept(job, changes if job.name in OF_HOSTS else of_users, names, folder)
            if job.name in _VERDICTS:
                faults |= counts(answer, _VERDICTS[job.name])
            if job.name in _FIRST:
                asked[job.name] = answer
            sections.append(section_of(job, names.put(answer)))
    finally:
        changes.unpersist()
    first = headlines(asked) if len(asked) == len(_FIRST) else []
    page = page_of(faults, first, logs, sections, made_at)
    (folder / PAGE).write_text(page, encoding="utf-8")
    return faults


def _logs_in(changes: DataFrame) -> pa.Table:
    return (
        changes.groupBy("host", "space")
        .agg(
            f.count("*").alias("changes"),
            f.min("position").alias("first"),
            f.max("position").alias("last"),
            f.min("time").alias("since"),
            f.max("time").alias("until"),
        )
        .orderBy("host", "space")
        .toArrow()
    )


def _kept(job: Job, changes: DataFrame, names: Names, folder: Path) -> pa.Table:
    """Write the result of a job, and read it back for the page."""
    place = folder / f"{job.name}.parquet"
    with_names(job.run(changes), names).write.parquet(place.as_uri())
    if not place.is_dir():
        raise PipelineError(
            f"Spark has not written {place} where this program can see it: choose a folder that it"
            " shares with Spark's workers"
        )
    answer = pq.read_table(place, coerce_int96_timestamp_unit="us")
    fields = [
        pa.field(field.name, TIME) if pa.types.is_timestamp(field.type) else field
        for field in answer.schema
    ]
    return answer.cast(pa.schema(fields))


# The page

_NOTHING = Markup('<span aria-label="nothing">–</span>')


def page_of(
    faults: dict[str, int],
    headlines: Sequence[Headline],
    logs: Shown,
    sections: Sequence[Section],
    made_at: datetime,
) -> str:
    """The whole page, which begins with a summary: one file for any device and screen reader, which
    loads nothing."""
    pages = Environment(
        loader=PackageLoader("tupelo.pipeline", "reports"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    pages.filters |= {"cell": _cell, "drawn": _drawn}
    changes = sum(logs.rows.column("changes").to_pylist())
    subject = f"{_counted(changes, 'change')} in {_counted(logs.rows.num_rows, 'log')}"
    return pages.get_template("page.html").render(
        title=f"What happened: {subject}",
        verdict=verdict_of(faults, subject),
        faults=faults,
        headlines=headlines,
        logs=logs,
        sections=sections,
        made_at=made_at,
    )


def verdict_of(faults: dict[str, int], subject: str) -> str:
    """The summary in plain words."""
    if not faults:
        return f"Sound: no fault in {subject}."
    counts = ", ".join(f"{fault} {times:,}" for fault, times in faults.items())
    return f"Not sound: {_counted(sum(faults.values()), 'fault')} in {subject}: {counts}."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _drawn(plot: Plot) -> Markup:
    """A plot, with its description for those who do not see it."""
    return Markup(plot.svg.replace("<svg", f'<svg role="img" aria-label="{escape(plot.words)}"', 1))


def _cell(value: Any) -> Markup | str:
    """A value for people, with the exact value as an attribute."""
    if value is None:
        return _NOTHING
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        shown = f"{moment:%Y-%m-%d %H:%M:%S}"
        return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(), shown)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return Markup('<data value="{}">{}</data>').format(value, f"{value:,}")
    if isinstance(value, float):
        return Markup('<data value="{}">{}</data>').format(repr(value), number_text(value))
    text = text_of(value)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


# The folder


@contextmanager
def place_for(to: Path, logs: Sequence[Log]) -> Iterator[Path]:
    """A folder for a report of these logs, which becomes `to` at the end; after an error `to` is
    unchanged. `to` may contain a report whose logs are all among these."""
    to = to.absolute()
    mine = sorted([log.host, log.space, log.id] for log in logs)
    _check(to, mine)
    to.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    try:
        made = aside / "made"
        made.mkdir()
        yield made
        mark = {"tupelo report": VERSION, "logs": mine}
        (made / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="utf-8")
        _replace(to, made, aside / "before")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check(to: Path, mine: list[list[str]]) -> None:
    if not to.exists():
        return
    if not to.is_dir():
        raise BadArgument("to", "a folder", str(to))
    if not any(to.iterdir()):
        return
    try:
        mark = json.loads((to / MARK).read_text(encoding="utf-8"))
        theirs: list[list[str]] = mark["logs"]
        known = mark["tupelo report"] == VERSION
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        known = False
    ours = {PAGE, MARK, *(f"{name}.parquet" for name in JOBS)}
    beside = sorted(file.name for file in to.iterdir() if file.name not in ours)
    if not known or beside:
        what = ", ".join(beside) if known else "something else than a report"
        raise PipelineError(f"{to} has {what} in it; it was left as it was")
    others = [
        f"{space!r} of {host}" for host, space, life in theirs if [host, space, life] not in mine
    ]
    if others:
        raise PipelineError(
            f"{to} has a report of {', '.join(others)}, which would be lost; it was left as it was"
        )


def _replace(to: Path, made: Path, before: Path) -> None:
    if not to.exists():
        made.rename(to)
        return
    to.rename(before)
    try:
        made.rename(to)
    except OSError:
        before.rename(to)
        raise
