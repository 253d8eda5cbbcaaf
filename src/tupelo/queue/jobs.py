"""The job queue: workers are functions, and a job is done in one transaction.

A worker takes a job, runs its function and writes the result in one transaction: if the worker
dies, the transaction ends, and the job is in the queue again. Several programs may work on one
queue; each takes the jobs of the tasks that it has.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from html import escape
from inspect import iscoroutinefunction, signature
from math import isfinite
from secrets import randbits
from time import monotonic, time
from typing import Any, TypeVar, overload

import tupelo
from tupelo.errors import (
    BadArgument,
    BadEntry,
    CannotSend,
    LeaseLost,
    PeerLost,
    TransactionEnded,
    TupeloError,
)

F = TypeVar("F", bound=Callable[..., Any])

BY_PRIORITY = tupelo.Key("priority", reverse=True)
POLL_SECONDS = 1.0
"""How long an idle worker waits for a job before it looks whether it shall stop."""

BACKOFF_MAX = 86_400.0
"""The longest delay before another attempt, in seconds."""

ERROR_CHARS_MAX = 100_000
"""So much of the end of a traceback is kept."""

CANCELLED = "the job was cancelled"

logger = logging.getLogger("tupelo.queue")


@dataclass
class JobFields:
    """What an entry of a job has. `failures` is how often its function has raised."""

    queue: str | None = None
    id: str | None = None
    task: Any = None
    arguments: list[Any] | None = None
    options: dict[str, Any] | None = None
    priority: int | None = None
    failures: int | None = None


@tupelo.entry("tupelo.queue.Waiting")
@dataclass
class WaitingJob(JobFields):
    """A job that a worker may take."""


@tupelo.entry("tupelo.queue.DeadLetter")
@dataclass
class DeadLetter(JobFields):
    """A job that has failed too often, with the traceback of its last attempt."""

    error: str | None = None


@tupelo.entry("tupelo.queue.Finished")
@dataclass
class FinishedJob:
    """The result of a job, or the error of its last attempt."""

    queue: str | None = None
    id: str | None = None
    value: Any = None
    error: str | None = None


class JobFailed(Exception):
    """The function of a job has raised in every attempt. The text is the last traceback."""


class JobCancelled(JobFailed):
    """The job was cancelled before a worker had begun it."""


@dataclass(frozen=True)
class QueueStatus:
    """The jobs of a queue: `ready` ones could be begun now, and `delayed` ones wait for their time
    or for another attempt. `done` counts the results that are kept.

    `oldest` is the moment at which the job that is ready longest was submitted, and `next` the one
    at which the first delayed job becomes ready. In a space that spans hosts, `delayed`, `next` and
    `in_hand` are those of this host.
    """

    queue: str
    ready: int
    delayed: int
    in_hand: list[tupelo.InHand]
    done: int
    dead: int
    oldest: float | None
    next: float | None


@dataclass(frozen=True)
class Task:
    """A function, and what happens when it raises."""

    function: Callable[..., Any]
    name: str
    retries: int
    backoff: float


class Job:
    """A job that was submitted."""

    def __init__(self, queue: JobQueue, id: str, lease: tupelo.Lease | None = None) -> None:
        self._queue = queue
        self._lease = lease
        self.id = id

    def result(self, wait: float | None = None) -> Any:
        """The result of the function; waits for it, at most `wait` seconds.

        Raises JobFailed if every attempt has failed, JobCancelled if it was cancelled, and
        TimeoutError if there is no result in time. A result is kept as long as the queue's
        `keep_results` says.
        """
        finished = self._queue.space.read(FinishedJob(self._queue.name, self.id), wait=wait)
        if finished is None:
            raise TimeoutError(f"job {self.id} has no result after {wait:g} s")
        if finished.error == CANCELLED:
            raise JobCancelled(CANCELLED)
        if finished.error is not None:
            raise JobFailed(finished.error)
        return finished.value

    def done(self) -> bool:
        """Whether there is a result, or the job has failed for good."""
        return bool(self._queue.space.count(FinishedJob(self._queue.name, self.id)))

    def cancel(self) -> bool:
        """Remove the job if it waits, also for its time or for another attempt; then its result is
        JobCancelled. Returns False if it is in hand or done."""
        queue = self._queue
        if self._lease is not None:
            with suppress(LeaseLost):
                self._lease.cancel()
                queue.finish(FinishedJob(queue.name, self.id, error=CANCELLED))
                return True
        waiting = WaitingJob(queue.name, self.id)
        if queue.space.delayed(waiting, cancel=True).count:  # first: soon it may be no longer
            queue.finish(FinishedJob(queue.name, self.id, error=CANCELLED))
            return True
        with queue.space.transaction() as txn:
            if queue.space.take(waiting, wait=0, txn=txn) is None:
                return False
            queue.finish(FinishedJob(queue.name, self.id, error=CANCELLED), txn)
        return True

    def __repr__(self) -> str:
        return f"<job {self.id} of {self._queue.name!r}>"


class JobQueue:
    """A queue of jobs in a space of any kind.

    `space` is any space: in memory, in a file, at a host, or spanning hosts. `name` keeps several
    queues in one space apart. A job whose worker stops responding is in the queue again after
    `lease` seconds; if a connection breaks, at once. A job whose workers were lost more than
    `losses_max` times is a dead letter, since it may be the job that kills them; the end of the
    process that has the space is not counted. Results are kept for `keep_results` seconds.
    """

    def __init__(
        self,
        space: tupelo.SpaceLike,
        name: str = "jobs",
        *,
        lease: float = 30.0,
        losses_max: int = 5,
        keep_results: float | None = 86_400.0,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise BadArgument("name", "a text that is not empty", name)
        if not hasattr(space, "take"):
            raise BadArgument(
                "space", "a space, such as tupelo.Space() or tupelo.connect(...)", space
            )
        _check_seconds("lease", lease, above=True)
        _check_count("losses_max", losses_max)
        if keep_results is not None:
            _check_seconds("keep_results", keep_results, above=True)
        self.space = space
        self.name = name
        self.lease = lease
        self.losses_max = losses_max
        self.keep_results = keep_results
        self._tasks: dict[str, Task] = {}
        self._stop = threading.Event()

    @overload
    def task(self, function: F, /) -> F: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        retries: int = 3,
        backoff: float = 1.0,
    ) -> Callable[[F], F]: ...
    def task(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        retries: int = 3,
        backoff: float = 1.0,
    ) -> Any:
        """Declare a function as a task of this queue: a decorator, with or without arguments.

        If the function raises, the job is tried again, `retries` times, after `backoff` seconds,
        twice as long after each further failure, but at most a day; then it is a dead letter.
        """
        if function is None:
            return partial(self._declare, name, retries, backoff)
        return self._declare(name, retries, backoff, function)

    def _declare(self, name: str | None, retries: int, backoff: float, function: F) -> F:
        if not callable(function) or iscoroutinefunction(function):
            raise BadArgument("function", "a function that is not async", function)
        _check_count("retries", retries)
        _check_seconds("backoff", backoff)
        if backoff > BACKOFF_MAX:
            raise BadArgument("backoff", f"at most {BACKOFF_MAX:,.0f} seconds", backoff)
        name = name or function.__name__
        if name in self._tasks:
            raise BadArgument("name", f"free: the queue has a task {name!r} already", name)
        self._tasks[name] = Task(function, name, retries, backoff)
        return function

    def submit(
        self,
        task: Callable[..., Any] | str,
        /,
        *arguments: Any,
        priority: int = 0,
        delay: float = 0,
        txn: Any = None,
        **options: Any,
    ) -> Job:
        """Put a job into the queue: a task, by its function or its name, with its `arguments` and
        `options` (its keyword arguments).

        Jobs with a higher `priority` are done first. With `delay`, not before so many seconds have
        passed. With `txn`, the job is submitted when the transaction commits. If this program has
        the task, its arguments are checked: BadArgument if the function does not take them.
        """
        name = self._name_of(task)
        if name in self._tasks:
            _check_arguments(self._tasks[name], arguments, options)
        job_id = _new_id()
        priority = _check_priority(priority)
        waiting = WaitingJob(self.name, job_id, name, list(arguments), options, priority, 0)
        return Job(self, job_id, self._put(waiting, delay, txn))

    def _name_of(self, task: Callable[..., Any] | str) -> str:
        if isinstance(task, str) and task:
            return task
        for known in self._tasks.values():
            if known.function is task:
                return known.name
        raise BadArgument("task", "the name of a task, or a function declared by @queue.task", task)

    def _put(self, job: WaitingJob, delay: float, txn: Any) -> tupelo.Lease:
        _check_seconds("delay", delay)
        return self.space.write(job, delay=delay, txn=txn)

    def job(self, id: str) -> Job:
        """A job by its id, perhaps submitted by another program."""
        return Job(self, _check_id(id))

    def __len__(self) -> int:
        """The number of jobs that could be begun now."""
        return self.space.count(WaitingJob(self.name))

    def status(self) -> QueueStatus:
        """How many jobs there are, in whose hands, and how long they have waited."""
        waiting = WaitingJob(self.name)
        delayed = self.space.delayed(waiting, limit=1)
        oldest = self.space.read(waiting, wait=0, order=tupelo.Fifo())
        good: Any = type(None)
        return QueueStatus(
            self.name,
            ready=self.space.count(waiting),
            delayed=delayed.count,
            in_hand=list(self.space.in_hand(waiting)),
            done=self.space.count(FinishedJob(self.name, error=good)),
            dead=self.space.count(DeadLetter(self.name)),
            oldest=None if oldest is None else submitted_at(oldest.id),
            next=delayed.entries[0][0] if delayed.entries else None,
        )

    def dead(self) -> list[DeadLetter]:
        """The jobs that have failed for good."""
        return self.space.read_all(DeadLetter(self.name))

    def retry(self, id: str) -> bool:
        """Put a dead letter into the queue again. Returns False if there is none with this id."""
        with self.space.transaction() as txn:
            dead = self.space.take(DeadLetter(self.name, _check_id(id)), wait=0, txn=txn)
            if dead is None:
                return False
            self.space.take_all(FinishedJob(self.name, id), txn=txn)
            fields = vars(dead) | {"failures": 0}
            del fields["error"]
            self._put(WaitingJob(**fields), 0, txn)
        return True

    # Workers

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks that this program has."""
        return list(self._tasks)

    def work(
        self, threads: int = 1, *, until_empty: bool = False, leave_delayed: bool = False
    ) -> None:
        """Do jobs in this many threads, until `stop()`, SIGTERM or Ctrl-C; each worker finishes the
        job that it has begun. With `until_empty`, also end when no job of their tasks is left: none
        is ready, in hand, or waits for its time or for another attempt. With `leave_delayed`, those
        that wait for their time are not waited for.

        A worker goes on after a lost connection, if the space connects again (see `reconnect=` of
        `tupelo.connect`). Raises the error that ends a worker.
        """
        if not self._tasks:
            raise BadArgument("work", "a queue with tasks: declare functions by @queue.task", self)
        _check_count("threads", threads, least=1)
        self._stop.clear()
        in_hand: set[tupelo.Lease] = set()
        errors: list[BaseException] = []

        def run_worker() -> None:
            try:
                while not self._stop.is_set():
                    if self._work_once(in_hand, until_empty) or not until_empty:
                        continue
                    if leave_delayed:
                        return
                    if self.space.delayed(self._mine(), limit=1).count:
                        self._work_once(in_hand, False)
                    elif not self._work_once(in_hand, True):  # It may have become ready just now.
                        return
            except BaseException as error:
                errors.append(error)
                self._stop.set()

        workers = [threading.Thread(target=run_worker, daemon=True) for _ in range(threads)]
        logger.info("%d workers for %s, tasks %s", threads, self.name, ", ".join(self._tasks))
        with _stopped_by_signals(self._stop):
            for worker in workers:
                worker.start()
            while any(worker.is_alive() for worker in workers):
                workers[0].join(min(self.lease / 3, POLL_SECONDS))
                workers = [worker for worker in workers if worker.is_alive()] or workers
                self._renew(in_hand)
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Let all workers of this queue in this process end, each after the job in its hand."""
        self._stop.set()

    def _mine(self) -> WaitingJob:
        """The template of the jobs whose tasks are here."""
        # The types: an entry that is no job, whoever wrote it, must not stop the workers.
        parts: list[Any] = [str, tupelo.OneOf(*self._tasks), list, dict, int, int]
        return WaitingJob(self.name, *parts)

    def _renew(self, in_hand: set[tupelo.Lease]) -> None:
        for lease in list(in_hand):
            try:
                lease.renew(self.lease)
            except TupeloError as error:
                if lease in in_hand:  # else the job has ended meanwhile
                    logger.warning("the lease of a job in hand was not renewed: %s", error)

    def _work_once(self, in_hand: set[tupelo.Lease], if_exists: bool) -> bool:
        """Do one job. Returns False if there was none, and with `if_exists` none is in hand."""
        about: list[tupelo.About] = []
        began = monotonic()
        transaction = self.space.transaction(lease=max(self.lease, 2 * POLL_SECONDS))
        try:
            with transaction as txn:
                job = self.space.take(
                    self._mine(),
                    wait=POLL_SECONDS,
                    order=BY_PRIORITY,
                    txn=txn,
                    if_exists=if_exists,
                    about=about,
                )
                if job is None:  # If it waited, a job is in hand that may come back.
                    return if_exists and monotonic() - began >= POLL_SECONDS
                if about[0].deliveries > self.losses_max:
                    lost = f"its worker was lost {about[0].deliveries} times"
                    self._make_dead_letter(job, lost, txn)
                    return True
                lease = txn.lease
                in_hand.add(lease)
                try:
                    self._run(job, txn)
                finally:
                    in_hand.discard(lease)
        except TransactionEnded:
            logger.warning("a job took longer than its lease and is in the queue again")
        except PeerLost as error:
            logger.warning("the connection was lost, and a job in hand is begun again: %s", error)
        return True

    def _run(self, job: WaitingJob, txn: Any) -> None:
        assert job.arguments is not None and job.options is not None
        task = self._tasks[job.task]
        try:
            value = task.function(*job.arguments, **job.options)
        except BaseException:  # also SystemExit, and what a cancelled task of asyncio raises
            self._fail(job, task, traceback.format_exc(), txn)
            return
        try:
            self.finish(FinishedJob(self.name, job.id, value), txn)
        except (BadEntry, CannotSend) as error:
            self._fail(job, task, f"the result of {task.name} cannot be an entry: {error}", txn)

    def _fail(self, job: WaitingJob, task: Task, error: str, txn: Any) -> None:
        assert job.failures is not None
        error = error[-ERROR_CHARS_MAX:].encode("utf-8", "backslashreplace").decode()
        job.failures += 1
        logger.warning("job %s of %s has failed: %s", job.id, task.name, error.splitlines()[-1])
        if job.failures <= task.retries:
            doubled = task.backoff * 2.0 ** min(job.failures - 1, 1_000)
            self._put(job, min(doubled, BACKOFF_MAX), txn)
        else:
            self._make_dead_letter(job, error, txn)

    def _make_dead_letter(self, job: WaitingJob, error: str, txn: Any) -> None:
        self.space.write(DeadLetter(**vars(job), error=error), txn=txn)
        self.finish(FinishedJob(self.name, job.id, error=error), txn)

    def finish(self, finished: FinishedJob, txn: Any = None) -> None:
        """Write the result of a `finished` job."""
        self.space.write(finished, lease=self.keep_results, txn=txn)

    def _repr_html_(self) -> str | None:
        """What a notebook shows: how many jobs there are. None if the space cannot be read."""
        try:
            status = self.status()
        except TupeloError:
            return None
        counts = vars(status) | {"in_hand": sum(held.entries for held in status.in_hand)}
        names = ("ready", "delayed", "in_hand", "done", "dead")
        cells = "".join(f"<td>{name.replace('_', ' ')}: {counts[name]}</td>" for name in names)
        return f"<table><caption>{escape(repr(self))}</caption><tr>{cells}</tr></table>"

    def __repr__(self) -> str:
        return f"<job queue {self.name!r} in {self.space!r}>"


def queue_names(space: tupelo.SpaceLike) -> list[str]:
    """The queues that have jobs or results in this space, beside those whose jobs are all in
    hand."""
    names: list[str] = []

    def others() -> Any:
        return tupelo.Exactly(str) & tupelo.Not(tupelo.OneOf("", *names))

    kinds: tuple[Any, ...] = (WaitingJob, FinishedJob, DeadLetter)
    for kind in kinds:
        while (found := space.read(kind(others()), wait=0)) is not None:
            names.append(found.queue)
    while first := space.delayed(WaitingJob(others()), limit=1).entries:
        names.append(first[0][1].queue)
    return sorted(names)


def _new_id() -> str:
    """A UUID of version 7, which begins with the time in milliseconds."""
    fields = int(time() * 1000) << 80 | 7 << 76 | randbits(12) << 64 | 2 << 62 | randbits(62)
    return f"{fields:032x}"


def submitted_at(id: object) -> float | None:
    """The moment at which the job with this id was submitted, by the clock of that program; None if
    the id does not tell."""
    is_ours = isinstance(id, str) and re.fullmatch(r"([0-9a-f]{12})7[0-9a-f]{19}", id)
    return int(is_ours[1], 16) / 1000 if is_ours else None


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Within this block SIGTERM and SIGINT set the event, if it runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_seconds(name: str, value: Any, *, above: bool = False) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if not is_number or (value <= 0 if above else value < 0):
        limit = "above 0" if above else "of 0 or more"
        raise BadArgument(name, f"a number of seconds {limit}", value)


def _check_count(name: str, value: object, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadArgument(name, f"a whole number of {least} or more", value)


def _check_arguments(task: Task, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    try:
        accepted = signature(task.function)
    except (TypeError, ValueError):  # Some functions written in C do not tell.
        return
    try:
        accepted.bind(*arguments, **options)
    except TypeError as error:
        expected = f"those of {task.name}{accepted}: {error}"
        raise BadArgument("arguments", expected, (arguments, options)) from None


def _check_id(id: object) -> str:
    if not isinstance(id, str) or not id:
        raise BadArgument("id", "the id of a job", id)
    return id


def _check_priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise BadArgument("priority", "a whole number; higher ones come first", priority)
    return priority
