"""Coordinators: how the entries of a container are kept and found. Each is an order of the core.

What a coordinator keeps about an entry (its key, its label, its place) is a field in front of the
entry's own, so that the core's index, locks and journal serve it like any other. `admit` and
`forget` keep books where a field is not enough: unique keys, places in a list.

To write one, subclass Coordinator, give it a `default_name`, and say in `choose` which entries
come first; set `explicit` and `keeps` if it must be told something when an entry is written, which
`kept` makes of the selector; `speaks` is the class of its selectors. `self.kept_of(entry)` and
`self.payload(entry)` are what it can ask. A container in a folder makes its coordinators again when
it is opened: by their class, which must be one of a module and not of a function, with what
`options()` answers by position and with `name=`. So if it has an `__init__` of its own, that must
take `name=` and hand it on, and `options` must say the rest.
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
from tupelo.values.codec import encode_entry
from tupelo.values.entry import Entry, Shape, Typed, freeze, thaw
from tupelo.values.kind import is_typed
from tupelo.values.parts import ANY, INDEXABLE, Equal, Nested, NestedTyped, Part
from tupelo.values.template import Binding, Template, as_template

if TYPE_CHECKING:
    from tupelo.models.xvsm.container import Container


# Classes and functions by name


def name_of(thing: Any) -> str:
    """Of a class or a function: "module:qualname"."""
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"


def found_by(name: str) -> Any:
    """What has this name in a module of this program; None if nothing has. Only modules that are
    loaded are looked at: nothing is imported for a name that came from a file or elsewhere."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


_arrival = attrgetter("arrival")


# Coordinators

IGNORED_MAX = 1_000
"""So many fields may a LindaCoordinator ignore."""


class Coordinator(Order):
    """How entries are kept and found. One object serves one container.

    An `explicit` one must be told something when an entry is written. One that `keeps` has a
    field in front of each entry's own, `unsaid` where it is told nothing. If it `commutes`, a
    choice by content may be made before or after it. One that `sorts` puts what it is given in
    order of arrival, or `backwards`. `speaks` is the class of its selectors.
    """

    default_name: ClassVar[str] = ""
    speaks: ClassVar[type[Selector]] = Selector
    explicit = False
    keeps = False
    unsaid: Any = None
    commutes = False
    sorts = False
    works = False
    """Whether entries are worked on before they can be found: see the ActiveCoordinator."""
    by_arrival = True

    def __init__(self, *, name: str | None = None) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            raise BadArgument("name", "a text that is not empty", name)
        self.name = name or self.default_name or type(self).__name__
        self.container: Container | None = None
        self.optional = False
        self.position: int | None = None  # of the field that it keeps

    def options(self) -> tuple[Any, ...]:
        """What to make it of again when its container is opened again: values, by position."""
        return ()

    def opened(self) -> None:
        """Its container is ready to be used."""

    def closed(self) -> None:
        """Its container is no more, or is being closed."""

    # Writing

    def check(self, payload: Any) -> None:
        """BadArgument if entries like this one are not for it."""

    def kept(self, selector: Selector) -> Any:
        """What to keep of an entry that is written with this selector."""
        return True

    def place(self, selector: Selector | None) -> Any:
        """What `admit` is told as `at`."""
        return None

    def admit(self, entry: Entry, at: Any) -> None:
        pass

    # Finding

    def content(self, selector: Selector) -> tuple[Any, tuple[Any, ...]]:
        """What it asks by content: the value that it keeps (None for any), and templates that
        the payload must match, all of them."""
        return None, ()

    def choose(self, found: list[Entry], selector: Selector) -> list[Entry]:
        """Of what is found, and has the content asked for: which, the first choice first."""
        return list(self.arrange(found))

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        return found

    def select_by(
        self, selector: Selector, txn: Txn | None, locked: Iterable[Entry]
    ) -> list[Entry] | None:
        """What `choose` would choose of all entries that a transaction sees, without the `locked`
        ones, at most as many as the selector wants; None if it must be given the entries."""
        return None

    def needs_all(self, selector: Selector) -> bool:
        """Must it see all matches, or are the first ones enough?"""
        return True

    def gives_way(self, found: list[Entry]) -> Iterable[Entry]:
        """Who is shifted out of a full container, the first to go first; perhaps nobody."""
        return self.arrange(found)

    def not_met(self, selector: Selector, found: int) -> CountNotMet:
        least = selector.low
        return CountNotMet(
            f"{least} {'entry' if least == 1 else 'entries'} wanted by {selector!r}, {found} found",
            wanted=least,
            found=found,
        )

    # What it can ask

    def registered(self, entry: Entry) -> bool:
        """Is this an entry that it knows? An optional one knows those that were written so."""
        return self.position is None or self.kept_of(entry) is not None

    def kept_of(self, entry: Entry) -> Any:
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
    """A queue: the oldest first."""

    default_name = "fifo"
    speaks = FifoSelector
    sorts = True

    def choose(self, found: list[Entry], selector: Selector) -> list[Entry]:
        return _by_arrival(found)


class LifoCoordinator(_ByArrival):
    """A stack: the newest first."""

    default_name = "lifo"
    speaks = LifoSelector
    sorts = True
    backwards = True

    def choose(self, found: list[Entry], selector: Selector) -> list[Entry]:
        return _by_arrival(found)[::-1]

    def gives_way(self, found: list[Entry]) -> Iterable[Entry]:
        return reversed(found)


def _by_arrival(found: list[Entry]) -> list[Entry]:
    """The oldest first; what a transaction wrote is newer than what is there, and of transactions
    in each other the inner one's is the newest. What others have taken is as old as it is."""
    found = sorted(found, key=_arrival)
    if any(entry.txn is not None and not entry.gone for entry in found):
        found.sort(key=lambda e: 0 if e.txn is None or e.gone else len(list(e.txn.line())))
    return found


class RandomCoordinator(Coordinator):
    """By chance, with the generator that the Capi was given. Every container has one."""

    default_name = "random"
    speaks = RandomSelector
    commutes = True

    def __init__(self, generator: random.Random | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.generator = generator or random.Random()

    def arrange(self, found: list[Entry]) -> Iterable[Entry]:
        return self.generator.sample(found, len(found))


class MatchedBy(Template):
    """Of templates that are kept as entries: those that this entry matches. Their None is a
    wildcard, as in a LindaSelector; so many of their first fields are `ignored`. Where a kept
    template asks for a value, an index finds it."""

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
            return all(_asks(fields[at], wild).matches(value) for at, value in checks.items())

        return Binding(tuple(places), tuple(places.values()), check if checks else None)


def _asks(value: Any, wild: bool) -> Part:
    """A kept value as a part of a template. In tuples None is a wildcard if they are `wild`, which
    those inside a dataclass are not."""
    if type(value) is tuple:
        return Nested(tuple([_asks(one, wild) for one in value]))
    if type(value) is Typed:
        held = zip(value.kind.names, value.values, strict=True)
        asked = {name: _asks(one, False) for name, one in held if one is not None}
        return NestedTyped(value.kind.name, asked)
    return ANY if value is None and wild else Equal(value)


class LindaCoordinator(_ByArrival):
    """By template. It takes tuples, and dataclasses, which are tuples with names. With
    `ignore_fields` it takes tuples only, and templates say nothing of so many of their first
    fields (6.2). With `reverse_matching` it works the other way round (7.6): what is written are
    templates, with None for wildcards, and the selector's entry finds those that it matches."""

    default_name = "linda"
    speaks = LindaSelector

    def __init__(
        self,
        ignore_fields: int = 0,
        reverse_matching: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        if type(ignore_fields) is not int or not 0 <= ignore_fields <= IGNORED_MAX:
            raise BadArgument("ignore_fields", f"a number from 0 to {IGNORED_MAX}", ignore_fields)
        if type(reverse_matching) is not bool:
            raise BadArgument("reverse_matching", "True or False", reverse_matching)
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
        """A template that few entries besides this one match, so that not all must be seen."""
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


class KeyCoordinator(_ByArrival):
    """A map: every entry has a key of its own.

    A key is taken until its entry has left for good. Within a transaction that has taken the
    entry another may be written under its key.
    """

    default_name = "key"
    speaks = KeySelector
    explicit = True
    keeps = True
    keeps_books = True

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name)
        # By type and key: 1, 1.0 and True are three keys, and None is none.
        self._held: dict[type, dict[Any, Entry | list[Entry]]] = {
            cls: {} for cls in INDEXABLE if cls is not NoneType
        }

    def kept(self, selector: Any) -> Any:
        key = selector.key
        return key if type(key) in INDEXABLE else _encoded("key", key)

    def content(self, selector: Selector) -> tuple[Any, tuple[Any, ...]]:
        return self.kept(selector), ()

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
                # One who waits within a transaction would wait for itself to take what it wrote.
                own = () if entry.txn is None else tuple(entry.txn.line())
                hopeless = any(not holder.gone and holder.txn in own for holder in holders)
                raise DuplicateKey(key, hopeless=hopeless)
            table[key] = [*holders, entry]

    def readmit(self, entry: Entry) -> None:
        """What has come back is here, even if another has come by its key meanwhile."""
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
        """Its key; None if it has none, for it was optional or came by another door."""
        try:
            key = entry.fields[self.position]  # type: ignore[index]
        except IndexError:
            return None
        return key if type(key) in self._held and entry.shape.kind is None else None


def _given_up(holder: Entry, txn: Txn | None) -> bool:
    """Has the writer's own transaction taken the entry that holds the key?"""
    return holder.gone and txn is not None and holder.txn in txn.line()


class LabelCoordinator(_ByArrival):
    """By label; many entries may have the same."""

    default_name = "label"
    speaks = LabelSelector
    explicit = True
    keeps = True

    def kept(self, selector: Any) -> Any:
        label = selector.label
        return label if type(label) in INDEXABLE else _encoded("label", label)

    def content(self, selector: Selector) -> tuple[Any, tuple[Any, ...]]:
        return self.kept(selector), ()


class TypeCoordinator(_ByArrival):
    """By type (MozartSpaces 2). With `allowed` types it takes entries of these only, and of their
    subclasses. A dataclass may be given by its name."""

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
        if self._allowed is not None and not self._allowed.matches(framed(payload)):
            allowed = ", ".join(self._names)
            raise BadArgument("entry", f"of a type that {self!r} allows: {allowed}", payload)

    def content(self, selector: Any) -> tuple[Any, tuple[Any, ...]]:
        return None, (selector.template,)


class VectorCoordinator(Coordinator):
    """A list: what is written at an index moves up what stands there.

    Indexes count what the one who asks can see: neither what others have not committed nor what
    somebody has taken. The place of an entry is a rank, which is given when it is admitted and
    kept in front of it, so a list comes back in its order when its container is opened again.
    """

    default_name = "vector"
    speaks = VectorSelector
    keeps = True
    unsaid: Rank = ()  # a rank is yet to be given
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
        """None for what is not in the list, for it was optional or came by another door."""
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
    """By query: filtered, sorted, cut."""

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
                pairs = [pair for pair in pairs if template.matches(framed(pair[0]))]
            elif step == "sort_by":
                pairs = sorted(pairs, key=lambda pair: field_of(pair[0], detail))
            elif step == "reverse":
                pairs.reverse()
            elif step == "limit":
                pairs = pairs[:detail]
            else:
                pairs = _distinct(pairs, detail)
        return [entry for _, entry in pairs]


def framed(payload: Any) -> Any:
    """A payload as a space can keep it: what is no tuple and no dataclass is an AtomicEntry."""
    return payload if type(payload) is tuple or is_typed(payload) else AtomicEntry(payload)


def field_of(payload: Any, key: Any) -> Any:
    """A field by position or name, or what a function makes of the payload."""
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


def _encoded(what: str, value: Any) -> bytes:
    """A value that no index knows, as one that it does."""
    try:
        return what.encode() + encode_entry(*freeze((value,)))
    except TypeError as error:
        raise BadArgument(what, "a value", value) from error
