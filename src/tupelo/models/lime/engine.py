"""The adapter to the engine that keeps the tuples of LIME (figure 6 of the paper).

`TupleEngine` names everything that LIME asks of an engine. `SpaceEngine` is the adapter to a space
of Tupelo, in memory or in a file: other doors of the host see the tuples there. Another engine is
given to `Host(engine=)` as a function that makes one adapter for each tuple space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from tupelo.errors import SpaceClosed
from tupelo.space.bridge import LoopBridge
from tupelo.space.clock import Clock
from tupelo.space.delivery import Delivery
from tupelo.space.order import Fifo, Order
from tupelo.space.port import Port
from tupelo.space.query import Query
from tupelo.space.session import Seen
from tupelo.space.tasks import TaskSignal
from tupelo.space.waiting import WriteOutcome
from tupelo.store.index import Accept
from tupelo.values.change import Notice
from tupelo.values.entry import Entry, FrozenEntry
from tupelo.values.holder import Holder
from tupelo.values.parts import ANY

BACKLOG_MAX = 100_000
OLDEST_FIRST = Fifo()
"""LIME looks at every tuple, whatever order the space has: a migrating agent must find all tuples
that it takes along."""
_query = partial(Query, many=True, order=OLDEST_FIRST)


class EngineReaction(Protocol):
    """A strong reaction that is registered with an engine."""

    @property
    def ended(self) -> bool:
        """True once the reaction was removed, or has fired if it is a ONCE reaction."""
        ...

    @property
    def error(self) -> Exception | None:
        """The last exception of its function; that step was undone."""
        ...


class EngineStep(Protocol):
    """The atomic step in which a strong reaction runs. All changes are undone if it fails."""

    def write_marked(self, entry: object, mark: WriteOutcome) -> None:
        """Write a tuple with the origin, number and destination of the mark. Strong reactions to
        this tuple run in the same step."""
        ...

    def get(
        self, template: object, *, take: bool, limit: int | None, only: Accept | None, order: Order
    ) -> list[Any]:
        """The values of the tuples that match and that `only` accepts. `order` is always oldest
        first."""
        ...

    def add_reaction(
        self,
        template: object,
        function: Callable[[Any, Any], object],
        once: bool,
        only: Accept | None,
        whole: bool,
        fired: Seen,
    ) -> EngineReaction:
        """`TupleEngine.react` within the step, for existing tuples too; it is undone with the step.
        `whole` is always True: the function is called with the Entry, not with its value."""
        ...

    def when_over(self, listener: Callable[[bool], object]) -> None:
        """Call the listener at the end of the step: with True if it holds, False if undone."""
        ...


class HeldDelivery(Delivery, Protocol):
    """Tuples that are reserved for another host, the holder."""

    @property
    def holder(self) -> Holder: ...


class TupleEngine(Protocol):
    """Keeps the tuples of one space. LIME calls it on the loop of its host; each method is one
    atomic step, in which the strong reactions to all tuples that become visible run to the end.

    A tuple is an `Entry`, known by its origin and number. While it is in the engine, all methods
    return the same Entry object for it; `gone` is set when it leaves. An entry whose `expires` has
    passed is gone. A method that changes something returns a position, which LIME flushes before it
    reports the change; it is 0 if there is nothing to flush.
    """

    @property
    def durable(self) -> bool:
        """Whether tuples and reservations outlive a crash of the host."""
        ...

    def find(
        self, template: Any, limit: int | None, only: Accept | None, known: bool
    ) -> list[Entry]:
        """The oldest tuples that match and that `only` accepts, at most `limit`. If they must be
        `known`, raise UnknownType for one whose class this program does not have."""
        ...

    def take(
        self, template: Any, limit: int | None, only: Accept | None, known: bool
    ) -> tuple[list[Entry], int]:
        """`find`, and remove the tuples."""
        ...

    def write(self, item: FrozenEntry, mark: WriteOutcome) -> int:
        """Write a new tuple with the origin, number and destination of the mark. If a strong
        reaction fails nothing is written, and ReactionFailed or Livelock is raised."""
        ...

    def let_in(self, entries: Sequence[Entry]) -> int:
        """Add copies of tuples that were elsewhere before, with their identity. They stay even if a
        strong reaction to them fails."""
        ...

    def entries(self) -> list[Entry]:
        """All tuples that are not reserved, oldest first."""
        ...

    # Tuples for other hosts

    def put_aside(
        self, entries: Iterable[Entry], holder: Holder
    ) -> tuple[HeldDelivery | None, int]:
        """Reserve these tuples, as far as they are still there; None if none is. They are hidden
        until the delivery is confirmed or given back."""
        ...

    def deliveries_in_doubt(self) -> Sequence[HeldDelivery]:
        """The deliveries that were neither confirmed nor given back, also before a crash."""
        ...

    def accepted(self) -> Iterable[tuple[str, int]]:
        """Origin and number of the tuples that `let_in` has added, as far as a durable engine
        remembers them."""
        ...

    # Strong reactions

    def react(
        self,
        template: Any,
        function: Callable[[Any, Any], object],
        once: bool,
        existing: bool,
        only: Accept,
        fired: Seen,
    ) -> tuple[EngineReaction, int]:
        """Call `function(entry, step)` in each step in which a matching tuple that `only` accepts
        becomes visible; now for the `existing` ones, if asked to. A reaction fires never for a
        tuple in `fired`, and adds to it those for which it has fired."""
        ...

    def end_reaction(self, reaction: Any) -> None:
        """Remove a reaction; it may have ended before."""
        ...

    def catch_up(self, entries: list[Entry]) -> int:
        """Run the reactions to tuples that are here and that `only` may have refused before. The
        tuples stay even if one fails."""
        ...

    # Notices

    def listen(self, news: Callable[[], object]) -> None:
        """From now on call `news`, on the loop, when `fresh` has something to return. It need not
        be called again before the next `fresh`."""
        ...

    def fresh(self) -> list[Entry]:
        """The tuples that have become visible, or available again, since the last call, in that
        order and without those that are gone."""
        ...

    # The disk

    async def flushed(self, position: int) -> None:
        """Return when the changes up to this position are durable."""
        ...

    def flush_soon(self, position: int) -> None:
        """Begin to make the changes up to this position durable."""
        ...

    def close(self) -> None:
        """LIME does not use the engine any more. Its deliveries raise SpaceClosed from now on, if
        it keeps them in doubt on a disk."""
        ...


EngineFactory = Callable[[str, str | None, Clock], TupleEngine]
"""(name, agent, clock): makes the engine for the space of this name: the private space of this
agent, or, for None, the one that all agents of the host share. Leases (`Entry.expires`) are times
of the clock."""


class SpaceEngine:
    """The adapter to a space of Tupelo, by its port."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.durable = port.durable
        self.let_in = port.let_in
        self.entries = port.entries
        self.put_aside = port.put_aside
        self.deliveries_in_doubt = port.deliveries_in_doubt
        self.accepted = port.accepted
        self.end_reaction = port.end_reaction
        self.flushed = port.flushed
        self.flush_soon = port.flush_soon
        self._subscription = port.subscribe(
            ANY, None, None, None, None, backlog_max=BACKLOG_MAX, available=True
        )
        self._waking: _LoopSignal

    def find(
        self, template: Any, limit: int | None, only: Accept | None, known: bool
    ) -> list[Entry]:
        found, position = self.port.get_now(_query(template, limit=limit, known=known, only=only))
        if position:  # A tuple that was read must not vanish in a crash.
            self.port.flush(position)
        return found

    def take(
        self, template: Any, limit: int | None, only: Accept | None, known: bool
    ) -> tuple[list[Entry], int]:
        return self.port.get_now(_query(template, True, limit=limit, known=known, only=only))

    def write(self, item: FrozenEntry, mark: WriteOutcome) -> int:
        return self.port.write_items([item], None, None, None, TaskSignal, 0, mark)[1]

    def react(
        self,
        template: Any,
        function: Callable[[Any, Any], object],
        once: bool,
        existing: bool,
        only: Accept,
        fired: Seen,
    ) -> tuple[EngineReaction, int]:
        return self.port.react(
            template, function, once, existing, only=only, whole=True, fired=fired
        )

    def catch_up(self, entries: list[Entry]) -> int:
        return self.port.catch_up(entries) if self.port.has_reactions else 0

    def listen(self, news: Callable[[], object]) -> None:
        self._waking = _LoopSignal(news)
        self.fresh()

    def fresh(self) -> list[Entry]:
        found: dict[Entry, None] = {}
        while True:
            wait = 0 if self._waking.armed else None
            try:
                notice, _ = self.port.next_notice(self._subscription, self._waking.arm, wait)
            except SpaceClosed:
                return []
            if not isinstance(notice, Notice):
                return [entry for entry in found if not entry.gone]
            found[notice.subject] = None
            if notice.missed:
                found.update(dict.fromkeys(self.port.entries()))

    def close(self) -> None:
        self.port.end_subscription(self._subscription)


class _LoopSignal:
    """The signal of a subscription: calls a function on the loop, from whichever thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.armed = False
        self._call = call
        self._bridge = LoopBridge()

    def arm(self) -> _LoopSignal:
        self.armed = True
        return self

    def wake(self) -> bool:
        self.armed = False
        return self._bridge.soon(self._call)
