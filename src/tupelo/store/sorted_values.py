"""The values of an index in ascending order, so that entries are found by the smallest or largest
value of a field."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from typing import Any

_BLOCK_MAX = 1_024
_FILL = _BLOCK_MAX // 2


class SortedValues:
    """Distinct values in ascending order. They are kept in blocks, so that adding or removing one
    moves few others. `pending` are the values of an index that are not sorted in yet."""

    __slots__ = ("_blocks", "_lasts", "pending")

    def __init__(self, pending: Iterable[Any]) -> None:
        self._blocks: list[list[Any]] = []
        self._lasts: list[Any] = []  # the last value of each block
        self.pending = list(pending)

    def sort_pending(self, count: int, living: Container[Any]) -> None:
        """Sort in so many of the pending values, as far as they are still `living`. Raises
        TypeError if they cannot be compared."""
        values = [value for value in self.pending[-count:] if value == value and value in living]
        del self.pending[-count:]
        if self.pending or self._blocks:
            for value in values:
                self.add(value)
        else:  # Sorting all is faster than adding each.
            values.sort()
            self._blocks = [values[i : i + _FILL] for i in range(0, len(values), _FILL)]
            self._lasts = [block[-1] for block in self._blocks]

    def add(self, value: Any) -> None:
        """Add a value, unless it is there. Raises TypeError if it cannot be compared. NaN has no
        place in the order and is not added."""
        if value != value:
            return
        blocks, lasts = self._blocks, self._lasts
        number = bisect_left(lasts, value)
        if number == len(blocks):  # It is the last one.
            if not blocks:
                blocks.append([])
                lasts.append(value)
            number = len(blocks) - 1
        block = blocks[number]
        place = bisect_left(block, value)
        if place < len(block) and block[place] == value:
            return
        block.insert(place, value)
        lasts[number] = block[-1]
        if len(block) > _BLOCK_MAX:
            blocks.insert(number + 1, block[_FILL:])
            del block[_FILL:]
            lasts[number : number + 1] = block[-1], blocks[number + 1][-1]

    def discard(self, value: Any) -> None:
        """Remove a value if it is there."""
        number = bisect_left(self._lasts, value) if value == value else len(self._lasts)
        if number == len(self._blocks):
            return
        block = self._blocks[number]
        place = bisect_left(block, value)
        if block[place] != value:
            return
        del block[place]
        if block:
            self._lasts[number] = block[-1]
        else:
            del self._blocks[number], self._lasts[number]

    def __iter__(self) -> Iterator[Any]:
        for block in self._blocks:
            yield from block

    def __reversed__(self) -> Iterator[Any]:
        for block in reversed(self._blocks):
            yield from reversed(block)
