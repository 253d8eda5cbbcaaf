"""A JavaSpace as a service that registers with a lookup service, and stays registered (7.7.2).

The thesis calls it JAXS. It is found as a JavaSpace, a JavaSpace05 or an XVSMService.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Self, cast
from uuid import UUID, uuid5

from tupelo.errors import BadArgument, LeaseLost, SpaceClosed
from tupelo.models.javaspaces.events import Retry
from tupelo.models.javaspaces.leases import FOREVER, seconds_asked
from tupelo.models.javaspaces.lookup import LookupLocator, LookupService
from tupelo.models.javaspaces.remote.clients import RemoteLookupService
from tupelo.models.javaspaces.remote.wire import url_of
from tupelo.models.javaspaces.renewal import LeaseRenewalEvent, LeaseRenewalManager
from tupelo.models.javaspaces.service_items import ServiceItem, id_of
from tupelo.models.javaspaces.space import JavaSpace05
from tupelo.space import asynchronous
from tupelo.space.blocking import Space
from tupelo.space.clock import Clock
from tupelo.space.dual_api import Async, Blocking
from tupelo.space.port import port_of

_NAMESPACE = UUID("9a3e3cf6-6b0b-5f2e-8f43-0d6f0c1f7a55")


class XVSMService:
    """A service that also has XVSM containers, in memory."""

    def __init__(self, clock: Clock, is_async: bool) -> None:
        self._containers_clock = clock
        self._containers_async = is_async
        self._opening = threading.Lock()
        self._capi: Any = None

    @property
    def capi(self) -> Any:
        """The Capi, or AsyncCapi, of the containers. It is opened on first use, and shared by all
        clients of the service."""
        with self._opening:
            if self._capi is None:
                # Most programs with a JavaSpace never need it.
                xvsm = import_module("tupelo.models.xvsm")
                door = xvsm.AsyncCapi if self._containers_async else xvsm.Capi
                self._capi = door(clock=self._containers_clock)
            return self._capi

    def _close_containers(self) -> None:
        with self._opening:
            if self._capi is not None:
                self._capi.embedded.close()


class JavaSpaceService(JavaSpace05[Blocking | Async], XVSMService):
    """A JavaSpace05 that registers with a lookup service, given as object, locator or address.

    Its id, unless given, is derived from its durable space, or from the name of its space in
    memory. So a restarted service replaces its earlier registration, whether it was shut down or
    has crashed. Spaces in memory with the same name would replace each other: give them different
    names or ids.

    It renews its registration until `shutdown()`, which leaves space and containers open. If the
    registration is lost (`registered` is False, `error` has the reason), `join()` registers again.
    """

    def __init__(
        self,
        space: Space | asynchronous.Space | str,
        lookup: LookupService | RemoteLookupService | LookupLocator | str,
        attributes: Sequence[Any] = (),
        lease: float = 60.0,
        *,
        service_id: str | UUID | None = None,
        retry: Retry | None = None,
    ) -> None:
        JavaSpace05.__init__(cast(Any, self), space, retry=retry)
        XVSMService.__init__(self, self.clock, self.is_async)
        seconds_asked(lease)
        self._lookup = _registrar(lookup)
        self._attributes = attributes
        self._lease = lease
        self.service_id = id_of(service_id) or str(_identity(self.space))
        self.error: Exception | None = None
        self._renewals = LeaseRenewalManager(self._lookup.clock)
        self.registration: Any
        self.join()

    @property
    def registered(self) -> bool:
        """Whether the registration is active."""
        active: bool = self.registration.active
        return active

    def join(self) -> None:
        """Register with the lookup service, replacing any registration with the same id."""
        self._renewals.clear()
        self.registration = self._lookup.register(
            ServiceItem(self.service_id, self, self._attributes), self._lease
        )
        self._renewals.renew_until(self.registration.lease, FOREVER, self._lease, self._lost)
        self.error = None

    def shutdown(self) -> None:
        """End the registration. The space stays open, and `join()` registers again."""
        self._renewals.clear()
        with suppress(LeaseLost, SpaceClosed):  # It was replaced, or the lookup service is gone.
            self.registration.lease.cancel()

    def close(self) -> Any:
        """Shut down, and close space and containers; awaited if the space is async."""
        self.shutdown()
        self._close_containers()
        return super().close()

    def _lost(self, event: LeaseRenewalEvent) -> None:
        self.error = event.error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    async def __aexit__(self, *error: object) -> None:
        self.shutdown()


def _registrar(lookup: object) -> Any:
    if isinstance(lookup, (LookupService, RemoteLookupService)):
        return lookup
    if isinstance(lookup, str):
        lookup = LookupLocator(lookup)
    if isinstance(lookup, LookupLocator):
        return lookup.get_registrar()
    raise BadArgument("lookup", "a LookupService, a LookupLocator or an address", lookup)


def _identity(space: Any) -> UUID:
    """An id that is the same whenever the space is opened again."""
    url = url_of(space)
    if url is not None:
        return uuid5(_NAMESPACE, url)
    port = port_of(space)
    if port.durable:
        # An agent may have several spaces, so the name is part of it.
        return uuid5(_NAMESPACE, f"agent {port.agent} name {port.name}")
    return uuid5(_NAMESPACE, f"name {port.name}")
