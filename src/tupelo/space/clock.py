"""Clocks: the system's, one that tests move, and the time of an event loop.

A clock tells the time, wakes a blocked thread after a timeout, and calls back at a moment.
"""

from __future__ import annotations

import heapq
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from tupelo.errors import BadArgument
from tupelo.values.checks import is_number

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("tupelo")


_SWEEP_MIN = 64


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch; never decreases."""
        ...

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        """Wait until the lock can be acquired, at most so many seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back once at this moment or soon after; the returned function cancels that."""
        ...


class SystemClock:
    """The wall clock at the start, advanced by the monotonic clock, so that it never jumps.

    One thread of the process makes all callbacks; it starts when first needed.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        # threading.TIMEOUT_MAX is about 292 years.
        return lock.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        return _alarms.add(when - self._offset, callback)


class ManualClock:
    """A clock for tests and simulations, moved by `clock.advance(10)`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self._now = now
        self._alarms = _AlarmHeap()
        self._lock = threading.Lock()

    def now(self) -> float:
        """The time to which the clock was moved."""
        return self._now

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        """Acquire the lock, waiting at most so many seconds of this clock."""
        if seconds is None:
            return lock.acquire()
        timed_out = False

        def time_out() -> None:
            nonlocal timed_out
            timed_out = True
            if lock.locked():
                lock.release()

        cancel = self.call_at(self._now + seconds, time_out)
        lock.acquire()
        cancel()
        return not timed_out

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back when the clock is moved to this moment; the returned function cancels that."""
        with self._lock:
            return self._alarms.add(when, callback)

    def advance(self, seconds: float) -> None:
        """Move the time forward, and make the callbacks that become due, each at its moment."""
        if not is_number(seconds) or not seconds >= 0:
            raise BadArgument("seconds", "a number of seconds, 0 or more", seconds)
        end = self._now + seconds
        while True:
            with self._lock:
                when = self._alarms.next()
                if when is None or when > end:
                    self._now = end
                    return
                self._now = max(self._now, when)
                callback = self._alarms.pop()
            callback()


class _AlarmHeap:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, list[Callable[[], object]]]] = []
        self._count = 0
        self._sweep_at = _SWEEP_MIN

    def add(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        self._count += 1
        cell = [callback]
        if len(self._heap) >= self._sweep_at:  # Most may have been cancelled.
            self._heap = [item for item in self._heap if item[2]]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + _SWEEP_MIN
        heapq.heappush(self._heap, (when, self._count, cell))
        return cell.clear

    def next(self) -> float | None:
        while self._heap and not self._heap[0][2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Callable[[], object]:
        cell = heapq.heappop(self._heap)[2]
        return cell.pop() if cell else lambda: None


class _AlarmThread:
    """Makes callbacks at moments of the monotonic clock."""

    def __init__(self) -> None:
        self._heap = _AlarmHeap()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        with self._changed:
            earliest = self._heap.next()
            cancel = self._heap.add(when, callback)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="tupelo-alarms", daemon=True)
                self._thread.start()
            elif earliest is None or when < earliest:
                self._changed.notify()
        return cancel

    def _run(self) -> None:
        while True:
            with self._changed:
                when = self._heap.next()
                now = time.monotonic()
                if when is None or when > now:
                    left = None if when is None else min(when - now, threading.TIMEOUT_MAX)
                    self._changed.wait(left)
                    continue
                callback = self._heap.pop()
            try:
                callback()
            except Exception:  # Other spaces must get their callbacks.
                logger.exception("an alarm failed")


_alarms = _AlarmThread()

system_clock = SystemClock()
"""The default clock of a space."""


class LoopClock:
    """The time of an event loop, plus `epoch`.

    On a loop with virtual time, time stands still while the loop is busy. On a real loop the epoch
    is `time.time() - loop.time()`, and threads may read it too. Threads cannot wait on it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float = 1_000_000.0) -> None:
        self._loop = loop
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + self._loop.time()

    def acquire(self, lock: threading.Lock, seconds: float | None) -> bool:
        # Not a TupeloError, which would mean that the space itself ended the waiting operation.
        raise RuntimeError(
            "this space lives by the clock of an event loop, on which no thread may block: "
            "use it through the names of tupelo.aio"
        )

    def call_at(self, when: float, callback: Callable[[], object]) -> Callable[[], None]:
        alarm = _Alarm(self, when, callback)
        self._on_the_loop(alarm.arm)
        return alarm.cancel

    def _on_the_loop(self, function: Callable[[], None]) -> None:
        if running_loop() is self._loop:
            function()
        else:
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(function)


class _Alarm:
    """One callback. The timer is used on the loop only."""

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
            if epoch + moment < when:  # rounded down, because the epoch is large
                moment += math.ulp(when)
            self._timer = self._clock._loop.call_at(moment, self._ring)

    def _ring(self) -> None:
        if self._clock.now() < self._when:  # The clock of a loop is coarse.
            self.arm()
            return
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        if self._callback is not None:
            self._callback = None  # This suffices; the rest frees the timer early.
            self._clock._on_the_loop(self._disarm)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, or None."""
    if "asyncio" not in sys.modules:  # It takes a while to load, and no loop runs without it.
        return None
    from asyncio import get_running_loop

    try:
        return get_running_loop()
    except RuntimeError:
        return None
