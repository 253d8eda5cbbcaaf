"""The order of a total view: which event comes after which. No I/O and no loop.

It is a list of places, each a source and a number of its stream. It comes in batches, from whoever
owned the view at the time, perhaps more than once and not in order; a batch that would leave a hole
is kept until the hole is filled. One who owns the view has the whole list, and only it adds to it,
so two batches never say different things of one position.

Of each source events are placed in the order of their numbers. So it is enough to remember the last
one, to know which have no place yet.

The order can be folded up to a position, its `base`: of the places before that only some are kept,
with their positions. The owner says which, and the others do as it says.
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
        """What is left of the places before the base, with their positions."""
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
        """Before `base`, these are left, and of each source this was the last. Is that news?"""
        if base <= self.base:
            return False
        self.places = self.places[base - self.base :]
        self.base, self.kept = base, kept
        for source, number in last.items():
            self.last[source] = max(number, self.last.get(source, -1))
        self._catch_up()
        return True

    def receive(self, start: int, places: list[Place]) -> bool:
        """Positions from `start` on. Is more known now than before?"""
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
        """The events that have no place yet, of these sources: each with a function that gives the
        numbers that are here after one."""
        return [
            (source, number)
            for source, numbers in streams
            for number in numbers(self.last.get(source, 0))
        ]

    def copy(self) -> Ordering:
        twin = Ordering()
        twin.fold(self.base, list(self.kept), self.last)
        twin.receive(self.base, list(self.places))
        return twin


def deliver(
    ordering: Ordering,
    after: int,
    look: Callable[[Place], T | None],
    is_gone: Callable[[Place], bool],
) -> Iterable[tuple[int, T]]:
    """What may be delivered, from a position on: up to the first that is not here, and not known to
    be gone either."""
    for position, place in ordering.listed(after):
        found = look(place)
        if found is not None:
            yield position, found
        elif not is_gone(place):
            return
