"""Leases: granting, renewing, cancelling and ending, one mechanism for everything leased."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tupelo.errors import LeaseLost
from tupelo.space import session, transaction
from tupelo.space.deadlines import HasDeadline
from tupelo.space.matchset import MatchSetState
from tupelo.space.protected import is_protected
from tupelo.space.session import SessionState
from tupelo.space.subscription import SubscriptionState
from tupelo.space.transaction import Txn
from tupelo.values.entry import Entry
from tupelo.values.lease import ANY_LEASE, LeasePolicy, check_lease

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.writers import Items

_KINDS: dict[type, str] = {
    Entry: "entry",
    Txn: "transaction",
    SubscriptionState: "subscription",
    SessionState: "session",
    MatchSetState: "match set",
}


def kind_of(thing: object) -> str:
    """What sort of thing is leased, as a lease policy knows it."""
    return _KINDS.get(type(thing), "")


def grant(policy: LeasePolicy | None, kind: str, asked: float | None, now: float) -> float | None:
    """Until when: what was asked for, or less if the space's policy says so."""
    if asked == ANY_LEASE:
        preferred = getattr(policy, "preferred", None)
        asked = None if preferred is None else check_lease(preferred(kind), "lease_policy")
    if policy is not None:
        granted = check_lease(policy(kind, asked), "lease_policy")
        if granted is not None and (asked is None or granted < asked):
            asked = granted
    return None if asked is None else now + asked


def grant_entries(
    policy: LeasePolicy | None, items: Items, asked: list[float | None], now: float
) -> list[float | None]:
    """Until when each of these entries lives; the policy has no say about protected entries."""
    expires = [grant(policy, "entry", seconds, now) for seconds in asked]
    if policy is not None:
        for i, (shape, _) in enumerate(items):
            if is_protected(shape):
                expires[i] = grant(None, "entry", asked[i], now)
    return expires


def renew(core: Core, thing: HasDeadline, asked: float | None) -> None:
    now = core.expire()
    kind = _KINDS[type(thing)]
    if thing.ended or (thing.expires is not None and thing.expires <= now):
        raise LeaseLost(f"the {kind} is gone; its lease cannot be renewed")
    if isinstance(thing, Txn) and thing.state == "prepared":
        raise LeaseLost("a prepared transaction has no lease; it waits for the decision")
    if isinstance(thing, Entry):
        _require_undecided(thing)
    thing.expires = grant(core.lease_policy, kind, asked, now)
    core.deadlines.add(thing)
    if isinstance(thing, Entry) and transaction.was_published(thing):
        core.log.add("renewed", thing)


def cancel(core: Core, thing: HasDeadline) -> None:
    core.expire()
    if thing.ended or (isinstance(thing, Entry) and thing.gone):
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


def _end_entry(core: Core, entry: Entry, how: Literal["expired", "cancelled"]) -> None:
    core.locks_changed = True
    if entry.gone:  # A transaction holds it; it will not come back when that ends.
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
        core.log.add(how, entry)


def _require_undecided(entry: Entry) -> None:
    """What a transaction has promised to write is not changed any more."""
    writer: Txn | None = entry.txn
    if writer is not None and not transaction.was_published(entry):
        writer.require("active")
