"""Transactions of the Capi: they span containers, and tell those who wait for their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from tupelo.errors import BadArgument, CannotJoin
from tupelo.space.blocking import Space
from tupelo.space.shared import SharedTransaction
from tupelo.space.twophase import Vote

logger = logging.getLogger("tupelo")

End = Callable[[bool | None], object]
"""Told whether the transaction was committed; None if that is not known."""


class Transaction(SharedTransaction):
    """All or nothing, over any number of containers; nested ones commit into their parents."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._ends: list[End] = []
        super().__init__(*args, **kwargs)

    def at_end(self, end: End) -> None:
        """Tell this one when it is decided, and everybody can see what was done; at once, if it
        has ended already."""
        with self._lock:
            if not self.ended:
                self._ends.append(end)
                return
        self._tell([end])

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return Transaction(self._clock, lease, parent=self)

    def _say_ended(self) -> None:
        super()._say_ended()
        with self._lock:
            ends, self._ends = self._ends, []
        self._tell(ends)

    def _tell(self, ends: list[End]) -> None:
        for end in ends:
            if self._state == "committed" and self.parent is not None:
                at_end(self.parent, end)
            else:
                call(end, None if self._state == "unknown" else self._state == "committed")


def call(end: End, committed: bool | None) -> None:
    """Tell one of the end. It is too late to fail: the others are told all the same."""
    try:
        end(committed)
    except Exception:
        logger.exception("what was to be done at the end of a transaction failed")


class _Listener:
    """Takes part in a transaction of another model's to learn how it ends."""

    name = label = "xvsm"
    lasting = False

    def __init__(self, txn_id: str, end: End) -> None:
        self.txn_id = txn_id
        self._committed = False
        self._tell = end

    def _end(self, committed: bool) -> None:
        self._committed = committed
        call(self._tell, committed)

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
        return
    try:
        txn.enlist(_Listener(txn.id, end))
    except CannotJoin:  # It has ended, or is about to.
        known = {"committed": True, "aborted": False}
        call(end, known.get(txn.state))


def has_branch(txn: SharedTransaction | None, space: Space) -> bool:
    """Was it used in this space?"""
    return txn is not None and space._operations.engine in txn._branches


async def to_the_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Await what must not be left half way. Who is cancelled meanwhile is so afterwards, when it
    waits for something else and has its answer."""
    task, caller = asyncio.ensure_future(work), asyncio.current_task()
    held_back = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            held_back = True
    if held_back and caller is not None:
        asyncio.get_running_loop().call_soon(_cancel_again, caller)
    return task.result()


def _cancel_again(caller: asyncio.Task[Any]) -> None:
    if caller.cancelling():  # or a timeout has thought better of it
        caller.uncancel()
        caller.cancel()


def check_transaction(tx: object) -> SharedTransaction | None:
    if tx is not None and not isinstance(tx, SharedTransaction):
        raise BadArgument("tx", "a transaction of create_transaction, or None", tx)
    return tx
