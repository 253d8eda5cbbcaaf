"""The lease renewal manager: it keeps leases alive, on the handed-in clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tupelo import Space
from tupelo.errors import (
    BadArgument,
    JournalFailed,
    LeaseLost,
    NotAllowed,
    PeerLost,
    SpaceClosed,
    TransactionEnded,
)
from tupelo.models.javaspaces.leases import FOREVER, FixedLeasePeriodPolicy, Lease
from tupelo.models.javaspaces.renewal import LeaseRenewalEvent, LeaseRenewalManager
from tupelo.space.port import port_of
from tupelo.values import lease as engine


@pytest.fixture
def space(clock):
    with Space("leases", clock=clock) as space:
        yield space


@pytest.fixture
def manager(clock):
    with LeaseRenewalManager(clock) as manager:
        yield manager


def leased(space: Space, n: int = 1, seconds: float | None = 10.0) -> Lease:
    return Lease(space.write(("n", n), lease=seconds))


def renewals(space: Space, monkeypatch: pytest.MonkeyPatch) -> list[list[float | None]]:
    """What the space is asked to renew, call by call."""
    calls: list[list[float | None]] = []
    renew = port_of(space).renew_leases

    def spy(wanted: Any) -> Any:
        calls.append([seconds for _, seconds in wanted])
        return renew(wanted)

    monkeypatch.setattr(port_of(space), "renew_leases", spy)
    return calls


def test_renew_for_keeps_a_lease_as_long_as_wished(space, clock, manager):
    lease = leased(space)
    manager.renew_for(lease, 100, renew_duration=10)
    clock.advance(99)
    assert space.count() == 1
    assert lease.expiration == clock.now() + 1, "it is not kept longer than wished for"
    clock.advance(1)
    assert space.count() == 0
    assert lease not in manager


def test_renew_until_forever(space, clock, manager):
    lease = leased(space)
    manager.renew_until(lease, FOREVER, 10)
    clock.advance(10_000)
    assert space.count() == 1 and lease.expiration >= clock.now() + 5
    manager.remove(lease)
    clock.advance(10)
    assert space.count() == 0


def test_it_renews_when_half_is_over(space, clock, manager, monkeypatch):
    lease = leased(space, seconds=10)
    calls = renewals(space, monkeypatch)
    manager.renew_until(lease, FOREVER, 20)
    clock.advance(4.9)
    assert calls == []
    clock.advance(0.1)
    assert calls == [[20]] and lease.expiration == clock.now() + 20
    clock.advance(9.9)
    assert len(calls) == 1
    clock.advance(0.1)
    assert len(calls) == 2


def test_without_a_duration_all_is_asked_for_at_once(space, clock, manager, monkeypatch):
    calls = renewals(space, monkeypatch)
    limited, endless = leased(space, 1), leased(space, 2)
    manager.renew_for(limited, 100)
    manager.renew_until(endless, FOREVER)
    clock.advance(5)
    assert calls == [[95.0, None]]
    assert endless.expiration == FOREVER and limited.expiration == clock.now() + 95
    clock.advance(94)
    assert len(calls) == 1 and manager.get_expiration(limited) == clock.now() + 1


def test_a_policy_decides_how_long_each_renewal_is(clock, manager, monkeypatch):
    with Space(lease_policy=FixedLeasePeriodPolicy(10, 4), clock=clock) as space:
        calls = renewals(space, monkeypatch)
        lease, other = leased(space, seconds=None), leased(space, seconds=None)
        manager.renew_until(lease, FOREVER)
        manager.renew_until(other, FOREVER, Lease.ANY)
        clock.advance(1000)
        assert space.count() == 2
        assert calls[0] == [None, engine.ANY_LEASE]


def test_leases_of_one_space_are_renewed_in_one_step(space, clock, manager, monkeypatch):
    calls = renewals(space, monkeypatch)
    for n in range(4):
        manager.renew_until(leased(space, n, 60), FOREVER, 60)
        clock.advance(1)
    late = leased(space, 9, 60)
    clock.advance(20)
    manager.renew_until(late, FOREVER, 60)
    clock.advance(6)
    assert [len(call) for call in calls] == [4], "the last is far from its end"
    clock.advance(1000)
    assert space.count() == 5
    assert all(len(call) == 5 for call in calls[-5:]), "in time they go together"


def test_a_lost_lease_is_told_and_dropped(space, clock, manager):
    events: list[LeaseRenewalEvent] = []
    lost, kept = leased(space, 1), leased(space, 2)
    manager.renew_until(lost, FOREVER, 10, events.append)
    manager.renew_until(kept, FOREVER, 10, events.append)
    space.take(("n", 1), wait=0)
    clock.advance(5)
    assert len(events) == 1
    event = events[0]
    assert event.lease == lost and event.expiration == FOREVER
    assert isinstance(event.error, LeaseLost)
    assert lost not in manager and kept in manager and len(manager) == 1
    clock.advance(100)
    assert space.count() == 1 and len(events) == 1


def test_a_lease_that_was_lost_before_is_told_too(space, clock, manager):
    events: list[LeaseRenewalEvent] = []
    lease = leased(space)
    clock.advance(10)
    manager.renew_for(lease, 10, listener=events.append)
    clock.advance(0)
    assert isinstance(events[0].error, LeaseLost)


def test_a_space_that_closes_loses_its_leases(clock, manager):
    events: list[LeaseRenewalEvent] = []
    space = Space(clock=clock)
    manager.renew_until(leased(space), FOREVER, 10, events.append)
    space.close()
    clock.advance(5)
    assert isinstance(events[0].error, SpaceClosed) and len(manager) == 0


class Unreliable:
    """A landlord that cannot be reached now and then."""

    def __init__(self, space: Space, *outcomes: Exception | None) -> None:
        self._space = space
        self._port = port_of(space)
        self._outcomes = list(outcomes)
        self.attempts: list[float] = []

    def lease(self, n: int, seconds: float) -> Lease:
        return Lease(engine.Lease(self, self._space.write(("n", n), lease=seconds).thing))

    def now(self) -> float:
        return self._port.now()

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        self.attempts.append(self.now())
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if outcome is not None:
            raise outcome
        self._port.renew_lease(thing, seconds)

    def cancel_lease(self, thing: Any) -> None:
        self._port.cancel_lease(thing)

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        self.renew_lease(thing, seconds)

    async def cancel_lease_async(self, thing: Any) -> None:
        self.cancel_lease(thing)


LOST_LINK = PeerLost("the landlord", "renew")


def test_an_error_that_may_pass_is_tried_again(space, clock, manager):
    landlord, events = Unreliable(space, LOST_LINK, OSError("busy"), TimeoutError()), list[Any]()
    lease, began = landlord.lease(1, 16), clock.now()
    manager.renew_until(lease, FOREVER, 16, events.append)
    clock.advance(15)
    assert [at - began for at in landlord.attempts] == [8, 12, 14, 15]
    assert lease.expiration == began + 31 and not events and lease in manager
    clock.advance(1_000)
    assert space.count() == 1 and not events


def test_it_is_tried_until_the_lease_has_run_out(space, clock, manager):
    landlord, events = Unreliable(space, *[LOST_LINK] * 999), list[LeaseRenewalEvent]()
    lease, began = landlord.lease(1, 10), clock.now()
    manager.renew_until(lease, FOREVER, 10, events.append)
    clock.advance(9.95)
    assert not events and lease in manager
    tried = len(landlord.attempts)
    assert 5 < tried < 20, "it does not spin"
    clock.advance(1)
    (event,) = events
    assert event.error is LOST_LINK and event.lease == lease and lease not in manager
    assert len(landlord.attempts) == tried and max(landlord.attempts) < began + 10
    clock.advance(100)
    assert len(events) == 1


@pytest.mark.parametrize(
    "error",
    [
        LeaseLost("gone"),
        SpaceClosed("closed"),
        BadArgument("lease", "shorter", 5),
        NotAllowed("renew", "space", "you"),
        JournalFailed("full"),
        TransactionEnded("t", "aborted"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_will_not_pass_is_told_at_once(space, clock, manager, error):
    landlord, events = Unreliable(space, error), list[LeaseRenewalEvent]()
    lease = landlord.lease(1, 10)
    manager.renew_until(lease, FOREVER, 10, events.append)
    clock.advance(5)
    assert events[0].error is error and lease not in manager and len(landlord.attempts) == 1


def test_one_that_was_removed_is_not_tried_again(space, clock, manager):
    landlord, events = Unreliable(space, *[LOST_LINK] * 9), list[LeaseRenewalEvent]()
    lease = landlord.lease(1, 10)
    manager.renew_until(lease, FOREVER, 10, events.append)
    clock.advance(6)
    assert len(landlord.attempts) == 1
    manager.remove(lease)
    clock.advance(10)
    assert len(landlord.attempts) == 1 and not events


def test_a_listener_may_be_an_object_and_learn_of_the_end(space, clock, manager):
    class Holder:
        def __init__(self) -> None:
            self.lost: list[Any] = []
            self.reached: list[Any] = []

        def notify(self, event: LeaseRenewalEvent) -> None:
            self.lost.append(event.lease)

        def expiration_reached(self, event: LeaseRenewalEvent) -> None:
            self.reached.append((event.lease, event.error))

    holder = Holder()
    short, lost = leased(space, 1), leased(space, 2)
    manager.renew_for(short, 30, 10, holder)
    manager.renew_for(lost, 30, 10, holder)
    lost.cancel()
    clock.advance(29)
    assert holder.lost == [lost] and holder.reached == []
    clock.advance(1)
    assert holder.reached == [(short, None)] and len(manager) == 0


def test_a_listener_that_raises_harms_nothing(space, clock, manager, caplog):
    def raises(event: LeaseRenewalEvent) -> None:
        raise RuntimeError("a bad listener")

    told: list[LeaseRenewalEvent] = []
    for n, listener in enumerate([raises, told.append, None]):
        lease = leased(space, n)
        manager.renew_until(lease, FOREVER, 10, listener)
        lease.cancel()
    kept = leased(space, 9)
    manager.renew_until(kept, FOREVER, 10)
    clock.advance(100)
    assert len(told) == 1 and space.count() == 1
    assert "a bad listener" in caplog.text and "there is no listener" in caplog.text


def test_set_expiration_wishes_anew(space, clock, manager):
    lease = leased(space)
    manager.renew_for(lease, 20, 10)
    manager.set_expiration(lease, clock.now() + 50)
    assert manager.get_expiration(lease) == clock.now() + 50
    clock.advance(49)
    assert space.count() == 1
    clock.advance(1)
    assert space.count() == 0
    other = leased(space, seconds=None)
    manager.renew_until(other, FOREVER)
    manager.set_expiration(other, clock.now() + 5)
    clock.advance(5)
    assert other not in manager


def test_renewing_again_replaces_what_was_wished(space, clock, manager):
    lease = leased(space)
    manager.renew_for(lease, 20, 10)
    manager.renew_for(lease, 100, 10)
    clock.advance(99)
    assert space.count() == 1 and len(manager) == 1


def test_remove_stops_and_cancel_cancels(space, clock, manager):
    removed, cancelled = leased(space, 1), leased(space, 2)
    manager.renew_until(removed, FOREVER, 10)
    manager.renew_until(cancelled, FOREVER, 10)
    manager.remove(removed)
    manager.cancel(cancelled)
    assert space.count() == 1 and len(manager) == 0
    clock.advance(10)
    assert space.count() == 0
    gone = leased(space, 3)
    manager.renew_until(gone, FOREVER, 10)
    gone.cancel()
    with pytest.raises(LeaseLost):
        manager.cancel(gone)
    assert gone not in manager


def test_clear_and_close_cancel_nothing(space, clock, manager):
    lease = leased(space)
    manager.renew_until(lease, FOREVER, 10)
    manager.clear()
    assert len(manager) == 0 and space.count() == 1
    manager.renew_until(lease, FOREVER, 10)
    clock.advance(50)
    assert space.count() == 1
    manager.close()
    manager.close()
    with pytest.raises(SpaceClosed):
        manager.renew_until(lease, FOREVER)
    clock.advance(10)
    assert space.count() == 0


def test_unknown_leases_are_refused(space, manager):
    lease = leased(space)
    for call in (manager.get_expiration, manager.remove, manager.cancel):
        with pytest.raises(BadArgument, match="lease="):
            call(lease)
        with pytest.raises(BadArgument, match="lease="):
            call("lease")
    with pytest.raises(BadArgument, match="lease="):
        manager.set_expiration(lease, FOREVER)
    assert space.count() == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"lease": "x"}, "lease="),
        ({"expiration": "soon"}, "expiration="),
        ({"expiration": True}, "expiration="),
        ({"expiration": float("nan")}, "expiration="),
        ({"renew_duration": 0}, "renew_duration="),
        ({"listener": 7}, "listener="),
    ],
)
def test_bad_arguments_are_named(space, manager, arguments, named):
    with pytest.raises(BadArgument, match=named):
        manager.renew_until(**{"lease": leased(space), "expiration": FOREVER, **arguments})
    assert len(manager) == 0


def test_a_bad_wish_is_refused(space, manager):
    with pytest.raises(BadArgument, match="duration="):
        manager.renew_for(leased(space), 0)
    lease = leased(space)
    manager.renew_for(lease, 10)
    with pytest.raises(BadArgument, match="expiration="):
        manager.set_expiration(lease, None)


def test_many_comings_and_goings_leave_nothing_behind(space, clock, manager):
    lease = leased(space)
    for _ in range(1000):
        manager.renew_for(lease, 100)
        manager.remove(lease)
    assert len(clock._alarms._heap) < 200


def test_durable_leases_are_renewed_on_disk(tmp_path, clock, manager):
    with Space(path=tmp_path / "a", clock=clock) as space:
        manager.renew_until(leased(space), FOREVER, 20)
        clock.advance(9)
    with Space(path=tmp_path / "a", clock=clock) as space:
        clock.advance(15)
        assert space.count() == 1


def test_on_the_system_clock_a_thread_of_its_own_renews(until):
    threads = set()

    class Landlord:
        def renew_leases(self, wanted: Any) -> Any:
            threads.add(threading.current_thread().name)
            raise LeaseLost("gone")

    with Space("real") as space, LeaseRenewalManager() as manager:
        events: list[LeaseRenewalEvent] = []
        kept = leased(space, 1, 1.0)
        manager.renew_until(kept, FOREVER, 1000)
        lost = leased(space, 2, 0.2)
        lost.cancel()
        manager.renew_until(lost, FOREVER, 1000, events.append)
        until(lambda: events)
        until(lambda: kept.expiration > port_of(space).clock.now() + 900)
        assert isinstance(events[0].error, LeaseLost)
        thing = type("Thing", (), {"expires": 0.0})()
        landlord: Any = Landlord()
        foreign = Lease(type(kept.granted)(landlord, thing))
        manager.renew_until(foreign, FOREVER, 10, events.append)
        until(lambda: len(events) == 2)
    assert threads == {"tupelo-renewal"}
