"""A partner that passes on the copies of a host that is away, and lies about them: what the host
has signed is believed, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64

from tests.models.event_heap.world import HeapWorld, meet
from tests.models.melon.world import MelonHost, MelonWorld, play
from tupelo.federation.identity.keys import Identity
from tupelo.federation.replication import messages as said
from tupelo.federation.replication.feeds import replication_of
from tupelo.federation.replication.streams import KEY_BYTES, host_of, sign
from tupelo.models.event_heap import Event
from tupelo.models.melon import Copies

Lie = Callable[[Any], Iterable[Any]]
"""What is said instead of a message about the stream of another."""

ROW = ("ba", "cb")
NONE = BitMap64().serialize()
MALLORY = Identity.new()


def signed(message: Any, statement: Any) -> Any:
    """With a signature of the liar's own, under the key of the source if that is known."""
    own = sign(MALLORY, message.feed, message.source, statement)
    statement.signature = (statement.signature[:KEY_BYTES] or own[:KEY_BYTES]) + own[KEY_BYTES:]
    return statement


def decoded(item: Any) -> Any:
    return msgspec.msgpack.decode(item, ext_hook=msgspec.msgpack.Ext)


def encoded(item: list[Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(item))


def make_up(message: Any) -> Iterable[Any]:
    """One more item, behind the last."""
    if isinstance(message, said.ItemBatch) and message.items:
        _, item = message.items[-1]
        message.upto += 1
        message.items.append((message.upto, item))
    yield message


def make_up_signed(message: Any) -> Iterable[Any]:
    """The same, signed by the liar."""
    for one in make_up(message):
        if isinstance(one, said.ItemBatch) and one.chunks:
            one.chunks[-1].upto = one.upto
            signed(one, one.chunks[-1])
        yield one


def alter(message: Any) -> Iterable[Any]:
    """Another origin of the last item, in the place of its own."""
    if isinstance(message, said.ItemBatch) and message.items:
        number, item = message.items[-1]
        fields, n, origin, lease, to = decoded(item)
        message.items[-1] = number, encoded([fields, n, f"not {origin}", lease, to])
    yield message


def replace(message: Any) -> Iterable[Any]:
    """The last item in the place of the first."""
    if isinstance(message, said.ItemBatch) and len(message.items) > 1:
        message.items[0] = message.items[0][0], message.items[-1][1]
    yield message


def leave_out(message: Any) -> Iterable[Any]:
    """Without the first item, but with all that was signed."""
    if isinstance(message, said.ItemBatch) and len(message.items) > 1:
        number, item = message.items.pop(0)
        for chunk in message.chunks:
            if chunk.after < number <= chunk.upto:
                chunk.digests = chunk.digests | {number: sha256(bytes(item)).digest()}
    yield message


def leave_out_chunk(message: Any) -> Iterable[Any]:
    """Without the first item, and without what was signed with it."""
    if isinstance(message, said.ItemBatch) and len(message.items) > 1:
        message.items.pop(0)
        message.chunks = message.chunks[1:]
    yield message


def lend_for_ever(message: Any) -> Iterable[Any]:
    """A lease that is longer than its source has given it."""
    if isinstance(message, said.ItemBatch):
        for place, (number, item) in enumerate(message.items):
            fields, n, origin, lease, to = decoded(item)
            longer = 1e9 if lease is None else lease + 1e9
            message.items[place] = number, encoded([fields, n, origin, longer, to])
    yield message


def end_stream(message: Any) -> Iterable[Any]:
    """Nothing comes any more."""
    if isinstance(message, said.ItemBatch):
        message.upto = said.NUMBER_MAX
    yield message


def remove(message: Any) -> Iterable[Any]:
    """All that was told is dead: with no signature, and with the liar's."""
    yield message
    if isinstance(message, said.ItemBatch) and message.items:
        numbers = [number for number, _ in message.items]
        died = said.Tombstones(message.feed, message.source, message.tombstones, numbers)
        living = said.AliveNumbers(message.feed, message.source, message.upto, 2**62, NONE, NONE)
        yield from (died, living)
        yield from (signed(died, died), signed(living, living))


FORGED = [
    *(make_up, make_up_signed, alter, replace, leave_out, leave_out_chunk, lend_for_ever),
    end_stream,
]


def lie_at(core: Any, about: str, lie: Lie) -> None:
    """From now on this host lies about the streams of another."""
    replication = replication_of(core)
    say = replication._say

    def say_otherwise(hosts: list[str], message: Any) -> None:
        if host_of(getattr(message, "source", "/")) != about or isinstance(message, said.HasFeed):
            say(hosts, message)
            return
        copy = type(message)(*[getattr(message, name) for name in message.__struct_fields__])
        if isinstance(copy, said.ItemBatch):
            copy.items, copy.chunks = (
                [*copy.items],
                [msgspec.structs.replace(c) for c in copy.chunks],
            )
        for one in lie(copy):
            say(hosts, one)

    replication._say = say_otherwise  # type: ignore[method-assign]


def is_refused(caplog: Any) -> bool:
    return any("has not signed it" in record.getMessage() for record in caplog.records)


# MELON


def copies_at(member: MelonHost, source: str) -> list[Any]:
    feed = member.message_store.feed
    assert feed is not None
    streams = [one for one in feed.exchange.streams.values() if host_of(one.source) == source]
    return [entry.fields[:2] for one in streams for entry in one.items.values()]


async def written_at_a_and_held_at_b(world: MelonWorld) -> list[Any]:
    a, b = world["a"], world["b"]
    await world.parted("ab", "c")
    await a.write(*(("n", number) for number in range(3)))
    await world.until(lambda: len(copies_at(b, a.id)) == 3)
    return copies_at(b, a.id)


@pytest.mark.parametrize("lie", FORGED)
def test_melon_reads_nothing_that_a_partner_has_forged(lie, caplog):
    caplog.set_level(logging.WARNING, "tupelo")

    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        written = await written_at_a_and_held_at_b(world)
        lie_at(world["b"].core, a.id, lie)
        await world.parted("a", "bc")
        await world.met("bc")
        assert await c.read(("n", int), 5) is None
        await world.until(lambda: is_refused(caplog))
        assert copies_at(c, a.id) == []
        # From its source it comes as it is.
        world.network.partition("ac", "b")
        c.dial("a")
        assert await c.read_all(("n", int), 20) == [("n", number) for number in range(3)]
        assert len(written) == 3

    play(scene, *ROW, identities=True, copies=Copies(hosts=1))


def test_melon_keeps_what_a_partner_says_was_removed(caplog):
    caplog.set_level(logging.WARNING, "tupelo")

    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        await written_at_a_and_held_at_b(world)
        lie_at(world["b"].core, a.id, remove)
        await world.parted("a", "bc")
        await world.met("bc")
        assert await c.read(("n", int), 10) == ("n", 0)
        await world.until(lambda: is_refused(caplog))
        assert await c.read_all(("n", int)) == [("n", 1), ("n", 2)]
        assert len(copies_at(c, a.id)) == 3

    play(scene, *ROW, identities=True, copies=Copies(hosts=1))


# The Event Heap


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


async def put_at_a_and_held_at_b(world: HeapWorld) -> str:
    a = world["a"]
    world.network.partition("ab", "c")
    await world.until(lambda: not world["c"].citizen.core.peers)
    await a.put(*(Event("e", i=number) for number in range(3)))
    await world.alike("ab")
    world.network.partition("a", "bc")
    await world.until(lambda: a.citizen.id not in world["b"].citizen.core.peers)
    return a.citizen.id


def events_at(world: HeapWorld, name: str, source: str) -> list[Any]:
    streams = world[name].replica.feed.exchange.streams.values()
    return [e for one in streams if host_of(one.source) == source for e in one.items.values()]


@pytest.mark.parametrize("lie", FORGED)
def test_a_heap_has_no_event_that_a_partner_has_forged(lie, folder, caplog):
    caplog.set_level(logging.WARNING, "tupelo")

    async def scene(world: HeapWorld) -> None:
        await world.together()
        b, c = world["b"], world["c"]
        lie_at(b.citizen.core, world["a"].citizen.id, lie)
        source = await put_at_a_and_held_at_b(world)
        await b.put(Event("b", i=0))
        await world.until(lambda: is_refused(caplog))
        await world.until(lambda: len(events_at(world, "c", b.citizen.id)) == 1)
        assert events_at(world, "c", source) == []
        world.network.partition("ac", "b")
        c.citizen.dial("a")
        await world.until(lambda: len(events_at(world, "c", source)) == 3)
        assert sorted(event["i"] for event in await c.do(c.heap.snoop_all(Event("e")))) == [0, 1, 2]

    meet(scene, *ROW, identities=True, folder=folder)


def test_a_heap_keeps_the_events_that_a_partner_says_were_removed(folder, caplog):
    caplog.set_level(logging.WARNING, "tupelo")

    async def scene(world: HeapWorld) -> None:
        await world.together()
        lie_at(world["b"].citizen.core, world["a"].citizen.id, remove)
        source = await put_at_a_and_held_at_b(world)
        await world.until(lambda: len(events_at(world, "c", source)) == 3)
        await world.until(lambda: is_refused(caplog))
        await world["b"].put(Event("b", i=0))
        await world.until(lambda: len(events_at(world, "c", world["b"].citizen.id)) == 1)
        assert len(events_at(world, "c", source)) == 3

    meet(scene, *ROW, identities=True, folder=folder)


def test_removals_that_the_source_has_signed_are_heeded_through_others(folder):
    """b hears of them, restarts if it has a disk, and tells c while a is away."""

    async def scene(world: HeapWorld) -> None:
        await world.together()
        a, b = world["a"], world["b"]
        await a.put(*(Event("e", i=number) for number in range(3)))
        await world.together()
        world.network.partition("ab", "c")
        await world.until(lambda: not world["c"].citizen.core.peers)
        await a.do(a.heap.remove(Event("e", i=1)))
        await world.alike("ab")
        await a.citizen.crash()
        if folder is not None:
            await b.citizen.crash()
            await b.citizen.start()
            b.begin()
        world.network.heal()
        await world.until(lambda: len(events_at(world, "c", a.citizen.id)) == 2)

    meet(scene, *ROW, identities=True, folder=folder)


def test_a_host_without_an_identity_signs_nothing_and_is_believed_through_others():
    async def scene(world: HeapWorld) -> None:
        await world.together()
        source = await put_at_a_and_held_at_b(world)
        await world.until(lambda: len(events_at(world, "c", source)) == 3)
        feed = world["c"].replica.feed
        assert not any(stream.chunks for stream in feed.exchange.streams.values())

    meet(scene, *ROW)


def unsigned(message: Any) -> Iterable[Any]:
    """As a program says it that is older than signatures."""
    if isinstance(message, said.ItemBatch):
        message.chunks = []
    elif isinstance(message, said.Tombstones | said.AliveNumbers):
        message.signature = b""
    yield message


def test_what_a_source_tells_unsigned_is_believed_of_itself_and_not_passed_on(folder, caplog):
    caplog.set_level(logging.WARNING, "tupelo")

    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        lie_at(a.citizen.core, a.citizen.id, unsigned)
        await a.put(*(Event("e", i=number) for number in range(3)))
        await world.until(lambda: len(events_at(world, "b", a.citizen.id)) == 3)
        await a.do(a.heap.remove(Event("e", i=1)))
        await world.until(lambda: len(events_at(world, "b", a.citizen.id)) == 2)
        if folder is not None:
            await b.citizen.crash()
            await b.citizen.start()
            b.begin()
            await world.until(lambda: len(events_at(world, "b", a.citizen.id)) == 2)
        await b.put(Event("b", i=0))
        await world.until(lambda: len(events_at(world, "c", b.citizen.id)) == 1)
        assert events_at(world, "c", a.citizen.id) == []
        assert not is_refused(caplog)

    meet(scene, *ROW, identities=True, folder=folder)
