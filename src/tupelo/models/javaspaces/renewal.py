"""The lease renewal service: it renews leases on behalf of those who hold them (Jini's Norm).

A lease is renewed when half of what it had left is over, so a renewal that comes late still comes
in time. Leases of one space are renewed together, in one step: when one is due, those join it
that have used up a quarter.

Time comes from the handed-in clock alone. A ManualClock calls back within `advance()`, and the
renewals are done there, each at its moment. The system clock has one thread for the alarms of
the whole process, which may not wait for a disk; there a thread of their own renews the leases
of each space that are due, so that a slow space delays nobody else.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tupelo.errors import BadArgument, SpaceClosed
from tupelo.models.javaspaces.leases import (
    FOREVER,
    Lease,
    asked_of,
    renew_many,
    seconds_asked,
)
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.engine import _system_clock
from tupelo.space.handles import Closing

logger = logging.getLogger("tupelo")

DUE_PART = 0.5
EARLY_PART = 0.25
_SWEEP_MIN = 64


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

    __slots__ = ("busy", "due", "duration", "early", "expiration", "lease", "listener")

    def __init__(self, lease: Lease, expiration: float, duration: float, listener: Any) -> None:
        self.lease = lease
        self.expiration = expiration
        self.duration = duration
        self.listener = listener
        self.due = FOREVER
        self.early = FOREVER
        self.busy = False

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


class LeaseRenewalManager(Closing):
    """Renews leases until a moment, or for ever. Its calls answer at once and are not awaited.

    A listener is a function of a LeaseRenewalEvent, or an object with `notify(event)`. It is told
    of a lease that could not be renewed, which is then dropped; an object that also has
    `expiration_reached(event)` is told of one that has lived as long as was wished for. What a
    listener raises is logged, and harms nothing.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or _system_clock
        self._threads = isinstance(self._clock, SystemClock)
        self._lock = threading.RLock()
        self._managed: dict[Lease, _Managed] = {}
        self._heap: list[tuple[float, int, _Managed]] = []
        self._count = 0
        self._alarm_at = FOREVER
        self._cancel_alarm: Callable[[], None] = lambda: None
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
        with self._lock:
            if self._closed:
                raise SpaceClosed("the lease renewal manager is closed")
            managed = _Managed(lease, expiration, renew_duration, listener)
            self._managed[lease] = managed
            self._schedule(managed)

    def renew_for(
        self,
        lease: Lease,
        duration: float,
        renew_duration: float | None = None,
        listener: Listener | object | None = None,
    ) -> None:
        """Keep a lease for `duration` seconds from now."""
        seconds = seconds_asked(duration, None, "duration")
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
            self._find(lease)
            del self._managed[lease]

    def cancel(self, lease: Lease) -> None:
        """Renew it no more, and cancel it: LeaseLost if it is gone already."""
        self.remove(lease)
        lease.cancel()

    def clear(self) -> None:
        """Remove all leases; none is cancelled."""
        with self._lock:
            self._managed.clear()
            self._heap.clear()
            self._cancel_alarm()
            self._alarm_at = FOREVER

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
        managed.plan(self._clock.now())
        if managed.due < FOREVER:
            self._count += 1
            heapq.heappush(self._heap, (managed.due, self._count, managed))
            if len(self._heap) > 2 * len(self._managed) + _SWEEP_MIN:
                self._heap = [item for item in self._heap if self._stands(item[0], item[2])]
                heapq.heapify(self._heap)
            self._set_alarm()

    def _stands(self, due: float, managed: _Managed) -> bool:
        """Plans change, and leave their old places in the heap behind."""
        return (
            managed.due == due and not managed.busy and self._managed.get(managed.lease) is managed
        )

    def _set_alarm(self) -> None:
        heap = self._heap
        while heap and not self._stands(heap[0][0], heap[0][2]):
            heapq.heappop(heap)
        when = heap[0][0] if heap else FOREVER
        if when < self._alarm_at:
            self._cancel_alarm()
            self._alarm_at = when
            self._cancel_alarm = self._clock.call_at(when, self._on_alarm)

    def _take_due(self, now: float) -> tuple[list[_Managed], list[list[_Managed]]]:
        """What has reached its end, and what is to be renewed, by landlord."""
        reached: list[_Managed] = []
        groups: dict[int, list[_Managed]] = {}
        while self._heap and self._heap[0][0] <= now:
            due, _, managed = heapq.heappop(self._heap)
            if not self._stands(due, managed):
                continue
            if managed.due >= managed.expiration:
                reached.append(managed)
                del self._managed[managed.lease]
            else:
                managed.busy = True
                groups.setdefault(id(managed.lease.granted.landlord), []).append(managed)
        if groups:
            for managed in self._managed.values():
                group = groups.get(id(managed.lease.granted.landlord))
                joins = not managed.busy and managed.early <= now and managed.due < FOREVER
                if group is not None and joins and managed.due < managed.expiration:
                    managed.busy = True
                    group.append(managed)
        return reached, list(groups.values())

    # Renewing

    def _on_alarm(self) -> None:
        with self._lock:
            self._alarm_at = FOREVER
            reached, groups = self._take_due(self._clock.now())
            self._set_alarm()
        for group in groups:
            self._run(partial(self._renew, group))
        if reached:
            self._run(partial(self._tell_reached, reached))

    def _run(self, work: Callable[[], None]) -> None:
        if self._threads:
            threading.Thread(target=work, name="tupelo-renewal", daemon=True).start()
        else:
            work()

    def _renew(self, group: list[_Managed]) -> None:
        now = self._clock.now()
        asked = []
        for managed in group:
            left = max(managed.expiration - now, 0.001)  # It may be late, but not for nothing.
            wanted = asked_of(managed.lease, managed.duration)
            asked.append(seconds_asked(min(FOREVER if wanted is None else wanted, left)))
        errors = renew_many([managed.lease for managed in group], asked)
        lost = []
        with self._lock:
            for managed, error in zip(group, errors, strict=True):
                if self._managed.get(managed.lease) is not managed:
                    continue  # It was removed meanwhile; nobody wants to know.
                if error is None:
                    self._schedule(managed)
                else:
                    del self._managed[managed.lease]
                    lost.append((managed, error))
        for managed, error in lost:
            listener = managed.listener
            _tell(getattr(listener, "notify", listener), managed, error)

    def _tell_reached(self, reached: list[_Managed]) -> None:
        for managed in reached:
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
