"""What goes over the network between a Jini service and its clients, as msgpack can hold it.

Entries travel with the names of their classes and fields, so a host keeps, matches and hands out
entries of classes that it does not know. `encode` is for the arguments of a call; how a host reads
each of them is in the table of its methods (`hosting`), by the readers that are here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec

from tupelo.errors import BadArgument, BadFrame
from tupelo.models.javaspaces.events import RemoteEvent
from tupelo.models.javaspaces.registry import ServiceEvent
from tupelo.models.javaspaces.services import (
    Attributes,
    Change,
    CompiledTemplate,
    Description,
    SentTemplate,
    known_here,
)
from tupelo.values.codec import BadBytes, decode_entry, encode_entry, encode_value, read_value
from tupelo.values.entry import Typed, freeze, shape_of, thaw, thaw_value
from tupelo.values.kind import kind_of
from tupelo.values.template import Template
from tupelo.values.template_encoding import template_to_wire

LIST_MAX = 100
"""So many attributes, templates, types or changes a client may give at a time."""

_EVENT = kind_of(RemoteEvent).name
_ATTRIBUTES = kind_of(ServiceEvent).names.index("attributes")


def encode(value: Any) -> Any:
    """An argument of a call: frozen values, templates, what a service is or must be, and lists of
    them."""
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
    """An argument of this type; BadArgument if it is of another."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadArgument(name, f"what the method takes ({error})", value) from None


def anything(value: Any) -> Any:
    """Any value: its classes must be known here."""
    return thaw_value(frozen(value))


def frozen(value: Any) -> Any:
    """Any value, as a space keeps it; its classes need not be known here."""
    try:
        return read_value(value)
    except BadBytes as error:
        raise BadArgument("args", f"values ({error})", type(value).__name__) from None


def attributes(value: Any) -> Attributes:
    """Attributes as they are kept; their classes need not be known."""
    read = [frozen(one) for one in convert(value, _Values)]
    if not all(type(one) is Typed for one in read):
        raise BadArgument("attributes", "entries: instances of dataclasses", value)
    return tuple(read)


def description(value: Any) -> Description:
    parts = convert(value, tuple[Annotated[str, msgspec.Meta(max_length=1_000)], Any, _Types, Any])
    service_id, service, types, entries = parts
    above = {name: frozenset(names) for name, names in types.items()}
    return Description(service_id, SentTemplate(frozen(service)), above, attributes(entries))


def wanted(value: Any) -> CompiledTemplate:
    service_id, types, asked, kinds = convert(
        value, tuple[Text | None, Texts, Any, list[Text | None]]
    )
    read = templates(asked)
    if len(read) != len(kinds):
        raise BadArgument("template", "the name of a class for each attribute", kinds)
    return CompiledTemplate(service_id, frozenset(types), read, kinds)


def templates(value: Any) -> list[Template]:
    read = convert(value, _Values)
    if not all(isinstance(one, Template) for one in read):
        raise BadArgument("template", "templates of entries", "another")
    return list(read)


def changes(value: Any) -> list[Change]:
    read = [frozen(one) for one in convert(value, _Values)]
    if not all(one is None or type(one) is dict for one in read):
        raise BadArgument("changes", "values of fields by name", value)
    return read


def sources(value: Any) -> list[tuple[str, int]]:
    """The sources and ids of events."""
    return list(convert(value, _Sources))


# Events


def encode_event(event: RemoteEvent) -> bytes:
    """An event, for a program elsewhere. BadEntry if it holds what is no value."""
    shape, fields = freeze(event)
    if isinstance(event, ServiceEvent) and event.after is not None and shape.kind is not None:
        # With the attributes that this program has no classes for.
        fields = (*fields[:_ATTRIBUTES], event.after.attributes, *fields[_ATTRIBUTES + 1 :])
        shape = shape_of(shape.kind, tuple(map(type, fields)))
    return encode_entry(shape, fields)


def decode_event(payload: Any) -> RemoteEvent:
    """The event. UnknownType if it cannot be built here; attributes of services that cannot be are
    left out."""
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
    """Bytes that encode an event, whether its classes are known or not; its source and its id."""
    try:
        shape, fields = decode_entry(payload)
    except (BadBytes, TypeError) as error:
        raise BadArgument("event", f"an event ({error})", type(payload).__name__) from None
    if shape.kind is None or _EVENT not in shape.kind.lineage:
        raise BadArgument("event", "a RemoteEvent", "another entry")
    named = dict(zip(shape.kind.names, fields, strict=True))
    source, event_id = named.get("source"), named.get("event_id")
    if type(source) is not str or type(event_id) is not int:
        raise BadArgument("event", "a RemoteEvent with a source and an id", "another")
    return payload, source, event_id
