"""Reactions: strong ones in the step in which a tuple comes into sight here, weak ones afterwards,
wherever in the group it is.

A strong reaction is one of the tuple store on which its interface tuple space is, and moves with
it. A weak one watches all hosts through the carriage while its space is shared, and its own
tuple store while it is private. What it has reacted to is remembered with it, and travels with
its agent."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
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
from tupelo.models.lime.messages import ANYWHERE, TuplePattern, encoded_template, where_of
from tupelo.models.lime.spaces import AgentState, InterfaceSpace, TupleStore
from tupelo.space.dual_api import dual_api
from tupelo.space.session import Seen
from tupelo.space.writers import WriteOutcome
from tupelo.values.entry import Entry, freeze, thaw
from tupelo.values.parts import ANY
from tupelo.values.template import Template, as_template

Mode = Literal["once", "once per tuple"]
ONCE: Final = "once"
"""It fires one time, and is then no longer registered."""
ONCE_PER_TUPLE: Final = "once per tuple"
"""It fires for every tuple that matches, and never twice for the same."""

Detected = Callable[[Entry, str, str], None]
"""Told of a tuple, who is responsible for it, and the host where it is."""


class ReactionWatch(Protocol):
    """Something that looks out for tuples in the group."""

    def cancel(self) -> object: ...


class ReactionRecord:
    """A reaction that was registered with an interface tuple space. `deliver` is called when it
    fires: of a strong one in the step, of a weak one on the loop, in order. `tag` is the caller's,
    and travels."""

    def __init__(
        self,
        its: InterfaceSpace,
        template: Any,
        mode: Mode,
        weak: bool,
        current: Location | None,
        destination: AgentLocation | None,
        deliver: Callable[[ReactionCall], object],
        tag: Any = None,
    ) -> None:
        self.its = its
        self.template = template
        self.mode = mode
        self.weak = weak
        self.current = current
        self.destination = destination
        self.deliver = deliver
        self.tag = tag
        self.where = where_of(current, destination)
        self.enabled = True
        self.fired = Seen()
        self.watch: ReactionWatch | None = None
        self.watches_own = False
        self._leaving = False
        """Was it removed in a step that is not over?"""
        self._removed = False
        self._state: EngineReaction | None = None
        self._tuple_store: TupleStore | None = None

    @property
    def registered(self) -> bool:
        """Has it not been removed, nor fired once for all?"""
        if self._removed or self._leaving:
            return False
        return self._state is None or not self._state.ended

    @property
    def error(self) -> Exception | None:
        """What its listener raised in a step, which was undone."""
        return None if self._state is None else self._state.error

    def pattern(self) -> TuplePattern:
        """What a weak one looks out for. BadTemplate if it cannot be sent."""
        once = self.mode == ONCE
        return TuplePattern(self.its.name, encoded_template(self.template), self.where, False, once)

    def forget(self) -> None:
        """It is as if it had never fired."""
        self.fired = Seen()

    def remove(self) -> None:
        self._removed = True
        self.displace()

    # Strong ones

    def place(
        self, here: str, existing: bool, seconds_max: float, within: EngineStep | None = None
    ) -> None:
        """Let a strong one react on the tuple store where its space is now, if it is one for this
        host: it may wait for its agent to come to another. Its listener may run for so many
        seconds. `within` is the step of the listener that registers it."""
        if isinstance(self.current, HostLocation) and self.current.id != here:
            return
        tuple_store = self.its.tuple_store

        def react(entry: Entry, step: EngineStep) -> None:
            source = location_of(tuple_store.current(entry), here)
            begin = tuple_store.clock.now()
            self.deliver(
                ReactionCall(self, entry, source, ReactionStep(self.its, tuple_store, step))
            )
            seconds = tuple_store.clock.now() - begin
            if seconds > seconds_max:
                self.enabled = False  # or it would hold the host again, for the next tuple
                raise LimeError(
                    f"this strong listener took {seconds:.1f} s, and {seconds_max:.1f} s is the "
                    "most: its host does nothing else meanwhile, and others take it for lost. The "
                    "reaction was disabled. Let its listener not wait, or make it a weak reaction"
                )

        react.__name__ = getattr(self.deliver, "__name__", react.__name__)  # for who is told
        accept = tuple_store.accept(self.where)

        is_system = self.its.is_system

        def only(entry: Entry) -> bool:
            """What is at home at another host goes there first."""
            if not self.enabled or self._removed or self._leaving:
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
        if self._removed:  # by its own listener, for something that was there
            self.displace()

    def end_within(self, step: EngineStep) -> None:
        """It is removed, unless this step is undone; it reacts no more from now on."""

        def over(holds: bool) -> None:
            self._leaving = False
            self._removed = self._removed or holds
            if holds and not self.weak:  # What a weak one watches is for the loop to end.
                self.displace()

        step.when_over(over)
        self._leaving = True

    def displace(self) -> None:
        """Let it react no more."""
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None
        self.watches_own = False
        if self._state is not None and self._tuple_store is not None:
            fired_for_all = self._state.ended
            self._tuple_store.engine.end_reaction(self._state)
            self._removed = self._removed or fired_for_all
            self._state = self._tuple_store = None

    # Weak ones

    def detected(self, entry: Entry, current: str, host: str) -> None:
        """A weak one learns of a tuple, perhaps for the second time."""
        if not (self.enabled and self.registered) or entry in self.fired:
            return
        if self.mode == ONCE:
            self.remove()
        self.fired.add(entry)
        self.deliver(ReactionCall(self, entry, location_of(current, host)))

    def wants(self, tuple_store: TupleStore, entry: Entry, here: str) -> bool:
        """Is a tuple of its own tuple store one for this weak reaction?"""
        if not as_template(self.template).admits(entry.shape, entry.fields):
            return False
        return self.its.is_system or self.where.admits(entry, tuple_store.current(entry), here)


class ReactionCall(msgspec.Struct, frozen=True, eq=False):
    """A reaction has fired for an entry; `source` is who holds it: an agent, or a host if no agent
    does. A strong one is in a `step`."""

    registered: ReactionRecord
    entry: Entry
    source: Location
    step: ReactionStep | None = None

    @property
    def tuple(self) -> Any:
        """The tuple, the listener's own; UnknownType if its class is not known here."""
        return thaw(self.entry.shape, self.entry.fields)


class ReactionStep:
    """What a strong listener may do: the operations that do not wait, on the tuples that are at
    this host, within the atomic step."""

    def __init__(self, its: InterfaceSpace, tuple_store: TupleStore, step: EngineStep) -> None:
        self._its = its
        self._tuple_store = tuple_store
        self._step = step

    def out(self, tuple: object, destination: AgentLocation | None = None) -> None:
        """What is for an agent elsewhere goes there when the step is over."""
        self._its.require_writable("write")
        self._its.require_sendable(freeze(tuple))
        mark = mark_of(self._its.agent, check_destination(destination))
        self._step.write_marked(tuple, mark)

    def inp(
        self, template: object = ANY, current: Current = None, destination: Destination = None
    ) -> Any:
        return _first(self._get(template, current, destination, True, 1))

    def rdp(
        self, template: object = ANY, current: Current = None, destination: Destination = None
    ) -> Any:
        return _first(self._get(template, current, destination, False, 1))

    def ing(
        self, template: object = ANY, current: Current = None, destination: Destination = None
    ) -> list[Any]:
        return self._get(template, current, destination, True, None)

    def rdg(
        self, template: object = ANY, current: Current = None, destination: Destination = None
    ) -> list[Any]:
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
            self._its.require_writable("take")
        where = where_of(check_current(current), check_destination(destination))
        only = self._tuple_store.accept(where)
        return self._step.get(template, take=take, limit=limit, only=only, order=OLDEST_FIRST)


class Reactions:
    """All reactions of the agents at one host."""

    def __init__(
        self,
        here: str,
        watch: Callable[[TuplePattern, Detected], ReactionWatch],
        listener_seconds_max: float,
    ) -> None:
        self._here = here
        self._watch = watch
        self._listener_seconds_max = listener_seconds_max

    def add(self, reactions: list[ReactionRecord]) -> None:
        """Register these, all or none; strong ones react to what is there."""
        _check_watchable(reactions)
        try:
            for one in reactions:
                one.its.agent.add(one)
                self._put_in_force(one, existing=True)
        except BaseException:
            for one in reactions:
                one.remove()
            raise

    def add_within(self, step: EngineStep, reactions: list[ReactionRecord]) -> None:
        """The same in the step of a strong listener, on any thread. Strong ones react within it;
        weak ones are to be watched for when the step is over."""
        _check_watchable(reactions)
        try:
            for one in reactions:
                if not one.weak:
                    one.place(self._here, True, self._listener_seconds_max, step)
        except BaseException:
            for one in reactions:
                one.end_within(step)
            raise

        def over(holds: bool) -> None:
            for one in reactions:
                if holds:
                    one.its.agent.add(one)
                else:
                    one.remove()

        step.when_over(over)

    def enable(self, one: ReactionRecord) -> None:
        """It may fire again, as if it never had."""
        if not one.enabled and one.registered:
            one.displace()
            one.enabled = True
            one.forget()
            self._put_in_force(one, existing=True)

    def disable(self, one: ReactionRecord) -> None:
        one.enabled = False
        one.displace()

    def _put_in_force(self, one: ReactionRecord, existing: bool) -> None:
        if not one.enabled:
            return
        if not one.weak:
            one.place(self._here, existing, self._listener_seconds_max)
        else:
            self.watch(one)

    def watch(self, one: ReactionRecord) -> None:
        """Let a weak one look out where its space is now."""
        if not (one.enabled and one.registered):
            return
        if one.its.shared and one.watch is None:
            watch = self._watch(one.pattern(), one.detected)
            if one.registered:
                one.watch = watch
            else:  # It was told of one at once, and that was all.
                watch.cancel()
        elif not one.its.shared and not one.watches_own:
            one.watches_own = True
            tuple_store = one.its.tuple_store
            entries = tuple_store.look(one.template, ANYWHERE, one=False, known=False)
            self._tell(one, tuple_store, entries)

    def _tell(self, one: ReactionRecord, tuple_store: TupleStore, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if one.wants(tuple_store, entry, self._here):
                one.detected(entry, tuple_store.current(entry), self._here)

    def feed(
        self, tuple_store: TupleStore, agents: Iterable[AgentState], entries: list[Entry]
    ) -> None:
        """These have come into sight on a tuple store that is private, or LimeSystem."""
        for agent in agents:
            for one in agent.reactions:
                if one.weak and one.watches_own and one.its.tuple_store is tuple_store:
                    self._tell(one, tuple_store, entries)

    # When the tuple store of a space changes

    def displace(self, its: InterfaceSpace) -> None:
        for one in its.agent.reactions:
            if one.its is its:
                one.displace()

    def replace(self, its: InterfaceSpace) -> None:
        """Strong ones react on the new tuple store, to what is there and they did not see before.
        Weak ones are seen to by `settle`."""
        strong = [one for one in its.agent.reactions if one.its is its and not one.weak]
        for one in strong:
            self._put_in_force(one, existing=False)
        if strong:
            tuple_store = its.tuple_store
            self.catch_up(tuple_store, tuple_store.look(ANY, ANYWHERE, one=False, known=False))

    @staticmethod
    def catch_up(tuple_store: TupleStore, entries: list[Entry]) -> None:
        if entries:
            tuple_store.flush_soon(tuple_store.engine.catch_up(entries))

    def settle(self, agents: Iterable[AgentState]) -> None:
        """Weak ones look out where their spaces are now."""
        for agent in agents:
            for one in agent.reactions:
                if one.weak:
                    self.watch(one)


def _check_watchable(reactions: list[ReactionRecord]) -> None:
    """BadTemplate if one of the weak ones could not be watched for."""
    for one in reactions:
        if one.weak and not one.its.is_system:
            one.pattern()


def location_of(current: str, host: str) -> Location:
    return HostLocation(host) if current == host else AgentLocation(current)


def mark_of(agent: AgentState, destination: AgentLocation | None) -> WriteOutcome:
    """Who writes a tuple, its number, and whom it is for, if not for its writer."""
    to = None if destination is None or destination.id == agent.id else destination.id
    return WriteOutcome(agent.id, agent.next_number(), to)


def _first(found: list[Any]) -> Any:
    return found[0] if found else None


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
