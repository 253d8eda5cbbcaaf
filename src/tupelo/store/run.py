"""A run: entries in order of arrival, cheap to append to, to take from the front, and to search.

Removing an entry only marks it; marked entries are skipped at the front, and swept out when
there are more of them than of the living. A plain dict would not do: looking for its first key
after many deletions at the front is a scan.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from tupelo.values.entry import Entry

_arrival = attrgetter("arrival")
_SWEEP_MIN = 64


class Run:
    """Entries in order of arrival; `live` counts those that are not gone."""

    __slots__ = ("head", "items", "live")

    def __init__(self) -> None:
        self.items: list[Entry] = []
        self.head = 0
        self.live = 0

    def append(self, entry: Entry) -> None:
        self.items.append(entry)
        self.live += 1

    def first(self) -> Entry | None:
        items, head = self.items, self.head
        end = len(items)
        while head < end:
            entry = items[head]
            if not entry.gone:
                self.head = head
                return entry
            head += 1
        self.items = []
        self.head = 0
        return None

    def removed(self) -> None:
        """One of the entries has been marked as gone."""
        self.live = live = self.live - 1
        if len(self.items) - live > _SWEEP_MIN + live:
            self._sweep()

    def restored(self, entry: Entry) -> None:
        """An entry that had gone is back, in its place."""
        items = self.items
        place = bisect_left(items, entry.arrival, lo=self.head, key=_arrival)
        if not (place < len(items) and items[place] is entry):
            items.insert(place, entry)  # Nobody looks before the head, should it stand there too.
        self.live += 1

    def _sweep(self) -> None:
        self.items = [entry for entry in self.items[self.head :] if not entry.gone]
        self.head = 0

    def __iter__(self) -> Iterator[Entry]:
        # By index: entries may be added or removed while a caller looks at one.
        items, place = self.items, self.head
        while place < len(items):
            entry = items[place]
            if not entry.gone:
                yield entry
            place += 1

    def __reversed__(self) -> Iterator[Entry]:
        items = self.items
        while len(items) > self.head and items[-1].gone:
            items.pop()
        for place in range(len(items) - 1, self.head - 1, -1):
            if not items[place].gone:
                yield items[place]
