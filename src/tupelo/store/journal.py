"""The journal: where the changes of a space are stored and read again.

`append` is called under the space's lock and is quick; `flush` returns once the changes up to a
position are as durable as the journal promises. `MemoryJournal` keeps the newest changes in memory;
the durable journal is in `sqlite`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from tupelo.errors import LogTrimmed
from tupelo.values.change import Change


class Journal(Protocol):
    """`durable` is the position up to which changes are stored as promised; `waits` tells whether a
    flush may wait for the disk."""

    durable: int
    waits: bool

    def append(self, changes: list[Change]) -> None: ...

    def flush(self, position: int) -> None: ...

    def read(self, since: int, limit: int | None) -> list[Change]: ...

    def trim(self, before: int) -> None: ...

    def compact(self) -> None: ...

    def close(self) -> None: ...


class MemoryJournal:
    """The newest `keep` changes (all of them if None), in memory."""

    def __init__(self, keep: int | None) -> None:
        self.durable = 0
        self.waits = False
        self._changes: deque[Change] = deque(maxlen=keep)

    def append(self, changes: Iterable[Change]) -> None:
        self._changes.extend(changes)
        if self._changes:
            self.durable = self._changes[-1].position

    def flush(self, position: int) -> None:
        pass

    def read(self, since: int, limit: int | None) -> list[Change]:
        kept = list(self._changes)  # at once: others append, and drop the oldest
        first = kept[0].position if kept else self.durable + 1
        require_kept(since, first)
        start = since + 1 - first
        return kept[start : None if limit is None else start + limit]

    def bounds(self) -> tuple[int, int]:
        """The first and last position that are kept."""
        try:
            return self._changes[0].position, self.durable
        except IndexError:
            return self.durable + 1, self.durable

    def trim(self, before: int) -> None:
        while self._changes and self._changes[0].position < before:
            self._changes.popleft()

    def compact(self) -> None:
        pass

    def close(self) -> None:
        pass


def require_kept(since: int, first: int) -> None:
    if since + 1 < first:
        raise LogTrimmed(
            f"changes after position {since} were asked for, but the log begins at {first}", first
        )
