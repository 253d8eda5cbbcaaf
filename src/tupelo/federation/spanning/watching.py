"""Watches on one space of this host, for searches and subscriptions of this and other hosts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from tupelo.errors import CannotSend, DiskFull, JournalFailed
from tupelo.federation.links.wire import WatchRequest
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.asynchronous import Subscription
from tupelo.space.bridge import LoopBridge
from tupelo.space.order import Fifo, Order
from tupelo.space.query import Query
from tupelo.space.tasks import FULL_DISK_SECONDS, when_room
from tupelo.store.index import Accept
from tupelo.values.change import Notice
from tupelo.values.entry import Entry


class WatchPlaceholder:
    """The place of a watch that is set up only if there is no match now."""

    hits = 0

    def end(self) -> None: ...


class MissingSpaceWatch:
    """A watch on a space that this host does not have yet; `made` is called when it is created."""

    def __init__(self, space: str, made: Callable[[HostedSpace], None]) -> None:
        self.space = space
        self.hits = 0
        self._made = made

    def made(self, hosted: HostedSpace) -> None:
        self.hits += 1
        self._made(hosted)

    def end(self) -> None: ...


class SpaceWatch:
    """Calls `hint`, on the host's loop, when a space may have a new match. `hits` counts entries
    that came, and those that the order has revealed. After one hint the next follows only after
    `arm`, so that a busy space does not flood a slow listener. If the space `had_nothing` when the
    watch began, the first hint has the entry that came; all others have None."""

    def __init__(
        self,
        hosted: HostedSpace,
        template: Any,
        hint: Callable[[Entry | None], None],
        order: Order | None = None,
    ) -> None:
        self.hits = 0
        self.had_nothing = False
        self.hosted = hosted
        self._hint = hint
        self._armed = True
        self._bridge = LoopBridge()
        self._over = False
        self._shown = 0
        self._state = hosted.port.subscribe(
            template, None, None, None, None, backlog_max=1, available=True, unleased=True
        )
        self._end_peek = hosted.port.peek(template, order, self._show)
        self.listen()

    def arm(self) -> None:
        self._armed = True

    def begin(self) -> None:
        """Arm it, and count anew."""
        self.had_nothing, self.hits, self._armed = False, 0, True

    def wake(self) -> bool:
        """Called on any thread, under the space's lock, when something came."""
        return self._bridge.soon(self.listen)

    def _show(self) -> None:
        self._shown += 1
        self.wake()

    def listen(self) -> None:
        """Count the notices that have come, and call `hint`."""
        with self.hosted.port.atomic():
            came, self._shown = self._shown, 0
        first: Entry | None = None
        while not self._over:
            found, _ = self.hosted.port.next_notice(self._state, lambda: self, None)
            if not isinstance(found, Notice):
                break
            came += 1 + found.missed
            first = found.subject
        if came:
            self.hits += came
            if self._armed:
                self._armed = False
                self._hint(first if self.had_nothing and self.hits == 1 else None)

    def end(self) -> None:
        if not self._over:
            self._over = True
            self._end_peek()
            self.hosted.port.end_subscription(self._state)


logger = logging.getLogger("tupelo")

WINDOW = 256
"""How many entries may be sent and not acknowledged."""
BACKLOG_MAX = 10_000


class RemoteWatch:
    """A subscription for another host: calls `tell` with matching entries, the oldest first, at
    most `WINDOW` ahead of its acknowledgements. Other notices wait; dropped ones are counted."""

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
        self._progress = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(existing))
        self.task.add_done_callback(lambda task: self._progress.set())

    async def _run(self, existing: tuple[Any, Accept | None] | None) -> None:
        if existing is not None:
            template, only = existing
            query = Query(template, many=True, limit=None, order=Fifo(), known=False, only=only)
            query = query.replace(in_slices=True)
            fetch = partial(self._hosted.port.fetch, query)
            for entry in await when_room(fetch, flushes=True) or []:
                await self._send("visible", entry, 0)
        self._progress.set()
        while True:
            try:
                async for notice in self._subscription:
                    await self._send(notice.kind, notice.subject, notice.missed)
                    self._progress.set()
                return
            except DiskFull:  # The notice comes again.
                await asyncio.sleep(FULL_DISK_SECONDS)
            except JournalFailed:  # The space is closed, and has reported it.
                return

    async def caught_up(self) -> None:
        """Wait until `tell` was called for everything that has come."""
        while not (self.task.done() or self._hosted.port.awaits_notice(self._state)):
            self._progress.clear()
            await self._progress.wait()

    def stop(self) -> None:
        """From any thread: accept no new notices; `task` ends after those that wait."""
        self._hosted.port.end_subscription(self._state)

    async def _send(self, kind: str, entry: Entry, missed: int) -> None:
        """Send one entry. One that cannot be sent counts as missed in the next notice."""
        await self._room.acquire()
        self._missed += missed
        try:
            self._tell(kind, entry, self._missed)
            self._missed = 0
        except CannotSend as error:
            self._missed += 1
            self._room.release()
            logger.warning(
                "an entry of %r cannot be sent to a subscriber: %s", self._hosted.name, error
            )

    def arrived(self, entries: int) -> None:
        """The listener has acknowledged so many entries."""
        for _ in range(min(entries, WINDOW)):
            self._room.release()

    def end(self) -> None:
        self.task.cancel()
        self._hosted.port.end_subscription(self._state)
