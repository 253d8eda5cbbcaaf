"""Transactions of a space: the database's, with what they have in hand, and their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tupelo.errors import (
    CannotCommit,
    CannotReach,
    Deadlock,
    JournalFailed,
    PeerLost,
    SpaceClosed,
    SpaceFull,
    TransactionEnded,
    TransactionError,
    TupeloError,
)
from tupelo.postgres.driver import quoted, sqlstate
from tupelo.postgres.leases import LeasedHandle
from tupelo.postgres.listening import channel_of
from tupelo.postgres.searching import entry_of, glance
from tupelo.postgres.statements import HELD, LOCK_DECISION, RECORD_DECISION, WAS_COMMITTED
from tupelo.postgres.voting import prepared_name, read_prepared_name
from tupelo.postgres.writing import make_room
from tupelo.space.dual_api import dual_api
from tupelo.space.protocol import TransactionLike
from tupelo.space.transaction import LEASE_RAN_OUT, PrepareVote, TransactionState
from tupelo.values.holder import InHand
from tupelo.values.template import as_template

if TYPE_CHECKING:
    from tupelo.postgres.listening import WaitingOperation
    from tupelo.postgres.prepared import Backend, Row
    from tupelo.postgres.space import PostgresSpace

SPACE_CLOSED = "its space was closed"
VOTE_SECONDS = 10
"""So long a vote waits for the writers of a space with a capacity."""


class PostgresTransaction(LeasedHandle):
    """A transaction of the database, on its own connection; a nested one is a savepoint. If this
    program is gone, the server undoes it at once."""

    what, protocol = "transaction", TransactionLike

    def __init__(
        self,
        space: PostgresSpace,
        seconds: float | None,
        link: Any,
        parent: PostgresTransaction | None,
        beside: PostgresTransaction | None = None,
    ) -> None:
        self.parent = parent
        self.root: PostgresTransaction = self if parent is None else parent.root
        self.depth: int = 0 if parent is None else parent.depth + 1
        # All on this connection, each in its own space; they end together.
        self.group: list[PostgresTransaction] = [] if beside is None else beside.group
        self.link = link
        self.backend: Backend | None = None if link is None else link.backend
        self.name = ""  # of the prepared transaction in the server
        self._xid = ""  # of what is prepared
        self._told: list[str] = []  # the branches for which it decides
        self.waiters: set[WaitingOperation] = set()
        self.children: list[PostgresTransaction] = []
        # Of the root only: what all of them did so far.
        self.written: dict[int, Row] = {}
        self.taken: dict[int, Row] = {}
        self.read: set[int] = set()
        self._before: Any = None
        self._holds = False
        self._saved = False  # Of the first of the group: whether `run` has left a savepoint.
        above = parent or beside
        self._lock: Any = space.database.new_lock() if above is None else above.root._lock
        self._state: TransactionState = "active"
        self._reason = ""
        super().__init__(space, seconds)
        if parent is None:
            self.group.append(self)

    @classmethod
    async def begun(
        cls,
        space: PostgresSpace,
        seconds: float | None,
        parent: PostgresTransaction | None,
        beside: PostgresTransaction | None = None,
    ) -> PostgresTransaction:
        if beside is not None:
            async with beside._lock:
                beside.require()
                return cls(space, seconds, beside.link, None, beside)
        if parent is None:
            link = await space.database.patiently(partial(cls._begin_on, space), space.reconnect)
            return cls(space, seconds, link, None)
        async with parent.root._lock:
            await parent._require_last()
            root = parent.root
            root.group[0]._saved = False
            await space.database.run(root.link, f"SAVEPOINT nested{parent.depth + 1}")
            txn = cls(space, seconds, root.link, parent)
            txn._before = (dict(root.written), dict(root.taken), set(root.read))
            parent.children.append(txn)
        return txn

    @staticmethod
    async def _begin_on(space: PostgresSpace) -> Any:
        link = await space.database.acquire()
        try:
            await space.database.run(link, "BEGIN")
        except BaseException:
            await space.database.close(link)
            raise
        return link

    @classmethod
    def in_doubt(
        cls, space: PostgresSpace, name: str, txn_id: str, xid: str
    ) -> PostgresTransaction:
        """One that is prepared in the server, by a program that may be gone."""
        txn = cls(space, None, None, None)
        txn.id, txn.name, txn._xid, txn._state = txn_id, name, xid, "prepared"
        space.handles.discard(txn)
        return txn

    async def dismiss(self) -> None:
        """Abort; one that has nothing in hand ends without a word to those who wait."""
        if self.taken or self.written or self.read:
            await self.interrupted()
            return
        self._state, self.ended = "aborted", True
        self.space.handles.discard(self)
        try:
            await self.space.database.roll_back(self.link)
        finally:
            await self.space.database.give_back(self.link)

    @property
    def reason(self) -> str:
        """Why it was aborted, if that is known."""
        return self._reason

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def has_changed(self) -> bool:
        """Whether something was written or taken on its connection."""
        return any(one.written or one.taken for one in self.group)

    @property
    def state(self) -> TransactionState:
        """active, prepared, committed or aborted."""
        if self._state == "active" and self.ran_out:
            return "aborted"
        if self._state == "active" and self.parent is not None and self.parent.state != "active":
            return "aborted"
        return self._state

    def require(self) -> None:
        """Raise TransactionEnded if it has ended."""
        self.space.require_open()
        state = self.state
        if state != "active":
            ran_out = self._state == "active" and self.ran_out
            raise TransactionEnded(self.id, state, LEASE_RAN_OUT if ran_out else self._reason)

    async def _require_last(self) -> None:
        """Raise an error unless it is open and has no open nested transaction."""
        self.require()
        for child in self.children:
            if child._state == "active" and child.ran_out:
                await child._undo(LEASE_RAN_OUT)
            if child._state == "active":
                raise TransactionError(
                    f"the nested transaction {child.id} is open: end it first, since a database "
                    "has one transaction for all of them"
                )

    async def run(self, body: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run statements in the transaction; if they fail, they are undone and it goes on."""
        async with self._lock:
            await self._require_last()
            database = self.space.database
            before, held = set(self.root.read), self.root._holds
            try:
                # The last one is released here, and not when it is done: one message less.
                first = self.root.group[0]
                release = "RELEASE operation; " if first._saved else ""
                await database.run(self.link, f"{release}SAVEPOINT operation")
                first._saved = True
                try:
                    value, _ = await body(self.link)
                except BaseException:
                    self.root.read, self.root._holds = before, held
                    if not self.link.closed:
                        await database.run(self.link, "ROLLBACK TO operation")
                    raise
            except PeerLost:
                await self._lose("its connection was lost")
                raise
            except Deadlock as deadlock:
                raise Deadlock(self.id, deadlock.waits_for) from deadlock.__cause__
            return value

    async def hold(self, link: Any) -> None:
        """Tell others that this transaction has entries in hand."""
        root = self.root
        if not root._holds:
            lock = f"SELECT pg_advisory_xact_lock_shared({HELD}, %(space)s)"
            await self.space.run(link, lock)
            root._holds = True

    def wrote(self, rows: list[Row]) -> None:
        self.root.written.update((row[0], row) for row in rows)

    def took(self, rows: list[Row]) -> None:
        root = self.root
        for row in rows:
            if root.written.pop(row[0], None) is None:
                root.taken[row[0]] = row
            else:  # Those who wait for it are to know that it will not come.
                self.space.database.listener.tell(self.space.id)

    # Ends

    @dual_api
    async def commit(self) -> None:
        """Make all its changes visible."""
        await self.commit_now()

    async def commit_now(self) -> None:
        if self._state == "prepared":
            self.space.require_open()
            await self.settle(True)
            return
        async with self._lock:
            await self._require_last()
            if self.parent is not None:
                await self._end_nested("RELEASE")
                self._ended("committed", "")
                self.parent.wake_waiters()
                return
            await self._ending(self._commit_root)
        self._look_again()

    async def _ending(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the statements of its end; if they fail or are interrupted, nothing must stay in
        hand."""
        try:
            with self.space.database.unlimited():
                await work()
        except (PeerLost, CannotReach):
            await self._lose("its connection was lost while it committed")
            raise
        except Deadlock as deadlock:
            reason = Deadlock(self.id, deadlock.waits_for)
            await self._undo(str(reason))
            raise CannotCommit(self.id, repr(self.space), str(reason)) from reason
        except TupeloError as error:
            await self._undo(str(error))
            raise
        except BaseException:
            await self.space.database.to_the_end(self._end_interrupted)
            raise

    async def _end_interrupted(self) -> None:
        """Undo it, unless the commit that was interrupted was done."""
        database = self.space.database
        await database.roll_back(self.link)
        try:
            if await self._was_committed():
                self._all_ended("committed", "")
                await database.give_back(self.link)
                return
            if self.name and await self._is_prepared():
                await self._settle_prepared(False)
        except TupeloError:
            await self._lose("its outcome is not known")
            raise
        await self._undo("its end was interrupted")

    async def _commit_root(self) -> None:
        await self._stage()
        await self._commit_link()

    async def _stage(self, votes: bool = False) -> None:
        """Log all changes, and give the written entries their places. CannotCommit if there is no
        room for them any more."""
        for one in sorted(self.group, key=lambda one: one.space.id):
            if one.written and one.space.options.bounded:
                if votes:  # A circle of votes in several databases is not seen by any of them.
                    await one.space.run(self.link, f"SET LOCAL lock_timeout = '{VOTE_SECONDS}s'")
                try:
                    await make_room(one.space, self.link, one, [])
                except SpaceFull as full:
                    raise CannotCommit(self.id, repr(one.space), str(full)) from full
        for one in self.group:
            space = one.space
            if one.taken:
                await one._log_takes(list(one.taken.values()))
            if one.written:
                await space.run(
                    self.link,
                    space.sql.commit_writes,
                    ids=list(one.written),
                    **space.change("written", one.id),
                )

    async def _commit_link(self) -> None:
        """Commit the transaction of the database, with notifications."""
        space = self.space
        told = [one.space.id for one in self.group if one.taken or one.written or one.read]
        notify = "".join([f"NOTIFY {channel_of(int(number))}; " for number in told])
        try:
            await space.database.run(self.link, f"{notify}COMMIT")
        except PeerLost:
            await space.database.close(self.link)
            if not await self._was_committed():
                raise
        self._all_ended("committed", "")
        await space.database.give_back(self.link)

    async def _when_ended(self, statement: str, **values: Any) -> Any:
        """Ask the server about it when it has no connection any more."""
        space, backend = self.space, self.backend if self.link.closed else None

        async def ask(link: Any) -> Any:
            return (await space.run(link, statement, **values))[0][0]

        return await space.database.when_ended(backend, ask, space.reconnect)

    async def _was_committed(self) -> bool:
        """Whether it has left changes in the log, or decisions."""
        traces = [*self._told, *(one.id for one in self.group if one.taken or one.written)]
        return bool(traces) and bool(await self._when_ended(WAS_COMMITTED, txns=traces))

    async def _is_prepared(self) -> bool:
        found = "SELECT EXISTS (SELECT FROM pg_prepared_xacts WHERE gid = %(name)s)"
        return bool(await self._when_ended(found, name=self.name))

    def _all_ended(self, state: TransactionState, reason: str) -> None:
        for one in self.group:
            one._ended(state, reason)

    def _look_again(self) -> None:
        """Let those look who wait in this program."""
        for one in self.group:
            self.space.database.listener.tell(one.space.id)

    async def _log_takes(self, rows: list[Row]) -> None:
        await self.space.run(
            self.link,
            self.space.sql.commit_takes,
            ids=[row[0] for row in rows],
            origins=[row[4] for row in rows],
            ns=[row[5] for row in rows],
            ends=[row[6] for row in rows],
            bodies=[row[3] for row in rows],
            counts=[row[8] for row in rows],
            tos=[row[9] for row in rows],
            **self.space.change("taken", self.id),
        )

    @dual_api
    async def abort(self) -> None:
        """Undo everything that was done in the transaction."""
        await self._abort("")

    async def _abort(self, reason: str) -> None:
        await self.call_off(reason)
        self.space.require_open()
        if self._state == "committed":
            raise TransactionEnded(self.id, self._state, self._reason)

    async def call_off(self, reason: str) -> None:
        """Abort it, unless it has ended."""
        if self._state == "prepared":
            await self.settle(False)
        async with self._lock:
            if self._state == "active":
                await self._undo(reason)

    async def _undo(self, reason: str) -> None:
        """Roll back, and tell those who wait that entries are free again."""
        space, root = self.space, self.root
        space.database.require_own()
        if self.parent is not None:
            for child in self.children:
                if child._state == "active":
                    child._ended("aborted", reason)
            taken = {id_: row for id_, row in root.taken.items() if id_ not in self._before[1]}
            root.written, root.taken, root.read = self._before
            self._ended("aborted", reason)
            with suppress(PeerLost):
                await self._end_nested("ROLLBACK TO")
            if not (root.written or root.taken or root.read):
                root._holds = False
            if taken:
                unclaim = space.sql.unclaim
                await self._beside(unclaim, ids=list(taken), txn=root.id)
                space.database.listener.tell(space.id)
            return
        for child in (child for one in self.group for child in one.children):
            if child._state == "active":
                child._ended("aborted", reason)
        try:
            await space.database.roll_back(self.link)
        finally:  # Not before: who looks for what has ended waits for this.
            self._all_ended("aborted", reason)
            await space.database.give_back(self.link)
        for one in self.group:
            await one._release(list(one.taken))

    async def _end_nested(self, how: str) -> None:
        """End the savepoint. If that is interrupted, nobody knows what is left for the outer
        transactions, so they end, too."""
        self.root.group[0]._saved = False
        try:
            await self.space.database.run(self.link, f"{how} nested{self.depth}")
        except BaseException:
            await self._lose("the end of a nested transaction was interrupted")
            raise

    async def _beside(self, statement: str, **values: Any) -> list[Row]:
        """Execute a statement on another connection. Without one it is left out: the server has
        done all that matters."""
        with suppress(PeerLost, CannotReach):
            async with self.space.database.connection() as link:
                return await self.space.run(link, statement, **values)
        return []

    async def claim(self, rows: list[Row]) -> list[Row]:
        """Tell others who has these entries, before their taker gets them, and count the takers
        that were lost with them."""
        space, root = self.space, self.root
        ids = [row[0] for row in rows if row[0] not in root.written]
        change = space.change("taken", root.id)
        found: Any = await self._beside(space.sql.claim, ids=ids, **change) if ids else []
        losses: dict[int, int] = dict(found)
        return [(*row[:8], row[8] + losses.get(row[0], 0), *row[9:]) for row in rows]

    async def _release(self, taken: list[int]) -> None:
        """Count that these entries came back, and tell those who wait."""
        space = self.space
        if taken or self.written or self.read:
            change = space.change("released", self.id)
            with suppress(TupeloError):
                await self._beside(space.sql.released, ids=taken, **change)
        space.database.listener.tell(space.id)

    async def _lose(self, reason: str) -> None:
        for root in self.root.group:
            for one in (root, *root.children):
                if one._state == "active":
                    one._ended("aborted", reason)
        await self.space.database.close(self.link)

    def _ended(self, state: TransactionState, reason: str) -> None:
        self._state, self._reason = state, reason
        self.wake_waiters()
        self.finish()

    def wake_waiters(self) -> None:
        """Let its waiting operations look."""
        for waiter in list(self.waiters):
            waiter.wake()

    async def expired(self) -> None:
        async with self._lock:
            if self._state == "active" and self.ran_out:
                await self._undo(LEASE_RAN_OUT)

    async def cancelled(self) -> None:
        await self._abort("its lease was cancelled")

    async def interrupted(self) -> None:
        """An operation has taken entries, and its caller is gone."""
        async with self._lock:
            if self.root._state == "active":
                await self.root._undo("an operation was interrupted when it had taken entries")

    async def end_with_space(self) -> None:
        async with self._lock:
            if self._state == "active" and self.is_root:
                await self._undo(SPACE_CLOSED)

    # Two phases

    @dual_api
    async def prepare(self) -> PrepareVote:
        """First phase of a two-phase commit. A transaction that changed nothing commits."""
        if self.parent is not None:
            self.require()
            raise TransactionError("a nested transaction takes no part in a vote")
        return await self.vote(self.id)

    async def vote(self, txn_id: str) -> PrepareVote:
        """Prepare all transactions on the connection, as a branch with this id."""
        async with self._lock:
            await self._require_last()
            if not self.has_changed:
                await self._ending(self._commit_root)
            else:
                await self._ending(partial(self._prepare, txn_id))
        self._look_again()
        return "prepared" if self._state == "prepared" else "not changed"

    async def _prepare(self, txn_id: str) -> None:
        space = self.space
        name = prepared_name([one.space.id for one in self.group], txn_id)
        await self._stage(votes=True)
        for one in self.group:
            one.name = name
        ((self._xid,),) = await space.run(self.link, "SELECT pg_current_xact_id()::text")
        # A prepared transaction notifies nobody, and whoever commits it may die before it does. So
        # those who wait are told before: they see that entries are in hand, and look now and then.
        await self._notify()
        try:
            await space.database.run(self.link, f"PREPARE TRANSACTION {quoted(name)}")
        except PeerLost:
            await space.database.close(self.link)
            if not await self._is_prepared():
                raise
        except JournalFailed as error:
            if sqlstate(error) in ("55000", "53400"):
                raise CannotCommit(
                    self.id,
                    repr(space),
                    "PostgreSQL has no room for another prepared transaction: set "
                    "max_prepared_transactions (its default is 0) to the number of transactions "
                    "over several spaces at the same moment, and restart the server",
                ) from error
            raise
        for one in self.group:
            one._state = "prepared"
            one.wake_waiters()
        await space.database.give_back(self.link)

    async def _notify(self) -> None:
        channels = [channel_of(number) for number in read_prepared_name(self.name)[0]]
        notify = "SELECT pg_notify(name, '') FROM unnest(%(channels)s::text[]) AS name"
        async with self.space.database.connection() as link:
            await self.space.database.run(link, notify, {"channels": channels})

    async def settle(self, commits: bool) -> None:
        """Second phase: commit or abort what is prepared, also after the space was closed."""
        space = self.space
        async with self._lock:
            if self._state != "prepared":
                if self._state == ("committed" if commits else "aborted"):
                    return
                raise TransactionEnded(self.id, self._state, self._reason)
            with space.database.unlimited():
                done = await self._settle_prepared(commits)
                with suppress(TupeloError):  # They look now and then.
                    await self._notify()
            self._all_ended("committed" if done else "aborted", "")
        if not done:
            for one in self.group:
                await one._release(list(one.taken))
        if done is not commits:
            raise TransactionEnded(self.id, self._state, "it was settled by another program")
        self._look_again()

    async def _settle_prepared(self, commits: bool) -> bool:
        """Commit or roll back what is prepared; it may be done already. Returns the outcome. (The
        server can be asked for that: what was prepared keeps its id after a crash.)"""
        space, database = self.space, self.space.database
        statement = f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED {quoted(self.name)}"

        async def once() -> bool:
            async with database.connection() as link:
                try:
                    await database.run(link, statement)
                    return commits
                except JournalFailed as error:
                    if sqlstate(error) == "55000":  # It is being settled.
                        raise PeerLost(repr(space), "a commit", str(error)) from error
                    if sqlstate(error) != "42704":
                        raise
                    asked = "SELECT pg_xact_status(%(xid)s::xid8) = 'committed'"
                    return bool((await space.run(link, asked, xid=self._xid))[0][0])

        try:
            return await database.patiently(once, space.reconnect)
        except (PeerLost, CannotReach) as lost:
            raise database.in_doubt("the end of a transaction") from lost

    async def stage(self, txn_id: str) -> None:
        """Do everything but the commit, as the branch that decides. Until that, a lock tells others
        that there is no decision."""
        async with self._lock:
            await self._require_last()
            await self._ending(partial(self._stage_decision, txn_id))

    async def _stage_decision(self, txn_id: str) -> None:
        await self._stage(votes=True)
        await self.space.run(self.link, LOCK_DECISION, txn=txn_id)

    async def commit_staged(self, told: list[tuple[str, str]]) -> None:
        """Commit, with the record of the decision for these branches and participants."""
        async with self._lock:
            self.require()
            await self._ending(partial(self._commit_decision, told))
        self._look_again()

    async def _commit_decision(self, told: list[tuple[str, str]]) -> None:
        self._told = [txn for txn, _ in told]
        if told:
            await self.space.run(
                self.link,
                RECORD_DECISION,
                txns=self._told,
                participants=[name for _, name in told],
            )
        await self._commit_link()

    async def has_been_committed(self) -> bool:
        """Whether the branch that decides has committed, if its commit was interrupted; otherwise
        it is undone."""
        async with self._lock:
            if self._state == "active":
                await self._end_interrupted()
            return self._state == "committed"

    def transaction(self, *, lease: float | None = None) -> Any:
        """A nested transaction: it sees what this one sees, and commits into it."""
        return self.dual_call(self.space.begin, lease, self)

    async def leave(self, error: BaseException | None) -> None:
        """The end of a block: commit, or abort on an error."""
        if error is not None:
            with suppress(SpaceClosed):  # It has ended then, and the error must not be hidden.
                if self._state == "active":
                    await self._abort("")
        elif self._state == "active":
            try:
                await self.commit_now()
            except SpaceClosed:  # It was begun while the space closed.
                await self._abort(SPACE_CLOSED)
                raise
        elif self._reason == LEASE_RAN_OUT:
            raise TransactionEnded(self.id, self._state, self._reason)
        elif self._reason == SPACE_CLOSED:
            self.space.require_open()


async def in_hand(space: PostgresSpace, template: object) -> list[InHand]:
    """What the transactions of all programs have taken: those of this one know it themselves."""
    wanted, found, ours = as_template(template), [], set()
    for one in space.transactions():
        if one.is_root:
            ours.add(one.id)
            taken = [entry_of(row, known=False) for row in one.taken.values()]
            count = sum(wanted.admits(entry.shape, entry.fields) for entry in taken)
            if count:
                found.append(InHand(space.agent, space.label, count, one.id))

    async def claimed(link: Any) -> list[Row]:
        rows = await space.run(link, space.sql.claimed)
        # Those of programs that are gone are free.
        free = {row[0] for row in await glance(space, link, [row[0] for row in rows])}
        return [row for row in rows if row[0] not in free]

    counts: Counter[tuple[str, str, str]] = Counter()
    for row in await space.reading(claimed):
        entry = entry_of(row, known=False)
        txn, agent, label = row[11:]
        if txn not in ours and wanted.admits(entry.shape, entry.fields):
            counts[agent, label, txn] += 1
    return found + [InHand(agent, label, n, txn) for (agent, label, txn), n in counts.items()]
