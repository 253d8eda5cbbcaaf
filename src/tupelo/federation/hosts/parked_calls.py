"""Parked: a waiting read or take of someone elsewhere. It is not a task, so that thousands may
wait: a signal that hops to the host's loop, and what to do there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import get_ident

from tupelo.errors import TupeloError
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.tasks import alarm_at
from tupelo.space.waiting import Waiter
from tupelo.values.entry import Entry

Done = Callable[[list[Entry], Exception | None], None]


class AnsweredCalls:
    """Those of a host who were answered on its loop, until they have the answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parked: deque[ParkedCall] = deque()

    def add(self, parked: ParkedCall) -> None:
        if not self._parked:
            self._loop.call_soon(self.answer)
        self._parked.append(parked)

    def answer(self) -> None:
        """Now: they need not wait until the loop comes round."""
        while self._parked:
            self._parked.popleft().end()


class ParkedCall:
    """A waiter's signal, and its patience."""

    __slots__ = (
        "_cancel_alarm",
        "_done",
        "_hosted",
        "_loop",
        "_over",
        "_thread",
        "_waiter",
        "_woken",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, woken: AnsweredCalls) -> None:
        self._loop = loop
        self._woken = woken
        self._thread = get_ident()
        self._over = False
        self._hosted: HostedSpace | None = None
        self._waiter: Waiter | None = None
        self._done: Done | None = None
        self._cancel_alarm: Callable[[], None] | None = None

    def wait(self, hosted: HostedSpace, waiter: Waiter, done: Done) -> None:
        self._hosted = hosted
        self._waiter = waiter
        self._done = done
        deadline = waiter.query.deadline
        if waiter.done:
            self._loop.call_soon(self.end)
        elif deadline is not None:
            self._cancel_alarm = alarm_at(self._loop, hosted.clock, deadline, self.end)

    def wake(self) -> bool:
        """The waiter was answered, on whichever thread, under the space's lock."""
        try:
            if get_ident() == self._thread:
                self._woken.add(self)
            else:
                self._loop.call_soon_threadsafe(self.end)
        except RuntimeError:  # The loop is closed.
            return False
        return True

    def end(self) -> None:
        """It was answered, or its patience is at an end."""
        if self._over or self._hosted is None or self._waiter is None or self._done is None:
            return
        self._stop()
        port = self._hosted.port
        entries: list[Entry] = []
        failure: TupeloError | None = None
        try:
            if port.give_up(self._waiter):
                entries, _ = port.collect(self._waiter, reserve=True)
        except TupeloError as error:
            failure = error
        self._done(entries, failure)

    def vanish(self) -> int | None:
        """Nobody wants the answer any more; nothing is lost with it. The place that it had in the
        queue, for whoever goes on waiting."""
        if self._over or self._hosted is None or self._waiter is None:
            return None
        self._stop()
        self._hosted.flush_soon(self._hosted.port.vanish(self._waiter))
        return self._waiter.ticket

    def _stop(self) -> None:
        self._over = True
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = None
