"""The server: LIME at one host. It takes part in the group, and keeps the agents that are here.

The metadata of a host says which agents are there and what each wants to share. When it changes,
that is put in force here, in one step, and told to everyone, while operations go on. If tuples must
change hosts because of it, the membership changes: when a membership is in force, exactly what its
metadata say is so, everywhere at once; then what is misplaced goes home, and what was left open
between hosts is settled, before operations go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal

from tupelo.errors import AgentEnded, BadArgument, BadFrame, HostClosed
from tupelo.federation.brokers.broker import Broker
from tupelo.federation.groups.group import group_of
from tupelo.federation.groups.membership import Membership
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.spaces.doubts import give_back
from tupelo.models.lime import migrating
from tupelo.models.lime.engine import EngineFactory, EngineStep
from tupelo.models.lime.locations import HostLocation
from tupelo.models.lime.messages import (
    Answers,
    Asked,
    ConfirmTake,
    Journey,
    Loaded,
    Look,
    MoveTuples,
    Release,
    Renewed,
    Said,
    Take,
    TuplePattern,
    Which,
    encode,
    read,
)
from tupelo.models.lime.operations import Operations
from tupelo.models.lime.reactions import ReactionCall, ReactionRecord, Reactions
from tupelo.models.lime.spaces import (
    SYSTEM_NAME,
    AgentCard,
    AgentState,
    Directory,
    InterfaceSpace,
    LimeSystem,
    Spaces,
    TupleStore,
)
from tupelo.models.lime.transfer import Sharing, TupleBatch, TuplesToMove, TupleTransfer, coming
from tupelo.models.lime.transport import (
    CollectTransport,
    PublishedTuples,
    PublishTransport,
    Transport,
    VisibleTuples,
    WindowedRead,
)
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.models.lime.migrating import Migrations

logger = logging.getLogger("tupelo")

Over = Literal["collect", "publish"]

LISTENER_HEARTBEATS = 2
"""So long may a strong listener run: others drop a host that is silent for three of them."""


class Server(Operations):
    """LIME at one host; `over` says how its operations reach the others."""

    def __init__(
        self,
        core: HostCore,
        *,
        over: Over = "collect",
        prune: bool = True,
        engine: EngineFactory | None = None,
    ) -> None:
        if over not in ("collect", "publish"):
            raise BadArgument("over", '"collect" or "publish"', over)
        self.core = core
        self.here = HostLocation(core.id)
        self.group = group_of(core)
        self.agents: dict[str, AgentState] = {}
        self.migrations: Migrations | None = None
        self.spaces = Spaces(core, self._soon, engine)
        self.system = LimeSystem(core, self._soon)
        self.name = f"lime.{over}"
        self._known: dict[str, AgentState] = {}
        self.parcels: list[TupleBatch] = []
        self._relocated: dict[TupleStore, list[Entry]] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self._telling = asyncio.Lock()
        self._told = True  # Does everyone know the metadata that is in force here?
        self._closed = False
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.voice = self.group.part(self.name, self, Said, Asked)
        self.handover = TupleTransfer(core, self.voice, self.spaces, self._speak_for_others)
        self.looking = WindowedRead(core, self.voice, self.spaces, self.handover.next_token)
        self.moving = TuplesToMove(self.spaces, self.handover)
        self._publishing: PublishTransport | None = None
        self.broker, self.carriage = self._carriage(over, prune)
        listener_seconds_max = LISTENER_HEARTBEATS * core.heartbeat
        self.reactions = Reactions(core.id, self.carriage.watch, listener_seconds_max)
        self.sharing = Sharing(self.spaces, self.reactions, self.handover, self.moving)

    def _carriage(self, over: Over, prune: bool) -> tuple[Broker, Transport]:
        now, may = self.core.clock.now, self.handover.may
        name = f"{self.name}.tuples"
        if over == "collect":
            sight = VisibleTuples(self.spaces, may, now)
            broker = Broker(
                self.group,
                name,
                sight,
                prune=prune,
                asks_again=False,
                # An agent that is not known here yet may be anywhere.
                only_at=lambda pattern: self.target(read(pattern, TuplePattern).where) or None,
                is_empty=sight.is_empty,
            )
            look, spawn = self.looking.look, self._spawn_apart
            return broker, CollectTransport(broker, self.group, now, look, spawn)
        sight = PublishedTuples(self.spaces, may, now)
        broker = Broker(self.group, name, sight, prune=prune, asks_again=False)
        self._publishing = PublishTransport(
            broker, self.group, self.voice, self.spaces, may, self.core, self._spawn_apart
        )
        return broker, self._publishing

    @property
    def directory(self) -> Directory:
        return self.spaces.directory

    # Coming and going

    async def start(self) -> None:
        await self.group.join()
        await self.group.renew()

    async def stop(self) -> None:
        """All agents end, and LIME is at this host no more. It stays in the group for others."""
        self._closed = True
        for agent in list(self.agents.values()):
            self._end(agent)
        with suppress(HostClosed):
            await self.group.renew()
        self.carriage.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for parcel in self.parcels:
            give_back(parcel.tuple_store, parcel.held)
        self.handover.close()
        for agent_id in list(self._known):
            self._drop(agent_id)
        for tuple_store in self.spaces:
            tuple_store.close()
        self.system.close()

    async def engage(self) -> None:
        """Take part in the group again, after we left."""
        await self.group.join()

    async def disengage(self) -> None:
        """Leave the group, with a word to everyone."""
        await self.group.leave()

    # Agents

    async def enter(
        self, name: str, class_name: str | None = None, state: str = "here"
    ) -> AgentState:
        """A new agent; everyone knows of it when this returns."""
        agent = AgentState(f"{name}#{self.core.new_id()}", name, class_name, state)
        agent.system = self._make(agent, SYSTEM_NAME)
        self._add(agent)
        try:
            await self._finish(self._renew())
        except BaseException:
            self._end(agent)
            self._spawn_apart(self._renew())
            raise
        return agent

    def _add(self, agent: AgentState) -> None:
        if self._closed:
            raise HostClosed("the host was closed")
        self.agents[agent.id] = self._known[agent.id] = agent

    async def set_state(self, agent: AgentState, state: str) -> None:
        self._require_here(agent)
        agent.state = state
        await self._finish(self._renew())

    async def depart(self, agent: AgentState) -> None:
        """The agent ends; its spaces and reactions go with it."""
        self._require_here(agent)
        self._end(agent)
        await self._finish(self._renew())

    def _end(self, agent: AgentState) -> None:
        agent.ended = True
        self.agents.pop(agent.id, None)
        for its in [agent.system, *agent.spaces.values()]:
            its.wanted = False
            its.end_waiting()
        for one in agent.reactions:
            one.remove()

    def _drop(self, agent_id: str) -> None:
        """Close the private spaces of an agent that has ended, or gone on to another host."""
        for its in self._known.pop(agent_id).spaces.values():
            its.own.close()

    def find(self, agent_id: str) -> HostLocation | None:
        """The host in the group where an agent is."""
        host = self.directory.host_of(agent_id)
        return None if host is None else HostLocation(host)

    def _require_here(self, agent: AgentState) -> None:
        if agent.ended or self.agents.get(agent.id) is not agent:
            raise AgentEnded(agent.id)

    # Spaces

    def space(self, agent: AgentState, name: str) -> InterfaceSpace:
        """The agent's interface tuple space of this name; a new one is private, and empty."""
        if name == SYSTEM_NAME:
            return agent.system
        if name not in agent.spaces:
            agent.spaces[name] = self._make(agent, name)
        return agent.spaces[name]

    def _make(self, agent: AgentState, name: str) -> InterfaceSpace:
        if name == SYSTEM_NAME:
            return InterfaceSpace(agent, name, self.system.tuple_store)
        return InterfaceSpace(agent, name, self.spaces.private(agent.id, name))

    async def set_shared(self, spaces: list[InterfaceSpace], shared: bool) -> None:
        """Share these, or share them no more, in one step."""
        for its in spaces:
            self._require_here(its.agent)
            if its.is_system:
                raise BadArgument("space", "one of the agent's own", its.name)
            if shared:
                self.spaces.require_sharable(its.name, source=its.agent.source)
                if not its.shared:
                    its.own.require_sendable()
        changes = any(shared is not its.wanted or shared is not its.shared for its in spaces)
        for its in spaces:
            its.wanted = shared
        if changes:
            await self._finish(self._renew())

    async def _renew(self) -> None:
        """Put in force what the metadata of this host says now, and let everyone know. If tuples
        must change hosts because of it, or a host does not answer, this needs a new membership."""
        if not await self._tell_metadata():
            await self.group.renew()

    async def _tell_metadata(self) -> bool:
        here, voice = self.core.id, self.voice
        async with self._telling, self.group.operating():
            metadata = self.metadata()
            if metadata is None or here not in self.directory.hosts:
                return False
            directory = self.directory.with_metadata(here, metadata)
            if directory.metadata_of[here] == self.directory.metadata_of[here]:
                return self._told
            shared = coming(self._known, directory.metadata_of[here])
            if any(self.spaces.away(its.name, it) for its in shared for it in its.own.entries()):
                return False
            for its in shared:
                self.carriage.serve(self.spaces.tuple_store(its.name))
            self._told = False
            others = [host for host in directory.hosts if host != here]
            told = asyncio.gather(
                *(voice.ask(host, Renewed(metadata)) for host in others), return_exceptions=True
            )
            # Said before it is so: who sends a tuple too late knows why when it is refused.
            await asyncio.sleep(0)
            self.spaces.directory = self.directory.with_metadata(here, metadata)
            self._put_in_force()
            self.reactions.settle(list(self.agents.values()))
            relocated, self._relocated = self._relocated, {}
            for tuple_store in [*self.spaces, self.system.tuple_store]:
                await self._tell(tuple_store, relocated.pop(tuple_store, []) + tuple_store.fresh())
            settled = all(answer is True for answer in await told)
            self._told = settled and not self.handover.unsettled(others)
            return self._told

    def _renewed(self, source: str, metadata: Any) -> bool:
        """The metadata of another host has changed. Does nothing have to go there because of it?"""
        before = self.directory
        if source not in before.hosts:
            return False
        self.spaces.directory = directory = before.with_metadata(source, metadata)
        self.system.install(directory)
        shared = {
            space
            for agent, one in directory.metadata_of[source].items()
            for space in one.shared
            if before.sharers(space).get(agent) != source
        }
        grounds = [tuple_store for tuple_store in self.spaces if tuple_store.name in shared]
        return not any(
            tuple_store.away(entry) == source
            for tuple_store in grounds
            for entry in tuple_store.entries()
        )

    # Reactions

    async def add_reactions(self, reactions: list[ReactionRecord]) -> None:
        for one in reactions:
            self._require_here(one.its.agent)
        self.reactions.add(reactions)
        await self._speak_all(reactions)

    async def remove_reaction(self, registered: ReactionRecord) -> None:
        registered.remove()

    def change_reactions(self, step: EngineStep, change: Callable[[], None]) -> None:
        """When the step of a strong listener is over, and was not undone, make a change of
        reactions: at once, or soon if the listener runs on another thread than the host."""

        def over(holds: bool) -> None:
            if holds and get_ident() == self._thread:
                change()
            elif holds:
                with suppress(RuntimeError):  # The loop is closed.
                    self._loop.call_soon_threadsafe(change)

        step.when_over(over)

    def watch_soon(self, reactions: list[ReactionRecord]) -> None:
        """Let weak ones look out, as an operation of its own."""

        async def watch() -> None:
            async with self.group.operating():
                for one in reactions:
                    self.reactions.watch(one)

        if not self._closed:
            self._spawn_apart(watch())

    async def enable(self, registered: ReactionRecord) -> None:
        """It may fire again; it has forgotten what it has reacted to."""
        self._require_here(registered.its.agent)
        self.reactions.enable(registered)
        await self._speak_all([registered])

    async def disable(self, registered: ReactionRecord) -> None:
        self.reactions.disable(registered)

    async def _speak_all(self, reactions: Iterable[ReactionRecord]) -> None:
        """Strong ones may have written something."""
        for tuple_store in dict.fromkeys(one.its.tuple_store for one in reactions):
            await self.speak(tuple_store)

    # Migration

    async def pack(self, agent: AgentState, pending: Iterable[ReactionCall] = ()) -> Any:
        """Take all its spaces out of the group, and tell what it takes along. BadEntry or
        BadTemplate if something cannot travel: then everything is as it was before."""
        self._require_here(agent)
        agent.packed = [its for its in agent.spaces.values() if its.wanted]
        for its in agent.packed:
            its.wanted = False
        await self._renew()
        try:
            return migrating.pack(agent, pending, self.core.clock.now())
        except BaseException:
            await self.resume(agent)
            raise

    async def resume(self, agent: AgentState) -> None:
        """The journey is off: what was shared is shared again."""
        packed, agent.packed = agent.packed, []
        await self.set_shared(packed, True)

    def forget(self, agent: AgentState) -> None:
        """The journey is decided: it is not here any more. Everyone knows with the next
        membership."""
        self._end(agent)
        self._drop(agent.id)

    def unpack(self, packed: Any, deliver: migrating.DeliverOf) -> AgentState:
        """An agent that has come. It does nothing, and nobody knows of it, until it arrives."""
        agent = migrating.unpack(packed, self._make, deliver, self.core.clock.now())
        for its in agent.packed:
            self.spaces.require_sharable(its.name)
        return agent

    async def arrive(self, agent: AgentState) -> None:
        """It is here: what was shared is shared again, its reactions are in force, in one step."""
        self._add(agent)
        packed, agent.packed = agent.packed, []
        for its in packed:
            its.wanted = True
        pending, agent.pending = agent.pending, []
        for event in pending:
            event.registered.deliver(event)
        for its in [agent.system, *agent.spaces.values()]:
            if not its.wanted:
                self.reactions.replace(its)
        await self.group.renew()

    async def ask(self, host: str, body: Any) -> Any:
        """Ask whoever moves agents at another host."""
        return await self.voice.ask(host, Journey(body))

    # As a part of the group

    def metadata(self) -> Any:
        if self._closed:
            return None
        return encode(
            {
                agent.id: AgentCard(
                    agent.class_name,
                    agent.state,
                    sorted(its.name for its in agent.spaces.values() if its.wanted),
                )
                for agent in self.agents.values()
            }
        )

    def install(self, membership: Membership) -> None:
        directory = Directory(membership, self.name)
        self.spaces.install(directory)
        self.handover.install(directory.hosts)
        parcels, self.parcels = self.parcels, []
        for parcel in parcels:  # A membership that never was settled.
            give_back(parcel.tuple_store, parcel.held)
        self._told = True
        self.parcels = self._put_in_force() + self.moving.gather()

    def _put_in_force(self) -> list[TupleBatch]:
        """Let that be so here what the directory says. What has to go elsewhere because of it is
        returned."""
        metadata_of = self.directory.metadata_of.get(self.core.id, {})
        parcels, relocated = self.sharing.install(self._known, metadata_of)
        for tuple_store, entries in relocated.items():
            self._relocated.setdefault(tuple_store, []).extend(entries)
        for agent in [
            one for one in self._known if one not in metadata_of and one not in self.agents
        ]:
            self._drop(agent)
        self.system.install(self.directory)
        return parcels

    async def settle(self, membership: Membership) -> None:
        async with self.group.within_change():
            for tuple_store in self.spaces:
                self.carriage.serve(tuple_store)
            self.reactions.settle(list(self.agents.values()))
            hosts = [host for host in self.directory.hosts if host != self.core.id]
            unsettled = self.handover.unsettled(hosts)
            await asyncio.gather(*map(self.handover.ask_which, unsettled))
            if unsettled:
                self.parcels += self.moving.gather()
            parcels, self.parcels = self.parcels, []
            await self.moving.send(parcels)
            relocated, self._relocated = self._relocated, {}
            for tuple_store in [*self.spaces, self.system.tuple_store]:
                await self._announce(
                    tuple_store, relocated.pop(tuple_store, []) + tuple_store.fresh()
                )
            if self.migrations is not None:
                await self.migrations.settle(membership)
        self.carriage.settled()

    def heard(self, neighbour: str, source: str, message: Said) -> None:
        match message:
            case ConfirmTake():
                self.handover.confirmed(source, message)
            case Release():
                self.handover.released(source, message)
            case Answers():
                if self._publishing is not None:
                    self._publishing.answered(source, message)
            case Loaded(token):
                if self.migrations is not None:
                    self.migrations.heard_loaded(source, token)

    async def asked(self, neighbour: str, source: str, message: Asked) -> Any:
        match message:
            case Look():
                return self._look(neighbour, source, message)
            case Take():
                return await self.handover.give(neighbour, source, message)
            case MoveTuples():
                return await self.handover.arrive(neighbour, source, message)
            case Which():
                return self.handover.which(source, message)
            case Renewed(metadata):
                return self._renewed(source, metadata)
            case Journey(about):
                if self.migrations is None:
                    raise BadFrame("no agents come here")
                return await self.migrations.asked(neighbour, source, about)

    def _look(self, neighbour: str, source: str, message: Look) -> Any:
        tuple_store = self.spaces.find(message.pattern.space)
        if tuple_store is None or not self.handover.may(neighbour, "read", tuple_store, source):
            return [[], False]
        listings = self.handover.listings
        window, more = listings.window(source, message.number, tuple_store, message.pattern)
        return encode([list(window.values()), more])

    def cut(self, hosts: frozenset[str]) -> None:
        self.spaces.cut |= hosts
        self.handover.cut(hosts)

    # What has come into sight

    def _is_hosts(self, tuple_store: TupleStore) -> bool:
        """Is it the host's, and not private or LimeSystem?"""
        return self.spaces.find(tuple_store.name) is tuple_store

    async def _announce(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        """Tell everyone, or on other grounds those who watch there."""
        if entries and self._is_hosts(tuple_store):
            await self.carriage.announce(tuple_store, entries)
        elif entries:
            self.reactions.feed(tuple_store, list(self.agents.values()), entries)

    async def speak(self, tuple_store: TupleStore) -> None:
        """Tell of what has come into sight. What a strong reaction has written for an agent
        elsewhere goes there. What cannot be said now is said in the next membership, before which
        nobody looks from elsewhere."""
        if self.group.is_flushing:
            self._soon(tuple_store)
        else:
            await self._tell(tuple_store, tuple_store.fresh())

    async def _speak_for_others(self, tuple_store: TupleStore) -> None:
        """Within what another host asks. What goes on from here is not waited for: reactions that
        feed each other would never let it end."""
        entries = tuple_store.fresh()
        await self._announce(tuple_store, entries)
        self._spawn_apart(self._tidy(tuple_store, entries))

    async def _tidy(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        async with self.group.operating():
            await self.moving.tidy(tuple_store, entries)

    def _soon(self, tuple_store: TupleStore) -> None:
        """Something was written by another door, or has returned."""
        entries = tuple_store.fresh()
        if entries and not self._closed:
            self._spawn_apart(self._tell(tuple_store, entries))

    async def _tell(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        if self._is_hosts(tuple_store) and any(map(tuple_store.away, entries)):
            async with self.group.operating():
                await self.moving.tidy(tuple_store, entries)
        await self._announce(tuple_store, entries)

    def spawn(
        self, work: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Have this done, though perhaps nobody waits for it."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _spawn_apart(self, work: Coroutine[Any, Any, Any]) -> None:
        """Have this done as an operation of its own, not as a part of the one that is under way."""
        self.spawn(work, self._context.copy())

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("something that was begun has failed: %r", error)
