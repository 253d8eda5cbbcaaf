"""Shared transactions: all or nothing over several spaces and other participants.

A shared transaction has a branch in every space that it was used in. `twophase` commits or aborts
them together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, Self
from uuid import uuid4

from tupelo.errors import (
    CannotCommit,
    CannotJoin,
    LeaseLost,
    OutcomeUnknown,
    SpaceClosed,
    TransactionEnded,
    TransactionError,
)
from tupelo.space.blocking import ThreadSignal
from tupelo.space.clock import Clock
from tupelo.space.port import Port, Spanning
from tupelo.space.tasks import in_a_thread
from tupelo.space.transaction import LEASE_RAN_OUT, Txn
from tupelo.space.twophase import (
    Ballot,
    Decisions,
    Outcome,
    Participant,
    Vote,
    call_off,
    tell,
)
from tupelo.values.holder import Holder
from tupelo.values.lease import Lease, check_lease

logger = logging.getLogger("tupelo")

EndBranch = Callable[[bool | None], object]
"""Called with whether a transaction was committed; None if that is not known."""

SharedState = Literal["active", "voting", "committed", "aborted", "unknown"]


class Branch:
    """The part of a shared transaction in one space."""

    def __init__(self, port: Port, state: Txn) -> None:
        self.port = port
        self.state = state
        self.name = port.id
        self.txn_id = state.id
        self.label = f"the space {port.name!r}"
        self.lasting = port.durable

    def prepare(self) -> Vote:
        if self.state.state in ("prepared", "committed"):  # It was prepared before: see `promise`.
            return "prepared" if self.state.state == "prepared" else "not changed"
        vote, position = self.port.prepare(self.state)
        self.port.flush(position)
        return vote

    def commit(self) -> None:
        port = self.port
        try:
            port.flush(port.commit(self.state))
        except TransactionEnded:
            if self.state.state != "committed":
                raise
            port.flush(port.position)  # It was committed before, perhaps not durably.
        except SpaceClosed:
            if port.durable:  # It is in doubt when the space is opened again.
                raise

    def abort(self) -> None:
        self.port.flush(self.port.abort(self.state))

    def prepare_and_commit(self) -> Vote:
        if self.state.state != "committed":  # It is committed if it had no changes.
            self.port.flush(self.port.commit(self.state))
        return "committed"

    def has_committed(self) -> bool:
        return self.state.state == "committed"


class SharedTransaction(Spanning):
    """One transaction over several spaces, to be passed to their operations as `txn=`.

    It aborts when its lease runs out, and is thread-safe. `decisions` records the decision; without
    it the decision does not survive this process, which suffices for spaces in memory.
    """

    def __init__(
        self,
        clock: Clock,
        lease: float | None = None,
        *,
        txn_id: str | None = None,
        parent: SharedTransaction | None = None,
        decisions: Decisions | None = None,
        on_end: Callable[[SharedTransaction], object] | None = None,
    ) -> None:
        lease = check_lease(lease)
        self.id = txn_id or uuid4().hex
        self.parent = parent
        self.reason = ""
        self.expires: float | None = None
        self._clock = clock
        self._decisions = decisions
        self._on_end = on_end
        self._state: SharedState = "active"
        self._lock = threading.Lock()
        self._branches: dict[Port, Branch] = {}
        self._members: list[Participant] = []
        self._children: dict[SharedTransaction, None] = {}
        self._untold: list[Participant] = []
        self.not_aborted: list[str] = []  # participants that could not be notified of the abort
        self._called_off = False
        self._deciding = False  # The decision is being made; no abort is possible.
        self._over = False
        self._signals: list[ThreadSignal] = []
        self._ends: list[EndBranch] = []
        self._cancel_alarm: Callable[[], None] = lambda: None
        if parent is not None:
            with parent._lock:
                parent._require_active()
                parent._children[self] = None
        self._grant(lease)

    # State

    @property
    def state(self) -> SharedState:
        """active, voting, committed, aborted, or unknown if a participant was lost during the
        commit."""
        self._end_in_time()
        return self._state

    @property
    def ended(self) -> bool:
        """Whether it has been committed or aborted."""
        return self._state not in ("active", "voting")

    @property
    def lease(self) -> Lease:
        """Its lease; the transaction aborts when it ends."""
        return Lease(self, self)

    def line(self) -> Iterator[SharedTransaction]:
        """This transaction and its ancestors."""
        txn: SharedTransaction | None = self
        while txn is not None:
            yield txn
            txn = txn.parent

    @property
    def untold(self) -> list[str]:
        """The participants that were not notified of the decision yet."""
        return [member.name for member in self._untold]

    @property
    def over(self) -> bool:
        """Whether it has ended, and all participants that can be reached were notified."""
        return self._over

    def wait_for(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Block until the condition holds; it is evaluated whenever the state changes. False if it
        does not hold within so many seconds (None: for ever)."""
        until = None if seconds is None else self.now() + seconds
        while not condition():
            left = None if until is None else until - self.now()
            if left is not None and left <= 0:
                return False
            signal = ThreadSignal()
            self._signals.append(signal)
            try:
                if not condition():
                    self._clock.acquire(signal.lock, left)
            finally:
                self._signals.remove(signal)
        return True

    def transaction(self, *, lease: float | None = None) -> SharedTransaction:
        """Begin a nested transaction: it sees what this one sees, and commits into it."""
        return SharedTransaction(self._clock, lease, parent=self)

    # Joining

    def branch_at(self, port: Port) -> Txn:
        # A space's lock is acquired before ours, and never two of them. An expired transaction is
        # refused here, and aborted in all spaces by its alarm.
        with port.atomic():
            if self._has_run_out():
                raise TransactionEnded(self.id, "aborted", LEASE_RAN_OUT)
            above = None if self.parent is None else self.parent.branch_at(port)
            with self._lock:
                branch = self._branches.get(port)
                if branch is None:
                    self._require_active()
                    state = port.begin_branch(self._left(), above, self._new_branch_id())
                    branch = self._new_branch(port, state)
                    self._branches[port] = branch
                    self._members.append(branch)
                return branch.state

    def has_branch(self, port: Port) -> bool:
        """Whether it was used in this space."""
        return port in self._branches

    def enlist(self, participant: Participant) -> None:
        """Add a participant that is not a space."""
        self._end_in_time()
        with self._lock:
            if self._state != "active":
                raise CannotJoin(
                    f"transaction {self.id} is {self._state}: {participant.name} comes too late"
                )
            self._members.append(participant)

    # Ending

    def promise(self, holder: Holder | None = None) -> None:
        """Phase one ahead of the end: every space promises to commit, and is in doubt after a
        crash. Only `commit` or `abort` may follow. With a holder it is a delivery, and the journals
        record the holder."""
        for member in list(self._members):
            if isinstance(member, Branch):
                member.state.holder = holder
            member.prepare()

    def commit(self) -> None:
        """Commit in all spaces or in none. Raises CannotCommit with the participant that
        refused."""
        self._commit()

    def abort(self, reason: str = "it was called off") -> None:
        """Abort in all spaces."""
        self._called_off = True
        self._abort(reason)

    def abort_because(self, reason: str) -> None:
        """Abort in all spaces for another reason than a call of `abort`; a `with` block raises
        it."""
        self._abort(reason)

    def _commit(self) -> None:
        self._end_in_time()
        begun = False
        try:
            with self._lock:
                self._require_active()
                if self._children:
                    names = ", ".join(sorted(child.id for child in self._children))
                    raise TransactionError(
                        f"transaction {self.id} still has nested ones open: {names}"
                    )
                begun = True
                self._state = "voting"
                self._deciding = self.parent is not None
            self._cancel_alarm()
            if self.parent is not None:
                self._commit_into(self.parent)
            else:
                self._commit_all()
        except BaseException as error:  # KeyboardInterrupt at the very beginning
            if begun and self._state in ("active", "voting"):
                self._end("aborted", str(error), list(self._members))
            raise

    def _commit_all(self) -> None:
        ballot = Ballot(self.id, list(self._members))
        interrupt = None
        try:
            ballot.hold(self._proceed)
            self._proceed(True)
            if self._decisions is not None and ballot.lasting:
                self._decisions.record(ballot.lasting)
            self._untold = list(ballot.promised)
            self._end("committed")
        except BaseException as error:
            interrupt = self._judge(ballot, error)
        try:
            tell(self._untold, self._decisions)
        finally:
            self._report_ended()
        if interrupt is not None:
            raise interrupt

    def _proceed(self, decides: bool) -> None:
        """Continue the vote, or raise an error if the transaction was aborted meanwhile."""
        with self._lock:
            if self._state != "voting":
                raise CannotCommit(self.id, "", self.reason)
            self._deciding = decides

    def _judge(self, ballot: Ballot, error: BaseException) -> BaseException | None:
        """An error came before the end: raise it, unless the decision had been made."""
        if self._state == "committed":
            outcome: Outcome = "committed"
        elif isinstance(error, OutcomeUnknown):
            outcome = "unknown"
        else:
            outcome = ballot.outcome(self._decisions)
            if outcome == "unknown" and isinstance(error, CannotCommit):
                outcome = "aborted"  # The vote of the only participant is known.
        if outcome == "committed":
            self._untold = list(ballot.promised)
            self._end("committed")
            return None if isinstance(error, Exception) else error
        self._untold = []
        concerned = ballot.concerned if outcome == "aborted" else []  # otherwise the promises stand
        self._end(outcome, self.reason or str(error), concerned)
        if isinstance(error, (CannotCommit, OutcomeUnknown)) or not isinstance(error, Exception):
            raise error
        if outcome == "unknown":
            raise OutcomeUnknown(self.id, "the coordinator's log", repr(error)) from error
        raise CannotCommit(self.id, "the coordinator's log", str(error)) from error

    def _abort(self, reason: str = "it was called off", *, on_alarm: bool = False) -> None:
        with self._lock:
            if self._state == "aborted":
                return
            voting = self._state == "voting" and not self._deciding
            if not voting:
                self._require_active()
            self._state = "aborted"
            self.reason = reason
            if voting:  # The voting thread notices, and notifies the participants.
                return
            branches = [member for member in self._members if isinstance(member, Branch)]
        # Nested transactions are aborted in the same step of each space.
        nested = self._abort_nested()
        guests = [m for txn in (self, *nested) for m in txn._members if not isinstance(m, Branch)]
        if guests and on_alarm:  # A slow participant would delay other callbacks.
            threading.Thread(target=call_off, args=(guests,), daemon=True).start()
            guests = []
        try:
            self._end("aborted", reason, [*branches, *guests])
        finally:
            for txn in nested:
                txn._report_ended()

    def _abort_nested(self) -> list[SharedTransaction]:
        """The nested transactions that are aborted with this one."""
        ended = []
        for child in list(self._children):
            with child._lock:
                if child._state != "active":
                    continue
                child._state = "aborted"
                child.reason = "its parent was aborted"
            child._cancel_alarm()
            ended += [child, *child._abort_nested()]
        return ended

    async def commit_async(self) -> None:
        """`commit` without blocking the event loop while a disk or a participant is slow. If the
        task is cancelled, the commit is still completed."""
        await (in_a_thread(self._commit) if self.may_block else _now(self._commit))

    async def abort_async(self) -> None:
        """`abort`, for coroutines."""
        self._called_off = True
        await (in_a_thread(self._abort) if self.may_block else _now(self._abort))

    def retry(self) -> bool:
        """Notify participants that were not notified of the decision; True if none is left."""
        tell(self._untold, self._decisions)
        self.wake_waiting()
        return not self._untold

    def was_told(self, name: str) -> bool:
        """This participant has come back and knows the decision; True if none is left to be
        notified."""
        with self._lock:
            self._untold = [member for member in self._untold if member.name != name]
        self.wake_waiting()
        return not self._untold

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._called_off = True
            with suppress(TransactionEnded):
                self._abort()
        elif self._must_commit():
            self._commit()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            with suppress(TransactionEnded):
                await self.abort_async()
        elif self._must_commit():
            await self.commit_async()

    def _commit_into(self, parent: SharedTransaction) -> None:
        """Nested: merge the branches into the parent's, and let the other participants join the
        parent."""
        for member in self._members:
            try:
                self._hand_up(member, parent)
            except BaseException as error:
                # The changes of other branches are in the parent's already.
                with suppress(TransactionEnded):
                    parent._abort(f"its nested transaction {self.id} failed: {error}")
                self._end("aborted", str(error), list(self._members))
                if not isinstance(error, Exception):
                    raise
                raise CannotCommit(self.id, member.label, str(error)) from error
        self._end("committed")
        self._report_ended()

    def _hand_up(self, member: Participant, parent: SharedTransaction) -> None:
        if isinstance(member, Branch):
            member.port.commit(member.state)
        else:
            parent.enlist(member)

    def _end(
        self, state: SharedState, reason: str = "", concerned: list[Participant] | None = None
    ) -> None:
        """Set the outcome; after an abort, notify the `concerned` participants."""
        self._state = state
        self.reason = reason
        self._cancel_alarm()
        if self.parent is not None:
            with self.parent._lock:
                self.parent._children.pop(self, None)
        self.wake_waiting()
        if state != "committed":
            try:
                self.not_aborted = call_off(concerned or [])
            finally:
                self._report_ended()

    def _report_ended(self) -> None:
        self._over = True
        self.wake_waiting()
        if self._on_end is not None:
            self._on_end(self)
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            self._notify_end(end)

    def at_end(self, end: EndBranch) -> None:
        """Call this function when the outcome is decided and visible, at once if it is already. A
        nested transaction that was committed is decided with its parent."""
        with self._lock:
            if not self.ended:
                self._ends.append(end)
                return
        self._notify_end(end)

    def _notify_end(self, end: EndBranch) -> None:
        if self._state == "committed" and self.parent is not None:
            self.parent.at_end(end)
            return
        try:
            end(None if self._state == "unknown" else self._state == "committed")
        except Exception:  # Too late to fail: the other functions are called in any case.
            logger.exception("what was to be done at the end of a transaction failed")

    def wake_waiting(self) -> None:
        """Evaluate the conditions in `wait_for` again."""
        for signal in list(self._signals):
            signal.wake()

    # The lease, of which it is its own landlord

    def renew_lease(self, thing: object, seconds: float | None) -> None:
        """Called by its lease: renew it in all spaces."""
        self._end_in_time()
        if self._state != "active":
            raise LeaseLost(f"the transaction is {self._state}; its lease cannot be renewed")
        for branch in list(self._branches.values()):
            branch.port.renew_branch(branch.state, seconds)
        self._grant(seconds)

    def cancel_lease(self, thing: object) -> None:
        """Called by its lease: abort."""
        self._end_in_time()
        if self._state != "active":
            raise LeaseLost(f"the transaction is {self._state}; it cannot be cancelled")
        self._abort("its lease was cancelled")

    async def renew_lease_async(self, thing: object, seconds: float | None) -> None:
        """`renew_lease`, for coroutines."""
        self.renew_lease(thing, seconds)

    async def cancel_lease_async(self, thing: object) -> None:
        """`cancel_lease`, for coroutines."""
        await self.abort_async()

    def now(self) -> float:
        """The time of its clock."""
        return self._clock.now()

    def _grant(self, seconds: float | None) -> None:
        self._cancel_alarm()
        self.expires = None if seconds is None else self.now() + seconds
        if self.expires is not None:
            self._cancel_alarm = self._clock.call_at(self.expires, self._on_alarm)

    def _new_branch(self, port: Port, state: Txn) -> Branch:
        return Branch(port, state)

    def _new_branch_id(self) -> str:
        """The id of the next branch."""
        return self.id

    def _left(self) -> float | None:
        return None if self.expires is None else max(1e-6, self.expires - self.now())

    def _on_alarm(self) -> None:
        if self._has_run_out():
            with suppress(TransactionEnded):
                self._abort(LEASE_RAN_OUT, on_alarm=True)

    def _end_in_time(self) -> None:
        if self._has_run_out():
            with suppress(TransactionEnded):
                self._abort(LEASE_RAN_OUT)

    def _has_run_out(self) -> bool:
        return self._state == "active" and self.expires is not None and self.expires <= self.now()

    def _require_active(self) -> None:
        if self._state != "active":
            raise TransactionEnded(self.id, self._state, self.reason)

    def _must_commit(self) -> bool:
        """Whether to commit at the end of a `with` block; raises the error of a foreign abort."""
        return self.state == "active" or (self._state == "aborted" and not self._called_off)

    @property
    def may_block(self) -> bool:
        """Whether ending it may wait for a disk or a participant."""
        return any(not isinstance(member, Branch) or member.lasting for member in self._members)

    def __repr__(self) -> str:
        return f"<transaction {self.id}, {self._state}>"


async def _now(work: Callable[[], Any]) -> None:
    work()
