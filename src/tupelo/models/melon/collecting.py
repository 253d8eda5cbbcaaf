"""Garbage collection and copies: how many messages a host keeps, its own and those of others.

A bound is the capacity of a space, with two additions: pinned messages are never collected, and
programs can ask which messages were collected.
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
from tupelo.federation.replication.placement import CopySome
from tupelo.space.capacity import Capacity, CapacityLimit
from tupelo.space.clock import Clock
from tupelo.space.dual_api import dual_api
from tupelo.space.port import value_of
from tupelo.space.query import check_wait, deadline_of
from tupelo.space.session import Seen
from tupelo.space.tasks import timeout_at
from tupelo.values.entry import Entry, require_known

BACKLOG_MAX = 1_000
"""Maximum of collected messages that wait for `Collections.get`; beyond that the oldest is
dropped."""


@dataclass(frozen=True)
class Bound:
    """The maximum number of messages, `count`, and of their `bytes`. Stored, written and directed
    messages, and copies of other hosts' messages, are counted separately.

    At the maximum the oldest messages are collected (`order="fifo"`), or those that were read
    longest ago (`"lru"`). Of copies always the oldest are collected. Of messages that are carried
    for an addressee, all from one host are collected together."""

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
        """The bound as the capacity of a space."""
        if self.count is None and self.bytes is None:
            return None
        return Capacity(entries=self.count, size_bytes=self.bytes, evict=self.order)


Kind = Literal["stored", "written", "directed", "copy"]


@dataclass(frozen=True)
class Collected:
    """A collected `message`; for a directed message, which nobody here can read, the identity of
    its addressee. `kind` says whether it was stored, written or directed here, or a copy."""

    message: Any
    kind: Kind


class PinnedCapacity(CapacityLimit):
    """The capacity limit of a space whose pinned entries are never evicted. Evicted entries are
    passed to `on_evicted`, under the lock of the space, on any thread; entries for which `counts`
    is false need no room and are never evicted."""

    def __init__(
        self,
        capacity: Capacity,
        on_evicted: Callable[[list[Entry]], object],
        counts: Callable[[Entry], bool],
    ) -> None:
        super().__init__(capacity)
        self._on_evicted = on_evicted
        self._counts = counts
        self.returned: Callable[[Entry], object] = lambda entry: None
        """Called with a pinned entry that was taken and has returned to the space."""
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
            self._on_evicted(victims)
        return victims

    def _victims(
        self, count: int, size: int, spared: Iterable[Entry], stored: Iterable[Entry]
    ) -> tuple[list[Entry], bool]:
        if not self._exceeds(count, size):
            return [], True
        counted = (entry for entry in stored if entry in self._held)
        return super()._victims(count, size, [*spared, *self._pinned], counted)


class CollectedBacklog:
    """The collected messages of a host that its program has not got yet; used on the host's loop.
    Messages are built if their classes are `known`, as in the program of the host; for clients they
    stay entries."""

    def __init__(self, clock: Clock, known: bool) -> None:
        self.count = 0
        self.closed = False
        self._clock = clock
        self._known = known
        self._waiting: deque[Collected] = deque(maxlen=BACKLOG_MAX)
        self._news = asyncio.Event()

    def tell(self, message: Entry | str, kind: Kind) -> None:
        """Add a message that was collected, or the addressee of one. Messages of classes that are
        unknown in this program are left out."""
        value: Any = message
        if self._known and isinstance(message, Entry):
            try:
                require_known(message)
            except TupeloError:
                return
            value = value_of(message)
        self.count += 1
        self._waiting.append(Collected(value, kind))
        self._news.set()

    def put_back(self, collected: Collected | None) -> None:
        """Put an item back at the front, because the caller of `next` vanished."""
        if collected is not None:
            self._waiting.appendleft(collected)
            self._news.set()

    def close(self) -> None:
        """Let `next` return None once the backlog is empty."""
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
    """The messages that were collected at a host since its Melon was opened. Iterate over them
    (`async for` with an async host), or `get` one."""

    def __init__(self, door: LocalDoor[Any] | ServedDoor) -> None:
        self.is_async = door.is_async
        self._door = door
        self._count = 0

    @property
    def count(self) -> int:
        """How many messages were collected; for a client, as of its last `get`."""
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
        else:  # also if the door was closed: collected messages may still wait
            backlog = self._door.served.backlog
            collected = await self._door.host.on_loop(backlog.next(wait), backlog.put_back)
        return collected

    def __iter__(self) -> Iterator[Collected]:
        while (collected := self.get()) is not None:
            yield collected

    async def __aiter__(self) -> AsyncIterator[Collected]:
        while (collected := await self.get()) is not None:
            yield collected


@dataclass(frozen=True)
class Copies:
    """How messages are copied to other hosts.

    `hosts`: how many engaged hosts hold copies of the messages that are written here. `directed`:
    how many hosts carry a directed message of this host; None for every host that meets this one or
    a carrier, 0 for none, so that the message waits here for its addressee.

    `room`: the bound for copies of other hosts' written messages, and again for directed messages
    that this host carries; None for no bound, 0 to copy only the messages that programs here read
    or take. A host with room also copies messages of hosts that it is not engaged with, from any
    engaged host that has them, so that a message survives its host and that carrier. If room is
    full the oldest copies are collected; of carried messages all from one host to one addressee,
    since these must arrive in order and without a gap.
    """

    hosts: int = 1
    room: Bound | Literal[0] | None = None
    directed: int | None = None

    def __post_init__(self) -> None:
        if type(self.hosts) is not int or self.hosts < 0:
            raise BadArgument("hosts", "how many: a whole number", self.hosts)
        has_room = self.room is None or isinstance(self.room, Bound)
        if not has_room and (type(self.room) is not int or self.room != 0):
            raise BadArgument("room", "a Bound(...), None, or 0", self.room)
        if self.directed is not None and (type(self.directed) is not int or self.directed < 0):
            raise BadArgument("directed", "how many: a whole number, or None", self.directed)

    @property
    def policy(self) -> CopySome:
        """How many hosts copy written messages, and the room for copies."""
        return CopySome(self.hosts, self._room)

    @property
    def directed_policy(self) -> CopySome:
        """How many hosts carry directed messages, and the room for them."""
        return CopySome(self.directed or 0, self._room)

    @property
    def _room(self) -> Capacity | Literal[0] | None:
        return self.room.capacity if isinstance(self.room, Bound) else self.room
