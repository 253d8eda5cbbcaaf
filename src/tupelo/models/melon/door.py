"""A process of MELON, at either door."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

from tupelo.errors import BadArgument, HostClosed
from tupelo.federation.hosts.doors import AsyncHost, Host, HostDoor
from tupelo.models.melon.collecting import Bound
from tupelo.models.melon.copying import Copies
from tupelo.models.melon.post import post_of
from tupelo.models.melon.reading import Reader
from tupelo.space.checks import check_wait
from tupelo.space.either import either, settled
from tupelo.space.operations import value_of
from tupelo.values.entry import Entry


class Melon:
    """One process that exchanges messages with all that use the same name, at hosts that meet. It
    has a record of its own of what it has read.

    `bound` says how much this host keeps, and `copies` how many others hold what is written here,
    and how much is held here for others. The first Melon of a name at a host says so.
    """

    def __init__(
        self,
        host: Host | AsyncHost,
        name: str = "melon",
        *,
        bound: Bound | None = None,
        copies: Copies | None = None,
    ) -> None:
        if not isinstance(host, HostDoor):
            raise BadArgument("host", "a Host, of either door", host)
        if not isinstance(name, str) or not name:
            raise BadArgument("name", "a text that is not empty", name)
        if bound is not None and not isinstance(bound, Bound):
            raise BadArgument("bound", "a Bound(...), or None", bound)
        if copies is not None and not isinstance(copies, Copies):
            raise BadArgument("copies", "a Copies(...), or None", copies)
        self.is_async = host.is_async
        self.name = name
        self._host = host
        self._closed = False

        async def start() -> None:
            self._post = post_of(host._core, name, bound, copies)
            self._reader = Reader(self._post)

        host._now(start())

    # Adding messages

    @either
    async def store(self, message: object) -> None:
        """Add a message that one process may take. It stays here until then."""
        self._require_open()
        await self._written(self._post.stored, message)

    @either
    async def write(self, message: object) -> None:
        """Add a message that every process may read, once each, and nobody take."""
        self._require_open()
        await self._written(self._post.written, message)

    async def _written(self, hosted: Any, message: object) -> None:
        await settled((hosted.door if self.is_async else hosted.space).write(message))

    # Retrieving messages

    @either
    async def take(self, template: object, wait: float | None = None) -> Any:
        """The oldest message of some host that matches and was stored; nobody else gets it. None
        if there is none in time."""
        taken = await self._get(self._post.take, template, wait, False)
        return taken[0] if taken else None

    @either
    async def take_all(self, template: object, wait: float | None = None) -> list[Any]:
        """All messages that match and were stored; until there is one, or time is up, it waits."""
        return await self._get(self._post.take, template, wait, True)

    @either
    async def read(self, template: object, wait: float | None = None) -> Any:
        """The oldest message of some host that matches, was written, and has not been read here by
        this Melon. None if there is none in time."""
        read = await self._get(self._reader.read, template, wait, False)
        return read[0] if read else None

    @either
    async def read_all(self, template: object, wait: float | None = None) -> list[Any]:
        """All messages that match, were written and have not been read by this Melon; until there
        is one, or time is up, it waits."""
        return await self._get(self._reader.read, template, wait, True)

    async def _get(self, verb: Any, template: object, wait: float | None, many: bool) -> list[Any]:
        check_wait(wait)
        self._require_open()

        async def work() -> list[Entry]:
            found: list[Entry] = await verb(template, wait, many)
            return found

        return [value_of(entry) for entry in await self._host._on_loop(work())]

    # The end

    def _require_open(self) -> None:
        if self._closed:
            raise HostClosed("this Melon was closed")

    @either
    async def close(self) -> None:
        """It reads no more. What it has stored and written stays at its host."""
        if self._closed:
            return
        self._closed = True

        async def end() -> None:
            self._reader.close()

        with suppress(HostClosed):
            await self._host._on_loop(end())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Melon {self.name!r} at the host {self._host.name!r}>"
