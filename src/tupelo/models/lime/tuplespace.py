"""The tuple spaces that an agent holds (figure 4 of the paper), and LimeSystem. One text for both
doors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tupelo.errors import BadArgument, BadInput
from tupelo.models.lime.agent import (
    Agent,
    AgentRuntime,
    current_runtime,
    require_outside_step,
    role_for,
)
from tupelo.models.lime.locations import (
    UNSPECIFIED,
    Current,
    Destination,
    check_current,
    check_destination,
)
from tupelo.models.lime.messages import place_of
from tupelo.models.lime.reactions import (
    LocalizedReaction,
    Reaction,
    ReactionRecord,
    RegisteredReaction,
    check_owner,
    new_records,
    registered_with,
)
from tupelo.models.lime.spaces import SYSTEM_NAME, InterfaceSpace
from tupelo.space.dual_api import dual_api, run_coroutine
from tupelo.space.query import check_wait
from tupelo.values.checks import check_bool, check_text


class _AgentSpace:
    """The common part of all spaces of an agent: reading and reactions."""

    def __init__(self, name: str, agent: Agent | None) -> None:
        check_text("name", name)
        if agent is not None and not isinstance(agent, Agent):
            raise BadArgument("agent", "an Agent", agent)
        require_outside_step()
        runtime = current_runtime() if agent is None else agent._alive
        if runtime is None:
            raise BadInput(
                "no agent is running here: make one with host.agent(...), or give agent="
            )
        check_owner(runtime, name)

        async def find() -> InterfaceSpace:
            return runtime.host.server.space(runtime.state, name)

        self._hold(runtime, runtime.host._door.now(find()))

    def _hold(self, runtime: AgentRuntime, interface: InterfaceSpace) -> None:
        self.is_async = runtime.is_async
        self._runtime = runtime
        self._server = runtime.host.server
        self._interface = interface

    @property
    def name(self) -> str:
        """The name of the space."""
        return self._interface.name

    @property
    def is_owner(self) -> bool:
        """Whether the running code acts for the agent of this space, and so may use it."""
        return role_for(self._runtime) is not None

    async def _do(self, work: Any, *args: Any) -> Any:
        check_owner(self._runtime, self.name)
        return await self._runtime.host._door.on_loop(self._runtime.operate(work, *args))

    async def _get(
        self, work: Any, template: object, current: Current, destination: Destination, *wait: Any
    ) -> Any:
        where = place_of(check_current(current), check_destination(destination))
        return await self._do(work, self._interface, template, where, *wait)

    # Reading

    @dual_api
    async def rd(
        self,
        template: object,
        current: Current = UNSPECIFIED,
        destination: Destination = UNSPECIFIED,
        *,
        wait: float | None = None,
    ) -> Any:
        """Copy a matching tuple; wait for one. None if none came within `wait` seconds."""
        check_wait(wait)
        return await self._get(self._server.rd, template, current, destination, wait)

    @dual_api
    async def rdp(
        self, template: object, current: Current = None, destination: Destination = None
    ) -> Any:
        """Copy a matching tuple, or None."""
        return await self._get(self._server.rdp, template, current, destination)

    @dual_api
    async def rdg(
        self, template: object, current: Current = None, destination: Destination = None
    ) -> list[Any]:
        """Copy all matching tuples."""
        return list(await self._get(self._server.rdg, template, current, destination))

    # Reactions

    @dual_api
    async def add_strong_reaction(self, *reactions: LocalizedReaction) -> list[RegisteredReaction]:
        """Register strong reactions: their listeners run inside the atomic step in which a tuple
        becomes visible at the host of the agent, and now for existing tuples.

        The host does nothing else while a listener runs, so it must not wait. If it takes longer
        than two heartbeats of the host, the step is undone and the reaction disabled.
        """
        return await self._add(reactions, weak=False)

    @dual_api
    async def add_weak_reaction(self, *reactions: Reaction) -> list[RegisteredReaction]:
        """Register weak reactions: their listeners run soon after a tuple has become visible at any
        host, and for existing tuples; one after the other, concurrently with the agent's `run`."""
        return await self._add(reactions, weak=True)

    async def _add(self, reactions: Iterable[Reaction], weak: bool) -> list[RegisteredReaction]:
        new = new_records(self._runtime, self._interface, reactions, weak)
        await self._do(self._server.add_reactions, new)
        return [RegisteredReaction(self._runtime, registered) for registered in new]

    @dual_api
    async def remove_reaction(self, *reactions: RegisteredReaction) -> None:
        """Remove reactions. One that was removed before, or a ONCE reaction that has fired, is
        ignored."""
        for registered in registered_with(self._interface, reactions):
            await self._do(self._remove, registered)

    async def _remove(self, registered: ReactionRecord) -> None:
        await self._server.remove_reaction(registered)
        self._runtime.drop(registered)

    def is_registered_reaction(self, reaction: RegisteredReaction) -> bool:
        """Whether a reaction is registered with this space."""
        return reaction in self.get_registered_reactions()

    def get_registered_reactions(self) -> list[RegisteredReaction]:
        """The reactions of this agent on this space, enabled or not, without ONCE reactions that
        have fired."""
        check_owner(self._runtime, self.name)

        async def find() -> list[ReactionRecord]:
            return [
                one for one in self._runtime.state.reactions if one.interface is self._interface
            ]

        return [
            RegisteredReaction(self._runtime, one) for one in self._runtime.host._door.now(find())
        ]


class LimeSystemTupleSpace(_AgentSpace):
    """The hosts, agents and shared spaces of the group, to read and to react to: tuples ("host",
    host id, name), ("agent", agent id, host id, state) and ("space", name, agent id, host id), the
    same at every host; and ("departed host", id, name), ("departed agent", id, host id), which each
    host keeps for itself."""

    def __init__(self, agent: Agent | None = None) -> None:
        super().__init__(SYSTEM_NAME, agent)

    def __repr__(self) -> str:
        return f"<LimeSystem, as the agent {self._runtime.state.id} sees it>"


class LimeTupleSpace(_AgentSpace):
    """The interface tuple space of an agent with this name. It is private at first; once shared, it
    shows the tuples of all agents of the group that share a space of this name.

    It belongs to `agent`, or else to the agent for which the running code acts. The same name gives
    the same space again.
    """

    def __init__(self, name: str, agent: Agent | None = None) -> None:
        if name == SYSTEM_NAME:
            raise BadArgument("name", "any but that of the LimeSystemTupleSpace", name)
        super().__init__(name, agent)

    @property
    def is_shared(self) -> bool:
        """Whether the space is shared, not private."""
        return self._interface.shared

    @dual_api
    async def set_shared(self, shared: bool) -> None:
        """Share the space with those of the same name, here and at other hosts; or make it private,
        with the tuples of this agent. Either is one step for the whole group. Raises BadEntry if
        the space has a tuple that is too large to be sent (31 MiB)."""
        await self._share([self], shared)

    async def _share(self, spaces: list[LimeTupleSpace], shared: bool) -> None:
        check_bool("shared", shared)
        await self._do(self._server.set_shared, [space._interface for space in spaces], shared)

    @dual_api
    async def out(self, tuple: object, destination: Destination = UNSPECIFIED) -> None:
        """Write a tuple. With a destination it moves to that agent, now or when the agent shares
        the space. Raises BadEntry if the space is shared and the tuple is too large (31 MiB)."""
        await self._do(self._server.out, self._interface, tuple, check_destination(destination))

    @dual_api
    async def in_(
        self,
        template: object,
        current: Current = UNSPECIFIED,
        destination: Destination = UNSPECIFIED,
        *,
        wait: float | None = None,
    ) -> Any:
        """Remove a matching tuple; wait for one. None if none came within `wait` seconds."""
        check_wait(wait)
        return await self._get(self._server.in_, template, current, destination, wait)

    @dual_api
    async def inp(
        self, template: object, current: Current = None, destination: Destination = None
    ) -> Any:
        """Remove a matching tuple, or None."""
        return await self._get(self._server.inp, template, current, destination)

    @dual_api
    async def ing(
        self, template: object, current: Current = None, destination: Destination = None
    ) -> list[Any]:
        """Remove all matching tuples."""
        return list(await self._get(self._server.ing, template, current, destination))

    def __repr__(self) -> str:
        how = "shared" if self.is_shared else "private"
        return f"<the {how} space {self.name!r} of the agent {self._runtime.state.id}>"


def space_of_migrated(
    runtime: AgentRuntime, interface: InterfaceSpace
) -> LimeSystemTupleSpace | LimeTupleSpace:
    """A handle for the space of an agent that has migrated here."""
    cls: type[LimeSystemTupleSpace | LimeTupleSpace]
    cls = LimeSystemTupleSpace if interface.is_system else LimeTupleSpace
    space = cls.__new__(cls)
    space._hold(runtime, interface)
    return space


def set_shared(spaces: Iterable[LimeTupleSpace], shared: bool) -> Any:
    """Share several spaces of one agent, or make them private, in one step. At the async door the
    result must be awaited."""
    given = list(spaces) if isinstance(spaces, Iterable) else []
    if not given or not all(isinstance(space, LimeTupleSpace) for space in given):
        raise BadArgument("spaces", "one or more LimeTupleSpaces", spaces)
    if len({space._runtime for space in given}) > 1:
        raise BadArgument("spaces", "spaces of one agent", spaces)
    work = given[0]._share(given, shared)
    return work if given[0].is_async else run_coroutine(work)
