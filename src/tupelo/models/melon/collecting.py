"""Garbage collection: how much a host keeps, what gives way, and that it is said.

A bound is that of a space, with two things more: messages that are pinned never give way, and what
has given way is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from tupelo.errors import BadArgument
from tupelo.federation.hosts.doors import HostDoor
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.space.capacity import Capacity, Room
from tupelo.space.checks import check_wait
from tupelo.space.either import either
from tupelo.space.session import Seen
from tupelo.values.entry import Entry

BACKLOG_MAX = 1_000
"""So many messages that were collected wait to be told; then the oldest is not told."""


@dataclass(frozen=True)
class Bound:
    """At most so many messages, and so many bytes of them: of those that were stored, of those that
    were written, of those that are directed, and of copies of others', each. When it is reached the
    oldest give way ("fifo"), or those read longest ago ("lru"); of copies always the oldest, and of
    what is carried to others all that one host has directed to one of them."""

    count: int | None = None
    bytes: int | None = None
    order: Literal["fifo", "lru"] = "fifo"

    def __post_init__(self) -> None:
        for name in ("count", "bytes"):
            given = getattr(self, name)
            if given is not None and (type(given) is not int or given < 1):
                raise BadArgument(name, "a whole number above 0, or None", given)
        if self.order not in ("fifo", "lru"):
            raise BadArgument("order", '"fifo" or "lru"', self.order)

    @property
    def capacity(self) -> Capacity | None:
        if self.count is None and self.bytes is None:
            return None
        return Capacity(entries=self.count, size_bytes=self.bytes, evict=self.order)


Kind = Literal["stored", "written", "directed", "copy"]


@dataclass(frozen=True)
class Collected:
    """A message of this host that was collected, or a copy of another's; if it is directed, its
    addressee."""

    message: Any
    kind: Kind


class PinnedRoom(Room):
    """The room of a space in which some entries never give way, and the others not unnoticed."""

    def __init__(
        self,
        capacity: Capacity,
        told: Callable[[list[Entry]], object],
        counts: Callable[[Entry], bool],
    ) -> None:
        super().__init__(capacity)
        self._told = told
        self._counts = counts
        self.returned: Callable[[Entry], object] = lambda entry: None
        """Called with a pinned entry that was taken, and is back."""
        self.pins = Seen()  # also of what was taken, for it may return
        self._pinned: set[Entry] = set()

    def pin(self, entry: Entry) -> None:
        self.pins.add(entry)
        if entry in self._held:
            self._pinned.add(entry)

    def unpin(self, entry: Entry) -> None:
        self.pins.discard(entry)
        self._pinned.discard(entry)

    def require(
        self, coming: list[Entry], stored: Iterable[Entry], taken: Iterable[Entry] = ()
    ) -> None:
        coming = [entry for entry in coming if self._counts(entry)]
        if coming:
            super().require(coming, stored, [entry for entry in taken if self._counts(entry)])

    def add(self, entries: Iterable[Entry]) -> None:
        entries = [entry for entry in entries if self._counts(entry)]
        super().add(entries)
        for entry in entries if self.pins.bits else ():
            if entry in self.pins:
                self._pinned.add(entry)
                self.returned(entry)

    def remove(self, entry: Entry) -> None:
        super().remove(entry)
        self._pinned.discard(entry)

    def overflow(self, newest: Iterable[Entry], stored: Iterable[Entry]) -> list[Entry]:
        victims = super().overflow(newest, stored)
        if victims:
            self._told(victims)
        return victims

    def _victims(
        self, count: int, size: int, spared: Iterable[Entry], stored: Iterable[Entry]
    ) -> tuple[list[Entry], bool]:
        if not self._exceeds(count, size):
            return [], True
        counted = (entry for entry in stored if entry in self._held)
        return super()._victims(count, size, [*spared, *self._pinned], counted)


def bind(
    hosted: HostedSpace,
    capacity: Capacity,
    told: Callable[[list[Entry]], object],
    counts: Callable[[Entry], bool],
) -> PinnedRoom:
    """Bound a space that is there: what is too much in it goes with the next that comes. `told` is
    called under its lock, on whatever thread. What does not count needs no room."""
    core = hosted.operations.core
    if core.room is not None:
        raise BadArgument("bound", f"left out: the space {hosted.name!r} has a capacity", capacity)
    with hosted.engine.lock:
        held = [*core.store, *(entry for txn in core.transactions for entry in txn.taken)]
        core.room = room = PinnedRoom(capacity, told, counts)
        room.add(held)
        core.pruning.memories[room.pins] = None  # What is gone for good is pinned no more.
        core._has_policy = True  # Every write heeds the room from now on.
        core.reconsider()
    return room


class Collections:
    """What was collected at a host since this was made: iterate over it (`async for` at the async
    door), or `get` one. `count` says how many there were."""

    def __init__(self, host: HostDoor) -> None:
        self.is_async = host.is_async
        self.count = 0
        self.closed = False
        self._host = host
        self._backlog: deque[Collected] = deque(maxlen=BACKLOG_MAX)
        self._news = asyncio.Event()

    def put(self, collected: Collected) -> None:
        """On the host's loop."""
        self.count += 1
        self._backlog.append(collected)
        self._news.set()

    def close(self) -> None:
        """On the host's loop: no more will come."""
        self.closed = True
        self._news.set()

    @either
    async def get(self, wait: float | None = None) -> Collected | None:
        """The next one; None if none came in time, or no more will come."""
        check_wait(wait)
        collected: Collected | None = await self._host._on_loop(self._get(wait))
        return collected

    async def _get(self, wait: float | None) -> Collected | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not self._backlog and not self.closed:
                    self._news.clear()
                    await self._news.wait()
        return self._backlog.popleft() if self._backlog else None

    def __iter__(self) -> Iterator[Collected]:
        while (collected := self.get()) is not None:
            yield collected

    async def __aiter__(self) -> AsyncIterator[Collected]:
        while (collected := await self.get()) is not None:
            yield collected
