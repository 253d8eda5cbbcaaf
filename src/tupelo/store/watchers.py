"""Watchers: find the requests that want an entry, as an index finds entries for a request.

Requests are grouped by shape and by the positions of their values, so an entry finds the requests
for it by looking up its own values, however many others wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from tupelo.errors import BadTemplate
from tupelo.store.plan import Question
from tupelo.values.entry import Entry, Shape
from tupelo.values.template import Check


class RequestWatch(Protocol):
    """A waiting request: its question, and its ticket, which gives the order."""

    question: Question
    ticket: int


W = TypeVar("W", bound=RequestWatch)
WaitQueue = OrderedDict[W, Check | None]
"""Requests with equal values, oldest first, and the further check of each."""

Groups = dict[tuple[int, ...], dict[Any, WaitQueue[W]]]
"""By positions, then by the values there: the queue."""

WatchPlace = tuple[WaitQueue[W], Groups[W], tuple[int, ...], Any]
"""The place of a watch: its queue, and the keys of the queue."""

_ticket = attrgetter("ticket")


class Watchers(Generic[W]):
    """Requests by the values that they want, oldest first.

    `failures` collects the requests whose own function raised; the core fails them.
    """

    def __init__(self, shapes: Mapping[Shape, None]) -> None:
        # The place of each watch for each of its targets; None where nothing can match.
        self._watches: dict[W, list[WatchPlace[W] | None]] = {}
        self._groups: dict[Shape, Groups[W]] = {}
        self._shapes = shapes  # the shapes of the store
        self._shapes_met = 0
        self.failures: list[tuple[W, BadTemplate]] = []

    def __len__(self) -> int:
        return len(self._watches)

    def __iter__(self) -> Iterator[W]:
        return iter(list(self._watches))

    def __contains__(self, watch: W) -> bool:
        return watch in self._watches

    def add(self, watch: W) -> None:
        self._meet()  # Otherwise earlier watches would come after it in new shapes.
        self._watches[watch] = []
        self._enter(watch)

    def _meet(self) -> None:
        """Add all watches to shapes that are new in the store."""
        if self._shapes_met != len(self._shapes):
            self._shapes_met = len(self._shapes)
            for watch in self._watches:
                self._enter(watch)

    def discard(self, watch: W) -> bool:
        """Remove a watch; returns whether it was there."""
        places = self._watches.pop(watch, None)
        if places is None:
            return False
        for place in places:
            if place is None:
                continue
            waiting, groups, positions, key = place
            del waiting[watch]
            # Templates without values are few and repeat; their place is kept.
            if positions and not waiting:
                table = groups[positions]
                del table[key]
                if not table:
                    del groups[positions]
        return True

    def wanting(self, entry: Entry, sees: Callable[[W], bool] | None = None) -> Iterator[W]:
        """The watches that match this entry, oldest first, of those for which `sees` is true: the
        functions of others are not called. Do not discard any during the iteration."""
        self._meet()
        groups = self._groups.get(entry.shape)
        if not groups:
            return iter(())
        found = []
        fields = entry.fields
        for positions, table in groups.items():
            if len(positions) == 1:
                waiting = table.get(fields[positions[0]])
            else:
                waiting = table.get(tuple([fields[p] for p in positions]))
            if waiting:
                found.append(waiting)
        if len(found) == 1:
            return self._checked(found[0], fields, sees)
        return heapq.merge(*(self._checked(w, fields, sees) for w in found), key=_ticket)

    def take_first(self, shape: Shape, fields: tuple[Any, ...]) -> Any:
        """Remove and return the oldest watch that wants such an entry, or None; NotImplemented if
        several kinds of watches do, if there is a function to call, or if the shape is new."""
        self._meet()
        groups = self._groups.get(shape)
        if not groups:
            return None if shape in self._shapes else NotImplemented
        found = None
        for positions, table in groups.items():
            if not positions:
                waiting = table.get(())
            elif len(positions) == 1:
                waiting = table.get(fields[positions[0]])
            else:
                waiting = table.get(tuple([fields[p] for p in positions]))
            if waiting:
                if found is not None:
                    return NotImplemented
                found = waiting
        if found is None:
            return None
        watch = next(iter(found))
        if found[watch] is not None:
            return NotImplemented
        self.discard(watch)
        return watch

    def _enter(self, watch: W) -> None:
        """Add the watch to every shape that it can match."""
        plan, values = watch.question
        places = self._watches[watch]
        targets = plan.all_targets()
        for shape, positions, fixed, check in targets[len(places) :]:
            required = values if fixed is None else fixed
            if required and _has_nan(
                required
            ):  # NaN matches nothing; a dict would find it by identity.
                places.append(None)
                continue
            groups = self._groups.setdefault(shape, {})
            key = required[0] if len(required) == 1 else required
            table = groups.setdefault(positions, {})
            waiting = table.get(key)
            if waiting is None:
                waiting = table[key] = OrderedDict()
            late = next(reversed(waiting)) if waiting else None
            waiting[watch] = check
            if late is not None and late.ticket > watch.ticket:  # It has waited before.
                for other in sorted(waiting, key=_ticket):
                    waiting.move_to_end(other)
            places.append((waiting, groups, positions, key))

    def _checked(
        self, waiting: WaitQueue[W], fields: tuple[Any, ...], sees: Callable[[W], bool] | None
    ) -> Iterator[W]:
        for watch, check in waiting.items():
            if sees is not None and not sees(watch):
                continue
            try:
                wanted = check is None or check(fields)
            except BadTemplate as error:
                self.failures.append((watch, error))
            else:
                if wanted:
                    yield watch


def _has_nan(values: tuple[Any, ...]) -> bool:
    for value in values:  # noqa: SIM110 (a generator costs more than the comparison)
        if value != value:
            return True
    return False
