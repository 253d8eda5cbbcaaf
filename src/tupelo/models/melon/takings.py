"""Takings: which directed messages were taken here, on disk if the host has a folder.

Each is known by who has sealed it, the host where it was stored, and the number that this host has
given once. None is ever forgotten: whoever has carried it could bring it again, in whatever stream,
and only its number tells. A host counts up, so the numbers take little room: none of their own
where one follows another, else two bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap64

from tupelo.models.melon.private import Private, Taken
from tupelo.models.melon.sealed import Letter
from tupelo.values.entry import Entry

DELTAS_MAX = 256
"""So many records of a stream are kept, each of what was taken at once; then they become one."""


class Takings:
    """The numbers of what was taken, by stream. What is added is written, and not all again."""

    def __init__(self, private: Private) -> None:
        self._private = private
        self._numbers: dict[str, BitMap64] = {}
        self._kept: dict[str, list[Entry]] = {}
        for record, entry in private.all(Taken):
            self._of(record.stream).update(BitMap64.deserialize(record.numbers))
            self._kept[record.stream].append(entry)

    def __contains__(self, letter: Letter) -> bool:
        return letter.number in self._numbers.get(letter.stream, ())

    def _of(self, stream: str) -> BitMap64:
        self._kept.setdefault(stream, [])
        return self._numbers.setdefault(stream, BitMap64())

    def add(self, letters: Iterable[Letter]) -> int:
        """These are taken; the position at which that is durable."""
        position = 0
        for stream, numbers in _by_stream(letters).items():
            self._of(stream).update(numbers)
            if len(self._kept[stream]) < DELTAS_MAX:
                entry, position = self._private.keep(Taken(stream, numbers.serialize()))
                self._kept[stream].append(entry)
            else:
                position = self._fold(stream)
        return position

    def discard(self, letters: Iterable[Letter]) -> int:
        """These are not, after all."""
        position = 0
        for stream, numbers in _by_stream(letters).items():
            self._of(stream).difference_update(numbers)
            position = self._fold(stream)
        return position

    def _fold(self, stream: str) -> int:
        """Keep one record in place of all."""
        numbers, kept = self._numbers[stream], self._kept[stream]
        numbers.run_optimize()
        entry, position = self._private.keep(Taken(stream, numbers.serialize()))
        for old in kept:
            position = self._private.forget(old)
        kept[:] = [entry]
        return position


def _by_stream(letters: Iterable[Letter]) -> dict[str, BitMap64]:
    numbers: dict[str, BitMap64] = {}
    for letter in letters:
        numbers.setdefault(letter.stream, BitMap64()).add(letter.number)
    return numbers
