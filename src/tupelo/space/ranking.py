"""The places of a list's entries, as values that can be kept with them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    """The entries of a list in the order of their ranks."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._ranks: list[Rank] = []

    def rank_at(self, at: int | None, txn: Txn | None) -> Rank | int:
        """A rank for what this transaction writes at an index of what it sees (None: the end); or
        how many it sees, if they are fewer."""
        index, seen = (len(self.entries), 0) if at is None else self._index(at, txn)
        if at is not None and seen < at:
            return seen
        low = self._ranks[index - 1] if index else None
        after = index if low is None else bisect_right(self._ranks, low)
        return between(low, self._ranks[after] if after < len(self._ranks) else None)

    def _index(self, at: int, txn: Txn | None) -> tuple[int, int]:
        """Where the index `at` is among all entries, and how many are seen before that."""
        own = () if txn is None else tuple(txn.line())
        seen = 0
        for index, entry in enumerate(self.entries):
            if not entry.gone and (entry.txn is None or entry.txn in own):
                if seen == at:
                    return index, seen
                seen += 1
        return len(self.entries), seen

    def add(self, entry: Entry, rank: Rank) -> None:
        """Put it at its place, if it is not there."""
        index = bisect_left(self._ranks, rank)
        if index < len(self.entries) and self.entries[index] is entry:
            return
        self.entries.insert(index, entry)
        self._ranks.insert(index, rank)

    def remove(self, entry: Entry, rank: Rank) -> None:
        index = bisect_left(self._ranks, rank)
        while index < len(self._ranks) and self._ranks[index] == rank:
            if self.entries[index] is entry:
                del self.entries[index], self._ranks[index]
                return
            index += 1
