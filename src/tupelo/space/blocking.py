"""The blocking door: a space for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Self

from tupelo.errors import BadArgument, SpaceClosed, TupeloError
from tupelo.space.capacity import Capacity
from tupelo.space.clock import Clock
from tupelo.space.engine import Engine, random_id
from tupelo.space.handles import Closing, Reaction, Session, Subscription, ThreadSignal
from tupelo.space.holdings import Transactional, TransactionHandle
from tupelo.space.operations import Operations, value_of
from tupelo.space.order import Order
from tupelo.space.reaction import Function
from tupelo.space.session import SessionState
from tupelo.space.transaction import Vote
from tupelo.space.waiting import Waiter
from tupelo.space.writers import Writer
from tupelo.store.sqlite import Durability, LogKeep
from tupelo.values.change import Change
from tupelo.values.entry import Entry
from tupelo.values.lease import Lease, LeasePolicy
from tupelo.values.notice import Notice
from tupelo.values.parts import ANY

NOT_AT_ALL = 0  # to be told by `is`, which is quicker


class Space(Closing):
    """One named set of entries, found by content, in this process: in memory, or durable in a file.

    `wait` is how many seconds to wait for a match: None for ever, 0 not at all. `lease` is how
    many seconds something lives: None for ever. Every operation may be called from any thread.
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
    ) -> None:
        self._operations = Operations(
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
            )
        )
        self._flush = self._operations.engine.flush
        self._journaled = self._operations.journaled
        self._write_plainly = self._operations.write_plainly
        self._get_plainly = self._operations.get_plainly

    @property
    def name(self) -> str:
        return self._operations.engine.name

    # Writing

    def write(
        self,
        entry: object,
        *,
        lease: float | None = None,
        txn: Transactional | None = None,
        at: Any = None,
        wait: float | None = NOT_AT_ALL,
    ) -> Lease:
        """Write an entry: a tuple, or an instance of a dataclass. The space keeps a copy.

        `at` is for orders with places. If the space cannot take it now (it is full, or the order
        refuses the entry) it may `wait` until something leaves; then the refusal is raised.
        """
        if lease is None and txn is None and at is None and wait is NOT_AT_ALL:
            granted = self._write_plainly(entry)
            if granted is not None:
                if self._journaled:
                    self._flush(granted.thing.arrival)
                return granted
        outcome, position = self._operations.write(entry, lease, txn, at, ThreadSignal, wait)
        if type(outcome) is Writer:
            outcome, position = self._await_writing(outcome, wait)
        if position:
            self._flush(position)
        return outcome[0]  # type: ignore[index]

    def write_all(
        self,
        entries: Iterable[object],
        *,
        lease: float | list[float | None] | None = None,
        txn: Transactional | None = None,
        at: Sequence[Any] | None = None,
        wait: float | None = 0,
    ) -> list[Lease]:
        """Write many entries in one step: all of them become visible together, or none. The lease
        may be a list, with one for each.

        `at` has a place for each, for orders with places; `wait` is as for `write`.
        """
        outcome, position = self._operations.write_all(entries, lease, txn, at, ThreadSignal, wait)
        if isinstance(outcome, Writer):
            outcome, position = self._await_writing(outcome, wait)
        self._flush(position)
        return outcome

    def _await_writing(self, writer: Writer, wait: float | None) -> tuple[list[Lease], int]:
        """Block until the writer has written or `wait` seconds have passed."""
        try:
            if not writer.done:
                assert isinstance(writer.signal, ThreadSignal)
                self._operations.engine.clock.acquire(writer.signal.lock, wait)
        except BaseException:  # KeyboardInterrupt, or whatever else ends this thread
            self._operations.stop_writing(writer)
            raise
        return self._operations.written(writer)

    # Reading and taking

    def read(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
    ) -> Any:
        """A copy of a matching entry; None if there is none in time.

        With `if_exists`, wait only while a transaction may still reveal or release a match.
        """
        if (wait is None or (wait == 0 and wait is not False)) and txn is None and order is None:
            fields = self._get_plainly(template, False)
            if fields is not NotImplemented and (fields is not None or wait == 0):
                return fields
        return self._get(template, False, wait, txn, order, if_exists)

    def take(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
    ) -> Any:
        """Remove a matching entry and get it; nobody else will. None if there is none in time."""
        if (wait is None or (wait == 0 and wait is not False)) and txn is None and order is None:
            fields = self._get_plainly(template, True)
            if fields is not NotImplemented and (fields is not None or wait == 0):
                return fields
        return self._get(template, True, wait, txn, order, if_exists)

    def read_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
    ) -> list[Any]:
        """Copies of all matching entries, at most `limit`. It waits for the first, if told to;
        or with `if_exists` while a transaction may still reveal or release a match, and then
        answers with all there is, perhaps nothing."""
        return self._get_all(template, False, wait, limit, txn, order, if_exists=if_exists)

    def take_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
    ) -> list[Any]:
        """Remove all matching entries, at most `limit`, in one step."""
        return self._get_all(template, True, wait, limit, txn, order, if_exists=if_exists)

    def count(self, template: object = ANY, *, txn: Transactional | None = None) -> int:
        """How many entries match at this moment."""
        return self._operations.count(template, txn)

    def _get(
        self,
        template: object,
        take: bool,
        wait: float | None,
        txn: Transactional | None,
        order: Order | None = None,
        if_exists: bool = False,
        session: SessionState | None = None,
    ) -> Any:
        found, position = self._operations.get(
            template, ThreadSignal, take, wait, txn, order, if_exists, session
        )
        if type(found) is Waiter:
            entries, position = self._await(found, wait)
            found = entries[0] if entries else None
        if found is None:
            return None
        if position:
            self._flush_got([found], position, take, txn, session)  # type: ignore[list-item]
        return value_of(found)  # type: ignore[arg-type]

    def _get_all(
        self,
        template: object,
        take: bool,
        wait: float | None,
        limit: int | None,
        txn: Transactional | None,
        order: Order | None = None,
        session: SessionState | None = None,
        if_exists: bool = False,
    ) -> list[Any]:
        found, position = self._operations.get_all(
            template, ThreadSignal, take, wait, limit, txn, order, session, if_exists
        )
        if isinstance(found, Waiter):
            waiter = found
            found, position = self._await(waiter, wait)
            if if_exists and not waiter.done:  # Patience is at an end: what is there now?
                return self._get_all(template, take, 0, limit, txn, order)
        if position:
            self._flush_got(found, position, take, txn, session)
        return [value_of(entry) for entry in found]

    def _flush_got(
        self,
        entries: list[Entry],
        position: int,
        take: bool,
        txn: Transactional | None,
        session: SessionState | None,
    ) -> None:
        """Wait for the disk; who is interrupted meanwhile has not got the entries."""
        handings = self._operations.handings
        handing = handings.hand(entries, take, self._operations.state_of(txn), session)
        try:
            self._flush(position)
        except TupeloError:
            raise
        except BaseException:
            handings.undo(handing)
            raise
        handings.received(handing)

    def _await(self, waiter: Waiter, wait: float | None) -> tuple[list[Entry], int]:
        """Block until the waiter is answered or `wait` seconds have passed."""
        try:
            if not waiter.done:
                assert isinstance(waiter.signal, ThreadSignal)
                self._operations.engine.clock.acquire(waiter.signal.lock, wait)
            if not self._operations.give_up(waiter):
                return [], 0
            return self._operations.collect(waiter)
        except TupeloError:
            raise
        except BaseException:  # KeyboardInterrupt, or whatever else ends this thread
            self._operations.vanish(waiter)
            raise

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """All or nothing: pass it as `txn=`. It aborts itself when its lease runs out."""
        return Transaction(self._operations, self._operations.begin(lease))

    def in_doubt(self) -> list[Transaction]:
        """The transactions that were prepared and not decided, also before a crash."""
        return [Transaction(self._operations, txn) for txn in self._operations.in_doubt()]

    def session(self, *, lease: float | None = None) -> Session:
        """A reader that never sees the same entry twice."""
        return Session(self, self._operations.open_session(lease))

    # Subscriptions, reactions

    def subscribe(
        self,
        template: object = ANY,
        callback: Callable[[Notice], object] | None = None,
        *,
        lease: float | None = None,
        txn: Transactional | None = None,
        handback: Any = None,
        backlog_max: int = 1_000,
        available: bool = False,
        returned: bool = True,
    ) -> Subscription:
        """Be told of entries that become visible; with `available`, also of those that a
        transaction had read and lets go, or whose taker vanished; unless `returned`, not of those
        that one had taken and gives back.

        Iterate over the subscription, or give a callback, which a thread of its own will call.
        When `backlog_max` notices wait, the oldest is dropped; the next one tells how many were.
        """
        if iscoroutinefunction(callback):
            raise BadArgument("callback", "a plain function, or use tupelo.aio", callback)
        state = self._operations.subscribe(
            template, callback, lease, txn, handback, backlog_max, available, returned
        )
        return Subscription(self._operations, state, callback)

    def react(
        self,
        template: object,
        function: Function,
        *,
        once: bool = False,
        existing: bool = True,
    ) -> Reaction:
        """Call `function(entry, step)` inside the atomic step in which a match becomes visible.

        It is called once for every entry (or `once` only), for those already there too unless
        `existing` is False. What it does through `step` is part of the step: before anybody sees
        the entry, and undone with it if a function raises.
        """
        state, position = self._operations.react(template, function, once, existing)
        self._flush(position)
        return Reaction(self._operations, state)

    # The log, closing

    def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        """What happened after position `since`, oldest first."""
        return self._operations.engine.changes(since, limit)

    def trim(self, *, before: int) -> None:
        """Forget the changes before a position. What the space holds is not touched."""
        self._operations.engine.trim(before)

    def compact(self) -> None:
        """Trim the log by the space's policy and give the room back to the disk."""
        self._operations.engine.compact()

    def close(self) -> None:
        """Close: those who wait get SpaceClosed; a durable space can be opened again."""
        self._operations.engine.close()

    def __repr__(self) -> str:
        return f"Space({self.name!r})"


class Transaction(TransactionHandle):
    """All or nothing. As a context manager it commits at the end, or aborts on an error."""

    def commit(self) -> None:
        self._operations.engine.flush(self._operations.commit(self._state))

    def abort(self) -> None:
        self._operations.engine.flush(self._operations.abort(self._state))

    def prepare(self) -> Vote:
        """Phase one: promise to commit, whatever comes. "not changed" needs no second phase."""
        vote, position = self._operations.prepare(self._state)
        self._operations.engine.flush(position)
        return vote

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return Transaction(self._operations, self._operations.begin(lease, self._state))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            with suppress(SpaceClosed):  # That would hide the error, and has ended it anyway.
                if self.state == "active":
                    self.abort()
        elif self.must_commit:
            self.commit()
