"""Readings: find the next unseen event for a session, view or query. On the loop of the host.

A reading is of the copies as they come (`HeapCopies`), of a total order (`Ordered`), or of the
copies together with readers at other hosts (`Shared`). Events are remembered by their identity,
which is the same in every replica, and in other heaps to which a bridge has copied them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

from tupelo.errors import (
    JournalError,
    LeaseLost,
    SessionLost,
    SpaceClosed,
    TokenAway,
    TupeloError,
)
from tupelo.federation.replication.tokens import Token
from tupelo.models.event_heap.orders import TotalOrder, ViewCloned
from tupelo.models.event_heap.replica import Replica
from tupelo.models.event_heap.seen import Record
from tupelo.space.query import NOW, Query, deadline_of
from tupelo.space.session import Seen, SessionState
from tupelo.space.tasks import Tasks, timeout_at
from tupelo.store.index import Accept
from tupelo.values.entry import Entry
from tupelo.values.parts import ANY
from tupelo.values.template import Template, as_template

logger = logging.getLogger("tupelo")

CURSORS_MAX = 256
"""Most templates for which a reading of an order remembers its position."""


class HeapCopies:
    """Reads the copies in the order in which they come (that of each source is kept). Unless
    `known`, also events of classes that this program does not know, for a client; otherwise they
    raise UnknownType."""

    def __init__(self, replica: Replica, seen: Seen | None = None, *, known: bool = True) -> None:
        replica.require_open()
        self._known = known
        self._replica = replica
        self._port = replica.feed.copies.port
        self._state: SessionState = self._port.open_session(None, seen=seen)
        replica.readings[self.end] = None

    async def record(self) -> Seen:
        """Return a copy of the set of seen events."""
        return self._state.seen.copy()

    async def next(self, template: Template, wait: float | None) -> Entry | None:
        self._replica.require_open()
        clock, broadcast = self._port.clock, self._replica.broadcast
        deadline = deadline_of(clock, wait)
        query = Query(template, deadline=deadline, session=self._state, known=self._known)
        try:
            while (only := self._unseen) is not None:
                count = broadcast.count
                found, _ = self._port.get_now(query.replace(deadline=NOW, only=only))
                if found or deadline == NOW:
                    return found[0] if found else None
                async with timeout_at(clock, deadline):  # until one is removed, or returns
                    await broadcast.wait(count)
                self._replica.require_open()
            found = await self._port.fetch(query)
        except TimeoutError:
            return None
        except (SpaceClosed, LeaseLost):
            self._replica.require_open()
            raise
        return found[0] if found else None

    async def rest(self, template: Template) -> list[Entry]:
        """Return all unseen matches that are here."""
        self._replica.require_open()
        state, only = self._state, self._unseen
        query = Query(template, many=True, limit=None, session=state, known=self._known, only=only)
        return without_duplicates(self._port.get_now(query)[0])

    @property
    def _unseen(self) -> Accept | None:
        """A filter for unseen events that are not being removed, which replaces that of the
        session; None if no event is being removed."""
        left, seen = self._replica.removing.is_left, self._state.seen
        return None if left is None else lambda entry: entry not in seen and left(entry)

    def unsee(self, entries: list[Entry]) -> None:
        """Mark events as unseen again: they were not delivered. Another read that waits gets
        them."""
        with suppress(SpaceClosed, JournalError):
            self._port.undo_get(entries, Query(as_template(ANY), session=self._state))
        self._replica.broadcast.notify()

    def has_next(self, template: Template) -> bool:
        """Whether there is an unseen match that is not being removed."""
        if (only := self._unseen) is not None:
            return bool(self._port.get_now(Query(template, known=False, only=only))[0])
        return bool(self._port.unread(template, self._state, 1, None, None)[0])

    def note(self, record: Record) -> None:
        """Apply what was seen, or given back, elsewhere."""
        with self._port.atomic():
            self._state.seen.add_all(record.seen)
            for (origin, n), count in record.again.items():
                if count % 2 == 0:
                    self._state.seen.discard_number(origin, n)

    def close(self) -> None:
        if self._replica.readings.pop(self.end, self) is None:
            self.end()

    def end(self) -> None:
        """End the reading; its waiters are notified."""
        with suppress(SpaceClosed):
            self._port.end_session(self._state)
        self._replica.broadcast.notify()


class Unordered(HeapCopies):
    """Reads the copies for a view without a total order."""

    def __init__(self, replica: Replica, view: str, seen: Seen | None = None) -> None:
        super().__init__(replica, seen)
        self.of = view
        self._closed = False
        replica.uses.use(view, self.close)

    def require_open(self) -> None:
        self._replica.require_open()
        if self._closed:
            raise LeaseLost("this view was closed")

    def close(self) -> None:
        self._closed = True
        self._replica.uses.leave(self.of, self.close)
        super().close()


class Ordered:
    """Reads a total order. An event is returned once all events before it are here or gone, whether
    they match or not. Skipped events are looked at again for another template."""

    def __init__(
        self,
        replica: Replica,
        order: TotalOrder,
        seen: Seen | None = None,
        on_clone: Callable[[ViewCloned], object] | None = None,
    ) -> None:
        self._replica = replica
        self._on_clone = on_clone
        self._seen = seen or Seen()
        self.order = order
        self._low = 0  # All before this position are seen or gone.
        self._cursors: dict[Template, int] = {}  # template → no unseen match before this
        self.cloned: list[ViewCloned] = []
        self._closed = False
        replica.require_open()
        replica.orders.use(order, self)

    def switch(self, order: TotalOrder, cloned: ViewCloned) -> None:
        """Continue with this order. What the old one has dropped was skipped here: it would come
        after later events of its source."""
        for entry in self.order.dropped():
            self._seen.add(entry)
        self.order = order
        self._low = 0
        self._cursors.clear()
        self.cloned.append(cloned)
        if self._on_clone is not None:
            try:
                self._on_clone(cloned)
            except Exception:
                logger.exception("a listener raised")

    async def record(self) -> Seen:
        return self._seen.copy()

    def require_open(self) -> None:
        self._replica.require_open()
        if self._closed:
            raise LeaseLost("this view was closed")

    def _ready(self, template: Template) -> Iterator[Entry]:
        self.require_open()
        if len(self._cursors) > CURSORS_MAX:
            self._cursors.clear()
        start = max(self._low, self._cursors.get(template, 0))
        all_seen = start == self._low
        for position, entry in self.order.deliver(start):
            found = entry not in self._seen and not self._replica.removing.is_removed(entry)
            if found:
                found = template.admits(entry.shape, entry.fields)
                all_seen = all_seen and found
            if all_seen:
                self._low = position + 1
            else:
                self._cursors[template] = position + 1
            if found:
                self._seen.add(entry)
                yield entry

    async def next(self, template: Template, wait: float | None) -> Entry | None:
        for entry in self._ready(template):
            return entry
        if wait == 0:
            return None
        clock = self._replica.core.clock
        try:
            async with timeout_at(clock, deadline_of(clock, wait)):
                while True:
                    await self._replica.broadcast.wait(self._replica.broadcast.count)
                    for entry in self._ready(template):
                        return entry
        except TimeoutError:
            return None

    async def rest(self, template: Template) -> list[Entry]:
        return list(self._ready(template))

    def unsee(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._seen.discard(entry)
        self.look_again()
        self._replica.broadcast.notify()

    def look_again(self) -> None:
        """Look at skipped events again: one may have returned."""
        self._low = 0
        self._cursors.clear()

    def replay(self, template: Template) -> list[Entry]:
        """Return all matches from the start that are here, seen or not."""
        self.require_open()
        seen = Seen()
        found = []
        for _, entry in self.order.deliver(0):
            is_left = entry not in seen and not self._replica.removing.is_removed(entry)
            if is_left and template.admits(entry.shape, entry.fields):
                seen.add(entry)
                found.append(entry)
        return found

    def close(self) -> None:
        self._replica.orders.leave(self.order, self)
        self.end()

    def end(self) -> None:
        """End the reading; its waiters are notified."""
        self._closed = True
        self._replica.broadcast.notify()


class Shared:
    """Reads the copies together with readers at other hosts: each event is returned to one of them.
    A reader holds the session's token and records what it returns."""

    def __init__(self, replica: Replica, session: str, *, known: bool = True) -> None:
        self._replica = replica
        self.of = session
        self._record = replica.shared_record(session)
        self._record.readers.append(self)
        self._token: Token = self._record.token
        self._copies = HeapCopies(replica, self._record.known.seen.copy(), known=known)
        self._losses_reported = self._record.losses
        self._closed = False
        self._scopes: set[asyncio.Timeout] = set()
        self._tasks = Tasks()
        replica.uses.use(session, self.close)

    def note(self, record: Record) -> None:
        """Apply what was seen, or given back."""
        self._copies.note(record)

    async def record(self) -> Seen:
        """What all readers of the session have seen. TokenAway if that cannot be known now; if the
        token is lost, what is known here."""
        with suppress(SessionLost):
            async with self._holding(self._replica.patience):
                await self._record.ready()
        return self._record.known.seen.copy()

    async def resume(self) -> None:
        """Go on with what the hosts within reach know, if the holder of the token is out of reach:
        it is gone for good."""
        async with self._holding(self._replica.patience, replace=True):
            await self._record.ready()
            self._losses_reported = len(self._record.lost)

    @asynccontextmanager
    async def _holding(
        self,
        patience: float | None,
        deadline: float | None = None,
        hope: float = 0.0,
        *,
        ask: bool = True,
        replace: bool = False,
    ) -> AsyncIterator[None]:
        """Hold the token. LeaseLost if the session is closed meanwhile; TokenAway if the token does
        not come within `patience` seconds, or before the deadline on the clock of the host;
        SessionLost if it is lost and nobody has replaced it."""
        self._replica.require_open()
        scope = asyncio.timeout(0 if self._closed else None)
        self._scopes.add(scope)
        held = self._token.held(patience, deadline=deadline, ask=ask, hope=hope, replace=replace)
        try:
            async with scope, held:
                yield
        except TokenAway as away:
            if self._token.is_lost:
                self._losses_reported = self._record.losses + 1
                raise SessionLost(self.of, away.holder) from None
            raise
        except BaseException:
            if scope.expired():
                raise LeaseLost("this session was closed") from None
            raise
        finally:
            self._scopes.discard(scope)

    def _report_loss(self) -> None:
        """Raise SessionLost, once, if the session was resumed since this reading was opened."""
        before, lost = self._losses_reported, self._record.lost
        self._losses_reported = len(lost)
        if len(lost) > before:
            raise SessionLost(self.of, lost[-1], resumed=True)

    async def next(self, template: Template, wait: float | None) -> Entry | None:
        """Return the next unseen match. TokenAway if there may be one, but the token did not come
        in time; SessionLost if the token is lost. With `wait`, a holder that is away gets time to
        come back."""
        clock, patience = self._replica.core.clock, self._replica.patience
        deadline = deadline_of(clock, wait)
        while True:
            count = self._replica.broadcast.count
            if wait == 0:
                found = await self._get(template, 1, patience)
            else:
                found = await self._get(template, 1, None, deadline, patience)
            if found:
                return found[0]
            try:
                async with timeout_at(clock, deadline):
                    await self._replica.broadcast.wait(count)
            except TimeoutError:
                return None

    async def rest(self, template: Template) -> list[Entry]:
        return await self._get(template, None, self._replica.patience)

    async def _get(
        self,
        template: Template,
        limit: int | None,
        patience: float | None,
        deadline: float | None = None,
        hope: float = 0.0,
    ) -> list[Entry]:
        self._replica.require_open()
        if self._closed:
            raise LeaseLost("this session was closed")
        has_next = self._copies.has_next(template)
        if not (self._token.here or has_next):
            return []  # The token can stay where it is.
        try:
            async with self._holding(patience, deadline, hope, ask=has_next):
                return await self._read(template, limit)
        except TokenAway:
            if has_next:
                raise
            return []  # Another host has got it meanwhile.

    async def _read(self, template: Template, limit: int | None) -> list[Entry]:
        """Unseen matches, which count as seen. The token must be held."""
        await self._record.ready()
        self._report_loss()
        if limit is None:
            found = await self._copies.rest(template)
        else:
            one = await self._copies.next(template, 0)
            found = [] if one is None else [one]
        if found:
            try:
                await asyncio.shield(asyncio.ensure_future(self._record.count(found)))
            except BaseException:
                self.unsee(found)
                raise
        return found

    def unsee(self, entries: list[Entry]) -> None:
        self._tasks.start(self._unsee(entries))

    async def _unsee(self, entries: list[Entry]) -> None:
        with suppress(TupeloError):
            async with self._holding(None):
                await self._record.ready()
                await self._record.count(entries)
        self._replica.broadcast.notify()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._record.readers.remove(self)
        self._replica.uses.leave(self.of, self.close)
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(0)  # Waiters for the token give up.
        self._copies.close()
        self._replica.broadcast.notify()


EventReading = HeapCopies | Ordered | Shared
"""The source of events of a session, a view or a query."""


def future_events(replica: Replica, template: Template, *, known: bool = True) -> HeapCopies:
    """A reading of the copies that returns only matches that come from now on."""
    seen = Seen()
    for entry in replica.find(template, known=known, removing=True):  # They may return.
        seen.add(entry)
    return HeapCopies(replica, seen, known=known)


def without_duplicates(entries: list[Entry]) -> list[Entry]:
    """Without duplicates that two bridges have copied."""
    return list({(entry.origin, entry.n): entry for entry in reversed(entries)}.values())[::-1]
