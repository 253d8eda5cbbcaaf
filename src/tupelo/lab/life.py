"""A life: one program of a simulation, from its start to its end, which may be a crash.

All programs of a simulation share one process and one loop. What belongs to a life is told by the
context in which it runs: tasks, timers and calls inherit it, and what comes over a link is heard in
the context of the one who hears. So a program can be killed: nothing of it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

from tupelo.federation.links.link import Answering, FrameReceiver, Link, Listener
from tupelo.lab.loop import LabError, VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.space.port import Port

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LIFE: ContextVar[ProgramLife | None] = ContextVar("life", default=None)
_ROUNDS_MAX = 1_000
"""Who is cancelled may clean up, but not for ever."""


class ProgramLife:
    """One program at a place. It is the program's network: what it hears, it hears in its life."""

    def __init__(self, loop: VirtualLoop, network: VirtualNetwork, name: str) -> None:
        self.name = name
        self.leaving = False
        """Whether it is about to end: what it has begun may not come to its end any more."""
        self.over = False
        self.killed = False
        self._loop = loop
        self._network = network
        self._place = network.place(name)
        self._context = copy_context()
        self._context.run(_LIFE.set, self)

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.create_task(work, name=name, context=self._context.copy())

    async def listen(self, address: str, answer: Answering) -> Listener:
        return await self._place.listen(address, self._answering(answer))

    async def dial(self, address: str, answer: Answering) -> Link:
        return await self._place.dial(address, self._answering(answer))

    def _answering(self, answer: Answering) -> Answering:
        return lambda link: _Hearing(self, self.call(answer, link))

    def call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call this as part of this life."""
        return self._context.copy().run(function, *args)

    async def kill(self, ports: list[Port]) -> None:
        """As a killed process: the disk keeps what it has, what was sent still arrives, and nothing
        else happens."""
        self.leaving = self.over = self.killed = True
        for port in ports:
            port.crash()
        self._network.crash(self.name)
        await self.end()

    async def end(self) -> None:
        """End what is left of it."""
        self.leaving = self.over = True
        for _ in range(_ROUNDS_MAX):
            tasks = self._loop.tasks_of(self._is_mine)
            if not tasks:
                await asyncio.sleep(0)  # for those who are told when a task is done
                if self._loop.tasks_of(self._is_mine):  # and have begun another
                    continue
                self._loop.drop(self._is_mine)
                return
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
        raise LabError(f"what {self.name} has begun cannot be ended: {tasks}")

    def _is_mine(self, context: Context) -> bool:
        return context.get(_LIFE) is self


class _Hearing:
    """An ear that hears as part of a life, as long as that lasts."""

    def __init__(self, life: ProgramLife, ear: FrameReceiver) -> None:
        self._life = life
        self._ear = ear

    def heard(self, contents: list[bytes]) -> None:
        if not self._life.over:
            self._life.call(self._ear.heard, contents)

    def eased(self) -> None:
        if not self._life.over:
            self._life.call(self._ear.eased)

    def lost(self, reason: str) -> None:
        if not self._life.over:
            self._life.call(self._ear.lost, reason)
