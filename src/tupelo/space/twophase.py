"""Two-phase commit: everyone is asked to promise; if all do, it is so recorded, and all are told.

Without a decision on record a promise is void: a coordinator that crashes in phase one has
aborted. Once the decision is on record it stands, and who cannot be told now is told later.
"""

from __future__ import annotations

import logging
from typing import Literal, Protocol

from tupelo.errors import CannotCommit, JournalError, OutcomeUnknown

logger = logging.getLogger("tupelo")

Vote = Literal["not changed", "prepared", "aborted", "committed"]


class Participant(Protocol):
    """Whoever takes part in a transaction, which it knows by `txn_id`.

    A vote "aborted", or an error, refuses; who votes "not changed" is left alone from then on.
    Only those that are `lasting` can come back after a crash and ask what was decided.
    """

    name: str
    txn_id: str

    @property
    def lasting(self) -> bool: ...

    def prepare(self) -> Vote: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def prepare_and_commit(self) -> Vote:
        """Both phases at once, for the only one who has something to commit."""
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
        self.promised: list[Participant] = []

    @property
    def concerned(self) -> list[Participant]:
        return [member for member in self._members if member not in self._unchanged]

    def hold(self) -> None:
        """Ask everyone. CannotCommit if one refuses, OutcomeUnknown if the only one is lost."""
        for i, member in enumerate(self._members):
            alone = not self.promised and i == len(self._members) - 1
            if alone:
                self._ask_the_only_one(member)
            else:
                self._ask(member)

    def _ask(self, member: Participant) -> None:
        try:
            vote = member.prepare()
        except Exception as error:
            raise self._refusal(member, error) from error
        if vote == "prepared":
            self.promised.append(member)
        elif vote == "not changed":
            self._unchanged.append(member)
        else:
            raise CannotCommit(self._txn_id, member.name, _voted(vote))

    def _ask_the_only_one(self, member: Participant) -> None:
        try:
            vote = member.prepare_and_commit()
        except CannotCommit:
            raise
        except BaseException as error:
            if isinstance(error, JournalError) or member.has_committed() is None:
                raise OutcomeUnknown(self._txn_id, member.name, repr(error)) from error
            if member.has_committed():  # It was done when somebody pressed Ctrl-C.
                raise DoneAlready from error
            if not isinstance(error, Exception):
                raise
            raise self._refusal(member, error) from error
        if vote not in ("committed", "prepared", "not changed"):
            raise CannotCommit(self._txn_id, member.name, _voted(vote))

    def _refusal(self, member: Participant, error: Exception) -> CannotCommit:
        return CannotCommit(self._txn_id, member.name, str(error) or type(error).__name__)


class DoneAlready(BaseException):
    """The only one has committed, and was then interrupted, which is the cause."""


def tell(promised: list[Participant], decisions: Decisions | None) -> list[Participant]:
    """Phase two: who could not be told. It cannot fail any more."""
    untold: list[Participant] = []
    interrupt: BaseException | None = None
    for member in promised:
        try:
            member.commit()
            if decisions is not None:
                decisions.forget(member.txn_id, member.name)
        except Exception as error:
            logger.warning("%s could not be told to commit: %r", member.name, error)
            untold.append(member)
        except BaseException as error:  # The others are told all the same.
            interrupt = error
            untold.append(member)
    if interrupt is not None:
        raise Interrupted(untold) from interrupt
    return untold


class Interrupted(BaseException):
    """Somebody pressed Ctrl-C in phase two; that is the cause, and these were not told."""

    def __init__(self, untold: list[Participant]) -> None:
        super().__init__("interrupted while the decision was told")
        self.untold = untold


def call_off(members: list[Participant]) -> None:
    """Abort everyone. Who does not hear it has no decision to go by, and aborts in time."""
    interrupt: BaseException | None = None
    for member in members:
        try:
            member.abort()
        except Exception as error:
            logger.info("%s could not be told to abort: %r", member.name, error)
        except BaseException as error:  # The others are told all the same.
            interrupt = error
    if interrupt is not None:
        raise interrupt


def as_told(members: list[Participant]) -> list[tuple[str, str]]:
    return [(member.txn_id, member.name) for member in members]


def _voted(vote: object) -> str:
    return "it voted to abort" if vote == "aborted" else f"{vote!r} is no vote"
