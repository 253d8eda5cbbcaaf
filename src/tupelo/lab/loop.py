"""An event loop in virtual time: when nothing is left to do, it is the next timer's moment at once.

Nothing comes from outside: no sockets, no threads, no wall clock. So a run is decided by its seed
alone, and the same seed plays the same run again, to the last message. Three things would break
that on the usual loop: timers of one moment come in the order of a heap, tasks stand in sets in the
order of their addresses, and threads come when they please. Here timers and tasks are numbered,
what is for a thread is done in place, and other threads are refused.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CANCELLED_TIMERS_MAX = 1_000
"""So many cancelled timers may lie in the heap, or as many as live ones, before it is cleared."""


class LabError(Exception):
    """A simulation did what it cannot do. Not a RuntimeError: those are often suppressed."""


class Stuck(LabError):
    """Everyone waits, and there is nothing that could wake anyone."""


class LeftOver(LabError):
    """A simulation ended while some of its tasks still ran."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that a seed rules; `rng` is the only source of chance in it."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.rng = random.Random(seed)
        self.failures: list[BaseException] = []
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._cancelled = 0
        self._numbers = {"timer": 0, "task": 0, "future": 0}
        self._home = threading.get_ident()
        self.set_task_factory(_numbered_task)
        self.set_exception_handler(_keep_failure)

    def time(self) -> float:
        return self._now

    def number(self, what: str) -> int:
        """The next number for a thing of this sort; it is the same in every run."""
        number = self._numbers[what] = self._numbers.get(what, 0) + 1
        return number

    # Timers

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            raise RuntimeError("the loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self.number("timer"), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_TIMERS_MAX, len(self._timers) // 2):
            # The handle itself is marked after this call, and goes the next time.
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _run_once(self) -> None:
        """What is ready, once; if nothing is, time jumps to the next timer."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise Stuck(self._describe_stuck())
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    # Tasks

    def tasks_of(self, belongs: Callable[[Context], bool]) -> list[asyncio.Task[Any]]:
        """The tasks that run in such a context and are not done."""
        return [
            task
            for task in _pending(self)
            if isinstance(task, _NumberedTask) and belongs(task.context)
        ]

    def drop(self, belongs: Callable[[Context], bool]) -> None:
        """What was to be called in such a context is not."""
        for handle in [*self._ready, *(timer for _, _, timer in self._timers)]:
            if not handle.cancelled() and belongs(handle._context):  # type: ignore[attr-defined]
                handle.cancel()

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(self)

    def _describe_stuck(self) -> str:
        title = f"at {self._now:.6f} s nothing can happen any more; these tasks wait:"
        return "\n  ".join([title, *(describe(task) for task in _pending(self))])

    # What does not exist here

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if threading.get_ident() != self._home:
            raise LabError("another thread called into a virtual loop: it comes when it pleases")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Done at once and in place: what a thread would do takes no time here."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class _NumberedTask(asyncio.Task[Any]):
    """A task that stands in a set by its number, and not by its address."""

    def __init__(self, loop: VirtualLoop, coro: Any, **options: Any) -> None:
        self._number = loop.number("task")  # First: the loop keeps all its tasks in a set.
        self.context: Context = options.get("context") or copy_context()
        options["name"] = options.get("name") or f"task {self._number}"
        super().__init__(coro, loop=loop, **options)

    def set_name(self, value: object) -> None:
        if value is not None:  # Python 3.13 says None for a task that was given no name.
            super().set_name(value)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    """The same for a future."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._number = loop.number("future")
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


def _numbered_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, VirtualLoop)
    return _NumberedTask(loop, coro, **options)


def _keep_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualLoop)
    if loop.is_closed():
        loop.default_exception_handler(context)  # Nobody will look at `failures` any more.
    else:
        loop.failures.append(context.get("exception") or LabError(context["message"]))


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], seed: int) -> T:
    """Run `main(loop)` in virtual time, and close everything.

    What failed where nobody saw it is raised as a group; LeftOver if tasks still ran at the end.
    """
    loop = VirtualLoop(seed)
    try:
        answer = loop.run_until_complete(main(loop))
        left = [describe(task) for task in _pending(loop)]
        _end_tasks(loop)
        if loop.failures:
            raise BaseExceptionGroup("these failed, and nobody saw it", loop.failures)
        if left:
            raise LeftOver("\n  ".join(["these tasks still ran at the end:", *left]))
        return answer
    finally:
        try:
            _end_tasks(loop)
        finally:
            loop.close()


def _pending(loop: VirtualLoop) -> list[asyncio.Task[Any]]:
    return sorted(asyncio.all_tasks(loop), key=hash)


def _end_tasks(loop: VirtualLoop) -> None:
    pending = _pending(loop)
    for task in pending:
        task.cancel()
    if pending:
        ended = asyncio.gather(*pending, return_exceptions=True)
        loop.failures += [
            answer
            for answer in loop.run_until_complete(ended)
            if isinstance(answer, Exception)  # and not that it was cancelled
        ]
    loop.run_until_complete(loop.shutdown_asyncgens())


def describe(task: asyncio.Task[Any]) -> str:
    """A task for people: its name, what it runs, and where it waits."""
    coro: Any = task.get_coro()
    name = getattr(coro, "__qualname__", repr(coro))
    where = ""
    while (frame := getattr(coro, "cr_frame", None)) is not None:
        if not where or not frame.f_globals.get("__name__", "").startswith("asyncio."):
            where = f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        coro = coro.cr_await
    return f"{task.get_name()}: {name}{where}"
