"""Streams: the items of one source, as far as this host has them. No I/O and no loop.

A source numbers its items with growing numbers (with gaps), and they travel in that order. So two
numbers describe a copy of a stream: `upto` (every item up to it is here, or removed) and
`tombstones`, the count of applied removals. Copies with equal marks hold the same items, except
those that were evicted for lack of room (`away`), which are known to be alive.

Removals may arrive before the items. A copy knows which numbers live up to `known` (never below
`upto`), and some `dead` numbers above it, whose items are dropped when they arrive.

A copy of a signed stream keeps the signatures: `chunks` of items in order, and `removals` (the last
list of living numbers, and the tombstones since). A chunk without a living item is kept until such
a list covers it.

A stream is named after its host and its space: `host/space`. A host may split its items into lanes,
each a stream of its own: `host/space>lane` is held by hosts that the source asks, and
`host/space>>lane` by every host that hears of it and has room.

The id of a host with an identity is derived from its key, so the name of a stream identifies the
key that must have signed it. The streams of other hosts are not signed.
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
from tupelo.federation.identity.keys import (
    ID_CHARACTERS,
    Identity,
    id_of,
    key_bytes,
    key_text,
    verify,
)
from tupelo.federation.links.encoding import encode_bits
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
    """The id of the host of a stream."""
    return source.rpartition("/")[0]


def is_signed(source: str) -> bool:
    """Whether the host of this stream has an identity, and signs it."""
    return len(host_of(source)) == ID_CHARACTERS


def lane_name(base: str, lane: str, *, spreads: bool) -> str:
    return f"{base}>>{lane}" if spreads else f"{base}>{lane}"


@lru_cache(NAMES_KEPT)
def base_of(source: str) -> str:
    """The name of a lane's stream; the name itself if it is no lane."""
    host, slash, rest = source.rpartition("/")
    return host + slash + rest.partition(">")[0]


def lane_of(source: str) -> str:
    """The lane of a stream; empty if it is none."""
    return source.rpartition("/")[2].partition(">")[2].removeprefix(">")


def spreads(source: str) -> bool:
    return ">>" in source.rpartition("/")[2]


Item = Any
"""An item; only those who write and read it know its type."""
NumberedItems = list[tuple[int, Item]]


class Stream:
    """The stream of one source. `items`: the items that are here, by number, in order."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.upto = self.tombstones = 0
        self.items: dict[int, Item] = {}
        self.alive = BitMap64()
        self.known = 0
        self.dead = BitMap64()
        self.away = BitMap64()
        self.chunks: list[Chunk] = []
        self.removals: list[Tombstones | AliveNumbers] = []
        self.unkept: list[Statement] = []
        """Signed statements that are not stored yet; `unneeded`: stored ones that can be
        deleted."""
        self.unneeded: list[Statement] = []

    def __repr__(self) -> str:
        return f"<{self.source}: {len(self.items)} up to {self.upto}, {self.tombstones} tombstones>"

    @property
    def mark(self) -> StreamMark:
        return StreamMark(self.upto, self.tombstones)

    def lacks(self, mark: StreamMark) -> bool:
        """Whether a host with this mark has something that is not here."""
        return mark.exceeds(self.mark)

    def numbers(self, after: int) -> list[int]:
        """The numbers of the items here that follow `after`, in order."""
        if after >= self.upto:
            return []
        living = self.alive.iter_equal_or_larger(after + 1)
        return list(takewhile(lambda number: number <= self.upto, living))

    def due(self, upto: int, listed: Iterable[int]) -> BitMap64:
        """The living numbers up to `upto` whose items have not come yet: the known ones, and beyond
        `known` the `listed` ones that are not dead."""
        due = _between(self.alive, self.upto + 1, min(upto, self.known))
        due.update([number for number in listed if number > self.known])
        due -= self.dead
        return due

    # At its source

    def append(self, items: NumberedItems) -> None:
        """Append items, at the source or when loading."""
        for number, item in items:
            if not self.upto < number <= NUMBER_MAX:
                raise ValueError(f"{number} does not come after {self.upto}")
            self.upto = number
            self.items[number] = item
        self.alive.update([number for number, _ in items])
        self.known = max(self.known, self.upto)

    def advance(self, upto: int) -> None:
        """Note that no other numbers up to `upto` will follow."""
        self.upto = max(self.upto, upto)
        self.known = max(self.known, self.upto)

    def mark_removed(self, numbers: Iterable[int]) -> tuple[list[int], list[Item]]:
        """Remove items, at the source. Returns the numbers that were alive, and their items."""
        marked_removed = [number for number in numbers if number in self.items]
        items = [self.items.pop(number) for number in marked_removed]
        self.alive.difference_update(BitMap64(marked_removed))
        self.tombstones += len(marked_removed)
        return marked_removed, items

    # At other hosts

    def receive(self, batch: ItemBatch, items: NumberedItems) -> NumberedItems | None:
        """Apply a batch: returns its new items. None if it would leave a gap or depends on removals
        that are not applied here; then nothing has changed."""
        if batch.after > self.upto or batch.tombstones > self.tombstones:
            return None
        if batch.upto <= self.upto:
            return []
        before, known, alive, dead = self.upto, self.known, self.alive, self.dead
        if batch.away:
            away = read_bits(batch.away)
            if away and away.max() > batch.upto:
                raise BadFrame("an evicted number is above `upto`")
            away = _between(away, before + 1, batch.upto)
            unknown = _between(away, known + 1, batch.upto)
            self.away |= (away & alive) | (unknown - dead)
        new = [
            (number, item)
            for number, item in items
            if number > before and (number in alive if number <= known else number not in dead)
        ]
        if known > before:  # Numbers that are not in the batch were removed.
            alive.remove_range(before + 1, min(known, batch.upto) + 1)
        alive.update([number for number, _ in new])
        self.upto = batch.upto
        if batch.upto > known:
            self.known = batch.upto
            self._forget_dead()
        return new

    def keep(self, items: NumberedItems) -> None:
        """Store the received items."""
        self.items.update(items)

    def died(self, before: int, numbers: list[int]) -> list[Item] | None:
        """Apply removals number `before` and following: returns the removed items. None if earlier
        removals are missing; then nothing has changed."""
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
        """Apply a list of living numbers from a host that has applied more removals: returns the
        removed items."""
        if living.tombstones <= self.tombstones and living.known <= self.known:
            return []
        lives, dead = read_bits(living.living), read_bits(living.dead)
        if (lives and lives.max() > living.known) or (dead and dead.min() <= living.known):
            raise BadFrame("living numbers must not be above `known`, and dead ones must be")
        if dead and dead.max() > NUMBER_MAX:
            raise BadFrame("a dead number is above the maximum")
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
        # Numbers beyond `upto` are not here; a small bitmap may contain very many of them.
        return self._drop(takewhile(lambda number: number <= self.upto, gone))

    def outgrow(self, numbers: Iterable[int]) -> list[Item]:
        """Drop items without a tombstone of the source; returns them. Hosts that fetch from here do
        not get them."""
        gone = [number for number in numbers if number in self.items]
        self.alive.difference_update(BitMap64(gone))
        if is_signed(
            self.source
        ):  # Others are told that it is not here: that it is dead, only its source says.
            self.away.update(gone)
        return self._drop(gone)

    def give_way(self, numbers: Iterable[int]) -> list[Item]:
        """Evict living items for lack of room; returns them."""
        gone = BitMap64(number for number in numbers if number in self.items)
        self.alive -= gone
        self.away |= gone
        return self._drop(gone)

    def away_since(self, after: int, upto: int, late: list[int]) -> bytes:
        """The evicted numbers in a range, for a batch; and the `late` (expired) ones, if only their
        source may declare them dead."""
        away = _between(self.away, after + 1, upto) if self.away else BitMap64()
        if is_signed(self.source):
            away.update(late)
        return encode_bits(away) if away else b""

    # Signatures

    def keep_chunks(self, chunks: Iterable[Chunk]) -> None:
        """Keep the chunks that reach beyond those that are here."""
        for chunk in chunks:
            if not self.chunks or chunk.upto > self.chunks[-1].upto:
                self.chunks.append(chunk)
                self.unkept.append(chunk)

    def keep_removal(self, statement: Tombstones | AliveNumbers) -> None:
        """Keep a signed statement about removals. A list of living numbers replaces those before
        it, and chunks without living items."""
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

    def not_removed(self, numbers: BitMap64) -> BitMap64:
        """Those of these numbers of which no kept statement says that they were removed."""
        left = BitMap64(numbers)
        for statement in self.removals:
            if isinstance(statement, Tombstones):
                left -= BitMap64(statement.numbers)
            else:
                lives = read_bits(statement.living)
                left -= up_to(left, statement.known) - lives
                left -= read_bits(statement.dead)
        return left

    def _need_no_more(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            kept = [one for one in self.unkept if one is not statement]
            if len(kept) == len(self.unkept):
                self.unneeded.append(statement)
            self.unkept = kept

    def proof(self, batch: ItemBatch) -> list[Chunk]:
        """The chunks that prove a batch, without the digests of its items."""
        brought = {number for number, _ in batch.items}
        first = bisect_left(self.chunks, batch.after + 1, key=lambda chunk: chunk.upto)
        last = bisect_left(self.chunks, batch.upto, key=lambda chunk: chunk.upto)
        return [
            msgspec.structs.replace(
                chunk, digests={n: one for n, one in chunk.digests.items() if n not in brought}
            )
            for chunk in self.chunks[first : last + 1]
        ]

    def _end_of(self, number: int) -> int:
        """Where a batch with this number may end: chunks are not split."""
        place = bisect_left(self.chunks, number, key=lambda chunk: chunk.upto)
        return self.chunks[place].upto if place < len(self.chunks) else number

    def _drop(self, numbers: Iterable[int]) -> list[Item]:
        items = self.items
        return [items.pop(number) for number in numbers if number in items]

    def _forget_dead(self) -> None:
        if self.dead:
            self.dead.remove_range(0, self.known + 1)

    # For other hosts

    def batch(
        self,
        feed: str,
        after: int,
        bytes_max: int,
        encode: Callable[[Item], bytes | None],
        *,
        answers: bool,
    ) -> ItemBatch:
        """The items after a number, as many as fit in `bytes_max`, at least one."""
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
        """The living numbers, for a host that has missed removals."""
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
    """The numbers in a range."""
    some = BitMap64(bits)
    some.remove_range(0, first)
    some.remove_range(last + 1, NUMBER_MAX + 1)
    return some


def read_bits(encoded: bytes) -> BitMap64:
    try:
        return BitMap64.deserialize(encoded)
    except (ValueError, TypeError) as error:
        raise BadFrame(f"invalid bitmap: {error}") from error


KEY_BYTES = 32

_encode = Encoder().encode
encode_statement = _encode
decode_statement = Decoder(Statement).decode


def digest_of(content: bytes) -> bytes:
    return sha256(content).digest()


def sign(identity: Identity, feed: str, source: str, statement: Statement) -> bytes:
    """The key of the source followed by its signature of a statement about a stream."""
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
