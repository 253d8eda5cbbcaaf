"""The log in columns, for readers of many changes: no change objects are built.

Entries stay encoded. The file is read through a connection of its own, so writers do not wait.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from tupelo.errors import BadArgument, DamagedFile, JournalFailed
from tupelo.store.format import AGENT_NAME, KINDS, is_damage
from tupelo.store.journal import MemoryJournal, require_kept
from tupelo.values.change import Change
from tupelo.values.codec import BadBytes, decode_entry, encode_entry

COLUMNS = (
    *("position", "time", "kind", "arrival", "origin", "n", "agent", "session"),
    *("txn", "to", "waited", "expires", "payload", "agent_name", "deliveries"),
    *("visible", "delayed"),
)
"""The columns that can be requested. None means absent, or not about an entry; for an agent or an
origin it means the space's own agent."""
ROWS_MAX = 16_384
BYTES_MAX = 4 * 2**20
"""Size of the texts and entries in one result, beyond those of the first change."""

Tail = tuple[int, int, list[Sequence[Any]]]
"""The first and last position of the log, and the requested columns."""

_LONG = {"payload", "origin", "agent", "agent_name", "session", "txn", "to"}
_OF_ENTRY = {"origin": "w.origin", "n": "w.n", "to": "w.dest", "payload": "w.payload"}
_SINCE = {"to": 2, "session": 3} | dict.fromkeys(
    ("agent_name", "deliveries", "visible", "delayed"), 7
)
"""The first format of the file with such a column."""
_OTHERS = {"agent_name": AGENT_NAME.format("c"), "deliveries": "ifnull(c.deliveries, 0)"}


def tail_in(path: Path, names: Sequence[str], first: int, last: int) -> Tail:
    """Columns of the first changes between two positions, from a file."""
    _check(names)
    try:
        uri = f"{path.as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.execute("BEGIN")
            kept, durable = bounds_in(db)
            columns = _columns((), names)
            until = min(last, first + ROWS_MAX - 1, durable)
            if names and first <= until:
                require_kept(first - 1, kept)
                columns = _columns(db.execute(_query(db, names), (first, until)), names)
        if "kind" in names:
            place = list(names).index("kind")
            columns[place] = [KINDS[code] for code in columns[place]]
    except (sqlite3.Error, LookupError, TypeError) as error:
        if not is_damage(error):
            raise JournalFailed(f"{path} cannot be read: {error}") from error
        raise DamagedFile(f"{path} is damaged ({error})") from error
    return kept, durable, columns


def _query(db: sqlite3.Connection, names: Sequence[str]) -> str:
    """SQL for these columns between two positions, in a file of any format."""
    (form,) = db.execute("PRAGMA user_version").fetchone()
    sources = _OF_ENTRY | _OTHERS | {n: "NULL" for n, since in _SINCE.items() if form < since}
    selected = [sources.get(name, f"c.{name}") for name in names]
    joined = (
        ""
        if _OF_ENTRY.keys().isdisjoint(names)
        else " LEFT JOIN change w ON w.position = c.arrival"
    )
    return (
        f"SELECT {', '.join(selected)} FROM change c{joined}"
        " WHERE c.position BETWEEN ? AND ? ORDER BY c.position"
    )


def changes_in(path: Path, since: int, limit: int) -> list[Change]:
    """Changes after a position, from a file whose space may be in use."""
    _, _, columns = tail_in(path, COLUMNS, since + 1, since + limit)
    own = _own_agent(path)
    found = []
    for row in zip(*columns, strict=True):
        cells = dict(zip(COLUMNS, row, strict=True))
        cells |= {"agent": cells["agent"] or own, "n": cells["n"] or 0}
        cells["origin"] = cells["origin"] or (own if cells["arrival"] else "")
        cells["arrival"] = cells["arrival"] or 0
        cells |= {"agent_name": cells["agent_name"] or "", "deliveries": cells["deliveries"] or 0}
        if (payload := cells["payload"]) is not None:
            try:
                cells["shape"], cells["fields"] = decode_entry(payload)
            except BadBytes as error:
                raise DamagedFile(f"{path} is damaged ({error})") from error
        found.append(Change(**cells))
    return found


def _own_agent(path: Path) -> str:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        (agent,) = db.execute("SELECT value FROM meta WHERE key = 'agent'").fetchone()
    return str(agent)


def bounds_in(db: sqlite3.Connection) -> tuple[int, int]:
    """The first position that is kept, and the last durable one; one less than the first if none
    is."""
    meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('first', 'position')"))
    (newest,) = db.execute("SELECT max(position) FROM change").fetchone()
    return meta["first"], max(newest or 0, meta["position"])


def tail_of(journal: MemoryJournal, names: Sequence[str], first: int, last: int) -> Tail:
    """`tail_in` for a log in memory."""
    _check(names)
    changes: list[Change] = []
    if names and first <= last:
        changes = journal.read(first - 1, min(last - first + 1, ROWS_MAX))
    rows = ([_READERS[name](change) for name in names] for change in changes)
    return *journal.bounds(), _columns(rows, names)


def _columns(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> list[Sequence[Any]]:
    """The columns of these rows. Rows are not kept: that costs more than reading them."""
    if places := [place for place, name in enumerate(names) if name in _LONG]:
        rows = _few(rows, places)
    cells = list(chain.from_iterable(rows))
    return [cells[place :: len(names)] for place in range(len(names))]


def _few(rows: Iterable[Sequence[Any]], places: list[int]) -> Iterator[Sequence[Any]]:
    """As many rows as fit into a result; `places` are the columns that may be long."""
    left = BYTES_MAX
    for number, row in enumerate(rows):
        for place in places:
            if (cell := row[place]) is not None:
                left -= len(cell)
        if left < 0 and number:
            return
        yield row


def _check(names: Sequence[str]) -> None:
    if not set(names) <= set(COLUMNS) or len(names) > len(set(names)):
        raise BadArgument("names", f"some of {', '.join(COLUMNS)}, each once", list(names))


def _payload(change: Change) -> bytes | None:
    if change.payload is None and change.shape is not None and change.fields is not None:
        return encode_entry(change.shape, change.fields)
    return change.payload


def _reader(name: str) -> Callable[[Change], Any]:
    if name == "payload":
        return _payload
    if name == "agent_name":
        return lambda change: change.agent_name or None
    if name in ("arrival", "origin", "n"):
        return lambda change: getattr(change, name) if change.arrival else None
    return lambda change: getattr(change, name)


_READERS = {name: _reader(name) for name in COLUMNS}
