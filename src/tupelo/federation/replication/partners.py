"""Partners: the other hosts that have a feed, what they have of it, and what they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tupelo.federation.replication.messages import NOTHING, StreamMark
from tupelo.federation.replication.sources import base_of

WANTS_MAX = 16
"""So many streams are asked for at a time: each answer may be as long as a window."""


@dataclass
class FeedPartner:
    """Another host that has the feed; `has` is what it has of each stream, as far as is known."""

    id: str
    source: str
    everything: bool
    near: frozenset[str]
    has: dict[str, StreamMark]
    doubted: set[str] = field(default_factory=set)
    """The streams of which it has said what their source has not signed."""

    def takes(self, source: str) -> bool:
        wants = self.everything or source in self.has
        return wants and base_of(source) != self.source

    def mark(self, source: str) -> StreamMark:
        return self.has.get(source, NOTHING)

    def got(self, source: str, mark: StreamMark) -> None:
        """It has so much by now, and perhaps more."""
        self.has[source] = self.mark(source).or_more(mark)


class FetchesInFlight:
    """Which stream was asked for, of whom; one host for each. `lacks` says whether a host has more
    of a stream than is here, and `ask` asks for it."""

    def __init__(
        self,
        far: dict[str, FeedPartner],
        lacks: Callable[[FeedPartner, str], bool],
        ask: Callable[[str, str], None],
    ) -> None:
        self._far = far
        self._lacks = lacks
        self._ask = ask
        self._asked: dict[str, tuple[str, int]] = {}  # source → host, and the turn
        self._waiting: dict[str, None] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._asked)

    def consider(self, source: str) -> None:
        """Ask someone for what is lacking of a stream, unless someone was asked."""
        if source in self._asked:
            return
        best: FeedPartner | None = None
        for far in self._far.values():
            if self._lacks(far, source) and (
                best is None or far.mark(source).exceeds(best.mark(source))
            ):
                best = far
        if best is None:
            return
        if len(self._asked) >= WANTS_MAX:
            self._waiting[source] = None
        else:
            self._asked[source] = (best.id, self._turn)
            self._ask(best.id, source)

    def inquire(self, source: str, host: str) -> None:
        """Ask this one in any case, though it does not seem to have more."""
        self._waiting.pop(source, None)
        self._asked[source] = (host, self._turn)
        self._ask(host, source)

    def answered(self, source: str, host: str) -> bool:
        """Was it asked for this? Then it is so no more."""
        if self._asked.get(source, ("", 0))[0] != host:
            return False
        del self._asked[source]
        self._next()
        return True

    def forget(self, source: str) -> None:
        self._asked.pop(source, None)
        self._waiting.pop(source, None)
        self._next()

    def lost(self, host: str) -> None:
        """This host answers nothing any more: others are asked."""
        for source in [source for source, (asked, _) in self._asked.items() if asked == host]:
            del self._asked[source]
            self.consider(source)
        self._next()

    def give_up(self) -> None:
        """Once in a while: who was asked before this was called the last time and has not answered
        is not held to have it. It says so again when it does."""
        for source, (host, turn) in list(self._asked.items()):
            if turn < self._turn:
                del self._asked[source]
                self._far[host].has.pop(source, None)
                self.consider(source)
        self._turn += 1
        self._next()

    def _next(self) -> None:
        while self._waiting and len(self._asked) < WANTS_MAX:
            source = next(iter(self._waiting))
            del self._waiting[source]
            self.consider(source)
