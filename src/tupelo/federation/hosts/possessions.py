"""Possessions: the transactions, sessions, subscriptions and leases of a client at its host."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from tupelo.errors import (
    BadArgument,
    LeaseLost,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
    UnknownTransaction,
)
from tupelo.federation.commits.deciding import is_spanning
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.links import wire
from tupelo.federation.links.spelled import spell_error, spell_whole
from tupelo.federation.spanning.records import Record
from tupelo.space.asynchronous import Subscription, Transaction
from tupelo.space.checks import check_wait
from tupelo.space.log import Actor
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.values.entry import Entry
from tupelo.values.lease import Lease, check_lease
from tupelo.values.notice import Notice
from tupelo.values.spelling import template_from_wire

THINGS_MAX = 100_000
"""So many transactions, sessions and subscriptions may one client hold together."""

_OPERATIONS: dict[type, str] = {
    wire.Begin: "read",
    wire.End: "read",
    wire.Doubts: "administer",
    wire.Remember: "read",
    wire.Subscribe: "subscribe",
    wire.Next: "subscribe",
}
"""What one must be allowed to do, to say this."""

_OF_THINGS: dict[wire.Thing, str] = {
    "entry": "write",
    "transaction": "read",
    "session": "read",
    "subscription": "subscribe",
}
"""What one must be allowed to do, to have such a thing; who has it may renew it and end it."""

NOTICES_BYTES = 4 * 2**20
"""So much do the notices of one answer have together, unless it is one alone."""
NOTICE_BYTES_MAX = wire.FRAME_MAX - 64
"""A notice must leave room in its frame for what is around it."""

WRITTEN_MIN = 1_000
"""With fewer entries than this, those that are gone are not worth a search."""


def operation_of(message: wire.Said) -> str | None:
    """What one must be allowed to do, to say this of a possession; None if it is of none."""
    if isinstance(message, (wire.State, wire.Close, wire.Renew, wire.Revoke)):
        return _OF_THINGS[message.thing]
    return _OPERATIONS.get(type(message))


class Possessions:
    """What one client holds at its host, by the ids under which it knows it."""

    def __init__(self, actor: Actor, who: str | None) -> None:
        self._actor = actor
        self._who = who
        self._transactions: dict[tuple[str, str], Transaction] = {}
        self._sessions: dict[str, tuple[HostedSpace, SessionState]] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._written: dict[tuple[str, int], Entry] = {}  # by space, and number there
        self._written_max = WRITTEN_MIN
        self._count = 0
        self._handlers: dict[type, Callable[[HostedSpace, Any], Coroutine[Any, Any, Any]]] = {
            wire.Begin: self._begin,
            wire.End: self._end,
            wire.Doubts: self._in_doubt,
            wire.Remember: self._remember,
            wire.Subscribe: self._subscribe,
            wire.Next: self._next,
            wire.State: self._state,
            wire.Close: self._close,
            wire.Renew: self._renew,
            wire.Revoke: self._revoke,
        }

    async def serve(self, hosted: HostedSpace, message: wire.Said) -> Any:
        return await self._handlers[type(message)](hosted, message)

    def _new_id(self) -> str:
        self._count += 1
        held = len(self._transactions) + len(self._sessions) + len(self._subscriptions)
        if held >= THINGS_MAX:
            raise BadArgument("things", f"at most {THINGS_MAX} held at a time", held)
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
        """These were written in a transaction: where they will stand is not known yet."""
        if len(self._written) >= self._written_max:
            self._written = {k: e for k, e in self._written.items() if not e.ended}
            self._written_max = max(WRITTEN_MIN, 2 * len(self._written))
        for lease in leases:
            self._written[hosted.name, lease.thing.n] = lease.thing

    async def _begin(self, hosted: HostedSpace, message: wire.Begin) -> list[Any]:
        self._new_id()
        operations = hosted.operations
        parent = self.transaction(hosted, message.parent)
        above = parent._state if parent else None
        if message.id is not None:
            if not is_spanning(message.id):  # Other ids have meanings of their own.
                raise BadArgument("id", "that of a transaction that spans hosts", message.id)
            if (hosted.name, message.id) in self._transactions:
                raise BadArgument("id", "one that is not in use", message.id)
            with operations.acting(self._actor):
                state = operations.begin_branch(check_lease(message.lease), above, message.id)
        else:
            with operations.acting(self._actor):
                state = operations.begin(message.lease, above)
        self._transactions[hosted.name, state.id] = Transaction(
            operations, state, hosted.door._flusher
        )
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
        return [vote, state, txn._state.reason, txn._state.expires]

    async def _in_doubt_of(self, hosted: HostedSpace, txn_id: str) -> Transaction:
        for txn in await hosted.door.in_doubt():
            if txn.id == txn_id:
                hosted.access.check("administer", hosted.name, self._who, True)
                return txn
        # A coordinator takes this to mean that it has ended, and may let it be forgotten.
        await hosted.flush(hosted.engine.core.log.position)
        raise UnknownTransaction(txn_id)

    async def _in_doubt(self, hosted: HostedSpace, message: wire.Doubts) -> list[str]:
        return [txn.id for txn in await hosted.door.in_doubt()]

    # Sessions

    def session(self, hosted: HostedSpace, session_id: str | None) -> SessionState | None:
        if session_id is None:
            return None
        home, state = self._sessions.get(session_id, (None, None))
        if state is None or home is not hosted:
            raise LeaseLost("this session is over")
        return state

    async def _remember(self, hosted: HostedSpace, message: wire.Remember) -> list[Any]:
        like = self.session(hosted, message.like)
        state = hosted.operations.open_session(message.lease, like, Record())
        session_id = self._new_id()
        self._sessions[session_id] = (hosted, state)
        return [session_id, state.expires]

    # Subscriptions

    async def _subscribe(self, hosted: HostedSpace, message: wire.Subscribe) -> list[Any]:
        state = hosted.operations.subscribe(
            template_from_wire(message.template),
            None,
            message.lease,
            self.transaction(hosted, message.txn),
            None,
            message.backlog_max,
            message.available,
            message.returned,
        )
        subscription = Subscription(hosted.operations, state, hosted.door._flusher, None)
        subscription_id = self._new_id()
        self._subscriptions[subscription_id] = subscription
        return [subscription_id, state.event.id, state.expires]

    def _subscription(self, subscription_id: str) -> Subscription:
        found = self._subscriptions.get(subscription_id)
        if found is None:
            raise LeaseLost("this subscription is over")
        return found

    async def _next(self, hosted: HostedSpace, message: wire.Next) -> list[Any]:
        state = self._subscription(message.subscription)._state
        taken: list[Notice] = []
        spelled: list[msgspec.Raw] = []
        try:
            await self._collect(hosted, message, taken, spelled)
        except BaseException as error:
            if taken and isinstance(error, TupeloError):
                return spelled  # The error comes next.
            for notice in reversed(taken):
                _return_notice(hosted, state, notice)
            raise
        return spelled

    async def _collect(
        self,
        hosted: HostedSpace,
        message: wire.Next,
        taken: list[Notice],
        spelled: list[msgspec.Raw],
    ) -> None:
        """As many notices as are wanted, are there, and fit into one answer."""
        check_wait(message.wait)
        subscription = self._subscription(message.subscription)
        until = None if message.wait is None else hosted.clock.now() + message.wait
        size = 0
        while len(taken) < max(1, message.limit):
            wait = None if until is None else max(0.0, until - hosted.clock.now())
            notice = await subscription.get(wait=0 if taken else wait)
            if notice is None:
                return
            content = _spell_notice(notice)
            if content is None:
                with hosted.engine.lock:
                    subscription._state.missed += notice.missed + 1
                continue
            size += len(content)
            if taken and size > NOTICES_BYTES:
                _return_notice(hosted, subscription._state, notice)
                return
            taken.append(notice)
            spelled.append(msgspec.Raw(content))

    # Whatever is leased

    def _thing(self, hosted: HostedSpace, thing: wire.Thing, name: str) -> Any:
        if thing == "transaction":
            txn = self.transaction(hosted, name)
            assert txn is not None
            return txn._state
        if thing == "session":
            return self.session(hosted, name)
        if thing == "subscription":
            return self._subscription(name)._state
        n, _, arrival = name.partition(":")
        if len(name) > 64 or not (n.isdecimal() and arrival.isdecimal()):
            raise BadArgument("id", "an entry's n and arrival", name)
        written = self._written.get((hosted.name, int(n)))
        if written is not None:
            return written
        return hosted.entry_of(self._actor.agent, int(n), int(arrival))

    async def _state(self, hosted: HostedSpace, message: wire.State) -> list[Any]:
        hosted.operations.expire()
        if message.thing == "session":
            session = self.session(hosted, message.id)
            assert session is not None
            return [not session.ended, session.expires, len(session.seen), None]
        if message.thing == "subscription":
            state = self._subscription(message.id)._state
            error = None if state.error is None else list(spell_error(state.error))
            return [not state.ended, state.expires, state.event.sequence, error]
        thing = self._thing(hosted, message.thing, message.id)
        return [not thing.ended, thing.expires, 0, None]

    async def _close(self, hosted: HostedSpace, message: wire.Close) -> None:
        if message.thing == "session":
            _, state = self._sessions.pop(message.id, (None, None))
            if state is not None:
                _end_session(hosted, state)
        elif message.thing == "subscription":
            subscription = self._subscriptions.pop(message.id, None)
            if subscription is not None:
                await subscription.close()

    async def _renew(self, hosted: HostedSpace, message: wire.Renew) -> float | None:
        thing = self._thing(hosted, message.thing, message.id)
        with hosted.operations.acting(self._actor):
            position = hosted.operations.renew(thing, check_lease(message.lease))
        await hosted.flush(position)
        expires: float | None = thing.expires
        return expires

    async def _revoke(self, hosted: HostedSpace, message: wire.Revoke) -> None:
        thing = self._thing(hosted, message.thing, message.id)
        with hosted.operations.acting(self._actor):
            position = hosted.operations.cancel(thing)
        await hosted.flush(position)

    # The end

    def free(self) -> None:
        """The client is gone: nothing of this outlives it, but promises to commit."""
        for txn in self._transactions.values():
            with suppress(SpaceClosed, TransactionEnded):
                if txn._state.state == "active":
                    txn._operations.abort(txn._state)
        for hosted, session in self._sessions.values():
            _end_session(hosted, session)
        for subscription in self._subscriptions.values():
            subscription._operations.end_subscription(subscription._state)
        self._transactions.clear()
        self._sessions.clear()
        self._subscriptions.clear()
        self._written.clear()


def _end_session(hosted: HostedSpace, state: SessionState) -> None:
    hosted.operations.end_session(state)
    if isinstance(state.seen, Record):
        state.seen.close()


def _return_notice(hosted: HostedSpace, state: SubscriptionState, notice: Notice) -> None:
    """It was not told. More may have been missed since, so what it says of that goes back too."""
    with hosted.engine.lock:
        state.missed += notice.missed
        hosted.operations.return_notice(state, msgspec.structs.replace(notice, missed=0))


def _spell_notice(notice: Notice) -> bytes | None:
    """As it is sent; None if it cannot be."""
    spelled = [
        notice.event_id,
        notice.sequence,
        notice.kind,
        spell_whole(notice.subject),
        notice.missed,
    ]
    try:
        content = msgspec.msgpack.encode(spelled)
    except UnicodeEncodeError:
        return None
    return content if len(content) <= NOTICE_BYTES_MAX else None
