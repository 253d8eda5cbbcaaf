"""Entries: fields with an identity and a lease, and the closed set of values that a field may hold.

`freeze` converts a user's entry to its stored form (checked, and copied where it is mutable);
`thaw` converts the stored form to a new object for the reader.
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

from tupelo.errors import BadArgument, BadEntry
from tupelo.values.kind import Kind, build, class_of, is_typed, kind_of, values_of

SCALARS = frozenset({NoneType, bool, int, float, str, bytes, datetime, UUID, Decimal})
NATIVE = frozenset({NoneType, bool, int, float, str, bytes})
DEPTH_MAX = 64


class Shape(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The kind and field types that entries have in common; entries of one shape are matched alike.

    A `flat` shape has immutable scalars only, so nothing is copied; a `plain` one is a flat tuple,
    so no object is built either. A `native` one has only scalars that msgpack can tell apart.
    """

    kind: Kind | None
    types: tuple[type, ...]
    plain: bool
    native: bool
    flat: bool


FrozenEntry = tuple[Shape, tuple[Any, ...]]
"""The shape and the immutable fields of an entry that is not in a space yet."""


class Typed(msgspec.Struct, frozen=True, eq=False):
    """The stored form of a dataclass instance inside a field."""

    kind: Kind
    values: tuple[Any, ...]


DELIVERIES_MAX = 2**31 - 1
"""The count of an entry's deliveries stops here."""


class Entry(msgspec.Struct, gc=False, eq=False):
    """One entry of a space. `arrival` orders it in its space; (`origin`, `n`) identifies it
    anywhere.

    A `gone` entry has left its store. `txn` is the open transaction that wrote it (not gone) or
    took it (gone); `readers` are the transactions that hold a read lock. `to` is the agent that it
    is for. `deliveries` counts how often it was taken and came back. A delayed entry is gone until
    it becomes `visible`; `delayed` is the arrival that it has until then.

    The garbage collector does not track entries, so they must not be part of reference cycles,
    except with a transaction while it is open.
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
    deliveries: int = 0
    visible: float | None = None
    delayed: int | None = None

    @property
    def ended(self) -> bool:
        return self.gone and self.txn is None and self.visible is None

    def count_delivery(self) -> None:
        """Count that the entry was taken and came back."""
        self.deliveries = min(self.deliveries + 1, DELIVERIES_MAX)

    @property
    def value(self) -> Any:
        """The entry as a read returns it: see `thaw`."""
        return thaw(self.shape, self.fields)

    def __repr__(self) -> str:
        kind = "" if self.shape.kind is None else self.shape.kind.name
        return f"<entry {kind}{self.fields!r}>"


class About(msgspec.Struct, frozen=True):
    """What a space knows about an entry that a read or take has returned, beside its fields.

    (`origin`, `n`) identifies the entry anywhere; `expires` is the end of its lease, on the clock
    of its space. `deliveries` counts how often it was taken before and came back, because its
    taker was lost or its transaction was aborted: 0 at the first attempt.
    """

    origin: str
    n: int
    expires: float | None
    deliveries: int


def note_about(entries: Iterable[Entry], about: list[About] | None) -> None:
    """Add an About for each of these entries to the list of the argument `about=`, if given."""
    if about is not None:
        about += [About(e.origin, e.n, e.expires, e.deliveries) for e in entries]


def check_about(about: object) -> None:
    if about is not None and not isinstance(about, list):
        raise BadArgument("about", "a list that is filled, or None", about)


SHAPES_MAX = 4_096
"""Size of the cache of shapes, which also keeps unused ones."""
SHAPE_TYPES_MAX = 64
"""Shapes with more fields than this are not cached."""

plain_shapes: dict[tuple[type, ...], Shape] = {}
_shapes_at_hand: dict[tuple[Kind | None, tuple[type, ...]], Shape] = {}
# All shapes in use. Other programs choose the shapes of their entries, so unused ones must not be
# kept.
_shapes: WeakValueDictionary[tuple[Kind | None, tuple[type, ...]], Shape] = WeakValueDictionary()


def types_of(fields: tuple[Any, ...]) -> tuple[type, ...]:
    """The types of the fields. Unrolled for short entries, which halves the cost."""
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


def freeze(entry: object) -> FrozenEntry:
    """Check an entry and copy mutable values. Raises BadEntry, which names the wrong field."""
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
    """The stored form of one value; `where` is its path for the error message."""
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
    """Raise UnknownType if this program does not have the entry's class."""
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
    """A new tuple or dataclass instance for the reader. With `stand_ins`, an unknown class is
    replaced by a stand-in: see `kind.stand_in`."""
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
    """Whether two values have the same types and values at every depth. NaN never does."""
    cls = type(a)
    if cls is not type(b):
        return False
    if cls is tuple or cls is list:
        return len(a) == len(b) and all(map(same, a, b))
    if cls is dict:
        if len(a) != len(b):
            return False
        typed_keys = {(type(k), k): v for k, v in b.items()}
        # A dict finds NaN by identity, but NaN must not equal itself.
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
"""Estimated size of an entry's identity."""


def about_bytes(value: Any) -> int:
    cls = type(value)
    if cls is tuple or cls is list:
        size = 8
        for item in value:  # Most have no items of their own, and need no call.
            of = type(item)
            if of is str or of is bytes:
                size += len(item)
            else:
                size += 8 if of in SCALARS else about_bytes(item)
        return size
    if cls is str or cls is bytes:
        return len(value)
    if cls is dict:
        return 8 + sum(map(about_bytes, value)) + sum(map(about_bytes, value.values()))
    return 8


def fitting(entries: Iterable[Entry], bytes_max: int | None) -> tuple[list[Entry], bool]:
    """As many of the first entries as fit into `bytes_max`, but at least one; and whether any were
    left out."""
    if bytes_max is None:
        return list(entries), False
    found: list[Entry] = []
    for entry in entries:
        bytes_max -= about_bytes(entry.fields) + _IDENTITY_BYTES
        if bytes_max < 0 and found:
            return found, True
        found.append(entry)
    return found, False
