"""`tupelo.transaction`: transactions over several spaces, in this process and at other hosts.

This program is the coordinator of a two-phase commit: it asks every branch to prepare, has the
decision recorded at one host, the decider, and then tells the branches. `hosts.decisions` describes
what prepared branches do if this program, a link or a host is lost meanwhile.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NoReturn, Self, TypeVar
from uuid import uuid4

from tupelo.errors import (
    BadArgument,
    CannotCommit,
    LinkError,
    NotAllowed,
    OutcomeUnknown,
    PeerLost,
    SpaceClosed,
    TransactionEnded,
    TupeloError,
    UnknownTransaction,
)
from tupelo.federation.client.channel import Channel
from tupelo.federation.client.handles import RemoteSpaceTransaction
from tupelo.federation.client.space import RemoteCapable, RemoteSpace
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.decisions import (
    COORDINATOR,
    Participants,
    branch_id,
    decider_of,
    spanning_id,
    transaction_of,
)
from tupelo.federation.links import wire
from tupelo.federation.spanning.space import FederatedSpace
from tupelo.postgres.voting import (
    DatabaseBranch,
    DatabaseCapable,
    DatabaseSpace,
    read_prepared_name,
)
from tupelo.space import asynchronous, blocking
from tupelo.space.bridge import LoopBridge
from tupelo.space.clock import Clock, system_clock
from tupelo.space.dual_api import ThreadLock, run_coroutine
from tupelo.space.port import Port, port_of
from tupelo.space.shared import Branch, SharedTransaction
from tupelo.space.transaction import Txn
from tupelo.space.twophase import DecisionLog, Decisions, Outcome, Participant, Vote

T = TypeVar("T")


class CommitBridge:
    """Runs coroutines of a space elsewhere for a committing thread: directly for a blocking space,
    on its loop for an async one."""

    def __init__(self, space: Any) -> None:
        self._bridge = LoopBridge() if space.is_async else None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return run_coroutine(work) if self._bridge is None else self._bridge.run(work)

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        if self._bridge is None:
            function(*args)
        else:
            self._bridge.soon(function, *args)

    def is_here(self) -> bool:
        """Whether this is the thread of the loop, which must not wait for itself."""
        return self._bridge is not None and self._bridge.is_here


class Decider(ABC):
    """The host that decides one transaction, as its coordinator uses it: a `Decisions`."""

    id: str

    @abstractmethod
    def record(self, told: Participants) -> None:
        """Record the commit, for these branches. CannotCommit if it was given up; OutcomeUnknown if
        the host does not answer."""

    @abstractmethod
    def recorded(self, told: Participants) -> bool:
        """Whether the commit is recorded. If it is not, it never will be."""

    @abstractmethod
    def forget(self, txn_id: str, participant: str) -> None:
        """Remove the record for a participant that has committed."""

    @abstractmethod
    async def forget_there(self, txn_id: str, participant: str) -> None:
        """`forget`, as a coroutine on the loop of the remote space."""

    @abstractmethod
    async def give_up(self) -> None:
        """The transaction was aborted, and a branch that may be prepared could not be told."""

    @abstractmethod
    async def outcome(self, txn_id: str) -> Outcome | None:
        """The outcome of an earlier transaction with the same decider; None if not decided."""


class DeciderHere(Decider):
    """A decider in this process."""

    def __init__(self, host: HostCore) -> None:
        self._host = host
        self.id = spanning_id(host.id, host.address, host.incarnation, uuid4().hex)

    def _decide(self, told: Participants) -> bool | None:
        return self._host.deciding.decide(self.id, told, self._host.incarnation)

    def record(self, told: Participants) -> None:
        try:
            stands = self._decide(told)
        except SpaceClosed as error:
            raise CannotCommit(self.id, f"the host {self._host.name!r}", str(error)) from error
        if not stands:
            raise CannotCommit(self.id, f"the host {self._host.name!r}", "it was given up")

    def recorded(self, told: Participants) -> bool:
        return not self._decide([])

    def forget(self, txn_id: str, participant: str) -> None:
        self._host.deciding.forget(txn_id, participant)

    async def forget_there(self, txn_id: str, participant: str) -> None:
        self.forget(txn_id, participant)

    async def give_up(self) -> None:
        self._decide([])

    async def outcome(self, txn_id: str) -> Outcome | None:
        return self._host.deciding.outcome(txn_id)


class DeciderElsewhere(Decider):
    """A decider at another host: that of a remote space."""

    def __init__(self, space: RemoteSpace) -> None:
        self._space = space
        self._channel = space.channel
        self._bridge = CommitBridge(space)
        self._refused = False
        if not space.is_async and self._channel.awaits_link:
            run_coroutine(
                space.describe_host()
            )  # Which comes with the next link, and so does our session.
        self._serial = self._channel.serial
        self.id = spanning_id(space.host_id, space.peer, self._channel.session, uuid4().hex)
        self._own = branch_id(self.id, uuid4().hex)  # a secret, like the ids of branches

    def record(self, told: Participants) -> None:
        if self._channel.serial != self._serial or self._channel.closed:
            self._refuse("the link to it was lost, and with it the transaction")
        try:
            stands = self._bridge.run(self._decide([*told, (self._own, COORDINATOR)], self._serial))
        except TupeloError as error:
            stands = self._learn(error)
        if not stands:
            self._refuse("it has given the transaction up")
        # If this message is lost, the record is kept for a while.
        self._bridge.soon(self._channel.tell, wire.Forget(0, self._own, COORDINATOR))

    def _refuse(self, reason: str) -> NoReturn:
        self._refused = True
        raise CannotCommit(self.id, f"the host at {self._space.peer}", reason)

    def _learn(self, failure: TupeloError) -> bool:
        """The answer was lost: ask whether the commit is recorded; if not, it is given up."""
        try:
            return self.recorded([])
        except TupeloError as error:
            label = f"the host at {self._space.peer}"
            raise OutcomeUnknown(self.id, label, f"{failure}; then {error}") from error

    def recorded(self, told: Participants) -> bool:
        if self._refused:
            return False
        given_up = self._bridge.run(self._decide([]))
        if given_up is None:
            label = f"the host at {self._space.peer}"
            raise OutcomeUnknown(self.id, label, "it may have lost its record of it")
        return not given_up

    async def _decide(self, told: Participants, on_link: int | None = None) -> bool | None:
        # Over the channel, since the space may be closed meanwhile.
        message = wire.Decide(0, self.id, told)
        answer: bool | None = (await self._channel.ask(message, self._space, on_link)).value
        return answer

    def forget(self, txn_id: str, participant: str) -> None:
        message = wire.Forget(0, txn_id, participant)
        if not self._bridge.is_here():
            with suppress(LinkError):
                self._bridge.run(self._channel.ask(message, self._space, self._serial))
                return
        # Over the next link, in the background.
        later = partial(self.forget_there, txn_id, participant)
        self._bridge.soon(self._channel.start, later, "tupelo-forget")

    async def forget_there(self, txn_id: str, participant: str) -> None:
        # Without a next link a record too many is kept.
        with suppress(LinkError, SpaceClosed):
            await self._channel.ask(wire.Forget(0, txn_id, participant), self._space)

    async def give_up(self) -> None:
        with suppress(LinkError, SpaceClosed):  # A lost session gives it up anyway.
            await self._decide([], self._serial)

    async def outcome(self, txn_id: str) -> Outcome | None:
        outcome: Outcome | None = await self._space.ask(wire.AskOutcome(0, txn_id))
        return outcome


class DeciderInDatabase(Decider):
    """A database that decides: its branch commits with the record of the decision."""

    def __init__(self, space: Any) -> None:
        self._space = space
        self._bridge = CommitBridge(space)
        self.id = spanning_id(space.database.identity, "", "", uuid4().hex)
        self.database = space.database
        self.branch = DatabaseBranch(space, self.id, self._bridge)

    def record(self, told: Participants) -> None:
        try:
            self.branch.decide(told)
        except PeerLost as error:
            if error.in_doubt:
                raise OutcomeUnknown(self.id, self.branch.label, str(error)) from error
            raise

    def recorded(self, told: Participants) -> bool:
        return self.branch.decided()

    def forget(self, txn_id: str, participant: str) -> None:
        self._bridge.run(self.forget_there(txn_id, participant))

    async def forget_there(self, txn_id: str, participant: str) -> None:
        if txn_id != self.id:
            with suppress(TupeloError):  # A record too many is kept.
                await self._space.forget_decision(txn_id, participant)

    async def give_up(self) -> None:
        return  # Its branch does.

    async def outcome(self, txn_id: str) -> Outcome | None:
        outcome: Outcome | None = await self._space.outcome(transaction_of(txn_id), txn_id)
        return outcome


_LOCAL = (blocking.Space, asynchronous.Space, FederatedSpace)


def transaction(
    *spaces: Any, lease: float | None = None, decisions: DecisionLog | None = None
) -> Any:
    """A transaction over several spaces, in this process or at other hosts: pass it to their
    operations as `txn=`. At the end of a `with` block (`async with` for async spaces) it commits in
    all of them or in none; it aborts when its `lease`, in seconds, runs out.

    The decision is recorded at one of the hosts: preferably a durable one, and preferably another
    host before one in this process. If that host is lost, prepared spaces wait for it. If no host
    takes part, the first database decides, and if there is none either, the decision is recorded in
    `decisions`, if given. Raises BadArgument.
    """
    if not spaces:
        raise BadArgument("spaces", "one or more spaces", spaces)
    for space in spaces:
        if not isinstance(space, (*_LOCAL, RemoteSpace, DatabaseSpace)):
            raise BadArgument("spaces", "spaces, here, at hosts elsewhere or in databases", space)
    doors = {_is_async(space) for space in spaces}
    if len(doors) > 1:
        raise BadArgument("spaces", "all of the blocking door, or all of tupelo.aio", spaces)
    if decisions is not None and not isinstance(decisions, DecisionLog):
        raise BadArgument("decisions", "a DecisionLog, or None", decisions)
    decider = _choose(spaces)
    if decider is not None and decisions is not None:
        raise BadArgument("decisions", "left out: a host or database keeps them", decisions)
    here = [port_of(space) for space in spaces if isinstance(space, _LOCAL)]
    made = AsyncSpanningTransaction if doors.pop() else SpanningTransaction
    clock = here[0].clock if here else system_clock
    own = [port_of(s) for s in spaces if isinstance(s, (blocking.Space, asynchronous.Space))]
    databases = [space for space in spaces if isinstance(space, DatabaseSpace)]
    return made(
        clock, lease, decider=decider, decisions=decisions, unsettled=own, databases=databases
    )


def _is_async(space: Any) -> bool:
    if isinstance(space, (RemoteSpace, FederatedSpace, DatabaseSpace)):
        return bool(space.is_async)
    return isinstance(space, asynchronous.Space)


def _choose(spaces: tuple[Any, ...]) -> Decider | None:
    """The decider: the first host with durable decisions, or else the first host, or else the first
    database, if any."""
    remote = [space for space in spaces if isinstance(space, RemoteSpace)]
    # Other hosts must be able to reach the decider.
    hosts = [
        host
        for space in spaces
        if isinstance(space, FederatedSpace)
        and isinstance(host := space.host_core, HostCore)
        and (host.address or not remote)
    ]
    found: list[RemoteSpace | HostCore] = [*remote, *hosts]
    if not found:
        databases = [space for space in spaces if isinstance(space, DatabaseSpace)]
        return DeciderInDatabase(databases[0]) if databases else None
    best = min(found, key=lambda one: not _is_durable(one))  # the first of the best
    return DeciderElsewhere(best) if isinstance(best, RemoteSpace) else DeciderHere(best)


def _is_durable(decider: RemoteSpace | HostCore) -> bool:
    return decider.durable if isinstance(decider, RemoteSpace) else decider.deciding.durable


async def _end_at(port: Port, txn: Txn, commits: bool) -> None:
    port.flush((port.commit if commits else port.abort)(txn))


# Branches


class BranchElsewhere:
    """The branch of a transaction in a remote space."""

    def __init__(
        self,
        space: RemoteSpace,
        new_id: Callable[[], str],
        decider: Decider,
        above: str | None,
    ) -> None:
        self.name = space.engine_id
        self.txn_id = ""
        self.lasting = True  # Its host outlives this program, and will ask.
        self.label = f"the space {space.name!r} at {space.peer}"
        self.txn: RemoteSpaceTransaction | None = None
        self._space = space
        self._channel: Channel = space._channel
        self._decider = decider
        self._new_id = new_id
        self._above = above
        self._bridge = CommitBridge(space)
        self._turn: Any = asyncio.Lock() if space.is_async else ThreadLock()
        self._link: int | None = None
        self._over = False
        self._may_be_prepared = False
        self._committed: bool | None = False

    # Beginning

    async def begun(self, lease: float | None) -> RemoteSpaceTransaction:
        """The transaction at the host; the first call begins it."""
        async with self._turn:
            if self.txn is None:
                await self._begin(lease)
            assert self.txn is not None
            return self.txn

    async def _begin(self, lease: float | None) -> None:
        self.txn_id = self._new_id()
        name = self._space.name
        try:
            call = await self._space.call(wire.Begin(0, name, lease, self._above, self.txn_id))
        except BaseException:  # The host may have begun it all the same.
            self._channel.tell(wire.End(0, name, self.txn_id, "abort"))
            raise
        self._link = call.serial
        self.txn = RemoteSpaceTransaction(self._space, call.serial, *call.value)
        if self._over:  # The transaction has ended meanwhile.
            await self._abort()

    async def renew(self, seconds: float | None) -> None:
        """Renew the lease at the host. PeerLost if the link was lost, which aborts the branch."""
        if self.txn is not None:
            message = wire.Renew(0, self._space.name, "transaction", self.txn.id, seconds)
            await self._space.ask(message, self._link)

    # Ending

    def prepare(self) -> Vote:
        self._over = True
        if self.txn is None:
            return "not changed"
        self._may_be_prepared = True
        self.txn.promised()
        vote: Vote = self._bridge.run(self._tell("prepare", self._link))
        if vote == "not changed":
            self._has_ended("committed")
        return vote

    def prepare_and_commit(self) -> Vote:
        self._over = True
        if self.txn is None:
            return "not changed"
        self._committed = None
        try:
            self._bridge.run(self._tell("commit", self._link))
        except TupeloError as error:
            self._committed = None if isinstance(error, PeerLost) and error.in_doubt else False
            raise
        self._has_ended("committed")
        return "committed"

    def commit(self) -> None:
        if self.txn is None:
            return
        link, self._link = self._link, None  # A later attempt may use another link.
        try:
            self._bridge.run(self._tell_commit(link))
        except PeerLost:
            # The host will ask the decider, unless it has committed and only its answer is lost;
            # then nobody else removes the record.
            self._bridge.soon(self._channel.start, self._commit_again, "tupelo-commit")
            raise
        finally:
            self._has_ended("committed")

    async def _tell_commit(self, link: int | None) -> None:
        """Tell the host to commit, which may have done so after asking the decider."""
        try:
            await self._tell("commit", link)
        except UnknownTransaction:
            pass  # It is committed and on disk; or it was in memory, and is lost.
        except TransactionEnded as ended:
            if ended.state != "committed":
                raise
            self.lasting = False  # The host itself tells the decider once that is on disk.

    async def _commit_again(self) -> None:
        """Tell the host to commit over the next link."""
        with suppress(TupeloError):
            await self._tell_commit(None)
            if self.lasting:
                await self._decider.forget_there(self.txn_id, self.name)

    def abort(self) -> None:
        self._over = True
        if self.txn is None:
            return
        if self._bridge.is_here():
            self._channel.start(self._abort, "tupelo-abort")
        else:
            self._bridge.run(self._abort())

    async def _abort(self) -> None:
        try:
            await self._tell("abort", self._link)
        except (TransactionEnded, UnknownTransaction):
            pass
        except TupeloError:
            if self._may_be_prepared:  # Otherwise the lost link has aborted it.
                await self._decider.give_up()
        self._has_ended("aborted")

    def has_committed(self) -> bool | None:
        return self._committed

    async def _tell(self, how: Literal["prepare", "commit", "abort"], link: int | None) -> Any:
        assert self.txn is not None
        message = wire.End(0, self._space.name, self.txn.id, how)
        return (await self._space.ask(message, link))[0]

    def _has_ended(self, state: Literal["committed", "aborted"]) -> None:
        if self.txn is not None:
            self._committed = state == "committed"
            self.txn.ended(state, "")


# The transaction


class SpanningTransaction(SharedTransaction, RemoteCapable, DatabaseCapable):
    """A transaction over several spaces of the blocking API, here, at other hosts and in
    databases."""

    is_async = False

    def __init__(
        self,
        clock: Clock,
        lease: float | None = None,
        *,
        decider: Decider | None = None,
        decisions: Decisions | None = None,
        unsettled: Iterable[Port] = (),
        databases: Iterable[Any] = (),
        parent: SpanningTransaction | None = None,
        txn_id: str | None = None,
        on_end: Callable[[SharedTransaction], object] | None = None,
    ) -> None:
        self._decider = decider
        self._unsettled = [one for one in unsettled if one.durable]
        self._databases = list(databases)
        self._elsewhere: dict[tuple[Channel, str], BranchElsewhere] = {}
        self._in_databases: dict[Any, DatabaseBranch] = {}
        self._is_decided_by_host = not isinstance(decider, DeciderInDatabase | None)
        super().__init__(
            clock,
            lease,
            txn_id=decider.id if decider is not None and parent is None else txn_id,
            parent=parent,
            decisions=decider or decisions,
            on_end=on_end,
        )
        if isinstance(decider, DeciderInDatabase) and parent is None:
            # The first to be asked: from then on, others see that a decision may come.
            self._in_databases[decider.database] = decider.branch
            self._members.append(decider.branch)
            decider.branch.members = self._members

    def transaction(self, *, lease: float | None = None) -> Self:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return type(self)(self._clock, lease, decider=self._decider, parent=self)

    @property
    def decider(self) -> Decider | None:
        """The decider of the outermost transaction, or None if there is none yet."""
        *_, root = self.line()
        return root._decider if isinstance(root, SpanningTransaction) else None

    def decide_at(self, decider: Decider, decisions: Decisions) -> None:
        """Set the decider, unless there is one: from now on remote spaces can take part."""
        with self._lock:
            if self._decider is None:
                self._decider, self._decisions = decider, decisions

    def decider_for(self, space: RemoteSpace) -> Decider:
        """The decider, when this space joins the transaction. BadArgument if there is none."""
        if self.decider is None:
            raise BadArgument("txn", f"a transaction of spaces such as {space.name!r}", self)
        return self.decider

    async def branch_elsewhere(self, space: RemoteSpace) -> RemoteSpaceTransaction:
        if space.is_async is not self.is_async:
            raise BadArgument("txn", f"a transaction of spaces such as {space.name!r}", self)
        decider = self.decider_for(space)
        self._end_in_time()
        above = None
        if isinstance(self.parent, SpanningTransaction):
            above = (await self.parent.branch_elsewhere(space)).id
        key = space._channel, space.name
        with self._lock:
            self._require_active()
            branch = self._elsewhere.get(key)
            if branch is None:
                branch = BranchElsewhere(space, self._secret_branch_id, decider, above)
                self._elsewhere[key] = branch
                self._members.append(branch)
        return await branch.begun(self._left())

    async def branch_in_database(self, space: Any) -> Any:
        if space.is_async is not self.is_async:
            raise BadArgument("txn", f"a transaction of spaces such as {space.name!r}", self)
        if self.parent is not None:
            raise BadArgument("txn", "the outermost transaction: a database takes no other", self)
        self._end_in_time()
        with self._lock:
            self._require_active()
            branch = self._in_databases.get(space.database)
            if branch is None:
                branch = DatabaseBranch(space, self._database_branch_id(space), CommitBridge(space))
                self._in_databases[space.database] = branch
                self._members.append(branch)
        return await branch.begun(space)

    def _database_branch_id(self, space: Any) -> str:
        """The id of a branch in a database. BadArgument if nobody decides."""
        if self._decider is None:
            raise BadArgument("txn", f"a transaction of spaces such as {space.name!r}", self)
        return self._secret_branch_id()

    def _new_branch(self, port: Port, state: Txn) -> Branch:
        branch = super()._new_branch(port, state)
        # A host asks the decider, so the decision is recorded even if the space is in memory.
        branch.lasting = branch.lasting or self._is_decided_by_host
        return branch

    def _new_branch_id(self) -> str:
        """The id of a branch in this process; a secret one if a decider may be asked about it."""
        is_decided_there = self._decider is not None and self.id == self._decider.id
        return self._secret_branch_id() if is_decided_there else self.id

    def _secret_branch_id(self) -> str:
        """A new branch id, known only to the participant, this coordinator and the decider: nobody
        else can remove the record of the participant."""
        decider = self.decider
        assert decider is not None
        return branch_id(decider.id, uuid4().hex)

    def renew_lease(self, thing: object, seconds: float | None) -> None:
        if self.is_async and self._elsewhere:
            raise TypeError("the lease of a transaction over async spaces elsewhere is awaited")
        super().renew_lease(thing, seconds)
        for branch in list(self._elsewhere.values()):
            run_coroutine(branch.renew(seconds))

    async def renew_lease_async(self, thing: object, seconds: float | None) -> None:
        super().renew_lease(thing, seconds)
        for branch in list(self._elsewhere.values()):
            await branch.renew(seconds)

    def _hand_up(self, member: Participant, parent: SharedTransaction) -> None:
        if isinstance(member, BranchElsewhere):
            member.prepare_and_commit()  # into the parent's branch
        else:
            super()._hand_up(member, parent)

    async def _settle(self) -> None:
        """End the transactions that an earlier run has left prepared in local spaces and databases,
        as far as the decider of this transaction, or one of its databases, knows their outcome.
        Hosts do this by themselves."""
        if self._decider is None:
            return
        deciders: dict[str, Decider] = {
            space.database.identity: DeciderInDatabase(space) for space in self._databases
        }
        deciders[decider_of(self.id)] = self._decider
        for space in self._databases:
            for branch in await space.prepared():
                _, txn_id = read_prepared_name(branch.name)
                await self._settle_one(deciders, txn_id, space.database.identity, branch.settle)
        for port in self._unsettled:
            for txn in port.in_doubt():
                await self._settle_one(deciders, txn.id, port.id, partial(_end_at, port, txn))

    @staticmethod
    async def _settle_one(
        deciders: dict[str, Decider],
        txn_id: str,
        participant: str,
        settle: Callable[[bool], Coroutine[Any, Any, None]],
    ) -> None:
        decider = deciders.get(decider_of(txn_id))
        outcome = None if decider is None else await decider.outcome(txn_id)
        if decider is None or outcome not in ("committed", "aborted"):
            return
        try:
            await settle(outcome == "committed")
        except NotAllowed:  # Another user of the database has prepared it, and may settle it.
            return
        except TransactionEnded:
            pass
        if outcome == "committed":
            await decider.forget_there(txn_id, participant)

    def __enter__(self) -> Self:
        run_coroutine(self._settle())
        return self

    async def __aenter__(self) -> Self:
        raise TypeError("use 'with' for a transaction of blocking spaces")


class AsyncSpanningTransaction(SpanningTransaction):
    """The same for the async API: `commit` and `abort` are awaited."""

    is_async = True
    commit = SharedTransaction.commit_async  # type: ignore[assignment]
    abort = SharedTransaction.abort_async  # type: ignore[assignment]

    def __enter__(self) -> Self:
        raise TypeError("use 'async with' for a transaction of async spaces")

    async def __aenter__(self) -> Self:
        await self._settle()
        return self
