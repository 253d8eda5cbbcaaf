"""Hosts on a virtual network that have a feed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tests.virtual import VirtualFederation, VirtualLoop, WorldHost
from tests.virtual import play as play_virtually
from tupelo.federation.replication.feeds import Feed, Replication, replication_of
from tupelo.federation.replication.placement import CopyAll, LaneRules, Policy
from tupelo.federation.replication.streams import host_of

FEED = "news"


class Citizen(WorldHost):
    """One host with a feed."""

    world: Town
    replication: Replication
    feed: Feed

    def prepare(self) -> None:
        town = self.world
        self.replication = replication_of(self.core)
        lanes = None if town.lanes is None else town.lanes(self.name)
        self.feed = self.replication.feed(FEED, town.policy, lanes=lanes)

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
        return [entry.fields for entry in self.feed.copies.port.entries() if entry in mine]


class Town(VirtualFederation[Citizen]):
    """Hosts with the same feed, whose streams have `lanes`."""

    def __init__(
        self,
        loop: VirtualLoop,
        edges: Iterable[str],
        names: str,
        policy: Policy,
        lanes: Callable[[str], LaneRules] | None,
        **options: Any,
    ) -> None:
        self.lanes = lanes
        self.policy = policy
        super().__init__(loop, Citizen, edges, names, **options)

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
    seed: int = 1,
    lanes: Callable[[str], LaneRules] | None = None,
    **options: Any,
) -> None:
    """A scene with hosts that are engaged as these pairs say ("ab": a dials b); what they write is
    parted into `lanes`, as this says of each. `options` are those of a town."""
    play_virtually(
        lambda loop: Town(loop, edges, names, policy or CopyAll(), lanes, **options),
        scene,
        seed,
    )
