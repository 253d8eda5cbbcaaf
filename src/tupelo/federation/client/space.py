"""Remote spaces: the operations of a space, at a host elsewhere. One text for both doors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Protocol

from tupelo.errors import BadArgument, BadTemplate, PeerLost, SpaceClosed, TupeloError
from tupelo.federation.client.arguments import (
    NUMBER_MAX,
    built,
    check_to,
    is_text,
    listed,
    parts,
)
from tupelo.federation.client.channel import Channel, OutstandingCall
from tupelo.federation.client.handles import (
    BACKLOG_MAX,
    DualHandle,
    RemoteHandle,
    RemoteLandlord,
    RemoteMatchSet,
    RemoteReaction,
    RemoteSession,
    RemoteSubscription,
    RemoteTransaction,
    WrittenEntryId,
)
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_order, read_change, read_leases, read_whole
from tupelo.space.checks import check_count, check_limit, check_order, check_position, check_wait
from tupelo.space.dual_api import dual_api, run_sync
from tupelo.space.order import Fifo, Order
from tupelo.space.port import Spanning, Transactional, check_entries
from tupelo.space.protocol import (
    AsyncSpaceLike,
    Opening,
    SpaceLike,
    names_of,
    takes_longer,
    takes_longer_to_write,
)
from tupelo.space.weak import WeakFunction
from tupelo.values.change import Change
from tupelo.values.codec import encode_entry, entry_to_wire
from tupelo.values.coverage import Coverage, check_coverage
from tupelo.values.entry import Shape, freeze
from tupelo.values.lease import AsyncLease, Lease, check_lease
from tupelo.values.notice import Notice
from tupelo.values.scope import HERE, Scope, check_scope
from tupelo.values.template_encoding import template_to_wire

Txn = RemoteTransaction | Transactional | None


class RemoteCapable(Spanning):
    """A transaction that may have branches at hosts elsewhere too."""

    @abstractmethod
    async def branch_elsewhere(self, space: RemoteOperations) -> RemoteTransaction:
        """The branch in this space, which is begun when first asked for."""


class RemoteOperations(DualHandle):
    """One space of a host, over a channel that others may share."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.is_async = channel.is_async
        self.held: set[RemoteHandle] = set()
        self._channel = channel
        self._name = name
        self._agent = ""
        self.durable = False
        self.engine_id = ""
        self.host_id = ""
        self._closed = False
        self._ahead = 0.0  # how far the clock of the host is ahead of ours
        self._landlord = RemoteLandlord(self)

    @property
    def channel(self) -> Channel:
        """What this space shares with others of the same host."""
        return self._channel

    @property
    def name(self) -> str:
        return self._name

    @property
    def agent(self) -> str:
        """The id by which the host, and others there, know this program."""
        return self._agent

    async def open(self, password: str | None) -> None:
        told = parts(await self._channel.open(self, self._name, password), 5)
        self.durable, self.engine_id, self._agent, self.host_id, now = told
        self._ahead = now - self._channel.time()

    @property
    def peer(self) -> str:
        """The address of the host."""
        return self._channel.peer

    @property
    def serial(self) -> int:
        """The number of the link that is used now."""
        return self._channel.serial

    # Asking

    def require_open(self) -> None:
        if self._closed:
            raise SpaceClosed(f"the space {self._name!r} was closed here")

    async def told(self, within: int | None = None) -> dict[str, Any]:
        told = dict(await self.ask(wire.DescribeHost(0), within))
        self._ahead = told["now"] - self._channel.time()
        return told

    def time_there(self) -> float:
        """The time at the host, whose clock ends its leases, as far as it is known here. The
        blocking door asks the host, if there is a link."""
        if not self.is_async and not self._channel.awaits_link:
            with suppress(TupeloError):
                now: float = run_sync(partial(self.told, self.serial))["now"]
                return now
        return self._channel.time() + self._ahead

    async def ask(self, message: Any, within: int | None = None) -> Any:
        return (await self.asked(message, within)).value

    async def ask_in(self, held: Any, message: Any) -> Any:
        """Ask something that may be part of a transaction or a session."""
        if held is None:
            return (await self.asked(message)).value
        try:
            return (await self.asked(message, held.serial)).value
        except PeerLost:
            if isinstance(held, RemoteTransaction):
                held.lost()
            raise

    async def asked(self, message: Any, within: int | None = None) -> OutstandingCall:
        self.require_open()
        try:
            return await self._channel.ask(message, self, within)
        except UnicodeEncodeError as error:
            if isinstance(message, wire.Write):
                raise
            raise not_unicode(error) from error

    async def branch(self, txn: Txn) -> RemoteTransaction | None:
        """What the host knows of a transaction that was given as `txn=`."""
        if txn is None:
            return None
        if isinstance(txn, RemoteCapable):
            txn = await txn.branch_elsewhere(self)
        if (
            not isinstance(txn, RemoteTransaction)
            or txn._space._channel is not self._channel
            or txn._space.name != self._name
        ):
            raise BadArgument("txn", f"a transaction of the space {self._name!r}", txn)
        txn.require()
        return txn

    def lease_of(self, thing: Any) -> Lease | AsyncLease:
        return AsyncLease(self._landlord, thing) if self.is_async else Lease(self._landlord, thing)

    # Writing, reading and taking

    async def written(
        self,
        items: list[tuple[Shape, tuple[Any, ...]]],
        lease: float | list[float | None] | None,
        txn: Txn,
        at: list[Any] | None,
        wait: float | None,
        to: str | None,
        leases: bool = True,
    ) -> list[Lease | AsyncLease]:
        """What was written; who does not want the leases spares the host the remembering."""
        check_wait(wait)
        check_to(to)
        encoded = [entry_to_wire(shape, fields) for shape, fields in items]
        branch = None if txn is None else await self.branch(txn)
        message = wire.Write(0, self._name, encoded, lease, id_of(branch), at, wait, to, leases)
        try:
            if branch is None:
                self.require_open()
                granted = (await self._channel.ask(message, self)).value
            else:
                granted = await self.ask_in(branch, message)
        except UnicodeEncodeError as error:
            for shape, fields in items:
                encode_entry(shape, fields)  # It says which field it is.
            raise BadArgument("at", "valid Unicode", at) from error
        except (TypeError, OverflowError, RecursionError) as error:
            raise BadArgument("at", "a value that can be sent", at) from error
        if not leases:
            return []
        return [self.lease_of(WrittenEntryId(*one)) for one in read_leases(granted, len(items))]

    def get_message(
        self,
        template: object,
        take: bool,
        wait: float | None,
        order: Order | None = None,
        if_exists: bool = False,
        scope: Scope | None = None,
        *,
        many: bool = False,
        limit: int | None = None,
        session: RemoteSession | None = None,
        whole: bool = False,
    ) -> wire.Get:
        """A query, checked, as it is sent."""
        if wait is not None:
            check_wait(wait)
        if limit is not None:
            check_limit(limit)
            limit = min(limit, NUMBER_MAX)
        if order is not None:
            check_order(order)
        if scope is not None:
            check_scope(scope)
        return wire.Get(
            0,
            self._name,
            template_to_wire(template),
            take,
            wait,
            many,
            limit,
            None,
            None if order is None else encode_order(order),
            bool(if_exists),
            None if session is None else session.id,
            scope,
            whole,
        )

    async def got(
        self, message: wire.Get, held: RemoteHandle | None = None, coverage: Coverage | None = None
    ) -> list[Any]:
        """What was read or taken, in a session or transaction that is held. What is taken outside
        of transactions is confirmed once it is built here; if it cannot be, or nobody wants it any
        more, it goes back."""
        if coverage is not None:
            check_coverage(coverage)
            message.coverage = True
        if isinstance(held, RemoteTransaction):
            message.txn = held.id
        if held is None and not message.take:
            build = read_whole if message.whole else built
            return [build(one) for one in _covered(await self.ask(message), coverage)]
        return await self._gained(message, held, coverage)

    async def _gained(
        self, message: wire.Get, held: RemoteHandle | None, coverage: Coverage | None
    ) -> list[Any]:
        """What is taken, or read within a transaction or session, leaves a trace at the host. If it
        does not reach its user the host is told, also if it was confirmed: it undoes it."""
        self.require_open()
        channel = self._channel
        asked = channel.asking(message, self, None if held is None else held.serial)
        try:
            while True:
                await channel.run(asked)
                entries = [built(one) for one in _covered(asked.value, coverage)]
                if not entries:
                    return []
                if held is not None or channel.confirm(asked):
                    return entries
        except UnicodeEncodeError as error:
            raise not_unicode(error) from error
        except BaseException as error:
            if asked.error is None:
                channel.cancel(asked)
            if isinstance(error, PeerLost) and isinstance(held, RemoteTransaction):
                held.lost()
            raise

    # What is held

    async def begin(
        self, lease: float | None, parent: RemoteTransaction | None = None
    ) -> RemoteTransaction:
        lease = check_lease(lease)
        above = await self.branch(parent)
        message = wire.Begin(0, self._name, lease, id_of(above))
        asked = await self.asked(message, None if parent is None else parent.serial)
        return RemoteTransaction(self, asked.serial, *parts(asked.value, 2))

    async def remember(
        self, lease: float | None, like: RemoteSession | None = None
    ) -> RemoteSession:
        lease = check_lease(lease)
        message = wire.OpenSession(0, self._name, lease, None if like is None else like.id)
        asked = await self.asked(message, None if like is None else like.serial)
        return RemoteSession(self, asked.serial, *parts(asked.value, 2))

    async def listened(
        self,
        message: wire.Subscribe,
        callback: Callable[[Notice], object] | None,
        txn: Txn,
        handback: Any,
    ) -> RemoteSubscription:
        branch = await self.branch(txn)
        message.txn = id_of(branch)
        asked = await self.asked(message, None if branch is None else branch.serial)
        subscription = RemoteSubscription(
            self, asked.serial, parts(asked.value, 3), handback, message.backlog_max
        )
        if callback is not None:
            self._channel.start(lambda: subscription.call(callback), "tupelo-notices")
        return subscription

    async def leave(self, error: BaseException | None) -> None:
        if self._closed:
            return
        held = list(self.held)
        for thing in held:
            if isinstance(thing, RemoteSubscription):
                await thing.keep_backlog()
        self._closed = True
        goodbyes = [(message, thing.serial) for thing in held if (message := thing.goodbye())]
        await self._channel.leave(self, goodbyes)


def _covered(answer: Any, coverage: Coverage | None) -> list[Any]:
    """The entries of an answer, which may also say which hosts were reached."""
    if coverage is None:
        return listed(answer)
    entries, covered, missing = parts(answer, 3)
    coverage.fill(listed(covered), listed(missing))
    return listed(entries)


def id_of(branch: RemoteTransaction | None) -> str | None:
    return None if branch is None else branch.id


def not_unicode(error: UnicodeEncodeError) -> BadTemplate:
    return BadTemplate(f"the template is not valid Unicode: {error}")


class RemoteSpaceLike(SpaceLike, Protocol):
    """A space at a host elsewhere, for threads: what `tupelo.connect` returns."""

    @property
    def agent(self) -> str: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def host(self) -> dict[str, Any]: ...

    def space(self, name: str, password: str | None = None) -> RemoteSpaceLike: ...


class AsyncRemoteSpaceLike(AsyncSpaceLike, Protocol):
    """A space at a host elsewhere, for coroutines: what `tupelo.aio.connect` returns."""

    @property
    def agent(self) -> str: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def host(self) -> Awaitable[dict[str, Any]]: ...

    def space(self, name: str, password: str | None = None) -> Opening[AsyncRemoteSpaceLike]: ...


class RemoteSpace(RemoteOperations, SpaceLike):
    """A space at a host elsewhere, with the methods of `tupelo.Space`, or on the async door with
    those of `tupelo.aio.Space`; there transactions, sessions and subscriptions are to be awaited
    too (`await space.transaction()`), or used by `async with`.

    `scope` narrows where an operation looks; `to` writes for one agent. Code is not sent: a `Where`
    and an order that is a function are refused. If the link is lost it is dialled again, and what
    only asks is asked again; see `PeerLost` for the rest.
    """

    _get_fast = staticmethod(takes_longer)
    _write_fast = staticmethod(takes_longer_to_write)

    @property
    def host(self) -> Any:
        """What the host says of itself: a dict; on the async door to be awaited."""
        return self.coming(self.told)

    def space(self, name: str, password: str | None = None) -> Any:
        """Another space of the same host, over the same link."""
        return self.coming(opened, self._channel, name, password)

    # Writing

    @dual_api
    async def _write(
        self,
        entry: object,
        lease: float | None,
        txn: Txn,
        at: Any,
        wait: float | None,
        to: str | None,
    ) -> Lease | AsyncLease:
        item = freeze(entry)
        if lease is not None:
            lease = check_lease(lease)
        place = None if at is None else [at]
        return (await self.written([item], lease, txn, place, wait, to))[0]

    @dual_api
    async def _write_all(
        self,
        entries: Iterable[object],
        lease: float | list[float | None] | None,
        txn: Txn,
        at: Sequence[Any] | None,
        wait: float | None,
        to: str | None,
    ) -> list[Lease | AsyncLease]:
        items, leases = check_entries(entries, lease, at)
        if len(items) > wire.BULK_MAX:
            what = f"at most {wire.BULK_MAX:,} at a time, at a host elsewhere"
            raise BadArgument("entries", what, f"{len(items):,}")
        return await self.written(items, leases, txn, None if at is None else list(at), wait, to)

    # Reading and taking

    @dual_api
    async def _get(
        self,
        template: object,
        take: bool,
        wait: float | None,
        many: bool,
        limit: int | None,
        txn: Txn,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None,
        coverage: Coverage | None,
    ) -> Any:
        message = self.get_message(
            template, take, wait, order, if_exists, scope, many=many, limit=limit if many else None
        )
        branch = None if txn is None else await self.branch(txn)
        found = await self.got(message, branch, coverage)
        return found if many else found[0] if found else None

    @dual_api
    async def _count(
        self, template: object, txn: Txn, scope: Scope | None, coverage: Coverage | None
    ) -> int:
        check_scope(scope)
        check_coverage(coverage)
        wanted = template_to_wire(template)
        branch = await self.branch(txn)
        message = wire.CountRequest(
            0, self._name, wanted, id_of(branch), scope, coverage is not None
        )
        answer = await self.ask_in(branch, message)
        if coverage is not None:
            answer, covered, missing = parts(answer, 3)
            coverage.fill(listed(covered), listed(missing))
        count: int = answer
        return count

    @dual_api
    async def _match_set(
        self, template: object, limit: int | None, txn: Txn, lease: float | None
    ) -> RemoteMatchSet:
        check_limit(limit)
        seconds = check_lease(lease)
        wanted = template_to_wire(template)
        branch = await self.branch(txn)
        most = None if limit is None else min(limit, NUMBER_MAX)
        message = wire.Match(0, self._name, wanted, most, id_of(branch), seconds)
        asked = await self.asked(message, None if branch is None else branch.serial)
        return RemoteMatchSet(self, asked.serial, *parts(asked.value, 2))

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Any:
        return self.coming(self.begin, lease)

    @dual_api
    async def in_doubt(self) -> list[RemoteTransaction]:
        asked = await self.asked(wire.ListPrepared(0, self._name))
        known = {held.id: held for held in self.held if isinstance(held, RemoteTransaction)}
        return [
            known.get(txn_id) or RemoteTransaction(self, asked.serial, txn_id, state="prepared")
            for txn_id in listed(asked.value)
        ]

    def session(self, *, lease: float | None = None) -> Any:
        return self.coming(self.remember, lease)

    # Subscriptions, reactions

    def _subscribe(
        self,
        template: object,
        callback: Callable[[Notice], object] | None,
        lease: float | None,
        txn: Txn,
        handback: Any,
        backlog_max: int,
        available: bool,
        returned: bool,
        scope: Scope | None,
    ) -> Any:
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function of a notice", callback)
        if iscoroutinefunction(callback) and not self.is_async:
            raise BadArgument("callback", "a plain function, or use tupelo.aio", callback)
        check_count(backlog_max, "backlog_max")
        _require_at_host(scope)
        message = wire.Subscribe(
            0,
            self._name,
            template_to_wire(template),
            check_lease(lease),
            None,
            min(backlog_max, NUMBER_MAX),
            bool(available),
            bool(returned),
        )
        return self.coming(self.listened, message, callback, txn, handback)

    @dual_api
    async def _react(
        self,
        template: object,
        function: WeakFunction,
        once: bool,
        existing: bool,
        scope: Scope | None,
    ) -> RemoteReaction:
        """Code is not sent: the function is called here."""
        if not callable(function):
            raise BadArgument("function", "a function of an entry and a step", function)
        if iscoroutinefunction(function) and not self.is_async:
            raise BadArgument("function", "a plain function, or use tupelo.aio", function)
        _require_at_host(scope)
        wanted = template_to_wire(template)
        message = wire.Subscribe(0, self._name, wanted, backlog_max=BACKLOG_MAX)
        subscription = await self.listened(message, None, None, None)

        async def look() -> list[Any]:
            message = self.get_message(template, False, 0, Fifo(), many=True, whole=True)
            return await self.got(message)

        there = await look() if existing else []
        reaction = RemoteReaction(self, subscription, look, function, bool(once))
        self._channel.start(lambda: reaction.run(there), "tupelo-reaction")
        return reaction

    # The log, closing

    @dual_api
    async def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        check_position("since", since)
        check_limit(limit)
        most = None if limit is None else min(limit, NUMBER_MAX)
        message = wire.Changes(0, self._name, min(since, NUMBER_MAX), most)
        return [read_change(encoded) for encoded in listed(await self.ask(message))]

    @dual_api
    async def trim(self, *, before: int) -> None:
        check_position("before", before)
        await self.ask(wire.Trim(0, self._name, min(before, NUMBER_MAX)))

    @dual_api
    async def compact(self) -> None:
        await self.ask(wire.Trim(0, self._name))

    @dual_api
    async def close(self) -> None:
        await self.leave(None)

    def __dir__(self) -> list[str]:
        return names_of(SpaceLike, "agent", "host", "is_async", "space")

    def __repr__(self) -> str:
        return f"{'aio.' if self.is_async else ''}RemoteSpace({self._name!r}, {self.peer!r})"


def _require_at_host(scope: Scope | None) -> None:
    """A client is told of what is at its host."""
    check_scope(scope)
    if scope is not None and scope != HERE:
        what = "HERE or None: a client is told of what comes to its host"
        raise BadArgument("scope", what, scope)


async def opened(channel: Channel, name: str, password: str | None) -> RemoteSpace:
    """A space of the host at the other end of the channel."""
    if not is_text(name) or not name:
        raise BadArgument("name", "the name of a space", name)
    if password is not None and not is_text(password):
        raise BadArgument("password", "a text, or None", password)
    space = RemoteSpace(channel, name)
    await space.open(password)
    return space
