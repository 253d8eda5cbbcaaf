"""What a path or an address stands for, and that no change is read twice or left out."""

import json
import pickle
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import tupelo
from tests.federation.company import Company
from tupelo.errors import (
    BadArgument,
    CannotReach,
    LogTrimmed,
    PeerLost,
    PipelineError,
    WrongPassword,
)
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.identity.access import Access
from tupelo.federation.links import wire
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.commands.pipeline import changes_in
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.log import Log
from tupelo.pipeline.logs.segments import seal
from tupelo.pipeline.reports.names import names_of
from tupelo.pipeline.schema import COLUMNS
from tupelo.pipeline.source.filters import RowFilter
from tupelo.pipeline.source.living import living
from tupelo.pipeline.source.locations import JoinedLog, LogPart, by_name, name_of, resolve
from tupelo.pipeline.source.options import ReadOptions
from tupelo.pipeline.source.reading import TASKS_MAX, Rows, TableReader, parts_of, tasks_of
from tupelo.space.dual_api import run_sync


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


def logs_at(*paths: Any, **options: str) -> list[Log]:
    return resolve(ReadOptions.read({"paths": json.dumps([str(p) for p in paths]), **options}))


def positions(log: Log, first: int | None = None, last: int | None = None) -> list[int]:
    """The positions that are read, from a log that has been to another process."""
    low, high = log.bounds()
    log = pickle.loads(pickle.dumps(log))
    found = log.batches(first or low, last or high, ["position", "fields"])
    return [n for batch in found for n in batch.column("position").to_pylist()]


def test_a_file_is_one_log(tmp_path):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo") as space:
        space.write_all([("job", n) for n in range(5)])
        (log,) = logs_at(tmp_path / "jobs.tupelo")  # though it is open
        assert (log.space, positions(log)) == ("jobs", [1, 2, 3, 4, 5])


def test_a_folder_of_a_host_is_its_spaces(tmp_path):
    with tupelo.Host("kitchen", path=tmp_path) as host:
        for name in ("jobs", "a/b"):
            host.space(name).write(("job", 1))
        logs = logs_at(tmp_path)
        assert {log.host for log in logs} == {host.id}
        assert {"jobs", "a/b"} <= {log.space for log in logs} <= {"jobs", "a/b", PRESENCE}
        assert [log.space for log in logs_at(tmp_path, space="jobs, x")] == ["jobs"]


def test_an_archive_is_every_log_that_is_sealed_there(tmp_path):
    for name in ("jobs", "notes"):
        path = tmp_path / f"{name}.tupelo"
        with tupelo.Space(name, path=path) as space:
            space.write_all([(name, n) for n in range(3)])
        seal(logs_at(path)[0], tmp_path / "archive")
    logs = logs_at(tmp_path / "archive")
    assert sorted(log.space for log in logs) == ["jobs", "notes"]
    assert [positions(log) for log in logs] == [[1, 2, 3]] * 2
    (one,) = logs_at(tmp_path / "archive", host=f"x, {logs[0].host}")
    assert name_of(one) == name_of(logs[0])
    assert logs_at(tmp_path / "archive", host="x") == []


def test_what_is_nothing_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "nowhere", tmp_path / "empty"):
        with pytest.raises(BadArgument, match="path"):
            logs_at(path)
    with pytest.raises(BadArgument, match="path"):
        ReadOptions.read({})
    with tupelo.Space(path=tmp_path / "jobs.tupelo"):
        with pytest.raises(BadArgument, match="archive"):
            logs_at(tmp_path / "jobs.tupelo", archive=str(tmp_path / "nowhere"))
        with pytest.raises(BadArgument, match="federation"):
            logs_at(tmp_path / "jobs.tupelo", federation="true")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("columns", "kind,color"), ("partitions", "0"), ("maxRows", "-1"), ("rowsPerTask", "x")],
        *[("federation", "maybe"), ("asOf", "yesterday"), ("startFrom", "12"), ("colour", "red")],
        *[("entry", "name text"), ("tls", "perhaps"), ("asOf", "5" * 5_000)],
        *[("paths", "nonsense"), ("paths", '"ab"'), ("paths", "[1]"), ("paths", "[" * 100_000)],
        *[("after", "[]"), ("after", '{"a/b": 1' + "0" * 5_000 + "}"), ("maxRows", "5" * 5_000)],
    ],
)
def test_an_option_that_says_nothing_is_refused_by_its_name(option, value):
    with pytest.raises(BadArgument, match=option):
        ReadOptions.read({"path": "x", option: value})


# Archive and tail


def test_the_past_from_the_archive_and_the_tail_from_the_file(tmp_path):
    path, archive = tmp_path / "jobs.tupelo", tmp_path / "archive"
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("job", n) for n in range(10)])
        seal(logs_at(path)[0], archive, rows_max=4)
        space.trim(before=8)
        space.write_all([("job", n) for n in range(5)])
        (log,) = logs_at(path, archive=str(archive))
        assert log.bounds() == (1, 15)
        assert positions(log) == list(range(1, 16))
        assert positions(log, 3, 12) == list(range(3, 13))


def test_what_is_trimmed_while_it_is_read_is_read_from_the_archive(tmp_path):
    path, archive = tmp_path / "jobs.tupelo", tmp_path / "archive"
    archive.mkdir()
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("job", n) for n in range(20_000)])
        (log,) = logs_at(path, archive=str(archive))
        batches = log.batches(1, 20_000, ["position"])
        found = next(batches).column("position").to_pylist()
        assert len(found) < 20_000
        seal(logs_at(path)[0], archive)
        space.trim(before=20_001)
        for batch in batches:
            found += batch.column("position").to_pylist()
        assert found == list(range(1, 20_001))


def test_a_gap_between_archive_and_tail_is_an_error(tmp_path):
    path, archive = tmp_path / "jobs.tupelo", tmp_path / "archive"
    with tupelo.Space("jobs", path=path) as space:
        space.write_all([("job", n) for n in range(10)])
        seal(logs_at(path)[0], archive, upto=4)
        space.trim(before=8)
        (log,) = logs_at(path, archive=str(archive))
        with pytest.raises(LogTrimmed) as caught:
            positions(log)
        assert caught.value.first == 8
        assert positions(log, 8) == [8, 9, 10]


def test_the_archive_of_another_log_of_the_same_name_is_refused(tmp_path):
    path, archive = tmp_path / "jobs.tupelo", tmp_path / "archive"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        space.write(("job", 1))
        seal(logs_at(path)[0], archive)
    path.unlink()
    with tupelo.Space("jobs", path=path, agent="me") as space:
        space.write(("job", 1))
        (log,) = logs_at(path, archive=str(archive))
        assert isinstance(log, JoinedLog)
        with pytest.raises(PipelineError, match="another log"):
            log.bounds()


# After a position


def read_after(path: Path, **options: str) -> list[int]:
    reader = TableReader(ReadOptions.read({"path": str(path), **options}), ["position"])
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [n for batch in batches for n in batch.column("position").to_pylist()]


def test_what_was_trimmed_after_a_position_is_an_error(tmp_path):
    path, archive = tmp_path / "jobs.tupelo", tmp_path / "archive"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        space.write_all([("job", n) for n in range(7)])
        seal(JournalLog(path), archive)
        space.trim(before=5)
    assert read_after(path, after='{"me/jobs": 4}') == [5, 6, 7]
    assert read_after(path, after='{"me/jobs": 7}') == []
    with pytest.raises(LogTrimmed, match="me/jobs was asked for after 1, but it begins at 5"):
        read_after(path, after='{"me/jobs": 1}')
    assert read_after(path, after='{"me/jobs": 1}', archive=str(archive)) == [2, 3, 4, 5, 6, 7]


def test_a_position_of_no_log_is_refused(tmp_path):
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        space.write(("job", 1))
    with pytest.raises(BadArgument, match="me/jbos"):
        read_after(path, after='{"me/jobs": 0, "me/jbos": 6}')


class Boasting(Log):
    """A log that says what it likes of itself."""

    host, space, id = "me", "jobs", "x"

    def __init__(self, first: int, last: int) -> None:
        self._bounds = first, last

    def bounds(self) -> tuple[int, int]:
        return self._bounds


@pytest.mark.parametrize("bounds", [(1, 2**62), (5, 3), (0, 4), (-(2**63), 2**63 - 1)])
@pytest.mark.parametrize(
    "use",
    [
        lambda log: parts_of(log, RowFilter()),
        lambda log: [*living(log, "now", COLUMNS, None)],
        lambda log: names_of([log]),
        lambda log: changes_in([log]),
    ],
)
def test_bounds_that_cannot_be_are_refused(bounds, use):
    with pytest.raises(PipelineError, match="says that it goes from"):
        use(Boasting(*bounds))


def test_however_long_logs_are_the_tasks_are_not_too_many():
    parts = [LogPart(log, *log.bounds()) for log in (Boasting(1, 2**52), Boasting(1, 7))]
    tasks = tasks_of(parts, 1_000)
    assert len(tasks) <= TASKS_MAX
    assert sum(part.rows for task in tasks for part in task.parts) == 2**52 + 7


# Several of one name


def made_anew(tmp_path: Path, *counts: int) -> list[Any]:
    """Archives of logs of one host and name, each made after the one before it was removed; the
    file of the last is left."""
    path, archives = tmp_path / "jobs.tupelo", []
    for number, count in enumerate(counts):
        path.unlink(missing_ok=True)
        with tupelo.Space("jobs", path=path, agent="me") as space:
            space.write_all([("job", n) for n in range(count)])
        archives.append(tmp_path / f"archive{number}")
        seal(JournalLog(path), archives[-1])
    return archives


def test_two_logs_of_one_name_are_both_read(tmp_path):
    old, new = made_anew(tmp_path, 3, 5)
    counts = sorted(len(positions(log)) for log in logs_at(old, new))
    assert counts == [3, 5]
    with pytest.raises(PipelineError, match="several logs me/jobs"):
        by_name(logs_at(old, new))


def test_an_archive_and_the_file_of_its_log_are_one_log_in_any_order(tmp_path):
    (archive,) = made_anew(tmp_path, 5)
    path = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=path, agent="me") as space:
        space.write_all([("job", n) for n in range(4)])
        space.trim(before=5)
    for paths in ([archive, path], [path, archive], [path, archive, path, archive]):
        (log,) = logs_at(*paths)
        assert positions(log) == list(range(1, 10))


def test_what_is_sealed_twice_is_not_read_twice(tmp_path):
    (archive,) = made_anew(tmp_path, 5)
    seal(JournalLog(tmp_path / "jobs.tupelo"), tmp_path / "other", upto=2)
    with pytest.raises(PipelineError, match="read it from one of them"):
        logs_at(archive, tmp_path / "other")


def test_an_archive_in_the_folder_of_its_host_does_not_hide_what_lives(tmp_path):
    with tupelo.Host("kitchen", path=tmp_path) as host:
        jobs = host.space("jobs")
        jobs.write_all([("job", n) for n in range(6)])
        seal(JournalLog(tmp_path / "jobs.tupelo"), tmp_path)
        jobs.write_all([("job", n) for n in range(3)])
        host.space("other").write(("job", 1))
        (log,) = logs_at(tmp_path, space="jobs")
        assert positions(log) == list(range(1, 10))
        (log,) = logs_at(tmp_path, space="other")
        assert positions(log) == [1]


# Hosts


def test_a_host_is_read_at_its_address_as_in_its_folder(tmp_path, company):
    host = company.host("kitchen", path=tmp_path, space=False)
    jobs = host.space("jobs")
    jobs.write_all([("job", n) for n in range(50)], lease=3600)
    jobs.take(("job", 7))
    jobs.write(("for you",), to="someone")
    (there,) = logs_at(host.url + "jobs")
    (here,) = logs_at(tmp_path, space="jobs")
    assert (there.host, there.space, there.id) == (here.host, here.space, here.id)
    assert name_of(there) == name_of(here) and there.bounds() == here.bounds() == (1, 52)
    by_address = [row for b in there.batches(1, 52) for row in b.to_pylist()]
    by_path = [row for b in here.batches(1, 52) for row in b.to_pylist()]
    assert by_address == by_path
    everything = {log.space for log in logs_at(host.url)}
    assert "jobs" in everything and "tupelo.decisions" not in everything


def test_large_entries_come_in_several_answers(tmp_path, company):
    host = company.host("kitchen", path=tmp_path)
    host.space("jobs").write_all([(bytes(1_000_000), n) for n in range(30)])
    (log,) = logs_at(host.url + "jobs")
    assert positions(log) == list(range(1, 31))


@pytest.mark.parametrize("kept", ["memory", "file"])
def test_who_asks_for_what_cannot_be_is_told_so(tmp_path, company, kept):
    options = {"log_keep": 10} if kept == "memory" else {"path": tmp_path / "jobs.tupelo"}
    host = company.host("kitchen", space=False)
    host.space("jobs", **options).write(("job", 1))
    with tupelo.connect(host.url + "jobs") as jobs:

        def ask(names: list[str], first: int, last: int) -> Any:
            return run_sync(
                partial(cast(RemoteSpace, jobs).ask, wire.ReadLog(0, "jobs", names, first, last))
            )

        with pytest.raises(BadArgument, match="names"):
            ask(["position; DROP TABLE change"], 1, 1)
        for first, last in [(2, 1), (2, 2**64 - 1), (2**64 - 1, 2**64 - 1), (5, -(2**63))]:
            assert [list(column) for column in ask(["kind"], first, last)[4]] == [[]]
        with pytest.raises(LogTrimmed):
            ask(["kind"], -5, 1)
        assert ask(["kind"], 1, 2**64 - 1)[2:] == [1, 1, [["written"]]]


def test_a_log_in_memory_is_read_too(company):
    host = company.host("kitchen", space=False)
    jobs = host.space("jobs", log_keep=10)
    jobs.write_all([("job", n) for n in range(25)])
    host.space("silent")
    (log,) = logs_at(host.url)
    assert (log.space, log.bounds(), positions(log)) == ("jobs", (16, 25), list(range(16, 26)))
    with pytest.raises(LogTrimmed, match="begins at 16"):
        positions(log, 3)
    with pytest.raises(LogTrimmed, match="keeps no log"):
        logs_at(host.url + "silent")


def test_a_space_that_refuses_us_is_not_left_out_silently(company):
    host = company.host("kitchen", space=False)
    host.space("jobs", log_keep=10).write(("job", 1))
    host.space("secret", log_keep=10, access=Access(password="x")).write(("job", 1))
    for given in ({}, {"password": "no"}):
        with pytest.raises(WrongPassword, match="secret"):
            logs_at(host.url, **given)
    assert [log.space for log in logs_at(host.url, space="jobs")] == ["jobs"]
    assert [log.space for log in logs_at(host.url, password="x")] == ["jobs", "secret"]


def test_a_federation_is_every_engaged_host(tmp_path, company, until):
    ada = company.host("ada", path=tmp_path / "ada")
    ben = company.host("ben", path=tmp_path / "ben", peers=[ada.address])
    until(lambda: ada.engaged and ben.engaged)
    for host in (ada, ben):
        host.space("jobs").write(("job", host.name))
    logs = logs_at(ada.url + "jobs", federation="true")
    assert {log.host for log in logs} == {ada.id, ben.id}
    assert [positions(log) for log in logs] == [[1], [1]]


def test_what_ends_too_early_is_not_passed_off_as_all_there_is(tmp_path, company):
    host = company.host("ada", path=tmp_path)
    host.space("jobs").write_all([("job", n) for n in range(10)])
    (there,) = logs_at(host.url + "jobs")
    with pytest.raises(PipelineError, match="ends at 10; the change at 11 was asked for"):
        list(there.batches(5, 20))
    (here,) = logs_at(tmp_path, space="jobs")
    rows = Rows(["position"], None, RowFilter(), None)
    with pytest.raises(PipelineError, match="from 5 to 20, and had 6 changes of 16"):
        list(rows.read([LogPart(here, 5, 20)]))


def test_a_host_that_vanishes_while_it_is_read_is_named(tmp_path, company):
    child = company.child("ada", path=str(tmp_path))
    with closing(tupelo.connect(f"tupelo://{child.address}/jobs")) as jobs:
        for _ in range(40):
            jobs.write_all([("job", b"x" * 100_000)] * 10)
    (log,) = logs_at(f"tupelo://{child.address}/jobs", reconnect="0.5")
    batches = log.batches(1, 400)
    assert next(batches).num_rows < 400
    child.kill()
    with pytest.raises((CannotReach, PeerLost), match=child.address):
        list(batches)


def test_asking_for_a_log_makes_no_space(tmp_path, company):
    host = company.host("ada", path=tmp_path)
    host.space("jobs").write(("job", 1))
    with pytest.raises(BadArgument, match=r"a space of this host: jobs.*, not 'jbos'"):
        logs_at(host.url + "jbos")
    assert "jbos" not in {log.space for log in logs_at(tmp_path)}


def test_who_does_not_answer_is_an_error_or_is_told(tmp_path, company):
    child = company.child("kitchen", path=str(tmp_path))
    url = f"tupelo://{child.address}/jobs"
    child.kill()
    options = ReadOptions.read({"path": url})
    with pytest.raises(CannotReach, match="cannot be reached"):
        resolve(options)
    missing: list[str] = []
    assert resolve(options, missing) == [] and missing == [child.address]
