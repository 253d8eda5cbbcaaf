"""Leases: granting, renewing, cancelling and ending, the same for everything leased."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, Protocol

from tupelo.errors import LeaseLost
from tupelo.space import session, transaction
from tupelo.space.capacity import is_protected
from tupelo.space.matchset import MatchSetState
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.space.transaction import Txn
from tupelo.values.entry import Entry
from tupelo.values.lease import ANY_LEASE, LeasePolicy, check_lease

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.waiting import Items


_SWEEP_MIN = 1_024


class HasDeadline(Protocol):
    """A leased object: it lives until `expires`, unless it `ended` before."""

    expires: float | None

    @property
    def ended(self) -> bool: ...


class Appearance:
    """The moment at which a delayed entry becomes visible."""

    __slots__ = ("entry", "expires")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.expires = entry.visible

    @property
    def ended(self) -> bool:
        return self.entry.visible is None


class Deadlines:
    """A heap of deadlines; `due` returns what has expired, `next` the next deadline. A renewed
    lease leaves its old deadline in the heap, where it is skipped."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, HasDeadline]] = []
        self._count = 0
        self._sweep_at = _SWEEP_MIN
        self._left = 0

    def add(self, thing: HasDeadline) -> None:
        if thing.expires is None:
            return
        self._count += 1
        heapq.heappush(self.heap, (thing.expires, self._count, thing))
        if len(self.heap) >= self._sweep_at:
            self._sweep()

    def left(self) -> None:
        """Count an object that ended, perhaps early; sweep the heap when these are many."""
        self._left += 1
        if self._left >= _SWEEP_MIN and 2 * self._left > len(self.heap):
            self._sweep()

    def _sweep(self) -> None:
        self._left = 0
        self.heap[:] = [d for d in self.heap if _stands(d)]
        heapq.heapify(self.heap)
        self._sweep_at = max(_SWEEP_MIN, 2 * len(self.heap))

    def due(self, now: float) -> Iterator[HasDeadline]:
        """The objects that have expired by now, in order."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            deadline = heapq.heappop(heap)
            if _stands(deadline):
                yield deadline[2]

    def next(self) -> float | None:
        while self.heap and not _stands(self.heap[0]):
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else None


def _stands(deadline: tuple[float, int, HasDeadline]) -> bool:
    when, _, thing = deadline
    return thing.expires == when and not thing.ended


_KINDS: dict[type, str] = {
    Entry: "entry",
    Txn: "transaction",
    SubscriptionState: "subscription",
    SessionState: "session",
    MatchSetState: "match set",
}


def kind_of(thing: object) -> str:
    """The kind of a leased object, for the lease policy."""
    return _KINDS.get(type(thing), "")


def grant(
    policy: LeasePolicy | None, kind: str, requested: float | None, now: float
) -> float | None:
    """The end of a lease: as requested, unless the policy grants less."""
    if requested == ANY_LEASE:
        preferred = getattr(policy, "preferred", None)
        requested = None if preferred is None else check_lease(preferred(kind), "lease_policy")
    if policy is not None:
        granted = check_lease(policy(kind, requested), "lease_policy")
        if granted is not None and (requested is None or granted < requested):
            requested = granted
    return None if requested is None else now + requested


def grant_entries(
    policy: LeasePolicy | None, items: Items, requested: list[float | None], now: float
) -> list[float | None]:
    """The ends of the leases of these entries; the policy does not apply to protected entries."""
    expires = [grant(policy, "entry", seconds, now) for seconds in requested]
    if policy is not None:
        for i, (shape, _) in enumerate(items):
            if is_protected(shape):
                expires[i] = grant(None, "entry", requested[i], now)
    return expires


def renew(core: Core, thing: HasDeadline, requested: float | None) -> None:
    now = core.expire()
    kind = _KINDS[type(thing)]
    if thing.ended or (thing.expires is not None and thing.expires <= now):
        raise LeaseLost(f"the {kind} is gone; its lease cannot be renewed")
    if isinstance(thing, Txn) and thing.state == "prepared":
        raise LeaseLost("a prepared transaction has no lease; it waits for the decision")
    if isinstance(thing, Entry):
        _require_undecided(thing)
    if isinstance(thing, Entry) and thing.visible is not None:
        now = thing.visible
    thing.expires = grant(core.lease_policy, kind, requested, now)
    core.deadlines.add(thing)
    if isinstance(thing, Entry) and transaction.was_published(thing):
        core.log.add("renewed", thing)


def cancel(core: Core, thing: HasDeadline) -> None:
    core.expire()
    if thing.ended or (isinstance(thing, Entry) and thing.gone and thing.visible is None):
        raise LeaseLost(f"the {_KINDS[type(thing)]} is gone; there is nothing to cancel")
    if isinstance(thing, Entry):
        _require_undecided(thing)
    end(core, thing, "cancelled", "its lease was cancelled")


def end(core: Core, thing: HasDeadline, how: Literal["expired", "cancelled"], reason: str) -> None:
    if isinstance(thing, Entry):
        _end_entry(core, thing, how)
    elif isinstance(thing, Txn):
        transaction.abort(core, thing, reason)
    elif isinstance(thing, SubscriptionState):
        core.end_subscription(thing)
    elif isinstance(thing, SessionState):
        session.end(core, thing)
    elif isinstance(thing, MatchSetState):
        thing.end(reason)
    elif isinstance(thing, Appearance):
        core.appear(thing.entry)


def _end_entry(core: Core, entry: Entry, how: Literal["expired", "cancelled"]) -> None:
    core.locks_changed = True
    if entry.visible is not None:
        writer: Txn | None = entry.txn
        core.discard_delayed(entry)
        if writer is None:
            core.log.add(how, entry)
        else:
            del writer.delayed[entry]
        return
    if entry.gone:  # A transaction holds it; it will not be returned when that ends.
        return
    within: Txn | None = entry.txn
    (core.store if within is None else within.store).remove(entry)
    entry.txn = None
    if entry.readers:
        for txn in entry.readers:
            txn.read.pop(entry, None)
        entry.readers = None
        core.read_locks -= 1
    core.release(entry, published=within is None)
    if within is None:
        core.ended(entry, how)


def _require_undecided(entry: Entry) -> None:
    """Raise an error for entries of a prepared transaction, which cannot change any more."""
    writer: Txn | None = entry.txn
    if writer is not None and not transaction.was_published(entry):
        writer.require("active")
