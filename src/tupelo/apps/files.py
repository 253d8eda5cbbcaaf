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
from tupelo.values.entry import Shape, Typed

TEXT_MAX = 200
INTEGER_BITS_MAX = 10_000


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


def one_line(text: str) -> str:
    """What others have said, as a part of one line: nothing in it can look like another line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shape_text(shape: Shape) -> str:
    names = ["dataclass" if cls is Typed else cls.__name__ for cls in shape.types]
    if shape.kind is None:
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
    fields = zip(shape.kind.names, names, strict=True)
    return f"{shape.kind.name}({', '.join(f'{field}: {name}' for field, name in fields)})"


def entry_text(shape: Shape, fields: tuple[Any, ...]) -> str:
    text = _spell(fields if shape.kind is None else Typed(shape.kind, fields))
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def _spell(value: Any) -> str:
    if isinstance(value, Typed):
        pairs = zip(value.kind.names, value.values, strict=True)
        return f"{value.kind.name}({', '.join(f'{name}={_spell(v)}' for name, v in pairs)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_spell, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_spell, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_spell(k)}: {_spell(v)}' for k, v in value.items())}}}"
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        return f"<an integer of {value.bit_length()} bits>"  # Python refuses to write out more.
    return repr(value)
