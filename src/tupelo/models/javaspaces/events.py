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

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from tupelo.errors import BadArgument, ListenerFailed, UnknownEvent
from tupelo.models.javaspaces.leases import Lease
from tupelo.space.checks import check_count, check_wait
from tupelo.space.clock import Clock
from tupelo.space.either import either, settled
from tupelo.space.handles import ThreadSignal
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


class EventRegistration:
    """That a listener will be told: under which id, from which number on, and for how long."""

    def __init__(
        self,
        subscription: Any,
        source: str,
        event_id: int,
        sequence_number: int,
        delivery: Delivery | None = None,
    ) -> None:
        self._subscription = subscription
        self._delivery = delivery
        self.source = source
        self.event_id = event_id
        self.sequence_number = sequence_number

    @property
    def lease(self) -> Lease:
        return Lease(self._subscription.lease)

    @property
    def active(self) -> bool:
        """Will the listener be told of what happens next?"""
        active: bool = self._subscription.active
        return active

    @property
    def error(self) -> Exception | None:
        """Why the listener was dropped, if it was."""
        error: Exception | None = self._subscription.error
        return error

    @property
    def missed(self) -> int:
        """How many events were dropped, because too many waited for the listener."""
        return 0 if self._delivery is None else self._delivery.missed

    def cancel(self) -> None:
        """No more events, not even of what has happened already."""
        if self._delivery is not None:
            self._delivery.cancelled = True
        self.lease.cancel()

    def __repr__(self) -> str:
        return f"EventRegistration({self.source!r}, event_id={self.event_id})"


class Delivery:
    """Tells one listener of events, again if it fails, until it has failed too often."""

    def __init__(self, listener: object, retry: Retry, clock: Clock, is_async: bool) -> None:
        self.is_async = is_async
        self.cancelled = False
        self.missed = 0
        self._tell = listening(listener)
        self._retry = retry
        self._clock = clock

    @either
    async def deliver(self, event: RemoteEvent) -> None:
        """ListenerFailed after the last try, or as soon as the listener says UnknownEvent."""
        pause = self._retry.first_seconds
        for attempt in range(1, self._retry.tries + 1):
            if self.cancelled:
                return
            try:
                await settled(self._tell(event))
                return
            except UnknownEvent as error:
                raise ListenerFailed(f"the listener does not want {event!r}") from error
            except (Exception, SystemExit) as error:
                if attempt == self._retry.tries:
                    raise ListenerFailed(
                        f"the listener failed {attempt} times; the last time: {error!r}"
                    ) from error
            await settled(self._wait(pause))
            pause *= 2

    def _wait(self, seconds: float) -> Any:
        if self.is_async:
            return TaskSignal().wait(self._clock, seconds)
        return self._clock.acquire(ThreadSignal().lock, seconds)


def listening(listener: object) -> Listener:
    """How to tell a listener: a function, or an object with `notify`."""
    tell = getattr(listener, "notify", listener)
    if not callable(tell):
        raise BadArgument("listener", "a function of an event, or an object with notify", listener)
    return tell
