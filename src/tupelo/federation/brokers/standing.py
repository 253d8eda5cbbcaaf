"""What stands for this host: subscriptions and collects, as whoever began them holds them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from tupelo.federation.brokers.messages import Found, Kind, read_value
from tupelo.federation.brokers.probing import Evaluation
from tupelo.federation.brokers.tables import Pattern

logger = logging.getLogger("tupelo")


class Reply(msgspec.Struct, frozen=True):
    """What one host has: its state, or an update of it that matches."""

    host: str
    items: list[Any]
    is_update: bool


class Collected(msgspec.Struct, frozen=True):
    """What a probe has found; the hosts that answered that they have nothing, and those that could
    not answer."""

    replies: list[Reply]
    empty: frozenset[str]
    lost: frozenset[str]


Deliver = Callable[[Reply], None]
Lost = Callable[[frozenset[str]], None]


class Standing:
    """Something that stands until it is cancelled or, a single collect, satisfied."""

    def __init__(self, pattern: Pattern, deliver: Deliver, lost: Lost | None) -> None:
        self.is_over = False
        self.when_over: Callable[[], None] = _nothing
        """For whoever holds it: called when it is over."""
        self.pattern = pattern
        self.remove: Callable[[], None] = _nothing
        """For its broker."""
        self._deliver = deliver
        self._lost = lost

    def cancel(self) -> None:
        """Nothing is delivered from now on."""
        if not self.is_over:
            self.is_over = True
            self.remove()
            self.when_over()

    def deliver(self, reply: Reply) -> None:
        if not self.is_over:
            _call(self._deliver, reply)

    def tell_lost(self, hosts: frozenset[str]) -> None:
        if hosts and self._lost is not None and not self.is_over:
            _call(self._lost, hosts)

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts are out of reach."""
        self.tell_lost(hosts)


class Watching(Standing):
    """A subscription; also a persistent collect of all, which has got the state of some hosts."""

    def __init__(
        self, pattern: Pattern, deliver: Deliver, lost: Lost | None, *, collects: bool
    ) -> None:
        super().__init__(pattern, deliver, lost)
        self.collects = collects
        self.have: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        """The hosts that are known to be lost in this roster."""
        self.asking: Evaluation | None = None

    def tell_lost(self, hosts: frozenset[str]) -> None:
        """Once of each host, though it is cut off and an answer says so as well."""
        new = hosts - self.lost
        self.lost |= hosts
        super().tell_lost(new)

    def awaits(self, came_from: str, host: str) -> bool:
        """Will the answer over this edge tell of what this host has published now?"""
        return (
            self.asking is not None
            and came_from in self.asking.waiting
            and (self.asking.only is None or host in self.asking.only)
        )


class Collection(Standing):
    """A collect that stands in the tables of brokers under its number."""

    def __init__(
        self, number: int, kind: Kind, pattern: Pattern, deliver: Deliver, lost: Lost | None
    ) -> None:
        super().__init__(pattern, deliver, lost)
        self.number = number
        self.kind = kind
        self.answered: set[str] = set()
        """The hosts that have answered one of all hosts."""
        self.chosen: str | None = None
        """The host on which a persistent one has settled."""

    def found(self, found: Found) -> None:
        if self.kind == "persistent any":
            self.chosen = found.host
        elif found.host in self.answered:
            return  # In a new roster it was asked once more.
        else:
            self.answered.add(found.host)
        told = reply(found)
        if told.items:
            self.deliver(told)

    def settle(self, chosen: str | None) -> None:
        """A persistent one has settled on this host, or on none; perhaps not on the same."""
        before, self.chosen = self.chosen, chosen
        if before is not None and before != chosen:
            self.tell_lost(frozenset({before}))

    def cut(self, hosts: frozenset[str]) -> None:
        if self.kind == "single any":
            self.tell_lost(hosts)
        elif self.kind == "single all":
            self.tell_lost(hosts - self.answered)
        elif self.chosen in hosts:
            self.settle(None)


def reply(found: Found) -> Reply:
    return read_reply(Reply(found.host, found.items, found.is_update), read_value)


def read_reply(reply: Reply, read: Callable[[Any], Any]) -> Reply:
    """The same, with what its items say. What cannot be read is left out: who has passed it on
    could not know."""
    items = []
    for item in reply.items:
        try:
            items.append(read(item))
        except Exception as error:
            logger.warning("an item of the host %r cannot be read: %r", reply.host, error)
    return Reply(reply.host, items, reply.is_update)


def readable(collected: Collected) -> Collected:
    """The same without replies of which nothing can be read: their hosts have not answered."""
    lost = collected.lost.union(one.host for one in collected.replies if not one.items)
    return Collected([one for one in collected.replies if one.items], collected.empty, lost)


def _nothing() -> None:
    pass


def _call(function: Callable[[Any], None], value: Any) -> None:
    try:
        function(value)
    except Exception:
        logger.exception("what subscribes or collects has failed to hear")
