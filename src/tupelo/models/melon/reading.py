"""Reading: the messages that one process has not read yet, at the hosts that wrote them or, if
those are out of reach, in copies.

One record per process holds all messages that it has read, wherever it found them. Copies of a host
are a prefix of its messages, in its order, so reads of copies and reads at the host itself keep one
order. An older copy can turn up only where a removal has not been replicated yet; it is skipped.
Where the oldest copies were collected, a process that reads the rest has missed them: for the same
template they are skipped at their host too.

Without copies, a read of one message fetches some more for the next reads of the same template.
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
from tupelo.models.melon.directed import Place
from tupelo.space.log import Actor
from tupelo.space.query import NOW, Query, deadline_of
from tupelo.space.session import Seen, SessionState
from tupelo.values.entry import Entry, require_known
from tupelo.values.template import Template, as_template
from tupelo.values.template_encoding import template_to_wire

if TYPE_CHECKING:
    from tupelo.models.melon.message_store import MessageStore

AHEAD = 64
"""How many messages a read of one fetches at a time."""
PLACES_MAX = 4_096
"""How many places in streams are remembered before all are dropped and searched for again."""


class ReadRecord(SeenRecord):
    """The messages that one process has read. Messages that are gone are dropped from the record;
    with copies they stay in `past`, since an outdated copy may still turn up."""

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
        """Whether this message was read, and is gone at its host."""
        past = self.past.get(entry.origin)
        return past is not None and entry.n in past


class MessageReader:
    """The reads of one process. With `known`, a message whose class is unknown in this program
    raises UnknownType; without, the process is a client, and messages stay entries."""

    def __init__(self, message_store: MessageStore, *, known: bool = True) -> None:
        core = message_store.core
        self._known = known
        self._store = message_store
        self._core = core
        self._hosted = message_store.written
        self._memory = ReadRecord(message_store.feed is not None)
        actor = Actor(core.id, core.new_id(), core.name)
        self._actor = actor
        self._state = SessionState(actor.session or "", self._memory, None)
        self._ahead: deque[Entry] = deque()  # fetched, and not returned yet
        self._ahead_for: bytes | None = None  # the encoded template of these
        self._copies = (
            None
            if message_store.feed is None
            else UnreachableCopies(message_store, message_store.feed, self._memory, known)
        )
        self._hosted.port.remember(self._memory)
        message_store.readers.add(self)

    def close(self) -> None:
        self._state.ended = True
        self._hosted.port.forget(self._memory)
        self._memory.close()

    async def read(self, template: Any, wait: float | None, many: bool) -> list[Entry]:
        """The oldest unread message that matches, or all; empty if there is none in time."""
        deadline = deadline_of(self._hosted.clock, wait)
        copies = self._copies
        key = _encode(template)
        if copies is None:
            return await self._read_ahead(template, deadline, many, key)
        self._store.begin_pulling()
        found: list[Entry] = []

        async def look() -> list[Entry]:
            if many:
                await self._store.sync_copies()
            return copies.look(template, key, many)

        if wait == 0 or many:
            await self._store.sync_copies()
            found = copies.look(template, key, many)
            if many or not found:
                try:
                    found += await self._ask_on(template, NOW, many, key, copies)
                except BaseException:
                    self.undo(found)
                    raise
        if not found and wait != 0:
            found = await race(
                lambda: self._ask_on(template, deadline, many, key, copies),
                lambda: copies.has(template, key),
                look,
                self.undo,
                self._store.broadcast,
            )
        copies.note(found, key)
        return found

    async def _read_ahead(
        self, template: Any, deadline: float | None, many: bool, key: bytes | None
    ) -> list[Entry]:
        """`read` without copies. More messages are fetched for the next reads of this template; a
        read of another template makes them unread again."""
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
        if self._ahead and self._ahead_for != key:  # from a concurrent read
            self._unread(found[1:])
        else:
            self._ahead += found[1:]
            self._ahead_for = key
        return found[:1]

    def drop_ahead(self) -> None:
        """Make the messages unread that were fetched and not returned."""
        ahead = [*self._ahead]
        self._ahead.clear()
        self._unread(ahead)

    def _unread(self, entries: list[Entry]) -> None:
        with self._hosted.port.atomic():
            self._memory.discard_all(entries)

    def undo(self, entries: list[Entry]) -> None:
        """Make these messages unread: the caller of `read` has vanished."""
        self._unread(entries)
        self.drop_ahead()  # They come after the ones that are unread again.
        if self._copies is not None:
            self._copies.undo(entries)

    async def _ask_on(
        self,
        template: Any,
        deadline: float | None,
        many: bool,
        key: bytes | None,
        copies: UnreachableCopies,
    ) -> list[Entry]:
        """`_ask`, without messages that were missed in copies; those count as read."""
        while True:
            found = await self._ask(template, deadline, None if many else 1)
            due = [entry for entry in found if not copies.is_missed(entry, key)]
            if due or not found:
                return due

    async def _ask(self, template: Any, deadline: float | None, limit: int | None) -> list[Entry]:
        """Read all unread messages of this host and the engaged ones; with a limit, at most so
        many, of one host. Hosts that do not answer are skipped."""
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
        got = await federation.get(self._hosted, query, partial=True, ahead=True)
        entries = got.entries
        for place, entry in enumerate(entries if self._known else ()):
            try:
                require_known(entry)
            except TupeloError:
                if place == 0 or limit is None:
                    got.give_back()
                    raise
                self._unread(entries[place:])  # The read that reaches it raises the error.
                entries = entries[:place]
                break
        await federation.hand(got)
        return entries


class UnreachableCopies:
    """The copies at this host of messages whose own hosts are out of reach, as one process reads
    them. A place is a stream and the number of an item in it; a key is an encoded template."""

    def __init__(
        self, message_store: MessageStore, feed: Feed, memory: ReadRecord, known: bool
    ) -> None:
        self._known = known
        self._store = message_store
        self._feed = feed
        self._memory = memory
        self._port = message_store.written.port
        self._read: dict[tuple[bytes, str], int] = {}  # nothing unread up to this item
        self._latest: dict[tuple[bytes, str], int] = {}  # the youngest item that was read
        self._looked: dict[Entry, Place] = {}  # found, and not returned yet
        self._missed: dict[str, BitMap64] = {}  # were collected when a newer item was found
        self._discards = 0

    def has(self, template: Any, key: bytes | None) -> bool:
        """Whether there is an unread copy that matches."""
        asked = as_template(template)
        with self._port.atomic():
            self._refresh()
            return any(
                True
                for source in self._store.out_of_reach()
                for _ in self._unread(source, asked, key)
            )

    def _refresh(self) -> None:
        if self._discards != self._memory.discards or len(self._read) > PLACES_MAX:
            self._discards = self._memory.discards
            self._read.clear()

    def look(self, template: Any, key: bytes | None, many: bool) -> list[Entry]:
        """The oldest unread copy that matches, or all; they count as read from now on."""
        asked = as_template(template)
        found: list[Entry] = []
        with self._port.atomic():
            self._refresh()
            for source in self._store.out_of_reach():
                for number, entry in self._unread(source, asked, key):
                    try:
                        if self._known:
                            require_known(entry)
                    except TupeloError:  # The copies before it are not returned either.
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
        """Whether a newer copy was read while the copy of this message had been collected."""
        source, number = self._place_at_its_host(entry) or ("", 0)
        if key is None or number not in self._missed.get(source, ()):
            return False
        found = [number for at, number in self._looked.values() if at == source]
        return number < max([self._latest.get((key, source), 0), *found])

    def note(self, entries: Iterable[Entry], key: bytes | None) -> None:
        """These are returned to the process: nothing older of their streams is read after them."""
        for entry in entries:
            place = self._looked.pop(entry, None) or self._place_at_its_host(entry)
            if place is not None and key is not None:
                source, number = place
                if len(self._latest) > PLACES_MAX:
                    self._latest.clear()
                self._latest[key, source] = max(number, self._latest.get((key, source), 0))

    def undo(self, entries: Iterable[Entry]) -> None:
        """These are unread again."""
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
        """The place of a message that was read at its host, where its arrival is its number."""
        source = self._store.source_of(entry)
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
    """The key of a template; None if it cannot be encoded."""
    try:
        return msgspec.msgpack.encode(template_to_wire(template))
    except (TupeloError, TypeError, UnicodeEncodeError):
        return None
