"""Search in the order of a field: the first matches by a `Key`, found without looking at all.

The entries of each shape are walked in the order of a sorted index and tested, and the walks of
several shapes are merged. If the template has values with an index of their own, the entries that
it finds are looked at side by side with the walk, so that a few matches among many entries are all
found before the walk has reached them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any
from uuid import UUID

from tupelo.space.order import Key, is_nan
from tupelo.store.index import (
    INDEX_AT_ONCE,
    REJECTIONS_BEFORE_INDEX,
    Accept,
    Bucket,
    EntryRun,
    Store,
    holds,
)
from tupelo.store.plan import ShapeTarget
from tupelo.values.entry import Entry, about_bytes

SORTED_TYPES = frozenset({bool, int, float, str, bytes, datetime, UUID})
"""The types of fields that get a sorted index."""

BYTES_A_STEP = 64
"""So many bytes of a value in lists or dicts count as one more comparison."""
WEIGHED_COST = 16
"""Where an entry costs so many comparisons, as with a Regex, all its bytes count so."""

Keyed = tuple[Any, Entry]
_arrival = attrgetter("arrival")
_first = itemgetter(0)


class TooLong(Exception):
    """The search would take more comparisons than it may."""


class Steps:
    """The comparisons that a search may make; None for any number."""

    def __init__(self, left: int | None = None, cost: int = 1) -> None:
        self._left = left
        self._cost = cost
        self.limited = left is not None
        self.weighs = cost >= WEIGHED_COST

    def use(self, count: int = 1) -> None:
        if self._left is not None:
            self._left -= count * self._cost
            if self._left < 0:
                raise TooLong


class _Track:
    """The entries of one shape in one store, and what is asked for."""

    def __init__(
        self, store: Store, target: ShapeTarget, values: tuple[Any, ...], accept: Accept | None
    ) -> None:
        shape, self.positions, fixed, self.check = target
        self.shape = shape
        self.bucket: Bucket = store.buckets[shape]
        self.values = values if fixed is None else fixed
        self._accept = accept
        self._weighs = self.check is not None and not shape.flat

    @property
    def candidates_max(self) -> int:
        return self.bucket.candidates_max(self.positions, self.values)

    def candidates(self) -> Iterator[Entry] | None:
        """The entries that the indexes find for the template; None if these are all."""
        if self.bucket.narrowest(self.positions, self.values) is self.bucket:
            return None
        return self.bucket.candidates(self.positions, self.values, after=0)

    def matches(self, entry: Entry, steps: Steps) -> bool:
        weighs = self._weighs or steps.weighs
        steps.use(1 + about_bytes(entry.fields) // BYTES_A_STEP if weighs else 1)
        return (
            holds(entry.fields, self.positions, self.values)
            and (self.check is None or self.check(entry.fields))
            and (self._accept is None or self._accept(entry))
        )

    def by_arrival(self, steps: Steps) -> Iterator[Entry]:
        if not steps.limited:
            return self.bucket.search(self.positions, self.values, self.check, self._accept)
        found = self.bucket.candidates(self.positions, self.values, after=0)
        return (entry for entry in found if self.matches(entry, steps))

    def position(self, order: Key) -> int | None:
        """The position of the key, if a walk in its order pays: many entries are candidates, and
        the field can be sorted."""
        position = order.position_in(self.shape)
        if (
            position is None
            or self.shape.types[position] not in SORTED_TYPES
            or self.bucket.sorted.get(position, 0) is None
            or self.candidates_max <= REJECTIONS_BEFORE_INDEX
        ):
            return None
        return position

    def walk(self, order: Key, position: int, steps: Steps) -> Iterator[Entry]:
        """The matches in the order of a sorted index."""
        others = self.candidates()
        found: list[Entry] = []
        given = rejections = 0
        for entry in self.bucket.in_order(position, order.reverse):
            if others is not None:
                other = next(others, None)
                if other is None:  # All matches are found, and the first of them were given.
                    yield from islice(order.arrange(found), given, None)
                    return
                if not is_nan(other.fields[position]) and self.matches(other, steps):
                    found.append(other)
            if self.matches(entry, steps):
                given += 1
                yield entry
            elif not steps.limited:
                rejections += 1
                if rejections == REJECTIONS_BEFORE_INDEX and self._build_index(entry):
                    others, found = self.candidates(), []

    def _build_index(self, rejected: Entry) -> bool:
        """Build an index that would have skipped this entry. False if there is none to build."""
        for position, value in zip(self.positions, self.values, strict=True):
            if rejected.fields[position] != value and position not in self.bucket.indexes:
                self.bucket.build_index(position)
                return True
        return False

    def nans(self, position: int, steps: Steps) -> Iterator[Entry]:
        """The matches with NaN in a field that has an index, in order of arrival."""
        held = [held for value, held in self.bucket.indexes[position].items() if is_nan(value)]
        found = chain.from_iterable(one if isinstance(one, EntryRun) else (one,) for one in held)
        for entry in sorted(found, key=_arrival):
            if self.matches(entry, steps):
                yield entry

    def search(self, order: Key, steps: Steps) -> tuple[Iterator[Keyed], Iterator[Entry]]:
        """The matches with their keys, in the order of their keys; and those without a key, in
        order of arrival."""
        if order.position_in(self.shape) is None:
            return iter(()), self.by_arrival(steps)
        position = self.position(order)
        if position is not None:
            bucket = self.bucket
            if not steps.limited:
                bucket.grow_sorted(position, 2 * len(bucket.items) + 2)
            if bucket.is_sorted(position):
                walk = self.walk(order, position, steps)
                keyed = ((entry.fields[position], entry) for entry in walk)
                is_float = self.shape.types[position] is float
                return keyed, self.nans(position, steps) if is_float else iter(())
        found, others = order.keyed(list(self.by_arrival(steps)))
        with order.comparing():  # The sort is stable.
            found.sort(key=_first, reverse=order.reverse)
        return iter(found), iter(others)


def _tracks(stores: list[Store], raw: Any, accept: Accept | None) -> Iterator[list[_Track]]:
    """The tracks of each store."""
    for store in stores:
        plan, values = store.question(raw)
        yield [_Track(store, target, values, accept) for target in plan.all_targets()]


def lacks_sorted(stores: list[Store], raw: Any, order: Key) -> bool:
    """Whether the search would sort a large index."""
    for track in chain.from_iterable(_tracks(stores, raw, None)):
        if len(track.bucket) > INDEX_AT_ONCE:
            position = track.position(order)
            if position is not None and not track.bucket.is_sorted(position):
                return True
    return False


def grow_sorted(stores: list[Store], raw: Any, order: Key, count: int) -> bool:
    """Sort so many more values, where a walk pays. True when all are sorted."""
    return all(
        track.bucket.is_sorted(position) or track.bucket.grow_sorted(position, count)
        for track in chain.from_iterable(_tracks(stores, raw, None))
        if (position := track.position(order)) is not None
    )


def first_by_key(
    stores: list[Store], raw: Any, order: Key, accept: Accept | None, limit: int, steps: Steps
) -> list[Entry]:
    """The first matches in the order of a field: what the order would arrange first, of all
    matches. Raises TooLong if that takes more steps than it may."""
    sign = -1 if order.reverse else 1  # Of equal keys, the oldest comes first.
    ranked: list[Iterator[tuple[Any, Entry]]] = []
    others: list[Iterator[Entry]] = []

    def with_ranks(keyed: Iterator[Keyed], number: int) -> Iterator[tuple[Any, Entry]]:
        for key, entry in keyed:
            yield (key, sign * number, sign * entry.arrival), entry

    for number, tracks in enumerate(_tracks(stores, raw, accept)):
        found = [track.search(order, steps) for track in tracks]
        ranked += [with_ranks(keyed, number) for keyed, _ in found]
        others.append(heapq.merge(*(unkeyed for _, unkeyed in found), key=_arrival))
    merged = ranked[0] if len(ranked) == 1 else heapq.merge(*ranked, key=_first, reverse=sign < 0)
    with order.comparing():
        first = [entry for _, entry in islice(merged, limit)]
    return [*first, *islice(chain.from_iterable(others), limit - len(first))]
