"""The workload of MELON: processes that use all of it at random, then read and take all that is
left.

The history is plain data, so that the checker can be tested without hosts. What lies at the hosts,
in memory and on disk, is inspected during the run: text of directed messages must be nowhere."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from tupelo.errors import TupeloError
from tupelo.federation.identity.sealing import unseal
from tupelo.federation.names import companion_name
from tupelo.federation.replication.copies import PREFIX
from tupelo.federation.replication.streams import host_of
from tupelo.federation.spaces.hosted import Doubt
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.simulation import (
    DELAYS,
    DOUBT_SECONDS,
    NAMES,
    SERVED_SECONDS,
    History,
    Nemesis,
    Operation,
    OperationOutcome,
    SimulatedHost,
    Simulation,
    SimulationPlan,
    cancel_all,
    name_of,
    space_remains,
)
from tupelo.lab.virtual_world import ProgramLife, SeededIdentity
from tupelo.models.melon import Bound, Copies, Melon
from tupelo.models.melon.message_store import MessageStore
from tupelo.models.melon.sealed import Sealed, read_item
from tupelo.values.codec import decode_entry
from tupelo.values.entry import Entry

NAME = "melon"
WHERE = {
    NAME: "stored",
    companion_name("written", NAME): "written",
    PREFIX + companion_name("written", NAME): "copies",
    PREFIX + companion_name("sealed", NAME): "copies",
}
"""The kinds of messages in the spaces of a host."""
SECRET = "hush! "
"""The text of every directed message: this, and its number."""
_SECRET = re.compile(SECRET.encode() + rb"(\d+)")

JOBS = ("job", "task")
"""Kinds of messages that are stored;"""
NEWS = ("news", "gossip")
"""that are written;"""
MAIL = ("mail", "letter")
"""that are directed to one host."""
LATE = {
    "late job": ("take", "store"),
    "late news": ("read", "write"),
    "late mail": ("take", "send"),
}
"""Kinds that a request waits for before their writer can be reached: how it waits, and how they are
added."""
ADDS = ("store", "send", "write")
TAKES = ("take", "take_all")
READS = ("read", "read_all")

VERBS = {
    "store": 8,
    "send": 6,
    "write": 8,
    "take": 6,
    "take_all": 2,
    "read": 8,
    "read_all": 3,
    "renew": 1,
}
DRAINED_MAX = 300
"""There are never so many messages of a kind."""
CANCELLED = 0.15
"""The share of operations that are cancelled."""
SETTLE_SECONDS = DOUBT_SECONDS + 15.0

Message = tuple[str, str, int, str]
"""The kind of the message, its host, a unique number, and a text."""


def message_name(message: Message) -> str:
    return name_of(message[:3])


# The history


@dataclass(frozen=True)
class MelonQuery:
    """A template: messages of this kind, and of this host; None for any."""

    kind: str | None = None
    source: str | None = None

    def matches(self, message: Message) -> bool:
        return self.kind in (None, message[0]) and self.source in (None, message[1])

    def __str__(self) -> str:
        return f"({self.kind or '*'}, {self.source or '*'})"


@dataclass
class MelonAct(Operation):
    """One operation of one process. `begin` and `end` are ticks."""

    verb: str
    melon: str
    host: str
    life: int
    """The number of the life of the host, from 1."""
    begin: int
    asked: MelonQuery | None = None
    messages: list[Message] = field(default_factory=list)
    to: str | None = None
    """The host to which a message is directed."""
    sender: str | None = None
    """Only messages of this host were wanted."""
    pin: bool = False
    how: OperationOutcome = "killed"
    end: int | None = None
    error: str = ""
    is_late: bool = False
    """It began to wait when its host was isolated; the message was added after all had met."""
    is_probe: bool = False
    """It looks for messages that are left, after other operations have waited for them."""

    @property
    def is_done(self) -> bool:
        return self.how == "done"

    def answered(self, answer: Any) -> None:
        if self.verb not in ADDS:
            self.messages = answer if isinstance(answer, list) else [answer] * (answer is not None)

    def ended(self, tick: int) -> None:
        self.end = tick

    def overlaps(self, begin: int, end: int | None) -> bool:
        after = end is not None and self.begin > end
        return not after and (self.end is None or self.end > begin)

    def __str__(self) -> str:
        result = self.error or " ".join(map(message_name, self.messages)) or "-"
        to = f" to {self.to}" if self.to else ""
        sender = f" of {self.sender}" if self.sender else ""
        return f"{self.melon}: {self.verb} {self.asked or ''}{to}{sender} {self.how}: {result}"


@dataclass(frozen=True)
class MelonResult:
    """A host has reported that it collected a message; of a directed one, only its addressee."""

    host: str
    kind: Literal["stored", "written", "directed"]
    message: Message | str
    tick: int = 0


@dataclass(frozen=True)
class FoundMessage:
    """A message in a space of a host. `where` is "stored", "written", "copies" or "sealed"; sealed
    messages were opened with the key of the addressee."""

    host: str
    where: str
    message: Message


@dataclass(frozen=True)
class Plain:
    """The text of a directed message that is readable at a host, in memory or on disk."""

    host: str
    number: int
    where: str


@dataclass
class Ending:
    """The state at the end: all hosts are back, and everything was taken and read."""

    near: dict[str, set[str]] = field(default_factory=dict)
    """The hosts with which each host is engaged."""
    melons: dict[str, str] = field(default_factory=dict)
    """The processes, and their hosts."""
    found: list[FoundMessage] = field(default_factory=list)
    remains: dict[str, str] = field(default_factory=dict)
    """Operations that are pending, and should be over."""


class MelonHistory(History[MelonAct]):
    """What processes have called, and what was found at the hosts."""

    def __init__(self, note: Callable[[str], None], durable: set[str]) -> None:
        super().__init__(note)
        self.durable = durable
        """The hosts with a folder."""
        self.bounded: set[str] = set()
        """The hosts with a bound."""
        self.copying: set[str] = set()
        """The hosts that copy messages of other hosts."""
        self.tight: set[str] = set()
        """The hosts with little room for copies."""
        self.told: list[MelonResult] = []
        """The reports of collected messages."""
        self.given_way: dict[Message, set[str]] = {}
        """Messages whose copies were deleted for lack of room, with the hosts that did."""
        self.evicted: set[Message] = set()
        """Collected messages, as the logs on disk list them."""
        self.strays: set[FoundMessage] = set()
        """Messages that were seen in copies, at any time."""
        self.plain: set[Plain] = set()
        self.overheard: set[int] = set()
        """The numbers of directed messages whose text went over a link."""
        self.ends: dict[str, list[int]] = {}
        """When each host crashed, or left."""
        self.owed: dict[tuple[str, int], frozenset[str]] = {}
        """For each end of a host: the hosts whose deliveries it had not confirmed."""
        self.unrecorded: dict[tuple[str, int], frozenset[Message]] = {}
        """For each life of a host that has ended: the directed messages that its processes had got,
        and whose takes were not on disk."""
        self.fault_ticks: list[int] = []
        """When faults of the network began."""
        self.ending = Ending()

    def ended(self, host: str, owed: Iterable[str] = ()) -> None:
        """A host ends. `owed` are the hosts whose deliveries it has not confirmed."""
        tick = self.tick()
        self.ends.setdefault(host, []).append(tick)
        self.owed[host, tick] = frozenset(owed)


# Processes


class MelonProcess:
    """One process: a Melon, and its operations."""

    def __init__(self, member: MelonHost, name: str) -> None:
        assert member.life is not None
        self.member = member
        self.name = name
        self.life: ProgramLife = member.life
        self._world = member.world
        self._history = member.world.history
        self._rng = Random(f"{member.world.seed} {name}")

    @property
    def melon(self) -> Melon:
        return self.member.melons[self.name]

    def _act(self, verb: str, **more: Any) -> MelonAct:
        history, member = self._history, self.member
        return MelonAct(verb, self.name, member.name, member.lives, history.tick(), **more)

    async def add(
        self, verb: str, kind: str, to: MelonHost | None = None, pin: bool = False
    ) -> None:
        """Store a message, direct it to a host, or write it."""
        number = self._world.loop.number("message")
        text = f"{SECRET}{number}" if to is not None else ""
        message: Message = (kind, self.member.name, number, text)
        addressee = None if to is None else to.name
        act = self._act(verb, messages=[message], to=addressee, pin=pin)
        if verb == "write":
            work = self.melon.write(message, pin=pin)
        else:
            work = self.melon.store(message, None if to is None else to.identity.key, pin=pin)
        await self._history.act(act, self.life, work)

    async def get(
        self,
        verb: str,
        query: MelonQuery,
        wait: float | None,
        sender: MelonHost | None = None,
        **more: Any,
    ) -> None:
        """Take or read, one message or all."""
        act = self._act(verb, asked=query, sender=None if sender is None else sender.name, **more)
        template = (query.kind or str, query.source or str, int, str)
        options: dict[str, Any] = {} if sender is None else {"sender": sender.identity.key}
        work = getattr(self.melon, verb)(template, wait, **options)
        await self._history.act(act, self.life, work)

    async def run(self) -> None:
        """Call one random operation after the other."""
        rng = self._rng
        while True:
            await asyncio.sleep(rng.choice((0.0, rng.expovariate(6.0))))
            doing = asyncio.ensure_future(self._do_something())
            try:
                if rng.random() < CANCELLED:
                    await asyncio.wait([doing], timeout=rng.choice((0.0, rng.expovariate(3.0))))
                    doing.cancel()
                    if rng.random() < 0.5:  # The next operation may begin before this one is over.
                        await asyncio.sleep(0)
                        continue
                await asyncio.wait([doing])
            finally:
                doing.cancel()
            if not doing.cancelled():
                doing.result()

    async def _do_something(self) -> None:
        rng = self._rng
        (verb,) = rng.choices(list(VERBS), weights=list(VERBS.values()))
        wait = rng.choice((0, 0, 0.05, 0.5, 3.0))
        pin = rng.random() < 0.05
        match verb:
            case "store":
                await self.add(verb, rng.choice(JOBS), pin=pin)
            case "write":
                await self.add(verb, rng.choice(NEWS), pin=pin)
            case "send":
                await self.add(verb, rng.choice(MAIL), rng.choice(self._world.members), pin)
            case "take" | "take_all":
                kind = rng.choice((*JOBS, *MAIL, None))
                sender = rng.choice(self._world.members) if rng.random() < 0.1 else None
                await self.get(verb, MelonQuery(kind, self._some_host()), wait, sender)
            case "read" | "read_all":
                await self.get(verb, MelonQuery(rng.choice((*NEWS, None)), self._some_host()), wait)
            case "renew":
                await self._renew()

    def _some_host(self) -> str | None:
        return self._rng.choice((None, None, None, self._rng.choice(self._world.members).name))

    async def _renew(self) -> None:
        """Replace this process by a new one, unless it is the first of its host."""
        if self.name != next(iter(self.member.melons)) and not self.life.leaving:
            before, self.name = self.name, self.member.open_melon()
            await self.member.close_melon(before)

    async def drain(self, verbs: tuple[str, str], kind: str) -> None:
        """Get all messages of a kind, also those that come later."""
        for _ in range(DRAINED_MAX):  # A bound, in case that one comes again and again.
            await self.get(self._rng.choice(verbs), MelonQuery(kind), None)


# Hosts


class MelonHost(SimulatedHost):
    """A host with MELON."""

    world: MelonSimulation
    identity: SeededIdentity

    def __init__(self, world: MelonSimulation, number: int) -> None:
        identity = world.new_identity(NAMES[number])
        super().__init__(world, number, identity=identity, doubt=Doubt(seconds=DOUBT_SECONDS))
        self.bound = world.plan.bounds[number]
        self.copies = world.plan.copies[number]
        self.melons: dict[str, Melon] = {}
        """The processes at this host, by name."""
        self._opened = 0

    async def open(self) -> None:
        self.melons = {}
        for _ in range(self.world.plan.melons):
            self._open_melon()
        for hosted in self.core.spaces.values():
            self.slow_down(hosted, self.world.plan.disk_seconds)

    def open_melon(self) -> str:
        """Open one more process. Returns its name."""
        return self.call(self._open_melon)

    def _open_melon(self) -> str:
        self._opened += 1
        name = f"{self.name}{self._opened}"
        melon = self.melons[name] = Melon(self.api, bound=self.bound, copies=self.copies)
        if len(self.melons) == 1:
            self.do(self._hear_collected(melon))
        return name

    async def close_melon(self, name: str) -> None:
        """Close a process, but not the first: that one hears which messages are collected."""
        await self.melons.pop(name).close()

    async def _hear_collected(self, melon: Melon) -> None:
        history = self.world.history
        async for one in melon.collected:
            message = one.message
            if one.kind == "copy":
                if not isinstance(message, str):
                    self.world.note(f"{self.name} has no room for a copy of {message}")
                    history.given_way.setdefault(message, set()).add(self.name)
                continue
            if one.kind == "directed":
                message = self.world.host_with(message).name
            self.world.note(f"{self.name} has collected {message}, {one.kind}")
            history.told.append(MelonResult(self.name, one.kind, message, history.tick()))

    def ending(self, crashes: bool) -> None:
        self.inspect()
        self.world.history.ended(self.name, self.owed if crashes else self.unreached)
        if crashes:
            self._note_unrecorded()

    def left(self) -> None:
        self.world.history.ended(self.name)  # What came meanwhile has ended too.
        self._note_unrecorded()

    def _note_unrecorded(self) -> None:
        letters = self.messages.directed.unrecorded
        found = frozenset(tuple(letter.fields) for letter in letters)
        self.world.history.unrecorded[self.name, self.lives] = found

    # What lies here

    @property
    def messages(self) -> MessageStore:
        store = self.core.extensions[f"melon {NAME}"]
        assert isinstance(store, MessageStore)
        return store

    def inspect(self) -> None:
        """Record the copies at this host, and the secrets that are readable here."""
        history = self.world.history
        found = (one for one in self.found() if one.where not in ("stored", "written"))
        history.strays.update(found)

        def note(numbers: set[int], where: str) -> None:
            history.plain.update(Plain(self.name, number, where) for number in numbers)

        for name, hosted in self.core.spaces.items():
            fields = [entry.fields for entry in hosted.port.entries()]
            note(secrets_in(repr(fields).encode()), f"the space {name}")
        for letter in self.messages.directed.letters:
            note(secrets_in(repr(letter.fields).encode()), "the opened messages")
        for path in sorted(self.path.rglob("*")) if self.path is not None else ():
            if path.is_file():
                note(secrets_in(path.read_bytes()), f"the file {path.name}")

    def found(self) -> Iterator[FoundMessage]:
        """The messages in the spaces of this host."""
        for name, hosted in self.core.spaces.items():
            for entry in hosted.port.entries_and_taken():
                if (message := _message_of(entry)) is not None:
                    yield FoundMessage(self.name, WHERE.get(name, name), message)

    def sealed(self) -> Iterator[FoundMessage]:
        """The directed messages that this host carries, opened with the keys of the addressees."""
        for source, stream in self.messages.directed.feed.exchange.streams.items():
            for entry in stream.items.values():
                sealed = read_item(entry)
                if isinstance(sealed, Sealed):
                    message = self.world.unsealed(host_of(source), sealed)
                    if message is not None:
                        yield FoundMessage(self.name, "sealed", message)

    def evicted(self) -> Iterator[Message]:
        """The collected messages, as the logs of this host list them."""
        for name in (NAME, companion_name("written", NAME), companion_name("sealed", NAME)):
            for change in self.core.spaces[name].space.changes():
                if change.kind == "evicted":
                    message = (
                        self.world.unsealed(self.core.id, change.entry)
                        if isinstance(change.entry, Sealed)
                        else change.entry
                    )
                    if isinstance(message, tuple):
                        yield message

    def remains(self) -> dict[str, Any]:
        """The operations that are still pending here."""
        waiting = {"waiting operations": list(self.messages.broadcast.waiting)}
        return {**self.core.under_way(), **waiting, **space_remains(self)}


def secrets_in(content: bytes) -> set[int]:
    """The numbers of the directed messages whose text is in this."""
    return {int(number) for number in _SECRET.findall(content)} if b"hush" in content else set()


def _message_of(entry: Entry) -> Message | None:
    types = tuple(map(type, entry.fields))
    return tuple(entry.fields) if types == (str, str, int, str) else None


# The simulation


@dataclass(frozen=True, kw_only=True)
class MelonPlan(SimulationPlan):
    melons: int
    """How many processes each host begins with."""
    bounds: tuple[Bound | None, ...]
    copies: tuple[Copies | None, ...]
    """The bound and the copies of each host."""
    is_quiet: bool
    """There are no faults."""


def draw_plan(rng: Random) -> MelonPlan:
    hosts = rng.choice((2, 3, 3, 4, 5))
    is_bounded, is_copied = rng.random() < 0.4, rng.random() < 0.7
    return MelonPlan(
        hosts=hosts,
        durable=frozenset(number for number in range(hosts) if rng.random() < 0.6),
        melons=rng.choice((1, 2, 2, 3)),
        shape=rng.choice(("mesh", "mesh", "row", "star")),
        bounds=tuple(_draw_bound(rng) if is_bounded else None for _ in range(hosts)),
        copies=tuple(_draw_copies(rng) if is_copied else None for _ in range(hosts)),
        is_quiet=rng.random() < 0.15,
        load_seconds=rng.uniform(3.0, 9.0),
        delay=rng.choice(DELAYS),
        disk_seconds=rng.choice((0.0, 0.01, 0.1)),
    )


def _draw_bound(rng: Random) -> Bound | None:
    count = rng.choice((3, 6, 15))
    orders: tuple[Literal["fifo", "lru"], ...] = ("fifo", "lru")
    order = rng.choice(orders)
    return rng.choice((None, Bound(count=count, order=order), Bound(bytes=60 * count, order=order)))


def _draw_copies(rng: Random) -> Copies | None:
    rooms: list[Bound | Literal[0] | None] = [None, None, None, 0, Bound(count=8)]
    room = rng.choice(rooms)
    return rng.choice((None, *(Copies(hosts, room) for hosts in (0, 1, 1, 2, 9))))


class TappedNetwork(VirtualNetwork):
    """A network whose frames are inspected."""

    inspect: Callable[[bytes], None]

    def note_frame(self, source: str, target: str, content: bytes) -> None:
        super().note_frame(source, target, content)
        self.inspect(content)


class MelonSimulation(Simulation[MelonHost]):
    """MELON: hosts with processes that exchange messages."""

    plan: MelonPlan
    history: MelonHistory
    network: TappedNetwork
    nemesis = Nemesis(
        ("groups", "groups", "heal", "cut", "cut", "crash", "return", "slow"), slower=(1, 10, 50)
    )

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, draw_plan(Random(f"{loop.seed} plan")), TappedNetwork)
        self.members = [MelonHost(self, number) for number in range(self.plan.hosts)]
        history = MelonHistory(self.note, {one.name for one in self.members if one.durable})
        self.history = history
        history.bounded = {one.name for one in self.members if one.bound}
        history.copying = {one.name for one in self.members if one.copies}
        history.tight = {
            one.name for one in self.members if one.copies and one.copies.room is not None
        }
        self.network.inspect = lambda frame: history.overheard.update(secrets_in(frame))
        self._running: list[asyncio.Task[None]] = []
        self._waiting: dict[MelonHost, list[asyncio.Task[None]]] = {}

    def host_with(self, key: str) -> MelonHost:
        """The host with this identity."""
        return next(host for host in self.members if host.identity.key == key)

    def unsealed(self, source: str, sealed: Sealed) -> Message | None:
        """A directed message, opened with the key of its addressee; None if that is impossible."""
        context = sealed.context(NAME, source)
        try:
            _, plain = unseal(self.host_with(sealed.to).identity, sealed.seal, context)
        except TupeloError:
            return None
        return tuple(decode_entry(plain)[1])

    # A run

    async def populate(self, host: MelonHost) -> None:
        for name in list(host.melons):
            self._start(process := MelonProcess(host, name), process.run())

    def _start(self, process: MelonProcess, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = process.life.start(work, process.name)
        self._running.append(task)
        return task

    async def _stop_processes(self) -> None:
        await cancel_all(self._running)
        self._running = []
        await asyncio.sleep(1.0)

    async def run_nemesis(self) -> None:
        end = self.loop.time() + self.plan.load_seconds
        await super().run_nemesis()
        if not self.plan.is_quiet:
            await asyncio.sleep(max(0.0, end - self.loop.time()))

    async def strike(self) -> None:
        if self.plan.is_quiet:
            return
        self.history.fault_ticks.append(self.history.tick())
        await super().strike()
        for host in self.members:
            if host.is_up:
                host.inspect()

    async def end_load(self) -> None:
        """Stop the processes. Then, while no host reaches another, let requests wait at each."""
        await self._stop_processes()
        self.history.fault_ticks.append(self.history.tick())
        for host in await self.isolate():
            process = MelonProcess(host, next(iter(host.melons)))
            self._waiting[host] = [
                self._start(
                    process,
                    process.get(verb, MelonQuery(f"{kind} {host.name}"), None, is_late=True),
                )
                for kind, (verb, _) in LATE.items()
            ]

    async def heal(self) -> None:
        self.history.fault_ticks.append(self.history.tick())
        await super().heal()

    async def settle(self) -> None:
        await self.settle_connected()
        await self._serve_late()
        await self._drain()
        await self._probe()
        await asyncio.sleep(SETTLE_SECONDS)
        self._inspect_all()

    async def _serve_late(self) -> None:
        """Add at a neighbour what the requests wait for: they must find it there."""
        for host, waiting in self._waiting.items():
            near = next(other for other in self.members if host.meets(other))
            process = MelonProcess(near, next(iter(near.melons)))
            for kind, (_, verb) in LATE.items():
                to = host if verb == "send" else None
                await self._start(process, process.add(verb, f"{kind} {host.name}", to))
            await asyncio.wait(waiting, timeout=SERVED_SECONDS)
        await self._stop_processes()

    async def _drain(self) -> None:
        """All processes read, and one at each host takes, until nothing more comes."""
        for host in self.members:
            for number, name in enumerate(host.melons):
                process = MelonProcess(host, name)
                for kind in NEWS:
                    self._start(process, process.drain(READS, kind))
                for kind in (*JOBS, *MAIL) if number == 0 else ():
                    self._start(process, process.drain(TAKES, kind))
        await asyncio.sleep(SETTLE_SECONDS)
        await self._stop_processes()

    async def _probe(self) -> None:
        """Look for messages that are left, although operations have waited for them."""
        for host in self.members:
            for number, name in enumerate(host.melons):
                process = MelonProcess(host, name)
                for kinds, verb in ((NEWS, "read_all"), ((*JOBS, *MAIL), "take_all")):
                    for kind in kinds if number == 0 or verb == "read_all" else ():
                        await self._start(
                            process, process.get(verb, MelonQuery(kind), 0, is_probe=True)
                        )
        await self._stop_processes()

    def _inspect_all(self) -> None:
        """Record the state at the end."""
        history, ending = self.history, self.history.ending
        for host in self.members:
            host.inspect()
            ending.near[host.name] = {peer.name for peer in host.core.peers.values()}
            ending.melons |= dict.fromkeys(host.melons, host.name)
            ending.found += [*host.found(), *host.sealed()]
            if host.durable:
                history.evicted.update(host.evicted())
            ending.remains |= {
                f"{what} at {host.name}": repr(things)
                for what, things in host.remains().items()
                if things
            }
