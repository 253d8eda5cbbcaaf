"""What a post remembers for itself: a space of its host that nobody else has, on disk if the host
has a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyroaring import BitMap64

from tupelo.errors import SpaceClosed
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.melon.collecting import PinnedRoom
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
    """This message of a space never gives way."""

    space: str
    origin: str
    n: int


@dataclass
class TakenRecord:
    """The numbers of the directed messages of one sender that were taken here."""

    stream: str
    numbers: bytes


@dataclass
class Numbered:
    """Directed messages of this host may have had numbers up to this."""

    upto: int


Kept = TypeVar("Kept", Pinned, TakenRecord, Numbered)


class PostRecords:
    """The records of one post."""

    def __init__(self, core: HostCore, name: str) -> None:
        self._hosted = core.private_space(PREFIX + name)

    def all(self, cls: type[Kept]) -> Iterator[tuple[Kept, Entry]]:
        kind = kind_of(cls)
        for entry in self._hosted.port.entries():
            if entry.shape.kind == kind:
                yield thaw(entry.shape, entry.fields), entry

    def keep(self, record: Pinned | TakenRecord | Numbered) -> tuple[Entry, int]:
        """Keep this: the entry that it is, and the position at which that is durable."""
        operations = self._hosted.port
        written, position = operations.write(record, None, None, None, TaskSignal, 0)
        assert isinstance(written, list)
        entry: Entry = written[0].thing
        return entry, position

    def forget(self, entry: Entry) -> int:
        return self._hosted.port.cancel(entry)

    async def flush(self, position: int) -> None:
        if position and self._hosted.durable:
            await self._hosted.flush(position)


DELTAS_MAX = 256
"""So many records of a stream are kept, each of what was taken at once; then they become one."""


class Takings:
    """The numbers of the directed messages that were taken here, by stream: who has sealed them,
    and the host where they were stored, which gives a number once.

    None is ever forgotten: whoever has carried a message could bring it again, in whatever stream,
    and only its number tells. A host counts up, so the numbers take little room: none of their own
    where one follows another, else two bytes. What is added is written, and not all again.
    """

    def __init__(self, private: PostRecords) -> None:
        self._private = private
        self._numbers: dict[str, BitMap64] = {}
        self._kept: dict[str, list[Entry]] = {}
        for record, entry in private.all(TakenRecord):
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
                entry, position = self._private.keep(TakenRecord(stream, numbers.serialize()))
                self._kept[stream].append(entry)
            else:
                position = self._fold(stream)
        return position

    def _fold(self, stream: str) -> int:
        """Keep one record in place of all."""
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
        numbers.setdefault(letter.stream, BitMap64()).add(letter.number)
    return numbers


class Pins:
    """Which messages of one post never give way. They are changed on the loop, and kept until the
    message is taken or may go."""

    def __init__(self, private: PostRecords) -> None:
        self._private = private
        self._loop = asyncio.get_running_loop()
        self._records: dict[HostedSpace, dict[tuple[str, int], Entry]] = {}
        self._rooms: dict[HostedSpace, PinnedRoom] = {}
        self._memory = Seen()  # While there is one, a space says what is gone for good.

    def load(self, spaces: Iterable[HostedSpace], rooms: dict[HostedSpace, PinnedRoom]) -> None:
        """Those of an earlier life, as far as their messages are still there."""
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
        for record in kept.values():  # Its message is gone by now.
            self._private.forget(record)

    def add(self, hosted: HostedSpace, entry: Entry) -> int:
        """This never gives way; the position at which that is durable."""
        record, position = self._private.keep(Pinned(_label(hosted), entry.origin, entry.n))
        self._pin(hosted, entry, record)
        if entry.ended:  # It was given to one who waited.
            self._forget(hosted, entry)
        return position

    def remove(self, spaces: Iterable[HostedSpace], template: Any) -> tuple[int, int]:
        """What matches may give way from now on: how many that are, and the position at which that
        is durable."""
        asked = as_template(template)
        count = position = 0
        for hosted in spaces:
            pinned = self._records.get(hosted, {})
            with hosted.port.atomic():
                found = [
                    entry
                    for entry in (hosted.port.entries() if pinned else ())
                    if (entry.origin, entry.n) in pinned and asked.admits(entry.shape, entry.fields)
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

    # What comes and goes, on whatever thread, under the lock of the space

    def _soon(self, change: Any, hosted: HostedSpace, entry: Entry) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(change, hosted, entry)

    def _forget(self, hosted: HostedSpace, entry: Entry) -> None:
        """It was taken; what is kept of it need not be."""
        record = self._records[hosted].pop((entry.origin, entry.n), None)
        if record is not None:
            with suppress(SpaceClosed):
                self._private.forget(record)

    def _keep(self, hosted: HostedSpace, entry: Entry) -> None:
        """Who took it has given up, and it is back."""
        if (entry.origin, entry.n) not in self._records[hosted] and not entry.ended:
            with suppress(SpaceClosed):
                self.add(hosted, entry)


def _label(hosted: HostedSpace) -> str:
    """By what a space is named in the records on disk."""
    return hosted.former or hosted.name
