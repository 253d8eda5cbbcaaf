"""A space in a PostgreSQL database. One implementation serves the blocking and the async API.

Every operation is a short transaction of the database, or part of the transaction that it is given.
Takes lock rows and skip those that others have locked, so that takers do not wait for each other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from tupelo.errors import BadArgument, LeaseLost, PeerLost, TupeloError, UnknownSpace
from tupelo.postgres import statements
from tupelo.postgres.driver import Database
from tupelo.postgres.indexing import Indexing
from tupelo.postgres.leases import PostgresLandlord, WrittenEntry
from tupelo.postgres.listening import WaitingOperation, channel_of, closed
from tupelo.postgres.log import LogReader
from tupelo.postgres.matching import TemplatePlanCache, keys_of
from tupelo.postgres.options import SpaceOptions, check_name, check_text
from tupelo.postgres.prepared import Backend, Row
from tupelo.postgres.searching import LAST, PostgresSearch, entry_of
from tupelo.postgres.sessions import PostgresMatchSet, PostgresSession
from tupelo.postgres.shapes import ShapeTable
from tupelo.postgres.subscriptions import PostgresSubscription
from tupelo.postgres.transactions import PostgresTransaction, in_hand
from tupelo.postgres.voting import DatabaseCapable, DatabaseSpace, read_prepared_name
from tupelo.postgres.writing import PostgresWrite
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.dual_api import DualHandle, dual_api
from tupelo.space.order import Fifo, Order
from tupelo.space.port import Transactional, check_entries
from tupelo.space.protocol import SpaceLike, names_of, takes_longer, takes_longer_to_write
from tupelo.space.query import check_count, check_delay, check_limit, check_position, check_wait
from tupelo.space.twophase import Outcome
from tupelo.values.change import Change, Notice
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import About, Entry, FrozenEntry, check_about, freeze, note_about
from tupelo.values.holder import Delayed, InHand
from tupelo.values.lease import ANY_LEASE, AsyncLease, Lease, check_lease
from tupelo.values.parts import ANY
from tupelo.values.scope import HERE, Coverage, Scope, check_coverage, check_scope
from tupelo.values.template import as_template

T = TypeVar("T")

logger = logging.getLogger("tupelo")

PostgresTxn = PostgresTransaction | Transactional | None

TRIM_MIN = 1_000
"""After so many writes of this program, or a quarter of what the log keeps, the log is trimmed."""


class PostgresSpace(DualHandle, SpaceLike, DatabaseSpace):
    """A space in a PostgreSQL database, with the methods of `tupelo.Space`, or of
    `tupelo.aio.Space` on the async API, where transactions, sessions and subscriptions are awaited
    too or used with `async with`. Functions run in this program: a `Where` and an order that is a
    function work, on entries that are fetched in batches."""

    _get_fast = staticmethod(takes_longer)
    _write_fast = staticmethod(takes_longer_to_write)

    def __init__(
        self,
        database: Database,
        name: str,
        clock: Clock | None,
        label: str,
        reconnect: float,
        agent: str,
    ) -> None:
        self.is_async = database.is_async
        self.database = database
        self.clock: Clock = clock or SystemClock()
        self.sql = statements.Statements(clock is not None)
        self.handles: set[Any] = set()
        self.id = 0
        self._channel = ""
        self.options = SpaceOptions()
        self.shapes = ShapeTable(self)
        self.tells_removals = False  # whether those who wait are told that an entry left
        self.reconnect = reconnect
        self.order: Order = Fifo()
        self._name = name
        self._agent = agent or uuid4().hex
        self.label = label
        self.plans = TemplatePlanCache()
        first = time.time_ns() // 1_000 if agent else 1  # The agent may have written before.
        self._next_n = itertools.count(first)
        self._next_token = itertools.count(first)
        self._writes = 0
        self.given_clock = clock
        self._closed = False
        self._landlord = PostgresLandlord(self)
        self._clock_offset = 0.0
        self.log = LogReader(self)
        self.indexing = Indexing(self)

    @classmethod
    async def opened(
        cls,
        conninfo: str,
        is_async: bool,
        name: str,
        options: SpaceOptions | None,
        create: bool,
        clock: Clock | None,
        label: str,
        reconnect: float,
        agent: str = "",
    ) -> PostgresSpace:
        """Open the space of this name; unless `create`, it must exist. The `options` are those of
        a new space. Without an `agent`, the program gets a new id."""
        database = await Database.shared(conninfo, is_async)
        try:
            space = cls(database, name, clock, label, reconnect, agent)
            await space._open(options, create)
        except BaseException:
            await database.release()
            raise
        return space

    async def _open(self, options: SpaceOptions | None, create: bool) -> None:
        database, name, asked = self.database, self._name, options or SpaceOptions()
        async with database.connection() as link:
            find = "SELECT id, options::text FROM tupelo.spaces WHERE name = %(name)s"
            found = await database.run(link, find, {"name": name})
            if not found and not create:
                raise UnknownSpace(name, where=f"in the database {database.where}")
            if not found:
                await database.run(
                    link,
                    "INSERT INTO tupelo.spaces (name, options, removals) "
                    "VALUES (%(name)s, %(options)s::jsonb, %(removals)s) ON CONFLICT DO NOTHING",
                    {
                        "name": name,
                        "options": msgspec.json.encode(asked).decode(),
                        "removals": asked.needs_removals,
                    },
                )
                found = await database.run(link, find, {"name": name})
            self.id, kept = found[0]
            self._channel = channel_of(self.id)
            self.options = msgspec.json.decode(kept, type=SpaceOptions)
            if options is not None and options != self.options:
                raise BadArgument("options", f"those that the space has: {self.options}", options)
            self.order = self.options.make_order()
            await self.refresh(link)
            await self.look_at_clock(link)
            if self.options.log_keep is not None:
                # Programs that end after a few writes must not leave the trim to each other.
                ((length,),) = await self.run(link, self.sql.length)
                self._writes = max(0, length - self.options.log_keep)

    @property
    def name(self) -> str:
        """The name of the space."""
        return self._name

    @property
    def agent(self) -> str:
        """The id under which this program writes here."""
        return self._agent

    @property
    def engine_id(self) -> str:
        """The same for all programs that use the space."""
        return f"{self.database.identity}/{self.id}"

    @property
    def host(self) -> Any:
        """A description of the server, a dict; awaited on the async API."""
        return self.dual_call(self._describe)

    def space(self, name: str, password: str | None = None, create: bool = True) -> Any:
        """Another space of the same database; unless `create`, it must exist."""
        if password is not None:
            raise BadArgument("password", "left out: the database has its own users")
        check_name(name)
        where = (self.database.conninfo, self.is_async)
        given = (self.given_clock, self.label, self.reconnect)
        return self.dual_call(PostgresSpace.opened, *where, name, None, create, *given)

    async def _describe(self) -> dict[str, Any]:
        ((version, now),) = await self.execute(f"SELECT version(), {self.sql.now}")
        prepared = await self.execute(statements.ALL_PREPARED)
        return {
            "name": self.database.where,
            "version": version,
            "now": now,
            "prepared": [{"name": row[0], "since": row[1], "user": row[2]} for row in prepared],
        }

    # Statements

    def require_open(self) -> None:
        """Raise SpaceClosed if the space was closed here."""
        self.database.require_own()
        if self._closed:
            raise closed(self._name)

    async def run(self, link: Any, statement: str, **values: Any) -> list[Row]:
        """Execute a statement about this space."""
        values["space"] = self.id
        values["channel"] = self._channel
        if self.given_clock is not None:
            values["now"] = self.given_clock.now()
        return await self.database.run(link, statement, values)

    def change(
        self,
        kind: str,
        txn: str | None = None,
        search: PostgresSearch | None = None,
        token: int | None = None,
    ) -> dict[str, Any]:
        """The parameters of a change in the log."""
        return {
            "kind": kind,
            "agent": self._agent,
            "agent_name": self.label,
            "txn": txn,
            "waited": 0.0 if search is None else search.waited,
            "session": None if search is None else search.session,
            "token": token if search is None else search.token,
        }

    def new_token(self) -> int:
        """A number for the changes of one operation of this object."""
        return next(self._next_token)

    async def reading(self, body: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        """Run statements that may be run twice; they are repeated after a lost connection."""

        async def once() -> T:
            async with self.database.connection() as link:
                return await body(link)

        self.require_open()
        return await self.database.patiently(once, self.reconnect)

    async def execute(self, statement: str, **values: Any) -> list[Row]:
        """Execute one statement that may be executed twice; it is after a lost connection."""
        return await self.reading(partial(self.run, statement=statement, **values))

    async def atomic(
        self,
        body: Callable[[Any], Coroutine[Any, Any, tuple[T, Any]]],
        token: int | None = None,
        even_closed: bool = False,
    ) -> T:
        """Run statements as one transaction and return the first part of their result. The second
        is None to roll back. After a lost connection the statements are repeated, unless the log
        has changes with their `token`; without one they may be done twice.

        The server cannot be asked for the outcome: after a crash it gives the id of a transaction
        that was not committed to another one."""

        async def once() -> T:
            async with self.database.connection() as link:
                backend = link.backend
                await self.database.run(link, "BEGIN")
                try:
                    value, changed = await body(link)
                    if changed is None:
                        await self.database.run(link, "ROLLBACK")
                        return value
                except BaseException:
                    await self.database.roll_back(link)
                    raise
                try:
                    await self.database.run(link, "COMMIT")
                except PeerLost:
                    if token is None or not await self.changed_by(token, backend):
                        raise
            return value

        if not even_closed:
            self.require_open()
        return await self.database.patiently(once, self.reconnect)

    async def at_once(
        self, statement: str, search: PostgresSearch | None = None, **values: Any
    ) -> list[Row]:
        """Execute one statement that is its own transaction, and logs its changes with a token. If
        its connection is lost, the log tells whether it was done; otherwise it is repeated."""
        self.require_open()
        values["token"] = token = self.new_token() if search is None else search.token

        async def once() -> list[Row]:
            async with self.database.connection() as link:
                backend = link.backend
                if search is not None:
                    search.link, search.backend = link, backend
                try:
                    return await self.run(link, statement, **values)
                except PeerLost:
                    done = await self.changed_by(token, backend)
                    if not done:
                        raise
                    return done

        return await self.database.patiently(once, self.reconnect)

    async def changed_by(self, token: int | None, backend: Backend | None) -> list[Row]:
        """The entries of the changes with a token, when the server has ended the connection."""

        async def ask(link: Any) -> list[Row]:
            return await self.run(link, self.sql.done, agent=self._agent, token=token)

        return await self.database.when_ended(backend, ask, self.reconnect)

    async def within(
        self, txn: PostgresTransaction | None, body: Any, changes: bool, token: int | None = None
    ) -> Any:
        """Run statements in a transaction, or as one of their own, whose changes have a token."""
        if txn is not None:
            return await txn.run(body)
        if changes:
            return await self.atomic(body, token)

        async def value(link: Any) -> Any:
            return (await body(link))[0]

        return await self.reading(value)

    async def branch(self, txn: PostgresTxn) -> PostgresTransaction | None:
        """The transaction for the argument `txn=`; one over several spaces has a branch here.
        BadArgument if it is of another space."""
        if txn is not None and isinstance(txn, DatabaseCapable):
            txn = await txn.branch_in_database(self)
        return self._own(txn)

    def _own(self, txn: PostgresTxn) -> PostgresTransaction | None:
        self.require_open()
        if txn is None:
            return None
        if not isinstance(txn, PostgresTransaction) or txn.space is not self:
            raise BadArgument("txn", f"a transaction of the space {self._name!r}", txn)
        txn.require()
        return txn

    # What the server knows of it

    async def refresh(self, link: Any) -> None:
        """Get what other programs have changed: new shapes, and whether removals are told.
        UnknownSpace if the space is gone, or this user may not use it any more."""
        await self.shapes.load(link)
        rows = await self.run(link, "SELECT removals FROM tupelo.spaces WHERE id = %(space)s")
        if not rows:
            raise UnknownSpace(self._name, where=f"in the database {self.database.where}")
        ((self.tells_removals,),) = rows

    async def look_at_clock(self, link: Any) -> None:
        rows = await self.run(link, f"SELECT {self.sql.now}")
        self._clock_offset = rows[0][0] - self.clock.now()

    def server_time(self) -> float:
        """The time of the clock that ends leases, as it was last known here."""
        return self.clock.now() + self._clock_offset

    def lease_of(self, thing: Any) -> Lease | AsyncLease:
        """The lease of a handle or a written entry, for the API in use."""
        return AsyncLease(self._landlord, thing) if self.is_async else Lease(self._landlord, thing)

    async def tidy(self) -> None:
        """Remove entries whose lease has ended, and show those whose delay has: on a connection of
        its own, so that it stays if the caller's transaction is undone."""

        async def tidy(link: Any) -> None:
            while True:
                gone = await self.run(link, self.sql.expire, **self.change("expired"))
                shown = await self.run(link, self.sql.reveal, **self.change("written"))
                if gone[0][0] + shown[0][0] == 0:
                    return

        await self.reading(tidy)

    # Writing

    @dual_api
    async def _write(
        self,
        entry: object,
        lease: float | None,
        txn: PostgresTxn,
        at: Any,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> Lease | AsyncLease:
        item = freeze(entry)
        if lease is not None:
            lease = check_lease(lease)
        places = None if at is None else [at]
        return (await self.write_items([item], [lease], txn, places, wait, to, delay))[0]

    @dual_api
    async def _write_all(
        self,
        entries: Iterable[object],
        lease: float | list[float | None] | None,
        txn: PostgresTxn,
        at: Sequence[Any] | None,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> list[Lease | AsyncLease]:
        items, leases = check_entries(entries, lease, at)
        each = leases if isinstance(leases, list) else [leases] * len(items)
        return await self.write_items(items, each, txn, at, wait, to, delay)

    async def write_items(
        self,
        items: list[FrozenEntry],
        leases: list[float | None],
        txn: PostgresTxn,
        at: Any,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> list[Lease | AsyncLease]:
        """Write entries, each with a shape and a lease."""
        check_wait(wait)
        if to is not None and (not isinstance(to, str) or not to):
            raise BadArgument("to", "the id of an agent, or None", to)
        if to is not None:
            check_text("to", "the id of an agent", to)
        delay = check_delay(delay, to)
        if at is not None:
            raise BadArgument("at", f"left out: the order is {self.order!r}", at)
        branch = await self.branch(txn)
        if not items:
            return []
        rows = []
        for (shape, fields), lease in zip(items, leases, strict=True):
            number = self.shapes.numbers.get(shape) or await self.shapes.register(shape)
            body = encode_entry(shape, fields)
            leased = None if lease == ANY_LEASE else lease
            rows.append((number, keys_of(fields), body, next(self._next_n), leased))
        written = await PostgresWrite(self, rows, branch, delay, to).run(wait)
        self._writes += len(items)
        if self._writes >= max(TRIM_MIN, (self.options.log_keep or 0) // 4) and branch is None:
            self._writes = 0
            try:
                await self.log.trim_by_policy()
            except TupeloError as error:  # The entries are written all the same.
                logger.warning("the log of %r was not trimmed: %s", self, error)
        return [self.lease_of(one) for one in written]

    # Reading and taking

    @dual_api
    async def _get(
        self,
        template: object,
        take: bool,
        wait: float | None,
        many: bool,
        limit: int | None,
        txn: PostgresTxn,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None,
        coverage: Coverage | None,
        about: list[About] | None = None,
    ) -> Any:
        check_about(about)
        self.require_here(scope, coverage)
        search = PostgresSearch(self, template, take, many, limit, order, bool(if_exists))
        try:
            found = await search.find(wait, txn)
            note_about(found, about)
            values = [entry.value for entry in found]
            return values if many else values[0] if values else None
        except (TupeloError, GeneratorExit):
            raise
        except BaseException:  # cancelled, KeyboardInterrupt: nobody gets the answer
            await search.undo()
            raise

    # For a host that serves the space

    async def fetch(
        self,
        template: object,
        take: bool,
        wait: float | None,
        many: bool,
        limit: int | None,
        txn: PostgresTransaction | None,
        order: Order | None,
        if_exists: bool,
        session: PostgresSession | None,
    ) -> list[Entry]:
        """The entries of a read, or of a take in a transaction, also those of classes that this
        program does not have."""
        if session is not None:
            search = session.search(template, many, limit)
        else:
            search = PostgresSearch(self, template, take, many, limit, order, if_exists)
        search.known, search.lasting = False, txn is None
        try:
            return await search.find(wait, txn, session)
        except asyncio.CancelledError:
            await search.undo()
            raise

    async def reserve(
        self,
        template: object,
        wait: float | None,
        many: bool,
        limit: int | None,
        order: Order | None,
        if_exists: bool,
    ) -> tuple[PostgresTransaction, list[Entry]] | None:
        """Take entries in a transaction that begins when there are any: who waits needs no
        connection. Whoever gets it commits or aborts it."""
        search = PostgresSearch(self, template, True, many, limit, order, if_exists)
        search.known = False
        return await search.reserve(wait)

    async def remove(
        self, link: Any, ids: list[int], kind: str, token: int | None = None, tells: bool = True
    ) -> list[Row]:
        """Remove entries that nobody has in hand, with this change in the log."""
        change = self.change(kind, token=token)
        return await self.run(link, self.sql.delete, ids=ids, logs=True, tells=tells, **change)

    async def settle(self, rows: list[Row]) -> int:
        """Remove entries whose taker has them, after their transaction was lost and gave them back.
        Returns how many were still there."""

        token = self.new_token()

        async def remove(link: Any) -> tuple[int, Any]:
            gone = await self.remove(link, [row[0] for row in rows], "taken", token)
            return len(gone), gone or None

        return await self.atomic(remove, token, even_closed=True)

    async def put_back(self, rows: list[Row]) -> None:
        """Return entries that were taken for good, each to its place."""
        token = self.new_token()

        async def insert(link: Any) -> tuple[None, bool]:
            for id_, _, arrival, body, origin, n, expires, _, count, to in (
                row[:10] for row in rows
            ):
                shape, fields = decode_entry(bytes(body))
                await self.run(
                    link,
                    self.sql.put_back,
                    id=id_,
                    shape=self.shapes.numbers[shape],
                    arrival=arrival,
                    keys=keys_of(fields),
                    body=body,
                    origin=origin,
                    n=n,
                    expires=expires,
                    deliveries=count,
                    to=to,
                    **self.change("returned", token=token),
                )
            return None, True

        await self.atomic(insert, token, even_closed=True)

    async def existing(self, ids: list[int]) -> set[int]:
        """Those of these entries that are there, taken by a transaction or not."""

        there = "SELECT id FROM tupelo.entries WHERE id = ANY(%(ids)s::bigint[])"
        return {row[0] for row in await self.execute(there, ids=ids)}

    async def written_entry(self, n: int, id_: int) -> WrittenEntry:
        """An entry that this agent has written. LeaseLost if it is gone."""

        rows = await self.execute(
            "SELECT expires FROM tupelo.entries WHERE id = %(id)s AND space = %(space)s "
            "AND origin = %(agent)s AND n = %(n)s",
            id=id_,
            agent=self._agent,
            n=n,
        )
        if not rows:
            raise LeaseLost("the entry is gone: it was taken, cancelled or has expired")
        return WrittenEntry(id_, rows[0][0], n=n)

    def require_here(self, scope: Scope | None, coverage: Coverage | None = None) -> None:
        """Check a scope: the space is in one place."""
        check_scope(scope)
        check_coverage(coverage)
        if scope is not None and scope != HERE:
            raise BadArgument("scope", "HERE or None: the space is in one database", scope)
        if coverage is not None:
            coverage.fill([self.database.where])

    @dual_api
    async def _count(
        self, template: object, txn: PostgresTxn, scope: Scope | None, coverage: Coverage | None
    ) -> int:
        self.require_here(scope, coverage)
        search = PostgresSearch(self, template)
        search.txn = await self.branch(txn)
        return await search.count()

    @dual_api
    async def _match_set(
        self, template: object, limit: int | None, txn: PostgresTxn, lease: float | None
    ) -> PostgresMatchSet:
        check_limit(limit)
        seconds = check_lease(lease)
        search = PostgresSearch(self, template, limit=limit, order=Fifo())
        search.known, search.txn = False, await self.branch(txn)
        return PostgresMatchSet(self, await search.look(), search.txn, seconds)

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Any:
        return self.dual_call(self.begin, lease)

    def transactions(self) -> list[PostgresTransaction]:
        """The open transactions of this program, nested ones too, and what it has prepared."""
        return [one for one in list(self.handles) if isinstance(one, PostgresTransaction)]

    async def end_expired(self) -> None:
        """Undo the transactions of this program whose lease has ended, if the alarm is late."""
        for one in self.transactions():
            if one.ran_out:
                await one.expired()

    async def begin(
        self,
        lease: float | None,
        parent: PostgresTransaction | None = None,
        beside: PostgresTransaction | None = None,
    ) -> PostgresTransaction:
        """Begin a transaction; nested if it has a `parent`, or on the connection of one in another
        space, `beside` which it will end."""
        self.require_open()
        return await PostgresTransaction.begun(self, check_lease(lease), parent, beside)

    @dual_api
    async def in_doubt(self) -> list[PostgresTransaction]:
        self.require_open()
        return await self.prepared()

    async def prepared_ids(self) -> set[str]:
        """The ids of the transactions that are prepared in any space of the database."""
        rows = await self.execute(statements.ALL_PREPARED)
        return {read_prepared_name(row[0])[1] for row in rows}

    async def prepared(self) -> list[PostgresTransaction]:
        """The transactions that are prepared here, of all programs."""
        with self.database.unlimited():
            rows = await self.execute(statements.PREPARED)
        ours = {one.name: one for one in self.transactions() if one.state == "prepared"}
        return [
            ours.get(name)
            or PostgresTransaction.in_doubt(self, name, read_prepared_name(name)[1], xid)
            for name, xid in rows
        ]

    # The decisions that are recorded here, about transactions over several spaces

    async def outcome(self, txn_id: str, branch: str) -> Outcome | None:
        """What was decided for a branch; None while it is not decided."""

        async def ask(link: Any) -> Outcome | None:
            if not (await self.run(link, statements.IS_DECIDED, txn=txn_id))[0][0]:
                return None
            ((is_recorded,),) = await self.run(link, statements.HAS_DECISION, txn=branch)
            return "committed" if is_recorded else "aborted"

        return await self.reading(ask)

    async def forget_decision(self, branch: str, participant: str) -> None:
        """This participant has committed."""
        async with self.database.connection() as link:
            forget = statements.FORGET_DECISION
            await self.run(link, forget, txn=branch, participant=participant)

    @dual_api
    async def in_hand(self, template: object = ANY) -> list[InHand]:
        self.require_open()
        return await in_hand(self, template)

    @dual_api
    async def delayed(
        self, template: object = ANY, *, limit: int | None = None, cancel: bool = False
    ) -> Delayed:
        count, found = await self.delayed_entries(template, limit, cancel)
        return Delayed(count, [(at, entry.value) for at, entry in found])

    async def delayed_entries(
        self, template: object, limit: int | None, cancel: bool
    ) -> tuple[int, list[tuple[float, Entry]]]:
        """`delayed`, with the entries themselves."""
        check_limit(limit)
        wanted = as_template(template)
        self.require_open()
        await self.tidy()
        token = self.new_token()

        async def look(link: Any) -> tuple[tuple[int, list[tuple[float, Entry]]], Any]:
            rows = await self.run(link, self.sql.delayed)
            entries = [(row[7], row[0], entry_of(row, known=False)) for row in rows]
            found = [one for one in entries if wanted.admits(one[2].shape, one[2].fields)]
            first = found[:limit]
            if not cancel:
                return (len(found), [(at, entry) for at, _, entry in first]), None
            gone = await self.remove(link, [id_ for _, id_, _ in first], "cancelled", token)
            return (len(gone), []), True

        answer: tuple[int, list[tuple[float, Entry]]]
        answer = await self.within(None, look, bool(cancel), token)
        return answer

    def session(self, *, lease: float | None = None) -> Any:
        return self.dual_call(self.open_session, lease)

    async def open_session(
        self, lease: float | None, like: PostgresSession | None = None
    ) -> PostgresSession:
        """Open a session, as a copy of the session `like` if given."""
        seconds = check_lease(lease)
        self.require_open()
        return PostgresSession(self, seconds, like)

    # Subscriptions, reactions

    def _subscribe(
        self,
        template: object,
        callback: Callable[[Notice], object] | None,
        lease: float | None,
        txn: PostgresTxn,
        handback: Any,
        backlog_max: int,
        available: bool,
        returned: bool,
        removed: bool,
        scope: Scope | None,
    ) -> Any:
        if callback is not None:
            self.require_function("callback", callback, "a notice")
        check_count(backlog_max, "backlog_max")
        self.require_here(scope)
        seconds = check_lease(lease)
        if isinstance(txn, DatabaseCapable) or self._own(txn) is not None:
            raise BadArgument("txn", "None: notices come from the log of committed changes", txn)
        what = (template, available, returned, removed)
        return self.dual_call(
            self.log.open_subscription, what, seconds, handback, backlog_max, callback
        )

    def _react(
        self,
        template: object,
        function: Any,
        once: bool,
        existing: bool,
        scope: Scope | None,
    ) -> Any:
        self.require_function("function", function, "an entry and a step")
        self.require_here(scope)
        return self.dual_call(self.log.react, template, function, bool(once), bool(existing))

    # The log, closing

    @dual_api
    async def changes(self, *, since: int = 0, limit: int | None = None) -> list[Change]:
        check_position("since", since)
        check_limit(limit)
        return await self.log.read(min(since, LAST), limit)

    @dual_api
    async def trim(self, *, before: int) -> None:
        check_position("before", before)
        await self.log.trim(min(before, LAST))

    @dual_api
    async def compact(self) -> None:
        await self.log.trim_by_policy()

    @dual_api
    async def close(self) -> None:
        await self.leave(None)

    async def leave(self, error: BaseException | None) -> None:
        """Close the space here: its handles end, and waiting calls get SpaceClosed."""
        if self._closed or self.database.is_inherited:
            return
        for handle in list(self.handles):
            if isinstance(handle, PostgresSubscription):
                await handle.keep_backlog()
        self._closed = True
        async with AsyncExitStack() as ends:  # All of them, also if one is interrupted.
            ends.push_async_callback(self.database.release)
            ends.callback(self.database.listener.forget, self.id)
            for handle in list(self.handles):
                if isinstance(handle, WaitingOperation):
                    handle.wake()
                else:
                    ends.push_async_callback(handle.end_with_space)

    def __dir__(self) -> list[str]:
        return names_of(SpaceLike, "agent", "host", "is_async", "space")

    def __repr__(self) -> str:
        door = "aio." if self.is_async else ""
        return f"{door}PostgresSpace({self._name!r}, {self.database.where!r})"
