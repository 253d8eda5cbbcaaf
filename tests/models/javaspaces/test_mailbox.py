"""The event mailbox: events are kept for a listener that is away, in order, and never lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tests.conftest import core_of
from tests.models.classes import forget, learn
from tests.models.javaspaces.doors import Target, fetched
from tupelo import Capacity, Lifo, ManualClock, Space, aio
from tupelo.errors import (
    BadArgument,
    BadEntry,
    InvalidIterator,
    LeaseLost,
    ListenerFailed,
    SpaceClosed,
    SpaceFull,
    UnknownEvent,
)
from tupelo.models.javaspaces.events import AvailabilityEvent, RemoteEvent, Retry
from tupelo.models.javaspaces.leases import FOREVER, LeaseMap
from tupelo.models.javaspaces.mailbox import EventMailbox, KeptEvent, MailboxRegistration
from tupelo.models.javaspaces.space import Entry, JavaSpace, JavaSpace05


@dataclass
class Job(Entry):
    name: str | None = None


@pytest.fixture
def mailbox(clock):
    with EventMailbox(clock=clock) as mailbox:
        yield mailbox


def event(n: int, handback: Any = None) -> RemoteEvent:
    return RemoteEvent("source", 1, n, handback)


def tell(registration: MailboxRegistration, *numbers: int) -> None:
    for n in numbers:
        registration.listener(event(n))


# Keeping and fetching


def test_events_are_kept_in_order_and_handed_out_once(mailbox):
    registration = mailbox.register()
    tell(registration, 1, 2, 3)
    assert registration.pending == 3 and not registration.delivering
    assert fetched(registration) == [1, 2, 3]
    assert fetched(registration) == [] and registration.pending == 0
    tell(registration, 4)
    assert fetched(registration) == [4]


def test_what_is_not_asked_for_stays(mailbox):
    registration = mailbox.register()
    tell(registration, 1, 2, 3)
    assert next(registration.get_remote_events()).sequence_number == 1
    assert registration.pending == 2 and fetched(registration) == [2, 3]


def test_registrations_are_apart(mailbox):
    first, second = mailbox.register(), mailbox.register()
    tell(first, 1)
    tell(second, 2)
    assert fetched(second) == [2] and fetched(first) == [1]
    assert mailbox.registrations() == [first, second]
    assert mailbox.registration(first.id) is first
    assert first.id in repr(first)


def test_events_come_back_as_they_were(mailbox):
    registration = mailbox.register()
    handback = {"when": datetime(2020, 1, 2, tzinfo=UTC), "parts": [1, (2, b"3")], "job": Job("a")}
    there = [
        RemoteEvent("source", 7, 1, handback),
        AvailabilityEvent("source", 7, 2, None, Job("b"), False),
    ]
    for one in there:
        registration.listener(one)
    back = list(registration.get_remote_events())
    assert back == there and [type(one) for one in back] == [RemoteEvent, AvailabilityEvent]


def test_an_event_that_cannot_be_kept_is_refused(mailbox):
    registration = mailbox.register()
    with pytest.raises(BadEntry, match="handback"):
        registration.listener(event(1, object()))
    with pytest.raises(BadArgument, match="event="):
        registration.listener("an event")
    assert registration.pending == 0


def test_an_iterator_waits_if_told_to(mailbox, later, park):
    registration = mailbox.register()
    events = registration.get_remote_events(wait=None)
    call = park(mailbox.space, next, events)
    tell(registration, 1)
    assert call.result().sequence_number == 1
    tell(registration, 2)
    assert next(events).sequence_number == 2, "what is there is not waited for"


def test_an_iterator_ends_when_its_patience_does(mailbox, clock, later, until):
    registration = mailbox.register()
    before = clock.sleepers
    call = later(lambda: list(registration.get_remote_events(wait=5)))
    until(lambda: clock.sleepers > before)
    clock.advance(5)
    assert call.result() == []
    tell(registration, 1)
    assert fetched(registration) == [1]


@pytest.mark.parametrize("how", ["cancelled", "expired", "fetched", "enabled", "closed"])
def test_an_iterator_that_waits_is_ended(mailbox, clock, park, how):
    registration = mailbox.register(60)
    call = park(mailbox.space, list, registration.get_remote_events(wait=None))
    if how == "cancelled":
        registration.lease.cancel()
    elif how == "expired":
        clock.advance(60)
    elif how == "fetched":
        registration.get_remote_events()
    elif how == "enabled":
        registration.enable_delivery(Target())
    else:
        mailbox.close()
    with pytest.raises(InvalidIterator):
        call.result()


def test_an_iterator_of_before_says_that_it_is_over(mailbox):
    registration = mailbox.register()
    tell(registration, 1, 2)
    old = registration.get_remote_events()
    assert fetched(registration) == [1, 2]
    tell(registration, 3)
    for use in (list, next, lambda events: events.next(), lambda events: events.close()):
        with pytest.raises(InvalidIterator, match="another iterator"):
            use(old)
    registration.enable_delivery(None)
    assert fetched(registration) == [3]


def test_an_iterator_is_asked_with_a_timeout_of_its_own(mailbox, clock, park):
    registration = mailbox.register()
    events = registration.get_remote_events()
    assert events.next() is None and events.next(0) is None
    tell(registration, 1, 2)
    assert events.next(5).sequence_number == 1
    assert events.next(None).sequence_number == 2
    waiting = park(mailbox.space, events.next, 5)
    clock.advance(5)
    assert waiting.result() is None, "and it is not over"
    waiting = park(mailbox.space, events.next, None)
    tell(registration, 3)
    assert waiting.result().sequence_number == 3


def test_an_iterator_is_closed(mailbox, park):
    registration = mailbox.register()
    with registration.get_remote_events() as events:
        waiting = park(mailbox.space, events.next, None)
        events.close()
        with pytest.raises(InvalidIterator, match="closed"):
            waiting.result()
        tell(registration, 1)
        for use in (events.next, events.close):
            with pytest.raises(InvalidIterator, match="closed"):
                use()
    with registration.get_remote_events() as events:
        pass
    with pytest.raises(InvalidIterator):
        events.next()
    assert fetched(registration) == [1], "what it did not hand out is kept"


def test_a_bad_wait_is_refused(mailbox):
    registration = mailbox.register()
    with pytest.raises(BadArgument, match="wait="):
        registration.get_remote_events(wait=-1)
    with pytest.raises(BadArgument, match="timeout="):
        registration.get_remote_events().next(-1)


# Delivery


def test_kept_events_are_brought_first_then_those_that_come(mailbox, until):
    registration = mailbox.register()
    tell(registration, 1, 2)
    target = Target()
    registration.enable_delivery(target)
    assert registration.delivering
    tell(registration, 3)
    until(lambda: target.got == [1, 2, 3])
    until(lambda: registration.pending == 0)
    assert registration.error is None
    registration.disable_delivery()
    tell(registration, 4)
    assert target.got == [1, 2, 3] and fetched(registration) == [4]


def test_a_target_may_be_a_function_and_be_replaced(mailbox, until):
    registration = mailbox.register()
    got: list[Any] = []
    registration.enable_delivery(got.append)
    tell(registration, 1)
    until(lambda: got == [event(1)] and registration.pending == 0)
    other: list[Any] = []
    registration.enable_delivery(other.append)
    tell(registration, 2)
    until(lambda: other == [event(2)])
    assert got == [event(1)]


def test_a_target_that_fails_is_tried_again(mailbox, clock, until):
    registration = mailbox.register()
    target = Target(failures=2)
    before = clock.sleepers
    registration.enable_delivery(target)
    tell(registration, 1, 2)
    until(lambda: clock.sleepers == before + 1)
    assert target.tries == 1 and registration.pending == 2, "nothing is lost"
    clock.advance(0.1)
    until(lambda: clock.sleepers == before + 2)
    assert target.tries == 2
    clock.advance(0.1)
    assert target.tries == 2, "each pause is twice as long"
    clock.advance(0.1)
    until(lambda: target.got == [1, 2])
    until(lambda: registration.pending == 0)
    assert registration.delivering and registration.error is None


def fail_to_the_end(clock: ManualClock, until: Any, registration: MailboxRegistration) -> None:
    def given_up() -> bool:
        clock.advance(1)
        return not registration.delivering

    until(given_up)


def test_a_target_that_fails_too_often_is_given_up(clock, until):
    with EventMailbox(clock=clock, retry=Retry(tries=3)) as mailbox:
        registration = mailbox.register()
        target = Target(failures=99)
        registration.enable_delivery(target)
        tell(registration, 1, 2)
        fail_to_the_end(clock, until, registration)
        assert target.tries == 3
        assert isinstance(registration.error, ListenerFailed)
        assert "not now" in str(registration.error)
        assert registration.error.__cause__ is target.error
        tell(registration, 3)
        assert fetched(registration) == [1, 2, 3]
        good = Target()
        registration.enable_delivery(good)
        assert registration.error is None
        tell(registration, 4)
        until(lambda: good.got == [4])


class Choosy(Target):
    """Does not want the events of one source."""

    def notify(self, event: RemoteEvent) -> None:
        if event.source == "noise":
            self.tries += 1
            raise UnknownEvent("what is that?")
        super().notify(event)


def test_unknown_events_of_one_source_do_not_stop_the_others(mailbox, until):
    registration = mailbox.register()
    target = Choosy()
    noise = [RemoteEvent("noise", 1, n) for n in range(3)]
    registration.listener(noise[0])
    tell(registration, 1)
    registration.listener(noise[1])
    tell(registration, 2)
    registration.enable_delivery(target)
    until(lambda: target.got == [1, 2])
    until(lambda: registration.pending == 0)
    assert target.tries == 3, "it is asked once what it thinks of such events"
    with pytest.raises(UnknownEvent, match="no such events"):
        registration.listener(noise[2])
    registration.listener(RemoteEvent("noise", 2, 1))  # another event of the same source
    tell(registration, 3)
    until(lambda: target.got == [1, 2, 3])
    assert registration.delivering and registration.error is None
    registration.enable_delivery(Target())
    registration.listener(noise[2])  # A new target may want it.
    until(lambda: registration.pending == 0)


def test_unknown_events_are_added(mailbox):
    registration = mailbox.register()
    tell(registration, 1)
    registration.add_unknown_events([event(1), RemoteEvent("source", 7, 1)])
    registration.add_unknown_events([])
    for unknown in (event(2), RemoteEvent("source", 7, 9)):
        with pytest.raises(UnknownEvent):
            registration.listener(unknown)
    registration.listener(RemoteEvent("source", 8, 3))
    assert fetched(registration) == [1, 3], "what was kept before stays"
    for bad in (["event"], "event", 5, [event(1), None]):
        with pytest.raises(BadArgument, match="events="):
            registration.add_unknown_events(bad)
    registration.lease.cancel()
    with pytest.raises(LeaseLost):
        registration.add_unknown_events([event(1)])
    assert mailbox.space.count() == 0


def test_a_source_is_told_that_its_events_are_unknown(clock, mailbox, until, caplog):
    caplog.set_level(logging.CRITICAL)
    spaces = [JavaSpace(Space(name, clock=clock)) for name in ("jobs", "noise")]
    registration = mailbox.register()
    told = [space.notify(Job(), None, registration.listener) for space in spaces]
    target = Choosy()
    registration.enable_delivery(target)
    for space in spaces:
        space.write(Job("a"))
    until(lambda: target.tries == 2)
    until(lambda: registration.pending == 0)
    for space in spaces:
        space.write(Job("b"))
    until(lambda: not told[1].active)
    assert isinstance(told[1].error, ListenerFailed) and told[0].active
    until(lambda: target.got == [1, 2])


def test_no_target_disables_delivery(mailbox, until):
    registration = mailbox.register()
    target = Target()
    registration.enable_delivery(target)
    tell(registration, 1)
    until(lambda: target.got == [1] and registration.pending == 0)
    registration.enable_delivery(None)
    assert not registration.delivering and registration.error is None
    tell(registration, 2)
    assert fetched(registration) == [2] and target.got == [1]
    registration.lease.cancel()
    with pytest.raises(LeaseLost):
        registration.enable_delivery(None)


def test_a_mailbox_does_not_deliver_to_itself(mailbox, clock, until):
    first, second = mailbox.register(), mailbox.register()
    for target in (first.listener, second.listener):
        with pytest.raises(BadArgument, match="target= must be a listener that is not of this"):
            first.enable_delivery(target)
    with EventMailbox(mailbox.space) as again, pytest.raises(BadArgument, match="target="):
        again.register().enable_delivery(first.listener)
    assert not first.delivering
    with EventMailbox(clock=clock) as other:
        kept = other.register()
        first.enable_delivery(kept.listener)
        tell(first, 1)
        until(lambda: kept.pending == 1)


@pytest.mark.parametrize("how", ["disable", "fetch"])
def test_delivery_stopped_before_the_next_try_keeps_the_event(mailbox, clock, until, how):
    registration = mailbox.register()
    target = Target(failures=1)
    before = clock.sleepers
    registration.enable_delivery(target)
    tell(registration, 1)
    until(lambda: clock.sleepers > before)
    if how == "disable":
        registration.disable_delivery()
    assert fetched(registration) == [1]
    assert not registration.delivering
    clock.advance(10)
    assert target.tries == 1


def test_an_event_on_its_way_is_not_handed_out_twice(mailbox, later, until):
    registration = mailbox.register()
    entered, go_on = Gate(), Gate()

    def slow(event: RemoteEvent) -> None:
        entered.open()
        go_on.wait()
        raise RuntimeError("after all")

    registration.enable_delivery(slow)
    tell(registration, 1)
    entered.wait()
    tell(registration, 2)
    assert fetched(registration) == [2]
    go_on.open()
    until(lambda: registration.pending == 1)
    assert fetched(registration) == [1], "it failed, and is kept"


class Gate:
    def __init__(self) -> None:
        import threading

        self._event = threading.Event()
        self.open = self._event.set

    def wait(self) -> None:
        assert self._event.wait(20)


def test_a_target_may_use_the_mailbox(mailbox, until):
    registration = mailbox.register()
    got: list[int] = []

    def once(event: RemoteEvent) -> None:
        got.append(event.sequence_number)
        registration.disable_delivery()

    tell(registration, 1, 2)
    registration.enable_delivery(once)
    until(lambda: got == [1] and not registration.delivering)
    assert fetched(registration) == [2]
    until(lambda: not core_of(mailbox.space).transactions)
    assert got == [1] and registration.pending == 0


@pytest.mark.parametrize("target", [7, "target", object()])
def test_a_bad_target_is_refused(mailbox, target):
    registration = mailbox.register()
    with pytest.raises(BadArgument, match="target="):
        registration.enable_delivery(target)

    async def waits(event: RemoteEvent) -> None:
        pass

    with pytest.raises(BadArgument, match="target="):
        registration.enable_delivery(waits)
    assert not registration.delivering


# Leases


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_with_its_lease_a_registration_ends(mailbox, clock, how):
    registration = mailbox.register(60)
    other = mailbox.register()
    tell(registration, 1)
    tell(other, 2)
    assert registration.lease.expiration == clock.now() + 60
    if how == "cancelled":
        registration.lease.cancel()
    else:
        clock.advance(60)
    assert not registration.active and mailbox.space.count() == 2, "nothing of it stays"
    with pytest.raises(UnknownEvent):
        tell(registration, 3)
    for call in (
        registration.disable_delivery,
        registration.get_remote_events,
        lambda: registration.enable_delivery(Target()),
        lambda: mailbox.registration(registration.id),
        registration.lease.cancel,
        lambda: registration.lease.renew(10),
    ):
        with pytest.raises(LeaseLost):
            call()
    assert mailbox.registrations() == [other] and fetched(other) == [2]


def test_a_renewed_lease_keeps_it(mailbox, clock):
    registration = mailbox.register(60)
    tell(registration, 1)
    clock.advance(50)
    registration.lease.renew(60)
    clock.advance(50)
    assert fetched(registration) == [1]
    registration.lease.renew(5)
    clock.advance(5)
    assert not registration.active and mailbox.space.count() == 0
    forever = mailbox.register(10)
    forever.lease.renew(FOREVER)
    clock.advance(1e6)
    assert forever.active


def test_leases_of_registrations_are_renewed_together(mailbox, clock):
    first, second, gone = (mailbox.register(60) for _ in range(3))
    gone.lease.cancel()
    outcome = LeaseMap((r.lease, 100) for r in (first, second, gone)).renew_all()
    assert outcome.renewed == [first.lease, second.lease] and list(outcome.failed) == [gone.lease]
    assert first.lease.can_batch(second.lease)
    outcome = LeaseMap((r.lease, 1) for r in (first, second, gone)).cancel_all()
    assert outcome.cancelled == [first.lease, second.lease]
    assert isinstance(outcome.failed[gone.lease], LeaseLost) and mailbox.space.count() == 0


@pytest.mark.parametrize("lease", [0, -5, "x", None])
def test_a_bad_lease_is_refused(mailbox, lease):
    with pytest.raises(BadArgument, match="lease="):
        mailbox.register(lease)


def test_ended_while_an_event_is_on_its_way(mailbox, until):
    registration = mailbox.register()
    entered, go_on = Gate(), Gate()

    def slow(event: RemoteEvent) -> None:
        entered.open()
        go_on.wait()
        raise RuntimeError("too late")

    registration.enable_delivery(slow)
    tell(registration, 1)
    entered.wait()
    registration.lease.cancel()
    assert mailbox.space.count() == 0
    go_on.open()
    until(lambda: not core_of(mailbox.space).transactions)
    until(lambda: mailbox.space.count() == 0)


# Bounds


def test_the_oldest_event_is_dropped_and_counted(clock):
    with EventMailbox(clock=clock, backlog_max=3) as mailbox:
        registration = mailbox.register()
        tell(registration, 1, 2, 3)
        assert registration.dropped == 0
        tell(registration, 4, 5)
        assert registration.dropped == 2 and registration.pending == 3
        assert fetched(registration) == [3, 4, 5]
        tell(registration, 6, 7, 8)
        assert registration.dropped == 2 and fetched(registration) == [6, 7, 8]


def test_a_full_space_refuses_the_event(clock):
    with Space(capacity=Capacity(entries=2), clock=clock) as space:
        registration = EventMailbox(space).register()
        tell(registration, 1)
        with pytest.raises(SpaceFull):
            tell(registration, 2)
        assert fetched(registration) == [1]


def test_events_stay_in_order_in_a_space_with_another_order(clock, until):
    with Space(order=Lifo(), clock=clock) as space:
        registration = EventMailbox(space).register()
        tell(registration, 1, 2, 3)
        assert fetched(registration) == [1, 2, 3]
        tell(registration, 4, 5)
        target = Target()
        registration.enable_delivery(target)
        until(lambda: target.got == [4, 5])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"space": "mailbox"}, "space="),
        ({"retry": 3}, "retry="),
        ({"backlog_max": 0}, "backlog_max="),
        ({"backlog_max": True}, "backlog_max="),
    ],
)
def test_bad_arguments_are_named(arguments, named):
    with pytest.raises(BadArgument, match=named):
        EventMailbox(**arguments)
    with Space() as space, pytest.raises(BadArgument, match="clock="):
        EventMailbox(space, clock=ManualClock())
    with pytest.raises(BadArgument, match="space="):
        EventMailbox(cast(Any, aio.Space()))


@pytest.mark.parametrize("name", [None, "", 7])
def test_a_bad_id_is_refused(mailbox, name):
    with pytest.raises(BadArgument, match="registration_id="):
        mailbox.registration(name)


# Closing, durability


def test_a_closed_mailbox_refuses_everything(mailbox):
    registration = mailbox.register()
    mailbox.close()
    mailbox.close()
    for call in (
        mailbox.register,
        mailbox.registrations,
        lambda: mailbox.registration(registration.id),
        registration.get_remote_events,
        registration.disable_delivery,
    ):
        with pytest.raises(SpaceClosed):
            call()
    with pytest.raises(UnknownEvent):
        tell(registration, 1)


def test_a_given_space_is_left_open_with_what_is_kept(clock):
    with Space(clock=clock) as space:
        with EventMailbox(space) as mailbox:
            registration = mailbox.register()
            tell(registration, 1)
        with EventMailbox(space) as mailbox:
            assert fetched(mailbox.registration(registration.id)) == [1]


def test_a_durable_mailbox_keeps_events_over_a_restart(tmp_path, clock, until):
    with Space(path=tmp_path / "m", clock=clock) as space:
        mailbox = EventMailbox(space)
        kept, ended, cancelled = mailbox.register(1000), mailbox.register(60), mailbox.register()
        kept.listener(AvailabilityEvent("source", 1, 1, ["back"], Job("a"), True))
        tell(kept, 2, 3)
        tell(ended, 4)
        tell(cancelled, 5)
        cancelled.lease.cancel()
        assert next(kept.get_remote_events()).sequence_number == 1
        kept.add_unknown_events([RemoteEvent("noise", 1, 1)])
    clock.advance(60)
    with Space(path=tmp_path / "m", clock=clock) as space:
        mailbox = EventMailbox(space)
        assert [registration.id for registration in mailbox.registrations()] == [kept.id]
        assert space.count(KeptEvent()) == 2, "the events of those that ended are gone"
        again = mailbox.registration(kept.id)
        with pytest.raises(LeaseLost):
            mailbox.registration(ended.id)
        assert again.lease.expiration == clock.now() + 940 and not again.delivering
        tell(again, 6)
        with pytest.raises(UnknownEvent):
            again.listener(RemoteEvent("noise", 1, 2))
        target = Target()
        again.enable_delivery(target)
        until(lambda: target.got == [2, 3, 6])
        again.lease.renew(2000)
    clock.advance(1000)
    with Space(path=tmp_path / "m", clock=clock) as space:
        again = EventMailbox(space).registration(kept.id)
        assert fetched(again) == []
        clock.advance(1000)
        assert space.count() == 0


def test_a_crash_while_an_event_is_on_its_way_loses_nothing(tmp_path, clock, until):
    entered, go_on = Gate(), Gate()

    def slow(event: RemoteEvent) -> None:
        entered.open()
        go_on.wait()

    with Space(path=tmp_path / "m", clock=clock) as space:
        registration = EventMailbox(space).register()
        registration.enable_delivery(slow)
        tell(registration, 1, 2)
        entered.wait()
    go_on.open()
    with Space(path=tmp_path / "m", clock=clock) as space:
        assert fetched(EventMailbox(space).registration(registration.id)) == [1, 2]
    until(lambda: registration.error is not None)


def test_events_of_unknown_classes_wait_until_they_are_known(tmp_path, clock, until, monkeypatch):
    with Space(path=tmp_path / "m", clock=clock) as space:
        registration = EventMailbox(space).register(60)
        registration.listener(AvailabilityEvent("source", 1, 1, None, Job("a")))
        tell(registration, 2)
        forget(monkeypatch, Job)
        again = EventMailbox(space).registration(registration.id)
        target = Target()
        again.enable_delivery(target)
        until(lambda: again.error is not None)
        assert "Job" in str(again.error) and again.pending == 2 and target.tries == 0
        learn(monkeypatch, Job)
        assert fetched(again) == [1, 2]
        registration.listener(AvailabilityEvent("source", 1, 3, None, Job("b")))
        forget(monkeypatch, Job)
        clock.advance(60)
        assert space.count() == 0, "what cannot be built can be removed all the same"


def test_on_the_system_clock_a_durable_registration_ends_by_itself(tmp_path, until):
    with Space(path=tmp_path / "m") as space:
        registration = EventMailbox(space).register(0.1)
        until(lambda: not registration.active)
        until(lambda: space.count() == 0)


# With spaces


def test_events_of_a_javaspace_wait_for_a_listener_that_is_away(clock, mailbox, until):
    space = JavaSpace05(Space("jobs", clock=clock))
    registration = mailbox.register()
    space.notify(Job(), None, registration.listener, FOREVER, "hand back")
    space.register_for_availability_event([Job("b")], None, True, registration.listener)
    space.write(Job("a"))
    until(lambda: registration.pending == 1)
    space.write(Job("b"))
    until(lambda: registration.pending == 3)
    events = list(registration.get_remote_events())
    assert {one.source for one in events} == {"jobs"}
    assert [one.handback for one in events if type(one) is RemoteEvent] == ["hand back"] * 2
    assert [one.entry for one in events if isinstance(one, AvailabilityEvent)] == [Job("b")]


def test_a_source_drops_a_registration_that_is_gone(clock, mailbox, until, caplog):
    caplog.set_level(logging.CRITICAL)
    space = JavaSpace(Space("jobs", clock=clock))
    registration = mailbox.register()
    told = space.notify(Job(), None, registration.listener)
    registration.lease.cancel()
    space.write(Job("a"))
    until(lambda: not told.active)
    assert isinstance(told.error, ListenerFailed)


def test_in_an_async_program(clock):
    async def program() -> None:
        with Space("jobs", clock=clock) as space, EventMailbox(space) as mailbox:
            door = JavaSpace(aio.Space(space))
            registration = mailbox.register()
            await door.notify(Job(), None, registration.listener)
            await door.write(Job("a"))
            while not registration.pending:
                await asyncio.sleep(0)
            assert [one.source for one in registration.get_remote_events()] == ["jobs"]

    asyncio.run(program())
