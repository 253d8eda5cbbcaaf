"""Load: agents that do at random all that LIME has, and look at what they see with suspicion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import product
from random import Random
from typing import Any

from tupelo.errors import MigrationFailed
from tupelo.lab.judge import Fault
from tupelo.lab.lime.history import LimeAct, Tuple, name_of
from tupelo.lab.lime.world import (
    MAIN,
    SIDE,
    WORLD,
    LimeWorld,
    SimulatedLimeHost,
    Watched,
    homes_away,
    sharers,
)
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

JOB, MAIL = "job", "mail"
"""Kinds of tuples that are taken; mail is for an agent."""
NEWS = "news"
"""The kind that is only reacted to, and read."""
LETTER = "letter"
"""It is for an agent, and only read."""
PARCEL = "parcel"
"""It is for an agent, whose weak reaction takes it."""
COMMAND, DONE = "command", "done"
"""A command is for an agent, whose strong reaction makes something done of it."""
MARK = "mark"
"""Every agent has one in each of its spaces, as long as it lives."""
LATE = "late"
"""The kind that someone waits for before anyone could write it."""

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
CANCELLED = ("out", "mail", "in_", "inp", "ing", "rd", "rdp")


class LimeWorker(lime.Agent):
    """An agent of the load. It is known by its id wherever it is."""

    def __init__(self) -> None:
        self.hops = 0
        self.main = LimeTupleSpace(MAIN)
        self.side = LimeTupleSpace(SIDE)
        self.news: Any = None

    @property
    def _world(self) -> LimeWorld:
        return WORLD.get()

    @property
    def _member(self) -> SimulatedLimeHost:
        """The host where it is."""
        return self._world.member(self.host.host.id)

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
        """Nobody sees it without its marks."""
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
            if self._world.calm:
                await self._world.last.wait()
                await self._write(self.main, NEWS)
                await asyncio.Event().wait()
            (verb,) = self._rng.choices(verbs, weights)
            work = getattr(self, f"_{verb.rstrip('_')}")
            if verb in CANCELLED and self._rng.random() < 0.15:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(0.0, 0.3)):
                        await work()
            else:
                await work()

    # Tuples

    async def _record(
        self, verb: str, kind: str, detail: str, work: Coroutine[Any, Any, Any]
    ) -> Any:
        assert self._member.life is not None
        act = LimeAct(verb, self.id, self._member.life, kind, detail)
        return await self._world.history.record(act, work)

    async def _write(self, space: LimeTupleSpace, kind: str, to: str | None = None) -> None:
        assert self._member.life is not None
        entry = (kind, self._world.number())
        act = LimeAct("out", self.id, self._member.life, kind, f"in {space.name} to {to}")
        act.tuples = [entry]
        await self._world.history.record(
            act, space.out(entry, None if to is None else AgentLocation(to))
        )

    async def _out(self) -> None:
        await self._write(self._space(), JOB)

    async def _mail(self) -> None:
        await self._write(self._space(), MAIL, self._rng.choice(self._world.known))

    async def _news(self) -> None:
        await self._write(self._space(), NEWS)

    async def _letter(self) -> None:
        await self._write(self._space(), LETTER, self._rng.choice(self._world.known))

    async def _parcel(self) -> None:
        await self._write(self.main, PARCEL, self._rng.choice(self._world.known))

    async def _command(self) -> None:
        await self._write(self.main, COMMAND, self._rng.choice(self._world.known))

    async def _in(self) -> None:
        await self._get("in_", wait=self._rng.choice((0.1, 0.5, 2.0)))

    async def _rd(self) -> None:
        await self._get("rd", wait=self._rng.choice((0.1, 0.5)))

    async def _inp(self) -> None:
        await self._get("inp")

    async def _rdp(self) -> None:
        await self._get("rdp")

    async def _ing(self) -> None:
        await self._get("ing")

    async def _rdg(self) -> None:
        await self._get("rdg")

    async def _get(self, verb: str, **options: Any) -> None:
        space, kind = self._space(), self._rng.choice((JOB, MAIL))
        if options and not space.is_shared:
            return
        current, destination = self._projection()
        call = getattr(space, verb)
        await self._record(
            verb,
            kind,
            f"in {space.name} at {_said(current)}, {_said(destination)}",
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

    # What must not be seen

    async def _count_marks(self) -> None:
        """The marks are those of all agents that share the space, each once: at every host of one
        membership, and of each host as it was at one moment meanwhile."""
        if not self.main.is_shared or self._world.plan.over != "collect":
            return
        first, begin = self._memberships_before(), self._world.loop.time()
        found = await self._record("rdg", MARK, "", self.main.rdg((MARK, str)))
        if found is None:
            return
        seen = [agent for _, agent in found]
        end = self._world.loop.time()

        def is_whole(watched: Watched) -> bool:
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
        self._claim(first, is_whole, Fault("half a group", text))

    async def _look_astray(self) -> None:
        """Nothing is away from the agent that it is for, if that is in the group; not even in the
        first moment after it has come."""
        member = self._member
        await self._halted()
        astray = sorted(homes_away(member, MAIN, MAIL))
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

        def is_away(watched: Watched) -> bool:
            host = sharers(member, watched.membership, MAIN).get(destination, member.name)
            states = self._world.member(host).sharing(MAIN, watched.since, end)
            is_there = all(destination in agents for agents in states)
            return host == member.name or host in watched.cut or not is_there

        names = ", ".join(map(name_of, found))
        text = f"{self.id} saw {names} at {member.name}, for {destination}"
        self._claim(first, is_away, Fault("half engaged", text))

    async def _read_all(self) -> None:
        """What nobody takes, and somebody in the group has, is seen; it may be private meanwhile,
        if someone shares the space or does so no more."""
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
        """Sometimes: until operations are held, so that the next one comes right after that."""
        if self._rng.random() < 0.5:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while not self._member.server.group.halted:
                        await asyncio.sleep(0.002)

    def _memberships_before(self) -> int:
        return max(len(self._member.watcher.memberships) - 1, 0)

    def _claim(self, first: int, holds: Callable[[Watched], bool], fault: Fault) -> None:
        """This was so in one of the memberships that an operation has met. Who is cut off in one
        may be known a little later."""
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
        """Let it forget to which news it has reacted. What it was told is heard before."""
        await self.news.disable()
        await asyncio.sleep(0.3)
        self._world.history.enabled(self.id, "news")
        await self.news.enable()

    async def _renew(self) -> None:
        """A ONCE reaction that has fired is registered again."""
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
        """Take what has come, if nobody else has."""
        self._world.history.reacted(self.id, "parcels", event.tuple, once=False)
        await self._record("inp", PARCEL, "that came", self.main.inp(event.tuple))

    def obey(self, event: ReactionEvent) -> None:
        """In one step the command is taken and done."""
        assert event.step is not None
        if event.step.inp(event.tuple) is not None:
            event.step.out((DONE, event.tuple[1]))

    # Coming and going

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
        """What it has goes with it."""
        await lime.set_shared([self.main, self.side], False)
        for space in (self.main, self.side):
            for kind in (JOB, MAIL, NEWS, LETTER, PARCEL, COMMAND, DONE, MARK):
                self._world.history.sunk.update(await space.rdg((kind, str)))
        self._world.history.gone.add(self.id)
        self._world.note(f"{self.id} ends")
        await self.end()


class BlockedRead(lime.Agent):
    """Waits for one tuple, which is written when all hosts have met again."""

    def __init__(self) -> None:
        self.served = False

    async def run(self) -> None:
        space = LimeTupleSpace(MAIN)
        await space.set_shared(True)
        await space.in_((LATE, self.host.host.id))
        self.served = True


async def write_late(member: SimulatedLimeHost, entry: Tuple) -> None:
    """Write a tuple at this host, by an agent that has come for it."""
    agent = await member.host.agent("writer")
    space = LimeTupleSpace(MAIN, agent)
    await space.set_shared(True)
    await space.out(entry)


def _said(location: AgentLocation | HostLocation | None) -> str:
    return "any" if location is None else location.id
