"""Publishing: updates on their way to those who want them.

Who was promised that a branch is empty is told before publishing ends; nobody else is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tupelo.federation.brokers.messages import PublishedUpdate, RevokePromise, UpdateAck
from tupelo.federation.brokers.tables import Say, Tree

Done = Callable[[], None]

KEYS_MAX = 1_000
"""So many promises are taken back in one message."""


class UpdateInFlight:
    """What one broker does about one update: how many neighbours have yet to answer, and itself."""

    def __init__(self, done: Done) -> None:
        self.waiting = 1
        self._done = done

    def arrived(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self._done()


class Publishing:
    """What is on its way from one broker, in one membership."""

    def __init__(self, tree: Tree, say: Say) -> None:
        self._tree = tree
        self._say = say
        self._hops = 0
        self._passages: dict[int, tuple[str, UpdateInFlight]] = {}
        self._cut: set[str] = set()
        self._of: Counter[str] = Counter()

    def heard(self, edge: str, hop: int) -> Done:
        """A neighbour tells us something; what to call when all beyond us know."""
        if not hop:
            return _nobody_waits
        self._tree.check_room(edge, self._of[edge])
        self._of[edge] += 1

        def done() -> None:
            self._of[edge] -= 1
            self._say(edge, UpdateAck(hop))

        return done

    def send(
        self,
        update: PublishedUpdate | None,
        edges: list[str],
        revoked: dict[str, list[str]],
        done: Done,
    ) -> None:
        """Tell these neighbours of an update, and those of promises that are taken back; `done` may
        be called before this returns."""
        passage = UpdateInFlight(done)
        wanted = dict.fromkeys(edges)
        for edge in wanted | dict.fromkeys(revoked):
            if edge in self._cut:
                continue
            keys, *others = _in_portions(revoked.get(edge, []))
            hop = self._expect(edge, passage) if keys else 0
            if update is not None and edge in wanted:
                self._say(edge, PublishedUpdate(hop, update.host, update.body, keys, update.number))
            else:
                self._say(edge, RevokePromise(hop, keys))
            for more in others:
                self._say(edge, RevokePromise(self._expect(edge, passage), more))
        passage.arrived()

    def _expect(self, edge: str, passage: UpdateInFlight) -> int:
        self._hops += 1
        self._passages[self._hops] = (edge, passage)
        passage.waiting += 1
        return self._hops

    def heard_told(self, edge: str, message: UpdateAck) -> None:
        neighbour, passage = self._passages.get(message.hop, ("", None))
        if passage is not None and neighbour == edge:
            del self._passages[message.hop]
            passage.arrived()

    def cut(self, hosts: frozenset[str]) -> None:
        """Who is out of reach is waited for no more."""
        self._cut |= hosts
        for hop, (edge, passage) in list(self._passages.items()):
            if edge in hosts:
                del self._passages[hop]
                passage.arrived()

    def end(self) -> None:
        passages, self._passages = self._passages, {}
        for _, passage in passages.values():
            passage.arrived()


def _in_portions(keys: list[str]) -> list[list[str]]:
    return [keys[at : at + KEYS_MAX] for at in range(0, len(keys) or 1, KEYS_MAX)]


def _nobody_waits() -> None:
    pass
