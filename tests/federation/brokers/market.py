"""A market in virtual time: hosts that have wares, and brokers that find them.

A ware is [sort, number]. A pattern is [sort, how]: with "full" an update matches if it is such a
ware; with "deaf" no update ever matches, only the state tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tests.federation.groups.neighbourhood import GroupTown, Resident
from tests.virtual import VirtualLoop
from tests.virtual import play as play_virtually
from tupelo.federation.brokers.broker import Broker, Collected, Reply

NAME = "market"
QUIET_SECONDS = 1.0
"""Of virtual time: whatever is said has arrived by then."""


class Wares:
    """The application at one host."""

    def __init__(self) -> None:
        self.wares: list[Any] = []
        self.refused: set[str] = set()
        self.asked = 0
        self.fails = False

    def state(self, pattern: Any) -> list[Any] | None:
        self.asked += 1
        if self.fails:
            return None
        return [ware for ware in self.wares if ware[0] == pattern[0]]

    def matches(self, pattern: Any, update: Any) -> bool:
        return bool(pattern[1] == "full" and update[0] == pattern[0])

    def key(self, pattern: Any) -> str:
        return " ".join(pattern)

    def allows(self, neighbour: str, pattern: Any) -> bool:
        return neighbour not in self.refused


class Stall(Resident):
    """A host of the market."""

    prune = True
    takes_part = True
    wares: Wares
    broker: Broker

    async def open(self) -> None:
        self.wares = Wares()
        if self.takes_part:
            self.broker = Broker(self.group, NAME, self.wares, prune=self.prune)

    async def offer(self, *ware: Any) -> None:
        await self.do(self._offer(list(ware)))

    async def _offer(self, ware: Any) -> None:
        async with self.group.operating():  # Its state changes, and tells of it, in one membership.
            self.wares.wares.append(ware)
            await self.broker.publish(ware)

    async def probe(self, sort: str, extent: Any, how: str = "full") -> Collected:
        found: Collected = await self.do(self.broker.probe([sort, how], extent))
        return found

    def collect(self, sort: str, duration: Any, extent: Any, how: str = "full") -> Basket:
        return Basket(self, [sort, how], duration, extent)

    def subscribe(self, sort: str) -> Basket:
        return Basket(self, [sort, "full"], None, None)


class Basket:
    """Who collects or subscribes, and what it was told."""

    def __init__(self, stall: Stall, pattern: Any, duration: Any, extent: Any) -> None:
        self.replies: list[Reply] = []
        self.lost: list[str] = []
        if duration is None:
            self.standing = stall.call(stall.broker.subscribe, pattern, self._update)
        else:
            self.standing = stall.call(
                stall.broker.collect, pattern, duration, extent, self.replies.append, self._lost
            )
        self.cancel = self.standing.cancel

    def _update(self, host: str, update: Any) -> None:
        self.replies.append(Reply(host, [update], True))

    def _lost(self, hosts: frozenset[str]) -> None:
        self.lost += sorted(hosts)

    @property
    def is_over(self) -> bool:
        return self.standing.is_over

    @property
    def hosts(self) -> str:
        return "".join(reply.host for reply in self.replies)

    @property
    def wares(self) -> list[Any]:
        return [item for reply in self.replies for item in reply.items]


class Market(GroupTown[Stall]):
    """Hosts with brokers. `others` are in the group, but have none."""

    def __init__(
        self, loop: VirtualLoop, edges: Iterable[str], names: str, prune: bool, others: str
    ) -> None:
        super().__init__(loop, Stall, edges, names)
        for stall in self.members:
            stall.prune = prune
            stall.takes_part = stall.name not in others

    async def start(self) -> None:
        await super().start()
        await self.agreed("".join(self.hosts))
        await self.quiet()

    async def quiet(self) -> None:
        """Whatever is under way arrives."""
        await asyncio.sleep(QUIET_SECONDS)

    @property
    def sent(self) -> int:
        """How many messages brokers have sent."""
        return sum(one.broker.sent.total() for one in self.members if one.takes_part)

    def sent_of(self, kind: str) -> int:
        return sum(one.broker.sent[kind] for one in self.members if one.takes_part)


def play(
    scene: Callable[[Market], Awaitable[None]],
    *edges: str,
    names: str = "",
    seed: int = 1,
    prune: bool = True,
    others: str = "",
) -> None:
    """A scene of a market whose hosts are engaged as these pairs say, and agree on one group."""
    play_virtually(lambda loop: Market(loop, edges, names, prune, others), scene, seed)


LINE = ("ab", "bc", "cd")
STAR = ("ha", "hb", "hc", "hd")
TREE = ("ab", "ac", "bd", "be", "cf")
SHAPES = {"line": LINE, "star": STAR, "tree": TREE, "ring": (*LINE, "da")}
