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

A service is known by the names of its class and of all classes above. Its attributes are entries
and are matched as entries are. A lookup service of this program and one at a host elsewhere are
used alike: both are a Registrar, which checks what it is given and asks a Registry, here or there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from tupelo.errors import BadArgument, UnknownType
from tupelo.models.javaspaces.discovery import LookupLocator, claim, free
from tupelo.models.javaspaces.event_sender import target_of
from tupelo.models.javaspaces.events import EventRegistration, Retry, check_retry
from tupelo.models.javaspaces.leases import FOREVER
from tupelo.models.javaspaces.registry import Registry
from tupelo.models.javaspaces.services import (
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

PUBLIC_GROUP = "public"


class Registrar(OnDoor[DoorT]):
    """What programs use of a lookup service, in this program or elsewhere."""

    @dual_api
    async def register(
        self, item: ServiceItem, lease: float = FOREVER
    ) -> ServiceRegistration[DoorT]:
        """Register a service. One of the same id is replaced in one step, and its lease is lost.
        Without an id it gets the one of an equal service, if there is one, or a new one."""
        return ServiceRegistration(self, await self.grant("register", self.described(item), lease))

    @dual_api
    async def lookup(self, template: ServiceTemplate | None = None) -> Any:
        """A service that matches, the first that was registered; None if there is none, or if it
        cannot be reached from here."""
        found = await self.ask("first", wanted_by(template))
        return None if found is None else found.live()

    @dual_api
    async def lookup_all(
        self, template: ServiceTemplate | None = None, max_matches: int | None = None
    ) -> ServiceMatches:
        """The items of all services that match, at most `max_matches`, and how many there are. A
        service that cannot be reached from here, or is of an unknown class, is None."""
        if max_matches is not None and (
            isinstance(max_matches, bool) or not isinstance(max_matches, int) or max_matches < 0
        ):
            raise BadArgument("max_matches", "a whole number, 0 or more, or None", max_matches)
        found, total = await self.ask("find", wanted_by(template), max_matches)
        return ServiceMatches([one.item() for one in found], total)

    @dual_api
    async def get_entry_classes(self, template: ServiceTemplate | None = None) -> list[type | str]:
        """Of the services that match: the classes of the attributes by which more could be asked,
        because they match none of the template's, or are of a subclass of one that they match. A
        class that is not known here is named."""
        return list(map(_class_or_name, await self.ask("kinds", wanted_by(template))))

    @dual_api
    async def get_field_values(
        self, template: ServiceTemplate, index: int, field: str
    ) -> list[Any]:
        """The values, each once, that a field has in the attributes of services that match; of
        those attributes, in the ones that match the template's attribute at this index. Values of
        classes that are not known here are left out."""
        wanted = wanted_by(template)
        check_field(template, index, field)
        return known_here(await self.ask("values", wanted, index, field))

    @dual_api
    async def get_service_types(
        self, template: ServiceTemplate | None = None, prefix: str = ""
    ) -> list[str]:
        """Of the services that match: the names of their most specific classes that begin so, but
        for the template's own and those above them."""
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
        """Tell a listener of services that come to match, match no more, or are changed.

        `transitions` are added: TRANSITION_NOMATCH_MATCH | TRANSITION_MATCH_NOMATCH. The listener
        is called from a thread of this program. One that fails is told again, and dropped if it
        fails too often. When 1,000 events wait for it, the oldest is dropped, and the sequence
        numbers have a gap there. If it is the listener of a mailbox at the host of the lookup
        service, the events go there without this program.
        """
        return await self.listen(wanted_by(template), transitions, listener, handback, lease)

    # Where the registry is

    def described(self, item: ServiceItem) -> Description:
        return description_of(item)

    @abstractmethod
    async def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the Registry."""

    @abstractmethod
    async def grant(self, method: str, *args: Any) -> Any:
        """Call a method of the Registry that answers with something leased."""

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
    """That a service is registered, while its lease lasts; LeaseLost after that."""

    def __init__(self, registrar: Registrar[DoorT], granted: Any) -> None:
        self.is_async = registrar.is_async
        self.service_id: str = granted.service_id
        self._registrar = registrar
        self._granted = granted
        self._numbers = count(1)

    @property
    def lease(self) -> Any:
        return self._granted.lease

    @property
    def active(self) -> bool:
        """Does its lease last, as far as is known here?"""
        return not self._granted.ended

    @property
    def attributes(self) -> Any:
        """The entries that describe the service now, of classes that are known here; to be awaited
        on the async door."""
        return self._get_attributes()

    @dual_api
    async def _get_attributes(self) -> tuple[Any, ...]:
        return tuple(known_here(await self._registrar.ask("attributes", self._granted)))

    @dual_api
    async def add_attributes(self, attributes: object) -> None:
        """Add entries to those that describe the service; what is there is not repeated."""
        await self._change("add_attributes", frozen(attributes))

    @dual_api
    async def modify_attributes(self, templates: object, attributes: object) -> None:
        """For each template, give the attributes that match it those values of the entry in the
        same place that are not None; where that is None, remove them."""
        await self._change("modify_attributes", *changes_of(templates, attributes))

    @dual_api
    async def set_attributes(self, attributes: object) -> None:
        """Describe the service by these entries alone."""
        await self._change("set_attributes", frozen(attributes))

    async def _change(self, method: str, *args: Any) -> None:
        await self._registrar.ask(method, self._granted, next(self._numbers), *args)

    def __repr__(self) -> str:
        return f"ServiceRegistration({self.service_id!r})"


class LookupService(Registrar[Blocking], ClosingHandle):
    """Services register, and are found by id, class and attributes.

    It is for both doors: its calls answer at once and wait for nothing, so they are not awaited.
    Listeners are called from threads. With an `address` it can be found by a LookupLocator of
    this process, until it is closed; `offer` lets a host serve it to programs elsewhere.
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
        """Its leased entries are the registrations."""
        return self.registry.space

    @property
    def clock(self) -> Clock:
        """The clock that ends its leases."""
        return self.registry.clock

    @property
    def closed(self) -> bool:
        return self.registry.closed

    def close(self) -> None:
        """Nobody is found here any more; the address is free."""
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
