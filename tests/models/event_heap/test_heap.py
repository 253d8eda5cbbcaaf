"""One heap on several hosts: put, get, wait, snoop, remove, get_all, queries and notification."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from queue import Queue

import pytest

import tupelo
from tests.models.event_heap.world import HEAP, HeapWorld, meet
from tupelo import ANY, Between, Named
from tupelo.errors import BadArgument, BadEntry, HeapDestroyed, SourceAway
from tupelo.models.event_heap import Event, EventHeap
from tupelo.models.event_heap.events import event_template

ROW = ("ba", "cb")


@dataclass
class Stroke:
    x: int | None = None
    y: int | None = None


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


def test_a_template_names_the_fields_it_cares_for():
    event = Event("stroke", x=1, y=2.5, colour="red", note=None)
    for template in (
        Event("stroke"),
        Event(None),
        Event(ANY, x=1),
        Event("stroke", x=int, colour=ANY),
        Event("stroke", x=Between(0, 5), y=float),
        Event(str, note=None),
        Named(type="stroke"),
        Event,
        ANY,
    ):
        assert event_template(template).matches(event), template
    others: list[object] = [
        Event("line"),
        Event("stroke", x=2),
        Event("stroke", x=1.0),
        Event("stroke", x=True),
        Event("stroke", width=ANY),
        Event("stroke", colour=None),
        Stroke,
        ("stroke", ANY),
    ]
    for other in others:
        assert not event_template(other).matches(event), other
    # Who asks the same again is understood as the same.
    assert event_template(Event("stroke", x=1)) is event_template(Event("stroke", x=1))
    assert event_template(Event("stroke", x=1)) is not event_template(Event("stroke", x=True))
    assert event_template(Stroke(1)) is event_template(Stroke(1)) is not event_template(Stroke(2))


def test_what_one_puts_all_can_get_once(folder):
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1), Event("n", i=2), Stroke(1, 2), ("tuple", 3))
        assert await world["a"].do(world["a"].heap.get(Event("n"))) == Event("n", i=1)
        await world.together()
        for name in "abc":
            heap = world[name].heap
            rest = [Event("n", i=2), Stroke(1, 2), ("tuple", 3)]
            if name != "a":
                rest.insert(0, Event("n", i=1))
            assert await world[name].do(heap.get_all()) == rest
            assert await world[name].do(heap.get()) is None
            assert await world[name].do(heap.get_all()) == []
            assert await world[name].do(heap.snoop(Stroke(x=1))) == Stroke(1, 2)
            assert len(await world[name].do(heap.snoop_all())) == 4

    meet(scene, *ROW, folder=folder)


def test_waiting_ends_with_an_event_from_afar_and_with_its_time():
    async def scene(world: HeapWorld) -> None:
        waiting = world["c"].do(world["c"].heap.wait(Event("late", i=int)))
        assert await world["b"].do(world["b"].heap.wait(Event("never"), wait=2.0)) is None
        await world["a"].put(Event("late", i="no"), Event("late", i=1))
        assert await waiting == Event("late", i=1)

    meet(scene, *ROW)


def test_an_event_has_a_time_to_live_everywhere(folder):
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("short"), ttl=5.0)
        await world["a"].put(Event("long"))
        await world.together()
        await asyncio.sleep(6)
        for name in "abc":
            assert await world[name].do(world[name].heap.get_all()) == [Event("long")]

    meet(scene, *ROW, folder=folder)


def test_an_event_is_removed_once_and_for_all(folder):
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1), Event("n", i=2))
        await world.together()
        got = await asyncio.gather(
            *[world[name].do(world[name].heap.remove(Event("n"))) for name in "abc"]
        )
        values = [event["i"] for event in got if event is not None]
        assert sorted(values) == [1, 2]
        await world.together()
        for name in "abc":
            assert await world[name].do(world[name].heap.snoop()) is None
            assert await world[name].do(world[name].heap.remove()) is None

    meet(scene, *ROW, folder=folder)


def test_what_lives_out_of_reach_can_be_read_but_not_removed():
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1))
        await world["c"].put(Event("m"))
        await world.together()
        world.network.partition("a", "bc")
        await asyncio.sleep(5)
        heap = world["c"].heap
        assert await world["c"].do(heap.get(Event("n"))) == Event("n", i=1)
        with pytest.raises(SourceAway) as raised:
            await world["c"].do(heap.remove(Event("n")))
        assert raised.value.hosts == ["a"]
        assert await world["c"].do(heap.remove(Event("other"))) is None
        assert await world["b"].do(world["b"].heap.remove(ANY)) == Event("m")
        waiting = world["c"].do(heap.wait_to_remove(Event("n"), wait=60.0))
        await asyncio.sleep(1)
        world.network.heal()
        assert await waiting == Event("n", i=1)
        await world.together()
        assert await world["a"].do(world["a"].heap.snoop()) is None

    meet(scene, *ROW)


def test_a_query_gives_what_is_there_and_what_comes_and_registration_only_that():
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1), Event("m"))
        await world.together()
        heap = world["b"].heap
        told: list[Event] = []
        registered = await world["b"].do(heap.register(Event("n"), told.append))
        query = await world["b"].do(heap.query(Event("n")))
        await world["c"].put(Event("n", i=2))
        await world["a"].put(Event("n", i=3))
        got = [await world["b"].do(query.wait(wait=20.0)) for _ in range(3)]
        assert sorted(event["i"] for event in got) == [1, 2, 3]
        assert await world["b"].do(query.get()) is None
        await world.until(lambda: len(told) == 2)
        assert sorted(event["i"] for event in told) == [2, 3]
        await world["b"].do(registered.close())
        await world["a"].put(Event("n", i=4))
        assert (await world["b"].do(query.wait(wait=20.0)))["i"] == 4
        await asyncio.sleep(1)
        assert len(told) == 2

    meet(scene, *ROW)


def test_what_another_door_writes_is_an_event_and_the_other_way_round():
    async def scene(world: HeapWorld) -> None:
        one = world["a"].citizen
        space = one.core.spaces["board"].door
        await one.do(space.write(("by", "Linda")))
        await world["b"].put(Event("n", i=1))
        await world.together()
        assert await world["b"].do(world["b"].heap.get(("by", str))) == ("by", "Linda")
        assert await one.do(space.take(("by", ANY), wait=0)) == ("by", "Linda")
        await world.together()
        assert await world["b"].do(world["b"].heap.snoop_all()) == [Event("n", i=1)]

    meet(scene, *ROW)


def test_a_host_comes_back_alone_with_what_it_has_seen(tmp_path):
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1))
        await world["b"].put(Event("n", i=2))
        await world.together()
        for name in "ab":
            await world[name].citizen.leave()
        await world["b"].citizen.start()
        heap = world["b"].begin()
        assert len(await world["b"].do(heap.get_all())) == 2
        with pytest.raises(SourceAway):
            await world["b"].do(heap.remove(Event("n", i=1)))

    meet(scene, "ba", folder=tmp_path)


def test_a_heap_is_destroyed_everywhere_and_can_be_made_anew(folder):
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1))
        await world["c"].put(Event("n", i=2))
        await world.together()
        waiting = world["c"].do(world["c"].heap.wait(Event("never")))
        await asyncio.sleep(1)
        await world["b"].do(world["b"].heap.destroy())
        with pytest.raises(HeapDestroyed):
            await waiting
        await world.until(lambda: not any(world[name].has_replica for name in "abc"))
        for name in "abc":
            with pytest.raises(HeapDestroyed):
                await world[name].put(Event("n"))
            with pytest.raises(HeapDestroyed):
                await world[name].do(world[name].heap.snoop())
            with pytest.raises(HeapDestroyed):
                world[name].begin()
        for name in "abc":
            made = EventHeap.create(world[name].host, HEAP)
            world[name].heap = await world[name].do(made)
        await world["b"].put(Event("n", i=3))
        await world.together()
        for name in "abc":
            assert await world[name].do(world[name].heap.snoop_all()) == [Event("n", i=3)]

    meet(scene, *ROW, folder=folder)


def test_who_was_away_when_a_heap_was_destroyed_does_not_bring_it_back(tmp_path):
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1))
        await world.together()
        await world["a"].citizen.leave()
        await world["b"].do(world["b"].heap.destroy())
        world["b"].heap = await world["b"].do(EventHeap.create(world["b"].host, HEAP))
        await world["b"].put(Event("n", i=2))
        await world["a"].citizen.start()
        heap = world["a"].begin()
        with pytest.raises(HeapDestroyed):
            await world["a"].do(heap.wait(Event("never")))
        world["a"].heap = await world["a"].do(EventHeap.create(world["a"].host, HEAP))
        await world.alike("ab")
        for name in "ab":
            assert await world[name].do(world[name].heap.snoop_all()) == [Event("n", i=2)]

    meet(scene, "ba", folder=tmp_path)


def test_both_doors_on_real_sockets(tmp_path):
    with (
        tupelo.Host("one", listen=0, path=tmp_path) as one,
        tupelo.Host("two", listen=0, peers=[one.address]) as two,
        EventHeap(one, "board") as here,
        EventHeap(two, "board") as there,
    ):
        here.put(Event("n", i=1))
        assert there.wait(Event("n"), wait=20.0) == Event("n", i=1)
        assert there.wait_to_remove(Event("n"), wait=20.0) == Event("n", i=1)
        told: Queue[Event] = Queue()
        with there.query(Event("m"), told.put):
            one.space("board").write(Event("m"))
            assert there.wait(Event("m"), wait=20.0) == Event("m")
            assert told.get(timeout=20.0) == Event("m")
        with pytest.raises(BadEntry):
            here.put(Event("n", i=int))
        with pytest.raises(BadArgument):
            EventHeap(one, "")
        with pytest.raises(BadArgument):
            EventHeap("host", "board")  # type: ignore[arg-type]


def test_who_is_cancelled_while_it_removes_loses_nothing(folder):
    async def scene(world: HeapWorld) -> None:
        for name in "ab":  # far away, and at home
            for i in range(20):
                await world["a"].put(Event("n", i=i))
                await world.together()
                removing = world[name].do(world[name].heap.wait_to_remove(Event("n", i=i)))
                await asyncio.sleep(0.002 * i)
                removing.cancel()
                await asyncio.wait([removing])
                await asyncio.sleep(1)
                await world.together()
                got = [] if removing.cancelled() else [removing.result()]
                got += await world["b"].do(world["b"].heap.snoop_all(Event("n", i=i)))
                assert got == [Event("n", i=i)]
                if removing.cancelled():  # It is a whole event, and lives once.
                    found = await world["b"].do(world["b"].heap.remove(Event("n", i=i)))
                    assert found == Event("n", i=i)

    meet(scene, "ba", folder=folder)


def test_a_removal_goes_on_when_the_group_changes(folder):
    """Another host comes and goes, while the source, whose disk is slow, is asked."""

    async def scene(world: HeapWorld) -> None:
        for i in range(8):
            await world["a"].put(Event("n", i=i))
        await world.together()
        removing = []
        for i in range(8):
            removing.append(world["b"].do(world["b"].heap.remove(Event("n", i=i))))
            await asyncio.sleep(0.004 * i)
            world.network.cut("a", "c")
            world.network.cut("b", "c")
            await asyncio.sleep(1)
        assert [await one for one in removing] == [Event("n", i=i) for i in range(8)]
        await world.together()
        assert await world["b"].do(world["b"].heap.snoop()) is None

    meet(scene, "ba", "cb", "ca", folder=folder)


def test_a_source_that_the_group_has_yet_to_hear_of_is_not_away():
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n", i=1))
        await world.together()
        heap = world["b"].begin("late")
        assert await world["b"].do(heap.remove()) is None
        far = world["a"].begin("late")
        await world["a"].do(far.put(Event("n", i=2)))
        assert await world["b"].do(heap.wait(wait=20.0)) == Event("n", i=2)
        assert await world["b"].do(heap.remove()) == Event("n", i=2)

    meet(scene, "ba")


def test_a_source_that_is_away_is_called_by_its_name():
    async def scene(world: HeapWorld) -> None:
        await world["a"].put(Event("n"))
        await world.together()
        world.network.partition("a", "b")
        await asyncio.sleep(5)
        with pytest.raises(SourceAway, match=r"'a' \(a\)"):
            await world["b"].do(world["b"].heap.remove())

    meet(scene, "ba")


def test_the_oldest_is_removed_though_there_are_many():
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.do(a.heap.put_all([Event("n", i=i) for i in range(40)]))
        got = [await a.do(a.heap.remove()) for _ in range(40)]
        assert [event["i"] for event in got] == list(range(40))
        assert await a.do(a.heap.remove()) is None

    meet(scene, names="a")
