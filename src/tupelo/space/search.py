"""Search: the matches of a query, in one step or in slices.

A sliced search notes matches, one slice at a time, so that other requests run in between. Each
slice is part of a step of its own, and the step with the last slice decides by the present state.
That is exact: the fields of an entry never change, so an entry that did not match will not match
later; new entries come after the place that was reached; and entries that return, or are released
by transactions, are offered to sliced searches as they are to waiters.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from tupelo.space.keysearch import (
    BYTES_A_STEP,
    WEIGHED_COST,
    Steps,
    TooLong,
    first_by_key,
    grow_sorted,
    lacks_sorted,
)
from tupelo.space.order import Order, arranged, by_field, needed
from tupelo.space.query import Query
from tupelo.space.transaction import Txn, may_take
from tupelo.store.index import REJECTIONS_BEFORE_INDEX, Accept, Bucket, Store, holds
from tupelo.store.plan import Question, ShapeTarget
from tupelo.values.entry import Entry, Shape, about_bytes
from tupelo.values.parts import ANY
from tupelo.values.template import Template, as_template

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.order import Key
    from tupelo.space.waiting import Waiter


SLICE_STEPS = 4_000
"""The number of comparisons in one slice, about 1 ms."""

_RANKING_STEPS = 8
"""Ranking a match counts as so many comparisons."""

_SORTING_STEPS = 4
"""Adding a value to a sorted index counts as so many comparisons."""

_arrival = attrgetter("arrival")
_rank = itemgetter(0)


class Unfinished(Exception):
    """The slice has ended, but not the search: repeat the step after others have run."""


class _SliceTrack:
    """The entries of one shape: those that matched, and the arrival up to which they were
    compared."""

    __slots__ = (
        "at_end",
        "bucket",
        "check",
        "edge",
        "found",
        "indexing",
        "positions",
        "values",
        "weighs",
    )

    def __init__(
        self, bucket: Bucket, target: ShapeTarget, values: tuple[Any, ...], after: int
    ) -> None:
        shape, self.positions, fixed, self.check = target
        self.bucket = bucket
        self.values = values if fixed is None else fixed
        self.weighs = self.check is not None and not shape.flat
        self.found: list[Entry] = []
        self.edge = after
        self.at_end = False
        self.indexing: int | None = None  # the position whose index is being built

    def matches(self, entry: Entry) -> bool:
        fields = entry.fields
        return holds(fields, self.positions, self.values) and (
            self.check is None or self.check(fields)
        )

    def scan(self, steps: int, cost: int, accept: Accept | None, enough: int | None) -> int:
        """Continue until enough entries match or no steps are left. Returns the steps left."""
        if self.indexing is not None:
            self.at_end = False
            if steps <= 0 or not self.bucket.grow_index(self.indexing, steps):
                return 0
            self.indexing = None
        rejections = 0
        found = self.found
        weighs = self.weighs or cost >= WEIGHED_COST
        for entry in self.bucket.candidates(self.positions, self.values, after=self.edge):
            if steps <= 0 or len(found) == enough:
                self.at_end = False
                return steps
            self.edge = entry.arrival
            steps -= cost
            if weighs:
                steps -= cost * (about_bytes(entry.fields) // BYTES_A_STEP)
            if self.positions and not holds(entry.fields, self.positions, self.values):
                rejections += 1
                if rejections == REJECTIONS_BEFORE_INDEX and self._lacks_index(entry):
                    return self.scan(steps, cost, accept, enough)
            elif (self.check is None or self.check(entry.fields)) and (
                accept is None or accept(entry)
            ):
                found.append(entry)
        self.at_end = True
        return steps

    def _lacks_index(self, entry: Entry) -> bool:
        """Whether an index would have skipped this entry; then it is built."""
        for position, value in zip(self.positions, self.values, strict=True):
            if entry.fields[position] != value and position not in self.bucket.indexes:
                self.indexing = position
                return True
        return False

    def add(self, entry: Entry) -> None:
        """Add an entry that was passed over and is available now."""
        place = bisect_left(self.found, entry.arrival, key=_arrival)
        if place == len(self.found) or self.found[place] is not entry:
            self.found.insert(place, entry)


class SlicedSearch:
    """One search in slices, over the entries that a request sees. The core offers entries to it
    until it is closed.

    It ends when `enough` entries have matched in each shape, in order of arrival, or all were
    compared. If the order is by a key, matches are ranked slice by slice; but if the first matches
    by a field are wanted, up to `limit`, and one slice finds them in a sorted index, no more is
    done.
    """

    def __init__(
        self,
        core: Core,
        stores: list[Store],
        template: Any,
        enough: int | None,
        backwards: bool,
        after: int,
        rank: Key | None,
        limit: int | None,
    ) -> None:
        self.enough = None if backwards else enough
        self._few = enough if backwards else None  # that may be near the end
        self._after = after
        self._cost = cost_of(template) + (_RANKING_STEPS if rank is not None else 0)
        self._core = core
        self._stores = stores
        self._template = template
        self._questions = [(store, store.question(template)) for store in stores]
        self._tracks: dict[tuple[Store, Shape], _SliceTrack] = {}
        self._returned: dict[Entry, None] = {}
        core.sliced_searches[self] = None
        self.rank = rank
        self._ranked: list[list[tuple[Any, Entry]]] = []  # of each slice
        self._unranked: list[Entry] = []
        self._limit = limit if by_field(rank) is not None else None
        self._first: list[Entry] | None = None  # in this step: the first matches by a field
        self.at_hand = False
        """In this step: whether the matches are complete, or few and near the end."""

    def close(self) -> None:
        self._core.sliced_searches.pop(self, None)

    def offer(self, entry: Entry) -> None:
        """This entry is available again."""
        self._returned[entry] = None

    def advance(self, accept: Accept | None) -> None:
        """Do a slice, under the lock. Raises Unfinished if the search has not ended."""
        self.at_hand = True
        if self._limit is not None and self._find_first(self._limit, accept):
            return
        if self._few is not None:
            few, self._few = self._few, None
            if all(
                _stand_near_the_end(store, question, few, accept, SLICE_STEPS // self._cost)
                for store, question in self._questions
            ):
                self.at_hand = False
                return
        self._meet()
        steps = self._look_at_returned(SLICE_STEPS, accept)
        for track in self._tracks.values():
            if self.enough is not None:
                track.found = [
                    entry
                    for entry in track.found
                    if not entry.gone and (accept is None or accept(entry))
                ]
                if len(track.found) >= self.enough:
                    continue
            steps = track.scan(steps, self._cost, accept, self.enough)
            if self.rank is not None and track.found:
                ranked, others = self.rank.rank(track.found)
                self._ranked.append(ranked)
                self._unranked += others
                track.found = []
            if not track.at_end and len(track.found) != self.enough:
                raise Unfinished

    def _find_first(self, limit: int, accept: Accept | None) -> bool:
        """Find the first matches by a field, after its index is sorted. False if that takes more
        than a slice: then it is not tried again."""
        order = self.rank
        assert order is not None
        count = SLICE_STEPS // _SORTING_STEPS
        if not grow_sorted(self._stores, self._template, order, count):
            raise Unfinished
        steps = Steps(SLICE_STEPS, cost_of(self._template))
        try:
            self._first = first_by_key(self._stores, self._template, order, accept, limit, steps)
        except TooLong:
            self._first = self._limit = None
            return False
        return True

    def _meet(self) -> None:
        """Make tracks for the shapes that can match, also new ones."""
        for store, (plan, values) in self._questions:
            for target in plan.all_targets():
                shape = target[0]
                if (store, shape) not in self._tracks:
                    track = _SliceTrack(store.buckets[shape], target, values, self._after)
                    self._tracks[store, shape] = track

    def _look_at_returned(self, steps: int, accept: Accept | None) -> int:
        while self._returned:
            if steps <= 0:
                raise Unfinished
            entry = next(iter(self._returned))
            del self._returned[entry]
            steps -= self._cost
            store = self._core.store if entry.txn is None else entry.txn.store
            track = None if entry.gone else self._tracks.get((store, entry.shape))
            if (
                track is not None
                and entry.arrival <= track.edge
                and (accept is None or accept(entry))
                and track.matches(entry)
            ):
                track.add(entry)
        return steps

    def matches(self, store: Store, accept: Accept | None, backwards: bool = False) -> list[Entry]:
        """In the last step: the matches in a store, in order of arrival."""
        runs = [track.found for (home, _), track in self._tracks.items() if home is store]
        if self.enough is None:  # Else this step has checked them all.
            runs = [
                [entry for entry in run if not entry.gone and (not accept or accept(entry))]
                for run in runs
            ]
        found = runs[0] if len(runs) == 1 else list(heapq.merge(*runs, key=_arrival))
        if backwards:
            found.reverse()
        return found

    def first_choices(self, limit: int | None, accept: Accept | None) -> list[Entry]:
        """In the last step: the matches in the order of their ranks."""
        assert self.rank is not None
        if self._first is not None:
            return self._first
        chosen: dict[Entry, None] = {}
        reverse = self.rank.reverse
        with self.rank.comparing():
            ranked: Iterable[tuple[Any, Entry]]
            if limit is None:  # Sorted runs are merged quickly.
                ranked = sorted(chain(*self._ranked), key=_rank, reverse=reverse)
            else:
                ranked = heapq.merge(*self._ranked, key=_rank, reverse=reverse)
            for _, entry in ranked:
                if not entry.gone and (accept is None or accept(entry)):
                    chosen[entry] = None
                    if len(chosen) == limit:
                        return list(chosen)
        for entry in sorted(self._unranked, key=_arrival):
            if not entry.gone and (accept is None or accept(entry)):
                chosen[entry] = None
        return list(chosen)[:limit]

    def count(self) -> int:
        """In the last step: the number of matches."""
        return sum(
            len(track.found) - sum(entry.gone for entry in track.found)
            for track in self._tracks.values()
        )


def begin(
    core: Core,
    stores: list[Store],
    template: Any,
    accept: Accept | None,
    enough: int | None,
    backwards: bool = False,
    after: int = 0,
    rank: Key | None = None,
    limit: int | None = None,
) -> SlicedSearch | None:
    """Begin a sliced search; None if the search fits into one slice."""
    order = None if limit is None else by_field(rank)
    if order is not None and lacks_sorted(stores, template, order):
        return SlicedSearch(core, stores, template, enough, backwards, after, rank, limit)
    cost = cost_of(template)
    steps = SLICE_STEPS
    for store in stores:
        plan, values = store.question(template)
        for shape, positions, fixed, check in plan.all_targets():
            bucket = store.buckets[shape]
            count = bucket.candidates_max(positions, values if fixed is None else fixed)
            if check is None and accept is None and enough is not None and not positions:
                count = min(count, enough)
            steps -= count * cost
            if check is not None and (not shape.flat or cost >= WEIGHED_COST):
                weights = (about_bytes(entry.fields) for entry in islice(bucket, count))
                for weight in weights:
                    steps -= cost * (weight // BYTES_A_STEP)
                    if steps <= 0:
                        break
            if steps <= 0:
                return SlicedSearch(core, stores, template, enough, backwards, after, rank, limit)
    return None


def cost_of(template: Any) -> int:
    """The largest number of comparisons for one entry."""
    return template.cost if type(template) is Template else 1


def _stand_near_the_end(
    store: Store, question: Question, enough: int, accept: Accept | None, look: int
) -> bool:
    """Whether the last entries of each shape contain enough matches, or all its entries."""
    plan, values = question
    for target in plan.all_targets():
        bucket = store.buckets[target[0]]
        if len(bucket) > look:
            track = _SliceTrack(bucket, target, values, 0)
            last = islice(reversed(bucket), look)
            matching = (e for e in last if track.matches(e) and (accept is None or accept(e)))
            if sum(1 for _ in islice(matching, enough)) < enough:
                return False
    return True


def stores_of(core: Core, txn: Txn | None) -> list[Store]:
    """The stores that an operation sees, the oldest entries first."""
    if txn is None:
        return [core.store]
    return [core.store, *[above.store for above in reversed(list(txn.line()))]]


def acceptance(core: Core, query: Query) -> Accept | None:
    """A filter for matches: not seen by the session, not held by others."""
    only, take, txn, session = query.only, query.take, query.txn, query.session
    if only is not None:
        return lambda entry: only(entry) and not (take and not may_take(entry, txn))
    if session is not None:
        seen = session.seen
        return lambda entry: entry not in seen
    if take and core.read_locks:
        return lambda entry: may_take(entry, txn)
    return None


def sees(entry: Entry, waiter: Waiter) -> bool:
    """Whether a waiting operation can see this entry."""
    query = waiter.query
    if query.session is not None and entry in query.session.seen:
        return False
    if query.only is not None and not query.only(entry):
        return False
    writer: Txn | None = entry.txn
    return writer is None or (query.txn is not None and writer in query.txn.line())


def search(core: Core, query: Query) -> list[Entry]:
    """The available matches, in the order of the query or the space."""
    raw, order = query.template, query.order or core.order
    accept = acceptance(core, query)
    if order is not None and order.head_only:
        question = core.store.question(raw)
        heads = _ordered(core, ANY, 1, query.txn, order, None)
        return [
            head
            for head in heads
            if core.store.is_match(question, head) and (accept is None or accept(head))
        ]
    if query.committed:
        taken = _taken_by_others(core, query)
        if taken:
            return _with_taken(core, query, order, taken)
    if query.sliced is not None:
        query.sliced.advance(accept)
    elif order is not None and raw is ANY and query.session is None and query.only is None:
        chosen = order.select(query.txn, _locked_by_others(core, query))
        if chosen is not None:
            return chosen[: query.limit]
    return _ordered(core, raw, query.limit, query.txn, order, accept, query.sliced)


def _locked_by_others(core: Core, query: Query) -> Iterator[Entry]:
    """The entries that a take may not have because others have read them."""
    if query.take and core.read_locks:
        for other in core.transactions:
            for entry in other.read:
                if not may_take(entry, query.txn):
                    yield entry


def _taken_by_others(core: Core, query: Query) -> list[Entry]:
    """The matches that others have taken in open transactions. Entries of prepared transactions
    count as taken."""
    template, now = as_template(query.template), core.now()
    line = () if query.txn is None else tuple(query.txn.line())
    return [
        entry
        for other in core.transactions
        if other.state == "active" and other not in line
        for entry, home in other.taken.items()
        if home is None
        and (entry.expires is None or entry.expires > now)
        and template.admits(entry.shape, entry.fields)
    ]


def _with_taken(core: Core, query: Query, order: Order | None, taken: list[Entry]) -> list[Entry]:
    first, *own = stores_of(core, query.txn)
    question = first.question(query.template)
    found = sorted([*first.matches(question), *taken], key=_arrival)
    for store in own:
        found.extend(store.matches(store.question(query.template)))
    if order is None:
        return found[: query.limit]
    return arranged(order, found[::-1] if order.backwards else found, query.limit)


def _ordered(
    core: Core,
    raw: Any,
    limit: int | None,
    txn: Txn | None,
    order: Order | None,
    accept: Accept | None,
    sliced: SlicedSearch | None = None,
) -> list[Entry]:
    if sliced is not None and sliced.rank is not None:
        return sliced.first_choices(limit, accept)
    found: list[Entry] = []
    stores = stores_of(core, txn)
    if order is not None and limit is not None and sliced is None:
        key = by_field(order)
        if key is not None:
            return first_by_key(stores, raw, key, accept, limit, Steps())
        walk = order.walk()
        if walk is not None:
            return _first_on(walk, core, raw, limit, txn, order, accept)
    backwards = order is not None and order.backwards
    enough = limit if order is None else needed(order, limit)
    for store in reversed(stores) if backwards else stores:
        if sliced is not None and sliced.at_hand:
            matches = iter(sliced.matches(store, accept, backwards))
        elif enough == 1 and not backwards:
            first = store.first(store.question(raw), accept)
            matches = iter(()) if first is None else iter((first,))
        else:
            matches = store.matches(store.question(raw), accept, backwards)
        found.extend(islice(matches, None if enough is None else enough - len(found)))
    return found if order is None else arranged(order, found, limit)


def _first_on(
    walk: Iterable[Entry],
    core: Core,
    raw: Any,
    limit: int,
    txn: Txn | None,
    order: Order,
    accept: Accept | None,
) -> list[Entry]:
    """The first matches on the walk of an order. For each step of the walk one match is looked up
    by content, so that a few matches are all found before the walk reaches them."""
    own = () if txn is None else tuple(txn.line())
    question = core.store.question(raw)
    matches = chain.from_iterable(
        store.matches(store.question(raw), accept) for store in stores_of(core, txn)
    )
    first: list[Entry] = []
    found: list[Entry] = []
    for entry in walk:
        match = next(matches, None)
        if match is None:
            return arranged(order, found, limit)
        found.append(match)
        is_here = not entry.gone and (entry.txn is None or entry.txn in own)
        if is_here and core.store.is_match(question, entry) and (accept is None or accept(entry)):
            first.append(entry)
            if len(first) == limit:
                break
    return first
