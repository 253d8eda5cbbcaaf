"""Another engine for the tuples of LIME: rows of a table of SQLite.

It shares with the spaces of Tupelo only the values (`Entry`, templates). A search reads the rows in
their order, an atomic step is a transaction of SQLite, and reserved tuples are rows that name their
holder. An identity map has one Entry for each row.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tupelo.errors import Livelock, ReactionError, ReactionFailed, SpaceClosed, TransactionEnded
from tupelo.models.lime.engine import EngineFactory, EngineReaction
from tupelo.space.clock import Clock
from tupelo.space.order import Order
from tupelo.space.session import Seen
from tupelo.space.waiting import WriteOutcome
from tupelo.store.index import Accept
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Entry, Shape, freeze, require_known, thaw
from tupelo.values.holder import Holder
from tupelo.values.template import as_template

REACTIONS_MAX = 1_000

TABLES = """
CREATE TABLE IF NOT EXISTS tuples (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    payload BLOB, origin TEXT, n INTEGER, home TEXT, expires REAL, holder BLOB
);
CREATE TABLE IF NOT EXISTS accepted (origin TEXT, n INTEGER, PRIMARY KEY (origin, n));
"""


class SqliteReaction:
    def __init__(
        self,
        template: Any,
        function: Callable[[Any, Any], object],
        once: bool,
        only: Accept | None,
        fired: Seen,
    ) -> None:
        self.template = as_template(template)
        self.function = function
        self.once = once
        self.only = only
        self.fired = fired
        self.ended = False
        self.error: Exception | None = None

    def wants(self, entry: Entry) -> bool:
        if self.ended or entry.gone or entry in self.fired:
            return False
        accepts = self.only is None or self.only(entry)
        return accepts and self.template.admits(entry.shape, entry.fields)


class SqliteDelivery:
    """Rows that name their holder, until they are deleted or free again."""

    def __init__(self, engine: SqliteEngine, holder: Holder, entries: list[Entry]) -> None:
        self.space = engine.name
        self.holder = holder
        self.entries = entries
        self._engine = engine
        self._settled = False

    def confirm(self) -> int:
        with self._settling():
            self._engine.delete(self.entries)
        return 0

    def give_back(self) -> int:
        with self._settling():
            for entry in self.entries:
                self._engine.execute("UPDATE tuples SET holder = NULL WHERE row = ?", entry.arrival)
                entry.gone = False
        self._engine.catch_up(self.entries)
        self._engine.announce(self.entries)
        return 0

    @contextmanager
    def _settling(self) -> Iterator[None]:
        if self._settled:
            raise TransactionEnded(self.holder.id, "settled")
        with self._engine.step():
            yield
        self._settled = True

    def forget(self) -> None:
        """There are no sessions."""


class SqliteStep:
    """An atomic step with the strong reactions that run in it."""

    def __init__(self, engine: SqliteEngine) -> None:
        self.engine = engine
        self.agenda: list[tuple[Entry, list[SqliteReaction] | None]] = []
        self.fired: list[tuple[SqliteReaction, Entry]] = []
        self.added: list[SqliteReaction] = []
        self.listeners: list[Callable[[bool], object]] = []

    def run(self) -> None:
        """Run the reactions to the tuples of the agenda, and to what they write."""
        while self.agenda:
            entry, reactions = self.agenda.pop(0)
            for one in list(self.engine.reactions) if reactions is None else reactions:
                if one.wants(entry):
                    if len(self.fired) >= REACTIONS_MAX:
                        raise Livelock(REACTIONS_MAX)
                    self.fired.append((one, entry))
                    one.fired.add(entry)
                    one.ended = one.once
                    try:
                        one.function(entry, self)
                    except Exception as error:
                        one.error = error
                        raise ReactionFailed(f"a reaction raised {error!r}") from error

    def over(self, holds: bool) -> None:
        for one, entry in () if holds else self.fired:
            one.fired.discard(entry)
            one.ended = one not in self.engine.reactions
        for one in () if holds else self.added:
            self.engine.end_reaction(one)
        self.engine.reactions = [one for one in self.engine.reactions if not one.ended]
        for listener in self.listeners:
            listener(holds)

    def write_marked(self, entry: object, mark: WriteOutcome) -> None:
        self.agenda.append((self.engine.insert(freeze(entry), mark), None))

    def get(
        self, template: object, *, take: bool, limit: int | None, only: Accept | None, order: Order
    ) -> list[Any]:
        found = self.engine.find(template, limit, only, known=True)
        if take:
            self.engine.delete(found)
        return [thaw(entry.shape, entry.fields) for entry in found]

    def add_reaction(
        self,
        template: object,
        function: Callable[[Any, Any], object],
        once: bool,
        only: Accept | None,
        whole: bool,
        fired: Seen,
    ) -> EngineReaction:
        reaction = SqliteReaction(template, function, once, only, fired)
        self.added.append(reaction)
        self.engine.reactions.append(reaction)
        self.agenda += [(entry, [reaction]) for entry in self.engine.entries()]
        return reaction

    def when_over(self, listener: Callable[[bool], object]) -> None:
        self.listeners.append(listener)


class SqliteEngine:
    """A TupleEngine in a file, or in memory if there is no path. What a method has changed is on
    disk when the method returns: there is never anything to flush."""

    def __init__(self, name: str, clock: Clock, path: Path | None = None) -> None:
        self.name = name
        self.durable = path is not None
        self.reactions: list[SqliteReaction] = []
        self._clock = clock
        self._database = sqlite3.connect(path or ":memory:", isolation_level=None)
        self._database.executescript(TABLES)
        self._known: dict[int, Entry] = {}
        self._new: list[Entry] = []
        self._deleted: list[Entry] = []
        self._fresh: dict[Entry, None] = {}
        self._news: Callable[[], object] = lambda: None
        self.closed = False

    # Rows and steps

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if self.closed:
            raise SpaceClosed(f"the engine of {self.name!r} was closed")
        return self._database.execute(statement, values)

    def insert(self, item: tuple[Shape, tuple[Any, ...]], mark: WriteOutcome) -> Entry:
        return self._insert(*item, mark.origin or self.name, mark.n or 0, mark.to, None)

    def _insert(
        self,
        shape: Shape,
        fields: tuple[Any, ...],
        origin: str,
        n: int,
        home: str | None,
        expires: float | None,
    ) -> Entry:
        row = self.execute(
            "INSERT INTO tuples (payload, origin, n, home, expires) VALUES (?, ?, ?, ?, ?)",
            *(encode_entry(shape, fields), origin, n, home, expires),
        ).lastrowid
        assert row is not None
        entry = self._known[row] = Entry(fields, shape, origin, n, row, expires, to=home)
        self._new.append(entry)
        return entry

    def delete(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.execute("DELETE FROM tuples WHERE row = ?", entry.arrival)
            entry.gone = True
            self._deleted.append(entry)

    @contextmanager
    def step(self) -> Iterator[SqliteStep]:
        """One atomic step; the reactions to its agenda run at its end."""
        step = SqliteStep(self)
        self._new, self._deleted = [], []
        self.execute("BEGIN IMMEDIATE")
        try:
            yield step
            step.run()
        except BaseException:
            self._database.rollback()
            for entry in self._deleted:
                entry.gone = False
            for entry in self._new:
                entry.gone = True
            step.over(False)
            raise
        self._database.commit()
        for entry in self._deleted:
            self._known.pop(entry.arrival, None)
        self.announce(self._new)
        step.over(True)

    def _entry_of(self, row: int) -> Entry:
        """The one Entry of a row."""
        if row not in self._known:
            payload, origin, n, home, expires, holder = self.execute(
                "SELECT payload, origin, n, home, expires, holder FROM tuples WHERE row = ?", row
            ).fetchone()
            shape, fields = decode_entry(payload)
            is_held = holder is not None
            self._known[row] = Entry(fields, shape, origin, n, row, expires, is_held, to=home)
        return self._known[row]

    # Tuples

    def entries(self) -> list[Entry]:
        now = self._clock.now()
        found = [
            self._entry_of(row)
            for (row,) in self.execute("SELECT row FROM tuples WHERE holder IS NULL ORDER BY row")
        ]
        expired = [one for one in found if one.expires is not None and one.expires <= now]
        self.delete(expired)
        return [one for one in found if not one.gone]

    def find(
        self, template: Any, limit: int | None, only: Accept | None, known: bool
    ) -> list[Entry]:
        wanted = as_template(template)
        found = [
            entry
            for entry in self.entries()
            if wanted.admits(entry.shape, entry.fields) and (only is None or only(entry))
        ][:limit]
        for entry in found if known else ():
            require_known(entry)
        return found

    def take(
        self, template: Any, limit: int | None, only: Accept | None, known: bool
    ) -> tuple[list[Entry], int]:
        with self.step():
            found = self.find(template, limit, only, known)
            self.delete(found)
        return found, 0

    def write(self, item: tuple[Shape, tuple[Any, ...]], mark: WriteOutcome) -> int:
        with self.step() as step:
            step.agenda.append((self.insert(item, mark), None))
        return 0

    def let_in(self, entries: Sequence[Entry]) -> int:
        with self.step():
            new = [
                self._insert(one.shape, one.fields, one.origin, one.n, one.to, one.expires)
                for one in entries
            ]
            for one in entries if self.durable else ():
                self.execute("INSERT OR IGNORE INTO accepted VALUES (?, ?)", one.origin, one.n)
        return self.catch_up(new)

    # Tuples for other hosts

    def put_aside(
        self, entries: Iterable[Entry], holder: Holder
    ) -> tuple[SqliteDelivery | None, int]:
        encoded = msgspec.msgpack.encode(holder)
        with self.step():
            held = [
                one
                for one in entries
                if self.execute(
                    "UPDATE tuples SET holder = ? WHERE row = ? AND holder IS NULL",
                    *(encoded, one.arrival),
                ).rowcount
            ]
        for one in held:
            one.gone = True
        return (SqliteDelivery(self, holder, held), 0) if held else (None, 0)

    def deliveries_in_doubt(self) -> list[SqliteDelivery]:
        by_holder: dict[bytes, list[Entry]] = {}
        rows = self.execute("SELECT row, holder FROM tuples WHERE holder IS NOT NULL ORDER BY row")
        for row, holder in rows.fetchall():
            by_holder.setdefault(holder, []).append(self._entry_of(row))
        return [
            SqliteDelivery(self, msgspec.msgpack.decode(holder, type=Holder), entries)
            for holder, entries in by_holder.items()
        ]

    def accepted(self) -> list[tuple[str, int]]:
        return self.execute("SELECT origin, n FROM accepted").fetchall()

    # Strong reactions

    def react(
        self,
        template: Any,
        function: Callable[[Any, Any], object],
        once: bool,
        existing: bool,
        only: Accept,
        fired: Seen,
    ) -> tuple[EngineReaction, int]:
        reaction = SqliteReaction(template, function, once, only, fired)
        self.reactions.append(reaction)
        try:
            with self.step() as step:
                if existing:
                    step.agenda += [(entry, [reaction]) for entry in self.entries()]
        except BaseException:
            self.end_reaction(reaction)
            raise
        return reaction, 0

    def end_reaction(self, reaction: Any) -> None:
        reaction.ended = True
        self.reactions = [one for one in self.reactions if one is not reaction]

    def catch_up(self, entries: list[Entry]) -> int:
        try:
            with self.step() as step:
                step.agenda += [(entry, None) for entry in entries]
        except ReactionError:
            for entry in entries if len(entries) > 1 else ():
                self.catch_up([entry])
        return 0

    # Notices

    def listen(self, news: Callable[[], object]) -> None:
        self._news = news

    def announce(self, entries: list[Entry]) -> None:
        if entries and not self._fresh:
            asyncio.get_running_loop().call_soon(self._news)
        self._fresh |= dict.fromkeys(entries)

    def fresh(self) -> list[Entry]:
        found, self._fresh = self._fresh, {}
        return [entry for entry in found if not entry.gone]

    # The disk

    async def flushed(self, position: int) -> None:
        """Every step is committed when it ends."""

    def flush_soon(self, position: int) -> None:
        """Every step is committed when it ends."""

    def close(self) -> None:
        self.closed = True
        self._database.close()


def sqlite_engines(folder: Path | None = None) -> EngineFactory:
    """Engines of one host. What its agents share outlives the host, if there is a folder."""

    def make(name: str, agent: str | None, clock: Clock) -> SqliteEngine:
        if folder is None or agent is not None:
            return SqliteEngine(name, clock)
        folder.mkdir(parents=True, exist_ok=True)
        return SqliteEngine(name, clock, folder / f"{name}.tuples")

    return make
