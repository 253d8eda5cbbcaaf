"""Handles of a space in a database: leases, transactions, sessions, match sets, subscriptions,
reactions. Those without entries in hand are kept in this program, and end with it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from tupelo.errors import (
    CannotCommit,
    CannotReach,
    Deadlock,
    JournalFailed,
    LeaseLost,
    MatchSetInvalid,
    PeerLost,
    Refused,
    SpaceClosed,
    SpaceFull,
    TransactionEnded,
    TransactionError,
    TupeloError,
    UnknownType,
)
from tupelo.postgres.driver import quoted, sqlstate
from tupelo.postgres.listening import channel_of
from tupelo.postgres.statements import HELD, LOCK_DECISION, RECORD_DECISION
from tupelo.postgres.voting import prepared_name, read_prepared_name
from tupelo.space.dual_api import DualHandle, dual_api, run_sync
from tupelo.space.fetching import Fetching, FetchingSubscription
from tupelo.space.matchset import Skipped
from tupelo.space.protocol import (
    MatchSetLike,
    SessionLike,
    SubscriptionLike,
    TransactionLike,
    names_of,
)
from tupelo.space.query import check_wait
from tupelo.space.session import Seen
from tupelo.space.transaction import LEASE_RAN_OUT, PrepareVote, TransactionState
from tupelo.values.change import Notice
from tupelo.values.entry import About, Entry, check_about, note_about, require_known
from tupelo.values.scope import Coverage, Scope

if TYPE_CHECKING:
    from tupelo.postgres.listening import WaitingOperation
    from tupelo.postgres.log import NoticeSequence
    from tupelo.postgres.prepared import Backend, Row
    from tupelo.postgres.space import PostgresSearch, PostgresSpace

logger = logging.getLogger("tupelo")

PRUNE_AFTER = 1_024
"""A session looks which of its entries are gone when it has seen so many."""
SPACE_CLOSED = "its space was closed"
LAPSED = {"expired", "cancelled", "evicted"}
"""The changes by which an entry may leave a match set."""
VOTE_SECONDS = 10
"""So long a vote waits for the writers of a space with a capacity."""


# Leases


class WrittenEntry(msgspec.Struct, gc=False):
    """An entry that this program has written, for its lease."""

    id: int
    expires: float | None
    txn: PostgresTransaction | None = None
    n: int = 0


class PostgresLandlord:
    """Renews and cancels the leases of entries in the database, and of handles here."""

    def __init__(self, space: PostgresSpace) -> None:
        self._space = space

    async def renew_lease_async(self, thing: Any, seconds: float | None) -> None:
        space = self._space
        space.require_open()
        if isinstance(thing, WrittenEntry):
            rows = await self._change_entry(thing, "renewed", space.sql.renew, lease=seconds)
            thing.expires = rows[0][1]
        else:
            self._require(thing)
            thing.expires = None if seconds is None else space.server_time() + seconds
            thing.lease_renewed()

    async def cancel_lease_async(self, thing: Any) -> None:
        self._space.require_open()
        if isinstance(thing, WrittenEntry):
            await self._change_entry(thing, "cancelled", self._space.sql.delete, ids=[thing.id])
        else:
            self._require(thing)
            await thing.cancelled()

    async def _change_entry(
        self, thing: WrittenEntry, kind: str, statement: str, **values: Any
    ) -> list[Row]:
        """Renew or cancel the lease of an entry, within the transaction that wrote it if that is
        open. LeaseLost if the entry is gone; Refused while another transaction has it in hand."""
        space = self._space
        txn = thing.txn
        while txn is not None and txn.state == "committed":
            txn = txn.parent
        if txn is not None and txn.state != "active":
            txn = None
        token = space.new_token()

        async def change(link: Any) -> tuple[list[Row], Any]:
            change = space.change(kind, token=token)
            rows = await space.run(
                link,
                statement,
                id=thing.id,
                logs=txn is None,
                tells=txn is None,
                **values,
                **change,
            )
            if rows and txn is not None and kind == "cancelled":
                txn.took([(thing.id,)])
            is_there = "SELECT FROM tupelo.entries WHERE id = %(id)s"
            if not rows and txn is None and await space.run(link, is_there, id=thing.id):
                raise Refused("a transaction has the entry in hand: try again when it has ended")
            return rows, rows or None

        if txn is None:
            await space.tidy()
        rows: list[Row] = await space.within(txn, change, True, token)
        if not rows:
            raise LeaseLost("the entry is gone: it was taken, cancelled or has expired")
        return rows

    @staticmethod
    def _require(thing: Any) -> None:
        try:
            thing.require()
        except TransactionEnded as ended:
            raise LeaseLost(str(ended)) from None

    async def refresh(self) -> None:
        """Ask the server for its time."""
        await self._space.reading(self._space.look_at_clock)

    def renew_lease(self, thing: Any, seconds: float | None) -> None:
        run_sync(partial(self.renew_lease_async, thing, seconds))

    def cancel_lease(self, thing: Any) -> None:
        run_sync(partial(self.cancel_lease_async, thing))

    def now(self) -> float:
        return self._space.server_time()


class LeasedHandle(DualHandle):
    """A leased resource of this program. It has ended when its lease has, even before anything
    notices that."""

    what: str
    protocol: type

    def __init__(self, space: PostgresSpace, seconds: float | None) -> None:
        self.space = space
        self.is_async = space.is_async
        self.id = uuid4().hex
        self.expires = None if seconds is None else space.server_time() + seconds
        self.ended = False
        self._cancel_alarm: Callable[[], None] | None = None
        space.handles.add(self)
        self.lease_renewed()

    @property
    def lease(self) -> Any:
        """The lease, to renew or cancel."""
        return self.space.lease_of(self)

    @property
    def ran_out(self) -> bool:
        return self.expires is not None and self.expires <= self.space.server_time()

    def require(self) -> None:
        """Raise LeaseLost if it has ended."""
        self.space.require_open()
        if self.ended or self.ran_out:
            raise LeaseLost(f"this {self.what} is over: it was closed or its lease ran out")

    def lease_renewed(self) -> None:
        """Set the alarm for the end of the lease."""
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = None
        if self.expires is not None:
            offset = self.space.server_time() - self.space.clock.now()
            self._cancel_alarm = self.space.clock.call_at(self.expires - offset, self._on_alarm)

    def _on_alarm(self) -> None:
        if self.ran_out and not self.ended:
            self.space.database.call_soon(self.expired)

    async def expired(self) -> None:
        """The lease has ended."""
        self.finish()

    async def cancelled(self) -> None:
        """The lease was cancelled."""
        self.finish()

    async def end_with_space(self) -> None:
        self.finish()

    def finish(self) -> None:
        self.ended = True
        self.space.handles.discard(self)
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = None
        self.space.database.listener.tell(self.space.id)

    @dual_api
    async def close(self) -> None:
        """End it."""
        self.finish()

    async def leave(self, error: BaseException | None) -> None:
        self.finish()

    def __dir__(self) -> list[str]:
        return names_of(self.protocol)

    def __repr__(self) -> str:
        return f"<a {self.what} of the space {self.space.name!r} at {self.space.database.where}>"


# Transactions


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
        self._saved = (
            False  # Of the first of the group: whether there is a savepoint to go back to.
        )
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
            link = await space.reading(cls._begin_on(space))
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
    def _begin_on(space: PostgresSpace) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        async def begin(_: Any) -> Any:
            link = await space.database.acquire()
            try:
                await space.database.run(link, "BEGIN")
            except BaseException:
                await space.database.close(link)
                raise
            return link

        return begin

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
        await self.space.roll_back(self.link)
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

    def _require_innermost(self) -> None:
        open_ones = [child for child in self.children if child._state == "active"]
        if open_ones:
            names = ", ".join(child.id for child in open_ones)
            raise TransactionError(
                f"the nested transaction {names} is open: end it first, since a database has one "
                "transaction for all of them"
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

    async def _end_expired_children(self) -> None:
        for child in self.children:
            if child._state == "active" and child.ran_out:
                await child._undo(LEASE_RAN_OUT)

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
                await self.space.database.run(self.link, f"RELEASE nested{self.depth}")
                self.root.group[0]._saved = False
                self._ended("committed", "")
                self._tell_waiters(self.parent.waiters)
                return
            await self._ending(self._commit_root)
        self._look_again()

    async def _require_last(self) -> None:
        """Raise an error unless it is open and has no open nested transactions."""
        self.require()
        await self._end_expired_children()
        self._require_innermost()

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
        space = self.space
        await space.roll_back(self.link)
        backend = self.backend if self.link.closed else None
        try:
            if await space.was_committed(backend, self._traces):
                self._all_ended("committed", "")
                await space.database.give_back(self.link)
                return
            if self.name and await space.is_prepared(self.name, backend):
                await space.settle_prepared(self.name, False, self._xid)
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
                    await one.space.make_room(self.link, one, [])
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
            if self._traces and not await space.was_committed(self.backend, self._traces):
                raise
        self._all_ended("committed", "")
        await space.database.give_back(self.link)

    @property
    def _traces(self) -> list[str]:
        """The ids that its changes and decisions have if it is committed."""
        return [*self._told, *(one.id for one in self.group if one.taken or one.written)]

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
                root.group[0]._saved = False
                await space.database.run(self.link, f"ROLLBACK TO nested{self.depth}")
            if not (root.written or root.taken or root.read):
                root._holds = False
            if taken:
                await self._unclaim(list(taken))
                await self._release([])
            return
        for child in (child for one in self.group for child in one.children):
            if child._state == "active":
                child._ended("aborted", reason)
        try:
            await space.roll_back(self.link)
        finally:  # Not before: who looks for what has ended waits for this.
            self._all_ended("aborted", reason)
            await space.database.give_back(self.link)
        for one in self.group:
            await one._release(list(one.taken))

    async def claim(self, rows: list[Row]) -> list[Row]:
        """Tell others who has these entries, before their taker gets them, and count the takers
        that were lost with them."""
        space, root = self.space, self.root
        change = space.change("taken", root.id)
        losses: dict[int, int] = {}
        with suppress(PeerLost, CannotReach):  # It is not counted then.
            async with space.database.connection() as link:
                ids = [row[0] for row in rows if row[0] not in root.written]
                if ids:
                    found = await space.run(link, space.sql.claim, ids=ids, **change)
                    losses = {id_: lost for id_, lost in found if lost}
        return [(*row[:8], row[8] + losses.get(row[0], 0), *row[9:]) for row in rows]

    async def _unclaim(self, ids: list[int]) -> None:
        space = self.space
        with suppress(PeerLost, CannotReach):
            async with space.database.connection() as link:
                await space.run(link, space.sql.unclaim, ids=ids, txn=self.root.id)

    async def _release(self, taken: list[int]) -> None:
        """Count that these entries came back, and tell those who wait."""
        space = self.space

        async def release(link: Any) -> None:
            change = space.change("released", self.id)
            await space.run(link, space.sql.released, ids=taken, **change)
            await space.run(link, "SELECT pg_notify(%(channel)s, '')")

        if taken or self.written or self.read:
            with suppress(TupeloError):  # The server has given them back all the same.
                async with space.database.connection() as link:
                    await release(link)
        space.database.listener.tell(space.id)

    async def _lose(self, reason: str) -> None:
        for root in self.root.group:
            for one in (root, *root.children):
                if one._state == "active":
                    one._ended("aborted", reason)
        await self.space.database.close(self.link)

    def _ended(self, state: TransactionState, reason: str) -> None:
        self._state, self._reason = state, reason
        self._tell_waiters(self.waiters)
        self.finish()

    @staticmethod
    def _tell_waiters(waiters: set[WaitingOperation]) -> None:
        for waiter in list(waiters):
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
            if not await space.is_prepared(name, self.backend):
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
            one._tell_waiters(one.waiters)
        await space.database.give_back(self.link)

    async def _notify(self) -> None:
        async with self.space.database.connection() as link:
            for space_id in self._spaces():
                await self.space.database.run(
                    link,
                    "SELECT pg_notify(%(channel)s, '')",
                    {"channel": channel_of(space_id)},
                )

    def _spaces(self) -> list[int]:
        return (
            read_prepared_name(self.name)[0] if self.name else [one.space.id for one in self.group]
        )

    async def settle(self, commits: bool) -> None:
        """Second phase: commit or abort what is prepared, also after the space was closed."""
        space = self.space
        async with self._lock:
            if self._state != "prepared":
                if self._state == ("committed" if commits else "aborted"):
                    return
                raise TransactionEnded(self.id, self._state, self._reason)
            with space.database.unlimited():
                done = await space.settle_prepared(self.name, commits, self._xid)
                with suppress(TupeloError):  # They look now and then.
                    await self._notify()
            self._all_ended("committed" if done else "aborted", "")
        if not done:
            for one in self.group:
                await one._release(list(one.taken))
        if done is not commits:
            raise TransactionEnded(self.id, self._state, "it was settled by another program")
        self._look_again()

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


# Sessions, match sets


class PostgresSession(LeasedHandle, SessionLike):
    """A session, which remembers here what it has seen."""

    what, protocol = "session", SessionLike

    def __init__(
        self, space: PostgresSpace, seconds: float | None, like: PostgresSession | None
    ) -> None:
        super().__init__(space, seconds)
        self._seen: Seen = Seen() if like is None else like._seen.copy()
        self._entries: dict[int, tuple[str, int]] = {} if like is None else dict(like._entries)
        self._prune_at = PRUNE_AFTER
        self._lock = space.database.new_lock()

    @dual_api
    async def _read(
        self,
        template: object,
        wait: float | None,
        many: bool,
        limit: int | None,
        scope: Scope | None,
        coverage: Coverage | None,
        about: list[About] | None = None,
    ) -> Any:
        check_about(about)
        self.space.require_here(scope, coverage)
        found = await self.space.find(self.search(template, many, limit), wait, limit, None, self)
        note_about(found, about)
        values = [entry.value for entry in found]
        return values if many else values[0] if values else None

    def search(self, template: object, many: bool, limit: int | None) -> PostgresSearch:
        """The search of a read in this session."""
        self.require()
        return self.space.new_search(template, many, limit, self._seen, self.id)

    def unsee(self, entries: list[Entry]) -> None:
        """Forget entries that did not reach the reader."""
        for entry in entries:
            self._seen.discard_number(entry.origin, entry.n)
            self._entries.pop(entry.arrival, None)
        self.space.database.listener.tell(self.space.id)

    async def look(self, search: PostgresSearch) -> list[Entry]:
        """The matches that it has not seen, each for one caller."""
        async with self._lock:
            self.require()
            if len(self._entries) > self._prune_at:
                await self._prune()
            found = await self.space.look(search, None)
            for entry in found:  # From here on nothing keeps them from the caller.
                self._seen.add(entry)
                self._entries[entry.arrival] = entry.origin, entry.n
            return found

    async def _prune(self) -> None:
        """Forget entries that are gone for good. Those that a transaction has taken are not."""

        async def ask(link: Any) -> list[Row]:
            statement = "SELECT id FROM tupelo.entries WHERE id = ANY(%(ids)s::bigint[])"
            return await self.space.run(link, statement, ids=list(self._entries))

        there = {row[0] for row in await self.space.reading(ask)}
        for gone in self._entries.keys() - there:
            self._seen.discard_number(*self._entries.pop(gone))
        self._prune_at = max(PRUNE_AFTER, 2 * len(self._entries))

    def clone(self, *, lease: float | None = None) -> Any:
        """A new session that has seen the same entries."""
        self.require()
        return self.dual_call(self.space.open_session, lease, self)

    @property
    def seen(self) -> int:
        """The number of remembered entries."""
        return len(self._seen)


class PostgresMatchSet(LeasedHandle, Fetching):
    """The entries that matched, in order of arrival. Iterate (`async for` on the async API), or
    call `next` until it returns None."""

    what, protocol = "match set", MatchSetLike

    def __init__(
        self,
        space: PostgresSpace,
        entries: list[Entry],
        txn: PostgresTransaction | None,
        seconds: float | None,
    ) -> None:
        super().__init__(space, seconds)
        self._left = deque(entries)
        self._txn = txn
        self._skipped: list[Skipped] = []
        self._invalid = ""

    @dual_api
    async def next(self) -> Any:
        """The next entry, or None at the end. MatchSetInvalid if one of its entries was taken."""
        return await self.fetch_next()

    async def fetch_next(self) -> Any:
        entry = await self.next_entry(True)
        return None if entry is None else entry.value

    async def next_entry(self, known: bool) -> Entry | None:
        """The next entry; with `known`, those of unknown classes are left out."""
        self.space.require_open()
        if not self._left and not self._invalid:
            return None
        if self._txn is not None and self._txn.state != "active":
            self._invalid = self._invalid or "its transaction has ended"
        if self.ended or self.ran_out:
            self._invalid = self._invalid or "it was closed or its lease ran out"
        if not self._invalid:
            await self._look()
        if self._invalid:
            raise MatchSetInvalid(f"the match set is over: {self._invalid}")
        while self._left:
            entry = self._left.popleft()
            try:
                if known:
                    require_known(entry)
                return entry
            except UnknownType as error:
                self._skipped.append(Skipped((entry.origin, entry.n), str(error)))
        return None

    async def cancelled(self) -> None:
        self._invalid = self._invalid or "its lease was cancelled"
        self.finish()

    async def _look(self) -> None:
        """Which of the entries that are left are gone, and how."""
        await self.space.tidy()
        ids = [entry.arrival for entry in self._left]

        async def ask(link: Any) -> tuple[list[Row], None]:
            rows = await self.space.run(
                link,
                """
                SELECT asked.id, (
                    SELECT kind FROM tupelo.changes
                    WHERE space = %(space)s AND entry = asked.id ORDER BY seq DESC LIMIT 1
                )
                FROM unnest(%(ids)s::bigint[]) AS asked (id)
                LEFT JOIN tupelo.entries ON entries.id = asked.id
                WHERE entries.id IS NULL
                """,
                ids=ids,
            )
            return rows, None

        gone = dict(await self.space.within(self._txn, ask, False))
        if not LAPSED.issuperset(gone.values()):  # A take in its own transaction is not logged yet.
            self._invalid = "one of its entries was taken"
            return
        for entry in [one for one in self._left if one.arrival in gone]:
            self._left.remove(entry)
            reason = "it expired, was cancelled or was evicted"
            self._skipped.append(Skipped((entry.origin, entry.n), reason))

    @property
    def skipped(self) -> list[Skipped]:
        """The entries that were left out so far, with the reasons."""
        return list(self._skipped)


# Subscriptions, reactions


class PostgresSubscription(LeasedHandle, FetchingSubscription):
    """Notices in order, from the log of the space. Iterate (`async for` on the async API), or call
    `get`. It ends with its lease, its space, or `close()`."""

    what, protocol = "subscription", SubscriptionLike

    def __init__(
        self,
        space: PostgresSpace,
        event: NoticeSequence,
        seconds: float | None,
        handback: Any,
        backlog_max: int,
    ) -> None:
        super().__init__(space, seconds)
        self.event = event
        self.backlog: deque[Notice] = deque()
        self._handback = handback
        self._backlog_max = backlog_max
        self._missed = 0
        self._error: Exception | None = None

    @property
    def event_id(self) -> int:
        """Identifies the event; equal for subscriptions of this space object with equal
        templates."""
        return self.event.id

    def add(self, kind: Any, entry: Entry, time: float) -> None:
        """Add a notice of a change at this time, unless the lease had ended; if the backlog is
        full, the oldest is dropped."""
        if self.expires is not None and self.expires <= time:
            return
        if len(self.backlog) >= self._backlog_max:
            self.backlog.popleft()
            self._missed += 1
        notice = Notice(self.event.id, self.event.sequence, kind, entry, self._handback)
        self.backlog.append(notice)

    @dual_api
    async def get(self, *, wait: float | None = None) -> Notice | None:
        """The next notice; None after `wait` seconds, or if the subscription has ended."""
        check_wait(wait)
        return await self.next(wait)

    async def next(self, wait: float | None) -> Notice | None:
        async def attempt(waiter: WaitingOperation | None) -> tuple[bool, Notice | None]:
            if not self.backlog and not self.ended:
                await self.space.log.pull()
            notice = self._next()
            if notice is None and self._error is not None:
                raise self._error
            return notice is not None or self.ended or self.ran_out, notice

        if self.ended:
            return (await attempt(None))[1]
        try:
            found: Notice | None = (await self.space.until(attempt, wait, None, None))[1]
        except SpaceClosed:
            return self._next()
        return found

    def give_back(self, notices: list[Notice]) -> None:
        """Return notices that did not reach the receiver."""
        for notice in reversed(notices):
            self.miss(notice.missed)
            self.backlog.appendleft(msgspec.structs.replace(notice, missed=0))

    def miss(self, count: int) -> None:
        """The next notice tells that so many are missing."""
        self._missed += count

    def _next(self) -> Notice | None:
        if not self.backlog:
            return None
        notice = self.backlog.popleft()
        if self._missed:
            notice = msgspec.structs.replace(notice, missed=self._missed)
            self._missed = 0
        return notice

    async def fetch_next(self) -> Notice | None:
        return await self.next(None)

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        self._error = self._error or error
        self.finish()

    @property
    def sequence(self) -> int:
        """The sequence number of the last notice for this event."""
        self._refresh_if_blocking()
        return self.event.sequence

    @property
    def active(self) -> bool:
        """Whether more notices can come than those in the backlog."""
        self._refresh_if_blocking()
        return not (self.ended or self.ran_out)

    @property
    def error(self) -> Exception | None:
        """The error that ended the subscription, if any."""
        self._refresh_if_blocking()
        return self._error

    def _refresh_if_blocking(self) -> None:
        if not self.is_async:
            run_sync(self._refresh)

    @dual_api
    async def refresh(self) -> None:
        """Read the log up to now."""
        await self._refresh()

    async def _refresh(self) -> None:
        if not self.ended:
            with suppress(SpaceClosed, PeerLost):
                await self.space.log.pull()

    async def keep_backlog(self) -> None:
        """Get the notices up to now, before it ends."""
        with suppress(TupeloError):
            await self.space.log.pull()

    def finish(self) -> None:
        self.space.log.forget(self)
        super().finish()

    @dual_api
    async def close(self) -> None:
        """End the subscription; notices that have come can still be fetched."""
        await self.leave(None)

    async def leave(self, error: BaseException | None) -> None:
        if not self.ended:
            await self.keep_backlog()
            self.finish()

    async def expired(self) -> None:
        await self.leave(None)
