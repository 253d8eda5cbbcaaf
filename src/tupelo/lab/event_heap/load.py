"""The load of a world: artists at each host, who put events on the board, read them in many ways,
and remove some."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from tupelo.errors import PeerLost, TokenAway, TupeloError
from tupelo.lab.event_heap.history import HeapReader, Put, Read, Removal
from tupelo.lab.event_heap.world import (
    BOARD,
    BRIEF,
    KINDS,
    PATIENCE_SECONDS,
    SIDE,
    HeapWorld,
    SimulatedHeapHost,
)
from tupelo.lab.life import ProgramLife
from tupelo.models.event_heap import Event, EventHeap, Session, View, ViewCloned
from tupelo.values.parts import ANY

READERS_MAX = 4
"""So many of each kind an artist has."""
VIEWS_MAX = 3
TRIES = 100
"""So often a reader that is told that its session was lost, or was resumed, goes on."""
PUT_MAX = 80
"""So many events are put in a world."""


class Artist:
    """One who works at a host for as long as that lives, or there is trouble."""

    def __init__(self, world: HeapWorld, member: SimulatedHeapHost, name: str) -> None:
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
        while not self.world.calm:
            await asyncio.sleep(self._rng.expovariate(4.0))
            _, act = self._rng.choices(acts, weights)[0]
            self.history.acts += 1
            try:
                await act()
            except TupeloError as error:
                self.history.note(f"{self.name}: {act.__name__} failed: {error!r}")
            self.world.check_owners()

    # Putting

    def _event(self, heap: str, lasts: bool = True) -> tuple[Put, Event]:
        number = self.world.loop.number("event")
        kind = self._rng.choice(KINDS)
        begun = self.history.moment()
        put = Put(number, kind, heap, self.member.source, begun, lasts=lasts)
        self.history.puts[number] = put
        return put, Event(kind, i=number)

    async def _put(self, puts: list[Put], work: Awaitable[None]) -> None:
        try:
            await work
        except TupeloError:
            for put in puts:
                put.how = "killed" if self.life.leaving else "failed"
            raise
        for put in puts:
            put.how, put.ended = "done", self.history.moment()
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
            await self._noted(reader, reading, reading.get_all(template), asked)
        else:
            wait = 0.0 if how == "get" else self._rng.uniform(0.1, 2.0)
            await self._noted(reader, reading, _listed(reading.wait(template, wait=wait)), asked)

    async def _noted(
        self, reader: HeapReader, reading: Session, work: Awaitable[list[Any]], asked: str
    ) -> None:
        """Read, and note what was got. Of a shared session nobody gets what another has got that
        it reaches."""
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
        """The host that has it may be gone for good, or is out of reach."""
        reader.resumed = True
        self.history.note(f"{self.name} resumes {reader.name}")
        await session.resume()

    def note_read(self, reader: HeapReader, reading: Session, found: list[Any], asked: str) -> None:
        view = ""
        if isinstance(reading, View) and reading.order == "total":
            view = reading.id
            reader.announced.update((one.old, one.new) for one in reading.cloned)
        numbers = [event["i"] for event in found]
        reader.reads += [Read(number, asked, view, self.member.life_name) for number in numbers]
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
        """One is told of what there is and comes, the other of what comes."""
        for name, heap in ((BOARD, self.board), (SIDE, self.member.heaps[SIDE])):
            reader = self.history.reader(f"query of {name} by {self.name}", name)
            reader.wants = self._rng.choice(("", "a"))
            template: object = Event(reader.wants) if reader.wants else Event
            await heap.query(template, self._hearing(reader))
        told = self.history.reader(f"registration by {self.name}", BOARD)
        before = set(self.member.held(BOARD))
        await self.board.register(ANY, self._hearing(told))
        told.inherited = frozenset(before)

    def _hearing(self, reader: HeapReader) -> Callable[[Any], None]:
        def hear(event: Any) -> None:
            reader.reads.append(Read(event["i"], reader.wants))

        return hear

    # Readers come and go

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
                return  # Others may have seen more than is known here.
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
        others = [one for one in self.history.shared if one not in mine]
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
        """End a view or a shared session for everyone."""
        shared = [pair for pair in self.sessions if pair[1].id in self.history.shared]
        if self.views and self._rng.random() < 0.3:
            _, one = self._rng.choice([*shared, *self.views])
            ended = one.id or ""
            self.history.destroying.add(ended)
            self.history.note(f"{self.name} has destroyed the view or session {ended}")
            await one.destroy()
            self.history.destroyed.add(ended)

    async def adopt(self) -> None:
        """Let live here what a host has put that is down. Others are told once, by one."""
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
        await self.board.adopt(gone.host_id)
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

    # A heap comes and goes

    async def make_or_destroy(self) -> None:
        heap = await EventHeap.create(self.member.door, BRIEF, patience=PATIENCE_SECONDS)
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
            in_doubt = isinstance(error, PeerLost) and error.in_doubt
            removal.how = "killed" if in_doubt or self.life.leaving else "failed"
            raise
        removal.how = "done"
        if found is not None:
            removal.number = found["i"]
            if self.life.leaving:  # It may have taken leave of the others before.
                self.history.untold.add(removal.number)
            self.history.note(f"{self.name} removed {removal.number}")

    # The end

    async def read_rest(self) -> None:
        """All readers get what they have not got yet."""
        for reader, session in [*self.sessions, *self.views]:
            asked = reader.wants
            if session.id in self.history.destroying:
                reader.stands = False
                continue
            for _ in range(TRIES):
                work = session.get_all(Event(asked) if asked else ANY)
                try:
                    await self._noted(reader, session, work, asked)
                    break
                except TokenAway as lost:
                    self.history.note(f"{reader.name}: {lost!r}")


async def _listed(work: Awaitable[Any]) -> list[Any]:
    found = await work
    return [] if found is None else [found]
