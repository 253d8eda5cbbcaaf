"""A host of another process, for a program of an experiment in a real network."""

from __future__ import annotations

from functools import partial
from typing import Any

from tupelo import aio
from tupelo.errors import BadArgument
from tupelo.federation.identity.trust import Trust

OPENED = ("lab", "melon")
"""The names of the models of `tupelo.lab.paradigms`."""


class HostOfClient:
    """The host `tupelo host` of this name, as the program beside it sees it: `space` as at a host,
    and `connection` to open a model there."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._url = url
        self._connections: dict[str, aio.SpaceLike] = {}

    async def open(self) -> None:
        """Wait for the host, and connect to it."""
        for name in OPENED:
            await self._connected(name)

    async def _connected(self, name: str) -> aio.SpaceLike:
        if name not in self._connections:
            self._connections[name] = await aio.connect(self._url + name, trust=Trust.anyone())
        return self._connections[name]

    def connection(self, name: str) -> aio.SpaceLike:
        """The connection to the space of this name, which is "lab" or "melon"."""
        if name not in self._connections:
            raise BadArgument("name", f"one of {', '.join(self._connections)}", name)
        return self._connections[name]

    def space(self, name: str) -> Any:
        """The space of this name, which is connected when it is first used."""
        return _LazySpace(self, name)

    async def close(self) -> None:
        for space in self._connections.values():
            await space.close()

    def __repr__(self) -> str:
        return f"<a connection to the host {self.name!r}>"


class _LazySpace:
    def __init__(self, host: HostOfClient, name: str) -> None:
        self._host = host
        self._name = name

    def __getattr__(self, operation: str) -> Any:
        return partial(self._call, operation)

    async def _call(self, operation: str, *args: Any, **options: Any) -> Any:
        space = await self._host._connected(self._name)
        return await getattr(space, operation)(*args, **options)
