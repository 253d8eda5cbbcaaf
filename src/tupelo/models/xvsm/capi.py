"""The Capi: the operations of MozartSpaces, in the order and with the arguments of figure 5.1."""

from __future__ import annotations

from typing import Any, Self
from uuid import uuid4

from tupelo.errors import BadArgument, ContainerExists, ContainerNotFound, DuplicateKey
from tupelo.models.xvsm.active import active_of
from tupelo.models.xvsm.around import INFINITE, container_of, require_here, seconds
from tupelo.models.xvsm.aspects import Point, Request
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.coordinators import Coordinator
from tupelo.models.xvsm.embedded import row_of
from tupelo.models.xvsm.registering import Registering
from tupelo.models.xvsm.selectors import Selector
from tupelo.models.xvsm.shifting import shift
from tupelo.models.xvsm.transactions import (
    Transaction,
    check_transaction,
    has_branch,
    to_the_end,
)
from tupelo.space.either import either, settled
from tupelo.space.shared import SharedTransaction
from tupelo.values.lease import Lease
from tupelo.values.parts import ANY

INFINITE_TIMEOUT = INFINITE
"""Wait for ever."""
TRY_ONCE = 0
"""Do not wait."""


class AnyCapi(Registering):
    """What both doors have in common, which is all but the waiting."""

    # The space itself

    @either
    async def shutdown(self, site: None, clear_space: bool = False) -> None:
        """End: everything is closed, and whoever waits is told. Durable containers are there when
        the folder is opened again, unless the space is to be cleared."""
        require_here(site)

        async def work(request: Request) -> None:
            pass

        async def last(request: Request) -> None:
            if request.values["clear_space"]:
                self.embedded.clear()
            self.embedded.close()

        request = Request("shutdown", self, values={"clear_space": bool(clear_space)})
        await self._around(request, work, last=last)

    @either
    async def clear_space(self, site: None) -> None:
        """Destroy all containers, but those that an open transaction makes or destroys. Aspects
        around `destroy_container` are asked of each; then it is all or none."""
        require_here(site)
        points = (Point.PRE_DESTROY_CONTAINER, Point.POST_DESTROY_CONTAINER)
        if not any(self.embedded.aspects.at(point) for point in points):
            self.embedded.clear()
            return
        txn = self.embedded.begin(None)
        try:
            for row in self.embedded.rows():
                await settled(self.destroy_container(txn, self.embedded.opened(row)))
        except BaseException:
            await self._end(txn, commit=False)
            raise
        await self._end(txn, commit=True)

    @either
    async def lookup_container(
        self, tx: SharedTransaction | None, site: None, name: str
    ) -> Container:
        """The container of this name."""
        require_here(site)
        template, txn = ("container", _check_name(name), str, ANY, tuple), check_transaction(tx)
        # Outside the transaction, or it would hold the container until its end.
        row = await settled(self._registry.read(template, wait=0))
        if row is None and txn is not None:
            row = await settled(self._registry.read(template, wait=0, txn=txn))
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
            values = request.values
            _check_name(values["name"])
            values["size"] = _check_size(values["size"])
            container, row = self.embedded.make(**values)
            try:
                written = self._registry.write(row, txn=request.transaction)
                await (to_the_end(written) if self.is_async else settled(written))
            except DuplicateKey:
                self.embedded.unmake(container)
                raise ContainerExists(f"there is a container named {row[1]!r} already") from None
            except BaseException:
                self.embedded.unmake(container)
                raise
            if request.transaction is not None:
                self.embedded.made_in(container, request.transaction)
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
            found, txn = container_of(request), request.transaction
            self.embedded.require_there(found, txn)
            if await settled(self._registry.take(row_of(found), wait=0, txn=txn)) is None:
                raise self.embedded.why_not_taken(found)
            if txn is None:
                self.embedded.drop(found)
            else:
                self.embedded.destroyed_in(found, txn)

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
        """Write, and let give way what stands in the way, even what the same shift has written
        before: of two that are shifted into a container of size 1 the second is left. It never
        waits."""
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

    # The work

    async def _write(self, request: Request) -> list[Lease]:
        container, txn = container_of(request), request.transaction
        made = [container.stored(entry) for entry in request.entries]
        if container.active is not None:
            return await active_of(container).begin(self, made, txn)
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
        if container.active is not None:
            active_of(container).asked()
        if not take and request.is_alone and not has_branch(txn, container.space):
            txn = None  # Or others could not take what is read until the aspects have spoken.
        if question.one:
            get = space.take if take else space.read
            one = None
            if question.first is not None:
                one = await settled(get(question.first, wait=0, txn=txn))
            if one is None:
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
        if (
            tx is None
            and len(entries) == 1
            and type(cref) is Container
            and cref.quick
            and cref.owner is self.embedded
        ):
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
        if (
            tx is None
            and len(selectors) == 1
            and type(cref) is Container
            and cref.quick
            and cref.owner is self.embedded
        ):
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
        if (
            tx is None
            and len(selectors) == 1
            and type(cref) is Container
            and cref.quick
            and cref.owner is self.embedded
        ):
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
