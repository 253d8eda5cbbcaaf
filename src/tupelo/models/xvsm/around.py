"""Around the work: aspects before and after an operation, in a transaction of its own."""

from __future__ import annotations

import math
import random as chance
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

from tupelo.errors import BadArgument, PutOff, SpaceClosed
from tupelo.models.xvsm.aspects import (
    GLOBAL_POINTS,
    LOCAL_POINTS,
    RESCHEDULE,
    SKIP,
    Interceptors,
    Point,
    Registration,
    Request,
    meet,
)
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.embedded import Embedded, gone
from tupelo.models.xvsm.transactions import at_end, check_transaction
from tupelo.space.checks import check_wait
from tupelo.space.clock import Clock
from tupelo.space.shared import SharedTransaction

INFINITE = math.inf
"""The size of a container without bounds."""

Work = Callable[[Request], Awaitable[Any]]


class Around:
    """A door to an embedded space; what all its operations go through."""

    is_async: ClassVar[bool]
    embedded: Embedded

    def __init__(
        self,
        path: str | Path | Around | Embedded | None = None,
        *,
        clock: Clock | None = None,
        random: chance.Random | None = None,
    ) -> None:
        """An embedded space, in memory or in the folder `path`; or another door to that of
        another Capi, with an aspect context of its own."""
        if isinstance(path, (Around, Embedded)):
            if clock is not None or random is not None:
                raise BadArgument("path", "a folder, if options are given too", path)
            self.embedded = path if isinstance(path, Embedded) else path.embedded
        else:
            self.embedded = Embedded(path, clock, random)
        self._context: dict[str, Any] = {}

    # Aspects

    def get_aspect_context(self) -> dict[str, Any]:
        """What aspects are told of the one who uses this Capi: a copy."""
        return dict(self._context)

    def set_aspect_context(self, properties: dict[str, Any]) -> None:
        """Tell aspects something, such as who you are."""
        if not isinstance(properties, dict):
            raise BadArgument("properties", "a dict", properties)
        self._context = dict(properties)

    async def _operate(
        self,
        operation: str,
        work: Work,
        cref: Container,
        timeout: float | None,
        tx: SharedTransaction | None,
        **arguments: Any,
    ) -> Any:
        container = self.embedded.require(cref)
        request = Request(
            operation,
            self,
            container=container,
            timeout=seconds(timeout),
            transaction=check_transaction(tx),
            **arguments,
        )
        try:
            return await self._around(request, work)
        except SpaceClosed as error:
            raise gone(container, error) from None

    async def _around(self, request: Request, work: Work, bare: bool = False) -> Any:
        """Do the work with the aspects around it, in a transaction of its own; a `bare` one is
        about a transaction itself."""
        before, after = self._aspects_for(request)
        if not before and not after:
            answer = await work(request)
            self._told(request)
            return answer
        clock = self.embedded.clock
        until = None if request.timeout is None else clock.now() + request.timeout
        while True:
            container = request.container
            count = 0 if container is None else container.news.count
            attempt = _copy(request)
            if until is not None:
                attempt.timeout = max(0.0, until - clock.now())
            if not bare:
                attempt.transaction = self.embedded.begin(None, request.transaction)
            try:
                put_off = await self._attempt(attempt, work, before, after)
            except BaseException:
                if not bare:
                    await self._end(attempt.transaction, commit=False)
                raise
            if not put_off:
                if not bare:
                    await self._end(attempt.transaction, commit=True)
                self._told(request)
                return attempt.result
            if not bare:
                await self._end(attempt.transaction, commit=False)
            left = None if until is None else max(0.0, until - clock.now())
            if container is None or not await container.news.after(count, left, self.is_async):
                raise PutOff(f"an aspect put the {request.operation} off, and its time is up")
            before, after = self._aspects_for(request)

    async def _attempt(
        self, request: Request, work: Work, before: list[Registration], after: list[Registration]
    ) -> bool:
        """One try; True if an aspect puts it off."""
        verdict = await meet(Point(f"pre_{request.operation}"), before, request)
        if verdict is RESCHEDULE:
            return True
        if verdict is SKIP:
            return False
        request.result = await work(request)
        return await meet(Point(f"post_{request.operation}"), after, request) is RESCHEDULE

    def _aspects_for(self, request: Request) -> tuple[list[Registration], list[Registration]]:
        pre, post = Point(f"pre_{request.operation}"), Point(f"post_{request.operation}")
        everywhere = self.embedded.aspects
        if request.container is None or pre not in LOCAL_POINTS:
            return everywhere.at(pre), everywhere.at(post)
        here = request.container.aspects
        return everywhere.at(pre) + here.at(pre), here.at(post) + everywhere.at(post)

    def _told(self, request: Request) -> None:
        """Something was done at the container: now, and for others when the transaction ends."""
        container = request.container
        if container is not None and not container.quick:
            container.news.tell()
            if request.transaction is not None and not request.transaction.ended:
                news = container.news
                at_end(request.transaction, lambda committed: news.tell())

    async def _end(self, txn: SharedTransaction | None, commit: bool) -> None:
        assert txn is not None
        if self.is_async:
            await (txn.commit_async() if commit else txn.abort_async())
        elif commit:
            SharedTransaction.commit(txn)  # not one of an async door's, which would be awaited
        else:
            SharedTransaction.abort(txn)

    # Odds and ends

    @property
    def _registry(self) -> Any:
        return self.embedded.registry_aio if self.is_async else self.embedded.registry

    def _space(self, container: Container) -> Any:
        return container.aio if self.is_async else container.space

    def _where(self, cref_or_site: Any) -> tuple[Interceptors, tuple[Point, ...]]:
        if isinstance(cref_or_site, Container):
            return self.embedded.require(cref_or_site).aspects, LOCAL_POINTS
        require_here(cref_or_site)
        return self.embedded.aspects, LOCAL_POINTS + GLOBAL_POINTS


def container_of(request: Request) -> Container:
    assert request.container is not None
    return request.container


def _copy(request: Request) -> Request:
    """A request for one try: what aspects change in it is not there in the next."""
    twin = Request(request.operation, request.capi)
    for name in Request.__slots__:
        value = getattr(request, name)
        setattr(twin, name, value.copy() if isinstance(value, (list, dict)) else value)
    return twin


def require_here(site: object) -> None:
    if site is not None:
        raise BadArgument("site", "None, for this program's own space: hosts come later", site)


def seconds(timeout: Any) -> float | None:
    if timeout is None or timeout == INFINITE:
        return None
    check_wait(timeout)
    return float(timeout)
