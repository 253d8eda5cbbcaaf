"""Both doors, on real sockets: views, sessions and bridges of hosts that meet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import Queue
from threading import Thread

import pytest

import tupelo
from tupelo import aio
from tupelo.errors import HostClosed
from tupelo.models.event_heap import Bridge, Event, EventHeap, Session, View

PATIENCE_SECONDS = 30.0


def test_threads_share_a_view_and_a_session():
    with (
        tupelo.Host("one", listen=0) as one,
        tupelo.Host("two", listen=0, peers=[one.address]) as two,
        EventHeap(one, "board") as here,
        EventHeap(two, "board") as there,
    ):
        first = here.view()
        second = there.view(first.id, wait=PATIENCE_SECONDS)

        def draw(view: View, start: int) -> None:
            for i in range(start, start + 10):
                view.put(Event("n", i=i))

        threads = [Thread(target=draw, args=pair) for pair in ((first, 0), (second, 100))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        orders = [
            [view.wait(wait=PATIENCE_SECONDS)["i"] for _ in range(20)] for view in (first, second)
        ]
        assert orders[0] == orders[1]
        assert [event["i"] for event in second.replay()] == orders[0]
        with here.session() as session:
            shared = session.share()
        done: Queue[int] = Queue()
        workers = [
            here.session(shared),
            there.session(shared, wait=PATIENCE_SECONDS),
        ]

        def work(worker: Session) -> None:
            while (event := worker.wait(Event("n"), wait=1.0)) is not None:
                done.put(event["i"])

        threads = [Thread(target=work, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert sorted(done.get_nowait() for _ in range(done.qsize())) == sorted(orders[0])
        with EventHeap.create(two, "copy") as copy, Bridge(there, copy, Event("n")):
            got = [copy.wait(wait=PATIENCE_SECONDS)["i"] for _ in range(20)]
            assert sorted(got) == sorted(orders[0])


async def tasks() -> None:
    async with (
        aio.Host("one", listen=0) as one,
        aio.Host("two", listen=0, peers=[one.address]) as two,
        EventHeap(one, "board") as here,
        await EventHeap.create(two, "board") as there,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        first = await here.view()
        second = await there.view(first.id, wait=PATIENCE_SECONDS)
        for i in range(6):
            await (first, second)[i % 2].put(Event("n", i=i))
        got = []
        async for event in second:
            got.append(event["i"])
            if len(got) == 6:
                break
        assert got == list(range(6))
        assert second.is_owner
        assert not first.is_owner
        told: list[Event] = []

        async def tell(event: Event) -> None:
            told.append(event)

        async with await here.query(Event("n"), tell):
            await there.put(Event("n", i=6))
            assert await here.wait(Event("n", i=6)) == Event("n", i=6)
            while len(told) < 7:
                await asyncio.sleep(0.01)
        await there.destroy()


def test_tasks_share_a_view():
    asyncio.run(tasks())


def test_closing_a_heap_ends_all_that_was_got_from_it():
    with tupelo.Host("one") as host, EventHeap(host, "board") as other:
        heap = EventHeap(host, "board")
        side = EventHeap(host, "side")
        side.close()
        shared = heap.session(heap.session().share())
        readings = [heap, heap.session(), shared, heap.view(), heap.query(Event("n"))]
        told: Queue[str] = Queue()

        def wait(call: Callable[..., object]) -> None:
            try:
                told.put(f"got {call(Event('never'))}")
            except HostClosed as closed:
                told.put(str(closed))

        calls = [*(one.wait for one in readings), heap.wait_to_remove]
        threads = [Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        heap.close()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert [told.get_nowait() for _ in calls] == ["this EventHeap of 'board' was closed"] * 6
        refused: list[Callable[[], object]] = [
            *(heap.view, heap.session, heap.snoop, heap.get_all, heap.remove, heap.destroy),
            *(shared.get, shared.clone, readings[3].replay, readings[4].get),
            lambda: heap.put(Event("n")),
            lambda: readings[3].put(Event("n")),
            lambda: Bridge(other, side),
        ]
        for call in refused:
            with pytest.raises(HostClosed, match=r"EventHeap of '.*' was closed"):
                call()
        heap.close()
        other.put(Event("n"))
        assert other.get() == Event("n")
