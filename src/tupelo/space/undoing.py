"""Undoing: what happens to entries whose taker or reader vanished before it got them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.query import Query


def undo(core: Core, entry: Entry, query: Query) -> None:
    """Whoever asked for this entry has vanished before it arrived."""
    txn, session = query.txn, query.session
    if query.test:
        return
    if not query.take:
        if session is not None:
            session.seen.discard(entry)
            if not entry.gone:
                core.offer(entry)
    elif txn is not None:
        core.locks_changed = True
        promised = txn.state != "active"
        if not promised and entry in txn.taken and core.give_back(entry, txn.taken.pop(entry)):
            core.visible_again(entry)
    elif entry.expires is None or entry.expires > core.now():
        core.store.restore(entry)
        if core.room is not None:
            core.room.add([entry])
        core.deadlines.add(entry)
        core.directed.add(entry)
        core.log.add("returned", entry)
        if not core.closed:
            core.subscriptions.notify(entry, "available", returned=True)
        core.offer(entry)
    else:
        core.received(entry)
