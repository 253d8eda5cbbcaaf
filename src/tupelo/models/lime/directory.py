"""The directory: who is where in the group, and shares what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tupelo.federation.groups.roster import Membership


class AgentCard(msgspec.Struct, frozen=True, array_like=True):
    """What everyone knows of an agent."""

    class_name: str | None
    state: str
    shared: list[str]


class Directory:
    """Who is where in one roster, of those who take part under a name, and what they share now. A
    host that says what cannot be read is there without agents."""

    def __init__(self, roster: Membership | None = None, part: str = "") -> None:
        members = {} if roster is None else roster.members
        cards = {host: one.cards.get(part) for host, one in members.items()}
        self.cards = {host: _read(card) for host, card in cards.items() if card is not None}
        self.hosts = {host: members[host].name for host in self.cards}
        self._lives = {host: members[host].incarnation for host in self.cards}
        self._index()

    def with_card(self, host: str, card: Any) -> Directory:
        """The same, but for what this host, which takes part, says of its agents."""
        renewed = Directory()
        renewed.cards = {**self.cards, host: _read(card)}
        renewed.hosts, renewed._lives = self.hosts, self._lives
        renewed._index()
        return renewed

    def _index(self) -> None:
        self._where: dict[str, str] = {}
        self._sharers: dict[str, dict[str, str]] = {}
        for host, agents in self.cards.items():
            for agent, card in agents.items():
                self._where[agent] = host
                for space in card.shared:
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
        for host, agents in self.cards.items():
            for agent, card in agents.items():
                said.append(("agent", agent, host, card.state))
                said += [("space", space, agent, host) for space in card.shared]
        return said

    def departures(self) -> list[tuple[str, ...]]:
        """What LimeSystem says of those who are here when they have departed."""
        hosts = [("departed host", host, name) for host, name in self.hosts.items()]
        return [*hosts, *(("departed agent", agent, host) for agent, host in self._where.items())]


def _read(card: Any) -> dict[str, AgentCard]:
    try:
        return msgspec.convert(card, dict[str, AgentCard])
    except msgspec.ValidationError:
        return {}
