"""Indexes on demand: a field that is asked for by its value, again and again, gets an index."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from tupelo.errors import TupeloError

if TYPE_CHECKING:
    from tupelo.postgres.matching import Group
    from tupelo.postgres.space import PostgresSpace

logger = logging.getLogger("tupelo")

USES_MIN = 32
"""A place gets an index when it was asked for so often,"""
ENTRIES_MIN = 1_000
"""and a shape has so many entries."""
POSITIONS_MAX = 16
"""Fields at later places get none."""


class Indexing:
    """Counts which places templates ask for. An index is for all spaces and shapes of a database;
    it is made concurrently, so that nobody waits for it."""

    def __init__(self, space: PostgresSpace) -> None:
        self._space = space
        self._uses: Counter[int] = Counter()

    def note(self, group: Group) -> None:
        """A template asks for these places."""
        database = self._space.database
        for position in group.positions:
            self._uses[position] += 1
            is_often = self._uses[position] % USES_MIN == 0
            if is_often and position < POSITIONS_MAX and position not in database.indexed:
                work = partial(self._make, position, group.shapes[0])
                database.start(work, "tupelo-index")

    async def _make(self, position: int, shape: int) -> None:
        space, database = self._space, self._space.database
        name = f"entries_key_{int(position)}"
        try:
            async with database.connection() as link:
                ((count,),) = await space.run(
                    link,
                    "SELECT count(*) FROM (SELECT FROM tupelo.entries "
                    "WHERE space = %(space)s AND shape = %(shape)s LIMIT %(most)s) AS found",
                    shape=shape,
                    most=ENTRIES_MIN,
                )
                if count < ENTRIES_MIN or position in database.indexed:
                    return
                database.indexed.add(position)
                await self._create(link, name, position)
        except TupeloError as error:
            logger.warning("no index for field %d of %r: %s", position, space, error)

    async def _create(self, link: Any, name: str, position: int) -> None:
        database = self._space.database
        ((mine,),) = await self._space.run(
            link, "SELECT pg_try_advisory_lock(hashtext(%(name)s))", name=name
        )
        if not mine:
            return  # Another program makes it.
        try:
            rows = await self._space.run(
                link,
                "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%(name)s)",
                name=f"tupelo.{name}",
            )
            if rows and not rows[0][0]:  # It was not completed.
                await database.run(link, f"DROP INDEX CONCURRENTLY tupelo.{name}")
            await database.run(
                link,
                f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON tupelo.entries "
                f"(space, shape, (keys[{int(position) + 1}]), arrival)",
            )
            await database.run(link, "ANALYZE tupelo.entries")
        finally:
            if not link.closed:
                await self._space.run(
                    link, "SELECT pg_advisory_unlock(hashtext(%(name)s))", name=name
                )
