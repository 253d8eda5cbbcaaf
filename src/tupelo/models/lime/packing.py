"""Packing: what an agent takes along when it migrates.

Its number, its spaces with their tuples, its reactions with what they have reacted to, and the
events of weak ones that wait for their listeners. All spaces are private while it is packed up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tupelo.errors import BadFrame
from tupelo.federation.links.encoding import encode_seen
from tupelo.models.lime.locations import AgentLocation, HostLocation, Location
from tupelo.models.lime.messages import (
    CarriedTuple,
    TuplePlace,
    carried,
    encode,
    encoded_template,
    read,
    read_encoded_template,
    where_of,
)
from tupelo.models.lime.reactions import Mode, ReactionCall, ReactionRecord
from tupelo.models.lime.spaces import SYSTEM_NAME, AgentState, InterfaceSpace
from tupelo.space.session import Seen
from tupelo.values.entry import Entry
from tupelo.values.parts import ANY

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
