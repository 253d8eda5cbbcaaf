"""A space in a PostgreSQL database. One implementation serves the blocking and the async API.

Every operation is a short transaction of the database, or part of the transaction that it is given.
Takes lock rows and skip those that others have locked, so that takers do not wait for each other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from tupelo.errors import (
    BadArgument,
    CannotReach,
    CannotSend,
    Deadlock,
    JournalFailed,
    LeaseLost,
    PeerLost,
    SpaceFull,
    TupeloError,
    UnknownSpace,
)
from tupelo.postgres import statements
from tupelo.postgres.driver import IDLE, Database, quoted, sqlstate
from tupelo.postgres.handles import (
    PostgresLandlord,
    PostgresMatchSet,
    PostgresSession,
    PostgresSubscription,
    PostgresTransaction,
    WrittenEntry,
)
from tupelo.postgres.indexing import Indexing
from tupelo.postgres.listening import WaitingOperation, channel_of, closed
from tupelo.postgres.log import LogReader
from tupelo.postgres.matching import (
    Targets,
    TemplatePlan,
    TemplatePlanCache,
    array_of,
    keys_of,
    read_signature,
    signature_of,
)
from tupelo.postgres.options import SpaceOptions
from tupelo.postgres.prepared import Backend, Row
from tupelo.postgres.statements import Rank
from tupelo.postgres.voting import DatabaseCapable, DatabaseSpace, read_prepared_name
from tupelo.space.capacity import full_text
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.dual_api import DualHandle, dual_api
from tupelo.space.fetching import FetchingReaction
from tupelo.space.order import Fifo, Lifo, Order, arranged, by_field, needed
from tupelo.space.port import Transactional, check_entries
from tupelo.space.protocol import SpaceLike, names_of, takes_longer, takes_longer_to_write
from tupelo.space.query import (
    check_count,
    check_delay,
    check_limit,
    check_order,
    check_position,
    check_wait,
)
from tupelo.space.session import Seen
from tupelo.space.twophase import Outcome
from tupelo.values.change import Change, Notice
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import (
    About,
    Entry,
    FrozenEntry,
    Shape,
    check_about,
    freeze,
    note_about,
    require_known,
)
from tupelo.values.holder import Delayed, InHand
from tupelo.values.kind import is_at_hand
from tupelo.values.lease import ANY_LEASE, AsyncLease, Lease, check_lease
from tupelo.values.parts import ANY
from tupelo.values.scope import HERE, Coverage, Scope, check_coverage, check_scope
from tupelo.values.template import as_template

T = TypeVar("T")

logger = logging.getLogger("tupelo")

PostgresTxn = PostgresTransaction | Transactional | None

BATCH = 256
"""So many entries are fetched at once to be checked here."""
WRITE_MAX = 5_000
"""So many entries are written by one statement,"""
WRITE_BYTES_MAX = 8_000_000
"""unless their bodies are longer than this."""
LAST = (1 << 63) - 1
HOLDER_POLL_SECONDS = 0.5
"""How often a waiting operation looks whether another program, which has its match in hand, is
gone: the server does not tell that."""
OUTCOME_SECONDS = 5.0
"""So long a take that finds nothing waits for other takes, under way, of all that matches."""
REACTION_BACKLOG_MAX = 10_000
"""So many notices wait for a reaction at most."""
NAME_BYTES_MAX = 2_000
"""The index of the names of spaces takes longer ones only by chance."""
TRIM_MIN = 1_000
"""After so many writes of this program, or a quarter of what the log keeps, the log is trimmed."""


class PostgresSearch:
    """One read or take: what it wants, and how."""

    waited = 0.0
    known = True  # whether entries of classes that this program lacks are refused
    lasting = False  # whether entries that are gone after the look do not count
    tidied = False
    whole = False  # whether there are too many matches for one statement
    unranked = False  # whether the order cannot be left to the server
    skipped = False  # whether others have entries in hand that it wants
    waiter: WaitingOperation | None = None
    token: int | None = None  # of a take without a transaction, in the log
    link: Any = None  # where it takes, and its process in the server
    backend: Backend | None = None
    txn: PostgresTransaction | None = None
    took = False  # within that transaction

    def __init__(
        self,
        plan: TemplatePlan,
        take: bool,
        many: bool,
        limit: int | None,
        order: Order | None = None,
        if_exists: bool = False,
        seen: Seen | None = None,
        session: str | None = None,
    ) -> None:
        self.template = plan.template
        self.targets = plan.targets
        self.take = take
        self.many = many
        self.limit = limit if many else 1
        self.order = order
        self.if_exists = if_exists
        self.seen = seen
        self.session = session
        self.chances: set[tuple[int, int]] = set()


class GiveWay(Exception):
    """The found entry is for one who waits for longer."""


class SpaceState(msgspec.Struct):
    """What a look tells beside its matches: the number of shapes in the space, whether entries
    must expire or appear, and whether transactions of others have entries in hand."""

    shapes: int
    late: bool
    held: bool


class PostgresSpace(DualHandle, SpaceLike, DatabaseSpace):
    """A space in a PostgreSQL database, with the methods of `tupelo.Space`, or of
    `tupelo.aio.Space` on the async API, where transactions, sessions and subscriptions are awaited
    too or used with `async with`. Functions run in this program: a `Where` and an order that is a
    function work, on entries that are fetched in batches."""

    _get_fast = staticmethod(takes_longer)
    _write_fast = staticmethod(takes_longer_to_write)

    def __init__(
        self, database: Database, name: str, clock: Clock | None, label: str, agent: str = ""
    ) -> None:
        self.is_async = database.is_async
        self.database = database
        self.clock: Clock = clock or SystemClock()
        self.sql = statements.Statements(clock is not None)
        self.handles: set[Any] = set()
        self.id = 0
        self._channel = ""
        self.options = SpaceOptions()
        self.shapes: list[Shape] = []  # replaced, never changed: searches hold it
        self.tells_removals = False  # whether those who wait are told that an entry left
        self._shapes_lock = threading.Lock()
        self.reconnect = 30.0
        self._order: Order = Fifo()
        self._numbers: dict[Shape, int] = {}
        self._name = name
        self._agent = agent or uuid4().hex
        self.label = label
        self._plans = TemplatePlanCache()
        first = time.time_ns() // 1_000 if agent else 1  # The agent may have written before.
        self._next_n = itertools.count(first)
        self._next_token = itertools.count(first)
        self._writes = 0
        self._given_clock = clock
        self._closed = False
        self._landlord = PostgresLandlord(self)
        self._clock_offset = 0.0
        self.log = LogReader(self)
        self.indexing = Indexing(self)

    @classmethod
    async def opened(
        cls,
        database: Database,
        name: str,
        options: SpaceOptions | None,
        create: bool,
        clock: Clock | None = None,
        label: str = "",
        reconnect: float = 30.0,
        agent: str = "",
    ) -> PostgresSpace:
        """Open the space of this name; unless `create`, it must exist. The `options` are those of
        a new space. Without an `agent`, the program gets a new id."""
        space = cls(database, name, clock, label, agent)
        space.reconnect = reconnect
        asked = options or SpaceOptions()
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
            space.id, kept = found[0]
            space._channel = channel_of(space.id)
            space.options = msgspec.json.decode(kept, type=SpaceOptions)
            if options is not None and options != space.options:
                raise BadArgument("options", f"those that the space has: {space.options}", options)
            space._order = space.options.make_order()
            await space._load_shapes(link)
            await space.look_at_clock(link)
            if space.options.log_keep is not None:
                # Programs that end after a few writes must not leave the trim to each other.
                ((length,),) = await space.run(link, space.sql.length)
                space._writes = max(0, length - space.options.log_keep)
        return space

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
        return self.dual_call(self._open_other, name, create)

    async def _open_other(self, name: str, create: bool) -> PostgresSpace:
        database = await Database.shared(self.database.conninfo, self.is_async)
        try:
            return await PostgresSpace.opened(
                database, name, None, create, self._given_clock, self.label, self.reconnect
            )
        except BaseException:
            await database.release()
            raise

    async def _describe(self) -> dict[str, Any]:
        async def describe(link: Any) -> dict[str, Any]:
            ((version, now),) = await self.run(link, f"SELECT version(), {self.sql.now}")
            prepared = await self.run(link, statements.ALL_PREPARED)
            return {
                "name": self.database.where,
                "version": version,
                "now": now,
                "prepared": [{"name": row[0], "since": row[1], "user": row[2]} for row in prepared],
            }

        return await self.reading(describe)

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
        if self._given_clock is not None:
            values["now"] = self._given_clock.now()
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
        return await self._patiently(once)

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
                    await self.roll_back(link)
                    raise
                try:
                    await self.database.run(link, "COMMIT")
                except PeerLost:
                    if token is None or not await self._done(backend, token):
                        raise
            return value

        if not even_closed:
            self.require_open()
        return await self._patiently(once)

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
                    done = await self._done(backend, token)
                    if not done:
                        raise
                    return done

        return await self._patiently(once)

    async def _done(self, backend: Backend | None, token: int | None) -> list[Row]:
        """The entries of the changes with a token, when the server has ended the connection."""

        async def ask(link: Any) -> list[Row]:
            return await self.run(link, self.sql.done, agent=self._agent, token=token)

        return await self.when_ended(backend, ask)

    async def when_ended(
        self, backend: Backend | None, ask: Callable[[Any], Coroutine[Any, Any, T]]
    ) -> T:
        """Ask the server for an outcome when it has ended a connection that was lost here."""
        give_up = time.monotonic() + self.reconnect
        while time.monotonic() < give_up:
            with suppress(PeerLost, CannotReach):
                async with self.database.connection() as link:
                    if backend is None or not await self._is_at_work(link, *backend):
                        return await ask(link)
            await self.pause(0.05)
        raise self._in_doubt("an operation")

    async def _is_at_work(self, link: Any, pid: int, began: float) -> bool:
        """Whether a process of the server is still there."""
        statement = (
            "SELECT FROM pg_stat_activity WHERE pid = %(pid)s "
            "AND extract(epoch FROM backend_start)::float8 = %(began)s"
        )
        return bool(await self.run(link, statement, pid=pid, began=began))

    def _in_doubt(self, during: str) -> PeerLost:
        peer = f"PostgreSQL at {self.database.where}"
        return PeerLost(peer, during, "its outcome is not known", in_doubt=True)

    async def roll_back(self, link: Any) -> None:
        """Roll back, if the connection is there; otherwise the server does."""
        try:
            if not link.closed:
                await self.database.run(link, "ROLLBACK")
        except PeerLost:
            return

    async def _patiently(self, once: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat what was not done because of a lost connection, because there is none now, or
        because of a deadlock in the server, which has ended with it."""
        give_up: float | None = None
        while True:
            try:
                return await once()
            except (PeerLost, CannotReach, Deadlock) as lost:
                now = time.monotonic()
                give_up = give_up or now + self.reconnect
                if getattr(lost, "in_doubt", False) or now >= give_up:
                    raise
                await self.pause(0.05)

    async def pause(self, seconds: float) -> None:
        """Wait a moment of real time."""
        waiter = self.database.new_waiter()
        cancel = SystemClock().call_at(SystemClock().now() + seconds, waiter.wake)
        try:
            await self.database.sleep(waiter)
        finally:
            cancel()

    async def was_committed(self, backend: Backend | None, txns: list[str]) -> bool:
        """Whether one of these transactions, whose connection was lost while it committed, has left
        changes in the log, or decisions."""

        async def ask(link: Any) -> list[Row]:
            return await self.run(link, statements.WAS_COMMITTED, txns=txns)

        return bool((await self.when_ended(backend, ask))[0][0])

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
        self.require_open()
        if isinstance(txn, DatabaseCapable):
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

    # Shapes, time

    async def _load_shapes(self, link: Any) -> None:
        rows = await self.run(
            link,
            "SELECT number, signature FROM tupelo.shapes "
            "WHERE space = %(space)s AND number > %(known)s ORDER BY number",
            known=len(self.shapes),
        )
        removals = "SELECT removals FROM tupelo.spaces WHERE id = %(space)s"
        ((self.tells_removals,),) = await self.run(link, removals)
        found = [(number, read_signature(signature)) for number, signature in rows]
        with self._shapes_lock:
            for number, shape in found:
                if number == len(self.shapes) + 1:  # Another operation may have loaded it.
                    self.shapes = [*self.shapes, shape]
                    self._numbers[shape] = number

    async def _register(self, shape: Shape) -> int:
        """The number of a new shape. It has its own transaction: an entry is never visible before
        its shape."""

        async def register(link: Any) -> tuple[None, str]:
            await self.run(link, "SELECT FROM tupelo.spaces WHERE id = %(space)s FOR NO KEY UPDATE")
            rows = await self.run(
                link,
                """
                WITH new AS (
                    INSERT INTO tupelo.shapes (space, number, signature)
                    SELECT id, shapes + 1, %(signature)s FROM tupelo.spaces WHERE id = %(space)s
                    ON CONFLICT DO NOTHING RETURNING number
                ), counted AS (
                    UPDATE tupelo.spaces SET shapes = shapes + 1
                    WHERE id = %(space)s AND EXISTS (SELECT FROM new)
                )
                SELECT pg_current_xact_id()::text
                """,
                signature=signature_of(shape),
            )
            return None, rows[0][0]

        await self.atomic(register)
        await self.reading(self._load_shapes)  # Only what is committed keeps its number.
        return self._numbers[shape]

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
            raise BadArgument("at", f"left out: the order is {self._order!r}", at)
        branch = await self.branch(txn)
        if not items:
            return []
        rows = []
        for (shape, fields), lease in zip(items, leases, strict=True):
            number = self._numbers.get(shape) or await self._register(shape)
            body = encode_entry(shape, fields)
            leased = None if lease == ANY_LEASE else lease
            rows.append((number, keys_of(fields), body, next(self._next_n), leased))
        parts = [self._to_write(part, delay, to) for part in _parts(rows)]
        if len(parts) == 1 and branch is None and not self.options.bounded:
            statement = self.sql.write if len(rows) == 1 else self.sql.write_many
            found = await self.at_once(statement, **parts[0])
            written = [WrittenEntry(row[0], row[6], n=row[5]) for row in found]
        else:
            bodies = [row[2] for row in rows] if self.options.bounded else []
            written = await self._until_room(parts, bodies, branch, wait)
        self._writes += len(items)
        if self._writes >= max(TRIM_MIN, (self.options.log_keep or 0) // 4) and branch is None:
            self._writes = 0
            try:
                await self.log.trim_by_policy()
            except TupeloError as error:  # The entries are written all the same.
                logger.warning("the log of %r was not trimmed: %s", self, error)
        return [self.lease_of(one) for one in written]

    async def _insert(
        self,
        link: Any,
        parts: list[dict[str, Any]],
        txn: PostgresTransaction | None,
        token: int,
    ) -> list[WrittenEntry]:
        """Write entries; in a transaction they are logged, and told, when it commits."""
        sql, written = self.sql, []
        if txn is not None:
            await txn.hold(link)
            one, many = sql.write_later, sql.write_many_later
        else:
            one, many = sql.write, sql.write_many
        for part in parts:
            written += await self.run(link, one if "n" in part else many, token=token, **part)
        if txn is not None:
            txn.wrote(written)
        return [WrittenEntry(row[0], row[6], txn, row[5]) for row in written]

    def _to_write(
        self, rows: list[tuple[Any, ...]], delay: float | None, to: str | None
    ) -> dict[str, Any]:
        """The parameters for writing entries by one statement."""
        given: dict[str, Any]
        if len(rows) == 1:
            given = dict(zip(("shape", "keys", "body", "n", "lease"), rows[0], strict=True))
        else:
            names = ("shapes", "keys", "bodies", "ns", "leases")
            columns = zip(*rows, strict=True)
            given = {name: array_of(column) for name, column in zip(names, columns, strict=True)}
        return {**given, "delay": delay, "to": to, "agent": self._agent, "agent_name": self.label}

    async def make_room(
        self, link: Any, txn: PostgresTransaction | None, bodies: list[bytes]
    ) -> None:
        """Evict entries, or raise SpaceFull. Writers come one by one, each until it commits;
        transactions only when they do, so that what others have written is counted then."""
        if txn is None or not bodies:
            await self.run(link, f"SELECT pg_advisory_xact_lock({statements.ROOM}, %(space)s)")
        await self.tidy()
        options = self.options
        ((count, size),) = await self.run(link, self.sql.room)
        count, size = count + len(bodies), size + sum(map(len, bodies))

        def fits(count: int, size: int) -> bool:
            return (options.entries is None or count <= options.entries) and (
                options.size_bytes is None or size <= options.size_bytes
            )

        if fits(count, size):
            return
        victims: list[int] = []
        if options.evict:
            for id_, length in await self.run(link, self.sql.oldest):
                if fits(count, size):
                    break
                victims.append(id_)
                count, size = count - 1, size - length
        if not fits(count, size):
            coming = len(bodies) if bodies or txn is None else len(txn.written)
            raise SpaceFull(
                full_text(options.entries, options.size_bytes, coming),
                hopeless=not fits(len(bodies), sum(map(len, bodies))),
            )
        evicted = self.change("evicted")
        tells = txn is None  # otherwise at the commit
        await self.run(link, self.sql.delete, ids=victims, logs=True, tells=tells, **evicted)

    async def _until_room(
        self,
        parts: list[dict[str, Any]],
        bodies: list[bytes],
        txn: PostgresTransaction | None,
        wait: float | None,
    ) -> list[WrittenEntry]:
        """Write, and wait for room for these bodies in a full space."""

        token = self.new_token()

        preferred: set[WaitingOperation] = set()

        async def attempt(waiter: WaitingOperation | None) -> tuple[bool, Any]:
            async def write(link: Any) -> tuple[list[WrittenEntry], bool]:
                if self.options.bounded:
                    await self.make_room(link, txn, bodies)
                    if wait != 0:
                        self._let_earlier_write(waiter, preferred)
                return await self._insert(link, parts, txn, token), True

            try:
                return True, await self.within(txn, write, True, token)
            except SpaceFull as full:
                if wait == 0 or full.hopeless:
                    raise
                preferred.clear()
                return False, full
            except GiveWay:
                options = self.options
                text = full_text(options.entries, options.size_bytes, len(bodies))
                return False, SpaceFull(text)

        done, result = await self.until(attempt, wait, txn, None, writes=True)
        if not done:
            raise result
        written: list[WrittenEntry] = result
        return written

    def _let_earlier_write(
        self, waiter: WaitingOperation | None, preferred: set[WaitingOperation]
    ) -> None:
        """Undo a write for whose room another write of this program waits for longer. Each of those
        gets one chance until the space is full again."""
        listener = self.database.listener
        for other in listener.waiting(self.id):
            if other is waiter:
                return
            if other.writes and other not in preferred:
                if waiter is not None:
                    preferred.add(other)
                listener.prefer(self.id, other, waiter)
                raise GiveWay

    # Waiting

    async def until(
        self,
        attempt: Callable[[WaitingOperation | None], Coroutine[Any, Any, tuple[bool, Any]]],
        wait: float | None,
        txn: PostgresTransaction | None,
        search: PostgresSearch | None,
        writes: bool = False,
    ) -> tuple[bool, Any]:
        """Attempt until it succeeds, again at each notification, for at most `wait` seconds.
        Returns the last result."""
        done, result = await attempt(None)
        if done or wait == 0:
            return done, result
        began = self.clock.now()
        deadline = None if wait is None else began + wait
        waiter = self.database.new_waiter()
        waiter.takes = search is not None and search.take
        waiter.search = search
        waiter.reconnect = self.reconnect
        if search is not None:
            search.waiter = waiter
        waiter.writes = writes
        if txn is not None:
            txn.waiters.add(waiter)
        self.handles.add(waiter)
        listener = self.database.listener
        alarms: list[Callable[[], None]] = []
        if deadline is not None:
            alarms.append(self.clock.call_at(deadline, waiter.wake))
        try:
            is_listening, woken = listener.join(self.id, waiter), False
            on_due = partial(listener.let_look, self.id, waiter)
            while True:
                if not is_listening:
                    await self.database.sleep(waiter)
                    is_listening = True
                waiter.event.clear()
                waiter.asleep = False
                self.require_open()
                if txn is not None:
                    txn.require()
                if waiter.error is not None:
                    raise waiter.error
                if search is not None:
                    search.waited = max(0.0, self.clock.now() - began)
                    targets = search.targets(self.shapes)
                    waiter.known = targets.known
                    waiter.shapes = frozenset(n for group in targets.groups for n in group.shapes)
                if woken:
                    done, result = await attempt(waiter)
                    if done or self._is_over(deadline):
                        return done, result
                # The state first: who commits a prepared transaction by hand tells nobody. Who has
                # given way to another does not look before that one.
                state = await self._waiting_state()
                gave_way = waiter.due > 0 or (woken and search is not None and search.skipped)
                if not gave_way or self._is_over(deadline):
                    done, result = await attempt(waiter)
                    if done or self._is_over(deadline):
                        return done, result
                woken, due = True, self._next_look(state, search)
                listener.looked(self.id, waiter)
                cancel = None if due is None else self.clock.call_at(due, on_due)
                waiter.asleep = True
                try:
                    await self.database.sleep(waiter)
                finally:
                    if cancel is not None:
                        cancel()
        finally:
            for cancel_alarm in alarms:
                cancel_alarm()
            listener.leave(self.id, waiter)
            self.handles.discard(waiter)
            if txn is not None:
                txn.waiters.discard(waiter)

    def _is_over(self, deadline: float | None) -> bool:
        return deadline is not None and self.clock.now() >= deadline

    async def _waiting_state(self) -> Row:
        async def ask(link: Any) -> Row:
            return (await self.run(link, self.sql.state))[0]

        return await self.reading(ask)

    def _next_look(self, state: Row, search: PostgresSearch | None) -> float | None:
        """The moment at which to look again without being told: entries expire or appear then, or
        a holder may be gone. Who was in hand when the waiter looked may be free again by now."""
        _, late, held, seconds = state
        now = self.clock.now()
        due = None if seconds is None else now + seconds
        if self._given_clock is not None:
            return now if late else due
        if held or late or (search is not None and search.skipped):
            soon = now + HOLDER_POLL_SECONDS
            due = soon if due is None else min(due, soon)
        return due

    async def _end_expired(self) -> None:
        """Undo the transactions of this program whose lease has ended, if the alarm is late."""
        for one in list(self.handles):
            if isinstance(one, PostgresTransaction) and one.ran_out:
                await one.expired()

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
        plan = self._plans.of(template)
        search = PostgresSearch(plan, take, many, limit, _offered(order), bool(if_exists))
        if take and txn is None:
            search.token = self.new_token()
        try:
            found = await self.find(search, wait, limit, txn)
            note_about(found, about)
            values = [entry.value for entry in found]
            return values if many else values[0] if values else None
        except (TupeloError, GeneratorExit):
            raise
        except BaseException:  # cancelled, KeyboardInterrupt: nobody gets the answer
            await self._undo_interrupted(search)
            raise

    async def _undo_interrupted(self, search: PostgresSearch) -> None:
        try:
            await self.database.to_the_end(lambda: self._give_back(search))
        except TupeloError as failure:
            logger.error("a take that was interrupted may be done: %s", failure)

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
            plan = self._plans.of(template)
            search = PostgresSearch(plan, take, many, limit, _offered(order), if_exists)
        search.known, search.lasting = False, txn is None
        try:
            return await self.find(search, wait, limit, txn, session)
        except asyncio.CancelledError:
            await self._undo_interrupted(search)
            raise

    async def _are_there(self, entries: list[Entry]) -> bool:
        """Whether these are still there. A take of a host is answered before it is committed, and a
        look that begins meanwhile may see the entry, and not the transaction any more."""
        ids = [entry.arrival for entry in entries]

        async def look(link: Any) -> list[Row]:
            statement = "SELECT id FROM tupelo.entries WHERE id = ANY(%(ids)s::bigint[])"
            return await self.run(link, statement, ids=ids)

        return not ids or len(await self.reading(look)) == len(ids)

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
        plan = self._plans.of(template)
        search = PostgresSearch(plan, True, many, limit, _offered(order), if_exists)
        search.known = False
        check_wait(wait)
        check_limit(limit)

        async def look() -> Any:
            txn = await self.begin(None)
            try:
                found = await self.look(search, txn)
            except BaseException:
                await self.database.to_the_end(txn.dismiss)
                raise
            if not found:
                await txn.dismiss()
            return (txn, found) if found else None

        looks = partial(self._patiently, look)
        reserved: tuple[PostgresTransaction, list[Entry]] | None
        reserved = await self._until_found(looks, search, wait, None)
        return reserved

    async def settle(self, rows: list[Row]) -> int:
        """Remove entries whose taker has them, after their transaction was lost and gave them back.
        Returns how many were still there."""

        token = self.new_token()

        async def remove(link: Any) -> tuple[int, Any]:
            ids = [row[0] for row in rows]
            change = self.change("taken", token=token)
            gone = await self.run(link, self.sql.delete, ids=ids, logs=True, tells=True, **change)
            return len(gone), True if gone else None

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
                    shape=self._numbers[shape],
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

    async def written_entry(self, n: int, id_: int) -> WrittenEntry:
        """An entry that this agent has written. LeaseLost if it is gone."""

        async def look(link: Any) -> list[Row]:
            return await self.run(
                link,
                "SELECT expires FROM tupelo.entries WHERE id = %(id)s AND space = %(space)s "
                "AND origin = %(agent)s AND n = %(n)s",
                id=id_,
                agent=self._agent,
                n=n,
            )

        rows = await self.reading(look)
        if not rows:
            raise LeaseLost("the entry is gone: it was taken, cancelled or has expired")
        return WrittenEntry(id_, rows[0][0], n=n)

    async def _give_back(self, search: PostgresSearch) -> None:
        """Undo a take whose caller is gone, even if the space was closed here. A transaction that
        has taken something is aborted."""
        if search.txn is not None and search.took:
            await search.txn.interrupted()
        if search.token is None or search.link is None:
            return
        backend = search.backend if search.link.closed else None
        rows = await self._done(backend, search.token)

        if rows:
            await self.put_back(rows)

    async def find(
        self,
        search: PostgresSearch,
        wait: float | None,
        limit: int | None,
        txn: PostgresTxn,
        session: PostgresSession | None = None,
    ) -> list[Entry]:
        """The entries of a read or take, when there are any."""
        check_wait(wait)
        check_limit(limit)
        branch = search.txn = await self.branch(txn)

        async def look() -> list[Entry]:
            if session is not None:
                return await session.look(search)
            return await self.look(search, branch)

        found = await self._until_found(look, search, wait, branch)
        if not found and search.skipped and (search.take or session is not None):
            found = await self._look_again(look, search, branch)
        return list(found)

    async def _until_found(
        self,
        look: Callable[[], Coroutine[Any, Any, Any]],
        search: PostgresSearch,
        wait: float | None,
        txn: PostgresTransaction | None,
    ) -> Any:
        """Look until something is found, for at most `wait` seconds; with `if_exists`, only while
        an open transaction could provide a match."""
        # A read_all or take_all that waits for transactions answers with all matches in the end.
        gathers = search.if_exists and search.many and wait != 0

        async def attempt(waiter: WaitingOperation | None) -> tuple[bool, Any]:
            found = None if gathers else await look()
            if found or not search.if_exists:
                return bool(found), found
            # Before another look: what is committed in between is found.
            may_come = await self._may_come(search, txn)
            if gathers and may_come:
                return False, None
            found = await look()
            return bool(found) or not may_come, found

        _, found = await self.until(attempt, wait, txn, search)
        return await look() if found is None and gathers else found

    async def _look_again(
        self,
        look: Callable[[], Coroutine[Any, Any, Any]],
        search: PostgresSearch,
        txn: PostgresTransaction | None,
    ) -> list[Entry]:
        """Look when others are done, whose takes had all matches locked, or to which all matches
        were left: until then the matches can be read, so there is no moment without one. For
        transactions nobody waits."""

        async def is_held(link: Any) -> tuple[bool, None]:
            ours = [link.backend[0]]
            return (await self.run(link, self.sql.is_held, ours=ours))[0][0], None

        seconds, give_up = 0.001, time.monotonic() + OUTCOME_SECONDS
        found: list[Entry] = []
        while not found and search.skipped and time.monotonic() < give_up:
            if await self.within(txn, is_held, False):
                break
            await self.pause(seconds)
            seconds = min(2 * seconds, 0.05)
            found = await look()
        return found

    def require_here(self, scope: Scope | None, coverage: Coverage | None = None) -> None:
        """Check a scope: the space is in one place."""
        check_scope(scope)
        check_coverage(coverage)
        if scope is not None and scope != HERE:
            raise BadArgument("scope", "HERE or None: the space is in one database", scope)
        if coverage is not None:
            coverage.fill([self.database.where])

    async def look(self, search: PostgresSearch, txn: PostgresTransaction | None) -> list[Entry]:
        """The matches of now, taken or read."""
        order = search.order or self._order
        search.tidied = search.skipped = False
        await self._end_expired()
        while True:
            targets = search.targets(self.shapes)
            if txn is None and type(order) is Fifo and self._is_direct(search, targets):
                taken = await self._take_directly(search, targets)
                if taken is not None:
                    return taken

            async def body(link: Any, targets: Targets = targets) -> Any:
                return await self._search(link, search, targets, order, txn)

            try:
                found = await self.within(txn, body, search.take, search.token)
            except GiveWay:
                search.skipped = True
                return []
            if found is not None and (not search.lasting or await self._are_there(found)):
                entries: list[Entry] = found
                return entries

    def _give_way(self, search: PostgresSearch, entries: list[Entry]) -> None:
        """Leave what another operation of this program, which waits for longer, would get: to a
        take, or to a read in the same session. Each gets one such chance for an entry."""
        listener = self.database.listener
        for other in listener.waiting(self.id):
            if other is search.waiter:
                return
            asked = other.search
            if asked is None or not (asked.take if search.take else asked.seen is search.seen):
                continue
            for entry in entries:
                chance = (id(other), entry.arrival)
                if chance in search.chances or not asked.template.admits(entry.shape, entry.fields):
                    continue
                search.chances.add(chance)
                listener.prefer(self.id, other, search.waiter)
                raise GiveWay

    async def _is_stale(
        self, link: Any, state: SpaceState, known: int, search: PostgresSearch
    ) -> bool:
        """Whether to look again: there are new shapes, or entries that had to expire or appear.
        Those that a transaction has in hand stay late."""
        if state.shapes > known:
            await self._load_shapes(link)
            return True
        if state.late and not search.tidied:
            search.tidied = True
            await self.tidy()
            return True
        return False

    def _is_direct(self, search: PostgresSearch, targets: Targets) -> bool:
        """Whether this is a take that can be one statement: SQL finds the entries, each of which
        can be built here, and no take in this program waits for longer."""
        group = targets.sole
        if group is None or not search.take:
            return False
        for other in self.database.listener.waiting(self.id):
            if other is search.waiter:
                break
            if other.takes:
                return False
        shape = self.shapes[group.shapes[0] - 1]
        return shape.flat and (shape.kind is None or is_at_hand(shape.kind))

    async def _take_directly(self, search: PostgresSearch, targets: Targets) -> list[Entry] | None:
        """Take the oldest entries of one shape, in one statement. None if the state of the space
        needs a closer look."""
        group = targets.sole
        assert group is not None
        self.indexing.note(group)
        indexed, tells = self.database.indexed, self.tells_removals
        wanted: dict[str, Any] = {"shape": group.shapes[0], "known": targets.known}
        wanted.update({f"key0_{i}": key for i, key in enumerate(group.keys)})
        if search.limit == 1:
            statement = self.sql.take(group, indexed, tells)
        else:
            statement = self.sql.take_many(group, indexed)
            wanted["limit"] = LAST if search.limit is None else min(search.limit, LAST)
        rows = await self.at_once(
            statement, search, **wanted, **self.change("taken", search=search)
        )
        if not rows:

            async def ask(link: Any) -> Row:
                found = await self.run(link, self.sql.missed(group), tells=tells, **wanted)
                if not found[0][0]:
                    await self._load_shapes(link)
                return found[0]

            is_fresh, search.skipped = await self.reading(ask)
            # One that takes many does not if something is late, which another may have ended since.
            is_over = is_fresh and (search.limit == 1 or not search.skipped)
            return [] if is_over else None
        return [self.entry_of(row) for row in rows]

    def entry_of(self, row: Row, known: bool = True) -> Entry:
        """Build an entry. UnknownType if this program does not have its class."""
        id_, _, _, body, origin, n, expires, _, deliveries, to, _ = row[:11]
        shape, fields = decode_entry(bytes(body))
        entry = Entry(fields, shape, origin, n, id_, expires, deliveries=deliveries, to=to)
        if known:
            require_known(entry)
        return entry

    async def _search(
        self,
        link: Any,
        search: PostgresSearch,
        targets: Targets,
        order: Order,
        txn: PostgresTransaction | None,
    ) -> tuple[list[Entry] | None, Any]:
        """Find candidates without locks, check them here, then lock those that are wanted."""
        known = targets.known
        for group in targets.groups:
            self.indexing.note(group)
        if not targets.groups:
            ((*now, _),) = await self.run(link, self.sql.state)
            stale = await self._is_stale(link, SpaceState(*now), known, search)
            return (None if stale else []), None
        ranks = None if search.whole or search.unranked else self._ranks(order, search, targets)
        simple = type(order) in (Fifo, Lifo) or ranks is not None
        limit = search.limit if simple else None
        found: list[tuple[Row, Entry]] = []
        state: SpaceState | None = None
        # A read of many looks again for all if one batch is not enough.
        sure = targets.checks and search.many and not search.take
        batches = self._batches(link, targets, order.backwards, None if sure else limit, ranks)
        if search.whole:
            batches = self._all_batches(link, targets, order.backwards)
        count = 0
        async for rows, state in batches:
            count += 1
            # A read of many is one snapshot. Takes lock what they find, and need none.
            if count > 1 and search.many and not search.take and not search.whole:
                search.whole = True
                return None, None
            if await self._is_stale(link, state, known, search):
                if search.whole:
                    await self._close_cursor(link, txn)
                return None, None
            if ranks is not None and rows[0][14] is None:
                search.unranked = True
                return None, None
            passed = self._checked(rows, targets)
            seen = search.seen
            matches = [one for one in passed if seen is None or one[1] not in seen]
            if simple:
                wanted = None if limit is None else limit - len(found)
                found += await self._claim_some(link, search, matches, wanted, txn, state)
                if limit is not None and len(found) >= limit:
                    break
            else:
                found += matches
        if search.whole:
            await self._close_cursor(link, txn)
        if state is None:
            ((*now, _),) = await self.run(link, self.sql.state)
            if await self._is_stale(link, SpaceState(*now), known, search):
                return None, None
        if not simple:
            found = await self._claim_arranged(link, search, found, order, txn, state)
        if search.known:
            for _, entry in found:
                require_known(entry)
        if search.take or search.seen is not None:
            self._give_way(search, [entry for _, entry in found])
        if txn is not None and search.take and found:
            rows = await txn.claim([row for row, _ in found])
            found = [(row, self.entry_of(row, known=False)) for row in rows]
            txn.took(rows)
            search.took = True
        changed = search.take and txn is None and found
        return [entry for _, entry in found], changed or None

    def _checked(self, rows: list[Row], targets: Targets) -> list[tuple[Row, Entry]]:
        """Those of these rows that the checks in Python let pass, with their entries."""
        pairs = [(row, self.entry_of(row, known=False)) for row in rows]
        if not targets.checks:
            return pairs
        checks = targets.checks
        return [
            (row, entry)
            for row, entry in pairs
            if (check := checks.get(row[1])) is None or check(entry.fields)
        ]

    def _ranks(
        self, order: Order, search: PostgresSearch, targets: Targets
    ) -> tuple[Rank, ...] | None:
        """For each group of shapes the place of the numbers by which the server can find the first
        entries of an order; None if the order has to look at all matches."""
        key = by_field(order)
        if key is None or search.limit is None or search.limit > BATCH:
            return None
        shapes = [[self.shapes[n - 1] for n in group.shapes] for group in targets.groups]
        places = [{key.position_in(shape) for shape in group} for group in shapes]
        found = [place.pop() for place in places if len(place) == 1]
        if len(found) < len(places) or None in found:
            return None
        types = {
            shape.types[place]  # type: ignore[index]
            for group, place in zip(shapes, found, strict=True)
            for shape in group
        }
        if types not in ({int}, {float}):
            return None
        ranks = tuple([Rank(place, key.reverse) for place in found if place is not None])
        for group, rank in zip(targets.groups, ranks, strict=True):
            self.indexing.note_rank(group, rank)
        return ranks

    async def _batches(
        self,
        link: Any,
        targets: Targets,
        backwards: bool,
        limit: int | None,
        ranks: tuple[Rank, ...] | None = None,
    ) -> Any:
        """Candidates in order of arrival, or by their ranks, in bounded batches, each with the
        state of the space."""
        groups, indexed = targets.groups, self.database.indexed
        if not groups:
            return  # No shape in the space can match.
        values = statements.values_of(groups)
        batch = BATCH if limit is None else min(limit + 4, BATCH)
        if ranks is not None:
            batch = next(size for size in (8, 32, BATCH) if size >= batch)  # for few statements
        bounds: dict[str, Any] = {} if ranks else {"after": -1, "until": LAST}
        while True:
            if ranks is not None:
                statement = self.sql.ranked(groups, ranks, batch, not bounds)
            else:
                statement = self.sql.candidates(groups, backwards, indexed)
                bounds["batch"] = batch
            rows = await self.run(link, statement, **values, **bounds)
            if rows:
                yield rows, SpaceState(*rows[0][11:14])
            if len(rows) < batch:
                return
            batch = min(batch * 4, BATCH * 16)
            last = rows[-1]
            if ranks is not None:
                bounds = {"rank": last[14], "after": last[2]}
            else:
                bounds["until" if backwards else "after"] = last[2]

    async def _all_batches(self, link: Any, targets: Targets, backwards: bool) -> Any:
        """All candidates, in batches of one snapshot; `_close_cursor` afterwards."""
        if link.pgconn.transaction_status == IDLE:
            await self.database.run(link, "BEGIN")
        groups, indexed = targets.groups, self.database.indexed
        statement = self.sql.candidates(groups, backwards, indexed, whole=True)
        values = statements.values_of(groups)
        await self.run(link, f"DECLARE matches NO SCROLL CURSOR FOR {statement}", **values)
        fetch = f"FETCH {BATCH * 16} FROM matches"
        while rows := await self.database.run(link, fetch):
            yield rows, SpaceState(*rows[0][11:14])

    async def _close_cursor(self, link: Any, txn: PostgresTransaction | None) -> None:
        await self.database.run(link, "ROLLBACK" if txn is None else "CLOSE matches")

    async def _claim_some(
        self,
        link: Any,
        search: PostgresSearch,
        matches: list[tuple[Row, Entry]],
        wanted: int | None,
        txn: PostgresTransaction | None,
        state: SpaceState,
    ) -> list[tuple[Row, Entry]]:
        """Lock the first matches, as many as are wanted."""
        claimed: list[tuple[Row, Entry]] = []
        while matches and (wanted is None or len(claimed) < wanted):
            most = len(matches) if wanted is None else wanted - len(claimed)
            chosen, matches = matches[:most], matches[most:]
            claimed += await self._claim(link, search, chosen, txn, state, False)
        return claimed

    async def _claim_arranged(
        self,
        link: Any,
        search: PostgresSearch,
        found: list[tuple[Row, Entry]],
        order: Order,
        txn: PostgresTransaction | None,
        state: SpaceState | None,
    ) -> list[tuple[Row, Entry]]:
        """Lock the first matches by an order, among those that are free."""
        if state is None:
            return []
        if state.held or txn is not None:
            found = await self._claim(link, search, found, txn, state, True)
        rows = {id(entry): row for row, entry in found}
        while True:
            entries = [entry for _, entry in found]
            enough = needed(order, search.limit)
            chosen = arranged(order, entries if enough is None else entries[:enough], search.limit)
            wanted = [(rows[id(entry)], entry) for entry in chosen]
            claimed = await self._claim(link, search, wanted, txn, state, False)
            if len(claimed) == len(wanted) or not search.take:
                return claimed
            if claimed:
                return claimed
            gone = {id(entry) for entry in chosen}
            found = [one for one in found if id(one[1]) not in gone]

    async def _claim(
        self,
        link: Any,
        search: PostgresSearch,
        chosen: list[tuple[Row, Entry]],
        txn: PostgresTransaction | None,
        state: SpaceState,
        glance: bool,
    ) -> list[tuple[Row, Entry]]:
        """Take these entries, or hold them for a transaction, without those that others have in
        hand. With `glance` only see which are free."""
        ids = [row[0] for row, _ in chosen]
        if not ids:
            return []
        if search.take and not glance:
            if txn is not None:
                await txn.hold(link)
            search.link, search.backend = link, link.backend
            change = self.change("taken", search=search)
            is_done = txn is None
            rows = await self.run(
                link, self.sql.delete, ids=ids, logs=is_done, tells=is_done, **change
            )
        elif txn is not None and not glance:
            await txn.hold(link)
            rows = await self.run(link, self.sql.hold, ids=ids)
            txn.read.update(row[0] for row in rows)
        elif state.held:
            rows = await self._glance(link, ids)
        else:
            return chosen
        got = {row[0] for row in rows}
        search.skipped = search.skipped or len(got) < len(ids)
        return [one for one in chosen if one[0][0] in got]

    async def _glance(self, link: Any, ids: list[int]) -> list[Row]:
        """Which of these are not in the hands of others; leaves no locks."""
        inside = link.pgconn.transaction_status != IDLE
        begin, end = ("SAVEPOINT glance", "ROLLBACK TO glance") if inside else ("BEGIN", "ROLLBACK")
        await self.database.run(link, begin)
        try:
            return await self.run(link, self.sql.glance, ids=ids)
        finally:
            if not link.closed:
                await self.database.run(link, end)

    async def _may_come(self, search: PostgresSearch, txn: PostgresTransaction | None) -> bool:
        """Whether the end of an open transaction could provide a match."""
        for one in list(self.handles):
            if isinstance(one, PostgresTransaction) and one is not txn and one.is_root:
                if txn is not None and txn.root is one:
                    continue
                for row in [*one.written.values(), *one.taken.values()]:
                    entry = self.entry_of(row, known=False)
                    if search.template.admits(entry.shape, entry.fields):
                        return True
        ours = [
            one.backend[0]
            for one in list(self.handles)
            if isinstance(one, PostgresTransaction) and one.is_root and one.backend is not None
        ]
        targets = search.targets(self.shapes)

        async def ask(link: Any) -> bool:
            ((others,),) = await self.run(link, self.sql.is_held, ours=ours)
            if others:
                return True
            if not targets.groups or not search.take:
                return False
            # Read locks of our own transactions hinder a take, too.
            async for rows, _ in self._batches(link, targets, False, None):
                ids = [row[0] for row, _ in self._checked(rows, targets)]
                await self.database.run(link, "BEGIN")
                free = await self.run(link, self.sql.free, ids=ids)
                await self.database.run(link, "ROLLBACK")
                if len(free) < len(ids):
                    return True
            return False

        return bool(await self.reading(ask))

    @dual_api
    async def _count(
        self, template: object, txn: PostgresTxn, scope: Scope | None, coverage: Coverage | None
    ) -> int:
        self.require_here(scope, coverage)
        search = PostgresSearch(self._plans.of(template), False, True, None)
        branch = await self.branch(txn)
        await self._end_expired()
        while True:
            targets = search.targets(self.shapes)

            async def count(link: Any, targets: Targets = targets) -> tuple[int | None, None]:
                statement = self.sql.count(() if targets.checks else targets.groups)
                values = {} if targets.checks else statements.values_of(targets.groups)
                ((*state, found),) = await self.run(link, statement, **values)
                if await self._is_stale(link, SpaceState(*state), targets.known, search):
                    return None, None
                if not targets.checks and not SpaceState(*state).held:
                    return found, None
                total = 0
                if not targets.groups:
                    return total, None
                async for rows, now in self._all_batches(link, targets, False):
                    matches = self._checked(rows, targets)
                    if now.held:
                        total += len(await self._glance(link, [row[0] for row, _ in matches]))
                    else:
                        total += len(matches)
                await self._close_cursor(link, branch)
                return total, None

            answer = await self.within(branch, count, False)
            if answer is not None:
                return int(answer)

    @dual_api
    async def _match_set(
        self, template: object, limit: int | None, txn: PostgresTxn, lease: float | None
    ) -> PostgresMatchSet:
        check_limit(limit)
        seconds = check_lease(lease)
        branch = await self.branch(txn)
        search = PostgresSearch(self._plans.of(template), False, True, limit, Fifo())
        search.known = False
        return PostgresMatchSet(self, await self.look(search, branch), branch, seconds)

    def new_search(
        self, template: object, many: bool, limit: int | None, seen: Seen, session: str
    ) -> PostgresSearch:
        """The search of a session."""
        return PostgresSearch(
            self._plans.of(template), False, many, limit, Fifo(), seen=seen, session=session
        )

    # Transactions, sessions

    def transaction(self, *, lease: float | None = None) -> Any:
        return self.dual_call(self.begin, lease)

    async def begin(
        self, lease: float | None, parent: PostgresTransaction | None = None
    ) -> PostgresTransaction:
        """Begin a transaction, nested if it has a `parent`."""
        self.require_open()
        seconds = check_lease(lease)
        return await PostgresTransaction.begun(self, seconds, parent)

    async def begin_beside(self, other: PostgresTransaction | None) -> PostgresTransaction:
        """Begin a transaction on the connection of another one, with which it will end."""
        self.require_open()
        return await PostgresTransaction.begun(self, None, None, other)

    @dual_api
    async def in_doubt(self) -> list[PostgresTransaction]:
        self.require_open()
        return await self.prepared()

    async def prepared_ids(self) -> set[str]:
        """The ids of the transactions that are prepared in any space of the database."""
        rows = await self.reading(lambda link: self.run(link, statements.ALL_PREPARED))
        return {read_prepared_name(row[0])[1] for row in rows}

    async def prepared(self) -> list[PostgresTransaction]:
        """The transactions that are prepared here, of all programs."""
        with self.database.unlimited():
            rows = await self.reading(lambda link: self.run(link, statements.PREPARED))
        ours = {
            one.name: one
            for one in list(self.handles)
            if isinstance(one, PostgresTransaction) and one.state == "prepared"
        }
        return [
            ours.get(name)
            or PostgresTransaction.in_doubt(self, name, read_prepared_name(name)[1], xid)
            for name, xid in rows
        ]

    async def is_prepared(self, name: str, backend: Backend | None) -> bool:
        """Whether a transaction is prepared, whose connection was lost meanwhile."""

        async def ask(link: Any) -> list[Row]:
            found = "SELECT FROM pg_prepared_xacts WHERE gid = %(name)s"
            return await self.run(link, found, name=name)

        return bool(await self.when_ended(backend, ask))

    async def settle_prepared(self, name: str, commits: bool, xid: str) -> bool:
        """Commit or roll back what is prepared; it may be done already. Returns the outcome. (The
        server can be asked for that: what was prepared keeps its id after a crash.)"""
        give_up = time.monotonic() + self.reconnect
        statement = f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED {quoted(name)}"
        while True:
            try:
                async with self.database.connection() as link:
                    try:
                        await self.database.run(link, statement)
                    except JournalFailed as error:
                        if sqlstate(error) == "55000":  # It is being settled.
                            raise PeerLost(repr(self), "a commit", str(error)) from error
                        if sqlstate(error) != "42704":
                            raise
                        asked = "SELECT pg_xact_status(%(xid)s::xid8) = 'committed'"
                        return bool((await self.run(link, asked, xid=xid))[0][0])
                return commits
            except (PeerLost, CannotReach) as lost:
                if time.monotonic() >= give_up:
                    raise self._in_doubt("the end of a transaction") from lost
            await self.pause(0.05)

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
        wanted, found, ours = as_template(template), [], set()
        for one in list(self.handles):
            if isinstance(one, PostgresTransaction) and one.is_root:
                ours.add(one.id)
                taken = [self.entry_of(row, known=False) for row in one.taken.values()]
                count = sum(wanted.admits(entry.shape, entry.fields) for entry in taken)
                if count:
                    found.append(InHand(self._agent, self.label, count, one.id))
        counts: Counter[tuple[str, str, str]] = Counter()
        for row in await self.reading(self._claimed):
            entry = self.entry_of(row, known=False)
            txn, agent, label = row[11:]
            if txn not in ours and wanted.admits(entry.shape, entry.fields):
                counts[agent, label, txn] += 1
        return found + [InHand(agent, label, n, txn) for (agent, label, txn), n in counts.items()]

    async def _claimed(self, link: Any) -> list[Row]:
        """The entries that transactions of all programs have, with these; those of programs that
        are gone are free."""
        rows = await self.run(link, self.sql.claimed)
        free = {row[0] for row in await self._glance(link, [row[0] for row in rows])}
        return [row for row in rows if row[0] not in free]

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
            entries = [(row[7], row[0], self.entry_of(row, known=False)) for row in rows]
            found = [one for one in entries if wanted.admits(one[2].shape, one[2].fields)]
            first = found[:limit]
            if not cancel:
                return (len(found), [(at, entry) for at, _, entry in first]), None
            gone = await self.run(
                link,
                self.sql.delete,
                ids=[id_ for _, id_, _ in first],
                logs=True,
                tells=True,
                **self.change("cancelled", token=token),
            )
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
            self._open_subscription, what, callback, seconds, handback, backlog_max
        )

    async def _open_subscription(
        self,
        what: tuple[object, bool, bool, bool],
        callback: Callable[[Notice], object] | None,
        lease: float | None,
        handback: Any,
        backlog_max: int,
    ) -> PostgresSubscription:
        subscription = await self.log.subscribed(what, lease, handback, backlog_max)
        if callback is not None:
            function = callback
            self.database.start(lambda: subscription.call(function), "tupelo-notices")
        return subscription

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
        return self.dual_call(self._open_reaction, template, function, bool(once), bool(existing))

    async def _open_reaction(
        self, template: object, function: Any, once: bool, existing: bool
    ) -> FetchingReaction:
        what = (template, False, True, False)
        subscription = await self.log.subscribed(what, None, None, REACTION_BACKLOG_MAX)

        async def read_matches() -> list[Entry]:
            plan = self._plans.of(template)
            return await self.look(PostgresSearch(plan, False, True, None, Fifo()), None)

        entries = await read_matches() if existing else []
        where = self.database.where
        reaction = FetchingReaction(self, where, subscription, read_matches, function, once)
        self.database.start(lambda: reaction.run(entries), "tupelo-reaction")
        return reaction

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


def _offered(order: Order | None) -> Order | None:
    """The order of an operation. CannotSend for one that needs the head of a space."""
    if order is not None:
        check_order(order)
        if order.head_only:
            raise CannotSend(f"a space in a database has no head, as {order!r} needs")
    return order


def _parts(rows: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Rows for one statement each."""
    parts, size = [rows[:1]], len(rows[0][2])
    for row in rows[1:]:
        size += len(row[2])
        if len(parts[-1]) >= WRITE_MAX or size > WRITE_BYTES_MAX:
            parts.append([])
            size = len(row[2])
        parts[-1].append(row)
    return parts


def check_name(name: object) -> str:
    """The name of a space."""
    if not isinstance(name, str) or not name:
        raise BadArgument("name", "the name of a space", name)
    check_text("name", "the name of a space", name)
    if len(name.encode()) > NAME_BYTES_MAX:
        found = f"{name[:20]!r}… of {len(name.encode())} bytes"
        raise BadArgument("name", f"the name of a space, of at most {NAME_BYTES_MAX} bytes", found)
    return name


def check_text(argument: str, what: str, text: str) -> str:
    """PostgreSQL keeps no text with the character 0, nor half a character."""
    if "\0" in text:
        raise BadArgument(argument, f"{what}, without the character 0", text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadArgument(argument, "valid Unicode", text) from None
    return text
