"""The file of a durable space, of which only the path is known."""

from __future__ import annotations

from pathlib import Path

from tupelo import Space
from tupelo.errors import ForeignFile, JournalFailed
from tupelo.store.sqlite import SqliteJournal


def open_space(path: Path) -> Space:
    """The space of a file that is there. Looking at its log trims nothing from it."""
    check_file(path)
    journal = SqliteJournal(path, "", "", "full", None)
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
