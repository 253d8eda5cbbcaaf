"""Match sets: leased snapshots of matches, returned one by one. A set becomes invalid when one of
its entries is taken."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from tupelo.errors import MatchSetInvalid, UnknownType
from tupelo.values.entry import Entry, require_known

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.query import Query
    from tupelo.space.transaction import Txn


class Skipped(NamedTuple):
    """An entry that was left out: its origin and number, and the reason."""

    entry_id: tuple[str, int]
    reason: str


class MatchSetState:
    """The state of a match set in the core. `skipped` are the entries left out, with reasons."""

    __slots__ = (
        "__weakref__",
        "_entries",
        "_exhausted",
        "_members",
        "_place",
        "ended",
        "expires",
        "reason",
        "skipped",
        "txn",
    )

    def __init__(self, entries: list[Entry], expires: float | None, txn: Txn | None) -> None:
        self.expires = expires
        self.txn = txn
        self.ended = False
        self.reason = ""
        self.skipped: list[tuple[Entry, str]] = []
        self._entries = entries
        self._members = set(entries)  # not yet returned
        self._place = 0
        self._exhausted = False

    def __repr__(self) -> str:
        return "<match set>"

    @property
    def left_out(self) -> list[Skipped]:
        return [Skipped((entry.origin, entry.n), reason) for entry, reason in self.skipped]

    def next(self, known: bool = True) -> Entry | None:
        """The next entry that is still in the space; None at the end."""
        if self._exhausted:
            return None
        if self.ended:
            raise MatchSetInvalid(f"the match set is over: {self.reason}")
        while self._place < len(self._entries):
            entry = self._entries[self._place]
            self._place += 1
            if entry.gone and entry.txn is not None:
                self.end("one of its entries was taken")
                return self.next(known)
            if entry.gone:
                self.skipped.append((entry, "it expired, was cancelled or was evicted"))
                continue
            try:
                if known:
                    require_known(entry)
            except UnknownType as error:
                self.skipped.append((entry, str(error)))
                continue
            self._members.discard(entry)
            self._exhausted = self._place == len(self._entries)
            return entry
        self._exhausted = True
        return None

    def lose(self, entry: Entry) -> None:
        """An entry was taken: end the set, unless the entry was returned before."""
        if entry in self._members:
            self.end("one of its entries was taken")

    def end(self, reason: str) -> None:
        if not self.ended:
            self.ended = True
            self.reason = reason
            self._entries, self._members = [], set()


def begin(core: Core, query: Query, lease: float | None) -> MatchSetState:
    """The present matches, at most the query's limit; the query's transaction, if any, holds read
    locks on them."""
    now, txn = core.expire(), query.txn
    found = core.find(query)
    core.read(found, txn, None)
    state = MatchSetState(found, core.grant("match set", lease, now), txn)
    # A match set that is garbage-collected need not be cancelled.
    core.match_sets[weakref.ref(state, core.match_sets.pop)] = None
    core.deadlines.add(state)
    return state


def lose(core: Core, entry: Entry) -> None:
    """Notify all match sets that this entry was taken."""
    for reference in list(core.match_sets):
        state = reference()
        if state is not None:
            state.lose(entry)
            if state.ended:
                core.match_sets.pop(reference, None)


def end_within(core: Core, txn: Txn) -> None:
    """End the match sets of a transaction, whose read locks are released."""
    for reference in list(core.match_sets):
        state = reference()
        if state is not None and state.txn is txn:
            state.end("its transaction has ended")
            core.match_sets.pop(reference, None)
