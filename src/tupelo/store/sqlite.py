"""The journal on disk: SQLite in WAL mode, with group commit.

There is one table of changes. The row of a change that wrote an entry has the entry's fields; it is
kept as long as the entry lives or a later change about it is kept. The entry's arrival is the
position of that row.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import msgspec

from tupelo.errors import DamagedFile, DiskFull, JournalFailed, SpaceInUse
from tupelo.store.diskroom import DiskRoom
from tupelo.store.filelock import FileLock, draft_of, sync_folder
from tupelo.store.format import (
    CHANGE,
    CHANGE_COUNT,
    CHECKED_SINCE,
    DELAYED,
    FORMAT_VERSION,
    KINDS,
    NUMBERS_END,
    WRITTEN,
    add_functions,
    bounded,
    change_crc,
    check_header,
    create,
    delete_before,
    entry_crc,
    entry_weight,
    entry_weights,
    holder_in,
    is_entry_crc,
    last_crc,
    lease_crc,
    meta_crc,
    promise_crc,
    promise_weight,
    refuse,
    require_crc,
    row_crc,
    take_over,
    write_meta,
)
from tupelo.store.groupcommit import GroupCommit, execute_many
from tupelo.store.highwater import HighWaterFile, HighWaterMark, file_of, read_mark, this_boot
from tupelo.store.journal import require_kept
from tupelo.values.change import ENDINGS, Change, Promise
from tupelo.values.codec import BadBytes, decode_entry, encode_entry
from tupelo.values.holder import Holder

Durability = Literal["full", "process", "none"]
LogKeep = int | Literal["all"]
"""The number of newest changes to keep; or all of them."""

LOG_KEEP = 100_000
logger = logging.getLogger(__name__)

_WRITE_BEHIND = 4_096
_CODES = {kind: code for code, kind in enumerate(KINDS)}
_REMARKS = frozenset({"read", "engaged", "disengaged"})  # the entry does not change

_COLUMNS = [
    *CHANGE.split(", "),
    *("crc", "origin", "n", "payload", "dest", "visible", "delayed"),
    *("ended", "lease", "lease_crc", "returns", "newest", "living"),
]
_CRC, _ENDED = map(_COLUMNS.index, ("crc", "ended"))
_NOTHING = (None,) * len(_COLUMNS)
_UPDATE = (
    "UPDATE change SET lease = v.column1, lease_crc = v.column2, returns = v.column3,"
    " ended = v.column4 FROM (VALUES {}) AS v WHERE position = v.column5"
)
_WRITE_SINGLE = (
    "INSERT INTO change (position, time, kind, arrival, waited, crc, n, payload, newest, living)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_END_SINGLE = (
    "INSERT INTO change (position, time, kind, arrival, waited, crc, ended, newest, living)"
    " VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?), (?, 0, 0, NULL, NULL, NULL, ?, NULL, NULL)"
    " ON CONFLICT (position) DO UPDATE SET ended = excluded.ended, lease = NULL, lease_crc = NULL"
)
"""For a commit of one common change: binds no NULL columns. The row of an entry that ends exists,
so its position conflicts; one statement for both needs no transaction."""
_CHECKED = ", ".join(f"c.{name}" for name in (*CHANGE.split(", "), "newest", "living", "crc"))
"""The columns under the checksum of a change, and the checksum."""
_CHECKED_6 = _CHECKED.replace("c.agent_name, c.deliveries", "NULL, NULL")

LOCKED_SECONDS = 60.0
"""How long a commit waits for another program that has locked the file, for example a backup,
before the space is closed with JournalFailed."""


class SavedPromise(msgspec.Struct, array_like=True):
    """A stored prepared transaction: (n, expires, payload) of its writes, and arrivals; (origin,
    agent that it is for) of its writes; the holder, if it is a delivery; and when its writes become
    visible, if some are delayed."""

    written: list[tuple[int, float | None, bytes]]
    taken: list[int]
    read: list[int]
    marks: list[tuple[str, str | None]] = []
    holder: Holder | None = None
    visible: list[float | None] = []


class SavedEntry(NamedTuple):
    """A living entry in the file: see `Entry`."""

    arrival: int
    origin: str
    n: int
    expires: float | None
    payload: bytes
    to: str | None
    deliveries: int
    visible: float | None
    delayed: int | None


class _Rows(NamedTuple):
    """The content of a commit: rows to add, without trailing columns that are NULL; updates of
    older rows; decisions of transactions."""

    added: list[list[Any]]
    updates: list[tuple[Any, ...]]
    decisions: list[Change]

    @property
    def is_one(self) -> bool:
        """Whether it is one row and nothing else."""
        return len(self.added) == 1 and not self.updates and not self.decisions


class SqliteJournal:
    """The journal in one file. Opening it refuses a file that is in use, foreign or damaged.

    Changes from position `kept_from` on are never trimmed. `n` is the last number that the space
    has given to an entry; entries from elsewhere have other numbers.
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
        self.room = DiskRoom(self.path)
        self._uncertain = False  # whether the last commit was interrupted
        self.last_time = 0.0  # of the last change when the file was opened, or 0
        self._living = self._read_living = 0  # the sum of what lives: as stored, and as read
        self.kept_from: Callable[[], int] = lambda: sys.maxsize
        self._file_lock = FileLock(self.path.with_name(self.path.name + ".lock"))
        try:
            if not self._is_new():
                check_header(self.path)  # before a lock file is created beside a foreign file
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
            self._high: HighWaterFile | None = None
            # Read-only until `start`: a damaged file must not be changed.
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
        """Remove the empty log that SQLite creates beside a file that it only reads."""
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
                timeout=LOCKED_SECONDS,
                uri=True,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise JournalFailed(f"{self.path} cannot be opened: {error}") from error

    def _create(self, name: str, agent: str) -> None:
        """Create the file under another name first, because the process may die at any moment."""
        draft = draft_of(self.path)
        for remnant in ("", "-wal", "-shm"):
            draft.with_name(draft.name + remnant).unlink(missing_ok=True)
        db = self._connect("rwc", draft)
        try:
            create(db)
            counts = {"first": 1, "position": 0, "n": 0, "living": 0}
            known = {"name": name, "agent": agent, "id": self._new_id(), "numbers": "own"}
            write_meta(db, known | counts)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            raise JournalFailed(f"{self.path} cannot be made: {error}") from error
        finally:
            db.close()
        draft.replace(self.path)
        sync_folder(self.path.parent)

    def start(self) -> None:
        """The file was read and is good: from now on, write."""
        self._require_living()
        self._db.close()
        self._db = self._connect("rw")
        level = "FULL" if self._durability == "full" else "NORMAL"
        self._db.execute(f"PRAGMA synchronous = {level}")
        self._db.execute("PRAGMA wal_autocheckpoint = 4000")
        add_functions(self._db)
        if self._format < FORMAT_VERSION:
            self._run(lambda: take_over(self._db, self._format))
        keep = "all" if self._keep is None else self._keep
        self._run(lambda: self._keep_meta(log_keep=keep, id=self.id, numbers="own"))
        if self._format < FORMAT_VERSION:
            # The mark refers to the id of the file, which must not be in SQLite's log alone.
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        try:
            self._high = HighWaterFile(self.path, self.id, synced=self._durability == "full")
        except OSError as error:
            raise JournalFailed(f"{self.path} cannot be opened: {error.strerror}") from error
        self._high.write(self.durable, self.n, self._living)
        self.room.look()

    def _keep_meta(self, **more: Any) -> None:
        """Store the end of the log and these values, within a transaction of SQLite."""
        position, n, living = self._described = self.durable, self.n, self._living
        write_meta(self._db, {"position": position, "n": n, "living": living, **more})

    def stop(self) -> None:
        """Opening the space failed: close the file, unchanged."""
        self._close_unchanged()
        self._file_lock.release()

    def _load_meta(self, log_keep: LogKeep | None) -> None:
        try:
            (self._format,) = self._db.execute("PRAGMA user_version").fetchone()
            meta = dict(self._db.execute("SELECT key, value FROM meta"))
            columns = {name for _, name, *_ in self._db.execute("PRAGMA table_info(change)")}
            if ("crc" in columns) != (self._format >= CHECKED_SINCE):
                raise ValueError(f"it has format {self._format}, and not the columns of it")
            self.name: str = meta["name"]
            self.agent: str = meta["agent"]
            self.agent_name: str = meta.get("agent_name", "")
            self.id: str = meta.get("id") or self._new_id()
            self._first: int = meta["first"]
            # Older versions counted on from the numbers of entries from elsewhere.
            self._own_numbers = meta.get("numbers") == "own"
            kept = meta.get("log_keep", LOG_KEEP) if log_keep is None else log_keep
            self._keep: int | None = None if kept == "all" else int(kept)
            self.durable: int
            self.n: int
            if self._format < CHECKED_SINCE:
                last, newest = self._db.execute(
                    "SELECT max(position), max(n) FROM change"
                ).fetchone()
                self.durable = max(last or 0, meta["position"])
                self.n = max(newest or 0, meta["n"])
                self._living = 0
                self._mend_numbers()
                return
            if meta_crc(meta) != meta["crc"]:
                raise ValueError("the checksum of its description is wrong")
            self.durable, self.n, self._living = meta["position"], meta["n"], meta["living"]
            self._load_last()
            self._compare(read_mark(self.path, self.id))
            self._mend_numbers()
        except (sqlite3.DatabaseError, KeyError, TypeError, ValueError) as error:
            refuse(self.path, error)

    def _load_last(self) -> None:
        """Read the last change: the end of the log, and the description of the space."""
        row = self._db.execute(
            f"SELECT {_CHECKED if self._format > 6 else _CHECKED_6} FROM change c"
            " ORDER BY position DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return
        require_crc(row)
        self.last_time = row[1]
        *_, newest, living, _ = row
        if row[0] > self.durable:
            if newest is None or living is None:
                raise ValueError(f"the change at {row[0]} is not the end of a commit")
            self.durable, self.n, self._living = row[0], max(self.n, newest), living

    def _compare(self, mark: HighWaterMark | None) -> None:
        """Refuse a file with fewer changes than were committed, except after a power failure."""
        if mark is None or mark.position < self.durable:
            return
        if mark.position == self.durable:
            if mark.living != self._living:
                raise ValueError("other entries live than when it was committed last")
            return
        lost = f"changes {self.durable + 1} to {mark.position}"
        if mark.boot in (0, this_boot()):
            raise ValueError(
                f"{lost} were committed, and are not there; if an older copy of the file was put"
                f" here on purpose, remove {file_of(self.path).name}"
            )
        logger.warning(
            "%s: the machine was started again, and %s were not on the disk yet: they are lost",
            self.path,
            lost,
        )
        self.n = max(self.n, mark.newest)  # Numbers of entries are not used twice.

    def _mend_numbers(self) -> None:
        """If an older version has counted on from a number from elsewhere that leaves no room,
        count on from the space's own."""
        if not self._own_numbers and self.n >= NUMBERS_END:
            (greatest,) = self._db.execute(
                "SELECT max(n) FROM change WHERE n < ?", (NUMBERS_END,)
            ).fetchone()
            self.n = max(self.durable, greatest or 0)

    def name_agent(self, name: str) -> None:
        """Store the name of the space's own agent: a host, which has a name beside its id."""
        if name != self.agent_name:
            with self._commit_lock:
                self._commit_pending()
                self._run(lambda: self._keep_meta(agent_name=name))
                self.agent_name = name

    def entries(self) -> Iterator[SavedEntry]:
        """The living entries in order of arrival, with the delayed ones."""
        agent = self.agent
        checked = self._format >= CHECKED_SINCE
        dest = "dest" if self._format >= 2 else "NULL"
        lease = "lease" if self._format >= 4 else "expires"
        crcs = "crc, lease_crc" if checked else "NULL, NULL"
        back = "returns" if self._format >= 7 else "NULL"
        delay = "visible, delayed" if self._format >= 7 else "NULL, NULL"
        arrivals: list[int] = []
        try:
            for row in self._db.execute(
                f"SELECT position, origin, n, {lease}, payload, {dest}, {back}, {crcs}, {delay}"
                " FROM change WHERE kind IN (?, ?) AND ended IS NULL ORDER BY position",
                (WRITTEN, DELAYED),
            ):
                arrival, origin, n, expires, payload, to, returns, crc, of_lease, *late = row
                arrivals.append(arrival)
                if checked:
                    if crc >> 32 != entry_crc(arrival, origin, n, payload, to, *late) or (
                        (of_lease is not expires or returns is not None)
                        and of_lease != lease_crc(arrival, expires, returns)
                    ):
                        raise ValueError(f"the checksum of the entry at {arrival} is wrong")
                elif type(n) is not int or type(expires) not in (float, NoneType):
                    raise ValueError(f"the entry at {arrival} has n={n!r} and expires={expires!r}")
                yield SavedEntry(
                    arrival, origin or agent, n, expires, payload, to, returns or 0, *late
                )
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            refuse(self.path, error)
        self._read_living += entry_weights(arrivals)

    def accepted(self) -> list[tuple[str, int]]:
        """Origins and numbers of entries from other hosts, as far as the log goes back."""
        if self._format < 2:
            return []
        rows = self._db.execute(
            "SELECT position, origin, n, payload, dest, visible, delayed, crc FROM change"
            " WHERE dest IS NOT NULL AND origin IS NOT NULL"
        ).fetchall()
        for *entry, crc in rows:
            if not is_entry_crc(crc, entry_crc(*entry)):
                raise DamagedFile(f"{self.path} is damaged (the checksum at {entry[0]} is wrong)")
        return [(origin, n) for _, origin, n, *_ in rows]

    def was_committed(self, txn_id: str) -> bool:
        """Whether the log has this transaction as prepared and committed."""
        with self._commit_lock:
            self._commit_pending()
            found = self._db.execute(
                "SELECT 1 FROM change WHERE txn = ? AND kind = ? LIMIT 1",
                (txn_id, _CODES["committed"]),
            ).fetchone()
        return found is not None

    def promises(self) -> Iterator[tuple[str, SavedPromise]]:
        """The transactions that are prepared and not decided."""
        try:
            crc = "crc" if self._format >= CHECKED_SINCE else "NULL"
            for txn_id, payload, found in self._db.execute(
                f"SELECT txn, payload, {crc} FROM promise"
            ):
                if self._format >= CHECKED_SINCE and found != promise_crc(txn_id, payload):
                    raise ValueError(f"the checksum of the promise {txn_id} is wrong")
                promise = msgspec.msgpack.decode(payload, type=SavedPromise)
                self._read_living += promise_weight(txn_id)
                if self._format < 5:
                    promise.holder = holder_in(txn_id)
                if not self._own_numbers:  # Its numbers were counted when it was committed.
                    numbers = [n for n, *_ in promise.written if n < NUMBERS_END]
                    self.n = max([self.n, *numbers])
                yield txn_id, promise
        except (sqlite3.DatabaseError, AttributeError, TypeError, ValueError) as error:
            refuse(self.path, error)

    def _require_living(self) -> None:
        """Compare the entries that were read with the sum of the last commit."""
        if self._format < CHECKED_SINCE:
            self._living = bounded(self._read_living)
        elif self._living != bounded(self._read_living):
            refuse(self.path, ValueError("entries are missing, or there that were not"))

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
        if self.waits and self.durable < position and self.room.has_refused:
            raise self.room.in_doubt()

    def require_room(self, taking: bool, size: int = 0) -> None:
        """Raise DiskFull if the disk has no room for a take, or for a write of so many bytes.
        Commits that had no room before are made first, if there is room now; JournalFailed if the
        disk refuses them."""
        if self.room.is_low:
            with self._commit_lock:
                if self._failure is None:
                    self._commit_pending()
                    self.room.look()
                if self._failure is not None:
                    raise self._failure
        if self.room.is_low or size:
            self.room.require(taking, size)

    def _commit(self) -> int:
        with self._commit_lock:
            if self._failure is None:
                self._commit_pending()
        return sys.maxsize if self._failure else self.durable

    def _commit_pending(self) -> None:
        """Commit all pending changes as one transaction of SQLite. Holds the commit lock."""
        if not self.room.may_commit:
            return
        try:
            self._reconcile()
        except sqlite3.Error as error:
            self._refused(error)
            return
        count = len(self._pending)
        batch = self._pending[:count]
        if not batch:
            return
        self._uncertain = True
        last = batch[-1].position
        keep = last if self._keep is None else self._keep
        trims = last - self._first - keep > keep // 4
        try:
            # A single statement is a transaction.
            if count == 1 and not trims and (alone := self._single_statement(batch[0])):
                self._db.execute(*alone)
            elif (rows := self._rows(batch)).is_one and not trims:
                _insert(self._db, rows.added)
            else:
                self._db.execute("BEGIN")
                *added, final = rows.added
                _insert(self._db, added)
                _insert(self._db, [final])
                execute_many(self._db, _UPDATE, rows.updates)
                for decision in rows.decisions:
                    self._keep_decision(decision)
                if trims:
                    self._delete_before(last - keep + 1, last)
                self._db.execute("COMMIT")
        except Exception as error:
            self._refused(error)
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            return
        # Only now: pending changes must survive an error that a caller could survive.
        del self._pending[:count]
        self.durable = last
        self._uncertain = False
        if self._high is not None:
            self._high.write(last, self.n, self._living)
        self.room.committed()

    def _refused(self, error: Exception) -> None:
        """The disk has refused a commit with this error."""
        if _is_full(error):
            self.room.refused(error)
        else:
            self._failure = JournalFailed(f"{self.path} refused a commit: {error}")
            self._failure.__cause__ = error

    def _reconcile(self) -> None:
        """After an interrupted commit: find out whether it happened. Holds the lock."""
        if self._uncertain:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            known = dict(self._db.execute("SELECT key, value FROM meta"))
            self.durable, self._living = known["position"], known["living"]
            self._load_last()
            self._pending[:] = [c for c in self._pending if c.position > self.durable]
            self._uncertain = False

    def _single_statement(self, c: Change) -> tuple[str, tuple[Any, ...]] | None:
        """The statement and values for a commit of one common change. None if the change has more
        to store: see `_rows`."""
        position, kind, arrival, own = c.position, c.kind, c.arrival, self.agent
        if c.expires is not None or c.txn is not None or c.session is not None or c.agent != own:
            return None
        if c.deliveries:
            return None
        time, waited = c.time + 0.0, c.waited + 0.0  # as SQLite returns them
        code = _CODES[kind]
        if kind == "written":
            n, payload = c.n, c.payload
            if payload is None or c.to is not None or c.origin != own or c.delayed is not None:
                return None
            self._living = living = bounded(self._living + entry_weight(arrival))
        elif kind in ENDINGS:
            payload = None
            self._living = living = bounded(self._living - entry_weight(arrival))
        else:
            return None
        newest = self.n
        crc = change_crc((position, time, code, arrival, None, None, waited, None, None))
        crc = last_crc(crc, newest, living)
        if payload is None:
            of_both = (position, time, code, arrival, waited, crc, newest, living)
            return _END_SINGLE, (*of_both, arrival, position)
        crc = row_crc(crc, entry_crc(position, None, n, payload, None))
        row = (position, time, code, arrival, waited, crc, n, payload, newest, living)
        return _WRITE_SINGLE, row

    def _rows(self, batch: list[Change]) -> _Rows:
        """The rows of these changes; the last one also describes the space after them."""
        own = self.agent
        newest, living = self.n, self._living
        rows: list[list[Any]] = []
        written: dict[int, list[Any]] = {}
        updates: dict[int, tuple[Any, ...]] = {}
        decisions: list[Change] = []
        arrived: list[int] = []
        gone: list[int] = []
        for c in batch:
            kind, arrival, position = c.kind, c.arrival, c.position
            expires = c.expires
            if expires is not None:
                expires += 0.0  # as SQLite returns it
            row: list[Any] = [
                position,
                c.time + 0.0,
                _CODES[kind],
                arrival or None,
                None if c.agent == own else c.agent,
                c.txn,
                c.waited + 0.0,
                expires,
                c.session,
                None if c.agent == own else c.agent_name or None,
                c.deliveries or None,
            ]
            crc = change_crc(row)
            rows.append(row)
            if kind == "written" or kind == "delayed":
                payload = c.payload
                if payload is None:
                    assert c.shape is not None and c.fields is not None
                    payload = encode_entry(c.shape, c.fields)
                origin = None if c.origin == own else c.origin
                late = c.visible, c.delayed
                crc = row_crc(crc, entry_crc(position, origin, c.n, payload, c.to, *late))
                row += (crc, origin, c.n, payload, c.to, *late, None, expires)
                if expires is not None or c.deliveries:
                    returns: int | None = c.deliveries or None
                    row += (lease_crc(position, expires, returns), returns)
                written[arrival] = row
                arrived.append(arrival)
                if c.delayed is not None:  # The row with which it was delayed has ended.
                    gone.append(c.delayed)
                    if c.delayed in written:
                        written[c.delayed][_ENDED:] = position, None, None, None
                    else:
                        updates[c.delayed] = (None, None, None, position, c.delayed)
                continue
            row.append(crc)
            if not arrival:
                decisions.append(c)
                weight = promise_weight(c.txn or "")
                living += weight if c.promise is not None else -weight
            elif kind not in _REMARKS:
                ended = position if kind in ENDINGS else None
                returns = c.deliveries or None
                if ended is not None:
                    expires = returns = None
                    gone.append(arrival)
                elif kind == "returned":
                    is_first = arrival < self._first and arrival not in arrived
                    if is_first and not self._has_row(arrival):
                        rows[-1:-1] = self._rows([_rewritten(c)]).added
                    arrived.append(arrival)
                if arrival in written:
                    row = written[arrival]
                    row[_ENDED:] = ended, expires, lease_crc(arrival, expires, returns), returns
                else:
                    of_lease = lease_crc(arrival, expires, returns)
                    updates[arrival] = (expires, of_lease, returns, ended, arrival)
        living = bounded(living + entry_weights(arrived) - entry_weights(gone))
        self._living = living
        row = rows[-1]  # also describes the space
        row += _NOTHING[len(row) :]
        row[-2:] = newest, living
        crc = row[_CRC]
        row[_CRC] = row_crc(last_crc(crc & 0xFFFF_FFFF, newest, living), crc >> 32)
        return _Rows(rows, list(updates.values()), decisions)

    def _has_row(self, position: int) -> bool:
        query = "SELECT 1 FROM change WHERE position = ?"
        return self._db.execute(query, (position,)).fetchone() is not None

    def _keep_decision(self, change: Change) -> None:
        """Store a prepared transaction, or delete a decided one."""
        if change.promise is None:
            self._db.execute("DELETE FROM promise WHERE txn = ?", (change.txn,))
            return
        promise: Promise = change.promise
        written = [(e.n, e.expires, encode_entry(e.shape, e.fields)) for e in promise.written]
        marks = [(e.origin, e.to) for e in promise.written]
        visible = [e.visible for e in promise.written]
        saved = SavedPromise(
            written, list(promise.taken), list(promise.read), marks, promise.holder, visible
        )
        payload = msgspec.msgpack.encode(saved)
        crc = promise_crc(change.txn or "", payload)
        self._db.execute("INSERT INTO promise VALUES (?, ?, ?)", (change.txn, payload, crc))

    # Reading and trimming the log

    def read(self, since: int, limit: int | None) -> list[Change]:
        with self._commit_lock:
            self._commit_pending()
            if self._failure is not None:
                raise self._failure
            require_kept(since, self._first)
            try:
                rows = self._db.execute(
                    f"SELECT {_CHECKED}, w.origin, w.n, w.payload, w.dest, w.visible, w.delayed,"
                    " w.crc"
                    " FROM change c LEFT JOIN change w ON w.position = c.arrival"
                    " WHERE c.position > ? ORDER BY c.position LIMIT ?",
                    (since, -1 if limit is None else limit),
                ).fetchall()
                count = max(0, self.durable - since)
                if len(rows) != (count if limit is None else min(count, limit)):
                    raise ValueError(f"not all changes after {since} are there")
                return [self._change(row, position) for position, row in enumerate(rows, since + 1)]
            except (sqlite3.Error, BadBytes, LookupError, TypeError, ValueError) as error:
                raise DamagedFile(f"{self.path} is damaged ({error})") from error

    def _change(self, row: tuple[Any, ...], expected: int) -> Change:
        """The change of a row that was joined with the row of its entry."""
        require_crc(row[: CHANGE_COUNT + 3])
        position, time, kind, arrival, agent, txn, waited, expires, *rest = row[:CHANGE_COUNT]
        session, name, deliveries = rest
        origin, n, payload, to, visible, delayed, crc = row[CHANGE_COUNT + 3 :]
        if position != expected:
            raise ValueError(f"the change at {expected} is missing")
        if arrival is not None and not is_entry_crc(
            crc, entry_crc(arrival, origin, n, payload, to, visible, delayed)
        ):
            raise ValueError(f"the checksum of the entry at {arrival} is wrong")
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
            agent_name=self.agent_name if agent is None else name or "",
            deliveries=deliveries or 0,
            visible=visible if kind == DELAYED else None,
            delayed=delayed if kind == WRITTEN else None,
        )

    def trim(self, before: int) -> None:
        with self._commit_lock:
            self._commit_pending()
            self._run(lambda: self._delete_before(min(before, self.durable + 1), self.durable))

    def _delete_before(self, position: int, last: int) -> None:
        """Delete the changes before a position, of a log that goes up to `last`."""
        position = min(position, self.kept_from())
        if position <= self._first:
            return
        # The numbering continues even if the log is empty.
        self._keep_meta(first=position, position=last)
        delete_before(self._db, position)
        self._first = position

    def compact(self) -> None:
        """Return free pages to the disk."""
        with self._commit_lock:
            self._commit_pending()
            if self._keep is not None:
                keep = self._keep
                self._run(lambda: self._delete_before(self.durable - keep + 1, self.durable))
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
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            if _is_full(error):
                raise DiskFull(f"{self.path}: the disk is full; nothing was done") from error
            self._failure = JournalFailed(f"{self.path} refused a commit: {error}")
            raise self._failure from error

    def close(self) -> None:
        with self._commit_lock:
            if self._failure is None:
                self._commit_pending()
            if self._failure is None and self._described != (self.durable, self.n, self._living):
                with suppress(JournalFailed, DiskFull):  # JournalFailed is raised below.
                    self._run(self._keep_meta)
            self._close_files()
        if self._failure is not None:
            raise self._failure
        if self._pending:
            raise DiskFull(
                f"{self.path}: the disk is full, and the last {len(self._pending):,} changes are "
                "not in the file"
            )

    def _close_files(self) -> None:
        self._db.close()
        if self._high is not None:
            # What SQLite could not write to the file is in its log, to which the mark refers.
            self._high.close(remove=self._failure is None and not self._beside("-wal").exists())
        self._file_lock.release()

    def crash(self) -> None:
        """Close the file without another commit, as a dying process does."""
        if self._failure is None:
            self._failure = JournalFailed("its process is gone")
            self._pending.clear()
            self._close_files()


def _is_full(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and error.sqlite_errorcode == sqlite3.SQLITE_FULL


def _rewritten(returned: Change) -> Change:
    """The change that wrote a returned entry, as far as it is known: the log was trimmed while the
    entry was taken."""
    return msgspec.structs.replace(
        returned, position=returned.arrival, kind="written", txn=None, waited=0.0, session=None
    )


def _insert(db: sqlite3.Connection, rows: list[list[Any]]) -> None:
    """Add rows. Columns that are NULL in all rows are left out, because each binding costs time."""
    names, columns = [], []
    for name, column in zip(_COLUMNS, zip_longest(*rows), strict=False):
        if column[0] is not None or column.count(None) < len(column):
            names.append(name)
            columns.append(column)
    statement = f"INSERT INTO change ({', '.join(names)}) VALUES {{}}"
    execute_many(db, statement, list(zip(*columns, strict=True)))
