"""Windows: what one host has for a pattern, told to another in several messages.

The owner makes a listing when it is asked first: what it has at that moment. Each further request
under the same number gets the next window, so that neither a message nor the queue of a link grows
with what is stored. A listing ends with its last window, when the asker releases it, and with the
membership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tupelo.errors import Refused, UnknownHost
from tupelo.federation.groups.routing import PartSender
from tupelo.federation.hosts.core import HostCore
from tupelo.models.lime.messages import Look, PlacedTuple, Release, TuplePattern, read
from tupelo.models.lime.spaces import Spaces, TupleStore
from tupelo.models.lime.transport import FoundTuples
from tupelo.values.entry import Entry

WINDOW_MAX = 500
"""So many tuples go in one message,"""
WINDOW_BYTES = 2**20
"""and so many bytes, unless it is one tuple."""
LISTINGS_MAX = 10_000
"""So many listings may be open for one host."""


class Listing:
    """What is on a tuple store for a pattern and can be sent, window by window."""

    def __init__(self, tuple_store: TupleStore, pattern: TuplePattern) -> None:
        self._found = tuple_store.sendable(pattern)
        self._next = next(self._found, None)

    @property
    def is_over(self) -> bool:
        return self._next is None

    def window(self) -> dict[Entry, PlacedTuple]:
        """As much of it as fits a message; at least one tuple, if there is one left."""
        window: dict[Entry, PlacedTuple] = {}
        size = 0
        while self._next is not None and len(window) < WINDOW_MAX:
            entry, placed = self._next
            size += len(placed.entry.payload)
            if window and size > WINDOW_BYTES:
                break
            window[entry] = placed
            self._next = next(self._found, None)
        return window


class Listings:
    """The listings that are open at one host, by the hosts that asked and their numbers."""

    def __init__(self) -> None:
        self._open: dict[str, dict[int, Listing]] = {}

    def window(
        self, source: str, number: int, tuple_store: TupleStore, pattern: TuplePattern
    ) -> tuple[dict[Entry, PlacedTuple], bool]:
        """The next window of this listing, which begins if there is none; and whether there are
        more."""
        mine = self._open.setdefault(source, {})
        listing = mine.get(number)
        if listing is None:
            if len(mine) >= LISTINGS_MAX:
                raise Refused(f"{LISTINGS_MAX:,} listings are open for this host")
            listing = mine[number] = Listing(tuple_store, pattern)
        window = listing.window()
        if listing.is_over:
            del mine[number]
        return window, not listing.is_over

    def open_for(self, source: str) -> int:
        """How many are open for this host: for the lab, and for whoever looks."""
        return len(self._open.get(source, {}))

    def release(self, source: str, number: int) -> None:
        self._open.get(source, {}).pop(number, None)

    def cut(self, hosts: Iterable[str]) -> None:
        for host in hosts:
            self._open.pop(host, None)

    def clear(self) -> None:
        self._open.clear()


class WindowedRead:
    """How one host looks at what another has."""

    def __init__(
        self, core: HostCore, voice: PartSender, spaces: Spaces, next_number: Callable[[], int]
    ) -> None:
        self._here = core.id
        self._now = core.clock.now
        self._voice = voice
        self._spaces = spaces
        self._next_number = next_number

    async def look(self, host: str, pattern: TuplePattern) -> list[FoundTuples]:
        """All that this host has for the pattern; PeerLost if it is cut off before it has told."""
        if host == self._here:
            tuple_store = self._spaces.find(pattern.space)
            here = [] if tuple_store is None else tuple_store.sendable(pattern)
            return self._read(host, [placed for _, placed in here])
        found: list[FoundTuples] = []
        number = self._next_number()
        more = True
        try:
            while more:
                answer = await self._voice.ask(host, Look(number, pattern))
                placed, more = read(answer, tuple[list[PlacedTuple], bool])
                found += self._read(host, placed)
        except UnknownHost:  # It is not in the group any more.
            return []
        finally:
            if more:
                self._voice.send(host, Release(number))
        return found

    def _read(self, host: str, placed: Iterable[PlacedTuple]) -> list[FoundTuples]:
        now = self._now()
        return [FoundTuples(one.entry.read(now), one.current, host) for one in placed]
