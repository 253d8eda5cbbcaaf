"""What spans hosts when one of them is mute, dies or lies: others lose nothing by it.

The other host is a line on which the test says what it wants; what it does not say is not said.
"""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.federation.company import await_space, meet
from tests.federation.raw import Raw, encoded
from tests.laws.kinds import Job
from tupelo import ANY, Capacity, Where
from tupelo.errors import BadArgument, NotAllAnswered
from tupelo.federation.hosts.doors import AsyncHost
from tupelo.federation.identity.access import Access
from tupelo.federation.links import calls, wire
from tupelo.federation.spaces.hosted import Doubt, DoubtfulDeliveries
from tupelo.values.scope import HERE, Coverage, Scope

PATIENCE = 60.0
GLIMPSE = 0.05
FOR_EVER = 3_600.0
JOBS = ("job", int)


@pytest.fixture
def lines():
    """`lines(host, spaces=[...])` is a host that says nothing but what the test says."""
    made: list[Raw] = []

    def line(host: Any, role: str = "host", **hello: Any) -> Raw:
        raw = Raw.met(host.address, role, **hello)
        made.append(raw)
        return raw

    yield line
    for raw in made:
        raw.close()


@pytest.fixture
def host(threads):
    return threads.host("first", heartbeat=30.0)


def heard(raw: Raw, kind: type) -> Any:
    return raw.hear_until(lambda said: isinstance(said, kind))


def entry(raw: Raw, number: int) -> Any:
    return [["job", number], raw.id, number, number, None, None]


# Spaces that are not shared, agents that are not there


def test_nothing_is_moved_to_a_host_that_may_not_have_it(host, lines):
    raw = lines(host)
    agent = f"bob@{raw.id}"
    host.space("secret", access=Access(password="sesame")).write(("job", 1), to=agent)
    host.space("kept", access=Access(take=())).write(("job", 2), to=agent)
    host.space("open").write(("job", 3), to="bob@elsewhere")
    host.space("last").write(("job", 4), to=agent)
    raw.say(wire.PresenceUpdate(["secret", "kept", "open", "last"], [agent, "bob@elsewhere"]))
    assert heard(raw, wire.MoveEntry).space == "last"
    for name in ("secret", "kept", "open"):
        assert host.space(name).here.count() == 1


def test_a_space_with_a_password_asks_no_other_host(host, lines):
    raw = lines(host, spaces=["secret", "jobs"])
    await_space(host, raw.id, "secret")
    secret = host.space("secret", access=Access(password="sesame"))
    assert secret.read(JOBS, wait=GLIMPSE) is None
    assert secret.session().read_all(JOBS) == []
    assert secret.take_all(JOBS, wait=GLIMPSE) == []
    assert secret.count(JOBS, scope=Scope.agent("bob")) == 0
    listening = secret.subscribe(JOBS)
    host.core.answer_seconds = GLIMPSE
    with pytest.raises(NotAllAnswered):
        host.space("jobs").read(JOBS, wait=0)
    assert (
        raw.hear_until(lambda said: isinstance(said, wire.Ask | wire.WatchRequest)).space == "jobs"
    )
    listening.close()


# Waiting for many


def test_a_session_that_has_seen_all_waits_in_vain(company):
    space = company.host("first").space("jobs")
    space.write(("job", 1))
    session = space.session()
    assert session.read_all(JOBS, wait=PATIENCE) == [("job", 1)]
    assert session.read_all(JOBS, wait=GLIMPSE) == []
    space.write(("job", 2))
    assert session.read_all(JOBS, wait=PATIENCE) == [("job", 2)]


def test_take_all_waits_for_what_a_transaction_has_read(threads, later):
    here, there = threads.host("first"), threads.host("second")
    meet(here, there)
    space = here.space("jobs")
    space.write(("job", 1))
    txn = space.transaction()
    assert space.read(JOBS, wait=0, txn=txn) == ("job", 1)
    assert space.take_all(JOBS, wait=GLIMPSE) == []
    assert there.space("jobs").take_all(JOBS, wait=GLIMPSE) == []
    call = later(there.space("jobs").take_all, JOBS, wait=PATIENCE)
    txn.commit()
    assert call.result() == [("job", 1)]


@pytest.mark.parametrize("durable", [True, False])
def test_all_that_came_is_taken(threads, later, until, tmp_path, durable):
    hosts = [
        threads.host(name, path=tmp_path / name if durable else None) for name in ("one", "two")
    ]
    meet(*hosts)
    spaces = [host.space("jobs") for host in hosts]
    for here, there in (spaces, spaces[::-1]):
        call = later(here.take_all, JOBS, wait=PATIENCE)
        until(lambda here=here: here.host_core.federation.searches, "it waits")
        there.write_all([("job", 1), ("job", 2)])
        assert sorted(call.result()) == [("job", 1), ("job", 2)]
        call = later(here.read_all, JOBS, wait=PATIENCE, limit=2)
        until(lambda here=here: here.host_core.federation.searches, "it waits")
        here.write_all([("job", 3), ("job", 4), ("job", 5)])
        assert len(call.result()) == 2
        assert len(here.take_all(JOBS, wait=0)) == 3


# Nothing is lost


def test_what_nobody_wants_any_more_returns_to_its_place(threads, lines, until):
    """It was not confirmed, so its owner has kept it."""
    first, second = threads.host("first"), threads.host("second")
    owned = second.space("jobs")
    owned.write_all([("job", 1), ("job", 2)])
    meet(first, second)
    client = lines(first, "client")
    assert client.call(wire.Get, "jobs", encoded(*JOBS), True, 0).value
    assert owned.here.count() == 1
    client.leave()
    until(lambda: owned.here.count() == 2, "it is there")
    assert owned.here.read_all() == [("job", 1), ("job", 2)]
    assert first.space("jobs").here.count() == 0


def take_back_into_full_space(first: Any, second: Any, lines: Any, until: Any) -> Any:
    """A client of `first` confirms a take from `second`, and is interrupted: the entry stays in the
    space of `first`, which is full."""
    full = first.space("jobs", capacity=Capacity(1))
    full.write(("filler",))
    second.space("jobs").write(("job", 1))
    meet(first, second)
    client = lines(first, "client")
    got = client.call(wire.Get, "jobs", encoded(*JOBS), True, 0)
    client.say(wire.Confirm([got.call]), wire.Cancel([got.call]))
    until(lambda: full.here.count() == 2, "it is here")
    return full


def test_what_nobody_wants_any_more_stays_in_a_space_that_is_full(threads, lines, until):
    first, second = threads.host("first", space=False), threads.host("second")
    full = take_back_into_full_space(first, second, lines, until)
    assert second.space("jobs").take(JOBS, wait=0) == ("job", 1)
    assert full.here.read_all() == [("filler",)]


def test_what_returns_to_a_durable_space_outlives_the_host(threads, lines, until, tmp_path):
    second = threads.host("second")
    first = threads.host("first", path=tmp_path, space=False)
    take_back_into_full_space(first, second, lines, until)
    first.close()
    again = threads.host("first", path=tmp_path).space("jobs")
    assert sorted(again.here.read_all()) == [("filler",), ("job", 1)]


def test_one_that_cannot_be_given_back_does_not_keep_the_others():
    class Broken:
        space = "jobs"
        entries: Any = ()
        given_back = 0

        def confirm(self) -> int:
            return 0

        def give_back(self) -> int:
            Broken.given_back += 1
            raise ZeroDivisionError

        def forget(self) -> None:
            pass

    async def story() -> None:
        doubts = DoubtfulDeliveries(
            lambda name: cast(Any, SimpleNamespace(name=name, doubt=Doubt(0.0)))
        )
        doubts.leave("one", {1: Broken(), 2: Broken()}, "goodbye")
        doubts.leave("two", {1: Broken(), 2: Broken()})
        doubts.back("two", [])
        doubts.leave("three", {1: Broken(), 2: Broken()})
        async with asyncio.timeout(PATIENCE):
            while doubts.owners():
                await asyncio.sleep(0)

    asyncio.run(story())
    assert Broken.given_back == 6


def test_what_one_host_delivers_is_not_lost_with_another(threads, lines, later, until):
    host = threads.host("first", heartbeat=30.0)
    host.core.answer_seconds = FOR_EVER
    lost, honest = lines(host, spaces=["jobs"]), lines(host, spaces=["jobs"])
    await_space(host, lost.id)
    await_space(host, honest.id)
    space = host.space("jobs")
    call = later(space.take_all, JOBS, wait=0)
    lost.say(wire.Answer(heard(lost, wire.Ask).call, [entry(lost, 1)]))
    asked = heard(honest, wire.Ask).call
    until(lambda: host.core.federation.all_unsettled(), "it has come")
    lost.close()
    until(lambda: len(host.engaged) == 1, "its host is lost")
    honest.say(wire.Answer(asked, [entry(honest, 2)]))
    assert sorted(call.result()) == [("job", 1), ("job", 2)]
    settle = heard(honest, wire.Settle)
    assert settle.keep
    honest.say(wire.Answer(settle.call, True))
    until(lambda: len(host.core.federation.all_unsettled()) == 1, "the other has yet to hear")


def test_an_owner_hears_when_it_is_back_what_was_kept(threads, lines, until):
    host = threads.host("first", heartbeat=30.0)
    owner = lines(host, spaces=["jobs"])
    await_space(host, owner.id)
    space = host.space("jobs")
    taker = threading.Thread(target=lambda: got.append(space.take(JOBS, wait=PATIENCE)))
    got: list[Any] = []
    taker.start()
    peeked = heard(owner, wire.Ask)
    owner.say(wire.Answer(peeked.call, [None]))
    asked = heard(owner, wire.Ask)
    owner.say(wire.Answer(asked.call, [entry(owner, 1)]))
    assert heard(owner, wire.Settle).keep
    taker.join(PATIENCE)
    assert got == [("job", 1)]  # Nobody waits for the owner.
    owner.close()
    until(lambda: not host.engaged, "it is lost")
    again = lines(host, spaces=["jobs"], id=owner.id, incarnation=owner.incarnation)
    assert again.details.received == [asked.call]
    settle = heard(again, wire.Settle)
    assert (settle.of, settle.keep, settle.incarnation) == (asked.call, True, owner.incarnation)
    again.say(wire.Answer(settle.call, True))
    until(lambda: not host.core.federation.all_unsettled(), "it knows")


# Moving


def test_a_host_that_does_not_answer_holds_up_no_other(host, lines):
    host.core.answer_seconds = FOR_EVER
    space = host.space("jobs")
    mute, good = lines(host), lines(host)
    mute.say(wire.PresenceUpdate(["jobs"], [mute.id]))
    await_space(host, mute.id)
    space.write(("job", 1), to=mute.id)
    heard(mute, wire.MoveEntry)
    good.say(wire.PresenceUpdate(["jobs"], [good.id]))
    await_space(host, good.id)
    space.write(("job", 2), to=good.id)
    assert heard(good, wire.MoveEntry).entry[0] == ["job", 2]


def test_a_late_answer_is_heard(host, lines, until):
    host.core.answer_seconds = GLIMPSE
    space = host.space("jobs")
    late = lines(host)
    late.say(wire.PresenceUpdate(["jobs"], [late.id]))
    space.write(("job", 1), to=late.id)
    space.write(("job", 2), to=late.id)
    move = heard(late, wire.MoveEntry)
    until(lambda: host.core.doubts.owners(), "it is in doubt")
    late.say(wire.Answer(move.call, True))
    second = heard(late, wire.MoveEntry)
    assert second.entry[0] == ["job", 2]
    late.say(wire.Answer(second.call, False))
    until(lambda: not host.core.mover._under_way, "it is decided")
    assert space.here.read_all() == [("job", 2)]
    assert not host.core.doubts.owners()


@pytest.mark.parametrize("then", ["return", "forget"])
def test_what_was_moved_to_a_host_that_is_lost_is_in_doubt(threads, lines, until, then):
    host = threads.host("first", doubt=Doubt(apart_seconds=GLIMPSE, then=then))
    space = host.space("jobs")
    raw = lines(host)
    raw.say(wire.PresenceUpdate(["jobs"], [raw.id]))
    space.write(("job", 1), to=raw.id)
    heard(raw, wire.MoveEntry)
    raw.close()
    if then == "return":
        assert space.take(JOBS, wait=PATIENCE) == ("job", 1)
    until(lambda: not host.core.mover._under_way, "it is decided")
    assert space.here.count() == 0
    assert not host.core.doubts.owners()


def test_what_was_moved_to_a_host_that_is_away_waits_until_it_is_given_up(threads, lines, until):
    host = threads.host("first", doubt=Doubt(GLIMPSE))
    space = host.space("jobs")
    raw = lines(host)
    raw.say(wire.PresenceUpdate(["jobs"], [raw.id]))
    space.write(("job", 1), to=raw.id)
    heard(raw, wire.MoveEntry)
    with pytest.raises(BadArgument, match="host="):
        host.give_up(raw.id)  # It is engaged.
    raw.close()
    until(lambda: host.in_doubt == {raw.id: 1}, "it is in doubt")
    assert space.take(JOBS, wait=0) is None
    with pytest.raises(BadArgument, match="host="):
        host.give_up("")
    assert host.give_up("somebody else") == 0
    assert host.give_up(raw.id) == 1
    assert space.take(JOBS, wait=0) == ("job", 1)
    assert host.in_doubt == {}


def test_what_was_being_moved_returns_after_a_restart(threads, lines, tmp_path):
    host = threads.host("first", path=tmp_path)
    raw = lines(host)
    raw.say(wire.PresenceUpdate(["jobs"], [raw.id]))
    host.space("jobs").write(("job", 1), to=raw.id)
    heard(raw, wire.MoveEntry)
    host.close()
    again = threads.host("first", path=tmp_path, doubt=Doubt(apart_seconds=GLIMPSE)).space("jobs")
    assert again.take(JOBS, wait=PATIENCE) == ("job", 1)


def test_what_is_too_full_to_be_moved_to_stays(threads, until):
    first, second = threads.host("first"), threads.host("second", space=False)
    full = second.space("jobs", capacity=Capacity(1))
    full.write(("filler",))
    meet(first, second)
    space = first.space("jobs")
    space.write(("job", 1), to=second.id)
    until(lambda: space.here.count() == 1 and not first.core.mover._under_way, "it is back")
    assert full.here.read_all() == [("filler",)]
    assert space.here.take(JOBS, wait=PATIENCE) == ("job", 1)


# Being told


def test_a_mute_host_keeps_no_notice_back():
    async def story() -> None:
        async with AsyncHost("first", listen=0, heartbeat=30.0) as host:
            host.core.answer_seconds = GLIMPSE  # So long does the subscription wait for it.
            space = host.space("jobs")
            raw = await asyncio.to_thread(Raw.met, host.address, "host", spaces=["jobs"])
            listening = await space.subscribe(JOBS)
            host.core.answer_seconds = FOR_EVER
            await space.write(("job", 1))
            async with asyncio.timeout(PATIENCE):
                notice = await listening.get()
                assert await listening.get(wait=0) is None
            assert notice is not None and notice.subject.fields == ("job", 1)
            await listening.close()
            raw.close()

    asyncio.run(story())


UNSENDABLE = pytest.mark.parametrize(
    "unsendable",
    [bytes(wire.MESSAGE_MAX), "\ud800", Job("\ud800")],
    ids=["long", "text", "dataclass"],
)


@UNSENDABLE
def test_what_cannot_be_sent_is_passed_over(threads, unsendable):
    here, there = threads.host("first"), threads.host("second")
    meet(here, there)
    mine, theirs = here.space("jobs"), there.space("jobs")
    theirs.write_all([("job", unsendable), ("job", 1), ("job", 2)])
    assert mine.read(("job", ANY), wait=PATIENCE) == ("job", 1)
    assert mine.take(("job", ANY), wait=PATIENCE) == ("job", 1)
    assert mine.read_all(("job", ANY)) == [("job", 2)]
    assert mine.take_all(("job", ANY)) == [("job", 2)]
    assert theirs.take_all(scope=HERE) == [("job", unsendable)]


@UNSENDABLE
def test_what_cannot_be_told_is_counted(threads, unsendable):
    here, there = threads.host("first"), threads.host("second")
    meet(here, there)
    with here.space("jobs").subscribe() as listening:
        for told in (("job", 1), ("job", unsendable), ("job", 2)):
            there.space("jobs").write(told)
        first, second = listening.get(wait=PATIENCE), listening.get(wait=PATIENCE)
    assert (first.entry, second.entry) == (("job", 1), ("job", 2))
    assert first.missed + second.missed == 1


# What is said of it


def test_a_count_of_an_agents_entries_says_who_is_missing(host, lines):
    host.core.answer_seconds = GLIMPSE
    raw = lines(host, spaces=["jobs"], name="mute")
    await_space(host, raw.id)
    space = host.space("jobs")
    with pytest.raises(NotAllAnswered):
        space.count(JOBS, scope=Scope.agent("bob"))
    coverage = Coverage()
    assert space.count(JOBS, scope=Scope.agent("bob"), coverage=coverage) == 0
    assert (coverage.covered, coverage.missing) == (["first"], ["mute"])


@pytest.mark.parametrize("verb", ["read", "take", "read_all", "take_all", "count"])
def test_a_coverage_of_a_wrong_type(company, verb):
    space = company.host("first").space("jobs")
    space.write(("job", 1))
    things = [space, space.session()] if verb.startswith("read") else [space]
    for thing in things:
        with pytest.raises(BadArgument, match="coverage"):
            getattr(thing, verb)(JOBS, coverage=5)
    assert space.here.count() == 1


def test_a_function_in_a_template_is_asked_here(company, until):
    first, second = company.host("first"), company.host("second")
    meet(first, second)
    space = first.space("jobs")
    even = ("job", Where(lambda number: number % 2 == 0))
    reacted: list[Any] = []
    listening = space.subscribe(even, scope=HERE)
    reaction = space.react(even, lambda entry, step: reacted.append(entry), scope=HERE)
    second.space("jobs").write(("job", 4))
    space.write_all([("job", 1), ("job", 2)])
    assert listening.get(wait=PATIENCE).entry == ("job", 2)
    until(lambda: reacted, "it reacts")
    assert reacted == [("job", 2)]
    assert space.session().read(even, wait=PATIENCE, scope=HERE) == ("job", 2)
    assert space.session().read_all(even, scope=HERE) == [("job", 2)]
    assert space.take(even, wait=0, scope=HERE) == ("job", 2)
    assert space.take(even, wait=GLIMPSE, scope=HERE) is None
    listening.close()
    reaction.cancel()


def test_a_host_that_asks_too_much_at_a_time_is_hung_up(host, lines, monkeypatch):
    monkeypatch.setattr(calls, "CALLS_MAX", 10)
    raw = lines(host)
    raw.say(*(wire.CountRequest(call, "jobs", encoded(*JOBS)) for call in range(1, 101)))
    assert raw.is_hung_up()


def test_what_was_there_before_is_not_told_of_when_hosts_meet_again(threads):
    near, far = threads.host("near"), threads.host("far")
    far.space("jobs").write(("old", 1))
    near.engage(far.address)
    meet(near, far)
    with near.space("jobs").subscribe(("old", int)) as old, near.space("jobs").subscribe() as all_:
        for peer in list(near.core.peers.values()):
            near.soon(peer.talk.end, "cut")
        far.space("jobs").write(("new", 2))
        notice = all_.get(wait=20)
        assert notice is not None and notice.entry == ("new", 2)
        assert old.get(wait=0) is None


def test_within_a_transaction_one_does_not_look_elsewhere(threads):
    near, far = threads.host("near"), threads.host("far")
    near.engage(far.address)
    meet(near, far)
    space = near.space("jobs")
    with space.transaction() as txn:
        for verb in (space.read, space.take, space.read_all, space.take_all):
            with pytest.raises(BadArgument, match="scope="):
                verb(wait=0, txn=txn, scope=Scope.host("far"))
        assert space.read(wait=0, txn=txn, scope=HERE) is None
