"""The workload of the federation: agents at hosts, clients, and a program that commits at two
hosts.

Agents run in the process of a host; clients are programs of their own that reach a host over the
network. Both write, read and take entries of one space that spans all hosts, in the same ways.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Literal

from tupelo.errors import DiskFull, JournalFailed, TupeloError
from tupelo.federation.client.async_channel import AsyncChannel
from tupelo.federation.client.channel import ConnectionConfig
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.decisions import branch_id, spanning_id
from tupelo.federation.links import wire
from tupelo.federation.links.address import Address
from tupelo.federation.spaces.hosted import Doubt, HostedSpace
from tupelo.federation.spanning.space import AsyncFederatedSpaceLike
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.simulation import (
    DELAYS,
    DOUBT_SECONDS,
    SERVED_SECONDS,
    Fault,
    History,
    Nemesis,
    Operation,
    OperationOutcome,
    SimulatedHost,
    Simulation,
    SimulationPlan,
    cancel_all,
    name_of,
)
from tupelo.lab.virtual_world import PORT, ProgramLife
from tupelo.space.asynchronous import Subscription
from tupelo.space.dual_api import maybe_await
from tupelo.values.change import Notice
from tupelo.values.codec import entry_to_wire
from tupelo.values.entry import freeze
from tupelo.values.parts import ANY
from tupelo.values.scope import HERE, Coverage

SPACE = "s"
KEYS = ("red", "green")
NEWS = "news"
"""Entries of this class are only read, in sessions and by subscribers: nobody takes them."""
MAIL = "mail"
"""Entries of this class are addressed to an agent."""
TRADE = "trade"
"""Entries of this class are written in pairs, at two hosts in one transaction; nobody takes
them."""
LATE = "late"
"""Entries of this class are awaited before their writer can be reached."""

VERBS = {
    "write": 6,
    "take": 6,
    "read": 2,
    "take_all": 2,
    "read_all": 1,
    "count": 1,
    "news": 3,
    "session": 3,
    "mail": 1,
    "deal": 2,
}
SESSION_READS_MAX = 30
RECONNECT_SECONDS = 20.0
"""Longer than any host is down."""
SETTLE_SECONDS = DOUBT_SECONDS + 5.0

Kind = Literal["write", "read", "take", "count"]
Entry = tuple[Any, ...]
"""The class of the entry, its writer, and its number among the entries of this writer."""


# The history


@dataclass
class Act(Operation):
    """One operation of one agent."""

    kind: Kind
    agent: str
    member: SpacesHost
    """The host of the agent, or the one that the client uses."""
    life: ProgramLife
    """The program of the agent."""
    key: str
    """The class of the entries."""
    call: int
    many: bool = False
    session: str | None = None
    ret: float = inf
    how: OperationOutcome = "killed"
    entries: list[Entry] = field(default_factory=list)
    error: str = ""
    covered: frozenset[str] = frozenset()

    def answered(self, answer: Any) -> None:
        if self.kind in ("read", "take"):
            self.entries = list(answer) if self.many else [] if answer is None else [answer]

    def ended(self, tick: int) -> None:
        if self.how != "killed":
            self.ret = tick

    @property
    def is_client(self) -> bool:
        return self.life.name != self.member.name

    @property
    def host_ended(self) -> bool:
        """Whether the host has ended while the operation was pending."""
        return any(self.call < end < self.ret for end in self.member.ends)

    def __str__(self) -> str:
        result = self.error or ", ".join(map(name_of, self.entries)) or "-"
        many = "_all" if self.many else ""
        session = f" in session {self.session}" if self.session else ""
        return f"{self.agent}: {self.kind}{many} {self.key}{session} {self.how}: {result}"


@dataclass
class Deal:
    """A transaction, with the entries that it took and wrote."""

    agent: str
    member: SpacesHost
    call: int
    ret: float = inf
    taken: list[Entry] = field(default_factory=list)
    written: list[Entry] = field(default_factory=list)
    how: Literal["aborted", "committed", "unknown"] = "aborted"
    error: TupeloError | None = None

    def __str__(self) -> str:
        taken, written = (", ".join(map(name_of, some)) for some in (self.taken, self.written))
        error = f" {self.error!r}" if self.error else ""
        return f"{self.agent}: transaction {self.how}: took {taken}, wrote {written}{error}"


class SpacesHistory(History[Act]):
    """What agents and clients have called, and what subscribers were told."""

    def __init__(self, note: Any) -> None:
        super().__init__(note)
        self.deals: list[Deal] = []
        self.listeners: dict[tuple[str, int], list[Entry]] = {}
        """The notices of each subscriber, by its host and the life of the host."""
        self.subscribed: dict[tuple[str, int], int] = {}
        """Since when each subscriber hears of everything that is written."""
        self.left: dict[str, list[Entry]] = {}
        """The entries that are left at the end, by host."""
        self.unconfirmed: set[ProgramLife] = set()
        """The lives of hosts that ended while an owner that they could not reach did not know which
        of its entries they had taken."""

    def of(self, kind: Kind) -> list[Act]:
        return [act for act in self.acts if act.kind == kind]


# Agents


class RandomAgent:
    """An agent that calls one random operation after the other."""

    def __init__(
        self, world: SpacesSimulation, member: SpacesHost, life: ProgramLife, name: str
    ) -> None:
        self.name = name
        self.life = life
        self._history = world.history
        self._world = world
        self._member = member
        self._rng = Random(f"{world.seed} {name}")
        self._written = 0
        self._sessions = 0
        self._session: Any = None
        self._covers = True
        self._lease: float | None = 5.0  # A cancelled agent leaves its transaction open.

    async def run(self) -> None:
        await self.work(self._member.space)

    async def work(self, space: Any) -> None:
        verbs, weights = list(VERBS), list(VERBS.values())
        while True:
            await asyncio.sleep(self._rng.expovariate(8.0))
            (verb,) = self._rng.choices(verbs, weights)
            if self._rng.random() < 0.15:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(0.0, 0.3)):
                        await self._do(space, verb)
            else:
                await self._do(space, verb)

    async def _do(self, space: Any, verb: str) -> None:
        key = self._rng.choice(KEYS)
        match verb:
            case "write":
                await self._write(space, key)
            case "news":
                await self._write(space, NEWS)
            case "mail":
                await self._write(space, MAIL, to=self._rng.choice(self._world.members).name)
            case "session":
                await self._read_session(space)
            case "deal":
                await self._deal(space, key)
            case _:
                await self._get(space, verb, key)

    async def _write(self, space: Any, key: str, **options: Any) -> None:
        act = self._act("write", key)
        act.entries = [self._next(key)]
        await self._history.act(act, self.life, space.write(act.entries[0], **options))

    async def _get(self, space: Any, verb: str, key: str) -> None:
        rng = self._rng
        template = (key, str, int)
        wait = rng.choice((0, 0, 0.3, 1.5))
        act = self._act(
            "take" if verb.startswith("take") else "count" if verb == "count" else "read", key
        )
        act.many = verb.endswith("_all")
        options: dict[str, Any] = {}
        coverage = Coverage()
        if self._covers:
            options["coverage"] = coverage
        if rng.random() < 0.1:
            options["scope"] = HERE
        if act.many:
            options["limit"] = rng.choice((None, 1, 3))
        if verb != "count":
            options["wait"] = wait
        call = getattr(space, verb)
        await self._history.act(act, self.life, call(template, **options))
        act.covered = frozenset(coverage.covered)

    async def _read_session(self, space: Any) -> None:
        """Read news that this session has not seen."""
        if self._session is None or self._rng.random() < 1 / SESSION_READS_MAX:
            try:
                self._session = await maybe_await(space.session())
            except TupeloError:
                return
            self._sessions += 1
        act = self._act("read", NEWS)
        act.session = f"{self.name}/{self._sessions}"
        await self._history.act(act, self.life, self._session.read((NEWS, str, int), wait=0.2))
        if act.how != "done":
            self._session = None  # It may be over, or have recorded an entry that was not returned.

    async def _deal(self, space: Any, key: str) -> None:
        """Take one entry and write two, in a transaction that may be aborted."""
        deal = Deal(self.name, self._member, self._history.tick())
        self._history.deals.append(deal)
        commits = self._rng.random() < 0.7
        try:
            txn = await maybe_await(space.transaction(lease=self._lease))
            taken = await space.take((key, str, int), wait=0, txn=txn)
            if taken is not None:
                deal.taken.append(taken)
            for _ in range(2):
                deal.written.append(self._next(key))
                await space.write(deal.written[-1], txn=txn)
            if commits:
                deal.how = "unknown"
                await txn.commit()
                deal.how = "committed"
            else:
                await txn.abort()
        except TupeloError as error:
            deal.error = error
            if deal.how != "unknown":
                with suppress(TupeloError, UnboundLocalError):
                    await txn.abort()
        finally:
            deal.ret = self._history.tick()
            self._world.note(str(deal))

    def _next(self, key: str) -> tuple[Any, ...]:
        self._written += 1
        return (key, self.name, self._written)

    def _act(self, kind: Kind, key: str) -> Act:
        return Act(kind, self.name, self._member, self.life, key, self._history.tick())


class RandomClient(RandomAgent):
    """An agent that is a program of its own, connected to a host."""

    def __init__(self, world: SpacesSimulation, number: int) -> None:
        name = f"k{number}"
        life = ProgramLife(world.loop, world.network, name)
        member = Random(f"{world.seed} {name}").choice(world.members)
        super().__init__(world, member, life, name)
        self._covers = False
        self._lease = None  # Its transactions end with its connection.
        self.space: Any = None

    async def run(self) -> None:
        self.space = await connect(self._member, self.name, self._rng, self.life)
        await self.work(self.space)

    async def leave(self) -> None:
        """Close the space, and end."""
        if not self.life.over:
            await self.life.start(self._leave(), f"{self.name} leaves")
            await self.life.end()

    async def _leave(self) -> None:
        if self.space is not None:
            with suppress(TupeloError):  # The confirmations of deliveries go with the next request.
                await self.space.count((NEWS, str, int))
            await self.space.close()


async def connect(member: SpacesHost, name: str, rng: Random, life: ProgramLife) -> RemoteSpace:
    """The space of a host, for a client, as soon as the host can be reached."""
    address = Address(member.name, PORT)
    config = ConnectionConfig(address, name, name, name, None, lambda key: None, RECONNECT_SECONDS)
    while True:
        try:
            return await RemoteSpace.opened(await AsyncChannel.made(config, rng, life), SPACE, None)
        except TupeloError:
            await asyncio.sleep(0.5)


class Trader:
    """Writes one entry at each of two durable hosts, in one transaction; the first host decides.

    It speaks the commit protocol step by step, as `federation.transactions` does, so that it may be
    killed, or lose either host, between any two steps.
    """

    def __init__(self, world: SpacesSimulation) -> None:
        self.name = "trader"
        self.life = ProgramLife(world.loop, world.network, self.name)
        self._history = world.history
        self._world = world
        self._rng = Random(f"{world.seed} {self.name}")
        self._members: list[SpacesHost] = []
        self._spaces: list[RemoteSpace] = []
        self._trades = 0

    async def run(self) -> None:
        durable = [member for member in self._world.members if member.durable]
        self._members = self._rng.sample(durable, 2)
        for member in self._members:
            self._spaces.append(await connect(member, self.name, self._rng, self.life))
        while True:
            await asyncio.sleep(self._rng.expovariate(4.0))
            await self._trade()

    async def _trade(self) -> None:
        self._trades += 1
        deal = Deal(self.name, self._members[0], self._history.tick())
        self._history.deals.append(deal)
        first = self._spaces[0]
        session = first.channel.session
        txn = spanning_id(first.host_id, self._members[0].address, session, str(self._trades))
        branches = [
            (space, space.serial, branch_id(txn, number))
            for number, space in enumerate(self._spaces)
        ]
        try:
            for number, (space, serial, branch) in enumerate(branches):
                entry = (TRADE, self.name, 2 * self._trades + number)
                deal.written.append(entry)
                await self._write(space, serial, branch, entry)
            for space, serial, branch in branches:
                await space.ask(wire.End(0, SPACE, branch, "prepare"), serial)
            participants = [(branch, space.engine_id) for space, _, branch in branches]
            deal.how = "unknown"
            is_committed = await first.ask(wire.Decide(0, txn, participants), branches[0][1])
            deal.how = "committed" if is_committed else "aborted"
        except TupeloError as error:
            deal.error = error
        finally:
            deal.ret = self._history.tick()
            self._world.note(str(deal))
        if deal.how != "unknown":
            await self._end_branches(branches, "commit" if deal.how == "committed" else "abort")

    async def _write(self, space: RemoteSpace, serial: int, branch: str, entry: Any) -> None:
        await space.ask(wire.Begin(0, SPACE, None, None, branch), serial)
        encoded = [entry_to_wire(*freeze(entry))]
        await space.ask(wire.Write(0, SPACE, encoded, None, branch, None, 0.0, None), serial)

    async def _end_branches(
        self,
        branches: Iterable[tuple[RemoteSpace, int, str]],
        decision: Literal["commit", "abort"],
    ) -> None:
        """Tell the participants. A participant that cannot be reached asks the decider."""
        for space, serial, branch in branches:
            with suppress(TupeloError):
                await space.ask(wire.End(0, SPACE, branch, decision), serial)
                if decision == "commit":
                    await self._spaces[0].ask(wire.Forget(0, branch, space.engine_id))


# The world


async def notices_of(subscription: Any) -> AsyncIterator[Notice]:
    """The notices of a subscription; a full disk holds them up, one that has failed ends them."""
    while True:
        try:
            async for notice in subscription:
                yield notice
            return
        except DiskFull:
            await asyncio.sleep(0.1)
        except JournalFailed:
            return


class SpacesHost(SimulatedHost):
    """A host with one space, which spans the hosts."""

    world: SpacesSimulation
    space: AsyncFederatedSpaceLike

    def __init__(self, world: SpacesSimulation, number: int) -> None:
        super().__init__(world, number, doubt=Doubt(seconds=DOUBT_SECONDS))
        self.ends: list[int] = []
        """The ticks at which it crashed, began to leave, or had left."""

    async def open(self) -> None:
        self.space = self.api.space(SPACE)
        hosted = self.core.spaces[SPACE]
        self.slow_down(hosted, self.world.plan.disk_seconds)
        self._watch(hosted)

    def _watch(self, hosted: HostedSpace) -> None:
        """Count how often each entry becomes available here, also when it is returned."""
        for entry in hosted.port.entries():
            self.world.sightings[entry.fields] += 1
        state = hosted.port.subscribe(
            ANY, None, None, None, None, backlog_max=100_000, available=True
        )
        subscription = Subscription(hosted.port, state, None)

        async def listen() -> None:
            async for notice in notices_of(subscription):
                self.world.sightings[notice.subject.fields] += 1

        self.watching = self.do(listen())

    async def listen(self) -> None:
        """Record the news from all hosts, as a subscriber at this host."""
        history = self.world.history
        news = history.listeners.setdefault((self.name, self.lives), [])
        async with self.space.subscribe((NEWS, str, int), backlog_max=100_000) as notices:
            history.subscribed[self.name, self.lives] = history.tick()
            async for notice in notices_of(notices):
                news.append(notice.subject.fields)

    def ending(self, crashes: bool) -> None:
        self.ends.append(self.world.history.tick())
        if self.life is not None and self.unreached:
            self.world.history.unconfirmed.add(self.life)

    def left(self) -> None:
        self.ends.append(self.world.history.tick())  # What was written meanwhile is gone as well.


@dataclass(frozen=True, kw_only=True)
class SpacesPlan(SimulationPlan):
    agents: int
    """How many agents run at each host."""
    clients: int


def draw_plan(rng: Random) -> SpacesPlan:
    hosts = rng.choice((2, 2, 3, 3, 4))
    return SpacesPlan(
        hosts=hosts,
        durable=frozenset(number for number in range(hosts) if rng.random() < 0.6),
        load_seconds=rng.uniform(3.0, 8.0),
        agents=rng.choice((1, 2)),
        clients=rng.choice((0, 1, 2)),
        delay=rng.choice(DELAYS),
        disk_seconds=rng.choice((0.0, 0.01, 0.1)),
    )


class SpacesSimulation(Simulation[SpacesHost]):
    """Spaces that span hosts."""

    plan: SpacesPlan
    history: SpacesHistory
    nemesis = Nemesis(
        ("partition", "partition", "heal", "cut", "crash", "return", "slow"), slower=(1, 10, 100)
    )

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, draw_plan(Random(f"{loop.seed} plan")))
        self.history = SpacesHistory(self.note)
        self.members = [SpacesHost(self, number) for number in range(self.plan.hosts)]
        self.sightings: Counter[tuple[Any, ...]] = Counter()
        """How often each entry became available: once, if it was never returned."""
        self._agents: list[asyncio.Task[None]] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._clients: list[RandomClient] = []
        self._waiting: dict[SpacesHost, asyncio.Task[Any]] = {}

    @property
    def acts(self) -> int:
        return len(self.history.acts) + len(self.history.deals)

    async def populate(self, host: SpacesHost) -> None:
        life = host.life
        assert life is not None
        for number in range(1, self.plan.agents + 1):
            name = f"{host.name}{number}.{host.lives}"
            agent = RandomAgent(self, host, life, name)
            self._agents.append(life.start(agent.run(), name))
        self._listeners.append(life.start(host.listen(), f"{host.name} listens"))

    async def run_nemesis(self) -> None:
        for number in range(self.plan.clients):
            client = RandomClient(self, number)
            self._clients.append(client)
            self._agents.append(client.life.start(client.run(), client.name))
        trader = Trader(self) if len(self.plan.durable) >= 2 else None
        if trader is not None:
            self._agents.append(trader.life.start(trader.run(), "trader"))
        await super().run_nemesis()
        if trader is not None:
            await trader.life.kill([])
        if self._clients and self.rng.random() < 0.5:
            await self._clients[0].life.kill([])

    async def end_load(self) -> None:
        """Stop the agents. Then, while no host reaches another, let a request wait at each."""
        await cancel_all(self._agents)
        self._waiting = {
            host: host.do(host.space.take((LATE, host.name))) for host in await self.isolate()
        }

    async def settle(self) -> None:
        await self.settle_connected()
        await self._serve_late()
        for client in self._clients:
            await client.leave()
        await asyncio.sleep(SETTLE_SECONDS)
        await cancel_all(self._listeners)
        await asyncio.sleep(1.0)
        for host in self.members:
            entries = await host.space.take_all(scope=HERE)
            self.history.left[host.name] = [entry for entry in entries if entry[0] != LATE]

    async def _serve_late(self) -> None:
        """Write at another host what the requests wait for: they must find it there."""
        for host in self._waiting:
            other = self.members[(host.number + 1) % len(self.members)]
            await other.space.write((LATE, host.name))
        if self._waiting:
            await asyncio.wait(self._waiting.values(), timeout=SERVED_SECONDS)
        for host, task in self._waiting.items():
            if not task.done():
                text = f"a take at {host.name} has not found the entry that was written elsewhere"
                self.faults.append(Fault("not served", text))
        await cancel_all(self._waiting.values())
