"""The sink on Spark: rows become entries, once, or it is said why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import tupelo
from tests.federation.company import Company
from tupelo.federation.identity.access import Access
from tupelo.pipeline.sink import Sunk


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


@pytest.fixture
def host(company, tmp_path):
    return company.host("kitchen", path=tmp_path / "kitchen")


@pytest.fixture
def jobs(host):
    return host.space("jobs")


def numbers(jobs: Any) -> list[int]:
    return sorted(n for _, n in jobs.read_all(("job", int)))


def table(spark: Any, count: int, tasks: int = 3) -> Any:
    return spark.range(count, numPartitions=tasks).selectExpr("'job' as what", "id as n")


def test_a_batch(spark, host, jobs):
    table(spark, 1_000).write.format("tupelo").mode("append").save(host.url + "jobs")
    assert numbers(jobs) == [*range(1_000)]
    assert sum(sunk.rows for sunk in jobs.read_all(Sunk())) == 1_000


def test_a_batch_with_an_id_is_written_once(spark, host, jobs):
    for _ in range(2):
        writer = table(spark, 300).write.format("tupelo").option("writeId", "night of the 16th")
        writer.mode("append").save(host.url + "jobs")
    assert numbers(jobs) == [*range(300)]


def test_a_task_that_fails_leaves_nothing_and_the_next_write_completes_it(spark, host, jobs):
    broken = table(spark, 300).selectExpr("what", "if(n = 250, raise_error('no'), n) as n")
    with pytest.raises(PySparkException):
        writer = broken.write.format("tupelo").option("writeId", "w").mode("append")
        writer.save(host.url + "jobs")
    assert set(numbers(jobs)) <= {*range(200)} and len(numbers(jobs)) in (0, 100, 200)
    writer = table(spark, 300).write.format("tupelo").option("writeId", "w").mode("append")
    writer.save(host.url + "jobs")
    assert numbers(jobs) == [*range(300)]


def test_what_does_not_fit_is_refused_and_nothing_is_written(spark, host, jobs):
    def write(frame: Any, mode: str = "append", **options: str) -> None:
        frame.write.format("tupelo").options(**options).mode(mode).save(host.url + "jobs")

    frame = table(spark, 10)
    with pytest.raises(PySparkException, match="day is date, which no entry can hold"):
        write(frame.selectExpr("current_date() as day"))
    with pytest.raises(PySparkException, match="the columns do not fit"):
        write(frame, entry="tests.pipeline.test_writing:Errand")
    with pytest.raises(PySparkException, match="append"):
        write(frame, mode="overwrite")
    with pytest.raises(PySparkException, match="a space is written to at its host"):
        frame.write.format("tupelo").mode("append").save("jobs.tupelo")
    assert jobs.count() == 0


def test_a_space_that_refuses_is_said_clearly_and_gets_nothing(spark, host):
    for name, access, reason in [
        ("locked", Access(password="secret"), "WrongPassword: the space 'locked' is protected"),
        (
            "closed",
            Access(write=[]),
            "NotAllowed: .* is not allowed to write in the space 'closed'",
        ),
    ]:
        space = host.space(name, access=access)
        with pytest.raises(PySparkException, match=reason):
            table(spark, 10, 1).write.format("tupelo").mode("append").save(host.url + name)
        assert space.count() == 0
    writer = table(spark, 10, 1).write.format("tupelo").option("password", "secret")
    writer.mode("append").save(host.url + "locked")
    assert numbers(host.space("locked")) == [*range(10)]


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died after the tasks were done, and before Spark had noted it."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.glob("[0-9]*"))
    for file in commits.glob(f"*{last}*"):
        file.unlink()


def test_a_stream_into_a_space_that_is_stopped_and_goes_on(spark, host, jobs, tmp_path):
    path = tmp_path / "source.tupelo"
    with tupelo.Space("source", path=path) as source:

        def drain() -> None:
            changes = spark.readStream.format("tupelo").option("maxRows", 150)
            changes = changes.option("rowsPerTask", 75)
            changes = changes.option("entry", "what string, n long").load(str(path))
            query = (
                changes.select("f.what", "f.n")
                .writeStream.format("tupelo")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .option("lease", 3600)
                .trigger(availableNow=True)
                .start(host.url + "jobs")
            )
            query.awaitTermination()

        source.write_all([("job", n) for n in range(400)])
        drain()
        forget_last_commit(tmp_path / "checkpoint")  # so its last batch is replayed
        source.write_all([("job", n) for n in range(400, 500)])
        drain()
    assert numbers(jobs) == [*range(500)]
    memories = {sunk.partition: (sunk.batch, sunk.rows) for sunk in jobs.read_all(Sunk())}
    assert memories == {0: (3, 75), 1: (3, 25)}
