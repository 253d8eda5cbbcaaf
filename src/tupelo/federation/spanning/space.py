"""`host.space()`: a space of a host that spans all engaged hosts with a space of that name. One
implementation serves the blocking and the async API.

Writes stay at this host. Reads and takes look at this host first, then at the other hosts in their
`scope`; if they wait, they also see later writes at other hosts, and hosts that engage later.
Operations within a transaction look at this host only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from tupelo.errors import BadArgument, HostClosed, SpaceClosed, TupeloError
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spanning.federated import adopt
from tupelo.federation.spanning.handles import (
    FederatedMatchSet,
    FederatedNotices,
    FederatedSession,
    FederatedSubscription,
)
from tupelo.federation.spanning.question import FederatedResult
from tupelo.federation.spanning.records import SeenRecord
from tupelo.space import asynchronous, blocking
from tupelo.space.dual_api import Closing, dual_api, maybe_await
from tupelo.space.fetching import FetchingReaction
from tupelo.space.log import Actor
from tupelo.space.order import Order
from tupelo.space.port import Transactional, TransactionHandle, value_of
from tupelo.space.protocol import (
    AsyncSpaceLike,
    SpaceLike,
    names_of,
    takes_longer,
    takes_longer_to_write,
)
from tupelo.space.query import Query, check_count, check_limit, check_order, check_wait, deadline_of
from tupelo.space.reaction import WeakFunction
from tupelo.space.session import SessionState
from tupelo.values.change import Notice
from tupelo.values.entry import About, Entry, check_about, note_about, require_known
from tupelo.values.lease import Lease, check_lease
from tupelo.values.scope import Coverage, Scope, check_coverage, check_scope

if TYPE_CHECKING:
    from tupelo.federation.spanning.peers import OnLoop, SpanningHost

T = TypeVar("T")


class FederatedSpaceLike(SpaceLike, Protocol):
    """A space of a host, blocking: the result of `Host.space`."""

    @property
    def here(self) -> blocking.Space: ...


class AsyncFederatedSpaceLike(AsyncSpaceLike, Protocol):
    """A space of a host, for coroutines: the result of `aio.Host.space`."""

    @property
    def here(self) -> asynchronous.Space: ...


def _at_this_host(name: str) -> Any:
    """An operation that only looks at this host."""

    @wraps(getattr(SpaceLike, name))
    def call(self: FederatedSpace, *args: Any, **options: Any) -> Any:
        self._require_open()
        return getattr(self._local, name)(*args, **options)

    return call


class FederatedSpace(Closing, SpaceLike):
    """One space of a host, together with those of the same name at all engaged hosts."""

    _get_fast = staticmethod(takes_longer)
    _write_fast = staticmethod(takes_longer_to_write)

    def __init__(self, host: OnLoop, hosted: HostedSpace, is_async: bool) -> None:
        self.is_async = is_async
        self._host = host
        self._core = host.core
        self._hosted = hosted
        self._port = hosted.port
        self._local: Any = hosted.door if is_async else hosted.space
        self._federation = host.core.federation
        self._calls: set[asyncio.Task[Any]] = set()  # waiting, on the host's loop
        self._handles: WeakSet[Any] = WeakSet()  # sessions and subscriptions
        self._txns: WeakSet[TransactionHandle] = WeakSet()
        self._closed = False

    @property
    def name(self) -> str:
        """The name of the space."""
        return self._hosted.name

    @property
    def host_core(self) -> SpanningHost:
        """The host, as the decider of transactions."""
        return self._core

    # Writing

    @dual_api
    async def _write(self, entry: object, *how: Any) -> Any:
        """The entry stays at this host. With `to` it moves to the host of that agent once it is
        engaged; until then it is here, misplaced."""
        return await self._write_here("write", entry, *how)

    @dual_api
    async def _write_all(self, entries: Iterable[object], *how: Any) -> Any:
        return await self._write_here("write_all", entries, *how)

    async def _write_here(
        self,
        verb: str,
        what: object,
        lease: Any,
        txn: Transactional | None,
        at: Any,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> Any:
        self._require_open()
        options = {"lease": lease, "txn": txn, "at": at, "wait": wait, "to": to, "delay": delay}
        if wait == 0:
            leases = await maybe_await(getattr(self._local, verb)(what, **options))
        else:  # On the host's loop, so that closing this space ends the wait.
            write = getattr(self._hosted.door, verb)
            leases = await self._host.on_loop(self._until_closed(write, what, **options))
            if not self.is_async:
                if isinstance(leases, list):
                    leases = [Lease(one.landlord, one.thing) for one in leases]
                else:
                    leases = Lease(leases.landlord, leases.thing)
        if to is not None:
            self._host.soon(self._core.mover.move_soon)
        return leases

    async def _until_closed(
        self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any, **how: Any
    ) -> T:
        """On the host's loop: run `work`; SpaceClosed if this space is closed meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await work(*args, **how)
        except asyncio.CancelledError:
            if self._closed:
                task.uncancel()
            self._require_open()
            raise
        finally:
            self._calls.discard(task)

    # Reading and taking

    @dual_api
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
    ) -> Any:
        self._require_open()
        check_about(about)
        check_wait(wait)
        check_coverage(coverage)
        check_scope(scope)
        check_limit(limit)
        if txn is not None and scope is not None and not self._is_here(scope):
            raise BadArgument("scope", "left out or HERE, within a transaction", scope)
        verb = getattr(self._local, ("take" if take else "read") + ("_all" if many else ""))
        most = {"limit": limit} if many else {}
        alone = scope is None and wait == 0 and not self._spans()
        if txn is not None or if_exists or alone or self._is_here(scope):
            self._covers_here(coverage)
            how = {"wait": wait, "txn": txn, "order": order, "if_exists": if_exists, **most}
            return await maybe_await(verb(template, **how, about=about))
        if scope is None and not many:  # A match here needs no work on the host's loop.
            value = await maybe_await(verb(template, wait=0, order=order, about=about))
            if value is not None:
                self._covers_here(coverage)
                return value
        query = self._query(template, take, wait, order, scope, many=many, limit=limit)
        values = await self._anywhere(query, coverage, about)
        return values if many else values[0] if values else None

    def _query(
        self,
        template: object,
        take: bool,
        wait: float | None,
        order: Order | None,
        scope: Scope | None,
        *,
        many: bool = False,
        limit: int | None = 1,
        session: SessionState | None = None,
        actor: Actor | None = None,
    ) -> Query:
        """The query for all hosts in the scope."""
        if order is not None:
            check_order(order)
        return Query(
            template,
            take,
            deadline_of(self._hosted.clock, wait),
            many,
            limit,
            order,
            session=session,
            scope=scope,
            actor=actor,
        )

    async def _anywhere(
        self, query: Query, coverage: Coverage | None, about: list[About] | None = None
    ) -> list[Any]:
        """Run a query over all hosts, on the host's loop, and return the values."""

        async def get() -> FederatedResult:
            taken = await self._until_closed(
                self._federation.get, self._hosted, query, partial=coverage is not None
            )
            if coverage is not None:
                coverage.fill(taken.covered, taken.missing)
            try:
                for entry in taken.entries:
                    require_known(entry)
            except TupeloError:
                taken.give_back()
                raise
            await self._federation.hand(taken)
            return taken

        def undo(taken: FederatedResult) -> None:
            if query.take:
                taken.undo(adopt)
            elif query.session is not None and isinstance(query.session.seen, SeenRecord):
                with self._port.atomic():
                    query.session.seen.discard_all(taken.entries)

        taken: FederatedResult = await self._host.on_loop(get(), undo)
        if query.take:
            self._host.soon(taken.received)  # A closed host has confirmed it before.
        note_about(taken.entries, about)
        return [value_of(entry) for entry in taken.entries]

    @dual_api
    async def _count(
        self,
        template: object,
        txn: Transactional | None,
        scope: Scope | None,
        coverage: Coverage | None,
    ) -> int:
        self._require_open()
        check_coverage(coverage)
        check_scope(scope)
        if txn is not None or self._is_here(scope) or (scope is None and not self._spans()):
            self._covers_here(coverage)
            return self._port.count(template, txn)
        taken = FederatedResult(self._hosted) if coverage is not None else None
        number: int = await self._host.on_loop(
            self._federation.count(self._hosted, template, scope, taken)
        )
        if coverage is not None and taken is not None:
            coverage.fill(taken.covered, taken.missing)
        return number

    @dual_api
    async def _match_set(
        self,
        template: object,
        limit: int | None,
        txn: Transactional | None,
        lease: float | None,
    ) -> Any:
        self._require_open()
        here = await maybe_await(self._local.match_set(template, limit=limit, txn=txn, lease=lease))
        if txn is not None or not self._spans():
            return here
        others = [
            entry
            for entry in await self._matches(template, limit=limit)
            if not self._port.has(entry)
        ]
        return FederatedMatchSet(self, here, others, limit)

    async def _matches(
        self, template: object, scope: Scope | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The present matches at the hosts that answer."""
        query = self._query(template, False, 0, None, scope, many=True, limit=limit)

        async def get() -> list[Entry]:
            return (await self._federation.get(self._hosted, query, partial=True)).entries

        return await self._host.on_loop(get())

    def _is_here(self, scope: Scope | None) -> bool:
        return scope is not None and not self._core.spans(self._hosted, scope)

    def _spans(self) -> bool:
        return self._core.spans(self._hosted, None)

    def _covers_here(self, coverage: Coverage | None) -> None:
        if coverage is not None:
            check_coverage(coverage)
            coverage.fill([self._core.name])

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Any:
        self._require_open()
        begun = self._local.transaction(lease=lease)
        self._txns.add(begun)
        return begun

    in_doubt, in_hand, delayed = map(_at_this_host, ("in_doubt", "in_hand", "delayed"))
    changes, trim, compact = map(_at_this_host, ("changes", "trim", "compact"))

    def session(self, *, lease: float | None = None) -> FederatedSession:
        self._require_open()
        return FederatedSession(self, SeenRecord(), check_lease(lease))

    # Subscriptions, reactions

    def _subscribe(
        self,
        template: object,
        callback: Callable[[Notice], object] | None,
        lease: float | None,
        txn: Transactional | None,
        handback: Any,
        backlog_max: int,
        available: bool,
        returned: bool,
        removed: bool,
        scope: Scope | None,
    ) -> Any:
        self._require_open()
        if txn is not None or self._is_here(check_scope(scope)):
            return self._local.subscribe(
                template,
                callback,
                lease=lease,
                txn=txn,
                handback=handback,
                backlog_max=backlog_max,
                available=available,
                returned=returned,
                removed=removed,
            )
        if removed:
            raise BadArgument("removed", "left out, or given with scope=HERE", removed)
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function of a notice", callback)
        check_count(backlog_max, "backlog_max")
        seconds = check_lease(lease)
        subscription = self._subscribed(
            template,
            scope,
            handback=handback,
            backlog_max=backlog_max,
            available=bool(available),
            returned=bool(returned),
        )
        return FederatedNotices(self, subscription, callback, seconds)

    def _subscribed(
        self, template: object, scope: Scope | None, **how: Any
    ) -> FederatedSubscription:
        check_scope(scope)
        here, wanted, _ = self._federation.resolve_scope(scope)

        async def make() -> FederatedSubscription:
            return FederatedSubscription(
                self._federation, self._hosted, template, here=here, wanted=wanted, **how
            )

        subscription: FederatedSubscription = self._host.now(make())
        if not self.is_async:
            self._host.now(subscription.stands())
        return subscription

    @dual_api
    async def _react(
        self,
        template: object,
        function: WeakFunction,
        once: bool,
        existing: bool,
        scope: Scope | None,
    ) -> Any:
        self._require_open()
        if self._is_here(check_scope(scope)):
            here = self._local.react(template, function, once=once, existing=existing)
            return await maybe_await(here)
        if not callable(function):
            raise BadArgument("function", "a function of an entry and a step", function)
        subscription = self._subscribed(template, scope, existing=existing, backlog_max=1_000_000)
        reaction = FetchingReaction(
            self,
            f"the host {self._core.name!r}",
            FederatedNotices(self, subscription, None, None),
            lambda: self._matches(template, scope),
            function,
            bool(once),
        )
        self._host.run_apart(lambda: reaction.run([]))
        return reaction

    # This host

    @property
    def here(self) -> Any:
        """The part of the space at this host, as a local space: there, reactions run inside the
        step, and no operation looks at other hosts."""
        return self._local

    @dual_api
    async def close(self) -> None:
        """Close this handle of the space: waiting calls get SpaceClosed, and its transactions,
        sessions and subscriptions end. The host keeps the space."""

        async def end() -> None:
            for task in list(self._calls):
                task.cancel()

        self._port.refuse_inside()
        if self._closed:
            return
        self._closed = True
        with suppress(HostClosed):
            await self._host.on_loop(end())
        with suppress(SpaceClosed):
            for txn in list(self._txns):
                self._port.leave(txn)
        for handle in list(self._handles):
            await maybe_await(handle.close())

    def _require_open(self) -> None:
        self._port.refuse_inside()
        if self._closed:
            raise SpaceClosed(f"the space {self.name!r} was closed here")

    def __dir__(self) -> list[str]:
        return names_of(SpaceLike, "here", "is_async")

    def __repr__(self) -> str:
        return f"<the space {self.name!r} of the host {self._core.name!r}>"
