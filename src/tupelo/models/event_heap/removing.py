"""Removal of events. Each event is removed at its source, and nowhere else.

A request has an id, and the source remembers what it has removed for it, so that the request can be
repeated if the group has changed before the answer. If the requester does not wait any more, the
removed event is put in the heap again, at the host that has asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING

from tupelo.errors import NotAllowed, PeerLost, SourceAway, TupeloError, UnknownHost
from tupelo.federation.groups.membership import MembershipId
from tupelo.federation.replication.streams import host_of
from tupelo.federation.spanning.federated import adopt
from tupelo.models.event_heap.ordering import Place
from tupelo.space.query import deadline_of
from tupelo.space.tasks import Tasks, timeout_at
from tupelo.values.entry import Entry
from tupelo.values.template import Template

if TYPE_CHECKING:
    from tupelo.models.event_heap.replica import Replica

FIRST_MATCHES = 16
"""Matches that are tried first, before all are looked up."""
REMEMBERED_MAX = 10_000
"""Most requests that a source remembers."""
JOIN_SECONDS = 2.0
"""Time that the group may need to learn of a host whose events are here."""


class Removing:
    """Removes events for one host, and at one host for others."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._removed: dict[str, int] = {}  # request → number
        self._tasks = Tasks()

    async def remove(
        self, template: Template, wait: float | None, *, known: bool = True
    ) -> Entry | None:
        """Remove and return the oldest match. SourceAway if all matches are out of reach;
        NotAllowed if their hosts refuse."""
        loop, clock = asyncio.get_running_loop(), self._replica.core.clock
        deadline = deadline_of(clock, wait)
        join_deadline = loop.time() + JOIN_SECONDS
        while True:
            count = self._replica.broadcast.count
            away: set[str] = set()
            refusals: list[NotAllowed] = []
            for entry in self._matches(template, known):
                place = self._replica.places.get(entry)
                removed = place and await self._remove_for(entry, place, away, refusals)
                if removed:
                    return removed
            joining = bool(away) and self._is_joining and loop.time() < join_deadline
            try:  # Patience ends between questions: what was removed must not be lost.
                async with (
                    asyncio.timeout_at(join_deadline) if joining else timeout_at(clock, deadline)
                ):
                    await self._replica.broadcast.wait(count)
            except TimeoutError:
                if joining:
                    continue
                if away:
                    names = self._replica.names
                    raise SourceAway(sorted(away), names) from None
                if refusals:
                    raise refusals[0] from None
                return None

    def _matches(self, template: Template, known: bool) -> Iterator[Entry]:
        few = self._replica.find(template, FIRST_MATCHES, known=known)
        yield from few
        if len(few) == FIRST_MATCHES:
            found = self._replica.find(template, known=known)
            yield from [entry for entry in found if entry not in few]

    @property
    def _is_joining(self) -> bool:
        """Whether a connected host is not in the membership yet."""
        members = self._replica.membership.members
        return any(
            host not in members or self._replica.part not in members[host].metadata_of
            for host in self._replica.feed.partners
        )

    async def _remove_for(
        self, entry: Entry, place: Place, away: set[str], refusals: list[NotAllowed]
    ) -> Entry | None:
        """Remove an event for a requester. If the requester is cancelled, the event is put back."""
        copied = copy(entry)  # Its expiry is lost when the entry is removed.
        removing = asyncio.ensure_future(self._remove(place, away, refusals))
        try:
            return copied if await asyncio.shield(removing) else None
        except asyncio.CancelledError:
            self._tasks.start(self._put_back(removing, copied))
            raise

    async def _put_back(self, removing: asyncio.Task[bool], entry: Entry) -> None:
        with suppress(TupeloError):
            if await removing:
                self.undo(entry)

    def undo(self, entry: Entry | None) -> None:
        """Put a removed event back in the heap."""
        if entry is not None:
            adopt(self._replica.feed.space, [entry])

    async def _remove(self, place: Place, away: set[str], refusals: list[NotAllowed]) -> bool:
        source, number = place
        host = host_of(source)
        request = self._replica.core.new_id()
        if source == self._replica.feed.source:
            return await self.remove_here(number, request)
        try:
            removed = await self._ask(host, ["remove", source, number, request])
        except NotAllowed as refusal:
            refusals.append(refusal)
            return False
        except UnknownHost:
            away.add(host)
            return False
        except PeerLost as error:
            if error.in_doubt:
                raise
            away.add(host)
            return False
        if removed is None:  # That host was restarted, and has another source.
            away.add(host)
        return removed is True

    async def _ask(self, host: str, question: list[object]) -> object:
        """Ask a host, and ask again if the group changes before the answer. If the host is gone, or
        has restarted, the outcome is in doubt."""
        replica = self._replica
        incarnation = replica.incarnation_of(host)
        doubt: PeerLost | None = None
        while True:
            membership = replica.membership.id
            try:
                return await replica.sender.ask(host, question)
            except (PeerLost, UnknownHost) as lost:
                if isinstance(lost, PeerLost) and lost.in_doubt:
                    doubt = lost
                elif doubt is None:
                    raise
            await self._next_membership(membership)
            if replica.incarnation_of(host) != incarnation or replica.membership.id == membership:
                raise doubt

    async def _next_membership(self, membership: MembershipId) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._replica.patience):
                await self._replica.until(lambda: self._replica.membership.id != membership)

    async def remove_here(self, number: int, request: str) -> bool:
        if self._removed.get(request) != number:
            port = self._replica.feed.space.port
            entry = self._replica.feed.original(number)
            if entry is None:
                return False
            txn = port.begin(None)
            if not port.take_entry(entry, txn):
                port.abort(txn)
                return False
            position = port.commit(txn)
            self._removed[request] = number
            if len(self._removed) > REMEMBERED_MAX:
                del self._removed[next(iter(self._removed))]
            await self._replica.feed.space.flush(position)
        await self._replica.until(lambda: number not in self._replica.feed.exchange.own.items)
        return True
