"""A run: entries in order of arrival, cheap to append to, to take from the front, and to search.

Removing an entry only marks it; marked entries are skipped at the front, and swept out when
there are more of them than of the living. A plain dict would not do: looking for its first key
after many deletions at the front is a scan.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from tupelo.values.entry import Entry

_arrival = attrgetter("arrival")
SWEEP_MIN = 128


class Run:
    """Entries in order of arrival, of which `dead` are gone; all before the `head` are."""

    __slots__ = ("dead", "head", "items")

    def __init__(self) -> None:
        self.items: list[Entry] = []
        self.head = 0
        self.dead = 0

    def __len__(self) -> int:
        return len(self.items) - self.dead

    def first(self) -> Entry | None:
        items, head = self.items, self.head
        end = len(items)
        while head < end:
            entry = items[head]
            if not entry.gone:
                self.head = head
                return entry
            head += 1
        self.head = head
        return None

    def removed(self) -> None:
        """One of the entries has been marked as gone."""
        self.dead = dead = self.dead + 1
        if dead > SWEEP_MIN and dead + dead > len(self.items):
            self.sweep()

    def sweep(self) -> None:
        self.items = [entry for entry in self.items[self.head :] if not entry.gone]
        self.head = self.dead = 0

    def restored(self, entry: Entry) -> None:
        """An entry that had gone is back, in its place."""
        items = self.items
        place = bisect_left(items, entry.arrival, lo=self.head, key=_arrival)
        if place < len(items) and items[place] is entry:
            self.dead -= 1
        else:
            items.insert(place, entry)  # Nobody looks before the head, should it stand there too.

    def at(self, arrival: int) -> Entry | None:
        """The one that arrived then, if it is still there."""
        place = bisect_left(self.items, arrival, lo=self.head, key=_arrival)
        if place < len(self.items):
            entry = self.items[place]
            if entry.arrival == arrival and not entry.gone:
                return entry
        return None

    def __iter__(self) -> Iterator[Entry]:
        return self.after(0)

    def after(self, arrival: int) -> Iterator[Entry]:
        """Those that arrived later than this."""
        self.first()  # moves the head, or every search would pass over the same dead again
        # By index: entries may be added or removed while a caller looks at one.
        items, place = self.items, self.head
        if arrival:
            place = bisect_right(items, arrival, lo=place, key=_arrival)
        while place < len(items):
            entry = items[place]
            if not entry.gone:
                yield entry
            place += 1

    def __reversed__(self) -> Iterator[Entry]:
        items = self.items
        while len(items) > self.head and items[-1].gone:
            items.pop()
            self.dead -= 1
        for place in range(len(items) - 1, self.head - 1, -1):
            if not items[place].gone:
                yield items[place]
