"""How threads use an event loop: `LoopBridge`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

from tupelo.errors import BadInput
from tupelo.space.clock import running_loop

T = TypeVar("T")


class ThreadCall(Generic[T]):
    """A coroutine that runs on a loop while a thread waits for its answer. Either the
    thread gets the answer, or the answer is undone.

    The last step of the coroutine wakes the thread itself: with
    `asyncio.run_coroutine_threadsafe` every call took almost twice as long.
    """

    def __init__(self, work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None) -> None:
        self._work = work
        self._undo = undo
        self._task: asyncio.Task[None] | None = None
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self._abandoned = False
        self._running = threading.Lock()
        self._running.acquire()

    def start(self) -> None:
        """Run the coroutine; called on the loop."""
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        try:
            answer = await self._work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise
        else:
            if self._abandoned:
                self._undo_it(answer)
            else:
                self._answers.append(answer)
                self._running.release()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # perhaps before it had begun
            self._work.close()
            self._fail(CancelledError())

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._running.release()

    def wait(self) -> T:
        """The answer, or the error of the coroutine; called once, on the thread."""
        self._running.acquire()
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def abandon(self) -> None:
        """The thread was interrupted, and has not got the answer; called on the loop."""
        self._abandoned = True
        if self._answers:
            self._undo_it(self._answers.pop())
        elif self._task is not None:
            self._task.cancel()
        else:
            self._work.close()

    def _undo_it(self, answer: T) -> None:
        if self._undo is not None:
            self._undo(answer)


class LoopBridge:
    """The way of threads to one event loop: by default the running one."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.get_running_loop()

    @property
    def is_here(self) -> bool:
        """Whether this code runs on the loop."""
        return running_loop() is self.loop

    def soon(self, function: Callable[..., object], *args: Any) -> bool:
        """Call a function on the loop, from any thread, without waiting for it. False if the loop
        is closed."""
        try:
            if self.is_here:
                self.loop.call_soon(function, *args)
            else:
                self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def run(self, work: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None) -> T:
        """Run a coroutine on the loop, and wait for its result. If this thread is interrupted while
        the result is on its way, `undo` is called with it on the loop. Raises BadInput on the loop
        itself, and if it is closed."""
        if self.is_here or self.loop.is_closed():
            work.close()
            raise BadInput("an event loop cannot wait for itself, nor can one that is closed")
        call = ThreadCall(work, undo)
        try:
            self.loop.call_soon_threadsafe(call.start)
            return call.wait()
        except BaseException:
            self.soon(call.abandon)
            raise
