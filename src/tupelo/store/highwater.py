"""The high-water mark of a journal: how far it was committed, in a small file beside it.

SQLite reads a write-ahead log that is cut or damaged as far as it is good, and reports nothing. The
mark tells how far it should go. It is written after every commit, so with durability "full" it is
never ahead of the disk. It has two slots that are written in turn, so that one of them is always
whole. It is never synced: after a loss of power it may be behind, and then it claims less, but
nothing wrong. When a space is closed its file has everything, and the mark is removed.
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
    """Up to which position changes were committed, the newest number of an entry, and the sum of
    what was living. `boot` tells whether the machine was started since; 0 if each commit was on the
    disk before its mark, so that it does not matter."""

    position: int
    newest: int
    living: int
    boot: int


def file_of(journal: Path) -> Path:
    return journal.with_name(journal.name + ENDING)


def this_boot() -> int:
    """A number for the time since the machine was started; 1 where the system has none."""
    try:
        return crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()) | 2
    except OSError:
        return 1


class HighWaterFile:
    """The mark of one journal, while it is written. `space_id` tells it from that of another
    journal that had the same file name."""

    def __init__(self, journal: Path, space_id: str, *, synced: bool) -> None:
        self._path = file_of(journal)
        self._space = crc32(space_id.encode())
        self._boot = 0 if synced else this_boot()
        self._turn = 0
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size != _SIZE:
                os.ftruncate(file, 0)
                os.write(file, bytes(_SIZE))
            # Mapped, as SQLite maps its index of the log: a write would cost the file system a new
            # time of change for every commit, which is dearer than all else here.
            self._slots: mmap.mmap | None = mmap.mmap(file, _SIZE)
        finally:
            os.close(file)

    def write(self, position: int, newest: int, living: int) -> None:
        """Say that everything up to here is committed."""
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
    """The mark of this journal; None if there is none that can be read."""
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
