"""What a space of a host hands out: sessions and subscriptions that span every engaged host, and
which hosts an operation has covered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self

from tupelo.errors import BadArgument, TupeloError
from tupelo.federation.spanning.question import Taken
from tupelo.federation.spanning.records import Record
from tupelo.federation.spanning.scope import Scope, spell_scope
from tupelo.federation.spanning.subscription import FederatedSubscription
from tupelo.space.checks import check_limit, check_wait
from tupelo.space.either import Closing, either, settled
from tupelo.space.log import Actor
from tupelo.space.session import SessionState
from tupelo.values.notice import Notice
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.federation.spanning.space import FederatedSpace

logger = logging.getLogger("tupelo")


class Coverage:
    """Filled by the operation that it is given to: the names of the hosts that it `covered`, and of
    those that are `missing` because they did not answer."""

    def __init__(self) -> None:
        self.covered: list[str] = []
        self.missing: list[str] = []

    def fill(self, taken: Taken) -> None:
        self.covered = list(taken.covered)
        self.missing = list(taken.missing)


def check_coverage(coverage: object) -> None:
    if coverage is not None and not isinstance(coverage, Coverage):
        raise BadArgument("coverage", "a Coverage(), or None", coverage)


class FederatedSession(Closing):
    """Reads that never give the same entry twice, over all hosts and through their coming and
    going. `clone` makes another that has seen the same. Tasks, or threads, may share it."""

    def __init__(self, space: FederatedSpace, record: Record) -> None:
        self.is_async = space.is_async
        self._space = space
        self._record = record
        self._actor = Actor(space._core.id, space._core.new_id())
        self._state = SessionState(self._actor.session or "", record, None)
        space._operations.remember(record)

    @either
    async def read(
        self,
        template: object = ANY,
        *,
        wait: float | None = None,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
    ) -> Any:
        check_wait(wait)
        values = await self._space._anywhere(
            coverage,
            template,
            take=False,
            wait=wait,
            session=self._state,
            scope=spell_scope(scope),
            actor=self._actor,
        )
        return values[0] if values else None

    @either
    async def read_all(
        self,
        template: object = ANY,
        *,
        wait: float | None = 0,
        limit: int | None = None,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
    ) -> list[Any]:
        check_wait(wait)
        check_limit(limit)
        return await self._space._anywhere(
            coverage,
            template,
            take=False,
            wait=wait,
            many=True,
            limit=limit,
            session=self._state,
            scope=spell_scope(scope),
            actor=self._actor,
        )

    def clone(self) -> FederatedSession:
        with self._space._hosted.engine.lock:
            return FederatedSession(self._space, self._record.copy())

    @property
    def seen(self) -> int:
        """How many entries it remembers."""
        return len(self._record)

    @either
    async def close(self) -> None:
        """Nothing need be remembered any more, here or elsewhere."""
        self._state.ended = True
        self._space._operations.forget(self._record)

        async def end() -> None:
            self._record.close()

        with suppress(TupeloError):
            await self._space._host._on_loop(end())


class FederatedListening:
    """Notices from anywhere. Iterate over it (`async for` at the async door), or `get` them."""

    def __init__(
        self,
        space: FederatedSpace,
        subscription: FederatedSubscription,
        callback: Callable[[Notice], object] | None,
    ) -> None:
        self.is_async = space.is_async
        self._space = space
        self._subscription = subscription
        if callback is not None:
            space._host._start(partial(self._call, callback))

    async def _call(self, callback: Callable[[Notice], object]) -> None:
        try:
            while (notice := await settled(self.get())) is not None:
                answer = callback(notice)
                if self.is_async and isawaitable(answer):
                    await answer
        except Exception:
            logger.exception("a subscription's callback raised; the subscription is closed")
            await settled(self.close())

    @either
    async def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None if none came in time, or if there will be no more."""
        check_wait(wait)
        notice: Notice | None = await self._space._host._on_loop(self._subscription.get(wait))
        return notice

    @property
    def active(self) -> bool:
        return not self._subscription.ended

    @property
    def sequence(self) -> int:
        return self._subscription.sequence

    @property
    def event_id(self) -> int:
        return self._subscription.event_id

    @either
    async def close(self) -> None:
        async def end() -> None:
            self._subscription.end()

        with suppress(TupeloError):
            await self._space._host._on_loop(end())

    def __iter__(self) -> Any:
        while (notice := self.get()) is not None:
            yield notice

    async def __aiter__(self) -> Any:
        while (notice := await self.get()) is not None:
            yield notice

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self._subscription.stands()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
