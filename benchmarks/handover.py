"""Handing over: from just before a write until the blocked taker has the entry.

Between threads the writer waits until the taker has the last entry, and then half a millisecond, in
which the taker blocks again. So each taker is woken from a real sleep. Tasks need no such pause: a
taker that has an entry asks for the next before it gives the loop to others.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter_ns, sleep
from typing import Any

import uvloop

from benchmarks.measure import TYPES, Fields, Line, Settings, Target, compare, fields, require
from tupelo import Space, aio

ITEM: Fields = fields(42)
UNTIL_BLOCKED_SECONDS = 0.0005


def run(settings: Settings) -> list[Line]:
    return [
        _between_threads(settings),
        _between_tasks(settings, "asyncio", asyncio.new_event_loop),
        _between_tasks(settings, "uvloop", uvloop.new_event_loop),
    ]


def _between_threads(settings: Settings) -> Line:
    count = settings.size(500)

    def through_space() -> float:
        space = Space()
        write, take = space.write, space.take
        return thread_p50(lambda: write(ITEM), lambda: take(TYPES), count)

    def through_queue() -> float:
        channel: queue.Queue[Fields] = queue.Queue()
        put, get = channel.put, channel.get
        return thread_p50(lambda: put(ITEM), lambda: get(), count)

    return compare(
        "hand-over to a blocked thread, p50",
        "queue.Queue",
        "µs",
        Target("≤", 1.5),
        through_space,
        through_queue,
        settings.rounds,
    )


def thread_p50(put: Callable[[], object], get: Callable[[], object], count: int) -> float:
    """The median microseconds from the call of `put` in one thread until a blocked thread has got
    the item."""
    sent: list[int] = []
    received: list[int] = []

    def taker() -> None:
        for _ in range(count):
            get()
            received.append(perf_counter_ns())

    thread = threading.Thread(target=taker)
    thread.start()
    for i in range(count):
        while len(received) < i:
            sleep(UNTIL_BLOCKED_SECONDS)
        sleep(UNTIL_BLOCKED_SECONDS)
        sent.append(perf_counter_ns())
        put()
    thread.join()
    return _p50_microseconds(sent, received)


def _between_tasks(
    settings: Settings, loop_name: str, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> Line:
    count = settings.size(5_000)

    async def through_space() -> float:
        async with aio.Space() as space:
            return await _task_p50(space.write, lambda: space.take(TYPES), count)

    async def through_queue() -> float:
        channel: asyncio.Queue[Fields] = asyncio.Queue()
        return await _task_p50(channel.put, lambda: channel.get(), count)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return compare(
            f"hand-over to a blocked task, p50, {loop_name}",
            "asyncio.Queue",
            "µs",
            Target("≤", 2.0),
            lambda: runner.run(through_space()),
            lambda: runner.run(through_queue()),
            settings.rounds,
        )


async def _task_p50(
    put: Callable[[Fields], Awaitable[Any]], get: Callable[[], Awaitable[Any]], count: int
) -> float:
    sent: list[int] = []
    received: list[int] = []

    async def taker() -> None:
        for _ in range(count):
            await get()
            received.append(perf_counter_ns())

    task = asyncio.create_task(taker())
    await asyncio.sleep(0)
    for i in range(count):
        sent.append(perf_counter_ns())
        await put(ITEM)
        await asyncio.sleep(0)
        require(len(received) == i + 1, "the taker should have been blocked, and woken")
    await task
    return _p50_microseconds(sent, received)


def _p50_microseconds(sent: list[int], received: list[int]) -> float:
    return median(after - before for before, after in zip(sent, received, strict=True)) / 1_000
