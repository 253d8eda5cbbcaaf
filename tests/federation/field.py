"""Hosts in a virtual network, for tests that need neither sockets nor patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tupelo.federation.hosts.core import HostCore
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.world import SpaceUnderTest
from tupelo.space.clock import LoopClock


class Field:
    """Hosts in a virtual network, all of which have a space "jobs"."""

    def __init__(self, loop: VirtualLoop, heartbeat: float = 0.5) -> None:
        self.network = VirtualNetwork(loop)
        self.rng = Random(loop.seed if hasattr(loop, "seed") else 1)
        self.cores: list[HostCore] = []
        self.spaces: list[Any] = []
        self._clock = LoopClock(loop)
        self._heartbeat = heartbeat

    def _new_id(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    async def host(self, name: str) -> Any:
        core = HostCore(
            name,
            host_id=self._new_id(),
            network=self.network.place(name),
            clock=self._clock,
            rng=self.rng,
            new_id=self._new_id,
            listen=f"{name}:7700",
            peers=[other.address for other in self.cores],
            heartbeat=self._heartbeat,
        )
        await core.start()
        self.cores.append(core)
        self.spaces.append(SpaceUnderTest(core).space("jobs"))
        return self.spaces[-1]

    async def meet(self) -> None:
        async with asyncio.timeout(120):
            while any(
                len(core.peers) < len(self.cores) - 1
                or any("jobs" not in peer.spaces for peer in core.peers.values())
                for core in self.cores
            ):
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        for core in self.cores:
            await core.stop()


def played(
    main: Callable[[Field], Coroutine[Any, Any, None]], hosts: int = 2, seed: int = 1
) -> None:
    """Run this among so many hosts that have met."""

    async def all_of_it(loop: VirtualLoop) -> None:
        field = Field(loop)
        try:
            for name in "abcdef"[:hosts]:
                await field.host(name)
            await field.meet()
            await main(field)
        finally:
            await field.stop()

    run(all_of_it, seed)


def peer_session_cache(field: Field, asked: int = 1, asker: int = 0) -> Any:
    """What one host keeps of the sessions of another."""
    return field.cores[asked].peers[field.cores[asker].id]._sessions
