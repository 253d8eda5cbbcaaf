"""A world in virtual time: hosts with replicas of a heap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.federation.replication.town import Citizen, Town, play
from tupelo.federation.hosts.doors import RunningHost
from tupelo.models.event_heap import EventHeap
from tupelo.models.event_heap.replica import Replica, heaps_of

HEAP = "board"
PATIENCE_SECONDS = 3.0


class HeapHost:
    """A host, and its heap. What is called runs as part of its life."""

    def __init__(self, citizen: Citizen) -> None:
        self.citizen = citizen
        self.host: RunningHost
        self.heap: EventHeap

    def begin(self, name: str = HEAP) -> EventHeap:
        life = self.citizen.life
        assert life is not None
        self.host = RunningHost(self.citizen.core)
        self.heap = life.call(lambda: EventHeap(self.host, name, patience=PATIENCE_SECONDS))
        return self.heap

    @property
    def replica(self) -> Replica:
        """The part of its host in the heap."""
        return heaps_of(self.citizen.core).replicas[self.heap.name]

    @property
    def has_replica(self) -> bool:
        return self.heap.name in heaps_of(self.citizen.core).replicas

    def do(self, work: Any) -> asyncio.Task[Any]:
        return self.citizen.do(work)

    async def put(self, *events: Any, ttl: float | None = None) -> None:
        for event in events:
            await self.do(self.heap.put(event, ttl=ttl))


class HeapWorld:
    def __init__(self, town: Town) -> None:
        self.town = town
        self.network = town.network
        self.members = {name: HeapHost(one) for name, one in town.hosts.items()}
        for member in self.members.values():
            member.begin()

    def __getitem__(self, name: str) -> HeapHost:
        return self.members[name]

    async def together(self) -> None:
        """Wait until everyone has what the others have."""
        members = [one for one in self.members.values() if one.citizen.life is not None]
        await self.alike("".join(one.citizen.name for one in members))

    async def alike(self, names: str) -> None:
        def are_alike() -> bool:
            replicas = [self[name].replica for name in names]
            feeds = [replica.feed for replica in replicas], [one.system for one in replicas]
            unsettled = [self[name].citizen.core.federation.all_unsettled() for name in names]
            return (
                not any(unsettled)
                and all(one.is_drawn for pair in feeds for one in pair)
                and all(_marks(one) == _marks(pair[0]) for pair in feeds for one in pair)
            )

        await self.town.until(are_alike, f"alike at {names}")

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        await self.town.until(condition, what)


def _marks(feed: Any) -> dict[str, Any]:
    return {source: mark for source, mark in feed.marks.items() if mark.upto}


def meet(
    scene: Callable[[HeapWorld], Awaitable[None]],
    *edges: str,
    names: str = "",
    folder: Path | None = None,
    seed: int = 1,
    identities: bool = False,
) -> None:
    async def main(town: Town) -> None:
        await scene(HeapWorld(town))

    play(main, *edges, names=names, folder=folder, seed=seed, identities=identities)
