"""Hosts on a virtual network that have a feed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from tupelo.federation.hosts.core import HostCore
from tupelo.federation.identity.keys import Identity, id_of
from tupelo.federation.replication.feed import Feed, host_of
from tupelo.federation.replication.feeds import Replication, replication_of
from tupelo.federation.replication.placement import CopyAll, LaneRules, Policy
from tupelo.lab.life import ProgramLife
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.network import VirtualNetwork
from tupelo.space.loopclock import LoopClock

FEED = "news"
PATIENCE_SECONDS = 60.0

Answer = TypeVar("Answer")


class Citizen:
    """One host, through all its lives."""

    def __init__(self, town: Town, name: str, knows: Iterable[str]) -> None:
        self.name = name
        self.identity = Identity.new() if town.identities else None
        self.id = name
        if self.identity is not None:
            self.id = id_of(self.identity.key)
            town.network.identities[name] = self.identity.key
        self.knows = list(knows)
        self.lives = 0
        self.life: ProgramLife | None = None
        self.core: HostCore
        self.replication: Replication
        self.feed: Feed
        self._town = town

    async def start(self) -> None:
        self.lives += 1
        self.life = ProgramLife(self._town.loop, self._town.network, self.name)
        await self.life.start(self._start(self.life), f"{self.name} starts")

    async def _start(self, life: ProgramLife) -> None:
        town = self._town
        self.core = HostCore(
            self.name,
            host_id=self.id,
            network=life,
            clock=town.clock,
            rng=Random(f"{town.loop.seed} {self.name} {self.lives}"),
            new_id=lambda: f"id{town.loop.number('id')}",
            listen=self.name,
            peers=self.knows,
            path=None if town.folder is None else town.folder / self.name,
            heartbeat=0.5,
            answer_seconds=2.0,
            commit_in_place=True,
        )
        self.core.identity = self.identity
        self.replication = replication_of(self.core)
        lanes = None if town.lanes is None else town.lanes(self.name)
        self.feed = self.replication.feed(FEED, town.policy, lanes=lanes)
        await self.core.start()

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
            self._town.network.crash(self.name)

    def call(self, function: Callable[..., Answer], *args: Any) -> Answer:
        """As this host would."""
        assert self.life is not None
        return self.life.call(function, *args)

    def do(self, work: Any) -> asyncio.Task[Any]:
        assert self.life is not None
        return self.life.start(work, f"at {self.name}")

    async def write(self, *entries: tuple[Any, ...], lease: float | None = None) -> None:
        await self.do(self._write(entries, lease))

    async def _write(self, entries: Any, lease: float | None) -> None:
        for entry in entries:
            await self.core.spaces[FEED].door.write(entry, lease=lease)

    async def take(self, template: Any) -> Any:
        return await self.do(self.core.spaces[FEED].door.take(template, wait=0))

    def copies(self, source: str | None = None) -> list[tuple[Any, ...]]:
        """The entries that are in its space of copies, in order; of one host, if it is given."""
        streams = self.feed.exchange.streams.values()
        chosen = [one for one in streams if source is None or host_of(one.source) == source]
        mine = {entry for one in chosen for entry in one.items.values() if not entry.gone}
        store = self.feed.copies.port._core.store
        return [entry.fields for entry in store if entry in mine]


class Town:
    """Citizens, by name."""

    def __init__(
        self,
        loop: VirtualLoop,
        edges: Iterable[str],
        names: str,
        policy: Policy,
        folder: Path | None,
        lanes: Callable[[str], LaneRules] | None,
        identities: bool,
    ) -> None:
        self.lanes = lanes
        self.identities = identities
        self.loop = loop
        self.network = VirtualNetwork(loop)
        self.clock = LoopClock(loop)
        self.policy = policy
        self.folder = folder
        pairs = list(edges)
        everyone = sorted({*names, *"".join(pairs)})
        self.citizens = {
            name: Citizen(self, name, [pair[1] for pair in pairs if pair[0] == name])
            for name in everyone
        }

    def __getitem__(self, name: str) -> Citizen:
        return self.citizens[name]

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        for _ in range(int(PATIENCE_SECONDS / 0.05)):
            if condition():
                return
            await asyncio.sleep(0.05)
        found = {n: one.feed.marks for n, one in self.citizens.items() if one.life is not None}
        raise AssertionError(f"it never came to be {what}: {found}")

    async def alike(self, names: str) -> None:
        """Wait until these have the same."""
        citizens = [self[name] for name in names]

        def are_alike() -> bool:
            marks = [
                {source: mark for source, mark in one.feed.marks.items() if mark.upto}
                for one in citizens
            ]
            drawn = all(not one.feed._capture.awake and not one.feed._drawing for one in citizens)
            return drawn and all(mark == marks[0] for mark in marks)

        await self.until(are_alike, f"alike at {names}")


def play(
    scene: Callable[[Town], Awaitable[None]],
    *edges: str,
    names: str = "",
    policy: Policy | None = None,
    folder: Path | None = None,
    seed: int = 1,
    lanes: Callable[[str], LaneRules] | None = None,
    identities: bool = False,
) -> None:
    """A scene with hosts that are engaged as these pairs say ("ab": a dials b); what they write is
    parted into `lanes`, as this says of each. With `identities` they prove who they are."""

    async def main(loop: VirtualLoop) -> None:
        town = Town(loop, edges, names, policy or CopyAll(), folder, lanes, identities)
        for one in town.citizens.values():
            await one.start()
        try:
            await scene(town)
        finally:
            for one in town.citizens.values():
                await one.stop()

    run(main, seed)
