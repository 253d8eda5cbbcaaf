"""The sink into a space in a database: each batch once, whoever else tries, and whatever dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import tupelo
from tests.conftest import until_true
from tests.kinds import call_now, database_url, space_url
from tupelo.errors import BadArgument, CannotSink
from tupelo.pipeline.sink import SinkTask, Sunk, WriteOptions, Wrote, encoding_of
from tupelo.postgres.connect import open_space
from tupelo.space.capacity import Capacity

ROWS = StructType([StructField("what", StringType()), StructField("n", LongType())])


@pytest.fixture
def url() -> str:
    return space_url(f"sink {uuid4()}")


@pytest.fixture
def jobs(url: str) -> Iterator[Any]:
    with tupelo.connect(url) as space:
        yield space


def task(url: str, batch: int = 0, partition: int = 0, query: str = "q", **more: str) -> SinkTask:
    options = WriteOptions.read({"path": url, **more})
    return SinkTask(options, encoding_of(ROWS, None), query, batch, partition)


def rows(*numbers: int, size: int = 4) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(numbers), size):
        part = numbers[start : start + size]
        yield pa.record_batch({"what": ["job"] * len(part), "n": pa.array(part, pa.int64())})


def numbers(jobs: Any) -> list[int]:
    return sorted(n for _, n in jobs.read_all(("job", int)))


def records(jobs: Any) -> list[tuple[Any, ...]]:
    return sorted((s.query, s.partition, s.batch, s.rows) for s in jobs.read_all(Sunk()))


def test_a_batch_that_is_replayed_is_written_once_and_one_record_is_kept(url, jobs):
    for batch in range(3):
        for again in (False, True):
            done = task(url, batch).write(rows(*range(10 * batch, 10 * batch + 9)))
            assert (done.rows, done.again) == (9, again)
    task(url, query="another").write(rows(100))
    assert task(url, 1).write(rows(*range(10, 19))).again  # One that comes late.
    assert numbers(jobs) == [*range(9), *range(10, 19), *range(20, 29), 100]
    assert records(jobs) == [("another", 0, 0, 1), ("q", 0, 2, 9)]
    with pytest.raises(CannotSink, match="9 rows before, and has 3 now"):
        task(url, 2).write(rows(20, 21, 22))
    assert task(url, 5, lease="0.001").write(iter(())).rows == 0


def test_of_two_attempts_at_once_one_waits_and_finds_that_it_is_done(url, jobs):
    """Each pauses behind its last row, so that both have written theirs before one commits."""
    both = threading.Barrier(2)
    done: list[Wrote] = []

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from rows(*range(8))
        both.wait()

    def attempt() -> None:
        done.append(task(url).write(slowly()))

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((wrote.rows, wrote.again) for wrote in done) == [(8, False), (8, True)]
    assert numbers(jobs) == [*range(8)] and records(jobs) == [("q", 0, 0, 8)]


def test_an_attempt_that_does_not_end_is_not_taken_for_none(url, jobs, monkeypatch):
    first = task(url)
    monkeypatch.setattr("tupelo.pipeline.sink.RIVAL_SECONDS", 1.0)
    with jobs.transaction() as txn:
        first._lock(jobs, txn)
        with pytest.raises(CannotSink, match=r"another attempt .* does not end"):
            task(url).write(rows(1, 2))
    assert numbers(jobs) == []
    task(url).write(rows(1, 2))
    assert numbers(jobs) == [1, 2]


CHILD = """
import sys
from tests.pipeline.test_database_sink import rows, task

def until_killed():
    yield from rows(*range(12))
    print("written", flush=True)
    if sys.argv[2] == "before":
        sys.stdin.read()

task(sys.argv[1]).write(until_killed())
print("committed", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_task_that_is_killed_before_or_after_its_commit_is_repeated_once(url, jobs, when):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, url, when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    told = [child.stdout.readline().strip()]
    if when == "after":
        told.append(child.stdout.readline().strip())
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert told == (["written"] if when == "before" else ["written", "committed"])
    assert len(numbers(jobs)) == (0 if when == "before" else 12)
    done = task(url).write(rows(*range(12)))
    assert (done.rows, done.again) == (12, when == "after")
    assert numbers(jobs) == [*range(12)] and records(jobs) == [("q", 0, 0, 12)]


def test_a_connection_that_is_cut_before_the_commit_leaves_nothing(url, jobs):
    def cut() -> Iterator[pa.RecordBatch]:
        yield from rows(*range(8))
        with psycopg.connect(database_url(), autocommit=True) as link:
            held = (
                "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'"
                " AND objid = %s::int::oid AND classid = %s::int::oid"
            )
            until_true(lambda: link.execute(held, (jobs.id, 0x7470_0001)).fetchone() != (0,))

    with pytest.raises(tupelo.TupeloError, match="was lost"):
        task(url).write(cut())
    assert numbers(jobs) == [] and records(jobs) == []
    assert task(url).write(rows(*range(8))).rows == 8
    assert numbers(jobs) == [*range(8)]


def test_what_cannot_be_written_to_is_refused_and_no_password_is_shown():
    evicting = space_url(f"sink {uuid4()}")
    room = Capacity(entries=5, evict="fifo")
    call_now(open_space, evicting, is_async=False, capacity=room).close()
    with pytest.raises(CannotSink, match="makes room by removing entries"):
        task(evicting).write(rows(1))
    secret = "pa55word"
    with pytest.raises(BadArgument, match="one that names a space") as raised:
        WriteOptions.read({"path": f"postgresql://ada:{secret}@db/work"})
    assert secret not in str(raised.value)
    options = WriteOptions.read({"path": f"postgresql://ada:{secret}@db/work?space=jobs"})
    assert secret not in repr(options)
