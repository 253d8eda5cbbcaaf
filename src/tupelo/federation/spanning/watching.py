"""Watching: being called, on the host's loop, when there may be a match that was not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import Any

from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.values.notice import Notice


class Intended:
    """A watch that will stand if it turns out that there is nothing."""

    hits = 0

    def end(self) -> None: ...


class Watching:
    """A watch over one space. `hits` counts what came; `hint` is called once, and again only after
    `arm`, so that a busy space does not talk to one who is slow to ask."""

    def __init__(self, hosted: HostedSpace, template: Any, hint: Callable[[], None]) -> None:
        self.hits = 0
        self.hosted = hosted
        self._hint = hint
        self._armed = True
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._over = False
        self._state = hosted.operations.subscribe(
            template, None, None, None, None, backlog_max=1, available=True
        )
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

    def listen(self) -> None:
        came = 0
        while not self._over:
            found, _ = self.hosted.operations.next_notice(self._state, lambda: self, None)
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
            self.hosted.operations.end_subscription(self._state)
