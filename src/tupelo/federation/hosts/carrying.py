"""Carrying: parts of a host that talk to the same part of other hosts, each over its own channel.

A host knows nothing of what they say. It tells them which hosts come and go, and hands them what is
said on their channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tupelo.federation.hosts.peer import Peer


class Carrier(Protocol):
    """A part of a host. A link that is replaced is one departure and one engagement."""

    def engaged(self, peer: Peer) -> None: ...

    def departed(self, peer: Peer) -> None: ...

    def heard(self, peer: Peer, body: Any) -> None:
        """A BadFrame that is raised here closes this link, and no other."""
        ...

    async def stop(self) -> None:
        """The host leaves: end what is under way."""
        ...


class Carriers(dict[str, Carrier]):
    """The parts of a host, by the name of their channel."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving: list[Callable[[], Awaitable[None]]] = []
        """What is done before any of them is stopped, while all can still speak."""

    def engaged(self, peer: Peer) -> None:
        for carrier in list(self.values()):
            carrier.engaged(peer)

    def departed(self, peer: Peer) -> None:
        for carrier in list(self.values()):
            carrier.departed(peer)

    def heard(self, peer: Peer, channel: str, body: Any) -> None:
        carrier = self.get(channel)
        if carrier is not None:
            carrier.heard(peer, body)

    async def stop(self) -> None:
        await asyncio.gather(*[leave() for leave in self.leaving])
        for carrier in list(self.values()):
            await carrier.stop()
