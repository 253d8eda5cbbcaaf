"""A site: the containers of a Capi, offered by a host to clients elsewhere.

Coordinators, selectors, aspects and transactions run where the containers are, on the host's loop.
So an aspect of an offered container must not block, and `request.capi` is an AsyncCapi. Only the
classes that aspects and ActiveEntries use must be known here; entries of other classes are
represented by a stand-in.

An entry that a client takes is a delivery: it is removed when the client has confirmed it, and
returned if the client vanishes. Without aspects, the delivery is a reservation in the container's
space. With aspects, it is a transaction around the operation that ends with the confirmation,
because an aspect may have changed other containers too. A container in a folder keeps its
deliveries over a crash of this program.

Transactions, notifications and tasks of a client end with its link.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from tupelo.errors import (
    BadArgument,
    BadFrame,
    ContainerNotFound,
    LeaseLost,
    NotAllowed,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
)
from tupelo.federation.client.arguments import listed, parts
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import HostDoor
from tupelo.federation.hosts.services import Caller, HandOver
from tupelo.federation.identity.access import Access
from tupelo.federation.links import wire as links
from tupelo.federation.links.reception import SPACES_MAX
from tupelo.federation.spaces.hosted import Doubt, HostedSpace
from tupelo.models.xvsm.active import AssignedTask, active_of
from tupelo.models.xvsm.aspects import Point, Registration
from tupelo.models.xvsm.capi import AsyncCapi, seconds
from tupelo.models.xvsm.chain import ChainQuery
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.embedded import ContainerRow, Embedded, error_of_closed
from tupelo.models.xvsm.notifications import Notification, NotificationReport, check_operations
from tupelo.models.xvsm.selectors import REPEATABLE_READ, IsolationLevel, LindaSelector, Selector
from tupelo.models.xvsm.wire import (
    FROM_WIRE,
    GATE,
    METHODS,
    SERVICE,
    LeaseToken,
    context_from_wire,
    payload_to_wire,
    selectors_from_wire,
    token_from_wire,
    uri_of,
)
from tupelo.space.delivery import Delivery, Prepared
from tupelo.space.port import Port, port_of
from tupelo.space.shared import SharedTransaction
from tupelo.space.tasks import to_the_end
from tupelo.values.codec import entry_to_wire
from tupelo.values.entry import Entry as CoreEntry
from tupelo.values.entry import Typed, shape_of, thaw, types_of
from tupelo.values.holder import Holder
from tupelo.values.lease import AsyncLease, Lease
from tupelo.values.parts import ANY

logger = logging.getLogger("tupelo")

REPORTS_MAX = 64
"""How many operations one answer to a notification reports."""
REPORTS_BYTES = 4 * 2**20
"""An answer to a notification is sent when it has so many bytes."""
AROUND_BYTES = 1_024
"""The bytes of a message besides the report that it contains."""
CLIENT_HANDLES_MAX = 10_000
"""How many transactions, notifications and tasks one client may have at a time."""
FUNCTIONS_MAX = 1_000
"""How many functions a helper of an ActiveCoordinator may name."""
WRITTEN_MAX = 1_000
"""From so many written entries on, those that have ended are removed from the table."""


Wait = float | None
SiteTxn = SharedTransaction | None


class ServingCapi(AsyncCapi):
    """The Capi of one client; entries may be of classes that are unknown here."""

    def __init__(self, embedded: Embedded, context: dict[str, Any]) -> None:
        super().__init__(embedded)
        self._context = context

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Do the work on another thread if the containers are in a folder: the host serves others
        meanwhile."""
        if self.embedded.path is None:
            return work()
        return await to_the_end(asyncio.to_thread(work))

    async def _fetch(
        self,
        container: Container,
        question: ChainQuery,
        take: bool,
        wait: Wait,
        txn: SiteTxn,
        **how: bool,
    ) -> list[Any]:
        entries = await fetch(container, question, take, wait, txn, **how)
        return [container.value(thaw(one.shape, one.fields, stand_ins=True)) for one in entries]


class SiteClient:
    """The transactions, notifications and tasks of one client. They end with its link."""

    def __init__(self, site: SiteService, caller: Caller) -> None:
        self.caller = caller
        self.capi = ServingCapi(site.embedded, {})
        self.holder = Holder("client", caller.agent, caller.session)
        self.gone = False
        self.transactions: dict[str, SharedTransaction] = {}
        self.watches: dict[int, Notification] = {}
        self.tasks: dict[int, AssignedTask] = {}
        self.written: dict[tuple[str, bool, int], CoreEntry] = {}
        self._written_max = WRITTEN_MAX
        self._settling: set[asyncio.Future[object]] = set()

    def require_room(self) -> None:
        """BadArgument if the client has too many transactions, notifications and tasks."""
        held = len(self.transactions) + len(self.watches) + len(self.tasks)
        if held >= CLIENT_HANDLES_MAX:
            raise BadArgument("things", f"at most {CLIENT_HANDLES_MAX} held at a time", held)

    def transaction(self, txn_id: Any) -> SharedTransaction | None:
        return None if txn_id is None else self.require_transaction(txn_id)

    def require_transaction(self, txn_id: Any) -> SharedTransaction:
        """The open transaction with this id. TransactionEnded if there is none."""
        txn = self.transactions.get(txn_id) if type(txn_id) is str else None
        if txn is None:
            raise TransactionEnded(str(txn_id), "aborted", "its link was lost, or it has ended")
        return txn

    def remember_written(self, container: Container, leases: list[Lease]) -> None:
        """Remember entries that were written in a transaction: their arrival is not final yet."""
        if len(self.written) >= self._written_max:
            self.written = {token: e for token, e in self.written.items() if not e.ended}
            self._written_max = max(WRITTEN_MAX, 2 * len(self.written))
        for lease in leases:
            token = (container.id, container.active is not None, lease.thing.n)
            self.written[token] = lease.thing

    def settle(self, ending: Future[object] | None) -> None:
        """Track the end of a delivery to this client."""
        if ending is not None:
            settling = asyncio.wrap_future(ending)
            self._settling.add(settling)
            settling.add_done_callback(self._settled)

    def _settled(self, settling: asyncio.Future[object]) -> None:
        self._settling.discard(settling)
        if not settling.cancelled() and settling.exception() is not None:
            logger.warning("a delivery could not be settled: %r", settling.exception())

    async def settled(self) -> None:
        """Wait until earlier deliveries to this client are settled, so that its next operation does
        not see entries that it has taken."""
        while self._settling:
            await asyncio.wait(list(self._settling))


class SiteCall(NamedTuple):
    """A call of a client, with the Capi for it."""

    client: SiteClient
    capi: ServingCapi
    message: links.Invoke


class SiteService:
    """The service "xvsm" of a host."""

    def __init__(self, embedded: Embedded, core: HostCore, aspects: dict[str, Any]) -> None:
        self.embedded = embedded
        self._core = core
        self._aspects = aspects
        self._clients: dict[str, SiteClient] = {}
        self._registrations: dict[str, Registration] = {}
        self._count = 0

    def begin(self, doubtful: dict[Holder, list[tuple[Port, Prepared]]]) -> None:
        """The service is offered. Deliveries that a crash has left in doubt wait for their clients
        to come back."""
        for holder, branches in doubtful.items():
            if holder.kind == "client":
                # A host without a folder gets a new id at each start, and client names end with
                # the host id.
                who = f"{holder.who.rpartition('@')[0]}@{self._core.id}"
                owner = Holder("client", who, holder.incarnation).owner
                self._core.doubts.leave(owner, {holder.call: self._recovered(branches)})

    def _recovered(self, branches: list[tuple[Port, Prepared]]) -> HandOver:
        def end(confirmed: bool) -> None:
            self.embedded.end_soon(partial(self.embedded.end_delivery, branches, confirmed))

        return HandOver(None, partial(end, True), partial(end, False), space=GATE)

    # As a service

    async def invoke(self, caller: Caller, message: links.Invoke) -> Any:
        """Serve a call of a client: decode its arguments, check its permissions, and call the
        method."""
        method = METHODS.get(message.method)
        if method is None:
            raise BadArgument("method", f"one of {', '.join(METHODS)}", message.method)
        for rule in method.rules:
            caller.hosted(GATE, rule)
        client = self._clients.get(caller.session)
        if client is None:
            client = self._clients[caller.session] = SiteClient(self, caller)
        *sent, context = parts(message.args, method.sent + 1)
        capi = (
            client.capi
            if context is None
            else ServingCapi(self.embedded, context_from_wire(context))
        )
        await client.settled()
        call = SiteCall(client, capi, message)
        args: list[Any] = []
        for kind in method.arguments:
            if kind == "site":
                args.append(None)
            elif kind == "timeout":
                args.append(message.wait)
            elif kind == "selectors":
                args.append(self._selectors(client, args[0], sent.pop(0)))
            else:
                args.append(await self._argument(call, kind, sent.pop(0)))
        handler = getattr(self, f"_{message.method}", None)
        if handler is not None:
            return await handler(call, *args)
        options = {}
        if "selectors" in method.arguments:
            at = method.arguments.index("selectors")
            options = dict(zip(method.arguments[at + 1 :], args[at + 1 :], strict=True))
            args = [*args[:at], *args[at]]
        return _encoded_answer(await getattr(capi, message.method)(*args, **options))

    async def _argument(self, call: SiteCall, kind: str, sent: Any) -> Any:
        if kind == "tx":
            return call.client.transaction(sent)
        if kind == "cref":
            return None if sent is None else await self._container(call.capi, sent)
        return FROM_WIRE[kind](sent) if kind in FROM_WIRE else sent

    def _selectors(self, client: SiteClient, container: Container, sent: Any) -> list[Selector]:
        selectors = selectors_from_wire(sent)
        for selector in selectors:
            if isinstance(selector, LindaSelector) and selector.wanted is not None:
                try:
                    selector.entry = self._entry(client, container, selector.wanted)
                except LeaseLost:  # The entry has left: match nothing.
                    selector.entry = Lease(container.port, None)
        return selectors

    def left(self, caller: Caller) -> None:
        """The link of a client has ended: end its notifications, tasks and transactions."""
        client = self._clients.pop(caller.session, None)
        if client is None:
            return
        client.gone = True
        for watch in list(client.watches.values()):
            watch.destroy()
        for task in client.tasks.values():
            task.give_back()
        for txn in list(client.transactions.values()):
            if not txn.ended:
                self.embedded.end_soon(partial(_abort, txn))

    # Containers

    async def _container(self, capi: ServingCapi, cref: Any) -> Container:
        """The container of a reference: id and name, or name alone."""
        container_id, name = parts(cref, 2)
        if type(name) is not str or type(container_id) not in (str, type(None)):
            raise BadFrame("a container is named by its id and name")
        if container_id is not None:
            container = self.embedded.known(container_id)
            if container is not None:
                return container
        row: ContainerRow | None = await self.embedded.registry_aio.read(
            ("container", name, ANY if container_id is None else container_id, ANY, tuple), wait=0
        )
        if row is not None:
            opened: Container = await capi._do(partial(self.embedded.opened, row))
            return opened
        if container_id is None:
            raise ContainerNotFound(f"there is no container named {name!r}")
        raise ContainerNotFound(f"the container {name!r} was destroyed")

    # The space itself

    async def _create_container(
        self, call: SiteCall, txn: SiteTxn, site: None, name: Any, size: Any, *coordinators: Any
    ) -> Any:
        if await self.embedded.registry_aio.count() >= SPACES_MAX:
            raise NotAllowed("make one more container", str(name), "a client")
        create = call.capi.create_container
        given, optional = coordinators
        return _encoded_answer(await create(txn, site, name, size, *given, optional=optional))

    async def _create_transaction(self, call: SiteCall, site: None, timeout: Any) -> Any:
        client = call.client
        client.require_room()
        txn: SharedTransaction = await call.capi.create_transaction(site, timeout)
        if client.gone:
            self.embedded.end_soon(partial(_abort, txn))
        client.transactions[txn.id] = txn
        return [txn.id, txn.expires]

    async def _commit_transaction(self, call: SiteCall, txn: SharedTransaction | None) -> None:
        try:
            await getattr(call.capi, call.message.method)(txn)
        finally:
            if txn is not None and txn.ended:
                call.client.transactions.pop(txn.id, None)

    _rollback_transaction = _commit_transaction

    # Entries

    async def _write(
        self, call: SiteCall, container: Container, wait: Wait, txn: SiteTxn, entries: list[Any]
    ) -> Any:
        leases: list[Lease] | None = None
        if call.message.method == "shift":
            leases = await call.capi.shift(container, txn, *entries)
        elif txn is None and container.fast_owner and self.embedded.path is None:
            leases = container.write_quickly(entries, wait)
        if leases is None:  # The fast path does not apply, or the disk must be waited for.
            leases = await call.capi.write(container, wait, txn, *entries)
        if txn is not None:
            call.client.remember_written(container, leases)
        work = container.active is not None
        return [
            [container.id, work, lease.thing.n, lease.thing.arrival, lease.thing.expires]
            for lease in leases
        ]

    _shift = _write

    async def _read(
        self,
        call: SiteCall,
        container: Container,
        wait: Wait,
        txn: SiteTxn,
        selectors: list[Any],
        isolation: IsolationLevel,
    ) -> Any:
        if txn is not None or not container.fast_owner or isolation is not REPEATABLE_READ:
            read = call.capi.read
            values = await read(container, wait, txn, *selectors, isolation=isolation)
            return [payload_to_wire(value) for value in values]
        question = container.question(tuple(selectors))
        try:
            entries = await fetch(container, question, False, seconds(wait), None)
        except SpaceClosed as error:
            raise error_of_closed(container, error) from None
        return [_encoded(container, entry) for entry in entries] or _nothing(question)

    async def _take(
        self, call: SiteCall, container: Container, wait: Wait, txn: SiteTxn, selectors: list[Any]
    ) -> Any:
        client, holder = call.client, call.client.holder.of_call(call.message.call)
        if txn is None and container.fast_owner:
            question = container.question(tuple(selectors))
            return await self._reserve(client, container, question, seconds(wait), holder)
        inner = self.embedded.begin(None, txn_id=holder.id) if txn is None else txn.transaction()
        try:
            values = await call.capi.take(container, wait, inner, *selectors)
            answer = [payload_to_wire(value) for value in values]
            if txn is None:  # Prepared: the commit cannot fail any more.
                await self._ended(partial(inner.promise, holder))
        except BaseException:
            self._settle(client, inner, "abort")
            raise
        return self._handed_over(
            client,
            answer,
            lambda: self._settle(client, inner, "commit"),
            lambda: self._settle(client, inner, "abort"),
        )

    async def _ended(self, work: Callable[[], object]) -> None:
        ending = self.embedded.end_soon(work)
        if ending is not None:
            await asyncio.wrap_future(ending)

    def _settle(
        self, client: SiteClient, txn: SharedTransaction, how: Literal["commit", "abort"]
    ) -> None:
        """End the transaction of a delivery. A nested transaction never waits for the disk."""

        def end() -> None:
            try:
                txn.commit() if how == "commit" else txn.abort()
            except TransactionEnded:
                pass
            except TupeloError:
                logger.exception("a delivery of %s could not be settled", txn)

        if txn.parent is not None:
            end()
        else:
            client.settle(self.embedded.end_soon(end))

    def _handed_over(
        self,
        client: SiteClient,
        answer: Any,
        keep: Callable[[], object],
        give_back: Callable[[], object],
        forget: Callable[[], object] | None = None,
    ) -> HandOver:
        """A delivery; it is given back if the client has left meanwhile."""
        if client.gone:
            give_back()
            raise SpaceClosed("the client has left")
        return HandOver(answer, keep, give_back, forget, GATE)

    async def _reserve(
        self,
        client: SiteClient,
        container: Container,
        question: ChainQuery,
        wait: Wait,
        holder: Holder,
    ) -> Any:
        """The fast path of a take: no transaction and no aspects."""
        port = container.port
        delivery: Delivery | None = None
        try:
            for query in question.queries(port, True, wait, None, known=False):
                if (delivery := await port.reserve(query, holder)) is not None:
                    break
        except SpaceClosed as error:
            raise error_of_closed(container, error) from None
        if delivery is None:
            return _nothing(question)
        taken = delivery
        return self._handed_over(
            client,
            [_encoded(container, entry) for entry in taken.entries],
            lambda: port.flush_soon(taken.confirm()),
            lambda: port.flush_soon(taken.give_back()),
            taken.forget,
        )

    # Work for an ActiveCoordinator

    async def _next_task(self, call: SiteCall, container: Container, wait: Wait, names: Any) -> Any:
        """A task for a helper that computes these functions: its id, the function, and the
        arguments."""
        client = call.client
        client.require_room()
        functions = listed(names)
        if not 0 < len(functions) <= FUNCTIONS_MAX or {*map(type, functions)} != {str}:
            raise BadArgument("functions", f"1 to {FUNCTIONS_MAX} names", functions)
        task = await active_of(container).assign(functions, seconds(wait))
        if task is None:
            return None
        if client.gone:
            task.give_back()
            raise SpaceClosed("the client has left")
        self._count += 1
        client.tasks[self._count] = task
        return [self._count, task.job[3], payload_to_wire(task.job[4])]

    async def _finish_task(self, call: SiteCall, id: Any, ok: Any, value: Any) -> None:
        """The result of a task, or its error; with None for `ok` the task is given back."""
        task = call.client.tasks.pop(id, None) if type(id) is int else None
        if task is None:
            raise LeaseLost("the task was given to another program")
        if ok is None:
            task.give_back()
        else:
            if not ok:
                reason, detail = parts(list(value) if isinstance(value, tuple) else value, 2)
                value = str(reason), str(detail)
            await task.finish(bool(ok), value)

    # Leases

    def _entry(self, client: SiteClient, container: Container, token: LeaseToken) -> AsyncLease:
        """The lease of an entry that a client has written. LeaseLost if the entry has left."""
        container_id, work, n, arrival = token
        if container_id != container.id or work is not (container.active is not None):
            raise LeaseLost("the entry is not one of this container")
        port = port_of(container.spaces[-1]) if work else container.port
        entry = client.written.get((container_id, work, n))
        if entry is None:
            entry = port.entry_of(port.agent, n, arrival)
        return AsyncLease(port, entry)

    async def _lease(
        self, call: SiteCall, name: Any, sent: Any, how: Any, asked: float | None
    ) -> Any:
        """Renew or cancel the lease of an entry, or of a transaction if `sent` is None."""
        client = call.client
        if sent is None:
            txn = client.require_transaction(name)
            lease = AsyncLease(txn, txn)
        else:
            client.caller.hosted(GATE, "write" if how == "renew" else "take")
            token = token_from_wire(sent)
            container = await self._container(call.capi, [token[0], name])
            lease = self._entry(client, container, token)
        await (lease.renew(asked) if how == "renew" else lease.cancel())
        return lease.expires

    # Notifications and aspects

    async def _watch(
        self, call: SiteCall, container: Container, operations: Any, every_removal: Any
    ) -> int:
        client = call.client
        client.require_room()
        points = check_operations(tuple(listed(operations)), every_removal)
        watch = Notification(call.capi, container, _ignore_report, None, every_removal)
        await call.capi._notify(watch, points, calls=False)
        self._count += 1
        client.watches[self._count] = watch
        if client.gone:
            watch.destroy()
        return self._count

    async def _next(self, call: SiteCall, id: Any, wait: float | None) -> Any:
        """The next reports of a notification: how many were dropped, the reports, and whether it is
        still active."""
        watch = call.client.watches.get(id)
        if watch is None:
            raise LeaseLost("this notification is over")
        reports: list[msgspec.Raw] = []
        size = 0
        next_one = await watch.next_report()
        while next_one is not None:
            content = _pack(next_one, call.client.caller.message_max - AROUND_BYTES)
            if content is None:
                watch.dropped += 1
            elif reports and size + len(content) > REPORTS_BYTES:
                watch.put_back(next_one)
                break
            else:
                size += len(content)
                reports.append(msgspec.Raw(content))
            next_one = watch.waiting_report() if len(reports) < REPORTS_MAX else None
        await watch.on_disk()
        dropped, watch.dropped = watch.dropped, 0
        return [dropped, reports, watch.active]

    async def _unwatch(self, call: SiteCall, id: Any) -> None:
        watch = call.client.watches.pop(id, None)
        if watch is not None:
            watch.destroy()

    async def _add_aspect(
        self, call: SiteCall, container: Container | None, points: Any, name: Any
    ) -> str:
        if type(name) is not str or name not in self._aspects:
            offered = ", ".join(self._aspects) or "none is"
            raise BadArgument("aspect", f"the name of one that is offered there ({offered})", name)
        add = call.capi.add_aspect
        added: Registration = await add(container, _points(points), self._aspects[name])
        self._registrations[added.id] = added
        return added.id

    async def _remove_aspect(
        self, call: SiteCall, container: Container | None, points: Any, id: Any
    ) -> None:
        registration = self._registrations.get(id) if type(id) is str else None
        if registration is None:
            raise BadArgument("registration", "what add_aspect answered", id)
        await call.capi.remove_aspect(container, _points(points), registration)


async def offer(
    embedded: Embedded,
    is_async: bool,
    host: object,
    access: Access | None,
    doubt: Doubt | None,
    aspects: object,
) -> str:
    """Let a host offer these containers: see `Capi.offer`."""
    if not isinstance(host, HostDoor):
        raise BadArgument("host", "a tupelo.Host", host)
    if not isinstance(aspects, dict) or not all(isinstance(name, str) for name in aspects):
        raise BadArgument("aspects", "a dict of aspects by name", aspects)

    if embedded.site is not None and not embedded.site.closed:
        raise BadArgument("host", "left out: a host offers the containers already", host)
    recover = embedded.deliveries_in_doubt
    doubtful = await asyncio.to_thread(recover) if is_async else recover()

    def make(core: HostCore) -> SiteService:
        before = core.services.get(SERVICE)
        if isinstance(before, SiteService) and not before.embedded.closed:
            raise BadArgument("host", "one that offers no other containers", host)
        if not core.address:
            raise BadArgument("host", "one that listens", host)
        return SiteService(embedded, core, aspects)

    def offered(hidden: HostedSpace) -> None:
        service = host.core.services[SERVICE]
        assert isinstance(service, SiteService)
        embedded.site = host.core
        service.begin(doubtful)

    host.offer(SERVICE, make, access=access, doubt=doubt, offered=offered)
    return uri_of(host.address)


def _encoded_answer(answer: Any) -> Any:
    """An answer, encoded: a container is sent as its id and name."""
    return [answer.id, answer.name] if isinstance(answer, Container) else answer


def _nothing(question: ChainQuery) -> list[Any]:
    """The answer to a query that found nothing. CountNotMet if an empty result is not valid."""
    short = question.not_met()
    if short is not None:
        raise short
    return []


async def fetch(
    container: Container,
    question: ChainQuery,
    take: bool,
    wait: Wait,
    txn: SharedTransaction | None,
    **how: bool,
) -> list[CoreEntry]:
    """The entries that the space of a container returns, as they are stored."""
    found: list[CoreEntry] = []
    for query in question.queries(container.port, take, wait, txn, known=False, **how):
        if found := await container.port.fetch(query):
            break
    return found


def _encoded(container: Container, entry: CoreEntry) -> Any:
    """An entry, encoded, without the fields of the coordinators."""
    shape, fields = entry.shape, entry.fields
    if container.width and shape.kind is None:
        fields = fields[container.width :]
        if len(fields) == 1 and type(fields[0]) is Typed:
            typed = fields[0]
            shape, fields = shape_of(typed.kind, types_of(typed.values)), typed.values
        else:
            shape = shape_of(None, types_of(fields))
    return entry_to_wire(shape, fields)


def _pack(report: NotificationReport, bytes_max: int) -> bytes | None:
    """A report of a notification, encoded; None if it cannot be sent, or is longer."""
    operation, entries = report
    try:
        payloads = [payload_to_wire(entry) for entry in entries]
        content = msgspec.msgpack.encode([operation, payloads])
    except (TupeloError, UnicodeEncodeError):
        return None
    return content if len(content) <= bytes_max else None


def _ignore_report(*report: Any) -> None:
    """The listener of a notification whose reports the client fetches."""


def _points(names: Any) -> list[Point]:
    try:
        return [Point(name) for name in listed(names)]
    except ValueError as error:
        raise BadArgument("points", "points such as Point.PRE_WRITE", names) from error


def _abort(txn: SharedTransaction) -> None:
    with suppress(TransactionEnded):  # It may be committing.
        SharedTransaction.abort(txn, "the link to its client was lost")
