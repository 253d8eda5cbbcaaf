"""LIME on plain publish-subscribe (section 4 of the collect paper), to compare it with collect.

A query is published to everyone who has subscribed to queries of its space, and whoever has a match
sends it back directly. Nobody says that it has none: so who gets no answer waits until its patience
is at an end, and may miss what comes later. A reaction is a subscription to all tuples that are
published, and one query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tupelo.federation.brokers.broker import Broker, StandingRequest
from tupelo.federation.groups.group import Group
from tupelo.federation.groups.routing import PartSender
from tupelo.federation.hosts.core import HostCore
from tupelo.models.lime.messages import Answers, TuplePattern, TupleUpdate, encode, read
from tupelo.models.lime.reactions import Detected, ReactionWatch
from tupelo.models.lime.spaces import Spaces, TupleStore
from tupelo.models.lime.transport import (
    FoundTuples,
    HostFilter,
    VisibleTuples,
    publish_all,
    updates_of,
)
from tupelo.models.lime.windows import Listing
from tupelo.values.entry import Entry

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
