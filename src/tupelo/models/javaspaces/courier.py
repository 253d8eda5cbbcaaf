"""Couriers: they bring events to one target, in order, and come back if it fails.

A courier has a thread only while there is something to bring. It waits for the next try through
the clock, without a thread, so that it can be called off at any moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Protocol

from tupelo.errors import BadArgument, ListenerFailed, UnknownEvent
from tupelo.models.javaspaces.events import (
    Listener,
    RemoteEvent,
    Retry,
    listening,
)
from tupelo.space.clock import Clock


class Bag(Protocol):
    """Where the events are. One is out at a time: it was delivered, or comes back to its place."""

    def fetch(self) -> RemoteEvent | None: ...

    def delivered(self) -> None: ...

    def returned(self) -> None: ...


class Courier:
    """Brings what is in the bag; `on_failure` learns of the error with which it has given up."""

    def __init__(
        self,
        bag: Bag,
        target: Listener,
        clock: Clock,
        retry: Retry,
        on_failure: Callable[[Exception], object],
    ) -> None:
        self._bag = bag
        self._target = target
        self._clock = clock
        self._retry = retry
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._busy = False
        self._more = False
        self._stopped = False
        self._tries = 0
        self._cancel_alarm: Callable[[], None] = lambda: None

    def go(self) -> None:
        """There is something in the bag."""
        with self._lock:
            self._more = True
            if self._busy or self._stopped:
                return
            self._busy = True
        self._start()

    def stop(self) -> None:
        """Bring nothing more. What is on its way may still arrive, but is not tried again."""
        with self._lock:
            self._stopped = True
            self._cancel_alarm()

    def _start(self) -> None:
        threading.Thread(target=self._run, name="tupelo-courier", daemon=True).start()

    def _run(self) -> None:
        try:
            while self._bring_one():
                pass
        except Exception as error:  # The space of the events was closed, or its disk has failed.
            self._give_up(error)

    def _bring_one(self) -> bool:
        """False if there is nothing to do, now or any more."""
        with self._lock:
            if self._stopped:
                return False
            self._more = False
        event = self._bag.fetch()
        if event is None:
            with self._lock:
                self._busy = self._more
                return self._more
        try:
            self._target(event)
        except BaseException as error:  # Whatever a listener does, the event is not lost.
            self._bag.returned()
            return self._try_again(event, error)
        self._tries = 0
        self._bag.delivered()
        return True

    def _try_again(self, event: RemoteEvent, error: BaseException) -> bool:
        self._tries += 1
        if isinstance(error, UnknownEvent):
            failure = ListenerFailed(f"the listener does not want {event!r}")
        elif self._tries >= self._retry.tries:
            failure = ListenerFailed(
                f"the listener failed {self._tries} times; the last time: {error!r}"
            )
        else:
            pause = self._retry.first_seconds * 2 ** (self._tries - 1)
            if not pause:
                return True
            with self._lock:
                if not self._stopped:
                    when = self._clock.now() + pause
                    self._cancel_alarm = self._clock.call_at(when, self._start)
            return False
        failure.__cause__ = error
        self._give_up(failure)
        return False

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self._on_failure(error)


def target_of(name: str, listener: object) -> Listener:
    """How to tell a listener, which is called from a thread."""
    try:
        tell = listening(listener)
    except BadArgument:
        raise BadArgument(
            name, "a function of an event, or an object with notify", listener
        ) from None
    if iscoroutinefunction(tell):
        raise BadArgument(name, "a plain function: it is called from a thread", listener)
    return tell
