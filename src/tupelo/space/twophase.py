"""Two-phase commit: all participants are asked to prepare; if all do, the decision is recorded, and
all are told to commit.

Without a recorded decision a promise is void: a coordinator that crashes in phase one has aborted.
A recorded decision is final; participants that are out of reach are notified later. The decisions
are recorded in a space of their own (`DecisionLog`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, Protocol

from tupelo.errors import CannotCommit, JournalError, OutcomeUnknown
from tupelo.space.blocking import Space, ThreadSignal
from tupelo.space.port import Port
from tupelo.space.query import Query
from tupelo.values.parts import ANY

logger = logging.getLogger("tupelo")

Outcome = Literal["committed", "aborted", "unknown"]
Vote = Literal["not changed", "prepared", "aborted", "committed"]


class Participant(Protocol):
    """A participant of a transaction, which it knows by `txn_id`.

    It refuses by the vote "aborted" or an error; after "not changed" it is not called again. Only
    `lasting` participants can come back after a crash and ask for the outcome.
    """

    name: str
    txn_id: str

    @property
    def label(self) -> str:
        """Its name for messages."""
        ...

    @property
    def lasting(self) -> bool: ...

    def prepare(self) -> Vote: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def prepare_and_commit(self) -> Vote:
        """Both phases at once, for the only participant with changes. After "prepared" it is told
        to commit like the others."""
        ...

    def has_committed(self) -> bool | None:
        """None if that is not known."""
        ...


class Decisions(Protocol):
    """Records decisions to commit until all participants are notified."""

    def record(self, participants: list[tuple[str, str]]) -> None:
        """Record that these participants will commit: (their transaction id, their name) for
        each."""
        ...

    def recorded(self, participants: list[tuple[str, str]]) -> bool: ...

    def forget(self, txn_id: str, participant: str) -> None: ...


class Ballot:
    """Phase one. `promised` must be told to commit; after a failure `concerned` must be aborted."""

    def __init__(self, txn_id: str, members: list[Participant]) -> None:
        self._txn_id = txn_id
        self._members = members
        self._unchanged: list[Participant] = []
        self._only: Participant | None = None  # committed without a vote
        self.promised: list[Participant] = []
        self.complete = False

    @property
    def concerned(self) -> list[Participant]:
        return [member for member in self._members if member not in self._unchanged]

    def hold(self, proceed: Callable[[bool], object]) -> None:
        """Ask all participants. Raises CannotCommit if one refuses, OutcomeUnknown if the only one
        is lost.

        `proceed` is called before each participant is asked, with whether the answer decides; it
        raises to stop the vote.
        """
        for i, member in enumerate(self._members):
            decides = not self.promised and i == len(self._members) - 1
            proceed(decides)
            if decides:
                self._only = member
                self._ask(member, member.prepare_and_commit)
            else:
                self._ask(member, member.prepare)
        self.complete = True

    def _ask(self, member: Participant, vote_of: Callable[[], Vote]) -> None:
        try:
            vote = vote_of()
        except Exception as error:
            reason = str(error) or type(error).__name__
            if member is self._only and (
                isinstance(error, JournalError) or member.has_committed() is None
            ):
                raise OutcomeUnknown(self._txn_id, member.label, repr(error)) from error
            raise CannotCommit(self._txn_id, member.label, reason) from error
        if vote == "prepared":
            self.promised.append(member)
        elif vote == "not changed" or (vote == "committed" and member is self._only):
            self._unchanged.append(member)
        else:
            reason = "it voted to abort" if vote == "aborted" else f"{vote!r} is no vote"
            raise CannotCommit(self._txn_id, member.label, reason)

    def outcome(self, decisions: Decisions | None) -> Outcome:
        """The outcome, if the vote was interrupted before it was returned."""
        if self._only is not None and self._only not in self.promised:
            committed = self._only.has_committed()
            return "unknown" if committed is None else "committed" if committed else "aborted"
        participants = self.lasting
        if not (self.complete and participants and decisions is not None):
            return "aborted"
        try:
            return "committed" if decisions.recorded(participants) else "aborted"
        except Exception:
            return "unknown"

    @property
    def lasting(self) -> list[tuple[str, str]]:
        """(transaction id, name) of the prepared participants that can come back after a crash."""
        return [(member.txn_id, member.name) for member in self.promised if member.lasting]


def tell(untold: list[Participant], decisions: Decisions | None) -> None:
    """Phase two, which cannot fail: notified participants are removed from `untold`."""
    interrupt: BaseException | None = None
    for member in list(untold):
        try:
            member.commit()
            if decisions is not None and member.lasting:
                decisions.forget(member.txn_id, member.name)
            untold.remove(member)
        except Exception as error:
            logger.warning("%s could not be told to commit: %r", member.label, error)
        except BaseException as error:  # The others are notified in any case.
            interrupt = error
    if interrupt is not None:
        raise interrupt


def call_off(members: list[Participant]) -> list[str]:
    """Abort all participants. Returns the names of those out of reach; without a decision they
    abort by themselves."""
    interrupt: BaseException | None = None
    untold = []
    for member in members:
        try:
            member.abort()
        except Exception as error:
            untold.append(member.name)
            logger.info("%s could not be told to abort: %r", member.label, error)
        except BaseException as error:  # The others are notified in any case.
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return untold


_DECIDED = "committed"


class DecisionLog:
    """The participants that must still be notified of a commit: one entry for each."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def record(self, participants: list[tuple[str, str]]) -> None:
        """Record the decision: from now on the transaction is committed."""
        self.space.write_all([(_DECIDED, txn_id, name) for txn_id, name in participants])

    def recorded(self, participants: list[tuple[str, str]]) -> bool:
        """Whether the decision is recorded; it was written in one step, so one entry suffices."""
        if not self.space.count((_DECIDED, *participants[0])):
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Make the record durable, in case its writer was interrupted."""
        port = self.space._port
        port.flush(port.position)

    def forget(self, txn_id: str, participant: str) -> None:
        """This participant was notified."""
        self.space.take((_DECIDED, txn_id, participant), wait=0)

    def forget_soon(self, txn_id: str, participant: str) -> None:
        """`forget` without waiting for the disk: after a crash the entry may be there again."""
        self.space._port.get(Query((_DECIDED, txn_id, participant), take=True), ThreadSignal)

    def committed(self, txn_id: str) -> bool:
        """Whether a commit was decided that some participant may not know."""
        return self.space.count((_DECIDED, txn_id, ANY)) > 0

    def decided(self) -> set[str]:
        """The committed transactions that some participant may not know."""
        return {found[1] for found in self.space.read_all((_DECIDED, str, str))}

    def untold(self, participant: str) -> list[str]:
        """The committed transactions that this participant was not notified of."""
        return [found[1] for found in self.space.read_all((_DECIDED, ANY, participant))]

    def recorded_outcome(self, txn_id: str) -> Outcome:
        """The outcome of a transaction whose coordinator is gone: without a decision it is
        aborted."""
        return "committed" if self.committed(txn_id) else "aborted"

    def settle(self, port: Port, outcome: Callable[[str], Outcome | None]) -> int:
        """Settle the transactions that are in doubt in a reopened space, as far as `outcome` knows
        them. Returns their number."""
        settled = 0
        for txn in port.in_doubt():
            known = outcome(txn.id)
            if known in ("committed", "aborted"):
                end = port.commit if known == "committed" else port.abort
                port.flush(end(txn))
                settled += 1
        # Earlier settlements may not be on disk, if they were interrupted.
        port.flush(port.position)
        for txn_id in self.untold(port.id):
            if outcome(txn_id) == "committed":
                self.forget(txn_id, port.id)
        return settled
