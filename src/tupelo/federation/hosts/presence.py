"""Presence: the hosts, agents and spaces that are, or were, here and elsewhere, as entries of a
space of their own, which can be read and subscribed to and which only the host itself writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tupelo.space import blocking
from tupelo.space.clock import Clock
from tupelo.values.kind import entry

SYSTEM = "tupelo.presence"
"""The name of the space in which it can be read, at every host."""


@entry("tupelo.host")
@dataclass(frozen=True)
class HostPresence:
    """A host: "engaged", or "departed"; then `how` says whether it said "goodbye", was "closed"
    (its process was killed, or the connection broken), or fell "silent"."""

    id: str | None = None
    name: str | None = None
    address: str | None = None
    state: str | None = None
    how: str | None = None
    since: float | None = None


@entry("tupelo.agent")
@dataclass(frozen=True)
class AgentPresence:
    """An agent at an engaged host; it is taken away when it, or its host, departs."""

    id: str | None = None
    host: str | None = None


@entry("tupelo.space")
@dataclass(frozen=True)
class SpacePresence:
    """A space of an engaged host."""

    name: str | None = None
    host: str | None = None


class Presence:
    """What one host knows of itself and of the others."""

    def __init__(self, clock: Clock, space: blocking.Space) -> None:
        self.space = space
        self._clock = clock
        self._there: dict[str, set[Any]] = {}

    def engaged(self, host_id: str, name: str, address: str) -> None:
        self._replace_host(host_id, name, address, "engaged", "")

    def departed(self, host_id: str, name: str, address: str, how: str) -> None:
        self.has(host_id, [], [])
        self._replace_host(host_id, name, address, "departed", how)

    def _replace_host(self, host_id: str, name: str, address: str, state: str, how: str) -> None:
        with self.space.transaction() as txn:
            self.space.take_all(HostPresence(id=host_id), txn=txn)
            now = self._clock.now()
            self.space.write(HostPresence(host_id, name, address, state, how, now), txn=txn)

    def came(self, host_id: str, agent: str) -> None:
        """One more agent is at this host."""
        thing = AgentPresence(agent, host_id)
        there = self._there.setdefault(host_id, set())
        if thing not in there:
            there.add(thing)
            self.space.write(thing)

    def left(self, host_id: str, agent: str) -> None:
        thing = AgentPresence(agent, host_id)
        there = self._there.get(host_id, set())
        if thing in there:
            there.remove(thing)
            self.space.take(thing, wait=0)

    def has(self, host_id: str, spaces: list[str], agents: list[str]) -> None:
        """This host now has these spaces and agents, and no others."""
        wanted: set[Any] = {SpacePresence(name, host_id) for name in spaces}
        wanted |= {AgentPresence(agent, host_id) for agent in agents}
        there = self._there.get(host_id, set())
        if wanted == there:
            return
        with self.space.transaction() as txn:
            if wanted:
                for thing in sorted(there - wanted, key=repr):
                    self.space.take(thing, wait=0, txn=txn)
            else:  # It has departed: all at once, for there may be many.
                self.space.take_all(SpacePresence(host=host_id), txn=txn)
                self.space.take_all(AgentPresence(host=host_id), txn=txn)
            self.space.write_all(sorted(wanted - there, key=repr), txn=txn)
        self._there[host_id] = wanted
        if not wanted:
            del self._there[host_id]
