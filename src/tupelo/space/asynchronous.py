"""The async door: a space for coroutines. The same names as the blocking one, to be awaited.

It shares everything with the blocking door but the waiting, so threads and tasks can meet in one
space: `aio.Space(space)` is an async door to a space that threads use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tupelo.errors import BadArgument, ListenerFailed, SpaceClosed, TupeloError
from tupelo.space import blocking, handles
from tupelo.space.capacity import Capacity
from tupelo.space.checks import check_wait
from tupelo.space.clock import Clock
from tupelo.space.engine import Engine
from tupelo.space.holdings import Holdings, Transactional, TransactionHandle
from tupelo.space.operations import Operations, value_of
from tupelo.space.order import Order
from tupelo.space.reaction import Function
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.space.tasks import Flusher, TaskSignal
from tupelo.space.transaction import Txn, Vote
from tupelo.space.waiting import Waiter
from tupelo.space.writers import Writer
from tupelo.store.sqlite import Durability, LogKeep
from tupelo.values.change import Change
from tupelo.values.entry import Entry
from tupelo.values.lease import Lease, LeasePolicy
from tupelo.values.notice import Notice
from tupelo.values.parts import ANY


class Space:
    """One named set of entries, found by content; see `tupelo.Space`. Or an async door to one."""

    def __init__(
        self,
        name: str | blocking.Space | None = None,
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
    ) -> None:
        if isinstance(name, blocking.Space):
            given = (path, durability, order, capacity, lease_policy, log_keep, agent, clock)
            if any(option is not None for option in given):
                raise BadArgument("name", "a name, if options are given too", name)
            self._operations = name._operations
        else:
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
                )
            )
        self._clock = self._operations.engine.clock
        self._flusher = Flusher(self._operations.engine)
        self._flush = self._flusher.flush

    @property
    def name(self) -> str:
        return self._operations.engine.name

    # Writing

    async def write(
        self,
        entry: object,
        *,
        lease: float | None = None,
        txn: Transactional | None = None,
        at: Any = None,
        wait: float | None = 0,
    ) -> Lease:
        if lease is None and txn is None and at is None and wait == 0:
            granted = self._operations.write_plainly(entry)
            if granted is not None:
                if self._operations.journaled:
                    await self._flusher.flush(granted.thing.arrival)
                return granted
        outcome, position = self._operations.write(entry, lease, txn, at, TaskSignal, wait)
        if isinstance(outcome, Writer):
            outcome, position = await self._await_writing(outcome, wait)
        if position:
            await self._flusher.flush(position)
        return outcome[0]

    async def write_all(
        self,
        entries: Iterable[object],
        *,
        lease: float | list[float | None] | None = None,
        txn: Transactional | None = None,
        at: Sequence[Any] | None = None,
        wait: float | None = 0,
    ) -> list[Lease]:
        outcome, position = self._operations.write_all(entries, lease, txn, at, TaskSignal, wait)
        if isinstance(outcome, Writer):
            outcome, position = await self._await_writing(outcome, wait)
        await self._flusher.flush(position)
        return outcome

    async def _await_writing(self, writer: Writer, wait: float | None) -> tuple[list[Lease], int]:
        try:
            if not writer.done:
                assert isinstance(writer.signal, TaskSignal)
                await writer.signal.wait(self._clock, wait)
        except BaseException:  # cancelled
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
    ) -> Coroutine[Any, Any, Any]:
        return self._get(template, False, wait, txn, order, if_exists)

    def take(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
    ) -> Coroutine[Any, Any, Any]:
        return self._get(template, True, wait, txn, order, if_exists)

    async def read_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
    ) -> list[Any]:
        return await self._get_all(template, False, wait, limit, txn, order, if_exists=if_exists)

    async def take_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
    ) -> list[Any]:
        return await self._get_all(template, True, wait, limit, txn, order, if_exists=if_exists)

    async def count(self, template: object = ANY, *, txn: Transactional | None = None) -> int:
        return self._operations.count(template, txn)

    async def _get(
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
            template, TaskSignal, take, wait, txn, order, if_exists, session
        )
        if isinstance(found, Waiter):
            entries, position = await self._await(found, wait)
            found = entries[0] if entries else None
        if found is None:
            return None
        if position:
            await self._flush_got([found], position, take, txn, session)
        return value_of(found)

    async def _get_all(
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
            template, TaskSignal, take, wait, limit, txn, order, session, if_exists
        )
        if isinstance(found, Waiter):
            waiter = found
            found, position = await self._await(waiter, wait)
            if if_exists and not waiter.done:  # Patience is at an end: what is there now?
                return await self._get_all(template, take, 0, limit, txn, order)
        if position:
            await self._flush_got(found, position, take, txn, session)
        return [value_of(entry) for entry in found]

    async def _await(
        self, waiter: Waiter, wait: float | None, reserve: bool = False
    ) -> tuple[list[Entry], int]:
        try:
            if not waiter.done:
                assert isinstance(waiter.signal, TaskSignal)
                if wait is None:
                    await waiter.signal.future
                else:
                    await waiter.signal.wait(self._clock, wait)
            if not self._operations.give_up(waiter):
                return [], 0
            return self._operations.collect(waiter, reserve)
        except TupeloError:
            raise
        except BaseException:  # cancelled, perhaps just when the answer came
            self._operations.vanish(waiter)
            raise

    async def _flush_got(
        self,
        entries: list[Entry],
        position: int,
        take: bool,
        txn: Transactional | None,
        session: SessionState | None,
    ) -> None:
        handings = self._operations.handings
        handing = handings.hand(entries, take, self._operations.state_of(txn), session)
        try:
            await self._flusher.flush(position)
        except TupeloError:
            raise
        except BaseException:  # cancelled, or its loop was closed
            handings.undo(handing)
            raise
        handings.received(handing)

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """All or nothing: pass it as `txn=`. `async with` commits at the end."""
        return Transaction(self._operations, self._operations.begin(lease), self._flusher)

    async def in_doubt(self) -> list[Transaction]:
        states = self._operations.in_doubt()
        return [Transaction(self._operations, state, self._flusher) for state in states]

    def session(self, *, lease: float | None = None) -> Session:
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
        state = self._operations.subscribe(
            template, callback, lease, txn, handback, backlog_max, available, returned
        )
        return Subscription(self._operations, state, self._flusher, callback)

    async def react(
        self,
        template: object,
        function: Function,
        *,
        once: bool = False,
        existing: bool = True,
    ) -> handles.Reaction:
        state, position = self._operations.react(template, function, once, existing)
        await self._flusher.flush(position)
        return handles.Reaction(self._operations, state)

    # The log, closing

    async def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        return await asyncio.to_thread(self._operations.engine.changes, since, limit)

    async def trim(self, *, before: int) -> None:
        await asyncio.to_thread(self._operations.engine.trim, before)

    async def compact(self) -> None:
        await asyncio.to_thread(self._operations.engine.compact)

    async def close(self) -> None:
        engine = self._operations.engine
        with engine.lock:
            engine.refuse_inside()
        if engine.saved is None:
            engine.close()
        else:  # It waits for the disk.
            await asyncio.to_thread(engine.close)
        await asyncio.to_thread(self._flusher.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.Space({self.name!r})"


class Transaction(TransactionHandle):
    """All or nothing. `async with` commits at the end, or aborts on an error."""

    def __init__(self, operations: Holdings, state: Txn, flusher: Flusher) -> None:
        super().__init__(operations, state)
        self._flusher = flusher

    async def commit(self) -> None:
        await self._flusher.flush(self._operations.commit(self._state))

    async def abort(self) -> None:
        await self._flusher.flush(self._operations.abort(self._state))

    async def prepare(self) -> Vote:
        vote, position = self._operations.prepare(self._state)
        await self._flusher.flush(position)
        return vote

    def transaction(self, *, lease: float | None = None) -> Transaction:
        state = self._operations.begin(lease, self._state)
        return Transaction(self._operations, state, self._flusher)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            with suppress(SpaceClosed):  # That would hide the error, and has ended it anyway.
                if self.state == "active":
                    await self.abort()
        elif self.must_commit:
            await self.commit()


class Session:
    """Reads that never give the same entry twice. Tasks may share it."""

    def __init__(self, space: Space, state: SessionState) -> None:
        self._space = space
        self._state = state

    async def read(self, template: object = ANY, *, wait: float | None = None) -> Any:
        return await self._space._get(template, False, wait, None, session=self._state)

    async def read_all(
        self, template: object = ANY, *, wait: float | None = 0, limit: int | None = None
    ) -> list[Any]:
        return await self._space._get_all(template, False, wait, limit, None, session=self._state)

    def clone(self, *, lease: float | None = None) -> Session:
        return Session(self._space, self._space._operations.open_session(lease, like=self._state))

    @property
    def lease(self) -> Lease:
        return Lease(self._space._operations, self._state)

    @property
    def seen(self) -> int:
        return len(self._state.seen)

    async def close(self) -> None:
        self._space._operations.end_session(self._state)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Subscription:
    """Notices, in order: `async for notice in subscription`."""

    def __init__(
        self,
        operations: Operations,
        state: SubscriptionState,
        flusher: Flusher,
        callback: Callable[[Notice], object] | None,
    ) -> None:
        self._operations = operations
        self._state = state
        self._flusher = flusher
        self._task = asyncio.create_task(self._call(callback)) if callback is not None else None

    async def get(self, *, wait: float | None = None) -> Notice | None:
        check_wait(wait)
        clock = self._operations.engine.clock
        until = None if wait is None else clock.now() + wait
        while True:
            left = None if until is None else max(0.0, until - clock.now())
            found, position = self._operations.next_notice(self._state, TaskSignal, left)
            if not isinstance(found, TaskSignal):
                if position and isinstance(found, Notice):
                    try:
                        await self._flusher.flush(position)
                    except BaseException:
                        self._operations.return_notice(self._state, found)
                        raise
                return found  # type: ignore[return-value]
            try:
                await found.wait(clock, left)
            finally:
                self._operations.forget_signal(self._state, found)

    async def __aiter__(self) -> AsyncIterator[Notice]:
        while (notice := await self.get()) is not None:
            yield notice

    async def _call(self, callback: Callable[[Notice], object]) -> None:
        try:
            async for notice in self:
                answer = callback(notice)
                if asyncio.iscoroutine(answer):
                    await answer
        except Exception as error:
            handles.logger.exception("a subscription's callback raised; the subscription is closed")
            self._operations.end_subscription(self._state, error)
        except BaseException as error:
            ended = ListenerFailed(repr(error))
            self._operations.end_subscription(self._state, ended)
            raise

    @property
    def event_id(self) -> int:
        return self._state.event.id

    @property
    def sequence(self) -> int:
        return self._state.event.sequence

    @property
    def active(self) -> bool:
        self._operations.expire()
        return not self._state.ended

    @property
    def error(self) -> Exception | None:
        return self._state.error

    @property
    def lease(self) -> Lease:
        return Lease(self._operations, self._state)

    async def close(self) -> None:
        self._operations.end_subscription(self._state)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
