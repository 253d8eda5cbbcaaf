"""A stage for LIME's doors: a scene is written once, and played on real sockets at both doors.

LIME stands on hosts (docs/DOORS.md says why not on a client): its laws run on every kind of space
of hosts in `tests.kinds`, in memory and in a folder, and on another engine (`on_every_kind`). Laws
about other doors of the same space run without that engine (`on_every_space`). What does not ask
where tuples are kept, such as a check of arguments, runs in memory only (`at_both_doors`).

At the blocking door nothing in a scene ever waits for a loop, so it runs to its end at once; `do`
takes the answers of either door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import memory_folder, until_true
from tests.kinds import KINDS, PLACES
from tests.models.lime.sqlite_engine import sqlite_engines
from tupelo import aio
from tupelo.models import lime
from tupelo.models.lime.engine import EngineFactory
from tupelo.space.dual_api import maybe_await, run_coroutine

PATIENCE_SECONDS = 20.0

do = maybe_await


class Stage:
    """Hosts of one door; all of them are gone when the scene is over."""

    def __init__(
        self, is_async: bool, folder: Path | None, engine: EngineFactory | None = None
    ) -> None:
        self.is_async = is_async
        self._folder = folder
        self._engine = engine
        self._hosts: list[tuple[lime.Host, aio.Host | None]] = []

    async def host(
        self,
        name: str,
        *,
        near: Iterable[lime.Host] = (),
        agents: Iterable[type[lime.Agent]] = (),
        over: Any = "collect",
        packages: lime.AgentPackages | None = None,
        heartbeat: float = 0.2,
    ) -> lime.Host:
        """A host that meets those that are near; the group has formed when this returns."""
        options: dict[str, Any] = {
            "listen": 0,
            "heartbeat": heartbeat,
            "peers": [one.host.address for one in near],
            "path": None if self._folder is None else self._folder / name,
        }
        if not self.is_async:
            host = lime.Host(
                name, over=over, agents=agents, packages=packages, engine=self._engine, **options
            )
            self._hosts.append((host, None))
        else:
            tuple_store = await aio.Host(name, **options).start()
            host = lime.Host(tuple_store, over=over, agents=agents, packages=packages)
            self._hosts.append((host, tuple_store))
            await host.start()
        if near:
            await self.grouped(host, *near)
        return host

    async def grouped(self, *hosts: lime.Host) -> None:
        """These, at least, are in one group."""
        wanted = {host.location for host in hosts}
        await self.until(
            lambda: all(wanted <= set(host.hosts) for host in hosts), "they are one group"
        )

    async def until(self, condition: Callable[[], object], what: str = "it happens") -> None:
        if not self.is_async:
            until_true(condition, what)
            return
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        for host, tuple_store in reversed(self._hosts):
            await do(host.close())
            if tuple_store is not None:
                await tuple_store.close()


Scene = Callable[[Stage], Awaitable[None]]
Play = Callable[[Scene], None]


async def _whole(
    scene: Scene, is_async: bool, folder: Path | None, engine: EngineFactory | None = None
) -> None:
    stage = Stage(is_async, folder, engine)
    try:
        await scene(stage)
    finally:
        await stage.close()


def play_blocking(scene: Scene, folder: Path | None = None) -> None:
    Context().run(run_coroutine, _whole(scene, False, folder))


def play_async(scene: Scene, folder: Path | None = None) -> None:
    Context().run(asyncio.run, _whole(scene, True, folder))


def play_on_sqlite(scene: Scene) -> None:
    """Another engine keeps the tuples."""
    Context().run(run_coroutine, _whole(scene, False, None, sqlite_engines()))


def _player(door: str, kind: str) -> Play:
    play = play_async if door == "async" else play_blocking

    def play_durably(scene: Scene) -> None:
        with memory_folder() as folder:
            play(scene, folder)

    return play_durably if KINDS[kind].is_durable else play


_SPANNING = [place for place in PLACES if KINDS[place[1]].where == "spanning"]

at_both_doors = pytest.mark.parametrize(
    "play", [play_blocking, play_async], ids=["blocking", "async"]
)
_SPACES = [pytest.param(_player(*place), id="-".join(place)) for place in _SPANNING]
on_every_space = pytest.mark.parametrize("play", _SPACES)
on_every_kind = pytest.mark.parametrize(
    "play", [*_SPACES, pytest.param(play_on_sqlite, id="blocking-sqlite engine")]
)


async def shared(name: str, agent: lime.Agent) -> lime.LimeTupleSpace:
    """A space of an agent, shared already."""
    space = lime.LimeTupleSpace(name, agent)
    await do(space.set_shared(True))
    return space
