"""Transactions: a manager, and two-phase commit over spaces and whatever else takes part.

| Jini                                    | Tupelo                                                |
| --------------------------------------- | ----------------------------------------------------- |
| TransactionManager, Mahalo              | a coordinator of shared transactions, with its log    |
| ServerTransaction                       | Transaction: give it to operations as `txn`           |
| TransactionParticipant                  | a space joins by itself; others call `join`           |
| NestableTransactionManager              | create(lease, parent)                                 |
| commit, abort(id, waitFor)              | commit, abort(id, wait): TimeoutExpired if not all    |
|                                         | participants were told in time                        |
| CannotCommitException, CannotJoin..     | CannotCommit, CannotAbort, CannotJoin,                |
|                                         | UnknownTransaction                                    |

Committing what is committed, and aborting what is aborted, returns; the other way round raises
CannotAbort and CannotCommit. Until it is decided to commit, a transaction can be aborted.

A manager with a path keeps its decisions in a durable space: what was decided before a crash is
carried out by `recover`, and what was not decided is aborted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, cast
from uuid import uuid4

from tupelo.errors import (
    BadArgument,
    CannotAbort,
    CannotCommit,
    CannotJoin,
    LeaseLost,
    OutcomeUnknown,
    SpaceClosed,
    TimeoutExpired,
    TransactionEnded,
    UnknownTransaction,
)
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.transactions import Decider, DeciderElsewhere, SpanningTransaction
from tupelo.models.javaspaces.leases import FOREVER, Lease, lease_of, seconds_asked
from tupelo.models.javaspaces.logs import ManagerLog, SpanningLog, ask_decider
from tupelo.models.javaspaces.space import JavaSpace
from tupelo.space.blocking import Space, ThreadSignal
from tupelo.space.clock import Clock
from tupelo.space.dual_api import dual_api, maybe_await
from tupelo.space.leases import grant
from tupelo.space.port import find_port, port_of
from tupelo.space.query import check_wait
from tupelo.space.shared import SharedTransaction, State
from tupelo.space.tasks import in_a_thread
from tupelo.space.twophase import Outcome, Vote
from tupelo.values import lease as engine
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


class ParticipantBranch:
    """A participant that is not a space. It is called on a thread, so that it cannot stall us."""

    lasting = True

    @property
    def label(self) -> str:
        return self.name

    def __init__(
        self,
        participant: TransactionParticipant,
        manager: object,
        txn_id: str,
        clock: Clock,
        vote_seconds: float,
    ) -> None:
        self.name = participant.name
        self.txn_id = txn_id
        self._participant = participant
        self._manager = manager
        self._clock = clock
        self._vote_seconds = vote_seconds

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
        seconds = self._vote_seconds
        self._clock.acquire(signal.lock, seconds)
        if errors:
            raise errors[0]
        if not answers:
            raise TimeoutError(f"{self.name} did not answer to {what} within {seconds:g} s")
        return answers[0]


def check_participant(participant: Any) -> str:
    """Its name, by which it is known again."""
    name = getattr(participant, "name", None)
    methods = [getattr(participant, method, None) for method in _METHODS]
    if not isinstance(name, str) or not all(map(callable, methods)):
        what = f"a space, or an object with a name, {', '.join(_METHODS)}"
        raise BadArgument("participant", what, participant)
    if any(map(iscoroutinefunction, methods)):
        raise BadArgument("participant", "one with plain methods: they are called on threads", name)
    return name


class Transaction(SpanningTransaction):
    """All or nothing, over every space that it is given to, here or at hosts elsewhere. A context
    manager commits at its end, or aborts on an error."""

    def __init__(self, manager: TransactionManager, *args: Any, **options: Any) -> None:
        self.manager = manager
        self.guests: dict[str, int] = {}
        super().__init__(*args, **options)

    def decider_for(self, space: RemoteSpace) -> Decider:
        """The host of the first space elsewhere that takes part decides."""
        *_, root = self.line()
        if self.decider is None and isinstance(root, Transaction):
            decider = DeciderElsewhere(space)
            root.decide_at(decider, self.manager.log_with(root.id, decider))
        return super().decider_for(space)

    def renew_lease(self, thing: object, seconds: float | None) -> None:
        super().renew_lease(thing, self.manager.granted(seconds))

    async def renew_lease_async(self, thing: object, seconds: float | None) -> None:
        await super().renew_lease_async(thing, self.manager.granted(seconds))

    async def cancel_lease_async(self, thing: object) -> None:
        if self.state != "active":
            raise LeaseLost(f"the transaction is {self.state}; it cannot be cancelled")
        await self.abort_async()

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return self.manager.create(FOREVER if lease is None else lease, self).transaction

    def join(self, participant: TransactionParticipant, crash_count: int = 0) -> None:
        """Let someone take part who is not a space."""
        self.manager.join(self.id, participant, crash_count)

    def commit(self, wait: float | None = None) -> None:
        """Commit in all places, or in none: CannotCommit says why.

        It tells the participants that can be told. With `wait`, TimeoutExpired is raised if some
        were not told of the decision within so many seconds.
        """
        self._end_within(wait, SharedTransaction.commit, committing=True)

    def abort(self, wait: float | None = None) -> None:  # type: ignore[override]
        """Undo it in all places; CannotAbort if it was committed before. `wait` is that of
        `commit`."""
        self._end_within(wait, SharedTransaction.abort, committing=False)

    def _end_within(
        self, wait: float | None, end: Callable[[SharedTransaction], None], committing: bool
    ) -> None:
        check_wait(wait)
        if wait is None:
            self._end_once(end, committing)
            return
        until = self.now() + wait
        done: list[Exception | None] = []

        def work() -> None:
            error = None
            try:
                self._end_once(end, committing)
            except Exception as raised:
                error = raised
            done.append(error)
            self.wake_waiting()

        def all_know() -> bool:
            if done and done[0] is not None and not isinstance(done[0], CannotCommit):
                return True  # This call has ended nothing.
            return bool(done) and self.over and not (self.untold or self.not_aborted)

        threading.Thread(target=work, name="tupelo-commit", daemon=True).start()
        self.wait_for(lambda: self.ended or bool(done), None)
        if not self.wait_for(all_know, max(0.0, until - self.now())):
            raise TimeoutExpired(self.id, self.state, self.untold + self.not_aborted)
        if done[0] is not None:
            raise done[0]

    def _end_once(self, end: Callable[[SharedTransaction], None], committing: bool) -> None:
        """End it, unless it has ended or is about to: then it is said how."""
        try:
            end(self)
        except TransactionEnded:
            self.wait_for(lambda: self.ended, None)
            require_outcome(self.id, self.state, committing, self.reason)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            super().__exit__(kind, error, trace)
        except TransactionEnded as ended:
            raise CannotCommit(self.id, "", ended.reason) from ended

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except TransactionEnded as ended:
            raise CannotCommit(self.id, "", ended.reason) from ended


class AsyncTransaction(Transaction):
    """A transaction of the async door: `commit` and `abort` are awaited."""

    is_async = True

    def __enter__(self) -> Self:
        raise TypeError("use 'async with' for a transaction of async spaces")

    async def __aenter__(self) -> Self:
        return self

    async def commit(self, wait: float | None = None) -> None:  # type: ignore[override]
        await self._in_a_thread(super().commit, wait)

    async def abort(self, wait: float | None = None) -> None:  # type: ignore[override]
        await self._in_a_thread(super().abort, wait)

    async def _in_a_thread(self, end: Callable[[float | None], None], wait: float | None) -> None:
        if wait is None and not self.may_block and self.state != "voting":
            end(wait)
        else:
            await in_a_thread(partial(end, wait))


def require_outcome(txn_id: str, state: str, committing: bool, reason: str) -> None:
    """Raise what is due if a transaction that has ended did not end as the caller wants it to."""
    if state == "unknown":
        raise OutcomeUnknown(txn_id, "a participant", reason or "it did not answer")
    if committing and state != "committed":
        raise CannotCommit(txn_id, "", reason or "it was called off")
    if not committing and state == "committed":
        raise CannotAbort(txn_id)


class Created(NamedTuple):
    """A new transaction, and its lease."""

    transaction: Transaction
    lease: Lease


class TransactionManager:
    """Makes transactions, and brings each to its end in all places or in none.

    A participant that does not answer within `vote_seconds` has refused, if it was asked to
    promise; if it was told to commit it is told again later.
    """

    is_async = False
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
        self._clock = port_of(self._log_space).clock
        self.id = self._identity()
        self._decisions = ManagerLog(self._log_space, self.id)
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
        try:
            transaction = self._made(
                self,
                self._clock,
                self.granted(seconds_asked(lease, zero=True)),
                txn_id=f"{self.id}.{uuid4().hex}",
                parent=parent,
                decisions=self._decisions,
                on_end=self._ended,
            )
        except TransactionEnded as ended:
            raise CannotJoin(f"{ended}; it can have no nested ones any more") from ended
        *_, root = transaction.line()
        with self._lock:
            self._live[transaction.id] = transaction
            self._families.setdefault(root.id, []).append(transaction.id)
        if root.ended and not root.untold:  # Its lease was that short.
            self._forget(root)
        granted = engine.AsyncLease if transaction.is_async else engine.Lease
        return Created(transaction, lease_of(granted(transaction, transaction)))

    def get_state(self, txn_id: str) -> State:
        """ACTIVE, VOTING, COMMITTED, ABORTED, or UNKNOWN if one was lost in mid-commit."""
        found = self._transaction(txn_id)
        return found.state if isinstance(found, Transaction) else found

    @dual_api
    async def commit(self, txn_id: str, wait: float | None = None) -> None:
        """Commit in all places, or in none (then CannotCommit is raised). With `wait`, everyone
        must have been told within so many seconds: else TimeoutExpired, and the decision stands."""
        await self._finish(txn_id, wait, committing=True)

    @dual_api
    async def abort(self, txn_id: str, wait: float | None = None) -> None:
        """Undo everything; CannotAbort if it was committed before."""
        await self._finish(txn_id, wait, committing=False)

    async def _finish(self, txn_id: str, wait: float | None, committing: bool) -> None:
        check_wait(wait)
        found = self._transaction(txn_id)
        if isinstance(found, Transaction):
            await maybe_await(found.commit(wait) if committing else found.abort(wait))  # type: ignore[func-returns-value]
        else:
            require_outcome(txn_id, found, committing, "")

    # What participants use

    def join(self, txn_id: str, participant: TransactionParticipant, crash_count: int = 0) -> None:
        """Take part. Joining again changes nothing; with another `crash_count` it is refused, and
        the transaction aborted: what the participant had done in it is lost."""
        name = check_participant(participant)
        transaction = self._transaction(txn_id)
        if not isinstance(transaction, Transaction):
            raise CannotJoin(f"transaction {txn_id} is {transaction}: {name} comes too late")
        with self._lock:
            is_new = name not in transaction.guests
            known = transaction.guests.setdefault(name, crash_count)
        if is_new:
            try:
                transaction.enlist(
                    ParticipantBranch(participant, self, txn_id, self._clock, self._vote_seconds)
                )
            except CannotJoin:
                transaction.guests.pop(name, None)
                raise
        elif known != crash_count:
            with suppress(TransactionEnded):
                transaction.abort_because(f"{name} has crashed and lost what it did")
            raise CannotJoin(f"{name} has crashed since it joined transaction {txn_id}")

    @dual_api
    async def recover(self, *participants: Any) -> int:
        """Settle what participants that come back have in doubt; how many transactions that was.

        Spaces (of any door) know what they have promised. Others are told of the decisions that
        they have missed, and, if they have `in_doubt()` (ids), to abort the rest. A space at a host
        elsewhere, which is settled by its host, says what was decided there before a crash of the
        manager: give it first.
        """
        number = 0
        for participant in participants:
            space = participant.space if isinstance(participant, JavaSpace) else participant
            if isinstance(space, RemoteSpace):
                number += await ask_decider(self._decisions, space)
            else:
                number += self._recover(space)
        return number

    def close(self) -> None:
        """Abort what is under way, and close the log."""
        self._closed = True
        with self._lock:
            live = [txn for txn in self._live.values() if txn.parent is None]
        for transaction in live:
            if transaction.state == "active":
                transaction.abort_because("its manager was closed")
        self._log_space.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Within

    def granted(self, seconds: float | None) -> float | None:
        """How long a transaction may live, by the manager's policy."""
        return grant(port_of(self._log_space).lease_policy, "transaction", seconds, 0.0)

    def log_with(self, txn_id: str, decider: Decider) -> SpanningLog:
        """Where the decision is recorded, if a host elsewhere decides."""
        return SpanningLog(self._decisions, txn_id, decider)

    def _identity(self) -> str:
        """Its name, by which spaces know whose promises they hold; kept in the log."""
        found = self._log_space.read(("manager", str), wait=0)
        if found is None:
            found = ("manager", uuid4().hex)
            self._log_space.write(found)
        return found[1]

    def _transaction(self, txn_id: str) -> Transaction | State:
        """A transaction that is under way, or what became of it."""
        if not isinstance(txn_id, str):
            raise UnknownTransaction(txn_id)
        with self._lock:
            found = self._live.get(txn_id) or self._outcomes.get(txn_id)
        if found is None:
            if not self._decisions.committed(txn_id):
                raise UnknownTransaction(txn_id)
            found = "committed"
        return found

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
        if self._decisions.is_pending(txn_id):
            return None  # A host elsewhere knows.
        return self._decisions.recorded_outcome(txn_id)

    def _recover(self, participant: Any) -> int:
        port = find_port(participant)
        if port is not None:
            maybe_await = self._decisions.settle(port, self._outcome)
            self._was_told(port.id)
            return maybe_await
        check_participant(participant)
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
    """A manager whose transactions are of the async door: committing, aborting and recovering are
    awaited."""

    is_async = True
    _made = AsyncTransaction
