"""The lease renewal manager: it renews the leases of a program, in time.

A lease is renewed when half of what it had left is over, so a renewal that comes late still comes
in time. Leases of one space are renewed together, in one step: when one is due, those join it
that have used up a quarter. An attempt that fails for a reason that may pass (a link that was lost,
for one) is repeated until the lease has run out.

Time comes from the handed-in clock alone. A ManualClock calls back within `advance()`, and the
renewals are done there, each at its moment. The system clock has one thread for the alarms of
the whole process, which may not wait for a disk; there a thread of their own renews the leases
of each space that are due, so that a slow space delays nobody else.
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
"""So long is waited for a loop to renew a lease."""
_FOR_GOOD = (LeaseLost, BadInput, SpaceClosed, TransactionError, AccessError, JournalError)
"""What is raised of a lease that cannot be renewed, however often one tries."""


@dataclass(frozen=True)
class LeaseRenewalEvent:
    """A lease is renewed no more: it was lost, or (without an `error`) it has reached the
    `expiration` that was wished for."""

    lease: Lease
    expiration: float
    error: Exception | None


Listener = Callable[[LeaseRenewalEvent], object]


class _Managed:
    """A lease in our care: renewed at `due`, or with others from `early` on."""

    def __init__(
        self, lease: Lease, expiration: float, duration: float, listener: Any, loop: Any
    ) -> None:
        self.lease = lease
        self.expiration = expiration
        self.duration = duration
        self.listener = listener
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.due = FOREVER
        self.early = FOREVER
        self.busy = False
        self.error: Exception | None = None  # of the last attempt
        self.alarm_at = FOREVER
        self.cancel_alarm: Callable[[], None] = lambda: None

    def plan(self, now: float) -> None:
        """When to look at it next."""
        end = self.lease.expiration
        self.busy = False
        if end >= self.expiration:  # It lasts as long as was wished for.
            self.due = self.early = self.expiration
        else:
            left = max(0.0, end - now)
            self.due = now + left * DUE_PART
            self.early = now + left * EARLY_PART
            if self.error is not None:  # At the end it is looked at once more, and dropped.
                self.due = self.early = min(max(self.due, now + RETRY_LEAST_SECONDS), end)

    def joins(self, other: _Managed, now: float) -> bool:
        """Is it renewed together with the other: of the same landlord, on the same loop?"""
        return (
            not self.busy
            and self.early <= now
            and self.due < self.expiration
            and self.lease.granted.landlord is other.lease.granted.landlord
            and self.loop is other.loop
        )

    def seconds_wanted(self, now: float) -> float | None:
        """What is asked for in a renewal."""
        if self.duration == ANY_LEASE and self.expiration == FOREVER:
            return seconds_asked(ANY_LEASE)
        left = max(self.expiration - now, 0.001)  # It may be late, but not for nothing.
        return seconds_asked(left if self.duration == ANY_LEASE else min(self.duration, left))

    def gave_up(self, now: float) -> bool:
        """It has run out, and the last attempt to renew it failed."""
        return self.error is not None and self.lease.expiration <= now


class LeaseRenewalManager(ClosingHandle):
    """Renews leases until a moment, or for ever. Its calls answer at once and are not awaited.

    A listener is a function of a LeaseRenewalEvent, or an object with `notify(event)`. It is told
    of a lease that was lost, or could not be renewed before it ran out, and is dropped; an object
    that also has `expiration_reached(event)` is told of one that has lived as long as was wished
    for. What a listener raises is logged, and harms nothing.
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
        """Keep a lease until the moment `expiration` (FOREVER: for ever).

        Each renewal asks for `renew_duration` seconds; None asks for all that is wished for.
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
        """Where a lease of the async door is renewed. With a clock that is moved by hand it can
        only be one of this program, which needs no loop."""
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
        """Keep a lease for `duration` seconds from now."""
        seconds = seconds_asked(duration, "duration")
        expiration = FOREVER if seconds is None else self._clock.now() + seconds
        self.renew_until(lease, expiration, renew_duration, listener)

    def get_expiration(self, lease: Lease) -> float:
        """The moment until which the lease is kept, as wished for."""
        with self._lock:
            return self._find(lease).expiration

    def set_expiration(self, lease: Lease, expiration: float) -> None:
        """Wish for another moment."""
        _check_moment(expiration)
        with self._lock:
            managed = self._find(lease)
            managed.expiration = expiration
            if not managed.busy:
                self._schedule(managed)

    def remove(self, lease: Lease) -> None:
        """Renew it no more; it lives as long as it was granted."""
        with self._lock:
            self._find(lease).cancel_alarm()
            del self._managed[lease]

    def cancel(self, lease: Lease) -> Any:
        """Renew it no more, and cancel it: LeaseLost if it is gone already. To be awaited if the
        lease is of the async door."""
        self.remove(lease)
        return lease.cancel()

    def clear(self) -> None:
        """Remove all leases; none is cancelled."""
        with self._lock:
            for managed in self._managed.values():
                managed.cancel_alarm()
            self._managed.clear()

    def close(self) -> None:
        """Stop: nothing is renewed any more, nothing is cancelled."""
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
        """Plan when to look at it. An alarm that comes before stays: it will look again."""
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
            # Of those that were removed meanwhile nobody wants to know.
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
