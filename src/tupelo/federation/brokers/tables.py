"""The tables of a broker: its application, the tree, subscriptions, and promises of empty branches.

Subscriptions are forwarded: a pattern that is wanted here, or beyond one edge, is wanted over every
other edge, and is sent there once, however many hosts want it.

Promises prune probes (section 7.4 of the paper): a branch that answers empty for a key, to a
neighbour that has subscribed to its updates, may promise to report its next match. Until then it is
not asked. A host whose update breaks promises waits until they are revoked everywhere: so a pruned
probe finds the same as a full one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
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
    read_value,
)
from tupelo.federation.links.wire import MESSAGE_MAX

if TYPE_CHECKING:
    from tupelo.federation.groups.membership import Membership


PATTERNS_MAX = 100_000
"""The most subscriptions and collects of one host, and the most of its probes and updates that are
under way."""
PORTION_BYTES = 2**20
"""Larger answers are split into several messages."""
ITEM_BYTES_MAX = MESSAGE_MAX // 2
"""The longest pattern, update or item."""
ANSWER_BYTES_MAX = MESSAGE_MAX
"""The most bytes of an answer to one probe over an edge: a link with twice as much to send counts
as too slow. Hosts whose state does not fit count as lost."""

SendTo = Callable[[str, BrokerMessage], None]


class Application(Protocol):
    """The application at a host, whose state is collected. It defines what states, patterns and
    updates are: any values for msgpack, which makes lists of tuples."""

    def state(self, pattern: Any) -> list[Any] | None:
        """The items here that match the pattern. None if they are too large for an answer: then
        this host counts as lost, and can be asked directly."""
        ...

    def matches(self, pattern: Any, update: Any) -> bool:
        """Whether this update matches this pattern."""
        ...

    def key(self, pattern: Any) -> str:
        """Patterns of one key are matched by the same updates and are empty together (unless the
        broker has `is_empty`)."""
        ...

    def allows(self, neighbour: str, pattern: Any) -> bool:
        """Whether this neighbour may know the state here for this pattern. If not, the state is
        empty for the neighbour and all hosts beyond."""
        ...


class EncodedPattern:
    """A pattern with its encoding and key. `readable` is False if the application cannot read
    it."""

    __slots__ = ("encoded", "key", "readable", "value")

    def __init__(self, encoded: bytes, value: Any, key: str, readable: bool = True) -> None:
        self.encoded = encoded
        self.value = value
        self.key = key
        self.readable = readable


class Tree:
    """The tree of the hosts that take part in a broker, as one of them sees it.

    It is the tree of the membership without the hosts that do not take part: the edges of such a
    host become edges to its nearest neighbour on the way to the root, the smallest host id."""

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
        """The hosts that are reached over this edge, the neighbour included."""
        return self._beyond[neighbour]

    def toward(self, host: str) -> str | None:
        """The edge on the path to this host; None for this host itself."""
        return self._toward.get(host)

    def check_room(self, neighbour: str, count: int) -> None:
        """Raise BadFrame if the hosts beyond this edge have too many requests."""
        if count >= PATTERNS_MAX * len(self._beyond[neighbour]):
            raise BadFrame(f"more than {PATTERNS_MAX} for each host")

    def check_beyond(self, neighbour: str, hosts: Iterable[str]) -> None:
        """Raise BadFrame unless all these hosts are beyond this edge."""
        if not self._beyond[neighbour].issuperset(hosts):
            raise BadFrame("a broker reports about hosts that are not beyond it")


def _contract(membership: Membership, hosts: Collection[str]) -> dict[str, set[str]]:
    """The edges between the hosts that take part."""
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
    """Subscriptions by pattern: of this host itself, and of neighbours for the hosts beyond
    them. Promises hold only as long as the subscription: `wants_no_more(edge, key)` is called when
    the neighbour has none for this key any more, `asks_no_more(edge, key)` when this broker has
    none at the neighbour."""

    def __init__(
        self,
        tree: Tree,
        send: SendTo,
        wants_no_more: Callable[[str, str], None],
        asks_no_more: Callable[[str, str], None],
    ) -> None:
        self._tree = tree
        self._send = send
        self._wants_no_more = wants_no_more
        self._asks_no_more = asks_no_more
        self._patterns: dict[bytes, EncodedPattern] = {}
        self._wanting: dict[bytes, dict[str, None]] = {}
        self._wanted_by: dict[str, Counter[str]] = {e: Counter() for e in tree.neighbours}
        self._asked_of: dict[str, Counter[str]] = {e: Counter() for e in tree.neighbours}

    def install(self, who: str, pattern: EncodedPattern) -> None:
        """Add a subscription from the metadata, which all brokers know."""
        for edge in self._add(who, pattern):
            self._asked_of[edge][pattern.key] += 1

    def want(self, who: str, pattern: EncodedPattern) -> None:
        """Add a subscription, and forward it over the edges where it is new."""
        if who != self._tree.me:
            self._tree.check_room(who, self._wanted_by[who].total())
        for edge in self._add(who, pattern):
            self._asked_of[edge][pattern.key] += 1
            self._send(edge, SubscribeTo(pattern.encoded))

    def _add(self, who: str, pattern: EncodedPattern) -> list[str]:
        """Add a subscription; returns the edges over which it was not forwarded before."""
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
        """Remove a subscription, and forward that over the edges where it was the last."""
        wanting = self._wanting.get(encoded)
        if wanting is None or who not in wanting:
            return
        del wanting[who]
        pattern = self._patterns[encoded]
        if who != self._tree.me:
            _count_down(self._wanted_by[who], pattern.key)
            if pattern.key not in self._wanted_by[who]:
                self._wants_no_more(who, pattern.key)
        if not wanting:
            del self._wanting[encoded], self._patterns[encoded]
        for edge in self._tree.neighbours:
            if edge != who and not wanting.keys() - {edge}:
                self._send(edge, UnsubscribeFrom(encoded))
                _count_down(self._asked_of[edge], pattern.key)
                if pattern.key not in self._asked_of[edge]:
                    self._asks_no_more(edge, pattern.key)

    def is_wanted_by(self, edge: str, key: str) -> bool:
        """Whether the neighbour has a subscription for this key."""
        return key in self._wanted_by[edge]

    def is_asked_of(self, edge: str, key: str) -> bool:
        """Whether this broker has a subscription for this key at the neighbour."""
        return key in self._asked_of[edge]

    @property
    def is_idle(self) -> bool:
        """Whether there are no subscriptions."""
        return not self._wanting

    def who_wants(
        self,
        came_from: str,
        matches: Callable[[EncodedPattern], bool | None],
        allows: Callable[[str, EncodedPattern], bool],
    ) -> list[str]:
        """The edges over which an update must be sent. An update counts as a match if the
        application here cannot decide that."""
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
    """Encode a value; raises CannotSend if it is too long or has no encoding."""
    try:
        encoded = encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise CannotSend(f"this {what} cannot be sent: {error}") from error
    check_length(encoded, what)
    return encoded


def check_length(encoded: bytes, what: str) -> None:
    if len(encoded) > ITEM_BYTES_MAX:
        raise CannotSend(f"this {what} has {len(encoded)} bytes, more than {ITEM_BYTES_MAX}")


def split_items(items: list[bytes]) -> list[list[bytes]]:
    """Split items into chunks that fit a message; at least one chunk."""
    chunks: list[list[bytes]] = [[]]
    size = 0
    for item in items:
        if size and size + len(item) > PORTION_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(item)
        size += len(item)
    return chunks


def split_results(found: list[HostResult]) -> list[list[HostResult]]:
    """Split the results of several hosts into chunks that fit a message."""
    chunks: list[list[HostResult]] = [[]]
    size = 0
    for one in found:
        for items in split_items(one.items):
            length = sum(map(len, items))
            if size and size + length > PORTION_BYTES:
                chunks.append([])
                size = 0
            chunks[-1].append(HostResult(one.host, items, one.is_update, one.number))
            size += length
    return chunks


def length_of(found: Iterable[HostResult]) -> int:
    return sum(len(item) for one in found for item in one.items)


def check_answer(found: Iterable[HostResult]) -> None:
    if length_of(found) > ANSWER_BYTES_MAX:
        raise BadFrame(f"an answer of more than {ANSWER_BYTES_MAX} bytes")


def merged(found: list[HostResult]) -> list[HostResult]:
    """Join the parts of states that came in several messages."""
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


class PruningPromises:
    """Promises of empty branches, given and received. `released(edge, keys)` is called when
    promises of a neighbour have ended."""

    def __init__(self, released: Callable[[str, list[str]], None]) -> None:
        self._empty: dict[str, dict[str, None]] = {}
        self._promised: dict[str, dict[str, EncodedPattern]] = {}
        self._released = released

    # Promises of neighbours

    def remember(self, edge: str, key: str) -> None:
        self._empty.setdefault(edge, {})[key] = None

    def is_empty(self, edge: str, key: str) -> bool:
        """Whether the branch beyond this edge has promised to be empty for this key."""
        return key in self._empty.get(edge, ())

    def forget(self, edge: str, keys: Iterable[str]) -> None:
        """The promises of a branch have ended, or it would not report a match any more."""
        known = self._empty.get(edge, {})
        gone = [key for key in keys if key in known]
        for key in gone:
            del known[key]
        if gone:
            self._released(edge, gone)

    def forget_edge(self, edge: str) -> None:
        self.forget(edge, list(self._empty.get(edge, ())))

    # Promises of this broker

    def promise(self, edge: str, pattern: EncodedPattern) -> None:
        self._promised.setdefault(edge, {})[pattern.key] = pattern

    def release(self, edge: str, key: str) -> None:
        """The neighbour does not rely on this promise any more."""
        self._promised.get(edge, {}).pop(key, None)

    def revoke(
        self, came_from: str, is_broken: Callable[[EncodedPattern], bool]
    ) -> dict[str, list[str]]:
        """Remove the broken promises; returns the keys to revoke by edge."""
        broken: dict[str, list[str]] = {}
        answers: dict[str, bool] = {}
        for edge, promised in self._promised.items():
            if edge == came_from:
                continue
            for key, pattern in promised.items():
                if key not in answers:
                    answers[key] = is_broken(pattern)
                if answers[key]:
                    broken.setdefault(edge, []).append(key)
            for key in broken.get(edge, ()):
                del promised[key]
        return broken


Matching = Callable[[EncodedPattern], bool | None]
"""Whether an update matches a pattern; None if the application here cannot decide."""

OnlyAt = Callable[[Any], str | None]
"""The only host that can have matches for a pattern; None for any host. All brokers of a membership
must return the same. A host outside of the membership has no matches in it."""

IsEmpty = Callable[[Any], bool]
"""Whether this host has nothing for this pattern and all others of its key."""

KEY_LENGTH_MAX = 200
"""Longer keys are sent as hashes, since many keys go in one message."""

LOG_BYTES_MAX = 2**20
"""So many bytes of recent updates are kept, to find the last update that concerns a pattern."""

logger = logging.getLogger("tupelo")


class LocalApplication:
    """The application of this host, with checks of its answers. Its exceptions are logged. It has
    nothing for a pattern that it cannot read."""

    def __init__(
        self,
        me: str,
        application: Application,
        only_at: OnlyAt | None = None,
        is_empty: IsEmpty | None = None,
    ) -> None:
        self.me = me
        self._is_empty = is_empty
        self._application = application
        self._only_at = only_at
        # A broker that is made anew at this host goes on with higher numbers.
        self.number = self._forgotten = 1 + int(asyncio.get_running_loop().time() * 1e6)
        """The number of the last update of this host."""
        self._log: deque[tuple[int, bytes]] = deque()
        self._log_bytes = 0

    def published(self, body: bytes) -> int:
        """Record an update of this host; returns its number."""
        self.number += 1
        self._log.append((self.number, body))
        self._log_bytes += len(body)
        while self._log_bytes > LOG_BYTES_MAX:
            self._forgotten, oldest = self._log.popleft()
            self._log_bytes -= len(oldest)
        return self.number

    def last_update(self, pattern: EncodedPattern) -> int:
        """The number of the last update of this host that may concern this pattern."""
        for number, body in reversed(self._log):
            if self._matches(pattern, read_value(body)) is not False:
                return number
        return self._forgotten

    def only_at(self, pattern: EncodedPattern) -> str | None:
        """The only host that can have matches for this pattern; None for any host."""
        if self._only_at is None or not pattern.readable:
            return None
        return self._only_at(pattern.value)

    def pattern(self, value: Any) -> EncodedPattern:
        """Encode a pattern of this host; raises the error of the application if it is refused."""
        key = self._application.key(value)
        return EncodedPattern(encode_checked(value, "pattern"), value, _short(key))

    def read_pattern(self, encoded: bytes) -> EncodedPattern:
        """Decode a pattern of another host."""
        value = read_value(encoded)
        try:
            return EncodedPattern(encoded, value, _short(self._application.key(value)))
        except Exception as error:
            logger.warning("a pattern from elsewhere cannot be read: %r", error)
            return EncodedPattern(encoded, value, _short(encoded.hex()), readable=False)

    def read_patterns(self, host: str, encoded: Iterable[bytes]) -> list[EncodedPattern | None]:
        """Decode the patterns in the metadata of a host; None for those that are no msgpack."""
        patterns: list[EncodedPattern | None] = []
        for one in encoded:
            try:
                patterns.append(self.read_pattern(one))
            except BadFrame as error:
                logger.warning("a pattern of the host %r cannot be read: %s", host, error)
                patterns.append(None)
        return patterns

    def state(self, pattern: EncodedPattern) -> list[bytes] | None:
        """The encoded state of this host; None if it cannot be sent."""
        if not pattern.readable:
            return []
        try:
            items = self._application.state(pattern.value)
            return None if items is None else [encode_checked(item, "item") for item in items]
        except CannotSend as error:
            logger.warning("the state of this host cannot be sent: %s", error)
        except Exception:
            logger.exception("the application failed to return its state")
        return None

    def state_for(self, asker: str, pattern: EncodedPattern) -> list[bytes] | None:
        """The state for this asker: empty, if it may not know the state."""
        if not self.may_tell(asker, pattern):
            return []
        items = self.state(pattern)
        if asker != self.me and items and sum(map(len, items)) > ANSWER_BYTES_MAX:
            logger.warning(
                "the state of this host cannot be sent: more than %d bytes", ANSWER_BYTES_MAX
            )
            return None
        return items

    def may_promise(self, asker: str, pattern: EncodedPattern) -> bool:
        """Whether this host has nothing for all patterns of this key, and the asker may know that.
        An asker without access gets no promise: it may get access later, or for another use."""
        if not self.may_tell(asker, pattern):
            return False
        if self._is_empty is not None:
            return self._is_empty(pattern.value)
        return self.state(pattern) == []

    def matching(self, update: Any) -> Matching:
        """A function that tells whether this update matches a pattern; results are cached."""
        known: dict[bytes, bool | None] = {}

        def matches(pattern: EncodedPattern) -> bool | None:
            if pattern.encoded not in known:
                known[pattern.encoded] = self._matches(pattern, update)
            return known[pattern.encoded]

        return matches

    def _matches(self, pattern: EncodedPattern, update: Any) -> bool | None:
        if not pattern.readable:
            return None
        try:
            return self._application.matches(pattern.value, update)
        except Exception:
            logger.exception("the application failed to match an update")
            return None

    def may_tell(self, asker: str, pattern: EncodedPattern) -> bool:
        """Whether the asker, a neighbour or this host, may know the state for this pattern."""
        return asker == self.me or (
            pattern.readable and self._application.allows(asker, pattern.value)
        )


def _short(key: str) -> str:
    if len(key) <= KEY_LENGTH_MAX:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
