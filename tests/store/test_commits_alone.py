"""A change that is all that a commit does is kept as it is kept among others."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tupelo import Space
from tupelo.space.clock import ManualClock
from tupelo.store.checking import examine

COLUMNS = (
    "position, time, kind, arrival, agent, txn, waited, expires, ended, origin, n, payload, dest,"
    " session, lease, lease_crc"
)


def _use(space: Space, clock: ManualClock) -> None:
    """Writes and endings of every sort: with and without a lease, a receiver, a transaction."""
    for i in range(4):
        space.write(("job", i))
    space.take(("job", 2))
    leased = space.write(("leased", 1), lease=10)
    space.write(("leased", 2), lease=10)
    leased.renew(20)
    space.take(("leased", 1))
    clock.advance(11)  # The other one expires.
    space.write(("for", "ada"), to="ada")
    space.write(("cancelled",)).cancel()
    with space.transaction() as txn:
        space.take(("job", 0), txn=txn)
        space.write(("done", 0), txn=txn)
    space.take(("job", 1))


def _kept(path: Path, durability: Any, log_keep: int | None = None) -> list[tuple[Any, ...]]:
    clock = ManualClock()
    how: dict[str, Any] = {"clock": clock, "agent": "me", "log_keep": log_keep}
    ids = map(str, count())
    with Space("x", path=path, durability=durability, new_id=lambda: next(ids), **how) as space:
        _use(space, clock)
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute(f"SELECT {COLUMNS} FROM change ORDER BY position").fetchall()
        return [*rows, *db.execute("SELECT value FROM meta WHERE key IN ('living', 'n')")]


def test_changes_are_kept_alike_alone_and_in_one_commit(tmp_path: Path) -> None:
    alone = _kept(tmp_path / "alone.tupelo", "process")
    assert alone == _kept(tmp_path / "together.tupelo", "none")
    for name in ("alone", "together"):
        assert not examine(tmp_path / f"{name}.tupelo").found


@pytest.mark.parametrize("log_keep", [0, 1, 5])
def test_entries_outlive_a_log_that_is_trimmed_often(tmp_path: Path, log_keep: int) -> None:
    path = tmp_path / "full.tupelo"
    _kept(path, "process", log_keep)
    with Space("x", path=path) as space:
        assert sorted(space.read_all()) == [("done", 0), ("for", "ada"), ("job", 3)]
    assert not examine(path).found
