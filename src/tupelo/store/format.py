"""The format of a journal's file: tables, checksums, and upgrades from older formats.

Checksums detect flipped bits, lost rows and lost pages. The checksum of a row has two halves, for
the change and for the entry that it wrote, so that opening a file reads only the entries. One
number, `living`, is the sum over living entries and promises after each commit: a missing or
resurrected row changes it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from operator import mul
from pathlib import Path
from shutil import disk_usage
from typing import Any, NoReturn, get_args
from zlib import crc32

import msgspec

from tupelo.errors import DamagedFile, ForeignFile, JournalFailed
from tupelo.values.change import ChangeKind
from tupelo.values.holder import Holder, HolderKind

CHECKED_SINCE = 6
"""The first format with checksums."""
NUMBERS_END = 2**62
"""No space has numbered so many entries: such a number came from elsewhere."""

_encode = msgspec.msgpack.Encoder().encode
_PRIME = 4_294_967_291
_MASK = 2**63 - 1
_FIRST, _SECOND = 0x1E37_79B9_7F4A_7C15, 0x3F58_476D_1CE4_E5B9


def entry_crc(
    position: int,
    origin: str | None,
    n: int,
    payload: bytes,
    dest: str | None,
    visible: float | None = None,
    delayed: int | None = None,
) -> int:
    """Checksum of an entry. Raises TypeError for values that no row of an entry has."""
    crc = crc32(payload, (position * 0x9E37_79B1 + n) % _PRIME)
    if origin is not None or dest is not None:
        crc = crc32(_encode((origin, dest)), crc)
    if visible is not None or delayed is not None:
        crc = crc32(_encode((visible, delayed)), crc)
    return crc & 0x7FFF_FFFF


def change_crc(change: Sequence[Any]) -> int:
    """Checksum of the constant columns of a change: see `CHANGE`. Columns that are new in format 7
    count only if they are not NULL, so that older checksums stay valid."""
    if len(change) > _BEFORE_7 and change[-1] is None and change[-2] is None:
        change = change[:_BEFORE_7]
    return crc32(_encode(change))


def last_crc(of_change: int, newest: int | None, living: int | None) -> int:
    """Checksum of the last change of a commit, which also describes the space."""
    if newest is None and living is None:
        return of_change
    return crc32(_encode((newest, living)), of_change)


def row_crc(of_change: int, of_entry: int) -> int:
    """Checksum of a row that wrote an entry; for other changes it is `change_crc`."""
    return of_entry << 32 | of_change


def is_crc(crc: int, of_change: int) -> bool:
    """Whether this is the checksum of a row with such a change."""
    return crc & 0xFFFF_FFFF == of_change


def is_entry_crc(crc: int, of_entry: int) -> bool:
    """Whether this is the checksum of a row with such an entry."""
    return crc >> 32 == of_entry


def lease_crc(position: int, lease: float | None, returns: int | None = None) -> int | None:
    """Checksum of the present lease of an entry, and of how often it was returned; None if the
    lease has no end and it never was."""
    if returns is not None:
        return crc32(_encode((position, lease, returns)))
    return None if lease is None else crc32(_encode((position, lease)))


def promise_crc(txn: str, payload: bytes) -> int:
    """Checksum of a prepared transaction."""
    return crc32(payload, crc32(txn.encode()))


def meta_crc(meta: Mapping[str, Any]) -> int:
    """Checksum of the description of the file."""
    return crc32(_encode(sorted((k, v) for k, v in meta.items() if k != "crc")))


def entry_weight(arrival: int) -> int:
    """The summand of a living entry in `living`."""
    return arrival * (_FIRST + arrival * _SECOND)


def entry_weights(arrivals: list[int]) -> int:
    """The sum for these entries, faster than one by one."""
    squares: int = sum(map(mul, arrivals, arrivals))
    return _FIRST * sum(arrivals) + _SECOND * squares


def promise_weight(txn: str) -> int:
    """The summand of a promise in `living`."""
    return entry_weight(crc32(txn.encode()) + 2**48)


def bounded(living: int) -> int:
    """`living` reduced to the integers of SQLite."""
    return living & _MASK


APPLICATION_ID = 0x7457_0E10
FORMAT_VERSION = 7


def check_header(path: Path) -> None:
    """Refuse a file that SQLite should not even open. Reads 100 bytes, and changes nothing."""
    if not (path.is_file() or path.is_dir()) and path.exists():
        # Opening a FIFO would wait for its writer.
        raise ForeignFile(f"{path} is no file, but a device, a socket or a FIFO")
    with path.open("rb") as file:  # OSError for a folder, or without permission
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise ForeignFile(f"{path} is not a Tupelo journal; it was left as it was")
    if int.from_bytes(header[68:72]) != APPLICATION_ID:
        raise ForeignFile(f"{path} is the database of another program; it was left as it was")
    version = int.from_bytes(header[60:64])
    if version > FORMAT_VERSION:
        raise ForeignFile(
            f"{path} has format {version}, and this Tupelo knows up to {FORMAT_VERSION};"
            " it was left as it was"
        )
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        return  # SQLite's log, which it replays, has the rest.
    page = int.from_bytes(header[16:18])
    expected = int.from_bytes(header[28:32]) * (65_536 if page == 1 else page)
    if path.stat().st_size < expected:
        raise DamagedFile(
            f"{path} is torn: {path.stat().st_size} bytes of {expected}; it was left as it was"
        )


def is_damage(error: Exception) -> bool:
    """Whether the file is damaged, rather than unreadable, locked, or on a failing disk."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _OF_THE_WORLD


_OF_THE_WORLD = {
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}


def is_locked(path: Path) -> bool:
    """Whether another program has locked the file now. Does not wait."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", timeout=0, uri=True)
        try:
            db.execute("BEGIN IMMEDIATE")
        finally:
            db.close()
    except sqlite3.Error as error:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    return False


OPENING_BYTES = 64 * 1024
"""Room that SQLite needs on the disk to open a file. With less, it only tells of an I/O error."""


def refuse(path: Path, error: Exception) -> NoReturn:
    if not is_damage(error):
        free = disk_usage(path.parent).free
        why = f"the disk is full, make room ({error})" if free < OPENING_BYTES else error
        raise JournalFailed(f"{path}: {why}") from error
    raise DamagedFile(f"{path} is damaged ({error}); it was left as it was") from error


SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE change (
    position INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind INTEGER NOT NULL,
    arrival INTEGER,  -- the position at which its entry was written; NULL: not about an entry
    agent TEXT,       -- who acted; NULL: this space's own agent
    txn TEXT,
    waited REAL,
    expires REAL,     -- the lease after this change; of an entry that was written before the log
                      -- begins, as it was when it begins
    ended INTEGER,    -- of a written entry, the position at which it ended; NULL while it lives
    origin TEXT,      -- of a written entry; NULL: this space's own agent
    n INTEGER,        -- of a written entry
    payload BLOB,     -- of a written entry
    dest TEXT,        -- the agent that a written entry is for; since format 2
    session TEXT,     -- in which the agent acted; since format 3
    lease REAL,       -- of a written entry that lives, when it ends; since format 4
    crc INTEGER,      -- of all but `ended` and `lease`; this and what follows: since format 6
    lease_crc INTEGER,  -- of `lease`, if it has an end, and of `returns`
    newest INTEGER,   -- of the last change of a commit: the last number given to an entry,
    living INTEGER,   -- and the sum of what lives after it
    agent_name TEXT,  -- that `agent` has given itself; this and what follows: since format 7
    deliveries INTEGER,  -- how often its entry was returned, after this change; NULL: never
    returns INTEGER,  -- of a written entry that lives, how often it was returned so far
    visible REAL,     -- of a delayed entry, when it becomes visible
    delayed INTEGER   -- of a written entry that was delayed, the position of that change
);
CREATE TABLE promise (txn TEXT PRIMARY KEY, payload BLOB NOT NULL, crc INTEGER) WITHOUT ROWID;
"""

_ADDED = (
    (2, "dest TEXT"),
    (3, "session TEXT"),
    (4, "lease REAL"),
    *((6, f"{name} INTEGER") for name in ("crc", "lease_crc", "newest", "living")),
    *((7, column) for column in ("agent_name TEXT", "deliveries INTEGER", "returns INTEGER")),
    *((7, column) for column in ("visible REAL", "delayed INTEGER")),
)
CHANGE = (
    "position, time, kind, arrival, agent, txn, waited, expires, session, agent_name, deliveries"
)
"""The constant columns of a change."""
CHANGE_COUNT = len(CHANGE.split())
_BEFORE_7 = CHANGE_COUNT - 2
_CRC = f"row_crc({CHANGE}, newest, living, origin, n, payload, dest, visible, delayed)"
KINDS: tuple[ChangeKind, ...] = get_args(ChangeKind)
"""The kinds of changes, in the order of their numbers in a file."""
WRITTEN = KINDS.index("written")
DELAYED = KINDS.index("delayed")
_RENEWED = KINDS.index("renewed")


AGENT_NAME = (
    "CASE WHEN {0}.agent IS NULL THEN (SELECT value FROM meta WHERE key = 'agent_name')"
    " ELSE {0}.agent_name END"
)
"""SQL for the name of the agent that made a change, with the alias of its table."""


def create(db: sqlite3.Connection) -> None:
    """Begin a transaction in which an empty database becomes a journal without a description."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA.split(";\n"):
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def take_over(db: sqlite3.Connection, form: int) -> None:
    """Upgrade a file of an older format. The columns of the last change stay empty: `meta` has
    their values."""
    for since, column in _ADDED:
        if form < since:
            db.execute(f"ALTER TABLE change ADD COLUMN {column}")
    if form < 4:  # Before, `expires` of a written entry was its present lease.
        db.execute("UPDATE change SET lease = expires WHERE payload IS NOT NULL AND ended IS NULL")
    if form < CHECKED_SINCE:
        db.execute("ALTER TABLE promise ADD COLUMN crc INTEGER")
        db.execute("UPDATE promise SET crc = promise_crc(txn, payload)")
        make_checksums(db)
    db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def make_checksums(db: sqlite3.Connection) -> None:
    """Compute the checksums of all changes."""
    db.execute("UPDATE change SET lease = NULL WHERE ended IS NOT NULL")
    db.execute(f"UPDATE change SET crc = {_CRC}, lease_crc = lease_crc(position, lease, returns)")


def add_functions(db: sqlite3.Connection) -> None:
    """Define the checksum functions in SQL, for statements that change many rows."""
    for name, count, function in (
        ("row_crc", CHANGE_COUNT + 8, _row_crc),
        ("lease_crc", 3, lease_crc),
        ("promise_crc", 2, promise_crc),
    ):
        db.create_function(name, count, function, deterministic=True)


def _row_crc(*row: Any) -> int:
    change, (newest, living, *entry) = row[:CHANGE_COUNT], row[CHANGE_COUNT:]
    origin, n, payload, dest, visible, delayed = entry
    crc = last_crc(change_crc(change), newest, living)
    if payload is None:
        return crc
    return row_crc(crc, entry_crc(row[0], origin, n, payload, dest, visible, delayed))


def require_crc(row: Sequence[Any]) -> None:
    """Raise ValueError if the checksum of a change is wrong. The row has its columns, then
    `newest`, `living` and `crc`."""
    *change, newest, living, crc = row
    if not is_crc(crc, last_crc(change_crc(change), newest, living)):
        raise ValueError(f"the checksum of the change at {row[0]} is wrong")


def write_meta(db: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Write the description of the file, with its checksum."""
    meta = {**dict(db.execute("SELECT key, value FROM meta")), **values}
    meta["crc"] = meta_crc(meta)
    db.executemany("REPLACE INTO meta VALUES (?, ?)", list(meta.items()))


def delete_before(db: sqlite3.Connection, position: int) -> None:
    """Delete the changes before a position, and ended entries without later changes."""
    # Without its renewals, the row of the entry must have the renewed lease.
    renewed = (
        "SELECT arrival, expires, max(position) FROM change WHERE position < ? AND kind = ?"
        " GROUP BY arrival"
    )
    db.execute(
        f"UPDATE change SET expires = r.expires FROM ({renewed}) AS r"
        " WHERE change.position = r.arrival",
        (position, _RENEWED),
    )
    db.execute(
        f"UPDATE change SET crc = {_CRC} WHERE position IN (SELECT arrival FROM ({renewed}))",
        (position, _RENEWED),
    )
    db.execute(
        "DELETE FROM change WHERE position < ?1 AND (kind NOT IN (?2, ?3) OR ended < ?1)",
        (position, WRITTEN, DELAYED),
    )


_KINDS: dict[str, HolderKind] = {
    "client": "client",
    "host": "host",
    "lime-take": "lime-take",
    "lime-move": "lime-move",
}


def holder_in(txn_id: str) -> Holder | None:
    """The holder of a promise in a file of format 1 to 4, which had it in the transaction's id."""
    first, _, rest = txn_id.partition(":")
    rest, _, call = rest.rpartition(":")
    if not call.isdecimal():
        return None
    if first == "move":
        who, _, origin = rest.partition(":")
        return Holder("move", who, origin, int(call))
    if first in ("lime-take", "lime-move"):
        life, _, who = rest.partition(":")
        return Holder(_KINDS[first], who, life, int(call))
    kind, _, rest = rest.partition(":")
    if first != "handover" or kind not in ("here", "client", "host"):
        return None
    if kind == "here":
        return Holder("here", "", rest, int(call))
    who, _, incarnation = rest.rpartition(":")
    return Holder(_KINDS[kind], who, incarnation, int(call))
