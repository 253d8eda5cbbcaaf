"""Client resources: the transactions, sessions, subscriptions and leases of a client at its
host."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from tupelo.errors import (
    BadArgument,
    CannotSend,
    JournalError,
    LeaseLost,
    LimitReached,
    MatchSetInvalid,
    SpaceClosed,
    TupeloError,
    UnknownTransaction,
)
from tupelo.federation.hosts.decisions import is_spanning
from tupelo.federation.hosts.limits import Budget, Limits
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers
from tupelo.federation.links.encoding import encode_error, encode_fields, encode_whole
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.federation.spanning.records import SeenRecord
from tupelo.space.asynchronous import Subscription, Transaction
from tupelo.space.clock import Clock
from tupelo.space.log import Actor
from tupelo.space.matchset import MatchSetState
from tupelo.space.query import deadline_of
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.values.change import Notice
from tupelo.values.entry import Entry, about_bytes
from tupelo.values.holder import InHand
from tupelo.values.lease import Lease, check_lease
from tupelo.values.template_encoding import template_from_wire

if TYPE_CHECKING:
    from tupelo.federation.hosts.serving import ClientServer
    from tupelo.space.port import Port
    from tupelo.space.transaction import Txn

HELD = "open transactions, sessions, subscriptions and match sets"
PERMISSIONS: dict[wire.Thing, str] = {
    "entry": "write",
    "transaction": "read",
    "session": "read",
    "subscription": "subscribe",
    "match set": "read",
}
"""The permission that a client needs to have such a thing, to renew it and to end it."""

AT_ONCE_MAX = 500
"""The most notices, or entries of a match set, in one answer."""
NOTICES_BYTES = 4 * 2**20
"""The most bytes of the notices of one answer, unless it is a single one."""
ENVELOPE_BYTES = 64
"""The bytes of a message with a notice, beside the notice."""

SEARCHES_MAX = 64
"""How often ended resources are searched for while a client has no room, in as many requests as it
may have resources."""

WRITTEN_MIN = 1_000
"""With fewer remembered entries than this, removed ones are not searched for."""


class OpenResources:
    """The open transactions, sessions, subscriptions and match sets of one client, each with its
    space, by kind and id. They count against the limits of the client and of all clients."""

    def __init__(self, limits: Limits, in_all: Budget, has_ended: Callable[[Any], bool]) -> None:
        self._limits = limits
        self._in_all = in_all
        self._has_ended = has_ended
        self._open: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._refusals = 0  # since there was room
        self._ids = map(str, itertools.count(1))

    def require_room(self, backlog: int = 0) -> None:
        """Raise LimitReached if this client, or all clients together, have reached their limit, or
        if the client may not have so many notices in a backlog."""
        limit = self._limits.held
        if len(self._open) >= limit:
            # Not each time: a flood of requests that are refused would cost a search each.
            if self._refusals % max(1, limit // SEARCHES_MAX) == 0:
                self._forget_ended()
            self._refusals += 1
        if len(self._open) >= limit:
            raise LimitReached(f"{HELD} of this connection", limit)
        self._in_all.require_room()
        self._refusals = 0
        if backlog > self._limits.backlog:
            raise LimitReached("notices in the backlog of a subscription", self._limits.backlog)

    def _forget_ended(self) -> None:
        """Forget resources that have expired. They were kept so that the client can be told why."""
        for (kind, name), (_, resource) in list(self._open.items()):
            if self._has_ended(resource):
                self.pop(kind, name)

    def add(self, space: Any, kind: wire.Thing, resource: Any, name: str = "") -> str:
        """Add a resource under this id, or a new one; returns the id."""
        name = name or next(self._ids)
        self._open[kind, name] = space, resource
        self._in_all.used += 1
        return name

    def has(self, kind: wire.Thing, name: str) -> bool:
        return (kind, name) in self._open

    def get(self, space: Any, kind: wire.Thing, name: str | None) -> Any:
        """The resource with this id; None without an id. Raises an error if it has ended, or is in
        another space."""
        if name is None:
            return None
        home, found = self._open.get((kind, name), (None, None))
        if home is space:
            return found
        if kind == "transaction":
            raise UnknownTransaction(name)
        raise (MatchSetInvalid if kind == "match set" else LeaseLost)(f"this {kind} is over")

    def pop(self, kind: str, name: str) -> Any:
        """Remove a resource, and return it; None if there is none with this id."""
        _, found = self._open.pop((kind, name), (None, None))
        self._in_all.used -= found is not None
        return found

    def pop_all(self) -> list[tuple[str, Any, Any]]:
        """Remove all resources, and return the kind, the space and the resource of each."""
        found = [(kind, space, one) for (kind, _), (space, one) in self._open.items()]
        self._in_all.used -= len(found)
        self._open.clear()
        return found


class Notices(Protocol):
    """A subscription from which notices are sent to a client."""

    async def next(self, wait: float | None) -> Notice | None:
        """The next notice; None after `wait` seconds, or if the subscription has ended."""
        ...

    def give_back(self, notices: list[Notice]) -> None:
        """Return notices that were not sent."""
        ...

    def miss(self, count: int) -> None:
        """The next notice tells that so many are missing."""
        ...


async def next_notices(
    notices: Notices, message: wire.Next, clock: Clock, message_max: int, level: int
) -> list[msgspec.Raw]:
    """The encoded notices that a request wants, as far as they fit in an answer."""
    deadline = deadline_of(clock, message.wait)
    taken: list[Notice] = []
    encoded: list[msgspec.Raw] = []
    size = 0
    try:
        while len(taken) < min(max(1, message.limit), AT_ONCE_MAX):
            wait = None if deadline is None else max(0.0, deadline - clock.now())
            notice = await notices.next(0 if taken else wait)
            if notice is None:
                break
            content = _encode_notice(notice, message_max - ENVELOPE_BYTES, level)
            if content is None:
                notices.miss(notice.missed + 1)
                continue
            size += len(content)
            if taken and size > NOTICES_BYTES:
                notices.give_back([notice])
                break
            taken.append(notice)
            encoded.append(msgspec.Raw(content))
    except BaseException as error:
        if not (taken and isinstance(error, TupeloError)):  # Otherwise the error comes next.
            notices.give_back(taken)
            raise
    return encoded


async def next_matches(
    message: wire.NextMatches, next_entry: Callable[[], Awaitable[Entry | None]]
) -> list[Any]:
    """The encoded entries of a match set that a request wants, as far as they fit in an answer."""
    entries: list[Any] = []
    size = 0
    while len(entries) < min(max(1, message.limit), AT_ONCE_MAX) and size <= NOTICES_BYTES:
        entry = await next_entry()
        if entry is None:
            break
        entries.append(encode_fields(entry))
        size += about_bytes(entry.fields)
    return entries


async def require_few(message: wire.Get, count: Callable[[], Awaitable[int]]) -> None:
    """Raise CannotSend if more entries match than one request may take."""
    most = message.limit
    if not (message.take and message.many) or (most is not None and most <= wire.BULK_MAX):
        return
    if await count() > wire.BULK_MAX:
        raise CannotSend(
            f"more than {wire.BULK_MAX:,} entries match, and so many can be taken at a time; ask "
            "for fewer with limit="
        )


def entry_numbers(entry_id: str) -> tuple[int, int]:
    """The number and the arrival of an entry, of which its lease knows the id."""
    n, _, arrival = entry_id.partition(":")
    if len(entry_id) > 64 or not (n.isdecimal() and arrival.isdecimal()):
        raise BadArgument("id", "an entry's n and arrival", entry_id)
    return int(n), int(arrival)


class ClientSubscription(NamedTuple):
    """A subscription of a client in a space of the host."""

    hosted: HostedSpace
    state: SubscriptionState
    handle: Subscription

    @property
    def ended(self) -> bool:
        return self.state.ended and not self.state.backlog

    async def next(self, wait: float | None) -> Notice | None:
        return await self.handle.get(wait=wait)

    def give_back(self, notices: list[Notice]) -> None:
        with self.hosted.port.atomic():  # More may have been missed meanwhile.
            for notice in reversed(notices):
                self.state.missed += notice.missed
                self.hosted.port.return_notice(
                    self.state, msgspec.structs.replace(notice, missed=0)
                )

    def miss(self, count: int) -> None:
        with self.hosted.port.atomic():
            self.state.missed += count


def _has_ended(resource: Any) -> bool:
    if isinstance(resource, Transaction):
        return resource.state in ("committed", "aborted")
    return bool(resource.ended)


class ClientResources:
    """The resources of one client in the spaces of the host, and the requests about them."""

    def __init__(
        self,
        actor: Actor,
        who: str | None,
        limits: Limits,
        in_all: Budget,
        message_max: int,
        level: int,
    ) -> None:
        self._message_max = message_max
        self._level = level
        self._actor = actor
        self._who = who
        self._open = OpenResources(limits, in_all, _has_ended)
        self._written: dict[tuple[str, int], Entry] = {}  # by space, and number there
        self._written_max = WRITTEN_MIN

    @staticmethod
    def register(handlers: Handlers[ClientServer]) -> None:
        for kind, operation, method in (
            (wire.Begin, "read", ClientResources._begin),
            (wire.End, "read", ClientResources._end),
            (wire.ListPrepared, "administer", ClientResources._in_doubt),
            (wire.ListInHand, "read", ClientResources._in_hand),
            (wire.ListDelayed, "read", ClientResources._delayed),
            (wire.OpenSession, "read", ClientResources._open_session),
            (wire.Subscribe, "subscribe", ClientResources._subscribe),
            (wire.Next, "subscribe", ClientResources._next),
            (wire.Match, "read", ClientResources._match),
            (wire.NextMatches, "read", ClientResources._next_matches),
            (wire.State, "", ClientResources._state),
            (wire.Close, "", ClientResources._close),
            (wire.Renew, "", ClientResources._renew),
            (wire.CancelLease, "", ClientResources._cancel_lease),
        ):
            handlers.later[kind] = partial(_serve, operation, method)
        handlers.uncancellable.add(wire.End)  # The end of a transaction cannot be undone.

    # Transactions

    def transaction(self, hosted: HostedSpace, txn_id: str | None) -> Transaction | None:
        found: Transaction | None = self._open.get(hosted, "transaction", txn_id)
        return found

    def wrote(self, hosted: HostedSpace, leases: list[Lease]) -> None:
        """Remember entries that were written in a transaction, whose positions are not known
        yet."""
        if len(self._written) >= self._written_max:
            self._written = {k: e for k, e in self._written.items() if not e.ended}
            self._written_max = max(WRITTEN_MIN, 2 * len(self._written))
        for lease in leases:
            self._written[hosted.name, lease.thing.n] = lease.thing

    async def _begin(self, hosted: HostedSpace, message: wire.Begin) -> list[Any]:
        self._open.require_room()
        port = hosted.port
        parent = self.transaction(hosted, message.parent)
        above = parent.core_state if parent else None
        if message.id is not None:
            if not is_spanning(message.id):  # Other ids have meanings of their own.
                raise BadArgument("id", "that of a transaction that spans hosts", message.id)
            if self._open.has("transaction", message.id):
                raise BadArgument("id", "one that is not in use", message.id)
            with port.acting(self._actor):
                state = port.begin_branch(check_lease(message.lease), above, message.id)
        else:
            with port.acting(self._actor):
                state = port.begin(message.lease, above)
        state.actor = self._actor  # also where no log is kept
        self._open.add(hosted, "transaction", Transaction(port, state), state.id)
        return [state.id, state.expires]

    async def _end(self, hosted: HostedSpace, message: wire.End) -> list[Any]:
        try:
            txn = self._open.get(hosted, "transaction", message.txn)
        except UnknownTransaction:
            txn = await self._in_doubt_of(hosted, message.txn)
        vote = None
        if message.how == "commit":
            await txn.commit()
        elif message.how == "abort":
            await txn.abort()
        elif message.how == "prepare":
            vote = await txn.prepare()
        state = txn.state
        if state in ("committed", "aborted") and message.how != "state":
            self._open.pop("transaction", message.txn)
        return [vote, state, txn.core_state.reason, txn.core_state.expires]

    async def _in_doubt_of(self, hosted: HostedSpace, txn_id: str) -> Transaction:
        for txn in await hosted.door.in_doubt():
            if txn.id == txn_id:
                hosted.check("administer", self._who, (hosted.name,))
                return txn
        # A coordinator takes this to mean that it has ended, and may let it be forgotten.
        await hosted.flush(hosted.port.position)
        raise UnknownTransaction(txn_id)

    async def _in_doubt(self, hosted: HostedSpace, message: wire.ListPrepared) -> list[str]:
        return [txn.id for txn in await hosted.door.in_doubt()]

    async def _in_hand(self, hosted: HostedSpace, message: wire.ListInHand) -> list[InHand]:
        if message.template is None:
            return hosted.port.in_hand()
        return hosted.port.in_hand(template_from_wire(message.template))

    async def _delayed(self, hosted: HostedSpace, message: wire.ListDelayed) -> list[Any]:
        if message.cancel:
            hosted.check("take", self._who, (hosted.name,))
        template = template_from_wire(message.template)
        with hosted.port.acting(self._actor):
            count, found, position = hosted.port.delayed(template, message.limit, message.cancel)
        if position:
            await hosted.flush(position)
        return [count, [[when, encode_fields(e)] for when, e in found]]

    # Sessions

    def session(self, hosted: HostedSpace, session_id: str | None) -> SessionState | None:
        found: SessionState | None = self._open.get(hosted, "session", session_id)
        return found

    async def _open_session(self, hosted: HostedSpace, message: wire.OpenSession) -> list[Any]:
        self._open.require_room()
        like = self.session(hosted, message.like)
        state = hosted.port.open_session(message.lease, like, SeenRecord())
        return [self._open.add(hosted, "session", state), state.expires]

    # Subscriptions

    async def _subscribe(self, hosted: HostedSpace, message: wire.Subscribe) -> list[Any]:
        self._open.require_room(backlog=message.backlog_max)
        state = hosted.port.subscribe(
            template_from_wire(message.template),
            None,
            message.lease,
            self.transaction(hosted, message.txn),
            None,
            message.backlog_max,
            message.available,
            message.returned,
            message.removed,
        )
        handle = Subscription(hosted.port, state, None)
        name = self._open.add(hosted, "subscription", ClientSubscription(hosted, state, handle))
        return [name, state.event.id, state.expires]

    async def _next(self, hosted: HostedSpace, message: wire.Next) -> list[msgspec.Raw]:
        subscription = self._open.get(hosted, "subscription", message.subscription)
        return await next_notices(
            subscription, message, hosted.clock, self._message_max, self._level
        )

    # Match sets

    async def _match(self, hosted: HostedSpace, message: wire.Match) -> list[Any]:
        self._open.require_room()
        txn = self.transaction(hosted, message.txn)
        template = template_from_wire(message.template)
        state = await hosted.port.open_match_set_in_slices(
            template, message.limit, txn, message.lease
        )
        return [self._open.add(hosted, "match set", state), state.expires]

    async def _next_matches(self, hosted: HostedSpace, message: wire.NextMatches) -> list[Any]:
        state: MatchSetState = self._open.get(hosted, "match set", message.match_set)

        async def next_entry() -> Entry | None:
            entry, position = hosted.port.next_match(state, known=False)
            if position:
                await hosted.flush(position)
            return entry

        entries = await next_matches(message, next_entry)
        return [entries, [[*one.entry_id, one.reason] for one in state.left_out]]

    # Whatever is leased

    def _leased(self, hosted: HostedSpace, message: wire.LeaseCall) -> Any:
        """The state of a resource or entry, with its lease."""
        if message.thing != "entry":
            found = self._open.get(hosted, message.thing, message.id)
            if isinstance(found, Transaction):
                return found.core_state
            return found.state if isinstance(found, ClientSubscription) else found
        n, arrival = entry_numbers(message.id)
        written = self._written.get((hosted.name, n))
        return written or hosted.port.entry_of(self._actor.agent, n, arrival)

    async def _state(self, hosted: HostedSpace, message: wire.State) -> list[Any]:
        hosted.port.expire()
        thing = self._leased(hosted, message)
        number, error = 0, None
        if isinstance(thing, SessionState):
            number = len(thing.seen)
        elif isinstance(thing, SubscriptionState):
            number = thing.event.sequence
            error = None if thing.error is None else list(encode_error(thing.error))
        return [not thing.ended, thing.expires, number, error]

    async def _close(self, hosted: HostedSpace, message: wire.Close) -> None:
        if message.thing in ("session", "subscription", "match set"):
            found = self._open.pop(message.thing, message.id)
            if isinstance(found, SessionState):
                _end_session(hosted, found)
            elif isinstance(found, ClientSubscription):
                await found.handle.close()
            elif found is not None:
                hosted.port.end_match_set(found)

    async def _renew(self, hosted: HostedSpace, message: wire.Renew) -> float | None:
        thing = self._leased(hosted, message)
        with hosted.port.acting(self._actor):
            position = hosted.port.renew(thing, check_lease(message.lease))
        await hosted.flush(position)
        expires: float | None = thing.expires
        return expires

    async def _cancel_lease(self, hosted: HostedSpace, message: wire.CancelLease) -> None:
        thing = self._leased(hosted, message)
        with hosted.port.acting(self._actor):
            position = hosted.port.cancel(thing)
        await hosted.flush(position)

    # The end

    def free(self) -> None:
        """The client is gone: end its resources, except prepared transactions."""
        transactions: dict[Port, list[Txn]] = {}
        for kind, hosted, resource in self._open.pop_all():
            if kind == "transaction":
                transactions.setdefault(hosted.port, []).append(resource.core_state)
            elif kind == "session":
                _end_session(hosted, resource)
            elif kind == "subscription":
                hosted.port.end_subscription(resource.state)
            else:
                resource.end("its client is gone")
        for port, begun in transactions.items():
            with suppress(SpaceClosed, JournalError):  # They have ended with their space.
                port.abort_active(begun)
        self._written.clear()


def _end_session(hosted: HostedSpace, state: SessionState) -> None:
    hosted.port.end_session(state)
    if isinstance(state.seen, SeenRecord):
        state.seen.close()


def _encode_notice(notice: Notice, bytes_max: int, level: int) -> bytes | None:
    """The encoded notice; None if it is too long, or not valid Unicode."""
    try:
        subject = encode_whole(notice.subject, level=level)
        encoded = [notice.event_id, notice.sequence, notice.kind, subject, notice.missed]
        content = msgspec.msgpack.encode(encoded)
    except (CannotSend, UnicodeEncodeError):
        return None
    return content if len(content) <= bytes_max else None


ResourceMethod = Callable[[ClientResources, HostedSpace, Any], Coroutine[Any, Any, Any]]


async def _serve(operation: str, method: ResourceMethod, client: ClientServer, message: Any) -> Any:
    """Call a method of ClientResources for a client that may do the operation in the space; without
    an operation, the one that the kind of thing needs."""
    hosted = client.hosted(message.space, operation or PERMISSIONS[message.thing])
    return await method(client.resources, hosted, message)
