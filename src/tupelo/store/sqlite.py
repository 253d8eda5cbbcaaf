"""The journal on disk: SQLite in WAL mode, with group commit.

There is one table of changes. The row of a change that wrote an entry keeps the entry's fields,
and lives as long as the entry lives or a change that is kept speaks of it; the entry's arrival is
the position of that row.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args
from uuid import uuid4

import msgspec

from tupelo.errors import DamagedFile, JournalFailed, SpaceInUse
from tupelo.store.filelock import FileLock, sync_folder
from tupelo.store.format import SCHEMA, take_over
from tupelo.store.groupcommit import GroupCommit, execute_many
from tupelo.store.header import APPLICATION_ID, FORMAT_VERSION, check_header, refuse
from tupelo.store.journal import require_kept
from tupelo.values.change import ENDINGS, Change, ChangeKind, Promise
from tupelo.values.codec import BadBytes, decode_entry, encode_entry

Durability = Literal["full", "process", "none"]
LogKeep = int | Literal["all"]
"""How many changes to keep, the newest; or all of them."""

LOG_KEEP = 100_000

_WRITE_BEHIND = 4_096
KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)
_CODES = {kind: code for code, kind in enumerate(KINDS)}
_REMARKS = frozenset({"read", "engaged", "disengaged"})  # The entry is as it was.
_WRITTEN, _RENEWED = _CODES["written"], _CODES["renewed"]

_INSERT = "INSERT INTO change VALUES {}"
_UPDATE = (
    "UPDATE change SET lease = v.column1, ended = v.column2"
    " FROM (VALUES {}) AS v WHERE position = v.column3"
)


class SavedPromise(msgspec.Struct, array_like=True):
    """A prepared transaction as it is kept: (n, expires, payload) of its writes, and arrivals; and
    (origin, the agent that it is for) of its writes."""

    written: list[tuple[int, float | None, bytes]]
    taken: list[int]
    read: list[int]
    marks: list[tuple[str, str | None]] = []


class SqliteJournal:
    """The journal in one file. Opening it refuses what is in use, foreign or damaged.

    `kept_from` says from which position on nothing may be forgotten yet, whatever else is asked.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        agent: str,
        durability: Durability,
        log_keep: LogKeep | None,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._durability = durability
        self._new_id = new_id
        self.waits = durability != "none"
        self._pending: list[Change] = []
        self._commit_lock = threading.Lock()
        self._commits = GroupCommit(self._commit)
        self._failure: JournalFailed | None = None
        self._uncertain = False  # whether what was last begun has been done
        self.kept_from: Callable[[], int] = lambda: sys.maxsize
        self._file_lock = FileLock(self.path.with_name(self.path.name + ".lock"))
        try:
            if not self._is_new():
                check_header(self.path)  # before a lock file is left beside a foreign file
            if not self._file_lock.acquire():
                raise SpaceInUse(f"{path} is open in another space, here or in another process")
        except OSError as error:
            raise JournalFailed(f"{path} cannot be opened: {error.strerror}") from error
        try:
            if self._is_new():
                self._create(name, agent)
            else:
                check_header(self.path)
            self._had_wal = self._beside("-wal").exists()
            # Until `start`, read only: a file that turns out to be damaged is left as it was.
            self._db = self._connect("ro")
            try:
                self._load_meta(log_keep)
            except BaseException:
                self._close_unchanged()
                raise
        except BaseException:
            self._file_lock.release()
            raise

    # Opening

    def _is_new(self) -> bool:
        return not self.path.exists() or (self.path.is_file() and not self.path.stat().st_size)

    def _beside(self, ending: str) -> Path:
        return self.path.with_name(self.path.name + ending)

    def _close_unchanged(self) -> None:
        """SQLite makes an empty log beside a file that it only reads; leave no trace of that."""
        self._db.close()
        log = self._beside("-wal")
        if not self._had_wal and log.exists() and not log.stat().st_size:
            log.unlink()
            self._beside("-shm").unlink(missing_ok=True)

    def _connect(
        self, mode: Literal["ro", "rw", "rwc"], path: Path | None = None
    ) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                f"{(path or self.path).as_uri()}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise JournalFailed(f"{self.path} cannot be opened: {error}") from error

    def _create(self, name: str, agent: str) -> None:
        """Make the file under another name first: a process may die at any moment."""
        draft = self.path.with_name(self.path.name + ".new")
        for remnant in ("", "-wal", "-shm"):
            draft.with_name(draft.name + remnant).unlink(missing_ok=True)
        db = self._connect("rwc", draft)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA.split(";\n"):
                db.execute(statement)
            db.executemany(
                "INSERT INTO meta VALUES (?, ?)",
                [("name", name), ("agent", agent), ("first", 1), ("position", 0), ("n", 0)],
            )
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            db.execute("COMMIT")
        except sqlite3.Error as error:
            raise JournalFailed(f"{self.path} cannot be made: {error}") from error
        finally:
            db.close()
        draft.replace(self.path)
        sync_folder(self.path.parent)

    def start(self) -> None:
        """Everything was read and found good: from now on, write."""
        self._db.close()
        self._db = self._connect("rw")
        level = "FULL" if self._durability == "full" else "NORMAL"
        self._db.execute(f"PRAGMA synchronous = {level}")
        self._db.execute("PRAGMA wal_autocheckpoint = 4000")
        if self._format < FORMAT_VERSION:
            self._run(lambda: take_over(self._db, self._format))
        keep = "all" if self._keep is None else self._keep
        settled = [("log_keep", keep), ("id", self.id)]
        self._run(lambda: self._db.executemany("REPLACE INTO meta VALUES (?, ?)", settled))

    def stop(self) -> None:
        """Opening failed further up: let go of the file, unchanged."""
        self._close_unchanged()
        self._file_lock.release()

    def _load_meta(self, log_keep: LogKeep | None) -> None:
        try:
            (self._format,) = self._db.execute("PRAGMA user_version").fetchone()
            meta = dict(self._db.execute("SELECT key, value FROM meta"))
            last, newest = self._db.execute("SELECT max(position), max(n) FROM change").fetchone()
            self.name: str = meta["name"]
            self.agent: str = meta["agent"]
            self.id: str = meta.get("id") or self._new_id()
            self.durable: int = max(last or 0, meta["position"])
            self.n: int = max(newest or 0, meta["n"])
            self._first: int = meta["first"]
            kept = meta.get("log_keep", LOG_KEEP) if log_keep is None else log_keep
            self._keep: int | None = None if kept == "all" else int(kept)
        except (sqlite3.DatabaseError, KeyError, TypeError) as error:
            refuse(self.path, error)

    def entries(self) -> Iterator[tuple[int, str, int, float | None, bytes, str | None]]:
        """The living entries in order of arrival: arrival, origin, n, expires, payload, and the
        agent that they are for."""
        agent = self.agent
        dest = "dest" if self._format >= 2 else "NULL"
        lease = "lease" if self._format >= 4 else "expires"
        try:
            for arrival, origin, n, expires, payload, to in self._db.execute(
                f"SELECT position, origin, n, {lease}, payload, {dest} FROM change"
                " WHERE kind = ? AND ended IS NULL ORDER BY position",
                (_WRITTEN,),
            ):
                if type(n) is not int or type(expires) not in (float, NoneType):
                    raise ValueError(f"the entry at {arrival} has n={n!r} and expires={expires!r}")
                yield arrival, origin or agent, n, expires, payload, to
        except (sqlite3.DatabaseError, ValueError) as error:
            refuse(self.path, error)

    def accepted(self) -> list[tuple[str, int]]:
        """Origin and number of what has come from elsewhere, as far as the log remembers."""
        if self._format < 2:
            return []
        return self._db.execute(
            "SELECT origin, n FROM change WHERE dest IS NOT NULL AND origin IS NOT NULL"
        ).fetchall()

    def was_committed(self, txn_id: str) -> bool:
        """Does the log remember that this transaction was prepared and committed?"""
        with self._commit_lock:
            self._commit_pending()
            found = self._db.execute(
                "SELECT 1 FROM change WHERE txn = ? AND kind = ? LIMIT 1",
                (txn_id, _CODES["committed"]),
            ).fetchone()
        return found is not None

    def promises(self) -> Iterator[tuple[str, SavedPromise]]:
        """The transactions that were prepared and not decided."""
        try:
            for txn_id, payload in self._db.execute("SELECT txn, payload FROM promise"):
                yield txn_id, msgspec.msgpack.decode(payload, type=SavedPromise)
        except (sqlite3.DatabaseError, msgspec.DecodeError) as error:
            refuse(self.path, error)

    # Writing

    def append(self, changes: list[Change]) -> None:
        self._pending.extend(changes)

    def flush(self, position: int) -> None:
        if not self.waits:
            if len(self._pending) >= _WRITE_BEHIND:
                self._commit()
        elif self.durable < position:
            self._commits.share(position)
        if self._failure is not None:
            raise self._failure

    def _commit(self) -> int:
        with self._commit_lock:
            if self._failure is None:
                self._commit_pending()
        return sys.maxsize if self._failure else self.durable

    def _commit_pending(self) -> None:
        """Commit all that is pending as one transaction of SQLite. Holds the commit lock."""
        self._reconcile()
        count = len(self._pending)
        batch = self._pending[:count]
        if not batch:
            return
        self._uncertain = True
        rows, updates, decisions = self._rows(batch)
        last = batch[-1].position
        surplus = 0 if self._keep is None else last - self._first - self._keep
        try:
            if len(rows) == 1 and not updates and not decisions and surplus <= 0:
                execute_many(self._db, _INSERT, rows)  # a statement is a transaction by itself
            else:
                self._db.execute("BEGIN")
                execute_many(self._db, _INSERT, rows)
                execute_many(self._db, _UPDATE, updates)
                for decision in decisions:
                    self._keep_decision(decision)
                if surplus > (self._keep or 0) // 4:
                    self._delete_before(last - (self._keep or 0) + 1)
                self._db.execute("COMMIT")
        except Exception as error:
            self._failure = JournalFailed(f"{self.path} refused a commit: {error}")
            self._failure.__cause__ = error
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            return
        # Only now: what is pending is never lost to an error that a caller could survive.
        del self._pending[:count]
        self.durable = last
        self._uncertain = False

    def _reconcile(self) -> None:
        """After a commit that was interrupted, by Ctrl-C say: did it happen? Holds the lock."""
        if self._uncertain:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            (last,) = self._db.execute("SELECT max(position) FROM change").fetchone()
            self.durable = max(self.durable, last or 0)
            self._pending[:] = [c for c in self._pending if c.position > self.durable]
            self._uncertain = False

    def _rows(
        self, batch: list[Change]
    ) -> tuple[list[list[Any]], list[tuple[Any, ...]], list[Change]]:
        """The rows to add, what to update in older ones, and the decisions of transactions."""
        own = self.agent
        rows: list[list[Any]] = []
        written: dict[int, list[Any]] = {}
        updates: dict[int, tuple[Any, ...]] = {}
        decisions: list[Change] = []
        for c in batch:
            kind, arrival = c.kind, c.arrival
            agent = None if c.agent == own else c.agent
            row: list[Any] = [
                c.position,
                c.time,
                _CODES[kind],
                arrival or None,
                agent,
                c.txn,
                c.waited,
            ]
            rows.append(row)
            if kind == "written":
                payload = c.payload
                if payload is None:
                    assert c.shape is not None and c.fields is not None
                    payload = encode_entry(c.shape, c.fields)
                origin = None if c.origin == own else c.origin
                row += (c.expires, None, origin, c.n, payload, c.to, c.session, c.expires)
                written[arrival] = row
                continue
            row += (c.expires, None, None, None, None, None, c.session, None)
            if not arrival:
                decisions.append(c)
            elif kind not in _REMARKS:
                ended = c.position if kind in ENDINGS else None
                if arrival in written:
                    written[arrival][8], written[arrival][14] = ended, c.expires
                else:
                    updates[arrival] = (c.expires, ended, arrival)
        return rows, list(updates.values()), decisions

    def _keep_decision(self, change: Change) -> None:
        """Keep what a prepared transaction promises; forget it when it is decided."""
        if change.promise is None:
            self._db.execute("DELETE FROM promise WHERE txn = ?", (change.txn,))
            return
        promise: Promise = change.promise
        written = [(e.n, e.expires, encode_entry(e.shape, e.fields)) for e in promise.written]
        marks = [(e.origin, e.to) for e in promise.written]
        saved = SavedPromise(written, list(promise.taken), list(promise.read), marks)
        self._db.execute(
            "INSERT INTO promise VALUES (?, ?)", (change.txn, msgspec.msgpack.encode(saved))
        )

    # Reading and trimming the log

    def read(self, since: int, limit: int | None) -> list[Change]:
        with self._commit_lock:
            self._commit_pending()
            if self._failure is not None:
                raise self._failure
            require_kept(since, self._first)
            try:
                rows = self._db.execute(
                    "SELECT c.position, c.time, c.kind, c.arrival, c.agent, c.txn, c.waited,"
                    " c.expires, w.origin, w.n, w.payload, w.dest, c.session"
                    " FROM change c LEFT JOIN change w ON w.position = c.arrival"
                    " WHERE c.position > ? ORDER BY c.position LIMIT ?",
                    (since, -1 if limit is None else limit),
                ).fetchall()
                return [self._change(*row) for row in rows]
            except (sqlite3.Error, BadBytes, LookupError, TypeError, ValueError) as error:
                raise DamagedFile(f"{self.path} is damaged ({error})") from error

    def _change(
        self,
        position: int,
        time: float,
        kind: int,
        arrival: int | None,
        agent: str | None,
        txn: str | None,
        waited: float,
        expires: float | None,
        origin: str | None,
        n: int | None,
        payload: bytes | None,
        to: str | None,
        session: str | None,
    ) -> Change:
        shape, fields = (None, None) if payload is None else decode_entry(payload)
        return Change(
            position=position,
            time=time,
            kind=KINDS[kind],
            arrival=arrival or 0,
            origin=origin or (self.agent if arrival else ""),
            n=n or 0,
            agent=agent or self.agent,
            txn=txn,
            waited=waited,
            expires=expires,
            shape=shape,
            fields=fields,
            payload=payload,
            to=to,
            session=session,
        )

    def trim(self, before: int) -> None:
        with self._commit_lock:
            self._commit_pending()
            self._run(lambda: self._delete_before(min(before, self.durable + 1)))

    def _delete_before(self, position: int) -> None:
        """Forget the changes before a position, and the ended entries that only they speak of."""
        position = min(position, self.kept_from())
        if position <= self._first:
            return
        # The numbering goes on even when nothing is left to count from.
        self._db.execute(
            "UPDATE meta SET value = max(value, (SELECT coalesce(max(n), 0) FROM change))"
            " WHERE key = 'n'"
        )
        self._db.execute(
            "UPDATE meta SET value = max(value, ?) WHERE key = 'position'", (position - 1,)
        )
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'first'", (position,))
        # Where a renewal is forgotten, the row of the entry says what became of its lease.
        self._db.execute(
            "UPDATE change SET expires = r.expires FROM (SELECT arrival, expires, max(position)"
            " FROM change WHERE position < ? AND kind = ? GROUP BY arrival) AS r"
            " WHERE change.position = r.arrival",
            (position, _RENEWED),
        )
        self._db.execute(
            "DELETE FROM change WHERE position < ?1 AND (kind != ?2 OR ended < ?1)",
            (position, _WRITTEN),
        )
        self._first = position

    def compact(self) -> None:
        """Give the space of what was trimmed back to the disk."""
        with self._commit_lock:
            self._commit_pending()
            if self._keep is not None:
                keep = self._keep
                self._run(lambda: self._delete_before(self.durable - keep + 1))
            try:
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise JournalFailed(f"{self.path} could not be compacted: {error}") from error

    def _run(self, work: Any) -> None:
        """Do this work as one transaction of SQLite. Holds the commit lock."""
        try:
            self._uncertain = True
            self._db.execute("BEGIN")
            work()
            self._db.execute("COMMIT")
            self._uncertain = False
        except sqlite3.Error as error:
            self._failure = JournalFailed(f"{self.path} refused a commit: {error}")
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise self._failure from error

    def close(self) -> None:
        with self._commit_lock:
            if self._failure is None:
                self._commit_pending()
            self._db.close()
            self._file_lock.release()
        if self._failure is not None:
            raise self._failure
