"""Waiting: operations that found nothing yet. A waiter is an entry turned around."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tupelo.errors import BadTemplate, Deadlock, TupeloError
from tupelo.space import transaction
from tupelo.space.choosing import Choosing
from tupelo.space.finding import sees
from tupelo.space.order import Order, hides
from tupelo.space.transaction import Txn, may_take
from tupelo.space.undoing import undo
from tupelo.space.writers import Writers
from tupelo.store.plan import Question
from tupelo.store.watchers import Watchers
from tupelo.values.entry import Entry, require_known
from tupelo.values.template import as_template

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.log import Actor
    from tupelo.space.query import Query


class Signal(Protocol):
    """How a shell wakes the one who waits. False: there is nobody left to wake."""

    def wake(self) -> bool: ...


class Waiter:
    """A parked read or take. It is answered once: with entries (perhaps none) or an error."""

    __slots__ = (
        "actor",
        "done",
        "entries",
        "error",
        "order",
        "plain",
        "query",
        "question",
        "signal",
        "since",
        "ticket",
    )

    def __init__(
        self,
        query: Query,
        question: Question,
        ticket: int,
        signal: Signal,
        order: Order | None,
        since: float,
        actor: Actor,
    ) -> None:
        self.query = query
        self.question = question
        self.ticket = ticket
        self.signal = signal
        self.order = order
        self.since = since
        self.actor = actor
        self.plain = (
            query.take
            and query.txn is None
            and not query.test
            and not query.many
            and not query.if_exists
            and query.only is None
            and order is None
        )
        self.done = False
        self.entries: list[Entry] = []
        self.error: Exception | None = None

    def wake(self) -> bool:
        return self.signal.wake()


class Waiting:
    """Everyone who waits at one space, and the rules by which they are served.

    At the end of a step everything that has become available is in place. Then those who wait are
    served in the order in which they came, all readers first (a taker would hide entries from
    them), each with what it would find if it asked at that moment.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.readers: Watchers[Waiter] = Watchers(core.store.shapes)
        self.takers: Watchers[Waiter] = Watchers(core.store.shapes)
        self._conditional: dict[Waiter, None] = {}
        self._transactional: dict[Waiter, None] = {}
        self.choosing = Choosing(core, self)
        self._delivered: dict[Waiter, bool] = {}  # answered, but not yet collected
        self._tickets = 0
        self.writers = Writers(core)
        self.plain_takers = 0  # those who want one entry, outside a transaction

    def __iter__(self) -> Iterator[Waiter]:
        yield from self.readers
        yield from self.takers

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def park(self, query: Query, signal: Signal) -> Waiter:
        """Wait for a match. With `if_exists`, only while a transaction may still reveal one."""
        core, txn = self._core, query.txn
        if query.survey is not None:
            query = query.replace(survey=None)
        if txn is not None or query.if_exists:  # compiled once: it will be asked again and again
            query = query.replace(template=as_template(query.template))
        if txn is not None:
            transaction.require_no_deadlock(core, query, txn)
        waiter = Waiter(
            query,
            core.store.question(query.template),
            query.ticket or self.ticket(),
            signal,
            query.order or core.order,
            core.now(),
            query.actor or core.log.actor,
        )
        if query.if_exists:
            if not query.many and not transaction.blockers(core, query):
                self._delivered[waiter] = waiter.done = True
                return waiter
            self._conditional[waiter] = None
        if txn is not None:
            self._transactional[waiter] = None
        if waiter.order is not None:
            self.choosing.add(waiter)
        (self.takers if query.take else self.readers).add(waiter)
        core.watched += 1
        self.plain_takers += waiter.plain
        return waiter

    def unpark(self, waiter: Waiter) -> None:
        """This waiter waits no more; it was not answered, or it is being answered now."""
        if (self.takers if waiter.query.take else self.readers).discard(waiter):
            self._conditional.pop(waiter, None)
            self.choosing.discard(waiter)
            if waiter.query.txn is not None:
                del self._transactional[waiter]
                self._core.locks_changed = True  # Its wait may have been others' hope.
            self._core.watched -= 1
            self.plain_takers -= waiter.plain

    def hand_over(self, waiter: Waiter, entry: Entry) -> None:
        """An entry that never needs to be stored: it goes straight to a plain taker."""
        core = self._core
        if core.log.on:
            core.log.add("taken", entry, None, core.now() - waiter.since, actor=waiter.actor)
        core.watched -= 1
        self.plain_takers -= 1
        waiter.entries = [entry]
        self._delivered[waiter] = waiter.done = True
        core.woken.append(waiter)

    # Serving

    def serve(self, fresh: list[Entry], left: bool) -> None:
        """These entries have become available, and perhaps others have `left`: hand those who wait
        what they may have."""
        core = self._core
        before, core.running = core.running, "a template"
        try:
            if self.choosing.count:
                self.choosing.serve(fresh, left)
            elif fresh:
                if self.readers:
                    self._serve_readers(fresh)
                if self.takers:
                    self._serve_takers(fresh)
        finally:
            core.running = before
        self.fail_those_who_raised()

    def fail_those_who_raised(self) -> None:
        """Tell those whose templates have raised while they were asked who wants an entry."""
        for watchers in (self.readers, self.takers):
            while watchers.failures:
                self.fail(*watchers.failures.pop())

    def _serve_readers(self, fresh: list[Entry]) -> None:
        wanting = {
            waiter.ticket: (waiter, entry)
            for entry in fresh
            for waiter in self.readers.wanting(entry, partial(sees, entry))
        }
        for ticket in sorted(wanting):
            waiter, entry = wanting[ticket]
            # Another reader of its session may have just seen it.
            if len(fresh) > 1 or sees(entry, waiter):
                self.deliver(waiter, entry, only=len(fresh) == 1)

    def _serve_takers(self, fresh: list[Entry]) -> None:
        """The one who came first is served first; then whoever is first for what is left."""
        queue: list[tuple[int, int, Waiter]] = []
        unserved: set[Waiter] = set()  # Their orders found too little, and there will be less.

        def enqueue(place: int) -> None:
            entry = fresh[place]
            for waiter in self.takers.wanting(entry, partial(sees, entry)):
                if waiter not in unserved and may_take(entry, waiter.query.txn):
                    heapq.heappush(queue, (waiter.ticket, place, waiter))
                    return

        for place in range(len(fresh)):
            enqueue(place)
        while queue:
            _, place, waiter = heapq.heappop(queue)
            if fresh[place].gone:
                continue
            if not waiter.done:
                self.deliver(waiter, fresh[place], only=len(fresh) == 1)
                if not waiter.done:
                    unserved.add(waiter)
            if not fresh[place].gone:
                enqueue(place)

    def deliver(self, waiter: Waiter, entry: Entry | None = None, only: bool = False) -> None:
        """Give a waiter what it would find now, which is the entry if there is `only` that."""
        core, query = self._core, waiter.query
        try:
            if query.if_exists and query.many:
                return  # It wants all there will be when nobody may reveal more: see `recheck`.
            if only and entry and not query.many and _shows_the_only_match(waiter.order):
                if query.known and not entry.shape.plain:
                    require_known(entry)
                entries = [entry]
            else:
                entries = core.find(query)
        except TupeloError as error:
            self.fail(waiter, error)
            return
        if not entries:
            return
        waited = core.now() - waiter.since if core.log.on else 0.0
        self._acquire(waiter, entries, waited)
        self._answer(waiter, entries)

    def _acquire(self, waiter: Waiter, entries: list[Entry], waited: float = 0.0) -> None:
        core, query = self._core, waiter.query
        if not query.test:
            txn = query.txn if query.take else query.holder
            with core.log.by(waiter.actor):
                for entry in entries:
                    core.acquire(entry, query.take, txn, query.session, waited, received=False)

    def _answer(self, waiter: Waiter, entries: list[Entry]) -> None:
        self.unpark(waiter)
        waiter.entries = entries
        self._delivered[waiter] = waiter.done = True
        self._core.woken.append(waiter)

    def fail(self, waiter: Waiter, error: Exception) -> None:
        waiter.error = error
        self._answer(waiter, [])

    def end_within(self, txn: Txn) -> None:
        """Nobody waits in a transaction that has ended, or has promised what it will do."""
        for waiter in [waiter for waiter in self._transactional if waiter.query.txn is txn]:
            self.fail(waiter, txn.refusal())
        self.writers.end_within(txn)

    def recheck(self) -> None:
        """After the locks have changed: who waits in vain?

        Those who wait only while a transaction may reveal a match, if none can any more; and the
        last to come of those whose transactions now wait for each other in a circle.
        """
        core = self._core
        for waiter in list(self._conditional):
            try:
                if not transaction.blockers(core, waiter.query):
                    self._answer_conditional(waiter)
            except TupeloError as error:
                self.fail(waiter, error)
        for waiter in reversed(list(self._transactional)):
            assert waiter.query.txn is not None
            try:
                transaction.require_no_deadlock(core, waiter.query, waiter.query.txn)
            except (Deadlock, BadTemplate) as error:
                self.fail(waiter, error)
        if core.left and self.choosing.count:  # One who wanted all has taken it.
            self.serve([], left=True)

    def _answer_conditional(self, waiter: Waiter) -> None:
        """Nobody can reveal a match any more: one who wanted one gets none, and one who wanted
        all gets what there is."""
        core, query, found = self._core, waiter.query, []
        if query.many:
            found = core.find(query)
            self._acquire(waiter, found)
        self._answer(waiter, found)

    # After the answer

    def received(self, waiter: Waiter) -> bool:
        """The one who waited has what it was given, and there is no way back; or the space was
        closed before, and it has nothing. Whoever removes the waiter decides, without a lock."""
        return self._delivered.pop(waiter, False)

    def refused(self, waiter: Waiter) -> None:
        """The one who waited has vanished. If it had been answered, undo that."""
        self._delivered.pop(waiter, None)
        if not waiter.done:
            self.unpark(waiter)
        entries, waiter.entries = waiter.entries, []
        for entry in entries:
            undo(self._core, entry, waiter.query)

    def close(self, error: Exception) -> None:
        """Whoever still waits is told, and what was not collected yet stays in the space."""
        for waiter in [*self._delivered]:
            if self._delivered.pop(waiter, False):
                self.refused(waiter)
                waiter.error = waiter.error or error
        for waiter in self:
            self.fail(waiter, error)
        self.writers.close(error)


def _shows_the_only_match(order: Order | None) -> bool:
    """Need this order not be asked, if there is only one match?"""
    return order is None or (not hides(order) and order.needs(1) == 1)
