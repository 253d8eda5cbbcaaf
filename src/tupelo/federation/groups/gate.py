"""The gate: operations that span hosts pass it, and none does while the group changes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

from tupelo.errors import HostClosed

HELD_MAX = 10_000
"""Of so many changes it is remembered how long operations were held."""


class Gate:
    """Counts the operations that are under way. `quiet` is called when the last one has ended while
    the gate is shut."""

    def __init__(self, quiet: Callable[[], None]) -> None:
        self.under_way = 0
        self.shut = False
        self.held: deque[float] = deque(maxlen=HELD_MAX)
        self._quiet = quiet
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._closed = False

    def close(self) -> None:
        """Nobody passes any more."""
        self._closed = True
        self._wake()

    def halt(self) -> None:
        if not self.shut:
            self.shut = True
            self._since = self._loop.time()

    def open(self) -> None:
        if self.shut:
            self.shut = False
            self.held.append(self._loop.time() - self._since)
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def enter(self) -> None:
        while self.shut and not self._closed:
            turn = self._loop.create_future()
            self._waiting[turn] = None
            try:
                await turn
            finally:
                self._waiting.pop(turn, None)
        self.enter_now()

    def enter_now(self) -> None:
        """Pass also if the gate is shut: this is part of an operation that has passed."""
        if self._closed:
            raise HostClosed("the host was closed")
        self.under_way += 1

    def leave(self) -> None:
        self.under_way -= 1
        if self.shut and not self.under_way:
            self._quiet()


class GatedOperation:
    """One operation, for `async with`. One inside another does not wait, nor does one for somebody
    elsewhere who asks within an operation of its own: the outer one holds the group."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._over = False
        self._outer: GatedOperation | None = None

    async def __aenter__(self) -> None:
        self._outer = _CURRENT.get()
        if self._outer is not None and self._outer.holds(self._gate):
            self._gate.enter_now()
        else:
            await self._gate.enter()
        _CURRENT.set(self)

    async def __aexit__(self, *error: object) -> None:
        self._over = True
        _CURRENT.set(self._outer)
        self._gate.leave()

    def holds(self, gate: Gate) -> bool:
        """Is it under way at this gate? A task that it has begun may outlive it."""
        return gate is self._gate and not self._over


_CURRENT: ContextVar[GatedOperation | None] = ContextVar("operation", default=None)


class GatedRequest(GatedOperation):
    """Something that is done for an operation elsewhere, which holds the group."""

    async def __aenter__(self) -> None:
        _CURRENT.set(self)

    async def __aexit__(self, *error: object) -> None:
        self._over = True
