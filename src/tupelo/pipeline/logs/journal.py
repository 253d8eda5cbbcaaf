"""The log in the file of a durable space, read as Arrow batches while its space may be open in
another program: no lock is taken, and nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tupelo.errors import DamagedFile, JournalFailed, LogTrimmed
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.schema import OF_THE_ENTRY, Raw, build, check_columns, fill, needed_for
from tupelo.store.header import check_header
from tupelo.store.sqlite import KINDS
from tupelo.values.codec import BadBytes

ROWS, BYTES = 16_384, 16 * 2**20
"""So many rows has a batch at most, and about so many bytes."""

_WRITTEN = KINDS.index("written")
_SINCE = {"to": 2, "session": 3}
"""The format of the file since which there is such a column."""


class JournalLog:
    """The log of one space, in its file. `host` is the agent whose log it is: the host's id, if a
    host keeps it. `id` tells it from another of the same host and name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._reading() as db:
            meta = dict(db.execute("SELECT key, value FROM meta"))
        try:
            self.host: str = meta["agent"]
            self.space: str = meta["name"]
            self.id: str = meta.get("id", "")
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
    ) -> Iterator[pa.RecordBatch]:
        """The changes from one position to another, both included. LogTrimmed if they are not, or
        while they are read are no longer, all kept.

        Every batch is a look of its own at the file, which may be written and swept meanwhile.
        """
        columns = check_columns(columns, entry)
        rows = max(1, ROWS // 64)  # until it is known how large the entries are
        with closing(self._connect()) as db:
            while first <= last:
                batch = self._batch(db, first, min(last, first + rows - 1), columns, entry)
                if not batch.num_rows:
                    return
                yield batch
                first += batch.num_rows
                fitting = batch.num_rows * BYTES // max(1, batch.nbytes)
                rows = max(1, min(ROWS, fitting, rows * 8))

    def before(
        self, columns: Sequence[str] | None = None, entry: Declared | None = None
    ) -> pa.RecordBatch:
        """The entries that were written before the log begins and were still there then: the rows
        of their writing. The file keeps them for as long as a change that is kept speaks of them,
        or they live."""
        columns = check_columns(columns, entry)
        with self._reading() as db:
            kept, _ = _bounds(db)
            (form,) = db.execute("PRAGMA user_version").fetchone()
            needed = needed_for(columns) | {"position"}
            where = f"WHERE position < ? AND kind = {_WRITTEN}"
            raw = _select(db, form, needed, where, (kept,))
        if "kind" in raw:
            raw["kind"] = pa.repeat("written", len(raw["position"]))
        for name in {"agent", "origin"} & raw.keys():
            raw[name] = pc.fill_null(pa.array(raw[name], pa.string()), self.host)
        return build(self.host, self.space, len(raw["position"]), raw, columns, entry)

    def _batch(
        self,
        db: sqlite3.Connection,
        first: int,
        last: int,
        columns: Sequence[str],
        entry: Declared | None,
    ) -> pa.RecordBatch:
        """A batch of these changes, or of the first of them."""
        about = [name for name in columns if name in OF_THE_ENTRY]
        needed = (needed_for(columns) - OF_THE_ENTRY) | {"arrival"}
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
                where = "WHERE position BETWEEN ? AND ?"
                raw = _select(db, form, needed, where, (first, last))
                count = len(raw["arrival"])
                if count != max(0, last - first + 1):
                    raise DamagedFile(
                        f"{self.path} is damaged: not all changes from {first} to {last} are there"
                    )
                if about:
                    arrivals = np.array(raw["arrival"], dtype=np.float64)
                    entries = _entries(db, form, needed_for(about), arrivals, first, last)
            if "kind" in raw:
                raw["kind"] = _kinds().take(pa.array(raw["kind"], pa.int8()))
            if "agent" in raw:
                raw["agent"] = pc.fill_null(pa.array(raw["agent"], pa.string()), self.host)
            if about:
                raw |= self._about(about, entries, arrivals, entry)
            return build(self.host, self.space, count, raw, columns, entry)
        except (sqlite3.Error, BadBytes, pa.ArrowException, TypeError, ValueError) as error:
            raise DamagedFile(
                f"{self.path} is damaged between {first} and {last} ({error})"
            ) from error

    def _about(
        self, about: Sequence[str], entries: Raw, arrivals: Any, entry: Declared | None
    ) -> dict[str, pa.Array]:
        """What is known of the entries, for every change of one. There are fewer of them than
        there are changes, so they are looked at before they are spread."""
        if "origin" in entries:
            entries["origin"] = pc.fill_null(pa.array(entries["origin"], pa.string()), self.host)
        positions = np.array(entries["position"], dtype=np.float64)
        places = np.searchsorted(positions, arrivals)
        absent = np.append(positions, np.nan)[places] != arrivals
        spread = pa.array(places, pa.int64(), mask=absent)
        return {name: array.take(spread) for name, array in fill(entries, about, entry).items()}

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


@cache
def _kinds() -> pa.Array:
    """Made when it is needed: with its first array Arrow loads pandas, if it is there."""
    return pa.array(KINDS, pa.string())


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


def _select(
    db: sqlite3.Connection, form: int, columns: Iterable[str], where: str, values: Sequence[Any]
) -> Raw:
    """These columns of some rows, in order of position."""
    names = sorted(columns)
    spelled = [
        "NULL" if form < _SINCE.get(name, 0) else {"to": "dest"}.get(name, name) for name in names
    ]
    rows = db.execute(f"SELECT {', '.join(spelled)} FROM change {where} ORDER BY position", values)
    cells = list(chain.from_iterable(rows))  # No row is kept: that costs more than reading it.
    return {name: cells[place :: len(names)] for place, name in enumerate(names)}


def _entries(
    db: sqlite3.Connection, form: int, columns: set[str], arrivals: Any, first: int, last: int
) -> Raw:
    """What the rows that wrote these entries say of them. Most were written among the changes that
    are read; those from before are asked for one by one."""
    columns = columns | {"position"}
    here = _select(
        db,
        form,
        columns,
        f"WHERE position BETWEEN ? AND ? AND kind = {_WRITTEN}",
        (first, last),
    )
    before = np.unique(arrivals[arrivals < first]).astype(np.int64).tolist()
    if not before:
        return here
    older = _select(
        db,
        form,
        columns,
        "WHERE position IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(before).decode(),),
    )
    return {name: older[name] + here[name] for name in here}
