"""Files of durable spaces, looked at from outside: nothing is known of them but the path.

Entries are shown by the names and fields that the file holds, so the classes of the program
that wrote them are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tupelo import Space
from tupelo.errors import ForeignFile, JournalFailed
from tupelo.store.sqlite import SqliteJournal
from tupelo.values.codec import decode_entry
from tupelo.values.entry import Shape


def open_space(path: Path) -> Space:
    """The space of a file that is there. Looking at its log trims nothing from it."""
    check_file(path)
    journal = _open_journal(path)
    name = journal.name
    journal.stop()
    return Space(name, path=path)


def check_file(path: Path) -> None:
    """Refuse what is not there, or cannot be a journal."""
    if not path.exists():
        raise JournalFailed(f"{path} does not exist")
    if not path.is_file():
        raise ForeignFile(f"{path} is not a file")
    if not path.stat().st_size:
        raise ForeignFile(f"{path} is empty, and not a Tupelo journal")


def living_entries(path: Path) -> Iterator[tuple[Shape, tuple[Any, ...]]]:
    """What the file of a closed space holds, in order of arrival."""
    journal = _open_journal(path)
    try:
        for *_, payload, _ in journal.entries():
            yield decode_entry(payload)
    finally:
        journal.stop()


def _open_journal(path: Path) -> SqliteJournal:
    return SqliteJournal(path, "", "", "full", None)
