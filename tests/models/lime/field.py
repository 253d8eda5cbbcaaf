"""A field of hosts with LIME, on a virtual network whose links a test draws."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from tupelo.federation.hosts.core import HostCore
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.models.lime.server import Server
from tupelo.space.clock import LoopClock

HEARTBEAT_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
QUIET_SECONDS = 0.25
"""Longer than anything that was begun takes, with the delays of this network."""


class Field:
    """Hosts by their names, all started; to begin with, none hears another."""

    def __init__(self, loop: VirtualLoop, names: Iterable[str], **options: Any) -> None:
        self.loop = loop
        self.network = VirtualNetwork(loop, delay=(0.001, 0.004))
        self.clock = LoopClock(loop)
        self.names = list(names)
        self.cores: dict[str, HostCore] = {}
        self.servers: dict[str, Server] = {}
        self._options = options
        self._links: set[frozenset[str]] = set()

    async def start(self) -> None:
        self.relink([])
        for name in self.names:
            core = self.cores[name] = HostCore(
                name,
                host_id=name,
                network=self.network.place(name),
                clock=self.clock,
                rng=Random(f"{self.loop.seed} {name}"),
                new_id=lambda: f"id{self.loop.number('id')}",
                listen=f"{name}:7700",
                # One of two that may hear each other dials.
                peers=[f"{other}:7700" for other in self.names if other < name],
                heartbeat=HEARTBEAT_SECONDS,
                commit_in_place=True,
            )
            await core.start()
            self.servers[name] = Server(core, **self._options)
            await self.servers[name].start()

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.stop()
        for core in self.cores.values():
            await core.stop()

    def relink(self, links: Iterable[Iterable[str]], *, silently: bool = False) -> None:
        """From now on these hosts hear each other, and no others. What is cut off is told at once,
        or found out by its silence."""
        before, self._links = self._links, {frozenset(link) for link in links}
        alone = [{name} for name in self.names]
        self.network.partition(*map(sorted, self._links), *alone)
        for a, b in map(sorted, before - self._links):
            if not silently:
                self.network.cut(a, b)

    def _is_linked(self) -> bool:
        """Has everyone met those whom it hears, and found out whom it does not hear any more?"""
        met = {frozenset((name, peer)) for name, core in self.cores.items() for peer in core.peers}
        return met == self._links

    async def until(self, condition: Callable[[], bool], what: str = "it") -> None:
        end = self.loop.time() + PATIENCE_SECONDS
        while not condition():
            assert self.loop.time() < end, f"{what} does not come about"
            await asyncio.sleep(0.05)

    async def settle(self, groups: dict[str, frozenset[str]]) -> None:
        """Until every host is in a group with these, and nothing is under way."""

        def is_grouped() -> bool:
            return self._is_linked() and all(
                frozenset(self.servers[name].group.membership.members) == group
                for name, group in groups.items()
            )

        await self.until(is_grouped, f"{ {n: sorted(g) for n, g in groups.items()} }")
        for server in self.servers.values():
            async with server.group.operating():
                pass
        await asyncio.sleep(QUIET_SECONDS)
