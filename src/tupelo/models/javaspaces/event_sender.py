"""Couriers: they bring events to one target, in order, and come back if it fails.

A courier has a thread, or a task, only while there is something to bring.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Protocol

from tupelo.errors import BadArgument, UnknownEvent
from tupelo.models.javaspaces.events import (
    Listener,
    Notifier,
    RemoteEvent,
    Retry,
    listening,
)
from tupelo.space.clock import Clock
from tupelo.space.dual_api import maybe_await, run_sync
from tupelo.values import lease as engine

logger = logging.getLogger("tupelo")

BACKLOG_MAX = 1_000


class EventStore(Protocol):
    """Where the events are. One is out at a time: it was delivered, or comes back to its place. The
    methods may be coroutine functions."""

    def fetch(self) -> Any:
        """The next event, or None."""
        ...

    def delivered(self) -> Any: ...

    def returned(self) -> Any: ...

    def unwanted(self) -> Any:
        """The target has said UnknownEvent. True if only such events are not brought any more,
        False if none are."""
        ...


class EventBacklog:
    """A bag in memory. When it is full, the oldest event is dropped."""

    def __init__(self, backlog_max: int) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[RemoteEvent] = deque(maxlen=backlog_max)
        self._out: RemoteEvent | None = None

    def add(self, event: RemoteEvent) -> None:
        with self._lock:
            self._waiting.append(event)

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
        return False  # There are no others: it is for one registration, which has one event id.


def _in_a_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    threading.Thread(target=partial(run_sync, work), name="tupelo-courier", daemon=True).start()


class EventSender:
    """Brings what is in the bag; `on_failure` learns of the error with which it has given up."""

    def __init__(
        self,
        bag: EventStore,
        notifier: Notifier,
        on_failure: Callable[[Exception], object],
        start: Callable[[Callable[[], Coroutine[Any, Any, None]]], None] = _in_a_thread,
    ) -> None:
        self._bag = bag
        self._notifier = notifier
        self._on_failure = on_failure
        self._start = start
        self._lock = threading.Lock()
        self._busy = False
        self._more = False

    def go(self) -> None:
        """There is something in the bag."""
        with self._lock:
            self._more = True
            if self._busy or self._notifier.cancelled:
                return
            self._busy = True
        self._start(self._run)

    def stop(self) -> None:
        """Bring nothing more. What is on its way may still arrive, but is not tried again."""
        self._notifier.call_off()

    async def _run(self) -> None:
        try:
            while not self._notifier.cancelled:
                with self._lock:
                    self._more = False
                event = await maybe_await(self._bag.fetch())
                if event is not None:
                    await self._bring(event)
                    continue
                with self._lock:
                    self._busy = self._more
                    if not self._more:
                        return
        except Exception as error:  # also if the space was closed, or its disk has failed
            if not self._notifier.cancelled:
                self._notifier.call_off()
                self._on_failure(error)

    async def _bring(self, event: RemoteEvent) -> None:
        try:
            told = not self._notifier.cancelled and await self._notifier.attempt(event)
        except BaseException as error:  # Whatever a listener does, the event is not lost.
            if isinstance(error.__cause__, UnknownEvent) and await maybe_await(
                self._bag.unwanted()
            ):
                return
            await maybe_await(self._bag.returned())
            raise
        if told:
            await maybe_await(self._bag.delivered())
        else:
            await maybe_await(self._bag.returned())
            if not self._notifier.cancelled:
                await self._notifier.pause()


class ListenerThread:
    """A listener with its lease, and the events that wait for it in memory; the subscription of an
    EventRegistration. One that fails too often is dropped: `on_failure` is called then."""

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
        self._backlog = EventBacklog(BACKLOG_MAX)
        self._courier = EventSender(
            self._backlog, Notifier(tell, retry, clock, False), self.give_up
        )

    @property
    def lease(self) -> engine.Leased:
        return self._lease()  # It is not kept: the garbage collector does not look into leases.

    @property
    def active(self) -> bool:
        return not (self._stopped or self.lease.thing.ended)

    def tell(self, event: RemoteEvent) -> None:
        self._backlog.add(event)
        self._courier.go()

    def call_off(self, error: Exception | None = None) -> None:
        """Tell nothing more, also not what waits."""
        self._courier.stop()
        self._stopped = True
        self.error = self.error or error

    def give_up(self, error: Exception) -> None:
        """The listener is dropped, and this is the reason."""
        logger.warning("a listener was dropped: %s", error)
        self.call_off(error)
        self._on_failure()


def target_of(name: str, listener: object) -> Listener:
    """How to tell a listener, which is called from a thread."""
    tell = listening(listener, name)
    if iscoroutinefunction(tell):
        raise BadArgument(name, "a plain function: it is called from a thread", listener)
    return tell
