"""Coordinators: how the entries of a container are stored and found. Each is an order of the core.

The data that a coordinator keeps about an entry (its key, its label, its rank) is a field in front
of the entry's own fields, so that the core's index, locks and journal serve it like any other.
`admit` and `forget` keep further state where a field is not enough: unique keys, positions in a
list.

To write a coordinator, subclass Coordinator, give it a `default_name`, and return in `choose` the
entries in order of preference. Set `explicit` and `keeps` if a written entry needs data for the
coordinator; `kept` computes that from the selector, whose class is `speaks`. `self.kept_of(entry)`
and `self.payload(entry)` read entries. A container in a folder creates its coordinators again when
it is opened: from their class, which must be defined at the top of a module, with the values of
`options()` by position and with `name=`. So an `__init__` of your own must accept `name=` and pass
it on, and `options` must return the other arguments.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar

from tupelo.errors import BadArgument, BadEntry, CountNotMet, DuplicateKey, IndexOutOfRange
from tupelo.models.xvsm.selectors import (
    AnySelector,
    AtomicEntry,
    FifoSelector,
    KeySelector,
    LabelSelector,
    LifoSelector,
    LindaSelector,
    QuerySelector,
    RandomSelector,
    Selector,
    TypeSelector,
    VectorSelector,
    name_of_type,
    template_of_type,
)
from tupelo.space.order import Order
from tupelo.space.ranking import Rank, Ranking, is_rank
from tupelo.space.transaction import Txn
from tupelo.values.checks import check_bool, check_text
from tupelo.values.codec import encode_entry
from tupelo.values.entry import Entry, Shape, Typed, freeze, thaw
from tupelo.values.kind import is_typed
from tupelo.values.parts import ANY, INDEXABLE, Equal, Nested, NestedTyped, Part
from tupelo.values.template import Binding, Template, as_template

if TYPE_CHECKING:
    from tupelo.models.xvsm.container import Container


# Classes and functions by name


def name_of(thing: Any) -> str:
    """The name of a class or function: "module:qualname"."""
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"


def found_by(name: str) -> Any:
    """The object with this name; None if there is none. Only loaded modules are searched: nothing
    is imported for a name from a file or from elsewhere."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


_arrival = attrgetter("arrival")


# Coordinators

IGNORED_MAX = 1_000
"""How many fields a LindaCoordinator may ignore."""


class Coordinator(Order):
    """How entries are stored and found. One object serves one container.

    An `explicit` coordinator needs a selector when an entry is written. A coordinator that `keeps`
    has a field in front of each entry's own fields, `unsaid` for entries that were written without
    a selector. If it `commutes`, a selection by content may be done before or after it. One that
    `sorts` puts entries in order of arrival, or `backwards`. `speaks` is the class of its
    selectors.
    """

    default_name: ClassVar[str] = ""
    speaks: ClassVar[type[Selector]] = Selector
    explicit = False
    keeps = False
    unsaid: Any = None
    commutes = False
    sorts = False
    works = False
    """Whether entries are processed before they can be found: see ActiveCoordinator."""
    by_arrival = True

    def __init__(self, *, name: str | None = None) -> None:
        if name is not None:
            check_text("name", name)
        self.name = name or self.default_name or type(self).__name__
        self.container: Container | None = None
        self.optional = False
        self.position: int | None = None  # of its field

    def options(self) -> tuple[Any, ...]:
        """The arguments, by position, to create the coordinator again when its container is
        opened."""
        return ()

    def opened(self) -> None:
        """Called when the container is ready."""

    def closed(self) -> None:
        """Called when the container is closed or destroyed."""

    # Writing

    def check(self, payload: Any) -> None:
        """BadArgument if the coordinator does not accept such entries."""

    def kept(self, selector: Selector) -> Any:
        """The field to store for an entry that is written with this selector."""
        return True

    def place(self, selector: Selector | None) -> Any:
        """The argument `at` of `admit`."""
        return None

    def admit(self, entry: Entry, at: Any) -> None:
        """Called when an entry is written: see `Order.admit`."""

    # Finding

    def content(self, selector: Selector) -> tuple[Any, tuple[Any, ...]]:
        """The part of a selector that is a question of content: the value of the coordinator's
        field (None for any), and templates that the payload must all match."""
        return None, ()

    def choose(self, found: list[Entry], selector: Selector) -> list[Entry]:
        """The chosen ones of these entries, which match `content`, in order of preference."""
        return list(self.arrange(found))

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        """These entries in order of preference."""
        return found

    def select_by(
        self, selector: Selector, txn: Txn | None, locked: Iterable[Entry]
    ) -> list[Entry] | None:
        """What `choose` would return for all entries that a transaction sees, without the `locked`
        ones, and at most as many as the selector wants; None if `choose` must be called with the
        entries."""
        return None

    def needs_all(self, selector: Selector) -> bool:
        """Whether `choose` needs all matches, or the first ones are enough."""
        return True

    def gives_way(self, found: list[Entry]) -> Iterable[Entry]:
        """The entries to remove from a full container in a shift, in this order; perhaps none."""
        return self.arrange(found)

    def not_met(self, selector: Selector, found: int) -> CountNotMet:
        """The error for a selector that found too few entries."""
        least = selector.low
        return CountNotMet(
            f"{least} {'entry' if least == 1 else 'entries'} wanted by {selector!r}, {found} found",
            wanted=least,
            found=found,
        )

    # Reading entries

    def registered(self, entry: Entry) -> bool:
        """Whether the entry was written for this coordinator; always, unless it is optional."""
        return self.position is None or self.kept_of(entry) is not None

    def kept_of(self, entry: Entry) -> Any:
        """The field of this coordinator in a stored entry; None if there is none."""
        position = self.position
        if position is None or entry.shape.kind is not None or len(entry.fields) <= position:
            return None
        return entry.fields[position]

    def payload(self, entry: Entry) -> Any:
        """The entry as it was written to the container."""
        assert self.container is not None
        return self.container.value(thaw(entry.shape, entry.fields, stand_ins=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class _ByArrival(Coordinator):
    commutes = True

    def needs_all(self, selector: Selector) -> bool:
        return False


class AnyCoordinator(_ByArrival):
    """Any entry. Every container has one."""

    default_name = "any"
    speaks = AnySelector


class FifoCoordinator(_ByArrival):
    """A queue: the oldest entry first."""

    default_name = "fifo"
    speaks = FifoSelector
    sorts = True

    def choose(self, found: list[Entry], selector: Selector) -> list[Entry]:
        return _by_arrival(found)


class LifoCoordinator(_ByArrival):
    """A stack: the newest entry first."""

    default_name = "lifo"
    speaks = LifoSelector
    sorts = True
    backwards = True

    def choose(self, found: list[Entry], selector: Selector) -> list[Entry]:
        return _by_arrival(found)[::-1]

    def gives_way(self, found: list[Entry]) -> Iterable[Entry]:
        return reversed(found)


def _by_arrival(found: list[Entry]) -> list[Entry]:
    """Sorted by arrival. Entries that an open transaction wrote come after all others, those of
    nested transactions last. Entries that others have taken keep their place."""
    found = sorted(found, key=_arrival)
    if any(entry.txn is not None and not entry.gone for entry in found):
        found.sort(key=lambda e: 0 if e.txn is None or e.gone else len(list(e.txn.line())))
    return found


class RandomCoordinator(Coordinator):
    """In random order, by the generator of the Capi. Every container has one."""

    default_name = "random"
    speaks = RandomSelector
    commutes = True

    def __init__(self, generator: random.Random | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.generator = generator or random.Random()

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        return self.generator.sample(found, len(found))


class MatchedBy(Template):
    """Finds templates that were written as entries: those that match this entry. None in a template
    is a wildcard; the first `ignored` fields do not count. Where a template has a value, the index
    is used."""

    __slots__ = ("_fields", "_ignored", "_shape")

    def __init__(self, entry: Any, ignored: int) -> None:
        self.raw = entry
        self._shape, self._fields = freeze(entry)
        self._ignored = ignored
        self._bind_shape = self._matched
        self._bindings: dict[Shape, Binding | None] = {}

    def _matched(self, kept: Shape) -> Binding | None:
        kind, own = kept.kind, self._shape.kind
        asked: list[Any] = list(self._fields)
        if kind is not None:
            if own is None or kind.name not in own.lineage or not {*kind.names} <= {*own.names}:
                return None
            asked = [self._fields[own.names.index(name)] for name in kind.names]
        elif own is not None or len(asked) + self._ignored != len(kept.types):
            return None
        places, checks = {}, {}
        for place, value in enumerate(asked, self._ignored):
            cls = kept.types[place]
            if cls is NoneType:
                continue
            if cls is not type(value):
                return None
            if cls in INDEXABLE:
                if value != value:  # NaN
                    return None
                places[place] = value
            else:
                checks[place] = value

        def check(fields: tuple[Any, ...]) -> bool:
            wild = kind is None
            return all(_part_of(fields[at], wild).matches(value) for at, value in checks.items())

        return Binding(tuple(places), tuple(places.values()), check if checks else None)


def _part_of(value: Any, wild: bool) -> Part:
    """A stored value as a part of a template. None in tuples is a wildcard if `wild`; inside a
    dataclass it is not."""
    if type(value) is tuple:
        return Nested(tuple([_part_of(one, wild) for one in value]))
    if type(value) is Typed:
        held = zip(value.kind.names, value.values, strict=True)
        asked = {name: _part_of(one, False) for name, one in held if one is not None}
        return NestedTyped(value.kind.name, asked)
    return ANY if value is None and wild else Equal(value)


class LindaCoordinator(_ByArrival):
    """By template. Entries are tuples or dataclasses.

    With `ignore_fields`, entries are tuples, and templates leave out that many first fields (6.2).
    With `reverse_matching` it is the other way round (7.6): the written entries are templates, with
    None as wildcard, and the entry in a selector finds the templates that match it.
    """

    default_name = "linda"
    speaks = LindaSelector

    def __init__(
        self, ignore_fields: int = 0, reverse_matching: bool = False, *, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        if type(ignore_fields) is not int or not 0 <= ignore_fields <= IGNORED_MAX:
            raise BadArgument("ignore_fields", f"a number from 0 to {IGNORED_MAX}", ignore_fields)
        check_bool("reverse_matching", reverse_matching)
        self.ignored = (ANY,) * ignore_fields
        self._reverse = reverse_matching

    def options(self) -> tuple[Any, ...]:
        return (len(self.ignored), self._reverse) if self.ignored or self._reverse else ()

    def check(self, payload: Any) -> None:
        if self.ignored:
            if type(payload) is not tuple or len(payload) < len(self.ignored):
                expected = f"a tuple of {len(self.ignored)} fields that are ignored, or more"
                raise BadArgument("entry", expected, payload)
        elif type(payload) is not tuple and not hasattr(type(payload), "__dataclass_fields__"):
            raise BadArgument(
                "entry", "a tuple or a dataclass, for the container has a LindaCoordinator", payload
            )

    def content(self, selector: Any) -> tuple[Any, tuple[Any, ...]]:
        templates = selector.templates
        if self._reverse:
            templates = tuple(map(self._matched_by, selector.given))
        elif self.ignored:
            templates = tuple([self._after_ignored(template) for template in templates])
        if len(templates) > 1:
            either = as_template(templates[0])
            for template in templates[1:]:
                either = either | as_template(template)
            templates = (either,)
        if selector.entry is not None:
            templates += self._like(selector.entry.thing)
        return None, templates

    def _after_ignored(self, template: Any) -> tuple[Any, ...]:
        if type(template) is not tuple:
            raise BadArgument("selectors", "tuples, for some of the fields are ignored", template)
        return (*self.ignored, *template)

    def _matched_by(self, entry: Any) -> MatchedBy:
        if type(entry) is tuple:
            entry = tuple([None if field is ANY else field for field in entry])
        try:
            if type(entry) is tuple or is_typed(entry):
                return MatchedBy(entry, len(self.ignored))
        except BadEntry as error:
            raise BadArgument("selectors", f"entries, to find templates ({error})", entry) from None
        raise BadArgument("selectors", "entries, tuples or dataclasses, to find templates", entry)

    def _like(self, entry: Any) -> tuple[Any, ...]:
        """A template that matches this entry and few others, so that the index narrows the
        search."""
        width = 0 if self.container is None else self.container.width
        if not isinstance(entry, Entry) or entry.shape.kind is not None:
            return ()
        rest = entry.fields[width:]
        if len(rest) == 1:  # It may be a dataclass, which is kept as one field.
            return ()
        return (tuple([v if type(v) in INDEXABLE and v == v else ANY for v in rest]),)

    def choose(self, found: list[Entry], selector: Any) -> list[Entry]:
        if selector.entry is None:
            return found
        return [entry for entry in found if entry is selector.entry.thing]

    def needs_all(self, selector: Any) -> bool:
        return selector.entry is not None


class _ByField(_ByArrival):
    """By the value of a selector's attribute, which is stored in front of the entry."""

    explicit = True
    keeps = True
    _attribute: ClassVar[str]

    def kept(self, selector: Selector) -> Any:
        value = getattr(selector, self._attribute)
        if type(value) in INDEXABLE:
            return value
        try:
            return self._attribute.encode() + encode_entry(*freeze((value,)))
        except TypeError as error:
            raise BadArgument(self._attribute, "a value", value) from error

    def content(self, selector: Selector) -> tuple[Any, tuple[Any, ...]]:
        return self.kept(selector), ()


class KeyCoordinator(_ByField):
    """A map: every entry has a unique key.

    A key is in use until its entry has left for good. A transaction that has taken the entry may
    write another one with its key.
    """

    default_name = "key"
    speaks = KeySelector
    keeps_books = True
    _attribute = "key"

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)
        # By type and key: 1, 1.0 and True are three keys, and None is none.
        self._held: dict[type, dict[Any, Entry | list[Entry]]] = {
            cls: {} for cls in INDEXABLE if cls is not NoneType
        }

    def admit(self, entry: Entry, at: Any) -> None:
        try:  # as `_key_of` does, without the call
            key = entry.fields[self.position]  # type: ignore[index]
            table = self._held[type(key)]
        except (IndexError, KeyError):
            return
        if entry.shape.kind is not None:
            return
        held = table.setdefault(key, entry)
        if held is not entry:
            holders = held if isinstance(held, list) else [held]
            if not all(_given_up(holder, entry.txn) for holder in holders):
                # A write that waits would wait for its own transaction.
                own = () if entry.txn is None else tuple(entry.txn.line())
                hopeless = any(not holder.gone and holder.txn in own for holder in holders)
                raise DuplicateKey(key, hopeless=hopeless)
            table[key] = [*holders, entry]

    def readmit(self, entry: Entry) -> None:
        """An entry that comes back keeps its key, even if another entry has got it meanwhile."""
        key = self._key_of(entry)
        if key is not None:
            table = self._held[type(key)]
            held = table.setdefault(key, entry)
            if held is not entry:
                table[key] = [*(held if isinstance(held, list) else [held]), entry]

    def forget(self, entry: Entry) -> None:
        key = self._key_of(entry)
        if key is None:
            return
        table = self._held[type(key)]
        held = table.get(key)
        if held is entry:
            del table[key]
        elif isinstance(held, list) and entry in held:
            left = [holder for holder in held if holder is not entry]
            table[key] = left[0] if len(left) == 1 else left

    def _key_of(self, entry: Entry) -> Any:
        """The key of an entry; None if it was written without one, or by another API."""
        try:
            key = entry.fields[self.position]  # type: ignore[index]
        except IndexError:
            return None
        return key if type(key) in self._held and entry.shape.kind is None else None


def _given_up(holder: Entry, txn: Txn | None) -> bool:
    """Whether the writer's own transaction has taken the entry that holds the key."""
    return holder.gone and txn is not None and holder.txn in txn.line()


class LabelCoordinator(_ByField):
    """By label; several entries may have the same label."""

    default_name = "label"
    speaks = LabelSelector
    _attribute = "label"


class TypeCoordinator(_ByArrival):
    """By type (MozartSpaces 2). With `allowed` types, only entries of these types and their
    subclasses are accepted. A dataclass may be given by name."""

    default_name = "type"
    speaks = TypeSelector

    def __init__(self, *allowed: type | str, name: str | None = None) -> None:
        super().__init__(name=name)
        templates = [template_of_type(cls, "allowed") for cls in allowed]
        self._allowed = Template.any_of(templates) if templates else None
        self._names = tuple([name_of_type(cls, "allowed") for cls in allowed])

    def options(self) -> tuple[Any, ...]:
        return self._names

    def check(self, payload: Any) -> None:
        if self._allowed is not None and not self._allowed.matches(stored_form(payload)):
            allowed = ", ".join(self._names)
            raise BadArgument("entry", f"of a type that {self!r} allows: {allowed}", payload)

    def content(self, selector: Any) -> tuple[Any, tuple[Any, ...]]:
        return None, (selector.template,)


class VectorCoordinator(Coordinator):
    """A list: an entry that is written at an index moves the following entries up by one.

    An index counts the entries that the caller sees: without entries that others have not
    committed, and without taken ones. The position of an entry is a rank, which is stored in front
    of it, so that the order survives a restart.
    """

    default_name = "vector"
    speaks = VectorSelector
    keeps = True
    unsaid: Rank = ()  # no rank yet
    keeps_books = True

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._list = Ranking()

    def kept(self, selector: Selector) -> Any:
        return self.unsaid

    def place(self, selector: Any) -> Any:
        return None if selector is None else selector.index

    def admit(self, entry: Entry, at: Any) -> None:
        if self._rank_of(entry) is None:
            return
        rank = self._list.rank_at(at, entry.txn)
        if isinstance(rank, int):
            raise IndexOutOfRange(
                f"nothing can be written at {at}: the vector has {rank} entries",
                wanted=at,
                found=rank,
            )
        fields, position = entry.fields, self.position or 0
        entry.fields = (*fields[:position], rank, *fields[position + 1 :])
        self._list.add(entry, rank)

    def readmit(self, entry: Entry) -> None:
        rank = self._rank_of(entry)
        if rank:
            self._list.add(entry, rank)

    def taken(self, entry: Entry) -> None:
        self._list.hide(entry)

    def forget(self, entry: Entry) -> None:
        self._list.remove(entry)

    def _rank_of(self, entry: Entry) -> Rank | None:
        """The rank of an entry; None if it was written without one, or by another API."""
        rank = self.kept_of(entry)
        return rank if is_rank(rank) else None

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        return sorted([e for e in found if e in self._list], key=self._list.rank_of)

    def choose(self, found: list[Entry], selector: Any) -> list[Entry]:
        return list(self.arrange(found))[selector.index or 0 :]

    def select_by(
        self, selector: Any, txn: Txn | None, locked: Iterable[Entry]
    ) -> list[Entry] | None:
        start = selector.index or 0
        return self._list.window(start, start + selector.high, txn, locked)

    def not_met(self, selector: Any, found: int) -> CountNotMet:
        if found:
            return super().not_met(selector, found)
        return IndexOutOfRange(
            f"nothing stands at the index {selector.index or 0}", wanted=selector.low, found=found
        )


class QueryCoordinator(Coordinator):
    """By query: filter, sort, limit."""

    default_name = "query"
    speaks = QuerySelector

    def content(self, selector: Any) -> tuple[Any, tuple[Any, ...]]:
        return None, selector.query.filters_first

    def needs_all(self, selector: Any) -> bool:
        return len(selector.query.steps) > len(selector.query.filters_first)

    def choose(self, found: list[Entry], selector: Any) -> list[Entry]:
        query = selector.query
        steps = query.steps[len(query.filters_first) :]
        if not steps:
            return found
        pairs = [(self.payload(entry), entry) for entry in found]
        for step, detail in steps:
            if step == "filter":
                template = as_template(detail)
                pairs = [pair for pair in pairs if template.matches(stored_form(pair[0]))]
            elif step == "sort_by":
                pairs = sorted(pairs, key=lambda pair: field_of(pair[0], detail))
            elif step == "reverse":
                pairs.reverse()
            elif step == "limit":
                pairs = pairs[:detail]
            else:
                pairs = _distinct(pairs, detail)
        return [entry for _, entry in pairs]


def stored_form(payload: Any) -> Any:
    """A payload as a space stores it: a value that is neither tuple nor dataclass becomes an
    AtomicEntry."""
    return payload if type(payload) is tuple or is_typed(payload) else AtomicEntry(payload)


def field_of(payload: Any, key: Any) -> Any:
    """The value of a field by position or name, or of a function of the payload."""
    if callable(key):
        return key(payload)
    return payload[key] if isinstance(key, int) else getattr(payload, key)


def _distinct(pairs: list[tuple[Any, Entry]], key: Any) -> list[tuple[Any, Entry]]:
    seen: set[str] = set()
    kept = []
    for payload, entry in pairs:
        encoded = repr(payload if key is None else field_of(payload, key))
        if encoded not in seen:
            seen.add(encoded)
            kept.append((payload, entry))
    return kept
