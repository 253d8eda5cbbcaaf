"""Subscriptions of this program, to which the log of a space is passed."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import PeerLost, SpaceClosed, TupeloError
from tupelo.postgres.leases import LeasedHandle
from tupelo.postgres.waiting import until
from tupelo.space.dual_api import dual_api, run_sync
from tupelo.space.fetching import FetchingSubscription
from tupelo.space.protocol import SubscriptionLike
from tupelo.space.query import check_wait
from tupelo.values.change import Notice
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.postgres.listening import WaitingOperation
    from tupelo.postgres.log import NoticeSequence
    from tupelo.postgres.space import PostgresSpace


class PostgresSubscription(LeasedHandle, FetchingSubscription):
    """Notices in order, from the log of the space. Iterate (`async for` on the async API), or call
    `get`. It ends with its lease, its space, or `close()`."""

    what, protocol = "subscription", SubscriptionLike

    def __init__(
        self,
        space: PostgresSpace,
        event: NoticeSequence,
        seconds: float | None,
        handback: Any,
        backlog_max: int,
    ) -> None:
        super().__init__(space, seconds)
        self.event = event
        self.backlog: deque[Notice] = deque()
        self._handback = handback
        self._backlog_max = backlog_max
        self._missed = 0
        self._error: Exception | None = None

    @property
    def event_id(self) -> int:
        """Identifies the event; equal for subscriptions of this space object with equal
        templates."""
        return self.event.id

    def add(self, kind: Any, entry: Entry, time: float) -> None:
        """Add a notice of a change at this time, unless the lease had ended; if the backlog is
        full, the oldest is dropped."""
        if self.expires is not None and self.expires <= time:
            return
        if len(self.backlog) >= self._backlog_max:
            self.backlog.popleft()
            self._missed += 1
        notice = Notice(self.event.id, self.event.sequence, kind, entry, self._handback)
        self.backlog.append(notice)

    @dual_api
    async def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None after `wait` seconds, or if the subscription has ended."""
        check_wait(wait)
        return await self.next(wait)

    async def next(self, wait: float | None) -> Notice | None:
        async def attempt(waiter: WaitingOperation | None) -> tuple[bool, Notice | None]:
            if not self.backlog and not self.ended:
                await self.space.log.pull()
            notice = self._next()
            if notice is None and self._error is not None:
                raise self._error
            return notice is not None or self.ended or self.ran_out, notice

        if self.ended:
            return (await attempt(None))[1]
        try:
            found: Notice | None = (await until(self.space, attempt, wait))[1]
        except SpaceClosed:
            return self._next()
        return found

    def give_back(self, notices: list[Notice]) -> None:
        """Return notices that did not reach the receiver."""
        for notice in reversed(notices):
            self.miss(notice.missed)
            self.backlog.appendleft(msgspec.structs.replace(notice, missed=0))

    def miss(self, count: int) -> None:
        """The next notice tells that so many are missing."""
        self._missed += count

    def _next(self) -> Notice | None:
        if not self.backlog:
            return None
        notice = self.backlog.popleft()
        if self._missed:
            notice = msgspec.structs.replace(notice, missed=self._missed)
            self._missed = 0
        return notice

    async def fetch_next(self) -> Notice | None:
        return await self.next(None)

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        self._error = self._error or error
        self.finish()

    @property
    def sequence(self) -> int:
        """The sequence number of the last notice for this event."""
        self._refresh_if_blocking()
        return self.event.sequence

    @property
    def active(self) -> bool:
        """Whether more notices can come than those in the backlog."""
        self._refresh_if_blocking()
        return not (self.ended or self.ran_out)

    @property
    def error(self) -> Exception | None:
        """The error that ended the subscription, if any."""
        self._refresh_if_blocking()
        return self._error

    def _refresh_if_blocking(self) -> None:
        if not self.is_async:
            run_sync(self._refresh)

    @dual_api
    async def refresh(self) -> None:
        """Read the log up to now."""
        await self._refresh()

    async def _refresh(self) -> None:
        if not self.ended:
            with suppress(SpaceClosed, PeerLost):
                await self.space.log.pull()

    async def keep_backlog(self) -> None:
        """Get the notices up to now, before it ends."""
        with suppress(TupeloError):
            await self.space.log.pull()

    def finish(self) -> None:
        self.space.log.forget(self)
        super().finish()

    @dual_api
    async def close(self) -> None:
        """End the subscription; notices that have come can still be fetched."""
        await self.leave(None)

    async def leave(self, error: BaseException | None) -> None:
        if not self.ended:
            await self.keep_backlog()
            self.finish()

    async def expired(self) -> None:
        await self.leave(None)
