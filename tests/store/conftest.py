"""Spaces in files on a real disk."""

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


@pytest.fixture
def bytes_of(tmp_path):
    """What every file in the folder holds."""

    def read() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in sorted(Path(tmp_path).iterdir())}

    return read
