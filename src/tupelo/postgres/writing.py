"""Writes: entries become rows, and a space with a capacity makes room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tupelo.errors import SpaceFull
from tupelo.postgres.leases import WrittenEntry
from tupelo.postgres.matching import array_of
from tupelo.postgres.statements import ROOM
from tupelo.postgres.waiting import GiveWay, until
from tupelo.space.capacity import full_text

if TYPE_CHECKING:
    from tupelo.postgres.listening import WaitingOperation
    from tupelo.postgres.space import PostgresSpace
    from tupelo.postgres.transactions import PostgresTransaction

WRITE_MAX = 5_000
"""So many entries are written by one statement,"""
WRITE_BYTES_MAX = 8_000_000
"""unless their bodies are longer than this."""

NewEntry = tuple[int, str, bytes, int, float | None]
"""The number of a shape, keys, body, n and lease."""


class PostgresWrite:
    """One write of entries."""

    def __init__(
        self,
        space: PostgresSpace,
        rows: list[NewEntry],
        txn: PostgresTransaction | None,
        delay: float | None,
        to: str | None,
    ) -> None:
        self._space = space
        self._rows = rows
        self._txn = txn
        self._delay = delay
        self._to = to

    def _values(self, rows: list[NewEntry]) -> dict[str, Any]:
        """The parameters for writing entries by one statement."""
        space = self._space
        given: dict[str, Any] = {}
        if len(rows) == 1:
            ((given["shape"], given["keys"], given["body"], given["n"], given["lease"]),) = rows
        else:
            names = ("shapes", "keys", "bodies", "ns", "leases")
            columns = zip(*rows, strict=True)
            given = {name: array_of(column) for name, column in zip(names, columns, strict=True)}
        given["delay"], given["to"] = self._delay, self._to
        given["agent"], given["agent_name"] = space.agent, space.label
        return given

    async def run(self, wait: float | None) -> list[WrittenEntry]:
        """Write the entries; in a full space wait for room, for at most `wait` seconds."""
        space, self._parts = self._space, [self._values(part) for part in _parts(self._rows)]
        if len(self._parts) == 1 and self._txn is None and not space.options.bounded:
            statement = space.sql.write if len(self._rows) == 1 else space.sql.write_many
            found = await space.at_once(statement, **self._parts[0])
            return [WrittenEntry(row[0], row[6], n=row[5]) for row in found]
        token = space.new_token()
        self._bodies = [row[2] for row in self._rows] if space.options.bounded else []
        self._preferred: set[WaitingOperation] = set()

        async def attempt(waiter: WaitingOperation | None) -> tuple[bool, Any]:
            async def write(link: Any) -> tuple[list[WrittenEntry], bool]:
                if space.options.bounded:
                    await make_room(space, link, self._txn, self._bodies)
                    if wait != 0:
                        self._let_earlier_write(waiter)
                return await self._insert(link, token), True

            try:
                return True, await space.within(self._txn, write, True, token)
            except SpaceFull as full:
                if wait == 0 or full.hopeless:
                    raise
                self._preferred.clear()
                return False, full
            except GiveWay:
                return False, _full(space, len(self._bodies))

        done, result = await until(space, attempt, wait, self._txn, writes=True)
        if not done:
            raise result
        written: list[WrittenEntry] = result
        return written

    async def _insert(self, link: Any, token: int) -> list[WrittenEntry]:
        """Write the entries; in a transaction they are logged, and told, when it commits."""
        space, sql, txn, written = self._space, self._space.sql, self._txn, []
        if txn is not None:
            await txn.hold(link)
            one, many = sql.write_later, sql.write_many_later
        else:
            one, many = sql.write, sql.write_many
        for part in self._parts:
            written += await space.run(link, one if "n" in part else many, token=token, **part)
        if txn is not None:
            txn.wrote(written)
        return [WrittenEntry(row[0], row[6], txn, row[5]) for row in written]

    def _let_earlier_write(self, waiter: WaitingOperation | None) -> None:
        """Undo a write for whose room another write of this program waits for longer. Each of those
        gets one chance until the space is full again."""
        space, listener = self._space, self._space.database.listener
        for other in listener.waiting(space.id):
            if other is waiter:
                return
            if other.writes and other not in self._preferred:
                if waiter is not None:
                    self._preferred.add(other)
                listener.prefer(space.id, other, waiter)
                raise GiveWay


async def make_room(
    space: PostgresSpace, link: Any, txn: PostgresTransaction | None, bodies: list[bytes]
) -> None:
    """Evict entries, or raise SpaceFull. Writers come one by one, each until it commits;
    transactions only when they do, so that what others have written is counted then."""
    if txn is None or not bodies:
        await space.run(link, f"SELECT pg_advisory_xact_lock({ROOM}, %(space)s)")
    await space.tidy()
    fits = space.options.fits
    ((count, size),) = await space.run(link, space.sql.room)
    count, size = count + len(bodies), size + sum(map(len, bodies))
    if fits(count, size):
        return
    victims: list[int] = []
    if space.options.evict:
        for id_, length in await space.run(link, space.sql.oldest):
            if fits(count, size):
                break
            victims.append(id_)
            count, size = count - 1, size - length
    if not fits(count, size):
        coming = len(bodies) if bodies or txn is None else len(txn.written)
        raise _full(space, coming, not fits(len(bodies), sum(map(len, bodies))))
    await space.remove(link, victims, "evicted", tells=txn is None)  # otherwise at the commit


def _full(space: PostgresSpace, coming: int, hopeless: bool = False) -> SpaceFull:
    options = space.options
    return SpaceFull(full_text(options.entries, options.size_bytes, coming), hopeless=hopeless)


def _parts(rows: list[NewEntry]) -> list[list[NewEntry]]:
    """Rows for one statement each."""
    parts, size = [rows[:1]], len(rows[0][2])
    for row in rows[1:]:
        size += len(row[2])
        if len(parts[-1]) >= WRITE_MAX or size > WRITE_BYTES_MAX:
            parts.append([])
            size = len(row[2])
        parts[-1].append(row)
    return parts
