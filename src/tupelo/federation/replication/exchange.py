"""The exchange of one feed: what this host tells the others that have it, and asks of them.

No I/O and no loop: it is told what has happened, and leaves in `outbox` what is to be said.

Each knows what the others near it have: as they have said, and as it has told them since. Who is in
step is told of what is new; who is not hears that there is more, and asks, one window at a time,
one of those who have it. Where A, B and C are near each other, B need not tell C what A has told
it: C gets it from A, and says what it has to everyone when it loses A.

Of a stream whose source is near, only what the source says itself is believed. If there is more of
it here than the source has, somebody has told us what is not so, and it is begun anew. Who may not
say something is not believed either: then the stream waits for one who may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tupelo.errors import BadFrame
from tupelo.federation.replication import messages as said
from tupelo.federation.replication.messages import NOTHING, SOURCES_MAX, Mark
from tupelo.federation.replication.partners import Far, Wants
from tupelo.federation.replication.sources import base_of, host_of
from tupelo.federation.replication.streams import Item, Numbered, Stream

WINDOW_BYTES = 256 * 1024
"""So much is told at a time."""
BURIED_MAX = 10_000
"""Of more removals than this in one turn it is not told which, but what is left."""


class Shelf(Protocol):
    """Where items are kept. It does not fail."""

    def put(self, stream: Stream, items: Numbered) -> Numbered:
        """Keep new items of a stream, which has moved on already; the items as they are kept."""
        ...

    def remove(self, stream: Stream, items: list[Item]) -> None: ...

    def drop(self, stream: Stream) -> None:
        """Forget the whole stream."""
        ...

    def spell(self, item: Item) -> bytes | None:
        """An item in msgpack; None if its time has come."""
        ...

    def read(self, spelled: Any) -> Item:
        """BadFrame if it is none."""
        ...


@dataclass
class Fresh:
    """What is new in a stream since the others were told the last time."""

    after: int
    before: int
    items: Numbered = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


class Exchange:
    """One host's part in a feed. Its own stream is `source`, and so are the lanes of it.
    `everything` says whether it takes every stream that it hears of, or only those that it holds.
    `has_room` says whether a host can be told more just now. `admits_source` says whether the items
    of a stream are wanted, whoever tells of them, and `admits_item` whether a host may tell us this
    item of a stream."""

    def __init__(
        self,
        feed: str,
        source: str,
        shelf: Shelf,
        *,
        everything: bool = True,
        has_room: Callable[[str], bool] = lambda host: True,
        admits_source: Callable[[str], bool] = lambda source: True,
        admits_item: Callable[[str, str, Item], bool] = lambda host, source, item: True,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.feed = feed
        self.source = source
        self.everything = everything
        self.streams: dict[str, Stream] = {}
        self.far: dict[str, Far] = {}
        self.outbox: deque[tuple[list[str], said.Said]] = deque()
        """To whom, and what: the same to all of them."""
        self._shelf = shelf
        self._has_room = has_room
        self._admits_source = admits_source
        self._admits_item = admits_item
        self._window_bytes = window_bytes
        self.wants = Wants(self.far, self._lacks, self._ask)
        self._fresh: dict[str, Fresh] = {}
        self._near_said: frozenset[str] = frozenset()
        self._said: dict[str, set[str]] = {}  # to whom who has not answered yet: these streams
        self._heard: dict[type, Callable[[Far, Any], None]] = {
            said.Near: self._hear_near,
            said.News: self._hear_news,
            said.Want: self._hear_want,
            said.Parcel: self._hear_parcel,
            said.Died: self._hear_died,
            said.Living: self._hear_living,
        }

    # What is here

    @property
    def marks(self) -> dict[str, Mark]:
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
            far.takes(source) and stream.mark.exceeds(far.mark(source))
            for source, stream in self.streams.items()
            if stream.items
            for far in self.far.values()
        )

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

    def _news_of(self, stream: Stream) -> Fresh:
        """To be asked before the stream moves on."""
        fresh = self._fresh.get(stream.source)
        if fresh is None:
            fresh = self._fresh[stream.source] = Fresh(stream.upto, stream.deaths)
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
            self.outbox.append((list(self.far), said.News(self.feed, {stream.source: stream.mark})))

    def bury(self, numbers: Iterable[int], source: str | None = None) -> None:
        """These items of this host's own stream, or of a lane of it, are no more."""
        stream = self.own if source is None else self._stream(source)
        fresh = self._news_of(stream)
        buried, items = stream.bury(numbers)
        fresh.numbers += buried
        self._shelf.remove(stream, items)

    def hold(self, source: str) -> None:
        """Take this stream from now on, if its source may write here."""
        if source not in self.streams and self._admits_source(source):
            self.outbox.append((list(self.far), said.News(self.feed, {source: NOTHING})))
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
            here = said.Here(self.feed, self.source, self.everything, near, self.marks, late)
            self.outbox.append((hosts, here))
            for host in hosts:
                if host not in self.far:
                    self._said[host] = set(self.streams)

    # What others say

    def heard(self, host: str, message: said.Said) -> None:
        if isinstance(message, said.Here):
            self._hear_here(host, message)
            return
        if isinstance(message, said.Gone):
            self.departed(host)
            return
        far, hear = self.far.get(host), self._heard.get(type(message))
        if far is not None and hear is not None:  # else it has not heard yet that we are new here
            hear(far, message)

    def _hear_here(self, host: str, here: said.Here) -> None:
        if host_of(here.source) != host:
            raise BadFrame("this stream is another's")
        far = Far(host, here.source, here.everything, frozenset(here.near), here.marks)
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
            self.outbox.append(([host], said.News(self.feed, news)))
        for source in here.marks:
            self.wants.consider(source)
        for source, stream in self.streams.items():
            if base_of(source) == far.source and stream.mark.exceeds(far.mark(source)):
                self.wants.inquire(source, host)

    def _warn(self, before: Far, far: Far) -> None:
        """Who is near one that holds a stream no more does not get there what we thought."""
        for source in [source for source in before.has if source not in far.has]:
            stream = self.streams.get(source)
            others = [
                other.id
                for other in self.far.values()
                if other.id in before.near and other.takes(source)
            ]
            if stream is not None and others:
                self.outbox.append((others, said.News(self.feed, {source: stream.mark})))

    def _hear_near(self, far: Far, near: said.Near) -> None:
        far.near = frozenset(near.near)

    def _hear_news(self, far: Far, news: said.News) -> None:
        far.has.update(news.marks)
        if len(far.has) > SOURCES_MAX:
            raise BadFrame(f"more than {SOURCES_MAX} sources")
        for source, mark in news.marks.items():
            self.wants.consider(source)
            stream = self.streams.get(source)
            if stream is not None and mark == NOTHING != stream.mark:  # It wants it from now on.
                self.outbox.append(([far.id], said.News(self.feed, {source: stream.mark})))

    def _believes(self, far: Far, source: str) -> bool:
        """Do we take this stream, and from this host?"""
        its = self.far.get(host_of(source))
        is_near = its is not None and its.source == base_of(source)
        return self.takes(source) and (its is far or not is_near)

    def _lacks(self, far: Far, source: str) -> bool:
        stream = self.streams.get(source)
        has_more = far.mark(source).exceeds(NOTHING if stream is None else stream.mark)
        return has_more and self._believes(far, source)

    def _ask(self, host: str, source: str) -> None:
        stream = self.streams.get(source)
        mark = NOTHING if stream is None else stream.mark
        self.outbox.append(([host], said.Want(self.feed, source, mark)))

    def _hear_want(self, far: Far, want: said.Want) -> None:
        stream = self.streams.get(want.source)
        if stream is None:
            empty = said.Parcel(self.feed, want.source, 0, 0, 0, [], True)
            self.outbox.append(([far.id], empty))
            return
        if want.mark.deaths < stream.deaths:
            self.outbox.append(([far.id], stream.living(self.feed)))
        parcel = stream.parcel(
            self.feed, want.mark.upto, self._window_bytes, self._shelf.spell, answers=True
        )
        self.outbox.append(([far.id], parcel))
        far.has[want.source] = want.mark.or_more(Mark(parcel.upto, stream.deaths))

    def _hear_parcel(self, far: Far, parcel: said.Parcel) -> None:
        source = parcel.source
        mark = Mark(parcel.upto, parcel.deaths)
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
        self._promised(far, source, mark)
        self.wants.consider(source)

    def _begin_anew(self, stream: Stream) -> None:
        """What is here of it was not told by its source."""
        source = stream.source
        self._fresh.pop(source, None)
        self._shelf.drop(stream)
        self.streams[source] = Stream(source)
        self.say_here(list(self.far))
        self.wants.consider(source)

    def _take_in(self, far: Far, stream: Stream, parcel: said.Parcel) -> bool:
        """Take in what is new. False if this host may not tell us something of it."""
        upto, read = stream.upto, self._shelf.read
        if parcel.after > upto or parcel.deaths > stream.deaths:
            return True
        items = [(number, read(spelled)) for number, spelled in parcel.items if number > upto]
        if not all(self._admits_item(far.id, stream.source, item) for _, item in items):
            return False
        fresh = self._news_of(stream)
        new = stream.receive(parcel, items)
        kept = self._shelf.put(stream, new or [])
        stream.keep(kept)
        fresh.items += kept
        return True

    def _hear_died(self, far: Far, died: said.Died) -> None:
        source = died.source
        mark = Mark(0, died.before + len(died.numbers))
        if not self._believes(far, source):
            return
        stream = self._stream(source)
        far.got(source, mark)
        if mark.deaths > stream.deaths >= died.before:
            fresh = self._news_of(stream)
            fresh.numbers += died.numbers[stream.deaths - died.before :]
            self._shelf.remove(stream, stream.died(died.before, died.numbers) or [])
        self._promised(far, source, mark)
        self.wants.consider(source)

    def _hear_living(self, far: Far, living: said.Living) -> None:
        if not self._believes(far, living.source):
            return
        stream = self._stream(living.source)
        far.got(living.source, Mark(0, living.deaths))
        fresh = self._news_of(stream)
        if living.deaths > stream.deaths:
            self._shelf.remove(stream, stream.outlive(living))
            fresh.before = stream.deaths  # Which ones died is not known.
            fresh.numbers.clear()

    def _promised(self, far: Far, source: str, mark: Mark) -> None:
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
            self.outbox.append((list(self.far), said.Near(self.feed, list(self.far))))
        fresh, self._fresh = self._fresh, {}
        news: dict[str, dict[str, Mark]] = {}
        for source, one in fresh.items():
            stream = self.streams.get(source)
            if stream is not None:
                for host in self._tell_of(stream, one):
                    news.setdefault(host, {})[source] = stream.mark
        for host, marks in news.items():
            self.outbox.append(([host], said.News(self.feed, marks)))

    def _tell_of(self, stream: Stream, fresh: Fresh) -> list[str]:
        """Tell those who are in step; who is not, and must ask."""
        source, mark = stream.source, stream.mark
        told: list[str] = []
        behind: list[str] = []
        for far in self.far.values():
            if far.takes(source):
                has = far.mark(source)
                if mark.exceeds(has):
                    in_step = has.upto >= fresh.after and has.deaths >= fresh.before
                    (told if in_step and self._has_room(far.id) else behind).append(far.id)
        if not told:
            return behind
        parcel = self._parcel_of(stream, fresh)
        if parcel is None or len(fresh.numbers) > BURIED_MAX:
            return told + behind
        if fresh.numbers:
            died = said.Died(self.feed, source, fresh.before, fresh.numbers)
            self.outbox.append((told, died))
        if parcel.upto > parcel.after:
            self.outbox.append((told, parcel))
        for host in told:
            self.far[host].has[source] = mark
        return behind

    def _parcel_of(self, stream: Stream, fresh: Fresh) -> said.Parcel | None:
        """The new items that live; None if they are too many to be told at once."""
        items = []
        size, living, spell = 0, stream.items, self._shelf.spell
        for number, item in fresh.items:
            if number in living:
                spelled = spell(item)
                if spelled is not None:
                    size += len(spelled)
                    items.append((number, msgspec.Raw(spelled)))
                    if size > self._window_bytes and len(items) > 1:
                        return None
        return said.Parcel(
            self.feed,
            stream.source,
            fresh.after,
            stream.upto,
            stream.deaths,
            items,
            False,
            away=stream.away_since(fresh.after, stream.upto),
        )
