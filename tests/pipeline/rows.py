"""Changes as rows, without a file."""

from collections.abc import Sequence
from typing import Any

from tupelo import Change
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.schema import build, check_columns, needed_for
from tupelo.store.journal import MemoryJournal
from tupelo.store.tail import tail_of


def batch_of(
    host: str,
    space: str,
    changes: Sequence[Change],
    columns: Sequence[str] | None = None,
    entry: Declared | None = None,
) -> Any:
    """These changes of one space, as those of a log in memory are read."""
    columns = check_columns(columns, entry)
    journal = MemoryJournal(None)
    journal.append(changes)
    names = sorted(needed_for(columns))
    first, _ = journal.bounds()
    *_, found = tail_of(journal, names, first, first + len(changes) - 1)
    raw = dict(zip(names, found, strict=True))
    return build(host, space, len(changes), raw, columns, entry)
