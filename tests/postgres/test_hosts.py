"""Hosts in front of one database: their clients share its spaces."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

import psycopg
import pytest

import tupelo
from tests.conftest import until_true
from tests.federation.raw import Raw, encoded
from tests.kinds import database_url, space_url
from tupelo.apps.hostfile import read_hostfile
from tupelo.errors import (
    BadArgument,
    BadInput,
    CannotReach,
    LeaseLost,
    NotAllowed,
    Refused,
    TransactionError,
    UnknownSpace,
    UnknownTransaction,
    WrongPassword,
)
from tupelo.federation.links import wire
from tupelo.models.event_heap import EventHeap
from tupelo.models.melon import Melon

JOB = encoded("job", int)


@tupelo.entry("tests.stored_job")
@dataclass(frozen=True)
class StoredJob:
    number: int | None = None


@pytest.fixture
def name():
    return f"jobs {uuid4()}"


@pytest.fixture
def hosts():
    """Two hosts with the same database, which do not know each other."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(tupelo.Host(one, listen=0, store=database_url(), heartbeat=0.2))
            for one in ("a", "b")
        ]


@pytest.fixture
def clients(hosts, name):
    """A client of each."""
    with ExitStack() as stack:
        yield [stack.enter_context(tupelo.connect(f"{host.url}{name}")) for host in hosts]


def in_hand(name: str) -> int:
    """The entries of a space that programs have in hand, as the database sees it."""
    with psycopg.connect(database_url()) as link:
        row = link.execute(
            "SELECT count(*) FROM tupelo.entries JOIN tupelo.spaces ON spaces.id = entries.space "
            "WHERE name = %s",
            (name,),
        ).fetchone()
        free = link.execute(
            "SELECT entries.id FROM tupelo.entries JOIN tupelo.spaces ON spaces.id = entries.space "
            "WHERE name = %s FOR KEY SHARE OF entries SKIP LOCKED",
            (name,),
        ).fetchall()
        assert row is not None
        return int(row[0]) - len(free)


def test_clients_of_two_hosts_share_the_entries_of_a_database(clients):
    one, other = clients
    one.write(("job", 1))
    one.write_all([("job", n) for n in range(2, 30)], lease=60)
    one.write(StoredJob(7))
    assert other.read(("job", int), wait=0) == ("job", 1)
    assert other.count(("job", int)) == 29
    assert [n for _, n in other.take_all(("job", int), limit=3)] == [1, 2, 3]
    assert one.take(StoredJob()) == StoredJob(7)
    assert one.count() == 26
    until_true(lambda: [c.kind for c in one.changes()].count("taken") == 4)
    assert {c.agent for c in one.changes() if c.kind == "written"} == {one.agent}


def test_a_write_at_one_host_wakes_those_who_wait_at_the_other(clients):
    one, other = clients
    found = []

    def wait() -> None:
        found.append(other.take(("job", int), wait=60))

    thread = threading.Thread(target=wait)
    thread.start()
    one.write(("other", "shape"))
    one.write(("job", 5))
    thread.join(60)
    assert found == [("job", 5)]
    until_true(lambda: one.count(("job", int)) == 0)


def test_a_program_without_a_host_meets_the_clients_of_one(clients, name):
    with tupelo.connect(space_url(name)) as direct:
        direct.write(("job", 1))
        assert clients[0].take(("job", int), wait=10) == ("job", 1)
        clients[1].write(("job", 2))
        assert direct.take(("job", int), wait=10) == ("job", 2)


def test_subscriptions_sessions_match_sets_and_leases_of_clients(clients):
    one, other = clients
    with other.subscribe(("job", int), removed=True) as notices, other.session() as session:
        lease = one.write(("job", 1), lease=60)
        notice = notices.get(wait=30)
        assert notice is not None and notice.entry == ("job", 1)
        assert session.read(("job", int), wait=10) == ("job", 1)
        assert session.read(("job", int), wait=0) is None
        assert session.seen == 1
        with other.match_set(("job", int)) as matches:
            assert list(matches) == [("job", 1)]
        before = lease.expires
        lease.renew(600)
        assert lease.expires > before + 300
        lease.cancel()
        ended = notices.get(wait=30)
        assert ended is not None and ended.kind == "cancelled"
    with pytest.raises(LeaseLost):
        lease.renew(60)
    assert one.count() == 0


def test_a_client_renews_only_what_it_has_written(clients):
    one, other = clients
    lease = one.write(("job", 1), lease=60)
    thing = lease.thing
    forged = other.write(("job", 2), lease=60)
    forged.thing.n, forged.thing.arrival = thing.n, thing.arrival
    with pytest.raises(LeaseLost):
        forged.cancel()
    assert one.count() == 2


def test_transactions_of_clients_are_the_databases(clients):
    one, other = clients
    one.write(("job", 1))
    with one.transaction() as txn:
        lease = one.write(("done", 1), txn=txn, lease=60)
        lease.renew(120)
        assert one.take(("job", int), txn=txn) == ("job", 1)
        assert other.count() == 0
        for client in clients:
            assert [(hand.agent, hand.entries) for hand in client.in_hand()] == [(one.agent, 1)]
    assert other.read_all() == [("done", 1)]
    with pytest.raises(ZeroDivisionError), one.transaction() as txn:
        one.take(txn=txn)
        raise ZeroDivisionError
    assert other.count() == 1
    leased = one.transaction(lease=600)
    with leased.transaction() as inner:
        one.write(("inner", 1), txn=inner)
    leased.abort()
    assert other.count() == 1
    with (
        tupelo.Space() as local,
        pytest.raises(TransactionError),
        tupelo.transaction(one, local) as both,
    ):
        one.write(("job", 2), txn=both)
    assert other.count() == 1


def test_what_a_client_has_prepared_is_settled_by_those_who_may(hosts, clients, name):
    one, other = clients
    one.write_all([("job", 1), ("job", 2)])
    for n in (1, 2):
        txn = one.transaction()
        one.write(("done", *one.take(("job", n), txn=txn)[1:]), txn=txn)
        assert txn.prepare() == "prepared"
    first, second = other.in_doubt()
    for client in clients:
        assert client.count() == 0
    first.commit()
    assert first.state == "committed"
    with tupelo.connect(space_url(name)) as direct:
        (left,) = direct.in_doubt()
        left.abort()
    with pytest.raises(UnknownTransaction):
        second.commit()
    assert sorted(one.read_all()) == [("done", 1), ("job", 2)]


def test_only_an_administrator_settles_what_is_prepared(name):
    access = tupelo.Access(administer=[])
    with (
        tupelo.Host("a", listen=0, spaces={name: {"store": database_url(), "access": access}}) as (
            host
        ),
        tupelo.connect(space_url(name)) as direct,
        tupelo.connect(f"{host.url}{name}") as client,
    ):
        txn = direct.transaction()
        direct.write(("job", 1), txn=txn)
        txn.prepare()
        with pytest.raises(NotAllowed):
            client.in_doubt()
        raw = Raw.met(host.address)
        raw.call(wire.Open, name)
        assert raw.call(wire.End, name, txn.id, "abort").kind == "NotAllowed"
        raw.close()
        txn.commit()
        assert client.count() == 1


def test_who_waits_for_what_another_has_in_hand_sleeps_meanwhile(clients, hosts, name):
    one, other = clients
    one.write(("job", 1))
    txn = one.transaction()
    assert one.take(("job", int), txn=txn) == ("job", 1)
    found = []
    thread = threading.Thread(target=lambda: found.append(other.take(("job", int), wait=60)))
    thread.start()

    def asleep() -> bool:
        (space,) = [
            serving.spaces()[name]
            for serving in hosts[1].core.with_stored
            if name in serving.spaces()
        ]
        return any(waiter.asleep for waiter in space.database.listener.waiting(space.id))

    until_true(asleep)
    txn.abort()
    thread.join(60)
    assert found == [("job", 1)]


def test_a_client_does_not_see_what_it_has_taken(clients):
    one, other = clients
    for n in range(30):
        other.write(("job", n))
        assert one.take(("job", int), wait=0) == ("job", n)
        assert one.read(("job", int), wait=0) is None
        assert one.count() == 0


def test_a_delayed_entry_of_a_client_waits_for_its_time(clients):
    one, other = clients
    one.write(("job", 1), delay=600)
    assert other.count() == 0
    assert other.delayed().count == 1
    assert one.delayed(cancel=True).count == 1


def test_a_take_in_doubt_is_settled_by_its_client(hosts, name):
    """A client loses its link after the answer and before it has confirmed."""
    host = hosts[0]
    with tupelo.connect(f"{hosts[1].url}{name}") as other:
        for received, left in ((True, 0), (False, 1)):
            other.write(("job", 1))
            raw = Raw.met(host.address)
            raw.call(wire.Open, name)
            answer = raw.call(wire.Get, name, JOB, True, 10.0)
            assert answer.value == [["job", 1]]
            assert other.count() == 0 and in_hand(name) == 1
            session = raw.welcome.session
            raw.close()
            until_true(lambda: host.in_doubt, "the host has lost the client")
            assert in_hand(name) == 1
            again = Raw.met(
                host.address, id=raw.id, resume=session, received=[answer.call] if received else []
            )
            until_true(lambda: in_hand(name) == 0)
            assert other.count() == left
            again.close()


def test_a_client_that_is_gone_for_good_loses_its_take(name):
    doubt = tupelo.Doubt(seconds=0.05)
    with tupelo.Host("a", listen=0, heartbeat=0.2) as host:
        host.space(name, store=database_url(), doubt=doubt).write(("job", 1))
        raw = Raw.met(host.address)
        raw.call(wire.Open, name)
        assert raw.call(wire.Get, name, JOB, True, 10.0).value
        assert in_hand(name) == 1
        raw.close()
        until_true(lambda: in_hand(name) == 0)
        assert host.space(name).read_all() == [("job", 1)]


def test_a_confirmed_take_that_did_not_reach_its_user_comes_back_to_its_place(hosts, name):
    with tupelo.connect(f"{hosts[1].url}{name}") as other:
        other.write_all([("job", 1), ("job", 2)])
        raw = Raw.met(hosts[0].address)
        raw.call(wire.Open, name)
        call = raw.call(wire.Get, name, JOB, True, 10.0).call
        raw.say(wire.Confirm([call]), wire.Cancel([call]))
        # Not until there are two: before the take is committed, there are two as well.
        until_true(lambda: "returned" in [change.kind for change in other.changes()])
        assert other.read_all() == [("job", 1), ("job", 2)]
        raw.close()


def test_a_delivery_survives_the_loss_of_its_connection_to_the_database(hosts, name):
    """The client has the entry; the database has given it back when the client confirms."""
    mark = uuid4().hex
    store = f"{database_url()}{'&' if '?' in database_url() else '?'}application_name={mark}"
    with (
        tupelo.connect(f"{hosts[1].url}{name}") as other,
        tupelo.Host("c", listen=0, store=store) as host,
    ):
        other.write(("job", 1))
        raw = Raw.met(host.address)
        raw.call(wire.Open, name)
        call = raw.call(wire.Get, name, JOB, True, 10.0).call
        with psycopg.connect(database_url(), autocommit=True) as link:
            link.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE state = 'idle in transaction' AND application_name = %s",
                (mark,),
            )
        until_true(lambda: in_hand(name) == 0)
        raw.say(wire.Confirm([call]))
        until_true(lambda: other.count() == 0)
        raw.close()


HOST = """
import sys, tupelo
with tupelo.Host("child", listen=0, store=sys.argv[1], heartbeat=0.2) as host:
    print(host.url, flush=True)
    sys.stdin.read()
"""
TAKER = """
import sys, tupelo
space = tupelo.connect(sys.argv[1])
txn = space.transaction()
print(space.take(("job", int), txn=txn), flush=True)
sys.stdin.read()
"""


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def ended(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        assert stream is not None
        stream.close()


def test_a_client_that_is_killed_gives_back_what_it_has_in_hand(clients, hosts, name):
    clients[1].write(("job", 1))
    taker = started(TAKER, f"{hosts[0].url}{name}")
    try:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "('job', 1)\n"
        assert clients[1].count() == 0
    finally:
        ended(taker)
    assert clients[1].take(("job", int), wait=60) == ("job", 1)


def test_nothing_is_lost_with_a_host_that_is_killed(name):
    child = started(HOST, database_url())
    try:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        with tupelo.connect(f"{url}{name}") as client:
            client.write_all([("job", n) for n in range(20)])
            txn = client.transaction()
            assert client.take(("job", int), txn=txn) == ("job", 0)
            assert client.take(("job", int)) == ("job", 1)
            until_true(lambda: in_hand(name) == 1)
            ended(child)
            with (
                tupelo.Host("b", listen=0, store=database_url()) as host,
                tupelo.connect(f"{host.url}{name}") as other,
            ):
                until_true(lambda: other.count() == 19)
                jobs = {n for _, n in other.take_all(("job", int))}
                assert jobs == {0, *range(2, 20)}
    finally:
        if child.poll() is None:
            ended(child)


def test_the_models_of_hosts_refuse_a_space_in_a_database(hosts, clients, name):
    with pytest.raises(Refused, match="in a database"), Melon(clients[0], name) as melon:
        melon.store(("message", 1))
    with tupelo.Host("models", store=database_url()) as host:
        with pytest.raises(Refused, match='store=""'):  # It would be in the database.
            EventHeap(host, f"new {name}")
        host.space("kept", store="")
        with EventHeap(host, "kept") as heap:
            heap.put(("event", 1))
            assert heap.get(("event", int)) == ("event", 1)


def test_a_host_may_have_spaces_of_its_own_beside(name, tmp_path):
    with tupelo.Host("a", listen=0, path=tmp_path, store=database_url()) as host:
        host.space("own", store="").write(("here", 1))
        host.space(name).write(("there", 1))
        assert "own.tupelo" in {file.name for file in tmp_path.iterdir()}
        with tupelo.connect(f"{host.url}own") as own:
            assert own.read_all() == [("here", 1)]
        with pytest.raises(BadArgument, match="there already"):
            host.space(name, capacity=tupelo.Capacity(5))
        with pytest.raises(BadArgument, match="store="):
            host.space("own", store=database_url())
        with pytest.raises(BadArgument, match="durability="):
            host.space("more", store=database_url(), durability="full")
    with tupelo.Host("a", listen=0, path=tmp_path, store=database_url()) as host:
        with tupelo.connect(f"{host.url}own") as own:
            assert own.read_all() == [("here", 1)]
        with tupelo.connect(f"{host.url}{name}", create=False) as there:
            assert there.read_all() == [("there", 1)]
        with pytest.raises(UnknownSpace):
            tupelo.connect(f"{host.url}no such {name}", create=False)
        described = tupelo.connect(f"{host.url}{name}").host
        assert name in described["spaces"] and f"no such {name}" not in described["spaces"]


def test_a_host_has_its_access_rules_for_a_space_in_a_database(name):
    access = tupelo.Access(take=[], password="secret")
    with tupelo.Host("a", listen=0, spaces={name: {"store": database_url(), "access": access}}) as (
        host
    ):
        with pytest.raises(WrongPassword):
            tupelo.connect(f"{host.url}{name}")
        with tupelo.connect(f"{host.url}{name}", password="secret") as client:
            client.write(("job", 1))
            with pytest.raises(NotAllowed):
                client.take(("job", int), wait=0)
            with pytest.raises(NotAllowed):
                client.delayed(cancel=True)


@pytest.mark.parametrize("store", ["sqlite:///x", 5, "jobs"])
def test_a_store_is_the_url_of_a_database(store):
    with pytest.raises(BadArgument, match="store="):
        tupelo.Host("a", store=store)


def test_a_store_of_a_host_names_no_space():
    with pytest.raises(BadArgument, match="without space="):
        tupelo.Host("a", store=space_url("jobs"))


def test_a_space_may_have_another_name_in_the_database(name):
    with tupelo.Host("a", listen=0) as host:
        host.space("jobs", store=space_url(name)).write(("job", 1))
        with tupelo.connect(f"{host.url}jobs") as client, tupelo.connect(space_url(name)) as direct:
            assert client.read_all() == direct.read_all() == [("job", 1)]


def test_a_host_serves_its_other_spaces_while_a_database_is_away():
    away = "postgresql://127.0.0.1:1/work?connect_timeout=2"
    with tupelo.Host("a", listen=0, spaces={"jobs": {"store": away}}) as host:
        with pytest.raises(CannotReach):
            tupelo.connect(f"{host.url}jobs")
        with tupelo.connect(f"{host.url}own") as own:
            own.write(("here", 1))
            assert own.count() == 1


def test_a_host_for_coroutines(name):
    asyncio.run(use_a_host_for_coroutines(name))


async def use_a_host_for_coroutines(name: str) -> None:
    async with tupelo.aio.Host("a", listen=0, store=database_url()) as host:
        space = host.space(name)
        await space.write(("job", 1))
        async with space.transaction() as txn:
            assert await space.take(("job", int), txn=txn) == ("job", 1)
            await space.write(("job", 2), txn=txn)
        async with space.session() as session, space.subscribe(("job", int)) as notices:
            assert await session.read(("job", int)) == ("job", 2)
            async with await tupelo.aio.connect(f"{host.url}{name}") as client:
                await client.write(("job", 3))
                notice = await notices.get(wait=30)
                assert notice is not None and notice.entry == ("job", 3)
                assert await client.count() == 2
        assert len(await space.changes()) == 4
        await space.close()


def test_the_file_of_a_host_names_stores(tmp_path):
    file = tmp_path / "host.toml"
    file.write_text(
        f"name = 'a'\nstore = {json.dumps(database_url())}\n[spaces.own]\nstore = ''\n"
        f"[spaces.jobs]\nstore = {json.dumps(space_url('jobs'))}\nlog_keep = 5\n"
    )
    given = read_hostfile(file)
    assert given["store"] == database_url()
    assert given["spaces"]["own"] == {"store": ""}
    assert given["spaces"]["jobs"] == {"store": space_url("jobs"), "log_keep": 5}
    file.write_text("[spaces.jobs]\nstore = 5\n")
    with pytest.raises(BadInput, match=r"line 2: store in \[spaces.jobs\] must be a text"):
        read_hostfile(file)
