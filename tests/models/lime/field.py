"""Hosts with LIME, on a virtual network whose links a test draws."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tests.virtual import VirtualFederation, VirtualLoop, WorldHost
from tupelo.federation.hosts.core import HostCore
from tupelo.lab.network import VirtualNetwork
from tupelo.models.lime.server import Server

HEARTBEAT_SECONDS = 1.0
QUIET_SECONDS = 0.25
"""Longer than anything that was begun takes, with the delays of this network."""


class ServerHost(WorldHost):
    """A host with LIME."""

    world: ServerWorld
    server: Server

    async def open(self) -> None:
        self.server = Server(self.core, **self.world.server_options)
        await self.server.start()

    async def leave(self) -> None:
        await self.server.stop()
        await super().leave()


class ServerWorld(VirtualFederation[ServerHost]):
    """Hosts with LIME; to begin with, none hears another."""

    def __init__(self, loop: VirtualLoop, names: Iterable[str], **options: Any) -> None:
        self.names = list(names)
        self.server_options = options
        self._links: set[frozenset[str]] = set()
        # One of two that may hear each other dials.
        edges = [name + other for name in self.names for other in self.names if other < name]
        network = VirtualNetwork(loop, delay=(0.001, 0.004))
        super().__init__(
            loop, ServerHost, edges, self.names, network=network, heartbeat=HEARTBEAT_SECONDS
        )

    @property
    def servers(self) -> dict[str, Server]:
        return {host.name: host.server for host in self.members}

    @property
    def cores(self) -> dict[str, HostCore]:
        return {host.name: host.core for host in self.members}

    async def start(self) -> None:
        self.relink([])
        await super().start()

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
