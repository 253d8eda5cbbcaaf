"""A space at a host, against Redis: both servers in processes of their own, on this machine.

Both are given the same jobs: ours as tuples, Redis as one msgpack value in a list, which a user
would have to pack and unpack as well. The host keeps its space in memory, and Redis persists
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from time import perf_counter
from typing import Any

import msgspec
import uvloop
from redis import Redis

import tupelo
from benchmarks.elsewhere import (
    JOBS,
    NO_REDIS,
    SPACE,
    Elsewhere,
    Job,
    job,
    redis_server,
    run_hosts,
)
from benchmarks.handover import thread_p50
from benchmarks.measure import Line, Sample, Settings, Target, compare, require
from tupelo import aio

IN_FLIGHT = 64
STORED = 100_000
SCANS = 5
"""How many scans make a sample; one takes a tenth of a second."""

KEY = "jobs"
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(tuple[str, int, str]).decode

SCAN = """
local at, step = 0, 1000
while true do
    local packed = redis.call('LRANGE', KEYS[1], at, at + step - 1)
    if #packed == 0 then return false end
    for i = 1, #packed do
        if cmsgpack.unpack(packed[i])[1] == ARGV[1] then
            redis.call('LREM', KEYS[1], 1, packed[i])
            return packed[i]
        end
    end
    at = at + step
end
"""


def run(settings: Settings) -> list[Line]:
    with Elsewhere(run_hosts, ["host"]) as host, redis_server() as port:
        url = f"tupelo://{host.said()[0]}/{SPACE}"
        redis = None if port is None else Redis(port=port)
        try:
            return [
                _one_after_another(settings, url, redis),
                _in_flight(settings, url, redis),
                _woken(settings, url, redis),
                _keyed(settings, url, redis),
            ]
        finally:
            if redis is not None:
                redis.close()


def _compare(
    what: str, against: str, unit: str, target: Target, ours: Sample, theirs: Any, rounds: int
) -> Line:
    return compare(what, against, unit, target, ours, theirs, rounds, absent=NO_REDIS)


# One after another


def _one_after_another(settings: Settings, url: str, redis: Redis | None) -> Line:
    jobs = [job(i) for i in range(settings.size(2_000))]
    with tupelo.connect(url) as space:
        return _compare(
            "one client: write and take, one after another",
            "Redis, LPUSH and LPOP",
            "/s",
            Target("≥", 1.0),
            lambda: _through_space(space, jobs),
            redis and (lambda: _through_redis(redis, jobs)),
            settings.rounds,
        )


def _through_space(space: Any, jobs: list[Job]) -> float:
    write, take = space.write, space.take
    start = perf_counter()
    for one in jobs:
        write(one)
        taken = take(JOBS)
    seconds = perf_counter() - start
    require(taken == one and space.count() == 0, "the last one taken, and the space empty")
    return 2 * len(jobs) / seconds


def _through_redis(redis: Redis, jobs: list[Job]) -> float:
    push, pop = redis.lpush, redis.lpop
    start = perf_counter()
    for one in jobs:
        push(KEY, pack(one))
        taken = unpack(pop(KEY))  # type: ignore[arg-type]
    seconds = perf_counter() - start
    require(taken == one and redis.llen(KEY) == 0, "the last one popped, and the list empty")
    return 2 * len(jobs) / seconds


# Many in flight


def _in_flight(settings: Settings, url: str, redis: Redis | None) -> Line:
    jobs, batches = [job(i) for i in range(IN_FLIGHT)], settings.size(50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        space = runner.run(aio.connect(url))
        try:
            return _compare(
                f"one client, {IN_FLIGHT} in flight: writes, then takes",
                f"Redis, pipelines of {IN_FLIGHT}",
                "/s",
                Target("≥", 0.7),
                lambda: runner.run(_by_tasks(space, jobs, batches)),
                redis and (lambda: _by_pipeline(redis, jobs, batches)),
                settings.rounds,
            )
        finally:
            runner.run(space.close())


async def _by_tasks(space: Any, jobs: list[Job], batches: int) -> float:
    start = perf_counter()
    for _ in range(batches):
        async with asyncio.TaskGroup() as group:
            for one in jobs:
                group.create_task(space.write(one))
        async with asyncio.TaskGroup() as group:
            taking = [group.create_task(space.take(JOBS)) for _ in jobs]
    seconds = perf_counter() - start
    require({task.result() for task in taking} == set(jobs), "each taken once")
    require(await space.count() == 0, "the space should be empty")
    return 2 * len(jobs) * batches / seconds


def _by_pipeline(redis: Redis, jobs: list[Job], batches: int) -> float:
    start = perf_counter()
    for _ in range(batches):
        with redis.pipeline(transaction=False) as pipeline:
            for one in jobs:
                pipeline.lpush(KEY, pack(one))
            pipeline.execute()
        with redis.pipeline(transaction=False) as pipeline:
            for _ in jobs:
                pipeline.lpop(KEY)
            taken = [unpack(value) for value in pipeline.execute()]
    seconds = perf_counter() - start
    require(set(taken) == set(jobs) and redis.llen(KEY) == 0, "each popped once")
    return 2 * len(jobs) * batches / seconds


# Woken


def _woken(settings: Settings, url: str, redis: Redis | None) -> Line:
    count = settings.size(500)
    one = job(42)
    with tupelo.connect(url) as writer, tupelo.connect(url) as taker:

        def through_space() -> float:
            p50 = thread_p50(lambda: writer.write(one), lambda: taker.take(JOBS), count)
            require(writer.count() == 0, "all should be taken")
            return p50

        def through_redis() -> float:
            assert redis is not None

            def pop() -> object:
                found: Any = redis.blpop(KEY)
                return unpack(found[1])

            p50 = thread_p50(lambda: redis.lpush(KEY, pack(one)), pop, count)
            require(redis.llen(KEY) == 0, "all should be popped")
            return p50

        return _compare(
            "a blocked taker woken by another client, p50",
            "Redis, BLPOP",
            "µs",
            Target("≤", 1.2),
            through_space,
            redis and through_redis,
            settings.rounds,
        )


# By key


def _keyed(settings: Settings, url: str, redis: Redis | None) -> Line:
    stored = settings.size(STORED)
    jobs = [job(i) for i in range(stored)]
    with tupelo.connect(url) as space:
        for start in range(0, stored, 1_000):
            space.write_all(jobs[start : start + 1_000])
            if redis is not None:
                redis.rpush(KEY, *map(pack, jobs[start : start + 1_000]))
        mine, other = Random(1), Random(1)
        scan: Any = redis and redis.register_script(SCAN)
        line = _compare(
            f"keyed take at {stored:,} stored",
            "Redis, a Lua scan of a list",
            "/s",
            Target("≥", 20),
            lambda: _take_by_key(space, mine.sample(jobs, 100)),
            redis and (lambda: _scan_by_key(redis, scan, other.sample(jobs, SCANS))),
            settings.rounds,
        )
        require(space.count() == stored, "all should have been put back")
        require(redis is None or redis.llen(KEY) == stored, "all should have been put back")
        space.take_all()
        return line


def _take_by_key(space: Any, wanted: list[Job]) -> float:
    seconds = _timed(lambda key: space.take((key, int, str)), wanted)
    space.write_all(wanted)
    return len(wanted) / seconds


def _scan_by_key(redis: Redis, scan: Any, wanted: list[Job]) -> float:
    seconds = _timed(lambda key: unpack(scan(keys=[KEY], args=[key])), wanted)
    redis.rpush(KEY, *map(pack, wanted))
    return len(wanted) / seconds


def _timed(take: Callable[[str], Any], wanted: list[Job]) -> float:
    start = perf_counter()
    taken = [take(key) for key, _, _ in wanted]
    seconds = perf_counter() - start
    require(taken == wanted, "those asked for should be taken")
    return seconds
