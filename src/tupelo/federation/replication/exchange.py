"""The exchange of one feed: what this host tells the others that have it, and asks of them.

No I/O and no loop: it is told what has happened, and leaves in `outbox` what is to be said.

Each knows what the others near it have: as they have said, and as it has told them since. Who is in
step is told of what is new; who is not hears that there is more, and asks, one window at a time,
one of those who have it. Where A, B and C are near each other, B need not tell C what A has told
it: C gets it from A, and says what it has to everyone when it loses A.

Of a stream whose source is near, only what the source says itself is believed. If there is more of
it here than the source has, somebody has told us what is not so, and it is begun anew. Who may not
say something is not believed either: then the stream waits for one who may. Of a stream whose
source has an identity, others are believed only as far as they show what the source has signed.
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
from tupelo.federation.replication import messages as said
from tupelo.federation.replication.messages import NOTHING, SOURCES_MAX, Chunk, StreamMark
from tupelo.federation.replication.streams import (
    Item,
    Numbered,
    Stream,
    base_of,
    digest_of,
    encode_bits,
    host_of,
    is_proved,
    is_signed,
    read_bits,
    sign,
)

WANTS_MAX = 16
"""So many streams are asked for at a time: each answer may be as long as a window."""


@dataclass
class FeedPartner:
    """Another host that has the feed; `has` is what it has of each stream, as far as is known."""

    id: str
    source: str
    everything: bool
    near: frozenset[str]
    has: dict[str, StreamMark]
    doubted: set[str] = field(default_factory=set)
    """The streams of which it has said what their source has not signed."""

    def takes(self, source: str) -> bool:
        wants = self.everything or source in self.has
        return wants and base_of(source) != self.source

    def mark(self, source: str) -> StreamMark:
        return self.has.get(source, NOTHING)

    def got(self, source: str, mark: StreamMark) -> None:
        """It has so much by now, and perhaps more."""
        self.has[source] = self.mark(source).or_more(mark)


class FetchesInFlight:
    """Which stream was asked for, of whom; one host for each. `lacks` says whether a host has more
    of a stream than is here, and `ask` asks for it."""

    def __init__(
        self,
        far: dict[str, FeedPartner],
        lacks: Callable[[FeedPartner, str], bool],
        ask: Callable[[str, str], None],
    ) -> None:
        self._far = far
        self._lacks = lacks
        self._ask = ask
        self._asked: dict[str, tuple[str, int]] = {}  # source → host, and the turn
        self._waiting: dict[str, None] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._asked)

    def consider(self, source: str) -> None:
        """Ask someone for what is lacking of a stream, unless someone was asked."""
        if source in self._asked:
            return
        best: FeedPartner | None = None
        for far in self._far.values():
            if self._lacks(far, source) and (
                best is None or far.mark(source).exceeds(best.mark(source))
            ):
                best = far
        if best is None:
            return
        if len(self._asked) >= WANTS_MAX:
            self._waiting[source] = None
        else:
            self._asked[source] = (best.id, self._turn)
            self._ask(best.id, source)

    def inquire(self, source: str, host: str) -> None:
        """Ask this one in any case, though it does not seem to have more."""
        self._waiting.pop(source, None)
        self._asked[source] = (host, self._turn)
        self._ask(host, source)

    def answered(self, source: str, host: str) -> bool:
        """Was it asked for this? Then it is so no more."""
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
        """This host answers nothing any more: others are asked."""
        for source in [source for source, (asked, _) in self._asked.items() if asked == host]:
            del self._asked[source]
            self.consider(source)
        self._next()

    def give_up(self) -> None:
        """Once in a while: who was asked before this was called the last time and has not answered
        is not held to have it. It says so again when it does."""
        for source, (host, turn) in list(self._asked.items()):
            if turn < self._turn:
                del self._asked[source]
                self._far[host].has.pop(source, None)
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
"""So much is told at a time."""
BURIED_MAX = 10_000
"""Of more removals than this in one turn it is not told which, but what is left."""
FOLD_MIN = 1_000
"""After so many removals that were signed one by one, and as many as there are items, the source
signs what is left: whoever passes them on has to keep no more than that."""
LEASE_SLACK_SECONDS = 1.0
"""So much longer than was signed may a lease seem to be."""


class ItemStore(Protocol):
    """Where items are kept. It does not fail."""

    def put(self, stream: Stream, items: Numbered) -> Numbered:
        """Keep new items of a stream, which has moved on already; the items as they are kept."""
        ...

    def remove(self, stream: Stream, items: list[Item]) -> None: ...

    def drop(self, stream: Stream) -> None:
        """Forget the whole stream."""
        ...

    def encode(self, item: Item) -> bytes | None:
        """An item in msgpack; None if its time has come."""
        ...

    def read(self, encoded: Any) -> Item:
        """BadFrame if it is none."""
        ...

    def content(self, item: Item) -> bytes:
        """What its source signs of an item: all but how long its lease lasts."""
        ...

    def lease(self, item: Item) -> float:
        """How many seconds its lease lasts; 0 if it has none."""
        ...


@dataclass
class UnsentChanges:
    """What is new in a stream since the others were told the last time."""

    after: int
    before: int
    items: Numbered = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


class FeedExchange:
    """One host's part in a feed. Its own stream is `source`, and so are the lanes of it.
    `everything` says whether it takes every stream that it hears of, or only those that it holds.
    `has_room` says whether a host can be told more just now. `admits_source` says whether the items
    of a stream are wanted, whoever tells of them, and `admits_item` whether a host may tell us this
    item of a stream. With an `identity` this host signs its own streams."""

    def __init__(
        self,
        feed: str,
        source: str,
        shelf: ItemStore,
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
        self.far: dict[str, FeedPartner] = {}
        self.outbox: deque[tuple[list[str], said.Said]] = deque()
        """To whom, and what: the same to all of them."""
        self._shelf = shelf
        self._has_room = has_room
        self._admits_source = admits_source
        self._admits_item = admits_item
        self._window_bytes = window_bytes
        self._identity = identity
        self._unfolded: Counter[str] = (
            Counter()
        )  # removals since the source has signed what is left
        self.wants = FetchesInFlight(self.far, self._lacks, self._ask)
        self._fresh: dict[str, UnsentChanges] = {}
        self._near_said: frozenset[str] = frozenset()
        self._said: dict[str, set[str]] = {}  # to whom who has not answered yet: these streams
        self._heard: dict[type, Callable[[FeedPartner, Any], None]] = {
            said.ForwardsTo: self._hear_near,
            said.MarksChanged: self._hear_news,
            said.FetchFrom: self._hear_want,
            said.ItemBatch: self._hear_parcel,
            said.Tombstones: self._hear_died,
            said.AliveNumbers: self._hear_living,
        }

    # What is here

    @property
    def marks(self) -> dict[str, StreamMark]:
        return {source: stream.mark for source, stream in self.streams.items()}

    @property
    def own(self) -> Stream:
        return self._stream(self.source)

    @property
    def is_due(self) -> bool:
        """Is there something to tell?"""
        return bool(self._fresh) or self._near_said != self.far.keys()

    @property
    def is_told(self) -> bool:
        """Was everybody told what it takes of what is here?"""
        return not any(
            self._is_behind(far, stream)
            for stream in self.streams.values()
            if stream.items
            for far in self.far.values()
        )

    def _is_behind(self, far: FeedPartner, stream: Stream) -> bool:
        """Does it take this stream, and lack something of it?"""
        return far.takes(stream.source) and stream.mark.exceeds(far.mark(stream.source))

    def load(self, stream: Stream) -> None:
        """A stream as it was kept."""
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

    def _news_of(self, stream: Stream) -> UnsentChanges:
        """To be asked before the stream moves on."""
        fresh = self._fresh.get(stream.source)
        if fresh is None:
            fresh = self._fresh[stream.source] = UnsentChanges(stream.upto, stream.tombstones)
        return fresh

    # What happens here

    def write(self, items: Numbered, upto: int = 0, source: str | None = None) -> None:
        """New items of this host's own stream, or of a lane of it, in which there is no other
        number `upto` this."""
        is_new = source is not None and source not in self.streams
        stream = self.own if source is None else self._stream(source)
        fresh = self._news_of(stream)
        stream.append(items)
        stream.advance(upto)
        kept = self._shelf.put(stream, items)
        stream.keep(kept)
        fresh.items += kept
        if is_new:  # Who wants it will say so.
            self.outbox.append(
                (list(self.far), said.MarksChanged(self.feed, {stream.source: stream.mark}))
            )

    def mark_removed(self, numbers: Iterable[int], source: str | None = None) -> None:
        """These items of this host's own stream, or of a lane of it, are no more."""
        stream = self.own if source is None else self._stream(source)
        fresh = self._news_of(stream)
        marked_removed, items = stream.mark_removed(numbers)
        fresh.numbers += marked_removed
        self._shelf.remove(stream, items)

    def hold(self, source: str) -> None:
        """Take this stream from now on, if its source may write here."""
        if source not in self.streams and self._admits_source(source):
            self.outbox.append((list(self.far), said.MarksChanged(self.feed, {source: NOTHING})))
            self._stream(source)
            self.wants.consider(source)

    def outgrow(self, source: str, numbers: Iterable[int]) -> None:
        """These copies are not needed here any more, whatever their source says."""
        stream = self.streams.get(source)
        if stream is not None and not self.owns(source):
            self._shelf.remove(stream, stream.outgrow(numbers))

    def give_way(self, source: str, numbers: Iterable[int]) -> list[Item]:
        """There is no room for these copies, though they live: the items."""
        stream = self.streams[source]
        items = stream.give_way(numbers)
        self._shelf.remove(stream, items)
        return items

    def drop(self, source: str) -> None:
        """Forget the copy of this stream, and take it no more."""
        stream = self.streams.pop(source, None)
        if stream is not None:
            self._fresh.pop(source, None)
            self.wants.forget(source)
            self._shelf.drop(stream)
            self.say_here(list(self.far))

    # Who comes and goes

    def engaged(self, host: str, late: bool = False) -> None:
        """We say what is here, and so does it; if we are `late`, it has said so already."""
        self.say_here([host], late)

    def departed(self, host: str) -> None:
        """It is gone, or does not have this feed any more."""
        self._said.pop(host, None)
        if self.far.pop(host, None) is None:
            return
        # Others may think that we got from there what we did not.
        self.say_here(list(self.far))
        self.wants.lost(host)

    def say_here(self, hosts: list[str], late: bool = False) -> None:
        if hosts:
            near = list(self.far)
            here = said.HasFeed(self.feed, self.source, self.everything, near, self.marks, late)
            self.outbox.append((hosts, here))
            for host in hosts:
                if host not in self.far:
                    self._said[host] = set(self.streams)

    # What others say

    def heard(self, host: str, message: said.Said) -> None:
        if isinstance(message, said.HasFeed):
            self._hear_here(host, message)
            return
        if isinstance(message, said.LeavesFeed):
            self.departed(host)
            return
        far, hear = self.far.get(host), self._heard.get(type(message))
        if far is not None and hear is not None:  # else it has not heard yet that we are new here
            hear(far, message)

    def _hear_here(self, host: str, here: said.HasFeed) -> None:
        if host_of(here.source) != host:
            raise BadFrame("this stream is another's")
        far = FeedPartner(host, here.source, here.everything, frozenset(here.near), here.marks)
        before = self.far.get(host)
        self.far[host] = far
        if before is not None:
            self._warn(before, far)
        if here.late:
            self.say_here([host])
        known = self._said.pop(host, None)
        news = {
            source: stream.mark
            for source, stream in self.streams.items()
            if (far.takes(source) and stream.mark.exceeds(far.mark(source)))
            or (known is not None and source not in known)  # We hold it only since we said so.
        }
        if news:
            self.outbox.append(([host], said.MarksChanged(self.feed, news)))
        for source in here.marks:
            self.wants.consider(source)
        for source, stream in self.streams.items():
            if base_of(source) == far.source and stream.mark.exceeds(far.mark(source)):
                self.wants.inquire(source, host)

    def _warn(self, before: FeedPartner, far: FeedPartner) -> None:
        """Who is near one that holds a stream no more does not get there what we thought."""
        for source in [source for source in before.has if source not in far.has]:
            stream = self.streams.get(source)
            others = [
                other.id
                for other in self.far.values()
                if other.id in before.near and other.takes(source)
            ]
            if stream is not None and others:
                self.outbox.append((others, said.MarksChanged(self.feed, {source: stream.mark})))

    def _hear_near(self, far: FeedPartner, near: said.ForwardsTo) -> None:
        far.near = frozenset(near.near)

    def _hear_news(self, far: FeedPartner, news: said.MarksChanged) -> None:
        far.has.update(news.marks)
        if len(far.has) > SOURCES_MAX:
            raise BadFrame(f"more than {SOURCES_MAX} sources")
        for source, mark in news.marks.items():
            self.wants.consider(source)
            stream = self.streams.get(source)
            if stream is not None and mark == NOTHING != stream.mark:  # It wants it from now on.
                self.outbox.append(([far.id], said.MarksChanged(self.feed, {source: stream.mark})))

    def _believes(self, far: FeedPartner, source: str) -> bool:
        """Do we take this stream, and from this host?"""
        its = self.far.get(host_of(source))
        is_near = its is not None and its.source == base_of(source)
        return self.takes(source) and (its is far or not is_near)

    def _lacks(self, far: FeedPartner, source: str) -> bool:
        stream = self.streams.get(source)
        has_more = far.mark(source).exceeds(NOTHING if stream is None else stream.mark)
        return has_more and self._believes(far, source)

    def _ask(self, host: str, source: str) -> None:
        stream = self.streams.get(source)
        mark = NOTHING if stream is None else stream.mark
        self.outbox.append(([host], said.FetchFrom(self.feed, source, mark)))

    def _hear_want(self, far: FeedPartner, want: said.FetchFrom) -> None:
        stream = self.streams.get(want.source)
        parcel = None if stream is None else self._window(stream, want.mark.upto, answers=True)
        if stream is None or parcel is None:
            empty = said.ItemBatch(self.feed, want.source, 0, 0, 0, [], True)
            self.outbox.append(([far.id], empty))
            return
        tombstones = -1 if self._has_hole(parcel) else want.mark.tombstones
        if tombstones < stream.tombstones:
            self.outbox += [([far.id], one) for one in self._removals(stream, tombstones)]
        self.outbox.append(([far.id], parcel))
        far.has[want.source] = want.mark.or_more(StreamMark(parcel.upto, stream.tombstones))

    def _hear_parcel(self, far: FeedPartner, parcel: said.ItemBatch) -> None:
        source = parcel.source
        mark = StreamMark(parcel.upto, parcel.tombstones)
        asked = parcel.answers and self.wants.answered(source, far.id)
        if not self._believes(far, source):
            self.wants.consider(source)
            return
        stream = self._stream(source)
        if asked and not parcel.more:  # whatever it has promised
            far.has[source] = mark
            if far.source == base_of(source) and stream.mark.exceeds(mark):
                self._begin_anew(stream)
                return
        else:
            far.got(source, mark)
        if parcel.upto > stream.upto and not self._take_in(far, stream, parcel):
            far.has[source] = stream.mark  # It is not asked for this again, but others are.
            self.wants.consider(source)
            return
        if asked and not parcel.more and stream.lacks(mark) and is_signed(source):
            far.has[source] = stream.mark  # It cannot prove more.
        else:
            self._promised(far, source, mark)
        if not any(self._is_behind(other, stream) for other in self.far.values()):
            self._fresh.pop(source, None)
        self.wants.consider(source)

    def _begin_anew(self, stream: Stream) -> None:
        """What is here of it was not told by its source."""
        source = stream.source
        self._fresh.pop(source, None)
        self._shelf.drop(stream)
        self.streams[source] = Stream(source)
        self.say_here(list(self.far))
        self.wants.consider(source)

    def _take_in(self, far: FeedPartner, stream: Stream, parcel: said.ItemBatch) -> bool:
        """Take in what is new. False if this host may not tell us something of it."""
        upto, read = stream.upto, self._shelf.read
        if parcel.after > upto or parcel.tombstones > stream.tombstones:
            return True
        signed = is_signed(stream.source)
        read_all = [(n, read(encoded)) for n, encoded in parcel.items if n > upto or signed]
        items = [(number, item) for number, item in read_all if number > upto]
        proof = self._check(far, stream, parcel, dict(read_all)) if signed else []
        if proof is None:
            self._doubt(far, stream.source)
            return False
        if not all(self._admits_item(far.id, stream.source, item) for _, item in items):
            return False
        fresh = self._news_of(stream)
        new = stream.receive(parcel, items)
        stream.keep_chunks(proof)
        kept = self._shelf.put(stream, new or [])
        stream.keep(kept)
        fresh.items += kept
        return True

    def _hear_died(self, far: FeedPartner, died: said.Tombstones) -> None:
        source = died.source
        mark = StreamMark(0, died.tombstones)
        if not self._believes(far, source) or not self._is_heeded(far, died):
            return
        stream = self._stream(source)
        far.got(source, mark)
        if mark.tombstones > stream.tombstones >= died.before:
            fresh = self._news_of(stream)
            fresh.numbers += died.numbers[stream.tombstones - died.before :]
            gone = stream.died(died.before, died.numbers) or []
            if died.signature:
                stream.keep_removal(died)
            self._shelf.remove(stream, gone)
        self._promised(far, source, mark)
        self.wants.consider(source)

    def _hear_living(self, far: FeedPartner, living: said.AliveNumbers) -> None:
        if not self._believes(far, living.source) or not self._is_heeded(far, living):
            return
        stream = self._stream(living.source)
        far.got(living.source, StreamMark(0, living.tombstones))
        fresh = self._news_of(stream)
        is_newer = living.tombstones > stream.tombstones
        if is_newer or (living.signature and living.known > stream.known):
            gone = stream.outlive(living)
            if living.signature:
                stream.keep_removal(living)
            self._shelf.remove(stream, gone)
        if is_newer:
            fresh.before = stream.tombstones  # Which ones died is not known.
            fresh.numbers.clear()

    # What is signed

    def _signs(self, source: str) -> Identity | None:
        return self._identity if self.owns(source) else None

    def _proved(self, stream: Stream, parcel: said.ItemBatch) -> said.ItemBatch | None:
        """A parcel with its proof: signed here, or by its source. None if there is none."""
        source = stream.source
        if (identity := self._signs(source)) is not None:
            items = [stream.items[number] for number, _ in parcel.items]
            digests = {
                number: digest_of(self._shelf.content(item))
                for (number, _), item in zip(parcel.items, items, strict=True)
            }
            lease = max(map(self._shelf.lease, items), default=0.0)
            chunk = Chunk(parcel.after, parcel.upto, lease, digests, b"")
            chunk.signature = sign(identity, self.feed, source, chunk)
            chunk.digests = {}
            parcel.chunks = [chunk]
        elif is_signed(source) and not self.owns(source):
            parcel.chunks = stream.proof(parcel)
            if not _is_covered(parcel, stream.removals):
                return None
        return parcel

    def _has_hole(self, parcel: said.ItemBatch) -> bool:
        """Whether there are no chunks for a part of it, since nothing is left there."""
        return is_signed(parcel.source) and not _is_covered(parcel, [])

    def _removals(
        self, stream: Stream, tombstones: int
    ) -> list[said.Tombstones | said.AliveNumbers]:
        """What one is told of the removals who has heeded so many."""
        source = stream.source
        if is_signed(source) and not self.owns(source):
            return [one for one in stream.removals if one.tombstones > tombstones]
        living = stream.living(self.feed)
        if (identity := self._signs(source)) is not None:
            living.signature = sign(identity, self.feed, source, living)
        return [living]

    def _is_heeded(self, far: FeedPartner, removal: said.Tombstones | said.AliveNumbers) -> bool:
        """Whether removals are told by the source itself, or signed by it."""
        source = removal.source
        unsigned = not removal.signature and (far.source == base_of(source))
        if not is_signed(source) or unsigned or is_proved(self.feed, source, removal):
            return True
        self._doubt(far, source)
        return False

    def _check(
        self, far: FeedPartner, stream: Stream, parcel: said.ItemBatch, items: dict[int, Item]
    ) -> list[Chunk] | None:
        """The chunks that prove a parcel. None if they do not: it brings what was not signed, or
        leaves out what was signed, and was not removed."""
        source, shelf = stream.source, self._shelf
        if not parcel.chunks and far.source == base_of(source):
            return []  # An older program; its link proves who it is. It is not passed on.
        digests = {number: digest_of(shelf.content(item)) for number, item in items.items()}
        chunks: list[Chunk] = []
        listed: dict[int, Chunk] = {}
        end = stream.known
        for chunk in parcel.chunks:
            brought = {n: one for n, one in digests.items() if chunk.after < n <= chunk.upto}
            chunk.digests = dict(sorted((chunk.digests | brought).items()))
            is_next = chunk.after <= end and chunk.upto <= parcel.upto
            if not is_next or not is_proved(self.feed, source, chunk):
                return None
            end = max(end, chunk.upto)
            chunks.append(chunk)
            listed |= dict.fromkeys(chunk.digests, chunk)
        due = stream.due(parcel.upto, listed)
        if parcel.away:
            away = read_bits(parcel.away) & due
            due -= away
            parcel.away = encode_bits(away)
        is_right = (
            parcel.upto <= end
            and digests.keys() <= listed.keys()
            and all(number in digests for number in due)
            and all(
                shelf.lease(item) <= listed[number].lease + LEASE_SLACK_SECONDS
                for number, item in items.items()
            )
        )
        return chunks if is_right else None

    def _doubt(self, far: FeedPartner, source: str) -> None:
        if source not in far.doubted:
            far.doubted.add(source)
            logger.warning(
                "what %s says of the stream %s in %r is refused: its source has not signed it",
                *(far.id, source, self.feed),
            )

    def _promised(self, far: FeedPartner, source: str, mark: StreamMark) -> None:
        """Who is near the one who has told us hears of it, or asks for it, there as well."""
        for host in far.near:
            other = self.far.get(host)
            if other is not None and far.id in other.near and other.takes(source):
                other.got(source, mark)

    # Telling

    def tell(self) -> None:
        """Once a turn: tell the others what is new."""
        if self._near_said != self.far.keys():
            self._near_said = frozenset(self.far)
            self.outbox.append((list(self.far), said.ForwardsTo(self.feed, list(self.far))))
        fresh, self._fresh = self._fresh, {}
        news: dict[str, dict[str, StreamMark]] = {}
        for source, one in fresh.items():
            stream = self.streams.get(source)
            if stream is not None:
                for host in self._tell_of(stream, one):
                    news.setdefault(host, {})[source] = stream.mark
        for host, marks in news.items():
            self.outbox.append(([host], said.MarksChanged(self.feed, marks)))

    def _tell_of(self, stream: Stream, fresh: UnsentChanges) -> list[str]:
        """Tell those who are in step; who is not, and must ask."""
        source, mark = stream.source, stream.mark
        told: list[str] = []
        behind: list[str] = []
        for far in self.far.values():
            if far.takes(source):
                has = far.mark(source)
                if mark.exceeds(has):
                    in_step = has.upto >= fresh.after and has.tombstones >= fresh.before
                    (told if in_step and self._has_room(far.id) else behind).append(far.id)
        if not told:
            return behind
        parcel = self._parcel_of(stream, fresh)
        if parcel is None or len(fresh.numbers) > BURIED_MAX or self._has_hole(parcel):
            return told + behind
        if fresh.numbers:
            removals = self._died(stream, fresh)
            if not removals:
                return told + behind
            self.outbox += [(told, one) for one in removals]
        if parcel.upto > parcel.after:
            self.outbox.append((told, parcel))
        for host in told:
            self.far[host].has[source] = mark
        return behind

    def _died(
        self, stream: Stream, fresh: UnsentChanges
    ) -> list[said.Tombstones | said.AliveNumbers]:
        """What was removed since the others were told the last time, as it is signed."""
        source = stream.source
        if is_signed(source) and not self.owns(source):
            return [one for one in stream.removals if one.tombstones > fresh.before]
        died = said.Tombstones(self.feed, source, fresh.before, fresh.numbers)
        if (identity := self._signs(source)) is not None:
            self._unfolded[source] += len(fresh.numbers)
            if self._unfolded[source] > max(FOLD_MIN, len(stream.items)):
                del self._unfolded[source]
                return self._removals(stream, fresh.before)
            died.signature = sign(identity, self.feed, source, died)
        return [died]

    def _parcel_of(self, stream: Stream, fresh: UnsentChanges) -> said.ItemBatch | None:
        """The new items that live; None if they are too many to be told at once."""
        if stream.chunks:
            window = self._window(stream, fresh.after, answers=False)
            return None if window is None or window.more else window
        items = []
        late: list[int] = []
        size, living, encode = 0, stream.items, self._shelf.encode
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
        parcel = said.ItemBatch(
            self.feed,
            stream.source,
            fresh.after,
            stream.upto,
            stream.tombstones,
            items,
            False,
            away=stream.away_since(fresh.after, stream.upto, late),
        )
        return self._proved(stream, parcel)

    def _window(self, stream: Stream, after: int, *, answers: bool) -> said.ItemBatch | None:
        """What comes after a number, as much as is told at a time; None if it cannot be proved."""
        encode = self._shelf.encode
        parcel = stream.parcel(self.feed, after, self._window_bytes, encode, answers=answers)
        return self._proved(stream, parcel)


def _is_covered(
    parcel: said.ItemBatch, removals: list[said.Tombstones | said.AliveNumbers]
) -> bool:
    """Whether chunks, and the list of what lives, leave no hole in a parcel."""
    listed = removals[:1]
    end = max([parcel.after, *(one.known for one in listed if isinstance(one, said.AliveNumbers))])
    for chunk in parcel.chunks:
        if chunk.after > end:
            return False
        end = max(end, chunk.upto)
    return parcel.upto <= end
