"""Watchers: a waiting request is an entry turned around. Which requests want this entry?

Requests are grouped by shape and by the positions at which they ask for values, so an entry
finds those that want it by looking up its own values, however many others wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from tupelo.errors import BadTemplate
from tupelo.store.plan import Question
from tupelo.values.entry import Entry, Shape
from tupelo.values.template import Check


class Watch(Protocol):
    """Something that waits: its question, and the ticket that says who came first."""

    question: Question
    ticket: int


W = TypeVar("W", bound=Watch)
Table = dict[Any, OrderedDict[W, Check | None]]
_ticket = attrgetter("ticket")


class Watchers(Generic[W]):
    """Watches by what they ask for, oldest first.

    `failures` gathers the watches whose own function raised; the core tells them.
    """

    def __init__(self) -> None:
        self._watches: dict[W, int] = {}  # → how many of its plan's targets are entered
        self._groups: dict[Shape, dict[tuple[int, ...], Table[W]]] = {}
        self._shapes_met: dict[Shape, None] = {}
        self.failures: list[tuple[W, BadTemplate]] = []

    def __len__(self) -> int:
        return len(self._watches)

    def __iter__(self) -> Iterator[W]:
        return iter(list(self._watches))

    def __contains__(self, watch: W) -> bool:
        return watch in self._watches

    def add(self, watch: W) -> None:
        self._watches[watch] = 0
        self._enter(watch)

    def discard(self, watch: W) -> None:
        entered = self._watches.pop(watch, 0)
        plan, values = watch.question
        for shape, positions, fixed, _ in plan.targets[:entered]:
            asked = values if fixed is None else fixed
            if _has_nan(asked):
                continue
            table = self._groups[shape][positions]
            key = _key(asked)
            waiting = table[key]
            waiting.pop(watch, None)
            if not waiting:
                del table[key]
                if not table:
                    del self._groups[shape][positions]

    def wanting(self, entry: Entry) -> Iterator[W]:
        """The watches that match this entry, oldest first. Discard none while you iterate."""
        if entry.shape not in self._shapes_met:
            self._shapes_met[entry.shape] = None
            for watch in self._watches:
                self._enter(watch)
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
            return self._checked(found[0], fields)
        return heapq.merge(*(self._checked(w, fields) for w in found), key=_ticket)

    def _enter(self, watch: W) -> None:
        """Put the watch where entries of every shape that it can match will look."""
        plan, values = watch.question
        targets = plan.meet()
        for shape, positions, fixed, check in targets[self._watches[watch] :]:
            asked = values if fixed is None else fixed
            if _has_nan(asked):  # It matches nothing, and a dict would find it by identity.
                continue
            table = self._groups.setdefault(shape, {}).setdefault(positions, {})
            table.setdefault(_key(asked), OrderedDict())[watch] = check
        self._watches[watch] = len(targets)

    def _checked(
        self, waiting: OrderedDict[W, Check | None], fields: tuple[Any, ...]
    ) -> Iterator[W]:
        for watch, check in waiting.items():
            try:
                wanted = check is None or check(fields)
            except BadTemplate as error:
                self.failures.append((watch, error))
            else:
                if wanted:
                    yield watch


def _key(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _has_nan(values: tuple[Any, ...]) -> bool:
    return any(value != value for value in values)
