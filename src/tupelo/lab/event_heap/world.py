"""A world of heaps: hosts on a virtual network that have them, lose each other and crash."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tupelo.federation.hosts.core import HostCore
from tupelo.federation.identity.keys import id_of
from tupelo.federation.names import companion_name
from tupelo.federation.replication.broadcast import FeedCursor
from tupelo.federation.replication.feed import Feed
from tupelo.federation.replication.feeds import replication_of
from tupelo.lab.event_heap.history import HeapHistory
from tupelo.lab.life import ProgramLife
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.simulation import Simulation
from tupelo.lab.world import ANSWER_SECONDS, HEARTBEAT_SECONDS, PORT, SpaceUnderTest
from tupelo.models.event_heap import Bridge, EventHeap
from tupelo.models.event_heap.events import Event
from tupelo.models.event_heap.ordering import Place
from tupelo.models.event_heap.records import Destroyed, Placed, read_places
from tupelo.models.event_heap.replica import Replica, heaps_of
from tupelo.space.port import port_of
from tupelo.values.entry import thaw

BOARD = "board"
SIDE = "side"
"""Bridges lead there."""
HEAPS = (BOARD, SIDE)
BRIEF = "brief"
"""It is made and destroyed, again and again."""
KINDS = ("a", "b")
PATIENCE_SECONDS = 1.5


@dataclass(frozen=True)
class HeapConfig:
    """What a seed has decided about a world before it begins."""

    hosts: int
    durable: frozenset[int]
    agents: int
    """at each host"""
    bridges: dict[int, str]
    """The hosts with a bridge, and what it carries: "" is all."""
    both_ways: bool
    load_seconds: float
    folded_after: int
    """So many places are given before an order is folded."""
    delay: tuple[float, float]


def plan_world(rng: Random) -> HeapConfig:
    hosts = rng.choice((2, 3, 3, 4))
    return HeapConfig(
        hosts=hosts,
        durable=frozenset(number for number in range(hosts) if rng.random() < 0.5),
        agents=rng.choice((1, 2)),
        bridges={n: rng.choice(("", "a")) for n in range(hosts) if rng.random() < 0.25},
        both_ways=rng.random() < 0.5,
        load_seconds=rng.uniform(4.0, 12.0),
        folded_after=rng.choice((3, 10, 1_000)),
        delay=rng.choice(((0.001, 0.01), (0.001, 0.1), (0.02, 0.05))),
    )


class SimulatedHeapHost:
    """A host of the world, through all its lives."""

    def __init__(self, world: HeapWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.name = "abcdefgh"[number]
        self.address = f"{self.name}:{PORT}"
        self.durable = number in world.plan.durable
        self.identity = world.new_identity(self.name)
        self.lives = 0
        self.life: ProgramLife | None = None
        self.core: HostCore
        self.door: SpaceUnderTest
        self.heaps: dict[str, EventHeap] = {}

    @property
    def is_up(self) -> bool:
        return self.life is not None

    @property
    def host_id(self) -> str:
        """The id under which other hosts know it, in all of its lives."""
        return id_of(self.identity.key)

    @property
    def source(self) -> str:
        return self.name if self.durable else f"{self.name}{self.lives}"

    @property
    def life_name(self) -> str:
        return f"{self.name}{self.lives}"

    @property
    def within_reach(self) -> frozenset[str]:
        """The lives of hosts that are in one membership with this one."""
        membership = self.replicas[BOARD].membership.id
        return frozenset(
            one.life_name
            for one in self.world.members
            if one.is_up
            and BOARD in one.replicas
            and one.replicas[BOARD].membership.id == membership
        )

    @property
    def replicas(self) -> dict[str, Replica]:
        return heaps_of(self.core).replicas

    async def start(self) -> None:
        """A new life, on what the last one has left on disk."""
        self.lives += 1
        self.life = ProgramLife(self.world.loop, self.world.network, self.name)
        await self.life.start(self._start(self.life), f"{self.name} starts")
        self.world.note(f"{self.name} has started, life {self.lives}")

    async def _start(self, life: ProgramLife) -> None:
        world = self.world
        self.core = HostCore(
            self.name,
            host_id=self.host_id,
            network=life,
            clock=world.clock,
            rng=Random(f"{world.seed} {self.name} {self.lives}"),
            new_id=world.new_id,
            listen=self.address,
            path=world.folder / self.name if self.durable else None,
            peers=[other.address for other in world.members if other is not self],
            heartbeat=HEARTBEAT_SECONDS,
            answer_seconds=ANSWER_SECONDS,
            commit_in_place=True,
            durability="process" if self.durable else None,
        )
        self.core.identity = self.identity
        self.door = SpaceUnderTest(self.core)
        for name in HEAPS:
            self.heaps[name] = EventHeap(self.door, name, patience=PATIENCE_SECONDS)
            self.replicas[name].folded_after = world.plan.folded_after
            self._watch(name, self.replicas[name].feed)
        self._watch_orders(self.replicas[BOARD].system)
        carries = world.plan.bridges.get(self.number)
        if carries is not None:
            template = Event(carries or None)
            board, side = self.heaps[BOARD], self.heaps[SIDE]
            Bridge(board, side, template, both=world.plan.both_ways)
        await self.core.start()

    def _watch(self, heap: str, feed: Feed) -> None:
        """Write down which event is at which place of its source."""
        following = FeedCursor(feed)

        def look() -> None:
            for source, number, entry in following.news():
                event = thaw(entry.shape, entry.fields)
                if isinstance(event, Event):
                    self.world.places[heap, source, number] = event["i"]

        feed.watchers.append(look)
        look()

    def _watch_orders(self, system: Feed) -> None:
        """Write down which place is at which position of a view: an order may be folded later."""
        following = FeedCursor(system)

        def look() -> None:
            for _, _, entry in following.news():
                told = thaw(entry.shape, entry.fields)
                if isinstance(told, Placed):
                    positions = self.world.positions.setdefault(told.view or "", {})
                    for position, place in enumerate(read_places(told), told.start or 0):
                        if positions.setdefault(position, place) != place:
                            text = f"{position} of {told.view} is that of two events"
                            self.world.history.fault("two orders", text)

        system.watchers.append(look)
        look()

    async def crash(self) -> None:
        life, self.life = self.life, None
        if life is not None:
            self.world.note(f"{self.name} crashes")
            self._excuse()
            spaces = [hosted.space for hosted in self.core.spaces.values()]
            ports = [port_of(space) for space in [*spaces, self.core.deciding.space]]
            await life.kill(ports)

    async def leave(self) -> None:
        """Say goodbye, close the spaces, and end."""
        life, self.life = self.life, None
        if life is not None:
            self.world.note(f"{self.name} leaves")
            self._excuse()
            life.leaving = True
            await life.start(self.core.stop("for a while"), f"{self.name} leaves")
            await life.end()
            self.world.network.crash(self.name)  # what is left of its links

    def held(self, heap: str) -> list[int]:
        """The numbers of the events that are here."""
        replica = self.replicas.get(heap)
        if replica is None:
            return []
        return [
            thaw(entry.shape, entry.fields)["i"]
            for stream in replica.feed.exchange.streams.values()
            for entry in stream.items.values()
            if not entry.gone
        ]

    @property
    def destroyed(self) -> int:
        """The last generation of the heap that comes and goes of whose end is known here."""
        feed = replication_of(self.core).feeds.get(companion_name("system", BRIEF))
        streams = [] if feed is None else feed.exchange.streams.values()
        entries = [entry for stream in streams for entry in stream.items.values()]
        records = [thaw(entry.shape, entry.fields) for entry in entries]
        return max([one.generation or 0 for one in records if isinstance(one, Destroyed)] or [0])

    def _excuse(self) -> None:
        """What only this host has may be lost, unless it is its own and on its disk; and what it
        has removed comes back with others, if it has told nobody."""
        history = self.world.history
        if not self.durable:
            history.ended.add(self.source)
        for removal in history.removals:
            put = history.puts.get(-1 if removal.number is None else removal.number)
            if put is not None and not self.durable:
                adopter = history.adopted.get(put.number)
                if self.source in (put.source, adopter):
                    history.untold.add(put.number)
        others = [one for one in self.world.members if one.is_up and one is not self]
        if not self.durable:
            history.unordered.update(self._unordered(others))
            told = {one for other in others for one in other.replicas[BOARD].uses.ended}
            history.destroyed &= told
        for heap in HEAPS:
            elsewhere = {number for other in others for number in other.held(heap)}
            for number in self.held(heap):
                own_disk = history.puts[number].source in self.world.durable
                own_disk = own_disk and number not in history.adopted
                if number not in elsewhere and not own_disk:
                    history.excused.add(number)

    def _unordered(self, others: list[SimulatedHeapHost]) -> Iterator[tuple[str, int]]:
        """What has a place in a view, of which no other knows."""
        known = [other.replicas[BOARD].orders.orders for other in others]
        for view, order in self.replicas[BOARD].orders.orders.items():
            lengths = [len(orders[view].ordering) for orders in known if view in orders]
            length = max(lengths, default=0)
            for _, place in order.ordering.listed(length):
                yield view, self.world.places.get((BOARD, *place), -1)


class HeapWorld(Simulation[SimulatedHeapHost]):
    """Everything there is in one run."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.plan = plan_world(Random(f"{seed} plan"))
        super().__init__(loop, seed, VirtualNetwork(loop, delay=self.plan.delay, trace_max=100_000))
        self.history = HeapHistory(self.network.note)
        self.members = [SimulatedHeapHost(self, number) for number in range(self.plan.hosts)]
        self.durable = {member.name for member in self.members if member.durable}
        self.places: dict[tuple[str, str, int], int] = {}
        """Which event is at which place of which source of a heap."""
        self.views: list[str] = []
        """Those that were made on the board."""
        self.short: set[str] = set()
        """Those that have a horizon."""
        self.positions: dict[str, dict[int, Place]] = {}
        """Which place was at which position of a view."""
        self.calm = False

    # Time passes

    async def start(self) -> None:
        for member in self.members:
            await member.start()
        await self.until(self.all_engaged)

    def all_engaged(self) -> bool:
        others = len(self.members) - 1
        return all(member.is_up and len(member.core.peers) == others for member in self.members)

    def is_settled(self) -> bool:
        """Has everyone all that others have, and each owner placed what it has, in what
        is in use?"""
        if not self.all_engaged():
            return False
        for name in HEAPS:
            replicas = [member.replicas[name] for member in self.members]
            for feeds in ([one.feed for one in replicas], [one.system for one in replicas]):
                if not all(feed.is_drawn for feed in feeds):
                    return False
                marks = [{s: m for s, m in feed.marks.items() if m.upto} for feed in feeds]
                if any(mark != marks[0] for mark in marks):
                    return False
            for replica in replicas:
                for order in replica.orders.orders.values():
                    is_due = order.token.here and replica.uses.is_used(order.id)
                    if is_due and order.unplaced:
                        return False
        return True

    def check_owners(self) -> None:
        """Nobody has a token that another has; but one that was replaced may be at a host out of
        reach."""
        for heap in HEAPS:
            at: dict[object, str] = {}
            for member in self.members:
                replica = member.replicas.get(heap) if member.is_up else None
                for name, token in (replica.tokens.tokens if replica else {}).items():
                    if token.here and not token.is_contested:
                        is_replaced = token.luggage is not None and token.luggage.lost
                        where = replica.membership.id if replica and is_replaced else None
                        other = at.setdefault((name, where), member.name)
                        if other != member.name:
                            text = f"{name} is at {other} and at {member.name}"
                            self.history.fault("two owners", text)


async def nemesis(world: HeapWorld, rng: Random, seconds: float) -> None:
    """Faults, one after the other, as the seed will have them."""
    kinds = ("partition", "partition", "heal", "heal", "cut", "crash", "return", "return", "slow")
    end = world.loop.time() + seconds
    while (pause := rng.expovariate(0.8)) + world.loop.time() < end:
        await asyncio.sleep(pause)
        await world.befall(rng, kinds, slower=(1, 10, 30))


async def heal(world: HeapWorld) -> None:
    """All faults are over, and everyone is back."""
    world.calm_down()
    for member in world.members:
        if not member.is_up:
            await member.start()
