"""Tenancy: what a service keeps for others while their lease lasts.

A tenant stands for a leased entry of a space. The entry may be replaced by another while the
lease goes on, and when it ends, by itself or because it was cancelled, the service is told at
that moment, so that it can clear away what it kept beside the space.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tupelo.errors import LeaseLost, TupeloError
from tupelo.models.javaspaces.leases import FOREVER, Lease
from tupelo.space.blocking import Space
from tupelo.space.clock import SystemClock
from tupelo.values import lease as engine


class Tenant:
    """What is leased: the entry that `granted` is the lease of."""

    __slots__ = ("alarm_at", "cancel_alarm", "granted", "left", "what")

    def __init__(self, what: Any, granted: engine.Lease) -> None:
        self.what = what
        self.granted = granted
        self.left = False  # The service has been told, or has ended it itself.
        self.alarm_at = FOREVER
        self.cancel_alarm: Callable[[], None] = lambda: None

    @property
    def expires(self) -> float | None:
        return self.granted.expires

    @property
    def ended(self) -> bool:
        """Is it over at this moment, whether the service has noticed or not?"""
        ended: bool = self.granted.thing.ended
        expires = self.granted.expires
        return (
            self.left or ended or (expires is not None and expires <= self.granted.landlord.now())
        )


class Tenancy:
    """The landlord of tenants. `on_end` is called once for each, when its lease has ended, and
    removes its entry if it is still there. Leases are renewed and cancelled under the `guard`.

    Under the system clock, what ends by itself in a durable space ends on a thread of its own: its
    clearing away waits for the disk, and the clock's thread may not.
    """

    def __init__(
        self, space: Space, guard: threading.RLock, on_end: Callable[[Any], object]
    ) -> None:
        self._operations = space._operations
        self._clock = space._operations.engine.clock
        self._guard = guard
        self._on_end = on_end
        self._threads = isinstance(self._clock, SystemClock) and self._operations.journaled
        self._lock = threading.Lock()
        self.core = self._operations.core  # where `any_lease_of` finds the policy

    def admit(self, what: Any, granted: engine.Lease) -> Tenant:
        tenant = Tenant(what, granted)
        self._watch(tenant)
        return tenant

    def lease(self, tenant: Tenant) -> Lease:
        return Lease(engine.Lease(self, tenant))

    def replace(self, tenant: Tenant, granted: engine.Lease) -> None:
        """Another entry stands for the tenant from now on."""
        tenant.granted = granted
        self._watch(tenant)

    def evict(self, tenant: Tenant) -> bool:
        """It ends without `on_end`. False if it had ended before."""
        with self._lock:
            before, tenant.left = tenant.left, True
        tenant.cancel_alarm()
        return not before

    # As a landlord of leases

    def now(self) -> float:
        return self._clock.now()

    def renew_lease(self, tenant: Tenant, seconds: float | None) -> None:
        _raise(self.renew_leases([(tenant, seconds)]))

    def cancel_lease(self, tenant: Tenant) -> None:
        _raise(self.cancel_leases([tenant]))

    def renew_leases(self, wanted: list[tuple[Tenant, float | None]]) -> list[Exception | None]:
        with self._guard:
            outcomes = self._operations.renew_leases(
                [(tenant.granted.thing, seconds) for tenant, seconds in wanted]
            )
            for tenant, _ in wanted:
                self._watch(tenant)
        return [*outcomes]

    def cancel_leases(self, tenants: list[Tenant]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        with self._guard:
            for tenant in tenants:
                if tenant.ended or not self.evict(tenant):
                    outcomes.append(LeaseLost("it is gone; there is nothing to cancel"))
                    continue
                try:
                    self._on_end(tenant.what)
                    outcomes.append(None)
                except TupeloError as error:
                    outcomes.append(error)
        return outcomes

    # Ending by itself

    def _watch(self, tenant: Tenant) -> None:
        """Set the alarm, unless it is set already for then or before: it will look again."""
        expires = tenant.expires

        def _on_alarm() -> None:
            if self._threads:
                threading.Thread(
                    target=self._look, args=(tenant,), name="tupelo-tenancy", daemon=True
                ).start()
            else:
                self._look(tenant)

        with self._lock:
            if not tenant.left and expires is not None and expires < tenant.alarm_at:
                tenant.cancel_alarm()
                tenant.alarm_at = expires
                tenant.cancel_alarm = self._clock.call_at(expires, _on_alarm)

    def _look(self, tenant: Tenant) -> None:
        """Its time has come, if it was not renewed meanwhile."""
        with self._lock:
            tenant.alarm_at = FOREVER
        with self._guard:
            if not tenant.ended:
                self._watch(tenant)
            elif self.evict(tenant):
                self._on_end(tenant.what)


def _raise(outcomes: list[Exception | None]) -> None:
    if outcomes[0] is not None:
        raise outcomes[0]
