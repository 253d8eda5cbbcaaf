"""News of a feed, for those who look into it at this host: what has come, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from tupelo.federation.replication.feed import Feed
from tupelo.values.entry import Entry


class Broadcast:
    """Rings whenever something may have changed. Who waits says up to which ring it has looked, so
    that it misses none."""

    def __init__(self) -> None:
        self.rings = 0
        self._event = asyncio.Event()

    def ring(self) -> None:
        self.rings += 1
        self._event.set()
        self._event.clear()

    async def wait(self, after: int) -> None:
        """Until it has rung more often than this."""
        while self.rings <= after:
            await self._event.wait()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self.wait(self.rings)


class FeedCursor:
    """Gives each item of a feed once: of each source in order, as far as they are here."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._upto: dict[str, int] = {}

    def news(self) -> Iterator[tuple[str, int, Entry]]:
        for source, stream in list(self._feed.exchange.streams.items()):
            after = self._upto.get(source, 0)
            if stream.upto > after:
                self._upto[source] = stream.upto
                for number in stream.numbers(after):
                    yield source, number, stream.items[number]
