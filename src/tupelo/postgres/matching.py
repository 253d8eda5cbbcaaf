"""Templates as SQL: which shapes can match, and which values at which places.

An entry is stored with the number of its shape and a key for each field. A template is bound to
each shape of the space, as in the engine; the types of all fields are part of the shape, so SQL
only compares keys of values of one type, and 1, 1.0 and True are never confused. What remains is
a check in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec

from tupelo.values.entry import Shape
from tupelo.values.parts import INDEXABLE
from tupelo.values.template import Check, Template, as_template

KEY_BYTES_MAX = 64
"""Longer keys are stored as their digest: an index holds short ones only."""

KEPT_MAX = 256
"""So many templates of plain values and types are kept in their compiled form."""

_PLAIN = frozenset({NoneType, bool, int, float, str, bytes, type})


def key_of(value: Any) -> bytes:
    """The key of a field: equal for equal values of one type, and for no others. Empty if no
    template asks for the value by its key."""
    cls = type(value)
    if cls not in INDEXABLE or value != value:  # NaN equals nothing
        return b""
    if cls is str:
        key = value.encode(errors="surrogatepass")  # A template may ask for what nobody can write.
    elif cls is bytes:
        key = value
    elif cls is UUID:
        key = value.bytes
    elif cls is datetime:
        key = _moment(value).encode()
    elif cls is float:
        key = repr(value + 0.0).encode()  # -0.0 equals 0.0
    elif cls is int and value.bit_length() > 64:
        key = hex(value).encode()  # Python refuses decimals of many digits.
    else:
        key = repr(value).encode()
    return b"=" + key if len(key) <= KEY_BYTES_MAX else b"#" + sha256(key).digest()


def keys_of(fields: Sequence[Any]) -> str:
    """The keys of all fields, as the server reads an array of bytes."""
    return array_of([key_of(value) for value in fields])


def array_of(values: Iterable[bytes | float | str | None]) -> str:
    """An array as the server reads it. The driver would take longer to make it than the server to
    store it."""
    return "{" + ",".join([_ITEMS[type(value)](value) for value in values]) + "}"


_ITEMS: dict[type, Callable[[Any], str]] = {
    bytes: lambda value: "\\\\x" + value.hex(),
    str: lambda value: '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"',
    int: str,
    float: str,
    NoneType: lambda value: "null",
}


def _moment(value: datetime) -> str:
    """Moments with an offset are equal if they are the same moment, others if they look alike."""
    offset = value.utcoffset()
    if offset is None:
        return value.replace(tzinfo=None, fold=0).isoformat()
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError:  # at the ends of the calendar
        return repr(value.replace(tzinfo=None) - datetime.min - offset)


class ShapeGroup(msgspec.Struct, frozen=True):
    """Shapes that are asked for the same keys at the same places."""

    shapes: tuple[int, ...]
    positions: tuple[int, ...]
    keys: tuple[bytes, ...]


class Targets(msgspec.Struct, frozen=True):
    """What a template asks of the first `known` shapes: groups for SQL, and a check for each shape
    that needs one."""

    known: int
    groups: tuple[ShapeGroup, ...]
    checks: dict[int, Check]

    @property
    def sole(self) -> ShapeGroup | None:
        """The only group, if it has one shape and SQL says all."""
        if len(self.groups) == 1 and len(self.groups[0].shapes) == 1 and not self.checks:
            return self.groups[0]
        return None


def targets_of(template: Template, shapes: Sequence[Shape]) -> Targets:
    """Bind a template to the shapes of a space, which are numbered from 1."""
    groups: dict[tuple[tuple[int, ...], tuple[bytes, ...]], list[int]] = {}
    checks: dict[int, Check] = {}
    for number, shape in enumerate(shapes, 1):
        binding = template.bind(shape)
        if binding is None:
            continue
        keys = tuple([key_of(value) for value in binding.values])
        groups.setdefault((binding.positions, keys), []).append(number)
        if binding.check is not None:
            checks[number] = binding.check
    found = tuple(ShapeGroup(tuple(those), *asked) for asked, those in groups.items())
    return Targets(len(shapes), found, checks)


class TemplatePlan:
    """A template, and the conditions that it sets for each shape of a space."""

    def __init__(self, template: object) -> None:
        self.template = as_template(template)
        self._targets: Targets | None = None

    def targets(self, shapes: Sequence[Shape]) -> Targets:
        found = self._targets
        if found is None or found.known != len(shapes):
            found = self._targets = targets_of(self.template, shapes)
        return found


class TemplatePlanCache:
    """Keeps the plans of templates, because programs use the same templates again and again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, tuple[type, ...]], TemplatePlan] = {}

    def of(self, template: object) -> TemplatePlan:
        if type(template) is not tuple:
            return TemplatePlan(template)
        types = tuple(map(type, template))  # (1,) and (1.0,) are equal.
        if not _PLAIN.issuperset(types):
            return TemplatePlan(template)
        found = self._kept.get((template, types))
        if found is None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            found = self._kept[template, types] = TemplatePlan(template)
        return found
