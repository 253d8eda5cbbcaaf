"""Handles of a space in a database: leases, transactions, sessions, match sets, subscriptions,
reactions. Those without entries in hand are kept in this program, and end with it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from tupelo.errors import (
    CannotCommit,
    CannotReach,
    JournalError,
    LeaseLost,
    ListenerFailed,
    MatchSetInvalid,
    PeerLost,
    Refused,
    SpaceClosed,
    TransactionEnded,
    TransactionError,
    TupeloError,
    UnknownType,
)
from tupelo.postgres.statements import HELD
from tupelo.space.dual_api import DualHandle, dual_api, run_sync
from tupelo.space.matchset import Skipped
from tupelo.space.protocol import (
    MatchSetLike,
    SessionLike,
    SubscriptionLike,
    TransactionLike,
    names_of,
)
from tupelo.space.query import check_wait
from tupelo.space.reaction import WeakStep
from tupelo.space.session import Seen
from tupelo.space.transaction import LEASE_RAN_OUT, State, Vote
from tupelo.values.change import Notice
from tupelo.values.entry import About, Entry, check_about, note_about, require_known, thaw
from tupelo.values.scope import Coverage, Scope

if TYPE_CHECKING:
    from tupelo.postgres.driver import Row
    from tupelo.postgres.listening import Waiter
    from tupelo.postgres.log import Event
    from tupelo.postgres.space import PostgresSpace, Search

logger = logging.getLogger("tupelo")

PRUNE_AFTER = 1_024
"""A session looks which of its entries are gone when it has seen so many."""
SPACE_CLOSED = "its space was closed"


# Leases


class WrittenEntry(msgspec.Struct, gc=False):
    """An entry that this program has written, for its lease."""

    id: int
    expires: float | None
    txn: PostgresTransaction | None = None


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
        txn = thing.txn if thing.txn is not None and thing.txn.state == "active" else None

        async def change(link: Any) -> tuple[list[Row], Any]:
            change = space.change(kind)
            rows = await space.run(
                link, statement, id=thing.id, logs=txn is None, **values, **change
            )
            if rows and txn is not None and kind == "cancelled":
                txn.took([(thing.id,)])
            is_there = not rows and await space.run(
                link, "SELECT FROM tupelo.entries WHERE id = %(id)s", id=thing.id
            )
            if is_there:
                raise Refused("a transaction has the entry in hand: try again when it has ended")
            return rows, await space.xid(link) if rows else None

        if txn is None:
            await space.tidy()
        rows: list[Row] = await space.within(txn, change, True)
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
    ) -> None:
        self.parent = parent
        self.root: PostgresTransaction = self if parent is None else parent.root
        self.link = link
        self.backend: int = link.info.backend_pid
        self.waiters: set[Waiter] = set()
        self.children: list[PostgresTransaction] = []
        # Of the root only: what all of them did so far.
        self.written: dict[int, Row] = {}
        self.taken: dict[int, Row] = {}
        self.read: set[int] = set()
        self._before: Any = None
        self._holds = False
        self._lock: Any = space.database.new_lock() if parent is None else parent.root._lock
        self._state: State = "active"
        self._reason = ""
        super().__init__(space, seconds)

    @classmethod
    async def begun(
        cls, space: PostgresSpace, seconds: float | None, parent: PostgresTransaction | None
    ) -> PostgresTransaction:
        if parent is None:
            link = await space.reading(cls._begin_on(space))
            return cls(space, seconds, link, None)
        async with parent.root._lock:
            parent.require()
            txn = cls(space, seconds, parent.root.link, parent)
            root = parent.root
            txn._before = (dict(root.written), dict(root.taken), set(root.read))
            await space.database.run(txn.link, f"SAVEPOINT t{txn.id}")
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

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def state(self) -> State:
        """active, committed or aborted."""
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
            self.require()
            await self._end_expired_children()
            self._require_innermost()
            database = self.space.database
            before, held = set(self.root.read), self.root._holds
            try:
                await database.run(self.link, "SAVEPOINT operation")
                try:
                    value, _ = await body(self.link)
                except BaseException:
                    self.root.read, self.root._holds = before, held
                    if not self.link.closed:
                        await database.run(self.link, "ROLLBACK TO operation")
                    raise
                await database.run(self.link, "RELEASE operation")
            except PeerLost:
                await self._lose("its connection was lost")
                raise
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
        await self._commit()

    async def _commit(self) -> None:
        async with self._lock:
            self.require()
            await self._end_expired_children()
            self._require_innermost()
            if self.parent is not None:
                await self.space.database.run(self.link, f"RELEASE t{self.id}")
                self._ended("committed", "")
                self._tell_waiters(self.parent.waiters)
                return
            try:
                await self._commit_root()
            except (PeerLost, CannotReach):
                await self._lose("its connection was lost while it committed")
                raise
            except TupeloError as error:  # Its entries must not stay in hand.
                await self._undo(str(error))
                raise
        self.space.database.listener.tell(self.space.id)

    async def _commit_root(self) -> None:
        space = self.space
        xid = None
        if self.taken:
            await self._log("taken", list(self.taken.values()))
        if self.written:
            ((arrivals, _),) = await space.run(
                self.link, space.sql.numbers, count=len(self.written)
            )
            await space.run(
                self.link,
                space.sql.commit_writes,
                ids=list(self.written),
                arrivals=arrivals,
                **space.change("written", self.id),
            )
        if self.taken or self.written or self.read:
            ((xid, _),) = await space.run(
                self.link, "SELECT pg_current_xact_id()::text, pg_notify(%(channel)s, '')"
            )
        try:
            await space.database.run(self.link, "COMMIT")
        except PeerLost as lost:
            if xid is not None and not await space.was_committed(self.link, xid, lost):
                raise
        self._ended("committed", "")
        await space.database.give_back(self.link)

    async def _log(self, kind: str, rows: list[Row]) -> None:
        await self.space.run(
            self.link,
            self.space.sql.log_entries,
            ids=[row[0] for row in rows],
            origins=[row[4] for row in rows],
            ns=[row[5] for row in rows],
            ends=[row[6] for row in rows],
            bodies=[row[3] for row in rows],
            counts=[row[8] for row in rows],
            tos=[row[9] for row in rows],
            **self.space.change(kind, self.id),
        )

    @dual_api
    async def abort(self) -> None:
        """Undo everything that was done in the transaction."""
        await self._abort("")

    async def _abort(self, reason: str) -> None:
        async with self._lock:
            if self._state == "active":
                await self._undo(reason)
        self.space.require_open()
        if self._state == "committed":
            raise TransactionEnded(self.id, self._state, self._reason)

    async def _undo(self, reason: str) -> None:
        """Roll back, and tell those who wait that entries are free again."""
        space, root = self.space, self.root
        space.database.require_own()
        for child in self.children:
            if child._state == "active":
                child._ended("aborted", reason)
        if self.parent is not None:
            taken = {id_: row for id_, row in root.taken.items() if id_ not in self._before[1]}
            root.written, root.taken, root.read = self._before
            self._ended("aborted", reason)
            with suppress(PeerLost):
                await space.database.run(self.link, f"ROLLBACK TO t{self.id}")
            if not (root.written or root.taken or root.read):
                root._holds = False
        else:
            taken = self.taken
            self._ended("aborted", reason)
            await space.roll_back(self.link)
            await space.database.give_back(self.link)
        if self.parent is None or taken:
            await self._release(list(taken) if self.parent is None else [])

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
        for one in (self.root, *self.root.children):
            if one._state == "active":
                one._ended("aborted", reason)
        await self.space.database.close(self.link)

    def _ended(self, state: State, reason: str) -> None:
        self._state, self._reason = state, reason
        self._tell_waiters(self.waiters)
        self.finish()

    @staticmethod
    def _tell_waiters(waiters: set[Waiter]) -> None:
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

    @dual_api
    async def prepare(self) -> Vote:
        """First phase of a two-phase commit. A transaction that changed nothing commits."""
        self.require()
        if self.parent is not None:
            raise TransactionError("a nested transaction takes no part in a vote")
        async with self._lock:
            self._require_innermost()
        if not (self.written or self.taken):
            await self._commit()
            return "not changed"
        raise CannotCommit(
            self.id, repr(self.space), "a space in a database does not vote yet: commit it"
        )

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
                await self._commit()
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
        self.require()
        self.space.require_here(scope, coverage)
        search = self.space.new_search(template, many, limit, self._seen, self.id)
        found = await self.space.find(search, wait, limit, None, self)
        note_about(found, about)
        values = [entry.value for entry in found]
        return values if many else values[0] if values else None

    async def look(self, search: Search) -> list[Entry]:
        """The matches that it has not seen, each for one caller."""
        async with self._lock:
            self.require()
            found = await self.space.look(search, None)
            for entry in found:
                self._seen.add(entry)
                self._entries[entry.arrival] = entry.origin, entry.n
            if len(self._entries) > self._prune_at:
                await self._prune()
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


class PostgresMatchSet(LeasedHandle):
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
                require_known(entry)
                return entry.value
            except UnknownType as error:
                self._skipped.append(Skipped((entry.origin, entry.n), str(error)))
        return None

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
        if "taken" in gone.values() or None in gone.values():
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

    def __iter__(self) -> Iterator[Any]:
        self.require_door(False, "'async for'")
        while (entry := self.next()) is not None:
            yield entry

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.require_door(True, "'for'")
        while (entry := await self.next()) is not None:
            yield entry


# Subscriptions, reactions


class PostgresSubscription(LeasedHandle):
    """Notices in order, from the log of the space. Iterate (`async for` on the async API), or call
    `get`. It ends with its lease, its space, or `close()`."""

    what, protocol = "subscription", SubscriptionLike

    def __init__(
        self,
        space: PostgresSpace,
        event: Event,
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

    def add(self, kind: Any, entry: Entry) -> None:
        """Add a notice; if the backlog is full, the oldest is dropped."""
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
        async def attempt(waiter: Waiter | None) -> tuple[bool, Notice | None]:
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

    def _next(self) -> Notice | None:
        if not self.backlog:
            return None
        notice = self.backlog.popleft()
        if self._missed:
            notice = msgspec.structs.replace(notice, missed=self._missed)
            self._missed = 0
        return notice

    def __iter__(self) -> Iterator[Notice]:
        self.require_door(False, "'async for'")
        while (notice := run_sync(partial(self.next, None))) is not None:
            yield notice

    async def __aiter__(self) -> AsyncIterator[Notice]:
        self.require_door(True, "'for'")
        while (notice := await self.next(None)) is not None:
            yield notice

    async def call(self, callback: Callable[[Notice], object]) -> None:
        """Call `callback` with each notice; an exception of the callback ends the subscription."""
        try:
            while (notice := await self.next(None)) is not None:
                result = callback(notice)
                if self.is_async and isawaitable(result):
                    await result
        except Exception as error:
            logger.exception("a subscription's callback raised; the subscription is closed")
            self.fail(error)
        except BaseException as error:
            self.fail(ListenerFailed(repr(error)))
            raise

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


class PostgresReaction:
    """A reaction: this program calls the function once for every entry, after it is committed."""

    def __init__(
        self,
        space: PostgresSpace,
        subscription: PostgresSubscription,
        function: Any,
        once: bool,
    ) -> None:
        self._space = space
        self._subscription = subscription
        self._function = function
        self._once = once
        self._seen = Seen()
        self._active = True
        self._error: Exception | None = None
        self.is_async = space.is_async

    def __repr__(self) -> str:
        return f"<a reaction in the space {self._space.name!r} at {self._space.database.where}>"

    @property
    def active(self) -> bool:
        """Will the function be called again?"""
        return self._active

    @property
    def error(self) -> Exception | None:
        """The last exception of the function, or the error that ended the reaction."""
        return self._error

    @dual_api
    async def cancel(self) -> None:
        """End the reaction."""
        self._active = False
        await self._subscription.leave(None)

    async def run(self, existing: list[Entry]) -> None:
        """React to the entries that are there, then to those that come."""
        try:
            for entry in existing:
                await self._react(entry)
            while self._active and (notice := await self._subscription.next(None)):
                await self._react(notice.subject)
        except SpaceClosed:
            pass
        except (PeerLost, JournalError) as error:
            self._error = error
            logger.warning("a reaction in the space %r ended: %s", self._space.name, error)
        finally:
            self._active = False
        with suppress(SpaceClosed):
            await self._subscription.leave(None)

    async def _react(self, entry: Entry) -> None:
        if not self._active or entry in self._seen:
            return
        self._seen.add(entry)
        try:
            txn = await self._space.begin(None)
            try:
                step = WeakStep(self._space, txn)
                result = self._function(thaw(entry.shape, entry.fields), step)
                if self.is_async and isawaitable(result):
                    await result
            except BaseException as error:
                await txn.leave(error)
                raise
            await txn.leave(None)
        except (PeerLost, SpaceClosed):
            raise
        except Exception as error:
            logger.exception("a reaction's function raised; what it did is undone")
            self._error = error
        else:
            if self._once:
                self._active = False
