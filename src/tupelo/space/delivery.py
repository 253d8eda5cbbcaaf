"""Deliveries: entries on their way to a caller.

Entries are *reserved* when the space has set them aside, and *delivered* when they were sent or
returned to the caller. Then the delivery is either *confirmed*, and taken entries are removed for
good, or *given back*, and the space is as before. A take that waits for the disk, a take from
another program or host and an entry that moves to its agent are all deliveries. In a durable space
a delivery has a holder (see `values.holder`) in the journal: after a crash the space still knows
the taker of the reserved entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tupelo.errors import SpaceClosed
from tupelo.space.query import Query
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder

if TYPE_CHECKING:
    from tupelo.space.engine import Engine
    from tupelo.space.port import Port
    from tupelo.space.transaction import Txn


class Delivery(Protocol):
    """Common interface of deliveries. `space` is the name of the space of the entries."""

    entries: list[Entry]

    @property
    def space(self) -> str: ...

    def confirm(self) -> int:
        """The taker has the entries: remove them for good. Returns the position at which that is
        durable. Raises SpaceClosed or TransactionEnded if the space took them back before."""
        ...

    def give_back(self) -> int:
        """The taker does not get the entries: return them. Returns the position at which that is
        durable. Raises SpaceClosed or TransactionEnded if the space took them back before."""
        ...

    def forget(self) -> None:
        """The taker cannot be lost any more: sessions need not remember the entries."""
        ...


class Reserved:
    """A delivery from a space in memory, or one that only waits for the disk."""

    __slots__ = ("_deliveries", "entries", "query")

    def __init__(self, deliveries: Deliveries, entries: list[Entry], query: Query) -> None:
        self._deliveries = deliveries
        self.entries = entries
        self.query = query

    @property
    def space(self) -> str:
        return self._deliveries.engine.name

    def confirm(self) -> int:
        return self._deliveries.confirm(self)

    def give_back(self) -> int:
        return self._deliveries.give_back(self)

    def forget(self) -> None:
        """Confirming has done that."""


class Prepared:
    """A delivery from a durable space: a prepared transaction has taken the entries."""

    __slots__ = ("_port", "entries", "holder", "txn")

    def __init__(self, port: Port, txn: Txn) -> None:
        assert txn.holder is not None
        self.entries = list(txn.taken)
        self.holder: Holder = txn.holder
        self.txn = txn
        self._port = port

    @property
    def space(self) -> str:
        return self._port.name

    def confirm(self) -> int:
        return self._port.commit_leaving(self.txn, self.entries)

    def give_back(self) -> int:
        return self._port.abort(self.txn)

    def forget(self) -> None:
        self._port.forget_entries(self.entries)


class ReservedDelivery(Reserved):
    """A delivery from a space in memory to another program, the holder. Until `forget`, sessions
    remember the entries, which may be written again under their identity if the taker is lost."""

    __slots__ = ("holder",)

    def __init__(
        self,
        deliveries: Deliveries,
        entries: list[Entry],
        query: Query,
        holder: Holder | None = None,
    ) -> None:
        super().__init__(deliveries, entries, query)
        self.holder = holder

    def confirm(self) -> int:
        return self._deliveries.confirm_leaving(self)

    def forget(self) -> None:
        self._deliveries.forget(self.entries)


class DeliveredAtOnce:
    """Entries that were taken within a transaction, or read in a session. The caller has them at
    once; they are given back only if the caller was lost."""

    __slots__ = ("_port", "entries", "query")

    def __init__(self, port: Port, entries: list[Entry], query: Query) -> None:
        self.entries = entries
        self.query = query
        self._port = port

    @property
    def space(self) -> str:
        return self._port.name

    def confirm(self) -> int:
        return 0

    def give_back(self) -> int:
        return self._port.undo_get(self.entries, self.query)

    def forget(self) -> None:
        """Nothing is reserved."""


class Deliveries:
    """The open deliveries of one space, except the prepared ones."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._open: dict[Reserved, bool] = {}

    def begin(self, entries: list[Entry], query: Query) -> Reserved:
        delivery = Reserved(self, entries, query)
        self._open[delivery] = True
        return delivery

    def begin_leaving(
        self, entries: list[Entry], query: Query, holder: Holder | None = None
    ) -> ReservedDelivery:
        delivery = ReservedDelivery(self, entries, query, holder)
        self._open[delivery] = True
        return delivery

    def confirm(self, delivery: Reserved) -> int:
        # The first to remove the delivery decides, without a lock: its taker or the closing space.
        if not self._open.pop(delivery, False):
            raise SpaceClosed("the space was closed before what was asked for was on disk")
        if delivery.query.removes:
            self.received(delivery.entries)
        return 0

    def confirm_leaving(self, delivery: Reserved) -> int:
        with self.engine.lock, self.engine.core.pruning.leaving(delivery.entries):
            return self.confirm(delivery)

    def received(self, entries: list[Entry]) -> None:
        """The entries will not come back: sessions may forget them, waiting writers may use their
        keys, orders may show others, and nobody has a lease of them."""
        core = self.engine.core
        if core.pruning.memories or core.delayed or core.books is not None:
            with self.engine.lock:
                for entry in entries:
                    core.received(entry)
                if (core.waiting.writers.ready or core.waiting.choosing.count) and not core.closed:
                    self.engine.settle()

    def give_back(self, delivery: Reserved) -> int:
        if not self._open.pop(delivery, False):
            return 0
        with self.engine.lock:
            self._take_back(delivery)
            return self.engine.settle()

    def forget(self, entries: list[Entry]) -> None:
        core = self.engine.core
        with self.engine.lock:
            for entry in entries:
                core.pruning.gone(entry)

    def under_way(self) -> list[Reserved]:
        return list(self._open)

    def take_all_back(self) -> None:
        """The space is being closed: take all deliveries back."""
        for delivery in [*self._open]:
            if self._open.pop(delivery, False):
                self._take_back(delivery)

    def _take_back(self, delivery: Reserved) -> None:
        for entry in delivery.entries:
            self.engine.core.undo(entry, delivery.query)
