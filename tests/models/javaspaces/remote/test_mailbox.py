"""A mailbox of a host, for programs elsewhere: it keeps their events while they are away."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import tupelo
from tests.conftest import Call, Program, until_true
from tests.models.classes import forget, learn
from tests.models.javaspaces.doors import Target, fetched
from tests.models.javaspaces.remote.conftest import bare
from tupelo.errors import (
    BadArgument,
    BadEntry,
    CannotReach,
    InvalidIterator,
    LeaseLost,
    ListenerFailed,
    NotAllowed,
    PeerLost,
    UnknownEvent,
)
from tupelo.models.javaspaces import (
    FOREVER,
    AvailabilityEvent,
    EventMailbox,
    LookupService,
    RemoteEvent,
    RemoteEventMailbox,
    ServiceEvent,
    ServiceItem,
    offer,
)
from tupelo.space.dual_api import run_sync

ALL = 7


@pytest.fixture
def mailbox(town):
    return town.connect("mailbox")


def event(n: int, handback: Any = None, source: str = "source") -> RemoteEvent:
    return RemoteEvent(source, 1, n, handback)


def tell(registration: Any, *numbers: int) -> None:
    for n in numbers:
        registration.listener.notify(event(n))


# Keeping and fetching


def test_events_are_kept_in_order_and_handed_out_once(town, mailbox):
    registration = mailbox.register(60)
    tell(registration, 1, 2, 3)
    assert registration.pending == 3 and not registration.delivering and registration.active
    assert fetched(registration) == [1, 2, 3]
    assert fetched(registration) == [] and registration.pending == 0
    tell(registration, 4)
    assert fetched(registration) == [4] and registration.dropped == 0
    assert town.mailbox.registrations()[0].pending == 0


def test_events_come_back_as_they_were(town, mailbox):
    registration = mailbox.register(60)
    there = [
        RemoteEvent("source", 7, 1, {"parts": [1, (2, b"3")]}),
        AvailabilityEvent("source", 7, 2, None, ServiceEntryLike("b"), False),
        ServiceEvent("lookup", 1, 3, None, "id", 2, (ServiceEntryLike("c"),)),
    ]
    for one in there:
        registration.listener.notify(one)
    assert list(registration.get_remote_events()) == there
    with pytest.raises(BadEntry):
        registration.listener.notify(event(1, object()))


@dataclass
class ServiceEntryLike:
    name: str | None = None


def test_classes_that_the_host_does_not_know(town, mailbox, monkeypatch):
    registration = mailbox.register(60)
    kept = AvailabilityEvent("source", 7, 1, None, ServiceEntryLike("b"))
    registration.listener.notify(kept)
    forget(monkeypatch, ServiceEntryLike)
    (there,) = town.mailbox.registrations()
    assert there.pending == 1, "the host keeps what it cannot build"
    with pytest.raises(tupelo.errors.UnknownType):
        registration.get_remote_events().next()
    learn(monkeypatch, ServiceEntryLike)
    assert registration.get_remote_events().next(5) == kept, "and it is not lost"


def test_an_iterator_waits_and_ends(town, mailbox):
    registration = mailbox.register(60)
    events = registration.get_remote_events()
    assert events.next() is None
    call = Call(events.next, 0.05)
    town.pass_until(lambda: not call.waits)
    assert call.result() is None
    call = Call(events.next, 10)
    tell(registration, 1)
    assert call.result().sequence_number == 1
    tell(registration, 2, 3)
    assert events.next(None).sequence_number == 2
    events.close()
    for use in (events.next, events.close):
        with pytest.raises(InvalidIterator):
            use()
    assert fetched(registration) == [3], "the one that it handed out last is gone"
    for bad in (-1, "x"):
        with pytest.raises(BadArgument, match="timeout="):
            events.next(bad)
        with pytest.raises(BadArgument, match="wait="):
            registration.get_remote_events(bad)


@pytest.mark.parametrize("how", ["fetched", "enabled", "cancelled"])
def test_an_iterator_of_before_says_that_it_is_over(town, mailbox, how):
    registration = mailbox.register(60)
    old = registration.get_remote_events()
    call = Call(old.next, 10)
    until_true(lambda: town.mailbox.registrations()[0].reader._txn, "it waits")
    if how == "fetched":
        registration.get_remote_events()
    elif how == "enabled":
        registration.enable_delivery(Target())
    else:
        registration.lease.cancel()
    with pytest.raises(InvalidIterator):
        call.result()
    with pytest.raises(InvalidIterator):
        old.next()


def test_what_was_not_asked_for_stays(town, mailbox):
    registration = mailbox.register(60)
    tell(registration, 1, 2, 3)
    events = registration.get_remote_events()
    assert events.next().sequence_number == 1
    again = town.connect("mailbox")
    assert registration.pending in (1, 2)
    assert fetched(registration) == [2, 3]
    assert again.register(60).pending == 0


def test_a_local_program_and_one_elsewhere_share_a_mailbox(town, mailbox):
    registration = mailbox.register(60)
    (here,) = town.mailbox.registrations()
    here.listener(event(1))
    tell(registration, 2)
    assert [one.sequence_number for one in here.get_remote_events()] == [1, 2]
    here.listener(event(3))
    assert fetched(registration) == [3]


# Delivery


def test_events_are_brought_to_a_target_here(town, mailbox):
    registration = mailbox.register(60)
    tell(registration, 1, 2)
    target = Target()
    registration.enable_delivery(target)
    assert registration.delivering
    tell(registration, 3)
    until_true(lambda: target.got == [1, 2, 3])
    other = Target()
    registration.enable_delivery(other.notify)
    tell(registration, 4)
    until_true(lambda: other.got == [4])
    registration.disable_delivery()
    assert not registration.delivering
    tell(registration, 5)
    assert fetched(registration) == [5] and target.got == [1, 2, 3] and other.got == [4]
    registration.enable_delivery(target)
    registration.enable_delivery(None)
    assert not registration.delivering and registration.error is None


def test_a_target_that_fails_is_tried_again(town, mailbox):
    registration = mailbox.register(60)
    target = Target(failures=2)
    registration.enable_delivery(target)
    tell(registration, 1, 2)
    town.pass_until(lambda: target.got == [1, 2])
    assert target.tries == 4 and registration.delivering


def test_a_target_that_fails_too_often_is_given_up(town, mailbox):
    registration = mailbox.register(60)
    target = Target(failures=99)
    registration.enable_delivery(target)
    tell(registration, 1, 2)
    town.pass_until(lambda: not registration.delivering)
    assert target.tries == 4 and isinstance(registration.error, ListenerFailed)
    assert fetched(registration) == [1, 2], "nothing is lost"


def test_unknown_events_of_one_source_do_not_stop_the_others(town, mailbox):
    registration, got = mailbox.register(60), list[int]()

    def choosy(event: RemoteEvent) -> None:
        if event.source == "noise":
            raise UnknownEvent("what is that?")
        got.append(event.sequence_number)

    for n in (1, 2):
        registration.listener.notify(event(n, source="noise"))
        tell(registration, n)
    registration.enable_delivery(choosy)
    until_true(lambda: got == [1, 2])
    with pytest.raises(UnknownEvent, match="no such events"):
        registration.listener.notify(event(3, source="noise"))
    tell(registration, 3)
    until_true(lambda: got == [1, 2, 3])
    registration.add_unknown_events([event(1)])
    with pytest.raises(UnknownEvent):
        tell(registration, 4)
    for bad in (["x"], 5):
        with pytest.raises(BadArgument, match="events="):
            registration.add_unknown_events(bad)


def test_a_mailbox_does_not_deliver_to_itself(town, mailbox):
    first, second = mailbox.register(60), town.connect("mailbox").register(60)
    for target in (first.listener, second.listener):
        with pytest.raises(BadArgument, match="target="):
            first.enable_delivery(target)
    for bad in (7, "target", object()):
        with pytest.raises(BadArgument, match="target="):
            first.enable_delivery(bad)


# Services of the same host


def test_a_lookup_service_tells_the_mailbox_without_the_program(town, mailbox):
    """A program delegates its events, hangs up, and fetches them later."""
    registrar = town.connect("lookup")
    registration = mailbox.register(60)
    told = registrar.notify(None, ALL, registration.listener, {"hand": "back"}, 60)
    assert told.active and told.source == town.lookup.name
    registrar.close()
    town.lookup.register(ServiceItem("s", "a service"))
    until_true(lambda: registration.pending == 1)
    (kept,) = registration.get_remote_events()
    assert kept.service_id == "s" and kept.handback == {"hand": "back"}
    with pytest.raises(BadEntry, match="handback"):
        town.connect("lookup").notify(None, ALL, registration.listener, object())


def test_the_listener_of_a_mailbox_at_another_host(town, mailbox):
    """The program carries the events there itself."""
    if town.is_async:
        pytest.skip("listeners of a lookup service are plain functions")
    with tupelo.Host("other", listen="127.0.0.1:0") as host, LookupService() as own:
        offer(host, own)
        registration = mailbox.register(60)
        registrar = town.connect("lookup", host.url)
        registrar.notify(None, ALL, registration.listener)
        own.register(ServiceItem("s", "a service"))
        until_true(lambda: registration.pending == 1)
        registrar.close()


# Leases


def test_a_registration_ends_with_its_lease(town, mailbox):
    registration = mailbox.register(0.3)
    tell(registration, 1)
    town.clock.advance(0.3)
    assert not town.mailbox.registrations() and not registration.active
    with pytest.raises(UnknownEvent):
        tell(registration, 2)
    for use in (
        registration.get_remote_events,
        registration.disable_delivery,
        lambda: registration.enable_delivery(Target()),
        lambda: registration.add_unknown_events([event(1)]),
        lambda: registration.pending,
        lambda: registration.lease.renew(5),
        registration.lease.cancel,
    ):
        with pytest.raises(LeaseLost):
            use()
    until_true(lambda: town.mailbox.space.count() == 0)


def test_leases_are_limited_and_checked(town, mailbox):
    registration = mailbox.register(FOREVER)
    left = registration.lease.expiration - bare(mailbox).clock.now()
    assert 290 < left <= 300
    registration.lease.renew(5)
    assert registration.lease.expiration - bare(mailbox).clock.now() <= 5
    for bad in (0, -5, "x", None):
        with pytest.raises(BadArgument, match="lease="):
            mailbox.register(bad)


# Programs that die, and links that are lost

PROGRAM = """
import sys
from tupelo.models.javaspaces import RemoteEventMailbox
mailbox = RemoteEventMailbox.connect(sys.argv[1])
registration = mailbox.register(float(sys.argv[2]))
from tupelo.models.javaspaces import RemoteEvent
for n in (1, 2, 3):
    registration.listener.notify(RemoteEvent("source", 1, n))
events = registration.get_remote_events()
print(events.next().sequence_number, flush=True)
sys.stdin.read()
"""


def test_what_a_program_that_is_killed_had_not_confirmed_is_kept(town, mailbox):
    with Program(PROGRAM, town.url, 60) as child:
        assert child.line() == "1"
    (registration,) = town.mailbox.registrations()
    assert [one.sequence_number for one in registration.get_remote_events()] == [1, 2, 3]


def test_the_registration_of_a_program_that_is_killed_ends_with_its_lease(town, mailbox):
    with Program(PROGRAM, town.url, 1) as child:
        assert child.line() == "1"
    town.clock.advance(1)
    assert town.mailbox.space.count() == 0, "nothing of it stays"


def test_a_lost_link_loses_nothing_and_repeats_nothing(town, mailbox):
    registration = mailbox.register(60)
    (here,) = town.mailbox.registrations()
    events = registration.get_remote_events()
    got = []
    for n in range(20):
        here.listener(event(n))
        town.cut()
        found = events.next(5)
        got.append(found.sequence_number)
        town.cut()
    assert got == list(range(20))
    target = Target()
    registration.enable_delivery(target)
    for n in range(20):
        here.listener(event(n))
        town.cut()
    until_true(lambda: target.got == list(range(20)))
    assert fetched(registration) == []


def test_a_host_that_is_gone(town):
    with EventMailbox() as own, tupelo.Host("other", listen="127.0.0.1:0", heartbeat=2.0) as host:
        offer(host, own)
        mailbox = town.connect("mailbox", host.url, reconnect=0.3)
        registration = mailbox.register(60)
        target = Target()
        registration.enable_delivery(target)
    for call in (mailbox.register, registration.get_remote_events):
        with pytest.raises((PeerLost, CannotReach)):
            call()
    until_true(lambda: not registration.delivering)


def test_a_durable_mailbox_keeps_events_over_a_restart_of_the_host(town, tmp_path):
    port = None
    for life in range(2):
        with (
            tupelo.Space(path=tmp_path / "mailbox") as space,
            EventMailbox(space) as own,
            tupelo.Host("other", listen=f"127.0.0.1:{port or 0}") as host,
        ):
            port = int(host.address.rpartition(":")[2])
            offer(host, own)
            mailbox = town.connect("mailbox", host.url)
            if life == 0:
                registration = mailbox.register(60)
                tell(registration, 1, 2)
            else:
                (kept,) = own.registrations()
                assert [one.sequence_number for one in kept.get_remote_events()] == [1, 2]
            mailbox.close()


# Strangers


def test_what_a_hostile_program_sends_is_refused(town):
    with RemoteEventMailbox.connect(town.url) as mailbox:
        registration = mailbox.register(60)
        name = registration.id
        for method, args in (
            ("register", (5, 5)),
            ("register", ("id", "long")),
            ("register", ("id", 0)),
            ("keep", (name, 5)),
            ("keep", (name, b"\xff")),
            ("keep", (name, b"\x90")),
            ("refuse", (name, 5)),
            ("refuse", (name, [["a"]])),
            ("count", (5,)),
            ("begin", (name, -1)),
            ("begin", ("nobody", 0)),
            ("next", (name, 1, 0)),
            ("next", (name, "x", 0)),
            ("end", (name, "x", 0)),
        ):
            with pytest.raises((BadArgument, LeaseLost, InvalidIterator)):
                run_sync(partial(mailbox.call, method, *args))
        run_sync(partial(mailbox.call, "begin", name, 0))
        with pytest.raises(InvalidIterator):
            run_sync(partial(mailbox.call, "next", name, "x", 0))
        tell(registration, 1)
        assert fetched(registration) == [1]


def test_rules_of_access(town):
    closed = EventMailbox()
    offer(town.host, closed, access=tupelo.Access(take=()))
    registration = town.connect("mailbox").register(60)
    tell(registration, 1)
    with pytest.raises(NotAllowed, match="take"):
        registration.get_remote_events()
    closed.close()


def test_threads_share_a_mailbox(town, mailbox):
    registrations = [mailbox.register(60) for _ in range(4)]

    def work(registration: Any) -> list[int]:
        tell(registration, *range(10))
        return fetched(registration)

    if town.is_async:
        assert [work(one) for one in registrations] == [list(range(10))] * 4
        return
    calls = [Call(work, one) for one in registrations]
    assert [call.result() for call in calls] == [list(range(10))] * 4
    assert threading.active_count() < 100
