"""Sessions: a session remembers what it has seen, and never sees it twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from tupelo.errors import LeaseLost
from tupelo.store.plan import Question
from tupelo.values.entry import Entry, require_known

if TYPE_CHECKING:
    from tupelo.space.core import Core

_PRUNE_AFTER = 1_024
_CURSORS_MAX = 256


class Seen:
    """A set of entries, as one roaring bitmap of sequence numbers for each origin."""

    __slots__ = ("bits",)

    def __init__(self) -> None:
        self.bits: dict[str, BitMap64] = {}

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

    def merge(self, origin: str, numbers: bytes) -> None:
        """Add the numbers of a bitmap that was serialised."""
        self.bits[origin] = self.bits.get(origin, BitMap64()) | BitMap64.deserialize(numbers)

    def discard(self, entry: Entry) -> None:
        bits = self.bits.get(entry.origin)
        if bits is not None:
            bits.discard(entry.n)

    def prune(self, gone: Seen) -> None:
        for origin, bits in gone.bits.items():
            if origin in self.bits:
                self.bits[origin] -= bits

    def copy(self) -> Seen:
        twin = Seen()
        twin.bits = {origin: bits.copy() for origin, bits in self.bits.items()}
        return twin

    def clear(self) -> None:
        self.bits.clear()


class SessionState:
    """A session as the core knows it."""

    __slots__ = ("_cursors", "_returns", "ended", "expires", "id", "seen")

    def __init__(self, session_id: str, seen: Seen, expires: float | None) -> None:
        self.id = session_id
        self.seen = seen
        self.expires = expires
        self.ended = False
        self._cursors: dict[Question, int] = {}
        self._returns = 0

    def require_open(self) -> None:
        if self.ended:
            raise LeaseLost("this session is over: it was closed or its lease ran out")

    def cursor(self, question: Question, returns: int) -> int:
        """The arrival up to which it has seen all that match, so that a stream is not read from
        its start again and again. `returns` counts the entries that came back to their places."""
        if returns != self._returns or len(self._cursors) > _CURSORS_MAX:
            self._cursors.clear()
            self._returns = returns
        return self._cursors.get(question, 0)

    def advance(self, question: Question, arrival: int) -> None:
        self._cursors[question] = arrival


class Pruning:
    """Everything that remembers entries forgets those that are gone for good, now and then."""

    def __init__(self) -> None:
        self.memories: dict[Seen, None] = {}
        self._gone = Seen()
        self._count = 0

    def gone(self, entry: Entry) -> None:
        if self.memories:
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
    """A new session, which has seen nothing or what is given."""
    now = core.expire()
    session = SessionState(session_id, seen or Seen(), core.grant("session", lease, now))
    core.pruning.memories[session.seen] = None
    core.deadlines.add(session)
    return session


def read_next(core: Core, raw: Any, session: SessionState, known: bool) -> Entry | None:
    """The oldest match that a session has not seen."""
    session.require_open()
    seen = session.seen
    with core.user_code("a template"):
        question = core.store.question(raw)
        after = session.cursor(question, core.returns)
        entry = core.store.first(question, lambda entry: entry not in seen, after)
    if entry is not None:
        if known and not entry.shape.plain:
            require_known(entry)
        core.acquire(entry, False, None, session)
        session.advance(question, entry.arrival)
    return entry


def end(core: Core, session: SessionState) -> None:
    session.ended = True
    core.pruning.memories.pop(session.seen, None)
    for waiter in core.waiting:
        if waiter.session is session:
            core.waiting.fail(waiter, LeaseLost("this session is over"))
