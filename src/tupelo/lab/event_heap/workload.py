"""The workload of the Event Heap: artists at each host that put, read and remove events.

The history is plain data, so that the checker can be tested without hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Literal

from tupelo.errors import DiskFull, PeerLost, TokenAway, TupeloError
from tupelo.federation.names import companion_name
from tupelo.federation.replication.feeds import Feed, FeedCursor, replication_of
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.simulation import (
    DELAYS,
    NAMES,
    Fault,
    History,
    Nemesis,
    SimulatedHost,
    Simulation,
    SimulationPlan,
    raise_failures,
)
from tupelo.lab.virtual_world import ProgramLife
from tupelo.models.event_heap import Bridge, Event, EventHeap, Session, View, ViewCloned
from tupelo.models.event_heap.ordering import Ordering, Place
from tupelo.models.event_heap.records import Destroyed, Placed, read_places
from tupelo.models.event_heap.replica import Replica, heaps_of
from tupelo.values.entry import thaw
from tupelo.values.parts import ANY

BOARD = "board"
SIDE = "side"
"""The heap to which bridges copy events."""
HEAPS = (BOARD, SIDE)
BRIEF = "brief"
"""A heap that is created and destroyed again and again."""
KINDS = ("a", "b")
PATIENCE_SECONDS = 1.5
SETTLE_SECONDS = 15.0
READERS_MAX = 4
"""So many sessions, and so many views, an artist has."""
VIEWS_MAX = 3
TRIES = 100
"""So often a reader goes on when its session was lost or resumed."""
PUT_MAX = 80
"""So many events are put in a simulation."""


# The history


How = Literal["killed", "done", "failed"]
"""Killed: the host crashed before the end, or the result is in doubt."""


@dataclass
class Put:
    """An event that was put, with its unique number."""

    number: int
    kind: str
    heap: str
    source: str
    """A host; if it has no folder, one of its lives."""
    begun: float
    ended: float = inf
    how: How = "killed"
    lasts: bool = True
    """False if the event has a time to live."""


@dataclass
class Removal:
    """An attempt to remove an event; `number` is None if none was found."""

    heap: str
    number: int | None = None
    how: How = "killed"


@dataclass(frozen=True)
class ReadEvent:
    """An event that was read: the kind in the template ("" for any), and the view."""

    number: int
    asked: str = ""
    view: str = ""
    at: str = ""
    """The life of a host."""


@dataclass
class HeapReader:
    """A session (also a shared one), a view or a query: it gets no event twice."""

    name: str
    heap: str
    reads: list[ReadEvent] = field(default_factory=list)
    inherited: frozenset[int] = frozenset()
    """The events that the original had seen, if this is a clone."""
    wants: str = ""
    """The kind of events that it gets; "" for all."""
    stands: bool = True
    """It reads to the end, so it must have got all events."""
    fifo: bool = True
    """All its reads are by one host. The hosts that share a session each get a part."""
    resumed: bool = False
    """A host has resumed it without its owner. Then an event may be read again, at a host that does
    not reach those where it was read."""
    pending: int = 0
    """Reads of a shared session that have not ended: their events may be lost."""
    announced: set[tuple[str, str]] = field(default_factory=set)
    """The clones that were announced to it: the old view, and the new one."""
    hosts: set[str] = field(default_factory=set)
    """The hosts that have read it to the end."""

    @property
    def seen(self) -> set[int]:
        return {read.number for read in self.reads} | self.inherited


@dataclass
class Remains:
    """The state at the end, when all hosts have met again; orders are those of one heap."""

    heap: str = ""
    held: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """The numbers of the events, by host and heap."""
    hidden: dict[str, set[int]] = field(default_factory=dict)
    """By host, those that were removed there, and that other hosts still have: their source has
    lost its memory."""
    orders: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """The complete orders, with removed events, by host and view."""
    replays: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """The replays of the views that are used at a host, by host and view."""
    horizons: dict[str, int] = field(default_factory=dict)
    """For some views: how many of the latest places can be replayed."""
    known: dict[str, set[str]] = field(default_factory=dict)
    """The views and shared sessions that are known at each host."""
    open: dict[str, int] = field(default_factory=dict)
    """The hosts with the heap BRIEF, and its generation there."""
    destroyed: int = 0
    """The last generation of BRIEF that was destroyed."""
    left: dict[str, list[int]] = field(default_factory=dict)
    """The events in BRIEF at these hosts."""


class HeapHistory(History[Any]):
    """What artists have put, read and removed, and what was lost with a host."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(note)
        self.called = 0
        """How many operations were called."""
        self.puts: dict[int, Put] = {}
        self.removals: list[Removal] = []
        self.readers: list[HeapReader] = []
        self.shared: dict[str, HeapReader] = {}
        """The shared sessions, by id."""
        self.excused: set[int] = set()
        """Events that were at no other host when the last host with them crashed."""
        self.untold: set[int] = set()
        """Events that a host had removed when it crashed, before it could tell another host."""
        self.unordered: set[tuple[str, int]] = set()
        """Events whose place in a view was known only to a host that crashed."""
        self.destroyed: set[str] = set()
        """The views and shared sessions that were destroyed."""
        self.destroying: set[str] = set()
        """The same, with those whose destruction may have failed."""
        self.adopted: dict[int, str] = {}
        """The events that were adopted, and the life of a host that did."""
        self.adoptions: set[str] = set()
        """The hosts whose events were adopted."""
        self.loose: set[int] = set()
        """Events that may be there, or be removed, twice: their host came back, it is unknown
        whether they were adopted, or their remover crashed before it had confirmed them."""
        self.brief: dict[int, tuple[int, str]] = {}
        """The events in the heap BRIEF: the generation of the heap, and the source."""
        self.ended: set[str] = set()
        """The sources that have ended for good, or have not come back to the heap BRIEF."""

    def reader(self, name: str, heap: str, inherited: frozenset[int] = frozenset()) -> HeapReader:
        reader = HeapReader(name, heap, inherited=inherited)
        self.readers.append(reader)
        return reader


# Artists


def is_in_doubt(error: TupeloError) -> bool:
    """Whether the operation that has failed may have been done."""
    return isinstance(error, (PeerLost, DiskFull)) and error.in_doubt


class Artist:
    """A program that works at a host until the host ends or the load is over."""

    def __init__(self, world: HeapSimulation, member: HeapHost, name: str) -> None:
        assert member.life is not None
        self.world = world
        self.history = world.history
        self.member = member
        self.life: ProgramLife = member.life
        self.name = name
        self.sessions: list[tuple[HeapReader, Session]] = []
        self.views: list[tuple[HeapReader, View]] = []
        self._rng = Random(f"{world.seed} {name}")

    @property
    def board(self) -> EventHeap:
        return self.member.heaps[BOARD]

    async def run(self) -> None:
        acts: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.put),
            (2, self.put_some),
            (5, self.put_through_view),
            (5, self.read_session),
            (6, self.read_view),
            (2, self.remove),
            (1, self.begin_session),
            (1, self.clone_session),
            (2, self.share),
            (3, self.open_shared),
            (2, self.read_shared),
            (2, self.begin_view),
            (1, self.end_one),
            (1, self.replay),
            (2, self.make_or_destroy),
            (1, self.destroy_one),
            (1, self.adopt),
        ]
        weights = [weight for weight, _ in acts]
        await self.begin_session()
        await self.listen()
        while not self.world.is_calm:
            await asyncio.sleep(self._rng.expovariate(4.0))
            _, act = self._rng.choices(acts, weights)[0]
            self.history.called += 1
            try:
                await act()
            except TupeloError as error:
                self.history.note(f"{self.name}: {act.__name__} failed: {error!r}")
            self.world.check_owners()

    # Putting

    def _event(self, heap: str, lasts: bool = True) -> tuple[Put, Event]:
        number = self.world.loop.number("event")
        kind = self._rng.choice(KINDS)
        begun = self.history.tick()
        put = Put(number, kind, heap, self.member.source, begun, lasts=lasts)
        self.history.puts[number] = put
        return put, Event(kind, i=number)

    async def _put(self, puts: list[Put], work: Awaitable[None]) -> None:
        try:
            await work
        except TupeloError as error:
            for put in puts:
                put.how = "killed" if self.life.leaving or is_in_doubt(error) else "failed"
            raise
        for put in puts:
            # A host that leaves may have said goodbye to the others before.
            put.how = "killed" if self.life.leaving else "done"
            put.ended = self.history.tick()
            self.history.note(f"{self.name}: put {put.number} in {put.heap}")

    @property
    def _is_full(self) -> bool:
        return len(self.history.puts) >= PUT_MAX

    async def put(self) -> None:
        if not self._is_full:
            heap = SIDE if self._rng.random() < 0.2 else BOARD
            ttl = self._rng.uniform(0.5, 4.0) if self._rng.random() < 0.15 else None
            put, event = self._event(heap, ttl is None)
            await self._put([put], self.member.heaps[heap].put(event, ttl=ttl))

    async def put_some(self) -> None:
        if not self._is_full:
            pairs = [self._event(BOARD) for _ in range(self._rng.randint(2, 4))]
            events = [event for _, event in pairs]
            await self._put([put for put, _ in pairs], self.board.put_all(events))

    async def put_through_view(self) -> None:
        if self.views and not self._is_full:
            _, view = self._rng.choice(self.views)
            put, event = self._event(BOARD)
            wait = self._rng.choice((0.0, 1.0, 6.0))
            await self._put([put], view.put(event, wait=wait))

    # Reading

    async def _read(self, reader: HeapReader, reading: Session, how: str) -> None:
        asked = reader.wants or self._rng.choice(("", "", "a"))
        template: object = Event(asked) if asked else ANY
        if how == "all":
            await self._read_and_note(reader, reading, reading.get_all(template), asked)
        else:
            wait = 0.0 if how == "get" else self._rng.uniform(0.1, 2.0)
            await self._read_and_note(
                reader, reading, _listed(reading.wait(template, wait=wait)), asked
            )

    async def _read_and_note(
        self, reader: HeapReader, reading: Session, work: Awaitable[list[Any]], asked: str
    ) -> None:
        """Read and record the events. A reader of a shared session must not get an event that was
        read at a host within its reach."""
        before, within = len(reader.reads), self.member.within_reach
        reader.pending += reading.id in self.history.shared
        try:
            found = await work
        except TupeloError as error:
            if isinstance(error, TokenAway) and reading.id in self.history.shared:
                await self._resume(reader, reading)
            if not self.life.leaving:
                reader.pending -= reading.id in self.history.shared
            raise
        reader.pending -= reading.id in self.history.shared
        if within == self.member.within_reach:
            seen = {read.number for read in reader.reads[:before] if read.at in within}
            for number in [event["i"] for event in found if event["i"] in seen]:
                self.history.fault("read again", f"{number} by {reader.name} at {self.name}")
        self.note_read(reader, reading, found, asked)

    async def _resume(self, reader: HeapReader, session: Session) -> None:
        """Go on with a shared session whose owner may be gone for good, or out of reach."""
        reader.resumed = True
        self.history.note(f"{self.name} resumes {reader.name}")
        await session.resume()

    def note_read(self, reader: HeapReader, reading: Session, found: list[Any], asked: str) -> None:
        view = ""
        if isinstance(reading, View) and reading.order == "total":
            view = reading.id
            reader.announced.update((one.old, one.new) for one in reading.cloned)
        numbers = [event["i"] for event in found]
        reader.reads += [
            ReadEvent(number, asked, view, self.member.life_name) for number in numbers
        ]
        if numbers:
            self.history.note(f"{reader.name} at {self.name} got {numbers} {view}")

    async def read_session(self) -> None:
        if self.sessions:
            reader, session = self._rng.choice(self.sessions)
            await self._read(reader, session, self._rng.choice(("get", "wait", "all")))

    async def read_shared(self) -> None:
        shared = [pair for pair in self.sessions if pair[1].id in self.history.shared]
        if shared:
            await self._read(*self._rng.choice(shared), "wait")

    async def read_view(self) -> None:
        if self.views:
            reader, view = self._rng.choice(self.views)
            await self._read(reader, view, self._rng.choice(("get", "wait", "all")))

    async def listen(self) -> None:
        """Begin two queries, which get the present and all later events, and a registration, which
        gets later events only."""
        for name, heap in ((BOARD, self.board), (SIDE, self.member.heaps[SIDE])):
            reader = self.history.reader(f"query of {name} by {self.name}", name)
            reader.wants = self._rng.choice(("", "a"))
            template: object = Event(reader.wants) if reader.wants else Event
            await heap.query(template, self._recording(reader))
        registered = self.history.reader(f"registration by {self.name}", BOARD)
        before = set(self.member.held(BOARD))
        await self.board.register(ANY, self._recording(registered))
        registered.inherited = frozenset(before)

    def _recording(self, reader: HeapReader) -> Callable[[Any], None]:
        def record(event: Any) -> None:
            reader.reads.append(ReadEvent(event["i"], reader.wants))

        return record

    # Sessions and views

    def _reader(self, what: str, inherited: frozenset[int] = frozenset()) -> HeapReader:
        number = self.world.loop.number("reader")
        return self.history.reader(f"{what} {number} of {self.name}", BOARD, inherited)

    async def begin_session(self) -> None:
        if len(self.sessions) < READERS_MAX:
            self.sessions.append((self._reader("session"), await self.board.session()))

    async def clone_session(self) -> None:
        readers = [*self.sessions, *self.views]
        if readers and len(self.sessions) + len(self.views) < 2 * READERS_MAX:
            reader, session = self._rng.choice(readers)
            if session.id in self.history.shared:
                return  # Other hosts may have seen events that are not known here.
            twin = await session.clone()
            heir = self._reader("clone", frozenset(reader.seen))
            heir.stands = reader.stands
            if isinstance(twin, View):
                heir.announced = set(reader.announced)
                self.views.append((heir, twin))
            else:
                self.sessions.append((heir, twin))

    async def share(self) -> None:
        if self.sessions and len(self.history.shared) < VIEWS_MAX:
            reader, session = self._rng.choice(self.sessions)
            if session.id is None:
                seen = frozenset(reader.seen)
                shared = await session.share()
                heir = self.history.shared[shared] = self._reader("shared session", seen)
                heir.fifo = False

    async def open_shared(self) -> None:
        mine = {session.id for _, session in self.sessions}
        others = [shared for shared in self.history.shared if shared not in mine]
        if others and len(self.sessions) < READERS_MAX:
            shared = self._rng.choice(others)
            session = await self.board.session(shared, wait=1.0)
            self.sessions.append((self.history.shared[shared], session))

    async def begin_view(self) -> None:
        if len(self.views) >= READERS_MAX:
            return
        reader = self._reader("view")

        def cloned(clone: ViewCloned) -> None:
            self.world.views.append(clone.new)
            if clone.old in self.world.short:
                self.world.short.add(clone.new)

        reader.stands = False  # until it is open
        if self.world.views and (self._rng.random() < 0.8 or len(self.world.views) >= VIEWS_MAX):
            known = self._rng.choice(self.world.views)
            view = await self.board.view(known, wait=1.0, on_clone=cloned)
        else:
            order = self._rng.choice(("total", "total", "total", "source", "none"))
            horizon = self._rng.choice((None, None, 3)) if order == "total" else None
            view = await self.board.view(order=order, horizon=horizon, on_clone=cloned)
            self.world.views.append(view.id)
            if horizon is not None:
                self.world.short.add(view.id)
        reader.stands = view.id not in self.world.short
        self.views.append((reader, view))

    async def end_one(self) -> None:
        for readers in (self.sessions, self.views):
            if len(readers) > 1 and self._rng.random() < 0.5:
                reader, session = readers.pop(self._rng.randrange(len(readers)))
                if session.id not in self.history.shared:
                    reader.stands = False
                await session.close()

    async def destroy_one(self) -> None:
        """Destroy a view or a shared session, at all hosts."""
        shared = [pair for pair in self.sessions if pair[1].id in self.history.shared]
        if self.views and self._rng.random() < 0.3:
            _, one = self._rng.choice([*shared, *self.views])
            ended = one.id or ""
            self.history.destroying.add(ended)
            self.history.note(f"{self.name} has destroyed the view or session {ended}")
            await one.destroy()
            # A host in memory that is leaving may have said goodbye to the others before.
            if self.member.durable or not self.life.leaving:
                self.history.destroyed.add(ended)

    async def adopt(self) -> None:
        """Adopt the events of a host that is down. Each host is adopted at most once."""
        down = [one for one in self.world.members if not one.is_up]
        down = [one for one in down if one.name not in self.history.adoptions]
        if not down or self.life.leaving:
            return
        gone = self._rng.choice(down)
        sources = {gone.name, *[f"{gone.name}{life}" for life in range(1, gone.lives + 1)]}
        puts = [self.history.puts[number] for number in self.member.held(BOARD)]
        numbers = [put.number for put in puts if put.source in sources and put.heap == BOARD]
        self.history.adoptions.add(gone.name)
        self.history.adopted.update(dict.fromkeys(numbers, self.member.life_name))
        self.history.note(f"{self.name} adopts {numbers} of {gone.name}")
        before = self.history.loose
        self.history.loose = before | set(numbers)
        await self.board.adopt(gone.id)
        if not gone.durable:
            self.history.loose = before

    async def replay(self) -> None:
        if self.views:
            _, view = self._rng.choice(self.views)
            replayed = await self.replayed(view)
            if len(set(replayed)) < len(replayed):
                self.history.fault("replay", f"{view.id} at {self.name}: {replayed}")

    async def replayed(self, view: View) -> list[int]:
        return [event["i"] for event in await view.replay()]

    @property
    def total_views(self) -> list[View]:
        views = [view for _, view in self.views if view.order == "total"]
        return [view for view in views if view.id not in self.history.destroying]

    # The heap BRIEF

    async def make_or_destroy(self) -> None:
        heap = await EventHeap.create(self.member.api, BRIEF, patience=PATIENCE_SECONDS)
        number = self.world.loop.number("brief")
        self.history.brief[number] = self.member.replicas[BRIEF].generation, self.member.source
        await heap.put(Event("brief", i=number))
        if self._rng.random() < 0.3:
            await heap.destroy()
            self.history.note(f"{self.name} has destroyed {BRIEF}")
        await heap.close()

    # Removing

    async def remove(self) -> None:
        removal = Removal(BOARD)
        self.history.removals.append(removal)
        kind = self._rng.choice(KINDS)
        try:
            if self._rng.random() < 0.5:
                found = await self.board.remove(Event(kind))
            else:
                found = await self.board.wait_to_remove(Event(kind), wait=1.0)
        except TupeloError as error:
            removal.how = "killed" if is_in_doubt(error) or self.life.leaving else "failed"
            raise
        removal.how = "done"
        if found is not None:
            removal.number = found["i"]
            put = self.history.puts.get(removal.number)
            has_ended = put is not None and put.source in self.history.ended
            # This host, or the source, may have said goodbye to the others before.
            if self.life.leaving or has_ended:
                self.history.untold.add(removal.number)
            self.history.note(f"{self.name} removed {removal.number}")

    # The end

    async def read_rest(self) -> None:
        """Let all readers get the events that they have not got yet."""
        for reader, session in [*self.sessions, *self.views]:
            asked = reader.wants
            if session.id in self.history.destroying:
                reader.stands = False
                continue
            for _ in range(TRIES):
                work = session.get_all(Event(asked) if asked else ANY)
                try:
                    await self._read_and_note(reader, session, work, asked)
                    reader.hosts.add(self.member.name)
                    break
                except TokenAway as lost:
                    self.history.note(f"{reader.name}: {lost!r}")


async def _listed(work: Awaitable[Any]) -> list[Any]:
    found = await work
    return [] if found is None else [found]


# Hosts


class HeapHost(SimulatedHost):
    """A host with event heaps."""

    world: HeapSimulation

    def __init__(self, world: HeapSimulation, number: int) -> None:
        super().__init__(world, number, identity=world.new_identity(NAMES[number]))
        self.heaps: dict[str, EventHeap] = {}

    @property
    def source(self) -> str:
        return self.name if self.durable else f"{self.name}{self.lives}"

    @property
    def life_name(self) -> str:
        return f"{self.name}{self.lives}"

    @property
    def within_reach(self) -> frozenset[str]:
        """The lives of the hosts in the membership of this host; none if it is about to end."""
        if BOARD not in self.replicas:
            return frozenset()
        membership = self.replicas[BOARD].membership.id
        return frozenset(
            one.life_name
            for one in self.world.members
            if one.is_up
            and BOARD in one.replicas
            and one.replicas[BOARD].membership.id == membership
        )

    @property
    def replicas(self) -> dict[str, Replica]:
        return heaps_of(self.core).replicas

    def prepare(self) -> None:
        plan = self.world.plan
        for name in HEAPS:
            self.heaps[name] = EventHeap(self.api, name, patience=PATIENCE_SECONDS)
            self.replicas[name].folded_after = plan.folded_after
            self._watch(name, self.replicas[name].feed)
        self._watch_orders(self.replicas[BOARD].system)
        carries = plan.bridges.get(self.number)
        if carries is not None:
            template = Event(carries or None)
            Bridge(self.heaps[BOARD], self.heaps[SIDE], template, both=plan.both_ways)

    def _watch(self, heap: str, feed: Feed) -> None:
        """Record which event is at which place of its source."""
        following = FeedCursor(feed)

        def look() -> None:
            for source, number, entry in following.news():
                event = thaw(entry.shape, entry.fields)
                if isinstance(event, Event):
                    self.world.places[heap, source, number] = event["i"]

        feed.watchers.append(look)
        look()

    def _watch_orders(self, system: Feed) -> None:
        """Record which place is at which position of a view: an order may be folded later."""
        following = FeedCursor(system)

        def look() -> None:
            for _, _, entry in following.news():
                record = thaw(entry.shape, entry.fields)
                if isinstance(record, Placed):
                    positions = self.world.positions.setdefault(record.view or "", {})
                    for position, place in enumerate(read_places(record), record.start or 0):
                        if positions.setdefault(position, place) != place:
                            text = f"two events have the position {position} of {record.view}"
                            self.world.history.fault("two orders", text)

        system.watchers.append(look)
        look()

    def held(self, heap: str) -> list[int]:
        """The numbers of the events at this host."""
        replica = self.replicas.get(heap)
        if replica is None:
            return []
        return [
            thaw(entry.shape, entry.fields)["i"]
            for stream in replica.feed.exchange.streams.values()
            for entry in stream.items.values()
            if not entry.gone
        ]

    @property
    def hidden(self) -> set[int]:
        """The events that were removed here, and whose source has lost its memory."""
        reserved = self.replicas[BOARD].removing.reserved
        numbers = {thaw(one.shape, one.fields)["i"] for one in reserved if not one.gone}
        history = self.world.history
        return {number for number in numbers if history.puts[number].source in history.ended}

    @property
    def destroyed(self) -> int:
        """The last generation of the heap BRIEF that is known to be destroyed here."""
        feed = replication_of(self.core).feeds.get(companion_name("system", BRIEF))
        streams = [] if feed is None else feed.exchange.streams.values()
        entries = [entry for stream in streams for entry in stream.items.values()]
        records = [thaw(entry.shape, entry.fields) for entry in entries]
        return max([one.generation or 0 for one in records if isinstance(one, Destroyed)] or [0])

    def ending(self, crashes: bool) -> None:
        """Excuse the loss of events that only this host has, unless they are its own and on its
        disk; and the return of events that it has removed, if it has told no other host, or has not
        confirmed them to their source."""
        history = self.world.history
        if crashes and self.core.federation.all_unsettled() and BOARD in self.replicas:
            reserved = self.replicas[BOARD].removing.reserved
            history.loose.update(thaw(one.shape, one.fields)["i"] for one in reserved)
        if not self.durable:
            history.ended.add(self.source)
        for removal in history.removals:
            put = history.puts.get(-1 if removal.number is None else removal.number)
            if put is not None and not self.durable:
                adopter = history.adopted.get(put.number)
                if self.source in (put.source, adopter):
                    history.untold.add(put.number)
        others = [one for one in self.world.members if one.is_up and one is not self]
        if not self.durable:
            history.unordered.update(self._unordered(others))
            history.destroyed &= {
                one for other in others for one in other.replicas[BOARD].uses.ended
            }
        for heap in HEAPS:
            elsewhere = {number for other in others for number in other.held(heap)}
            for number in self.held(heap):
                own_disk = history.puts[number].source in self.world.durable
                own_disk = own_disk and number not in history.adopted
                if number not in elsewhere and not own_disk:
                    history.excused.add(number)

    def _unordered(self, others: list[HeapHost]) -> Iterator[tuple[str, int]]:
        """Events whose place in a view is known to no other host."""
        known = [other.replicas[BOARD].orders.orders for other in others]
        for view, order in self.replicas[BOARD].orders.orders.items():
            lengths = [len(orders[view].ordering) for orders in known if view in orders]
            length = max(lengths, default=0)
            for position, place in self.world.complete(view, order.ordering).items():
                if position >= length:
                    yield view, self.world.places.get((BOARD, *place), -1)


# The simulation


@dataclass(frozen=True, kw_only=True)
class HeapPlan(SimulationPlan):
    agents: int
    """How many artists work at each host."""
    bridges: dict[int, str]
    """The hosts with a bridge, and the kind of events that it copies: "" is all."""
    both_ways: bool
    folded_after: int
    """An order is folded after so many places."""


def draw_plan(rng: Random) -> HeapPlan:
    hosts = rng.choice((2, 3, 3, 4))
    return HeapPlan(
        hosts=hosts,
        durable=frozenset(number for number in range(hosts) if rng.random() < 0.5),
        agents=rng.choice((1, 2)),
        bridges={n: rng.choice(("", "a")) for n in range(hosts) if rng.random() < 0.25},
        both_ways=rng.random() < 0.5,
        load_seconds=rng.uniform(4.0, 12.0),
        folded_after=rng.choice((3, 10, 1_000)),
        delay=rng.choice(DELAYS),
    )


class HeapSimulation(Simulation[HeapHost]):
    """Event heaps, copied to every host."""

    plan: HeapPlan
    history: HeapHistory
    nemesis = Nemesis(
        ("partition", "partition", "heal", "heal", "cut", "crash", "return", "return", "slow"),
        slower=(1, 10, 30),
        rate=0.8,
    )

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, draw_plan(Random(f"{loop.seed} plan")))
        self.history = HeapHistory(self.note)
        self.members = [HeapHost(self, number) for number in range(self.plan.hosts)]
        self.durable = {member.name for member in self.members if member.durable}
        self.places: dict[tuple[str, str, int], int] = {}
        """The event at each place: by heap, source and number."""
        self.views: list[str] = []
        """The views that were made on the board."""
        self.short: set[str] = set()
        """The views with a horizon."""
        self.positions: dict[str, dict[int, Place]] = {}
        """The place at each position of a view."""
        self.is_calm = False
        """The load is over."""
        self.remains = Remains(BOARD)
        self._artists: dict[Artist, asyncio.Task[None]] = {}

    @property
    def acts(self) -> int:
        return self.history.called

    def is_settled(self) -> bool:
        """Whether all hosts have the same events, and the owners of all used views have placed
        them."""
        if not self.is_connected():
            return False
        for name in HEAPS:
            replicas = [member.replicas[name] for member in self.members]
            for feeds in ([one.feed for one in replicas], [one.system for one in replicas]):
                if not all(feed.is_drawn for feed in feeds):
                    return False
                marks = [{s: m for s, m in feed.marks.items() if m.upto} for feed in feeds]
                if any(mark != marks[0] for mark in marks):
                    return False
            for replica in replicas:
                for order in replica.orders.orders.values():
                    is_due = order.token.here and replica.uses.is_used(order.id)
                    if is_due and order.unplaced:
                        return False
        return True

    def check_owners(self) -> None:
        """Check that no token is at two hosts. A token that was replaced may still be at a host out
        of reach."""
        for heap in HEAPS:
            at: dict[object, str] = {}
            for member in self.members:
                replica = member.replicas.get(heap) if member.is_up else None
                for name, token in (replica.tokens.tokens if replica else {}).items():
                    if token.here and not token.is_contested:
                        is_replaced = token.payload is not None and token.payload.lost
                        where = replica.membership.id if replica and is_replaced else None
                        other = at.setdefault((name, where), member.name)
                        if other != member.name:
                            text = f"{name} is at {other} and at {member.name}"
                            self.history.fault("two owners", text)

    # A run

    async def populate(self, host: HeapHost) -> None:
        assert host.life is not None
        for number in range(1, self.plan.agents + 1):
            artist = Artist(self, host, f"{host.name}{number}.{host.lives}")
            self._artists[artist] = host.life.start(artist.run(), artist.name)

    def _alive(self) -> list[Artist]:
        return [artist for artist in self._artists if not artist.life.over]

    async def end_load(self) -> None:
        self.is_calm = True

    async def settle(self) -> None:
        await self._end_artists()
        if not await self.wait_for(self.is_settled):
            self.faults.append(Fault("apart", "not all hosts have the same events"))
        await asyncio.sleep(SETTLE_SECONDS)
        await self.wait_for(self.is_settled)
        self.check_owners()
        for artist in self._alive():
            await artist.life.start(artist.read_rest(), f"{artist.name} reads the rest")
        self._collect_remains()
        for artist in self._alive():
            replays = self.remains.replays.setdefault(artist.member.name, {})
            for view in artist.total_views:
                work = artist.replayed(view)
                replays[view.id] = await artist.life.start(work, f"{artist.name} replays")

    async def _end_artists(self) -> None:
        """Wait until the artists have ended. Readers of artists that were killed read no more."""
        raise_failures(await asyncio.gather(*self._artists.values(), return_exceptions=True))
        names = {artist.name for artist in self._alive()}
        at_work = {id(reader) for one in self._alive() for reader, _ in one.sessions + one.views}
        for reader in self.history.readers:
            listens = reader.name.rpartition(" by ")[2] in names
            if id(reader) not in at_work and not listens:
                reader.stands = False

    def _collect_remains(self) -> None:
        remains = self.remains
        for host in self.members:
            remains.held[host.name] = {heap: host.held(heap) for heap in HEAPS}
            remains.hidden[host.name] = host.hidden
            replica = host.replicas[BOARD]
            remains.orders[host.name] = {
                view: [
                    self.places.get((BOARD, *place), -1 - position)
                    for position, place in sorted(self.complete(view, order.ordering).items())
                ]
                for view, order in replica.orders.orders.items()
            }
            remains.horizons.update(
                (view, order.horizon)
                for view, order in replica.orders.orders.items()
                if order.horizon is not None
            )
            remains.known[host.name] = {*replica.orders.made, *replica.sessions}
        remains.destroyed = max(host.destroyed for host in self.members)
        for host in self.members:
            if BRIEF not in replication_of(host.core).feeds:
                self.history.ended.add(host.source)
            if BRIEF in host.replicas:
                remains.open[host.name] = host.replicas[BRIEF].generation
                remains.left[host.name] = host.held(BRIEF)

    def complete(self, view: str, ordering: Ordering) -> dict[int, Place]:
        """An order, with the places that it had before it was folded."""
        before = self.positions.get(view, {})
        folded = {at: place for at, place in before.items() if at < ordering.base}
        return {**folded, **dict(ordering.listed())}
