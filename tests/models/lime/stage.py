"""A stage for LIME's doors: a scene is written once, and played on real sockets at both doors.

At the blocking door nothing in a scene ever waits for a loop, so it runs to its end at once; `do`
takes the answers of either door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from typing import Any

import pytest

from tests.conftest import until_true
from tupelo import aio
from tupelo.models import lime
from tupelo.space.either import finished, settled

PATIENCE_SECONDS = 20.0

do = settled


class Stage:
    """Hosts of one door; all of them are gone when the scene is over."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async
        self._hosts: list[tuple[lime.Host, aio.Host | None]] = []

    async def host(
        self,
        name: str,
        *,
        near: Iterable[lime.Host] = (),
        agents: Iterable[type[lime.Agent]] = (),
        over: Any = "collect",
    ) -> lime.Host:
        """A host that meets those that are near; the group has formed when this returns."""
        options: dict[str, Any] = {
            "listen": 0,
            "heartbeat": 0.2,
            "peers": [one.host.address for one in near],
        }
        if not self.is_async:
            host = lime.Host(name, over=over, agents=agents, **options)
            self._hosts.append((host, None))
        else:
            ground = await aio.Host(name, **options).start()
            host = lime.Host(ground, over=over, agents=agents)
            self._hosts.append((host, ground))
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
        for host, ground in reversed(self._hosts):
            await do(host.close())
            if ground is not None:
                await ground.close()


Scene = Callable[[Stage], Awaitable[None]]
Play = Callable[[Scene], None]


async def _whole(scene: Scene, is_async: bool) -> None:
    stage = Stage(is_async)
    try:
        await scene(stage)
    finally:
        await stage.close()


def play_blocking(scene: Scene) -> None:
    copy_context().run(finished, _whole(scene, False))


def play_async(scene: Scene) -> None:
    asyncio.run(_whole(scene, True))


at_both_doors = pytest.mark.parametrize(
    "play", [play_blocking, play_async], ids=["blocking", "async"]
)


async def shared(name: str, agent: lime.Agent) -> lime.LimeTupleSpace:
    """A space of an agent, shared already."""
    space = lime.LimeTupleSpace(name, agent)
    await do(space.set_shared(True))
    return space
