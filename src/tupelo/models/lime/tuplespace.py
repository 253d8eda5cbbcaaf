"""The tuple spaces that an agent holds (figure 4 of the paper), and LimeSystem. One text for both
doors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tupelo.errors import BadArgument, BadInput
from tupelo.models.lime.agent import Agent
from tupelo.models.lime.locations import (
    UNSPECIFIED,
    Current,
    Destination,
    check_current,
    check_destination,
)
from tupelo.models.lime.messages import TuplePlace, where_of
from tupelo.models.lime.reaction import (
    LocalizedReaction,
    Reaction,
    RegisteredReaction,
    check_owner,
    new_reactions,
    registered_with,
)
from tupelo.models.lime.reactions import ReactionRecord
from tupelo.models.lime.runtime import AgentRuntime, require_outside_step, role_for, speaker
from tupelo.models.lime.spaces import SYSTEM_NAME, InterfaceSpace
from tupelo.space.checks import check_wait
from tupelo.space.dual_api import dual_api, run_coroutine


class _Readable:
    """What every space of an agent has: reading, and reactions."""

    def __init__(self, name: str, agent: Agent | None) -> None:
        if not isinstance(name, str) or not name:
            raise BadArgument("name", "a text that is not empty", name)
        if agent is not None and not isinstance(agent, Agent):
            raise BadArgument("agent", "an Agent", agent)
        require_outside_step()
        life = speaker() if agent is None else agent._alive
        if life is None:
            raise BadInput(
                "no agent is running here: make one with host.agent(...), or give agent="
            )
        check_owner(life, name)

        async def find() -> InterfaceSpace:
            return life.host.server.space(life.state, name)

        self._hold(life, life.host._door.now(find()))

    def _hold(self, life: AgentRuntime, its: InterfaceSpace) -> None:
        self.is_async = life.is_async
        self._life = life
        self._server = life.host.server
        self._its = its

    @property
    def name(self) -> str:
        return self._its.name

    @property
    def is_owner(self) -> bool:
        """May the running code use it: is it the agent's own?"""
        return role_for(self._life) is not None

    async def _do(self, work: Any, *args: Any) -> Any:
        check_owner(self._life, self.name)
        return await self._life.host._door.on_loop(self._life.operate(work, *args))

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
        return await self._do(
            self._server.rd, self._its, template, _where(current, destination), wait
        )

    @dual_api
    async def rdp(
        self, template: object, current: Current = None, destination: Destination = None
    ) -> Any:
        """Copy a matching tuple, or None."""
        return await self._do(self._server.rdp, self._its, template, _where(current, destination))

    @dual_api
    async def rdg(
        self, template: object, current: Current = None, destination: Destination = None
    ) -> list[Any]:
        """Copy all matching tuples."""
        found: list[Any] = await self._do(
            self._server.rdg, self._its, template, _where(current, destination)
        )
        return found

    # Reactions

    @dual_api
    async def add_strong_reaction(self, *reactions: LocalizedReaction) -> list[RegisteredReaction]:
        """Have the listeners called inside the atomic step in which a tuple becomes visible, at the
        host where the agent is. They are looked at for what is there already as well.

        The host does nothing else while a listener runs, so it may not wait. One that takes longer
        than two heartbeats of the host has failed: the step is undone, and the reaction disabled.
        """
        return await self._add(reactions, weak=False)

    @dual_api
    async def add_weak_reaction(self, *reactions: Reaction) -> list[RegisteredReaction]:
        """Have the listeners called soon after a tuple has become visible anywhere; one after the
        other, beside the agent's `run`. They are told of what is there already as well."""
        return await self._add(reactions, weak=True)

    async def _add(self, reactions: Iterable[Reaction], weak: bool) -> list[RegisteredReaction]:
        new = new_reactions(self._life, self._its, reactions, weak)
        await self._do(self._server.add_reactions, new)
        return [RegisteredReaction(self._life, registered) for registered in new]

    @dual_api
    async def remove_reaction(self, *reactions: RegisteredReaction) -> None:
        """Have them called no more. One that is gone already, or has fired once, is no error."""
        for registered in registered_with(self._its, reactions):
            await self._do(self._remove, registered)

    async def _remove(self, registered: ReactionRecord) -> None:
        await self._server.remove_reaction(registered)
        self._life.drop(registered)

    def is_registered_reaction(self, reaction: RegisteredReaction) -> bool:
        return reaction in self.get_registered_reactions()

    def get_registered_reactions(self) -> list[RegisteredReaction]:
        """Those of this agent on this space, enabled or not; ONCE reactions that fired are gone."""
        check_owner(self._life, self.name)

        async def find() -> list[ReactionRecord]:
            return [one for one in self._life.state.reactions if one.its is self._its]

        return [RegisteredReaction(self._life, one) for one in self._life.host._door.now(find())]


class LimeSystemTupleSpace(_Readable):
    """Who is there, to read and to react to: ("host", host id, name), ("agent", agent id, host id,
    state) and ("space", name, agent id, host id). It is the same at every host of the group."""

    def __init__(self, agent: Agent | None = None) -> None:
        super().__init__(SYSTEM_NAME, agent)

    def __repr__(self) -> str:
        return f"<LimeSystem, as the agent {self._life.state.id} sees it>"


class LimeTupleSpace(_Readable):
    """An agent's interface tuple space of this name. To begin with it is private; once it is shared
    it shows the tuples of all agents of the group that share one of this name.

    It belongs to one agent: the one that runs here, or `agent`. Asked for again, it is the same.
    """

    def __init__(self, name: str, agent: Agent | None = None) -> None:
        if name == SYSTEM_NAME:
            raise BadArgument("name", "any but that of the LimeSystemTupleSpace", name)
        super().__init__(name, agent)

    @property
    def is_shared(self) -> bool:
        return self._its.shared

    @dual_api
    async def set_shared(self, shared: bool) -> None:
        """Engage it with those of the same name, here and at the other hosts; or take it out, with
        the tuples that are this agent's. Either is one step for the whole group. BadEntry if there
        is a tuple in it that is too large to be sent (31 MiB)."""
        await self._share([self], shared)

    async def _share(self, spaces: list[LimeTupleSpace], shared: bool) -> None:
        if not isinstance(shared, bool):
            raise BadArgument("shared", "True or False", shared)
        await self._do(self._server.set_shared, [space._its for space in spaces], shared)

    @dual_api
    async def out(self, tuple: object, destination: Destination = UNSPECIFIED) -> None:
        """Write a tuple. With a destination it goes to that agent, now or when it engages. BadEntry
        if the space is shared and the tuple is too large to be sent (31 MiB)."""
        await self._do(self._server.out, self._its, tuple, check_destination(destination))

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
        return await self._do(
            self._server.in_, self._its, template, _where(current, destination), wait
        )

    @dual_api
    async def inp(
        self, template: object, current: Current = None, destination: Destination = None
    ) -> Any:
        """Remove a matching tuple, or None."""
        return await self._do(self._server.inp, self._its, template, _where(current, destination))

    @dual_api
    async def ing(
        self, template: object, current: Current = None, destination: Destination = None
    ) -> list[Any]:
        """Remove all matching tuples."""
        found: list[Any] = await self._do(
            self._server.ing, self._its, template, _where(current, destination)
        )
        return found

    def __repr__(self) -> str:
        how = "shared" if self.is_shared else "private"
        return f"<the {how} space {self.name!r} of the agent {self._life.state.id}>"


def held(life: AgentRuntime, its: InterfaceSpace) -> LimeSystemTupleSpace | LimeTupleSpace:
    """The space of an agent that has just come with it."""
    cls: type[LimeSystemTupleSpace | LimeTupleSpace]
    cls = LimeSystemTupleSpace if its.is_system else LimeTupleSpace
    space = cls.__new__(cls)
    space._hold(life, its)
    return space


def set_shared(spaces: Iterable[LimeTupleSpace], shared: bool) -> Any:
    """Share several spaces of one agent, or make them private, in one step. At the async door it is
    to be awaited."""
    given = list(spaces) if isinstance(spaces, Iterable) else []
    if not given or not all(isinstance(space, LimeTupleSpace) for space in given):
        raise BadArgument("spaces", "one or more LimeTupleSpaces", spaces)
    if len({space._life for space in given}) > 1:
        raise BadArgument("spaces", "spaces of one agent", spaces)
    work = given[0]._share(given, shared)
    return work if given[0].is_async else run_coroutine(work)


def _where(current: Current, destination: Destination) -> TuplePlace:
    return where_of(check_current(current), check_destination(destination))
