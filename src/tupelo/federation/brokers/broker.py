"""A broker: publish, subscribe and collect among the hosts of a group.

It is a part of the group: its tables follow the tree of the membership in force. What stands, that
is subscriptions and collects, is on its metadata, so that a new membership begins with all tables
in place; what is said within a membership only tells what has changed since.

`probe` is an operation of the group: no change of it comes between. `publish` waits for none: what
is published reaches all hosts of the membership in which it was said. `subscribe` and `collect`
begin something that stands through all changes, and may be called at any time."""

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
    """The broker of one name at one host. Brokers of one name, at the hosts of a group, are one.

    `prune` lets it promise that it is empty, so that it is not asked again. With `asks_again` the
    application is asked anew after each of its own updates whether there is something now for what
    stands; without, an update that brings something always matches. `only_at` says which patterns
    concern one host alone: a collect for them goes there, and not to the others. `is_empty` says
    whether all patterns of the key of one are empty here, if that is more than its state being so.
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
        """How many messages it has sent, of each kind."""
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
        self._voice = group.part(name, self, AnySaid)

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
        self._voice.send(edge, msgspec.Raw(body))

    @property
    def hosts(self) -> frozenset[str]:
        """Those that take part now."""
        return self._now.tree.hosts

    def under_way(self) -> list[ProbeEvaluation]:
        """The questions that are asked and not answered: for the lab, and for whoever looks."""
        return self._now.probing.under_way()

    # What a user does

    async def publish(self, update: Any) -> None:
        """Tell every host that wants updates like this. When this returns it is on its way, and
        nobody believes any more that there is nothing here for it."""
        body = encode_checked(update, "update")
        await self._group.flushed()
        number = self._local.published(body)
        if self._now.is_idle:
            return
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._now.publish(body, number, lambda: _set(told))
        await self._until(told)

    async def _until(self, done: asyncio.Future[None]) -> None:
        """Wait for others, who may be silent; HostClosed if this broker is closed meanwhile."""
        if self._closed:
            raise HostClosed("this broker was closed")
        self._waiting[done] = None
        try:
            await done
        finally:
            del self._waiting[done]

    def subscribe(self, pattern: Any, deliver: Callable[[str, Any], None]) -> StandingRequest:
        """Be told of updates that match, of this host as well: who published it, and what."""

        def tell(reply: Reply) -> None:
            deliver(reply.host, reply.items[0])

        return self._watch(
            StandingSubscription(self._local.pattern(pattern), tell, None, collects=False)
        )

    async def probe(self, pattern: Any, extent: Extent) -> Collected:
        """What there is now: one answer of any host that is not empty, or those of all."""
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
        """Be told of what there is, and will be. A single collect ends when one host, or each of
        them, has answered with something; a persistent one when it is cancelled. What is here is
        delivered before this returns. `lost` is told of hosts whose answers cannot come."""
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

    # What comes in

    def _updated(self, found: HostResult, value: Any, matches: Matching) -> None:
        """An update has come, or was published here."""
        for same in list(self._watching.values()):
            if same and matches(next(iter(same)).pattern):  # One that hears may cancel another.
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
        """Something was found for a collect of this host."""
        collection = self._collections.get(number)
        if collection is not None:
            collection.found(found)
            if is_last:
                collection.cancel()

    def _ask_missing(self, watching: StandingSubscription) -> None:
        """Ask the hosts whose state a persistent collect of all has not got yet."""
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
            if not now.over:  # Else, and if it was cut off, the next membership asks again.
                watching.tell_held(asked.lost - now.cut_off, self._life_of)

        only = None if missing == hosts else missing
        asked = now.probing.ask(watching.pattern, "all", only, done)
        watching.asking = None if asked.over else asked

    # As a part of the group

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
        if mine is None:  # The membership does not know yet, or any more, that we take part.
            mine, metadata_of = BrokerMetadata(), {}
        tree = Tree(self._me, membership, metadata_of or [self._me])
        self._since = membership.id if metadata_of else None
        now = self._now = self._begin_membership(tree)
        for host, metadata in metadata_of.items():
            self._install_metadata(now, host, metadata)
        self._say_changes(now, mine)
        # With these we were in the same membership until now, and nothing that was said is lost.
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
        """What stands for a host, as everyone knows it."""
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
        """What has changed here since our metadata was written."""
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
        """Nothing is left to do: the answers are on their way."""

    def heard(self, neighbour: str, source: str, message: AnySaid) -> None:
        if source in self._now.tree.neighbours:
            self._now.heard(source, message)

    async def asked(self, neighbour: str, source: str, message: Any) -> Any:
        raise BadArgument("message", "nothing: a broker is not asked so", message)

    def cut(self, hosts: frozenset[str]) -> None:
        self._now.cut(hosts)
        lost = hosts & self._now.tree.hosts
        for standing in [*self._all_watching, *self._collections.values()]:
            standing.cut(lost)

    def close(self) -> None:
        """Take part no more. Others know when the group is renewed."""
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
