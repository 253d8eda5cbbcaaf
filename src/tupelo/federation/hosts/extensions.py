"""Carrying: parts of a host that talk to the same part of other hosts.

A host knows nothing of what they say. It tells them which hosts come and go, and hands them what is
said to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from tupelo.federation.links import wire

if TYPE_CHECKING:
    from tupelo.federation.hosts.peer import Peer


T = TypeVar("T")


class Extension(Protocol):
    """A part of a host. A link that is replaced is one departure and one engagement."""

    def engaged(self, peer: Peer) -> None: ...

    def departed(self, peer: Peer) -> None: ...

    async def stop(self) -> None:
        """The host leaves: end what is under way."""
        ...


class SilentExtension:
    """A part of a host that says nothing by itself to other hosts."""

    def engaged(self, peer: Peer) -> None:
        pass

    def departed(self, peer: Peer) -> None:
        pass


class Extensions(dict[str, Extension]):
    """The parts of a host, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving: list[Callable[[], Awaitable[None]]] = []
        """What is done before any of them is stopped, while all can still speak."""
        self._heard: dict[str, Callable[[Peer, msgspec.Raw], None]] = {}

    def listen(
        self,
        name: str,
        extension: Extension,
        read: Callable[[msgspec.Raw], T],
        heard: Callable[[Peer, T], None],
    ) -> None:
        """A part that is told what the same part of another host says, once it is read. A BadFrame
        closes that link, and no other."""
        self[name] = extension
        self._heard[name] = lambda peer, body: heard(peer, read(body))

    def engaged(self, peer: Peer) -> None:
        for extension in list(self.values()):
            extension.engaged(peer)

    def departed(self, peer: Peer) -> None:
        for extension in list(self.values()):
            extension.departed(peer)

    def heard(self, peer: Peer, notice: wire.PartNotice) -> None:
        heard = self._heard.get(notice.part)
        if heard is not None:
            heard(peer, notice.body)

    async def stop(self) -> None:
        await asyncio.gather(*[leave() for leave in self.leaving])
        for extension in list(self.values()):
            await extension.stop()
