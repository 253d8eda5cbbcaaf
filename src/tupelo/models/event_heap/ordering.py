"""The order of a total view, as data. No I/O and no loop.

The order is a list of places, each a source and a number in its stream. It comes in records, from
the owners of the view in turn, possibly repeated and out of order; a record that would leave a gap
is kept until the gap is filled. Only the owner, which has the whole list, adds to it, so two
records never disagree about a position.

The events of a source are placed in the order of their numbers, so the last placed number tells
which events have no place yet.

The order can be folded up to a position, its `base`: only some places before it are kept, with
their positions. The owner decides which.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import TypeVar

Place = tuple[str, int]
T = TypeVar("T")


class Ordering:
    """The order, as far as it is known here."""

    def __init__(self) -> None:
        self.base = 0
        self.kept: list[tuple[int, Place]] = []
        """The kept places before the base, with their positions."""
        self.places: list[Place] = []
        """All places from the base on."""
        self.last: dict[str, int] = {}
        self._ahead: dict[int, list[Place]] = {}
        self._starts: list[int] = []  # of those ahead, as a heap

    def __len__(self) -> int:
        return self.base + len(self.places)

    def listed(self, after: int = 0) -> Iterator[tuple[int, Place]]:
        """The places from a position on, with their positions."""
        if after < self.base:
            yield from self.kept[bisect_left(self.kept, (after,)) :]
            after = self.base
        for position in range(after, len(self)):
            yield position, self.places[position - self.base]

    def fold(self, base: int, kept: list[tuple[int, Place]], last: dict[str, int]) -> bool:
        """Keep only these places before `base`; `last`: the last placed number of each source.
        Returns whether the base has moved."""
        if base <= self.base:
            return False
        self.places = self.places[base - self.base :]
        self.base, self.kept = base, kept
        for source, number in last.items():
            self.last[source] = max(number, self.last.get(source, -1))
        self._catch_up()
        return True

    def receive(self, start: int, places: list[Place]) -> bool:
        """Add places from the position `start` on. Returns whether the known order is longer
        now."""
        before = len(self)
        if start > before:
            known = self._ahead.get(start)
            if known is None:
                heappush(self._starts, start)
            if known is None or len(places) > len(known):
                self._ahead[start] = places
            return False
        self._join(start, places)
        self._catch_up()
        return len(self) > before

    def _catch_up(self) -> None:
        while self._starts and self._starts[0] <= len(self):
            first = heappop(self._starts)
            self._join(first, self._ahead.pop(first))

    def _join(self, start: int, places: list[Place]) -> None:
        new = places[len(self) - start :]
        self.places += new
        for source, number in new:
            if number > self.last.get(source, -1):
                self.last[source] = number

    def unplaced(self, streams: Iterable[tuple[str, Callable[[int], list[int]]]]) -> list[Place]:
        """The events without a place, of these sources, each with a function that returns its
        numbers after a given one."""
        return [
            (source, number)
            for source, numbers in streams
            for number in numbers(self.last.get(source, 0))
        ]


def deliver(
    ordering: Ordering,
    after: int,
    look: Callable[[Place], T | None],
    is_gone: Callable[[Place], bool],
) -> Iterable[tuple[int, T]]:
    """The events that can be delivered from a position on: up to the first one that is neither here
    nor known to be gone."""
    for position, place in ordering.listed(after):
        found = look(place)
        if found is not None:
            yield position, found
        elif not is_gone(place):
            return
