"""A membership: the hosts of a group, the metadata of each, and the tree for their messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

MembershipId = tuple[int, str]
"""The number of the round, and the host and incarnation that began it. Each new membership of a
host has a greater id than the one before."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A host of the group. Each of its parts publishes metadata, which every member can read."""

    host: str
    name: str
    incarnation: str
    metadata_of: dict[str, Any]


class Membership:
    """One agreed state of a group, the same at all its hosts. `edges` are those of the tree."""

    def __init__(
        self,
        membership_id: MembershipId,
        members: Iterable[Member],
        edges: Iterable[tuple[str, str]],
    ) -> None:
        self.id = membership_id
        self.members = {one.host: one for one in sorted(members, key=lambda one: one.host)}
        self.edges = sorted(edges)
        self._neighbours: dict[str, list[str]] = {host: [] for host in self.members}
        for one, other in self.edges:
            self._neighbours[one].append(other)
            self._neighbours[other].append(one)
        self._sides: dict[str, dict[str, frozenset[str]]] = {}
        self._ways: dict[str, dict[str, str]] = {}

    def neighbours(self, host: str) -> list[str]:
        """The neighbours of this host in the tree."""
        return self._neighbours.get(host, [])

    def toward(self, me: str, host: str) -> str | None:
        """The neighbour of `me` on the path to this host; None for `me` and for unknown hosts."""
        if me not in self._ways:
            self._ways[me] = {
                host: neighbour
                for neighbour in self.neighbours(me)
                for host in self.beyond(me, neighbour)
            }
        return self._ways[me].get(host)

    def beyond(self, me: str, neighbour: str) -> frozenset[str]:
        """The hosts that `me` reaches over this neighbour, the neighbour included."""
        if me not in self._sides:
            self._sides[me] = {side: self._side(me, side) for side in self.neighbours(me)}
        return self._sides[me].get(neighbour, frozenset())

    def _side(self, me: str, neighbour: str) -> frozenset[str]:
        found = {me, neighbour}
        ahead = [neighbour]
        while ahead:
            for host in self.neighbours(ahead.pop()):
                if host not in found:
                    found.add(host)
                    ahead.append(host)
        return frozenset(found - {me})

    def __repr__(self) -> str:
        return f"<Membership {self.id[0]} of {', '.join(self.members)}>"
