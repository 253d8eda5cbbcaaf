"""The places of a list's entries, as values that can be kept with them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.space.transaction import Txn

Rank = tuple[int, ...]
"""Between any two ranks there is another, so to put an entry in at an index changes no rank but its
own."""


def is_rank(value: Any) -> bool:
    return type(value) is tuple and all(type(number) is int for number in value)


def between(low: Rank | None, high: Rank | None) -> Rank:
    """A rank after `low` and before `high`, by the order of tuples. At either end, and where one
    entry after the other is put in at the same place, ranks stay short."""
    if low is None:
        return (0,) if high is None else (high[0] - 1,)
    if high is None:
        return (low[0] + 1,)
    for i, (a, b) in enumerate(zip(low, high, strict=False)):
        if b - a > 1:
            return (*low[:i], a + 1)
        if a != b:
            return (*low[: i + 1], low[i + 1] + 1 if len(low) > i + 1 else 0)
    return (*low, high[len(low)] - 1)


class Ranking:
    """The entries of a list in the order of their ranks.

    An index counts the entries that a transaction sees. Only entries that may be hidden from some
    transaction are looked at to find it: entries that were written or taken in a transaction, and
    taken entries that may come back. The others stand where their position says.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._ranks: dict[Entry, Rank] = {}
        self._hidden: dict[Entry, None] = {}  # every entry that some transaction does not see

    def rank_at(self, at: int | None, txn: Txn | None) -> Rank | int:
        """A rank for an entry that this transaction writes at an index (None: at the end); or the
        number of entries that the transaction sees, if the index is beyond them."""
        index = len(self.entries)
        if at is not None:
            hidden = self._hidden_positions(txn)
            seen = len(self.entries) - len(hidden)
            if seen < at:
                return seen
            index = _position(at, hidden)
        low = self._ranks[self.entries[index - 1]] if index else None
        after = index if low is None else bisect_right(self.entries, low, key=self.rank_of)
        return between(low, self.rank_of(self.entries[after]) if after < len(self) else None)

    def window(
        self, start: int, stop: int, txn: Txn | None, locked: Iterable[Entry] = ()
    ) -> list[Entry]:
        """The entries from one index to another, as this transaction counts them; the `locked` ones
        do not count."""
        hidden = self._hidden_positions(txn, locked)
        first, end = _position(start, hidden), _position(stop, hidden)
        if not hidden:
            return self.entries[first:end]
        skipped = set(hidden)
        positions = range(first, min(end, len(self)))
        return [self.entries[position] for position in positions if position not in skipped]

    def _hidden_positions(self, txn: Txn | None, locked: Iterable[Entry] = ()) -> list[int]:
        """The positions of the entries that a transaction does not see, and of the locked ones."""
        own = () if txn is None else tuple(txn.line())
        hidden = {entry for entry in locked if entry in self._ranks}
        for entry in list(self._hidden):
            if entry.gone or (entry.txn is not None and entry.txn not in own):
                hidden.add(entry)
            elif entry.txn is None:  # Its transaction has committed, or it has come back.
                del self._hidden[entry]
        return sorted(map(self._position_of, hidden))

    def _position_of(self, entry: Entry) -> int:
        position = bisect_left(self.entries, self._ranks[entry], key=self.rank_of)
        while self.entries[position] is not entry:  # Two may have one rank.
            position += 1
        return position

    def rank_of(self, entry: Entry) -> Rank:
        return self._ranks[entry]

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._ranks

    def add(self, entry: Entry, rank: Rank) -> None:
        """Insert the entry by its rank, unless it is there already."""
        if entry in self._ranks:
            return
        self._ranks[entry] = rank
        if not self.entries or self.rank_of(self.entries[-1]) < rank:
            self.entries.append(entry)
        else:
            self.entries.insert(bisect_left(self.entries, rank, key=self.rank_of), entry)
        if entry.txn is not None:
            self.hide(entry)

    def hide(self, entry: Entry) -> None:
        """The entry was taken and may come back: until then nobody else sees it."""
        if entry in self._ranks:
            self._hidden[entry] = None

    def remove(self, entry: Entry) -> None:
        if entry in self._ranks:
            del self.entries[self._position_of(entry)]
            del self._ranks[entry]
            self._hidden.pop(entry, None)


def _position(index: int, hidden: list[int]) -> int:
    """The position of an index that does not count these hidden positions."""
    for position in hidden:
        if position > index:
            break
        index += 1
    return index
