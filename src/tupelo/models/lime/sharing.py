"""Sharing: which interface tuple spaces are part of the host's ground, and what that changes."""

from __future__ import annotations

from collections.abc import Mapping

from tupelo.models.lime.directory import AgentCard
from tupelo.models.lime.handover import HandOver, Parcel
from tupelo.models.lime.moving import Moving
from tupelo.models.lime.reactions import Reactions
from tupelo.models.lime.spaces import AgentState, Ground, Its, Spaces
from tupelo.values.entry import Entry

Relocated = dict[Ground, list[Entry]]
"""Tuples that were here before, and are with another agent now."""


class Sharing:
    """Brings into force, at one host, what its card says."""

    def __init__(
        self, spaces: Spaces, reactions: Reactions, handover: HandOver, moving: Moving
    ) -> None:
        self._spaces = spaces
        self._reactions = reactions
        self._handover = handover
        self._moving = moving

    def install(
        self, agents: Mapping[str, AgentState], cards: Mapping[str, AgentCard]
    ) -> tuple[list[Parcel], Relocated]:
        """Let exactly that be shared what the cards of the agents here say. What is at home
        elsewhere goes there at once."""
        wanted = {(agent, space) for agent in cards for space in cards[agent].shared}
        for sharing in list(self._spaces.sharing.values()):
            for its in list(sharing.values()):
                if (its.agent.id, its.name) not in wanted:
                    self._unshare(its)
        coming = []
        for agent, space in sorted(wanted):
            if agent in agents and not agents[agent].spaces[space].shared:
                coming.append(agents[agent].spaces[space])
        return self._share(coming)

    def _unshare(self, its: Its) -> None:
        self._reactions.displace(its)
        self._spaces.unshare(its)
        its.end_waiting()
        if not its.agent.ended:
            self._reactions.replace(its)

    def _share(self, coming: list[Its]) -> tuple[list[Parcel], Relocated]:
        """All of them at once: what each agent is responsible for is known before anything is
        there for reactions to see."""
        parcels: list[Parcel] = []
        relocated: Relocated = {}
        contents = [its.own.take_out(lambda entry: True) for its in coming]
        for its in coming:
            self._reactions.displace(its)
            self._spaces.share(its)
            self._handover.recover(its.ground.hosted)
        for its in coming:
            relocated.setdefault(its.ground, []).extend(_held_by(its.ground, its.agent.id))
        for its, entries in zip(coming, contents, strict=True):
            stay, going = self._moving.pass_on(its.ground, entries)
            its.ground.put(stay)
            parcels += going
        for ground, entries in relocated.items():
            self._reactions.catch_up(ground, entries)
        for its in coming:
            self._reactions.replace(its)
        return parcels, relocated


def _held_by(ground: Ground, agent: str) -> list[Entry]:
    """What is with this agent on the ground."""
    with ground.hosted.engine.lock:
        store = list(ground.operations.core.store)
    return [entry for entry in store if ground.current(entry) == agent]
