"""Programs run as a user runs them: in a process of their own, their output captured."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

TIMEOUT_SECONDS = 600

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python with these arguments, in an empty directory; `said` is its standard input."""

    def run_python(
        *arguments: object, said: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [sys.executable, *map(str, arguments)],
                cwd=tmp_path,
                env=os.environ | {"NO_COLOR": "1", "PYTHONUTF8": "1"} | environment,
                input=said,
                capture_output=True,
                text=True,
                encoding="utf-8",
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"still running after {TIMEOUT_SECONDS} s; it had printed {late.stdout!r}")

    return run_python


@pytest.fixture
def tupelo(run: Run) -> Run:
    """Run `tupelo` with these arguments."""
    return lambda *arguments, **environment: run("-m", "tupelo.apps.cli", *arguments, **environment)


class Running:
    """A `tupelo host` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tupelo", "host", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"NO_COLOR": "1"},
        )
        self._late = threading.Timer(TIMEOUT_SECONDS, self.process.kill)
        self._late.start()
        self.url = self.line().split()[-1].removesuffix("SPACE")

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def stop(self, number: int) -> tuple[int, str]:
        """Send it a signal; how it ended, and what it said at last."""
        self.process.send_signal(number)
        said, complaints = self.process.communicate()
        self._late.cancel()
        assert complaints == ""
        return self.process.returncode, said


@pytest.fixture
def start():
    running: list[Running] = []

    def start_host(*arguments: str) -> Running:
        running.append(Running(*arguments))
        return running[-1]

    yield start_host
    for host in running:
        host.process.kill()
        host.process.communicate()
        host._late.cancel()
