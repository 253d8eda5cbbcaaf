"""The Capi: the operations of MozartSpaces, with the names and order of arguments of figure 5.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from uuid import uuid4

from tupelo.errors import (
    BadArgument,
    ContainerExists,
    ContainerNotFound,
    DuplicateKey,
    EntryLocked,
    SpaceFull,
)
from tupelo.federation.client.arguments import parts
from tupelo.federation.hosts.doors import HostDoor
from tupelo.federation.identity.access import Access
from tupelo.federation.spaces.hosted import Doubt
from tupelo.models.xvsm.active import active_of
from tupelo.models.xvsm.aspect_pipeline import (
    INFINITE,
    AspectPipeline,
    Cref,
    Tx,
    check_transaction,
    container_of,
    seconds,
)
from tupelo.models.xvsm.aspects import LOCAL_POINTS, Point, Registration, Request, check_points
from tupelo.models.xvsm.chain import ChainQuery, template_for
from tupelo.models.xvsm.container import Container, Entry
from tupelo.models.xvsm.coordinators import AnyCoordinator, Coordinator, VectorCoordinator
from tupelo.models.xvsm.embedded import row_of
from tupelo.models.xvsm.notifications import Listener, ListenerQueue, Notification, check_operations
from tupelo.models.xvsm.selectors import (
    READ_COMMITTED,
    REPEATABLE_READ,
    IsolationLevel,
    Selector,
    VectorSelector,
    check_isolation,
    check_tested,
)
from tupelo.models.xvsm.site import Helper, RemoteContainer, RemoteTransaction, Site
from tupelo.models.xvsm.wire import is_uri, parse_uri
from tupelo.space.blocking import Space, fetch
from tupelo.space.dual_api import Closing, dual_api, maybe_await
from tupelo.space.order import Order
from tupelo.space.port import value_of
from tupelo.space.query import Query
from tupelo.space.shared import SharedTransaction
from tupelo.space.tasks import to_the_end
from tupelo.values.checks import is_int
from tupelo.values.entry import Entry as CoreEntry
from tupelo.values.lease import Lease
from tupelo.values.parts import ANY

INFINITE_TIMEOUT = INFINITE
"""A timeout: wait for ever."""
TRY_ONCE = 0
"""A timeout: do not wait."""


class AnyCapi(AspectPipeline, Closing):
    """The operations of Capi and AsyncCapi."""

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
        return await self._operate("write", self._write, cref, timeout, tx, entries=list(entries))

    @dual_api
    async def shift(self, cref: Cref, tx: Tx | None, *entries: Any) -> list[Lease]:
        """Write entries, and remove what is in the way, even entries that the same shift has
        written: of two entries shifted into a container of size 1 the second remains. It never
        waits."""
        return await self._operate("shift", self._shift, cref, 0, tx, entries=list(entries))

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
        values = {"isolation": check_isolation(isolation)}
        return await self._operate(
            "read", self._read, cref, timeout, tx, selectors=list(selectors), values=values
        )

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
        values = {
            "isolation": check_isolation(isolation),
            "operation": check_tested(operation),
        }
        return await self._operate(
            "test", self._test, cref, timeout, tx, selectors=list(selectors), values=values
        )

    @dual_api
    async def take(
        self, cref: Cref, timeout: float | None, tx: Tx | None, *selectors: Selector
    ) -> list[Any]:
        """Remove the entries that the selectors choose, and return them; CountNotMet if there are
        too few before the timeout."""
        return await self._operate("take", self._take, cref, timeout, tx, selectors=list(selectors))

    @dual_api
    async def destroy(
        self, cref: Cref, timeout: float | None, tx: Tx | None, *selectors: Selector
    ) -> int:
        """Remove the entries that the selectors choose; returns how many."""
        return await self._operate(
            "destroy", self._destroy, cref, timeout, tx, selectors=list(selectors)
        )

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
        container = container_of(request)
        txn = self.embedded.begin(None, request.transaction)
        remove = partial(self._remove, container, txn)
        try:
            leases = await shift(container, self._space(container), txn, request.entries, remove)
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
            # Would it succeed without the locks of others?
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
            entries = await (
                container.port.fetch(query) if self.is_async else fetched(container.space, query)
            )
            found = list(map(value_of, entries))
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
        return len(await (port.fetch(query) if self.is_async else fetched(container.space, query)))


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


# Shifting: before a write, what is in its way is removed


class ShiftOrder(Order):
    """The order in which a coordinator lets entries be shifted out."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def arrange(self, found: list[CoreEntry]) -> Iterable[CoreEntry]:
        return self._coordinator.gives_way(found)


Remove = Callable[[Any, Order | None, int | None], Awaitable[int]]
"""Removes at most so many matches of a template, in an order; returns how many."""


async def fetched(space: Space, query: Query) -> list[CoreEntry]:
    return fetch(space, query)


async def shift(
    container: Container, space: Any, txn: SharedTransaction, entries: list[Any], remove: Remove
) -> list[Lease]:
    """Shift entries within a transaction."""
    if container.active is not None:
        raise BadArgument("cref", "a container without an ActiveCoordinator", container)
    leases = []
    for entry in entries:
        stored, at = container.stored(entry)
        await _clear_place(container, entry, remove)
        await _clear_keys(container, stored, remove)
        while True:
            try:
                leases.append(await maybe_await(space.write(stored, txn=txn, at=at)))
                break
            except SpaceFull as full:
                if not await _clear_one(container, remove):
                    raise SpaceFull(
                        f"the container {container.name!r} is full, and nothing may give way"
                    ) from full
    return leases


async def _clear_place(container: Container, entry: Any, remove: Remove) -> None:
    """Remove the entry at the index where a vector entry is to be written."""
    for selector in entry.selectors if isinstance(entry, Entry) else ():
        if isinstance(selector, VectorSelector) and selector.index is not None:
            there = container.question((VectorSelector(selector.index, name=selector.name),))
            await remove(there.template, there.chain, None)


async def _clear_keys(container: Container, stored: Any, remove: Remove) -> None:
    """Remove the entries with the same keys. If another transaction holds one, the write will be
    refused."""
    for coordinator, key in container.key_of(stored):
        if key is not None:
            kept = {coordinator.position: key}
            template = template_for(container.width, container.arity, kept, [])
            await remove(template, None, 1)


async def _clear_one(container: Container, remove: Remove) -> bool:
    """Remove the first entry that the first coordinator lets go. False if there is none."""
    first = next((c for c in container.given if not c.optional), None) or AnyCoordinator()
    kind = type(first)
    oldest = (
        kind.gives_way is Coordinator.gives_way
        and kind.arrange is Coordinator.arrange
        and not isinstance(first, VectorCoordinator)
    )
    order = None if oldest else ShiftOrder(first)
    return await remove(ANY, order, 1) > 0
