"""Indexes on demand: a field that is asked for by its value, again and again, gets an index."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from tupelo.errors import TupeloError
from tupelo.postgres.statements import ARRIVAL_IN_KEYS, Rank, rank_of

if TYPE_CHECKING:
    from tupelo.postgres.driver import Database
    from tupelo.postgres.matching import ShapeGroup
    from tupelo.postgres.space import PostgresSpace

logger = logging.getLogger("tupelo")

NAME = "entries_by_key_"
"""The name of an index, with the place of the field behind it."""
RANK_NAMES = ("entries_by_rank_", "entries_by_rank_down_")
"""The same of an index for the order by a number, from the smallest or from the largest."""
USES_MIN = 32
"""A place gets an index when it was asked for so often,"""
USES_AGAIN = 1_024
"""or a multiple of this,"""
ENTRIES_MIN = 1_000
"""and a shape has so many entries, of the first of which"""
SKIPPED_MIN = 32
"""a search has to skip so many for each one that it finds."""
POSITIONS_MAX = 16
"""Fields at later places get none."""


async def existing(database: Database, link: Any) -> frozenset[int]:
    """The places that have an index."""
    rows = await database.run(
        link,
        "SELECT substr(relname, length(%(name)s::text) + 1)::int FROM pg_index "
        "JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE indrelid = 'tupelo.entries'::regclass AND indisvalid "
        "AND starts_with(relname, %(name)s::text)",
        {"name": NAME},
    )
    return frozenset(place for (place,) in rows)


class Indexing:
    """Counts which places templates ask for. An index is for all spaces and shapes of a database;
    it is made concurrently, so that nobody waits for it."""

    def __init__(self, space: PostgresSpace) -> None:
        self._space = space
        self._uses: Counter[int | Rank] = Counter()
        self._one_by_one = space.database.new_lock()

    def note(self, group: ShapeGroup) -> None:
        """A template asks for these places."""
        for position, key in zip(group.positions, group.keys, strict=True):
            if position < POSITIONS_MAX:
                self._note(position, group, key)

    def note_rank(self, group: ShapeGroup, rank: Rank) -> None:
        """An operation asks for the first entries by a number."""
        if rank.position < POSITIONS_MAX:
            self._note(rank, group)

    def _note(self, what: int | Rank, group: ShapeGroup, key: bytes | None = None) -> None:
        database = self._space.database
        if what in (database.ranked if isinstance(what, Rank) else database.indexed):
            return
        self._uses[what] += 1
        uses = self._uses[what]
        if uses == USES_MIN or uses % USES_AGAIN == 0:
            database.start(partial(self._make, what, group.shapes[0], key), "tupelo-index")

    async def _make(self, what: int | Rank, shape: int, key: bytes | None) -> None:
        space, database = self._space, self._space.database
        if isinstance(what, Rank):
            name = f"{RANK_NAMES[what.reverse]}{int(what.position)}"
            columns = f"{rank_of(what)} NULLS FIRST, arrival"
        else:
            name = f"{NAME}{int(what)}"
            columns = f"(keys[{int(what) + 1}]), {ARRIVAL_IN_KEYS}"
        try:
            # One at a time: two would wait for each other. A connection that does not count: the
            # index waits for all transactions, so none of them may have to wait for it.
            async with self._one_by_one:
                link = await database.acquire()
                try:
                    place = what.position if isinstance(what, Rank) else what
                    ((count, found),) = await space.run(
                        link,
                        "SELECT count(*), count(*) FILTER (WHERE keys[%(place)s] = %(key)s::bytea)"
                        " FROM (SELECT keys FROM tupelo.entries WHERE space = %(space)s "
                        "AND shape = %(shape)s ORDER BY arrival LIMIT %(most)s) AS first",
                        shape=shape,
                        place=place + 1,
                        key=key,
                        most=ENTRIES_MIN,
                    )
                    if count < ENTRIES_MIN or found * SKIPPED_MIN > count:
                        return
                    if what in database.indexed or what in database.ranked:
                        return
                    if not await self._create(link, name, columns):
                        self._uses[what] = 0  # The other program's may be another index.
                        return
                    if isinstance(what, Rank):
                        database.ranked |= {what}
                    else:
                        database.indexed |= {what}
                finally:
                    await database.give_back(link)
        except TupeloError as error:
            logger.warning("no index %s of %r: %s", name, space, error)

    async def _create(self, link: Any, name: str, columns: str) -> bool:
        """Make an index, unless another program does."""
        database = self._space.database
        ((mine,),) = await self._space.run(
            link, "SELECT pg_try_advisory_lock(hashtext(%(name)s))", name=NAME
        )
        if not mine:
            return False
        try:
            rows = await self._space.run(
                link,
                "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%(name)s)",
                name=f"tupelo.{name}",
            )
            if rows and rows[0][0]:  # Another program has made it.
                return True
            if rows:  # It was not completed.
                await database.run(link, f"DROP INDEX CONCURRENTLY tupelo.{name}")
            await database.run(
                link,
                f"CREATE INDEX CONCURRENTLY {name} ON tupelo.entries (space, shape, {columns})",
            )
            await database.run(link, "ANALYZE tupelo.entries")
            return True
        finally:
            if not link.closed:
                await self._space.run(
                    link, "SELECT pg_advisory_unlock(hashtext(%(name)s))", name=NAME
                )
