"""Recovery: a space as a journal has kept it, its promises to commit included."""

from __future__ import annotations

from collections.abc import Iterable

from tupelo.space.core import Core
from tupelo.space.transaction import Txn, hold
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder


def load(core: Core, entries: Iterable[Entry], arrivals: int, position: int) -> None:
    """Take in the entries of a journal, in order of arrival."""
    add, deadlines = core.store.add, core.deadlines
    for entry in entries:
        add(entry)
        if entry.expires is not None:
            deadlines.add(entry)
        core.directed.add(entry)
        _admit(core, entry)
    core.arrivals = arrivals
    core.log.position = position


def restore_prepared(
    core: Core,
    txn_id: str,
    written: list[Entry],
    taken: list[int],
    read: list[int],
    holder: Holder | None,
) -> None:
    """A transaction that had promised to commit, with its locks, as the crash found it."""
    txn = Txn(txn_id)
    txn.state = "prepared"
    txn.holder = holder
    core.transactions[txn] = None
    held = {*taken, *read}
    found = {entry.arrival: entry for entry in core.store if entry.arrival in held}
    for arrival in read:
        if arrival in found:
            hold(core, txn, found[arrival])
    for arrival in taken:
        core.acquire(found[arrival], True, txn, None)
    for entry in written:
        core.arrivals = max(core.arrivals, entry.n) + 1
        entry.arrival = core.arrivals
        entry.txn = txn
        core.store.know(entry.shape)
        txn.store.add(entry)
        core.deadlines.add(entry)
        _admit(core, entry)


def _admit(core: Core, entry: Entry) -> None:
    if core.books is not None:
        core.books.readmit(entry)
    if core.room is not None:
        core.room.add([entry])
