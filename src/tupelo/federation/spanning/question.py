"""Questions: what is asked over the federation, and what was got for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any, Literal, Protocol

from tupelo.errors import SpaceClosed, TransactionEnded
from tupelo.federation.links import wire
from tupelo.federation.links.encoding import encode_order, read_answer
from tupelo.federation.spaces.hosted import HostedSpace, give_back
from tupelo.federation.spanning.peers import EngagedPeer
from tupelo.federation.spanning.records import SeenRecord
from tupelo.space.delivery import Delivery
from tupelo.space.query import NOW, Query
from tupelo.space.session import Seen, SessionState
from tupelo.store.index import Accept
from tupelo.values.entry import Entry
from tupelo.values.holder import Holder
from tupelo.values.template_encoding import template_to_wire


def choosing(seen: Seen | None, agent: str | None) -> Accept:
    """Which entries are asked for: not those that were seen, only those of this agent."""
    return lambda entry: (
        (agent is None or (entry.to or entry.origin) == agent)
        and (seen is None or entry not in seen)
    )


async def unread(
    hosted: HostedSpace,
    session: SessionState,
    query: Query,
    agent: str | None,
    bytes_max: int | None = None,
) -> tuple[list[Entry], bool]:
    """What is here that a session has not seen, and whether there is more than has room in so many
    bytes. The reader notes what it has seen."""
    port = hosted.port
    if query.order is not None or port.is_ordered:
        return await some(hosted, query.replace(only=choosing(session.seen, agent)), bytes_max)
    entries, cut, position = await port.unread_in_slices(query, session, agent, bytes_max)
    if position:
        await hosted.flush(position)
    return entries, cut


async def some(
    hosted: HostedSpace, query: Query, bytes_max: int | None
) -> tuple[list[Entry], bool]:
    """What is read here, and whether there is more than has room in so many bytes."""
    cut = False
    if bytes_max is not None and query.limit != 1:
        limit, cut = await hosted.port.room_for(query, bytes_max)
        query = query.replace(limit=limit)
    return await hosted.port.fetch(query), cut


Settling = Callable[[EngagedPeer, list[Entry]], Awaitable[None]]
"""Called with what a host has delivered, before it is ours; if it raises, that goes back."""


def nobody(peer: EngagedPeer) -> bool:
    """Of a scope: it is here, and no other host is in it."""
    return False


class FederatedQuery:
    """A query over the federation, as this host asks it: `agent` narrows it to the entries of one
    agent, `holder` gets what is taken here, and `accept` has a say in what other hosts deliver. A
    question that is `sent` to others must have a encoding."""

    def __init__(
        self,
        hosted: HostedSpace,
        query: Query,
        *,
        agent: str | None,
        holder: Holder,
        sent: bool = True,
        accept: Settling | None = None,
    ) -> None:
        self.hosted = hosted
        self.query = query
        self.agent = agent
        self.holder = holder
        self.accept = accept
        self.session = query.session
        self.record = _record_of(query.session)
        self.encoded = template_to_wire(query.template) if sent else None
        self.encoded_order = encode_order(query.order) if sent else None

    @property
    def take(self) -> bool:
        return self.query.take

    @property
    def limit(self) -> int | None:
        return self.query.limit

    def atomic(self) -> AbstractContextManager[object]:
        """The lock of the session's record."""
        return self.hosted.port.atomic()

    def here(self, limit: int | None, *, deadline: float | None = NOW) -> Query:
        """The question as it is asked of this host's own part of the space. Entries are not built
        here, and what a session has seen is noted by its record."""
        only = None
        if self.record is not None or self.agent is not None:
            only = choosing(self.record, self.agent)
        return self.query.replace(
            deadline=deadline, limit=limit, session=None, known=False, only=only
        )

    async def read_here(self, limit: int | None) -> list[Entry]:
        if self.session is not None:
            query = self.query.replace(deadline=NOW, limit=limit, session=None, known=False)
            entries, _ = await unread(self.hosted, self.session, query, self.agent)
            return entries
        return await self.hosted.port.fetch(self.here(limit))

    def ask(
        self,
        peer: EngagedPeer,
        call: int,
        how: Literal["read", "take", "peek"],
        limit: int | None,
        watch: int | None,
    ) -> wire.Ask:
        """The question, for this host, which is to be sent at once."""
        notes, actor = None, self.query.actor
        if self.record is not None:
            with self.atomic():
                reads = how == "read"
                notes = self.record.notes_for(peer, call) if reads else self.record.all_notes()
            if notes.since:  # It knows who we are.
                actor = None
        return wire.Ask(
            call,
            self.hosted.name,
            self.encoded,
            how,
            limit,
            self.encoded_order,
            self.agent,
            notes,
            watch,
            actor.agent if actor else None,
            actor.session if actor else None,
            self.holder.as_client if how == "take" else None,
        )

    def read_answer(
        self, peer: EngagedPeer, message: wire.Ask, answer: Any
    ) -> tuple[list[Entry], bool] | None:
        """What was read there, and whether there is more; None if it is to be asked again. BadFrame
        if it cannot be."""
        if self.record is not None and message.seen is not None:
            with self.atomic():
                answer = self.record.read_answer(peer, message.seen, answer)
            if answer is None:
                return None
        return read_answer(answer, self.hosted.clock.now())

    def going_on(self, entries: list[Entry]) -> FederatedQuery:
        """The same question, but for what was read; in a session of its own, if it is in none."""
        if self.session is not None:
            return self
        question = copy(self)
        question.record = SeenRecord()
        question.session = SessionState("", question.record, None)
        question.record.choose(entries, None)
        return question

    @contextmanager
    def held(self) -> Iterator[None]:
        """While entries are in hand that are yet to be chosen from, the session forgets none."""
        if self.record is None:
            yield
            return
        with self.atomic():
            self.record.hold()
        try:
            yield
        finally:
            with self.atomic():
                self.record.release()

    def choose(self, entries: list[Entry], limit: int | None) -> list[Entry]:
        """Those that the one who asked gets: of a session's, what is new to it."""
        if self.record is None:
            return entries[:limit]
        with self.atomic():
            return self.record.choose(entries, limit)


def _record_of(session: SessionState | None) -> SeenRecord | None:
    seen = None if session is None else session.seen
    assert seen is None or isinstance(seen, SeenRecord)
    return seen


class Settler(Protocol):
    """Tells other hosts what became of what they have delivered, by the number of the call."""

    def keep(self, call: int) -> None: ...

    def release(self, call: int) -> None: ...

    def handed(self, call: int) -> None: ...


class ForeignDelivery:
    """Entries that another host has delivered, which keeps them in doubt until it hears whether
    the one who asked has them; were there more, but for a `cut`?"""

    def __init__(
        self, settler: Settler, call: int, space: str, entries: list[Entry], cut: bool
    ) -> None:
        self.entries = entries
        self.space = space
        self.cut = cut
        self._settler = settler
        self._call = call

    def confirm(self) -> int:
        self._settler.keep(self._call)
        return 0

    def give_back(self) -> int:
        self._settler.release(self._call)
        return 0

    def forget(self) -> None:
        """No session of this space has seen them."""

    def handed(self) -> None:
        """A program of this host gets them."""
        self._settler.handed(self._call)


class FederatedResult:
    """What an operation got, from where, and whom it reached; of a session's, what is noted in its
    `record`."""

    def __init__(self, hosted: HostedSpace, record: SeenRecord | None = None) -> None:
        self.hosted = hosted
        self._record = record
        self.entries: list[Entry] = []
        self.covered: dict[str, None] = {}
        self.missing: dict[str, None] = {}
        self.cut: set[str] = set()  # ids of hosts that have more than they could answer
        self._deliveries: list[Delivery] = []  # of what was here
        self._brought: list[ForeignDelivery] = []

    def is_cut(self, peer: EngagedPeer) -> bool:
        return peer.id in self.cut

    @property
    def space(self) -> str:
        return self.hosted.name

    def add(self, delivery: Delivery) -> None:
        self.entries += delivery.entries
        if isinstance(delivery, ForeignDelivery):
            self._brought.append(delivery)
        else:
            self._deliveries.append(delivery)

    def confirm(self) -> int:
        """The one who asked has them; see `confirm_here`."""
        position = self.confirm_here()
        self.confirm_brought()
        return position

    def confirm_here(self) -> int:
        """The one who asked gets them: those of this host are gone for good, but for those that a
        space took back when it was closed. SpaceClosed or TransactionEnded if that is all."""
        position = 0
        kept = [entry for brought in self._brought for entry in brought.entries]
        refused = None
        for delivery in self._deliveries:
            try:
                position = max(position, delivery.confirm())
                kept += delivery.entries
            except (SpaceClosed, TransactionEnded) as error:
                refused = error
        if refused is not None:
            self.entries = kept
            if not kept:
                raise refused
        return position

    @property
    def is_brought(self) -> bool:
        """Has another host delivered some of them?"""
        return bool(self._brought)

    def handed(self) -> None:
        """A program of this host gets them."""
        for brought in self._brought:
            brought.handed()

    def received(self) -> None:
        """On the host's loop: the program has them. Other hosts are told once it has run on; if
        this host is killed before, what they keep in doubt is not lost."""
        if self._brought:
            asyncio.get_running_loop().call_soon(self.confirm_brought)

    def confirm_brought(self) -> None:
        """The one who asked has them: the hosts that have delivered some are told."""
        for brought in self._brought:
            brought.confirm()

    def undo(self, put_back: Callable[[HostedSpace, list[Entry]], object]) -> None:
        """The program that was to get them has vanished after `confirm_here`: what was here is put
        back by this function, and what was elsewhere returns there."""
        here = [entry for delivery in self._deliveries for entry in delivery.entries]
        if here:
            put_back(self.hosted, here)
        for brought in self._brought:
            brought.give_back()

    def forget(self) -> None:
        """The one who asked has them, and will not vanish any more."""
        for delivery in self._deliveries:
            delivery.forget()

    def give_back(self) -> int:
        """The one who asked has vanished."""
        for delivery in (*self._deliveries, *self._brought):
            give_back(self.hosted, delivery)
        if self._record is not None and not self._deliveries:
            with self.hosted.port.atomic():
                self._record.discard_all(self.entries)
        return 0

    def join(self, more: FederatedResult) -> None:
        """What another operation got, later."""
        self.entries += more.entries
        self._deliveries += more._deliveries
        self._brought += more._brought
        self.covered = {k: None for k in self.covered if k not in more.missing} | more.covered
        self.missing = {k: None for k in self.missing if k not in more.covered} | more.missing
