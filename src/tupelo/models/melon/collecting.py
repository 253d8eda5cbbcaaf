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

from tupelo.errors import BadArgument, TupeloError
from tupelo.federation.client.services import ServedDoor
from tupelo.federation.hosts.local import LocalDoor
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.capacity import Capacity, CapacityLimit
from tupelo.space.clock import Clock
from tupelo.space.dual_api import dual_api
from tupelo.space.port import value_of
from tupelo.space.query import check_wait, deadline_of
from tupelo.space.session import Seen
from tupelo.space.tasks import timeout_at
from tupelo.values.entry import Entry, require_known

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


class PinnedRoom(CapacityLimit):
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
    room = PinnedRoom(capacity, told, counts)
    with hosted.port.atomic():
        hosted.port.bound(room, capacity)
        hosted.port.remember(room.pins)  # What is gone for good is pinned no more.
    return room


class CollectedBacklog:
    """What was collected at a host and was not told yet, on the host's loop. If messages are for
    programs that know their classes as this one does, they are built; else they are entries."""

    def __init__(self, clock: Clock, known: bool) -> None:
        self.count = 0
        self.closed = False
        self._clock = clock
        self._known = known
        self._waiting: deque[Collected] = deque(maxlen=BACKLOG_MAX)
        self._news = asyncio.Event()

    def tell(self, message: Entry | str, kind: Kind) -> None:
        """This was collected, a message or the addressee of one. What cannot be built in this
        program is not told to it."""
        told: Any = message
        if self._known and isinstance(message, Entry):
            told = _value(message)
        if told is not None:
            self.count += 1
            self._waiting.append(Collected(told, kind))
            self._news.set()

    def put_back(self, collected: Collected | None) -> None:
        """Nobody has got it."""
        if collected is not None:
            self._waiting.appendleft(collected)
            self._news.set()

    def close(self) -> None:
        """No more will come."""
        self.closed = True
        self._news.set()

    async def next(self, wait: float | None) -> Collected | None:
        """The next one; None if none came in time, or no more will come."""
        with suppress(TimeoutError):
            async with timeout_at(self._clock, deadline_of(self._clock, wait)):
                while not self._waiting and not self.closed:
                    self._news.clear()
                    await self._news.wait()
        return self._waiting.popleft() if self._waiting else None


class Collections:
    """What was collected at a host since this was made: iterate over it (`async for` at the async
    door), or `get` one. `count` says how many there were; to a client, as of its last `get`."""

    def __init__(self, door: LocalDoor[Any] | ServedDoor) -> None:
        self.is_async = door.is_async
        self._door = door
        self._count = 0

    @property
    def count(self) -> int:
        if isinstance(self._door, ServedDoor):
            return self._count
        count: int = self._door.served.backlog.count
        return count

    @dual_api
    async def get(self, wait: float | None = None) -> Collected | None:
        """The next one; None if none came in time, or no more will come."""
        check_wait(wait)
        collected: Collected | None
        if isinstance(self._door, ServedDoor):
            self._count, collected = await self._door.call("collected", wait=wait)
        else:  # also if the door was closed: some may still wait to be told
            backlog = self._door.served.backlog
            collected = await self._door.host.on_loop(backlog.next(wait), backlog.put_back)
        return collected

    def __iter__(self) -> Iterator[Collected]:
        while (collected := self.get()) is not None:
            yield collected

    async def __aiter__(self) -> AsyncIterator[Collected]:
        while (collected := await self.get()) is not None:
            yield collected


def _value(entry: Entry) -> Any:
    """None if it cannot be built in this program."""
    try:
        require_known(entry)
    except TupeloError:
        return None
    return value_of(entry)
