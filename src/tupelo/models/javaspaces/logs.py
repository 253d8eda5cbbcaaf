"""Where it is recorded that a transaction commits, if spaces at hosts elsewhere take part.

Such a space asks a host what was decided, so the decision is recorded at one of these hosts, the
decider. Other participants ask the transaction manager, which has a log of its own. Before the
decision the log notes where it will be made and whom it concerns here; once it is made the log has
it too, and until then the host keeps it for the manager. So a manager that comes back after a crash
can ask: see `TransactionManager.recover`.
"""

from __future__ import annotations

from contextlib import suppress

from tupelo.errors import LinkError
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.decisions import branch_id, decider_of
from tupelo.federation.transactions import Decider, DeciderElsewhere
from tupelo.space.blocking import Space
from tupelo.space.twophase import DecisionLog, Outcome
from tupelo.values.parts import ANY

Told = list[tuple[str, str]]
_PENDING = "pending"
_MANAGER = 2**31
"""The number of the manager's own branch: so many others there never are."""


class ManagerLog(DecisionLog):
    """The log of a transaction manager: decisions, and those that are made elsewhere."""

    def __init__(self, space: Space, manager_id: str) -> None:
        super().__init__(space)
        self.manager_id = manager_id

    def pend(self, txn_id: str, decider_id: str, told: Told) -> None:
        """It will be decided there whether these commit."""
        self.space.write((_PENDING, txn_id, decider_id, tuple(told)))

    def is_pending(self, txn_id: str) -> bool:
        return self.space.count((_PENDING, txn_id, str, tuple)) > 0

    def settle_pending(self, txn_id: str, decider_id: str, told: Told, outcome: Outcome) -> None:
        """It is known what was decided."""
        with self.space.transaction() as txn:
            self.space.take_all((_PENDING, txn_id, decider_id, tuple), txn=txn)
            if outcome == "committed":
                self.space.write_all(
                    [("committed", branch, participant) for branch, participant in told], txn=txn
                )

    def decided_at(self, host_id: str) -> list[tuple[str, str, Told]]:
        """The transactions of which this host knows what was decided."""
        return [
            (txn_id, decider_id, [(branch, name) for branch, name in told])
            for _, txn_id, decider_id, told in self.space.read_all((_PENDING, str, str, ANY))
            if decider_of(decider_id) == host_id
        ]


class SpanningLog:
    """The decisions of one transaction: at its decider, and in the log of its manager."""

    def __init__(self, log: ManagerLog, txn_id: str, decider: Decider) -> None:
        self._log = log
        self._txn_id = txn_id
        self._decider = decider
        self._own = branch_id(decider.id, _MANAGER)

    def record(self, told: Told) -> None:
        here, there = self._split(told)
        if not there:
            self._log.record(here)
        elif not here:
            self._decider.record(there)
        else:
            self._log.pend(self._txn_id, self._decider.id, here)
            try:
                self._decider.record([*there, (self._own, self._log.manager_id)])
            except BaseException:
                if not self.recorded(told):
                    self._log.settle_pending(self._txn_id, self._decider.id, here, "aborted")
                raise
            self._log.settle_pending(self._txn_id, self._decider.id, here, "committed")
            self._decider.forget(self._own, self._log.manager_id)

    def recorded(self, told: Told) -> bool:
        here, there = self._split(told)
        return self._decider.recorded(there) if there else self._log.recorded(here)

    def forget(self, txn_id: str, participant: str) -> None:
        keeper = self._decider if self._is_there(txn_id) else self._log
        keeper.forget(txn_id, participant)

    def _split(self, told: Told) -> tuple[Told, Told]:
        here = [one for one in told if not self._is_there(one[0])]
        return here, [one for one in told if self._is_there(one[0])]

    def _is_there(self, txn_id: str) -> bool:
        return txn_id.startswith(f"{self._decider.id}|")


async def ask_decider(log: ManagerLog, space: RemoteSpace) -> int:
    """Learn from the host of a space what was decided there before a crash; how many transactions
    that was."""
    learnt, decider = 0, DeciderElsewhere(space)
    for txn_id, decider_id, told in log.decided_at(space.host_id):
        outcome = await decider.outcome(branch_id(decider_id, _MANAGER))
        if outcome in ("committed", "aborted"):
            log.settle_pending(txn_id, decider_id, told, outcome)
            with suppress(LinkError):
                await decider.forget_there(branch_id(decider_id, _MANAGER), log.manager_id)
            learnt += 1
    return learnt
