"""Two-phase commit: everyone is asked to promise; if all do, it is so recorded, and all are told.

Without a decision on record a promise is void: a coordinator that crashes in phase one has
aborted. Once the decision is on record it stands, and who cannot be told now is told later.
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
    """Whoever takes part in a transaction, which it knows by `txn_id`.

    A vote "aborted", or an error, refuses; who votes "not changed" is left alone from then on.
    Only those that are `lasting` can come back after a crash and ask what was decided.
    """

    name: str
    txn_id: str

    @property
    def label(self) -> str:
        """What people call it."""
        ...

    @property
    def lasting(self) -> bool: ...

    def prepare(self) -> Vote: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def prepare_and_commit(self) -> Vote:
        """Both phases at once, for the only one who has something to commit. Who only answers
        "prepared" is told to commit as the others are."""
        ...

    def has_committed(self) -> bool | None:
        """None: that is not known."""
        ...


class Decisions(Protocol):
    """Where the decisions to commit are recorded, until everyone has been told."""

    def record(self, told: list[tuple[str, str]]) -> None:
        """These participants will commit: the transaction, as each knows it, and its name."""
        ...

    def recorded(self, told: list[tuple[str, str]]) -> bool: ...

    def forget(self, txn_id: str, participant: str) -> None: ...


class Ballot:
    """Phase one. `promised` must be told to commit; if it fails, `concerned` must be aborted."""

    def __init__(self, txn_id: str, members: list[Participant]) -> None:
        self._txn_id = txn_id
        self._members = members
        self._unchanged: list[Participant] = []
        self._only: Participant | None = None  # who was told to commit without a vote
        self.promised: list[Participant] = []
        self.complete = False

    @property
    def concerned(self) -> list[Participant]:
        return [member for member in self._members if member not in self._unchanged]

    def hold(self, proceed: Callable[[bool], object]) -> None:
        """Ask everyone. CannotCommit if one refuses, OutcomeUnknown if the only one is lost.

        `proceed` is called before each participant is asked, and raises if the vote is called off;
        it is told whether that participant's answer decides.
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
        """What became of it, if it was interrupted at some moment before it was said."""
        if self._only is not None and self._only not in self.promised:
            committed = self._only.has_committed()
            return "unknown" if committed is None else "committed" if committed else "aborted"
        told = self.lasting
        if not (self.complete and told and decisions is not None):
            return "aborted"
        try:
            return "committed" if decisions.recorded(told) else "aborted"
        except Exception:
            return "unknown"

    @property
    def lasting(self) -> list[tuple[str, str]]:
        """Those who promised and can come back after a crash: how they know it, and their names."""
        return [(member.txn_id, member.name) for member in self.promised if member.lasting]


def tell(untold: list[Participant], decisions: Decisions | None) -> None:
    """Phase two, which cannot fail any more: who was told is `untold` no longer."""
    interrupt: BaseException | None = None
    for member in list(untold):
        try:
            member.commit()
            if decisions is not None and member.lasting:
                decisions.forget(member.txn_id, member.name)
            untold.remove(member)
        except Exception as error:
            logger.warning("%s could not be told to commit: %r", member.label, error)
        except BaseException as error:  # The others are told all the same.
            interrupt = error
    if interrupt is not None:
        raise interrupt


def call_off(members: list[Participant]) -> list[str]:
    """Abort everyone; the names of those that could not be told. They have no decision to go by,
    and abort in time."""
    interrupt: BaseException | None = None
    untold = []
    for member in members:
        try:
            member.abort()
        except Exception as error:
            untold.append(member.name)
            logger.info("%s could not be told to abort: %r", member.label, error)
        except BaseException as error:  # The others are told all the same.
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return untold


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
