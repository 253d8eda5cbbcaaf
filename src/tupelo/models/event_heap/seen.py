"""The record of a shared session: the events that were seen in it, known to every host of the heap.

A reader holds the session's token, and writes a record (`SessionSeen`) of each event before it
returns it. With the token come the records that the new holder has not heard of. After some hundred
records the holder writes a whole record, and every host removes its older ones. So neither a read
nor a hand-over costs more as more is seen; and if the holder is gone, the others know what was
seen, except what no host has heard of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from pyroaring import BitMap64

from tupelo.errors import BadFrame
from tupelo.federation.links.encoding import encode_seen as seen_to_wire
from tupelo.federation.replication.tokens import TokenState
from tupelo.models.event_heap.records import SessionSeen
from tupelo.space.session import Seen
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.models.event_heap.readings import Shared
    from tupelo.models.event_heap.replica import Replica

Base = tuple[int, int]
"""Identifies a whole record: the epoch of the token, and its number in that epoch."""


class Record:
    """A set of seen events that can be merged in any order, repeatedly. An event that is given back
    counts 2, seen again 3, and so on; the higher count wins."""

    def __init__(self, seen: Seen | None = None) -> None:
        self.seen = seen or Seen()
        self.again: dict[tuple[str, int], int] = {}
        """Counts above 1."""

    def changed(self, entries: list[Entry]) -> Record:
        """A record in which each of these events counts one more."""
        change = Record()
        for entry in entries:
            key = entry.origin, entry.n
            change._set(key, self.again.get(key, int(entry in self.seen)) + 1)
        return change

    def _set(self, key: tuple[str, int], count: int) -> None:
        if count > 1:
            self.again[key] = count
        if count % 2:
            self.seen.add_number(*key)
        else:
            self.seen.discard_number(*key)

    def join(self, other: Record) -> Record:
        """Merge another record into this one; returns what was new."""
        news = Record()
        counted = self.again.keys() | other.again.keys()
        for origin, numbers in other.seen.bits.items():
            more = numbers - self.seen.bits.get(origin, BitMap64())
            more -= BitMap64([n for name, n in counted if name == origin])
            if more:
                news.seen.bits[origin] = more
        self.seen.add_all(news.seen)
        for key, count in other.again.items():
            if count > self.again.get(key, 1):
                self._set(key, count)
                news._set(key, count)
        return news

    def __bool__(self) -> bool:
        return bool(self.again or self.seen.bits)

    def encode(self) -> bytes:
        again = [[*key, count] for key, count in self.again.items()]
        return msgspec.msgpack.encode([seen_to_wire(self.seen), again])


def read_record(encoded: bytes) -> Record:
    """Decode a record. BadFrame if it is invalid."""
    try:
        bits, again = msgspec.msgpack.decode(
            encoded, type=tuple[dict[str, bytes], list[tuple[str, int, int]]]
        )
        record = Record(_read(bits))
        for origin, n, count in again:
            if count < 2:
                raise ValueError("a count below 2")
            record._set((origin, n), count)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError) as error:
        raise BadFrame(f"invalid record of a session: {error}") from error
    return record


def _read(bits: dict[str, bytes]) -> Seen:
    seen = Seen()
    seen.bits = {origin: BitMap64.deserialize(numbers) for origin, numbers in bits.items()}
    return seen


def encode_seen(seen: Seen) -> bytes:
    """Encode seen events for a SessionRequest."""
    return msgspec.msgpack.encode(seen_to_wire(seen))


def read_seen(encoded: bytes) -> Seen:
    """Decode the seen events of a SessionRequest. BadFrame if they are invalid."""
    try:
        return _read(msgspec.msgpack.decode(encoded or b"\x80", type=dict[str, bytes]))
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise BadFrame(f"invalid record of a session: {error}") from error


class SharedRecord(TokenState):
    """The record of one shared session, as far as it is known here; the payload of the session's
    token, whose holder knows all."""

    moves_on_leave: bool = True

    def __init__(self, replica: Replica, session: str) -> None:
        self.id = session
        self.known = Record()
        self.readers: list[Shared] = []
        """The readings of the session at this host."""
        self.base: Base = (0, 0)
        """The last whole record."""
        self.losses = 0
        """How often the token was replaced, as far as is known here."""
        self.token = replica.tokens.token(f"session {session}")
        self.token.payload = self
        self.token.patience = replica.patience
        self._replica = replica
        self._recent: list[tuple[int, bytes]] = []  # epoch and record, since the base
        self._known_at = 0  # the last epoch in which all was known here
        self._is_whole = False  # Is all known here, if the token is here? Not after a restart.

    async def begin(self, seen: Seen) -> None:
        """Create the session, with these events seen."""
        self.known.join(Record(seen))
        await self._replica.tokens.create(self.token.name, payload=self)
        await self._fold()

    def heard(self, told: SessionSeen) -> None:
        """Merge a SessionSeen record. BadFrame if it is invalid."""
        match told:
            case SessionSeen(
                epoch=int(epoch), fold=int(fold), losses=int(losses), seen=bytes(encoded)
            ):
                record = read_record(encoded)
                self._join(record)
                self.losses = max(self.losses, losses)
            case _:
                raise BadFrame("invalid SessionSeen record")
        if told.whole:
            self._set_base((epoch, fold))
            if not record.join(self.known):  # Otherwise its writer did not know all.
                self._replica.forget_seen(self.id, (epoch, fold))

    def _set_base(self, base: Base) -> None:
        if base > self.base:
            self.base = base
            self._recent = []

    def _join(self, record: Record) -> Record:
        news = self.known.join(record)
        if news:
            for reader in self.readers:
                reader.note(news)
        return news

    async def ready(self) -> None:
        """Wait until all seen events are known here. The token must be held."""
        base, _, seen = self._read_state()
        self._join(Record(seen))
        await self._replica.until(lambda: self.base >= base)
        if not self._is_whole:
            await self._fold()
        self._known_at = self.token.epoch

    async def count(self, entries: list[Entry]) -> None:
        """Record these events as seen, or as given back if they were seen before. The token must be
        held."""
        change = self.known.changed(entries)
        self._join(change)
        encoded = change.encode()
        self._recent.append((self.token.epoch, encoded))
        await self._publish(encoded)
        if len(self._recent) >= self._replica.folded_after:
            await self._fold()

    async def _publish(self, encoded: bytes, *, whole: bool = False) -> None:
        told = SessionSeen(self.id, *self.base, whole, len(self.lost), encoded)
        await self._replica.record(told)

    async def _fold(self) -> None:
        epoch, fold = self.base
        here = self.token.epoch
        self._set_base((here, fold + 1 if epoch == here else 0))
        self._is_whole = True
        await self._publish(self.known.encode(), whole=True)

    # Payload of the token

    @property
    def lost(self) -> list[str]:
        """The hosts with which the token was lost before the session was resumed."""
        return self._read_state()[1]

    def state(self) -> bytes:
        return _encode_state(self.base, self.lost)

    def _read_state(self) -> tuple[Base, list[str], Seen]:
        """The base and the lost holders; and the events seen, if the token was written by a release
        in which it carried them itself (before decision 0043). BadFrame if it is damaged."""
        try:
            state = msgspec.msgpack.decode(
                self.token.state or _NO_STATE, type=tuple[Base, list[str]] | dict[str, bytes]
            )
            if isinstance(state, dict):
                return (0, 0), [], _read(state)
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise BadFrame(
                f"the token of the shared session {self.id!r} cannot be read: {error}; "
                "share a new session"
            ) from error
        return *state, Seen()

    def revive(self, holder: str | None) -> bytes:
        self._is_whole = False
        return _encode_state((0, 0), [*self.lost, *([] if holder is None else [holder])])

    def known_here(self) -> Any:
        return [list(self.base), self._known_at]

    def can_pack(self, known_there: Any) -> bool:
        return True

    def pack(self, known_there: Any) -> Any:
        """The records since the base, of later epochs than the receiver knows; and the whole
        record, if it does not know the base."""
        match known_there:
            case [[int(epoch), int(fold)], int(known_at)] if (epoch, fold) == self.base:
                recent = [list(one) for one in self._recent if one[0] > known_at]
                return [list(self.base), None, recent]
        return [list(self.base), self.known.encode(), [list(one) for one in self._recent]]

    async def unpack(self, packed: Any) -> None:
        try:
            (epoch, fold), whole, told = packed
            recent = [(int(at), bytes(encoded)) for at, encoded in told]
            base = int(epoch), int(fold)
        except (TypeError, ValueError) as error:
            raise BadFrame(f"invalid record of a session: {error}") from error
        lacking = Record()
        for encoded in [*([] if whole is None else [whole]), *[one for _, one in recent]]:
            lacking.join(self._join(read_record(encoded)))
        self._set_base(base)
        self._recent += recent
        self._is_whole = True
        if lacking:  # Other hosts may lack these, and the giver may leave.
            await self._publish(lacking.encode())
        await self._replica.keep(self._replica.system)


def _encode_state(base: Base, lost: list[str]) -> bytes:
    return msgspec.msgpack.encode([base, lost])


_NO_STATE = _encode_state((0, 0), [])
