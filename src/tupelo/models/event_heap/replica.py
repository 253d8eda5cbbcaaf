"""The replica of a heap at one host, on the loop of the host.

The host's own events are entries of its shared space of the heap's name, so that an entry written
there through any API is an event. They are copied to every host that has the heap, and reads look
only at the local copies: a host alone goes on with what it has. An event is removed at its source
and nowhere else, so it is removed once, and not while its source is out of reach.

Information about the heap itself (its views and their orders, the holders of tokens, that it was
destroyed) is stored as records in its companion space "tupelo.system.<name>", which is copied
likewise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from tupelo.errors import (
    BadArgument,
    BadFrame,
    CannotSend,
    DiskFull,
    HeapDestroyed,
    HostClosed,
    JournalError,
    NotAllowed,
    PeerLost,
    SpaceClosed,
    TupeloError,
    UnknownHost,
)
from tupelo.federation.groups.group import GroupPart, group_of
from tupelo.federation.groups.membership import Membership
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.peer import SilentExtension
from tupelo.federation.identity.access import NOBODY
from tupelo.federation.replication.feeds import Broadcast, Feed, FeedCursor, replication_of
from tupelo.federation.replication.placement import CopyAll
from tupelo.federation.replication.streams import host_of
from tupelo.federation.replication.tokens import TokenAt, Tokens, TokenState
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.event_heap import records
from tupelo.models.event_heap.factories import Factory
from tupelo.models.event_heap.ordering import Place
from tupelo.models.event_heap.orders import TotalOrders
from tupelo.models.event_heap.removing import Removing
from tupelo.models.event_heap.seen import Base, SharedRecord
from tupelo.models.event_heap.uses import UsageLeases
from tupelo.space.query import Query
from tupelo.space.tasks import Tasks, TaskSignal, when_room
from tupelo.space.waiting import Items, WriteOutcome
from tupelo.values.entry import Entry, thaw
from tupelo.values.kind import kind_of
from tupelo.values.parts import ANY
from tupelo.values.template import Template, as_template

logger = logging.getLogger("tupelo")

CHANNEL = "event heaps"
PLACES_KEPT = 1_024
NAMES_KEPT = 10_000

_REMOVING = {kind_of(records.Destroyed), kind_of(records.Adopted)}
_SYSTEM = {
    kind_of(cls) for cls in (*records.GENERATION_RECORDS, records.HeapMade, records.Destroyed)
}


def heaps_of(core: HostCore) -> Heaps:
    """The heaps of this host."""
    found = core.extensions.get(CHANNEL)
    return found if isinstance(found, Heaps) else Heaps(core)


class Heaps(SilentExtension):
    """The replicas of one host, by the names of their heaps. They use the group and the feeds, no
    channel of their own."""

    def __init__(self, core: HostCore) -> None:
        self.replicas: dict[str, Replica] = {}
        self.core = core
        self.factory = Factory(self)
        self._due: dict[HostedSpace, dict[Entry, None]] = {}  # to be removed when there is room
        self._removing = Tasks()
        core.extensions[CHANNEL] = self

    def replica(self, name: str, patience: float) -> Replica:
        """The replica of this name. HeapDestroyed if the heap was destroyed and not created
        again."""
        found = self.replicas.get(name)
        if found is None:
            found = Replica(self, name, patience)
            if found.destroyed:
                found.clear()
                found.close()
                raise HeapDestroyed(name)
            self.replicas[name] = found
        return found

    async def create(self, name: str, patience: float) -> Replica:
        """The replica of this name; a destroyed heap is created again."""
        found = self.replicas.get(name)
        if found is not None:
            return found
        found = self.replicas[name] = Replica(self, name, patience, recreate=True)
        if found.is_new:
            found.clear()  # This host may have been away when the heap was destroyed.
            await found.feed.drawn()  # Until then its copies of the old events can be read.
            await found.record(records.HeapMade(found.generation))
        return found

    def remove(self, space: HostedSpace, entries: list[Entry]) -> None:
        """Remove those of these entries that are there: on a full disk, once it has room."""
        if (due := self._due.get(space)) is not None:
            due.update(dict.fromkeys(entries))
            return
        try:
            _remove(space, entries)
        except DiskFull:
            self._due[space] = dict.fromkeys(entries)
            self._removing.start(self._remove_when_room(space))

    async def _remove_when_room(self, space: HostedSpace) -> None:
        async def remove() -> None:
            _remove(space, list(self._due[space]))

        try:
            with suppress(SpaceClosed, JournalError):
                await when_room(remove)
        finally:
            del self._due[space]

    async def stop(self) -> None:
        self.factory.close()
        for replica in list(self.replicas.values()):
            replica.close()
        self._removing.cancel()


class WrittenEvents(NamedTuple):
    """Written events, durable at this position."""

    entries: list[Entry]
    position: int


class Replica(GroupPart):
    """One host's part of a heap. `recreate`: make the next generation if the heap was
    destroyed."""

    folded_after = 1_000
    """An order is folded after this many places (and as many as it has kept), and what was seen in
    a shared session after this many records."""

    def __init__(self, heaps: Heaps, name: str, patience: float, *, recreate: bool = False) -> None:
        core = heaps.core
        self.name = name
        self.part = f"event heap {name}"
        self.core = core
        self.patience = patience
        self.me = core.id
        self.broadcast = Broadcast()
        self.closed = False
        self.generation = 0
        """The generation of the heap; a destroyed heap that is created again is a new one."""
        self.gone = 0
        """The last generation that was destroyed."""
        self._made = 0
        self.is_new = False
        self.sessions: set[str] = set()
        """The ids of the shared sessions that are known here."""
        self._shared: dict[str, SharedRecord] = {}
        self.names: dict[str, str] = {}
        """Names of hosts that have been within reach, by id."""
        self.readings: dict[Callable[[], None], None] = {}
        """Functions that end the open readings."""
        self._adopted: dict[str, int] = {}  # source → up to which number
        self._heaps = heaps
        replication = replication_of(core)
        known = replication.feeds.get(name)
        if known is not None and known.policy != CopyAll():
            raise BadArgument("name", "one that is not copied in another way at this host", name)
        self.feed: Feed = replication.feed(name, CopyAll())
        # Only replicas use it: an order without its records would have a gap.
        records_space = core.companion(self.feed.space, "system", NOBODY)
        self.system: Feed = replication.feed(records_space, CopyAll(), admits=self._admits)
        self.tokens = Tokens(core, self.system, self._payload_of)
        self.places: dict[Entry, Place] = {}
        self._events = FeedCursor(self.feed)
        self._records = FeedCursor(self.system)
        self.group = group_of(core)
        self.uses = UsageLeases(self)
        self.orders = TotalOrders(self)
        self.removing = Removing(self)
        self.sender = self.group.part(self.part, self)
        self.feed.watchers.append(self._look_at_events)
        self.system.watchers.append(self._look_at_records)
        self._recreate = recreate
        self._look_at_events()
        self._look_at_records()

    @property
    def destroyed(self) -> bool:
        return 0 < self.generation <= self.gone

    @property
    def membership(self) -> Membership:
        return self.group.membership

    @property
    def others(self) -> list[str]:
        """The other hosts within reach that have the heap."""
        members = self.membership.members.values()
        return [one.host for one in members if self.part in one.metadata_of and one.host != self.me]

    def shared_record(self, session: str) -> SharedRecord:
        """The record of a shared session."""
        found = self._shared.get(session)
        if found is None:
            found = self._shared[session] = SharedRecord(self, session)
        return found

    def _payload_of(self, token: str) -> TokenState | None:
        what, _, id = token.partition(" ")
        return self.shared_record(id) if what == "session" else None

    def incarnation_of(self, host: str) -> str | None:
        member = self.membership.members.get(host)
        return None if member is None else member.incarnation

    @property
    def closing(self) -> TupeloError:
        """The error for operations after the end: HeapDestroyed or HostClosed."""
        if self.destroyed:
            return HeapDestroyed(self.name)
        return HostClosed(f"the replica of the heap {self.name!r} was closed")

    def require_open(self) -> None:
        if self.destroyed or self.closed or self.feed.closed:
            raise self.closing

    # Changes of the feeds

    def _look_at_events(self) -> None:
        """Handle events that have come or gone."""
        for source in self._adopted:
            self._let_go(source)
        for source, number, entry in self._events.news():
            self.places[entry] = source, number
        streams = self.feed.exchange.streams.values()
        alive = sum(len(one.items) for one in streams) if len(self.places) > PLACES_KEPT else 0
        if len(self.places) > PLACES_KEPT + 2 * alive:
            self.places = {
                entry: (one.source, number)
                for one in streams
                for number, entry in one.items.items()
            }
        self._look()

    def _look_at_records(self) -> None:
        heard = [
            thaw(entry.shape, entry.fields)
            for _, _, entry in self._records.news()
            if entry.shape.kind in _SYSTEM
        ]
        joined = self.generation > 0
        for record in heard:
            match record:
                case records.Destroyed(generation=int(generation)):
                    self.gone = max(self.gone, generation)
                case records.HeapMade(generation=int(generation)):
                    self._made = max(self._made, generation)
        if not joined:  # The records say which generation it is.
            self.generation = max(1, self._made)
            if self._recreate and self.destroyed:
                self.is_new = True
                self.generation = self.gone + 1
        elif self.destroyed and not self.closed:
            self.clear()
            self.close()
        for record in heard:
            self._heard_record(record)
        self._look()

    def _look(self) -> None:
        if self.feed.closed or self.system.closed:
            self.close()
        if not self.closed:
            self.orders.look()
            self.broadcast.notify()

    def _heard_record(self, record: Any) -> None:
        match record:
            case records.SessionMade(session=str(session), generation=self.generation):
                if session not in self.uses.ended:
                    self.sessions.add(session)
                    self.uses.made(session, record.lease)
            case records.SessionSeen(session=str(session), generation=self.generation):
                if session not in self.uses.ended:
                    try:
                        self.shared_record(session).heard(record)
                    except BadFrame as error:
                        logger.info("an invalid record of %r was ignored: %s", self.name, error)
            case records.Adopted(source=str(source), upto=int(upto), generation=self.generation):
                self._adopted[source] = max(upto, self._adopted.get(source, 0))
                self._let_go(source)
            case records.Ended(id=str(id), into=str() | None, generation=self.generation):
                self.uses.heard(id, record.into)
            case (
                records.ViewMade(generation=self.generation)
                | records.Placed(generation=self.generation)
                | records.Folded(generation=self.generation)
            ):
                self.orders.heard(record)

    async def record(self, record: object, lease: float | None = None) -> None:
        """Write a record; when this returns, it is applied here."""
        if isinstance(record, records.GENERATION_RECORDS):
            record.generation = self.generation
        written = await self.system.space.door.write(record, lease=lease)
        await self._wait_copied(self.system, written.thing)

    async def keep(self, feed: Feed) -> None:
        """Wait until the copies here are durable, if the host is."""
        if feed.copies.durable:
            await feed.copies.flush(feed.copies.port.position)

    async def _wait_copied(self, feed: Feed, entry: Entry) -> None:
        own = feed.exchange.own
        await self.until(lambda: own.upto >= entry.arrival or entry.ended or feed.is_drawn)

    async def until(self, condition: Callable[[], object]) -> None:
        def is_so() -> object:
            if condition():
                return True
            self.require_open()
            return False

        await self.broadcast.until(is_so)

    # Events

    def look_up(self, place: Place) -> Entry | None:
        """The event at this place, if it is here and alive."""
        entry = self.feed.copy(*place)
        return None if entry is None or entry.gone else entry

    def is_gone(self, place: Place) -> bool:
        """Whether the event at this place is known to be removed or expired."""
        source, number = place
        stream = self.feed.stream(source)
        if stream is None:
            return False
        entry = stream.items.get(number)
        return entry.gone if entry is not None else stream.upto >= number

    async def put(self, items: Items, ttl: float | None, mark: WriteOutcome | None = None) -> None:
        """Put all of these events or none; they are among the copies here when this returns.
        `mark`: another identity for them."""
        await self.wait_copied(self.write(items, ttl, mark))

    def write(
        self, items: Items, ttl: float | None, mark: WriteOutcome | None = None
    ) -> WrittenEvents:
        """Write events, without waiting for their copies."""
        self.require_open()
        leases, position = self.feed.space.port.write_items(
            items, ttl, None, None, TaskSignal, 0, mark
        )
        assert isinstance(leases, list)
        return WrittenEvents([lease.thing for lease in leases], position)

    async def wait_copied(self, written: WrittenEvents) -> None:
        """Wait until written events are among the copies. CannotSend if they are too large to be
        copied; then they are removed."""
        space, entries = self.feed.space, written.entries
        await space.flush(written.position)
        for entry in entries[-1:]:
            await self._wait_copied(self.feed, entry)
        own = self.feed.exchange.own
        if any(not entry.ended and entry.arrival not in own.items for entry in entries):
            for entry in entries:
                if not entry.ended:
                    await space.flush(space.port.cancel(entry))
            raise CannotSend(f"the event is too large for the heap {self.name!r}")

    def find(
        self,
        template: Template,
        limit: int | None = None,
        *,
        known: bool = True,
        removing: bool = False,
    ) -> list[Entry]:
        """The matches that are here, in the order in which they came, at most `limit`; with
        `removing`, also those that are being removed. UnknownType if `known` and one is of a class
        that this program does not know."""
        self.require_open()
        only = None if removing else self.removing.is_left
        query = Query(template, many=True, limit=limit, known=known, only=only)
        return self.feed.copies.port.get_now(query)[0]

    async def adopt(self, host: str) -> None:
        """Take over the events of a host that is gone for good, as far as they are here."""
        self.require_open()
        streams = [
            one for one in self.feed.exchange.streams.values() if host_of(one.source) == host
        ]
        if host == self.me or host in self.membership.members or not streams:
            raise BadArgument("host", "one that has put events here, and is out of reach", host)
        for stream in streams:
            living = [stream.items[number] for number in stream.numbers(0)]
            upto = stream.upto
            self.removing.adopt([entry for entry in living if not entry.gone])
            await self.until(lambda: self.feed.is_drawn)
            await self.record(records.Adopted(stream.source, upto))

    def _let_go(self, source: str) -> None:
        """Remove the events of a source that another host has adopted."""
        stream, upto = self.feed.stream(source), self._adopted[source]
        numbers = [] if stream is None else [n for n in stream.numbers(0) if n <= upto]
        if not numbers:
            return
        if source != self.feed.source:
            self.feed.outgrow(source, numbers)
            return
        entries = [one for n in numbers if (one := self.feed.original(n)) is not None]
        self._heaps.remove(self.feed.space, entries)

    # Closing

    async def destroy(self) -> None:
        """Destroy the heap at all hosts: each removes its own events, if this host may take there.
        NotAllowed if a host within reach does not permit it; then nothing is done."""
        self.require_open()
        for host in self.others:
            with suppress(PeerLost, UnknownHost):
                await self.sender.ask(host, ["destroy"])
        self.require_open()
        with suppress(HeapDestroyed):  # by the record itself
            await self.record(records.Destroyed(self.generation))

    def clear(self) -> None:
        """Remove this host's events and its records about them."""
        self._clear(self.feed.space, ANY)
        kinds = Template.any_of([*records.GENERATION_RECORDS, TokenAt])
        self._clear(self.system.space, kinds)

    def _clear(
        self, space: HostedSpace, template: object, only: Callable[[Any], bool] | None = None
    ) -> None:
        """Remove all matching entries, or those for which `only` is true."""
        found, _ = space.port.get_now(Query(as_template(template), many=True, limit=None))
        wanted = [one for one in found if only is None or only(thaw(one.shape, one.fields))]
        self._heaps.remove(space, wanted)

    def forget(self, id: str, token: str, into: str | None) -> None:
        """Remove this host's records about a view or shared session that has ended."""
        for record in (
            records.ViewMade(id),
            records.Placed(id),
            records.Folded(id),
            records.SessionMade(id),
            records.SessionSeen(id),
            TokenAt(token),
        ):
            self._clear(self.system.space, record)
        self.sessions.discard(id)
        self._shared.pop(id, None)
        self.orders.forget(id, into)
        self.tokens.forget(token)

    def forget_places(self, view: str, base: int) -> None:
        """Remove this host's records of places before the base of a folded order."""
        space = self.system.space
        self._clear(space, records.Folded(view), lambda one: (one.base or 0) < base)
        self._clear(
            space,
            records.Placed(view),
            lambda one: (one.start or 0) + len(one.numbers or []) <= base,
        )

    def forget_seen(self, session: str, base: Base) -> None:
        """Remove this host's records about a session that are older than its base."""
        self._clear(
            self.system.space,
            records.SessionSeen(session),
            lambda one: ((one.epoch or 0), (one.fold or 0)) < base,
        )

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._heaps.replicas.get(self.name) is self:
            del self._heaps.replicas[self.name]
        self.uses.close()
        self.orders.close()
        self.tokens.close()
        self.feed.watchers.remove(self._look_at_events)
        self.system.watchers.remove(self._look_at_records)
        readings, self.readings = self.readings, {}
        for end in readings:
            end()
        self.broadcast.notify()

    # As a part of the group

    def metadata(self) -> Any:
        """The views and shared sessions that are in use here."""
        return [] if self.closed else self.uses.here

    def install(self, membership: Membership) -> None:
        if not self.closed:
            if len(self.names) > NAMES_KEPT:
                self.names.clear()
            self.names.update((one.host, one.name) for one in membership.members.values())
            self.uses.install(membership)
            self.orders.look()
            self.broadcast.notify()

    def heard(self, neighbour: str, source: str, body: Any) -> None:
        raise BadFrame("a heap has no notices")

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        if self.closed:
            return None
        match body:
            case ["remove", str(stream), int(number), str(request)]:
                self._require("take", neighbour, source)
                if stream != self.feed.source:
                    return None
                return await self.removing.remove_here(number, request)
            case ["order", str(view), int(length)]:
                self._require("read", neighbour, source)
                order = self.orders.order(view)
                return [order.pack(length), order.marks]
            case ["put", str(view)]:
                self._require("write", neighbour, source)
                orders = self.orders.orders
                return view in orders and orders[view].permits_put(source)
            case ["destroy"]:
                self._require("take", neighbour, source)
                return None
            case ["clone", str(view)]:
                self._require("write", neighbour, source)
                self.orders.asked_for_clone(view)
                return None
        raise BadFrame("unknown request about a heap")

    def _require(self, operation: str, neighbour: str, source: str) -> None:
        if not self.core.may(operation, self.name, neighbour, source):
            raise NotAllowed(operation, self.name, f"the host {source}")

    def _admits(self, neighbour: str, source: str, record: Entry) -> bool:
        """Whether a record is accepted from this host. Destroying the heap and adopting events need
        the right to take; other records only that to write, which every partner has."""
        if record.shape.kind not in _REMOVING:
            return True
        is_allowed = self.core.may("take", self.name, neighbour, source)
        if not is_allowed:
            logger.warning("refused: the host %s may not take from the heap %r", source, self.name)
        return is_allowed


def _remove(space: HostedSpace, entries: list[Entry]) -> None:
    if entries:
        port = space.port
        txn = port.begin(None)
        for entry in entries:
            port.take_entry(entry, txn)
        try:
            position = port.commit(txn)
        except DiskFull:
            port.abort(txn)
            raise
        space.flush_soon(position)
