"""Reading logs as a table, without Spark: which parts are read, by whom, and what of them."""

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

import tupelo
from tupelo.errors import BadArgument, CorruptSegment, LogTrimmed
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import Archive, ArchivedLog, seal
from tupelo.pipeline.schema import COLUMNS
from tupelo.pipeline.source.locations import LogPart
from tupelo.pipeline.source.options import ReadOptions
from tupelo.pipeline.source.reading import TableReader, tasks_of


def reader_of(
    path: Path, *filters: Filter, columns: Sequence[str] = COLUMNS, **options: str
) -> tuple[TableReader, list[Filter]]:
    """A reader that was told of filters, and those that it leaves to Spark."""
    reader = TableReader(
        ReadOptions.read({"path": str(path), "pushdown": "true", **options}), columns
    )
    return reader, list(reader.pushFilters(list(filters)))


def rows_of(reader: TableReader) -> list[dict[str, Any]]:
    """All rows, each task read by a reader that has been to another process."""
    rows = []
    for task in reader.partitions():
        there, task = pickle.loads(pickle.dumps((reader, task)))
        for batch in there.read(task):
            assert batch.num_rows
            rows += batch.to_pylist()
    return rows


def read(path: Path, *filters: Filter, **options: Any) -> list[dict[str, Any]]:
    reader, left = reader_of(path, *filters, **options)
    assert not left
    return rows_of(reader)


def test_without_pushdown_every_filter_is_left_to_spark(tmp_path):
    """Spark would keep it for other uses of the same table."""
    wish = EqualTo(("kind",), "written")
    _, left = reader_of(tmp_path, wish, pushdown="false")
    assert left == [wish]


@pytest.fixture
def path(tmp_path, clock):
    """A log of twelve changes, a second apart; positions 1–8 write, 9–12 take the even ones."""
    file = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=file, clock=clock, agent="me") as space:
        for n in range(8):
            clock.advance(1)
            space.write(("job", n, "odd" if n % 2 else "even"))
        for n in range(0, 8, 2):
            clock.advance(1)
            space.take(("job", n, str))
    return file


def at(clock: Any, position: int) -> datetime:
    return datetime.fromtimestamp(clock.now() - 12 + position, UTC)


def test_all_changes_in_order(path):
    rows = read(path)
    assert [row["position"] for row in rows] == list(range(1, 13))
    assert list(rows[0]) == list(COLUMNS)
    assert rows[8]["fields"] == '["job",0,"even"]' and rows[8]["kind"] == "taken"


def test_columns_come_as_they_are_asked_for(path):
    assert read(path, columns=["kind", "position"])[0] == {"kind": "written", "position": 1}


@pytest.mark.parametrize(
    ("wish", "count"),
    [
        (EqualTo(("kind",), "taken"), 4),
        (Not(EqualTo(("kind",), "taken")), 8),
        (In(("kind",), ("taken", "read")), 4),
        (EqualTo(("position",), 5), 1),
        (GreaterThan(("position",), 5), 7),
        (GreaterThanOrEqual(("position",), 5), 8),
        (LessThan(("position",), 5), 4),
        (LessThanOrEqual(("position",), 5), 5),
        (In(("position",), (2, 4, 99)), 2),
        (Not(In(("position",), (2, 4, 99))), 10),
        (IsNull(("txn",)), 12),
        (IsNotNull(("txn",)), 0),
        (StringStartsWith(("fields",), '["job",3'), 1),
        (StringEndsWith(("shape",), "str)"), 12),
        (StringContains(("fields",), "even"), 8),
        (EqualTo(("host",), "me"), 12),
        (EqualTo(("host",), "you"), 0),
        (Not(EqualTo(("host",), "me")), 0),
        (In(("space",), ("jobs", "notes")), 12),
        (EqualTo(("space",), "notes"), 0),
        (Not(EqualTo(("to",), "someone")), 0),  # null is not known not to be
    ],
)
def test_filters_are_kept_to(path, wish, count):
    assert len(read(path, wish)) == count


def test_times_are_compared_with_and_without_a_zone(path, clock):
    moment = at(clock, 5)
    assert len(read(path, LessThanOrEqual(("time",), moment))) == 5
    assert len(read(path, GreaterThan(("time",), moment.replace(tzinfo=None)))) == 7


def test_several_filters_hold_together(path):
    wishes = [EqualTo(("kind",), "written"), GreaterThan(("position",), 3)]
    assert [r["position"] for r in read(path, *wishes, columns=["position", "kind"])] == [
        *range(4, 9)
    ]
    assert read(path, EqualTo(("kind",), "read"), EqualTo(("kind",), "taken")) == []


def test_what_would_not_be_the_same_is_left_to_spark(path):
    filters = [
        GreaterThan(("waited",), 0.5),  # NaN is the greatest number for Spark
        EqualTo(("f", "name"), "x"),
        EqualTo(("payload",), b""),
        In(("kind",), ("taken", None)),
        EqualTo(("position",), "5"),
        EqualTo(("position",), 2**70),
        EqualTo(("kind",), None),
    ]
    reader, left = reader_of(path, *filters)
    assert left == filters and len(rows_of(reader)) == 12


def test_kinds_and_templates_by_option(path):
    assert [r["position"] for r in read(path, kinds="taken, moved")] == [9, 10, 11, 12]
    assert {r["arrival"] for r in read(path, template='("job", Between(1, 4), ANY)')} == {
        2,
        3,
        4,
        5,
    }
    both = read(path, template='("job", int, "even")', kinds="written", columns=["n"])
    assert [row["n"] for row in both] == [1, 3, 5, 7]


def test_kinds_by_option_hold_whatever_is_asked_of_the_kind_besides(path):
    for wish in (IsNotNull(("kind",)), Not(EqualTo(("kind",), "read"))):
        assert {r["kind"] for r in read(path, wish, kinds="written")} == {"written"}
    assert read(path, EqualTo(("kind",), "taken"), kinds="written") == []


def test_typed_columns(path):
    rows = read(path, columns=["f"], entry="what string, number long, parity string")
    assert rows[3]["f"] == {"what": "job", "number": 3, "parity": "odd"}


# Tasks


def test_a_log_is_cut_into_tasks(path):
    reader, _ = reader_of(path, partitions="3")
    tasks = reader.partitions()
    assert [[(p.first, p.last) for p in task.parts] for task in tasks] == [
        [(1, 4)],
        [(5, 8)],
        [(9, 12)],
    ]
    assert len(rows_of(reader)) == 12


def test_short_logs_go_together_and_cuts_are_always_the_same(path):
    log = JournalLog(path)
    parts = [LogPart(log, 1, 2), LogPart(log, 3, 11), LogPart(log, 12, 12)]
    tasks = [[(p.first, p.last) for p in task.parts] for task in tasks_of(parts, 5)]
    assert tasks == [[(1, 2), (3, 5)], [(6, 10)], [(11, 11), (12, 12)]]
    assert tasks_of([], 5) == []


def test_an_empty_log_is_an_empty_table(tmp_path):
    tupelo.Space("jobs", path=tmp_path / "jobs.tupelo").close()
    assert read(tmp_path / "jobs.tupelo") == []


# Segments


@pytest.fixture
def archive(path, tmp_path):
    """The same log, sealed in segments of three."""
    seal(JournalLog(path), tmp_path / "archive", rows_max=3)
    return tmp_path / "archive"


def parts_read(archive: Path, *filters: Filter, **options: str) -> list[tuple[int, int]]:
    reader, _ = reader_of(archive, *filters, **options)
    return [(p.first, p.last) for task in reader.partitions() for p in task.parts]


def test_only_segments_that_can_hold_what_is_wanted_are_read(archive, clock):
    assert parts_read(archive) == [(1, 3), (4, 6), (7, 9), (10, 12)]
    assert parts_read(archive, EqualTo(("kind",), "taken")) == [(7, 9), (10, 12)]
    assert parts_read(archive, kinds="taken") == [(7, 9), (10, 12)]
    assert parts_read(archive, GreaterThanOrEqual(("position",), 5)) == [(5, 6), (7, 9), (10, 12)]
    assert parts_read(archive, LessThan(("time",), at(clock, 5))) == [(1, 3), (4, 6)]
    assert parts_read(archive, GreaterThan(("time",), at(clock, 9))) == [(7, 9), (10, 12)]
    assert parts_read(archive, EqualTo(("host",), "you")) == []
    assert len(read(archive, GreaterThan(("time",), at(clock, 9)))) == 3


def test_one_host_of_fifty_is_read_and_no_other(tmp_path):
    for number in range(50):
        file = tmp_path / f"{number}.tupelo"
        with tupelo.Space("jobs", path=file, agent=f"host {number}", durability="none") as space:
            space.write_all([("job", n) for n in range(20)])
        seal(JournalLog(file), tmp_path / "archive")
    reader, left = reader_of(tmp_path / "archive", EqualTo(("host",), "host 7"))
    parts = [part for task in reader.partitions() for part in task.parts]
    read = sum(segment.bytes for part in parts for segment in getattr(part.log, "segments", []))
    there = sum(s.bytes for log in Archive(tmp_path / "archive").logs() for s in log.segments)
    assert not left and 0 < read <= 0.05 * there
    assert [row["host"] for row in rows_of(reader)] == ["host 7"] * 20


def test_a_task_is_told_of_no_more_segments_than_it_reads(archive):
    reader, _ = reader_of(archive)
    for task in reader.partitions():
        for part in task.parts:
            assert isinstance(part.log, ArchivedLog)
            assert [(s.first, s.last) for s in part.log.segments] == [(part.first, part.last)]


def test_what_is_sealed_and_what_is_not_are_one_table(path, archive):
    with tupelo.Space(path=path) as space:
        space.write(("job", 100, "new"))
        rows = read(path, archive=str(archive))
        assert [row["position"] for row in rows] == list(range(1, 14))
        assert len(read(path, EqualTo(("kind",), "written"), archive=str(archive))) == 9


def test_a_corrupt_segment_is_named(archive):
    (log,) = Archive(archive).logs()
    file = log.folder / log.segments[1].file
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(CorruptSegment, match=file.name):
        read(archive)


# The entries of a moment


def entries(path: Path, **options: str) -> list[str]:
    return sorted(row["fields"] for row in read(path, columns=["fields"], **options))


def test_the_entries_at_a_position(path, archive, clock):
    evens = [f'["job",{n},"even"]' for n in (0, 2, 4, 6)]
    odds = [f'["job",{n},"odd"]' for n in (1, 3, 5, 7)]
    for where in (path, archive):
        assert entries(where, asOf="0") == []
        assert entries(where, asOf="3") == sorted([evens[0], odds[0], evens[1]])
        assert entries(where, asOf="8") == sorted(evens + odds)
        assert entries(where, asOf="10") == sorted(evens[2:] + odds)
        assert entries(where, asOf="12") == odds
        moment = at(clock, 10)
        assert entries(where, asOf=moment.isoformat()) == sorted(evens[2:] + odds)
        assert entries(where, asOf=(moment - timedelta(days=9)).isoformat()) == []
        assert entries(where, asOf="2300-01-01", template='("job", Between(0, 3), ANY)') == odds[:2]
        with pytest.raises(BadArgument, match="at most 12"):
            read(where, asOf="13")


def test_a_delayed_entry_is_there_once_it_is_visible(tmp_path, clock):
    file = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=file, clock=clock) as space:
        lease = space.write(("late",), delay=10)  # 1
        lease.renew(100)  # 2
        space.write(("now",))  # 3
        clock.advance(10)
        assert space.count() == 2  # 4
    assert entries(file, asOf="3") == ['["now"]']
    assert entries(file, asOf="4") == ['["late"]', '["now"]']
    assert [row["kind"] for row in read(file)] == ["delayed", "renewed", "written", "written"]
    assert {row["fields"] for row in read(file)} == {'["late"]', '["now"]'}


def test_leases_and_returns_count_as_they_were_then(tmp_path, clock):
    file = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=file, clock=clock) as space:
        start = clock.now()
        lease = space.write(("short",), lease=10)  # 1
        space.write(("long",))  # 2
        clock.advance(5)
        lease.renew(20)  # 3: it ends 25 seconds after the start
        clock.advance(60)
        space.write(("later",))  # 4, or 5, for the end of the lease is noticed now

        def there(seconds: int) -> list[str]:
            moment = datetime.fromtimestamp(start + seconds, UTC).isoformat()
            return entries(file, asOf=moment)

        assert there(0) == there(24) == ['["long"]', '["short"]']
        assert there(26) == ['["long"]']  # though nobody had noticed yet
        assert there(65) == ['["later"]', '["long"]']
        assert lease_of("short", read(file, asOf="2")) == start + 10
        assert lease_of("short", read(file, asOf="3")) == start + 25
        assert lease_of("short", read(file, kinds="written")) == start + 10  # as when it was sealed


def lease_of(name: str, rows: list[dict[str, Any]]) -> float:
    (expires,) = (row["expires"] for row in rows if row["fields"] == f'["{name}"]')
    seconds: float = expires.timestamp()
    return seconds


def test_leases_from_before_the_log_begins_count_as_they_were_when_it_begins(tmp_path, clock):
    file = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=file, clock=clock) as space:
        start = clock.now()
        lease = space.write(("short",), lease=10)  # 1
        for seconds in (20, 40, 80):  # 2, 3, 4
            lease.renew(seconds)
        space.trim(before=4)
        assert lease_of("short", read(file, asOf="3")) == start + 40
        assert lease_of("short", read(file, asOf="4")) == start + 80


def test_what_was_there_before_the_log_begins_is_known_to_the_file(path):
    with tupelo.Space(path=path) as space:
        space.trim(before=10)
        assert entries(path, asOf="12") == [f'["job",{n},"odd"]' for n in (1, 3, 5, 7)]
        assert len(entries(path, asOf="9")) == 7
        with pytest.raises(LogTrimmed):
            read(path, asOf="7")


def test_a_time_before_the_log_begins_is_refused(path, clock):
    with tupelo.Space(path=path, clock=clock) as space:
        space.trim(before=10)
        assert len(entries(path, asOf=at(clock, 10).isoformat())) == 6
        for moment in (at(clock, 10) - timedelta(microseconds=1), at(clock, 1)):
            with pytest.raises(LogTrimmed, match="begins at 10, with what happened at"):
                read(path, asOf=moment.isoformat())
        space.trim(before=13)
        with pytest.raises(LogTrimmed, match="nothing has happened since"):
            read(path, asOf="2300-01-01")
        assert len(entries(path, asOf="12")) == 4


def test_a_position_is_of_one_log(tmp_path):
    for name in ("a", "b"):
        with tupelo.Space(name, path=tmp_path / f"{name}.tupelo") as space:
            space.write((name,))
    with pytest.raises(BadArgument, match="several"):
        read(tmp_path, asOf="1")
    assert entries(tmp_path, asOf="2300-01-01") == ['["a"]', '["b"]']
