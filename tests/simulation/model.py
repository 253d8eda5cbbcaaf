"""A naive model of one space, for the stateful tests: a list of entries, searched from end to end.

It is written to be obviously right and has nothing in common with the engine: no index, no
heap, no undo log. Templates are plain predicates; a step is "change the list, then `serve`
everyone who waits, from the top". Time is a number that `advance` moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tupelo.errors import (
    Deadlock,
    LeaseLost,
    Livelock,
    ReactionError,
    ReactionFailed,
    SpaceClosed,
    SpaceFull,
    TransactionEnded,
    TransactionError,
)

Predicate = Callable[[Any], bool]
Arrange = Callable[[list["Item"]], list["Item"]]
Function = Callable[[Any, Any], object]


def same(a: object, b: object) -> bool:
    """The same type and value, all the way down; NaN is the same as nothing."""
    return repr(a) == repr(b) and "nan" not in repr(a)


def fifo(items: list[Item]) -> list[Item]:
    return items


def lifo(items: list[Item]) -> list[Item]:
    return items[::-1]


@dataclass(frozen=True)
class HeadOnly:
    """Only the first of all entries that an operation sees may be had, if it is wanted."""

    arrange: Arrange

    def __call__(self, items: list[Item]) -> list[Item]:
        return self.arrange(items)


def by_key(key: Callable[[Any], Any], reverse: bool = False) -> Arrange:
    return lambda items: sorted(items, key=lambda item: key(item.value), reverse=reverse)


@dataclass(eq=False)
class Item:
    """An entry. `writer` has not committed it yet; `taker` took it and has not ended."""

    value: Any
    arrival: int
    expires: float | None
    granted: int
    used: int
    writer: Txn | None = None
    taker: Txn | None = None
    readers: list[Txn] = field(default_factory=list)


@dataclass(eq=False)
class Txn:
    parent: Txn | None
    expires: float | None
    granted: int
    state: str = "active"
    takes: list[Item] = field(default_factory=list)
    reads: list[Item] = field(default_factory=list)

    def line(self) -> Iterator[Txn]:
        """This transaction and those above it."""
        txn: Txn | None = self
        while txn is not None:
            yield txn
            txn = txn.parent

    def require(self, *states: str) -> None:
        if self.state not in states:
            raise TransactionEnded("model", self.state)


@dataclass(eq=False)
class Session:
    expires: float | None
    granted: int
    seen: list[Item]
    ended: bool = False


@dataclass(eq=False)
class Event:
    """What is subscribed to; subscriptions to the same thing share its sequence."""

    key: tuple[str, bool, Txn | None]
    sequence: int = 0


@dataclass(eq=False)
class Subscription:
    wants: Predicate
    event: Event
    available: bool
    txn: Txn | None
    backlog_max: int
    expires: float | None
    granted: int
    backlog: list[tuple[int, str, Any]] = field(default_factory=list)
    missed: int = 0
    ended: bool = False

    def next(self) -> tuple[int, str, Any, int] | None:
        """(sequence, kind, entry, missed) of the oldest notice."""
        if not self.backlog:
            return None
        missed, self.missed = self.missed, 0
        return *self.backlog.pop(0), missed


@dataclass(eq=False)
class Reaction:
    wants: Predicate
    function: Function
    once: bool
    fired: list[Item] = field(default_factory=list)
    ended: bool = False


@dataclass(eq=False)
class Waiter:
    """A parked read or take. `limit` is None for one on a single entry, 0 for no limit."""

    wants: Predicate
    take: bool
    limit: int | None
    txn: Txn | None
    arrange: Arrange | None
    session: Session | None
    if_exists: bool
    until: float | None
    done: bool = False
    items: list[Item] = field(default_factory=list)
    error: type[Exception] | None = None

    @property
    def answer(self) -> Any:
        if self.limit is not None:
            return [item.value for item in self.items]
        return self.items[0].value if self.items else None


class Space:
    """One space. Every method is one step; errors are those of `tupelo.errors`."""

    def __init__(
        self,
        now: float,
        arrange: Arrange = fifo,
        capacity: int | None = None,
        evict: str | None = None,
        longest: float | None = None,
        reactions_max: int = 10_000,
    ) -> None:
        self.now = now
        self.arrange = arrange
        self.capacity = capacity
        self.evict = evict
        self.longest = longest
        self.reactions_max = reactions_max
        self.items: list[Item] = []  # in order of arrival, always
        self.txns: list[Txn] = []
        self.waiters: list[Waiter] = []
        self.sessions: list[Session] = []
        self.subscriptions: list[Subscription] = []
        self.reactions: list[Reaction] = []
        self._count = 0

    # Writing

    def write_all(
        self, values: list[Any], lease: float | None = None, txn: Txn | None = None
    ) -> list[Item]:
        if txn is not None:
            txn.require("active")
        before = self._snapshot()
        self._require_room(len(values), txn)
        items = [self._new(value, lease, txn) for value in values]
        if txn is not None:
            self._notify(items, "visible", txn)
        else:
            step = Txn(None, None, 0)
            for item in items:
                item.writer = step
            try:
                self._react(step, items)
            except ReactionError:
                self._restore(before)
                raise
            self._settle(step)
        self.serve()
        return items

    def _new(self, value: Any, lease: float | None, txn: Txn | None) -> Item:
        number = self._next()
        item = Item(value, number, self._until(lease), number, number, txn)
        self.items.append(item)
        return item

    def _require_room(self, coming: int, txn: Txn | None) -> None:
        """Can these be made to fit? They push others out when they become visible, and what the
        writer's own transaction has taken leaves by then."""
        if self.capacity is None:
            return
        line = list(txn.line()) if txn else []
        leaving = sum(item.taker in line for item in self.items if item.taker is not None)
        excess = len(self.items) - leaving + coming - self.capacity
        if excess > (len(self._evictable()) if self.evict else 0):
            raise SpaceFull

    def _make_room(self, newest: list[Item]) -> None:
        if self.capacity is None or self.evict is None or not newest:
            return
        excess = max(0, len(self.items) - self.capacity)
        for victim in [item for item in self._evictable() if item not in newest][:excess]:
            self.items.remove(victim)

    def _evictable(self) -> list[Item]:
        """What may give way, the first to go first: nothing that a transaction holds."""
        free = [i for i in self.items if i.writer is None and i.taker is None and not i.readers]
        return sorted(free, key=lambda item: item.used) if self.evict == "lru" else free

    # Finding

    def visible(self, txn: Txn | None = None) -> list[Item]:
        """What an operation sees: the space's entries, then those of the transactions above."""
        writers = [None, *reversed(list(txn.line()))] if txn else [None]
        return [
            item
            for writer in writers
            for item in self.items
            if item.writer is writer and item.taker is None
        ]

    def find(
        self,
        wants: Predicate,
        limit: int | None,
        take: bool,
        txn: Txn | None = None,
        arrange: Arrange | None = None,
        session: Session | None = None,
    ) -> list[Item]:
        if txn is not None:
            txn.require("active")
        if session is not None and session.ended:
            raise LeaseLost
        line = list(txn.line()) if txn else []
        arrange = arrange or self.arrange
        found = self.visible(txn)
        if isinstance(arrange, HeadOnly):
            found = arrange(found)[:1]
        found = [item for item in found if wants(item.value)]
        if take:
            found = [item for item in found if all(reader in line for reader in item.readers)]
        if session is not None:
            found = [item for item in found if item not in session.seen]
        found = arrange(found)
        return found[:1] if limit is None else found[: limit or None]

    def get(
        self,
        wants: Predicate,
        limit: int | None,
        take: bool,
        txn: Txn | None = None,
        arrange: Arrange | None = None,
        session: Session | None = None,
    ) -> list[Item]:
        """Read or take at once; `limit` is None for a single entry, 0 for no limit."""
        found = self.find(wants, limit, take, txn, arrange, session)
        for item in found:
            self._acquire(item, take, txn, session)
        self.serve()
        return found

    def given_back(self, wants: Predicate, limit: int | None, arrange: Arrange | None) -> None:
        """Someone has taken these, and vanished before it got them."""
        self._available_again(self.find(wants, limit, True, None, arrange, None))

    def count(self, wants: Predicate, txn: Txn | None = None) -> int:
        if txn is not None:
            txn.require("active")
        return sum(wants(item.value) for item in self.visible(txn))

    def _acquire(self, item: Item, take: bool, txn: Txn | None, session: Session | None) -> None:
        if take:
            if txn is None:
                self.items.remove(item)
            else:
                item.taker = txn
                txn.takes.append(item)
            return
        if txn is not None and item.writer is not txn and txn not in item.readers:
            item.readers.append(txn)
            txn.reads.append(item)
        if session is not None:
            session.seen.append(item)
        item.used = self._next()

    # Waiting

    def park(
        self,
        wants: Predicate,
        limit: int | None,
        take: bool,
        wait: float | None,
        txn: Txn | None = None,
        arrange: Arrange | None = None,
        session: Session | None = None,
        if_exists: bool = False,
    ) -> Waiter:
        """Read or take, or wait for a match. A waiter that is done has its answer."""
        until = None if wait is None else self.now + wait
        waiter = Waiter(wants, take, limit, txn, arrange, session, if_exists, until)
        try:
            waiter.items = self.get(wants, limit, take, txn, arrange, session)
        except (TransactionEnded, LeaseLost) as error:
            waiter.error = type(error)
        waiter.done = bool(waiter.items) or waiter.error is not None
        if not waiter.done:
            self.waiters.append(waiter)
            self.serve()
        return waiter

    def serve(self) -> None:
        """Answer everyone who can be answered now: readers first, then takers, oldest first."""
        while self._serve_up_to_a_taker():  # What it took may have hidden an entry from others.
            pass
        for waiter in list(self.waiters):
            if waiter.if_exists and not self.blockers(waiter):
                self._answer(waiter, [])
        for waiter in reversed(self.waiters):
            if self.is_stuck(waiter):  # The last who came closed the circle.
                self._answer(waiter, [], Deadlock)

    def _serve_up_to_a_taker(self) -> bool:
        readers = [waiter for waiter in self.waiters if not waiter.take]
        takers = [waiter for waiter in self.waiters if waiter.take]
        for waiter in readers + takers:
            found = self.find(
                waiter.wants, waiter.limit, waiter.take, waiter.txn, waiter.arrange, waiter.session
            )
            if found:
                for item in found:
                    self._acquire(item, waiter.take, waiter.txn, waiter.session)
                self._answer(waiter, found)
                if waiter.take:
                    return True
        return False

    def vanish(self, waiter: Waiter) -> None:
        """The one who waits is cancelled, perhaps at the moment of delivery: nothing is lost."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        for item in waiter.items:
            if waiter.session is not None:
                waiter.session.seen.remove(item)
            if waiter.take:
                self._undo_take(item, waiter.txn)
        waiter.items = []
        self.serve()

    def _undo_take(self, item: Item, txn: Txn | None) -> None:
        if txn is None:
            self.items.append(item)
            self.items.sort(key=lambda i: i.arrival)
            item.used = self._next()
        else:
            item.taker = None
            txn.takes.remove(item)
        if self._is_over(item):
            self.items.remove(item)
        elif txn is not None:
            self._visible_again([item])
        else:
            self._available_again([item])

    def time_out(self) -> None:
        """Those whose patience has come to its end look up."""
        for waiter in list(self.waiters):
            if waiter.until is not None and waiter.until <= self.now:
                self._answer(waiter, [])
        self.serve()  # Those who hoped that they would go on need hope no more.

    def blockers(self, waiter: Waiter) -> list[Txn]:
        """The transactions on whose outcome it depends whether there will be a match."""
        line = list(waiter.txn.line()) if waiter.txn else []
        held = [item for item in self.items if waiter.wants(item.value)]
        found = []
        for txn in self.txns:
            for item in held:
                if item.taker is not None:
                    comes_back = item.writer is not txn and not self._is_over(item)
                    blocks = item.taker is txn and comes_back
                else:
                    blocks = item.writer is txn or (waiter.take and txn in item.readers)
                if blocks and txn not in line and txn not in found:
                    found.append(txn)
        return found

    def is_stuck(self, waiter: Waiter) -> bool:
        """Does it depend only on those who wait themselves, and they, in a circle, on it?"""
        if waiter.txn is None:
            return False
        reached = [waiter]
        depended_on: list[Txn] = []
        for one in reached:
            blockers = self.blockers(one)
            if not blockers:
                return False  # Anybody's write may serve it.
            for txn in blockers:
                waits = [w for w in self.waiters if w.txn is not None and txn in w.txn.line()]
                if not waits:
                    return False  # It may yet commit.
                reached += [w for w in waits if w not in reached]
            depended_on += blockers
        return any(txn in depended_on for txn in waiter.txn.line())

    def _answer(
        self, waiter: Waiter, items: list[Item], error: type[Exception] | None = None
    ) -> None:
        self.waiters.remove(waiter)
        waiter.items, waiter.error, waiter.done = items, error, True

    # Transactions

    def begin(self, lease: float | None = None, parent: Txn | None = None) -> Txn:
        if parent is not None:
            parent.require("active")
        txn = Txn(parent, self._until(lease), self._next())
        self.txns.append(txn)
        return txn

    def prepare(self, txn: Txn) -> str:
        txn.require("active")
        self._require_no_children(txn)
        if txn.parent is not None:
            raise TransactionError
        if not any((item.writer is txn) != (item.taker is txn) for item in self.items):
            self.commit(txn)
            return "not changed"
        self._react_or_abort(txn)
        txn.state, txn.expires = "prepared", None
        self._dismiss(txn)
        self.serve()
        return "prepared"

    def commit(self, txn: Txn) -> None:
        txn.require("active", "prepared")
        self._require_no_children(txn)
        if txn.parent is None:
            if txn.state == "active":
                self._react_or_abort(txn)
            self._end(txn, "committed")
            self._settle(txn)
        else:
            self._end(txn, "committed")
            self._hand_over(txn, txn.parent)
        self.serve()

    def _react_or_abort(self, txn: Txn) -> None:
        before = self._snapshot()
        try:
            self._react(txn, [item for item in self.items if item.writer is txn])
        except ReactionError:
            self._restore(before)
            self.abort(txn)
            raise

    def _settle(self, txn: Txn) -> None:
        """A transaction becomes everybody's: what it took is gone, what it wrote arrives."""
        for item in txn.takes:
            self.items.remove(item)
        self._available_again(self._unlock(txn))
        written = [item for item in self.items if item.writer is txn]
        for item in written:
            self._arrive(item, None)
        self._make_room(written)
        self._notify(written, "visible")

    def _hand_over(self, txn: Txn, parent: Txn) -> None:
        for item in txn.takes:
            if item.writer in (parent, txn):
                self.items.remove(item)
            else:
                item.taker = parent
                parent.takes.append(item)
        for item in txn.reads:
            item.readers.remove(txn)
            if parent not in item.readers and item.writer is not parent:
                item.readers.append(parent)
                parent.reads.append(item)
        written = [item for item in self.items if item.writer is txn]
        for item in written:
            self._arrive(item, parent)
        self._notify(written, "visible", parent)

    def _arrive(self, item: Item, writer: Txn | None) -> None:
        item.writer = writer
        item.arrival = item.used = self._next()
        self.items.remove(item)
        self.items.append(item)

    def abort(self, txn: Txn) -> None:
        if txn.state == "aborted":
            return
        txn.require("active", "prepared")
        self._abort(txn)
        self.serve()

    def _abort(self, txn: Txn) -> None:
        for child in [child for child in self.txns if child.parent is txn]:
            self._abort(child)
        self._end(txn, "aborted")
        self.items = [item for item in self.items if item.writer is not txn]
        back = []
        for item in [item for item in txn.takes if item in self.items]:
            item.taker = None
            if self._is_over(item):
                self.items.remove(item)
            else:
                back.append(item)
        freed = self._unlock(txn)
        self._available_again([item for item in freed if item not in back])
        self._visible_again(back)

    def _unlock(self, txn: Txn) -> list[Item]:
        """Give up what was held by reading: what can be taken again?"""
        for item in txn.reads:
            item.readers.remove(txn)
        return [item for item in txn.reads if not item.readers]

    def _available_again(self, items: list[Item]) -> None:
        for item in items:
            if item in self.items and item.taker is None:
                self._notify([item], "available", item.writer)

    def _visible_again(self, items: list[Item]) -> None:
        for item in items:
            if item.writer is None and item in self.visible():
                self._notify([item], "visible")
                self._react_to([item])

    def _end(self, txn: Txn, state: str) -> None:
        txn.state = state
        self.txns.remove(txn)
        self._dismiss(txn)
        for subscription in list(self.subscriptions):
            if subscription.txn is txn:
                self.unsubscribe(subscription)

    def _dismiss(self, txn: Txn) -> None:
        for waiter in list(self.waiters):
            if waiter.txn is txn:
                self._answer(waiter, [], TransactionEnded)

    def _require_no_children(self, txn: Txn) -> None:
        if any(child.parent is txn for child in self.txns):
            raise TransactionError

    # Leases

    def renew(self, thing: Item | Txn | Session | Subscription, lease: float | None) -> None:
        if not self._lives(thing) or (isinstance(thing, Txn) and thing.state == "prepared"):
            raise LeaseLost
        if isinstance(thing, Item) and self._is_over(thing):
            raise LeaseLost  # A transaction holds it, but it will not come back.
        self._require_undecided(thing)
        thing.expires = self._until(lease)
        thing.granted = self._next()

    def cancel(self, thing: Item | Txn | Session | Subscription) -> None:
        if not self._lives(thing) or (isinstance(thing, Item) and thing.taker is not None):
            raise LeaseLost
        self._require_undecided(thing)
        self._finish(thing)
        self.serve()

    def _require_undecided(self, thing: Item | Txn | Session | Subscription) -> None:
        if isinstance(thing, Item) and thing.writer is not None:
            thing.writer.require("active")  # What was promised is not changed any more.

    def _lives(self, thing: Item | Txn | Session | Subscription) -> bool:
        if isinstance(thing, Item):
            return thing in self.items
        if isinstance(thing, Txn):
            return thing in self.txns
        return not thing.ended

    def _finish(self, thing: Item | Txn | Session | Subscription) -> None:
        if isinstance(thing, Item):
            self.items.remove(thing)
            for txn in thing.readers:
                txn.reads.remove(thing)
        elif isinstance(thing, Txn):
            self._abort(thing)
        elif isinstance(thing, Session):
            self.end_session(thing)
        else:
            self.unsubscribe(thing)

    def _next_moment(self) -> float:
        """When something ends next, be it that a transaction holds it and it is not seen to end."""
        held = [item for item in self.items if item.taker is not None and not self._is_over(item)]
        return min(
            (t.expires for t in [*self._leased(), *held] if t.expires is not None),
            default=math.inf,
        )

    def _leased(self) -> list[Item | Txn | Session | Subscription]:
        """What will end by itself, the first to end first."""
        free = [item for item in self.items if item.taker is None]
        every: list[Item | Txn | Session | Subscription] = [
            *free,
            *self.txns,
            *self.sessions,
            *self.subscriptions,
        ]
        ending = [thing for thing in every if thing.expires is not None]
        return sorted(ending, key=lambda thing: (thing.expires, thing.granted))

    def advance(self, until: float) -> None:
        """Let time pass; everything ends at its own moment. Waiters look up at `time_out`."""
        while (moment := self._next_moment()) <= until:
            self.now = max(self.now, moment)
            for thing in self._leased():
                if thing.expires is not None and thing.expires <= moment and self._lives(thing):
                    self._finish(thing)
            self.serve()
        self.now = until
        self.serve()  # What a transaction holds may have ended: then it will never be revealed.

    def _until(self, lease: float | None) -> float | None:
        if self.longest is not None and (lease is None or lease > self.longest):
            lease = self.longest
        return None if lease is None else self.now + lease

    def _is_over(self, item: Item) -> bool:
        return item.expires is not None and item.expires <= self.now

    # Sessions, subscriptions

    def open_session(self, lease: float | None, like: Session | None = None) -> Session:
        seen = list(like.seen) if like else []
        session = Session(self._until(lease), self._next(), seen)
        self.sessions.append(session)
        return session

    def end_session(self, session: Session) -> None:
        if session.ended:
            return
        session.ended = True
        self.sessions.remove(session)
        for waiter in list(self.waiters):
            if waiter.session is session:
                self._answer(waiter, [], LeaseLost)

    def subscribe(
        self,
        name: str,
        wants: Predicate,
        available: bool,
        txn: Txn | None,
        backlog_max: int,
        lease: float | None,
    ) -> Subscription:
        if txn is not None:
            txn.require("active")
        key = (name, available, txn)
        shared = [s.event for s in self.subscriptions if s.event.key == key]
        event = shared[0] if shared else Event(key)
        subscription = Subscription(
            wants, event, available, txn, backlog_max, self._until(lease), self._next()
        )
        self.subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        if not subscription.ended:
            subscription.ended = True
            self.subscriptions.remove(subscription)

    def _notify(self, items: list[Item], kind: str, txn: Txn | None = None) -> None:
        """Tell everyone who asked; of what a transaction wrote, only those within it."""
        for item in items:
            told = []
            for one in self.subscriptions:
                if not one.wants(item.value) or (txn is not None and one.txn is not txn):
                    continue
                if kind == "available" and not one.available:
                    continue
                if one.event not in told:
                    told.append(one.event)
                    one.event.sequence += 1
                one.backlog.append((one.event.sequence, kind, item.value))
                if len(one.backlog) > one.backlog_max:
                    one.backlog.pop(0)
                    one.missed += 1

    # Reactions

    def react(self, wants: Predicate, function: Function, once: bool, existing: bool) -> Reaction:
        reaction = Reaction(wants, function, once)
        self.reactions.append(reaction)
        there = [item for item in self.visible() if wants(item.value)] if existing else []
        try:
            self._react_to(there, reaction)
        except ReactionError:
            self.end_reaction(reaction)
            raise
        self.serve()
        return reaction

    def end_reaction(self, reaction: Reaction) -> None:
        reaction.ended = True
        if reaction in self.reactions:
            self.reactions.remove(reaction)

    def _react_to(self, items: list[Item], only: Reaction | None = None) -> None:
        """A step of its own for entries that are in the space already."""
        before = self._snapshot()
        step = Txn(None, None, 0)
        try:
            self._react(step, items, only)
        except ReactionError:
            self._restore(before)
            if only is not None:
                raise
            return
        self._settle(step)

    def _react(self, txn: Txn, items: list[Item], only: Reaction | None = None) -> None:
        """Let the reactions work, within the transaction, until they come to rest."""
        agenda = list(items)
        first = len(agenda) if only is not None else 0
        count = 0
        step = Step(self, txn, agenda)
        for place, item in enumerate(agenda):  # which grows as the reactions write
            reactions = [only] if place < first and only else list(self.reactions)
            for reaction in reactions:
                if item not in self.visible(txn):
                    break
                if reaction.ended or item in reaction.fired or not reaction.wants(item.value):
                    continue
                if count >= self.reactions_max:
                    raise Livelock(self.reactions_max)
                count += 1
                reaction.fired.append(item)
                reaction.ended = reaction.once
                try:
                    reaction.function(item.value, step)
                except Exception as error:
                    raise ReactionFailed from error
        self.reactions = [reaction for reaction in self.reactions if not reaction.ended]

    def _snapshot(self) -> list[tuple[Any, dict[str, Any]]]:
        """Everything that a step may change, copied."""
        things = [self, *self.items, *self.txns, *self.reactions, *self.subscriptions]
        things += [subscription.event for subscription in self.subscriptions]
        return [
            (thing, {k: list(v) if isinstance(v, list) else v for k, v in vars(thing).items()})
            for thing in things
        ]

    def _restore(self, snapshot: list[tuple[Any, dict[str, Any]]]) -> None:
        for thing, attributes in snapshot:
            vars(thing).update(attributes)

    # Closing

    def close(self) -> None:
        for waiter in list(self.waiters):
            self._answer(waiter, [], SpaceClosed)
        for subscription in list(self.subscriptions):
            self.unsubscribe(subscription)

    def reopen(self) -> None:
        """A new process: the file remembers entries, leases and promises, and nothing else."""
        self.close()
        self.sessions.clear()
        self.reactions.clear()
        for txn in list(self.txns):
            if txn.state == "active" and txn.parent is None:
                self._abort(txn)
        # What a promise has written and taken itself is gone however it ends: no file keeps it.
        for item in list(self.items):
            if item.writer is not None and item.writer is item.taker:
                self.items.remove(item)
                item.writer.takes.remove(item)
        for number, item in enumerate(self.items):
            item.used = number - len(self.items)

    def _next(self) -> int:
        self._count += 1
        return self._count


class Step:
    """What a reaction may do; the same calls as `tupelo.Step`, with predicates for templates."""

    def __init__(self, space: Space, txn: Txn, agenda: list[Item]) -> None:
        self._space = space
        self._txn = txn
        self._agenda = agenda

    def write(self, entry: Any, *, lease: float | None = None) -> None:
        self._space._require_room(1, self._txn)
        self._agenda.append(self._space._new(entry, lease, self._txn))

    def read(self, wants: Predicate) -> Any:
        # No lock: nobody can come between the operations of a step.
        found = self._space.find(wants, None, False, self._txn)
        for item in found:
            self._space._acquire(item, False, None, None)
        return found[0].value if found else None

    def take(self, wants: Predicate) -> Any:
        found = self._space.find(wants, None, True, self._txn)
        for item in found:
            self._space._acquire(item, True, self._txn, None)
        return found[0].value if found else None
