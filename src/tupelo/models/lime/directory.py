"""The directory: who is where in the group, and shares what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tupelo.federation.groups.membership import Membership


class AgentCard(msgspec.Struct, frozen=True, array_like=True):
    """What everyone knows of an agent."""

    class_name: str | None
    state: str
    shared: list[str]


class Directory:
    """Who is where in one membership, of those who take part under a name, and what they share now.
    A host that says what cannot be read is there without agents."""

    def __init__(self, membership: Membership | None = None, part: str = "") -> None:
        members = {} if membership is None else membership.members
        metadata_of = {host: one.metadata_of.get(part) for host, one in members.items()}
        self.metadata_of = {
            host: _read(metadata) for host, metadata in metadata_of.items() if metadata is not None
        }
        self.hosts = {host: members[host].name for host in self.metadata_of}
        self._lives = {host: members[host].incarnation for host in self.metadata_of}
        self._index()

    def with_metadata(self, host: str, metadata: Any) -> Directory:
        """The same, but for what this host, which takes part, says of its agents."""
        renewed = Directory()
        renewed.metadata_of = {**self.metadata_of, host: _read(metadata)}
        renewed.hosts, renewed._lives = self.hosts, self._lives
        renewed._index()
        return renewed

    def _index(self) -> None:
        self._where: dict[str, str] = {}
        self._sharers: dict[str, dict[str, str]] = {}
        for host, agents in self.metadata_of.items():
            for agent, metadata in agents.items():
                self._where[agent] = host
                for space in metadata.shared:
                    self._sharers.setdefault(space, {})[agent] = host

    def life_of(self, host: str) -> str:
        """The life that this host is in; none, if it is not in the group."""
        return self._lives.get(host, "")

    def host_of(self, agent: str) -> str | None:
        """The host where an agent is."""
        return self._where.get(agent)

    @property
    def agents(self) -> Mapping[str, str]:
        """The hosts of all agents."""
        return self._where

    def sharers(self, space: str) -> Mapping[str, str]:
        """The hosts of all agents that share this space."""
        return self._sharers.get(space, {})

    def tuples(self) -> list[tuple[str, ...]]:
        """What LimeSystem says."""
        said: list[tuple[str, ...]] = [("host", host, self.hosts[host]) for host in self.hosts]
        for host, agents in self.metadata_of.items():
            for agent, metadata in agents.items():
                said.append(("agent", agent, host, metadata.state))
                said += [("space", space, agent, host) for space in metadata.shared]
        return said

    def departures(self) -> list[tuple[str, ...]]:
        """What LimeSystem says of those who are here when they have departed."""
        hosts = [("departed host", host, name) for host, name in self.hosts.items()]
        return [*hosts, *(("departed agent", agent, host) for agent, host in self._where.items())]


def _read(metadata: Any) -> dict[str, AgentCard]:
    try:
        return msgspec.convert(metadata, dict[str, AgentCard])
    except msgspec.ValidationError:
        return {}
