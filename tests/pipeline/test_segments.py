"""Sealed logs: whole or not there at all, whatever happens while they are sealed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tupelo
from tests.laws.kinds import Job
from tests.store.test_reopening import make_older
from tupelo import ManualClock
from tupelo.errors import BadArgument, CorruptSegment, LogTrimmed, PipelineError, WrongSchema
from tupelo.pipeline.declared import Declared, typed
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import (
    MANIFEST,
    REPLACED_SECONDS,
    Archive,
    ArchivedLog,
    Segment,
    compact,
    load,
    seal,
)
from tupelo.pipeline.schema import CHANGES, schema_of
from tupelo.pipeline.source.locations import JoinedLog, resolve
from tupelo.pipeline.source.options import ReadOptions

DAY = 86_400.0
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "archive"


@pytest.fixture
def space(tmp_path):
    with tupelo.Space(
        "jobs", path=tmp_path / "jobs.tupelo", durability="process", agent="me"
    ) as space:
        yield space


@pytest.fixture
def log(space, tmp_path):
    return JournalLog(tmp_path / "jobs.tupelo")


def fill(space: tupelo.Space, count: int) -> None:
    space.write_all([("n", number) for number in range(count)])


def the_log(archive: Path) -> ArchivedLog:
    (log,) = Archive(archive).logs()
    return log


def table_of(
    log: JournalLog | ArchivedLog,
    first: int | None = None,
    last: int | None = None,
    columns: list[str] | None = None,
    entry: Declared | None = None,
) -> Any:
    low, high = log.bounds()
    batches = log.batches(first or low, last or high, columns, entry)
    return pa.Table.from_batches(batches, schema_of(columns, entry))


def positions(
    log: JournalLog | ArchivedLog, first: int | None = None, last: int | None = None
) -> list[int]:
    found: list[int] = table_of(log, first, last, ["position"]).column("position").to_pylist()
    return found


def files_in(archive: Path) -> list[str]:
    return sorted(p.relative_to(archive).as_posix() for p in archive.rglob("*") if p.is_file())


def test_what_is_sealed_is_what_was_in_the_log(space, log, archive):
    fill(space, 50)
    space.write_all([Job("j", 1), ("x", [1, (2, b"3")])])
    space.take_all(("n", int), limit=20)
    sealed = seal(log, archive, rows_max=30)
    assert [(s.first, s.last, s.rows) for s in sealed] == [(1, 30, 30), (31, 60, 30), (61, 72, 12)]
    found = the_log(archive)
    assert (found.host, found.space, found.bounds()) == ("me", "jobs", (1, 72))
    assert found.segments == sealed
    assert table_of(found) == table_of(log)
    for first, last in ((1, 1), (30, 31), (29, 62), (72, 72), (5, 25)):
        assert table_of(found, first, last) == table_of(log, first, last)
    declared = typed("what string, n long")
    for columns in (["kind"], ["f"], ["f", "position"], ["payload", "f", "host"]):
        whole = table_of(found, 20, 70, columns, declared)
        assert whole == table_of(log, 20, 70, columns, declared)


def test_the_manifest_says_what_there_is(space, log, archive):
    fill(space, 10)
    space.take_all(limit=3)
    (segment,) = seal(log, archive)
    day = datetime.fromtimestamp(space.changes()[0].time, UTC).date()
    assert segment.file == f"day={day}/1-13.parquet"
    assert segment.kinds == {"written": 10, "taken": 3}
    assert segment.bytes == (archive / "host=me/space=jobs" / segment.file).stat().st_size
    assert segment.first_time == round(space.changes()[0].time * 1e6)
    assert segment.last_time == round(space.changes()[-1].time * 1e6)
    said = json.loads((archive / "host=me/space=jobs" / MANIFEST).read_text())
    assert (said["schema"], said["host"], said["space"], said["sealed"]) == (3, "me", "jobs", 13)


def test_sealing_goes_on_where_it_ended(space, log, archive):
    assert seal(log, archive) == [] and Archive(archive).logs() == []
    fill(space, 10)
    told: list[Segment] = []
    assert [s.last for s in seal(log, archive, upto=4, completed=told.append)] == [4]
    assert [s.last for s in told] == [4]
    assert seal(log, archive, upto=4) == seal(log, archive, upto=2) == []
    assert [s.first for s in seal(log, archive)] == [5]
    fill(space, 10)
    assert [(s.first, s.last) for s in seal(log, archive)] == [(11, 20)]
    assert positions(the_log(archive)) == list(range(1, 21))


def test_what_was_resolved_before_is_read_as_it_was(space, log, archive):
    fill(space, 5)
    seal(log, archive)
    before = the_log(archive)
    fill(space, 5)
    seal(log, archive)
    assert positions(before, 1, 10) == [1, 2, 3, 4, 5]
    assert positions(the_log(archive)) == list(range(1, 11))


def test_a_segment_has_the_changes_of_one_day(tmp_path, archive):
    clock = ManualClock(NOON)
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, clock=clock, agent="me") as space:
        space.write(("today",))
        space.write(("short",), lease=60)  # It ends today, but is found to have tomorrow.
        clock.advance(DAY)
        space.write(("tomorrow",))
        space.write(("as well",))
        clock.advance(3 * DAY)
        space.write(("later",))
    sealed = seal(JournalLog(path), archive)
    assert [(s.file, s.rows) for s in sealed] == [
        ("day=2026-11-16/1-3.parquet", 3),
        ("day=2026-11-17/4-5.parquet", 2),
        ("day=2026-11-20/6-6.parquet", 1),
    ]
    assert positions(the_log(archive)) == [1, 2, 3, 4, 5, 6]


def test_a_lease_that_ended_yesterday_goes_with_today(tmp_path, archive):
    clock = ManualClock(NOON)
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, clock=clock, agent="me") as space:
        space.write_all([("short",), ("long",)], lease=[60, None])
        held = space.transaction()
        space.take(("short",), txn=held)
        clock.advance(DAY)
        space.write(("tomorrow",))
        held.abort()
    (first, second) = seal(JournalLog(path), archive)
    assert (first.rows, second.rows) == (2, 2)
    assert second.first_time < second.last_time - 3_600_000_000
    assert second.kinds == {"written": 1, "expired": 1}


@pytest.mark.parametrize("name", ["a/b", "..", "a=b", "% x", "ü", "host=x", "."])
def test_any_name_can_be_a_folder(tmp_path, archive, name):
    path = tmp_path / "any.tupelo"
    with tupelo.Space(name, path=path, agent=name) as space:
        fill(space, 3)
    seal(JournalLog(path), archive)
    found = the_log(archive)
    assert (found.host, found.space, positions(found)) == (name, name, [1, 2, 3])
    assert Archive(archive).log(name, name) is not None
    assert Archive(archive).log(name, "other") is None
    assert all(file.count("/") == 3 or file.endswith(MANIFEST) for file in files_in(archive))


def test_the_logs_of_many_hosts_share_an_archive(tmp_path, archive):
    for host in ("one", "two"):
        for name in ("jobs", "notes"):
            path = tmp_path / f"{host}-{name}.tupelo"
            with tupelo.Space(name, path=path, agent=host) as space:
                fill(space, 2)
            seal(JournalLog(path), archive)
    assert [(log.host, log.space) for log in Archive(archive).logs()] == [
        ("one", "jobs"),
        ("one", "notes"),
        ("two", "jobs"),
        ("two", "notes"),
    ]


def test_an_archive_that_is_not_there_has_no_logs(archive):
    assert Archive(archive).logs() == []


# What does not fit


def test_another_log_of_the_same_name_is_refused(tmp_path, archive):
    for number in (1, 2):
        path = tmp_path / f"{number}.tupelo"
        with tupelo.Space("jobs", path=path, agent="me") as space:
            fill(space, 5 * number)
    seal(JournalLog(tmp_path / "1.tupelo"), archive)
    with pytest.raises(PipelineError, match="another log of this name"):
        seal(JournalLog(tmp_path / "2.tupelo"), archive)
    assert positions(the_log(archive)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("more", [1, 2, 9])
def test_a_log_that_lost_what_is_sealed_is_refused(tmp_path, archive, more):
    """As an older copy of the file, or what a power cut has left of it: shorter than what is
    sealed, as long, or longer again."""
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 3)
    older = path.read_bytes()
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 2)
    seal(JournalLog(path), archive)
    path.write_bytes(older)
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, more)
        with pytest.raises(PipelineError, match="has lost changes that are sealed"):
            seal(JournalLog(path), archive)
        with pytest.raises(PipelineError, match="has lost changes that are sealed"):
            JoinedLog(JournalLog(path), archive).bounds()


def test_a_log_that_was_sealed_before_it_had_an_id_goes_on(tmp_path, archive):
    path, other = tmp_path / "jobs.tupelo", tmp_path / "other.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 3)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM meta WHERE key = 'id'")
    make_older(path, 5, [])
    seal(JournalLog(path), archive)
    assert the_log(archive).id == ""
    for file in (path, other):
        with tupelo.Space("jobs", path=file, agent="me") as space:
            fill(space, 2)
    with pytest.raises(PipelineError, match="another log of this name"):
        seal(JournalLog(other), archive)
    (joined,) = resolve(ReadOptions((str(archive), str(path))))
    assert joined.bounds() == (1, 5)
    seal(JournalLog(path), archive)
    assert the_log(archive).id == JournalLog(path).id != ""
    assert positions(the_log(archive)) == [1, 2, 3, 4, 5]


def test_a_log_that_was_trimmed_before_it_was_sealed_begins_later(space, log, archive):
    fill(space, 10)
    space.trim(before=4)
    seal(log, archive)
    found = the_log(archive)
    assert found.bounds() == (4, 10) and positions(found) == list(range(4, 11))
    with pytest.raises(LogTrimmed, match="begins at 4") as caught:
        positions(found, 1)
    assert caught.value.first == 4


def test_what_was_lost_in_between_is_told(space, log, archive):
    fill(space, 10)
    seal(log, archive)
    fill(space, 10)
    space.trim(before=15)
    with pytest.raises(LogTrimmed, match="sealed up to 10, but its log begins at 15"):
        seal(log, archive)
    assert positions(the_log(archive)) == list(range(1, 11))


def test_columns_that_are_not_there_are_refused(space, log, archive):
    fill(space, 1)
    seal(log, archive)
    with pytest.raises(BadArgument, match="columns="):
        table_of(the_log(archive), columns=["nothing"])


# What is damaged


@pytest.fixture
def sealed(space, log, archive):
    fill(space, 1_000)
    (segment,) = seal(log, archive)
    return archive / "host=me/space=jobs" / segment.file


def test_a_segment_that_is_gone_is_told(sealed, archive):
    sealed.unlink()
    with pytest.raises(CorruptSegment, match="it is gone") as caught:
        positions(the_log(archive))
    assert caught.value.path == str(sealed)


def test_a_torn_segment_is_told(sealed, archive):
    sealed.write_bytes(sealed.read_bytes()[:-10])
    with pytest.raises(CorruptSegment, match="bytes of"):
        positions(the_log(archive))


def test_a_segment_with_an_altered_page_is_told(sealed, archive):
    """Each page has a checksum: here the last byte of every page is altered, one at a time."""
    data = sealed.read_bytes()
    ends = []
    for column in range(len(CHANGES)):
        chunk = pq.read_metadata(sealed).row_group(0).column(column)
        if chunk.has_dictionary_page:
            ends += [chunk.data_page_offset, chunk.dictionary_page_offset]
        else:
            ends += [chunk.data_page_offset]
        ends[-1] += chunk.total_compressed_size
    assert len(ends) > len(CHANGES)
    for end in ends:
        sealed.write_bytes(data[: end - 1] + bytes([data[end - 1] ^ 0xFF]) + data[end:])
        with pytest.raises(CorruptSegment):
            table_of(the_log(archive))


@pytest.mark.parametrize("from_end", [200, 20, 4])
def test_a_segment_with_an_altered_footer_is_told(sealed, archive, from_end):
    data = bytearray(sealed.read_bytes())
    for place in range(4):
        data[place - from_end] ^= 0xFF
    sealed.write_bytes(data)
    with pytest.raises((CorruptSegment, WrongSchema)):
        table_of(the_log(archive))


def test_a_segment_of_another_program_is_told(sealed, archive):
    pq.write_table(pa.table({"a": [1]}), sealed)
    pad(sealed, archive)
    with pytest.raises(WrongSchema, match="version 0"):
        positions(the_log(archive))


def test_a_segment_of_a_version_to_come_is_told(sealed, archive):
    table = pq.read_table(sealed).replace_schema_metadata({"tupelo.schema": "4"})
    pq.write_table(table, sealed)
    pad(sealed, archive)
    with pytest.raises(WrongSchema, match="version 4 of the schema, and this Tupelo knows 3"):
        positions(the_log(archive))


OLDER = {1: ["agent_name", "deliveries", "delayed"], 2: ["delayed"]}
"""Versions, and the columns that they have not."""


@pytest.mark.parametrize(("version", "lacking"), OLDER.items())
def test_a_segment_of_an_older_version_is_read_and_continued(
    space, sealed, log, archive, version, lacking
):
    """Its new columns are null, and the next segment has our version."""
    table = pq.read_table(sealed).drop_columns(lacking)
    pq.write_table(table.replace_schema_metadata({"tupelo.schema": str(version)}), sealed)
    pad(sealed, archive)
    change_manifest(archive, lambda said: said.update(schema=version))
    fill(space, 1)
    seal(log, archive)
    columns = ["deliveries", "position"]
    rows = table_of(the_log(archive), columns=columns).to_pylist()
    assert [row["position"] for row in rows] == list(range(1, 1_002))
    assert [row["deliveries"] for row in rows] == [None if version == 1 else 0] * 1_000 + [0]
    assert table_of(the_log(archive), columns=["agent_name", "delayed"]).num_rows == 1_001
    said = json.loads((archive / "host=me/space=jobs" / MANIFEST).read_text())
    assert said["schema"] == 3


def test_a_segment_with_other_columns_is_told(sealed, archive):
    table = pa.table({"position": [1]}).replace_schema_metadata({"tupelo.schema": "1"})
    pq.write_table(table, sealed)
    pad(sealed, archive)
    with pytest.raises(CorruptSegment, match="columns"):
        positions(the_log(archive))


def pad(file: Path, archive: Path) -> None:
    """Let the manifest be of the opinion that the file is as large as it is."""
    change_manifest(archive, lambda said: said["segments"][0].update(bytes=file.stat().st_size))


def change_manifest(archive: Path, change: Callable[[Any], object]) -> None:
    path = archive / "host=me/space=jobs" / MANIFEST
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda said: said.update(schema=4), WrongSchema),
        (lambda said: said.update(sealed=5_000), CorruptSegment),
        (lambda said: said.update(first=2), CorruptSegment),
        (lambda said: said.pop("host"), CorruptSegment),
        (lambda said: said["segments"].pop(), CorruptSegment),
        (lambda said: said["segments"][0].update(rows="many"), CorruptSegment),
        (lambda said: said["segments"][0].update(rows=999), CorruptSegment),
        (lambda said: said["segments"][0].update(file="/elsewhere/1-1000.parquet"), CorruptSegment),
        (
            lambda said: said["segments"][0].update(file="day=2026-11-16/../1-1000.parquet"),
            CorruptSegment,
        ),
        (
            lambda said: said["segments"][0].update(file="day=2026-11-16/1-999.parquet"),
            CorruptSegment,
        ),
        (lambda said: said.update(space="other"), CorruptSegment),
        (lambda said: said.update(host="you"), CorruptSegment),
        (lambda said: said["segments"][0].update(kinds={"written": 999}), CorruptSegment),
        (lambda said: said["segments"][0]["kinds"].update(read=0), CorruptSegment),
        (lambda said: _reach(said, 2**60), CorruptSegment),
    ],
)
def test_a_manifest_that_cannot_be_is_told(sealed, log, archive, change, error):
    change_manifest(archive, change)
    with pytest.raises(error, match=MANIFEST):
        Archive(archive).logs()
    with pytest.raises(error, match=MANIFEST):
        seal(log, archive)


def _reach(said: Any, last: int) -> None:
    day, _ = said["segments"][0]["file"].split("/")
    said["segments"][0].update(last=last, rows=last, file=f"{day}/1-{last}.parquet")
    said["sealed"] = last


def test_a_segment_of_another_log_is_told(sealed, archive, tmp_path):
    path = tmp_path / "other.tupelo"
    with tupelo.Space("other", path=path, agent="me") as space:
        fill(space, 1_000)
    (segment,) = seal(JournalLog(path), tmp_path / "elsewhere")
    (tmp_path / "elsewhere/host=me/space=other" / segment.file).replace(sealed)
    pad(sealed, archive)
    with pytest.raises(CorruptSegment, match="its space is 'other'"):
        positions(the_log(archive))


def test_a_manifest_that_is_no_json_is_told(sealed, archive):
    (archive / "host=me/space=jobs" / MANIFEST).write_text("{")
    with pytest.raises(CorruptSegment, match=MANIFEST):
        Archive(archive).logs()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_segment_that_is_no_file_is_not_opened(sealed, archive, make):
    sealed.unlink()
    make(sealed)
    pad(sealed, archive)
    with pytest.raises(CorruptSegment, match="it is not a file"):
        positions(the_log(archive))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_manifest_that_is_no_file_is_not_opened(sealed, archive, make):
    place = archive / "host=me/space=jobs" / MANIFEST
    place.unlink()
    make(place)
    with pytest.raises(CorruptSegment, match="it is not a file"):
        Archive(archive).logs()


# What is cut short


def test_what_fails_leaves_nothing_half_done(space, log, archive, monkeypatch):
    fill(space, 100)
    seal(log, archive, upto=10)
    before = files_in(archive)

    def refuse(*args):
        raise OSError(28, "no space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(os if name == "fsync" else Path, name, refuse)
            with pytest.raises(PipelineError, match="no space left"):
                seal(log, archive)
        assert files_in(archive) == before
    assert positions(the_log(archive)) == list(range(1, 11))
    seal(log, archive)
    assert positions(the_log(archive)) == list(range(1, 101))


def test_what_a_killed_one_left_is_swept(space, log, archive):
    fill(space, 20)
    seal(log, archive, upto=10)
    place = next(archive.rglob("day=*"))
    for remnant in (".11.new", "11-15.parquet"):
        (place / remnant).write_bytes(b"torn")
    assert positions(the_log(archive)) == list(range(1, 11))
    seal(log, archive)
    assert sorted(file.name for file in place.iterdir()) == ["1-10.parquet", "11-20.parquet"]


def test_two_do_not_seal_one_log_at_once(space, log, archive):
    fill(space, 10)

    class Slow(JournalLog):
        def _read(self, *asked):
            with pytest.raises(PipelineError, match="being sealed by another"):
                seal(log, archive)
            return super()._read(*asked)

    assert len(seal(Slow(log.path), archive)) == 1
    assert positions(the_log(archive)) == list(range(1, 11))


SEALER = """
import sys
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import seal
def told(segment):
    print(segment.last, flush=True)
seal(JournalLog(sys.argv[1]), sys.argv[2], rows_max=500, completed=told)
"""


def test_a_sealer_that_is_killed_leaves_whole_segments(space, log, archive, tmp_path):
    fill(space, 60_000)
    path = tmp_path / "jobs.tupelo"
    last = 0
    for stop in (3, 1, 7):
        sealer = subprocess.Popen(
            [sys.executable, "-c", SEALER, str(path), str(archive)],
            stdout=subprocess.PIPE,
            env=os.environ,
        )
        assert sealer.stdout is not None
        for _ in range(stop):
            last = int(sealer.stdout.readline())
        sealer.send_signal(signal.SIGKILL)
        sealer.wait()
        sealer.stdout.close()
        found = the_log(archive)
        assert found.last >= last
        assert positions(found) == list(range(1, found.last + 1))
    seal(log, archive)
    found = the_log(archive)
    assert table_of(found) == table_of(log)
    named = {f"host=me/space=jobs/{s.file}" for s in found.segments}
    assert {f for f in files_in(archive) if f.endswith(".parquet")} == named
    assert pq.read_schema(archive / min(named)).remove_metadata() == CHANGES


HOSTILE: list[Any] = [0, -1, 2**53, 2**63, 1.5, "", "../../etc/passwd", None, [], {}, "day=0-0-0"]


def test_a_hostile_manifest_is_one_clear_error(space, log, archive):
    """Any value anywhere, and any cut: it is refused, or what it names is read."""
    for _ in range(2):
        fill(space, 3)
        seal(log, archive)
    place = the_log(archive).folder / MANIFEST
    good = place.read_bytes()
    expected = rows(the_log(archive))
    told = 0

    def attempt(text: bytes) -> int:
        place.write_bytes(text)
        try:
            assert rows(the_log(archive)) == expected
        except (CorruptSegment, WrongSchema):
            return 1
        return 0

    def parts(value: Any) -> list[tuple[Any, Any]]:
        pairs = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
        return [(value, key) for key, _ in pairs]

    manifest = json.loads(good)
    for within in (manifest, manifest["segments"], manifest["segments"][1]):
        for holder, key in parts(within):
            before = holder[key]
            for value in HOSTILE:
                holder[key] = value
                told += attempt(json.dumps(manifest).encode())
            holder[key] = before
    told += sum(attempt(good[:count]) for count in range(0, len(good), 50))
    assert told > 100 and attempt(good) == 0


# Compaction


def test_small_segments_are_joined_and_readers_finish(space, log, archive, monkeypatch):
    for _ in range(30):
        fill(space, 5)
        seal(log, archive, rows_max=3)
    before = the_log(archive)
    expected = rows(before)
    opened = before.batches(1, 150)
    first = next(opened)
    made = compact(before, rows_max=64)
    after = the_log(archive)
    assert [segment.rows for segment in after.segments] == [segment.rows for segment in made]
    assert len(before.segments) == 60 and len(made) == 3
    assert rows(after) == expected
    assert sum(batch.num_rows for batch in opened) + first.num_rows == 150
    assert compact(after, rows_max=64) == []
    later = time.time() + REPLACED_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    fill(space, 2)
    seal(log, archive, rows_max=64)
    files = {file.relative_to(after.folder).as_posix() for file in after.folder.rglob("*.parquet")}
    assert files == {segment.file for segment in the_log(archive).segments}
    assert rows(the_log(archive))[:150] == expected
    manifest = load(after.folder)
    assert manifest is not None and manifest.replaced == {}


def test_days_and_large_segments_stay_apart(tmp_path, archive):
    clock = ManualClock(NOON)
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me", clock=clock, durability="process") as space:
        for count in (2, 2, 40, 2, 2):
            fill(space, count)
            seal(JournalLog(path), archive)
        clock.advance(DAY)
        for _ in range(2):
            fill(space, 2)
            seal(JournalLog(path), archive)
    before = rows(the_log(archive))
    compact(the_log(archive), rows_max=64)
    assert [segment.rows for segment in the_log(archive).segments] == [4, 40, 4, 4]
    assert rows(the_log(archive)) == before


def test_a_compaction_that_fails_changes_nothing(space, log, archive):
    for _ in range(3):
        fill(space, 3)
        seal(log, archive)
    sealed = the_log(archive)
    damaged = sealed.folder / sealed.segments[1].file
    damaged.write_bytes(damaged.read_bytes()[:-1])
    manifest = (sealed.folder / MANIFEST).read_bytes()
    with pytest.raises(CorruptSegment):
        compact(sealed)
    assert (sealed.folder / MANIFEST).read_bytes() == manifest
    assert len([*sealed.folder.rglob(".*.new")]) == 0


def rows(log: ArchivedLog) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.Table.from_batches(
        log.batches(*log.bounds()), CHANGES
    ).to_pylist()
    return found
