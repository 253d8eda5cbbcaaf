"""Agents: programs that own tuple spaces, and may migrate with them from host to host.

`Agent` is the class that users derive from; `AgentRuntime` runs one agent at one host. An agent has
its `run` on a thread (or task) of its own, and its weak listeners, in the order of their events, on
another. Both act for the agent, and so does the code that made a stationary agent; other code may
not use the spaces of the agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, cast

from tupelo.errors import AgentEnded, BadInput, HostClosed, NotOwner
from tupelo.models.lime.locations import AgentLocation, HostLocation
from tupelo.space.dual_api import dual_api

if TYPE_CHECKING:
    from tupelo.models.lime.host import Host
    from tupelo.models.lime.reactions import ReactionCall, ReactionDelivery, ReactionRecord
    from tupelo.models.lime.spaces import AgentState

logger = logging.getLogger("tupelo")

Role = Literal["owner", "run", "listener"]

_acting: ContextVar[tuple[tuple[AgentRuntime, Role], ...]] = ContextVar("tupelo.lime", default=())
_step: ContextVar[_Step | None] = ContextVar("tupelo.lime.step", default=None)


class AgentMoved(BaseException):
    """Ends the code of an agent at this host, since it migrates. Programs must not catch it."""


def role_for(runtime: AgentRuntime) -> Role | None:
    """The role in which the running code acts for this agent; None if it does not."""
    return next((role for one, role in _acting.get() if one is runtime), None)


def current_runtime(host: Host | None = None) -> AgentRuntime | None:
    """The agent (at this host) for which the running code acts; the latest of several."""
    runtimes = [runtime for runtime, _ in _acting.get() if host is None or runtime.host is host]
    return runtimes[-1] if runtimes else None


def act_for(runtime: AgentRuntime) -> None:
    """Let the running code act for this agent too, from now on."""
    others = tuple(one for one in _acting.get() if not one[0].ended)
    _acting.set((*others, (runtime, "owner")))


@contextmanager
def acting_as(runtime: AgentRuntime) -> Iterator[None]:
    """The code in this block is the agent's own."""
    token = _acting.set(((runtime, "run"),))
    try:
        yield
    finally:
        _acting.reset(token)


class _Step:
    """The run of a strong listener; tasks that it has started may outlive it."""

    over = False


@contextmanager
def inside_step() -> Iterator[None]:
    """The code in this block is a strong listener: only `event.step` is allowed."""
    step = _Step()
    token = _step.set(step)
    try:
        yield
    finally:
        step.over = True
        _step.reset(token)


def require_outside_step() -> None:
    step = _step.get()
    if step is not None and not step.over:
        raise BadInput(
            "a strong reaction runs inside an atomic step, where nothing may wait: use event.step"
        )


def is_to_end(error: BaseException, is_async: bool) -> bool:
    """Whether an exception of an agent's code must end the task or program that runs it, like a
    cancellation. Never at the blocking door, where the threads are LIME's own."""
    if not is_async or isinstance(error, Exception):
        return False
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None:
        return task.cancelling() > 0  # else the agent has cancelled a task that it awaits
    return True


@contextmanager
def on_loop(is_async: bool) -> Iterator[None]:
    """Agent code on the loop of the host: turn exceptions that would end the loop into BadInput."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if is_to_end(error, is_async):
            raise
        raise BadInput(f"{error!r} was raised, which cannot end the host") from error


class AgentRuntime:
    """Runs one agent at one host. `state` is the agent as the engine knows it; `events` are those
    of weak reactions that wait for their listeners."""

    def __init__(self, host: Host, agent: Agent) -> None:
        self.host = host
        self.agent = agent
        self.state: AgentState
        self.is_async = host.is_async
        self.ended = False
        self.running = False
        self.error: BaseException | None = None
        self.events: deque[ReactionCall] = deque()
        self._tasks: dict[Role, asyncio.Task[Any] | None] = {}
        self._paused = False
        self._listening = False
        self._busy = False
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._unpaused = asyncio.Event()
        self._unpaused.set()

    # run()

    def start(self) -> None:
        """Start `run` on a thread or task of its own."""
        self.running = True
        self.host._door.run_apart(self._run)

    async def _run(self) -> None:
        self._enter("run")
        try:
            answer = None if self.ended else self.agent.run()
            if isawaitable(answer):
                await answer
        except AgentMoved:
            pass
        except BaseException as error:
            if is_to_end(error, self.is_async):
                raise
            self._failed(error, "run() of the agent %s raised")
        finally:
            self.running = False

    def _failed(self, error: BaseException, what: str) -> None:
        if not (self.ended and isinstance(error, (AgentEnded, HostClosed))):
            self.error = error
            logger.error(what, self.state.id, exc_info=error)

    def _enter(self, role: Role) -> None:
        _acting.set(((self, role),))
        self._tasks[role] = asyncio.current_task() if self.is_async else None

    # Weak listeners

    def deliver(self, event: ReactionCall) -> None:
        """Queue an event of a weak reaction for its listener."""
        self.events.append(event)
        self._news.set()
        if not self._listening:
            self._listening = True
            self.host._door.run_apart(self._listen)

    async def _listen(self) -> None:
        self._enter("listener")
        while (event := await self.host._door.on_loop(self._next_event())) is not None:
            try:
                answer = cast("ReactionDelivery", event.registered.deliver).listen(event)
                if self.is_async and isawaitable(answer):
                    await answer
            except AgentMoved:
                return
            except BaseException as error:
                if is_to_end(error, self.is_async):
                    raise
                self._failed(error, "a weak listener of the agent %s raised")

    async def _next_event(self) -> ReactionCall | None:
        """Wait for the next event; the listener of the one before has returned. None at the end."""
        self._busy = False
        self._idle.set()
        while not self.ended:
            if self.events and not self._paused:
                self._busy = True
                return self.events.popleft()
            self._news.clear()
            await self._news.wait()
        return None

    def drop(self, registered: ReactionRecord) -> None:
        """Remove the queued events of a reaction."""
        for event in [one for one in self.events if one.registered is registered]:
            self.events.remove(event)

    # Migration

    async def pause(self, role: Role) -> None:
        """Call no more listeners, wait for the running one (unless it is the caller), and hold new
        operations: their effects would not migrate."""
        self._paused = True
        while self._busy and not self.ended and role != "listener":
            self._idle.clear()
            await self._idle.wait()
        if not self.ended:
            self._unpaused.clear()

    def unpause(self) -> None:
        """Continue after `pause`: the migration has failed."""
        self._paused = False
        self._unpaused.set()
        self._news.set()

    async def operate(self, operation: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Run an operation of the agent. Raises AgentEnded if it has ended or left."""
        await self._unpaused.wait()
        if self.ended:
            raise AgentEnded(self.state.id)
        return await operation(*args)

    # End

    def end(self, caller: asyncio.Task[Any] | None = None) -> None:
        """The agent has ended or left: cancel its tasks here, but for the `caller`."""
        self.ended = True
        self._unpaused.set()
        self._news.set()
        self._idle.set()
        for task in self._tasks.values():
            if task is not None and task is not caller:
                task.cancel()

    async def wait_ended(self) -> None:
        """Wait until the cancelled tasks of the agent have ended."""
        tasks = {task for task in self._tasks.values() if task is not None}
        await asyncio.gather(*tasks - {asyncio.current_task()}, return_exceptions=True)


class Agent:
    """A program at a host that owns tuple spaces. Derive from this class, write `run`, and pass the
    class to `Host.load`; or get a stationary agent from `Host.agent`.

    At the host to which an agent migrates, `run` begins anew. Its spaces, its registered reactions
    (their listeners must be methods of the agent) and its public attributes migrate with it;
    attributes that begin with an underscore do not. Code is never sent: the other host must know
    the class, or have it in a package that its owner allows.
    """

    _runtime: AgentRuntime | None = None

    def run(self) -> Any:
        """The program of the agent. When it returns, the agent stays, with its spaces and
        reactions, until `end`. At the async door it may be an `async def`."""

    @property
    def id(self) -> str:
        """The id of the agent, unique among all hosts; it stays the same when the agent
        migrates."""
        return self._alive.state.id

    @property
    def name(self) -> str:
        """The name of the agent; several agents may have the same."""
        return self._alive.state.name

    @property
    def location(self) -> AgentLocation:
        """The location of the agent, for `current=` and `destination=`."""
        return self._alive.state.location

    @property
    def host(self) -> Host:
        """The LIME host of the agent."""
        return self._alive.host

    @property
    def running(self) -> bool:
        """Whether run() is running here."""
        return self._alive.running

    @property
    def ended(self) -> bool:
        """Whether the agent has ended, or migrated to another host."""
        return self._alive.ended

    @property
    def error(self) -> BaseException | None:
        """The last exception of run() or of a weak listener."""
        return self._alive.error

    @property
    def is_async(self) -> bool:
        """Whether the agent is at a host of the async door."""
        return self._runtime is not None and self._runtime.is_async

    # Migration

    def state(self) -> dict[str, Any]:
        """The values that migrate with the agent besides its spaces and reactions, by name: its
        public attributes. Override it, with `restore`, to send other values."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the values of `state` at the new host; `__init__` is not called again."""
        vars(self).update(state)

    @dual_api
    async def migrate(self, host: HostLocation) -> None:
        """Move to another host and do not return: `run` begins anew there. A weak listener that is
        running ends first; queued events migrate with the agent.

        Raises MigrationFailed if the agent could not move; then it goes on here. Once the migration
        is decided, a lost link does not stop it: the agent goes on when the hosts meet again.
        """
        runtime = self._alive
        require_outside_step()
        role = role_for(runtime)
        if role is None:
            raise NotOwner("of this agent", runtime.state.id, "only it can decide to move")
        await runtime.host._door.on_loop(runtime.host.migrations.leave(runtime, host, role))
        raise AgentMoved(runtime.state.id)

    @dual_api
    async def end(self) -> None:
        """End the agent: its spaces become private and vanish with it."""
        require_outside_step()
        await self._alive.host._door.on_loop(self._alive.host._end(self._alive))

    @property
    def _alive(self) -> AgentRuntime:
        if self._runtime is None:
            raise BadInput(f"{type(self).__name__} is at no host: load it with host.load(...)")
        return self._runtime

    def __repr__(self) -> str:
        where = "at no host" if self._runtime is None else f"{self.id!r} at {self.host.name!r}"
        return f"<{type(self).__name__} {where}>"
