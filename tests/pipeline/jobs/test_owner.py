"""What the owner of a queue asks, against a plain computation on random logs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

import pytest

import tupelo
from tests.conftest import HandClock
from tests.pipeline.jobs.recorded import Row, rows_of, table_of
from tupelo.errors import BadArgument
from tupelo.pipeline import jobs
from tupelo.pipeline.jobs.owner import MOMENTS
from tupelo.queue import JobQueue
from tupelo.values.change import ENDINGS


def answers(job: Any, *key: str) -> dict[Any, dict[str, Any]]:
    """The rows of a result by some columns, which are a key."""
    rows = job.toArrow().to_pylist()
    found = {tuple(row.pop(name) for name in key): row for row in rows}
    assert len(found) == len(rows)
    return found


def kind_of(row: Row) -> str:
    return str(json.loads(row["fields"])[0])


def worker_of(row: Row) -> tuple[str, str | None]:
    return row["agent"], row["agent_name"]


def stays_of(rows: list[Row]) -> dict[Any, list[Row]]:
    stays = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["position"]):
        if row["n"] is not None:
            stays[row["host"], row["space"], row["arrival"]].append(row)
    return stays


def attempts_of(rows: list[Row]) -> list[dict[str, Any]]:
    found = []
    for stay in stays_of(rows).values():
        visible = there = None
        for place, row in enumerate(stay):
            if row["kind"] in ("taken", "released"):
                later = [other["kind"] for other in stay[place + 1 :]]
                after = [kind for kind in later if kind in ("written", "taken", "released")]
                back = later and "returned" in later[: len(later) - len(after)]
                outcome = "returned" if back else row["kind"]
                found.append({**row, "visible": visible, "there": there, "outcome": outcome})
            if row["kind"] in ("written", "returned", "released"):
                there = row["time"]
            if row["kind"] == "written":
                visible = row["time"]
    ended: dict[Any, datetime] = {}
    for row in found:
        if row["txn"] and ":" not in row["txn"]:
            key = worker_of(row), row["txn"]
            ended[key] = max(row["time"], ended.get(key, row["time"]))
    free: dict[Any, datetime] = {}
    for worker in {worker for worker, _ in ended}:
        last = None
        for end, txn in sorted(
            (end, txn) for (agent, txn), end in ended.items() if agent == worker
        ):
            if last is not None:
                free[worker, txn] = last
            last = end
    for row in found:
        row["works"] = (worker_of(row), row["txn"]) in ended
        known = [row["there"], free.get((worker_of(row), row["txn"]))]
        times = [time for time in known if time is not None] if row["works"] else []
        row["since"] = min(row["time"], max(times, default=row["time"]))
    return found


def moments_of(rows: list[Row], seconds: int | None) -> list[datetime]:
    times = [row["time"] for row in rows]
    span = (max(times) - min(times)) // timedelta(microseconds=1)
    step = max(1, -(-span // MOMENTS)) if seconds is None else seconds * 1_000_000
    places = range(-(-span // step) + 1)
    return [min(times) + timedelta(microseconds=step * place) for place in places]


Spans = dict[Any, list[tuple[datetime, datetime | None]]]


def counted(spans: Spans, moments: list[datetime]) -> dict[Any, tuple[int, Any]]:
    found: dict[Any, tuple[int, Any]] = {}
    for key, some in spans.items():
        for at in moments:
            there = [since for since, end in some if since <= at and (end is None or at < end)]
            oldest = (at - min(there)).total_seconds() if there else None
            found[(*key, at)] = len(there), oldest and pytest.approx(oldest)
    return found


@pytest.mark.parametrize("seconds", [None, 3])
def test_backlog(changes, rows, seconds):
    spans: Spans = defaultdict(list)
    for (_, space, _), stay in stays_of(rows).items():
        kinds = [row["kind"] for row in stay]
        if "written" in kinds:
            ends = [row["time"] for row in stay if row["kind"] in ENDINGS]
            gone = len(ends) > kinds.count("returned")
            written = stay[kinds.index("written")]
            spans[space, kind_of(written)].append((written["time"], max(ends) if gone else None))
    found = answers(jobs.backlog(changes, seconds=seconds), "space", "entry_kind", "at")
    assert {key: (row["waiting"], row["oldest"]) for key, row in found.items()} == counted(
        spans, moments_of(rows, seconds)
    )


@pytest.mark.parametrize("seconds", [None, 1])
def test_load(changes, rows, seconds):
    spans: Spans = defaultdict(list)
    for row in attempts_of(rows):
        if row["works"]:
            spans[row["space"], *worker_of(row)].append((row["since"], row["time"]))
    found = answers(jobs.load(changes, seconds=seconds), "space", "worker", "worker_name", "at")
    assert {key: (row["in_hand"], row["longest"]) for key, row in found.items()} == counted(
        spans, moments_of(rows, seconds)
    )


def test_moments_are_a_second_apart_at_least(changes):
    for job in (jobs.backlog, jobs.load):
        with pytest.raises(BadArgument, match="seconds= must be 1 or more"):
            job(changes, seconds=0)


def test_workers(changes, rows):
    by_worker = defaultdict(list)
    for row in attempts_of(rows):
        by_worker[row["space"], *worker_of(row)].append(row)
    found = answers(jobs.workers(changes), "space", "worker", "worker_name")
    assert found.keys() == by_worker.keys()
    for key, tries in by_worker.items():
        came_back = sum(row["outcome"] != "taken" for row in tries)
        since, until = min(row["since"] for row in tries), max(row["time"] for row in tries)
        worked = [(row["time"] - row["since"]).total_seconds() for row in tries if row["works"]]
        busy = pytest.approx(sum(worked)) if worked else None
        span = (until - since).total_seconds()
        used = pytest.approx(sum(worked) / span) if worked and span else None
        assert found[key] == {
            "taken": len(tries) - came_back,
            "came_back": came_back,
            "busy": busy,
            "utilisation": used,
            "since": since,
            "until": until,
        }


def test_turnaround(changes, rows):
    waits, settled = defaultdict(list), defaultdict(list)
    for row in attempts_of(rows):
        if row["outcome"] == "taken" and row["visible"]:
            for worker in (worker_of(row), (None, None)):
                key = row["space"], kind_of(row), *worker
                waits[key].append((row["since"] - row["visible"]).total_seconds())
                settled[key].append((row["time"] - row["visible"]).total_seconds())
    found = answers(jobs.turnaround(changes), "space", "entry_kind", "worker", "worker_name")
    assert found.keys() == waits.keys()
    for key, row in found.items():
        assert row["entries"] == len(waits[key])
        assert row["max"] == pytest.approx(max(settled[key]))
        for prefix, values in (("wait_", waits[key]), ("", settled[key])):
            for share in (50, 90, 99):
                expected = sorted(values)[ceil(share / 100 * len(values)) - 1]
                assert row[f"{prefix}p{share}"] == pytest.approx(expected, abs=1e-6)


def test_retries(changes, rows):
    back = [row for row in rows if row["kind"] in ("returned", "released")]
    expected = Counter((row["space"], kind_of(row), f"{row['origin']} {row['n']}") for row in back)
    last = {}
    for row in sorted(back, key=lambda row: (row["time"], row["position"])):
        last[row["space"], kind_of(row), f"{row['origin']} {row['n']}"] = row
    found = answers(jobs.retries(changes), "space", "entry_kind", "job")
    assert {key: row["came_back"] for key, row in found.items()} == expected
    for key, row in found.items():
        assert (row["failures"], row["dead_letter"]) == (0, False)
        assert (row["worker"], row["worker_name"]) == worker_of(last[key])
        assert row["last_at"] == last[key]["time"]


def test_a_job_of_a_queue_that_fails_is_one_row(spark, tmp_path):
    clock = HandClock()
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", clock=clock, agent="me") as space:
        queue = JobQueue(space, "mail")

        @queue.task(retries=2, backoff=1)
        def send(good: bool) -> None:
            assert good

        @queue.task
        def tidy() -> None: ...

        bad = queue.submit(send, False)
        queue.submit(send, True)
        queue.submit(tidy)
        for _ in range(3):
            queue.work(threads=1, until_empty=True, leave_delayed=True)
            clock.advance(10)
    table = table_of(spark, rows_of(tmp_path / "jobs.tupelo"))
    assert answers(jobs.retries(table), "space", "entry_kind", "job") == {
        ("jobs", "send", bad.id): {
            "came_back": 0,
            "failures": 3,
            "dead_letter": True,
            "worker": "me",
            "worker_name": None,
            "last_at": datetime.fromtimestamp(1_000_020, UTC),
        }
    }
    backlog = jobs.backlog(table).orderBy("at").toArrow().to_pylist()
    left = {row["entry_kind"]: row["waiting"] for row in backlog}  # at the last moment
    assert left == {"send": 0, "tidy": 0, "tupelo.queue.DeadLetter": 1, "tupelo.queue.Finished": 3}
    settled = answers(jobs.turnaround(table), "entry_kind", "worker")
    assert {key: row["entries"] for key, row in settled.items()} == {
        ("send", "me"): 4,
        ("send", None): 4,
        ("tidy", "me"): 1,
        ("tidy", None): 1,
    }
