"""The log in the file of a durable space, read as Arrow batches while the space may be open in
another program: writers do not wait, and no files are created beside a file that is not open."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tupelo.errors import DamagedFile, JournalFailed, LogTrimmed
from tupelo.pipeline.declared import Declared
from tupelo.pipeline.logs.log import Log, in_batches
from tupelo.pipeline.schema import OF_THE_ENTRY, Raw, build, fill, needed_for
from tupelo.store.format import AGENT_NAME, DELAYED, KINDS, WRITTEN, check_header, is_damage
from tupelo.store.tail import bounds_in
from tupelo.values.codec import BadBytes

ROWS = 16_384
"""The largest number of rows in a batch."""

T = TypeVar("T")

_WITH_ENTRY = f"kind IN ({WRITTEN}, {DELAYED})"
_SINCE = {"to": 2, "session": 3, "agent_name": 7, "deliveries": 7, "delayed": 7}
"""The first format of the file with such a column."""
_SOURCES = {
    "to": "dest",
    "agent_name": AGENT_NAME.format("change"),
    "deliveries": "ifnull(deliveries, 0)",
}


class JournalLog(Log):
    """The log of one space, in its file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        meta = self._look(lambda db: dict(db.execute("SELECT key, value FROM meta")))
        try:
            self.host: str = meta["agent"]
            self.space: str = meta["name"]
            self.id: str = meta.get("id", "")
        except KeyError as error:
            raise DamagedFile(f"{self.path} is damaged: it has no {error}") from error

    def bounds(self) -> tuple[int, int]:
        return self._look(bounds_in)

    def _read(
        self, first: int, last: int, columns: Sequence[str], entry: Declared | None
    ) -> Iterator[pa.RecordBatch]:
        """Each batch reads the file anew, which may be written and vacuumed meanwhile."""
        read = partial(self._batch, columns=columns, entry=entry)
        return in_batches(read, first, last, ROWS // 64, ROWS)

    def before(self, columns: Sequence[str], entry: Declared | None) -> pa.RecordBatch:
        """The file keeps them as long as they live or a later change about them is kept."""
        needed = needed_for(columns) | {"position"}

        def select(db: sqlite3.Connection) -> Raw:
            kept, _ = bounds_in(db)
            where = f"WHERE position < ? AND kind = {WRITTEN}"
            return _select(db, _form(db), needed, where, (kept,))

        raw = self._look(select)
        if "kind" in raw:
            raw["kind"] = pa.repeat("written", len(raw["position"]))
        for name in {"agent", "origin"} & raw.keys():
            raw[name] = pc.fill_null(pa.array(raw[name], pa.string()), self.host)
        return build(self.host, self.space, len(raw["position"]), raw, columns, entry)

    def _batch(
        self, first: int, last: int, columns: Sequence[str], entry: Declared | None
    ) -> pa.RecordBatch:
        """A batch of the first of these changes."""
        about = [name for name in columns if name in OF_THE_ENTRY]
        needed = (needed_for(columns) - OF_THE_ENTRY) | {"arrival"}
        try:
            raw, entries = self._look(lambda db: self._select(db, needed, about, first, last))
            count = len(raw["arrival"])
            if "kind" in raw:
                raw["kind"] = _kinds().take(pa.array(raw["kind"], pa.int8()))
            if "agent" in raw:
                raw["agent"] = pc.fill_null(pa.array(raw["agent"], pa.string()), self.host)
            if about:
                arrivals = np.array(raw["arrival"], dtype=np.float64)
                raw |= self._about(about, entries, arrivals, entry)
            return build(self.host, self.space, count, raw, columns, entry)
        except (BadBytes, pa.ArrowException, TypeError, ValueError) as error:
            raise DamagedFile(
                f"{self.path} is damaged between {first} and {last} ({error})"
            ) from error

    def _select(
        self, db: sqlite3.Connection, needed: set[str], about: Sequence[str], first: int, last: int
    ) -> tuple[Raw, Raw]:
        """The needed columns of the first of these changes, and of their entries."""
        kept, durable = bounds_in(db)
        if first < kept:
            raise LogTrimmed(
                f"{self.path}: the change at {first} was asked for, but the log of"
                f" {self.space!r} begins at {kept}",
                kept,
            )
        last = min(last, durable)
        form = _form(db)
        raw = _select(db, form, needed, "WHERE position BETWEEN ? AND ?", (first, last))
        if len(raw["arrival"]) != max(0, last - first + 1):
            raise DamagedFile(
                f"{self.path} is damaged: not all changes from {first} to {last} are there"
            )
        if not about:
            return raw, {}
        arrivals = np.array(raw["arrival"], dtype=np.float64)
        return raw, _entries(db, form, needed_for(about), arrivals, first, last)

    def _about(
        self, about: Sequence[str], entries: Raw, arrivals: Any, entry: Declared | None
    ) -> dict[str, pa.Array]:
        """The columns about entries, for every change of one. Entries are fewer than changes, so
        they are decoded before they are joined."""
        if "origin" in entries:
            entries["origin"] = pc.fill_null(pa.array(entries["origin"], pa.string()), self.host)
        positions = np.array(entries["position"], dtype=np.float64)
        places = np.searchsorted(positions, arrivals)
        absent = np.append(positions, np.nan)[places] != arrivals
        spread = pa.array(places, pa.int64(), mask=absent)
        return {name: array.take(spread) for name, array in fill(entries, about, entry).items()}

    # The file

    def _look(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on a snapshot of the file. Short, because it prevents the file from being
        vacuumed."""
        try:
            while True:
                before, at_rest = self.path.stat(), self._is_at_rest()
                try:
                    found = self._found(work, at_rest)
                except DamagedFile:
                    if not self._was_written(before, at_rest):
                        raise
                else:
                    if not self._was_written(before, at_rest):
                        return found
        except OSError as error:
            raise JournalFailed(f"{self.path} cannot be opened: {error.strerror}") from error

    def _found(self, work: Callable[[sqlite3.Connection], T], at_rest: bool) -> T:
        check_header(self.path)
        # For a file that is not open, SQLite needs no lock, for which it would create files beside
        # it; the folder may be read-only.
        mode = "mode=ro&immutable=1" if at_rest else "mode=ro"
        uri = f"{self.path.resolve().as_uri()}?{mode}"
        try:
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                db.execute("BEGIN")
                return work(db)
        except (sqlite3.Error, LookupError, TypeError, ValueError) as error:
            if not is_damage(error):
                raise JournalFailed(f"{self.path} cannot be read: {error}") from error
            raise DamagedFile(f"{self.path} is damaged ({error})") from error

    def _is_at_rest(self) -> bool:
        """Whether everything is in this one file. SQLite's log is beside it while a space is open,
        and after a crash."""
        try:
            file = self.path.resolve()
            return not file.with_name(file.name + "-wal").stat().st_size
        except FileNotFoundError:
            return True

    def _was_written(self, before: os.stat_result, at_rest: bool) -> bool:
        """Whether the file was written while it was read without a lock."""
        now = self.path.stat()
        return at_rest and (now.st_mtime_ns, now.st_size) != (before.st_mtime_ns, before.st_size)

    def __repr__(self) -> str:
        return f"JournalLog({str(self.path)!r})"


@cache
def _kinds() -> pa.Array:
    """Created on first use: with its first array Arrow loads pandas, if installed."""
    return pa.array(KINDS, pa.string())


def _form(db: sqlite3.Connection) -> int:
    (form,) = db.execute("PRAGMA user_version").fetchone()
    return int(form)


def _select(
    db: sqlite3.Connection, form: int, columns: Iterable[str], where: str, values: Sequence[Any]
) -> Raw:
    """These columns of some rows, in order of position."""
    names = sorted(columns)
    encoded = ["NULL" if form < _SINCE.get(name, 0) else _SOURCES.get(name, name) for name in names]
    rows = db.execute(f"SELECT {', '.join(encoded)} FROM change {where} ORDER BY position", values)
    cells = list(chain.from_iterable(rows))  # Rows are not kept: that costs more than reading them.
    return {name: cells[place :: len(names)] for place, name in enumerate(names)}


def _entries(
    db: sqlite3.Connection, form: int, columns: set[str], arrivals: Any, first: int, last: int
) -> Raw:
    """The rows that wrote these entries. Most are among the changes that are read; earlier ones are
    looked up one by one."""
    columns = columns | {"position"}
    here = _select(
        db,
        form,
        columns,
        f"WHERE position BETWEEN ? AND ? AND {_WITH_ENTRY}",
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
