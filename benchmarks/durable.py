"""Durable spaces: commits by one and by many, against SQLite's own, and opening a journal.

Both sides are measured after their first checkpoint, when the write-ahead log is overwritten in
place: while it grows, a commit costs the file system more, and the side that is measured later
would win. Files are made beside the results and not in /tmp, which may be in memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.measure import Line, Settings, Target, compare, fields, require
from benchmarks.report import OUT
from tupelo import Space, aio

WRITERS = 64
ROW_BYTES = 120
ENTRY = ("Tuple", 42, 3.14159, "x" * 101)
"""An entry that takes about ROW_BYTES in the journal."""

PAYLOAD = b"x" * ROW_BYTES
CHECKPOINT_PAGES = 4_000  # as the journal has it
PAGE_BYTES = 4_096


def run(settings: Settings) -> list[Line]:
    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=OUT) as name:
        directory = Path(name)
        return [*_commits(settings, directory), _opening(settings, directory)]


# Commits


def _commits(settings: Settings, directory: Path) -> list[Line]:
    alone, each = settings.size(500), settings.size(100)
    path = directory / "commits.tupelo"
    with (
        Space("commits", path=path, durability="full") as space,
        closing(_plain_sqlite(directory / "plain.sqlite")) as plain,
        asyncio.Runner() as runner,
    ):
        _pass_checkpoint(space, plain)
        tasks_door = aio.Space(space)
        lines = [
            compare(
                f"durable writes by {WRITERS} threads",
                "by one thread",
                "/s",
                Target("≥", 15),
                lambda: _by_threads(space, each),
                lambda: _by_one(space, alone),
                settings.rounds,
            ),
            compare(
                f"durable writes by {WRITERS} tasks",
                "by one thread",
                "/s",
                Target("≥", 15),
                lambda: runner.run(_by_tasks(tasks_door, each)),
                lambda: _by_one(space, alone),
                settings.rounds,
            ),
            compare(
                "durable writes by one thread",
                f"SQLite, a row of {ROW_BYTES} bytes a commit",
                "/s",
                Target("≥", 0.8),
                lambda: _by_one(space, alone),
                lambda: _by_sqlite(plain, alone),
                settings.rounds,
            ),
        ]
    with closing(sqlite3.connect(path)) as db:
        (size,) = db.execute("SELECT length(payload) FROM change ORDER BY position DESC").fetchone()
    require(abs(size - ROW_BYTES) < 5, f"an entry should take {ROW_BYTES} bytes, and not {size}")
    return lines


def _pass_checkpoint(space: Space, plain: sqlite3.Connection) -> None:
    wide = "x" * (PAGE_BYTES // 3)  # few rows fill many pages, and the change log is not trimmed
    space.write_all([("Tuple", 42, 3.14159, wide)] * 3 * CHECKPOINT_PAGES)
    plain.execute("BEGIN")
    plain.executemany("INSERT INTO row (payload) VALUES (?)", [(wide,)] * 3 * CHECKPOINT_PAGES)
    plain.execute("COMMIT")
    _by_one(space, 10)
    _by_sqlite(plain, 10)


def _by_one(space: Space, count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        space.write(ENTRY)
    return count / (perf_counter() - start)


def _by_threads(space: Space, each: int) -> float:
    begin = threading.Barrier(WRITERS + 1)

    def writer() -> None:
        begin.wait()
        for _ in range(each):
            space.write(ENTRY)

    threads = [threading.Thread(target=writer) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    begin.wait()
    start = perf_counter()
    for thread in threads:
        thread.join()
    return WRITERS * each / (perf_counter() - start)


async def _by_tasks(space: aio.Space, each: int) -> float:
    async def writer() -> None:
        for _ in range(each):
            await space.write(ENTRY)

    start = perf_counter()
    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    return WRITERS * each / (perf_counter() - start)


def _plain_sqlite(path: Path) -> sqlite3.Connection:
    """A table with the pragmas of the journal."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    db.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
    return db


def _by_sqlite(db: sqlite3.Connection, count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        db.execute("INSERT INTO row (payload) VALUES (?)", (PAYLOAD,))  # commits by itself
    return count / (perf_counter() - start)


# Opening


def _opening(settings: Settings, directory: Path) -> Line:
    count, batch = settings.size(1_000_000), 10_000
    path = directory / "opening.tupelo"
    with Space("opening", path=path, durability="full") as space:
        for start in range(0, count, batch):
            space.write_all(map(fields, range(start, min(count, start + batch))))
    return compare(
        f"opening a journal of {count:,} entries",
        "a bare SELECT of them",
        "/s",
        Target("≥", 150_000, of="ours"),
        lambda: _open(path, count),
        lambda: _select(path, count),
        settings.rounds,
        warm_up=False,
    )


def _open(path: Path, count: int) -> float:
    start = perf_counter()
    space = Space("opening", path=path, durability="full")
    seconds = perf_counter() - start
    with space:
        require(space.count() == count, "all entries should be there")
    return count / seconds


def _select(path: Path, count: int) -> float:
    start = perf_counter()
    with closing(sqlite3.connect(path)) as db:
        living = "SELECT * FROM change WHERE kind = 0 AND ended IS NULL ORDER BY position"
        rows = db.execute(living).fetchall()
    seconds = perf_counter() - start
    require(len(rows) == count, "all rows should be there")
    return count / seconds
