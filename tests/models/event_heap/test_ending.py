"""Views and shared sessions end, for everyone, and leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tupelo
from tests.models.event_heap.room import Person, Room, meet
from tests.models.event_heap.test_views import ROW, open_all, read
from tupelo.errors import BadArgument, LeaseLost
from tupelo.federation.replication.tokens import KeptToken
from tupelo.models.event_heap import Event, EventHeap
from tupelo.models.event_heap.records import Ended


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


def left(person: Person) -> list[Any]:
    """What a host keeps of views and shared sessions: but that they have ended, nothing."""
    replica, core = person.replica, person.citizen.core
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
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
        first = await a.do(a.heap.view(order=order))
        other = await b.do(b.heap.view(first.id, wait=30.0))
        await b.do(other.put(Event("n", i=1)))
        assert await read(b, other, 1) == [1]
        waiting = b.do(other.wait())
        await asyncio.sleep(1)
        await a.do(first.destroy())
        with pytest.raises(LeaseLost):
            await waiting
        for person, view in ((a, first), (b, other)):
            with pytest.raises(LeaseLost):
                await person.do(view.get())
            with pytest.raises(LeaseLost):
                await person.do(view.put(Event("n", i=2)))
            with pytest.raises(BadArgument):
                await person.do(person.heap.view(first.id))
        await room.together()
        assert [left(room[name]) for name in "abc"] == [[], [], []]

    meet(scene, *ROW, folder=folder)


def test_a_shared_session_is_destroyed_for_everyone(folder):
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
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
        await room.together()
        assert [left(room[name]) for name in "abc"] == [[], [], []]

    meet(scene, *ROW, folder=folder)


def test_who_was_away_hears_that_it_has_ended(folder):
    async def scene(room: Room) -> None:
        views = await open_all(room, "abc")
        await room["c"].do(views["c"].put(Event("n", i=1)))
        await room.together()
        room.network.partition("ab", "c")
        await room["a"].do(views["a"].destroy())
        await asyncio.sleep(10)
        room.network.heal()
        await room.together()
        with pytest.raises(LeaseLost):
            await room["c"].do(views["c"].get())
        assert [left(room[name]) for name in "abc"] == [[], [], []]

    meet(scene, *ROW, folder=folder)


def test_a_view_ends_with_its_last_user(folder):
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
        mine = await a.do(a.heap.view(lease=0))
        theirs = await b.do(b.heap.view(mine.id, wait=30.0))
        await b.do(theirs.put(Event("n", i=1)))
        await room.until(lambda: a.replica.uses._elsewhere == {mine.id}, "a knows the user")
        await a.do(mine.close())
        await asyncio.sleep(300)
        assert await read(b, theirs, 1) == [1]
        await b.do(theirs.close())
        await room.until(lambda: [left(room[name]) for name in "abc"] == [[], [], []], "ended")

    meet(scene, *ROW, folder=folder)


def test_what_nobody_uses_ends_with_its_lease_and_not_before():
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
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
        for person in (a, b):
            assert list(person.replica.uses.leases) == [for_ever.id]
        with pytest.raises(BadArgument):
            await a.do(a.heap.view(view.id))
        assert (await a.do(a.heap.view(for_ever.id))).id == for_ever.id

    meet(scene, *ROW)


def test_a_view_whose_token_was_lost_with_its_host_ends_as_well():
    async def scene(room: Room) -> None:
        view = await room["a"].do(room["a"].heap.view(lease=100.0))
        await room.together()
        await room["a"].citizen.crash()
        await asyncio.sleep(300)
        assert view.id in room["b"].replica.orders.made
        await room["a"].citizen.start()
        room["a"].begin()
        await asyncio.sleep(300)
        for name in "abc":
            assert not room[name].replica.uses.leases

    meet(scene, *ROW)


def test_a_view_that_nobody_uses_gets_no_places_until_somebody_does():
    async def scene(room: Room) -> None:
        a, b = room["a"], room["b"]
        views = [await a.do(a.heap.view()) for _ in range(5)]
        for view in views:
            await a.do(view.close())
        await room.together()
        upto = a.replica.system.exchange.own.upto
        await a.put(*[Event("n", i=i) for i in range(10)])
        await b.put(Event("n", i=10))
        await room.together()
        assert a.replica.system.exchange.own.upto == upto
        again = await b.do(b.heap.view(views[0].id))
        assert sorted(await read(b, again, 11)) == list(range(11))

    meet(scene, *ROW)


def test_a_host_that_comes_back_after_the_end_has_nothing_left(tmp_path):
    async def scene(room: Room) -> None:
        views = await open_all(room, "abc")
        await room["c"].do(views["c"].put(Event("n", i=1)))
        await room.together()
        await room["c"].citizen.crash()
        await room["a"].do(views["a"].destroy())
        await room["c"].citizen.start()
        room["c"].begin()
        await room.until(lambda: [left(room[name]) for name in "abc"] == [[], [], []], "ended")

    meet(scene, *ROW, folder=tmp_path)


def test_a_lease_that_cannot_be_is_refused_and_strangers_are_passed_over():
    async def scene(room: Room) -> None:
        a = room["a"]
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
