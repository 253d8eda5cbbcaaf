"""Figures over several seeds, against plain computations on random logs of runs."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from random import Random
from statistics import mean
from typing import Any

import pytest
from typer.testing import CliRunner

import tupelo
from tests.pipeline.jobs.recorded import Row, table_of
from tests.pipeline.jobs.test_contacts import met
from tests.pipeline.jobs.test_jobs import Logs, at
from tupelo.errors import BadArgument
from tupelo.federation.names import PRESENCE
from tupelo.pipeline import jobs
from tupelo.pipeline.commands.pipeline import app
from tupelo.pipeline.intervals import interval

RUNS = (("loss=0", 1), ("loss=0", 2), ("loss=0", 4), ("loss=1", 1))
Figures = dict[tuple[str, ...], float | None]


def run_of(seed: int) -> list[Row]:
    """Two hosts that meet and part, and entries that some agents read."""
    logs, rng, second = Logs(), Random(seed), 0.0
    for _ in range(rng.randrange(3, 6)):
        for kind in ("engaged", "disengaged"):
            second += rng.randrange(1, 9)
            met(logs, "a", second, kind, "b")
            met(logs, "b", second, kind, "a")
    for n in range(1, 30):
        entry = logs.write("a", n, n, fields=f'["news",{n}]')
        for reader in rng.sample("xyz", rng.randrange(4)):
            logs.add("a", n + rng.random(), "read", agent=reader, **entry)
    logs.add("a", second + 20, "written", arrival=1_000, origin="a", n=99, shape="(int)")
    return logs.rows


def contacts_in(rows: list[Row]) -> Figures:
    spans = defaultdict(list)
    for row in rows:
        if row["space"] == PRESENCE:
            spans[row["host"], json.loads(row["fields"])["id"]].append(row["time"])
    lasted = [
        (b - a).total_seconds()
        for s in spans.values()
        for a, b in zip(s[::2], s[1::2], strict=False)
    ]
    between = [
        (b - a).total_seconds()
        for s in spans.values()
        for a, b in zip(s[1::2], s[2::2], strict=False)
    ]
    found = {"contacts": len(lasted), "seconds": mean(lasted), "between": mean(between)}
    return {(name,): value for name, value in found.items()}


def partitions_in(rows: list[Row]) -> Figures:
    """They are one group or none, from the first contact to the end of the logs."""
    times = sorted({row["time"] for row in rows if row["space"] == PRESENCE})
    spans = pairwise([*times, max(row["time"] for row in rows)])
    lasted = [(until - since).total_seconds() for since, until in spans]
    share = sum(lasted[::2]) / sum(lasted)
    found = {"hosts": 2 * share, "groups": share, "largest": 2 * share, "connected": share}
    return {(name,): value for name, value in found.items()}


def reads_in(rows: list[Row]) -> list[tuple[int, str, float]]:
    return [
        (row["n"], row["agent"], (row["time"] - at(row["n"])).total_seconds())
        for row in rows
        if row["kind"] == "read"
    ]


def latency_in(rows: list[Row]) -> Figures:
    waits = [seconds for *_, seconds in reads_in(rows)]
    found = {"entries": len(waits), "mean": mean(waits), "max": max(waits)}
    return {("jobs", "read", name): value for name, value in found.items()}


def delivery_in(rows: list[Row]) -> Figures:
    readers = len(reads_in(rows)) / 29
    of_news: Figures = {
        ("jobs", "(str, int)", "written"): 29,
        ("jobs", "(str, int)", "readers"): readers,
    }
    return of_news | {("jobs", "(int)", "written"): 1, ("jobs", "(int)", "readers"): 0}


def spread_in(rows: list[Row]) -> Figures:
    first: dict[int, float] = {}
    for n, _, seconds in reads_in(rows):
        first[n] = min(seconds, first.get(n, seconds))
    found = {"entries": 29, "ratio": len(first) / 29, "mean": mean(first.values())}
    of_news: Figures = {("jobs", "news", "1", "0", name): value for name, value in found.items()}
    other = ("jobs", "(int)", "1", "0")
    return of_news | {(*other, "entries"): 1, (*other, "ratio"): 0, (*other, "mean"): None}


@pytest.mark.parametrize(
    ("job", "plain"),
    [
        ("contacts", contacts_in),
        ("partitions", partitions_in),
        ("latency", latency_in),
        ("delivery", delivery_in),
        ("spread", spread_in),
    ],
)
def test_figures_over_seeds(spark, job, plain):
    runs = [(setting, seed, run_of(10 * seed + len(setting))) for setting, seed in RUNS]
    tables = (jobs.Run(name, seed, table_of(spark, rows)) for name, seed, rows in runs)
    expected: dict[Any, dict[int, float]] = defaultdict(dict)
    for setting, seed, rows in runs:
        for key, value in plain(rows).items():
            if value is not None:
                expected[setting, *key][seed] = value
    found: dict[Any, dict[int | None, Row]] = defaultdict(dict)
    for row in jobs.over_seeds(job, tables).to_pylist():
        values = [value for name, value in row.items() if name not in ("seed", *_NUMBERS)]
        found[tuple(values)][row["seed"]] = row
    assert found.keys() == expected.keys()
    for key, by_seed in expected.items():
        of_all = found[key].pop(None)
        assert {s: row["mean"] for s, row in found[key].items()} == pytest.approx(by_seed)
        mean_, low, high = interval(list(by_seed.values()))
        assert [of_all[name] for name in _NUMBERS] == [
            len(by_seed),
            pytest.approx(mean_),
            pytest.approx(low),
            pytest.approx(high),
        ]


_NUMBERS = ("seeds", "mean", "low", "high")


def test_runs_that_cannot_be_compared_are_refused(spark):
    with pytest.raises(BadArgument, match="job"):
        jobs.over_seeds("audit", [])
    run = jobs.Run("", 1, table_of(spark, run_of(1)))
    with pytest.raises(BadArgument, match="twice '' with seed 1"):
        jobs.over_seeds("contacts", [run, run])


def test_the_command_reads_settings_and_seeds_from_names(spark, tmp_path):
    for loss, seed in ((0, 1), (0, 2)):
        folder = tmp_path / f"loss={loss} seed={seed}" / "h1"
        folder.mkdir(parents=True)
        with tupelo.Space("work", path=folder / "work.tupelo", agent="me") as space:
            space.write_all([("job", n) for n in range(seed)])
    runs = sorted(str(run) for run in tmp_path.iterdir())
    done = CliRunner().invoke(app, ["seeds", "overhead", *runs, "--format", "json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    changes = [row for row in rows if row["figure"] == "changes"]
    assert [(row["setting"], row["seed"], row["mean"]) for row in changes] == [
        ("loss=0", 1, 1),
        ("loss=0", 2, 2),
        ("loss=0", None, 1.5),
    ]
    failed = CliRunner().invoke(app, ["seeds", "audit", *runs])
    assert failed.exit_code != 0
    assert "contacts" in failed.output
