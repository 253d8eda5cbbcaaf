"""A door of a model at a host of this process; called like a door at a host elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from tupelo.errors import BadArgument, HostClosed
from tupelo.federation.client.services import ServedDoor, ServiceMethod
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import HostDoor
from tupelo.federation.hosts.services import HandOver, ServedObject
from tupelo.space.dual_api import run_sync

D = TypeVar("D", bound=ServedObject)


def open_door(
    host: object,
    service: str,
    title: str,
    methods: Mapping[str, ServiceMethod],
    make: Callable[[HostCore], D],
) -> LocalDoor[D] | ServedDoor:
    """The door of a model at this host: `make` makes its object there. At a connection it is the
    `service` of the connected host, which makes the object when it is first used."""
    if isinstance(host, RemoteSpace):
        door = ServedDoor(host, service, title, methods)
        if not host.is_async:
            run_sync(door.open)
        return door
    if not isinstance(host, HostDoor):
        raise BadArgument("host", "a Host, of either door, or a connection to one", host)
    return LocalDoor(host, title, methods, make)


class LocalDoor(Generic[D]):
    """The object of a model at a host of this process, as `served`: its methods are called on the
    loop of the host. `ServedDoor` does the same at a host elsewhere; `title` is the name for
    users."""

    served: D

    def __init__(
        self,
        host: HostDoor,
        title: str,
        methods: Mapping[str, ServiceMethod],
        make: Callable[[HostCore], D],
    ) -> None:
        self.host = host
        self.is_async = host.is_async
        self.where = f"at the host {host.name!r}"
        self.title = title
        self.closed = False
        self._methods = methods
        self._scopes: set[asyncio.Timeout] = set()

        async def start() -> None:
            self.served = make(host.core)

        host.now(start())

    async def open(self) -> None:
        """Nothing to do: the object is there."""

    async def call(self, name: str, *args: Any, wait: float | None = 0) -> Any:
        """Call a method. Raises HostClosed if the door is closed, now or meanwhile."""
        method = self._methods[name]
        options = {"wait": wait} if method.waits else {}
        return method.answer.here(await self.run(getattr(self.served, name), *args, **options))

    async def run(
        self, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any
    ) -> Any:
        """Run a coroutine on the loop of the host. Raises HostClosed like `call`."""
        unless_closed = self._unless_closed(partial(work, *args, **options))
        answer = await self.host.on_loop(unless_closed, _give_back)
        if not isinstance(answer, HandOver):
            return answer
        if not answer.is_final:
            self.host.soon(answer.received)
        return answer.value

    async def _unless_closed(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self.require_open()
        scope = asyncio.timeout(None)
        self._scopes.add(scope)
        try:
            async with scope:
                return await work()
        except TimeoutError:
            if scope.expired():
                self.require_open()
            raise
        finally:
            self._scopes.discard(scope)

    async def tell(self, name: str, *args: Any) -> Any:
        """Call a method that is not cancelled once it has begun."""

        async def work() -> Any:
            self.require_open()
            return await getattr(self.served, name)(*args)

        return self._methods[name].answer.here(await self.host.on_loop(work()))

    def require_open(self) -> None:
        """Raise HostClosed if the door is closed."""
        if self.closed:
            raise HostClosed(f"this {self.title} was closed")

    def run_apart(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in a thread, or a task, of its own."""
        self.host.run_apart(work)

    async def close(self) -> None:
        """Close the door; waiting calls raise HostClosed."""

        async def end() -> None:
            for scope in self._scopes:
                if not scope.expired():
                    scope.reschedule(0)
            self.served.close()

        if not self.closed:
            self.closed = True
            with suppress(HostClosed):
                await self.host.on_loop(end())


def _give_back(answer: Any) -> None:
    if isinstance(answer, HandOver):
        answer.give_back()
