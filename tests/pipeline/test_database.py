"""The log of a space in a database, read like that of a file with the same history."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tupelo
from tests.kinds import call_now, database_url, space_url
from tupelo.errors import BadArgument, LogTrimmed, PipelineError
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.logs.segments import seal
from tupelo.pipeline.schema import COLUMNS
from tupelo.pipeline.source.living import living
from tupelo.pipeline.source.locations import JoinedLog, resolve
from tupelo.pipeline.source.options import ReadOptions
from tupelo.postgres.connect import open_space


@dataclass
class Job:
    name: str | None = None
    size: int | None = None


class Pair:
    """A space in a database and one in a file, with one clock and the same history."""

    def __init__(self, folder: Path, clock: Any) -> None:
        self.clock = clock
        self.steps = 0
        self.url = space_url(f"jobs {uuid4()}")
        self.file = folder / "jobs.tupelo"
        self.there = call_now(open_space, self.url, is_async=False, clock=clock, log_keep="all")
        self.here = tupelo.Space("jobs", path=self.file, clock=clock)

    def play(self, seed: int, steps: int) -> None:
        random_ = random.Random(seed)
        for step in range(self.steps, self.steps + steps):
            what = random_.choice(("write", "write", "lease", "take", "txn", "abort", "delay"))
            # No two leases or delays end within one look, which may find them in any order.
            lease = random_.choice((3.0, 10.0)) + step % 10 / 20
            for space in (self.there, self.here):
                self._do(space, what, step, lease)
            for _ in range(10):
                self.clock.advance(0.05)
                assert self.there.count() == self.here.count()  # Both remove what is due by now.
        self.steps += steps
        for space in (self.there, self.here):
            space.write(("end", steps))  # It puts on disk what ended before.

    @staticmethod
    def _do(space: Any, what: str, step: int, lease: float) -> None:
        if what == "write":
            space.write(Job(f"ä{step}", step))
        elif what == "lease":
            space.write(("leased", step), lease=lease).renew(lease + 1)
        elif what == "delay":
            space.write(("late", step, None), delay=lease)
        elif what == "take":
            space.take_all(Job(), limit=2, wait=0)
        else:
            with space.transaction() as txn:
                space.take(Job(), txn=txn, wait=0)
                space.write_all([("done", step, n) for n in range(2)], txn=txn)
                if what == "abort":
                    txn.abort()

    def logs(self, **options: str) -> list[Log]:
        """The log in the database, and that in the file."""
        paths = (self.url, str(self.file))
        return [log for p in paths for log in resolve(ReadOptions.read({"path": p, **options}))]

    def close(self) -> None:
        self.there.close()
        self.here.close()


@pytest.fixture
def pair(tmp_path: Path, clock: Any) -> Iterator[Pair]:
    made = Pair(tmp_path, clock)
    yield made
    made.close()


def rows(batches: Any) -> list[dict[str, Any]]:
    """Rows that can be compared: ids are replaced by their first place, and texts of time are the
    same since the clock is."""
    found: list[dict[str, Any]] = pa.Table.from_batches(list(batches)).to_pylist()
    ids: dict[Any, int] = {}
    for row in found:
        row["n"] = ids.setdefault((row["origin"], row["n"]), len(ids))
        for name in ("host", "space", "origin", "agent"):
            del row[name]
        row["txn"] = row["txn"] and ids.setdefault(row["txn"], len(ids))
    return found


def read(log: Log) -> list[dict[str, Any]]:
    return rows(log.batches(*log.bounds()))


def there_at(log: Log, moment: Any) -> list[dict[str, Any]]:
    return rows(living(log, moment, COLUMNS, None))


@pytest.mark.parametrize("seed", range(2))
def test_the_same_history_gives_the_same_rows_and_entries(pair, seed):
    pair.play(seed, 40)
    ours, files = pair.logs()
    assert ours.bounds() == files.bounds()
    assert read(ours) == read(files)
    middle = ours.bounds()[1] // 2
    for moment in ("now", middle):
        assert there_at(ours, moment) == there_at(files, moment) != []
    # Columns alone, and parts, have the same values as all together.
    whole = read(ours)
    for name in COLUMNS[2:]:
        (alone,) = pa.Table.from_batches(ours.batches(*ours.bounds(), [name])).columns
        assert alone.type == pa.Table.from_batches(files.batches(1, 1, [name])).schema.types[0]
        if name in whole[0] and name not in ("n", "txn"):
            assert alone.to_pylist() == [row[name] for row in whole]
    parts = [list(ours.batches(at, at, ["position", "arrival", "delayed"])) for at in range(1, 41)]
    assert [row for part in parts for batch in part for row in batch.to_pylist()] == [
        {name: row[name] for name in ("position", "arrival", "delayed")} for row in whole[:40]
    ]


def test_a_trimmed_log_knows_what_was_there_before(pair):
    """In steps, so that entries pass from what is kept to what is trimmed, live on, and end."""
    for step in range(6):
        pair.play(step, 12)
        ours, files = pair.logs()
        upto = files.bounds()[1] - 9 + step
        for space in (pair.there, pair.here):
            space.trim(before=upto)
        assert ours.bounds() == files.bounds() == (upto, files.bounds()[1])
        assert read(ours) == read(files)
        same = ("position", "arrival", "time", "kind", "expires", "fields")
        for moment in ("now", upto - 1, upto + 3):
            found, wanted = there_at(ours, moment), there_at(files, moment)
            assert [[row[name] for name in same] for row in found] == [
                [row[name] for name in same] for row in wanted
            ]
    with pytest.raises(LogTrimmed, match=f"the change at {upto - 1} was asked for.* {upto}") as at:
        list(ours.batches(upto - 1, upto))
    assert at.value.first == upto
    with pytest.raises(LogTrimmed, match="cannot be told"):
        there_at(ours, upto - 2)


def test_what_is_sealed_and_what_is_in_the_database_are_one_log(pair, tmp_path):
    pair.play(7, 30)
    (ours, files), archive = pair.logs(), tmp_path / "archive"
    seal(ours, archive)
    last = ours.bounds()[1]
    pair.there.trim(before=last - 3)
    pair.play(8, 10)
    joined = resolve(ReadOptions.read({"path": pair.url, "archive": str(archive)}))[0]
    assert isinstance(joined, JoinedLog) and joined.bounds() == (1, files.bounds()[1])
    assert [row["arrival"] for row in read(joined)][last:] == [
        row["arrival"] for row in rows(files.batches(last + 1, files.bounds()[1]))
    ]
    assert [row["position"] for row in read(joined)] == [*range(1, files.bounds()[1] + 1)]


def test_all_spaces_of_a_database_or_some(pair):
    pair.there.write(("job", 1))
    (ours, _) = pair.logs()
    everywhere = resolve(ReadOptions.read({"path": database_url()}))
    assert ours.space in [log.space for log in everywhere]
    assert {log.host for log in everywhere} == {ours.host}
    assert len({log.id for log in everywhere}) == len(everywhere)
    some = resolve(ReadOptions.read({"path": database_url(), "space": ours.space}))
    assert [(log.space, log.id) for log in some] == [(ours.space, ours.id)]
    with pytest.raises(BadArgument, match="path= must be one that names a space of this database"):
        resolve(ReadOptions.read({"path": space_url(f"none {uuid4()}")}))


def test_a_space_that_was_made_anew_is_another_log(pair):
    pair.there.write(("job", 1))
    (ours, _) = pair.logs()
    with database() as link:
        link.execute("DELETE FROM tupelo.spaces WHERE name = %s", (ours.space,))
    tupelo.connect(pair.url).close()
    with pytest.raises(PipelineError, match="is another one now"):
        list(ours.batches(1, 1))
    assert pair.logs()[0].id != ours.id


def test_a_batch_is_as_large_as_its_entries_allow(pair, monkeypatch):
    monkeypatch.setattr("tupelo.pipeline.logs.log.BATCH_BYTES", 400_000)
    pair.there.write_all([("job", n, b"x" * 4_000) for n in range(1_000)])
    (ours, _) = pair.logs()
    assert ours.bounds() == (1, 1_000)
    batches = list(ours.batches(1, 1_000))
    assert [p for b in batches for p in b.column("position").to_pylist()] == [*range(1, 1_001)]
    assert max(batch.nbytes for batch in batches[1:]) < 1_000_000 and len(batches) > 8


def test_errors_and_descriptions_of_a_log_do_not_show_the_password(pair):
    secret = "pa55word"
    pair.there.write(("job", 1))
    path = pair.url.replace("postgresql://postgres:", f"postgresql://postgres:{secret}")
    assert secret in path
    (ours,) = resolve(ReadOptions.read({"path": path}))
    assert secret not in repr(ours)
    for wrong in (path.replace("?", "1?"), f"postgresql://ada:{secret}@127.0.0.1:1/work?space=a"):
        with pytest.raises(tupelo.TupeloError) as raised:
            resolve(ReadOptions.read({"path": wrong}))
        assert secret not in str(raised.value)


@contextmanager
def database() -> Iterator[Any]:
    import psycopg

    with psycopg.connect(database_url(), autocommit=True) as link:
        yield link
