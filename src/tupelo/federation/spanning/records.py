"""Records: what a session has seen at all hosts together, and how much of it each of them knows.

With a question goes only what its host does not know yet: what was seen since it was last told,
over the same link. The host keeps it, and looks on from where this session stopped. The reader
alone says what it has seen; that something was sent to it means nothing. So whatever a host has
forgotten, or was never told, costs a question more and never an entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol
from weakref import WeakKeyDictionary

from pyroaring import BitMap64

from tupelo.errors import BadFrame, TupeloError
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_numbers, encode_seen, read_numbers
from tupelo.space.session import Seen, seen_of
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.federation.spanning.peers import EngagedPeer

CHANGES_MAX = 4_096
"""So many changes are remembered one by one; who knows less than that is told all anew."""

TURN = 16
"""So many are read from one host, while others may have some as well."""

_Change = tuple[Literal["seen", "unseen", "gone"], str, int | BitMap64]


class SessionReader(Protocol):
    """Who reads in a session, and wants to know that there is something again to be read."""

    def look_again(self) -> None: ...

    def stop(self, error: TupeloError) -> None:
        """On the host's loop: the session is over."""
        ...


class SeenRecord(Seen):
    """What one session has seen. It is used under the lock of the session's space here."""

    __slots__ = (
        "_changes",
        "_first",
        "_gone",
        "_holding",
        "_number",
        "_reads",
        "_told",
        "_was_told",
        "readers",
        "source",
    )

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[SessionReader, None] = {}
        self._changes: list[_Change] = []
        self._first = 1  # the version before the first of the changes
        self._told: WeakKeyDictionary[EngagedPeer, int] = WeakKeyDictionary()
        self._was_told = False  # Was anyone told? Until then no change need be remembered.
        self.source = ""  # the id of the host that had the last one at once
        self._reads = 0
        self._number = 0
        self._holding = 0
        self._gone = Seen()

    # What is seen

    def add_number(self, origin: str, n: int) -> None:
        bits = self.bits.get(origin)  # as `Seen` does, without the call
        if bits is None:
            bits = self.bits[origin] = BitMap64()
        bits.add(n)
        if self._was_told:
            self._note("seen", origin, n)

    def discard(self, entry: Entry) -> None:
        """It did not reach the reader: who else reads in the session may have it."""
        super().discard(entry)
        self._note("unseen", entry.origin, entry.n)
        for reader in list(self.readers):
            reader.look_again()

    def choose(self, entries: Iterable[Entry], limit: int | None) -> list[Entry]:
        """Those of these that are new, and seen from now on: another reader may have been
        quicker."""
        chosen: list[Entry] = []
        for entry in entries:
            if len(chosen) == limit:
                break
            bits = self.bits.get(entry.origin)
            if bits is None:
                bits = self.bits[entry.origin] = BitMap64()
            if entry.n not in bits:
                bits.add(entry.n)
                chosen.append(entry)
        if chosen and self._was_told:
            for origin, numbers in seen_of(chosen).bits.items():
                self._note("seen", origin, numbers)
        return chosen

    def discard_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.discard(entry)

    # What may be forgotten

    def prune(self, gone: Seen) -> None:
        """Forget what is gone for good, as soon as no reader can have it in its hands."""
        if self._holding:
            for origin, numbers in gone.bits.items():
                self._gone.bits[origin] = self._gone.bits.get(origin, BitMap64()) | numbers
            return
        for origin, numbers in gone.bits.items():
            known = self.bits.get(origin)
            common = None if known is None else known & numbers
            if common:
                self._note("gone", origin, common)
        super().prune(gone)

    def hold(self) -> None:
        """A reader has got entries, and has yet to look which of them are new."""
        self._holding += 1

    def release(self) -> None:
        self._holding -= 1
        if not self._holding and self._gone.bits:
            gone, self._gone = self._gone, Seen()
            self.prune(gone)

    # What others know of it

    def _note(
        self, kind: Literal["seen", "unseen", "gone"], origin: str, n: int | BitMap64
    ) -> None:
        if not self._was_told:
            return
        self._changes.append((kind, origin, n))
        if len(self._changes) > CHANGES_MAX:
            del self._changes[: CHANGES_MAX // 2]
            self._first += CHANGES_MAX // 2

    def notes_for(self, peer: EngagedPeer, call: int) -> wire.SessionDelta:
        """What to say to this host with the question that it is asked in this call. Links keep the
        order, so what is said is known there; if not, it will say so."""
        self._number = self._number or call
        since, upto = self._told.get(peer, 0), self._first + len(self._changes)
        self._told[peer] = upto
        self._was_told = True
        if since < self._first:
            return wire.SessionDelta(self._number, 0, upto, {**encode_seen(self)})
        seen, unseen, gone = _summed(self._changes[since - self._first :])
        return wire.SessionDelta(
            self._number,
            since,
            upto,
            encode_numbers(seen),
            encode_numbers(unseen),
            encode_numbers(gone),
        )

    def first_asked(self, peers: list[EngagedPeer]) -> EngagedPeer | None:
        """Whom to ask alone, before all: the next one is most often where the last one was. Now and
        then it is the turn of the others, one by one, so that none has to wait for ever."""
        if not self.source or len(peers) < 2:
            return None
        self._reads += 1
        turn, rest = divmod(self._reads, TURN)
        if not rest:
            return peers[turn % len(peers)]
        return next((peer for peer in peers if peer.id == self.source), None)

    def all_notes(self) -> wire.SessionDelta:
        """All that was seen, for one who need not keep it."""
        return wire.SessionDelta(0, 0, 0, {**encode_seen(self)})

    def read_answer(self, peer: EngagedPeer, notes: wire.SessionDelta, answer: Any) -> Any:
        """The entries of an answer, as they are encoded; None if the host has forgotten us, and is
        to be asked again. BadFrame if it says what cannot be."""
        if answer is None and notes.since:
            self._told.pop(peer, None)
            return None
        if type(answer) is not list or len(answer) != 2:
            raise BadFrame("entries, and the numbers of what is gone, were expected")
        entries, gone = answer
        if gone is not None:
            dead = Seen()
            dead.bits = read_numbers(gone)
            self.prune(dead)
        return entries

    def close(self) -> None:
        """The session is over."""
        for peer in list(self._told):
            peer.talk.say(wire.ForgetSession(self._number))
        self._told.clear()


def _summed(
    changes: list[_Change],
) -> tuple[dict[str, BitMap64], dict[str, BitMap64], dict[str, BitMap64]]:
    """What is seen in the end, what is not seen after all, and what is gone."""
    seen: dict[str, BitMap64] = {}
    unseen: dict[str, BitMap64] = {}
    gone: dict[str, BitMap64] = {}
    for kind, origin, n in changes:
        numbers = n if isinstance(n, BitMap64) else BitMap64([n])
        if kind == "seen":
            _join(seen, origin, numbers)
            _cut(unseen, origin, numbers)
            _cut(gone, origin, numbers)
        elif kind == "unseen":
            _join(unseen, origin, numbers)
            _cut(seen, origin, numbers)
        else:
            _join(gone, origin, numbers)
            _cut(seen, origin, numbers)
    return seen, unseen, gone


def _join(known: dict[str, BitMap64], origin: str, numbers: BitMap64) -> None:
    before = known.get(origin)
    known[origin] = numbers if before is None else before | numbers


def _cut(known: dict[str, BitMap64], origin: str, numbers: BitMap64) -> None:
    before = known.get(origin)
    if before is not None:
        known[origin] = before - numbers
