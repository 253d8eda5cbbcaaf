"""Match sets: what `contents` found, handed out one by one while it is true."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from tupelo.models.javaspaces.entries import Snapshot
from tupelo.models.javaspaces.leases import Lease, lease_of
from tupelo.space.dual_api import dual_api, maybe_await
from tupelo.space.matchset import Skipped
from tupelo.values.entry import Shape, freeze, thaw

__all__ = ["MatchSet", "Skipped"]


class MatchSet:
    """The entries that matched, in order of arrival. Iterate, or call `next` until it says None.

    MatchSetInvalid is raised once an entry of the set has been taken that was not handed out, or
    its lease has ended. What has expired meanwhile, or cannot be built here, is passed over: see
    `skipped`.
    """

    def __init__(self, matches: Any, is_async: bool) -> None:
        self.is_async = is_async
        self._matches = matches
        self._last: tuple[Shape, tuple[Any, ...]] | None = None

    @dual_api
    async def next(self) -> Any:
        """The next entry, or None at the end."""
        entry = await maybe_await(self._matches.next())
        if entry is not None:
            self._last = freeze(entry)  # The caller may change its own.
        return entry

    @property
    def lease(self) -> Lease:
        return lease_of(self._matches.lease)

    @property
    def skipped(self) -> list[Skipped]:
        """What was not handed out so far, and why."""
        skipped: list[Skipped] = self._matches.skipped
        return skipped

    def snapshot(self) -> Snapshot | None:
        """A snapshot of the entry that was handed out last."""
        return None if self._last is None else Snapshot(thaw(*self._last))

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
