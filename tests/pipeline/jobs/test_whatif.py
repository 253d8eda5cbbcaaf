"""The replay with other numbers of workers, against a plain simulation; and its error where nothing
but the queue decides."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from tests.pipeline.jobs.recorded import table_of
from tests.pipeline.jobs.test_jobs import Logs
from tests.pipeline.jobs.test_owner import answers, attempts_of, worker_of
from tupelo.pipeline import jobs
from tupelo.pipeline.jobs.whatif import changed, replay, staff


def plain(arrives: list[int], seconds: list[int], steps: list[tuple[int, int]]) -> list[int]:
    """Tick by tick."""
    starts: list[int] = []
    ends: list[int] = []
    now, waiting = 0, list(zip(arrives, seconds, strict=True))
    while waiting:
        there = ([0] + [number for time, number in steps if time <= now])[-1]
        ends = [end for end in ends if end > now]
        while waiting and waiting[0][0] <= now and len(ends) < there:
            starts.append(now)
            ends.append(now + waiting.pop(0)[1])
            ends = [end for end in ends if end > now]
        now += 1
    return starts


@pytest.mark.parametrize("seed", range(20))
def test_the_replay_is_a_queue(seed):
    rng = Random(seed)
    arrives = sorted(rng.randrange(60) for _ in range(50))
    seconds = [rng.randrange(6) for _ in arrives]
    times = sorted(rng.sample(range(100), 5))
    steps = [(time, rng.randrange(4)) for time in times] + [(200, 1 + rng.randrange(3))]
    found = replay(np.array(arrives, float), np.array(seconds, float), steps)
    assert found.tolist() == plain(arrives, seconds, steps)


def test_one_more_is_there_from_the_beginning_and_one_less_leaves_one():
    workers = ["a", "b", "a", "b", "c"]
    since, until = np.array([1.0, 2, 5, 6, 10]), np.array([3.0, 4, 7, 9, 12])
    steps = staff(np.array(workers), since, until)
    assert steps == [(1, 1), (2, 2), (7, 1), (9, 0), (10, 1), (12, 0)]
    assert changed(steps, 0) == [(0, 0), (1, 1), (2, 2), (7, 1), (9, 0), (10, 1)]
    assert changed(steps, 1) == [(0, 1), (1, 2), (2, 3), (7, 2), (9, 1), (10, 2)]
    assert changed(steps, -1) == [(0, 0), (1, 1), (2, 1), (7, 1), (9, 0), (10, 1)]


def test_a_queue_of_two_workers_is_predicted_without_error(spark):
    logs, rng = Logs(), Random(1)
    free, now = [0, 0], 0
    arrives, seconds = list[int](), list[int]()
    done: list[tuple[int, str, dict[str, Any]]] = []
    for n in range(1, 101):
        now += rng.randrange(1, 7)
        arrives.append(now)
        seconds.append(rng.randrange(1, 13))
        worker = min((0, 1), key=lambda one: free[one])
        free[worker] = max(now, free[worker]) + seconds[-1]
        done.append((free[worker], f"w{worker}", {"n": n, "since": now}))
    entries = {n: logs.write("a", at, n) for n, at in enumerate(arrives, 1)}
    for number, (end, who, about) in enumerate(sorted(done, key=lambda one: one[0])):
        logs.add("a", end, "taken", agent=who, txn=f"t{number}", **entries[about["n"]])
    found = answers(jobs.whatif(table_of(spark, logs.rows)), "space", "workers")
    assert set(found) == {("jobs", 1), ("jobs", 2), ("jobs", 3)}
    assert found["jobs", 2]["error"] == pytest.approx(0, abs=0.02)
    for number in (1, 3):
        starts = plain(arrives, seconds, [(0, number)])
        mean = np.mean([s + d - a for s, d, a in zip(starts, seconds, arrives, strict=True)])
        assert found["jobs", number]["mean"] == pytest.approx(mean, rel=0.02)


def test_every_space_with_transactions_is_replayed(changes, rows):
    done: dict[str, set[Any]] = {}
    for row in attempts_of(rows):
        if row["works"] and row["there"]:
            done.setdefault(row["space"], set()).add((worker_of(row), row["txn"]))
    found = answers(jobs.whatif(changes), "space", "more")
    assert {space: row["transactions"] for (space, more), row in found.items() if not more} == {
        space: len(txns) for space, txns in done.items()
    }
    for (space, more), row in found.items():
        assert (row["really"] is None) == (more != 0)
        assert row["workers"] == found[space, 0]["workers"] + more > 0
        assert row["mean"] >= found[space, max(0, more)]["mean"] - 1e-9 or more > 0
