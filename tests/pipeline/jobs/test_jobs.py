"""The other jobs, each on a few changes of which everything is known; and the commands."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tupelo
from tests.pipeline.jobs.recorded import Row, table_of
from tupelo.errors import AuditFailed, BadArgument
from tupelo.federation.names import PRESENCE
from tupelo.pipeline import TITLES, jobs
from tupelo.pipeline.commands.pipeline import app
from tupelo.pipeline.reports.names import Names, names_in, with_names
from tupelo.pipeline.schema import COLUMNS
from tupelo.pipeline.sink import Sunk

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SHAPE = "(str, int)"


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


class Logs:
    """Changes of entries of the space "jobs", which two agents wrote at two hosts."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._last: dict[tuple[str, str], int] = {}

    def add(self, host: str, seconds: float, kind: str, space: str = "jobs", **said: Any) -> int:
        position = self._last[host, space] = self._last.get((host, space), 0) + 1
        row: Row = dict.fromkeys(COLUMNS)
        row |= {"host": host, "space": space, "position": position, "time": at(seconds)}
        row |= {"kind": kind, "agent": host, "waited": 0.0, "shape": SHAPE, "bytes": 10, **said}
        self.rows.append(row)
        return position

    def write(self, host: str, seconds: float, n: int, **said: Any) -> dict[str, Any]:
        """What names the entry in what follows."""
        named = {"origin": host, "n": n, **said}
        arrival = self._last.get((host, "jobs"), 0) + 1
        return {**named, "arrival": self.add(host, seconds, "written", arrival=arrival, **named)}


@pytest.fixture
def logs() -> Logs:
    return Logs()


def answer(job: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in job.collect()), key=repr)


def test_delivery_says_how_much_of_each_writer_reached_each_reader(spark, logs):
    entries = [logs.write("a", 0, n) for n in range(1, 5)]
    logs.write("b", 0, 1)
    for entry in entries[:3]:
        logs.add("a", 1, "read", agent="ann", agent_name="Ann", **entry)
        logs.add("a", 2, "read", agent="ann", **entry)
    logs.add("a", 3, "taken", agent="carl", **entries[0])
    logs.add("a", 3, "returned", **entries[0])  # Carl vanished before he had it.
    logs.add("a", 3, "taken", agent="bob", **entries[0])
    assert answer(jobs.delivery(table_of(spark, logs.rows))) == [
        ("jobs", SHAPE, "a", "ann", "Ann", 4, 3, 0, 0.75),
        ("jobs", SHAPE, "a", "bob", None, 4, 1, 1, 0.25),
        ("jobs", SHAPE, "b", None, None, 1, 0, 0, 0.0),
    ]


def test_latency_counts_from_the_first_writing_to_the_first_read_and_the_last_take(spark, logs):
    for n in range(1, 11):
        entry = logs.write("a", n, n)
        logs.add("a", n + n / 10, "read", agent="ann", agent_name="Ann", **entry)
        logs.add("a", n + 5, "read", agent="ann", **entry)
        if n == 1:
            logs.add("a", n + 1, "taken", agent="bob", **entry)
            logs.add("a", n + 1, "returned", agent="bob", **entry)
            logs.add("a", n + 2, "taken", agent="carl", **entry)
            logs.add("a", n + 2, "returned", **entry)
            logs.add("a", n + 4, "taken", agent="bob", **entry)
    read, taken = answer(jobs.latency(table_of(spark, logs.rows)))
    assert read[:5] == ("jobs", "ann", "read", "Ann", 10)
    assert read[5:] == pytest.approx((0.55, 0.5, 0.9, 1.0, 1.0))
    assert taken == ("jobs", "bob", "taken", None, 1, 4.0, 4.0, 4.0, 4.0, 4.0)


def test_throughput_counts_by_time_and_kind(spark, logs):
    for n, seconds in enumerate((0.0, 0.9, 1.0, 61.0), 1):
        entry = logs.write("a", seconds, n)
    logs.add("a", 61.5, "taken", **entry)
    changes = table_of(spark, logs.rows)
    since = BEGIN.timestamp()
    by_minute = jobs.throughput(changes, seconds=60).where("kind = 'written'").orderBy("at")
    assert [(row["changes"], row["bytes"], row["per_second"]) for row in by_minute.collect()] == [
        (3, 30, 3 / 60),
        (1, 10, 1 / 60),
    ]
    found = {
        (row["at"].timestamp(), row["kind"]): row["changes"]
        for row in jobs.throughput(changes).collect()
    }
    assert found == {
        (since, "written"): 2,
        (since + 1, "written"): 1,
        (since + 61, "written"): 1,
        (since + 61, "taken"): 1,
    }
    with pytest.raises(BadArgument, match="1 or more"):
        jobs.throughput(changes, seconds=0)


def test_order_counts_what_came_late_at_a_host_and_over_all(spark, logs):
    first, second, third = (logs.write("a", n, n) for n in range(1, 4))
    for seconds, entry in enumerate((second, first, third), 10):
        logs.add("a", seconds, "taken", agent="ann", **entry)
    there = [logs.write("b", n, 3 + n, origin="a") for n in range(1, 3)]
    logs.add("b", 5, "taken", agent="ann", **there[0])
    logs.add("b", 20, "taken", agent="ann", **there[1])
    assert answer(jobs.order(table_of(spark, logs.rows))) == [
        ("all hosts", None, "jobs", "ann", 5, 3, 0.6),
        ("host", "a", "jobs", "ann", 3, 1, 1 / 3),
        ("host", "b", "jobs", "ann", 2, 0, 0.0),
    ]


def test_overhead_compares_the_log_with_its_entries(spark, logs):
    entry = logs.write("a", 0, 1)
    logs.add("a", 1, "taken", txn="x" * 32, **entry)
    numbers, names = 49, 2
    assert answer(jobs.overhead(table_of(spark, logs.rows))) == [
        ("a", "jobs", "taken", 1, 0, numbers + names + 32, 8.3),
        ("a", "jobs", "written", 1, 10, numbers + names + 10, 5.1),
    ]


def test_waiting_says_how_long_and_how_many_at_once(spark, logs):
    entries = [logs.write("a", 10, n) for n in range(1, 5)]
    for entry, seconds, waited in zip(entries, (10, 12, 14, 20), (4.0, 4.0, 2.0, 0.0), strict=True):
        logs.add("a", seconds, "taken", waited=waited, **entry)
    logs.add("a", 21, "read", shape="(int)", arrival=1, origin="a", n=1)
    assert answer(jobs.waiting(table_of(spark, logs.rows))) == [
        ("jobs", "(int)", 1, 0, 0.0, None, None, None, None, 0),
        ("jobs", SHAPE, 4, 3, 0.75, 4.0, 4.0, 4.0, 4.0, 2),
    ]


def test_presence_says_who_was_engaged_with_whom(spark, logs):
    def met(seconds: float, kind: str, peer: str, how: str = "") -> None:
        thing = {"id": peer, "name": f"the {peer}", "address": f"{peer}:1", "how": how}
        logs.add("a", seconds, kind, PRESENCE, fields=json.dumps(thing))

    met(0, "engaged", "a")
    met(1, "engaged", "b")
    met(2, "engaged", "c")
    met(4, "disengaged", "b", "silent")
    met(6, "engaged", "b")
    assert answer(jobs.presence(table_of(spark, logs.rows))) == [
        ("a", "b", "the b", "b:1", naive(1), naive(4), 3.0, "silent"),
        ("a", "b", "the b", "b:1", naive(6), None, None, None),
        ("a", "c", "the c", "c:1", naive(2), None, None, None),
    ]


def naive(seconds: float) -> datetime:
    """As Spark hands out times: without a zone, in that of this machine."""
    return at(seconds).astimezone().replace(tzinfo=None)


def test_life_tells_the_fate_of_every_entry(spark, logs):
    taken, leased, away, _ = (logs.write("a", n, n) for n in range(1, 5))
    logs.add("a", 5, "taken", **taken)
    logs.add("a", 6, "expired", **leased)
    logs.add("a", 7, "moved", txn="move:elsewhere:a:3", **away)
    logs.add("a", 8, "prepared", txn="move:b:a:4")
    logs.write("b", 9, 4, origin="a")  # It has come, and the first host does not know it yet.
    logs.write("b", 9, 1)
    old = {"origin": "c", "n": 1, "arrival": 3}
    logs.rows.append({**logs.rows[4], "host": "c", "position": 9, **old})  # The log was trimmed.
    found = jobs.life(table_of(spark, logs.rows)).collect()
    assert {(row["origin"], row["n"]): row["fate"] for row in found} == {
        ("a", 1): "taken",
        ("a", 2): "expired",
        ("a", 3): "moved",
        ("a", 4): "in doubt",
        ("b", 1): "living",
        ("c", 1): "taken",
    }


def test_clocks_that_differ_are_no_fault_if_it_is_said_by_how_much(spark, logs):
    entry = logs.write("a", 0, 1)
    logs.add("a", 5.0, "taken", **entry)
    logs.write("b", 4.5, 1, origin="a")
    changes = table_of(spark, logs.rows)
    with pytest.raises(AuditFailed) as failed:
        jobs.require_sound(changes)
    assert failed.value.faults == {"duplicated": 1}
    jobs.require_sound(changes, skew_seconds=1.0)


# The commands


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        space.write_all([("job", number) for number in range(3)])
        space.write(Sunk("a query", 0, 0, "an attempt", 3))
        space.take(("job", 1))
    return tmp_path / "jobs.tupelo"


def run(*words: object) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


def test_every_job_is_a_command():
    assert list(jobs.JOBS) == list(TITLES)
    listed = " ".join(run("--help").stdout.replace("│", " ").split())
    for name, title in TITLES.items():
        assert run(name, "--help").exit_code == 0
        assert f" {name} {title.partition(': ')[2]}".lower() in listed.lower(), "not cut off"


def test_a_sound_log_passes_the_audit_and_one_that_should_be_empty_fails(spark, file):
    passed = run("audit", file)
    assert passed.exit_code == 0
    assert "4 entries: 3 are there still, and 0 are in doubt" in passed.stdout
    assert "no fault was found" in passed.stdout
    failed = run("audit", file, "--drained", "--format", "json")
    assert failed.exit_code == 1
    assert [row["fault"] for row in json.loads(failed.stdout)] == ["never taken"] * 2
    assert "the audit failed: never taken 2" in failed.stderr


def test_an_audit_of_nothing_fails(spark, file):
    with pytest.raises(AuditFailed, match="empty 1"):
        jobs.require_sound(table_of(spark, []))
    for misspelt in ("jbos", "jobs,jbos", ","):
        failed = run("audit", file, "--space", misspelt)
        assert failed.exit_code == 1
        assert "--space must be spaces with a log here: " in failed.stderr


def test_a_command_writes_parquet_or_shows_a_table(spark, file, tmp_path):
    assert run("life", file, "--to", tmp_path / "tables").exit_code == 0
    written = pq.read_table(tmp_path / "tables" / "life.parquet")
    assert sorted(written.column("fate").to_pylist()) == ["living", "living", "living", "taken"]
    refused = run("life", file, "--to", tmp_path / "tables")
    assert refused.exit_code == 1
    assert "life.parquet" in refused.stderr
    shown = run("throughput", file, "--every", 3600, "--limit", 1)
    assert shown.exit_code == 0
    assert "written" in shown.stdout or "taken" in shown.stdout
    assert "there are more than these 1 rows" in shown.stderr


def test_names_stand_beside_ids(spark, logs, tmp_path):
    entry = logs.write("a" * 32, 0, 1, agent_name="kitchen")
    logs.add("a" * 32, 1, "taken", **{**entry, "agent": "b" * 32, "agent_name": "ann"})
    changes = table_of(spark, logs.rows)
    named = with_names(jobs.order(changes), names_in(changes))
    assert named.columns[:6] == ["over", "host", "host_name", "space", "reader", "reader_name"]
    (row,) = named.where("host is not null").collect()
    assert (row["host_name"], row["reader_name"]) == ("kitchen", "ann")
    (row,) = with_names(jobs.life(changes), Names([])).collect()
    assert row["origin_name"] is None


def test_laws_are_named_on_the_command_line(spark, file):
    sound = run("conformance", file, "--law", "isolation", "--law", "total order")
    assert sound.exit_code == 0, sound.stderr
    refused = run("conformance", file, "--law", "gravity")
    assert refused.exit_code == 1
    assert "--law must be some of isolation, once per session" in refused.stderr
