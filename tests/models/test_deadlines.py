"""Deadlines on the clock of the host: whoever waits at any door of a model, waits by that clock."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import tupelo
from tests.conftest import HandClock
from tupelo.errors import BadArgument
from tupelo.models import lime
from tupelo.models.event_heap import EventHeap
from tupelo.models.melon import Melon
from tupelo.models.pubsub import PubSub
from tupelo.space.dual_api import run_coroutine

WAIT = 0.05
"""On a clock that is moved by hand. In real time it is soon over."""
REAL_SECONDS = 0.2
PATIENCE = 60.0
JOB = ("job", int)


async def do(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def agent_at(host: Any) -> Any:
    agents = lime.Host(host)
    if host.is_async:
        await agents.start()
    return await do(agents.agent("ada"))


async def shared_space(host: Any) -> Any:
    space = lime.LimeTupleSpace("board", await agent_at(host))
    await do(space.set_shared(True))
    return space


async def lime_rd(host: Any) -> Any:
    return (await shared_space(host)).rd


async def lime_in(host: Any) -> Any:
    return (await shared_space(host)).in_


async def lime_system(host: Any) -> Any:
    return lime.LimeSystemTupleSpace(await agent_at(host)).rd


async def heap_of(host: Any) -> Any:
    return await do(EventHeap(host, "heap"))


async def heap_wait(host: Any) -> Any:
    return (await heap_of(host)).wait


async def heap_wait_to_remove(host: Any) -> Any:
    return (await heap_of(host)).wait_to_remove


async def heap_session(host: Any) -> Any:
    return (await do((await heap_of(host)).session())).wait


async def heap_shared_session(host: Any) -> Any:
    heap = await heap_of(host)
    session = await do(heap.session())
    shared = await do(session.share())
    return (await do(heap.session(shared, wait=PATIENCE))).wait


async def heap_view(host: Any) -> Any:
    return (await do((await heap_of(host)).view(order="total"))).wait


async def heap_unknown_session(host: Any) -> Any:
    heap = await heap_of(host)

    def open_session(template: object, wait: float) -> Any:
        return heap.session("nobody's", wait=wait)

    return open_session


async def melon_take(host: Any) -> Any:
    return (await do(Melon(host))).take


async def melon_read(host: Any) -> Any:
    return (await do(Melon(host))).read


async def melon_collected(host: Any) -> Any:
    melon = await do(Melon(host))
    return lambda template, wait: melon.collected.get(wait=wait)


async def pubsub_collect(host: Any) -> Any:
    replies = await do(PubSub(host, "fair").collect(JOB, "single", "any"))
    return lambda template, wait: replies.get(wait=wait)


async def space_take(host: Any) -> Any:
    return host.space("jobs").take


async def space_subscription(host: Any) -> Any:
    told = host.space("jobs").subscribe(JOB)
    return lambda template, wait: told.get(wait=wait)


CASES = [
    lime_rd,
    lime_in,
    lime_system,
    heap_wait,
    heap_wait_to_remove,
    heap_session,
    heap_shared_session,
    heap_view,
    heap_unknown_session,
    melon_take,
    melon_read,
    melon_collected,
    pubsub_collect,
    space_take,
    space_subscription,
]


def outcome_of(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BadArgument:  # What nobody has heard of by then cannot be opened.
        return None


@pytest.mark.parametrize("case", CASES)
def test_a_wait_at_the_blocking_door_ends_when_the_clock_says_so(case, later, until):
    clock = HandClock()
    with tupelo.Host("home", clock=clock) as host:
        sleepers: list[int] = []

        def wait() -> Any:
            """All in one thread: an agent's spaces are for its own."""
            waits = run_coroutine(case(host))
            sleepers.append(clock.sleepers)
            return waits(JOB, wait=WAIT)

        call = later(wait)
        until(lambda: (sleepers and clock.sleepers > sleepers[0]) or not call.waits, "it waits")
        call.join(REAL_SECONDS)
        assert call.waits, "it did not wait by the host's clock"
        clock.advance(WAIT / 2)
        call.join(REAL_SECONDS)
        assert call.waits
        clock.advance(WAIT / 2)
        assert outcome_of(call.result) is None


@pytest.mark.parametrize("case", CASES)
def test_a_wait_at_the_async_door_ends_when_the_clock_says_so(case):
    async def main() -> None:
        clock = HandClock()
        async with tupelo.aio.Host("home", clock=clock) as host:
            waits = await case(host)
            before = clock.sleepers
            task = asyncio.ensure_future(waits(JOB, wait=WAIT))
            async with asyncio.timeout(PATIENCE):
                while clock.sleepers == before and not task.done():
                    await asyncio.sleep(0.001)
            await asyncio.wait([task], timeout=REAL_SECONDS)
            assert not task.done(), "it did not wait by the host's clock"
            clock.advance(WAIT / 2)
            await asyncio.wait([task], timeout=REAL_SECONDS)
            assert not task.done()
            clock.advance(WAIT / 2)
            await asyncio.wait([task], timeout=PATIENCE)
            assert outcome_of(task.result) is None

    asyncio.run(main())


@pytest.mark.parametrize("case", CASES)
def test_a_wait_of_nothing_ends_at_once_though_the_clock_stands(case, later):
    with tupelo.Host("home", clock=HandClock()) as host:
        call = later(lambda: run_coroutine(case(host))(JOB, wait=0))
        assert outcome_of(call.result) is None
