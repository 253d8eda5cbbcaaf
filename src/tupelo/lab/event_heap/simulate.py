"""Simulating event heaps: one seed is one world, its artists, its faults, and a verdict.

There is trouble: artists work while hosts part, crash, leave and return, and links are cut and
slow. Then there is peace: everyone is back, and gets what it has missed. At last all who read get
what is left for them, and the judge looks at what is there, and at all that has happened.
"""

from __future__ import annotations

import asyncio
from random import Random

from tupelo.federation.replication.feeds import replication_of
from tupelo.lab.event_heap.history import Remains
from tupelo.lab.event_heap.judge import judge
from tupelo.lab.event_heap.load import Artist
from tupelo.lab.event_heap.world import (
    BOARD,
    BRIEF,
    HEAPS,
    HeapWorld,
    SimulatedHeapHost,
    heal,
    nemesis,
)
from tupelo.lab.judge import Fault
from tupelo.lab.loop import LabError, VirtualLoop
from tupelo.lab.simulate import Report, bounded, played
from tupelo.models.event_heap.ordering import Ordering, Place

SETTLE_SECONDS = 15.0


def simulate(seed: int) -> Report:
    """Play one seed, from its beginning to the verdict."""
    return played(_HeapRun(seed), seed)


class _HeapRun:
    """One seed, while it is played."""

    def __init__(self, seed: int) -> None:
        self.faults: list[Fault] = []
        self._seed = seed
        self._world: HeapWorld
        self._artists: dict[Artist, asyncio.Task[None]] = {}

    async def play(self, loop: VirtualLoop) -> None:
        world = self._world = HeapWorld(loop, self._seed)
        try:
            async with bounded():
                await self._play(world)
        finally:
            world.clear()

    async def _play(self, world: HeapWorld) -> None:
        world.populate = self._populate
        await world.start()
        for member in world.members:
            self._populate(member)
        await nemesis(world, Random(f"{self._seed} trouble"), world.plan.load_seconds)
        world.calm = True
        await heal(world)
        await self._end_load()
        if not await world.until(world.is_settled):
            self.faults.append(Fault("apart", "not all have what others have"))
        await asyncio.sleep(SETTLE_SECONDS)
        await world.until(world.is_settled)
        world.check_owners()
        for artist in self._alive():
            await artist.life.start(artist.read_rest(), f"{artist.name} reads the rest")
        remains = self._remains()
        for artist in self._alive():
            replays = remains.replays.setdefault(artist.member.name, {})
            for view in artist.total_views:
                work = artist.replayed(view)
                replays[view.id] = await artist.life.start(work, f"{artist.name} replays")
        self.faults += judge(world.history, remains)
        await world.stop()

    def _populate(self, member: SimulatedHeapHost) -> None:
        assert member.life is not None
        for number in range(1, self._world.plan.agents + 1):
            artist = Artist(self._world, member, f"{member.name}{number}.{member.lives}")
            self._artists[artist] = member.life.start(artist.run(), artist.name)

    def _alive(self) -> list[Artist]:
        return [artist for artist in self._artists if not artist.life.over]

    async def _end_load(self) -> None:
        """The artists end by themselves; those who were killed read no more."""
        results = await asyncio.gather(*self._artists.values(), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise LabError(f"an artist has failed: {result!r}") from result
        names = {artist.name for artist in self._alive()}
        at_work = {id(reader) for one in self._alive() for reader, _ in one.sessions + one.views}
        for reader in self._world.history.readers:
            listens = reader.name.rpartition(" by ")[2] in names
            if id(reader) not in at_work and not listens:
                reader.stands = False

    def _remains(self) -> Remains:
        world, remains = self._world, Remains(BOARD)
        for member in world.members:
            remains.held[member.name] = {heap: member.held(heap) for heap in HEAPS}
            replica = member.replicas[BOARD]
            remains.orders[member.name] = {
                view: [
                    world.places.get((BOARD, *place), -1 - position)
                    for position, place in sorted(self._whole(view, order.ordering).items())
                ]
                for view, order in replica.orders.orders.items()
            }
            remains.horizons.update(
                (view, order.horizon)
                for view, order in replica.orders.orders.items()
                if order.horizon is not None
            )
            remains.known[member.name] = {*replica.orders.made, *replica.sessions}
        remains.destroyed = max(member.destroyed for member in world.members)
        for member in world.members:
            if BRIEF not in replication_of(member.core).feeds:
                world.history.ended.add(member.source)
            if BRIEF in member.replicas:
                remains.open[member.name] = member.replicas[BRIEF].generation
                remains.left[member.name] = member.held(BRIEF)
        return remains

    def _whole(self, view: str, ordering: Ordering) -> dict[int, Place]:
        """An order, with the places that it has had before it was folded."""
        before = self._world.positions.get(view, {})
        folded = {at: place for at, place in before.items() if at < ordering.base}
        return {**folded, **dict(ordering.listed())}

    def report(self) -> Report:
        network = self._world.network
        acts = self._world.history.acts
        return Report(self._seed, network.digest, tuple(self.faults), acts, tuple(network.trace))
