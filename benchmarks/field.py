"""Hosts with LIME, an agent at each: on the lab's network, which counts all messages, or on sockets
of this machine. Both run the same code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from tupelo import aio
from tupelo.federation.hosts.core import HostCore
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.network import VirtualNetwork
from tupelo.models.lime.locations import AgentLocation
from tupelo.models.lime.reactions import ONCE_PER_TUPLE, ReactionCall, ReactionRecord
from tupelo.models.lime.server import Server
from tupelo.models.lime.spaces import InterfaceSpace
from tupelo.space.clock import LoopClock

SPACE = "s"
TEMPLATE = ("reading", int, str)
SECONDS_A_DAY = 86_400.0
QUIET_SECONDS = 1.0
"""Seconds of virtual time after which all operations have ended."""

T = TypeVar("T")


def reading(i: int) -> tuple[str, int, str]:
    """A tuple that matches the template."""
    return ("reading", i, "x" * 20)


@dataclass(frozen=True)
class Traffic:
    """The messages and bytes that were sent, over all links."""

    messages: float
    bytes: float


class Camp:
    """A host, its agent, and the agent's interface tuple space."""

    def __init__(self, core: HostCore, **how: Any) -> None:
        self.core = core
        self.server = Server(core, **how)
        self.interface: InterfaceSpace

    async def start(self) -> None:
        await self.server.start()
        agent = await self.server.enter("agent")
        self.interface = self.server.space(agent, SPACE)

    @property
    def location(self) -> AgentLocation:
        return self.interface.agent.location

    async def out(self, value: object, destination: AgentLocation | None = None) -> None:
        await self.server.out(self.interface, value, destination)

    async def share(self) -> None:
        await self.server.set_shared([self.interface], True)

    async def react(self, heard: Callable[[ReactionCall], object]) -> ReactionRecord:
        """A weak reaction to every tuple that matches, at any host."""
        one = ReactionRecord(self.interface, TEMPLATE, ONCE_PER_TUPLE, True, None, None, heard)
        await self.server.add_reactions([one])
        return one


async def grouped(camps: Iterable[Camp], members: int) -> None:
    """Wait until each of these is in a group of so many hosts, and operations go on."""
    for camp in camps:
        while len(camp.server.directory.hosts) != members:
            await asyncio.sleep(0.0005)
    for camp in camps:
        async with camp.server.group.operating():
            pass


class CountedHosts:
    """Hosts on the lab's network, without heartbeats. `delay` is the minimum and maximum delay of a
    message, in seconds."""

    def __init__(self, loop: VirtualLoop, delay: tuple[float, float] = (0.001, 0.010)) -> None:
        self.network = VirtualNetwork(loop, delay=delay)
        self.cores: list[HostCore] = []
        self._clock = LoopClock(loop)
        self._rng = Random(loop.seed)

    def _new_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    async def start_host(self, peers: Iterable[int], **options: Any) -> HostCore:
        """Start a host that dials the hosts of these numbers."""
        name = f"host-{len(self.cores)}"
        core = HostCore(
            name,
            host_id=self._new_id(),
            network=self.network.place(name),
            clock=self._clock,
            rng=self._rng,
            new_id=self._new_id,
            listen=f"{name}:7700",
            peers=[self.cores[peer].address for peer in peers],
            heartbeat=SECONDS_A_DAY,
            **options,
        )
        await core.start()
        self.cores.append(core)
        return core

    async def stop(self) -> None:
        for core in self.cores:
            await core.stop()

    async def counted(self, work: Awaitable[T]) -> tuple[T, Traffic]:
        """The traffic of this operation, until nothing more is sent."""
        messages, size = self._sent()
        answer = await work
        await asyncio.sleep(QUIET_SECONDS)
        more_messages, more_size = self._sent()
        return answer, Traffic(more_messages - messages, more_size - size)

    def _sent(self) -> tuple[int, int]:
        sent = self.network.sent.values()
        return sum(one.frames for one in sent), sum(one.bytes for one in sent)


class Field(CountedHosts):
    """Such hosts with LIME, and an agent at each."""

    def __init__(self, loop: VirtualLoop, delay: tuple[float, float] = (0.001, 0.010)) -> None:
        super().__init__(loop, delay)
        self.camps: list[Camp] = []

    async def add(self, peers: Iterable[int], **how: Any) -> Camp:
        """Start a host with LIME that dials the hosts of these numbers."""
        camp = Camp(await self.start_host(peers, commit_in_place=True), **how)
        self.camps.append(camp)
        await camp.start()
        return camp

    async def stop(self) -> None:
        for camp in self.camps:
            await camp.server.stop()
        await super().stop()


@asynccontextmanager
async def on_sockets(groups: list[int]) -> AsyncIterator[list[list[Camp]]]:
    """Groups of so many hosts, all on this loop; within a group, all are engaged with all."""
    async with AsyncExitStack() as stack:
        camps: list[list[Camp]] = []
        for size in groups:
            addresses: list[str] = []
            camps.append([])
            for i in range(size):
                host = aio.Host(f"host-{len(camps)}-{i}", listen="127.0.0.1:0", peers=addresses)
                await stack.enter_async_context(host)
                addresses.append(host.address)
                camp = Camp(host._core)
                stack.push_async_callback(camp.server.stop)
                camps[-1].append(camp)
                await camp.start()
        yield camps
