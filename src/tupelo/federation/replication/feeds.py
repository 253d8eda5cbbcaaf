"""The extension of all feeds of one host: what they say to the same feeds of other hosts."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING

from tupelo.errors import BadArgument, CannotSend, JournalError, NotAllowed, SpaceClosed
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.links import wire
from tupelo.federation.replication import messages as said
from tupelo.federation.replication.copies import CopyStore, encode_item
from tupelo.federation.replication.exchange import FeedExchange
from tupelo.federation.replication.messages import StreamMark
from tupelo.federation.replication.placement import (
    NOTHING,
    CopyAll,
    CopyKeeper,
    CopySome,
    HolderSearch,
    LaneRules,
    Policy,
)
from tupelo.federation.replication.streams import Numbered, Stream, host_of, is_signed, lane_name
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer


ITEM_BYTES_MAX = 8 * 2**20
"""An entry that needs more bytes than this stays where it is."""
CONTENT_BYTES_MAX = ITEM_BYTES_MAX - 4 * 1024
"""What has at most so many bytes can be copied, with all that goes with it."""


class ChangeCapture:
    """A change capture on one space. `entries` are those that were told of and live, by their
    arrival; `only` says which are told of; `soon` is called on the loop when there is something to
    `draw`, until which it is `awake`. What comes after it has `begun` has greater numbers than
    this."""

    def __init__(
        self,
        hosted: HostedSpace,
        only: Callable[[Entry], bool] | None,
        soon: Callable[[], object],
    ) -> None:
        self.entries: dict[int, Entry] = {}
        self._hosted = hosted
        self._port = hosted.port
        self._only = only
        self._soon = soon
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._gone: list[Entry] = []
        self._memory = Seen()  # While there is one, the space says what is gone for good.
        self.awake = True
        port = self._port
        with port.atomic():
            self._news = port.subscribe(
                ANY, None, None, None, None, sys.maxsize, available=False, returned=False
            )
            port.listen_to_removals(self._removed, self._memory)
            self._first = port.entries(held=True)
            self.begun = port.latest_arrival
        self._loop.call_soon(soon)

    def close(self) -> None:
        self._port.end_subscription(self._news)
        self._port.ignore_removals(self._removed, self._memory)

    # On any thread, under the lock of the space

    def _removed(self, entry: Entry) -> None:
        self._gone.append(entry)
        self.wake()

    def wake(self) -> bool:
        """There is news."""
        if not self.awake:
            self.awake = True
            try:
                if get_ident() == self._thread:
                    self._loop.call_soon(self._soon)
                else:
                    self._loop.call_soon_threadsafe(self._soon)
            except RuntimeError:  # The loop is closed.
                return False
        return True

    # On the loop

    def draw(self, after: int) -> tuple[Numbered, list[int], int]:
        """What has come, with its number, which is beyond `after`; the numbers of what has gone;
        and the position at which all that is durable."""
        with self._port.atomic():
            came = [*self._first, *(notice.subject for notice in self._news.backlog)]
            self._first = []
            self._news.backlog.clear()
            gone, self._gone = self._gone, []
            self.awake = bool(came or gone)
            if not self.awake and not self._news.waiting and not self._news.ended:
                self._news.waiting.append(self)
            position = self._port.position
        items = []
        for entry in came:
            if not entry.ended and entry.arrival > after and self._is_wanted(entry):
                after = entry.arrival
                self.entries[after] = entry
                items.append((after, entry))
        numbers = []
        for entry in gone:
            if self.entries.get(entry.arrival) is entry:
                del self.entries[entry.arrival]
                numbers.append(entry.arrival)
        return items, numbers, position

    def adopt(self, numbers: set[int]) -> set[int]:
        """These were told of in an earlier life: those that are not there any more."""
        there = {entry.arrival: entry for entry in self._first if entry.arrival in numbers}
        self.entries.update(there)
        return numbers - there.keys()

    def _is_wanted(self, entry: Entry) -> bool:
        if self._only is not None and not self._only(entry):
            return False
        try:
            size = len(encode_item(entry, 0.0))
        except UnicodeEncodeError as error:
            logger.warning("an entry of %r is not copied: %s", self._hosted.name, error)
            return False
        if size > ITEM_BYTES_MAX:
            logger.warning(
                "an entry of %r is not copied: it has %d bytes, and %d can be copied",
                self._hosted.name,
                size,
                ITEM_BYTES_MAX,
            )
            return False
        return True


logger = logging.getLogger("tupelo")

_MOVING = (said.HasFeed, said.MarksChanged, said.LeavesFeed, said.FetchFrom, said.HoldReply)
"""What is said that may change who holds what."""

PUSHED_MAX = 512 * 1024
"""With so many bytes unsent a host is told only that there is more, and asks for it when it can."""


__all__ = ["Feed", "host_of"]

Admits = Callable[[str, str, Entry], bool]
"""May this engaged host tell us that this host has written this item?"""


class Feed:
    """What the hosts that have a feed of this name write in their spaces of this name, each item at
    all of them, or at some, as the policy says.

    `copies` is the space in which the items are, those of this host too. `source` is the name of
    this host's own stream: its id, and the id of its space.
    """

    def __init__(
        self,
        replication: Replication,
        core: HostCore,
        space: HostedSpace,
        policy: Policy,
        only: Callable[[Entry], bool] | None,
        lanes: LaneRules | None,
        admits: Admits | None,
    ) -> None:
        self.name = space.name
        self.policy = policy
        self.space = space
        self.source = f"{core.id}/{self.space.port.id}"
        self._core = core
        self._replication = replication
        self._loop = asyncio.get_running_loop()
        self._shelf = CopyStore(core, space, measured=isinstance(policy, CopySome))
        self.copies = self._shelf.hosted
        self.exchange = FeedExchange(
            space.name,
            self.source,
            self._shelf,
            everything=isinstance(policy, CopyAll),
            has_room=self._has_room,
            admits_source=self._admits_source,
            admits_item=self._admits_item,
            identity=core.identity if is_signed(self.source) else None,
        )
        self._admits = admits
        self._lanes = lanes
        self._lane_of: dict[int, str] = {}  # of each own item, if there are lanes
        self._placing = HolderSearch(self.exchange, policy)
        self._keeper = CopyKeeper(self.exchange, policy, self._shelf, lanes)
        self._drawing: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self.watchers: list[Callable[[], None]] = []
        """Called on the loop when a stream has moved on here, or lost something."""
        self.closed = False
        self.listeners: list[Callable[[], object]] = []
        """Called on the loop when there may be news, of items or of hosts."""
        try:
            self._begin(only)
        except BaseException:
            self._shelf.close()
            raise

    def _begin(self, only: Callable[[Entry], bool] | None) -> None:
        for stream in self._shelf.streams():
            self.exchange.load(stream)
        self._capture = ChangeCapture(self.space, only, self._draw_soon)
        owned = [self.exchange.own] if self._lanes is None else self.exchange.owned()
        for own in owned:
            # What was told in an earlier life may not have been kept: whoever listens asks anew.
            own.tombstones = max(own.tombstones + 1, int(self._core.clock.now() * 1_000_000))
            if self._lanes is not None:
                self._lane_of.update(dict.fromkeys(own.items, own.source))
        lost = self._capture.adopt({number for own in owned for number in own.items})
        items, _, position = self._capture.draw(self._drawn_upto)
        if self.space.durable:
            self.space.port.flush(position)
        self._write(items, self._capture.begun)
        self._mark_removed(sorted(lost))

    # What is used

    @property
    def marks(self) -> dict[str, StreamMark]:
        """How much is here of each stream."""
        return self.exchange.marks

    @property
    def partners(self) -> list[str]:
        """The engaged hosts that have this feed."""
        return list(self.exchange.far)

    @property
    def holders(self) -> list[str]:
        """The engaged hosts that hold a copy of this host's stream."""
        return self._placing.holders

    @property
    def is_drawn(self) -> bool:
        """Is everything that was written in the space by now an item, if it can be one?"""
        return self._drawing is None and not self._capture.awake

    @property
    def is_handed(self) -> bool:
        """Was everybody told what it takes, or was asked to hold?"""
        return self.is_drawn and self.exchange.is_told and not self._placing.is_pending

    async def drawn(self) -> None:
        """Wait until everything that was written in the space is an item."""
        while not (self.is_drawn or self.closed):
            self._draw_soon()
            assert self._drawing is not None
            await asyncio.wait([self._drawing])

    def stream(self, source: str) -> Stream | None:
        return self.exchange.streams.get(source)

    def copy(self, source: str, number: int) -> Entry | None:
        """The copy of an item, if it is here."""
        stream = self.exchange.streams.get(source)
        return None if stream is None else stream.items.get(number)

    def original(self, number: int) -> Entry | None:
        """The entry of this host's own space that is the item of this number."""
        return self._capture.entries.get(number)

    @property
    def offered(self) -> set[str]:
        """The streams that partners have, and could be held here."""
        return {source for far in self.exchange.far.values() for source in far.has}

    @property
    def carried(self) -> set[str]:
        """The streams that are held here only so that others may read them."""
        return self._keeper.carried

    def hold(self, source: str) -> None:
        """Copy this stream from now on, from whoever has it, whatever room there is for others."""
        self._keeper.use(source)
        self.exchange.hold(source)
        self._replication.post(self)

    def drop(self, source: str) -> None:
        """Forget the copies of this stream, and copy it no more."""
        if self.exchange.owns(source) or self.exchange.everything:
            raise BadArgument("source", "a stream of another host that is held here", source)
        self._keeper.forget(source)
        self.exchange.drop(source)
        self._replication.post(self)

    def outgrow(self, source: str, numbers: Iterable[int]) -> None:
        """These copies of another host's items are not needed here any more, as is known without
        its word."""
        self.exchange.outgrow(source, numbers)

    @property
    def gave_way(self) -> list[Callable[[list[Entry]], object]]:
        """Called on the loop with copies for which there is no room here any more."""
        return self._keeper.gave_way

    def tell(self) -> None:
        """Tell the others what is new, now: it comes to them before all that is said later."""
        self._replication.tell(self)

    # The change capture

    @property
    def _drawn_upto(self) -> int:
        return max((own.upto for own in self.exchange.owned()), default=0)

    def _write(self, items: Numbered, upto: int = 0) -> None:
        if self._lanes is None:
            self.exchange.write(items, upto)
            return
        parted: dict[str, Numbered] = {}
        for number, entry in items:
            lane, spreads = self._lanes.name(entry)
            source = self._lane_of[number] = lane_name(self.source, lane, spreads=spreads)
            parted.setdefault(source, []).append((number, entry))
        for source, some in parted.items():
            self.exchange.write(some, source=source)
        self._placing.review()

    def _mark_removed(self, numbers: list[int]) -> None:
        if self._lanes is None:
            self.exchange.mark_removed(numbers)
            return
        parted: dict[str, list[int]] = {}
        for number in numbers:
            parted.setdefault(self._lane_of.pop(number), []).append(number)
        for source, some in parted.items():
            self.exchange.mark_removed(some, source)

    def _draw_soon(self) -> None:
        if self._drawing is None and not self.closed:
            self._drawing = self._loop.create_task(self._draw())
            self._drawing.add_done_callback(self._drawn)

    async def _draw(self) -> None:
        """What this host can tell others must not vanish in a crash."""
        while not self.closed:
            items, numbers, position = self._capture.draw(self._drawn_upto)
            if items or numbers:
                if self.space.durable:
                    await self.space.flush(position)
                if items:
                    self._write(items)
                if numbers:
                    self._mark_removed(numbers)
                self._replication.soon(self)
                await asyncio.sleep(0)  # What comes meanwhile is for the next turn.
            elif not self._capture.awake:
                return

    def _drawn(self, task: asyncio.Task[None]) -> None:
        self._drawing = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            if not isinstance(error, (SpaceClosed, JournalError)):
                logger.error("the feed %r failed", self.name, exc_info=error)
            self.close()
        elif self._capture.awake:  # since it was drawn the last time
            self._draw_soon()
        else:
            self._replication.soon(self)

    def notify(self) -> None:
        """Call those who listen: once a turn of the loop, however much has come in it."""
        for listener in [*self.listeners, *self.watchers]:
            listener()

    # For the extension

    def may_partner(self, peer: Peer) -> bool:
        """May it have what is written here, and write here itself? Of what a model keeps for a
        space, the rules of that space say so."""
        return peer.may("read", self._ruling) and peer.may("write", self._ruling)

    @property
    def _ruling(self) -> HostedSpace:
        return self.space.serves or self.space

    def _admits_source(self, source: str) -> bool:
        """May the host of this stream write here, whoever has carried it?"""
        return self._ruling.allows_host("write", host_of(source))

    def _admits_item(self, host: str, source: str, item: Entry) -> bool:
        return self._admits is None or self._admits(host, host_of(source), item)

    def _has_room(self, host: str) -> bool:
        peer = self._core.peers.get(host)
        return peer is not None and peer.talk.link.waiting < PUSHED_MAX

    def heard(self, peer: Peer, message: said.Said) -> None:
        if isinstance(message, said.HoldRequest):
            self._keeper.asked(peer.id, message)
        elif isinstance(message, said.HoldReply):
            self._placing.answered(peer.id, message)
        else:
            self.exchange.heard(peer.id, message)
        if isinstance(message, _MOVING):
            self._keeper.consider()
            self._placing.review()
        self._replication.soon(self)

    def relieve(self) -> None:
        """The others have been told: what there is no room for here may go."""
        try:
            for source, numbers in self._shelf.pop_expired(self.exchange.streams.values()).items():
                self.exchange.outgrow(source, numbers)
            self._keeper.relieve()
        except (SpaceClosed, JournalError):
            self.close()

    def await_answers(self) -> None:
        """Who was asked has so long to answer; then others are asked."""
        if self.exchange.wants and self._patience is None and not self.closed:
            self._patience = self._loop.call_later(self._core.answer_seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        self.exchange.wants.give_up()
        self._replication.post(self)

    def departed(self, host: str) -> None:
        self.exchange.departed(host)
        self._placing.departed(host)
        self._keeper.departed(host)
        self._keeper.consider()
        self._replication.soon(self)

    def close(self) -> None:
        """Take part no more. What is kept on disk stays there."""
        if not self.closed:
            self.closed = True
            self._replication.ended(self)
            for under_way in (self._drawing, self._patience):
                if under_way is not None:
                    under_way.cancel()
            self._capture.close()
            self._shelf.close()
            self.notify()

    async def stop(self) -> None:
        """The host leaves, with all told that was written by now."""
        drawing = self._drawing
        if drawing is not None:
            await asyncio.wait([drawing], timeout=self._core.answer_seconds)
        if not self.closed:
            self._replication.tell(self)
            self.close()


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


class Broadcast:
    """Rings whenever something may have changed. Who waits says up to which ring it has looked, so
    that it misses none."""

    def __init__(self) -> None:
        self.rings = 0
        self._event = asyncio.Event()

    def ring(self) -> None:
        self.rings += 1
        self._event.set()
        self._event.clear()

    async def wait(self, after: int) -> None:
        """Until it has rung more often than this."""
        while self.rings <= after:
            await self._event.wait()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self.wait(self.rings)


class FeedCursor:
    """Gives each item of a feed once: of each source in order, as far as they are here."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._upto: dict[str, int] = {}

    def news(self) -> Iterator[tuple[str, int, Entry]]:
        for source, stream in list(self._feed.exchange.streams.items()):
            after = self._upto.get(source, 0)
            if stream.upto > after:
                self._upto[source] = stream.upto
                for number in stream.numbers(after):
                    yield source, number, stream.items[number]
