"""An order is folded: it keeps no places for events that are gone, at any host."""

from __future__ import annotations

import asyncio

import pytest

from tests.models.event_heap.test_views import ROW, open_all, read
from tests.models.event_heap.world import HeapHost, HeapWorld, meet
from tupelo.errors import BadArgument
from tupelo.models.event_heap import Event, View, orders
from tupelo.models.event_heap.replica import Replica

FEW = 20


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


@pytest.fixture(autouse=True)
def fold_early(monkeypatch):
    monkeypatch.setattr(Replica, "folded_after", FEW)


def places(member: HeapHost, view: View) -> int:
    return len(list(member.replica.orders.orders[view.id].ordering.listed()))


def records(member: HeapHost) -> int:
    """How many records a host keeps, those of others included."""
    streams = member.replica.system.exchange.streams.values()
    return sum(len(stream.items) for stream in streams)


async def pass_by(world: HeapWorld, view: View, name: str, count: int) -> None:
    """Put events that are gone soon."""
    for _ in range(count):
        await world[name].do(view.put(Event("brief"), ttl=0.5))
    await asyncio.sleep(1)


def test_places_of_events_that_are_gone_are_forgotten_everywhere(folder):
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        await world["a"].do(views["a"].put(Event("n", i=0)))
        for i in range(1, 7):
            name = "abc"[i % 3]
            await pass_by(world, views[name], name, 8)
            await world[name].do(views[name].put(Event("n", i=i)))
        await pass_by(world, views["b"], "b", FEW)
        await world["b"].do(views["b"].put(Event("n", i=7)))
        await world.together()
        for name in "abc":
            assert places(world[name], views[name]) < 8 + 3 * FEW
            assert records(world[name]) < 3 * FEW
            replayed = await world[name].do(views[name].replay(Event("n")))
            assert [event["i"] for event in replayed] == list(range(8))
            got = [await world[name].do(views[name].wait(Event("n"), wait=30.0)) for _ in range(8)]
            assert [event["i"] for event in got] == list(range(8))

    meet(scene, *ROW, folder=folder)


def test_who_comes_later_or_back_gets_what_is_left_of_a_folded_order(tmp_path):
    async def scene(world: HeapWorld) -> None:
        world.network.partition("ab", "c")
        views = await open_all(world, "ab")
        for i in range(4):
            await world["b"].do(views["b"].put(Event("n", i=i)))
            await pass_by(world, views["a"], "a", FEW)
        await world.alike("ab")
        await world["b"].citizen.crash()
        await world["b"].citizen.start()
        views["b"] = await world["b"].do(world["b"].begin().view(views["a"].id, wait=30.0))
        world.network.heal()
        views["c"] = await world["c"].do(world["c"].heap.view(views["a"].id, wait=30.0))
        await world["c"].do(views["c"].put(Event("n", i=4)))  # It gets the token.
        await world["b"].do(views["b"].put(Event("n", i=5)))
        for name in "abc":
            assert await read(world[name], views[name], 6) == list(range(6))
            assert views[name].cloned == []
            assert places(world[name], views[name]) < 6 + 3 * FEW

    meet(scene, *ROW, folder=tmp_path)


def test_a_clone_of_a_folded_order_has_what_was_left(monkeypatch):
    monkeypatch.setattr(orders, "PACKED_MAX", 3)

    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        for i in range(4):
            await world["a"].do(views["a"].put(Event("n", i=i)))
            await pass_by(world, views["a"], "a", FEW)
        await world["a"].do(views["a"].put_all([Event("n", i=i) for i in range(4, 20)]))
        assert await read(world["b"], views["b"], 20) == list(range(20))
        await world["a"].citizen.crash()
        await world["c"].do(views["c"].put(Event("n", i=20)))
        assert await read(world["b"], views["b"], 1) == [20]
        assert await read(world["c"], views["c"], 21) == list(range(21))
        assert len(views["b"].cloned) == 1

    meet(scene, *ROW, "ca")


def test_a_token_is_handed_over_with_few_places_to_those_who_have_the_others(monkeypatch):
    monkeypatch.setattr(orders, "PACKED_MAX", 5)
    packed: list[int] = []
    pack = orders.TotalOrder.pack

    def counting(order, known_there):
        found = pack(order, known_there)
        packed.append(len(found[3]))
        return found

    monkeypatch.setattr(orders.TotalOrder, "pack", counting)

    async def scene(world: HeapWorld) -> None:
        world.network.partition("a", "b")
        views = await open_all(world, "a")
        await world["a"].do(views["a"].put_all([Event("n", i=i) for i in range(15)]))
        world.network.heal()
        views["b"] = await world["b"].do(world["b"].heap.view(views["a"].id, wait=30.0))
        await world["b"].do(views["b"].put(Event("n", i=15)))
        assert views["b"].is_owner
        assert await read(world["b"], views["b"], 16) == list(range(16))
        assert packed and max(packed) <= 5

    meet(scene, "ba")


def test_the_maker_chooses_how_far_back_a_view_can_be_replayed():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        view = await a.do(a.heap.view(horizon=10))
        other = await b.do(b.heap.view(view.id, wait=30.0))
        for i in range(10 * FEW):
            await a.do(view.put(Event("n", i=i)))
        await b.do(other.put(Event("n", i=10 * FEW)))
        await world.together()
        for member, one in ((a, view), (b, other)):
            replayed = [event["i"] for event in await member.do(one.replay())]
            assert replayed == list(range(replayed[0], 10 * FEW + 1))
            assert 10 < len(replayed) <= 10 + FEW + 1
            assert places(member, one) == len(replayed)
        with pytest.raises(BadArgument, match="horizon"):
            await a.do(a.heap.view(horizon=-1))

    meet(scene, "ba")
