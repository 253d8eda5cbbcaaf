"""A broker: publish, subscribe and collect among the hosts of a group.

It is a part of the group: its tables follow the tree of the current membership. Subscriptions and
standing collects are in its metadata, so that a new membership begins with all tables in place;
messages within a membership only tell of changes since.

`probe` is an operation of the group: the membership does not change meanwhile. `publish` does not
wait for a change: an update reaches all hosts of the membership in which it is sent. `subscribe`
and `collect` register a standing request that survives changes of the membership; they may be
called at any time.

A message passes: Broker → BrokerEpoch (the state of one membership) → one of Routes, Publishing,
Probing, Collecting → Broker._send → the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import BadArgument, HostClosed, Refused
from tupelo.federation.brokers import tables
from tupelo.federation.brokers.collecting import CollectId, Collecting, DeliverResult
from tupelo.federation.brokers.messages import (
    AnyBrokerMessage,
    BrokerMessage,
    CollectCancel,
    CollectRequest,
    CollectResult,
    Duration,
    Extent,
    HostResult,
    Kind,
    ProbeAnswer,
    ProbeCancel,
    ProbeRequest,
    PublishedUpdate,
    RevokePromise,
    SubscribeTo,
    UnsubscribeFrom,
    UpdateAck,
    encode,
    read_value,
)
from tupelo.federation.brokers.probing import ProbeEvaluation, Probing
from tupelo.federation.brokers.standing import (
    BrokerMetadata,
    Collected,
    Deliver,
    Lost,
    Reply,
    RunningCollect,
    StandingRequest,
    StandingSubscription,
    encode_metadata,
    read_metadata_of,
    readable,
    reply,
)
from tupelo.federation.brokers.tables import (
    Application,
    EncodedPattern,
    IsEmpty,
    LocalApplication,
    Matching,
    OnlyAt,
    PruningPromises,
    Routes,
    SendTo,
    Tree,
    encode_checked,
)

if TYPE_CHECKING:
    from tupelo.federation.groups.group import Group
    from tupelo.federation.groups.membership import Membership, MembershipId


PublishDone = Callable[[], None]

KEYS_MAX = 1_000
"""The most promises that are revoked in one message."""


class UpdateInFlight:
    """An update at one broker: the number of neighbours whose acknowledgement is awaited."""

    def __init__(self, done: PublishDone) -> None:
        self.waiting = 1
        self._done = done

    def arrived(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self._done()


class Publishing:
    """The updates that a broker sends on. Only neighbours whose promises are revoked acknowledge an
    update; no others are waited for."""

    def __init__(self, tree: Tree, send: SendTo) -> None:
        self._tree = tree
        self._send = send
        self._hops = 0
        self._in_flight: dict[int, tuple[str, UpdateInFlight]] = {}
        self._cut: set[str] = set()
        self._of: Counter[str] = Counter()

    def heard(self, edge: str, hop: int) -> PublishDone:
        """A neighbour has sent an update or a revocation. Returns the function to call when all
        hosts beyond this one have acknowledged it."""
        if not hop:
            return _nobody_waits
        self._tree.check_room(edge, self._of[edge])
        self._of[edge] += 1

        def done() -> None:
            self._of[edge] -= 1
            self._send(edge, UpdateAck(hop))

        return done

    def send(
        self,
        update: PublishedUpdate | None,
        edges: list[str],
        revoked: dict[str, list[str]],
        done: PublishDone,
    ) -> None:
        """Send an update over these edges, and the revoked promises over theirs. `done` is called
        when all revocations are acknowledged, perhaps before this returns."""
        pending = UpdateInFlight(done)
        wanted = dict.fromkeys(edges)
        for edge in wanted | dict.fromkeys(revoked):
            if edge in self._cut:
                continue
            keys, *others = _split_keys(revoked.get(edge, []))
            hop = self._expect(edge, pending) if keys else 0
            if update is not None and edge in wanted:
                self._send(
                    edge, PublishedUpdate(hop, update.host, update.body, keys, update.number)
                )
            else:
                self._send(edge, RevokePromise(hop, keys))
            for more in others:
                self._send(edge, RevokePromise(self._expect(edge, pending), more))
        pending.arrived()

    def _expect(self, edge: str, pending: UpdateInFlight) -> int:
        self._hops += 1
        self._in_flight[self._hops] = (edge, pending)
        pending.waiting += 1
        return self._hops

    def heard_ack(self, edge: str, message: UpdateAck) -> None:
        neighbour, update = self._in_flight.get(message.hop, ("", None))
        if update is not None and neighbour == edge:
            del self._in_flight[message.hop]
            update.arrived()

    def cut(self, hosts: frozenset[str]) -> None:
        """Stop waiting for hosts that are out of reach."""
        self._cut |= hosts
        for hop, (edge, update) in list(self._in_flight.items()):
            if edge in hosts:
                del self._in_flight[hop]
                update.arrived()

    def end(self) -> None:
        in_flight, self._in_flight = self._in_flight, {}
        for _, update in in_flight.values():
            update.arrived()


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
        send: SendTo,
        *,
        deliver_result: DeliverResult,
        deliver_update: Callable[[HostResult, Any, Matching], None],
        prune: bool,
        asks_again: bool,
    ) -> None:
        self.tree = tree
        self.cut_off: set[str] = set()
        self._local = local
        self._send_over_link = send
        self._deliver_update = deliver_update
        self._asks_again = asks_again
        self.over = False
        self.promises = PruningPromises(lambda edge, keys: self.collecting.released(edge, keys))
        self.routes = Routes(tree, self._send, self.promises.release, self._asks_no_more)
        self.probing = Probing(tree, self.routes, self.promises, local, self._send, prune)
        self.collecting = Collecting(
            tree, self.promises, local, self._send, deliver_result, asks_again
        )
        self.publishing = Publishing(tree, self._send)

    def _send(self, edge: str, message: BrokerMessage) -> None:
        if not self.over and edge not in self.cut_off:
            self._send_over_link(edge, message)

    # Messages

    def heard(self, edge: str, message: AnyBrokerMessage) -> None:
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
                self.publishing.heard_ack(edge, message)
            case ProbeRequest():
                pattern = self._local.read_pattern(message.pattern)
                self.probing.heard_question(edge, message, pattern)
            case ProbeAnswer():
                self.probing.heard_answer(edge, message)
            case ProbeCancel():
                self.probing.heard_cancel(edge, message)
            case CollectRequest():
                pattern = self._local.read_pattern(message.pattern)
                self.collecting.heard_collect(edge, message, pattern)
            case CollectResult():
                self.collecting.heard_result(edge, message)
            case CollectCancel():
                self.collecting.heard_cancel(edge, message)

    # Updates

    @property
    def is_idle(self) -> bool:
        """Whether no host needs an update of this host. Promises are only given to hosts that have
        subscribed, so there are none to revoke either."""
        return self.routes.is_idle and self.collecting.is_idle and self.probing.is_idle

    def publish(self, body: bytes, number: int, done: PublishDone) -> None:
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

    def _asks_no_more(self, edge: str, key: str) -> None:
        self.probing.asks_no_more(edge, key)
        self.promises.forget(edge, [key])

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


__all__ = ["Application", "Broker", "Collected", "Reply", "StandingRequest"]

logger = logging.getLogger("tupelo")

KINDS: dict[tuple[str, str], Kind] = {
    ("single", "any"): "single any",
    ("single", "all"): "single all",
    ("persistent", "any"): "persistent any",
}


class Broker:
    """The broker of one name at one host. The brokers of one name in a group work together.

    `prune` allows promises: a host that has nothing for a pattern promises to report its next
    match, and is not asked until then. With `asks_again`, each update of this host makes the broker
    ask the application for its state for all standing collects; without, only those that the update
    matches are looked at. `only_at(pattern)` names the only host that can have matches, if there is
    one: a collect goes only there. `is_empty(pattern)` tells whether this host has nothing for all
    patterns with the same key; by default, an empty state for the pattern itself means that.
    """

    def __init__(
        self,
        group: Group,
        name: str,
        application: Application,
        *,
        prune: bool = True,
        asks_again: bool = True,
        only_at: OnlyAt | None = None,
        is_empty: IsEmpty | None = None,
    ) -> None:
        self.name = name
        self.sent: Counter[str] = Counter()
        """The number of messages that were sent, by type."""
        self._me = group.me
        self._group = group
        self._local = LocalApplication(self._me, application, only_at, is_empty)
        self._prune = prune
        self._asks_again = asks_again
        self._numbers = 0
        self._since: MembershipId | None = None
        self._subscriptions: dict[bytes, dict[StandingSubscription, None]] = {}
        self._collects: dict[int, RunningCollect] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._closed = False
        self._incarnations: dict[str, str] = {}
        self._epoch = self._new_epoch(Tree(self._me, None, [self._me]))
        self._sender = group.part(name, self, AnyBrokerMessage)

    def _new_epoch(self, tree: Tree) -> BrokerEpoch:
        return BrokerEpoch(
            tree,
            self._local,
            self._send,
            deliver_result=self._deliver_result,
            deliver_update=self._deliver_update,
            prune=self._prune,
            asks_again=self._asks_again,
        )

    def _send(self, edge: str, message: BrokerMessage) -> None:
        self.sent[type(message).__name__] += 1
        self._sender.send(edge, msgspec.Raw(encode(message)))

    @property
    def hosts(self) -> frozenset[str]:
        """The ids of the hosts that take part now."""
        return self._epoch.tree.hosts

    def under_way(self) -> list[ProbeEvaluation]:
        """The probes that are not answered, for the lab and for diagnosis."""
        return self._epoch.probing.under_way()

    # Operations

    async def publish(self, update: Any) -> None:
        """Send an update to every host with a matching subscription or collect. When this returns
        the update is on its way, and all promises that it breaks are revoked."""
        body = encode_checked(update, "update")
        await self._group.flushed()
        number = self._local.published(body)
        if self._epoch.is_idle:
            return
        revoked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._epoch.publish(body, number, lambda: _set(revoked))
        await self._until(revoked)

    async def _until(self, done: asyncio.Future[None]) -> None:
        """Wait for answers of other hosts; raises HostClosed if this broker is closed meanwhile."""
        if self._closed:
            raise HostClosed("this broker was closed")
        self._waiting[done] = None
        try:
            await done
        finally:
            del self._waiting[done]

    def subscribe(self, pattern: Any, deliver: Callable[[str, Any], None]) -> StandingRequest:
        """Call `deliver(host, update)` for each matching update, also of this host, until the
        returned request is cancelled."""

        def tell(reply: Reply) -> None:
            deliver(reply.host, reply.items[0])

        return self._add_subscription(
            StandingSubscription(self._local.pattern(pattern), tell, None, collects=False)
        )

    async def probe(self, pattern: Any, extent: Extent) -> Collected:
        """The current state: of one host that is not empty (`extent` "any"), or of all hosts."""
        check_word("extent", extent, ("any", "all"))
        encoded_pattern = self._local.pattern(pattern)
        async with self._group.operating():
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            epoch = self._epoch
            asked = epoch.probing.ask(encoded_pattern, extent, None, lambda _: _set(done))
            try:
                await self._until(done)
            finally:
                epoch.probing.quit(asked)
            return _collected(asked, epoch.tree)

    def collect(
        self,
        pattern: Any,
        duration: Duration,
        extent: Extent,
        deliver: Deliver,
        lost: Lost | None = None,
    ) -> StandingRequest:
        """Call `deliver(reply)` for the current state and for later updates. A single collect ends
        when one host (`extent` "any"), or each host, has answered with something; a persistent
        collect ends when it is cancelled. Matches at this host are delivered before this returns.
        `lost(hosts)` is called for hosts whose answers cannot come."""
        check_word("duration", duration, ("single", "persistent"))
        check_word("extent", extent, ("any", "all"))
        encoded_pattern = self._local.pattern(pattern)
        kind = KINDS.get((duration, extent))
        if kind is None:
            subscription = StandingSubscription(encoded_pattern, deliver, lost, collects=True)
            self._add_subscription(subscription)
            self._ask_missing(subscription)
            return subscription
        self._require_room()
        self._numbers += 1
        number = self._numbers
        collect = RunningCollect(number, kind, encoded_pattern, deliver, lost)
        self._collects[number] = collect
        collect.remove = lambda: self._end_collect(number)
        self._epoch.collecting.begin(number, kind, encoded_pattern, ())
        return collect

    def _add_subscription(self, subscription: StandingSubscription) -> StandingSubscription:
        if subscription.pattern.encoded not in self._subscriptions:
            self._require_room()
        self._subscriptions.setdefault(subscription.pattern.encoded, {})[subscription] = None
        subscription.remove = lambda: self._remove_subscription(subscription)
        self._epoch.routes.want(self._me, subscription.pattern)
        return subscription

    def _require_room(self) -> None:
        if len(self._subscriptions) + len(self._collects) >= tables.PATTERNS_MAX:
            raise Refused(f"{tables.PATTERNS_MAX} subscriptions and collects stand here already")

    def _remove_subscription(self, subscription: StandingSubscription) -> None:
        if subscription.asking is not None:
            self._epoch.probing.quit(subscription.asking)
        encoded = subscription.pattern.encoded
        same = self._subscriptions[encoded]
        del same[subscription]
        if not same:
            del self._subscriptions[encoded]
            self._epoch.routes.unwant(self._me, encoded)

    def _end_collect(self, number: int) -> None:
        del self._collects[number]
        self._epoch.collecting.end(number)

    @property
    def _all_subscriptions(self) -> list[StandingSubscription]:
        return [subscription for same in self._subscriptions.values() for subscription in same]

    # Incoming results

    def _deliver_update(self, found: HostResult, value: Any, matches: Matching) -> None:
        """Deliver an update, of another host or of this one, to the subscriptions that match."""
        for same in list(self._subscriptions.values()):
            if same and matches(next(iter(same)).pattern):  # A callback may cancel others.
                for subscription in list(same):
                    if not subscription.collects:
                        subscription.deliver(Reply(found.host, [value], True))
                    elif subscription.awaits(found.host):
                        subscription.held.append(found)
                    else:
                        subscription.tell(found, self._incarnation_of(found.host))

    def _incarnation_of(self, host: str) -> str:
        return self._incarnations.get(host, "")

    def _deliver_result(self, number: int, found: HostResult, is_last: bool) -> None:
        """Deliver a result for a collect of this host."""
        collect = self._collects.get(number)
        if collect is not None:
            collect.found(found)
            if is_last:
                collect.cancel()

    def _ask_missing(self, subscription: StandingSubscription) -> None:
        """Probe the hosts whose state a persistent collect of all does not have yet."""
        hosts = self._epoch.tree.hosts
        only_at = self._local.only_at(subscription.pattern)
        missing = (hosts if only_at is None else hosts & {only_at}) - subscription.have
        gone = {found.host for found in subscription.held} - missing
        subscription.tell_held(gone, self._incarnation_of)
        if not missing:
            return
        epoch = self._epoch

        def done(asked: ProbeEvaluation) -> None:
            subscription.asking = None
            answered = missing - asked.lost
            subscription.have |= answered
            subscription.tell_lost(frozenset(asked.lost))
            for host in answered.difference(one.host for one in asked.found):
                subscription.tell_empty(host, self._incarnation_of(host))
            for found in asked.found:
                subscription.tell(found, self._incarnation_of(found.host))
            delivered = {(one.host, one.number) for one in asked.found if one.is_update}
            subscription.held = [
                one
                for one in subscription.held
                if one.host not in answered and (one.host, one.number) not in delivered
            ]
            # Otherwise, and for hosts that are cut off, the next membership asks again.
            if not epoch.over:
                subscription.tell_held(asked.lost - epoch.cut_off, self._incarnation_of)

        only = None if missing == hosts else missing
        asked = epoch.probing.ask(subscription.pattern, "all", only, done)
        subscription.asking = None if asked.over else asked

    # As a part of the group: see `GroupPart`

    def metadata(self) -> bytes | None:
        if self._closed:
            return None
        return encode_metadata(self._since, self._subscriptions, self._collects.values())

    def install(self, membership: Membership) -> None:
        before = self._epoch
        before.end()
        self._incarnations = {
            host: member.incarnation for host, member in membership.members.items()
        }
        metadata_of = {} if self._closed else read_metadata_of(membership, self.name)
        mine = metadata_of.get(self._me)
        if mine is None:  # This host is not in the membership with this broker, or not any more.
            mine, metadata_of = BrokerMetadata(), {}
        tree = Tree(self._me, membership, metadata_of or [self._me])
        self._since = membership.id if metadata_of else None
        epoch = self._epoch = self._new_epoch(tree)
        for host, metadata in metadata_of.items():
            self._install_metadata(epoch, host, metadata)
        self._announce_changes(epoch, mine)
        # Hosts of the same membership as before: no message of them was lost.
        kept = frozenset(
            host
            for host, metadata in metadata_of.items()
            if metadata.since == mine.since is not None and host not in before.cut_off
        )
        for host, metadata in metadata_of.items():
            for one in metadata.collects:
                epoch.collecting.answer(CollectId(host, one.number), host not in kept)
        for subscription in self._all_subscriptions:
            subscription.lost = frozenset()
            if subscription.collects:
                subscription.have &= kept | {self._me}
                self._ask_missing(subscription)

    def _install_metadata(self, epoch: BrokerEpoch, host: str, metadata: BrokerMetadata) -> None:
        """Put the subscriptions and collects of a host, from its metadata, in the tables."""
        edge = epoch.tree.toward(host) or self._me
        for pattern in self._local.read_patterns(host, metadata.wants):
            if pattern is not None:
                epoch.routes.install(edge, pattern)
        patterns = self._local.read_patterns(host, [one.pattern for one in metadata.collects])
        for one, pattern in zip(metadata.collects, patterns, strict=True):
            if pattern is not None:
                collect_id = CollectId(host, one.number)
                epoch.collecting.install(collect_id, one.kind, pattern, one.answered, one.chosen)

    def _announce_changes(self, epoch: BrokerEpoch, mine: BrokerMetadata) -> None:
        """Announce what has changed here since the metadata of this host was written."""
        for encoded in mine.wants:
            if encoded not in self._subscriptions:
                epoch.routes.unwant(self._me, encoded)
        for same in list(self._subscriptions.values()):
            epoch.routes.want(self._me, next(iter(same)).pattern)
        known = {one.number: one for one in mine.collects}
        for number in known.keys() - self._collects.keys():
            epoch.collecting.end(number)
        for number, collect in list(self._collects.items()):
            if collect.kind == "persistent any":
                chosen = known[number].chosen if number in known else None
                collect.settle(chosen if chosen in epoch.tree.hosts else None)
            if collect.kind == "single all" and epoch.tree.hosts <= collect.answered:
                collect.cancel()
            elif number not in known:
                epoch.collecting.begin(number, collect.kind, collect.pattern, collect.answered)

    async def settle(self, membership: Membership) -> None:
        """Nothing to do: the answers are on their way."""

    def heard(self, neighbour: str, source: str, message: AnyBrokerMessage) -> None:
        if source in self._epoch.tree.neighbours:
            self._epoch.heard(source, message)

    async def asked(self, neighbour: str, source: str, message: Any) -> Any:
        raise BadArgument("message", "no request: brokers only send messages", message)

    def cut(self, hosts: frozenset[str]) -> None:
        self._epoch.cut(hosts)
        lost = hosts & self._epoch.tree.hosts
        for standing in [*self._all_subscriptions, *self._collects.values()]:
            standing.cut(lost)

    def close(self) -> None:
        """Cancel all standing requests and take part no more; other hosts know after the next
        `Group.renew`."""
        self._closed = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(HostClosed("this broker was closed"))
        for standing in [*self._all_subscriptions, *self._collects.values()]:
            standing.cancel()


def _collected(asked: ProbeEvaluation, tree: Tree) -> Collected:
    if asked.is_satisfied:
        return readable(Collected([reply(asked.found[0])], frozenset(), frozenset()))
    lost = frozenset(asked.lost)
    have = {one.host for one in asked.found if not one.is_update}
    return readable(Collected([reply(one) for one in asked.found], tree.hosts - lost - have, lost))


def check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    """BadArgument unless the value is one of these words."""
    if value not in words:
        *first, last = (f'"{word}"' for word in words)
        raise BadArgument(name, f"{', '.join(first)} or {last}", value)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
