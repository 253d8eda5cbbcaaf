"""The tuples of LIME at one host: agents, their interface tuple spaces, and the tuple stores.

Each private space has a tuple store of its own. The shared spaces of one name, of all agents at a
host, have one tuple store together: the space of that name at the host, which other doors see as
well. `Directory` knows the agents of all hosts, `LimeSystem` shows them as tuples.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import AgentEnded, BadEntry, NotAllowed, PrivateSpace
from tupelo.federation.groups.membership import Membership
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.spaces.hosted import Doubt
from tupelo.models.lime.engine import EngineFactory, SpaceEngine, TupleEngine
from tupelo.models.lime.locations import AgentLocation, home_of
from tupelo.models.lime.messages import (
    PlacedTuple,
    TuplePattern,
    TuplePlace,
    carried,
    payload_of,
    read_encoded_template,
)
from tupelo.space import blocking
from tupelo.space.port import Port, port_of
from tupelo.space.transaction import may_take
from tupelo.store.index import Accept
from tupelo.values.entry import Entry, FrozenEntry, freeze
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.models.lime.reactions import ReactionCall, ReactionRecord


class AgentMetadata(msgspec.Struct, frozen=True, array_like=True):
    """The metadata of an agent: its class, its state, and the names of its shared spaces."""

    class_name: str | None
    state: str
    shared: list[str]


class Directory:
    """The hosts of a membership that take part under a name, with their agents and shared spaces. A
    host whose metadata cannot be read has no agents."""

    def __init__(self, membership: Membership | None = None, part: str = "") -> None:
        members = {} if membership is None else membership.members
        metadata_of = {host: one.metadata_of.get(part) for host, one in members.items()}
        self.metadata_of = {
            host: _read(metadata) for host, metadata in metadata_of.items() if metadata is not None
        }
        self.hosts = {host: members[host].name for host in self.metadata_of}
        self._incarnations = {host: members[host].incarnation for host in self.metadata_of}
        self._index()

    def with_metadata(self, host: str, metadata: Any) -> Directory:
        """A copy with new metadata of this host, which takes part."""
        renewed = Directory()
        renewed.metadata_of = {**self.metadata_of, host: _read(metadata)}
        renewed.hosts, renewed._incarnations = self.hosts, self._incarnations
        renewed._index()
        return renewed

    def _index(self) -> None:
        self._where: dict[str, str] = {}
        self._sharers: dict[str, dict[str, str]] = {}
        for host, agents in self.metadata_of.items():
            for agent, metadata in agents.items():
                self._where[agent] = host
                for space in metadata.shared:
                    self._sharers.setdefault(space, {})[agent] = host

    def incarnation_of(self, host: str) -> str:
        """The incarnation of this host; "" if it is not in the group."""
        return self._incarnations.get(host, "")

    def host_of(self, agent: str) -> str | None:
        """The host where an agent is."""
        return self._where.get(agent)

    @property
    def agents(self) -> Mapping[str, str]:
        """The hosts of all agents."""
        return self._where

    def sharers(self, space: str) -> Mapping[str, str]:
        """The hosts of all agents that share this space."""
        return self._sharers.get(space, {})

    def tuples(self) -> list[tuple[str, ...]]:
        """The tuples of LimeSystem."""
        tuples: list[tuple[str, ...]] = [("host", host, self.hosts[host]) for host in self.hosts]
        for host, agents in self.metadata_of.items():
            for agent, metadata in agents.items():
                tuples.append(("agent", agent, host, metadata.state))
                tuples += [("space", space, agent, host) for space in metadata.shared]
        return tuples

    def departures(self) -> list[tuple[str, ...]]:
        """The tuples of LimeSystem for all hosts and agents of this directory once they
        departed."""
        hosts = [("departed host", host, name) for host, name in self.hosts.items()]
        return [*hosts, *(("departed agent", agent, host) for agent, host in self._where.items())]


def _read(metadata: Any) -> dict[str, AgentMetadata]:
    try:
        return msgspec.convert(metadata, dict[str, AgentMetadata])
    except msgspec.ValidationError:
        return {}


SYSTEM_NAME = "LimeSystem"


class AgentState:
    """An agent at this host, as the engine knows it. `state` is the word for it in LimeSystem.
    `number` is that of its last tuple; it migrates with the agent, so that numbers are unique."""

    def __init__(
        self, agent_id: str, name: str, class_name: str | None, state: str, number: int = 0
    ) -> None:
        self.id = agent_id
        self.name = name
        self.class_name = class_name
        self.state = state
        self.number = number
        self.spaces: dict[str, InterfaceSpace] = {}
        self.system: InterfaceSpace
        self._registered: list[ReactionRecord] = []
        self.packed: list[InterfaceSpace] = []
        """The spaces that were shared before the agent was packed."""
        self.pending: list[ReactionCall] = []
        """Events of weak reactions that were not delivered before the agent migrated."""
        self.ended = False
        self.source = ""
        """The other host that has loaded the agent here; the agent has no more rights than that
        host."""
        self._lock = threading.Lock()

    @property
    def location(self) -> AgentLocation:
        return AgentLocation(self.id)

    @property
    def reactions(self) -> list[ReactionRecord]:
        """The registered reactions, enabled or not. ONCE reactions that have fired are not."""
        with self._lock:
            self._registered = [one for one in self._registered if one.registered]
            return list(self._registered)

    def add(self, reaction: ReactionRecord) -> None:
        """Register a reaction; strong listeners do this on any thread."""
        with self._lock:
            self._registered.append(reaction)

    def next_number(self) -> int:
        with self._lock:  # A strong reaction writes on the thread of the writer that it reacts to.
            self.number += 1
            return self.number


class InterfaceSpace:
    """One interface tuple space of one agent. `own` is its private tuple store, `tuple_store` the
    current one. `wanted`: it is to be shared, which takes effect in the whole group at once."""

    def __init__(self, agent: AgentState, name: str, own: TupleStore) -> None:
        self.agent = agent
        self.name = name
        self.own = own
        self.tuple_store = own
        self.wanted = False
        self.waiting: dict[asyncio.Future[Any], str] = {}
        """The waiting operations here, with the names of the operations."""

    @property
    def shared(self) -> bool:
        return self.tuple_store is not self.own

    @property
    def is_system(self) -> bool:
        return self.name == SYSTEM_NAME

    def require_writable(self, operation: str) -> None:
        if self.is_system:
            raise NotAllowed(operation, self.name, "an agent")

    def require_sendable(self, item: FrozenEntry) -> None:
        """Raise BadEntry if the space is, or will be, shared and the tuple cannot be sent."""
        if self.shared or self.wanted:
            payload_of(*item)

    def end_waiting(self) -> None:
        """End the waiting operations, since the space is private now or its agent has ended."""
        for one, operation in list(self.waiting.items()):
            if not one.done():
                ended = self.agent.ended
                error = AgentEnded(self.agent.id) if ended else PrivateSpace(operation, self.name)
                one.set_exception(error)


class TupleStore:
    """The tuples of one space at this host, in an engine, with their locations.

    `current(entry)` is the agent (or host) that is responsible for a tuple; `away(entry)` the other
    host that the tuple is about to move to, if any. `news(store)` is called on the loop when there
    are tuples that `fresh` has not returned yet. `doubt` decides about tuples whose delivery to
    another host is in doubt.
    """

    def __init__(
        self,
        core: HostCore,
        name: str,
        engine: TupleEngine,
        current: Callable[[Entry], str],
        news: Callable[[TupleStore], object],
        away: Callable[[Entry], str | None] = lambda entry: None,
        doubt: Doubt = Doubt(),  # noqa: B008
    ) -> None:
        self.engine = engine
        self.name = name
        self.clock = core.clock
        self.doubt = doubt
        self.current = current
        self.away = away
        self.entries = engine.entries
        self.flush = engine.flushed
        self.flush_soon = engine.flush_soon
        self.fresh = engine.fresh
        self.close = engine.close
        self._here = core.id
        engine.listen(lambda: news(self))

    def accept(self, where: TuplePlace, take: bool = False) -> Accept | None:
        """A filter for the tuples in these locations (that may be taken); None for all tuples."""
        if where.is_anywhere and not take:
            return None
        here, current = self._here, self.current

        def accept(entry: Entry) -> bool:
            if take and not may_take(entry, None):
                return False
            return where.is_anywhere or where.admits(entry, current(entry), here)

        return accept

    def look(
        self, template: Any, where: TuplePlace, *, one: bool, take: bool = False, known: bool = True
    ) -> list[Entry]:
        """The tuples here that can be read, or with `take` that could be taken."""
        return self.engine.find(template, 1 if one else None, self.accept(where, take), known)

    async def take(self, template: Any, where: TuplePlace, *, one: bool) -> list[Entry]:
        """Remove matching tuples for good."""
        taken, position = self.engine.take(
            template, 1 if one else None, self.accept(where), known=True
        )
        await self.flush(position)
        return taken

    def take_out(self, wanted: Accept) -> list[Entry]:
        """Remove all tuples that are wanted and not held, to put them in another store."""
        taken, position = self.engine.take(ANY, None, wanted, known=False)
        self.flush_soon(position)
        return taken

    def put(self, entries: list[Entry]) -> None:
        """Add tuples with their identity, whatever the rules of the space."""
        if entries:
            self.flush_soon(self.engine.let_in(entries))

    def sendable(self, pattern: TuplePattern) -> Iterator[tuple[Entry, PlacedTuple]]:
        """The tuples that match a pattern and can be sent; at most one, if it wants one."""
        template = read_encoded_template(pattern.template)
        # If the first match cannot be sent, look for others.
        for one in (True, False) if pattern.one else (False,):
            for entry in self.look(
                template, pattern.where, one=one, take=pattern.take, known=False
            ):
                placed = self.placed(entry)
                if placed is not None:
                    yield entry, placed
                    if pattern.one:
                        return

    def require_sendable(self) -> None:
        """Raise BadEntry if a tuple here could not be sent to another host."""
        for entry in self.entries():
            payload_of(entry.shape, entry.fields)

    def placed(self, entry: Entry) -> PlacedTuple | None:
        """A tuple with its location, as it is sent; None if it cannot be sent."""
        try:
            return PlacedTuple(carried(entry, self.clock.now()), self.current(entry))
        except BadEntry:
            return None


class Spaces:
    """The tuple stores of one host, and the agents that share them there now."""

    def __init__(
        self,
        core: HostCore,
        news: Callable[[TupleStore], object],
        engine: EngineFactory | None = None,
    ) -> None:
        self._core = core
        self._news = news
        self._engine = engine
        self._stores: dict[str, TupleStore] = {}
        self.sharing: dict[str, dict[str, InterfaceSpace]] = {}
        self.directory = Directory()
        self.cut: set[str] = set()
        """The hosts of the current membership that are out of reach."""
        self.refused: set[tuple[str, str]] = set()
        """Pairs (space, host): that host has refused tuples for that space in this membership."""

    def install(self, directory: Directory) -> None:
        """A new membership is in force."""
        self.directory = directory
        self.cut.clear()
        self.refused.clear()

    def private(self, agent_id: str, name: str) -> TupleStore:
        """A new tuple store for a private space; its agent is responsible for all tuples there."""
        engine = self._make_engine(name, agent_id)
        return TupleStore(self._core, name, engine, lambda entry: agent_id, self._news)

    def _make_engine(self, name: str, agent: str | None) -> TupleEngine:
        core = self._core
        if self._engine is not None:
            return self._engine(name, agent, core.clock)
        return SpaceEngine(
            core.make_space(name).port if agent is None else private_port(core, name, agent)
        )

    def require_sharable(self, name: str, neighbour: str = "", source: str = "") -> None:
        """Raise NotAllowed if the space of this name, which is made if needed, is not shared with
        other hosts. For an agent of another host (`source`) that host, and the `neighbour` over
        which the agent comes, must be allowed to read, write and take."""
        hosted = self._core.make_space(name)
        if not hosted.shared:
            raise NotAllowed("share", name, "an agent of LIME")
        for operation in ("read", "write", "take") if source else ():
            if not hosted.allows_host(operation, source) or (
                neighbour and not self._core.may(operation, name, neighbour, source)
            ):
                raise NotAllowed(operation, name, f"the host {source}")

    def tuple_store(self, name: str) -> TupleStore:
        """The tuple store of this name that the agents of the host share; it is made if needed."""
        store = self._stores.get(name)
        if store is None:
            store = self._stores[name] = TupleStore(
                self._core,
                name,
                self._make_engine(name, None),
                partial(self.current, name),
                self._news,
                partial(self.away, name),
                self._core.make_space(name).doubt,
            )
        return store

    def was_accepted(self, space: str, origin: str, n: int) -> bool:
        """Whether a durable engine has, or once had, a tuple that another host has sent."""
        store = self._stores.get(space)
        hosted = self._core.spaces.get(space)
        engine: TupleEngine | Port
        if store is not None:
            engine = store.engine
        elif hosted is not None and self._engine is None:
            engine = hosted.port
        else:
            return False
        if not engine.durable:
            return False
        here = any((entry.origin, entry.n) == (origin, n) for entry in engine.entries())
        return here or (origin, n) in engine.accepted()

    def find(self, name: str) -> TupleStore | None:
        return self._stores.get(name)

    def __iter__(self) -> Iterator[TupleStore]:
        return iter(list(self._stores.values()))

    def current(self, name: str, entry: Entry) -> str:
        """The agent here that is responsible for a tuple: its destination or writer; else the
        host."""
        sharing = self.sharing.get(name, {})
        home = home_of(entry)
        if home in sharing:
            return home
        return entry.origin if entry.origin in sharing else self._core.id

    def away(self, name: str, entry: Entry) -> str | None:
        """The other host to which a misplaced tuple must move; None if it belongs here or cannot
        move now. Agents at this host count as here, whatever other hosts claim."""
        home = home_of(entry)
        if home in self.sharing.get(name, {}):
            return None
        host = self.directory.sharers(name).get(home)
        if host is None or host == self._core.id or host in self.cut:
            return None
        return None if (name, host) in self.refused else host

    def share(self, interface: InterfaceSpace) -> None:
        """Let a space use the shared tuple store of the host."""
        interface.tuple_store = self.tuple_store(interface.name)
        self.sharing.setdefault(interface.name, {})[interface.agent.id] = interface

    def unshare(self, interface: InterfaceSpace) -> None:
        """Make a space private again, with all tuples for which its agent is responsible."""
        agent = interface.agent.id
        taken = interface.tuple_store.take_out(
            lambda entry: self.current(interface.name, entry) == agent
        )
        del self.sharing[interface.name][agent]
        interface.tuple_store = interface.own
        interface.own.put(taken)


def private_port(core: HostCore, name: str, agent: str) -> Port:
    """The port of a new space in memory that no other door sees."""
    space = blocking.Space(name, clock=core.clock, agent=agent, new_id=core.new_id)
    port = port_of(space)
    port.commit_in_place()
    return port


DEPARTED_MAX = 1_000
"""The most departures of hosts and agents that are remembered; the oldest are forgotten first."""


class LimeSystem:
    """LimeSystem at one host: a space with the tuples of `Directory.tuples`, to read and to react
    to. Each host makes it from the metadata of all hosts; so it is the same at all hosts of a group
    when an operation that changes metadata returns.

    It also has the hosts and agents that this host has seen depart and not come back:
    ("departed host", id, name) and ("departed agent", id, host id).
    """

    def __init__(self, core: HostCore, news: Callable[[TupleStore], object]) -> None:
        # Numbers begin anew in each incarnation of the host.
        self._origin = f"{core.id}:{core.incarnation}"
        self.port = private_port(core, SYSTEM_NAME, core.id)
        self.tuple_store = TupleStore(
            core, SYSTEM_NAME, SpaceEngine(self.port), lambda entry: core.id, news
        )
        self._number = 0
        self._before = Directory()
        self._shown: dict[tuple[str, ...], None] = {}
        self._departed: dict[tuple[str, ...], None] = {}

    def install(self, directory: Directory) -> None:
        """Change the tuples to those of a new directory in one step; unchanged ones stay."""
        self._note_departures(directory)
        before, self._shown = self._shown, dict.fromkeys([*directory.tuples(), *self._departed])
        gone = before.keys() - self._shown.keys()
        with self.port.atomic():
            if gone:
                self.tuple_store.take_out(lambda entry: entry.fields in gone)
            self.tuple_store.put(
                [self._entry(fields) for fields in self._shown if fields not in before]
            )

    def _note_departures(self, directory: Directory) -> None:
        there = {*directory.hosts, *directory.agents}
        departed = self._departed | dict.fromkeys(self._before.departures())
        known = [fields for fields in departed if fields[1] not in there]
        self._departed = dict.fromkeys(known[-DEPARTED_MAX:])
        self._before = directory

    def _entry(self, fields: tuple[str, ...]) -> Entry:
        self._number += 1
        shape, values = freeze(fields)
        return Entry(values, shape, self._origin, self._number, 0)

    def close(self) -> None:
        self.tuple_store.close()
