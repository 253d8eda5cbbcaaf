"""Telling: a subscription of someone elsewhere. It is told of entries as long as it takes them;
what there is no room for waits here, and is counted when it must be dropped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from tupelo.errors import CannotSend
from tupelo.federation.links.wire import WatchRequest
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.asynchronous import Subscription
from tupelo.space.order import Fifo
from tupelo.space.query import Query
from tupelo.store.index import Accept
from tupelo.values.entry import Entry

logger = logging.getLogger("tupelo")

WINDOW = 256
"""So many entries may be under way."""
BACKLOG_MAX = 10_000


class RemoteWatch:
    """Tells of the entries that match, the oldest first."""

    hits = 0

    def __init__(
        self,
        hosted: HostedSpace,
        template: Any,
        message: WatchRequest,
        only: Accept | None,
        tell: Callable[[str, Entry, int], None],
    ) -> None:
        self._tell = tell
        self._missed = 0
        self._room = asyncio.Semaphore(WINDOW)
        state = hosted.port.subscribe(
            template,
            None,
            None,
            None,
            None,
            BACKLOG_MAX,
            message.available,
            message.returned,
            unleased=True,
        )
        self._hosted = hosted
        self._state = state
        self._subscription = Subscription(hosted.port, state, None)
        existing = (template, only) if message.existing else None
        self._said = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(existing))
        self.task.add_done_callback(lambda task: self._said.set())

    async def _run(self, existing: tuple[Any, Accept | None] | None) -> None:
        if existing is not None:
            template, only = existing
            query = Query(template, many=True, limit=None, order=Fifo(), known=False, only=only)
            query = query.replace(in_slices=True)
            for entry in await self._hosted.port.fetch(query):
                await self._say("visible", entry, 0)
        self._said.set()
        async for notice in self._subscription:
            await self._say(notice.kind, notice.subject, notice.missed)
            self._said.set()

    async def caught_up(self) -> None:
        """Wait until all that came before was told of."""
        while not (self.task.done() or self._hosted.port.awaits_notice(self._state)):
            self._said.clear()
            await self._said.wait()

    def stop(self) -> None:
        """From any thread: what comes from now on is not told of; `task` ends after the rest."""
        self._hosted.port.end_subscription(self._state)

    async def _say(self, kind: str, entry: Entry, missed: int) -> None:
        """What cannot be sent is missed, and the next one says so."""
        await self._room.acquire()
        self._missed += missed
        try:
            self._tell(kind, entry, self._missed)
            self._missed = 0
        except CannotSend as error:
            self._missed += 1
            self._room.release()
            logger.warning("an entry of %r is not told of: %s", self._hosted.name, error)

    def arrived(self, entries: int) -> None:
        for _ in range(min(entries, WINDOW)):
            self._room.release()

    def end(self) -> None:
        self.task.cancel()
        self._hosted.port.end_subscription(self._state)
