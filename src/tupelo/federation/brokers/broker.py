"""A broker: publish, subscribe and collect among the hosts of a group.

It is a part of the group: its tables follow the tree of the current membership. Subscriptions and
standing collects are in its metadata, so that a new membership begins with all tables in place;
messages within a membership only tell of changes since.

`probe` is an operation of the group: the membership does not change meanwhile. `publish` does not
wait for a change: an update reaches all hosts of the membership in which it is sent. `subscribe`
and `collect` register a standing request that survives changes of the membership; they may be
called at any time.

A message passes: Broker → BrokerEpoch (the state of one membership) → one of Routes, Publishing,
Probing, Collecting → Broker._say → the group.
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
from tupelo.federation.brokers.collecting import CollectId
from tupelo.federation.brokers.epoch import BrokerEpoch
from tupelo.federation.brokers.messages import (
    AnySaid,
    BrokerMessage,
    Duration,
    Extent,
    HostResult,
    Kind,
    encode,
)
from tupelo.federation.brokers.probing import ProbeEvaluation
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
    IsEmpty,
    LocalApplication,
    Matching,
    OnlyAt,
    Tree,
    encode_checked,
)

if TYPE_CHECKING:
    from tupelo.federation.groups.group import Group
    from tupelo.federation.groups.membership import Membership, MembershipId

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
        self.sent_bytes: Counter[str] = Counter()
        self._me = group.me
        self._group = group
        self._local = LocalApplication(self._me, application, only_at, is_empty)
        self._prune = prune
        self._asks_again = asks_again
        self._numbers = 0
        self._since: MembershipId | None = None
        self._watching: dict[bytes, dict[StandingSubscription, None]] = {}
        self._collections: dict[int, RunningCollect] = {}
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._closed = False
        self._lives: dict[str, str] = {}
        self._now = self._begin_membership(Tree(self._me, None, [self._me]))
        self._sender = group.part(name, self, AnySaid)

    def _begin_membership(self, tree: Tree) -> BrokerEpoch:
        return BrokerEpoch(
            tree,
            self._local,
            self._say,
            deliver_result=self._found,
            deliver_update=self._updated,
            prune=self._prune,
            asks_again=self._asks_again,
        )

    def _say(self, edge: str, message: BrokerMessage) -> None:
        body = encode(message)
        kind = type(message).__name__
        self.sent[kind] += 1
        self.sent_bytes[kind] += len(body)
        self._sender.send(edge, msgspec.Raw(body))

    @property
    def hosts(self) -> frozenset[str]:
        """The ids of the hosts that take part now."""
        return self._now.tree.hosts

    def under_way(self) -> list[ProbeEvaluation]:
        """The probes that are not answered, for the lab and for diagnosis."""
        return self._now.probing.under_way()

    # Operations

    async def publish(self, update: Any) -> None:
        """Send an update to every host with a matching subscription or collect. When this returns
        the update is on its way, and all promises that it breaks are revoked."""
        body = encode_checked(update, "update")
        await self._group.flushed()
        number = self._local.published(body)
        if self._now.is_idle:
            return
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._now.publish(body, number, lambda: _set(told))
        await self._until(told)

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

        return self._watch(
            StandingSubscription(self._local.pattern(pattern), tell, None, collects=False)
        )

    async def probe(self, pattern: Any, extent: Extent) -> Collected:
        """The current state: of one host that is not empty (`extent` "any"), or of all hosts."""
        _check("extent", extent, ("any", "all"))
        asked_for = self._local.pattern(pattern)
        async with self._group.operating():
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            now = self._now
            asked = now.probing.ask(asked_for, extent, None, lambda _: _set(done))
            try:
                await self._until(done)
            finally:
                now.probing.quit(asked)
            return _collected(asked, now.tree)

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
        _check("duration", duration, ("single", "persistent"))
        _check("extent", extent, ("any", "all"))
        asked_for = self._local.pattern(pattern)
        kind = KINDS.get((duration, extent))
        if kind is None:
            watching = StandingSubscription(asked_for, deliver, lost, collects=True)
            self._watch(watching)
            self._ask_missing(watching)
            return watching
        self._require_room()
        number = self._next()
        collection = RunningCollect(number, kind, asked_for, deliver, lost)
        self._collections[number] = collection
        collection.remove = lambda: self._end_collection(number)
        self._now.collecting.begin(number, kind, asked_for, ())
        return collection

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _watch(self, watching: StandingSubscription) -> StandingSubscription:
        if watching.pattern.encoded not in self._watching:
            self._require_room()
        self._watching.setdefault(watching.pattern.encoded, {})[watching] = None
        watching.remove = lambda: self._unwatch(watching)
        self._now.routes.want(self._me, watching.pattern)
        return watching

    def _require_room(self) -> None:
        if len(self._watching) + len(self._collections) >= tables.PATTERNS_MAX:
            raise Refused(f"{tables.PATTERNS_MAX} subscriptions and collects stand here already")

    def _unwatch(self, watching: StandingSubscription) -> None:
        if watching.asking is not None:
            self._now.probing.quit(watching.asking)
        encoded = watching.pattern.encoded
        same = self._watching[encoded]
        del same[watching]
        if not same:
            del self._watching[encoded]
            self._now.routes.unwant(self._me, encoded)

    def _end_collection(self, number: int) -> None:
        del self._collections[number]
        self._now.collecting.end(number)

    @property
    def _all_watching(self) -> list[StandingSubscription]:
        return [watching for same in self._watching.values() for watching in same]

    # Incoming results

    def _updated(self, found: HostResult, value: Any, matches: Matching) -> None:
        """Deliver an update, of another host or of this one, to the subscriptions that match."""
        for same in list(self._watching.values()):
            if same and matches(next(iter(same)).pattern):  # A callback may cancel others.
                for watching in list(same):
                    if not watching.collects:
                        watching.deliver(Reply(found.host, [value], True))
                    elif watching.awaits(found.host):
                        watching.held.append(found)
                    else:
                        watching.tell(found, self._life_of(found.host))

    def _life_of(self, host: str) -> str:
        return self._lives.get(host, "")

    def _found(self, number: int, found: HostResult, is_last: bool) -> None:
        """Deliver a result for a collect of this host."""
        collection = self._collections.get(number)
        if collection is not None:
            collection.found(found)
            if is_last:
                collection.cancel()

    def _ask_missing(self, watching: StandingSubscription) -> None:
        """Probe the hosts whose state a persistent collect of all does not have yet."""
        hosts = self._now.tree.hosts
        only_at = self._local.only_at(watching.pattern)
        missing = (hosts if only_at is None else hosts & {only_at}) - watching.have
        gone = {found.host for found in watching.held} - missing
        watching.tell_held(gone, self._life_of)
        if not missing:
            return
        now = self._now

        def done(asked: ProbeEvaluation) -> None:
            watching.asking = None
            answered = missing - asked.lost
            watching.have |= answered
            watching.tell_lost(frozenset(asked.lost))
            for host in answered.difference(one.host for one in asked.found):
                watching.tell_empty(host, self._life_of(host))
            for found in asked.found:
                watching.tell(found, self._life_of(found.host))
            told = {(one.host, one.number) for one in asked.found if one.is_update}
            watching.held = [
                one
                for one in watching.held
                if one.host not in answered and (one.host, one.number) not in told
            ]
            # Otherwise, and for hosts that are cut off, the next membership asks again.
            if not now.over:
                watching.tell_held(asked.lost - now.cut_off, self._life_of)

        only = None if missing == hosts else missing
        asked = now.probing.ask(watching.pattern, "all", only, done)
        watching.asking = None if asked.over else asked

    # As a part of the group: see `GroupPart`

    def metadata(self) -> bytes | None:
        if self._closed:
            return None
        return encode_metadata(self._since, self._watching, self._collections.values())

    def install(self, membership: Membership) -> None:
        before = self._now
        before.end()
        self._lives = {host: member.incarnation for host, member in membership.members.items()}
        metadata_of = {} if self._closed else read_metadata_of(membership, self.name)
        mine = metadata_of.get(self._me)
        if mine is None:  # This host is not in the membership with this broker, or not any more.
            mine, metadata_of = BrokerMetadata(), {}
        tree = Tree(self._me, membership, metadata_of or [self._me])
        self._since = membership.id if metadata_of else None
        now = self._now = self._begin_membership(tree)
        for host, metadata in metadata_of.items():
            self._install_metadata(now, host, metadata)
        self._say_changes(now, mine)
        # Hosts of the same membership as before: no message of them was lost.
        kept = frozenset(
            host
            for host, metadata in metadata_of.items()
            if metadata.since == mine.since is not None and host not in before.cut_off
        )
        for host, metadata in metadata_of.items():
            for one in metadata.collects:
                now.collecting.answer(CollectId(host, one.number), host not in kept)
        for watching in self._all_watching:
            watching.lost = frozenset()
            if watching.collects:
                watching.have &= kept | {self._me}
                self._ask_missing(watching)

    def _install_metadata(self, now: BrokerEpoch, host: str, metadata: BrokerMetadata) -> None:
        """Put the subscriptions and collects of a host, from its metadata, in the tables."""
        edge = now.tree.toward(host) or self._me
        for pattern in self._local.read_patterns(host, metadata.wants):
            if pattern is not None:
                now.routes.install(edge, pattern)
        patterns = self._local.read_patterns(host, [one.pattern for one in metadata.collects])
        for one, pattern in zip(metadata.collects, patterns, strict=True):
            if pattern is not None:
                collect_id = CollectId(host, one.number)
                now.collecting.install(collect_id, one.kind, pattern, one.answered, one.chosen)

    def _say_changes(self, now: BrokerEpoch, mine: BrokerMetadata) -> None:
        """Announce what has changed here since the metadata of this host was written."""
        for encoded in mine.wants:
            if encoded not in self._watching:
                now.routes.unwant(self._me, encoded)
        for same in list(self._watching.values()):
            now.routes.want(self._me, next(iter(same)).pattern)
        known = {one.number: one for one in mine.collects}
        for number in known.keys() - self._collections.keys():
            now.collecting.end(number)
        for number, collection in list(self._collections.items()):
            if collection.kind == "persistent any":
                chosen = known[number].chosen if number in known else None
                collection.settle(chosen if chosen in now.tree.hosts else None)
            if collection.kind == "single all" and now.tree.hosts <= collection.answered:
                collection.cancel()
            elif number not in known:
                now.collecting.begin(
                    number, collection.kind, collection.pattern, collection.answered
                )

    async def settle(self, membership: Membership) -> None:
        """Nothing to do: the answers are on their way."""

    def heard(self, neighbour: str, source: str, message: AnySaid) -> None:
        if source in self._now.tree.neighbours:
            self._now.heard(source, message)

    async def asked(self, neighbour: str, source: str, message: Any) -> Any:
        raise BadArgument("message", "no request: brokers only send messages", message)

    def cut(self, hosts: frozenset[str]) -> None:
        self._now.cut(hosts)
        lost = hosts & self._now.tree.hosts
        for standing in [*self._all_watching, *self._collections.values()]:
            standing.cut(lost)

    def close(self) -> None:
        """Cancel all standing requests and take part no more; other hosts know after the next
        `Group.renew`."""
        self._closed = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(HostClosed("this broker was closed"))
        for standing in [*self._all_watching, *self._collections.values()]:
            standing.cancel()


def _collected(asked: ProbeEvaluation, tree: Tree) -> Collected:
    if asked.is_satisfied:
        return readable(Collected([reply(asked.found[0])], frozenset(), frozenset()))
    lost = frozenset(asked.lost)
    have = {one.host for one in asked.found if not one.is_update}
    return readable(Collected([reply(one) for one in asked.found], tree.hosts - lost - have, lost))


def _check(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise BadArgument(name, " or ".join(map(repr, words)), value)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
