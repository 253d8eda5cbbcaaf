"""Carriage: how operations and reactions reach the hosts of the group.

`CollectTransport` is table 2 of the collect paper: rdp is a probing collect of any host and rdg one
of all, a waiting rd or in and a ONCE reaction is a single collect of any, and ONCE_PER_TUPLE is a
persistent one of all. `PublishCarriage` is its section 4, for comparison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Protocol

from tupelo.errors import PeerLost, Refused, UnknownHost
from tupelo.federation.brokers.broker import Broker, Reply, StandingRequest
from tupelo.federation.groups.group import Group, PartSender
from tupelo.federation.groups.membership import Membership
from tupelo.federation.hosts.core import HostCore
from tupelo.models.lime.messages import (
    Answers,
    Look,
    PlacedTuple,
    Release,
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


LookAt = Callable[[str, TuplePattern], Coroutine[Any, Any, list[FoundTuples]]]


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
        self, broker: Broker, group: Group, now: Callable[[], float], look: LookAt, spawn: Spawn
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


WINDOW_MAX = 500
"""So many tuples go in one message,"""
WINDOW_BYTES = 2**20
"""and so many bytes, unless it is one tuple."""
LISTINGS_MAX = 10_000
"""So many listings may be open for one host."""


class Listing:
    """What is on a tuple store for a pattern and can be sent, window by window."""

    def __init__(self, tuple_store: TupleStore, pattern: TuplePattern) -> None:
        self._found = tuple_store.sendable(pattern)
        self._next = next(self._found, None)

    @property
    def is_over(self) -> bool:
        return self._next is None

    def window(self) -> dict[Entry, PlacedTuple]:
        """As much of it as fits a message; at least one tuple, if there is one left."""
        window: dict[Entry, PlacedTuple] = {}
        size = 0
        while self._next is not None and len(window) < WINDOW_MAX:
            entry, placed = self._next
            size += len(placed.entry.payload)
            if window and size > WINDOW_BYTES:
                break
            window[entry] = placed
            self._next = next(self._found, None)
        return window


class Listings:
    """The listings that are open at one host, by the hosts that asked and their numbers."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, Listing]] = {}

    def window(
        self, source: str, number: int, tuple_store: TupleStore, pattern: TuplePattern
    ) -> tuple[dict[Entry, PlacedTuple], bool]:
        """The next window of this listing, which begins if there is none; and whether there are
        more."""
        mine = self._open.setdefault(source, {})
        listing = mine.get(number)
        if listing is None:
            if len(mine) >= LISTINGS_MAX:
                raise Refused(f"{LISTINGS_MAX:,} listings are open for this host")
            listing = mine[number] = Listing(tuple_store, pattern)
        window = listing.window()
        if listing.is_over:
            del mine[number]
        return window, not listing.is_over

    def open_for(self, source: str) -> int:
        """How many are open for this host: for the lab, and for whoever looks."""
        return len(self._open.get(source, {}))

    def release(self, source: str, number: int) -> None:
        self._open.get(source, {}).pop(number, None)

    def cut(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            self._open.pop(host, None)

    def clear(self) -> None:
        self._open.clear()


class WindowedRead:
    """How one host looks at what another has."""

    def __init__(
        self, core: HostCore, voice: PartSender, spaces: Spaces, next_number: Callable[[], int]
    ) -> None:
        self._here = core.id
        self._now = core.clock.now
        self._voice = voice
        self._spaces = spaces
        self._next_number = next_number

    async def look(self, host: str, pattern: TuplePattern) -> list[FoundTuples]:
        """All that this host has for the pattern; PeerLost if it is cut off before it has told."""
        if host == self._here:
            tuple_store = self._spaces.find(pattern.space)
            here = [] if tuple_store is None else tuple_store.sendable(pattern)
            return self._read(host, [placed for _, placed in here])
        found: list[FoundTuples] = []
        number = self._next_number()
        more = True
        try:
            while more:
                answer = await self._voice.ask(host, Look(number, pattern))
                placed, more = read(answer, tuple[list[PlacedTuple], bool])
                found += self._read(host, placed)
        except UnknownHost:  # It is not in the group any more.
            return []
        finally:
            if more:
                self._voice.send(host, Release(number))
        return found

    def _read(self, host: str, placed: Iterable[PlacedTuple]) -> list[FoundTuples]:
        now = self._now()
        return [FoundTuples(one.entry.read(now), one.current, host) for one in placed]


QUERY_SECONDS = 0.5
"""How long the answers to a query are waited for."""

Told = Callable[[FoundTuples], None]


class PublishedTuples(VisibleTuples):
    """What brokers are told of: tuples, as with collect, and queries."""

    def state(self, pattern: Any) -> list[Any]:
        return []

    def matches(self, pattern: Any, update: Any) -> bool:
        kind, wanted = pattern
        told_kind, told = update[0], update[1]
        if kind != told_kind:
            return False
        return wanted == told if kind == "query" else super().matches(wanted, told)

    def key(self, pattern: Any) -> str:
        kind, wanted = pattern
        return f"query {wanted}" if kind == "query" else super().key(wanted)

    def allows(self, neighbour: str, pattern: Any) -> bool:
        kind, wanted = pattern
        return kind == "query" or super().allows(neighbour, wanted)


class PublishTransport:
    def __init__(
        self,
        broker: Broker,
        group: Group,
        voice: PartSender,
        spaces: Spaces,
        may: HostFilter,
        core: HostCore,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._broker = broker
        self._group = group
        self._voice = voice
        self._spaces = spaces
        self._may = may
        self._here = core.id
        self.now = core.clock.now
        self._spawn = spawn
        self._numbers = 0
        self._queries: dict[int, Told] = {}
        self._served: dict[str, StandingRequest] = {}
        self._watches: dict[_Watch, None] = {}

    # Queries

    async def probe(
        self, pattern: TuplePattern, every: bool
    ) -> tuple[list[FoundTuples], frozenset[str]]:
        found: list[FoundTuples] = []
        enough = asyncio.Event()

        def told(one: FoundTuples) -> None:
            found.append(one)
            if not every:
                enough.set()

        number = self.query(told)
        try:
            await self.ask(number, pattern)
            async with asyncio.timeout(QUERY_SECONDS):
                await enough.wait()
        except TimeoutError:
            pass
        finally:
            self.end_query(number)
        return found, frozenset(self._spaces.cut)

    def query(self, told: Told) -> int:
        """A new query, of whose answers someone wants to be told."""
        self._numbers += 1
        self._queries[self._numbers] = told
        return self._numbers

    def end_query(self, number: int) -> None:
        self._queries.pop(number, None)

    async def ask(self, number: int, pattern: TuplePattern) -> None:
        """Publish a query, to be answered by those who have something."""
        asked = [self._here, number, encode(pattern)]
        await self._broker.publish(["query", pattern.space, asked])

    def serve(self, tuple_store: TupleStore) -> None:
        if tuple_store.name not in self._served:
            self._served[tuple_store.name] = self._broker.subscribe(
                ["query", tuple_store.name], self._queried
            )

    def _queried(self, host: str, update: Any) -> None:
        """A query has come. What is here was looked at by the host itself before."""
        asker, number, encoded = read(update[2], tuple[str, int, TuplePattern])
        tuple_store = self._spaces.find(encoded.space)
        if tuple_store is None or asker == self._here:
            return
        neighbour = self._group.membership.toward(self._here, asker)
        operation = "take" if encoded.take else "read"
        if neighbour is not None and self._may(neighbour, operation, tuple_store, asker):
            listing = Listing(tuple_store, encoded)
            while not listing.is_over:
                self._voice.send(asker, Answers(number, list(listing.window().values())))

    def answered(self, source: str, message: Answers) -> None:
        """A host has sent what it has for a query of ours."""
        now = self.now()
        for one in message.found:
            told = self._queries.get(message.query)
            if told is not None:
                told(FoundTuples(one.entry.read(now), one.current, source))

    # Reactions

    def watch(self, pattern: TuplePattern, told: Detected) -> ReactionWatch:
        watch = _Watch(self, self._broker, pattern, told)
        self._watches[watch] = None
        tuple_store = self._spaces.find(pattern.space)
        for _, one in tuple_store.sendable(pattern) if tuple_store is not None else ():
            watch.told(FoundTuples(one.entry.read(self.now()), one.current, self._here))
        if not watch.is_over:
            self._spawn(watch.ask())
        return watch

    def unwatch(self, watch: _Watch) -> None:
        self._watches.pop(watch, None)

    def settled(self) -> None:
        """Others may have come: they are asked as well."""
        for watch in list(self._watches):
            self._spawn(watch.ask())

    async def announce(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        updates = updates_of(tuple_store, entries, self._here)
        await publish_all(self._broker, [["tuple", update] for update in updates])

    def close(self) -> None:
        self._broker.close()


class _Watch:
    """A subscription to tuples, and a query for those that are there."""

    def __init__(
        self, carriage: PublishTransport, broker: Broker, pattern: TuplePattern, told: Detected
    ) -> None:
        self.is_over = False
        self._carriage = carriage
        self._pattern = pattern
        self._told = told
        self._query = carriage.query(self.told)
        self._standing = broker.subscribe(["tuple", encode(pattern)], self._published)

    def _published(self, host: str, update: Any) -> None:
        told = read(update[1], TupleUpdate)
        entry = told.placed.entry.read(self._carriage.now())
        self.told(FoundTuples(entry, told.placed.current, host))

    def told(self, found: FoundTuples) -> None:
        if not self.is_over:
            if self._pattern.one:
                self.cancel()
            self._told(found.entry, found.current, found.host)

    async def ask(self) -> None:
        if not self.is_over:
            await self._carriage.ask(self._query, self._pattern)

    def cancel(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._standing.cancel()
            self._carriage.end_query(self._query)
            self._carriage.unwatch(self)
