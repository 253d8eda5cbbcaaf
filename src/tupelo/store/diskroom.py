"""Room on the disk: changes are refused before the disk is full, so that nothing is half done."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from tupelo.errors import DiskFull

logger = logging.getLogger(__name__)

RESERVE_BYTES = 8 * 2**20
"""With less free room than this, writes are refused; the rest is for operations in progress."""
TAKING_BYTES = RESERVE_BYTES // 2
"""With less than this, takes are refused too. A take needs little, and makes room."""
ENOUGH_BYTES = RESERVE_BYTES + RESERVE_BYTES // 2
"""With this much free room, writes are accepted again."""
_OVERHEAD = 3
"""Room that a large write may need, relative to its size: SQLite's log, and the file."""


class DiskRoom:
    """Free room on the disk of one journal. `is_low` is cheap to check before every change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.free: Callable[[], int] = lambda: shutil.disk_usage(path.parent).free
        self.has_refused = False  # whether a commit failed for lack of room and is still pending
        self.is_low = False

    def look(self) -> None:
        """Measure the free room. Logs when it becomes too little, and when it is enough again."""
        free = self.free()
        if self.is_low:
            if free >= ENOUGH_BYTES and not self.has_refused:
                self.is_low = False
                logger.warning("%s: the disk has room again, and the space goes on", self._path)
        elif free < RESERVE_BYTES:
            self._lower(f"{free:,} bytes are free")

    def refused(self, error: Exception) -> None:
        """A commit failed for lack of room; it is repeated when there is room."""
        self.has_refused = True
        if not self.is_low:
            self._lower(str(error))

    def committed(self) -> None:
        self.has_refused = False
        self.look()

    @property
    def may_commit(self) -> bool:
        """Whether to repeat a commit that failed for lack of room."""
        return not self.has_refused or self.free() >= RESERVE_BYTES

    def _lower(self, reason: str) -> None:
        self.is_low = True
        logger.error(
            "%s: the disk is full (%s): nothing is written until there is room", self._path, reason
        )

    def require(self, taking: bool, size: int = 0) -> None:
        """Raise DiskFull if there is no room for a take, or for a write of so many bytes."""
        free = self.free()
        needed = TAKING_BYTES if taking else RESERVE_BYTES + _OVERHEAD * size
        if self.has_refused or free < needed or (self.is_low and not taking):
            raise DiskFull(
                f"{self._path}: the disk is full: {free:,} bytes are free, and "
                f"{ENOUGH_BYTES + _OVERHEAD * size:,} are needed; nothing was done, and the space "
                "goes on when there is room"
            )

    def in_doubt(self) -> DiskFull:
        """The error for callers whose commit had no room."""
        return DiskFull(
            f"{self._path}: the disk is full: this was done in memory only, and is kept as soon as "
            "there is room",
            in_doubt=True,
        )
