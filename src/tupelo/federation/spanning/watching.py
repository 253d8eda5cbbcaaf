"""Watching: being called, on the host's loop, when there may be a match that was not there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from threading import get_ident
from typing import Any

from tupelo.errors import CannotSend
from tupelo.federation.links.wire import WatchRequest
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.asynchronous import Subscription
from tupelo.space.order import Fifo, Order
from tupelo.space.query import Query
from tupelo.store.index import Accept
from tupelo.values.entry import Entry
from tupelo.values.notice import Notice


class PlannedWatch:
    """A watch that will stand if it turns out that there is nothing."""

    hits = 0

    def end(self) -> None: ...


class SpaceAwaited:
    """A watch for a space that this host does not have yet. `made` is called when the space is
    made, for there may be something in it then."""

    def __init__(self, space: str, made: Callable[[HostedSpace], None]) -> None:
        self.space = space
        self.hits = 0
        self._made = made

    def made(self, hosted: HostedSpace) -> None:
        self.hits += 1
        self._made(hosted)

    def end(self) -> None: ...


class SpaceWatch:
    """A watch over one space. `hits` counts what came, or is shown now by an order that left it out
    before; `hint` is called once, and again only after `arm`, so that a busy space does not talk to
    one who is slow to ask."""

    def __init__(
        self,
        hosted: HostedSpace,
        template: Any,
        hint: Callable[[], None],
        order: Order | None = None,
    ) -> None:
        self.hits = 0
        self.hosted = hosted
        self._hint = hint
        self._armed = True
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._over = False
        self._shown = 0
        self._state = hosted.port.subscribe(
            template, None, None, None, None, backlog_max=1, available=True, unleased=True
        )
        self._end_peek = hosted.port.peek(template, order, self._show)
        self.listen()

    def arm(self) -> None:
        self._armed = True

    def wake(self) -> bool:
        """Something came, on whichever thread, under the space's lock."""
        try:
            if get_ident() == self._thread:
                self._loop.call_soon(self.listen)
            else:
                self._loop.call_soon_threadsafe(self.listen)
        except RuntimeError:  # The loop is closed.
            return False
        return True

    def _show(self) -> None:
        self._shown += 1
        self.wake()

    def listen(self) -> None:
        with self.hosted.port.atomic():
            came, self._shown = self._shown, 0
        while not self._over:
            found, _ = self.hosted.port.next_notice(self._state, lambda: self, None)
            if not isinstance(found, Notice):
                break
            came += 1 + found.missed
        if came:
            self.hits += came
            if self._armed:
                self._armed = False
                self._hint()

    def end(self) -> None:
        if not self._over:
            self._over = True
            self._end_peek()
            self.hosted.port.end_subscription(self._state)


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
