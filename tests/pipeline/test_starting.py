"""Starting Spark: what it is told, and that its workers find this package."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.conftest import until_true
from tupelo import pipeline
from tupelo.errors import CorruptSegment, PipelineError
from tupelo.pipeline import spark
from tupelo.pipeline.commands.pipeline import PipelineCommand
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import seal


def test_what_spark_is_told():
    here = spark.defaults("local[2]")
    assert here["spark.sql.python.filterPushdown.enabled"] == "true"
    assert here["spark.driver.host"] == "127.0.0.1"
    assert here["spark.ui.enabled"] == "false"
    assert int(here["spark.driver.memory"].removesuffix("m")) >= spark.MEMORY_MIN_MB
    assert spark.defaults("spark://127.0.0.1:7077")["spark.driver.host"] == "127.0.0.1"
    assert here["spark.python.daemon.module"] == "tupelo.pipeline.daemon"
    there = spark.defaults("spark://cluster:7077")
    assert "spark.driver.host" not in there and "spark.sql.shuffle.partitions" not in there


def test_a_worker_whose_connection_spark_closes_ends_quietly():
    """Spark does so with workers that were idle for a minute."""
    environment = {
        "PYTHON_WORKER_FACTORY_SECRET": "sesame",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true",
        "SPARK_REUSE_WORKER": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tupelo.pipeline.daemon", "pyspark.worker"],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdout is not None
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rb") as said:
            (worker,) = struct.unpack("!i", said.read(4))
            link.sendall(struct.pack("!i", 6) + b"sesame")
            assert said.read(6) == struct.pack("!i", 2) + b"ok"
            at_once = struct.pack("ii", 1, 0)  # The worker cannot send anything after that.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        until_true(lambda: not Path(f"/proc/{worker}").exists(), "the worker has ended")
        assert daemon.communicate()[1] == b""


@pytest.mark.parametrize(
    ("master", "here"),
    [
        *[("local", True), ("local[*]", True), ("spark://127.0.0.1:7077", True)],
        *[("spark://[::1]:7077", True), ("spark://cluster:7077", False), ("yarn", False)],
    ],
)
def test_whether_workers_run_on_this_machine(master, here):
    assert spark.is_here(master) is here


def test_the_package_in_one_file_can_be_imported(tmp_path):
    """It comes before the one that is installed, and needs no module of that one."""
    file = spark.package_file(tmp_path)
    program = """
import sys, tupelo.pipeline.source.datasource
for name, module in sys.modules.items():
    if name.partition(".")[0] == "tupelo":
        print(module.__file__)
"""
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(file)},
        capture_output=True,
        text=True,
    )
    modules = found.stdout.splitlines()
    assert modules, found.stderr
    assert all(module.startswith(str(file)) for module in modules)


def test_without_pyspark_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"tupelo\[pipeline\]"):
        pipeline.session()


def test_commands_refuse_a_log_before_they_start_spark(tmp_path):
    """In a process of their own: in this one there may be a session."""
    program = """
from typer.testing import CliRunner
from tupelo.pipeline import TITLES
from tupelo.pipeline.commands.pipeline import app
for name in TITLES:
    print(name, CliRunner().invoke(app, [name, "nowhere"]).stderr, end="")
"""
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    expected = "tupelo: LOG must be a space's file, a host's folder or an archive, not"
    assert found.stdout.splitlines() == [
        f"{name} {expected} '{tmp_path / 'nowhere'}'" for name in pipeline.TITLES
    ], found.stderr


@pytest.mark.parametrize(
    ("master", "few", "expected"),
    [
        (None, 2, spark.FOR_FEW_CHANGES),
        (None, 1, {}),
        ("spark://127.0.0.1:7077", 2, {}),
    ],
)
def test_for_few_changes_spark_compiles_less(tmp_path, monkeypatch, master, few, expected):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        space.write_all([("job", 1), ("job", 2)])
    monkeypatch.setattr("tupelo.pipeline.spark.CHANGES_FEW", few)
    monkeypatch.setattr(pipeline, "session", lambda *master, **options: (*master, options))
    command = PipelineCommand([str(tmp_path / "jobs.tupelo")], master=master)
    asked: Any = command.session(command.logs()[0])
    assert asked == (master, expected)


def test_a_segment_that_is_cut_off_is_told_before_spark_is_started(tmp_path, monkeypatch):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        space.write_all([("job", 1), ("job", 2)])
    (segment,) = seal(JournalLog(tmp_path / "jobs.tupelo"), tmp_path / "archive")
    (file,) = (tmp_path / "archive").glob("*/*/day=*/*.parquet")
    os.truncate(file, segment.bytes - 1)
    monkeypatch.setattr(pipeline, "session", lambda *master, **options: pytest.fail("started"))
    for locations in (["archive"], ["archive", "jobs.tupelo"]):
        command = PipelineCommand([str(tmp_path / location) for location in locations])
        with pytest.raises(CorruptSegment, match=f"bytes of {segment.bytes}"):
            command.session(command.logs()[0])


def test_without_what_spark_connect_needs_it_is_said_what_to_install(tmp_path):
    program = tmp_path / "program.py"
    without = "import sys; sys.modules['grpc'] = None"
    asked = "from tupelo import pipeline; pipeline.session('sc://127.0.0.1:1')"
    program.write_text(f"{without}\n{asked}\n")
    found = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert 'pip install "tupelo[connect]"' in found.stderr


def test_a_session_that_is_there_is_used(spark):
    options: dict[str, str | int | bool] = {"spark.sql.shuffle.partitions": 2}
    again = pipeline.session(None, **options)
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_workers_find_this_package(spark):
    def version(rows):
        import tupelo

        return [f"{tupelo.__version__} {sys.executable}"] * len(list(rows))

    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(version).collect()
    assert set(found) == {f"{tupelo.__version__} {sys.executable}"}
