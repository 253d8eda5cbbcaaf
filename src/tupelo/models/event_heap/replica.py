"""The replica of a heap at one host, on its loop.

The host's own events are entries of its shared space of the heap's name, so that what any door
writes there is an event. They are copied to every host that has the heap, and reads look only at
the copies that are here: so a host alone goes on with what it has seen. An event is removed where
it lives, at its source, and nowhere else: so it is removed once, and cannot be while its source is
out of reach.

What a heap must tell its replicas of itself (its views and their orders, who has a token, that it
was destroyed) is kept as records in a second space, "<name>.system", which is copied likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from tupelo.errors import (
    BadFrame,
    CannotSend,
    HeapDestroyed,
    HostClosed,
    NotAllowed,
    TupeloError,
)
from tupelo.federation.groups.group import group_of
from tupelo.federation.groups.roster import Roster
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.identity.access import Access
from tupelo.federation.replication.carrier import replication_of
from tupelo.federation.replication.feed import Feed
from tupelo.federation.replication.news import Bell, Following
from tupelo.federation.replication.placing import Everything
from tupelo.federation.replication.tokens import Tokens
from tupelo.models.event_heap import records
from tupelo.models.event_heap.factories import Factory
from tupelo.models.event_heap.ordering import Place
from tupelo.models.event_heap.orders import Orders
from tupelo.models.event_heap.removing import Removing
from tupelo.space.tasks import TaskSignal
from tupelo.space.writers import Items, Mark
from tupelo.values.entry import Entry, thaw
from tupelo.values.kind import kind_of
from tupelo.values.parts import ANY
from tupelo.values.template import Template

CHANNEL = "event heaps"
PLACES_KEPT = 1_024

_SYSTEM = {
    kind_of(cls)
    for cls in (
        records.ViewMade,
        records.Placed,
        records.SessionMade,
        records.HeapMade,
        records.Destroyed,
    )
}


def heaps_of(core: HostCore) -> Heaps:
    """The heaps that this host has a replica of."""
    found = core.carriers.get(CHANNEL)
    return found if isinstance(found, Heaps) else Heaps(core)


class Heaps:
    """The replicas of one host, by the names of their heaps. They speak through the group and the
    feeds, not over a channel of their own."""

    def __init__(self, core: HostCore) -> None:
        self.replicas: dict[str, Replica] = {}
        self.core = core
        self.factory = Factory(self)
        core.carriers[CHANNEL] = self

    def replica(self, name: str, patience: float) -> Replica:
        """HeapDestroyed, if it was, and nobody has made it anew."""
        found = self.replicas.get(name)
        if found is None:
            found = Replica(self, name, patience)
            if found.gone >= found.generation:
                found.clear()
                found.close()
                raise HeapDestroyed(name)
            self.replicas[name] = found
        return found

    async def create(self, name: str, patience: float) -> Replica:
        """The same; but one that was destroyed is made anew."""
        found = self.replicas.get(name)
        if found is not None:
            return found
        found = self.replicas[name] = Replica(self, name, patience)
        if found.gone >= found.generation:
            found.clear()  # It may not have been here when the heap was destroyed.
            found.generation = found.gone + 1
            await found.record(records.HeapMade(found.generation))
        return found

    def engaged(self, peer: Peer) -> None:
        pass

    def departed(self, peer: Peer) -> None:
        pass

    def heard(self, peer: Peer, body: Any) -> None:
        raise BadFrame("nothing is said on this channel")

    async def stop(self) -> None:
        self.factory.close()
        for replica in list(self.replicas.values()):
            replica.close()


class Written(NamedTuple):
    """Events that were written, and are durable at this position."""

    entries: list[Entry]
    position: int


class Replica:
    """One host's part of a heap."""

    def __init__(self, heaps: Heaps, name: str, patience: float) -> None:
        core = heaps.core
        self.name = name
        self.core = core
        self.patience = patience
        self.me = core.id
        self.bell = Bell()
        self.closed = False
        self.generation = 0
        """Which heap of this name it is: one that is made anew has nothing of the one before."""
        self.gone = 0
        self.sessions: set[str] = set()
        """The ids of the shared sessions that are known here."""
        self.readings: dict[Callable[[], None], None] = {}
        """How to end what is being read."""
        self._heaps = heaps
        replication = replication_of(core)
        self.feed: Feed = replication.feed(name, Everything())
        _protect(core, f"{name}.system")
        self.system: Feed = replication.feed(f"{name}.system", Everything())
        self.tokens = Tokens(core, self.system)
        self._places: dict[Entry, Place] = {}
        self._events = Following(self.feed)
        self._records = Following(self.system)
        self._group = group_of(core)
        self.orders = Orders(self)
        self.removing = Removing(self)
        self.voice = self._group.part(f"event heap {name}", self)
        self.feed.watchers.append(self._look_at_events)
        self.system.watchers.append(self._look_at_records)
        self._joined = False
        self._look_at_events()
        self._look_at_records()
        self._joined = True
        self.generation = max(1, self.generation)

    @property
    def destroyed(self) -> bool:
        return 0 < self.generation <= self.gone

    @property
    def roster(self) -> Roster:
        return self._group.roster

    async def renew(self) -> None:
        """Tell the group of a card that has changed."""
        await self._group.renew()

    @property
    def closing(self) -> TupeloError:
        """Why it is closed."""
        if self.destroyed:
            return HeapDestroyed(self.name)
        return HostClosed(f"the replica of the heap {self.name!r} was closed")

    def require_open(self) -> None:
        if self.destroyed or self.closed or self.feed.closed:
            raise self.closing

    # News

    def _look_at_events(self) -> None:
        """Events have come, or gone."""
        for source, number, entry in self._events.news():
            self._places[entry] = source, number
        if len(self._places) > PLACES_KEPT:
            self._forget_places()
        self._look()

    def _look_at_records(self) -> None:
        for _, _, entry in self._records.news():
            if entry.shape.kind in _SYSTEM:
                self._heard_record(thaw(entry.shape, entry.fields))
        self._look()

    def _look(self) -> None:
        if self.feed.closed or self.system.closed:
            self.close()
        if not self.closed:
            self.orders.look()
            self.bell.ring()

    def _forget_places(self) -> None:
        streams = self.feed.exchange.streams.values()
        if len(self._places) > PLACES_KEPT + 2 * sum(len(one.items) for one in streams):
            self._places = {
                entry: (one.source, number)
                for one in streams
                for number, entry in one.items.items()
            }

    def _heard_record(self, record: Any) -> None:
        match record:
            case records.Destroyed(generation=int(generation)):
                self.gone = max(self.gone, generation)
                if self._joined and self.destroyed:
                    self.clear()
                    self.close()
            case records.HeapMade(generation=int(generation)):
                if not self._joined:
                    self.generation = max(self.generation, generation)
            case records.SessionMade(session=str(session)):
                self.sessions.add(session)
            case records.ViewMade() | records.Placed():
                self.orders.heard(record)

    async def record(self, record: object) -> None:
        """Tell this to all replicas, this one first."""
        lease = await self.system.space.door.write(record)
        await self._drawn(self.system, lease.thing)

    async def keep(self, feed: Feed) -> None:
        """Until the copies that are here are on disk, if there is one."""
        if feed.copies.durable:
            await feed.copies.flush(feed.copies.operations.core.log.position)

    async def _drawn(self, feed: Feed, entry: Entry) -> None:
        own = feed.exchange.own
        await self.until(lambda: own.upto >= entry.arrival or entry.ended or feed.is_drawn)

    async def until(self, condition: Callable[[], object]) -> None:
        def is_so() -> object:
            if condition():
                return True
            self.require_open()
            return False

        await self.bell.until(is_so)

    # Events

    def look_up(self, place: Place) -> Entry | None:
        """The event at this place of its source, if it is here and lives."""
        entry = self.feed.copy(*place)
        return None if entry is None or entry.gone else entry

    def is_gone(self, place: Place) -> bool:
        """Is it known here that it was removed, or has run out?"""
        source, number = place
        stream = self.feed.stream(source)
        if stream is None:
            return False
        entry = stream.items.get(number)
        return entry.gone if entry is not None else stream.upto >= number

    async def put(self, items: Items, ttl: float | None, mark: Mark | None = None) -> None:
        """All of these or none, which are among the copies here when this returns; under another
        identity if one is given."""
        await self.drawn(self.write(items, ttl, mark))

    def write(self, items: Items, ttl: float | None, mark: Mark | None = None) -> Written:
        """Begin to put them."""
        self.require_open()
        leases, position = self.feed.space.operations.write_items(
            items, ttl, None, None, TaskSignal, 0, mark
        )
        assert isinstance(leases, list)  # It does not wait.
        return Written([lease.thing for lease in leases], position)

    async def drawn(self, written: Written) -> None:
        """Until it is among the copies. CannotSend if it cannot be, and is not there any more."""
        space, entries = self.feed.space, written.entries
        await space.flush(written.position)
        for entry in entries[-1:]:
            await self._drawn(self.feed, entry)
        own = self.feed.exchange.own
        if any(not entry.ended and entry.arrival not in own.items for entry in entries):
            for entry in entries:
                if not entry.ended:
                    await space.flush(space.operations.cancel(entry))
            raise CannotSend(f"the event is too large for the heap {self.name!r}")

    def place_of(self, entry: Entry) -> Place | None:
        return self._places.get(entry)

    def find(self, template: Template) -> list[Entry]:
        """All that match and are here, in the order in which they came here."""
        self.require_open()
        found, _ = self.feed.copies.operations.get_all(template, TaskSignal, False, 0)
        assert isinstance(found, list)
        return found

    # The end

    async def destroy(self) -> None:
        """Everywhere. Each host removes the events of its own when it hears of it."""
        self.require_open()
        with suppress(HeapDestroyed):  # That is what we hear.
            await self.record(records.Destroyed(self.generation))

    def clear(self) -> None:
        """Remove the events of this host, for good."""
        operations = self.feed.space.operations
        found, _ = operations.get_all(ANY, TaskSignal, False, 0)
        assert isinstance(found, list)  # It does not wait.
        txn = operations.begin(None)
        for entry in found:
            operations.take_entry(entry, txn)
        self.feed.space.flush_soon(operations.commit(txn))

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._heaps.replicas.get(self.name) is self:
            del self._heaps.replicas[self.name]
        self.orders.close()
        self.tokens.close()
        self.feed.watchers.remove(self._look_at_events)
        self.system.watchers.remove(self._look_at_records)
        readings, self.readings = self.readings, {}
        for end in readings:
            end()
        self.bell.ring()

    # As a part of the group

    def card(self) -> Any:
        """The views that are in use here."""
        return [] if self.closed else sorted(self.orders.used)

    def install(self, roster: Roster) -> None:
        if not self.closed:
            self.orders.look()
            self.bell.ring()

    async def settle(self, roster: Roster) -> None:
        pass

    def cut(self, hosts: frozenset[str]) -> None:
        pass

    def heard(self, neighbour: str, source: str, body: Any) -> None:
        raise BadFrame("nobody says this about a heap")

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        if self.closed:
            return None
        match body:
            case ["remove", str(stream), int(number)]:
                self._require_may_take(neighbour)
                return await self.removing.here(number) if stream == self.feed.source else None
            case ["order", str(view), int(length)]:
                return self.orders.pack(view, length)
            case ["clone", str(view)]:
                self.orders.asked_for_clone(view)
                return None
        raise BadFrame("nobody asks this about a heap")

    def _require_may_take(self, neighbour: str) -> None:
        """The rules of the space hold for whoever is behind this neighbour."""
        peer = self.core.peers.get(neighbour)
        if peer is None or not peer.may("take", self.feed.space):
            raise NotAllowed("take", self.name, "another host")


def _protect(core: HostCore, name: str) -> None:
    """A space in which other hosts may not take: an order without its records would have a hole."""
    nobody = Access(take=())
    if name in core.spaces:
        core.spaces[name].access = nobody
    else:
        core.make_space(name, nobody)
