"""Reactions: the classes of users (figure 5 of the paper), and the engine that runs them.

A strong reaction runs in the atomic step in which a tuple becomes visible at its host. It is
registered with the engine of the tuple store of its space, and moves with the space. A weak
reaction runs afterwards, for tuples of all hosts: it watches the group through the transport while
its space is shared, and the private tuple store otherwise. The tuples for which a reaction has
fired are remembered with it, and migrate with its agent."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, Protocol, cast

import msgspec

from tupelo.errors import AgentEnded, BadArgument, LimeError, NotOwner
from tupelo.models.lime.agent import (
    AgentRuntime,
    inside_step,
    on_loop,
    require_outside_step,
    role_for,
)
from tupelo.models.lime.engine import OLDEST_FIRST, EngineReaction, EngineStep
from tupelo.models.lime.locations import (
    UNSPECIFIED,
    AgentLocation,
    Current,
    Destination,
    HostLocation,
    Location,
    check_current,
    check_destination,
)
from tupelo.models.lime.messages import (
    ANYWHERE,
    FoundTuple,
    TuplePattern,
    encoded_template,
    place_of,
)
from tupelo.models.lime.spaces import AgentState, InterfaceSpace, TupleStore
from tupelo.space.dual_api import dual_api
from tupelo.space.session import Seen
from tupelo.space.waiting import WriteOutcome
from tupelo.values.entry import Entry, freeze, thaw
from tupelo.values.parts import ANY
from tupelo.values.template import Template, as_template

Mode = Literal["once", "once per tuple"]
ONCE: Final = "once"
"""The reaction fires once, and is then no longer registered."""
ONCE_PER_TUPLE: Final = "once per tuple"
"""The reaction fires for every matching tuple, never twice for the same."""

Detected = Callable[[FoundTuple], None]
"""Called with a tuple that was found."""


class ReactionWatch(Protocol):
    """A running search for tuples in the group."""

    def cancel(self) -> object: ...


@dataclass(eq=False, repr=False)
class ReactionRecord:
    """A registered reaction, as the engine knows it. `deliver` is called when it fires: in the step
    for a strong reaction, on the loop in order for a weak one. `tag` is a value of the caller that
    migrates with the reaction."""

    interface: InterfaceSpace
    template: Any
    mode: Mode
    weak: bool
    current: Location | None
    destination: AgentLocation | None
    deliver: Callable[[ReactionCall], object]
    tag: Any = None
    enabled: bool = True
    fired: Seen = field(default_factory=Seen)
    watch: ReactionWatch | None = None
    watches_own: bool = False
    _removing: bool = False
    """Whether it was removed in a step that has not ended."""
    _removed: bool = False
    _state: EngineReaction | None = None
    _tuple_store: TupleStore | None = None

    def __post_init__(self) -> None:
        self.where = place_of(self.current, self.destination)

    @property
    def registered(self) -> bool:
        """False if it was removed, or is a ONCE reaction that has fired."""
        if self._removed or self._removing:
            return False
        return self._state is None or not self._state.ended

    @property
    def error(self) -> Exception | None:
        """The last exception of its listener in a step, which was undone."""
        return None if self._state is None else self._state.error

    def pattern(self) -> TuplePattern:
        """The search of a weak reaction. Raises BadTemplate if the template cannot be sent."""
        once = self.mode == ONCE
        return TuplePattern(
            self.interface.name, encoded_template(self.template), self.where, False, once
        )

    def forget(self) -> None:
        """Forget the tuples for which the reaction has fired."""
        self.fired = Seen()

    def remove(self) -> None:
        self._removed = True
        self.unregister()

    # Strong reactions

    def register(
        self, here: str, existing: bool, seconds_max: float, within: EngineStep | None = None
    ) -> None:
        """Register a strong reaction with the engine of its current tuple store, unless it is for
        another host. `existing`: it fires for existing tuples too. A listener that runs longer than
        `seconds_max` fails. `within` is the step of the listener that registers it."""
        if isinstance(self.current, HostLocation) and self.current.id != here:
            return
        tuple_store = self.interface.tuple_store

        def react(entry: Entry, step: EngineStep) -> None:
            source = location_of(tuple_store.current(entry), here)
            begin = tuple_store.clock.now()
            self.deliver(
                ReactionCall(self, entry, source, ReactionStep(self.interface, tuple_store, step))
            )
            seconds = tuple_store.clock.now() - begin
            if seconds > seconds_max:
                self.enabled = False  # or it would block the host again, for the next tuple
                raise LimeError(
                    f"this strong listener took {seconds:.1f} s, and {seconds_max:.1f} s is the "
                    "most: its host does nothing else meanwhile, and other hosts drop it. The "
                    "reaction was disabled. Let its listener not wait, or make it a weak reaction"
                )

        react.__name__ = getattr(self.deliver, "__name__", react.__name__)  # for error messages
        accept = tuple_store.accept(self.where)

        is_system = self.interface.is_system

        def only(entry: Entry) -> bool:
            """Misplaced tuples move to their host first."""
            if not self.enabled or self._removed or self._removing:
                return False
            if is_system:
                return True
            return tuple_store.away(entry) is None and (accept is None or accept(entry))

        self._tuple_store = tuple_store
        template, once = self.template, self.mode == ONCE
        if within is not None:
            self._state = within.add_reaction(template, react, once, only, True, self.fired)
            return
        self._state, position = tuple_store.engine.react(
            template, react, once, existing, only, self.fired
        )
        tuple_store.flush_soon(position)
        if self._removed:  # by its own listener, for an existing tuple
            self.unregister()

    def end_within(self, step: EngineStep) -> None:
        """Remove the reaction in a step of a listener: it stops now, and is back if the step is
        undone."""

        def over(holds: bool) -> None:
            self._removing = False
            self._removed = self._removed or holds
            if holds and not self.weak:  # The watch of a weak reaction is ended on the loop.
                self.unregister()

        step.when_over(over)
        self._removing = True

    def unregister(self) -> None:
        """Stop the reaction: unregister it from the engine, or end its watch."""
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None
        self.watches_own = False
        if self._state is not None and self._tuple_store is not None:
            fired_for_all = self._state.ended
            self._tuple_store.engine.end_reaction(self._state)
            self._removed = self._removed or fired_for_all
            self._state = self._tuple_store = None

    # Weak reactions

    def detected(self, found: FoundTuple) -> None:
        """Fire a weak reaction for a tuple, unless it has fired for it before."""
        entry, current, host = found
        if not (self.enabled and self.registered) or entry in self.fired:
            return
        if self.mode == ONCE:
            self.remove()
        self.fired.add(entry)
        self.deliver(ReactionCall(self, entry, location_of(current, host)))

    def wants(self, tuple_store: TupleStore, entry: Entry, here: str) -> bool:
        """Whether a tuple of the own tuple store matches this weak reaction."""
        if not as_template(self.template).admits(entry.shape, entry.fields):
            return False
        return self.interface.is_system or self.where.admits(
            entry, tuple_store.current(entry), here
        )


class ReactionCall(msgspec.Struct, frozen=True, eq=False):
    """One firing of a reaction for an entry. `source` is the agent that holds the tuple, or the
    host if no agent does; `step` is the atomic step of a strong reaction."""

    registered: ReactionRecord
    entry: Entry
    source: Location
    step: ReactionStep | None = None

    @property
    def tuple(self) -> Any:
        """A copy of the tuple; raises UnknownType if its class is not known here."""
        return thaw(self.entry.shape, self.entry.fields)


@dataclass(eq=False, repr=False)
class ReactionStep:
    """The operations of a strong listener within the atomic step, on the tuples of this host. None
    of them waits."""

    _interface: InterfaceSpace
    _tuple_store: TupleStore
    _step: EngineStep

    def out(self, tuple: object, destination: AgentLocation | None = None) -> None:
        """Write a tuple. If it is for an agent at another host it moves there after the step."""
        self._interface.require_writable("write")
        self._interface.require_sendable(freeze(tuple))
        mark = mark_of(self._interface.agent, check_destination(destination))
        self._step.write_marked(tuple, mark)

    def inp(
        self, template: object = ANY, current: Current = None, destination: Destination = None
    ) -> Any:
        """Remove a matching tuple, or return None."""
        return _first(self._get(template, current, destination, True, 1))

    def rdp(
        self, template: object = ANY, current: Current = None, destination: Destination = None
    ) -> Any:
        """Copy a matching tuple, or return None."""
        return _first(self._get(template, current, destination, False, 1))

    def ing(
        self, template: object = ANY, current: Current = None, destination: Destination = None
    ) -> list[Any]:
        """Remove all matching tuples."""
        return self._get(template, current, destination, True, None)

    def rdg(
        self, template: object = ANY, current: Current = None, destination: Destination = None
    ) -> list[Any]:
        """Copy all matching tuples."""
        return self._get(template, current, destination, False, None)

    def _get(
        self,
        template: object,
        current: Current,
        destination: Destination,
        take: bool,
        limit: int | None,
    ) -> list[Any]:
        if take:
            self._interface.require_writable("take")
        where = place_of(check_current(current), check_destination(destination))
        only = self._tuple_store.accept(where)
        return self._step.get(template, take=take, limit=limit, only=only, order=OLDEST_FIRST)


@dataclass(eq=False, repr=False)
class Reactions:
    """Starts and stops the reactions of the agents at one host."""

    _here: str
    _watch: Callable[[TuplePattern, Detected], ReactionWatch]
    _listener_seconds_max: float

    def add(self, reactions: list[ReactionRecord]) -> None:
        """Register reactions, all or none; strong ones fire for existing tuples at once."""
        _check_watchable(reactions)
        try:
            for one in reactions:
                one.interface.agent.add(one)
                self._start(one, existing=True)
        except BaseException:
            for one in reactions:
                one.remove()
            raise

    def add_within(self, step: EngineStep, reactions: list[ReactionRecord]) -> None:
        """Register reactions in the step of a strong listener, on any thread. Strong ones fire
        within the step; weak ones must be started with `watch` after it."""
        _check_watchable(reactions)
        try:
            for one in reactions:
                if not one.weak:
                    one.register(self._here, True, self._listener_seconds_max, step)
        except BaseException:
            for one in reactions:
                one.end_within(step)
            raise

        def over(holds: bool) -> None:
            for one in reactions:
                if holds:
                    one.interface.agent.add(one)
                else:
                    one.remove()

        step.when_over(over)

    def enable(self, one: ReactionRecord) -> None:
        """Enable a disabled reaction; it forgets the tuples for which it has fired."""
        if not one.enabled and one.registered:
            one.unregister()
            one.enabled = True
            one.forget()
            self._start(one, existing=True)

    def disable(self, one: ReactionRecord) -> None:
        one.enabled = False
        one.unregister()

    def _start(self, one: ReactionRecord, existing: bool) -> None:
        if not one.enabled:
            return
        if not one.weak:
            one.register(self._here, existing, self._listener_seconds_max)
        else:
            self.watch(one)

    def watch(self, one: ReactionRecord) -> None:
        """Start the watch of a weak reaction in the group, or in its private tuple store."""
        if not (one.enabled and one.registered):
            return
        if one.interface.shared and one.watch is None:
            watch = self._watch(one.pattern(), one.detected)
            if one.registered:
                one.watch = watch
            else:  # A ONCE reaction has fired at once.
                watch.cancel()
        elif not one.interface.shared and not one.watches_own:
            one.watches_own = True
            tuple_store = one.interface.tuple_store
            entries = tuple_store.look(one.template, ANYWHERE, one=False, known=False)
            self._tell(one, tuple_store, entries)

    def _tell(self, one: ReactionRecord, tuple_store: TupleStore, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if one.wants(tuple_store, entry, self._here):
                one.detected(FoundTuple(entry, tuple_store.current(entry), self._here))

    def feed(
        self, tuple_store: TupleStore, agents: Iterable[AgentState], entries: list[Entry]
    ) -> None:
        """Pass new tuples of a private tuple store, or of LimeSystem, to the weak reactions
        there."""
        for agent in agents:
            for one in agent.reactions:
                if one.weak and one.watches_own and one.interface.tuple_store is tuple_store:
                    self._tell(one, tuple_store, entries)

    # Changes of the tuple store of a space

    def unregister_all(self, interface: InterfaceSpace) -> None:
        for one in interface.agent.reactions:
            if one.interface is interface:
                one.unregister()

    def register_all(self, interface: InterfaceSpace) -> None:
        """Register the strong reactions of a space with its new tuple store; they fire for existing
        tuples that are new to them. `settle` starts the weak ones."""
        strong = [
            one for one in interface.agent.reactions if one.interface is interface and not one.weak
        ]
        for one in strong:
            self._start(one, existing=False)
        if strong:
            tuple_store = interface.tuple_store
            self.catch_up(tuple_store, tuple_store.look(ANY, ANYWHERE, one=False, known=False))

    @staticmethod
    def catch_up(tuple_store: TupleStore, entries: list[Entry]) -> None:
        if entries:
            tuple_store.flush_soon(tuple_store.engine.catch_up(entries))

    def settle(self, agents: Iterable[AgentState]) -> None:
        """Start the weak reactions of these agents where their spaces are now."""
        for agent in agents:
            for one in agent.reactions:
                if one.weak:
                    self.watch(one)


def _check_watchable(reactions: list[ReactionRecord]) -> None:
    """Raise BadTemplate if the template of a weak reaction cannot be sent."""
    for one in reactions:
        if one.weak and not one.interface.is_system:
            one.pattern()


def location_of(current: str, host: str) -> Location:
    return HostLocation(host) if current == host else AgentLocation(current)


def mark_of(agent: AgentState, destination: AgentLocation | None) -> WriteOutcome:
    """The origin, number and destination of a new tuple of an agent."""
    to = None if destination is None or destination.id == agent.id else destination.id
    return WriteOutcome(agent.id, agent.next_number(), to)


def _first(found: list[Any]) -> Any:
    return found[0] if found else None


class Reaction:
    """A listener that is called when a tuple matches a template; use a subclass.

    `listener` is a function of a ReactionEvent, or an object with a method `reacts_to`. `mode` is
    ONCE, or ONCE_PER_TUPLE: never twice for the same tuple. `current` and `destination` limit the
    locations of the tuples.
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
    """A reaction to tuples whose current location is an agent or host, or whose destination is an
    agent."""


@dataclass(frozen=True)
class ReactionEvent:
    """The argument of a listener: the `tuple`, the `reaction` that has fired, and the `source`, the
    agent that holds the tuple, or the host if no agent does.

    `step` is None for a weak reaction. For a strong one it has the operations of the atomic step:
    out, inp, rdp, ing and rdg, and methods to register and remove reactions."""

    tuple: Any
    reaction: RegisteredReaction
    source: AgentLocation | HostLocation
    step: ListenerStep | None


class RegisteredReaction(Reaction):
    """A reaction that was registered with an interface tuple space of an agent."""

    def __init__(self, runtime: AgentRuntime, registered: ReactionRecord) -> None:
        self.current = registered.current
        self.destination = registered.destination
        self.template = registered.template
        self.listener = cast(ReactionDelivery, registered.deliver).listener
        self.mode = registered.mode
        self.is_async = runtime.is_async
        self._runtime = runtime
        self._registered = registered

    @property
    def tuple_space_name(self) -> str:
        """The name of the space with which the reaction is registered."""
        return self._registered.interface.name

    @property
    def subscriber(self) -> AgentLocation:
        """The agent that has registered the reaction."""
        return self._runtime.state.location

    @property
    def is_weak(self) -> bool:
        """Whether the reaction is weak."""
        return self._registered.weak

    @property
    def enabled(self) -> bool:
        """Whether the reaction can fire. False if it was disabled or removed, for a ONCE reaction
        that has fired, and for a strong one whose listener took too long (see `error`)."""
        return self._registered.registered and self._registered.enabled

    @property
    def error(self) -> Exception | None:
        """The last exception of the listener of a strong reaction; that step was undone."""
        return self._registered.error

    @dual_api
    async def enable(self) -> None:
        """Let the reaction fire again. It forgets the tuples for which it has fired."""
        await self._do(self._runtime.host.server.enable)

    @dual_api
    async def disable(self) -> None:
        """Let the reaction not fire until it is enabled again."""
        await self._do(self._disable)

    async def _disable(self, registered: ReactionRecord) -> None:
        await self._runtime.host.server.disable(registered)
        self._runtime.drop(registered)

    async def _do(self, change: Callable[[ReactionRecord], Coroutine[Any, Any, None]]) -> None:
        check_owner(self._runtime, self.tuple_space_name)
        if not self._registered.registered:
            raise BadArgument("reaction", "a registered one: it was removed, or has fired", self)
        await self._runtime.host._door.on_loop(self._runtime.operate(change, self._registered))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegisteredReaction) and self._registered is other._registered

    def __hash__(self) -> int:
        return hash(id(self._registered))


class ReactionDelivery:
    """Delivers the events of one registered reaction to its listener."""

    def __init__(self, runtime: AgentRuntime, listener: Any) -> None:
        self.listener = listener
        self._runtime = runtime
        self._function: Callable[[ReactionEvent], object] = function_of(listener)
        self.__name__ = getattr(self._function, "__name__", type(listener).__name__)

    def __call__(self, event: ReactionCall) -> None:
        if event.registered.weak:
            self._runtime.deliver(event)
        else:
            with inside_step(), on_loop(self._runtime.is_async):
                self.listen(event)

    def listen(self, event: ReactionCall) -> object:
        reaction = RegisteredReaction(self._runtime, event.registered)
        step = None if event.step is None else ListenerStep(self._runtime, event.step)
        return self._function(ReactionEvent(event.tuple, reaction, event.source, step))


class ListenerStep(ReactionStep):
    """The operations of a strong listener (`event.step`). It registers and removes reactions of the
    space of its own reaction. All of it is undone if the step is."""

    def __init__(self, runtime: AgentRuntime, step: ReactionStep) -> None:
        super().__init__(step._interface, step._tuple_store, step._step)
        self._runtime = runtime

    def add_strong_reaction(self, *reactions: LocalizedReaction) -> list[RegisteredReaction]:
        """Register strong reactions. They fire for existing tuples when the listener has returned,
        still within the step."""
        return self._add(reactions, weak=False)

    def add_weak_reaction(self, *reactions: Reaction) -> list[RegisteredReaction]:
        """Register weak reactions. They fire for existing tuples soon after the step."""
        return self._add(reactions, weak=True)

    def _add(self, reactions: Iterable[Reaction], weak: bool) -> list[RegisteredReaction]:
        new = new_records(self._runtime, self._interface, reactions, weak)
        server = self._runtime.host.server
        server.reactions.add_within(self._step, new)
        if weak:
            server.change_reactions(self._step, lambda: server.watch_soon(new))
        return [RegisteredReaction(self._runtime, registered) for registered in new]

    def remove_reaction(self, *reactions: RegisteredReaction) -> None:
        """Remove reactions: strong ones at once, also within the step; weak ones after it. A
        reaction that was removed before is ignored."""
        gone = registered_with(self._interface, reactions)
        for registered in gone:
            registered.end_within(self._step)

        def remove() -> None:
            for registered in gone:
                registered.remove()
                self._runtime.drop(registered)

        self._runtime.host.server.change_reactions(self._step, remove)


def new_records(
    runtime: AgentRuntime, interface: InterfaceSpace, reactions: Iterable[Reaction], weak: bool
) -> list[ReactionRecord]:
    """Records for reactions of an agent. Raises BadArgument for a reaction of the wrong kind."""
    new = []
    for reaction in reactions:
        if not weak and (not isinstance(reaction, LocalizedReaction) or reaction.current is None):
            raise BadArgument(
                "reaction", "a LocalizedReaction at an agent or a host, to be strong", reaction
            )
        if not isinstance(reaction, Reaction):
            raise BadArgument("reaction", "a UbiquitousReaction or a LocalizedReaction", reaction)
        function = function_of(reaction.listener)
        if iscoroutinefunction(function) and not (weak and runtime.is_async):
            where = "at the blocking door" if weak else "in a strong reaction, which cannot wait"
            raise BadArgument("listener", f"a plain function {where}", reaction.listener)
        name = getattr(function, "__name__", "")
        own = getattr(function, "__self__", None) is runtime.agent
        is_method = own and getattr(runtime.agent, name, None) == function
        new.append(
            ReactionRecord(
                interface,
                reaction.template,
                reaction.mode,
                weak,
                reaction.current,
                reaction.destination,
                ReactionDelivery(runtime, reaction.listener),
                name if is_method else None,  # Other functions cannot migrate.
            )
        )
    return new


def registered_with(
    interface: InterfaceSpace, reactions: Iterable[RegisteredReaction]
) -> list[ReactionRecord]:
    """The records of reactions. Raises BadArgument for a reaction of another space."""
    for reaction in reactions:
        if (
            not isinstance(reaction, RegisteredReaction)
            or reaction._registered.interface is not interface
        ):
            raise BadArgument("reaction", "one that was registered with this space", reaction)
    return [reaction._registered for reaction in reactions]


def function_of(listener: Any) -> Callable[[ReactionEvent], object]:
    function: Callable[[ReactionEvent], object] = (
        listener if callable(listener) else listener.reacts_to
    )
    return function


def check_owner(runtime: AgentRuntime, space: str) -> None:
    """Raise NotOwner unless the running code acts for this agent, AgentEnded if it has ended."""
    require_outside_step()
    if role_for(runtime) is None:
        raise NotOwner(space, runtime.state.id)
    if runtime.ended:
        raise AgentEnded(runtime.state.id)
