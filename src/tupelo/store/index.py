"""The index: finds entries by content, in memory.

Entries are grouped by shape. Within a shape a field gets an index when a search that asked for
a value there had to pass over many entries, so a queue never pays for indexes that it does not
use. Types are part of the shape, so 1, 1.0 and True never share a key.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from tupelo.store.plan import Planner, Question, Target
from tupelo.store.run import Run
from tupelo.values.entry import Entry, Shape
from tupelo.values.template import Check

Accept = Callable[[Entry], bool]

REJECTIONS_BEFORE_INDEX = 32
_arrival = attrgetter("arrival")


class Bucket:
    """The entries of one shape, and the indexes of its fields: value → entry, or run of them."""

    __slots__ = ("indexes", "run")

    def __init__(self) -> None:
        self.run = Run()
        self.indexes: dict[int, dict[Any, Entry | Run]] = {}

    def add(self, entry: Entry) -> None:
        self.run.append(entry)
        if self.indexes:
            fields = entry.fields
            for position, index in self.indexes.items():
                _add(index, fields[position], entry)

    def removed(self, entry: Entry) -> None:
        self.run.removed()
        for position, index in self.indexes.items():
            value = entry.fields[position]
            held = index[value]
            if isinstance(held, Run):
                held.removed()
                if not held.live:
                    del index[value]
            else:
                del index[value]

    def restored(self, entry: Entry) -> None:
        self.run.restored(entry)
        for position, index in self.indexes.items():
            value = entry.fields[position]
            held = index.get(value)
            if isinstance(held, Run):
                held.restored(entry)
            elif held is None:
                index[value] = entry
            else:
                index[value] = _run_of(*sorted((held, entry), key=_arrival))

    def build_index(self, position: int) -> None:
        index: dict[Any, Entry | Run] = {}
        for entry in self.run:
            _add(index, entry.fields[position], entry)
        self.indexes[position] = index

    def narrowest(self, positions: tuple[int, ...], values: tuple[Any, ...]) -> Run | Entry | None:
        """The shortest run known to hold every match, or the only candidate, or None."""
        best = self.run
        for position, value in zip(positions, values, strict=True):
            index = self.indexes.get(position)
            if index is not None:
                held = index.get(value)
                if not isinstance(held, Run):
                    return held
                if held.live < best.live:
                    best = held
        return best

    def search(
        self,
        positions: tuple[int, ...],
        values: tuple[Any, ...],
        check: Check | None,
        accept: Accept | None,
        reverse: bool = False,
    ) -> Iterator[Entry]:
        """The matches, in order of arrival. Builds an index when one would have paid."""
        held = self.narrowest(positions, values)
        if not isinstance(held, Run):
            if held is None:
                return
            candidates: Any = (held,)
        else:
            candidates = reversed(held) if reverse else held
        rejections = 0
        for entry in candidates:
            fields = entry.fields
            for position, value in zip(positions, values, strict=True):
                if fields[position] != value:
                    rejections += 1
                    if rejections == REJECTIONS_BEFORE_INDEX and position not in self.indexes:
                        self.build_index(position)
                        last = entry.arrival
                        for later in self.search(positions, values, check, accept, reverse):
                            if (later.arrival < last) if reverse else (later.arrival > last):
                                yield later
                        return
                    break
            else:
                if (check is None or check(fields)) and (accept is None or accept(entry)):
                    yield entry


class Store:
    """All entries that one space, or one transaction, can find."""

    def __init__(self) -> None:
        self._planner = Planner()
        self._buckets: dict[Shape, Bucket] = {}
        self.question = self._planner.question

    def __len__(self) -> int:
        return sum(bucket.run.live for bucket in self._buckets.values())

    def add(self, entry: Entry) -> None:
        bucket = self._buckets.get(entry.shape)
        if bucket is None:
            bucket = self.know(entry.shape)
        bucket.add(entry)

    def know(self, shape: Shape) -> Bucket:
        """Make room for entries of this shape, so that plans meet it."""
        bucket = self._buckets.get(shape)
        if bucket is None:
            bucket = self._buckets[shape] = Bucket()
            self._planner.shapes[shape] = None
        return bucket

    def remove(self, entry: Entry) -> None:
        entry.gone = True
        self._buckets[entry.shape].removed(entry)

    def restore(self, entry: Entry) -> None:
        """Put back, in its place, an entry that was removed from this store."""
        entry.gone = False
        self._buckets[entry.shape].restored(entry)

    def first(self, question: Question, accept: Accept | None = None) -> Entry | None:
        """The match that arrived first."""
        plan, values = question
        targets = plan.meet()
        if len(targets) == 1:
            return self._first_in(targets[0], values, accept)
        best: Entry | None = None
        for target in targets:
            entry = self._first_in(target, values, accept)
            if entry is not None and (best is None or entry.arrival < best.arrival):
                best = entry
        return best

    def _first_in(
        self, target: Target, values: tuple[Any, ...], accept: Accept | None
    ) -> Entry | None:
        shape, positions, fixed, check = target
        bucket = self._buckets[shape]
        if not positions:
            if check is None and accept is None:
                return bucket.run.first()
        elif check is None and accept is None:
            # The common question, for one key that is indexed, without a generator.
            if fixed is None:
                fixed = values
            if len(positions) == 1:
                index = bucket.indexes.get(positions[0])
                if index is not None:
                    value = fixed[0]
                    if value != value:  # NaN, which a dict would find by identity
                        return None
                    held = index.get(value)
                    return held.first() if isinstance(held, Run) else held
        found = bucket.search(positions, values if fixed is None else fixed, check, accept)
        return next(found, None)

    def matches(
        self, question: Question, accept: Accept | None = None, reverse: bool = False
    ) -> Iterator[Entry]:
        """Every match in order of arrival, or the other way round."""
        plan, values = question
        found = [
            self._buckets[shape].search(
                positions, values if fixed is None else fixed, check, accept, reverse
            )
            for shape, positions, fixed, check in plan.meet()
        ]
        if len(found) == 1:
            return found[0]
        return heapq.merge(*found, key=_arrival, reverse=reverse)

    def count(self, question: Question) -> int:
        plan, values = question
        total = 0
        for shape, positions, fixed, check in plan.meet():
            bucket = self._buckets[shape]
            if not positions and check is None:
                total += bucket.run.live
            else:
                asked = values if fixed is None else fixed
                total += sum(1 for _ in bucket.search(positions, asked, check, None))
        return total

    def __iter__(self) -> Iterator[Entry]:
        return heapq.merge(*(bucket.run for bucket in self._buckets.values()), key=_arrival)


def _add(index: dict[Any, Entry | Run], value: Any, entry: Entry) -> None:
    held = index.get(value)
    if held is None:
        index[value] = entry
    elif isinstance(held, Run):
        held.append(entry)
    else:
        index[value] = _run_of(held, entry)


def _run_of(first: Entry, second: Entry) -> Run:
    run = Run()
    run.append(first)
    run.append(second)
    return run
