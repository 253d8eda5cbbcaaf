"""Presence: the hosts, agents and spaces that are here and at engaged hosts, as entries of a system
space that can be read and subscribed to. Only the host itself writes them.

If the host has a folder the space is durable, for its log, which says when each host was engaged
and departed. Its entries are removed when the host starts again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from tupelo.errors import JournalError
from tupelo.federation.names import is_reserved
from tupelo.space import blocking
from tupelo.space.clock import Clock
from tupelo.space.port import port_of
from tupelo.values.kind import entry

# If the disk refuses, the space is closed and says so to those who read it; the host goes on.
_QUIETLY = suppress(JournalError)


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
    """An agent at an engaged host; the entry is removed when the agent or its host departs. `name`
    is the one that it has given itself, or "": a label, which proves nothing. A program with
    several connections has an entry for each name."""

    id: str | None = None
    host: str | None = None
    name: str | None = None


@entry("tupelo.space")
@dataclass(frozen=True)
class SpacePresence:
    """A space of an engaged host."""

    name: str | None = None
    host: str | None = None


class PresenceBoard:
    """Writes the presence entries of one host."""

    def __init__(self, clock: Clock, space: blocking.Space) -> None:
        self.space = space
        self._port = port_of(space)
        self._clock = clock
        self._there: dict[str, set[Any]] = {}
        with _QUIETLY:
            self._part_from_all("closed")  # as they did when this host's last life ended
            space.take_all()

    def engaged(self, host_id: str, name: str, address: str) -> None:
        """A host was engaged, or this one has started."""
        self._replace_host(host_id, name, address, "engaged", "")

    def departed(self, host_id: str, name: str, address: str, how: str) -> None:
        """A host was lost; `how` says in which way."""
        self.set_contents(host_id, [], [])
        self._replace_host(host_id, name, address, "departed", how)

    def _replace_host(
        self,
        host_id: str,
        name: str,
        address: str,
        state: Literal["engaged", "departed"],
        how: str,
    ) -> None:
        with _QUIETLY:
            with self.space.transaction() as txn:
                self.space.take_all(HostPresence(id=host_id), txn=txn)
                now = self._clock.now()
                thing = HostPresence(host_id, name, address, state, how, now)
                written = self.space.write(thing, txn=txn)
            kind: Literal["engaged", "disengaged"] = (
                "engaged" if state == "engaged" else "disengaged"
            )
            self._port.flush(self._port.remark(kind, written.thing))

    def end(self) -> None:
        """The host is closing: record that in the log, if it is durable."""
        if self._port.journaled:
            with _QUIETLY:
                self._part_from_all("goodbye")

    def _part_from_all(self, how: str) -> None:
        for host in self.space.read_all(HostPresence(state="engaged")):
            self.departed(host.id or "", host.name or "", host.address or "", how)

    def agent_joined(self, host_id: str, agent: str, name: str) -> None:
        """One more agent is at a host."""
        thing = AgentPresence(agent, host_id, name)
        there = self._there.setdefault(host_id, set())
        if thing not in there:
            there.add(thing)
            with _QUIETLY:
                self.space.write(thing)

    def agent_left(self, host_id: str, agent: str, name: str) -> None:
        """An agent has left a host."""
        thing = AgentPresence(agent, host_id, name)
        there = self._there.get(host_id, set())
        if thing in there:
            there.remove(thing)
            with _QUIETLY:
                self.space.take(thing, wait=0)

    def set_contents(self, host_id: str, spaces: list[str], agents: list[tuple[str, str]]) -> None:
        """Set the spaces of a host, and its agents with their names."""
        # What a model keeps beside a space is no space that anybody could open.
        wanted: set[Any] = {
            SpacePresence(name, host_id) for name in spaces if not is_reserved(name)
        }
        wanted |= {AgentPresence(agent, host_id, name) for agent, name in agents}
        there = self._there.get(host_id, set())
        if wanted == there:
            return
        with _QUIETLY, self.space.transaction() as txn:
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
