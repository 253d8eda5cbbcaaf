"""Spaces that look like an `Executor`, an `asyncio.Queue` or a `dict` of the standard library."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import tupelo
from tupelo.errors import BadArgument, BadEntry, SpaceClosed, TupeloError
from tupelo.queue.jobs import FinishedJob, Job, JobCancelled, JobFailed, JobQueue
from tupelo.values.checks import check_text
from tupelo.values.entry import freeze_value
from tupelo.values.parts import Equal

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

NEWEST = tupelo.Lifo()
RETRY_SECONDS = 0.5
"""The pause before a lost subscription is made again."""


class QueueFuture(Future[T]):
    """The future of a job. `cancel` has an effect as long as no worker has begun the job."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self._cancelling = threading.Lock()

    def cancel(self) -> bool:
        if self.done() or not self.job.cancel():
            return self.cancelled()
        self._set_cancelled()
        return True

    def settle(self, wait: float | None) -> None:
        """Take the result over, if there is one in time."""
        with suppress(TimeoutError, InvalidStateError):  # no result yet, or settled already
            try:
                self.set_result(self.job.result(wait))
            except JobCancelled:
                self._set_cancelled()
            except JobFailed as error:
                self.set_exception(error)

    def _set_cancelled(self) -> None:
        with self._cancelling:
            if not self.cancelled() and super().cancel():
                self.set_running_or_notify_cancel()  # else `wait` would not see it


class QueueExecutor(Executor):
    """A `concurrent.futures.Executor` whose calls are jobs of a queue, done by the workers of the
    queue, wherever they are. The functions must be tasks of the queue."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._pending: dict[str, QueueFuture[Any]] = {}
        self._closed = threading.Event()
        self._results: Any = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __repr__(self) -> str:
        return f"<QueueExecutor of {self._queue!r}>"

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> QueueFuture[T]:
        """Submit a task with its arguments; `priority` and `delay` are as for the queue."""
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("cannot submit after shutdown")
            job = self._queue.submit(fn, *args, **kwargs)
            future = self._pending[job.id] = QueueFuture[T](job)
        future.add_done_callback(lambda _: self._pending.pop(job.id, None))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. With `wait`, wait for the results of the others. The workers of the
        queue go on."""
        with self._lock:
            self._closed.set()
            pending = list(self._pending.values())
        for future in pending:
            if not (cancel_futures and future.cancel()) and wait:
                future.settle(None)
        if self._results is not None:
            self._results.close()

    def _listen(self) -> None:
        """Settle futures as results come; after a lost connection, with a new subscription."""
        while not self._closed.is_set():
            try:
                self._results = self._queue.space.subscribe(FinishedJob(self._queue.name))
                for future in self._unsettled():  # Some results may be there already.
                    future.settle(0)
                for notice in self._results:
                    for future in self._unsettled():
                        if notice.missed or future.job.id == notice.entry.id:
                            future.settle(0)
            except SpaceClosed as error:
                for future in self._unsettled():
                    with suppress(InvalidStateError):
                        future.set_exception(error)
                return
            except TupeloError:
                self._closed.wait(RETRY_SECONDS)

    def _unsettled(self) -> list[QueueFuture[Any]]:
        with self._lock:  # A job may be done before `submit` has noted its future.
            return list(self._pending.values())


@tupelo.entry("tupelo.queue.Item")
@dataclass
class QueueItem:
    """An item of an `AsyncQueue`."""

    queue: str | None = None
    value: Any = None


class AsyncQueue(Generic[T]):
    """Like `asyncio.Queue`, in a space of `tupelo.aio`: several programs may put and get.

    All methods are awaited, also `qsize` and `empty`, since the space may be at a host. The size is
    limited by the capacity of the space. None cannot be an item.
    """

    def __init__(self, space: tupelo.aio.SpaceLike, name: str = "queue") -> None:
        check_text("name", name)
        self._space = space
        self._name = name

    def __repr__(self) -> str:
        return f"<AsyncQueue {self._name!r} in {self._space!r}>"

    async def put(self, item: T) -> None:
        """Add an item at the end. Waits while the space is full."""
        if item is None:
            raise BadArgument("item", "a value other than None", item)
        await self._space.write(QueueItem(self._name, item), wait=None)

    async def get(self) -> T:
        """Remove the oldest item; waits for one. If the call is cancelled, no item is lost."""
        found = await self._space.take(QueueItem(self._name), order=tupelo.Fifo())
        assert found is not None  # It waits for ever.
        item: T = found.value
        return item

    async def get_nowait(self) -> T:
        """Remove the oldest item. Raises asyncio.QueueEmpty if there is none."""
        found = await self._space.take(QueueItem(self._name), wait=0, order=tupelo.Fifo())
        if found is None:
            raise asyncio.QueueEmpty
        item: T = found.value
        return item

    async def qsize(self) -> int:
        """The number of items."""
        return await self._space.count(QueueItem(self._name))

    async def empty(self) -> bool:
        """Whether there is no item."""
        return await self.qsize() == 0


@tupelo.entry("tupelo.queue.DictItem")
@dataclass
class DictItem:
    """A key and its value, of a `SpaceDict`."""

    dict: str | None = None
    key: Any = None
    value: Any = None


class SpaceDict(MutableMapping[K, V]):
    """Like a `dict`, in a space: several programs share it, and the last write of a key wins.

    A single operation is atomic, also `pop` and `popitem`; a read and a later write are not (to
    count or to reserve something, take an entry in a transaction instead). Keys and values are
    anything that an entry may hold, except None.
    """

    def __init__(self, space: tupelo.SpaceLike, name: str = "dict") -> None:
        check_text("name", name)
        self._space = space
        self._name = name

    def __getitem__(self, key: K) -> V:
        found = self._space.read(self._template(key), wait=None, if_exists=True, order=NEWEST)
        if found is None:
            raise KeyError(key)
        value: V = found.value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        if value is None:
            raise BadArgument("value", "a value other than None", value)
        template = self._template(key)
        with self._space.transaction() as txn:
            self._space.take_all(template, txn=txn)
            self._space.write(DictItem(self._name, key, value), txn=txn)

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    def pop(self, key: K, *default: Any) -> Any:
        """Remove a key and return its value: of several programs, one gets it."""
        if len(default) > 1:
            raise TypeError(f"pop takes at most 2 arguments, got {len(default) + 1}")
        template = self._template(key)
        with self._space.transaction() as txn:
            found = self._space.take(template, wait=None, if_exists=True, order=NEWEST, txn=txn)
            self._space.take_all(template, txn=txn)
        if found is not None:
            return found.value
        if default:
            return default[0]
        raise KeyError(key)

    def popitem(self) -> tuple[K, V]:
        """Remove some key and return it with its value."""
        for key in self:
            found = self.pop(key, None)
            if found is not None:
                return key, found
        raise KeyError("the dict is empty")

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def _keys(self) -> list[K]:
        """Every key once. As in an entry, 1, 1.0 and True are different keys."""
        items = self._space.read_all(DictItem(self._name))
        return list({(type(item.key), item.key): item.key for item in items}.values())

    def _template(self, key: K) -> DictItem:
        hash(key)  # TypeError, as for a dict, if it has none
        exact = None
        with suppress(BadEntry):
            exact = freeze_value(key, "key", 1)
        if exact is None:
            raise BadArgument("key", "a value that an entry may hold, other than None", key)
        # As a template, a key with None or a type in it would match other keys.
        return DictItem(self._name, Equal(exact))

    def __repr__(self) -> str:
        return f"<dict {self._name!r} in {self._space!r}>"
