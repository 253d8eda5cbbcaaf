"""Spaces in databases in transactions over several spaces, in two phases.

A database votes by PREPARE TRANSACTION, under a name that has the numbers of the spaces and the id
of the branch, which names the decider: so after a crash the branch is found and its outcome asked
for. If no host takes part, a database decides: its own transaction is not prepared but committed,
together with the record of the decision for the others. While that transaction is open, a lock
tells that there is no decision yet.

This module does not need the driver.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tupelo.errors import CannotCommit, PeerLost, TupeloError
from tupelo.space.port import Spanning
from tupelo.space.twophase import Vote

if TYPE_CHECKING:
    from tupelo.postgres.space import PostgresSpace
    from tupelo.postgres.transactions import PostgresTransaction

T = TypeVar("T")

NAME_MAX = 199
"""The server's limit for the name of a prepared transaction, in bytes."""
_HEX = re.compile(r"[0-9a-f]{32}")
_SHORT = re.compile(r"~([\w-]{22})", re.ASCII)


class DatabaseSpace:
    """A space in a database, for modules that work without the driver."""

    is_async: bool


class DatabaseCapable(Spanning):
    """A transaction that can have branches in databases."""

    @abstractmethod
    async def branch_in_database(self, space: PostgresSpace) -> PostgresTransaction:
        """The branch of this transaction in `space`; the first call begins it."""


class CommitRunner(Protocol):
    """Runs coroutines for a committing thread."""

    def run(self, work: Coroutine[Any, Any, T]) -> T: ...

    def is_here(self) -> bool: ...


def prepared_name(spaces: list[int], txn_id: str) -> str:
    """The name of a prepared transaction. The server's limit is low, so that digits are packed."""

    def pack(found: re.Match[str]) -> str:
        return "~" + urlsafe_b64encode(bytes.fromhex(found[0]))[:22].decode()

    name = f"tupelo:{'+'.join(map(str, spaces))}:{_HEX.sub(pack, txn_id)}"
    if len(name.encode()) > NAME_MAX:
        reason = f"its id is too long for PostgreSQL, by {len(name.encode()) - NAME_MAX} bytes"
        raise CannotCommit(txn_id, "", f"{reason}: use a shorter address of the host")
    return name


def read_prepared_name(name: str) -> tuple[list[int], str]:
    """The numbers of the spaces, and the id of the transaction."""
    _, spaces, txn_id = name.split(":", 2)
    return (
        [int(number) for number in spaces.split("+")],
        _SHORT.sub(lambda found: urlsafe_b64decode(found[1] + "==").hex(), txn_id),
    )


class DatabaseBranch:
    """The branch of a transaction over several spaces in the spaces of one database. If it has
    `members`, all participants, it decides."""

    lasting = True

    def __init__(
        self,
        space: PostgresSpace,
        txn_id: str,
        hop: CommitRunner,
    ) -> None:
        self.name = space.database.identity
        self.txn_id = txn_id
        self.label = f"the space {space.name!r} at {space.database.where}"
        self.txn: PostgresTransaction | None = None
        self._space = space
        self._hop = hop
        self.members: Sequence[object] | None = None
        self._turn: Any = space.database.new_lock()
        self._over = False
        self._committed: bool | None = False

    async def begun(self, space: PostgresSpace) -> PostgresTransaction:
        """The transaction in this space; those of one database are on one connection."""
        async with self._turn:
            for txn in () if self.txn is None else self.txn.group:
                if txn.space is space:
                    return txn
            txn = await space.begin(None, beside=self.txn)
            self.txn = self.txn or txn
            if self._over:  # The transaction has ended meanwhile.
                await txn.call_off("it was called off")
            return txn

    # The votes

    def prepare(self) -> Vote:
        self._over = True
        return self._hop.run(self._prepare())

    async def _prepare(self) -> Vote:
        has_changed = self.txn is not None and self.txn.has_changed
        if self.members is not None and (has_changed or len(self.members) > 2):
            self.txn = self.txn or await self._space.begin(None)
            await self.txn.stage(self.txn_id)
            return "prepared"
        if self.txn is None:
            return "not changed"
        return await self.txn.vote(self.txn_id)

    def prepare_and_commit(self) -> Vote:
        self._over = True
        if self.txn is None:
            return "not changed"
        self._committed = None
        try:
            self._hop.run(self.txn.commit_now())
        except TupeloError as error:
            self._committed = None if isinstance(error, PeerLost) and error.in_doubt else False
            if self._committed is None:
                raise
            raise CannotCommit(self.txn_id, self.label, str(error)) from error
        self._committed = True
        return "committed"

    def commit(self) -> None:
        if self.txn is not None and self.members is None:
            self._hop.run(self.txn.settle(True))

    def abort(self) -> None:
        self._over = True
        txn = self.txn
        if txn is None:
            return
        if self._hop.is_here():
            self._space.database.start(lambda: txn.call_off("it was called off"), "tupelo-abort")
        else:
            self._hop.run(txn.call_off("it was called off"))

    def has_committed(self) -> bool | None:
        return self._committed

    # The decider

    def decide(self, told: list[tuple[str, str]]) -> None:
        """Commit the branch, with the record of the decision for the others."""
        assert self.txn is not None
        others = [one for one in told if one[0] != self.txn_id]
        self._hop.run(self.txn.commit_staged(others))

    def decided(self) -> bool:
        """Whether it has committed. If not, it never will."""
        return self.txn is not None and bool(self._hop.run(self.txn.has_been_committed()))
