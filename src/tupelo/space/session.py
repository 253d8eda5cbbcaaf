"""Sessions: a session remembers the entries that it has seen, and returns none of them twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from pyroaring import BitMap64

from tupelo.errors import LeaseLost
from tupelo.store.index import Accept
from tupelo.values.entry import Entry, fitting, require_known

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.query import Query
    from tupelo.space.search import SlicedSearch

_PRUNE_AFTER = 1_024
_CURSORS_MAX = 256


class Seen:
    """A set of entries: one roaring bitmap of sequence numbers for each origin. `discards` counts
    removals of entries that can be found again."""

    __slots__ = ("__weakref__", "bits", "discards")

    def __init__(self) -> None:
        self.bits: dict[str, BitMap64] = {}
        self.discards = 0

    def __contains__(self, entry: Entry) -> bool:
        bits = self.bits.get(entry.origin)
        return bits is not None and entry.n in bits

    def __len__(self) -> int:
        return sum(map(len, self.bits.values()))

    def add(self, entry: Entry) -> None:
        self.add_number(entry.origin, entry.n)

    def add_number(self, origin: str, n: int) -> None:
        bits = self.bits.get(origin)
        if bits is None:
            bits = self.bits[origin] = BitMap64()
        bits.add(n)

    def add_all(self, other: Seen) -> None:
        for origin, numbers in other.bits.items():
            known = self.bits.get(origin)
            if known is None:
                self.bits[origin] = numbers.copy()
            else:
                known |= numbers  # in place: a copy would cost as much as the whole set

    def holds(self, other: Seen) -> bool:
        """Whether it contains all of these."""
        nothing = BitMap64()
        return all(
            numbers.issubset(self.bits.get(origin, nothing))
            for origin, numbers in other.bits.items()
        )

    def merge(self, origin: str, numbers: bytes) -> None:
        """Add the numbers of a serialised bitmap."""
        self.bits[origin] = self.bits.get(origin, BitMap64()) | BitMap64.deserialize(numbers)

    def discard(self, entry: Entry) -> None:
        """Remove an entry that was not seen after all."""
        self.discard_number(entry.origin, entry.n)

    def discard_number(self, origin: str, n: int) -> None:
        bits = self.bits.get(origin)
        if bits is not None:
            bits.discard(n)
            self.discards += 1

    def prune(self, gone: Seen) -> None:
        """Remove entries that will never be found again."""
        for origin, bits in gone.bits.items():
            if origin in self.bits:
                self.bits[origin] -= bits
                if not self.bits[origin]:
                    del self.bits[origin]

    def copy(self) -> Self:
        twin = type(self)()
        twin.bits = {origin: bits.copy() for origin, bits in self.bits.items()}
        return twin

    def clear(self) -> None:
        self.bits.clear()


def seen_of(entries: Iterable[Entry]) -> Seen:
    """A set of these entries."""
    numbers: dict[str, list[int]] = {}
    for entry in entries:
        numbers.setdefault(entry.origin, []).append(entry.n)
    seen = Seen()
    seen.bits = {origin: BitMap64(those) for origin, those in numbers.items()}
    return seen


class SessionState:
    """The state of a session in the core."""

    __slots__ = ("_ahead", "_cursors", "_stamp", "ended", "expires", "id", "seen")

    def __init__(self, session_id: str, seen: Seen, expires: float | None) -> None:
        self.id = session_id
        self.seen = seen
        self.expires = expires
        self.ended = False
        self._cursors: dict[Hashable, int] = {}
        self._ahead: tuple[Hashable, int, Seen] | None = None
        self._stamp = 0

    def __repr__(self) -> str:
        return f"<session {self.id}>"

    def require_open(self) -> None:
        if self.ended:
            raise LeaseLost("this session is over: it was closed or its lease ran out")

    def cursor(self, question: Hashable, returns: int) -> int:
        """The arrival up to which it has seen all matches, so that a stream is not read from its
        start each time. `returns` counts entries that came back."""
        stamp = returns + self.seen.discards  # Neither ever decreases.
        if stamp != self._stamp or len(self._cursors) > _CURSORS_MAX:
            self._cursors.clear()
            self._ahead = None
            self._stamp = stamp
        cursor = self._cursors.get(question, 0)
        if self._ahead is not None:
            key, arrival, found = self._ahead
            if key == question and self.seen.holds(found):
                self._ahead = None
                cursor = self._cursors[question] = max(cursor, arrival)
        return cursor

    def advance(self, question: Hashable, arrival: int) -> None:
        self._cursors[question] = arrival

    def advance_when_seen(self, question: Hashable, arrival: int, found: Seen) -> None:
        """After seeing these entries it has seen all matches up to this arrival."""
        self._ahead = (question, arrival, found)


class Pruning:
    """Removes entries that have left for good from all records, from time to time."""

    def __init__(self) -> None:
        self.memories: WeakKeyDictionary[Seen, None] = WeakKeyDictionary()
        self._gone = Seen()
        self._count = 0
        self._leaving: frozenset[tuple[str, int]] = frozenset()

    @contextmanager
    def leaving(self, entries: Iterable[Entry]) -> Iterator[None]:
        """Entries that leave within this block may be found again under their identity, elsewhere
        or here, and stay in the records."""
        before = self._leaving
        self._leaving = before.union((entry.origin, entry.n) for entry in entries)
        try:
            yield
        finally:
            self._leaving = before

    def gone(self, entry: Entry) -> None:
        if self.memories and (entry.origin, entry.n) not in self._leaving:
            self._gone.add(entry)
            self._count += 1
            if self._count >= _PRUNE_AFTER:
                self.prune()

    def prune(self) -> None:
        for memory in self.memories:
            memory.prune(self._gone)
        self._gone.clear()
        self._count = 0


def begin(
    core: Core, session_id: str, lease: float | None, seen: Seen | None = None
) -> SessionState:
    """A new session, which has seen nothing or the given entries."""
    now = core.expire()
    known = Seen() if seen is None else seen  # An empty one is false.
    session = SessionState(session_id, known, core.grant("session", lease, now))
    core.pruning.memories[session.seen] = None
    core.deadlines.add(session)
    return session


def read_unread(core: Core, query: Query, session: SessionState) -> list[Entry]:
    """The oldest matches that a session has not seen; they count as seen from now on."""
    found, question, upto, _ = _look(
        core, query.template, session, query.limit, sliced=query.sliced
    )
    for entry in found if query.known else ():
        if not entry.shape.plain:
            require_known(entry)
    core.read(found, None, session)
    session.advance(question, upto)
    return found


def unread(
    core: Core,
    raw: Any,
    session: SessionState,
    limit: int | None,
    agent: str | None,
    bytes_max: int | None,
    sliced: SlicedSearch | None = None,
) -> tuple[list[Entry], bool]:
    """The oldest matches that a session has not seen, optionally of one agent, and whether there
    are more than fit into so many bytes. They are not marked as seen: the receiver does that."""
    found, question, upto, cut = _look(core, raw, session, limit, agent, bytes_max, sliced)
    session.advance(question, found[0].arrival - 1 if found else upto)
    if len(found) > 1:
        session.advance_when_seen(question, upto, seen_of(found))
    for entry in found:
        core.acquire(entry, False, None, None)
    return found, cut


def unseen(session: SessionState, agent: str | None = None) -> Accept:
    """The entries that a session has not seen, optionally of one agent."""
    seen = session.seen
    if agent is None:
        return lambda entry: entry not in seen
    return lambda entry: entry not in seen and (entry.to or entry.origin) == agent


def _look(
    core: Core,
    raw: Any,
    session: SessionState,
    limit: int | None,
    agent: str | None = None,
    bytes_max: int | None = None,
    sliced: SlicedSearch | None = None,
) -> tuple[list[Entry], Hashable, int, bool]:
    """The unseen matches, the question under which the cursor is stored, the arrival up to which
    all matches will have been seen with these, and whether more did not fit."""
    session.require_open()
    store = core.store
    accept = unseen(session, agent)
    cut = False
    before, core.running = core.running, "a template"  # `user_code` would cost more than the rest
    try:
        question = store.question(raw)
        key = (question, agent)
        after = session.cursor(key, core.returns)
        if sliced is not None:
            sliced.advance(accept)
            found, cut = fitting(islice(sliced.matches(store, accept), limit), bytes_max)
        elif limit == 1:
            first = store.first(question, accept, after)
            found = [] if first is None else [first]
        else:
            found, cut = fitting(
                islice(store.matches(question, accept, after=after), limit), bytes_max
            )
    finally:
        core.running = before
    latest = core.log.position if core.log.on else core.arrivals
    upto = found[-1].arrival if found and (cut or len(found) == limit) else latest
    return found, key, upto, cut


def end(core: Core, session: SessionState) -> None:
    session.ended = True
    core.pruning.memories.pop(session.seen, None)
    for waiter in core.waiting:
        if waiter.query.session is session:
            core.waiting.fail(waiter, LeaseLost("this session is over"))
