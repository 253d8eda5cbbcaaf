"""Decisions: the log of a coordinator of shared transactions. It is a space like any other."""

from __future__ import annotations

from collections.abc import Callable

from tupelo.space.blocking import Space
from tupelo.space.handles import ThreadSignal
from tupelo.space.port import Port
from tupelo.space.query import Query
from tupelo.space.twophase import Outcome
from tupelo.values.parts import ANY

_DECIDED = "committed"


class DecisionLog:
    """Who must still be told that a transaction was committed: one entry for each of them."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def record(self, told: list[tuple[str, str]]) -> None:
        """The decision: from here on the transaction is committed."""
        self.space.write_all([(_DECIDED, txn_id, name) for txn_id, name in told])

    def recorded(self, told: list[tuple[str, str]]) -> bool:
        """Does the decision stand? It was written in one step, so one of them tells."""
        if not self.space.count((_DECIDED, *told[0])):
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Let what was recorded outlive a crash, if the one who recorded it was interrupted."""
        port = self.space._port
        port.flush(port.position)

    def forget(self, txn_id: str, participant: str) -> None:
        """This participant has been told."""
        self.space.take((_DECIDED, txn_id, participant), wait=0)

    def forget_soon(self, txn_id: str, participant: str) -> None:
        """`forget`, with what is made durable next: until then it may be on record once more."""
        self.space._port.get(Query((_DECIDED, txn_id, participant), take=True), ThreadSignal)

    def committed(self, txn_id: str) -> bool:
        """Was it decided to commit, and is there someone who may not know it?"""
        return self.space.count((_DECIDED, txn_id, ANY)) > 0

    def decided(self) -> set[str]:
        """The transactions that were committed, and of which someone may not know it."""
        return {found[1] for found in self.space.read_all((_DECIDED, str, str))}

    def untold(self, participant: str) -> list[str]:
        """The transactions that were committed and of which this participant was not told."""
        return [found[1] for found in self.space.read_all((_DECIDED, ANY, participant))]

    def recorded_outcome(self, txn_id: str) -> Outcome:
        """Of a transaction of which nobody is alive: without a decision on record none was made."""
        return "committed" if self.committed(txn_id) else "aborted"

    def settle(self, port: Port, outcome: Callable[[str], Outcome | None]) -> int:
        """Settle what a space that comes back has in doubt, as far as the `outcome` is known; how
        many there were."""
        settled = 0
        for txn in port.in_doubt():
            known = outcome(txn.id)
            if known in ("committed", "aborted"):
                end = port.commit if known == "committed" else port.abort
                port.flush(end(txn))
                settled += 1
        # What was settled before may not be on disk yet, if that was interrupted.
        port.flush(port.position)
        for txn_id in self.untold(port.id):
            if outcome(txn_id) == "committed":
                self.forget(txn_id, port.id)
        return settled
