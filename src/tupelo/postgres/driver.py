"""The driver, psycopg, for both APIs: connections, statements, and its errors as ours.

A `Database` is shared by all spaces of this program (and event loop) in one database. Its methods
are coroutines; those of the blocking API never wait for a loop.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

from tupelo.errors import (
    BadArgument,
    CannotReach,
    Deadlock,
    DiskFull,
    JournalError,
    JournalFailed,
    NotAllowed,
    PeerLost,
    SpaceClosed,
    TupeloError,
)
from tupelo.postgres import schema
from tupelo.postgres.indexing import existing
from tupelo.space.clock import system_clock
from tupelo.space.dual_api import ThreadLock, run_sync
from tupelo.space.tasks import Tasks, to_the_end

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as error:
    raise BadArgument(
        "url",
        'one of a host; for PostgreSQL install the driver: pip install "tupelo[postgres]"',
    ) from error

from tupelo.postgres.listening import NotificationListener, WaitingOperation  # needs the driver
from tupelo.postgres.prepared import AsyncLink, Backend, BlockingLink
from tupelo.postgres.prepared import Row as Row

T = TypeVar("T")

SETUP = """
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off;
SET jit = off;
SELECT pid, extract(epoch FROM backend_start)::float8 FROM pg_stat_activity
WHERE pid = pg_backend_pid()
"""
"""Every statement sees what is committed when it begins, whatever the database's default is. It is
planned once: planning takes longer than execution. All statements have an index in the order that
they ask for, and the planner must not decide otherwise because it met an empty table."""
IDLE = psycopg.pq.TransactionStatus.IDLE
LOST = ("08", "57P", "25P03", "25P04", "40")
"""The states of errors after which the connection is gone, or the server has undone the
transaction, so that an operation can be repeated: lost, shut down, idle for too long, in conflict
with another."""
IDLE_MAX = 16
"""So many connections are kept open for the next operations."""
CONNECTIONS_MAX = 32
"""So many operations have a connection at the same moment, unless the URL says `connections=`."""
PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A server that is gone without a word is noticed after a minute, also if it owes an answer (then
there are no keepalives), and one that does not answer at all after 10 s; unless the URL says
otherwise."""

_has_slot: ContextVar[bool] = ContextVar("has_slot", default=False)


class Database:
    """The connections of this program to one database. Those of transactions are their own."""

    is_async: bool
    _shared: ClassVar[dict[Any, Database]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, conninfo: str, key: Any) -> None:
        self.conninfo = conninfo
        url, self.connections_max = _split_connections(conninfo)
        self.where = where_of(conninfo)
        self.settings = make_conninfo(url, **{**PATIENCE, **conninfo_to_dict(url)})
        self.users = 0
        self.identity = ""
        """The id of the tables in the database: of two addresses one can tell that they are one."""
        self.indexed: frozenset[int] = frozenset()
        self.ranked: frozenset[Any] = frozenset()
        """The places, and the orders by a number, that are known to have an index."""
        self.listener = NotificationListener(self.settings, self.where)
        self._key = key
        self._idle: list[Any] = []
        self._is_ready = False
        self.is_inherited = False
        """After a fork: the connections are the parent's."""

    @staticmethod
    async def shared(conninfo: str, is_async: bool) -> Database:
        """The database at this address for the caller's API and loop; `release` it in the end."""
        key = (conninfo, asyncio.get_running_loop() if is_async else None)
        with Database._guard:
            found = Database._shared.get(key)
            if found is None:
                found = (AsyncDatabase if is_async else BlockingDatabase)(conninfo, key)
                Database._shared[key] = found
            found.users += 1
        try:
            if not found._is_ready:
                async with found.connection() as link:
                    await found._require_tables(link)
                    found.indexed = await existing(found, link)
                found._is_ready = True
        except BaseException:
            await found.release()
            raise
        return found

    async def release(self) -> None:
        """One user less; the last one closes the connections."""
        if self.is_inherited:
            return
        with self._guard:
            self.users -= 1
            if self.users:
                return
            self._shared.pop(self._key, None)
        self.listener.close()
        while self._idle:
            await self.close(self._idle.pop())

    async def _require_tables(self, link: Any) -> None:
        """Make the tables if there are none."""
        version = await self.version(link)
        if version == 0:
            await self.migrate(link)
        elif version < schema.VERSION:
            raise JournalError(
                f"the tables at {self.where} are of version {version}, and this program needs"
                f" version {schema.VERSION}: run `tupelo store migrate` with their URL"
            )
        else:
            self.require_known_version(version)
        ((self.identity,),) = await self.run(link, "SELECT id::text FROM tupelo.version")

    def require_known_version(self, version: int) -> None:
        """Raise JournalError if a newer Tupelo has made the tables."""
        if version > schema.VERSION:
            raise JournalError(
                f"the tables at {self.where} are of version {version}, and this program knows"
                f" version {schema.VERSION}: use a newer Tupelo"
            )

    async def version(self, link: Any) -> int:
        """The version of the tables; 0 if there are none."""
        found = await self.run(link, "SELECT to_regclass('tupelo.version') IS NOT NULL")
        if not found[0][0]:
            return 0
        rows = await self.run(link, "SELECT max(version) FROM tupelo.version")
        return rows[0][0] or 0

    async def migrate(self, link: Any) -> tuple[int, int]:
        """Make the tables, or those of an older version new, unless another program just did.
        Returns the version before and that of now."""
        await self.run(link, "BEGIN")
        try:
            lock = "SELECT pg_advisory_xact_lock(%(lock)s)"
            await self.run(link, lock, {"lock": schema.INIT_LOCK})
            before = await self.version(link)
            self.require_known_version(before)
            for migration in schema.MIGRATIONS[before:]:
                await self.run(link, migration)
            version = {"version": schema.VERSION}
            await self.run(link, "UPDATE tupelo.version SET version = %(version)s", version)
            await self.run(
                link,
                "INSERT INTO tupelo.version (version) SELECT %(version)s "
                "WHERE NOT EXISTS (SELECT FROM tupelo.version)",
                version,
            )
        except BaseException:
            await self.run(link, "ROLLBACK")
            raise
        await self.run(link, "COMMIT")
        return before, schema.VERSION

    @classmethod
    def detach_all(cls) -> None:
        """In a new process: leave the connections alone, which are the parent's."""
        cls._guard = threading.Lock()
        for database in cls._shared.values():
            database.is_inherited = True
        _inherited.extend(cls._shared.values())
        cls._shared.clear()

    def require_own(self) -> None:
        """Raise SpaceClosed in a process that was forked from the one that connected."""
        if self.is_inherited:
            raise SpaceClosed("this process was forked from the one that connected: connect again")

    # Connections

    def connection(self) -> _Borrowed:
        """A connection for one operation: `async with database.connection() as link`. Waits while
        too many have one; the connections of transactions do not count."""
        return _Borrowed(self)

    @contextmanager
    def unlimited(self) -> Iterator[None]:
        """Connections for operations in this block do not wait for others, which may wait for the
        caller's transaction."""
        before = _has_slot.set(True)
        try:
            yield
        finally:
            _has_slot.reset(before)

    async def take_slot(self) -> None:
        """Wait until fewer than `connections_max` operations have a connection."""
        raise NotImplementedError

    def free_slot(self) -> None:
        raise NotImplementedError

    async def acquire(self) -> Any:
        self.require_own()
        while True:
            with self._guard:
                link = self._idle.pop() if self._idle else None
            if link is None:
                break
            if not link.closed:
                return link
        with self.translated("connecting", opening=True):
            return await self.open()

    async def give_back(self, link: Any) -> None:
        """Keep a connection for the next operation, unless it is lost or in a transaction."""
        if self.is_inherited:
            return
        if link.pgconn.transaction_status == IDLE:  # A lost one has another status.
            with self._guard:
                if self.users > 0 and len(self._idle) < IDLE_MAX:
                    self._idle.append(link)
                    return
        await self.close(link)

    async def open(self) -> Any:
        raise NotImplementedError

    async def close(self, link: Any) -> None:
        raise NotImplementedError

    async def run(
        self, link: Any, statement: str, values: dict[str, Any] | None = None
    ) -> list[Row]:
        """Execute a statement and return its rows, if it has any."""
        self.require_own()
        try:
            rows = link.wait(link.prepared.execute(statement, values or {}))
            return await rows if self.is_async else rows  # type: ignore[no-any-return]
        except psycopg.Error as error:
            raise self.error_of(error, "an operation") from error

    @contextmanager
    def translated(self, during: str, opening: bool = False) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self.error_of(error, during, opening) from error

    def error_of(self, error: psycopg.Error, during: str, opening: bool = False) -> TupeloError:
        """Our error for one of the driver, with the reason that the server gave."""
        reason = str(error).strip() or type(error).__name__
        server, state = f"PostgreSQL at {self.where}", error.sqlstate or ""
        if state == "53100":
            return DiskFull(f"{server}: {reason}")
        if state == "42501":
            return NotAllowed(f"use the tables ({reason})", self.where, "the database user")
        if state == "25006":
            return CannotReach(
                self.where,
                f"{reason}; with target_session_attrs=read-write in the"
                " URL the driver looks for a server that can be written",
            )
        if opening:
            return CannotReach(self.where, reason)
        if state in ("42P01", "3F000", "42703"):
            return JournalError(
                f"{server} lacks tables of Tupelo: run `tupelo store init`: {reason}"
            )
        if state in ("57014", "55P03"):
            return JournalFailed(f"{server} gave up {during}: {reason}")
        if state == "40P01":
            others = re.findall(r"blocked by process (\d+)", error.diag.message_detail or "")
            return Deadlock("", [f"server process {pid}" for pid in others])
        if state.startswith(LOST) or (
            not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        ):
            return PeerLost(server, during, reason)
        return JournalFailed(f"{server} refused {during}: {reason}")

    # Lost connections

    async def roll_back(self, link: Any) -> None:
        """Roll back, if the connection is there; otherwise the server does."""
        with suppress(PeerLost):
            if not link.closed:
                await self.run(link, "ROLLBACK")

    async def patiently(self, once: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Repeat, for so many seconds, what was not done because of a lost connection, because
        there is none now, or because of a deadlock in the server, which has ended with it."""
        give_up: float | None = None
        while True:
            try:
                return await once()
            except (PeerLost, CannotReach, Deadlock) as lost:
                now = time.monotonic()
                give_up = give_up or now + seconds
                if getattr(lost, "in_doubt", False) or now >= give_up:
                    raise
                await self.pause(0.05)

    async def when_ended(
        self,
        backend: Backend | None,
        ask: Callable[[Any], Coroutine[Any, Any, T]],
        seconds: float,
    ) -> T:
        """Ask the server for an outcome when it has ended a connection that was lost here."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            with suppress(PeerLost, CannotReach):
                async with self.connection() as link:
                    if backend is None or not await self._is_at_work(link, *backend):
                        return await ask(link)
            await self.pause(0.05)
        raise self.in_doubt("an operation")

    async def _is_at_work(self, link: Any, pid: int, began: float) -> bool:
        """Whether a process of the server is still there."""
        statement = (
            "SELECT FROM pg_stat_activity WHERE pid = %(pid)s "
            "AND extract(epoch FROM backend_start)::float8 = %(began)s"
        )
        return bool(await self.run(link, statement, {"pid": pid, "began": began}))

    def in_doubt(self, during: str) -> PeerLost:
        peer = f"PostgreSQL at {self.where}"
        return PeerLost(peer, during, "its outcome is not known", in_doubt=True)

    # Waiting

    async def pause(self, seconds: float) -> None:
        """Wait a moment of real time."""
        waiter = self.new_waiter()
        cancel = system_clock.call_at(system_clock.now() + seconds, waiter.wake)
        try:
            await self.sleep(waiter)
        finally:
            cancel()

    async def sleep(self, waiter: WaitingOperation) -> None:
        """Wait until the waiter is woken."""
        raise NotImplementedError

    def new_waiter(self) -> WaitingOperation:
        raise NotImplementedError

    def new_lock(self) -> Any:
        """An async context manager: one holder at a time."""
        raise NotImplementedError

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run a coroutine on its own thread, or as a task."""
        raise NotImplementedError

    def call_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine from any thread, such as that of a clock."""
        raise NotImplementedError

    async def to_the_end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await a coroutine; if the caller is cancelled meanwhile, it is afterwards."""
        raise NotImplementedError


class _Borrowed:
    """A connection, given back at the end of a block. (A generator would be slower.)"""

    def __init__(self, database: Database) -> None:
        self._database = database
        # An operation may need a second one: if it waited for that, all might wait for each other.
        self._is_second = _has_slot.get()

    async def __aenter__(self) -> Any:
        if not self._is_second:
            await self._database.take_slot()
            _has_slot.set(True)
        try:
            self._link = await self._database.acquire()
        except BaseException:
            self._free()
            raise
        return self._link

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._database.give_back(self._link)
        finally:
            self._free()

    def _free(self) -> None:
        if not self._is_second:
            _has_slot.set(False)
            self._database.free_slot()


class BlockingDatabase(Database):
    is_async = False

    def __init__(self, conninfo: str, key: Any) -> None:
        super().__init__(conninfo, key)
        self._slots: SimpleQueue[None] = SimpleQueue()  # a semaphore in C
        for _ in range(self.connections_max):
            self._slots.put(None)

    async def take_slot(self) -> None:
        self._slots.get()

    def free_slot(self) -> None:
        self._slots.put(None)

    async def open(self) -> Any:
        link = BlockingLink.connect(self.settings, autocommit=True)
        (link.backend,) = link.wait(link.prepared.execute(SETUP, {}))
        return link

    async def close(self, link: Any) -> None:
        link.close()

    async def sleep(self, waiter: WaitingOperation) -> None:
        waiter.event.wait()

    def new_waiter(self) -> WaitingOperation:
        return WaitingOperation(threading.Event())

    def new_lock(self) -> Any:
        return ThreadLock()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        threading.Thread(target=run_sync, args=(work,), name=name, daemon=True).start()

    def call_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.start(work, "tupelo-lease")  # The clock has one thread for all alarms.

    async def to_the_end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await work()


class AsyncDatabase(Database):
    is_async = True

    def __init__(self, conninfo: str, key: Any) -> None:
        super().__init__(conninfo, key)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._slots = asyncio.Semaphore(self.connections_max)

    async def take_slot(self) -> None:
        await self._slots.acquire()

    def free_slot(self) -> None:
        self._slots.release()

    async def open(self) -> Any:
        link = await AsyncLink.connect(self.settings, autocommit=True)
        (link.backend,) = await link.wait(link.prepared.execute(SETUP, {}))
        return link

    async def close(self, link: Any) -> None:
        await link.close()

    async def sleep(self, waiter: WaitingOperation) -> None:
        await waiter.event.wait()

    def new_waiter(self) -> WaitingOperation:
        event = asyncio.Event()
        return WaitingOperation(event, lambda: self._loop.call_soon_threadsafe(event.set))

    def new_lock(self) -> Any:
        return asyncio.Lock()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._tasks.start(work()).set_name(name)

    async def to_the_end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await to_the_end(work())

    def call_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(lambda: self.start(work, "tupelo-lease"))


_inherited: list[Database] = []  # Their connections must not be closed here.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=Database.detach_all)


def quoted(text: str) -> str:
    """A text constant, for statements that take no parameters."""
    return "'" + text.replace("'", "''") + "'"


def sqlstate(error: TupeloError) -> str | None:
    """The code of the server's error behind one of ours."""
    return getattr(error.__cause__, "sqlstate", None)


def _split_connections(url: str) -> tuple[str, int]:
    """The address for the driver, and how many connections operations may have."""
    base, _, query = url.partition("?")
    parts = query.split("&") if query else []
    asked = [part for part in parts if part.startswith("connections=")]
    if not asked:
        return url, CONNECTIONS_MAX
    count = asked[-1].partition("=")[2]
    if not count.isdecimal() or int(count) == 0:
        raise BadArgument("url", "one with connections= and a number from 1", count)
    rest = "&".join(part for part in parts if part not in asked)
    return f"{base}?{rest}" if rest else base, int(count)


def where_of(conninfo: str) -> str:
    """The address without user and password, for messages."""
    try:
        parts = conninfo_to_dict(_split_connections(conninfo)[0])
    except psycopg.Error as error:
        reason = str(error).strip()
        if "query parameter" not in reason:
            reason = re.sub(r'"[^"]*"', "...", reason)  # It may be a part of the password.
        raise BadArgument("url", f"the address of a database ({reason})") from None
    port = str(parts.get("port") or "0").replace(",", "")  # one for each host
    if not port.isdigit() and "@" in conninfo:
        expected = "the address of a database; in a password, / is spelled %2F"
        raise BadArgument("url", expected, conninfo)
    return f"{parts.get('host') or 'localhost'}/{parts.get('dbname') or ''}"
