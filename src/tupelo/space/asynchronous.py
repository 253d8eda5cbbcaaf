"""The async API of a space: the names of the blocking one, as coroutines.

Both APIs share the engine, so threads and tasks can use one space: `aio.Space(space)` is the async
API of a blocking space.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from tupelo.errors import BadArgument, DiskFull, ListenerFailed, SpaceClosed, TupeloError
from tupelo.space import blocking
from tupelo.space.capacity import Capacity
from tupelo.space.clock import Clock
from tupelo.space.dual_api import OpenedHandle
from tupelo.space.engine import Damaged, Engine
from tupelo.space.order import Order
from tupelo.space.port import (
    Port,
    Transactional,
    TransactionHandle,
    delayed_of,
    mark_to,
    value_of,
)
from tupelo.space.protocol import AsyncSessionLike, AsyncSpaceLike
from tupelo.space.query import Query, deadline_of
from tupelo.space.reaction import Function
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.space.tasks import FULL_DISK_SECONDS, TaskSignal
from tupelo.space.transaction import PrepareVote
from tupelo.space.waiting import Waiter, Writer
from tupelo.store.sqlite import Durability, LogKeep
from tupelo.values.change import Change, Notice
from tupelo.values.entry import About, Entry, check_about, note_about
from tupelo.values.holder import Delayed, InHand
from tupelo.values.lease import AsyncLease, Lease, LeasePolicy
from tupelo.values.parts import ANY
from tupelo.values.scope import Coverage, Scope

T_co = TypeVar("T_co", covariant=True)


class AsyncClosing:
    """Closes itself at the end of an `async with` block."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class Space(AsyncClosing, AsyncSpaceLike):
    """A named set of entries, found by content; or the async API of a `tupelo.Space`, which is then
    given as `name`. The other arguments are those of `tupelo.Space`."""

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
        damaged: Damaged = "refuse",
    ) -> None:
        if isinstance(name, blocking.Space):
            given = (path, durability, order, capacity, lease_policy, log_keep, agent, clock)
            if any(option is not None for option in given):
                raise BadArgument("name", "a name, if options are given too", name)
            self._port = name._port
        else:
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
                    damaged=damaged,
                )
            )

    @property
    def name(self) -> str:
        return self._port.name

    # Writing

    async def _write(
        self,
        entry: object,
        lease: float | None,
        txn: Transactional | None,
        at: Any,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> AsyncLease:
        port = self._port
        if (
            lease is None
            and txn is None
            and at is None
            and wait == 0
            and to is None
            and delay is None
        ):
            granted: AsyncLease | None = port.write_fast(entry, None, AsyncLease)
            if granted is not None:
                if port.journaled:
                    await port.flusher.flush(granted.thing.arrival)
                return granted
        written = port.write(entry, lease, txn, at, TaskSignal, wait, mark_to(to), delay)
        return (await self._written(*written, wait))[0]

    async def _write_all(
        self,
        entries: Iterable[object],
        lease: float | list[float | None] | None,
        txn: Transactional | None,
        at: Sequence[Any] | None,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> list[AsyncLease]:
        mark = mark_to(to)
        written = self._port.write_all(entries, lease, txn, at, TaskSignal, wait, mark, delay)
        return await self._written(*written, wait)

    async def _written(
        self, outcome: list[Lease] | Writer, position: int, wait: float | None
    ) -> list[AsyncLease]:
        port = self._port
        if isinstance(outcome, Writer):
            outcome, position = await port.writing_of(outcome, wait)
        if position:
            await port.flushed(position)
        return [AsyncLease(port, granted.thing) for granted in outcome]

    # Reading and taking

    async def _get(
        self,
        template: object,
        take: bool,
        wait: float | None,
        many: bool,
        limit: int | None,
        txn: Transactional | None,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None,
        coverage: Coverage | None,
        about: list[About] | None = None,
        session: SessionState | None = None,
    ) -> Any:
        port = self._port
        if (
            not many
            and (wait is None or (wait == 0 and wait is not False))
            and txn is None
            and order is None
            and not if_exists
            and scope is None
            and coverage is None
            and about is None
            and session is None
        ):
            got = port.get_fast(template, take, TaskSignal if wait is None else None)
            if type(got) is Waiter:
                (entry,), _ = await port.answer_of(got)
                return value_of(entry)
            if got is not NotImplemented:
                return got
        check_about(about)
        query = port.query(
            template, take, wait, many, limit, txn, order, if_exists, scope, coverage, session
        )
        found, position = await port.answer(query)
        if position and found:
            await self._flush_got(found, position, query)
        note_about(found, about)
        if many:
            return [value_of(entry) for entry in found]
        return value_of(found[0]) if found else None

    async def _count(
        self,
        template: object,
        txn: Transactional | None,
        scope: Scope | None,
        coverage: Coverage | None,
    ) -> int:
        self._port.require_here(scope, coverage)
        return self._port.count(template, txn)

    async def _match_set(self, *arguments: Any) -> MatchSet[Any]:
        return MatchSet(self._port, self._port.open_match_set(*arguments))

    async def _flush_got(self, entries: list[Entry], position: int, query: Query) -> None:
        port = self._port
        delivery = port.deliveries.begin(entries, query)
        try:
            await port.flushed(position)
        except DiskFull as error:
            raise port.undelivered(delivery) from error
        except TupeloError:
            raise
        except BaseException:  # cancelled, or the loop was closed
            port.flush_undone(delivery.give_back())
            raise
        delivery.confirm()

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """Begin a transaction, to be passed as `txn=`. `async with` commits at the end."""
        return Transaction(self._port, self._port.begin(lease))

    async def in_doubt(self) -> list[Transaction]:
        return [Transaction(self._port, state) for state in self._port.in_doubt()]

    async def in_hand(self, template: object = ANY) -> list[InHand]:
        return self._port.in_hand(template)

    async def delayed(
        self, template: object = ANY, *, limit: int | None = None, cancel: bool = False
    ) -> Delayed:
        count, entries, position = self._port.delayed(template, limit, cancel)
        if position:
            await self._port.flushed(position)
        return delayed_of(count, entries)

    def session(self, *, lease: float | None = None) -> Session:
        return Session(self, self._port.open_session(lease))

    # Subscriptions, reactions

    def _subscribe(
        self, template: object, callback: Callable[[Notice], object] | None, *rest: Any
    ) -> Subscription:
        *how, scope = rest
        self._port.require_here(scope)
        return Subscription(self._port, self._port.subscribe(template, callback, *how), callback)

    async def _react(
        self, template: object, function: Function, once: bool, existing: bool, scope: Scope | None
    ) -> blocking.Reaction:
        self._port.require_here(scope)
        state, position = self._port.react(template, function, once, existing)
        await self._port.flushed(position)
        return blocking.Reaction(self._port, state)

    # The log, closing

    async def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        return await asyncio.to_thread(self._port.changes, since, limit)

    async def trim(self, *, before: int) -> None:
        await asyncio.to_thread(self._port.trim, before)

    async def compact(self) -> None:
        await asyncio.to_thread(self._port.compact)

    async def close(self) -> None:
        await self._port.close_async()

    def __repr__(self) -> str:
        return f"aio.Space({self.name!r})"


class Transaction(OpenedHandle, TransactionHandle):
    """A transaction. `async with` commits at the end, or aborts on an error."""

    @property
    def lease(self) -> AsyncLease:
        """Its lease; the transaction aborts when it ends."""
        return AsyncLease(self._port, self._state)

    async def commit(self) -> None:
        """Make all its changes visible."""
        await self._port.flushed(self._port.commit(self._state))

    async def abort(self) -> None:
        """Undo all its changes."""
        await self._port.flushed(self._port.abort(self._state))

    async def prepare(self) -> PrepareVote:
        """First phase of a two-phase commit. "not changed": there is nothing to commit."""
        vote, position = self._port.prepare(self._state)
        await self._port.flushed(position)
        return vote

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """Begin a nested transaction: it sees what this one sees, and commits into it."""
        return Transaction(self._port, self._port.begin(lease, self._state))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            with suppress(SpaceClosed):  # Closing has aborted it.
                if self.state == "active":
                    await self.abort()
        elif self.must_commit:
            await self.commit()


class Session(AsyncClosing, OpenedHandle, AsyncSessionLike):
    """Returns each entry at most once. Tasks may share it."""

    def __init__(self, space: Space, state: SessionState) -> None:
        self._space = space
        self._state = state

    def _read(
        self, template: object, wait: float | None, many: bool, limit: int | None, *where: Any
    ) -> Coroutine[Any, Any, Any]:
        scope, coverage, about = where
        return self._space._get(
            *(template, False, wait, many, limit, None, None, False, scope, coverage, about),
            session=self._state,
        )

    def clone(self, *, lease: float | None = None) -> Session:
        return Session(self._space, self._space._port.open_session(lease, like=self._state))

    @property
    def lease(self) -> AsyncLease:
        return AsyncLease(self._space._port, self._state)

    @property
    def seen(self) -> int:
        return len(self._state.seen)

    async def close(self) -> None:
        self._space._port.end_session(self._state)

    def __repr__(self) -> str:
        return f"<aio.Session of {self._space.name!r}, {self.seen} entries seen>"


class Subscription(AsyncClosing, OpenedHandle, blocking.SubscriptionHandle):
    """Notices, in order: `async for notice in subscription`."""

    def __init__(
        self,
        port: Port,
        state: SubscriptionState,
        callback: Callable[[Notice], object] | None,
    ) -> None:
        super().__init__(port, state)
        self._task = asyncio.create_task(self._call(callback)) if callback is not None else None

    async def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None after the timeout or at the end."""
        deadline = deadline_of(self._port.clock, wait)
        while True:
            found, position = self._port.next_notice(self._state, TaskSignal, deadline)
            if not isinstance(found, TaskSignal):
                if position and isinstance(found, Notice):
                    try:
                        await self._port.flushed(position)
                    except BaseException:
                        self._port.return_notice(self._state, found)
                        raise
                return found  # type: ignore[return-value]
            try:
                await found.wait_until(self._port.clock, deadline)
            finally:
                self._port.forget_signal(self._state, found)

    async def __aiter__(self) -> AsyncIterator[Notice]:
        while (notice := await self.get()) is not None:
            yield notice

    async def _call(self, callback: Callable[[Notice], object]) -> None:
        try:
            while True:
                try:
                    notice = await self.get()
                except DiskFull:  # The notice comes again.
                    await asyncio.sleep(FULL_DISK_SECONDS)
                    continue
                if notice is None:
                    return
                answer = callback(notice)
                if asyncio.iscoroutine(answer):
                    await answer
        except Exception as error:
            blocking.logger.exception(
                "a subscription's callback raised; the subscription is closed"
            )
            self._port.end_subscription(self._state, error)
        except BaseException as error:
            ended = ListenerFailed(repr(error))
            self._port.end_subscription(self._state, ended)
            raise

    @property
    def lease(self) -> AsyncLease:
        """Its lease; the subscription ends with it."""
        return AsyncLease(self._port, self._state)

    async def close(self) -> None:
        """End the subscription; notices in the backlog can still be read."""
        self._port.end_subscription(self._state)


class MatchSet(AsyncClosing, blocking.MatchSetHandle, Generic[T_co]):
    """The matches in order of arrival: `async for`, or `await next()` until it returns None. See
    `tupelo.MatchSet`."""

    async def next(self) -> T_co | None:
        """The next entry, or None at the end."""
        entry, position = self._port.next_match(self._state)
        if entry is None:
            return None
        if position:
            await self._port.flushed(position)
        value: T_co = value_of(entry)
        return value

    @property
    def lease(self) -> AsyncLease:
        """Its lease; the match set ends with it."""
        return AsyncLease(self._port, self._state)

    async def close(self) -> None:
        """End the match set."""
        self._port.end_match_set(self._state)

    def __repr__(self) -> str:
        return f"<aio.MatchSet of {self._port.name!r}, {self._state.reason or 'valid'}>"

    async def __aiter__(self) -> AsyncIterator[T_co]:
        while (entry := await self.next()) is not None:
            yield entry
