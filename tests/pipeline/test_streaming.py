"""Reading logs as streams, without Spark: offsets, and which rows are between them."""

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tupelo
from tests.federation.company import Company, port_number
from tupelo.errors import BadArgument, CannotReach, LogTrimmed, PipelineError
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import seal
from tupelo.pipeline.source.options import ReadOptions
from tupelo.pipeline.source.streaming import Offset, StreamReader

ALL = ReadAllAvailable()


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


def stream(*paths: Any, **options: str) -> StreamReader:
    given = {"paths": json.dumps([str(path) for path in paths]), **options}
    return StreamReader(ReadOptions.read(given), ["host", "space", "position"])


def after(offset: Offset) -> Offset:
    """An offset as a checkpoint keeps it."""
    kept: Offset = json.loads(json.dumps(offset))
    return kept


def between(reader: StreamReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    """(space, position) of the rows between two offsets."""
    found = []
    for task in reader.partitions(after(start), after(end)):
        there, task = pickle.loads(pickle.dumps((reader, task)))
        for batch in there.read(task):
            rows = batch.to_pylist()
            found += [(row["space"], row["position"]) for row in rows]
    return found


def fill(space: tupelo.Space, count: int) -> None:
    space.write_all([("job", n) for n in range(count)])


def test_every_change_once_and_in_order(tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        reader = stream(tmp_path / "jobs.tupelo")
        offset, seen = reader.initialOffset(), []
        for count in (3, 0, 4):
            if count:
                fill(space, count)
            end = reader.latestOffset(after(offset), ALL)
            assert (end == offset) == (count == 0)
            seen += between(reader, offset, end)
            offset = end
        assert seen == [("jobs", n) for n in range(1, 8)]
        assert between(reader, offset, offset) == []


def test_a_batch_that_is_read_again_has_the_same_rows(tmp_path):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path) as space:
        fill(space, 5)
        end = stream(path).latestOffset({}, ALL)
        before = between(stream(path), {}, end)
        fill(space, 5)
        seal(JournalLog(path), tmp_path / "archive")
        space.trim(before=4)
        with pytest.raises(LogTrimmed, match="begins at 4"):
            between(stream(path), {}, end)
        again = stream(path, archive=str(tmp_path / "archive"))
        assert between(again, {}, end) == before
        tasks = [[(p.first, p.last) for p in t.parts] for t in again.partitions({}, end)]
        assert tasks == [[(1, 5)]]


def test_from_the_latest_on(tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", agent="me") as space:
        fill(space, 5)
        reader = stream(tmp_path, startFrom="latest")
        start = reader.initialOffset()
        fill(space, 2)
        with tupelo.Space("notes", path=tmp_path / "notes.tupelo", agent="me") as notes:
            fill(notes, 1)  # A log that comes later is read from its beginning.
            end = reader.latestOffset(after(start), ALL)
            assert between(reader, start, end) == [("jobs", 6), ("jobs", 7), ("notes", 1)]


def test_no_more_rows_than_asked_for_and_each_log_gets_its_share(tmp_path):
    with (
        tupelo.Space("a", path=tmp_path / "a.tupelo", agent="x") as a,
        tupelo.Space("b", path=tmp_path / "b.tupelo", agent="x") as b,
        tupelo.Space("c", path=tmp_path / "c.tupelo", agent="x") as c,
    ):
        fill(a, 100)
        fill(b, 3)
        fill(c, 40)
        reader = stream(tmp_path)
        offset: Offset = {}
        seen: list[Any] = []
        sizes = []
        while (end := reader.latestOffset(after(offset), ReadMaxRows(30))) != offset:
            rows = between(reader, offset, end)
            sizes.append({name: sum(s == name for s, _ in rows) for name in "abc"})
            seen += rows
            offset = end
        assert sizes[0] == {"a": 14, "b": 3, "c": 13}
        assert [sum(size.values()) for size in sizes] == [30, 30, 30, 30, 23]
        assert len(set(seen)) == len(seen) == 143
        assert reader.latestOffset({}, ReadMaxRows(2)).keys() == {"x/a", "x/b"}


def test_the_first_batch_from_the_latest_on_can_be_read_again(tmp_path):
    """Spark asks for its start again: by then the latest is later."""
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        fill(space, 6)
        start = stream(tmp_path, startFrom="latest").initialOffset()
        fill(space, 3)
        end = stream(tmp_path).latestOffset(after(start), ALL)
        fill(space, 4)
        reader = stream(tmp_path, startFrom="latest")
        again = between(reader, reader.initialOffset(), end)
        assert again == [("jobs", 7), ("jobs", 8), ("jobs", 9)]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_no_log_waits_for_ever_for_a_busy_one(tmp_path, rows):
    names = ["a", "b", "c", "d"]
    for name in names:
        with tupelo.Space(name, path=tmp_path / f"{name}.tupelo", agent="x") as space:
            fill(space, 50)
    reader = stream(tmp_path)
    offset: Offset = {}
    for _ in range(12):
        offset = reader.latestOffset(after(offset), ReadMaxRows(rows))
    read = [offset[f"x/{name}"]["upto"] for name in names]
    assert read == [12 * rows / 4] * 4


def test_only_what_there_is_now(tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        fill(space, 5)
        reader = stream(tmp_path, maxRows="2")
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(2)
        reader.prepareForTriggerAvailableNow()
        fill(space, 5)
        with tupelo.Space("notes", path=tmp_path / "notes.tupelo") as notes:
            fill(notes, 5)
            offset: Offset = {}
            batches = []
            while (end := reader.latestOffset(after(offset), limit)) != offset:
                batches.append(between(reader, offset, end))
                offset = end
            rows = [row for batch in batches for row in batch]
            assert rows == [("jobs", n) for n in range(1, 6)]
            assert [len(batch) for batch in batches] == [2, 2, 1]
            # The next run takes up where this one ended.
            reader = stream(tmp_path)
            reader.prepareForTriggerAvailableNow()
            end = reader.latestOffset(after(offset), ALL)
            assert len(between(reader, offset, end)) == 10


def test_what_was_trimmed_before_it_was_read_is_an_error_that_names_it(tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", agent="me") as space:
        fill(space, 5)
        reader = stream(tmp_path)
        offset = reader.latestOffset({}, ALL)
        fill(space, 5)
        space.trim(before=9)
        with pytest.raises(LogTrimmed, match=r"me/jobs was read up to 5, but it begins at 9"):
            reader.latestOffset(after(offset), ALL)
        reader = stream(tmp_path)
        reader.prepareForTriggerAvailableNow()
        with pytest.raises(LogTrimmed):
            reader.latestOffset(after(offset), ALL)
        # A query that begins now begins with what is there.
        end = stream(tmp_path).latestOffset({}, ALL)
        assert between(stream(tmp_path), {}, end) == [("jobs", 9), ("jobs", 10)]


def test_trimming_what_was_read_harms_nobody(tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        fill(space, 5)
        reader = stream(tmp_path)
        offset = reader.latestOffset({}, ALL)
        space.trim(before=6)
        assert reader.latestOffset(after(offset), ALL) == offset
        fill(space, 1)
        end = reader.latestOffset(after(offset), ALL)
        assert between(reader, offset, end) == [("jobs", 6)]


def test_a_log_that_was_made_anew_is_not_taken_for_the_old_one(tmp_path):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 5)
        offset = stream(path).latestOffset({}, ALL)
    path.unlink()
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 9)
        with pytest.raises(PipelineError, match="made anew"):
            stream(path).latestOffset(after(offset), ALL)
        with pytest.raises(PipelineError, match="made anew"):
            stream(path).partitions({}, after(offset))


def test_a_log_made_anew_that_is_shorter_is_noticed_by_who_takes_what_there_is(
    tmp_path,
):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 5)
        offset = stream(path).latestOffset({}, ALL)
    path.unlink()
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 2)
        reader = stream(path)
        reader.prepareForTriggerAvailableNow()
        with pytest.raises(PipelineError, match="made anew"):
            reader.latestOffset(after(offset), ALL)


def test_a_log_that_lost_what_was_read_is_an_error(tmp_path):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 2)
    older = path.read_bytes()
    with tupelo.Space("jobs", path=path, agent="me") as space:
        fill(space, 3)
    offset = stream(path).latestOffset({}, ALL)
    path.write_bytes(older)
    at_once = stream(path)
    at_once.prepareForTriggerAvailableNow()
    for reader in (stream(path), at_once):
        with pytest.raises(PipelineError, match="was read up to 5, but it ends at 2"):
            reader.latestOffset(after(offset), ALL)


def test_a_stream_has_no_moment(tmp_path):
    with pytest.raises(BadArgument, match="asOf"):
        stream(tmp_path, asOf="3")


def test_hosts_that_join_and_leave(tmp_path, company, until):
    ada = company.host("ada", path=tmp_path / "ada")
    ada.space("jobs").write(("job", 1))
    reader = stream(ada.url + "jobs", federation="true", reconnect="0")
    first = reader.latestOffset({}, ALL)
    assert len(between(reader, {}, first)) == 1
    ben = company.child("ben", path=str(tmp_path / "ben"), peers=[ada.address])
    until(lambda: ben.id in hosts(ada))
    there = tupelo.connect(f"tupelo://{ben.address}/jobs")
    there.write_all([("job", n) for n in range(3)])
    there.close()
    second = reader.latestOffset(after(first), ALL)
    assert [p for _, p in between(reader, first, second)] == [1, 2, 3]
    ben.kill()
    until(lambda: ben.id not in hosts(ada))
    ada.space("jobs").write(("job", 2))
    third = reader.latestOffset(after(second), ALL)
    assert [p for _, p in between(reader, second, third)] == [2]
    gone = [name for name in third if name.startswith(ben.id)]
    assert [third[name]["upto"] for name in gone] == [3]
    with pytest.raises(PipelineError, match=f"{ben.id}/jobs cannot be found"):
        reader.partitions(after(first), after(second))


def hosts(host: tupelo.Host) -> set[str]:
    engaged = host.presence.read_all(tupelo.HostPresence(state="engaged"))
    return {found.id for found in engaged if found.id is not None}


def test_a_host_that_is_away_for_a_moment_is_waited_for(tmp_path, company, later):
    """By who plans a batch, and by who reads it."""
    child = company.child("kitchen", path=str(tmp_path))
    child.do("write", ["job", 1], ["job", 2])
    reader = stream(f"tupelo://{child.address}/jobs", reconnect="20")
    end = reader.latestOffset({}, ALL)
    (task,) = reader.partitions({}, after(end))
    child.kill()
    planning = later(reader.partitions, {}, after(end))
    reading = later(lambda: [row for batch in reader.read(task) for row in batch.to_pylist()])
    company.child("kitchen", path=str(tmp_path), listen=port_number(child.address))
    assert len(planning.result()) == 1
    assert [row["position"] for row in reading.result()] == [1, 2]


def test_a_host_must_be_met_once_and_may_be_away_later(tmp_path, company):
    child = company.child("kitchen", path=str(tmp_path))
    url = f"tupelo://{child.address}/jobs"
    there = tupelo.connect(url)
    there.write(("job", 1))
    there.close()
    reader = stream(url)
    offset = reader.latestOffset({}, ALL)
    child.kill()
    assert reader.latestOffset(after(offset), ALL) == offset
    with pytest.raises(CannotReach):
        stream(url).latestOffset(after(offset), ALL)
