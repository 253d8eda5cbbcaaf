"""What a space of a host hands out: sessions, subscriptions and match sets that span every engaged
host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self

from tupelo.errors import LeaseLost, TupeloError, UnknownType
from tupelo.federation.spanning.leases import SpanningLease
from tupelo.federation.spanning.records import SeenRecord
from tupelo.federation.spanning.subscription import FederatedSubscription
from tupelo.space.dual_api import Closing, await_at_once, dual_api, maybe_await
from tupelo.space.log import Actor
from tupelo.space.matchset import Skipped
from tupelo.space.port import value_of
from tupelo.space.protocol import SessionLike
from tupelo.space.query import check_limit, check_wait
from tupelo.space.session import SessionState
from tupelo.values.change import Notice
from tupelo.values.entry import Entry, require_known
from tupelo.values.lease import AsyncLease, Lease, check_lease
from tupelo.values.scope import Coverage, Scope, check_coverage, check_scope

if TYPE_CHECKING:
    from tupelo.federation.spanning.space import FederatedSpace

logger = logging.getLogger("tupelo")

SESSION_OVER = "this session is over: it was closed or its lease ran out"


class _FederatedHandle(Closing):
    """Something that a program holds, at either door, until it is closed or its lease ends."""

    is_async: bool
    _leased: SpanningLease

    @property
    def lease(self) -> Any:
        kind = AsyncLease if self.is_async else Lease
        return kind(self._leased, self._leased)

    def __await__(self) -> Generator[Any, None, Self]:
        return await_at_once(self)


class FederatedSession(_FederatedHandle, SessionLike):
    """Reads that never give the same entry twice, over all hosts and through their coming and
    going. `clone` makes another that has seen the same. Tasks, or threads, may share it."""

    def __init__(self, space: FederatedSpace, record: SeenRecord, lease: float | None) -> None:
        self.is_async = space.is_async
        self._space = space
        self._record = record
        core = space._core
        self._actor = Actor(core.id, core.new_id())
        self._state = SessionState(self._actor.session or "", record, None)
        space._port.remember(record)
        self._leased = SpanningLease(space._port, "session", lease, self._end)
        space._given.add(self)

    @dual_api
    async def _read(
        self,
        template: object,
        wait: float | None,
        many: bool,
        limit: int | None,
        scope: Scope | None,
        coverage: Coverage | None,
    ) -> Any:
        check_scope(scope)
        check_coverage(coverage)
        check_limit(limit)
        self._space._require_open()
        if self._leased.ended:
            raise LeaseLost(SESSION_OVER)
        query = self._space._query(
            template,
            False,
            wait,
            None,
            scope,
            many=many,
            limit=limit,
            session=self._state,
            actor=self._actor,
        )
        found = await self._space._anywhere(query, coverage)
        return found if many else found[0] if found else None

    def clone(self, *, lease: float | None = None) -> FederatedSession:
        """Another session that has seen the same."""
        self._space._require_open()
        if self._leased.ended:
            raise LeaseLost(SESSION_OVER)
        with self._space._port.atomic():
            return FederatedSession(self._space, self._record.copy(), check_lease(lease))

    @property
    def seen(self) -> int:
        """How many entries it remembers."""
        return len(self._record)

    @dual_api
    async def close(self) -> None:
        """Nothing need be remembered any more, here or elsewhere."""
        self._leased.end()
        self._state.ended = True
        self._space._port.forget(self._record)

        async def end() -> None:
            self._end_readers()

        with suppress(TupeloError):
            await self._space._host.on_loop(end())

    def _end(self) -> None:
        """Its lease has ended."""
        self._state.ended = True
        self._space._port.forget(self._record)
        with suppress(RuntimeError):  # The loop is closed.
            self._space._host.soon(self._end_readers)

    def _end_readers(self) -> None:
        self._record.close()
        for reader in list(self._record.readers):
            reader.stop(LeaseLost(SESSION_OVER))


class FederatedNotices(_FederatedHandle):
    """Notices from anywhere. Iterate over it (`async for` at the async door), or `get` them."""

    def __init__(
        self,
        space: FederatedSpace,
        subscription: FederatedSubscription,
        callback: Callable[[Notice], object] | None,
        lease: float | None,
    ) -> None:
        self.is_async = space.is_async
        self._space = space
        self._subscription = subscription
        self._error: Exception | None = None
        self._leased = SpanningLease(space._port, "subscription", lease, self._end)
        space._given.add(self)
        if callback is not None:
            space._host.run_apart(partial(self._call, callback))

    async def _call(self, callback: Callable[[Notice], object]) -> None:
        try:
            while (notice := await maybe_await(self.get())) is not None:
                answer = callback(notice)
                if self.is_async and isawaitable(answer):
                    await answer
        except Exception as error:
            self._error = error
            logger.exception("a subscription's callback raised; the subscription is closed")
            await maybe_await(self.close())
        except BaseException:  # It has ended its thread, or its task.
            self._leased.end()
            self._end()
            raise

    @dual_api
    async def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None if none came in time, or if there will be no more."""
        check_wait(wait)
        self._space._port.refuse_inside()
        notice: Notice | None = await self._space._host.on_loop(self._subscription.get(wait))
        return notice

    @property
    def active(self) -> bool:
        return not (self._subscription.ended or self._leased.ended)

    @property
    def error(self) -> Exception | None:
        """Why it ended, if its callback raised."""
        return self._error

    @property
    def sequence(self) -> int:
        return self._subscription.sequence

    @property
    def event_id(self) -> int:
        return self._subscription.event_id

    @dual_api
    async def close(self) -> None:
        self._leased.end()

        with suppress(TupeloError):
            self._subscription.stop()
            await self._space._host.on_loop(self._subscription.finish())

    def _end(self) -> None:
        """Its lease has ended."""
        with suppress(TupeloError):
            self._subscription.stop()
        with suppress(RuntimeError):  # The loop is closed.
            self._space._host.soon(self._finish)

    def _finish(self) -> None:
        self._finishing = asyncio.ensure_future(self._subscription.finish())

    def __iter__(self) -> Iterator[Notice]:
        while (notice := self.get()) is not None:
            yield notice

    async def __aiter__(self) -> AsyncIterator[Notice]:
        while (notice := await self.get()) is not None:
            yield notice

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._subscription.stands().__await__()
        return self

    async def __aenter__(self) -> Self:
        await self._subscription.stands()
        return self


class FederatedMatchSet(Closing):
    """What matched at this host, which is watched, and copies of what matched at others."""

    def __init__(
        self, space: FederatedSpace, here: Any, elsewhere: list[Entry], limit: int | None
    ) -> None:
        self.is_async = space.is_async
        self._here = here
        self._elsewhere = elsewhere
        self._left = limit
        self._skipped: list[Skipped] = []

    @dual_api
    async def next(self) -> Any:
        """The next entry, or None at the end."""
        if self._left == 0:
            return None
        value = await maybe_await(self._here.next())
        while value is None and self._elsewhere:
            entry = self._elsewhere.pop(0)
            try:
                require_known(entry)
                value = value_of(entry)
            except UnknownType as error:
                self._skipped.append(Skipped((entry.origin, entry.n), str(error)))
        if value is not None and self._left is not None:
            self._left -= 1
        return value

    @property
    def lease(self) -> Lease | AsyncLease:
        granted: Lease | AsyncLease = self._here.lease
        return granted

    @property
    def skipped(self) -> list[Skipped]:
        """What was left out so far, and why."""
        return [*self._here.skipped, *self._skipped]

    def close(self) -> Any:
        self._elsewhere.clear()
        return self._here.close()

    def __iter__(self) -> Iterator[Any]:
        while (entry := self.next()) is not None:
            yield entry

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (entry := await self.next()) is not None:
            yield entry
