"""An event loop in virtual time: when no callback is ready, the clock jumps to the next timer.

There is no input from outside: no sockets, no threads, no wall clock. A run depends on its seed
alone, and the same seed gives the same run, to the last message. On the usual loop three things are
not repeatable: the order of timers of one moment, the order of tasks in sets (by their addresses in
memory), and the moments at which threads run. Here timers and tasks are numbered, the work of a
thread runs in place, and calls from other threads are refused.
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
"""The heap is cleared of cancelled timers when there are more of them than this, and more than live
ones."""


class LabError(Exception):
    """A simulation cannot go on. Not a RuntimeError, which programs often suppress."""


class Stuck(LabError):
    """All tasks wait, and there is no timer that could wake one."""


class LeftOver(LabError):
    """A simulation ended while some of its tasks still ran."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time; `rng`, which is seeded, is its only source of randomness."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.rng = random.Random(seed)
        self.failures: list[BaseException] = []
        self.jump: Callable[[float], float] = float
        """Called when nothing is ready, with the moment of the next timer: how far time has gone. A
        simulator outside of the loop may stop earlier, if it has called `call_soon`."""
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
        """The next number of a sequence with this name; it is the same in every run."""
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
            # The handle itself is marked as cancelled after this call: it is removed the next time.
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _run_once(self) -> None:
        """Run the ready callbacks once; if there are none, let time jump to the next timer."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise Stuck(self._describe_stuck())
            self._now = max(self._now, self.jump(timers[0][0]))
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    # Tasks

    def tasks_of(self, belongs: Callable[[Context], bool]) -> list[asyncio.Task[Any]]:
        """The pending tasks whose context satisfies the predicate."""
        return [
            task
            for task in _pending(self)
            if isinstance(task, _NumberedTask) and belongs(task.context)
        ]

    def drop(self, belongs: Callable[[Context], bool]) -> None:
        """Cancel the callbacks and timers whose context satisfies the predicate."""
        for handle in [*self._ready, *(timer for _, _, timer in self._timers)]:
            if not handle.cancelled() and belongs(handle._context):  # type: ignore[attr-defined]
                handle.cancel()

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(self)

    def _describe_stuck(self) -> str:
        title = f"at {self._now:.6f} s nothing can happen any more; these tasks wait:"
        return "\n  ".join([title, *(describe(task) for task in _pending(self))])

    # Threads

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if threading.get_ident() != self._home:
            raise LabError(
                "another thread called into a virtual loop: its timing is not repeatable"
            )
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run the function at once, in place: work in a thread takes no virtual time."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class _NumberedTask(asyncio.Task[Any]):
    """A task with a number as its hash, so that sets of tasks have the same order in every run."""

    def __init__(self, loop: VirtualLoop, coro: Any, **options: Any) -> None:
        self._number = loop.number("task")  # First: the loop keeps all its tasks in a set.
        self.context: Context = options.get("context") or copy_context()
        options["name"] = options.get("name") or f"task {self._number}"
        super().__init__(coro, loop=loop, **options)

    def set_name(self, value: object) -> None:
        if value is not None:  # Python 3.13 passes None for a task without a name.
            super().set_name(value)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    """A future with a number as its hash."""

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
        loop.default_exception_handler(context)  # `failures` was read before.
    else:
        task = context.get("task")
        said = context["message"] if task is None else f"{context['message']} {describe(task)}"
        loop.failures.append(context.get("exception") or LabError(said))


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], seed: int) -> T:
    """Run `main(loop)` in virtual time, close the loop, and return the result.

    Raises a group of the exceptions that nobody has retrieved; LeftOver if tasks still ran at the
    end; Stuck if no task could go on.
    """
    loop = VirtualLoop(seed)
    try:
        answer = loop.run_until_complete(main(loop))
        left = [describe(task) for task in _pending(loop)]
        _end_tasks(loop)
        if loop.failures:
            raise BaseExceptionGroup("exceptions that nobody has retrieved", loop.failures)
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
            if isinstance(answer, Exception)  # but no CancelledError
        ]
    loop.run_until_complete(loop.shutdown_asyncgens())


def describe(task: asyncio.Task[Any]) -> str:
    """A task in words: its name, its coroutine, and the line where it waits."""
    coro: Any = task.get_coro()
    name = getattr(coro, "__qualname__", repr(coro))
    where = ""
    while (frame := getattr(coro, "cr_frame", None)) is not None:
        if not where or not frame.f_globals.get("__name__", "").startswith("asyncio."):
            where = f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        coro = coro.cr_await
    return f"{task.get_name()}: {name}{where}"
