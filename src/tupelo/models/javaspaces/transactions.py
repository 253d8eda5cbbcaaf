"""Transactions: a manager, and two-phase commit over spaces and whatever else takes part.

| Jini                                    | Tupelo                                                |
| --------------------------------------- | ----------------------------------------------------- |
| TransactionManager, Mahalo              | a coordinator of shared transactions, with its log    |
| ServerTransaction                       | Transaction: give it to operations as `txn`           |
| TransactionParticipant                  | a space joins by itself; others call `join`           |
| NestableTransactionManager              | create(lease, parent)                                 |
| CannotCommitException, CannotJoin..     | CannotCommit, CannotJoin, UnknownTransaction          |

A manager with a path keeps its decisions in a durable space: what was decided before a crash is
carried out by `recover`, and what was not decided is aborted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, cast
from uuid import uuid4

from tupelo.errors import (
    BadArgument,
    CannotJoin,
    SpaceClosed,
    TransactionEnded,
    UnknownTransaction,
)
from tupelo.models.javaspaces.leases import FOREVER, Lease, any_lease_of, seconds_asked
from tupelo.space.blocking import Space
from tupelo.space.clock import Clock
from tupelo.space.decisions import DecisionLog
from tupelo.space.handles import ThreadSignal
from tupelo.space.holdings import Holdings
from tupelo.space.leases import grant
from tupelo.space.shared import SharedTransaction, State
from tupelo.space.twophase import Outcome, Vote
from tupelo.values.lease import LeasePolicy, check_lease

ACTIVE, VOTING, COMMITTED, ABORTED = "active", "voting", "committed", "aborted"
UNKNOWN = "unknown"
NOTCHANGED, PREPARED = "not changed", "prepared"

_METHODS = ("prepare", "commit", "abort", "prepare_and_commit")
_OUTCOMES_KEPT = 1_024
_RETRY_FIRST_SECONDS = 1.0
_RETRY_LONGEST_SECONDS = 60.0


class TransactionParticipant(Protocol):
    """Who takes part and is not a space. `name` is known again after a restart.

    `prepare` answers NOTCHANGED (and is left alone), PREPARED (and will commit, whatever comes) or
    ABORTED. `commit` and `abort` may be called more than once.
    """

    name: str

    def prepare(self, manager: Any, txn_id: str) -> str: ...

    def commit(self, manager: Any, txn_id: str) -> object: ...

    def abort(self, manager: Any, txn_id: str) -> object: ...

    def prepare_and_commit(self, manager: Any, txn_id: str) -> str: ...


class Transaction(SharedTransaction):
    """All or nothing, over every space that it is given to. A context manager commits at its end,
    or aborts on an error."""

    def __init__(self, manager: TransactionManager, *args: Any, **options: Any) -> None:
        self.manager = manager
        self.guests: dict[str, int] = {}
        super().__init__(*args, **options)

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return self.manager.create(FOREVER if lease is None else lease, self).transaction

    def join(self, participant: TransactionParticipant, crash_count: int = 0) -> None:
        """Let someone take part who is not a space."""
        self.manager.join(self.id, participant, crash_count)


class AsyncTransaction(Transaction):
    """A transaction of the async door: `commit` and `abort` are awaited."""

    commit = SharedTransaction.commit_async  # type: ignore[assignment]
    abort = SharedTransaction.abort_async  # type: ignore[assignment]


class Created(NamedTuple):
    """A new transaction, and its lease."""

    transaction: Transaction
    lease: Lease


class TransactionManager:
    """Makes transactions, and brings each to its end in all places or in none.

    A participant that does not answer within `vote_seconds` has refused, if it was asked to
    promise; if it was told to commit it is told again later.
    """

    _made = Transaction

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        clock: Clock | None = None,
        vote_seconds: float = 30.0,
        lease_policy: LeasePolicy | None = None,
    ) -> None:
        if check_lease(vote_seconds, "vote_seconds") is None:
            raise BadArgument("vote_seconds", "a number of seconds above 0", vote_seconds)
        self._vote_seconds = vote_seconds
        self._log_space = Space("transactions", path=path, clock=clock, lease_policy=lease_policy)
        self._decisions = DecisionLog(self._log_space)
        self._clock = self._log_space._operations.engine.clock
        self.id = self._identity()
        self._lock = threading.Lock()
        self._live: dict[str, Transaction] = {}
        self._families: dict[str, list[str]] = {}  # the ids of a transaction and those within it
        self._outcomes: OrderedDict[str, State] = OrderedDict()
        self._closed = False

    # What clients use

    def create(self, lease: float = FOREVER, parent: Transaction | None = None) -> Created:
        """A new transaction, nested in `parent` if one is given. It aborts itself when its lease
        runs out."""
        if self._closed:
            raise SpaceClosed("the transaction manager is closed")
        if parent is not None and (
            not isinstance(parent, Transaction) or parent.manager is not self
        ):
            raise BadArgument("parent", "a transaction of this manager", parent)
        transaction = self._made(
            self,
            self._clock,
            self._granted(lease),
            txn_id=f"{self.id}.{uuid4().hex}",
            parent=parent,
            decisions=self._decisions,
            on_end=self._ended,
        )
        *_, root = transaction.line()
        with self._lock:
            self._live[transaction.id] = transaction
            self._families.setdefault(root.id, []).append(transaction.id)
        if root.ended and not root.untold:  # Its lease was that short.
            self._forget(root)
        return Created(transaction, Lease(transaction.lease))

    def get_state(self, txn_id: str) -> State:
        """ACTIVE, VOTING, COMMITTED, ABORTED, or UNKNOWN if one was lost in mid-commit."""
        if not isinstance(txn_id, str):
            raise UnknownTransaction(txn_id)
        with self._lock:
            live = self._live.get(txn_id)
            if live is None and txn_id in self._outcomes:
                return self._outcomes[txn_id]
        if live is not None:
            return live.state
        if self._decisions.committed(txn_id):
            return "committed"
        raise UnknownTransaction(txn_id)

    def commit(self, txn_id: str) -> Any:
        """Commit in all places, or in none (then CannotCommit is raised)."""
        return self._transaction(txn_id).commit()

    def abort(self, txn_id: str) -> Any:
        """Undo everything."""
        return self._transaction(txn_id).abort()

    # What participants use

    def join(self, txn_id: str, participant: TransactionParticipant, crash_count: int = 0) -> None:
        """Take part. Joining again changes nothing; with another `crash_count` it is refused, and
        the transaction aborted: what the participant had done in it is lost."""
        name = _check_participant(participant)
        transaction = self._transaction(txn_id)
        with self._lock:
            is_new = name not in transaction.guests
            known = transaction.guests.setdefault(name, crash_count)
        if is_new:
            try:
                transaction.enlist(_Guest(participant, self, txn_id))
            except CannotJoin:
                transaction.guests.pop(name, None)
                raise
        elif known != crash_count:
            with suppress(TransactionEnded):
                transaction._abort(f"{name} has crashed and lost what it did")
            raise CannotJoin(f"{name} has crashed since it joined transaction {txn_id}")

    def recover(self, *participants: Any) -> int:
        """Settle what participants that come back have in doubt; how many transactions that was.

        Spaces (of any door) know what they have promised. Others are told of the decisions that
        they have missed, and, if they have `in_doubt()` (ids), to abort the rest.
        """
        return sum(map(self._recover, participants))

    def close(self) -> None:
        """Abort what is under way, and close the log."""
        self._closed = True
        with self._lock:
            live = [txn for txn in self._live.values() if txn.parent is None]
        for transaction in live:
            if transaction.state == "active":
                transaction._abort("its manager was closed")
        self._log_space.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Within

    def _granted(self, lease: float) -> float | None:
        """How long a transaction may live, by the manager's policy."""
        operations = self._log_space._operations
        asked = seconds_asked(lease, any_lease_of(operations, "transaction"))
        policy = operations.core.lease_policy
        return asked if policy is None else grant(policy, "transaction", asked, 0.0)

    def _identity(self) -> str:
        """Its name, by which spaces know whose promises they hold; kept in the log."""
        found = self._log_space.read(("manager", str), wait=0)
        if found is None:
            found = ("manager", uuid4().hex)
            self._log_space.write(found)
        return cast(str, found[1])

    def _transaction(self, txn_id: str) -> Transaction:
        if not isinstance(txn_id, str):
            raise UnknownTransaction(txn_id)
        with self._lock:
            transaction = self._live.get(txn_id)
            outcome = self._outcomes.get(txn_id)
        if transaction is None and outcome is not None:
            raise TransactionEnded(txn_id, outcome)
        if transaction is None:
            raise UnknownTransaction(txn_id)
        return transaction

    def _outcome(self, txn_id: str) -> Outcome | None:
        """What became of a transaction of this manager; None if it is under way, or not ours.

        Whoever is alive knows best. For others the log does: without a decision on record none was
        made.
        """
        if not txn_id.startswith(f"{self.id}."):
            return None
        live = self._live.get(txn_id)
        if live is not None:
            *_, root = live.line()
            if not root.ended:
                return None
            if root.state != "unknown":
                return "committed" if root.state == "committed" else "aborted"
        elif txn_id in self._outcomes and self._outcomes[txn_id] != "unknown":
            return "committed" if self._outcomes[txn_id] == "committed" else "aborted"
        return self._decisions.recorded_outcome(txn_id)

    def _recover(self, participant: Any) -> int:
        operations = getattr(participant, "_operations", None)
        if isinstance(operations, Holdings):
            settled = self._decisions.settle(operations, self._outcome)
            self._was_told(operations.engine.id)
            return settled
        _check_participant(participant)
        missed = self._decisions.untold(participant.name)
        missed = [txn_id for txn_id in missed if self._outcome(txn_id) == "committed"]
        for txn_id in missed:
            participant.commit(self, txn_id)
            self._decisions.forget(txn_id, participant.name)
        in_doubt: Callable[[], list[str]] = getattr(participant, "in_doubt", list)
        lost = [txn_id for txn_id in in_doubt() if self._outcome(txn_id) == "aborted"]
        for txn_id in lost:
            participant.abort(self, txn_id)
        self._was_told(participant.name)
        return len(missed) + len(lost)

    def _was_told(self, name: str) -> None:
        """This participant knows all by now; it need not be told later."""
        for transaction in list(self._live.values()):
            if transaction.ended and transaction.was_told(name):
                self._forget(transaction)

    def _ended(self, transaction: SharedTransaction) -> None:
        """Remember what became of it, for those who ask; tell those who have not heard yet."""
        with self._lock:
            self._outcomes[transaction.id] = transaction.state
            if transaction.parent is None:  # What was committed into it shares its fate.
                for txn_id in self._families.get(transaction.id, []):
                    if self._outcomes.get(txn_id) == "committed":
                        self._outcomes[txn_id] = transaction.state
            if len(self._outcomes) > _OUTCOMES_KEPT:
                self._outcomes.popitem(last=False)
        if transaction.untold:
            self._tell_later(transaction, _RETRY_FIRST_SECONDS)
        elif transaction.parent is None:
            self._forget(transaction)

    def _forget(self, transaction: SharedTransaction) -> None:
        """It is over, everyone knows, and so are those that were nested in it."""
        with self._lock:
            for txn_id in self._families.pop(transaction.id, []):
                self._live.pop(txn_id, None)

    def _tell_later(self, transaction: SharedTransaction, seconds: float) -> None:
        def tell() -> None:
            if self._closed:
                return
            if transaction.retry():
                self._forget(transaction)
            else:
                self._tell_later(transaction, min(2 * seconds, _RETRY_LONGEST_SECONDS))

        def on_alarm() -> None:  # The clock's thread may not be kept waiting by a participant.
            threading.Thread(target=tell, name="tupelo-decisions", daemon=True).start()

        self._clock.call_at(self._clock.now() + seconds, on_alarm)


class AsyncTransactionManager(TransactionManager):
    """A manager whose transactions are of the async door: committing and aborting are awaited."""

    _made = AsyncTransaction


class _Guest:
    """A participant that is not a space. It is called on a thread, so that it cannot stall us."""

    lasting = True

    @property
    def label(self) -> str:
        return self.name

    def __init__(
        self, participant: TransactionParticipant, manager: TransactionManager, txn_id: str
    ) -> None:
        self.name = participant.name
        self.txn_id = txn_id
        self._participant = participant
        self._manager = manager

    def prepare(self) -> Vote:
        return cast(Vote, self._call("prepare"))

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def prepare_and_commit(self) -> Vote:
        return cast(Vote, self._call("prepare_and_commit"))

    def has_committed(self) -> None:
        """Only it knows."""

    def _call(self, what: str) -> object:
        signal = ThreadSignal()
        answers: list[object] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                answers.append(getattr(self._participant, what)(self._manager, self.txn_id))
            except BaseException as error:
                errors.append(error)
            finally:
                signal.wake()

        threading.Thread(target=work, name=f"tupelo-{what}", daemon=True).start()
        seconds = self._manager._vote_seconds
        self._manager._clock.acquire(signal.lock, seconds)
        if errors:
            raise errors[0]
        if not answers:
            raise TimeoutError(f"{self.name} did not answer to {what} within {seconds:g} s")
        return answers[0]


def _check_participant(participant: Any) -> str:
    """Its name, by which it is known again."""
    name = getattr(participant, "name", None)
    methods = [getattr(participant, method, None) for method in _METHODS]
    if not isinstance(name, str) or not all(map(callable, methods)):
        what = f"a space, or an object with a name, {', '.join(_METHODS)}"
        raise BadArgument("participant", what, participant)
    if any(map(iscoroutinefunction, methods)):
        raise BadArgument("participant", "one with plain methods: they are called on threads", name)
    return name
