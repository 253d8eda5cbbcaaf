"""The core: it decides. No I/O, no threads, no clock of its own; one step at a time.

A shell calls a method under its lock; the method does the whole step or raises and does nothing.
What happened is left in `log.changes`, for the journal, and whom to wake in `woken`; the shell
collects both before anyone else gets in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any, Literal
from weakref import ReferenceType

from tupelo.errors import ReactionError
from tupelo.space import leases, matchset, reaction, transaction, writers
from tupelo.space.capacity import Capacity, CapacityLimit
from tupelo.space.deadlines import Deadlines
from tupelo.space.directed import DirectedIndex
from tupelo.space.finding import search, stores_of
from tupelo.space.log import Actor, CoreLog
from tupelo.space.matchset import MatchSetState
from tupelo.space.order import Fifo, Order
from tupelo.space.query import Query
from tupelo.space.reaction import ReactionState
from tupelo.space.session import Pruning, SessionState, read_unread
from tupelo.space.sliced_search import SlicedSearch
from tupelo.space.subscription import Subscriptions, SubscriptionState
from tupelo.space.transaction import Txn
from tupelo.space.waiting import Signal, Waiting
from tupelo.space.writers import Asked, Items, Places, WriteOutcome
from tupelo.store.index import Store
from tupelo.store.watchers import Watchers
from tupelo.values.codec import encode_entry
from tupelo.values.entry import Entry, Shape, require_known
from tupelo.values.lease import LeasePolicy

_arrival = attrgetter("arrival")


class Core:
    """One space. `agent` is the origin of what is written here; `now` is the handed-in clock."""

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
        self._fresh: list[Entry] = []  # what has become available in this step
        self.locks_changed = self.left = False  # whether something has left in this step
        self.removal_listeners: list[Callable[[Entry], None]] = []  # told of what is gone for good
        self.log = CoreLog(agent, now, logging, log_reads)
        self.waiting = Waiting(self)
        self.arrivals = 0
        self.returns = 0  # how often an entry came back to its place
        self.deadlines = Deadlines()
        self.pruning = Pruning()
        self.directed = DirectedIndex()
        self.surveys: dict[SlicedSearch, None] = {}  # searches under way, in slices
        self.match_sets: dict[ReferenceType[MatchSetState], None] = {}
        self.subscriptions = Subscriptions(self)
        # The order that arranges, and the one that keeps books, which may be the same.
        self.order = None if order is None or type(order) is Fifo or order.by_arrival else order
        self.books = None if order is None or type(order) is Fifo else order
        self.room = None if capacity is None else CapacityLimit(capacity)
        self.lease_policy = lease_policy
        self.running: str | None = None
        self.closed = False
        self.disk_low = False  # Must the disk be asked before a change?
        # Who must be heeded when an entry comes: how many wait, listen or react.
        self.watched = 0
        self._logs = logging
        self._encodes = encodes  # into bytes, for the journal: what has no encoding is refused
        self._has_policy = (
            self.order is not None
            or capacity is not None
            or lease_policy is not None
            or self.log.reads
        )
        # Whether operations now have nothing to heed but the store and plain takers.
        self.plain = not self._has_policy

    def reconsider(self) -> None:
        """At the end of a step, in which anything may have changed: is the space plain again?"""
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
        """Every write heeds this room from now on."""
        self.room = room
        self._has_policy = True
        self.reconsider()

    @contextmanager
    def user_code(self, what: str) -> Iterator[None]:
        """While functions of the user's run, which may not use the space."""
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
        """Write to a plain space, straight to the one who waits, if one does. None: it is not
        that plain, and nothing was done."""
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
            bucket.items.append(entry)  # as `Store.add` does, without the call
            if bucket.indexes:
                bucket.enter(entry)
        else:
            entry.gone = True
            self.waiting.hand_over(taker, entry)
        return entry

    def first_fast(self, raw: Any, take: bool, actor: Actor | None) -> Any:
        """A match in a plain space, or None, or NotImplemented: see `Store.first_fast`."""
        entry = self.store.first_fast(raw, take)
        if take and entry is not None and entry is not NotImplemented:
            if self.books is not None:
                (self.books.taken if self.log.on else self.books.forget)(entry)
            self.log.add("taken", entry, actor=actor)
        return entry

    def write_all(
        self,
        items: Items,
        lease: Asked = None,
        txn: Txn | None = None,
        at: Places = None,
        mark: WriteOutcome | None = None,
    ) -> list[Entry]:
        """Write all of them or none; they become visible together. A `mark` says who writes, if it
        is not this space's own agent, and for whom."""
        now = self.expire()
        if txn is not None:
            txn.require("active")
        payloads = [encode_entry(*item) for item in items] if self._encodes else None
        asked = lease if isinstance(lease, list) else [lease] * len(items)
        expires = leases.grant_entries(self.lease_policy, items, asked, now)
        entries = []
        for (shape, fields), until in zip(items, expires, strict=True):
            self.arrivals = n = self.arrivals + 1
            entry = Entry(fields, shape, self.agent, n, n, until, txn=txn)
            entries.append(entry if mark is None else mark.put_on(entry))
            self.store.know(shape)
        writers.admit(self, entries, at, txn)
        if payloads and self.books is not None:  # It may have marked them with their places.
            payloads = [encode_entry(entry.shape, entry.fields) for entry in entries]
        if txn is not None:
            self._write_within(txn, entries)
        elif self.reactions and reaction.wanted(self, entries):
            # Within a transaction that lasts as long as the step; its commit lets them react.
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
        self.told_within(txn, entries)

    def told_within(self, txn: Txn, entries: list[Entry]) -> None:
        """Tell those who listen or wait within a transaction that it now has these. Nobody sees
        what a reaction does before the step is over."""
        if self.watched and txn.id and txn.agenda is None:
            for entry in entries:
                self.subscriptions.notify(entry, "visible", txn)
            self._fresh.extend(entries)

    def publish(
        self, entries: list[Entry], payloads: list[bytes] | None = None, txn_id: str | None = None
    ) -> None:
        """These entries are in the space now, all at once."""
        for i, entry in enumerate(entries):
            if self.log.on:
                entry.arrival = self.log.position + 1
            self.store.add(entry)
            self.directed.add(entry)
            self.log.add("written", entry, txn_id, payload=payloads[i] if payloads else None)
        if self.room is not None and entries:
            for victim in self.room.overflow(entries, self.store):
                self.store.remove(victim)
                self.release(victim)
                self.log.add("evicted", victim)
        if self.watched:
            for entry in entries:
                self.subscriptions.notify(entry, "visible")
            self._fresh.extend(entries)

    # Finding

    def get(self, query: Query, received: bool = True) -> list[Entry]:
        """What matches at this moment, read or taken. What was taken is gone for good if the taker
        has `received` it by now."""
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

    def count(self, raw: Any, txn: Txn | None = None, survey: SlicedSearch | None = None) -> int:
        if self.deadlines.heap:
            self.expire()
        if txn is not None:
            txn.require("active")
        with self.user_code("a template"):
            if survey is not None:
                survey.advance(None)
                return survey.count()
            return sum(store.count(store.question(raw)) for store in stores_of(self, txn))

    def find(self, query: Query) -> list[Entry]:
        """What is there to be had now. UnknownType if it must be `known`, and this program lacks
        its class."""
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
        """Hand over what was found, to be read: most often, there is nothing to note."""
        if txn is not None or session is not None or self.room is not None or self.log.reads:
            for entry in found:
                self.acquire(entry, False, txn, session)

    def acquire(
        self,
        entry: Entry,
        take: bool,
        txn: Txn | None,
        session: SessionState | None,
        waited: float = 0.0,
        received: bool = True,
    ) -> None:
        """Hand over what was found. `received` is False while the receiver may yet vanish."""
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
        if self.log.reads and entry.txn is None:  # Else it is not there yet for the log.
            txn_id, session_id = txn.id if txn else None, session.id if session else None
            self.log.add("read", entry, txn_id, waited, session=session_id)

    # What ends and comes back

    def took(
        self,
        entry: Entry,
        txn_id: str | None,
        waited: float = 0.0,
        received: bool = True,
        how: Literal["taken", "moved"] = "taken",
    ) -> None:
        """The entry was taken, for good unless its taker vanishes before it is `received`."""
        self.release(entry, received)
        self.log.add(how, entry, txn_id, waited)
        if self.match_sets:
            matchset.lose(self, entry)

    def discard(self, entry: Entry) -> None:
        """The entry was never seen outside a transaction, and never will be."""
        self.release(entry, published=False)

    def give_back(self, entry: Entry, home: Txn | None) -> bool:
        """Put an entry back where a transaction took it from, unless its time has come."""
        entry.txn = home
        if entry.expires is not None and entry.expires <= self.now():
            entry.txn = None
            self.release(entry, published=home is None)
            if home is None:
                self.log.add("expired", entry)
            return False
        (self.store if home is None else home.store).restore(entry)
        if home is None:
            self.directed.add(entry)
        return True

    def visible_again(self, entry: Entry) -> None:
        if entry.gone:
            return
        if entry.txn is None and self.watched:
            self.subscriptions.notify(entry, "visible", returned=True)
            if self.reactions and reaction.wanted(self, [entry]):
                with suppress(ReactionError):  # It keeps its error; the entry is back all the same.
                    reaction.react_to(self, [entry])
        if not entry.gone:
            self.offer(entry)

    def available_again(self, entry: Entry) -> None:
        self.subscriptions.notify(entry, "available", entry.txn)
        self.offer(entry)

    def offer(self, entry: Entry) -> None:
        """This entry may be had again; who waits for it gets it at the end of the step."""
        self.returns += 1
        if self.watched:
            self._fresh.append(entry)
        for survey in self.surveys:
            survey.offer(entry)

    def serve(self) -> None:
        """At the end of a step: those who wait get what has become available in it, and those
        who wait to write may, if something has left."""
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
        """It has left. Its key and its place stay its own until whoever took it has `received` it,
        and may not vanish any more; its room does not. One that was never `published` was in a
        transaction only."""
        if self.room is not None:
            self.room.remove(entry)
        if entry.expires is not None:
            self.deadlines.left()
        self.waiting.writers.may_go = self.left = True
        if received:
            self.received(entry, published)

    def received(self, entry: Entry, published: bool = True) -> None:
        """It will not come back."""
        if self.books is not None:
            self.books.forget(entry)
            self.waiting.writers.may_go = self.left = True
        self.pruning.gone(entry)
        if published:
            for listener in self.removal_listeners:
                listener(entry)

    def next_arrival(self) -> int:
        self.arrivals += 1
        return self.arrivals

    def end_within(self, txn: Txn) -> None:
        """A transaction ends: whoever waits or listens in it does so no more."""
        self.waiting.end_within(txn)
        if self.match_sets:
            matchset.end_within(self, txn)
        for subscription in self.subscriptions.watchers:
            if subscription.txn is txn:
                self.end_subscription(subscription)

    def expire(self) -> float:
        """End, at its own time and in order, everything whose lease has run out."""
        now = self.now()
        if self.running == "a reaction":  # A step is under way, and time stands still in it.
            return now
        for thing in self.deadlines.due(now):
            leases.end(self, thing, "expired", transaction.LEASE_RAN_OUT)
        self.serve()
        return now

    def grant(self, kind: str, asked: float | None, now: float) -> float | None:
        return leases.grant(self.lease_policy, kind, asked, now)

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
        """Whoever waits is told why; nothing more will happen here."""
        self.closed = True
        self.waiting.close(error)
        for subscription in self.subscriptions.watchers:
            self.end_subscription(subscription)
