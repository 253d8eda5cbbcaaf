"""Placing: what a host copies from whom.

With `CopyAll` each host has every stream. With `CopySome` the source of a stream chooses the hosts
that hold copies of it, among those that it is engaged with, in an order that differs from source to
source; and each host holds what it is asked to, as long as there is room. When it runs out of it
the oldest copies give way, of whatever stream; an item for which there would not be room alone is
not held, nor is its stream, and its source is told and asks another.

A host with room also carries the streams whose source it is not engaged with, from any partner
that has them, so that they outlive their source and that partner. Nobody has asked for these: if
there is no room they are dropped first, each as a whole, and a reader here copies them anew.

Where what is written is parted into lanes, each lane is a stream, and a host holds those that are
for it in any case. A lane for another is dropped as a whole: the one it is for is to get all of it,
and in order, and who has a part without the beginning would keep it from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from heapq import merge
from typing import Literal, Protocol

from tupelo.errors import BadArgument, BadFrame
from tupelo.federation.replication.exchange import FeedExchange
from tupelo.federation.replication.messages import HoldReply, HoldRequest
from tupelo.federation.replication.streams import Item, Stream, base_of, host_of, lane_of, spreads
from tupelo.space.capacity import Capacity
from tupelo.values.checks import is_int
from tupelo.values.entry import Entry


@dataclass(frozen=True)
class CopyAll:
    """Every host of the feed copies all of it."""


@dataclass(frozen=True)
class CopySome:
    """The source of a stream looks for this many other hosts that hold `copies` of it. `room`:
    capacity of this host for copies of other streams; None is unlimited, 0 is none."""

    copies: int = 0
    room: Capacity | Literal[0] | None = 0

    def __post_init__(self) -> None:
        if not is_int(self.copies) or self.copies < 0:
            raise BadArgument("copies", "how many: a whole number", self.copies)
        if not (self.room is None or self.room == 0 or isinstance(self.room, Capacity)):
            raise BadArgument("room", "a Capacity(...), None, or 0", self.room)


@dataclass(frozen=True)
class LaneRules:
    """Splits the items of a host into lanes. `name(entry)` returns the lane of an entry, and
    whether every host with room takes that lane. Lanes named `mine`, of any source, are for this
    host."""

    name: Callable[[Entry], tuple[str, bool]]
    mine: frozenset[str] = frozenset()


Policy = CopyAll | CopySome
NOTHING = CopySome()
"""Policy: copy nothing, hold nothing for others."""


class ReplicaPlacement:
    """Finds hosts that hold copies of this host's streams."""

    def __init__(self, exchange: FeedExchange, policy: Policy) -> None:
        self._exchange = exchange
        self._copies = policy.copies if isinstance(policy, CopySome) else None
        self._asked: dict[str, dict[str, bool]] = {}  # by source and host; False: it does not want

    @property
    def replica_hosts(self) -> list[str]:
        """The partners that hold this host's stream."""
        source = self._exchange.source
        return [partner.id for partner in self._exchange.partners.values() if partner.takes(source)]

    @property
    def is_pending(self) -> bool:
        """Whether a request to hold a stream is unanswered."""
        partners = self._exchange.partners
        return any(
            please and host in partners and not partners[host].takes(source)
            for source, asked in self._asked.items()
            for host, please in asked.items()
        )

    def departed(self, host: str) -> None:
        for asked in self._asked.values():
            asked.pop(host, None)
        self.review()

    def answered(self, host: str, held: HoldReply) -> None:
        if not self._exchange.owns(held.source):
            raise BadFrame("it was not asked to hold this")
        self._asked.setdefault(held.source, {})[host] = held.held
        if not held.held and host in self._exchange.partners:
            self._exchange.partners[host].has.pop(held.source, None)

    def review(self) -> None:
        """Ask more hosts to hold a stream that has too few replicas; release replicas of a stream
        that has too many."""
        if self._copies is not None:
            for stream in self._exchange.owned():
                self._review(stream, self._copies)

    def _review(self, stream: Stream, copies: int) -> None:
        source, partners = stream.source, self._exchange.partners
        if lane_of(source) and (spreads(source) or not stream.items):
            return
        asked = self._asked.setdefault(source, {})
        have = [host for host in partners if asked.get(host) or partners[host].takes(source)]
        if len(have) < copies:
            others = [host for host in partners if host not in have and host not in asked]
            for host in self._ranked(source, others)[: copies - len(have)]:
                asked[host] = True
                self._say_hold(host, source, True)
        elif len(have) > copies:
            # A host that refused and holds it nevertheless holds it for itself.
            theirs = [
                host for host in have if asked.get(host) is False or partners[host].everything
            ]
            willing = [host for host in have if host not in theirs]
            for host in self._ranked(source, willing)[::-1][: len(have) - copies]:
                asked.pop(host, None)
                partners[host].has.pop(source, None)
                self._say_hold(host, source, False)

    def _say_hold(self, host: str, source: str, please: bool) -> None:
        self._exchange.outbox.append(([host], HoldRequest(self._exchange.feed, source, please)))

    def _ranked(self, source: str, hosts: list[str]) -> list[str]:
        return sorted(hosts, key=lambda host: sha256(f"{source} {host}".encode()).digest())


class StoredSize(Protocol):
    """Sizes of stored streams and items, in bytes."""

    def bytes_of(self, source: str) -> int: ...

    def size_of(self, item: Item) -> int: ...


class CopyKeeper:
    """Decides which streams of other hosts are held here: those that this host was asked to hold,
    lanes for everyone, and lanes named `mine`. `gave_way` listeners are called with evicted
    copies."""

    def __init__(
        self,
        exchange: FeedExchange,
        policy: Policy,
        store: StoredSize,
        lanes: LaneRules | None = None,
    ) -> None:
        self._exchange = exchange
        self._lanes = lanes
        self._room = policy.room if isinstance(policy, CopySome) else None
        self._store = store
        self.gave_way: list[Callable[[list[Item]], object]] = []
        self.read: set[str] = set()
        """Streams that are read here; they do not count against the room while their source is
        away."""
        self.carried: set[str] = set()
        """Streams that are held unasked and not read here, to pass them on."""
        self._dropped: set[str] = set()

    def asked(self, host: str, hold: HoldRequest) -> None:
        exchange, source = self._exchange, hold.source
        if host_of(source) != host:
            raise BadFrame("only its source may say who holds a stream")
        if self._is_mine(source):  # It is here in any case, and not for the source to dispose of.
            exchange.outbox.append(([host], HoldReply(exchange.feed, source, False)))
            exchange.hold(source)
            exchange.announce([host])
        elif not hold.please:
            if not exchange.everything and not exchange.owns(source):
                exchange.drop(source)
        else:
            held = exchange.everything or self._has_room(source)
            exchange.outbox.append(([host], HoldReply(exchange.feed, source, held)))
            if held:
                exchange.hold(source)

    def consider(self) -> None:
        """Start to hold lanes for everyone, lanes for this host, and streams whose source is away.
        If the room is 0, drop streams that were read here and can be read at their source again."""
        exchange = self._exchange
        near = {partner.source for partner in exchange.partners.values()}
        self.carried -= near  # Their source chooses the replica hosts again.
        if exchange.everything:
            return
        if self._lanes is None and self._room == 0:
            for source in sorted(near):
                exchange.drop(source)
        offered = {source for partner in exchange.partners.values() for source in partner.has}
        for source in sorted(offered - exchange.streams.keys() - near):
            if exchange.owns(source):
                continue
            if self._is_mine(source) or (spreads(source) and self._has_room(source)):
                exchange.hold(source)
            elif self._lanes is None and self._has_room(source):
                self.carried.add(source)
                exchange.hold(source)

    def use(self, source: str) -> None:
        """Note that this stream is read here."""
        self.carried.discard(source)
        self.read.add(source)

    def forget(self, source: str) -> None:
        """Note that this stream is not wanted here any more."""
        self.carried.discard(source)
        self.read.discard(source)
        self._dropped.add(source)

    def departed(self, host: str) -> None:
        """A host is gone: when it comes back, its streams may be held again."""
        self._dropped = {source for source in self._dropped if host_of(source) != host}

    def _has_room(self, source: str) -> bool:
        return self._room != 0 and source not in self._dropped

    def _is_mine(self, source: str) -> bool:
        return self._lanes is not None and lane_of(source) in self._lanes.mine

    def relieve(self) -> None:
        """Evict copies beyond the room, oldest first; lanes, and streams held unasked, are dropped
        whole."""
        room = self._room
        if not isinstance(room, Capacity):
            return
        while others := self._too_many(room):
            whole = others if self._lanes else [one for one in others if one.source in self.carried]
            if whole:
                self._drop(max(whole, key=self._dispensable).source)
            elif too_large := [stream for stream in others if self._is_too_large(stream, room)]:
                self._drop(too_large[0].source)
            else:
                self._make_room(others, room)

    def _dispensable(self, stream: Stream) -> tuple[bool, int, int]:
        """Sort key for eviction: streams whose source is a partner come first."""
        source = stream.source
        is_near = host_of(source) in self._exchange.partners
        return is_near, self._store.bytes_of(source), len(stream.items)

    def _is_too_large(self, stream: Stream, room: Capacity) -> bool:
        """Whether even the newest item exceeds the room."""
        newest = next(reversed(stream.items.values()), None)
        limit = room.size_bytes
        return limit is not None and newest is not None and self._store.size_of(newest) > limit

    def _make_room(self, others: list[Stream], room: Capacity) -> None:
        count = sum(len(stream.items) for stream in others)
        size = sum(self._store.bytes_of(stream.source) for stream in others)
        parts = (_aged(stream) for stream in others)
        gone: dict[str, list[int]] = {}
        for _, source, number, item in merge(*parts, key=lambda one: one[0]):
            if not _exceeds(room, count, size):
                break
            gone.setdefault(source, []).append(number)
            count -= 1
            size -= self._store.size_of(item) if room.size_bytes is not None else 0
        for source, numbers in gone.items():
            self._tell(self._exchange.give_way(source, numbers))

    def _drop(self, source: str) -> None:
        exchange = self._exchange
        items = [*exchange.streams[source].items.values()]
        exchange.drop(source)
        self.carried.discard(source)
        self._dropped.add(source)
        host = host_of(source)
        partner = exchange.partners.get(host)
        # In a new life it knows nothing of what it asked for in an earlier one.
        if partner is not None and partner.source == base_of(source) and not spreads(source):
            exchange.outbox.append(([host], HoldReply(exchange.feed, source, False)))
        self._tell(items)

    def _tell(self, items: list[Item]) -> None:
        for listener in self.gave_way if items else ():
            listener(items)

    def _too_many(self, room: Capacity) -> list[Stream]:
        """The streams that are held for others, if they exceed the room."""
        exchange = self._exchange
        near = {partner.source for partner in exchange.partners.values()}
        others = [
            stream
            for source, stream in exchange.streams.items()
            if stream.items
            and not exchange.owns(source)
            and not self._is_mine(source)
            and (source in near or source not in self.read)
        ]
        entries = sum(len(stream.items) for stream in others)
        size = sum(self._store.bytes_of(stream.source) for stream in others)
        return others if _exceeds(room, entries, size) else []


def _exceeds(room: Capacity, entries: int, size: int) -> bool:
    too_many = room.entries is not None and entries > room.entries
    return too_many or (room.size_bytes is not None and size > room.size_bytes)


def _aged(stream: Stream) -> Iterator[tuple[int, str, int, Item]]:
    """The items of a stream, with their arrivals here."""
    for number, item in stream.items.items():
        yield item.arrival, stream.source, number, item
