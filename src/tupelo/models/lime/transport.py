"""Transport: how operations and reactions reach the other hosts of the group.

`CollectTransport` is table 2 of the collect paper: rdp is a probing collect of any host and rdg one
of all; a waiting rd or in, and a ONCE reaction, is a single collect of any; ONCE_PER_TUPLE is a
persistent collect of all. `PublishTransport` is section 4 of that paper, for comparison: queries
are published to all hosts that have subscribed to queries of the space, and hosts with matches send
them directly. A host without a match sends nothing, so a query waits for QUERY_SECONDS, and may
miss later tuples. A reaction is a subscription to all published tuples, and one query.

Large answers of one host come in windows: the owner makes a listing at the first request, and each
request with the same number gets the next window. So neither a message nor the queue of a link
grows with the number of tuples. A listing ends with its last window, when the asker releases it,
and with the membership."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tupelo.errors import PeerLost, Refused
from tupelo.federation.brokers.broker import Broker, Reply, StandingRequest
from tupelo.federation.groups.group import Group, PartSender
from tupelo.federation.groups.membership import Membership
from tupelo.models.lime.messages import (
    FoundTuple,
    PlacedTuple,
    QueryAnswers,
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


HostFilter = Callable[..., bool]
"""(neighbour, operation, tuple store, source): whether this neighbour, and the host `source` if it
is given, may do this operation."""

STATE_BYTES_MAX = 2**20
"""The most bytes of tuples in the answer of one host to a collect, unless it is one tuple. A host
with more counts as lost for the collect, and is asked directly, in windows."""
TOGETHER_MAX = 1_000
"""The most tuples that are announced at a time."""


Spawn = Callable[[Coroutine[Any, Any, None]], object]


LookAt = Callable[[str, TuplePattern], Coroutine[Any, Any, list[FoundTuple]]]


class VisibleTuples:
    """The tuples of this host, as the `Application` of a broker."""

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
        """Whether there is nothing to read, and so nothing to take."""
        wanted = read(pattern, TuplePattern)
        tuple_store = self._spaces.find(wanted.space)
        template = read_encoded_template(wanted.template)
        return tuple_store is None or not tuple_store.look(
            template, wanted.where, one=True, known=False
        )

    def matches(self, pattern: Any, update: Any) -> bool:
        wanted: TuplePattern = read(pattern, TuplePattern)
        # One update is matched with many patterns.
        if self._last is None or self._last[0] is not update:
            seen = read(update, TupleUpdate)
            self._last = update, seen, seen.placed.entry.read(self._now())
        _, seen, entry = self._last
        return (
            wanted.space == seen.space
            and wanted.where.admits(entry, seen.placed.current, seen.host)
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


@dataclass(eq=False, repr=False)
class CollectTransport:
    """Operations and reactions by collect. `look` asks one host directly; `spawn` starts a task."""

    _broker: Broker
    _group: Group
    _now: Callable[[], float]
    _look: LookAt
    _spawn: Spawn

    async def probe(
        self, pattern: TuplePattern, every: bool
    ) -> tuple[list[FoundTuple], frozenset[str]]:
        """The current matches, of any host or of `every` host; and the hosts that must be asked
        directly."""
        collected = await self._broker.probe(encode(pattern), "all" if every else "any")
        found = [found for reply in collected.replies for found in self._read(reply)]
        return found, collected.lost - {self._group.me}  # The asker looks at this host itself.

    def watch(self, pattern: TuplePattern, deliver: Detected) -> ReactionWatch:
        """Call `deliver` for current and later matches: for one, if the pattern wants one, or for
        all, perhaps more than once. It may be called before this returns."""

        def deliver_reply(reply: Reply) -> None:
            for found in self._read(reply):
                deliver(found)

        if pattern.one:
            return self._broker.collect(encode(pattern), "single", "any", deliver_reply)

        def lost(hosts: frozenset[str]) -> None:
            self._spawn(self._look_at(self._group.membership, hosts, pattern, deliver))

        return self._broker.collect(encode(pattern), "persistent", "all", deliver_reply, lost)

    async def _look_at(
        self,
        membership: Membership,
        hosts: frozenset[str],
        pattern: TuplePattern,
        deliver: Detected,
    ) -> None:
        """Deliver the matches of hosts that could not answer a standing collect. Hosts that are out
        of reach answer it in the next membership, as all hosts do."""
        async with self._group.operating():
            for host in sorted(hosts) if self._group.membership is membership else ():
                with suppress(PeerLost):
                    for found in await self._look(host, pattern):
                        deliver(found)

    def _read(self, reply: Reply) -> list[FoundTuple]:
        now = self._now()
        if reply.is_update:
            placed = [read(item, TupleUpdate).placed for item in reply.items]
        else:
            placed = [read(item, PlacedTuple) for item in reply.items]
        return [one.found(reply.host, now) for one in placed]

    async def announce(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        """Announce tuples that have become visible at this host."""
        await publish_all(self._broker, updates_of(tuple_store, entries, self._group.me))

    def serve(self, tuple_store: TupleStore) -> None:
        """This host shares this space from now on. Nothing to do: collects go to all hosts."""

    def settled(self) -> None:
        """A new membership is settled. Nothing to do: the broker answers standing collects."""

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
    """Publish updates in order, without waiting for each."""
    if len(updates) == 1:
        await broker.publish(updates[0])
        return
    for start in range(0, len(updates), TOGETHER_MAX):
        await asyncio.gather(*map(broker.publish, updates[start : start + TOGETHER_MAX]))


WINDOW_MAX = 500
"""The most tuples in one message,"""
WINDOW_BYTES = 2**20
"""and the most bytes, unless it is one tuple."""
LISTINGS_MAX = 10_000
"""The most open listings for one host."""


class Listing:
    """The matches of a pattern in a tuple store that can be sent, window by window."""

    def __init__(self, tuple_store: TupleStore, pattern: TuplePattern) -> None:
        self._found = tuple_store.sendable(pattern)
        self._next = next(self._found, None)

    @property
    def is_over(self) -> bool:
        return self._next is None

    def window(self) -> dict[Entry, PlacedTuple]:
        """The next tuples that fit a message; at least one, if any are left."""
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
    """The open listings at one host, by asking host and number."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, Listing]] = {}

    def window(
        self, source: str, number: int, tuple_store: TupleStore, pattern: TuplePattern
    ) -> tuple[dict[Entry, PlacedTuple], bool]:
        """The next window of a listing, which is made on first use; and whether there are more."""
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
        """The number of open listings for this host, for the lab and for diagnosis."""
        return len(self._open.get(source, {}))

    def release(self, source: str, number: int) -> None:
        self._open.get(source, {}).pop(number, None)

    def cut(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            self._open.pop(host, None)

    def clear(self) -> None:
        self._open.clear()


QUERY_SECONDS = 0.5
"""How long a query waits for answers."""


class PublishedTuples(VisibleTuples):
    """The `Application` of the broker: updates are tuples, as with collect, or queries."""

    def state(self, pattern: Any) -> list[Any]:
        return []

    def matches(self, pattern: Any, update: Any) -> bool:
        kind, wanted = pattern
        update_kind, value = update[0], update[1]
        if kind != update_kind:
            return False
        return wanted == value if kind == "query" else super().matches(wanted, value)

    def key(self, pattern: Any) -> str:
        kind, wanted = pattern
        return f"query {wanted}" if kind == "query" else super().key(wanted)

    def allows(self, neighbour: str, pattern: Any) -> bool:
        kind, wanted = pattern
        return kind == "query" or super().allows(neighbour, wanted)


@dataclass(eq=False, repr=False)
class PublishTransport:
    """Operations and reactions by published queries."""

    _broker: Broker
    _group: Group
    _sender: PartSender
    _spaces: Spaces
    _may: HostFilter
    now: Callable[[], float]
    _spawn: Spawn
    _numbers: int = 0
    _queries: dict[int, Detected] = field(default_factory=dict)
    _served: dict[str, StandingRequest] = field(default_factory=dict)
    _watches: dict[_Watch, None] = field(default_factory=dict)

    # Queries

    async def probe(
        self, pattern: TuplePattern, every: bool
    ) -> tuple[list[FoundTuple], frozenset[str]]:
        found: list[FoundTuple] = []
        enough = asyncio.Event()

        def add(one: FoundTuple) -> None:
            found.append(one)
            if not every:
                enough.set()

        number = self.query(add)
        try:
            await self.ask(number, pattern)
            async with asyncio.timeout(QUERY_SECONDS):
                await enough.wait()
        except TimeoutError:
            pass
        finally:
            self.end_query(number)
        return found, frozenset(self._spaces.cut)

    def query(self, deliver: Detected) -> int:
        """Register a query; `deliver` is called with its answers. Returns its number."""
        self._numbers += 1
        self._queries[self._numbers] = deliver
        return self._numbers

    def end_query(self, number: int) -> None:
        self._queries.pop(number, None)

    async def ask(self, number: int, pattern: TuplePattern) -> None:
        """Publish a query; hosts with matches answer."""
        asked = [self._group.me, number, encode(pattern)]
        await self._broker.publish(["query", pattern.space, asked])

    def serve(self, tuple_store: TupleStore) -> None:
        if tuple_store.name not in self._served:
            self._served[tuple_store.name] = self._broker.subscribe(
                ["query", tuple_store.name], self._queried
            )

    def _queried(self, host: str, update: Any) -> None:
        """Answer a query of another host."""
        asker, number, encoded = read(update[2], tuple[str, int, TuplePattern])
        tuple_store = self._spaces.find(encoded.space)
        if tuple_store is None or asker == self._group.me:
            return
        neighbour = self._group.membership.toward(self._group.me, asker)
        operation = "take" if encoded.take else "read"
        if neighbour is not None and self._may(neighbour, operation, tuple_store, asker):
            listing = Listing(tuple_store, encoded)
            while not listing.is_over:
                self._sender.send(asker, QueryAnswers(number, list(listing.window().values())))

    def answered(self, source: str, message: QueryAnswers) -> None:
        """A host has answered a query of this host."""
        for one in message.found:
            deliver = self._queries.get(message.query)
            if deliver is not None:
                deliver(one.found(source, self.now()))

    # Reactions

    def watch(self, pattern: TuplePattern, deliver: Detected) -> ReactionWatch:
        watch = _Watch(self, self._broker, pattern, deliver)
        self._watches[watch] = None
        tuple_store = self._spaces.find(pattern.space)
        for _, one in tuple_store.sendable(pattern) if tuple_store is not None else ():
            watch.deliver(one.found(self._group.me, self.now()))
        if not watch.is_over:
            self._spawn(watch.ask())
        return watch

    def unwatch(self, watch: _Watch) -> None:
        self._watches.pop(watch, None)

    def settled(self) -> None:
        """Ask again: there may be new hosts."""
        for watch in list(self._watches):
            self._spawn(watch.ask())

    async def announce(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        updates = updates_of(tuple_store, entries, self._group.me)
        await publish_all(self._broker, [["tuple", update] for update in updates])

    def close(self) -> None:
        self._broker.close()


class _Watch:
    """A reaction: a subscription to tuples, and a query for the current ones."""

    def __init__(
        self, transport: PublishTransport, broker: Broker, pattern: TuplePattern, deliver: Detected
    ) -> None:
        self.is_over = False
        self._transport = transport
        self._pattern = pattern
        self._deliver = deliver
        self._query = transport.query(self.deliver)
        self._standing = broker.subscribe(["tuple", encode(pattern)], self._published)

    def _published(self, host: str, update: Any) -> None:
        published: TupleUpdate = read(update[1], TupleUpdate)
        self.deliver(published.placed.found(host, self._transport.now()))

    def deliver(self, found: FoundTuple) -> None:
        if not self.is_over:
            if self._pattern.one:
                self.cancel()
            self._deliver(found)

    async def ask(self) -> None:
        if not self.is_over:
            await self._transport.ask(self._query, self._pattern)

    def cancel(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._standing.cancel()
            self._transport.end_query(self._query)
            self._transport.unwatch(self)


Transport = CollectTransport | PublishTransport
"""How operations and reactions reach other hosts."""
