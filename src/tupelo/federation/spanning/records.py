"""Records of sessions over several hosts: which entries a session has seen, and how much of that
each host knows.

A question to a host carries only the changes since the last question over the same link. The host
keeps the record, and continues its search where the session stopped. Only the reader decides what
counts as seen; a host does not count what it has sent. So if a host has forgotten a session, it
costs one more question, and never an entry.
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
"""How many changes are kept; a host that lacks older ones gets the whole record again."""

TURN = 16
"""How many entries in a row are read from one host, while others may have some as well."""

_Change = tuple[Literal["seen", "unseen", "gone"], str, int | BitMap64]


class SessionReader(Protocol):
    """A search that reads in a session."""

    def look_again(self) -> None:
        """An entry was given back, and can be read again."""
        ...

    def end_rest(self) -> None:
        """On the host's loop: its watches are not needed any more."""
        ...

    def stop(self, error: TupeloError) -> None:
        """On the host's loop: the session has ended."""
        ...


class SeenRecord(Seen):
    """The entries that one session has seen. Use it under the lock of the session's space."""

    __slots__ = (
        "_changes",
        "_first",
        "_gone",
        "_holding",
        "_number",
        "_reads",
        "_told",
        "_was_told",
        "latest",
        "readers",
        "resting",
        "source",
    )

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[SessionReader, None] = {}
        self.resting: dict[bytes, SessionReader] = {}  # by the encoded template
        self._changes: list[_Change] = []
        self._first = 1  # the version before the first of the changes
        self._told: WeakKeyDictionary[EngagedPeer, int] = WeakKeyDictionary()
        self._was_told = False  # Does any host know a part? Until then changes are not kept.
        self.source = ""  # the id of the host that had the last entry at once
        self.latest = ""  # the id of the other host that had the last entry
        self._reads = 0
        self._number = 0
        self._holding = 0
        self._gone = Seen()

    # Seen entries

    def add_number(self, origin: str, n: int) -> None:
        bits = self.bits.get(origin)  # as `Seen` does, without the call
        if bits is None:
            bits = self.bits[origin] = BitMap64()
        bits.add(n)
        if self._was_told:
            self._note("seen", origin, n)

    def discard(self, entry: Entry) -> None:
        """The entry did not reach its reader: other readers of the session may get it."""
        super().discard(entry)
        self._note("unseen", entry.origin, entry.n)
        for reader in list(self.readers):
            reader.look_again()

    def choose(self, entries: Iterable[Entry], limit: int | None) -> list[Entry]:
        """The entries that are new to the session, which count as seen from now on. Another reader
        may have got some of them."""
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

    # Forgetting

    def prune(self, gone: Seen) -> None:
        """Forget entries that are removed for good; if a reader may hold some, later."""
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
        """A reader has fetched entries, and has yet to choose those that are new."""
        self._holding += 1

    def release(self) -> None:
        self._holding -= 1
        if not self._holding and self._gone.bits:
            gone, self._gone = self._gone, Seen()
            self.prune(gone)

    # What other hosts know

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
        """The changes to send to this host with the question of this call. Links keep the order, so
        the host knows them when it reads the next question; if it has lost them, it says so."""
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
        """The host to ask alone, before all others: mostly the one that had the last entry. After
        every `TURN` reads another host has its turn, so that none starves."""
        if not self.source or len(peers) < 2:
            return None
        self._reads += 1
        turn, rest = divmod(self._reads, TURN)
        if not rest:
            return peers[turn % len(peers)]
        return next((peer for peer in peers if peer.id == self.source), None)

    def in_turn(self, peers: list[EngagedPeer]) -> list[EngagedPeer]:
        """The hosts, beginning after the one that had the last entry. In an order that is always
        the same, hosts that often have new entries would hide those of the later ones."""
        after = next((place for place, peer in enumerate(peers, 1) if peer.id == self.latest), 0)
        return peers[after:] + peers[:after]

    def all_notes(self) -> wire.SessionDelta:
        """The whole record, for a question whose host need not keep it."""
        return wire.SessionDelta(0, 0, 0, {**encode_seen(self)})

    def read_answer(self, peer: EngagedPeer, notes: wire.SessionDelta, answer: Any) -> Any:
        """The encoded entries of an answer; None if the host has forgotten the session and must be
        asked again. BadFrame if the answer is malformed."""
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
        """On the host's loop: the session has ended, and the hosts may forget it."""
        for search in list(self.resting.values()):
            search.end_rest()
        for peer in list(self._told):
            peer.talk.say(wire.ForgetSession(self._number))
        self._told.clear()


def _summed(
    changes: list[_Change],
) -> tuple[dict[str, BitMap64], dict[str, BitMap64], dict[str, BitMap64]]:
    """The sum of changes: numbers seen, given back, and removed, by origin."""
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
