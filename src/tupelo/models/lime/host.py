"""A LIME host: agents at a host of Tupelo, by the blocking or the async door."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from inspect import iscoroutinefunction
from typing import Any, Literal, Self, TypeVar
from weakref import WeakKeyDictionary, ref

from tupelo.errors import BadArgument, BadInput, HostClosed
from tupelo.federation.client.space import RemoteSpace
from tupelo.federation.hosts import doors
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import HostDoor
from tupelo.models.lime.agent import (
    Agent,
    AgentRuntime,
    act_for,
    acting_as,
    current_runtime,
    require_outside_step,
)
from tupelo.models.lime.engine import EngineFactory
from tupelo.models.lime.locations import AgentLocation, HostLocation
from tupelo.models.lime.migrating import Migrations
from tupelo.models.lime.packages import AgentPackages
from tupelo.models.lime.server import Server
from tupelo.models.lime.tuplespace import LimeSystemTupleSpace
from tupelo.space.dual_api import dual_api
from tupelo.values.checks import check_text

A = TypeVar("A", bound=Agent)

logger = logging.getLogger("tupelo")

_on_core: WeakKeyDictionary[HostCore, ref[Host]] = WeakKeyDictionary()
"""The LIME hosts of hosts of Tupelo."""


async def host_on(core: HostCore) -> Host:
    """For services, on the loop of the host: its lime.Host, of either API; one of the async API is
    started if there is none."""
    found = _on_core.get(core)
    host = None if found is None else found()
    return await Host(doors.RunningHost(core)).start() if host is None else host


class Host:
    """A host of agents, which share their spaces with the agents of all hosts of the group: the
    hosts that this host reaches, directly or through others.

    It uses a given `tupelo.Host` or `tupelo.aio.Host`, or makes one from a name and the options of
    `tupelo.Host`. `agents` are the classes of agents that may migrate here; `packages` may contain
    more classes. `over` is the transport of operations to other hosts: "collect" or, for
    comparison, "publish". `engine` makes the
    engines that keep the tuples, in place of the spaces of the host: see `TupleEngine`.
    """

    def __init__(
        self,
        host: str | doors.Host | doors.AsyncHost,
        *,
        over: Literal["collect", "publish"] = "collect",
        agents: Iterable[type[Agent]] = (),
        packages: AgentPackages | None = None,
        engine: EngineFactory | None = None,
        **options: Any,
    ) -> None:
        if over not in ("collect", "publish"):
            raise BadArgument("over", '"collect" or "publish"', over)
        if isinstance(host, RemoteSpace):
            raise BadArgument(
                "host",
                "a host, not a connection to one: agents live at a host, take their tuples with "
                "them and run there; start a tupelo.Host in this program, or open the space by "
                "another door",
                host,
            )
        if not isinstance(host, (str, HostDoor)):
            raise BadArgument("host", "a name, a tupelo.Host or a tupelo.aio.Host", host)
        if options and not isinstance(host, str):
            raise BadArgument(", ".join(options), "left out: the host is there already")
        self.is_async: bool = not isinstance(host, str) and host.is_async
        self._over: Literal["collect", "publish"] = over
        self._classes: dict[str, type[Agent]] = {}
        self._class_names: dict[type[Agent], str] = {}
        self.runtimes: dict[str, AgentRuntime] = {}
        """The agents at this host by id, for the lab and for diagnosis."""
        self._started: Server | None = None
        self._closed = False
        if packages is not None and not isinstance(packages, AgentPackages):
            raise BadArgument("packages", "AgentPackages, or None", packages)
        if engine is not None and not callable(engine):
            raise BadArgument("engine", "a function that makes a TupleEngine, or None", engine)
        self._packages = packages
        self._engine = engine
        if not isinstance(agents, Iterable):
            raise BadArgument("agents", "classes that derive from Agent", agents)
        for cls in agents:
            self.register(cls)
        self._owned = isinstance(host, str)
        self._door: HostDoor = doors.Host(host, **options) if isinstance(host, str) else host
        if not self.is_async:
            try:
                self._door.now(self._start())
            except BaseException:
                self._close_owned()
                raise

    async def start(self) -> Self:
        """At the async door: start the host. `async with` does this."""
        await self._start()
        return self

    async def _start(self) -> None:
        core = getattr(self._door, "_core", None)
        if core is None:
            raise BadInput("the tupelo.aio.Host has not started: use it in an `async with`")
        if core in _on_core:
            raise BadInput(
                f"the host {core.name!r} has a lime.Host already: use that for all its agents"
            )
        self._started = server = Server(core, over=self._over, engine=self._engine)
        self.migrations = server.migrations = Migrations(self)
        _on_core[core] = ref(self)
        try:
            await server.start()
        except BaseException:
            del _on_core[core]
            raise

    @property
    def server(self) -> Server:
        """The server of LIME at this host, for its loop only. Raises HostClosed after `close`."""
        if self._closed:
            raise HostClosed("the host was closed")
        if self._started is None:
            raise BadInput("this host has not started: use it in an `async with`")
        return self._started

    @property
    def host(self) -> Any:
        """The tupelo.Host or tupelo.aio.Host below."""
        return self._door

    @property
    def name(self) -> str:
        """The name of the host."""
        return self._door.name

    @property
    def location(self) -> HostLocation:
        """The location of this host."""
        return self.server.here

    @property
    def hosts(self) -> list[HostLocation]:
        """The locations of all hosts of the group, this one included."""
        return [HostLocation(host) for host in sorted(self.server.directory.hosts)]

    @property
    def system(self) -> LimeSystemTupleSpace:
        """LimeSystem, for the agent for which the running code acts."""
        runtime = current_runtime(self)
        if runtime is None:
            raise BadInput("no agent is running here: make one with host.agent(...)")
        return LimeSystemTupleSpace(runtime.agent)

    # Groups

    @dual_api
    async def engage(self) -> None:
        """Take part in the group of the hosts that this host reaches, as it does from the start,
        after `disengage`."""
        require_outside_step()
        await self._door.on_loop(self.server.group.join())

    @dual_api
    async def disengage(self) -> None:
        """Leave the group: operations that are running end first, and no host sees half of the
        change. The agents of this host only see each other until `engage`."""
        require_outside_step()
        await self._door.on_loop(self.server.group.leave())

    # Agents

    def register(self, cls: type[Agent], name: str | None = None) -> None:
        """Let agents of this class migrate here. `name` is that of the class at all hosts; by
        default the name in Python."""
        if not (isinstance(cls, type) and issubclass(cls, Agent)):
            raise BadArgument("agents", "classes that derive from Agent", cls)
        if iscoroutinefunction(cls.run) is not self.is_async and cls.run is not Agent.run:
            how = "async" if self.is_async else "not async"
            raise BadArgument("agents", f"classes whose run() is {how}, at this door", cls)
        name = check_text("name", cls.__name__ if name is None else name)
        if self._classes.get(name, cls) is not cls:
            raise BadArgument("name", f"free: another class is known here as {name!r}", name)
        self._classes[name] = cls
        self._class_names.setdefault(cls, name)

    def _class_named(self, name: str) -> type[Agent] | None:
        """The registered class of this name, or the one in the packages; None if there is none."""
        if name not in self._classes and self._packages is not None:
            found: Any = self._packages.find(name)
            try:
                if found is not None:
                    self.register(found, name)
            except BadArgument as error:
                logger.warning("%r of a package is no class of agents: %s", name, error)
        return self._classes.get(name)

    @dual_api
    async def agent(self, name: str) -> Agent:
        """Make a stationary agent, for which the calling thread or task acts."""
        runtime = await self._enter(Agent(), name, None)
        act_for(runtime)
        return runtime.agent

    @dual_api
    async def load(self, cls: type[A], *args: Any, name: str | None = None) -> A:
        """Make an agent of this class and start it on a thread (or task) of its own. `args` are for
        its `__init__`."""
        if not isinstance(cls, type) or not issubclass(cls, Agent):
            raise BadArgument("cls", "a class that derives from Agent", cls)
        if cls not in self._class_names:
            self.register(cls)
        return await self._load("", cls, args, name)

    async def _load(self, source: str, cls: type[A], args: Iterable[Any], name: str | None) -> A:
        """Load an agent of a registered class, for the other host `source` if it is not empty."""
        class_name = self._class_names[cls]
        agent = cls.__new__(cls)
        runtime = await self._enter(agent, class_name if name is None else name, class_name)
        runtime.state.source = source
        try:
            with acting_as(runtime):
                agent.__init__(*args)  # type: ignore[misc]
        except BaseException:
            await self._door.on_loop(self._end(runtime))
            raise
        runtime.start()
        return agent

    @dual_api
    async def load_at(
        self, host: HostLocation, cls: type[Agent] | str, *args: Any, name: str | None = None
    ) -> AgentLocation:
        """Make an agent of this class at another host of the group, start it there, and return its
        location. That host must know the class, by its name here or by the given name, and `args`
        must be values of entries. The agent may share spaces in which this host may read, write and
        take.

        Raises LoadFailed if the class is not known there or `__init__` has raised; PeerLost if that
        host is lost before the outcome is known.
        """
        require_outside_step()
        if isinstance(cls, type) and issubclass(cls, Agent):
            cls = self._class_names.get(cls, cls.__name__)
        if not isinstance(cls, str) or not cls:
            raise BadArgument("cls", "a class that derives from Agent, or its name there", cls)
        if name is not None:
            check_text("name", name)
        if not isinstance(host, HostLocation) or host == self.server.here:
            raise BadArgument("host", "the HostLocation of another host", host)
        work = self.migrations.load(host.id, cls, args, name)
        return await self._door.on_loop(work)

    async def _enter(self, agent: Agent, name: str, class_name: str | None) -> AgentRuntime:
        check_text("name", name)
        require_outside_step()
        runtime = agent._runtime = AgentRuntime(self, agent)
        server = self.server

        async def enter() -> None:
            runtime.state = await server.enter(name, class_name)
            self.runtimes[runtime.state.id] = runtime

        await self._door.on_loop(enter())
        return runtime

    async def _end(self, runtime: AgentRuntime) -> None:
        if not runtime.ended:
            runtime.end(asyncio.current_task())
            del self.runtimes[runtime.state.id]
            await self.server.depart(runtime.state)

    # Closing

    @dual_api
    async def close(self) -> None:
        """End all agents and leave the group; a tupelo.Host that was made here is closed too."""
        require_outside_step()
        if self._closed:
            return
        self._closed = True
        if self._started is not None:
            try:
                await self._door.on_loop(self._stop(self._started))
            except HostClosed:
                pass
            except BaseException:  # It can be closed again.
                self._closed = False
                raise
        self._close_owned()

    async def _stop(self, server: Server) -> None:
        runtimes = list(self.runtimes.values())
        for runtime in runtimes:
            runtime.end(asyncio.current_task())
        await server.stop()
        await self.migrations.stop()
        for runtime in runtimes:
            await runtime.wait_ended()
        _on_core.pop(server.core, None)

    def _close_owned(self) -> None:
        if self._owned and isinstance(self._door, doors.Host):
            self._door.close()

    def __enter__(self) -> Self:
        if self.is_async:
            raise BadInput("this host stands on an async one: use it as `async with`")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<the LIME host {self.name!r}>"
