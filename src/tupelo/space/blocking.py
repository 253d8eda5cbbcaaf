"""The blocking API of a space, for threads, and the handles that it returns."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from tupelo.errors import BadArgument, DiskFull, ListenerFailed, SpaceClosed, TupeloError
from tupelo.space.capacity import Capacity
from tupelo.space.clock import Clock
from tupelo.space.engine import Damaged, Engine, random_id
from tupelo.space.matchset import MatchSetState, Skipped
from tupelo.space.order import Order
from tupelo.space.port import (
    Port,
    Transactional,
    TransactionHandle,
    delayed_of,
    mark_to,
    value_of,
)
from tupelo.space.protocol import SessionLike, SpaceLike
from tupelo.space.query import NOW, Query, deadline_of
from tupelo.space.reaction import Function, ReactionState
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.space.tasks import FULL_DISK_SECONDS
from tupelo.space.transaction import PrepareVote
from tupelo.space.waiting import Waiter, Writer
from tupelo.store.sqlite import Durability, LogKeep
from tupelo.values.change import Change, Notice
from tupelo.values.entry import About, Entry, check_about, note_about
from tupelo.values.holder import Delayed, InHand
from tupelo.values.lease import Lease, LeasePolicy
from tupelo.values.parts import ANY
from tupelo.values.scope import Coverage, Scope

T_co = TypeVar("T_co", covariant=True)

logger = logging.getLogger("tupelo")


class ThreadSignal:
    """Wakes a thread that waits for a lock."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def wake(self) -> bool:
        if self.lock.locked():
            self.lock.release()
        return True


class ClosingHandle:
    """Closes itself at the end of a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Session(ClosingHandle, SessionLike):
    """Returns each entry at most once. Threads may share it; `clone` makes another session that has
    seen the same entries."""

    def __init__(self, space: Space, state: SessionState) -> None:
        self._space = space
        self._state = state

    def _read(
        self, template: object, wait: float | None, many: bool, limit: int | None, *where: Any
    ) -> Any:
        scope, coverage, about = where
        query = self._space._port.query(
            template, False, wait, many, limit, None, None, False, scope, coverage, self._state
        )
        return self._space._results(query, about)

    def clone(self, *, lease: float | None = None) -> Session:
        """A new session that has seen the same entries."""
        return Session(self._space, self._space._port.open_session(lease, like=self._state))

    @property
    def lease(self) -> Lease:
        """Its lease; the session ends with it."""
        return Lease(self._space._port, self._state)

    @property
    def seen(self) -> int:
        """The number of remembered entries; removed entries are forgotten after a while."""
        return len(self._state.seen)

    def close(self) -> None:
        """End the session."""
        self._space._port.end_session(self._state)

    def __repr__(self) -> str:
        return f"<Session of {self._space.name!r}, {self.seen} entries seen>"


class SubscriptionHandle:
    """Common part of blocking and async subscriptions."""

    def __init__(self, port: Port, state: SubscriptionState) -> None:
        self._port = port
        self._state = state

    @property
    def event_id(self) -> int:
        """Identifies the event; equal for subscriptions with equal templates."""
        return self._state.event.id

    @property
    def sequence(self) -> int:
        """The sequence number of the last notice for this event."""
        return self._state.event.sequence

    @property
    def active(self) -> bool:
        """Whether more notices can come than those in the backlog."""
        self._port.expire()
        return not self._state.ended

    @property
    def error(self) -> Exception | None:
        """The error that ended the subscription, if any."""
        return self._state.error

    def __repr__(self) -> str:
        state = "ended" if self._state.ended else "active"
        return f"<{type(self).__name__} {self.event_id} of {self._port.name!r}, {state}>"


class Subscription(ClosingHandle, SubscriptionHandle):
    """Notices in order, until its lease, transaction or space ends, or `close()`."""

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
        """The next notice; None after the timeout or at the end."""
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
            while True:
                try:
                    notice = self.get()
                except DiskFull:  # The notice comes again.
                    time.sleep(FULL_DISK_SECONDS)
                    continue
                if notice is None:
                    return
                callback(notice)
        except Exception as error:
            logger.exception("a subscription's callback raised; the subscription is closed")
            self._port.end_subscription(self._state, error)
        except BaseException as error:  # It has ended the thread of the listener.
            self._port.end_subscription(self._state, ListenerFailed(repr(error)))

    @property
    def lease(self) -> Lease:
        """Its lease; the subscription ends with it."""
        return Lease(self._port, self._state)

    def close(self) -> None:
        """End the subscription; notices in the backlog can still be read."""
        self._port.end_subscription(self._state)


class MatchSetHandle:
    """Common part of blocking and async match sets."""

    def __init__(self, port: Port, state: MatchSetState) -> None:
        self._port = port
        self._state = state

    @property
    def skipped(self) -> list[Skipped]:
        """The entries that were left out so far, with the reasons."""
        return self._state.left_out


class MatchSet(ClosingHandle, MatchSetHandle, Generic[T_co]):
    """The matches in order of arrival: iterate, or call `next` until it returns None.

    MatchSetInvalid is raised once an entry of the set was taken, or the lease has ended. Entries
    that expired, or whose class this program does not have, are left out: see `skipped`.
    """

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
        """Its lease; the match set ends with it."""
        return Lease(self._port, self._state)

    def close(self) -> None:
        """End the match set."""
        self._port.end_match_set(self._state)

    def __repr__(self) -> str:
        return f"<MatchSet of {self._port.name!r}, {self._state.reason or 'valid'}>"

    def __iter__(self) -> Iterator[T_co]:
        while (entry := self.next()) is not None:
            yield entry


class Reaction:
    """A registered reaction; `cancel()` ends it."""

    def __init__(self, port: Port, state: ReactionState) -> None:
        self._port = port
        self._state = state

    @property
    def active(self) -> bool:
        """Whether the reaction still reacts."""
        return not self._state.ended

    @property
    def error(self) -> Exception | None:
        """The last error that its function raised."""
        return self._state.error

    def cancel(self) -> None:
        """End the reaction."""
        self._port.end_reaction(self._state)

    def __repr__(self) -> str:
        return f"<Reaction of {self._port.name!r}, {'active' if self.active else 'ended'}>"


class Space(ClosingHandle, SpaceLike):
    """A named set of entries, found by content, in this process: in memory, or durable in a file.

    Every operation is thread-safe; `SpaceLike` describes the parameters of the operations.

    - `name`: the name of the space; spaces of one process may have the same.
    - `path`: the file. Without it the space is in memory.
    - `durability`: "full" (default: an acknowledged change survives a power failure), "process" (it
      survives a crash of the process) or "none".
    - `order`: which match comes first, by default the oldest (`Fifo`).
    - `capacity`: a `Capacity`, the maximum size.
    - `lease_policy`: `policy(kind, seconds)` returns the lease to grant.
    - `log_keep`: how many changes the log keeps, or "all". A space in memory has no log by default.
    - `log_reads`: whether reads are changes too.
    - `reactions_max`: the maximum number of calls of reactions in one step, against livelocks.
    - `agent`: the id of this program in the log; `clock` and `new_id` replace the system's time and
      the random ids.
    - `damaged`: "refuse", or "salvage": the whole file is checked; if it is damaged, a new file
      with the undamaged part replaces it. The damaged file and a report of the losses are kept as
      `FILE.damaged-1` and `FILE.damaged-1.txt`.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        path: str | Path | None = None,
        durability: Durability | None = None,
        order: Order | None = None,
        capacity: Capacity | None = None,
        lease_policy: LeasePolicy | None = None,
        log_keep: LogKeep | None = None,
        log_reads: bool = False,
        reactions_max: int = 10_000,
        agent: str | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] = random_id,
        damaged: Damaged = "refuse",
    ) -> None:
        self._port = Port(
            Engine(
                name,
                path=path,
                durability=durability,
                order=order,
                capacity=capacity,
                lease_policy=lease_policy,
                log_keep=log_keep,
                log_reads=log_reads,
                reactions_max=reactions_max,
                agent=agent,
                clock=clock,
                new_id=new_id,
                damaged=damaged,
            )
        )
        port = self._port
        self._flush = port.flush
        self._get_fast = port.get_fast
        self._write_fast = self._write_durably if port.journaled else port.write_fast

    @property
    def name(self) -> str:
        return self._port.name

    # Writing

    def _write_durably(self, entry: object) -> Lease | None:
        granted: Lease | None = self._port.write_fast(entry)
        if granted is not None:
            self._flush(granted.thing.arrival)
        return granted

    def _write(
        self,
        entry: object,
        lease: float | None,
        txn: Transactional | None,
        at: Any,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> Lease:
        written = self._port.write(entry, lease, txn, at, ThreadSignal, wait, mark_to(to), delay)
        return self._written(*written, wait)[0]

    def _write_all(
        self,
        entries: Iterable[object],
        lease: float | list[float | None] | None,
        txn: Transactional | None,
        at: Sequence[Any] | None,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> list[Lease]:
        mark = mark_to(to)
        written = self._port.write_all(entries, lease, txn, at, ThreadSignal, wait, mark, delay)
        return self._written(*written, wait)

    def _written(
        self, outcome: list[Lease] | Writer, position: int, wait: float | None
    ) -> list[Lease]:
        if isinstance(outcome, Writer):
            outcome, position = self._await_writing(outcome, wait)
        if position:
            self._flush(position)
        return outcome

    def _await_writing(self, writer: Writer, wait: float | None) -> tuple[list[Lease], int]:
        """Block until the writer has written or `wait` seconds have passed."""
        try:
            if not writer.done:
                assert isinstance(writer.signal, ThreadSignal)
                self._port.clock.acquire(writer.signal.lock, wait)
        except BaseException:  # KeyboardInterrupt, or another exception that ends this thread
            self._port.stop_writing(writer)
            raise
        return self._port.written(writer)

    # Reading and taking

    def _get(self, template: object, take: bool, wait: float | None, many: bool, *rest: Any) -> Any:
        *how, about = rest
        query = self._port.query(template, take, wait, many, *how)
        return self._results(query, about) if many or about is not None else self._result(query)

    def _results(self, query: Query, about: list[About] | None) -> Any:
        check_about(about)
        found = self._entries(query)
        note_about(found, about)
        values = [value_of(entry) for entry in found]
        return values if query.many else values[0] if values else None

    def _count(
        self,
        template: object,
        txn: Transactional | None,
        scope: Scope | None,
        coverage: Coverage | None,
    ) -> int:
        self._port.require_here(scope, coverage)
        return self._port.count(template, txn)

    def _match_set(self, *arguments: Any) -> MatchSet[Any]:
        return MatchSet(self._port, self._port.open_match_set(*arguments))

    def _result(self, query: Query) -> Any:
        """`_results` for one entry: faster."""
        found, position = self._port.get(query, ThreadSignal)
        if type(found) is Waiter:
            found, position = self._await(found)
        if not found:
            return None
        if position:
            self._flush_got(found, position, query)  # type: ignore[arg-type]
        return value_of(found[0])  # type: ignore[index]

    def _entries(self, query: Query) -> list[Entry]:
        port = self._port
        found, position = port.get(query, ThreadSignal)
        if type(found) is Waiter:
            waiter = found
            found, position = self._await(waiter)
            if query.many and query.if_exists and not waiter.done:  # only the present matches
                return self._entries(query.replace(deadline=NOW, if_exists=False))
        if position and found:
            self._flush_got(found, position, query)  # type: ignore[arg-type]
        return found  # type: ignore[return-value]

    def _flush_got(self, entries: list[Entry], position: int, query: Query) -> None:
        """Wait for the disk; if the caller is interrupted, or the disk is full, the entries are
        returned to the space."""
        delivery = self._port.deliveries.begin(entries, query)
        try:
            self._flush(position)
        except DiskFull as error:
            raise self._port.undelivered(delivery) from error
        except TupeloError:
            raise
        except BaseException:
            self._port.flush_undone(delivery.give_back())
            raise
        delivery.confirm()

    def _await(self, waiter: Waiter) -> tuple[list[Entry], int]:
        """Block until the waiter is answered or its deadline has passed."""
        port = self._port
        try:
            if not waiter.done:
                assert isinstance(waiter.signal, ThreadSignal)
                port.clock.acquire(waiter.signal.lock, waiter.query.wait_left(port.clock))
            if not port.give_up(waiter):
                return [], 0
            return port.collect(waiter)
        except TupeloError:
            raise
        except BaseException:  # KeyboardInterrupt, or another exception that ends this thread
            port.flush_undone(port.vanish(waiter))
            raise

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Transaction:
        return Transaction(self._port, self._port.begin(lease))

    def in_doubt(self) -> list[Transaction]:
        return [Transaction(self._port, txn) for txn in self._port.in_doubt()]

    def in_hand(self, template: object = ANY) -> list[InHand]:
        return self._port.in_hand(template)

    def delayed(
        self, template: object = ANY, *, limit: int | None = None, cancel: bool = False
    ) -> Delayed:
        count, entries, position = self._port.delayed(template, limit, cancel)
        if position:
            self._flush(position)
        return delayed_of(count, entries)

    def session(self, *, lease: float | None = None) -> Session:
        return Session(self, self._port.open_session(lease))

    # Subscriptions, reactions

    def _subscribe(
        self, template: object, callback: Callable[[Notice], object] | None, *rest: Any
    ) -> Subscription:
        if iscoroutinefunction(callback):
            raise BadArgument("callback", "a plain function, or use tupelo.aio", callback)
        *how, scope = rest
        self._port.require_here(scope)
        return Subscription(self._port, self._port.subscribe(template, callback, *how), callback)

    def _react(
        self, template: object, function: Function, once: bool, existing: bool, scope: Scope | None
    ) -> Reaction:
        self._port.require_here(scope)
        state, position = self._port.react(template, function, once, existing)
        self._flush(position)
        return Reaction(self._port, state)

    # The log, closing

    def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        return self._port.changes(since, limit)

    def trim(self, *, before: int) -> None:
        self._port.trim(before)

    def compact(self) -> None:
        self._port.compact()

    def close(self) -> None:
        self._port.close()

    def __repr__(self) -> str:
        return f"Space({self.name!r})"


def fetch(space: Space, query: Query) -> list[Entry]:
    """`Port.fetch` for threads: the matches, waiting until the query's deadline."""
    return space._entries(query)


class Transaction(TransactionHandle):
    """A transaction. `with` commits at the end, or aborts on an error."""

    @property
    def lease(self) -> Lease:
        """Its lease; the transaction aborts when it ends."""
        return Lease(self._port, self._state)

    def commit(self) -> None:
        """Make all its changes visible."""
        self._port.flush(self._port.commit(self._state))

    def abort(self) -> None:
        """Undo all its changes."""
        self._port.flush(self._port.abort(self._state))

    def prepare(self) -> PrepareVote:
        """First phase of a two-phase commit. "not changed": there is nothing to commit."""
        vote, position = self._port.prepare(self._state)
        self._port.flush(position)
        return vote

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """Begin a nested transaction: it sees what this one sees, and commits into it."""
        return Transaction(self._port, self._port.begin(lease, self._state))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            with suppress(SpaceClosed):  # Closing has aborted it.
                if self.state == "active":
                    self.abort()
        elif self.must_commit:
            self.commit()
