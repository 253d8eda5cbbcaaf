"""Sections 3.7, 4.5 and 4.7.2 of the thesis beyond appendix B: registrations, what their listeners
are told, inside and outside a transaction, and what becomes of listeners that fail."""

import asyncio
import threading
from typing import Any

import pytest

from tests.models.javaspaces.doors import (
    EXTENDED,
    SIMPLE,
    ExtendedEntry,
    Listener,
    SimpleEntry,
    availability,
    bare,
    event_of,
    fill,
    join,
)
from tupelo.errors import BadArgument, LeaseLost
from tupelo.models.javaspaces import (
    FOREVER,
    NO_WAIT,
    AvailabilityEvent,
    LeaseMap,
    LeaseRenewalManager,
    ListenerFailed,
    RemoteEvent,
    Retry,
    UnknownEvent,
)

ENTRY = SimpleEntry(1, "one", True)
OTHER = SimpleEntry(2, "two", False)
BLANK = SimpleEntry()


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def register(javaspace, listener):
    """`register(txn, visibility_only)` for availability events of any SimpleEntry."""

    def registered(txn: Any = None, visibility_only: bool = True, **options: Any) -> Any:
        return javaspace.register_for_availability_event(
            [BLANK], txn, visibility_only, listener, **options
        )

    return registered


# What is told


def test_an_event_brings_the_handback(javaspace, register, listener):
    handback = {"job": 7, "where": ("here", None)}
    registration = javaspace.notify(BLANK, None, listener, FOREVER, handback)
    javaspace.write(ENTRY)
    assert listener.next() == event_of(registration, 1, handback)
    assert listener.heard_nothing_else(registration)
    registration = register(handback="again")
    javaspace.write(ENTRY)
    assert listener.next() == availability(registration, 1, ENTRY, handback="again")


def test_each_client_has_its_own_handback_for_the_same_event(world, javaspace):
    listeners = Listener(), Listener()
    registrations = [
        world.client(javaspace).notify(BLANK, None, listener, FOREVER, n)
        for n, listener in enumerate(listeners)
    ]
    javaspace.write(ENTRY)
    for n, (listener, registration) in enumerate(zip(listeners, registrations, strict=True)):
        assert listener.next() == event_of(registration, 1, n)


def test_a_listener_is_a_function_or_an_object_with_notify(javaspace, listener):
    as_function = javaspace.notify(BLANK, None, listener.notify)
    javaspace.write(ENTRY)
    assert listener.next() == event_of(as_function, 1)
    as_function.cancel()
    as_object = javaspace.notify(BLANK, None, listener)
    javaspace.write(ENTRY)
    assert listener.next() == event_of(as_object, 1)


def test_a_coroutine_can_listen_at_the_async_door_only(world, javaspace, listener):
    async def listen(event: RemoteEvent) -> None:
        listener.notify(event)

    if world.is_async:
        registration = javaspace.notify(BLANK, None, listen)
        javaspace.write([ENTRY, OTHER])
        assert listener.take(2) == [event_of(registration, 1), event_of(registration, 2)]
    else:  # It has no loop on which it could run.
        with pytest.raises(BadArgument, match=r"^listener="):
            javaspace.notify(BLANK, None, listen)
        with pytest.raises(BadArgument, match=r"^listener="):
            javaspace.register_for_availability_event([BLANK], None, True, listen)


def test_a_registration_says_where_the_numbers_start(javaspace, listener):
    first = javaspace.notify(BLANK, None, listener)
    fill(javaspace, *SIMPLE[:3])
    listener.take(3)
    second = javaspace.notify(BLANK, None, Listener())
    assert second.event_id == first.event_id
    assert second.sequence_number == first.sequence_number + 3
    other = javaspace.notify(SimpleEntry(number=1), None, Listener())
    assert other.event_id != first.event_id, "another template, another event"
    assert str(first.event_id) in repr(first)


def test_a_snapshot_of_a_template_asks_for_the_same_event(javaspace, listener):
    registration = javaspace.notify(javaspace.snapshot(BLANK), None, listener)
    javaspace.write(EXTENDED[1])
    assert listener.next() == event_of(registration, 1)
    assert javaspace.notify(BLANK, None, Listener()).event_id == registration.event_id
    available = javaspace.register_for_availability_event(
        [javaspace.snapshot(BLANK), javaspace.snapshot(ENTRY)], None, True, Listener()
    )
    plain = javaspace.register_for_availability_event([BLANK, ENTRY], None, True, Listener())
    assert available.event_id == plain.event_id


def test_the_null_template_tells_of_everything(javaspace, listener):
    registration = javaspace.notify(None, None, listener)
    fill(javaspace, ENTRY, EXTENDED[0])
    assert listener.take(2) == [event_of(registration, 1), event_of(registration, 2)]


def test_only_what_comes_after_the_registration_is_told(javaspace, register, listener):
    javaspace.write(ENTRY)
    registration = register()
    javaspace.write(OTHER)
    assert listener.next() == availability(registration, 1, OTHER)
    assert listener.heard_nothing_else(registration)


def test_each_entry_of_a_bulk_write_is_told_of_in_order(javaspace, register, listener):
    registration = register()
    javaspace.write(SIMPLE[:5])
    wanted = [availability(registration, nth, SIMPLE[nth - 1]) for nth in range(1, 6)]
    assert listener.take(5) == wanted
    assert listener.heard_nothing_else(registration)


def test_what_is_taken_at_once_was_visible_all_the_same(javaspace, register, listener):
    registration = register()
    javaspace.write(ENTRY)
    assert javaspace.take(BLANK, None, NO_WAIT) == ENTRY
    assert listener.next() == availability(registration, 1, ENTRY), "as it was when it came"


def test_events_are_told_one_at_a_time(javaspace):
    busy = threading.Lock()
    seen: list[int] = []
    done = threading.Event()

    def listen(event: RemoteEvent) -> None:
        assert busy.acquire(blocking=False), "told twice at once"
        seen.append(event.sequence_number)
        busy.release()
        if len(seen) == 50:
            done.set()

    registration = javaspace.notify(BLANK, None, listen)
    fill(javaspace, *(SimpleEntry(n) for n in range(50)))
    assert done.wait(10)
    assert seen == [registration.sequence_number + n for n in range(1, 51)]


# Transitions


def test_a_rolled_back_take_is_a_visibility_transition_for_both_kinds(javaspace, begin):
    javaspace.write(ENTRY)
    for visibility_only in (True, False):
        listener = Listener()
        registration = javaspace.register_for_availability_event(
            [BLANK], None, visibility_only, listener
        )
        inside = begin()
        javaspace.take(BLANK, inside, NO_WAIT)
        inside.abort()
        assert listener.next() == availability(registration, 1, ENTRY, visible=True)
        assert listener.heard_nothing_else(registration)


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_read_lock_that_is_released_makes_the_entry_available_not_visible(javaspace, begin, how):
    javaspace.write(ENTRY)
    seen, available, notified = Listener(), Listener(), Listener()
    registrations = [
        javaspace.register_for_availability_event([BLANK], None, True, seen),
        javaspace.register_for_availability_event([BLANK], None, False, available),
        javaspace.notify(BLANK, None, notified),
    ]
    inside = begin()
    assert javaspace.read(BLANK, inside, NO_WAIT) == ENTRY
    getattr(inside, how)()
    assert available.next() == availability(registrations[1], 1, ENTRY, visible=False)
    javaspace.write(OTHER)
    assert seen.next() == availability(registrations[0], 1, OTHER), "its first"
    assert available.next() == availability(registrations[1], 2, OTHER)
    assert notified.next() == event_of(registrations[2], 1), "its first"
    for listener, registration in zip((seen, available, notified), registrations, strict=True):
        assert listener.heard_nothing_else(registration)


def test_the_last_reader_makes_the_entry_available(javaspace, begin, register, listener):
    javaspace.write(ENTRY)
    registration = register(visibility_only=False)
    first, second = begin(), begin()
    javaspace.read(BLANK, first, NO_WAIT)
    javaspace.read(BLANK, second, NO_WAIT)
    first.commit()
    second.commit()
    assert listener.next() == availability(registration, 1, ENTRY, visible=False)
    assert listener.heard_nothing_else(registration)


def test_one_event_however_many_templates_match(javaspace, listener):
    registration = javaspace.register_for_availability_event(
        [None, BLANK, ExtendedEntry(), SimpleEntry(number=1)], None, True, listener
    )
    fill(javaspace, EXTENDED[1], ENTRY)
    assert listener.take(2) == [
        availability(registration, 1, EXTENDED[1]),
        availability(registration, 2, ENTRY),
    ]
    assert listener.heard_nothing_else(registration)


def test_visibility_only_and_both_transitions_are_two_events(javaspace):
    ids = {
        javaspace.notify(BLANK, None, Listener()).event_id,
        javaspace.register_for_availability_event([BLANK], None, False, Listener()).event_id,
    }
    assert len(ids) == 2


def test_what_was_read_and_taken_comes_back_in_one_event(javaspace, begin, register, listener):
    javaspace.write(ENTRY)
    registration = register(visibility_only=False)
    inside = begin()
    javaspace.read(BLANK, inside, NO_WAIT)
    javaspace.take(BLANK, inside, NO_WAIT)
    inside.abort()
    assert listener.next() == availability(registration, 1, ENTRY, visible=True)
    assert listener.heard_nothing_else(registration)


def test_an_availability_event_is_a_remote_event(javaspace, register, listener):
    register()
    javaspace.write(ENTRY)
    event = listener.next()
    assert isinstance(event, RemoteEvent)
    assert type(event) is AvailabilityEvent
    event.entry.number = 99
    assert javaspace.read(BLANK, None, NO_WAIT) == ENTRY, "it was a copy"


# Transactions


@pytest.mark.parametrize("commits", [True, False])
def test_without_a_transaction_one_is_told_at_the_commit(
    javaspace, begin, register, listener, commits
):
    registration = register()
    inside = begin()
    javaspace.write([ENTRY, OTHER], inside)
    if commits:
        inside.commit()
    else:
        inside.abort()
    javaspace.write(SIMPLE[7])
    told = [ENTRY, OTHER, SIMPLE[7]] if commits else [SIMPLE[7]]
    wanted = [availability(registration, nth, entry) for nth, entry in enumerate(told, start=1)]
    assert listener.take(len(told)) == wanted
    assert listener.heard_nothing_else(registration)


def test_what_is_written_and_taken_inside_is_never_told(javaspace, begin, register, listener):
    registration = register()
    inside = begin()
    javaspace.write(ENTRY, inside)
    javaspace.take(BLANK, inside, NO_WAIT)
    inside.commit()
    javaspace.write(OTHER)
    assert listener.next() == availability(registration, 1, OTHER)
    assert listener.heard_nothing_else(registration)


@pytest.mark.parametrize("kind", ["notify", "availability"])
@pytest.mark.parametrize("how", ["commit", "abort", "expire"])
def test_a_registration_in_a_transaction_hears_what_is_written_inside_and_ends_with_it(
    javaspace, begin, clock, listener, kind, how
):
    inside = begin(60)
    if kind == "notify":
        registration = javaspace.notify(BLANK, inside, listener)
    else:
        registration = javaspace.register_for_availability_event([BLANK], inside, True, listener)

    def wanted(nth: int, entry: Any) -> Any:
        if kind == "notify":
            return event_of(registration, nth)
        return availability(registration, nth, entry)

    javaspace.write(ENTRY, inside)
    assert listener.next() == wanted(1, ENTRY)
    javaspace.write(OTHER)
    assert listener.next() == wanted(2, OTHER), "what is written outside as well"
    javaspace.write(SIMPLE[3], begin())
    assert registration.active
    if how == "expire":
        clock.advance(60)
    else:
        getattr(inside, how)()
    assert not registration.active
    javaspace.write(SIMPLE[4])
    join(registration)
    assert listener.idle
    assert registration.error is None
    with pytest.raises(LeaseLost):
        registration.lease.renew(10)


def test_entries_with_leases_of_their_own_are_told_of_inside(javaspace, begin, register, listener):
    inside = begin()
    registration = register(inside)
    javaspace.write([ENTRY, OTHER], inside, [10, 20])
    assert listener.take(2) == [
        availability(registration, 1, ENTRY),
        availability(registration, 2, OTHER),
    ]
    assert listener.heard_nothing_else(registration)


def test_a_transaction_that_times_out_tells_of_what_it_had_taken(
    javaspace, begin, clock, register, listener
):
    javaspace.write(ENTRY)
    registration = register()
    javaspace.take(BLANK, begin(10), NO_WAIT)
    clock.advance(10)
    assert listener.next() == availability(registration, 1, ENTRY)
    assert listener.heard_nothing_else(registration)


def test_a_lease_can_end_before_the_transaction(javaspace, begin, clock, listener):
    inside = begin()
    registration = javaspace.notify(BLANK, inside, listener, 10)
    clock.advance(10)
    javaspace.write(ENTRY, inside)
    assert not registration.active
    join(registration)
    assert listener.idle


def slow(world: Any) -> tuple[Any, list[RemoteEvent], threading.Event, threading.Event]:
    """A listener that stays with its first event; what it heard; that it did; and let it go on."""
    entered, go_on = threading.Event(), threading.Event()
    events: list[RemoteEvent] = []

    def hear(event: RemoteEvent) -> None:
        events.append(event)
        entered.set()
        assert go_on.wait(20)

    async def hear_async(event: RemoteEvent) -> None:
        await asyncio.to_thread(hear, event)

    return hear_async if world.is_async else hear, events, entered, go_on


@pytest.mark.parametrize("by", ["registration", "lease", "lease map", "renewal manager"])
def test_events_that_wait_do_not_come_after_the_lease_was_cancelled(world, javaspace, clock, by):
    listener, events, entered, go_on = slow(world)
    registration = javaspace.notify(BLANK, None, listener)
    fill(javaspace, *SIMPLE[:3])
    assert entered.wait(20)
    lease = registration.lease
    if by == "registration":
        registration.cancel()
    elif by == "lease":
        lease.cancel()
    elif by == "lease map":
        assert world.call(LeaseMap({bare(lease): 1}).cancel_all).cancelled == [bare(lease)]
    else:
        with LeaseRenewalManager(clock) as manager:
            manager.renew_until(bare(lease), FOREVER)
            world.call(manager.cancel, bare(lease))
    go_on.set()
    join(registration)
    assert len(events) == 1, "it was on its way"
    with pytest.raises(LeaseLost):
        lease.cancel()


def test_events_of_before_its_end_come_to_a_slow_listener(world, javaspace, clock, until):
    listener, events, entered, go_on = slow(world)
    javaspace.notify(BLANK, None, listener, 5)
    fill(javaspace, *SIMPLE[:3])
    assert entered.wait(20)
    clock.advance(5)
    go_on.set()
    until(lambda: len(events) == 3)


def test_a_registration_with_a_lease_of_0_is_over_at_once(javaspace, listener):
    registration = javaspace.notify(BLANK, None, listener, 0)
    assert not registration.active
    javaspace.write(SIMPLE[0])
    assert listener.heard_nothing_else(registration)


def test_cancelling_ends_a_registration_once(javaspace, listener):
    registration = javaspace.notify(BLANK, None, listener)
    assert registration.active
    registration.cancel()
    assert not registration.active
    assert registration.error is None
    with pytest.raises(LeaseLost):
        registration.cancel()


# Listeners that fail


class Failing(Listener):
    """Fails so many times, then listens."""

    def __init__(self, failures: int, error: type[Exception] = OSError) -> None:
        super().__init__()
        self.failures = failures
        self.error = error
        self.attempts = 0

    def notify(self, event: RemoteEvent) -> None:
        self.attempts += 1
        if self.failures:
            self.failures -= 1
            raise self.error(f"failure {self.attempts}")
        super().notify(event)


def test_a_listener_that_fails_is_told_again(world, clock, until):
    javaspace = world.javaspace(retry=Retry(tries=3, first_seconds=1))
    failing = Failing(2)
    registration = javaspace.notify(BLANK, None, failing)
    javaspace.write(ENTRY)
    for attempt, pause in ((1, 1), (2, 2)):  # each pause is twice as long
        until(lambda: clock.asleep, "the listener has failed")
        assert failing.attempts == attempt
        clock.advance(pause - 0.25)
        assert clock.asleep, "not yet"
        clock.advance(0.25)
    assert failing.next() == event_of(registration, 1)
    assert failing.attempts == 3
    javaspace.write(OTHER)
    assert failing.next() == event_of(registration, 2), "and no event is lost"
    assert registration.active
    assert registration.error is None


def test_the_tries_begin_anew_with_every_event(world, clock, until):
    javaspace = world.javaspace(retry=Retry(tries=2, first_seconds=1))
    failing = Failing(1)
    registration = javaspace.notify(BLANK, None, failing)
    for nth in (1, 2, 3):
        failing.failures = 1
        javaspace.write(SIMPLE[nth])
        until(lambda: clock.asleep, "the listener has failed")
        clock.advance(1)
        assert failing.next() == event_of(registration, nth)
    assert registration.active


def test_a_listener_that_fails_too_often_is_dropped_with_a_reason(world, clock, until, caplog):
    javaspace = world.javaspace(retry=Retry(tries=2, first_seconds=1))
    failing, healthy = Failing(1_000), Listener()
    dropped = javaspace.notify(BLANK, None, failing)
    kept = javaspace.notify(BLANK, None, healthy)
    javaspace.write([ENTRY, OTHER])
    until(lambda: clock.asleep, "the listener has failed")
    clock.advance(1)
    until(lambda: not dropped.active, "the listener is dropped")
    assert isinstance(dropped.error, ListenerFailed)
    assert "failed 2 times" in str(dropped.error)
    assert isinstance(dropped.error.__cause__, OSError)
    assert "failure 2" in str(dropped.error)
    assert failing.attempts == 2, "it is not told of the second event"
    assert healthy.take(2) == [event_of(kept, 1), event_of(kept, 2)]
    assert kept.active
    assert "closed" in caplog.text


def test_a_listener_that_does_not_know_the_event_is_dropped_at_once(world, until, caplog):
    javaspace = world.javaspace(retry=Retry(tries=5, first_seconds=1))
    failing = Failing(1, UnknownEvent)
    registration = javaspace.notify(BLANK, None, failing)
    javaspace.write(ENTRY)
    until(lambda: not registration.active, "the listener is dropped")
    assert isinstance(registration.error, ListenerFailed)
    assert isinstance(registration.error.__cause__, UnknownEvent)
    javaspace.write(OTHER)
    join(registration)
    assert failing.attempts == 1
    assert failing.idle


def test_one_try_only(world, until, caplog):
    javaspace = world.javaspace(retry=Retry(tries=1))
    registration = javaspace.register_for_availability_event([BLANK], None, True, Failing(9))
    javaspace.write(ENTRY)
    until(lambda: not registration.active, "the listener is dropped")
    assert "failed 1 times" in str(registration.error)


def test_a_listener_that_ends_its_thread_is_dropped_too(world, until, caplog):
    """SystemExit would end a thread in silence, and CancelledError a task."""
    javaspace = world.javaspace(retry=Retry(tries=1))
    error = asyncio.CancelledError if world.is_async else SystemExit

    def listen(event: RemoteEvent) -> None:
        raise error

    registration = javaspace.notify(BLANK, None, listen)
    javaspace.write(ENTRY)
    until(lambda: not registration.active, "the listener is dropped")
    if not world.is_async:  # A task that is cancelled may say so.
        assert isinstance(registration.error, ListenerFailed)
        assert isinstance(registration.error.__cause__, SystemExit)


def test_a_listener_that_fails_does_not_hold_up_the_space(world, clock, until):
    javaspace = world.javaspace(retry=Retry(tries=3, first_seconds=1))
    failing = Failing(1)
    registration = javaspace.notify(BLANK, None, failing)
    javaspace.write(ENTRY)
    until(lambda: clock.asleep, "the listener has failed")
    assert javaspace.take(BLANK, None, NO_WAIT) == ENTRY
    javaspace.write(OTHER)
    clock.advance(1)
    assert failing.take(2) == [event_of(registration, 1), event_of(registration, 2)]


def test_a_registration_that_is_cancelled_while_its_listener_fails(world, clock, until):
    javaspace = world.javaspace(retry=Retry(tries=9, first_seconds=1))
    failing = Failing(1)
    registration = javaspace.notify(BLANK, None, failing)
    javaspace.write(ENTRY)
    until(lambda: clock.asleep, "the listener has failed")
    registration.cancel()
    assert not registration.active
    clock.advance(1)
    join(registration)
    assert registration.error is None


def test_a_listener_may_use_the_space(world, javaspace, listener):
    """As any client does, from a thread of its own or, at the async door, as a coroutine."""
    inner: Any = javaspace._inner if world.is_async else javaspace

    def listen(event: AvailabilityEvent) -> None:
        inner.write(OTHER)
        listener.notify(event)

    async def listen_async(event: AvailabilityEvent) -> None:
        await inner.write(OTHER)
        listener.notify(event)

    registration = javaspace.register_for_availability_event(
        [SimpleEntry(number=1)], None, True, listen_async if world.is_async else listen
    )
    javaspace.write(ENTRY)
    assert listener.next() == availability(registration, 1, ENTRY)
    assert javaspace.read(SimpleEntry(number=2), None, NO_WAIT) == OTHER
