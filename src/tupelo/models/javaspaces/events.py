"""Events: what a listener is told, and how often one that fails is told again.

| Jini                                | Tupelo                                                   |
| ----------------------------------- | -------------------------------------------------------- |
| RemoteEvent, AvailabilityEvent      | notice; the source is the name of the space              |
| RemoteEventListener                 | a function of an event, or an object with `notify`       |
| EventRegistration                   | subscription, which is leased                            |
| UnknownEventException               | UnknownEvent: the listener wants to be told no more      |

Events come in order, each once, from a thread (or a task) of the registration's own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Self

from tupelo.errors import BadArgument, InvalidIterator, ListenerFailed, UnknownEvent
from tupelo.models.javaspaces.leases import Lease, LeaseNotice, lease_of
from tupelo.space.blocking import ThreadSignal
from tupelo.space.clock import Clock
from tupelo.space.dual_api import dual_api, maybe_await
from tupelo.space.query import check_count, check_wait
from tupelo.space.tasks import TaskSignal
from tupelo.values.kind import entry

Listener = Callable[["RemoteEvent"], object]


@entry("tupelo.javaspaces.RemoteEvent")
@dataclass(frozen=True)
class RemoteEvent:
    """Something has happened at a source. `sequence_number` counts the events of one id."""

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
    """How often a listener that fails is told again: `tries` in all, each wait twice as long."""

    tries: int = 4
    first_seconds: float = 0.1

    def __post_init__(self) -> None:
        check_count(self.tries, "tries")
        check_wait(self.first_seconds, "first_seconds")
        if self.first_seconds in (None, inf):
            raise BadArgument("first_seconds", "a number of seconds", self.first_seconds)


def check_retry(retry: object) -> Retry:
    if retry is not None and not isinstance(retry, Retry):
        raise BadArgument("retry", "a Retry(...)", retry)
    return retry or Retry()


class EventRegistration:
    """That a listener will be told: under which id, from which number on, and for how long."""

    def __init__(
        self,
        subscription: Any,
        source: str,
        event_id: int,
        sequence_number: int,
        notifier: LeaseNotice | None = None,
    ) -> None:
        self._subscription = subscription
        self._notifier: LeaseNotice = notifier or subscription
        self.source = source
        self.event_id = event_id
        self.sequence_number = sequence_number

    @property
    def lease(self) -> Lease:
        """Cancelling it also calls off the events that wait for the listener."""
        return lease_of(self._subscription.lease, self._notifier)

    @property
    def active(self) -> bool:
        """Will the listener be told of what happens next? At the async door of a space elsewhere it
        is what was known when `refresh` was awaited last."""
        active: bool = self._subscription.active
        return active

    async def refresh(self) -> None:
        """Ask the host of a space elsewhere whether it still stands."""
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
        """How many events were dropped, because too many waited for the listener."""
        return self._notifier.missed

    def cancel(self) -> Any:
        """No more events, not even of what has happened already; awaited if the lease's is."""
        return self.lease.cancel()

    def __repr__(self) -> str:
        return f"EventRegistration({self.source!r}, event_id={self.event_id})"


class Notifier:
    """Tells one listener of events, again if it fails, until it has failed too often."""

    def __init__(self, listener: object, retry: Retry, clock: Clock, is_async: bool) -> None:
        self.is_async = is_async
        self.cancelled = False
        self.missed = 0
        self._tell = listening(listener)
        self._retry = retry
        self._clock = clock
        self._tries = 0

    def call_off(self) -> None:
        """Bring nothing more, also not what waits."""
        self.cancelled = True

    @dual_api
    async def deliver(self, event: RemoteEvent) -> None:
        """ListenerFailed after the last try, or as soon as the listener says UnknownEvent."""
        while not (self.cancelled or await self.attempt(event)):
            await self.pause()

    async def attempt(self, event: RemoteEvent) -> bool:
        """Tell the listener once. False if it has failed, and is to be told again."""
        self._tries += 1
        try:
            await maybe_await(self._tell(event))
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
        """Wait before the next try, each time twice as long."""
        seconds = self._retry.first_seconds * 2 ** (self._tries - 1)
        if self.is_async:
            await TaskSignal().wait_until(self._clock, self._clock.now() + seconds)
        elif seconds:
            self._clock.acquire(ThreadSignal().lock, seconds)


class RemoteEventIterator:
    """Hands out the events that a mailbox keeps. InvalidIterator is raised once it was closed,
    another took its place, delivery was enabled, or the registration is gone. At the async door of
    a mailbox elsewhere it is awaited: `async for`, `await events.next(5)`."""

    def __init__(
        self,
        fetch: Callable[[float | None], Coroutine[Any, Any, RemoteEvent | None]],
        close: Callable[[], Coroutine[Any, Any, None]],
        wait: float | None,
        is_async: bool = False,
    ) -> None:
        self.is_async = is_async
        self._fetch = fetch
        self._close = close
        self._wait = wait

    @dual_api
    async def next(self, timeout: float | None = 0) -> RemoteEvent | None:
        """The oldest event, which is removed from the mailbox; None if there was none within
        `timeout` seconds (None: for ever)."""
        check_wait(timeout, "timeout")
        return await self._fetch(timeout)

    @dual_api
    async def close(self) -> None:
        """Hand out no more events, also to one who waits for them."""
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


def listening(listener: object, name: str = "listener") -> Listener:
    """How to tell a listener: a function, or an object with `notify`."""
    tell = getattr(listener, "notify", listener)
    if not callable(tell):
        raise BadArgument(name, "a function of an event, or an object with notify", listener)
    return tell
