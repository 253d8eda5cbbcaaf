"""What remote spaces tell: subscriptions; and reactions, which run here, after the host's step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadFrame, ListenerFailed, PeerLost, SpaceClosed, TupeloError
from tupelo.federation.client.arguments import listed
from tupelo.federation.client.handles import RemoteHandle
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import read_error, read_whole
from tupelo.space.dual_api import dual_api, run_sync
from tupelo.space.query import check_wait
from tupelo.space.reaction import WeakFunction, WeakStep
from tupelo.space.session import Seen
from tupelo.values.change import Notice
from tupelo.values.entry import Entry, thaw

if TYPE_CHECKING:
    from tupelo.federation.client.reach import RemoteOperations
    from tupelo.federation.client.space import RemoteSpace

logger = logging.getLogger("tupelo")

AHEAD_MAX = 64
"""How many notices are asked for at once by who wants them all."""

BACKLOG_MAX = 10_000
"""How many notices may wait for a reaction."""


class RemoteSubscription(RemoteHandle):
    """Notices, in order, from a host elsewhere: iterate (`async for` on the async door), or `get`.

    It ends with its lease, its transaction, its space, its link, or `close()`.
    """

    kind = "subscription"

    def __init__(
        self,
        space: RemoteOperations,
        serial: int,
        granted: list[Any],
        handback: Any,
        backlog_max: int,
    ) -> None:
        thing_id, self.event_id, expires = granted
        super().__init__(space, serial, thing_id, expires)
        self._handback = handback
        self._backlog_max = backlog_max
        self._ahead: deque[Notice] = deque()
        self._closed = False
        self._active = True
        self._sequence = 0
        self._error: Exception | None = None

    @dual_api
    async def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None if none came in time, or if there will be no more."""
        check_wait(wait)
        return await self._next(wait, 1)

    def __iter__(self) -> Iterator[Notice]:
        self.require_door(False, "'async for'")
        while (notice := run_sync(partial(self._next, None, AHEAD_MAX))) is not None:
            yield notice

    async def __aiter__(self) -> AsyncIterator[Notice]:
        self.require_door(True, "'for'")
        while (notice := await self._next(None, AHEAD_MAX)) is not None:
            yield notice

    async def _next(self, wait: float | None, limit: int) -> Notice | None:
        while True:
            try:
                return self._ahead.popleft()
            except IndexError:
                if self._error is not None:
                    raise self._error from None
            if self._closed or not await self._fetch(wait, limit):
                return None

    async def _fetch(self, wait: float | None, limit: int) -> bool:
        """Ask for notices; did any come?"""
        try:
            message = wire.Next(0, self._space.name, self.id, wait, limit)
            notices = [self._read(encoded) for encoded in listed(await self._ask(message))]
        except SpaceClosed:
            return False
        except TupeloError as error:
            self._end(error)
            raise
        self._ahead.extend(notices)
        return bool(notices)

    def _read(self, encoded: Any) -> Notice:
        try:
            event_id, sequence, kind, subject, missed = encoded
        except (TypeError, ValueError) as error:
            raise BadFrame(f"this is no notice: {error}") from error
        self._sequence = max(self._sequence, sequence)
        return Notice(event_id, sequence, kind, read_whole(subject), self._handback, missed)

    async def call(self, callback: Callable[[Notice], object]) -> None:
        """Call back for each notice. What the callback raises ends the subscription."""
        try:
            while (notice := await self._next(None, AHEAD_MAX)) is not None:
                answer = callback(notice)
                if self.is_async and isawaitable(answer):
                    await answer
        except PeerLost as error:
            logger.warning(
                "a subscription in the space %r ended: %s; subscribe again to be told what comes "
                "from now on",
                self._space.name,
                error,
            )
        except Exception as error:
            logger.exception("a subscription's callback raised; the subscription is closed")
            self._end(error)
            await self._close()
        except BaseException as error:
            self._end(ListenerFailed(repr(error)))
            raise

    def _end(self, error: Exception) -> None:
        self._error = self._error or error
        self._active = False

    # How it stands

    @property
    def sequence(self) -> int:
        """The sequence number of the last notice for this event."""
        self._look()
        return self._sequence

    @property
    def active(self) -> bool:
        """May more notices come than those that wait?"""
        self._look()
        return self._active

    @property
    def error(self) -> Exception | None:
        """Why it ended, if something went wrong."""
        self._look()
        return self._error

    def _look(self) -> None:
        if not self.is_async:
            run_sync(self._refresh)

    @dual_api
    async def refresh(self) -> None:
        """Ask the host how it stands."""
        await self._refresh()

    async def _refresh(self) -> None:
        if self._closed or not self._active:
            return
        try:
            active, self.expires, self._sequence, error = await self._told()
            self._active = self._active and bool(active)  # It may have ended here meanwhile.
        except SpaceClosed:
            self._active = False
        except TupeloError as lost:
            self._end(lost)
        else:
            if error is not None:
                self._error = read_error(*error)

    @dual_api
    async def close(self) -> None:
        """No more notices; those that have come can still be had."""
        await self.finish()

    async def finish(self) -> None:
        if not self._closed:
            await self.keep_backlog()
            self._closed = True
            self._active = False
            await self._close()

    async def keep_backlog(self) -> None:
        """Get what waits at the host before it forgets it."""
        if self._active:
            try:
                await self._fetch(0, self._backlog_max)
            except TupeloError:  # It is kept as the error.
                return

    async def leave(self, error: BaseException | None) -> None:
        await self.finish()


class RemoteReaction:
    """A registered reaction; it is called here, once for every entry, after the step. It may lag
    behind by `BACKLOG_MAX` entries; of what comes then it only learns while it is there."""

    def __init__(
        self,
        space: RemoteSpace,
        subscription: RemoteSubscription,
        look: Callable[[], Coroutine[Any, Any, list[Entry]]],
        function: WeakFunction,
        once: bool,
    ) -> None:
        self._space = space
        self._subscription = subscription
        self._look = look
        self._function = function
        self._once = once
        self._seen = Seen()
        self._active = True
        self._error: Exception | None = None
        self.is_async = space.is_async

    @property
    def active(self) -> bool:
        return self._active

    @property
    def error(self) -> Exception | None:
        """What its function raised the last time that it did."""
        return self._error

    @dual_api
    async def cancel(self) -> None:
        self._active = False
        await self._subscription.finish()

    async def run(self, existing: list[Entry]) -> None:
        """React to what is there, then to what comes."""
        try:
            await self._react_to(existing)
            while self._active and (notice := await self._subscription._next(None, AHEAD_MAX)):
                if notice.missed:  # Too much came at once. What of it is still there?
                    await self._react_to(await self._look())
                await self._react_to([notice.subject])
        except TupeloError as error:
            self._error = error
            if isinstance(error, PeerLost):
                logger.warning(
                    "a reaction in the space %r ended: %s; call react again to go on",
                    self._space.name,
                    error,
                )
        finally:
            self._active = False
        await self._subscription.finish()

    async def _react_to(self, entries: list[Entry]) -> None:
        for entry in entries:
            await self._react(entry)

    async def _react(self, entry: Entry) -> None:
        if not self._active or entry in self._seen:
            return
        self._seen.add(entry)
        try:
            txn = await self._space.begin(None)
            try:
                step = WeakStep(self._space, txn)
                answer = self._function(thaw(entry.shape, entry.fields), step)
                if self.is_async and isawaitable(answer):
                    await answer
            except BaseException as error:
                await txn.leave(error)
                raise
            await txn.leave(None)
        except (PeerLost, SpaceClosed):
            raise
        except Exception as error:
            logger.exception("a reaction's function raised; what it did is undone")
            self._error = error
        else:
            if self._once:
                self._active = False
