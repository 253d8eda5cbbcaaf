"""Match sets: what `contents` found, handed out one by one while it is true."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from tupelo.models.javaspaces.leases import Lease
from tupelo.models.javaspaces.snapshot import Snapshot
from tupelo.space import asynchronous
from tupelo.space.either import either, settled
from tupelo.space.matchset import MatchSetState
from tupelo.space.operations import value_of
from tupelo.values.entry import Entry
from tupelo.values.lease import Lease as Granted


class Skipped(NamedTuple):
    """An entry that was in the set and was not handed out: who wrote it as his how-manieth."""

    entry_id: tuple[str, int]
    reason: str


class MatchSet:
    """The entries that matched, in order of arrival. Iterate, or call `next` until it says None.

    MatchSetInvalid is raised once an entry of the set has been taken, or its lease has ended.
    What has expired meanwhile, or cannot be built here, is passed over: see `skipped`.
    """

    def __init__(self, space: Any, state: MatchSetState) -> None:
        self.is_async = isinstance(space, asynchronous.Space)
        self._space = space
        self._state = state
        self._last: Entry | None = None

    @either
    async def next(self) -> Any:
        """The next entry, or None at the end."""
        entry, position = self._space._operations.next_match(self._state)
        if entry is None:
            return None
        if position:
            await settled(self._space._flush(position))
        self._last = entry
        return value_of(entry)

    @property
    def lease(self) -> Lease:
        return Lease(Granted(self._space._operations, self._state))

    @property
    def skipped(self) -> list[Skipped]:
        """What was not handed out so far, and why."""
        return [Skipped((e.origin, e.n), reason) for e, reason in self._state.skipped]

    def snapshot(self) -> Snapshot | None:
        """A snapshot of the entry that was handed out last."""
        return None if self._last is None else Snapshot(value_of(self._last))

    def __iter__(self) -> Iterator[Any]:
        if self.is_async:
            raise TypeError("this match set is of the async door: use `async for`")
        while (entry := self.next()) is not None:
            yield entry

    async def __aiter__(self) -> AsyncIterator[Any]:
        if not self.is_async:
            raise TypeError("this match set is of the blocking door: use `for`")
        while (entry := await self.next()) is not None:
            yield entry
