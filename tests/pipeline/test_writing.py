"""The sink, without Spark: rows become entries, and each part of a batch is written once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import tupelo
from tests.federation.company import Company, port_number
from tupelo.errors import (
    BadArgument,
    CannotReach,
    CannotSink,
    NotAllowed,
    PeerLost,
    SpaceFull,
    WrongPassword,
)
from tupelo.federation.client.handles import RemoteSpaceTransaction
from tupelo.federation.identity.access import Access
from tupelo.pipeline import sink
from tupelo.pipeline.sink import BatchWriter, SinkTask, Sunk, WriteOptions, encoding_of
from tupelo.values.lease import longest

JOB = "tests.pipeline.test_writing:Errand"
STRICT = "tests.pipeline.test_writing:Strict"


@tupelo.entry("tests.pipeline.sunk_errand")
@dataclass
class Errand:
    name: str | None = None
    size: int | None = None
    id: UUID | None = None


@tupelo.entry("tests.pipeline.sunk_strict")
@dataclass
class Strict:
    name: str
    size: int
    id: UUID


TEXT, LONG, INT = StringType(), LongType(), IntegerType()


def struct(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(*field) for field in fields])


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


@pytest.fixture
def host(company):
    return company.host("kitchen")


@pytest.fixture
def jobs(host):
    return host.space("jobs")


def options_for(host: Any, **options: str) -> WriteOptions:
    return WriteOptions.read({"path": host.url + "jobs", **options})


def task(
    host: Any, batch: int = 0, partition: int = 0, query: str = "q", **options: str
) -> SinkTask:
    encoding = encoding_of(struct(("what", TEXT), ("n", LONG)), options.get("entry"))
    return SinkTask(options_for(host, **options), encoding, query, batch, partition)


def rows(*numbers: int, size: int = 4) -> Any:
    """Batches of rows, as Spark hands them over: some of them may be empty."""
    for start in range(0, len(numbers), size):
        part = numbers[start : start + size]
        yield pa.record_batch({"what": ["job"] * len(part), "n": pa.array(part, pa.int64())})
    yield pa.record_batch({"what": pa.array([], pa.string()), "n": pa.array([], pa.int64())})


def numbers(jobs: Any) -> list[int]:
    return [n for _, n in jobs.read_all(("job", int))]


def memory(jobs: Any) -> list[tuple[Any, ...]]:
    return sorted((s.query, s.partition, s.batch, s.rows) for s in jobs.read_all(Sunk()))


def test_columns_become_fields(host, jobs):
    done = task(host).write(rows(*range(10)))
    assert (done.partition, done.rows, done.again) == (0, 10, False)
    assert numbers(jobs) == [*range(10)]


def test_nothing_of_nothing(host, jobs):
    assert task(host).write(rows()).rows == 0
    assert jobs.count() == 0


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        *[(TEXT, "x", "x"), (INT, 3, 3), (DoubleType(), 1.5, 1.5), (BooleanType(), True, True)],
        *[(BinaryType(), b"x", b"x"), (DecimalType(5, 2), Decimal("1.50"), Decimal("1.50"))],
        (TimestampType(), datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (TimestampNTZType(), datetime(2026, 1, 2), datetime(2026, 1, 2)),
        *[(ArrayType(INT), [1, None], [1, None]), (struct(("a", INT)), {"a": 1}, {"a": 1})],
    ],
)
def test_values_stay_what_they_are(host, jobs, kind, value, kept):
    encoding = encoding_of(struct(("x", kind), ("y", kind)), None)
    sink = SinkTask(options_for(host), encoding, "q", 0, 0)
    sink.write(iter([pa.record_batch({"x": [value], "y": pa.array([None], pa.null())})]))
    (entry,) = jobs.read_all((tupelo.ANY, tupelo.ANY))
    assert entry == (kept, None) and type(entry[0]) is type(kept)


def test_columns_become_the_fields_of_a_dataclass(host, jobs):
    schema = struct(("id", TEXT), ("size", LONG), ("name", TEXT))
    sink = SinkTask(options_for(host), encoding_of(schema, JOB), "q", 0, 0)
    one = UUID(int=7)
    sink.write(iter([pa.record_batch({"id": [str(one)], "size": [3], "name": ["resize"]})]))
    assert jobs.read(Errand(), wait=0) == Errand("resize", 3, one)


def test_entries_live_as_long_as_they_are_leased(company, clock):
    host = company.host("kitchen", clock=clock)
    jobs = host.space("jobs")
    task(host, lease="30").write(rows(1))
    clock.advance(29)
    assert numbers(jobs) == [1]
    clock.advance(2)
    assert numbers(jobs) == []
    assert memory(jobs) == [("q", 0, 0, 1)]  # It is remembered all the same.


# What cannot be written


@pytest.mark.parametrize(
    ("fields", "entry", "reason"),
    [
        ([("x", DateType())], None, "x is date, which no entry can hold"),
        ([("x", MapType(TEXT, INT))], None, "x is map<string,int>"),
        ([("x", ArrayType(struct(("d", DateType()))))], None, r"x\[\].d is date"),
        ([("x", INT), ("x", INT)], None, "the same name"),
        ([], None, "without columns"),
        ([("name", TEXT), ("size", LONG)], JOB, "there is no column id"),
        ([("name", TEXT), ("size", LONG), ("id", TEXT), ("color", TEXT)], JOB, "no field color"),
        ([("name", TEXT), ("size", TEXT), ("id", TEXT)], JOB, "size does not fit .* is int"),
        ([("x", INT)], "nowhere:Class", "entry= must be"),
        ([("x", INT)], "tests.pipeline.test_writing:JOB", "a dataclass that can be imported"),
        ([("x", INT)], "x int", "entry= must be"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_before_anything_is_written(fields, entry, reason):
    with pytest.raises((CannotSink, BadArgument), match=reason):
        encoding_of(struct(*fields), entry)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "at its host"),
        ({"path": "jobs.tupelo"}, "at its host"),
        ({"path": "tupelo://host:7700/"}, "names a space"),
        ({"path": "tupelo://host:7700/jobs", "lease": "long"}, "lease"),
        ({"path": "tupelo://host:7700/jobs", "lease": "-1"}, "lease"),
        ({"path": "tupelo://host:7700/jobs", "tls": "maybe"}, "tls"),
        ({"path": "tupelo://host:7700/jobs", "reconnect": "-1"}, "reconnect"),
        ({"path": "tupelo://host:7700/jobs", "colour": "red"}, "colour"),
    ],
)
def test_options_that_say_nothing_are_refused(options, reason):
    with pytest.raises(BadArgument, match=reason):
        WriteOptions.read(options)


def test_rows_that_do_not_fit_their_dataclass_are_refused_and_nothing_is_written(host, jobs):
    schema = struct(("id", TEXT), ("size", LONG), ("name", TEXT))
    good = pa.record_batch({"id": [str(UUID(int=7))], "size": [3], "name": ["resize"]})
    for entry, bad, reason in [
        (JOB, {"id": ["seven"], "size": [3], "name": ["x"]}, "id is 'seven' .* which is no UUID"),
        (STRICT, {"id": [None], "size": [3], "name": ["x"]}, "id is null .* never None"),
    ]:
        sink = SinkTask(options_for(host), encoding_of(schema, entry), "q", 0, 0)
        with pytest.raises(CannotSink, match=reason):
            sink.write(iter([good, pa.record_batch(bad)]))
    assert jobs.count() == 0


def test_rows_that_come_slowly_are_in_one_transaction_all_the_same(company, clock):
    host = company.host("kitchen", clock=clock)
    jobs = host.space("jobs")

    def slow() -> Any:
        for batch in rows(*range(8)):
            clock.advance(3_600)
            yield batch

    task(host).write(slow())
    assert numbers(jobs) == [*range(8)]


@pytest.mark.parametrize(
    ("access", "error", "reason"),
    [
        (Access(password="secret"), WrongPassword, "'private' is protected"),
        (Access(write=[]), NotAllowed, "not allowed to write in the space 'private'"),
    ],
)
def test_a_space_that_refuses_us_gets_nothing(company, access, error, reason):
    host = company.host("kitchen", space=False)
    private = host.space("private", access=access)
    options = WriteOptions.read({"path": host.url + "private", "password": "guess"})
    sink = SinkTask(options, encoding_of(struct(("what", TEXT), ("n", LONG)), None), "q", 0, 0)
    with pytest.raises(error, match=reason):
        sink.write(rows(1, 2))
    assert private.count() == 0


def test_a_host_that_is_away_is_waited_for(tmp_path, company, later):
    child = company.child("kitchen", path=str(tmp_path))
    there = SimpleNamespace(url=f"tupelo://{child.address}/")
    child.kill()
    sink = later(task(there, reconnect="20").write, rows(*range(8)))
    child = company.child("kitchen", path=str(tmp_path), listen=port_number(child.address))
    assert sink.result().rows == 8
    assert child.do("here", "job") == [["job", n] for n in range(8)]


def test_a_space_is_not_overwritten(host):
    with pytest.raises(CannotSink, match="append"):
        BatchWriter(options_for(host), struct(("x", INT)), True)


def test_rows_that_fail_leave_nothing_behind(host, jobs):
    def broken() -> Any:
        yield from rows(*range(8))
        raise ValueError("the row before this one was the last good one")

    with pytest.raises(ValueError, match="good one"):
        task(host).write(broken())
    assert jobs.count() == 0
    task(host).write(rows(*range(8)))
    assert numbers(jobs) == [*range(8)]


def test_a_space_that_is_full_takes_all_or_nothing(company):
    host = company.host("kitchen", space=False)
    jobs = host.space("jobs", capacity=tupelo.Capacity(entries=5))
    with pytest.raises(SpaceFull):
        task(host).write(rows(*range(8)))
    assert jobs.count() == 0


# Once


def test_a_batch_that_is_replayed_is_written_once(host, jobs):
    for _ in range(3):
        for partition in range(2):
            done = task(host, 7, partition).write(rows(*range(10 * partition, 10 * partition + 5)))
            assert done.rows == 5
    assert numbers(jobs) == [*range(5), *range(10, 15)]
    assert done.again


def test_of_older_batches_one_entry_a_partition_is_kept(host, jobs):
    for batch in range(5):
        for partition in range(2):
            task(host, batch, partition).write(rows(batch))
    task(host, 0, 0, query="another").write(rows(100))
    assert memory(jobs) == [("another", 0, 0, 1), ("q", 0, 4, 1), ("q", 1, 4, 1)]
    assert task(host, 3, 0).write(rows(3)).again  # Who comes late finds that it is done.
    assert sorted(numbers(jobs)) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 100]


def test_another_query_is_another(host, jobs):
    task(host, query="a").write(rows(1))
    task(host, query="b").write(rows(1))
    assert numbers(jobs) == [1, 1]


def test_other_rows_in_the_same_partition_are_an_error_and_no_loss(host, jobs):
    task(host).write(rows(*range(5)))
    with pytest.raises(CannotSink, match="5 rows before, and has 3 now"):
        task(host).write(rows(*range(3)))
    with pytest.raises(CannotSink, match="5 rows before, and has 0 now"):
        task(host).write(rows())
    assert numbers(jobs) == [*range(5)]


@pytest.mark.parametrize("evict", ["fifo", "lru"])
def test_a_space_that_forgets_entries_remembers_what_was_sunk(company, evict):
    host = company.host("kitchen", space=False)
    bounds = tupelo.Capacity(entries=10, evict=evict)
    jobs = host.space("jobs", capacity=bounds)
    task(host).write(rows(1, 2, 3))
    jobs.write_all([("other", n) for n in range(9)])
    assert memory(jobs) == [("q", 0, 0, 3)] and jobs.count() == 10
    assert task(host).write(rows(1, 2, 3)).again
    assert numbers(jobs) == []


def test_a_space_that_bounds_leases_remembers_what_was_sunk(company, clock):
    host = company.host("kitchen", space=False, clock=clock)
    jobs = host.space("jobs", lease_policy=longest(30))
    task(host).write(rows(1, 2, 3))
    clock.advance(3_600)
    assert numbers(jobs) == []
    assert task(host).write(rows(1, 2, 3)).again
    assert numbers(jobs) == []


def test_a_batch_that_nobody_can_write_again_is_forgotten_in_time(company, clock, monkeypatch):
    host = company.host("kitchen", clock=clock)
    jobs = host.space("jobs")
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(partitionId=lambda: 0))
    schema = struct(("what", TEXT), ("n", LONG))
    for number, options in enumerate([{}, {}, {"writeId": "night"}, {"writeId": "night"}]):
        writer = BatchWriter(options_for(host, **options), schema, False)
        for _ in range(2):  # A task that is tried again.
            writer.write(rows(number))
    assert sorted(numbers(jobs)) == [0, 1, 2]
    clock.advance(sink.FORGET_SECONDS + 1)
    assert memory(jobs) == [("write night", 0, 0, 1)]


def test_one_who_is_about_to_commit_is_waited_for(host, jobs, later, until, monkeypatch):
    arrived: list[Any] = []
    go: list[bool] = []
    commit = RemoteSpaceTransaction.commit

    def slow(txn):
        arrived.append(txn)
        until(lambda: go, "it may commit")
        return commit(txn)

    monkeypatch.setattr(RemoteSpaceTransaction, "commit", slow)
    first = later(task(host).write, rows(*range(5)))
    until(lambda: arrived)
    second = later(task(host).write, rows(*range(5)))
    until(lambda: jobs._hosted.port._core.waiting or not second.waits)
    assert second.waits
    go.append(True)
    assert not first.result().again and second.result().again
    assert numbers(jobs) == [*range(5)]


def test_one_who_is_about_to_for_too_long_is_not_taken_for_none(
    host, jobs, later, until, monkeypatch
):
    arrived: list[Any] = []
    go: list[bool] = []
    commit = RemoteSpaceTransaction.commit

    def slow(txn):
        arrived.append(txn)
        until(lambda: go, "it may commit")
        return commit(txn)

    monkeypatch.setattr(RemoteSpaceTransaction, "commit", slow)
    first = later(task(host).write, rows(*range(5)))
    until(lambda: arrived)
    monkeypatch.setattr(sink, "RIVAL_SECONDS", 0.3)
    with pytest.raises(CannotSink, match="under way, and does not end"):
        task(host).write(rows(*range(5)))
    go.append(True)
    assert not first.result().again
    assert numbers(jobs) == [*range(5)]


def test_of_two_who_wait_for_each_other_one_gives_way(host, jobs, later, until, monkeypatch):
    """Both have looked before the other wrote, and write before either looks again."""
    looked: list[Any] = []
    ready: list[Any] = []
    seal = SinkTask._seal

    def together(sink, space, txn):
        looked.append(txn)
        until(lambda: len(looked) == 2, "both have looked")
        write = space.write

        def writes(*args: Any, **kwargs: Any) -> Any:
            written = write(*args, **kwargs)
            ready.append(txn)
            until(lambda: len(ready) == 2, "both have written")
            return written

        space.write = writes
        return seal(sink, space, txn)

    monkeypatch.setattr(SinkTask, "_seal", together)
    calls = [later(task(host).write, rows(*range(5))) for _ in range(2)]
    assert sorted(call.result().again for call in calls) == [False, True]
    assert numbers(jobs) == [*range(5)]


def test_if_the_answer_to_a_commit_is_lost_it_is_found_out(host, jobs, monkeypatch):
    commit = RemoteSpaceTransaction.commit
    before: list[bool] = []

    def lost(txn):
        if before:
            commit(txn)
        else:
            txn.abort()
        raise PeerLost("kitchen", "commit", in_doubt=True)

    monkeypatch.setattr(RemoteSpaceTransaction, "commit", lost)
    with pytest.raises(PeerLost):
        task(host).write(rows(1))
    assert numbers(jobs) == []
    before.append(True)
    done = task(host).write(rows(1))
    assert (done.rows, done.again) == (1, False)
    assert numbers(jobs) == [1]


def test_a_host_that_dies_before_the_commit_has_nothing_of_it(tmp_path, company, monkeypatch):
    monkeypatch.setattr(sink, "RIVAL_SECONDS", 10.0)
    child = company.child("kitchen", path=str(tmp_path))
    there = SimpleNamespace(url=f"tupelo://{child.address}/")

    def killed() -> Any:
        yield from rows(*range(8))
        child.kill()
        yield from rows(9)

    with pytest.raises((PeerLost, CannotReach)):
        task(there, reconnect="0.5").write(killed())
    with tupelo.Host("kitchen", path=tmp_path) as again:
        assert again.space("jobs").count() == 0
