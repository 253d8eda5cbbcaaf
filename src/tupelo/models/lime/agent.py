"""Agents: programs that own tuple spaces, and may move from host to host with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tupelo.errors import BadInput, NotOwner
from tupelo.models.lime.locations import AgentLocation, HostLocation
from tupelo.models.lime.runtime import AgentMoved, AgentRuntime, require_outside_step, role_for
from tupelo.space.dual_api import dual_api

if TYPE_CHECKING:
    from tupelo.models.lime.host import Host


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
