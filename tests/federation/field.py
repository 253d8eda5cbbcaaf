"""Hosts in a virtual network, for tests that need neither sockets nor patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.virtual import VirtualFederation, VirtualLoop, WorldHost, play
from tupelo.federation.hosts.core import HostCore


class Field(VirtualFederation[WorldHost]):
    """Hosts in a virtual network, all of which have a space "jobs"."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, WorldHost, [])
        self.spaces: list[Any] = []

    @property
    def cores(self) -> list[HostCore]:
        return [host.core for host in self.members]

    async def host(self, name: str) -> Any:
        host = WorldHost(self, name, peers=[other.name for other in self.members])
        await host.start()
        self.members.append(host)
        self.spaces.append(host.api.space("jobs"))
        return self.spaces[-1]

    async def meet(self) -> None:
        async with asyncio.timeout(120):
            while any(
                len(core.peers) < len(self.cores) - 1
                or any("jobs" not in peer.spaces for peer in core.peers.values())
                for core in self.cores
            ):
                await asyncio.sleep(0.1)


def played(
    main: Callable[[Field], Coroutine[Any, Any, None]], hosts: int = 2, seed: int = 1
) -> None:
    """Run this among so many hosts that have met."""

    async def together(field: Field) -> None:
        for name in "abcdef"[:hosts]:
            await field.host(name)
        await field.meet()
        await main(field)

    play(Field, together, seed)


def peer_session_cache(field: Field, asked: int = 1, asker: int = 0) -> Any:
    """What one host keeps of the sessions of another."""
    return field.cores[asked].peers[field.cores[asker].id]._sessions


def kept_sessions(field: Field) -> list[Any]:
    """Each of the sessions of the first host that the second keeps."""
    return list(peer_session_cache(field)._kept.values())
