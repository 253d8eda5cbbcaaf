"""Programs run as a user runs them: in a process of their own, their output captured."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TIMEOUT_SECONDS = 600

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run Python with these arguments, in an empty directory."""

    def run_python(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [sys.executable, *map(str, arguments)],
                cwd=tmp_path,
                env=os.environ | {"NO_COLOR": "1", "PYTHONUTF8": "1"} | environment,
                stdin=subprocess.DEVNULL,
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
