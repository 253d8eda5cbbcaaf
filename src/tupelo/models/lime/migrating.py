"""Migration: an agent moves to another host in two phases, so that there is exactly one of it.

The leaving host makes the spaces of the agent private and sends everything in pieces. The arriving
host makes the agent from them and parks it: it does not run yet. Then the leaving host decides:
"go", and the parked agent starts; or "stay", if the link was lost before, and the parked agent is
dropped. A decision that does not arrive is sent again in every membership that has both hosts,
until it is answered.

    leaving host                                arriving host
    ClassCheck ──────────────────────────────►  refused if the class is unknown
    PackagePiece … PackagePiece(last) ───────►  makes and parks the agent; refused if it cannot
    decides; the agent is not here any more
    MigrationDecision(go) ───────────────────►  shares its spaces, and runs it

If the leaving host is lost for good, or comes back in a new incarnation, a parked agent never
starts: it may have gone on there, and even have moved on. So there are never two.

The package (`Packed`) contains the number of the agent, its spaces with their tuples, its
reactions with the tuples for which they have fired, and the queued events of weak reactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tupelo.errors import (
    AgentEnded,
    BadArgument,
    BadEntry,
    BadFrame,
    HostClosed,
    LoadFailed,
    MigrationFailed,
    NotAllowed,
    PeerLost,
    TupeloError,
    UnknownAgentClass,
    UnknownHost,
)
from tupelo.federation.groups.membership import Membership
from tupelo.federation.links.encoding import encode_error, encode_seen, read_error
from tupelo.models.lime.agent import Agent, AgentRuntime, Role, is_to_end, on_loop
from tupelo.models.lime.locations import AgentLocation, HostLocation, Location
from tupelo.models.lime.messages import (
    ANYWHERE,
    CarriedTuple,
    LoadDone,
    MigrationRequest,
    TuplePlace,
    carried,
    encode,
    encoded_template,
    payload_of,
    place_of,
    read,
    read_encoded_template,
)
from tupelo.models.lime.reactions import (
    Mode,
    ReactionCall,
    ReactionDelivery,
    ReactionRecord,
    RegisteredReaction,
)
from tupelo.models.lime.spaces import SYSTEM_NAME, AgentState, InterfaceSpace
from tupelo.models.lime.tuplespace import LimeSystemTupleSpace, LimeTupleSpace, space_of_migrated
from tupelo.space.session import Seen
from tupelo.space.tasks import Tasks
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Entry, freeze, thaw
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from tupelo.models.lime.host import Host


logger = logging.getLogger("tupelo")

MigrationOutcome = str | list[Any] | None

LOADS_MAX = 1_000
"""The most outcomes of loads for other hosts that are kept until those hosts ask for them."""
PIECE_BYTES = 256 * 1024
PIECES_MAX = 256
"""An agent whose package has more pieces is refused."""

HERE, MIGRATING = "here", "migrating"
"""The states of an agent in LimeSystem."""


class ClassCheck(msgspec.Struct, tag="knows", array_like=True, frozen=True):
    """Asks whether the receiver knows the class of this agent; an error if not."""

    agent: str
    class_name: str


class PackagePiece(msgspec.Struct, tag="piece", array_like=True, frozen=True):
    """A piece of the package of an agent; the agent is parked when the `last` has arrived."""

    token: str
    agent: str
    content: bytes
    last: bool


class MigrationDecision(msgspec.Struct, tag="word", array_like=True, frozen=True):
    """The decision about a migration: the parked agent starts (`go`) or is dropped."""

    token: str
    go: bool


class Load(msgspec.Struct, tag="load", array_like=True, frozen=True):
    """Asks to make an agent of this class with this name and these arguments. The answer is None
    until that is done, then the id of the agent or its error. With the same token the agent is not
    made again."""

    token: str
    class_name: str
    name: str | None
    args: bytes


class AgentPackage(msgspec.Struct, array_like=True, frozen=True):
    """Everything that migrates: the agent as the engine knows it (`packed`), and the values of its
    `state()`. `handles` are its attributes that are spaces (by name) or reactions (by index)."""

    class_name: str
    packed: Any
    state: bytes
    handles: dict[str, str | int]


class UnansweredDecision(msgspec.Struct, frozen=True):
    """A decision that the arriving host has not answered yet."""

    host: str
    incarnation: str
    go: bool


class ParkedAgent(msgspec.Struct, frozen=True):
    """An agent that has arrived and waits for the decision of the host that it left."""

    source: str
    incarnation: str
    runtime: AgentRuntime


class Migrations:
    """The agents that leave this host, that arrive, and that other hosts load here."""

    def __init__(self, host: Host) -> None:
        self.parked: dict[str, ParkedAgent] = {}
        self.decisions: dict[str, UnansweredDecision] = {}
        self._host = host
        self._server = host.server
        self._pieces: dict[tuple[str, str], list[bytes]] = {}
        self._loads: dict[tuple[str, str], MigrationOutcome] = {}
        """The outcomes of loads for other hosts, by host and token; None until one is known."""
        self._news: dict[tuple[str, str], asyncio.Event] = {}
        """Set when the outcome of a load at another host is known there, by host and token."""
        self._tasks = Tasks()
        self._closed = False

    # Leaving

    async def leave(self, runtime: AgentRuntime, host: HostLocation, role: Role) -> None:
        """Move an agent to another host. A migration that has begun is completed even if the caller
        is cancelled."""
        if not isinstance(host, HostLocation):
            raise BadArgument("host", "a HostLocation", host)
        if host == self._server.here:
            raise BadArgument("host", "another host than this one", host)
        if role == "owner":
            raise MigrationFailed(runtime.state.id, host.id, "it is stationary: it has no run()")
        if role == "listener" and runtime.running:
            raise MigrationFailed(runtime.state.id, host.id, "run() is running: only it can leave")
        caller = asyncio.current_task()
        migration = asyncio.ensure_future(self._migrate(runtime, host.id, role, caller))
        try:
            await asyncio.shield(migration)
        except asyncio.CancelledError:
            await asyncio.wait([migration])
            raise

    async def _migrate(
        self, runtime: AgentRuntime, target: str, role: Role, caller: asyncio.Task[Any] | None
    ) -> None:
        state, class_name = runtime.state, self._host._class_names[type(runtime.agent)]
        try:
            async with self._server.group.operating():
                await self.ask(target, ClassCheck(state.id, class_name))
            await runtime.pause(role)
            own, kept = _package_of(runtime, target)
            state.state = MIGRATING
            packed = await self._server.pack(state, runtime.events)
        except Exception as error:
            await self._cancel(runtime)
            raise _failed(state.id, target, error) from error
        package = AgentPackage(class_name, packed, own, _handles(kept, state.reactions))
        token = self._server.core.new_id()
        try:
            async with self._server.group.operating():
                await self._send_package(token, runtime, target, package)
                self._server.forget(state)
                self._host.runtimes.pop(state.id, None)
                runtime.end(caller)
                await self._send_decision(token)
        except Exception as error:
            await self._cancel(runtime)
            raise _failed(state.id, target, error) from error

    async def _send_package(
        self, token: str, runtime: AgentRuntime, target: str, package: AgentPackage
    ) -> None:
        """Send the package, and decide: until all of it has arrived, the agent stays."""
        content = msgspec.msgpack.encode(package)
        self.decisions[token] = self._decision(target, go=False)
        try:
            for start in range(0, len(content), PIECE_BYTES):
                end = start + PIECE_BYTES
                last = end >= len(content)
                await self.ask(
                    target, PackagePiece(token, runtime.state.id, content[start:end], last)
                )
        except MigrationFailed:  # The other host has refused it, so nothing is parked there.
            del self.decisions[token]
            raise
        if runtime.ended:
            raise AgentEnded(runtime.state.id)
        self.decisions[token] = self._decision(target, go=True)

    async def _cancel(self, runtime: AgentRuntime) -> None:
        """The migration has failed: let the agent go on here."""
        state = runtime.state
        if state.state != HERE and not runtime.ended:
            state.state = HERE
            if state.packed:
                await self._server.resume(state)
            else:
                await self._server.set_state(state, HERE)
        runtime.unpause()

    def _decision(self, target: str, go: bool) -> UnansweredDecision:
        member = self._server.group.membership.members.get(target)
        if member is None:
            raise UnknownHost(target)
        return UnansweredDecision(target, member.incarnation, go)

    async def _send_decision(self, token: str) -> None:
        """Send a decision; if the other host is lost, `settle` sends it again."""
        decision = self.decisions[token]
        try:
            await self.ask(decision.host, MigrationDecision(token, decision.go))
        except TupeloError as error:
            logger.info(
                "the decision about an agent is not sent to %s yet: %s", decision.host, error
            )
        else:
            del self.decisions[token]

    async def ask(
        self, target: str, body: ClassCheck | PackagePiece | MigrationDecision | Load
    ) -> Any:
        return await self._server.sender.ask(target, MigrationRequest(encode(body)))

    # A new membership

    async def settle(self, membership: Membership) -> None:
        """In a new membership: send open decisions, and drop agents parked by lost incarnations."""
        self._pieces.clear()
        for token, parked in list(self.parked.items()):
            source = membership.members.get(parked.source)
            if source is not None and source.incarnation != parked.incarnation:
                self._drop_parked(token)
        for token, decision in list(self.decisions.items()):
            target = membership.members.get(decision.host)
            if target is not None and target.incarnation != decision.incarnation:
                del self.decisions[token]
            elif target is not None:
                await self._send_decision(token)

    # Arriving

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        match read(body, ClassCheck | PackagePiece | MigrationDecision | Load):
            case Load() as load:
                return self._load(source, load)
            case ClassCheck(agent, class_name):
                self._class_of(agent, class_name)
            case PackagePiece(token, agent, content, last):
                pieces = self._pieces.setdefault((source, token), [])
                pieces.append(content)
                if len(pieces) > PIECES_MAX:
                    del self._pieces[source, token]
                    raise MigrationFailed(agent, self._host.name, "its package is too large")
                if last:
                    del self._pieces[source, token]
                    self._park(neighbour, source, token, agent, b"".join(pieces))
            case MigrationDecision(token, go):
                parked = self.parked.get(token)
                if parked is not None and parked.source == source:
                    if go:
                        del self.parked[token]
                        self._start(parked.runtime)
                    else:
                        self._drop_parked(token)

        return None

    def _drop_parked(self, token: str) -> None:
        """Drop an agent that will not start here, and close its spaces."""
        for interface in self.parked.pop(token).runtime.state.spaces.values():
            interface.own.close()

    def _class_of(self, agent: str, class_name: str) -> type[Agent]:
        if self._closed:
            raise MigrationFailed(agent, self._host.name, "the host was closed")
        found = self._host._class_named(class_name)
        if found is None:
            raise UnknownAgentClass(agent, self._host.name, class_name)
        return found

    def _park(self, neighbour: str, source: str, token: str, agent: str, content: bytes) -> None:
        incarnation = self._server.group.membership.members[source].incarnation
        try:
            package = msgspec.msgpack.decode(content, type=AgentPackage)
            runtime = self._unpack(
                self._class_of(agent, package.class_name), package, neighbour, source
            )
        except MigrationFailed:
            raise
        except NotAllowed as refusal:
            raise MigrationFailed(agent, self._host.name, str(refusal)) from refusal
        except Exception as error:  # restore() is code of the agent
            reason = f"it cannot be restored there: {type(error).__name__}: {error}"
            raise MigrationFailed(agent, self._host.name, reason) from error
        self.parked[token] = ParkedAgent(source, incarnation, runtime)

    def _unpack(
        self, cls: type[Agent], package: AgentPackage, neighbour: str, source: str
    ) -> AgentRuntime:
        agent = cls.__new__(cls)
        runtime = agent._runtime = AgentRuntime(self._host, agent)

        def deliver(registered: ReactionRecord) -> Callable[[ReactionCall], object]:
            return ReactionDelivery(runtime, getattr(agent, registered.tag))

        runtime.state = self._server.unpack(package.packed, deliver)
        runtime.state.state = HERE
        for interface in runtime.state.packed:
            self._server.spaces.require_sharable(interface.name, neighbour, source)
        kept = {name: _handle(runtime, key) for name, key in package.handles.items()}
        names_and_values = thaw(*decode_entry(package.state))
        own = dict(zip(names_and_values[::2], names_and_values[1::2], strict=True))
        with on_loop(runtime.is_async):
            agent.restore({**own, **kept})
        return runtime

    def _start(self, runtime: AgentRuntime) -> None:
        async def arrive() -> None:
            self._host.runtimes[runtime.state.id] = runtime
            await runtime.pause("run")  # No listener is called before its spaces are shared again.
            await self._server.arrive(runtime.state)
            runtime.unpause()
            runtime.start()

        self._tasks.start(arrive())

    # Loading at another host

    async def load(
        self, target: str, class_name: str, args: tuple[Any, ...], name: str | None
    ) -> AgentLocation:
        """Have an agent made at another host; returns its location. The outcome is asked for again
        when that host reports it, and after a change of the membership."""
        try:
            encoded = payload_of(*freeze(args))
        except BadEntry as error:
            raise BadArgument("args", f"values that can be sent ({error})", args) from error
        load = Load(self._server.core.new_id(), class_name, name, encoded)
        news = self._news[target, load.token] = asyncio.Event()
        try:
            outcome = await self._outcome(target, load, news)
        finally:
            del self._news[target, load.token]
        self._server.sender.send(target, LoadDone(load.token))
        if isinstance(outcome, str):
            return AgentLocation(outcome)
        raise read_error(*outcome)

    async def _outcome(self, target: str, load: Load, news: asyncio.Event) -> Any:
        group = self._server.group
        lost: PeerLost | None = None
        while True:
            news.clear()
            async with group.operating():
                membership = group.membership
                try:
                    outcome = await self.ask(target, load)
                except UnknownHost as error:
                    raise lost or LoadFailed(load.class_name, target, str(error)) from error
                except PeerLost as error:
                    outcome = None
                    lost = lost if lost is not None and lost.in_doubt else error
                else:
                    during = f"loading an agent of the class {load.class_name!r}"
                    lost = PeerLost(f"the host {target}", during, "it has left", in_doubt=True)
            if outcome is not None:
                return outcome
            waits = [asyncio.ensure_future(one) for one in (news.wait(), group.changed(membership))]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()

    def heard_loaded(self, source: str, token: str) -> None:
        news = self._news.get((source, token))
        if news is not None:
            news.set()
        elif self._loads.get((source, token)) is not None:
            del self._loads[source, token]

    def _load(self, source: str, load: Load) -> MigrationOutcome:
        key = source, load.token
        if key in self._loads:
            return self._loads[key]
        cls = None if self._closed else self._host._class_named(load.class_name)
        if cls is None:
            reason = "the host was closed" if self._closed else "it knows no class of this name"
            raise LoadFailed(load.class_name, self._host.name, reason)
        for old in [one for one in self._loads if self._loads[one] is not None][:-LOADS_MAX]:
            del self._loads[old]
        self._loads[key] = None
        self._host._door.run_apart(partial(self._make, key, cls, load))
        return None

    async def _make(self, key: tuple[str, str], cls: type[Agent], load: Load) -> None:
        """Make an agent for another host, on a thread (or task) of its own."""
        source, token = key
        outcome: MigrationOutcome
        try:
            args = thaw(*decode_entry(load.args))
            outcome = (await self._host._load(source, cls, args, load.name)).id
        except BaseException as error:
            if is_to_end(error, self._host.is_async):
                raise
            reason = f"{type(error).__name__}: {error}"
            outcome = list(encode_error(LoadFailed(load.class_name, self._host.name, reason)))

        async def tell() -> None:
            self._loads[key] = outcome
            if source in self._server.group.membership.members:
                self._server.sender.send(source, LoadDone(token))

        await self._host._door.on_loop(tell())

    async def stop(self) -> None:
        """Accept no more agents, and drop those that are parked or about to start."""
        self._closed = True
        for token in list(self.parked):
            self._drop_parked(token)
        self._tasks.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _failed(agent: str, target: str, error: Exception) -> TupeloError:
    if isinstance(error, (MigrationFailed, AgentEnded, HostClosed)):
        return error
    what = str(error) if isinstance(error, TupeloError) else f"{type(error).__name__}: {error}"
    return MigrationFailed(agent, target, what)


def _package_of(
    runtime: AgentRuntime, target: str
) -> tuple[bytes, dict[str, str | ReactionRecord]]:
    """The values of `Agent.state()`, encoded, and its attributes that are spaces and reactions.
    Raises MigrationFailed if something cannot migrate."""
    state = runtime.state
    for registered in [*state.reactions, *(event.registered for event in runtime.events)]:
        if registered.tag is None:
            what = f"the listener of its reaction to {registered.template!r} is not a method of it"
            raise MigrationFailed(state.id, target, what)
    kept: dict[str, str | ReactionRecord] = {}
    fields: list[Any] = []
    with on_loop(runtime.is_async):
        own: object = type(runtime.agent).state(runtime.agent)
    if not isinstance(own, dict):
        raise MigrationFailed(state.id, target, f"its state() must be a dict, not {own!r}")
    for name, value in own.items():
        if isinstance(value, RegisteredReaction) and value._runtime is runtime:
            kept[name] = value._registered
        elif (
            isinstance(value, (LimeTupleSpace, LimeSystemTupleSpace)) and value._runtime is runtime
        ):
            kept[name] = value.name
        else:
            try:
                freeze((value,))
            except BadEntry as error:
                what = f"its attribute {name!r} is not a value that can be sent ({error})"
                raise MigrationFailed(state.id, target, what) from error
            fields += [name, value]
    return encode_entry(*freeze(tuple(fields))), kept


def _handles(
    kept: dict[str, str | ReactionRecord], reactions: list[ReactionRecord]
) -> dict[str, str | int]:
    """The kept attributes, with the indexes of reactions in the package; without ONCE reactions
    that have fired meanwhile."""
    places = {one: place for place, one in enumerate(reactions)}
    return {
        name: key if isinstance(key, str) else places[key]
        for name, key in kept.items()
        if isinstance(key, str) or key in places
    }


def _handle(runtime: AgentRuntime, key: str | int) -> Any:
    if isinstance(key, int):
        return RegisteredReaction(runtime, runtime.state.reactions[key])
    return space_of_migrated(runtime, runtime.host.server.space(runtime.state, key))


DeliverCall = Callable[[ReactionCall], object]
DeliverOf = Callable[[ReactionRecord], DeliverCall]


class PackedSpace(msgspec.Struct, frozen=True, array_like=True):
    """An interface tuple space with its tuples."""

    name: str
    shared: bool
    entries: list[CarriedTuple]


class PackedReaction(msgspec.Struct, frozen=True, array_like=True):
    """A reaction, with the tuples for which it has fired."""

    space: str
    template: bytes
    mode: Mode
    weak: bool
    where: TuplePlace
    enabled: bool
    registered: bool
    fired: dict[str, bytes]
    tag: Any


class PackedEvent(msgspec.Struct, frozen=True, array_like=True):
    """A queued event: the index of its reaction, the tuple, and the agent or host that held it."""

    reaction: int
    entry: CarriedTuple
    source: tuple[str, str]


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """An agent as the engine knows it, encoded. Its `number` leaves room for those to come."""

    id: str
    name: str
    class_name: str | None
    state: str
    number: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    spaces: list[PackedSpace]
    reactions: list[PackedReaction]
    pending: list[PackedEvent]


def pack(agent: AgentState, pending: Iterable[ReactionCall], now: float) -> Any:
    """Encode an agent. Raises BadEntry or BadTemplate if something has no encoding."""
    pending = list(pending)
    reactions = agent.reactions
    fired = [event.registered for event in pending if event.registered not in reactions]
    reactions += dict.fromkeys(fired)
    return encode(
        Packed(
            agent.id,
            agent.name,
            agent.class_name,
            agent.state,
            agent.number,
            [
                PackedSpace(
                    interface.name,
                    interface in agent.packed,
                    [
                        carried(entry, now)
                        for entry in interface.own.look(ANY, ANYWHERE, one=False, known=False)
                    ],
                )
                for interface in agent.spaces.values()
            ],
            [_pack_reaction(one) for one in reactions],
            [
                PackedEvent(
                    reactions.index(event.registered),
                    carried(event.entry, now),
                    _encode_location(event.source),
                )
                for event in pending
            ],
        )
    )


def _pack_reaction(one: ReactionRecord) -> PackedReaction:
    return PackedReaction(
        one.interface.name,
        encoded_template(one.template),
        one.mode,
        one.weak,
        one.where,
        one.enabled,
        one.registered,
        encode_seen(one.fired),
        one.tag,
    )


def unpack(
    packed: Any,
    make: Callable[[AgentState, str], InterfaceSpace],
    deliver_of: DeliverOf,
    now: float,
) -> AgentState:
    """Decode an agent; it is not active yet. Raises BadFrame."""
    read_in: Packed = read(packed, Packed)
    agent = AgentState(read_in.id, read_in.name, read_in.class_name, read_in.state, read_in.number)
    agent.system = make(agent, SYSTEM_NAME)
    contents: list[tuple[InterfaceSpace, list[Entry]]] = []
    for space in read_in.spaces:
        interface = agent.spaces[space.name] = make(agent, space.name)
        contents.append((interface, [one.read(now) for one in space.entries]))
        if space.shared:
            agent.packed.append(interface)
    reactions = [_unpack_reaction(agent, one, deliver_of) for one in read_in.reactions]
    for one, encoded in zip(reactions, read_in.reactions, strict=True):
        if encoded.registered:
            agent.add(one)
    for event in read_in.pending:
        if event.reaction not in range(len(reactions)):
            raise BadFrame("an event of no reaction")
        source = _read_location(event.source)
        agent.pending.append(ReactionCall(reactions[event.reaction], event.entry.read(now), source))
    for interface, entries in contents:
        interface.own.put(entries)
    return agent


def _unpack_reaction(
    agent: AgentState, packed: PackedReaction, deliver: DeliverOf
) -> ReactionRecord:
    interface = agent.system if packed.space == SYSTEM_NAME else agent.spaces.get(packed.space)
    if interface is None:
        raise BadFrame("a reaction in an unknown space")
    current = None if packed.where.current is None else _read_location(packed.where.current)
    destination = packed.where.destination
    one = ReactionRecord(
        interface,
        read_encoded_template(packed.template),
        packed.mode,
        packed.weak,
        current,
        None if destination is None else AgentLocation(destination),
        lambda event: None,  # until the delivery is known
        packed.tag,
    )
    one.deliver = deliver(one)
    one.enabled = packed.enabled
    one.fired = _read_seen(packed.fired)
    return one


def _read_seen(packed: dict[str, bytes]) -> Seen:
    seen = Seen()
    try:
        for origin, numbers in packed.items():
            seen.merge(origin, numbers)
    except ValueError as error:
        raise BadFrame(f"this is no set of numbers: {error}") from error
    return seen


def _encode_location(location: Location) -> tuple[str, str]:
    encoded = place_of(location, None).current
    assert encoded is not None
    return encoded


def _read_location(encoded: tuple[str, str]) -> Location:
    kind, name = encoded
    return HostLocation(name) if kind == "host" else AgentLocation(name)
