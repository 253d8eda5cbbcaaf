"""The lease renewal service renews leases for programs that are disconnected (Jini's Norm).

| Jini                                    | Tupelo                                               |
| --------------------------------------- | ---------------------------------------------------- |
| LeaseRenewalService                     | LeaseRenewalService.create_lease_renewal_set         |
| LeaseRenewalSet, getRenewalSetLease     | a leased set of leases, with a renewal manager       |
| renewFor, remove, getLeases             | renew_for, remove, leases                            |
| setExpirationWarningListener, clear...  | an event before the lease of the set itself ends     |
| setRenewalFailureListener, clear...     | an event for a lease that could not be renewed       |
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tupelo.errors import BadArgument, LeaseLost, SpaceClosed
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
    Lease,
    Tenancy,
    Tenant,
    seconds_asked,
)
from tupelo.models.javaspaces.renewal import LeaseRenewalEvent, LeaseRenewalManager
from tupelo.space.blocking import ClosingHandle, Space
from tupelo.space.clock import Clock
from tupelo.space.port import port_of
from tupelo.space.query import check_wait
from tupelo.values import lease as engine
from tupelo.values.kind import entry
from tupelo.values.lease import LeasePolicy

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
        lease: Lease | None = self.__dict__.get("_lease")  # not a field: it is not sent
        return lease

    @property
    def error(self) -> Exception | None:
        """The error of the last attempt; None if there was none, or in an event out of a
        mailbox."""
        error: Exception | None = self.__dict__.get("_error")
        return error


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
        self.tenancy = _SetTenancy(self.space, self._lock)
        self._sets: dict[str, LeaseRenewalSet] = {}

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
        self._service = service
        self._clock = clock = service.clock
        self._retry = service.retry
        self._lock = threading.RLock()
        self._manager = LeaseRenewalManager(clock)
        self._ids: dict[Lease, str] = {}
        self._warning = _Events(EXPIRATION_WARNING_EVENT_ID)
        self._failure = _Events(RENEWAL_FAILURE_EVENT_ID)
        self._min_warning = 0.0
        self._warned_of: float | None = None  # the expiration in the last warning
        self._cancel_alarm: Callable[[], None] = lambda: None
        self._renewal_listener = SimpleNamespace(
            notify=partial(self._ended, lost=True),
            expiration_reached=partial(self._ended, lost=False),
        )
        super().__init__(service.tenancy, granted)

    def lease_ended(self) -> None:
        self._service.set_ended(self)

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
        number = isinstance(duration, (int, float)) and not isinstance(duration, bool)
        if not number or duration != duration:
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

    def _listen(self, events: _Events, tell: Listener, handback: Any) -> EventRegistration:
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
                beside={"_lease": event.lease, "_error": event.error},
            )

    def _require_active(self) -> None:
        if not self.active:
            raise LeaseLost(f"the lease renewal set {self.id} is gone")

    def __repr__(self) -> str:
        return f"LeaseRenewalSet({self.id!r})"


class _SetTenancy(Tenancy):
    """The landlord of sets. A set whose lease was renewed sends another warning."""

    def renew_leases(self, wanted: list[tuple[Tenant, float | None]]) -> list[Exception | None]:
        outcomes = super().renew_leases(wanted)
        for tenant, _ in wanted:
            tenant.plan_warning()  # type: ignore[attr-defined]
        return outcomes


class _Events:
    """The events of one id of a set, sent to one listener at a time."""

    def __init__(self, event_id: int) -> None:
        self.event_id = event_id
        self.sequence = 0
        self.listening: ListenerThread | None = None

    def tell(
        self,
        kind: type[RemoteEvent],
        source: str,
        beside: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        if self.listening is not None and self.listening.active:
            self.sequence += 1
            event = kind(source, self.event_id, self.sequence, self.listening.handback, **fields)
            event.__dict__.update(beside or {})
            self.listening.tell(event)

    def stop(self) -> None:
        if self.listening is not None:
            self.listening.call_off()
            self.listening = None
