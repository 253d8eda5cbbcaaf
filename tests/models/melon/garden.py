"""Hosts on a virtual network, with a Melon each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Set
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import AsyncHost
from tupelo.federation.identity.keys import Identity, id_of
from tupelo.federation.names import companion_name
from tupelo.lab.life import ProgramLife
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.network import VirtualNetwork
from tupelo.models.melon import Melon
from tupelo.space.loopclock import LoopClock

PATIENCE_SECONDS = 60.0
MELON = "melon"


class VirtualHost(AsyncHost):
    """A host of the async door, on a core that is there."""

    def __init__(self, core: HostCore, identity: Identity | None) -> None:
        self._core = core
        core.identity = identity
        self._tasks = set()


class Bed:
    """One host, through all its lives, and its first Melon."""

    def __init__(self, garden: Garden, name: str, knows: Iterable[str]) -> None:
        self.name = name
        self.knows = list(knows)
        self.lives = 0
        self.life: ProgramLife | None = None
        self.identity = Identity.new() if garden.identities else None
        self.id = name
        if self.identity is not None:
            self.id = id_of(self.identity.key)
            garden.network.identities[name] = self.identity.key
        self.core: HostCore
        self.host: VirtualHost
        self.melon: Melon
        self._garden = garden

    @property
    def key(self) -> str:
        assert self.identity is not None
        return self.identity.key

    async def start(self) -> None:
        self.lives += 1
        self.life = ProgramLife(self._garden.loop, self._garden.network, self.name)
        await self.life.start(self._start(self.life), f"{self.name} starts")

    async def _start(self, life: ProgramLife) -> None:
        garden = self._garden
        self.core = HostCore(
            self.name,
            host_id=self.id,
            network=life,
            clock=garden.clock,
            rng=Random(f"{garden.loop.seed} {self.name} {self.lives}"),
            new_id=lambda: f"id{garden.loop.number('id')}",
            listen=self.name,
            peers=self.knows,
            path=None if garden.folder is None else garden.folder / self.name,
            heartbeat=0.5,
            answer_seconds=2.0,
            commit_in_place=True,
        )
        await self.core.start()
        self.host = VirtualHost(self.core, self.identity)
        self.melon = Melon(self.host, **garden.options | garden.own.get(self.name, {}))

    async def another(self) -> Melon:
        """One more process at this host."""
        assert self.life is not None
        return self.life.call(lambda: Melon(self.host))

    async def space(self) -> Any:
        """The space of what is stored."""
        return self.host.space(MELON)

    def kept(self, kind: str) -> Any:
        """The door of the space in which MELON keeps what was "written", or is "sealed"."""
        return self.core.spaces[companion_name(kind, MELON)].door

    async def crash(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            ports = [hosted.port for hosted in self.core.spaces.values()]
            await life.kill([*ports, self.core.deciding.space._port])

    async def stop(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            await life.start(self.core.stop(), f"{self.name} stops")
            await asyncio.sleep(0.1)
            await life.end()
            self._garden.network.crash(self.name)

    def do(self, work: Any) -> asyncio.Task[Any]:
        assert self.life is not None
        return self.life.start(work, f"at {self.name}")

    async def write(self, *messages: Any, **how: Any) -> None:
        for message in messages:
            await self.do(self.melon.write(message, **how))

    async def store(self, *messages: Any, **how: Any) -> None:
        for message in messages:
            await self.do(self.melon.store(message, **how))

    def read(self, template: Any, wait: float | None = 0) -> asyncio.Task[Any]:
        return self.do(self.melon.read(template, wait))

    def take(self, template: Any, wait: float | None = 0, **how: Any) -> asyncio.Task[Any]:
        return self.do(self.melon.take(template, wait, **how))

    def read_all(self, template: Any, wait: float | None = 0) -> asyncio.Task[Any]:
        return self.do(self.melon.read_all(template, wait))

    def take_all(self, template: Any, wait: float | None = 0) -> asyncio.Task[Any]:
        return self.do(self.melon.take_all(template, wait))


class Garden:
    """Beds, by name."""

    spaces: Set[str] = frozenset({MELON, companion_name("written", MELON)})
    """Those that each bed has."""

    def __init__(
        self,
        loop: VirtualLoop,
        edges: Iterable[str],
        names: str,
        folder: Path | None,
        identities: bool,
        options: dict[str, Any],
        own: dict[str, dict[str, Any]],
    ) -> None:
        self.own = own
        self.loop = loop
        self.network = VirtualNetwork(loop)
        self.clock = LoopClock(loop)
        self.folder = folder
        self.identities = identities
        self.options = options
        self._pairs = list(edges)
        everyone = sorted({*names, *"".join(self._pairs)})
        self.beds = {
            name: Bed(self, name, [pair[1] for pair in self._pairs if pair[0] == name])
            for name in everyone
        }

    def __getitem__(self, name: str) -> Bed:
        return self.beds[name]

    async def pause(self, seconds: float) -> None:
        """Let time pass, in which nothing should happen."""
        await asyncio.sleep(seconds)

    def soon(self, seconds: float) -> float:
        """How long to wait for what should not come."""
        return seconds

    async def promptly(self, work: Awaitable[Any]) -> Any:
        """What is there at once."""
        before = self.loop.time()
        answer = await work
        assert self.loop.time() - before < 1.0
        return answer

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        for _ in range(int(PATIENCE_SECONDS / 0.05)):
            if condition():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"it never came to be {what}")

    async def met(self, *pairs: str) -> None:
        """Wait until these have met, and know what spaces the other has."""
        for pair in pairs:
            one, other = self[pair[0]], self[pair[1]]
            have_met = partial(self._know_each_other, one, other)
            await self.until(have_met, f"that {pair[0]} and {pair[1]} meet")

    def _know_each_other(self, one: Bed, other: Bed) -> bool:
        return self._knows(one, other) and self._knows(other, one)

    def _knows(self, one: Bed, other: Bed) -> bool:
        peer = one.core.peers.get(other.core.id)
        return peer is not None and self.spaces <= set(peer.spaces)

    async def parted(self, *groups: str) -> None:
        """From now on only those in one of these groups hear each other."""
        self.network.partition(*groups)
        of = {name: group for group in groups for name in group}
        await self.until(
            lambda: all(
                of[name] == of[peer.name]
                for name, bed in self.beds.items()
                if bed.life is not None
                for peer in bed.core.peers.values()
            ),
            f"parted as {groups}",
        )


def play(
    scene: Callable[[Garden], Awaitable[None]],
    *edges: str,
    names: str = "",
    folder: Path | None = None,
    identities: bool = False,
    seed: int = 1,
    own: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> None:
    """A scene with hosts that are engaged as these pairs say ("ab": a dials b), and have met;
    `options` are those of their Melons, of which some have their `own`."""

    async def main(loop: VirtualLoop) -> None:
        garden = Garden(loop, edges, names, folder, identities, options, own or {})
        for bed in garden.beds.values():
            await bed.start()
        try:
            await garden.met(*edges)
            await scene(garden)
        finally:
            for bed in garden.beds.values():
                await bed.stop()

    run(main, seed)
