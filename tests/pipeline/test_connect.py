"""Spark Connect: a client that has no JVM, at a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.federation.company import Company
from tests.pipeline.cluster import driver
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import seal

pytest.importorskip("grpc", reason="pyspark[connect] is not installed")

CHILD = Path(__file__).with_name("connect_child.py")


@pytest.fixture
def server(spark):
    """The address of Spark's own server, beside the driver that the other tests use."""
    package = spark._jvm.org.apache.spark.sql.connect.service
    service = getattr(getattr(package, "SparkConnectService$"), "MODULE$")  # a Scala object
    service.start(spark.sparkContext._jsc.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(spark._jvm.scala.Option.empty(), spark._jvm.scala.Option.empty())


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


def test_tables_streams_and_the_sink(server: str, company: Any, tmp_path: Path) -> None:
    file = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=file, agent="me") as space:
        space.write_all([("job", n) for n in range(300)])
        space.take_all(("job", int), limit=100)
    seal(JournalLog(file), tmp_path / "archive", upto=250)
    host = company.host("kitchen", path=tmp_path / "kitchen")
    done = host.space("done")
    asked = {
        "server": server,
        "file": str(file),
        "archive": str(tmp_path / "archive"),
        "sink": host.url + "done",
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    child = driver(CHILD, tmp_path / "client.log", json.dumps(asked))
    try:
        answer = json.loads(child.hear("answer: (.*)\n")[1])
    finally:
        child.kill()
    assert all(module.startswith("pyspark.sql.connect") for module in answer["modules"])
    assert answer["typed"] == sum(range(300))
    assert answer["changes"] == [*range(1, 401)]
    assert sorted(n for _, n in done.read_all(("batch", int))) == [*range(5)]
    assert sorted(n for _, n in done.read_all(("stream", int))) == [*range(300)]
    assert "is not there" in answer["error"] and "\n" not in answer["error"]
