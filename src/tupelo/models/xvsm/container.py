"""Containers: a space, with the coordinators by which its entries are stored and found.

| field of the coordinators   | `("a", 1)` is stored as        | and `5` as                     |
| --------------------------- | ------------------------------ | ------------------------------ |
| none                        | `("a", 1)`                     | `AtomicEntry(5)`               |
| a key and a label           | `(key, label, "a", 1)`         | `(key, label, AtomicEntry(5))` |
| the rank in a vector        | `((0,), "a", 1)`               | `((0,), AtomicEntry(5))`       |

So programs of other models find them by content in `container.space`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tupelo.aio import Space as AsyncSpace
from tupelo.errors import BadArgument, BadSelector, DuplicateKey
from tupelo.models.xvsm.aspects import ChangeSignal, Interceptors
from tupelo.models.xvsm.chain import ChainQuery, chain_query, template_for
from tupelo.models.xvsm.coordinators import (
    AnyCoordinator,
    Coordinator,
    FifoCoordinator,
    KeyCoordinator,
    LifoCoordinator,
    LindaCoordinator,
    QueryCoordinator,
    RandomCoordinator,
    TypeCoordinator,
    VectorCoordinator,
    found_by,
    name_of,
    stored_form,
)
from tupelo.models.xvsm.selectors import (
    AnySelector,
    AtomicEntry,
    KeySelector,
    LindaSelector,
    Selector,
    VectorSelector,
    check_selectors,
)
from tupelo.space.blocking import Space
from tupelo.space.capacity import Capacity
from tupelo.space.order import Order
from tupelo.space.port import port_of
from tupelo.space.query import WAIT_MAX
from tupelo.values.entry import Entry as CoreEntry
from tupelo.values.kind import is_typed
from tupelo.values.lease import Lease
from tupelo.values.parts import ANY, INDEXABLE

if TYPE_CHECKING:
    from tupelo.models.xvsm.embedded import Embedded

__all__ = ["AtomicEntry", "Books", "Container", "Entry"]

_SIMPLE = {FifoCoordinator, LifoCoordinator, LindaCoordinator, QueryCoordinator, TypeCoordinator}
"""Coordinators that store nothing for a written tuple."""
_EVERYWHERE = {"any": AnyCoordinator, "random": RandomCoordinator}
"""Coordinators that every container has."""
_ONCE = 0  # a timeout, compared by identity: False is no timeout


class Entry:
    """An entry to write, with selectors for its coordinators."""

    __slots__ = ("selectors", "value")

    def __init__(self, value: Any, *selectors: Selector) -> None:
        self.value = value
        self.selectors = selectors

    def __repr__(self) -> str:
        return f"Entry({', '.join(map(repr, (self.value, *self.selectors)))})"


class Books(Order):
    """Several coordinators with books, as one order of a space."""

    keeps_books = True
    by_arrival = True

    def __init__(self, coordinators: list[Coordinator]) -> None:
        self._coordinators = coordinators

    def admit(self, entry: CoreEntry, at: Any) -> None:
        places = at or {}
        for i, coordinator in enumerate(self._coordinators):
            try:
                coordinator.admit(entry, places.get(coordinator.name))
            except BaseException:
                for admitted in self._coordinators[:i]:
                    admitted.forget(entry)
                raise

    def readmit(self, entry: CoreEntry) -> None:
        for coordinator in self._coordinators:
            coordinator.readmit(entry)

    def taken(self, entry: CoreEntry) -> None:
        for coordinator in self._coordinators:
            coordinator.taken(entry)

    def forget(self, entry: CoreEntry) -> None:
        for coordinator in self._coordinators:
            coordinator.forget(entry)


class ShiftOrder(Order):
    """The order in which a coordinator lets entries be shifted out of a full container."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def arrange(self, found: list[CoreEntry]) -> Iterable[CoreEntry]:
        return self._coordinator.gives_way(found)


class Container:
    """A container, and the reference to it (cref) that a program holds."""

    def __init__(
        self,
        owner: Embedded,
        name: str,
        container_id: str,
        size: int | None,
        coordinators: Iterable[Coordinator],
        optional: Iterable[Coordinator],
    ) -> None:
        self.owner = owner
        self.name = name
        self.id = container_id
        self.size = size
        self.coordinators = _attached(self, list(coordinators), list(optional))
        self.given = [c for c in self.coordinators.values() if c.name not in _EVERYWHERE]
        self._keeping = [c for c in self.given if c.position is not None]
        self.width = len(self._keeping)
        self._books = [c for c in self.given if c.keeps_books]
        self._checked = [c for c in self.given if not c.optional]
        path = None if owner.path is None else Path(owner.path) / f"{container_id}.tupelo"
        order = Books(self._books) if self._books else None
        self.space = Space(
            name,
            path=path,
            order=self._books[0] if len(self._books) == 1 else order,
            capacity=None if size is None else Capacity(entries=size),
            clock=owner.clock,
        )
        self.path = path
        self._aio: AsyncSpace | None = None
        self.port = port_of(self.space)
        self._shapes = self.port.shapes
        # The number of known shapes, the length of all payloads, and wildcards for one, if they all
        # have the same length. One tuple, because threads read it without a lock.
        self._alike: tuple[int, int | None, tuple[Any, ...] | None] = (0, None, None)
        self.destroyed = False
        self.aspects = Interceptors()
        self.changes = ChangeSignal(owner.clock)
        self.endings: dict[Callable[[], object], None] = {}  # called when it is closed
        self.fast_owner: Embedded | None = owner
        """The owner, if simple operations may go straight to the space: no aspects, no work."""
        self.active: Coordinator | None = next((c for c in self.given if c.works), None)
        kinds = {type(coordinator) for coordinator in self.given}
        plain = not any(coordinator.options() for coordinator in self.given)
        self._native = plain and not self.width and kinds <= _SIMPLE
        self._linda = self._native and LindaCoordinator in kinds
        only = self.given[0] if kinds == {KeyCoordinator} and self.width == 1 else None
        self._key = only.name if only is not None and not only.optional else None
        self._journaled = self.port.journaled
        self._write_fast = self.port.write_fast
        self._get_fast = self.port.get_fast

    @property
    def spaces(self) -> list[Space]:
        """The space of its entries and, if it has an ActiveCoordinator, the space of its work."""
        work: Space | None = getattr(self.active, "work", None)
        return [self.space] if work is None else [self.space, work]

    @property
    def aio(self) -> AsyncSpace:
        """The async API of its space."""
        if self._aio is None:
            self._aio = AsyncSpace(self.space)
        return self._aio

    def close(self) -> None:
        """Close the space, its coordinators and its notifications."""
        try:
            for coordinator in self.given:
                coordinator.closed()
        finally:
            self.space.close()
            for end in list(self.endings):
                end()
            self.changes.close()

    # Entries

    def stored(self, entry: Any) -> tuple[Any, Any]:
        """An entry as its space stores it, and its place for coordinators with books."""
        payload: Any = entry
        selectors: tuple[Selector, ...] = ()
        if type(entry) is Entry:
            payload, selectors = entry.value, entry.selectors
        for coordinator in self._checked:
            coordinator.check(payload)
        native = stored_form(payload)
        given = self._by_name(selectors)
        for name, selector in given.items():
            self.coordinators[name].check(payload)
            if self.coordinators[name].keeps:
                self.coordinators[name].kept(selector)
        for coordinator in self._checked:
            if coordinator.explicit and coordinator.name not in given:
                raise BadSelector(
                    f"the container {self.name!r} has a {coordinator!r}: write the entry with its "
                    "selector, as Entry(value, selector)"
                )
        if self._keeping:
            kept = tuple(
                [
                    c.kept(given[c.name]) if c.name in given else None if c.optional else c.unsaid
                    for c in self._keeping
                ]
            )
            if type(native) is tuple and len(native) == 1 and is_typed(native[0]):
                native = AtomicEntry(native)  # or it would be read as the dataclass itself
            native = kept + native if type(native) is tuple else (*kept, native)
        at = None
        if self._books:
            places = {c.name: c.place(given.get(c.name)) for c in self._books}
            if any(place is not None for place in places.values()):
                at = places if len(self._books) > 1 else next(iter(places.values()))
        return native, at

    def _by_name(self, selectors: tuple[Selector, ...]) -> dict[str, Selector]:
        check_selectors(selectors)
        given: dict[str, Selector] = {}
        for selector in selectors:
            self.coordinator_of(selector)
            if selector.name in given:
                raise BadSelector(f"two selectors for the coordinator {selector.name!r}")
            given[selector.name] = selector
        return given

    def value(self, stored: Any) -> Any:
        """The payload of a stored entry, as it was written."""
        if self.width and type(stored) is tuple:
            rest = stored[self.width :]
            stored = rest[0] if len(rest) == 1 and is_typed(rest[0]) else rest
        return stored.value if type(stored) is AtomicEntry else stored

    def key_of(self, stored: Any) -> Any:
        """The keys of a stored entry, each with its KeyCoordinator."""
        return [
            (c, stored[c.position])
            for c in self._keeping
            if isinstance(c, KeyCoordinator) and c.position is not None
        ]

    def require_distinct(self, stored: list[Any]) -> None:
        """DuplicateKey if two of these entries have the same key: waiting would not help."""
        if len(stored) < 2 or not self._books:
            return
        seen = set()
        for one in stored:
            for coordinator, key in self.key_of(one):
                name = (coordinator.name, type(key), key)
                if key is not None and name in seen:
                    raise DuplicateKey(key, hopeless=True)
                seen.add(name)

    # Shifting

    def in_the_way(self, entry: Any, stored: Any) -> Iterator[tuple[Any, Order | None, int | None]]:
        """The queries (template, order, limit) for what must be removed before an entry is shifted
        in: the entry at its index in a vector, and entries with its keys. If another transaction
        holds such an entry, the write will be refused."""
        for selector in entry.selectors if isinstance(entry, Entry) else ():
            if isinstance(selector, VectorSelector) and selector.index is not None:
                there = self.question((VectorSelector(selector.index, name=selector.name),))
                yield there.template, there.chain, None
        for coordinator, key in self.key_of(stored):
            if key is not None:
                kept = {coordinator.position: key}
                yield template_for(self.width, self.arity, kept, []), None, 1

    @property
    def shift_order(self) -> Order | None:
        """The order in which the first coordinator lets entries go; None for the oldest first."""
        first = next(iter(self._checked), None) or AnyCoordinator()
        kind = type(first)
        oldest = (
            kind.gives_way is Coordinator.gives_way
            and kind.arrange is Coordinator.arrange
            and not isinstance(first, VectorCoordinator)
        )
        return None if oldest else ShiftOrder(first)

    # Queries

    def coordinator_of(self, selector: Selector) -> Coordinator:
        """The coordinator that a selector names. BadSelector if there is none, or of another
        kind."""
        coordinator = self.coordinators.get(selector.name)
        if coordinator is None:
            has = ", ".join(c.name for c in self.given) or "none besides any and random"
            raise BadSelector(
                f"the container {self.name!r} has no coordinator named {selector.name!r} for "
                f"{selector!r}; it has: {has}"
            )
        if not isinstance(selector, coordinator.speaks):
            raise BadSelector(
                f"{coordinator!r} needs a {coordinator.speaks.__name__}, not {selector!r}"
            )
        return coordinator

    def question(self, selectors: tuple[Selector, ...]) -> ChainQuery:
        """The query of these selectors."""
        check_selectors(selectors)
        pairs = [(self.coordinator_of(s), s) for s in selectors or (AnySelector(),)]
        return chain_query(self.width, self.arity, pairs)

    @property
    def arity(self) -> int | None:
        """The number of fields of all payloads so far, if they are tuples of one length."""
        return self._uniform_shapes()[1]

    def _uniform_shapes(self) -> tuple[int, int | None, tuple[Any, ...] | None]:
        alike = self._alike
        if alike[0] != len(self._shapes):
            with self.port.atomic():  # No shape is added meanwhile.
                lengths = {
                    -1 if shape.kind is not None else len(shape.types) - self.width
                    for shape in self._shapes
                }
                arity = lengths.pop() if len(lengths) == 1 else None
                if arity is not None and arity < 0:
                    arity = None
                # A payload of one field may be a dataclass, which is returned without its tuple.
                rest = (ANY,) * arity if arity and arity > 1 else None
                self._alike = alike = (len(self._shapes), arity, rest)
        return alike

    # Fast path: one entry, outside a transaction, in a container without aspects

    def write_quickly(self, entries: Sequence[Any], timeout: Any) -> list[Lease] | None:
        """Write one simple entry; None if the fast path does not apply."""
        if len(entries) != 1 or (timeout is not _ONCE and not _is_time(timeout)):
            return None
        entry = entries[0]
        if type(entry) is Entry and self._key is not None:
            value = entry.value
            try:
                (selector,) = entry.selectors
            except ValueError:
                return None
            if (
                type(value) is not tuple
                or len(value) == 1
                or type(selector) is not KeySelector
                or selector.name != self._key
                or type(selector.key) not in INDEXABLE
            ):
                return None
            entry = (selector.key, *value)
        elif not self._native or (type(entry) is not tuple and not is_typed(entry)):
            return None
        try:
            lease = self._write_fast(entry)
        except DuplicateKey:
            if timeout == 0:
                raise
            return None  # The longer way waits.
        if lease is None:
            return None
        if self._journaled:
            self.port.flush(lease.thing.arrival)
        return [lease]

    def get_quickly(self, selectors: Sequence[Any], take: bool, timeout: Any) -> list[Any] | None:
        """One entry, by its key or by one template; None if it is not there, or if the fast path
        does not apply."""
        if len(selectors) != 1 or (timeout is not _ONCE and not _is_time(timeout)):
            return None
        template = self._template_of(selectors[0])
        if template is None:
            return None
        if self._journaled:
            found = (self.space.take if take else self.space.read)(template, wait=0)
        else:
            found = self._get_fast(template, take)
        if found is None or found is NotImplemented:
            return None
        if self.width:
            return [found[self.width :]]
        return [found.value if type(found) is AtomicEntry else found]

    def _template_of(self, selector: Any) -> Any:
        kind = type(selector)
        if kind is KeySelector:
            if self._key is None or selector.name != self._key or not selector.low:
                return None
            met, _, rest = self._alike
            if met != len(self._shapes):
                rest = self._uniform_shapes()[2]
            if rest is None or type(selector.key) not in INDEXABLE:
                return None
            return (selector.key, *rest)
        if kind is LindaSelector and self._linda and selector.name == "linda":
            templates = selector.templates
            if (
                len(templates) == 1
                and selector.high == 1 == selector.low
                and selector.entry is None
                and (type(templates[0]) is tuple or is_typed(templates[0]))
            ):
                return templates[0]
        return None

    def __repr__(self) -> str:
        return f"<container {self.name!r}>"


def _is_time(timeout: Any) -> bool:
    """Whether this is a valid timeout; the longer way refuses others."""
    return timeout is None or (
        type(timeout) in (int, float) and (0 <= timeout <= WAIT_MAX or timeout == math.inf)
    )


def _attached(
    container: Container, obligatory: list[Coordinator], optional: list[Coordinator]
) -> dict[str, Coordinator]:
    """The coordinators by name, with the positions of their fields set."""
    found: dict[str, Coordinator] = {}
    position = 0
    for coordinator in [*obligatory, *optional]:
        if not isinstance(coordinator, Coordinator):
            raise BadArgument("coordinators", "coordinators such as FifoCoordinator()", coordinator)
        if coordinator.container is not None:
            raise BadArgument(
                "coordinators", "new ones: one object serves one container", coordinator
            )
        if coordinator.name in found:
            raise BadArgument("coordinators", "of different names: give name=", coordinator)
        if not isinstance(coordinator, _EVERYWHERE.get(coordinator.name, Coordinator)):
            raise BadArgument(
                "coordinators",
                "of other names than 'any' and 'random', which are taken",
                coordinator,
            )
        if container.owner.path is not None:
            _require_makeable(coordinator)
        found[coordinator.name] = coordinator
    for coordinator in optional:
        if coordinator.name in _EVERYWHERE:
            raise BadArgument(
                "optional", "others than any and random, which know every entry", coordinator
            )
    for coordinator in optional:
        coordinator.optional = True
    for coordinator in found.values():
        coordinator.container = container
        if coordinator.keeps or coordinator.optional:
            coordinator.position = position
            position += 1
    for default in (AnyCoordinator(), RandomCoordinator(container.owner.random)):
        default.container = container
        found.setdefault(default.name, default)
    return found


def _require_makeable(coordinator: Coordinator) -> None:
    """BadArgument for a coordinator that could not be created again when its folder is opened."""
    cls = type(coordinator)
    if found_by(name_of(cls)) is not cls:
        raise BadArgument(
            "coordinators", "of classes that a module has, in a Capi with a folder", coordinator
        )
    try:
        inspect.signature(cls).bind(*coordinator.options(), name=coordinator.name)
    except TypeError as error:
        raise BadArgument(
            "coordinators",
            "such that they can be made again, in a Capi with a folder, of what options() answers "
            f"and name= ({error})",
            coordinator,
        ) from None
