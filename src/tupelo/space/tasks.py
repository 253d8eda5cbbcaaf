"""How tasks wait without blocking their loop: for a result, a timeout, or the disk.

asyncio is loaded when the first task waits: it takes a while, and the command line needs none.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from tupelo.errors import DiskFull
from tupelo.space.clock import Clock, SystemClock

if TYPE_CHECKING:
    import asyncio
    from asyncio import AbstractEventLoop as Loop

T = TypeVar("T")


class TaskSignal:
    """Wakes a task from any thread."""

    __slots__ = ("_loop", "_thread", "future")

    def __init__(self) -> None:
        from asyncio import get_running_loop

        self._loop = get_running_loop()
        self._thread = get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        try:
            if get_ident() == self._thread:
                if not self.future.done():
                    self.future.set_result(None)
            else:
                self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:  # The loop is closed, and its tasks with it.
            return False
        return True

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def wait_until(self, clock: Clock, deadline: float | None) -> None:
        """Wait until woken, or until the deadline on this clock."""
        if deadline is None:
            await self.future
            return
        cancel = alarm_at(self._loop, clock, deadline, self._set)
        try:
            await self.future
        finally:
            cancel()


_turns: WeakKeyDictionary[Loop, asyncio.Lock] = WeakKeyDictionary()


def turn() -> asyncio.Lock:
    """`async with turn():` admits one task of this loop at a time, first come first served. For
    sliced work, of which one slice should run in each iteration of the loop."""
    import asyncio

    loop = asyncio.get_running_loop()
    lock = _turns.get(loop)
    if lock is None:
        lock = _turns[loop] = asyncio.Lock()
    return lock


def alarm_at(
    loop: Loop, clock: Clock, deadline: float, callback: Callable[[], object]
) -> Callable[[], None]:
    """Call back on the loop at a moment of this clock; the returned function cancels that."""
    if isinstance(clock, SystemClock):
        return loop.call_later(max(0.0, deadline - clock.now()), callback).cancel

    def ring() -> None:
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(callback)

    cancel = clock.call_at(deadline, ring)
    if deadline <= clock.now():  # A manual clock calls only when it is moved.
        cancel()
        return loop.call_soon(callback).cancel
    return cancel


@asynccontextmanager
async def timeout_at(clock: Clock, deadline: float | None) -> AsyncIterator[None]:
    """`async with timeout_at(clock, deadline):` raises TimeoutError at the deadline;
    `asyncio.timeout_at` on the clock of a space."""
    if deadline is None:
        yield
        return
    import asyncio

    async with asyncio.timeout(None) as timeout:
        loop = asyncio.get_running_loop()
        over = False

        def expire() -> None:
            if not over and not timeout.expired():  # The alarm may come while it is cancelled.
                timeout.reschedule(loop.time())

        cancel = alarm_at(loop, clock, deadline, expire)
        try:
            yield
        finally:
            over = True
            cancel()


FULL_DISK_SECONDS = 1.0
"""What waits for room on a full disk tries again after so long."""


async def when_room(work: Callable[[], Awaitable[T]], *, flushes: bool = False) -> T | None:
    """Do something, again and again while the disk is full. None if it was done in memory, and is
    stored when there is room; unless it `flushes`: that is repeated."""
    import asyncio

    while True:
        try:
            return await work()
        except DiskFull as error:
            if error.in_doubt and not flushes:
                return None
            await asyncio.sleep(FULL_DISK_SECONDS)


class Tasks:
    """Tasks that run on although nobody awaits them, until they are cancelled together."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._running))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task."""
        from asyncio import ensure_future

        task = ensure_future(work)
        self._running.add(task)  # The loop itself may drop it.
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        for task in self:
            task.cancel()


WAKE_MAX = 1_024
"""The largest number of tasks that one iteration of the loop wakes after a commit."""


class Journaled(Protocol):
    """A space with a journal."""

    def flush(self, position: int) -> None:
        """Block until the changes up to this position are as durable as promised."""
        ...

    def is_durable(self, position: int) -> bool:
        """Whether the changes up to this position are durable."""
        ...


class Flusher:
    """Lets tasks await the disk: one thread commits for all of them."""

    def __init__(self, journaled: Journaled) -> None:
        self._journaled = journaled
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Loop, asyncio.Future[None]]] = []
        self._starting: Loop | None = None  # the loop that is about to start a commit
        self._go = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._closing = False

    async def flush(self, position: int) -> None:
        if self._journaled.is_durable(position):
            self._journaled.flush(position)
            return
        from asyncio import get_running_loop

        loop = get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiting.append((position, loop, done))
            if self._starting is None or self._starting.is_closed():
                self._starting = loop
                # Deferred, so that tasks that are ready now share the commit.
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
                self._go.release()  # for the loop, which waits for this thread

    def _serve(self) -> bool:
        """Commit for all waiting tasks. Local names are dropped on return: a sleeping thread with a
        reference to a future would keep the task of a closed loop alive."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if not waiting:
            return False
        error: Exception | None = None
        try:
            self._journaled.flush(max(position for position, _, _ in waiting))
        except Exception as raised:
            error = raised
        # One call for each loop, because every call wakes it.
        by_loop: dict[Loop, list[asyncio.Future[None]]] = {}
        for _, loop, done in waiting:
            by_loop.setdefault(loop, []).append(done)
        for loop, futures in by_loop.items():
            with suppress(RuntimeError):  # The loop is closed, and its tasks with it.
                loop.call_soon_threadsafe(_resolve, futures, error)
        return True

    def close(self) -> None:
        self._closing = True
        if self._thread is not None:
            self._go.release()
            self._thread.join()


class NowFlusher(Flusher):
    """Lets tasks commit themselves, for loops that must not wait for a thread."""

    async def flush(self, position: int) -> None:
        self._journaled.flush(position)


def _resolve(futures: list[asyncio.Future[None]], error: Exception | None) -> None:
    """Wake the tasks that waited for a commit; many of them in several iterations of the loop."""
    if len(futures) > WAKE_MAX:
        from asyncio import get_running_loop

        get_running_loop().call_soon(_resolve, futures[WAKE_MAX:], error)
        del futures[WAKE_MAX:]
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


async def in_a_thread(work: Callable[[], Any]) -> None:
    """Run a function on a new thread: the loop's pool may be full of calls that wait for it."""
    from asyncio import get_running_loop

    loop = get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # The loop is closed, so nobody needs the result.
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="tupelo-commit", daemon=True).start()
    await done


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await something that must not be interrupted. A cancellation meanwhile takes effect
    afterwards, at the next await of the caller."""
    import asyncio

    task, caller = asyncio.ensure_future(work), asyncio.current_task()
    held_back = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            held_back = True
    if held_back and caller is not None:
        asyncio.get_running_loop().call_soon(_cancel_again, caller)
    return task.result()


def _cancel_again(caller: asyncio.Task[Any]) -> None:
    if caller.cancelling():  # or a timeout that was cancelled
        caller.uncancel()
        caller.cancel()
