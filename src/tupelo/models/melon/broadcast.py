"""Waiting for an answer of other hosts, or for a message that arrives here, whichever is first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from tupelo.errors import HostClosed
from tupelo.values.entry import Entry

Found = list[Entry]


class MessageSignal:
    """Wakes all waiting reads and takes when messages arrive, or when the host is closed."""

    def __init__(self) -> None:
        self.is_closed = False
        self.waiting: dict[asyncio.Event, None] = {}  # in order: a seed replays exactly
        self._left = asyncio.Event()

    def notify(self) -> None:
        for event in self.waiting:
            event.set()

    def enter(self) -> asyncio.Event:
        self.require_open()
        event = asyncio.Event()
        self.waiting[event] = None
        return event

    def leave(self, event: asyncio.Event) -> None:
        self.waiting.pop(event, None)
        self._left.set()

    def require_open(self) -> None:
        if self.is_closed:
            raise HostClosed("the host was closed")

    async def close(self) -> None:
        """Wake all waiters, which raise HostClosed, and return when the last has left."""
        self.is_closed = True
        self.notify()
        while self.waiting:
            self._left.clear()
            await self._left.wait()


async def race(
    ask: Callable[[], Coroutine[Any, Any, Found]],
    is_here: Callable[[], bool],
    look: Callable[[], Found | Awaitable[Found]],
    undo: Callable[[Found], object],
    broadcast: MessageSignal,
) -> Found:
    """Return the result of `ask`, which waits for other hosts, or of `look`, which searches at this
    host. Never both: `ask` is cancelled before `look` is called, and if it has ended by then, its
    result is returned. `look` is called only while `is_here()` holds; if every arrival cancelled
    `ask`, it might never get an answer on a busy host. If the caller is cancelled, `undo` is called
    with the result of `ask`. HostClosed if the host is closed meanwhile."""
    woken = broadcast.enter()
    try:
        while True:
            here = look() if is_here() else []
            found = here if isinstance(here, list) else await here
            if found:
                return found
            asking = asyncio.ensure_future(ask())
            asking.add_done_callback(lambda asked: woken.set())
            try:
                while not (asking.done() or broadcast.is_closed or is_here()):
                    woken.clear()
                    await woken.wait()
                asking.cancel()
                await asyncio.wait([asking])
            except asyncio.CancelledError:
                asking.cancel()
                asking.add_done_callback(partial(_undo, undo))
                raise
            if not asking.cancelled():
                return asking.result()
            broadcast.require_open()
    finally:
        broadcast.leave(woken)


def _undo(undo: Callable[[Found], object], asking: asyncio.Task[Found]) -> None:
    if not asking.cancelled() and asking.exception() is None:
        undo(asking.result())
