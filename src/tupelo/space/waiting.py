"""Waiting: reads and takes without a match, and writes without room, and how they are served.

With an order that may leave matches out (`Choosing`), an entry that leaves may reveal another one.
Then the waiters are served from the top: all readers, then the first taker that can be served, and
again from the top until nothing changes. A head-only order shows one entry, so only the waiters for
that entry are tried. Any other order is tried for each waiting operation when an entry has left,
and with books also when one has come: see docs/ORDERS.md.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tupelo.errors import BadArgument, BadTemplate, Deadlock, Refused, TupeloError
from tupelo.space import transaction
from tupelo.space.order import Order, Queue, Stack, hides
from tupelo.space.query import Query
from tupelo.space.search import sees
from tupelo.space.transaction import Txn, may_take
from tupelo.store.plan import Question
from tupelo.store.watchers import Watchers
from tupelo.values.entry import Entry, FrozenEntry, require_known
from tupelo.values.parts import ANY
from tupelo.values.template import as_template

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.log import Actor


Items = list[FrozenEntry]
RequestedLease = float | None | list[float | None]
"""The requested lease: one for all entries, or one for each."""
Places = Sequence[Any] | None
"""The place of each entry, for orders with places."""


class WriteOutcome(msgspec.Struct, frozen=True):
    """The origin and number of an entry that comes from another host, the agent that the entry is
    for, and how often it came back there."""

    origin: str | None = None
    n: int | None = None
    to: str | None = None
    deliveries: int = 0

    def put_on(self, entry: Entry) -> Entry:
        if self.origin is not None:
            entry.origin = self.origin
        if self.n is not None:
            entry.n = self.n
        entry.to = self.to
        entry.deliveries = self.deliveries
        return entry


def admit(core: Core, entries: list[Entry], at: Places, txn: Txn | None) -> None:
    """Refuse entries that do not fit, before anything is changed; otherwise reserve their
    places."""
    if at is not None and (core.books is None or not core.books.keeps_books):
        raise BadArgument("at", "left out: only a space whose order keeps places has them", at)
    if core.room is not None:
        taken = [entry for above in txn.line() for entry in above.taken] if txn else ()
        core.room.require(entries, core.store, taken)
    if core.books is not None:
        for i, entry in enumerate(entries):
            try:
                core.books.admit(entry, None if at is None else at[i])
            except BaseException:
                for admitted in entries[:i]:
                    core.books.forget(admitted)
                raise
    if core.room is not None:
        core.room.add(entries)


class Writer:
    """A waiting write. It is answered once: with the written entries or an error."""

    __slots__ = (
        "actor",
        "at",
        "delay",
        "done",
        "entries",
        "error",
        "items",
        "lease",
        "mark",
        "position",
        "signal",
        "txn",
    )

    def __init__(
        self,
        items: Items,
        lease: RequestedLease,
        txn: Txn | None,
        at: Places,
        signal: Signal,
        refusal: Refused,
        mark: WriteOutcome | None,
        actor: Actor,
        delay: float | None,
    ) -> None:
        self.actor = actor
        self.delay = delay
        self.items = items
        self.lease = lease
        self.txn = txn
        self.at = at
        self.signal = signal
        self.mark = mark
        self.error: Exception = refusal  # the last refusal, until it is answered
        self.done = False
        self.entries: list[Entry] | None = None
        self.position = 0

    def wake(self) -> bool:
        return self.signal.wake()


class Writers:
    """The waiting writes of one space, in order."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: dict[Writer, None] = {}
        self._serving = False
        self.may_go = False  # An entry has left, or locks have changed.

    @property
    def ready(self) -> bool:
        """Whether waiting writes should be tried again."""
        return self.may_go and bool(self._waiting) and not self._serving

    def __iter__(self) -> Iterator[Writer]:
        return iter(list(self._waiting))

    def park(self, writer: Writer) -> None:
        self._waiting[writer] = None
        self._core.watched += 1

    def unpark(self, writer: Writer) -> None:
        if self._waiting.pop(writer, True) is None:
            self._core.watched -= 1

    def serve(self) -> None:
        """Try the waiting writes again, after entries have left."""
        self._serving = True  # Entries that leave during a write are considered after it.
        try:
            self.may_go = False
            for writer in self:
                if not writer.done:
                    self._try(writer)
        finally:
            self._serving = False

    def _try(self, writer: Writer) -> None:
        core = self._core
        before = core.log.position
        try:
            with core.log.by(writer.actor):
                written = core.write_all(
                    writer.items, writer.lease, writer.txn, writer.at, writer.mark, writer.delay
                )
        except Refused as error:
            writer.error = error
            if error.hopeless:
                self._answer(writer)
        except Exception as error:  # the error of the writer, not of this step
            self.fail(writer, error)
        else:
            if not writer.done:
                writer.entries = written
                writer.position = core.log.position if core.log.position != before else 0
                self._answer(writer)

    def _answer(self, writer: Writer) -> None:
        self.unpark(writer)
        writer.done = True
        self._core.woken.append(writer)

    def fail(self, writer: Writer, error: Exception) -> None:
        if not writer.done:
            writer.error = error
            self._answer(writer)

    def end_within(self, txn: Txn) -> None:
        for writer in self:
            if writer.txn is txn:
                self.fail(writer, txn.refusal())

    def close(self, error: Exception) -> None:
        for writer in self:
            self.fail(writer, error)


Head = tuple[Order | type[Order], "Txn | None"]
"""The order and the transaction, which decide which entry is the head."""

_ticket = attrgetter("ticket")


class Peek:
    """A query with an order that may leave matches out; `hint` is called when there is a match."""

    def __init__(self, raw: Any, order: Order, hint: Callable[[], object]) -> None:
        self.order = order
        self._raw = raw
        self._hint = hint

    def ask(self, core: Core) -> None:
        try:
            found = core.find(Query(self._raw, order=self.order, known=False))
        except TupeloError:
            self._hint()  # The error is raised when the caller queries again.
        else:
            if found:
                self._hint()


class Choosing:
    """Waiting operations with orders that may leave matches out, and peeks; `count` is their
    number."""

    def __init__(self, core: Core, waiting: Waiting) -> None:
        self._core = core
        self._waiting = waiting
        # The waiters for each head. An OrderedDict finds its first key quickly after many
        # deletions.
        self._heads: dict[Head, OrderedDict[Waiter, None]] = {}
        self._for_heads = 0  # their number
        self._others: dict[Waiter, None] = {}  # whose orders are not head-only
        self._shown: dict[Head, Entry] = {}  # the present heads
        self._peeks: dict[Peek, None] = {}
        self.count = 0

    def add(self, waiter: Waiter) -> None:
        """Add a waiter in the order of its ticket; ignored if its order shows all matches."""
        if waiter.order is not None and waiter.order.head_only:
            self._heads.setdefault(_head(waiter), OrderedDict())[waiter] = None
            self._for_heads += 1
            self.count += 1
        elif hides(waiter.order):
            self._others[waiter] = None
            self.count += 1

    def discard(self, waiter: Waiter) -> None:
        """Remove a waiter that was added."""
        if not hides(waiter.order):
            return
        self.count -= 1
        if waiter in self._others:
            del self._others[waiter]
        else:
            head = _head(waiter)
            waiters = self._heads[head]
            del waiters[waiter]
            self._for_heads -= 1
            if not waiters:
                del self._heads[head]

    def peek(self, raw: Any, order: Order | None, hint: Callable[[], object]) -> Peek | None:
        """Call `hint`, under the lock, whenever the order may show a match that it left out before.
        None if the order shows all matches."""
        order = order or self._core.order
        if order is None or not hides(order):
            return None
        peek = Peek(raw, order, hint)
        self._peeks[peek] = None
        self.count += 1
        return peek

    def end_peek(self, peek: Peek) -> None:
        if self._peeks.pop(peek, peek) is None:
            self.count -= 1

    # Serving

    def serve(self, fresh: list[Entry], left: bool) -> None:
        """Serve the waiters after these entries became available and perhaps others have `left`."""
        while True:
            offers = self._offers(fresh)
            self._serve_readers(offers, left)
            served = self._serve_first_taker(offers, left)
            self._waiting.fail_raised()
            if not served:
                break
            left = True
        for peek in list(self._peeks):
            if left or peek.order.keeps_books:
                peek.ask(self._core)

    def _offers(self, fresh: list[Entry]) -> list[Entry]:
        """The entries to offer: the heads of head-only orders, and the fresh ones unless all
        waiters have such orders."""
        self._shown.clear()
        for head, waiters in list(self._heads.items()):
            one = next(iter(waiters))
            try:
                found = self._core.find(Query(ANY, txn=one.query.txn, order=one.order, known=False))
            except TupeloError as error:
                for waiter in list(waiters):
                    self._waiting.fail(waiter, error)
            else:
                self._shown.update((head, entry) for entry in found)
        offers = dict.fromkeys(self._shown.values())
        if len(self._waiting.readers) + len(self._waiting.takers) > self._for_heads:
            offers.update(dict.fromkeys(entry for entry in fresh if not entry.gone))
        return list(offers)

    def _serve_readers(self, offers: list[Entry], left: bool) -> None:
        readers = {waiter: None for entry in offers for waiter in self._readers_of(entry)}
        readers.update(
            (one, None) for one in self._others if not one.query.take and _is_tried(one, left)
        )
        for waiter in sorted(readers, key=_ticket):
            self._waiting.deliver(waiter)

    def _readers_of(self, entry: Entry) -> Iterator[Waiter]:
        return self._waiting.readers.wanting(entry, partial(self._may_have, entry))

    def _serve_first_taker(self, offers: list[Entry], left: bool) -> bool:
        """False if none can be served."""
        others = [one for one in self._others if one.query.take and _is_tried(one, left)]
        takers = self._waiting.takers
        wanting = [takers.wanting(entry, partial(self._may_have, entry)) for entry in offers]
        before = None
        for waiter in heapq.merge(others, *wanting, key=_ticket):
            if waiter is not before:
                self._waiting.deliver(waiter)
                if waiter.done:  # It was served or has failed.
                    return True
            before = waiter
        return False

    def _may_have(self, entry: Entry, waiter: Waiter) -> bool:
        order = waiter.order
        if order is not None and order.head_only and self._shown.get(_head(waiter)) is not entry:
            return False
        return sees(entry, waiter) and (not waiter.query.take or may_take(entry, waiter.query.txn))


def _head(waiter: Waiter) -> Head:
    order = waiter.order
    assert order is not None
    return type(order) if type(order) in (Queue, Stack) else order, waiter.query.txn


def _is_tried(waiter: Waiter, left: bool) -> bool:
    assert waiter.order is not None
    return left or waiter.order.keeps_books


class Signal(Protocol):
    """Wakes a waiting caller. False if the caller is gone."""

    def wake(self) -> bool: ...


class Waiter:
    """A waiting read or take. It is answered once: with entries (perhaps none) or an error."""

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
    """The waiting operations of one space, and the rules by which they are served.

    At the end of a step all entries that became available are in place. Then the waiters are served
    in order, all readers first (a taker would hide entries from them), each with the result that it
    would get at that moment.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.readers: Watchers[Waiter] = Watchers(core.store.shapes)
        self.takers: Watchers[Waiter] = Watchers(core.store.shapes)
        self._conditional: dict[Waiter, None] = {}
        self._transactional: dict[Waiter, None] = {}
        self.choosing = Choosing(core, self)
        self._delivered: dict[Waiter, bool] = {}  # answered, not yet collected
        self._tickets = 0
        self.writers = Writers(core)
        self.plain_takers = 0  # takers of one entry outside a transaction

    def __iter__(self) -> Iterator[Waiter]:
        yield from self.readers
        yield from self.takers

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def park(self, query: Query, signal: Signal) -> Waiter:
        """Wait for a match. With `if_exists`, only while a transaction may still reveal one."""
        core, txn = self._core, query.txn
        if query.sliced is not None:
            query = query.replace(sliced=None)
        if txn is not None or query.if_exists:  # compiled once, because it is used often
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
        """Remove a waiter without an answer, or one that is being answered."""
        if (self.takers if waiter.query.take else self.readers).discard(waiter):
            self._conditional.pop(waiter, None)
            self.choosing.discard(waiter)
            if waiter.query.txn is not None:
                del self._transactional[waiter]
                self._core.locks_changed = True  # Other transactions may have depended on it.
            self._core.watched -= 1
            self.plain_takers -= waiter.plain

    def hand_over(self, waiter: Waiter, entry: Entry) -> None:
        """Deliver an entry directly to a plain taker, without storing it."""
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
        """Serve the waiters after these entries became available, and perhaps others have
        `left`."""
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
        self.fail_raised()

    def fail_raised(self) -> None:
        """Fail the waiters whose templates raised an error while entries were matched."""
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
        """Serve the oldest taker first, then the oldest one for the remaining entries."""
        queue: list[tuple[int, int, Waiter]] = []
        unserved: set[Waiter] = set()  # Their orders found too few entries.

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
        """Give a waiter its present matches, or the entry if there is `only` that."""
        core, query = self._core, waiter.query
        try:
            if query.if_exists and query.many:
                return  # It gets all matches when no more can be revealed: see `recheck`.
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
        """Fail the waiters of a transaction that has ended or is prepared."""
        for waiter in [waiter for waiter in self._transactional if waiter.query.txn is txn]:
            self.fail(waiter, txn.refusal())
        self.writers.end_within(txn)

    def recheck(self) -> None:
        """After locks have changed, end hopeless waits: operations with `if_exists` if no
        transaction can reveal a match any more, and the latest of the operations whose transactions
        wait for each other in a circle."""
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
        if core.left and self.choosing.count:  # A waiter for all matches has taken them.
            self.serve([], left=True)

    def _answer_conditional(self, waiter: Waiter) -> None:
        """No transaction can reveal a match any more: a read or take returns None, a `read_all` or
        `take_all` the present matches."""
        core, query, found = self._core, waiter.query, []
        if query.many:
            found = core.find(query)
            self._acquire(waiter, found)
        self._answer(waiter, found)

    # After the answer

    def received(self, waiter: Waiter) -> bool:
        """The caller has the result, which cannot be returned any more; False if the space was
        closed before. The first to remove the waiter decides, without a lock."""
        return self._delivered.pop(waiter, False)

    def refused(self, waiter: Waiter) -> None:
        """The waiting caller is gone: return the entries if it was answered."""
        self._delivered.pop(waiter, None)
        if not waiter.done:
            self.unpark(waiter)
        entries, waiter.entries = waiter.entries, []
        for entry in entries:
            self._core.undo(entry, waiter.query)

    def close(self, error: Exception) -> None:
        """Fail the waiters; results that were not collected stay in the space."""
        for waiter in [*self._delivered]:
            if self._delivered.pop(waiter, False):
                self.refused(waiter)
                waiter.error = waiter.error or error
        for waiter in self:
            self.fail(waiter, error)
        self.writers.close(error)


def _shows_the_only_match(order: Order | None) -> bool:
    """Whether this order need not be called if there is only one match."""
    return order is None or (not hides(order) and order.needs(1) == 1)
