"""The pipeline of an operation: aspects before and after it, in a transaction of its own."""

from __future__ import annotations

import math
import random as chance
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from tupelo.errors import AspectFailed, BadArgument, PutOff, SpaceClosed
from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.trust import Trust
from tupelo.models.xvsm.aspects import (
    GLOBAL_POINTS,
    LOCAL_POINTS,
    OK,
    RESCHEDULE,
    Interceptors,
    Point,
    Registration,
    Request,
    Verdict,
    call_aspects,
)
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.embedded import Embedded, error_of_closed
from tupelo.models.xvsm.site import RemoteContainer, RemoteTransaction, Site, Sites
from tupelo.space.clock import Clock
from tupelo.space.protocol import SubscriptionLike
from tupelo.space.query import WAIT_MAX
from tupelo.space.shared import SharedTransaction
from tupelo.space.tasks import to_the_end
from tupelo.values.checks import is_number

INFINITE = math.inf
"""The size of an unbounded container."""

T = TypeVar("T")
Work = Callable[[Request], Awaitable[T]]
Cref = Container | RemoteContainer | str
"""A container: a reference to it, or the URI of one elsewhere."""
Tx = SharedTransaction | RemoteTransaction


class AspectPipeline:
    """Base class of Capi and AsyncCapi: runs operations with the aspects around them."""

    is_async: ClassVar[bool]
    embedded: Embedded

    def __init__(
        self,
        path: str | Path | AspectPipeline | Embedded | None = None,
        *,
        clock: Clock | None = None,
        random: chance.Random | None = None,
        site: str | None = None,
        password: str | None = None,
        identity: Identity | None = None,
        trust: Trust | None = None,
        tls: bool | None = None,
        reconnect: float = 30.0,
    ) -> None:
        """An embedded space, in memory or in the folder `path`, which no other program may use. If
        `path` is a Capi: the same space, with an aspect context of its own.

        With a `site`, such as "xvsm://host:7700", operations without a site go there, and not to an
        embedded space. The other options are those of `tupelo.connect`, for every site that this
        Capi uses; the password is for this `site` only.
        """
        if site is not None and not (path is None and clock is None and random is None):
            raise BadArgument("site", "left out, if there is an embedded space", site)
        connecting = {"identity": identity, "trust": trust, "tls": tls, "reconnect": reconnect}
        self.sites = Sites(self.is_async, site, {**connecting, "password": password})
        if isinstance(path, (AspectPipeline, Embedded)):
            if clock is not None or random is not None:
                raise BadArgument("path", "a folder, if options are given too", path)
            self.embedded = path if isinstance(path, Embedded) else path.embedded
        else:
            self.embedded = Embedded(path, clock, random)
        self._context: dict[str, Any] = {}

    # Aspects

    def get_aspect_context(self) -> dict[str, Any]:
        """A copy of the properties that this Capi passes to aspects with each request."""
        return dict(self._context)

    def set_aspect_context(self, properties: dict[str, Any]) -> None:
        """Set the properties that are passed to aspects, such as the name of the user."""
        if not isinstance(properties, dict):
            raise BadArgument("properties", "a dict", properties)
        self._context = dict(properties)

    async def _operate(
        self,
        operation: str,
        work: Work[T],
        cref: Cref,
        timeout: float | None,
        tx: Tx | None,
        **arguments: Any,
    ) -> T:
        if isinstance(cref, (RemoteContainer, str)):
            remote, there = await self._elsewhere(cref)
            values = arguments.pop("values", {})
            (asked,) = arguments.values()
            place = (remote, seconds(timeout), tx)
            answer: T = await there.operate(
                operation, self._context, *place, asked, *values.values()
            )
            return answer
        container, txn = self.embedded.require(cref), check_transaction(tx)
        self.embedded.require_exists(container, txn)
        request = Request(
            operation,
            cast(Any, self),
            container=container,
            timeout=seconds(timeout),
            transaction=txn,
            **arguments,
        )
        try:
            return await self._around(request, work)
        except SpaceClosed as error:
            raise error_of_closed(container, error) from None

    async def _around(
        self, request: Request, work: Work[T], *, bare: bool = False, last: Work[T] | None = None
    ) -> T:
        """Do the work with the aspects around it, in a transaction of its own, unless it is `bare`:
        an operation on a transaction itself. `last` is called after the commit, and cannot be
        undone."""
        before, after = self._aspects_for(request)
        if not before and not after:
            answer = await (last or work)(request)
            self._wake_rescheduled(request)
            return answer
        clock, container = self.embedded.clock, request.container
        until = None if request.timeout is None else clock.now() + request.timeout
        watch: SubscriptionLike | None = None
        try:
            while True:
                count = 0 if container is None else container.changes.count
                attempt = request.copy()
                if until is not None:
                    attempt.timeout = max(0.0, until - clock.now())
                txn = None if bare else self.embedded.begin(None, request.transaction)
                if txn is not None:
                    attempt.transaction = txn
                    attempt.is_alone = request.transaction is None
                try:
                    verdict = await self._attempt(attempt, work, before, [] if last else after)
                except BaseException:
                    await self._end(txn, commit=False)
                    raise
                await self._end(txn, commit=verdict is not RESCHEDULE)
                if verdict is not RESCHEDULE:
                    if last is not None and verdict is OK:
                        attempt.transaction = None
                        attempt.result = await last(attempt)
                        await call_aspects(Point(f"post_{request.operation}"), after, attempt)
                    self._wake_rescheduled(request)
                    result: T = attempt.result
                    return result
                left = None if until is None else max(0.0, until - clock.now())
                if container is not None and watch is None:
                    # Something may have changed before the wait began: try once more.
                    watch = container.changes.watch(container.space)
                elif container is None or not await container.changes.after(
                    count, left, self.is_async
                ):
                    raise PutOff(f"an aspect put the {request.operation} off, and its time is up")
                before, after = self._aspects_for(request)
        finally:
            if watch is not None:
                watch.close()

    async def _attempt(
        self,
        request: Request,
        work: Work[Any],
        before: list[Registration],
        after: list[Registration],
    ) -> Verdict:
        """One attempt. Returns OK, SKIP if an aspect skipped the operation, or RESCHEDULE."""
        txn, container = request.transaction, request.container
        verdict = await call_aspects(Point(f"pre_{request.operation}"), before, request)
        if request.transaction is not txn:
            raise AspectFailed(
                f"an aspect before the {request.operation} has changed request.transaction, which "
                "it may only use; the operation was undone"
            )
        if verdict is not OK:
            return verdict
        if request.container is not container:
            self.embedded.require(request.container)
        for name in ("entries", "selectors"):
            if not isinstance(getattr(request, name), (list, tuple)):
                raise BadArgument(name, "a list", getattr(request, name))
        request.timeout = seconds(request.timeout)
        request.result = await work(request)
        verdict = await call_aspects(Point(f"post_{request.operation}"), after, request)
        return RESCHEDULE if verdict is RESCHEDULE else OK

    def _aspects_for(self, request: Request) -> tuple[list[Registration], list[Registration]]:
        pre, post = Point(f"pre_{request.operation}"), Point(f"post_{request.operation}")
        everywhere = self.embedded.aspects
        if request.container is None or pre not in LOCAL_POINTS:
            return everywhere.at(pre), everywhere.at(post)
        here = request.container.aspects
        return everywhere.at(pre) + here.at(pre), here.at(post) + everywhere.at(post)

    def _wake_rescheduled(self, request: Request) -> None:
        """Wake rescheduled operations: now, and again when the transaction ends."""
        container = request.container
        if container is not None and not container.fast_owner:
            container.changes.tell()
            if request.transaction is not None:
                changes = container.changes
                request.transaction.at_end(lambda committed: changes.tell())

    async def _end(self, txn: SharedTransaction | None, commit: bool) -> None:
        """End the transaction. A commit cannot be interrupted: a caller that is cancelled meanwhile
        still gets the result, or taken entries would be lost."""
        if txn is None:
            return
        if self.is_async:
            await to_the_end(txn.commit_async() if commit else txn.abort_async())
        elif commit:
            # Not the method of an async transaction, which would be awaited.
            SharedTransaction.commit(txn)
        else:
            SharedTransaction.abort(txn)

    # Helpers

    @property
    def _registry(self) -> Any:
        return self.embedded.registry_aio if self.is_async else self.embedded.registry

    def _space(self, container: Container) -> Any:
        return container.aio if self.is_async else container.space

    def _where(self, cref: Container | None) -> tuple[Interceptors, tuple[Point, ...]]:
        if cref is not None:
            return self.embedded.require(cref).aspects, LOCAL_POINTS
        return self.embedded.aspects, LOCAL_POINTS + GLOBAL_POINTS

    # Sites elsewhere

    async def _at(self, site: str | None) -> Site | None:
        """The site for the argument `site`; None for the embedded space."""
        address = self.sites.address_of(site)
        return None if address is None else await self.sites.at(address)

    async def _elsewhere(self, cref: RemoteContainer | str) -> tuple[RemoteContainer, Site]:
        """A container elsewhere, given as reference or URI, and its site."""
        if isinstance(cref, str):
            cref = RemoteContainer.at(cref)
        return cref, await self.sites.at(cref.address)


def check_transaction(tx: object) -> SharedTransaction | None:
    """The checked argument `tx`, for a transaction of the embedded space."""
    if tx is not None and not isinstance(tx, SharedTransaction):
        raise BadArgument("tx", "a transaction of create_transaction, or None", tx)
    return tx


def container_of(request: Request) -> Container:
    """The container of a request that has one."""
    if request.container is None:
        raise BadArgument("container", "a container of this space", None)
    return request.container


def seconds(timeout: Any) -> float | None:
    """The checked timeout: None for INFINITE."""
    if timeout is None or timeout == INFINITE:
        return None
    if not is_number(timeout) or not 0 <= timeout <= WAIT_MAX:
        raise BadArgument(
            "timeout", f"seconds from 0 to {WAIT_MAX:.0e}, or INFINITE_TIMEOUT for ever", timeout
        )
    return float(timeout)
