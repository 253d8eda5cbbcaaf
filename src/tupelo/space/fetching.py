"""What the handles of spaces elsewhere share, at other hosts or in a database: notices and matches
are fetched, and functions of this program are called with them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from inspect import isawaitable
from typing import Any

from tupelo.errors import (
    CannotReach,
    JournalError,
    ListenerFailed,
    PeerLost,
    SpaceClosed,
    TupeloError,
)
from tupelo.space.dual_api import DualHandle, dual_api, run_sync
from tupelo.space.reaction import WeakFunction, WeakStep
from tupelo.space.session import Seen
from tupelo.values.change import Notice
from tupelo.values.entry import Entry, thaw

logger = logging.getLogger("tupelo")


class Fetching(DualHandle):
    """Iterates over what `fetch_next` returns: `for`, or `async for` on the async API."""

    async def fetch_next(self) -> Any:
        """The next one, however long it takes; None at the end."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        self.require_door(False, "'async for'")
        while (found := run_sync(self.fetch_next)) is not None:
            yield found

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.require_door(True, "'for'")
        while (found := await self.fetch_next()) is not None:
            yield found


class FetchingSubscription(Fetching):
    """A subscription that may call a function with each of its notices."""

    @property
    def active(self) -> bool:
        """Whether more notices can come than those in the backlog."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """End it here, with an error."""
        raise NotImplementedError

    async def call(self, callback: Callable[[Notice], object]) -> None:
        """Call `callback` with each notice; an exception of the callback ends the subscription."""
        try:
            while (notice := await self.fetch_next()) is not None:
                result = callback(notice)
                if self.is_async and isawaitable(result):
                    await result
        except (PeerLost, CannotReach, JournalError) as error:
            logger.warning(
                "%r ended: %s; subscribe again to be told what comes from now on", self, error
            )
            self.fail(error)
        except Exception as error:
            logger.exception("a subscription's callback raised; the subscription is closed")
            self.fail(error)
            await self.leave(None)
        except BaseException as error:
            self.fail(ListenerFailed(repr(error)))
            raise


class FetchingReaction:
    """A reaction: this program calls the function once for every entry, each time in a transaction,
    after the step that wrote the entry. If notices were missed, since they came faster than they
    were reacted to, it looks at the entries that are there (`read_matches`)."""

    def __init__(
        self,
        space: Any,
        where: str,
        subscription: FetchingSubscription,
        read_matches: Callable[[], Coroutine[Any, Any, list[Entry]]],
        function: WeakFunction,
        once: bool,
    ) -> None:
        self.is_async = space.is_async
        self._space = space
        self._where = where
        self._subscription = subscription
        self._read_matches = read_matches
        self._function = function
        self._once = once
        self._seen = Seen()
        self._active = True
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<a reaction in the space {self._space.name!r} at {self._where}>"

    @property
    def active(self) -> bool:
        """Whether the function will be called again."""
        return self._active

    @property
    def error(self) -> Exception | None:
        """The last exception of the function, or the error that ended the reaction."""
        return self._error

    @dual_api
    async def cancel(self) -> None:
        """End the reaction."""
        self._active = False
        await self._subscription.leave(None)

    async def run(self, existing: list[Entry]) -> None:
        """React to the entries that were there, then to those that come."""
        try:
            await self._react_to(existing)
            while self._active and (notice := await self._subscription.fetch_next()) is not None:
                if notice.missed:
                    await self._react_to(await self._read_matches())
                await self._react_to([notice.subject])
        except SpaceClosed:
            pass
        except TupeloError as error:
            self._error = error
            logger.warning("%r ended: %s; call react again to go on", self, error)
        finally:
            self._active = False
        with suppress(SpaceClosed):
            await self._subscription.leave(None)

    async def _react_to(self, entries: list[Entry]) -> None:
        for entry in entries:
            if self._active and entry not in self._seen:
                self._seen.add(entry)
                await self._react(entry)

    async def _react(self, entry: Entry) -> None:
        try:
            await self._call(thaw(entry.shape, entry.fields))
        except Exception as error:
            if isinstance(error, (PeerLost, SpaceClosed)) and not self._subscription.active:
                raise
            logger.exception("a reaction's function raised; what it did is undone")
            self._error = error
        else:
            if self._once:
                self._active = False

    async def _call(self, value: Any) -> None:
        """Call the function in a transaction."""
        if not self.is_async:
            with self._space.transaction() as txn:
                self._function(value, WeakStep(self._space, txn))
            return
        async with self._space.transaction() as txn:
            result = self._function(value, WeakStep(self._space, txn))
            if isawaitable(result):
                await result
