"""Receipts: an addressee says, and signs, that it has taken a message, so that all may let it go.

A receipt travels as what it is about did, to the host where that was stored. Whoever carries the
message and sees the receipt drops its copy, also if that host never comes back. The host itself
removes the message; then its copies go everywhere, and with them the receipt.
"""

from __future__ import annotations

from contextlib import suppress

from tupelo.errors import TupeloError
from tupelo.federation.identity.keys import Identity
from tupelo.federation.replication.feeds import Feed
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.models.melon.sealed import Letter, Receipt, Sealed, read_item
from tupelo.space.tasks import TaskSignal
from tupelo.values.entry import Entry

RECEIPT_SECONDS = 30 * 24 * 3_600.0
"""So long a receipt travels, if the host that it is for is not there to heed it."""
_HEEDED_MIN = 1_000

Place = tuple[str, int]
"""A stream, and the number of an item in it."""


class Receipts:
    """Those that this host has given, and those that it has seen."""

    def __init__(self, name: str, sealed: HostedSpace, feed: Feed) -> None:
        self._name = name
        self._sealed = sealed
        self._feed = feed
        self._given: dict[str, dict[int, Entry]] = {}  # by what they are for
        self._tidied: dict[str, int] = {}  # after how many removals
        self._seen: dict[Place, tuple[Place, int]] = {}  # of what was taken → the receipt's, number
        self._seen_max = _HEEDED_MIN

    def load(self, entry: Entry, receipt: Receipt) -> None:
        """It was given in an earlier life."""
        self._given.setdefault(receipt.source, {})[receipt.item] = entry

    def give(self, letter: Letter, identity: Identity) -> None:
        """This was taken here."""
        if self._feed.exchange.owns(letter.source):  # To ourselves: nobody else need be told.
            entry = self._feed.original(letter.item)
            if entry is not None:
                self.remove(entry)
            return
        given = self._given.setdefault(letter.source, {})
        if letter.item in given:
            return
        receipt = Receipt.signed(self._name, letter.source, letter.item, letter.number, identity)
        with suppress(TupeloError):  # It is full: the message stays where it was stored.
            written, position = self._sealed.port.write(
                receipt, RECEIPT_SECONDS, None, None, TaskSignal, 0
            )
            assert isinstance(written, list)
            given[letter.item] = written[0].thing
            self._tidied.pop(letter.source, None)
            self._sealed.flush_soon(position)

    def tidy(self) -> None:
        """What was heeded need not be said any more."""
        own = sum(stream.tombstones for stream in self._feed.exchange.owned())
        for source, given in list(self._given.items()):
            stream = self._feed.stream(source)
            tombstones = own + (0 if stream is None else stream.tombstones)
            if self._tidied.get(source) == tombstones:
                continue
            self._tidied[source] = tombstones
            for item, entry in list(given.items()):
                if entry.ended:  # Its time has come.
                    del given[item]
                    self._feed.outgrow(source, [item])
                elif stream is not None and item <= stream.upto and item not in stream.alive:
                    del given[item]
                    self.remove(entry)

    def heed(self, place: Place, receipt: Receipt) -> None:
        """If the addressee says so itself, what it has taken is let go."""
        feed = self._feed
        if not receipt.is_true(self._name):
            return
        if feed.exchange.owns(receipt.source):
            entry = feed.original(receipt.item)
            sealed = None if entry is None else read_item(entry)
            if entry is not None and isinstance(sealed, Sealed):
                is_this = (sealed.to, sealed.number) == (receipt.by, receipt.number)
                if is_this:
                    self.remove(entry)
            return
        if feed.exchange.owns(place[0]):  # We have given it: it stays until the source has it.
            return
        what = receipt.source, receipt.item
        self._seen[what] = place, receipt.number
        copy = feed.copy(*what)
        sealed = None if copy is None else read_item(copy)
        if isinstance(sealed, Sealed) and sealed.number == receipt.number:
            feed.outgrow(receipt.source, [receipt.item])
        if len(self._seen) > self._seen_max:
            self._seen = {key: seen for key, seen in self._seen.items() if self._is_here(seen[0])}
            self._seen_max = max(_HEEDED_MIN, 2 * len(self._seen))

    def covers(self, place: Place, number: int) -> bool:
        """Is there a receipt for this, which was sealed by this number?"""
        where, taken = self._seen.get(place, (None, 0))
        return where is not None and taken == number and self._is_here(where)

    def _is_here(self, where: Place) -> bool:
        return self._feed.copy(*where) is not None

    def remove(self, entry: Entry) -> None:
        with suppress(TupeloError):
            self._sealed.flush_soon(self._sealed.port.cancel(entry))
