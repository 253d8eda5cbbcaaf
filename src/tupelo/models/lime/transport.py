"""Carriage: how operations and reactions reach the hosts of the group.

`CollectTransport` is table 2 of the collect paper: rdp is a probing collect of any host and rdg one
of all, a waiting rd or in and a ONCE reaction is a single collect of any, and ONCE_PER_TUPLE is a
persistent one of all. `PublishCarriage` is its section 4, for comparison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from tupelo.errors import PeerLost
from tupelo.federation.brokers.broker import Broker, Reply
from tupelo.federation.groups.group import Group
from tupelo.federation.groups.membership import Membership
from tupelo.models.lime.messages import (
    PlacedTuple,
    TuplePattern,
    TupleUpdate,
    encode,
    read,
    read_encoded_template,
)
from tupelo.models.lime.reactions import Detected, ReactionWatch
from tupelo.models.lime.spaces import Spaces, TupleStore
from tupelo.values.entry import Entry

logger = logging.getLogger("tupelo")


class HostFilter(Protocol):
    """May this neighbour do this on this tuple store, and the host `source`, if that is known?"""

    def __call__(
        self, neighbour: str, operation: str, tuple_store: TupleStore, source: str | None = None
    ) -> bool: ...


STATE_BYTES_MAX = 2**20
"""So many bytes of tuples, or one tuple, a host tells in answer to a collect, which passes through
others. Who has more says so, and is asked alone, in windows."""
TOGETHER_MAX = 1_000
"""So many tuples are announced at a time."""


Spawn = Callable[[Coroutine[Any, Any, None]], object]


class FoundTuples:
    """A tuple that was found, who is responsible for it, and the host where it is."""

    __slots__ = ("current", "entry", "host")

    def __init__(self, entry: Entry, current: str, host: str) -> None:
        self.entry = entry
        self.current = current
        self.host = host


Look = Callable[[str, TuplePattern], Coroutine[Any, Any, list[FoundTuples]]]


class Transport(Protocol):
    async def probe(
        self, pattern: TuplePattern, every: bool
    ) -> tuple[list[FoundTuples], frozenset[str]]:
        """What there is now: something at any host, or what all have; and the hosts that could not
        be asked this way."""
        ...

    def watch(self, pattern: TuplePattern, told: Detected) -> ReactionWatch:
        """Be told of what there is and will be: of one tuple, if the pattern wants but one, or of
        all, perhaps more than once. It may be told before this returns."""
        ...

    async def announce(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        """These have come into sight at this host."""
        ...

    def serve(self, tuple_store: TupleStore) -> None:
        """This host has a part of this space, from now on."""
        ...

    def settled(self) -> None:
        """The group has changed, and operations go on."""
        ...

    def close(self) -> None: ...


class VisibleTuples:
    """What this host has, as a broker asks for it."""

    def __init__(self, spaces: Spaces, may: HostFilter, now: Callable[[], float]) -> None:
        self._spaces = spaces
        self._may = may
        self._now = now
        self._last: tuple[Any, TupleUpdate, Entry] | None = None

    def state(self, pattern: Any) -> list[Any] | None:
        wanted = read(pattern, TuplePattern)
        tuple_store = self._spaces.find(wanted.space)
        items: list[Any] = []
        size = 0
        for _, placed in () if tuple_store is None else tuple_store.sendable(wanted):
            size += len(placed.entry.payload)
            if items and size > STATE_BYTES_MAX:
                return None
            items.append(encode(placed))
        return items

    def is_empty(self, pattern: Any) -> bool:
        """Is there nothing to read? So there is nothing to take."""
        wanted = read(pattern, TuplePattern)
        tuple_store = self._spaces.find(wanted.space)
        template = read_encoded_template(wanted.template)
        return tuple_store is None or not tuple_store.look(
            template, wanted.where, one=True, known=False
        )

    def matches(self, pattern: Any, update: Any) -> bool:
        wanted: TuplePattern = read(pattern, TuplePattern)
        if self._last is None or self._last[0] is not update:  # Many patterns for one update.
            told = read(update, TupleUpdate)
            self._last = update, told, told.placed.entry.read(self._now())
        _, told, entry = self._last
        return (
            wanted.space == told.space
            and wanted.where.admits(entry, told.placed.current, told.host)
            and wanted.matches(entry)
        )

    def key(self, pattern: Any) -> str:
        wanted: TuplePattern = read(pattern, TuplePattern)
        return wanted.key

    def allows(self, neighbour: str, pattern: Any) -> bool:
        wanted = read(pattern, TuplePattern)
        tuple_store = self._spaces.find(wanted.space)
        operation = "take" if wanted.take else "read"
        return tuple_store is not None and self._may(neighbour, operation, tuple_store)


class CollectTransport:
    """`look` asks one host alone; `spawn` begins something that nobody waits for."""

    def __init__(
        self, broker: Broker, group: Group, now: Callable[[], float], look: Look, spawn: Spawn
    ) -> None:
        self._broker = broker
        self._group = group
        self._here = group.me
        self._now = now
        self._look = look
        self._spawn = spawn

    async def probe(
        self, pattern: TuplePattern, every: bool
    ) -> tuple[list[FoundTuples], frozenset[str]]:
        collected = await self._broker.probe(encode(pattern), "all" if every else "any")
        found = [found for reply in collected.replies for found in self._read(reply)]
        return found, collected.lost - {self._here}  # What is here is looked at by who asks.

    def watch(self, pattern: TuplePattern, told: Detected) -> ReactionWatch:
        def deliver(reply: Reply) -> None:
            for found in self._read(reply):
                told(found.entry, found.current, found.host)

        if pattern.one:
            return self._broker.collect(encode(pattern), "single", "any", deliver)

        def lost(hosts: frozenset[str]) -> None:
            self._spawn(self._look_at(self._group.membership, hosts, pattern, told))

        return self._broker.collect(encode(pattern), "persistent", "all", deliver, lost)

    async def _look_at(
        self, membership: Membership, hosts: frozenset[str], pattern: TuplePattern, told: Detected
    ) -> None:
        """Be told of what these hosts have, who did not answer a collect that stands. Who is out of
        reach, and everyone in another membership, answers it then."""
        async with self._group.operating():
            for host in sorted(hosts) if self._group.membership is membership else ():
                with suppress(PeerLost):
                    for found in await self._look(host, pattern):
                        told(found.entry, found.current, found.host)

    def _read(self, reply: Reply) -> list[FoundTuples]:
        now = self._now()
        if reply.is_update:
            placed = [read(item, TupleUpdate).placed for item in reply.items]
        else:
            placed = [read(item, PlacedTuple) for item in reply.items]
        return [FoundTuples(one.entry.read(now), one.current, reply.host) for one in placed]

    async def announce(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        await publish_all(self._broker, updates_of(tuple_store, entries, self._here))

    def serve(self, tuple_store: TupleStore) -> None:
        """Everyone is asked."""

    def settled(self) -> None:
        """What stands is answered by the broker."""

    def close(self) -> None:
        self._broker.close()


def updates_of(tuple_store: TupleStore, entries: list[Entry], here: str) -> list[Any]:
    updates = []
    for entry in entries:
        placed = None if entry.gone else tuple_store.placed(entry)
        if placed is not None:
            updates.append(encode(TupleUpdate(tuple_store.name, here, placed)))
        elif not entry.gone:
            logger.warning(
                "an entry of %s in %r cannot be sent, and no other host will see it there",
                entry.origin,
                tuple_store.name,
            )
    return updates


async def publish_all(broker: Broker, updates: list[Any]) -> None:
    """In order, without waiting for one before the next is sent."""
    if len(updates) == 1:
        await broker.publish(updates[0])
        return
    for start in range(0, len(updates), TOGETHER_MAX):
        await asyncio.gather(*map(broker.publish, updates[start : start + TOGETHER_MAX]))
