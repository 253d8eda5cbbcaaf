"""The local space that stores the items of a feed: this host's own and those of others.

Items are normal entries with their original identity, so that reading, waiting and subscribing work
as in every space. A durable store also writes, in the same step, how far each stream is: a
`BatchRecord` before the items that came together (whose arrivals follow its own), and a
`StreamProgress` when a stream has advanced without items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from msgspec.msgpack import Decoder, Encoder
from pyroaring import BitMap64

from tupelo.errors import BadArgument, BadFrame
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.links.encoding import encode_bits, read_encoded_entry
from tupelo.federation.replication.messages import NUMBER_MAX, Chunk
from tupelo.federation.replication.streams import (
    NumberedItems,
    Stream,
    decode_statement,
    encode_statement,
    host_of,
    is_signed,
    read_bits,
    up_to,
)
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.session import Seen
from tupelo.values.codec import entry_to_wire
from tupelo.values.entry import Entry, freeze, thaw
from tupelo.values.kind import kind_of

PREFIX = "tupelo.copies."
EXPIRED_MIN = 64
"""Expired copies are dropped together, once there are this many."""
FEED_NAME_MAX = 70
"""Longest name, in bytes, of a space that is copied: the file of its copies needs a name too."""

_encode = Encoder().encode
_decode = Decoder(list[int]).decode


@dataclass
class BatchRecord:
    """The numbers of the items that follow this record, and the marks of their stream at that
    time."""

    source: str
    upto: int
    tombstones: int
    numbers: bytes


@dataclass
class StreamProgress:
    """The marks of a stream, and what is known of numbers that have not come yet or were
    evicted."""

    source: str
    upto: int
    tombstones: int
    known: int
    ahead: bytes
    dead: bytes


@dataclass
class Signed:
    """A signed statement of the source of a stream."""

    source: str
    statement: bytes


_KINDS = frozenset([kind_of(BatchRecord), kind_of(StreamProgress), kind_of(Signed)])


class CopyStore:
    """Stores the items of one feed. `hosted` is its space."""

    def __init__(self, core: HostCore, of: HostedSpace, *, measured: bool = False) -> None:
        user_name = of.name if of.serves is None else of.serves.name
        if len(user_name.encode()) > FEED_NAME_MAX:
            raise BadArgument("name", f"a text of at most {FEED_NAME_MAX} bytes", user_name[:50])
        # Private to the host: models decide who may read the copies.
        self.hosted = core.private_space(
            PREFIX + of.name, None if of.former is None else PREFIX + of.former
        )
        self._core = core
        self._port = self.hosted.port
        self._now = self.hosted.clock.now
        self._batches: dict[Entry, _LiveBatch] = {}  # by item, if durable
        self._kept: dict[str, Entry] = {}
        self._signed: dict[str, dict[bytes, Entry]] = {}  # by source and signature
        self._ahead: set[str] = set()  # streams with a stored StreamProgress.ahead
        self._measured = measured
        self._bytes: Counter[str] = Counter()
        self._expired: set[Entry] = set()  # by their lease
        self._memory = Seen()  # The space reports removals while there is a session record.
        self._port.listen_to_removals(self._removed, self._memory)

    def close(self) -> None:
        """Close the space; its file stays."""
        if self._core.spaces.get(self.hosted.name) is self.hosted:
            del self._core.spaces[self.hosted.name]
            self._port.close()

    def _removed(self, entry: Entry) -> None:
        """Called on any thread, under the lock of the space."""
        if entry.expires is not None and entry.expires <= self._now():
            self._expired.add(entry)

    def pop_expired(self, streams: Collection[Stream]) -> dict[str, list[int]]:
        """The numbers of expired items by stream, since the last call. Empty while they are few,
        because finding them is a scan of all items."""
        few = len(self._expired) < EXPIRED_MIN
        if few or 4 * len(self._expired) < sum(len(stream.items) for stream in streams):
            return {}
        expired, self._expired = self._expired, set()
        return {
            stream.source: [number for number, one in stream.items.items() if one in expired]
            for stream in streams
        }

    # Storing

    def put(self, stream: Stream, items: NumberedItems) -> NumberedItems:
        come = [self._port.copy_of(entry) for _, entry in items]
        batch: list[Entry] = []
        kept: list[Entry] = []
        ended: list[Entry] = []
        if self.hosted.durable:
            if items:
                batch = [self._batch(stream, [number for number, _ in items], come)]
            if not items or _looks_ahead(stream) or stream.source in self._ahead:
                kept, ended = self._renew_kept(stream)
        signed, unneeded = self._renew_signed(stream)
        self._step([*batch, *come, *kept, *signed], [*ended, *unneeded])
        self._measure(stream.source, come, 1)
        return [(number, entry) for (number, _), entry in zip(items, come, strict=True)]

    def remove(self, stream: Stream, items: list[Entry]) -> None:
        kept, ended = self._renew_kept(stream) if self.hosted.durable else ([], [])
        signed, unneeded = self._renew_signed(stream)
        self._step([*kept, *signed], [*items, *self._emptied(items), *ended, *unneeded])
        self._measure(stream.source, items, -1)

    def drop(self, stream: Stream) -> None:
        items = [*stream.items.values()]
        kept = self._kept.pop(stream.source, None)
        signed = self._signed.pop(stream.source, {}).values()
        self._step([], [*items, *self._emptied(items), *([kept] if kept else []), *signed])
        del self._bytes[stream.source]

    def size_of(self, item: Entry) -> int:
        return len(encode_item(item, None))

    def bytes_of(self, source: str) -> int:
        """Size of a stream in bytes, if sizes are measured."""
        return self._bytes[source]

    def _measure(self, source: str, entries: Iterable[Entry], sign: int) -> None:
        if self._measured:
            size = sum(len(encode_item(entry, None)) for entry in entries)
            self._bytes[source] += sign * size

    def _step(self, come: list[Entry], ended: list[Entry]) -> None:
        """Add and end entries in one step."""
        self.hosted.flush_soon(self._port.exchange(come, ended))

    def _emptied(self, items: list[Entry]) -> list[Entry]:
        """The batch records that are empty without these items."""
        emptied = []
        for entry in items:
            batch = self._batches.pop(entry, None)
            if batch is not None:
                batch.left -= 1
                if not batch.left:
                    emptied.append(batch.entry)
        return emptied

    def _own(self, record: BatchRecord | StreamProgress | Signed) -> Entry:
        return self._port.new_entry(*freeze(record))

    def _batch(self, stream: Stream, numbers: list[int], come: list[Entry]) -> Entry:
        record = BatchRecord(stream.source, stream.upto, stream.tombstones, _encode(numbers))
        batch = _LiveBatch(self._own(record), len(come))
        self._batches.update(dict.fromkeys(come, batch))
        return batch.entry

    def _renew_kept(self, stream: Stream) -> tuple[list[Entry], list[Entry]]:
        """The new progress record of a stream, and the one that it replaces."""
        ahead = BitMap64()
        self._ahead.discard(stream.source)
        if _looks_ahead(stream):
            self._ahead.add(stream.source)
            ahead |= stream.alive
            ahead.remove_range(0, stream.upto + 1)
            ahead |= stream.away
        old = self._kept.get(stream.source)
        new = self._kept[stream.source] = self._own(
            StreamProgress(
                stream.source,
                stream.upto,
                stream.tombstones,
                stream.known,
                encode_bits(ahead),
                encode_bits(stream.dead),
            )
        )
        return [new], [] if old is None else [old]

    def _renew_signed(self, stream: Stream) -> tuple[list[Entry], list[Entry]]:
        """New records of signed statements, and those that are not needed any more."""
        (new, old), stream.unkept, stream.unneeded = (stream.unkept, stream.unneeded), [], []
        if not self.hosted.durable or not (new or old):
            return [], []
        kept = self._signed.setdefault(stream.source, {})
        come = {
            one.signature: self._own(Signed(stream.source, encode_statement(one))) for one in new
        }
        kept.update(come)
        return [*come.values()], [kept.pop(one.signature) for one in old]

    # Loading

    def streams(self) -> Iterator[Stream]:
        """The stored streams."""
        found: dict[str, Stream] = {}
        records: list[tuple[Entry, BatchRecord]] = []
        here: dict[int, Entry] = {}
        kept: dict[str, StreamProgress] = {}
        behind: list[_LiveBatch] = []
        for entry in self._port.entries():
            record = thaw(entry.shape, entry.fields) if entry.shape.kind in _KINDS else None
            if isinstance(record, BatchRecord):
                records.append((entry, record))
            elif isinstance(record, StreamProgress):
                kept[record.source], self._kept[record.source] = record, entry
            elif isinstance(record, Signed):
                stream = found.setdefault(record.source, Stream(record.source))
                statement = decode_statement(record.statement)
                self._signed.setdefault(record.source, {})[statement.signature] = entry
                if isinstance(statement, Chunk):
                    stream.chunks.append(statement)
                else:
                    stream.removals.append(statement)
            else:
                here[entry.arrival] = entry
        for entry, batch in records:
            stream = found.setdefault(batch.source, Stream(batch.source))
            numbers = _decode(batch.numbers)
            behind.append(_LiveBatch(entry, 0))
            missing = BitMap64()
            for place, number in enumerate(numbers, entry.arrival + 1):
                if place not in here:
                    missing.add(number)
                else:
                    behind[-1].left += 1
                    self._batches[here[place]] = behind[-1]
                    stream.append([(number, here[place])])
            if missing and is_signed(batch.source) and host_of(batch.source) != self._core.id:
                # They have expired, and only their source may say that they are gone.
                stream.away |= stream.not_removed(missing)
            stream.upto = stream.known = max(stream.upto, batch.upto)
            stream.tombstones = max(stream.tombstones, batch.tombstones)
        for record in kept.values():
            stream = found.setdefault(record.source, Stream(record.source))
            _restore(stream, record)
            if _looks_ahead(stream):
                self._ahead.add(stream.source)
        empty = [one for one in behind if not one.left]
        for one in empty:  # All of its items have expired meanwhile.
            batch = thaw(one.entry.shape, one.entry.fields)
            new, old = self._renew_kept(found[batch.source])
            self._step(new, [*old, one.entry])
        for stream in found.values():
            stream.chunks.sort(key=lambda chunk: chunk.upto)
            stream.removals.sort(key=lambda removal: removal.tombstones)
            self._measure(stream.source, stream.items.values(), 1)
            yield stream

    # Encoding

    def encode(self, item: Entry) -> bytes | None:
        """Encode fields, number, origin, remaining lease and addressee; None if the item has
        ended."""
        lease = None
        if item.expires is not None:
            lease = item.expires - self._now()
            if lease <= 0:
                return None
        if item.ended:
            return None
        return encode_item(item, lease)

    def content(self, item: Entry) -> bytes:
        return encode_item(item, None if item.expires is None else 0.0)

    def lease(self, item: Entry) -> float:
        return 0.0 if item.expires is None else item.expires - self._now()

    def read(self, encoded: Any) -> Entry:
        try:
            fields, n, origin, lease, to = encoded
        except (TypeError, ValueError) as error:
            raise BadFrame(f"invalid item: {error}") from error
        if not (
            type(origin) is str
            and type(n) is int
            and 0 <= n <= NUMBER_MAX
            and (lease is None or (type(lease) is float and isfinite(lease)))
            and (to is None or type(to) is str)
        ):
            raise BadFrame("invalid item: wrong types in its identity or lease")
        shape, values = read_encoded_entry(fields)
        expires = None if lease is None else self._now() + lease
        return Entry(values, shape, origin, n, 0, expires, to=to)


@dataclass
class _LiveBatch:
    """A BatchRecord with the number of its items that are left."""

    entry: Entry
    left: int


def encode_item(entry: Entry, lease: float | None) -> bytes:
    """Encode an item as msgpack. UnicodeEncodeError if a text contains lone surrogates."""
    fields = entry_to_wire(entry.shape, entry.fields)
    return _encode((fields, entry.n, entry.origin, lease, entry.to))


def _looks_ahead(stream: Stream) -> bool:
    return stream.known > stream.upto or bool(stream.dead or stream.away)


def _restore(stream: Stream, kept: StreamProgress) -> None:
    stream.tombstones = max(stream.tombstones, kept.tombstones)
    if kept.upto >= stream.upto:
        stream.upto = kept.upto
        stream.known = max(kept.known, kept.upto)
        known = read_bits(kept.ahead)
        stream.away |= up_to(known, stream.upto)
        stream.alive |= known - stream.away
        stream.dead |= read_bits(kept.dead)
