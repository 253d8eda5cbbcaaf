"""Templates: conditions on entries.

A template is a tuple, a dataclass instance or class, `ANY`, `Named(...)`, or a `Template` combined
by `&`, `|` and `~`. Its fields are values (same type and value), types (which match subclasses) or
parts: `ANY`, `Between`, `Prefix`, `Suffix`, `Regex`, `OneOf`, `Not`, `Where`, `Exactly`, nested
tuples and dataclasses.

A template is compiled once for each shape (`bind`); what remains to be tested for each entry are a
few values at known positions, which an index can find, and perhaps a check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any

import msgspec

from tupelo.errors import BadTemplate, UnknownType
from tupelo.values.entry import SCALARS, Shape, Typed, freeze, thaw
from tupelo.values.kind import is_typed, name_of
from tupelo.values.parts import (
    ANY,
    INDEXABLE,
    AnyPart,
    Both,
    Equal,
    Exactly,
    Nested,
    NestedTyped,
    Not,
    OfKind,
    OfType,
    OneOf,
    Part,
    Where,
    as_part,
    is_kind,
)

Check = Callable[[tuple[Any, ...]], bool]


class Binding(msgspec.Struct, frozen=True, eq=False):
    """A template compiled for one shape: values at positions, then a check."""

    positions: tuple[int, ...] = ()
    values: tuple[Any, ...] = ()
    check: Check | None = None

    def test(self, fields: tuple[Any, ...]) -> bool:
        for position, value in zip(self.positions, self.values, strict=True):
            if fields[position] != value:
                return False
        return self.check is None or self.check(fields)


ALL = Binding()


class Named:
    """Every typed entry with these field values, of any class: `Named(name="resize")`."""

    def __init__(self, **fields: Any) -> None:
        if not fields:
            raise BadTemplate("Named() needs at least one field")
        self.fields = {name: as_part(raw, f"field {name!r}") for name, raw in fields.items()}

    def __repr__(self) -> str:
        return f"Named({', '.join(f'{name}={part!r}' for name, part in self.fields.items())})"


def _kept(raw: Any) -> Any:
    """A copy of mutable parts, which the caller could change later."""
    if type(raw) is tuple:
        return tuple([_kept(part) for part in raw])
    if type(raw) is list:
        return [_kept(part) for part in raw]
    if type(raw) is dict:
        return {key: _kept(part) for key, part in raw.items()}
    return raw


class Template:
    """A compiled template, to be used often; combine with `&`, `|` and `~`."""

    __slots__ = ("_bind_shape", "_bindings", "_cost", "raw")
    _bind_shape: Callable[[Shape], Binding | None]

    def __init__(self, raw: Any) -> None:
        self.raw = raw = _kept(raw)
        self._bind_shape = _compile(raw)
        self._bindings: dict[Shape, Binding | None] = {}
        self._cost = 0

    @property
    def cost(self) -> int:
        """The largest number of comparisons for one entry."""
        if not self._cost:
            self._cost = _cost(self.raw)
        return self._cost

    def bind(self, shape: Shape) -> Binding | None:
        """The conditions that remain for entries of this shape; None if none of them can match."""
        try:
            return self._bindings[shape]
        except KeyError:
            binding = self._bindings[shape] = self._bind_shape(shape)
            return binding

    def matches(self, entry: Any) -> bool:
        """Whether this entry matches."""
        return self.admits(*freeze(entry))

    def admits(self, shape: Shape, fields: tuple[Any, ...]) -> bool:
        """Whether an entry with this shape and these fields matches."""
        binding = self.bind(shape)
        return binding is not None and binding.test(fields)

    def __and__(self, other: Any) -> Template:
        return Template(AllOf(self, as_template(other)))

    def __or__(self, other: Any) -> Template:
        return Template(AnyOf(self, as_template(other)))

    def __rand__(self, other: Any) -> Template:
        return as_template(other) & self

    def __ror__(self, other: Any) -> Template:
        return as_template(other) | self

    def __invert__(self) -> Template:
        return Template(NoneOf(self))

    @staticmethod
    def any_of(templates: Iterable[Any]) -> Template:
        """A template that matches if at least one of these does."""
        return Template(AnyOf(*map(as_template, templates)))

    def __repr__(self) -> str:
        return f"Template({self.raw!r})"


class Combined:
    """A combination of templates by `&`, `|` and `~`."""

    def __init__(self, *parts: Template) -> None:
        self.parts = parts

    def bind(self, shape: Shape) -> Binding | None:
        raise NotImplementedError


class AllOf(Combined):
    def bind(self, shape: Shape) -> Binding | None:
        a, b = (part.bind(shape) for part in self.parts)
        if a is None or b is None:
            return None
        checks = [binding.check for binding in (a, b) if binding.check is not None]
        return Binding(a.positions + b.positions, a.values + b.values, _all(checks))

    def __repr__(self) -> str:
        return " & ".join(map(repr, self.parts))


class AnyOf(Combined):
    def bind(self, shape: Shape) -> Binding | None:
        found = [b for part in self.parts if (b := part.bind(shape)) is not None]
        if len(found) < 2:
            return found[0] if found else None
        if ALL in found:
            return ALL
        return Binding(check=lambda fields: any(b.test(fields) for b in found))

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))


class NoneOf(Combined):
    def bind(self, shape: Shape) -> Binding | None:
        binding = self.parts[0].bind(shape)
        if binding is None:
            return ALL
        return None if binding is ALL else Binding(check=lambda fields: not binding.test(fields))

    def __repr__(self) -> str:
        return f"~{self.parts[0]!r}"


def _cost(raw: Any) -> int:
    if isinstance(raw, Combined):
        return 1 + sum(part.cost for part in raw.parts)
    if isinstance(raw, Named):
        return 1 + sum(part.cost for part in raw.fields.values())
    return as_part(raw, "field").cost


def as_template(raw: Any) -> Template:
    return raw if isinstance(raw, Template) else Template(raw)


def _compile(raw: Any) -> Callable[[Shape], Binding | None]:
    if isinstance(raw, Combined):
        return raw.bind
    if isinstance(raw, Named):
        return lambda shape: _bind_named(raw.fields, shape)
    if isinstance(raw, (tuple, Part, type, UnionType)) or is_typed(raw):
        return _bind_whole(as_part(raw, "field"))
    hint = "; write tuple(template)" if isinstance(raw, list) else ""
    raise BadTemplate(
        "a template is a tuple, a dataclass instance or class, ANY, Named(...), Where(...) or a "
        f"Template, not {type(raw).__name__}{hint}"
    )


def _bind_whole(part: Part) -> Callable[[Shape], Binding | None]:
    """Convert a part that is used as a whole template."""
    match part:
        case AnyPart():
            return lambda shape: ALL
        case Nested(parts=parts):
            return lambda shape: (
                _bind(enumerate(parts), shape)
                if shape.kind is None and len(shape.types) == len(parts)
                else None
            )
        case NestedTyped(cls=cls, fields=fields):
            return lambda shape: (
                _bind_named(fields, shape)
                if shape.kind is not None and is_kind(shape.kind, cls)
                else None
            )
        case OfType(cls=cls) if cls in SCALARS or cls in (list, dict):
            raise BadTemplate(f"no entry is of the type {cls.__name__}: write ({cls.__name__},)")
        case OfType(cls=cls):
            return lambda shape: ALL if _shape_is(shape, cls) else None
        case Exactly(cls=cls):
            return lambda shape: (
                ALL
                if (cls is tuple if shape.kind is None else shape.kind.name == name_of(cls))
                else None
            )
        case OfKind():
            return lambda shape: _bind_kind(part, shape)
        case Where():
            return lambda shape: Binding(check=lambda fields: _holds(part, shape, fields))
        case Not(part=inner):
            return NoneOf(Template(inner)).bind
        case OneOf(choices=choices):
            return reduce(or_, map(Template, choices))._bind_shape
        case Both(first=first, second=second):
            return AllOf(Template(first), Template(second)).bind
    raise BadTemplate(f"the template {part!r} speaks of one field; write it inside a tuple")


def _shape_is(shape: Shape, cls: type | str) -> bool:
    if cls is object:
        return True
    return cls is tuple if shape.kind is None else is_kind(shape.kind, cls)


def _bind_kind(part: OfKind, shape: Shape) -> Binding | None:
    if shape.kind is not None and part.is_of(shape.kind):
        return ALL
    return None if shape.flat else Binding(check=part.matches)


def _holds(where: Where, shape: Shape, fields: tuple[Any, ...]) -> bool:
    try:
        argument = thaw(shape, fields)
    except UnknownType:  # The function cannot be called with an entry of an unknown class.
        return False
    return where.holds(argument)


def _bind_named(fields: dict[str, Part], shape: Shape) -> Binding | None:
    if shape.kind is None:
        return None
    places = {name: i for i, name in enumerate(shape.kind.names)}
    if not fields.keys() <= places.keys():
        return None
    return _bind(((places[name], part) for name, part in fields.items()), shape)


def _bind(parts: Any, shape: Shape) -> Binding | None:
    positions: list[int] = []
    values: list[Any] = []
    checks: list[Check] = []
    for position, part in parts:
        cls = shape.types[position]
        if not part.fits(cls):
            return None
        if type(part) is Equal and cls in INDEXABLE:
            if part.value != part.value:  # NaN
                return None
            positions.append(position)
            values.append(part.value)
        elif not (part is ANY or (type(part) is OfType and cls is not Typed)):
            checks.append(_at(position, part))
    if not positions and not checks:
        return ALL
    return Binding(tuple(positions), tuple(values), _all(checks))


def _at(position: int, part: Part) -> Check:
    return lambda fields: part.matches(fields[position])


def _all(checks: list[Check]) -> Check | None:
    if len(checks) < 2:
        return checks[0] if checks else None
    return lambda fields: all(check(fields) for check in checks)
