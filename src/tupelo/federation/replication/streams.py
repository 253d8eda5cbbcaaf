"""Streams: what one source has written, as far as it is known here. No I/O and no loop.

A source numbers its items, growing but not dense, and they travel in that order. So a copy of its
stream needs few words: `upto` (everything up to there is here, or dead), and how many of the
source's removals it has heeded, `tombstones`. Two copies that say the same of both hold the same,
but for what is `away`: where there is no room any more the oldest items give way, and it stays
known that they live, so that nobody who hears of the stream from here takes them for dead.

Of removals it may be told before it has the items. It knows which numbers live up to `known`, which
is never below `upto`, and beyond that some that are `dead`: these are not let in when they come.

A copy of a stream whose source signs keeps what was signed: `chunks` of items, in order, and
`removals`, the last list of what lives and what was removed since. A chunk without a living item is
kept until such a list says that there is nothing else up to its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from itertools import takewhile
from typing import Any

import msgspec
from msgspec.msgpack import Decoder, Encoder
from pyroaring import BitMap64

from tupelo.errors import BadFrame
from tupelo.federation.identity.ids import ID_CHARACTERS, id_of
from tupelo.federation.identity.keys import Identity, key_bytes, key_text, verify
from tupelo.federation.replication.messages import (
    NUMBER_MAX,
    AliveNumbers,
    Chunk,
    ItemBatch,
    Statement,
    StreamMark,
    Tombstones,
)

NAMES_KEPT = 4_096


@lru_cache(NAMES_KEPT)
def host_of(source: str) -> str:
    """The id of the host whose stream this is."""
    return source.rpartition("/")[0]


def is_signed(source: str) -> bool:
    """Whether the host of this stream has an identity, and so signs it."""
    return len(host_of(source)) == ID_CHARACTERS


def lane_name(base: str, lane: str, *, spreads: bool) -> str:
    return f"{base}>>{lane}" if spreads else f"{base}>{lane}"


@lru_cache(NAMES_KEPT)
def base_of(source: str) -> str:
    """The name of the stream of which this is a lane; its own if it is none."""
    host, slash, rest = source.rpartition("/")
    return host + slash + rest.partition(">")[0]


def lane_of(source: str) -> str:
    """Empty if it is no lane."""
    return source.rpartition("/")[2].partition(">")[2].removeprefix(">")


def spreads(source: str) -> bool:
    return ">>" in source.rpartition("/")[2]


Item = Any
"""Whatever a stream consists of: only those who write and read it look into it."""
Numbered = list[tuple[int, Item]]


class Stream:
    """The stream of one source. `items` are those that are here, by number and in order."""

    def __init__(self, source: str, upto: int = 0, tombstones: int = 0) -> None:
        self.source = source
        self.upto = upto
        self.tombstones = tombstones
        self.items: dict[int, Item] = {}
        self.alive = BitMap64()
        self.known = upto
        self.dead = BitMap64()
        self.away = BitMap64()
        self.chunks: list[Chunk] = []
        self.removals: list[Tombstones | AliveNumbers] = []
        self.unkept: list[Statement] = []
        """Signed statements that are not kept on disk yet, and (`unneeded`) those that need not be
        kept any more."""
        self.unneeded: list[Statement] = []

    def __repr__(self) -> str:
        return f"<{self.source}: {len(self.items)} up to {self.upto}, {self.tombstones} deaths>"

    @property
    def mark(self) -> StreamMark:
        return StreamMark(self.upto, self.tombstones)

    def lacks(self, mark: StreamMark) -> bool:
        """Does someone who says this have something that is not here?"""
        return mark.exceeds(self.mark)

    def numbers(self, after: int) -> list[int]:
        """Those of the items that are here and come after this one, in order."""
        if after >= self.upto:
            return []
        living = self.alive.iter_equal_or_larger(after + 1)
        return list(takewhile(lambda number: number <= self.upto, living))

    def due(self, upto: int, listed: Iterable[int]) -> BitMap64:
        """Those that live and have not come yet, up to this one: as far as is known, and beyond
        that those that are `listed` and not dead."""
        due = _between(self.alive, self.upto + 1, min(upto, self.known))
        due.update([number for number in listed if number > self.known])
        due -= self.dead
        return due

    # At its source

    def append(self, items: Numbered) -> None:
        """New items, at the source itself, or as they were kept."""
        for number, item in items:
            if not self.upto < number <= NUMBER_MAX:
                raise ValueError(f"{number} does not come after {self.upto}")
            self.upto = number
            self.items[number] = item
        self.alive.update([number for number, _ in items])
        self.known = max(self.known, self.upto)

    def advance(self, upto: int) -> None:
        """The source has given no other number up to this, and will not."""
        self.upto = max(self.upto, upto)
        self.known = max(self.known, self.upto)

    def mark_removed(self, numbers: Iterable[int]) -> tuple[list[int], list[Item]]:
        """The source has removed these: those that were alive, and their items."""
        marked_removed = [number for number in numbers if number in self.items]
        items = [self.items.pop(number) for number in marked_removed]
        self.alive.difference_update(BitMap64(marked_removed))
        self.tombstones += len(marked_removed)
        return marked_removed, items

    # At others

    def receive(self, parcel: ItemBatch, items: Numbered) -> Numbered | None:
        """What is new in a parcel. None: it would leave a hole, or speaks of removals that were not
        told here, and nothing was done."""
        if parcel.after > self.upto or parcel.tombstones > self.tombstones:
            return None
        if parcel.upto <= self.upto:
            return []
        before, known, alive, dead = self.upto, self.known, self.alive, self.dead
        if parcel.away:
            away = read_bits(parcel.away)
            if away and away.max() > parcel.upto:
                raise BadFrame("what is beyond it cannot have given way")
            away = _between(away, before + 1, parcel.upto)
            unknown = _between(away, known + 1, parcel.upto)
            self.away |= (away & alive) | (unknown - dead)
        new = [
            (number, item)
            for number, item in items
            if number > before and (number in alive if number <= known else number not in dead)
        ]
        if known > before:  # What it does not bring has died meanwhile.
            alive.remove_range(before + 1, min(known, parcel.upto) + 1)
        alive.update([number for number, _ in new])
        self.upto = parcel.upto
        if parcel.upto > known:
            self.known = parcel.upto
            self._forget_dead()
        return new

    def keep(self, items: Numbered) -> None:
        """What was received, as it is kept here."""
        self.items.update(items)

    def died(self, before: int, numbers: list[int]) -> list[Item] | None:
        """So many removals `before`, and then these: the items that are no more. None: others were
        not told here, and nothing was done."""
        if before > self.tombstones:
            return None
        if before + len(numbers) <= self.tombstones:
            return []
        self.tombstones = before + len(numbers)
        known = self.known
        self.dead.update([number for number in numbers if number > known])
        gone = BitMap64(numbers)
        self.alive -= gone
        self.away -= gone
        return self._drop(numbers)

    def outlive(self, living: AliveNumbers) -> list[Item]:
        """Which numbers live, as someone knows who has heeded more removals: the items that are no
        more."""
        if living.tombstones <= self.tombstones and living.known <= self.known:
            return []
        lives, dead = read_bits(living.living), read_bits(living.dead)
        if (lives and lives.max() > living.known) or (dead and dead.min() <= living.known):
            raise BadFrame("these numbers can neither live nor be dead")
        if dead and dead.max() > NUMBER_MAX:
            raise BadFrame("these numbers are too great")
        self.tombstones = max(self.tombstones, living.tombstones)
        gone = self.alive - lives
        if living.known < self.known:
            gone.remove_range(living.known + 1, self.known + 1)
        gone |= self.alive & dead
        self.away -= _between(self.away - lives, 0, living.known) | dead
        self.alive -= gone
        self.dead |= dead
        if living.known > self.known:
            lives.remove_range(0, self.known + 1)
            self.alive |= lives - self.dead
            self.known = living.known
        self._forget_dead()
        # What has not come yet is not here, and may be encoded in few bytes and be very many.
        return self._drop(takewhile(lambda number: number <= self.upto, gone))

    def outgrow(self, numbers: Iterable[int]) -> list[Item]:
        """These are not needed here any more, whatever the source says: the items. Others may have
        them; who asks here does not get them."""
        gone = [number for number in numbers if number in self.items]
        self.alive.difference_update(BitMap64(gone))
        if is_signed(
            self.source
        ):  # Others are told that it is not here: that it is dead, only its source says.
            self.away.update(gone)
        return self._drop(gone)

    def give_way(self, numbers: Iterable[int]) -> list[Item]:
        """There is no room for these here, and they live: the items."""
        gone = BitMap64(number for number in numbers if number in self.items)
        self.alive -= gone
        self.away |= gone
        return self._drop(gone)

    def away_since(self, after: int, upto: int, late: list[int]) -> bytes:
        """Those that have given way between these, for a parcel; and those that are too `late` for
        it, if only their source can say that they are dead."""
        away = _between(self.away, after + 1, upto) if self.away else BitMap64()
        if is_signed(self.source):
            away.update(late)
        return encode_bits(away) if away else b""

    # What its source has signed

    def keep_chunks(self, chunks: Iterable[Chunk]) -> None:
        """Those that tell of more than the chunks that are here."""
        for chunk in chunks:
            if not self.chunks or chunk.upto > self.chunks[-1].upto:
                self.chunks.append(chunk)
                self.unkept.append(chunk)

    def keep_removal(self, statement: Tombstones | AliveNumbers) -> None:
        """A statement that was heeded. A list of what lives replaces those before it, and chunks of
        which nothing is left."""
        self.unkept.append(statement)
        if isinstance(statement, Tombstones):
            self.removals.append(statement)
            return
        self._need_no_more([one for one in self.removals if one.tombstones <= statement.tombstones])
        later = [one for one in self.removals if one.tombstones > statement.tombstones]
        self.removals = [statement, *later]
        empty = [
            chunk
            for chunk in self.chunks
            if chunk.upto <= statement.known
            and not any(number in self.alive or number in self.away for number in chunk.digests)
        ]
        self._need_no_more(empty)
        gone = {chunk.upto for chunk in empty}
        self.chunks = [chunk for chunk in self.chunks if chunk.upto not in gone]

    def _need_no_more(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            kept = [one for one in self.unkept if one is not statement]
            if len(kept) == len(self.unkept):
                self.unneeded.append(statement)
            self.unkept = kept

    def proof(self, parcel: ItemBatch) -> list[Chunk]:
        """The chunks that prove a parcel, without the digests of what it brings."""
        brought = {number for number, _ in parcel.items}
        first = bisect_left(self.chunks, parcel.after + 1, key=lambda chunk: chunk.upto)
        last = bisect_left(self.chunks, parcel.upto, key=lambda chunk: chunk.upto)
        return [
            msgspec.structs.replace(
                chunk, digests={n: one for n, one in chunk.digests.items() if n not in brought}
            )
            for chunk in self.chunks[first : last + 1]
        ]

    def _end_of(self, number: int) -> int:
        """Where a parcel may end that brings this number: what was signed together stays so."""
        place = bisect_left(self.chunks, number, key=lambda chunk: chunk.upto)
        return self.chunks[place].upto if place < len(self.chunks) else number

    def _drop(self, numbers: Iterable[int]) -> list[Item]:
        items = self.items
        return [items.pop(number) for number in numbers if number in items]

    def _forget_dead(self) -> None:
        if self.dead:
            self.dead.remove_range(0, self.known + 1)

    # For others

    def parcel(
        self,
        feed: str,
        after: int,
        bytes_max: int,
        encode: Callable[[Item], bytes | None],
        *,
        answers: bool,
    ) -> ItemBatch:
        """What comes after a number, as much of it as fits, and one item at least."""
        after = min(after, self.upto)
        items: list[tuple[int, msgspec.Raw]] = []
        late: list[int] = []
        size, upto = 0, self.upto
        if after < upto:
            for number in self.alive.iter_equal_or_larger(after + 1):
                if number > self.upto:
                    break
                encoded = encode(self.items[number])
                if encoded is None:  # Its time has come.
                    late.append(number)
                else:
                    size += len(encoded)
                    if items and size > bytes_max and self._end_of(items[-1][0]) < number:
                        upto = self._end_of(items[-1][0])
                        break
                    items.append((number, msgspec.Raw(encoded)))
        more, away = upto < self.upto, self.away_since(after, upto, late)
        return ItemBatch(
            feed, self.source, after, upto, self.tombstones, items, answers, more, away
        )

    def living(self, feed: str) -> AliveNumbers:
        """For one who has missed removals."""
        return AliveNumbers(
            feed,
            self.source,
            self.known,
            self.tombstones,
            encode_bits(self.alive | self.away),
            encode_bits(self.dead),
        )


def up_to(bits: BitMap64, last: int) -> BitMap64:
    return _between(bits, 0, last)


def _between(bits: BitMap64, first: int, last: int) -> BitMap64:
    """Those of them that are not outside."""
    some = BitMap64(bits)
    some.remove_range(0, first)
    some.remove_range(last + 1, NUMBER_MAX + 1)
    return some


def encode_bits(bits: BitMap64) -> bytes:
    copy = BitMap64(bits)
    copy.run_optimize()
    return copy.serialize()


def read_bits(encoded: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(encoded)
    except (ValueError, TypeError) as error:
        raise BadFrame(f"these numbers cannot be read: {error}") from error


KEY_BYTES = 32

_encode = Encoder().encode
encode_statement = _encode
decode_statement = Decoder(Statement).decode


def digest_of(content: bytes) -> bytes:
    return sha256(content).digest()


def sign(identity: Identity, feed: str, source: str, statement: Statement) -> bytes:
    """The signature of a statement about a stream: the key of its source, and what that signed."""
    return key_bytes(identity.key) + identity.sign(_signed(feed, source, statement))


def is_proved(feed: str, source: str, statement: Statement) -> bool:
    """Whether the source of this stream has signed this statement."""
    key = key_text(statement.signature[:KEY_BYTES])
    return id_of(key) == host_of(source) and verify(
        key, _signed(feed, source, statement), statement.signature[KEY_BYTES:]
    )


def _signed(feed: str, source: str, statement: Statement) -> bytes:
    said: tuple[Any, ...]
    if isinstance(statement, Chunk):
        digests = [*statement.digests.items()]
        said = ("items", statement.after, statement.upto, statement.lease, digests)
    elif isinstance(statement, Tombstones):
        said = ("removed", statement.before, statement.numbers)
    else:
        one = statement
        said = ("living", one.known, one.tombstones, one.living, one.dead)
    return _encode(("tupelo stream", feed, source, said))
