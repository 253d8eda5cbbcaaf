"""The registrations and listeners of a lookup service. It is used by the LookupService in its
program, and by the host that offers that service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from tupelo.errors import BadArgument, BadTemplate, LeaseLost, SpaceClosed
from tupelo.models.javaspaces.events import (
    EventRegistration,
    Listener,
    ListenerThread,
    RemoteEvent,
    Retry,
)
from tupelo.models.javaspaces.leases import Tenancy, Tenant, seconds_asked
from tupelo.models.javaspaces.service_items import (
    Attributes,
    Change,
    CompiledTemplate,
    Description,
    ServiceItem,
    merged,
    modified,
)
from tupelo.space.blocking import Space
from tupelo.space.clock import Clock
from tupelo.space.port import port_of
from tupelo.values import lease as engine
from tupelo.values.entry import same
from tupelo.values.kind import Kind, entry
from tupelo.values.lease import LeasePolicy
from tupelo.values.template import Template

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
        after: Description | None = self.__dict__.get("_after")  # not a field: it stays here
        return after

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
        self._registry = registry
        super().__init__(registry.tenancy, granted)

    @property
    def service_id(self) -> str:
        return self.description.service_id

    def lease_ended(self) -> None:
        self._registry.service_ended(self)


class _Listening(Tenant):
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
        self.listening = ListenerThread(
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
        super().__init__(tenancy, granted)

    def lease_ended(self) -> None:
        self._registry.listener_ended(self)

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
            self.listening.handback,
            about.service_id,
            transition,
            None if after is None else after.copies(),
        )
        event.__dict__["_after"] = after
        self.listening.tell(event)


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
        self._watching: dict[int, _Listening] = {}
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
        changes: list[Change],
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
            listening = _Listening(self, self._events, wanted, transitions, granted, tell, handback)
            self._watching[listening.event_id] = listening
            return EventRegistration(listening.listening, self.name, listening.event_id, 0)

    def _tell(self, before: Description | None, after: Description | None) -> None:
        for listening in list(self._watching.values()):
            if listening.listening.active:
                try:
                    listening.changed(before, after)
                except BadTemplate as error:  # A function in the template has failed.
                    listening.listening.give_up(error)

    # Within

    def close(self) -> None:
        with self._lock:
            self.closed = True
            for service in self._services.values():
                self.tenancy.evict(service)
            for listening in self._watching.values():
                self.tenancy.evict(listening)
                listening.listening.call_off()
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

    def listener_ended(self, listening: _Listening) -> None:
        """Its lease has ended; events that happened before are still delivered, unless the lease
        was cancelled."""
        with self._lock:
            if not self.closed:
                self._watching.pop(listening.event_id, None)
                self._remove(listening)
