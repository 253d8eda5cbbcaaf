"""Events: what is in a heap, and how it is asked for.

Any entry is an event: a dataclass of the user's own is one with a type and typed, named fields, and
so is whatever another door writes in the space of the heap's name. `Event("stroke", x=1, y=2)` is
an event for which nobody has declared a class.

It is kept as a typed entry of two fields: its type, which an index finds, and a dict of the others.
So every door sees it as one kind of entry: `Named(type="stroke")` finds it in Linda, and an `Event`
whose fields are None in JavaSpaces. (As a tuple of names and values it could only be matched by
those who know all its fields; as a class made on the spot it could not be built elsewhere.) Its own
fields are compared event by event, among those of its type: where there are very many, a dataclass
is the better choice, whose fields have indexes.

A template may name fewer fields than an event has. What is asked of a field is a value, a type or a
part of a template; `ANY` asks that there is such a field. None is a value like any other, except
as a type, where it means any.
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
        if not isinstance(self.fields, dict):  # As another door asks for it.
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
