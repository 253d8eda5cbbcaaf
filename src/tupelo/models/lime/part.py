"""The part of one host in the group of LIME: its agents, their spaces and reactions, and metadata.

The metadata of a host lists its agents and the spaces that each shares. When it changes, the change
takes effect here in one step and is sent to all hosts, while operations go on. If tuples must move
to other hosts because of it, a new membership is needed: when that is installed, the metadata of
all hosts takes effect everywhere at once; then misplaced tuples move, and deliveries in doubt
between hosts are settled, before operations go on."""

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
from tupelo.federation.spaces.hosted import give_back
from tupelo.models.lime import migrating
from tupelo.models.lime.engine import EngineFactory, EngineStep
from tupelo.models.lime.locations import HostLocation
from tupelo.models.lime.messages import (
    ConfirmTake,
    LimeNotice,
    LimeRequest,
    LoadDone,
    LookRequest,
    MetadataChanged,
    MigrationRequest,
    MoveTuples,
    QueryAnswers,
    ReceivedQuery,
    Release,
    TakeRequest,
    TuplePattern,
    TuplePlace,
    encode,
    read,
)
from tupelo.models.lime.reactions import ReactionCall, ReactionRecord, Reactions
from tupelo.models.lime.spaces import (
    SYSTEM_NAME,
    AgentMetadata,
    AgentState,
    Directory,
    InterfaceSpace,
    LimeSystem,
    Spaces,
    TupleStore,
)
from tupelo.models.lime.transfer import Sharing, TupleBatch, TupleTransfer, to_share
from tupelo.models.lime.transport import (
    CollectTransport,
    PublishedTuples,
    PublishTransport,
    Transport,
    VisibleTuples,
)
from tupelo.values.entry import Entry

if TYPE_CHECKING:
    from tupelo.models.lime.migrating import Migrations

logger = logging.getLogger("tupelo")

Over = Literal["collect", "publish"]

NOWHERE = ""

LISTENER_HEARTBEATS = 2
"""The most heartbeats that a strong listener may run: other hosts drop a host that misses three."""


class LimePart:
    """LIME at one host, without the operations of the agents (`Server`). `over` is the transport
    of operations to other hosts, `engine` makes the engines that keep the tuples (by default, the
    spaces of the host). It runs on the host's loop."""

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
        self.spaces = Spaces(core, self._on_news, engine)
        self.system = LimeSystem(core, self._on_news)
        self.name = f"lime.{over}"
        self._known: dict[str, AgentState] = {}
        self.batches: list[TupleBatch] = []
        self._relocated: dict[TupleStore, list[Entry]] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self._sending_metadata = asyncio.Lock()
        self._metadata_known = True  # whether all hosts know the current metadata of this host
        self._closed = False
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.sender = self.group.part(self.name, self, LimeNotice, LimeRequest)
        self.transfer = TupleTransfer(core, self.sender, self.spaces, self._announce_within_request)
        self._publishing: PublishTransport | None = None
        self.broker, self.transport = self._transport(over, prune)
        listener_seconds_max = LISTENER_HEARTBEATS * core.heartbeat
        self.reactions = Reactions(core.id, self.transport.watch, listener_seconds_max)
        self.sharing = Sharing(self.spaces, self.reactions, self.transfer)

    def _transport(self, over: Over, prune: bool) -> tuple[Broker, Transport]:
        now, may = self.core.clock.now, self.transfer.may
        name = f"{self.name}.tuples"
        if over == "collect":
            application = VisibleTuples(self.spaces, may, now)
            broker = Broker(
                self.group,
                name,
                application,
                prune=prune,
                asks_again=False,
                # An agent that is not known here yet may be at any host.
                only_at=lambda pattern: self.target(read(pattern, TuplePattern).where) or None,
                is_empty=application.is_empty,
            )
            look, spawn = self.transfer.look, self._spawn_apart
            return broker, CollectTransport(broker, self.group, now, look, spawn)
        application = PublishedTuples(self.spaces, may, now)
        broker = Broker(self.group, name, application, prune=prune, asks_again=False)
        self._publishing = PublishTransport(
            broker, self.group, self.sender, self.spaces, may, now, self._spawn_apart
        )
        return broker, self._publishing

    @property
    def directory(self) -> Directory:
        return self.spaces.directory

    def target(self, where: TuplePlace) -> str | None:
        """The only host to search; NOWHERE if it is not in the group; None for all hosts."""
        if where.current is None:
            return None
        kind, name = where.current
        directory = self.directory
        if kind == "host":
            return name if name in directory.hosts else NOWHERE
        return directory.host_of(name) or NOWHERE

    # Start and stop

    async def start(self) -> None:
        await self.group.join()
        await self.group.renew()

    async def stop(self) -> None:
        """End all agents and take part no more. The host stays in the group for other parts."""
        self._closed = True
        for agent in list(self.agents.values()):
            self._end(agent)
        with suppress(HostClosed):
            await self.group.renew()
        self.transport.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for batch in self.batches:
            give_back(batch.tuple_store, batch.held)
        self.transfer.close()
        for agent_id in list(self._known):
            self._drop(agent_id)
        for tuple_store in self.spaces:
            tuple_store.close()
        self.system.close()

    # Agents

    async def enter(
        self, name: str, class_name: str | None = None, state: str = "here"
    ) -> AgentState:
        """Make an agent; all hosts know of it when this returns."""
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
        """End an agent, with its spaces and reactions."""
        self._require_here(agent)
        self._end(agent)
        await self._finish(self._renew())

    def _end(self, agent: AgentState) -> None:
        agent.ended = True
        self.agents.pop(agent.id, None)
        for interface in [agent.system, *agent.spaces.values()]:
            interface.wanted = False
            interface.end_waiting()
        for one in agent.reactions:
            one.remove()

    def _drop(self, agent_id: str) -> None:
        """Close the private spaces of an agent that has ended, or gone on to another host."""
        agent = self._known.pop(agent_id, None)
        for interface in () if agent is None else agent.spaces.values():
            interface.own.close()

    def _require_here(self, agent: AgentState) -> None:
        if agent.ended or self.agents.get(agent.id) is not agent:
            raise AgentEnded(agent.id)

    # Spaces

    def space(self, agent: AgentState, name: str) -> InterfaceSpace:
        """The interface tuple space of an agent with this name; a new one is private and empty."""
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
        """Share these spaces, or make them private, in one step."""
        for interface in spaces:
            self._require_here(interface.agent)
            if interface.is_system:
                raise BadArgument("space", "one of the agent's own", interface.name)
            if shared:
                self.spaces.require_sharable(interface.name, source=interface.agent.source)
                if not interface.shared:
                    interface.own.require_sendable()
        changes = any(
            shared is not interface.wanted or shared is not interface.shared for interface in spaces
        )
        for interface in spaces:
            interface.wanted = shared
        if changes:
            await self._finish(self._renew())

    async def _renew(self) -> None:
        """Let changed metadata of this host take effect here and at all hosts. If tuples must move
        because of it, or a host does not answer, this needs a new membership."""
        if not await self._send_metadata():
            await self.group.renew()

    async def _send_metadata(self) -> bool:
        here, sender = self.core.id, self.sender
        async with self._sending_metadata, self.group.operating():
            metadata = self.metadata()
            if metadata is None or here not in self.directory.hosts:
                return False
            directory = self.directory.with_metadata(here, metadata)
            if directory.metadata_of[here] == self.directory.metadata_of[here]:
                return self._metadata_known
            shared = to_share(self._known, directory.metadata_of[here])
            if any(
                self.spaces.away(interface.name, it)
                for interface in shared
                for it in interface.own.entries()
            ):
                return False
            for interface in shared:
                self.transport.serve(self.spaces.tuple_store(interface.name))
            self._metadata_known = False
            others = [host for host in directory.hosts if host != here]
            answers = asyncio.gather(
                *(sender.ask(host, MetadataChanged(metadata)) for host in others),
                return_exceptions=True,
            )
            # Sent before it takes effect: a host whose tuple comes too late knows why it is
            # refused.
            await asyncio.sleep(0)
            self.spaces.directory = self.directory.with_metadata(here, metadata)
            self._apply_metadata()
            self.reactions.settle(list(self.agents.values()))
            relocated, self._relocated = self._relocated, {}
            for tuple_store in [*self.spaces, self.system.tuple_store]:
                await self._move_and_announce(
                    tuple_store, relocated.pop(tuple_store, []) + tuple_store.fresh()
                )
            settled = all(answer is True for answer in await answers)
            self._metadata_known = settled and not self.transfer.unsettled(others)
            return self._metadata_known

    def _renewed(self, source: str, metadata: Any) -> bool:
        """Use new metadata of another host. Returns False if tuples must move there because of
        it."""
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
        stores = [tuple_store for tuple_store in self.spaces if tuple_store.name in shared]
        return not any(
            tuple_store.away(entry) == source
            for tuple_store in stores
            for entry in tuple_store.entries()
        )

    # Reactions

    async def add_reactions(self, reactions: list[ReactionRecord]) -> None:
        for one in reactions:
            self._require_here(one.interface.agent)
        self.reactions.add(reactions)
        await self._announce_all_fresh(reactions)

    async def remove_reaction(self, registered: ReactionRecord) -> None:
        registered.remove()

    def change_reactions(self, step: EngineStep, change: Callable[[], None]) -> None:
        """Call `change` on the loop when the step of a strong listener has ended and was not
        undone."""

        def over(holds: bool) -> None:
            if holds and get_ident() == self._thread:
                change()
            elif holds:
                with suppress(RuntimeError):  # The loop is closed.
                    self._loop.call_soon_threadsafe(change)

        step.when_over(over)

    def watch_soon(self, reactions: list[ReactionRecord]) -> None:
        """Start weak reactions that a strong listener has registered."""

        async def watch() -> None:
            async with self.group.operating():
                for one in reactions:
                    self.reactions.watch(one)

        if not self._closed:
            self._spawn_apart(watch())

    async def enable(self, registered: ReactionRecord) -> None:
        """Enable a reaction; it forgets the tuples for which it has fired."""
        self._require_here(registered.interface.agent)
        self.reactions.enable(registered)
        await self._announce_all_fresh([registered])

    async def disable(self, registered: ReactionRecord) -> None:
        self.reactions.disable(registered)

    async def _announce_all_fresh(self, reactions: Iterable[ReactionRecord]) -> None:
        """Announce the tuples that strong reactions have written."""
        for tuple_store in dict.fromkeys(one.interface.tuple_store for one in reactions):
            await self.announce_fresh(tuple_store)

    # Migration

    async def pack(self, agent: AgentState, pending: Iterable[ReactionCall] = ()) -> Any:
        """Make all spaces of an agent private, and encode what migrates with it. Raises BadEntry or
        BadTemplate if something cannot be sent; then the spaces are shared again."""
        self._require_here(agent)
        agent.packed = [interface for interface in agent.spaces.values() if interface.wanted]
        for interface in agent.packed:
            interface.wanted = False
        await self._renew()
        try:
            return migrating.pack(agent, pending, self.core.clock.now())
        except BaseException:
            await self.resume(agent)
            raise

    async def resume(self, agent: AgentState) -> None:
        """The migration has failed: share the spaces of the agent again."""
        packed, agent.packed = agent.packed, []
        await self.set_shared(packed, True)

    def forget(self, agent: AgentState) -> None:
        """The migration is decided: the agent is not here any more. Other hosts learn that with
        the next membership."""
        self._end(agent)
        self._drop(agent.id)

    def unpack(self, packed: Any, deliver: migrating.DeliverOf) -> AgentState:
        """Decode an agent that has come. It is not active, or known to others, until `arrive`."""
        agent = migrating.unpack(packed, self._make, deliver, self.core.clock.now())
        for interface in agent.packed:
            self.spaces.require_sharable(interface.name)
        return agent

    async def arrive(self, agent: AgentState) -> None:
        """Activate an agent that has come: share its spaces and start its reactions in one step."""
        self._add(agent)
        packed, agent.packed = agent.packed, []
        for interface in packed:
            interface.wanted = True
        pending, agent.pending = agent.pending, []
        for event in pending:
            event.registered.deliver(event)
        for interface in [agent.system, *agent.spaces.values()]:
            if not interface.wanted:
                self.reactions.register_all(interface)
        await self.group.renew()

    # As a part of the group: see `GroupPart`

    def metadata(self) -> Any:
        if self._closed:
            return None
        return encode(
            {
                agent.id: AgentMetadata(
                    agent.class_name,
                    agent.state,
                    sorted(
                        interface.name for interface in agent.spaces.values() if interface.wanted
                    ),
                )
                for agent in self.agents.values()
            }
        )

    def install(self, membership: Membership) -> None:
        directory = Directory(membership, self.name)
        self.spaces.install(directory)
        self.transfer.install(directory.hosts)
        batches, self.batches = self.batches, []
        for batch in batches:  # of a membership that was replaced before it was settled
            give_back(batch.tuple_store, batch.held)
        self._metadata_known = True
        self.batches = self._apply_metadata() + self.transfer.gather()

    def _apply_metadata(self) -> list[TupleBatch]:
        """Let the metadata of this host in the directory take effect. Returns the tuples that must
        move to other hosts because of it."""
        metadata_of = self.directory.metadata_of.get(self.core.id, {})
        batches, relocated = self.sharing.install(self._known, metadata_of)
        for tuple_store, entries in relocated.items():
            self._relocated.setdefault(tuple_store, []).extend(entries)
        for agent in [
            one for one in self._known if one not in metadata_of and one not in self.agents
        ]:
            self._drop(agent)
        self.system.install(self.directory)
        return batches

    async def settle(self, membership: Membership) -> None:
        async with self.group.within_change():
            for tuple_store in self.spaces:
                self.transport.serve(tuple_store)
            self.reactions.settle(list(self.agents.values()))
            hosts = [host for host in self.directory.hosts if host != self.core.id]
            unsettled = self.transfer.unsettled(hosts)
            await asyncio.gather(*map(self.transfer.settle_with, unsettled))
            if unsettled:
                self.batches += self.transfer.gather()
            batches, self.batches = self.batches, []
            await self.transfer.send(batches)
            relocated, self._relocated = self._relocated, {}
            for tuple_store in [*self.spaces, self.system.tuple_store]:
                await self._announce(
                    tuple_store, relocated.pop(tuple_store, []) + tuple_store.fresh()
                )
            if self.migrations is not None:
                await self.migrations.settle(membership)
        self.transport.settled()

    def heard(self, neighbour: str, source: str, message: LimeNotice) -> None:
        match message:
            case ConfirmTake():
                self.transfer.confirmed(source, message)
            case Release():
                self.transfer.released(source, message)
            case QueryAnswers():
                if self._publishing is not None:
                    self._publishing.answered(source, message)
            case LoadDone(token):
                if self.migrations is not None:
                    self.migrations.heard_loaded(source, token)

    async def asked(self, neighbour: str, source: str, message: LimeRequest) -> Any:
        match message:
            case LookRequest():
                return self.transfer.show(neighbour, source, message)
            case TakeRequest():
                return await self.transfer.give(neighbour, source, message)
            case MoveTuples():
                return await self.transfer.arrive(neighbour, source, message)
            case ReceivedQuery():
                return self.transfer.received(source, message)
            case MetadataChanged(metadata):
                return self._renewed(source, metadata)
            case MigrationRequest(about):
                if self.migrations is None:
                    raise BadFrame("this host accepts no agents")
                return await self.migrations.asked(neighbour, source, about)

    def cut(self, hosts: frozenset[str]) -> None:
        self.spaces.cut |= hosts
        self.transfer.cut(hosts)

    # Announcing tuples

    def _is_hosts(self, tuple_store: TupleStore) -> bool:
        """Whether a tuple store is shared, and not private or LimeSystem."""
        return self.spaces.find(tuple_store.name) is tuple_store

    async def _announce(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        """Announce tuples to the group, or for other stores to the weak reactions there."""
        if entries and self._is_hosts(tuple_store):
            await self.transport.announce(tuple_store, entries)
        elif entries:
            self.reactions.feed(tuple_store, list(self.agents.values()), entries)

    async def announce_fresh(self, tuple_store: TupleStore) -> None:
        """Announce the tuples that have become visible, and move those for agents elsewhere. If the
        membership is about to change, this happens in the next one, before which no other host
        searches here."""
        if self.group.is_flushing:
            self._on_news(tuple_store)
        else:
            await self._move_and_announce(tuple_store, tuple_store.fresh())

    async def _announce_within_request(self, tuple_store: TupleStore) -> None:
        """`announce_fresh` within a request of another host. The moves that follow are not awaited:
        reactions that trigger each other would never let the request end."""
        entries = tuple_store.fresh()
        await self._announce(tuple_store, entries)
        self._spawn_apart(self._move_misplaced(tuple_store, entries))

    async def _move_misplaced(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        async with self.group.operating():
            await self.transfer.move_misplaced(tuple_store, entries)

    def _on_news(self, tuple_store: TupleStore) -> None:
        """Another door has written tuples, or reserved tuples have returned."""
        entries = tuple_store.fresh()
        if entries and not self._closed:
            self._spawn_apart(self._move_and_announce(tuple_store, entries))

    async def _move_and_announce(self, tuple_store: TupleStore, entries: list[Entry]) -> None:
        if self._is_hosts(tuple_store) and any(map(tuple_store.away, entries)):
            async with self.group.operating():
                await self.transfer.move_misplaced(tuple_store, entries)
        await self._announce(tuple_store, entries)

    def spawn(
        self, work: Coroutine[Any, Any, Any], context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Start a task that runs to its end even if nobody awaits it."""
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def _finish(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` to its end, even if the caller is cancelled."""
        return await asyncio.shield(self.spawn(work))

    def _spawn_apart(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task that is not part of the current operation of the group."""
        self.spawn(work, self._context.copy())

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a background task of LIME has failed: %r", error)
