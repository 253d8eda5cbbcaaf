"""A Spark cluster on loopback: a master and workers, each a process that may be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import venv
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pyspark
from packaging.requirements import Requirement

import tupelo
from tupelo.pipeline.spark import java_home

PATIENCE_SECONDS = 300.0
WORKER_MB = 512

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.deploy.maxExecutorRetries=-1"


class Process:
    """A program with a session of its own, and what it says in a file."""

    def __init__(
        self, arguments: list[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def ended(self) -> int | None:
        """Its return code; None as long as it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """And all that it has started, at once."""
        for _ in range(2):  # One may start another between our look and our kill.
            for pid in _session(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def hear(self, words: str) -> re.Match[str]:
        """Wait until it says something like this."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            if found := re.search(words, self.said):
                return found
            if self.ended is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"{self.log.name} did not say {words!r}:\n{self.said[-3_000:]}")


def _session(leader: int) -> list[int]:
    """The processes of a session; Spark's workers in Python make groups of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(stat.parent.name))
    return found


class Cluster:
    """A master and workers of one core each."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._started = 0
        self.workers: list[Process] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._home = str(java_home())
        self._master = self._start(_MASTER, "--port", "0")
        try:
            self.url = self._master.hear(r"Starting Spark master at (\S+)")[1]
            for _ in range(workers):
                self.add_worker()
            for worker in self.workers:
                worker.hear("Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def add_worker(self) -> None:
        work = ["--work-dir", str(self._folder / "work")]
        size = ["--cores", "1", "--memory", f"{WORKER_MB}m"]
        self.workers.append(self._start(_WORKER, *size, *work, self.url))

    def _start(self, main: str, *arguments: str) -> Process:
        self._started += 1
        script = Path(pyspark.__file__).with_name("bin") / "spark-class"
        return Process(
            [str(script), main, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            self._folder / f"{self._started}-{main.rpartition('.')[2].lower()}.log",
            {
                "JAVA_HOME": self._home,
                "SPARK_HOME": str(Path(pyspark.__file__).parent),
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": _JAVA,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            },
        )

    def kill_worker(self, which: int) -> None:
        self.workers.pop(which).kill()

    def close(self) -> None:
        for process in [*self.workers, self._master]:
            process.kill()


def bare_python(folder: Path) -> Path:
    """A Python for workers: it has this package, what its wheel requires without extras, and what a
    table of Spark needs."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "tupelo").symlink_to(Path(tupelo.__file__).parent)
    todo, done = ["tupelo", "pyarrow", "pandas"], set()
    while todo:
        found = metadata.distribution(todo.pop())
        if found.name in done:
            continue
        done.add(found.name)
        needed = [Requirement(text) for text in found.requires or []]
        todo += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
        for name in {file.parts[0] for file in found.files or []} if found.name != "tupelo" else ():
            if name not in ("..", "__pycache__"):
                (site / name).symlink_to(Path(str(found.locate_file(name))))
    return folder / "bin" / "python"


def driver(program: Path, log: Path, *arguments: str) -> Process:
    """A program that drives Spark, in a process of its own."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return Process([sys.executable, str(program), *arguments], log, environment)
