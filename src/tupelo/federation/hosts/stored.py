"""Serving spaces in a database to a client. Each client has the spaces open under its own id; its
transactions, sessions, subscriptions and match sets there end with its link.

A take is a transaction of the database until the client confirms that it has the entries. If the
client is lost before, the delivery is in doubt, as one from a space of the host; if the host is
lost, the database gives the entries back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import (
    BadArgument,
    BadFrame,
    CannotSend,
    LeaseLost,
    LimitReached,
    MatchSetInvalid,
    TransactionEnded,
    TransactionError,
    TupeloError,
    UnknownSpace,
    UnknownTransaction,
)
from tupelo.federation.hosts.client_resources import (
    AROUND_BYTES,
    AT_ONCE_MAX,
    HELD,
    NOTICES_BYTES,
    OF_THINGS,
    encode_notice,
)
from tupelo.federation.links import wire
from tupelo.federation.links.calls import Handlers
from tupelo.federation.links.encoding import (
    encode_change,
    encode_error,
    encode_fields,
    encode_leases,
    encode_whole,
    read_encoded_entry,
    read_order,
)
from tupelo.federation.spaces.stored import StoredSpace
from tupelo.space.query import check_wait, deadline_of
from tupelo.values.change import Notice
from tupelo.values.entry import Entry, about_bytes
from tupelo.values.holder import Holder, InHand
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY
from tupelo.values.template_encoding import template_from_wire

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.serving import ClientServer
    from tupelo.postgres.handles import PostgresTransaction
    from tupelo.postgres.space import PostgresSpace

logger = logging.getLogger("tupelo")

AsyncSpace = Any
"""A PostgresSpace, whose methods of both APIs are coroutines here."""

UNCONFIRMED_MAX = 64
"""While a client has so many takes that it has not confirmed, each a connection to the database,
its next ones wait."""
AT_WORK_MAX = 32
"""Operations of all clients of a host that use the databases at the same time, beside those that
wait; more of them wait for their turn."""


class StoredCall(wire.Message):
    """A message about a space in a database, for its handler."""

    call: int
    wait: float | None
    message: wire.SpaceCall


class StoredDelivery:
    """Entries of a space in a database on their way to a client: see `space.delivery.Delivery`. The
    client is told nothing of what becomes of its confirmation, so this goes on by itself."""

    def __init__(
        self,
        serving: StoredServing,
        space: PostgresSpace,
        txn: PostgresTransaction,
        entries: list[Entry],
        holder: Holder,
    ) -> None:
        self.entries = entries
        self.holder = holder
        self.space = serving.name_of(space)
        self._serving = serving
        self._in = space
        self._txn = txn
        self._rows = list(txn.taken.values())
        self._lock = asyncio.Lock()
        serving.deliveries.add(self)

    def confirm(self) -> int:
        self._serving.run(self._settled(self._commit))
        return 0

    def give_back(self) -> int:
        self._serving.run(self._settled(self._txn.abort))
        return 0

    def put_back(self) -> None:
        """The client has confirmed the entries, but its user did not get them."""
        self._serving.run(self._settled(partial(self._in.put_back, self._rows)))

    def forget(self) -> None:
        """Nothing is remembered here."""

    async def _settled(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        async with self._lock:
            try:
                await work()
            except TupeloError as error:
                logger.error(
                    "what %s took from %r may be there again: %s",
                    self.holder.who,
                    self.space,
                    error,
                )
            finally:
                self._serving.settled(self)

    async def _commit(self) -> None:
        try:
            await self._txn.commit()
        except (TransactionEnded, TupeloError) as lost:
            if getattr(lost, "in_doubt", False):
                raise
            # The database has given them back, and the client has them.
            if await self._in.settle(self._rows) < len(self._rows):
                raise


class StoredServing:
    """The spaces in databases that one client uses, and what it has there."""

    def __init__(self, host: HostCore, client: ClientServer, message_max: int, level: int) -> None:
        self._host = host
        self._client = client
        self._message_max = message_max
        self._level = level
        self._opening: dict[str, asyncio.Task[PostgresSpace]] = {}
        self._things: dict[tuple[str, str], Any] = {}  # by kind and id
        self._written: dict[str, dict[int, Any]] = {}  # by transaction, and number
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._ended = False
        self._room = asyncio.Event()
        self.deliveries: set[StoredDelivery] = set()

    @staticmethod
    def register(handlers: Handlers[ClientServer]) -> None:
        handlers.later[StoredCall] = lambda client, call: client.stored.answer(call.message)

    async def answer(self, message: Any) -> Any:
        """Answer one call of the client."""
        operation, method = _METHODS[type(message)]
        if isinstance(message, wire.Open):
            stored = await self._client.shown(message)
        else:
            if isinstance(message, wire.Get):
                operation = "take" if message.take else "read"
            elif isinstance(message, wire.LeaseCall):
                operation = OF_THINGS[message.thing]
            stored = self._client.allowed(message.space, operation)
        assert isinstance(stored, StoredSpace)
        space = await self._opened(stored, getattr(message, "create", True))
        if self._tasks:  # What the client has confirmed before is done before.
            await asyncio.wait(list(self._tasks))
        if isinstance(message, wire.Get) and message.take and message.txn is None:
            while len(self.deliveries) >= UNCONFIRMED_MAX:
                self._room.clear()
                await self._room.wait()
        if getattr(message, "wait", 0) != 0:
            return await method(self, space, message)
        async with self._host.stores_at_work:
            return await method(self, space, message)

    async def _opened(self, stored: StoredSpace, create: bool) -> PostgresSpace:
        """The space as this client uses it; opened at its first use."""
        name = stored.name
        task = self._opening.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            create = create and self._host.creates_spaces
            work = stored.open(agent=self._client.agent, label=self._client.name, create=create)
            task = self._opening[name] = asyncio.ensure_future(work)
            self._host.with_stored.add(self)
        try:
            return await asyncio.shield(task)
        except UnknownSpace:
            self._host.forget_stored(stored)
            raise

    def name_of(self, space: PostgresSpace) -> str:
        """The name of an open space at this host, which may have another one in its database."""
        return next(name for name, opened in self.spaces().items() if opened is space)

    def spaces(self) -> dict[str, PostgresSpace]:
        """The open spaces, by their names at this host."""
        return {
            name: task.result()
            for name, task in self._opening.items()
            if task.done() and not task.cancelled() and task.exception() is None
        }

    # What the client has

    def _require_room(self) -> None:
        """Raise LimitReached if this client, or all clients together, have reached their limit."""
        limit = self._host.limits.held
        if len(self._things) >= limit:
            for key in [key for key, one in self._things.items() if one.ended]:
                self._pop(*key)
        if len(self._things) >= limit:
            raise LimitReached(f"{HELD} of this connection", limit)
        self._host.held.require_room()

    def _add(self, kind: str, thing: Any, name: str = "") -> str:
        self._count += 1
        name = name or str(self._count)
        self._things[kind, name] = thing
        self._host.held.used += 1
        return name

    def _pop(self, kind: str, name: str) -> Any:
        thing = self._things.pop((kind, name), None)
        if thing is not None:
            self._host.held.used -= 1
        return thing

    def _thing(self, space: PostgresSpace, kind: str, name: str | None) -> Any:
        """A transaction, session, subscription or match set of this client; None without a name."""
        if name is None:
            return None
        found = self._things.get((kind, name))
        if found is not None and found.space is space:
            return found
        if kind == "transaction":
            raise UnknownTransaction(name)
        error = MatchSetInvalid if kind == "match set" else LeaseLost
        raise error(f"this {kind} is over")

    async def _leased(self, space: PostgresSpace, message: wire.LeaseCall) -> Any:
        if message.thing != "entry":
            return self._thing(space, message.thing, message.id)
        n, _, id_ = message.id.partition(":")
        if len(message.id) > 64 or not (n.isdecimal() and id_.isdecimal()):
            raise BadArgument("id", "an entry's n and arrival", message.id)
        for written in self._written.values():
            if int(n) in written:
                return written[int(n)]
        return await space.written_entry(int(n), int(id_))

    # Spaces and entries

    async def _open(self, space: PostgresSpace, message: wire.Open) -> list[Any]:
        engine = f"{space.database.where}/{space.id}"
        return [True, engine, self._client.agent, self._host.id, space.server_time()]

    async def _write(self, space: AsyncSpace, message: wire.Write) -> list[list[Any]]:
        if len(message.entries) > wire.BULK_MAX:
            expected, got = f"at most {wire.BULK_MAX:,} at a time", f"{len(message.entries):,}"
            raise BadArgument("entries", expected, got)
        items = [read_encoded_entry(entry) for entry in message.entries]
        each = message.lease if isinstance(message.lease, list) else [message.lease] * len(items)
        if len(each) != len(items):
            raise BadFrame("a lease for each entry, or one for all")
        txn = self._thing(space, "transaction", message.txn)
        leases = await space.write_items(
            items,
            [check_lease(seconds) for seconds in each],
            txn,
            message.at,
            message.wait,
            message.to,
            message.delay,
        )
        if not message.leases:
            return []
        written = [lease.thing for lease in leases]
        if txn is not None:
            kept = self._written.setdefault(txn.id, {})
            kept.update((one.n, one) for one in written)
        return encode_leases((one.n, one.id, one.expires) for one in written)

    async def _get(self, space: AsyncSpace, message: wire.Get) -> Any:
        space.require_here(message.scope)
        template = template_from_wire(message.template)
        order = read_order(message.order)
        txn = self._thing(space, "transaction", message.txn)
        session = self._thing(space, "session", message.session)
        await self._require_few(space, message, txn)
        limit = message.limit if message.many else 1
        asked = (message.wait, message.many, limit)
        if message.take and txn is None:
            reserved = await space.reserve(template, *asked, order, message.if_exists)
            entries: list[Entry] = []
            if reserved is not None:
                inside, entries = reserved
                holder = self._client.holder.of_call(message.call)
                delivery = StoredDelivery(self, space, inside, entries, holder)
                self._client.hold(message.call, delivery)
        else:
            entries = await space.fetch(
                template, message.take, *asked, txn, order, message.if_exists, session
            )
            undo: Callable[[], object] | None = None
            if session is not None:
                undo = partial(session.unsee, entries)
            elif message.take and entries:
                undo = partial(self._abort_soon, txn)
            if undo is not None:
                self._client.got(message.call, _Undoable(message.space, entries, undo))
        encode = partial(encode_whole, level=self._level) if message.whole else encode_fields
        encoded = [encode(entry) for entry in entries]
        return [encoded, [self._host.name], []] if message.coverage else encoded

    def _abort_soon(self, txn: PostgresTransaction) -> None:
        self.run(txn.interrupted())

    async def _require_few(
        self, space: AsyncSpace, message: wire.Get, txn: PostgresTransaction | None
    ) -> None:
        """Raise CannotSend if more entries match than one request may take."""
        most = message.limit
        if not (message.take and message.many) or (most is not None and most <= wire.BULK_MAX):
            return
        if await space.count(template_from_wire(message.template), txn=txn) > wire.BULK_MAX:
            raise CannotSend(
                f"more than {wire.BULK_MAX:,} entries match, and so many can be taken at a "
                "time; ask for fewer with limit="
            )

    async def _counted(self, space: AsyncSpace, message: wire.CountRequest) -> Any:
        space.require_here(message.scope)
        txn = self._thing(space, "transaction", message.txn)
        number = await space.count(template_from_wire(message.template), txn=txn)
        return [number, [self._host.name], []] if message.coverage else number

    async def _changes(self, space: AsyncSpace, message: wire.Changes) -> list[Any]:
        changes = await space.changes(since=message.since, limit=message.limit)
        return [encode_change(change, self._level) for change in changes]

    async def _log(self, space: PostgresSpace, message: wire.ReadLog) -> Any:
        expected = "one that the host keeps itself: a log in a database is read there"
        raise BadArgument("space", expected, message.space)

    async def _trim(self, space: AsyncSpace, message: wire.Trim) -> None:
        if message.before is None:
            await space.compact()
        else:
            await space.trim(before=message.before)

    # Transactions

    async def _begin(self, space: PostgresSpace, message: wire.Begin) -> list[Any]:
        self._require_room()
        if message.id is not None:
            raise TransactionError(
                f"the space {message.space!r} is in a database, and does not vote in two phases yet"
            )
        parent = self._thing(space, "transaction", message.parent)
        txn = await space.begin(message.lease, parent)
        self._add("transaction", txn, txn.id)
        return [txn.id, txn.expires]

    async def _end(self, space: PostgresSpace, message: wire.End) -> list[Any]:
        txn = await self._ending(space, message)
        votes: list[Any] = []

        async def end() -> None:
            if message.how == "commit":
                await txn.commit()
            elif message.how == "abort":
                await txn.abort()
            elif message.how == "prepare":
                votes.append(await txn.prepare())

        # Not cancelled by the client's leaving: a commit is done, or not begun.
        await space.database.to_the_end(end)
        state = txn.state
        if state in ("committed", "aborted") and message.how != "state":
            self._pop("transaction", txn.id)
            self._written.pop(txn.id, None)
        return [votes[0] if votes else None, state, txn.reason, txn.expires]

    async def _ending(self, space: PostgresSpace, message: wire.End) -> PostgresTransaction:
        """A transaction of this client, or one that is prepared, by whatever program."""
        try:
            found: PostgresTransaction = self._thing(space, "transaction", message.txn)
        except UnknownTransaction:
            prepared = {txn.id: txn for txn in await space.prepared()}
            if message.txn not in prepared:
                raise
            self._client.allowed(message.space, "administer")
            found = prepared[message.txn]
        return found

    async def _prepared(self, space: AsyncSpace, message: wire.ListPrepared) -> list[str]:
        return [txn.id for txn in await space.in_doubt()]

    async def _in_hand(self, space: AsyncSpace, message: wire.ListInHand) -> list[InHand]:
        template = ANY if message.template is None else template_from_wire(message.template)
        held: list[InHand] = await space.in_hand(template)
        return held

    async def _delayed(self, space: AsyncSpace, message: wire.ListDelayed) -> list[Any]:
        if message.cancel:
            self._client.allowed(message.space, "take")
        template = template_from_wire(message.template)
        count, found = await space.delayed_entries(template, message.limit, message.cancel)
        return [count, [[when, encode_fields(entry)] for when, entry in found]]

    # Sessions, subscriptions, match sets

    async def _remember(self, space: PostgresSpace, message: wire.OpenSession) -> list[Any]:
        self._require_room()
        like = self._thing(space, "session", message.like)
        session = await space.open_session(message.lease, like)
        return [self._add("session", session), session.expires]

    async def _subscribe(self, space: AsyncSpace, message: wire.Subscribe) -> list[Any]:
        self._require_room()
        limit = self._host.limits.backlog
        if message.backlog_max > limit:
            raise LimitReached("notices in the backlog of a subscription", limit)
        subscription = await space.subscribe(
            template_from_wire(message.template),
            lease=message.lease,
            txn=self._thing(space, "transaction", message.txn),
            backlog_max=message.backlog_max,
            available=message.available,
            returned=message.returned,
            removed=message.removed,
        )
        name = self._add("subscription", subscription)
        return [name, subscription.event_id, subscription.expires]

    async def _next(self, space: PostgresSpace, message: wire.Next) -> list[msgspec.Raw]:
        check_wait(message.wait)
        subscription = self._thing(space, "subscription", message.subscription)
        deadline = deadline_of(space.clock, message.wait)
        taken: list[Notice] = []
        encoded: list[msgspec.Raw] = []
        size = 0
        try:
            while len(taken) < min(max(1, message.limit), AT_ONCE_MAX) and size < NOTICES_BYTES:
                left = None if deadline is None else max(0.0, deadline - space.clock.now())
                notice = await subscription.next(0 if taken else left)
                if notice is None:
                    break
                content = encode_notice(notice, self._message_max - AROUND_BYTES, self._level)
                if content is None:
                    subscription.miss(notice.missed + 1)
                    continue
                size += len(content)
                taken.append(notice)
                encoded.append(msgspec.Raw(content))
        except BaseException as error:
            if not (taken and isinstance(error, TupeloError)):  # Otherwise the error comes next.
                subscription.give_back(taken)
                raise
        return encoded

    async def _match(self, space: AsyncSpace, message: wire.Match) -> list[Any]:
        self._require_room()
        match_set = await space.match_set(
            template_from_wire(message.template),
            limit=message.limit,
            txn=self._thing(space, "transaction", message.txn),
            lease=message.lease,
        )
        return [self._add("match set", match_set), match_set.expires]

    async def _next_matches(self, space: PostgresSpace, message: wire.NextMatches) -> list[Any]:
        match_set = self._thing(space, "match set", message.match_set)
        entries: list[Any] = []
        size = 0
        while len(entries) < min(max(1, message.limit), AT_ONCE_MAX) and size < NOTICES_BYTES:
            entry = await match_set.next_entry(False)
            if entry is None:
                break
            entries.append(encode_fields(entry))
            size += about_bytes(entry.fields)
        return [entries, [[*one.entry_id, one.reason] for one in match_set.skipped]]

    # Whatever is leased

    async def _state(self, space: PostgresSpace, message: wire.State) -> list[Any]:
        thing = await self._leased(space, message)
        if message.thing == "entry":
            return [True, thing.expires, 0, None]
        active = not (thing.ended or thing.ran_out)
        if message.thing == "session":
            return [active, thing.expires, thing.seen, None]
        if message.thing == "subscription":
            await thing.refresh()
            error = None if thing.error is None else list(encode_error(thing.error))
            return [thing.active, thing.expires, thing.sequence, error]
        return [active, thing.expires, 0, None]

    async def _close(self, space: PostgresSpace, message: wire.Close) -> None:
        if message.thing in ("session", "subscription", "match set"):
            thing = self._pop(message.thing, message.id)
            if thing is not None:
                await thing.close()

    async def _renew(self, space: AsyncSpace, message: wire.Renew) -> float | None:
        thing = await self._leased(space, message)
        await space.lease_of(thing).renew(message.lease)
        expires: float | None = thing.expires
        return expires

    async def _revoke(self, space: AsyncSpace, message: wire.CancelLease) -> None:
        await space.lease_of(await self._leased(space, message)).cancel()

    # The end

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, also after the client has left."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def settled(self, delivery: StoredDelivery) -> None:
        """A delivery was confirmed or given back."""
        self.deliveries.discard(delivery)
        self._room.set()
        if self._ended and not self.deliveries:
            self.run(self._close_spaces())

    def leave(self) -> None:
        """The client is gone: end what it has, except its unconfirmed deliveries."""
        self._ended = True
        for kind, name in list(self._things):
            thing = self._pop(kind, name)
            if kind != "transaction" or thing.is_root:
                self.run(_end_quietly(thing))
        self._written.clear()
        if not self.deliveries:
            self.run(self._close_spaces())

    async def _close_spaces(self) -> None:
        opening, self._opening = self._opening, {}
        for task in opening.values():
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                await task.result().leave(None)
        self._host.with_stored.discard(self)

    async def stop(self) -> None:
        """The host ends: deliveries that nobody has settled go back."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._close_spaces()


async def _end_quietly(thing: Any) -> None:
    try:
        await thing.end_with_space()
    except TupeloError as error:
        logger.warning("%r could not be ended: %s", thing, error)


class _Undoable:
    """Entries that belong to the client at once: see `space.delivery.Got`. `undo` is called if its
    user did not get them."""

    def __init__(self, space: str, entries: list[Entry], undo: Callable[[], object]) -> None:
        self.space = space
        self.entries = entries
        self._undo = undo

    def confirm(self) -> int:
        return 0

    def give_back(self) -> int:
        self._undo()
        return 0

    def forget(self) -> None:
        """Nothing is reserved."""


StoredMethod = Callable[[StoredServing, Any, Any], Coroutine[Any, Any, Any]]

_METHODS: dict[type, tuple[str, StoredMethod]] = {
    wire.Open: ("", StoredServing._open),
    wire.Write: ("write", StoredServing._write),
    wire.Get: ("", StoredServing._get),
    wire.CountRequest: ("read", StoredServing._counted),
    wire.Changes: ("read", StoredServing._changes),
    wire.ReadLog: ("read", StoredServing._log),
    wire.Trim: ("administer", StoredServing._trim),
    wire.Begin: ("read", StoredServing._begin),
    wire.End: ("read", StoredServing._end),
    wire.ListPrepared: ("administer", StoredServing._prepared),
    wire.ListInHand: ("read", StoredServing._in_hand),
    wire.ListDelayed: ("read", StoredServing._delayed),
    wire.OpenSession: ("read", StoredServing._remember),
    wire.Subscribe: ("subscribe", StoredServing._subscribe),
    wire.Next: ("subscribe", StoredServing._next),
    wire.Match: ("read", StoredServing._match),
    wire.NextMatches: ("read", StoredServing._next_matches),
    wire.State: ("", StoredServing._state),
    wire.Close: ("", StoredServing._close),
    wire.Renew: ("", StoredServing._renew),
    wire.CancelLease: ("", StoredServing._revoke),
}
