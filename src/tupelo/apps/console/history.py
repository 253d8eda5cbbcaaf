"""The history of a space, from its log: the lives of entries from write to take, and the rates and
latencies of its operations. Only the newest changes are looked at, so the work has a bound."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import Any

from tupelo.apps.console.json_values import fields_to_json
from tupelo.values.change import ENDINGS, Change
from tupelo.values.template import Template

CHANGES_MAX = 5_000
"""So many changes are looked at, the newest of the log."""
LIVES_MAX = 100
EVENTS_MAX = 50
"""At most so many changes of one entry are listed."""
BUCKETS_MAX = 60


class _Life:
    """The changes of one entry, oldest first."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.shape: Any = None
        self.fields: tuple[Any, ...] | None = None

    def add(self, change: Change) -> None:
        self.changes.append(change)
        if change.shape is not None:
            self.shape, self.fields = change.shape, change.fields

    @property
    def stay(self) -> float | None:
        """Seconds from its write to its end; None if one of them is not among the changes."""
        first, last = self.changes[0], self.changes[-1]
        if first.kind != "written" or last.kind not in ENDINGS:
            return None
        return max(0.0, last.time - first.time)

    def is_of(self, template: Template | None) -> bool:
        if self.fields is None:
            return False
        return template is None or template.admits(self.shape, self.fields)

    def to_json(self) -> dict[str, Any]:
        assert self.fields is not None
        return {
            "entry": fields_to_json(self.shape.kind, self.fields),
            "seconds": self.stay,
            "events": [
                {
                    "position": one.position,
                    "time": one.time,
                    "kind": one.kind,
                    "agent": one.agent,
                    "name": one.agent_name,
                    "txn": one.txn,
                    "waited": one.waited,
                    "deliveries": one.deliveries,
                }
                for one in self.changes[-EVENTS_MAX:]
            ],
        }


def history_of(changes: list[Change], template: Template | None) -> dict[str, Any]:
    """The history as JSON: the entries that changed last and match, newest first; and the chart of
    all these changes."""
    lives: dict[int, _Life] = {}
    for change in changes:
        if change.arrival:
            found = lives.pop(change.arrival, None)  # The entry that changed last stands last.
            life = lives[change.arrival] = _Life() if found is None else found
            life.add(change)
    shown: list[dict[str, Any]] = []
    for life in reversed(lives.values()):
        if len(shown) == LIVES_MAX:
            break
        if life.is_of(template):
            shown.append(life.to_json())
    return {"changes": len(changes), "lives": shown, "chart": _chart(changes, lives.values())}


def _chart(changes: list[Change], lives: Iterable[_Life]) -> dict[str, Any]:
    """Rates of writes and takes per second, and the median of waits and stays in seconds, in at
    most BUCKETS_MAX equal parts of the time; None where there were none."""
    if not changes:
        return {"start": 0.0, "seconds": 1, "rates": {}, "latencies": {}}
    start = min(one.time for one in changes)
    span = max(one.time for one in changes) - start
    seconds = max(1, math.ceil(span / BUCKETS_MAX))
    count = min(BUCKETS_MAX, int(span // seconds) + 1)
    written, taken = [0] * count, [0] * count
    waits: list[list[float]] = [[] for _ in range(count)]
    stays: list[list[float]] = [[] for _ in range(count)]

    def bucket(change: Change) -> int:
        return min(count - 1, int((change.time - start) // seconds))

    for one in changes:
        if one.kind == "written":
            written[bucket(one)] += 1
        elif one.kind == "taken":
            taken[bucket(one)] += 1
            waits[bucket(one)].append(one.waited)
    for life in lives:
        if (stay := life.stay) is not None:
            stays[bucket(life.changes[-1])].append(stay)
    return {
        "start": start,
        "seconds": seconds,
        "rates": {
            "written": [one / seconds for one in written],
            "taken": [one / seconds for one in taken],
        },
        "latencies": {
            "takers waited": [median(one) if one else None for one in waits],
            "entries stayed": [median(one) if one else None for one in stays],
        },
    }
