"""Finding: what an operation sees, and which of it it may have."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from tupelo.space.order import Order, arranged
from tupelo.space.transaction import Txn, may_take
from tupelo.store.index import Accept, Store
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.session import SessionState


def stores_of(core: Core, txn: Txn | None) -> list[Store]:
    """What an operation sees, the oldest entries first."""
    if txn is None:
        return [core.store]
    return [core.store, *[above.store for above in reversed(list(txn.line()))]]


def acceptance(
    core: Core,
    take: bool,
    txn: Txn | None,
    session: SessionState | None,
    only: Accept | None,
) -> Accept | None:
    """What a match must be besides: not seen by the session, not held by others."""
    if only is not None:
        return lambda entry: only(entry) and not (take and not may_take(entry, txn))
    if session is not None:
        seen = session.seen
        return lambda entry: entry not in seen
    if take and core.read_locks:
        return lambda entry: may_take(entry, txn)
    return None


def search(
    core: Core,
    raw: Any,
    limit: int | None,
    take: bool,
    txn: Txn | None,
    order: Order | None,
    session: SessionState | None,
    only: Accept | None = None,
) -> list[Entry]:
    """The matches that may be had, the first choice of the order first."""
    accept = acceptance(core, take, txn, session, only)
    found: list[Entry] = []
    stores = stores_of(core, txn)
    backwards = order is not None and order.backwards
    enough = limit if order is None else order.needs(limit)
    for store in reversed(stores) if backwards else stores:
        if enough == 1 and not backwards:
            first = store.first(store.question(raw), accept)
            matches = iter(()) if first is None else iter((first,))
        else:
            matches = store.matches(store.question(raw), accept, backwards)
        found.extend(islice(matches, None if enough is None else enough - len(found)))
    return found if order is None else list(arranged(order, found))[:limit]
