"""Sharing: which interface tuple spaces are part of the host's tuple store, and which tuples go to
another host when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from tupelo.federation.spaces.doubts import give_back
from tupelo.models.lime.directory import AgentCard
from tupelo.models.lime.reactions import Reactions
from tupelo.models.lime.spaces import AgentState, InterfaceSpace, Spaces, TupleStore
from tupelo.models.lime.transfer import (
    MOVED,
    TupleBatch,
    TupleTransfer,
    UnstoredTuples,
    heaps_of,
)
from tupelo.values.entry import Entry


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
