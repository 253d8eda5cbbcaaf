"""Messages for one identity: only its host can take them, whoever carries them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.models.melon.world import MelonHost, MelonWorld, play
from tupelo.errors import BadArgument
from tupelo.federation.identity.keys import Identity
from tupelo.models.melon import Bound
from tupelo.models.melon.sealed import Receipt, Sealed, read_item
from tupelo.space.clock import LoopClock

ROW = ("ba", "cb")
MESH = ("ab", "bc", "ca")


def carried(member: MelonHost, kind: type = Sealed) -> list[Any]:
    """What is at this host of all that is sealed."""
    streams = member.message_store.directed.feed.exchange.streams.values()
    found = [read_item(entry) for stream in streams for entry in stream.items.values()]
    return [one for one in found if isinstance(one, kind)]


def receipts(member: MelonHost) -> list[Receipt]:
    return carried(member, Receipt)


def test_only_the_addressee_takes_it():
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await a.store(("secret", 1), to=c.key)
        for other in (a, b):
            assert await other.take((str, int)) is None
            assert await other.take_all((str, int), 2) == []
            assert await other.read((str, int)) is None
        assert await c.read((str, int)) is None
        assert await c.take(("secret", int), 5) == ("secret", 1)
        assert await c.take(("secret", int)) is None

    play(scene, *MESH, identities=True)


def test_they_come_in_order_and_who_waits_is_woken():
    async def scene(world: MelonWorld) -> None:
        a, c = world["a"], world["c"]
        waiting = c.take(("n", int), 100)
        await asyncio.sleep(3)
        await a.store(*(("n", number) for number in range(10)), to=c.key)
        got = [await waiting]
        while len(got) < 10:
            got += await c.take_all(("n", int), 10)
        assert got == [("n", number) for number in range(10)]
        await a.store(("n", 10))
        assert await c.take_all(("n", int), 3) == []  # which is not near
        assert await world["b"].take(("n", int)) == ("n", 10)

    play(scene, *ROW, identities=True)


def test_what_a_third_host_carries_it_cannot_read():
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.store(("secret", "the soup is cold"), to=c.key)
        await world.until(lambda: len(carried(b)) == 1, "with b")
        assert b"soup" not in carried(b)[0].seal
        await world.parted("a", "bc")
        assert await b.take((str, str), 2) is None
        assert await c.take((str, str), 10) == ("secret", "the soup is cold")
        # The receipt comes back by the same way, and everything is let go.
        await world.until(lambda: len(carried(b, Receipt)) == 1, "a receipt with b")
        world.network.heal()
        await world.met(*ROW)
        await world.until(lambda: not any(map(carried, (a, b, c))), "let go")
        await world.until(lambda: not any(map(receipts, (a, b, c))), "no receipts")
        assert await c.take((str, str), 2) is None

    play(scene, *ROW, identities=True)


def test_who_gives_up_leaves_it_for_the_next():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        for number in range(10):
            waiting = b.take(("n", int), 100)
            await asyncio.sleep(0.001 * number)
            await a.store(("n", number), to=b.key)
            await asyncio.sleep(0.0007 * number)
            waiting.cancel()
            got = (await asyncio.gather(waiting, return_exceptions=True))[0]
            if isinstance(got, BaseException):
                got = await b.take(("n", int), 10)
            assert got == ("n", number)

    play(scene, "ab", identities=True)


def test_the_sender_is_known():
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        waiting = c.take(("n", int), 50, sender=b.key)
        await a.store(("n", 1), to=c.key)
        await asyncio.sleep(2)
        assert not waiting.done()
        await b.store(("n", 2), to=c.key)
        assert await waiting == ("n", 2)
        assert await c.take(("n", int), 5, sender=b.key) is None
        assert await c.take(("n", int), sender=a.key) == ("n", 1)
        await c.store(("to", "myself"), to=c.key)
        assert await c.take(("to", str), 5, sender=c.key) == ("to", "myself")
        await world.until(lambda: not carried(c), "let go")

    play(scene, *MESH, identities=True)


def test_a_seal_that_was_altered_or_moved_is_dropped_and_counted():
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await a.store(("n", 1), to=c.key)
        await world.until(lambda: len(carried(b)) == 1, "with b")
        true = carried(b)[0]
        forged = true.seal[:-1] + bytes([true.seal[-1] ^ 1])
        # b passes it off as its own, alters it, and says nonsense; it cannot be opened.
        space = b.kept("sealed")
        await b.do(space.write(true))
        await b.do(space.write(Sealed(c.key, true.number + 1, true.after, forged)))
        await b.do(space.write(Sealed(c.key, true.number + 2, true.after, b"")))
        await world.until(lambda: c.melon.refused == 3, "refused")
        # Nor can it say that c has taken it.
        (stream,) = a.message_store.directed.feed.exchange.owned()
        (item,) = stream.items
        await b.do(space.write(Receipt(stream.source, item, c.key, true.number, b"x" * 64)))
        await asyncio.sleep(3)
        assert carried(a)
        assert await c.take_all((str, int)) == [("n", 1)]

    play(scene, *MESH, identities=True)


def test_what_was_taken_stays_taken_after_a_crash(tmp_path):
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.store(("n", 1), ("n", 2), to=c.key)
        await world.until(lambda: len(carried(b)) == 2, "with b")
        await world.parted("a", "bc")
        assert await c.take(("n", int), 10) == ("n", 1)
        await world.until(lambda: len(receipts(b)) == 1, "confirmed")
        await c.crash()
        await c.start()
        assert await c.take(("n", int), 10) == ("n", 2)
        assert await c.take(("n", int), 3) is None
        await a.crash()
        await a.start()
        world.network.heal()
        await world.until(lambda: not carried(a), "let go")

    play(scene, *ROW, identities=True, folder=tmp_path)


def test_directed_messages_are_bounded_at_their_source():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await world.parted("a", "b")
        await a.store(("n", 0), to=b.key, pin=True)
        await a.store(*(("n", number) for number in range(1, 6)), to=b.key)
        told = [await a.do(a.melon.collected.get(5)) for _ in range(3)]
        assert [(one.kind, one.message) for one in told] == [("directed", b.key)] * 3
        world.network.heal()
        got: list[Any] = []
        while len(got) < 3:
            got += await b.take_all(("n", int), 20)
        assert got == [("n", 0), ("n", 4), ("n", 5)]

    play(scene, "ab", identities=True, bound=Bound(count=3))


def test_an_address_is_an_identity():
    async def scene(world: MelonWorld) -> None:
        a = world["a"]
        wrong: list[Any] = ["ben", "", 7]
        for to in wrong:
            with pytest.raises(BadArgument, match="to"):
                await a.do(a.melon.store(("n", 1), to=to))
        with pytest.raises(BadArgument, match="sender"):
            await a.take(("n", 1), 0, sender="ben")

    play(scene, names="a", identities=True)

    async def nameless(world: MelonWorld) -> None:
        a = world["a"]
        with pytest.raises(BadArgument, match="no identity"):
            await a.do(a.melon.store(("n", 1), to=Identity.new().key))

    play(nameless, names="a")


def places_of(member: MelonHost) -> list[tuple[str, int, Sealed]]:
    """The messages that are at a host, opened or not: their places, and what they are."""
    streams = member.message_store.directed.feed.exchange.streams.values()
    items = [(one.source, item, read_item(e)) for one in streams for item, e in one.items.items()]
    return [(source, item, found) for source, item, found in items if isinstance(found, Sealed)]


@pytest.mark.parametrize("first", ["message", "receipt"])
def test_who_carries_a_message_lets_it_go_only_for_a_receipt_of_its_number(first):
    """Somebody may have shown the addressee another message of the same host in its place."""

    async def scene(world: MelonWorld) -> None:
        a, b, c = world["a"], world["b"], world["c"]
        await world.parted("ac", "b")
        await a.store(("n", 1), to=b.key)
        await world.until(lambda: len(places_of(c)) == 1)
        ((source, item, sealed),) = places_of(c)
        assert b.identity is not None and c.life is not None
        receipt = Receipt.signed("melon", source, item, sealed.number + 1, b.identity)
        directed = c.message_store.directed
        c.life.call(directed._receipts.apply, ("b/x>>a", 1), receipt)
        if first == "receipt":
            c.life.call(directed._processed.clear)
            c.life.call(directed.process_arrivals)
        assert places_of(c) == [(source, item, sealed)]

    play(scene, "ab", "ac", "bc", identities=True)


def test_a_number_is_given_once_though_the_clock_was_set_back(tmp_path):
    """Whoever has taken a message of this number would not take another."""

    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        away = Identity.new().key
        for number in range(3):
            await a.store(("n", number), to=away)
        await a.store(("n", 3), to=b.key)
        given = {one.number for *_, one in places_of(a)}
        assert await b.take(("n", int), 10) == ("n", 3)
        await world.until(lambda: len(places_of(a)) == 3)
        await a.crash()
        world.clock = LoopClock(world.loop, world.clock._epoch - 1_000.0)
        await a.start()
        await world.met("ab")
        await a.store(("n", 4), to=b.key)
        assert min({one.number for *_, one in places_of(a)} - given) > max(given)
        assert await b.take(("n", int), 10) == ("n", 4)

    play(scene, "ab", identities=True, folder=tmp_path)


def test_receipts_need_no_room_that_a_message_could_have():
    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        away = Identity.new().key
        await a.store(*(("for", number) for number in range(3)), to=away)
        await b.store(*(("from", number) for number in range(5)), to=a.key)
        await world.until(lambda: len(a.message_store.directed.letters) == 5)
        await world.parted("a", "b")
        assert len(await a.take_all(("from", int), 1)) == 5
        await world.pause(1)
        assert a.melon.collected.count == 0
        assert len([one for *_, one in places_of(a) if one.to == away]) == 3
        await a.store(("for", 3), to=away)
        assert (await a.do(a.melon.collected.get(5))).message == away
        assert len([one for *_, one in places_of(a) if one.to == away]) == 3

    play(scene, "ab", identities=True, own={"a": {"bound": Bound(count=3)}})


def test_what_was_taken_by_one_who_was_killed_before_it_had_it_is_there_again(tmp_path):
    """It is taken for good once the process has run on with it."""

    async def scene(world: MelonWorld) -> None:
        a, b = world["a"], world["b"]
        await a.store(("n", 1), ("n", 2), to=b.key)
        await world.until(lambda: len(b.message_store.directed.letters) == 2, "with b")
        assert await b.take(("n", int)) == ("n", 1)
        taking = b.message_store.taking
        taken = await b.do(taking.take(("n", int), 0, False))  # It has not got to the process yet.
        assert [one.fields for one in taken] == [("n", 2)]
        await world.until(lambda: len(carried(a)) == 1, "the first is confirmed")
        await b.crash()
        await b.start()
        assert await b.take(("n", int), 30) == ("n", 2)
        assert await b.take(("n", int), 3) is None
        await world.until(lambda: not carried(a), "let go")

    play(scene, "ab", identities=True, folder=tmp_path)
