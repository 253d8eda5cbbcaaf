"""Finding: what an operation sees, and which of it it may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tupelo.space.transaction import Txn, may_take
from tupelo.store.index import Accept, Store

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.session import SessionState


def stores_of(core: Core, txn: Txn | None) -> list[Store]:
    """What an operation sees, the oldest entries first."""
    if txn is None:
        return [core.store]
    return [core.store, *[above.store for above in reversed(list(txn.line()))]]


def acceptance(
    core: Core, take: bool, txn: Txn | None, session: SessionState | None
) -> Accept | None:
    """What a match must be besides: not seen by the session, not held by others."""
    if session is not None:
        seen = session.seen
        return lambda entry: entry not in seen
    if take and core.read_locks:
        return lambda entry: may_take(entry, txn)
    return None
