"""The port of a space: every operation of its engine, under the lock, for both APIs and for the
packages above.

The APIs (`blocking`, `asynchronous`) and all other packages use a space through its port only; they
never touch the engine, the core or the lock. A method does one step. Where the caller may have to
wait, it gets a `Waiter` or `Writer` with a signal of its own kind; where the disk has to follow, it
gets the position that must be durable before the result may be shown.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from heapq import nsmallest
from inspect import iscoroutinefunction
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tupelo.errors import (
    BadArgument,
    BadEntry,
    DiskFull,
    JournalError,
    LeaseLost,
    Refused,
    TupeloError,
)
from tupelo.space import leases, matchset, reaction, search, session, subscription, transaction
from tupelo.space.clock import Clock
from tupelo.space.delivery import DeliveredAtOnce, Deliveries, Delivery, Prepared, ReservedDelivery
from tupelo.space.engine import Engine
from tupelo.space.log import Actor
from tupelo.space.matchset import MatchSetState
from tupelo.space.order import Key, Order, needed
from tupelo.space.protocol import TransactionLike, names_of
from tupelo.space.query import (
    NOW,
    Query,
    check_count,
    check_delay,
    check_limit,
    check_order,
    check_wait,
    deadline_of,
)
from tupelo.space.reaction import ReactionState
from tupelo.space.search import SlicedSearch, Unfinished, acceptance, stores_of
from tupelo.space.session import Seen, SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.space.tasks import Flusher, NowFlusher, Tasks, TaskSignal, turn
from tupelo.space.transaction import PrepareVote, Txn
from tupelo.space.waiting import Items, Places, RequestedLease, Signal, Waiter, WriteOutcome, Writer
from tupelo.store.index import Accept
from tupelo.values.change import ENDINGS, ChangeKind, Notice
from tupelo.values.codec import encode_entry
from tupelo.values.entry import (
    Entry,
    Shape,
    about_bytes,
    fitting,
    freeze,
    plain_shapes,
    thaw,
    types_of,
)
from tupelo.values.holder import Delayed, Holder, InHand
from tupelo.values.kind import is_typed
from tupelo.values.lease import Lease, Leased, LeasePolicy, check_lease
from tupelo.values.parts import ANY
from tupelo.values.scope import HERE, Coverage, Scope, check_coverage, check_scope
from tupelo.values.template import Template, as_template
from tupelo.values.text import entry_text, template_text

if TYPE_CHECKING:
    from tupelo.space.capacity import Capacity, CapacityLimit

logger = logging.getLogger("tupelo")

T = TypeVar("T")

_UNCHANGED = nullcontext()
_FEW = 16
"""For more entries than this, the room on the disk is checked before they are written."""
HELD_SHOWN = 5
"""At most so many entries of one transaction are listed in a summary."""


class TransactionHandle:
    """The user's handle of a transaction; base of the transactions of both APIs."""

    def __init__(self, port: Port, state: Txn) -> None:
        self._port = port
        self._state = state

    @property
    def core_state(self) -> Txn:
        """The transaction in the core."""
        return self._state

    @property
    def id(self) -> str:
        """The id of the transaction."""
        return self._state.id

    @property
    def state(self) -> transaction.TransactionState:
        """active, prepared, committed or aborted."""
        self._port.expire()
        return self._state.state

    @property
    def must_commit(self) -> bool:
        """Whether to commit at the end of a `with` block; raises an error if that is impossible."""
        state = self._state
        return self.state == "active" or state.left or state.reason == transaction.LEASE_RAN_OUT

    def __repr__(self) -> str:
        return f"<Transaction {self.id} of {self._port.name!r}, {self._state.state}>"

    def __dir__(self) -> list[str]:
        return names_of(TransactionLike)


class Spanning(ABC):
    """A transaction over several spaces, with a branch in each space that it was used in."""

    @abstractmethod
    def branch_at(self, port: Port) -> Txn:
        """The branch in this space, begun on first use."""


Transactional = TransactionHandle | Spanning


class WaiterSummary(NamedTuple):
    """A waiting read or take: its template as text, and who waits, since when."""

    template: str
    take: bool
    actor: Actor
    since: float


class TransactionSummary(NamedTuple):
    """An open transaction: its actor if known, how many entries it holds, when it expires, and the
    first of the entries that it has taken."""

    id: str
    state: str
    actor: Actor | None
    taken: int
    written: int
    read: int
    expires: float | None
    holds: list[str]


class Port:
    """The operations of one space; also the landlord of its leases."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._core = engine.core
        self._lock = engine.lock
        self._acquire = engine.lock.acquire
        self._release = engine.lock.release
        self._encodes = engine.saved is not None
        self.deliveries = Deliveries(engine)
        engine.on_close = self.deliveries.take_all_back
        self.clock: Clock = engine.clock
        self.name = engine.name
        self.id = engine.id
        """Identifies the space to coordinators; agents and names need not be unique."""
        self.agent = engine.core.agent
        self.journaled = engine.journal is not None
        self.durable = engine.saved is not None
        self.new_id = engine.new_id
        self.is_durable = engine.is_durable
        self.changes = engine.changes
        self.log_columns = engine.log_columns
        self.trim = engine.trim
        self.compact = engine.compact
        self.crash = engine.crash
        self.now = engine.clock.now
        self.saved = engine.saved
        """The journal on disk, or None."""
        self.flusher = Flusher(engine)
        """How tasks wait for the disk."""
        self._flushing = Tasks()

    # The space

    @property
    def position(self) -> int:
        """The position of the last change."""
        return self._core.log.position

    @property
    def latest_arrival(self) -> int:
        """The arrival of the last entry written; later entries have a greater one."""
        core = self._core
        with self._lock:
            return core.log.position if core.log.on else core.arrivals

    @property
    def lease_policy(self) -> LeasePolicy | None:
        return self._core.lease_policy

    @property
    def shapes(self) -> Mapping[Shape, None]:
        """The shapes of all entries that the space ever had."""
        return self._core.store.shapes

    @property
    def closed(self) -> bool:
        return self._core.closed

    @property
    def health(self) -> str:
        """ "ok", or the problem."""
        return self._engine.health

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the space, and not the arrival, decides which match comes first."""
        return self._core.order is not None

    @property
    def keeps_books(self) -> bool:
        """Whether the order of the space keeps books."""
        return self._core.books is not None

    def atomic(self) -> AbstractContextManager[object]:
        """`with port.atomic():` makes several calls one step."""
        return self._lock

    def name_agent(self, name: str) -> None:
        """Set the name of the space's own agent, beside its id; it is stored with a durable log."""
        with self._lock:
            self._core.log.name_own(name)
        if self.saved is not None:
            self.saved.name_agent(name)

    def acting(self, actor: Actor | None) -> AbstractContextManager[None]:
        """In this block the log names this actor; None: the space's own agent."""
        return self._acting(actor) if actor and self._core.log.on else _UNCHANGED

    @contextmanager
    def _acting(self, actor: Actor) -> Iterator[None]:
        with self._lock, self._core.log.by(actor):
            yield

    def flush(self, position: int) -> None:
        """Block until the changes up to this position are as durable as the space promises."""
        self._engine.flush(position)

    def flush_undone(self, position: int) -> None:
        """Make durable that entries were given back; 0 means there were none. Errors of the disk
        are not raised: the caller is being cancelled or interrupted."""
        if position:
            with suppress(JournalError):
                self._engine.flush(position)

    async def flushed(self, position: int) -> None:
        """`flush` for tasks: the loop runs on meanwhile."""
        await self.flusher.flush(position)

    def flush_soon(self, position: int) -> None:
        """On a loop: make the changes up to this position durable without a waiting caller."""
        if position and self.durable:
            self._flushing.start(self._flush_quietly(position))

    async def _flush_quietly(self, position: int) -> None:
        with suppress(JournalError):  # It closes the space.
            await self.flusher.flush(position)

    def close(self) -> None:
        """Close the space. Blocks until the journal is on disk."""
        self._engine.close()
        self.flusher.close()

    async def close_async(self) -> None:
        from asyncio import to_thread

        with self._lock:
            self._engine.refuse_inside()
        if self._engine.saved is None:
            self._engine.close()
        else:  # closing waits for the disk
            await to_thread(self._engine.close)
        await to_thread(self.flusher.close)

    def commit_in_place(self) -> None:
        """Let tasks commit without a thread, for loops that must not wait for one."""
        self.flusher = NowFlusher(self._engine)

    def was_committed(self, holder: Holder) -> bool:
        """Whether the log has the confirmation of the delivery to this holder."""
        return self.saved is not None and self.saved.was_committed(holder.id)

    def accepted(self) -> list[tuple[str, int]]:
        """Origins and numbers of entries that came from other hosts, as far as the log goes
        back."""
        return [] if self.saved is None else self.saved.accepted()

    # The fast path of most operations on most spaces. The lock's bound methods cost half as much as
    # `with`.

    def write_fast(
        self, entry: object, actor: Actor | None = None, handle: type[Leased] = Lease
    ) -> Any:
        """Write to a plain space, and return the lease as a `handle` of one of the APIs. Returns
        None if the fast path does not apply; then nothing was done."""
        core = self._core
        if type(entry) is tuple:
            shape = plain_shapes.get(types_of(entry))
            fields = entry
            if shape is None:
                return None
        elif core.plain and is_typed(entry):
            shape, fields = freeze(entry)
        else:
            return None
        payload = encode_entry(shape, fields) if self._encodes else None
        self._acquire()
        try:
            if not core.plain:
                return None
            written = core.write_fast(shape, fields, payload, actor)
            if core.woken:
                if core.woken[0].wake():  # There is at most one: the plain taker.
                    core.woken.clear()
                else:
                    self._engine.wake()
            if self.journaled:
                self._engine.keep_changes()
        finally:
            self._release()
        return None if written is None else handle(self, written)

    def get_fast(
        self, template: Any, take: bool, signal: Callable[[], Signal] | None = None
    ) -> Any:
        """The fields of a match in a plain space; if there is none, a waiter with such a `signal`,
        or None without one. NotImplemented if the fast path does not apply."""
        if self.journaled:
            return NotImplemented
        core = self._core
        self._acquire()
        try:
            if not core.plain:
                return NotImplemented
            entry = core.store.first_fast(template, take)
            if take and (core.books is not None or core.delayed) and isinstance(entry, Entry):
                core.received(entry)
            if entry is None and signal is not None:
                waiter = core.waiting.park(Query(template, take, None), signal())
                core.plain = waiter.plain
                return waiter
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
        mark: WriteOutcome | None = None,
        delay: float | None = None,
    ) -> tuple[list[Lease] | Writer, int]:
        item = freeze(entry)
        if lease is not None:
            lease = check_lease(lease)
        places = None if at is None else [at]
        return self.write_items([item], lease, txn, places, signal, wait, mark, delay)

    def write_all(
        self,
        entries: Iterable[object],
        lease: RequestedLease,
        txn: Transactional | None,
        at: Sequence[Any] | None,
        signal: Callable[[], Signal],
        wait: float | None,
        mark: WriteOutcome | None = None,
        delay: float | None = None,
    ) -> tuple[list[Lease] | Writer, int]:
        items, lease = check_entries(entries, lease, at)
        return self.write_items(items, lease, txn, at, signal, wait, mark, delay)

    def write_items(
        self,
        items: Items,
        lease: RequestedLease,
        txn: Transactional | None,
        at: Places,
        signal: Callable[[], Signal],
        wait: float | None,
        mark: WriteOutcome | None = None,
        delay: float | None = None,
    ) -> tuple[list[Lease] | Writer, int]:
        """The leases of the written entries, or a waiting writer; and the position to make
        durable."""
        check_wait(wait)
        delay = check_delay(delay, mark and mark.to)
        core = self._core
        size = 0
        if self._encodes and len(items) > _FEW:
            size = sum(about_bytes(fields) for _, fields in items)
        with self._lock:
            self._engine.begin()
            before = core.log.position
            try:
                state = self.state_of(txn)
                self._engine.require_room(size=size)
                written = core.write_all(items, lease, state, at, mark, delay)
            except Refused as refusal:
                if wait == 0 or refusal.hopeless:
                    raise
                actor = core.log.actor
                writer = Writer(items, lease, state, at, signal(), refusal, mark, actor, delay)
                core.waiting.writers.park(writer)
                return writer, 0
            finally:
                self._engine.settle()
            position = core.log.position
            leases = [Lease(self, entry) for entry in written]
            return leases, 0 if position == before else position

    def written(self, writer: Writer) -> tuple[list[Lease], int]:
        """The result of a waiting write: the leases, or its error is raised."""
        if not writer.done:
            with self._lock:
                self._core.waiting.writers.unpark(writer)
        if writer.entries is None:
            raise writer.error
        return [Lease(self, entry) for entry in writer.entries], writer.position

    def stop_writing(self, writer: Writer) -> None:
        """The waiting caller is gone: cancel the write, unless it was done."""
        with self._lock:
            self._core.waiting.writers.unpark(writer)

    async def writing_of(self, writer: Writer, wait: float | None) -> tuple[list[Lease], int]:
        """For tasks: wait until the write is done, at most so many seconds."""
        try:
            if not writer.done:
                assert isinstance(writer.signal, TaskSignal)
                await writer.signal.wait_until(self.clock, deadline_of(self.clock, wait))
        except BaseException:  # cancelled
            self.stop_writing(writer)
            raise
        return self.written(writer)

    # Reading and taking

    def query(
        self,
        template: object,
        take: bool,
        wait: float | None,
        many: bool,
        limit: int | None,
        txn: Transactional | None,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None = None,
        coverage: Coverage | None = None,
        session: SessionState | None = None,
    ) -> Query:
        """A checked query, with its deadline on the clock of this space."""
        if scope is not None or coverage is not None:
            self.require_here(scope, coverage)
        if many and limit is not None:
            check_limit(limit)
        if order is not None:
            check_order(order)
        deadline = None if wait is None else deadline_of(self.clock, wait)
        state = None if txn is None else self.state_of(txn)
        return Query(template, take, deadline, many, limit, order, state, session, if_exists)

    def require_here(self, scope: Scope | None, coverage: Coverage | None = None) -> None:
        """Check the scope; a local space always searches only itself."""
        check_scope(scope)
        if scope is not None and scope != HERE:
            what = "HERE or None: this space does not span hosts, as host.space() does"
            raise BadArgument("scope", what, scope)
        if coverage is not None:
            check_coverage(coverage)
            coverage.fill([self.name])

    def get(
        self, query: Query, signal: Callable[[], Signal], reserve: bool = False
    ) -> tuple[list[Entry] | Waiter, int]:
        """The matches, or a waiter; and the position that must be durable before they are shown.

        Entries taken with `reserve` can be given back: see `delivery`.
        """
        core = self._core
        with self._lock:
            if (
                core.plain
                and not query.many
                and query.txn is None
                and query.order is None
                and query.session is None
                and query.only is None
                and query.sliced is None
                and not query.committed
                and not query.test
                and not (reserve and (core.delayed or core.books is not None))
            ):
                entry = core.first_fast(query.template, query.take, query.actor)
                if entry is not NotImplemented:
                    if entry is not None:
                        if not self.journaled:
                            return [entry], 0
                        self._engine.keep_changes()
                        return [entry], self._position(query, [entry])
                    if query.deadline == NOW:
                        return [], 0
                    waiter = core.waiting.park(query, signal())
                    core.plain = waiter.plain
                    return waiter, 0
            if query.actor is not None and core.log.on:
                with core.log.by(query.actor):
                    return self._get(query, signal, reserve)
            return self._get(query, signal, reserve)

    def _get(
        self, query: Query, signal: Callable[[], Signal], reserve: bool
    ) -> tuple[list[Entry] | Waiter, int]:
        """The general path, under the lock."""
        core = self._core
        self._engine.begin()
        try:
            if query.take and not query.test:
                self._engine.require_room(taking=True)
            if query.many and query.if_exists and query.deadline != NOW:
                if core.deadlines.heap:
                    core.expire()
                if transaction.blockers(core, query):
                    # More matches may come, or some may leave.
                    return core.waiting.park(query, signal()), 0
            found = core.get(query, received=not (self.journaled or reserve))
            if not found and query.deadline != NOW and not (query.many and query.if_exists):
                return core.waiting.park(query, signal()), 0
            if not found or not self.journaled:
                return found, 0
            return found, self._position(query, found)
        finally:
            self._engine.settle()

    def ticket(self) -> int:
        """A place in the queue of waiting operations: see `Query`."""
        with self._lock:
            return self._core.waiting.ticket()

    def get_now(self, query: Query) -> tuple[list[Entry], int]:
        """`get` for a query that does not wait."""
        found, position = self.get(query, _nobody_waits)
        assert isinstance(found, list)
        return found, position

    def count(self, template: Any, txn: Transactional | None) -> int:
        return self._step(lambda: self._core.count(template, self.state_of(txn)))[0]

    async def count_in_slices(self, template: Any, txn: Transactional | None) -> int:
        """`count` for a remote request: the number of matches in the step that ends the search."""
        current = Query(template, many=True, limit=None, txn=self.state_of(txn), in_slices=True)

        def step(query: Query) -> int:
            return self._step(lambda: self._core.count(template, query.txn, query.sliced))[0]

        return await self._in_slices(current, step, plain=True)

    def give_up(self, waiter: Waiter) -> bool:
        """The deadline has passed. True if the result came just before."""
        if not waiter.done:
            with self._lock:
                if not waiter.done:
                    self._core.waiting.unpark(waiter)
                    if waiter.query.txn is not None and not self._core.closed:
                        self._engine.settle()
                    return False
        return True

    def vanish(self, waiter: Waiter) -> int:
        """The waiting caller is gone (cancelled or interrupted): return its entries. Returns the
        position to make durable."""
        with self._lock:
            if self._core.closed:
                return 0
            self._core.waiting.refused(waiter)
            return self._engine.settle()

    def undo_get(self, entries: list[Entry], query: Query) -> int:
        """The caller was lost: return taken entries, unless their transaction has ended, and mark
        read entries as unseen by the session. Returns the position to make durable."""

        def work() -> None:
            for entry in entries:
                if query.take or self._core.store.at(entry.arrival) is entry:
                    self._core.undo(entry, query)
                elif query.session is not None:  # It has left, or is of another space.
                    query.session.seen.discard(entry)

        return self._step(work)[1]

    def collect(self, waiter: Waiter, reserve: bool = False) -> tuple[list[Entry], int]:
        """The result of a waiter that was woken, and the position to make durable."""
        core, query = self._core, waiter.query
        if not core.waiting.received(waiter):
            with self._lock:  # until the closing thread has failed the waiter
                pass
        if waiter.error is not None:
            raise waiter.error
        position = 0
        if self.journaled:
            with self._lock:
                position = self._position(query, waiter.entries)
        if not position and not reserve and query.removes:
            self.deliveries.received(waiter.entries)  # without waiting for the disk
        return waiter.entries, position

    def _position(self, query: Query, entries: list[Entry]) -> int:
        """The position that must be durable before the caller may see these entries."""
        if query.removes:
            return self._core.log.position
        return self._engine.position_for(entries)

    # Reading and taking, for tasks

    async def fetch(self, query: Query, reserve: bool = False) -> list[Entry]:
        """The matches, waiting until the query's deadline. Entries that were read are durable on
        return; entries that were taken in `reserve` or within a transaction need not be."""
        found, position = await self.answer(query, reserve)
        if position and not query.take:
            try:
                await self.flusher.flush(position)
            except BaseException:  # The disk is full, or the caller was cancelled.
                if query.session is not None and not self._core.closed:
                    self.undo_get(found, query)
                raise
        return found

    async def answer(self, query: Query, reserve: bool = False) -> tuple[list[Entry], int]:
        """The matches, waiting until the deadline, and the position that must be durable."""
        if query.in_slices:
            found, position = await self._in_slices(
                query, lambda current: self.get(current, TaskSignal, reserve)
            )
        else:
            found, position = self.get(query, TaskSignal, reserve)
        return (found, position) if type(found) is list else await self.answer_of(found, reserve)

    def is_long(self, query: Query) -> bool:
        """Whether the search may take too long for one step."""
        self._acquire()
        try:
            if type(query.template) is tuple and not query.many:
                return self._core.store.lacks_index(query.template)
            found = self._begin_sliced(query, plain=False)
            if found is not None:
                found.close()
        finally:
            self._release()
        return found is not None

    def _begin_sliced(
        self, query: Query, plain: bool, agent: str | None = None
    ) -> SlicedSearch | None:
        core, order = self._core, query.order or self._core.order
        stores = stores_of(core, query.txn)
        if plain:  # All entries count, whatever the order and the locks.
            return search.begin(core, stores, query.template, None, None)
        if order is not None and order.head_only:
            return None
        after, state = 0, query.session
        accept = acceptance(core, query)
        if state is not None and (order or query.only) is None:
            accept = session.unseen(state, agent)
            after = state.cursor((core.store.question(query.template), agent), core.returns)
        enough = query.limit if order is None else needed(order, query.limit)
        backwards = order is not None and order.backwards
        rank = order if type(order) is Key else None
        return search.begin(
            core, stores, query.template, accept, enough, backwards, after, rank, query.limit
        )

    async def _in_slices(
        self,
        query: Query,
        step: Callable[[Query], T],
        *,
        plain: bool = False,
        agent: str | None = None,
    ) -> T:
        """Do a step that begins with a search; a long search is done in slices, and other steps run
        in between."""
        with self._lock:
            found = self._begin_sliced(query, plain, agent)
        if found is None:
            return step(query)
        from asyncio import sleep

        query = query.replace(sliced=found)
        try:
            while True:
                async with turn():
                    try:
                        return step(query)
                    except Unfinished:
                        await sleep(0)
        finally:
            with self._lock:
                found.close()

    async def answer_of(self, waiter: Any, reserve: bool = False) -> tuple[list[Entry], int]:
        """`answer` for a query that waits with a TaskSignal."""
        query = waiter.query
        try:
            if not waiter.done:
                if query.deadline is None:
                    await waiter.signal.future
                else:
                    await waiter.signal.wait_until(self.clock, query.deadline)
            if waiter.done or self.give_up(waiter):
                return self.collect(waiter, reserve)
        except TupeloError:
            raise
        except BaseException:  # cancelled, perhaps just when the result came
            self.flush_undone(self.vanish(waiter))
            raise
        if query.many and query.if_exists:  # only the present matches
            retry = query.replace(deadline=NOW, if_exists=False, sliced=None)
            return await self.answer(retry, reserve)
        return [], 0

    async def reserve(self, query: Query, holder: Holder) -> Delivery | None:
        """Take matches out of the space, to be delivered to the holder; None if there is no match
        before the deadline."""
        if not self.durable:
            entries = await self.fetch(query, reserve=True)
            return self.deliveries.begin_leaving(entries, query, holder) if entries else None
        with self.acting(query.actor):
            txn = self.begin_delivery(holder)
        try:
            entries = await self.fetch(query.replace(txn=txn))
            if entries:
                _, position = self.prepare(txn)
                await self.flusher.flush(position)
                return Prepared(self, txn)
            self.abort(txn)
            return None
        except BaseException:
            with suppress(TupeloError):
                self.abort(txn)
            raise

    # Deliveries

    def begin_delivery(self, holder: Holder) -> Txn:
        """Begin a transaction whose taken entries will be delivered to this holder."""
        txn = self.begin_branch(None, None, holder.id)
        txn.holder = holder
        return txn

    def put_aside(self, entries: Iterable[Entry], holder: Holder) -> tuple[Prepared | None, int]:
        """Reserve exactly these entries for the holder, as far as they are free. Returns the
        delivery and the position at which it is durable. Also works for a space in memory."""
        txn = self.begin_delivery(holder)
        taken = [entry for entry in entries if self.take_entry(entry, txn)]
        if not taken:
            self.abort(txn)
            return None, 0
        try:
            _, position = self.prepare(txn)
        except DiskFull:
            self.abort(txn)
            raise
        return Prepared(self, txn), position

    def deliveries_in_doubt(self) -> list[Prepared]:
        """Deliveries that are neither confirmed nor given back, also from before a crash."""
        return [Prepared(self, txn) for txn in self.in_doubt() if txn.holder is not None]

    def reserved_now(self, entry: Entry, query: Query) -> ReservedDelivery:
        """The delivery of an entry that was just reserved, from a space in memory."""
        return self.deliveries.begin_leaving([entry], query)

    def delivered_at_once(self, entries: list[Entry], query: Query) -> DeliveredAtOnce:
        return DeliveredAtOnce(self, entries, query)

    def commit_leaving(self, txn: Txn, entries: list[Entry]) -> int:
        """Commit, but let sessions remember the taken entries, which may come back, until
        `forget_entries`."""
        with self._lock, self._core.pruning.leaving(entries):
            return self.commit(txn)

    def forget_entries(self, entries: list[Entry]) -> None:
        self.deliveries.forget(entries)

    def undelivered(self, delivery: Delivery) -> DiskFull:
        """The disk has no room to store that these entries were got: give them back. Returns the
        error for the caller."""
        delivery.give_back()
        return self.no_room()

    def no_room(self) -> DiskFull:
        """The error of an operation that was undone because the disk has no room for it."""
        return DiskFull(
            f"the disk of the space {self.name!r} is full: nothing was done, and the space goes on "
            "when there is room"
        )

    # Entries

    def entries_and_taken(self) -> list[Entry]:
        """The entries of the space, and those that transactions have taken."""
        core = self._core
        with self._lock:
            return [*core.store, *(entry for txn in core.transactions for entry in txn.taken)]

    def entries(self, *, held: bool = False) -> list[Entry]:
        """The entries of the space in order of arrival, optionally with those that transactions
        have taken."""
        core = self._core
        with self._lock:
            found = list(core.store)
            if held:
                found += [
                    entry
                    for txn in core.transactions
                    for entry, home in txn.taken.items()
                    if home is None
                ]
                found.sort(key=lambda entry: entry.arrival)
        return found

    def has(self, entry: Entry) -> bool:
        """Whether this object is an entry of the space."""
        with self._lock:
            return self._core.store.at(entry.arrival) is entry

    def find(self, query: Query) -> list[Entry]:
        """The present matches, neither read nor taken."""
        return self._step(lambda: self._core.find(query))[0]

    def entry_of(self, origin: str, n: int, arrival: int) -> Entry:
        """The entry with this origin and number. Raises LeaseLost if it has left."""
        core = self._core
        with self._lock:
            entry = core.delayed.get(arrival) or core.store.at(arrival)
            if entry is None:  # A transaction may hold it.
                taken = (held for txn in core.transactions for held in txn.taken)
                entry = next((held for held in taken if held.arrival == arrival), None)
        if entry is None or entry.n != n or entry.origin != origin:
            raise LeaseLost("the entry is gone, or was never written by you")
        return entry

    def take_entry(self, entry: Entry, txn: Txn) -> bool:
        """Take exactly this entry; False if it has left or is held."""

        def work() -> bool:
            if entry.gone or entry.txn is not None or not transaction.may_take(entry, txn):
                return False
            self._core.acquire(entry, True, txn, None)
            return True

        return self._step(work)[0]

    def directed_to(self, agent: str) -> list[Entry]:
        """The entries for this agent that are in the space and not taken."""
        with self._lock:
            return self._core.directed.to(agent)

    def take_in(self, entry: Entry) -> int:
        """Write an entry from another host under its own identity. Returns the position at which
        that is durable. Raises an error, and does nothing, if the space refuses the entry."""
        lease = None if entry.expires is None else entry.expires - self.clock.now()
        if lease is not None and lease <= 0:
            return 0
        mark = WriteOutcome(entry.origin, entry.n, entry.to, entry.deliveries)
        item = (entry.shape, entry.fields)
        return self.write_items([item], lease, None, None, TaskSignal, 0, mark)[1]

    def adopt(self, entries: Sequence[Entry]) -> int:
        """Add entries that have no other place any more, even if the space would refuse a write;
        only a closed space cannot. Returns the position at which that is durable."""
        position = 0
        for entry in entries:
            try:
                try:
                    position = max(position, self.take_in(entry))
                except Exception as refusal:
                    logger.info("%r is over its limits: %r", self.name, refusal)
                    position = max(position, self.let_in([entry]))
            except Exception as error:
                logger.warning("an entry for %r is lost: %r", self.name, error)
        return position

    def let_in(self, entries: Sequence[Entry]) -> int:
        """Add entries in one step, ignoring the capacity, the keys and the reactions of the space.
        Returns the position at which that is durable."""
        core = self._core

        def work() -> None:
            come = [self._moved_in(entry) for entry in entries]
            for entry in come:
                core.subscriptions.notify(entry, "visible")
            if core.reactions and reaction.wanted(core, come):
                reaction.catch_up(core, come)
            for entry in come:
                if not entry.gone:
                    core.offer(entry)

        self._step(work)
        return self.position

    def _moved_in(self, entry: Entry) -> Entry:
        core = self._core
        here = self.copy_of(entry)
        if core.log.on:
            here.arrival = core.log.position + 1
        if core.books is not None:
            core.books.readmit(here)
        if core.room is not None:
            core.room.add([here])
        core.store.add(here)
        core.deadlines.add(here)
        core.directed.add(here)
        core.log.add("written", here)
        return here

    def copy_of(self, entry: Entry) -> Entry:
        """A copy of an entry with the same identity, for this space."""
        with self._lock:
            arrival = self._core.next_arrival()
        return Entry(
            *(entry.fields, entry.shape, entry.origin, entry.n, arrival, entry.expires),
            to=entry.to,
            deliveries=entry.deliveries,
        )

    def new_entry(self, shape: Shape, fields: tuple[Any, ...]) -> Entry:
        """A new entry of the space's own agent, for `exchange`."""
        with self._lock:
            self._core.store.know(shape)
            arrival = self._core.next_arrival()
        return Entry(fields, shape, self.agent, arrival, arrival)

    def exchange(self, come: list[Entry], ended: list[Entry]) -> int:
        """Add some entries and end others in one step. Returns the position at which that is
        durable."""
        core = self._core

        def work() -> None:
            core.publish(come)
            for entry in come:
                core.deadlines.add(entry)
            if core.reactions and reaction.wanted(core, come):
                reaction.catch_up(core, come)
            for entry in ended:
                if not entry.ended:
                    leases.end(core, entry, "cancelled", "")
                    entry.expires = 0.0  # If a transaction holds it, it must not be returned.

        self._step(work)
        return self.position

    def remark(self, kind: ChangeKind, entry: Entry) -> int:
        """Log an event of the object that this entry describes. Returns the position to make
        durable."""
        return self._step(lambda: self._core.log.add(kind, entry))[1]

    def count_from(self, arrival: int) -> None:
        """Number new entries from here on: a space in memory would otherwise start with 1 after
        every restart, and other hosts would confuse new entries with old ones."""
        with self._lock:
            self._core.arrivals = max(self._core.arrivals, arrival)

    def under_way(self) -> dict[str, list[Any]]:
        """Counts of everything open in the space, for the lab and for monitoring."""
        core = self._core
        with self._lock:
            return {
                "transactions": [one.id for one in core.transactions if one.holder is None],
                "transactions of deliveries": [
                    one.id for one in core.transactions if one.holder is not None
                ],
                "deliveries": self.deliveries.under_way(),
                "subscriptions": list(core.subscriptions.watchers),
                "waiters": list(core.waiting),
            }

    @property
    def entry_count(self) -> int:
        """How many entries the space has, without those held by transactions."""
        with self._lock:
            return len(self._core.store)

    def summary(self, limit: int) -> tuple[list[WaiterSummary], list[TransactionSummary]]:
        """The waiting reads and takes, and the open transactions; at most `limit` of each."""
        core = self._core
        with self._lock:
            waiters = [
                WaiterSummary(
                    template_text(as_template(waiter.query.template)),
                    waiter.query.take,
                    waiter.actor,
                    waiter.since,
                )
                for waiter in islice(core.waiting, limit)
            ]
            transactions = [
                TransactionSummary(
                    txn.id,
                    txn.state,
                    txn.actor,
                    len(txn.taken),
                    len(txn.store) + len(txn.delayed),
                    len(txn.read),
                    txn.expires,
                    [entry_text(one.shape, one.fields) for one in islice(txn.taken, HELD_SHOWN)],
                )
                for txn in islice(
                    (txn for txn in core.transactions if txn.holder is None),  # else a delivery
                    limit,
                )
            ]
        return waiters, transactions

    @property
    def has_reactions(self) -> bool:
        return bool(self._core.reactions)

    # Removals

    def listen_to_removals(self, listener: Callable[[Entry], None], memory: Seen) -> None:
        """Call the listener for every entry that leaves for good, under the lock, on any thread;
        `memory` forgets those entries."""
        core = self._core
        with self._lock:
            core.removal_listeners.append(listener)
            core.pruning.memories[memory] = None
            core.watched += 1  # Leases must end on time, without another operation.
            self._engine.settle()

    def ignore_removals(self, listener: Callable[[Entry], None], memory: Seen) -> None:
        core = self._core
        with self._lock:
            core.removal_listeners.remove(listener)
            core.pruning.memories.pop(memory, None)
            core.watched -= 1

    def bound(self, room: CapacityLimit, capacity: Capacity) -> None:
        """Bound an existing space. Raises BadArgument if it has a capacity."""
        core = self._core
        with self._lock:
            if core.room is not None:
                what = f"left out: the space {self.name!r} has a capacity"
                raise BadArgument("bound", what, capacity)
            held = (entry for txn in core.transactions for entry in (*txn.taken, *txn.delayed))
            hidden = (entry for entry in core.delayed.values() if entry.visible is not None)
            room.add([*core.store, *held, *hidden])
            core.set_room(room)

    # Leases, transactions, sessions

    def expire(self) -> None:
        """End what has expired, so that the next request sees the present state."""
        with self._lock:
            if not (self._core.closed or self._core.running):
                self._step(lambda: None)

    def refuse_inside(self) -> None:
        """Raise BadInput for a function that runs inside a step and would wait for another
        thread."""
        if self._core.running:
            with self._lock:  # Otherwise the step of another thread would be mistaken for this one.
                self._engine.refuse_inside()

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        self._engine.flush(self.renew(thing, seconds))

    def cancel_lease(self, thing: Any) -> None:
        self._engine.flush(self.cancel(thing))

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        await self.flusher.flush(self.renew(thing, seconds))

    async def cancel_lease_async(self, thing: Any) -> None:
        await self.flusher.flush(self.cancel(thing))

    def require_room(self) -> None:
        """Raise DiskFull if the disk has no room for a small write."""
        with self._lock:
            self._engine.require_room(size=1)

    def renew(self, thing: Any, seconds: float | None) -> int:
        """Renew a lease. Returns the position to make durable."""

        def work() -> None:
            self._engine.require_room()
            leases.renew(self._core, thing, seconds)

        return self._step(work)[1]

    def cancel(self, thing: Any) -> int:
        """Cancel a lease. Returns the position to make durable."""
        return self._step(lambda: leases.cancel(self._core, thing))[1]

    def renew_leases(self, wanted: list[tuple[Any, float | None]]) -> list[TupeloError | None]:
        """Renew many leases in one step; for each, None or the error."""

        def work() -> list[TupeloError | None]:
            return [_tried(leases.renew, self._core, thing, seconds) for thing, seconds in wanted]

        outcomes, position = self._step(work)
        self._engine.flush(position)
        return outcomes

    def cancel_leases(self, things: list[Any]) -> list[TupeloError | None]:
        """Cancel many leases in one step; for each, None or the error."""

        def work() -> list[TupeloError | None]:
            return [_tried(leases.cancel, self._core, thing) for thing in things]

        outcomes, position = self._step(work)
        self._engine.flush(position)
        return outcomes

    def begin(self, lease: float | None, parent: Txn | None = None) -> Txn:
        lease = check_lease(lease)
        return self._step(
            lambda: transaction.begin(self._core, self._engine.new_id(), lease, parent)
        )[0]

    def begin_branch(self, lease: float | None, parent: Txn | None, txn_id: str) -> Txn:
        """Begin a branch of a shared transaction, which has its own lease."""

        def work() -> Txn:
            branch = transaction.begin(self._core, txn_id, None, parent)
            branch.expires = None if lease is None else self.now() + lease
            self._core.deadlines.add(branch)
            return branch

        return self._step(work)[0]

    def renew_branch(self, branch: Txn, lease: float | None) -> None:
        def work() -> None:
            branch.require("active")
            branch.expires = None if lease is None else self.now() + lease
            self._core.deadlines.add(branch)

        self._step(work)

    def prepare(self, txn: Txn) -> tuple[PrepareVote, int]:
        def work() -> PrepareVote:
            self._require_room_for(txn)
            return transaction.prepare(self._core, txn)

        return self._step(work)

    def commit(self, txn: Txn) -> int:
        def work() -> None:
            self._require_room_for(txn)
            transaction.commit(self._core, txn)

        return self._step(work)[1]

    def _require_room_for(self, txn: Txn) -> None:
        """Raise DiskFull if the disk has no room for the changes of a transaction, which stays
        open. A prepared transaction is committed in any case."""
        if self._core.disk_low and txn.state == "active" and txn.parent is None:
            self._engine.require_room(taking=not txn.writes)

    def abort(self, txn: Txn) -> int:
        return self._step(lambda: transaction.abort(self._core, txn, "it was called off"))[1]

    def abort_active(self, txns: Iterable[Txn]) -> None:
        """Abort those of these transactions that are active, in one step: what one of them held is
        not given to an operation that waits in another."""

        def work() -> None:
            for txn in txns:
                if txn.state == "active":
                    transaction.abort(self._core, txn, "it was called off")

        self._step(work)

    def leave(self, txn: TransactionHandle) -> None:
        """The space was closed at the host that began this transaction: abort it unless it is
        prepared. From now on its operations raise SpaceClosed."""

        def left(state: Txn) -> None:
            state.left = True
            for child in state.children:
                left(child)

        def work() -> None:
            state = txn.core_state
            if state.state == "active":
                left(state)
                reason = f"the space {self._engine.name!r} was closed"
                transaction.abort(self._core, state, reason)

        self.flush_soon(self._step(work)[1])

    @property
    def has_transactions(self) -> bool:
        """Whether there are transactions now. Takes no step, and no lock."""
        return bool(self._core.transactions)

    def in_doubt(self) -> list[Txn]:
        return self._step(
            lambda: [txn for txn in self._core.transactions if txn.state == "prepared"]
        )[0]

    def delayed(
        self, template: Any, limit: int | None = None, cancel: bool = False
    ) -> tuple[int, list[tuple[float, Entry]], int]:
        """How many matches are not visible yet, the first `limit` of them with their moments, and
        the position to make durable. With `cancel`, these are cancelled and not returned, and the
        number is theirs."""
        check_limit(limit)
        wanted = as_template(template)

        def work() -> tuple[int, list[tuple[float, Entry]]]:
            core = self._core
            with core.user_code("a template"):
                found = [
                    (entry.visible, arrival, entry)
                    for arrival, entry in core.delayed.items()
                    if entry.visible is not None and wanted.admits(entry.shape, entry.fields)
                ]
            first = sorted(found) if limit is None else nsmallest(limit, found)
            if not cancel:
                return len(found), [(visible, entry) for visible, _, entry in first]
            for _, _, entry in first:
                leases.cancel(core, entry)
            return len(first), []

        (count, entries), position = self._step(work)
        return count, entries, position

    def in_hand(self, template: Any = ANY) -> list[InHand]:
        """The entries that open transactions and deliveries have taken, by taker."""
        wanted = as_template(template)

        def work() -> list[InHand]:
            with self._core.user_code("a template"):
                return self._in_hand(wanted)

        return self._step(work)[0]

    def _in_hand(self, template: Template) -> list[InHand]:
        def count(entries: Iterable[Entry]) -> int:
            return sum(template.admits(entry.shape, entry.fields) for entry in entries)

        own, found = self._core.log.own, []
        for txn in self._core.transactions:
            taken = count(entry for entry, home in txn.taken.items() if home is None)
            holder, actor = txn.holder, txn.actor or own
            if holder is not None and holder.who:
                agent = holder.who if holder.client is None else holder.client.agent
                actor = Actor(agent, None, holder.name)
            if taken:
                found.append(InHand(actor.agent, actor.name, taken, txn.id))
        for delivery in self.deliveries.under_way():
            if delivery.query.removes and (taken := count(delivery.entries)):
                actor = delivery.query.actor or own
                found.append(InHand(actor.agent, actor.name, taken))
        return found

    def grant(self, kind: str, seconds: float | None) -> float | None:
        """The end of a lease of so many seconds, by the policy of this space."""
        with self._lock:
            return self._core.grant(kind, seconds, self.clock.now())

    def open_session(
        self,
        lease: float | None,
        like: SessionState | None = None,
        seen: Seen | None = None,
    ) -> SessionState:
        """Open a session that has seen nothing, the same as another, or the given entries."""
        lease = check_lease(lease)

        def work() -> SessionState:
            known = like.seen.copy() if like else seen
            return session.begin(self._core, self._engine.new_id(), lease, known)

        return self._step(work)[0]

    def remember(self, seen: Seen) -> None:
        """Remove entries that have left for good from this record, as long as it exists."""

        def work() -> None:
            self._core.pruning.memories[seen] = None

        self._step(work)

    def forget(self, seen: Seen) -> None:
        with self._lock:
            self._core.pruning.memories.pop(seen, None)

    def unread(
        self,
        template: Any,
        state: SessionState,
        limit: int | None,
        agent: str | None,
        bytes_max: int | None,
        search: SlicedSearch | None = None,
    ) -> tuple[list[Entry], bool, int]:
        """Entries that a session has not seen, whether there are more than fit, and the position
        that must be durable before they are shown."""

        def work() -> tuple[list[Entry], bool, int]:
            found, cut = session.unread(
                self._core, template, state, limit, agent, bytes_max, search
            )
            return found, cut, self._engine.position_for(found)

        return self._step(work)[0]

    async def unread_in_slices(
        self, query: Query, state: SessionState, agent: str | None, bytes_max: int | None
    ) -> tuple[list[Entry], bool, int]:
        """`unread` for a remote request; the query has the template, limit and actor."""

        def step(current: Query) -> tuple[list[Entry], bool, int]:
            with self.acting(query.actor):
                return self.unread(
                    query.template, state, query.limit, agent, bytes_max, current.sliced
                )

        current = query.replace(session=state, order=None, only=None)
        return await self._in_slices(current, step, agent=agent)

    def read_at_once(self, entry: Entry, actor: Actor | None) -> bool:
        """Read an entry of which a subscription has just told. False, and nothing is done, if a
        read would have to search or wait: the entry is gone or not durable yet, or the space has an
        order."""
        core = self._core
        with self._lock, self.acting(actor):
            if entry.gone or core.order is not None or self._engine.position_for([entry]):
                return False
            if core.room is not None or core.log.reads:
                self._step(lambda: core.acquire(entry, False, None, None))
            return True

    async def room_for(self, query: Query, bytes_max: int) -> tuple[int | None, bool]:
        """The number of matches, of the requested number, that fit into so many bytes; and whether
        these are fewer than requested."""

        def step(current: Query) -> tuple[int | None, bool]:
            def work() -> tuple[int | None, bool]:
                found, cut = fitting(self._core.find(current), bytes_max)
                return (len(found), True) if cut else (query.limit, False)

            return self._step(work)[0]

        return await self._in_slices(query, step) if query.in_slices else step(query)

    def peek(
        self, template: Any, order: Order | None, hint: Callable[[], object]
    ) -> Callable[[], None]:
        """Call `hint`, on any thread and under the lock, whenever the order of this operation, or
        of the space, may show a match that it left out before. Returns a function that ends
        that."""
        choosing = self._core.waiting.choosing
        with self._lock:
            peek = choosing.peek(template, order, hint)

        def end() -> None:
            if peek is not None:
                with self._lock:
                    choosing.end_peek(peek)

        return end

    def end_session(self, state: SessionState) -> None:
        with self._lock:
            session.end(self._core, state)
            self._engine.settle()

    def open_match_set(
        self, template: Any, limit: int | None, txn: Transactional | None, lease: float | None
    ) -> MatchSetState:
        query = self._query_of_match_set(template, limit, txn)
        lease = check_lease(lease)
        return self._step(lambda: matchset.begin(self._core, query, lease))[0]

    async def open_match_set_in_slices(
        self, template: Any, limit: int | None, txn: Transactional | None, lease: float | None
    ) -> MatchSetState:
        """`open_match_set` for a remote request."""
        query = self._query_of_match_set(template, limit, txn)
        lease = check_lease(lease)
        return await self._in_slices(
            query, lambda current: self._step(lambda: matchset.begin(self._core, current, lease))[0]
        )

    def _query_of_match_set(
        self, template: Any, limit: int | None, txn: Transactional | None
    ) -> Query:
        check_limit(limit)
        return Query(template, many=True, limit=limit, txn=self.state_of(txn), known=False)

    def next_match(self, state: MatchSetState, known: bool = True) -> tuple[Entry | None, int]:
        """The next entry of a match set, and the position that must be durable before it is shown.
        With `known`, entries of unknown classes are left out."""

        def work() -> tuple[Entry | None, int]:
            entry = state.next(known)
            return entry, 0 if entry is None else self._engine.position_for([entry])

        return self._step(work)[0]

    def end_match_set(self, state: MatchSetState) -> None:
        with self._lock:
            state.end("it was closed")

    # Subscriptions and reactions

    def subscribe(
        self,
        template: Any,
        callback: object,
        lease: float | None,
        txn: Transactional | None,
        handback: Any,
        backlog_max: int,
        available: bool,
        returned: bool = True,
        removed: bool = False,
        *,
        unleased: bool = False,
    ) -> SubscriptionState:
        """Begin a subscription. `unleased` is for subscriptions whose lease is kept elsewhere: the
        policy of the space does not apply."""
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function of a notice", callback)
        check_count(backlog_max, "backlog_max")
        lease = check_lease(lease)

        def work() -> SubscriptionState:
            return subscription.register(
                self._core,
                template,
                available=bool(available),
                returned=bool(returned),
                removed=bool(removed),
                txn=self.state_of(txn),
                handback=handback,
                backlog_max=backlog_max,
                lease=lease,
                unleased=unleased,
            )

        return self._step(work)[0]

    def awaits_notice(self, state: SubscriptionState) -> bool:
        """Whether a caller waits for the next notice."""
        with self._lock:
            return bool(state.waiting) and not state.backlog

    def next_notice(
        self, state: SubscriptionState, signal: Callable[[], Signal], deadline: float | None
    ) -> tuple[Notice | Signal | None, int]:
        """A notice; None if there is none and the deadline has passed or no more will come; or a
        signal to wait for."""
        with self._lock:
            self._engine.refuse_inside()
            if self._core.deadlines.heap and not self._core.closed:
                self._core.expire()
                self._engine.settle()
            notice = state.next()
            if notice is not None:
                if notice.kind in ENDINGS:  # The removal must not be undone by a crash.
                    return notice, self._core.log.position
                return notice, self._engine.position_for([notice.subject])
            if state.error is not None:
                raise state.error
            if state.ended or (deadline is not None and deadline <= self.clock.now()):
                return None, 0
            waiting = signal()
            state.waiting.append(waiting)
            return waiting, 0

    def return_notice(self, state: SubscriptionState, notice: Notice) -> None:
        """Return a notice whose receiver was lost."""
        with self._lock:
            state.backlog.appendleft(notice)
            if state.waiting:
                state.waiting.popleft().wake()

    def forget_signal(self, state: SubscriptionState, signal: Signal) -> None:
        """The caller no longer waits for a notice; the next one in the queue does."""
        with self._lock:
            if signal in state.waiting:
                state.waiting.remove(signal)
            elif state.backlog and state.waiting:
                state.waiting.popleft().wake()

    def end_subscription(self, state: SubscriptionState, error: Exception | None = None) -> None:
        with self._lock:
            self._core.end_subscription(state, error)
            self._engine.settle()

    def react(
        self,
        template: Any,
        function: reaction.Function,
        once: bool,
        existing: bool,
        only: Accept | None = None,
        whole: bool = False,
        fired: Seen | None = None,
    ) -> tuple[ReactionState, int]:
        if not callable(function):
            raise BadArgument("function", "a function of an entry and a step", function)
        if iscoroutinefunction(function):
            raise BadArgument("function", "a plain function: a step cannot await", function)

        def work() -> ReactionState:
            return reaction.register(
                self._core, template, function, bool(once), bool(existing), only, whole, fired
            )

        return self._step(work)

    def catch_up(self, entries: list[Entry]) -> int:
        """Run the reactions for entries that they refused before, but may want now. Returns the
        position to make durable."""
        return self._step(lambda: reaction.catch_up(self._core, entries))[1]

    def end_reaction(self, state: ReactionState) -> None:
        with self._lock:
            self._core.end_reaction(state)

    def _step(self, work: Callable[[], T]) -> tuple[T, int]:
        """Do some work as one step. Returns its result and the position to make durable."""
        with self._lock:
            self._engine.begin()
            before = self._core.log.position
            try:
                if self._core.deadlines.heap:
                    self._core.expire()
                answer = work()
            finally:
                self._engine.settle()
            position = self._core.log.position
            return answer, 0 if position == before else position

    def state_of(self, txn: Transactional | None) -> Txn | None:
        if txn is None:
            return None
        if isinstance(txn, Spanning):
            return txn.branch_at(self)
        if not isinstance(txn, TransactionHandle) or txn._port is not self:
            raise BadArgument("txn", f"a transaction of the space {self._engine.name!r}", txn)
        return txn._state


def _tried(work: Callable[..., None], *args: Any) -> TupeloError | None:
    try:
        work(*args)
    except TupeloError as error:
        return error
    return None


def _nobody_waits() -> Signal:
    raise AssertionError("a query that does not wait has waited")


def value_of(entry: Entry) -> Any:
    """The entry as a read returns it."""
    return entry.fields if entry.shape.plain else thaw(entry.shape, entry.fields)


def delayed_of(count: int, entries: list[tuple[float, Entry]]) -> Delayed:
    """Delayed entries as `delayed` of a space returns them."""
    return Delayed(count, [(visible, value_of(entry)) for visible, entry in entries])


def mark_to(to: str | None) -> WriteOutcome | None:
    """The mark of an entry for an agent. Raises BadArgument if the agent has no id."""
    if to is None:
        return None
    if not isinstance(to, str) or not to:
        raise BadArgument("to", "the id of an agent, or None", to)
    return WriteOutcome(to=to)


def port_of(space: Any) -> Port:
    """The port of a space of this program, of either API."""
    port = find_port(space)
    if port is None:
        raise BadArgument("space", "a space of this program: a tupelo.Space or .here", space)
    return port


def find_port(thing: Any) -> Port | None:
    """The port of a space of this program, or of an object based on one; None for anything else."""
    port = getattr(thing, "_port", None)
    return port if isinstance(port, Port) else None


def check_entries(entries: Any, lease: RequestedLease, at: Any) -> tuple[Items, RequestedLease]:
    """The frozen entries of a `write_all`, and their leases. Raises BadArgument or BadEntry for
    entries, leases or places that cannot be used."""
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
        return items, check_lease(lease)
    if len(lease) != len(items):
        raise BadArgument("lease", f"one lease, or a list of {len(items)}", lease)
    return items, [check_lease(seconds) for seconds in lease]
