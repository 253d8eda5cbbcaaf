"""Hosts on a virtual network, each engaged with some of the others, and their groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from tests.virtual import VirtualFederation, VirtualLoop, WorldHost
from tests.virtual import play as play_virtually
from tupelo.federation.groups.group import Group, PartSender, group_of
from tupelo.federation.groups.membership import Membership
from tupelo.lab.virtual_world import HEARTBEAT_SECONDS

__all__ = ["HEARTBEAT_SECONDS", "GroupTown", "Neighbourhood", "Resident", "play"]

PART = "test"


class Recorder:
    """A part of a group that writes down what it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: Any = 0
        self.memberships: list[Membership] = []
        self.settled: list[Membership] = []
        self.abandoned: list[Membership] = []
        self.heard_bodies: list[tuple[str, str, Any]] = []
        self.cut_hosts: list[frozenset[str]] = []
        self.on_install: Callable[[Membership], object] | None = None
        self.on_settle: Callable[[Membership], Awaitable[None]] | None = None
        self.on_asked: Callable[[str, Any], Awaitable[Any]] | None = None
        self.on_heard: Callable[[str, Any], None] | None = None

    def metadata(self) -> Any:
        return self.value

    def install(self, membership: Membership) -> None:
        self.memberships.append(membership)
        if self.on_install is not None:
            self.on_install(membership)

    async def settle(self, membership: Membership) -> None:
        try:
            if self.on_settle is not None:
                await self.on_settle(membership)
        except asyncio.CancelledError:
            self.abandoned.append(membership)
            raise
        self.settled.append(membership)

    def heard(self, neighbour: str, source: str, body: Any) -> None:
        self.heard_bodies.append((neighbour, source, body))
        if self.on_heard is not None:
            self.on_heard(neighbour, body)

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        if self.on_asked is not None:
            return await self.on_asked(source, body)
        return [self.name, source, body]

    def cut(self, hosts: frozenset[str]) -> None:
        self.cut_hosts.append(hosts)


class Resident(WorldHost):
    """One host, its group, and a part of the group."""

    group: Group
    part: Recorder
    voice: PartSender

    def prepare(self) -> None:
        self.group = group_of(self.core)
        self.part = Recorder(self.name)
        self.voice = self.group.part(PART, self.part)

    async def leave(self) -> None:
        if self.is_up:
            await self.do(self.core.stop())
            await asyncio.sleep(0.1)  # until its goodbyes have arrived
        await super().leave()

    def members(self) -> str:
        return "".join(self.group.membership.members)

    def metadata_of(self) -> dict[str, Any]:
        return {
            host: one.metadata_of.get(PART) for host, one in self.group.membership.members.items()
        }


R = TypeVar("R", bound=Resident)


class GroupTown(VirtualFederation[R]):
    """Hosts in groups."""

    async def agreed(self, *groups: str) -> None:
        """Wait until these are the groups, and operations go on in each."""
        if not await self.wait_for(lambda: all(map(self.is_agreed, groups))):
            found = {one.name: one.group.membership for one in self.members if one.is_up}
            raise AssertionError(f"they do not agree on {groups}: {found}")

    def is_agreed(self, names: str) -> bool:
        residents = [self[name] for name in names]
        return (
            all(one.members() == "".join(sorted(names)) for one in residents)
            and len({one.group.membership.id for one in residents}) == 1
            and not any(one.group.halted for one in residents)
        )


class Neighbourhood(GroupTown[Resident]):
    """Hosts in groups, whose parts are recorders."""

    def __init__(self, loop: VirtualLoop, edges: Iterable[str], names: str = "") -> None:
        super().__init__(loop, Resident, edges, names)


def play(
    scene: Callable[[Neighbourhood], Awaitable[None]],
    *edges: str,
    names: str = "",
    seed: int = 1,
) -> None:
    """A scene with hosts that are engaged as these pairs say ("ab": a dials b)."""
    play_virtually(lambda loop: Neighbourhood(loop, edges, names), scene, seed)
