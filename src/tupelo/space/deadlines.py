"""Deadlines: what ends when. A renewed lease leaves its old deadline behind, to be passed over."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

_SWEEP_MIN = 1_024


class Leased(Protocol):
    """Anything with a lease: it lives until `expires`, if it is not `ended` before."""

    expires: float | None

    @property
    def ended(self) -> bool: ...


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Leased]] = []
        self._count = 0
        self._sweep_at = _SWEEP_MIN

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, thing: Leased) -> None:
        if thing.expires is None:
            return
        self._count += 1
        heapq.heappush(self._heap, (thing.expires, self._count, thing))
        if len(self._heap) >= self._sweep_at:
            self._heap = [d for d in self._heap if _stands(d)]
            heapq.heapify(self._heap)
            self._sweep_at = max(_SWEEP_MIN, 2 * len(self._heap))

    def due(self, now: float) -> Iterator[Leased]:
        """What has ended by now, in order."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            deadline = heapq.heappop(heap)
            if _stands(deadline):
                yield deadline[2]
            heap = self._heap

    def next(self) -> float | None:
        while self._heap and not _stands(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


def _stands(deadline: tuple[float, int, Leased]) -> bool:
    when, _, thing = deadline
    return thing.expires == when and not thing.ended
