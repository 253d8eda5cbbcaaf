"""The same garden on real sockets: hosts of this process, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tests.models.melon.garden import PATIENCE_SECONDS, Bed, Garden
from tupelo import aio
from tupelo.models.melon import Melon

BRIEFLY_SECONDS = 0.2


class SocketBed(Bed):
    """A host that listens, and its first Melon."""

    def __init__(self, garden: Garden, name: str) -> None:
        super().__init__(garden, name, ())
        self.door = aio.Host(name, listen=0)

    async def start(self) -> None:
        await self.door.start()
        self.host: Any = self.door
        self.core = self.door._core
        self.melon = Melon(self.door, **self._garden.options)

    def another(self) -> Melon:
        return Melon(self.door)

    async def stop(self) -> None:
        await self.door.close()

    def do(self, work: Any) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)


class SocketGarden(Garden):
    """Beds whose time is ours: what takes long in virtual time is made short here."""

    def __init__(self, names: str, options: dict[str, Any]) -> None:
        self.identities = False
        self.options = options
        self.beds = {name: SocketBed(self, name) for name in names}

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, BRIEFLY_SECONDS))

    def soon(self, seconds: float) -> float:
        return min(seconds, BRIEFLY_SECONDS)

    async def promptly(self, work: Awaitable[Any]) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await work

    async def met(self, *pairs: str) -> None:
        for pair in pairs:
            one, other = self[pair[0]], self[pair[1]]
            await self.until(partial(_know_each_other, one, other), f"that {pair} meet")


def _know_each_other(one: Bed, other: Bed) -> bool:
    return _knows(one, other) and _knows(other, one)


def _knows(one: Bed, other: Bed) -> bool:
    peer = one.core.peers.get(other.core.id)
    return peer is not None and {"melon", "melon.written"} <= set(peer.spaces)


def play_on_sockets(
    scene: Callable[[Garden], Awaitable[None]], *edges: str, names: str = "", **options: Any
) -> None:
    """A scene with hosts that are engaged as these pairs say, and have met."""

    async def main() -> None:
        garden = SocketGarden("".join(sorted({*names, *"".join(edges)})), options)
        started: list[Bed] = []
        try:
            for bed in garden.beds.values():
                await bed.start()
                started.append(bed)
            for pair in edges:
                address = garden[pair[1]].host.address
                assert address is not None
                garden[pair[0]].host.engage(address)
            await garden.met(*edges)
            await scene(garden)
        finally:
            for bed in started:
                await bed.stop()

    asyncio.run(main())
