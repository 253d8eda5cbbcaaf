"""The lookup service: where services are found by what they are (Jini's Reggie).

| Jini                                 | Tupelo                                                  |
| ------------------------------------ | ------------------------------------------------------- |
| ServiceRegistrar, LookupService      | a space whose leased entries are the registrations      |
| ServiceItem, ServiceTemplate         | id, live object, attributes; id, classes, templates     |
| lookup(template[, maxMatches])       | lookup, lookup_all                                      |
| ServiceRegistration                  | its lease, and changes of its attributes                |
| notify, ServiceEvent, TRANSITION_... | events of arrivals, departures and changes              |
| LookupLocator, unicast discovery     | an address, within this process                         |

A service is known by the names of its class and of all classes above. Its attributes are entries
and are matched as entries are. Multicast discovery, and addresses of other processes, come with
hosts.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from tupelo.errors import BadArgument, BadTemplate, LeaseLost, SpaceClosed
from tupelo.models.javaspaces.courier import Courier, target_of
from tupelo.models.javaspaces.discovery import LookupLocator, claim, free
from tupelo.models.javaspaces.events import EventRegistration, RemoteEvent, Retry
from tupelo.models.javaspaces.leases import FOREVER, Lease, any_lease_of, seconds_asked
from tupelo.models.javaspaces.services import (
    Attributes,
    Description,
    ServiceItem,
    ServiceMatches,
    ServiceTemplate,
    Wanted,
    description_of,
    frozen,
    merged,
    modified,
)
from tupelo.models.javaspaces.tenancy import Tenancy
from tupelo.space.blocking import Space
from tupelo.space.clock import Clock
from tupelo.space.handles import Closing
from tupelo.values import lease as engine
from tupelo.values.kind import entry
from tupelo.values.lease import LeasePolicy

logger = logging.getLogger("tupelo")

TRANSITION_MATCH_NOMATCH = 1
"""A service that matched is gone, or matches no more."""
TRANSITION_NOMATCH_MATCH = 2
"""A service that matches has come, or matches now."""
TRANSITION_MATCH_MATCH = 4
"""A service that matches was changed, or registered anew, and still does."""

ALL_TRANSITIONS = TRANSITION_MATCH_NOMATCH | TRANSITION_NOMATCH_MATCH | TRANSITION_MATCH_MATCH
BACKLOG_MAX = 1_000

_named: WeakValueDictionary[str, LookupService] = WeakValueDictionary()


@entry("tupelo.javaspaces.Service")
@dataclass
class ServiceEntry:
    """A registration, as it stands in the lookup service's space; its lease is the service's."""

    service_id: str | None = None
    types: tuple[str, ...] | None = None
    attributes: tuple[Any, ...] | None = None


@entry("tupelo.javaspaces.ServiceListener")
@dataclass
class ListenerEntry:
    """One who listens, as it stands in the lookup service's space."""

    event_id: int | None = None


@entry("tupelo.javaspaces.ServiceEvent")
@dataclass(frozen=True)
class ServiceEvent(RemoteEvent):
    """A service came, went or was changed. `attributes` are those of after that, None if it is
    gone. The event can be kept in a mailbox; the service itself cannot, and is found by `item`."""

    service_id: str = ""
    transition: int = 0
    attributes: tuple[Any, ...] | None = None

    @property
    def item(self) -> ServiceItem | None:
        """The service, as the event tells of it. None if it was gone then, or is by now and the
        event comes out of a mailbox."""
        if self.attributes is None:
            return None
        service = self.__dict__.get("_service")  # not a field: it stays in this process
        if service is None:
            lookup = _named.get(self.source)
            wanted = ServiceTemplate(self.service_id)
            service = None if lookup is None or lookup.closed else lookup.lookup(wanted)
        return None if service is None else ServiceItem(self.service_id, service, self.attributes)


class LookupService(Closing):
    """Services register, and are found by id, class and attributes.

    It is for both doors: its calls answer at once and wait for nothing, so they are not awaited.
    Listeners are called from threads. With an `address` it can be found by a LookupLocator of
    this process, until it is closed.
    """

    def __init__(
        self,
        address: str | None = None,
        clock: Clock | None = None,
        *,
        lease_policy: LeasePolicy | None = None,
        retry: Retry | None = None,
    ) -> None:
        if retry is not None and not isinstance(retry, Retry):
            raise BadArgument("retry", "a Retry(...)", retry)
        self.locator = None if address is None else LookupLocator(address)
        self.name = f"lookup-{uuid4().hex}" if self.locator is None else str(self.locator)
        self.space = Space(self.name, lease_policy=lease_policy, clock=clock)
        self.closed = False
        self._clock = self.space._operations.engine.clock
        self._retry = retry or Retry()
        self._lock = threading.RLock()
        self._tenancy = Tenancy(self.space, self._lock, self._on_end)
        self._services: dict[str, _Service] = {}
        self._of_type: dict[str, dict[str, _Service]] = {}
        self._listening: dict[int, _Listening] = {}
        self._events = 0
        if self.locator is not None:
            claim(self.locator, self)
        _named[self.name] = self

    # Services

    def register(self, item: ServiceItem, lease: float = FOREVER) -> ServiceRegistration:
        """Register a service. One of the same id is replaced in one step, and its lease is lost."""
        description = description_of(item)
        seconds = self._asked(lease)
        with self._lock:
            self._require_open()
            old = self._services.get(description.service_id)
            if old is not None and old.tenant.ended:  # Its time is up; nobody has looked yet.
                self._tenancy.evict(old.tenant)
                self._on_end(old)
                old = None
            granted = self._write(description, seconds)
            if old is not None:
                self._tenancy.evict(old.tenant)
                self._forget(old)
            service = _Service(self, description, granted)
            self._know(service)
            self._tell(None if old is None else old.description, description)
            return ServiceRegistration(self, service)

    def lookup(self, template: ServiceTemplate | None = None) -> Any:
        """A service that matches, the first that was registered; None if there is none."""
        with self._lock:
            return next((found.service for found in self._find(Wanted(template))), None)

    def lookup_all(
        self, template: ServiceTemplate | None = None, max_matches: int | None = None
    ) -> ServiceMatches:
        """The items of all services that match, at most `max_matches`, and how many there are."""
        if max_matches is not None and (
            isinstance(max_matches, bool) or not isinstance(max_matches, int) or max_matches < 0
        ):
            raise BadArgument("max_matches", "a whole number, 0 or more, or None", max_matches)
        with self._lock:
            found = list(self._find(Wanted(template)))
        return ServiceMatches([one.item() for one in found[:max_matches]], len(found))

    def notify(
        self,
        template: ServiceTemplate | None,
        transitions: int,
        listener: object,
        handback: Any = None,
        lease: float = FOREVER,
    ) -> EventRegistration:
        """Tell a listener of services that come to match, match no more, or are changed.

        `transitions` are added: TRANSITION_NOMATCH_MATCH | TRANSITION_MATCH_NOMATCH. A listener
        that fails is told again, and dropped if it fails too often. When 1,000 events wait for
        it, the oldest is dropped, and the sequence numbers have a gap there.
        """
        wanted = Wanted(template)
        if (
            isinstance(transitions, bool)
            or not isinstance(transitions, int)
            or not 0 < transitions <= ALL_TRANSITIONS
        ):
            raise BadArgument("transitions", "one or more TRANSITION_..., added up", transitions)
        tell = target_of("listener", listener)
        seconds = self._asked(lease)
        with self._lock:
            self._require_open()
            self._events += 1
            granted = self.space.write(ListenerEntry(self._events), lease=seconds)
            listening = _Listening(self, self._events, wanted, transitions, handback, granted)
            listening.courier = Courier(
                listening, tell, self._clock, self._retry, listening.give_up
            )
            self._listening[listening.event_id] = listening
            return EventRegistration(listening, self.name, listening.event_id, 0)

    def close(self) -> None:
        """Nobody is found here any more; the address is free."""
        with self._lock:
            self.closed = True
            for service in self._services.values():
                self._tenancy.evict(service.tenant)
            for listening in self._listening.values():
                self._tenancy.evict(listening.tenant)
                listening.courier.stop()
            self._services.clear()
            self._of_type.clear()
            self._listening.clear()
            self.space.close()
        if self.locator is not None:
            free(self.locator, self)

    def __repr__(self) -> str:
        return f"LookupService({self.name!r})"

    # Under the lock

    def _asked(self, lease: object) -> float | None:
        return seconds_asked(lease, any_lease_of(self._tenancy))

    def _require_open(self) -> None:
        if self.closed:
            raise SpaceClosed(f"the lookup service {self.name!r} is closed")

    def _write(self, description: Description, seconds: float | None) -> engine.Lease:
        """Put a service's entry in the place of what was there, in one step.

        A transaction alone would not do: what it takes is out of sight before it commits, and
        whoever reads the space itself would find neither.
        """
        with self.space._operations.engine.lock, self.space.transaction() as txn:
            self.space.take_all(ServiceEntry(description.service_id), txn=txn)
            return self.space.write(
                ServiceEntry(
                    description.service_id, tuple(sorted(description.types)), description.copies()
                ),
                lease=seconds,
                txn=txn,
            )

    def _change(self, service: _Service, attributes: Attributes) -> None:
        """Give a service other attributes; its lease goes on."""
        before = service.description
        after = Description(before.service_id, before.service, before.types, attributes)
        expires = service.tenant.expires
        seconds = None if expires is None else expires - self._clock.now()
        if seconds is not None and seconds <= 0:
            raise LeaseLost(f"the registration of the service {before.service_id} is gone")
        self._tenancy.replace(service.tenant, self._write(after, seconds))
        service.description = after
        self._tell(before, after)

    def _find(self, wanted: Wanted) -> Any:
        self._require_open()
        if wanted.service_id is not None:
            known = self._services.get(wanted.service_id)
            candidates = [] if known is None else [known]
        else:
            groups = [self._of_type.get(name, {}) for name in wanted.types] or [self._services]
            candidates = list(min(groups, key=len).values())
        for service in candidates:
            if not service.tenant.ended and wanted.matches(service.description):
                yield service.description

    def _know(self, service: _Service) -> None:
        description = service.description
        self._services[description.service_id] = service
        for name in description.types:
            self._of_type.setdefault(name, {})[description.service_id] = service

    def _forget(self, service: _Service) -> None:
        description = service.description
        del self._services[description.service_id]
        for name in description.types:
            del self._of_type[name][description.service_id]
            if not self._of_type[name]:
                del self._of_type[name]

    def _on_end(self, what: _Service | _Listening) -> None:
        with self._lock:
            if self.closed:
                return
            if isinstance(what, _Listening):
                self._listening.pop(what.event_id, None)
                self.space.take(ListenerEntry(what.event_id), wait=0)
            elif self._services.get(what.description.service_id) is what:
                self.space.take(ServiceEntry(what.description.service_id), wait=0)
                self._forget(what)
                self._tell(what.description, None)

    def _tell(self, before: Description | None, after: Description | None) -> None:
        for listening in list(self._listening.values()):
            if listening.active:
                try:
                    listening.tell(before, after)
                except BadTemplate as error:  # A function in the template has failed.
                    listening.give_up(error)


class _Service:
    """A registration: what is described, for as long as the tenant may stay."""

    def __init__(
        self, lookup: LookupService, description: Description, granted: engine.Lease
    ) -> None:
        self.description = description
        self.tenant = lookup._tenancy.admit(self, granted)


class ServiceRegistration:
    """That a service is registered, while its lease lasts; LeaseLost after that."""

    def __init__(self, lookup: LookupService, service: _Service) -> None:
        self._lookup = lookup
        self._service = service

    @property
    def service_id(self) -> str:
        return self._service.description.service_id

    @property
    def lease(self) -> Lease:
        return self._lookup._tenancy.lease(self._service.tenant)

    @property
    def active(self) -> bool:
        """Does its lease last?"""
        return not (self._lookup.closed or self._service.tenant.ended)

    @property
    def attributes(self) -> tuple[Any, ...]:
        return self._service.description.copies()

    def add_attributes(self, attributes: object) -> None:
        """Add entries to those that describe the service; what is there is not repeated."""
        with self._lookup._lock:
            there = self._alive().attributes
            self._lookup._change(self._service, merged(there, attributes))

    def modify_attributes(self, templates: object, attributes: object) -> None:
        """For each template, give the attributes that match it those values of the entry in the
        same place that are not None; where that is None, remove them."""
        with self._lookup._lock:
            changed = modified(self._alive(), templates, attributes)
            self._lookup._change(self._service, frozen(changed))

    def set_attributes(self, attributes: object) -> None:
        """Describe the service by these entries alone."""
        with self._lookup._lock:
            self._alive()
            self._lookup._change(self._service, frozen(attributes))

    def _alive(self) -> Description:
        self._lookup._require_open()
        if self._service.tenant.ended:
            raise LeaseLost(f"the registration of the service {self.service_id} is gone")
        return self._service.description

    def __repr__(self) -> str:
        return f"ServiceRegistration({self.service_id!r})"


class _Listening:
    """One who listens: a bag of events for its courier, and the subscription of its
    EventRegistration."""

    courier: Courier

    def __init__(
        self,
        lookup: LookupService,
        event_id: int,
        wanted: Wanted,
        transitions: int,
        handback: Any,
        granted: engine.Lease,
    ) -> None:
        self.event_id = event_id
        self.error: Exception | None = None
        self._lookup = lookup
        self._wanted = wanted
        self._transitions = transitions
        self._handback = handback
        self._sequence = 0
        self._waiting: deque[ServiceEvent] = deque(maxlen=BACKLOG_MAX)
        self._out: ServiceEvent | None = None
        self.tenant = lookup._tenancy.admit(self, granted)

    @property
    def lease(self) -> engine.Lease:
        return engine.Lease(self._lookup._tenancy, self.tenant)

    @property
    def active(self) -> bool:
        return not self.tenant.ended

    def tell(self, before: Description | None, after: Description | None) -> None:
        did, does = self._wanted.matches(before), self._wanted.matches(after)
        if not (did or does):
            return
        if did and does:
            transition = TRANSITION_MATCH_MATCH
        else:
            transition = TRANSITION_NOMATCH_MATCH if does else TRANSITION_MATCH_NOMATCH
        if not transition & self._transitions:
            return
        about = after or before
        assert about is not None
        self._sequence += 1
        event = ServiceEvent(
            self._lookup.name,
            self.event_id,
            self._sequence,
            self._handback,
            about.service_id,
            transition,
            None if after is None else after.copies(),
        )
        event.__dict__["_service"] = about.service
        self._waiting.append(event)
        self.courier.go()

    def give_up(self, error: Exception) -> None:
        """The listener is dropped, and this is the reason."""
        logger.warning("a listener of %s was dropped: %s", self._lookup.name, error)
        self.error = error
        if self._lookup._tenancy.evict(self.tenant):
            self._lookup._on_end(self)

    # As a bag

    def fetch(self) -> RemoteEvent | None:
        with self._lookup._lock:
            self._out = self._waiting.popleft() if self._waiting else None
            return self._out

    def delivered(self) -> None:
        self._out = None

    def returned(self) -> None:
        with self._lookup._lock:
            if self._out is not None:
                self._waiting.appendleft(self._out)
                self._out = None
