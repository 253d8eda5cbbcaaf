"""Hand-over: tuples that change hosts, taken by someone elsewhere or moved home, none lost or
doubled.

Each hand-over has a number of the host that began it, which it never uses again, not even in a
later life. The owner puts the tuples aside until it knows that the other host has received them. If
the group changes before it does, it asks, in the next membership that has both; and the other host
remembers the numbers of all that it has received. Who is away for long is in doubt, and the space's
`Doubt` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
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
from tupelo.federation.spaces.doubts import DoubtfulDeliveries, confirm, give_back
from tupelo.models.lime.locations import home_of
from tupelo.models.lime.messages import (
    ConfirmTake,
    Moved,
    MoveTuples,
    PlacedTuple,
    Release,
    Take,
    TuplePattern,
    Which,
    carried,
    encode,
    read,
)
from tupelo.models.lime.reactions import Reactions
from tupelo.models.lime.spaces import AgentCard, AgentState, InterfaceSpace, Spaces, TupleStore
from tupelo.models.lime.transport import WINDOW_BYTES, WINDOW_MAX, Listings
from tupelo.space.delivery import Delivery
from tupelo.values.entry import Entry, require_known
from tupelo.values.holder import Holder, HolderKind

logger = logging.getLogger("tupelo")

TAKEN: Final = "lime-take"
MOVED: Final = "lime-move"


class TupleBatch(NamedTuple):
    """Tuples that go to another host under a number. That they were put aside for it is durable at
    a position."""

    tuple_store: TupleStore
    host: str
    token: int
    held: Delivery
    position: int = 0


class UnstoredTuples:
    """A delivery of tuples that were in no tuple store yet when they left for another host. If it
    does not get them they are put in the store here."""

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
    """What one host hands to others, and gets from them."""

    def __init__(
        self,
        core: HostCore,
        voice: PartSender,
        spaces: Spaces,
        announce: Callable[[TupleStore], Awaitable[None]],
    ) -> None:
        self._core = core
        self._voice = voice
        self._spaces = spaces
        self._announce = announce
        self._token = core.rng.getrandbits(62)
        self._received = BitMap64()
        self._arrived: dict[str, BitMap64] = {}
        # By the other host, and by the numbers: what it has and did not say yet that it received.
        self._given: dict[str, dict[int, Delivery]] = {}
        self._sent: dict[str, dict[int, Delivery]] = {}
        self._lives: dict[int, str] = {}  # those of the hosts to which things were sent
        self._taken_in_doubt = DoubtfulDeliveries(spaces.find)
        self._moved_in_doubt = DoubtfulDeliveries(spaces.find)
        core.all_doubts |= {self._taken_in_doubt, self._moved_in_doubt}
        self._recovered: set[str] = set()
        self.listings = Listings()
        """What other hosts are told, or given, in windows."""

    def next_token(self) -> int:
        self._token += 1
        return self._token

    def recover(self, tuple_store: TupleStore) -> None:
        """What was in other hosts' hands when this host crashed."""
        if tuple_store.name in self._recovered:
            return
        self._recovered.add(tuple_store.name)
        for delivery in tuple_store.engine.deliveries_in_doubt():
            holder = delivery.holder
            if holder.kind in (TAKEN, MOVED):
                taken = holder.kind == TAKEN
                doubts = self._taken_in_doubt if taken else self._moved_in_doubt
                doubts.leave(holder.who, {holder.call: delivery})
                self._lives[holder.call] = holder.incarnation

    def holder(self, kind: HolderKind, host: str, token: int) -> Holder:
        """The holder of what goes to a host."""
        return Holder(kind, host, self._spaces.directory.life_of(host), token)

    # Taking from another host

    async def take(self, host: str, pattern: TuplePattern, taken: list[Entry]) -> None:
        """Add to `taken` what this host has for the pattern at this time, window by window.
        PeerLost if it is cut off: what it gave and we did not get will return there."""
        number = self.next_token()
        more = True
        try:
            while more:
                window, more = await self._take_window(host, number, pattern)
                taken += window
        except UnknownHost:  # It is not in the group any more.
            return
        finally:
            if more:
                self._voice.send(host, Release(number))

    async def _take_window(
        self, host: str, number: int, pattern: TuplePattern
    ) -> tuple[list[Entry], bool]:
        token = self.next_token()
        answer = await self._voice.ask(host, Take(token, number, pattern))
        now = self._core.clock.now()
        given, more = read(answer, tuple[list[PlacedTuple], bool])
        entries = [placed.entry.read(now) for placed in given]
        if not entries:
            return [], more
        try:
            for entry in entries:
                require_known(entry)
        except UnknownType:
            self._voice.send(host, Release(token))
            raise
        self._received.add(token)
        self._voice.send(host, ConfirmTake(token))
        return entries, more

    async def give(self, neighbour: str, source: str, message: Take) -> Any:
        """Reserve what another host asks for, and hand it over."""
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
        self._given.setdefault(source, {})[message.token] = delivery
        return encode([[window[entry] for entry in delivery.entries], more])

    def may(
        self, neighbour: str, operation: str, tuple_store: TupleStore, source: str | None = None
    ) -> bool:
        """May this be done for whoever is behind this neighbour, and for the host `source`, if it
        is known which that is?"""
        return self._core.may(operation, tuple_store.name, neighbour, source or neighbour)

    def confirmed(self, source: str, message: ConfirmTake) -> None:
        held = self._given.get(source, {}).pop(message.token, None)
        if held is not None:
            confirm(self._spaces.find(held.space), held)

    def released(self, source: str, message: Release) -> None:
        self.listings.release(source, message.token)
        held = self._given.get(source, {}).pop(message.token, None)
        if held is not None:
            give_back(self._spaces.find(held.space), held)

    # Moving to another host

    async def move(self, parcel: TupleBatch) -> None:
        """Let these tuples be at another host from now on. If it does not want them they are here;
        if it is cut off it will be known later."""
        tuple_store, host, token, held, position = parcel
        now = self._core.clock.now()
        message = MoveTuples(
            token, tuple_store.name, [carried(entry, now) for entry in held.entries]
        )
        try:
            await tuple_store.flush(position)
        except BaseException:
            give_back(tuple_store, held)
            raise
        self._sent.setdefault(host, {})[token] = held
        self._lives[token] = self._spaces.directory.life_of(host)
        try:
            accepted = await self._voice.ask(host, message)
        except (BadFrame, CannotSend, UnknownHost):  # It was not understood, or never asked.
            accepted = False
        except PeerLost as error:
            if error.in_doubt:
                return
            accepted = False
        except TupeloError as error:  # It may have it all the same.
            logger.warning("whether %s has what was sent there is in doubt: %s", host, error)
            return
        if self._sent.get(host, {}).pop(token, None) is not None:
            self._lives.pop(token, None)
            if accepted is True:
                confirm(tuple_store, held)
            else:
                sharers = self._spaces.directory.sharers(tuple_store.name)
                if sharers.get(home_of(held.entries[0])) == host:
                    self._spaces.refused.add(
                        (tuple_store.name, host)
                    )  # or it would be tried for ever
                give_back(tuple_store, held)

    async def arrive(self, neighbour: str, source: str, message: MoveTuples) -> bool:
        """Let tuples in that are at home here."""
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
        with suppress(HostClosed):  # They are here all the same.
            await self._announce(tuple_store)
        return True

    # When the group changes

    def cut(self, hosts: Collection[str]) -> None:
        """Who has something of ours, and is out of reach, is in doubt."""
        self.listings.cut(hosts)
        for host in hosts:
            self._taken_in_doubt.leave(host, self._given.pop(host, {}))
            self._moved_in_doubt.leave(host, self._sent.pop(host, {}))

    def install(self, hosts: Collection[str]) -> None:
        """These hosts take part in the membership that is in force."""
        self.listings.clear()
        self.cut([host for host in {**self._given, **self._sent} if host not in hosts])

    def unsettled(self, hosts: Iterable[str]) -> list[str]:
        """Those of these hosts of whom it is not known what they have received."""
        pending = {
            *(host for host, given in self._given.items() if given),
            *(host for host, sent in self._sent.items() if sent),
            *self._taken_in_doubt.owners(),
            *self._moved_in_doubt.owners(),
        }
        return sorted(host for host in hosts if host in pending)

    def put_aside_for(self, host: str) -> list[Delivery]:
        """What was given or sent to a host, which is not known to be there."""
        return [
            *self._given.get(host, {}).values(),
            *self._sent.get(host, {}).values(),
            *self._taken_in_doubt.of(host).values(),
            *self._moved_in_doubt.of(host).values(),
        ]

    async def ask_which(self, host: str) -> None:
        """Learn what this host has received, and settle everything with it."""
        taken = {**self._given.get(host, {}), **self._taken_in_doubt.of(host)}
        moved = {**self._sent.get(host, {}), **self._moved_in_doubt.of(host)}
        asked = [self._moved(token, held) for token, held in moved.items()]
        message = Which(list(taken), asked)
        try:
            answer = await self._voice.ask(host, message)
        except TupeloError:  # It is cut off again, or takes no part.
            return
        has_taken, has_moved = read(answer, tuple[list[int], list[int]])
        self._taken_in_doubt.leave(host, self._given.pop(host, {}))
        self._moved_in_doubt.leave(host, self._sent.pop(host, {}))
        self._taken_in_doubt.back(host, has_taken)
        self._moved_in_doubt.back(host, has_moved)
        for token in moved:
            self._lives.pop(token, None)

    def _moved(self, token: int, held: Delivery) -> Moved:
        entry = held.entries[0]
        life = self._lives.get(token, "")
        return Moved(token, life, held.space, entry.origin, entry.n)

    def which(self, source: str, message: Which) -> Any:
        arrived = self._arrived.get(source, BitMap64())
        return [
            [token for token in message.taken if token in self._received],
            [one.token for one in message.moved if one.token in arrived or self._outlived(one)],
        ]

    def _outlived(self, moved: Moved) -> bool:
        """Whether this came in an earlier life of this host, and is on its disk."""
        return moved.incarnation != self._core.incarnation and self._spaces.was_accepted(
            moved.space, moved.origin, moved.n
        )

    def close(self) -> None:
        """What is still in doubt is left to the host."""
        self.cut([*self._given, *self._sent])
        for kind, doubts in ((TAKEN, self._taken_in_doubt), (MOVED, self._moved_in_doubt)):
            for host in doubts.owners():
                self._core.doubts.leave((kind, host), dict(doubts.of(host)))
            doubts.close()
            self._core.all_doubts.discard(doubts)


def heaps_of(entries: Iterable[Entry]) -> list[list[Entry]]:
    """In heaps that fit a message; what has no encoding cannot be sent, and is in none."""
    heaps: list[list[Entry]] = []
    size = 0
    for entry in entries:
        with suppress(BadEntry):
            length = len(carried(entry, 0.0).payload)
            if not heaps or size + length > WINDOW_BYTES or len(heaps[-1]) >= WINDOW_MAX:
                heaps.append([])
                size = 0
            heaps[-1].append(entry)
            size += length
    return heaps


class TuplesToMove:
    """Moves what is misplaced at one host: a tuple that is for an agent goes to the host where that
    agent shares the space. Until then it is here, and may be read and taken here, like any other.
    When the group has changed, all that can go home does so before operations go on."""

    def __init__(self, spaces: Spaces, handover: TupleTransfer) -> None:
        self._spaces = spaces
        self._handover = handover

    def gather(self) -> list[TupleBatch]:
        """Take all that is misplaced, and could be at home, out of sight."""
        return [parcel for tuple_store in self._spaces for parcel in self._gather(tuple_store)]

    async def tidy(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        """If some of these, which have come into sight here, are at home elsewhere, they go."""
        if any(tuple_store.away(entry) for entry in entries):
            await self.send(self._gather(tuple_store))

    def pass_on(
        self, tuple_store: TupleStore, entries: list[Entry]
    ) -> tuple[list[Entry], list[TupleBatch]]:
        """Of tuples that are to be on this tuple store: those that stay, and those that go on at
        once, and are never seen here."""
        parcels = []
        for host, heap in _sorted(tuple_store, entries):
            token = self._handover.next_token()
            parcels.append(TupleBatch(tuple_store, host, token, UnstoredTuples(tuple_store, heap)))
        going = {entry for parcel in parcels for entry in parcel.held.entries}
        return [entry for entry in entries if entry not in going], parcels

    def _gather(self, tuple_store: TupleStore) -> list[TupleBatch]:
        heaps = _sorted(tuple_store, tuple_store.entries())
        parcels = [self._put_aside(tuple_store, host, heap) for host, heap in heaps]
        return [parcel for parcel in parcels if parcel is not None]

    def _put_aside(
        self, tuple_store: TupleStore, host: str, entries: list[Entry]
    ) -> TupleBatch | None:
        token = self._handover.next_token()
        holder = self._handover.holder(MOVED, host, token)
        delivery, position = tuple_store.engine.put_aside(entries, holder)
        if delivery is None:  # Someone holds them, or was faster.
            return None
        return TupleBatch(tuple_store, host, token, delivery, position)

    async def send(self, parcels: list[TupleBatch]) -> None:
        """To all hosts at once, to each in order. If this is cut short, what was not sent is here
        again."""
        by_host: dict[str, list[TupleBatch]] = {}
        for parcel in parcels:
            by_host.setdefault(parcel.host, []).append(parcel)
        try:
            await asyncio.gather(*map(self._send, by_host.values()))
        finally:
            for unsent in by_host.values():
                for parcel in unsent:
                    give_back(parcel.tuple_store, parcel.held)

    async def _send(self, parcels: list[TupleBatch]) -> None:
        while parcels:
            await self._handover.move(parcels.pop(0))


def _sorted(tuple_store: TupleStore, entries: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """What is at home elsewhere and can be sent, in heaps for each host."""
    going: dict[str, list[Entry]] = {}
    for entry in entries:
        host = tuple_store.away(entry)
        if host is not None:
            going.setdefault(host, []).append(entry)
    return [(host, heap) for host in going for heap in heaps_of(going[host])]


Relocated = dict[TupleStore, list[Entry]]
"""Tuples that were here before, and are with another agent now."""


class Sharing:
    """Brings into force, at one host, what its metadata says."""

    def __init__(
        self, spaces: Spaces, reactions: Reactions, handover: TupleTransfer, moving: TuplesToMove
    ) -> None:
        self._spaces = spaces
        self._reactions = reactions
        self._handover = handover
        self._moving = moving

    def install(
        self, agents: Mapping[str, AgentState], metadata_of: Mapping[str, AgentCard]
    ) -> tuple[list[TupleBatch], Relocated]:
        """Let exactly that be shared what the metadata of the agents here say. What is at home
        elsewhere goes there at once."""
        wanted = {(agent, space) for agent in metadata_of for space in metadata_of[agent].shared}
        for sharing in list(self._spaces.sharing.values()):
            for its in list(sharing.values()):
                if (its.agent.id, its.name) not in wanted:
                    self._unshare(its)
        return self._share(coming(agents, metadata_of))

    def _unshare(self, its: InterfaceSpace) -> None:
        self._reactions.displace(its)
        self._spaces.unshare(its)
        its.end_waiting()
        if not its.agent.ended:
            self._reactions.replace(its)

    def _share(self, coming: list[InterfaceSpace]) -> tuple[list[TupleBatch], Relocated]:
        """All of them at once: what each agent is responsible for is known before anything is
        there for reactions to see."""
        parcels: list[TupleBatch] = []
        relocated: Relocated = {}
        contents = [its.own.take_out(lambda entry: True) for its in coming]
        before = set(self._spaces.sharing)
        for its in coming:
            self._reactions.displace(its)
            self._spaces.share(its)
            self._handover.recover(its.tuple_store)
        for its in coming:
            held = _held_by(its.tuple_store, its.agent.id if its.name in before else None)
            relocated.setdefault(its.tuple_store, []).extend(held)
        for its, entries in zip(coming, contents, strict=True):
            stay, going = self._moving.pass_on(its.tuple_store, entries)
            its.tuple_store.put(stay)
            parcels += going
        for tuple_store, entries in relocated.items():
            self._reactions.catch_up(tuple_store, entries)
        for its in coming:
            self._reactions.replace(its)
        return parcels, relocated


def coming(
    agents: Mapping[str, AgentState], metadata_of: Mapping[str, AgentCard]
) -> list[InterfaceSpace]:
    """What these metadata share, and is not shared yet."""
    wanted = sorted((agent, space) for agent in metadata_of for space in metadata_of[agent].shared)
    spaces = [agents[agent].spaces[space] for agent, space in wanted if agent in agents]
    return [its for its in spaces if not its.shared]


def _held_by(tuple_store: TupleStore, agent: str | None) -> list[Entry]:
    """What is with this agent on the tuple store; with None all that is there, as when other doors
    have written in a space that nobody has shared before."""
    return [
        entry
        for entry in tuple_store.entries()
        if agent is None or tuple_store.current(entry) == agent
    ]
