"""The log of a host says who acted: a client, in the session that it used; the agent of another
host; or the host itself, for its own program."""

import threading
from typing import Any

import pytest

import tupelo
from tests.federation.company import PATIENCE_SECONDS, await_space, meet, port_number


@pytest.fixture(params=["memory", "durable"])
def host(request, threads, tmp_path):
    """A host whose space logs everything, reads as well."""
    options = {"path": tmp_path} if request.param == "durable" else {}
    host = threads.host("first", space=False, **options)
    host.space("jobs", log_keep="all", log_reads=True)
    return host


@pytest.fixture
def client(host):
    with tupelo.connect(f"tupelo://{host.address}/jobs") as space:
        yield space


def told(host: Any) -> list[tuple[str, Any, str]]:
    """Kind, entry, and who acted, of every change of an entry."""
    return [(c.kind, c.entry, c.agent) for c in host.space("jobs").changes() if c.arrival]


def agent_of(host: Any, client: Any) -> str:
    client.write(("who", "am", "I"))
    agent: str = host.space("jobs").changes()[-1].origin
    return agent


def test_what_a_client_does_is_its_own_doing(host, client):
    agent = agent_of(host, client)
    host.space("jobs").write(("mine",))
    client.write(("plain",))
    client.write(("leased",), lease=60).cancel()
    client.write_all([("one",), ("two",)])
    assert client.read(("mine",), wait=0) == ("mine",)
    assert client.take(("mine",), wait=0) == ("mine",)
    assert client.take_all(("one",)) == [("one",)]
    assert host.space("jobs").take(("two",), wait=0) == ("two",)
    assert agent != host.id
    assert told(host)[1:] == [
        ("written", ("mine",), host.id),
        ("written", ("plain",), agent),
        ("written", ("leased",), agent),
        ("cancelled", ("leased",), agent),
        ("written", ("one",), agent),
        ("written", ("two",), agent),
        ("read", ("mine",), agent),
        ("taken", ("mine",), agent),
        ("taken", ("one",), agent),
        ("taken", ("two",), host.id),
    ]


def test_one_who_waits_acts_when_it_is_served(host, client):
    agent = agent_of(host, client)
    got = []
    thread = threading.Thread(
        target=lambda: got.append(client.take(("later",), wait=PATIENCE_SECONDS))
    )
    thread.start()
    host.space("jobs").write(("later",))
    thread.join(PATIENCE_SECONDS)
    assert got == [("later",)]
    assert told(host)[1:] == [
        ("written", ("later",), host.id),
        ("taken", ("later",), agent),
    ]


def test_a_transaction_is_the_doing_of_the_one_who_began_it(host, client):
    agent = agent_of(host, client)
    host.space("jobs").write(("mine",))
    with client.transaction() as txn:
        client.take(("mine",), wait=0, txn=txn)
        client.write(("new",), txn=txn)
    changes = [c for c in host.space("jobs").changes(since=2) if c.txn]
    assert {c.agent for c in changes} == {agent}
    assert ("taken", ("mine",), agent) in told(host) and ("written", ("new",), agent) in told(host)


def test_a_lease_that_runs_out_is_nobodys_doing(threads, tmp_path):
    host = threads.host("first", space=False, path=tmp_path)
    space = host.space("jobs", log_keep="all")
    with tupelo.connect(f"tupelo://{host.address}/jobs") as client:
        client.write(("short",), lease=0.001)
        assert client.take(("never",), wait=0.05) is None
        assert client.count() == 0
    assert [(c.kind, c.agent) for c in space.changes()][1:] == [("expired", host.id)]


def test_a_read_says_in_which_session(host, client):
    agent = agent_of(host, client)
    with client.session() as one, client.session() as another:
        assert one.read(wait=0) == another.read(wait=0)
        client.write(("next",))
        assert one.read(wait=0) == ("next",)
    mine = host.space("jobs").session()
    assert mine.read(("next",), wait=0) == ("next",)
    assert client.read(("next",), wait=0) == ("next",)
    reads = [c for c in host.space("jobs").changes() if c.kind == "read"]
    assert [c.agent for c in reads] == [agent, agent, agent, host.id, agent]
    first, second, third, fourth, fifth = [c.session for c in reads]
    assert first == third and len({first, second, fourth}) == 3
    assert all([first, second, fourth]) and fifth is None
    assert all(c.session is None for c in host.space("jobs").changes() if c.kind != "read")


def test_the_client_is_told_who_acted(host, client):
    agent = agent_of(host, client)
    with client.session() as session:
        session.read(wait=0)
    here, afar = host.space("jobs").changes(), client.changes()
    assert [(c.kind, c.agent, c.session) for c in afar] == [
        (c.kind, c.agent, c.session) for c in here
    ]
    assert afar[-1].agent == agent and afar[-1].session


@pytest.mark.parametrize("durable", [False, True])
def test_at_another_host_the_agent_of_the_first_acts(threads, until, tmp_path, durable):
    options = {"path": tmp_path} if durable else {}
    owner = threads.host("owner", space=False, **options)
    owner.space("jobs", log_keep="all", log_reads=True)
    asker = threads.host("asker")
    meet(owner, asker)
    owner.space("jobs").write_all([("for", "host"), ("for", "client"), ("to", "read")])
    with tupelo.connect(f"tupelo://{asker.address}/jobs") as client:
        agent = asker.core.agents[-1]
        assert client.read(("to", "read"), wait=PATIENCE_SECONDS) == ("to", "read")
        assert client.take(("for", "client"), wait=PATIENCE_SECONDS) == ("for", "client")
    assert asker.space("jobs").take(("for", "host"), wait=PATIENCE_SECONDS) == ("for", "host")
    until(lambda: not asker.core.federation.all_unsettled(), "the owner knows it")
    taken = {c.entry: c.agent for c in owner.space("jobs").changes() if c.kind == "taken"}
    assert taken == {("for", "client"): agent, ("for", "host"): asker.id}
    readers = {c.agent for c in owner.space("jobs").changes() if c.kind == "read"}
    assert readers <= {agent, asker.id} and agent in readers


def test_who_took_it_is_known_after_the_host_was_killed(threads, until, tmp_path):
    host = threads.host("first")
    child = threads.child("second", "owner is asked", path=str(tmp_path))
    child.do("write", ["job", 1])
    host.engage(child.address)
    await_space(host, child.id)
    got = []
    thread = threading.Thread(
        target=lambda: got.append(host.space("jobs").take(("job", int), wait=PATIENCE_SECONDS))
    )
    thread.start()
    child.hear("paused")
    child.kill()
    again = threads.child("second", listen=port_number(child.address), path=str(tmp_path))
    thread.join(PATIENCE_SECONDS)
    assert got == [("job", 1)]
    until(lambda: not host.core.federation.all_unsettled(), "the owner knows it")
    with tupelo.connect(f"tupelo://{again.address}/jobs") as space:
        taken = [c for c in space.changes() if c.kind == "taken"]
    assert [(c.entry, c.agent) for c in taken] == [(("job", 1), host.id)]


# Names


def names_in(log: Any) -> list[tuple[str, Any, str]]:
    return [(c.kind, c.entry, c.agent_name) for c in log if c.arrival]


def test_the_log_has_the_names_of_clients_and_of_the_host(host):
    url = f"tupelo://{host.address}/jobs"
    space = host.space("jobs")
    with tupelo.connect(url, name="worker-1") as one, tupelo.connect(url) as nameless:
        one.write(("mine",))
        nameless.write(("unsigned",))
        space.write(("own",))
        with one.transaction() as txn:
            one.take(("own",), wait=0, txn=txn)
        with one.session() as session:
            session.read(("mine",), wait=0)
        expected = [
            ("written", ("mine",), "worker-1"),
            ("written", ("unsigned",), ""),
            ("written", ("own",), "first"),
            ("taken", ("own",), "worker-1"),
            ("read", ("mine",), "worker-1"),
        ]
        assert names_in(space.changes()) == names_in(one.changes()) == expected


def test_presence_has_the_names_of_agents(threads, until):
    here, there = threads.host("here"), threads.host("there")
    meet(here, there)
    url = f"tupelo://{here.address}/jobs"
    with tupelo.connect(url, name="worker-1"), tupelo.connect(url, name="worker-2"):
        for host in (here, there):
            until(
                lambda host=host: (
                    {one.name for one in host.presence.read_all(tupelo.AgentPresence(host=here.id))}
                    == {"here", "worker-1", "worker-2"}
                ),
                "the names of all agents are there",
            )
    until(
        lambda: not there.presence.read_all(tupelo.AgentPresence(name="worker-1")),
        "the entry of an agent that has left is removed",
    )


def test_another_host_logs_the_name_of_the_client(threads, until):
    owner = threads.host("owner", space=False)
    owner.space("jobs", log_keep="all")
    asker = threads.host("asker")
    meet(owner, asker)
    owner.space("jobs").write_all([("for", "host"), ("for", "client")])
    with tupelo.connect(f"tupelo://{asker.address}/jobs", name="worker-1") as client:
        assert client.take(("for", "client"), wait=PATIENCE_SECONDS) == ("for", "client")
    assert asker.space("jobs").take(("for", "host"), wait=PATIENCE_SECONDS) == ("for", "host")
    until(lambda: not asker.core.federation.all_unsettled(), "the owner knows it")
    taken = {c.entry: c.agent_name for c in owner.space("jobs").changes() if c.kind == "taken"}
    assert taken == {("for", "client"): "worker-1", ("for", "host"): "asker"}


def test_names_are_in_the_log_after_a_restart(threads, tmp_path):
    host = threads.host("first", space=False, path=tmp_path)
    space = host.space("jobs", log_keep="all")
    with tupelo.connect(f"tupelo://{host.address}/jobs", name="worker-1") as client:
        client.write(("mine",))
    space.write(("own",))
    host.close()
    with tupelo.Space(path=tmp_path / "jobs.tupelo") as again:
        assert names_in(again.changes()) == [
            ("written", ("mine",), "worker-1"),
            ("written", ("own",), "first"),
        ]
