"""Hosts that the tests of a module share: models are tried on them, on every kind of space.

A test uses names of its own for spaces, heaps and message stores, and starts no host. A scene is a
coroutine on the loop of the neighbourhood; what is of the blocking door is called there through
`Threaded`, each call in a thread.
"""

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import tupelo
from tests.conftest import memory_folder, until_true
from tests.kinds import KINDS, space_url
from tests.laws.doors import LoopThread

NAMES = "abc"
HEARTBEAT_SECONDS = 10.0  # So that no host loses another on a busy machine.
THREADS_MAX = 40  # More than the calls of any scene that wait at a time.


class Threaded:
    """A thing of the blocking door, to be used like one of the async door."""

    def __init__(self, inner: Any, threads: ThreadPoolExecutor) -> None:
        self.inner = inner
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.ismethod(found):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, lambda: found(*args, **options))
            answer = await work
            return Threaded(answer, self._threads) if hasattr(answer, "close") else answer

        return call


class Neighbourhood:
    """Three hosts for each store and door, all engaged with each other; made when first needed."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._closing = ExitStack()
        self._threads = ThreadPoolExecutor(THREADS_MAX)
        self._hosts: dict[tuple[str, bool], dict[str, Any]] = {}
        self._numbers = itertools.count()

    def close(self) -> None:
        self._closing.close()
        self._threads.shutdown()

    def new_name(self) -> str:
        """A name that no test has used."""
        return f"n{next(self._numbers)}"

    def hosts(self, door: str, kind: str) -> dict[str, Any]:
        """The hosts of this kind. Those of clients are of the async door."""
        at = KINDS[kind]
        key = "async" if at.where == "remote" else door, at.is_durable
        if key not in self._hosts:
            hosts: dict[str, Any] = {}
            for name in NAMES:
                hosts[name] = self._start(name, list(hosts.values()), *key)
            until_true(
                lambda: all(len(host.engaged) == len(NAMES) - 1 for host in hosts.values()),
                "the hosts have met",
            )
            self._hosts[key] = hosts
        return self._hosts[key]

    def _start(self, name: str, others: list[Any], door: str, durable: bool) -> Any:
        options: dict[str, Any] = {
            "listen": 0,
            "peers": [host.address for host in others],
            "heartbeat": HEARTBEAT_SECONDS,
        }
        if durable:
            options["path"] = self._closing.enter_context(memory_folder())
        if door == "blocking":
            return self._closing.enter_context(tupelo.Host(name, **options))
        host = self._loop.call(lambda: tupelo.aio.Host(name, **options))
        self._loop.call(host.start)
        self._closing.callback(self._loop.call, host.close)
        return host

    def space(self, place: tuple[str, str]) -> Any:
        """A new space of this kind, of this door. Another host has a space of the same name."""
        door, kind = place
        at = KINDS[kind]
        name = self.new_name()
        if at.where == "local":
            folder = self._closing.enter_context(memory_folder())
            store = {"path": folder / "s.tupelo", **at.store} if at.is_durable else at.store
            make = tupelo.aio.Space if door == "async" else tupelo.Space
            return self._loop.call(make, name, **store)
        if at.where == "database":
            return self._connect(space_url(f"{name}-{uuid4()}"), door)
        hosts = self.hosts(door, kind)
        spaces = [self._loop.call(hosts[host].space, name) for host in "ab"]
        if at.where == "remote":
            return self._connect(f"{hosts['a'].url}{name}", door)
        return spaces[0].here if at.where == "here" else spaces[0]

    def _connect(self, url: str, door: str) -> Any:
        is_async = door == "async"
        return self._loop.call(tupelo.aio.connect, url) if is_async else tupelo.connect(url)

    def play(
        self, place: tuple[str, str], scene: Callable[["dict[str, Neighbour]"], Awaitable[None]]
    ) -> None:
        """Play a scene with a neighbour at each host, or a client of each."""
        door, kind = place
        people = {
            name: Neighbour(host, door, kind, self._threads)
            for name, host in self.hosts(door, kind).items()
        }

        async def whole() -> None:
            try:
                await scene(people)
            finally:
                for person in people.values():
                    await person.close()

        self._loop.call(whole)


class Neighbour:
    """Somebody at a host, or a client of it: opens models there."""

    def __init__(self, host: Any, door: str, kind: str, threads: ThreadPoolExecutor) -> None:
        self.host = host
        self.is_async = door == "async"
        self.is_client = KINDS[kind].where == "remote"
        self._threads = threads
        self._opened: list[Any] = []

    async def open(self, model: Callable[..., Any], name: str, **options: Any) -> Any:
        """The door of a model, of this name, to be used like one of the async door."""
        ground: list[Any] = [self.host, name]
        if self.is_client:
            ground = [await self._connected(name)]
        if self.is_async:
            made = model(*ground, **options)
            made = await made if inspect.isawaitable(made) else made
            await made.__aenter__()
        else:
            work = asyncio.to_thread(model, *ground, **options)
            made = Threaded(await work, self._threads)
        self._opened.append(made)
        return made

    async def space(self, name: str) -> Any:
        """The space of this name, to be used like one of the async door."""
        if not self.is_client:
            space = self.host.space(name)
        else:
            space = await self._connected(name)
        return space if self.is_async else Threaded(space, self._threads)

    async def _connected(self, name: str) -> Any:
        url = f"{self.host.url}{name}"
        if self.is_async:
            space: Any = await tupelo.aio.connect(url)
            self._opened.append(space)
        else:
            space = await asyncio.to_thread(tupelo.connect, url)
            self._opened.append(Threaded(space, self._threads))
        return space

    async def close(self) -> None:
        for thing in reversed(self._opened):
            await thing.close()
