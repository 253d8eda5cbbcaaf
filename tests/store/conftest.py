"""Files on a real disk, and programs of their own to fight over them."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import tupelo


@pytest.fixture
def path(tmp_path):
    return Path(tmp_path) / "jobs.tupelo"


@pytest.fixture
def open_space(path, clock):
    """`open_space(**options)`: the space in the file; what is left open is closed at the end."""
    opened: list[tupelo.Space] = []

    def open_it(**options: Any) -> tupelo.Space:
        space = tupelo.Space("jobs", **{"path": path, "clock": clock, **options})
        opened.append(space)
        return space

    yield open_it
    for space in opened:
        space.close()


@pytest.fixture
def reopened(open_space):
    """`reopened(space)`: close it, and open it again."""

    def reopen(space: tupelo.Space, **options: Any) -> tupelo.Space:
        space.close()
        answer: tupelo.Space = open_space(**options)
        return answer

    return reopen


class Program(subprocess.Popen[str]):
    """Another Python program; it may be asked and answers line by line."""

    def __init__(self, code: str, *args: object) -> None:
        super().__init__(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.stdout is not None
        line = self.stdout.readline()
        if not line:
            _, errors = self.communicate()
            raise AssertionError(f"the program ended: {errors}")
        return line.strip()

    def output(self) -> list[str]:
        out, errors = self.communicate(timeout=60)
        assert self.returncode == 0, errors
        return out.splitlines()


@pytest.fixture
def program():
    """`program(code, *args)` starts one; those still running at the end are killed."""
    started: list[Program] = []

    def start(code: str, *args: object) -> Program:
        started.append(Program(code, *args))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def bytes_of(tmp_path):
    """What every file in the folder holds."""

    def read() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in sorted(Path(tmp_path).iterdir())}

    return read
