"""Noted: what the sessions of another host have seen, as far as they have told us. It is kept for
as long as the link lasts; what is not there any more is asked for anew."""

from __future__ import annotations

from collections import OrderedDict

from pyroaring import BitMap64

from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_numbers, read_numbers
from tupelo.federation.spaces.hosted import HostedSpace
from tupelo.space.log import Actor
from tupelo.space.session import Seen, SessionState, seen_of
from tupelo.values.entry import Entry

NOTED_MAX = 1_000
"""So many sessions of one host are remembered. The one that has not asked for longest is forgotten,
and tells us all again if it asks."""
NOTED_BYTES = 64 * 2**20
"""So much may they have told us together, beyond the one that asks; then the same."""
ORIGIN_BYTES = 256
"""What an origin needs, however few its numbers."""


class PeerSeen(Seen):
    """What a session there has seen, and what of it is gone from here for good since it asked; also
    of what was sent, of which it has yet to say whether it has seen it."""

    __slots__ = ("_gone", "_sent")

    def __init__(self) -> None:
        super().__init__()
        self._gone: dict[str, BitMap64] = {}
        self._sent = Seen()

    def sent(self, entries: list[Entry]) -> None:
        self._sent.add_all(seen_of(entries))

    def prune(self, gone: Seen) -> None:
        none = BitMap64()
        for origin, numbers in gone.bits.items():
            common = numbers & self.bits.get(origin, none)
            common |= numbers & self._sent.bits.get(origin, none)
            if common:
                self._gone[origin] = self._gone.get(origin, none) | common
        super().prune(gone)
        self._sent.prune(gone)

    def heard(self, notes: wire.SessionDelta) -> None:
        gone, unseen, seen = Seen(), Seen(), Seen()
        gone.bits, unseen.bits = read_numbers(notes.gone), read_numbers(notes.unseen)
        seen.bits = read_numbers(notes.seen)
        self.add_all(seen)
        self._sent.prune(seen)
        super().prune(gone)
        if unseen.bits:
            super().prune(unseen)
            self.discards += 1

    def pop_gone(self) -> wire.Numbers | None:
        gone, self._gone = self._gone, {}
        return encode_numbers(gone) if gone else None


class PeerSession:
    """A session there, as it is known here: who reads in it, and what it has seen. `version` is
    that of its record, there."""

    def __init__(self, hosted: HostedSpace, number: int, actor: Actor) -> None:
        self.hosted = hosted
        self.actor = actor
        self.seen = PeerSeen()
        self.state = SessionState(str(number), self.seen, None)
        self.version = 0
        self.size = 0
        self.answering = 0

    def pop_gone(self) -> tuple[wire.Numbers | None, int]:
        """What the session may forget, and the position at which that is durable. Nothing while
        other answers to it are made: there it may be in, and would seem new when they come."""
        if self.answering > 1:
            return None, 0
        with self.hosted.port.atomic():
            return self.seen.pop_gone(), self.hosted.port.position

    def heard(self, notes: wire.SessionDelta) -> None:
        """BadFrame, and nothing was done, if this cannot be."""
        with self.hosted.port.atomic():
            new = [origin for origin in notes.seen if origin not in self.seen.bits]
            self.seen.heard(notes)
        self.version = notes.upto
        self.size += sum(map(_size, notes.seen.values()))
        self.size += sum(ORIGIN_BYTES + len(origin) for origin in new)


class PeerSessionCache:
    """The sessions of one host, by their numbers there."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, PeerSession] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def heard(
        self, hosted: HostedSpace, notes: wire.SessionDelta, actor: Actor
    ) -> PeerSession | None:
        """The session as it is after this; None if this does not go on from what is known of it.
        BadFrame if it cannot be."""
        number = notes.number
        if not notes.since:
            self.forget(number)
            kept = PeerSession(hosted, number, actor)
            kept.heard(notes)
            hosted.port.remember(kept.seen)
            self._kept[number] = kept
        else:
            known = self._kept.get(number)
            if known is None or known.version != notes.since or known.hosted is not hosted:
                return None
            kept, before = known, known.size
            kept.heard(notes)
            self._size -= before
            self._kept.move_to_end(number)
        self._size += kept.size
        while len(self._kept) > 1 and (len(self._kept) > NOTED_MAX or self._size > NOTED_BYTES):
            self.forget(next(iter(self._kept)))
        return kept

    def forget(self, number: int) -> None:
        kept = self._kept.pop(number, None)
        if kept is not None:
            self._size -= kept.size
            kept.hosted.port.forget(kept.seen)

    def forget_all(self) -> None:
        for number in list(self._kept):
            self.forget(number)


def _size(numbers: bytes | list[int]) -> int:
    return len(numbers) if isinstance(numbers, bytes) else 8 * len(numbers)
