"""Reactions: strong ones in the step in which a tuple comes into sight here, weak ones afterwards,
wherever in the group it is.

A strong reaction is one of the tuple store on which its interface tuple space is, and moves with
it. A weak one watches all hosts through the carriage while its space is shared, and its own
tuple store while it is private. What it has reacted to is remembered with it, and travels with
its agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Protocol

import msgspec

from tupelo.errors import LimeError
from tupelo.models.lime.engine import OLDEST_FIRST, EngineReaction, EngineStep
from tupelo.models.lime.locations import (
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
from tupelo.space.session import Seen
from tupelo.space.writers import WriteOutcome
from tupelo.values.entry import Entry, freeze, thaw
from tupelo.values.parts import ANY
from tupelo.values.template import as_template

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
