"""Waiting: operations that found nothing yet. A waiter is an entry turned around."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tupelo.errors import BadTemplate, Deadlock, TransactionEnded, TupeloError
from tupelo.space import transaction
from tupelo.space.transaction import Txn, may_take
from tupelo.space.undoing import undo
from tupelo.space.writers import Writers
from tupelo.store.plan import Question
from tupelo.store.watchers import Watchers
from tupelo.values.entry import Entry, Shape, require_known
from tupelo.values.template import as_template

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.log import Actor
    from tupelo.space.order import Order
    from tupelo.space.session import SessionState


class Signal(Protocol):
    """How a shell wakes the one who waits. False: there is nobody left to wake."""

    def wake(self) -> bool: ...


class Waiter:
    """A parked read or take. It is answered once: with entries (perhaps none) or an error.

    `limit` is None for an operation on one entry, else the most that a bulk operation may get.
    """

    __slots__ = (
        "actor",
        "done",
        "entries",
        "error",
        "if_exists",
        "known",
        "limit",
        "order",
        "plain",
        "question",
        "raw",
        "session",
        "signal",
        "since",
        "take",
        "ticket",
        "txn",
    )

    def __init__(
        self,
        raw: Any,
        question: Question,
        ticket: int,
        signal: Signal,
        *,
        take: bool,
        txn: Txn | None,
        order: Order | None,
        session: SessionState | None,
        limit: int | None,
        if_exists: bool,
        since: float,
        known: bool,
        actor: Actor,
    ) -> None:
        self.actor = actor
        self.raw = raw
        self.question = question
        self.ticket = ticket
        self.signal = signal
        self.take = take
        self.txn = txn
        self.order = order
        self.session = session
        self.limit = limit
        self.if_exists = if_exists
        self.since = since
        self.known = known
        self.plain = take and txn is None and limit is None and not if_exists and order is None
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
        self._readers: Watchers[Waiter] = Watchers(core.store.shapes)
        self._takers: Watchers[Waiter] = Watchers(core.store.shapes)
        self._conditional: dict[Waiter, None] = {}
        self._transactional: dict[Waiter, None] = {}
        self._choosy: dict[Waiter, None] = {}  # whose orders may leave matches out
        self._delivered: dict[Waiter, bool] = {}  # answered, but not yet collected
        self._tickets = 0
        self.writers = Writers(core)
        self.plain_takers = 0  # those who want one entry, outside a transaction

    def __iter__(self) -> Iterator[Waiter]:
        yield from self._readers
        yield from self._takers

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def park(
        self,
        raw: Any,
        signal: Signal,
        *,
        take: bool,
        txn: Txn | None = None,
        order: Order | None = None,
        session: SessionState | None = None,
        limit: int | None = None,
        if_exists: bool = False,
        known: bool = True,
    ) -> Waiter:
        """Wait for a match. With `if_exists`, only while a transaction may still reveal one."""
        core = self._core
        if txn is not None or if_exists:
            raw = as_template(raw)  # compiled once: it will be asked again and again
        if txn is not None:
            transaction.require_no_deadlock(core, raw, take, txn)
        waiter = Waiter(
            raw,
            core.store.question(raw),
            self.ticket(),
            signal,
            take=take,
            txn=txn,
            order=order or core.order,
            session=session,
            limit=limit,
            if_exists=if_exists,
            since=core.now() if core.log.on else 0.0,
            known=known,
            actor=core.log.actor,
        )
        if if_exists:
            if limit is None and not transaction.blockers(core, raw, take, txn):
                self._delivered[waiter] = waiter.done = True
                return waiter
            self._conditional[waiter] = None
        if txn is not None:
            self._transactional[waiter] = None
        if _chooses(waiter.order):
            self._choosy[waiter] = None
        (self._takers if take else self._readers).add(waiter)
        core.watched += 1
        self.plain_takers += waiter.plain
        return waiter

    def unpark(self, waiter: Waiter) -> None:
        """This waiter waits no more; it was not answered, or it is being answered now."""
        if (self._takers if waiter.take else self._readers).discard(waiter):
            self._conditional.pop(waiter, None)
            self._choosy.pop(waiter, None)
            if waiter.txn is not None:
                del self._transactional[waiter]
                self._core.locks_changed = True  # Its wait may have been others' hope.
            self._core.watched -= 1
            self.plain_takers -= waiter.plain

    def plain_taker(self, shape: Shape, fields: tuple[Any, ...]) -> Any:
        """Of plain takers, the one whose turn it is, which then waits no more; None if none wants
        the entry; or NotImplemented."""
        return self._takers.take_first(shape, fields)

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

    def serve(self, fresh: list[Entry]) -> None:
        """These entries have become available: hand them to those who wait."""
        core = self._core
        before, core.running = core.running, "a template"
        try:
            if self._readers:
                self._serve_readers(fresh)
            if self._takers:
                self._serve_takers(fresh)
        finally:
            core.running = before
        for watchers in (self._readers, self._takers):
            while watchers.failures:
                self.fail(*watchers.failures.pop())

    def _serve_readers(self, fresh: list[Entry]) -> None:
        wanting = {
            waiter.ticket: (waiter, entry)
            for entry in fresh
            for waiter in self._readers.wanting(entry, partial(_sees, entry))
        }
        for ticket in sorted(wanting):
            waiter, entry = wanting[ticket]
            # Another reader of its session may have just seen it.
            if len(fresh) > 1 or _sees(entry, waiter):
                self._deliver(waiter, entry, only=len(fresh) == 1)

    def _serve_takers(self, fresh: list[Entry]) -> None:
        """The one who came first is served first; then whoever is first for what is left."""
        queue: list[tuple[int, int, Waiter]] = []
        unserved: set[Waiter] = set()  # Their orders found too little, and there will be less.

        def enqueue(place: int) -> None:
            entry = fresh[place]
            for waiter in self._takers.wanting(entry, partial(_sees, entry)):
                if waiter not in unserved and may_take(entry, waiter.txn):
                    heapq.heappush(queue, (waiter.ticket, place, waiter))
                    return

        for place in range(len(fresh)):
            enqueue(place)
        while queue:
            _, place, waiter = heapq.heappop(queue)
            if fresh[place].gone:
                continue
            if not waiter.done:
                self._deliver(waiter, fresh[place], only=len(fresh) == 1)
                if not waiter.done:
                    unserved.add(waiter)
            if not fresh[place].gone:
                enqueue(place)

    def ask_again(self) -> None:
        """Something has left, and orders that choose may now choose what they did not."""
        for waiter in list(self._choosy):
            if not waiter.done:
                self._deliver(waiter, None, only=False)

    def _deliver(self, waiter: Waiter, entry: Entry | None, only: bool) -> None:
        """Give a waiter what it would find now, which is the entry if there is `only` that."""
        core = self._core
        try:
            if waiter.if_exists and waiter.limit is not None:
                return  # It wants all there will be when nobody may reveal more: see `recheck`.
            if only and entry and waiter.limit is None and not _chooses(waiter.order):
                if waiter.known and not entry.shape.plain:
                    require_known(entry)
                entries = [entry]
            else:
                limit = 1 if waiter.limit is None else waiter.limit
                entries = core.find(
                    waiter.raw,
                    limit,
                    waiter.take,
                    waiter.txn,
                    waiter.order,
                    waiter.session,
                    waiter.known,
                )
        except TupeloError as error:
            self.fail(waiter, error)
            return
        if not entries:
            return
        waited = core.now() - waiter.since if core.log.on else 0.0
        with core.log.by(waiter.actor):
            for found in entries:
                core.acquire(found, waiter.take, waiter.txn, waiter.session, waited, received=False)
        self._answer(waiter, entries)

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
        for waiter in [waiter for waiter in self._transactional if waiter.txn is txn]:
            self.fail(waiter, TransactionEnded(txn.id, txn.state, txn.reason))
        self.writers.end_within(txn)

    def recheck(self) -> None:
        """After the locks have changed: who waits in vain?

        Those who wait only while a transaction may reveal a match, if none can any more; and the
        last to come of those whose transactions now wait for each other in a circle.
        """
        core = self._core
        for waiter in list(self._conditional):
            try:
                if not transaction.blockers(core, waiter.raw, waiter.take, waiter.txn):
                    self._answer_conditional(waiter)
            except TupeloError as error:
                self.fail(waiter, error)
        for waiter in reversed(list(self._transactional)):
            assert waiter.txn is not None
            try:
                transaction.require_no_deadlock(core, waiter.raw, waiter.take, waiter.txn)
            except (Deadlock, BadTemplate) as error:
                self.fail(waiter, error)

    def _answer_conditional(self, waiter: Waiter) -> None:
        """Nobody can reveal a match any more: one who wanted one gets none, and one who wanted
        all gets what there is."""
        core = self._core
        found = []
        if waiter.limit is not None:
            found = core.find(
                waiter.raw,
                waiter.limit,
                waiter.take,
                waiter.txn,
                waiter.order,
                None,
                waiter.known,
            )
            with core.log.by(waiter.actor):
                for entry in found:
                    core.acquire(entry, waiter.take, waiter.txn, None, received=False)
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
            undo(self._core, entry, waiter.take, waiter.txn, waiter.session)

    def close(self, error: Exception) -> None:
        """Whoever still waits is told, and what was not collected yet stays in the space."""
        for waiter in [*self._delivered]:
            if self._delivered.pop(waiter, False):
                self.refused(waiter)
                waiter.error = waiter.error or error
        for waiter in self:
            self.fail(waiter, error)
        self.writers.close(error)


def _chooses(order: Order | None) -> bool:
    """May this order leave out a match, even if there is only one?"""
    return order is not None and order.needs(1) != 1


def _sees(entry: Entry, waiter: Waiter) -> bool:
    session = waiter.session
    if session is not None and entry in session.seen:
        return False
    writer: Txn | None = entry.txn
    return writer is None or (waiter.txn is not None and writer in waiter.txn.line())
