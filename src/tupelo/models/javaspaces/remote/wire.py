"""How arguments, answers and events of Jini services are encoded, as values that msgpack can hold;
and ServiceLocation, a value that stands for a service.

Entries travel with the names of their classes and fields, so a host can store, match and return
entries of classes that it does not know. `encode` encodes the arguments of a call; the table of
methods (`hosting`) names the function of this module that decodes each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from tupelo.errors import BadArgument, BadEntry, BadFrame
from tupelo.federation.client.connect import connect, connect_async
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.links.address import parse_url
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.models.javaspaces.events import RemoteEvent
from tupelo.models.javaspaces.lookup import LookupService, ServiceEvent
from tupelo.models.javaspaces.mailbox import EventMailbox
from tupelo.models.javaspaces.renewal import LeaseRenewalService
from tupelo.models.javaspaces.service_items import (
    AttributeChange,
    Attributes,
    CompiledTemplate,
    Description,
    SentService,
    known_here,
)
from tupelo.models.javaspaces.space import JavaSpace, JavaSpace05
from tupelo.values.codec import BadBytes, decode_entry, encode_entry, encode_value, read_value
from tupelo.values.entry import Typed, freeze, freeze_value, shape_of, thaw, thaw_value
from tupelo.values.kind import entry, kind_of
from tupelo.values.template import Template
from tupelo.values.template_encoding import template_to_wire

LIST_MAX = 100
"""How many attributes, templates, types or changes a client may send at a time."""

_EVENT = kind_of(RemoteEvent).name
_ATTRIBUTES = kind_of(ServiceEvent).names.index("attributes")


def encode(value: Any) -> Any:
    """An argument of a call, encoded: frozen values, templates, descriptions of services, and lists
    of them."""
    match value:
        case Description():
            types = {name: sorted(above) for name, above in value.types.items()}
            parts = [value.service_id, value.service.frozen, types, value.attributes]
            return encode(parts)
        case CompiledTemplate():
            return encode([value.service_id, sorted(value.types), value.attributes, value.kinds])
        case Template():
            return template_to_wire(value)
        case list():
            return [encode(one) for one in value]
    return encode_value(value)


# Reading arguments

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]
Number = Annotated[int, msgspec.Meta(ge=0)]
Texts = Annotated[list[Text], msgspec.Meta(max_length=LIST_MAX)]
_Values = Annotated[list[Any], msgspec.Meta(max_length=LIST_MAX)]
_Types = Annotated[dict[Text, Texts], msgspec.Meta(max_length=LIST_MAX)]
_Sources = Annotated[list[tuple[Text, Number]], msgspec.Meta(max_length=LIST_MAX)]


def convert(value: Any, kind: Any, name: str = "args") -> Any:
    """The argument converted to this type; BadArgument if that fails."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadArgument(name, f"an argument of the method ({error})", value) from None


def anything(value: Any) -> Any:
    """Any value whose classes are known here."""
    return thaw_value(frozen(value))


def frozen(value: Any) -> Any:
    """Any value, frozen; its classes need not be known here."""
    try:
        return read_value(value)
    except BadBytes as error:
        raise BadArgument("args", f"values ({error})", type(value).__name__) from None


def attributes(value: Any) -> Attributes:
    """Attributes, frozen; their classes need not be known here."""
    read = [frozen(one) for one in convert(value, _Values)]
    if not all(type(one) is Typed for one in read):
        raise BadArgument("attributes", "entries: instances of dataclasses", value)
    return tuple(read)


def description(value: Any) -> Description:
    """The description of a service."""
    parts = convert(value, tuple[Annotated[str, msgspec.Meta(max_length=1_000)], Any, _Types, Any])
    service_id, service, types, entries = parts
    above = {name: frozenset(names) for name, names in types.items()}
    return Description(service_id, SentService(frozen(service)), above, attributes(entries))


def wanted(value: Any) -> CompiledTemplate:
    """The template of a lookup."""
    service_id, types, asked, kinds = convert(
        value, tuple[Text | None, Texts, Any, list[Text | None]]
    )
    read = templates(asked)
    if len(read) != len(kinds):
        raise BadArgument("template", "the name of a class for each attribute", kinds)
    return CompiledTemplate(service_id, frozenset(types), read, kinds)


def templates(value: Any) -> list[Template]:
    """Templates of attributes."""
    read = convert(value, _Values)
    if not all(isinstance(one, Template) for one in read):
        raise BadArgument("template", "templates of entries")
    return list(read)


def changes(value: Any) -> list[AttributeChange]:
    """Changes of attributes."""
    read = [frozen(one) for one in convert(value, _Values)]
    if not all(one is None or type(one) is dict for one in read):
        raise BadArgument("changes", "values of fields by name", value)
    return read


def sources(value: Any) -> list[tuple[str, int]]:
    """The sources and ids of events."""
    return list(convert(value, _Sources))


# Events


def encode_event(event: RemoteEvent) -> bytes:
    """An event, encoded. BadEntry if it contains something that is no value."""
    shape, fields = freeze(event)
    if isinstance(event, ServiceEvent) and event.after is not None and shape.kind is not None:
        # Including attributes of classes that are unknown in this program.
        fields = (*fields[:_ATTRIBUTES], event.after.attributes, *fields[_ATTRIBUTES + 1 :])
        shape = shape_of(shape.kind, tuple(map(type, fields)))
    return encode_entry(shape, fields)


def decode_event(payload: Any) -> RemoteEvent:
    """The event. UnknownType if its class is unknown here; attributes of unknown classes are left
    out."""
    known: tuple[Any, ...] | None = None
    try:
        shape, fields = decode_entry(payload)
        if shape.kind is kind_of(ServiceEvent) and fields[_ATTRIBUTES] is not None:
            known = tuple(known_here(fields[_ATTRIBUTES]))
            fields = (*fields[:_ATTRIBUTES], None, *fields[_ATTRIBUTES + 1 :])
        event = thaw(shape, fields)
    except (BadBytes, TypeError) as error:
        raise BadFrame(f"this is no event: {error}") from error
    if not isinstance(event, RemoteEvent):
        raise BadFrame("this is no event")
    return event if known is None else replace(event, attributes=known)  # type: ignore[call-arg]


def sent_event(payload: Any) -> tuple[bytes, str, int]:
    """The encoded event, its source and its id. The class of the event need not be known."""
    try:
        shape, fields = decode_entry(payload)
    except (BadBytes, TypeError) as error:
        raise BadArgument("event", f"an event ({error})", type(payload).__name__) from None
    if shape.kind is None or _EVENT not in shape.kind.lineage:
        raise BadArgument("event", "a RemoteEvent")
    named = dict(zip(shape.kind.names, fields, strict=True))
    source, event_id = named.get("source"), named.get("event_id")
    if type(source) is not str or type(event_id) is not int:
        raise BadArgument("event", "a RemoteEvent with a source and an id")
    return payload, source, event_id


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
"""The names of these services at a host."""
HERE = "tupelo://this.host:1/-"
"""In an answer: the URL of the answering host itself, which may not know its own address."""


@entry("tupelo.javaspaces.ServiceLocation")
@dataclass(frozen=True)
class ServiceLocation:
    """The location of a service: its kind (space, lookup, mailbox or lease renewal), and the URL of
    the space or host. A lookup service finds it as a service of that kind."""

    kind: str
    url: str

    def __post_init__(self) -> None:
        if self.kind != SPACE and self.kind not in SERVICES:
            raise BadArgument("kind", f"one of {', '.join([SPACE, *SERVICES])}", self.kind)
        if parse_url(self.url)[1] is None and self.kind == SPACE:
            raise BadArgument("url", "one that names a space: tupelo://host:7700/space", self.url)

    @property
    def stands_for(self) -> tuple[type, ...]:
        """The classes as which a lookup service finds it."""
        return (SERVICES.get(self.kind, JavaSpace05),)

    def open(self, **options: Any) -> Any:
        """Connect to the service, with the options of `tupelo.connect`; close it at the end."""
        if self.kind == SPACE:
            return JavaSpace05(connect(self.url, **options))
        return remote_class(self.kind).connect(self.url, **options)

    async def open_async(self, **options: Any) -> Any:
        """`open` for the async API."""
        if self.kind == SPACE:
            return JavaSpace05(await connect_async(self.url, **options))
        return await remote_class(self.kind).connect_async(self.url, **options)


def remote_class(kind: str) -> Any:
    """The client class for a kind of service."""
    clients = import_module("tupelo.models.javaspaces.remote.clients")  # a cycle
    return getattr(clients, f"Remote{SERVICES[kind].__name__}")


def kind_of_service(service: object) -> str | None:
    """The kind of a service; None if a host cannot offer it."""
    return next((kind for kind, cls in SERVICES.items() if isinstance(service, cls)), None)


def sendable(service: Any) -> Any:
    """The value that is sent for a service: the service itself, if it is a value. BadArgument if
    programs elsewhere cannot reach it."""
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
    """The URL of a space at a host; None if programs elsewhere cannot reach it."""
    if isinstance(space, RemoteSpace):
        return f"tupelo://{space.peer}/{quote(space.name, safe='')}"
    address = getattr(space.host_core, "address", "") if isinstance(space, FederatedSpace) else ""
    return f"tupelo://{address}/{quote(space.name, safe='')}" if address else None


def seen_from(frozen: Any, url: str) -> Any:
    """A service that a host has sent; in a location, HERE is replaced by the URL of that host."""
    if type(frozen) is Typed and frozen.kind is kind_of(ServiceLocation):
        kind, place = frozen.values
        return Typed(frozen.kind, (kind, url if place == HERE else place))
    return frozen
