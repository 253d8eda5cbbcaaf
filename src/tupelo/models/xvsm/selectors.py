"""Selectors say which entries an operation gets and how many, and give a coordinator its data when
an entry is written.

A chain of selectors narrows: each chooses from the entries that the one before has chosen, in that
order. Fifo and Lifo sort by arrival, Random shuffles, a vector sorts by position and a query as it
says; all others keep the order.

Every selector has a count: a number (1 by default), `COUNT_ALL` (every match, waiting while another
transaction may reveal or release one) or `COUNT_MAX` (as many as are available now; it never
waits). For both, an empty result is valid. At its timeout, so at once with TRY_ONCE, COUNT_ALL
returns what is available, where MozartSpaces fails: entries that other transactions hold are
invisible, so these are all entries that the reader can see. `min_count` and `max_count` are as in
section 7.2.2 of the thesis: if min_count < count < max_count exactly `count`, else between the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self, TypedDict, Unpack

from tupelo.errors import BadArgument, BadSelector
from tupelo.space.query import check_count
from tupelo.values.checks import is_int
from tupelo.values.entry import SCALARS
from tupelo.values.kind import entry as named_entry
from tupelo.values.kind import name_of as kind_name
from tupelo.values.lease import Leased
from tupelo.values.parts import ANY, Both, Not, OfType, OneOf, Where
from tupelo.values.template import Combined, Template


@named_entry("xvsm.atomic")
@dataclass(frozen=True)
class AtomicEntry:
    """An entry that is a single value, neither a tuple nor a dataclass. Reads return the value
    itself."""

    value: Any


class EntryCount(Enum):
    """A count that is not a number."""

    ALL = "all"
    MAX = "max"

    def __repr__(self) -> str:
        return f"COUNT_{self.name}"


class IsolationLevel(Enum):
    """What a read within a transaction guarantees (MozartSpaces 2).

    REPEATABLE_READ, the default, locks the entries that were read: others cannot take them until
    the transaction ends. Entries that others have taken are invisible until their transactions end.
    READ_COMMITTED locks nothing, and still sees entries that others have taken until they commit.
    In both, entries that others have written are invisible until they commit, and a take waits for
    locks.
    """

    READ_COMMITTED = "read_committed"
    REPEATABLE_READ = "repeatable_read"

    def __repr__(self) -> str:
        return self.name


READ_COMMITTED = IsolationLevel.READ_COMMITTED
REPEATABLE_READ = IsolationLevel.REPEATABLE_READ


def check_isolation(isolation: object) -> IsolationLevel:
    """The checked argument `isolation`."""
    if not isinstance(isolation, IsolationLevel):
        raise BadArgument("isolation", "READ_COMMITTED or REPEATABLE_READ", isolation)
    return isolation


def check_tested(operation: object) -> str:
    """The checked argument `operation` of a test."""
    if operation not in ("read", "take"):
        raise BadArgument("operation", "'read' or 'take'", operation)
    return str(operation)


COUNT_ALL = EntryCount.ALL
COUNT_MAX = EntryCount.MAX
_ONE = 1
_UNBOUNDED = sys.maxsize


class Bounds(TypedDict, total=False):
    """The bounds of a count, and the name of the coordinator."""

    min_count: int | None
    max_count: int | None
    name: str | None


class Selector:
    """Selects entries of the coordinator with this `name`. For a coordinator of your own, write a
    subclass with the coordinator's name; any further attributes are between the two."""

    default_name: ClassVar[str] = ""
    COUNT_ALL = COUNT_ALL
    COUNT_MAX = COUNT_MAX

    # Class attributes, because selectors are created for every operation.
    name = ""
    low = high = 1
    _rule: EntryCount | None = None

    def __init_subclass__(cls) -> None:
        cls.name = cls.default_name

    def __init__(
        self,
        count: int | EntryCount = 1,
        *,
        min_count: int | None = None,
        max_count: int | None = None,
        name: str | None = None,
    ) -> None:
        if name is not None:
            self.name = name
        if count is not _ONE or min_count is not None or max_count is not None:
            self._bound(count, min_count, max_count)

    def _bound(self, count: int | EntryCount, least: int | None, most: int | None) -> None:
        if isinstance(count, EntryCount):
            if least is not None or most is not None:
                raise BadArgument("count", "a number, if min_count or max_count is given", count)
            self._rule = count
            self.low, self.high = 0, _UNBOUNDED
            return
        for name, number, floor in (
            ("count", count, 1),
            ("min_count", least, 0),
            ("max_count", most, 1),
        ):
            if number is not None and (not is_int(number) or number < floor):
                raise BadArgument(name, f"a whole number, {floor} or more", number)
        low, high = least or 0, _UNBOUNDED if most is None else most
        if low > high:
            raise BadArgument("max_count", f"no less than min_count={low}", high)
        if low < count < high:
            self.low = self.high = count
        else:
            self.low, self.high = low, high

    def restrict(self, low: Any, high: Any, rule: EntryCount | None) -> None:
        """Set the bounds of the count, or its rule."""
        for name, number in (("low", low), ("high", high)):
            if type(number) is not int or number < 0:
                raise BadArgument(name, "a whole number, 0 or more", number)
        if rule is not None:
            self._bound(rule, None, None)
        elif (low, high) != (self.low, self.high):
            self.low, self.high = low, high

    @property
    def rule(self) -> EntryCount | None:
        """COUNT_ALL or COUNT_MAX; None if the count is a number."""
        return self._rule

    @property
    def is_all(self) -> bool:
        """Whether the count is COUNT_ALL."""
        return self._rule is COUNT_ALL

    @property
    def unlimited(self) -> bool:
        """Whether the count is unbounded: any number of entries, and all of them."""
        return self.low == 0 and self.high == _UNBOUNDED

    shown: ClassVar[tuple[str, ...]] = ()
    """The names of the arguments besides the count, for the repr."""

    def says(self) -> tuple[Any, ...]:
        """The arguments besides the count, for the repr."""
        return tuple([getattr(self, name) for name in self.shown])

    def __repr__(self) -> str:
        arguments = [*map(repr, self.says())]
        if self._rule is not None:
            arguments.append(f"count={self._rule!r}")
        elif self.low == self.high:
            arguments += [f"count={self.low}"] if self.low != 1 else []
        else:
            arguments.append(f"min_count={self.low}")
            arguments += [f"max_count={self.high}"] if self.high != _UNBOUNDED else []
        if self.name != type(self).default_name:
            arguments.append(f"name={self.name!r}")
        return f"{type(self).__name__}({', '.join(arguments)})"


class AnySelector(Selector):
    """Any entries: in fact the oldest. The default where no selector is given."""

    default_name = "any"


class FifoSelector(Selector):
    """The oldest entries."""

    default_name = "fifo"


class LifoSelector(Selector):
    """The newest entries."""

    default_name = "lifo"


class RandomSelector(Selector):
    """Entries chosen at random."""

    default_name = "random"


class ActiveSelector(Selector):
    """ActiveEntries whose work is done."""

    default_name = "active"


class KeySelector(Selector):
    """The entry with this key; in a write, the key of the entry."""

    default_name = "key"
    shown = ("key",)

    def __init__(self, key: Any, count: int | EntryCount = 1, *, name: str | None = None) -> None:
        if key is None or key != key:  # NaN
            raise BadArgument("key", "a value that equals itself, and not None", key)
        self.key = key
        if name is not None:
            self.name = name
        if count is not _ONE:
            self._bound(count, None, None)


class LabelSelector(Selector):
    """The entries with this label; in a write, the label of the entry."""

    default_name = "label"
    shown = ("label",)

    def __init__(self, label: Any, count: int | EntryCount = 1, **bounds: Unpack[Bounds]) -> None:
        if label is None or label != label:
            raise BadArgument("label", "a value that equals itself, and not None", label)
        self.label = label
        super().__init__(count, **bounds)


class LindaSelector(Selector):
    """Entries that match one of the templates, or the entry whose lease is `entry`.

    None is a wildcard in tuples too, as in section 5.4; all templates of Tupelo are allowed. For a
    coordinator with `reverse_matching`, give entries: they find the written templates that match
    them.
    """

    default_name = "linda"
    entry: Leased | None = None
    wanted: Any = None
    """The token by which a client elsewhere names the entry."""

    def __init__(
        self,
        *templates: Any,
        count: int | EntryCount = 1,
        entry: Leased | None = None,
        min_count: int | None = None,
        max_count: int | None = None,
        name: str | None = None,
    ) -> None:
        self.given = templates
        self.templates = tuple([wild(template) for template in templates])
        if entry is not None:
            if not isinstance(entry, Leased):
                raise BadArgument("entry", "the lease of an entry, as write answers", entry)
            self.entry = entry
        if name is not None:
            self.name = name
        if count is not _ONE or min_count is not None or max_count is not None:
            self._bound(count, min_count, max_count)

    def says(self) -> tuple[Any, ...]:
        return self.templates if self.entry is None else (*self.templates, self.entry)


class TypeSelector(Selector):
    """Entries of this type or a subclass: a dataclass (or its name), tuple, or the type of single
    values. True is no int."""

    default_name = "type"
    shown = ("type",)

    def __init__(
        self, type: type | str, count: int | EntryCount = 1, **bounds: Unpack[Bounds]
    ) -> None:
        self.type = type
        self.template = template_of_type(type, "type")
        super().__init__(count, **bounds)


class VectorSelector(Selector):
    """Entries from this index on; in a write, the index to insert at (default: the end)."""

    default_name = "vector"

    def __init__(
        self, index: int | None = None, count: int | EntryCount = 1, **bounds: Unpack[Bounds]
    ) -> None:
        if index is not None and (not is_int(index) or index < 0):
            raise BadArgument("index", "a whole number, 0 or more", index)
        self.index = index
        super().__init__(count, **bounds)

    def says(self) -> tuple[Any, ...]:
        return () if self.index is None else (self.index,)


class Query:
    """The steps of a QuerySelector: `Query().filter(template).sort_by("size").reverse().limit(3)`.

    Each step works on the result of the one before. A query is immutable: every step returns a new
    one.
    """

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: tuple[tuple[str, Any], ...] = ()

    def _then(self, step: str, detail: Any) -> Self:
        query = type(self)()
        query.steps = (*self.steps, (step, detail))
        return query

    def filter(self, template: Any) -> Self:
        """Keep only matches of a template, `Where(function)` or `Named(field=part)`.

        A function gets the entry as it was written, also a single value.
        """
        return self._then("filter", _of_values(wild(template)))

    def sort_by(self, key: int | str | Callable[[Any], Any]) -> Self:
        """Sort, the smallest first, by the position or name of a field, or by a function of the
        entry."""
        if isinstance(key, bool) or not (isinstance(key, (int, str)) or callable(key)):
            raise BadArgument("key", "a field's position or name, or a function", key)
        return self._then("sort_by", key)

    def reverse(self) -> Self:
        """Reverse the order."""
        return self._then("reverse", None)

    def limit(self, most: int) -> Self:
        """Keep the first `most` entries."""
        return self._then("limit", check_count(most, "most"))

    def distinct(self, key: int | str | Callable[[Any], Any] | None = None) -> Self:
        """Keep only the first of equal entries, or of entries with an equal key."""
        return self._then("distinct", key)

    @property
    def filters_first(self) -> tuple[Any, ...]:
        """The templates of the leading filter steps, which an index can answer."""
        found = []
        for step, detail in self.steps:
            if step != "filter":
                break
            found.append(detail)
        return tuple(found)

    def __repr__(self) -> str:
        encoded = [
            f".{step}({'' if detail is None else repr(detail)})" for step, detail in self.steps
        ]
        return "Query()" + "".join(encoded)


class QuerySelector(Selector):
    """The entries that a query finds."""

    default_name = "query"
    shown = ("query",)

    def __init__(self, query: Query, count: int | EntryCount = 1, **bounds: Unpack[Bounds]) -> None:
        if not isinstance(query, Query):
            raise BadArgument("query", "a Query()", query)
        self.query = query
        super().__init__(count, **bounds)


def wild(template: Any) -> Any:
    """The template, with wildcards for None in its tuples and nested tuples."""
    if type(template) is not tuple:
        return template
    return tuple(
        [
            ANY if field is None else wild(field) if type(field) is tuple else field
            for field in template
        ]
    )


_VALUES = {cls.__name__: cls for cls in (*SCALARS, list, dict)}
"""The types of single values, which are stored as AtomicEntry."""


def template_of_type(cls: Any, argument: str) -> Template:
    """The template for entries of a type, which may be given by name. BadArgument if there cannot
    be such entries."""
    if cls in (object, "object"):
        return Template(ANY)
    if cls in (tuple, "tuple"):  # A tuple of one dataclass is stored as an AtomicEntry.
        return Template(tuple) | Template(AtomicEntry(tuple))
    if isinstance(cls, str) and cls:
        return Template(AtomicEntry(_VALUES[cls]) if cls in _VALUES else OfType(cls))
    if not isinstance(cls, type):
        raise BadArgument(argument, "a class, or the name of a dataclass", cls)
    return Template(AtomicEntry(cls) if cls in _VALUES.values() else OfType(cls))


def name_of_type(cls: type | str, argument: str) -> str:
    """The name of a type for `template_of_type`. BadArgument for a class that has none."""
    name = cls if isinstance(cls, str) else cls.__name__
    if isinstance(cls, str) or _VALUES.get(name) is cls or cls in (object, tuple):
        return name
    if not hasattr(cls, "__dataclass_fields__"):
        raise BadArgument(argument, "a dataclass, or the type of a value", cls)
    return kind_name(cls)


class _WhereValue(Where):
    """A function of the value that an AtomicEntry holds."""

    def holds(self, argument: Any) -> bool:
        return super().holds(argument.value if type(argument) is AtomicEntry else argument)


def _of_values(template: Any) -> Any:
    """The template, with functions of whole entries applied to the value of an AtomicEntry."""
    if isinstance(template, Where):
        return _WhereValue(template.function)
    if isinstance(template, Not):
        return Not(_of_values(template.part))
    if isinstance(template, Both):
        return Both(_of_values(template.first), _of_values(template.second))
    if isinstance(template, OneOf):
        return OneOf(*map(_of_values, template.choices))
    if type(template) is Template:
        raw = template.raw
        return Template(
            type(raw)(*map(_of_values, raw.parts)) if isinstance(raw, Combined) else _of_values(raw)
        )
    return template


def check_selectors(selectors: Iterable[Any]) -> None:
    """BadSelector if one of these is no selector."""
    for selector in selectors:
        if not isinstance(selector, Selector):
            raise BadSelector(f"a selector is expected, such as FifoSelector(), not {selector!r}")
