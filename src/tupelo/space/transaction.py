"""Transactions within one space.

Only the transaction sees its writes. Others may read but not take the entries that it has read; the
entries that it has taken are hidden until it ends. A nested transaction sees what its ancestors
see, is not blocked by their locks, and passes everything to its parent when it commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from tupelo.errors import Deadlock, SpaceClosed, TransactionEnded, TransactionError
from tupelo.space import reaction
from tupelo.store.index import Store
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder
from tupelo.values.template import as_template

if TYPE_CHECKING:
    from tupelo.space.core import Core
    from tupelo.space.log import Actor
    from tupelo.space.query import Query

TransactionState = Literal["active", "prepared", "committed", "aborted"]
PrepareVote = Literal["not changed", "prepared"]

LEASE_RAN_OUT = "its lease ran out"


class Txn:
    """The state of a transaction in the core.

    `store` has its writes, and `delayed` those that become visible later; `taken` the entries that
    it took, with the transaction that wrote them (None for entries of the space), and `waited` the
    seconds it waited for them; `read` its read locks. `agenda` collects writes while reactions run;
    `causes` has the entries to which reactions outside a transaction reacted, by what they wrote.
    `holder` is the taker, if the transaction is a delivery, and `actor` the agent that uses it, if
    known.
    """

    __slots__ = (
        "actor",
        "agenda",
        "causes",
        "children",
        "delayed",
        "expires",
        "holder",
        "id",
        "left",
        "parent",
        "read",
        "reason",
        "state",
        "store",
        "taken",
        "waited",
    )

    def __init__(self, txn_id: str, parent: Txn | None = None) -> None:
        self.id = txn_id
        self.parent = parent
        self.children: dict[Txn, None] = {}
        self.state: TransactionState = "active"
        self.reason = ""
        self.left = False  # whether the space was closed at the host that began it
        self.expires: float | None = None
        self.store = Store()
        self.delayed: dict[Entry, None] = {}
        self.taken: dict[Entry, Txn | None] = {}
        self.read: dict[Entry, None] = {}
        self.waited: dict[Entry, float] = {}
        self.agenda: list[Entry] | None = None
        self.causes: dict[Entry, Entry] | None = None
        self.holder: Holder | None = None
        self.actor: Actor | None = None

    def __repr__(self) -> str:
        return f"<transaction {self.id}>"

    @property
    def moves(self) -> bool:
        """Whether the taken entries continue to live at another host."""
        return self.holder is not None and self.holder.moves

    @property
    def writes(self) -> bool:
        """Whether it has written entries that others will see."""
        return bool(len(self.store) or self.delayed)

    @property
    def ended(self) -> bool:
        return self.state in ("committed", "aborted")

    def line(self) -> Iterator[Txn]:
        """This transaction and its ancestors."""
        txn: Txn | None = self
        while txn is not None:
            yield txn
            txn = txn.parent

    def require(self, *states: TransactionState) -> None:
        if self.state not in states:
            raise self.refusal()

    def refusal(self) -> TransactionEnded | SpaceClosed:
        """The error for operations after its end."""
        if self.left:
            return SpaceClosed(self.reason)
        return TransactionEnded(self.id, self.state, self.reason)


def begin(core: Core, txn_id: str, lease: float | None, parent: Txn | None = None) -> Txn:
    """Begin a transaction, which aborts when its lease runs out."""
    now = core.expire()
    if parent is not None:
        parent.require("active")
    txn = Txn(txn_id, parent)
    txn.actor = core.log.actor
    txn.expires = core.grant("transaction", lease, now)
    core.transactions[txn] = None
    if parent is not None:
        parent.children[txn] = None
    core.deadlines.add(txn)
    return txn


def prepare(core: Core, txn: Txn) -> PrepareVote:
    """Promise to commit. "not changed" ends a transaction without changes."""
    txn.require("active")
    _require_no_children(txn)
    if txn.parent is not None:
        raise TransactionError("a nested transaction takes no part in a vote; commit it instead")
    if not txn.writes and all(home is txn for home in txn.taken.values()):
        commit(core, txn)
        return "not changed"
    reaction.run(core, txn, list(txn.store), undo=abort)
    txn.state = "prepared"
    txn.expires = None
    core.waiting.end_within(txn)
    core.log.prepared(txn)
    return "prepared"


def commit(core: Core, txn: Txn) -> None:
    txn.require("active", "prepared")
    _require_no_children(txn)
    if txn.parent is not None:
        _commit_into(core, txn, txn.parent)
        return
    leaving = txn.taken if txn.moves else ()
    with core.log.by(txn.actor), core.pruning.leaving(leaving):
        _commit(core, txn)


def _commit(core: Core, txn: Txn) -> None:
    was_prepared = txn.state == "prepared"
    if not was_prepared:  # The reactions of a prepared one have run; it cannot fail any more.
        reaction.run(core, txn, list(txn.store), undo=abort)
    written = list(txn.store)
    causes = None if txn.causes is None else _visible_causes(txn, txn.causes)
    _end(core, txn, "committed")
    _unlock(core, txn)
    for entry, home in txn.taken.items():
        entry.txn = None
        if home is None:
            waited = txn.waited.get(entry, 0.0)
            core.took(entry, txn.id, waited, how="moved" if txn.moves else "taken")
        else:  # Its own write, which was never visible to others.
            core.discard(entry)
    txn.taken.clear()
    for entry in written:
        txn.store.remove(entry)
        entry.gone = False
        entry.txn = None
        entry.arrival = core.next_arrival()
    core.publish(written, txn_id=txn.id, causes=causes)
    for entry in txn.delayed:
        entry.arrival = core.next_arrival()
    core.delay(list(txn.delayed), txn_id=txn.id)
    txn.delayed.clear()
    if was_prepared:
        core.log.decided("committed", txn)


def _visible_causes(txn: Txn, causes: dict[Entry, Entry]) -> dict[Entry, Entry | None]:
    """For each entry that a reaction wrote, the one that it reacted to. If that was written and
    taken within the step, it was never visible: then its own cause."""
    found: dict[Entry, Entry | None] = {}
    for entry, cause in causes.items():
        own = txn.taken.get(cause) is not None
        found[entry] = found.get(cause) if own else cause
    return found


def abort(core: Core, txn: Txn, reason: str = "") -> None:
    if txn.state == "aborted":
        return
    txn.require("active", "prepared")
    for child in list(txn.children):
        abort(core, child, reason or "its parent was aborted")
    was_prepared = txn.state == "prepared"
    txn.reason = reason
    written, taken = list(txn.store), dict(txn.taken)
    _end(core, txn, "aborted")
    for entry in written:
        txn.store.remove(entry)
        entry.txn = None
        core.discard(entry)
    for entry in txn.delayed:
        core.discard_delayed(entry)
    txn.delayed.clear()
    restored = []
    for entry, home in taken.items():
        if home is txn:
            entry.txn = None
            core.discard(entry)
        elif core.give_back(entry, home):
            if home is None and txn.id and not txn.moves:
                core.released(entry, txn)
            restored.append(entry)
    txn.taken.clear()
    if was_prepared:
        core.log.decided("aborted", txn)
    _unlock(core, txn, but=restored)
    if txn.id:  # Within the step of a reaction, the absence of the entries was not visible.
        for entry in restored:
            core.visible_again(entry)


def _commit_into(core: Core, txn: Txn, parent: Txn) -> None:
    written = list(txn.store)
    _end(core, txn, "committed")
    for entry, home in txn.taken.items():
        if home in (parent, txn):  # Written and taken within: it will never be visible.
            entry.txn = None
            core.discard(entry)
        else:
            entry.txn = parent
            parent.taken[entry] = home
            parent.waited.update({entry: txn.waited[entry]} if entry in txn.waited else {})
    txn.taken.clear()
    for entry in txn.read:
        assert entry.readers is not None
        entry.readers.discard(txn)
        if entry.txn is not parent:
            entry.readers.add(parent)
            parent.read[entry] = None
        elif not entry.readers:
            entry.readers = None
            core.read_locks -= 1
        core.offer(entry)  # to waiters in the parent
    txn.read.clear()
    for entry in written:
        txn.store.remove(entry)
        entry.gone = False
        entry.txn = parent
        entry.arrival = core.next_arrival()
        parent.store.add(entry)
    for entry in txn.delayed:
        entry.txn = parent
    parent.delayed.update(txn.delayed)
    txn.delayed.clear()
    core.notify_within(parent, written)


def _require_no_children(txn: Txn) -> None:
    if txn.children:
        names = ", ".join(sorted(child.id for child in txn.children))
        raise TransactionError(f"transaction {txn.id} still has nested ones open: {names}")


def _end(core: Core, txn: Txn, state: TransactionState) -> None:
    txn.state = state
    core.transactions.pop(txn, None)
    if txn.read or txn.taken or len(txn.store):
        core.locks_changed = True
    if txn.parent is not None:
        txn.parent.children.pop(txn, None)
    core.end_within(txn)


def _unlock(core: Core, txn: Txn, but: Iterable[Entry] = ()) -> None:
    """Release read locks, so that others may take the entries; notify, except of `but`."""
    if txn.read:
        core.locks_changed = True
    freed = []
    unsaid = set(but)
    for entry in txn.read:
        if entry.readers is not None:
            entry.readers.discard(txn)
            if not entry.readers:
                entry.readers = None
                core.read_locks -= 1
                freed.append(entry)
            elif not entry.gone:
                core.offer(entry)  # Perhaps to the only transaction that still holds it.
    txn.read.clear()
    for entry in freed:
        if not entry.gone and entry not in unsaid:
            core.available_again(entry)


def hold(core: Core, txn: Txn, entry: Entry) -> None:
    """Get a read lock: others cannot take the entry until the transaction ends."""
    if entry.readers is None:
        entry.readers = set()
        core.read_locks += 1
    entry.readers.add(txn)
    txn.read[entry] = None


def may_take(entry: Entry, txn: Txn | None) -> bool:
    """Whether no other transaction has a read lock on this entry."""
    readers = entry.readers
    return not readers or (txn is not None and readers <= set(txn.line()))


def was_published(entry: Entry) -> bool:
    """Whether it is an entry of the space, taken by a transaction or not, rather than
    uncommitted."""
    holder: Txn | None = entry.txn
    return holder is None or (entry.gone and holder.taken.get(entry, holder) is None)


def blockers(core: Core, query: Query) -> set[Txn]:
    """The transactions whose outcome decides whether there will be a match."""
    template, take, txn = as_template(query.template), query.take, query.txn
    line = set(txn.line()) if txn is not None else set()

    now = core.now()

    def matches(entry: Entry) -> bool:
        if entry.expires is not None and entry.expires <= now:
            return False  # It has left, whatever the outcome of the transaction.
        binding = template.bind(entry.shape)
        return binding is not None and binding.test(entry.fields)

    found = set()
    with core.user_code("a template"):
        for other in core.transactions:
            seen = query.committed and other.state == "active"  # and does not wait for what it took
            if other not in line and (
                any(matches(e) for e, home in other.taken.items() if home is not other and not seen)
                or any(map(matches, other.store))
                or (take and any(matches(e) and not e.gone for e in other.read))
            ):
                found.add(other)
    return found


def require_no_deadlock(core: Core, query: Query, txn: Txn) -> None:
    """Raise Deadlock if all operations on which this one depends wait in a circle.

    A transaction that does not wait may yet commit, and an operation that does not depend on locks
    may be served by any write; if one of these can be reached there is no deadlock.
    """
    if not any(t.taken or t.read or len(t.store) for t in txn.line()):
        return  # A transaction without locks blocks nobody.
    line = set(txn.line())
    met: set[Txn] = set()
    pending = [query]
    while pending:
        holders = blockers(core, pending.pop())
        if not holders:
            return
        for holder in holders - met:
            met.add(holder)
            waits = [
                waiter.query
                for waiter in core.waiting
                if waiter.query.txn is not None and holder in waiter.query.txn.line()
            ]
            if not waits and holder not in line:
                return
            pending.extend(waits)
    if met & line:  # Otherwise it waits for a circle without being part of it.
        raise Deadlock(txn.id, sorted(other.id for other in met - line))
