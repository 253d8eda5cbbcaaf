"""Copies of journals that are in use: complete, undamaged, and of one moment."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tupelo.errors import BadArgument, DamagedFile, ForeignFile, JournalFailed
from tupelo.store.backup import copy
from tupelo.store.checking import examine


def test_a_space_that_is_written_meanwhile_is_copied_as_it_is_at_one_moment(tmp_path, until):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, durability="process") as space:
        space.write_all([("n", number, "x" * 500) for number in range(20_000)])
        stop = threading.Event()

        def go_on() -> None:
            """Every transaction takes one and writes one, so there are always as many."""
            while not stop.is_set():
                with space.transaction() as txn:
                    taken: Any = space.take(("n", int, str), txn=txn)
                    space.write(("n", taken[1] + 20_000, taken[2]), txn=txn)

        writer = threading.Thread(target=go_on)
        writer.start()
        try:
            before = space.changes(since=20_000)
            until(lambda: len(space.changes(since=20_000)) > len(before))
            for name in ("one", "two"):
                copy(path, tmp_path / name)
        finally:
            stop.set()
            writer.join()
        last = space.changes()[-1].position
    first, second = (examine(tmp_path / name) for name in ("one", "two"))
    assert first.found == second.found == []
    assert first.entries == second.entries == 20_000
    assert 20_000 < first.last <= second.last <= last
    with tupelo.Space("jobs", path=tmp_path / "one") as copied:
        assert copied.count() == 20_000
        copied.write(("n", 0, "more"))


def test_progress_goes_from_nothing_to_all(tmp_path):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("n", number, "x" * 500) for number in range(10_000)])
    told: list[float] = []
    copy(path, tmp_path / "copy", lambda file: lambda done, total: told.append(done / total))
    assert len(told) > 2 and told == sorted(told) and told[0] >= 0 and told[-1] <= 1


def test_nothing_is_overwritten(tmp_path):
    path, to = tmp_path / "jobs.tupelo", tmp_path / "copy.tupelo"
    with tupelo.Space("jobs", path=path) as space:
        space.write(("n", 1))
    for there in (to, Path(f"{to}-wal"), Path(f"{to}.high")):
        there.write_text("mine")
        with pytest.raises(BadArgument, match="to= must be a name that is free"):
            copy(path, to)
        assert there.read_text() == "mine"
        there.unlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["jobs.tupelo"]


def damaged(path: Path) -> None:
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("n", 1), ("n", 2)])
    with sqlite3.connect(path) as db:
        db.execute("UPDATE change SET payload = x'00' WHERE position = 2")
    db.close()


def foreign(path: Path) -> None:
    path.write_text("Dear diary" * 100)


def missing(path: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("spoil", "error"), [(damaged, DamagedFile), (foreign, ForeignFile), (missing, JournalFailed)]
)
def test_what_is_no_good_space_leaves_no_copy(spoil, error, tmp_path):
    path = tmp_path / "jobs.tupelo"
    spoil(path)
    before = {file.name for file in tmp_path.iterdir()}
    with pytest.raises(error):
        copy(path, tmp_path / "copy")
    assert {file.name for file in tmp_path.iterdir()} == before
