"""The change log of a space: a table that each change is written to in its own transaction.

A position is given to a change when somebody reads the log, in commit order: one reader at a time
numbers all committed changes that have none. Changes of one transaction stay together, behind those
of every transaction whose effects it can have seen, since the last change of such a transaction was
written before. So positions have no gaps, no change appears below one that was read, and writers
never wait for each other to be numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from tupelo.errors import BadTemplate, LogTrimmed
from tupelo.postgres.searching import PostgresSearch
from tupelo.postgres.statements import NUMBERING
from tupelo.postgres.subscriptions import PostgresSubscription
from tupelo.space.fetching import FetchingReaction
from tupelo.space.order import Fifo
from tupelo.space.subscription import template_key
from tupelo.values.change import ENDINGS, Change, Notice
from tupelo.values.codec import decode_entry
from tupelo.values.entry import Entry
from tupelo.values.template import Template, as_template

if TYPE_CHECKING:
    from tupelo.postgres.prepared import Row
    from tupelo.postgres.space import PostgresSpace

REACTION_BACKLOG_MAX = 10_000
"""So many notices wait for a reaction at most."""
PULL_MAX = 1_000
"""So many changes are fetched at once."""
EVERY = (1 << 62) - 1


class NoticeSequence:
    """What subscriptions with equal templates share: an id and a sequence."""

    def __init__(self, event_id: int, template: Template, what: tuple[bool, bool, bool]) -> None:
        self.id = event_id
        self.template = template
        self.available, self.returned, self.removed = what
        self.sequence = 0
        self.subscriptions: list[PostgresSubscription] = []


class LogReader:
    """Reads the log of a space, and passes its changes to the subscriptions of this program."""

    def __init__(self, space: PostgresSpace) -> None:
        self._space = space
        self._position: int | None = None  # None while there are no subscriptions
        self._events: dict[Hashable, NoticeSequence] = {}
        self._event_count = 0
        self._lock = space.database.new_lock()

    async def read(self, since: int, limit: int | None) -> list[Change]:
        """The changes after a position. LogTrimmed if the first of them is gone."""
        await self._space.tidy()
        await self._number()
        return await self._fetch(since, EVERY if limit is None else limit)

    async def bounds(self) -> tuple[int, int]:
        """Number the changes; returns the first position that is kept, and the last."""
        position, trimmed = await self._number()
        return trimmed + 1, position

    async def _fetch(self, since: int, limit: int) -> list[Change]:
        """The numbered changes after a position. LogTrimmed if the first of them is gone."""
        space = self._space

        async def ask(link: Any) -> tuple[list[Row], int]:
            rows = await space.run(link, space.sql.changes, since=since, limit=limit)
            # After the changes: they may be trimmed at any moment.
            return rows, (await space.run(link, space.sql.has_unnumbered))[0][2]

        rows, trimmed = await space.reading(ask)
        if since < trimmed and (not rows or rows[0][0] != since + 1):
            raise LogTrimmed(
                f"the log begins at position {trimmed + 1}: what came before is trimmed",
                trimmed + 1,
            )
        return [_change(row) for row in rows]

    async def _number(self) -> tuple[int, int]:
        """Number the changes; returns the last position, and up to where the log is trimmed."""
        space = self._space

        async def number(link: Any) -> tuple[None, Any]:
            # The lock comes first: a statement sees what was committed before it began.
            lock = f"SELECT pg_advisory_xact_lock({NUMBERING}, %(space)s)"
            await space.run(link, lock)
            await space.run(link, space.sql.number)
            return None, True

        ((fresh, position, trimmed),) = await space.execute(space.sql.has_unnumbered)
        if fresh:
            await space.atomic(number)
            ((_, position, trimmed),) = await space.execute(space.sql.has_unnumbered)
        return position, trimmed

    async def position(self) -> int:
        """The position of the last change."""
        return (await self._number())[0]

    async def trim(self, before: int) -> None:
        """Delete the changes before a position."""
        space = self._space
        await self._number()

        async def trim(link: Any) -> tuple[None, Any]:
            # The lock comes first, so that a trim sees what another one kept.
            lock = "SELECT FROM tupelo.spaces WHERE id = %(space)s FOR NO KEY UPDATE"
            await space.run(link, lock)
            await space.run(link, space.sql.trim, before=before)
            return None, True

        await space.atomic(trim)

    async def trim_by_policy(self) -> None:
        """Delete what the space need not keep."""
        space = self._space
        keep = space.options.log_keep
        # Numbers are given only if something is to go: they cost more than the changes did.
        if keep is not None and (await space.execute(space.sql.length))[0][0] > keep:
            position, _ = await self._number()
            await self.trim(position - keep + 1)

    # Subscriptions

    async def open_subscription(
        self,
        what: tuple[object, bool, bool, bool],
        lease: float | None,
        handback: Any,
        backlog_max: int,
        callback: Callable[[Notice], object] | None = None,
    ) -> PostgresSubscription:
        """A new subscription to what is committed from now on; `what` is a template, and whether
        entries that are available, returned and removed are wanted."""
        subscription = await self._subscribed(what, lease, handback, backlog_max)
        if callback is not None:
            self._space.database.start(partial(subscription.call, callback), "tupelo-notices")
        return subscription

    async def react(
        self, template: object, function: Any, once: bool, existing: bool
    ) -> FetchingReaction:
        """A new reaction."""
        space, what = self._space, (template, False, True, False)
        subscription = await self._subscribed(what, None, None, REACTION_BACKLOG_MAX)

        async def read_matches() -> list[Entry]:
            return await PostgresSearch(space, template, order=Fifo()).look()

        try:
            entries = await read_matches() if existing else []
        except BaseException:
            subscription.finish()
            raise
        where = space.database.where
        reaction = FetchingReaction(space, where, subscription, read_matches, function, once)
        space.database.start(partial(reaction.run, entries), "tupelo-reaction")
        return reaction

    async def _subscribed(
        self,
        what: tuple[object, bool, bool, bool],
        lease: float | None,
        handback: Any,
        backlog_max: int,
    ) -> PostgresSubscription:
        raw, *flags = what
        template = as_template(raw)
        space = self._space
        if flags[2]:  # From now on takes are told in this space.
            await space.execute(
                "UPDATE tupelo.spaces SET removals = true WHERE id = %(space)s AND NOT removals"
            )
        async with self._lock:
            if self._position is not None:
                await self._pull()
            if self._position is None:
                await space.tidy()
                self._position = (await self._number())[0]
            key: Hashable = (template_key(raw), *flags)
            try:
                event = self._events.get(key)
            except TypeError:  # a template with a list or a dict in it
                event, key = None, object()
            if event is None:
                self._event_count += 1
                event = NoticeSequence(self._event_count, template, tuple(map(bool, flags)))  # type: ignore[arg-type]
                self._events[key] = event
            subscription = PostgresSubscription(space, event, lease, handback, backlog_max)
            event.subscriptions.append(subscription)
            return subscription

    def forget(self, subscription: PostgresSubscription) -> None:
        """A subscription has ended."""
        event = subscription.event
        if subscription in event.subscriptions:
            event.subscriptions.remove(subscription)
        if not event.subscriptions:
            self._events = {key: one for key, one in self._events.items() if one is not event}
        if not self._events:
            self._position = None

    async def pull(self) -> None:
        """Pass on the changes up to now."""
        await self._space.tidy()
        async with self._lock:
            await self._pull()

    async def _pull(self) -> None:
        if self._position is None:
            return
        await self._number()
        while True:
            try:
                changes = await self._fetch(self._position, PULL_MAX)
            except LogTrimmed as error:  # The sequence would have a gap.
                self._position = error.first - 1
                for event in list(self._events.values()):
                    for subscription in list(event.subscriptions):
                        subscription.fail(error)
                return
            for change in changes:
                self._position = change.position
                self._pass_on(change)
            if len(changes) < PULL_MAX:
                return

    def _pass_on(self, change: Change) -> None:
        if change.shape is None or change.fields is None:
            return
        entry = Entry(
            change.fields,
            change.shape,
            change.origin,
            change.n,
            change.arrival,
            change.expires,
            to=change.to,
            deliveries=change.deliveries,
        )
        for event in list(self._events.values()):
            if change.kind == "written" or (change.kind == "released" and event.returned):
                kind: Any = "visible"
            elif change.kind == "returned" and event.available:
                kind = "available"
            elif change.kind in ENDINGS and event.removed and change.visible is None:
                kind = change.kind
            else:
                continue
            try:
                if not event.template.admits(change.shape, change.fields):
                    continue
            except BadTemplate as error:
                for subscription in list(event.subscriptions):
                    subscription.fail(error)
                continue
            event.sequence += 1
            for subscription in list(event.subscriptions):
                subscription.add(kind, entry, change.time)


def _change(row: Row) -> Change:
    position, time, kind, entry, origin, n, agent, agent_name, txn, waited = row[:10]
    expires, body, deliveries, visible, session, to = row[10:]
    shape, fields = (None, None) if body is None else decode_entry(bytes(body))
    return Change(
        position,
        time,
        kind,
        entry,
        origin,
        n,
        agent,
        txn,
        waited,
        expires,
        shape,
        fields,
        None if body is None else bytes(body),
        to=to,
        session=session,
        agent_name=agent_name,
        deliveries=deliveries,
        visible=visible,
    )
