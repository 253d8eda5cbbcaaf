"""Removals are deliveries: an event is lost with no host that dies on the way."""

from __future__ import annotations

import asyncio

import pytest

from tests.models.event_heap.world import HEAP, HeapHost, HeapWorld, meet
from tupelo.federation.links import wire
from tupelo.models.event_heap import Event
from tupelo.models.event_heap.events import event_template
from tupelo.models.event_heap.served import OWN, HostedHeap
from tupelo.values.holder import Holder

JOB, SEEN = Event("job", i=1), Event("seen")
CLIENT = Holder("client", "someone@a", "its session", call=7)


@pytest.fixture(params=["memory", "disk"])
def folder(request, tmp_path):
    return tmp_path if request.param == "disk" else None


def test_an_event_returns_if_its_taker_dies_before_it_has_it(folder):
    async def scene(world: HeapWorld) -> None:
        a, b, c = world["a"], world["b"], world["c"]
        await a.put(JOB)
        await world.together()
        removing = b.do(b.heap.remove(JOB))
        while not any(one.under_way()["reservations"] for one in a.citizen.core.peers.values()):
            assert not removing.done()
            await asyncio.sleep(0.0001)
        await b.citizen.crash()
        assert await c.do(c.heap.wait_to_remove(JOB, wait=60.0)) == JOB

    meet(scene, "ab", "ac", "bc", folder=folder)


def test_a_removed_event_is_not_found_again_where_it_was_removed(folder):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        await a.put(JOB, Event("job", i=2))
        await world.together()
        assert await b.do(b.heap.remove(Event("job"))) == JOB
        assert await b.do(b.heap.snoop_all(Event("job"))) == [Event("job", i=2)]
        await world.together()
        assert await a.do(a.heap.snoop_all(Event("job"))) == [Event("job", i=2)]

    meet(scene, "ab", folder=folder)


@pytest.mark.parametrize("received", [True, False])
def test_a_client_settles_a_removal_after_the_crash_of_its_host(tmp_path, received):
    """The host was killed before it knew whether its client has the event."""

    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(JOB)
        removing = a.replica.removing
        removed = await a.do(removing.remove(event_template(JOB), 0, CLIENT))
        assert [entry.fields for entry in removed.value]
        assert await a.do(a.heap.snoop(JOB)) is None
        await a.citizen.crash()
        await a.citizen.start()
        a.begin()
        doubts = a.citizen.core.doubts
        assert CLIENT.owner in doubts.owners()
        doubts.client_back(CLIENT.owner, [7] if received else [])
        await asyncio.sleep(1)
        assert await a.do(a.heap.remove(JOB)) == (None if received else JOB)
        assert a.citizen.core.spaces[HEAP].space.count(object) == 0

    meet(scene, names="a", folder=tmp_path)


def test_a_waiting_removal_gets_an_event_that_another_gave_back():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        await a.put(JOB)
        await world.together()
        removing = a.replica.removing
        held = await a.do(removing.remove(event_template(JOB), 0, CLIENT))
        waiting = b.do(b.heap.wait_to_remove(JOB, wait=60.0))
        await asyncio.sleep(5)
        assert not waiting.done()
        held.give_back()
        assert await waiting == JOB

    meet(scene, "ab")


@pytest.mark.parametrize("returns", [True, False])
def test_an_event_that_is_being_removed_is_not_read(returns):
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(SEEN, JOB)
        assert await a.do(a.heap.get()) == SEEN
        held = await a.do(a.replica.removing.remove(event_template(JOB), 0, CLIENT))
        assert await a.do(a.heap.get()) is None
        assert await a.do(a.heap.get_all()) == []
        waiting = a.do(a.heap.wait(wait=60.0))
        await asyncio.sleep(5)
        assert not waiting.done()
        if returns:
            held.give_back()
            assert await waiting == JOB
        else:
            held.received()
            await a.put(Event("job", i=2))
            assert await waiting == Event("job", i=2)
        assert await a.do(a.heap.get_all()) == []

    meet(scene, names="a")


@pytest.mark.parametrize("removing", [True, False])
@pytest.mark.parametrize("of", ["a session", "a view"])
def test_an_event_that_one_read_gives_back_goes_to_another_that_waits(removing, of):
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(JOB, Event("job", i=2))
        life = a.citizen.life
        assert life is not None
        heap = life.call(HostedHeap, a.citizen.core, HEAP)
        reading = OWN
        if of == "a view":
            view = await a.do(heap.make_view("total", 60.0, None))
            reading = await a.do(heap.open_view(view, "total", None, None))
            await asyncio.sleep(1)
        if removing:
            removed = await a.do(heap.remove(JOB, wait=0, holder=CLIENT))
            if of == "a view":  # It has events until they are removed for good.
                life.call(removed.confirm)
        else:
            assert (await a.do(heap.next(reading, JOB, wait=0))).value
        held = await a.do(heap.next(reading, Event("job"), wait=0))
        waiting = a.do(heap.next(reading, Event("job"), wait=20.0))
        await asyncio.sleep(1)
        assert not waiting.done()
        life.call(held.give_back)
        assert (await waiting).value == held.value != []

    meet(scene, names="a")


def test_a_session_reads_each_event_once_while_one_is_being_removed():
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(JOB, Event("job", i=2), Event("job", i=3))
        assert await a.do(a.replica.removing.remove(event_template(JOB), 0, CLIENT))
        session, other = await a.do(a.heap.session()), await a.do(a.heap.session())
        assert await a.do(session.get_all()) == [Event("job", i=2), Event("job", i=3)]
        assert await a.do(session.get_all()) == []
        assert [(await a.do(other.get()))["i"] for _ in range(2)] == [2, 3]
        assert await a.do(other.get()) is None

    meet(scene, names="a")


@pytest.mark.parametrize("source", "ab")
@pytest.mark.parametrize("taker", ["program", "client"])
def test_a_removed_event_is_not_found_in_a_view_where_it_was_removed(source, taker):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        first = await a.do(a.heap.view(order="total"))
        view = await b.do(b.heap.view(first.id, wait=30.0))
        await world[source].put(JOB, Event("job", i=2))
        await world.together()
        await remove(b, taker)
        assert await b.do(view.get()) == Event("job", i=2)
        assert await b.do(view.replay()) == [Event("job", i=2)]

    meet(scene, "ab")


async def remove(member: HeapHost, taker: str) -> None:
    """Remove JOB for a program of this host, or for a client that confirms it."""
    if taker == "program":
        assert await member.do(member.heap.remove(JOB)) == JOB
    else:
        removing = member.replica.removing
        held = await member.do(removing.remove(event_template(JOB), 0, CLIENT))
        held.confirm()


@pytest.mark.parametrize("taker", ["program", "client", "client that loses it"])
def test_a_removed_event_of_a_host_that_is_gone_is_not_adopted(taker):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        await b.put(JOB, Event("job", i=2))
        await world.together()
        if taker == "client that loses it":
            held = await a.do(a.replica.removing.remove(event_template(JOB), 0, CLIENT))
        else:
            await remove(a, taker)
        await b.citizen.crash()
        await world.until(lambda: len(a.replica.membership.members) == 1, "alone")
        await a.do(a.heap.adopt(b.citizen.core.id))
        assert await a.do(a.heap.snoop_all(Event("job"))) == [Event("job", i=2)]
        if taker == "client that loses it":
            held.give_back()
            assert await a.do(a.heap.wait_to_remove(JOB, wait=10.0)) == JOB

    meet(scene, "ab")


def test_an_event_whose_source_has_waited_too_long_for_the_confirmation_is_found_again():
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        view = await b.do(b.heap.view(order="total"))
        await a.put(JOB)
        await world.together()
        held = await b.do(b.replica.removing.remove(event_template(JOB), 0, CLIENT))
        world.network.partition("a", "b")
        await world.until(lambda: not (a.replica.others or b.replica.others), "apart")
        held.confirm()
        assert await b.do(view.get()) is None
        assert await a.do(a.heap.wait_to_remove(JOB, wait=1.0)) is None
        assert await a.do(a.heap.wait_to_remove(SEEN, wait=60.0)) is None
        assert await a.do(a.heap.snoop(JOB)) == JOB
        world.network.heal()
        await world.together()
        assert await b.do(view.get()) == JOB
        assert await b.do(b.heap.remove(JOB)) == JOB

    meet(scene, "ab")


def test_an_event_that_returns_is_not_new():
    async def scene(world: HeapWorld) -> None:
        a = world["a"]
        await a.put(JOB)
        held = await a.do(a.replica.removing.remove(event_template(JOB), 0, CLIENT))
        found: list[Event] = []
        await a.do(a.heap.register(Event("job"), found.append))
        held.give_back()
        await a.put(Event("job", i=2))
        await world.until(lambda: bool(found), "the new one")
        assert found == [Event("job", i=2)]

    meet(scene, names="a")


def test_the_token_of_a_session_is_not_needed_for_an_event_that_is_being_removed(tmp_path):
    async def scene(world: HeapWorld) -> None:
        a, b = world["a"], world["b"]
        shared = await b.do((await b.do(b.heap.session())).share())
        await a.put(JOB)
        await world.together()
        session = await a.do(a.heap.session(shared, wait=30.0))
        assert await a.do(a.replica.removing.remove(event_template(JOB), 0, CLIENT))
        world.network.partition("a", "b")
        await world.until(lambda: not a.replica.others, "apart")
        assert await a.do(session.get()) is None

    meet(scene, "ab", folder=tmp_path)


@pytest.mark.parametrize("level", [3, wire.LEVEL])
def test_an_event_of_an_older_host_or_several_hops_away_is_removed(monkeypatch, level):
    monkeypatch.setattr(wire, "LEVEL", level)  # 3: as hosts that do not know `entry`.

    async def scene(world: HeapWorld) -> None:
        a, b, c = world["a"], world["b"], world["c"]
        await a.put(JOB, Event("job", i=2), Event("job", i=3))
        await world.together()
        assert [await one.do(one.heap.remove(Event("job"))) for one in (c, b, a)] == [
            Event("job", i=number) for number in (1, 2, 3)
        ]
        await world.together()
        for one in (a, b, c):
            assert await one.do(one.heap.snoop_all(Event("job"))) == []

    meet(scene, "ab", "bc")
