"""Views of a heap that several hosts share."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from tests.models.event_heap.world import HeapHost, HeapWorld, meet
from tupelo.errors import BadArgument, TokenAway
from tupelo.federation.replication.messages import ItemBatch
from tupelo.federation.replication.tokens import TokenAt
from tupelo.models.event_heap import Event, View, ViewCloned
from tupelo.models.event_heap.events import event_template
from tupelo.models.event_heap.orders import PERMITTED_MAX
from tupelo.models.event_heap.records import (
    Destroyed,
    HeapMade,
    Placed,
    SessionMade,
    ViewMade,
    encode_places,
)

ROW = ("ba", "cb")
ANY_EVENT = event_template(Event("n"))


async def open_all(world: HeapWorld, names: str, maker: str = "a") -> dict[str, View]:
    """Everyone of these uses one view."""
    first = await world[maker].do(world[maker].heap.view())
    views = {maker: first}
    for name in names:
        if name != maker:
            views[name] = await world[name].do(world[name].heap.view(first.id, wait=30.0))
    return views


async def read(member: HeapHost, view: View, count: int) -> list[int]:
    got = [await member.do(view.wait(wait=30.0)) for _ in range(count)]
    return [event["i"] for event in got]


def test_all_see_one_order_whoever_puts_in_the_heap():
    async def scene(world: HeapWorld) -> None:
        await world["b"].put(Event("n", i=0))  # before there was a view
        await world.together()
        views = await open_all(world, "abc")

        async def draw(name: str, start: int) -> None:
            for i in range(start, start + 10):
                await world[name].put(Event("n", i=i))

        await asyncio.gather(draw("a", 100), draw("b", 200), draw("c", 300))
        orders = [await read(world[name], views[name], 31) for name in "abc"]
        assert orders[0] == orders[1] == orders[2]
        assert orders[0][0] == 0
        for start in (100, 200, 300):  # and each source's own
            own = [i for i in orders[0] if start <= i < start + 100]
            assert own == list(range(start, start + 10))
        assert await world["b"].do(views["b"].get()) is None

    meet(scene, *ROW)


def test_an_owner_whose_disk_was_full_places_what_came_meanwhile(tmp_path):
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "ab")
        world["a"].citizen.fill_disk()
        await world["b"].put(Event("n", i=1))
        await asyncio.sleep(5)
        assert await world["b"].do(views["b"].get()) is None
        world["a"].citizen.disk.full = False
        assert await read(world["b"], views["b"], 1) == [1]

    meet(scene, "ba", folder=tmp_path)


def test_what_is_put_through_a_view_has_its_place_and_the_owner_changes():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        for i, name in enumerate("abcabcb"):
            await world[name].do(views[name].put(Event("n", i=i)))
            assert views[name].is_owner
        for name in "abc":
            assert await read(world[name], views[name], 7) == list(range(7))
            replayed = await world[name].do(views[name].replay(Event("n")))
            assert [event["i"] for event in replayed] == list(range(7))
            again = await world[name].do(views[name].session())
            assert await world[name].do(again.get()) == Event("n", i=0)

    meet(scene, *ROW)


def test_what_was_removed_or_ran_out_is_passed_over():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        await world["a"].do(views["a"].put(Event("n", i=1)))
        await world["b"].do(views["b"].put(Event("n", i=2), ttl=5.0))
        await world["a"].do(views["a"].put(Event("n", i=3)))
        await world["a"].do(views["a"].put(Event("m", i=4)))
        await world["c"].do(world["c"].heap.wait_to_remove(Event("n", i=1), wait=30.0))
        await asyncio.sleep(6)
        await world.together()
        assert await world["c"].do(views["c"].get(Event("m"))) == Event("m", i=4)
        assert await world["c"].do(views["c"].get()) == Event("n", i=3)
        assert await world["c"].do(views["c"].get()) is None
        # Who comes later knows it from the order, though it never had the events.

    meet(scene, *ROW)


@pytest.mark.parametrize("order", ["none", "source"])
def test_a_view_of_another_order_has_the_same_events(order):
    async def scene(world: HeapWorld) -> None:
        first = await world["a"].do(world["a"].heap.view(order=order))
        other = await world["b"].do(world["b"].heap.view(first.id, wait=30.0))
        assert other.order == order
        await world["a"].do(first.put(Event("n", i=1)))
        await world["b"].do(other.put(Event("n", i=2)))
        await world.together()
        for name, view in (("a", first), ("b", other)):
            assert sorted(await read(world[name], view, 2)) == [1, 2]
            assert len(await world[name].do(view.replay())) == 2

    meet(scene, "ba")


def test_a_view_that_nobody_knows_is_refused():
    async def scene(world: HeapWorld) -> None:
        with pytest.raises(BadArgument):
            await world["a"].do(world["a"].heap.view("nonsense"))
        with pytest.raises(BadArgument):
            await world["a"].do(world["a"].heap.view(order="mess"))

    meet(scene, names="a")


def test_a_view_whose_owner_is_gone_is_cloned_and_its_users_are_told():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc", maker="a")
        old = views["a"].id
        for i, name in enumerate("bca"):
            await world[name].do(views[name].put(Event("n", i=i)))
        await world.together()
        world.network.partition("a", "bc")
        await asyncio.sleep(6)
        assert views["b"].cloned == []  # There is nothing to be placed.
        await world["c"].do(views["c"].put(Event("n", i=3)))
        await world.until(lambda: views["b"].id != old)
        new = views["b"].id
        assert new == views["c"].id
        for name in "bc":
            assert views[name].cloned == [ViewCloned(old, new)]
        await world["b"].do(views["b"].put(Event("n", i=4)))
        await world["a"].do(views["a"].put(Event("n", i=5)))
        for name in "bc":
            assert await read(world[name], views[name], 5) == [0, 1, 2, 3, 4]
        assert await read(world["a"], views["a"], 4) == [0, 1, 2, 5]
        world.network.heal()
        await world["a"].do(views["a"].put(Event("n", i=6)))
        # There is one order again, that of the first view, and who has left it is told.
        await world.until(lambda: all(view.id == old for view in views.values()))
        assert sorted(await read(world["a"], views["a"], 3)) == [3, 4, 6]
        for name in "bc":
            assert views[name].cloned == [ViewCloned(old, new), ViewCloned(new, old)]
            assert await read(world[name], views[name], 2) == [5, 6]
        replayed = [await world[name].do(views[name].replay()) for name in "abc"]
        assert replayed[0] == replayed[1] == replayed[2]
        assert len(replayed[0]) == 7
        await world.until(lambda: new not in world["a"].replica.orders.made)

    meet(scene, *ROW)


def test_what_is_lost_has_no_place_in_a_clone_unless_it_turns_up():
    """A place was told of, and then the event's source and everyone who had it were gone."""

    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc", maker="a")
        await world["a"].do(views["a"].put(Event("n", i=0)))
        await world.together()
        world.network.partition("ab", "c")
        await world["c"].put(Event("late", i=1))
        replica = world["a"].replica
        lost = [(world["c"].replica.feed.source, 1), ("nobody/1", 7)]
        await world["a"].do(replica.record(encode_places(views["a"].id, 1, lost)))
        await world["a"].put(Event("n", i=2))
        await world.alike("ab")
        await world["a"].citizen.crash()
        assert await read(world["b"], views["b"], 1) == [0]
        assert await world["b"].do(views["b"].get()) is None
        await world["b"].do(views["b"].put(Event("n", i=3)))
        assert await read(world["b"], views["b"], 2) == [2, 3]
        world.network.heal()
        assert await read(world["b"], views["b"], 1) == [1]
        other = await world["c"].do(world["c"].heap.view(views["b"].id, wait=30.0))
        assert await read(world["c"], other, 4) == [0, 2, 3, 1]

    meet(scene, *ROW, "ca")


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_clone_waits_for_what_another_has_of_its_events(monkeypatch, seed):
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc", maker="a")
        await world.together()
        world.network.partition("ac", "b")
        await world["a"].do(views["a"].put(Event("n", i=0)))
        assert await read(world["c"], views["c"], 1) == [0]
        await world["a"].citizen.crash()
        slow = world["b"].replica.feed
        hear, late = slow.heard, []

        def heard(peer: Any, message: Any) -> None:
            late.append((peer, message)) if isinstance(message, ItemBatch) else hear(peer, message)

        monkeypatch.setattr(slow, "heard", heard)
        world.network.heal()
        putting = world["c"].do(views["c"].put(Event("n", i=1)))
        await asyncio.sleep(20)
        assert not putting.done() and late
        monkeypatch.undo()
        for parcel in late:
            hear(*parcel)
        await putting
        assert await read(world["b"], views["b"], 2) == [0, 1]
        assert await read(world["c"], views["c"], 1) == [1]

    meet(scene, *ROW, "ca", seed=seed)


def test_a_clone_is_made_though_more_of_the_old_order_comes_meanwhile(monkeypatch):
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "ab")
        for i in range(3):
            await world["a"].do(views["a"].put(Event("n", i=i)))
        await world.together()
        replica = world["b"].replica
        old = replica.orders.order(views["a"].id)

        async def record(one: object) -> None:
            await original(one)
            old.ordering.receive(len(old.ordering), [(replica.feed.source, 10**6)])

        original = replica.record
        monkeypatch.setattr(replica, "record", record)
        await world["a"].citizen.crash()
        await world["b"].do(views["b"].put(Event("n", i=3), wait=60.0))
        assert await read(world["b"], views["b"], 4) == [0, 1, 2, 3]

    meet(scene, "ba")


def test_who_is_alone_makes_a_clone_at_its_next_put_and_can_be_impatient():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "ab")
        await world["a"].do(views["a"].put(Event("n", i=0)))
        assert await read(world["b"], views["b"], 1) == [0]
        world.network.partition("a", "b")
        with pytest.raises(TokenAway):
            await world["b"].do(views["b"].put(Event("n", i=1), wait=1.0))
        await world["b"].do(views["b"].put(Event("n", i=2)))
        assert await read(world["b"], views["b"], 1) == [2]
        assert len(views["b"].cloned) == 1

    meet(scene, "ba")


@pytest.mark.parametrize("seed", range(3))
def test_orders_agree_through_partings(seed):
    """Those who end with the same view have seen the same in the same order."""

    async def scene(world: HeapWorld) -> None:
        rng = Random(seed)
        names = "abcd"
        views = await open_all(world, names)
        number = 0
        for _ in range(3):
            side = [name for name in names if rng.random() < 0.5]
            world.network.partition(side, [name for name in names if name not in side])
            await asyncio.sleep(rng.random() * 8)
            for _ in range(4):
                name = rng.choice(names)
                number += 1
                if rng.random() < 0.5:
                    await world[name].do(views[name].put(Event("n", i=number)))
                else:
                    await world[name].put(Event("n", i=number))
            world.network.heal()
            await asyncio.sleep(rng.random() * 4)
        await asyncio.sleep(20)
        await world.together()
        by_view: dict[str | None, list[list[int]]] = {}
        for name in names:
            replayed = await world[name].do(views[name].replay())
            got = await world[name].do(views[name].get_all())
            assert len(got) == number
            by_view.setdefault(views[name].id, []).append([event["i"] for event in replayed])
        for orders in by_view.values():
            assert all(order == orders[0] for order in orders)
            assert sorted(orders[0]) == list(range(1, number + 1))

    meet(scene, "ba", "cb", "dc", "da", seed=seed)


def test_a_view_is_cloned_as_well_if_its_owner_comes_back_without_it():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc", maker="a")
        await world["a"].do(views["a"].put(Event("n", i=0)))
        await world.together()
        await world["a"].citizen.crash()
        await world["a"].citizen.start()
        world["a"].begin()
        await world["b"].put(Event("n", i=1))  # Nobody asks for the token.
        await world.until(lambda: len(views["c"].cloned) == 1)
        for name in "bc":
            assert await read(world[name], views[name], 2) == [0, 1]

    meet(scene, *ROW)


@pytest.mark.parametrize("seed", range(3))
def test_an_order_survives_the_crashes_of_hosts_with_folders(seed, tmp_path):
    async def scene(world: HeapWorld) -> None:
        rng = Random(seed)
        names = "abc"
        views = await open_all(world, names)
        view = views["a"].id
        number = 0
        seen: list[int] = []
        for _ in range(3):
            for _ in range(4):
                name = rng.choice(names)
                number += 1
                await world[name].do(views[name].put(Event("n", i=number)))
            seen += [event["i"] for event in await world["a"].do(views["a"].get_all())]
            victim = rng.choice("bc")
            await world[victim].citizen.crash()
            await world[victim].citizen.start()
            world[victim].begin()
            views[victim] = await world[victim].do(world[victim].heap.view(view, wait=30.0))
        await asyncio.sleep(5)
        await world.together()
        seen += [event["i"] for event in await world["a"].do(views["a"].get_all())]
        for name in names:
            replayed = await world[name].do(views[name].replay())
            assert [event["i"] for event in replayed] == seen == list(range(1, number + 1))
            assert views[name].id == view

    meet(scene, *ROW, folder=tmp_path, seed=seed)


def test_an_owner_that_is_there_but_does_not_use_the_heap_is_away(tmp_path):
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc", maker="a")
        await world["a"].do(views["a"].put(Event("n", i=0)))
        await world.together()
        await world["a"].citizen.leave()
        await world["a"].citizen.start()
        with pytest.raises(TokenAway):
            await world["c"].do(views["c"].put(Event("n", i=1), wait=1.0))
        await world["c"].do(views["c"].put(Event("n", i=2)))
        assert len(views["c"].cloned) == 1
        old = views["c"].cloned[0].old
        again = await world["a"].do(world["a"].begin().view(old, wait=30.0))
        await world["a"].do(again.put(Event("n", i=3)))
        assert await world["a"].do(again.get()) == Event("n", i=0)
        assert again.id == old

    meet(scene, *ROW, folder=tmp_path)


def test_who_joins_late_gets_the_whole_order_from_anyone():
    async def scene(world: HeapWorld) -> None:
        world.network.partition("ab", "c")
        views = await open_all(world, "ab")
        for i in range(5):
            await world["a"].do(views["a"].put(Event("n", i=i)))
        await world["a"].do(world["a"].heap.remove(Event("n", i=2)))
        await world.alike("ab")
        await world["a"].citizen.crash()
        world.network.heal()
        late = await world["c"].do(world["c"].heap.view(views["b"].id, wait=30.0))
        assert await read(world["c"], late, 4) == [0, 1, 3, 4]

    meet(scene, *ROW)


def test_what_strangers_write_among_the_records_is_passed_over():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "ab")
        citizen = world["b"].citizen
        space = citizen.core.spaces["tupelo.system.board"].door
        for garbage in (
            ViewMade(7, "total", views["a"].id, 0, "b"),  # type: ignore[arg-type]
            ViewMade("v", "total", views["a"].id, "long", "b"),  # type: ignore[arg-type]
            ViewMade("v", [], None, None, None),  # type: ignore[arg-type]
            Placed(views["a"].id, 0, ["x"], [5], [1]),
            Placed(),
            SessionMade(3),  # type: ignore[arg-type]
            HeapMade("two"),  # type: ignore[arg-type]
            Destroyed(None),
            TokenAt(f"view {views['a'].id}", "high", "b"),  # type: ignore[arg-type]
            TokenAt(f"view {views['a'].id}", 1, "b", 5),  # type: ignore[arg-type]
            ("anything",),
        ):
            await citizen.do(space.write(garbage))
        await world["b"].do(views["b"].put(Event("n", i=0)))
        await world["a"].do(views["a"].put(Event("n", i=1)))
        for name in "ab":
            assert await read(world[name], views[name], 2) == [0, 1]
            assert views[name].cloned == []

    meet(scene, "ba")


def test_a_put_that_comes_as_another_ends_is_served():
    async def scene(world: HeapWorld) -> None:
        view = (await open_all(world, "a"))["a"]

        async def steps(count: int) -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        first_is_done_after = 0
        for offset in range(100):  # The second put comes at each step of the loop once.
            first = world["a"].do(view.put(Event("n", i=offset)))
            await steps(offset)
            first_is_done_after += not first.done()
            second = world["a"].do(view.put(Event("n", i=offset)))
            async with asyncio.timeout(30.0):
                await asyncio.gather(first, second)
        assert 0 < first_is_done_after < 100

    meet(scene, *ROW)


def test_what_hosts_put_at_once_is_in_one_order_and_can_be_read_by_who_has_put_it():
    async def scene(world: HeapWorld) -> None:
        names = "abcdef"
        views = await open_all(world, names)
        await world.together()

        async def draw(name: str, start: int) -> None:
            for i in range(start, start + 20):
                await world[name].do(views[name].put(Event("n", i=i)))
                # It has its place now, after all that this host has put before.
                replayed = await world[name].do(views[name].replay())
                assert [e["i"] for e in replayed if e["i"] // 100 == i // 100][-1] == i

        await asyncio.gather(*[draw(name, 100 * i) for i, name in enumerate(names)])
        await world.together()
        orders = [await read(world[name], views[name], 120) for name in names]
        assert all(order == orders[0] for order in orders)

    meet(scene, "ba", "ca", "da", "ea", "fa")


def test_hosts_that_put_at_once_get_their_places_from_one_owner():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        await world.together()
        replica = world["a"].replica
        holding = replica.orders.orders[views["a"].id].token.held()
        await world["a"].do(holding.__aenter__())  # It is just putting something.
        putting = [
            world[name].do(views[name].put(Event("n", i=i))) for i in range(5) for name in "bc"
        ]
        await world.until(lambda: len(replica.find(ANY_EVENT)) == 10)
        told = replica.system.exchange.own.upto
        await world["a"].do(holding.__aexit__(None, None, None))
        replica.orders.look()  # as it does when it has put something
        await asyncio.gather(*putting)
        assert views["a"].is_owner
        assert len(replica.system.exchange.own.numbers(told)) == 1  # record, of all places
        orders = [await read(world[name], views[name], 10) for name in "abc"]
        assert orders[0] == orders[1] == orders[2]

    meet(scene, *ROW)


def test_a_token_that_goes_round_stays_with_its_holder_after_a_while():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        token = world["a"].replica.orders.orders[views["a"].id].token
        for i in range(60):
            await world.together()
            await world["abc"[i % 3]].do(views["abc"[i % 3]].put(Event("n", i=i)))
        await world.together()
        assert token._where.epoch < 20  # It has not changed hands at every put.
        assert await read(world["a"], views["a"], 60) == list(range(60))

    meet(scene, *ROW)


def test_who_puts_alone_gets_the_token_after_a_while():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        await asyncio.gather(
            *[world[name].do(views[name].put(Event("n", i=i))) for i in range(5) for name in "abc"]
        )
        for i in range(2 * PERMITTED_MAX + 2):
            await world["c"].do(views["c"].put(Event("n", i=i)))
        assert views["c"].is_owner

    meet(scene, *ROW)


def test_a_put_whose_owner_is_gone_before_it_has_its_place_gets_one_in_the_clone(
    monkeypatch,
):
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        await world.together()
        order = world["a"].replica.orders.orders[views["a"].id]
        monkeypatch.setattr(order, "permits_put", lambda host: True)
        holding = order.token.held()  # It gives no places, and then it is gone.
        await world["a"].do(holding.__aenter__())
        putting = [world[name].do(views[name].put(Event("n", i=i))) for i, name in enumerate("bc")]
        await world.until(lambda: len(world["c"].replica.find(ANY_EVENT)) == 2)
        assert not any(one.done() for one in putting)
        await world["a"].citizen.crash()
        await asyncio.gather(*putting)
        assert views["b"].id == views["c"].id == views["b"].cloned[0].new
        orders = [await read(world[name], views[name], 2) for name in "bc"]
        assert orders[0] == orders[1]
        assert sorted(orders[0]) == [0, 1]
        assert await world["b"].do(views["b"].get()) is None

    meet(scene, *ROW, "ca")


def test_events_that_stand_together_are_put_by_the_owner_though_others_put():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")

        async def draw(name: str, start: int) -> None:
            for i in range(start, start + 40, 4):
                events = [Event("n", i=i + k) for k in range(4)]
                if name == "a":
                    await world[name].do(views[name].put_all(events))
                else:
                    for event in events:
                        await world[name].do(views[name].put(event))

        await asyncio.gather(*[draw(name, 100 * i) for i, name in enumerate("abc")])
        order = await read(world["b"], views["b"], 120)
        for i in range(0, 40, 4):
            at = order.index(i)
            assert order[at : at + 4] == [i, i + 1, i + 2, i + 3]

    meet(scene, *ROW)


def test_clones_that_meet_are_one_again_and_what_waits_is_put():
    """Four hosts, each of which is alone for a while and makes a clone; the first owner is gone."""

    async def scene(world: HeapWorld) -> None:
        names = "bcde"
        views = await open_all(world, "a" + names)
        await world["a"].do(views["a"].put(Event("n", i=0)))
        await world.together()
        await world["a"].citizen.crash()
        world.network.partition(*names)
        await asyncio.gather(
            *[world[name].do(views[name].put(Event("n", i=i))) for i, name in enumerate(names, 1)]
        )
        assert len({views[name].id for name in names}) == 4
        seen = {name: await read(world[name], views[name], 2) for name in names}
        world.network.heal()
        putting = [
            world[name].do(views[name].put(Event("n", i=i))) for i, name in enumerate(names, 5)
        ]
        await asyncio.gather(*putting)
        await world.until(lambda: len({views[name].id for name in names}) == 1)
        await world.together()
        replayed = [await world[name].do(views[name].replay()) for name in names]
        assert all(one == replayed[0] for one in replayed)
        assert sorted(event["i"] for event in replayed[0]) == list(range(9))
        for name in names:
            assert views[name].cloned[-1].new == views[name].id
            got = await read(world[name], views[name], 7)
            assert sorted(seen[name] + got) == list(range(9))
        world.network.partition("b", "cde")  # A merged clone is not used again.
        await asyncio.sleep(10)
        old = views["b"].id
        for name in names:
            await world[name].do(views[name].put(Event("n", i=9)))
        world.network.heal()
        await world.until(lambda: len({views[name].id for name in names}) == 1)
        assert views["b"].id in (old, views["c"].cloned[-1].new)

    meet(scene, "ba", "cb", "dc", "ed", "eb")


def test_who_was_away_when_a_clone_was_merged_goes_on_with_the_other_view():
    async def scene(world: HeapWorld) -> None:
        views = await open_all(world, "abc")
        old = views["a"].id
        await world.together()
        world.network.partition("a", "bc")
        await world["b"].do(views["b"].put(Event("n", i=0)))
        await world.until(lambda: views["b"].id == views["c"].id != old)
        world.network.partition("ab", "c")
        await world.until(lambda: views["b"].id == old)
        assert views["c"].id != old
        world.network.heal()
        await world.until(lambda: views["c"].id == old)
        await world["c"].do(views["c"].put(Event("n", i=1)))
        for name in "abc":
            assert await read(world[name], views[name], 2) == [0, 1]

    meet(scene, *ROW)
