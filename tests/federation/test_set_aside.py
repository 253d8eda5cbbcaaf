"""A host with a damaged file serves its other spaces, and the damaged one after its repair."""

import sqlite3
from pathlib import Path

import pytest

import tupelo
from tupelo.errors import DamagedFile, JournalFailed
from tupelo.space.port import port_of
from tupelo.store.checking import salvage_in_place
from tupelo.values.entry import Entry, freeze


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a host with two spaces, of which one is damaged."""
    folder = tmp_path / "kitchen"
    with tupelo.Host("kitchen", path=folder) as host:
        for name in ("jobs", "news"):
            host.space(name).write_all([("n", 1), ("n", 2)])
    with sqlite3.connect(folder / "jobs.tupelo") as db:
        db.execute("UPDATE change SET payload = x'00' WHERE position = 2")
    db.close()
    return folder


def test_the_others_are_served_and_the_host_says_so(folder, caplog):
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=folder) as host:
        with tupelo.connect(host.url + "news") as news:
            assert news.count() == 2
        assert set(host.health) == {"jobs"} and "is damaged" in host.health["jobs"]
        assert [r.levelname for r in caplog.records if "'jobs' is set aside" in r.message] == [
            "ERROR"
        ]
        before = (folder / "jobs.tupelo").read_bytes()
        for _ in range(2):
            with pytest.raises(DamagedFile, match="'jobs' is set aside at this host"):
                tupelo.connect(host.url + "jobs")
        assert (folder / "jobs.tupelo").read_bytes() == before


def test_a_repaired_space_is_served_without_a_restart(folder):
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=folder) as host:
        with pytest.raises(DamagedFile):
            tupelo.connect(host.url + "jobs")
        assert salvage_in_place(folder / "jobs.tupelo") is not None
        with tupelo.connect(host.url + "jobs") as jobs:
            assert jobs.read_all() == [("n", 1)]
        assert host.health == {}


def test_a_repaired_space_has_the_options_that_it_was_given(folder):
    spaces = {"jobs": {"access": tupelo.Access(password="tea")}}
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=folder, spaces=spaces) as host:
        assert set(host.health) == {"jobs"}
        salvage_in_place(folder / "jobs.tupelo")
        with pytest.raises(tupelo.errors.WrongPassword):
            tupelo.connect(host.url + "jobs")
        with tupelo.connect(host.url + "jobs", password="tea") as jobs:
            assert jobs.count() == 1


def test_a_repaired_space_keeps_its_rules_when_the_program_opens_it(folder):
    spaces = {"jobs": {"access": tupelo.Access(password="tea")}}
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=folder, spaces=spaces) as host:
        salvage_in_place(folder / "jobs.tupelo")
        assert host.space("jobs").count() == 1
        with pytest.raises(tupelo.errors.WrongPassword):
            tupelo.connect(host.url + "jobs")
        with tupelo.connect(host.url + "jobs", password="tea") as jobs:
            assert jobs.count() == 1


@pytest.mark.parametrize("how", ["opened", "changed"])
def test_rules_that_are_given_while_it_is_set_aside_hold_after_its_repair(folder, how):
    tea = tupelo.Access(password="tea")
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=folder) as host:
        if how == "opened":
            with pytest.raises(tupelo.errors.BadArgument, match="capacity="):
                host.space("jobs", access=tea, capacity="much")
            with pytest.raises(DamagedFile):
                host.space("jobs", access=tea)
        else:
            host.change_access("jobs", tea)
        with pytest.raises(DamagedFile, match="set aside"):
            tupelo.connect(host.url + "jobs")
        salvage_in_place(folder / "jobs.tupelo")
        with pytest.raises(tupelo.errors.WrongPassword):
            tupelo.connect(host.url + "jobs")
        with tupelo.connect(host.url + "jobs", password="tea") as jobs:
            assert jobs.count() == 1


def test_a_space_is_not_served_if_the_damage_is_found_after_it_was_opened(tmp_path):
    file = tmp_path / "jobs.tupelo"
    with tupelo.Space("jobs", path=file) as space:
        shape, fields = freeze(("n", 1))
        port_of(space).take_in(Entry(fields, shape, "o@p", 5, 1, None, to="me@q"))
        space.take(("n", int))
        space.write(("n", 2))
    with sqlite3.connect(file) as db:  # An entry that is gone: it is read by the host only.
        db.execute("UPDATE change SET payload = x'00' WHERE dest IS NOT NULL")
    db.close()
    with tupelo.Host("kitchen", listen="127.0.0.1:0", path=tmp_path) as host:
        assert set(host.health) == {"jobs"}
        with pytest.raises(DamagedFile, match="set aside"):
            tupelo.connect(host.url + "jobs")
        salvage_in_place(file)  # Refused if the host still had it open.
        with tupelo.connect(host.url + "jobs") as jobs:
            assert jobs.read_all() == [("n", 2)]


def test_a_space_whose_file_was_locked_is_served_when_the_lock_is_gone(tmp_path, monkeypatch):
    with tupelo.Host("kitchen", path=tmp_path) as host:
        host.space("jobs").write(("n", 1))
    db = sqlite3.connect(tmp_path / "jobs.tupelo", isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    with monkeypatch.context() as patch:
        patch.setattr("tupelo.store.sqlite.LOCKED_SECONDS", 0.0)
        host = tupelo.Host("kitchen", listen="127.0.0.1:0", path=tmp_path)
    with host:
        assert "locked" in host.health["jobs"]
        with pytest.raises(JournalFailed, match=r"'jobs' is set aside at this host: .*locked"):
            tupelo.connect(host.url + "jobs")
        db.close()  # The file has not changed.
        with tupelo.connect(host.url + "jobs") as jobs:
            assert jobs.read_all() == [("n", 1)]
        assert host.health == {}
