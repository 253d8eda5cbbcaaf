"""Checking the whole file of a journal, and saving the undamaged part.

`examine` reads every row and changes nothing; `salvage` writes the undamaged part to a new file. A
log has no gaps: the new log begins after the last lost change, and older entries that live are kept
as in a log that was trimmed there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from tupelo.errors import Damage, DamagedFile, JournalError, JournalFailed, SpaceInUse
from tupelo.store.filelock import FileLock, draft_of, sync_folder
from tupelo.store.format import (
    CHANGE,
    CHECKED_SINCE,
    KINDS,
    NUMBERS_END,
    add_functions,
    bounded,
    check_header,
    create,
    delete_before,
    entry_crc,
    entry_weights,
    is_entry_crc,
    lease_crc,
    make_checksums,
    meta_crc,
    promise_crc,
    promise_weight,
    require_crc,
    write_meta,
)
from tupelo.store.highwater import ENDING, read_mark
from tupelo.store.sqlite import SavedPromise
from tupelo.values.change import ENDINGS
from tupelo.values.codec import BadBytes, decode_entry

_CHECKED = [*CHANGE.split(", "), "newest", "living", "crc"]
_ENTRY = ["origin", "n", "payload", "dest", "visible", "delayed"]
_COLUMNS = [*_CHECKED, *_ENTRY, "ended", "lease", "lease_crc", "returns"]
_PLACE = {name: place for place, name in enumerate(_COLUMNS)}
_SINCE = {
    "dest": "NULL",
    "session": "NULL",
    "lease": "expires",
    "visible": "NULL",
    "delayed": "NULL",
}
"""Columns that older formats lack, with substitutes; without the columns of checksums."""
_WITH_ENTRY = ("written", "delayed")
_SPLITS_MAX = 10_000  # how often an unreadable part of a file is halved
_REPORTED_MAX = 20  # reported errors of SQLite
_LISTED = 5  # damages listed in one message
_UNREADABLE = (sqlite3.Error, UnicodeError)  # The text of an error may quote damaged bytes.
BESIDE = ("", "-wal", "-shm", ENDING)
"""The endings of a journal's file and of those beside it."""
_REPORT_EVERY = 4_096  # rows
_REPORT_STEPS = 1_000_000  # of SQLite's virtual machine

Progress = Callable[[int, int], None]
"""Called now and then with how much is done, and how much there is."""

Row = tuple[Any, ...]
"""The columns of a row, in the order of `_COLUMNS`."""


class Examination(NamedTuple):
    """The result of a check: how much is good, and the damages."""

    path: Path
    name: str
    format: int
    first: int
    last: int
    changes: int
    entries: int
    found: list[Damage]


def examine(path: str | Path, progress: Progress | None = None) -> Examination:
    """Check every row of a journal that is not in use, and change nothing.

    Raises ForeignFile if it is not a journal, SpaceInUse if a space has it open, JournalFailed if
    it cannot be read.
    """
    with _Locked(Path(path)) as file, closing(connect(file)) as db:
        return _Examiner(file, db, progress).examine()


def salvage(path: str | Path, to: str | Path, progress: Progress | None = None) -> Examination:
    """Write the undamaged part of a journal to a new file, and return the damages."""
    if Path(to).exists():
        raise JournalFailed(f"{to} exists already")
    with _Locked(Path(path)) as file, closing(connect(file)) as db:
        examiner = _Examiner(file, db, progress)
        examination = examiner.examine()
        try:
            examiner.write_good(Path(to).resolve())
        except BaseException as error:
            _remove(Path(to))
            if isinstance(error, sqlite3.Error):
                raise JournalFailed(f"{to} cannot be made: {error}") from error
            raise
    return examination


def salvage_in_place(path: str | Path, progress: Progress | None = None) -> Examination | None:
    """If a journal is damaged, replace it by its undamaged part, and keep the damaged file as
    `NAME.damaged-1`, with a report in `NAME.damaged-1.txt`. Returns None if it is undamaged or does
    not exist."""
    file = Path(path).resolve()
    if not file.exists() or (file.is_file() and not file.stat().st_size):
        return None
    examination = examine(file, progress)
    if not examination.found:
        return None
    good = draft_of(file)
    _remove(good)
    salvage(file, good, progress)
    try:
        _replace(file, good, examination.found)
    except OSError as error:
        raise JournalFailed(f"{file} cannot be kept beside: {error.strerror}") from error
    return examination


def _replace(file: Path, good: Path, found: list[Damage]) -> None:
    """Replace the damaged file, which is kept, and write the report."""
    number = 1
    while (kept := file.with_name(f"{file.name}.damaged-{number}")).exists():
        number += 1
    for ending in BESIDE:
        with suppress(FileNotFoundError):
            file.with_name(file.name + ending).rename(kept.with_name(kept.name + ending))
    listed = "".join(f"{damage}\n" for damage in found)
    kept.with_name(kept.name + ".txt").write_text(listed, "utf-8")
    good.rename(file)
    sync_folder(file.parent)


def explained(path: str | Path, error: DamagedFile) -> DamagedFile:
    """The same error, with all damages of the file."""
    with suppress(JournalError, sqlite3.Error):
        found = examine(path).found
        listed = "; ".join(map(str, found[:_LISTED]))
        more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        if found:
            return DamagedFile(f"{error}: {listed}{more}", found)
    return error


def _remove(path: Path) -> None:
    for ending in BESIDE:
        path.with_name(path.name + ending).unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    """Open read-only. Without a write-ahead log, SQLite creates no other files."""
    wal = path.with_name(path.name + "-wal")
    at_rest = "" if wal.exists() and wal.stat().st_size else "&immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?mode=ro{at_rest}", uri=True, isolation_level=None)


class _Locked:
    """Context manager that prevents spaces from opening the file."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._lock = FileLock(self._path.with_name(self._path.name + ".lock"))

    def __enter__(self) -> Path:
        try:
            with suppress(DamagedFile):  # A torn file is reported by the examination.
                check_header(self._path)
            if not self._lock.acquire():
                raise SpaceInUse(f"{self._path} is open in another space, here or elsewhere")
        except OSError as error:
            raise JournalFailed(f"{self._path} cannot be opened: {error.strerror}") from error
        return self._path

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class _EntryHistory(NamedTuple):
    """What the log says about an entry: the row that wrote it, the position at which it ended, its
    lease, the last change about it, and how often it had come back then."""

    row: Row
    ended: int | None
    lease: float | None
    at: int
    deliveries: int | None


class _Examiner:
    """Examines the file of one journal."""

    def __init__(
        self, path: Path, db: sqlite3.Connection, progress: Progress | None = None
    ) -> None:
        self._path = path
        self._db = db
        self._progress = progress
        if progress is not None:  # SQLite's own check takes long before the first row.
            db.set_progress_handler(partial(progress, 0, 1), _REPORT_STEPS)
        self._found: list[Damage] = []
        self._lost_upto = 0  # the last position of a lost change
        self._splits = 0
        self._newest = 0
        self._histories: dict[int, _EntryHistory] = {}
        self._living: dict[int, float | None] = {}
        self._unclear: set[int] = set()
        self._promises: dict[str, SavedPromise] = {}

    def _add(self, lost: str, text: str, first: int = 0, last: int = 0) -> None:
        self._found.append(Damage(lost, first, last or first, text))

    def examine(self) -> Examination:
        self._check_file()
        self._load_meta()
        mark = read_mark(self._path, str(self._meta.get("id", "")))
        self._end = max(self._meta["position"], mark.position if mark else 0)
        state: Row = (0, self._meta["n"], self._meta.get("living"))
        expected = self._first
        changes = 0
        for row in self._rows():
            position, newest, living = (row[_PLACE[k]] for k in ("position", "newest", "living"))
            if position >= self._first:
                self._report_gap(expected, position - 1)
                expected = position + 1
                changes += 1
            if newest is not None and position > self._meta["position"]:
                state = position, newest, living
            self._count(row[_PLACE["n"]] or 0, newest or 0)
            self._follow(row)
        self._last = max(expected - 1, self._end)
        self._count(mark.newest if mark else 0, self._meta["n"])
        self._report_gap(expected, self._last)
        self._settle()
        self._load_promises()
        self._check_living(mark.living if mark and mark.position == self._last else state[2])
        return Examination(
            self._path,
            self._meta["name"],
            self._format,
            self._first,
            self._last,
            changes,
            len(self._living),
            list(self._found),
        )

    def _count(self, *numbers: int) -> None:
        """Note numbers of entries. New entries get higher ones."""
        self._newest = max([self._newest, *(n for n in numbers if n < NUMBERS_END)])

    # Description of the file

    def _check_file(self) -> None:
        self._format = 0
        try:
            check_header(self._path)
        except DamagedFile as error:
            self._add("nothing", str(error))
        try:
            (self._format,) = self._db.execute("PRAGMA user_version").fetchone()
            for (text,) in self._db.execute(f"PRAGMA integrity_check({_REPORTED_MAX})"):
                if text != "ok":
                    self._add("nothing", f"SQLite: {' '.join(text.split())}")
        except _UNREADABLE as error:
            self._add("nothing", f"SQLite: {error}")
        try:
            rows = self._db.execute("PRAGMA table_info(change)").fetchall()
        except _UNREADABLE:
            rows = []
        self._columns = {name for _, name, *_ in rows}
        self._checked = {"crc", "lease_crc", "newest", "living"} <= self._columns
        if self._checked != (self._format >= CHECKED_SINCE):
            self._add("nothing", f"it has format {self._format}, and not the columns of it")

    def _load_meta(self) -> None:
        meta: dict[str, Any] = {}
        try:
            meta = dict(self._db.execute("SELECT key, value FROM meta"))
            if self._checked and meta_crc(meta) != meta.get("crc"):
                self._add("description", "the checksum of the description of the space is wrong")
                meta |= {"position": 0, "n": 0}
        except (*_UNREADABLE, TypeError, ValueError) as error:
            self._add("description", f"the description of the space cannot be read: {error}")
        needed = {"name": self._path.stem, "agent": uuid4().hex, "first": 1, "position": 0, "n": 0}
        for key, default in needed.items():
            if type(meta.get(key)) is not type(default):
                self._add("description", f"the {key} of the space is not there")
                meta[key] = default
        self._meta = meta
        last = max(meta["position"], self._greatest())
        self._first: int = meta["first"] if meta["first"] <= last + 1 else 1

    # Rows

    def _rows(self) -> Iterator[Row]:
        """The undamaged rows, in order; the others are reported."""
        if not self._columns:
            # Entries may live that were written before the log begins.
            self._add("change", "no change can be read", 1, max(1, self._end))
            return
        have = {name: _SINCE.get(name, "NULL") for name in _COLUMNS if name not in self._columns}
        query = (
            f"SELECT {', '.join(have.get(name, name) for name in _COLUMNS)} FROM change"
            " WHERE position BETWEEN ? AND ? ORDER BY position"
        )
        before = 0
        self._db.set_progress_handler(None, 0)
        last = max(self._end, self._greatest())
        for number, row in enumerate(self._read(query, 1, last)):
            if self._progress is not None and number % _REPORT_EVERY == 0:
                self._progress(row[0] if type(row[0]) is int else 0, last)
            try:
                if type(row[0]) is not int or row[0] <= before:
                    raise ValueError("it is out of order")
                self._require_good(row)
            except (BadBytes, LookupError, OverflowError, TypeError, ValueError) as error:
                self._report_row(row, error)
                continue
            before = row[0]
            yield row

    def _greatest(self) -> int:
        try:
            return self._db.execute("SELECT max(position) FROM change").fetchone()[0] or 0
        except _UNREADABLE:
            return 0

    def _read(self, query: str, first: int, last: int) -> Iterator[Row]:
        """The rows between two positions; where SQLite cannot read one, those around it."""
        at = first
        try:
            for row in self._db.execute(query, (first, last)):
                yield row
                at = max(at, row[0] + 1)
            return
        except (*_UNREADABLE, TypeError) as error:
            self._splits += 1
            if at >= last or self._splits > _SPLITS_MAX:
                self._add("change", f"{_span(at, last)} not readable: {error}", at, last)
                return
        middle = (at + last) // 2
        yield from self._read(query, at, middle)
        yield from self._read(query, middle + 1, last)

    def _require_good(self, row: Row) -> None:
        if self._checked:
            require_crc(row[: len(_CHECKED)])
        if KINDS[row[2]] in _WITH_ENTRY:
            crc, *entry = row[_PLACE["crc"] : _PLACE["ended"]]
            if self._checked and not is_entry_crc(crc, entry_crc(row[0], *entry)):
                raise ValueError("the checksum of its entry is wrong")
            decode_entry(row[_PLACE["payload"]])

    def _report_row(self, row: Row, error: Exception) -> None:
        position, code = row[0], row[2]
        kind = KINDS[code] if type(code) is int and 0 <= code < len(KINDS) else "of unknown kind"
        whose = " with its entry" if kind in _WITH_ENTRY else ""
        text = f"the change at {position!r} ({kind}){whose}: {error}"
        self._add("change", text, position if type(position) is int else 0)

    def _report_gap(self, first: int, last: int) -> None:
        """Report these changes as lost. Changes with a wrong checksum were reported before."""
        if first > last:
            return
        self._lost_upto = last
        reported = [
            d for d in self._found if d.lost == "change" and first <= d.first <= d.last <= last
        ]
        if sum(d.last - d.first + 1 for d in reported) < last - first + 1:
            self._add("change", f"{_span(first, last)} not there", first, last)

    # Entries

    def _follow(self, row: Row) -> None:
        """Note a change of an entry."""
        position, arrival, expires = row[0], row[_PLACE["arrival"]], row[_PLACE["expires"]]
        kind, deliveries = KINDS[row[2]], row[_PLACE["deliveries"]]
        if kind in _WITH_ENTRY:
            self._histories[position] = _EntryHistory(row, None, expires, position, deliveries)
            self._end_delayed(row[_PLACE["delayed"]], position)
        elif arrival in self._histories:
            history = self._histories[arrival]
            ended = position if kind in ENDINGS else None
            lease = expires if kind in ("renewed", "returned") else history.lease
            self._histories[arrival] = _EntryHistory(
                history.row, ended, lease, position, deliveries
            )
            if ended is not None and ended == history.row[_PLACE["ended"]]:
                del self._histories[arrival]  # consistent
        elif arrival is not None and self._is_lost(arrival):
            text = f"the change at {position} ({kind}) is of the entry at {arrival}, which is lost"
            self._add("change", text, position)
            self._lost_upto = position

    def _end_delayed(self, arrival: int | None, position: int) -> None:
        """The delayed entry with this arrival, if any, was written at this position."""
        if arrival in self._histories:
            history = self._histories[arrival]
            self._histories[arrival] = history._replace(ended=position, lease=None, at=position)
            if position == history.row[_PLACE["ended"]]:
                del self._histories[arrival]  # consistent

    def _is_lost(self, arrival: int) -> bool:
        """Whether the row that wrote this entry was lost, so that it is not among those in the
        log."""
        lost = any(d.lost == "change" and d.first <= arrival <= d.last for d in self._found)
        return lost or arrival < self._first

    def _settle(self) -> None:
        """Decide which entries live: by the log, where no change about them can be missing;
        otherwise by their rows, unless these are damaged; otherwise it is not known."""
        for arrival, history in self._histories.items():
            ended, lease, *_ = history.row[_PLACE["ended"] :]
            good = self._is_lease_good(history.row)
            if history.at > self._lost_upto or self._lost_upto < self._first:
                if history.ended is None:
                    self._living[arrival] = history.lease
                if ended != history.ended or (
                    ended is None and not (good and lease == history.lease)
                ):
                    text = f"the row of the entry at {arrival} is wrong; the log has what is right"
                    if not good and history.at < self._first:
                        text += ", but how often it came back is not known"
                    self._add("nothing", text, arrival)
            elif ended is None and history.ended is None and good:
                self._living[arrival] = lease
            elif ended is None or ended > self._lost_upto or history.ended is not None:
                self._unclear.add(arrival)
                text = f"whether the entry at {arrival} lives is not known; it is left out"
                self._add("entry", text, arrival)

    def _load_promises(self) -> None:
        crc = "crc" if self._checked else "NULL"
        try:
            for txn, payload, found in self._db.execute(f"SELECT txn, payload, {crc} FROM promise"):
                try:
                    if self._checked and found != promise_crc(txn, payload):
                        raise ValueError("its checksum is wrong")
                    promise = msgspec.msgpack.decode(payload, type=SavedPromise)
                except (AttributeError, TypeError, ValueError) as error:
                    self._add("promise", f"the promise of transaction {txn!r}: {error}")
                    continue
                self._promises[txn] = promise
                for arrival in promise.taken:
                    if arrival not in self._living:
                        text = f"the entry at {arrival}, which transaction {txn!r} has taken"
                        self._add("entry", text, arrival)
        except _UNREADABLE as error:
            self._add("promise", f"the promises cannot be read: {error}")

    def _sum(self) -> int:
        weights = sum(promise_weight(txn) for txn in self._promises)
        return bounded(entry_weights(list(self._living)) + weights)

    def _check_living(self, expected: object) -> None:
        """Check the sum of living entries. After other losses a difference is expected."""
        if (
            self._checked
            and expected != self._sum()
            and all(damage.lost == "nothing" for damage in self._found)
        ):
            text = "entries that were written before the log begins, or promises, are missing"
            self._add("entry", text)

    # Saving

    def write_good(self, path: Path) -> None:
        """Write the undamaged part to a new file."""
        self._splits = 0
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            create(db)
            add_functions(db)
            names = f"({', '.join(_COLUMNS)})"
            marks = f"({', '.join('?' * len(_COLUMNS))})"
            db.executemany(f"INSERT INTO change {names} VALUES {marks}", self._good_rows())
            if not self._checked:
                make_checksums(db)
            for txn, promise in self._promises.items():
                promise.taken = [arrival for arrival in promise.taken if arrival in self._living]
                payload = msgspec.msgpack.encode(promise)
                values = (txn, payload, promise_crc(txn, payload))
                db.execute("INSERT INTO promise VALUES (?, ?, ?)", values)
            kept = ("name", "agent", "agent_name", "id", "log_keep")
            known = {key: self._meta[key] for key in kept if key in self._meta}
            first = max(self._first, self._lost_upto + 1)
            n = max(self._newest, self._last)
            counts = {"position": self._last, "n": n, "living": self._sum()}
            write_meta(db, {**known, **counts, "first": first})
            delete_before(db, first)
            db.execute("COMMIT")
        sync_folder(path.parent)

    def _good_rows(self) -> Iterator[Row]:
        for row in self._rows():
            arrival = row[0]
            if arrival in self._unclear:
                continue
            if arrival in self._histories:
                lease = self._living.get(arrival)
                ended = None if arrival in self._living else self._ended(arrival)
                returns = self._returns(arrival) if ended is None else None
                crc = lease_crc(arrival, lease, returns)
                row = (*row[: _PLACE["ended"]], ended, lease, crc, returns)
            yield row

    def _returns(self, arrival: int) -> int | None:
        """How often a living entry came back: by its row, unless that is damaged; otherwise by the
        log; None if that begins later."""
        history = self._histories[arrival]
        if self._is_lease_good(history.row):
            returns: int | None = history.row[_PLACE["returns"]]
            return returns
        return history.deliveries if history.at >= self._first else None

    def _is_lease_good(self, row: Row) -> bool:
        _, lease, crc, returns = row[_PLACE["ended"] :]
        return not self._checked or _is_lease_crc(crc, row[0], lease, returns)

    def _ended(self, arrival: int) -> int | None:
        history = self._histories[arrival]
        return history.ended or history.row[_PLACE["ended"]]


def _is_lease_crc(crc: object, arrival: int, lease: Any, returns: Any) -> bool:
    try:
        return crc == lease_crc(arrival, lease, returns)
    except TypeError:
        return False


def _span(first: int, last: int) -> str:
    return f"the change at {first} is" if first == last else f"changes {first} to {last} are"
