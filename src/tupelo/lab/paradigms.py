"""Four ways to send messages to a group, on the doors of the product: publish/subscribe, remote
procedure calls, tuple spaces and MELON, as Collins' dissertation compares them (3.2.2 and 6.5).

Each is a `GroupChannel`: `send` sends a message to all members, `receive` calls a function with
every message of other members. An application that uses channels runs on each paradigm unchanged.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from tupelo import aio
from tupelo.errors import BadArgument, TupeloError
from tupelo.federation.identity.trust import Trust
from tupelo.models.melon import Melon
from tupelo.models.pubsub import PubSub
from tupelo.models.rpc import Rpc

Message: TypeAlias = tuple[str, str, int, float, bytes]
"""A topic, the sender, its number from 0 for each sender, when it was sent, and the payload."""
TEMPLATE = (str, str, int, float, bytes)


OPENED = ("lab", "melon")
"""The names under which the models of the channels are opened."""


class HostOfClient:
    """A `tupelo host` of this name in a real network, as the program beside it sees it: `space` as
    at a host, and `connection` to open a model there."""

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


def _at(host: aio.Host | HostOfClient, name: str) -> Any:
    """Where a model with this name is opened: at the host, or at a connection to it."""
    return host.connection(name) if isinstance(host, HostOfClient) else host


class GroupChannel(ABC):
    """The group, as one host sees it. `poll` is how often a paradigm that polls looks, in
    seconds."""

    def __init__(self, host: aio.Host | HostOfClient, poll: float) -> None:
        self.host = host
        self.poll = poll

    @abstractmethod
    async def send(self, message: Message) -> None:
        """Send a message to the others."""

    @abstractmethod
    async def receive(self, received: Callable[[Message], object], topic: str) -> None:
        """Call `received` with each message of this topic, in the order of arrival, for ever."""


class PublishSubscribe(GroupChannel):
    """Each host is its own broker, and knows the subscriptions of the others. An update goes to
    those that are connected then."""

    def __init__(self, host: aio.Host | HostOfClient, poll: float) -> None:
        super().__init__(host, poll)
        self._broker = PubSub(_at(host, "lab"), "lab")

    async def send(self, message: Message) -> None:
        await self._broker.publish(message)

    async def receive(self, received: Callable[[Message], object], topic: str) -> None:
        async with self._broker:
            replies = await self._broker.subscribe((topic, *TEMPLATE[1:]))
            async for reply in replies:
                for message in reply.items:
                    received(message)


class _Receiver:
    """The object that others call."""

    def __init__(self, received: Callable[[Message], object]) -> None:
        self._received = received

    def accept(self, message: Message) -> None:
        self._received(message)


class RemoteCalls(GroupChannel):
    """A group invocation of all receivers that are found, asynchronous: nobody waits for results,
    and what fails is not repeated. A channel receives one topic."""

    def __init__(self, host: aio.Host | HostOfClient, poll: float) -> None:
        super().__init__(host, poll)
        if isinstance(host, HostOfClient):
            wanted = "another one: a client of a host exports no objects"
            raise BadArgument("paradigm", wanted, "rpc")
        self._rpc = Rpc(host, "lab")

    async def send(self, message: Message) -> None:
        group = await self._rpc.find_all(_Receiver, message[0])
        if group.objects:
            await group.start("accept", message, wait=30.0)

    async def receive(self, received: Callable[[Message], object], topic: str) -> None:
        async with self._rpc:
            await self._rpc.export(_Receiver(received), name=topic)
            await asyncio.Event().wait()


class TupleSpaces(GroupChannel):
    """A space that spans the hosts. All tuples are read again and again, because a tuple space does
    not know who has read what (the multiple read problem)."""

    def __init__(self, host: aio.Host | HostOfClient, poll: float) -> None:
        super().__init__(host, poll)
        self._space = host.space("lab")

    async def send(self, message: Message) -> None:
        await self._space.write(message)

    async def receive(self, received: Callable[[Message], object], topic: str) -> None:
        seen: set[tuple[str, int]] = set()
        while True:
            with suppress(TupeloError):  # A host has left during the read: the next one tells.
                for message in await self._space.read_all((topic, *TEMPLATE[1:])):
                    if (key := (message[1], message[2])) not in seen:
                        seen.add(key)
                        received(message)
            await asyncio.sleep(self.poll)


class MelonMessages(GroupChannel):
    """Messages that stay where they were written, and are read once by each reader, in order per
    host."""

    def __init__(self, host: aio.Host | HostOfClient, poll: float) -> None:
        super().__init__(host, poll)
        self._melon = Melon(_at(host, "melon"), "melon")

    async def send(self, message: Message) -> None:
        await self._melon.write(message)

    async def receive(self, received: Callable[[Message], object], topic: str) -> None:
        while True:
            for message in await self._melon.read_all((topic, *TEMPLATE[1:])):
                received(message)


PARADIGMS: dict[str, Callable[[aio.Host | HostOfClient, float], GroupChannel]] = {
    "pubsub": PublishSubscribe,
    "rpc": RemoteCalls,
    "tuples": TupleSpaces,
    "melon": MelonMessages,
}


def open_channel(paradigm: Any, host: aio.Host | HostOfClient, poll: float = 1.0) -> GroupChannel:
    """A channel of this paradigm: pubsub, rpc, tuples or melon."""
    if paradigm not in PARADIGMS:
        raise BadArgument("paradigm", f"one of {', '.join(PARADIGMS)}", paradigm)
    return PARADIGMS[paradigm](host, poll)
