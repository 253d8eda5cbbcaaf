"""A lock on a file name, which the operating system releases when the process dies."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def sync_folder(folder: Path) -> None:
        """Not needed on Windows."""

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def sync_folder(folder: Path) -> None:
        """Make a new name in a folder survive a power failure."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def draft_of(path: Path) -> Path:
    """The temporary name of a file until it is complete. It is short whatever the name, because
    SQLite appends suffixes."""
    return path.with_name(f".{blake2b(path.name.encode(), digest_size=8).hexdigest()}.new")


class FileLock:
    """A locked file of this name, which is removed when the lock is released."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def acquire(self) -> bool:
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            if not _try_lock(handle):
                os.close(handle)
                return False
            # The last holder may have removed the file after we opened it: then another process has
            # a new one by this name, and ours locks nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), self._path.stat()):
                    self._handle = handle
                    return True
            os.close(handle)

    def release(self) -> None:
        if self._handle is not None:
            with suppress(OSError):  # Windows does not remove an open file; it stays, empty.
                self._path.unlink()
            os.close(self._handle)
            self._handle = None
