"""The Capi: the operations of MozartSpaces, with the names and order of arguments of figure 5.1.
Each runs with its aspects before and after it, in a transaction of its own."""

from __future__ import annotations

import math
import random as chance
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

from tupelo.errors import (
    AspectFailed,
    BadArgument,
    ContainerExists,
    ContainerNotFound,
    DuplicateKey,
    EntryLocked,
    PutOff,
    SpaceClosed,
    SpaceFull,
)
from tupelo.federation.client.arguments import parts
from tupelo.federation.hosts.doors import HostDoor
from tupelo.federation.identity.access import Access
from tupelo.federation.identity.keys import Identity
from tupelo.federation.identity.trust import Trust
from tupelo.federation.spaces.hosted import Doubt
from tupelo.models.xvsm.active import active_of
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
    check_points,
)
from tupelo.models.xvsm.chain import ChainQuery
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.coordinators import Coordinator
from tupelo.models.xvsm.embedded import Embedded, error_of_closed, row_of
from tupelo.models.xvsm.notifications import Listener, ListenerQueue, Notification, check_operations
from tupelo.models.xvsm.selectors import (
    READ_COMMITTED,
    REPEATABLE_READ,
    IsolationLevel,
    Selector,
    check_isolation,
    check_tested,
)
from tupelo.models.xvsm.site import Helper, RemoteContainer, RemoteTransaction, Site, Sites
from tupelo.models.xvsm.wire import is_uri, parse_uri
from tupelo.space.blocking import fetch
from tupelo.space.clock import Clock
from tupelo.space.dual_api import Closing, dual_api, maybe_await
from tupelo.space.order import Order
from tupelo.space.port import value_of
from tupelo.space.protocol import SubscriptionLike
from tupelo.space.query import WAIT_MAX, Query
from tupelo.space.shared import SharedTransaction
from tupelo.space.tasks import to_the_end
from tupelo.values.checks import is_int, is_number
from tupelo.values.entry import Entry as CoreEntry
from tupelo.values.lease import Lease
from tupelo.values.parts import ANY

INFINITE = math.inf
"""The size of an unbounded container."""
INFINITE_TIMEOUT = INFINITE
"""A timeout: wait for ever."""
TRY_ONCE = 0
"""A timeout: do not wait."""

T = TypeVar("T")
Work = Callable[[Request], Awaitable[T]]
Cref = Container | RemoteContainer | str
"""A container: a reference to it, or the URI of one elsewhere."""
Tx = SharedTransaction | RemoteTransaction


class AnyCapi(Closing):
    """The operations of Capi and AsyncCapi."""

    is_async: ClassVar[bool]
    embedded: Embedded

    def __init__(
        self,
        path: str | Path | AnyCapi | Embedded | None = None,
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
        if isinstance(path, (AnyCapi, Embedded)):
            if clock is not None or random is not None:
                raise BadArgument("path", "a folder, if options are given too", path)
            self.embedded = path if isinstance(path, Embedded) else path.embedded
        else:
            self.embedded = Embedded(path, clock, random)
        self._context: dict[str, Any] = {}

    def __repr__(self) -> str:
        where = self.sites.address_of(None)
        return f"<{type(self).__name__} {'of this program' if where is None else f'at {where}'}>"

    # The space itself

    @dual_api
    async def close(self) -> None:
        """Shut down, as at the end of a `with` block, and disconnect from sites elsewhere."""
        await self.sites.close()
        self.embedded.close()

    @dual_api
    async def offer(
        self,
        host: HostDoor,
        *,
        access: Access | None = None,
        doubt: Doubt | None = None,
        aspects: dict[str, Any] | None = None,
    ) -> str:
        """Let a host offer the containers of the embedded space to programs elsewhere. Returns the
        URI of the site, for `Capi(site=)`.

        `access` has the permissions (by default those of the host's spaces): "read" to look up
        containers, to read and to use transactions, "write" to create containers and to write,
        "take" to take and destroy, "subscribe" for notifications, "administer" to clear the space,
        to shut it down and to add aspects; shift, destroy_container and work_for need "write" and
        "take". `doubt` says what becomes of entries whose taker vanished; deliveries that a crash
        of this program has interrupted are settled when the containers are offered again. Clients
        may add the `aspects` by their names; other aspects are added here.

        Aspects of an offered container run on the host's loop: they must not block it.
        """
        from tupelo.models.xvsm.serving import offer

        if self.sites.address_of(None) is not None:
            raise BadArgument("host", "left out: this Capi has no embedded space to offer", host)
        return await offer(self.embedded, self.is_async, host, access, doubt, aspects or {})

    @dual_api
    async def shutdown(self, site: str | None, clear_space: bool = False) -> None:
        """Close the space; operations that wait fail. Durable containers are there when the folder
        is opened again, unless `clear_space`."""
        there = await self._at(site)
        if there is not None:
            await there.call("shutdown", self._context, None, bool(clear_space))
            return

        async def work(request: Request) -> None:
            pass

        async def last(request: Request) -> None:
            if request.values["clear_space"]:
                await self._do(self.embedded.clear)
            await self._do(self.embedded.close)

        request = Request("shutdown", self, values={"clear_space": bool(clear_space)})
        await self._around(request, work, last=last)

    @dual_api
    async def clear_space(self, site: str | None) -> None:
        """Destroy all containers, except those that an open transaction creates or destroys. If
        there are aspects around `destroy_container`, they are called for each, and all or no
        containers are destroyed."""
        there = await self._at(site)
        if there is not None:
            await there.call("clear_space", self._context, None)
            return
        points = (Point.PRE_DESTROY_CONTAINER, Point.POST_DESTROY_CONTAINER)
        if not any(self.embedded.aspects.at(point) for point in points):
            await self._do(self.embedded.clear)
            return
        txn = self.embedded.begin(None)
        try:
            for row in self.embedded.rows():
                container = await self._do(partial(self.embedded.opened, row))
                await maybe_await(self.destroy_container(txn, container))
        except BaseException:
            await self._end(txn, commit=False)
            raise
        await self._end(txn, commit=True)

    @dual_api
    async def lookup_container(
        self, tx: Tx | None, site: str | None, name: str
    ) -> Container | RemoteContainer:
        """The container with this name, or with a URI such as xvsm://host:7700/jobs.
        ContainerNotFound if there is none."""
        there = await self._at(site)
        if site is None and is_uri(name):
            remote, there = await self._elsewhere(name)
            name = remote.name
        if there is not None:
            args = (tx, None, _check_name(name))
            return there.container(await there.call("lookup_container", {}, *args))
        template, txn = ("container", _check_name(name), str, ANY, tuple), check_transaction(tx)
        # Outside the transaction, or it would lock the row until it ends.
        row = await maybe_await(self._registry.read(template, wait=0))
        if row is None and txn is not None:
            row = await maybe_await(self._registry.read(template, wait=0, txn=txn))
        if row is None:
            raise ContainerNotFound(f"there is no container named {name!r}")
        opened: Container = await self._do(partial(self.embedded.opened, row))
        return opened

    @dual_api
    async def create_container(
        self,
        tx: Tx | None,
        site: str | None,
        name: str | None,
        size: float | None,
        *coordinators: Coordinator,
        optional: list[Coordinator] | tuple[Coordinator, ...] = (),
    ) -> Container | RemoteContainer:
        """Create a container for at most `size` entries (INFINITE: unbounded). All of these
        coordinators store every entry; the `optional` ones only entries that are written with their
        selectors."""
        there = await self._at(site)
        if there is not None:
            wanted = None if name is None else _check_name(name)
            args = (tx, None, wanted, _check_size(size), coordinators, optional)
            return there.container(await there.call("create_container", self._context, *args))
        values = {
            "name": _check_name(name) if name is not None else f"container-{uuid4().hex}",
            "size": _check_size(size),
            "coordinators": list(coordinators),
            "optional": list(optional),
        }

        async def work(request: Request) -> Container:
            values = request.values
            _check_name(values["name"])
            values["size"] = _check_size(values["size"])
            container: Container
            container, row = await self._do(partial(self.embedded.make, **values))
            try:
                written = self._registry.write(row, txn=request.transaction)
                await (to_the_end(written) if self.is_async else maybe_await(written))
            except DuplicateKey:
                self.embedded.unmake(container)
                raise ContainerExists(f"there is a container named {row[1]!r} already") from None
            except BaseException:
                self.embedded.unmake(container)
                raise
            if request.transaction is not None:
                self.embedded.note_created(container, request.transaction)
            return container

        request = Request(
            "create_container", self, values=values, transaction=check_transaction(tx)
        )
        return await self._around(request, work)

    @dual_api
    async def destroy_container(self, tx: Tx | None, cref: Cref) -> None:
        """Remove a container with its entries; operations that wait there fail."""
        if isinstance(cref, (RemoteContainer, str)):
            remote, there = await self._elsewhere(cref)
            await there.call("destroy_container", self._context, tx, remote)
            return
        container = self.embedded.require(cref)

        async def work(request: Request) -> None:
            found, txn = container_of(request), request.transaction
            self.embedded.require_exists(found, txn)
            if await maybe_await(self._registry.take(row_of(found), wait=0, txn=txn)) is None:
                raise self.embedded.error_of_row(found)
            if txn is None:
                await self._do(partial(self.embedded.drop, found))
            else:
                self.embedded.note_destroyed(found, txn)

        txn = check_transaction(tx)
        await self._around(
            Request("destroy_container", self, container=container, transaction=txn), work
        )

    @dual_api
    async def create_transaction(
        self, site: str | None, timeout: float | None
    ) -> SharedTransaction | RemoteTransaction:
        """Begin a transaction, which rolls itself back after `timeout` seconds. A transaction at a
        site elsewhere is for the containers there, and ends when the link is lost."""
        there = await self._at(site)
        if there is not None:
            answer = await there.call("create_transaction", self._context, None, seconds(timeout))
            return RemoteTransaction(there, *parts(answer, 2))
        request = Request("transaction_create", self, timeout=seconds(timeout))

        async def work(request: Request) -> SharedTransaction:
            return self.embedded.begin(request.timeout)

        return await self._around(request, work)

    @dual_api
    async def commit_transaction(self, tx: Tx) -> None:
        """Commit a transaction."""
        await self._end_transaction(tx, commit=True)

    @dual_api
    async def rollback_transaction(self, tx: Tx) -> None:
        """Undo everything that was done in a transaction."""
        await self._end_transaction(tx, commit=False)

    async def _end_transaction(self, tx: Tx, commit: bool) -> None:
        if isinstance(tx, RemoteTransaction):
            there = await self.sites.at(tx.site.address)
            if there is not tx.site:
                raise BadArgument("tx", "a transaction that this Capi has created", tx)
            await there.end(tx, commit, self._context)
            return

        async def work(request: Request) -> None:
            await self._end(txn, commit)

        txn = check_transaction(tx)
        if txn is None:
            raise BadArgument("tx", "a transaction of create_transaction", tx)
        operation = "transaction_commit" if commit else "transaction_rollback"
        await self._around(Request(operation, self, transaction=txn), work, bare=True)

    # Containers

    @dual_api
    async def write(
        self, cref: Cref, timeout: float | None, tx: Tx | None, *entries: Any
    ) -> list[Lease]:
        """Write entries, all or none; wait while the container is full or a key is in use.

        Returns their leases, by which a LindaSelector finds the entries. In the async API, leases
        of a site elsewhere are awaited: `await lease.cancel()`.
        """
        return await self._operate("write", self._write, cref, timeout, tx, entries)

    @dual_api
    async def shift(self, cref: Cref, tx: Tx | None, *entries: Any) -> list[Lease]:
        """Write entries, and remove what is in the way, even entries that the same shift has
        written: of two entries shifted into a container of size 1 the second remains. It never
        waits."""
        return await self._operate("shift", self._shift, cref, 0, tx, entries)

    @dual_api
    async def read(
        self,
        cref: Cref,
        timeout: float | None,
        tx: Tx | None,
        *selectors: Selector,
        isolation: IsolationLevel = REPEATABLE_READ,
    ) -> list[Any]:
        """The entries that the selectors choose; CountNotMet if there are too few before the
        timeout."""
        how = {"isolation": check_isolation(isolation)}
        return await self._operate("read", self._read, cref, timeout, tx, selectors, **how)

    @dual_api
    async def test(
        self,
        cref: Cref,
        timeout: float | None,
        tx: Tx | None,
        *selectors: Selector,
        isolation: IsolationLevel = REPEATABLE_READ,
        operation: str = "read",
    ) -> int:
        """The number of entries that a read or, with `operation="take"`, a take would return; it
        takes and locks nothing, and waits as the operation would. EntryLocked if only the locks of
        other transactions prevent it; CountNotMet if there are too few entries."""
        how = {"isolation": check_isolation(isolation), "operation": check_tested(operation)}
        return await self._operate("test", self._test, cref, timeout, tx, selectors, **how)

    @dual_api
    async def take(
        self, cref: Cref, timeout: float | None, tx: Tx | None, *selectors: Selector
    ) -> list[Any]:
        """Remove the entries that the selectors choose, and return them; CountNotMet if there are
        too few before the timeout."""
        return await self._operate("take", self._take, cref, timeout, tx, selectors)

    @dual_api
    async def destroy(
        self, cref: Cref, timeout: float | None, tx: Tx | None, *selectors: Selector
    ) -> int:
        """Remove the entries that the selectors choose; returns how many."""
        return await self._operate("destroy", self._destroy, cref, timeout, tx, selectors)

    @dual_api
    async def work_for(
        self, cref: RemoteContainer | str, *functions: Callable[..., Any], workers: int = 4
    ) -> Helper:
        """Compute tasks of an ActiveCoordinator elsewhere: those that call one of these functions,
        at most `workers` at a time. No other function is run here."""
        if not isinstance(cref, (RemoteContainer, str)):
            raise BadArgument("cref", "a container at a site elsewhere, or its URI", cref)
        remote, _ = await self._elsewhere(cref)
        return Helper(self.sites, self.is_async, remote, functions, workers)

    # Notifications and aspects

    def get_aspect_context(self) -> dict[str, Any]:
        """A copy of the properties that this Capi passes to aspects with each request."""
        return dict(self._context)

    def set_aspect_context(self, properties: dict[str, Any]) -> None:
        """Set the properties that are passed to aspects, such as the name of the user."""
        if not isinstance(properties, dict):
            raise BadArgument("properties", "a dict", properties)
        self._context = dict(properties)

    @dual_api
    async def create_notification(
        self,
        cref: Cref,
        listener: Listener,
        *operations: str,
        times: int | None = None,
        every_removal: bool = False,
    ) -> ListenerQueue:
        """Call `listener(notification, operation, entries)` after each of these operations on the
        container ("read", "write", "take", "shift", "destroy"); at most `times`. With
        `every_removal`, "destroy" reports each entry that leaves for good, whatever the reason.

        A notification is an aspect: aspects around `add_aspect` are called. A notification of a
        container elsewhere ends when the link to its site is lost.
        """
        if isinstance(cref, (RemoteContainer, str)):
            remote, there = await self._elsewhere(cref)
            return await there.watch(
                self._context, remote, listener, operations, times, every_removal
            )
        container = self.embedded.require(cref)
        points = check_operations(operations, every_removal)
        notification = Notification(self, container, listener, times, every_removal)
        return await self._notify(notification, points)

    async def _notify(
        self, notification: Notification, points: list[Point], calls: bool = True
    ) -> Notification:
        notification.registration = await self._add(notification.container, points, notification)
        notification.start(calls)
        return notification

    @dual_api
    async def add_aspect(self, cref_or_site: Cref | None, points: Any, aspect: Any) -> Registration:
        """Register an aspect at points of a container or, with a site, of the whole space.

        At a site elsewhere, give the name of an aspect that the program there offers: code is not
        sent.
        """
        cref, there = await self._place(cref_or_site)
        if there is not None:
            remote = cref if isinstance(cref, RemoteContainer) else None
            chosen = check_points(points, LOCAL_POINTS if remote else (*Point,))
            return await there.add_aspect(self._context, remote, chosen, aspect)
        container = None if cref is None else self.embedded.require(cref)
        _, allowed = self._where(container)
        return await self._add(container, check_points(points, allowed, aspect), aspect)

    async def _place(self, cref_or_site: Any) -> tuple[Any, Site | None]:
        """A container, or None for the whole space; and its site, or None for the embedded
        space."""
        if isinstance(cref_or_site, str):
            _, name = parse_uri(cref_or_site, "site")
            if name is None:
                return None, await self._at(cref_or_site)
        if isinstance(cref_or_site, (RemoteContainer, str)):
            return await self._elsewhere(cref_or_site)
        return cref_or_site, await self._at(None) if cref_or_site is None else None

    async def _add(
        self, cref_or_site: Container | None, points: list[Point], aspect: Any
    ) -> Registration:
        where, allowed = self._where(cref_or_site)

        async def work(request: Request) -> Registration:
            chosen = check_points(request.points, allowed, request.aspect)
            registration = Registration(request.aspect, chosen)
            where.add(registration, chosen)
            self.embedded.update_fast_paths()
            self._unless_committed(request, lambda: where.remove(registration, chosen))
            return registration

        request = Request(
            "add_aspect", self, container=cref_or_site, aspect=aspect, points=list(points)
        )
        return await self._around(request, work)

    @dual_api
    async def remove_aspect(
        self, cref_or_site: Cref | None, points: Any, registration: Registration
    ) -> None:
        """Remove an aspect from these points, or from all of its points if `points` is None."""
        cref, there = await self._place(cref_or_site)
        if not isinstance(registration, Registration):
            raise BadArgument("registration", "what add_aspect answered", registration)
        if there is not None:
            remote = cref if isinstance(cref, RemoteContainer) else None
            chosen = registration.points if points is None else check_points(points, (*Point,))
            await there.call("remove_aspect", self._context, remote, chosen, registration.id)
            return
        container = None if cref is None else self.embedded.require(cref)
        where, allowed = self._where(container)
        chosen = registration.points if points is None else check_points(points, allowed)

        async def work(request: Request) -> None:
            removed = where.remove(registration, check_points(request.points, allowed))
            if not removed:
                raise BadArgument("points", "where the aspect is", points)
            self.embedded.update_fast_paths()
            self._unless_committed(request, lambda: where.add(registration, removed))

        request = Request(
            "remove_aspect",
            self,
            container=container,
            aspect=registration.aspect,
            points=list(chosen),
        )
        await self._around(request, work)

    def _unless_committed(self, request: Request, undo: Callable[[], object]) -> None:
        """Call `undo` if an aspect stops the operation."""

        def end(committed: bool | None) -> None:
            if not committed:
                undo()
                self.embedded.update_fast_paths()

        if request.transaction is not None:
            request.transaction.at_end(end)

    # Running an operation with its aspects

    async def _operate(
        self,
        operation: str,
        work: Work[T],
        cref: Cref,
        timeout: float | None,
        tx: Tx | None,
        items: tuple[Any, ...],
        /,  # so that `operation` is also what a test asks about
        **how: Any,
    ) -> T:
        """Write or shift these items, which are entries; or read, test, take or destroy by them,
        which are selectors."""
        if isinstance(cref, (RemoteContainer, str)):
            remote, there = await self._elsewhere(cref)
            sent = (remote, seconds(timeout), tx, list(items), *how.values())
            answer: T = await there.operate(operation, self._context, *sent)
            return answer
        container, txn = self.embedded.require(cref), check_transaction(tx)
        self.embedded.require_exists(container, txn)
        request = Request(operation, self, container=container, transaction=txn, values=how)
        request.timeout = seconds(timeout)
        if operation in ("write", "shift"):
            request.entries = list(items)
        else:
            request.selectors = list(items)
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

    # The work

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Do work that opens or closes files."""
        return work()

    async def _write(self, request: Request) -> list[Lease]:
        container, txn = container_of(request), request.transaction
        made = [container.stored(entry) for entry in request.entries]
        if container.active is not None:
            return await active_of(container).begin(self, made, txn)
        space = self._space(container)
        if len(made) == 1:
            stored, at = made[0]
            return [await maybe_await(space.write(stored, txn=txn, at=at, wait=request.timeout))]
        stored = [one for one, _ in made]
        container.require_distinct(stored)
        places = [at for _, at in made]
        at = places if any(place is not None for place in places) else None
        leases = await maybe_await(space.write_all(stored, txn=txn, at=at, wait=request.timeout))
        return list(leases)

    async def _shift(self, request: Request) -> list[Lease]:
        """Write each entry after the removal of what is in its way."""
        container = container_of(request)
        if container.active is not None:
            raise BadArgument("cref", "a container without an ActiveCoordinator", container)
        txn, space = self.embedded.begin(None, request.transaction), self._space(container)
        leases: list[Lease] = []
        try:
            for entry in request.entries:
                stored, at = container.stored(entry)
                for template, order, limit in container.in_the_way(entry, stored):
                    await self._remove(container, txn, template, order, limit)
                while True:
                    try:
                        leases.append(await maybe_await(space.write(stored, txn=txn, at=at)))
                        break
                    except SpaceFull as full:
                        order = container.shift_order
                        if not await self._remove(container, txn, ANY, order, 1):
                            what = f"the container {container.name!r} is full"
                            raise SpaceFull(f"{what}, and nothing may give way") from full
        except BaseException:
            await self._end(txn, commit=False)
            raise
        await self._end(txn, commit=True)
        return leases

    async def _read(self, request: Request) -> list[Any]:
        committed = check_isolation(request.values["isolation"]) is READ_COMMITTED
        return await self._get(request, take=False, **{"committed": True} if committed else {})

    async def _test(self, request: Request) -> int:
        committed = check_isolation(request.values["isolation"]) is READ_COMMITTED
        take = check_tested(request.values["operation"]) == "take"
        container, txn, question = self._question(request)
        how = {"test": True, "committed": committed and not take}
        if request.timeout != 0:
            found = await self._fetch(container, question, take, request.timeout, txn, **how)
            if found:
                return len(found)
        port = container.port
        query = question.query(port, take, 0, txn, known=False, **how)
        with port.atomic():
            entries = port.find(query)
            short = None if entries else question.not_met()
            if short is None:
                return len(entries)
            # Are there enough entries if the locks of others are ignored?
            locked = port.find(query.replace(take=False, committed=True))
        if locked:
            text = f"{short}: other transactions hold what it needs"
            raise EntryLocked(text, wanted=short.wanted, found=short.found)
        raise short

    async def _take(self, request: Request) -> list[Any]:
        return await self._get(request, take=True)

    async def _destroy(self, request: Request) -> int:
        destroyed = await self._get(request, take=True)
        request.values["destroyed"] = destroyed  # for notifications
        return len(destroyed)

    def _question(self, request: Request) -> tuple[Container, SharedTransaction | None, ChainQuery]:
        container = container_of(request)
        if container.active is not None:
            active_of(container).results_wanted()
        return container, request.transaction, container.question(tuple(request.selectors))

    async def _get(self, request: Request, take: bool, **how: bool) -> list[Any]:
        container, txn, question = self._question(request)
        if not take and txn and request.is_alone and not txn.has_branch(container.port):
            txn = None  # Otherwise the read would lock entries until the aspects have run.
        found = await self._fetch(container, question, take, request.timeout, txn, **how)
        if not found:
            short = question.not_met()
            if short is not None:
                raise short
        return found

    async def _fetch(
        self,
        container: Container,
        question: ChainQuery,
        take: bool,
        wait: float | None,
        txn: SharedTransaction | None,
        **how: bool,
    ) -> list[Any]:
        """The entries that the space of a container returns, as they were written."""
        space = self._space(container)
        if how:
            query = question.query(container.port, take, wait, txn, **how)
            found = list(map(value_of, await self._stored(container, query)))
        elif question.one:
            get = space.take if take else space.read
            one = None
            if question.first is not None:
                one = await maybe_await(get(question.first, wait=0, txn=txn))
            if one is None:
                one = await maybe_await(get(question.template, wait=wait, txn=txn))
            found = [] if one is None else [one]
        else:
            get_all = space.take_all if take else space.read_all
            found = await maybe_await(
                get_all(
                    question.template,
                    wait=wait if question.waits else 0,
                    txn=txn,
                    order=question.chain,
                    if_exists=question.optional,
                )
            )
        return [container.value(one) for one in found]

    async def _remove(
        self,
        container: Container,
        txn: SharedTransaction,
        template: Any,
        order: Order | None,
        limit: int | None,
    ) -> int:
        """Remove entries that are in the way of a shift; returns how many."""
        port = container.port
        query = port.query(template, True, 0, True, limit, txn, order, False)
        query = query.replace(known=False)  # Their classes need not be known here.
        return len(await self._stored(container, query))

    async def _stored(self, container: Container, query: Query) -> list[CoreEntry]:
        """The entries that answer a query, as they are stored."""
        if self.is_async:
            return await container.port.fetch(query)
        return fetch(container.space, query)


class Capi(AnyCapi):
    """The blocking API. Simple operations go straight to the space."""

    is_async = False

    def write(self, cref: Cref, timeout: float | None, tx: Tx | None, *entries: Any) -> list[Lease]:
        if tx is None and type(cref) is Container and cref.fast_owner is self.embedded:
            leases = cref.write_quickly(entries, timeout)
            if leases is not None:
                return leases
        answer: list[Lease] = super().write(cref, timeout, tx, *entries)
        return answer

    def read(
        self,
        cref: Cref,
        timeout: float | None,
        tx: Tx | None,
        *selectors: Selector,
        isolation: IsolationLevel = REPEATABLE_READ,
    ) -> list[Any]:
        plain = tx is None and isolation is REPEATABLE_READ
        if plain and type(cref) is Container and cref.fast_owner is self.embedded:
            found = cref.get_quickly(selectors, False, timeout)
            if found is not None:
                return found
        answer: list[Any] = super().read(cref, timeout, tx, *selectors, isolation=isolation)
        return answer

    def take(
        self, cref: Cref, timeout: float | None, tx: Tx | None, *selectors: Selector
    ) -> list[Any]:
        if tx is None and type(cref) is Container and cref.fast_owner is self.embedded:
            found = cref.get_quickly(selectors, True, timeout)
            if found is not None:
                return found
        answer: list[Any] = super().take(cref, timeout, tx, *selectors)
        return answer


class AsyncCapi(AnyCapi):
    """The async API: the same methods, awaited."""

    is_async = True


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name or is_uri(name):
        raise BadArgument("name", "a text that is not empty, and no URI", name)
    return name


def _check_size(size: object) -> int | None:
    if size is None or size == INFINITE:
        return None
    if not is_int(size) or size < 1:
        raise BadArgument("size", "a whole number above 0, or INFINITE", size)
    return size


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
