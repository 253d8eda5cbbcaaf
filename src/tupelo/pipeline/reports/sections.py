"""The sections of a report: for each job some rows of its result, and a plot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tupelo.pipeline.commands.prompt import values
from tupelo.pipeline.reports import plots

if TYPE_CHECKING:
    from tupelo.pipeline.jobs import Job

ROWS_SHOWN = 20
_ARROW = " → "
"""Between the steps of a path: see `jobs.chains`."""
BARS_MAX = 15
POINTS_MAX = 240
"""The largest number of points of a line; more are aggregated."""


@dataclass(frozen=True)
class Shown:
    """The rows that are shown, and a remark about them."""

    caption: str
    rows: pa.Table

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """The names of the columns, and which are numbers."""
        numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        return [
            (field.name.replace("_", " "), any(is_(field.type) for is_ in numeric))
            for field in self.rows.schema
        ]

    @property
    def cells(self) -> list[list[tuple[Any, bool]]]:
        """The rows: each value, and whether its column has numbers."""
        numeric = [number for _, number in self.heads]
        return [list(zip(row, numeric, strict=True)) for row in values(self.rows)]


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
    plots: Sequence[Plot]


@dataclass(frozen=True)
class Headline:
    """A number at the top of the page."""

    label: str
    value: str
    remark: str = ""


def section_of(job: Job, answer: pa.Table) -> Section:
    """The section for this result."""
    about, tell, *drawers = _TOLD[job.name]
    drawn = [
        draw(f"{job.name}-plot-{number}", answer)
        for number, draw in enumerate(drawers, 1)
        if answer.num_rows
    ]
    plots = [plot for plot in drawn if plot is not None]
    return Section(job.name, job.title, about, tell(job, answer), plots)


def about(job: str) -> str:
    """The explanation of a job's section."""
    text: str = _TOLD[job][0]
    return text


def counts(answer: pa.Table, column: str) -> dict[str, int]:
    """The number of each value, the most frequent first."""
    found = pc.value_counts(answer.column(column)).to_pylist()
    pairs = [(pair["values"], pair["counts"]) for pair in found]
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


# Headlines


def headlines(answers: Mapping[str, pa.Table]) -> list[Headline]:
    """What the owner of a queue asks first, from the results of these jobs."""
    backlog, done = answers["backlog"].to_pylist(), answers["turnaround"].to_pylist()
    workers, again = answers["workers"].to_pylist(), answers["retries"].to_pylist()
    taken_kinds = {(row["space"], row["entry_kind"]) for row in done}
    found: list[Headline] = []
    # Results and the like, which are there and which nobody takes, are no backlog.
    waiting = [
        row for row in backlog if (row["space"], row["entry_kind"]) in taken_kinds
    ] or backlog
    if waiting:
        totals: dict[datetime, int] = defaultdict(int)
        for row in waiting:
            totals[row["at"]] += row["waiting"]
        last = max(totals)
        ages = [(row["at"], row["oldest"]) for row in waiting if row["oldest"] is not None]
        oldest = max((age for at, age in ages if at == last), default=None)
        ever = duration(max((age for _, age in ages), default=0.0))
        age = "–" if oldest is None else duration(oldest)
        most = max(totals.values())
        found += [
            Headline("Waiting at the end", f"{totals[last]:,}", f"at most {most:,}"),
            Headline("Age of the oldest", age, f"at most {ever}"),
        ]
    if workers:
        taken = sum(row["taken"] for row in workers)
        names = {(row["worker"], row["worker_name"]) for row in workers}
        spans = [(row["until"] - row["since"]).total_seconds() for row in workers if row["busy"]]
        busy = sum(row["busy"] or 0 for row in workers) / sum(spans) if any(spans) else None
        remark = "" if busy is None else f"busy {busy:.0%} of the time"
        if busy is not None and busy > 1:  # Workers with several threads.
            remark = f"each with {busy:.2g} transactions at once"
        found += [
            Headline("Taken", f"{taken:,}", "entries"),
            Headline("Workers", f"{len(names):,}", remark),
        ]
    if of_all := [row for row in done if row["worker"] is None]:
        often = max(of_all, key=lambda row: row["entries"])
        which = plots.shortened([often["space"], often["entry_kind"]])
        for label, prefix in (("Median wait", "wait_"), ("Median turnaround", "")):
            remark = f"99 % within {duration(often[f'{prefix}p99'])}; {which}"
            found.append(Headline(label, duration(often[f"{prefix}p50"]), remark))
    back, failed = (sum(row[name] for row in again) for name in ("came_back", "failures"))
    dead = sum(row["dead_letter"] for row in again)
    given_up = f"{dead:,} dead letters" if dead != 1 else "1 dead letter"
    found.append(Headline("Came back", f"{back:,}", "workers lost, transactions aborted"))
    found.append(Headline("Failures", f"{failed:,}", given_up))
    return found


def duration(seconds: float) -> str:
    """A time in a unit that suits its length."""
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e6:,.3g} µs" if seconds else "0 s"


def number_text(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"


_UNITS = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))


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
    what = answer.column_names[0]
    found = counts(answer, what)
    tally = pa.table({what: list(found), "times": list(found.values())})
    return [Shown(f"The number of each {what}", tally), *_first_rows(job, answer)]


def _at_the_end(job: Job, answer: pa.Table) -> list[Shown]:
    """One row per moment would be too many: show the last moment."""
    if not answer.num_rows:
        return []
    last = answer.filter(pc.equal(answer.column("at"), pc.max(answer.column("at"))))
    (shown,) = _first_rows(job, last)
    end = _moment(shown.rows.column("at")[0].as_py())
    caption = f"At {end}, the end; every moment is in {job.name}.parquet"
    return [Shown(caption, shown.rows.drop_columns(["at"]))]


def _once_by_name(job: Job, answer: pa.Table) -> list[Shown]:
    """The names of the peers are in the column `peer` already."""
    return _first_rows(job, answer.drop_columns(["name"]))


def _worst(job: Job, answer: pa.Table) -> list[Shown]:
    order = [(name, "descending") for name in ("dead_letter", "failures", "came_back")]
    rows = answer.sort_by([*order, *((name, "ascending") for name in job.order)])
    return [Shown(_caption(job, answer, "worst"), rows.slice(0, ROWS_SHOWN))]


def _caption(job: Job, answer: pa.Table, what: str) -> str:
    if answer.num_rows <= ROWS_SHOWN:
        return f"All rows of {job.name}.parquet, the {what} first"
    return f"The {what} of {answer.num_rows:,} rows; all are in {job.name}.parquet"


def _greatest_rows(by: str, what: str) -> Callable[[Job, pa.Table], list[Shown]]:
    def show(job: Job, answer: pa.Table) -> list[Shown]:
        order = [(by, "descending"), *((name, "ascending") for name in job.order)]
        rows = answer.sort_by(order).slice(0, ROWS_SHOWN)
        return [Shown(_caption(job, answer, what), rows)]

    return show


def _longest_chains(job: Job, answer: pa.Table) -> list[Shown]:
    """In the paths, equal steps in succession are counted. The times are left out."""
    (shown,) = _greatest_rows("seconds", "longest")(job, answer)
    rows = shown.rows.drop_columns(["written_at", "last_at"])
    paths = [_counted_steps(path) for path in rows.column("path").to_pylist()]
    place = rows.column_names.index("path")
    return [Shown(shown.caption, rows.set_column(place, "path", pa.array(paths, pa.string())))]


def _counted_steps(path: str) -> str:
    """The kinds of entries on a path, without the modules of their classes; and a space where the
    path comes to it."""
    told, before = [], ""
    for step, same in groupby(path.split(_ARROW)):
        space, _, kind = step.rpartition("/")
        kind, times = kind.rpartition(".")[2], len(list(same))
        shown = kind if space == before else f"{space}/{kind}"
        told.append(shown if times == 1 else f"{shown} ×{times}")
        before = space
    return _ARROW.join(told)


def _fates(job: Job, answer: pa.Table) -> list[Shown]:
    """One row per entry would be too many: show the number of each fate."""
    grouped = answer.group_by("fate").aggregate([("fate", "count"), ("bytes", "sum")])
    rows = grouped.rename_columns({"fate_count": "entries", "bytes_sum": "bytes"})
    rows = rows.select(["fate", "entries", "bytes"]).sort_by([("entries", "descending")])
    caption = f"The number of entries by fate; each entry is in {job.name}.parquet"
    return [Shown(caption, rows)]


def _amounts(job: Job, answer: pa.Table) -> list[Shown]:
    grouped = answer.group_by("kind").aggregate(
        [("changes", "sum"), ("bytes", "sum"), ("per_second", "max")]
    )
    names = {"changes_sum": "changes", "bytes_sum": "bytes", "per_second_max": "most_per_second"}
    rows = grouped.rename_columns(names).select(["kind", *names.values()])
    caption = f"The number of changes by kind; every second is in {job.name}.parquet"
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
    parts: Sequence[str], axis: str, labels: Sequence[str], by: str, stacked: bool = False
) -> Callable[[str, pa.Table], Plot | None]:
    def draw(name: str, answer: pa.Table) -> Plot | None:
        rows, which = _greatest(answer, by)
        drawn = [row for row in rows if any(row[part] for part in parts)]
        if not drawn:
            return None  # All bars would be empty.
        if len(drawn) < len(rows):
            rows, which = drawn, f"{which} that has any"
        values = {part.replace("_", " "): [float(r[part] or 0) for r in rows] for part in parts}
        svg = plots.bars(name, _labels(rows, labels), values, axis, stacked)
        described = " and ".join(values)
        most = f"{number_text(rows[0][by])} for {_label(rows[0], labels)}"
        return Plot(svg, f"Bars: {described}, {which}. The greatest {by} is {most}.")

    return draw


def _draw_overhead(name: str, answer: pa.Table) -> Plot | None:
    beyond = pc.subtract(answer.column("log"), answer.column("payload"))
    parts = answer.append_column("beyond", beyond)
    return _draw_bars(["payload", "beyond"], "bytes", ["space", "kind"], "log", stacked=True)(
        name, parts
    )


def _draw_percentiles(labels: Sequence[str]) -> Callable[[str, pa.Table], Plot | None]:
    def draw(name: str, answer: pa.Table) -> Plot | None:
        timed = answer.filter(pc.is_valid(answer.column("p50")))
        if not timed.num_rows:
            return None
        rows, which = _greatest(timed, "p99")
        series = {part: [float(row[part]) for row in rows] for part in ("p50", "p90", "p99")}
        svg = plots.dots(name, _labels(rows, labels), series, "seconds")
        slowest = f"{number_text(rows[0]['p99'])} seconds for {_label(rows[0], labels)}"
        words = f"Marks: the percentiles 50, 90 and 99, {which}. The greatest p99 is {slowest}."
        return Plot(svg, words)

    return draw


def _draw_rates(name: str, answer: pa.Table) -> Plot:
    rows = answer.select(["at", "kind", "changes"]).to_pylist()
    since, until = min(row["at"] for row in rows), max(row["at"] for row in rows)
    seconds = int((until - since).total_seconds()) + 1
    step = -(-seconds // POINTS_MAX)
    points = -(-seconds // step)
    totals = answer.group_by("kind").aggregate([("changes", "sum")])
    kinds = totals.sort_by([("changes_sum", "descending")]).column("kind").to_pylist()
    amounts: dict[str, list[float]] = {kind: [0.0] * points for kind in kinds}
    for row in rows:
        place = int((row["at"] - since).total_seconds()) // step
        amounts[row["kind"]][place] += row["changes"] / step
    times = [since + timedelta(seconds=place * step) for place in range(points)]
    svg = plots.lines(name, times, amounts, "changes a second")
    most = "; ".join(f"{kind} at most {number_text(max(rates))}" for kind, rates in amounts.items())
    each = "each second" if step == 1 else f"the mean of each {step:,} seconds"
    span = f"from {_moment(since)} to {_moment(until)}"
    return Plot(svg, f"Lines: changes a second over time, {each}, {span}: {most}.")


def _draw_moments(column: str, axis: str, part: str) -> Callable[[str, pa.Table], Plot | None]:
    def draw(name: str, answer: pa.Table) -> Plot | None:
        times = sorted(set(answer.column("at").to_pylist()))
        place = {at: number for number, at in enumerate(times)}
        series: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(times))
        for row in answer.to_pylist():
            series[_label(row, ["space", part])][place[row["at"]]] += float(row[column] or 0)
        # What only grows, such as results, is no backlog; it is shown if there is nothing else.
        shrinks = {k: v for k, v in series.items() if any(a > b for a, b in pairwise(v))}
        ranked = sorted((shrinks or series).items(), key=lambda pair: -max(pair[1]))
        most = dict(ranked[: plots.SERIES])
        told = "; ".join(
            f"{label} at most {number_text(max(points))}" for label, points in most.items()
        )
        which = "" if len(most) == len(series) else f", {len(most)} of {len(series):,} kinds"
        span = f"from {_moment(times[0])} to {_moment(times[-1])}"
        svg = plots.lines(name, times, most, axis)
        return Plot(svg, f"Lines: {axis} over time{which}, {span}: {told}.")

    return draw


def _draw_load(name: str, answer: pa.Table) -> Plot | None:
    """When each worker had work in hand: from a moment with some to the next moment."""
    times = sorted(set(answer.column("at").to_pylist()))
    following = dict(pairwise(times))
    ranges: dict[str, list[tuple[datetime, datetime]]] = {}
    for row in answer.sort_by([("worker", "ascending"), ("at", "ascending")]).to_pylist():
        label = _label(row, ["worker"])
        if not row["in_hand"] or (label not in ranges and len(ranges) == BARS_MAX):
            continue
        spans = ranges.setdefault(label, [])
        until = following.get(row["at"], row["at"])
        if spans and spans[-1][1] >= row["at"]:
            spans[-1] = spans[-1][0], max(until, spans[-1][1])
        else:
            spans.append((row["at"], until))
    if not ranges:
        return None
    number = len(set(answer.column("worker").to_pylist()))
    words = f"Bars over time: when {len(ranges)} of {number:,} workers had work in hand."
    return Plot(plots.spans(name, ranges), words)


def _draw_all_workers(prefix: str, what: str) -> Callable[[str, pa.Table], Plot | None]:
    """Percentiles of the rows for all workers together."""

    def draw(name: str, answer: pa.Table) -> Plot | None:
        of_all = answer.filter(pc.is_null(answer.column("worker")))
        names = {f"{prefix}p{share}": f"p{share}" for share in (50, 90, 99)}
        chosen = of_all.select(["space", "entry_kind", *names])
        plot = _draw_percentiles(["space", "entry_kind"])(
            name, chosen.rename_columns(["space", "entry_kind", *names.values()])
        )
        return plot and Plot(plot.svg, f"{what}. {plot.words}")

    return draw


def _draw_utilisation(name: str, answer: pa.Table) -> Plot | None:
    known = answer.filter(pc.is_valid(answer.column("utilisation")))
    if not known.num_rows:
        return None
    share = "share of the time in work"
    return _draw_bars(["utilisation"], share, ["space", "worker"], "utilisation")(name, known)


def _draw_chains(name: str, answer: pa.Table) -> Plot | None:
    """How long the chains of each path took."""
    paths = pa.array([_counted_steps(path) for path in answer.column("path").to_pylist()])
    shares = pc.TDigestOptions(q=[0.5, 0.9, 0.99])
    seconds = pa.table({"path": paths, "seconds": answer.column("seconds")}).group_by("path")
    by_path = seconds.aggregate([("seconds", "tdigest", shares)])
    for place, share in enumerate(("p50", "p90", "p99")):
        found = pc.list_element(by_path.column("seconds_tdigest"), place)
        by_path = by_path.append_column(share, found)
    return _draw_percentiles(["path"])(name, by_path)


def _draw_order(name: str, answer: pa.Table) -> Plot | None:
    hosts = pc.fill_null(answer.column("host"), "all hosts")
    named = answer.set_column(answer.column_names.index("host"), "host", hosts)
    share = "share that was out of order"
    return _draw_bars(["share"], share, ["host", "space", "reader"], "share")(name, named)


def _with_unit(answer: pa.Table, column: str, one: str) -> pa.Table:
    """The table with texts such as "1 copy" and "2 copies" in this column."""
    texts = [f"{n} {one if n == 1 else column}" for n in answer.column(column).to_pylist()]
    return answer.set_column(answer.column_names.index(column), column, pa.array(texts))


def _draw_what_if(name: str, answer: pa.Table) -> Plot | None:
    axis, labels = "seconds until settled, mean", ["space", "workers"]
    return _draw_bars(["mean"], axis, labels, "mean")(name, _with_unit(answer, "workers", "worker"))


def _draw_spread(name: str, answer: pa.Table) -> Plot | None:
    answer = _with_unit(_with_unit(answer, "copies", "copy"), "hops", "hop")
    share = "share that arrived"
    return _draw_bars(["ratio"], share, ["entry_kind", "copies", "hops"], "ratio")(name, answer)


def _draw_coordination(name: str, answer: pa.Table) -> Plot | None:
    """Who writes for whom: the busiest pairs."""
    by_pair: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in answer.to_pylist():
        pair = _label(row, ["writer"]), _label(row, ["reader"])
        if pair[0] != pair[1]:
            by_pair[pair][row["entry_kind"]] += row["entries"]
    if not by_pair:
        return None
    busiest = sorted(by_pair.items(), key=lambda one: (-one[1].total(), one[0]))[:BARS_MAX]
    arrows = {
        pair: (kinds.total(), plots.shortened([kinds.most_common(1)[0][0]]))
        for pair, kinds in busiest
    }
    told = "; ".join(
        f"{writer} to {reader} {number:,}, mostly {kind}"
        for (writer, reader), (number, kind) in arrows.items()
    )
    which = f"{len(arrows)} of {len(by_pair):,} pairs of a writer and another reader"
    return Plot(plots.graph(name, arrows), f"Arrows: entries from whom to whom, {which}: {told}.")


def _draw_groups(name: str, answer: pa.Table) -> Plot:
    rows = answer.sort_by("at").to_pylist()[-POINTS_MAX:]
    times = [row["at"] for row in rows]
    series = {part: [float(row[part]) for row in rows] for part in ("hosts", "groups", "largest")}
    which = "" if len(rows) == answer.num_rows else f" (the last {len(rows)} changes)"
    most = max(row["groups"] for row in rows)
    svg = plots.lines(name, times, series, "hosts", steps=True)
    return Plot(
        svg, f"Lines: hosts, groups, and the largest group over time{which}: {most} at most."
    )


def _draw_retries(name: str, answer: pa.Table) -> Plot | None:
    dead = pc.cast(answer.column("dead_letter"), pa.int64())
    parts = answer.append_column("dead_letters", dead).group_by(["space", "entry_kind"])
    sums = parts.aggregate([(part, "sum") for part in ("came_back", "failures", "dead_letters")])
    sums = sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names])
    total = pc.add(sums.column("came_back"), sums.column("failures"))
    return _draw_bars(
        ["came_back", "failures", "dead_letters"], "times", ["space", "entry_kind"], "tries"
    )(name, sums.append_column("tries", total))


def _draw_spans(name: str, answer: pa.Table) -> Plot:
    rows = answer.sort_by("since").to_pylist()
    last = max(row["until"] or row["since"] for row in rows)
    ranges: dict[str, list[tuple[datetime, datetime]]] = {}
    for row in rows:
        label = _label(row, ["host", "peer"])
        if label in ranges or len(ranges) < BARS_MAX:
            ranges.setdefault(label, []).append((row["since"], row["until"] or last))
    ending = sum(row["until"] is None for row in rows)
    words = (
        f"Bars over time: when a host was connected to another, {len(rows):,} times in all;"
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
    cells = [row[column] for column in columns]
    return plots.shortened(["nobody" if cell is None else str(cell) for cell in cells])


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_TOLD: dict[str, tuple[Any, ...]] = {
    "backlog": (
        "The number of entries at each moment, work in hand included, and the age of the oldest.",
        _at_the_end,
        _draw_moments("waiting", "entries there", "entry_kind"),
        _draw_moments("oldest", "age of the oldest, in seconds", "entry_kind"),
    ),
    "turnaround": (
        "The wait is from the moment when an entry can be taken until its worker has it. It is"
        " settled when the worker's transaction has ended. A row without a worker is for all.",
        _first_rows,
        _draw_all_workers("wait_", "The wait for a worker"),
        _draw_all_workers("", "Until it was settled"),
    ),
    "workers": (
        "Busy are the seconds of work in transactions, and the utilisation is their share of the"
        " time from the first to the last. Without transactions the log does not tell.",
        _first_rows,
        _draw_bars(["taken", "came_back"], "entries", ["space", "worker"], "taken", stacked=True),
        _draw_utilisation,
    ),
    "load": (
        "A worker has in hand what it has taken in a transaction that has not ended.",
        _at_the_end,
        _draw_load,
    ),
    "retries": (
        "An entry comes back if its worker is lost, or its transaction is aborted. A job of a queue"
        " fails if its function raises; after its last attempt it is a dead letter.",
        _worst,
        _draw_retries,
    ),
    "whatif": (
        "The log is replayed as one queue that so many workers serve, with the times that the work"
        " took. The error is that of the replay with as many workers as there were, against what"
        " really happened: where it is large, the other rows say little.",
        _first_rows,
        _draw_what_if,
    ),
    "audit": (
        "A fault is a contradiction in the logs. It has the entry that it is about, or positions in"
        " the log.",
        _faults,
        _draw_counts("fault", "faults"),
    ),
    "conformance": (
        "Isolation of transactions, at most once per session, and atomic engagement, which hold in"
        " every space. The order of sources and of total views is checked where it is asked for, by"
        " the command.",
        _faults,
        _draw_counts("law", "violations"),
    ),
    "coordination": (
        "An arrow goes from the writer of entries to the program that read or took them; its width"
        " shows their number.",
        _greatest_rows("entries", "busiest"),
        _draw_coordination,
    ),
    "chains": (
        "An entry follows from the one that was taken in the transaction that wrote it, or from the"
        " one to which the reaction that wrote it reacted. The path"
        " goes to the last entry that followed; its slowest step is the one to look at first.",
        _longest_chains,
        _draw_chains,
    ),
    "contention": (
        "Rivals are others that waited for entries of the same kind when an entry was got. A wait"
        " was overtaken if one that began later was served first: it may have asked for another"
        " entry of the kind.",
        _greatest_rows("contended", "most contended"),
        _draw_bars(
            ["contended", "overtaken"], "entries", ["space", "entry_kind", "worker"], "contended"
        ),
    ),
    "leases": (
        "Unseen are entries that expired before anybody had read or taken them. Work is undone by"
        " the abort of a transaction.",
        _first_rows,
        _draw_bars(["expired", "unseen"], "entries", ["space", "entry_kind"], "expired"),
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
        _draw_order,
    ),
    "overhead": (
        "The payload is the entries themselves. The log says more of each change: who, when, in"
        " which transaction.",
        _first_rows,
        _draw_overhead,
    ),
    "waiting": (
        "A read or take may wait for an entry that is not there yet. At once is the largest number"
        " that waited at the same time.",
        _first_rows,
        _draw_percentiles(["space", "shape"]),
    ),
    "spread": (
        "Copies is the number of hosts that an entry was at, and hops that of its ways between"
        " them. It arrived when another program than its writer got it. The confidence interval"
        " (95 %) of the mean is mean ± ci.",
        _first_rows,
        _draw_spread,
    ),
    "presence": (
        "Times are those of the host's own clock. A connection without an end lasted until the end"
        " of the logs.",
        _once_by_name,
        _draw_spans,
    ),
    "contacts": (
        "A contact is a connection of two hosts, by the clock of the first; between are the times"
        " from one contact of the two to the next.",
        _first_rows,
        _draw_percentiles(["host", "peer"]),
    ),
    "partitions": (
        "Hosts of a group reach each other, directly or over others; members of groups are"
        " separated by a bar.",
        _first_rows,
        _draw_groups,
    ),
}
"""By job: explanation, rows and plots."""
