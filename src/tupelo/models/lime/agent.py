"""Agents: programs that own tuple spaces, and may move from host to host with them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from tupelo.errors import AgentEnded, BadInput, HostClosed, NotOwner
from tupelo.models.lime.locations import AgentLocation, HostLocation
from tupelo.space.dual_api import dual_api

if TYPE_CHECKING:
    from tupelo.models.lime.host import Host
    from tupelo.models.lime.reactions import ReactionCall, ReactionRecord
    from tupelo.models.lime.spaces import AgentState

logger = logging.getLogger("tupelo")

Role = Literal["owner", "run", "listener"]

_speaking: ContextVar[tuple[tuple[AgentRuntime, Role], ...]] = ContextVar("tupelo.lime", default=())
_step: ContextVar[_Step | None] = ContextVar("tupelo.lime.step", default=None)


class AgentListener(Protocol):
    """What every reaction delivers its events to."""

    def listen(self, event: ReactionCall) -> object: ...


class AgentMoved(BaseException):
    """Ends what an agent does here: it goes on at another host. Not for programs to catch."""


def role_for(life: AgentRuntime) -> Role | None:
    """As what the running code speaks for this agent; None if it does not."""
    return next((role for one, role in _speaking.get() if one is life), None)


def speaker(host: Host | None = None) -> AgentRuntime | None:
    """The agent (at this host) that the running code speaks for: the last one, if for several."""
    lives = [life for life, _ in _speaking.get() if host is None or life.host is host]
    return lives[-1] if lives else None


def speak_for(life: AgentRuntime) -> None:
    """The running code speaks for this agent as well, from now on."""
    others = tuple(one for one in _speaking.get() if not one[0].ended)
    _speaking.set((*others, (life, "owner")))


@contextmanager
def speaking(life: AgentRuntime) -> Iterator[None]:
    """What runs here is the agent's own."""
    token = _speaking.set(((life, "run"),))
    try:
        yield
    finally:
        _speaking.reset(token)


class _Step:
    """The run of a strong listener. Tasks that it has begun outlive it."""

    over = False


@contextmanager
def inside_step() -> Iterator[None]:
    """What runs here is a strong listener, which has its step and nothing else."""
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
    """Is this meant for the task, or the program, that runs an agent's code? At the blocking door
    both threads, the agent's and the host's, are ours: there it is a failure like any other."""
    if not is_async or isinstance(error, Exception):
        return False
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None:
        return task.cancelling() > 0  # else the agent has cancelled what it waits for
    return True


@contextmanager
def on_loop(is_async: bool) -> Iterator[None]:
    """What runs here is an agent's own, on the host's loop, which goes on whatever it raises."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if is_to_end(error, is_async):
            raise
        raise BadInput(f"{error!r} was raised, which cannot end anything here") from error


class AgentRuntime:
    """One agent at one host. Its state is the engine's; `events` are weak ones that wait for their
    listeners."""

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
        self._rest = asyncio.Event()
        self._still = asyncio.Event()
        self._still.set()

    # run()

    def start(self) -> None:
        """Let it run, on a thread or task of its own."""
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
        _speaking.set(((self, role),))
        self._tasks[role] = asyncio.current_task() if self.is_async else None

    # Weak listeners

    def deliver(self, event: ReactionCall) -> None:
        """A weak reaction has fired; its listener is called when its turn comes."""
        self.events.append(event)
        self._news.set()
        if not self._listening:
            self._listening = True
            self.host._door.run_apart(self._listen)

    async def _listen(self) -> None:
        self._enter("listener")
        while (event := await self.host._door.on_loop(self._next_event())) is not None:
            try:
                answer = cast(AgentListener, event.registered.deliver).listen(event)
                if self.is_async and isawaitable(answer):
                    await answer
            except AgentMoved:
                return
            except BaseException as error:
                if is_to_end(error, self.is_async):
                    raise
                self._failed(error, "a weak listener of the agent %s raised")

    async def _next_event(self) -> ReactionCall | None:
        """The next event whose turn it is; the one before it is done. None if there will be no
        more."""
        self._busy = False
        self._rest.set()
        while not self.ended:
            if self.events and not self._paused:
                self._busy = True
                return self.events.popleft()
            self._news.clear()
            await self._news.wait()
        return None

    def drop(self, registered: ReactionRecord) -> None:
        """Its listener is called no more, for what has fired already neither."""
        for event in [one for one in self.events if one.registered is registered]:
            self.events.remove(event)

    # Before it leaves

    async def pause(self, role: Role) -> None:
        """Call no more listeners; the one under way comes to its end, unless it is the caller. Then
        begin no more operations: what they did would be left behind."""
        self._paused = True
        while self._busy and not self.ended and role != "listener":
            self._rest.clear()
            await self._rest.wait()
        if not self.ended:
            self._still.clear()

    def go_on(self) -> None:
        """It does not leave after all."""
        self._paused = False
        self._still.set()
        self._news.set()

    async def operate(self, operation: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        """Do something for the agent, if it is still here."""
        await self._still.wait()
        if self.ended:
            raise AgentEnded(self.state.id)
        return await operation(*args)

    # The end

    def end(self, caller: asyncio.Task[Any] | None = None) -> None:
        """It has ended, or moved away: nothing of it goes on here, but for the `caller`, who knows
        already."""
        self.ended = True
        self._still.set()
        self._news.set()
        self._rest.set()
        for task in self._tasks.values():
            if task is not None and task is not caller:
                task.cancel()

    async def gone(self) -> None:
        """Its tasks, that were told to end, have."""
        tasks = {task for task in self._tasks.values() if task is not None}
        await asyncio.gather(*tasks - {asyncio.current_task()}, return_exceptions=True)


class Agent:
    """Something that runs at a host and owns tuple spaces. Derive from it, write `run`, and give
    the class to `Host.load`; or have a stationary one from `Host.agent`.

    Where it moves, `run` begins anew. What travels with it are its spaces, its registered
    reactions (their listeners must be methods of the agent) and its state: the public attributes.
    Those that begin with an underscore stay behind. Code never travels: the other host must know
    the class, or have it in a package that its owner allows.
    """

    _life: AgentRuntime | None = None

    def run(self) -> Any:
        """What it does. When this returns the agent is still there, with its spaces and its
        reactions, until it ends. At the async door it may be an `async def`."""

    @property
    def id(self) -> str:
        """By which it is known everywhere; it keeps it when it moves."""
        return self._alive.state.id

    @property
    def name(self) -> str:
        return self._alive.state.name

    @property
    def location(self) -> AgentLocation:
        return self._alive.state.location

    @property
    def host(self) -> Host:
        """The host where it is."""
        return self._alive.host

    @property
    def running(self) -> bool:
        """Is its run() under way here?"""
        return self._alive.running

    @property
    def ended(self) -> bool:
        """Has it ended, or moved to another host?"""
        return self._alive.ended

    @property
    def error(self) -> BaseException | None:
        """What its run() or one of its weak listeners raised the last time that one did."""
        return self._alive.error

    @property
    def is_async(self) -> bool:
        return self._life is not None and self._life.is_async

    # The journey

    def state(self) -> dict[str, Any]:
        """What it takes along besides its spaces and reactions: names with values. Override it,
        with `restore`, if public attributes are not what should travel."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def restore(self, state: dict[str, Any]) -> None:
        """It has arrived: make of the state what it was. `__init__` is not called again."""
        vars(self).update(state)

    @dual_api
    async def migrate(self, host: HostLocation) -> None:
        """Move to another host, and do not return: there `run` begins anew. A weak listener that is
        under way comes to its end first; events whose turn has not come travel along.

        MigrationFailed if it could not: then it goes on here. A journey that has been decided is
        not called off by a link that is lost: the agent is there when the hosts meet again.
        """
        life = self._alive
        require_outside_step()
        role = role_for(life)
        if role is None:
            raise NotOwner("of this agent", life.state.id, "only it can decide to move")
        await life.host._door.on_loop(life.host.journeys.leave(life, host, role))
        raise AgentMoved(life.state.id)

    @dual_api
    async def end(self) -> None:
        """Be no more: its spaces are disengaged, and go with it."""
        require_outside_step()
        await self._alive.host._door.on_loop(self._alive.host._end(self._alive))

    @property
    def _alive(self) -> AgentRuntime:
        if self._life is None:
            raise BadInput(f"{type(self).__name__} is at no host: load it with host.load(...)")
        return self._life

    def __repr__(self) -> str:
        where = "at no host" if self._life is None else f"{self.id!r} at {self.host.name!r}"
        return f"<{type(self).__name__} {where}>"
