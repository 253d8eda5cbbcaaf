"""Racing: waiting for what is asked of all hosts, and for what comes to this one meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from tupelo.errors import HostClosed
from tupelo.values.entry import Entry

Found = list[Entry]


class PostBroadcast:
    """Wakes all who wait, when something has come, or the host is closed."""

    def __init__(self) -> None:
        self.is_closed = False
        self.waiting: dict[asyncio.Event, None] = {}  # in order: a seed replays exactly
        self._left = asyncio.Event()

    def stir(self) -> None:
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
        """Nobody waits any more, once this returns."""
        self.is_closed = True
        self.stir()
        while self.waiting:
            self._left.clear()
            await self._left.wait()


async def race(
    ask: Callable[[], Coroutine[Any, Any, Found]],
    is_here: Callable[[], bool],
    look: Callable[[], Found | Awaitable[Found]],
    undo: Callable[[Found], object],
    broadcast: PostBroadcast,
) -> Found:
    """What is got by asking all, or found by looking here when something has come; never both: the
    question is withdrawn before we look, and if it was answered by then, that counts. It is not
    withdrawn for nothing: where much comes it would never be answered. If nobody waits for the
    answer any more, it is undone."""
    stirred = broadcast.enter()
    try:
        while True:
            here = look() if is_here() else []
            found = here if isinstance(here, list) else await here
            if found:
                return found
            asking = asyncio.ensure_future(ask())
            try:
                await _until(stirred, lambda: broadcast.is_closed or is_here(), asking)
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
        broadcast.leave(stirred)


async def _until(
    stirred: asyncio.Event, is_so: Callable[[], bool], asking: asyncio.Task[Found]
) -> None:
    """Wait for an answer; or until something is so, which only a stir can bring about."""
    while not asking.done():
        stirred.clear()
        if is_so():
            return
        waking = asyncio.ensure_future(stirred.wait())
        try:
            await asyncio.wait([asking, waking], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()


def _undo(undo: Callable[[Found], object], asking: asyncio.Task[Found]) -> None:
    if not asking.cancelled() and asking.exception() is None:
        undo(asking.result())
