"""Hosts on a virtual network, with a Melon each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Set
from functools import partial
from pathlib import Path
from typing import Any

from tests.virtual import VirtualFederation, VirtualLoop, WorldHost
from tests.virtual import play as play_virtually
from tupelo.federation.hosts.doors import RunningHost
from tupelo.federation.names import companion_name
from tupelo.models.melon import Melon
from tupelo.models.melon.message_store import MessageStore, message_store_of

PATIENCE_SECONDS = 60.0
MELON = "melon"


class MelonHost(WorldHost):
    """One host, and its first Melon."""

    world: MelonWorld
    melon: Melon

    @property
    def key(self) -> str:
        assert self.identity is not None
        return self.identity.key

    @property
    def message_store(self) -> MessageStore:
        """What all Melons of this host share."""
        return message_store_of(self.core, MELON)

    @property
    def host(self) -> RunningHost:
        return self.api

    async def open(self) -> None:
        world = self.world
        self.melon = Melon(self.api, **world.melon_options | world.own.get(self.name, {}))

    async def another(self) -> Melon:
        """One more process at this host."""
        return self.call(lambda: Melon(self.host))

    async def space(self) -> Any:
        """The space of what is stored."""
        return self.host.space(MELON)

    def kept(self, kind: str) -> Any:
        """The door of the space in which MELON keeps what was "written", or is "sealed"."""
        return self.core.spaces[companion_name(kind, MELON)].door

    async def write(self, *messages: Any, **how: Any) -> None:
        for message in messages:
            await self.do(self.melon.write(message, **how))

    async def store(self, *messages: Any, **how: Any) -> None:
        for message in messages:
            await self.do(self.melon.store(message, **how))

    def read(self, template: Any, wait: float | None = 0) -> asyncio.Task[Any]:
        return self.do(self.melon.read(template, wait))

    def take(self, template: Any, wait: float | None = 0, **how: Any) -> asyncio.Task[Any]:
        return self.do(self.melon.take(template, wait, **how))

    def read_all(self, template: Any, wait: float | None = 0) -> asyncio.Task[Any]:
        return self.do(self.melon.read_all(template, wait))

    def take_all(self, template: Any, wait: float | None = 0) -> asyncio.Task[Any]:
        return self.do(self.melon.take_all(template, wait))


class MelonWorld(VirtualFederation[MelonHost]):
    """Hosts with a Melon each."""

    spaces: Set[str] = frozenset({MELON, companion_name("written", MELON)})
    """Those that each host has."""

    def __init__(
        self,
        loop: VirtualLoop,
        edges: Iterable[str],
        names: str,
        options: dict[str, Any],
        own: dict[str, dict[str, Any]],
        **town: Any,
    ) -> None:
        self.own = own
        self.melon_options = options
        super().__init__(loop, MelonHost, edges, names, **town)

    async def pause(self, seconds: float) -> None:
        """Let time pass, in which nothing should happen."""
        await asyncio.sleep(seconds)

    def soon(self, seconds: float) -> float:
        """How long to wait for what should not come."""
        return seconds

    async def promptly(self, work: Awaitable[Any]) -> Any:
        """What is there at once."""
        before = self.loop.time()
        answer = await work
        assert self.loop.time() - before < 1.0
        return answer

    async def met(self, *pairs: str) -> None:
        """Wait until these have met, and know what spaces the other has."""
        for pair in pairs:
            one, other = self[pair[0]], self[pair[1]]
            have_met = partial(self._know_each_other, one, other)
            await self.until(have_met, f"that {pair[0]} and {pair[1]} meet")

    def _know_each_other(self, one: MelonHost, other: MelonHost) -> bool:
        return self._knows(one, other) and self._knows(other, one)

    def _knows(self, one: MelonHost, other: MelonHost) -> bool:
        peer = one.core.peers.get(other.core.id)
        return peer is not None and self.spaces <= set(peer.spaces)

    async def parted(self, *groups: str) -> None:
        """From now on only those in one of these groups hear each other."""
        self.network.partition(*groups)
        of = {name: group for group in groups for name in group}
        await self.until(
            lambda: all(
                of[name] == of[peer.name]
                for name, member in self.hosts.items()
                if member.life is not None
                for peer in member.core.peers.values()
            ),
            f"parted as {groups}",
        )


def play(
    scene: Callable[[MelonWorld], Awaitable[None]],
    *edges: str,
    names: str = "",
    folder: Path | None = None,
    identities: bool = False,
    seed: int = 1,
    own: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> None:
    """A scene with hosts that are engaged as these pairs say ("ab": a dials b), and have met;
    `options` are those of their Melons, of which some have their `own`."""

    async def acquainted(world: MelonWorld) -> None:
        await world.met(*edges)
        await scene(world)

    town: dict[str, Any] = {"folder": folder, "identities": identities}
    play_virtually(
        lambda loop: MelonWorld(loop, edges, names, options, own or {}, **town), acquainted, seed
    )
