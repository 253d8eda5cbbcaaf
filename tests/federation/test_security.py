"""Hosts that know each other by their identities: who is let in, and what they may do.

Real hosts under TLS on loopback. That someone comes from beyond this machine is the one thing that
is feigned."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.federation.company import await_host, await_space, meet, port_number
from tests.federation.raw import Raw, encoded
from tupelo.errors import (
    CannotReach,
    IdentityChanged,
    NotAllAnswered,
    NotAllowed,
    Stranger,
    WrongPassword,
)
from tupelo.federation.client.connect import connect
from tupelo.federation.hosts.doors import Host
from tupelo.federation.hosts.presence import AgentPresence, HostPresence
from tupelo.federation.identity.access import ANYONE, LOCAL, Access
from tupelo.federation.identity.keys import Identity, id_of
from tupelo.federation.identity.trust import Trust
from tupelo.federation.links import tcp, wire
from tupelo.values.scope import Coverage

PATIENCE = 60.0


@pytest.fixture(scope="module")
def alice():
    return Identity.new()


@pytest.fixture(scope="module")
def bob():
    return Identity.new()


@pytest.fixture(scope="module")
def mallory():
    return Identity.new()


@pytest.fixture
def dial():
    """`dial(host, identity)`: the host's space, as a client with this identity sees it."""
    made = []

    def call(host, identity=None, space="jobs", **options):
        if identity is not None:
            options.setdefault("trust", Trust.known([host.identity]))
        space = connect(f"tupelo://{host.address}/{space}", identity=identity, **options)
        made.append(space)
        return space

    yield call
    for space in made:
        space.close()


@pytest.fixture
def afar(monkeypatch):
    """Everyone seems to come from another machine."""
    monkeypatch.setattr(tcp, "is_loopback", lambda host: False)


def known(*identities: Identity) -> Trust:
    return Trust.known([identity.key for identity in identities])


# Hosts


def test_hosts_that_know_each_other_meet_under_tls(company, alice, bob):
    first = company.host("first", identity=alice, trust=known(bob))
    second = company.host("second", identity=bob, trust=known(alice))
    assert (first.identity, first.id) == (alice.key, id_of(alice.key))
    meet(first, second)
    second.space("jobs").write(("job", 1))
    assert first.space("jobs").take(("job", int), wait=PATIENCE) == ("job", 1)
    assert first.core.peers[second.id].talk.link.identity == bob.key
    assert second.core.peers[first.id].talk.link.identity == alice.key


def test_a_host_that_is_a_stranger_is_refused_and_both_ends_say_why(
    threads, alice, bob, caplog, until
):
    caplog.set_level(logging.INFO, "tupelo")
    first = threads.host("first", identity=alice, trust=known())
    second = threads.host("second", identity=bob, trust=known(alice))
    second.engage(first.address)
    refused = f"has the identity {bob.key}, which is not among the known ones"
    until(lambda: any("was refused" in line and refused in line for line in lines(caplog)))
    until(lambda: any(line.startswith(first.address) and refused in line for line in lines(caplog)))
    assert first.engaged == second.engaged == []


def lines(caplog: Any) -> list[str]:
    return [record.getMessage() for record in list(caplog.records)]


def test_a_host_does_not_speak_to_a_stranger_that_answers(threads, alice, bob, caplog, until):
    caplog.set_level(logging.INFO, "tupelo")
    first = threads.host("first", identity=alice, trust=Trust.anyone())
    second = threads.host("second", identity=bob, trust=known())
    second.engage(first.address)
    refused = f"has the identity {alice.key}, which is not among the known ones"
    until(lambda: any(refused in line for line in lines(caplog)))
    assert first.engaged == second.engaged == []
    assert first.presence.read(HostPresence(second.id), wait=0) is None


def test_a_host_without_an_identity_is_not_met_from_afar(threads, alice, afar, caplog, until):
    caplog.set_level(logging.INFO, "tupelo")
    first = threads.host("first", identity=alice, trust=Trust.anyone())
    second = threads.host("second")
    second.engage(first.address)
    until(lambda: any("we have no identity" in line for line in lines(caplog)))
    assert first.engaged == second.engaged == []


def test_a_host_that_listens_to_the_world_refuses_strangers(threads, dial, alice, mallory, caplog):
    host = threads.host("first", listen="0.0.0.0:0", identity=alice)
    address = f"127.0.0.1:{port_number(host.address)}"
    with pytest.raises(Stranger, match="not among the known ones"):
        connect(f"tupelo://{address}/jobs", identity=mallory, trust=known(alice))
    assert any(f"identity {mallory.key}" in line for line in lines(caplog))
    with connect(f"tupelo://{address}/jobs") as space:  # a program of this machine
        space.write(("job", 1))
        assert space.take(("job", int), wait=0) == ("job", 1)


def test_a_host_that_listens_to_the_world_has_an_identity(tmp_path):
    with Host("first", listen="0.0.0.0:0", path=tmp_path) as host:
        key = host.identity
        assert key is not None and key.startswith("ed25519:")
    with Host("first", listen="0.0.0.0:0", path=tmp_path) as host:
        assert host.identity == key


# Those who pretend


def test_a_host_cannot_take_the_id_of_another(threads, alice, bob, mallory):
    first = threads.host("first", identity=alice, trust=known(bob, mallory))
    second = threads.host("second", identity=bob, trust=known(alice))
    meet(first, second)
    forged = Raw.secure(first.address, mallory)
    refusal = forged.greet("host", id=second.id)
    assert isinstance(refusal, wire.Refusal) and refusal.kind == "Stranger"
    assert forged.is_hung_up()
    forged.close()
    assert first.engaged == ["second"]
    second.space("jobs").write(("job", 1))
    assert first.space("jobs").take(("job", int), wait=PATIENCE) == ("job", 1)


def test_a_program_here_without_an_identity_cannot_take_the_id_of_a_host_that_has_one(
    threads, alice, bob
):
    first = threads.host("first", identity=alice, trust=known(bob))
    second = threads.host("second", identity=bob, trust=known(alice))
    meet(first, second)
    forged = Raw(first.address)
    refusal = forged.greet("host", id=second.id)
    assert isinstance(refusal, wire.Refusal) and refusal.kind == "Stranger"
    forged.close()
    assert first.engaged == ["second"]
    second.space("jobs").write(("job", 1))
    assert first.space("jobs").take(("job", int), wait=PATIENCE) == ("job", 1)


def test_a_client_cannot_take_the_name_of_another(threads, alice, bob, mallory):
    """The agent is the identity that was proved, whatever the hello says."""
    host = threads.host("first", identity=alice, trust=known(bob, mallory))
    raw = Raw.secure(host.address, mallory)
    raw.greet("client", id=bob.key)
    raw.call(wire.Write, "jobs", [["job", 1]])
    got = raw.call(wire.Get, "jobs", encoded("job", int), False, 0.0, whole=True).value[0]
    assert mallory.key in got[1] and bob.key not in got[1]
    raw.close()


def test_a_client_cannot_resume_the_session_of_another_identity(
    threads, alice, bob, mallory, until
):
    host = threads.host("first", identity=alice, trust=known(bob, mallory))
    space = host.space("jobs")
    space.write(("job", 1))
    lost = Raw.secure(host.address, bob)
    lost.greet("client")
    assert lost.call(wire.Get, "jobs", encoded("job", int), True, 0.0).value == [["job", 1]]
    lost.close()
    until(host.core.doubts.owners)
    forged = Raw.secure(host.address, mallory)
    forged.greet("client", id=lost.id, resume=lost.welcome.session, received=[1])
    assert host.core.doubts.owners()
    back = Raw.secure(host.address, bob)
    back.greet("client", resume=lost.welcome.session, received=[])
    assert space.take(("job", int), wait=PATIENCE) == ("job", 1)
    for raw in (forged, back):
        raw.close()


# Clients


def test_a_known_client_is_let_in_under_its_identity(threads, dial, alice, bob):
    host = threads.host("first", identity=alice, trust=known(bob))
    space = dial(host, bob)
    space.write(("job", 1))
    assert host.space("jobs").take(("job", int), wait=0) == ("job", 1)
    agents = host.presence.read_all(AgentPresence(host=host.id))
    assert any(bob.key in agent.id for agent in agents)


def test_a_client_that_is_a_stranger_is_told_so_and_the_host_says_so(
    threads, dial, alice, mallory, caplog
):
    host = threads.host("first", identity=alice, trust=known())
    with pytest.raises(Stranger) as caught:
        dial(host, mallory)
    assert mallory.key in str(caught.value)
    assert any("was refused" in line and mallory.key in line for line in lines(caplog))


def test_a_client_does_not_speak_to_a_host_that_is_a_stranger(threads, dial, alice, bob):
    host = threads.host("first", identity=alice, trust=Trust.anyone())
    with pytest.raises(Stranger) as caught:
        dial(host, bob, trust=known())
    assert alice.key in str(caught.value)


def test_a_client_without_an_identity_is_refused_from_afar(threads, alice, afar):
    host = threads.host("first", identity=alice, trust=Trust.anyone())
    with pytest.raises(CannotReach, match="it wants TLS"):
        connect(f"tupelo://{host.address}/jobs", tls=False)


def test_a_host_without_an_identity_cannot_be_asked_for_tls(threads, dial, bob):
    host = threads.host("first")
    with pytest.raises(CannotReach, match="no identity"):
        connect(f"tupelo://{host.address}/jobs", identity=bob, trust=Trust.anyone())


def test_on_first_use_a_host_is_remembered_and_another_in_its_place_refused(
    threads, dial, alice, bob, mallory, tmp_path
):
    trust = Trust.on_first_use(tmp_path / "known_hosts")
    host = threads.host("first", identity=alice, trust=Trust.anyone())
    port = port_number(host.address)
    for _ in range(2):
        with connect(f"tupelo://{host.address}/jobs", identity=bob, trust=trust) as space:
            space.write(("job", 1))
    host.close()
    other = threads.host("first", listen=port, identity=mallory, trust=Trust.anyone())
    with pytest.raises(IdentityChanged) as caught:
        connect(f"tupelo://{other.address}/jobs", identity=bob, trust=trust)
    assert alice.key in str(caught.value) and mallory.key in str(caught.value)


def test_on_first_use_a_host_remembers_its_clients(threads, dial, alice, bob, mallory, tmp_path):
    trust = Trust.on_first_use(tmp_path / "known")
    host = threads.host("first", identity=alice, trust=trust)
    dial(host, bob, name="worker")
    with pytest.raises(IdentityChanged):
        dial(host, mallory, name="worker")
    dial(host, mallory, name="other")
    dial(host, bob, name="worker")


# Rules

VERBS: dict[str, Callable[[Any], object]] = {
    "read": lambda space: space.read(wait=0),
    "write": lambda space: space.write(("job", 2)),
    "take": lambda space: space.take(wait=0),
    "subscribe": lambda space: space.subscribe(),
    "administer": lambda space: space.trim(before=0),
}
MORE: dict[str, list[Callable[[Any], object]]] = {
    "read": [lambda s: s.read_all(), lambda s: s.count(), lambda s: s.changes()],
    "write": [lambda s: s.write_all([("job", 3)])],
    "take": [lambda s: s.take_all()],
    "subscribe": [],
    "administer": [lambda s: s.in_doubt()],
}


@pytest.mark.parametrize("operation", VERBS)
def test_only_those_may_whom_the_rule_names(threads, dial, alice, bob, mallory, operation, caplog):
    host = threads.host("first", space=False, identity=alice, trust=known(bob, mallory))
    rules: dict[str, Any] = {**dict.fromkeys(VERBS, ANYONE), operation: [bob.key]}
    host.space("jobs", access=Access(**rules), log_keep=100).write(("job", 1))
    may, may_not, local = dial(host, bob), dial(host, mallory), dial(host)
    for space in (may_not, local):
        for verb in (VERBS[operation], *MORE[operation]):
            with pytest.raises(NotAllowed) as caught:
                verb(space)
            assert (caught.value.operation, caught.value.space) == (operation, "jobs")
        for other, verb in VERBS.items():
            if other not in (operation, "take"):
                verb(space)
    assert host.space("jobs").read(("job", 1), wait=0) == ("job", 1)
    assert any("refused" in line and mallory.key in line for line in lines(caplog))
    for verb in (VERBS[operation], *MORE[operation]):
        verb(may)


def test_programs_of_this_machine_may_be_named_in_a_rule(threads, dial, alice, bob):
    host = threads.host("first", space=False, identity=alice, trust=known(bob))
    host.space("jobs", access=Access(write=LOCAL))
    dial(host).write(("job", 1))
    with pytest.raises(NotAllowed):
        dial(host, bob).write(("job", 2))


def test_nobody_from_elsewhere_administers_unless_told_otherwise(threads, dial, alice, bob):
    host = threads.host("first", space=False, identity=alice, trust=known(bob))
    host.space("jobs", log_keep=100)
    with pytest.raises(NotAllowed):
        dial(host, bob).trim(before=0)
    dial(host).trim(before=0)


def test_the_rules_of_a_space_hold_for_the_agents_of_other_hosts(threads, alice, bob):
    first = threads.host("first", space=False, identity=alice, trust=known(bob))
    second = threads.host("second", identity=bob, trust=known(alice))
    first.space("jobs", access=Access(take=[alice.key])).write(("job", 1))
    meet(first, second)
    space = second.space("jobs")
    assert space.read(("job", int), wait=0) == ("job", 1)
    with pytest.raises(NotAllAnswered):
        space.take(("job", int), wait=0)
    coverage = Coverage()
    assert space.take_all(coverage=coverage) == []
    assert coverage.missing == ["first"]
    assert first.space("jobs").count() == 1


# Passwords


@pytest.fixture
def locked(threads):
    host = threads.host("first")
    host.space("safe", access=Access(password="open sesame")).write(("job", 1))
    return host


def test_the_right_password_opens_a_space(locked, dial):
    space = dial(locked, space="safe", password="open sesame")
    assert space.read(("job", int), wait=0) == ("job", 1)
    space.write(("job", 2))
    assert space.take(("job", 2), wait=0) == ("job", 2)


@pytest.mark.parametrize("password", [None, "", "open sesame ", "OPEN SESAME"])
def test_any_other_does_not(locked, dial, password, caplog):
    with pytest.raises(WrongPassword):
        dial(locked, space="safe", password=password)
    assert "open sesame" not in caplog.text


def test_a_password_that_is_no_text_cannot_be_sent(locked, dial):
    with pytest.raises(ValueError, match="password="):
        dial(locked, space="safe", password="\ud800")


def test_one_who_does_not_show_it_may_do_nothing(locked):
    raw = Raw.met(locked.address)
    for call in (
        (wire.Get, "safe", encoded("job", int), True, 0.0),
        (wire.Get, "safe", encoded("job", int), False, 0.0),
        (wire.Write, "safe", [["job", 2]]),
        (wire.CountRequest, "safe", encoded("job", int)),
        (wire.Subscribe, "safe", encoded("job", int)),
        (wire.Begin, "safe"),
        (wire.Changes, "safe"),
        (wire.OpenSession, "safe"),
        (wire.Trim, "safe", 0),
    ):
        assert raw.call(*call).kind == "WrongPassword"
    raw.close()
    assert locked.space("safe").count() == 1


def test_what_one_has_shown_is_not_shown_by_another(locked, dial):
    dial(locked, space="safe", password="open sesame")
    with pytest.raises(WrongPassword):
        dial(locked, space="safe")


def test_a_space_with_a_password_is_no_part_of_a_federation(locked, threads):
    other = threads.host("second", space=False)
    other.space("safe").write(("job", 2))
    other.space("jobs")
    other.engage(locked.address)
    await_space(other, locked.id)
    await_host(locked, other.id, "engaged")
    assert other.space("safe").read_all() == [("job", 2)]
    raw = Raw.met(locked.address, "host")
    # It is answered as if there were no such space, and told of nothing.
    assert raw.call(wire.Ask, "safe", encoded("job", int), "take").value == []
    assert raw.call(wire.WatchRequest, "safe", encoded("job", int), 1, existing=True).value is None
    assert raw.call(wire.UnwatchRequest, 1).value == 0
    raw.close()
    assert locked.space("safe").here.count() == 1
