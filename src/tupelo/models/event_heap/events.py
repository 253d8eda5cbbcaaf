"""Events: the entries of a heap, and the templates for them.

Any entry in the space of the heap's name is an event, whichever API wrote it. A user's dataclass is
an event with a type and typed fields. `Event("stroke", x=1, y=2)` is an event without a declared
class.

An Event is stored as a typed entry of two fields: its type, which has an index, and a dict of its
fields. So all APIs see Events as one kind of entry: `Named(type="stroke")` finds this one in Linda,
and an `Event` whose fields are None finds it in JavaSpaces. (A tuple of names and values could only
be matched by readers that know all its fields; a class made at run time could not be built in
another program.) The fields in the dict have no index: they are compared event by event, among the
events of the same type. Where there are many, a dataclass is faster.

A template may name fewer fields than an event has. A field of a template is a value, a type or a
part of a template; `ANY` requires that the field exists. None is a value like any other, except as
a type, where it matches any type.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from tupelo.errors import BadArgument, BadTemplate
from tupelo.federation.replication.copies import BatchRecord, Signed, StreamProgress
from tupelo.space.waiting import Items
from tupelo.values.entry import freeze
from tupelo.values.kind import entry, is_typed, values_of
from tupelo.values.parts import ANY, INDEXABLE, AnyPart, Part, as_part
from tupelo.values.template import Template, as_template

TEMPLATES_MAX = 1_024
"""Most compiled templates that are cached."""


@entry("tupelo.event")
@dataclass(init=False)
class Event:
    """An event, or a template for events, of this type and with these fields."""

    type: Any
    fields: Any

    def __init__(self, type: Any, /, **fields: Any) -> None:
        self.type = type
        self.fields = fields

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __repr__(self) -> str:
        if not isinstance(self.fields, dict):  # A template of another API.
            return f"<an event {self.type!r} with the fields {self.fields!r}>"
        fields = "".join(f", {name}={value!r}" for name, value in self.fields.items())
        return f"Event({self.type!r}{fields})"


class HasFields(Part):
    """Matches a dict that has these keys, with matching values."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.parts = {name: as_part(raw, f"field {name!r}") for name, raw in fields.items()}

    def matches(self, value: Any) -> bool:
        return type(value) is dict and all(
            name in value and part.matches(value[name]) for name, part in self.parts.items()
        )

    def fits(self, cls: type) -> bool:
        return cls is dict

    def __repr__(self) -> str:
        return f"HasFields({self.parts!r})"


def freeze_all(events: object) -> Items:
    if isinstance(events, (str, bytes, dict)) or not isinstance(events, Iterable):
        raise BadArgument("events", "a list of events", events)
    return [freeze(event) for event in events]


class BothMatch:
    """Matches events that match both templates."""

    def __init__(self, one: object, other: object) -> None:
        self.one = one
        self.other = other


# A durable host keeps records of its own between its copies.
_EVENTS = ~(as_template(BatchRecord) | as_template(StreamProgress) | as_template(Signed))
_templates: dict[Hashable, Template] = {}


def event_template(template: object) -> Template:
    """Compile a user's template for the copies. Equal templates return the same object, so that a
    reader can remember its position by template."""
    if template is ANY:
        return _EVENTS
    if isinstance(template, BothMatch):
        return event_template(template.one) & event_template(template.other)
    key = _key(template)
    found = None if key is None else _templates.get(key)
    if found is None:
        found = _compiled(template)
        if key is not None:
            if len(_templates) >= TEMPLATES_MAX:
                _templates.clear()
            _templates[key] = found
    return found


def _key(template: object) -> Hashable:
    """Cache key of a template; None if it cannot be cached."""
    if type(template) is Event and isinstance(template.fields, dict):
        names: tuple[str, ...] = ("type", *template.fields)
        values = (template.type, *template.fields.values())
    elif type(template) is tuple:
        names, values = (), template
    elif is_typed(template):
        names, values = (), values_of(template)
    else:
        return template if isinstance(template, (type, Template)) else None
    kinds = tuple(map(type, values))
    if not all(kind in INDEXABLE or kind is type or kind is AnyPart for kind in kinds):
        return None
    return type(template), names, kinds, values


def _compiled(template: object) -> Template:
    if type(template) is Event:
        if not isinstance(template.fields, dict):
            raise BadTemplate("an Event is asked for by its type and named fields")
        raw: Any = Event(template.type)
        raw.fields = HasFields(template.fields) if template.fields else ANY
        return as_template(raw)
    return as_template(template) & _EVENTS
