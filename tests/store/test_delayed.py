"""Delayed entries in a file: they are there after a restart, and still hidden until their time."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import tupelo
from tests.conftest import until_true
from tupelo.errors import ForeignFile, LeaseLost
from tupelo.federation.links import wire
from tupelo.space.port import port_of
from tupelo.store.checking import examine


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.tupelo"


def test_a_delayed_entry_survives_a_restart(path, clock):
    with tupelo.Space(path=path, clock=clock) as space:
        space.write(("a",), delay=10, lease=5)
        space.write(("b",), delay=20)
        space.write(("now",))
        clock.advance(5)
    with tupelo.Space(path=path, clock=clock) as space:
        assert space.read_all() == [("now",)]
        clock.advance(5)
        assert space.read_all() == [("now",), ("a",)]
        clock.advance(5)
        assert space.read_all() == [("now",)]
    assert not examine(path).found
    clock.advance(100)
    with tupelo.Space(path=path, clock=clock) as space:
        assert space.read_all() == [("now",), ("b",)]
        kinds = ["delayed", "delayed", "written", "written", "expired", "written"]
        assert [change.kind for change in space.changes()] == kinds
    with tupelo.Space(path=path, clock=clock) as space:
        assert space.take_all() == [("now",), ("b",)]
    assert not examine(path).found


def test_a_crash_loses_no_delayed_entry(path, clock):
    space = tupelo.Space(path=path, clock=clock)
    space.write_all([("n", 1), ("n", 2)], delay=10)[0].cancel()
    port_of(space).crash()
    space = tupelo.Space(path=path, clock=clock)
    clock.advance(10)
    assert space.read(("n", int), wait=0) == ("n", 2)
    port_of(space).crash()  # The entry that was read is on disk.
    with tupelo.Space(path=path, clock=clock) as space:
        assert space.read_all() == [("n", 2)]


def test_a_prepared_transaction_keeps_its_delayed_entries(path, clock):
    space = tupelo.Space(path=path, clock=clock)
    txn = space.transaction()
    space.write(("late",), delay=10, lease=50, txn=txn)
    assert txn.prepare() == "prepared"
    port_of(space).crash()
    with tupelo.Space(path=path, clock=clock) as space:
        (txn,) = space.in_doubt()
        clock.advance(5)
        txn.commit()
        assert space.count() == 0
        clock.advance(5)
        assert space.read_all() == [("late",)]
        clock.advance(50)
        assert space.count() == 0


def test_time_goes_forward_in_the_log_if_a_transaction_outlasts_the_delay(path, clock):
    with tupelo.Space(path=path, clock=clock) as space:
        txn = space.transaction()
        space.write(("late",), delay=2, lease=10, txn=txn)
        clock.advance(5)
        space.write(("x",))
        txn.commit()
        assert space.read_all() == [("x",), ("late",)]
        times = [change.time for change in space.changes()]
        kinds = [change.kind for change in space.changes()]
        assert times == [clock.now()] * 3 and kinds == ["written", "delayed", "written"]
        assert space.changes()[1].visible == clock.now()
        clock.advance(7)  # The lease began with the delay's end.
        assert space.read_all() == [("x",)]
    assert not examine(path).found


def test_a_trimmed_log_keeps_what_is_delayed(path, clock):
    with tupelo.Space(path=path, clock=clock) as space:
        space.write(("a",), delay=10)
        space.write(("b",), delay=20)
        clock.advance(10)
        space.write_all([("n", number) for number in range(10)])
        space.trim(before=10)
        space.compact()
    assert not examine(path).found
    with tupelo.Space(path=path, clock=clock) as space:
        assert space.count(("a",)) == 1 and space.count(("b",)) == 0
        clock.advance(10)
        assert space.count(("b",)) == 1


def test_a_damaged_file_is_saved_with_its_delayed_entries(path, clock):
    with tupelo.Space(path=path, clock=clock) as space:
        space.write(("early",), delay=5)
        space.write(("late",), delay=20)
        clock.advance(5)
        space.write(("bad",))
    db = sqlite3.connect(path)
    db.execute("UPDATE change SET payload = x'00' WHERE position = 4")
    db.commit()
    db.close()
    with tupelo.Space(path=path, clock=clock, damaged="salvage") as space:
        assert space.read_all() == [("early",)]
        clock.advance(20)
        assert space.read_all() == [("early",), ("late",)]


@pytest.mark.parametrize("durable", [False, True])
def test_a_space_forgets_delayed_entries_that_were_taken(path, clock, durable):
    with tupelo.Space("jobs", path=path if durable else None, clock=clock) as space:
        core: Any = port_of(space)._core
        takes: list[Callable[[], Any]] = [
            lambda: space.take(("a", int), wait=0),
            lambda: space.take(("a", int), wait=0, about=[]),
            lambda: space.take_all(("a", int)),
        ]
        for take in takes:
            space.write(("a", 1), delay=5)
            clock.advance(5)
            assert space.count() == 1 and core.plain  # From now on the fast path applies.
            assert take() and not core.delayed
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(space.take, ("a", int))
            until_true(lambda: core.watched)
            space.write(("a", 1), delay=5)
            clock.advance(5)
            assert waiting.result() == ("a", 1)
        assert not core.delayed


def test_an_older_version_refuses_the_file(path, monkeypatch):
    tupelo.Space(path=path).close()
    monkeypatch.setattr("tupelo.store.format.FORMAT_VERSION", 6)
    with pytest.raises(ForeignFile, match="format 7"):
        tupelo.Space(path=path)


def test_a_lease_from_afar_outlives_a_restart_of_the_host(tmp_path, clock):
    host = tupelo.Host("h", listen="127.0.0.1:0", path=tmp_path, clock=clock)
    address = host.address
    with tupelo.connect(f"tupelo://{address}/jobs") as space:
        visible, hidden = space.write(("a",), delay=5), space.write(("b",), delay=50)
        clock.advance(5)
        assert space.read(("a",)) == ("a",)
        host.close()
        with tupelo.Host("h", listen=address, path=tmp_path, clock=clock):
            assert space.read(("a",)) == ("a",)
            visible.cancel()
            hidden.cancel()
            assert space.count() == 0
            with pytest.raises(LeaseLost):
                visible.cancel()


def test_an_older_host_is_not_asked_to_delay(monkeypatch):
    monkeypatch.setattr(wire, "LEVEL", 0)  # as a host that does not know of it
    with (
        tupelo.Host("old", listen="127.0.0.1:0") as host,
        tupelo.connect(f"tupelo://{host.address}/jobs") as space,
    ):
        with pytest.raises(tupelo.errors.CannotSend, match="older version"):
            space.write(("a",), delay=5)
        for ask in (space.delayed, lambda: space.in_hand(("a",))):
            with pytest.raises(tupelo.errors.CannotSend, match="older version"):
                ask()
        assert space.count() == 0 and space.in_hand() == []
        space.write(("a",))


def test_to_cancel_delayed_entries_one_must_be_allowed_to_take():
    with tupelo.Host("h", listen="127.0.0.1:0") as host:
        host.space("jobs", access=tupelo.Access(take=[])).write(("a",), delay=3600)
        with tupelo.connect(f"tupelo://{host.address}/jobs") as space:
            with pytest.raises(tupelo.errors.NotAllowed, match="take"):
                space.delayed(cancel=True)
            assert space.delayed().count == 1
