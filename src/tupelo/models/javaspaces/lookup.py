"""The lookup service: where services are found by what they are (Jini's Reggie).

| Jini                                 | Tupelo                                                  |
| ------------------------------------ | ------------------------------------------------------- |
| ServiceRegistrar, LookupService      | a space whose leased entries are the registrations      |
| ServiceItem, ServiceTemplate         | id, live object, attributes; id, classes, templates     |
| lookup(template[, maxMatches])       | lookup, lookup_all                                      |
| ServiceRegistration                  | its lease, and changes of its attributes                |
| notify, ServiceEvent, TRANSITION_... | events of arrivals, departures and changes              |
| getEntryClasses, getFieldValues,     | get_entry_classes, get_field_values, get_service_types  |
| getServiceTypes                      |                                                         |
| getServiceID, getGroups, getLocator  | service_id, groups, locator                             |
| LookupLocator, unicast discovery     | an address of this process, or of a host                |

A service is found by the name of its class and of its base classes. Its attributes are entries, and
match as entries do. A lookup service in this program and one at a host elsewhere have the same
methods: both are a Registrar, which checks the arguments and calls a Registry, here or there.

`jini://127.0.0.1:4160`, or the same without a scheme, is an address within this process: no socket
is opened. `tupelo://host:7700` is a host that offers a lookup service (`offer`). LookupDiscovery
finds hosts by multicast.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from tupelo.errors import BadArgument, CannotReach, DiscoveryFailed, UnknownService, UnknownType
from tupelo.federation.links.address import DEFAULT_PORT
from tupelo.models.javaspaces.events import EventRegistration, Retry, check_retry, target_of
from tupelo.models.javaspaces.leases import FOREVER
from tupelo.models.javaspaces.registry import Registry
from tupelo.models.javaspaces.service_items import (
    CompiledTemplate,
    Description,
    ServiceItem,
    ServiceMatches,
    ServiceTemplate,
    changes_of,
    check_field,
    check_groups,
    description_of,
    frozen,
    id_of,
    known_here,
    wanted_by,
)
from tupelo.space.blocking import ClosingHandle, Space
from tupelo.space.clock import Clock
from tupelo.space.dual_api import Blocking, DoorT, OnDoor, dual_api
from tupelo.values.kind import Kind, class_of
from tupelo.values.lease import LeasePolicy

PORT = 4160
_PORTS = {"jini": PORT, "tupelo": DEFAULT_PORT}

_claimed: dict[LookupLocator, LookupService] = {}
_claiming = threading.Lock()


class LookupLocator:
    """The address of a lookup service: "tupelo://host:7700", or an address in this process such as
    "jini://127.0.0.1:4160" or "127.0.0.1:4160".

    Addresses are compared as text: "localhost" is not "127.0.0.1".
    """

    def __init__(self, address: str) -> None:
        expected = 'an address such as "tupelo://host:7700" or "jini://127.0.0.1:4160"'
        if not isinstance(address, str):
            raise BadArgument("address", expected, address)
        try:
            parts = urlsplit(address if "://" in address else f"jini://{address}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise BadArgument("address", expected, address) from None
        more = parts.username or parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme not in _PORTS or not host or " " in host or port == 0 or more:
            raise BadArgument("address", expected, address)
        self.scheme = parts.scheme
        self.host = host
        self.port = _PORTS[self.scheme] if port is None else port

    @property
    def elsewhere(self) -> bool:
        """Whether the address is that of a host, not one in this process."""
        return self.scheme == "tupelo"

    def get_registrar(self, **options: Any) -> Any:
        """The lookup service at this address: a LookupService of this process, or a connected
        RemoteLookupService. `options` are those of `tupelo.connect`. DiscoveryFailed if there is no
        lookup service."""
        if self.elsewhere:
            try:
                return _remote().connect(str(self), **options)
            except (CannotReach, UnknownService) as error:
                raise DiscoveryFailed(str(self)) from error
        if options:
            raise BadArgument(next(iter(options)), "left out for an address in this process", "it")
        with _claiming:
            found = _claimed.get(self)
        if found is None:
            raise DiscoveryFailed(str(self))
        return found

    async def get_registrar_async(self, **options: Any) -> Any:
        """`get_registrar` for the async API."""
        if not self.elsewhere:
            return self.get_registrar(**options)
        try:
            return await _remote().connect_async(str(self), **options)
        except (CannotReach, UnknownService) as error:
            raise DiscoveryFailed(str(self)) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LookupLocator) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash((self.host, self.port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"LookupLocator({str(self)!r})"


def claim(locator: LookupLocator, lookup: LookupService) -> None:
    """Register a lookup service at an address of this process. BadArgument if it is taken."""
    if locator.elsewhere:
        what = "one in this process: a host offers a lookup service by offer(host, lookup)"
        raise BadArgument("address", what, str(locator))
    with _claiming:
        if locator in _claimed:
            raise BadArgument("address", "free: a lookup service has it already", str(locator))
        _claimed[locator] = lookup


def free(locator: LookupLocator, lookup: LookupService) -> None:
    """Remove a lookup service from its address."""
    with _claiming:
        if _claimed.get(locator) is lookup:
            del _claimed[locator]


def _remote() -> Any:
    module = import_module("tupelo.models.javaspaces.remote.clients")  # a cycle
    return module.RemoteLookupService


PUBLIC_GROUP = "public"


class Registrar(OnDoor[DoorT]):
    """The operations of a lookup service, in this program or elsewhere."""

    @dual_api
    async def register(
        self, item: ServiceItem, lease: float = FOREVER
    ) -> ServiceRegistration[DoorT]:
        """Register a service. A registration with the same id is replaced in one step, and its
        lease is lost. An item without an id gets the id of an equal service, or a new one."""
        return ServiceRegistration(self, await self.grant("register", self.described(item), lease))

    @dual_api
    async def lookup(self, template: ServiceTemplate | None = None) -> Any:
        """The matching service that was registered first; None if there is none, or if it cannot be
        reached from this program."""
        found = await self.ask("first", wanted_by(template))
        return None if found is None else found.live()

    @dual_api
    async def lookup_all(
        self, template: ServiceTemplate | None = None, max_matches: int | None = None
    ) -> ServiceMatches:
        """The items of the matching services, at most `max_matches`, and how many match. In an
        item, a service that cannot be reached or whose class is unknown here is None."""
        if max_matches is not None and (
            isinstance(max_matches, bool) or not isinstance(max_matches, int) or max_matches < 0
        ):
            raise BadArgument("max_matches", "a whole number, 0 or more, or None", max_matches)
        found, total = await self.ask("find", wanted_by(template), max_matches)
        return ServiceMatches([one.item() for one in found], total)

    @dual_api
    async def get_entry_classes(self, template: ServiceTemplate | None = None) -> list[type | str]:
        """The classes of attributes of matching services by which the template could be narrowed:
        attributes that match none of the template's, or are of a subclass of one. A class that is
        unknown here is returned by name."""
        return list(map(_class_or_name, await self.ask("kinds", wanted_by(template))))

    @dual_api
    async def get_field_values(
        self, template: ServiceTemplate, index: int, field: str
    ) -> list[Any]:
        """The distinct values of a field in the attributes of matching services that match the
        template's attribute at this index. Values of unknown classes are left out."""
        wanted = wanted_by(template)
        check_field(template, index, field)
        return known_here(await self.ask("values", wanted, index, field))

    @dual_api
    async def get_service_types(
        self, template: ServiceTemplate | None = None, prefix: str = ""
    ) -> list[str]:
        """The names, with this prefix, of the most specific classes of matching services, without
        the template's classes and their base classes."""
        if not isinstance(prefix, str):
            raise BadArgument("prefix", "a text with which names of classes begin", prefix)
        names: list[str] = await self.ask("types", wanted_by(template), prefix)
        return names

    @dual_api
    async def notify(
        self,
        template: ServiceTemplate | None,
        transitions: int,
        listener: object,
        handback: Any = None,
        lease: float = FOREVER,
    ) -> EventRegistration:
        """Send a listener an event when a service begins to match, no longer matches, or changes.

        `transitions` are combined: TRANSITION_NOMATCH_MATCH | TRANSITION_MATCH_NOMATCH. The
        listener is called from a thread of this program. A failing listener is called again, and
        dropped if it fails too often. When 1,000 events wait, the oldest is dropped, which leaves a
        gap in the sequence numbers. If the listener is that of a mailbox at the host of the lookup
        service, events go there directly.
        """
        return await self.listen(wanted_by(template), transitions, listener, handback, lease)

    # Where the registry is

    def described(self, item: ServiceItem) -> Description:
        """The description of an item, as it is registered."""
        return description_of(item)

    @abstractmethod
    async def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the Registry."""

    @abstractmethod
    async def grant(self, method: str, *args: Any) -> Any:
        """Call a method of the Registry that returns something leased."""

    @abstractmethod
    async def listen(
        self,
        wanted: CompiledTemplate,
        transitions: int,
        listener: object,
        handback: Any,
        lease: float,
    ) -> EventRegistration:
        """Register a listener with the Registry."""


class ServiceRegistration(OnDoor[DoorT]):
    """The leased registration of a service. Its methods raise LeaseLost after the lease has
    ended."""

    def __init__(self, registrar: Registrar[DoorT], granted: Any) -> None:
        self.is_async = registrar.is_async
        self.service_id: str = granted.service_id
        self._registrar = registrar
        self._granted = granted
        self._numbers = count(1)

    @property
    def lease(self) -> Any:
        """The lease of the registration."""
        return self._granted.lease

    @property
    def active(self) -> bool:
        """Whether the lease has not ended, as far as this program knows."""
        return not self._granted.ended

    @property
    def attributes(self) -> Any:
        """The entries that describe the service, without those of unknown classes. Awaited in the
        async API."""
        return self._get_attributes()

    @dual_api
    async def _get_attributes(self) -> tuple[Any, ...]:
        return tuple(known_here(await self._registrar.ask("attributes", self._granted)))

    @dual_api
    async def add_attributes(self, attributes: object) -> None:
        """Add entries that describe the service; entries that are there already are not
        repeated."""
        await self._change("add_attributes", frozen(attributes))

    @dual_api
    async def modify_attributes(self, templates: object, attributes: object) -> None:
        """For each template, set the fields of the matching attributes to the values, except None,
        of the entry at the same index; if that entry is None, remove the attributes."""
        await self._change("modify_attributes", *changes_of(templates, attributes))

    @dual_api
    async def set_attributes(self, attributes: object) -> None:
        """Replace all entries that describe the service."""
        await self._change("set_attributes", frozen(attributes))

    async def _change(self, method: str, *args: Any) -> None:
        await self._registrar.ask(method, self._granted, next(self._numbers), *args)

    def __repr__(self) -> str:
        return f"ServiceRegistration({self.service_id!r})"


class LookupService(Registrar[Blocking], ClosingHandle):
    """A lookup service: services register, and are found by id, class and attributes.

    Its methods never wait, so async programs use them without await. Listeners are called from
    threads. With an `address`, a LookupLocator of this process finds it until it is closed;
    `offer` lets a host serve it to programs elsewhere.
    """

    is_async = False

    def __init__(
        self,
        address: str | None = None,
        clock: Clock | None = None,
        *,
        service_id: str | UUID | None = None,
        groups: Sequence[str] = (PUBLIC_GROUP,),
        lease_policy: LeasePolicy | None = None,
        retry: Retry | None = None,
    ) -> None:
        retry = check_retry(retry)
        self.service_id = id_of(service_id) or str(uuid4())
        self.groups = check_groups(groups)
        self.locator = None if address is None else LookupLocator(address)
        self.name = f"lookup-{uuid4().hex}" if self.locator is None else str(self.locator)
        self.registry = Registry(self.name, clock, lease_policy, retry)
        if self.locator is not None:
            claim(self.locator, self)

    @property
    def space(self) -> Space:
        """The space whose leased entries are the registrations."""
        return self.registry.space

    @property
    def clock(self) -> Clock:
        """The clock that ends its leases."""
        return self.registry.clock

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.registry.closed

    def close(self) -> None:
        """End all registrations, and free the address."""
        self.registry.close()
        if self.locator is not None:
            free(self.locator, self)

    async def ask(self, method: str, *args: Any) -> Any:
        return getattr(self.registry, method)(*args)

    grant = ask

    async def listen(
        self,
        wanted: CompiledTemplate,
        transitions: int,
        listener: object,
        handback: Any,
        lease: float,
    ) -> EventRegistration:
        tell = target_of("listener", listener)
        return self.registry.notify(wanted, transitions, tell, handback, lease)

    def __repr__(self) -> str:
        return f"LookupService({self.name!r})"


def _class_or_name(kind: Kind) -> type | str:
    try:
        return class_of(kind)
    except UnknownType:
        return kind.name
