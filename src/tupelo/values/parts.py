"""Parts of templates: the condition on one field."""

from __future__ import annotations

import types as python_types
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from types import NoneType
from typing import Any, get_args
from uuid import UUID

from tupelo.errors import BadEntry, BadTemplate, UnknownType
from tupelo.values.entry import SCALARS, Typed, about_bytes, freeze_value, same, thaw_value
from tupelo.values.kind import Kind, class_if_known, is_typed, kind_of, name_of, values_of

INDEXABLE = frozenset({NoneType, bool, int, float, str, bytes, datetime, UUID})
"""Types whose values an index finds by their hash."""
REGEX_BYTES_MAX = 1024 * 1024
"""The largest compiled regular expression, with the states that it keeps while it is used."""
REGEX_STEPS_MAX = 10_000_000
"""The largest number of steps of one match: about a tenth of a second."""
REGEX_COST_MIN = 60
"""A Regex counts as so many comparisons and more, so that a template that is sent has few of them:
each is compiled by the host."""


class Part:
    """A condition on one field. Parts combine with `&`, `|` and `~`."""

    def matches(self, value: Any) -> bool:
        """Whether a stored value matches."""
        raise NotImplementedError

    def fits(self, cls: type) -> bool:
        """Whether a value of exactly this type could match; True if unknown."""
        return True

    @property
    def cost(self) -> int:
        """The largest number of comparisons for one value."""
        return 1

    def __and__(self, other: Any) -> Part:
        return Both(self, as_part(other, "&"))

    def __rand__(self, other: Any) -> Part:
        return Both(as_part(other, "&"), self)

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


class Equal(Part):
    def __init__(self, value: Any) -> None:
        self.value = value

    def matches(self, value: Any) -> bool:
        return same(self.value, value)

    def fits(self, cls: type) -> bool:
        own: type = type(self.value)
        return cls is own

    @property
    def cost(self) -> int:
        return 1 if type(self.value) in SCALARS else 1 + about_bytes(self.value) // 8

    def __repr__(self) -> str:
        return repr(self.value)


class OfType(Part):
    """A value of this type or of a subclass; `bool` is not an `int`.

    A class that may be unknown here is given by its name, in this and other parts.
    """

    def __init__(self, cls: type | str) -> None:
        self.cls = cls

    def matches(self, value: Any) -> bool:
        if type(value) is Typed:
            return self.cls is object or is_kind(value.kind, self.cls)
        return self.fits(type(value))

    def fits(self, cls: type) -> bool:
        if cls is Typed or self.cls is object:
            return True
        if isinstance(self.cls, str):
            return False
        return cls is self.cls or (cls is not bool and issubclass(cls, self.cls))

    def __repr__(self) -> str:
        return _shown(self.cls)


class Exactly(Part):
    """A value of exactly this type, subclasses excluded."""

    def __init__(self, cls: type) -> None:
        if not isinstance(cls, type):
            raise BadTemplate(f"Exactly() takes a type, not {cls!r}")
        self.cls: type | str = cls

    def matches(self, value: Any) -> bool:
        if type(value) is Typed:
            return bool(value.kind.name == name_of(self.cls))
        return type(value) is self.cls

    def __repr__(self) -> str:
        return f"Exactly({_shown(self.cls)})"


class OfKind(Part):
    """An entry of exactly this kind, by its name and field names, or an entry that contains such a
    value at any depth. The class need not be known here."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        self.name, self.names = name, names

    def matches(self, value: Any) -> bool:
        cls = type(value)
        if cls is Typed:
            return self.is_of(value.kind) or any(map(self.matches, value.values))
        if cls is tuple or cls is list:
            return any(map(self.matches, value))
        return cls is dict and any(map(self.matches, value.values()))

    def fits(self, cls: type) -> bool:
        return cls not in SCALARS

    def is_of(self, kind: Kind) -> bool:
        return kind.name == self.name and kind.names == self.names

    def __repr__(self) -> str:
        return f"OfKind({self.name!r}, {self.names!r})"


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
        except (TypeError, ArithmeticError) as error:
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


class TextPart(Part):
    """A condition on a str; values of other types do not match."""

    def __init__(self, text: str) -> None:
        if type(text) is not str:
            raise BadTemplate(f"{type(self).__name__}() takes a str, not {text!r}")
        self.text = text

    def matches(self, value: Any) -> bool:
        return type(value) is str and self.holds(value)

    def holds(self, value: str) -> bool:
        """Whether a text matches."""
        raise NotImplementedError

    def fits(self, cls: type) -> bool:
        return cls is str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class Prefix(TextPart):
    """A str that begins with this text."""

    def holds(self, value: str) -> bool:
        return value.startswith(self.text)


class Suffix(TextPart):
    """A str that ends with this text."""

    def holds(self, value: str) -> bool:
        return value.endswith(self.text)


class Regex(TextPart):
    """A str that matches this regular expression as a whole, as by `fullmatch`: for "contains",
    write `.*` at both ends.

    The syntax is that of RE2: no backreferences and no lookaround, so that the time of a match is
    linear in the length of the text. A very long text never matches: one whose bytes, times the
    steps of the compiled expression, are more than `REGEX_STEPS_MAX`. Needs the
    extra `tupelo[patterns]`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._steps: int = _compiled(text).programsize  # raises BadTemplate

    def holds(self, value: str) -> bool:
        encoded = value.encode(errors="surrogatepass")
        fits = len(encoded) * self._steps <= REGEX_STEPS_MAX
        return fits and _compiled(self.text).fullmatch(encoded) is not None

    @property
    def cost(self) -> int:
        return REGEX_COST_MIN + self._steps // 2


@lru_cache(256)  # So many are kept, since clients of a host may send any number.
def _compiled(pattern: str) -> Any:
    try:
        import re2
    except ImportError as error:
        raise BadTemplate(
            f"Regex({pattern!r}) needs the package google-re2, which is not here: "
            'pip install "tupelo[patterns]"'
        ) from error
    options = re2.Options()
    options.log_errors, options.never_capture, options.max_mem = False, True, REGEX_BYTES_MAX
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        said = error.args[0]
        reason = said.decode(errors="replace") if isinstance(said, bytes) else error
        raise BadTemplate(
            f"Regex({pattern!r}) is no regular expression of RE2: {reason}"
        ) from error


class OneOf(Part):
    """A value that matches one of the choices, which are values, types or parts."""

    def __init__(self, *choices: Any) -> None:
        if not choices:
            raise BadTemplate("OneOf() needs at least one choice")
        self.choices = [as_part(c, f"choice {i}") for i, c in enumerate(choices)]
        # Values are found by their hash, so many values cost as much as one.
        self._values: dict[type, set[Any]] = {}
        self._others: list[Part] = []
        for choice in self.choices:
            if type(choice) is Equal and type(choice.value) in INDEXABLE:
                if choice.value == choice.value:  # NaN equals nothing.
                    self._values.setdefault(type(choice.value), set()).add(choice.value)
            else:
                self._others.append(choice)

    def matches(self, value: Any) -> bool:
        values = self._values.get(type(value))
        if values is not None and value in values:
            return True
        return any(choice.matches(value) for choice in self._others)

    def fits(self, cls: type) -> bool:
        return cls in self._values or any(choice.fits(cls) for choice in self._others)

    @property
    def cost(self) -> int:
        return 1 + sum(choice.cost for choice in self._others)

    def __repr__(self) -> str:
        return f"OneOf({', '.join(map(repr, self.choices))})"


class Not(Part):
    """A value that does not match. For a whole template use `~Template(...)`."""

    def __init__(self, part: Any) -> None:
        self.part = as_part(part, "Not()")

    def matches(self, value: Any) -> bool:
        return not self.part.matches(value)

    @property
    def cost(self) -> int:
        return 1 + self.part.cost

    def __repr__(self) -> str:
        return f"Not({self.part!r})"


class Where(Part):
    """A value for which the function is true. As a whole template, the function gets the entry.

    The function runs inside the space's atomic step: it must be quick and must not use the space.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise BadTemplate(f"Where() takes a function, not {function!r}")
        self.function = function

    def matches(self, value: Any) -> bool:
        try:
            argument = thaw_value(value)
        except UnknownType:  # The function cannot be called with an entry of an unknown class.
            return False
        return self.holds(argument)

    def holds(self, argument: Any) -> bool:
        """Call the function with a value, or with an entry. Raises BadTemplate if it raises."""
        try:
            return bool(self.function(argument))
        except Exception as error:
            raise BadTemplate(f"{self!r} raised {type(error).__name__}: {error}") from error

    def __repr__(self) -> str:
        return f"Where({getattr(self.function, '__name__', self.function)})"


class Both(Part):
    def __init__(self, first: Part, second: Part) -> None:
        self.first, self.second = first, second

    def matches(self, value: Any) -> bool:
        return self.first.matches(value) and self.second.matches(value)

    def fits(self, cls: type) -> bool:
        return self.first.fits(cls) and self.second.fits(cls)

    @property
    def cost(self) -> int:
        return 1 + self.first.cost + self.second.cost

    def __repr__(self) -> str:
        return f"{self.first!r} & {self.second!r}"


class Nested(Part):
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

    @property
    def cost(self) -> int:
        return 1 + sum(part.cost for part in self.parts)

    def __repr__(self) -> str:
        return repr(self.parts)


class NestedTyped(Part):
    """A dataclass inside a field, matched by its class and named fields."""

    def __init__(self, cls: type | str, fields: dict[str, Part]) -> None:
        self.cls, self.fields = cls, fields

    def matches(self, value: Any) -> bool:
        if type(value) is not Typed or not is_kind(value.kind, self.cls):
            return False
        held = dict(zip(value.kind.names, value.values, strict=True))
        return all(name in held and part.matches(held[name]) for name, part in self.fields.items())

    def fits(self, cls: type) -> bool:
        return cls is Typed

    @property
    def cost(self) -> int:
        return 1 + sum(part.cost for part in self.fields.values())

    def __repr__(self) -> str:
        return f"{_shown(self.cls)}({self.fields!r})"


def as_part(raw: Any, where: str) -> Part:
    """Convert one field of a template to a Part. Raises BadTemplate with `where` if it is
    invalid."""
    if isinstance(raw, Part):
        return raw
    if raw is Any:
        return ANY
    if isinstance(raw, type):
        try:
            issubclass(int, raw)
        except TypeError as error:
            raise BadTemplate(f"{where}: {raw.__name__} cannot be asked: {error}") from None
        return OfType(raw)
    if isinstance(raw, python_types.UnionType):
        return OneOf(*get_args(raw))
    if type(raw) is tuple:
        path = "field {}" if where == "field" else where + "[{}]"
        return Nested(tuple(as_part(r, path.format(i)) for i, r in enumerate(raw)))
    if is_typed(raw):
        return NestedTyped(type(raw), typed_parts(raw, where))
    try:
        return Equal(freeze_value(raw, where, 1))
    except BadEntry as error:
        raise BadTemplate(f"template {error}; or use a type, ANY, Between, OneOf, ...") from None


def typed_parts(instance: Any, where: str) -> dict[str, Part]:
    """The parts of a dataclass used as a template; None is a wildcard."""
    names = kind_of(type(instance)).names
    return {
        name: as_part(raw, f"{where}.{name}")
        for name, raw in zip(names, values_of(instance), strict=True)
        if raw is not None and raw is not ANY
    }


def _shown(cls: type | str) -> str:
    return cls if isinstance(cls, str) else cls.__name__


def is_kind(kind: Kind, cls: type | str) -> bool:
    """Whether a kind is this class or a subclass, by name or, where both are known here, by
    class."""
    if isinstance(cls, str):
        return cls in kind.lineage
    if hasattr(cls, "__dataclass_fields__"):
        return name_of(cls) in kind.lineage
    known = class_if_known(kind)
    return known is not None and issubclass(known, cls)
