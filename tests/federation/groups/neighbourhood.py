"""Hosts on a virtual network, each engaged with some of the others, and their groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

from tupelo.federation.groups.group import Group, group_of
from tupelo.federation.groups.membership import Membership
from tupelo.federation.groups.routing import PartSender
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.limits import Limits
from tupelo.lab.life import ProgramLife
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.network import VirtualNetwork
from tupelo.space.loopclock import LoopClock

PART = "test"
HEARTBEAT_SECONDS = 0.5
PATIENCE_SECONDS = 60.0


class Recorder:
    """A part of a group that writes down what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: Any = 0
        self.memberships: list[Membership] = []
        self.settled: list[Membership] = []
        self.abandoned: list[Membership] = []
        self.heard_bodies: list[tuple[str, str, Any]] = []
        self.cut_hosts: list[frozenset[str]] = []
        self.on_settle: Callable[[Membership], Awaitable[None]] | None = None
        self.on_asked: Callable[[str, Any], Awaitable[Any]] | None = None
        self.on_heard: Callable[[str, Any], None] | None = None

    def metadata(self) -> Any:
        return self.value

    def install(self, membership: Membership) -> None:
        self.memberships.append(membership)

    async def settle(self, membership: Membership) -> None:
        try:
            if self.on_settle is not None:
                await self.on_settle(membership)
        except asyncio.CancelledError:
            self.abandoned.append(membership)
            raise
        self.settled.append(membership)

    def heard(self, neighbour: str, source: str, body: Any) -> None:
        self.heard_bodies.append((neighbour, source, body))
        if self.on_heard is not None:
            self.on_heard(neighbour, body)

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        if self.on_asked is not None:
            return await self.on_asked(source, body)
        return [self.name, source, body]

    def cut(self, hosts: frozenset[str]) -> None:
        self.cut_hosts.append(hosts)


class Resident:
    """One host, through all its lives."""

    def __init__(self, neighbourhood: Neighbourhood, name: str, knows: Iterable[str]) -> None:
        self.name = name
        self.knows = list(knows)
        self.lives = 0
        self.limits = Limits()
        self.life: ProgramLife | None = None
        self.core: HostCore
        self.group: Group
        self.part: Recorder
        self.voice: PartSender
        self._neighbourhood = neighbourhood

    async def start(self) -> None:
        near = self._neighbourhood
        self.lives += 1
        self.life = ProgramLife(near.loop, near.network, self.name)
        await self.life.start(self._start(self.life), f"{self.name} starts")

    async def _start(self, life: ProgramLife) -> None:
        near = self._neighbourhood
        self.core = HostCore(
            self.name,
            host_id=self.name,
            network=life,
            clock=near.clock,
            rng=Random(f"{near.loop.seed} {self.name} {self.lives}"),
            new_id=lambda: f"id{near.loop.number('id')}",
            listen=self.name,
            peers=self.knows,
            heartbeat=HEARTBEAT_SECONDS,
            answer_seconds=2.0,
            commit_in_place=True,
            limits=self.limits,
        )
        self.group = group_of(self.core)
        self.part = Recorder(self.name)
        self.voice = self.group.part(PART, self.part)
        await self.core.start()

    @property
    def is_up(self) -> bool:
        return self.life is not None

    async def crash(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            await life.kill([hosted.port for hosted in self.core.spaces.values()])

    async def stop(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            await life.start(self.core.stop(), f"{self.name} stops")
            await asyncio.sleep(0.1)  # for its last words
            await life.end()
            self._neighbourhood.network.crash(self.name)

    def do(self, work: Any) -> asyncio.Task[Any]:
        """Something that is done at this host."""
        assert self.life is not None
        return self.life.start(work, f"at {self.name}")

    def members(self) -> str:
        return "".join(self.group.membership.members)

    def metadata_of(self) -> dict[str, Any]:
        return {
            host: one.metadata_of.get(PART) for host, one in self.group.membership.members.items()
        }


class Neighbourhood:
    """Residents, by name."""

    def __init__(self, loop: VirtualLoop, edges: Iterable[str], names: str = "") -> None:
        self.loop = loop
        self.network = VirtualNetwork(loop)
        self.clock = LoopClock(loop)
        pairs = list(edges)
        everyone = sorted({*names, *"".join(pairs)})
        self.residents = {
            name: Resident(self, name, [pair[1] for pair in pairs if pair[0] == name])
            for name in everyone
        }

    def __getitem__(self, name: str) -> Resident:
        return self.residents[name]

    async def start(self, names: str = "") -> None:
        for name in names or "".join(self.residents):
            await self[name].start()

    async def agreed(self, *groups: str) -> None:
        """Wait until these are the groups, and operations go on in each."""
        for _ in range(int(PATIENCE_SECONDS / 0.05)):
            if all(self.is_agreed(group) for group in groups):
                return
            await asyncio.sleep(0.05)
        found = {name: one.group.membership for name, one in self.residents.items() if one.is_up}
        raise AssertionError(f"they do not agree on {groups}: {found}")

    def is_agreed(self, names: str) -> bool:
        residents = [self[name] for name in names]
        return (
            all(one.members() == "".join(sorted(names)) for one in residents)
            and len({one.group.membership.id for one in residents}) == 1
            and not any(one.group.halted for one in residents)
        )

    async def stop(self) -> None:
        for one in self.residents.values():
            await one.stop()


def play(
    scene: Callable[[Neighbourhood], Awaitable[None]], *edges: str, names: str = "", seed: int = 1
) -> None:
    """A scene with hosts that are engaged as these pairs say ("ab": a dials b)."""

    async def main(loop: VirtualLoop) -> None:
        neighbourhood = Neighbourhood(loop, edges, names)
        await neighbourhood.start()
        try:
            await scene(neighbourhood)
        finally:
            await neighbourhood.stop()

    run(main, seed)
