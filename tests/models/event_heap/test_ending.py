"""Views and shared sessions end, for everyone, and leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tupelo
from tests.models.event_heap.test_views import ROW, open_all, read
from tests.models.event_heap.world import HeapHost, HeapWorld, meet
from tupelo.errors import BadArgument, LeaseLost
from tupelo.federation.replication.tokens import KeptToken
from tupelo.models.event_heap import Event, EventHeap
from tupelo.models.event_heap.records import Ended


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


def left(member: HeapHost) -> list[Any]:
    """What a host keeps of views and shared sessions: but that they have ended, nothing."""
    replica, core = member.replica, member.citizen.core
    items = [
        item for one in replica.system.exchange.streams.values() for item in one.items.values()
    ]
    kept = core.private_space("tupelo.tokens").space.read_all(KeptToken())
    return [
        *[item for item in items if item.shape.kind.name != "tupelo.heap.ended"],
        *replica.tokens.tokens,
        *replica.orders.orders,
        *replica.orders.made,
        *replica.sessions,
        *replica.uses.leases,
        *kept,
    ]


@pytest.mark.parametrize("order", ["none", "source", "total"])
def test_a_view_is_destroyed_for_everyone(order, folder):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        first = await a.do(a.heap.view(order=order))
        other = await b.do(b.heap.view(first.id, wait=30.0))
        await b.do(other.put(Event("n", i=1)))
        assert await read(b, other, 1) == [1]
        waiting = b.do(other.wait())
        await asyncio.sleep(1)
        await a.do(first.destroy())
        with pytest.raises(LeaseLost):
            await waiting
        for member, view in ((a, first), (b, other)):
            with pytest.raises(LeaseLost):
                await member.do(view.get())
            with pytest.raises(LeaseLost):
                await member.do(view.put(Event("n", i=2)))
            with pytest.raises(BadArgument):
                await member.do(member.heap.view(first.id))
        await world.together()
        assert [left(world[name]) for name in "abc"] == [[], [], []]

    meet(scene, *ROW, folder=folder)


def test_a_shared_session_is_destroyed_for_everyone(folder):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        shared = await a.do((await a.do(a.heap.session())).share())
        mine = await a.do(a.heap.session(shared))
        theirs = await b.do(b.heap.session(shared, wait=30.0))
        await a.put(Event("n", i=1))
        assert await b.do(theirs.wait(wait=30.0)) == Event("n", i=1)
        waiting = b.do(theirs.wait())
        await asyncio.sleep(1)
        await a.do(mine.destroy())
        with pytest.raises(LeaseLost):
            await waiting
        with pytest.raises(BadArgument):
            await b.do(b.heap.session(shared))
        await world.together()
        assert [left(world[name]) for name in "abc"] == [[], [], []]

    meet(scene, *ROW, folder=folder)


def test_who_was_away_hears_that_it_has_ended(folder):
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        await world["c"].do(views["c"].put(Event("n", i=1)))
        await world.together()
        world.network.partition("ab", "c")
        await world["a"].do(views["a"].destroy())
        await asyncio.sleep(10)
        world.network.heal()
        await world.together()
        with pytest.raises(LeaseLost):
            await world["c"].do(views["c"].get())
        assert [left(world[name]) for name in "abc"] == [[], [], []]

    meet(scene, *ROW, folder=folder)


def test_a_view_ends_with_its_last_user(folder):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        mine = await a.do(a.heap.view(lease=0))
        theirs = await b.do(b.heap.view(mine.id, wait=30.0))
        await b.do(theirs.put(Event("n", i=1)))
        await world.until(lambda: a.replica.uses._elsewhere == {mine.id}, "a knows the user")
        await a.do(mine.close())
        await asyncio.sleep(300)
        assert await read(b, theirs, 1) == [1]
        await b.do(theirs.close())
        await world.until(lambda: [left(world[name]) for name in "abc"] == [[], [], []], "ended")

    meet(scene, *ROW, folder=folder)


def test_what_nobody_uses_ends_with_its_lease_and_not_before():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        view = await a.do(a.heap.view(lease=100.0))
        shared = await a.do((await a.do(a.heap.session())).share(lease=100.0))
        for_ever = await a.do(a.heap.view(lease=None))
        session = await b.do(b.heap.session(shared, wait=30.0))
        await a.put(Event("n", i=1))
        assert await b.do(session.wait(wait=30.0)) == Event("n", i=1)
        await asyncio.sleep(300)
        await a.do(view.close())
        await a.do(for_ever.close())
        await b.do(session.close())
        await asyncio.sleep(90)
        again = await b.do(b.heap.view(view.id))
        assert await read(b, again, 1) == [1]
        await asyncio.sleep(300)
        with pytest.raises(BadArgument):
            await b.do(b.heap.session(shared))
        await b.do(again.close())
        await asyncio.sleep(300)
        for member in (a, b):
            assert list(member.replica.uses.leases) == [for_ever.id]
        with pytest.raises(BadArgument):
            await a.do(a.heap.view(view.id))
        assert (await a.do(a.heap.view(for_ever.id))).id == for_ever.id

    meet(scene, *ROW)


def test_a_view_whose_token_was_lost_with_its_host_ends_as_well():
    async def scene(world: HeapWorld) -> None:
        view = await world["a"].do(world["a"].heap.view(lease=100.0))
        await world.together()
        await world["a"].citizen.crash()
        await asyncio.sleep(300)
        assert view.id in world["b"].replica.orders.made
        await world["a"].citizen.start()
        world["a"].begin()
        await asyncio.sleep(300)
        for name in "abc":
            assert not world[name].replica.uses.leases

    meet(scene, *ROW)


def test_a_view_that_nobody_uses_gets_no_places_until_somebody_does():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        views = [await a.do(a.heap.view()) for _ in range(5)]
        for view in views:
            await a.do(view.close())
        await world.together()
        upto = a.replica.system.exchange.own.upto
        await a.put(*[Event("n", i=i) for i in range(10)])
        await b.put(Event("n", i=10))
        await world.together()
        assert a.replica.system.exchange.own.upto == upto
        again = await b.do(b.heap.view(views[0].id))
        assert sorted(await read(b, again, 11)) == list(range(11))

    meet(scene, *ROW)


def test_a_host_that_comes_back_after_the_end_has_nothing_left(tmp_path):
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        await world["c"].do(views["c"].put(Event("n", i=1)))
        await world.together()
        await world["c"].citizen.crash()
        await world["a"].do(views["a"].destroy())
        await world["c"].citizen.start()
        world["c"].begin()
        await world.until(lambda: [left(world[name]) for name in "abc"] == [[], [], []], "ended")

    meet(scene, *ROW, folder=tmp_path)


def test_a_lease_that_cannot_be_is_refused_and_strangers_are_passed_over():
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        session = await a.do(a.heap.session())
        leases: list[Any] = [-1, False, "long"]
        for lease in leases:
            with pytest.raises(BadArgument, match="lease"):
                await a.do(a.heap.view(lease=lease))
            with pytest.raises(BadArgument, match="lease"):
                await a.do(session.share(lease=lease))
        space = a.citizen.core.spaces["tupelo.system.board"].door
        await a.do(space.write(Ended(7, 1)))  # type: ignore[arg-type]
        view = await a.do(a.heap.view())
        await a.do(view.put(Event("n", i=1)))
        assert await read(a, view, 1) == [1]

    meet(scene, names="a")


def test_a_client_ends_a_shared_session():
    with (
        tupelo.Host("one", listen=0) as one,
        EventHeap(one, "board") as heap,
        EventHeap(tupelo.connect(f"{one.url}board")) as far,
    ):
        shared = far.session().share(lease=100.0)
        mine = heap.session(shared)
        far.session(shared).destroy()
        with pytest.raises(LeaseLost):
            mine.get()
        with pytest.raises(BadArgument):
            far.session(shared)


def test_an_event_that_was_written_when_its_view_ended_is_put(folder):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        first = await a.do(a.heap.view(order="total"))
        view = await b.do(b.heap.view(first.id, wait=30.0))
        await asyncio.sleep(5)
        busy = asyncio.Event()

        async def place_nothing() -> None:
            async with a.replica.orders.order(first.id).token.held():
                await busy.wait()

        a.do(place_nothing())
        putting = b.do(view.put(Event("n", i=1), wait=30.0))
        await world.until(lambda: bool(b.replica.feed.exchange.own.items), "written")
        assert not putting.done()
        a.do(first.destroy())
        await putting
        busy.set()
        assert await b.do(b.heap.snoop_all()) == [Event("n", i=1)]

    meet(scene, "ab", folder=folder)
