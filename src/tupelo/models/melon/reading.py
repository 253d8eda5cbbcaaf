"""Reading: what one process has not read yet, where it was written or, if that is out of reach, in
copies.

One record says what was read, wherever it was found. Copies come as the beginning of what a host
has written, in its order, so what is read there and what is read at the host itself never passes by
each other; only a copy that has not heard of a removal could be behind, and then it is left out.
Where the oldest copies have given way to others, who reads the rest has missed them: they are left
out at their host too, for the same question.

Without copies, a read of one gets some more with it, for the next who ask the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyroaring import BitMap64

from tupelo.errors import TupeloError
from tupelo.federation.replication.feeds import Feed
from tupelo.federation.replication.streams import up_to
from tupelo.federation.spanning.records import SeenRecord
from tupelo.models.melon.broadcast import race
from tupelo.models.melon.receipts import Place
from tupelo.space.log import Actor
from tupelo.space.query import NOW, Query, deadline_of
from tupelo.space.session import Seen, SessionState
from tupelo.values.entry import Entry, require_known
from tupelo.values.template import Template, as_template
from tupelo.values.template_encoding import template_to_wire

if TYPE_CHECKING:
    from tupelo.models.melon.message_store import MessageStore

AHEAD = 64
"""So many messages are read at a time, if there are as many, also if only one is asked for."""
PLACES_MAX = 4_096
"""So many places in streams are remembered; then they are looked for anew."""


class ReadRecord(SeenRecord):
    """What was read. What is gone for good need not be said any more to those who are asked; but,
    if there are copies, one that has not heard of it may still turn up."""

    __slots__ = ("_copied", "past")

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.past: dict[str, BitMap64] = {}
        self._copied = copied

    def prune(self, gone: Seen) -> None:
        for origin, numbers in gone.bits.items() if self._copied else ():
            common = self.bits.get(origin, BitMap64()) & numbers
            if common:
                past = self.past[origin] = self.past.get(origin, BitMap64()) | common
                past.run_optimize()
        super().prune(gone)

    def is_past(self, entry: Entry) -> bool:
        past = self.past.get(entry.origin)
        return past is not None and entry.n in past


class MessageReader:
    """What one process reads. Messages of classes that are not `known` in this program are for a
    process elsewhere, that is a client of this host; else UnknownType."""

    def __init__(self, post: MessageStore, *, known: bool = True) -> None:
        core = post.core
        self._known = known
        self._post = post
        self._core = core
        self._hosted = post.written
        self._memory = ReadRecord(post.feed is not None)
        actor = Actor(core.id, core.new_id())
        self._actor = actor
        self._state = SessionState(actor.session or "", self._memory, None)
        self._ahead: deque[Entry] = deque()  # what was read and not asked for yet
        self._ahead_for: bytes | None = None  # by this question
        self._shelves = (
            None if post.feed is None else CopyShelves(post, post.feed, self._memory, known)
        )
        self._hosted.port.remember(self._memory)
        post.readers.add(self)

    def close(self) -> None:
        self._state.ended = True
        self._hosted.port.forget(self._memory)
        self._memory.close()

    async def read(self, template: Any, wait: float | None, many: bool) -> list[Entry]:
        deadline = deadline_of(self._hosted.clock, wait)
        shelves = self._shelves
        key = _encode(template)
        if shelves is None:
            return await self._read_ahead(template, deadline, many, key)
        self._post.begin_pulling()
        found: list[Entry] = []

        async def look() -> list[Entry]:
            if many:
                await self._post.in_step()
            return shelves.look(template, key, many)

        if wait == 0 or many:
            await self._post.in_step()
            found = shelves.look(template, key, many)
            if many or not found:
                try:
                    found += await self._ask_on(template, NOW, many, key, shelves)
                except BaseException:
                    self.undo(found)
                    raise
        if not found and wait != 0:
            found = await race(
                lambda: self._ask_on(template, deadline, many, key, shelves),
                lambda: shelves.has(template, key),
                look,
                self.undo,
                self._post.broadcast,
            )
        shelves.note(found, key)
        return found

    async def _read_ahead(
        self, template: Any, deadline: float | None, many: bool, key: bytes | None
    ) -> list[Entry]:
        """As below; where there are more, some are read for those who ask the same again. For
        another question they have not been read."""
        if key is None or key != self._ahead_for:
            self.drop_ahead()
        if many:
            found = [*self._ahead]
            self._ahead.clear()
            try:
                return found + await self._ask(template, NOW if found else deadline, None)
            except BaseException:
                self.undo(found)
                raise
        if self._ahead:
            return [self._ahead.popleft()]
        found = await self._ask(template, deadline, 1 if key is None else AHEAD)
        if self._ahead and self._ahead_for != key:  # Someone else reads at the same time.
            self._unread(found[1:])
        else:
            self._ahead += found[1:]
            self._ahead_for = key
        return found[:1]

    def drop_ahead(self) -> None:
        """What nobody has asked for yet was not read."""
        ahead = [*self._ahead]
        self._ahead.clear()
        self._unread(ahead)

    def _unread(self, entries: list[Entry]) -> None:
        with self._hosted.port.atomic():
            self._memory.discard_all(entries)

    def undo(self, entries: list[Entry]) -> None:
        self._unread(entries)
        self.drop_ahead()  # They come after these.
        if self._shelves is not None:
            self._shelves.undo(entries)

    async def _ask_on(
        self,
        template: Any,
        deadline: float | None,
        many: bool,
        key: bytes | None,
        shelves: CopyShelves,
    ) -> list[Entry]:
        """As below, without what was missed: that counts as read."""
        while True:
            found = await self._ask(template, deadline, None if many else 1)
            due = [entry for entry in found if not shelves.is_missed(entry, key)]
            if due or not found:
                return due

    async def _ask(self, template: Any, deadline: float | None, limit: int | None) -> list[Entry]:
        """All that those have who are engaged; or so many as one of them has, at most. Who does not
        answer is passed over."""
        federation = self._core.federation
        query = Query(
            template,
            deadline=deadline,
            many=limit is None,
            limit=limit,
            session=self._state,
            actor=self._actor,
            known=False,
        )
        got = await federation.get(self._hosted, query, partial=True)
        entries = got.entries
        for place, entry in enumerate(entries if self._known else ()):
            try:
                require_known(entry)
            except TupeloError:
                if place == 0 or limit is None:
                    got.give_back()
                    raise
                self._unread(entries[place:])  # Who asks for it is told.
                entries = entries[:place]
                break
        await federation.hand(got)
        return entries


class CopyShelves:
    """The copies that are at this host of what hosts have written that are out of reach."""

    def __init__(self, post: MessageStore, feed: Feed, memory: ReadRecord, known: bool) -> None:
        self._known = known
        self._post = post
        self._feed = feed
        self._memory = memory
        self._port = post.written.port
        self._read: dict[tuple[bytes, str], int] = {}  # up to there there is nothing to be read
        self._latest: dict[tuple[bytes, str], int] = {}  # the place of the youngest that was read
        self._looked: dict[Entry, Place] = {}  # what was found, and has not been handed out yet
        self._missed: dict[str, BitMap64] = {}  # had given way when something newer was found
        self._discards = 0

    def has(self, template: Any, key: bytes | None) -> bool:
        """Is there something that has not been read of it?"""
        asked = as_template(template)
        with self._port.atomic():
            self._refresh()
            return any(
                True
                for source in self._post.out_of_reach()
                for _ in self._unread(source, asked, key)
            )

    def _refresh(self) -> None:
        if self._discards != self._memory.discards or len(self._read) > PLACES_MAX:
            self._discards = self._memory.discards
            self._read.clear()

    def look(self, template: Any, key: bytes | None, many: bool) -> list[Entry]:
        """What has not been read of it: the oldest, or all. It is read from now on."""
        asked = as_template(template)
        found: list[Entry] = []
        with self._port.atomic():
            self._refresh()
            for source in self._post.out_of_reach():
                for number, entry in self._unread(source, asked, key):
                    try:
                        if self._known:
                            require_known(entry)
                    except TupeloError:  # Those before it are not handed out either.
                        self._memory.discard_all(found)
                        self.undo(found)
                        raise
                    found += self._memory.choose([entry], None)
                    self._looked[entry] = source, number
                    self._miss(source, number)
                    if not many:
                        return found
        return found

    def _unread(
        self, source: str, asked: Template, key: bytes | None
    ) -> Iterator[tuple[int, Entry]]:
        stream = self._feed.stream(source)
        if stream is None:
            return
        latest = 0 if key is None else self._latest.get((key, source), 0)
        after = 0 if key is None else self._read.get((key, source), 0)
        for number in stream.alive.iter_equal_or_larger(after + 1):
            if number > stream.upto:
                break
            entry = stream.items.get(number)
            if entry is not None and not entry.ended and asked.admits(entry.shape, entry.fields):
                behind = number < latest or self._memory.is_past(entry)
                if not behind and entry not in self._memory:
                    yield number, entry
            if key is not None:
                self._read[key, source] = number

    def _miss(self, source: str, number: int) -> None:
        stream = self._feed.stream(source)
        if stream is not None and stream.away:
            self._missed[source] = self._missed.get(source, BitMap64()) | up_to(stream.away, number)

    def is_missed(self, entry: Entry, key: bytes | None) -> bool:
        """Was something newer read in copies when this had given way there?"""
        source, number = self._place_at_its_host(entry) or ("", 0)
        if key is None or number not in self._missed.get(source, ()):
            return False
        found = [number for at, number in self._looked.values() if at == source]
        return number < max([self._latest.get((key, source), 0), *found])

    def note(self, entries: Iterable[Entry], key: bytes | None) -> None:
        """These were read: of what these hosts have written, nothing older will be."""
        for entry in entries:
            place = self._looked.pop(entry, None) or self._place_at_its_host(entry)
            if place is not None and key is not None:
                source, number = place
                if len(self._latest) > PLACES_MAX:
                    self._latest.clear()
                self._latest[key, source] = max(number, self._latest.get((key, source), 0))

    def undo(self, entries: Iterable[Entry]) -> None:
        """These were not read after all."""
        places = {entry: self._looked.pop(entry, None) for entry in entries}
        read = [entry for entry, place in places.items() if place is None]
        if not self._latest or not read:
            return
        here = self._copies_of(read)
        for entry in read:
            source, number = here.get(_name(entry)) or self._place_at_its_host(entry) or ("", 0)
            for key, latest in list(self._latest.items()):
                if key[1] == source and latest >= number:
                    self._latest[key] = number - 1

    def _place_at_its_host(self, entry: Entry) -> Place | None:
        """Of one that was read there just now: it arrived when it came into the stream."""
        source = self._post.source_of(entry)
        return None if source is None else (source, entry.arrival)

    def _copies_of(self, entries: list[Entry]) -> dict[tuple[str, int], Place]:
        names = set(map(_name, entries))
        return {
            _name(copy): (source, number)
            for source in self._feed.marks
            if (stream := self._feed.stream(source)) is not None
            for number, copy in stream.items.items()
            if _name(copy) in names
        }


def _name(entry: Entry) -> tuple[str, int]:
    return entry.origin, entry.n


def _encode(template: Any) -> bytes | None:
    """By what the same question is known; None if it cannot be said."""
    try:
        return msgspec.msgpack.encode(template_to_wire(template))
    except (TupeloError, TypeError, UnicodeEncodeError):
        return None
