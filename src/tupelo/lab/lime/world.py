"""A world of LIME: hosts of agents on a virtual network, that form groups, part and crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tupelo.federation.groups.membership import Membership
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.spaces.hosted import Doubt
from tupelo.lab.life import ProgramLife
from tupelo.lab.lime.history import LimeHistory, Tuple
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.simulation import Simulation
from tupelo.lab.world import ANSWER_SECONDS, DOUBT_SECONDS, HEARTBEAT_SECONDS, PORT, SpaceUnderTest
from tupelo.models import lime
from tupelo.models.lime.locations import home_of
from tupelo.models.lime.server import Server
from tupelo.models.lime.spaces import AgentMetadata, AgentState, Directory
from tupelo.models.lime.transfer import Relocated, TupleBatch
from tupelo.space.port import port_of

WORLD: ContextVar[LimeWorld] = ContextVar("world")
"""The world in which an agent is: it cannot be given one, for it moves as values do."""

SPACES = MAIN, SIDE = "main", "side"
SHAPES = ("mesh", "line", "ring", "star")


@dataclass(frozen=True)
class LimeConfig:
    """What a seed has decided about a world before it begins."""

    hosts: int
    agents: int
    """at each host"""

    shape: str
    """who knows whom"""

    over: Literal["collect", "publish"]
    late_seconds: float
    """how much later than its host LIME begins there, the more the later the host is"""

    load_seconds: float
    delay: tuple[float, float]


def plan_world(rng: Random) -> LimeConfig:
    return LimeConfig(
        hosts=rng.choice((2, 3, 3, 4, 5)),
        agents=rng.choice((1, 2, 2)),
        shape=rng.choice(SHAPES),
        over=rng.choice(("collect", "collect", "collect", "publish")),
        late_seconds=rng.choice((0.0, 0.0, 0.0, 0.3)),
        load_seconds=rng.uniform(5.0, 12.0),
        delay=rng.choice(((0.001, 0.01), (0.001, 0.1), (0.02, 0.05))),
    )


@dataclass(frozen=True)
class Watched:
    """A membership of a host: since when it was in force there, and who was cut off in it."""

    membership: Membership
    since: float
    cut: set[str]


class Watcher:
    """Takes part in the group to write down its memberships."""

    def __init__(self) -> None:
        self.memberships: list[Watched] = []

    def metadata(self) -> None:
        return None

    def install(self, membership: Membership) -> None:
        self.memberships.append(Watched(membership, asyncio.get_running_loop().time(), set()))

    async def settle(self, membership: Membership) -> None:
        pass

    def heard(self, neighbour: str, source: str, body: Any) -> None:
        pass

    async def asked(self, neighbour: str, source: str, body: Any) -> None:
        pass

    def cut(self, hosts: frozenset[str]) -> None:
        self.memberships[-1].cut.update(hosts)


class SimulatedLimeHost:
    """A host of the world, through all its lives. What was there is gone with each."""

    def __init__(self, world: LimeWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.name = "abcdefgh"[number]
        self.address = f"{self.name}:{PORT}"
        self.lives = 0
        self.life: ProgramLife | None = None
        self.core: HostCore
        self.host: lime.Host
        self.watcher: Watcher
        self._sharing: list[tuple[float, frozenset[tuple[str, str]]]] = []
        """Since when which agents have shared which spaces here."""

    @property
    def is_up(self) -> bool:
        return self.life is not None

    @property
    def server(self) -> Server:
        return self.host.server

    def knows(self) -> list[str]:
        """The addresses of those whom it looks for."""
        members, n = self.world.members, self.number
        match self.world.plan.shape:
            case "line":
                others = [n + 1]
            case "ring":
                others = [(n + 1) % len(members)]
            case "star":
                others = [0] if n else []
            case _:
                others = [one for one in range(len(members)) if one != n]
        return [members[one].address for one in others if one < len(members) and one != n]

    async def start(self) -> None:
        """A new life, with nothing."""
        self.lives += 1
        self.life = ProgramLife(self.world.loop, self.world.network, self.name)
        await self.life.start(self._start(self.life), f"{self.name} starts")
        self.world.note(f"{self.name} has started, life {self.lives}")

    async def _start(self, life: ProgramLife) -> None:
        world = self.world
        self.core = HostCore(
            self.name,
            host_id=self.name,
            network=life,
            clock=world.clock,
            rng=Random(f"{world.seed} {self.name} {self.lives}"),
            new_id=world.new_id,
            listen=self.address,
            peers=self.knows(),
            doubt=Doubt(seconds=DOUBT_SECONDS),
            heartbeat=HEARTBEAT_SECONDS,
            answer_seconds=ANSWER_SECONDS,
            commit_in_place=True,
        )
        await self.core.start()
        await asyncio.sleep(world.plan.late_seconds * self.number)  # Others may know it by then.
        self.host = lime.Host(SpaceUnderTest(self.core), over=world.plan.over, agents=world.classes)
        self.watcher = Watcher()
        await self.host.start()
        self.server.group.part("lab", self.watcher)
        self._watch_moves()
        self._watch_sharing()

    def _watch_moves(self) -> None:
        """Know of what is on its way to other hosts and, it may be, nowhere else."""
        self.moving: list[TupleBatch] = []
        send = self.server.moving.send

        async def watched(batches: list[TupleBatch]) -> None:
            mine = list(batches)
            self.moving += mine
            try:
                await send(batches)
            finally:
                self.moving = [one for one in self.moving if one not in mine]

        self.server.moving.send = watched  # type: ignore[method-assign]

    def _watch_sharing(self) -> None:
        """Know who shares which spaces here, from the step on in which that is so."""
        server = self.server
        install = server.sharing.install

        def watched(
            agents: Mapping[str, AgentState], metadata_of: Mapping[str, AgentMetadata]
        ) -> tuple[list[TupleBatch], Relocated]:
            installed = install(agents, metadata_of)
            note()
            return installed

        def note() -> None:
            shared = server.spaces.sharing
            now = frozenset((space, agent) for space in shared for agent in shared[space])
            self._sharing.append((self.world.loop.time(), now))

        server.sharing.install = watched  # type: ignore[method-assign]
        note()

    def sharing(self, space: str, since: float, until: float) -> set[frozenset[str]]:
        """The agents that have shared a space here, at each moment of this time."""
        first = sum(moment < since for moment, _ in self._sharing[1:])
        return {
            frozenset(agent for name, agent in shared if name == space)
            for moment, shared in self._sharing[first:]
            if moment <= until
        } or {frozenset()}

    def in_membership(self, space: str) -> set[Tuple]:
        """What the hosts have of a space that are in one membership with this one; nothing if some
        are cut off, or if the membership has just begun: what is asked now belongs to the one
        before."""
        last = self.watcher.memberships[-1]
        if last.cut or last.since == self.world.loop.time():
            return set()
        return {
            entry.fields
            for member in self.world.members
            if member.is_up
            and member.server.group.membership.id == last.membership.id
            and space in member.core.spaces
            for entry in member.core.spaces[space].port.entries()
        }

    async def crash(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            self.world.note(f"{self.name} crashes")
            life.leaving = True
            self._write_off(life)
            self.server.group.crash()  # The dead do not vote, whatever is cancelled there.
            spaces = [hosted.space for hosted in self.core.spaces.values()]
            ports = [port_of(space) for space in [*spaces, self.core.deciding.space]]
            await life.kill(ports)
            self.world.note(f"{self.name} is gone")

    def _write_off(self, life: ProgramLife) -> None:
        """What goes with this host: its tuples, its agents, and those that wait elsewhere for its
        word. What others have given it without hearing that it has it may be there twice."""
        history = self.world.history
        if self.server.tasks:
            history.lose_cancelled(life)
        history.sunk.update(tuples_of(self))
        history.gone.update(self.server.agents)
        history.gone.update(
            one.runtime.state.id
            for one in self.host.migrations.parked.values()
            if one.runtime.state.id not in self.world.agents_of(one.source)
        )
        for other in self.world.members:
            if other is self or not other.is_up:
                continue
            for parked in other.host.migrations.parked.values():
                if parked.source == self.name:
                    history.gone.add(parked.runtime.state.id)
                    history.sunk.update(_private(parked.runtime.state))
            history.unsettled.update(given_to(other, self.name))

    async def leave(self) -> None:
        """Say goodbye and end, with all agents."""
        if self.life is not None:
            life = self.life
            await life.start(self._leave(), f"{self.name} leaves")
            self.life = None
            life.leaving = True
            await life.end()
            self.world.network.crash(self.name)  # what is left of its links

    async def _leave(self) -> None:
        await self.host.close()
        await self.core.stop("for ever")


class LimeWorld(Simulation[SimulatedLimeHost]):
    """Everything there is in one run."""

    def __init__(self, loop: VirtualLoop, seed: int, classes: list[type[lime.Agent]]) -> None:
        self.plan = plan_world(Random(f"{seed} plan"))
        super().__init__(loop, seed, VirtualNetwork(loop, delay=self.plan.delay, trace_max=100_000))
        self.classes = classes
        self.history = LimeHistory(self.note)
        self.members = [SimulatedLimeHost(self, number) for number in range(self.plan.hosts)]
        self.known: list[str] = []
        """Every agent that there ever was."""
        self.running: dict[str, tuple[str, ProgramLife]] = {}
        """Where each agent runs."""
        self.leaving: set[str] = set()
        """The agents that do nothing but wait to be elsewhere."""
        self.calm = False
        """Nobody does anything more,"""
        self.last = asyncio.Event()
        """but for one thing, when all have met again."""
        WORLD.set(self)

    def number(self) -> str:
        """For a tuple that is like no other."""
        return str(self.loop.number("tuple"))

    def agents_of(self, name: str) -> list[str]:
        return [
            agent
            for member in self.members
            if member.name == name and member.is_up
            for agent in member.server.agents
        ]

    def member(self, name: str) -> SimulatedLimeHost:
        return next(member for member in self.members if member.name == name)

    # Agents say where they are

    def began(self, agent: str, member: SimulatedLimeHost) -> None:
        assert member.life is not None
        before = self.running.get(agent)
        if before is not None and not before[1].over and agent not in self.leaving:
            text = f"{agent} begins at {member.name}, and runs at {before[0]}"
            self.history.fault("two of one", text)
        self.running[agent] = (member.name, member.life)
        self.leaving.discard(agent)
        self.note(f"{agent} runs at {member.name}")

    def stays(self, agent: str, member: SimulatedLimeHost) -> None:
        """It could not leave, and goes on where it was."""
        self.leaving.discard(agent)
        if self.running.get(agent) != (member.name, member.life):
            self.history.fault("two of one", f"{agent} goes on at {member.name}, and has moved")

    def ended(self, agent: str, member: SimulatedLimeHost) -> None:
        if self.running.get(agent) == (member.name, member.life):
            del self.running[agent]

    # Time passes

    async def start(self) -> None:
        for member in self.members:
            await member.start()
        await self.until(self.is_one_group)

    def is_one_group(self) -> bool:
        """Is everyone in the same membership, and nobody halted?"""
        if not all(member.is_up for member in self.members):
            return False
        groups = [member.server.group for member in self.members]
        return (
            len({group.membership.id for group in groups}) == 1
            and len(groups[0].membership.members) == len(self.members)
            and not any(group.halted for group in groups)
        )


# What is where


def tuples_of(member: SimulatedLimeHost) -> Iterator[Tuple]:
    """Everything that is in the memory of a host, and can be seen or not."""
    server = member.server
    for name, hosted in member.core.spaces.items():
        if name in SPACES:
            yield from (entry.fields for entry in hosted.port.entries_and_taken())
    for agent in server.agents.values():
        yield from _private(agent)
    for parked in member.host.migrations.parked.values():
        yield from _private(parked.runtime.state)
    for other in member.world.members:
        yield from given_to(member, other.name)
    for batch in [*server.batches, *member.moving]:
        yield from (entry.fields for entry in batch.held.entries)


def _private(agent: Any) -> Iterator[Tuple]:
    for interface in agent.spaces.values():
        yield from (entry.fields for entry in interface.own.entries())


def given_to(member: SimulatedLimeHost, host: str) -> Iterator[Tuple]:
    """What this member has put aside for a host, and does not know to be there."""
    for held in member.server.transfer.put_aside_for(host):
        yield from (entry.fields for entry in held.entries)


def homes_away(member: SimulatedLimeHost, space: str, kind: str) -> set[str]:
    """The agents that are not here, and for whom there is something of this kind."""
    if space not in member.core.spaces:
        return set()
    store = member.core.spaces[space].port.entries()
    homes = {home_of(entry) for entry in store if entry.fields[0] == kind}
    return homes - set(member.server.agents)


def sharers(member: SimulatedLimeHost, membership: Membership, space: str) -> dict[str, str]:
    """The agents that share a space in a membership of this host, and their hosts."""
    return dict(Directory(membership, member.server.name).sharers(space))


# Faults


async def nemesis(world: LimeWorld, rng: Random, seconds: float) -> None:
    """Faults, one after the other, as the seed will have them."""
    often = ("partition", "partition", "heal", "cut", "cut")
    kinds = (*often, "crash", "return", "slow", "engage")
    end = world.loop.time() + seconds
    while (pause := rng.expovariate(1.2)) + world.loop.time() < end:
        await asyncio.sleep(pause)
        kind, one = await world.befall(rng, kinds, slower=(1, 10, 30), crashes=1)
        if kind == "engage":
            await _engage(world, one, rng)


async def _engage(world: LimeWorld, member: SimulatedLimeHost, rng: Random) -> None:
    """A host leaves its group in an orderly way, or comes back into it."""
    if member.life is not None:
        leaves = rng.random() < 0.5
        world.note(f"{member.name} {'disengages' if leaves else 'engages'}")
        work = member.host.disengage() if leaves else member.host.engage()
        await asyncio.wait([member.life.start(work, f"{member.name} engages")])


async def heal(world: LimeWorld) -> None:
    """All faults are over, and everyone is back."""
    world.calm_down()
    for member in world.members:
        if member.life is None:
            await member.start()
            await world.populate(member)
        else:
            await member.life.start(member.host.engage(), f"{member.name} engages")
