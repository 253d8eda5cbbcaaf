"""The private records of a message store: pins, taken directed messages, and reserved numbers. They
are entries of a space that only this host uses, on disk if the host has a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyroaring import BitMap64

from tupelo.errors import JournalError, SpaceClosed
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.melon.collecting import PinnedCapacity
from tupelo.models.melon.sealed import Letter
from tupelo.space.session import Seen
from tupelo.space.tasks import TaskSignal
from tupelo.values.entry import Entry, thaw
from tupelo.values.kind import kind_of
from tupelo.values.template import as_template

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

PREFIX = "tupelo.melon."


@dataclass
class Pinned:
    """The message `n` of an origin, in this space, is pinned."""

    space: str
    origin: str
    n: int


@dataclass
class TakenRecord:
    """The numbers of directed messages of one stream that were taken here, as a bitmap."""

    stream: str
    numbers: bytes


@dataclass
class Numbered:
    """The numbers up to this are reserved for directed messages of this host."""

    upto: int


Kept = TypeVar("Kept", Pinned, TakenRecord, Numbered)


class PrivateRecords:
    """The records of one message store."""

    def __init__(self, core: HostCore, name: str) -> None:
        self._hosted = core.private_space(PREFIX + name)

    def all(self, cls: type[Kept]) -> Iterator[tuple[Kept, Entry]]:
        """All records of this class, each with the entry that holds it."""
        kind = kind_of(cls)
        for entry in self._hosted.port.entries():
            if entry.shape.kind == kind:
                yield thaw(entry.shape, entry.fields), entry

    def keep(self, record: Pinned | TakenRecord | Numbered) -> tuple[Entry, int]:
        """Store a record: its entry, and the position at which it is durable."""
        written, position = self._hosted.port.write(record, None, None, None, TaskSignal, 0)
        assert isinstance(written, list)
        entry: Entry = written[0].thing
        return entry, position

    def forget(self, entry: Entry) -> int:
        """Remove a record; the position at which the removal is durable."""
        return self._hosted.port.cancel(entry)

    def require_room(self) -> None:
        """Raise DiskFull if the disk has no room for a record; nothing was done then."""
        self._hosted.port.require_room()

    def is_durable(self, position: int | None) -> bool:
        """Whether the changes up to this position are durable; False if it is None."""
        return position is not None and self._hosted.port.is_durable(position)

    async def flush(self, position: int) -> None:
        """Wait until the changes up to this position are durable."""
        if position and self._hosted.durable:
            await self._hosted.flush(position)


DELTAS_MAX = 256
"""How many records of a stream are kept before they are merged into one."""


class TakenNumbers:
    """The numbers of the directed messages that were taken here, by stream: the sender, and the
    host that stored the message and uses each number once.

    No number is ever forgotten: a carrier may deliver a message again, in any stream, and only the
    number shows that it was taken. Numbers of one host increase, so their bitmap is small: nothing
    for consecutive numbers, else two bytes each. Each take appends a record of the new numbers.
    """

    def __init__(self, private: PrivateRecords) -> None:
        self._private = private
        self._numbers: dict[str, BitMap64] = {}
        self._kept: dict[str, list[Entry]] = {}
        for record, entry in private.all(TakenRecord):
            self._of(record.stream).update(BitMap64.deserialize(record.numbers))
            self._kept[record.stream].append(entry)

    def __contains__(self, letter: Letter) -> bool:
        return letter.n in self._numbers.get(letter.stream, ())

    def _of(self, stream: str) -> BitMap64:
        self._kept.setdefault(stream, [])
        return self._numbers.setdefault(stream, BitMap64())

    def add(self, letters: Iterable[Letter]) -> int:
        """Record that these letters were taken; the position at which that is durable."""
        position = 0
        for stream, numbers in _by_stream(letters).items():
            self._of(stream).update(numbers)
            if len(self._kept[stream]) < DELTAS_MAX:
                entry, position = self._private.keep(TakenRecord(stream, numbers.serialize()))
                self._kept[stream].append(entry)
            else:
                position = self._fold(stream)
        return position

    def _fold(self, stream: str) -> int:
        """Replace all records of a stream by one."""
        numbers, kept = self._numbers[stream], self._kept[stream]
        numbers.run_optimize()
        entry, position = self._private.keep(TakenRecord(stream, numbers.serialize()))
        for old in kept:
            position = self._private.forget(old)
        kept[:] = [entry]
        return position


def _by_stream(letters: Iterable[Letter]) -> dict[str, BitMap64]:
    numbers: dict[str, BitMap64] = {}
    for letter in letters:
        numbers.setdefault(letter.stream, BitMap64()).add(letter.n)
    return numbers


class Pins:
    """The pinned messages of one store. They are changed on the loop. A pin is recorded until its
    message is taken or unpinned."""

    def __init__(self, private: PrivateRecords) -> None:
        self._private = private
        self._loop = asyncio.get_running_loop()
        self._records: dict[HostedSpace, dict[tuple[str, int], Entry]] = {}
        self._rooms: dict[HostedSpace, PinnedCapacity] = {}
        self._memory = Seen()  # With it, the space reports entries that are gone.

    def load(self, spaces: Iterable[HostedSpace], rooms: dict[HostedSpace, PinnedCapacity]) -> None:
        """Restore the recorded pins of messages that are still there."""
        self._rooms = rooms
        kept = {(one.space, one.origin, one.n): record for one, record in self._private.all(Pinned)}
        for hosted in spaces:
            if hosted in rooms:
                rooms[hosted].returned = partial(self._soon, self._keep, hosted)
            with hosted.port.atomic():
                for entry in hosted.port.entries() if kept else ():
                    record = kept.pop((_label(hosted), entry.origin, entry.n), None)
                    if record is not None:
                        self._pin(hosted, entry, record)
        for record in kept.values():  # Their messages are gone.
            self._private.forget(record)

    def add(self, hosted: HostedSpace, entry: Entry) -> int:
        """Pin a message; the position at which that is durable."""
        record, position = self._private.keep(Pinned(_label(hosted), entry.origin, entry.n))
        self._pin(hosted, entry, record)
        if entry.ended:  # A waiting taker has got it at once.
            self._forget(hosted, entry)
        return position

    def remove(self, spaces: Iterable[HostedSpace], template: Any) -> tuple[int, int]:
        """Unpin the messages that match: how many, and the position at which that is durable."""
        wanted = as_template(template)
        count = position = 0
        for hosted in spaces:
            pinned = self._records.get(hosted, {})
            with hosted.port.atomic():
                found = [
                    entry
                    for entry in (hosted.port.entries() if pinned else ())
                    if (entry.origin, entry.n) in pinned
                    and wanted.admits(entry.shape, entry.fields)
                ]
                for entry in found:
                    position = self._private.forget(pinned.pop((entry.origin, entry.n)))
                    if hosted in self._rooms:
                        self._rooms[hosted].unpin(entry)
            count += len(found)
        return count, position

    def _pin(self, hosted: HostedSpace, entry: Entry, record: Entry) -> None:
        with hosted.port.atomic():
            if hosted not in self._records:
                self._records[hosted] = {}
                forget = partial(self._soon, self._forget, hosted)
                hosted.port.listen_to_removals(forget, self._memory)
            self._records[hosted][entry.origin, entry.n] = record
            if hosted in self._rooms:
                self._rooms[hosted].pin(entry)

    # Called on any thread, under the lock of the space

    def _soon(self, change: Any, hosted: HostedSpace, entry: Entry) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(change, hosted, entry)

    def _forget(self, hosted: HostedSpace, entry: Entry) -> None:
        """Remove the record of a message that was taken."""
        record = self._records[hosted].pop((entry.origin, entry.n), None)
        if record is not None:
            with suppress(SpaceClosed, JournalError):
                self._private.forget(record)

    def _keep(self, hosted: HostedSpace, entry: Entry) -> None:
        """Record a pin again: the taker gave up, and the message has returned."""
        if (entry.origin, entry.n) not in self._records[hosted] and not entry.ended:
            with suppress(SpaceClosed, JournalError):
                self.add(hosted, entry)


def _label(hosted: HostedSpace) -> str:
    """The name of a space in the records on disk."""
    return hosted.former or hosted.name
