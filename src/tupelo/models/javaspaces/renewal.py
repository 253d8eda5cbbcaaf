"""Lease renewal: the manager renews leases of its own program, the service (Jini's Norm) those of
programs that are disconnected.

| Jini                                    | Tupelo                                               |
| --------------------------------------- | ---------------------------------------------------- |
| LeaseRenewalManager, renewUntil         | LeaseRenewalManager.renew_until, renew_for           |
| LeaseRenewalService                     | LeaseRenewalService.create_lease_renewal_set         |
| LeaseRenewalSet, getRenewalSetLease     | a leased set of leases, with a renewal manager       |
| renewFor, remove, getLeases             | renew_for, remove, leases                            |
| setExpirationWarningListener, clear...  | an event before the lease of the set itself ends     |
| setRenewalFailureListener, clear...     | an event for a lease that could not be renewed       |

A lease is renewed when half of its remaining time is over, so that a late renewal is still in time.
Leases of one space are renewed together, in one step: when one is due, those that have used a
quarter of their time are renewed too. An attempt that fails for a temporary reason, such as a lost
link, is repeated until the lease has expired.

All time comes from the given clock. A ManualClock renews within `advance()`, each lease at its
moment. The system clock has one alarm thread for the whole process, which must not wait for a disk;
there, the due leases of each space are renewed on a thread of their own, so that a slow space does
not delay others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tupelo.errors import (
    AccessError,
    BadArgument,
    BadInput,
    JournalError,
    LeaseLost,
    SpaceClosed,
    TransactionError,
)
from tupelo.models.javaspaces.events import (
    EventRegistration,
    Listener,
    ListenerThread,
    RemoteEvent,
    Retry,
    check_retry,
    target_of,
)
from tupelo.models.javaspaces.leases import (
    ANY_LEASE,
    FOREVER,
    AsyncLease,
    Lease,
    Tenancy,
    Tenant,
    renew_many,
    seconds_asked,
)
from tupelo.space.blocking import ClosingHandle, Space
from tupelo.space.clock import Clock, SystemClock, system_clock
from tupelo.space.dual_api import run_sync
from tupelo.space.port import port_of
from tupelo.space.query import check_wait
from tupelo.values import lease as engine
from tupelo.values.checks import is_number
from tupelo.values.kind import entry
from tupelo.values.lease import LeasePolicy

logger = logging.getLogger("tupelo")

DUE_PART = 0.5
EARLY_PART = 0.25
RETRY_LEAST_SECONDS = 0.1
ASYNC_SECONDS = 60.0
"""How many seconds to wait for an event loop to renew a lease."""
_FOR_GOOD = (LeaseLost, BadInput, SpaceClosed, TransactionError, AccessError, JournalError)
"""Errors after which another attempt to renew is useless."""


@dataclass(frozen=True)
class LeaseRenewalEvent:
    """A lease is no longer renewed: it was lost, or (without an `error`) it has reached the wanted
    `expiration`."""

    lease: Lease
    expiration: float
    error: Exception | None


RenewalListener = Callable[[LeaseRenewalEvent], object]


@dataclass(eq=False, repr=False)
class _Managed:
    """A managed lease: renewed at `due`, or together with others from `early` on."""

    lease: Lease
    expiration: float
    duration: float
    listener: Any
    loop: asyncio.AbstractEventLoop | None
    due: float = FOREVER
    early: float = FOREVER
    busy: bool = False
    error: Exception | None = None  # of the last attempt
    alarm_at: float = FOREVER
    cancel_alarm: Callable[[], None] = lambda: None

    def plan(self, now: float) -> None:
        """Set the moment of the next check."""
        end = self.lease.expiration
        self.busy = False
        if end >= self.expiration:  # It lasts as long as wanted.
            self.due = self.early = self.expiration
        else:
            left = max(0.0, end - now)
            self.due = now + left * DUE_PART
            self.early = now + left * EARLY_PART
            if self.error is not None:  # Check once more at the end, then drop it.
                self.due = self.early = min(max(self.due, now + RETRY_LEAST_SECONDS), end)

    def joins(self, other: _Managed, now: float) -> bool:
        """Whether it is renewed together with the other: same landlord, same loop."""
        return (
            not self.busy
            and self.early <= now
            and self.due < self.expiration
            and self.lease.granted.landlord is other.lease.granted.landlord
            and self.loop is other.loop
        )

    def seconds_wanted(self, now: float) -> float | None:
        """The seconds to ask for in a renewal."""
        if self.duration == ANY_LEASE and self.expiration == FOREVER:
            return seconds_asked(ANY_LEASE)
        left = max(self.expiration - now, 0.001)  # Late, but the renewal must not ask for 0.
        return seconds_asked(left if self.duration == ANY_LEASE else min(self.duration, left))

    def gave_up(self, now: float) -> bool:
        """Whether the lease has expired after a failed attempt to renew it."""
        return self.error is not None and self.lease.expiration <= now


class LeaseRenewalManager(ClosingHandle):
    """Renews leases until a moment, or for ever. Its methods never wait, so async programs call
    them without await.

    A listener is a function of a LeaseRenewalEvent, or an object with `notify(event)`. It is called
    for a lease that was lost or could not be renewed in time. An object that also has
    `expiration_reached(event)` is called for a lease that has reached the wanted expiration. Errors
    of a listener are logged.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or system_clock
        self._threads = isinstance(self._clock, SystemClock)
        self._lock = threading.RLock()
        self._managed: dict[Lease, _Managed] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<LeaseRenewalManager of {len(self._managed)} leases>"

    def renew_until(
        self,
        lease: Lease,
        expiration: float,
        renew_duration: float | None = None,
        listener: RenewalListener | object | None = None,
    ) -> None:
        """Renew a lease until the moment `expiration` (FOREVER: for ever).

        Each renewal asks for `renew_duration` seconds; with None it asks for all of the time until
        `expiration`.
        """
        if not isinstance(lease, Lease):
            raise BadArgument("lease", "a Lease of this package", lease)
        _check_moment(expiration)
        if renew_duration is None:
            renew_duration = FOREVER
        seconds_asked(renew_duration, name="renew_duration")
        if listener is not None and not (
            callable(listener) or callable(getattr(listener, "notify", None))
        ):
            raise BadArgument(
                "listener", "a function of an event, or an object with notify(event)", listener
            )
        loop = self._loop_of(lease)
        with self._lock:
            if self._closed:
                raise SpaceClosed("the lease renewal manager is closed")
            if lease in self._managed:
                self.remove(lease)
            managed = _Managed(lease, expiration, renew_duration, listener, loop)
            self._managed[lease] = managed
            self._schedule(managed)

    def _loop_of(self, lease: Lease) -> asyncio.AbstractEventLoop | None:
        """The loop on which an AsyncLease is renewed. With a ManualClock the lease belongs to a
        space of this program, which needs no loop."""
        if not isinstance(lease, AsyncLease) or not self._threads:
            return None
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            raise BadArgument("lease", "given on the loop that it is used on", lease) from None

    def renew_for(
        self,
        lease: Lease,
        duration: float,
        renew_duration: float | None = None,
        listener: RenewalListener | object | None = None,
    ) -> None:
        """Renew a lease for `duration` seconds from now."""
        seconds = seconds_asked(duration, "duration")
        expiration = FOREVER if seconds is None else self._clock.now() + seconds
        self.renew_until(lease, expiration, renew_duration, listener)

    def get_expiration(self, lease: Lease) -> float:
        """The moment until which the lease is renewed."""
        with self._lock:
            return self._find(lease).expiration

    def set_expiration(self, lease: Lease, expiration: float) -> None:
        """Change the moment until which the lease is renewed."""
        _check_moment(expiration)
        with self._lock:
            managed = self._find(lease)
            managed.expiration = expiration
            if not managed.busy:
                self._schedule(managed)

    def remove(self, lease: Lease) -> None:
        """Stop renewing a lease; it lives as long as it was granted."""
        with self._lock:
            self._find(lease).cancel_alarm()
            del self._managed[lease]

    def cancel(self, lease: Lease) -> Any:
        """Stop renewing a lease, and cancel it: LeaseLost if it has ended. Awaited for an
        AsyncLease."""
        self.remove(lease)
        return lease.cancel()

    def clear(self) -> None:
        """Stop renewing all leases; none is cancelled."""
        with self._lock:
            for managed in self._managed.values():
                managed.cancel_alarm()
            self._managed.clear()

    def close(self) -> None:
        """Stop renewing, for good; no lease is cancelled."""
        with self._lock:
            self._closed = True
            self.clear()

    def __contains__(self, lease: object) -> bool:
        return lease in self._managed

    def __len__(self) -> int:
        return len(self._managed)

    # Under the lock

    def _find(self, lease: Lease) -> _Managed:
        managed = self._managed.get(lease) if isinstance(lease, Lease) else None
        if managed is None:
            raise BadArgument("lease", "a lease that this manager renews", lease)
        return managed

    def _schedule(self, managed: _Managed) -> None:
        """Set the alarm for the next check, unless an earlier alarm is set: that one checks
        again."""
        managed.plan(self._clock.now())
        if managed.due < managed.alarm_at:
            managed.cancel_alarm()
            managed.alarm_at = managed.due
            managed.cancel_alarm = self._clock.call_at(
                managed.due, partial(self._on_alarm, managed)
            )

    # Renewing

    def _on_alarm(self, managed: _Managed) -> None:
        with self._lock:
            managed.alarm_at = FOREVER
            now = self._clock.now()
            if self._managed.get(managed.lease) is not managed or managed.busy:
                return
            if managed.due > now:
                self._schedule(managed)
                return
            if managed.due >= managed.expiration:
                del self._managed[managed.lease]
                reached = getattr(managed.listener, "expiration_reached", None)
                work = partial(_tell, reached, managed, None)
            else:
                group = [one for one in self._managed.values() if one.joins(managed, now)]
                for one in group:
                    one.busy = True
                work = partial(self._renew, group)
        if self._threads:
            threading.Thread(target=work, name="tupelo-renewal", daemon=True).start()
        else:
            work()

    def _renew(self, group: list[_Managed]) -> None:
        now = self._clock.now()
        lost = [(managed, managed.error) for managed in group if managed.gave_up(now)]
        group = [managed for managed in group if not managed.gave_up(now)]
        asked = [managed.seconds_wanted(now) for managed in group]
        errors = self._renewed(group, asked) if group else []
        with self._lock:
            for managed, error in zip(group, errors, strict=True):
                managed.error = error
                if isinstance(error, _FOR_GOOD) or managed.gave_up(self._clock.now()):
                    lost.append((managed, error))
                elif self._managed.get(managed.lease) is managed:
                    self._schedule(managed)
            # Leases that were removed meanwhile are no longer reported.
            lost = [one for one in lost if self._managed.get(one[0].lease) is one[0]]
            for managed, _ in lost:
                del self._managed[managed.lease]
        for managed, error in lost:
            listener = managed.listener
            _tell(getattr(listener, "notify", listener), managed, error)

    def _renewed(self, group: list[_Managed], asked: list[float | None]) -> list[Exception | None]:
        leases, loop = [managed.lease for managed in group], group[0].loop
        if loop is None:
            here = [Lease(lease.granted) for lease in leases]
            return run_sync(partial(renew_many, here, asked))
        try:
            work = asyncio.run_coroutine_threadsafe(renew_many(leases, asked), loop)
            return work.result(ASYNC_SECONDS)
        except (RuntimeError, TimeoutError) as error:  # Its loop is closed, or busy.
            return [error] * len(leases)


def _tell(listener: Any, managed: _Managed, error: Exception | None) -> None:
    if listener is None:
        if error is not None:
            logger.warning("a lease could not be renewed, and there is no listener: %s", error)
        return
    try:
        listener(LeaseRenewalEvent(managed.lease, managed.expiration, error))
    except Exception:
        logger.exception("a listener of a lease renewal manager raised")


def _check_moment(expiration: object) -> None:
    if not is_number(expiration) or expiration != expiration:
        raise BadArgument("expiration", "a moment in seconds since the epoch", expiration)


# The lease renewal service

RENEWAL_FAILURE_EVENT_ID = 0
EXPIRATION_WARNING_EVENT_ID = 1


@entry("tupelo.javaspaces.LeaseRenewalSet")
@dataclass
class SetEntry:
    """A set in the space of the service; its lease is that of the set."""

    id: str | None = None


@entry("tupelo.javaspaces.ExpirationWarningEvent")
@dataclass(frozen=True)
class ExpirationWarningEvent(RemoteEvent):
    """The lease of the set `source` ends at the moment `expiration`, unless it is renewed."""

    expiration: float = 0.0


@entry("tupelo.javaspaces.RenewalFailureEvent")
@dataclass(frozen=True)
class RenewalFailureEvent(RemoteEvent):
    """A lease of the set `source` was lost, or could not be renewed before its `expiration`, and
    has left the set. `lease_id` is what `renew_for` returned; `reason` is the error of the last
    attempt, or None. An event out of a mailbox has no `lease` and no `error`."""

    lease_id: str = ""
    expiration: float = 0.0
    reason: str | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease; None in an event out of a mailbox."""
        return self.__dict__.get("_lease")  # not a field: it is not sent

    @property
    def error(self) -> Exception | None:
        """The error of the last attempt; None if there was none, or in an event out of a
        mailbox."""
        return self.__dict__.get("_error")


class LeaseRenewalService(ClosingHandle):
    """Creates sets of leases, and renews the leases in them. Its methods never wait, so async
    programs call them without await; listeners are called from threads."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        lease_policy: LeasePolicy | None = None,
        retry: Retry | None = None,
    ) -> None:
        self.space = Space("lease renewal", clock=clock, lease_policy=lease_policy)
        self.closed = False
        self.clock = port_of(self.space).clock
        self.retry = check_retry(retry)
        self._lock = threading.RLock()
        self.tenancy = Tenancy(self.space, self._lock)
        self._sets: dict[str, LeaseRenewalSet] = {}

    def __repr__(self) -> str:
        return f"<LeaseRenewalService with {len(self._sets)} sets>"

    def create_lease_renewal_set(self, lease: float = FOREVER) -> LeaseRenewalSet:
        """A new, empty set. The leases in it are renewed while its own lease lasts."""
        seconds = seconds_asked(lease)
        with self._lock:
            if self.closed:
                raise SpaceClosed("the lease renewal service is closed")
            name = uuid4().hex
            granted = self.space.write(SetEntry(name), lease=seconds)
            made = LeaseRenewalSet(name, self, granted)
            self._sets[name] = made
            return made

    def set_ended(self, ended: LeaseRenewalSet) -> None:
        """The lease of a set has ended."""
        ended.stop()
        with self._lock:
            if self._sets.pop(ended.id, None) is not None and not self.closed:
                self.space.take(SetEntry(ended.id), wait=0)

    def close(self) -> None:
        """Stop renewing; no lease is cancelled."""
        with self._lock:
            self.closed = True
            for one in self._sets.values():
                self.tenancy.evict(one)
                one.stop()
            self._sets.clear()
            self.space.close()


class LeaseRenewalSet(Tenant):
    """Leases that are renewed while the lease of the set lasts. Its methods raise LeaseLost after
    that.

    A lease stays in the set until its wanted expiration, until it is lost, or until it is removed.
    The set never cancels a lease.
    """

    def __init__(self, set_id: str, service: LeaseRenewalService, granted: engine.Lease) -> None:
        self.id = set_id
        self._clock = clock = service.clock
        self._retry = service.retry
        self._lock = threading.RLock()
        self._manager = LeaseRenewalManager(clock)
        self._ids: dict[Lease, str] = {}
        self._warning = SetEvents(EXPIRATION_WARNING_EVENT_ID)
        self._failure = SetEvents(RENEWAL_FAILURE_EVENT_ID)
        self._min_warning = 0.0
        self._warned_of: float | None = None  # the expiration in the last warning
        self._cancel_alarm: Callable[[], None] = lambda: None
        self._renewal_listener = SimpleNamespace(
            notify=partial(self._ended, lost=True),
            expiration_reached=partial(self._ended, lost=False),
        )
        super().__init__(service.tenancy, granted, partial(service.set_ended, self))

    @property
    def leases(self) -> list[Lease]:
        """The leases that are in the set."""
        with self._lock:
            self._require_active()
            return [lease for lease in self._ids if lease in self._manager]

    def lease_ids(self) -> list[str]:
        """The ids, as in events, of the leases in the set."""
        return [self._ids[lease] for lease in self.leases]

    def renew_for(
        self, lease: Lease, duration: float = FOREVER, renew_duration: float = FOREVER
    ) -> str:
        """Renew a lease for `duration` seconds from now, asking for `renew_duration` each time;
        returns the id of the lease in events. For a lease that is in the set already, both are
        changed. A lease whose duration is over leaves the set.

        A `renew_duration` of `Lease.ANY` needs a `duration` of FOREVER.
        """
        if not isinstance(lease, Lease):
            raise BadArgument("lease", "a Lease of this package", lease)
        if lease.granted.landlord is self._tenancy:
            raise BadArgument("lease", "one that this service has not granted itself", lease)
        if not is_number(duration) or duration != duration:
            raise BadArgument("duration", "a number of seconds, or FOREVER", duration)
        if renew_duration == ANY_LEASE and duration != FOREVER:
            raise BadArgument(
                "renew_duration", "a number of seconds, as duration= is not FOREVER", renew_duration
            )
        seconds_asked(renew_duration, name="renew_duration")
        with self._lock:
            self._require_active()
            name = self._ids.setdefault(lease, uuid4().hex)
            if duration > 0:
                until = self._clock.now() + duration
                self._manager.renew_until(lease, until, renew_duration, self._renewal_listener)
            else:
                self._forget(lease)
            return name

    def remove(self, lease: Lease) -> Lease | None:
        """Remove a lease from the set and return it; None if it was not there. It is not
        cancelled."""
        if not isinstance(lease, Lease):
            raise BadArgument("lease", "a Lease of this package", lease)
        with self._lock:
            self._require_active()
            return lease if self._forget(lease) else None

    def remove_named(self, name: str) -> bool:
        """Remove the lease with this id from the set. False if it was not there."""
        found = [lease for lease in self.leases if self._ids[lease] == name]
        return bool(found) and self._forget(found[0])

    def set_expiration_warning_listener(
        self, listener: object, min_warning: float, handback: Any = None
    ) -> EventRegistration:
        """Send a listener an event `min_warning` seconds before the lease of the set ends. It
        replaces the listener before it."""
        tell = target_of("listener", listener)
        check_wait(min_warning, "min_warning")
        if min_warning is None:
            raise BadArgument("min_warning", "a number of seconds, 0 or more", min_warning)
        with self._lock:
            self._require_active()
            self._min_warning = min_warning
            self._warned_of = None
            registration = self._listen(self._warning, tell, handback)
            self.plan_warning()
            return registration

    def clear_expiration_warning_listener(self) -> None:
        """Remove the listener of expiration warnings."""
        with self._lock:
            self._require_active()
            self._warning.stop()
            self._cancel_alarm()

    def set_renewal_failure_listener(
        self, listener: object, handback: Any = None
    ) -> EventRegistration:
        """Send a listener an event for each lease that could not be renewed. It replaces the
        listener before it."""
        tell = target_of("listener", listener)
        with self._lock:
            self._require_active()
            return self._listen(self._failure, tell, handback)

    def clear_renewal_failure_listener(self) -> None:
        """Remove the listener of renewal failures."""
        with self._lock:
            self._require_active()
            self._failure.stop()

    # Within

    def renewed(self) -> None:
        self.plan_warning()

    def plan_warning(self) -> None:
        """Set the alarm for the warning; the alarm checks whether the lease was renewed
        meanwhile."""
        with self._lock:
            self._cancel_alarm()
            expires = self.expires
            if self._warning.listening is None or expires in (None, self._warned_of):
                return
            when = expires - self._min_warning
            if when > self._clock.now():
                self._cancel_alarm = self._clock.call_at(when, self.plan_warning)
            elif self.active:
                self._warned_of = expires
                self._warning.tell(ExpirationWarningEvent, self.id, expiration=expires)

    def stop(self) -> None:
        """Stop renewing, and send no more events."""
        with self._lock:
            self._manager.close()
            self._cancel_alarm()
            self._ids.clear()
            self._warning.stop()
            self._failure.stop()

    def _listen(self, events: SetEvents, tell: Listener, handback: Any) -> EventRegistration:
        """A registration that has the lease of the set."""
        events.stop()
        events.listening = ListenerThread(
            lambda: self.lease.granted, tell, handback, clock=self._clock, retry=self._retry
        )
        return EventRegistration(events.listening, self.id, events.event_id, events.sequence)

    def _forget(self, lease: Lease) -> bool:
        self._ids.pop(lease, None)
        there = lease in self._manager
        if there:
            self._manager.remove(lease)
        return there

    def _ended(self, event: LeaseRenewalEvent, *, lost: bool) -> None:
        """A lease has left the set: it was lost, or has reached its wanted expiration."""
        with self._lock:
            lease_id = self._ids.pop(event.lease, None)
            if not lost or lease_id is None or not self.active:
                return
            self._failure.tell(
                RenewalFailureEvent,
                self.id,
                lease_id=lease_id,
                expiration=event.lease.expiration,
                reason=None if event.error is None else str(event.error),
                local={"_lease": event.lease, "_error": event.error},
            )

    def _require_active(self) -> None:
        if not self.active:
            raise LeaseLost(f"the lease renewal set {self.id} is gone")

    def __repr__(self) -> str:
        return f"LeaseRenewalSet({self.id!r})"


class SetEvents:
    """The events of one id of a set, sent to one listener at a time."""

    def __init__(self, event_id: int) -> None:
        self.event_id = event_id
        self.sequence = 0
        self.listening: ListenerThread | None = None

    def tell(
        self,
        kind: type[RemoteEvent],
        source: str,
        local: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        if self.listening is not None and self.listening.active:
            self.sequence += 1
            event = kind(source, self.event_id, self.sequence, self.listening.handback, **fields)
            event.__dict__.update(local or {})
            self.listening.tell(event)

    def stop(self) -> None:
        if self.listening is not None:
            self.listening.call_off()
            self.listening = None
