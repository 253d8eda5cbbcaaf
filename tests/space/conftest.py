"""Event loops of both kinds, and a disk that can be held up."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import tupelo


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """`run(main)`: run this coroutine function on a new loop of either kind."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_it(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main(), 20))

    return run_it


@pytest.fixture
def path(tmp_path):
    return Path(tmp_path) / "slow.tupelo"


class Disk:
    """Holds up all commits to a file, as a slow disk would, until it is let go."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def hold(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        self.let_go()
        self._db.close()


@pytest.fixture
def disk(path):
    """`disk(space)` opens the way to hold up its commits."""
    opened: list[Disk] = []

    def open_it() -> Disk:
        opened.append(Disk(path))
        return opened[-1]

    yield open_it
    for one in opened:
        one.close()


@pytest.fixture
def durable(path):
    """A durable space whose commits wait for the disk."""
    space = tupelo.Space("slow", path=path, durability="process")
    yield space
    space.close()
