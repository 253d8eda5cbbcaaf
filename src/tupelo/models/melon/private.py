"""What a post remembers for itself: a space of its host that nobody else has, on disk if the host
has a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tupelo.federation.hosts.hosted import Doubt, HostedSpace
from tupelo.federation.identity.access import Access
from tupelo.space.tasks import TaskSignal
from tupelo.values.entry import Entry, thaw
from tupelo.values.kind import kind_of

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore

PREFIX = "tupelo.melon."


@dataclass
class Pinned:
    """This message of a space never gives way."""

    space: str
    origin: str
    n: int


@dataclass
class Taken:
    """The numbers of the directed messages of one sender that were taken here."""

    stream: str
    numbers: bytes


@dataclass
class Numbered:
    """Directed messages of this host may have had numbers up to this."""

    upto: int


Kept = TypeVar("Kept", Pinned, Taken, Numbered)


class Private:
    """The records of one post."""

    def __init__(self, core: HostCore, name: str) -> None:
        own = PREFIX + name
        if own not in core.spaces:
            nobody = Access(read=(), write=(), take=(), subscribe=(), administer=())
            core.spaces[own] = HostedSpace(
                core._open(own, {}), nobody, Doubt(), commit_in_place=core.commits_in_place
            )
        self._hosted = core.spaces[own]

    def all(self, cls: type[Kept]) -> Iterator[tuple[Kept, Entry]]:
        kind = kind_of(cls)
        for entry in list(self._hosted.operations.core.store):
            if entry.shape.kind == kind:
                yield thaw(entry.shape, entry.fields), entry

    def keep(self, record: Pinned | Taken | Numbered) -> tuple[Entry, int]:
        """Keep this: the entry that it is, and the position at which that is durable."""
        operations = self._hosted.operations
        written, position = operations.write(record, None, None, None, TaskSignal, 0)
        assert isinstance(written, list)
        entry: Entry = written[0].thing
        return entry, position

    def forget(self, entry: Entry) -> int:
        return self._hosted.operations.cancel(entry)

    async def flush(self, position: int) -> None:
        if position and self._hosted.durable:
            await self._hosted.flush(position)
