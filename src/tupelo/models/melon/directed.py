"""Directed messages: sealed for one identity, and carried by others to where it is.

They are entries of the companion space "sealed", each in the lane of its addressee, which is copied
to the hosts that carry it, as `Copies` says, and to the addressee from any of them. A host that
merely carries them can neither read nor take them. What was taken is let go by receipts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from tupelo.errors import BadArgument, CannotSend, JournalError, SpaceClosed, TupeloError
from tupelo.federation.identity.keys import Identity, check_key
from tupelo.federation.identity.sealing import seal, unseal
from tupelo.federation.replication.feeds import CONTENT_BYTES_MAX, Broadcast, replication_of
from tupelo.federation.replication.placement import LaneRules
from tupelo.federation.replication.streams import host_of, lane_name
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.melon.copying import Copies
from tupelo.models.melon.private import Numbered, PostRecords, Takings
from tupelo.models.melon.receipts import Receipts
from tupelo.models.melon.sealed import Letter, Letters, Opened, Receipt, Sealed, read_item
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Entry, freeze, require_known

if TYPE_CHECKING:
    from tupelo.federation.hosts.core import HostCore
    from tupelo.federation.hosts.peer import Peer

logger = logging.getLogger("tupelo")

NUMBERS_AHEAD = 1_000
"""So many numbers are reserved at a time."""


class DirectedMessages:
    """The directed messages at one host. Without an identity it carries those of others."""

    def __init__(
        self,
        core: HostCore,
        name: str,
        stored: HostedSpace,
        sealed: HostedSpace,
        private: PostRecords,
        identity: Identity | None,
        copies: Copies | None,
        arrived: Callable[[], object],
    ) -> None:
        self.refused = 0
        self.identity = identity
        self._core = core
        self._name = name
        self._stored = stored
        self._private = private
        self._arrived = arrived
        self._number = 0  # the last that was given
        self._numbers_max = 0  # of those that may be given: as it is on disk
        self._numbered: list[Entry] = []
        self.letters = Letters()
        self._looked: dict[str, int] = {}  # up to which item of each stream
        self._taken = Takings(private)
        self._in_hand: dict[tuple[str, int], list[Letter]] = {}  # not confirmed yet, all copies
        self._confirmed_upto = 0  # the position at which that is durable
        self._settling: set[asyncio.Task[None]] = set()
        self._silent: WeakSet[Peer] = WeakSet()  # who have not said what they have
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
        self.feed.listeners.append(self.look)
        self.gave_way = self.feed.gave_way
        self.feed.watchers.append(self._broadcast.ring)
        core.extensions.leaving.append(self.settle)
        self.look()

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
        # A life that is kept nowhere begins where no life before has been.
        self._number = max(self._number, int(self._core.clock.now() * 1_000_000))

    # Sending

    async def seal(self, message: object, to: str) -> Sealed:
        """The message as it is to be stored, at once."""
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
        """No number is given again, in whatever life: before some are, that is on disk."""
        upto = self._number + NUMBERS_AHEAD
        entry, position = self._private.keep(Numbered(upto))
        for old in self._numbered:
            position = self._private.forget(old)
        self._numbered = [entry]
        await self._private.flush(position)
        self._numbers_max = max(self._numbers_max, upto)

    async def told(self, entry: Entry) -> None:
        """Wait until this is on its way to those who are engaged: whatever we answer them from now
        on, they hear later."""
        feed = self.feed
        await self._broadcast.until(
            lambda: feed.original(entry.arrival) or entry.ended or feed.closed or feed.is_drawn
        )
        if not feed.closed:
            feed.tell()

    # Receiving

    def look(self) -> None:
        """What has come? What was opened stays, also if it goes where it was stored."""
        letters = len(self.letters)
        for source, item, entry in self._news():
            found = read_item(entry)
            if isinstance(found, Receipt):
                self._receipts.heed((source, item), found)
            elif found is None:
                pass
            elif self.identity is not None and found.to == self.identity.key:
                self._open(source, item, found, self.identity)
            elif self._receipts.covers((source, item), found.number):
                self.feed.outgrow(source, [item])
        self._receipts.tidy()
        if len(self.letters) > letters:
            self._arrived()
        self._broadcast.ring()

    def _news(self) -> Iterator[tuple[str, int, Entry]]:
        for source, stream in list(self.feed.exchange.streams.items()):
            looked = self._looked.get(source, 0)
            if stream.upto != looked:
                self._looked[source] = stream.upto
                # One that was begun anew is looked through again.
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
        # The copies' own identity is not needed any more: it is given to one taker only.
        letter = Letter.of(
            Opened(fields, shape, source, sealed.number, item, sender=sender, after=sealed.after)
        )
        if letter in self._taken:
            self._receipts.give(letter, identity)
        elif letter.key in self._in_hand:
            self._in_hand[letter.key].append(letter)
        else:
            self.letters.add([letter])

    # The order among what a host has stored

    async def in_step(self, host: str) -> None:
        """Wait until all is here that this host has told us of, and is for us."""
        if self._lacks(host):
            try:
                async with asyncio.timeout(self._core.answer_seconds):
                    await self._broadcast.until(lambda: self.feed.closed or not self._lacks(host))
            except TimeoutError:
                peer = self._core.peers.get(host)
                if peer is not None and host not in self.feed.partners:
                    self._silent.add(peer)

    async def in_step_with_all(self) -> None:
        for host in self.feed.partners:
            await self.in_step(host)

    def _lacks(self, host: str) -> bool:
        far = self.feed.exchange.partners.get(host)
        if self.identity is None:
            return False
        if far is None:  # Does it have messages for others, and has not said yet which?
            peer = self._core.peers.get(host)
            is_there = peer is not None and self.feed.name in peer.spaces
            return is_there and peer not in self._silent
        for spread in (True, False):
            source = lane_name(far.source, self.identity.key, spreads=spread)
            mark, stream = far.has.get(source), self.feed.stream(source)
            if mark is not None and (stream is None or stream.lacks(mark)):
                return True
        return False

    def is_sooner(self, letter: Letter, host: str, arrival: int) -> bool:
        """Was it stored at this host before what arrived there then?"""
        if letter.host != host:
            return False
        far = self.feed.exchange.partners.get(host)
        now = self.feed.source if host == self._core.id else letter.base
        now = now if far is None else far.source
        return letter.after < arrival or letter.base != now

    # Taking

    async def take(self, letters: list[Letter]) -> list[Entry]:
        """Take these, as far as nobody was quicker. They are given to nobody else, until they are
        confirmed, and taken for good, or untaken."""
        # A process that is killed may get its last take again, but none before that.
        if self._in_hand:
            await asyncio.sleep(0)
        await self._private.flush(self._confirmed_upto)
        found = [letter for letter in letters if letter in self.letters]
        for letter in found:
            require_known(letter.entry)
        self.letters.remove(found)
        self._in_hand.update((letter.key, [letter]) for letter in found)
        return [letter.entry for letter in found]

    def untake(self, opened: list[Opened]) -> None:
        """Who has taken these is gone: they are for another process at this host."""
        for letter in map(Letter.of, opened):
            self._in_hand.pop(letter.key, None)
            self.letters.add([letter])
        self._arrived()

    def confirm(self, opened: list[Opened]) -> None:
        """Who has taken these has them. When that is on disk, receipts are given."""
        letters = [one for entry in opened for one in self._in_hand.pop(Letter.of(entry).key, [])]
        with suppress(SpaceClosed, JournalError):  # In the next life they are there again.
            self._confirmed_upto = self._taken.add(letters)
            task = asyncio.ensure_future(self._give_receipts(letters, self._confirmed_upto))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def _give_receipts(self, letters: list[Letter], position: int) -> None:
        assert self.identity is not None
        with suppress(SpaceClosed, JournalError):
            await self._private.flush(position)
            for letter in letters:
                self._receipts.give(letter, self.identity)

    async def settle(self) -> None:
        """Before the host leaves: wait until what processes here have got is noted."""
        await asyncio.sleep(0)
        if self._settling:
            await asyncio.wait(self._settling, timeout=self._core.answer_seconds)
