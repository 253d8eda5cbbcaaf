"""What the blocking door hands out: sessions, subscriptions, reactions; and how a thread waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tupelo.errors import ListenerFailed
from tupelo.space.matchset import MatchSetState, Skipped
from tupelo.space.port import Port, value_of
from tupelo.space.protocol import SessionLike
from tupelo.space.query import deadline_of
from tupelo.space.reaction import ReactionState
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.values.lease import Lease
from tupelo.values.notice import Notice

if TYPE_CHECKING:
    from tupelo.space.blocking import Space

T_co = TypeVar("T_co", covariant=True)

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


class ClosingHandle:
    """What is closed at the end of a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Session(ClosingHandle, SessionLike):
    """Reads that never give the same entry twice. Threads may share it; `clone` makes another
    that has seen the same."""

    def __init__(self, space: Space, state: SessionState) -> None:
        self._space = space
        self._state = state

    def _read(
        self, template: object, wait: float | None, many: bool, limit: int | None, *where: Any
    ) -> Any:
        scope, coverage = where
        space = self._space
        query = space._port.query(
            template, False, wait, many, limit, None, None, False, scope, coverage, self._state
        )
        return space._values(query) if many else space._value(query)

    def clone(self, *, lease: float | None = None) -> Session:
        return Session(self._space, self._space._port.open_session(lease, like=self._state))

    @property
    def lease(self) -> Lease:
        return Lease(self._space._port, self._state)

    @property
    def seen(self) -> int:
        """How many entries it remembers; those that are gone are forgotten in time."""
        return len(self._state.seen)

    def close(self) -> None:
        self._space._port.end_session(self._state)


class SubscriptionHandle:
    """What both doors' subscriptions tell of themselves."""

    def __init__(self, port: Port, state: SubscriptionState) -> None:
        self._port = port
        self._state = state

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
        self._port.expire()
        return not self._state.ended

    @property
    def error(self) -> Exception | None:
        """Why it ended, if something went wrong."""
        return self._state.error


class Subscription(ClosingHandle, SubscriptionHandle):
    """Notices, in order. It ends with its lease, its transaction, its space, or `close()`."""

    def __init__(
        self,
        port: Port,
        state: SubscriptionState,
        callback: Callable[[Notice], object] | None,
    ) -> None:
        super().__init__(port, state)
        if callback is not None:
            threading.Thread(
                target=self._call, args=(callback,), name="tupelo-notices", daemon=True
            ).start()

    def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None if none came in time, or if there will be no more."""
        clock = self._port.clock
        deadline = deadline_of(clock, wait)
        while True:
            found, position = self._port.next_notice(self._state, ThreadSignal, deadline)
            if not isinstance(found, ThreadSignal):
                if position and isinstance(found, Notice):
                    try:
                        self._port.flush(position)
                    except BaseException:
                        self._port.return_notice(self._state, found)
                        raise
                return found  # type: ignore[return-value]
            try:
                left = None if deadline is None else max(0.0, deadline - clock.now())
                clock.acquire(found.lock, left)
            finally:
                self._port.forget_signal(self._state, found)

    def __iter__(self) -> Iterator[Notice]:
        while (notice := self.get()) is not None:
            yield notice

    def _call(self, callback: Callable[[Notice], object]) -> None:
        try:
            for notice in self:
                callback(notice)
        except Exception as error:
            logger.exception("a subscription's callback raised; the subscription is closed")
            self._port.end_subscription(self._state, error)
        except BaseException as error:  # It has ended its thread.
            self._port.end_subscription(self._state, ListenerFailed(repr(error)))

    @property
    def lease(self) -> Lease:
        return Lease(self._port, self._state)

    def close(self) -> None:
        self._port.end_subscription(self._state)


class MatchSet(ClosingHandle, Generic[T_co]):
    """What matched, in order of arrival: iterate, or call `next` until it answers None.

    MatchSetInvalid is raised once an entry of the set was taken, or its lease has ended. An entry
    that has expired meanwhile, or whose class this program lacks, is left out: see `skipped`.
    """

    def __init__(self, port: Port, state: MatchSetState) -> None:
        self._port = port
        self._state = state

    def next(self) -> T_co | None:
        """The next entry, or None at the end."""
        entry, position = self._port.next_match(self._state)
        if entry is None:
            return None
        if position:
            self._port.flush(position)
        value: T_co = value_of(entry)
        return value

    @property
    def lease(self) -> Lease:
        return Lease(self._port, self._state)

    @property
    def skipped(self) -> list[Skipped]:
        """What was left out so far, and why."""
        return self._state.left_out

    def close(self) -> None:
        """It is not needed any more."""
        self._port.end_match_set(self._state)

    def __iter__(self) -> Iterator[T_co]:
        while (entry := self.next()) is not None:
            yield entry


class Reaction:
    """A registered reaction."""

    def __init__(self, port: Port, state: ReactionState) -> None:
        self._port = port
        self._state = state

    @property
    def active(self) -> bool:
        return not self._state.ended

    @property
    def error(self) -> Exception | None:
        """What its function raised the last time that it did."""
        return self._state.error

    def cancel(self) -> None:
        self._port.end_reaction(self._state)
