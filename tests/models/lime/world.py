"""A world in virtual time: hosts with LIME, and agents at them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from tests.federation.groups.neighbourhood import GroupTown, Resident
from tests.virtual import VirtualLoop
from tests.virtual import play as play_virtually
from tupelo.federation.groups.group import group_of
from tupelo.models.lime.engine import EngineFactory
from tupelo.models.lime.locations import AgentLocation, HostLocation
from tupelo.models.lime.messages import place_of
from tupelo.models.lime.reactions import ONCE_PER_TUPLE, ReactionCall, ReactionRecord
from tupelo.models.lime.server import Server
from tupelo.models.lime.spaces import AgentState, InterfaceSpace
from tupelo.values.parts import ANY

SPACE = "s"
ENGINES: ContextVar[Callable[[Path | None], EngineFactory] | None] = ContextVar(
    "engines", default=None
)
"""Makes the engines that keep the tuples of a host, in its folder; None for its own spaces."""
ON_A_SPACE = pytest.mark.parametrize("each_engine", ["a space"], indirect=True)
"""For what is about the space of the host, which other doors see."""
QUIET_SECONDS = 1.0
"""Of virtual time: whatever was begun has come to its end by then."""


class LimeHost(Resident):
    """A host with LIME."""

    over: Any = "collect"
    prune = True
    engine: EngineFactory | None = None
    server: Server

    def prepare(self) -> None:
        self.group = group_of(self.core)

    async def open(self) -> None:
        self.server = Server(self.core, over=self.over, prune=self.prune, engine=self.engine)
        await self.server.start()

    async def leave(self) -> None:
        if self.is_up:
            await self.do(self.server.stop())
        await super().leave()

    async def agent(self, name: str, *spaces: str) -> LimeAgent:
        """A new agent that shares these spaces."""
        agent = LimeAgent(self, await self.do(self.server.enter(name)))
        if spaces:
            await agent.share(*spaces)
        return agent

    @property
    def location(self) -> HostLocation:
        return self.server.here

    def system(self) -> list[Any]:
        """What LimeSystem says here of those who are there."""
        store = self.server.system.tuple_store.entries()
        return sorted(entry.fields for entry in store if not entry.fields[0].startswith("departed"))

    def departed(self) -> list[Any]:
        """What LimeSystem says here of those who have departed."""
        store = self.server.system.tuple_store.entries()
        return [entry.fields for entry in store if entry.fields[0].startswith("departed")]


class LimeAgent:
    """An agent, wherever it is now."""

    def __init__(self, host: LimeHost, state: AgentState) -> None:
        self.host = host
        self.state = state

    @property
    def location(self) -> AgentLocation:
        return self.state.location

    @property
    def server(self) -> Server:
        return self.host.server

    def interface(self, space: str = SPACE) -> InterfaceSpace:
        return self.host.call(self.server.space, self.state, space)

    def do(self, work: Any) -> asyncio.Task[Any]:
        return self.host.do(work)

    async def share(self, *spaces: str) -> None:
        await self.do(
            self.server.set_shared([self.interface(one) for one in spaces or (SPACE,)], True)
        )

    async def unshare(self, *spaces: str) -> None:
        await self.do(
            self.server.set_shared([self.interface(one) for one in spaces or (SPACE,)], False)
        )

    async def out(self, *value: Any, to: AgentLocation | None = None, space: str = SPACE) -> None:
        await self.do(self.server.out(self.interface(space), value, to))

    def call(
        self,
        name: str,
        template: Any,
        current: Any = None,
        destination: Any = None,
        *,
        space: str = SPACE,
        **options: Any,
    ) -> asyncio.Task[Any]:
        """One of in_, rd, inp, rdp, ing, rdg."""
        where = place_of(current, destination)
        return self.do(
            getattr(self.server, name)(self.interface(space), template, where, **options)
        )

    async def all(self, current: Any = None, destination: Any = None, space: str = SPACE) -> Any:
        return sorted(await self.call("rdg", ANY, current, destination, space=space))

    async def react(
        self,
        template: Any = ANY,
        *,
        mode: Any = ONCE_PER_TUPLE,
        weak: bool = True,
        current: Any = None,
        destination: Any = None,
        deliver: Callable[[ReactionCall], object] | None = None,
        space: str = SPACE,
    ) -> Heard:
        heard = Heard()
        registered = ReactionRecord(
            self.interface(space),
            template,
            mode,
            weak,
            current,
            destination,
            deliver or heard.events.append,
            "tag",
        )
        heard.registered = registered
        await self.do(self.server.add_reactions([registered]))
        return heard

    async def go(self, host: LimeHost) -> None:
        """Migrate, with everything."""
        packed = await self.do(self.server.pack(self.state))
        delivers = [one.deliver for one in self.state.reactions]

        def arrive() -> AgentState:
            return host.server.unpack(packed, lambda one: delivers.pop(0))

        self.host.call(self.server.forget, self.state)
        self.host, self.state = host, host.call(arrive)
        await self.do(self.server.arrive(self.state))


class Heard:
    """What a reaction was told."""

    def __init__(self) -> None:
        self.events: list[ReactionCall] = []
        self.registered: ReactionRecord

    @property
    def tuples(self) -> list[Any]:
        return [event.tuple for event in self.events]


class LimeWorld(GroupTown[LimeHost]):
    """Hosts with LIME. `over` and `prune` are those of their servers."""

    def __init__(
        self,
        loop: VirtualLoop,
        edges: Iterable[str],
        names: str,
        over: str,
        prune: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(loop, LimeHost, edges, names, **options)
        engines, folder = ENGINES.get(), options.get("folder")
        for host in self.members:
            host.over, host.prune = over, prune
            if engines is not None:
                host.engine = engines(None if folder is None else folder / host.name)

    async def quiet(self) -> None:
        await asyncio.sleep(QUIET_SECONDS)


def play(
    scene: Callable[[LimeWorld], Awaitable[None]],
    *edges: str,
    names: str = "",
    over: str = "collect",
    prune: bool = True,
    seed: int = 1,
    folder: Path | None = None,
    **options: Any,
) -> None:
    """A scene with hosts that are engaged as these pairs say ("ab": a dials b), in one group. In a
    `folder` their spaces outlive them; `options` are those of hosts."""
    if folder is not None:
        options |= {"folder": folder, "durability": "process"}

    async def together(world: LimeWorld) -> None:
        if edges:
            await world.agreed("".join(sorted(set("".join(edges)))))
        await scene(world)

    play_virtually(lambda loop: LimeWorld(loop, edges, names, over, prune, options), together, seed)
