"""Tenancy: what a service keeps for others while their lease lasts.

When a lease ends, by itself or because it was cancelled, the tenant is told at that moment, so that
it can clear away what the service kept for it beside the space.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable

from tupelo.errors import LeaseLost, TupeloError
from tupelo.models.javaspaces.leases import FOREVER, Lease
from tupelo.space.blocking import Space
from tupelo.space.clock import SystemClock
from tupelo.space.port import port_of
from tupelo.values import lease as engine


class Tenant:
    """Something that is leased. An entry of the service's space stands for it; the entry may be
    replaced by another while the lease goes on."""

    def __init__(self, tenancy: Tenancy, granted: engine.Lease) -> None:
        self.granted = granted  # the lease of the entry
        self.left = False  # It was told, or the service has ended it itself.
        self.alarm_at = FOREVER
        self.cancel_alarm: Callable[[], None] = lambda: None
        self._tenancy = tenancy
        tenancy.watch(self)

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

    @property
    def active(self) -> bool:
        """Does its lease last?"""
        return not self.ended

    @property
    def lease(self) -> Lease:
        return Lease(engine.Lease(self._tenancy, self))

    @abstractmethod
    def lease_ended(self) -> None:
        """Clear away, and remove the entry if it is still there. It is called once."""


class Tenancy:
    """The landlord of tenants. Leases are renewed and cancelled under the `guard`.

    Under the system clock, what ends by itself in a durable space ends on a thread of its own: its
    clearing away waits for the disk, and the clock's thread may not.
    """

    def __init__(self, space: Space, guard: threading.RLock) -> None:
        self._port = port_of(space)
        self._clock = self._port.clock
        self._guard = guard
        self._threads = isinstance(self._clock, SystemClock) and self._port.journaled
        self._lock = threading.Lock()

    def replace(self, tenant: Tenant, granted: engine.Lease) -> None:
        """Another entry stands for the tenant from now on."""
        tenant.granted = granted
        self.watch(tenant)

    def evict(self, tenant: Tenant) -> bool:
        """It ends without being told. False if it had ended before."""
        with self._lock:
            before, tenant.left = tenant.left, True
        tenant.cancel_alarm()
        return not before

    def end(self, tenant: Tenant) -> None:
        """It ends now, if it has not ended before."""
        if self.evict(tenant):
            tenant.lease_ended()

    # As a landlord of leases

    def now(self) -> float:
        return self._clock.now()

    def renew_lease(self, tenant: Tenant, seconds: float | None) -> None:
        _raise(self.renew_leases([(tenant, seconds)]))

    def cancel_lease(self, tenant: Tenant) -> None:
        _raise(self.cancel_leases([tenant]))

    def renew_leases(self, wanted: list[tuple[Tenant, float | None]]) -> list[Exception | None]:
        with self._guard:
            outcomes = self._port.renew_leases(
                [(tenant.granted.thing, seconds) for tenant, seconds in wanted]
            )
            for tenant, _ in wanted:
                self.watch(tenant)
        return [*outcomes]

    def cancel_leases(self, tenants: list[Tenant]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        with self._guard:
            for tenant in tenants:
                if tenant.ended or not self.evict(tenant):
                    outcomes.append(LeaseLost("it is gone; there is nothing to cancel"))
                    continue
                try:
                    tenant.lease_ended()
                    outcomes.append(None)
                except TupeloError as error:
                    outcomes.append(error)
        return outcomes

    async def renew_lease_async(self, tenant: Tenant, seconds: float | None) -> None:
        self.renew_lease(tenant, seconds)

    async def cancel_lease_async(self, tenant: Tenant) -> None:
        self.cancel_lease(tenant)

    # Ending by itself

    def watch(self, tenant: Tenant) -> None:
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
                self.watch(tenant)
            else:
                self.end(tenant)


def _raise(outcomes: list[Exception | None]) -> None:
    if outcomes[0] is not None:
        raise outcomes[0]
