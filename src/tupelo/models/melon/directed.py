"""Directed messages: encrypted for one identity, and carried by other hosts to its host.

They are entries of the companion space "sealed". Each is in the lane of its addressee; a lane is
replicated to the hosts that carry it, as `Copies` says, and from any of them to the addressee. A
carrier can neither read nor take them. The addressee confirms each message with a signed receipt,
which is replicated the same way; hosts that see the receipt drop the message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from tupelo.errors import (
    BadArgument,
    CannotSend,
    DiskFull,
    JournalError,
    JournalFailed,
    SpaceClosed,
    TupeloError,
)
from tupelo.federation.identity.keys import Identity, check_key
from tupelo.federation.identity.sealing import seal, unseal
from tupelo.federation.replication.feeds import CONTENT_BYTES_MAX, Broadcast, Feed, replication_of
from tupelo.federation.replication.placement import LaneRules
from tupelo.federation.replication.streams import host_of, lane_name
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.melon.collecting import Copies
from tupelo.models.melon.private import Numbered, PrivateRecords, TakenNumbers
from tupelo.models.melon.sealed import Letter, Letters, Receipt, Sealed, read_item
from tupelo.space.tasks import Tasks, TaskSignal, when_room
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Entry, freeze, require_known

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer


RECEIPT_SECONDS = 30 * 24 * 3_600.0
"""The lease of a receipt. If the host that stored the message is away longer, it never sees it."""
_SEEN_MIN = 1_000

Place = tuple[str, int]
"""A stream, and the number of an item in it."""


class Receipts:
    """The receipts that this host has given for messages that it took, and those of other hosts."""

    def __init__(self, name: str, sealed: HostedSpace, feed: Feed) -> None:
        self._name = name
        self._sealed = sealed
        self._feed = feed
        self._given: dict[str, dict[int, Entry]] = {}  # by stream and item of the message
        self._checked: dict[str, int] = {}  # by stream: its removals at the last `remove_settled`
        # By the place of a message: the place of its receipt, and the number of the message.
        self._seen: dict[Place, tuple[Place, int]] = {}
        self._seen_max = _SEEN_MIN

    def load(self, entry: Entry, receipt: Receipt) -> None:
        """Add a receipt that was given before this host was restarted."""
        self._given.setdefault(receipt.source, {})[receipt.item] = entry

    def give(self, letter: Letter, identity: Identity) -> None:
        """Confirm that this letter was taken here."""
        source, item = letter.origin, letter.arrival
        if self._feed.exchange.owns(source):  # A letter to this host needs no receipt.
            entry = self._feed.original(item)
            if entry is not None:
                self.remove(entry)
            return
        given = self._given.setdefault(source, {})
        if item in given:
            return
        receipt = Receipt.signed(self._name, source, item, letter.n, identity)
        with suppress(TupeloError):  # If the space is full, the message stays at its source.
            written, position = self._sealed.port.write(
                receipt, RECEIPT_SECONDS, None, None, TaskSignal, 0
            )
            assert isinstance(written, list)
            given[item] = written[0].thing
            self._checked.pop(source, None)
            self._sealed.flush_soon(position)

    def remove_settled(self) -> None:
        """Remove the receipts of messages that their source has removed, or whose lease is over."""
        own = sum(stream.tombstones for stream in self._feed.exchange.owned())
        for source, given in list(self._given.items()):
            stream = self._feed.stream(source)
            tombstones = own + (0 if stream is None else stream.tombstones)
            if self._checked.get(source) == tombstones:
                continue
            self._checked[source] = tombstones
            for item, entry in list(given.items()):
                if entry.ended:  # The lease of the receipt is over.
                    del given[item]
                    self._feed.outgrow(source, [item])
                elif stream is not None and item <= stream.upto and item not in stream.alive:
                    del given[item]
                    self.remove(entry)

    def apply(self, place: Place, receipt: Receipt) -> None:
        """Drop the message of a receipt that has arrived, if the addressee itself has signed it."""
        feed = self._feed
        if not receipt.is_valid(self._name):
            return
        if feed.exchange.owns(receipt.source):
            entry = feed.original(receipt.item)
            sealed = None if entry is None else read_item(entry)
            if entry is not None and isinstance(sealed, Sealed):
                is_this = (sealed.to, sealed.number) == (receipt.by, receipt.number)
                if is_this:
                    self.remove(entry)
            return
        if feed.exchange.owns(place[0]):  # Our own receipt stays until the source has seen it.
            return
        what = receipt.source, receipt.item
        self._seen[what] = place, receipt.number
        copy = feed.copy(*what)
        sealed = None if copy is None else read_item(copy)
        if isinstance(sealed, Sealed) and sealed.number == receipt.number:
            feed.outgrow(receipt.source, [receipt.item])
        if len(self._seen) > self._seen_max:
            self._seen = {key: seen for key, seen in self._seen.items() if self._is_here(seen[0])}
            self._seen_max = max(_SEEN_MIN, 2 * len(self._seen))

    def covers(self, place: Place, number: int) -> bool:
        """Whether there is a receipt for the message of this number at this place."""
        where, taken = self._seen.get(place, (None, 0))
        return where is not None and taken == number and self._is_here(where)

    def _is_here(self, where: Place) -> bool:
        return self._feed.copy(*where) is not None

    def remove(self, entry: Entry) -> None:
        with suppress(TupeloError):
            self._sealed.flush_soon(self._sealed.port.cancel(entry))


logger = logging.getLogger("tupelo")

NUMBERS_AHEAD = 1_000
"""How many message numbers are reserved on disk at a time."""


class DirectedMessages:
    """The directed messages at one host. A host without an identity only carries messages."""

    def __init__(
        self,
        core: HostCore,
        name: str,
        stored: HostedSpace,
        sealed: HostedSpace,
        private: PrivateRecords,
        copies: Copies | None,
        arrived: Callable[[], object],
    ) -> None:
        self.refused = 0
        self.identity = identity = core.identity
        self._core = core
        self._name = name
        self._stored = stored
        self._private = private
        self._arrived = arrived
        self._number = 0  # of the last message that was sealed here
        self._numbers_max = 0  # the last number that is reserved on disk
        self._numbered: list[Entry] = []
        self.letters = Letters()
        self._processed: dict[str, int] = {}  # by stream: the last item that was processed
        self._taken = TakenNumbers(private)
        # Taken and not confirmed: all copies of each letter.
        self._in_hand: dict[tuple[str, int], list[Letter]] = {}
        # Confirmed: the position at which the record of each is durable, None without a record.
        self._confirmed: dict[Letter, int | None] = {}
        self._settling = Tasks()
        self._silent: WeakSet[Peer] = WeakSet()  # peers that have not told what they have
        self._broadcast = Broadcast()
        copies = copies or Copies()
        spread = copies.directed is None

        def lane(entry: Entry) -> tuple[str, bool]:
            item = read_item(entry)
            if isinstance(item, Receipt):
                return host_of(item.source), True
            assert item is not None
            return item.to, spread

        mine = {core.id} if identity is None else {core.id, identity.key}
        self.feed = replication_of(core).feed(
            sealed,
            copies.directed_policy,
            only=lambda entry: read_item(entry) is not None,
            lanes=LaneRules(lane, frozenset(mine)),
        )
        self._receipts = Receipts(name, sealed, self.feed)
        self._load(sealed)
        self.feed.listeners.append(self.process_arrivals)
        self.gave_way = self.feed.gave_way
        self.feed.watchers.append(self._broadcast.notify)
        core.extensions.leaving.append(self.settle)
        self.process_arrivals()

    def _load(self, sealed: HostedSpace) -> None:
        for entry in sealed.port.entries():
            found = read_item(entry)
            if isinstance(found, Receipt):
                self._receipts.load(entry, found)
            elif found is not None:
                self._number = max(self._number, found.number)
        for numbered, entry in self._private.all(Numbered):
            self._number = max(self._number, numbered.upto)
            self._numbered.append(entry)
        # Numbers of an earlier run in memory are not known: the clock is beyond all of them.
        self._number = max(self._number, int(self._core.clock.now() * 1_000_000))

    # Sending

    async def seal(self, message: object, to: str) -> Sealed:
        """Encrypt a message for the identity `to`. The result must be stored at once, since it
        says after which stored messages it comes. BadArgument if this host has no identity or `to`
        is no key; CannotSend if the message is too long."""
        if self.identity is None:
            raise BadArgument("to", "left out: this host has no identity of its own", to)
        check_key(to, "to")
        plain = encode_entry(*freeze(message))
        if len(plain) > CONTENT_BYTES_MAX:
            raise CannotSend(
                f"message= needs {len(plain):,} bytes, and {CONTENT_BYTES_MAX:,} can be carried"
            )
        while self._number >= self._numbers_max:
            await self._reserve_numbers()
        self._number += 1
        sealed = Sealed(to, self._number, self._stored.port.latest_arrival, b"")
        context = sealed.context(self._name, self._core.id)
        sealed.seal = seal(self.identity, to, plain, context)
        return sealed

    async def _reserve_numbers(self) -> None:
        """Reserve numbers on disk before they are used, so that none is used again after a
        crash."""
        upto = self._number + NUMBERS_AHEAD
        entry, position = self._private.keep(Numbered(upto))
        for old in self._numbered:
            position = self._private.forget(old)
        self._numbered = [entry]
        await self._private.flush(position)
        self._numbers_max = max(self._numbers_max, upto)

    async def announce(self, entry: Entry) -> None:
        """Wait until engaged hosts have been told of this entry. Links keep the order, so they get
        every later answer of this host after it."""
        feed = self.feed
        await self._broadcast.until(
            lambda: feed.original(entry.arrival) or entry.ended or feed.closed or feed.is_drawn
        )
        if not feed.closed:
            feed.tell()

    # Receiving

    def process_arrivals(self) -> None:
        """Handle the items that have been replicated here since the last call: open the messages
        for this identity, apply receipts. Opened letters stay, even if their source removes
        them."""
        letters = len(self.letters)
        for source, item, entry in self._new_items():
            found = read_item(entry)
            if isinstance(found, Receipt):
                self._receipts.apply((source, item), found)
            elif found is None:
                pass
            elif self.identity is not None and found.to == self.identity.key:
                self._open(source, item, found, self.identity)
            elif self._receipts.covers((source, item), found.number):
                self.feed.outgrow(source, [item])
        self._receipts.remove_settled()
        if len(self.letters) > letters:
            self._arrived()
        self._broadcast.notify()

    def _new_items(self) -> Iterator[tuple[str, int, Entry]]:
        for source, stream in list(self.feed.exchange.streams.items()):
            looked = self._processed.get(source, 0)
            if stream.upto != looked:
                self._processed[source] = stream.upto
                # A stream that was restarted is read again from its beginning.
                for item in stream.numbers(looked if looked < stream.upto else 0):
                    entry = stream.items.get(item)
                    if entry is not None:
                        yield source, item, entry

    def _open(self, source: str, item: int, sealed: Sealed, identity: Identity) -> None:
        try:
            context = sealed.context(self._name, host_of(source))
            sender, plain = unseal(identity, sealed.seal, context)
            shape, fields = decode_entry(plain)
        except (TupeloError, ValueError, TypeError) as error:
            self.refused += 1
            logger.warning("a message for us from %s cannot be opened: %s", source, error)
            return
        # Only one process takes the letter, so the identity of the copy is not needed any more.
        letter = Letter(
            fields, shape, source, sealed.number, item, sender=sender, after=sealed.after
        )
        if letter in self._taken:
            self._receipts.give(letter, identity)
        elif letter.key in self._in_hand:
            self._in_hand[letter.key].append(letter)
        else:
            self.letters.add([letter])

    # The order of letters among the other messages of a host

    async def sync_letters(self, host: str) -> None:
        """Wait until all messages for us have arrived that this host has announced."""
        if self._lacks(host):
            try:
                async with asyncio.timeout(self._core.answer_seconds):
                    await self._broadcast.until(lambda: self.feed.closed or not self._lacks(host))
            except TimeoutError:
                peer = self._core.peers.get(host)
                if peer is not None and host not in self.feed.partners:
                    self._silent.add(peer)

    async def sync_all_letters(self) -> None:
        for host in self.feed.partners:
            await self.sync_letters(host)

    def _lacks(self, host: str) -> bool:
        far = self.feed.exchange.partners.get(host)
        if self.identity is None:
            return False
        if far is None:  # The host may have messages that it has not told us of yet.
            peer = self._core.peers.get(host)
            is_there = peer is not None and self.feed.name in peer.spaces
            return is_there and peer not in self._silent
        for spread in (True, False):
            source = lane_name(far.source, self.identity.key, spreads=spread)
            mark, stream = far.has.get(source), self.feed.stream(source)
            if mark is not None and (stream is None or stream.lacks(mark)):
                return True
        return False

    def is_earlier(self, letter: Letter, host: str, arrival: int) -> bool:
        """Whether this letter was stored at this host before the message with this arrival."""
        if letter.host != host:
            return False
        far = self.feed.exchange.partners.get(host)
        now = self.feed.source if host == self._core.id else letter.base
        now = now if far is None else far.source
        return letter.after < arrival or letter.base != now

    # Taking

    async def take(self, letters: list[Letter]) -> list[Entry]:
        """Take those of these letters that are still here. No other process gets them until they
        are returned by `put_back`; `confirm` makes the take final. DiskFull if there is no room
        for the record of the take; then nothing was taken."""
        if not letters:
            return []
        # A process that is killed may get its last letter again after a restart, but none before.
        if self._in_hand:
            await asyncio.sleep(0)
        self._private.require_room()
        await self._private.flush(self._record())
        found = [letter for letter in letters if letter in self.letters]
        for letter in found:
            require_known(letter)
        self.letters.remove(found)
        self._in_hand.update((letter.key, [letter]) for letter in found)
        return [*found]

    def put_back(self, letters: list[Letter]) -> None:
        """Put letters back for other processes of this host: the taker has vanished."""
        for letter in letters:
            self._in_hand.pop(letter.key, None)
        self.letters.add(letters)
        self._arrived()

    def confirm(self, taken: list[Letter]) -> None:
        """The taker has received these letters: record that, and give receipts once it is on
        disk."""
        letters = [copy for one in taken for copy in self._in_hand.pop(one.key, [])]
        self._confirmed.update(dict.fromkeys(letters))
        with suppress(
            DiskFull, SpaceClosed, JournalFailed
        ):  # It is repeated by the task, or after a restart.
            self._record()
        self._settling.start(self._give_receipts(letters))

    def _record(self) -> int:
        """Record the confirmed letters that have no record yet. Returns the position at which the
        records of all are durable."""
        missing = [letter for letter, position in self._confirmed.items() if position is None]
        if missing:
            self._confirmed.update(dict.fromkeys(missing, self._taken.add(missing)))
        return max((position or 0 for position in self._confirmed.values()), default=0)

    async def _flush_records(self) -> None:
        await self._private.flush(self._record())

    async def _give_receipts(self, letters: list[Letter]) -> None:
        assert self.identity is not None
        with suppress(SpaceClosed, JournalError):
            await when_room(self._flush_records, flushes=True)
            for letter in letters:
                self._confirmed.pop(letter, None)
                self._receipts.give(letter, self.identity)

    @property
    def unrecorded(self) -> list[Letter]:
        """The letters that programs have got, and that come again if the host is killed now."""
        in_hand = [copy for copies in self._in_hand.values() for copy in copies]
        is_durable = self._private.is_durable
        return in_hand + [one for one, at in self._confirmed.items() if not is_durable(at)]

    async def settle(self) -> None:
        """Wait until all confirmed letters are recorded; called before the host leaves."""
        await asyncio.sleep(0)
        if settling := list(self._settling):
            await asyncio.wait(settling, timeout=self._core.answer_seconds)
