"""Operations: what both doors do, up to the point where one blocks a thread and the other awaits.

Arguments are checked, the core is asked under the lock, the step is settled. An operation that
must wait answers with a Waiter, and one whose caller must wait for the disk with a position.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tupelo.errors import BadArgument, BadEntry, Refused
from tupelo.space import transaction
from tupelo.space.checks import check_limit, check_order, check_wait
from tupelo.space.engine import Engine
from tupelo.space.handing import Handings
from tupelo.space.holdings import Holdings, Transactional
from tupelo.space.log import Actor
from tupelo.space.order import Order
from tupelo.space.session import SessionState
from tupelo.space.transaction import Txn
from tupelo.space.undoing import undo
from tupelo.space.waiting import Signal, Waiter
from tupelo.space.writers import Asked, Items, Mark, Places, Writer
from tupelo.store.index import Accept
from tupelo.values.codec import encode_entry
from tupelo.values.entry import Entry, freeze, plain_shapes, thaw, types_of
from tupelo.values.kind import is_typed
from tupelo.values.lease import Lease, check_lease


class Operations(Holdings):
    """The operations of one space: writing, reading and taking, and what else a program holds."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.handings = Handings(engine)
        engine.on_close = self.handings.take_all_back
        self._spells = engine.saved is not None
        self._acquire = engine.lock.acquire
        self._release = engine.lock.release
        self.journaled = engine.journal is not None

    # The short way, which most operations on most spaces can take. The lock's bound methods cost
    # half of what a `with` does.

    def write_plainly(self, entry: object, actor: Actor | None = None) -> Lease | None:
        """Write to a plain space. None: it takes the longer way, and nothing was done."""
        core = self.core
        if type(entry) is tuple:
            shape = plain_shapes.get(types_of(entry))
            fields = entry
            if shape is None:
                return None
        elif core.plain and is_typed(entry):
            shape, fields = freeze(entry)
        else:
            return None
        payload = encode_entry(shape, fields) if self._spells else None
        self._acquire()
        try:
            if not core.plain:
                return None
            written = core.write_plainly(shape, fields, payload, actor)
            if core.woken:
                if core.woken[0].wake():  # There is one at most: the plain taker.
                    core.woken.clear()
                else:
                    self.engine.wake()
            if self.journaled:
                self.engine.keep_changes()
        finally:
            self._release()
        return None if written is None else Lease(self, written)

    def get_plainly(self, template: Any, take: bool) -> Any:
        """The fields of a match in a plain space, or None. NotImplemented: take the longer way."""
        if self.journaled:
            return NotImplemented
        core = self.core
        self._acquire()
        try:
            if not core.plain:
                return NotImplemented
            entry = core.store.first_plainly(template, take)
            if core.books is not None and take and isinstance(entry, Entry):
                core.books.forget(entry)
        finally:
            self._release()
        if entry is None or entry is NotImplemented:
            return entry
        shape = entry.shape
        return entry.fields if shape.plain else thaw(shape, entry.fields)

    # Writing

    def write(
        self,
        entry: object,
        lease: float | None,
        txn: Transactional | None,
        at: Any,
        signal: Callable[[], Signal],
        wait: float | None,
        mark: Mark | None = None,
    ) -> tuple[list[Lease] | Writer, int]:
        item = freeze(entry)
        if lease is not None:
            lease = check_lease(lease)
        places = None if at is None else [at]
        return self.write_items([item], lease, txn, places, signal, wait, mark)

    def write_all(
        self,
        entries: Iterable[object],
        lease: Asked,
        txn: Transactional | None,
        at: Sequence[Any] | None,
        signal: Callable[[], Signal],
        wait: float | None,
        mark: Mark | None = None,
    ) -> tuple[list[Lease] | Writer, int]:
        if isinstance(entries, (str, bytes, dict)) or not isinstance(entries, Iterable):
            raise BadArgument("entries", "a list of entries", entries)
        items = []
        for i, entry in enumerate(entries):
            try:
                items.append(freeze(entry))
            except BadEntry as error:
                raise BadEntry(
                    f"entry {i}: {error}", where=f"entry {i}, {error.where}", found=error.found
                ) from None
        if at is not None and (not isinstance(at, (list, tuple)) or len(at) != len(items)):
            raise BadArgument("at", "a list with a place for each entry", at)
        if not isinstance(lease, list):
            lease = check_lease(lease)
        elif len(lease) != len(items):
            raise BadArgument("lease", f"one lease, or a list of {len(items)}", lease)
        else:
            lease = [check_lease(seconds) for seconds in lease]
        return self.write_items(items, lease, txn, at, signal, wait, mark)

    def write_items(
        self,
        items: Items,
        lease: Asked,
        txn: Transactional | None,
        at: Places,
        signal: Callable[[], Signal],
        wait: float | None,
        mark: Mark | None = None,
    ) -> tuple[list[Lease] | Writer, int]:
        """The leases of what was written, or a writer that waits; the position to make durable."""
        check_wait(wait)
        core = self.core
        with self._lock:
            self.engine.begin()
            before = core.log.position
            try:
                state = self.state_of(txn)
                written = core.write_all(items, lease, state, at, mark)
            except Refused as refusal:
                if wait == 0 or refusal.hopeless:
                    raise
                writers = core.waiting.writers
                return writers.park(items, lease, state, at, signal(), refusal, mark), 0
            finally:
                self.engine.settle()
            position = core.log.position
            leases = [Lease(self, entry) for entry in written]
            return leases, 0 if position == before else position

    def written(self, writer: Writer) -> tuple[list[Lease], int]:
        """The outcome of a write that has waited long enough: what it wrote, or why it did not."""
        if not writer.done:
            with self._lock:
                self.core.waiting.writers.unpark(writer)
        if writer.entries is None:
            raise writer.error
        return [Lease(self, entry) for entry in writer.entries], writer.position

    def stop_writing(self, writer: Writer) -> None:
        """The one who waited is gone. What was not written by now never will be."""
        with self._lock:
            self.core.waiting.writers.unpark(writer)

    # Reading and taking

    def get(
        self,
        template: Any,
        signal: Callable[[], Signal],
        take: bool,
        wait: float | None,
        txn: Transactional | None = None,
        order: Order | None = None,
        if_exists: bool = False,
        session: SessionState | None = None,
        known: bool = True,
        reserve: bool = False,
    ) -> tuple[Entry | Waiter | None, int]:
        """One match, or None, or a waiter; and the position to make durable before it is shown.

        What is taken in `reserve` may yet be given back: see `handing`.
        """
        if wait is not None:
            check_wait(wait)
        if order is not None:
            check_order(order)
        core = self.core
        with self._lock:
            plainly = txn is None and order is None and session is None and core.plain
            if plainly and not (reserve and core.books is not None):
                entry = core.first_plainly(template, take)
                if entry is not NotImplemented:
                    if entry is not None and self.journaled:
                        self.engine.keep_changes()
                        return entry, self._position(take, None, [entry])
                    if entry is not None or wait == 0:
                        return entry, 0
                    waiter = core.waiting.park(
                        template, signal(), take=take, if_exists=if_exists, known=known
                    )
                    core.plain = waiter.plain
                    return waiter, 0
            self.engine.begin()
            try:
                state = self.state_of(txn)
                entry = core.get(
                    template,
                    take=take,
                    txn=state,
                    order=order,
                    session=session,
                    received=not (self.journaled or reserve),
                    known=known,
                )
                if entry is None and wait != 0:
                    return (
                        core.waiting.park(
                            template,
                            signal(),
                            take=take,
                            txn=state,
                            order=order,
                            session=session,
                            if_exists=if_exists,
                            known=known,
                        ),
                        0,
                    )
                if not self.journaled or entry is None:
                    return entry, 0
                return entry, self._position(take, state, [entry])
            finally:
                self.engine.settle()

    def get_all(
        self,
        template: Any,
        signal: Callable[[], Signal],
        take: bool,
        wait: float | None,
        limit: int | None = None,
        txn: Transactional | None = None,
        order: Order | None = None,
        session: SessionState | None = None,
        if_exists: bool = False,
        known: bool = True,
        only: Accept | None = None,
        reserve: bool = False,
    ) -> tuple[list[Entry] | Waiter, int]:
        check_wait(wait)
        check_limit(limit)
        if order is not None:
            check_order(order)
        core = self.core
        state = self.state_of(txn)

        def park() -> Waiter:
            most = sys.maxsize if limit is None else limit
            return core.waiting.park(
                template,
                signal(),
                take=take,
                txn=state,
                order=order,
                session=session,
                limit=most,
                if_exists=if_exists,
                known=known,
            )

        def work() -> tuple[list[Entry] | Waiter, int]:
            if if_exists and wait != 0 and transaction.blockers(core, template, take, state):
                return park(), 0  # There may be more to come, or fewer.
            found = core.get_all(
                template,
                take=take,
                limit=limit,
                txn=state,
                order=order,
                session=session,
                received=not (self.journaled or reserve),
                known=known,
                only=only,
            )
            if not found and wait != 0 and not if_exists:
                return park(), 0
            return found, self._position(take, state, found)

        return self._step(work)[0]

    def take_entry(self, entry: Entry, txn: Txn) -> bool:
        """Take this very entry; False if it is gone or held."""

        def work() -> bool:
            if entry.gone or entry.txn is not None or not transaction.may_take(entry, txn):
                return False
            self.core.acquire(entry, True, txn, None)
            return True

        return self._step(work)[0]

    def count(self, template: Any, txn: Transactional | None) -> int:
        return self._step(lambda: self.core.count(template, self.state_of(txn)))[0]

    def give_up(self, waiter: Waiter) -> bool:
        """Patience is at an end. True if the answer came just before that."""
        if not waiter.done:
            with self._lock:
                if not waiter.done:
                    self.core.waiting.unpark(waiter)
                    if waiter.txn is not None and not self.core.closed:
                        self.engine.settle()
                    return False
        return True

    def vanish(self, waiter: Waiter) -> None:
        """The one who waited is gone (cancelled, interrupted); nothing may be lost with it."""
        with self._lock:
            if self.core.closed:
                return
            self.core.waiting.refused(waiter)
            position = self.engine.settle()
        self.engine.flush(position)

    def unget(
        self, entries: list[Entry], take: bool, txn: Txn | None, session: SessionState | None
    ) -> int:
        """The one who was given these did not get them: what was taken goes back, unless its
        transaction has ended, and the session has not seen what was read. The position to make
        durable."""

        def work() -> None:
            for entry in entries:
                if take or self.core.store.at(entry.arrival) is entry:
                    undo(self.core, entry, take, txn, session)
                elif session is not None:  # It is gone, or of another space of this name.
                    session.seen.discard(entry)

        return self._step(work)[1]

    def collect(self, waiter: Waiter, reserve: bool = False) -> tuple[list[Entry], int]:
        """The answer of a waiter that was woken, and the position to make durable."""
        waiting = self.core.waiting
        if not waiting.received(waiter):
            with self._lock:  # until whoever has closed the space has told the waiter
                pass
        if waiter.error is not None:
            raise waiter.error
        if not self.journaled:
            if not reserve:
                self._forget_taken(waiter)
            return waiter.entries, 0
        with self._lock:
            position = self._position(waiter.take, waiter.txn, waiter.entries)
        if not position and not reserve:
            self._forget_taken(waiter)
        return waiter.entries, position

    def _forget_taken(self, waiter: Waiter) -> None:
        """It was received without a wait for the disk."""
        if waiter.take and waiter.txn is None:
            self.handings.taken(waiter.entries)

    def _position(self, take: bool, txn: Txn | None, entries: list[Entry]) -> int:
        """What must be durable before these may be shown to the one who asked."""
        if take and txn is None:
            return self.core.log.position
        return self.engine.position_for(entries)


def value_of(entry: Entry) -> Any:
    """What the reader of an entry gets."""
    return entry.fields if entry.shape.plain else thaw(entry.shape, entry.fields)
