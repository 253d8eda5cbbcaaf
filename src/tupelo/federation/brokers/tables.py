"""The tables of a broker: the tree that it stands in, and who wants which updates.

Subscription forwarding: what is wanted here or beyond one edge is wanted over every other edge, and
is said there once, however many want it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tupelo.errors import BadFrame, CannotSend
from tupelo.federation.brokers.messages import (
    BrokerMessage,
    HostResult,
    SubscribeTo,
    UnsubscribeFrom,
    encode,
)
from tupelo.federation.links.wire import MESSAGE_MAX

if TYPE_CHECKING:
    from tupelo.federation.groups.membership import Membership

PATTERNS_MAX = 100_000
"""So many subscriptions and collects may stand for one host, and so many of its questions and
updates be under way."""
PORTION_BYTES = 2**20
"""What is longer goes in several messages."""
ITEM_BYTES_MAX = MESSAGE_MAX // 2
"""The longest pattern, update or item."""
ANSWER_BYTES_MAX = MESSAGE_MAX
"""The most that goes over an edge in answer to one question: a link that has twice as much to send
is held for too slow. Who does not fit counts as lost."""

Say = Callable[[str, BrokerMessage], None]


class Application(Protocol):
    """Whose state is collected. What it is, what a pattern says, and what an update tells of it are
    the application's own; all of them are values that msgpack can encode. Over a line tuples become
    lists."""

    def state(self, pattern: Any) -> list[Any] | None:
        """What is here now for this pattern; nothing is empty. None if it is too much to be told
        so: then this host counts as lost, and whoever asks may ask it in another way."""
        ...

    def matches(self, pattern: Any, update: Any) -> bool:
        """Is this update one for this pattern?"""
        ...

    def key(self, pattern: Any) -> str:
        """Patterns of one key are matched by the same updates, and empty together, unless the
        broker is told by `is_empty` when all of them are."""
        ...

    def allows(self, neighbour: str, pattern: Any) -> bool:
        """May what is here for this pattern be told to this neighbour? If not, it is empty for it,
        and for all beyond it."""
        ...


class EncodedPattern:
    """A pattern, and how it is encoded: two of one encoding are identical."""

    __slots__ = ("encoded", "key", "readable", "value")

    def __init__(self, encoded: bytes, value: Any, key: str, readable: bool = True) -> None:
        self.encoded = encoded
        self.value = value
        self.key = key
        self.readable = readable


class PromiseKeeper(Protocol):
    """Who relies on what is wanted: promises are kept only while it is."""

    def wants_no_more(self, edge: str, key: str) -> None:
        """The neighbour wants nothing of this key any more."""
        ...

    def asks_no_more(self, edge: str, key: str) -> None:
        """Nothing of this key is asked of the neighbour any more."""
        ...


class Tree:
    """The tree of those hosts of a membership that take part, as one of them sees it.

    A host of the membership that does not take part passes on what is said through it: the edges
    around it become edges to whoever is nearest to the least of those that do."""

    def __init__(
        self, me: str, membership: Membership | None, taking_part: Collection[str]
    ) -> None:
        self.me = me
        self.hosts = frozenset(taking_part) if me in taking_part else frozenset({me})
        self._beyond: dict[str, frozenset[str]] = {}
        self._toward: dict[str, str] = {}
        if membership is not None and len(self.hosts) > 1:
            edges = _contract(membership, self.hosts)
            for neighbour in sorted(edges[me]):
                beyond = frozenset(_reach(edges, neighbour, me))
                self._beyond[neighbour] = beyond
                self._toward.update(dict.fromkeys(beyond, neighbour))
        self.neighbours = list(self._beyond)

    def beyond(self, neighbour: str) -> frozenset[str]:
        """The hosts on the other side of this edge."""
        return self._beyond[neighbour]

    def toward(self, host: str) -> str | None:
        """The edge over which this host is reached; None for this host itself."""
        return self._toward.get(host)

    def check_room(self, neighbour: str, count: int) -> None:
        """May the hosts beyond this edge have one more of this sort?"""
        if count >= PATTERNS_MAX * len(self._beyond[neighbour]):
            raise BadFrame(f"more than {PATTERNS_MAX} for each host")

    def check_beyond(self, neighbour: str, hosts: Iterable[str]) -> None:
        """What is said of a host is heard only from its side."""
        if not self._beyond[neighbour].issuperset(hosts):
            raise BadFrame("a broker speaks for hosts that are not beyond it")


def _contract(membership: Membership, hosts: Collection[str]) -> dict[str, set[str]]:
    """The edges between those who take part."""
    root = min(hosts)
    edges: dict[str, set[str]] = {host: set() for host in hosts}
    todo = deque([(root, root, root)])
    while todo:
        here, came_from, nearest = todo.popleft()
        for other in membership.neighbours(here):
            if other == came_from:
                continue
            if other in edges:
                edges[other].add(nearest)
                edges[nearest].add(other)
            todo.append((other, here, other if other in edges else nearest))
    return edges


def _reach(edges: dict[str, set[str]], start: str, without: str) -> Iterable[str]:
    todo = [(start, without)]
    while todo:
        here, came_from = todo.pop()
        yield here
        todo += [(other, here) for other in edges[here] if other != came_from]


class Routes:
    """Who wants which updates: this host itself, and the neighbours for those beyond them."""

    def __init__(self, tree: Tree, say: Say, relying: PromiseKeeper) -> None:
        self._tree = tree
        self._say = say
        self._relying = relying
        self._patterns: dict[bytes, EncodedPattern] = {}
        self._wanting: dict[bytes, dict[str, None]] = {}
        self._wanted_by: dict[str, Counter[str]] = {e: Counter() for e in tree.neighbours}
        self._asked_of: dict[str, Counter[str]] = {e: Counter() for e in tree.neighbours}

    def install(self, who: str, pattern: EncodedPattern) -> None:
        """Someone wants this, and everyone has heard so."""
        for edge in self._add(who, pattern):
            self._asked_of[edge][pattern.key] += 1

    def want(self, who: str, pattern: EncodedPattern) -> None:
        """Someone wants this from now on; whoever does not know yet is told."""
        if who != self._tree.me:
            self._tree.check_room(who, self._wanted_by[who].total())
        for edge in self._add(who, pattern):
            self._asked_of[edge][pattern.key] += 1
            self._say(edge, SubscribeTo(pattern.encoded))

    def _add(self, who: str, pattern: EncodedPattern) -> list[str]:
        """The edges over which it was not wanted before."""
        wanting = self._wanting.setdefault(pattern.encoded, {})
        if who in wanting:
            return []
        self._patterns.setdefault(pattern.encoded, pattern)
        if who != self._tree.me:
            self._wanted_by[who][pattern.key] += 1
        edges = [
            edge for edge in self._tree.neighbours if edge != who and not wanting.keys() - {edge}
        ]
        wanting[who] = None
        return edges

    def unwant(self, who: str, encoded: bytes) -> None:
        """They want it no more; if nobody else does, this is said."""
        wanting = self._wanting.get(encoded)
        if wanting is None or who not in wanting:
            return
        del wanting[who]
        pattern = self._patterns[encoded]
        if who != self._tree.me:
            _count_down(self._wanted_by[who], pattern.key)
            if pattern.key not in self._wanted_by[who]:
                self._relying.wants_no_more(who, pattern.key)
        if not wanting:
            del self._wanting[encoded], self._patterns[encoded]
        for edge in self._tree.neighbours:
            if edge != who and not wanting.keys() - {edge}:
                self._say(edge, UnsubscribeFrom(encoded))
                _count_down(self._asked_of[edge], pattern.key)
                if pattern.key not in self._asked_of[edge]:
                    self._relying.asks_no_more(edge, pattern.key)

    def is_wanted_by(self, edge: str, key: str) -> bool:
        """Are updates for patterns of this key told over this edge?"""
        return key in self._wanted_by[edge]

    def is_asked_of(self, edge: str, key: str) -> bool:
        """Are they told to us from there?"""
        return key in self._asked_of[edge]

    @property
    def is_idle(self) -> bool:
        """Does nobody want anything?"""
        return not self._wanting

    def who_wants(
        self,
        came_from: str,
        matches: Callable[[EncodedPattern], bool | None],
        allows: Callable[[str, EncodedPattern], bool],
    ) -> list[str]:
        """The edges over which an update is to go; also if it cannot be told here whether it
        matches, for they can."""
        found: dict[str, None] = {}
        for encoded, wanting in self._wanting.items():
            edges = [e for e in wanting if e != self._tree.me and e != came_from and e not in found]
            if edges:
                pattern = self._patterns[encoded]
                allowed = [edge for edge in edges if allows(edge, pattern)]
                if allowed and matches(pattern) is not False:
                    found.update(dict.fromkeys(allowed))
        return list(found)


def _count_down(counted: Counter[str], key: str) -> None:
    counted[key] -= 1
    if not counted[key]:
        del counted[key]


def encode_checked(value: Any, what: str) -> bytes:
    """A value for a line; CannotSend if it is too long or cannot be encoded."""
    try:
        encoded = encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise CannotSend(f"this {what} cannot be sent: {error}") from error
    check_length(encoded, what)
    return encoded


def check_length(encoded: bytes, what: str) -> None:
    if len(encoded) > ITEM_BYTES_MAX:
        raise CannotSend(f"this {what} has {len(encoded)} bytes, more than {ITEM_BYTES_MAX}")


def portions(items: list[bytes]) -> list[list[bytes]]:
    """Items in heaps that fit a message; at least one heap."""
    heaps: list[list[bytes]] = [[]]
    size = 0
    for item in items:
        if size and size + len(item) > PORTION_BYTES:
            heaps.append([])
            size = 0
        heaps[-1].append(item)
        size += len(item)
    return heaps


def in_heaps(found: list[HostResult]) -> list[list[HostResult]]:
    """The same for what several hosts have."""
    heaps: list[list[HostResult]] = [[]]
    size = 0
    for one in found:
        for items in portions(one.items):
            length = sum(map(len, items))
            if size and size + length > PORTION_BYTES:
                heaps.append([])
                size = 0
            heaps[-1].append(HostResult(one.host, items, one.is_update, one.number))
            size += length
    return heaps


def length_of(found: Iterable[HostResult]) -> int:
    return sum(len(item) for one in found for item in one.items)


def check_answer(found: Iterable[HostResult]) -> None:
    if length_of(found) > ANSWER_BYTES_MAX:
        raise BadFrame(f"an answer of more than {ANSWER_BYTES_MAX} bytes")


def merged(found: list[HostResult]) -> list[HostResult]:
    """What came in several messages, put together."""
    states: dict[str, HostResult] = {}
    updates = []
    for one in found:
        if one.is_update:
            updates.append(one)
        elif one.host in states:
            states[one.host].items.extend(one.items)
        else:
            states[one.host] = one
    return [*states.values(), *updates]
