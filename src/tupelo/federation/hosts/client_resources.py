"""Client resources: the transactions, sessions, subscriptions and leases of a client at its
host."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import (
    BadArgument,
    CannotSend,
    LeaseLost,
    LimitReached,
    MatchSetInvalid,
    SpaceClosed,
    TransactionEnded,
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

HELD = "open transactions, sessions, subscriptions and match sets"
OF_THINGS: dict[wire.Thing, str] = {
    "entry": "write",
    "transaction": "read",
    "session": "read",
    "subscription": "subscribe",
    "match set": "read",
}
"""What one must be allowed to do, to have such a thing; who has it may renew it and end it."""

AT_ONCE_MAX = 500
"""The most notices, or entries of a match set, in one answer."""
NOTICES_BYTES = 4 * 2**20
"""The most bytes of the notices of one answer, unless it is a single one."""
AROUND_BYTES = 64
"""What a message with a notice needs beside the notice."""

SEARCHES_MAX = 64
"""While a client has no room, so many times it is looked what has run out, for as many requests of
it as it may hold things."""

WRITTEN_MIN = 1_000
"""With fewer remembered entries than this, removed ones are not searched for."""


class ClientResources:
    """The transactions, sessions, subscriptions and match sets of one client, by their ids."""

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
        self._limits = limits
        self._in_all = in_all
        self._counted = 0  # of the budget of all
        self._refusals = 0  # since there was room
        self._transactions: dict[tuple[str, str], Transaction] = {}
        self._sessions: dict[str, tuple[HostedSpace, SessionState]] = {}
        self._subscriptions: dict[str, tuple[HostedSpace, SubscriptionState, Subscription]] = {}
        self._match_sets: dict[str, MatchSetState] = {}
        self._written: dict[tuple[str, int], Entry] = {}  # by space, and number there
        self._written_max = WRITTEN_MIN
        self._count = 0

    @staticmethod
    def register(handlers: Handlers[ClientServer]) -> None:
        for kind, operation, method in (
            (wire.Begin, "read", ClientResources._begin),
            (wire.End, "read", ClientResources._end),
            (wire.ListPrepared, "administer", ClientResources._in_doubt),
            (wire.ListInHand, "read", ClientResources._in_hand),
            (wire.ListDelayed, "read", ClientResources._delayed),
            (wire.OpenSession, "read", ClientResources._remember),
            (wire.Subscribe, "subscribe", ClientResources._subscribe),
            (wire.Next, "subscribe", ClientResources._next),
            (wire.Match, "read", ClientResources._match),
            (wire.NextMatches, "read", ClientResources._next_matches),
            (wire.State, "", ClientResources._state),
            (wire.Close, "", ClientResources._close),
            (wire.Renew, "", ClientResources._renew),
            (wire.CancelLease, "", ClientResources._revoke),
        ):
            handlers.later[kind] = partial(_serve, operation, method)
        handlers.uncancellable.add(wire.End)  # The end of a transaction cannot be undone.

    def _require_room(self) -> None:
        """Raise LimitReached if this client, or all clients together, have reached their limit."""
        if self._counted >= self._limits.held:
            # Not each time: a flood of requests that are refused would cost a search each.
            if self._refusals % max(1, self._limits.held // SEARCHES_MAX) == 0:
                self._forget_ended()
            self._refusals += 1
        if self._counted >= self._limits.held:
            raise LimitReached(f"{HELD} of this connection", self._limits.held)
        self._in_all.require_room()
        self._refusals = 0

    def _forget_ended(self) -> None:
        """Forget resources that have expired. They were kept so that the client can be told why."""
        self._transactions = {
            key: txn
            for key, txn in self._transactions.items()
            if txn.state not in ("committed", "aborted")
        }
        self._sessions = {key: one for key, one in self._sessions.items() if not one[1].ended}
        self._subscriptions = {
            key: one
            for key, one in self._subscriptions.items()
            if not one[1].ended or one[1].backlog
        }
        self._match_sets = {key: one for key, one in self._match_sets.items() if not one.ended}
        self.recount()

    def recount(self) -> None:
        """Update the budget of all clients."""
        held = len(self._transactions) + len(self._sessions) + len(self._subscriptions)
        held += len(self._match_sets)
        self._in_all.used += held - self._counted
        self._counted = held

    def _new_id(self) -> str:
        self._count += 1
        return str(self._count)

    # Transactions

    def transaction(self, hosted: HostedSpace, txn_id: str | None) -> Transaction | None:
        if txn_id is None:
            return None
        found = self._transactions.get((hosted.name, txn_id))
        if found is None:
            raise UnknownTransaction(txn_id)
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
        self._require_room()
        port = hosted.port
        parent = self.transaction(hosted, message.parent)
        above = parent.core_state if parent else None
        if message.id is not None:
            if not is_spanning(message.id):  # Other ids have meanings of their own.
                raise BadArgument("id", "that of a transaction that spans hosts", message.id)
            if (hosted.name, message.id) in self._transactions:
                raise BadArgument("id", "one that is not in use", message.id)
            with port.acting(self._actor):
                state = port.begin_branch(check_lease(message.lease), above, message.id)
        else:
            with port.acting(self._actor):
                state = port.begin(message.lease, above)
        state.actor = self._actor  # also where no log is kept
        self._transactions[hosted.name, state.id] = Transaction(port, state)
        return [state.id, state.expires]

    async def _end(self, hosted: HostedSpace, message: wire.End) -> list[Any]:
        txn = self._transactions.get((hosted.name, message.txn))
        if txn is None:
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
            self._transactions.pop((hosted.name, message.txn), None)
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
        if session_id is None:
            return None
        home, state = self._sessions.get(session_id, (None, None))
        if state is None or home is not hosted:
            raise LeaseLost("this session is over")
        return state

    async def _remember(self, hosted: HostedSpace, message: wire.OpenSession) -> list[Any]:
        self._require_room()
        like = self.session(hosted, message.like)
        state = hosted.port.open_session(message.lease, like, SeenRecord())
        session_id = self._new_id()
        self._sessions[session_id] = (hosted, state)
        return [session_id, state.expires]

    # Subscriptions

    async def _subscribe(self, hosted: HostedSpace, message: wire.Subscribe) -> list[Any]:
        self._require_room()
        if message.backlog_max > self._limits.backlog:
            raise LimitReached("notices in the backlog of a subscription", self._limits.backlog)
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
        subscription_id = self._new_id()
        self._subscriptions[subscription_id] = hosted, state, Subscription(hosted.port, state, None)
        return [subscription_id, state.event.id, state.expires]

    def _subscription(self, subscription_id: str) -> tuple[SubscriptionState, Subscription]:
        found = self._subscriptions.get(subscription_id)
        if found is None:
            raise LeaseLost("this subscription is over")
        return found[1], found[2]

    async def _next(self, hosted: HostedSpace, message: wire.Next) -> list[Any]:
        state, _ = self._subscription(message.subscription)
        taken: list[Notice] = []
        encoded: list[msgspec.Raw] = []
        try:
            await self._collect(hosted, message, taken, encoded)
        except BaseException as error:
            if taken and isinstance(error, TupeloError):
                return encoded  # The error comes next.
            for notice in reversed(taken):
                _return_notice(hosted, state, notice)
            raise
        return encoded

    async def _collect(
        self,
        hosted: HostedSpace,
        message: wire.Next,
        taken: list[Notice],
        encoded: list[msgspec.Raw],
    ) -> None:
        """Append to `taken` and `encoded` the notices that the request wants and that fit."""
        deadline = deadline_of(hosted.clock, message.wait)
        state, subscription = self._subscription(message.subscription)
        size = 0
        while len(taken) < min(max(1, message.limit), AT_ONCE_MAX):
            wait = None if deadline is None else max(0.0, deadline - hosted.clock.now())
            notice = await subscription.get(wait=0 if taken else wait)
            if notice is None:
                return
            content = encode_notice(notice, self._message_max - AROUND_BYTES, self._level)
            if content is None:
                with hosted.port.atomic():
                    state.missed += notice.missed + 1
                continue
            size += len(content)
            if taken and size > NOTICES_BYTES:
                _return_notice(hosted, state, notice)
                return
            taken.append(notice)
            encoded.append(msgspec.Raw(content))

    # Match sets

    async def _match(self, hosted: HostedSpace, message: wire.Match) -> list[Any]:
        self._require_room()
        txn = self.transaction(hosted, message.txn)
        template = template_from_wire(message.template)
        state = await hosted.port.open_match_set_in_slices(
            template, message.limit, txn, message.lease
        )
        match_set_id = self._new_id()
        self._match_sets[match_set_id] = state
        return [match_set_id, state.expires]

    def _match_set(self, match_set_id: str) -> MatchSetState:
        found = self._match_sets.get(match_set_id)
        if found is None:
            raise MatchSetInvalid("the match set is over")
        return found

    async def _next_matches(self, hosted: HostedSpace, message: wire.NextMatches) -> list[Any]:
        state = self._match_set(message.match_set)
        entries, size = [], 0
        for _ in range(min(max(1, message.limit), AT_ONCE_MAX)):
            entry, position = hosted.port.next_match(state, known=False)
            if entry is None:
                break
            if position:
                await hosted.flush(position)
            entries.append(encode_fields(entry))
            size += about_bytes(entry.fields)
            if size > NOTICES_BYTES:
                break
        skipped = [[*one.entry_id, one.reason] for one in state.left_out]
        return [entries, skipped]

    # Whatever is leased

    def _thing(self, hosted: HostedSpace, thing: wire.Thing, name: str) -> Any:
        if thing == "transaction":
            txn = self.transaction(hosted, name)
            assert txn is not None
            return txn.core_state
        if thing == "session":
            return self.session(hosted, name)
        if thing == "subscription":
            return self._subscription(name)[0]
        if thing == "match set":
            return self._match_set(name)
        n, _, arrival = name.partition(":")
        if len(name) > 64 or not (n.isdecimal() and arrival.isdecimal()):
            raise BadArgument("id", "an entry's n and arrival", name)
        written = self._written.get((hosted.name, int(n)))
        if written is not None:
            return written
        return hosted.port.entry_of(self._actor.agent, int(n), int(arrival))

    async def _state(self, hosted: HostedSpace, message: wire.State) -> list[Any]:
        hosted.port.expire()
        if message.thing == "session":
            session = self.session(hosted, message.id)
            assert session is not None
            return [not session.ended, session.expires, len(session.seen), None]
        if message.thing == "subscription":
            state, _ = self._subscription(message.id)
            error = None if state.error is None else list(encode_error(state.error))
            return [not state.ended, state.expires, state.event.sequence, error]
        thing = self._thing(hosted, message.thing, message.id)
        return [not thing.ended, thing.expires, 0, None]

    async def _close(self, hosted: HostedSpace, message: wire.Close) -> None:
        if message.thing == "session":
            _, state = self._sessions.pop(message.id, (None, None))
            if state is not None:
                _end_session(hosted, state)
        elif message.thing == "subscription":
            known = self._subscriptions.pop(message.id, None)
            if known is not None:
                await known[2].close()
        elif message.thing == "match set":
            match_set = self._match_sets.pop(message.id, None)
            if match_set is not None:
                hosted.port.end_match_set(match_set)

    async def _renew(self, hosted: HostedSpace, message: wire.Renew) -> float | None:
        thing = self._thing(hosted, message.thing, message.id)
        with hosted.port.acting(self._actor):
            position = hosted.port.renew(thing, check_lease(message.lease))
        await hosted.flush(position)
        expires: float | None = thing.expires
        return expires

    async def _revoke(self, hosted: HostedSpace, message: wire.CancelLease) -> None:
        thing = self._thing(hosted, message.thing, message.id)
        with hosted.port.acting(self._actor):
            position = hosted.port.cancel(thing)
        await hosted.flush(position)

    # The end

    def free(self) -> None:
        """The client is gone: end its resources, except prepared transactions."""
        for txn in self._transactions.values():
            with suppress(SpaceClosed, TransactionEnded):
                txn.abort_if_active()
        for hosted, session in self._sessions.values():
            _end_session(hosted, session)
        for hosted, state, _ in self._subscriptions.values():
            hosted.port.end_subscription(state)
        for match_set in self._match_sets.values():
            match_set.end("its client is gone")
        self._match_sets.clear()
        self._transactions.clear()
        self._sessions.clear()
        self._subscriptions.clear()
        self._written.clear()
        self.recount()


def _end_session(hosted: HostedSpace, state: SessionState) -> None:
    hosted.port.end_session(state)
    if isinstance(state.seen, SeenRecord):
        state.seen.close()


def _return_notice(hosted: HostedSpace, state: SubscriptionState, notice: Notice) -> None:
    """Return a notice that was not sent to its subscription, together with its count of missed
    notices, since more may have been missed meanwhile."""
    with hosted.port.atomic():
        state.missed += notice.missed
        hosted.port.return_notice(state, msgspec.structs.replace(notice, missed=0))


def encode_notice(notice: Notice, bytes_max: int, level: int) -> bytes | None:
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
    hosted = client.hosted(message.space, operation or OF_THINGS[message.thing])
    try:
        return await method(client.resources, hosted, message)
    finally:
        client.resources.recount()
