"""Sharing: which interface tuple spaces are part of the host's ground, and which tuples go to
another host when that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from tupelo.federation.spaces.doubts import give_back
from tupelo.models.lime.directory import AgentCard
from tupelo.models.lime.handover import MOVED, TupleBatch, TupleTransfer, heaps_of, in_no_ground
from tupelo.models.lime.reactions import Reactions
from tupelo.models.lime.spaces import AgentState, InterfaceSpace, Spaces, TupleStore
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
        return [parcel for ground in self._spaces for parcel in self._gather(ground)]

    async def tidy(self, ground: TupleStore, entries: list[Entry]) -> None:
        """If some of these, which have come into sight here, are at home elsewhere, they go."""
        if any(ground.away(entry) for entry in entries):
            await self.send(self._gather(ground))

    def pass_on(
        self, ground: TupleStore, entries: list[Entry]
    ) -> tuple[list[Entry], list[TupleBatch]]:
        """Of tuples that are to be on this ground: those that stay, and those that go on at once,
        and are never seen here."""
        parcels = []
        for host, heap in _sorted(ground, entries):
            token = self._handover.next_token()
            parcels.append(TupleBatch(ground.hosted, host, token, in_no_ground(ground, heap)))
        going = {entry for parcel in parcels for entry in parcel.held.entries}
        return [entry for entry in entries if entry not in going], parcels

    def _gather(self, ground: TupleStore) -> list[TupleBatch]:
        heaps = _sorted(ground, ground.port.entries())
        parcels = [self._put_aside(ground, host, heap) for host, heap in heaps]
        return [parcel for parcel in parcels if parcel is not None]

    def _put_aside(self, ground: TupleStore, host: str, entries: list[Entry]) -> TupleBatch | None:
        token = self._handover.next_token()
        holder = self._handover.holder(MOVED, host, token)
        delivery, position = ground.port.put_aside(entries, holder)
        if delivery is None:  # Someone holds them, or was faster.
            return None
        return TupleBatch(ground.hosted, host, token, delivery, position)

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
                    give_back(parcel.hosted, parcel.held)

    async def _send(self, parcels: list[TupleBatch]) -> None:
        while parcels:
            await self._handover.move(parcels.pop(0))


def _sorted(ground: TupleStore, entries: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """What is at home elsewhere and can be sent, in heaps for each host."""
    going: dict[str, list[Entry]] = {}
    for entry in entries:
        host = ground.away(entry)
        if host is not None:
            going.setdefault(host, []).append(entry)
    return [(host, heap) for host in going for heap in heaps_of(going[host])]


Relocated = dict[TupleStore, list[Entry]]
"""Tuples that were here before, and are with another agent now."""


class Sharing:
    """Brings into force, at one host, what its card says."""

    def __init__(
        self, spaces: Spaces, reactions: Reactions, handover: TupleTransfer, moving: TuplesToMove
    ) -> None:
        self._spaces = spaces
        self._reactions = reactions
        self._handover = handover
        self._moving = moving

    def install(
        self, agents: Mapping[str, AgentState], cards: Mapping[str, AgentCard]
    ) -> tuple[list[TupleBatch], Relocated]:
        """Let exactly that be shared what the cards of the agents here say. What is at home
        elsewhere goes there at once."""
        wanted = {(agent, space) for agent in cards for space in cards[agent].shared}
        for sharing in list(self._spaces.sharing.values()):
            for its in list(sharing.values()):
                if (its.agent.id, its.name) not in wanted:
                    self._unshare(its)
        return self._share(coming(agents, cards))

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
            self._handover.recover(its.ground.hosted)
        for its in coming:
            held = _held_by(its.ground, its.agent.id if its.name in before else None)
            relocated.setdefault(its.ground, []).extend(held)
        for its, entries in zip(coming, contents, strict=True):
            stay, going = self._moving.pass_on(its.ground, entries)
            its.ground.put(stay)
            parcels += going
        for ground, entries in relocated.items():
            self._reactions.catch_up(ground, entries)
        for its in coming:
            self._reactions.replace(its)
        return parcels, relocated


def coming(
    agents: Mapping[str, AgentState], cards: Mapping[str, AgentCard]
) -> list[InterfaceSpace]:
    """What these cards share, and is not shared yet."""
    wanted = sorted((agent, space) for agent in cards for space in cards[agent].shared)
    spaces = [agents[agent].spaces[space] for agent, space in wanted if agent in agents]
    return [its for its in spaces if not its.shared]


def _held_by(ground: TupleStore, agent: str | None) -> list[Entry]:
    """What is with this agent on the ground; with None all that is there, as when other doors have
    written in a space that nobody has shared before."""
    with ground.hosted.port.atomic():
        store = ground.port.entries()
    return [entry for entry in store if agent is None or ground.current(entry) == agent]
