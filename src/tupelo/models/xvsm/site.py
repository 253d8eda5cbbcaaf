"""Sites elsewhere, as a Capi uses them: a connection to a host that offers containers, with
references, transactions, leases, notifications and helpers.

A lost link is dialled again. Then reads, takes and lookups are repeated; other calls that may or
may not have been done raise PeerLost with `in_doubt=True`; transactions and notifications have
ended.

A helper computes tasks of an ActiveCoordinator elsewhere (thesis, section 8.3). It takes a task
when one of its workers is free, so that programs share the work by their capacity. It names the
functions that it computes; nothing else is run, whatever the site sends. The site holds a task for
the helper until the result is there: if the helper is closed, killed or disconnected, another
program gets the task. So a task may be computed twice, but has one result.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from tupelo.errors import (
    BadArgument,
    BadSelector,
    BadTemplate,
    LeaseLost,
    PeerLost,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
    UnknownService,
    UnknownType,
)
from tupelo.federation.client.arguments import listed, parts
from tupelo.federation.client.handles import RemoteLandlord
from tupelo.federation.client.services import connect_to_host, connect_to_host_async, invoke
from tupelo.federation.client.space import HostConnection
from tupelo.federation.links import wire as links
from tupelo.federation.links.address import Address
from tupelo.models.xvsm.active import Workers, describe_error, name_of_task, run_task
from tupelo.models.xvsm.aspects import Point, Registration
from tupelo.models.xvsm.notifications import Listener, ListenerQueue, check_operations
from tupelo.models.xvsm.wire import (
    GATE,
    METHODS,
    SERVICE,
    TO_WIRE,
    LeaseToken,
    context_to_wire,
    parse_uri,
    payload_from_wire,
    payloads_from_wire,
    require_unicode,
    uri_of,
)
from tupelo.space.dual_api import Closing, dual_api, maybe_await, run_sync
from tupelo.space.query import check_count
from tupelo.values.lease import AsyncLease, Lease

if TYPE_CHECKING:
    from tupelo.models.xvsm.capi import Capi


logger = logging.getLogger("tupelo")

STARTING_PAUSE_SECONDS = 0.05
"""How many seconds to wait before a host that is starting is asked again."""


@dataclass(unsafe_hash=True, repr=False)
class RemoteContainer:
    """A container at a site elsewhere: the reference (cref) that a program holds.

    `address` is that of the host. A reference that was made of a URI has no id: it means whichever
    container has the name.
    """

    address: Address
    name: str
    id: str | None = None

    @classmethod
    def at(cls, uri: str) -> RemoteContainer:
        """The reference for a URI such as xvsm://host:7700/jobs."""
        address, name = parse_uri(uri, "cref")
        if name is None:
            raise BadArgument("cref", "the URI of a container, such as xvsm://host:7700/jobs", uri)
        return cls(address, name)

    @property
    def site(self) -> str:
        """The URI of the site."""
        return uri_of(self.address)

    @property
    def uri(self) -> str:
        """The URI of the container."""
        return uri_of(self.address, self.name)

    def __repr__(self) -> str:
        return f"<container {self.name!r} at {self.address}>"


@dataclass(eq=False, repr=False)
class RemoteTransaction:
    """A transaction at a site elsewhere, over any number of its containers. It ends with its
    timeout, or with its link."""

    site: Site
    id: str
    expires: float | None
    state: str = "active"
    reason: str = ""

    @property
    def lease(self) -> Lease | AsyncLease:
        """The lease of the transaction."""
        return self.site.lease_of(self)

    def require_active(self) -> None:
        """TransactionEnded if the transaction has ended."""
        if self.state != "active":
            raise TransactionEnded(self.id, self.state, self.reason)

    def end(self, state: str, reason: str) -> None:
        """Note that the transaction has ended."""
        if self.state == "active":
            self.state, self.reason = state, reason

    def __repr__(self) -> str:
        return f"<transaction {self.id} at {self.site.address}, {self.state}>"


@dataclass(slots=True, eq=False)
class RemoteEntry:
    """An entry that was written at a site elsewhere, as the thing of its lease."""

    container: str
    token: LeaseToken
    expires: float | None


class RemoteNotification(ListenerQueue):
    """A notification of a container elsewhere. It ends with its link; then `error` is set."""

    def __init__(
        self, site: Site, container: RemoteContainer, listener: Listener, times: int | None
    ) -> None:
        super().__init__(site.connection.is_async, listener, times)
        self.container = container
        self._site = site
        self._name: int | None = None

    def start(self, name: int) -> None:
        """Start fetching the reports of the notification with this number."""
        self._name = name
        self._site.connection.channel.start(self._serve, "tupelo-notification")

    async def _serve(self) -> None:
        try:
            while self.active:
                answer = await self._site.call("next", {}, self._name, None)
                dropped, reports, goes_on = parts(answer, 3)
                self.dropped += dropped
                for one in listed(reports):
                    operation, entries = parts(one, 2)
                    report = (operation, payloads_from_wire(entries))
                    if not self.active or not await self._tell(report):
                        return
                self.active = self.active and goes_on
        except (LeaseLost, SpaceClosed):
            self.active = False
        except TupeloError as error:
            if self.active:
                self.error, self.active = error, False
                logger.warning("a notification of %r has ended: %s", self.container, error)

    def destroy(self) -> None:
        """End the notification: no further calls."""
        self.active = False
        if self._name is not None:
            message = links.Invoke(0, SERVICE, "unwatch", "", [self._name, None])
            self._site.connection.channel.tell(message)
            self._name = None


class Site(RemoteLandlord):
    """A connection to a host that offers containers, and the landlord of entries and transactions
    there. Each operation is one call."""

    def __init__(self, address: Address, connection: HostConnection, patience: float) -> None:
        super().__init__(connection)
        self.address = address
        self.connection = connection
        self._patience = patience
        self._met = False
        self._known: WeakValueDictionary[str, RemoteContainer] = WeakValueDictionary()

    async def call(self, name: str, context: dict[str, Any], *args: Any) -> Any:
        """Call a method of the Capi at the site. `context` is the aspect context."""
        method = METHODS[name]
        txn: RemoteTransaction | None = None
        wait: float | None = 0
        sent: list[Any] = []
        try:
            for kind, value in zip(method.arguments, args, strict=True):
                if kind == "tx":
                    txn = self.transaction(value)
                    sent.append(None if txn is None else txn.id)
                elif kind == "timeout":
                    wait = value
                elif kind != "site":
                    sent.append(TO_WIRE[kind](value) if kind in TO_WIRE else value)
            sent.append(context_to_wire(context))
            again = method.again and txn is None
            return await self._invoke(name, sent, wait, again)
        except UnicodeEncodeError as error:
            raise BadSelector(f"a selector is not valid Unicode: {error}") from error
        except PeerLost as lost:
            if txn is None:
                raise
            # Nothing is in doubt: the whole transaction was aborted.
            txn.end("aborted", "the link to its site was lost")
            raise PeerLost(lost.peer, lost.during, "its transaction was aborted") from lost
        except TransactionEnded as ended:
            known = ended.state in ("aborted", "committed")
            if known and txn is not None and ended.txn_id == txn.id:
                txn.end(ended.state, ended.reason)
            raise

    async def _invoke(
        self, method: str, sent: list[Any], wait: float | None = 0, again: bool = False
    ) -> Any:
        """Call the service. A host that has offered containers before, and does not now, is
        restarting: it is asked again for as long as a lost link is dialled."""
        channel = self.connection.channel
        takes = method == "take"
        until: float | None = None
        while True:
            try:
                answer = await invoke(
                    *(self.connection, SERVICE, method, *sent),
                    wait=wait,
                    again=again,
                    handed_over=takes,
                    build=payloads_from_wire if takes else _as_it_is,
                )
                self._met = True
                return answer
            except UnknownService:
                until = channel.time() + self._patience if until is None else until
                if not self._met or channel.time() >= until:
                    raise
            if channel.is_async:
                await asyncio.sleep(STARTING_PAUSE_SECONDS)
            else:
                time.sleep(STARTING_PAUSE_SECONDS)

    def lease_of(self, thing: Any) -> Lease | AsyncLease:
        """The lease of an entry or transaction at the site."""
        return (AsyncLease if self.connection.is_async else Lease)(self, thing)

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        thing.expires = await self._ask_lease(thing, "renew", seconds)

    async def cancel_lease_async(self, thing: Any) -> None:
        await self._ask_lease(thing, "cancel", None)
        if isinstance(thing, RemoteTransaction):
            thing.end("aborted", "its lease was cancelled")

    async def _ask_lease(self, thing: Any, how: str, seconds: float | None) -> Any:
        if isinstance(thing, RemoteTransaction):
            return await self.call("lease", {}, thing.id, None, how, seconds)
        return await self.call("lease", {}, thing.container, list(thing.token), how, seconds)

    # Answers

    def container(self, answer: Any) -> RemoteContainer:
        """The reference for a container in an answer: always the same object."""
        container_id, name = parts(answer, 2)
        known = self._known.get(container_id)
        if known is None:
            known = self._known[container_id] = RemoteContainer(self.address, name, container_id)
        return known

    async def operate(
        self,
        operation: str,
        context: dict[str, Any],
        cref: RemoteContainer,
        timeout: float | None,
        tx: Any,
        items: list[Any],
        *how: Any,
    ) -> Any:
        """Write, shift, read, test, take or destroy; `items` are entries or selectors."""
        call = self.call(operation, context, cref, timeout, tx, items, *how)
        if operation == "read":
            return payloads_from_wire(await call)
        if operation not in ("write", "shift"):
            return await call
        try:
            granted = await call
        except BadTemplate:
            require_unicode(items)
            raise
        leases = []
        for one in parts(granted, len(items)):
            container, work, n, arrival, expires = parts(one, 5)
            written = RemoteEntry(cref.name, (container, work, n, arrival), expires)
            leases.append(self.lease_of(written))
        return leases

    async def end(self, txn: RemoteTransaction, commit: bool, context: dict[str, Any]) -> None:
        """Commit or roll back a transaction at the site."""
        if not commit and txn.state == "aborted":
            return
        txn.require_active()
        sent = [txn.id, context_to_wire(context)]
        try:
            await self._invoke("commit_transaction" if commit else "rollback_transaction", sent)
        except PeerLost as lost:
            in_doubt = commit and lost.in_doubt
            txn.end("unknown" if in_doubt else "aborted", "the link to its site was lost")
            if commit:
                raise
        except TransactionEnded as ended:
            txn.end(ended.state, ended.reason)
            if commit or ended.state != "aborted":
                raise
        txn.end("committed" if commit else "aborted", "")

    def transaction(self, tx: Any) -> RemoteTransaction | None:
        """The transaction given as `tx`. BadArgument if it is not one of this site."""
        if tx is None:
            return None
        if not isinstance(tx, RemoteTransaction) or tx.site is not self:
            expected = f"a transaction that this Capi has created at {uri_of(self.address)}"
            raise BadArgument("tx", expected, tx)
        tx.require_active()
        return tx

    async def watch(
        self,
        context: dict[str, Any],
        cref: RemoteContainer,
        listener: Listener,
        operations: tuple[str, ...],
        times: int | None,
        every_removal: bool,
    ) -> RemoteNotification:
        """Create a notification at the site."""
        check_operations(operations, every_removal)
        notification = RemoteNotification(self, cref, listener, times)
        watched = self.call("watch", context, cref, list(operations), every_removal)
        notification.start(await watched)
        return notification

    async def add_aspect(
        self,
        context: dict[str, Any],
        cref: RemoteContainer | None,
        points: list[Point],
        aspect: Any,
    ) -> Registration:
        """Add an aspect that the site offers by this name."""
        if not isinstance(aspect, str):
            expected = "the name of an aspect that is offered at the site: code is not sent"
            raise BadArgument("aspect", expected, aspect)
        added = Registration(aspect, points)
        added.id = await self.call("add_aspect", context, cref, points, aspect)
        return added


class Sites:
    """The connections of one Capi to sites elsewhere, opened on first use."""

    def __init__(self, is_async: bool, default: str | None, options: dict[str, Any]) -> None:
        self._connect = connect_to_host_async if is_async else connect_to_host
        self._default = None if default is None else _address(default)
        self._password = options.pop("password", None)
        self._options = options
        self._open: dict[Address, Site] = {}
        self._closed = False
        self.endings: dict[Callable[[], object], None] = {}  # called when the Capi is closed

    def for_threads(self) -> Sites:
        """The same sites and options, for a blocking Capi."""
        sites = Sites(False, None, {**self._options, "password": self._password})
        sites._default = self._default
        return sites

    def address_of(self, site: object) -> Address | None:
        """The address for the argument `site`; None for the embedded space."""
        return self._default if site is None else _address(site)

    async def at(self, address: Address) -> Site:
        """The connection to the site at this address."""
        if self._closed:
            raise SpaceClosed("the Capi was closed")
        site = self._open.get(address)
        if site is not None:
            return site
        options = dict(self._options)
        if self._password is not None and address == self._default:
            options.update(password=self._password, about=GATE)
        try:
            connection = await maybe_await(self._connect(f"tupelo://{address}", **options))
        except BadArgument as error:
            if error.argument != "name":
                raise
            # A host that offers no containers has no space with their password.
            raise UnknownService(SERVICE, str(address)) from None
        new = Site(address, connection, self._options["reconnect"])
        site = self._open.setdefault(address, new)
        if site is not new:  # Another thread or task has connected meanwhile.
            await connection.leave(None)
        return site

    async def close(self) -> None:
        """Disconnect from all sites, and end their helpers."""
        self._closed = True
        for end in list(self.endings):
            end()
        sites, self._open = list(self._open.values()), {}
        for site in sites:
            with suppress(TupeloError):
                await site.connection.leave(None)


def _address(site: object) -> Address:
    address, name = parse_uri(site, "site")
    if name is not None:
        raise BadArgument("site", "a site, without the name of a container", site)
    return address


def _as_it_is(answer: Any) -> Any:
    return answer


class Helper(Closing):
    """Computes tasks of a container elsewhere until it is closed.

    `done` counts the results that the site has recorded. `unconfirmed` counts the results that were
    computed here while the link was lost: the site may have recorded them, or gives the tasks to
    another program. `error` says why the helper has ended, if it was not closed.
    """

    def __init__(
        self,
        sites: Sites,
        is_async: bool,
        cref: RemoteContainer,
        functions: tuple[Callable[..., Any], ...],
        workers: int,
    ) -> None:
        from tupelo.models.xvsm.capi import Capi

        if not functions:
            raise BadArgument("functions", "one function or more that is computed here", functions)
        self.is_async = is_async
        self.container = cref
        self.done = 0
        self.unconfirmed = 0
        self.error: TupeloError | None = None
        self._functions = {name_of_task(function, "functions"): function for function in functions}
        self._workers = Workers(check_count(workers, "workers"), self._take, self._do)
        self._outer = sites
        self._capi = Capi()
        self._capi.sites = sites.for_threads()
        sites.endings[self._close] = None
        self._workers.hire()

    def __repr__(self) -> str:
        return f"<Helper of {self.container!r}, {self.done} results>"

    @property
    def active(self) -> bool:
        """Whether the helper still takes tasks."""
        return not self._workers.closed

    @dual_api
    async def close(self) -> None:
        """Stop: the tasks that are being computed here are given to other programs."""
        await asyncio.to_thread(self._close) if self.is_async else self._close()

    def _close(self) -> None:
        self._workers.closed = True
        self._outer.endings.pop(self._close, None)
        self._capi.close()

    def _place(self) -> tuple[Capi, RemoteContainer]:
        return self._capi, self.container

    def _call(self, name: str, *args: Any) -> Any:
        site = run_sync(partial(self._capi.sites.at, self.container.address))
        return run_sync(partial(site.call, name, {}, *args))

    def _take(self) -> Any:
        try:
            return self._call("next_task", self.container, None, list(self._functions))
        except TupeloError as error:
            if self.active:
                self.error = error
                logger.warning("%r is helped no more: %s", self.container, error)
            raise SpaceClosed("this helper has ended") from error

    def _do(self, found: Any) -> None:
        task, name, encoded = parts(found, 3)
        try:
            arguments = payload_from_wire(encoded)
        except UnknownType as error:
            logger.warning("%s is not computed here any more: %s", name, error)
            self._functions.pop(name, None)
            self._finish(task, None, None)
            return
        ok, value = run_task(self._functions.__getitem__, name, arguments, self._place)
        try:
            self._finish(task, ok, value)
        except SpaceClosed:
            raise
        except TupeloError as error:  # The result cannot be sent.
            self._finish(task, False, describe_error(error))

    def _finish(self, task: int, ok: bool | None, value: Any) -> None:
        try:
            self._call("finish_task", task, ok, value)
        except (LeaseLost, PeerLost) as error:
            if ok is not None:
                self.unconfirmed += 1
                logger.warning("a result for %r may be computed again: %s", self.container, error)
            return
        self.done += ok is not None
