"""The message store of one name at a host, which all its Melons of this name share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tupelo.errors import BadArgument, CannotSend, JournalError, SpaceClosed
from tupelo.federation.hosts.peer import SilentExtension
from tupelo.federation.identity.access import NOBODY, Access
from tupelo.federation.replication.feeds import CONTENT_BYTES_MAX, Feed, replication_of
from tupelo.federation.replication.messages import NOTHING, StreamMark
from tupelo.federation.replication.streams import host_of
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.melon.broadcast import MessageSignal
from tupelo.models.melon.collecting import Bound, CollectedBacklog, Copies, Kind, PinnedCapacity
from tupelo.models.melon.directed import DirectedMessages
from tupelo.models.melon.private import Pins, PrivateRecords
from tupelo.models.melon.sealed import Receipt, Sealed, addressee_of
from tupelo.models.melon.taking import Taking
from tupelo.space.capacity import Capacity
from tupelo.space.tasks import TaskSignal, when_room
from tupelo.values.entry import Entry, FrozenEntry, freeze
from tupelo.values.kind import kind_of

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer
    from tupelo.models.melon.reading import MessageReader

"""A message to be written: its shape and its fields."""
NAME_MAX = 50
"""The maximum length of the name of a Melon; the names of its spaces are longer."""
_RECEIPT = kind_of(Receipt)
_DIRECTED = frozenset([kind_of(Sealed), _RECEIPT])


def check_name(name: object) -> str:
    """The name of a Melon; BadArgument if it is no text or too long."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
        raise BadArgument("name", f"a text of 1 to {NAME_MAX} characters", name)
    return name


def message_store_of(
    core: HostCore, name: str, bound: Bound | None = None, copies: Copies | None = None
) -> MessageStore:
    """The message store of this name, created if there is none. BadArgument if it exists with
    another bound or other copies."""
    found = core.extensions.get(f"melon {name}")
    if not isinstance(found, MessageStore):
        return MessageStore(core, name, bound, copies)
    for argument, given, is_so in (("bound", bound, found.bound), ("copies", copies, found.copies)):
        if given is not None and given != is_so:
            raise BadArgument(argument, f"{is_so}, as it is at this host by now", given)
    return found


class MessageStore(SilentExtension):
    """Three spaces: `stored` messages, `written` messages, and sealed (directed) messages; with
    their pins, bounds and copies."""

    def __init__(
        self, core: HostCore, name: str, bound: Bound | None, copies: Copies | None
    ) -> None:
        self.core = core
        self.bound = bound
        self.copies = copies
        self.broadcast = MessageSignal()
        """Notified when copies or directed messages arrive."""
        self.listeners: WeakSet[CollectedBacklog] = WeakSet()
        self.readers: WeakSet[MessageReader] = WeakSet()
        self._loop = asyncio.get_running_loop()
        self.stored = core.make_space(name)
        if copies is not None and not self.stored.shared:
            raise BadArgument("copies", f"left out: {name!r} has a password", copies)
        # Other hosts read written messages; sealed messages are only replicated.
        self.written = core.companion(self.stored, "written", Access(write=(), take=()))
        self._sealed = core.companion(self.stored, "sealed", NOBODY)
        self._private = PrivateRecords(core, name)
        self._evicted: deque[tuple[HostedSpace, int, Kind, list[Entry]]] = deque()
        """Evicted entries that are not reported yet, each with the position of that change."""
        self._reporting: asyncio.Task[None] | None = None
        rooms = {} if bound is None or bound.capacity is None else self._bind(bound.capacity)
        self._pins = Pins(self._private)
        self._pins.load([self.stored, self.written, self._sealed], rooms)
        self.feed: Feed | None = None
        self._pulling = False
        if copies is not None:
            self.feed = replication_of(core).feed(self.written, copies.policy)
            self.feed.listeners.append(self._heard_of_copies)
            self.feed.gave_way.append(partial(self._tell_collected, "copy"))
        self.directed = DirectedMessages(
            core, name, self.stored, self._sealed, self._private, copies, self.broadcast.notify
        )
        self.directed.gave_way.append(partial(self._tell_collected, "copy"))
        self.taking = Taking(core, self.stored, self.directed, self.broadcast)
        core.extensions[f"melon {name}"] = self

    def departed(self, peer: Peer) -> None:
        """A peer has left: messages that were read ahead but not asked for are unread again."""
        for reader in list(self.readers):
            reader.drop_ahead()

    # Bounds

    def _bind(self, capacity: Capacity) -> dict[HostedSpace, PinnedCapacity]:
        """Bound the spaces: surplus entries are evicted at their next write."""
        kinds: dict[HostedSpace, Kind] = {
            self.stored: "stored",
            self.written: "written",
            self._sealed: "directed",
        }
        rooms = {}
        for hosted, kind in kinds.items():
            on_evicted = partial(self._on_evicted, hosted, kind)
            rooms[hosted] = PinnedCapacity(capacity, on_evicted, _counts)
            with hosted.port.atomic():
                hosted.port.bound(rooms[hosted], capacity)
                hosted.port.remember(rooms[hosted].pins)  # What is gone for good is unpinned.
        return rooms

    def _on_evicted(self, hosted: HostedSpace, kind: Kind, entries: list[Entry]) -> None:
        """Report evicted entries; called on any thread, under the lock of the space."""
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._report_collected, hosted, kind, entries)

    def _report_collected(self, hosted: HostedSpace, kind: Kind, entries: list[Entry]) -> None:
        """Report evicted entries when that is on disk: until then they are back after a crash."""
        with hosted.port.atomic():
            self._evicted.append((hosted, hosted.port.position, kind, entries))
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.ensure_future(self._report())

    async def _report(self) -> None:
        with suppress(SpaceClosed, JournalError):
            while self._evicted:
                hosted, position, kind, entries = self._evicted[0]
                if hosted.durable:
                    await when_room(partial(hosted.flush, position), flushes=True)
                self._evicted.popleft()
                self._tell_collected(kind, entries)

    def _tell_collected(self, kind: Kind, entries: list[Entry]) -> None:
        for entry in entries:
            is_directed = entry.shape.kind in _DIRECTED
            message = addressee_of(entry) if is_directed else entry
            if message is not None:
                for listener in list(self.listeners):
                    listener.tell(message, kind)

    # Adding

    def check_copied(self, size: int) -> None:
        """CannotSend if messages are copied here, and one of so many bytes is too long for that."""
        if self.feed is not None and size > CONTENT_BYTES_MAX:
            raise CannotSend(
                f"message= needs {size:,} bytes, and {CONTENT_BYTES_MAX:,} can be copied; "
                "without copies= more can be written"
            )

    async def direct(self, message: object, to: str, pin: bool) -> None:
        """Encrypt a message for one identity and replicate it to carriers."""
        sealed = freeze(await self.directed.seal(message, to))
        await self.directed.announce(await self.add(self._sealed, sealed, pin))

    async def unpin(self, template: Any) -> int:
        """Unpin the stored and written messages that match; how many there were."""
        count, position = self._pins.remove([self.stored, self.written], template)
        await self._private.flush(position)
        return count

    async def add(self, hosted: HostedSpace, item: FrozenEntry, pin: bool) -> Entry:
        """Write a message into one of the spaces of this store, and wait until it is durable."""
        with hosted.port.atomic():
            written, position = hosted.port.write_items([item], None, None, None, TaskSignal, 0)
            assert isinstance(written, list)
            entry: Entry = written[0].thing
            kept = self._pins.add(hosted, entry) if pin else 0
        await self._private.flush(kept)
        if hosted.durable:
            await hosted.flush(position)
        return entry

    # Copies

    def _heard_of_copies(self) -> None:
        if self._pulling:
            self._pull()
            self.broadcast.notify()

    def begin_pulling(self) -> None:
        """From now on copy the messages of hosts out of reach from hosts that have them, because a
        process here reads."""
        if not self._pulling:
            self._pulling = True
            self._pull()

    def _pull(self) -> None:
        feed = self.feed
        assert feed is not None
        near = self._near()
        for source in sorted(feed.offered):
            if source not in near and (feed.stream(source) is None or source in feed.carried):
                feed.hold(source)

    def _near(self) -> set[str]:
        """The streams of this host and of the engaged hosts."""
        feed = self.feed
        assert feed is not None
        return {feed.source, *(far.source for far in feed.exchange.partners.values())}

    def out_of_reach(self) -> Iterator[str]:
        """The replicated streams whose own hosts are not engaged."""
        feed = self.feed
        assert feed is not None
        near = self._near()
        for source in feed.marks:
            if source not in near and not self._is_coming(host_of(source), feed):
                yield source

    def _is_coming(self, host: str, feed: Feed) -> bool:
        """Whether this host is engaged, but has not announced its stream yet."""
        peer = self.core.peers.get(host)
        return peer is not None and host not in feed.partners and self.written.name in peer.spaces

    async def sync_copies(self) -> None:
        """Wait until all messages of hosts out of reach have been copied here that engaged hosts
        have now. It gives up when nothing has arrived for `answer_seconds`."""
        feed = self.feed
        assert feed is not None
        wanted = self._lacking(feed)
        before: dict[str, StreamMark] = {}
        woken = self.broadcast.enter()
        try:
            async with asyncio.timeout(None) as patience:
                while lacking := self._lacking(feed, wanted):
                    here = {source: feed.marks[source] for source in lacking}
                    if here != before:
                        before = here
                        patience.reschedule(self._loop.time() + self.core.answer_seconds)
                    woken.clear()
                    await woken.wait()
                    self.broadcast.require_open()
        except TimeoutError:
            pass
        finally:
            self.broadcast.leave(woken)

    def _lacking(
        self, feed: Feed, wanted: dict[str, StreamMark] | None = None
    ) -> dict[str, StreamMark]:
        """The streams of which an engaged host has more items than this one, with the marks there;
        if `wanted` is given, only streams that have not reached its marks here."""
        near = self._near()
        lacking: dict[str, StreamMark] = {}
        for far in feed.exchange.partners.values():
            for source, mark in far.has.items():
                stream = None if source in near else feed.stream(source)
                most = mark if wanted is None else wanted.get(source, NOTHING)
                if stream is not None and stream.lacks(mark) and stream.lacks(most):
                    lacking[source] = mark.or_more(lacking.get(source, mark))
        return lacking

    def source_of(self, entry: Entry) -> str | None:
        """The stream of an entry that was read at its own host; None without copies."""
        feed = self.feed
        if feed is None:
            return None
        far = feed.exchange.partners.get(entry.origin.rpartition("@")[2])
        return None if far is None else far.source

    async def stop(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        for listener in list(self.listeners):
            listener.close()
        await self.broadcast.close()


def _counts(entry: Entry) -> bool:
    """Whether an entry counts against the bound: receipts do not."""
    return entry.shape.kind != _RECEIPT
