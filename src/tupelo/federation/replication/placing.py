"""Placing: what a host copies from whom.

With `Everything` each host has every stream. With `Some` the source of a stream chooses the hosts
that hold copies of it, among those that it is engaged with, in an order that differs from source to
source; and each host holds what it is asked to, as long as there is room. Who runs out of it drops
a stream as a whole, since a part of it would have holes, and says so: its source asks another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from tupelo.errors import BadArgument, BadFrame
from tupelo.federation.replication import messages as said
from tupelo.federation.replication.exchange import Exchange
from tupelo.space.capacity import Capacity


@dataclass(frozen=True)
class Everything:
    """Every host that has the feed copies all of it."""


@dataclass(frozen=True)
class Some:
    """Of this host's own stream so many other hosts are to hold `copies`; of others' streams there
    is this much `room` here: None for as much as comes, 0 for nothing."""

    copies: int = 0
    room: Capacity | Literal[0] | None = 0

    def __post_init__(self) -> None:
        if isinstance(self.copies, bool) or not isinstance(self.copies, int) or self.copies < 0:
            raise BadArgument("copies", "how many: a whole number", self.copies)
        if not (self.room is None or self.room == 0 or isinstance(self.room, Capacity)):
            raise BadArgument("room", "a Capacity(...), None, or 0", self.room)


Policy = Everything | Some
NOTHING = Some()
"""Nothing is copied from here, and nothing is held for others."""


class Placing:
    """Finds holders for the stream of this host."""

    def __init__(self, exchange: Exchange, policy: Policy) -> None:
        self._exchange = exchange
        self._copies = policy.copies if isinstance(policy, Some) else 0
        self._asked: dict[str, bool] = {}  # False: it does not want to

    @property
    def holders(self) -> list[str]:
        """Who has said that it takes our stream."""
        source = self._exchange.source
        return [far.id for far in self._exchange.far.values() if far.takes(source)]

    def departed(self, host: str) -> None:
        self._asked.pop(host, None)
        self.review()

    def answered(self, host: str, held: said.Held) -> None:
        if held.source != self._exchange.source:
            raise BadFrame("it was not asked to hold this")
        self._asked[host] = held.held
        if not held.held and host in self._exchange.far:
            self._exchange.far[host].has.pop(held.source, None)

    def review(self) -> None:
        """Who holds our stream, or was asked to: too few, or too many?"""
        if not self._copies:
            return
        exchange = self._exchange
        source, far = exchange.source, exchange.far
        have = {host for host in far if self._asked.get(host) or far[host].takes(source)}
        if len(have) < self._copies:
            others = [host for host in far if host not in have and host not in self._asked]
            for host in sorted(others, key=self._rank)[: self._copies - len(have)]:
                self._asked[host] = True
                exchange.outbox.append(([host], said.Hold(exchange.feed, source, True)))
        elif len(have) > self._copies:
            willing = [host for host in have if not far[host].everything]
            for host in sorted(willing, key=self._rank, reverse=True)[: len(have) - self._copies]:
                self._asked.pop(host, None)
                far[host].has.pop(source, None)
                exchange.outbox.append(([host], said.Hold(exchange.feed, source, False)))

    def _rank(self, host: str) -> bytes:
        return sha256(f"{self._exchange.source} {host}".encode()).digest()


class Keeper:
    """Holds the streams of others that this host is asked to. `measure` says how many bytes a
    stream has here, `is_near` whether its source is engaged."""

    def __init__(
        self,
        exchange: Exchange,
        policy: Policy,
        host_of: Callable[[str], str],
        measure: Callable[[str], int],
    ) -> None:
        self._exchange = exchange
        self._room = policy.room if isinstance(policy, Some) else None
        self._host_of = host_of
        self._measure = measure
        self._dropped: set[str] = set()

    def asked(self, host: str, hold: said.Hold) -> None:
        exchange, source = self._exchange, hold.source
        if self._host_of(source) != host:
            raise BadFrame("only its source may say who holds a stream")
        if not hold.please:
            if not exchange.everything and source != exchange.source:
                exchange.drop(source)
            return
        held = exchange.everything or (self._room != 0 and source not in self._dropped)
        exchange.outbox.append(([host], said.Held(exchange.feed, source, held)))
        if held:
            exchange.hold(source)

    def relieve(self) -> None:
        """If there is no room any more, drop streams, first those that others can hold."""
        if not isinstance(self._room, Capacity):
            return
        exchange = self._exchange
        while self._is_full(self._room):
            source = max(
                (source for source in exchange.streams if source != exchange.source),
                key=lambda one: (
                    self._host_of(one) in exchange.far,
                    self._measure(one),
                    len(exchange.streams[one].items),
                ),
            )
            exchange.drop(source)
            self._dropped.add(source)
            host = self._host_of(source)
            if host in exchange.far:
                exchange.outbox.append(([host], said.Held(exchange.feed, source, False)))

    def _is_full(self, room: Capacity) -> bool:
        exchange = self._exchange
        others = [one for one in exchange.streams.values() if one.source != exchange.source]
        entries = sum(len(stream.items) for stream in others)
        if room.entries is not None and entries > room.entries:
            return True
        size_bytes = sum(self._measure(stream.source) for stream in others)
        return entries > 0 and room.size_bytes is not None and size_bytes > room.size_bytes
