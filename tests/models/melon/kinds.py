"""The world on every kind of space: a Melon at each of the hosts that a module's tests share, or
at a client of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.models.melon.world import PATIENCE_SECONDS, MelonHost, MelonWorld
from tests.models.neighbours import Neighbour, Neighbourhood
from tupelo.federation.names import companion_name
from tupelo.models.melon import Melon

BRIEFLY_SECONDS = 0.05


class KindHost(MelonHost):
    """A neighbour and its first Melon."""

    def __init__(self, neighbour: Neighbour, name: str, space: str, melon: Melon) -> None:
        self.neighbour = neighbour
        self.name = name
        self.core = neighbour.host.core
        self.melon = melon
        self._space = space

    async def another(self) -> Melon:
        melon: Melon = await self.neighbour.open(Melon, self._space)
        return melon

    async def space(self) -> Any:
        return await self.neighbour.space(self._space)

    def kept(self, kind: str) -> Any:
        return self.core.spaces[companion_name(kind, self._space)].door

    def do(self, work: Any) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)


class KindWorld(MelonWorld):
    """Hosts whose time is ours: what takes long in virtual time is made short here."""

    def __init__(self, members: list[KindHost], space: str) -> None:
        self.members = list(members)
        self.spaces = {space, companion_name("written", space)}

    async def until(self, condition: Callable[[], object], what: str = "it") -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.01)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, BRIEFLY_SECONDS))

    def soon(self, seconds: float) -> float:
        return min(seconds, BRIEFLY_SECONDS)

    async def promptly(self, work: Awaitable[Any]) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await work


def play_on_kind(
    neighbourhood: Neighbourhood,
    place: tuple[str, str],
    scene: Callable[[MelonWorld], Awaitable[None]],
    *edges: str,
    names: str,
) -> None:
    """A scene with hosts that have met, or with a client of each."""

    async def main(neighbours: dict[str, Neighbour]) -> None:
        space = neighbourhood.new_name()
        members = []
        for name in names:
            melon = await neighbours[name].open(Melon, space)
            members.append(KindHost(neighbours[name], name, space, melon))
        world = KindWorld(members, space)
        await world.met(*edges)
        await scene(world)

    neighbourhood.play(place, main)
