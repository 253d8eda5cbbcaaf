"""Sessions and match sets: what a program has seen, and what it found at one moment."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tupelo.errors import MatchSetInvalid, UnknownType
from tupelo.postgres.leases import LeasedHandle
from tupelo.postgres.searching import PostgresSearch
from tupelo.space.dual_api import dual_api
from tupelo.space.fetching import Fetching
from tupelo.space.matchset import Skipped
from tupelo.space.order import Fifo
from tupelo.space.protocol import MatchSetLike, SessionLike
from tupelo.space.session import Seen
from tupelo.values.entry import About, Entry, check_about, note_about, require_known
from tupelo.values.scope import Coverage, Scope

if TYPE_CHECKING:
    from tupelo.postgres.prepared import Row
    from tupelo.postgres.space import PostgresSpace
    from tupelo.postgres.transactions import PostgresTransaction

PRUNE_AFTER = 1_024
"""A session looks which of its entries are gone when it has seen so many."""
LAPSED = {"expired", "cancelled", "evicted"}
"""The changes by which an entry may leave a match set."""


class PostgresSession(LeasedHandle, SessionLike):
    """A session, which remembers here what it has seen."""

    what, protocol = "session", SessionLike

    def __init__(
        self, space: PostgresSpace, seconds: float | None, like: PostgresSession | None
    ) -> None:
        super().__init__(space, seconds)
        self._seen: Seen = Seen() if like is None else like._seen.copy()
        self._entries: dict[int, tuple[str, int]] = {} if like is None else dict(like._entries)
        self._prune_at = PRUNE_AFTER
        self._lock = space.database.new_lock()

    @dual_api
    async def _read(
        self,
        template: object,
        wait: float | None,
        many: bool,
        limit: int | None,
        scope: Scope | None,
        coverage: Coverage | None,
        about: list[About] | None = None,
    ) -> Any:
        check_about(about)
        self.space.require_here(scope, coverage)
        found = await self.search(template, many, limit).find(wait, session=self)
        note_about(found, about)
        values = [entry.value for entry in found]
        return values if many else values[0] if values else None

    def search(self, template: object, many: bool, limit: int | None) -> PostgresSearch:
        """The search of a read in this session."""
        self.require()
        seen = self._seen
        return PostgresSearch(
            self.space, template, False, many, limit, Fifo(), seen=seen, session=self.id
        )

    def unsee(self, entries: list[Entry]) -> None:
        """Forget entries that did not reach the reader."""
        for entry in entries:
            self._seen.discard_number(entry.origin, entry.n)
            self._entries.pop(entry.arrival, None)
        self.space.database.listener.tell(self.space.id)

    async def look(self, search: PostgresSearch) -> list[Entry]:
        """The matches that it has not seen, each for one caller."""
        async with self._lock:
            self.require()
            if len(self._entries) > self._prune_at:
                await self._prune()
            found = await search.look()
            for entry in found:  # From here on nothing keeps them from the caller.
                self._seen.add(entry)
                self._entries[entry.arrival] = entry.origin, entry.n
            return found

    async def _prune(self) -> None:
        """Forget entries that are gone for good. Those that a transaction has taken are not."""
        there = await self.space.existing(list(self._entries))
        for gone in self._entries.keys() - there:
            self._seen.discard_number(*self._entries.pop(gone))
        self._prune_at = max(PRUNE_AFTER, 2 * len(self._entries))

    def clone(self, *, lease: float | None = None) -> Any:
        """A new session that has seen the same entries."""
        self.require()
        return self.dual_call(self.space.open_session, lease, self)

    @property
    def seen(self) -> int:
        """The number of remembered entries."""
        return len(self._seen)


class PostgresMatchSet(LeasedHandle, Fetching):
    """The entries that matched, in order of arrival. Iterate (`async for` on the async API), or
    call `next` until it returns None."""

    what, protocol = "match set", MatchSetLike

    def __init__(
        self,
        space: PostgresSpace,
        entries: list[Entry],
        txn: PostgresTransaction | None,
        seconds: float | None,
    ) -> None:
        super().__init__(space, seconds)
        self._left = deque(entries)
        self._txn = txn
        self._skipped: list[Skipped] = []
        self._invalid = ""

    @dual_api
    async def next(self) -> Any:
        """The next entry, or None at the end. MatchSetInvalid if one of its entries was taken."""
        return await self.fetch_next()

    async def fetch_next(self) -> Any:
        entry = await self.next_entry(True)
        return None if entry is None else entry.value

    async def next_entry(self, known: bool) -> Entry | None:
        """The next entry; with `known`, those of unknown classes are left out."""
        self.space.require_open()
        if not self._left and not self._invalid:
            return None
        if self._txn is not None and self._txn.state != "active":
            self._invalid = self._invalid or "its transaction has ended"
        if self.ended or self.ran_out:
            self._invalid = self._invalid or "it was closed or its lease ran out"
        if not self._invalid:
            await self._look()
        if self._invalid:
            raise MatchSetInvalid(f"the match set is over: {self._invalid}")
        while self._left:
            entry = self._left.popleft()
            try:
                if known:
                    require_known(entry)
                return entry
            except UnknownType as error:
                self._skipped.append(Skipped((entry.origin, entry.n), str(error)))
        return None

    async def cancelled(self) -> None:
        self._invalid = self._invalid or "its lease was cancelled"
        self.finish()

    async def _look(self) -> None:
        """Which of the entries that are left are gone, and how."""
        await self.space.tidy()
        ids = [entry.arrival for entry in self._left]

        async def ask(link: Any) -> tuple[list[Row], None]:
            rows = await self.space.run(
                link,
                """
                SELECT asked.id, (
                    SELECT kind FROM tupelo.changes
                    WHERE space = %(space)s AND entry = asked.id ORDER BY seq DESC LIMIT 1
                )
                FROM unnest(%(ids)s::bigint[]) AS asked (id)
                LEFT JOIN tupelo.entries ON entries.id = asked.id
                WHERE entries.id IS NULL
                """,
                ids=ids,
            )
            return rows, None

        gone = dict(await self.space.within(self._txn, ask, False))
        if not LAPSED.issuperset(gone.values()):  # A take in its own transaction is not logged yet.
            self._invalid = "one of its entries was taken"
            return
        for entry in [one for one in self._left if one.arrival in gone]:
            self._left.remove(entry)
            reason = "it expired, was cancelled or was evicted"
            self._skipped.append(Skipped((entry.origin, entry.n), reason))

    @property
    def skipped(self) -> list[Skipped]:
        """The entries that were left out so far, with the reasons."""
        return list(self._skipped)
