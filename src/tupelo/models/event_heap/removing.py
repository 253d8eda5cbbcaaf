"""Removal of events. Each event is removed at its source, and nowhere else.

A removal for a client, or from a source that this host is connected to, is a delivery: the source
reserves the event, and removes it when the client or program has it. For a program of the source
itself the event is removed at once.

A source that is reached through other hosts, or does not know `wire.Ask.entry`, removes the event
before it answers: if a host dies in between, the event is gone. Such a request has an id, and the
source remembers what it has removed for it, so that the request can be repeated if the group has
changed before the answer. If the requester does not wait any more, the event is put in the heap
again, at the host that has asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

from tupelo.errors import NotAllowed, PeerLost, SourceAway, TupeloError, UnknownHost
from tupelo.federation.groups.membership import MembershipId
from tupelo.federation.hosts.peer import Peer
from tupelo.federation.hosts.services import HandOver
from tupelo.federation.replication.streams import host_of
from tupelo.federation.spaces.hosted import confirm, give_back
from tupelo.federation.spanning.federated import adopt
from tupelo.federation.spanning.question import FederatedQuery
from tupelo.models.event_heap.ordering import Place
from tupelo.space.delivery import Delivery
from tupelo.space.query import Query, deadline_of
from tupelo.space.tasks import Tasks, timeout_at
from tupelo.store.index import Accept
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder
from tupelo.values.parts import ANY, OfKind
from tupelo.values.template import Template, as_template

if TYPE_CHECKING:
    from tupelo.models.event_heap.replica import Replica

ENTRY_LEVEL = 4
"""The `wire.LEVEL` of hosts that know `wire.Ask.entry`."""
FIRST_MATCHES = 16
"""Matches that are tried first, before all are looked up."""
REMEMBERED_MAX = 10_000
"""Most requests that a source remembers."""
JOIN_SECONDS = 2.0
"""Time that the group may need to learn of a host whose events are here."""
AGAIN_SECONDS = 1.0
"""A waiting request looks again after so long: a match may have been reserved for another."""


class Removing:
    """Removes events for one host, and at one host for others."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._removed: dict[str, int] = {}  # request → number
        self._tasks = Tasks()
        self.reserved: dict[Entry, bool] = {}
        """The copies of events that clients and programs of this host are removing; True for those
        that they have. Such a copy remains until its source reports the removal, or for ever if the
        source has lost its memory."""
        self._not_adopted: set[Entry] = set()

    @property
    def is_left(self) -> Accept | None:
        """A filter for the events that are not being removed; None if that are all."""
        reserved = self.reserved
        if any(one.gone for one in reserved):
            reserved = {one: has_it for one, has_it in reserved.items() if not one.gone}
            self.reserved = reserved
        return (lambda entry: entry not in reserved) if reserved else None

    def is_removed(self, entry: Entry) -> bool:
        """Whether a client or program of this host has removed this event."""
        return self.reserved.get(entry, False)

    def adopt(self, entries: list[Entry]) -> None:
        """Adopt these copies of events of another host, except those that are being removed: they
        are adopted if they return."""
        self._not_adopted.update(one for one in entries if self.reserved.get(one) is False)
        left = [copy(one) for one in entries if one not in self.reserved]
        adopt(self._replica.feed.space, left)

    async def remove(
        self,
        template: Template,
        wait: float | None,
        holder: Holder | None = None,
        *,
        known: bool = True,
    ) -> HandOver | None:
        """Remove the oldest match: for this call of a client, or for a program of this host.
        SourceAway if all matches are out of reach; NotAllowed if their hosts refuse."""
        loop, clock = asyncio.get_running_loop(), self._replica.core.clock
        deadline = deadline_of(clock, wait)
        join_deadline = loop.time() + JOIN_SECONDS
        while True:
            count = self._replica.broadcast.count
            away: set[str] = set()
            refusals: list[NotAllowed] = []
            for entry in self._matches(template, known):
                place = self._replica.places.get(entry)
                removed = place and await self._remove_for(entry, place, holder, away, refusals)
                if removed:
                    return removed
            joining = bool(away) and self._is_joining and loop.time() < join_deadline
            again = clock.now() + AGAIN_SECONDS
            until = again if deadline is None else min(deadline, again)
            try:  # Patience ends between questions: what was removed must not be lost.
                async with (
                    asyncio.timeout_at(join_deadline) if joining else timeout_at(clock, until)
                ):
                    await self._replica.broadcast.wait(count)
            except TimeoutError:
                if joining or until != deadline:
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
        self,
        entry: Entry,
        place: Place,
        holder: Holder | None,
        away: set[str],
        refusals: list[NotAllowed],
    ) -> HandOver | None:
        """Remove an event for a requester. If the requester is cancelled, the event returns."""
        source, number = place
        feed, host = self._replica.feed, host_of(source)
        if source == feed.source and holder is not None:
            return await self._reserve(entry, number, holder)
        peer, partner = self._replica.core.peers.get(host), feed.exchange.partners.get(host)
        if peer is not None and partner is not None and peer.level >= ENTRY_LEVEL:
            if partner.source == source:
                return await self._claim(entry, peer, holder, away, refusals)
            away.add(host)  # It has lost this source with its memory.
            return None
        copied = copy(entry)  # Its expiry is lost when the entry is removed.
        removing = asyncio.ensure_future(self._remove(place, away, refusals))
        try:
            gone = await asyncio.shield(removing)
        except asyncio.CancelledError:
            self._tasks.start(self._put_back(removing, copied))
            raise
        return HandOver([copied], None, partial(self._undo, copied)) if gone else None

    # Reserving

    async def _reserve(self, entry: Entry, number: int, holder: Holder) -> HandOver | None:
        """Reserve an event of this host for a client."""
        space, original = self._replica.feed.space, self._replica.feed.original(number)
        if original is None:
            return None
        delivery, position = space.port.put_aside([original], holder)
        if delivery is None:
            return None
        try:
            await space.flush(position)
        except BaseException:
            give_back(space, delivery)
            raise
        return self._hand_over(entry, delivery, holder)

    async def _claim(
        self,
        entry: Entry,
        peer: Peer,
        holder: Holder | None,
        away: set[str],
        refusals: list[NotAllowed],
    ) -> HandOver | None:
        """Ask the source of an event to reserve it."""
        core, kind = self._replica.core, entry.shape.kind
        question = FederatedQuery(
            self._replica.feed.space,
            Query(as_template(ANY if kind is None else OfKind(kind.name, kind.names)), True),
            includes_here=False,
            includes=lambda one: one is peer,
            agent=None,
            holder=holder or core.federation.holder_here(),
            entry=(entry.origin, entry.n),
        )
        message = question.ask(peer, core.next_call(), "take", 1, None)
        delivery = await core.federation.claim(peer, question, message)
        if delivery is None:
            if isinstance(question.failure, NotAllowed):
                refusals.append(question.failure)
            else:
                away.add(peer.id)
        elif delivery.entries:
            if holder is None:
                delivery.handed()
            handed = self._hand_over(entry, delivery, holder)
            delivery.when_returned(partial(self._restore, entry))
            return handed
        return None

    def _hand_over(self, entry: Entry, delivery: Delivery, holder: Holder | None) -> HandOver:
        """Pass a delivery on. From now on the event is not found at this host."""
        space, copied = self._replica.feed.space, copy(entry)  # It may end before it is sent.
        self.reserved[entry] = holder is None

        def confirmed() -> None:
            if entry in self.reserved:
                self.reserved[entry] = True
            self._not_adopted.discard(entry)
            confirm(space, delivery)

        def returned() -> None:
            give_back(space, delivery)
            if entry in self._not_adopted:
                self._undo(copied)
            self._restore(entry)

        handed = HandOver([copied], confirmed, returned, delivery.forget)
        handed.entries = [copied]  # They return if the client is interrupted after confirming.
        return handed

    def _restore(self, entry: Entry) -> None:
        """The event is found at this host again."""
        self.reserved.pop(entry, None)
        self._not_adopted.discard(entry)
        self._replica.orders.look_again()
        self._replica.broadcast.notify()

    # Removing at once

    async def _put_back(self, removing: asyncio.Task[bool], entry: Entry) -> None:
        with suppress(TupeloError):
            if await removing:
                self._undo(entry)

    def _undo(self, entry: Entry) -> None:
        """Put a removed event back in the heap."""
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
