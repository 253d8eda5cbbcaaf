"""The header of a journal's file: what is refused before SQLite is even asked to open it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn

from tupelo.errors import DamagedFile, ForeignFile, JournalFailed

APPLICATION_ID = 0x7457_0E10
FORMAT_VERSION = 6


def check_header(path: Path) -> None:
    """Refuse a file that SQLite should not even be asked to open. Reads 100 bytes, changes none."""
    if not (path.is_file() or path.is_dir()) and path.exists():
        # To open a FIFO would wait for whoever writes to it.
        raise ForeignFile(f"{path} is no file, but a device, a socket or a FIFO")
    with path.open("rb") as file:  # OSError, for a folder or one that may not be read
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise ForeignFile(f"{path} is not a Tupelo journal; it was left as it was")
    if int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise ForeignFile(f"{path} is the database of another program; it was left as it was")
    version = int.from_bytes(header[60:64])
    if version > FORMAT_VERSION:
        raise ForeignFile(
            f"{path} has format {version}, and this Tupelo knows up to {FORMAT_VERSION};"
            " it was left as it was"
        )
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        return  # The log that SQLite replays makes up for what is missing here.
    page = int.from_bytes(header[16:18])
    expected = int.from_bytes(header[28:32]) * (65_536 if page == 1 else page)
    if path.stat().st_size < expected:
        raise DamagedFile(
            f"{path} is torn: {path.stat().st_size} bytes of {expected}; it was left as it was"
        )


def is_damage(error: Exception) -> bool:
    """Is it the file that is to blame? Not if it may not be read, is locked, or the disk fails."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _OF_THE_WORLD


_OF_THE_WORLD = {
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}


def refuse(path: Path, error: Exception) -> NoReturn:
    if not is_damage(error):
        raise JournalFailed(f"{path}: {error}") from error
    raise DamagedFile(f"{path} is damaged ({error}); it was left as it was") from error
