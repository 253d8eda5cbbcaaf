"""The source on Spark: the same rows through a real session, as a table and as a stream."""

from __future__ import annotations

import json
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import tupelo
from tests.conftest import until_true
from tests.federation.company import Company
from tupelo import pipeline
from tupelo.errors import CorruptSegment
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import MANIFEST, Archive, seal
from tupelo.pipeline.schema import SCHEMA_VERSION

AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


@pytest.fixture
def path(tmp_path):
    """A log of 3,000 changes."""
    file = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=file, agent="me") as space:
        space.write_all([("job", n, n / 2) for n in range(2_000)])
        space.take_all(("job", int, float), limit=1_000)
    return file


def read(spark: Any, path: object, **options: str) -> Any:
    return spark.read.format("tupelo").options(**options).load(str(path))


def drain(spark: Any, path: object, folder: Path, name: str, **options: str) -> list[Any]:
    """Stream all there is now, with a checkpoint; the rows of every batch."""
    batches: list[Any] = []

    def keep(frame: Any, number: int) -> None:
        batches.append([tuple(row) for row in frame.orderBy("host", "space", "position").collect()])

    paths = [path] if not isinstance(path, list) else path
    source = spark.readStream.format("tupelo").options(columns="host,space,position", **options)
    query = (
        source.option("paths", json.dumps([str(one) for one in paths]))
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / name))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def test_a_table(spark, path):
    table = read(spark, path)
    table.createOrReplaceTempView("changes")
    counted = spark.sql("select kind, count(*) as c from changes group by kind order by kind")
    assert [tuple(row) for row in counted.collect()] == [("taken", 1_000), ("written", 2_000)]
    last = table.orderBy("position", ascending=False).first()
    assert (last.position, last.fields, last.host) == (3_000, '["job",999,499.5]', "me")
    assert bytes(last.payload)[:1] == b"\x93"


def test_filters_go_down_and_the_answer_is_the_same(spark, path):
    table = read(spark, path, partitions="3", pushdown="true")
    assert table.rdd.getNumPartitions() == 3
    wanted = table.where("kind = 'taken' and position > 2990 and fields like '%9%'")
    plan = wanted._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan
    assert [row.position for row in wanted.select("position").collect()] == [*range(2_991, 3_001)]
    table = read(spark, path)
    moment = table.where("position = 2000").first().time
    assert table.where(table.time <= moment).count() == 2_000
    assert table.where("waited >= 0 and kind != 'taken'").count() == 2_000
    both = table.where("kind = 'taken'").select("kind").unionAll(table.select("kind"))
    assert both.count() == 1_000 + 3_000


def test_typed_columns_and_a_template(spark, path):
    table = read(
        spark,
        path,
        entry="what string, number long, half double",
        template='("job", Between(10, 12), ANY)',
        kinds="written",
    )
    rows = table.select("f.number", "f.half").orderBy("number").collect()
    assert [tuple(row) for row in rows] == [(10, 5.0), (11, 5.5), (12, 6.0)]


def test_the_entries_of_a_moment(spark, path):
    assert read(spark, path, asOf="2500").count() == 1_500
    assert read(spark, path, asOf="2300-01-01").count() == 1_000


def test_a_schema_that_fits_and_one_that_does_not(spark, path):
    fitting = spark.read.format("tupelo").schema("kind string, position bigint").load(str(path))
    assert fitting.columns == ["kind", "position"] and fitting.count() == 3_000
    with pytest.raises(PySparkException, match="schema= must be `kind` string"):
        spark.read.format("tupelo").schema("kind bigint").load(str(path)).collect()


def test_bad_input_is_said_clearly(spark, path, tmp_path):
    with pytest.raises(PySparkException, match="a space's file, a host's folder or an archive"):
        read(spark, tmp_path / "nowhere").collect()
    with pytest.raises(PySparkException, match="template"):
        read(spark, path, template="system('true')").collect()
    (segment,) = seal(JournalLog(path), tmp_path / "archive")
    (file,) = (tmp_path / "archive").rglob(Path(segment.file).name)
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(PySparkException, match=f"CorruptSegment: .*{file.name} is damaged"):
        read(spark, tmp_path / "archive").collect()
    file.write_bytes(altered(whole))
    with pytest.raises(PySparkException, match=f"CorruptSegment: .*{file.name} is damaged"):
        read(spark, tmp_path / "archive").collect()
    (manifest,) = (tmp_path / "archive").rglob(MANIFEST)
    manifest.write_text(manifest.read_text().replace(f'"schema": {SCHEMA_VERSION}', '"schema": 99'))
    with pytest.raises(PySparkException, match=f"{MANIFEST} has version 99 of the schema"):
        read(spark, tmp_path / "archive").collect()


def test_sealed_and_live_are_one_table(spark, path, tmp_path):
    seal(JournalLog(path), tmp_path / "archive", upto=1_700, rows_max=500)
    rows = read(spark, path, archive=str(tmp_path / "archive")).select("position").collect()
    assert sorted(row.position for row in rows) == [*range(1, 3_001)]
    sealed = read(spark, tmp_path / "archive")
    assert sealed.count() == 1_700
    files = str(tmp_path / "archive")
    plain = spark.read.parquet(files).select(sealed.columns)  # without us, the same rows
    assert plain.exceptAll(sealed).count() == sealed.exceptAll(plain).count() == 0


def test_every_host_of_a_federation_is_read(spark, tmp_path, company, until):
    ada = company.host("ada", path=tmp_path / "ada")
    ben = company.host("ben", path=tmp_path / "ben", peers=[ada.address])
    until(lambda: ada.engaged and ben.engaged)
    for host in (ada, ben):
        host.space("jobs").write_all([("job", n) for n in range(10)])
    table = read(spark, ada.url + "jobs", federation="true", partitions="2")
    counted = {row.host: row["count"] for row in table.groupBy("host").count().collect()}
    assert counted == {ada.id: 10, ben.id: 10}
    assert table.where(f"host = '{ben.id}'").count() == 10


def test_a_host_that_vanishes_while_it_is_read_is_a_clear_error(spark, tmp_path, company, later):
    child = company.child("kitchen", path=str(tmp_path / "kitchen"))
    url = f"tupelo://{child.address}/jobs"
    with closing(tupelo.connect(url)) as there:
        for _ in range(80):  # More than what is read ahead.
            there.write_all([("job", b"x" * 100_000)] * 10)
    table = read(spark, url, columns="payload", reconnect="0.1", partitions="1")
    begun, gone = tmp_path / "begun", tmp_path / "gone"

    def slowly(batches: Any) -> Any:
        for batch in batches:
            begun.touch()
            until_true(gone.exists, "the host is gone")
            yield batch

    spark.conf.set(AT_ONCE, 10)  # or the first that anyone sees is all of them
    try:
        collected = later(table.mapInArrow(slowly, table.schema).count)
        until_true(lambda: begun.exists() or not collected.waits, "the first batch is read")
        child.kill()
        gone.touch()
        with pytest.raises(PySparkException, match=rf"(PeerLost|CannotReach): {child.address}"):
            collected.result()
    finally:
        spark.conf.unset(AT_ONCE)
    with pytest.raises(PySparkException, match=rf"CannotReach: {child.address} cannot be reached"):
        table.collect()


def test_a_stream_goes_on_where_it_was(spark, tmp_path):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        space.write_all([("job", n) for n in range(500)])
        first = drain(spark, path, tmp_path, "cp", maxRows="200")
        assert [len(batch) for batch in first] == [200, 200, 100]
        space.write_all([("job", n) for n in range(300)])
        with tupelo.Space("notes", path=tmp_path / "notes.tupelo", agent="me") as notes:
            notes.write(("note",))
            both = [path, tmp_path / "notes.tupelo"]
            second = drain(spark, both, tmp_path, "cp", maxRows="200")
        rows = [row for batch in first + second for row in batch]
        expected = [("me", "jobs", n) for n in range(1, 801)] + [("me", "notes", 1)]
        assert sorted(rows) == expected
        space.write_all([("job", n) for n in range(10)])
        space.trim(before=805)
        with pytest.raises(PySparkException, match=r"me/jobs was read up to 800, .* begins at 805"):
            drain(spark, path, tmp_path, "cp")


def altered(whole: bytes) -> bytes:
    """With the last byte of a page changed. Pages have checksums, and what is between them has
    not."""
    chunk = pq.read_metadata(BytesIO(whole)).row_group(0).column(0)
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    last = first + chunk.total_compressed_size - 1
    return whole[:last] + bytes([whole[last] ^ 1]) + whole[last + 1 :]


def test_what_is_sealed_may_be_read_by_spark_itself(spark, path, tmp_path):
    archive = str(tmp_path / "archive")
    odd = str(tmp_path / "the [a]{b,c}*? of: 100%")  # a name, and no pattern
    for folder in (archive, odd):
        seal(JournalLog(path), folder, upto=1_700, rows_max=500)
    for place, options in [
        (archive, {}),
        (str(path), {}),
        (str(path), {"archive": archive}),
        (str(path), {"archive": archive, "kinds": "taken", "columns": "position,n"}),
        (archive, {"template": '("job", Between(10, 12), ANY)'}),
        (odd, {}),
    ]:
        fast, ours = pipeline.changes(spark, place, **options), read(spark, place, **options)
        assert fast.schema == ours.schema
        assert sorted(map(str, fast.collect())) == sorted(map(str, ours.collect()))
    (segment,) = Archive(archive).logs()[0].segments[-1:]
    (file,) = Path(archive).rglob(Path(segment.file).name)
    whole = file.read_bytes()
    file.write_bytes(altered(whole))
    with pytest.raises(Exception, match=file.name):  # as Spark says it
        pipeline.changes(spark, archive).collect()
    file.write_bytes(whole[:-100])
    with pytest.raises(CorruptSegment, match=file.name):
        pipeline.changes(spark, archive)
