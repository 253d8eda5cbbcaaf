"""How tasks wait: for an answer, for a while, and for the disk, without blocking their loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from threading import get_ident

from tupelo.space.clock import Clock, SystemClock
from tupelo.space.engine import Engine

Loop = asyncio.AbstractEventLoop


class TaskSignal:
    """Wakes a task, from whichever thread."""

    __slots__ = ("_loop", "_thread", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        try:
            if get_ident() == self._thread:
                if not self.future.done():
                    self.future.set_result(None)
            else:
                self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # The loop is closed, and the task went with it.
            return False
        return True

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def wait(self, clock: Clock, seconds: float | None) -> None:
        """Until woken, or until so much time has passed."""
        if seconds is None:
            await self.future
        elif isinstance(clock, SystemClock):
            timer = self._loop.call_later(seconds, self._set)
            try:
                await self.future
            finally:
                timer.cancel()
        else:
            cancel = clock.call_at(clock.now() + seconds, self.wake)
            try:
                await self.future
            finally:
                cancel()


class Flusher:
    """Lets tasks await the disk: one thread commits for all that wait."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Loop, asyncio.Future[None]]] = []
        self._starting: Loop | None = None  # the loop that is about to start a commit
        self._go = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closing = False

    async def flush(self, position: int) -> None:
        journal = self._engine.journal
        if journal is None or not journal.waits or journal.durable >= position:
            self._engine.flush(position)
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiting.append((position, loop, done))
            if self._starting is None or self._starting.is_closed():
                self._starting = loop
                # Not at once: the tasks that are ready now shall share the commit.
                loop.call_soon(self._start)
        await done

    def _start(self) -> None:
        with self._lock:
            self._starting = None
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(
                    target=self._run, name="tupelo-journal", daemon=True
                )
                self._thread.start()
        self._go.release()

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if not self._serve() and self._closing:
                return
            if self._closing:
                self._go.release()  # The loop that would have asked for more waits for us.

    def _serve(self) -> bool:
        """Commit for all who wait. Its names go with it: a thread that sleeps and still knew a
        future would keep alive the task of a loop that is closed."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if not waiting:
            return False
        error: Exception | None = None
        try:
            self._engine.flush(max(position for position, _, _ in waiting))
        except Exception as raised:
            error = raised
        # One call for each loop: every one of them has to wake it.
        by_loop: dict[Loop, list[asyncio.Future[None]]] = {}
        for _, loop, done in waiting:
            by_loop.setdefault(loop, []).append(done)
        for loop, futures in by_loop.items():
            with suppress(RuntimeError):  # The loop is closed, and its tasks went with it.
                loop.call_soon_threadsafe(_resolve, futures, error)
        return True

    def close(self) -> None:
        self._closing = True
        if self._thread is not None:
            self._go.release()
            self._thread.join()


class NowFlusher(Flusher):
    """Lets tasks commit in place: for loops in which nobody may be waited for."""

    async def flush(self, position: int) -> None:
        self._engine.flush(position)


def _resolve(futures: list[asyncio.Future[None]], error: Exception | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
