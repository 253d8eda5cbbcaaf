"""Entries and templates by the specification, and entries of classes that are not known here.

An entry is an instance of a dataclass. In a template, None matches anything, and any other value
what is exactly equal to it. Tupelo's own templates look into tuples and dataclasses inside a field,
and take None in a nested dataclass for a wildcard; a template here does neither. Parts such as
`Between(1, 3)` keep their meaning.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, get_origin

from tupelo.errors import BadArgument, BadEntry, BadTemplate, UnknownType
from tupelo.values.entry import SCALARS, freeze, freeze_value, thaw
from tupelo.values.kind import Kind, class_of, is_typed, kind_of, values_of
from tupelo.values.parts import ANY, Equal, NestedTyped, OfKind, Part, as_part
from tupelo.values.template import Template, as_template

logger = logging.getLogger("tupelo")

_usable: set[type] = set()  # classes that declare all their fields


class Snapshot:
    """A copy of an entry, checked and compiled once and used in its place; changes of the entry do
    not reach it. Of None it is a template that matches anything."""

    __slots__ = ("entry", "template")

    def __init__(self, entry: Any) -> None:
        self.entry: Any = None
        self.template: Any = ANY
        if entry is None:
            pass
        elif is_typed(entry):
            require_fields(entry)
            self.entry = thaw(*freeze(entry))
            self.template = as_template(exact(self.entry))
        else:
            raise BadArgument("entry", "an instance of a dataclass, or None", entry)

    def __repr__(self) -> str:
        return f"Snapshot({self.entry!r})"


def check_entry(entry: Any) -> Any:
    """What is written. BadEntry if it is no entry, or would lose fields."""
    if type(entry) in _usable:
        return entry
    if isinstance(entry, Snapshot) and entry.entry is not None:
        return entry.entry
    if not is_typed(entry):
        what = "an instance of a dataclass, or a snapshot of one"
        raise BadEntry(f"entry= must be {what}, not {entry!r}", found=type(entry))
    require_fields(entry)
    return entry


def check_template(template: Any) -> Any:
    """What is asked of the space."""
    if type(template) in _usable:
        return exact(template)
    if template is None:
        return ANY
    if isinstance(template, Snapshot):
        return template.template
    if isinstance(template, (tuple, list)):
        what = "an entry, a snapshot of one or None"
        raise BadTemplate(f"template= must be {what}, not {template!r}")
    if is_typed(template):
        require_fields(template)
        return exact(template)
    return template


def check_templates(templates: Any, name: str = "templates") -> Template:
    """What matches any of them."""
    if not isinstance(templates, (list, tuple)) or not templates:
        raise BadArgument(name, "a list of one or more templates", templates)
    return Template.any_of(map(check_template, templates))


def exact(template: Any) -> Any:
    """A template whose values are compared as a whole. Without values that have parts it is the
    entry itself, for which a space has a plan."""
    values = values_of(template)
    if SCALARS.issuperset(map(type, values)):
        return template
    parts = {
        name: _exact_part(value, name)
        for name, value in zip(kind_of(type(template)).names, values, strict=True)
        if value is not None and value is not ANY
    }
    return Template(NestedTyped(type(template), parts))


def _exact_part(value: Any, name: str) -> Part:
    try:
        return Equal(freeze_value(value, name, 1))
    except BadEntry:  # It has a type, or a part such as Between, in it.
        return as_part(value, f"field {name!r}")


def require_fields(entry: Any) -> None:
    """BadEntry if its class has fields that @dataclass does not know: they would be lost."""
    cls = type(entry)
    if cls in _usable:
        return
    names = kind_of(cls).names
    lost = [
        name
        for base in cls.__mro__
        if hasattr(base, "__dataclass_fields__") and "__dataclass_fields__" not in vars(base)
        for name, hint in vars(base).get("__annotations__", {}).items()
        if name not in names and not _is_class_variable(hint)
    ]
    declared = "__dataclass_fields__" in vars(cls)
    if not declared:
        lost += [name for name in getattr(entry, "__dict__", ()) if name not in names]
    if lost:
        raise BadEntry(
            f"the fields {', '.join(dict.fromkeys(lost))} of the class {cls.__name__} would be "
            f"lost: put @dataclass above {cls.__name__}, and above the entry classes it extends",
            found=cls,
        )
    if declared:  # Instances of other classes may still get attributes that no class declares.
        _usable.add(cls)


def _is_class_variable(hint: Any) -> bool:
    if isinstance(hint, str):
        return hint.replace("typing.", "").startswith("ClassVar")
    return hint is ClassVar or get_origin(hint) is ClassVar


class UnknownKinds:
    """The kinds of entries that a program came upon and has no class for. They are passed over,
    and stay in the space, until the class is known."""

    def __init__(self, space: str) -> None:
        self._space = space
        self._kinds: list[Kind] = []

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add(self, error: UnknownType) -> None:
        """Pass such entries over from now on. The error itself, if that was to be done already."""
        if any((kind.name, kind.names) == (error.name, error.fields) for kind in self._kinds):
            raise error
        logger.warning("an entry of the space %r is passed over: %s", self._space, error)
        self._kinds.append(Kind(error.name, error.fields, (error.name,)))

    def left_out_of(self, template: Any) -> Any:
        """The template, but for entries of these kinds."""
        for kind in list(self._kinds):
            try:
                class_of(kind)
                self._kinds.remove(kind)
            except UnknownType:
                template = as_template(template) & ~Template(OfKind(kind.name, kind.names))
        return template
