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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

from tupelo.errors import (
    BadArgument,
    BadTemplate,
    CannotReach,
    DiscoveryFailed,
    LeaseLost,
    SpaceClosed,
    UnknownService,
    UnknownType,
)
from tupelo.federation.links.address import DEFAULT_PORT
from tupelo.models.javaspaces.events import (
    EventRegistration,
    Listener,
    ListenerThread,
    RemoteEvent,
    Retry,
    check_retry,
    target_of,
)
from tupelo.models.javaspaces.leases import FOREVER, Tenancy, Tenant, seconds_asked
from tupelo.models.javaspaces.service_items import (
    AttributeChange,
    Attributes,
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
    merged,
    modified,
    wanted_by,
)
from tupelo.space.blocking import ClosingHandle, Space
from tupelo.space.clock import Clock
from tupelo.space.dual_api import Blocking, DoorT, OnDoor, dual_api, maybe_await, run_sync
from tupelo.space.port import port_of
from tupelo.values import lease as engine
from tupelo.values.checks import is_int
from tupelo.values.entry import same
from tupelo.values.kind import Kind, class_of, entry
from tupelo.values.lease import LeasePolicy
from tupelo.values.template import Template

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
        return run_sync(partial(self._registrar, "connect", options))

    async def get_registrar_async(self, **options: Any) -> Any:
        """`get_registrar` for the async API."""
        return await self._registrar("connect_async", options)

    async def _registrar(self, connect: str, options: dict[str, Any]) -> Any:
        if self.elsewhere:
            clients = import_module("tupelo.models.javaspaces.remote.clients")  # a cycle
            try:
                connected = getattr(clients.RemoteLookupService, connect)(str(self), **options)
                return await maybe_await(connected)
            except (CannotReach, UnknownService) as error:
                raise DiscoveryFailed(str(self)) from error
        if options:
            raise BadArgument(next(iter(options)), "left out for an address in this process")
        with _claiming:
            found = _claimed.get(self)
        if found is None:
            raise DiscoveryFailed(str(self))
        return found

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


# Where the registrations are

TRANSITION_MATCH_NOMATCH = 1
"""A service has left, or no longer matches."""
TRANSITION_NOMATCH_MATCH = 2
"""A matching service was registered, or a service matches now."""
TRANSITION_MATCH_MATCH = 4
"""A matching service was changed or registered again, and still matches."""
ALL_TRANSITIONS = TRANSITION_MATCH_NOMATCH | TRANSITION_NOMATCH_MATCH | TRANSITION_MATCH_MATCH

_registries: WeakValueDictionary[str, Registry] = WeakValueDictionary()  # of this program, by name


@entry("tupelo.javaspaces.Service")
@dataclass
class ServiceEntry:
    """A registration in the space of the lookup service; its lease is that of the registration."""

    service_id: str | None = None
    types: tuple[str, ...] | None = None
    attributes: tuple[Any, ...] | None = None


@entry("tupelo.javaspaces.ServiceListener")
@dataclass
class ListenerEntry:
    """A listener in the space of the lookup service."""

    event_id: int | None = None


@entry("tupelo.javaspaces.ServiceEvent")
@dataclass(frozen=True)
class ServiceEvent(RemoteEvent):
    """A service was registered, changed or removed. `attributes` are the new attributes, None if
    the service was removed. A mailbox keeps the event but not the service, which `item` looks up.
    """

    service_id: str = ""
    transition: int = 0
    attributes: tuple[Any, ...] | None = None

    @property
    def after(self) -> Description | None:
        """The data of the service in this process after the event; None if it was removed."""
        return self.__dict__.get("_after")  # not a field: it is not sent

    @property
    def item(self) -> ServiceItem | None:
        """The service of this event. None if it was removed; for an event out of a mailbox, also if
        it has left since."""
        if self.attributes is None:
            return None
        known = self.after
        if known is None and (registry := _registries.get(self.source)) is not None:
            known = registry.known(self.service_id)
        service = None if known is None else known.live()
        return None if service is None else ServiceItem(self.service_id, service, self.attributes)


class RegisteredService(Tenant):
    """A registered service."""

    changes = 0
    """The number of the last change of attributes."""

    def __init__(self, registry: Registry, description: Description, granted: engine.Lease) -> None:
        self.description = description
        super().__init__(registry.tenancy, granted, partial(registry.service_ended, self))

    @property
    def service_id(self) -> str:
        return self.description.service_id


class RegisteredListener(Tenant):
    """A listener with its template and transitions."""

    def __init__(
        self,
        registry: Registry,
        event_id: int,
        wanted: CompiledTemplate,
        transitions: int,
        granted: engine.Lease,
        tell: Listener,
        handback: Any,
    ) -> None:
        tenancy = registry.tenancy
        self.event_id = event_id
        self.thread = ListenerThread(
            lambda: self.lease.granted,
            tell,
            handback,
            clock=registry.clock,
            retry=registry.retry,
            on_failure=lambda: tenancy.end(self),
        )
        self._registry = registry
        self._wanted = wanted
        self._transitions = transitions
        self._sequence = 0
        super().__init__(tenancy, granted, partial(registry.listener_ended, self))

    def changed(self, before: Description | None, after: Description | None) -> None:
        did, does = self._wanted.matches(before), self._wanted.matches(after)
        if did and does:
            transition = TRANSITION_MATCH_MATCH
        else:
            transition = TRANSITION_NOMATCH_MATCH if does else TRANSITION_MATCH_NOMATCH
        about = after or before
        if about is None or not (did or does) or not transition & self._transitions:
            return
        self._sequence += 1
        event = ServiceEvent(
            self._registry.name,
            self.event_id,
            self._sequence,
            self.thread.handback,
            about.service_id,
            transition,
            None if after is None else after.copies(),
        )
        event.__dict__["_after"] = after
        self.thread.tell(event)


class Registry:
    """The registrations of a lookup service. Services, templates and attributes come compiled by
    the module `service_items`."""

    def __init__(
        self, name: str, clock: Clock | None, lease_policy: LeasePolicy | None, retry: Retry
    ) -> None:
        self.name = name
        self.space = Space(name, lease_policy=lease_policy, clock=clock)
        self.closed = False
        self.clock = port_of(self.space).clock
        self.retry = retry
        self._lock = threading.RLock()
        self.tenancy = Tenancy(self.space, self._lock)
        self._services: dict[str, RegisteredService] = {}
        self._of_type: dict[str, dict[str, RegisteredService]] = {}
        self._watching: dict[int, RegisteredListener] = {}
        self._events = 0
        _registries[name] = self

    # Registering

    def register(self, description: Description, lease: float) -> RegisteredService:
        """Register a service. Without an id it gets the id of an equal service, or a new one."""
        seconds = seconds_asked(lease, zero=True)
        with self._lock:
            self._require_open()
            if not description.service_id:
                equal = self._equal_to(description)
                name = str(uuid4()) if equal is None else equal.service_id
                description = replace(description, service_id=name)
            old = self._services.get(description.service_id)
            if old is not None and old.ended:  # It has expired, and was not removed yet.
                self.tenancy.end(old)
                old = None
            granted = self._write(description, seconds, old)
            if old is not None:
                self.tenancy.evict(old)
                self._forget(old)
            service = RegisteredService(self, description, granted)
            self._services[description.service_id] = service
            for name in description.types:
                self._of_type.setdefault(name, {})[description.service_id] = service
            self._tell(None if old is None else old.description, description)
            return service

    def attributes(self, service: RegisteredService) -> Attributes:
        return service.description.attributes

    def add_attributes(
        self, service: RegisteredService, number: int, attributes: Attributes
    ) -> None:
        self._change(service, number, lambda there: merged(there, attributes))

    def set_attributes(
        self, service: RegisteredService, number: int, attributes: Attributes
    ) -> None:
        self._change(service, number, lambda there: attributes)

    def modify_attributes(
        self,
        service: RegisteredService,
        number: int,
        templates: list[Template],
        changes: list[AttributeChange],
    ) -> None:
        self._change(service, number, lambda there: modified(there, templates, changes))

    def _change(
        self, service: RegisteredService, number: int, change: Callable[[Attributes], Attributes]
    ) -> None:
        """Change the attributes of a service; its lease goes on. A change that is repeated because
        its answer was lost has the same number, and is made once."""
        with self._lock:
            self._require_open()
            before, expires = service.description, service.expires
            seconds = None if expires is None else expires - self.clock.now()
            if service.ended or (seconds is not None and seconds <= 0):
                raise LeaseLost(f"the registration of the service {before.service_id} is gone")
            if number <= service.changes:
                return
            after = replace(before, attributes=change(before.attributes))
            self.tenancy.replace(service, self._write(after, seconds, service))
            service.description, service.changes = after, number
            self._tell(before, after)

    # Finding

    def known(self, service_id: str) -> Description | None:
        """The service with this id; None if it is not registered."""
        wanted = CompiledTemplate(service_id, frozenset(), [], [])
        return None if self.closed else self.first(wanted)

    def first(self, wanted: CompiledTemplate) -> Description | None:
        """The matching service that was registered first."""
        with self._lock:
            return next(self._find(wanted), None)

    def find(
        self, wanted: CompiledTemplate, most: int | None = None
    ) -> tuple[list[Description], int]:
        """The matching services, limited, and how many match."""
        with self._lock:
            found = list(self._find(wanted))
        return found[:most], len(found)

    def kinds(self, wanted: CompiledTemplate) -> list[Kind]:
        """The classes of attributes by which a template for the matching services could be
        narrowed."""
        kinds = {
            attribute.kind: None
            for found in self.find(wanted)[0]
            for attribute in wanted.further_attributes(found)
        }
        return list(kinds)

    def values(self, wanted: CompiledTemplate, index: int, field: str) -> list[Any]:
        """The distinct values of a field in the attributes that match the template at this
        index."""
        if not 0 <= index < len(wanted.attributes):
            raise BadArgument("index", "the place of an attribute of the template", index)
        values: list[Any] = []
        for found in self.find(wanted)[0]:
            for value in wanted.field_values(found, index, field):
                if not any(same(value, other) for other in values):
                    values.append(value)
        return values

    def types(self, wanted: CompiledTemplate, prefix: str) -> list[str]:
        """The most specific types, with this prefix, of the matching services."""
        names = {
            name: None
            for found in self.find(wanted)[0]
            for name in wanted.more_specific_types(found, prefix)
        }
        return list(names)

    def _find(self, wanted: CompiledTemplate) -> Iterator[Description]:
        self._require_open()
        if wanted.service_id is not None:
            known = self._services.get(wanted.service_id)
            candidates = [] if known is None else [known]
        else:
            candidates = self._with_types(wanted.types)
        for service in candidates:
            if not service.ended and wanted.matches(service.description):
                yield service.description

    # Listening

    def notify(
        self,
        wanted: CompiledTemplate,
        transitions: int,
        tell: Listener,
        handback: Any,
        lease: float,
    ) -> EventRegistration:
        if type(transitions) is not int or not 0 < transitions <= ALL_TRANSITIONS:
            raise BadArgument("transitions", "one or more TRANSITION_..., added up", transitions)
        seconds = seconds_asked(lease, zero=True)
        with self._lock:
            self._require_open()
            self._events += 1
            granted = self.space.write(ListenerEntry(self._events), lease=seconds)
            listener = RegisteredListener(
                self, self._events, wanted, transitions, granted, tell, handback
            )
            self._watching[listener.event_id] = listener
            return EventRegistration(listener.thread, self.name, listener.event_id, 0)

    def _tell(self, before: Description | None, after: Description | None) -> None:
        for listener in list(self._watching.values()):
            if listener.thread.active:
                try:
                    listener.changed(before, after)
                except BadTemplate as error:  # A function in the template has failed.
                    listener.thread.give_up(error)

    # Within

    def close(self) -> None:
        with self._lock:
            self.closed = True
            for service in self._services.values():
                self.tenancy.evict(service)
            for listener in self._watching.values():
                self.tenancy.evict(listener)
                listener.thread.call_off()
            self._services.clear()
            self._of_type.clear()
            self._watching.clear()
            self.space.close()

    def _require_open(self) -> None:
        if self.closed:
            raise SpaceClosed(f"the lookup service {self.name!r} is closed")

    def _write(
        self, description: Description, seconds: float | None, old: RegisteredService | None
    ) -> engine.Lease:
        """Replace the entry of a service in one step."""
        types, attributes = tuple(sorted(description.types)), description.copies()
        with port_of(self.space).atomic():
            granted = self.space.write(
                ServiceEntry(description.service_id, types, attributes), lease=seconds
            )
            if old is not None:
                self._remove(old)
        return granted

    def _remove(self, tenant: Tenant) -> None:
        with suppress(LeaseLost):
            tenant.granted.cancel()

    def _equal_to(self, description: Description) -> RegisteredService | None:
        """The registration of an equal service of the same class."""
        for known in self._with_types(description.types):
            service = known.description.service
            if type(service) is type(description.service) and service == description.service:
                return known
        return None

    def _with_types(self, names: Iterable[str]) -> list[RegisteredService]:
        """Candidates that include every service with all these types."""
        groups = [self._of_type.get(name, {}) for name in names] or [self._services]
        return list(min(groups, key=len).values())

    def _forget(self, service: RegisteredService) -> None:
        del self._services[service.service_id]
        for name in service.description.types:
            del self._of_type[name][service.service_id]
            if not self._of_type[name]:
                del self._of_type[name]

    def service_ended(self, service: RegisteredService) -> None:
        with self._lock:
            if not self.closed and self._services.get(service.service_id) is service:
                self._remove(service)
                self._forget(service)
                self._tell(service.description, None)

    def listener_ended(self, listener: RegisteredListener) -> None:
        """Its lease has ended; events that happened before are still delivered, unless the lease
        was cancelled."""
        with self._lock:
            if not self.closed:
                self._watching.pop(listener.event_id, None)
                self._remove(listener)


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
        if max_matches is not None and (not is_int(max_matches) or max_matches < 0):
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
        return await self.listen(listener, handback, lease, wanted_by(template), transitions)

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
        self, listener: object, handback: Any, lease: float, *about: Any
    ) -> EventRegistration:
        """Register a listener with the Registry, `about` this template and these transitions."""


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
        self.space = self.registry.space
        """The space whose leased entries are the registrations."""
        self.clock = self.registry.clock
        """The clock that ends its leases."""
        if self.locator is not None:
            claim(self.locator, self)

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
        self, listener: object, handback: Any, lease: float, *about: Any
    ) -> EventRegistration:
        tell = target_of("listener", listener)
        registration: EventRegistration = await self.ask("notify", *about, tell, handback, lease)
        return registration

    def __repr__(self) -> str:
        return f"LookupService({self.name!r})"


def _class_or_name(kind: Kind) -> type | str:
    try:
        return class_of(kind)
    except UnknownType:
        return kind.name
