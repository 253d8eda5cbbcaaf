"""Locations: values that stand for services, and travel in their place."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import quote

from tupelo.errors import BadArgument, BadEntry
from tupelo.federation.client.connect import connect, connect_async
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.links.address import parse_url
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.models.javaspaces.lookup import LookupService
from tupelo.models.javaspaces.mailbox import EventMailbox
from tupelo.models.javaspaces.renewal_sets import LeaseRenewalService
from tupelo.models.javaspaces.space import JavaSpace, JavaSpace05
from tupelo.values.entry import Typed, freeze_value
from tupelo.values.kind import entry, kind_of

SPACE = "space"
SERVICES: dict[str, type] = {
    "lookup": LookupService,
    "mailbox": EventMailbox,
    "lease renewal": LeaseRenewalService,
}
"""The kinds of services that a host can offer."""
SERVICE_NAMES = {
    "lookup": "jini.lookup",
    "mailbox": "jini.mailbox",
    "lease renewal": "jini.renewal",
}
"""The names under which a host offers them."""
HERE = "tupelo://this.host:1/-"
"""In an answer of a host: the host itself, which may not know by which address it is reached."""


@entry("tupelo.javaspaces.ServiceLocation")
@dataclass(frozen=True)
class ServiceLocation:
    """Where a service is: its kind (space, lookup, mailbox or lease renewal), and the URL of the
    space, or of the host. A lookup service finds it as a service of that kind."""

    kind: str
    url: str

    def __post_init__(self) -> None:
        if self.kind != SPACE and self.kind not in SERVICES:
            raise BadArgument("kind", f"one of {', '.join([SPACE, *SERVICES])}", self.kind)
        if parse_url(self.url)[1] is None and self.kind == SPACE:
            raise BadArgument("url", "one that names a space: tupelo://host:7700/space", self.url)

    @property
    def stands_for(self) -> tuple[type, ...]:
        return (SERVICES.get(self.kind, JavaSpace05),)

    def open(self, **options: Any) -> Any:
        """The service itself, by the options of `tupelo.connect`; close it at the end."""
        if self.kind == SPACE:
            return JavaSpace05(connect(self.url, **options))
        return remote_class(self.kind).connect(self.url, **options)

    async def open_async(self, **options: Any) -> Any:
        """`open`, for tasks of the running loop."""
        if self.kind == SPACE:
            return JavaSpace05(await connect_async(self.url, **options))
        return await remote_class(self.kind).connect_async(self.url, **options)


def remote_class(kind: str) -> Any:
    """The class of the clients of a kind of service."""
    name = {
        "lookup": "RemoteLookupService",
        "mailbox": "RemoteEventMailbox",
        "lease renewal": "RemoteLeaseRenewalService",
    }[kind]
    return getattr(import_module("tupelo.models.javaspaces.remote.services"), name)  # a cycle


def kind_of_service(service: object) -> str | None:
    """The kind of a service that a host can offer, if it is one."""
    return next((kind for kind, cls in SERVICES.items() if isinstance(service, cls)), None)


def sendable(service: Any) -> Any:
    """What is sent in the place of a service: itself, if it is a value. BadArgument if programs
    elsewhere cannot reach it."""
    url = url_of(service.space) if isinstance(service, JavaSpace) else None
    if url is not None:
        return ServiceLocation(SPACE, url)
    try:
        freeze_value(service, "service", 1)
    except BadEntry:
        what = "a value, a ServiceLocation, or a JavaSpace at a host"
        raise BadArgument("service", f"{what}: programs elsewhere must reach it", service) from None
    return service


def url_of(space: Any) -> str | None:
    """The URL of a space at a host, by which programs elsewhere reach it; None if they cannot."""
    if isinstance(space, RemoteSpace):
        return f"tupelo://{space.peer}/{quote(space.name, safe='')}"
    address = getattr(space.host_core, "address", "") if isinstance(space, FederatedSpace) else ""
    return f"tupelo://{address}/{quote(space.name, safe='')}" if address else None


def seen_from(frozen: Any, url: str) -> Any:
    """A service as a host has sent it; a location that is that host has the URL by which it was
    reached."""
    if type(frozen) is Typed and frozen.kind is kind_of(ServiceLocation):
        kind, place = frozen.values
        return Typed(frozen.kind, (kind, url if place == HERE else place))
    return frozen
