"""The driver, psycopg, for both APIs: connections, statements, and its errors as ours.

A `Database` is shared by all spaces of this program (and event loop) in one database. Its methods
are coroutines; those of the blocking API never wait for a loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, ClassVar

from tupelo.errors import (
    BadArgument,
    CannotReach,
    DiskFull,
    JournalError,
    JournalFailed,
    NotAllowed,
    PeerLost,
    SpaceClosed,
    TupeloError,
)
from tupelo.postgres import schema
from tupelo.space.dual_api import ThreadLock, run_sync

try:
    import psycopg
    from psycopg import errors as sql_errors
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise BadArgument(
        "url",
        'one of a host; for PostgreSQL install the driver: pip install "tupelo[postgres]"',
        "postgresql://...",
    ) from error

from tupelo.postgres.listening import Listener, Waiter  # needs the driver

Row = tuple[Any, ...]
SETUP = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
"""Every statement sees what is committed when it begins, whatever the database's default is."""
IDLE_MAX = 16
"""So many connections are kept open for the next operations."""


class Database:
    """The connections of this program to one database. Those of transactions are their own."""

    is_async: bool
    _shared: ClassVar[dict[Any, Database]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, conninfo: str, key: Any) -> None:
        self.conninfo = conninfo
        self.where = _where(conninfo)
        self.users = 0
        self.indexed: set[int] = set()
        self.listener = Listener(conninfo, self.where)
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
        found = await self.run(link, "SELECT to_regclass('tupelo.version') IS NOT NULL")
        if not found[0][0]:
            await create_tables(self, link)
        rows = await self.run(link, "SELECT version FROM tupelo.version")
        if not rows or rows[0][0] != schema.VERSION:
            raise JournalError(
                f"the tables at {self.where} are of version {rows[0][0] if rows else 'unknown'}, "
                f"and this program knows version {schema.VERSION}: use the Tupelo that made them"
            )

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

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection for one operation."""
        link = await self.acquire()
        try:
            yield link
        finally:
            await self.give_back(link)

    async def acquire(self) -> Any:
        self.require_own()
        with suppress(IndexError):  # Others take some, too.
            while True:
                link = self._idle.pop()
                if not link.closed:
                    return link
        with self.translated("connecting", opening=True):
            return await self.open()

    async def give_back(self, link: Any) -> None:
        """Keep a connection for the next operation, unless it is lost or in a transaction."""
        if self.is_inherited:
            return
        idle = psycopg.pq.TransactionStatus.IDLE
        with self._guard:
            keep = self.users > 0 and len(self._idle) < IDLE_MAX and not link.closed
            if keep and link.info.transaction_status == idle:
                self._idle.append(link)
                return
        await self.close(link)

    async def open(self) -> Any:
        raise NotImplementedError

    async def close(self, link: Any) -> None:
        raise NotImplementedError

    async def run(
        self, link: Any, statement: str, values: Any = (), during: str = "an operation"
    ) -> list[Row]:
        """Execute a statement and return its rows, if it has any."""
        self.require_own()
        with self.translated(during):
            return await self._execute(link, statement, values)

    async def _execute(self, link: Any, statement: str, values: Any) -> list[Row]:
        raise NotImplementedError

    async def copy(self, link: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """COPY rows into a table."""
        raise NotImplementedError

    @contextmanager
    def translated(self, during: str, opening: bool = False) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self.error_of(error, during, opening) from error

    def error_of(self, error: psycopg.Error, during: str, opening: bool = False) -> TupeloError:
        """Our error for one of the driver, with the reason that the server gave."""
        reason = str(error).strip() or type(error).__name__
        if isinstance(error, sql_errors.DiskFull):
            return DiskFull(f"PostgreSQL at {self.where}: {reason}")
        if isinstance(error, sql_errors.InsufficientPrivilege):
            return NotAllowed(f"use the tables ({reason})", self.where, "the database user")
        if opening:
            return CannotReach(self.where, reason)
        if isinstance(error, (sql_errors.QueryCanceled, sql_errors.LockNotAvailable)):
            return JournalFailed(f"PostgreSQL at {self.where} gave up {during}: {reason}")
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return PeerLost(f"PostgreSQL at {self.where}", during, reason)
        return JournalFailed(f"PostgreSQL at {self.where} refused {during}: {reason}")

    # Waiting

    async def sleep(self, waiter: Waiter) -> None:
        """Wait until the waiter is woken."""
        raise NotImplementedError

    def new_waiter(self) -> Waiter:
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
        """Await a coroutine, which goes on if the caller is cancelled meanwhile."""
        raise NotImplementedError


class BlockingDatabase(Database):
    is_async = False

    async def open(self) -> Any:
        link = psycopg.connect(self.conninfo, autocommit=True)
        link.execute(SETUP)
        return link

    async def close(self, link: Any) -> None:
        link.close()

    async def _execute(self, link: Any, statement: str, values: Any) -> list[Row]:
        cursor = link.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    async def copy(self, link: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self.translated("a write"), link.cursor().copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    async def sleep(self, waiter: Waiter) -> None:
        waiter.event.wait()

    def new_waiter(self) -> Waiter:
        return Waiter(threading.Event())

    def new_lock(self) -> Any:
        return ThreadLock()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        threading.Thread(target=run_sync, args=(work,), name=name, daemon=True).start()

    def call_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        run_sync(work)

    async def to_the_end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await work()


class AsyncDatabase(Database):
    is_async = True

    def __init__(self, conninfo: str, key: Any) -> None:
        super().__init__(conninfo, key)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> Any:
        link = await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True)
        await link.execute(SETUP)
        return link

    async def close(self, link: Any) -> None:
        await link.close()

    async def _execute(self, link: Any, statement: str, values: Any) -> list[Row]:
        cursor = await link.execute(statement, values or None)
        return await cursor.fetchall() if cursor.description else []

    async def copy(self, link: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self.translated("a write"):
            async with link.cursor().copy(statement) as copy:
                for row in rows:
                    await copy.write_row(row)

    async def sleep(self, waiter: Waiter) -> None:
        await waiter.event.wait()

    def new_waiter(self) -> Waiter:
        event = asyncio.Event()
        return Waiter(event, lambda: self._loop.call_soon_threadsafe(event.set))

    def new_lock(self) -> Any:
        return asyncio.Lock()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._start(work, name)

    def _start(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def to_the_end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await asyncio.shield(self._start(work, "tupelo-return"))

    def call_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(lambda: self.start(work, "tupelo-lease"))


_inherited: list[Database] = []  # Their connections must not be closed here.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=Database.detach_all)


async def create_tables(database: Database, link: Any) -> None:
    """Make the tables, unless another program just did."""
    await database.run(link, "BEGIN")
    try:
        await database.run(link, "SELECT pg_advisory_xact_lock(%s)", (schema.INIT_LOCK,))
        await database.run(link, schema.TABLES)
        await database.run(
            link,
            "INSERT INTO tupelo.version SELECT %s WHERE NOT EXISTS (SELECT FROM tupelo.version)",
            (schema.VERSION,),
        )
    except BaseException:
        await database.run(link, "ROLLBACK")
        raise
    await database.run(link, "COMMIT")


def _where(conninfo: str) -> str:
    """The address without user and password, for messages."""
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.Error as error:
        reason = str(error).strip()
        raise BadArgument("url", "the address of a database", f"one with an {reason}") from error
    return f"{parts.get('host') or 'localhost'}/{parts.get('dbname') or ''}"
