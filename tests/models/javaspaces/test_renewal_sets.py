"""The lease renewal service: sets of leases, what is told when one is lost, and when the set itself
is nearly over."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tupelo import Space
from tupelo.errors import BadArgument, LeaseLost, ListenerFailed, SpaceClosed, UnknownEvent
from tupelo.models.javaspaces import (
    EXPIRATION_WARNING_EVENT_ID,
    FOREVER,
    RENEWAL_FAILURE_EVENT_ID,
    EventMailbox,
    ExpirationWarningEvent,
    FixedLeasePeriodPolicy,
    Lease,
    LeaseMap,
    LeaseRenewalManager,
    LeaseRenewalService,
    RenewalFailureEvent,
    Retry,
)


@pytest.fixture
def space(clock):
    with Space("leases", clock=clock) as space:
        yield space


@pytest.fixture
def service(clock):
    with LeaseRenewalService(clock) as service:
        yield service


def leased(space: Space, n: int = 1, seconds: float | None = 10.0) -> Lease:
    return Lease(space.write(("n", n), lease=seconds))


def quiet(until: Any) -> None:
    """Wait until all events have been delivered."""
    until(lambda: not [t for t in threading.enumerate() if t.name == "tupelo-events"])


# Leases in a set


def test_what_is_in_a_set_is_renewed(service, space, clock):
    kept = service.create_lease_renewal_set()
    lease, other = leased(space, 1), leased(space, 2)
    kept.renew_for(lease, FOREVER, 10)
    kept.renew_for(other, 30, 10)
    assert kept.leases == [lease, other] and kept.active
    clock.advance(29)
    assert space.count() == 2
    clock.advance(1)
    assert space.count() == 1 and kept.leases == [lease], "the other was wanted for 30 seconds"
    clock.advance(1_000)
    assert kept.remove(lease) == lease and kept.leases == []
    assert kept.remove(lease) is None and kept.remove(other) is None
    clock.advance(10)
    assert space.count() == 0, "it lives as long as it was granted"


def test_a_lease_gets_new_wishes(service, space, clock):
    kept = service.create_lease_renewal_set()
    lease = leased(space)
    first = kept.renew_for(lease, 20, 10)
    assert kept.renew_for(lease, 100, 10) == first and kept.leases == [lease]
    clock.advance(99)
    assert space.count() == 1
    kept.renew_for(lease, -1)
    assert kept.leases == []
    kept.renew_for(leased(space, 2), 0)
    assert kept.leases == []


def test_a_lease_may_be_in_several_sets(service, space, clock):
    first, second = (service.create_lease_renewal_set() for _ in range(2))
    assert first.id != second.id and first.lease != second.lease
    lease = leased(space)
    first.renew_for(lease, 15, 10)
    second.renew_for(lease, 40, 10)
    clock.advance(39)
    assert space.count() == 1 and first.leases == [] and second.leases == [lease]


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_with_its_lease_a_set_ends(service, space, clock, how):
    kept = service.create_lease_renewal_set(60)
    lease = leased(space)
    kept.renew_for(lease, FOREVER, 10)
    assert kept.lease.expiration == clock.now() + 60
    if how == "cancelled":
        kept.lease.cancel()
    else:
        kept.lease.renew(30)
        clock.advance(30)
    assert not kept.active and service.space.count() == 0
    clock.advance(10)
    assert space.count() == 0, "it is renewed no more, and was not cancelled"
    for call in (
        lambda: kept.leases,
        lambda: kept.renew_for(lease),
        lambda: kept.remove(lease),
        lambda: kept.set_expiration_warning_listener(print, 5),
        lambda: kept.set_renewal_failure_listener(print),
        kept.clear_expiration_warning_listener,
        kept.clear_renewal_failure_listener,
        kept.lease.cancel,
    ):
        with pytest.raises(LeaseLost):
            call()


def test_sets_are_renewed_like_other_leases(service, space, clock):
    kept = service.create_lease_renewal_set(10)
    kept.renew_for(leased(space), FOREVER, 10)
    with LeaseRenewalManager(clock) as manager:
        manager.renew_until(kept.lease, FOREVER, 10)
        clock.advance(500)
        assert kept.active and space.count() == 1
    outcome = LeaseMap({kept.lease: 100, leased(space, 2): 100}).renew_all()
    assert len(outcome.renewed) == 2 and kept.lease.expiration == clock.now() + 100


def test_a_policy_limits_the_leases_of_sets(clock):
    policy = FixedLeasePeriodPolicy(60, 30)
    with LeaseRenewalService(clock, lease_policy=policy) as service:
        for asked, granted in ((10, 10), (FOREVER, 60), (Lease.ANY, 30)):
            kept = service.create_lease_renewal_set(asked)
            assert kept.lease.expiration == clock.now() + granted


def test_a_closed_service_renews_nothing(service, space, clock):
    kept = service.create_lease_renewal_set()
    kept.renew_for(leased(space), FOREVER, 10)
    service.close()
    service.close()
    clock.advance(10)
    assert space.count() == 0 and not kept.active
    with pytest.raises(SpaceClosed):
        service.create_lease_renewal_set()


# Bad arguments


@pytest.mark.parametrize("lease", [0, -5, "x", None, True])
def test_a_bad_lease_of_a_set_is_refused(service, lease):
    with pytest.raises(BadArgument, match="lease="):
        service.create_lease_renewal_set(lease)


def test_bad_arguments_are_named(service, space):
    kept = service.create_lease_renewal_set()
    lease = leased(space)
    cases: list[tuple[str, Any]] = [
        ("lease", lambda: kept.renew_for("lease")),
        ("lease", lambda: kept.renew_for(kept.lease)),
        ("lease", lambda: kept.renew_for(service.create_lease_renewal_set().lease)),
        ("lease", lambda: kept.remove("lease")),
        ("duration", lambda: kept.renew_for(lease, "long")),
        ("duration", lambda: kept.renew_for(lease, float("nan"))),
        ("renew_duration", lambda: kept.renew_for(lease, 10, 0)),
        ("renew_duration", lambda: kept.renew_for(lease, 10, Lease.ANY)),
        ("min_warning", lambda: kept.set_expiration_warning_listener(print, -1)),
        ("min_warning", lambda: kept.set_expiration_warning_listener(print, None)),
        ("listener", lambda: kept.set_expiration_warning_listener(None, 5)),
        ("listener", lambda: kept.set_renewal_failure_listener("x")),
    ]
    for argument, call in cases:
        with pytest.raises(BadArgument, match=f"^{argument}="):
            call()
    assert kept.leases == []
    with pytest.raises(BadArgument, match="retry="):
        LeaseRenewalService(retry=3)  # type: ignore[arg-type]
    kept.renew_for(lease, FOREVER, Lease.ANY)


# Failures


def test_a_lease_that_is_lost_is_told_of(service, space, clock, until):
    kept, events = service.create_lease_renewal_set(), list[Any]()
    registration = kept.set_renewal_failure_listener(events.append, {"hand": "back"})
    assert registration.event_id == RENEWAL_FAILURE_EVENT_ID and registration.source == kept.id
    assert registration.lease == kept.lease and registration.active
    lost, good = leased(space, 1), leased(space, 2)
    lease_id = kept.renew_for(lost, FOREVER, 10)
    kept.renew_for(good, 8)
    space.take(("n", 1), wait=0)
    clock.advance(20)
    until(lambda: events)
    quiet(until)
    (event,) = events
    assert type(event) is RenewalFailureEvent and event.handback == {"hand": "back"}
    assert (event.source, event.sequence_number) == (kept.id, 1)
    assert event.lease == lost and event.lease_id == lease_id
    assert isinstance(event.error, LeaseLost) and "gone" in str(event.reason)
    assert kept.leases == [], "the one was lost, the other wanted for 8 seconds"


def test_a_lease_that_is_over_already_is_told_of(service, space, clock, until):
    kept, events = service.create_lease_renewal_set(), list[Any]()
    kept.set_renewal_failure_listener(events.append)
    lease = leased(space, 1, 5)
    clock.advance(5)
    kept.renew_for(lease, 100)
    clock.advance(0)
    until(lambda: events)
    assert events[0].lease == lease and kept.leases == []


def test_nobody_has_to_listen(service, space, clock, until):
    kept, events = service.create_lease_renewal_set(), list[Any]()
    for n in range(3):
        kept.renew_for(leased(space, n), FOREVER, 10)
    space.take(("n", 0), wait=0)
    clock.advance(5)
    assert len(kept.leases) == 2
    registration = kept.set_renewal_failure_listener(events.append)
    space.take(("n", 1), wait=0)
    clock.advance(10)
    until(lambda: len(events) == 1)
    kept.clear_renewal_failure_listener()
    kept.clear_renewal_failure_listener()
    assert not registration.active
    space.take(("n", 2), wait=0)
    clock.advance(10)
    quiet(until)
    assert len(events) == 1 and kept.leases == []


def test_a_new_listener_goes_on_where_the_old_one_was(service, space, clock, until):
    kept, first, second = service.create_lease_renewal_set(), list[Any](), list[Any]()
    for n in range(2):
        kept.renew_for(leased(space, n), FOREVER, 10)
    old = kept.set_renewal_failure_listener(first.append)
    space.take(("n", 0), wait=0)
    clock.advance(5)
    until(lambda: first)
    new = kept.set_renewal_failure_listener(second.append)
    assert new.sequence_number == 1 and new.active and not old.active
    space.take(("n", 1), wait=0)
    clock.advance(10)
    until(lambda: second)
    assert [event.sequence_number for event in first + second] == [1, 2]


# Warnings


def test_a_warning_comes_before_the_set_is_over(service, clock, until):
    kept, events = service.create_lease_renewal_set(60), list[Any]()
    registration = kept.set_expiration_warning_listener(events.append, 10, "back")
    assert registration.event_id == EXPIRATION_WARNING_EVENT_ID
    assert registration.lease == kept.lease
    clock.advance(49)
    quiet(until)
    assert events == []
    clock.advance(1)
    until(lambda: events)
    (event,) = events
    assert event == ExpirationWarningEvent(
        kept.id, EXPIRATION_WARNING_EVENT_ID, 1, "back", clock.now() + 10
    )
    clock.advance(9)
    kept.lease.renew(60)
    clock.advance(49)
    quiet(until)
    assert len(events) == 1, "it was renewed"
    clock.advance(1)
    until(lambda: len(events) == 2)
    assert events[1].sequence_number == 2 and events[1].expiration == clock.now() + 10
    clock.advance(10)
    quiet(until)
    assert len(events) == 2 and not kept.active and not registration.active


def test_a_warning_comes_at_once_if_little_is_left(service, clock, until):
    kept, events = service.create_lease_renewal_set(5), list[Any]()
    kept.set_expiration_warning_listener(events.append, 10)
    until(lambda: len(events) == 1)
    kept.lease.renew(7)
    until(lambda: len(events) == 2)
    kept.lease.renew(100)
    kept.lease.renew(8)
    until(lambda: len(events) == 3)
    kept.set_expiration_warning_listener(events.append, 10)
    until(lambda: len(events) == 4)


def test_a_renewal_for_less_is_warned_of_in_time(service, clock, until):
    kept, events = service.create_lease_renewal_set(1_000), list[Any]()
    kept.set_expiration_warning_listener(events.append, 10)
    kept.lease.renew(30)
    clock.advance(20)
    until(lambda: len(events) == 1)


def test_who_does_not_want_a_warning_gets_none(service, clock, until):
    kept, events = service.create_lease_renewal_set(60), list[Any]()
    registration = kept.set_expiration_warning_listener(events.append, 10)
    kept.clear_expiration_warning_listener()
    kept.clear_expiration_warning_listener()
    clock.advance(60)
    quiet(until)
    assert events == [] and not registration.active
    endless = service.create_lease_renewal_set()
    endless.set_expiration_warning_listener(events.append, 10)
    clock.advance(1e6)
    quiet(until)
    assert events == []


def test_a_warning_with_no_time_left_is_none(service, clock, until):
    """With a minimum of 0 seconds it would come when the set is gone."""
    kept, events = service.create_lease_renewal_set(60), list[Any]()
    kept.set_expiration_warning_listener(events.append, 0)
    clock.advance(60)
    quiet(until)
    assert events == []


# Listeners


@pytest.mark.parametrize("error", [RuntimeError("never"), UnknownEvent("not mine")])
def test_a_listener_that_fails_is_told_again_and_dropped(clock, until, error, caplog):
    with LeaseRenewalService(clock, retry=Retry(tries=3)) as service:
        kept, tries = service.create_lease_renewal_set(1_000), list[Any]()

        def fails(event: Any) -> None:
            tries.append(event)
            raise error

        registration = kept.set_expiration_warning_listener(fails, 2_000)

        def dropped() -> bool:
            clock.advance(1)
            return not registration.active

        until(dropped)
        assert len(tries) == (3 if isinstance(error, RuntimeError) else 1)
        assert isinstance(registration.error, ListenerFailed)
        assert "was dropped" in caplog.text and kept.active


def test_events_can_be_kept_in_a_mailbox(service, space, clock, until):
    with EventMailbox(clock=clock) as mailbox:
        box = mailbox.register()
        kept = service.create_lease_renewal_set(60)
        kept.set_expiration_warning_listener(box.listener, 10)
        kept.set_renewal_failure_listener(box.listener, "back")
        lease = leased(space)
        lease_id = kept.renew_for(lease, FOREVER, 10)
        lease.cancel()
        clock.advance(50)
        until(lambda: box.pending == 2)
        events = {type(event): event for event in box.get_remote_events()}
        failure = events[RenewalFailureEvent]
        assert failure.lease_id == lease_id and failure.handback == "back"  # type: ignore[attr-defined]
        assert failure.lease is None and failure.error is None  # type: ignore[attr-defined]
        assert events[ExpirationWarningEvent].expiration == clock.now() + 10  # type: ignore[attr-defined]


def test_on_the_system_clock(until):
    with LeaseRenewalService() as service, Space("real") as space:
        kept, events = service.create_lease_renewal_set(2.0), list[Any]()
        kept.set_expiration_warning_listener(events.append, 1.9)
        lease = leased(space, 1, 1.0)
        kept.renew_for(lease, FOREVER, 1_000)
        until(lambda: events)
        until(lambda: not kept.active)
        assert space.count() == 1
