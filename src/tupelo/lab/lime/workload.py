"""The workload of LIME: agents that use all of it at random, and check what they see.

Hosts form groups, crash and come back with empty memories, disengage and engage; agents write,
take, react, share their spaces and migrate."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random
from typing import Any, Literal

from tupelo.errors import MigrationFailed
from tupelo.federation.groups.membership import Membership
from tupelo.federation.spaces.hosted import Doubt
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
    name_of,
)
from tupelo.lab.virtual_world import ProgramLife
from tupelo.models import lime
from tupelo.models.lime import (
    ONCE,
    ONCE_PER_TUPLE,
    AgentLocation,
    HostLocation,
    LimeSystemTupleSpace,
    LimeTupleSpace,
    LocalizedReaction,
    ReactionEvent,
    UbiquitousReaction,
)
from tupelo.models.lime.locations import home_of
from tupelo.models.lime.migrating import PackagePiece
from tupelo.models.lime.server import Server
from tupelo.models.lime.spaces import AgentMetadata, AgentState, Directory
from tupelo.models.lime.transfer import Relocated, TupleBatch

WORLD: ContextVar[LimeSimulation] = ContextVar("world")
"""The simulation of an agent. An agent migrates as a value, so it cannot hold a reference to it."""

SPACES = MAIN, SIDE = "main", "side"
JOB, MAIL = "job", "mail"
"""Kinds of tuples that are taken; mail is addressed to an agent."""
NEWS = "news"
"""The kind that is only reacted to, and read."""
LETTER = "letter"
"""Addressed to an agent, and only read."""
PARCEL = "parcel"
"""Addressed to an agent, whose weak reaction takes it."""
COMMAND, DONE = "command", "done"
"""A command is addressed to an agent, whose strong reaction replaces it by a tuple "done"."""
MARK = "mark"
"""Every agent has one in each of its spaces, as long as it lives."""
LATE = "late"
"""The kind that a request waits for before its writer can be reached."""

VERBS = {
    "out": 8,
    "mail": 4,
    "news": 4,
    "letter": 4,
    "command": 3,
    "parcel": 3,
    "in_": 4,
    "inp": 5,
    "ing": 2,
    "rd": 2,
    "rdp": 2,
    "rdg": 2,
    "count_marks": 4,
    "look_astray": 3,
    "read_all": 5,
    "share": 1,
    "switch": 2,
    "renew": 2,
    "migrate": 2,
    "end_it": 0.1,
}
WRITES = {
    "out": JOB,
    "mail": MAIL,
    "news": NEWS,
    "letter": LETTER,
    "command": COMMAND,
    "parcel": PARCEL,
}
"""The kind of the tuple that a verb writes."""
GETS = {"in_": (0.1, 0.5, 2.0), "inp": (), "ing": (), "rd": (0.1, 0.5), "rdp": (), "rdg": ()}
"""How long a verb may wait, in seconds."""
CANCELLED = ("out", "mail", "in_", "inp", "ing", "rd", "rdp")
SETTLE_SECONDS = DOUBT_SECONDS + 5.0
MANY = 1_000
"""No `ing` has returned more tuples."""

Tuple = tuple[Any, ...]
"""The kind of the tuple, and a unique number; a mark has the id of its agent instead."""


# The history


@dataclass
class LimeAct(Operation):
    """One operation of one agent."""

    verb: str
    agent: str
    life: ProgramLife
    kind: str
    detail: str = ""
    how: OperationOutcome = "killed"
    tuples: list[Tuple] = field(default_factory=list)
    error: str = ""
    is_cut_short: bool = False
    """Cancelled, and its host crashed before it could return what it had taken."""

    @property
    def takes(self) -> bool:
        return self.verb in ("in_", "inp", "ing")

    def answered(self, answer: Any) -> None:
        if self.verb != "out":
            self.tuples = answer if isinstance(answer, list) else [answer] * (answer is not None)

    def __str__(self) -> str:
        result = self.error or " ".join(map(name_of, self.tuples)) or "-"
        return f"{self.agent}: {self.verb} {self.kind} {self.detail} {self.how}: {result}"


class LimeHistory(History[LimeAct]):
    """What agents have called, what reactions were told, and what was lost with a host."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(note)
        self.fired: dict[tuple[str, str], list[Tuple]] = defaultdict(list)
        """The tuples for which a reaction has fired since it was enabled, by agent and name."""
        self.met: dict[str, set[str]] = defaultdict(set)
        """The hosts of which LimeSystem has told each agent."""
        self.sunk: set[Tuple] = set()
        """Tuples that were at a host when it crashed, or with an agent when it ended."""
        self.unsettled: set[Tuple] = set()
        """Tuples that were on their way to a host that crashed before it could confirm them."""
        self.gone: set[str] = set()
        """The agents that have ended, were at a host that crashed, or had left for it or from it
        without an answer."""
        self.parked: dict[str, AgentState] = {}
        """The agents that were parked at a host that crashed while the host that they leave had not
        decided, by the token of the migration."""
        self.claims: list[Callable[[], Fault | None]] = []
        """Checks that can only be made at the end."""

    def written(self, kind: str) -> set[Tuple]:
        """The tuples of a kind that are known to be written."""
        return {
            one
            for act in self.acts
            if act.verb == "out" and act.kind == kind and act.how == "done"
            for one in act.tuples
        }

    def enabled(self, agent: str, name: str) -> None:
        """A reaction was enabled, and has forgotten for which tuples it has fired."""
        self.fired[agent, name] = []

    def reacted(self, agent: str, name: str, to: Tuple, *, once: bool) -> None:
        self.note(f"{agent}: {name} reacts to {name_of(to)}")
        before = self.fired[agent, name]
        if to in before or (once and before):
            self.fault("reacted twice", f"{name} of {agent} to {name_of(to)}")
        before.append(to)

    def lose_agent(self, agent: AgentState) -> None:
        """An agent is lost with its private tuples: it has left a host, and does not arrive."""
        self.gone.add(agent.id)
        self.sunk.update(_private(agent))

    def lose_cancelled(self, life: ProgramLife) -> None:
        """A host crashes while it still undoes operations that were cancelled."""
        for act in self.acts:
            if act.life is life and act.how == "cancelled":
                act.is_cut_short = True

    def excuses(self) -> Counter[str]:
        """How many tuples of each kind may have gone with operations that were killed."""
        excuses: Counter[str] = Counter()
        for act in self.acts:
            if act.takes and (act.how == "killed" or act.is_cut_short):
                excuses[act.kind] += MANY if act.verb == "ing" else 1
        return excuses


# Agents


class LimeWorker(lime.Agent):
    """A random agent. Its id stays the same when it migrates."""

    def __init__(self) -> None:
        self.hops = 0
        self.main = LimeTupleSpace(MAIN)
        self.side = LimeTupleSpace(SIDE)
        self.news: Any = None

    @property
    def _world(self) -> LimeSimulation:
        return WORLD.get()

    @property
    def _member(self) -> LimeHost:
        """The host where this agent is."""
        return self._world[self.host.host.id]

    async def run(self) -> None:
        world, member = self._world, self._member
        self._rng = Random(f"{world.seed} {self.id} {self.hops}")
        world.began(self.id, member)
        try:
            if self.hops == 0:
                await self._settle_in()
            self.hops += 1
            await self._work()
        finally:
            world.ended(self.id, member)

    async def _settle_in(self) -> None:
        """Write the marks before the spaces are shared: nobody sees the agent without them."""
        self._world.known.append(self.id)
        for space in (self.main, self.side):
            await space.out((MARK, self.id))
        await lime.set_shared([self.main, self.side], True)
        await self.main.add_strong_reaction(
            LocalizedReaction(self.location, None, (COMMAND, str), self.obey, ONCE_PER_TUPLE)
        )
        self.news, _ = await self.main.add_weak_reaction(
            UbiquitousReaction((NEWS, str), self.hear, ONCE_PER_TUPLE),
            LocalizedReaction(self.location, None, (PARCEL, str), self.fetch, ONCE_PER_TUPLE),
        )
        await LimeSystemTupleSpace().add_weak_reaction(
            UbiquitousReaction(("host", str, str), self.meet, ONCE_PER_TUPLE)
        )
        await self._renew()

    async def _work(self) -> None:
        verbs, weights = list(VERBS), list(VERBS.values())
        while not self.ended:
            await asyncio.sleep(self._rng.expovariate(25.0))
            if self._world.is_calm:
                await self._world.reunited.wait()
                await self._write(self.main, NEWS)
                await asyncio.Event().wait()
            (verb,) = self._rng.choices(verbs, weights)
            if verb in WRITES:
                work = partial(self._write_some, WRITES[verb])
            elif verb in GETS:
                work = partial(self._get, verb)
            else:
                work = getattr(self, f"_{verb}")
            if verb in CANCELLED and self._rng.random() < 0.15:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(0.0, 0.3)):
                        await work()
            else:
                await work()

    # Tuples

    async def _record(
        self,
        verb: str,
        kind: str,
        detail: str,
        work: Coroutine[Any, Any, Any],
        written: list[Tuple] | None = None,
    ) -> Any:
        assert self._member.life is not None
        act = LimeAct(verb, self.id, self._member.life, kind, detail, tuples=written or [])
        return await self._world.history.act(act, act.life, work)

    async def _write(self, space: LimeTupleSpace, kind: str, to: str | None = None) -> None:
        entry = (kind, str(self._world.loop.number("tuple")))
        work = space.out(entry, None if to is None else AgentLocation(to))
        await self._record("out", kind, f"in {space.name} to {to}", work, [entry])

    async def _write_some(self, kind: str) -> None:
        space = self.main if kind in (PARCEL, COMMAND) else self._space()
        to = None if kind in (JOB, NEWS) else self._rng.choice(self._world.known)
        await self._write(space, kind, to)

    async def _get(self, verb: str) -> None:
        options = {"wait": self._rng.choice(waits)} if (waits := GETS[verb]) else {}
        space, kind = self._space(), self._rng.choice((JOB, MAIL))
        if options and not space.is_shared:
            return
        current, destination = self._projection()
        call = getattr(space, verb)
        await self._record(
            verb,
            kind,
            f"in {space.name} at {_location_name(current)}, {_location_name(destination)}",
            call((kind, str), current, destination, **options),
        )

    def _space(self) -> LimeTupleSpace:
        return self.main if self._rng.random() < 0.7 else self.side

    def _projection(self) -> tuple[AgentLocation | HostLocation | None, AgentLocation | None]:
        rng = self._rng
        agent, other = (AgentLocation(rng.choice(self._world.known)) for _ in range(2))
        host = HostLocation(rng.choice(self._world.members).name)
        table = [(None, None)] * 4
        return rng.choice(
            [*table, (None, other), (agent, None), (host, None), (agent, other), (host, other)]
        )

    # Checks of what an operation sees

    async def _count_marks(self) -> None:
        """Check that the marks in a space are those of the agents that share it, each once: of all
        hosts of one membership, each as it was at one moment during the operation."""
        if not self.main.is_shared or self._world.plan.over != "collect":
            return
        first, begin = self._memberships_before(), self._world.loop.time()
        found = await self._record("rdg", MARK, "", self.main.rdg((MARK, str)))
        if found is None:
            return
        seen = [agent for _, agent in found]
        end = self._world.loop.time()

        def is_complete(watched: Watched) -> bool:
            hosts = [one for one in self._world.members if one.name in watched.membership.members]
            states = {one.name: one.sharing(MAIN, begin, end) for one in hosts}
            near = [states[host] for host in states if host not in watched.cut]
            cut = [states[host] for host in states if host in watched.cut]
            optional = {agent for times in cut for agents in times for agent in agents}
            return len(seen) == len(set(seen)) and any(
                near_by <= set(seen) <= near_by | optional
                for near_by in (frozenset().union(*choice) for choice in product(*near))
            )

        text = f"{self.id} at {self._member.name} saw the marks of {', '.join(sorted(seen))}"
        self._claim(first, is_complete, Fault("half a group", text))

    async def _look_astray(self) -> None:
        """Check that no tuple is away from the agent to which it is addressed, if this agent is in
        the group; not even at the first moment after the agent has come."""
        member = self._member
        await self._halted()
        astray = sorted(member.homes_away(MAIN, MAIL))
        if not astray or not self.main.is_shared:
            return
        destination = self._rng.choice(astray)
        first = self._memberships_before()
        found = await self._record(
            "rdg",
            MAIL,
            f"at {member.name} for {destination}",
            self.main.rdg((MAIL, str), HostLocation(member.name), AgentLocation(destination)),
        )
        if not found:
            return

        end = self._world.loop.time()

        def directory(membership: Membership) -> dict[str, str]:
            return dict(Directory(membership, member.server.name).sharers(MAIN))

        def is_away(watched: Watched) -> bool:
            host = directory(watched.membership).get(destination, member.name)
            states = self._world[host].sharing(MAIN, watched.since, end)
            is_there = all(destination in agents for agents in states)
            return host == member.name or host in watched.cut or not is_there

        names = ", ".join(map(name_of, found))
        text = f"{self.id} saw {names} at {member.name}, for {destination}"
        self._claim(first, is_away, Fault("half engaged", text))

    async def _read_all(self) -> None:
        """Check that a read sees all tuples in the group that nobody takes. While an agent begins
        or ends to share the space, some may be private."""
        if self._world.plan.over != "collect":
            return
        space, kind = self._space(), self._rng.choice((NEWS, LETTER))
        await self._halted()
        written, begin = self._world.history.written(kind), self._world.loop.time()
        found = await self._record("rdg", kind, f"in {space.name}", space.rdg((kind, str)))
        if found is None or not space.is_shared:
            return
        end = self._world.loop.time()
        if any(len(one.sharing(space.name, begin, end)) > 1 for one in self._world.members):
            return
        there = self._member.in_membership(space.name)
        missed = sorted(there & written - set(found))
        if missed:
            text = f"{', '.join(map(name_of, missed))} by {self.id} at {self._member.name}"
            last = len(self._member.watcher.memberships) - 1
            self._claim(last, lambda watched: bool(watched.cut), Fault("not seen", text))

    async def _halted(self) -> None:
        """Half of the time, wait until the group is halted, so that the next operation is held."""
        if self._rng.random() < 0.5:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while not self._member.server.group.halted:
                        await asyncio.sleep(0.002)

    def _memberships_before(self) -> int:
        return max(len(self._member.watcher.memberships) - 1, 0)

    def _claim(self, first: int, holds: Callable[[Watched], bool], fault: Fault) -> None:
        """At the end, report this fault unless the condition holds in one of the memberships during
        the operation. Which hosts are cut off may be known a little later."""
        memberships = self._member.watcher.memberships[first:]

        def judge() -> Fault | None:
            return None if any(map(holds, memberships)) or not memberships else fault

        self._world.history.claims.append(judge)

    # Sharing and reactions

    async def _share(self) -> None:
        private = [space for space in (self.main, self.side) if not space.is_shared]
        chosen = private or self._rng.sample((self.main, self.side), self._rng.choice((1, 2)))
        await lime.set_shared(chosen, bool(private))
        self._world.note(f"{self.id}: shares {[space.name for space in chosen]} {bool(private)}")

    async def _switch(self) -> None:
        """Disable the reaction to news and enable it again: it forgets for which it has fired."""
        await self.news.disable()
        await asyncio.sleep(0.3)
        self._world.history.enabled(self.id, "news")
        await self.news.enable()

    async def _renew(self) -> None:
        """Register the ONCE reaction again, if it has fired."""
        history = self._world.history
        if (self.id, "once") not in history.fired or history.fired[self.id, "once"]:
            history.enabled(self.id, "once")
            await self.side.add_weak_reaction(UbiquitousReaction((NEWS, str), self.hear_once, ONCE))

    def hear(self, event: ReactionEvent) -> None:
        self._world.history.reacted(self.id, "news", event.tuple, once=False)

    def hear_once(self, event: ReactionEvent) -> None:
        self._world.history.reacted(self.id, "once", event.tuple, once=True)

    def meet(self, event: ReactionEvent) -> None:
        self._world.history.met[self.id].add(event.tuple[1])

    async def fetch(self, event: ReactionEvent) -> None:
        """The reaction to a parcel: take it, unless another agent has."""
        self._world.history.reacted(self.id, "parcels", event.tuple, once=False)
        await self._record("inp", PARCEL, "that came", self.main.inp(event.tuple))

    def obey(self, event: ReactionEvent) -> None:
        """The reaction to a command: replace it by a tuple "done", in one step."""
        assert event.step is not None
        if event.step.inp(event.tuple) is not None:
            event.step.out((DONE, event.tuple[1]))

    # Migration

    async def _migrate(self) -> None:
        others = [host for host in self.host.hosts if host != self.host.location]
        if not others:
            return
        target = self._rng.choice(others)
        self._world.note(f"{self.id}: is to move to {target.id}")
        self._world.leaving.add(self.id)
        try:
            await self.migrate(target)
        except MigrationFailed as error:
            self._world.note(f"{self.id}: stays: {error}")
        self._world.stays(self.id, self._member)

    async def _end_it(self) -> None:
        """End this agent, with its tuples."""
        await lime.set_shared([self.main, self.side], False)
        for space in (self.main, self.side):
            for kind in (JOB, MAIL, NEWS, LETTER, PARCEL, COMMAND, DONE, MARK):
                self._world.history.sunk.update(await space.rdg((kind, str)))
        self._world.history.gone.add(self.id)
        self._world.note(f"{self.id} ends")
        await self.end()


class BlockedRead(lime.Agent):
    """An agent that waits for one tuple, which is written when all hosts have met again."""

    def __init__(self) -> None:
        self.served = False

    async def run(self) -> None:
        space = LimeTupleSpace(MAIN)
        await space.set_shared(True)
        await space.in_((LATE, self.host.host.id))
        self.served = True


def _location_name(location: AgentLocation | HostLocation | None) -> str:
    return "any" if location is None else location.id


# Hosts


@dataclass(frozen=True)
class Watched:
    """A membership of a host: since when it is in force there, and which hosts are cut off."""

    membership: Membership
    since: float
    cut: set[str]


class Watcher:
    """A part of the group that records its memberships."""

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


class LimeHost(SimulatedHost):
    """A host with LIME. Its tuples and agents end with each of its lives."""

    world: LimeSimulation
    host: lime.Host
    watcher: Watcher

    def __init__(self, world: LimeSimulation, number: int) -> None:
        super().__init__(world, number, doubt=Doubt(seconds=DOUBT_SECONDS))
        self._sharing: list[tuple[float, frozenset[tuple[str, str]]]] = []
        """Since when which agents have shared which spaces here."""

    @property
    def server(self) -> Server:
        return self.host.server

    async def open(self) -> None:
        plan = self.world.plan
        await asyncio.sleep(plan.late_seconds * self.number)  # Other hosts may know it by then.
        self.host = lime.Host(self.api, over=plan.over, agents=[LimeWorker, BlockedRead])
        self.watcher = Watcher()
        await self.host.start()
        self.server.group.part("lab", self.watcher)
        self._watch_moves()
        self._watch_sharing()
        self._watch_migrations()

    def _watch_moves(self) -> None:
        """Keep a list of the tuples on their way to other hosts: they may be nowhere else."""
        self.moving: list[TupleBatch] = []
        send = self.server.transfer.send

        async def watched(batches: list[TupleBatch]) -> None:
            sent = list(batches)
            self.moving += sent
            try:
                await send(batches)
            finally:
                self.moving = [batch for batch in self.moving if batch not in sent]

        self.server.transfer.send = watched  # type: ignore[method-assign]

    def _watch_sharing(self) -> None:
        """Record which agents share which spaces here, in the step in which that changes."""
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

    def _watch_migrations(self) -> None:
        """Notice that an agent leaves for a host that crashed: its answer was on the way."""
        migrations, history = self.host.migrations, self.world.history
        ask = migrations.ask

        async def watched(target: str, body: Any) -> Any:
            answer = await ask(target, body)
            if isinstance(body, PackagePiece) and body.token in history.parked:
                history.lose_agent(history.parked.pop(body.token))
            return answer

        migrations.ask = watched  # type: ignore[method-assign]

    def sharing(self, space: str, since: float, until: float) -> set[frozenset[str]]:
        """The agents that have shared a space here, at each moment of this period."""
        first = sum(moment < since for moment, _ in self._sharing[1:])
        return {
            frozenset(agent for name, agent in shared if name == space)
            for moment, shared in self._sharing[first:]
            if moment <= until
        } or {frozenset()}

    def in_membership(self, space: str) -> set[Tuple]:
        """The tuples of a space at all hosts of the membership of this host. Empty if some hosts
        are cut off, or if the membership has just begun: a request of this moment belongs to the
        one before."""
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

    def tuples(self) -> Iterator[Tuple]:
        """Everything in the memory of this host, visible or not."""
        server = self.server
        for name, hosted in self.core.spaces.items():
            if name in SPACES:
                yield from (entry.fields for entry in hosted.port.entries_and_taken())
        for agent in server.agents.values():
            yield from _private(agent)
        for other in self.world.members:
            yield from self.given_to(other.name)
        for batch in [*server.batches, *self.moving]:
            yield from (entry.fields for entry in batch.held.entries)

    def given_to(self, host: str) -> Iterator[Tuple]:
        """The tuples that were sent to another host, which has not confirmed them."""
        for held in self.server.transfer.put_aside_for(host):
            yield from (entry.fields for entry in held.entries)

    def homes_away(self, space: str, kind: str) -> set[str]:
        """The agents that are not here, and to which a tuple of this kind here is addressed."""
        if space not in self.core.spaces:
            return set()
        store = self.core.spaces[space].port.entries()
        homes = {home_of(entry) for entry in store if entry.fields[0] == kind}
        return homes - set(self.server.agents)

    def ending(self, crashes: bool) -> None:
        if crashes:
            self._write_off()
            self.server.group.crash()  # Its cancelled tasks must not vote any more.

    def _write_off(self) -> None:
        """Record what may be lost with this host: its tuples, its agents, and those that have left
        for it or from it, and have not started. An agent that waits here for a decision is still
        at the host that it leaves, unless that decides to let it go. Tuples that others have sent
        here, and whose confirmation is missing, may exist twice."""
        history, life = self.world.history, self.life
        assert life is not None
        if self.server.tasks:
            history.lose_cancelled(life)
        history.sunk.update(self.tuples())
        history.gone.update(self.server.agents)
        others = [other for other in self.world.members if other is not self and other.is_up]
        for other in others:
            for token, agent in self._parked_from(other):
                if other._has_let_go(token):
                    history.lose_agent(agent)
                else:
                    history.parked[token] = agent
            for token, agent in other._parked_from(self):
                if self._has_let_go(token):
                    history.lose_agent(agent)
            history.unsettled.update(other.given_to(self.name))

    def _parked_from(self, other: LimeHost) -> Iterator[tuple[str, AgentState]]:
        """The agents that are parked here, and have left the other host in its current life."""
        for token, parked in self.host.migrations.parked.items():
            if (parked.source, parked.incarnation) == (other.name, other.core.incarnation):
                yield token, parked.runtime.state

    def _has_let_go(self, token: str) -> bool:
        decision = self.host.migrations.decisions.get(token)
        return decision is not None and decision.go

    async def leave(self) -> None:
        if self.is_up:
            await self.do(self.host.close())
        await super().leave()


def _private(agent: Any) -> Iterator[Tuple]:
    for space in agent.spaces.values():
        yield from (entry.fields for entry in space.own.entries())


# The simulation


@dataclass(frozen=True, kw_only=True)
class LimePlan(SimulationPlan):
    agents: int
    """How many agents each host begins with."""
    over: Literal["collect", "publish"]
    late_seconds: float
    """LIME begins at a host so much later than the host, times the number of the host."""


def draw_plan(rng: Random) -> LimePlan:
    return LimePlan(
        hosts=rng.choice((2, 3, 3, 4, 5)),
        agents=rng.choice((1, 2, 2)),
        shape=rng.choice(("mesh", "line", "ring", "star")),
        over=rng.choice(("collect", "collect", "collect", "publish")),
        late_seconds=rng.choice((0.0, 0.0, 0.0, 0.3)),
        load_seconds=rng.uniform(5.0, 12.0),
        delay=rng.choice(DELAYS),
    )


class LimeSimulation(Simulation[LimeHost]):
    """LIME: groups of hosts, with agents."""

    plan: LimePlan
    history: LimeHistory
    nemesis = Nemesis(
        ("partition", "partition", "heal", "cut", "cut", "crash", "return", "slow", "engage"),
        slower=(1, 10, 30),
        crashes=1,
    )

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, draw_plan(Random(f"{loop.seed} plan")))
        self.history = LimeHistory(self.note)
        self.members = [LimeHost(self, number) for number in range(self.plan.hosts)]
        self.known: list[str] = []
        """The ids of all agents that there ever were."""
        self.running: dict[str, tuple[str, ProgramLife]] = {}
        """Where each agent runs."""
        self.leaving: set[str] = set()
        """The agents that are about to migrate."""
        self.is_calm = False
        """Agents do nothing any more, except for one write when `reunited` is set."""
        self.reunited = asyncio.Event()
        self._waiting: list[BlockedRead] = []
        WORLD.set(self)

    # Agents report where they are

    def began(self, agent: str, host: LimeHost) -> None:
        assert host.life is not None
        before = self.running.get(agent)
        if before is not None and not before[1].over and agent not in self.leaving:
            text = f"{agent} begins at {host.name}, and runs at {before[0]}"
            self.history.fault("two of one", text)
        self.running[agent] = (host.name, host.life)
        self.leaving.discard(agent)
        self.note(f"{agent} runs at {host.name}")

    def stays(self, agent: str, host: LimeHost) -> None:
        """The agent could not migrate, and goes on where it was."""
        self.leaving.discard(agent)
        if self.running.get(agent) != (host.name, host.life):
            self.history.fault("two of one", f"{agent} goes on at {host.name}, and has moved")

    def ended(self, agent: str, host: LimeHost) -> None:
        if self.running.get(agent) == (host.name, host.life):
            del self.running[agent]

    # A run

    def is_connected(self) -> bool:
        """Whether all hosts are in one membership, and none is halted."""
        if not all(member.is_up for member in self.members):
            return False
        groups = [member.server.group for member in self.members]
        return (
            len({group.membership.id for group in groups}) == 1
            and len(groups[0].membership.members) == len(self.members)
            and not any(group.halted for group in groups)
        )

    async def populate(self, host: LimeHost) -> None:
        for _ in range(self.plan.agents):
            await host.do(host.host.load(LimeWorker))

    async def strike_model(self, kind: str, host: LimeHost) -> None:
        """A host leaves its group in an orderly way, or comes back into it."""
        if host.is_up:
            leaves = self.rng.random() < 0.5
            self.note(f"{host.name} {'disengages' if leaves else 'engages'}")
            await asyncio.wait([host.do(host.host.disengage() if leaves else host.host.engage())])

    async def end_load(self) -> None:
        """Stop the agents. Then, while no host reaches another, let a request wait at each."""
        self.is_calm = True
        for host in await self.isolate():
            self._waiting.append(await host.do(host.host.load(BlockedRead)))

    async def heal(self) -> None:
        self.end_faults()
        for host in self.members:
            if host.is_up:
                await host.do(host.host.engage())
            else:
                await host.start()
                await self.populate(host)

    async def settle(self) -> None:
        if await self.wait_for(self.is_connected):
            self.reunited.set()  # All agents write news, before the group changes once more.
            await asyncio.sleep(1.0)
            await self._serve_late()
        await asyncio.sleep(SETTLE_SECONDS)
        await self.wait_for(self.is_connected)

    async def _serve_late(self) -> None:
        """Write at another host what the requests wait for: they must find it there."""
        for waiting in self._waiting:
            host = self[waiting.host.host.id]
            other = self.members[(host.number + 1) % len(self.members)]
            await other.do(_write_late(other, (LATE, host.name)))
        await self.wait_for(lambda: all(one.served for one in self._waiting), SERVED_SECONDS)
        for waiting in self._waiting:
            if not waiting.served:
                at = waiting.host.name
                text = f"a request at {at} has not found the tuple that was written elsewhere"
                self.faults.append(Fault("not served", text))


async def _write_late(member: LimeHost, entry: Tuple) -> None:
    """Write a tuple at this host, as an agent that has come for that."""
    agent = await member.host.agent("writer")
    space = LimeTupleSpace(MAIN, agent)
    await space.set_shared(True)
    await space.out(entry)
