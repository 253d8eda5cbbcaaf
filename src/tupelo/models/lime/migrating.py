"""Migration: an agent moves to another host in two phases, so that there is exactly one of it.

The host that it leaves takes its spaces out of the group, sends everything over in pieces, and the
other one makes an agent of it that is parked: it does nothing yet. Then, and only then, the first
one decides. What it has decided it says: "go", and the parked agent begins; or "stay", if the link
was lost before, and the parked one is dropped. A word that does not arrive is said again in every
membership in which both hosts are, until it is answered.

    leaving host                                arriving host
    Knows(class) ────────────────────────────►  refused if the class is unknown
    Piece … Piece(last) ─────────────────────►  makes it, and parks it; refused if it cannot
    decides; it is not here any more
    Word(go) ────────────────────────────────►  shares its spaces, and runs it

If the leaving host is lost for good, or comes back with a new life, a parked agent never begins: it
may have gone on there, and even have moved on, so this is the only way that there are never two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

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
    CarriedTuple,
    Loaded,
    TuplePlace,
    carried,
    encode,
    encoded_template,
    payload_of,
    read,
    read_encoded_template,
    where_of,
)
from tupelo.models.lime.reactions import (
    Mode,
    ReactionCall,
    ReactionDelivery,
    ReactionRecord,
    RegisteredReaction,
)
from tupelo.models.lime.spaces import SYSTEM_NAME, AgentState, InterfaceSpace
from tupelo.models.lime.tuplespace import LimeSystemTupleSpace, LimeTupleSpace, held
from tupelo.space.session import Seen
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import Entry, freeze, thaw
from tupelo.values.parts import ANY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tupelo.models.lime.host import Host


logger = logging.getLogger("tupelo")

Outcome = str | list[Any] | None

LOADS_MAX = 1_000
"""So many outcomes are kept of what other hosts load here, and do not ask for."""
PIECE_BYTES = 256 * 1024
PIECES_MAX = 256
"""An agent with more luggage than so many pieces is refused."""

HERE, MIGRATING = "here", "migrating"
"""What LimeSystem says of an agent."""


class ClassCheck(msgspec.Struct, tag="knows", array_like=True, frozen=True):
    """Do you know the class of this agent?"""

    agent: str
    class_name: str


class PackagePiece(msgspec.Struct, tag="piece", array_like=True, frozen=True):
    """A part of an agent's luggage; with the `last` one it is parked."""

    token: str
    agent: str
    content: bytes
    last: bool


class MigrationMessage(msgspec.Struct, tag="word", array_like=True, frozen=True):
    """What was decided about a journey."""

    token: str
    go: bool


class Load(msgspec.Struct, tag="load", array_like=True, frozen=True):
    """Make an agent of this class, of this name, with these arguments. The answer is None while
    that is under way; then the agent's id, or its error. Asked again with the same token it is not
    made again."""

    token: str
    class_name: str
    name: str | None
    args: bytes


class AgentPackage(msgspec.Struct, array_like=True, frozen=True):
    """All that travels: what the engine has of the agent, and what the agent says itself. `handles`
    are the names under which it keeps its spaces and registered reactions."""

    class_name: str
    packed: Any
    state: bytes
    handles: dict[str, str | int]


class Decision(msgspec.Struct, frozen=True):
    """A word for a host that has not answered it yet."""

    host: str
    incarnation: str
    go: bool


class WaitingMigration(msgspec.Struct, frozen=True):
    """An agent that has come, and waits for a word from where it was."""

    source: str
    incarnation: str
    life: AgentRuntime


class Migrations:
    """The agents that leave this host, and those that come."""

    def __init__(self, host: Host) -> None:
        self.parked: dict[str, WaitingMigration] = {}
        self.decisions: dict[str, Decision] = {}
        self._host = host
        self._server = host.server
        self._pieces: dict[tuple[str, str], list[bytes]] = {}
        self._loads: dict[tuple[str, str], Outcome] = {}
        """What other hosts load here, by host and token; None while it is under way."""
        self._news: dict[tuple[str, str], asyncio.Event] = {}
        """Where this host loads agents: is it known there whether one was made?"""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # Leaving

    async def leave(self, life: AgentRuntime, host: HostLocation, role: Role) -> None:
        """Move an agent away. A journey that has begun is carried to its end, also if whoever waits
        for it is cancelled."""
        if not isinstance(host, HostLocation):
            raise BadArgument("host", "a HostLocation", host)
        if host == self._server.here:
            raise BadArgument("host", "another host than this one", host)
        if role == "owner":
            raise MigrationFailed(life.state.id, host.id, "it is stationary: it has no run()")
        if role == "listener" and life.running:
            raise MigrationFailed(life.state.id, host.id, "run() is under way: only it can leave")
        caller = asyncio.current_task()
        journey = asyncio.ensure_future(self._travel(life, host.id, role, caller))
        try:
            await asyncio.shield(journey)
        except asyncio.CancelledError:
            await asyncio.wait([journey])
            raise

    async def _travel(
        self, life: AgentRuntime, target: str, role: Role, caller: asyncio.Task[Any] | None
    ) -> None:
        state, class_name = life.state, self._host._class_names[type(life.agent)]
        try:
            async with self._server.group.operating():
                await self._ask(target, ClassCheck(state.id, class_name))
            await life.pause(role)
            own, kept = _luggage_of(life, target)
            state.state = MIGRATING
            packed = await self._server.pack(state, life.events)
        except Exception as error:
            await self._stay(life)
            raise _failed(state.id, target, error) from error
        luggage = AgentPackage(class_name, packed, own, _handles(kept, state.reactions))
        token = self._server.core.new_id()
        try:
            async with self._server.group.operating():
                await self._carry(token, life, target, luggage)
                self._server.forget(state)
                self._host.lives.pop(state.id, None)
                life.end(caller)
                await self._say(token)
        except Exception as error:
            await self._stay(life)
            raise _failed(state.id, target, error) from error

    async def _carry(
        self, token: str, life: AgentRuntime, target: str, luggage: AgentPackage
    ) -> None:
        """Bring the luggage over, and decide: until all of it is there, the agent stays."""
        content = msgspec.msgpack.encode(luggage)
        self.decisions[token] = self._decision(target, go=False)
        try:
            for start in range(0, len(content), PIECE_BYTES):
                end = start + PIECE_BYTES
                last = end >= len(content)
                await self._ask(
                    target, PackagePiece(token, life.state.id, content[start:end], last)
                )
        except MigrationFailed:  # It was refused there, so nothing is parked.
            del self.decisions[token]
            raise
        if life.ended:
            raise AgentEnded(life.state.id)
        self.decisions[token] = self._decision(target, go=True)

    async def _stay(self, life: AgentRuntime) -> None:
        """It goes on here, as before."""
        state = life.state
        if state.state != HERE and not life.ended:
            state.state = HERE
            if state.packed:
                await self._server.resume(state)
            else:
                await self._server.set_state(state, HERE)
        life.go_on()

    def _decision(self, target: str, go: bool) -> Decision:
        member = self._server.group.membership.members.get(target)
        if member is None:
            raise UnknownHost(target)
        return Decision(target, member.incarnation, go)

    async def _say(self, token: str) -> None:
        """Tell the other host what was decided; if it is lost, in a later membership."""
        decision = self.decisions[token]
        try:
            await self._ask(decision.host, MigrationMessage(token, decision.go))
        except TupeloError as error:
            logger.info("the word about an agent to %s is put off: %s", decision.host, error)
        else:
            del self.decisions[token]

    async def _ask(
        self, target: str, body: ClassCheck | PackagePiece | MigrationMessage | Load
    ) -> Any:
        return await self._server.ask(target, encode(body))

    # A new membership

    async def settle(self, membership: Membership) -> None:
        """What is undecided between hosts that have met again is decided now."""
        self._pieces.clear()
        for token, parked in list(self.parked.items()):
            source = membership.members.get(parked.source)
            if source is not None and source.incarnation != parked.incarnation:
                del self.parked[token]
        for token, decision in list(self.decisions.items()):
            target = membership.members.get(decision.host)
            if target is not None and target.incarnation != decision.incarnation:
                del self.decisions[token]
            elif target is not None:
                await self._say(token)

    # Arriving

    async def asked(self, neighbour: str, source: str, body: Any) -> Any:
        match read(body, ClassCheck | PackagePiece | MigrationMessage | Load):
            case Load() as load:
                return self._load(source, load)
            case ClassCheck(agent, class_name):
                self._class_of(agent, class_name)
            case PackagePiece(token, agent, content, last):
                pieces = self._pieces.setdefault((source, token), [])
                pieces.append(content)
                if len(pieces) > PIECES_MAX:
                    del self._pieces[source, token]
                    raise MigrationFailed(agent, self._host.name, "it has too much luggage")
                if last:
                    del self._pieces[source, token]
                    self._park(neighbour, source, token, agent, b"".join(pieces))
            case MigrationMessage(token, go):
                parked = self.parked.get(token)
                if parked is not None and parked.source == source:
                    del self.parked[token]
                    if go:
                        self._start(parked.life)

        return None

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
            luggage = msgspec.msgpack.decode(content, type=AgentPackage)
            life = self._unpack(
                self._class_of(agent, luggage.class_name), luggage, neighbour, source
            )
        except MigrationFailed:
            raise
        except NotAllowed as refusal:
            raise MigrationFailed(agent, self._host.name, str(refusal)) from refusal
        except Exception as error:  # restore() is the agent's own
            reason = f"it cannot be made there again: {type(error).__name__}: {error}"
            raise MigrationFailed(agent, self._host.name, reason) from error
        self.parked[token] = WaitingMigration(source, incarnation, life)

    def _unpack(
        self, cls: type[Agent], luggage: AgentPackage, neighbour: str, source: str
    ) -> AgentRuntime:
        agent = cls.__new__(cls)
        life = agent._life = AgentRuntime(self._host, agent)

        def deliver(registered: ReactionRecord) -> Callable[[ReactionCall], object]:
            return ReactionDelivery(life, getattr(agent, registered.tag))

        life.state = self._server.unpack(luggage.packed, deliver)
        life.state.state = HERE
        for its in life.state.packed:
            self._server.spaces.require_sharable(its.name, neighbour, source)
        kept = {name: _handle(life, key) for name, key in luggage.handles.items()}
        names_and_values = thaw(*decode_entry(luggage.state))
        own = dict(zip(names_and_values[::2], names_and_values[1::2], strict=True))
        with on_loop(life.is_async):
            agent.restore({**own, **kept})
        return life

    def _start(self, life: AgentRuntime) -> None:
        async def arrive() -> None:
            self._host.lives[life.state.id] = life
            await life.pause("run")  # No listener is called before its spaces are shared again.
            await self._server.arrive(life.state)
            life.go_on()
            life.start()

        task = asyncio.ensure_future(arrive())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Loading at another host

    async def load(
        self, target: str, class_name: str, args: tuple[Any, ...], name: str | None
    ) -> AgentLocation:
        """Have an agent made at another host. It is asked again when it has made one, and when the
        group has changed: as it does when an agent comes."""
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
        self._server.voice.send(target, Loaded(load.token))
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
                    outcome = await self._ask(target, load)
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

    def _load(self, source: str, load: Load) -> Outcome:
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
        outcome: Outcome
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
                self._server.voice.send(source, Loaded(token))

        await self._host._door.on_loop(tell())

    async def stop(self) -> None:
        """Nobody comes any more; whoever is parked here, or about to begin, is not to be."""
        self._closed = True
        self.parked.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _failed(agent: str, target: str, error: Exception) -> TupeloError:
    if isinstance(error, (MigrationFailed, AgentEnded, HostClosed)):
        return error
    what = str(error) if isinstance(error, TupeloError) else f"{type(error).__name__}: {error}"
    return MigrationFailed(agent, target, what)


def _luggage_of(life: AgentRuntime, target: str) -> tuple[bytes, dict[str, str | ReactionRecord]]:
    """What the agent says of itself: its values, encoded, and which of its attributes are its
    spaces and reactions. MigrationFailed if it holds what cannot travel."""
    state = life.state
    for registered in [*state.reactions, *(event.registered for event in life.events)]:
        if registered.tag is None:
            what = f"the listener of its reaction to {registered.template!r} is not a method of it"
            raise MigrationFailed(state.id, target, what)
    kept: dict[str, str | ReactionRecord] = {}
    fields: list[Any] = []
    with on_loop(life.is_async):
        own: object = type(life.agent).state(life.agent)
    if not isinstance(own, dict):
        raise MigrationFailed(state.id, target, f"its state() must be a dict, not {own!r}")
    for name, value in own.items():
        if isinstance(value, RegisteredReaction) and value._life is life:
            kept[name] = value._registered
        elif isinstance(value, (LimeTupleSpace, LimeSystemTupleSpace)) and value._life is life:
            kept[name] = value.name
        else:
            fields += [name, _value(state.id, target, name, value)]
    return encode_entry(*freeze(tuple(fields))), kept


def _handles(
    kept: dict[str, str | ReactionRecord], reactions: list[ReactionRecord]
) -> dict[str, str | int]:
    """The same by the places of the reactions, as they were packed: one that was there before may
    have fired once for all meanwhile."""
    places = {one: place for place, one in enumerate(reactions)}
    return {
        name: key if isinstance(key, str) else places[key]
        for name, key in kept.items()
        if isinstance(key, str) or key in places
    }


def _value(agent: str, target: str, name: str, value: Any) -> Any:
    try:
        freeze((value,))
    except BadEntry as error:
        what = f"its attribute {name!r} is not a value, and cannot travel ({error})"
        raise MigrationFailed(agent, target, what) from error
    return value


def _handle(life: AgentRuntime, key: str | int) -> Any:
    if isinstance(key, int):
        return RegisteredReaction(life, life.state.reactions[key])
    return held(life, life.host.server.space(life.state, key))


Deliver = Callable[[ReactionCall], object]
DeliverOf = Callable[[ReactionRecord], Deliver]


class PackedSpace(msgspec.Struct, frozen=True, array_like=True):
    name: str
    shared: bool
    entries: list[CarriedTuple]


class PackedReaction(msgspec.Struct, frozen=True, array_like=True):
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
    """The reaction that has fired, by its place; for what, and who held it."""

    reaction: int
    entry: CarriedTuple
    source: tuple[str, str]


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """An agent on its journey."""

    id: str
    name: str
    class_name: str | None
    state: str
    number: int
    spaces: list[PackedSpace]
    reactions: list[PackedReaction]
    pending: list[PackedEvent]


def pack(agent: AgentState, pending: Iterable[ReactionCall], now: float) -> Any:
    """All of it, as it can be sent. BadEntry or BadTemplate if something has no encoding."""
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
            [_pack_space(its, its in agent.packed, now) for its in agent.spaces.values()],
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


def _pack_space(its: InterfaceSpace, shared: bool, now: float) -> PackedSpace:
    entries = its.own.look(ANY, TuplePlace(), one=False, known=False)
    return PackedSpace(its.name, shared, [carried(entry, now) for entry in entries])


def _pack_reaction(one: ReactionRecord) -> PackedReaction:
    return PackedReaction(
        one.its.name,
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
    """Read and make everything; it does nothing yet. BadFrame if it cannot be."""
    read_in: Packed = read(packed, Packed)
    agent = AgentState(read_in.id, read_in.name, read_in.class_name, read_in.state, read_in.number)
    agent.system = make(agent, SYSTEM_NAME)
    contents: list[tuple[InterfaceSpace, list[Entry]]] = []
    for space in read_in.spaces:
        its = agent.spaces[space.name] = make(agent, space.name)
        contents.append((its, [one.read(now) for one in space.entries]))
        if space.shared:
            agent.packed.append(its)
    reactions = [_unpack_reaction(agent, one, deliver_of) for one in read_in.reactions]
    for one, encoded in zip(reactions, read_in.reactions, strict=True):
        if encoded.registered:
            agent.add(one)
    for event in read_in.pending:
        if event.reaction not in range(len(reactions)):
            raise BadFrame("an event of no reaction")
        source = _read_location(event.source)
        agent.pending.append(ReactionCall(reactions[event.reaction], event.entry.read(now), source))
    for its, entries in contents:
        its.own.put(entries)
    return agent


def _unpack_reaction(
    agent: AgentState, packed: PackedReaction, deliver: DeliverOf
) -> ReactionRecord:
    its = agent.system if packed.space == SYSTEM_NAME else agent.spaces.get(packed.space)
    if its is None:
        raise BadFrame("a reaction in a space that was left behind")
    current = None if packed.where.current is None else _read_location(packed.where.current)
    destination = packed.where.destination
    one = ReactionRecord(
        its,
        read_encoded_template(packed.template),
        packed.mode,
        packed.weak,
        current,
        None if destination is None else AgentLocation(destination),
        _undelivered,
        packed.tag,
    )
    one.deliver = deliver(one)
    one.enabled = packed.enabled
    one.fired = _read_seen(packed.fired)
    return one


def _undelivered(event: ReactionCall) -> None:
    """Until it is known how."""


def _read_seen(packed: dict[str, bytes]) -> Seen:
    seen = Seen()
    try:
        for origin, numbers in packed.items():
            seen.merge(origin, numbers)
    except ValueError as error:
        raise BadFrame(f"this is no set of numbers: {error}") from error
    return seen


def _encode_location(location: Location) -> tuple[str, str]:
    encoded = where_of(location, None).current
    assert encoded is not None
    return encoded


def _read_location(encoded: tuple[str, str]) -> Location:
    kind, name = encoded
    return HostLocation(name) if kind == "host" else AgentLocation(name)
