"""Deadlines: what ends when. A renewed lease leaves its old deadline behind, to be passed over."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

_SWEEP_MIN = 1_024


class HasDeadline(Protocol):
    """Anything with a lease: it lives until `expires`, if it is not `ended` before."""

    expires: float | None

    @property
    def ended(self) -> bool: ...


class Deadlines:
    """A heap of moments; `due` gives what has ended, `next` the moment at which to look again."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, HasDeadline]] = []
        self._count = 0
        self._sweep_at = _SWEEP_MIN
        self._left = 0

    def add(self, thing: HasDeadline) -> None:
        if thing.expires is None:
            return
        self._count += 1
        heapq.heappush(self.heap, (thing.expires, self._count, thing))
        if len(self.heap) >= self._sweep_at:
            self._sweep()

    def left(self) -> None:
        """Something ended, perhaps before its deadline: it is not kept for that."""
        self._left += 1
        if self._left >= _SWEEP_MIN and 2 * self._left > len(self.heap):
            self._sweep()

    def _sweep(self) -> None:
        self._left = 0
        self.heap[:] = [d for d in self.heap if _stands(d)]
        heapq.heapify(self.heap)
        self._sweep_at = max(_SWEEP_MIN, 2 * len(self.heap))

    def due(self, now: float) -> Iterator[HasDeadline]:
        """What has ended by now, in order."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            deadline = heapq.heappop(heap)
            if _stands(deadline):
                yield deadline[2]

    def next(self) -> float | None:
        while self.heap and not _stands(self.heap[0]):
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else None


def _stands(deadline: tuple[float, int, HasDeadline]) -> bool:
    when, _, thing = deadline
    return thing.expires == when and not thing.ended
