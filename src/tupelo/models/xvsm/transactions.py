"""Transactions of the Capi: they span containers, and tell those who wait for their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tupelo.errors import BadArgument
from tupelo.space.shared import SharedTransaction
from tupelo.space.twophase import Vote

End = Callable[[bool], object]
"""Told whether the transaction was committed."""


class Transaction(SharedTransaction):
    """All or nothing, over any number of containers; nested ones commit into their parents."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._ends: list[End] = []
        super().__init__(*args, **kwargs)

    def at_end(self, end: End) -> None:
        """Tell this one when it is decided, and everybody can see what was done."""
        self._ends.append(end)

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return Transaction(self._clock, lease, parent=self)

    def _say_ended(self) -> None:
        super()._say_ended()
        if self._state != "committed":
            self._tell_ends(False)
        elif self.parent is None:
            self._tell_ends(True)
        else:
            ends, self._ends = self._ends, []
            for end in ends:
                at_end(self.parent, end)

    def _tell_ends(self, committed: bool) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            end(committed)


class _Listener:
    """Takes part in a transaction of another model's to learn how it ends."""

    name = "xvsm"
    lasting = False

    def __init__(self, txn_id: str, end: End) -> None:
        self.txn_id = txn_id
        self._committed = False
        self._tell = end

    def _end(self, committed: bool) -> None:
        self._committed = committed
        self._tell(committed)

    def prepare(self) -> Vote:
        return "prepared"

    def commit(self) -> None:
        self._end(True)

    def abort(self) -> None:
        self._end(False)

    def prepare_and_commit(self) -> Vote:
        self._end(True)
        return "committed"

    def has_committed(self) -> bool:
        return self._committed


def at_end(txn: SharedTransaction, end: End) -> None:
    if isinstance(txn, Transaction):
        txn.at_end(end)
    else:
        txn.enlist(_Listener(txn.id, end))


def check_transaction(tx: object) -> SharedTransaction | None:
    if tx is not None and not isinstance(tx, SharedTransaction):
        raise BadArgument("tx", "a transaction of create_transaction, or None", tx)
    return tx
