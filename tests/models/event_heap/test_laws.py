"""The laws of event heaps: the same texts on every kind of space and in the virtual network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import pytest

from tests.kinds import HOSTED
from tests.models.event_heap.world import HeapHost, HeapWorld, meet
from tests.models.neighbours import Neighbour, Neighbourhood
from tupelo.errors import HeapDestroyed, TupeloError
from tupelo.models.event_heap import Bridge, Event, EventHeap, Session, View
from tupelo.values.parts import ANY

WAIT_SECONDS = 30.0
NAMES = "abc"


class One(Protocol):
    """Somebody with a heap, at a host or at a client of one."""

    heap: EventHeap
    has_views: bool

    def do(self, work: Any) -> asyncio.Task[Any]: ...

    async def create(self, name: str) -> Any:
        """A heap of this name, made by the factory."""

    async def bridge(self, a: Any, b: Any, template: object) -> Any:
        """A bridge that carries both ways."""


class InTheLab:
    """A host of the virtual world."""

    has_views = True

    def __init__(self, member: HeapHost) -> None:
        self.heap = member.heap
        self.do = member.do
        self._host = member.host

    async def create(self, name: str) -> EventHeap:
        heap: EventHeap = await self.do(EventHeap.create(self._host, name))
        return heap

    async def bridge(self, a: EventHeap, b: EventHeap, template: object) -> Bridge:
        async def build() -> Bridge:
            return Bridge(a, b, template, both=True)

        bridge: Bridge = await self.do(build())
        return bridge


class OnKind:
    """A neighbour with a heap."""

    def __init__(self, neighbour: Neighbour, heap: EventHeap, name: str) -> None:
        self.heap = heap
        self.has_views = not neighbour.is_client
        self._neighbour = neighbour
        self._name = name

    def do(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)

    async def create(self, name: str) -> Any:
        own = self._name if name == self.heap.name else f"{self._name}.{name}"
        return await self._neighbour.open(EventHeap.create, own)

    async def bridge(self, a: Any, b: Any, template: object) -> Any:
        def build(*_: object) -> Bridge:
            return Bridge(getattr(a, "inner", a), getattr(b, "inner", b), template, both=True)

        return await self._neighbour.open(build, self._name)


Scene = Callable[[dict[str, Any]], Awaitable[None]]
LAB = ("lab", "memory spanning")
EVERYWHERE = [LAB, *HOSTED]
for_tasks = pytest.mark.parametrize(
    "place", [one for one in EVERYWHERE if one[0] != "blocking"], ids="-".join, indirect=True
)
"""A thread cannot be cancelled."""


@pytest.fixture(params=EVERYWHERE, ids="-".join)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """In the virtual network, or a door and a kind of space."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def play(place: tuple[str, str], neighbourhood: Neighbourhood) -> Callable[[Scene], None]:
    def in_the_lab(scene: Scene) -> None:
        async def play(world: HeapWorld) -> None:
            await scene({name: InTheLab(member) for name, member in world.members.items()})

        meet(play, "ba", "cb", "ca")

    def on_kind(scene: Scene) -> None:
        async def play(neighbours: dict[str, Neighbour]) -> None:
            board = neighbourhood.new_name()
            members = {
                name: OnKind(one, await one.open(EventHeap, board), board)
                for name, one in neighbours.items()
            }
            async with asyncio.timeout(2 * WAIT_SECONDS):
                await scene(members)

        neighbourhood.play(place, play)

    return in_the_lab if place == LAB else on_kind


async def numbers(one: One, reading: Session | EventHeap, count: int, *asked: Any) -> list[int]:
    """So many, waited for one after the other."""
    got = [await one.do(reading.wait(*asked, wait=WAIT_SECONDS)) for _ in range(count)]
    return [event["i"] for event in got]


async def share_view(members: dict[str, One], order: str = "total") -> dict[str, View]:
    first = await members["a"].do(members["a"].heap.view(order=order))
    views = {"a": first}
    for name in "bc":
        opened = members[name].heap.view(first.id, wait=WAIT_SECONDS)
        views[name] = await members[name].do(opened)
    return views


async def put_many(members: dict[str, One], count: int) -> None:
    async def put(name: str, start: int) -> None:
        for i in range(start, start + count):
            await members[name].do(members[name].heap.put(Event("n", i=i)))

    await asyncio.gather(*(put(name, 100 * at) for at, name in enumerate(NAMES)))


def own(order: list[int], at: int) -> list[int]:
    return [i for i in order if i // 100 == at]


def test_an_event_is_found_by_its_type_and_fields_once_and_snooped_as_often_as_one_likes(play):
    async def scene(members: dict[str, One]) -> None:
        a, b = members["a"], members["b"]
        await a.do(a.heap.put(Event("stroke", i=1, colour="red")))
        await a.do(a.heap.put(Event("stroke", i=2, colour="blue", width=2.5)))
        assert await numbers(b, b.heap, 1, Event("stroke", width=float)) == [2]
        assert await b.do(b.heap.get(Event("stroke", colour="green"))) is None
        assert await b.do(b.heap.get(Event("stroke", width=ANY))) is None
        assert (await b.do(b.heap.snoop(Event("stroke", i=2))))["colour"] == "blue"
        assert len(await b.do(b.heap.snoop_all(Event(None)))) == 2
        assert [event["i"] for event in await b.do(b.heap.get_all())] == [1]
        assert await b.do(b.heap.get()) is None

    play(scene)


@pytest.mark.parametrize("order", ["none", "source", "total"])
def test_all_who_share_a_view_see_all_events_of_each_source_in_order(play, order):
    async def scene(members: dict[str, One]) -> None:
        views = await share_view(members, order)
        await put_many(members, 5)
        seen = {name: await numbers(members[name], views[name], 15) for name in NAMES}
        for got in seen.values():
            for at in range(3):
                assert own(got, at) == list(range(100 * at, 100 * at + 5))
        for name in NAMES:
            replay = [event["i"] for event in await members[name].do(views[name].replay())]
            assert sorted(replay) == sorted(seen[name])
            if order == "total":
                assert replay == seen["a"] == seen[name]

    play(scene)


def test_a_view_is_read_by_kinds_and_each_kind_in_its_order(play):
    async def scene(members: dict[str, One]) -> None:
        views = await share_view(members)
        for i in range(12):
            name = NAMES[i % 3]
            await members[name].do(views[name].put(Event("even" if i % 2 == 0 else "odd", i=i)))
        b, view = members["b"], views["b"]
        assert await numbers(b, view, 3, Event("odd")) == [1, 3, 5]
        assert await numbers(b, view, 2, Event("even")) == [0, 2]
        assert await numbers(b, view, 2) == [4, 6]
        assert await numbers(b, view, 1, Event("odd")) == [7]
        assert await numbers(b, view, 4) == [8, 9, 10, 11]
        assert await b.do(view.get(Event("odd"))) is None

    play(scene)


def test_many_put_through_a_view_at_once_have_their_places(play):
    async def scene(members: dict[str, One]) -> None:
        views = await share_view(members)

        async def put(name: str, start: int) -> None:
            view = views[name]
            events = [[Event("n", i=start + i), Event("n", i=start + i + 50)] for i in range(5)]
            await asyncio.gather(*(members[name].do(view.put_all(pair)) for pair in events))

        await asyncio.gather(*(put(name, 100 * at) for at, name in enumerate(NAMES)))
        orders = [await numbers(members[name], views[name], 30) for name in NAMES]
        assert orders[0] == orders[1] == orders[2]
        for first, second in zip(orders[0][::2], orders[0][1::2], strict=True):
            assert second == first + 50  # Nothing is between those that were put together.

    play(scene)


def test_an_event_is_removed_by_one(play):
    async def scene(members: dict[str, One]) -> None:
        a = members["a"]
        await a.do(a.heap.put(Event("job", i=1)))
        for name in "bc":
            await numbers(members[name], members[name].heap, 1, Event("job"))
        tried = [members[name].do(members[name].heap.remove(Event("job"))) for name in NAMES]
        removed = [event for event in await asyncio.gather(*tried) if event is not None]
        assert removed == [Event("job", i=1)]
        waiting = members["c"].do(members["c"].heap.wait_to_remove(Event("job"), wait=WAIT_SECONDS))
        await a.do(a.heap.put(Event("job", i=2)))
        assert (await waiting)["i"] == 2
        assert await members["c"].do(members["c"].heap.snoop(Event("job"))) is None

    play(scene)


def test_an_event_ends_with_its_time(play):
    async def scene(members: dict[str, One]) -> None:
        a, b = members["a"], members["b"]
        await a.do(a.heap.put(Event("n", i=1), ttl=1.0))
        assert await numbers(b, b.heap, 1) == [1]
        while await b.do(b.heap.snoop()) is not None:
            assert await b.do(b.heap.wait(Event("never"), wait=0.1)) is None
        assert await a.do(a.heap.get_all()) == []

    play(scene)


def test_sessions_are_empty_inherited_or_shared(play):
    async def scene(members: dict[str, One]) -> None:
        a, b, c = members.values()
        await a.do(a.heap.put_all([Event("n", i=i) for i in range(6)]))
        mine = await b.do(b.heap.session())
        assert await numbers(b, mine, 2) == [0, 1]
        heir = await b.do(mine.clone())
        shared = await b.do(mine.share())
        assert await numbers(b, heir, 4) == [2, 3, 4, 5]
        assert await numbers(b, mine, 1) == [2]
        again = await b.do(b.heap.session())
        assert await numbers(b, again, 6) == list(range(6))
        parts: list[int] = []
        for one in (a, b, b, c):  # Two at one host share it as well.
            session = await one.do(one.heap.session(shared, wait=WAIT_SECONDS))
            parts += await numbers(one, session, 1)
        assert parts == [2, 3, 4, 5]

    play(scene)


def test_a_query_has_all_and_a_registration_what_comes(play):
    async def scene(members: dict[str, One]) -> None:
        a, b = members["a"], members["b"]
        await a.do(a.heap.put(Event("n", i=1)))
        await numbers(b, b.heap, 1)
        asked: list[int] = []
        told: list[int] = []
        queries = [
            await b.do(b.heap.query(Event("n"), lambda event: asked.append(event["i"]))),
            await b.do(b.heap.register(Event("n"), lambda event: told.append(event["i"]))),
        ]
        await a.do(a.heap.put(Event("n", i=2)))
        while len(asked) < 2 or not told:
            await asyncio.sleep(0.002)
        for query in queries:
            await b.do(query.close())
        await a.do(a.heap.put(Event("n", i=3)))
        await numbers(b, b.heap, 2)
        assert (asked, told) == ([1, 2], [2])

    play(scene)


def test_a_heap_is_destroyed_for_all_and_who_waits_is_told(play):
    async def scene(members: dict[str, One]) -> None:
        a, b = members["a"], members["b"]
        await a.do(a.heap.put(Event("n", i=1)))
        assert await numbers(b, b.heap, 1) == [1]
        asked = [b.heap.wait, b.heap.wait_to_remove]
        asked += [(await b.do(b.heap.view())).wait] if b.has_views else []
        waiting = [b.do(call(Event("m"))) for call in asked]
        await asyncio.wait(waiting, timeout=0.05)
        await a.do(a.heap.destroy())
        for one in waiting:
            with pytest.raises(HeapDestroyed):
                await one
        with pytest.raises(HeapDestroyed):
            await a.do(a.heap.put(Event("n", i=2)))
        anew = await a.create(a.heap.name)
        assert await a.do(anew.get_all()) == []

    play(scene)


def test_bridges_carry_what_matches_and_nothing_in_circles(play):
    async def scene(members: dict[str, One]) -> None:
        a, b = members["a"], members["b"]
        heaps = [a.heap, await a.create("two"), await a.create("three")]
        far = await b.create("three")
        ring = [(0, 1), (1, 2), (2, 0)]
        bridges = [await a.bridge(heaps[i], heaps[j], Event("n")) for i, j in ring]
        await a.do(a.heap.put_all([Event("n", i=1), Event("m", i=2)]))
        await b.do(far.put(Event("n", i=3)))
        assert sorted(await numbers(b, far, 2, Event("n"))) == [1, 3]
        assert sorted(await numbers(b, b.heap, 3)) == [1, 2, 3]
        assert sorted(await numbers(a, heaps[1], 2)) == [1, 3]
        for heap, count in zip(heaps, (3, 2, 2), strict=True):
            assert len(await a.do(heap.snoop_all())) == count
        for bridge in bridges:
            await a.do(bridge.close())

    play(scene)


# Waiting


async def readings_of(members: dict[str, One]) -> list[Any]:
    """All ways to read at b: the heap, a shared session, and a view where there are views."""
    b = members["b"]
    shared = await b.do((await b.do(b.heap.session())).share())
    readings = [b.heap, await b.do(b.heap.session(shared))]
    return [*readings, (await share_view(members))["b"]] if b.has_views else readings


def test_patience_ends_and_nothing_is_lost(play):
    async def scene(members: dict[str, One]) -> None:
        a, b = members["a"], members["b"]
        readings = await readings_of(members)
        for reading in readings:
            assert await b.do(reading.wait(wait=0.05)) is None
        assert await b.do(b.heap.wait_to_remove(wait=0.05)) is None
        await a.do(a.heap.put(Event("n", i=1)))
        for reading in readings:
            assert await numbers(b, reading, 1) == [1]

    play(scene)


@for_tasks
def test_who_is_cancelled_loses_nothing(play):
    async def scene(members: dict[str, One]) -> None:
        a, b = members["a"], members["b"]
        readings = await readings_of(members)
        for reading in readings:
            waiting = b.do(reading.wait())
            removing = b.do(b.heap.wait_to_remove())
            done, _ = await asyncio.wait([waiting, removing], timeout=0.05)
            assert not done
            for task in (waiting, removing):
                task.cancel()
            await asyncio.wait([waiting, removing])
            assert waiting.cancelled()
            assert removing.cancelled()
        await a.do(a.heap.put(Event("n", i=1)))
        for reading in readings:
            assert await numbers(b, reading, 1) == [1]

    play(scene)


def test_who_waits_in_what_is_closed_is_told(play):
    async def scene(members: dict[str, One]) -> None:
        b = members["b"]
        readings = [await b.do(b.heap.session()), b.heap]
        if b.has_views:
            readings.insert(0, await b.do(b.heap.view()))
        for reading in readings:
            waiting = b.do(reading.wait())
            await asyncio.wait([waiting], timeout=0.05)
            await b.do(reading.close())
            with pytest.raises(TupeloError):
                await waiting
            with pytest.raises(TupeloError):
                await b.do(reading.get())
            await b.do(reading.close())  # Once more does no harm.

    play(scene)
