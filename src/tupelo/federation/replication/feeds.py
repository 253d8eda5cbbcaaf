"""The extension of all feeds of one host: what they say to the same feeds of other hosts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tupelo.errors import BadArgument, CannotSend, JournalError, NotAllowed, SpaceClosed
from tupelo.federation.links import wire
from tupelo.federation.replication import messages as said
from tupelo.federation.replication.feed import Admits, Feed
from tupelo.federation.replication.placement import NOTHING, LaneRules, Policy
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer

CHANNEL = "replication"


def replication_of(core: HostCore) -> Replication:
    """The feeds that this host has."""
    found = core.extensions.get(CHANNEL)
    return found if isinstance(found, Replication) else Replication(core)


class Replication:
    """The feeds of one host, by name. A host has one, made by `replication_of`."""

    def __init__(self, core: HostCore) -> None:
        self.feeds: dict[str, Feed] = {}
        self.sent: Counter[str] = Counter()
        """How many messages of each kind this host has sent."""
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._due: dict[Feed, None] = {}
        self._telling: asyncio.Handle | None = None
        self._posting: set[Feed] = set()
        core.extensions.listen(CHANNEL, self, said.read, self._heard)
        core.extensions.leaving.append(self._leave)

    def feed(
        self,
        space: str | HostedSpace,
        policy: Policy = NOTHING,
        *,
        only: Callable[[Entry], bool] | None = None,
        lanes: LaneRules | None = None,
        admits: Admits | None = None,
    ) -> Feed:
        """Begin to take part in a feed, of the name of a space of this host: what is in that space,
        and comes there, is its own stream, or parted into `lanes`; `only` says of an entry whether
        it is to be copied, and `admits` whether one may come from elsewhere. A feed that this host
        has already stays as it is. NotAllowed for a space that hosts do not share; the feed of what
        a model keeps for such a space has no partners."""
        hosted = self._core.make_space(space) if isinstance(space, str) else space
        found = self.feeds.get(hosted.name)
        if found is not None:
            if found.policy != policy:
                raise BadArgument("policy", f"{found.policy}, as it is by now", policy)
            return found
        if not hosted.shared and hosted.serves is None:
            raise NotAllowed("copy", hosted.name, "other hosts")
        feed = self.feeds[hosted.name] = Feed(self, self._core, hosted, policy, only, lanes, admits)
        for peer in list(self._core.peers.values()):
            if feed.may_partner(peer):
                feed.exchange.engaged(peer.id, late=True)
        self.post(feed)
        return feed

    def ended(self, feed: Feed) -> None:
        if self.feeds.get(feed.name) is feed:
            del self.feeds[feed.name]
            self._due.pop(feed, None)
            feed.exchange.outbox.clear()
            feed.exchange.outbox.append((feed.partners, said.LeavesFeed(feed.name)))
            self.post(feed)

    # For the host

    def engaged(self, peer: Peer) -> None:
        for feed in list(self.feeds.values()):
            if feed.may_partner(peer):
                feed.exchange.engaged(peer.id)
                self.post(feed)

    def departed(self, peer: Peer) -> None:
        for feed in list(self.feeds.values()):
            feed.departed(peer.id)
            self.post(feed)

    def _heard(self, peer: Peer, message: said.Said) -> None:
        feed = self.feeds.get(message.feed)
        if feed is not None and not feed.closed and feed.may_partner(peer):
            try:
                feed.heard(peer, message)
            except (SpaceClosed, JournalError):  # It cannot be kept: this is the end of the feed.
                feed.close()
            self.post(feed)

    # Leaving

    async def _leave(self) -> None:
        """The host is about to be stopped: those who are engaged get what they do not have yet."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._core.answer_seconds):
                await asyncio.gather(*[self._hand(feed) for feed in self.feeds.values()])

    async def _hand(self, feed: Feed) -> None:
        """Wait until the others have what is here of a feed, as far as they take it. What they say
        in answer to what they hear comes before their answer to a `Tell`."""
        await feed.drawn()
        if any(stream.items for stream in feed.exchange.streams.values()):
            await self._hear_all(feed)  # Some may not have said yet that they have this feed.
            is_handed = False
            while not (is_handed and self._is_handed(feed)):
                await feed.drawn()
                is_handed = self._is_handed(feed)
                await self._hear_all(feed)

    def _is_handed(self, feed: Feed) -> bool:
        if feed.closed:
            return True
        self.tell(feed)
        return feed.is_handed

    async def _hear_all(self, feed: Feed) -> None:
        """Wait until all who may have this feed have heard what was said by now."""
        heard = [
            peer.talk.call(wire.DescribeHost(self._core.next_call(), brief=True), "leave")
            for peer in self._core.peers.values()
            if feed.may_partner(peer)
        ]
        await asyncio.gather(*heard, return_exceptions=True)

    async def stop(self) -> None:
        for feed in list(self.feeds.values()):
            await feed.stop()
        if self._telling is not None:
            self._telling.cancel()

    # Speaking

    def soon(self, feed: Feed) -> None:
        """There is something new to tell: with all else of this turn."""
        self._due[feed] = None
        if self._telling is None:
            self._telling = self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = None
        due, self._due = self._due, {}
        for feed in due:
            if not feed.closed:
                self.tell(feed)
                feed.notify()

    def tell(self, feed: Feed) -> None:
        """Tell the others what is new, now."""
        feed.exchange.tell()
        feed.relieve()
        self.post(feed)

    def post(self, feed: Feed) -> None:
        """Say what is in the outbox. A link may end while we speak, and more come into it."""
        if feed in self._posting:
            return
        self._posting.add(feed)
        try:
            while feed.exchange.outbox:
                hosts, message = feed.exchange.outbox.popleft()
                if hosts:
                    self._say(hosts, message)
        finally:
            self._posting.discard(feed)
        feed.await_answers()
        if feed.exchange.is_due and not feed.closed:
            self.soon(feed)

    def _say(self, hosts: list[str], message: said.Said) -> None:
        notice = wire.PartNotice(CHANNEL, wire.body(message))
        for host in hosts:
            peer = self._core.peers.get(host)
            if peer is not None:
                self.sent[type(message).__name__] += 1
                try:
                    peer.talk.say(notice)
                except CannotSend as error:
                    peer.talk.end(f"what is copied cannot be told: {error}")
