"""Reactions as a user makes and holds them (figure 5 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, cast

from tupelo.errors import AgentEnded, BadArgument, NotOwner
from tupelo.models.lime.locations import (
    UNSPECIFIED,
    AgentLocation,
    HostLocation,
    Location,
    check_current,
    check_destination,
)
from tupelo.models.lime.reactions import (
    ONCE,
    ONCE_PER_TUPLE,
    Mode,
    ReactionCall,
    ReactionRecord,
    ReactionStep,
)
from tupelo.models.lime.runtime import (
    AgentRuntime,
    inside_step,
    on_loop,
    require_outside_step,
    role_for,
)
from tupelo.models.lime.spaces import InterfaceSpace
from tupelo.space.dual_api import dual_api
from tupelo.values.template import Template


class Reaction:
    """What is to be done when a tuple matches a template; what it looks at, its subclasses say.

    `listener` is a function of a ReactionEvent, or an object with a method `reacts_to`. `mode` is
    ONCE, or ONCE_PER_TUPLE: never twice for the same tuple.
    """

    def __init__(
        self,
        current: Location | None,
        destination: AgentLocation | None,
        template: object,
        listener: Any,
        mode: Mode,
    ) -> None:
        Template(template)  # refuses what is no template
        if mode not in (ONCE, ONCE_PER_TUPLE):
            raise BadArgument("mode", "ONCE or ONCE_PER_TUPLE", mode)
        if not (callable(listener) or callable(getattr(listener, "reacts_to", None))):
            raise BadArgument("listener", "a function of an event, or have reacts_to()", listener)
        self.current = check_current(current)
        self.destination = check_destination(destination)
        self.template = template
        self.listener = listener
        self.mode = mode

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.template!r}, {self.mode}>"


class UbiquitousReaction(Reaction):
    """A reaction to tuples anywhere in the federated space."""

    def __init__(self, template: object, listener: Any, mode: Mode) -> None:
        super().__init__(UNSPECIFIED, UNSPECIFIED, template, listener, mode)


class LocalizedReaction(Reaction):
    """A reaction to tuples that are with an agent, or at a host, or for an agent."""


@dataclass(frozen=True)
class ReactionEvent:
    """That a reaction has fired: for this `tuple`, which `source` holds (a host, if no agent does).

    In a strong reaction `step` has out, inp, rdp, ing and rdg, within the atomic step, and there
    reactions are registered and removed.
    """

    tuple: Any
    reaction: RegisteredReaction
    source: AgentLocation | HostLocation
    step: ListenerStep | None


class RegisteredReaction(Reaction):
    """A reaction that was registered with one interface tuple space of an agent."""

    def __init__(self, life: AgentRuntime, registered: ReactionRecord) -> None:
        self.current = registered.current
        self.destination = registered.destination
        self.template = registered.template
        self.listener = cast(ReactionDelivery, registered.deliver).listener
        self.mode = registered.mode
        self.is_async = life.is_async
        self._life = life
        self._registered = registered

    @property
    def tuple_space_name(self) -> str:
        return self._registered.its.name

    @property
    def subscriber(self) -> AgentLocation:
        """The agent that registered it."""
        return self._life.state.location

    @property
    def is_weak(self) -> bool:
        return self._registered.weak

    @property
    def enabled(self) -> bool:
        """Can it fire? A ONCE reaction that has fired, and one that was removed, cannot; nor can a
        strong one whose listener took too long, which has an `error` and can be enabled again."""
        return self._registered.registered and self._registered.enabled

    @property
    def error(self) -> Exception | None:
        """What its strong listener raised the last time that it did; that step was undone."""
        return self._registered.error

    @dual_api
    async def enable(self) -> None:
        """Let it fire again. It has forgotten what it reacted to before."""
        await self._do(self._life.host.server.enable)

    @dual_api
    async def disable(self) -> None:
        """Let it fire no more, until it is enabled again."""
        await self._do(self._disable)

    async def _disable(self, registered: ReactionRecord) -> None:
        await self._life.host.server.disable(registered)
        self._life.drop(registered)

    async def _do(self, change: Callable[[ReactionRecord], Coroutine[Any, Any, None]]) -> None:
        check_owner(self._life, self.tuple_space_name)
        if not self._registered.registered:
            raise BadArgument("reaction", "a registered one: it was removed, or has fired", self)
        await self._life.host._door.on_loop(self._life.operate(change, self._registered))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegisteredReaction) and self._registered is other._registered

    def __hash__(self) -> int:
        return hash(id(self._registered))


class ReactionDelivery:
    """How an event of one registered reaction gets to its listener."""

    def __init__(self, life: AgentRuntime, listener: Any) -> None:
        self.listener = listener
        self._life = life
        self._function: Callable[[ReactionEvent], object] = function_of(listener)
        self.__name__ = getattr(self._function, "__name__", type(listener).__name__)

    def __call__(self, event: ReactionCall) -> None:
        if event.registered.weak:
            self._life.deliver(event)
        else:
            with inside_step(), on_loop(self._life.is_async):
                self.listen(event)

    def listen(self, event: ReactionCall) -> object:
        reaction = RegisteredReaction(self._life, event.registered)
        step = None if event.step is None else ListenerStep(self._life, event.step)
        return self._function(ReactionEvent(event.tuple, reaction, event.source, step))


class ListenerStep(ReactionStep):
    """What a strong listener may do. Reactions that it registers and removes are of the space of
    its own reaction, and what it does is undone with the step."""

    def __init__(self, life: AgentRuntime, step: ReactionStep) -> None:
        super().__init__(step._its, step._tuple_store, step._step)
        self._life = life

    def add_strong_reaction(self, *reactions: LocalizedReaction) -> list[RegisteredReaction]:
        """Register these. When the listener has returned they react, still within the step, to
        what is there."""
        return self._add(reactions, weak=False)

    def add_weak_reaction(self, *reactions: Reaction) -> list[RegisteredReaction]:
        """Register these. They are told of what is there soon after the step."""
        return self._add(reactions, weak=True)

    def _add(self, reactions: Iterable[Reaction], weak: bool) -> list[RegisteredReaction]:
        new = new_reactions(self._life, self._its, reactions, weak)
        server = self._life.host.server
        server.reactions.add_within(self._step, new)
        if weak:
            server.change_reactions(self._step, lambda: server.watch_soon(new))
        return [RegisteredReaction(self._life, registered) for registered in new]

    def remove_reaction(self, *reactions: RegisteredReaction) -> None:
        """Have them called no more: strong ones from now on, also within the step; weak ones when
        it is over. One that is gone already is no error."""
        gone = registered_with(self._its, reactions)
        for registered in gone:
            registered.end_within(self._step)

        def remove() -> None:
            for registered in gone:
                registered.remove()
                self._life.drop(registered)

        self._life.host.server.change_reactions(self._step, remove)


def new_reactions(
    life: AgentRuntime, its: InterfaceSpace, reactions: Iterable[Reaction], weak: bool
) -> list[ReactionRecord]:
    """What is to be registered for an agent. BadArgument if one is not of that kind."""
    new = []
    for reaction in reactions:
        if not weak and (not isinstance(reaction, LocalizedReaction) or reaction.current is None):
            raise BadArgument(
                "reaction", "a LocalizedReaction at an agent or a host, to be strong", reaction
            )
        if not isinstance(reaction, Reaction):
            raise BadArgument("reaction", "a UbiquitousReaction or a LocalizedReaction", reaction)
        check_listener(reaction.listener, weak, life.is_async)
        new.append(
            ReactionRecord(
                its,
                reaction.template,
                reaction.mode,
                weak,
                reaction.current,
                reaction.destination,
                ReactionDelivery(life, reaction.listener),
                traveller_name(life, reaction.listener),
            )
        )
    return new


def registered_with(
    its: InterfaceSpace, reactions: Iterable[RegisteredReaction]
) -> list[ReactionRecord]:
    """These, as the engine knows them. BadArgument if one was registered with another space."""
    for reaction in reactions:
        if not isinstance(reaction, RegisteredReaction) or reaction._registered.its is not its:
            raise BadArgument("reaction", "one that was registered with this space", reaction)
    return [reaction._registered for reaction in reactions]


def function_of(listener: Any) -> Callable[[ReactionEvent], object]:
    function: Callable[[ReactionEvent], object] = (
        listener if callable(listener) else listener.reacts_to
    )
    return function


def check_listener(listener: Any, weak: bool, is_async: bool) -> None:
    if iscoroutinefunction(function_of(listener)) and not (weak and is_async):
        where = "at the blocking door" if weak else "in a strong reaction, which cannot wait"
        raise BadArgument("listener", f"a plain function {where}", listener)


def traveller_name(life: AgentRuntime, listener: Any) -> str | None:
    """The method of the agent that a listener is, by name; None for any other, which is code that
    cannot travel."""
    function = function_of(listener)
    name = getattr(function, "__name__", "")
    own = getattr(function, "__self__", None) is life.agent
    return name if own and getattr(life.agent, name, None) == function else None


def check_owner(life: AgentRuntime, space: str) -> None:
    """An agent's spaces are for its own thread, and its listeners."""
    require_outside_step()
    if role_for(life) is None:
        raise NotOwner(space, life.state.id)
    if life.ended:
        raise AgentEnded(life.state.id)
