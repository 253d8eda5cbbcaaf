"""The state of a broker within one membership: its tables, and the messages under way. A new
membership begins with a new BrokerEpoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tupelo.federation.brokers.collecting import Collecting, DeliverResult
from tupelo.federation.brokers.messages import (
    AnySaid,
    BrokerMessage,
    CollectCancel,
    CollectRequest,
    CollectResult,
    HostResult,
    ProbeAnswer,
    ProbeCancel,
    ProbeRequest,
    PublishedUpdate,
    RevokePromise,
    SubscribeTo,
    UnsubscribeFrom,
    UpdateAck,
    read_value,
)
from tupelo.federation.brokers.probing import Probing
from tupelo.federation.brokers.tables import (
    EncodedPattern,
    LocalApplication,
    Matching,
    PruningPromises,
    Routes,
    Say,
    Tree,
)

Done = Callable[[], None]

KEYS_MAX = 1_000
"""The most promises that are revoked in one message."""


class UpdateInFlight:
    """An update at one broker: the number of neighbours whose acknowledgement is awaited."""

    def __init__(self, done: Done) -> None:
        self.waiting = 1
        self._done = done

    def arrived(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self._done()


class Publishing:
    """The updates that a broker sends on. Only neighbours whose promises are revoked acknowledge an
    update; no others are waited for."""

    def __init__(self, tree: Tree, say: Say) -> None:
        self._tree = tree
        self._say = say
        self._hops = 0
        self._passages: dict[int, tuple[str, UpdateInFlight]] = {}
        self._cut: set[str] = set()
        self._of: Counter[str] = Counter()

    def heard(self, edge: str, hop: int) -> Done:
        """A neighbour has sent an update or a revocation. Returns the function to call when all
        hosts beyond this one have acknowledged it."""
        if not hop:
            return _nobody_waits
        self._tree.check_room(edge, self._of[edge])
        self._of[edge] += 1

        def done() -> None:
            self._of[edge] -= 1
            self._say(edge, UpdateAck(hop))

        return done

    def send(
        self,
        update: PublishedUpdate | None,
        edges: list[str],
        revoked: dict[str, list[str]],
        done: Done,
    ) -> None:
        """Send an update over these edges, and the revoked promises over theirs. `done` is called
        when all revocations are acknowledged, perhaps before this returns."""
        passage = UpdateInFlight(done)
        wanted = dict.fromkeys(edges)
        for edge in wanted | dict.fromkeys(revoked):
            if edge in self._cut:
                continue
            keys, *others = _split_keys(revoked.get(edge, []))
            hop = self._expect(edge, passage) if keys else 0
            if update is not None and edge in wanted:
                self._say(edge, PublishedUpdate(hop, update.host, update.body, keys, update.number))
            else:
                self._say(edge, RevokePromise(hop, keys))
            for more in others:
                self._say(edge, RevokePromise(self._expect(edge, passage), more))
        passage.arrived()

    def _expect(self, edge: str, passage: UpdateInFlight) -> int:
        self._hops += 1
        self._passages[self._hops] = (edge, passage)
        passage.waiting += 1
        return self._hops

    def heard_told(self, edge: str, message: UpdateAck) -> None:
        neighbour, passage = self._passages.get(message.hop, ("", None))
        if passage is not None and neighbour == edge:
            del self._passages[message.hop]
            passage.arrived()

    def cut(self, hosts: frozenset[str]) -> None:
        """Stop waiting for hosts that are out of reach."""
        self._cut |= hosts
        for hop, (edge, passage) in list(self._passages.items()):
            if edge in hosts:
                del self._passages[hop]
                passage.arrived()

    def end(self) -> None:
        passages, self._passages = self._passages, {}
        for _, passage in passages.values():
            passage.arrived()


def _split_keys(keys: list[str]) -> list[list[str]]:
    return [keys[at : at + KEYS_MAX] for at in range(0, len(keys) or 1, KEYS_MAX)]


def _nobody_waits() -> None:
    pass


class BrokerEpoch:
    """The tables of a broker in one membership, and the dispatch of messages to them.

    `deliver_result` is called with the results for collects of this host, `deliver_update` with
    each update that comes here."""

    def __init__(
        self,
        tree: Tree,
        local: LocalApplication,
        say: Say,
        *,
        deliver_result: DeliverResult,
        deliver_update: Callable[[HostResult, Any, Matching], None],
        prune: bool,
        asks_again: bool,
    ) -> None:
        self.tree = tree
        self.cut_off: set[str] = set()
        self._local = local
        self._say_on = say
        self._deliver_update = deliver_update
        self._asks_again = asks_again
        self.over = False
        self.promises = PruningPromises(self._released)
        self.routes = Routes(tree, self._say, self)
        self.probing = Probing(tree, self.routes, self.promises, local, self._say, prune)
        self.collecting = Collecting(
            tree, self.promises, local, self._say, deliver_result, asks_again
        )
        self.publishing = Publishing(tree, self._say)

    def _say(self, edge: str, message: BrokerMessage) -> None:
        if not self.over and edge not in self.cut_off:
            self._say_on(edge, message)

    # Messages

    def heard(self, edge: str, message: AnySaid) -> None:
        match message:
            case SubscribeTo():
                self.routes.want(edge, self._local.read_pattern(message.pattern))
            case UnsubscribeFrom():
                self.routes.unwant(edge, message.pattern)
            case PublishedUpdate():
                self._heard_update(edge, message)
            case RevokePromise():
                self._heard_revoke(edge, message)
            case UpdateAck():
                self.publishing.heard_told(edge, message)
            case ProbeRequest():
                pattern = self._local.read_pattern(message.pattern)
                self.probing.heard_question(edge, message, pattern)
            case ProbeAnswer():
                self.probing.heard_answer(edge, message)
            case ProbeCancel():
                self.probing.heard_quit(edge, message)
            case CollectRequest():
                pattern = self._local.read_pattern(message.pattern)
                self.collecting.heard_collect(edge, message, pattern)
            case CollectResult():
                self.collecting.heard_result(edge, message)
            case CollectCancel():
                self.collecting.heard_drop(edge, message)

    # Updates

    @property
    def is_idle(self) -> bool:
        """Whether no host needs an update of this host. Promises are only given to hosts that have
        subscribed, so there are none to revoke either."""
        return self.routes.is_idle and self.collecting.is_idle and self.probing.is_idle

    def publish(self, body: bytes, number: int, done: Done) -> None:
        """Send an update of this host, which has this number, to all hosts that want it."""
        me = self.tree.me
        value = read_value(body)
        matches = self._local.matching(value)

        def is_broken(pattern: EncodedPattern) -> bool:
            return matches(pattern) is not False or (
                self._asks_again and self._local.state(pattern) != []
            )

        found = HostResult(me, [body], True, number)
        broken = self.promises.revoke(me, is_broken)
        self.collecting.published_here(found, matches)
        self.probing.passing(me, found, matches)
        edges = self.routes.who_wants(me, matches, self._local.may_tell)
        self.publishing.send(PublishedUpdate(0, me, body, number=number), edges, broken, done)
        self._deliver_update(found, value, matches)

    def _heard_update(self, edge: str, message: PublishedUpdate) -> None:
        self.tree.check_beyond(edge, [message.host])
        value = read_value(message.body)
        done = self.publishing.heard(edge, message.hop)
        matches = self._local.matching(value)
        found = HostResult(message.host, [message.body], True, message.number)
        self.collecting.passing(edge, found, matches)
        broken = self._revoked(edge, message.revoked)
        self.probing.passing(edge, found, matches)
        edges = self.routes.who_wants(edge, matches, _anyone)
        self.publishing.send(message, edges, broken, done)
        self._deliver_update(found, value, matches)

    def _heard_revoke(self, edge: str, message: RevokePromise) -> None:
        done = self.publishing.heard(edge, message.hop)
        self.publishing.send(None, [], self._revoked(edge, message.keys), done)

    def _revoked(self, edge: str, keys: list[str]) -> dict[str, list[str]]:
        """A branch is not empty any more: revoke the promises of this host that relied on it."""
        gone = frozenset(keys)
        self.promises.forget(edge, keys)
        return self.promises.revoke(edge, lambda pattern: pattern.key in gone)

    # For Routes: see `PromiseKeeper`

    def wants_no_more(self, edge: str, key: str) -> None:
        self.promises.release(edge, key)

    def asks_no_more(self, edge: str, key: str) -> None:
        self.probing.asks_no_more(edge, key)
        self.promises.forget(edge, [key])

    def _released(self, edge: str, keys: list[str]) -> None:
        self.collecting.released(edge, keys)

    # Losses

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts are out of reach until the next membership."""
        self.cut_off |= hosts
        self.publishing.cut(hosts)
        self.collecting.cut(hosts)
        self.probing.cut(hosts)
        for edge in self.tree.neighbours:
            if not self.tree.beyond(edge).isdisjoint(hosts):
                self.promises.forget_edge(edge)

    def end(self) -> None:
        """The membership is over."""
        self.over = True
        self.publishing.end()
        self.probing.end()


def _anyone(edge: str, pattern: EncodedPattern) -> bool:
    return True
