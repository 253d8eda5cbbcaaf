"""The high-water mark of a journal: how far it was committed, in a small file beside it.

SQLite reads a truncated or damaged write-ahead log as far as it is good, and reports nothing. The
mark tells how far it should go. It is written after every commit, so with durability "full" it is
never ahead of the disk. It has two slots, written in turn, so that one of them is always complete.
It is never synced: after a power failure it may be behind, which is harmless. When a space is
closed its file is complete, and the mark is removed.
"""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

ENDING = ".high"
_SLOT = struct.Struct("<8sIIQQQ")
_SLOT_SIZE = _SLOT.size + 4  # with its checksum
_MAGIC = b"tupelo-6"
_CRC = struct.Struct("<I")
_PLACES = (0, 512)  # in sectors of their own
_RANGES = [slice(place, place + _SLOT_SIZE) for place in _PLACES]
_SIZE = 1_024


class HighWaterMark(NamedTuple):
    """The last committed position, the largest number of an entry, and the sum of what was living.
    `boot` tells whether the machine was restarted since; 0 if each commit was on disk before its
    mark, so that it does not matter."""

    position: int
    newest: int
    living: int
    boot: int


def file_of(journal: Path) -> Path:
    return journal.with_name(journal.name + ENDING)


def this_boot() -> int:
    """A number that changes with each start of the machine; 1 where the system has none."""
    try:
        return crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()) | 2
    except OSError:
        return 1


class HighWaterFile:
    """The mark of one journal, for writing. `space_id` distinguishes it from the mark of another
    journal with the same file name."""

    def __init__(self, journal: Path, space_id: str, *, synced: bool) -> None:
        self._path = file_of(journal)
        self._space = crc32(space_id.encode())
        self._boot = 0 if synced else this_boot()
        self._turn = 0
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size != _SIZE:
                os.ftruncate(file, 0)
                os.write(file, bytes(_SIZE))
            # Mapped into memory, because a write would update the modification time of the file at
            # every commit, which costs more than the rest.
            self._slots: mmap.mmap | None = mmap.mmap(file, _SIZE)
        finally:
            os.close(file)

    def write(self, position: int, newest: int, living: int) -> None:
        """Record that everything up to here is committed."""
        assert self._slots is not None
        slot = _SLOT.pack(_MAGIC, self._space, self._boot, position, newest, living)
        self._turn = turn = 1 - self._turn
        self._slots[_RANGES[turn]] = slot + _CRC.pack(crc32(slot))

    def close(self, *, remove: bool) -> None:
        if self._slots is not None:
            self._slots.close()
            self._slots = None
            if remove:
                with suppress(OSError):
                    self._path.unlink()


def read_mark(journal: Path, space_id: str) -> HighWaterMark | None:
    """Read the mark of this journal; None if there is no readable one."""
    try:
        content = file_of(journal).read_bytes()
    except OSError:
        return None
    space = crc32(space_id.encode())
    marks = []
    for place in _PLACES:
        slot, crc = content[place:][: _SLOT.size], content[place:][_SLOT.size : _SLOT_SIZE]
        if crc == crc32(slot).to_bytes(4, "little"):
            magic, of, boot, position, newest, living = _SLOT.unpack(slot)
            if magic == _MAGIC and of == space:
                marks.append(HighWaterMark(position, newest, living, boot))
    return max(marks, default=None)
