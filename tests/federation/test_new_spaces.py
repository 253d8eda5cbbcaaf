"""A space that is made after hosts met is seen at once: by reads, takes, counts and subscriptions,
at the hosts and for their clients, whether or not they have opened it before."""

from typing import Any

import pytest

import tupelo
from tests.conftest import until_true
from tests.federation.company import await_host
from tupelo import HERE, Access, Coverage
from tupelo.errors import BadArgument, CannotSend, NotAllAnswered, UnknownSpace
from tupelo.federation.links import wire

ROUNDS = 50
PATIENCE = 60.0


@pytest.fixture
def pair(company):
    """Two hosts that have met, without a space."""
    hosts = [company.host(name, space=False) for name in ("near", "far")]
    hosts[0].engage(hosts[1].address)
    for host, other in (hosts, hosts[::-1]):
        await_host(host, other.id, "engaged")
    return hosts


@pytest.mark.parametrize("opened", ["before", "right then"])
@pytest.mark.parametrize("verb", ["read", "take", "read_all", "count"])
def test_what_is_written_to_a_new_space_is_found_at_once_elsewhere(pair, opened, verb):
    near, far = pair
    for n in range(ROUNDS):
        name = f"new-{n}"
        mine: Any = near.space(name) if opened == "before" else None
        far.space(name).write(("job", n))
        if mine is None:
            mine = near.space(name)
        if verb == "count":
            assert mine.count() == 1
        elif verb == "read_all":
            assert mine.read_all() == [("job", n)]
        else:
            assert getattr(mine, verb)(("job", int), wait=0) == ("job", n)
    assert far.space("new-0").here.count() == (0 if verb == "take" else 1)


def test_a_client_finds_what_is_in_a_new_space_at_once(pair):
    near, far = pair
    with tupelo.connect(f"tupelo://{near.address}/first") as client:
        for n in range(ROUNDS):
            far.space(f"new-{n}").write(("job", n))
            with client.space(f"new-{n}") as mine:
                assert mine.read(("job", int), wait=0) == ("job", n)


def test_a_space_that_a_client_makes_is_found_at_once_elsewhere(pair):
    near, far = pair
    with tupelo.connect(f"tupelo://{far.address}/first") as client:
        for n in range(ROUNDS):
            with client.space(f"new-{n}") as theirs:
                theirs.write(("job", n))
                assert near.space(f"new-{n}").take(("job", int), wait=0) == ("job", n)


@pytest.mark.parametrize("door", ["host", "client"])
@pytest.mark.parametrize("verb", ["read", "take", "read_all", "take_all"])
def test_whoever_waits_is_served_from_a_space_that_is_made_later(pair, later, until, door, verb):
    near, far = pair
    mine = near.space("new")
    with tupelo.connect(f"tupelo://{near.address}/new") as client:
        waits = getattr(mine if door == "host" else client, verb)
        call = later(waits, ("job", int), wait=PATIENCE)
        until(lambda: near.core.federation.searches, "it waits")
        far.space("new").write(("job", 1))
        assert call.result() == ([("job", 1)] if verb.endswith("all") else ("job", 1))
    assert mine.count() == (0 if verb.startswith("take") else 1)


def test_a_session_that_waits_is_served_from_a_space_that_is_made_later(pair, later, until):
    near, far = pair
    session = near.space("new").session()
    assert session.read(("job", int), wait=0) is None
    call = later(session.read, ("job", int), wait=PATIENCE)
    until(lambda: near.core.federation.searches, "it waits")
    theirs = far.space("new")
    theirs.write(("job", 1))
    assert call.result() == ("job", 1)
    assert session.read(("job", int), wait=0) is None
    theirs.write(("job", 2))
    assert session.read(("job", int), wait=0) == ("job", 2)


def test_a_subscription_tells_of_a_space_that_is_made_later(pair):
    near, far = pair
    told = near.space("new").subscribe(("job", int))
    theirs = far.space("new")
    theirs.write_all([("job", 1), ("job", 2)])
    assert [told.get(wait=PATIENCE).entry for _ in range(2)] == [("job", 1), ("job", 2)]
    assert told.get(wait=0) is None


def test_a_subscription_tells_of_what_a_durable_space_had_before(pair, tmp_path):
    near, far = pair
    with tupelo.Space("new", path=tmp_path / "new.tupelo") as before:
        before.write(("job", 1))
    told = near.space("new").subscribe(("job", int))
    far.space("new", path=tmp_path / "new.tupelo").write(("job", 2))
    assert [told.get(wait=PATIENCE).entry for _ in range(2)] == [("job", 1), ("job", 2)]


def test_whoever_waited_in_vain_leaves_nothing_at_the_other_host(pair, until):
    near, far = pair
    mine = near.space("new")
    assert mine.take(("job", int), wait=0.05) is None
    told = mine.subscribe(("job", int))
    told.close()
    watches = far.core.peers[near.id]._watches
    until(lambda: not watches, "the watches are ended")
    far.space("new").write(("job", 1))
    assert mine.take(("job", int), wait=0) == ("job", 1)


def test_the_coverage_names_a_host_that_has_no_such_space(pair):
    near, _ = pair
    coverage = Coverage()
    assert near.space("new").read_all(coverage=coverage) == []
    assert sorted(coverage.covered) == ["far", "near"]
    assert coverage.missing == []


def test_a_space_with_a_password_is_no_part_of_another_hosts(pair, later, until):
    near, far = pair
    mine = near.space("new")
    call = later(mine.read, ("job", int), wait=PATIENCE)
    until(lambda: near.core.federation.searches, "it waits")
    told = mine.subscribe(("job", int))
    far.space("new", access=Access(password="sesame")).write(("job", 1))
    assert mine.read(("job", int), wait=0) is None
    assert mine.count() == 0
    mine.write(("job", 2))
    assert call.result() == ("job", 2)
    assert told.get(wait=PATIENCE).entry == ("job", 2)


def test_a_new_space_that_may_not_be_read_is_named_as_missing(pair):
    near, far = pair
    mine = near.space("new")
    told = mine.subscribe(("job", int))
    far.space("new", access=Access(read=(), take=(), subscribe=())).write(("job", 1))
    with pytest.raises(NotAllAnswered):
        mine.read(("job", int), wait=0)
    assert mine.read(("job", int), wait=0, scope=HERE) is None
    mine.write(("job", 2))
    assert told.get(wait=PATIENCE).entry == ("job", 2)


# Spaces that must exist


@pytest.mark.parametrize("aio", [False, True])
def test_a_misspelt_space_is_refused_with_the_names_that_are_near(threads, loop_thread, aio):
    host = threads.host("first")
    host.space("results")
    url = host.url

    def connect(name: str) -> object:
        if aio:
            return loop_thread.call(tupelo.aio.connect, url + name, create=False)
        return tupelo.connect(url + name, create=False)

    with pytest.raises(UnknownSpace, match="no space 'jbos' at this host; there is 'jobs'") as told:
        connect("jbos")
    assert (told.value.space, told.value.near) == ("jbos", ["jobs"])
    with pytest.raises(UnknownSpace, match=r"no space 'xyzzy' at this host$"):
        connect("xyzzy")
    assert sorted(name for name in host.core.spaces if "." not in name) == ["jobs", "results"]


def test_other_spaces_of_a_connection_and_of_the_host_itself_too(threads):
    host = threads.host("first")
    with tupelo.connect(host.url + "jobs", create=False) as jobs:
        with pytest.raises(UnknownSpace, match="'jobs'"):
            jobs.space("job", create=False)
        jobs.space("job").write(("made",))
    assert host.space("job", create=False).count() == 1
    with pytest.raises(UnknownSpace, match="'jobs'"):
        host.space("jbs", create=False)
    with pytest.raises(BadArgument, match="create="):
        tupelo.connect(host.url + "jobs", create="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("aio", [False, True])
def test_a_host_that_would_create_it_anyway_is_not_asked(threads, loop_thread, monkeypatch, aio):
    monkeypatch.setattr(wire, "LEVEL", 2)  # as a host that does not know `create`
    host = threads.host("old")
    with pytest.raises(CannotSend, match=r"older version.*nothing was done"):
        if aio:
            loop_thread.call(tupelo.aio.connect, host.url + "jbos", create=False)
        else:
            tupelo.connect(host.url + "jbos", create=False)
    with (
        tupelo.connect(host.url + "jobs") as jobs,
        pytest.raises(CannotSend, match="older version"),
    ):
        jobs.space("jbos", create=False)
    assert "jbos" not in host.core.spaces


@pytest.mark.parametrize("wrong", [{"create": "no"}, {"password": 5}, {"create": False}])
def test_a_connection_that_cannot_be_opened_leaves_no_link(threads, monkeypatch, wrong):
    monkeypatch.setattr(wire, "LEVEL", 2)
    host = threads.host("old")
    with pytest.raises((BadArgument, CannotSend)):
        tupelo.connect(host.url + "jbos", **wrong)
    until_true(lambda: not host.core.servings)


def test_a_host_that_makes_no_spaces_for_clients(threads):
    host = threads.host("first", space=False, create_spaces=False)
    with pytest.raises(UnknownSpace, match="no space 'jobs'"):
        tupelo.connect(host.url + "jobs")
    host.space("jobs")  # Its own program may.
    with tupelo.connect(host.url + "jobs") as jobs:
        jobs.write(("job", 1))
        with pytest.raises(UnknownSpace):
            jobs.space("jbos")
    with pytest.raises(BadArgument, match="create_spaces="):
        tupelo.Host("second", create_spaces=None)  # type: ignore[arg-type]
