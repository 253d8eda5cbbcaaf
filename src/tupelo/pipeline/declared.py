"""Declared shapes: typed columns for entries of a declared shape.

A shape is declared as `"name string, size long"`, which fits tuples of two such fields and
dataclasses with fields of these names; or as a dataclass, `"module:Class"`, which fits its
instances and those of subclasses. Other entries have null there. `"any(name string, size long)"`
fits every entry: a field that an entry lacks, or has with another type, is null. The fields of a
tuple are `_1`, `_2`, ... there, and the type `json` fits every value.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import pyarrow as pa

from tupelo.errors import BadArgument
from tupelo.values.entry import Typed
from tupelo.values.kind import Kind, kind_of
from tupelo.values.text import as_json

_EXPECTED = '"name string, size long", "module:Class" or a dataclass'
_NAMED = re.compile(r"\s*(\w+)[\s:]\s*(\w+)\s*")
_ANY = re.compile(r"\s*any\((.*)\)\s*", re.DOTALL)
_SAME = {"bigint": "long", "int": "long", "integer": "long", "float": "double", "bool": "boolean"}
_JSON = "json"  # of any value
_ARROW: dict[str, tuple[pa.DataType, frozenset[type]]] = {
    "string": (pa.string(), frozenset({str, UUID, Decimal})),
    "long": (pa.int64(), frozenset({int})),
    "double": (pa.float64(), frozenset({float, int})),
    "boolean": (pa.bool_(), frozenset({bool})),
    "binary": (pa.binary(), frozenset({bytes})),
    "timestamp": (pa.timestamp("us", tz="UTC"), frozenset({datetime})),
    _JSON: (pa.string(), frozenset()),
}
_OF_PYTHON = {
    str: "string",
    UUID: "string",
    Decimal: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    bytes: "binary",
    datetime: "timestamp",
}
_OF_SHAPE = {cls.__name__: kind for cls, kind in _OF_PYTHON.items()}
_INT64 = range(-(2**63), 2**63)


@dataclasses.dataclass(frozen=True)
class Declared:
    """A declared shape: (name, type) of its fields, and the name of its class if it has one. If it
    `fits_all`, a field that an entry lacks is null."""

    fields: tuple[tuple[str, str], ...]
    name: str | None = None
    fits_all: bool = False

    @property
    def type(self) -> pa.DataType:
        return pa.struct([(name, _ARROW[kind][0]) for name, kind in self.fields])

    def column(self, values: list[Any]) -> pa.Array:
        """The typed columns of these entries, which are lists of fields, `Typed` or None."""
        places: dict[Any, list[int | None] | None] = {}
        absent: list[bool] = []
        columns: list[list[Any]] = [[] for _ in self.fields]
        for value in values:
            if type(value) is Typed:
                key: Any = (value.kind, *map(type, value.values))
                held: Any = value.values
            elif value is None:
                key, held = None, ()
            else:
                key, held = tuple(map(type, value)), value
            if key not in places:
                places[key] = self._places(value)
            found = places[key]
            absent.append(found is None)
            for column, place in zip(columns, found or [None] * len(columns), strict=True):
                column.append(None if place is None else held[place])
        arrays = [
            _array(column, kind) for column, (_, kind) in zip(columns, self.fields, strict=True)
        ]
        return pa.StructArray.from_arrays(
            arrays, fields=list(self.type), mask=pa.array(absent, pa.bool_())
        )

    def _places(self, value: Any) -> list[int | None] | None:
        """The positions of this shape's fields in such an entry; None if it does not fit."""
        if value is None:
            return None
        if self.fits_all:
            return self._lenient(value)
        if type(value) is Typed:
            held, places = value.values, self._named(value.kind)
        else:
            held = value
            fits = self.name is None and len(held) == len(self.fields)
            places = list(range(len(held))) if fits else None
        if places is None:
            return None
        for place, (_, kind) in zip(places, self.fields, strict=True):
            if place is not None and not _fits(held[place], kind):
                return None
        return places

    def _lenient(self, value: Any) -> list[int | None]:
        is_tuple = type(value) is not Typed
        held = value if is_tuple else value.values
        names = _tuple_names(len(held)) if is_tuple else value.kind.names
        places = {name: place for place, name in enumerate(names)}
        return [
            place if (place := places.get(name)) is not None and _fits(held[place], kind) else None
            for name, kind in self.fields
        ]

    def _named(self, kind: Kind) -> list[int | None] | None:
        names = kind.names
        if self.name is None:
            if not {name for name, _ in self.fields} <= set(names):
                return None
        elif self.name not in kind.lineage:
            return None
        return [names.index(name) if name in names else None for name, _ in self.fields]


def _fits(value: Any, kind: str) -> bool:
    return kind == _JSON or type(value) in _ARROW[kind][1] | {NoneType}


def _tuple_names(length: int) -> list[str]:
    return [f"_{place}" for place in range(1, length + 1)]


def fields_of(shapes: Iterable[str]) -> list[tuple[str, str]]:
    """The names and types of the fields of these shapes, such as "(str, int)" and "(size: int)".
    A field with different types in several shapes is double if they are numbers, and else json."""
    found: dict[str, set[str]] = {}
    for shape in sorted(shapes):
        parts = [part for part in shape[1:-1].split(", ") if part]
        for name, part in zip(_tuple_names(len(parts)), parts, strict=True):
            named, colon, kind = part.partition(": ")
            kinds = found.setdefault(named if colon else name, set())
            if (kind or named) != "None":
                kinds.add(_OF_SHAPE.get(kind or named, _JSON))
    return [(name, _joint(kinds)) for name, kinds in found.items()]


def _joint(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "double" if kinds == {"long", "double"} else _JSON


def typed(entry: str | type | Declared) -> Declared:
    """Parse a declaration."""
    if isinstance(entry, Declared):
        return entry
    if isinstance(entry, type):
        return _of_class(entry)
    if not isinstance(entry, str) or not entry.strip():
        raise BadArgument("entry", _EXPECTED, entry)
    if _names_class(entry):
        return _of_class(imported(entry))
    of_all = _ANY.fullmatch(entry)
    fields = []
    for part in (of_all[1] if of_all else entry).split(","):
        matched = _NAMED.fullmatch(part)
        kind = matched and _SAME.get(matched[2].lower(), matched[2].lower())
        if matched is None or kind not in _ARROW:
            raise BadArgument("entry", f"{_EXPECTED}, of the types {', '.join(_ARROW)}", entry)
        fields.append((matched[1], kind))
    if len(dict(fields)) != len(fields):
        raise BadArgument("entry", "fields of different names", entry)
    return Declared(tuple(fields), fits_all=of_all is not None)


def imported(entry: str) -> type:
    """Import the dataclass of "module:Class"."""
    expected = '"module:Class", a dataclass that can be imported'
    if not _names_class(entry):
        raise BadArgument("entry", expected, entry)
    module, _, name = entry.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BadArgument("entry", f"{expected} ({error})", entry) from error
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise BadArgument("entry", expected, entry)
    return found


def _names_class(entry: str) -> bool:
    return re.fullmatch(r"[\w.]+:[A-Za-z_][\w.]*", entry) is not None


def _of_class(cls: type) -> Declared:
    if not dataclasses.is_dataclass(cls):
        raise BadArgument("entry", _EXPECTED, cls)
    kind = kind_of(cls)
    hints = get_type_hints(cls)
    fields = []
    for name in kind.names:
        encoded = _OF_PYTHON.get(plain_type(hints[name]))
        if encoded is not None:  # Others are in `fields`, as JSON.
            fields.append((name, encoded))
    if not fields:
        raise BadArgument("entry", "a dataclass with fields such as str and int", cls)
    return Declared(tuple(fields), kind.name)


def plain_type(hint: Any) -> Any:
    """The other type in `int | None`."""
    if get_origin(hint) in (Union, UnionType):
        left = [part for part in get_args(hint) if part is not NoneType]
        return left[0] if len(left) == 1 else None
    return hint


def _array(column: list[Any], kind: str) -> pa.Array:
    convert = _CONVERT.get(kind)
    if convert is not None:
        column = [None if value is None else convert(value) for value in column]
    return pa.array(column, _ARROW[kind][0])


def _double(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of float
        return None


def _json(value: Any) -> str:
    """JSON, or the text itself of what is a text in JSON."""
    plain = as_json(value)
    return plain if type(plain) is str else msgspec.json.encode(plain).decode().strip('"')


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "string": str,
    _JSON: _json,
    "long": lambda value: value if value in _INT64 else None,
    "double": _double,
}
