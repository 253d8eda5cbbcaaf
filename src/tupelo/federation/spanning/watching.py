"""Watching: being called, on the host's loop, when there may be a match that was not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import Any

from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.order import Order
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
    one who is slow to ask. If the space `had_nothing` when the watch began, the first hint is given
    the entry that came; all others, and one for several entries, are given None."""

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
