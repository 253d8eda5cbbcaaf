"""Hosts that meet: what is at one can be had at all, wherever it is and whenever it comes.

Real hosts on real sockets, two or three at a time, some in processes of their own."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import tupelo
from tests.federation.company import await_host, await_space, meet, port_number
from tupelo.errors import (
    BadArgument,
    HostClosed,
    NotAllAnswered,
    PeerLost,
    UnknownHost,
    UnknownType,
)
from tupelo.federation.hosts.doors import AsyncHost, Host
from tupelo.federation.hosts.presence import AgentPresence, HostPresence, SpacePresence
from tupelo.federation.spaces.hosted import Doubt
from tupelo.values.scope import HERE, Coverage, Scope

PATIENCE = 60.0
GLIMPSE = 0.05


@pytest.fixture
def pair(company):
    first, second = company.host("first"), company.host("second")
    meet(first, second)
    return first.space("jobs"), second.space("jobs")


@pytest.fixture
def three(company):
    hosts = [company.host(name) for name in ("first", "second", "third")]
    meet(*hosts)
    return [host.space("jobs") for host in hosts]


# What is there


def test_an_entry_is_read_and_taken_wherever_it_is(three):
    three[2].write(("job", 1))
    assert three[0].read(("job", int), wait=0) == ("job", 1)
    assert three[1].read(("job", int), wait=0) == ("job", 1)
    assert three[0].take(("job", int), wait=0) == ("job", 1)
    assert [space.take(("job", int), wait=0) for space in three] == [None] * 3
    assert three[2].here.count() == 0


def test_all_entries_of_all_hosts_are_read_counted_and_taken(three):
    for number, space in enumerate(three):
        space.write_all([("job", number), ("job", number + 10)])
    everything = sorted(("job", n) for n in (0, 1, 2, 10, 11, 12))
    coverage = Coverage()
    assert sorted(three[0].read_all(("job", int), coverage=coverage)) == everything
    assert (sorted(coverage.covered), coverage.missing) == (["first", "second", "third"], [])
    assert three[1].count(("job", int)) == 6
    assert sorted(three[2].take_all(("job", int))) == everything
    assert three[0].count(("job", int)) == 0


def test_no_more_than_the_limit_is_taken_and_the_rest_stays(three):
    for number, space in enumerate(three):
        space.write_all([("job", number), ("job", number + 10)])
    assert len(three[0].read_all(limit=5)) == 5
    taken = three[0].take_all(limit=4)
    left = three[1].read_all()
    assert (len(taken), len(left)) == (4, 2)
    assert sorted(taken + left) == sorted(("job", n) for n in (0, 1, 2, 10, 11, 12))


def test_where_nothing_matches_nothing_is_found(three):
    three[1].write(("other", 1))
    coverage = Coverage()
    assert three[0].read(("job", int), wait=0, coverage=coverage) is None
    assert sorted(coverage.covered) == ["first", "second", "third"]
    assert three[0].take(("job", int), wait=0) is None
    assert three[0].read_all(("job", int)) == three[0].take_all(("job", int)) == []
    assert three[0].count(("job", int)) == 0
    assert three[2].count() == 1


def test_what_a_transaction_holds_elsewhere_is_not_had_before_it_ends(threads):
    first, second = threads.host("first"), threads.host("second")
    meet(first, second)
    here, there = first.space("jobs"), second.space("jobs")
    there.write(("job", 1))
    txn = there.transaction()
    assert there.take(("job", int), wait=0, txn=txn) == ("job", 1)
    assert here.take(("job", int), wait=0) is None
    txn.abort()
    assert here.take(("job", int), wait=PATIENCE) == ("job", 1)


def test_entries_of_one_source_come_in_the_order_in_which_they_were_written(three):
    for number in range(20):
        three[1].write(("job", number))
    assert [three[0].take(("job", int), wait=0)[1] for _ in range(10)] == list(range(10))
    assert [entry[1] for entry in three[0].read_all()] == list(range(10, 20))
    assert [entry[1] for entry in three[2].take_all()] == list(range(10, 20))


def test_an_order_that_can_be_sent_rules_elsewhere_too(pair):
    here, there = pair
    there.write_all([("job", number) for number in (2, 3, 1)])
    assert here.read(("job", int), wait=0, order=tupelo.Lifo()) == ("job", 1)
    assert here.take(("job", int), wait=0, order=tupelo.Key(1, reverse=True)) == ("job", 3)


def test_code_is_not_sent(pair):
    here, there = pair
    there.write(("job", 1))
    with pytest.raises(tupelo.TupeloError):
        here.take(("job", tupelo.Where(lambda number: number == 1)), wait=0)
    assert there.count(("job", int)) == 1


# What comes later


@pytest.mark.parametrize("verb", ["read", "take", "read_all", "take_all"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_who_waits_gets_what_comes_anywhere(three, later, verb, place):
    call = later(getattr(three[0], verb), ("job", int), wait=PATIENCE)
    three[place].write(("job", 7))
    found = call.result()
    assert found == ([("job", 7)] if verb.endswith("all") else ("job", 7))
    assert three[1].count() == (1 if verb.startswith("read") else 0)


@pytest.mark.parametrize("verb", ["read", "take"])
def test_one_who_waits_gets_what_a_host_brings_that_engages_later(company, later, verb):
    first, second = company.host("first"), company.host("second")
    second.space("jobs").write(("job", 7))
    call = later(getattr(first.space("jobs"), verb), ("job", int), wait=PATIENCE)
    first.engage(second.address)
    assert call.result() == ("job", 7)


def test_one_who_waits_hears_of_a_space_that_is_made_later(company, later):
    first, second = company.host("first"), company.host("second", space=False)
    first.engage(second.address)
    await_host(first, second.id, "engaged")
    call = later(first.space("jobs").take, ("job", int), wait=PATIENCE)
    second.space("jobs").write(("job", 7))
    assert call.result() == ("job", 7)


@pytest.mark.parametrize("verb", ["read", "take", "read_all", "take_all"])
def test_one_whose_time_is_up_takes_nothing_afterwards(pair, verb):
    here, there = pair
    assert not getattr(here, verb)(("job", int), wait=GLIMPSE)
    there.write(("job", 1))
    here.write(("job", 2))
    assert (there.here.count(), here.here.count()) == (1, 1)
    assert here.count() == 2


def test_two_takers_at_different_hosts_never_get_the_same(three, later):
    calls = [later(space.take, ("job", int), wait=PATIENCE) for space in three]
    for number in range(3):
        three[1].write(("job", number))
    assert sorted(call.result() for call in calls) == [("job", n) for n in range(3)]
    assert three[0].count() == 0


def test_the_taker_that_comes_too_late_waits_on_and_gets_the_next(three, later, until):
    first = later(three[0].take, ("job", int), wait=PATIENCE)
    second = later(three[2].take, ("job", int), wait=PATIENCE)
    three[1].write(("job", 1))
    until(lambda: not (first.waits and second.waits), "one of them has it")
    assert first.waits or second.waits
    three[1].write(("job", 2))
    assert {first.result(), second.result()} == {("job", 1), ("job", 2)}


def test_many_takers_at_all_hosts_share_out_everything(three, later):
    def work(space):
        taken = []
        while (entry := space.take(("job", int), wait=PATIENCE)) != ("job", -1):
            taken.append(entry[1])
        return taken

    calls = [later(work, space) for space in three for _ in range(3)]
    for number in range(150):
        three[number % 3].write(("job", number))
    shared: list[int] = []
    for _ in calls:
        three[0].write(("job", -1))
    for call in calls:
        shared += call.result()
    # There is no order between hosts: the last takers may stop before all jobs are taken.
    shared += [entry[1] for entry in three[0].take_all()]
    assert sorted(shared) == list(range(150))


# Cancelled


def on_a_loop(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 3 * PATIENCE))


@asynccontextmanager
async def two_hosts() -> AsyncIterator[tuple[Any, Any]]:
    async with (
        AsyncHost("a", listen=0, heartbeat=5.0) as a,
        AsyncHost("b", listen=0, heartbeat=5.0) as b,
    ):
        a.space("jobs"), b.space("jobs")
        a.engage(b.address)
        for host, other in ((a, b), (b, a)):
            assert await host.presence.read(SpacePresence("jobs", other.id), wait=PATIENCE)
        yield a, b


def test_a_wait_that_is_cancelled_loses_nothing():
    async def scenario() -> None:
        async with two_hosts() as (a, b):
            here, there = a.space("jobs"), b.space("jobs")
            waiting = asyncio.ensure_future(here.take(("job", int)))
            await here.read(("job", int), wait=GLIMPSE)
            waiting.cancel()
            await asyncio.wait([waiting])
            await there.write(("job", 1))
            assert await there.here.count() == 1
            assert await here.take(("job", int), wait=0) == ("job", 1)

    on_a_loop(scenario())


def test_a_take_that_is_cancelled_at_any_moment_loses_nothing():
    """The entry is with the one who took it or in the space, never both, never neither."""

    async def scenario() -> None:
        rng = random.Random(7)
        async with two_hosts() as (a, b):
            here, there = a.space("jobs"), b.space("jobs")
            written = 60
            taken: list[Any] = []
            for number in range(written):
                await there.write(("job", number))
                call = asyncio.ensure_future(here.take(("job", number), wait=PATIENCE))
                await asyncio.sleep(rng.uniform(0, 0.002))  # Any moment will do.
                call.cancel()
                await asyncio.wait([call])
                if not call.cancelled():
                    taken.append(call.result())
            left: list[Any] = []
            while len(left) + len(taken) < written:
                entry = await here.take(("job", int), wait=PATIENCE)
                assert entry is not None, "an entry is lost"
                left.append(entry)
            assert await here.take(wait=0) is None
            assert Counter(left + taken) == Counter(("job", n) for n in range(written))

    on_a_loop(scenario())


# Where to look


def test_here_is_this_host_alone(pair):
    here, there = pair
    there.write(("job", 1))
    coverage = Coverage()
    assert here.read(("job", int), wait=0, scope=HERE, coverage=coverage) is None
    assert coverage.covered == ["first"]
    assert here.take(("job", int), wait=GLIMPSE, scope=HERE) is None
    assert here.read_all(scope=HERE) == here.take_all(scope=HERE) == []
    assert (here.count(scope=HERE), there.count(scope=HERE)) == (0, 1)


def test_one_host_can_be_asked_by_its_name_or_its_id(three):
    for number, space in enumerate(three):
        space.write(("job", number))
    third = three[2]
    coverage = Coverage()
    scope = Scope.host("third")
    assert three[0].read(("job", int), wait=0, scope=scope, coverage=coverage) == ("job", 2)
    assert coverage.covered == ["third"]
    assert three[0].read_all(scope=scope) == [("job", 2)]
    assert three[0].count(scope=scope) == 1
    assert three[0].take(wait=0, scope=Scope.host(third.host_core.id)) == ("job", 2)
    assert three[0].take(wait=0, scope=scope) is None
    assert three[0].count() == 2


def test_one_who_waits_for_one_host_is_not_served_by_another(three, later):
    call = later(three[0].take, ("job", int), wait=PATIENCE, scope=Scope.host("third"))
    three[0].write(("job", 0))
    three[1].write(("job", 1))
    three[2].write(("job", 2))
    assert call.result() == ("job", 2)
    assert sorted(three[0].read_all()) == [("job", 0), ("job", 1)]


def test_a_host_that_nobody_knows_is_said_to_be_unknown(pair):
    here, _ = pair
    for verb in (here.read, here.take):
        with pytest.raises(UnknownHost) as caught:
            verb(wait=0, scope=Scope.host("nobody"))
        assert caught.value.name == "nobody"
    for verb in (here.read_all, here.take_all, here.count, here.subscribe):
        with pytest.raises(UnknownHost):
            verb(scope=Scope.host("nobody"))


def test_an_agent_is_asked_for_what_it_wrote(pair):
    here, there = pair
    here.write(("job", 1))
    there.write(("job", 2))
    agent = Scope.agent(there.host_core.id)
    assert here.read_all(scope=agent) == [("job", 2)]
    assert here.count(scope=agent) == 1
    assert here.take(wait=0, scope=agent) == ("job", 2)
    assert here.take(wait=0, scope=agent) is None
    assert here.count() == 1


@pytest.mark.parametrize("scope", ["here", 3, ("host", "first")])
def test_what_is_no_scope_is_refused(pair, scope):
    with pytest.raises(BadArgument):
        pair[0].read(wait=0, scope=scope)


# Sessions, subscriptions, reactions


def test_a_session_never_gives_the_same_entry_twice(three, later):
    for number, space in enumerate(three):
        space.write(("job", number))
    session = three[0].session()
    seen = [session.read(("job", int), wait=0) for _ in range(3)]
    assert sorted(seen) == [("job", n) for n in range(3)]
    assert session.read(("job", int), wait=0) is None
    assert session.read_all() == []
    other = session.clone()
    call = later(session.read, ("job", int), wait=PATIENCE)
    three[1].write(("job", 3))
    assert call.result() == ("job", 3)
    assert other.read_all() == [("job", 3)]
    assert (session.seen, other.seen) == (4, 4)


def test_a_session_remembers_through_the_coming_and_going_of_hosts(threads, tmp_path):
    first = threads.host("first")
    second = threads.host("second", path=tmp_path)
    meet(first, second)
    second.space("jobs").write(("job", 1))
    session = first.space("jobs").session()
    assert session.read_all() == [("job", 1)]
    port = port_number(second.address)
    second.close()
    await_host(first, second.id, "departed")
    again = threads.host("second", path=tmp_path, listen=port)
    await_space(first, again.id)
    again.space("jobs").write(("job", 2))
    assert session.read_all() == [("job", 2)]


def test_a_subscription_is_told_once_of_everything_that_comes_anywhere(three):
    listening = three[0].subscribe(("job", int))
    for number, space in enumerate(three):
        space.write(("job", number))
        space.write(("other", number))
    notices = [listening.get(wait=PATIENCE) for _ in range(3)]
    assert sorted(notice.subject.fields for notice in notices) == [("job", n) for n in range(3)]
    assert [notice.sequence for notice in notices] == [1, 2, 3]
    assert listening.get(wait=0) is None
    listening.close()
    assert not listening.active
    three[1].write(("job", 9))
    assert listening.get(wait=PATIENCE) is None


def test_a_subscription_hears_in_the_order_of_each_source(pair):
    here, there = pair
    listening = here.subscribe(("job", int))
    for number in range(600):  # more than may be under way at once
        there.write(("job", number))
    told = [listening.get(wait=PATIENCE).subject.fields[1] for _ in range(600)]
    assert told == list(range(600))


def test_a_subscription_is_told_of_what_a_host_brings(company):
    first, second = company.host("first"), company.host("second")
    second.space("jobs").write(("job", 1))
    listening = first.space("jobs").subscribe(("job", int))
    first.engage(second.address)
    assert listening.get(wait=PATIENCE).subject.fields == ("job", 1)
    second.space("jobs").write(("job", 2))
    assert listening.get(wait=PATIENCE).subject.fields == ("job", 2)


def test_a_subscription_calls_back(pair, until):
    here, there = pair
    heard: list[object] = []
    listening = here.subscribe(("job", int), lambda notice: heard.append(notice.subject.fields))
    here.read(wait=0)
    there.write(("job", 1))
    until(lambda: heard == [("job", 1)])
    listening.close()


def test_a_subscription_within_one_host_hears_nothing_else(three):
    listening = three[0].subscribe(scope=Scope.host("third"))
    listening.get(wait=0)
    three[0].write(("job", 0))
    three[1].write(("job", 1))
    three[2].write(("job", 2))
    assert listening.get(wait=PATIENCE).subject.fields == ("job", 2)
    assert listening.get(wait=GLIMPSE) is None


def test_a_reaction_is_called_once_for_what_is_and_for_what_comes(three, until):
    three[2].write(("job", 0))
    called: list[object] = []
    reaction = three[0].react(("job", int), lambda entry, step: called.append(entry))
    for number, space in enumerate(three, start=1):
        space.write(("job", number))
    until(lambda: len(called) >= 4)
    assert sorted(called) == [("job", n) for n in range(4)]  # type: ignore[type-var]
    assert reaction.active
    reaction.cancel()
    until(lambda: not reaction.active)


def test_a_reaction_may_fire_once_only_and_leave_out_what_is_there(pair, until):
    here, there = pair
    there.write(("job", 0))
    called: list[object] = []
    reaction = here.react(
        ("job", int), lambda entry, step: called.append(entry), once=True, existing=False
    )
    here.read(wait=0)
    there.write(("job", 1))
    until(lambda: not reaction.active)
    there.write(("job", 2))
    assert called == [("job", 1)]


def test_what_a_reaction_raises_is_kept_and_it_goes_on(pair, until):
    here, there = pair
    called: list[object] = []

    def function(entry, step):
        called.append(entry)
        raise ZeroDivisionError

    reaction = here.react(("job", int), function, existing=False)
    here.read(wait=0)
    there.write(("job", 1))
    until(lambda: reaction.error is not None)
    there.write(("job", 2))
    until(lambda: len(called) == 2)
    assert isinstance(reaction.error, ZeroDivisionError)
    reaction.cancel()


# For an agent


def test_an_entry_goes_to_the_host_of_its_agent(pair, until):
    here, there = pair
    here.write(("job", 1), to=there.host_core.id)
    until(lambda: there.here.count(("job", int)) == 1, "it has moved")
    assert here.here.count(("job", int)) == 0
    assert there.take(("job", int), wait=0) == ("job", 1)


def test_a_misplaced_entry_can_be_had_until_its_agent_arrives(company, until):
    first, second = company.host("first"), company.host("second")
    here, there = first.space("jobs"), second.space("jobs")
    here.write(("job", 1), to=second.id)
    here.write(("job", 2), to="nobody")
    assert sorted(here.read_all()) == [("job", 1), ("job", 2)]
    meet(first, second)
    until(lambda: there.here.count() == 1, "it has moved")
    assert there.here.read(wait=0) == ("job", 1)
    assert here.here.read_all() == [("job", 2)]
    assert there.take(("job", 2), wait=0) == ("job", 2)


def test_an_entry_for_an_agent_here_stays(pair):
    here, there = pair
    here.write(("job", 1), to=here.host_core.id)
    assert there.read(wait=0, scope=Scope.agent(here.host_core.id)) == ("job", 1)
    assert here.here.count() == 1


# Who is missing


@pytest.fixture
def stopped(threads):
    """A host whose other host is engaged, has an entry, and does not answer."""
    host = threads.host("first", heartbeat=30.0)
    child = threads.child("second", heartbeat=30.0)
    child.do("write", ["job", 1])
    host.engage(child.address)
    await_space(host, child.id)
    host.core.answer_seconds = 0.3
    child.stop()
    yield host.space("jobs"), child
    child.go_on()


def test_not_found_is_not_said_while_a_host_does_not_answer(stopped):
    space, _ = stopped
    for verb in (space.read, space.take):
        with pytest.raises(NotAllAnswered) as caught:
            verb(("job", int), wait=0)
        assert (caught.value.covered, caught.value.missing) == (["first"], ["second"])
    for verb in (space.read_all, space.take_all, space.count):
        with pytest.raises(NotAllAnswered):
            verb(("job", int))


def test_a_partial_answer_says_whom_it_covers(stopped):
    space, _ = stopped
    space.write(("job", 0))
    coverage = Coverage()
    assert space.read_all(("job", int), coverage=coverage) == [("job", 0)]
    assert (coverage.covered, coverage.missing) == (["first"], ["second"])
    coverage = Coverage()
    assert space.count(("job", int), coverage=coverage) == 1
    assert coverage.missing == ["second"]
    assert space.take(("job", int), wait=0) == ("job", 0)


def test_one_host_that_does_not_answer_is_lost(stopped):
    space, _ = stopped
    for verb in (space.read, space.take):
        with pytest.raises(PeerLost) as caught:
            verb(("job", int), wait=0, scope=Scope.host("second"))
        assert caught.value.peer == "second"
    with pytest.raises(PeerLost):
        space.count(scope=Scope.host("second"))


def test_what_was_asked_in_vain_is_still_there_when_the_host_goes_on(stopped):
    space, child = stopped
    with pytest.raises(NotAllAnswered):
        space.take(("job", int), wait=0)
    with pytest.raises(NotAllAnswered):
        space.take_all(("job", int), wait=0)
    space.host_core.answer_seconds = PATIENCE
    child.go_on()
    assert space.take(("job", int), wait=PATIENCE) == ("job", 1)
    assert child.do("here", "job") == []


def test_one_who_waits_goes_on_when_a_host_is_lost(threads, later):
    first, third = threads.host("first"), threads.host("third")
    child = threads.child("second")
    first.engage(child.address)
    meet(first, third)
    await_space(first, child.id)
    call = later(first.space("jobs").take, ("job", int), wait=PATIENCE)
    child.kill()
    await_host(first, child.id, "departed")
    third.space("jobs").write(("job", 3))
    assert call.result() == ("job", 3)


def test_one_who_waits_at_a_host_that_closes_is_told(company, later):
    first, second = company.host("first"), company.host("second")
    meet(first, second)
    call = later(first.space("jobs").take, ("job", int), wait=PATIENCE)
    first.space("jobs").read(wait=GLIMPSE)
    first.close()
    with pytest.raises((tupelo.TupeloError, asyncio.CancelledError)):
        call.result()


def test_a_closed_host_says_so():
    host = Host("first", listen=0)
    space = host.space("jobs")
    host.close()
    host.close()
    with pytest.raises(tupelo.TupeloError):
        space.read(wait=0)
    with pytest.raises(HostClosed):
        host.space("others")
    with pytest.raises(HostClosed):
        host.engage("127.0.0.1:1")


# Classes


@tupelo.entry("tests.known")
@dataclass(frozen=True)
class Known:
    number: int | None = None


def test_typed_entries_travel(pair):
    here, there = pair
    there.write(Known(1))
    assert here.read(Known(), wait=0) == Known(1)
    assert here.take(Known(1), wait=0) == Known(1)


def test_an_entry_of_a_class_that_is_not_known_here_goes_back(threads):
    host = threads.host("first")
    child = threads.child("second")
    child.do("write_only_there", 5)
    host.engage(child.address)
    await_space(host, child.id)
    space = host.space("jobs")
    template = tupelo.Template(tupelo.Named(number=5))
    for verb in (space.read, space.take):
        with pytest.raises(UnknownType) as caught:
            verb(template, wait=0)
        assert caught.value.name == "tests.only_there"
    with pytest.raises(UnknownType):
        space.take_all(template)
    assert space.count(template) == 1


# Presence


def test_hosts_agents_and_spaces_are_present(company):
    first, second = company.host("first"), company.host("second")
    meet(first, second)
    seen = await_host(first, second.id, "engaged")
    assert (seen.name, seen.how) == ("second", "")
    assert first.presence.read(AgentPresence(second.id, second.id), wait=PATIENCE)
    second.space("others")
    await_space(first, second.id, "others")
    assert first.engaged == ["second"] and second.engaged == ["first"]


def test_a_goodbye_is_told_from_a_death_and_from_silence(threads):
    host = threads.host("first", heartbeat=0.1)
    with host.presence.subscribe(HostPresence(state="departed")) as listening:
        for how in ("goodbye", "closed", "silent"):
            child = threads.child("second", heartbeat=0.1)
            host.engage(child.address)
            await_space(host, child.id)
            if how == "goodbye":
                child.do("close")
            elif how == "closed":
                child.kill()
            else:
                child.stop()
            assert await_host(host, child.id, "departed").how == how
            notice = listening.get(wait=PATIENCE)
            assert (notice.subject.fields[0], notice.subject.fields[4]) == (child.id, how)
            assert host.presence.read(AgentPresence(host=child.id), wait=0) is None
            assert "second" not in host.engaged


def test_nobody_but_the_host_writes_its_presence(threads):
    host = threads.host("first")
    with pytest.raises(BadArgument):
        host.space("tupelo.presence2")
    found = host.presence.read(HostPresence(host.id), wait=0)
    assert (found.state, found.name) == ("engaged", "first")


# Meeting, and meeting again


def test_hosts_that_dial_each_other_at_once_end_with_one_link(company, until):
    for _ in range(5):
        first, second = company.host("first"), company.host("second")
        first.engage(second.address)
        second.engage(first.address)
        await_space(first, second.id)
        await_space(second, first.id)
        second.space("jobs").write(("job", 1))
        assert first.space("jobs").take(("job", int), wait=PATIENCE) == ("job", 1)
        first.space("jobs").write(("job", 2))
        assert second.space("jobs").take(("job", int), wait=PATIENCE) == ("job", 2)
        until(lambda a=first, b=second: same_link(a, b), "both use the same link")
        assert (first.engaged, second.engaged) == (["second"], ["first"])


def same_link(first: Any, second: Any) -> Any:
    """Do both ends speak over the link that the same one of them dialled?"""
    ours, theirs = first.core.peers.get(second.id), second.core.peers.get(first.id)
    return ours and theirs and ours.dialled_by == theirs.dialled_by


def test_a_host_that_dials_itself_does_not_mind(threads):
    host = threads.host("first")
    host.engage(host.address)
    host.space("jobs").write(("job", 1))
    assert host.space("jobs").take(("job", int), wait=0) == ("job", 1)
    assert host.engaged == []


def test_a_host_that_comes_back_on_its_port_is_met_again(company, later):
    first, second = company.host("first"), company.host("second")
    meet(first, second)
    port = port_number(second.address)
    second.close()
    assert await_host(first, second.id, "departed").how == "goodbye"
    call = later(first.space("jobs").take, ("job", int), wait=PATIENCE)
    again = company.host("second", listen=port)
    again.space("jobs").write(("job", 1))
    assert call.result() == ("job", 1)


def test_a_host_that_was_stopped_is_met_again_when_it_goes_on(threads):
    host = threads.host("first", heartbeat=0.1)
    child = threads.child("second", heartbeat=0.1)
    host.engage(child.address)
    await_space(host, child.id)
    child.stop()
    await_host(host, child.id, "departed")
    child.go_on()
    await_space(host, child.id)
    child.do("write", ["job", 1])
    assert host.space("jobs").take(("job", int), wait=PATIENCE) == ("job", 1)


# Durable hosts


def test_a_durable_host_comes_back_with_everything(company, tmp_path):
    first = company.host("first", path=tmp_path)
    first.space("jobs").write_all([("job", 1), ("job", 2)])
    first.space("others / of me").write(("other", 1))
    first.space("jobs").take(("job", 1), wait=0)
    host_id = first.id
    first.close()
    again = company.host("first", path=tmp_path, space=False)
    assert again.id == host_id
    second = company.host("second")
    meet(second, again)
    assert second.space("jobs").read_all() == [("job", 2)]
    assert again.space("others / of me").read_all() == [("other", 1)]


def test_a_durable_host_that_is_killed_comes_back_with_everything(threads, tmp_path):
    host = threads.host("first")
    child = threads.child("second", path=str(tmp_path))
    child.do("write", *(["job", number] for number in range(10)))
    host.engage(child.address)
    await_space(host, child.id)
    assert host.space("jobs").take(("job", int), wait=0) == ("job", 0)
    child.kill()
    await_host(host, child.id, "departed")
    again = threads.child("second", path=str(tmp_path), listen=port_number(child.address))
    assert again.id == child.id
    await_space(host, child.id)
    assert sorted(host.space("jobs").read_all()) == [("job", n) for n in range(1, 10)]


@pytest.mark.parametrize("moment", ["owner is asked", "owner has agreed"])
def test_an_owner_that_is_killed_amid_a_hand_over_has_handed_it_over(
    threads, until, tmp_path, moment
):
    host = threads.host("first")
    child = threads.child("second", moment, path=str(tmp_path))
    child.do("write", ["job", 1])
    host.engage(child.address)
    await_space(host, child.id)
    assert host.space("jobs").take(("job", int), wait=PATIENCE) == ("job", 1)
    child.hear("paused")
    child.kill()
    await_host(host, child.id, "departed")
    again = threads.child("second", listen=port_number(child.address), path=str(tmp_path))
    until(lambda: not host.core.federation.all_unsettled(), "the owner knows it")
    assert again.do("here", "job") == []
    assert host.space("jobs").count() == 0


@pytest.mark.parametrize("durable", [True, False])
def test_a_taker_that_is_killed_amid_a_hand_over_has_taken_nothing(threads, tmp_path, durable):
    """It comes back and knows nothing of it, so what was under way returns."""
    host = threads.host("first", path=tmp_path / "first" if durable else None)
    space = host.space("jobs")
    space.write(("job", 1))
    folder = str(tmp_path / "second")
    child = threads.child("second", "taker has it", path=folder, peers=[host.address])
    await_space(host, child.id)
    child.order("take", "job", PATIENCE)
    child.hear("paused")
    assert space.here.count() == 0
    child.kill()
    await_host(host, child.id, "departed")
    assert space.here.count() == 0  # It may have it.
    again = threads.child("second", path=folder, peers=[host.address])
    assert again.do("take", "job", PATIENCE) == ["job", 1]
    assert space.count() == 0


@pytest.mark.parametrize("then", ["return", "forget"])
def test_what_a_taker_never_confirms_is_decided_by_the_doubt_of_the_space(threads, then, until):
    host = threads.host("first", doubt=Doubt(GLIMPSE, then))
    space = host.space("jobs")
    space.write(("job", 1))
    child = threads.child("second", "taker has it", peers=[host.address])
    await_space(host, child.id)
    child.order("take", "job", PATIENCE)
    child.hear("paused")
    child.kill()
    await_host(host, child.id, "departed")
    if then == "return":
        assert space.take(("job", int), wait=PATIENCE) == ("job", 1)
    else:
        until(lambda: not host.core.doubts.owners(), "it is decided")
        assert space.take(("job", int), wait=0) is None


def test_what_is_in_doubt_outlives_a_crash_of_the_owner(threads, tmp_path):
    """The owner is killed after the taker was; what it had handed over returns to it."""
    owner = threads.child("first", path=str(tmp_path / "first"), doubt=0.5)
    owner.do("write", ["job", 1])
    taker = threads.child("second", "taker has it", peers=[owner.address])
    deadline = time.monotonic() + PATIENCE
    while owner.do("engaged") != ["second"]:
        assert time.monotonic() < deadline
    taker.order("take", "job", PATIENCE)
    taker.hear("paused")
    owner.kill()
    taker.kill()
    again = threads.child("first", path=str(tmp_path / "first"), doubt=0.5)
    assert again.do("take", "job", PATIENCE) == ["job", 1]


def test_a_host_is_shown_by_its_name_and_address(loop_thread):
    with Host("one") as deaf, Host("two", listen=0) as host:
        assert repr(deaf) == "<the host 'one' at no address>"
        assert repr(host) == f"<the host 'two' at {host.address}>"

    async def scene() -> None:
        host = AsyncHost("three", listen=0)
        assert repr(host) == "<the host 'three', not started>"
        async with host:
            assert repr(host) == f"<the host 'three' at {host.address}>"

    loop_thread.call(scene)
