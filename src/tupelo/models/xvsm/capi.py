"""The Capi: the operations of MozartSpaces, in the order and with the arguments of figure 5.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self
from uuid import uuid4

from tupelo.errors import BadArgument, ContainerExists, ContainerNotFound, DuplicateKey
from tupelo.models.either import either, settled
from tupelo.models.xvsm.around import INFINITE, Around, container_of, require_here, seconds
from tupelo.models.xvsm.aspects import Registration, Request, check_points
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.coordinators import Coordinator
from tupelo.models.xvsm.notifications import Notification, check_operations
from tupelo.models.xvsm.selectors import Selector
from tupelo.models.xvsm.shifting import shift
from tupelo.models.xvsm.transactions import Transaction, at_end, check_transaction
from tupelo.space.shared import SharedTransaction
from tupelo.values.lease import Lease
from tupelo.values.parts import ANY

INFINITE_TIMEOUT = INFINITE
"""Wait for ever."""
TRY_ONCE = 0
"""Do not wait."""


class AnyCapi(Around):
    """What both doors have in common, which is all but the waiting."""

    # The space itself

    @either
    async def shutdown(self, site: None, clear_space: bool = False) -> None:
        """End: everything is closed, and whoever waits is told. Durable containers are there when
        the folder is opened again, unless the space is to be cleared."""
        require_here(site)

        async def work(request: Request) -> None:
            if request.values["clear_space"]:
                self.embedded.clear()
            self.embedded.close()

        request = Request("shutdown", self, values={"clear_space": bool(clear_space)})
        await self._around(request, work)

    @either
    async def clear_space(self, site: None) -> None:
        """Destroy all containers."""
        require_here(site)
        self.embedded.clear()

    @either
    async def lookup_container(
        self, tx: SharedTransaction | None, site: None, name: str
    ) -> Container:
        """The container of this name."""
        require_here(site)
        template = ("container", _check_name(name), str, ANY, tuple)
        row = await settled(self._registry.read(template, wait=0, txn=check_transaction(tx)))
        if row is None:
            raise ContainerNotFound(f"there is no container named {name!r}")
        return self.embedded.opened(row)

    @either
    async def create_container(
        self,
        tx: SharedTransaction | None,
        site: None,
        name: str | None,
        size: float | None,
        *coordinators: Coordinator,
        optional: list[Coordinator] | tuple[Coordinator, ...] = (),
    ) -> Container:
        """A new container for at most `size` entries (INFINITE for no bound), whose entries are
        kept by all of these coordinators, and by the `optional` ones that they are written for."""
        require_here(site)
        values = {
            "name": _check_name(name) if name is not None else f"container-{uuid4().hex}",
            "size": _check_size(size),
            "coordinators": list(coordinators),
            "optional": list(optional),
        }

        async def work(request: Request) -> Container:
            container, row = self.embedded.make(**request.values)
            try:
                await settled(self._registry.write(row, txn=request.transaction))
            except DuplicateKey:
                self.embedded.drop(container)
                raise ContainerExists(f"there is a container named {row[1]!r} already") from None
            except BaseException:
                self.embedded.drop(container)
                raise
            if request.transaction is not None:

                def end(committed: bool) -> None:
                    if not committed:
                        self.embedded.drop(container)

                at_end(request.transaction, end)
            return container

        request = Request(
            "create_container", self, values=values, transaction=check_transaction(tx)
        )
        found: Container = await self._around(request, work)
        return found

    @either
    async def destroy_container(self, tx: SharedTransaction | None, cref: Container) -> None:
        """Remove a container with all that is in it; whoever waits there is told."""
        container = self.embedded.require(cref)

        async def work(request: Request) -> None:
            row = ("container", container.name, container.id, ANY, tuple)
            txn = request.transaction
            if await settled(self._registry.take(row, wait=0, txn=txn)) is None:
                raise ContainerNotFound(f"the container {container.name!r} was destroyed")
            if txn is None:
                self.embedded.drop(container)
            else:

                def end(committed: bool) -> None:
                    if committed:
                        self.embedded.drop(container)

                at_end(txn, end)

        txn = check_transaction(tx)
        await self._around(
            Request("destroy_container", self, container=container, transaction=txn), work
        )

    @either
    async def create_transaction(self, site: None, timeout: float | None) -> Transaction:
        """A transaction, which rolls itself back after `timeout` seconds."""
        require_here(site)
        request = Request("transaction_create", self, timeout=seconds(timeout))

        async def work(request: Request) -> Transaction:
            return self.embedded.begin(request.timeout)

        made: Transaction = await self._around(request, work)
        return made

    @either
    async def commit_transaction(self, tx: SharedTransaction) -> None:
        """Make all that was done in it permanent."""

        async def work(request: Request) -> None:
            await self._end(txn, commit=True)

        txn = _require_transaction(tx)
        await self._around(Request("transaction_commit", self, transaction=txn), work, bare=True)

    @either
    async def rollback_transaction(self, tx: SharedTransaction) -> None:
        """Undo all that was done in it."""

        async def work(request: Request) -> None:
            await self._end(txn, commit=False)

        txn = _require_transaction(tx)
        await self._around(Request("transaction_rollback", self, transaction=txn), work, bare=True)

    # Containers

    @either
    async def write(
        self, cref: Container, timeout: float | None, tx: SharedTransaction | None, *entries: Any
    ) -> list[Lease]:
        """Write entries, all of them or none; wait while the container is full or a key is taken.

        The answer are their leases, by which a LindaSelector finds them again.
        """
        leases: list[Lease] = await self._operate(
            "write", self._write, cref, timeout, tx, entries=list(entries)
        )
        return leases

    @either
    async def shift(
        self, cref: Container, tx: SharedTransaction | None, *entries: Any
    ) -> list[Lease]:
        """Write, and let give way what stands in the way. It never waits."""
        leases: list[Lease] = await self._operate(
            "shift", self._shift, cref, 0, tx, entries=list(entries)
        )
        return leases

    @either
    async def read(
        self,
        cref: Container,
        timeout: float | None,
        tx: SharedTransaction | None,
        *selectors: Selector,
    ) -> list[Any]:
        """The entries that the selectors choose; CountNotMet if there are too few in time."""
        found: list[Any] = await self._operate(
            "read", self._read, cref, timeout, tx, selectors=list(selectors)
        )
        return found

    @either
    async def take(
        self,
        cref: Container,
        timeout: float | None,
        tx: SharedTransaction | None,
        *selectors: Selector,
    ) -> list[Any]:
        """Read, and remove."""
        found: list[Any] = await self._operate(
            "take", self._take, cref, timeout, tx, selectors=list(selectors)
        )
        return found

    @either
    async def destroy(
        self,
        cref: Container,
        timeout: float | None,
        tx: SharedTransaction | None,
        *selectors: Selector,
    ) -> int:
        """Remove without reading; how many."""
        count: int = await self._operate(
            "destroy", self._destroy, cref, timeout, tx, selectors=list(selectors)
        )
        return count

    # Notifications and aspects

    @either
    async def create_notification(
        self,
        cref: Container,
        listener: Callable[[Notification, str, list[Any]], object],
        *operations: str,
        times: int | None = None,
    ) -> Notification:
        """Call `listener(notification, operation, entries)` after each of these operations on the
        container ("read", "write", "take", "shift", "destroy"); at most `times`."""
        container = self.embedded.require(cref)
        points = check_operations(operations)
        notification = Notification(self, container, listener, times)
        registration = Registration(notification, points)
        container.aspects.add(registration, points)
        notification.registration = registration
        self.embedded.reconsider()
        return notification

    @either
    async def add_aspect(
        self, cref_or_site: Container | None, points: Any, aspect: Any
    ) -> Registration:
        """Register an aspect at points of a container, or (with the site) of the whole space."""
        where, allowed = self._where(cref_or_site)
        registration = Registration(aspect, check_points(points, allowed, aspect))

        async def work(request: Request) -> Registration:
            where.add(registration, request.points)
            self.embedded.reconsider()
            return registration

        container = cref_or_site if isinstance(cref_or_site, Container) else None
        request = Request(
            "add_aspect", self, container=container, aspect=aspect, points=registration.points
        )
        try:
            added: Registration = await self._around(request, work)
        except BaseException:
            where.remove(registration, registration.points)
            self.embedded.reconsider()
            raise
        return added

    @either
    async def remove_aspect(
        self, cref_or_site: Container | None, points: Any, registration: Registration
    ) -> None:
        """Remove an aspect from some or all of the points that it was added at."""
        where, allowed = self._where(cref_or_site)
        if not isinstance(registration, Registration):
            raise BadArgument("registration", "what add_aspect answered", registration)
        chosen = registration.points if points is None else check_points(points, allowed)

        async def work(request: Request) -> None:
            if not where.remove(registration, request.points):
                raise BadArgument("points", "where the aspect is", points)
            self.embedded.reconsider()

        container = cref_or_site if isinstance(cref_or_site, Container) else None
        request = Request(
            "remove_aspect",
            self,
            container=container,
            aspect=registration.aspect,
            points=list(chosen),
        )
        await self._around(request, work)

    # The work

    async def _write(self, request: Request) -> list[Lease]:
        container, txn = container_of(request), request.transaction
        made = [container.stored(entry) for entry in request.entries]
        if container.active is not None:
            begun: list[Lease] = await container.active.begin(self, made, txn)  # type: ignore[attr-defined]
            return begun
        space = self._space(container)
        if len(made) == 1:
            stored, at = made[0]
            return [await settled(space.write(stored, txn=txn, at=at, wait=request.timeout))]
        stored = [one for one, _ in made]
        container.require_distinct(stored)
        places = [at for _, at in made]
        at = places if any(place is not None for place in places) else None
        leases = await settled(space.write_all(stored, txn=txn, at=at, wait=request.timeout))
        return list(leases)

    async def _shift(self, request: Request) -> list[Lease]:
        container = container_of(request)
        txn = self.embedded.begin(None, request.transaction)
        try:
            leases = await shift(container, self._space(container), txn, request.entries)
        except BaseException:
            await self._end(txn, commit=False)
            raise
        await self._end(txn, commit=True)
        return leases

    async def _read(self, request: Request) -> list[Any]:
        return await self._get(request, take=False)

    async def _take(self, request: Request) -> list[Any]:
        return await self._get(request, take=True)

    async def _destroy(self, request: Request) -> int:
        destroyed = await self._get(request, take=True)
        request.values["destroyed"] = destroyed  # for notifications
        return len(destroyed)

    async def _get(self, request: Request, take: bool) -> list[Any]:
        container, txn, wait = container_of(request), request.transaction, request.timeout
        question = container.question(tuple(request.selectors))
        space = self._space(container)
        if question.one:
            get = space.take if take else space.read
            one = await settled(get(question.template, wait=wait, txn=txn))
            found = [] if one is None else [one]
        else:
            get_all = space.take_all if take else space.read_all
            found = await settled(
                get_all(
                    question.template,
                    wait=wait if question.waits else 0,
                    txn=txn,
                    order=question.chain,
                    if_exists=question.optional,
                )
            )
        if not found:
            short = question.not_met()
            if short is not None:
                raise short
        return [container.value(one) for one in found]


class Capi(AnyCapi):
    """The blocking door. Operations that need nothing but the space go straight to it."""

    is_async = False

    def write(
        self, cref: Container, timeout: float | None, tx: SharedTransaction | None, *entries: Any
    ) -> list[Lease]:
        if tx is None and len(entries) == 1 and type(cref) is Container and cref.quick:
            leases = cref.write_quickly(entries[0], timeout)
            if leases is not None:
                return leases
        answer: list[Lease] = super().write(cref, timeout, tx, *entries)
        return answer

    def read(
        self,
        cref: Container,
        timeout: float | None,
        tx: SharedTransaction | None,
        *selectors: Selector,
    ) -> list[Any]:
        if tx is None and len(selectors) == 1 and type(cref) is Container and cref.quick:
            found = cref.get_quickly(selectors[0], False, timeout)
            if found is not None:
                return found
        answer: list[Any] = super().read(cref, timeout, tx, *selectors)
        return answer

    def take(
        self,
        cref: Container,
        timeout: float | None,
        tx: SharedTransaction | None,
        *selectors: Selector,
    ) -> list[Any]:
        if tx is None and len(selectors) == 1 and type(cref) is Container and cref.quick:
            found = cref.get_quickly(selectors[0], True, timeout)
            if found is not None:
                return found
        answer: list[Any] = super().take(cref, timeout, tx, *selectors)
        return answer

    def close(self) -> None:
        """Shut down, as at the end of a `with` block."""
        self.embedded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncCapi(AnyCapi):
    """The async door: the same methods, to be awaited."""

    is_async = True

    async def close(self) -> None:
        self.embedded.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _require_transaction(tx: object) -> SharedTransaction:
    txn = check_transaction(tx)
    if txn is None:
        raise BadArgument("tx", "a transaction of create_transaction", tx)
    return txn


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise BadArgument("name", "a text that is not empty", name)
    return name


def _check_size(size: object) -> int | None:
    if size is None or size == INFINITE:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise BadArgument("size", "a whole number above 0, or INFINITE", size)
    return size
