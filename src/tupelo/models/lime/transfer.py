"""Transfer: tuples that change hosts, taken by an agent elsewhere or moved to the host of their
agent, so that none is lost or doubled; and sharing, which decides what moves.

Each transfer has a token of the host that began it, which is never used again, not even in a later
incarnation. The owner reserves the tuples until it knows that the other host has received them. If
the membership changes before, the owner asks in the next membership that has both hosts; each host
remembers the tokens of all transfers that it has received. Deliveries to a host that is away for
long are in doubt, and the `Doubt` of the space decides about them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyroaring import BitMap64

from tupelo.errors import (
    BadEntry,
    BadFrame,
    CannotSend,
    HostClosed,
    PeerLost,
    TupeloError,
    UnknownHost,
    UnknownType,
)
from tupelo.federation.groups.group import PartSender
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.spaces.hosted import DoubtfulDeliveries, confirm, give_back
from tupelo.models.lime.locations import home_of
from tupelo.models.lime.messages import (
    ConfirmTake,
    FoundTuple,
    LookRequest,
    Moved,
    MoveTuples,
    PlacedTuple,
    ReceivedQuery,
    Release,
    TakeRequest,
    TuplePattern,
    carried,
    encode,
    read,
)
from tupelo.models.lime.reactions import Reactions
from tupelo.models.lime.spaces import AgentMetadata, AgentState, InterfaceSpace, Spaces, TupleStore
from tupelo.models.lime.transport import WINDOW_BYTES, WINDOW_MAX, Listings
from tupelo.space.delivery import Delivery
from tupelo.values.entry import Entry, require_known
from tupelo.values.holder import Holder, HolderKind

logger = logging.getLogger("tupelo")

TAKEN: Final = "lime-take"
MOVED: Final = "lime-move"


class TupleBatch(NamedTuple):
    """Tuples that move to another host under a token. Their reservation is durable at
    `position`."""

    tuple_store: TupleStore
    host: str
    token: int
    held: Delivery
    position: int = 0


class UnstoredTuples:
    """A delivery of tuples that were in no tuple store when they were sent to another host. If they
    are given back they are put in the store here."""

    def __init__(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        self.space = tuple_store.name
        self.entries = entries
        self._tuple_store = tuple_store

    def confirm(self) -> int:
        return 0

    def give_back(self) -> int:
        return self._tuple_store.engine.let_in(self.entries)

    def forget(self) -> None:
        """No session has seen the tuples."""


class TupleTransfer:
    """The tuples that one host sends to other hosts, and receives from them; and its misplaced
    tuples, which move."""

    def __init__(
        self,
        core: HostCore,
        sender: PartSender,
        spaces: Spaces,
        announce: Callable[[TupleStore], Awaitable[None]],
    ) -> None:
        self._core = core
        self._sender = sender
        self._spaces = spaces
        self._announce = announce
        self._token = core.rng.getrandbits(62)
        self._received = BitMap64()
        self._arrived: dict[str, BitMap64] = {}
        # By kind (TAKEN or MOVED) and host, and by token: deliveries that are not confirmed.
        self._open: dict[tuple[str, str], dict[int, Delivery]] = {}
        self._in_doubt = DoubtfulDeliveries(spaces.find)
        core.all_doubts.add(self._in_doubt)
        self._incarnations: dict[int, str] = {}  # of the receivers of moves
        self._recovered: set[str] = set()
        self.listings = Listings()
        """The listings of tuples for other hosts."""

    def next_token(self) -> int:
        self._token += 1
        return self._token

    def recover(self, tuple_store: TupleStore) -> None:
        """Find the deliveries of a store that were in doubt when this host crashed."""
        if tuple_store.name in self._recovered:
            return
        self._recovered.add(tuple_store.name)
        for delivery in tuple_store.engine.deliveries_in_doubt():
            holder = delivery.holder
            if holder.kind in (TAKEN, MOVED):
                self._in_doubt.leave((holder.kind, holder.who), {holder.call: delivery})
                self._incarnations[holder.call] = holder.incarnation

    def holder(self, kind: HolderKind, host: str, token: int) -> Holder:
        """The holder of a delivery to a host."""
        return Holder(kind, host, self._spaces.directory.incarnation_of(host), token)

    # Reading and taking at another host

    async def look(self, host: str, pattern: TuplePattern) -> list[FoundTuple]:
        """All matches of a host; raises PeerLost if it is cut off before the last window."""
        now = self._core.clock.now
        if host == self._core.id:
            tuple_store = self._spaces.find(pattern.space)
            here = [] if tuple_store is None else tuple_store.sendable(pattern)
            return [placed.found(host, now()) for _, placed in here]
        found: list[FoundTuple] = []

        async def window(number: int) -> bool:
            answer = await self._sender.ask(host, LookRequest(number, pattern))
            placed, more = read(answer, tuple[list[PlacedTuple], bool])
            found.extend(one.found(host, now()) for one in placed)
            return bool(more)

        return found if await self._in_windows(host, window) else []

    async def take(self, host: str, pattern: TuplePattern, taken: list[Entry]) -> None:
        """Take the matches of another host, window by window, and add them to `taken`. Raises
        PeerLost if it is cut off; tuples that did not arrive return there."""

        async def window(number: int) -> bool:
            entries, more = await self._take_window(host, number, pattern)
            taken.extend(entries)
            return more

        await self._in_windows(host, window)

    async def _in_windows(self, host: str, window: Callable[[int], Awaitable[bool]]) -> bool:
        """Ask a host for window after window, until there are no more. False if the host is not in
        the group any more."""
        number = self.next_token()
        more = True
        try:
            while more:
                more = await window(number)
        except UnknownHost:
            return False
        finally:
            if more:
                self._sender.send(host, Release(number))
        return True

    async def _take_window(
        self, host: str, number: int, pattern: TuplePattern
    ) -> tuple[list[Entry], bool]:
        token = self.next_token()
        answer = await self._sender.ask(host, TakeRequest(token, number, pattern))
        now = self._core.clock.now()
        given, more = read(answer, tuple[list[PlacedTuple], bool])
        entries = [placed.entry.read(now) for placed in given]
        if not entries:
            return [], more
        try:
            for entry in entries:
                require_known(entry)
        except UnknownType:
            self._sender.send(host, Release(token))
            raise
        self._received.add(token)
        self._sender.send(host, ConfirmTake(token))
        return entries, more

    def show(self, neighbour: str, source: str, message: LookRequest) -> Any:
        """The answer to a LookRequest: copies of the matches."""
        tuple_store = self._spaces.find(message.pattern.space)
        if tuple_store is None or not self.may(neighbour, "read", tuple_store, source):
            return [[], False]
        window, more = self.listings.window(source, message.number, tuple_store, message.pattern)
        return encode([list(window.values()), more])

    async def give(self, neighbour: str, source: str, message: TakeRequest) -> Any:
        """Reserve the matches of a TakeRequest; returns the answer."""
        pattern = message.pattern
        tuple_store = self._spaces.find(pattern.space)
        if tuple_store is None or not self.may(neighbour, "take", tuple_store, source):
            return [[], False]
        window, more = self.listings.window(source, message.number, tuple_store, pattern)
        holder = self.holder(TAKEN, source, message.token)
        delivery, position = tuple_store.engine.put_aside(window, holder)
        if delivery is None:
            return [[], more]
        try:
            await tuple_store.flush(position)
        except BaseException:
            give_back(tuple_store, delivery)
            raise
        if source in self._spaces.cut:
            give_back(tuple_store, delivery)
            return [[], False]
        self._open.setdefault((TAKEN, source), {})[message.token] = delivery
        return encode([[window[entry] for entry in delivery.entries], more])

    def may(
        self, neighbour: str, operation: str, tuple_store: TupleStore, source: str | None = None
    ) -> bool:
        """Whether this neighbour, and the host `source` if it is known, may do this operation."""
        return self._core.may(operation, tuple_store.name, neighbour, source or neighbour)

    def confirmed(self, source: str, message: ConfirmTake) -> None:
        held = self._open.get((TAKEN, source), {}).pop(message.token, None)
        if held is not None:
            confirm(self._spaces.find(held.space), held)

    def released(self, source: str, message: Release) -> None:
        self.listings.release(source, message.token)
        held = self._open.get((TAKEN, source), {}).pop(message.token, None)
        if held is not None:
            give_back(self._spaces.find(held.space), held)

    # Moving to another host

    async def move(self, batch: TupleBatch) -> None:
        """Send a batch to its host. If the host refuses it, the tuples return; if the host is cut
        off, the outcome is settled later."""
        tuple_store, host, token, held, position = batch
        now = self._core.clock.now()
        message = MoveTuples(
            token, tuple_store.name, [carried(entry, now) for entry in held.entries]
        )
        try:
            await tuple_store.flush(position)
        except BaseException:
            give_back(tuple_store, held)
            raise
        self._open.setdefault((MOVED, host), {})[token] = held
        self._incarnations[token] = self._spaces.directory.incarnation_of(host)
        try:
            accepted = await self._sender.ask(host, message)
        except (BadFrame, CannotSend, UnknownHost):  # The request was not understood, or not sent.
            accepted = False
        except PeerLost as error:
            if error.in_doubt:
                return
            accepted = False
        except TupeloError as error:  # The tuples may have arrived nevertheless.
            logger.warning("it is in doubt whether tuples have arrived at %s: %s", host, error)
            return
        if self._open.get((MOVED, host), {}).pop(token, None) is not None:
            self._incarnations.pop(token, None)
            if accepted is True:
                confirm(tuple_store, held)
            else:
                sharers = self._spaces.directory.sharers(tuple_store.name)
                if sharers.get(home_of(held.entries[0])) == host:
                    # Otherwise this move would be repeated for ever.
                    self._spaces.refused.add((tuple_store.name, host))
                give_back(tuple_store, held)

    async def arrive(self, neighbour: str, source: str, message: MoveTuples) -> bool:
        """Accept tuples for agents of this host; False if they do not belong here."""
        now = self._core.clock.now()
        entries = [one.read(now) for one in message.entries]
        tuple_store = self._spaces.find(message.space)
        sharing = self._spaces.sharing.get(message.space, {})
        if tuple_store is None or not self.may(neighbour, "write", tuple_store, source):
            return False
        if not all(home_of(entry) in sharing for entry in entries):
            return False
        alive = [entry for entry in entries if entry.expires is None or entry.expires > now]
        position = tuple_store.engine.let_in(alive)
        self._arrived.setdefault(source, BitMap64()).add(message.token)
        await tuple_store.flush(position)
        with suppress(HostClosed):  # The tuples are here nevertheless.
            await self._announce(tuple_store)
        return True

    # Misplaced tuples: a tuple for an agent moves to the host where that agent shares the space.
    # Until then it can be read and taken here. After a change of the membership all misplaced
    # tuples move before operations go on.

    def gather(self) -> list[TupleBatch]:
        """Reserve all misplaced tuples that can move."""
        return [batch for tuple_store in self._spaces for batch in self._gather(tuple_store)]

    async def move_misplaced(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        """Move misplaced tuples, if there are any among these new ones."""
        if any(tuple_store.away(entry) for entry in entries):
            await self.send(self._gather(tuple_store))

    def pass_on(
        self, tuple_store: TupleStore, entries: list[Entry]
    ) -> tuple[list[Entry], list[TupleBatch]]:
        """Divide tuples that are about to be put in a tuple store into those that stay, and those
        that are sent on at once and never visible here."""
        batches = []
        for host, chunk in _sorted(tuple_store, entries):
            token = self.next_token()
            batches.append(TupleBatch(tuple_store, host, token, UnstoredTuples(tuple_store, chunk)))
        going = {entry for batch in batches for entry in batch.held.entries}
        return [entry for entry in entries if entry not in going], batches

    def _gather(self, tuple_store: TupleStore) -> list[TupleBatch]:
        chunks = _sorted(tuple_store, tuple_store.entries())
        batches = [self._put_aside(tuple_store, host, chunk) for host, chunk in chunks]
        return [batch for batch in batches if batch is not None]

    def _put_aside(
        self, tuple_store: TupleStore, host: str, entries: list[Entry]
    ) -> TupleBatch | None:
        token = self.next_token()
        holder = self.holder(MOVED, host, token)
        delivery, position = tuple_store.engine.put_aside(entries, holder)
        if delivery is None:  # They are held, or were taken before.
            return None
        return TupleBatch(tuple_store, host, token, delivery, position)

    async def send(self, batches: list[TupleBatch]) -> None:
        """Send batches, to all hosts at once and to each in order. If this is cancelled, the unsent
        tuples return."""
        by_host: dict[str, list[TupleBatch]] = {}
        for batch in batches:
            by_host.setdefault(batch.host, []).append(batch)
        try:
            await asyncio.gather(*map(self._send, by_host.values()))
        finally:
            for unsent in by_host.values():
                for batch in unsent:
                    give_back(batch.tuple_store, batch.held)

    async def _send(self, batches: list[TupleBatch]) -> None:
        while batches:
            await self.move(batches.pop(0))

    # Changes of the membership

    def cut(self, hosts: Collection[str]) -> None:
        """Put the deliveries to hosts that are out of reach in doubt."""
        self.listings.cut(hosts)
        for kind, host in list(self._open):
            if host in hosts:
                self._in_doubt.leave((kind, host), self._open.pop((kind, host)))

    def install(self, hosts: Collection[str]) -> None:
        """A new membership with these hosts is in force."""
        self.listings.clear()
        self.cut({host for _, host in self._open if host not in hosts})

    def _unconfirmed(self, kind: str, host: str) -> dict[int, Delivery]:
        """The unconfirmed deliveries of a kind to a host, by token."""
        return {**self._open.get((kind, host), {}), **self._in_doubt.of((kind, host))}

    def unsettled(self, hosts: Iterable[str]) -> list[str]:
        """The hosts among these with unconfirmed deliveries."""
        return sorted(host for host in hosts if self.put_aside_for(host))

    def put_aside_for(self, host: str) -> list[Delivery]:
        """The unconfirmed deliveries to a host."""
        return [one for kind in (TAKEN, MOVED) for one in self._unconfirmed(kind, host).values()]

    async def settle_with(self, host: str) -> None:
        """Ask a host which deliveries it has received, and settle all of them."""
        moved = self._unconfirmed(MOVED, host)
        asked = [
            Moved(token, self._incarnations.get(token, ""), held.space, first.origin, first.n)
            for token, held in moved.items()
            for first in held.entries[:1]
        ]
        message = ReceivedQuery(list(self._unconfirmed(TAKEN, host)), asked)
        try:
            answer = await self._sender.ask(host, message)
        except TupeloError:  # The host is cut off again, or takes no part.
            return
        received = read(answer, tuple[list[int], list[int]])
        for kind, tokens in zip((TAKEN, MOVED), received, strict=True):
            self._in_doubt.leave((kind, host), self._open.pop((kind, host), {}))
            self._in_doubt.back((kind, host), tokens)
        for token in moved:
            self._incarnations.pop(token, None)

    def received(self, source: str, message: ReceivedQuery) -> Any:
        arrived = self._arrived.get(source, BitMap64())
        return [
            [token for token in message.taken if token in self._received],
            [
                one.token
                for one in message.moved
                if one.token in arrived or self._came_before_crash(one)
            ],
        ]

    def _came_before_crash(self, moved: Moved) -> bool:
        """Whether the move arrived in an earlier incarnation of this host, and is on its disk."""
        return moved.incarnation != self._core.incarnation and self._spaces.was_accepted(
            moved.space, moved.origin, moved.n
        )

    def close(self) -> None:
        """Leave the deliveries in doubt to the host."""
        self.cut({host for _, host in self._open})
        for owner in self._in_doubt.owners():
            self._core.doubts.leave(owner, dict(self._in_doubt.of(owner)))
        self._in_doubt.close()
        self._core.all_doubts.discard(self._in_doubt)


def chunks_of(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Split tuples into chunks that fit a message, without those that cannot be sent."""
    chunks: list[list[Entry]] = []
    size = 0
    for entry in entries:
        with suppress(BadEntry):
            length = len(carried(entry, 0.0).payload)
            if not chunks or size + length > WINDOW_BYTES or len(chunks[-1]) >= WINDOW_MAX:
                chunks.append([])
                size = 0
            chunks[-1].append(entry)
            size += length
    return chunks


def _sorted(tuple_store: TupleStore, entries: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """The misplaced tuples that can be sent, in chunks for each host."""
    going: dict[str, list[Entry]] = {}
    for entry in entries:
        host = tuple_store.away(entry)
        if host is not None:
            going.setdefault(host, []).append(entry)
    return [(host, chunk) for host in going for chunk in chunks_of(going[host])]


Relocated = dict[TupleStore, list[Entry]]
"""Tuples that were here before and belong to another agent now."""


@dataclass(eq=False, repr=False)
class Sharing:
    """Lets the metadata of this host take effect: shares spaces and makes them private."""

    _spaces: Spaces
    _reactions: Reactions
    _transfer: TupleTransfer

    def install(
        self, agents: Mapping[str, AgentState], metadata_of: Mapping[str, AgentMetadata]
    ) -> tuple[list[TupleBatch], Relocated]:
        """Share exactly the spaces that are in the metadata of the agents. Returns the tuples that
        must move to other hosts, and those that belong to another agent now."""
        wanted = {(agent, space) for agent in metadata_of for space in metadata_of[agent].shared}
        for sharing in list(self._spaces.sharing.values()):
            for interface in list(sharing.values()):
                if (interface.agent.id, interface.name) not in wanted:
                    self._unshare(interface)
        return self._share(to_share(agents, metadata_of))

    def _unshare(self, interface: InterfaceSpace) -> None:
        self._reactions.unregister_all(interface)
        self._spaces.unshare(interface)
        interface.end_waiting()
        if not interface.agent.ended:
            self._reactions.register_all(interface)

    def _share(self, spaces: list[InterfaceSpace]) -> tuple[list[TupleBatch], Relocated]:
        """Share several spaces at once: the current locations of all tuples are known before
        reactions see a tuple."""
        batches: list[TupleBatch] = []
        relocated: Relocated = {}
        contents = [interface.own.take_out(lambda entry: True) for interface in spaces]
        before = set(self._spaces.sharing)
        for interface in spaces:
            self._reactions.unregister_all(interface)
            self._spaces.share(interface)
            self._transfer.recover(interface.tuple_store)
        for interface in spaces:
            store = interface.tuple_store
            # In a space that no agent has shared before, other doors may have written.
            held = [
                entry
                for entry in store.entries()
                if interface.name not in before or store.current(entry) == interface.agent.id
            ]
            relocated.setdefault(store, []).extend(held)
        for interface, entries in zip(spaces, contents, strict=True):
            stay, going = self._transfer.pass_on(interface.tuple_store, entries)
            interface.tuple_store.put(stay)
            batches += going
        for tuple_store, entries in relocated.items():
            self._reactions.catch_up(tuple_store, entries)
        for interface in spaces:
            self._reactions.register_all(interface)
        return batches, relocated


def to_share(
    agents: Mapping[str, AgentState], metadata_of: Mapping[str, AgentMetadata]
) -> list[InterfaceSpace]:
    """The spaces that are shared in this metadata but not yet in force."""
    wanted = sorted((agent, space) for agent in metadata_of for space in metadata_of[agent].shared)
    spaces = [agents[agent].spaces[space] for agent, space in wanted if agent in agents]
    return [interface for interface in spaces if not interface.shared]
