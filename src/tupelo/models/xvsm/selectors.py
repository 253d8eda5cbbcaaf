"""Selectors: which entries, and how many; and what a coordinator is told when an entry is written.

A chain of selectors narrows: each sees what the one before it has chosen, in the order that it has
left. Fifo and Lifo sort what they see by arrival; Random mixes it, a vector sorts it by place and a
query by what it is told; all others leave it as it is.

Every selector has a count: exactly so many (1 unless told otherwise), `COUNT_ALL` (every match,
waiting while another transaction may reveal or release one) or `COUNT_MAX` (as many as can be had
right now; it never waits); for both, none is an answer. At the end of its patience, so at once with
TRY_ONCE, COUNT_ALL answers what can be had, where MozartSpaces tells that it could not get all:
what other transactions hold, nobody else can see, so that for its reader these are all there are.
With `min_count` and `max_count` it is as in section 7.2.2 of the thesis: if min_count < count <
max_count exactly `count`, else between the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self, TypedDict, Unpack

from tupelo.errors import BadArgument, BadSelector
from tupelo.space.query import check_count
from tupelo.values.entry import SCALARS
from tupelo.values.kind import entry as named_entry
from tupelo.values.kind import name_of as kind_name
from tupelo.values.lease import Leased
from tupelo.values.parts import ANY, Both, Not, OfType, OneOf, Where
from tupelo.values.template import Combined, Template


@named_entry("xvsm.atomic")
@dataclass(frozen=True)
class AtomicEntry:
    """An entry that is one value, neither a tuple nor a dataclass. It comes back as the value."""

    value: Any


class EntryCount(Enum):
    """A count that is no number."""

    ALL = "all"
    MAX = "max"

    def __repr__(self) -> str:
        return f"COUNT_{self.name}"


class IsolationLevel(Enum):
    """What a read within a transaction promises (MozartSpaces 2).

    By REPEATABLE_READ, the default, what was read stays as it is until the transaction ends: others
    cannot take it. What others have taken is out of sight until they end. By READ_COMMITTED a read
    holds nothing, and what others have taken is there until they have committed. By both, what
    others have written is not there before that, and a take waits for their locks.
    """

    READ_COMMITTED = "read_committed"
    REPEATABLE_READ = "repeatable_read"

    def __repr__(self) -> str:
        return self.name


READ_COMMITTED = IsolationLevel.READ_COMMITTED
REPEATABLE_READ = IsolationLevel.REPEATABLE_READ


def check_isolation(isolation: object) -> IsolationLevel:
    if not isinstance(isolation, IsolationLevel):
        raise BadArgument("isolation", "READ_COMMITTED or REPEATABLE_READ", isolation)
    return isolation


def check_tested(operation: object) -> str:
    """The operation that a test is about."""
    if operation not in ("read", "take"):
        raise BadArgument("operation", "'read' or 'take'", operation)
    return str(operation)


COUNT_ALL = EntryCount.ALL
COUNT_MAX = EntryCount.MAX
_ONE = 1
_UNBOUNDED = sys.maxsize


class Bounds(TypedDict, total=False):
    """How many, if not just a count; and the name of the coordinator that is spoken to."""

    min_count: int | None
    max_count: int | None
    name: str | None


class Selector:
    """Speaks to the coordinator of this `name`. To write one for a coordinator of your own, give
    it the coordinator's name; what else it carries is between the two."""

    default_name: ClassVar[str] = ""
    COUNT_ALL = COUNT_ALL
    COUNT_MAX = COUNT_MAX

    # What most selectors have: they are made for every operation, and cost what they must set.
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
            if number is not None and (
                isinstance(number, bool) or not isinstance(number, int) or number < floor
            ):
                raise BadArgument(name, f"a whole number, {floor} or more", number)
        low, high = least or 0, _UNBOUNDED if most is None else most
        if low > high:
            raise BadArgument("max_count", f"no less than min_count={low}", high)
        if low < count < high:
            self.low = self.high = count
        else:
            self.low, self.high = low, high

    def restrict(self, low: Any, high: Any, rule: EntryCount | None) -> None:
        """Let it want at least `low` entries and at most `high`; by a rule, if it has one."""
        for name, number in (("low", low), ("high", high)):
            if type(number) is not int or number < 0:
                raise BadArgument(name, "a whole number, 0 or more", number)
        if rule is not None:
            self._bound(rule, None, None)
        elif (low, high) != (self.low, self.high):
            self.low, self.high = low, high

    @property
    def rule(self) -> EntryCount | None:
        """COUNT_ALL, COUNT_MAX, or None if numbers say how many."""
        return self._rule

    @property
    def is_all(self) -> bool:
        return self._rule is COUNT_ALL

    @property
    def unlimited(self) -> bool:
        """Any number will do, and all of them."""
        return self.low == 0 and self.high == _UNBOUNDED

    def says(self) -> tuple[Any, ...]:
        """What it asks for besides a count, to be shown."""
        return ()

    def __repr__(self) -> str:
        said = [*map(repr, self.says())]
        if self._rule is not None:
            said.append(f"count={self._rule!r}")
        elif self.low == self.high:
            said += [f"count={self.low}"] if self.low != 1 else []
        else:
            said.append(f"min_count={self.low}")
            said += [f"max_count={self.high}"] if self.high != _UNBOUNDED else []
        if self.name != type(self).default_name:
            said.append(f"name={self.name!r}")
        return f"{type(self).__name__}({', '.join(said)})"


class AnySelector(Selector):
    """Any entries: the oldest, as it happens. What is used where no selector is given."""

    default_name = "any"


class FifoSelector(Selector):
    """The oldest."""

    default_name = "fifo"


class LifoSelector(Selector):
    """The newest."""

    default_name = "lifo"


class RandomSelector(Selector):
    """Any, by chance."""

    default_name = "random"


class ActiveSelector(Selector):
    """Entries that carried work, once it is done."""

    default_name = "active"


class KeySelector(Selector):
    """The entry with this key; when written, the key to give it."""

    default_name = "key"

    def __init__(self, key: Any, count: int | EntryCount = 1, *, name: str | None = None) -> None:
        if key is None or key != key:  # NaN
            raise BadArgument("key", "a value that equals itself, and not None", key)
        self.key = key
        if name is not None:
            self.name = name
        if count is not _ONE:
            self._bound(count, None, None)

    def says(self) -> tuple[Any, ...]:
        return (self.key,)


class LabelSelector(Selector):
    """The entries with this label, of which there may be many; when written, the label to give."""

    default_name = "label"

    def __init__(self, label: Any, count: int | EntryCount = 1, **bounds: Unpack[Bounds]) -> None:
        if label is None or label != label:
            raise BadArgument("label", "a value that equals itself, and not None", label)
        self.label = label
        super().__init__(count, **bounds)

    def says(self) -> tuple[Any, ...]:
        return (self.label,)


class LindaSelector(Selector):
    """What matches a template, one of several templates, or the entry that `entry` is the lease of.

    None is a wildcard in tuples too, as in section 5.4; and all of Tupelo's templates will do. For
    a coordinator with `reverse_matching` they are entries, which find templates that were written.
    """

    default_name = "linda"
    entry: Leased | None = None
    wanted: Any = None
    """How a client elsewhere names the entry, before its lease is found here."""

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
    """Entries of this type or of a subclass: a dataclass, tuple, or the type of single values;
    the name of a dataclass that this program lacks will do. As everywhere, True is no int."""

    default_name = "type"

    def __init__(
        self, type: type | str, count: int | EntryCount = 1, **bounds: Unpack[Bounds]
    ) -> None:
        self.type = type
        self.template = template_of_type(type, "type")
        super().__init__(count, **bounds)

    def says(self) -> tuple[Any, ...]:
        return (self.type,)


class VectorSelector(Selector):
    """From this index onward; when written, where to insert (at the end, if none is given)."""

    default_name = "vector"

    def __init__(
        self, index: int | None = None, count: int | EntryCount = 1, **bounds: Unpack[Bounds]
    ) -> None:
        if index is not None and (
            isinstance(index, bool) or not isinstance(index, int) or index < 0
        ):
            raise BadArgument("index", "a whole number, 0 or more", index)
        self.index = index
        super().__init__(count, **bounds)

    def says(self) -> tuple[Any, ...]:
        return () if self.index is None else (self.index,)


class Query:
    """What a QuerySelector asks: `Query().filter(template).sort_by("size").reverse().limit(3)`.

    Its steps work one after the other on what the step before has left. A query is a value: every
    step answers with a new one.
    """

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: tuple[tuple[str, Any], ...] = ()

    def _then(self, step: str, detail: Any) -> Self:
        query = type(self)()
        query.steps = (*self.steps, (step, detail))
        return query

    def filter(self, template: Any) -> Self:
        """Only what matches: a template, `Where(function)` or `Named(field=part)`.

        A function is asked of entries as they were written, single values too."""
        return self._then("filter", _of_values(wild(template)))

    def sort_by(self, key: int | str | Callable[[Any], Any]) -> Self:
        """The smallest first: by a field's position or name, or a function of the entry."""
        if isinstance(key, bool) or not (isinstance(key, (int, str)) or callable(key)):
            raise BadArgument("key", "a field's position or name, or a function", key)
        return self._then("sort_by", key)

    def reverse(self) -> Self:
        return self._then("reverse", None)

    def limit(self, most: int) -> Self:
        return self._then("limit", check_count(most, "most"))

    def distinct(self, key: int | str | Callable[[Any], Any] | None = None) -> Self:
        """Of equal entries (or those with an equal key) only the first."""
        return self._then("distinct", key)

    @property
    def filters_first(self) -> tuple[Any, ...]:
        """The templates that it begins with, which an index can answer."""
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
    """What a query finds."""

    default_name = "query"

    def __init__(self, query: Query, count: int | EntryCount = 1, **bounds: Unpack[Bounds]) -> None:
        if not isinstance(query, Query):
            raise BadArgument("query", "a Query()", query)
        self.query = query
        super().__init__(count, **bounds)

    def says(self) -> tuple[Any, ...]:
        return (self.query,)


def wild(template: Any) -> Any:
    """A template whose tuples have wildcards where they have None, as deep as they go."""
    if type(template) is not tuple:
        return template
    return tuple(
        [
            ANY if field is None else wild(field) if type(field) is tuple else field
            for field in template
        ]
    )


_VALUES = {cls.__name__: cls for cls in (*SCALARS, list, dict)}
"""The types of values that are entries only in the frame of an AtomicEntry."""


def template_of_type(cls: Any, argument: str) -> Template:
    """What entries of a type match, which may be given by its name. BadArgument if there are no
    entries of it."""
    if cls in (object, "object"):
        return Template(ANY)
    if cls in (tuple, "tuple"):  # A tuple with a dataclass in it may have a frame.
        return Template(tuple) | Template(AtomicEntry(tuple))
    if isinstance(cls, str) and cls:
        return Template(AtomicEntry(_VALUES[cls]) if cls in _VALUES else OfType(cls))
    if not isinstance(cls, type):
        raise BadArgument(argument, "a class, or the name of a dataclass", cls)
    return Template(AtomicEntry(cls) if cls in _VALUES.values() else OfType(cls))


def name_of_type(cls: type | str, argument: str) -> str:
    """The name by which `template_of_type` knows a type. BadArgument for a class that has none."""
    name = cls if isinstance(cls, str) else cls.__name__
    if isinstance(cls, str) or _VALUES.get(name) is cls or cls in (object, tuple):
        return name
    if not hasattr(cls, "__dataclass_fields__"):
        raise BadArgument(argument, "a dataclass, or the type of a value", cls)
    return kind_name(cls)


class _WhereValue(Where):
    """A function that is asked of the value that an AtomicEntry holds."""

    def holds(self, argument: Any) -> bool:
        return super().holds(argument.value if type(argument) is AtomicEntry else argument)


def _of_values(template: Any) -> Any:
    """A template whose functions of whole entries are asked of single values without a frame."""
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
    for selector in selectors:
        if not isinstance(selector, Selector):
            raise BadSelector(f"a selector is expected, such as FifoSelector(), not {selector!r}")
