"""What the blocking door hands out: sessions, subscriptions, reactions; and how a thread waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

from tupelo.errors import ListenerFailed
from tupelo.space.checks import check_wait
from tupelo.space.operations import Operations
from tupelo.space.reaction import ReactionState
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.values.lease import Lease
from tupelo.values.notice import Notice
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.space.blocking import Space

logger = logging.getLogger("tupelo")


class ThreadSignal:
    """Wakes a thread that blocks on the lock."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def wake(self) -> bool:
        if self.lock.locked():
            self.lock.release()
        return True


class Closing:
    """What is closed at the end of a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Session(Closing):
    """Reads that never give the same entry twice. Threads may share it; `clone` makes another
    that has seen the same."""

    def __init__(self, space: Space, state: SessionState) -> None:
        self._space = space
        self._state = state

    def read(self, template: object = ANY, *, wait: float | None = None) -> Any:
        return self._space._get(template, False, wait, None, session=self._state)

    def read_all(
        self, template: object = ANY, *, wait: float | None = 0, limit: int | None = None
    ) -> list[Any]:
        return self._space._get_all(template, False, wait, limit, None, session=self._state)

    def clone(self, *, lease: float | None = None) -> Session:
        return Session(self._space, self._space._operations.open_session(lease, like=self._state))

    @property
    def lease(self) -> Lease:
        return Lease(self._space._operations, self._state)

    @property
    def seen(self) -> int:
        """How many entries it remembers; those that are gone are forgotten in time."""
        return len(self._state.seen)

    def close(self) -> None:
        self._space._operations.end_session(self._state)


class Subscription(Closing):
    """Notices, in order. It ends with its lease, its transaction, its space, or `close()`."""

    def __init__(
        self,
        operations: Operations,
        state: SubscriptionState,
        callback: Callable[[Notice], object] | None,
    ) -> None:
        self._operations = operations
        self._state = state
        if callback is not None:
            threading.Thread(
                target=self._call, args=(callback,), name="tupelo-notices", daemon=True
            ).start()

    def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None if none came in time, or if there will be no more."""
        check_wait(wait)
        clock = self._operations.engine.clock
        until = None if wait is None else clock.now() + wait
        while True:
            left = None if until is None else max(0.0, until - clock.now())
            found, position = self._operations.next_notice(self._state, ThreadSignal, left)
            if not isinstance(found, ThreadSignal):
                if position and isinstance(found, Notice):
                    try:
                        self._operations.engine.flush(position)
                    except BaseException:
                        self._operations.return_notice(self._state, found)
                        raise
                return found  # type: ignore[return-value]
            try:
                clock.acquire(found.lock, left)
            finally:
                self._operations.forget_signal(self._state, found)

    def __iter__(self) -> Iterator[Notice]:
        while (notice := self.get()) is not None:
            yield notice

    def _call(self, callback: Callable[[Notice], object]) -> None:
        try:
            for notice in self:
                callback(notice)
        except Exception as error:
            logger.exception("a subscription's callback raised; the subscription is closed")
            self._operations.end_subscription(self._state, error)
        except BaseException as error:  # It has ended its thread.
            self._operations.end_subscription(self._state, ListenerFailed(repr(error)))

    @property
    def event_id(self) -> int:
        return self._state.event.id

    @property
    def sequence(self) -> int:
        """The sequence number of the last notice for this event."""
        return self._state.event.sequence

    @property
    def active(self) -> bool:
        """May more notices come than those that wait?"""
        self._operations.expire()
        return not self._state.ended

    @property
    def error(self) -> Exception | None:
        """Why it ended, if something went wrong."""
        return self._state.error

    @property
    def lease(self) -> Lease:
        return Lease(self._operations, self._state)

    def close(self) -> None:
        self._operations.end_subscription(self._state)


class Reaction:
    """A registered reaction."""

    def __init__(self, operations: Operations, state: ReactionState) -> None:
        self._operations = operations
        self._state = state

    @property
    def active(self) -> bool:
        return not self._state.ended

    @property
    def error(self) -> Exception | None:
        """What its function raised the last time that it did."""
        return self._state.error

    def cancel(self) -> None:
        self._operations.end_reaction(self._state)
