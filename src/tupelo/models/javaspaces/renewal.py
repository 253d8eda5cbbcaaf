"""The lease renewal manager renews the leases of a program before they expire.

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
from typing import Any

from tupelo.errors import (
    AccessError,
    BadArgument,
    BadInput,
    JournalError,
    LeaseLost,
    SpaceClosed,
    TransactionError,
)
from tupelo.models.javaspaces.leases import (
    ANY_LEASE,
    FOREVER,
    AsyncLease,
    Lease,
    renew_many,
    seconds_asked,
)
from tupelo.space.blocking import ClosingHandle
from tupelo.space.clock import Clock, SystemClock, system_clock
from tupelo.space.dual_api import run_sync

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


Listener = Callable[[LeaseRenewalEvent], object]


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

    def renew_until(
        self,
        lease: Lease,
        expiration: float,
        renew_duration: float | None = None,
        listener: Listener | object | None = None,
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
        listener: Listener | object | None = None,
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
                work = partial(self._tell_reached, managed)
            else:
                group = [one for one in self._managed.values() if one.joins(managed, now)]
                for one in group:
                    one.busy = True
                work = partial(self._renew, group)
        self._run(work)

    def _run(self, work: Callable[[], None]) -> None:
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
            return run_sync(partial(renew_many, here, asked))  # type: ignore[no-any-return]
        try:
            work = asyncio.run_coroutine_threadsafe(renew_many(leases, asked), loop)
            return work.result(ASYNC_SECONDS)
        except (RuntimeError, TimeoutError) as error:  # Its loop is closed, or busy.
            return [error] * len(leases)

    def _tell_reached(self, managed: _Managed) -> None:
        _tell(getattr(managed.listener, "expiration_reached", None), managed, None)


def _tell(listener: Any, managed: _Managed, error: Exception | None) -> None:
    if listener is None:
        if error is not None:
            logger.warning("a lease could not be renewed, and nobody listens: %s", error)
        return
    try:
        listener(LeaseRenewalEvent(managed.lease, managed.expiration, error))
    except Exception:
        logger.exception("a listener of a lease renewal manager raised")


def _check_moment(expiration: object) -> None:
    if isinstance(expiration, bool) or not isinstance(expiration, (int, float)):
        raise BadArgument("expiration", "a moment in seconds since the epoch", expiration)
    if expiration != expiration:
        raise BadArgument("expiration", "a moment in seconds since the epoch", expiration)
