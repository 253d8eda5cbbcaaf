"""A space in a PostgreSQL database. One implementation serves the blocking and the async API.

Every operation is a short transaction of the database, or part of the transaction that it is given.
Takes lock rows and skip those that others have locked, so that takers do not wait for each other.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from inspect import iscoroutinefunction
from typing import Any
from uuid import uuid4

import msgspec

from tupelo.errors import (
    BadArgument,
    CannotReach,
    CannotSend,
    PeerLost,
    SpaceFull,
    TupeloError,
    UnknownSpace,
)
from tupelo.postgres import statements
from tupelo.postgres.driver import Database, Row
from tupelo.postgres.handles import (
    PostgresLandlord,
    PostgresMatchSet,
    PostgresReaction,
    PostgresSession,
    PostgresSubscription,
    PostgresTransaction,
    WrittenEntry,
)
from tupelo.postgres.indexing import Indexing
from tupelo.postgres.listening import Waiter, channel_of, closed
from tupelo.postgres.log import LogReader
from tupelo.postgres.matching import Targets, key_of, read_signature, signature_of, targets_of
from tupelo.postgres.options import SpaceOptions
from tupelo.space.capacity import full_text
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.dual_api import DualHandle, dual_api
from tupelo.space.order import Fifo, Lifo, Order, arranged, needed
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
from tupelo.values.change import Change, Notice
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import (
    About,
    Entry,
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

logger = logging.getLogger("tupelo")

Txn = PostgresTransaction | Transactional | None

BATCH = 256
"""So many entries are fetched at once to be checked here."""
COPY_MIN = 8
"""From so many entries on, `write_all` uses COPY."""
LAST = (1 << 63) - 1
HOLDER_POLL_SECONDS = 0.5
"""How often a waiting operation looks whether another program, which has its match in hand, is
gone: the server does not tell that."""
TRIM_MIN = 1_000
"""After so many writes of this program, or a quarter of what the log keeps, the log is trimmed."""


class Search:
    """One read or take: what it wants, and how."""

    def __init__(
        self,
        template: object,
        take: bool,
        many: bool,
        limit: int | None,
        order: Order | None = None,
        if_exists: bool = False,
        seen: Seen | None = None,
        session: str | None = None,
    ) -> None:
        self.template = as_template(template)
        self.take = take
        self.many = many
        self.limit = limit if many else 1
        self.order = order
        self.if_exists = if_exists
        self.seen = seen
        self.session = session
        self.waited = 0.0
        self.known = True  # whether entries of classes that this program lacks are refused
        self.tidied = False
        self.skipped = False  # whether others have entries in hand that it wants
        self.waiter: Waiter | None = None
        self.token: int | None = None  # of a take without a transaction, in the log
        self.link: Any = None  # where it takes, and its process in the server
        self.backend: int | None = None
        self.took = False  # within a transaction
        self.chances: set[tuple[int, int]] = set()
        self._targets: Targets | None = None

    def targets(self, shapes: list[Shape]) -> Targets:
        if self._targets is None or self._targets.known != len(shapes):
            self._targets = targets_of(self.template, shapes)
        return self._targets


class GiveWay(Exception):
    """The found entry is for one who waits for longer."""


class State(msgspec.Struct):
    """What a look tells beside its matches: the number of shapes in the space, whether entries
    must expire or appear, and whether transactions of others have entries in hand."""

    shapes: int
    late: bool
    held: bool


class PostgresSpace(DualHandle, SpaceLike):
    """A space in a PostgreSQL database, with the methods of `tupelo.Space`, or of
    `tupelo.aio.Space` on the async API, where transactions, sessions and subscriptions are awaited
    too or used with `async with`. Functions run in this program: a `Where` and an order that is a
    function work, on entries that are fetched in batches."""

    _get_fast = staticmethod(takes_longer)
    _write_fast = staticmethod(takes_longer_to_write)

    def __init__(self, database: Database, name: str, clock: Clock | None, label: str) -> None:
        self.is_async = database.is_async
        self.database = database
        self.clock: Clock = clock or SystemClock()
        self.sql = statements.Statements(clock is not None)
        self.handles: set[Any] = set()
        self.id = 0
        self.options = SpaceOptions()
        self.shapes: list[Shape] = []  # replaced, never changed: searches hold it
        self._shapes_lock = threading.Lock()
        self.reconnect = 30.0
        self._order: Order = Fifo()
        self._numbers: dict[Shape, int] = {}
        self._name = name
        self._agent = uuid4().hex
        self._label = label
        self._next_n = itertools.count(1)
        self._next_token = itertools.count(1)
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
    ) -> PostgresSpace:
        """Open the space of this name; unless `create`, it must exist. The `options` are those of
        a new space."""
        space = cls(database, name, clock, label)
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
            space.options = msgspec.json.decode(kept, type=SpaceOptions)
            if options is not None and options != space.options:
                raise BadArgument("options", f"those that the space has: {space.options}", options)
            space._order = space.options.make_order()
            await space._load_shapes(link)
            await space.look_at_clock(link)
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
    def host(self) -> Any:
        """A description of the server, a dict; awaited on the async API."""
        return self.dual_call(self._describe)

    def space(self, name: str, password: str | None = None, create: bool = True) -> Any:
        """Another space of the same database; unless `create`, it must exist."""
        if password is not None:
            raise BadArgument("password", "left out: the database has its own users", "given")
        check_name(name)
        return self.dual_call(self._open_other, name, create)

    async def _open_other(self, name: str, create: bool) -> PostgresSpace:
        database = await Database.shared(self.database.conninfo, self.is_async)
        try:
            return await PostgresSpace.opened(
                database, name, None, create, self._given_clock, self._label, self.reconnect
            )
        except BaseException:
            await database.release()
            raise

    async def _describe(self) -> dict[str, Any]:
        async def describe(link: Any) -> dict[str, Any]:
            rows = await self.run(link, f"SELECT version(), {self.sql.now}")
            return {"name": self.database.where, "version": rows[0][0], "now": rows[0][1]}

        found: dict[str, Any] = await self.reading(describe)
        return found

    # Statements

    def require_open(self) -> None:
        """Raise SpaceClosed if the space was closed here."""
        self.database.require_own()
        if self._closed:
            raise closed(self._name)

    async def run(self, link: Any, statement: str, **values: Any) -> list[Row]:
        """Execute a statement about this space."""
        values["space"] = self.id
        values["channel"] = channel_of(self.id)
        if self._given_clock is not None:
            values["now"] = self._given_clock.now()
        return await self.database.run(link, statement, values)

    def change(
        self, kind: str, txn: str | None = None, search: Search | None = None
    ) -> dict[str, Any]:
        """The parameters of a change in the log."""
        return {
            "kind": kind,
            "agent": self._agent,
            "agent_name": self._label,
            "txn": txn,
            "waited": 0.0 if search is None else search.waited,
            "session": None if search is None else search.session,
            "token": None if search is None else search.token,
        }

    async def reading(self, body: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run statements that may be run twice; they are repeated after a lost connection."""

        async def once() -> Any:
            async with self.database.connection() as link:
                return await body(link)

        self.require_open()
        return await self._patiently(once)

    async def atomic(
        self,
        body: Callable[[Any], Coroutine[Any, Any, tuple[Any, Any]]],
        even_closed: bool = False,
    ) -> Any:
        """Run statements as one transaction and return the first part of their result. The second
        is the id of the transaction in the database, or None to roll back. After a lost connection
        the statements are repeated, unless they were committed."""

        async def once() -> Any:
            async with self.database.connection() as link:
                await self.database.run(link, "BEGIN")
                try:
                    value, xid = await body(link)
                    if xid is None:
                        await self.database.run(link, "ROLLBACK")
                        return value
                except BaseException:
                    await self.roll_back(link)
                    raise
                try:
                    await self.database.run(link, "COMMIT")
                except PeerLost as lost:
                    if not await self.was_committed(link, xid, lost):
                        raise
            return value

        if not even_closed:
            self.require_open()
        return await self._patiently(once)

    async def at_once(
        self, statement: str, search: Search | None = None, **values: Any
    ) -> list[Row]:
        """Execute one statement that is its own transaction, and logs its changes with a token. If
        its connection is lost, the log tells whether it was done; otherwise it is repeated."""
        self.require_open()
        values["token"] = token = next(self._next_token) if search is None else search.token

        async def once() -> list[Row]:
            async with self.database.connection() as link:
                backend = link.info.backend_pid
                if search is not None:
                    search.link, search.backend = link, backend
                try:
                    return await self.run(link, statement, **values)
                except PeerLost:
                    done = await self._done(backend, token)
                    if not done:
                        raise
                    return done

        rows: list[Row] = await self._patiently(once)
        return rows

    async def _done(self, backend: int | None, token: int | None) -> list[Row]:
        """The entries of the changes with a token, when the server has ended the connection."""
        give_up = time.monotonic() + self.reconnect
        while time.monotonic() < give_up:
            try:
                async with self.database.connection() as link:
                    rows = await self.run(
                        link, "SELECT FROM pg_stat_activity WHERE pid = %(pid)s", pid=backend
                    )
                    if not rows:
                        values = {"agent": self._agent, "token": token}
                        return await self.run(link, self.sql.done, **values)
            except (PeerLost, CannotReach):
                pass
            await self.pause(0.05)
        raise self._in_doubt("an operation")

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

    async def _patiently(self, once: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Repeat what was not done because of a lost connection, or because there is none now."""
        give_up: float | None = None
        while True:
            try:
                return await once()
            except (PeerLost, CannotReach) as lost:
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

    async def was_committed(self, link: Any, xid: str, lost: PeerLost) -> bool:
        """Ask the server, over another connection, for the outcome of a transaction whose
        connection was lost while it committed."""
        give_up = time.monotonic() + self.reconnect
        while time.monotonic() < give_up:
            try:
                async with self.database.connection() as other:
                    rows = await self.run(other, "SELECT pg_xact_status(%(xid)s::xid8)", xid=xid)
            except (PeerLost, CannotReach):
                rows = [("in progress",)]
            if rows[0][0] != "in progress":
                return bool(rows[0][0] == "committed")
            await self.pause(0.05)
        raise self._in_doubt(lost.during) from lost

    async def within(self, txn: PostgresTransaction | None, body: Any, changes: bool) -> Any:
        """Run statements in a transaction, or as one of their own."""
        if txn is not None:
            return await txn.run(body)
        if changes:
            return await self.atomic(body)

        async def value(link: Any) -> Any:
            return (await body(link))[0]

        return await self.reading(value)

    def branch(self, txn: Txn) -> PostgresTransaction | None:
        """The transaction for the argument `txn=`. BadArgument if it is of another space."""
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
        found = [(number, read_signature(signature)) for number, signature in rows]
        with self._shapes_lock:
            for number, shape in found:
                if number == len(self.shapes) + 1:  # Another operation may have loaded it.
                    self.shapes = [*self.shapes, shape]
                    self._numbers[shape] = number

    async def number_of(self, shape: Shape) -> int:
        """The number of a shape, which is registered if it is new. It has its own transaction: an
        entry is never visible before its shape."""
        number = self._numbers.get(shape)
        if number is not None:
            return number

        async def register(link: Any) -> tuple[None, str]:
            await self.run(link, "SELECT FROM tupelo.spaces WHERE id = %(space)s FOR NO KEY UPDATE")
            rows = await self.run(
                link,
                """
                WITH new AS (
                    INSERT INTO tupelo.shapes (space, number, signature)
                    SELECT id, shapes + 1, %(signature)s FROM tupelo.spaces WHERE id = %(space)s
                    ON CONFLICT (space, signature) DO NOTHING RETURNING number
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
        txn: Txn,
        at: Any,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> Lease | AsyncLease:
        item = freeze(entry)
        if lease is not None:
            lease = check_lease(lease)
        places = None if at is None else [at]
        return (await self._write_items([item], [lease], txn, places, wait, to, delay))[0]

    @dual_api
    async def _write_all(
        self,
        entries: Iterable[object],
        lease: float | list[float | None] | None,
        txn: Txn,
        at: Sequence[Any] | None,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> list[Lease | AsyncLease]:
        items, leases = check_entries(entries, lease, at)
        each = leases if isinstance(leases, list) else [leases] * len(items)
        return await self._write_items(items, each, txn, at, wait, to, delay)

    async def _write_items(
        self,
        items: list[tuple[Shape, tuple[Any, ...]]],
        leases: list[float | None],
        txn: Txn,
        at: Any,
        wait: float | None,
        to: str | None,
        delay: float | None,
    ) -> list[Lease | AsyncLease]:
        check_wait(wait)
        if to is not None and (not isinstance(to, str) or not to):
            raise BadArgument("to", "the id of an agent, or None", to)
        if to is not None:
            check_text("to", "the id of an agent", to)
        delay = check_delay(delay, to)
        if at is not None:
            raise BadArgument("at", f"left out: the order is {self._order!r}", at)
        branch = self.branch(txn)
        if not items:
            return []
        rows = []
        for (shape, fields), lease in zip(items, leases, strict=True):
            if lease == ANY_LEASE:
                lease = None
            body = encode_entry(shape, fields)
            keys = [key_of(value) for value in fields]
            number = await self.number_of(shape)
            rows.append((number, keys, body, next(self._next_n), lease, delay, to))

        async def write(link: Any) -> tuple[list[WrittenEntry], str]:
            if self.options.bounded:
                await self._make_room(link, branch, [row[2] for row in rows])
            written = await self._insert(link, rows, branch)
            found = await self.run(link, "SELECT pg_current_xact_id()::text")
            return written, found[0][0]

        if len(rows) == 1 and branch is None and not self.options.bounded:
            found = await self.at_once(self.sql.write, **self._written(rows[0], 0))
            written = [WrittenEntry(found[0][0], found[0][6])]
        else:
            written = await self._until_room(write, branch, wait)
        self._writes += len(items)
        if self._writes >= max(TRIM_MIN, (self.options.log_keep or 0) // 4) and branch is None:
            self._writes = 0
            try:
                await self.log.trim_by_policy()
            except TupeloError as error:  # The entries are written all the same.
                logger.warning("the log of %r was not trimmed: %s", self, error)
        return [self.lease_of(one) for one in written]

    async def _insert(
        self, link: Any, rows: list[tuple[Any, ...]], txn: PostgresTransaction | None
    ) -> list[WrittenEntry]:
        """Write entries; in a transaction they are logged, and told, when it commits."""
        later = 0 if txn is None else statements.UNCOMMITTED
        written = []
        if txn is not None:
            await txn.hold(link)
        for row in rows if len(rows) < COPY_MIN else ():
            written += await self.run(link, self.sql.write, **self._written(row, later))
        if len(rows) >= COPY_MIN:
            written = await self._copy(link, rows, later)
        if txn is not None:
            txn.wrote(written)
        return [WrittenEntry(row[0], row[6], txn) for row in written]

    def _written(self, row: tuple[Any, ...], later: int) -> dict[str, Any]:
        """The parameters for writing one entry."""
        number, keys, body, n, lease, delay, to = row
        return {
            "shape": number,
            "keys": keys,
            "body": body,
            "origin": self._agent,
            "n": n,
            "lease": lease,
            "delay": delay,
            "to": to,
            "later": later,
            **self.change("written" if delay is None else "delayed"),
        }

    async def _copy(self, link: Any, rows: list[tuple[Any, ...]], later: int) -> list[Row]:
        ((ids, now),) = await self.run(link, self.sql.numbers, count=len(rows))
        us, label = self._agent, self._label
        entries, changes, written = [], [], []
        for id_, (number, keys, body, n, lease, delay, to) in zip(ids, rows, strict=True):
            visible = None if delay is None else now + delay
            expires = None if lease is None else (visible or now) + lease
            place, kind = id_ + later, "written" if delay is None else "delayed"
            leased = (expires, visible, lease, to)
            entries.append((id_, self.id, number, place, keys, body, us, n, *leased))
            written.append((id_, number, place, body, us, n, expires, visible, 0, to, lease))
            made = (self.id, now, kind, id_, us, n, us, label)
            changes.append((*made, expires, body, visible, to))
        await self.database.copy(
            link,
            "COPY tupelo.entries (id, space, shape, arrival, keys, body, origin, n, expires, "
            "visible, lease, addressee) FROM STDIN",
            entries,
        )
        if not later:
            await self.database.copy(
                link,
                "COPY tupelo.changes (space, time, kind, entry, origin, n, agent, agent_name, "
                "expires, body, visible, addressee) FROM STDIN",
                changes,
            )
            await self.run(
                link,
                "SELECT pg_notify(%(channel)s, number::text) FROM unnest(%(numbers)s::int[]) "
                "AS told (number)",
                numbers=sorted({row[0] for row in rows}),
            )
        return written

    async def _make_room(
        self, link: Any, txn: PostgresTransaction | None, bodies: list[bytes]
    ) -> None:
        """Evict entries, or raise SpaceFull. Writers outside of transactions come one by one."""
        if txn is None:
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
            raise SpaceFull(
                full_text(options.entries, options.size_bytes, len(bodies)),
                hopeless=not fits(len(bodies), sum(map(len, bodies))),
            )
        await self.run(link, self.sql.delete, ids=victims, logs=True, **self.change("evicted"))

    async def _until_room(
        self, write: Any, txn: PostgresTransaction | None, wait: float | None
    ) -> list[WrittenEntry]:
        """Write, and wait for room in a full space."""

        async def attempt(waiter: Waiter | None) -> tuple[bool, Any]:
            try:
                return True, await self.within(txn, write, True)
            except SpaceFull as full:
                if wait == 0 or full.hopeless:
                    raise
                return False, full

        done, result = await self.until(attempt, wait, txn, None, writes=True)
        if not done:
            raise result
        written: list[WrittenEntry] = result
        return written

    # Waiting

    async def until(
        self,
        attempt: Callable[[Waiter | None], Coroutine[Any, Any, tuple[bool, Any]]],
        wait: float | None,
        txn: PostgresTransaction | None,
        search: Search | None,
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
            is_listening = listener.join(self.id, waiter)
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
                done, result = await attempt(waiter)
                if done or (deadline is not None and self.clock.now() >= deadline):
                    return done, result
                due = await self._next_look(waiter, search)
                listener.looked(self.id, waiter)
                cancel = None if due is None else self.clock.call_at(due, self._alarm(waiter))
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

    @staticmethod
    def _alarm(waiter: Waiter) -> Callable[[], None]:
        def _on_alarm() -> None:
            waiter.wake()

        return _on_alarm

    async def _next_look(self, waiter: Waiter, search: Search | None) -> float | None:
        """The moment at which to look again without being told: entries expire or appear then, or
        a holder may be gone. Who was in hand when the waiter looked may be free again by now."""

        async def ask(link: Any) -> Row:
            return (await self.run(link, self.sql.state))[0]

        _, late, held, seconds = await self.reading(ask)
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
        txn: Txn,
        order: Order | None,
        if_exists: bool,
        scope: Scope | None,
        coverage: Coverage | None,
        about: list[About] | None = None,
    ) -> Any:
        check_about(about)
        if order is not None:
            check_order(order)
            if order.head_only:
                raise CannotSend(f"a space in a database has no head, as {order!r} needs")
        self.require_here(scope, coverage)
        search = Search(template, take, many, limit, order, bool(if_exists))
        if take and txn is None:
            search.token = next(self._next_token)
        try:
            found = await self.find(search, wait, limit, txn)
            note_about(found, about)
            values = [entry.value for entry in found]
            return values if many else values[0] if values else None
        except (TupeloError, GeneratorExit):
            raise
        except BaseException:  # cancelled, KeyboardInterrupt: nobody gets the answer
            try:
                await self.database.to_the_end(lambda: self._give_back(search, txn))
            except TupeloError as failure:
                logger.error("a take that was interrupted may be done: %s", failure)
            raise

    async def _give_back(self, search: Search, txn: Txn) -> None:
        """Undo a take whose caller is gone, even if the space was closed here. A transaction that
        has taken something is aborted."""
        if isinstance(txn, PostgresTransaction) and search.took:
            await txn.interrupted()
        if search.token is None or search.link is None:
            return
        backend = search.backend if search.link.closed else None
        rows = await self._done(backend, search.token)

        async def insert(link: Any) -> tuple[None, str]:
            for row in rows:
                shape, fields = decode_entry(bytes(row[3]))
                await self.run(
                    link,
                    self.sql.give_back,
                    id=row[0],
                    shape=self._numbers[shape],
                    keys=[key_of(value) for value in fields],
                    **{**self.change("returned"), "token": search.token},
                )
            return None, (await self.run(link, "SELECT pg_current_xact_id()::text"))[0][0]

        if rows:
            await self.atomic(insert, even_closed=True)

    async def find(
        self,
        search: Search,
        wait: float | None,
        limit: int | None,
        txn: Txn,
        session: PostgresSession | None = None,
    ) -> list[Entry]:
        """The entries of a read or take, when there are any."""
        check_wait(wait)
        check_limit(limit)
        branch = self.branch(txn)

        async def attempt(waiter: Waiter | None) -> tuple[bool, list[Entry] | None]:
            # Before the look: what is committed in between is found.
            may_come = search.if_exists and await self._may_come(search, branch)
            if gathers and may_come:
                return False, None
            if session is not None:
                found = await session.look(search)
            else:
                found = await self.look(search, branch)
            return bool(found) or (search.if_exists and not may_come), found

        # A read_all or take_all that waits for transactions answers with all matches in the end.
        gathers = search.if_exists and search.many and wait != 0
        _, found = await self.until(attempt, wait, branch, search)
        if found is None:
            found = await self.look(search, branch)
        return list(found)

    def require_here(self, scope: Scope | None, coverage: Coverage | None = None) -> None:
        """Check a scope: the space is in one place."""
        check_scope(scope)
        check_coverage(coverage)
        if scope is not None and scope != HERE:
            raise BadArgument("scope", "HERE or None: the space is in one database", scope)
        if coverage is not None:
            coverage.fill([self.database.where])

    async def look(self, search: Search, txn: PostgresTransaction | None) -> list[Entry]:
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
                found = await self.within(txn, body, search.take)
            except GiveWay:
                return []
            if found is not None:
                entries: list[Entry] = found
                return entries

    def _give_way(self, search: Search, entries: list[Entry]) -> None:
        """Undo a take of what another operation of this program, which waits for longer, would
        get. Each gets one such chance for an entry."""
        listener = self.database.listener
        for other in listener.waiting(self.id):
            if other is search.waiter:
                return
            asked = other.search
            if asked is None or not asked.take:
                continue
            for entry in entries:
                chance = (id(other), entry.arrival)
                if chance in search.chances or not asked.template.admits(entry.shape, entry.fields):
                    continue
                search.chances.add(chance)
                listener.prefer(self.id, other, search.waiter)
                raise GiveWay

    async def _is_stale(self, link: Any, state: State, known: int, search: Search) -> bool:
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

    def _is_direct(self, search: Search, targets: Targets) -> bool:
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

    async def _take_directly(self, search: Search, targets: Targets) -> list[Entry] | None:
        """Take the oldest entries of one shape, in one statement. None if the state of the space
        needs a closer look."""
        group = targets.sole
        assert group is not None
        self.indexing.note(group)
        rows = await self.at_once(
            self.sql.take(group),
            search,
            shape=group.shapes[0],
            known=targets.known,
            limit=LAST if search.limit is None else search.limit,
            **{f"key0_{i}": key for i, key in enumerate(group.keys)},
            **self.change("taken", search=search),
        )
        *_, is_fresh, skipped = rows[0]
        if rows[0][0] is None:
            search.skipped = skipped
            return [] if is_fresh else None
        return [self.entry_of(row) for row in rows]

    async def xid(self, link: Any) -> str | None:
        """The id of the transaction in the database, if it changed something."""
        rows = await self.run(link, "SELECT pg_current_xact_id_if_assigned()::text")
        xid: str | None = rows[0][0]
        return xid

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
        search: Search,
        targets: Targets,
        order: Order,
        txn: PostgresTransaction | None,
    ) -> tuple[list[Entry] | None, str | None]:
        """Find candidates without locks, check them here, then lock those that are wanted."""
        known = targets.known
        for group in targets.groups:
            self.indexing.note(group)
        if not targets.groups:
            ((*now, _),) = await self.run(link, self.sql.state)
            stale = await self._is_stale(link, State(*now), known, search)
            return (None if stale else []), None
        simple = type(order) in (Fifo, Lifo)
        limit = search.limit if simple else None
        found: list[tuple[Row, Entry]] = []
        state: State | None = None
        async for rows, state in self._batches(link, targets, order.backwards, limit):
            if await self._is_stale(link, state, known, search):
                return None, None
            passed = [(row, self.entry_of(row, False)) for row in self._checked(rows, targets)]
            seen = search.seen
            matches = [one for one in passed if seen is None or one[1] not in seen]
            if simple:
                wanted = None if limit is None else limit - len(found)
                found += await self._claim_some(link, search, matches, wanted, txn, state)
                if limit is not None and len(found) >= limit:
                    break
            else:
                found += matches
        if state is None:
            ((*now, _),) = await self.run(link, self.sql.state)
            if await self._is_stale(link, State(*now), known, search):
                return None, None
        if not simple:
            found = await self._claim_arranged(link, search, found, order, txn, state)
        if search.known:
            for _, entry in found:
                require_known(entry)
        if search.take:
            self._give_way(search, [entry for _, entry in found])
        if txn is not None and search.take:
            txn.took([row for row, _ in found])
            search.took = bool(found)
        changed = search.take and txn is None and found
        return [entry for _, entry in found], await self.xid(link) if changed else None

    def _checked(self, rows: list[Row], targets: Targets) -> list[Row]:
        """Those of these rows that the checks in Python let pass."""
        return [
            row
            for row in rows
            if (check := targets.checks.get(row[1])) is None
            or check(self.entry_of(row, known=False).fields)
        ]

    async def _batches(
        self, link: Any, targets: Targets, backwards: bool, limit: int | None
    ) -> Any:
        """Candidates in order of arrival, in bounded batches, each with the state of the space."""
        if not targets.groups:
            return  # No shape in the space can match.
        statement = self.sql.candidates(targets.groups, backwards)
        values = statements.values_of(targets.groups)
        batch = BATCH if targets.checks or limit is None else min(limit + 4, BATCH)
        after, until = -1, LAST
        while True:
            rows = await self.run(link, statement, **values, after=after, until=until, batch=batch)
            if rows:
                yield rows, State(*rows[0][11:14])
            if len(rows) < batch:
                return
            batch = min(batch * 4, BATCH * 16)
            if backwards:
                until = rows[-1][2]
            else:
                after = rows[-1][2]

    async def _claim_some(
        self,
        link: Any,
        search: Search,
        matches: list[tuple[Row, Entry]],
        wanted: int | None,
        txn: PostgresTransaction | None,
        state: State,
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
        search: Search,
        found: list[tuple[Row, Entry]],
        order: Order,
        txn: PostgresTransaction | None,
        state: State | None,
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
        search: Search,
        chosen: list[tuple[Row, Entry]],
        txn: PostgresTransaction | None,
        state: State,
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
            search.link, search.backend = link, link.info.backend_pid
            change = self.change("taken", search=search)
            rows = await self.run(link, self.sql.delete, ids=ids, logs=txn is None, **change)
        elif txn is not None and not glance:
            await txn.hold(link)
            rows = await self.run(link, self.sql.hold, ids=ids)
            txn.read.update(row[0] for row in rows)
        elif state.held:
            rows = await self._glance(link, ids, txn is not None or search.take)
        else:
            return chosen
        got = {row[0] for row in rows}
        search.skipped = search.skipped or len(got) < len(ids)
        return [one for one in chosen if one[0][0] in got]

    async def _glance(self, link: Any, ids: list[int], inside: bool) -> list[Row]:
        """Which of these are not in the hands of others; leaves no locks."""
        begin, end = ("SAVEPOINT glance", "ROLLBACK TO glance") if inside else ("BEGIN", "ROLLBACK")
        await self.database.run(link, begin)
        try:
            return await self.run(link, self.sql.glance, ids=ids)
        finally:
            if not link.closed:
                await self.database.run(link, end)

    async def _may_come(self, search: Search, txn: PostgresTransaction | None) -> bool:
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
            one.backend
            for one in list(self.handles)
            if isinstance(one, PostgresTransaction) and one.is_root
        ]
        targets = search.targets(self.shapes)

        async def ask(link: Any) -> bool:
            ((others,),) = await self.run(
                link,
                "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = "
                f"{statements.HELD}::oid AND objid = %(space)s::int::oid "
                "AND NOT coalesce(pid = ANY(%(ours)s::int[]), false))",
                ours=ours,
            )
            if others:
                return True
            if not targets.groups or not search.take:
                return False
            # Read locks of our own transactions hinder a take, too.
            async for rows, _ in self._batches(link, targets, False, None):
                ids = [row[0] for row in self._checked(rows, targets)]
                await self.database.run(link, "BEGIN")
                free = await self.run(link, self.sql.free, ids=ids)
                await self.database.run(link, "ROLLBACK")
                if len(free) < len(ids):
                    return True
            return False

        return bool(await self.reading(ask))

    @dual_api
    async def _count(
        self, template: object, txn: Txn, scope: Scope | None, coverage: Coverage | None
    ) -> int:
        self.require_here(scope, coverage)
        search = Search(template, False, True, None)
        branch = self.branch(txn)
        await self._end_expired()
        while True:
            targets = search.targets(self.shapes)

            async def count(link: Any, targets: Targets = targets) -> tuple[int | None, None]:
                statement = self.sql.count(() if targets.checks else targets.groups)
                values = {} if targets.checks else statements.values_of(targets.groups)
                ((*state, found),) = await self.run(link, statement, **values)
                if await self._is_stale(link, State(*state), targets.known, search):
                    return None, None
                if not targets.checks and not State(*state).held:
                    return found, None
                total = 0
                async for rows, now in self._batches(link, targets, False, None):
                    matches = self._checked(rows, targets)
                    if now.held:
                        ids = [row[0] for row in matches]
                        total += len(await self._glance(link, ids, branch is not None))
                    else:
                        total += len(matches)
                return total, None

            answer = await self.within(branch, count, False)
            if isinstance(answer, tuple):
                answer = answer[0]
            if answer is not None:
                return int(answer)

    @dual_api
    async def _match_set(
        self, template: object, limit: int | None, txn: Txn, lease: float | None
    ) -> PostgresMatchSet:
        check_limit(limit)
        seconds = check_lease(lease)
        branch = self.branch(txn)
        search = Search(template, False, True, limit, Fifo())
        search.known = False
        return PostgresMatchSet(self, await self.look(search, branch), branch, seconds)

    @staticmethod
    def new_search(
        template: object, many: bool, limit: int | None, seen: Seen, session: str
    ) -> Search:
        """The search of a session."""
        return Search(template, False, many, limit, Fifo(), seen=seen, session=session)

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

    @dual_api
    async def in_doubt(self) -> list[PostgresTransaction]:
        self.require_open()
        return []

    @dual_api
    async def in_hand(self, template: object = ANY) -> list[InHand]:
        """Those of this program: the server does not tell what others have locked."""
        self.require_open()
        wanted, found = as_template(template), []
        for one in list(self.handles):
            if isinstance(one, PostgresTransaction) and one.is_root:
                taken = [self.entry_of(row, known=False) for row in one.taken.values()]
                count = sum(wanted.admits(entry.shape, entry.fields) for entry in taken)
                if count:
                    found.append(InHand(self._agent, self._label, count, one.id))
        return found

    @dual_api
    async def delayed(
        self, template: object = ANY, *, limit: int | None = None, cancel: bool = False
    ) -> Delayed:
        check_limit(limit)
        wanted = as_template(template)
        self.require_open()
        await self.tidy()

        async def look(link: Any) -> tuple[Delayed, Any]:
            rows = await self.run(link, self.sql.delayed)
            entries = [(row[7], row[0], self.entry_of(row, known=False)) for row in rows]
            found = [one for one in entries if wanted.admits(one[2].shape, one[2].fields)]
            first = found[:limit]
            if not cancel:
                return Delayed(len(found), [(at, entry.value) for at, _, entry in first]), None
            gone = await self.run(
                link,
                self.sql.delete,
                ids=[id_ for _, id_, _ in first],
                logs=True,
                **self.change("cancelled"),
            )
            return Delayed(len(gone), []), gone[0][1] if gone else None

        answer: Delayed = await self.within(None, look, bool(cancel))
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
        txn: Txn,
        handback: Any,
        backlog_max: int,
        available: bool,
        returned: bool,
        removed: bool,
        scope: Scope | None,
    ) -> Any:
        if callback is not None and not callable(callback):
            raise BadArgument("callback", "a function of a notice", callback)
        if iscoroutinefunction(callback) and not self.is_async:
            raise BadArgument("callback", "a plain function, or use tupelo.aio", callback)
        check_count(backlog_max, "backlog_max")
        self.require_here(scope)
        seconds = check_lease(lease)
        if self.branch(txn) is not None:
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
        if not callable(function):
            raise BadArgument("function", "a function of an entry and a step", function)
        if iscoroutinefunction(function) and not self.is_async:
            raise BadArgument("function", "a plain function, or use tupelo.aio", function)
        self.require_here(scope)
        return self.dual_call(self._open_reaction, template, function, bool(once), bool(existing))

    async def _open_reaction(
        self, template: object, function: Any, once: bool, existing: bool
    ) -> PostgresReaction:
        what = (template, False, True, False)
        subscription = await self.log.subscribed(what, None, None, 10_000)
        entries = []
        if existing:
            entries = await self.look(Search(template, False, True, None, Fifo()), None)
        reaction = PostgresReaction(self, subscription, function, once)
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
        for handle in list(self.handles):
            if isinstance(handle, Waiter):
                handle.wake()
            else:
                await handle.end_with_space()
        self.database.listener.forget(self.id)
        await self.database.release()

    def __dir__(self) -> list[str]:
        return names_of(SpaceLike, "agent", "host", "is_async", "space")

    def __repr__(self) -> str:
        door = "aio." if self.is_async else ""
        return f"{door}PostgresSpace({self._name!r}, {self.database.where!r})"


def check_name(name: object) -> str:
    """The name of a space."""
    if not isinstance(name, str) or not name:
        raise BadArgument("name", "the name of a space", name)
    return check_text("name", "the name of a space", name)


def check_text(argument: str, what: str, text: str) -> str:
    """PostgreSQL keeps no text with the character 0, nor half a character."""
    if "\0" in text:
        raise BadArgument(argument, f"{what}, without the character 0", text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadArgument(argument, "valid Unicode", text) from None
    return text
