"""The exchange of one feed between this host and its partners. No I/O and no loop: methods are
called when something happens, and leave the messages to send in `outbox`.

Each host tracks what its partners have of each stream: their own statements, and what it has sent
them since. A partner that is up to date is sent new items; another is sent the new marks and
fetches one window at a time from one of the hosts that have the items. Where A, B and C are
partners of each other, B does not forward items of A to C: C gets them from A, and announces its
marks to everyone when it loses A.

While the source of a stream is a partner, only the source is believed about it. If this host has
more of the stream than its source, a third host has sent false items, and the copy is started
again. Items of hosts that may not write here are refused; then the stream waits for another
partner. The stream of a source with an identity is believed from others only with the source's
signature.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tupelo.errors import BadFrame
from tupelo.federation.identity.keys import Identity
from tupelo.federation.links.encoding import encode_bits
from tupelo.federation.replication.messages import (
    NOTHING,
    SOURCES_MAX,
    AliveNumbers,
    Chunk,
    FetchFrom,
    ForwardsTo,
    HasFeed,
    ItemBatch,
    LeavesFeed,
    MarksChanged,
    Said,
    StreamMark,
    Tombstones,
)
from tupelo.federation.replication.streams import (
    Item,
    NumberedItems,
    Stream,
    base_of,
    digest_of,
    host_of,
    is_proved,
    is_signed,
    read_bits,
    sign,
)

WANTS_MAX = 16
"""Most streams fetched at a time; each answer may be as large as a window."""


@dataclass
class FeedPartner:
    """Another host that has the feed. `has`: what it has of each stream, as far as is known."""

    id: str
    source: str
    everything: bool
    near: frozenset[str]
    has: dict[str, StreamMark]
    doubted: set[str] = field(default_factory=set)
    """The streams of which it has sent unsigned items (reported once)."""
    emptied: set[str] = field(default_factory=set)
    """The streams of which it was asked for items and has evicted all of them."""

    def takes(self, source: str) -> bool:
        wants = self.everything or source in self.has
        return wants and base_of(source) != self.source

    def mark(self, source: str) -> StreamMark:
        return self.has.get(source, NOTHING)

    def got(self, source: str, mark: StreamMark) -> None:
        """Note that the partner has this much, or more."""
        self.has[source] = self.mark(source).or_more(mark)


class FetchesInFlight:
    """The fetches that are not answered yet, one host for each stream. `lacks` says whether a
    partner has more of a stream than this host; `ask` sends the request."""

    def __init__(
        self,
        partners: dict[str, FeedPartner],
        lacks: Callable[[FeedPartner, str], bool],
        ask: Callable[[str, str], None],
    ) -> None:
        self._partners = partners
        self._lacks = lacks
        self._ask = ask
        self._asked: dict[str, tuple[str, int]] = {}  # source → host, and the turn
        self._waiting: dict[str, None] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._asked)

    def consider(self, source: str) -> None:
        """Fetch what is missing of a stream from the partner that has most of it, unless a fetch is
        in flight. Partners that have evicted all of it are asked last."""
        if source in self._asked:
            return
        some = [partner for partner in self._partners.values() if self._lacks(partner, source)]
        best: FeedPartner | None = None
        for partner in [one for one in some if source not in one.emptied] or some:
            if best is None or partner.mark(source).exceeds(best.mark(source)):
                best = partner
        if best is None:
            return
        if len(self._asked) >= WANTS_MAX:
            self._waiting[source] = None
        else:
            self._asked[source] = (best.id, self._turn)
            self._ask(best.id, source)

    def inquire(self, source: str, host: str) -> None:
        """Fetch from this host, even if it does not seem to have more."""
        self._waiting.pop(source, None)
        self._asked[source] = (host, self._turn)
        self._ask(host, source)

    def answered(self, source: str, host: str) -> bool:
        """End the fetch of a stream from this host. Returns whether there was one."""
        if self._asked.get(source, ("", 0))[0] != host:
            return False
        del self._asked[source]
        self._next()
        return True

    def forget(self, source: str) -> None:
        self._asked.pop(source, None)
        self._waiting.pop(source, None)
        self._next()

    def lost(self, host: str) -> None:
        """This host is gone: fetch from other partners."""
        for source in [source for source, (asked, _) in self._asked.items() if asked == host]:
            del self._asked[source]
            self.consider(source)
        self._next()

    def give_up(self) -> None:
        """Called at intervals: a fetch that is unanswered since the call before goes to another
        partner. The silent one is not asked again until it announces the stream again."""
        for source, (host, turn) in list(self._asked.items()):
            if turn < self._turn:
                del self._asked[source]
                self._partners[host].has.pop(source, None)
                self.consider(source)
        self._turn += 1
        self._next()

    def _next(self) -> None:
        while self._waiting and len(self._asked) < WANTS_MAX:
            source = next(iter(self._waiting))
            del self._waiting[source]
            self.consider(source)


logger = logging.getLogger("tupelo")

WINDOW_BYTES = 256 * 1024
"""Size of a window, in bytes."""
BURIED_MAX = 10_000
"""With more removals than this in one turn, partners are sent the living numbers instead."""
FOLD_MIN = 1_000
"""After this many single signed removals, and as many as there are items, the source signs the list
of living numbers, so that replica hosts can drop the single signatures."""
LEASE_SLACK_SECONDS = 1.0
"""Tolerance when the remaining lease of an item is compared with the signed one."""


class ItemStore(Protocol):
    """Stores the items of streams. Its methods do not fail."""

    def put(self, stream: Stream, items: NumberedItems) -> NumberedItems:
        """Store new items of a stream, whose `upto` is already advanced; returns the items as
        stored."""
        ...

    def remove(self, stream: Stream, items: list[Item]) -> None: ...

    def drop(self, stream: Stream) -> None:
        """Delete all items of a stream."""
        ...

    def encode(self, item: Item) -> bytes | None:
        """Encode an item as msgpack; None if its lease has expired."""
        ...

    def read(self, encoded: Any) -> Item:
        """Decode an item. BadFrame if it cannot be decoded."""
        ...

    def content(self, item: Item) -> bytes:
        """The signed part of an item: all but the remaining lease."""
        ...

    def lease(self, item: Item) -> float:
        """Remaining seconds of its lease; 0 if it has none."""
        ...


@dataclass
class UnsentChanges:
    """The changes of a stream that partners were not sent yet."""

    after: int
    before: int
    items: NumberedItems = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


class FeedExchange:
    """One host's part in the exchange of a feed. `source` names its own stream; its lanes start
    with the same name.

    `everything`: take every stream, or only those that are held. `has_room(host)`: whether a host
    can be sent more now. `admits_source(source)`: whether the items of a stream are accepted at
    all. `admits_item(host, source, item)`: whether this host may send this item. With an
    `identity`, this host signs its own streams.
    """

    def __init__(
        self,
        feed: str,
        source: str,
        store: ItemStore,
        *,
        everything: bool = True,
        has_room: Callable[[str], bool] = lambda host: True,
        admits_source: Callable[[str], bool] = lambda source: True,
        admits_item: Callable[[str, str, Item], bool] = lambda host, source, item: True,
        window_bytes: int = WINDOW_BYTES,
        identity: Identity | None = None,
    ) -> None:
        self.feed = feed
        self.source = source
        self.everything = everything
        self.streams: dict[str, Stream] = {}
        self.partners: dict[str, FeedPartner] = {}
        self.outbox: deque[tuple[list[str], Said]] = deque()
        """Messages to send, each with its recipients."""
        self._store = store
        self._has_room = has_room
        self._admits_source = admits_source
        self._admits_item = admits_item
        self._window_bytes = window_bytes
        self._identity = identity
        self._unfolded: Counter[str] = Counter()  # removals since the last signed AliveNumbers
        self.wants = FetchesInFlight(self.partners, self._lacks, self._ask)
        self._fresh: dict[str, UnsentChanges] = {}
        self._forwards_sent: frozenset[str] = frozenset()
        self._announced: dict[str, set[str]] = {}  # unanswered: host → streams
        self._handlers: dict[type, Callable[[FeedPartner, Any], None]] = {
            ForwardsTo: self._on_forwards_to,
            MarksChanged: self._on_marks_changed,
            FetchFrom: self._on_fetch,
            ItemBatch: self._on_item_batch,
            Tombstones: self._on_tombstones,
            AliveNumbers: self._on_alive_numbers,
        }

    # State

    @property
    def marks(self) -> dict[str, StreamMark]:
        return {source: stream.mark for source, stream in self.streams.items()}

    @property
    def own(self) -> Stream:
        return self._stream(self.source)

    @property
    def is_due(self) -> bool:
        """Whether there are unsent changes."""
        return bool(self._fresh) or self._forwards_sent != self.partners.keys()

    @property
    def is_told(self) -> bool:
        """Whether all partners were sent everything that they take."""
        return not any(
            self._is_behind(partner, stream)
            for stream in self.streams.values()
            if stream.items
            for partner in self.partners.values()
        )

    def _is_behind(self, partner: FeedPartner, stream: Stream) -> bool:
        """Whether a partner takes this stream and lacks some of it."""
        return partner.takes(stream.source) and stream.mark.exceeds(partner.mark(stream.source))

    def load(self, stream: Stream) -> None:
        """Add a stream as it was stored."""
        self.streams[stream.source] = stream

    def owns(self, source: str) -> bool:
        return base_of(source) == self.source

    def owned(self) -> list[Stream]:
        """This host's own streams."""
        return [stream for source, stream in self.streams.items() if self.owns(source)]

    def takes(self, source: str) -> bool:
        wanted = (self.everything or source in self.streams) and not self.owns(source)
        return wanted and self._admits_source(source)

    def _stream(self, source: str) -> Stream:
        stream = self.streams.get(source)
        if stream is None:
            if len(self.streams) >= SOURCES_MAX:
                raise BadFrame(f"more than {SOURCES_MAX} sources")
            stream = self.streams[source] = Stream(source)
        return stream

    def _changes_of(self, stream: Stream) -> UnsentChanges:
        """The unsent changes of a stream. Must be called before the stream is changed."""
        fresh = self._fresh.get(stream.source)
        if fresh is None:
            fresh = self._fresh[stream.source] = UnsentChanges(stream.upto, stream.tombstones)
        return fresh

    # Local changes

    def write(self, items: NumberedItems, upto: int = 0, source: str | None = None) -> None:
        """Append items to this host's own stream, or to a lane of it. No other numbers up to `upto`
        will follow."""
        is_new = source is not None and source not in self.streams
        stream = self.own if source is None else self._stream(source)
        fresh = self._changes_of(stream)
        stream.append(items)
        stream.advance(upto)
        kept = self._store.put(stream, items)
        stream.keep(kept)
        fresh.items += kept
        if is_new:  # Partners that want it will fetch it.
            self.outbox.append(
                (
                    list(self.partners),
                    MarksChanged(self.feed, {stream.source: stream.mark}),
                )
            )

    def mark_removed(self, numbers: Iterable[int], source: str | None = None) -> None:
        """Remove items from this host's own stream, or from a lane of it."""
        stream = self.own if source is None else self._stream(source)
        fresh = self._changes_of(stream)
        marked_removed, items = stream.mark_removed(numbers)
        fresh.numbers += marked_removed
        self._store.remove(stream, items)

    def hold(self, source: str) -> None:
        """Start to take this stream, if its source may write here."""
        if source not in self.streams and self._admits_source(source):
            self.outbox.append((list(self.partners), MarksChanged(self.feed, {source: NOTHING})))
            self._stream(source)
            self.wants.consider(source)

    def outgrow(self, source: str, numbers: Iterable[int]) -> None:
        """Delete copies without a tombstone of their source."""
        stream = self.streams.get(source)
        if stream is not None and not self.owns(source):
            self._store.remove(stream, stream.outgrow(numbers))

    def give_way(self, source: str, numbers: Iterable[int]) -> list[Item]:
        """Evict living copies for lack of room; returns them."""
        stream = self.streams[source]
        items = stream.give_way(numbers)
        self._store.remove(stream, items)
        return items

    def drop(self, source: str) -> None:
        """Delete the copy of this stream and stop taking it."""
        stream = self.streams.pop(source, None)
        if stream is not None:
            self._fresh.pop(source, None)
            self.wants.forget(source)
            self._store.drop(stream)
            self.announce(list(self.partners))

    # Partners

    def engaged(self, host: str, late: bool = False) -> None:
        """Announce this host's marks to a new partner. `late`: the partner has announced its own
        before this host had the feed."""
        self.announce([host], late)

    def departed(self, host: str) -> None:
        """A partner is disconnected, or has left the feed."""
        self._announced.pop(host, None)
        if self.partners.pop(host, None) is None:
            return
        # Others may assume that this host has got items from there.
        self.announce(list(self.partners))
        self.wants.lost(host)

    def announce(self, hosts: list[str], late: bool = False) -> None:
        if hosts:
            near = list(self.partners)
            here = HasFeed(self.feed, self.source, self.everything, near, self.marks, late)
            self.outbox.append((hosts, here))
            for host in hosts:
                if host not in self.partners:
                    self._announced[host] = set(self.streams)

    # Messages from partners

    def heard(self, host: str, message: Said) -> None:
        if isinstance(message, HasFeed):
            self._on_has_feed(host, message)
            return
        if isinstance(message, LeavesFeed):
            self.departed(host)
            return
        partner, hear = self.partners.get(host), self._handlers.get(type(message))
        if partner is not None and hear is not None:  # else it has not heard our HasFeed yet
            hear(partner, message)

    def _on_has_feed(self, host: str, here: HasFeed) -> None:
        if host_of(here.source) != host:
            raise BadFrame("HasFeed names a stream of another host")
        partner = FeedPartner(host, here.source, here.everything, frozenset(here.near), here.marks)
        before = self.partners.get(host)
        self.partners[host] = partner
        if before is not None:
            self._warn(before, partner)
        if here.late:
            self.announce([host])
        known = self._announced.pop(host, None)
        news = {
            source: stream.mark
            for source, stream in self.streams.items()
            if (partner.takes(source) and stream.mark.exceeds(partner.mark(source)))
            or (known is not None and source not in known)  # held since we announced our marks
        }
        if news:
            self.outbox.append(([host], MarksChanged(self.feed, news)))
        for source in here.marks:
            self.wants.consider(source)
        for source, stream in self.streams.items():
            if base_of(source) == partner.source and stream.mark.exceeds(partner.mark(source)):
                self.wants.inquire(source, host)

    def _warn(self, before: FeedPartner, partner: FeedPartner) -> None:
        """A partner has stopped holding streams: announce them to its neighbours, which cannot get
        them there any more."""
        for source in [source for source in before.has if source not in partner.has]:
            stream = self.streams.get(source)
            others = [
                other.id
                for other in self.partners.values()
                if other.id in before.near and other.takes(source)
            ]
            if stream is not None and others:
                self.outbox.append((others, MarksChanged(self.feed, {source: stream.mark})))

    def _on_forwards_to(self, partner: FeedPartner, near: ForwardsTo) -> None:
        partner.near = frozenset(near.near)

    def _on_marks_changed(self, partner: FeedPartner, news: MarksChanged) -> None:
        partner.has.update(news.marks)
        if len(partner.has) > SOURCES_MAX:
            raise BadFrame(f"more than {SOURCES_MAX} sources")
        for source, mark in news.marks.items():
            self.wants.consider(source)
            stream = self.streams.get(source)
            if stream is not None and mark == NOTHING != stream.mark:  # It is a new replica host.
                self.outbox.append(([partner.id], MarksChanged(self.feed, {source: stream.mark})))

    def _believes(self, partner: FeedPartner, source: str) -> bool:
        """Whether this host takes the stream, and takes it from this partner."""
        its = self.partners.get(host_of(source))
        is_near = its is not None and its.source == base_of(source)
        return self.takes(source) and (its is partner or not is_near)

    def _lacks(self, partner: FeedPartner, source: str) -> bool:
        stream = self.streams.get(source)
        has_more = partner.mark(source).exceeds(NOTHING if stream is None else stream.mark)
        return has_more and self._believes(partner, source)

    def _ask(self, host: str, source: str) -> None:
        stream = self.streams.get(source)
        mark = NOTHING if stream is None else stream.mark
        self.outbox.append(([host], FetchFrom(self.feed, source, mark)))

    def _on_fetch(self, partner: FeedPartner, want: FetchFrom) -> None:
        stream = self.streams.get(want.source)
        batch = None if stream is None else self._window(stream, want.mark.upto, answers=True)
        if stream is None or batch is None:
            empty = ItemBatch(self.feed, want.source, 0, 0, 0, [], True)
            self.outbox.append(([partner.id], empty))
            return
        tombstones = -1 if self._has_hole(batch) else want.mark.tombstones
        if tombstones < stream.tombstones:
            self.outbox += [([partner.id], one) for one in self._removals(stream, tombstones)]
        self.outbox.append(([partner.id], batch))
        partner.has[want.source] = want.mark.or_more(StreamMark(batch.upto, stream.tombstones))

    def _on_item_batch(self, partner: FeedPartner, batch: ItemBatch) -> None:
        source = batch.source
        mark = StreamMark(batch.upto, batch.tombstones)
        asked = batch.answers and self.wants.answered(source, partner.id)
        if not self._believes(partner, source):
            self.wants.consider(source)
            return
        stream = self._stream(source)
        if asked and batch.away and not batch.items:
            partner.emptied.add(source)
            if any(
                source not in other.emptied and self._lacks(other, source)
                for other in self.partners.values()
            ):
                self.wants.consider(source)
                return
        if asked and not batch.more:
            partner.has[source] = mark
            if partner.source == base_of(source) and stream.mark.exceeds(mark):
                self._begin_anew(stream)
                return
        else:
            partner.got(source, mark)
        if batch.upto > stream.upto and not self._store_new(partner, stream, batch):
            partner.has[source] = stream.mark  # Others are asked instead.
            self.wants.consider(source)
            return
        if asked and not batch.more and stream.lacks(mark) and is_signed(source):
            partner.has[source] = stream.mark  # It cannot prove more.
        else:
            self._promised(partner, source, mark)
        if not any(self._is_behind(other, stream) for other in self.partners.values()):
            self._fresh.pop(source, None)
        self.wants.consider(source)

    def _begin_anew(self, stream: Stream) -> None:
        """Delete a copy that was not sent by its source, and fetch it again."""
        source = stream.source
        self._fresh.pop(source, None)
        self._store.drop(stream)
        self.streams[source] = Stream(source)
        self.announce(list(self.partners))
        self.wants.consider(source)

    def _store_new(self, partner: FeedPartner, stream: Stream, batch: ItemBatch) -> bool:
        """Store the new items of a batch. Returns False if the batch is refused."""
        upto, read = stream.upto, self._store.read
        if batch.after > upto or batch.tombstones > stream.tombstones:
            return True
        signed = is_signed(stream.source)
        read_all = [(n, read(encoded)) for n, encoded in batch.items if n > upto or signed]
        items = [(number, item) for number, item in read_all if number > upto]
        proof = self._check(partner, stream, batch, dict(read_all)) if signed else []
        if proof is None:
            self._doubt(partner, stream.source)
            return False
        if not all(self._admits_item(partner.id, stream.source, item) for _, item in items):
            return False
        fresh = self._changes_of(stream)
        new = stream.receive(batch, items)
        stream.keep_chunks(proof)
        kept = self._store.put(stream, new or [])
        stream.keep(kept)
        fresh.items += kept
        return True

    def _on_tombstones(self, partner: FeedPartner, died: Tombstones) -> None:
        source = died.source
        mark = StreamMark(0, died.tombstones)
        if not self._believes(partner, source) or not self._is_authentic(partner, died):
            return
        stream = self._stream(source)
        partner.got(source, mark)
        if mark.tombstones > stream.tombstones >= died.before:
            fresh = self._changes_of(stream)
            fresh.numbers += died.numbers[stream.tombstones - died.before :]
            gone = stream.died(died.before, died.numbers) or []
            if died.signature:
                stream.keep_removal(died)
            self._store.remove(stream, gone)
        self._promised(partner, source, mark)
        self.wants.consider(source)

    def _on_alive_numbers(self, partner: FeedPartner, living: AliveNumbers) -> None:
        if not self._believes(partner, living.source) or not self._is_authentic(partner, living):
            return
        stream = self._stream(living.source)
        partner.got(living.source, StreamMark(0, living.tombstones))
        fresh = self._changes_of(stream)
        is_newer = living.tombstones > stream.tombstones
        if is_newer or (living.signature and living.known > stream.known):
            gone = stream.outlive(living)
            if living.signature:
                stream.keep_removal(living)
            self._store.remove(stream, gone)
        if is_newer:
            fresh.before = stream.tombstones  # The removed numbers are not known.
            fresh.numbers.clear()

    # Signatures

    def _signs(self, source: str) -> Identity | None:
        return self._identity if self.owns(source) else None

    def _proved(self, stream: Stream, batch: ItemBatch) -> ItemBatch | None:
        """Add the proof to a batch: this host's signature, or the source's. None if there is
        none."""
        source = stream.source
        if (identity := self._signs(source)) is not None:
            items = [stream.items[number] for number, _ in batch.items]
            digests = {
                number: digest_of(self._store.content(item))
                for (number, _), item in zip(batch.items, items, strict=True)
            }
            lease = max(map(self._store.lease, items), default=0.0)
            chunk = Chunk(batch.after, batch.upto, lease, digests, b"")
            chunk.signature = sign(identity, self.feed, source, chunk)
            chunk.digests = {}
            batch.chunks = [chunk]
        elif is_signed(source) and not self.owns(source):
            batch.chunks = stream.proof(batch)
            if not _is_covered(batch, stream.removals):
                return None
        return batch

    def _has_hole(self, batch: ItemBatch) -> bool:
        """Whether no chunk covers some part of a batch, because no item of it is left."""
        return is_signed(batch.source) and not _is_covered(batch, [])

    def _removals(self, stream: Stream, tombstones: int) -> list[Tombstones | AliveNumbers]:
        """The messages about removals for a partner that has applied this many tombstones."""
        source = stream.source
        if is_signed(source) and not self.owns(source):
            return [one for one in stream.removals if one.tombstones > tombstones]
        living = stream.living(self.feed)
        if (identity := self._signs(source)) is not None:
            living.signature = sign(identity, self.feed, source, living)
        return [living]

    def _is_authentic(self, partner: FeedPartner, removal: Tombstones | AliveNumbers) -> bool:
        """Whether a message about removals comes from the source itself, or is signed by it."""
        source = removal.source
        unsigned = not removal.signature and (partner.source == base_of(source))
        if not is_signed(source) or unsigned or is_proved(self.feed, source, removal):
            return True
        self._doubt(partner, source)
        return False

    def _check(
        self,
        partner: FeedPartner,
        stream: Stream,
        batch: ItemBatch,
        items: dict[int, Item],
    ) -> list[Chunk] | None:
        """The chunks that prove a batch. None if the batch has unsigned items, or omits signed
        items that were not removed."""
        source, store = stream.source, self._store
        if not batch.chunks and partner.source == base_of(source):
            return []  # An older release; its link proves the source. Not forwarded.
        digests = {number: digest_of(store.content(item)) for number, item in items.items()}
        chunks: list[Chunk] = []
        listed: dict[int, Chunk] = {}
        end = stream.known
        for chunk in batch.chunks:
            brought = {n: one for n, one in digests.items() if chunk.after < n <= chunk.upto}
            chunk.digests = dict(sorted((chunk.digests | brought).items()))
            is_next = chunk.after <= end and chunk.upto <= batch.upto
            if not is_next or not is_proved(self.feed, source, chunk):
                return None
            end = max(end, chunk.upto)
            chunks.append(chunk)
            listed |= dict.fromkeys(chunk.digests, chunk)
        due = stream.due(batch.upto, listed)
        if batch.away:
            away = read_bits(batch.away) & due
            due -= away
            batch.away = encode_bits(away)
        is_right = (
            batch.upto <= end
            and digests.keys() <= listed.keys()
            and all(number in digests for number in due)
            and all(
                store.lease(item) <= listed[number].lease + LEASE_SLACK_SECONDS
                for number, item in items.items()
            )
        )
        return chunks if is_right else None

    def _doubt(self, partner: FeedPartner, source: str) -> None:
        if source not in partner.doubted:
            partner.doubted.add(source)
            logger.warning(
                "what %s says of the stream %s in %r is refused: its source has not signed it",
                *(partner.id, source, self.feed),
            )

    def _promised(self, partner: FeedPartner, source: str, mark: StreamMark) -> None:
        """The neighbours of this partner get the same from it: they count as having it."""
        for host in partner.near:
            other = self.partners.get(host)
            if other is not None and partner.id in other.near and other.takes(source):
                other.got(source, mark)

    # Sending

    def tell(self) -> None:
        """Queue the messages about all unsent changes. Called once a turn of the loop."""
        if self._forwards_sent != self.partners.keys():
            self._forwards_sent = frozenset(self.partners)
            self.outbox.append((list(self.partners), ForwardsTo(self.feed, list(self.partners))))
        fresh, self._fresh = self._fresh, {}
        news: dict[str, dict[str, StreamMark]] = {}
        for source, one in fresh.items():
            stream = self.streams.get(source)
            if stream is not None:
                for host in self._send_changes(stream, one):
                    news.setdefault(host, {})[source] = stream.mark
        for host, marks in news.items():
            self.outbox.append(([host], MarksChanged(self.feed, marks)))

    def _send_changes(self, stream: Stream, fresh: UnsentChanges) -> list[str]:
        """Queue the changes of a stream for the partners that are up to date; returns the others,
        which have to fetch."""
        source, mark = stream.source, stream.mark
        told: list[str] = []
        behind: list[str] = []
        for partner in self.partners.values():
            if partner.takes(source):
                has = partner.mark(source)
                if mark.exceeds(has):
                    in_step = has.upto >= fresh.after and has.tombstones >= fresh.before
                    (told if in_step and self._has_room(partner.id) else behind).append(partner.id)
        if not told:
            return behind
        batch = self._batch_of(stream, fresh)
        if batch is None or len(fresh.numbers) > BURIED_MAX or self._has_hole(batch):
            return told + behind
        if fresh.numbers:
            removals = self._died(stream, fresh)
            if not removals:
                return told + behind
            self.outbox += [(told, one) for one in removals]
        if batch.upto > batch.after:
            self.outbox.append((told, batch))
        for host in told:
            self.partners[host].has[source] = mark
        return behind

    def _died(self, stream: Stream, fresh: UnsentChanges) -> list[Tombstones | AliveNumbers]:
        """The messages about the unsent removals, signed if the stream is."""
        source = stream.source
        if is_signed(source) and not self.owns(source):
            return [one for one in stream.removals if one.tombstones > fresh.before]
        died = Tombstones(self.feed, source, fresh.before, fresh.numbers)
        if (identity := self._signs(source)) is not None:
            self._unfolded[source] += len(fresh.numbers)
            if self._unfolded[source] > max(FOLD_MIN, len(stream.items)):
                del self._unfolded[source]
                return self._removals(stream, fresh.before)
            died.signature = sign(identity, self.feed, source, died)
        return [died]

    def _batch_of(self, stream: Stream, fresh: UnsentChanges) -> ItemBatch | None:
        """A batch of the unsent items that live; None if it is larger than a window."""
        if stream.chunks:
            window = self._window(stream, fresh.after, answers=False)
            return None if window is None or window.more else window
        items = []
        late: list[int] = []
        size, living, encode = 0, stream.items, self._store.encode
        for number, item in fresh.items:
            if number in living:
                encoded = encode(item)
                if encoded is None:
                    late.append(number)
                else:
                    size += len(encoded)
                    items.append((number, msgspec.Raw(encoded)))
                    if size > self._window_bytes and len(items) > 1:
                        return None
        batch = ItemBatch(
            self.feed,
            stream.source,
            fresh.after,
            stream.upto,
            stream.tombstones,
            items,
            False,
            away=stream.away_since(fresh.after, stream.upto, late),
        )
        return self._proved(stream, batch)

    def _window(self, stream: Stream, after: int, *, answers: bool) -> ItemBatch | None:
        """One window of the items after a number; None if it cannot be proved."""
        encode = self._store.encode
        batch = stream.batch(self.feed, after, self._window_bytes, encode, answers=answers)
        return self._proved(stream, batch)


def _is_covered(batch: ItemBatch, removals: list[Tombstones | AliveNumbers]) -> bool:
    """Whether the chunks, and the list of living numbers, cover a whole batch."""
    listed = removals[:1]
    end = max([batch.after, *(one.known for one in listed if isinstance(one, AliveNumbers))])
    for chunk in batch.chunks:
        if chunk.after > end:
            return False
        end = max(end, chunk.upto)
    return batch.upto <= end
