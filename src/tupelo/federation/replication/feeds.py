"""Feeds: the copies of a space at several hosts.

`ChangeCapture` turns changes of a local space into items and tombstones, `Feed` connects it with
the copies and the exchange, and `Replication` is the extension of the host that carries the
messages of all feeds. `Broadcast` and `FeedCursor` are for the models that read the copies.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tupelo.errors import BadArgument, CannotSend, JournalError, NotAllowed, SpaceClosed
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.links import wire
from tupelo.federation.replication import messages
from tupelo.federation.replication.copies import CopyStore, encode_item
from tupelo.federation.replication.exchange import FeedExchange
from tupelo.federation.replication.messages import (
    FetchFrom,
    HasFeed,
    HoldReply,
    HoldRequest,
    LeavesFeed,
    MarksChanged,
    Said,
    StreamMark,
)
from tupelo.federation.replication.placement import (
    NOTHING,
    CopyAll,
    CopyKeeper,
    CopySome,
    LaneRules,
    Policy,
    ReplicaPlacement,
)
from tupelo.federation.replication.streams import (
    NumberedItems,
    Stream,
    host_of,
    is_signed,
    lane_name,
)
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.bridge import LoopBridge
from tupelo.space.session import Seen
from tupelo.space.tasks import when_room
from tupelo.values.entry import Entry
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.federation.hosts.peer import Peer

logger = logging.getLogger("tupelo")

ITEM_BYTES_MAX = wire.MESSAGE_MAX // 2
"""Largest encoded entry, in bytes, that is copied; larger entries stay local."""
CONTENT_BYTES_MAX = ITEM_BYTES_MAX - 4 * 1024
"""Largest content, in bytes, that is always copied: the rest is for the identity and the lease."""


class ChangeCapture:
    """Captures the changes of one space.

    `entries` are the living entries that were captured, by arrival; `only` selects the entries to
    capture. `soon` is called on the loop when there are changes to `draw`; until they are drawn the
    capture is `awake`. Entries written after the capture began have arrivals above `begun`.
    """

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
        self._bridge = LoopBridge()
        self._gone: list[Entry] = []
        self._memory = Seen()  # The space reports removals while there is a session record.
        self.awake = True
        port = self._port
        with port.atomic():
            self._news = port.subscribe(
                ANY, None, None, None, None, sys.maxsize, available=False, returned=False
            )
            port.listen_to_removals(self._removed, self._memory)
            self._first = port.entries(held=True)
            self.begun = port.latest_arrival
        self._bridge.soon(soon)

    def close(self) -> None:
        self._port.end_subscription(self._news)
        self._port.ignore_removals(self._removed, self._memory)

    # On any thread, under the lock of the space

    def _removed(self, entry: Entry) -> None:
        self._gone.append(entry)
        self.wake()

    def wake(self) -> bool:
        """Schedule `soon`, unless it is scheduled. Returns False if the loop is closed. For any
        thread."""
        if not self.awake:
            self.awake = True
            return self._bridge.soon(self._soon)
        return True

    # On the loop

    def draw(self, after: int) -> tuple[NumberedItems, list[int], int]:
        """Return the new entries with their numbers (above `after`), the numbers of the removed
        ones, and the position at which all of these changes are durable."""
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
        """Take over the entries with these numbers, which were captured before a restart. Returns
        the numbers whose entries are gone."""
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


_MOVING = (
    HasFeed,
    MarksChanged,
    LeavesFeed,
    FetchFrom,
    HoldReply,
)
"""Messages that may change which host holds which stream."""

PUSHED_MAX = 512 * 1024
"""With more unsent bytes than this to a host, new items are only announced to it; it fetches them
when it can."""

Admits = Callable[[str, str, Entry], bool]
"""Arguments: the engaged host that sends an item, the host that wrote it, the item. Returns whether
it is accepted."""


class Feed:
    """One host's part of a feed: the entries that the hosts of the feed write in their spaces of
    this name, copied to all of these hosts or to some, as the policy says.

    `copies` is the space that holds the items, including this host's own. `source` is the name of
    this host's own stream: the id of the host and the id of its space.
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
        self._store = CopyStore(core, space, measured=isinstance(policy, CopySome))
        self.copies = self._store.hosted
        self.exchange = FeedExchange(
            space.name,
            self.source,
            self._store,
            everything=isinstance(policy, CopyAll),
            has_room=self._has_room,
            admits_source=self._admits_source,
            admits_item=self._admits_item,
            identity=core.identity if is_signed(self.source) else None,
        )
        self._admits = admits
        self._lanes = lanes
        self._lane_of: dict[int, str] = {}  # of each own item, if there are lanes
        self._placing = ReplicaPlacement(self.exchange, policy)
        self._keeper = CopyKeeper(self.exchange, policy, self._store, lanes)
        self._drawing: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self.watchers: list[Callable[[], None]] = []
        """Called on the loop, at most once a turn, after items were added or removed, and at the
        end of the feed."""
        self.closed = False
        self.listeners: list[Callable[[], object]] = []
        """Called on the loop, at most once a turn, after items or hosts may have changed."""
        try:
            self._begin(only)
        except BaseException:
            self._store.close()
            raise

    def _begin(self, only: Callable[[Entry], bool] | None) -> None:
        for stream in self._store.streams():
            self.exchange.load(stream)
        self._capture = ChangeCapture(self.space, only, self._draw_soon)
        owned = [self.exchange.own] if self._lanes is None else self.exchange.owned()
        for own in owned:
            # Tombstones sent before a restart may be lost: a new count makes partners ask again.
            own.tombstones = max(own.tombstones + 1, int(self._core.clock.now() * 1_000_000))
            if self._lanes is not None:
                self._lane_of.update(dict.fromkeys(own.items, own.source))
        lost = self._capture.adopt({number for own in owned for number in own.items})
        items, _, position = self._capture.draw(self._drawn_upto)
        if self.space.durable:
            self.space.port.flush(position)
        self._write(items, self._capture.begun)
        self._mark_removed(sorted(lost))

    # For models

    @property
    def marks(self) -> dict[str, StreamMark]:
        """The mark of each stream: how much of it is here."""
        return self.exchange.marks

    @property
    def partners(self) -> list[str]:
        """The engaged hosts that have this feed."""
        return list(self.exchange.partners)

    @property
    def replica_hosts(self) -> list[str]:
        """The engaged hosts that hold a copy of this host's stream."""
        return self._placing.replica_hosts

    @property
    def is_drawn(self) -> bool:
        """Whether every entry written in the space by now has become an item, if it can."""
        return self._drawing is None and not self._capture.awake

    @property
    def is_handed(self) -> bool:
        """Whether all partners were sent all items that they take, and all requests to hold were
        answered."""
        return self.is_drawn and self.exchange.is_told and not self._placing.is_pending

    async def drawn(self) -> None:
        """Wait until every entry written in the space is an item."""
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
        """The entry of the local space that is the item of this number."""
        return self._capture.entries.get(number)

    @property
    def offered(self) -> set[str]:
        """The streams that partners have and that this host could hold."""
        return {source for partner in self.exchange.partners.values() for source in partner.has}

    @property
    def carried(self) -> set[str]:
        """The streams that are held here only to pass them on."""
        return self._keeper.carried

    def hold(self, source: str) -> None:
        """Copy this stream from any partner that has it, whatever its size."""
        self._keeper.use(source)
        self.exchange.hold(source)
        self._replication.post(self)

    def drop(self, source: str) -> None:
        """Delete the copies of this stream and stop copying it. BadArgument unless it is the stream
        of another host, held here by choice."""
        if self.exchange.owns(source) or self.exchange.everything:
            raise BadArgument("source", "a stream of another host that is held here", source)
        self._keeper.forget(source)
        self.exchange.drop(source)
        self._replication.post(self)

    def outgrow(self, source: str, numbers: Iterable[int]) -> None:
        """Delete copies of another host's items without waiting for its tombstones."""
        self.exchange.outgrow(source, numbers)

    @property
    def gave_way(self) -> list[Callable[[list[Entry]], object]]:
        """Functions called on the loop with the copies that were evicted for lack of room."""
        return self._keeper.gave_way

    def tell(self) -> None:
        """Send new items now, so that they arrive before any later message."""
        self._replication.tell(self)

    # The change capture

    @property
    def _drawn_upto(self) -> int:
        return max((own.upto for own in self.exchange.owned()), default=0)

    def _write(self, items: NumberedItems, upto: int = 0) -> None:
        if self._lanes is None:
            self.exchange.write(items, upto)
            return
        parted: dict[str, NumberedItems] = {}
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
        """Make captured changes durable before others hear of them: a crash must not undo them."""
        while not self.closed:
            items, numbers, position = self._capture.draw(self._drawn_upto)
            if items or numbers:
                if self.space.durable:
                    await when_room(partial(self.space.flush, position), flushes=True)
                if items:
                    self._write(items)
                if numbers:
                    self._mark_removed(numbers)
                self._replication.soon(self)
                await asyncio.sleep(0)  # Later changes are drawn in the next turn.
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
        elif self._capture.awake:
            self._draw_soon()
        else:
            self._replication.soon(self)

    def notify(self) -> None:
        """Call all listeners and watchers. Runs once a turn of the loop, however many messages came
        in it."""
        for listener in [*self.listeners, *self.watchers]:
            listener()

    # For Replication

    def may_partner(self, peer: Peer) -> bool:
        """Whether this host may both read and write the space (for a companion: the space that it
        serves)."""
        return peer.may("read", self._ruling) and peer.may("write", self._ruling)

    @property
    def _ruling(self) -> HostedSpace:
        return self.space.serves or self.space

    def _admits_source(self, source: str) -> bool:
        """Whether the host of this stream may write here, whichever host passes it on."""
        return self._ruling.allows_host("write", host_of(source))

    def _admits_item(self, host: str, source: str, item: Entry) -> bool:
        return self._admits is None or self._admits(host, host_of(source), item)

    def _has_room(self, host: str) -> bool:
        peer = self._core.peers.get(host)
        return peer is not None and peer.talk.link.waiting < PUSHED_MAX

    def heard(self, peer: Peer, message: Said) -> None:
        if isinstance(message, HoldRequest):
            self._keeper.asked(peer.id, message)
        elif isinstance(message, HoldReply):
            self._placing.answered(peer.id, message)
        else:
            self.exchange.heard(peer.id, message)
        if isinstance(message, _MOVING):
            self._keeper.consider()
            self._placing.review()
        self._replication.soon(self)

    def relieve(self) -> None:
        """Drop expired copies, and copies for which there is no room. Called after partners were
        sent what is new."""
        try:
            for source, numbers in self._store.pop_expired(self.exchange.streams.values()).items():
                self.exchange.outgrow(source, numbers)
            self._keeper.relieve()
        except (SpaceClosed, JournalError):
            self.close()

    def await_answers(self) -> None:
        """Start the timeout of pending fetches; then other partners are asked."""
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
        """Leave the feed. Copies on disk stay there."""
        if not self.closed:
            self.closed = True
            self._replication.ended(self)
            for under_way in (self._drawing, self._patience):
                if under_way is not None:
                    under_way.cancel()
            self._capture.close()
            with suppress(JournalError):  # The disk has failed: what was committed is there.
                self._store.close()
            for watcher in list(self.watchers):
                watcher()

    async def stop(self) -> None:
        """Send all items written by now, then close."""
        drawing = self._drawing
        if drawing is not None:
            await asyncio.wait([drawing], timeout=self._core.answer_seconds)
        if not self.closed:
            self._replication.tell(self)
            self.close()


CHANNEL = "replication"


def replication_of(core: HostCore) -> Replication:
    """The feeds of this host."""
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
        core.extensions.listen(CHANNEL, self, messages.read, self._heard)
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
        """Join the feed of a space, or return it if this host has joined already (BadArgument if
        with another policy).

        The entries of the space become this host's stream, or several streams if `lanes` splits
        them. `only` selects the entries to copy; `admits` decides about items from other hosts.
        NotAllowed for a space that hosts do not share; the feed of a companion of such a space has
        no partners.
        """
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
            feed.exchange.outbox.append((feed.partners, LeavesFeed(feed.name)))
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

    def _heard(self, peer: Peer, message: Said) -> None:
        feed = self.feeds.get(message.feed)
        if feed is not None and not feed.closed and feed.may_partner(peer):
            try:
                feed.heard(peer, message)
            except (SpaceClosed, JournalError):  # The copies cannot be stored: leave the feed.
                feed.close()
            self.post(feed)

    # Leaving

    async def _leave(self) -> None:
        """Before the host stops: send partners the items that they lack."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._core.answer_seconds):
                await asyncio.gather(*[self._hand(feed) for feed in self.feeds.values()])

    async def _hand(self, feed: Feed) -> None:
        """Wait until partners have all items of this feed that they take. What they send in answer
        to items arrives before their answer to the call."""
        await feed.drawn()
        if any(stream.items for stream in feed.exchange.streams.values()):
            await self._hear_all(feed)  # Some may not have announced this feed yet.
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
        """Wait until all possible partners have received what was sent by now."""
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

    # Sending

    def soon(self, feed: Feed) -> None:
        """Schedule `tell` and the listeners of a feed for the end of this turn of the loop."""
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
        """Send partners what is new, now."""
        feed.exchange.tell()
        feed.relieve()
        self.post(feed)

    def post(self, feed: Feed) -> None:
        """Send the messages in the outbox. Sending may end a link, which may add more messages."""
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

    def _say(self, hosts: list[str], message: Said) -> None:
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
    """A condition to wait for: `notify` wakes all waiters. A waiter passes the number of
    notifications that it has seen, so that none is missed."""

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def notify(self) -> None:
        self.count += 1
        self._event.set()
        self._event.clear()

    async def wait(self, after: int) -> None:
        """Wait for a notification after this number of them."""
        while self.count <= after:
            await self._event.wait()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self.wait(self.count)


class FeedCursor:
    """Iterates over a feed: each call of `news` yields the items that came since the last one, in
    the order of each source."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._upto: dict[str, int] = {}

    def news(self) -> Iterator[tuple[str, int, Entry]]:
        for source, stream in list(self._feed.exchange.streams.items()):
            after = self._upto.get(source, 0)
            if stream.upto > after:
                self._upto[source] = stream.upto
                for number in stream.numbers(after):
                    if number in stream.items:  # else the disk has failed before it was stored
                        yield source, number, stream.items[number]
