"""Capacity: bounds of a space, and which entries are evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tupelo.errors import BadArgument, SpaceFull
from tupelo.values.checks import is_int
from tupelo.values.codec import encode_entry
from tupelo.values.entry import Entry, Shape

SUNK = "tupelo.sunk"
"""Kind of the entries that the pipeline's sink writes with each part of a batch."""


def is_protected(shape: Shape) -> bool:
    return shape.kind is not None and shape.kind.name == SUNK


@dataclass(frozen=True)
class Capacity:
    """Bounds by number of entries and by bytes (as encoded on disk and in messages).

    In a full space a write raises SpaceFull; with `evict="fifo"` the oldest entries are evicted
    instead, with `evict="lru"` the ones that were read longest ago. Protected entries, delayed ones
    that are not visible yet, and those that a transaction holds, are never evicted.
    """

    entries: int | None = None
    size_bytes: int | None = None
    evict: Literal["fifo", "lru"] | None = None

    def __post_init__(self) -> None:
        for name in ("entries", "size_bytes"):
            bound = getattr(self, name)
            if bound is not None and (not is_int(bound) or bound < 1):
                raise BadArgument(name, "a whole number above 0, or None", bound)
        if self.evict not in (None, "fifo", "lru"):
            raise BadArgument("evict", '"fifo", "lru" or None', self.evict)


class CapacityLimit:
    """The entries of a bounded space with their sizes, uncommitted ones included, in the order of
    their last use."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._held: OrderedDict[Entry, int] = OrderedDict()
        self._bytes = 0

    def require(
        self, coming: list[Entry], stored: Iterable[Entry], taken: Iterable[Entry] = ()
    ) -> None:
        """Raise SpaceFull if these entries cannot be made to fit. Changes nothing.

        Entries that the writer's own transaction has `taken` leave when it commits, and so make
        room.
        """
        size = sum(map(self._size, coming))
        count = len(self._held) + len(coming)
        held = self._bytes + size
        for entry in taken:
            count -= 1
            held -= self._held[entry]
        _, enough = self._victims(count, held, (), stored)
        if not enough:
            raise SpaceFull(self._full(len(coming)), hopeless=self._exceeds(len(coming), size))

    def _exceeds(self, count: int, size: int) -> bool:
        """Whether this exceeds the capacity even of an empty space."""
        capacity = self._capacity
        return (capacity.entries is not None and count > capacity.entries) or (
            capacity.size_bytes is not None and size > capacity.size_bytes
        )

    def overflow(self, newest: Iterable[Entry], stored: Iterable[Entry]) -> list[Entry]:
        """The entries to be evicted for the newest ones, which are in the space already."""
        for entry in newest:
            self.touch(entry)
        victims, _ = self._victims(len(self._held), self._bytes, newest, stored)
        return victims

    def _victims(
        self, count: int, size: int, spared: Iterable[Entry], stored: Iterable[Entry]
    ) -> tuple[list[Entry], bool]:
        """The entries that would be evicted, and whether that suffices. Protected entries, and
        those that transactions hold, stay."""
        capacity = self._capacity
        victims: list[Entry] = []
        kept = set(spared)
        order = self._held if capacity.evict == "lru" else stored
        candidates = (
            e
            for e in order
            if e.txn is None
            and e.visible is None
            and not e.readers
            and e not in kept
            and not is_protected(e.shape)
        )
        while self._exceeds(count, size):
            victim = next(candidates, None) if capacity.evict else None
            if victim is None:
                return victims, False
            victims.append(victim)
            count -= 1
            size -= self._held[victim]
        return victims, True

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._held[entry] = size = self._size(entry)
            self._bytes += size

    def touch(self, entry: Entry) -> None:
        if self._capacity.evict == "lru" and entry in self._held:
            self._held.move_to_end(entry)

    def remove(self, entry: Entry) -> None:
        self._bytes -= self._held.pop(entry, 0)

    def _size(self, entry: Entry) -> int:
        if self._capacity.size_bytes is None:
            return 0
        return len(encode_entry(entry.shape, entry.fields))

    def _full(self, coming: int) -> str:
        return full_text(self._capacity.entries, self._capacity.size_bytes, coming)


def full_text(entries: int | None, size_bytes: int | None, coming: int) -> str:
    """The message of SpaceFull: the bounds, and how many entries do not fit."""
    bounds = [
        f"{bound} {unit}"
        for bound, unit in ((entries, "entries"), (size_bytes, "bytes"))
        if bound is not None
    ]
    what = "the entry does" if coming == 1 else f"the {coming} entries do"
    return f"the space holds at most {' and '.join(bounds)}, and {what} not fit"
