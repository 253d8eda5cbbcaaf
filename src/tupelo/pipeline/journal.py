"""The log in the file of a durable space, read as Arrow batches while its space may be open in
another program: no lock is taken, and nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tupelo.errors import DamagedFile, JournalFailed, LogTrimmed
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.schema import build, check_columns, needed_for
from tupelo.store.header import check_header
from tupelo.store.sqlite import KINDS
from tupelo.values.codec import BadBytes

ROWS = 16_384
"""So many rows has a batch, if nobody says otherwise."""

_KINDS = pa.array(KINDS, pa.string())
_OF_ENTRY = {"origin": "origin", "n": "n", "payload": "payload", "to": "dest"}
_SINCE = {"to": 2, "session": 3}
"""The format of the file since which there is such a column."""


class JournalLog:
    """The log of one space, in its file. `host` is the agent whose log it is: the host's id, if a
    host keeps it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._reading() as db:
            meta = dict(db.execute("SELECT key, value FROM meta"))
        try:
            self.host: str = meta["agent"]
            self.space: str = meta["name"]
        except KeyError as error:
            raise DamagedFile(f"{self.path} is damaged: it has no {error}") from error

    def bounds(self) -> tuple[int, int]:
        """The first position that is kept, and the last that is durable; it is one less than the
        first if there is none."""
        with self._reading() as db:
            return _bounds(db)

    @property
    def first(self) -> int:
        return self.bounds()[0]

    @property
    def last(self) -> int:
        return self.bounds()[1]

    def batches(
        self,
        first: int,
        last: int,
        columns: Sequence[str] | None = None,
        entry: Declared | None = None,
        rows_max: int = ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """The changes from one position to another, both included. LogTrimmed if they are not, or
        while they are read are no longer, all kept.

        Every batch is a look of its own at the file, which may be written and swept meanwhile.
        """
        columns = check_columns(columns, entry)
        with closing(self._connect()) as db:
            while first <= last:
                until = min(last, first + rows_max - 1)
                batch = self._batch(db, first, until, columns, entry)
                if not batch.num_rows:
                    return
                yield batch
                first += batch.num_rows

    def _batch(
        self,
        db: sqlite3.Connection,
        first: int,
        last: int,
        columns: Sequence[str],
        entry: Declared | None,
    ) -> pa.RecordBatch:
        """A batch of these changes, or of the first of them."""
        needed = sorted(needed_for(columns) | {"position", "arrival"})
        try:
            with _snapshot(db):
                kept, durable = _bounds(db)
                if first < kept:
                    raise LogTrimmed(
                        f"{self.path}: the change at {first} was asked for, but the log of"
                        f" {self.space!r} begins at {kept}",
                        kept,
                    )
                last = min(last, durable)
                (form,) = db.execute("PRAGMA user_version").fetchone()
                rows = db.execute(_query(needed, form), (first, last)).fetchall()
        except sqlite3.Error as error:
            raise DamagedFile(f"{self.path} is damaged ({error})") from error
        if len(rows) != max(0, last - first + 1):
            raise DamagedFile(f"{self.path} is damaged: changes from {first} to {last} are missing")
        found = zip(*rows, strict=True) if rows else [()] * len(needed)
        raw: dict[str, object] = dict(zip(needed, found, strict=True))
        try:
            if "kind" in raw:
                raw["kind"] = _KINDS.take(pa.array(raw["kind"], pa.int8()))
            if "agent" in raw:
                raw["agent"] = pc.fill_null(pa.array(raw["agent"], pa.string()), self.host)
            if "origin" in raw:
                own = pc.if_else(pc.is_valid(pa.array(raw["arrival"], pa.int64())), self.host, None)
                raw["origin"] = pc.coalesce(pa.array(raw["origin"], pa.string()), own)
            return build(self.host, self.space, len(rows), raw, columns, entry)
        except (BadBytes, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DamagedFile(
                f"{self.path} is damaged between {first} and {last} ({error})"
            ) from error

    # The file

    def _connect(self) -> sqlite3.Connection:
        try:
            check_header(self.path)
            return sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None
            )
        except OSError as error:
            raise JournalFailed(f"{self.path} cannot be opened: {error.strerror}") from error
        except sqlite3.Error as error:
            raise JournalFailed(f"{self.path} cannot be opened: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as db:
            try:
                with _snapshot(db):
                    yield db
            except sqlite3.Error as error:
                raise DamagedFile(f"{self.path} is damaged ({error})") from error

    def __repr__(self) -> str:
        return f"JournalLog({str(self.path)!r})"


@contextmanager
def _snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """What is read in here is of one moment. Not for long: it keeps the file from being swept."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


def _bounds(db: sqlite3.Connection) -> tuple[int, int]:
    meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('first', 'position')"))
    (last,) = db.execute("SELECT max(position) FROM change").fetchone()
    return meta["first"], max(last or 0, meta["position"])


def _query(needed: Sequence[str], form: int) -> str:
    """The rows with these columns; those of the entry are in the row that wrote it."""
    columns = []
    for name in needed:
        if form < _SINCE.get(name, 0):
            columns.append("NULL")
        elif name in _OF_ENTRY:
            columns.append(f"w.{_OF_ENTRY[name]}")
        else:
            columns.append(f"c.{name}")
    joined = not _OF_ENTRY.keys().isdisjoint(needed)
    return (
        f"SELECT {', '.join(columns)} FROM change c"
        + (" LEFT JOIN change w ON w.position = c.arrival" if joined else "")
        + " WHERE c.position BETWEEN ? AND ? ORDER BY c.position"
    )
