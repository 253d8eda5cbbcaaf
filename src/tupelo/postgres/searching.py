"""Reads, takes and counts: which entries match, in which order, and who gets them.

Candidates are found without locks, and what SQL cannot say is checked here. Takes then lock what
they want and skip what others have locked, so that takers do not wait for each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import CannotSend, TupeloError
from tupelo.postgres import statements
from tupelo.postgres.driver import IDLE
from tupelo.postgres.matching import Targets
from tupelo.postgres.statements import Rank
from tupelo.postgres.waiting import GiveWay, until
from tupelo.space.order import Fifo, Lifo, Order, arranged, by_field, needed
from tupelo.space.query import check_limit, check_order, check_wait
from tupelo.space.session import Seen
from tupelo.values.codec import decode_entry
from tupelo.values.entry import Entry, require_known
from tupelo.values.kind import is_at_hand

if TYPE_CHECKING:
    from tupelo.postgres.listening import WaitingOperation
    from tupelo.postgres.prepared import Backend, Row
    from tupelo.postgres.sessions import PostgresSession
    from tupelo.postgres.space import PostgresSpace, PostgresTxn
    from tupelo.postgres.transactions import PostgresTransaction

logger = logging.getLogger("tupelo")

Match = tuple[tuple[Any, ...], Entry]
"""A row, and the entry that it is."""

BATCH = 256
"""So many entries are fetched at once to be checked here."""
LAST = (1 << 63) - 1
OUTCOME_SECONDS = 5.0
"""So long a take that finds nothing waits for other takes, under way, of all that matches."""


class SpaceState(msgspec.Struct):
    """What a look tells beside its matches: the number of shapes in the space (None if that is
    gone), whether entries must expire or appear, and whether transactions of others have entries
    in hand."""

    shapes: int | None
    late: bool
    held: bool


class PostgresSearch:
    """One read, take or count: what it wants, and how it gets that. CannotSend for an order that
    needs the head of a space."""

    targets: Targets  # of the present look
    waited = 0.0
    known = True  # whether entries of classes that this program lacks are refused
    lasting = False  # whether entries that are gone after the look do not count
    tidied = False
    whole = False  # whether there are too many matches for one statement
    unranked = False  # whether the order cannot be left to the server
    skipped = False  # whether others have entries in hand that it wants
    waiter: WaitingOperation | None = None
    token: int | None = None  # of a take without a transaction, in the log
    link: Any = None  # where it takes, and its process in the server
    backend: Backend | None = None
    txn: PostgresTransaction | None = None
    took = False  # within that transaction

    def __init__(
        self,
        space: PostgresSpace,
        template: object,
        take: bool = False,
        many: bool = True,
        limit: int | None = None,
        order: Order | None = None,
        if_exists: bool = False,
        seen: Seen | None = None,
        session: str | None = None,
    ) -> None:
        if order is not None:
            check_order(order)
            if order.head_only:
                raise CannotSend(f"a space in a database has no head, as {order!r} needs")
        self.space = space
        self.plan = space.plans.of(template)
        self.take = take
        self.many = many
        self.limit = limit if many else 1
        self.order = order or space.order
        self.if_exists = if_exists
        self.seen = seen
        self.session = session
        self.chances: set[tuple[int, int]] = set()

    def bind(self) -> Targets:
        """What the template asks of the shapes that are known now."""
        return self.plan.targets(self.space.shapes.known)

    # Waiting

    async def find(
        self, wait: float | None, txn: PostgresTxn = None, session: PostgresSession | None = None
    ) -> list[Entry]:
        """The entries of the read or take, when there are any."""
        check_wait(wait)
        if self.many:
            check_limit(self.limit)
        self.txn = await self.space.branch(txn)
        if self.take and self.txn is None:
            self.token = self.space.new_token()

        async def look() -> list[Entry]:
            found = await (self.look() if session is None else session.look(self))
            if not found:
                self.link = None  # There is nothing to give back.
            return found

        found = await self._find_by(look, wait)
        if not found and self.skipped and (self.take or session is not None):
            found = await self._look_again(look)
        return list(found)

    async def reserve(self, wait: float | None) -> tuple[PostgresTransaction, list[Entry]] | None:
        """The entries of a take, in a transaction that begins when there are any."""
        check_wait(wait)
        if self.many:
            check_limit(self.limit)
        space = self.space

        async def take() -> tuple[PostgresTransaction, list[Entry]] | None:
            txn = self.txn = await space.begin(None)
            try:
                found = await self.look()
            except BaseException:
                await space.database.to_the_end(txn.dismiss)
                raise
            finally:
                self.txn = None
            if not found:
                await txn.dismiss()
            return (txn, found) if found else None

        reserved: tuple[PostgresTransaction, list[Entry]] | None
        look = partial(space.database.patiently, take, space.reconnect)
        reserved = await self._find_by(look, wait)
        return reserved

    async def _find_by(
        self, look: Callable[[], Coroutine[Any, Any, Any]], wait: float | None
    ) -> Any:
        """Look until something is found, for at most `wait` seconds; with `if_exists`, only while
        an open transaction could provide a match."""
        # A read_all or take_all that waits for transactions answers with all matches in the end.
        gathers = self.if_exists and self.many and wait != 0

        async def attempt(waiter: WaitingOperation | None) -> tuple[bool, Any]:
            found = None if gathers else await look()
            if found or not self.if_exists:
                return bool(found), found
            # Before another look: what is committed in between is found.
            may_come = await self._may_come()
            if gathers and may_come:
                return False, None
            found = await look()
            return bool(found) or not may_come, found

        _, found = await until(self.space, attempt, wait, self.txn, self)
        return await look() if found is None and gathers else found

    async def _look_again(self, look: Callable[[], Coroutine[Any, Any, Any]]) -> list[Entry]:
        """Look when others are done, whose takes had all matches locked, or to which all matches
        were left: until then the matches can be read, so there is no moment without one. For
        transactions nobody waits."""
        space = self.space

        async def is_held(link: Any) -> tuple[bool, None]:
            ours = [link.backend[0]]
            return (await space.run(link, space.sql.is_held, ours=ours))[0][0], None

        seconds, give_up = 0.001, time.monotonic() + OUTCOME_SECONDS
        found: list[Entry] = []
        while not found and self.skipped and time.monotonic() < give_up:
            if await space.within(self.txn, is_held, False):
                break
            await space.database.pause(seconds)
            seconds = min(2 * seconds, 0.05)
            found = await look()
        return found

    async def _may_come(self) -> bool:
        """Whether the end of an open transaction could provide a match."""
        space, ours = self.space, []
        for one in space.transactions():
            if not one.is_root:
                continue
            if one.backend is not None:
                ours.append(one.backend[0])
            if self.txn is None or self.txn.root is not one:
                for row in [*one.written.values(), *one.taken.values()]:
                    entry = entry_of(row, known=False)
                    if self.plan.template.admits(entry.shape, entry.fields):
                        return True
        self.targets = self.bind()

        async def ask(link: Any) -> bool:
            ((others,),) = await space.run(link, space.sql.is_held, ours=ours)
            if others or not self.take:
                return bool(others)
            # Read locks of our own transactions hinder a take, too.
            async for rows, _ in self._batches(link, False, None):
                ids = [row[0] for row, _ in self._checked(rows)]
                await space.database.run(link, "BEGIN")
                free = await space.run(link, space.sql.free, ids=ids)
                await space.database.run(link, "ROLLBACK")
                if len(free) < len(ids):
                    return True
            return False

        return bool(await space.reading(ask))

    # Looking

    async def look(self) -> list[Entry]:
        """The matches of now, taken or read."""
        space, txn = self.space, self.txn
        self.tidied = self.skipped = False
        await space.end_expired()
        while True:
            self.targets = self.bind()
            if txn is None and type(self.order) is Fifo and self._is_direct():
                taken = await self._take_directly()
                if taken is not None:
                    return taken
            try:
                found = await space.within(txn, self._search, self.take, self.token)
            except GiveWay:
                self.skipped = True
                return []
            if found is not None and (not self.lasting or await self._are_there(found)):
                entries: list[Entry] = found
                return entries

    async def _are_there(self, entries: list[Entry]) -> bool:
        """Whether these are still there. A take of a host is answered before it is committed, and a
        look that begins meanwhile may see the entry, and not the transaction any more."""
        ids = [entry.arrival for entry in entries]
        return not ids or len(await self.space.existing(ids)) == len(ids)

    def _is_direct(self) -> bool:
        """Whether this is a take that can be one statement: SQL finds the entries, each of which
        can be built here, and no take in this program waits for longer."""
        group = self.targets.sole
        if group is None or not self.take:
            return False
        for other in self.space.database.listener.waiting(self.space.id):
            if other is self.waiter:
                break
            if other.takes:
                return False
        shape = self.space.shapes.known[group.shapes[0] - 1]
        return shape.flat and (shape.kind is None or is_at_hand(shape.kind))

    async def _take_directly(self) -> list[Entry] | None:
        """Take the oldest entries of one shape, in one statement. None if the state of the space
        needs a closer look."""
        space, group = self.space, self.targets.sole
        assert group is not None
        space.indexing.note(group)
        indexed, tells = space.database.indexed, space.tells_removals
        wanted: dict[str, Any] = {"shape": group.shapes[0], "known": self.targets.known}
        wanted.update({f"key0_{i}": key for i, key in enumerate(group.keys)})
        if self.limit == 1:
            statement = space.sql.take(group, indexed, tells)
        else:
            statement = space.sql.take_many(group, indexed)
            wanted["limit"] = LAST if self.limit is None else min(self.limit, LAST)
        rows = await space.at_once(statement, self, **wanted, **space.change("taken", search=self))
        if not rows:

            async def ask(link: Any) -> Row:
                found = await space.run(link, space.sql.missed(group), tells=tells, **wanted)
                if not found[0][0]:
                    await space.refresh(link)
                return found[0]

            is_fresh, self.skipped = await space.reading(ask)
            # One that takes many does not if something is late, which another may have ended since.
            is_over = is_fresh and (self.limit == 1 or not self.skipped)
            return [] if is_over else None
        return [entry_of(row) for row in rows]

    async def _search(self, link: Any) -> tuple[list[Entry] | None, Any]:
        """Find candidates without locks, check them here, then lock those that are wanted. Returns
        None to look again, and whether something was changed."""
        space, targets, txn = self.space, self.targets, self.txn
        for group in targets.groups:
            space.indexing.note(group)
        ranks = None if self.whole or self.unranked else self._ranks()
        simple = type(self.order) in (Fifo, Lifo) or ranks is not None
        limit = self.limit if simple else None
        found: list[Match] = []
        state: SpaceState | None = None
        is_snapshot = self.many and not self.take  # Takes lock what they find, and need none.
        if self.whole:
            batches = self._all_batches(link, self.order.backwards)
        else:  # A read of many looks again for all if one batch is not enough.
            most = None if targets.checks and is_snapshot else limit
            batches = self._batches(link, self.order.backwards, most, ranks)
        count = 0
        async for rows, state in batches:
            count += 1
            if count > 1 and is_snapshot and not self.whole:
                self.whole = True
                return None, None
            if await self._is_stale(link, state):
                if self.whole:
                    await self._close_cursor(link)
                return None, None
            if ranks is not None and rows[0][14] is None:
                self.unranked = True
                return None, None
            seen = self.seen
            matches = [one for one in self._checked(rows) if seen is None or one[1] not in seen]
            if simple:
                wanted = None if limit is None else limit - len(found)
                found += await self._claim_some(link, matches, wanted, state)
                if limit is not None and len(found) >= limit:
                    break
            else:
                found += matches
        if self.whole:
            await self._close_cursor(link)
        if state is None:
            ((*now, _),) = await space.run(link, space.sql.state)
            if await self._is_stale(link, SpaceState(*now)):
                return None, None
        elif not simple:
            found = await self._claim_arranged(link, found, state)
        if self.known:
            for _, entry in found:
                require_known(entry)
        entries = [entry for _, entry in found]
        if self.take or self.seen is not None:
            self._give_way(entries)
        if txn is not None and self.take and found:
            taken = await txn.claim([row for row, _ in found])
            entries = [entry_of(row, known=False) for row in taken]
            txn.took(taken)
            self.took = True
        return entries, (self.take and txn is None and found) or None

    async def _is_stale(self, link: Any, state: SpaceState) -> bool:
        """Whether to look again: there are new shapes, or entries that had to expire or appear.
        Those that a transaction has in hand stay late."""
        if state.shapes is None or state.shapes > self.targets.known:
            await self.space.refresh(link)
            return True
        if state.late and not self.tidied:
            self.tidied = True
            await self.space.tidy()
            return True
        return False

    def _give_way(self, entries: list[Entry]) -> None:
        """Leave what another operation of this program, which waits for longer, would get: to a
        take, or to a read in the same session. Each gets one such chance for an entry."""
        listener = self.space.database.listener
        for other in listener.waiting(self.space.id):
            if other is self.waiter:
                return
            asked: PostgresSearch | None = other.search
            if asked is None or not (asked.take if self.take else asked.seen is self.seen):
                continue
            for entry in entries:
                chance = (id(other), entry.arrival)
                admits = asked.plan.template.admits
                if chance not in self.chances and admits(entry.shape, entry.fields):
                    self.chances.add(chance)
                    listener.prefer(self.space.id, other, self.waiter)
                    raise GiveWay

    # Candidates

    def _checked(self, rows: list[Row]) -> list[Match]:
        """Those of these rows that the checks in Python let pass, with their entries."""
        pairs = [(row, entry_of(row, known=False)) for row in rows]
        checks = self.targets.checks
        if not checks:
            return pairs
        return [
            (row, entry)
            for row, entry in pairs
            if (check := checks.get(row[1])) is None or check(entry.fields)
        ]

    def _ranks(self) -> tuple[Rank, ...] | None:
        """For each group of shapes the place of the numbers by which the server can find the first
        entries of an order; None if the order has to look at all matches."""
        key, groups = by_field(self.order), self.targets.groups
        if key is None or self.limit is None or self.limit > BATCH:
            return None
        shapes = [[self.space.shapes.known[n - 1] for n in group.shapes] for group in groups]
        places = [{key.position_in(shape) for shape in group} for group in shapes]
        found = [place.pop() for place in places if len(place) == 1]
        if len(found) < len(places) or None in found:
            return None
        types = {
            shape.types[place]  # type: ignore[index]
            for group, place in zip(shapes, found, strict=True)
            for shape in group
        }
        if types not in ({int}, {float}):
            return None
        ranks = tuple([Rank(place, key.reverse) for place in found if place is not None])
        for group, rank in zip(groups, ranks, strict=True):
            self.space.indexing.note_rank(group, rank)
        return ranks

    async def _batches(
        self,
        link: Any,
        backwards: bool,
        limit: int | None,
        ranks: tuple[Rank, ...] | None = None,
    ) -> AsyncIterator[tuple[list[Row], SpaceState]]:
        """Candidates in order of arrival, or by their ranks, in bounded batches, each with the
        state of the space."""
        space, groups = self.space, self.targets.groups
        if not groups:
            return  # No shape in the space can match.
        values = statements.values_of(groups)
        batch = BATCH if limit is None else min(limit + 4, BATCH)
        if ranks is not None:
            batch = next(size for size in (8, 32, BATCH) if size >= batch)  # for few statements
        bounds: dict[str, Any] = {} if ranks else {"after": -1, "until": LAST}
        while True:
            if ranks is not None:
                statement = space.sql.ranked(groups, ranks, batch, not bounds)
            else:
                statement = space.sql.candidates(groups, backwards, space.database.indexed)
                bounds["batch"] = batch
            rows = await space.run(link, statement, **values, **bounds)
            if rows:
                yield rows, SpaceState(*rows[0][11:14])
            if len(rows) < batch:
                return
            batch = min(batch * 4, BATCH * 16)
            last = rows[-1]
            if ranks is not None:
                bounds = {"rank": last[14], "after": last[2]}
            else:
                bounds["until" if backwards else "after"] = last[2]

    async def _all_batches(
        self, link: Any, backwards: bool
    ) -> AsyncIterator[tuple[list[Row], SpaceState]]:
        """All candidates, in batches of one snapshot; `_close_cursor` afterwards."""
        space, groups = self.space, self.targets.groups
        if link.pgconn.transaction_status == IDLE:
            await space.database.run(link, "BEGIN")
        statement = space.sql.candidates(groups, backwards, space.database.indexed, whole=True)
        values = statements.values_of(groups)
        await space.run(link, f"DECLARE matches NO SCROLL CURSOR FOR {statement}", **values)
        fetch = f"FETCH {BATCH * 16} FROM matches"
        while rows := await space.database.run(link, fetch):
            yield rows, SpaceState(*rows[0][11:14])

    async def _close_cursor(self, link: Any) -> None:
        await self.space.database.run(link, "ROLLBACK" if self.txn is None else "CLOSE matches")

    # Claims

    async def _claim_some(
        self, link: Any, matches: list[Match], wanted: int | None, state: SpaceState
    ) -> list[Match]:
        """Lock the first matches, as many as are wanted."""
        claimed: list[Match] = []
        while matches and (wanted is None or len(claimed) < wanted):
            most = len(matches) if wanted is None else wanted - len(claimed)
            chosen, matches = matches[:most], matches[most:]
            claimed += await self._claim(link, chosen, state)
        return claimed

    async def _claim_arranged(
        self, link: Any, found: list[Match], state: SpaceState
    ) -> list[Match]:
        """Lock the first matches by the order, among those that are free."""
        found = await self._free(link, found, state)
        rows = {id(entry): row for row, entry in found}
        while True:
            entries = [entry for _, entry in found]
            enough = needed(self.order, self.limit)
            first = entries if enough is None else entries[:enough]
            chosen = arranged(self.order, first, self.limit)
            wanted = [(rows[id(entry)], entry) for entry in chosen]
            claimed = await self._claim(link, wanted, state)
            if claimed or not wanted or not self.take:
                return claimed
            gone = {id(entry) for entry in chosen}
            found = [one for one in found if id(one[1]) not in gone]

    async def _claim(self, link: Any, chosen: list[Match], state: SpaceState) -> list[Match]:
        """Take these entries, or hold them for a transaction, without those that others have in
        hand."""
        space, txn = self.space, self.txn
        if not chosen or not (self.take or txn is not None):
            return await self._free(link, chosen, state)
        ids = [row[0] for row, _ in chosen]
        if txn is not None:
            await txn.hold(link)
        if self.take:
            self.link, self.backend = link, link.backend
            change = space.change("taken", search=self)
            is_done = txn is None
            rows = await space.run(
                link, space.sql.delete, ids=ids, logs=is_done, tells=is_done, **change
            )
        else:
            assert txn is not None
            rows = await space.run(link, space.sql.hold, ids=ids)
            txn.read.update(row[0] for row in rows)
        return self._those_in(rows, chosen)

    async def _free(self, link: Any, chosen: list[Match], state: SpaceState) -> list[Match]:
        """Those that others do not have in hand."""
        if not chosen or not state.held:
            return chosen
        return self._those_in(await glance(self.space, link, [row[0] for row, _ in chosen]), chosen)

    def _those_in(self, rows: list[Row], chosen: list[Match]) -> list[Match]:
        got = {row[0] for row in rows}
        self.skipped = self.skipped or len(got) < len(chosen)
        return [one for one in chosen if one[0][0] in got]

    # Counting

    async def count(self) -> int:
        """The number of matches of now."""
        await self.space.end_expired()
        while True:
            self.targets = self.bind()
            answer = await self.space.within(self.txn, self._count, False)
            if answer is not None:
                return int(answer)

    async def _count(self, link: Any) -> tuple[int | None, None]:
        space, targets = self.space, self.targets
        groups = () if targets.checks else targets.groups
        values = statements.values_of(groups)
        ((*now, found),) = await space.run(link, space.sql.count(groups), **values)
        state = SpaceState(*now)
        if await self._is_stale(link, state):
            return None, None
        if not targets.groups or (not targets.checks and not state.held):
            return found, None
        total = 0
        async for rows, state in self._all_batches(link, False):
            total += len(await self._free(link, self._checked(rows), state))
        await self._close_cursor(link)
        return total, None

    # Undoing

    async def undo(self) -> None:
        """Undo what it took, because its caller is gone, even if the space was closed here."""
        try:
            await self.space.database.to_the_end(self._give_back)
        except TupeloError as failure:
            logger.error("a take that was interrupted may be done: %s", failure)

    async def _give_back(self) -> None:
        """Return what was taken. A transaction that has taken something is aborted."""
        if self.txn is not None and self.took:
            await self.txn.interrupted()
        if self.token is None or self.link is None:
            return
        rows = await self.space.changed_by(self.token, self.backend if self.link.closed else None)
        if rows:
            await self.space.put_back(rows)


def entry_of(row: Row, known: bool = True) -> Entry:
    """Build an entry. UnknownType if it has to be `known`, and this program lacks its class."""
    id_, _, _, body, origin, n, expires, _, deliveries, to, _ = row[:11]
    shape, fields = decode_entry(bytes(body))
    entry = Entry(fields, shape, origin, n, id_, expires, deliveries=deliveries, to=to)
    if known:
        require_known(entry)
    return entry


async def glance(space: PostgresSpace, link: Any, ids: list[int]) -> list[Row]:
    """Which of these entries are not in the hands of others; leaves no locks."""
    inside = link.pgconn.transaction_status != IDLE
    begin, end = ("SAVEPOINT glance", "ROLLBACK TO glance") if inside else ("BEGIN", "ROLLBACK")
    await space.database.run(link, begin)
    try:
        return await space.run(link, space.sql.glance, ids=ids)
    finally:
        if not link.closed:
            await space.database.run(link, end)
