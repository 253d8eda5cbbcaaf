"""What cannot be used is refused by its name, at either door, before anything is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest

import tupelo
from tupelo import aio
from tupelo.errors import BadArgument, BadEntry, BadTemplate, HostClosed, LeaseLost, TupeloError
from tupelo.models.event_heap import Bridge, Event, EventHeap, Session, View
from tupelo.models.melon import Copies, Melon

WAIT_SECONDS = 20.0


@pytest.fixture
def host() -> Iterator[tupelo.Host]:
    with tupelo.Host("one") as host:
        yield host


@pytest.fixture
def heap(host: tupelo.Host) -> Iterator[EventHeap]:
    with EventHeap(host, "board") as heap:
        yield heap


BAD_WAITS = [-1, "soon", True, float("nan")]
BAD_TTLS = [0, -1, "long", False]

CALLS: list[tuple[str, Callable[[EventHeap, View, Session, Any], Any], list[Any]]] = [
    ("ttl", lambda heap, view, session, bad: heap.put(Event("n"), ttl=bad), BAD_TTLS),
    ("ttl", lambda heap, view, session, bad: heap.put_all([Event("n")], ttl=bad), BAD_TTLS),
    ("ttl", lambda heap, view, session, bad: view.put(Event("n"), ttl=bad), BAD_TTLS),
    ("ttl", lambda heap, view, session, bad: view.put_all([Event("n")], ttl=bad), BAD_TTLS),
    ("events", lambda heap, view, session, bad: heap.put_all(bad), [5, "abc", {"a": 1}, None]),
    ("events", lambda heap, view, session, bad: view.put_all(bad), [5, "abc", {"a": 1}, None]),
    ("wait", lambda heap, view, session, bad: heap.wait(wait=bad), BAD_WAITS),
    ("wait", lambda heap, view, session, bad: heap.wait_to_remove(wait=bad), BAD_WAITS),
    ("wait", lambda heap, view, session, bad: heap.view(wait=bad), BAD_WAITS),
    ("wait", lambda heap, view, session, bad: heap.session(wait=bad), BAD_WAITS),
    ("wait", lambda heap, view, session, bad: session.wait(wait=bad), BAD_WAITS),
    ("wait", lambda heap, view, session, bad: view.wait(wait=bad), BAD_WAITS),
    ("wait", lambda heap, view, session, bad: view.put(Event("n"), wait=bad), BAD_WAITS),
    ("wait", lambda heap, view, session, bad: view.put_all([Event("n")], wait=bad), BAD_WAITS),
    ("wait", lambda heap, view, session, bad: heap.query().wait(wait=bad), BAD_WAITS),
    ("id", lambda heap, view, session, bad: heap.view(bad), [5, "nonsense", ["x"]]),
    ("id", lambda heap, view, session, bad: heap.session(bad), [5, "nonsense", ["x"]]),
    ("order", lambda heap, view, session, bad: heap.view(order=bad), [None, "mess", 1, ["none"]]),
    ("on_clone", lambda heap, view, session, bad: heap.view(on_clone=bad), [1, "print"]),
    ("callback", lambda heap, view, session, bad: heap.query(Event, bad), [1, "print"]),
    ("callback", lambda heap, view, session, bad: heap.register(Event, bad), [None, 1, "print"]),
    ("a", lambda heap, view, session, bad: Bridge(bad, heap), [None, "board", 1]),
    ("b", lambda heap, view, session, bad: Bridge(heap, bad), [None, "board", 1]),
    ("b", lambda heap, view, session, bad: Bridge(heap, heap), [None]),
]


@pytest.mark.parametrize("call", range(len(CALLS)), ids=lambda at: f"{at}_{CALLS[at][0]}")
def test_a_bad_argument_is_named(heap: EventHeap, call: int) -> None:
    argument, work, bads = CALLS[call]
    view, session = heap.view(), heap.session()
    for bad in bads:
        with pytest.raises(BadArgument) as raised:
            work(heap, view, session, bad)
        assert raised.value.argument == argument
    assert heap.snoop() is None


@pytest.mark.parametrize("make", [EventHeap, EventHeap.create], ids=["open", "create"])
def test_a_heap_of_bad_arguments_is_refused(host: tupelo.Host, make: Callable[..., Any]) -> None:
    for argument, args, options in (
        ("host", ("one", "board"), {}),
        ("name", (host, ""), {}),
        ("name", (host, 5), {}),
        ("name", (host, "x" * 61), {}),
        ("patience", (host, "board"), {"patience": 0}),
        ("patience", (host, "board"), {"patience": "long"}),
        ("patience", (host, "board"), {"patience": None}),
    ):
        with pytest.raises(BadArgument) as raised:
            make(*args, **options)
        assert raised.value.argument == argument


def test_a_bridge_goes_one_way_or_both(host: tupelo.Host, heap: EventHeap) -> None:
    with EventHeap(host, "other") as other, pytest.raises(BadArgument) as raised:
        Bridge(heap, other, both="yes")  # type: ignore[arg-type]
    assert raised.value.argument == "both"


def test_what_is_no_event_or_no_template_is_refused(heap: EventHeap) -> None:
    view, session = heap.view(), heap.session()
    bad = object()
    for put in (
        heap.put,
        view.put,
        lambda one: heap.put_all([one]),
        lambda one: view.put_all([one]),
    ):
        with pytest.raises(BadEntry):
            put(bad)
    readers: list[Callable[[object], Any]] = [
        heap.get,
        heap.wait,
        heap.get_all,
        heap.snoop,
        heap.snoop_all,
        heap.remove,
        heap.wait_to_remove,
        heap.query,
        lambda template: heap.register(template, print),
        view.get,
        view.wait,
        view.get_all,
        view.replay,
        session.get,
        session.wait,
        session.get_all,
        heap.query().get,
    ]
    for read in readers:
        with pytest.raises(BadTemplate):
            read(bad)
    assert heap.snoop() is None


# Those who wait


def errors_of(*works: Callable[[], Any]) -> tuple[list[Thread], list[BaseException]]:
    """Do each on a thread of its own, and collect what they raise."""
    raised: list[BaseException] = []

    def run(work: Callable[[], Any]) -> None:
        try:
            work()
        except TupeloError as error:
            raised.append(error)

    threads = [Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    return threads, raised


def test_threads_that_wait_are_told_when_the_host_is_closed():
    with tupelo.Host("one") as host:
        heap = EventHeap(host, "board")
        view, session = heap.view(), heap.session()
        shared = heap.session(session.share())
        query = heap.query()
        threads, raised = errors_of(
            heap.wait, view.wait, session.wait, shared.wait, query.wait, heap.wait_to_remove
        )
        assert heap.wait(wait=0.1) is None
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert [type(error) for error in raised] == [HostClosed] * len(threads)
    for call in (heap.get, view.get, session.get, shared.get, view.replay, heap.snoop):
        with pytest.raises(HostClosed):
            call()
    with pytest.raises(HostClosed):
        view.put(Event("n"))
    heap.close()
    view.close()


def test_threads_that_wait_are_told_when_what_they_read_is_closed(heap: EventHeap) -> None:
    view, session = heap.view(), heap.session()
    shared = heap.session(session.share())
    readings: list[Any] = [view, session, shared, heap.query()]
    threads, raised = errors_of(*(one.wait for one in readings))
    assert heap.wait(wait=0.1) is None
    for one in readings:
        one.close()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert [type(error) for error in raised] == [LeaseLost] * len(threads)


async def tasks() -> None:
    async with aio.Host("one") as host:
        heap = EventHeap(host, "board")
        view, session = await heap.view(), await heap.session()
        shared = await heap.session(await session.share())
        readings: list[Any] = [heap, view, session, shared]
        for one in readings:
            assert await one.wait(wait=0.01) is None
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await one.wait()
        await view.put(Event("n", i=1))
        for one in readings:
            assert await one.wait(wait=WAIT_SECONDS) == Event("n", i=1)
        waiting = [asyncio.ensure_future(one.wait()) for one in readings]
        await asyncio.wait(waiting, timeout=0.05)
    for task in waiting:
        with pytest.raises(HostClosed):
            await task


def test_tasks_that_wait_lose_nothing_and_are_told():
    asyncio.run(tasks())


def test_a_name_that_the_host_keeps_for_itself_is_refused(host: tupelo.Host) -> None:
    with Melon(host, "notes", copies=Copies(1)), EventHeap(host, "board"):
        for name in ("tupelo.sealed.notes", "tupelo.written.notes", "tupelo.system.board"):
            for make in (EventHeap, EventHeap.create):
                with pytest.raises(BadArgument) as raised:
                    make(host, name)
                assert raised.value.argument == "name"
                assert name in str(raised.value)
