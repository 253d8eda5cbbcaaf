"""The clock of an event loop: a space on it lives by the loop's time, and its alarms ring there."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress


class LoopClock:
    """Tells `epoch` plus the time of the loop.

    On a loop with virtual time it stands still while nothing happens. On a real one the epoch is
    `time.time() - loop.time()`, and threads may use it too. Nobody can block on it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float = 1_000_000.0) -> None:
        self._loop = loop
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + self._loop.time()

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        # Not a TupeloError: after those the waiting operation counts as ended by the space itself.
        raise RuntimeError(
            "this space lives by the clock of an event loop, on which no thread may block: "
            "use it through the names of tupelo.aio"
        )

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        alarm = _Alarm(self, when, callback)
        self._on_the_loop(alarm.arm)
        return alarm.cancel

    def _on_the_loop(self, function: Callable[[], None]) -> None:
        if _running_loop() is self._loop:
            function()
        else:
            with suppress(RuntimeError):  # The loop is closed: its time has ended.
                self._loop.call_soon_threadsafe(function)


class _Alarm:
    """One call back. Whatever touches the timer runs on the loop."""

    __slots__ = ("_callback", "_clock", "_timer", "_when")

    def __init__(self, clock: LoopClock, when: float, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._when = when
        self._callback: Callable[[], object] | None = callback
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        if self._callback is not None:
            epoch, when = self._clock._epoch, self._when
            moment = when - epoch
            if epoch + moment < when:  # The epoch is large: this was rounded down.
                moment += math.ulp(when)
            self._timer = self._clock._loop.call_at(moment, self._ring)

    def _ring(self) -> None:
        if (
            self._clock.now() < self._when
        ):  # A loop may be early, by as much as its clock is coarse.
            self.arm()
            return
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        if self._callback is not None:
            self._callback = None  # This is enough; the rest only frees the timer early.
            self._clock._on_the_loop(self._disarm)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
