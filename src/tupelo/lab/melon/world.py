"""A world of MELON: hosts on a virtual network, with folders or without, and processes at each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from tupelo.federation.hosts.core import HostCore
from tupelo.federation.identity.keys import id_of
from tupelo.federation.spaces.hosted import Doubt
from tupelo.lab.life import ProgramLife
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.melon.history import MelonHistory, MelonResult
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.simulation import Simulation
from tupelo.lab.world import (
    ANSWER_SECONDS,
    DOUBT_SECONDS,
    HEARTBEAT_SECONDS,
    PORT,
    SlowFlusher,
    SpaceUnderTest,
)
from tupelo.models.melon import Bound, Copies, Melon
from tupelo.space.port import port_of

SECRET = "hush! "
"""The text of every directed message begins so, and its number follows."""
SHAPES = ("mesh", "mesh", "row", "star")


@dataclass(frozen=True)
class MelonConfig:
    """What a seed has decided about a world before it begins."""

    hosts: int
    durable: frozenset[int]
    melons: int
    """at each host"""

    shape: str
    """who knows whom"""

    bounds: tuple[Bound | None, ...]
    copies: tuple[Copies | None, ...]
    """of each host"""

    is_quiet: bool
    """Does nothing fail?"""

    load_seconds: float
    delay: tuple[float, float]
    disk_seconds: float
    """No commit takes longer."""


def plan_world(rng: Random) -> MelonConfig:
    hosts = rng.choice((2, 3, 3, 4, 5))
    is_bounded, is_copied = rng.random() < 0.4, rng.random() < 0.7
    return MelonConfig(
        hosts=hosts,
        durable=frozenset(number for number in range(hosts) if rng.random() < 0.6),
        melons=rng.choice((1, 2, 2, 3)),
        shape=rng.choice(SHAPES),
        bounds=tuple(_bound(rng) if is_bounded else None for _ in range(hosts)),
        copies=tuple(_copies(rng) if is_copied else None for _ in range(hosts)),
        is_quiet=rng.random() < 0.15,
        load_seconds=rng.uniform(3.0, 9.0),
        delay=rng.choice(((0.001, 0.01), (0.001, 0.1), (0.02, 0.05))),
        disk_seconds=rng.choice((0.0, 0.01, 0.1)),
    )


def _bound(rng: Random) -> Bound | None:
    count, order = rng.choice((3, 6, 15)), rng.choice(("fifo", "lru"))
    return rng.choice(
        (None, Bound(count=count, order=order), Bound(bytes=60 * count, order=order))  # type: ignore[arg-type]
    )


def _copies(rng: Random) -> Copies | None:
    rooms: list[Bound | Literal[0] | None] = [None, None, None, 0, Bound(count=8)]
    room = rng.choice(rooms)
    return rng.choice((None, *(Copies(hosts, room) for hosts in (0, 1, 1, 2, 9))))


class TappedNetwork(VirtualNetwork):
    """A network on whose links someone listens."""

    hears: Callable[[bytes], None]

    def note_frame(self, source: str, target: str, content: bytes) -> None:
        super().note_frame(source, target, content)
        self.hears(content)


class MelonHost:
    """A host of the world, through all its lives."""

    def __init__(self, world: MelonWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.name = "abcdefgh"[number]
        self.address = f"{self.name}:{PORT}"
        self.durable = number in world.plan.durable
        self.bound = world.plan.bounds[number]
        self.copies = world.plan.copies[number]
        self.identity = world.new_identity(self.name)
        self.lives = 0
        self.life: ProgramLife | None = None
        self.core: HostCore
        self.door: SpaceUnderTest
        self.melons: dict[str, Melon] = {}
        """The processes that are there, by name."""
        self._opened = 0

    @property
    def is_up(self) -> bool:
        return self.life is not None

    @property
    def folder(self) -> Path | None:
        return self.world.folder / self.name if self.durable else None

    async def start(self) -> None:
        """A new life, on what the last one has left on disk."""
        world = self.world
        self.lives += 1
        self.melons = {}
        self.life = ProgramLife(world.loop, world.network, self.name)
        await self.life.start(self._start(self.life), f"{self.name} starts")
        world.note(f"{self.name} has started, life {self.lives}")

    async def _start(self, life: ProgramLife) -> None:
        world = self.world
        self.core = HostCore(
            self.name,
            host_id=id_of(self.identity.key),
            network=life,
            clock=world.clock,
            rng=Random(f"{world.seed} {self.name} {self.lives}"),
            new_id=world.new_id,
            listen=self.address,
            path=self.folder,
            peers=[other.address for other in world.members if world.knows(self, other)],
            doubt=Doubt(seconds=DOUBT_SECONDS),
            heartbeat=HEARTBEAT_SECONDS,
            answer_seconds=ANSWER_SECONDS,
            commit_in_place=True,
            durability="process" if self.durable else None,
        )
        self.core.identity = self.identity
        await self.core.start()
        self.door = SpaceUnderTest(self.core)
        for _ in range(world.plan.melons):
            self._open()
        if self.durable and world.plan.disk_seconds:
            self._slow_down()

    def open(self) -> str:
        """One more process."""
        assert self.life is not None
        return self.life.call(self._open)

    def _open(self) -> str:
        self._opened += 1
        name = f"{self.name}{self._opened}"
        melon = self.melons[name] = Melon(self.door, bound=self.bound, copies=self.copies)
        if len(self.melons) == 1:
            assert self.life is not None
            self.life.start(self._hear_collected(melon), f"{self.name} hears what is collected")
        return name

    async def _hear_collected(self, melon: Melon) -> None:
        history = self.world.history
        async for one in melon.collected:
            message = one.message
            if one.kind == "copy":
                if not isinstance(message, str):
                    self.world.note(f"{self.name} has no room for a copy of {message}")
                    history.given_way.add(message)
                continue
            if one.kind == "directed":
                message = self.world.host_of(message)
            self.world.note(f"{self.name} has collected {message}, {one.kind}")
            history.told.append(MelonResult(self.name, one.kind, message))

    async def close(self, name: str) -> None:
        """One process ends. The first one stays: it hears what is collected."""
        await self.melons.pop(name).close()

    def _slow_down(self) -> None:
        """Let commits take time, as on a disk."""
        for hosted in self.core.spaces.values():
            if hosted.durable:
                seconds = self.world.plan.disk_seconds
                hosted.port.flusher = SlowFlusher(hosted.port, self.core.rng, seconds)

    async def crash(self) -> None:
        life = self.life
        if life is not None:
            self.world.note(f"{self.name} crashes")
            self.world.look(self)
            self.life = None
            unsettled = self.core.federation.unsettled
            owed = [one.name for one in self.world.members if unsettled(one.core.id)]
            self.world.history.ended(self.name, owed)
            ports = [hosted.port for hosted in self.core.spaces.values()]
            await life.kill([*ports, port_of(self.core.deciding.space)])

    async def leave(self) -> None:
        """Say goodbye, close the spaces, and end."""
        life = self.life
        if life is not None:
            self.world.note(f"{self.name} leaves")
            self.world.look(self)
            self.life = None
            life.leaving = True
            self.world.history.ended(self.name)
            await life.start(self.core.stop("for a while"), f"{self.name} leaves")
            await life.end()
            self.world.network.crash(self.name)  # what is left of its links
            self.world.history.ended(self.name)  # Until now there was something that could end.


class MelonWorld(Simulation[MelonHost]):
    """Everything there is in one run."""

    network: TappedNetwork

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.plan = plan_world(Random(f"{seed} plan"))
        super().__init__(loop, seed, TappedNetwork(loop, delay=self.plan.delay, trace_max=100_000))
        self.members = [MelonHost(self, number) for number in range(self.plan.hosts)]
        self.history = MelonHistory(self.note, {one.name for one in self.members if one.durable})
        self.history.bounded = {one.name for one in self.members if one.bound}
        self.history.copying = {one.name for one in self.members if one.copies}
        self.history.tight = {
            one.name for one in self.members if one.copies and one.copies.room is not None
        }
        self.look: Callable[[MelonHost], None] = lambda member: None
        """Called before a host ends, to see what is there."""

    def knows(self, one: MelonHost, other: MelonHost) -> bool:
        """Do these two meet, if nothing fails? The one with the higher number dials, in a mesh
        both."""
        match self.plan.shape:
            case "row":
                return one.number == other.number + 1
            case "star":
                return other.number == 0 and one is not other
        return one is not other

    def meets(self, one: MelonHost, other: MelonHost) -> bool:
        return self.knows(one, other) or self.knows(other, one)

    def host_of(self, key: str) -> str:
        """The host of an identity."""
        return next(one.name for one in self.members if one.identity.key == key)

    async def start(self) -> None:
        for member in self.members:
            await member.start()
        await self.until(self.all_engaged)

    def all_engaged(self) -> bool:
        return all(
            one.is_up
            and all(
                other.core.id in one.core.peers for other in self.members if self.meets(one, other)
            )
            for one in self.members
        )


# Faults


async def nemesis(world: MelonWorld, rng: Random, seconds: float) -> None:
    """Faults, one after the other, as the seed will have them."""
    kinds = ("groups", "groups", "heal", "cut", "cut", "crash", "return", "slow")
    end = world.loop.time() + seconds
    while (pause := rng.expovariate(1.2)) + world.loop.time() < end:
        await asyncio.sleep(pause)
        if world.plan.is_quiet:
            continue
        world.history.faults.append(world.history.tick())
        kind, _ = await world.befall(rng, kinds, slower=(1, 10, 50))
        if kind == "groups":
            groups: dict[int, list[str]] = {}
            for member in world.members:
                groups.setdefault(rng.randrange(3), []).append(member.name)
            world.network.partition(*groups.values())
        for member in world.members:
            if member.is_up:
                world.look(member)
    if not world.plan.is_quiet:
        await asyncio.sleep(max(0.0, end - world.loop.time()))


async def heal(world: MelonWorld) -> None:
    """All faults are over, and everyone is back."""
    world.history.faults.append(world.history.tick())
    world.calm_down()
    for member in world.members:
        if not member.is_up:
            await member.start()
