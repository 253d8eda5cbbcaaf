"""A federation in virtual time, for tests: hosts on a virtual network that dial each other.

A test module adds its model in a subclass of `WorldHost`, and its conditions in a subclass of
`VirtualFederation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from tupelo.federation.identity.keys import Identity
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.lab.virtual_world import VirtualWorld, WorldHost, play

__all__ = ["VirtualFederation", "VirtualLoop", "WorldHost", "play"]

PATIENCE_SECONDS = 120.0

Host = TypeVar("Host", bound=WorldHost)


class VirtualFederation(VirtualWorld[Host]):
    """Hosts that dial each other as these pairs say ("ab": a dials b); `names` are further hosts.

    With `identities` hosts prove who they are; in a `folder` they are durable; `options` are those
    of every `HostCore`.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        make: Callable[..., Host],
        edges: Iterable[str],
        names: Iterable[str] = "",
        *,
        network: VirtualNetwork | None = None,
        identities: bool = False,
        folder: Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(loop, network)
        pairs = list(edges)
        for name in sorted({*names, *"".join(pairs)}):
            host = make(
                self,
                name,
                peers=[pair[1] for pair in pairs if pair[0] == name],
                identity=Identity.new() if identities else None,
                path=None if folder is None else folder / name,
                **options,
            )
            self.members.append(host)

    @property
    def hosts(self) -> dict[str, Host]:
        return {host.name: host for host in self.members}

    async def until(self, condition: Callable[[], object], what: str = "it") -> None:
        """Let virtual time pass until the condition holds."""
        if not await self.wait_for(condition, PATIENCE_SECONDS):
            raise AssertionError(f"{what} does not come about")
