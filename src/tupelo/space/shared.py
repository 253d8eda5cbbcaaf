"""Shared transactions: all or nothing over several spaces, and over whatever else takes part.

A shared transaction has a branch in every space that it was used in. To commit, everyone is asked
to promise (phase one); if all do, the decision is recorded, and then everyone is told (phase two).
Whoever cannot be told yet is told later: the decision stands. Without a decision on record a
promise is void, so a coordinator that crashed in phase one has aborted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, Protocol, Self
from uuid import uuid4

from tupelo.errors import (
    CannotCommit,
    CannotJoin,
    LeaseLost,
    SpaceClosed,
    TransactionEnded,
    TransactionError,
)
from tupelo.space.clock import Clock
from tupelo.space.engine import Engine
from tupelo.space.holdings import Holdings, Spanning
from tupelo.space.transaction import LEASE_RAN_OUT, Txn
from tupelo.values.lease import Lease, check_lease

logger = logging.getLogger("tupelo")

State = Literal["active", "voting", "committed", "aborted"]
Vote = Literal["not changed", "prepared", "aborted", "committed"]


class Participant(Protocol):
    """Whoever takes part in a transaction. A vote "aborted", or an error, refuses."""

    name: str

    def prepare(self) -> Vote: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def prepare_and_commit(self) -> Vote:
        """Both phases at once, for the only one who has something to commit."""
        ...


class Decisions(Protocol):
    """Where the decisions to commit are recorded, until everyone has been told."""

    def record(self, txn_id: str, participants: list[str]) -> None: ...

    def forget(self, txn_id: str, participant: str) -> None: ...


class Branch:
    """The part of a shared transaction that is in one space."""

    def __init__(self, operations: Holdings, state: Txn) -> None:
        self.operations = operations
        self.state = state
        self.name = operations.engine.core.agent

    def prepare(self) -> Vote:
        vote, position = self.operations.prepare(self.state)
        self.operations.engine.flush(position)
        return vote

    def commit(self) -> None:
        try:
            self.operations.engine.flush(self.operations.commit(self.state))
        except SpaceClosed:
            if self.operations.engine.saved is not None:  # It is in doubt when opened again.
                raise

    def abort(self) -> None:
        self.operations.engine.flush(self.operations.abort(self.state))

    def prepare_and_commit(self) -> Vote:
        self.operations.engine.flush(self.operations.commit(self.state))
        return "committed"


class SharedTransaction(Spanning):
    """One transaction over several spaces: give it to their operations as `txn=`.

    It aborts itself when its lease runs out, and may be used from any thread. `decisions` is where
    the decision is recorded; without one it does not outlive this process, nor must it: spaces in
    memory do not either.
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
        self._state: State = "active"
        self._lock = threading.Lock()
        self._branches: dict[Engine, Branch] = {}
        self._members: list[Participant] = []
        self._children: dict[SharedTransaction, None] = {}
        self._untold: list[Participant] = []
        self._cancel_alarm: Callable[[], None] = lambda: None
        if parent is not None:
            with parent._lock:
                parent._require_active()
                parent._children[self] = None
        self._grant(lease)

    # What a user sees

    @property
    def state(self) -> State:
        """active, voting, committed or aborted."""
        self._end_in_time()
        return self._state

    @property
    def ended(self) -> bool:
        return self._state in ("committed", "aborted")

    @property
    def lease(self) -> Lease:
        return Lease(self, self)

    @property
    def untold(self) -> list[str]:
        """The participants that could not be told of the decision yet."""
        return [member.name for member in self._untold]

    def transaction(self, *, lease: float | None = None) -> SharedTransaction:
        """A nested transaction: it sees what this one sees, and commits into it."""
        self._end_in_time()
        return type(self)(self._clock, lease, parent=self)

    # Joining

    def branch_at(self, operations: Holdings) -> Txn:
        self._end_in_time()
        engine = operations.engine
        # The space's lock is taken before ours, here and everywhere.
        with engine.lock:
            above = None if self.parent is None else self.parent.branch_at(operations)
            with self._lock:
                branch = self._branches.get(engine)
                if branch is None:
                    self._require_active()
                    branch = Branch(operations, operations.begin(self._left(), above, self.id))
                    self._branches[engine] = branch
                    self._members.append(branch)
                return branch.state

    def enlist(self, participant: Participant) -> None:
        """Someone other than a space takes part."""
        self._end_in_time()
        with self._lock:
            if self._state != "active":
                raise CannotJoin(
                    f"transaction {self.id} is {self._state}: {participant.name} comes too late"
                )
            self._members.append(participant)

    # Ending

    def commit(self) -> None:
        """Commit in all places, or in none: CannotCommit says who could not."""
        self._commit()

    def abort(self, reason: str = "it was called off") -> None:
        """Undo it in all places."""
        self._abort(reason)

    def _commit(self) -> None:
        self._end_in_time()
        with self._lock:
            self._require_active()
            if self._children:
                names = ", ".join(sorted(child.id for child in self._children))
                raise TransactionError(f"transaction {self.id} still has nested ones open: {names}")
            self._state = "voting"
            members = list(self._members)
        self._cancel_alarm()
        if self.parent is not None:
            self._commit_into(self.parent, members)
            return
        promised = self._collect_votes(members)
        if promised:
            self._record(promised, members)
        self._end("committed")
        try:
            self._tell(promised)
        finally:
            self._say_ended()

    def _abort(self, reason: str = "it was called off") -> None:
        with self._lock:
            if self._state == "aborted":
                return
            self._require_active()
            self._state = "aborted"
            self.reason = reason
            children, members = list(self._children), list(self._members)
        for child in children:
            with suppress(TransactionEnded):
                child._abort("its parent was aborted")
        self._call_off(members, "aborted", reason)

    async def commit_async(self) -> None:
        """`commit`, without blocking the event loop while a disk or a participant is slow."""
        await (asyncio.to_thread(self._commit) if self._may_block() else _now(self._commit))

    async def abort_async(self) -> None:
        await (asyncio.to_thread(self._abort) if self._may_block() else _now(self._abort))

    def retry(self) -> bool:
        """Tell those who could not be told of the decision; True if nobody is left."""
        with self._lock:
            untold, self._untold = self._untold, []
        self._tell(untold)
        return not self._untold

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
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

    # The two phases

    def _collect_votes(self, members: list[Participant]) -> list[Participant]:
        """Phase one: those who promised and must be told. CannotCommit if one did not."""
        promised: list[Participant] = []
        for i, member in enumerate(members):
            alone = not promised and i == len(members) - 1
            try:
                vote = member.prepare_and_commit() if alone else member.prepare()
                if vote == "aborted":
                    raise CannotCommit(self.id, member.name, "it voted to abort")
                if vote == "prepared" and not alone:
                    promised.append(member)
                elif vote not in ("not changed", "committed", "prepared"):
                    raise CannotCommit(self.id, member.name, f"{vote!r} is no vote")
            except BaseException as error:
                self._refuse(member, error, members)
        return promised

    def _refuse(
        self, member: Participant, error: BaseException, members: list[Participant]
    ) -> None:
        self._call_off(members, "aborted", f"{member.name} could not promise to commit: {error}")
        if isinstance(error, CannotCommit) or not isinstance(error, Exception):
            raise error
        raise CannotCommit(self.id, member.name, str(error) or type(error).__name__) from error

    def _record(self, promised: list[Participant], members: list[Participant]) -> None:
        if self._decisions is not None:
            try:
                self._decisions.record(self.id, [member.name for member in promised])
            except BaseException as error:
                self._call_off(members, "aborted", "the decision could not be recorded")
                if not isinstance(error, Exception):
                    raise
                raise CannotCommit(self.id, "the coordinator's log", str(error)) from error

    def _tell(self, promised: list[Participant]) -> None:
        """Phase two. It cannot fail any more; who does not hear it now is told later."""
        interrupt: BaseException | None = None
        for member in promised:
            try:
                member.commit()
                if self._decisions is not None:
                    self._decisions.forget(self.id, member.name)
            except Exception as error:
                logger.warning("%s of %r could not be told to commit: %r", member.name, self, error)
                self._untold.append(member)
            except BaseException as error:
                interrupt = error
                self._untold.append(member)
        if interrupt is not None:
            raise interrupt

    def _call_off(self, members: list[Participant], state: State, reason: str) -> None:
        """Abort everyone. Who does not hear it has no decision to go by, and aborts in time."""
        self.reason = reason
        self._end(state)
        for member in members:
            with suppress(Exception):
                member.abort()
        self._say_ended()

    def _commit_into(self, parent: SharedTransaction, members: list[Participant]) -> None:
        """Nested: the branches go into the parent's, and the others are promoted to it."""
        for member in members:
            try:
                if isinstance(member, Branch):
                    member.operations.commit(member.state)
                else:
                    parent.enlist(member)
            except BaseException as error:
                # What was done in other branches is in the parent's already.
                with suppress(TransactionEnded):
                    parent._abort(f"its nested transaction {self.id} failed: {error}")
                self._refuse(member, error, members)
        self._end("committed")
        self._say_ended()

    def _end(self, state: State) -> None:
        self._state = state
        self._cancel_alarm()
        if self.parent is not None:
            with self.parent._lock:
                self.parent._children.pop(self, None)

    def _say_ended(self) -> None:
        if self._on_end is not None:
            self._on_end(self)

    # The lease, of which it is its own landlord

    def renew_lease(self, thing: object, seconds: float | None) -> None:
        self._end_in_time()
        if self._state != "active":
            raise LeaseLost(f"the transaction is {self._state}; its lease cannot be renewed")
        for branch in list(self._branches.values()):
            branch.operations.renew_lease(branch.state, seconds)
        self._grant(seconds)

    def cancel_lease(self, thing: object) -> None:
        if self.ended:
            raise LeaseLost(f"the transaction is {self._state}; there is nothing to cancel")
        self._abort("its lease was cancelled")

    def now(self) -> float:
        return self._clock.now()

    def _grant(self, seconds: float | None) -> None:
        self._cancel_alarm()
        self.expires = None if seconds is None else self.now() + seconds
        if self.expires is not None:
            self._cancel_alarm = self._clock.call_at(self.expires, self._on_alarm)

    def _left(self) -> float | None:
        return None if self.expires is None else max(1e-6, self.expires - self.now())

    def _on_alarm(self) -> None:
        self._end_in_time()

    def _end_in_time(self) -> None:
        if self.expires is not None and self._state == "active" and self.expires <= self.now():
            with suppress(TransactionEnded):
                self._abort(LEASE_RAN_OUT)

    def _require_active(self) -> None:
        if self._state != "active":
            raise TransactionEnded(self.id, self._state, self.reason)

    def _must_commit(self) -> bool:
        """At the end of a `with` block: commit, or learn that its lease ran out?"""
        return self.state == "active" or self.reason == LEASE_RAN_OUT

    def _may_block(self) -> bool:
        return any(
            not isinstance(member, Branch) or member.operations.engine.saved is not None
            for member in self._members
        )

    def __repr__(self) -> str:
        return f"<transaction {self.id}, {self._state}>"


async def _now(work: Callable[[], Any]) -> None:
    work()
