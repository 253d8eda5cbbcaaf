"""Weak reactions: functions that are called here, once for every entry, after the step in which it
became visible; wherever that was. What they do is one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Self

from tupelo.errors import HostClosed, SpaceClosed
from tupelo.space.dual_api import await_at_once, dual_api, maybe_await
from tupelo.values.parts import ANY

logger = logging.getLogger("tupelo")

WeakFunction = Callable[[Any, "WeakStep"], object]


class WeakStep:
    """What a weak reaction may do: the operations of the space that do not wait, in one
    transaction. On the async door they are awaited."""

    def __init__(self, space: Any, txn: Any) -> None:
        self._space = space
        self._txn = txn

    def write(self, entry: object, *, lease: float | None = None) -> Any:
        return self._space.write(entry, lease=lease, txn=self._txn)

    def read(self, template: object = ANY) -> Any:
        return self._space.read(template, wait=0, txn=self._txn)

    def take(self, template: object = ANY) -> Any:
        return self._space.take(template, wait=0, txn=self._txn)

    def read_all(self, template: object = ANY, *, limit: int | None = None) -> Any:
        return self._space.read_all(template, limit=limit, txn=self._txn)

    def take_all(self, template: object = ANY, *, limit: int | None = None) -> Any:
        return self._space.take_all(template, limit=limit, txn=self._txn)

    def count(self, template: object = ANY) -> Any:
        return self._space.count(template, txn=self._txn)


class WeakReaction:
    """A registered reaction to entries of any engaged host. Its step is a transaction here."""

    def __init__(
        self,
        space: Any,
        listening: Any,
        function: WeakFunction,
        once: bool,
    ) -> None:
        self.is_async = space.is_async
        self._space = space
        self._listening = listening
        self._function = function
        self._once = once
        self._error: Exception | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return await_at_once(self)

    @property
    def active(self) -> bool:
        active: bool = self._listening.active
        return active

    @property
    def error(self) -> Exception | None:
        """What its function raised the last time that it did."""
        return self._error

    @dual_api
    async def cancel(self) -> None:
        await maybe_await(self._listening.close())

    async def run(self) -> None:
        """React until it is cancelled, has reacted once, or its space or host is closed."""
        with suppress(SpaceClosed, HostClosed):
            while (notice := await maybe_await(self._listening.get())) is not None:
                if await self._react(notice.entry) and self._once:
                    await maybe_await(self._listening.close())
                    return

    async def _react(self, entry: Any) -> bool:
        txn = self._space.transaction()
        try:
            answer = self._function(entry, WeakStep(self._space, txn))
            if self.is_async and isawaitable(answer):
                await answer
            await maybe_await(txn.commit())
        except Exception as error:
            self._error = error
            logger.warning("a reaction raised, and what it did is undone: %r", error)
            await maybe_await(txn.abort())
            return False
        return True
