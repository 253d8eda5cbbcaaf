"""Queries over several hosts, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tupelo.errors import SpaceClosed, TransactionEnded, TupeloError
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
    """A filter: entries not in `seen`, and only those of this agent, if given."""
    return lambda entry: (
        (agent is None or (entry.to or entry.origin) == agent)
        and (seen is None or entry not in seen)
    )


async def read_unseen(
    hosted: HostedSpace,
    session: SessionState,
    query: Query,
    agent: str | None,
    bytes_max: int | None = None,
) -> tuple[list[Entry], bool]:
    """The entries of this host that a session has not seen, and whether `bytes_max` has cut the
    list short. The caller records them as seen."""
    port = hosted.port
    if query.order is not None or port.is_ordered:
        return await read_some(hosted, query.replace(only=choosing(session.seen, agent)), bytes_max)
    entries, cut, position = await port.unread_in_slices(query, session, agent, bytes_max)
    if position:
        await hosted.flush(position)
    return entries, cut


async def read_some(
    hosted: HostedSpace, query: Query, bytes_max: int | None
) -> tuple[list[Entry], bool]:
    """Read entries of this host; also whether `bytes_max` has cut the list short."""
    cut = False
    if bytes_max is not None and query.limit != 1:
        limit, cut = await hosted.port.room_for(query, bytes_max)
        query = query.replace(limit=limit)
    return await hosted.port.fetch(query), cut


if TYPE_CHECKING:
    from tupelo.federation.spanning.federated import Federation

Settling = Callable[[EngagedPeer, list[Entry]], Awaitable[None]]
"""Called with the entries that a host delivers; rejects them by raising."""


def no_peer(peer: EngagedPeer) -> bool:
    """The peers of a scope that includes only this host."""
    return False


class FederatedQuery:
    """A query over several hosts: over this host if it `includes_here`, and over the peers that it
    `includes`. `agent` limits it to the entries of one agent, `holder` is the taker of entries of
    this host, and `accept` may reject deliveries of other hosts. With `ahead`, a read may return
    an entry that was fetched some seconds before. `entry` is the identity of the only entry that is
    wanted, of hosts with `wire.LEVEL` 4. `failure` is the error of the last host that refused."""

    def __init__(
        self,
        hosted: HostedSpace,
        query: Query,
        *,
        includes_here: bool,
        includes: Callable[[EngagedPeer], bool],
        agent: str | None,
        holder: Holder,
        accept: Settling | None = None,
        ahead: bool = False,
        entry: tuple[str, int] | None = None,
    ) -> None:
        self.hosted = hosted
        self.query = query
        self.includes_here = includes_here
        self.includes = includes
        self.agent = agent
        self.holder = holder
        self.accept = accept
        self.ahead = ahead
        self.entry = entry
        self.failure: TupeloError | None = None
        self.session = query.session
        self.record = _record_of(query.session)
        sent = includes is not no_peer
        self.encoded = template_to_wire(query.template) if sent else None
        self.encoded_order = encode_order(query.order) if sent else None

    @property
    def take(self) -> bool:
        return self.query.take

    @property
    def limit(self) -> int | None:
        return self.query.limit

    @property
    def is_over(self) -> bool:
        """Whether the session of the read has ended."""
        return self.session is not None and self.session.ended

    @property
    def rest_key(self) -> bytes | None:
        """The encoded template of a read in a session, over all hosts, that waits; None for all
        other queries."""
        query = self.query
        if self.session is None or self.encoded is None or self.take:
            return None
        if query.deadline == NOW or query.scope is not None or query.order is not None:
            return None
        return msgspec.msgpack.encode(self.encoded)

    def atomic(self) -> AbstractContextManager[object]:
        """The lock that guards the record of the session."""
        return self.hosted.port.atomic()

    def query_here(self, limit: int | None, *, deadline: float | None = NOW) -> Query:
        """The query for the entries of this host. Their types need not be known here, and the
        record of the session, not the query, notes what is seen."""
        only = None
        if self.record is not None or self.agent is not None:
            only = choosing(self.record, self.agent)
        return self.query.replace(
            deadline=deadline, limit=limit, session=None, known=False, only=only
        )

    async def read_here(self, limit: int | None) -> list[Entry]:
        """Read entries of this host, without waiting; in a session, unseen ones."""
        if self.session is not None:
            query = self.query.replace(deadline=NOW, limit=limit, session=None, known=False)
            entries, _ = await read_unseen(self.hosted, self.session, query, self.agent)
            return entries
        return await self.hosted.port.fetch(self.query_here(limit))

    def ask(
        self,
        peer: EngagedPeer,
        call: int,
        how: Literal["read", "take", "peek"],
        limit: int | None,
        watch: int | None,
    ) -> wire.Ask:
        """The message for this peer; send it at once, since it assumes the order of the link."""
        notes, actor = None, self.query.actor
        if self.record is not None:
            with self.atomic():
                reads = how == "read"
                notes = self.record.notes_for(peer, call) if reads else self.record.all_notes()
            if notes.since:  # The peer knows the session, and so its actor.
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
            actor.name if actor else "",
            self.entry,
        )

    def read_answer(
        self, peer: EngagedPeer, message: wire.Ask, answer: Any
    ) -> tuple[list[Entry], bool] | None:
        """The entries of an answer, and whether the peer has more; None if the peer must be asked
        again, since it has forgotten the session. BadFrame if the answer is malformed."""
        if self.record is not None and message.seen is not None:
            with self.atomic():
                answer = self.record.read_answer(peer, message.seen, answer)
            if answer is None:
                return None
        return read_answer(answer, self.hosted.clock.now())

    def replace(self, **attributes: Any) -> FederatedQuery:
        """A copy with other attributes."""
        question = copy(self)
        for name, value in attributes.items():
            setattr(question, name, value)
        return question

    def continued(
        self, entries: list[Entry], includes: Callable[[EngagedPeer], bool]
    ) -> FederatedQuery:
        """The query for the other entries of these peers: outside a session, in a new session that
        has seen `entries`."""
        question = self.replace(includes_here=False, includes=includes)
        if self.session is None:
            question.record = SeenRecord()
            question.session = SessionState("", question.record, None)
            question.record.choose(entries, None)
        return question

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this block the session forgets no entry: fetched ones are yet to be chosen
        from."""
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
        """The entries for the reader, up to `limit`: in a session, those that are new to it."""
        if self.record is None:
            return entries[:limit]
        with self.atomic():
            return self.record.choose(entries, limit)


def _record_of(session: SessionState | None) -> SeenRecord | None:
    seen = None if session is None else session.seen
    assert seen is None or isinstance(seen, SeenRecord)
    return seen


class ForeignDelivery:
    """Entries delivered by another host, which keeps them in doubt until they are confirmed or
    given back. `cut`: the host has more than one answer holds."""

    def __init__(
        self, federation: Federation, call: int, space: str, entries: list[Entry], cut: bool
    ) -> None:
        self.entries = entries
        self.space = space
        self.cut = cut
        self._federation = federation
        self._call = call

    def confirm(self) -> int:
        self._federation.keep(self._call)
        return 0

    def give_back(self) -> int:
        self._federation.release(self._call)
        return 0

    def forget(self) -> None:
        """No session of this host has seen them."""

    def handed(self) -> None:
        """A program of this host is getting them."""
        self._federation.handed(self._call)

    def when_returned(self, function: Callable[[], object]) -> None:
        """Call this if the other host has taken them back before they are confirmed."""
        self._federation.when_returned(self._call, function)


class FederatedResult:
    """The entries that an operation has read or taken, and the hosts that have answered; for a
    read in a session, with its `record`."""

    def __init__(self, hosted: HostedSpace, record: SeenRecord | None = None) -> None:
        self.hosted = hosted
        self._record = record
        self.entries: list[Entry] = []
        self.covered: dict[str, None] = {}
        self.missing: dict[str, None] = {}
        self.cut: set[str] = set()  # ids of hosts that have more than one answer holds
        self._deliveries: list[Delivery] = []  # of this host
        self._foreign: list[ForeignDelivery] = []

    def is_cut(self, peer: EngagedPeer) -> bool:
        return peer.id in self.cut

    @property
    def space(self) -> str:
        return self.hosted.name

    def add(self, delivery: Delivery) -> None:
        self.entries += delivery.entries
        if isinstance(delivery, ForeignDelivery):
            self._foreign.append(delivery)
        else:
            self._deliveries.append(delivery)

    def confirm(self) -> int:
        """The taker has the entries: confirm all deliveries; see `confirm_here`."""
        position = self.confirm_here()
        self.confirm_foreign()
        return position

    def confirm_here(self) -> int:
        """Confirm the deliveries of this host, and return the position to flush. Entries that a
        closed space has taken back are dropped; SpaceClosed or TransactionEnded if none is left."""
        position = 0
        kept = [entry for foreign in self._foreign for entry in foreign.entries]
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
    def has_foreign(self) -> bool:
        """Whether there are deliveries of other hosts."""
        return bool(self._foreign)

    def handed(self) -> None:
        """A program of this host is getting the entries."""
        for foreign in self._foreign:
            foreign.handed()

    def received(self) -> None:
        """On the host's loop: the program has the entries. The other hosts get the confirmation in
        the next turn of the loop; if this host is killed before, they still keep them in doubt."""
        if self._foreign:
            asyncio.get_running_loop().call_soon(self.confirm_foreign)

    def confirm_foreign(self) -> None:
        """The taker has the entries: confirm the deliveries of other hosts."""
        for foreign in self._foreign:
            foreign.confirm()

    def undo(self, put_back: Callable[[HostedSpace, list[Entry]], object]) -> None:
        """The program has vanished after `confirm_here`: `put_back` restores the entries of this
        host, and the others return to their owners."""
        here = [entry for delivery in self._deliveries for entry in delivery.entries]
        if here:
            put_back(self.hosted, here)
        for foreign in self._foreign:
            foreign.give_back()

    def forget(self) -> None:
        """The program has the entries for good: no undo is needed any more."""
        for delivery in self._deliveries:
            delivery.forget()

    def give_back(self) -> int:
        """The taker has vanished: all entries return to their places."""
        for delivery in (*self._deliveries, *self._foreign):
            give_back(self.hosted, delivery)
        if self._record is not None and not self._deliveries:
            with self.hosted.port.atomic():
                self._record.discard_all(self.entries)
        return 0

    def join(self, more: FederatedResult) -> None:
        """Add the result of a later operation."""
        self.entries += more.entries
        self._deliveries += more._deliveries
        self._foreign += more._foreign
        self.covered = {k: None for k in self.covered if k not in more.missing} | more.covered
        self.missing = {k: None for k in self.missing if k not in more.covered} | more.missing
