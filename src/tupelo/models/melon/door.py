"""A process of MELON, at either door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from tupelo.errors import BadArgument, CannotSend, HostClosed
from tupelo.federation.hosts.doors import AsyncHost, Host, HostDoor
from tupelo.federation.hosts.hosted import HostedSpace
from tupelo.federation.identity.keys import check_key
from tupelo.federation.links.spelled import check_sendable
from tupelo.models.melon.collecting import Bound, Collections
from tupelo.models.melon.copying import Copies
from tupelo.models.melon.post import post_of
from tupelo.models.melon.reading import Reader
from tupelo.space.checks import check_wait
from tupelo.space.either import Closing, either, settled
from tupelo.space.operations import value_of
from tupelo.values.entry import Entry

NAME_MAX = 50
"""Of a Melon: the names of its spaces are longer."""
_SPACES = (".written", ".sealed")
"""How these end: a Melon of such a name would share them with another."""


class Melon(Closing):
    """One process that exchanges messages with all that use the same name, at hosts that meet. It
    has a record of its own of what it has read.

    Who reads or takes waits for `wait` seconds at most, and beyond that for the answer of a host
    that is engaged and silent, until that is passed over, which takes some seconds.

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
        if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
            raise BadArgument("name", f"a text of 1 to {NAME_MAX} characters", name)
        if name.endswith(_SPACES):
            raise BadArgument("name", "a text that does not end with .written or .sealed", name)
        if bound is not None and not isinstance(bound, Bound):
            raise BadArgument("bound", "a Bound(...), or None", bound)
        if copies is not None and not isinstance(copies, Copies):
            raise BadArgument("copies", "a Copies(...), or None", copies)
        self.is_async = host.is_async
        self.name = name
        self.collected: Collections
        """What this host had to let go of, from now on."""
        self._host = host
        self._closed = False
        self._waiting: set[asyncio.Timeout] = set()

        async def start() -> None:
            self._post = post_of(host._core, name, bound, copies, host._plan.identity)
            self._reader = Reader(self._post)
            self.collected = Collections(host)
            self._post.listeners.add(self.collected)

        host._now(start())

    # Adding messages

    @either
    async def store(self, message: object, to: str | None = None, *, pin: bool = False) -> None:
        """Add a message that one process may take. It stays here until then, and gives way to
        others if it must, unless it is pinned. `to` an identity: only a process at the host of that
        identity can take it, and nobody else read it, whoever carries it there."""
        self._require_open()
        _check_pin(pin)
        if to is None:
            _check_message(message)
        if to is None and not pin:
            await self._written(self._post.stored, message)
        else:
            await self._host._on_loop(self._post.store(message, to, pin))

    @either
    async def write(self, message: object, *, pin: bool = False) -> None:
        """Add a message that every process may read, once each, and nobody take. It gives way to
        others if it must, unless it is pinned."""
        self._require_open()
        _check_pin(pin)
        _check_message(message)
        if pin:
            await self._host._on_loop(self._post.write(message, pin))
        else:
            await self._written(self._post.written, message)

    @either
    async def unpin(self, template: object) -> int:
        """The messages of this host that match and were pinned may give way from now on; how many
        there are. Not those that are directed: nobody can look into them."""
        self._require_open()
        count: int = await self._host._on_loop(self._post.unpin(template))
        return count

    async def _written(self, hosted: HostedSpace, message: object) -> None:
        door: Any = hosted.door if self.is_async else hosted.space
        await settled(door.write(message))

    # Retrieving messages

    @either
    async def take(
        self, template: object, wait: float | None = None, *, sender: str | None = None
    ) -> Any:
        """The oldest message of some host that matches and was stored; nobody else gets it. With
        `sender`, one that this identity has directed to ours. None if there is none in time."""
        taken = await self._get(self._taking(sender), template, wait, False, self._untake)
        return taken[0] if taken else None

    @either
    async def take_all(
        self, template: object, wait: float | None = None, *, sender: str | None = None
    ) -> list[Any]:
        """All messages that match and were stored; until there is one, or time is up, it waits."""
        return await self._get(self._taking(sender), template, wait, True, self._untake)

    def _taking(self, sender: str | None) -> Callable[..., Coroutine[Any, Any, list[Entry]]]:
        if sender is not None:
            check_key(sender, "sender")
        return partial(self._post.taking.take, sender=sender)

    def _untake(self, entries: list[Entry]) -> None:
        self._post.taking.put_back(entries)

    @either
    async def read(self, template: object, wait: float | None = None) -> Any:
        """The oldest message of some host that matches, was written, and has not been read here by
        this Melon. None if there is none in time."""
        read = await self._get(self._reader.read, template, wait, False, self._reader.undo)
        return read[0] if read else None

    @either
    async def read_all(self, template: object, wait: float | None = None) -> list[Any]:
        """All messages that match, were written and have not been read by this Melon; until there
        is one, or time is up, it waits."""
        return await self._get(self._reader.read, template, wait, True, self._reader.undo)

    async def _get(
        self,
        verb: Callable[..., Coroutine[Any, Any, list[Entry]]],
        template: object,
        wait: float | None,
        many: bool,
        undo: Callable[[list[Entry]], object],
    ) -> list[Any]:
        check_wait(wait)
        self._require_open()

        work = self._unless_closed(partial(verb, template, wait, many))
        found = await self._host._on_loop(work, undo)
        return [value_of(entry) for entry in found]

    async def _unless_closed(self, get: Callable[[], Awaitable[list[Entry]]]) -> list[Entry]:
        """Whoever waits is told when this Melon is closed."""
        try:
            async with asyncio.timeout(None) as patience:
                self._waiting.add(patience)
                return await get()
        except TimeoutError:
            raise HostClosed("this Melon was closed") from None
        finally:
            self._waiting.discard(patience)

    @property
    def identity(self) -> str | None:
        """The address of the processes at this host; None if it has no identity."""
        identity = self._post.directed.identity
        return None if identity is None else identity.key

    @property
    def refused(self) -> int:
        """How many messages came that were directed to us and could not be opened."""
        return self._post.directed.refused

    # The end

    def _require_open(self) -> None:
        if self._closed:
            raise HostClosed("this Melon was closed")

    @either
    async def close(self) -> None:
        """It reads and takes no more, and who waits is told: HostClosed. What it has stored and
        written stays at its host."""
        if self._closed:
            return
        self._closed = True

        async def end() -> None:
            for patience in self._waiting:
                patience.reschedule(0)
            self._reader.close()
            self.collected.close()
            self._post.listeners.discard(self.collected)

        with suppress(HostClosed):
            await self._host._on_loop(end())

    def __repr__(self) -> str:
        return f"<Melon {self.name!r} at the host {self._host.name!r}>"


def _check_message(message: object) -> None:
    try:
        check_sendable(message)
    except CannotSend as error:
        raise CannotSend(f"message= cannot be sent to other hosts: {error}") from error


def _check_pin(pin: object) -> None:
    if not isinstance(pin, bool):
        raise BadArgument("pin", "True or False", pin)
