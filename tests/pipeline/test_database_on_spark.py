"""Spark on spaces in a database: tables, jobs, streams and the sink."""

from __future__ import annotations

import io
import os
import signal
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

import tupelo
from tests.kinds import space_url
from tests.pipeline.test_database import Pair
from tupelo import pipeline
from tupelo.pipeline import jobs

IDS = ("host", "space", "origin", "agent", "n")


def changes(spark: Any, path: object) -> Any:
    """The changes of one program, with names for it that are the same everywhere."""
    read = spark.read.format("tupelo").option("partitions", "3").load(str(path))
    named = {name: f.lit("it") for name in ("host", "space", "origin", "agent")}
    return read.withColumns(named).persist()


def rows(table: Any) -> list[str]:
    """Its rows, without the numbers of entries and transactions."""
    return sorted(str(row) for row in table.drop(*IDS, "txn").collect())


def test_jobs_answer_as_on_a_file_with_the_same_history(spark, tmp_path, clock):
    pair = Pair(tmp_path, clock)
    pair.play(3, 25)
    there, here = changes(spark, pair.url), changes(spark, pair.file)
    try:
        assert there.rdd.getNumPartitions() == 3
        assert rows(there) == rows(here)
        for name in ("audit", "turnaround"):
            run = jobs.JOBS[name].run
            found = rows(run(there))
            assert found == rows(run(here)) and bool(found) == (name != "audit"), name
        counted = {row["kind"]: row["count"] for row in there.groupBy("kind").count().collect()}
        kinds = [change.kind for change in pair.there.changes()]
        assert counted == {kind: kinds.count(kind) for kind in kinds}
        past = spark.read.format("tupelo").option("asOf", "now").load(pair.url)
        assert past.count() == pair.there.count()
        wanted = spark.read.format("tupelo").option("pushdown", "true").load(pair.url)
        assert wanted.where("position between 7 and 9").select("position").count() == 3
    finally:
        there.unpersist()
        here.unpersist()
        pair.close()


def test_a_stream_that_is_killed_goes_on_and_each_row_is_there_once(spark, tmp_path):
    """The worker that runs a function on the rows dies in the middle of a batch; then more is
    written, and the query begins again with its checkpoint."""
    source, sink = (space_url(f"{name} {uuid4()}") for name in ("source", "sink"))
    mark = tmp_path / "killed"

    def deadly(n: int) -> int:
        if n == 1_300 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    def run(checkpoint: Path) -> None:
        read = spark.readStream.format("tupelo").options(
            entry="what string, n long", kinds="written", maxRows="1000", rowsPerTask="500"
        )
        kill = f.udf(lambda n: deadly(n), LongType())  # Spark would read the types of the function.
        table = read.load(source).select("f.what", kill("f.n").alias("n"))
        query = table.writeStream.format("tupelo").option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start(sink).awaitTermination()

    with tupelo.connect(source) as space, tupelo.connect(sink) as written:
        space.write_all([("job", n) for n in range(2_000)])
        with pytest.raises(StreamingQueryException):
            run(tmp_path / "checkpoint")
        assert mark.exists() and 1_000 <= written.count(("job", int)) < 2_000
        space.take_all(("job", int), limit=500)
        space.write_all([("job", n) for n in range(2_000, 2_400)])
        for _ in range(2):  # The second run finds nothing new.
            run(tmp_path / "checkpoint")
            assert sorted(n for _, n in written.read_all(("job", int))) == [*range(2_400)]
        # What it would have to read next is trimmed.
        space.write_all([("job", n) for n in range(2)])
        space.trim(before=2_902)
        with pytest.raises(
            StreamingQueryException, match="was read up to 2900, but it begins at 2902"
        ):
            run(tmp_path / "checkpoint")


def test_a_password_is_in_no_plan_and_no_error(spark, tmp_path):
    secret = "pa55word"
    url = space_url(f"jobs {uuid4()}").replace("postgres:@", f"postgres:{secret}@")
    with tupelo.connect(url) as space:
        space.write_all([("job", n) for n in range(3)])
    shown = io.StringIO()
    tables = [spark.read.format("tupelo").load(url), pipeline.changes(spark, url, space="x")]
    with redirect_stdout(shown):
        for table in tables:
            table.explain("extended")
            table.explain("formatted")
    for wrong in (url.replace("?", "1?"), url.replace("space=", "space=none")):
        with pytest.raises(PySparkException) as failed:
            spark.read.format("tupelo").load(wrong).count()
        shown.write(str(failed.value))
    stream = spark.readStream.format("tupelo").option("columns", "kind,position").load(url)
    query = stream.writeStream.format("tupelo").option("checkpointLocation", str(tmp_path / "c"))
    query = query.trigger(availableNow=True).start(url)
    query.awaitTermination()
    shown.write(str(query.recentProgress))
    assert "tupelo" in shown.getvalue() and secret not in shown.getvalue()
    kept = [file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    assert kept and not any(secret in text for text in kept)
