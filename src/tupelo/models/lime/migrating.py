"""Migration: an agent moves to another host in two phases, so that there is exactly one of it.

The host that it leaves takes its spaces out of the group, sends everything over in pieces, and the
other one makes an agent of it that is parked: it does nothing yet. Then, and only then, the first
one decides. What it has decided it says: "go", and the parked agent begins; or "stay", if the link
was lost before, and the parked one is dropped. A word that does not arrive is said again in every
roster in which both hosts are, until it is answered.

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
from typing import TYPE_CHECKING, Any

import msgspec

from tupelo.errors import (
    AgentEnded,
    BadArgument,
    BadEntry,
    HostClosed,
    MigrationFailed,
    NotAllowed,
    TupeloError,
    UnknownAgentClass,
    UnknownHost,
)
from tupelo.federation.groups.roster import Roster
from tupelo.models.lime.agent import Agent
from tupelo.models.lime.life import Life, Role, on_loop
from tupelo.models.lime.locations import HostLocation
from tupelo.models.lime.messages import read, spell
from tupelo.models.lime.reaction import Delivery, RegisteredReaction
from tupelo.models.lime.reactions import Event, Registered
from tupelo.models.lime.tuplespace import LimeSystemTupleSpace, LimeTupleSpace, held
from tupelo.values.codec import decode_entry, encode_entry
from tupelo.values.entry import freeze, thaw

if TYPE_CHECKING:
    from collections.abc import Callable

    from tupelo.models.lime.host import Host

logger = logging.getLogger("tupelo")

PIECE_BYTES = 256 * 1024
PIECES_MAX = 256
"""An agent with more luggage than so many pieces is refused."""

HERE, MIGRATING = "here", "migrating"
"""What LimeSystem says of an agent."""


class Knows(msgspec.Struct, tag="knows", array_like=True, frozen=True):
    """Do you know the class of this agent?"""

    agent: str
    class_name: str


class Piece(msgspec.Struct, tag="piece", array_like=True, frozen=True):
    """A part of an agent's luggage; with the `last` one it is parked."""

    token: str
    agent: str
    content: bytes
    last: bool


class Word(msgspec.Struct, tag="word", array_like=True, frozen=True):
    """What was decided about a journey."""

    token: str
    go: bool


class Luggage(msgspec.Struct, array_like=True, frozen=True):
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


class Parked(msgspec.Struct, frozen=True):
    """An agent that has come, and waits for a word from where it was."""

    source: str
    incarnation: str
    life: Life


class Journeys:
    """The agents that leave this host, and those that come."""

    def __init__(self, host: Host) -> None:
        self.parked: dict[str, Parked] = {}
        self.decisions: dict[str, Decision] = {}
        self._host = host
        self._server = host.server
        self._pieces: dict[tuple[str, str], list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # Leaving

    async def leave(self, life: Life, host: HostLocation, role: Role) -> None:
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
        self, life: Life, target: str, role: Role, caller: asyncio.Task[Any] | None
    ) -> None:
        state, class_name = life.state, self._host._class_names[type(life.agent)]
        try:
            async with self._server.group.operating():
                await self._ask(target, Knows(state.id, class_name))
            await life.pause(role)
            own, kept = _luggage_of(life, target)
            state.state = MIGRATING
            packed = await self._server.pack(state, life.events)
        except Exception as error:
            await self._stay(life)
            raise _failed(state.id, target, error) from error
        luggage = Luggage(class_name, packed, own, _handles(kept, state.reactions))
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

    async def _carry(self, token: str, life: Life, target: str, luggage: Luggage) -> None:
        """Bring the luggage over, and decide: until all of it is there, the agent stays."""
        content = msgspec.msgpack.encode(luggage)
        self.decisions[token] = self._decision(target, go=False)
        try:
            for start in range(0, len(content), PIECE_BYTES):
                end = start + PIECE_BYTES
                last = end >= len(content)
                await self._ask(target, Piece(token, life.state.id, content[start:end], last))
        except MigrationFailed:  # It was refused there, so nothing is parked.
            del self.decisions[token]
            raise
        if life.ended:
            raise AgentEnded(life.state.id)
        self.decisions[token] = self._decision(target, go=True)

    async def _stay(self, life: Life) -> None:
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
        member = self._server.group.roster.members.get(target)
        if member is None:
            raise UnknownHost(target)
        return Decision(target, member.incarnation, go)

    async def _say(self, token: str) -> None:
        """Tell the other host what was decided; if it is lost, in a later roster."""
        decision = self.decisions[token]
        try:
            await self._ask(decision.host, Word(token, decision.go))
        except TupeloError as error:
            logger.info("the word about an agent to %s is put off: %s", decision.host, error)
        else:
            del self.decisions[token]

    async def _ask(self, target: str, body: Knows | Piece | Word) -> None:
        await self._server.ask(target, spell(body))

    # A new roster

    async def settle(self, roster: Roster) -> None:
        """What is undecided between hosts that have met again is decided now."""
        self._pieces.clear()
        for token, parked in list(self.parked.items()):
            source = roster.members.get(parked.source)
            if source is not None and source.incarnation != parked.incarnation:
                del self.parked[token]
        for token, decision in list(self.decisions.items()):
            target = roster.members.get(decision.host)
            if target is not None and target.incarnation != decision.incarnation:
                del self.decisions[token]
            elif target is not None:
                await self._say(token)

    # Arriving

    async def asked(self, neighbour: str, source: str, body: Any) -> None:
        match read(body, Knows | Piece | Word):
            case Knows(agent, class_name):
                self._class_of(agent, class_name)
            case Piece(token, agent, content, last):
                pieces = self._pieces.setdefault((source, token), [])
                pieces.append(content)
                if len(pieces) > PIECES_MAX:
                    del self._pieces[source, token]
                    raise MigrationFailed(agent, self._host.name, "it has too much luggage")
                if last:
                    del self._pieces[source, token]
                    self._park(neighbour, source, token, agent, b"".join(pieces))
            case Word(token, go):
                parked = self.parked.get(token)
                if parked is not None and parked.source == source:
                    del self.parked[token]
                    if go:
                        self._start(parked.life)

    def _class_of(self, agent: str, class_name: str) -> type[Agent]:
        if self._closed:
            raise MigrationFailed(agent, self._host.name, "the host was closed")
        found = self._host._classes.get(class_name)
        if found is None:
            raise UnknownAgentClass(agent, self._host.name, class_name)
        return found

    def _park(self, neighbour: str, source: str, token: str, agent: str, content: bytes) -> None:
        incarnation = self._server.group.roster.members[source].incarnation
        try:
            luggage = msgspec.msgpack.decode(content, type=Luggage)
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
        self.parked[token] = Parked(source, incarnation, life)

    def _unpack(self, cls: type[Agent], luggage: Luggage, neighbour: str, source: str) -> Life:
        agent = cls.__new__(cls)
        life = agent._life = Life(self._host, agent)

        def deliver(registered: Registered) -> Callable[[Event], object]:
            return Delivery(life, getattr(agent, registered.tag))

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

    def _start(self, life: Life) -> None:
        async def arrive() -> None:
            self._host.lives[life.state.id] = life
            await life.pause("run")  # No listener is called before its spaces are shared again.
            await self._server.arrive(life.state)
            life.go_on()
            life.start()

        task = asyncio.ensure_future(arrive())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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


def _luggage_of(life: Life, target: str) -> tuple[bytes, dict[str, str | Registered]]:
    """What the agent says of itself: its values, spelled, and which of its attributes are its
    spaces and reactions. MigrationFailed if it holds what cannot travel."""
    state = life.state
    for registered in [*state.reactions, *(event.registered for event in life.events)]:
        if registered.tag is None:
            what = f"the listener of its reaction to {registered.template!r} is not a method of it"
            raise MigrationFailed(state.id, target, what)
    kept: dict[str, str | Registered] = {}
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
    kept: dict[str, str | Registered], reactions: list[Registered]
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


def _handle(life: Life, key: str | int) -> Any:
    if isinstance(key, int):
        return RegisteredReaction(life, life.state.reactions[key])
    return held(life, life.host.server.space(life.state, key))
