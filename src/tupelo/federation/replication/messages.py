"""What hosts say to each other about the feeds that they both have.

Who has heard what the other has (Here, Marks) asks for what it lacks (Want), and is answered with a
Parcel, and with Living before that if it has missed removals. Who is in step gets new items, and
what has Died, without asking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from tupelo.errors import BadFrame
from tupelo.federation.links import wire

NUMBER_MAX = 2**63 - 1
SOURCES_MAX = 100_000
"""So many sources may a feed have."""
HOSTS_MAX = 10_000

Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
Hosts = Annotated[list[Name], msgspec.Meta(max_length=HOSTS_MAX)]


class StreamMark(msgspec.Struct, array_like=True, frozen=True):
    """How much of a stream someone has: everything up to a number, after so many removals."""

    upto: Number = 0
    tombstones: Number = 0

    def exceeds(self, other: StreamMark) -> bool:
        """Is there something here that is not there?"""
        return self.upto > other.upto or self.tombstones > other.tombstones

    def or_more(self, other: StreamMark) -> StreamMark:
        return StreamMark(max(self.upto, other.upto), max(self.tombstones, other.tombstones))


NOTHING = StreamMark()
Marks = Annotated[dict[Name, StreamMark], msgspec.Meta(max_length=SOURCES_MAX)]


class FeedMessage(msgspec.Struct, array_like=True):
    """Anything that is said about a feed."""

    feed: Name


class HasFeed(FeedMessage, tag=1):
    """I have this feed. `source` is my own stream; I take `everything`, or else only the streams
    that I hold; I pass on what I get to the hosts `near` me; and I have this. `late`: we were
    engaged already, and I have not heard what you said before."""

    source: Name
    everything: bool
    near: Hosts
    marks: Marks
    late: bool = False


class ForwardsTo(FeedMessage, tag=2):
    """From now on I pass on what I get to these hosts."""

    near: Hosts


class MarksChanged(FeedMessage, tag=3):
    """I have this by now."""

    marks: Marks


class LeavesFeed(FeedMessage, tag=4):
    """I do not have this feed any more."""


class FetchFrom(FeedMessage, tag=5):
    """I have only this of a stream: tell me what comes next."""

    source: Name
    mark: StreamMark


class Chunk(msgspec.Struct, array_like=True, tag=11):
    """What the source of a stream has signed together: all its items that lived then, `after` a
    number and up to `upto`, by the digest of each, none of which had more than `lease` seconds
    left. In a parcel the digests of the items that it brings are left out."""

    after: Number
    upto: Number
    lease: float
    digests: dict[Number, bytes]
    signature: bytes


class ItemBatch(FeedMessage, tag=6):
    """These items come `after` a number; all else up to `upto` is dead after so many `tombstones`,
    but what is `away` (a roaring bitmap): it lives, and has given way where this comes from. It
    `answers` a Want, or is news; there may be `more`. `chunks` prove it, if its source signs."""

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
    """The source has removed so many `before`, and then these."""

    source: Name
    before: Number
    numbers: list[Number]
    signature: bytes = b""

    @property
    def tombstones(self) -> int:
        return self.before + len(self.numbers)


class AliveNumbers(FeedMessage, tag=8):
    """Up to `known` these numbers are alive after so many `tombstones`, and beyond that these are
    dead (roaring bitmaps)."""

    source: Name
    known: Number
    tombstones: Number
    living: bytes
    dead: bytes
    signature: bytes = b""


class HoldRequest(FeedMessage, tag=9):
    """Hold a copy of my stream, from now on; or, if not `please`, you need not any more."""

    source: Name
    please: bool


class HoldReply(FeedMessage, tag=10):
    """I hold a copy of your stream; or I do not, and will not."""

    source: Name
    held: bool


Statement = Chunk | Tombstones | AliveNumbers
"""What a source signs."""
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
    """The message of this body. BadFrame if it is none."""
    message = _read(body)
    if isinstance(message, ItemBatch):
        _check_parcel(message)
    return message


def _check_parcel(parcel: ItemBatch) -> None:
    last = parcel.after
    for number, _ in parcel.items:
        if number <= last:
            raise BadFrame("the numbers of a parcel do not grow")
        last = number
    if last > parcel.upto:
        raise BadFrame("a parcel ends before its items do")
