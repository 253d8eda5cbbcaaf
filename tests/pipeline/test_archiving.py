"""A host that archives: its logs are sealed by its policy, and never trimmed before that."""

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tupelo
from tests.conftest import until_true
from tests.federation.company import Company
from tupelo import Archiving
from tupelo.errors import BadArgument, JournalFailed, LogTrimmed, PipelineError
from tupelo.federation.names import PRESENCE
from tupelo.pipeline.commands.pipeline import app
from tupelo.pipeline.logs import archiving as policy
from tupelo.pipeline.logs.archiving import Archiver
from tupelo.pipeline.logs.journal import JournalLog
from tupelo.pipeline.logs.segments import LOCK, Archive, ArchivedLog, seal
from tupelo.store.filelock import FileLock

NEVER = 1e6


@pytest.fixture
def company():
    company = Company()
    yield company
    company.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(policy, "LOOK_SECONDS", 0.01)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "archive"


def sealed(folder: Path, space: str = "jobs") -> int:
    """How far the log of this space is sealed."""
    return next((log.last for log in Archive(folder).logs() if log.space == space), 0)


def positions(log: ArchivedLog) -> list[int]:
    found = log.batches(*log.bounds(), ["position"])
    return [n for batch in found for n in batch.column("position").to_pylist()]


def first_kept(space: Any) -> int:
    try:
        first: int = space.changes(limit=1)[0].position
        return first
    except LogTrimmed as trimmed:
        return trimmed.first


def fill(space: Any, count: int) -> None:
    space.write_all([("n", number) for number in range(count)])


# When it is sealed


def test_a_host_seals_after_so_many_changes(company, tmp_path, folder):
    host = company.host("one", path=tmp_path / "one", archive=Archiving(folder, 100, NEVER))
    fill(host.space("jobs"), 99)
    fill(host.space("other"), 150)
    until_true(lambda: sealed(folder, "other") == 150)
    assert sealed(folder) == 0
    fill(host.space("jobs"), 1)
    until_true(lambda: sealed(folder) == 100)
    assert {log.host for log in Archive(folder).logs()} == {host.id}


def test_a_host_seals_after_so_many_seconds(company, tmp_path, folder):
    host = company.host("one", path=tmp_path / "one", archive=Archiving(folder, 10**9, 0.05))
    for number in range(1, 4):
        host.space("jobs").write(("n", number))
        until_true(lambda: sealed(folder) == number)  # noqa: B023


def test_a_host_that_is_closed_has_sealed_everything(company, tmp_path, folder):
    host = company.host("one", path=tmp_path / "one", archive=folder)
    fill(host.space("jobs"), 5)
    assert sealed(folder) == 0
    host.close()
    assert sealed(folder) == 5
    spaces = {log.space for log in Archive(folder).logs()}
    assert spaces == {"jobs", PRESENCE}  # It is told who was there, and not what was decided.
    again = company.host("one", path=tmp_path / "one", archive=folder)
    fill(again.space("jobs"), 5)
    again.close()
    (log,) = [log for log in Archive(folder).logs() if log.space == "jobs"]
    assert positions(log) == list(range(1, 11))


def test_what_is_sealed_is_on_the_disk_in_the_journal_too(company, tmp_path, folder, monkeypatch):
    host = company.host("one", space=False, path=tmp_path / "one", archive=Archiving(folder, 10))
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    fill(host.space("jobs", durability="process"), 10)
    until_true(lambda: sealed(folder) == 10)
    assert synced.index("jobs.tupelo-wal") < synced.index(".1.new")


# What is trimmed


def test_what_is_not_sealed_is_not_trimmed(company, tmp_path, folder):
    host = company.host("one", space=False, path=tmp_path / "one", archive=Archiving(folder, 10**9))
    space = host.space("jobs", log_keep=100)
    for _ in range(10):
        fill(space, 100)
        space.take_all()
    assert first_kept(space) == 1
    space.trim(before=1_500)
    space.compact()
    assert len(space.changes()) == 2_000
    file = tmp_path / "one" / "jobs.tupelo"
    seal(JournalLog(file), folder, upto=1_200)  # by another: it is not heard of yet
    space.trim(before=1_500)
    assert first_kept(space) == 1
    host.close()
    with tupelo.Space(path=file) as alone:
        assert first_kept(alone) == 1


def test_what_is_sealed_is_trimmed(company, tmp_path, folder):
    host = company.host("one", space=False, path=tmp_path / "one", archive=Archiving(folder, 500))
    space = host.space("jobs", log_keep=100)
    for _ in range(10):
        fill(space, 100)
        space.take_all()

    def trimmed():
        fill(space, 1)
        return first_kept(space) > 1_000

    until_true(trimmed)
    (log,) = [log for log in Archive(folder).logs() if log.space == "jobs"]
    assert first_kept(space) <= log.last + 1
    assert positions(log) == list(range(1, log.last + 1))


def test_nothing_is_lost_between_the_archive_and_the_journal(company, tmp_path, folder):
    host = company.host("one", space=False, path=tmp_path / "one", archive=Archiving(folder, 50))
    space = host.space("jobs", log_keep=10)
    for number in range(200):
        fill(space, 5)
        space.take_all(limit=4)
        if number % 20 == 0:
            space.trim(before=10**9)
            upto = sealed(folder)
            assert first_kept(space) <= sealed(folder) + 1, upto
    host.close()
    (log,) = [log for log in Archive(folder).logs() if log.space == "jobs"]
    assert positions(log) == list(range(1, 1_801))


def test_sealing_that_fails_is_told_once_and_tried_again(
    company, tmp_path, folder, caplog, monkeypatch
):
    monkeypatch.setattr(policy, "AGAIN_SECONDS", 0.0)
    host = company.host("one", space=False, path=tmp_path / "one", archive=Archiving(folder, 10))
    space = host.space("jobs", log_keep=10)
    place = Archive(folder).folder_of(host.id, "jobs")
    place.mkdir(parents=True)
    lock = FileLock(place / LOCK)
    assert lock.acquire()
    with caplog.at_level(logging.WARNING, "tupelo"):
        fill(space, 100)
        until_true(lambda: "not sealed" in caplog.text)
        space.trim(before=50)
        assert first_kept(space) == 1
        lock.release()
        until_true(lambda: sealed(folder) == 100)
    assert caplog.text.count("another program") == 1
    until_true(lambda: space.trim(before=50) or first_kept(space) == 50)


def test_whatever_fails_the_others_are_sealed_and_the_host_is_closed(
    company, tmp_path, folder, caplog, monkeypatch
):
    def failing(log: JournalLog, *more: Any) -> Any:
        if log.space == "jobs":
            raise MemoryError("no more")
        return seal(log, *more)

    monkeypatch.setattr(policy, "seal", failing)
    host = company.host("one", path=tmp_path / "one", archive=Archiving(folder, 10))
    with caplog.at_level(logging.WARNING, "tupelo"):
        fill(host.space("jobs"), 10)
        until_true(lambda: "not sealed: MemoryError('no more')" in caplog.text)
        fill(host.space("other"), 10)
        until_true(lambda: sealed(folder, "other") == 10)
        host.close()
    assert sealed(folder) == 0


def test_a_host_that_cannot_begin_leaves_nobody_behind_who_seals(company, tmp_path, folder):
    (tmp_path / "one" / "tupelo.decisions.tupelo").mkdir(parents=True)
    with pytest.raises(JournalFailed):
        company.host("one", path=tmp_path / "one", archive=folder)
    assert "tupelo-archive" not in {thread.name for thread in threading.enumerate()}


# What cannot be


def test_an_archive_of_another_log_is_refused_at_once(company, tmp_path, folder):
    host = company.host("one", path=tmp_path / "one", archive=folder)
    fill(host.space("jobs"), 3)
    host.close()
    for file in (tmp_path / "one").glob("jobs.tupelo*"):
        file.unlink()  # The host begins anew, but the archive remembers.
    again = company.host("one", space=False, path=tmp_path / "one", archive=folder)
    with pytest.raises(PipelineError, match="another log of this name"):
        again.space("jobs")
    fill(again.space("other"), 3)
    with tupelo.Space(path=tmp_path / "one" / "jobs.tupelo") as space:  # It was let go.
        assert space.count() == 0


def test_a_gap_is_told_when_the_space_is_opened(company, tmp_path, folder):
    host = company.host("one", path=tmp_path / "one", archive=folder)
    fill(host.space("jobs"), 3)
    host.close()
    with tupelo.Space(path=tmp_path / "one" / "jobs.tupelo") as alone:  # without the policy
        fill(alone, 10)
        alone.trim(before=9)
    with pytest.raises(LogTrimmed, match="sealed up to 3, but its log begins at 9"):
        company.host("one", path=tmp_path / "one", archive=folder)


@pytest.mark.parametrize(
    "archive",
    ["", 5, Archiving("x", 0), Archiving("x", 10, 0), Archiving("x", True), Archiving("")],
)
def test_an_archive_that_makes_no_sense_is_refused(tmp_path, archive):
    with pytest.raises(BadArgument, match="archive="):
        tupelo.Host("one", path=tmp_path, archive=archive)


def test_an_archive_needs_a_host_that_keeps_something(folder):
    with pytest.raises(BadArgument, match="path="):
        tupelo.Host("one", archive=folder)


def test_without_its_packages_it_says_what_to_install(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(tupelo, "pipeline", sys.modules["tupelo.pipeline"])  # as it will be again
    for name in [name for name in sys.modules if name.startswith("tupelo.pipeline")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PipelineError, match=r'pyarrow: pip install "tupelo\[pipeline\]"'):
        tupelo.Host("one", path=tmp_path, archive=folder)


def test_a_space_without_a_host_can_be_kept_as_well(tmp_path, folder):
    with tupelo.Space("jobs", path=tmp_path / "jobs.tupelo", log_keep=10) as space:
        archiver = Archiver(Archiving(folder))
        journal = space._port._engine.saved
        assert journal is not None
        archiver.keep(journal)
        fill(space, 100)
        space.compact()
        assert first_kept(space) == 1
        archiver.close()
        space.compact()
        assert (first_kept(space), sealed(folder)) == (91, 100)


# The command


def run(*arguments: object) -> tuple[int, str]:
    outcome = CliRunner().invoke(app, ["archive", *map(str, arguments)])
    return outcome.exit_code, outcome.output


def test_the_commands_seal_files_folders_and_hosts_and_join_segments(company, tmp_path, folder):
    with tupelo.Space("alone", path=tmp_path / "alone.tupelo", agent="me") as space:
        fill(space, 7)
        code, said = run(tmp_path / "alone.tupelo", "--to", folder)  # though it is open
    assert (code, said.strip()) == (
        0,
        "'alone' of me: 7 changes in 1 segments, sealed up to 7",
    )
    host = company.host("one", path=tmp_path / "one")
    fill(host.space("jobs"), 5)
    code, said = run(tmp_path / "one", tmp_path / "alone.tupelo", "--to", folder)
    assert code == 0 and "'jobs' of one: 5 changes" in said and "'alone' of me: 0 changes" in said
    fill(host.space("jobs"), 5)
    code, said = run(f"tupelo://{host.address}/jobs", "--to", folder)
    assert code == 0 and f"'jobs' of {host.id}: 5 changes in 1 segments, sealed up to 10" in said
    outcome = CliRunner().invoke(app, ["compact", str(folder)])
    assert outcome.exit_code == 0 and "'jobs' of one: 2 segments, now 1" in outcome.output
    (log,) = [log for log in Archive(folder).logs() if log.space == "jobs"]
    assert positions(log) == list(range(1, 11))


def test_the_command_says_in_a_line_what_is_wrong(tmp_path, folder):
    assert run(tmp_path / "nothing", "--to", folder)[0] == 1
    path = tmp_path / "alone.tupelo"
    with tupelo.Space("alone", path=path) as space:
        fill(space, 1)
    assert run(path, "--to", folder)[0] == 0
    assert run(folder, "--to", tmp_path / "other")[0] == 1
    path.unlink()
    with tupelo.Space("alone", path=path, agent=Archive(folder).logs()[0].host) as space:
        fill(space, 1)
    assert run(path, "--to", folder)[0] == 1
    assert not Path(tmp_path / "other").exists()
