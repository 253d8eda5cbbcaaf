"""Waiting: operations that found nothing yet. A waiter is an entry turned around."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from tupelo.errors import TupeloError
from tupelo.space import transaction
from tupelo.space.transaction import Txn, may_take
from tupelo.store.plan import Question
from tupelo.store.watchers import Watchers
from tupelo.values.entry import Entry, require_known

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.session import SessionState


class Signal(Protocol):
    """How a shell wakes the one who waits. False: there is nobody left to wake."""

    def wake(self) -> bool: ...


class Waiter:
    """A parked read or take. It is answered once: with entries (perhaps none) or an error.

    `limit` is None for an operation on one entry, else the most that a bulk operation may get.
    """

    __slots__ = (
        "done",
        "entries",
        "error",
        "if_exists",
        "limit",
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
        session: SessionState | None,
        limit: int | None,
        if_exists: bool,
        since: float,
    ) -> None:
        self.raw = raw
        self.question = question
        self.ticket = ticket
        self.signal = signal
        self.take = take
        self.txn = txn
        self.session = session
        self.limit = limit
        self.if_exists = if_exists
        self.since = since
        self.done = False
        self.entries: list[Entry] = []
        self.error: Exception | None = None

    def wake(self) -> bool:
        return self.signal.wake()


class Waiting:
    """Everyone who waits at one space, and the rules by which they are served."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._readers: Watchers[Waiter] = Watchers()
        self._takers: Watchers[Waiter] = Watchers()
        self._conditional: dict[Waiter, None] = {}
        self._tickets = 0

    def park(
        self,
        raw: Any,
        signal: Signal,
        *,
        take: bool,
        txn: Txn | None = None,
        session: SessionState | None = None,
        limit: int | None = None,
        if_exists: bool = False,
    ) -> Waiter:
        """Wait for a match. With `if_exists`, only while a transaction may still reveal one."""
        if txn is not None:
            transaction.require_no_deadlock(self._core, raw, take, txn)
        waiter = Waiter(
            raw,
            self._core.store.question(raw),
            self.ticket(),
            signal,
            take=take,
            txn=txn,
            session=session,
            limit=limit,
            if_exists=if_exists,
            since=self._core.now() if self._core.log.on else 0.0,
        )
        if if_exists:
            if not transaction.blockers(self._core, raw, take, txn):
                waiter.done = True
                return waiter
            self._conditional[waiter] = None
        (self._takers if take else self._readers).add(waiter)
        self._core.watched += 1
        return waiter

    def __iter__(self) -> Iterator[Waiter]:
        yield from self._readers
        yield from self._takers

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def unpark(self, waiter: Waiter) -> None:
        """This waiter waits no more; it was not answered, or it is being answered now."""
        watchers = self._takers if waiter.take else self._readers
        if waiter in watchers:
            watchers.discard(waiter)
            self._conditional.pop(waiter, None)
            self._core.watched -= 1

    def offer(self, entry: Entry) -> None:
        """An entry can be had: all readers who want it first (a taker would hide it from them)."""
        core = self._core
        before, core.running = core.running, "a template"
        try:
            self._offer(entry)
        finally:
            core.running = before

    def _offer(self, entry: Entry) -> None:
        if self._readers:
            for waiter in list(self._readers.wanting(entry)):
                if _sees(waiter, entry):
                    self._deliver(waiter, entry)
        if self._takers:
            for waiter in self._takers.wanting(entry):
                if _sees(waiter, entry) and may_take(entry, waiter.txn):
                    self._deliver(waiter, entry)
                    break
        for watchers in (self._readers, self._takers):
            while watchers.failures:
                waiter, error = watchers.failures.pop()
                self.fail(waiter, error)

    def _deliver(self, waiter: Waiter, entry: Entry) -> None:
        try:
            if not entry.shape.plain:
                require_known(entry)
            if waiter.limit is None:
                entries = [entry]
            else:
                limit, session = waiter.limit, waiter.session
                entries = self._core.find(waiter.raw, limit, waiter.take, waiter.txn, None, session)
        except TupeloError as error:
            self.fail(waiter, error)
            return
        core = self._core
        waited = core.now() - waiter.since if core.log.on else 0.0
        for found in entries:
            core.acquire(found, waiter.take, waiter.txn, waiter.session, waited, received=False)
        self._answer(waiter, entries)

    def _answer(self, waiter: Waiter, entries: list[Entry]) -> None:
        self.unpark(waiter)
        waiter.entries = entries
        waiter.done = True
        self._core.woken.append(waiter)

    def fail(self, waiter: Waiter, error: Exception) -> None:
        waiter.error = error
        self._answer(waiter, [])

    def received(self, waiter: Waiter) -> None:
        """The one who waited has what it was given; there is no way back."""
        if waiter.take and waiter.txn is None:
            for entry in waiter.entries:
                self._core.pruning.gone(entry)

    def refused(self, waiter: Waiter) -> None:
        """The one who waited has vanished. If it had been answered, undo that."""
        if not waiter.done:
            self.unpark(waiter)
            return
        for entry in reversed(waiter.entries):
            txn = waiter.txn
            if waiter.session is not None:
                waiter.session.seen.discard(entry)
            if not waiter.take:
                continue
            if txn is None:
                self._core.take_back(entry)
            elif entry in txn.taken and self._core.give_back(entry, txn.taken.pop(entry)):
                self._core.visible_again(entry)
        if not waiter.take and waiter.session is not None:
            for entry in waiter.entries:
                if not entry.gone:
                    self.offer(entry)

    def recheck(self) -> None:
        """Those who wait only while a transaction may reveal a match: is there still one?"""
        for waiter in list(self._conditional):
            if not transaction.blockers(self._core, waiter.raw, waiter.take, waiter.txn):
                self._answer(waiter, [])


def _sees(waiter: Waiter, entry: Entry) -> bool:
    session = waiter.session
    if session is not None and entry in session.seen:
        return False
    writer: Txn | None = entry.txn
    return writer is None or (waiter.txn is not None and writer in waiter.txn.line())
