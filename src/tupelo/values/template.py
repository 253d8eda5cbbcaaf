"""Templates: does this entry match?

A template is written as a tuple, a dataclass instance or class, `ANY`, `Named(...)`, or a
`Template` made of others by `&`, `|` and `~`. Its fields are values (the same type and value),
types (which match their subclasses) or parts: `ANY`, `Between`, `OneOf`, `Not`, `Where`,
`Exactly`, nested tuples and dataclasses.

A compiled template meets a shape once (`bind`); what is left to ask of each entry of that shape
is a few values at known positions, which an index can answer, and perhaps a check.
"""

from __future__ import annotations

import types as python_types
from collections.abc import Callable
from datetime import datetime
from functools import reduce
from operator import or_
from types import NoneType
from typing import Any, ClassVar, get_args
from uuid import UUID

import msgspec

from tupelo.errors import BadEntry, BadTemplate
from tupelo.values.entry import SCALARS, Shape, Typed, freeze, freeze_value, same, thaw, thaw_value
from tupelo.values.kind import Kind, class_if_known, is_typed, kind_of, name_of, values_of

Check = Callable[[tuple[Any, ...]], bool]

INDEXABLE = frozenset({NoneType, bool, int, float, str, bytes, datetime, UUID})


class Binding(msgspec.Struct, frozen=True, eq=False):
    """What a template asks of the entries of one shape: values at positions, then a check."""

    positions: tuple[int, ...] = ()
    values: tuple[Any, ...] = ()
    check: Check | None = None

    def test(self, fields: tuple[Any, ...]) -> bool:
        for position, value in zip(self.positions, self.values, strict=True):
            if fields[position] != value:
                return False
        return self.check is None or self.check(fields)


ALL = Binding()


class Part:
    """What one field may be. Parts combine with `&`, `|` and `~`."""

    def matches(self, value: Any) -> bool:
        """Is this value, as it is kept, acceptable?"""
        raise NotImplementedError

    def fits(self, cls: type) -> bool:
        """Could a value of exactly this type be acceptable? (True when in doubt.)"""
        return True

    def __and__(self, other: Any) -> Part:
        return _Both(self, as_part(other, "&"))

    def __rand__(self, other: Any) -> Part:
        return _Both(as_part(other, "&"), self)

    def __or__(self, other: Any) -> Part:
        return OneOf(self, as_part(other, "|"))

    def __ror__(self, other: Any) -> Part:
        return OneOf(as_part(other, "|"), self)

    def __invert__(self) -> Part:
        return Not(self)


class AnyPart(Part):
    """Matches every value; alone, every entry. There is one: `ANY`."""

    def matches(self, value: Any) -> bool:
        return True

    def __repr__(self) -> str:
        return "ANY"


ANY = AnyPart()


class _Equal(Part):
    def __init__(self, value: Any) -> None:
        self.value = value

    def matches(self, value: Any) -> bool:
        return same(self.value, value)

    def fits(self, cls: type) -> bool:
        own: type = type(self.value)
        return cls is own

    def __repr__(self) -> str:
        return repr(self.value)


class _OfType(Part):
    """A value of this type or of a subclass; `bool` is not an `int`."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def matches(self, value: Any) -> bool:
        if type(value) is Typed:
            return self.cls is object or is_kind(value.kind, self.cls)
        return self.fits(type(value))

    def fits(self, cls: type) -> bool:
        if cls is Typed or self.cls is object:
            return True
        return cls is self.cls or (cls is not bool and issubclass(cls, self.cls))

    def __repr__(self) -> str:
        return self.cls.__name__


class Exactly(Part):
    """A value of exactly this type, subclasses excluded."""

    def __init__(self, cls: type) -> None:
        if not isinstance(cls, type):
            raise BadTemplate(f"Exactly() takes a type, not {cls!r}")
        self.cls = cls

    def matches(self, value: Any) -> bool:
        if type(value) is Typed:
            return bool(value.kind.name == name_of(self.cls))
        return type(value) is self.cls

    def __repr__(self) -> str:
        return f"Exactly({self.cls.__name__})"


class Between(Part):
    """A value of the bounds' type from `low` to `high`, both included; None leaves an end open."""

    def __init__(self, low: Any, high: Any) -> None:
        kinds = {type(bound) for bound in (low, high) if bound is not None}
        if len(kinds) != 1 or not kinds <= SCALARS:
            raise BadTemplate(f"Between({low!r}, {high!r}) needs bounds of one orderable type")
        self.cls = kinds.pop()
        try:
            if low is not None and high is not None and not low <= high:
                raise BadTemplate(f"Between({low!r}, {high!r}): nothing lies between")
        except TypeError as error:
            raise BadTemplate(f"Between({low!r}, {high!r}): {error}") from error
        self.low, self.high = low, high

    def matches(self, value: Any) -> bool:
        if type(value) is not self.cls:
            return False
        try:
            return bool(
                (self.low is None or self.low <= value)
                and (self.high is None or value <= self.high)
            )
        except (TypeError, ArithmeticError):  # naive and aware times, a signalling NaN
            return False

    def fits(self, cls: type) -> bool:
        return cls is self.cls

    def __repr__(self) -> str:
        return f"Between({self.low!r}, {self.high!r})"


class OneOf(Part):
    """A value that matches one of the choices, which are values, types or parts."""

    def __init__(self, *choices: Any) -> None:
        if not choices:
            raise BadTemplate("OneOf() needs at least one choice")
        self.choices = [as_part(c, f"choice {i}") for i, c in enumerate(choices)]

    def matches(self, value: Any) -> bool:
        return any(choice.matches(value) for choice in self.choices)

    def fits(self, cls: type) -> bool:
        return any(choice.fits(cls) for choice in self.choices)

    def __repr__(self) -> str:
        return f"OneOf({', '.join(map(repr, self.choices))})"


class Not(Part):
    """A value that does not match. `Not(template)` of a whole template is `~Template(...)`."""

    def __init__(self, part: Any) -> None:
        self.part = as_part(part, "Not()")

    def matches(self, value: Any) -> bool:
        return not self.part.matches(value)

    def __repr__(self) -> str:
        return f"Not({self.part!r})"


class Where(Part):
    """A value for which the function is true. Alone, the function is asked of whole entries.

    The function runs inside the space's step: keep it quick, and do not use the space in it.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise BadTemplate(f"Where() takes a function, not {function!r}")
        self.function = function

    def matches(self, value: Any) -> bool:
        return self.holds(thaw_value(value))

    def holds(self, argument: Any) -> bool:
        try:
            return bool(self.function(argument))
        except Exception as error:
            raise BadTemplate(f"{self!r} raised {type(error).__name__}: {error}") from error

    def __repr__(self) -> str:
        return f"Where({getattr(self.function, '__name__', self.function)})"


class _Both(Part):
    def __init__(self, first: Part, second: Part) -> None:
        self.first, self.second = first, second

    def matches(self, value: Any) -> bool:
        return self.first.matches(value) and self.second.matches(value)

    def fits(self, cls: type) -> bool:
        return self.first.fits(cls) and self.second.fits(cls)

    def __repr__(self) -> str:
        return f"{self.first!r} & {self.second!r}"


class _Nested(Part):
    """A tuple inside a tuple, matched field by field."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts

    def matches(self, value: Any) -> bool:
        return (
            type(value) is tuple
            and len(value) == len(self.parts)
            and all(part.matches(v) for part, v in zip(self.parts, value, strict=True))
        )

    def fits(self, cls: type) -> bool:
        return cls is tuple

    def __repr__(self) -> str:
        return repr(self.parts)


class _NestedTyped(Part):
    """A dataclass inside a field, matched by its class and named fields."""

    def __init__(self, cls: type, fields: dict[str, Part]) -> None:
        self.cls, self.fields = cls, fields

    def matches(self, value: Any) -> bool:
        if type(value) is not Typed or not is_kind(value.kind, self.cls):
            return False
        held = dict(zip(value.kind.names, value.values, strict=True))
        return all(name in held and part.matches(held[name]) for name, part in self.fields.items())

    def fits(self, cls: type) -> bool:
        return cls is Typed

    def __repr__(self) -> str:
        return f"{self.cls.__name__}({self.fields!r})"


class Named:
    """Every typed entry that has these fields, whatever its class: `Named(name="resize")`."""

    def __init__(self, **fields: Any) -> None:
        if not fields:
            raise BadTemplate("Named() needs at least one field")
        self.fields = {name: as_part(raw, f"field {name!r}") for name, raw in fields.items()}


def as_part(raw: Any, where: str) -> Part:
    """One field of a template, compiled; BadTemplate says `where` it cannot be."""
    if isinstance(raw, Part):
        return raw
    if isinstance(raw, type):
        return _OfType(raw)
    if isinstance(raw, python_types.UnionType):
        return OneOf(*get_args(raw))
    if type(raw) is tuple:
        path = "field {}" if where == "field" else where + "[{}]"
        return _Nested(tuple(as_part(r, path.format(i)) for i, r in enumerate(raw)))
    if is_typed(raw):
        return _NestedTyped(type(raw), typed_parts(raw, where))
    if isinstance(raw, (Template, Named)):
        raise BadTemplate(f"{where} of the template is a whole template; only its parts nest")
    try:
        return _Equal(freeze_value(raw, where, 1))
    except BadEntry as error:
        raise BadTemplate(f"template {error}; or use a type, ANY, Between, OneOf, ...") from None


def typed_parts(instance: Any, where: str) -> dict[str, Part]:
    """The fields of a dataclass used as a template; None is a wildcard."""
    names = kind_of(type(instance)).names
    return {
        name: as_part(raw, f"{where}.{name}")
        for name, raw in zip(names, values_of(instance), strict=True)
        if raw is not None and raw is not ANY
    }


def is_kind(kind: Kind, cls: type) -> bool:
    """Is this kind the class or below it, by name or, where both are known here, by class?"""
    if hasattr(cls, "__dataclass_fields__"):
        return name_of(cls) in kind.lineage
    known = class_if_known(kind)
    return known is not None and issubclass(known, cls)


class Template:
    """A whole template, compiled once and used often; combine with `&`, `|` and `~`."""

    __slots__ = ("_bind_shape", "_bindings", "raw")
    _bind_shape: Callable[[Shape], Binding | None]
    everything: ClassVar[Template]

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._bind_shape = _compile(raw)
        self._bindings: dict[Shape, Binding | None] = {}

    def bind(self, shape: Shape) -> Binding | None:
        """What is left to ask of entries of this shape, or None if none of them can match."""
        try:
            return self._bindings[shape]
        except KeyError:
            binding = self._bindings[shape] = self._bind_shape(shape)
            return binding

    def matches(self, entry: Any) -> bool:
        """Would this entry match?"""
        shape, fields = freeze(entry)
        binding = self.bind(shape)
        return binding is not None and binding.test(fields)

    def __and__(self, other: Any) -> Template:
        return Template(_AllOf(self, as_template(other)))

    def __or__(self, other: Any) -> Template:
        return Template(_AnyOf(self, as_template(other)))

    def __rand__(self, other: Any) -> Template:
        return as_template(other) & self

    def __ror__(self, other: Any) -> Template:
        return as_template(other) | self

    def __invert__(self) -> Template:
        return Template(_NoneOf(self))

    def __repr__(self) -> str:
        return f"Template({self.raw!r})"


class _AllOf:
    def __init__(self, first: Template, second: Template) -> None:
        self.first, self.second = first, second

    def bind(self, shape: Shape) -> Binding | None:
        a, b = self.first.bind(shape), self.second.bind(shape)
        if a is None or b is None:
            return None
        checks = [binding.check for binding in (a, b) if binding.check is not None]
        return Binding(a.positions + b.positions, a.values + b.values, _all(checks))

    def __repr__(self) -> str:
        return f"{self.first!r} & {self.second!r}"


class _AnyOf:
    def __init__(self, first: Template, second: Template) -> None:
        self.first, self.second = first, second

    def bind(self, shape: Shape) -> Binding | None:
        a, b = self.first.bind(shape), self.second.bind(shape)
        if a is None or b is None:
            return a or b
        if a is ALL or b is ALL:
            return ALL
        return Binding(check=lambda fields: a.test(fields) or b.test(fields))

    def __repr__(self) -> str:
        return f"{self.first!r} | {self.second!r}"


class _NoneOf:
    def __init__(self, template: Template) -> None:
        self.template = template

    def bind(self, shape: Shape) -> Binding | None:
        binding = self.template.bind(shape)
        if binding is None:
            return ALL
        return None if binding is ALL else Binding(check=lambda fields: not binding.test(fields))

    def __repr__(self) -> str:
        return f"~{self.template!r}"


def as_template(raw: Any) -> Template:
    return raw if isinstance(raw, Template) else Template(raw)


def _compile(raw: Any) -> Callable[[Shape], Binding | None]:
    if isinstance(raw, (_AllOf, _AnyOf, _NoneOf)):
        return raw.bind
    if isinstance(raw, Named):
        return lambda shape: _bind_named(raw.fields, shape)
    if isinstance(raw, (tuple, Part, type, python_types.UnionType)) or is_typed(raw):
        return _whole(as_part(raw, "field"))
    hint = "; write tuple(template)" if isinstance(raw, list) else ""
    raise BadTemplate(
        "a template is a tuple, a dataclass instance or class, ANY, Named(...), Where(...) or a "
        f"Template, not {type(raw).__name__}{hint}"
    )


def _whole(part: Part) -> Callable[[Shape], Binding | None]:
    """A part that stands alone speaks of the whole entry."""
    match part:
        case AnyPart():
            return lambda shape: ALL
        case _Nested(parts=parts):
            return lambda shape: (
                _bind(enumerate(parts), shape)
                if shape.kind is None and len(shape.types) == len(parts)
                else None
            )
        case _NestedTyped(cls=cls, fields=fields):
            return lambda shape: (
                _bind_named(fields, shape)
                if shape.kind is not None and is_kind(shape.kind, cls)
                else None
            )
        case _OfType(cls=cls):
            return lambda shape: ALL if _shape_is(shape, cls) else None
        case Exactly(cls=cls):
            return lambda shape: (
                ALL if shape.kind is not None and shape.kind.name == name_of(cls) else None
            )
        case Where():
            return lambda shape: Binding(check=lambda fields: _holds(part, shape, fields))
        case Not(part=inner):
            return _NoneOf(Template(inner)).bind
        case OneOf(choices=choices):
            return reduce(or_, map(Template, choices))._bind_shape
        case _Both(first=first, second=second):
            return _AllOf(Template(first), Template(second)).bind
    raise BadTemplate(f"{part!r} speaks of one field; write it inside a tuple")


def _shape_is(shape: Shape, cls: type) -> bool:
    if cls is object:
        return True
    return cls is tuple if shape.kind is None else is_kind(shape.kind, cls)


def _holds(where: Where, shape: Shape, fields: tuple[Any, ...]) -> bool:
    if shape.kind is not None and class_if_known(shape.kind) is None:
        return False
    return where.holds(thaw(shape, fields))


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
        if type(part) is _Equal and cls in INDEXABLE:
            if part.value != part.value:  # NaN
                return None
            positions.append(position)
            values.append(part.value)
        elif not (part is ANY or (type(part) is _OfType and cls is not Typed)):
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


Template.everything = Template(ANY)
