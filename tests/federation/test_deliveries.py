"""Entries that come back from takers elsewhere count it, and the host knows whose they were."""

import sqlite3
from contextlib import suppress
from typing import Any

import pytest

import tupelo
from tests.conftest import Call
from tests.federation.company import PATIENCE_SECONDS, meet
from tests.federation.raw import Raw, encoded
from tupelo.errors import JournalFailed, PeerLost
from tupelo.federation.links import wire
from tupelo.lab.virtual_world import Disk
from tupelo.space.port import port_of


@pytest.fixture(params=["memory", "durable"])
def host(request, threads, tmp_path):
    options = {"path": tmp_path} if request.param == "durable" else {}
    return threads.host("first", space=False, **options)


def deliveries(space: Any) -> list[int]:
    about: list[tupelo.About] = []
    space.read_all(about=about)
    return [one.deliveries for one in about]


def test_a_client_that_is_lost_in_a_transaction_has_released_what_it_took(host, until):
    space = host.space("jobs", log_keep="all")
    space.write(("job", 1))
    url = f"tupelo://{host.address}/jobs"
    client = tupelo.connect(url, name="worker-1")
    client.take(("job", int), txn=client.transaction())
    (held,) = space.in_hand()
    assert (held.agent_name, held.agent, held.entries) == ("worker-1", client.agent, 1)
    with tupelo.connect(url, name="watcher") as watcher:
        assert watcher.in_hand() == [held]
        assert watcher.count() == 0
        client.close()
        until(lambda: space.count() == 1, "it is back")
        about: list[tupelo.About] = []
        assert watcher.take(("job", int), about=about) == ("job", 1)
        assert [one.deliveries for one in about] == [1]
        assert watcher.in_hand() == space.in_hand() == []
    said = [(c.kind, c.agent_name, c.deliveries) for c in space.changes() if c.arrival]
    assert said == [("written", "first", 0), ("released", "worker-1", 1), ("taken", "watcher", 1)]


def test_a_transaction_whose_lease_ran_out_has_released_what_it_took(host, until):
    space = host.space("jobs")
    space.write(("job", 1))
    with tupelo.connect(f"tupelo://{host.address}/jobs") as client:
        txn = client.transaction(lease=60.0)
        client.take(("job", int), txn=txn)
        txn.lease.renew(0.01)
        assert client.read(("job", int), wait=PATIENCE_SECONDS) == ("job", 1)
        assert deliveries(client) == [1]


def test_the_count_survives_a_restart_and_a_trimmed_log(threads, tmp_path):
    host = threads.host("first", space=False, path=tmp_path)
    space = host.space("jobs")
    space.write_all([("job", 1), ("job", 2), ("job", 3)])
    leased = space.write(("leased",), lease=1_000)
    for _ in range(3):
        txn = space.transaction()
        space.take_all(("job", 1), txn=txn)
        space.take(("leased",), txn=txn)
        txn.abort()
    leased.renew(2_000)
    space.take(("job", 2))
    space.trim(before=len(space.changes()))
    host.close()
    for _ in range(2):
        with tupelo.Space(path=tmp_path / "jobs.tupelo") as again:
            assert deliveries(again) == [3, 0, 3]
    with tupelo.Space(path=tmp_path / "jobs.tupelo") as again:
        again.take_all()
    db = sqlite3.connect(tmp_path / "jobs.tupelo")
    assert db.execute("SELECT count(*) FROM change WHERE returns NOT NULL").fetchone() == (0,)
    db.close()


def test_a_taker_at_another_host_is_told_the_count(threads):
    owner, asker = threads.host("owner"), threads.host("asker")
    meet(owner, asker)
    space = owner.space("jobs")
    space.write(("job", 1))
    txn = space.transaction()
    space.take(("job", 1), txn=txn)
    txn.abort()
    with tupelo.connect(f"tupelo://{asker.address}/jobs") as client:
        about: list[tupelo.About] = []
        assert client.read(("job", int), wait=PATIENCE_SECONDS, about=about) == ("job", 1)
        assert client.take(("job", int), wait=PATIENCE_SECONDS, about=about) == ("job", 1)
        assert [one.deliveries for one in about] == [1, 1]
        assert {one.origin for one in about} == {owner.id}


def test_a_lost_worker_with_many_threads_is_one_loss(host, until):
    """Its other threads wait for a job in transactions, and must not get the one that it held."""
    space = host.space("jobs")
    worker = tupelo.connect(f"tupelo://{host.address}/jobs", name="worker-1")
    transactions = [worker.transaction() for _ in range(5)]

    def take(txn: tupelo.Transaction) -> Any:
        return worker.take(("job", int), order=tupelo.Key(1), txn=txn)

    calls = [Call(take, txn) for txn in transactions]
    with tupelo.connect(f"tupelo://{host.address}/jobs") as watcher:
        until(lambda: port_of(space).under_way()["waiters"][4:], "all wait")
        space.write(("job", 1))
        until(lambda: watcher.in_hand(), "one has it")
        [link] = [s.talk.link for s in host.core.servings.values() if s.name == "worker-1"]
        host._loop.call_soon_threadsafe(link.abort)
        for call in calls:
            with suppress(PeerLost):
                assert call.result() == ("job", 1)
        until(lambda: not watcher.in_hand(), "it is back")
        assert deliveries(watcher) == [1]
    worker.close()


@pytest.fixture
def failed(threads, tmp_path):
    """A host with an entry in two spaces, and a function after which the first one has failed."""
    host = threads.host("first", path=tmp_path)
    jobs, mail = host.space("jobs"), host.space("mail")
    jobs.write(("job", 1))
    mail.write(("letter", 1))

    def fail() -> None:
        disk, journal = Disk(), port_of(jobs).saved
        assert journal is not None
        disk.hold(journal)
        disk.failed = True
        with pytest.raises(JournalFailed):
            jobs.write(("job", 2))

    return host, mail, fail


def test_a_lost_client_of_a_failed_space_gives_back_what_it_held_in_others(failed, until):
    host, mail, fail = failed
    with (
        tupelo.connect(f"tupelo://{host.address}/jobs") as client,
        client.space("mail") as other,
    ):
        assert client.take(("job", int), txn=client.transaction()) == ("job", 1)
        assert other.take(("letter", int), txn=other.transaction()) == ("letter", 1)
        fail()
        [link] = [serving.talk.link for serving in host.core.servings.values()]
        host.soon(link.abort)
        until(lambda: mail.count() == 1, "it is back")


def test_a_client_of_a_failed_space_confirms_what_it_took_from_others(failed, until):
    host, mail, fail = failed
    raw = Raw.met(host.address)
    first, second = [
        raw.call(wire.Get, name, encoded(word, int), True).call
        for name, word in (("jobs", "job"), ("mail", "letter"))
    ]
    fail()
    raw.say(wire.Confirm([first, second]))
    assert raw.call(wire.CountRequest, "mail", encoded("letter", int)).value == 0
    assert not mail.in_hand()
