"""Entries: fields with an identity and a lease, and the closed set of values a field may hold.

`freeze` turns what a user wrote into what a space keeps (checked, and copied where it could
change); `thaw` turns it back into an object of the reader's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from tupelo.errors import BadEntry
from tupelo.values.kind import Kind, build, class_of, is_typed, kind_of, values_of

SCALARS = frozenset({NoneType, bool, int, float, str, bytes, datetime, UUID, Decimal})
NATIVE = frozenset({NoneType, bool, int, float, str, bytes})
DEPTH_MAX = 64


class Shape(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """What entries that can be matched alike have in common: their kind and field types.

    `flat` shapes hold immutable scalars only, so there is nothing to copy; `plain` ones are flat
    tuples, so there is nothing to build either. `native` ones hold only scalars that msgpack can
    tell apart.
    """

    kind: Kind | None
    types: tuple[type, ...]
    plain: bool
    native: bool
    flat: bool


class Typed(msgspec.Struct, frozen=True, eq=False):
    """A dataclass instance inside a field, as it is kept."""

    kind: Kind
    values: tuple[Any, ...]


class Entry(msgspec.Struct, gc=False, eq=False):
    """One entry of a space. `arrival` orders it in its space; (`origin`, `n`) names it anywhere.

    `gone` entries have left their store. `txn` is the transaction that wrote it (not gone) or
    took it (gone) and has not ended; `readers` are the transactions that hold it by reading. `to`
    is the agent that it is for, if it is for one.

    The garbage collector does not look into entries, so they refer to nothing that refers back to
    them, but for a transaction while it lasts.
    """

    fields: tuple[Any, ...]
    shape: Shape
    origin: str
    n: int
    arrival: int
    expires: float | None = None
    gone: bool = False
    txn: Any = None
    readers: set[Any] | None = None
    to: str | None = None

    @property
    def ended(self) -> bool:
        return self.gone and self.txn is None

    @property
    def value(self) -> Any:
        """What a reader gets: see `thaw`."""
        return thaw(self.shape, self.fields)


SHAPES_MAX = 4_096
"""So many shapes are kept at hand, though nothing may be of them any more."""
SHAPE_TYPES_MAX = 64
"""Shapes of entries with more fields than this are not kept at hand."""

plain_shapes: dict[tuple[type, ...], Shape] = {}
_shapes_at_hand: dict[tuple[Kind | None, tuple[type, ...]], Shape] = {}
# All that are in use. Other programs choose what entries look like, so what nobody uses is let go.
_shapes: WeakValueDictionary[tuple[Kind | None, tuple[type, ...]], Shape] = WeakValueDictionary()


def types_of(fields: tuple[Any, ...]) -> tuple[type, ...]:
    """The types of the fields. Written out for short entries, which halves what it costs."""
    length = len(fields)
    if length == 4:
        a, b, c, d = fields
        return type(a), type(b), type(c), type(d)
    if length == 3:
        a, b, c = fields
        return type(a), type(b), type(c)
    if length == 2:
        a, b = fields
        return type(a), type(b)
    return tuple(map(type, fields))


def shape_of(kind: Kind | None, types: tuple[type, ...]) -> Shape:
    """The one Shape object for this kind and these field types."""
    return _shapes_at_hand.get((kind, types)) or _find_shape(kind, types)


def _find_shape(kind: Kind | None, types: tuple[type, ...]) -> Shape:
    key = (kind, types)
    shape = _shapes.get(key)
    if shape is None:
        flat = SCALARS.issuperset(types)
        plain = flat and kind is None
        shape = Shape(kind, types, plain, plain and NATIVE.issuperset(types), flat)
    if len(types) <= SHAPE_TYPES_MAX:
        if len(_shapes_at_hand) >= SHAPES_MAX:
            _shapes_at_hand.clear()
            plain_shapes.clear()
        shape = _shapes_at_hand.setdefault(key, shape)  # Another thread may have been faster.
        if shape.plain:
            plain_shapes[types] = shape
    _shapes[key] = shape
    return shape


def freeze(entry: object) -> tuple[Shape, tuple[Any, ...]]:
    """Check an entry and copy what could change. BadEntry names the field that does not fit."""
    if type(entry) is tuple:
        shape = plain_shapes.get(types_of(entry))
        if shape is not None:
            return shape, entry
        fields = tuple([freeze_value(v, f"field {i}", 1) for i, v in enumerate(entry)])
        return shape_of(None, tuple(map(type, fields))), fields
    if is_typed(entry):
        kind = kind_of(type(entry))
        fields = tuple(
            [
                freeze_value(v, f"field {name!r}", 1)
                for name, v in zip(kind.names, values_of(entry), strict=True)
            ]
        )
        return shape_of(kind, tuple(map(type, fields))), fields
    hint = "; write tuple(entry)" if isinstance(entry, (list, tuple)) else ""
    raise BadEntry(
        f"an entry is a tuple or an instance of a dataclass, not {type(entry).__name__}{hint}",
        found=type(entry),
    )


def freeze_value(value: Any, where: str, depth: int) -> Any:
    """One value of the closed set, as it is kept; `where` is its path for the error."""
    cls = type(value)
    if cls in SCALARS:
        return value
    if depth > DEPTH_MAX:
        raise BadEntry(f"{where} is nested deeper than {DEPTH_MAX} levels", where=where, found=cls)
    if cls is tuple:
        return tuple([freeze_value(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)])
    if cls is list:
        return [freeze_value(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if cls is dict:
        return {
            _freeze_key(k, where, depth): freeze_value(v, f"{where}[{k!r}]", depth + 1)
            for k, v in value.items()
        }
    if is_typed(value):
        kind = kind_of(cls)
        return Typed(
            kind,
            tuple(
                [
                    freeze_value(v, f"{where}.{name}", depth + 1)
                    for name, v in zip(kind.names, values_of(value), strict=True)
                ]
            ),
        )
    raise BadEntry(
        f"{where} is a {cls.__module__}.{cls.__qualname__}, which is not a value: use None, bool, "
        "int, float, str, bytes, datetime, UUID, Decimal, tuple, list, dict or a dataclass",
        where=where,
        found=cls,
    )


def _freeze_key(key: Any, where: str, depth: int) -> Any:
    if type(key) in SCALARS:
        return key
    if type(key) is tuple and depth < DEPTH_MAX:
        return tuple([_freeze_key(k, where, depth + 1) for k in key])
    raise BadEntry(
        f"a key of {where} is a {type(key).__qualname__}: keys are scalars or tuples of them",
        where=where,
        found=type(key),
    )


def require_known(entry: Entry) -> None:
    """UnknownType, before anything is done, if the entry cannot be built in this program."""
    if entry.shape.kind is not None:
        class_of(entry.shape.kind)
    for value in entry.fields:
        _require_known_value(value)


def _require_known_value(value: Any) -> None:
    cls = type(value)
    if cls is Typed:
        class_of(value.kind)
        for inner in value.values:
            _require_known_value(inner)
    elif cls is tuple or cls is list:
        for inner in value:
            _require_known_value(inner)
    elif cls is dict:
        for inner in value.values():
            _require_known_value(inner)


def thaw(shape: Shape, fields: tuple[Any, ...], stand_ins: bool = False) -> Any:
    """What a reader gets: a tuple, or an instance of the entry's class; the reader's own copy.
    With `stand_ins`, a class that is not known here has a stand-in: see `kind.stand_in`."""
    if shape.plain:
        return fields
    values = fields if shape.flat else tuple([thaw_value(value, stand_ins) for value in fields])
    return values if shape.kind is None else build(shape.kind, values, stand_ins)


def thaw_value(value: Any, stand_ins: bool = False) -> Any:
    cls = type(value)
    if cls in SCALARS:
        return value
    if cls is tuple:
        return tuple([thaw_value(v, stand_ins) for v in value])
    if cls is list:
        return [thaw_value(v, stand_ins) for v in value]
    if cls is dict:
        return {k: thaw_value(v, stand_ins) for k, v in value.items()}
    return build(value.kind, tuple([thaw_value(v, stand_ins) for v in value.values]), stand_ins)


def same(a: Any, b: Any) -> bool:
    """The same type and the same value, all the way down. NaN is the same as nothing."""
    cls = type(a)
    if cls is not type(b):
        return False
    if cls is tuple or cls is list:
        return len(a) == len(b) and all(map(same, a, b))
    if cls is dict:
        if len(a) != len(b):
            return False
        typed_keys = {(type(k), k): v for k, v in b.items()}
        # A dict finds NaN by identity, but it is the same as nothing.
        return all(
            (type(k), k) in typed_keys and same(k, k) and same(v, typed_keys[type(k), k])
            for k, v in a.items()
        )
    if cls is Typed:
        return a.kind.name == b.kind.name and same(a.values, b.values)
    if cls is Decimal and (a.is_nan() or b.is_nan()):
        return False  # Comparing a signalling NaN raises.
    return bool(a == b)


_IDENTITY_BYTES = 128
"""What an entry is known by, beside its fields."""


def about_bytes(value: Any) -> int:
    cls = type(value)
    if cls is str or cls is bytes:
        return len(value)
    if cls is tuple or cls is list:
        return 8 + sum(map(about_bytes, value))
    if cls is dict:
        return 8 + sum(map(about_bytes, value)) + sum(map(about_bytes, value.values()))
    return 8


def fitting(entries: Iterable[Entry], bytes_max: int | None) -> tuple[list[Entry], bool]:
    """The first of these entries, as many as have room in so many bytes but one at least; and
    whether there are more."""
    if bytes_max is None:
        return list(entries), False
    found: list[Entry] = []
    for entry in entries:
        bytes_max -= about_bytes(entry.fields) + _IDENTITY_BYTES
        if bytes_max < 0 and found:
            return found, True
        found.append(entry)
    return found, False
