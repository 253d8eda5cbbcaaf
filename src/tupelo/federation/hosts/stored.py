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
    TransactionEnded,
    TransactionError,
    TupeloError,
    UnknownSpace,
    UnknownTransaction,
)
from tupelo.federation.hosts.client_resources import (
    PERMISSIONS,
    OpenResources,
    entry_numbers,
    next_matches,
    next_notices,
    require_few,
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
from tupelo.space.tasks import Tasks
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder, InHand
from tupelo.values.lease import check_lease
from tupelo.values.parts import ANY
from tupelo.values.template_encoding import template_from_wire

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.serving import ClientServer
    from tupelo.postgres.space import PostgresSpace
    from tupelo.postgres.transactions import PostgresTransaction

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
        name: str,
        space: PostgresSpace,
        txn: PostgresTransaction,
        entries: list[Entry],
        holder: Holder,
    ) -> None:
        self.entries = entries
        self.holder = holder
        self.space = name
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
        self._resources = OpenResources(host.limits, host.held, lambda one: bool(one.ended))
        self._written: dict[str, dict[int, Any]] = {}  # by transaction, and number
        self._tasks = Tasks()
        self.run = self._tasks.start
        """Run a coroutine to its end, also after the client has left."""
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
            stored = await self._client.check_password(message)
        else:
            if isinstance(message, wire.Get):
                operation = "take" if message.take else "read"
            elif isinstance(message, wire.LeaseCall):
                operation = PERMISSIONS[message.thing]
            stored = self._client.allowed(message.space, operation)
        assert isinstance(stored, StoredSpace)
        space = await self._opened(stored, getattr(message, "create", True))
        if tasks := list(self._tasks):  # What the client has confirmed before is done before.
            await asyncio.wait(tasks)
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

    def spaces(self) -> dict[str, PostgresSpace]:
        """The open spaces, by their names at this host."""
        return {
            name: task.result()
            for name, task in self._opening.items()
            if task.done() and not task.cancelled() and task.exception() is None
        }

    async def _leased(self, space: PostgresSpace, message: wire.LeaseCall) -> Any:
        """A resource of this client, or an entry, with its lease."""
        if message.thing != "entry":
            return self._resources.get(space, message.thing, message.id)
        n, id_ = entry_numbers(message.id)
        for written in self._written.values():
            if n in written:
                return written[n]
        return await space.written_entry(n, id_)

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
        txn = self._resources.get(space, "transaction", message.txn)
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
        txn = self._resources.get(space, "transaction", message.txn)
        session = self._resources.get(space, "session", message.session)
        await require_few(message, partial(space.count, template, txn=txn))
        limit = message.limit if message.many else 1
        asked = (message.wait, message.many, limit)
        if message.take and txn is None:
            reserved = await space.reserve(template, *asked, order, message.if_exists)
            entries: list[Entry] = []
            if reserved is not None:
                inside, entries = reserved
                holder = self._client.holder.of_call(message.call)
                delivery = StoredDelivery(self, message.space, space, inside, entries, holder)
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
                self._client.got(message.call, UndoableRead(message.space, entries, undo))
        encode = partial(encode_whole, level=self._level) if message.whole else encode_fields
        encoded = [encode(entry) for entry in entries]
        return [encoded, [self._host.name], []] if message.coverage else encoded

    def _abort_soon(self, txn: PostgresTransaction) -> None:
        self.run(txn.interrupted())

    async def _counted(self, space: AsyncSpace, message: wire.CountRequest) -> Any:
        space.require_here(message.scope)
        txn = self._resources.get(space, "transaction", message.txn)
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
        self._resources.require_room()
        if message.id is not None:
            raise TransactionError(
                f"the space {message.space!r} is in a database, and does not vote in two phases yet"
            )
        parent = self._resources.get(space, "transaction", message.parent)
        txn = await space.begin(message.lease, parent)
        self._resources.add(space, "transaction", txn, txn.id)
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
            self._resources.pop("transaction", txn.id)
            self._written.pop(txn.id, None)
        return [votes[0] if votes else None, state, txn.reason, txn.expires]

    async def _ending(self, space: PostgresSpace, message: wire.End) -> PostgresTransaction:
        """A transaction of this client, or one that is prepared, by whatever program."""
        try:
            found: PostgresTransaction = self._resources.get(space, "transaction", message.txn)
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

    async def _open_session(self, space: PostgresSpace, message: wire.OpenSession) -> list[Any]:
        self._resources.require_room()
        like = self._resources.get(space, "session", message.like)
        session = await space.open_session(message.lease, like)
        return [self._resources.add(space, "session", session), session.expires]

    async def _subscribe(self, space: AsyncSpace, message: wire.Subscribe) -> list[Any]:
        self._resources.require_room(backlog=message.backlog_max)
        subscription = await space.subscribe(
            template_from_wire(message.template),
            lease=message.lease,
            txn=self._resources.get(space, "transaction", message.txn),
            backlog_max=message.backlog_max,
            available=message.available,
            returned=message.returned,
            removed=message.removed,
        )
        name = self._resources.add(space, "subscription", subscription)
        return [name, subscription.event_id, subscription.expires]

    async def _next(self, space: PostgresSpace, message: wire.Next) -> list[msgspec.Raw]:
        subscription = self._resources.get(space, "subscription", message.subscription)
        return await next_notices(
            subscription, message, space.clock, self._message_max, self._level
        )

    async def _match(self, space: AsyncSpace, message: wire.Match) -> list[Any]:
        self._resources.require_room()
        match_set = await space.match_set(
            template_from_wire(message.template),
            limit=message.limit,
            txn=self._resources.get(space, "transaction", message.txn),
            lease=message.lease,
        )
        return [self._resources.add(space, "match set", match_set), match_set.expires]

    async def _next_matches(self, space: PostgresSpace, message: wire.NextMatches) -> list[Any]:
        match_set = self._resources.get(space, "match set", message.match_set)
        entries = await next_matches(message, partial(match_set.next_entry, False))
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
            thing = self._resources.pop(message.thing, message.id)
            if thing is not None:
                await thing.close()

    async def _renew(self, space: AsyncSpace, message: wire.Renew) -> float | None:
        thing = await self._leased(space, message)
        await space.lease_of(thing).renew(message.lease)
        expires: float | None = thing.expires
        return expires

    async def _cancel_lease(self, space: AsyncSpace, message: wire.CancelLease) -> None:
        await space.lease_of(await self._leased(space, message)).cancel()

    # The end

    def settled(self, delivery: StoredDelivery) -> None:
        """A delivery was confirmed or given back."""
        self.deliveries.discard(delivery)
        self._room.set()
        if self._ended and not self.deliveries:
            self.run(self._close_spaces())

    def leave(self) -> None:
        """The client is gone: end what it has, except its unconfirmed deliveries."""
        self._ended = True
        for kind, _, thing in self._resources.pop_all():
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
        while tasks := list(self._tasks):
            await asyncio.wait(tasks)
        await self._close_spaces()


async def _end_quietly(thing: Any) -> None:
    try:
        await thing.end_with_space()
    except TupeloError as error:
        logger.warning("%r could not be ended: %s", thing, error)


class UndoableRead:
    """Entries that belong to the client at once: see `space.delivery.DeliveredAtOnce`. `undo` is
    called if its user did not get them."""

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
    wire.OpenSession: ("read", StoredServing._open_session),
    wire.Subscribe: ("subscribe", StoredServing._subscribe),
    wire.Next: ("subscribe", StoredServing._next),
    wire.Match: ("read", StoredServing._match),
    wire.NextMatches: ("read", StoredServing._next_matches),
    wire.State: ("", StoredServing._state),
    wire.Close: ("", StoredServing._close),
    wire.Renew: ("", StoredServing._renew),
    wire.CancelLease: ("", StoredServing._cancel_lease),
}
