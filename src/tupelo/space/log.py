"""The log of a space: what the core says has happened, in order, for the shell to collect."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from tupelo.values.change import Change, ChangeKind, Promise
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.space.transaction import Txn


class Log:
    """Numbers the changes; `changes` are those that the shell has not collected yet."""

    def __init__(self, agent: str, now: Callable[[], float], on: bool, reads: bool) -> None:
        self.on = on
        self.reads = on and reads
        self.changes: list[Change] = []
        self.position = 0
        self._agent = agent
        self._now = now

    def add(
        self,
        kind: ChangeKind,
        entry: Entry,
        txn_id: str | None = None,
        waited: float = 0.0,
        payload: bytes | None = None,
    ) -> None:
        if not self.on:
            return
        self.position = position = self.position + 1
        expires = entry.expires
        self.changes.append(
            Change(  # by position: a change is made for everything that happens
                position,
                expires if kind == "expired" and expires else self._now(),
                kind,
                entry.arrival,
                entry.origin,
                entry.n,
                self._agent,
                txn_id or None,
                waited,
                expires,
                entry.shape,
                entry.fields,
                payload,
                None,
                entry.to,
            )
        )

    def prepared(self, txn: Txn) -> None:
        """What the transaction promises, so that the promise outlives the process."""
        taken = tuple([entry.arrival for entry, home in txn.taken.items() if home is None])
        read = tuple([entry.arrival for entry in txn.read])
        promise = Promise(tuple(txn.store), taken, read)
        self._add_decision("prepared", txn, promise)

    def decided(self, kind: Literal["committed", "aborted"], txn: Txn) -> None:
        self._add_decision(kind, txn)

    def _add_decision(
        self,
        kind: Literal["prepared", "committed", "aborted"],
        txn: Txn,
        promise: Promise | None = None,
    ) -> None:
        if self.on:
            self.position += 1
            self.changes.append(
                Change(
                    position=self.position,
                    time=self._now(),
                    kind=kind,
                    agent=self._agent,
                    txn=txn.id,
                    promise=promise,
                )
            )
