"""A space at another host, as a client uses it. One implementation serves the blocking and the
async API.

`HostConnection` is the connection itself: it sends calls over a channel and knows the clock of the
host. `RemoteSpace` adds the operations of a space.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol, Self

import msgspec

from tupelo.errors import (
    BadArgument,
    BadFrame,
    BadTemplate,
    PeerLost,
    SpaceClosed,
    TupeloError,
)
from tupelo.federation.client.arguments import (
    NUMBER_MAX,
    built,
    check_to,
    listed,
    parts,
)
from tupelo.federation.client.channel import Channel, OutstandingCall, may_ask_again
from tupelo.federation.client.handles import (
    BACKLOG_MAX,
    RemoteHandle,
    RemoteLandlord,
    RemoteMatchSet,
    RemoteSession,
    RemoteSpaceTransaction,
    RemoteSubscription,
    WrittenEntryId,
)
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_order, read_change, read_leases, read_whole
from tupelo.space.dual_api import DualHandle, dual_api, run_sync
from tupelo.space.fetching import FetchingReaction
from tupelo.space.order import Fifo, Order
from tupelo.space.port import Spanning, Transactional, check_entries
from tupelo.space.protocol import (
    NOT_AT_ALL,
    AsyncSpaceLike,
    Opening,
    SpaceLike,
    names_of,
    takes_longer,
    takes_longer_to_write,
)
from tupelo.space.query import (
    check_count,
    check_delay,
    check_limit,
    check_order,
    check_position,
    check_wait,
)
from tupelo.space.reaction import WeakFunction
from tupelo.values.change import Change, Notice
from tupelo.values.codec import encode_entry, entry_to_wire
from tupelo.values.entry import About, FrozenEntry, check_about, freeze, note_about
from tupelo.values.holder import Delayed, InHand
from tupelo.values.lease import AsyncLease, Lease, check_lease
from tupelo.values.parts import ANY
from tupelo.values.scope import HERE, Coverage, Scope, check_coverage, check_scope
from tupelo.values.template_encoding import template_to_wire

RemoteTxn = RemoteSpaceTransaction | Transactional | None


class RemoteCapable(Spanning):
    """A transaction that can have branches at other hosts."""

    @abstractmethod
    async def branch_elsewhere(self, space: RemoteSpace) -> RemoteSpaceTransaction:
        """The branch of this transaction in `space`; the first call begins it."""


class RemoteSpaceLike(SpaceLike, Protocol):
    """A space at another host, blocking: the result of `tupelo.connect`."""

    @property
    def agent(self) -> str: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def host(self) -> dict[str, Any]: ...

    def space(
        self, name: str, password: str | None = None, create: bool = True
    ) -> RemoteSpaceLike: ...


class AsyncRemoteSpaceLike(AsyncSpaceLike, Protocol):
    """A space at another host, for coroutines: the result of `tupelo.aio.connect`."""

    @property
    def agent(self) -> str: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def host(self) -> Awaitable[dict[str, Any]]: ...

    def space(
        self, name: str, password: str | None = None, create: bool = True
    ) -> Opening[AsyncRemoteSpaceLike]: ...


class HostConnection(DualHandle):
    """A connection to a host and to one of its spaces, whose access rules and password apply. Its
    channel may be shared with other connections to the same host. Use it with `with` or
    `async with`; `connect_to_host` opens one for the services of a host."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.is_async = channel.is_async
        self.handles: set[RemoteHandle] = set()
        self.durable = False
        self.engine_id = ""
        self.host_id = ""
        self._channel = channel
        self._name = name
        self._agent = ""
        self._closed = False
        self._clock_offset = 0.0  # clock of the host minus our clock
        self._landlord = RemoteLandlord(self)

    @classmethod
    async def opened(
        cls, channel: Channel, name: str, password: str | None, create: bool = True
    ) -> Self:
        """Open the space `name` of the host at the other end of the channel; unless `create`, it
        must exist. Raises BadArgument, or the refusal of the host."""
        connection = cls(channel, name)
        description = parts(await channel.open(connection, name, password, create), 5)
        connection.durable, connection.engine_id, connection._agent = description[:3]
        connection.host_id, now = description[3:]
        connection._clock_offset = now - channel.time()
        return connection

    @property
    def channel(self) -> Channel:
        """The conversation with the host, shared by all connections over the same link."""
        return self._channel

    @property
    def name(self) -> str:
        """The name of the space."""
        return self._name

    @property
    def agent(self) -> str:
        """The id under which the host and its other clients know this program."""
        return self._agent

    @property
    def label(self) -> str:
        """The name that this program has given itself; it may be empty."""
        return self._channel.config.name

    @property
    def peer(self) -> str:
        """The address of the host."""
        return self._channel.peer

    @property
    def serial(self) -> int:
        """The serial number of the current link."""
        return self._channel.serial

    # Calls

    def require_open(self) -> None:
        """Raise SpaceClosed if the connection was closed."""
        if self._closed:
            raise SpaceClosed(f"the space {self._name!r} was closed here")

    async def call(self, message: Any, on_link: int | None = None) -> OutstandingCall:
        """Send a call and wait for its answer. With `on_link`, only over the link with that serial
        number: PeerLost if it was lost."""
        if self._closed:
            self.require_open()
        try:
            return await self._channel.ask(message, self, on_link)
        except UnicodeEncodeError as error:
            if isinstance(message, wire.Write):
                raise
            raise _not_unicode(error) from error

    async def ask(self, message: Any, on_link: int | None = None) -> Any:
        """Send a call, see `call`, and return the value of its answer."""
        return (await self.call(message, on_link)).value

    async def receive(
        self,
        message: Any,
        build: Callable[[Any], Any],
        on_link: int | None = None,
        confirms: Literal["always", "unless empty", "never"] = "always",
    ) -> Any:
        """Send a call whose answer the host hands over, such as taken entries, and return what
        `build` makes of the answer. Then confirm the call, as `confirms` says of that value. If
        building fails or the caller is interrupted, the host is told and puts the entries back."""
        if self._closed:
            self.require_open()
        channel = self._channel
        call = channel.new_call(message, self, on_link)
        try:
            while True:
                await channel.run(call)
                value = build(call.value)
                needless = confirms == "never" or (confirms == "unless empty" and not value)
                if needless or channel.confirm(call):
                    return value
                if not may_ask_again(message):
                    raise channel.loss(message, "its link ended")
        except UnicodeEncodeError as error:
            raise _not_unicode(error) from error
        except BaseException:
            if call.error is None:
                channel.cancel(call)
            raise

    # The clock of the host, leases

    async def describe_host(self, on_link: int | None = None) -> dict[str, Any]:
        """The host's description of itself; also sets our idea of its clock."""
        description = dict(await self.ask(wire.DescribeHost(0), on_link))
        self._clock_offset = description["now"] - self._channel.time()
        return description

    def host_time(self) -> float:
        """The time at the host, whose clock decides when leases end. The blocking API asks the host
        if there is a link; otherwise this is an estimate from the last answer."""
        if not self.is_async and not self._channel.awaits_link:
            with suppress(TupeloError):
                now: float = run_sync(partial(self.describe_host, self.serial))["now"]
                return now
        return self._channel.time() + self._clock_offset

    def lease_of(self, thing: Any) -> Lease | AsyncLease:
        """The lease of a handle or a written entry, for the API in use."""
        return AsyncLease(self._landlord, thing) if self.is_async else Lease(self._landlord, thing)

    async def leave(self, error: BaseException | None) -> None:
        """Close the connection: its handles end at the host, and waiting calls get SpaceClosed."""
        if self._closed:
            return
        handles = list(self.handles)
        for handle in handles:
            if isinstance(handle, RemoteSubscription):
                await handle.keep_backlog()
        self._closed = True
        goodbyes = [(message, one.serial) for one in handles if (message := one.goodbye())]
        await self._channel.leave(self, goodbyes)

    def __repr__(self) -> str:
        return f"<a connection to {self.peer}>"


class RemoteSpace(HostConnection, SpaceLike):
    """A space at another host, with the methods of `tupelo.Space`, or of `tupelo.aio.Space` on the
    async API, where transactions, sessions and subscriptions are awaited too
    (`await space.transaction()`) or used with `async with`.

    `scope` limits which hosts an operation looks at; `to` writes for one agent. Functions are not
    sent: a `Where` template and an order that is a function are refused. After a lost link the
    client reconnects and repeats calls that are safe to repeat; `PeerLost` says what happens to the
    others.
    """

    _get_fast = staticmethod(takes_longer)
    _write_fast = staticmethod(takes_longer_to_write)

    @property
    def host(self) -> Any:
        """The description of the host, a dict; awaited on the async API."""
        return self.dual_call(self.describe_host)

    def space(self, name: str, password: str | None = None, create: bool = True) -> Any:
        """Another space of the same host, over the same link; unless `create`, it must exist."""
        return self.dual_call(RemoteSpace.opened, self._channel, name, password, create)

    # Transactions as `txn=`

    async def branch(self, txn: RemoteTxn) -> RemoteSpaceTransaction | None:
        """The transaction at this host for the argument `txn=`. BadArgument if it belongs to
        another space."""
        if txn is None:
            return None
        if isinstance(txn, RemoteCapable):
            txn = await txn.branch_elsewhere(self)
        if (
            not isinstance(txn, RemoteSpaceTransaction)
            or txn._space._channel is not self._channel
            or txn._space.name != self._name
        ):
            raise BadArgument("txn", f"a transaction of the space {self._name!r}", txn)
        txn.require()
        return txn

    async def _call_in(self, handle: RemoteHandle | None, message: Any) -> OutstandingCall:
        """Send a call that may be part of a transaction or session."""
        if handle is None:
            return await self.call(message)
        try:
            return await self.call(message, handle.serial)
        except PeerLost:
            handle.lost()
            raise

    # Writing

    @dual_api
    async def _write(
        self,
        entry: object,
        lease: float | None,
        txn: RemoteTxn,
        at: Any,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> Lease | AsyncLease:
        item = freeze(entry)
        if lease is not None:
            lease = check_lease(lease)
        place = None if at is None else [at]
        return (await self.write_items([item], lease, txn, place, wait, to, delay=delay))[0]

    @dual_api
    async def _write_all(
        self,
        entries: Iterable[object],
        lease: float | list[float | None] | None,
        txn: RemoteTxn,
        at: Sequence[Any] | None,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> list[Lease | AsyncLease]:
        items, leases = check_entries(entries, lease, at)
        if len(items) > wire.BULK_MAX:
            expected = f"at most {wire.BULK_MAX:,} at a time, at a host elsewhere"
            raise BadArgument("entries", expected, f"{len(items):,}")
        places = None if at is None else list(at)
        return await self.write_items(items, leases, txn, places, wait, to, delay=delay)

    async def write_items(
        self,
        items: list[FrozenEntry],
        lease: float | list[float | None] | None,
        txn: RemoteTxn,
        at: list[Any] | None,
        wait: float | None,
        to: str | None,
        leases: bool = True,
        delay: float | None = None,
    ) -> list[Lease | AsyncLease]:
        """Write frozen entries in one step and return their leases. With `leases=False` the host
        keeps no record of them for this client, and the result is empty."""
        if wait is not NOT_AT_ALL:
            check_wait(wait)
        if to is not None:
            check_to(to)
        if delay is not None:
            delay = check_delay(delay, to)
            self._channel.require_level(1, "delay entries")
        branch = None if txn is None else await self.branch(txn)
        try:
            encoded = [entry_to_wire(shape, fields) for shape, fields in items]
            message = wire.Write(0, self._name, encoded, lease, None, at, wait, to, leases)
            message.delay = delay
            if branch is None:
                call = await self.call(message)
            else:
                message.txn = branch.id
                call = await self._call_in(branch, message)
        except UnicodeEncodeError as error:
            for shape, fields in items:
                encode_entry(shape, fields)  # raises an error that names the field
            raise BadArgument("at", "valid Unicode", at) from error
        except (TypeError, OverflowError, RecursionError) as error:
            raise BadArgument("at", "a value that can be sent", at) from error
        if not leases:
            return []
        return [self.lease_of(WrittenEntryId(*one)) for one in read_leases(call.value, len(items))]

    # Reading and taking

    @dual_api
    async def _get(
        self,
        template: object,
        take: bool,
        wait: float | None,
        many: bool,
        limit: int | None,
        txn: RemoteTxn,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None,
        coverage: Coverage | None,
        about: list[About] | None = None,
    ) -> Any:
        if about is not None:
            check_about(about)
        message = self.get_message(
            *(template, take, wait, order, if_exists, scope),
            many=many,
            limit=limit if many else None,
            whole=about is not None,
        )
        branch = None if txn is None else await self.branch(txn)
        found = await self.get(message, branch, coverage, about)
        return found if many else found[0] if found else None

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
        """Check the arguments of a read or take, and return the message for it."""
        if wait is not None and wait is not NOT_AT_ALL:
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

    async def get(
        self,
        message: wire.Get,
        handle: RemoteHandle | None = None,
        coverage: Coverage | None = None,
        about: list[About] | None = None,
        build: Callable[[Any], Any] = built,
    ) -> list[Any]:
        """Send a read or take, possibly within a transaction or session (`handle`), and return the
        entries; whole ones only without `about`, which is filled. A take outside of transactions is
        confirmed once its entries are built here. Entries that are not whole are built by `build`,
        of what the message has of each."""
        if coverage is not None:
            check_coverage(coverage)
            message.coverage = True
        if isinstance(handle, RemoteSpaceTransaction):
            message.txn = handle.id
        build = read_whole if message.whole else build
        noted: list[About] = []

        def build_all(answer: Any) -> list[Any]:
            encoded = listed(answer) if coverage is None else _entries_of(answer, coverage)
            found = [build(entry) for entry in encoded]
            if about is None:
                return found
            noted.clear()
            note_about(found, noted)
            return [entry.value for entry in found]

        if handle is None and not message.take:
            values = build_all(await self.ask(message))
            if about is not None:
                about += noted
            return values
        # A read in a transaction or session also changes state at the host, which a lost answer
        # must undo.
        try:
            entries: list[Any] = await self.receive(
                message,
                build_all,
                None if handle is None else handle.serial,
                confirms="unless empty" if handle is None else "never",
            )
        except PeerLost:
            if handle is not None:
                handle.lost()
            raise
        if about is not None:  # no call: an interrupt here would lose what was taken
            about += noted
        return entries

    @dual_api
    async def _count(
        self, template: object, txn: RemoteTxn, scope: Scope | None, coverage: Coverage | None
    ) -> int:
        check_scope(scope)
        check_coverage(coverage)
        encoded = template_to_wire(template)
        branch = await self.branch(txn)
        message = wire.CountRequest(
            0, self._name, encoded, id_of(branch), scope, coverage is not None
        )
        answer = (await self._call_in(branch, message)).value
        if coverage is not None:
            answer, covered, missing = parts(answer, 3)
            coverage.fill(listed(covered), listed(missing))
        count: int = answer
        return count

    @dual_api
    async def _match_set(
        self, template: object, limit: int | None, txn: RemoteTxn, lease: float | None
    ) -> RemoteMatchSet:
        check_limit(limit)
        seconds = check_lease(lease)
        encoded = template_to_wire(template)
        branch = await self.branch(txn)
        most = None if limit is None else min(limit, NUMBER_MAX)
        call = await self._call_in(
            branch, wire.Match(0, self._name, encoded, most, id_of(branch), seconds)
        )
        return RemoteMatchSet(self, call.serial, *parts(call.value, 2))

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Any:
        return self.dual_call(self.begin, lease)

    async def begin(
        self, lease: float | None, parent: RemoteSpaceTransaction | None = None
    ) -> RemoteSpaceTransaction:
        """Begin a transaction, nested if it has a `parent`."""
        lease = check_lease(lease)
        above = await self.branch(parent)
        call = await self._call_in(above, wire.Begin(0, self._name, lease, id_of(above)))
        return RemoteSpaceTransaction(self, call.serial, *parts(call.value, 2))

    @dual_api
    async def in_doubt(self) -> list[RemoteSpaceTransaction]:
        call = await self.call(wire.ListPrepared(0, self._name))
        known = {one.id: one for one in self.handles if isinstance(one, RemoteSpaceTransaction)}
        return [
            known.get(txn_id) or RemoteSpaceTransaction(self, call.serial, txn_id, state="prepared")
            for txn_id in listed(call.value)
        ]

    @dual_api
    async def in_hand(self, template: object = ANY) -> list[InHand]:
        message = wire.ListInHand(0, self._name)
        if template is not ANY:
            self._channel.require_level(3, "list the entries in hand by a template")
            message.template = template_to_wire(template)
        answer = await self.ask(message)
        try:
            return msgspec.convert(answer, list[InHand])
        except msgspec.ValidationError as error:
            raise BadFrame(f"these are no entries in hand: {error}") from error

    @dual_api
    async def delayed(
        self, template: object = ANY, *, limit: int | None = None, cancel: bool = False
    ) -> Delayed:
        check_limit(limit)
        self._channel.require_level(3, "list delayed entries")
        most = None if limit is None else min(limit, NUMBER_MAX)
        message = wire.ListDelayed(0, self._name, template_to_wire(template), most, bool(cancel))
        try:
            answer = msgspec.convert(await self.ask(message), tuple[int, list[tuple[float, Any]]])
        except msgspec.ValidationError as error:
            raise BadFrame(f"these are no delayed entries: {error}") from error
        return Delayed(answer[0], [(visible, built(entry)) for visible, entry in answer[1]])

    def session(self, *, lease: float | None = None) -> Any:
        return self.dual_call(self.open_session, lease)

    async def open_session(
        self, lease: float | None, like: RemoteSession | None = None
    ) -> RemoteSession:
        """Open a session, as a copy of the session `like` if given."""
        lease = check_lease(lease)
        message = wire.OpenSession(0, self._name, lease, None if like is None else like.id)
        call = await self._call_in(like, message)
        return RemoteSession(self, call.serial, *parts(call.value, 2))

    # Subscriptions, reactions

    def _subscribe(
        self,
        template: object,
        callback: Callable[[Notice], object] | None,
        lease: float | None,
        txn: RemoteTxn,
        handback: Any,
        backlog_max: int,
        available: bool,
        returned: bool,
        removed: bool,
        scope: Scope | None,
    ) -> Any:
        if callback is not None:
            self.require_function("callback", callback, "a notice")
        check_count(backlog_max, "backlog_max")
        _require_here(scope)
        message = wire.Subscribe(
            0,
            self._name,
            template_to_wire(template),
            check_lease(lease),
            None,
            min(backlog_max, NUMBER_MAX),
            bool(available),
            bool(returned),
            bool(removed),
        )
        if removed:
            self._channel.require_level(2, "notify of removals")
        return self.dual_call(self._open_subscription, message, callback, txn, handback)

    async def _open_subscription(
        self,
        message: wire.Subscribe,
        callback: Callable[[Notice], object] | None,
        txn: RemoteTxn,
        handback: Any,
    ) -> RemoteSubscription:
        branch = await self.branch(txn)
        message.txn = id_of(branch)
        call = await self._call_in(branch, message)
        subscription = RemoteSubscription(
            self, call.serial, parts(call.value, 3), handback, message.backlog_max
        )
        if callback is not None:
            self._channel.start(lambda: subscription.call(callback), "tupelo-notices")
        return subscription

    @dual_api
    async def _react(
        self,
        template: object,
        function: WeakFunction,
        once: bool,
        existing: bool,
        scope: Scope | None,
    ) -> FetchingReaction:
        """Functions are not sent: this program calls the function, after the host's step."""
        self.require_function("function", function, "an entry and a step")
        _require_here(scope)
        encoded = template_to_wire(template)
        message = wire.Subscribe(0, self._name, encoded, backlog_max=BACKLOG_MAX)
        subscription = await self._open_subscription(message, None, None, None)

        async def read_matches() -> list[Any]:
            return await self.get(
                self.get_message(template, False, 0, Fifo(), many=True, whole=True)
            )

        entries = await read_matches() if existing else []
        reaction = FetchingReaction(
            self, self.peer, subscription, read_matches, function, bool(once)
        )
        self._channel.start(lambda: reaction.run(entries), "tupelo-reaction")
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


def _require_here(scope: Scope | None) -> None:
    """Subscriptions and reactions of a client see only the entries of its host."""
    check_scope(scope)
    if scope is not None and scope != HERE:
        expected = "HERE or None: a client is told of what comes to its host"
        raise BadArgument("scope", expected, scope)


def _entries_of(answer: Any, coverage: Coverage) -> list[Any]:
    """The encoded entries of an answer that also names the hosts reached."""
    entries, covered, missing = parts(answer, 3)
    coverage.fill(listed(covered), listed(missing))
    return listed(entries)


def id_of(branch: RemoteSpaceTransaction | None) -> str | None:
    return None if branch is None else branch.id


def _not_unicode(error: UnicodeEncodeError) -> BadTemplate:
    return BadTemplate(f"the template is not valid Unicode: {error}")
