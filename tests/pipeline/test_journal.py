"""The log in the file of a space, read beside the space that has it open."""

import os
import pickle
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import tupelo
from tests.laws.kinds import Job
from tests.pipeline.rows import batch_of
from tests.store.test_reopening import OLDER, make_older
from tupelo.errors import DamagedFile, ForeignFile, JournalFailed, LogTrimmed
from tupelo.pipeline.declared import Declared, typed
from tupelo.pipeline.logs import journal
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.schema import COLUMNS, schema_of
from tupelo.store.tail import bounds_in


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.tupelo"


def table_of(
    log: JournalLog,
    first: int | None = None,
    last: int | None = None,
    columns: list[str] | None = None,
    entry: Declared | None = None,
) -> Any:
    low, high = log.bounds()
    batches = log.batches(first or low, last or high, columns, entry)
    return pa.Table.from_batches(batches, schema_of(columns, entry))


def positions(log: JournalLog, first: int | None = None, last: int | None = None) -> list[int]:
    found: list[int] = table_of(log, first, last, ["position"]).column("position").to_pylist()
    return found


def busy(space: tupelo.Space) -> None:
    """A little of everything that a log can say."""
    rng = random.Random(3)
    for number in range(300):
        space.write((rng.choice("abc"), number), lease=60 if number % 5 == 0 else None)
        if number % 2:
            space.take((rng.choice("abc"), int), wait=0)
        if number % 7 == 0:
            space.write(Job("j", number)).cancel()
        if number % 11 == 0:
            with space.transaction() as txn:
                space.take((str, int), wait=0, txn=txn)
                space.write_all([Job("in", number), ("d", [1, (2,)])], txn=txn)
        if number % 20 == 0:
            txn = space.transaction()
            space.write(("prepared", number), txn=txn)
            txn.prepare()
            (txn.commit if number % 40 else txn.abort)()
        space.read((str, int), wait=0)
    with space.session() as session:
        session.read_all()


def test_the_rows_of_the_file_are_the_changes_of_the_space(path, monkeypatch):
    monkeypatch.setattr(journal, "ROWS", 97)
    with tupelo.Space("jobs", path=path, durability="process", log_reads=True) as space:
        busy(space)
        changes = space.changes()
        log = JournalLog(path)
        expected = batch_of(space._port._core.agent, "jobs", changes)
        assert (log.host, log.space) == (space._port._core.agent, "jobs")
        assert log.bounds() == (1, len(changes))
        found = table_of(pickle.loads(pickle.dumps(log)))
        assert found.combine_chunks().to_batches()[0] == expected
        kinds = set(found.column("kind").to_pylist())
        assert kinds >= {
            "written",
            "read",
            "taken",
            "cancelled",
            "prepared",
            "committed",
            "aborted",
        }
        for name in COLUMNS:
            alone = table_of(log, columns=[name]).column(name).combine_chunks()
            assert alone.equals(expected.column(name)) or alone.chunk(0) == expected.column(name)
        middle = table_of(log, 100, 333)
        assert middle.combine_chunks().to_batches()[0] == expected.slice(99, 234)


def test_typed_columns_come_from_the_file_as_well(path):
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("a", 1), Job("b", 2), ("c",)])
        space.take(("a", 1), wait=0)
    rows = table_of(JournalLog(path), columns=["kind", "f"], entry=typed("name string, size long"))
    assert rows.to_pylist() == [
        {"kind": "written", "f": {"name": "a", "size": 1}},
        {"kind": "written", "f": {"name": "b", "size": 2}},
        {"kind": "written", "f": None},
        {"kind": "taken", "f": {"name": "a", "size": 1}},
    ]


def test_the_log_grows_while_it_is_read(path):
    with tupelo.Space("jobs", path=path) as space:
        log = JournalLog(path)
        assert log.bounds() == (1, 0) and positions(log, 1, 10) == []
        for number in range(1, 5):
            space.write(("n", number))
            assert log.bounds() == (1, number)
            assert positions(log) == list(range(1, number + 1))
        assert positions(log, 3, 100) == [3, 4]


def test_the_file_is_left_as_it_was_and_the_space_can_be_opened(path):
    with tupelo.Space("jobs", path=path) as space:
        space.write(("n", 1))
    before = path.read_bytes()
    log = JournalLog(path)
    batches: Any = log.batches(*log.bounds())
    next(batches)
    with tupelo.Space(path=path) as space:  # No lock is in its way.
        assert space.read(wait=0) == ("n", 1)
    batches.close()
    assert log.bounds() == (1, 1)
    assert len(path.read_bytes()) == len(before)


def test_what_was_trimmed_is_told_with_where_the_log_begins(path):
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("n", number) for number in range(10)])
        space.take_all(limit=5)
        space.trim(before=8)
        log = JournalLog(path)
        assert log.bounds() == (8, 15) and positions(log) == list(range(8, 16))
        taken = table_of(log, 11, columns=["arrival", "fields"]).to_pylist()
        # They speak of entries that were written before the log begins.
        assert taken[0] == {"arrival": 1, "fields": '["n",0]'}
        with pytest.raises(LogTrimmed, match="begins at 8") as caught:
            positions(log, 7)
        assert caught.value.first == 8


def test_what_is_trimmed_while_it_is_read_is_told(path, monkeypatch):
    monkeypatch.setattr(journal, "ROWS", 8)
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("n", number) for number in range(30)])
        batches = JournalLog(path).batches(1, 30, ["position"])
        assert next(batches).column("position").to_pylist() == [1]
        space.trim(before=20)
        with pytest.raises(LogTrimmed, match="begins at 20"):
            next(batches)


def test_a_log_of_which_everything_was_trimmed_is_empty(path):
    with tupelo.Space("jobs", path=path) as space:
        space.write(("n", 1))
        space.take(wait=0)
        space.trim(before=3)
    assert JournalLog(path).bounds() == (3, 2)


@pytest.mark.parametrize(("form", "lacking"), OLDER)
def test_files_of_older_formats_can_be_read_and_stay_what_they_are(path, form, lacking):
    with tupelo.Space("jobs", path=path) as space:
        space.write(("old", 1))
        space.take(wait=0)
    make_older(path, form, lacking)
    rows = table_of(JournalLog(path)).to_pylist()
    assert [(row["kind"], row["fields"], row["to"], row["session"]) for row in rows] == [
        ("written", '["old",1]', None, None),
        ("taken", '["old",1]', None, None),
    ]
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (form,)
    db.close()


def test_large_entries_come_in_small_batches(path, monkeypatch):
    monkeypatch.setattr("tupelo.pipeline.logs.log.BATCH_BYTES", 100_000)
    with tupelo.Space("jobs", path=path, durability="process") as space:
        space.write_all([("n", bytes(10_000)) for _ in range(600)])
    log = JournalLog(path)
    sizes = [batch.num_rows for batch in log.batches(*log.bounds(), ["payload"])]
    assert sum(sizes) == 600 and sizes[0] < 300 and max(sizes[1:]) < 20


def test_a_file_at_rest_is_read_without_a_trace(path):
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("n", number) for number in range(5)])
    there = sorted(path.parent.iterdir())
    assert positions(JournalLog(path)) == [1, 2, 3, 4, 5]
    assert sorted(path.parent.iterdir()) == there


def test_a_link_to_a_file_in_use_is_that_file(path):
    with tupelo.Space("jobs", path=path) as space:
        link = path.with_name("link.tupelo")
        link.symlink_to(path)
        space.write(("n", 1))
        assert positions(JournalLog(link)) == [1]


def test_a_file_at_rest_that_is_written_while_it_is_read_is_read_again(path, monkeypatch):
    with tupelo.Space("jobs", path=path) as space:
        space.write(("n", 1))
    log = JournalLog(path)
    looks = []

    def interrupted(db: sqlite3.Connection) -> tuple[int, int]:
        looks.append(bounds := bounds_in(db))
        if len(looks) == 1:
            with tupelo.Space(path=path) as space:
                space.write(("n", 2))
        return bounds

    monkeypatch.setattr(journal, "bounds_in", interrupted)
    assert log.bounds() == (1, 2) and looks == [(1, 1), (1, 2)]


def test_a_file_where_nobody_may_write_is_read(path):
    with tupelo.Space("jobs", path=path) as space:
        space.write(("n", 1))
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert positions(JournalLog(path)) == [1]
    finally:
        path.parent.chmod(0o755)


def test_a_file_that_is_locked_is_not_called_damaged(path, monkeypatch):
    with tupelo.Space("jobs", path=path) as space:
        space.write(("n", 1))
    connect = partial(sqlite3.connect, timeout=0)
    with closing(connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("INSERT INTO meta VALUES ('more', 1)")
        other.execute("COMMIT")  # What was written is in SQLite's log, and the lock stays.
        monkeypatch.setattr(sqlite3, "connect", connect)
        with pytest.raises(JournalFailed, match="cannot be read: database is locked"):
            JournalLog(path)


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(JournalFailed, match="cannot be opened"):
        JournalLog(tmp_path / "nothing")
    with pytest.raises(JournalFailed, match="cannot be opened"):
        JournalLog(tmp_path)
    (tmp_path / "text").write_text("x" * 1_000)
    with pytest.raises(ForeignFile):
        JournalLog(tmp_path / "text")


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM change WHERE position = 5",
        "UPDATE change SET payload = x'c1' WHERE position = 5",
        "UPDATE change SET kind = 99 WHERE position = 5",
        "UPDATE change SET kind = 'x' WHERE position = 5",
        "UPDATE change SET time = 'x' WHERE position = 5",
        "UPDATE change SET agent = x'ff' WHERE position = 5",
        "DROP TABLE change",
        "DELETE FROM meta",
    ],
)
def test_a_damaged_file_is_told(path, harm):
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("n", number) for number in range(10)])
    db = sqlite3.connect(path)
    db.execute(harm)
    db.commit()
    db.close()
    with pytest.raises(DamagedFile, match="damaged"):
        table_of(JournalLog(path))


WRITER = """
import sys, tupelo
with tupelo.Space("jobs", path=sys.argv[1], durability="process", log_keep=3_000) as space:
    print("ready", flush=True)
    number = 0
    while True:
        space.write_all([("n", number + i) for i in range(50)])
        space.take_all(limit=50)
        number += 50
"""


def test_it_is_read_while_another_process_writes_trims_and_is_killed(path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, env=os.environ
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        log = JournalLog(path)
        reads, trims, last = 0, 0, 0
        while reads < 30 or last < 5_000:
            first, last = log.bounds()
            try:
                for batch in log.batches(first, last, ["position", "arrival", "kind", "fields"]):
                    places = batch.column("position").to_pylist()
                    assert places == list(range(first, first + len(places)))
                    assert batch.column("fields").null_count == 0
                    first += len(places)
                assert first == last + 1
                reads += 1
            except LogTrimmed:
                trims += 1
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    first, last = log.bounds()
    assert positions(log) == list(range(first, last + 1))
