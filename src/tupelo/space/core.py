"""The core of a space: one atomic step at a time, without I/O, threads or a clock of its own.

The engine calls a method under its lock; the method either completes the step or raises and changes
nothing. The changes are left in `log.changes`, for the journal, and the callers to wake in `woken`;
the engine collects both before it releases the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any, Literal
from weakref import ReferenceType

from tupelo.errors import ReactionError
from tupelo.space import leases, matchset, reaction, transaction, waiting
from tupelo.space.capacity import Capacity, CapacityLimit
from tupelo.space.leases import Deadlines
from tupelo.space.log import Actor, CoreLog
from tupelo.space.matchset import MatchSetState
from tupelo.space.order import Fifo, Order
from tupelo.space.query import Query
from tupelo.space.reaction import ReactionState
from tupelo.space.search import SlicedSearch, search, stores_of
from tupelo.space.session import Pruning, SessionState, read_unread
from tupelo.space.subscription import Subscriptions, SubscriptionState
from tupelo.space.transaction import Txn
from tupelo.space.waiting import Items, Places, RequestedLease, Signal, Waiting, WriteOutcome
from tupelo.store.index import Store
from tupelo.store.watchers import Watchers
from tupelo.values.change import BY_REACTION, Ending
from tupelo.values.codec import encode_entry
from tupelo.values.entry import Entry, Shape, require_known
from tupelo.values.lease import LeasePolicy


class DirectedIndex:
    """The entries for each agent."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[Entry, None]] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry that was written or returned."""
        if entry.to is not None:
            self._entries.setdefault(entry.to, {})[entry] = None

    def to(self, agent: str) -> list[Entry]:
        """The entries for this agent that are in the space and not taken."""
        here = [entry for entry in self._entries.pop(agent, {}) if not entry.gone]
        if here:
            self._entries[agent] = dict.fromkeys(here)
        return here


_arrival = attrgetter("arrival")


class Core:
    """One space. `agent` is the origin of entries written here; `now` reads the clock."""

    def __init__(
        self,
        agent: str,
        now: Callable[[], float],
        *,
        order: Order | None = None,
        capacity: Capacity | None = None,
        lease_policy: LeasePolicy | None = None,
        logging: bool = False,
        encodes: bool = False,
        log_reads: bool = False,
        reactions_max: int = 10_000,
    ) -> None:
        self.agent = agent
        self.now = now
        self.store = Store()
        self.transactions: dict[Txn, None] = {}
        self.reactions: Watchers[ReactionState] = Watchers(self.store.shapes)
        self.reactions_max = reactions_max
        self.read_locks = 0
        self.woken: list[Signal] = []
        self._fresh: list[Entry] = []  # entries that became available in this step
        self.locks_changed = self.left = False  # whether entries left in this step
        self.removal_listeners: list[Callable[[Entry], None]] = []
        self.log = CoreLog(agent, now, logging, log_reads)
        self.waiting = Waiting(self)
        self.arrivals = 0
        self.returns = 0  # number of entries that came back
        self.deadlines = Deadlines()
        self.pruning = Pruning()
        self.directed = DirectedIndex()
        # Entries that were written with a delay, by the arrival that they had until it was over.
        self.delayed: dict[int, Entry] = {}
        self.sliced_searches: dict[SlicedSearch, None] = {}  # sliced searches in progress
        self.match_sets: dict[ReferenceType[MatchSetState], None] = {}
        self.subscriptions = Subscriptions(self)
        # The order that arranges matches, and the one that keeps books; often the same.
        self.order = None if order is None or type(order) is Fifo or order.by_arrival else order
        self.books = None if order is None or type(order) is Fifo else order
        self.room = None if capacity is None else CapacityLimit(capacity)
        self.lease_policy = lease_policy
        self.running: str | None = None
        self.closed = False
        self.disk_low = False  # whether to check the disk before each change
        # The number of waiters, subscriptions and reactions.
        self.watched = 0
        self._logs = logging
        self._encodes = encodes  # encode entries for the journal; refuse those without an encoding
        self._has_policy = (
            self.order is not None
            or capacity is not None
            or lease_policy is not None
            or self.log.reads
        )
        # Whether the fast path applies: only the store and plain takers matter.
        self.plain = not self._has_policy

    def reconsider(self) -> None:
        """Set `plain` at the end of a step."""
        self.plain = not (
            self._has_policy
            or self.watched > self.waiting.plain_takers
            or self.deadlines.heap
            or self.read_locks
            or self.pruning.memories
            or self.match_sets
            or self.closed
            or self.disk_low
        )

    def set_room(self, room: CapacityLimit) -> None:
        """Bound the space by this capacity from now on."""
        self.room = room
        self._has_policy = True
        self.reconsider()

    @contextmanager
    def user_code(self, what: str) -> Iterator[None]:
        """While user code runs, which may not use the space; `what` names it for the error."""
        before, self.running = self.running, what
        try:
            yield
        finally:
            self.running = before

    # Writing

    def write_fast(
        self,
        shape: Shape,
        fields: tuple[Any, ...],
        payload: bytes | None = None,
        actor: Actor | None = None,
    ) -> Entry | None:
        """Write to a plain space, directly to a waiting taker if there is one. Returns None if the
        space is not plain enough; then nothing was done."""
        taker = None
        if self.watched:
            if self.books is not None:
                return None
            taker = self.waiting.takers.take_first(shape, fields)
            if taker is NotImplemented:
                return None
        self.arrivals = n = self.arrivals + 1
        entry = Entry(fields, shape, actor.agent if actor else self.agent, n, n)
        if self.books is not None:
            self.books.admit(entry, None)
            if payload is not None and entry.fields is not fields:
                payload = encode_entry(shape, entry.fields)
        if self._logs:
            entry.arrival = self.log.position + 1
            self.log.add("written", entry, None, 0.0, payload, actor)
        if taker is None:
            bucket = self.store.buckets.get(shape)
            if bucket is None:
                bucket = self.store.know(shape)
            bucket.items.append(entry)  # inlined `Store.add`
            if bucket.indexes:
                bucket.enter(entry)
        else:
            entry.gone = True
            self.waiting.hand_over(taker, entry)
        return entry

    def first_fast(self, raw: Any, take: bool, actor: Actor | None) -> Any:
        """A match in a plain space, None, or NotImplemented: see `Store.first_fast`."""
        entry = self.store.first_fast(raw, take)
        if take and entry is not None and entry is not NotImplemented:
            if not self.log.on:
                if self.delayed or self.books is not None:
                    self.received(entry)
            elif self.books is not None:
                self.books.taken(entry)
            self.log.add("taken", entry, actor=actor)
        return entry

    def write_all(
        self,
        items: Items,
        lease: RequestedLease = None,
        txn: Txn | None = None,
        at: Places = None,
        mark: WriteOutcome | None = None,
        delay: float | None = None,
    ) -> list[Entry]:
        """Write all entries or none; they become visible together, after so many seconds of
        `delay`. `mark` gives the writer, if it is not this space's own agent, and the agent that
        the entries are for."""
        now = self.expire() + (delay or 0.0)
        if txn is not None:
            txn.require("active")
        payloads = [encode_entry(*item) for item in items] if self._encodes else None
        requested = lease if isinstance(lease, list) else [lease] * len(items)
        expires = leases.grant_entries(self.lease_policy, items, requested, now)
        entries = []
        for (shape, fields), until in zip(items, expires, strict=True):
            self.arrivals = n = self.arrivals + 1
            entry = Entry(fields, shape, self.agent, n, n, until, txn=txn)
            entries.append(entry if mark is None else mark.put_on(entry))
            self.store.know(shape)
            if delay:
                entry.visible = now
                entry.gone = True
        waiting.admit(self, entries, at, txn)
        if payloads and self.books is not None:  # The order may have added their places.
            payloads = [encode_entry(entry.shape, entry.fields) for entry in entries]
        if delay:
            if self.books is not None:  # They have their places, and nobody sees them there.
                for entry in entries:
                    self.books.taken(entry)
            if txn is not None:
                txn.delayed.update(dict.fromkeys(entries))
            else:
                self.delay(entries, payloads)
        elif txn is not None:
            self._write_within(txn, entries)
        elif self.reactions and reaction.wanted(self, entries):
            # A transaction for this step only; its commit runs the reactions.
            step = Txn("")
            self._write_within(step, entries)
            transaction.commit(self, step)
        else:
            self.publish(entries, payloads=payloads)
        for entry in entries:
            if entry.expires is not None and not entry.ended:
                self.deadlines.add(entry)
        return entries

    def _write_within(self, txn: Txn, entries: list[Entry]) -> None:
        for entry in entries:
            entry.txn = txn
            txn.store.add(entry)
        if txn.agenda is not None:
            txn.agenda.extend(entries)
        self.locks_changed = True
        self.notify_within(txn, entries)

    def notify_within(self, txn: Txn, entries: list[Entry]) -> None:
        """Notify the subscriptions and waiters of a transaction that wrote these entries. The
        effects of reactions are not visible before the step ends."""
        if self.watched and txn.id and txn.agenda is None:
            for entry in entries:
                self.subscriptions.notify(entry, "visible", txn)
            self._fresh.extend(entries)

    def delay(
        self, entries: list[Entry], payloads: list[bytes] | None = None, txn_id: str | None = None
    ) -> None:
        """Keep these entries until they become visible: at once, if their transaction took longer
        than the delay."""
        now = self.now()
        for i, entry in enumerate(entries):
            entry.txn = None
            entry.visible = max(entry.visible or now, now)
            if self.log.on:
                entry.arrival = self.log.position + 1
            self.log.add("delayed", entry, txn_id, payload=payloads[i] if payloads else None)
            self.keep_delayed(entry)

    def keep_delayed(self, entry: Entry) -> None:
        """Keep a delayed entry, which is in the log, until it becomes visible."""
        entry.gone = True
        entry.delayed = entry.arrival
        self.delayed[entry.arrival] = entry
        self.deadlines.add(leases.Appearance(entry))

    def appear(self, entry: Entry) -> None:
        """The delay of this entry is over: publish it, as if it was written at that moment."""
        when, entry.visible = entry.visible, None
        entry.gone = False
        entry.arrival = self.next_arrival()
        with self.log.by(Actor(entry.origin)):
            self.publish([entry], time=when)
        if self.reactions and reaction.wanted(self, [entry]):
            reaction.catch_up(self, [entry])

    def discard_delayed(self, entry: Entry) -> None:
        """Drop an entry that was never visible, because its delay was not over."""
        entry.txn = entry.visible = None
        self.discard(entry)

    def publish(
        self,
        entries: list[Entry],
        payloads: list[bytes] | None = None,
        txn_id: str | None = None,
        time: float | None = None,
        causes: dict[Entry, Entry | None] | None = None,
    ) -> None:
        """Add these entries to the space, all at once. `causes` has the entries to which reactions
        reacted when they wrote some of them."""
        for i, entry in enumerate(entries):
            if causes is not None:
                cause = causes.get(entry)
                txn_id = None if cause is None else f"{BY_REACTION}{cause.arrival}"
            if self.log.on:
                entry.arrival = self.log.position + 1
            self.store.add(entry)
            self.directed.add(entry)
            payload = payloads[i] if payloads else None
            self.log.add("written", entry, txn_id, payload=payload, time=time)
        if self.room is not None and entries:
            for victim in self.room.overflow(entries, self.store):
                self.store.remove(victim)
                self.release(victim)
                self.ended(victim, "evicted")
        if self.watched:
            for entry in entries:
                self.subscriptions.notify(entry, "visible")
            self._fresh.extend(entries)

    # Finding

    def get(self, query: Query, received: bool = True) -> list[Entry]:
        """The present matches, read or taken. Taken entries are removed for good if the caller has
        `received` them."""
        if self.deadlines.heap:
            self.expire()
        session = query.session
        if session is not None and (self.order or query.order or query.only) is None:
            return read_unread(self, query, session)
        found = self.find(query)
        if query.test:
            return found
        if query.take:
            for entry in found:
                self.acquire(entry, True, query.txn, session, received=received)
        else:
            self.read(found, query.holder, session)
        return found

    def count(self, raw: Any, txn: Txn | None = None, sliced: SlicedSearch | None = None) -> int:
        if self.deadlines.heap:
            self.expire()
        if txn is not None:
            txn.require("active")
        with self.user_code("a template"):
            if sliced is not None:
                sliced.advance(None)
                return sliced.count()
            return sum(store.count(store.question(raw)) for store in stores_of(self, txn))

    def find(self, query: Query) -> list[Entry]:
        """The present matches. Raises UnknownType if the query wants known classes only and this
        program does not have one of them."""
        if query.txn is not None:
            query.txn.require("active")
        if query.session is not None:
            query.session.require_open()
        before, self.running = self.running, "a template"
        try:
            found = search(self, query)
        finally:
            self.running = before
        if query.known:
            for entry in found:
                if not entry.shape.plain:
                    require_known(entry)
        return found

    def read(self, found: list[Entry], txn: Txn | None, session: SessionState | None) -> None:
        """Note that entries were read, if a transaction, session, capacity or log needs that."""
        if txn is not None or self.room is not None or self.log.reads:
            for entry in found:
                self.acquire(entry, False, txn, session)
        elif session is not None:
            for entry in found:
                session.seen.add_number(entry.origin, entry.n)

    def acquire(
        self,
        entry: Entry,
        take: bool,
        txn: Txn | None,
        session: SessionState | None,
        waited: float = 0.0,
        received: bool = True,
    ) -> None:
        """Read or take an entry that was found. `received` is False while the caller may be
        lost."""
        if take:
            if self.books is not None and not (txn is None and received):
                self.books.taken(entry)
            if txn is None:
                self.store.remove(entry)
                self.took(entry, None, waited, received)
            else:
                home: Txn | None = entry.txn
                (self.store if home is None else home.store).remove(entry)
                txn.taken[entry] = home
                entry.txn = txn
                if waited:
                    txn.waited[entry] = waited
                self.locks_changed = True
            return
        if txn is not None and entry.txn is not txn and txn.agenda is None:
            transaction.hold(self, txn, entry)
        if session is not None:
            session.seen.add(entry)
        if self.room is not None:
            self.room.touch(entry)
        if self.log.reads and entry.txn is None:  # Uncommitted entries are not in the log yet.
            txn_id, session_id = txn.id if txn else None, session.id if session else None
            self.log.add("read", entry, txn_id, waited, session=session_id)

    # Removed and returned entries

    def took(
        self,
        entry: Entry,
        txn_id: str | None,
        waited: float = 0.0,
        received: bool = True,
        how: Literal["taken", "moved"] = "taken",
    ) -> None:
        """The entry was taken; it can be returned until it is `received`."""
        self.release(entry, received)
        self.ended(entry, how, txn_id, waited)
        if self.match_sets:
            matchset.lose(self, entry)

    def ended(
        self, entry: Entry, how: Ending, txn_id: str | None = None, waited: float = 0.0
    ) -> None:
        """Log that a visible entry was removed, and notify the subscriptions to removals."""
        self.log.add(how, entry, txn_id, waited)
        self.subscriptions.notify(entry, how)

    def discard(self, entry: Entry) -> None:
        """Drop an entry that was never visible outside its transaction."""
        self.release(entry, published=False)

    def give_back(self, entry: Entry, home: Txn | None) -> bool:
        """Return an entry to where a transaction took it from; False if it has expired."""
        entry.txn = home
        if entry.expires is not None and entry.expires <= self.now():
            entry.txn = None
            self.release(entry, published=home is None)
            if home is None:
                self.ended(entry, "expired")
            return False
        (self.store if home is None else home.store).restore(entry)
        if home is None:
            self.directed.add(entry)
        return True

    def released(self, entry: Entry, txn: Txn) -> None:
        """An entry of the space that this transaction had taken is back."""
        entry.count_delivery()
        self.log.add("released", entry, txn.id, actor=txn.actor)

    def undo(self, entry: Entry, query: Query) -> None:
        """Return an entry that a query got, because its caller was lost before the answer."""
        txn, session = query.txn, query.session
        if query.test:
            return
        if not query.take:
            if session is not None:
                session.seen.discard(entry)
                if not entry.gone:
                    self.offer(entry)
        elif txn is not None:
            self.locks_changed = True
            promised = txn.state != "active"
            if not promised and entry in txn.taken:
                home = txn.taken.pop(entry)
                if self.give_back(entry, home):
                    if home is None:
                        self.released(entry, txn)
                    self.visible_again(entry)
        elif entry.expires is None or entry.expires > self.now():
            self.store.restore(entry)
            if self.room is not None:
                self.room.add([entry])
            self.deadlines.add(entry)
            self.directed.add(entry)
            entry.count_delivery()
            self.log.add("returned", entry)
            if not self.closed:
                self.subscriptions.notify(entry, "available", returned=True)
            self.offer(entry)
        else:
            self.received(entry)

    def visible_again(self, entry: Entry) -> None:
        if entry.gone:
            return
        if entry.txn is None and self.watched:
            self.subscriptions.notify(entry, "visible", returned=True)
            if self.reactions and reaction.wanted(self, [entry]):
                with suppress(ReactionError):  # The reaction keeps its error.
                    reaction.react_to(self, [entry])
        if not entry.gone:
            self.offer(entry)

    def available_again(self, entry: Entry) -> None:
        self.subscriptions.notify(entry, "available", entry.txn)
        self.offer(entry)

    def offer(self, entry: Entry) -> None:
        """Offer an available entry to waiters, which get it at the end of the step."""
        self.returns += 1
        if self.watched:
            self._fresh.append(entry)
        for sliced in self.sliced_searches:
            sliced.offer(entry)

    def serve(self) -> None:
        """At the end of a step, serve the waiters with what became available, and the waiting
        writers if entries have left."""
        self._serve_fresh()
        while self.waiting.writers.ready:
            self.waiting.writers.serve()
            self._serve_fresh()

    def _serve_fresh(self) -> None:
        fresh: list[Entry] = []
        if self._fresh:
            fresh = [entry for entry in dict.fromkeys(self._fresh) if not entry.gone]
            self._fresh.clear()
            fresh.sort(key=_arrival)
        left = self.left or self.locks_changed
        if fresh or (left and self.waiting.choosing.count):
            self.waiting.serve(fresh, left)
        self.left = False
        if self.locks_changed:
            self.locks_changed = False
            self.waiting.writers.may_go = True
            self.waiting.recheck()

    def release(self, entry: Entry, received: bool = True, published: bool = True) -> None:
        """An entry has left, and its capacity is free. Its key and place stay reserved until the
        taker has `received` it. An entry that was not `published` was in a transaction only."""
        if self.room is not None:
            self.room.remove(entry)
        if entry.expires is not None:
            self.deadlines.left()
        self.waiting.writers.may_go = self.left = True
        if received:
            self.received(entry, published)

    def received(self, entry: Entry, published: bool = True) -> None:
        """The entry will not be returned: free its key and place, and notify listeners."""
        if self.books is not None:
            self.books.forget(entry)
            self.waiting.writers.may_go = self.left = True
        self.pruning.gone(entry)
        if entry.delayed is not None:
            self.delayed.pop(entry.delayed, None)
        if published:
            for listener in self.removal_listeners:
                listener(entry)

    def next_arrival(self) -> int:
        self.arrivals += 1
        return self.arrivals

    def end_within(self, txn: Txn) -> None:
        """End the waiters, match sets and subscriptions of a transaction that ends."""
        self.waiting.end_within(txn)
        if self.match_sets:
            matchset.end_within(self, txn)
        for subscription in self.subscriptions.watchers:
            if subscription.txn is txn:
                self.end_subscription(subscription)

    def expire(self) -> float:
        """End everything whose lease has run out, in order and at its own time."""
        now = self.now()
        if self.running == "a reaction":  # Time stands still within a step.
            return now
        for thing in self.deadlines.due(now):
            leases.end(self, thing, "expired", transaction.LEASE_RAN_OUT)
        self.serve()
        return now

    def grant(self, kind: str, requested: float | None, now: float) -> float | None:
        return leases.grant(self.lease_policy, kind, requested, now)

    # Endings

    def end_subscription(
        self, subscription: SubscriptionState, error: Exception | None = None
    ) -> None:
        if not subscription.ended:
            self.watched -= 1
            self.subscriptions.end(subscription, error)

    def end_reaction(self, state: ReactionState) -> None:
        state.ended = True
        if state in self.reactions:
            self.reactions.discard(state)
            self.watched -= 1
            self.pruning.memories.pop(state.fired, None)

    def close(self, error: Exception) -> None:
        """Fail the waiters with this error, and end the subscriptions."""
        self.closed = True
        self.waiting.close(error)
        for subscription in self.subscriptions.watchers:
            self.end_subscription(subscription)
