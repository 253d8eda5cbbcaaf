"""Who carries directed messages, how many of them, and until when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.models.melon.test_directed import MESH, carried, receipts
from tests.models.melon.world import MelonHost, MelonWorld, play
from tupelo.models.melon import Bound, Copies

ROW = ("ba", "cb", "dc")
STAR = ("ba", "ca", "da", "ea")


def extensions(world: MelonWorld, *names: str) -> str:
    """Those of these hosts that carry something."""
    return "".join(name for name in names if carried(world[name]))


@pytest.mark.parametrize("directed", [0, 1, 3])
def test_so_many_carry_what_is_directed(directed: int) -> None:
    async def scene(world: MelonWorld) -> None:
        a, f = world["a"], world["f"]  # f is alone
        await a.store(("n", 1), to=f.key)
        await a.store(("n", 2), to=f.key)
        await world.until(lambda: len(extensions(world, *"bcde")) == directed, "with so many")
        await asyncio.sleep(5)
        assert len(extensions(world, *"bcde")) == directed
        for name in extensions(world, *"bcde"):
            assert len(carried(world[name])) == 2

    play(scene, *STAR, names="f", identities=True, copies=Copies(directed=directed))


def test_a_carrier_that_is_gone_is_replaced_and_one_too_many_let_go() -> None:
    async def scene(world: MelonWorld) -> None:
        a, f = world["a"], world["f"]
        await a.store(("n", 1), to=f.key)
        await world.until(lambda: len(extensions(world, *"bcde")) == 1, "with one")
        first = extensions(world, *"bcde")
        others = "".join(name for name in "abcdef" if name != first)
        await world.parted(first, others)
        await world.until(lambda: len(extensions(world, *"bcde")) == 2, "with another")
        world.network.heal()
        await world.met(*STAR)
        await world.until(lambda: len(extensions(world, *"bcde")) == 1, "with one again")

    play(scene, *STAR, names="f", identities=True, copies=Copies(directed=1))


@pytest.mark.parametrize("directed", [0, 2, None])
def test_an_addressee_gets_it_from_its_host(directed: int | None) -> None:
    async def scene(world: MelonWorld) -> None:
        a, e = world["a"], world["e"]
        await world.parted("abcd", "e")
        await a.store(("n", 1), ("n", 2), to=e.key)
        waiting = e.take(("n", int), 100)
        world.network.heal()
        assert await waiting == ("n", 1)
        await a.store(("n", 3), to=e.key)
        assert [await e.take(("n", int), 10) for _ in range(2)] == [("n", 2), ("n", 3)]
        await world.until(lambda: not any(map(carried, world.hosts.values())), "let go")

    play(scene, *STAR, identities=True, copies=Copies(directed=directed))


@pytest.mark.parametrize("room", [0, Bound(count=1), Bound(bytes=100)], ids=str)
def test_who_has_no_room_for_others_gets_what_is_for_it(room: Bound | int) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.store(*(("n", number) for number in range(5)), to=b.key)
        await a.store(*(("n", number) for number in range(5)), to=c.key)
        await asyncio.sleep(5)
        assert await b.take_all(("n", int)) == [("n", number) for number in range(5)]
        await world.until(lambda: not carried(b), "let go")
        await world.parted("a", "bc")
        assert await c.take(("n", int), 3) is None
        world.network.heal()
        assert await c.take_all(("n", int), 20) == [("n", number) for number in range(5)]

    play(scene, *MESH, identities=True, own={"b": {"copies": Copies(room=room)}})  # type: ignore[arg-type]


def test_it_spreads_from_carrier_to_carrier() -> None:
    async def scene(world: MelonWorld) -> None:
        a, d = world["a"], world["d"]
        await world.parted("ab", "c", "d")
        await a.store(("n", 1), to=d.key)
        await world.until(lambda: bool(carried(world["b"])), "with b")
        await world.parted("a", "bc", "d")
        await world.until(lambda: bool(carried(world["c"])), "with c")
        await world.parted("a", "b", "cd")
        assert await d.take(("n", int), 20) == ("n", 1)

    play(scene, *ROW, identities=True)


def test_it_passes_through_hosts_in_the_middle() -> None:
    async def scene(world: MelonWorld) -> None:
        waiting = world["d"].take(("n", int), 100)
        await world["a"].store(("n", 1), to=world["d"].key)
        assert await waiting == ("n", 1)
        await world.until(lambda: not any(map(carried, world.hosts.values())), "let go")
        await world.until(lambda: not any(map(receipts, world.hosts.values())), "no receipts")

    play(scene, *ROW, identities=True)


@pytest.mark.parametrize("directed", [1, None])
def test_extensions_let_go_by_the_receipt_if_the_source_never_comes_back(
    directed: int | None,
) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.store(("n", 1), ("n", 2), to=c.key)
        await world.until(lambda: len(carried(b)) == 2, "with b")
        await a.crash()
        await world.parted("a", "bc")
        assert await c.take(("n", int), 20) == ("n", 1)
        await world.until(lambda: len(carried(b)) == 1, "one let go")
        await a.start()  # another life of it, which knows nothing of them
        world.network.heal()
        await world.met("ab")
        assert await c.take(("n", int), 20) == ("n", 2)
        await world.until(lambda: not carried(b), "let go")
        assert await c.take(("n", int), 2) is None

    play(scene, *MESH, identities=True, copies=Copies(directed=directed))


def test_who_meets_the_receipt_first_lets_go_of_what_it_gets_later() -> None:
    async def scene(world: MelonWorld) -> None:
        a, b, c, d = (world[name] for name in "abcd")
        await world.parted("abd", "c")
        await a.store(("n", 1), to=c.key)
        await world.until(lambda: bool(carried(b) and carried(d)), "with b and d")
        await a.crash()
        await world.parted("a", "bc", "d")
        assert await c.take(("n", int), 20) == ("n", 1)
        await world.until(lambda: bool(receipts(b)) and not carried(b), "let go at b")
        await world.parted("a", "bd", "c")
        await world.until(lambda: not carried(d), "let go at d")

    edges = ("ba", "da", "db", "cb")
    play(scene, *edges, identities=True)


def test_nobody_else_can_say_that_it_was_taken() -> None:
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.store(("n", 1), to=c.key)
        await world.until(lambda: bool(carried(b)), "with b")
        forged = await forge(a, c.key)
        await a.do(a.kept("sealed").write(forged))
        await world.until(lambda: bool(receipts(b)), "a receipt with b")
        assert carried(a)
        assert carried(b)

    play(scene, *MESH, identities=True)


async def forge(member: MelonHost, addressee: str) -> object:
    """A receipt that says it is the addressee's, signed by another."""
    from tupelo.models.melon.sealed import Receipt

    (stream,) = member.message_store.directed.feed.exchange.owned()
    (item,) = stream.items
    assert member.identity is not None
    forged = Receipt.signed(
        "melon", stream.source, item, carried(member)[0].number, member.identity
    )
    forged.by = addressee
    return forged


def test_what_is_carried_outlives_the_carrier(tmp_path: Path) -> None:
    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await world.parted("ab", "c")
        await a.store(("n", 1), ("n", 2), to=c.key)
        await world.until(lambda: len(carried(b)) == 2, "with b")
        await asyncio.sleep(1)  # until it is on disk
        await a.crash()
        await b.crash()
        await b.start()
        await world.parted("a", "bc")
        assert await c.take(("n", int), 20) == ("n", 1)
        await world.until(lambda: len(carried(b)) == 1, "let go")
        await b.crash()
        await b.start()
        assert await c.take(("n", int), 20) == ("n", 2)
        await a.start()
        world.network.heal()
        await world.until(lambda: not any(map(carried, (a, b, c))), "let go")

    play(scene, *MESH, identities=True, folder=tmp_path)


def test_who_leaves_gives_what_it_has_to_those_who_are_engaged() -> None:
    """Who carries a message asks for it, and who is to hold copies is asked to: that takes some
    round trips, over a slow line."""

    async def scene(world: MelonWorld) -> None:
        a, b, c = (world[name] for name in "abc")
        await c.leave()
        world.network.slow("a", "b", 10)
        await a.write(*(("news", number) for number in range(20)))
        await a.store(("lunch", "soup"), to=c.key)
        await a.leave()
        assert len(carried(b)) == 1
        await c.start()
        await world.met("cb")
        assert await c.take(("lunch", str), 30, sender=a.key) == ("lunch", "soup")
        assert await b.read_all(("news", int), 30) == [("news", number) for number in range(20)]

    play(scene, "ab", "cb", identities=True, copies=Copies())
