"""The messages between hosts that have the same feed.

Hosts announce what they have (HasFeed, MarksChanged). A host that lacks items sends FetchFrom, and
gets an ItemBatch, preceded by AliveNumbers if it has missed removals. A host that is up to date is
sent new items (ItemBatch) and removals (Tombstones) without asking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from tupelo.errors import BadFrame
from tupelo.federation.links import wire

NUMBER_MAX = 2**63 - 1
SOURCES_MAX = 100_000
"""Most sources of a feed."""
HOSTS_MAX = 10_000

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
Hosts = Annotated[list[Name], msgspec.Meta(max_length=HOSTS_MAX)]


class StreamMark(msgspec.Struct, array_like=True, frozen=True):
    """How much of a stream a host has: all items up to `upto`, and the first `tombstones`
    removals."""

    upto: Number = 0
    tombstones: Number = 0

    def exceeds(self, other: StreamMark) -> bool:
        """Whether this mark covers something that the other does not."""
        return self.upto > other.upto or self.tombstones > other.tombstones

    def or_more(self, other: StreamMark) -> StreamMark:
        return StreamMark(max(self.upto, other.upto), max(self.tombstones, other.tombstones))


NOTHING = StreamMark()
Marks = Annotated[dict[Name, StreamMark], msgspec.Meta(max_length=SOURCES_MAX)]


class FeedMessage(msgspec.Struct, array_like=True):
    """Base of all messages about a feed."""

    feed: Name


class HasFeed(FeedMessage, tag=1):
    """The sender has this feed. `source`: its own stream. `everything`: it takes all streams, or
    only those that it holds. `near`: the hosts to which it forwards. `marks`: what it has. `late`:
    it joined after the hosts were connected, and has missed earlier announcements."""

    source: Name
    everything: bool
    near: Hosts
    marks: Marks
    late: bool = False


class ForwardsTo(FeedMessage, tag=2):
    """The hosts to which the sender forwards items from now on."""

    near: Hosts


class MarksChanged(FeedMessage, tag=3):
    """New marks of the sender."""

    marks: Marks


class LeavesFeed(FeedMessage, tag=4):
    """The sender has left the feed."""


class FetchFrom(FeedMessage, tag=5):
    """Request for the items after this mark."""

    source: Name
    mark: StreamMark


class Chunk(msgspec.Struct, array_like=True, tag=11):
    """Items signed together by the source: all items that were alive then, with numbers above
    `after` up to `upto`, by their digests. None had more than `lease` seconds left. In an ItemBatch
    the digests of the items that it contains are omitted."""

    after: Number
    upto: Number
    lease: float
    digests: dict[Number, bytes]
    signature: bytes


class ItemBatch(FeedMessage, tag=6):
    """The items after the number `after`. All other numbers up to `upto` are removed, after this
    many `tombstones`, except those in `away` (a roaring bitmap), which are alive but were evicted
    at the sender.

    `answers`: it answers a FetchFrom. `more`: there are more items. `chunks`: signatures, if the
    source signs.
    """

    source: Name
    after: Number
    upto: Number
    tombstones: Number
    items: list[tuple[Number, Any]]
    answers: bool
    more: bool = False
    away: bytes = b""
    chunks: list[Chunk] = []


class Tombstones(FeedMessage, tag=7):
    """The source has removed `before` items, and then these."""

    source: Name
    before: Number
    numbers: list[Number]
    signature: bytes = b""

    @property
    def tombstones(self) -> int:
        return self.before + len(self.numbers)


class AliveNumbers(FeedMessage, tag=8):
    """The numbers up to `known` that are alive after this many `tombstones`, and the numbers above
    it that are `dead` (roaring bitmaps)."""

    source: Name
    known: Number
    tombstones: Number
    living: bytes
    dead: bytes
    signature: bytes = b""


class HoldRequest(FeedMessage, tag=9):
    """Request to hold a copy of the sender's stream; without `please`, to hold it no longer."""

    source: Name
    please: bool


class HoldReply(FeedMessage, tag=10):
    """Whether the sender holds a copy of the stream."""

    source: Name
    held: bool


Statement = Chunk | Tombstones | AliveNumbers
"""The messages that a source signs."""
Said = (
    HasFeed
    | ForwardsTo
    | MarksChanged
    | LeavesFeed
    | FetchFrom
    | ItemBatch
    | Tombstones
    | AliveNumbers
    | HoldRequest
    | HoldReply
)


_read: Callable[[bytes | msgspec.Raw], Said] = wire.reader(Said)


def read(body: bytes | msgspec.Raw) -> Said:
    """Decode a message. BadFrame if it is invalid."""
    message = _read(body)
    if isinstance(message, ItemBatch):
        _check_batch(message)
    return message


def _check_batch(batch: ItemBatch) -> None:
    last = batch.after
    for number, _ in batch.items:
        if number <= last:
            raise BadFrame("the numbers of an ItemBatch are not increasing")
        last = number
    if last > batch.upto:
        raise BadFrame("an item of an ItemBatch has a number above its `upto`")
