"""The sections of a report: for each job some rows of its result, and a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tupelo.pipeline.reports import plots

if TYPE_CHECKING:
    from tupelo.pipeline.jobs import Job

ROWS_SHOWN = 20
BARS_MAX = 15
POINTS_MAX = 240
"""The largest number of points of a line; more are aggregated."""


@dataclass(frozen=True)
class Shown:
    """The rows that are shown, and a remark about them."""

    caption: str
    rows: pa.Table


@dataclass(frozen=True)
class Plot:
    """A plot, and its description in words."""

    svg: str
    words: str


@dataclass(frozen=True)
class Section:
    """A section of the page: the result of one job."""

    name: str
    title: str
    about: str
    tables: Sequence[Shown]
    plot: Plot | None


def section_of(job: Job, answer: pa.Table) -> Section:
    """The section for this result."""
    about, tell, draw = _TOLD.get(job.name, ("", _first_rows, None))
    plot = draw(job.name, answer) if draw is not None and answer.num_rows else None
    return Section(job.name, job.title, about, tell(job, answer), plot)


def counts(answer: pa.Table, column: str) -> dict[str, int]:
    """The number of each value, the most frequent first."""
    found = pc.value_counts(answer.column(column)).to_pylist()
    pairs = [(pair["values"], pair["counts"]) for pair in found]
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


# Rows


def _first_rows(job: Job, answer: pa.Table) -> list[Shown]:
    order = [(name, "ascending") for name in job.order]
    rows = answer.sort_by(order) if order else answer
    if answer.num_rows <= ROWS_SHOWN:
        return [Shown(f"All rows of {job.name}.parquet", rows)]
    caption = f"The first {ROWS_SHOWN} of {answer.num_rows:,} rows; all are in {job.name}.parquet"
    return [Shown(caption, rows.slice(0, ROWS_SHOWN))]


def _faults(job: Job, answer: pa.Table) -> list[Shown]:
    if not answer.num_rows:
        return []
    found = counts(answer, "fault")
    tally = pa.table({"fault": list(found), "times": list(found.values())})
    return [Shown("How often there is which fault", tally), *_first_rows(job, answer)]


def _fates(job: Job, answer: pa.Table) -> list[Shown]:
    """One row per entry would be too many: show the number of each fate."""
    grouped = answer.group_by("fate").aggregate([("fate", "count"), ("bytes", "sum")])
    rows = grouped.rename_columns({"fate_count": "entries", "bytes_sum": "bytes"})
    rows = rows.select(["fate", "entries", "bytes"]).sort_by([("entries", "descending")])
    caption = f"How many entries met which fate; each one is in {job.name}.parquet"
    return [Shown(caption, rows)]


def _amounts(job: Job, answer: pa.Table) -> list[Shown]:
    grouped = answer.group_by("kind").aggregate(
        [("changes", "sum"), ("bytes", "sum"), ("per_second", "max")]
    )
    names = {"changes_sum": "changes", "bytes_sum": "bytes", "per_second_max": "most_per_second"}
    rows = grouped.rename_columns(names).select(["kind", *names.values()])
    caption = f"How many changes of which kind; every second is in {job.name}.parquet"
    return [Shown(caption, rows.sort_by([("changes", "descending")]))]


# Plots


def _draw_counts(column: str, what: str) -> Callable[[str, pa.Table], Plot]:
    def draw(name: str, answer: pa.Table) -> Plot:
        found = counts(answer, column)
        words = ", ".join(f"{label} {count:,}" for label, count in found.items())
        labels = [plots.shortened([label]) for label in found]
        svg = plots.bars(name, labels, {what: list(found.values())}, what)
        return Plot(svg, f"Bars: {what} by {column}: {words}.")

    return draw


def _draw_bars(
    parts: Sequence[str], axis: str, labels: Sequence[str], by: str
) -> Callable[[str, pa.Table], Plot]:
    def draw(name: str, answer: pa.Table) -> Plot:
        rows, which = _greatest(answer, by)
        values = {part: [float(row[part] or 0) for row in rows] for part in parts}
        svg = plots.bars(name, _labels(rows, labels), values, axis)
        described = " and ".join(parts)
        most = f"{rows[0][by]:,.4g} for {_label(rows[0], labels)}"
        return Plot(svg, f"Bars: {described}, {which}. The greatest {by} is {most}.")

    return draw


def _draw_overhead(name: str, answer: pa.Table) -> Plot:
    beyond = pc.subtract(answer.column("log"), answer.column("payload"))
    parts = answer.append_column("beyond", beyond)
    return _draw_bars(["payload", "beyond"], "bytes", ["space", "kind"], "log")(name, parts)


def _draw_percentiles(labels: Sequence[str]) -> Callable[[str, pa.Table], Plot | None]:
    def draw(name: str, answer: pa.Table) -> Plot | None:
        timed = answer.filter(pc.is_valid(answer.column("p50")))
        if not timed.num_rows:
            return None
        rows, which = _greatest(timed, "p99")
        series = {part: [float(row[part]) for row in rows] for part in ("p50", "p90", "p99")}
        svg = plots.dots(name, _labels(rows, labels), series, "seconds")
        slowest = f"{rows[0]['p99']:,.4g} seconds for {_label(rows[0], labels)}"
        words = f"Marks: the percentiles 50, 90 and 99, {which}. The greatest p99 is {slowest}."
        return Plot(svg, words)

    return draw


def _draw_rates(name: str, answer: pa.Table) -> Plot:
    rows = answer.select(["at", "kind", "changes"]).to_pylist()
    since, until = min(row["at"] for row in rows), max(row["at"] for row in rows)
    seconds = int((until - since).total_seconds()) + 1
    step = -(-seconds // POINTS_MAX)
    points = -(-seconds // step)
    amounts: dict[str, list[float]] = {kind: [0.0] * points for kind in counts(answer, "kind")}
    for row in rows:
        place = int((row["at"] - since).total_seconds()) // step
        amounts[row["kind"]][place] += row["changes"] / step
    times = [since + timedelta(seconds=place * step) for place in range(points)]
    svg = plots.lines(name, times, amounts, "changes a second")
    most = "; ".join(f"{kind} at most {max(rates):,.4g}" for kind, rates in amounts.items())
    each = "each second" if step == 1 else f"the mean of each {step:,} seconds"
    span = f"from {_moment(since)} to {_moment(until)}"
    return Plot(svg, f"Lines: changes a second over time, {each}, {span}: {most}.")


def _draw_spans(name: str, answer: pa.Table) -> Plot:
    rows = answer.sort_by("since").to_pylist()
    last = max(row["until"] or row["since"] for row in rows)
    ranges: dict[str, list[tuple[datetime, datetime]]] = {}
    for row in rows:
        label = plots.shortened([row["host"][:8], row["name"] or row["peer"][:8]])
        if label in ranges or len(ranges) < BARS_MAX:
            ranges.setdefault(label, []).append((row["since"], row["until"] or last))
    ending = sum(row["until"] is None for row in rows)
    words = (
        f"Bars over time: when a host was engaged with another, {len(rows):,} times in all;"
        f" {ending:,} of them had not ended when the logs did."
    )
    return Plot(plots.spans(name, ranges), words)


def _greatest(answer: pa.Table, by: str) -> tuple[list[dict[str, Any]], str]:
    """The rows that are drawn, the largest first, and a remark about the selection."""
    rows = answer.sort_by([(by, "descending")]).slice(0, BARS_MAX).to_pylist()
    if answer.num_rows <= BARS_MAX:
        return rows, "for each row of the table"
    return rows, f"for the {BARS_MAX} of {answer.num_rows:,} rows with the greatest {by}"


def _labels(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    return [_label(row, columns) for row in rows]


def _label(row: dict[str, Any], columns: Sequence[str]) -> str:
    return plots.shortened([str(row[column] or "nobody") for column in columns])


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_Told = tuple[
    str,
    Callable[["Job", pa.Table], list[Shown]],
    Callable[[str, pa.Table], Plot | None] | None,
]
_TOLD: dict[str, _Told] = {
    "audit": (
        "What the logs say and cannot be. Each fault has the entry that it is about, or the"
        " positions of the log.",
        _faults,
        _draw_counts("fault", "faults"),
    ),
    "life": (
        "An entry is written, and is there until it is taken, expires, is cancelled, evicted, or"
        " moves to another host.",
        _fates,
        _draw_counts("fate", "entries"),
    ),
    "delivery": (
        "The rate is the share of what a writer wrote that a reader has read or taken. Reads count"
        " where the space logs them.",
        _first_rows,
        _draw_bars(["rate"], "share that was read or taken", ["space", "writer", "reader"], "rate"),
    ),
    "latency": (
        "Half of the entries took at most p50 seconds, nine of ten at most p90, and 99 of 100 at"
        " most p99. Between hosts, their clocks are in these figures.",
        _first_rows,
        _draw_percentiles(["space", "reader", "how"]),
    ),
    "throughput": (
        "Changes at all hosts, by the second.",
        _amounts,
        _draw_rates,
    ),
    "order": (
        "An entry is out of order if its reader has got one before that came after it: at one host"
        " by its arrival there, over all hosts by the number that its writer gave it.",
        _first_rows,
        _draw_bars(["share"], "share that was out of order", ["over", "space", "reader"], "share"),
    ),
    "overhead": (
        "The payload is the entries themselves. The log says more of each change: who, when, in"
        " which transaction.",
        _first_rows,
        _draw_overhead,
    ),
    "waiting": (
        "Who asks for an entry that is not there may wait for it. At once is how many waited at the"
        " same time, at most.",
        _first_rows,
        _draw_percentiles(["space", "shape"]),
    ),
    "presence": (
        "Times are those of the host's own clock. Without an end, it was engaged when the logs"
        " ended.",
        _first_rows,
        _draw_spans,
    ),
}
"""By job: explanation, rows and plot."""
