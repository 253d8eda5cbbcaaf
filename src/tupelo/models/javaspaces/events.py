"""Events, their registrations and listeners, and the delivery of events with retries.

| Jini                                | Tupelo                                                   |
| ----------------------------------- | -------------------------------------------------------- |
| RemoteEvent, AvailabilityEvent      | notice; the source is the name of the space              |
| RemoteEventListener                 | a function of an event, or an object with `notify`       |
| EventRegistration                   | subscription, which is leased                            |
| UnknownEventException               | UnknownEvent: the listener wants no more of these events |

Events arrive in order, each once; each registration calls its listener from its own thread or task.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from math import inf
from typing import Any, Self

from tupelo.errors import BadArgument, InvalidIterator, ListenerFailed, UnknownEvent
from tupelo.models.javaspaces.leases import EventDelivery, Lease, lease_of
from tupelo.space.blocking import ThreadSignal
from tupelo.space.clock import Clock
from tupelo.space.dual_api import dual_api, maybe_await, run_sync
from tupelo.space.query import check_count, check_wait
from tupelo.space.tasks import TaskSignal
from tupelo.values import lease as engine
from tupelo.values.kind import entry

logger = logging.getLogger("tupelo")

BACKLOG_MAX = 1_000
"""How many events wait in memory for a listener; when there are more, the oldest are dropped."""

Listener = Callable[["RemoteEvent"], object]


@entry("tupelo.javaspaces.RemoteEvent")
@dataclass(frozen=True)
class RemoteEvent:
    """An event at a source. `sequence_number` counts the events with the same `event_id`."""

    source: str
    event_id: int
    sequence_number: int
    handback: Any = None


@entry("tupelo.javaspaces.AvailabilityEvent")
@dataclass(frozen=True)
class AvailabilityEvent(RemoteEvent):
    """An entry became visible, or (not a visibility transition) only available to takers."""

    entry: Any = None
    visibility_transition: bool = True


@dataclass(frozen=True)
class Retry:
    """How often an event is sent to a failing listener: `tries` in all; each pause is twice as long
    as the one before."""

    tries: int = 4
    first_seconds: float = 0.1

    def __post_init__(self) -> None:
        check_count(self.tries, "tries")
        check_wait(self.first_seconds, "first_seconds")
        if self.first_seconds in (None, inf):
            raise BadArgument("first_seconds", "a number of seconds", self.first_seconds)


def check_retry(retry: object) -> Retry:
    """The checked argument `retry`, or the default."""
    if retry is not None and not isinstance(retry, Retry):
        raise BadArgument("retry", "a Retry(...)", retry)
    return retry or Retry()


class EventRegistration:
    """The leased registration of a listener: its events have this `event_id` and sequence numbers
    above `sequence_number`."""

    def __init__(
        self,
        subscription: Any,
        source: str,
        event_id: int,
        sequence_number: int,
        notifier: EventDelivery | None = None,
    ) -> None:
        self._subscription = subscription
        self._notifier: EventDelivery = notifier or subscription
        self.source = source
        self.event_id = event_id
        self.sequence_number = sequence_number

    @property
    def lease(self) -> Lease:
        """The lease; cancelling it also drops the events that wait for the listener."""
        return lease_of(self._subscription.lease, self._notifier)

    @property
    def active(self) -> bool:
        """Whether further events will be sent. In the async API, for a space elsewhere, this is the
        state of the last `refresh`."""
        active: bool = self._subscription.active
        return active

    async def refresh(self) -> None:
        """Ask the host of a space elsewhere whether the registration is still active."""
        refresh = getattr(self._subscription, "refresh", None)
        if refresh is not None:
            await maybe_await(refresh())

    @property
    def error(self) -> Exception | None:
        """Why the listener was dropped, if it was."""
        error: Exception | None = self._subscription.error
        return error

    @property
    def missed(self) -> int:
        """The number of events that were dropped because too many waited for the listener."""
        return self._notifier.missed

    def cancel(self) -> Any:
        """Cancel the lease: no more events, not even those that wait. Awaited in the async API."""
        return self.lease.cancel()

    def __repr__(self) -> str:
        return f"EventRegistration({self.source!r}, event_id={self.event_id})"


class Notifier:
    """Calls one listener with events; an event is repeated until the listener accepts it or has
    failed too often."""

    def __init__(self, listener: object, retry: Retry, clock: Clock, is_async: bool) -> None:
        self.is_async = is_async
        self.cancelled = False
        self.missed = 0
        self._call = function_of(listener)
        self._retry = retry
        self._clock = clock
        self._tries = 0

    def call_off(self) -> None:
        """Deliver no more events, not even those that wait."""
        self.cancelled = True

    @dual_api
    async def deliver(self, event: RemoteEvent) -> None:
        """Deliver an event. Raises ListenerFailed after the last try, or at once if the listener
        raises UnknownEvent."""
        while not (self.cancelled or await self.attempt(event)):
            await self.pause()

    async def attempt(self, event: RemoteEvent) -> bool:
        """Call the listener once. False if it failed and another try is due."""
        self._tries += 1
        try:
            await maybe_await(self._call(event))
        except UnknownEvent as error:
            self._tries = 0
            raise ListenerFailed(f"the listener does not want {event!r}") from error
        except (Exception, SystemExit) as error:
            if self._tries < self._retry.tries:
                return False
            failed = f"the listener failed {self._tries} times; the last time: {error!r}"
            raise ListenerFailed(failed) from error
        self._tries = 0
        return True

    async def pause(self) -> None:
        """Wait before the next try, twice as long each time."""
        seconds = self._retry.first_seconds * 2 ** (self._tries - 1)
        if self.is_async:
            await TaskSignal().wait_until(self._clock, self._clock.now() + seconds)
        elif seconds:
            self._clock.acquire(ThreadSignal().lock, seconds)


@dataclass(eq=False, repr=False)
class RemoteEventIterator:
    """Takes events out of a mailbox. InvalidIterator is raised after the iterator was closed or
    replaced by a newer one, delivery was enabled, or the registration has ended. For a mailbox
    elsewhere in the async API: `async for`, `await events.next(5)`."""

    _fetch: Callable[[float | None], Coroutine[Any, Any, RemoteEvent | None]]
    _close: Callable[[], Coroutine[Any, Any, None]]
    _wait: float | None
    is_async: bool = False

    def __repr__(self) -> str:
        return f"<RemoteEventIterator, waiting {self._wait} s for an event>"

    @dual_api
    async def next(self, timeout: float | None = 0) -> RemoteEvent | None:
        """Remove the oldest event from the mailbox and return it; None if there was none within
        `timeout` seconds (None: wait for ever)."""
        check_wait(timeout, "timeout")
        return await self._fetch(timeout)

    @dual_api
    async def close(self) -> None:
        """End the iteration; a `next` that waits raises InvalidIterator."""
        await self._close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RemoteEvent:
        event: RemoteEvent | None = self.next(self._wait)
        if event is None:
            raise StopIteration
        return event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RemoteEvent:
        event: RemoteEvent | None = await self.next(self._wait)
        if event is None:
            raise StopAsyncIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(InvalidIterator):
            self.close()


def function_of(listener: object, name: str = "listener") -> Listener:
    """The function that delivers to a listener: the listener itself, or its method `notify`."""
    tell = getattr(listener, "notify", listener)
    if not callable(tell):
        raise BadArgument(name, "a function of an event, or an object with notify", listener)
    return tell


def _in_a_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    threading.Thread(target=partial(run_sync, work), name="tupelo-events", daemon=True).start()


class EventSender:
    """Delivers the events of a store in the background. `on_failure` is called with the error when
    the sender has given up.

    The store has methods, perhaps coroutine functions: `fetch`, the next event or None; then
    `delivered`, which removes that event, or `returned`, which keeps it for the next try; and
    `unwanted`, if the listener has raised UnknownEvent: True if it still gets other events."""

    def __init__(
        self,
        store: Any,
        notifier: Notifier,
        on_failure: Callable[[Exception], object],
        start: Callable[[Callable[[], Coroutine[Any, Any, None]]], None] = _in_a_thread,
    ) -> None:
        self._store = store
        self._notifier = notifier
        self._on_failure = on_failure
        self._start = start
        self._lock = threading.Lock()
        self._busy = False
        self._more = False

    def go(self) -> None:
        """Start delivering the events of the store, unless that is under way."""
        with self._lock:
            self._more = True
            if self._busy or self._notifier.cancelled:
                return
            self._busy = True
        self._start(self._run)

    def stop(self) -> None:
        """Deliver no more. An event that is under way may still arrive, but is not retried."""
        self._notifier.call_off()

    async def _run(self) -> None:
        try:
            while not self._notifier.cancelled:
                with self._lock:
                    self._more = False
                event = await maybe_await(self._store.fetch())
                if event is not None:
                    await self._deliver(event)
                    continue
                with self._lock:
                    self._busy = self._more
                    if not self._more:
                        return
        except Exception as error:  # also if the space was closed, or its disk has failed
            if not self._notifier.cancelled:
                self._notifier.call_off()
                self._on_failure(error)

    async def _deliver(self, event: RemoteEvent) -> None:
        try:
            delivered = not self._notifier.cancelled and await self._notifier.attempt(event)
        except BaseException as error:  # Also if a listener exits: the event must not be lost.
            if isinstance(error.__cause__, UnknownEvent) and await maybe_await(
                self._store.unwanted()
            ):
                return
            await maybe_await(self._store.returned())
            raise
        if delivered:
            await maybe_await(self._store.delivered())
        else:
            await maybe_await(self._store.returned())
            if not self._notifier.cancelled:
                await self._notifier.pause()


class ListenerThread:
    """A leased listener, with the events that wait for it in memory; used as the subscription of an
    EventRegistration. When too many events wait, the oldest is dropped. A listener that fails too
    often is dropped, and `on_failure` is called."""

    missed = 0

    def __init__(
        self,
        lease: Callable[[], engine.Leased],
        tell: Listener,
        handback: Any,
        *,
        clock: Clock,
        retry: Retry,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        self._lease = lease
        self.handback = handback
        self.error: Exception | None = None
        self._stopped = False
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._waiting: deque[RemoteEvent] = deque(maxlen=BACKLOG_MAX)
        self._out: RemoteEvent | None = None
        self._sender = EventSender(self, Notifier(tell, retry, clock, False), self.give_up)

    @property
    def lease(self) -> engine.Leased:
        """The lease of the registration."""
        return self._lease()  # Not stored: the garbage collector does not traverse leases.

    @property
    def active(self) -> bool:
        """Whether further events will be delivered."""
        return not (self._stopped or self.lease.thing.ended)

    def tell(self, event: RemoteEvent) -> None:
        """Queue an event for the listener."""
        with self._lock:
            self._waiting.append(event)
        self._sender.go()

    # As the store of its sender

    def fetch(self) -> RemoteEvent | None:
        with self._lock:
            self._out = self._waiting.popleft() if self._waiting else None
            return self._out

    def delivered(self) -> None:
        self._out = None

    def returned(self) -> None:
        with self._lock:
            if self._out is not None:
                self._waiting.appendleft(self._out)
                self._out = None

    def unwanted(self) -> bool:
        return False  # The registration has one event id.

    def call_off(self, error: Exception | None = None) -> None:
        """Deliver no more events, not even those that wait."""
        self._sender.stop()
        self._stopped = True
        self.error = self.error or error

    def give_up(self, error: Exception) -> None:
        """Drop the listener because of this error."""
        logger.warning("a listener was dropped: %s", error)
        self.call_off(error)
        self._on_failure()


def target_of(name: str, listener: object) -> Listener:
    """The function that delivers to a listener from a thread. BadArgument if it is a coroutine
    function."""
    tell = function_of(listener, name)
    if iscoroutinefunction(tell):
        raise BadArgument(name, "a plain function: it is called from a thread", listener)
    return tell
