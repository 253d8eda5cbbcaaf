"""The report: its tables, its page, its folder; and what it says of logs that cannot be."""

from __future__ import annotations

import ast
import json
import os
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tupelo
from tests.federation.company import Company
from tupelo.errors import BadArgument, PipelineError
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.commands.pipeline import app
from tupelo.pipeline.jobs import JOBS
from tupelo.pipeline.reports import report as reports
from tupelo.pipeline.reports.names import Names
from tupelo.pipeline.reports.notebook import notebook_of
from tupelo.pipeline.reports.plots import bars, dots, graph, intervals, lines, shortened, spans
from tupelo.pipeline.reports.report import MARK, PAGE, page_of, place_for
from tupelo.pipeline.reports.sections import (
    BARS_MAX,
    POINTS_MAX,
    ROWS_SHOWN,
    Shown,
    duration,
    headlines,
    section_of,
)

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
VOID = {"meta", "path", "use"}


class Page(HTMLParser):
    """A page as a reader has it. Whatever is opened must be closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.ids: list[str] = []
        self.images: list[str] = []
        self.titles: dict[str, str] = {}
        self.rows: dict[str, list[list[str | None]]] = {}
        self.captions: list[str] = []
        self.verdict = ""
        self.headlines: dict[str, str] = {}
        self._headline = ""
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self._section = ""
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self._see(tag, given)
        if tag not in VOID:
            self._open.append((tag, given))

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self._see(tag, dict(attrs))

    def _see(self, tag: str, given: dict[str, str | None]) -> None:
        assert not {"src", "srcset", "action"} & given.keys() and tag not in ("script", "link")
        assert (given.get("href") or "#").startswith("#")
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "section":
            self._section = str(given["id"])
        elif tag == "svg":
            assert given["role"] == "img"
            self.images.append(str(given["aria-label"]))
        elif tag == "table":
            self.rows.setdefault(f"{self._section}-{self._tables() + 1}", [])
        elif tag == "tr":
            self._rows().append([])
        elif tag in ("td", "th"):
            self._rows()[-1].append(None)
        elif tag in ("data", "time"):
            self._rows_or_none(str(given.get("value") or given.get("datetime")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag = self._open[-1][0] if self._open else ""
        if tag == "h2":
            self.titles[self._section] = data
        elif tag in ("td", "th"):
            self._rows()[-1][-1] = data
        elif tag == "caption":
            self.captions.append(data)
        elif tag == "strong":
            self.verdict = data
        elif tag == "dt":
            self._headline = data
        elif tag == "dd":
            self.headlines.setdefault(self._headline, data)

    def _tables(self) -> int:
        return sum(name.startswith(f"{self._section}-") for name in self.rows)

    def _rows(self) -> list[list[str | None]]:
        return self.rows[f"{self._section}-{self._tables()}"]

    def _rows_or_none(self, value: str) -> None:
        if any(tag == "td" for tag, _ in self._open):
            self._rows()[-1][-1] = value


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["report", *(str(argument) for argument in arguments)])


def table(folder: Path, name: str) -> pa.Table:
    return pq.read_table(folder / f"{name}.parquet")


def said(value: Any) -> str | None:
    """A value of a table as the page has it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return None if value is None else value if isinstance(value, str) else repr(value)


def rows_of(answer: pa.Table, order: tuple[str, ...]) -> list[list[str | None]]:
    rows = answer.sort_by([(name, "ascending") for name in order]).slice(0, ROWS_SHOWN).to_pylist()
    return [[said(value) for value in row.values()] for row in rows]


# With Spark


def shown_by(notebook: Path) -> dict[str, Any]:
    """What each cell shows, by its id: as in Jupyter, its last expression."""
    found: dict[str, Any] = {}
    space: dict[str, Any] = {}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            *first, last = ast.parse(cell["source"]).body
            if not isinstance(last, ast.Expr):
                exec(cell["source"], space)
                found[cell["id"]] = None
                continue
            exec(compile(ast.Module(first, []), cell["id"], "exec"), space)
            found[cell["id"]] = eval(compile(ast.Expression(last.value), cell["id"], "eval"), space)
    space["changes"].unpersist()
    return found


def test_a_notebook_has_no_password():
    options = {"password": "open sesame", "archive": "old"}
    text = notebook_of(["tupelo://h:1/"], options, skew_seconds=2.0)
    assert "open sesame" not in text and "TUPELO_PASSWORD" in text and "archive='old'" in text
    assert "jobs.audit(changes, skew_seconds=2.0)" in text


@pytest.fixture
def shared(spark, monkeypatch):
    """The command runs on the Spark of all tests."""
    monkeypatch.setattr("tupelo.pipeline.session", lambda master=None, **options: spark)
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.fixture
def hosts(tmp_path, until):
    """The folders of two hosts that were engaged; one of them is at work."""
    company = Company()
    ada = company.host("ada", path=tmp_path / "ada")
    ben = company.host("ben", path=tmp_path / "ben", peers=[ada.address])
    until(lambda: ada.engaged and ben.engaged)
    ada.space("jobs").write_all([("job", n, "<b>&") for n in range(30)])
    for _ in range(10):
        ada.space("jobs").take(("job", int, str))
    ben.space("notes").write(("note", 1))
    company.close()
    return tmp_path / "ada", tmp_path / "ben"


@pytest.mark.timeout(900)  # Every job is run.
@pytest.mark.usefixtures("shared")
def test_the_page_says_what_the_tables_have(hosts, tmp_path):
    folder = tmp_path / "out" / "report"
    notebook = tmp_path / "report.ipynb"
    result = run(*hosts, "--to", folder, "--notebook", notebook)
    assert (result.exit_code, result.stdout) == (0, f"{folder / PAGE}\n{notebook}\n"), result.stderr
    shown = shown_by(notebook)
    assert {name: len(shown[name]) for name in JOBS} == {
        name: min(table(folder, name).num_rows, ROWS_SHOWN) for name in JOBS
    }
    assert {"backlog-plot", "latency-plot"} <= shown.keys()
    assert {*shown["contacts"]["host_name"]} == {"ada", "ben"}, "names beside the ids"
    assert {file.name for file in folder.iterdir()} == {
        *(f"{name}.parquet" for name in JOBS),
        PAGE,
        MARK,
    }
    assert [*folder.parent.iterdir()] == [folder]
    page = Page((folder / PAGE).read_text())
    assert page.verdict.startswith("Sound: ")
    assert {name: page.titles[name] for name in JOBS} == {n: job.title for n, job in JOBS.items()}
    assert "://" not in page.text and len(page.ids) == len(set(page.ids))
    met = table(folder, "presence")
    names = Names(zip(met.column("peer").to_pylist(), met.column("name").to_pylist(), strict=True))
    for name in (
        "turnaround",
        "delivery",
        "latency",
        "order",
        "overhead",
        "waiting",
        "presence",
        "spread",
        "contacts",
    ):
        answer = names.put(table(folder, name))
        if name == "presence":  # The names are in the column `peer`.
            answer = answer.drop_columns(["name"])
        heads, *rows = page.rows[f"{name}-1"]
        assert heads == [column.replace("_", " ") for column in answer.column_names]
        assert rows == rows_of(answer, JOBS[name].order), name
    assert [row[:3] for row in page.rows["workers-1"][1:]] == [["jobs", "ada", "10"]]
    assert page.headlines["Waiting at the end"] == "20" and page.headlines["Workers"] == "1"
    assert not any(re.search("[0-9a-f]{32}", str(rows)) for rows in page.rows.values())
    fates = table(folder, "life").column("fate").to_pylist()
    assert [row[:2] for row in page.rows["life-1"][1:]] == [["living", "21"], ["taken", "10"]]
    assert (fates.count("living"), fates.count("taken")) == (21, 10)
    amounts = {row[0]: row[1] for row in page.rows["throughput-1"][1:]}
    assert amounts["written"] == "31" and amounts["taken"] == "10"
    assert table(folder, "audit").num_rows == 0 and table(folder, "presence").num_rows == 2
    assert PRESENCE in str(page.rows["logs-1"]) and PRESENCE not in str(page.rows["overhead-1"])


@pytest.mark.usefixtures("shared")
def test_a_log_that_cannot_be_is_told_and_the_report_is_written(tmp_path, monkeypatch):
    some = {name: JOBS[name] for name in ("audit", "life")}  # The others are tried above.
    monkeypatch.setattr(reports, "JOBS", some)
    file = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=file, agent="me") as space:
        space.write_all([("job", n) for n in range(10)])
        space.take_all(("job", int), limit=5)
    with sqlite3.connect(file) as db:
        db.execute("UPDATE change SET arrival = 4 WHERE position = 15")  # It was of the fifth.
    db.close()
    result = run(file, "--to", tmp_path / "report")
    assert result.exit_code == 1 and "the audit failed: taken twice 1" in result.stderr
    page = Page((tmp_path / "report" / PAGE).read_text())
    assert page.verdict == "Not sound: 1 fault in 15 changes in 1 log: taken twice 1."
    assert page.rows["audit-1"] == [["fault", "times"], ["taken twice", "1"]]
    (fault,) = table(tmp_path / "report", "audit").to_pylist()
    assert (fault["fault"], fault["space"], fault["n"]) == ("taken twice", "jobs", 4)
    shown = Names([]).put(table(tmp_path / "report", "audit"))
    assert page.rows["audit-2"][1:] == rows_of(shown, JOBS["audit"].order)


def test_the_logs_are_read_once(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "JOBS", {"throughput": JOBS["throughput"]})
    file, steps = tmp_path / "jobs.tupelo", list[str]()
    with tupelo.Space("jobs", path=file, agent="me") as space:
        space.write_all([("job", n) for n in range(10)])

        def told(step: str) -> None:
            if steps:  # They go on while the jobs are run.
                space.write(("job", step))
            steps.append(step)

        (tmp_path / "out").mkdir()
        reports.write_report(spark, [str(file)], {}, tmp_path / "out", NOON, begun=told)
    assert steps == ["reading the logs", "throughput"]
    page = Page((tmp_path / "out" / PAGE).read_text())
    assert page.rows["logs-1"][1][2] == "10" and page.rows["throughput-1"][1][1] == "10"


# The page


def life(fates: dict[str, int]) -> pa.Table:
    rows = [fate for fate, count in fates.items() for _ in range(count)]
    return pa.table({"fate": rows, "bytes": [7] * len(rows)})


def logs(changes: int = 3) -> Shown:
    return Shown(
        "The logs", pa.table({"host": ["<script>"], "space": ["a&b"], "changes": [changes]})
    )


def test_a_page_without_anything():
    empty = pa.table({"fault": pa.array([], pa.string())})
    none = Shown("The logs", logs().rows.slice(0, 0))
    page = Page(page_of({}, [], none, [section_of(JOBS["audit"], empty)], NOON))
    assert page.verdict == "Sound: no fault in 0 changes in 0 logs."
    assert "None was found." in page.text and not page.images


def test_what_is_in_a_log_is_only_text_in_the_page():
    odd = pa.table(
        {
            "space": ["</table><script>alert(1)</script>"],
            "reader": ["$x^2$ \x00\x1b"],
            "how": ['"taken"'],
            **{name: [0.001] for name in ("p50", "p90", "p99", "max")},
        }
    )
    page = Page(
        page_of({"gap": 2, "lost": 1}, [], logs(), [section_of(JOBS["latency"], odd)], NOON)
    )
    assert page.verdict == "Not sound: 3 faults in 3 changes in 1 log: gap 2, lost 1."
    assert page.rows["latency-1"][1][0] == "</table><script>alert(1)</script>"
    assert page.rows["logs-1"][1][:2] == ["<script>", "a&b"]
    assert "\x00" not in page.text and "\x1b" not in page.text


def test_every_plot_is_told_in_words_too():
    section = section_of(JOBS["life"], life({"taken": 3, "living": 1_000}))
    page = Page(page_of({}, [], logs(), [section], NOON))
    assert page.images == ["Bars: entries by fate: living 1,000, taken 3."]
    assert page.rows["life-1"][1:] == [["living", "1000", "7000"], ["taken", "3", "21"]]
    replayed = [{"space": "jobs", "workers": n, "more": 0, "mean": 123_456.7} for n in (2, 1)]
    (plot,) = section_of(JOBS["whatif"], pa.Table.from_pylist(replayed)).plots
    assert plot.words.endswith("The greatest mean is 123,457 for jobs · 2 workers.")
    row = {"space": "jobs", "worker": "w", "taken": 1, "came_back": 2, "utilisation": None}
    (plot,) = section_of(JOBS["workers"], pa.Table.from_pylist([row])).plots
    assert plot.words.startswith("Bars: taken and came back, for each row of the table.")


def test_names_stand_for_ids():
    one, two, host = (digit * 32 for digit in "abc")
    client = f"local:{one}@{host}"
    names = Names([(one, "ann"), (two, "ann"), (host, "kitchen"), (client, "w2"), (client, "w1")])
    assert names.of(host) == "kitchen" and names.of("a thing") == "a thing"
    assert [names.of(one), names.of(two)] == ["ann (aaaaaaaa…)", "ann (bbbbbbbb…)"]
    assert names.of(client) == "w1, w2"
    assert names.of(f"local:{'d' * 32}@{host}") == "local:dddddddd…@kitchen"
    who = {"worker": [client, client, None], "worker_name": ["w1", None, None], "n": [1, 2, 3]}
    put = names.put(pa.table(who)).to_pydict()
    assert put == {"worker": ["w1", "w1, w2", None], "n": [1, 2, 3]}
    jobs = names.put(pa.table({"job": [f"{client} 7", one]}))
    assert jobs.to_pydict() == {"job": ["w1, w2 7", one]}, "an entry, and a job of a queue"


def test_headlines_are_about_what_is_taken():
    backlog = [
        {"space": "jobs", "entry_kind": kind, "at": at, "waiting": number, "oldest": age}
        for at, kind, number, age in [
            (NOON, "mail", 7, 90.0),
            (NOON, "result", 1, 1.0),
            (NOON + timedelta(seconds=1), "mail", 2, 0.5),
            (NOON + timedelta(seconds=1), "result", 99, 2.0),
        ]
    ]
    times = {f"{prefix}p{share}": 0.02 for prefix in ("wait_", "") for share in (50, 90, 99)}
    done = {"space": "jobs", "entry_kind": "mail", "worker": None, "entries": 5, **times}
    worker = {"worker": "a", "worker_name": "w1", "taken": 5, "busy": 2.5}
    worker |= {"since": NOON, "until": NOON + timedelta(seconds=10)}
    again = [{"came_back": 3, "failures": 4, "dead_letter": True}]
    tables = {"backlog": backlog, "turnaround": [done], "workers": [worker], "retries": again}
    found = headlines({name: pa.Table.from_pylist(rows) for name, rows in tables.items()})
    assert {each.label: (each.value, each.remark) for each in found} == {
        "Waiting at the end": ("2", "at most 7"),
        "Age of the oldest": ("500 ms", "at most 1.5 min"),
        "Taken": ("5", "entries"),
        "Workers": ("1", "busy 25% of the time"),
        "Median wait": ("20 ms", "99 % within 20 ms; jobs · mail"),
        "Median turnaround": ("20 ms", "99 % within 20 ms; jobs · mail"),
        "Came back": ("3", "workers lost, transactions aborted"),
        "Failures": ("4", "1 dead letter"),
    }
    assert [duration(s) for s in (0, 1e-5, 59, 7200)] == ["0 s", "10 µs", "59 s", "2 h"]


def test_long_tables_are_cut_and_long_times_put_together():
    many = pa.table(
        {
            "space": [f"s{n:03}" for n in range(100)],
            "shape": ["(int)"] * 100,
            "got": [1] * 100,
            **{name: [n + 0.5 for n in range(100)] for name in ("p50", "p90", "p99", "max")},
        }
    )
    section = section_of(JOBS["waiting"], many)
    assert (
        section.tables[0].rows.num_rows == ROWS_SHOWN and "of 100 rows" in section.tables[0].caption
    )
    assert f"{BARS_MAX} of 100 rows" in section.plots[0].words
    at = [NOON + timedelta(seconds=n) for n in range(10 * POINTS_MAX)]
    rates = pa.table(
        {
            "at": pa.array(at, pa.timestamp("us", tz="UTC")),
            "kind": ["written"] * len(at),
            "changes": [5] * len(at),
            "bytes": [50] * len(at),
            "per_second": [5.0] * len(at),
        }
    )
    section = section_of(JOBS["throughput"], rates)
    assert "mean of each 10 seconds" in section.plots[0].words
    assert "written at most 5." in section.plots[0].words
    assert section.tables[0].rows.to_pylist() == [
        {"kind": "written", "changes": 12_000, "bytes": 120_000, "most_per_second": 5.0}
    ]


def test_a_plot_has_the_colours_of_the_page_and_refers_to_nothing_else():
    later = NOON + timedelta(seconds=5)
    for svg in (
        bars("one", ["a", "b"], {"x": [1, 2], "y": [3, 0]}, "bytes"),
        dots("two", ["a"], {"p50": [0.1], "p99": [40.0]}, "seconds"),
        dots("two", ["a"], {"p50": [0.0], "p99": [0.0]}, "seconds"),
        lines("three", [NOON, later], {"written": [1.0, 2.0]}, "changes"),
        graph("five", {("ada", "ben"): (3, "<job>"), ("ben", "ada"): (1, "$x$")}),
        spans("four", {"a": [(NOON, later), (later, later)]}),
        intervals(
            "six", "size", "bytes", {"": {"x": [(1, 1.0, 0.0, 2.0), (99, 90.0, 80.0, 99.0)]}}
        ),
        intervals(
            "six", "way", "$x$", {w: {s: [("a", 1.0, -1.0, 2.0)] for s in "xy"} for w in "vw"}
        ),
    ):
        Page(svg.replace("<svg", '<svg role="img" aria-label=""', 1))
        assert "var(--series-1)" in svg and not re.search(r"#[0-9a-f]{6}|://|mathdefault", svg)
        names = re.findall(r' id="([^"]+)"', svg)
        assert {*re.findall(r"#([\w-]+)", svg)} <= {*names}
    assert shortened(["short", "x" * 99]) == f"short · {'x' * 21}…"


# The folder


class Log:
    """Of a log, what a report is known by."""

    def __init__(self, space: str, life: str = "1") -> None:
        self.host, self.space, self.id = "me", space, life


def made(to: Path, text: str, *spaces: str) -> None:
    logs: Any = [Log(space) for space in spaces]
    with place_for(to, logs) as folder:
        (folder / PAGE).write_text(text)


def test_a_report_takes_the_place_of_one_of_the_same_logs(tmp_path):
    to = tmp_path / "report"
    to.mkdir()  # An empty folder is as good as none.
    made(to, "one", "jobs")
    made(to, "two", "jobs", "notes")
    assert (to / PAGE).read_text() == "two"
    for other in (["jobs"], ["else"]):
        with pytest.raises(PipelineError, match=r"has a report of .*'notes' of me"):
            made(to, "three", *other)
    assert (to / PAGE).read_text() == "two" and [*tmp_path.iterdir()] == [to]
    assert to.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


def test_what_is_no_report_is_left_alone(tmp_path):
    to = tmp_path / "report"
    to.mkdir()
    (to / "thesis.txt").write_text("mine")
    for mark in (None, "", "[]", "{}", json.dumps({"tupelo report": 99, "logs": []})):
        if mark is not None:
            (to / MARK).write_text(mark)
        with pytest.raises(PipelineError, match="something else than a report"):
            made(to, "one", "jobs")
    with pytest.raises(BadArgument, match="a folder"):
        made(to / "thesis.txt", "one", "jobs")
    with pytest.raises(OSError, match="thesis"):
        made(to / "thesis.txt" / "report", "one", "jobs")
    assert (to / "thesis.txt").read_text() == "mine"


def test_what_was_put_beside_a_report_is_left_alone(tmp_path):
    to = tmp_path / "report"
    made(to, "one", "jobs")
    (to / "thesis.txt").write_text("mine")
    with pytest.raises(PipelineError, match=r"has thesis\.txt in it"):
        made(to, "two", "jobs")
    assert (to / "thesis.txt").read_text() == "mine" and (to / PAGE).read_text() == "one"


def test_nothing_half_written_is_left(tmp_path):
    to = tmp_path / "report"
    made(to, "one", "jobs")
    with pytest.raises(ZeroDivisionError), place_for(to, [Log("jobs")]) as folder:  # type: ignore[list-item]
        (folder / PAGE).write_text("half")
        raise ZeroDivisionError
    assert (to / PAGE).read_text() == "one" and [*tmp_path.iterdir()] == [to]


def test_what_is_wrong_is_said_before_spark_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tupelo.pipeline.session", lambda master, **options: pytest.fail("it was started")
    )
    result = run(tmp_path / "nowhere", "--to", tmp_path / "report")
    assert result.exit_code == 1 and "a host's folder or an archive" in result.stderr
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        space.write(("job", 1))
        result = run(tmp_path / "jobs.tupelo", "--to", tmp_path)
    assert result.exit_code == 1 and "something else than a report" in result.stderr
    assert {file.suffix for file in tmp_path.iterdir()} <= {".tupelo", ".lock"}
