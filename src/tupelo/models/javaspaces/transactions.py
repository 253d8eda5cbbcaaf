"""The transaction manager: two-phase commit over spaces and other participants.

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

Committing a committed transaction, or aborting an aborted one, does nothing; the opposite raises
CannotAbort or CannotCommit. Until the decision to commit, a transaction can be aborted.

A manager with a path keeps its decisions in a durable space: after a crash, `recover` carries out
what was decided, and aborts the rest.

If spaces at hosts elsewhere take part, the decision is recorded at one of these hosts, the decider,
because such a space asks a host. Other participants ask the manager, which has a log of its own:
before the decision it records where the decision will be made, and for which participants; after
it, the outcome. The decider keeps the outcome until then, so that a manager that restarts after a
crash can ask: see `TransactionManager.recover`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
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
    LinkError,
    OutcomeUnknown,
    SpaceClosed,
    TimeoutExpired,
    TransactionEnded,
    UnknownTransaction,
)
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.decisions import branch_id, decider_of
from tupelo.federation.transactions import Decider, DeciderElsewhere, SpanningTransaction
from tupelo.models.javaspaces.leases import FOREVER, Lease, lease_of, seconds_asked
from tupelo.models.javaspaces.space import JavaSpace
from tupelo.postgres.voting import DatabaseSpace, read_prepared_name
from tupelo.space.blocking import Space, ThreadSignal
from tupelo.space.clock import Clock
from tupelo.space.dual_api import dual_api, maybe_await
from tupelo.space.leases import grant
from tupelo.space.port import find_port, port_of
from tupelo.space.query import check_wait
from tupelo.space.shared import SharedState, SharedTransaction
from tupelo.space.tasks import in_a_thread
from tupelo.space.twophase import DecisionLog, Outcome, Vote
from tupelo.values import lease as engine
from tupelo.values.lease import LeasePolicy, check_lease
from tupelo.values.parts import ANY

ACTIVE, VOTING, COMMITTED, ABORTED = "active", "voting", "committed", "aborted"
UNKNOWN = "unknown"
NOTCHANGED, PREPARED = "not changed", "prepared"

_METHODS = ("prepare", "commit", "abort", "prepare_and_commit")
_OUTCOMES_KEPT = 1_024
_RETRY_FIRST_SECONDS = 1.0
_RETRY_LONGEST_SECONDS = 60.0

Branches = list[tuple[str, str]]
"""The ids of the branches of a transaction, each with the name of its participant."""
_PENDING = "pending"
_MANAGER = 2**31
"""The branch number of the manager itself; other branches have smaller numbers."""


class ManagerLog(DecisionLog):
    """The log of a transaction manager: its decisions, and which decisions are made elsewhere."""

    def __init__(self, space: Space, manager_id: str) -> None:
        super().__init__(space)
        self.manager_id = manager_id

    def pend(self, txn_id: str, decider_id: str, branches: Branches) -> None:
        """Record that the decider decides about these branches."""
        self.space.write((_PENDING, txn_id, decider_id, tuple(branches)))

    def is_pending(self, txn_id: str) -> bool:
        """Whether the decision about this transaction is made elsewhere, and not known yet."""
        return self.space.count((_PENDING, txn_id, str, tuple)) > 0

    def settle_pending(
        self, txn_id: str, decider_id: str, branches: Branches, outcome: Outcome
    ) -> None:
        """Record the outcome, and remove the pending record."""
        with self.space.transaction() as txn:
            self.space.take_all((_PENDING, txn_id, decider_id, tuple), txn=txn)
            if outcome == "committed":
                self.space.write_all(
                    [("committed", branch, participant) for branch, participant in branches],
                    txn=txn,
                )

    def decided_at(self, host_id: str) -> list[tuple[str, str, Branches]]:
        """The pending transactions whose decider is this host."""
        return [
            (txn_id, decider_id, [(branch, name) for branch, name in branches])
            for _, txn_id, decider_id, branches in self.space.read_all((_PENDING, str, str, ANY))
            if decider_of(decider_id) == host_id
        ]


class SpanningLog:
    """The decisions of one transaction: at its decider, and in the log of its manager."""

    def __init__(self, log: ManagerLog, txn_id: str, decider: Decider) -> None:
        self._log = log
        self._txn_id = txn_id
        self._decider = decider
        self._own = branch_id(decider.id, _MANAGER)

    def record(self, branches: Branches) -> None:
        """Record the decision to commit these branches."""
        here, there = self._split(branches)
        if not there:
            self._log.record(here)
        elif not here:
            self._decider.record(there)
        else:
            self._log.pend(self._txn_id, self._decider.id, here)
            try:
                self._decider.record([*there, (self._own, self._log.manager_id)])
            except BaseException:
                if not self.recorded(branches):
                    self._log.settle_pending(self._txn_id, self._decider.id, here, "aborted")
                raise
            self._log.settle_pending(self._txn_id, self._decider.id, here, "committed")
            self._decider.forget(self._own, self._log.manager_id)

    def recorded(self, branches: Branches) -> bool:
        """Whether that decision was recorded."""
        here, there = self._split(branches)
        return self._decider.recorded(there) if there else self._log.recorded(here)

    def forget(self, txn_id: str, participant: str) -> None:
        """The participant knows the decision: drop it."""
        keeper = self._decider if self._is_there(txn_id) else self._log
        keeper.forget(txn_id, participant)

    def _split(self, branches: Branches) -> tuple[Branches, Branches]:
        here = [one for one in branches if not self._is_there(one[0])]
        return here, [one for one in branches if self._is_there(one[0])]

    def _is_there(self, txn_id: str) -> bool:
        return txn_id.startswith(f"{self._decider.id}|")


async def ask_decider(log: ManagerLog, space: RemoteSpace) -> int:
    """Ask the host of a space for the outcome of pending transactions; returns how many were
    settled."""
    learnt, decider = 0, DeciderElsewhere(space)
    for txn_id, decider_id, branches in log.decided_at(space.host_id):
        outcome = await decider.outcome(branch_id(decider_id, _MANAGER))
        if outcome in ("committed", "aborted"):
            log.settle_pending(txn_id, decider_id, branches, outcome)
            with suppress(LinkError):
                await decider.forget_there(branch_id(decider_id, _MANAGER), log.manager_id)
            learnt += 1
    return learnt


class TransactionParticipant(Protocol):
    """A participant that is not a space. Its `name` must be the same after a restart.

    `prepare` returns NOTCHANGED (the participant is not called again), PREPARED (it will be able to
    commit, whatever happens) or ABORTED. `commit` and `abort` may be called more than once.
    """

    name: str

    def prepare(self, manager: Any, txn_id: str) -> str:
        """Vote: NOTCHANGED, PREPARED or ABORTED."""
        ...

    def commit(self, manager: Any, txn_id: str) -> object:
        """The decision is to commit."""
        ...

    def abort(self, manager: Any, txn_id: str) -> object:
        """The decision is to abort."""
        ...

    def prepare_and_commit(self, manager: Any, txn_id: str) -> str:
        """Prepare and commit in one call, for the only participant: COMMITTED, NOTCHANGED or
        ABORTED."""
        ...


@dataclass(eq=False, repr=False)
class ParticipantBranch:
    """A participant that is not a space. It is called on a thread, so that it cannot block the
    manager."""

    _participant: TransactionParticipant
    _manager: object
    txn_id: str
    _clock: Clock
    _vote_seconds: float
    lasting = True

    def __post_init__(self) -> None:
        self.name = self.label = self._participant.name

    def prepare(self) -> Vote:
        return cast(Vote, self._call("prepare"))

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def prepare_and_commit(self) -> Vote:
        return cast(Vote, self._call("prepare_and_commit"))

    def has_committed(self) -> None:
        """None: only the participant knows."""

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
    """The name of a participant. BadArgument if it lacks a name or a method."""
    name = getattr(participant, "name", None)
    methods = [getattr(participant, method, None) for method in _METHODS]
    if not isinstance(name, str) or not all(map(callable, methods)):
        what = f"a space, or an object with a name, {', '.join(_METHODS)}"
        raise BadArgument("participant", what, participant)
    if any(map(iscoroutinefunction, methods)):
        raise BadArgument("participant", "one with plain methods: they are called on threads", name)
    return name


class Transaction(SpanningTransaction):
    """A transaction over every space that it is given to as `txn`, here or at hosts elsewhere. As a
    context manager it commits at the end, or aborts on an error."""

    def __init__(self, manager: TransactionManager, *args: Any, **options: Any) -> None:
        self.manager = manager
        self.guests: dict[str, int] = {}
        super().__init__(*args, **options)

    def decider_for(self, space: RemoteSpace) -> Decider:
        """The decider: the host of the first space elsewhere that takes part."""
        *_, root = self.line()
        if self.decider is None and isinstance(root, Transaction):
            decider = DeciderElsewhere(space)
            root.decide_at(decider, self.manager.log_with(root.id, decider))
        return super().decider_for(space)

    def _database_branch_id(self, space: Any) -> str:
        return self.id  # Its manager decides, and settles it after a crash.

    def renew_lease(self, thing: object, seconds: float | None) -> None:
        super().renew_lease(thing, self.manager.granted(seconds))

    async def renew_lease_async(self, thing: object, seconds: float | None) -> None:
        await super().renew_lease_async(thing, self.manager.granted(seconds))

    async def cancel_lease_async(self, thing: object) -> None:
        if self.state != "active":
            raise LeaseLost(f"the transaction is {self.state}; it cannot be cancelled")
        await self.abort_async()

    def transaction(self, *, lease: float | None = None) -> Transaction:
        """A nested transaction: it sees what this transaction sees, and commits into it."""
        return self.manager.create(FOREVER if lease is None else lease, self).transaction

    def join(self, participant: TransactionParticipant, crash_count: int = 0) -> None:
        """Add a participant that is not a space."""
        self.manager.join(self.id, participant, crash_count)

    def commit(self, wait: float | None = None) -> None:
        """Commit in all places, or in none: CannotCommit has the reason.

        All reachable participants are told. With `wait`, TimeoutExpired is raised if some were not
        told of the decision within so many seconds; the decision stands.
        """
        self._end_within(wait, SharedTransaction.commit, committing=True)

    def abort(self, wait: float | None = None) -> None:  # type: ignore[override]
        """Abort in all places; CannotAbort if it was committed before. `wait` is as in `commit`."""
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
        """End the transaction, unless it has ended or is ending; then raise if the outcome
        differs."""
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
    """A transaction of the async API: `commit` and `abort` are awaited."""

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
    """Raise CannotCommit, CannotAbort or UnknownTransaction unless the transaction ended as
    wanted."""
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
    """Creates transactions, and commits or aborts each in all places.

    A participant that does not answer `prepare` within `vote_seconds` counts as a refusal. A
    participant that does not answer `commit` is told again later.
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
        self.log = Space("transactions", path=path, clock=clock, lease_policy=lease_policy)
        """The space with the decisions of the manager."""
        self._clock = port_of(self.log).clock
        self.id = self._identity()
        self._decisions = ManagerLog(self.log, self.id)
        self._lock = threading.Lock()
        self._live: dict[str, Transaction] = {}
        self._families: dict[str, list[str]] = {}  # the ids of a transaction and those within it
        self._outcomes: OrderedDict[str, SharedState] = OrderedDict()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, {len(self._live)} open transactions>"

    # For clients

    def create(self, lease: float = FOREVER, parent: Transaction | None = None) -> Created:
        """A new transaction, nested in `parent` if given. It aborts itself when its lease
        expires."""
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

    def get_state(self, txn_id: str) -> SharedState:
        """ACTIVE, VOTING, COMMITTED, ABORTED, or UNKNOWN if a decider was lost during the
        commit."""
        found = self._transaction(txn_id)
        return found.state if isinstance(found, Transaction) else found

    @dual_api
    async def commit(self, txn_id: str, wait: float | None = None) -> None:
        """Commit in all places, or in none (then CannotCommit is raised). With `wait`,
        TimeoutExpired is raised if some participants were not told within so many seconds; the
        decision stands."""
        await self._finish(txn_id, wait, committing=True)

    @dual_api
    async def abort(self, txn_id: str, wait: float | None = None) -> None:
        """Abort in all places; CannotAbort if it was committed before."""
        await self._finish(txn_id, wait, committing=False)

    async def _finish(self, txn_id: str, wait: float | None, committing: bool) -> None:
        check_wait(wait)
        found = self._transaction(txn_id)
        if isinstance(found, Transaction):
            await maybe_await(found.commit(wait) if committing else found.abort(wait))  # type: ignore[func-returns-value]
        else:
            require_outcome(txn_id, found, committing, "")

    # For participants

    def join(self, txn_id: str, participant: TransactionParticipant, crash_count: int = 0) -> None:
        """Add a participant. Joining again changes nothing; with another `crash_count` it is
        refused and the transaction aborted, because the work of the participant was lost."""
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
                transaction.abort_because(f"{name} has crashed and lost its work")
            raise CannotJoin(f"{name} has crashed since it joined transaction {txn_id}")

    @dual_api
    async def recover(self, *participants: Any) -> int:
        """Settle the transactions that are in doubt at participants that come back; returns how
        many.

        Spaces of any kind know what they have promised. Other participants are told the decisions
        that they have missed and, if they have a method `in_doubt()` that returns ids, to abort the
        rest. A space at a host elsewhere is settled by its host; it says what was decided there
        before a crash of the manager, so give such spaces first.
        """
        number = 0
        for participant in participants:
            space = participant.space if isinstance(participant, JavaSpace) else participant
            if isinstance(space, RemoteSpace):
                number += await ask_decider(self._decisions, space)
            elif isinstance(space, DatabaseSpace):
                number += await self._recover_in_database(space)
            else:
                number += self._recover(space)
        return number

    def close(self) -> None:
        """Abort the open transactions, and close the log."""
        self._closed = True
        with self._lock:
            live = [txn for txn in self._live.values() if txn.parent is None]
        for transaction in live:
            if transaction.state == "active":
                transaction.abort_because("its manager was closed")
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Within

    def granted(self, seconds: float | None) -> float | None:
        """The lease that the policy of the manager grants."""
        return grant(port_of(self.log).lease_policy, "transaction", seconds, 0.0)

    def log_with(self, txn_id: str, decider: Decider) -> SpanningLog:
        """The log of a transaction whose decision is recorded by this decider."""
        return SpanningLog(self._decisions, txn_id, decider)

    def _identity(self) -> str:
        """The id of the manager, kept in the log: spaces record it with their promises."""
        found = self.log.read(("manager", str), wait=0)
        if found is None:
            found = ("manager", uuid4().hex)
            self.log.write(found)
        return found[1]

    def _transaction(self, txn_id: str) -> Transaction | SharedState:
        """The open transaction with this id, or the state in which it ended."""
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
        """The outcome of a transaction of this manager; None if it is open, or not of this manager.

        A transaction in memory knows best. Otherwise the log decides: no recorded decision means
        that none was made.
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
            return None  # The decider elsewhere knows.
        return self._decisions.recorded_outcome(txn_id)

    async def _recover_in_database(self, space: Any) -> int:
        settled = 0
        for branch in await space.prepared():
            _, txn_id = read_prepared_name(branch.name)
            outcome = self._outcome(txn_id)
            if outcome in ("committed", "aborted"):
                await branch.settle(outcome == "committed")
                settled += 1
        name = space.database.identity
        untold = self._decisions.untold(name)
        # Afterwards: they were prepared before. Some may be in other spaces of the database.
        prepared = await space.prepared_ids()
        for txn_id in set(untold) - prepared:
            if self._outcome(txn_id) == "committed":
                self._decisions.forget(txn_id, name)
        self._was_told(name, prepared)
        return settled

    def _recover(self, participant: Any) -> int:
        port = find_port(participant)
        if port is not None:
            settled = self._decisions.settle(port, self._outcome)
            self._was_told(port.id)
            return settled
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

    def _was_told(self, name: str, not_yet: Collection[str] = ()) -> None:
        """The participant was told of all decisions, except about those: drop the reminders."""
        for transaction in list(self._live.values()):
            if transaction.ended and transaction.id not in not_yet and transaction.was_told(name):
                self._forget(transaction)

    def _ended(self, transaction: SharedTransaction) -> None:
        """Keep the outcome for participants that ask, and remind those that were not told."""
        with self._lock:
            self._outcomes[transaction.id] = transaction.state
            # Nested transactions that have committed share its outcome.
            if transaction.parent is None:
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
        """All participants know the outcome: forget the transaction and those nested in it."""
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

        def on_alarm() -> None:  # A participant must not block the clock's thread.
            threading.Thread(target=tell, name="tupelo-decisions", daemon=True).start()

        self._clock.call_at(self._clock.now() + seconds, on_alarm)


class AsyncTransactionManager(TransactionManager):
    """A manager of the async API: `commit`, `abort` and `recover` are awaited."""

    is_async = True
    _made = AsyncTransaction
