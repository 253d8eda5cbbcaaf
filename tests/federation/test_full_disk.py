"""Subscriptions that span hosts go on at a host whose disk was full."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.virtual import VirtualFederation, WorldHost, play
from tupelo.errors import DiskFull

JOB = ("job", int)


def test_a_subscription_that_comes_back_while_the_disk_is_full_misses_nothing(tmp_path):
    async def scene(world: VirtualFederation[WorldHost]) -> None:
        a, b = world["a"], world["b"]
        jobs = a.api.space("jobs")
        found: list[int] = []

        async def listen() -> None:
            async with b.api.space("jobs").subscribe(JOB) as notices:
                async for notice in notices:
                    found.extend(notice.subject.fields[1:])

        await a.do(jobs.write(("job", 1)))
        b.do(listen())
        await asyncio.sleep(1)
        await a.do(jobs.write(("job", 2)))
        await world.until(lambda: found == [1, 2], "the first notices")
        world.network.partition("a", "b")
        await world.until(lambda: not a.core.peers and not b.core.peers, "apart")
        a.fill_disk()
        with suppress(DiskFull):  # in memory only
            await a.do(jobs.write(("job", 3)))
        world.network.heal()
        await world.until(lambda: a.core.peers, "together")
        assert not await world.wait_for(lambda: len(found) > 2, 5.0)
        a.disk.full = False
        await world.until(lambda: found == [1, 2, 3], "what came meanwhile")
        await a.do(jobs.write(("job", 4)))
        await world.until(lambda: found == [1, 2, 3, 4], "what comes later")

    play(lambda loop: VirtualFederation(loop, WorldHost, ["ba"], folder=tmp_path), scene, seed=1)


def test_a_host_with_a_full_disk_stops_and_starts_again(tmp_path):
    async def scene(world: VirtualFederation[WorldHost]) -> None:
        a, b = world["a"], world["b"]
        await a.do(a.api.space("jobs").write(("job", 1)))
        a.fill_disk()
        with pytest.raises(DiskFull):  # in memory only
            a.core.deciding.space.write(("decision",))
        await a.leave()
        await world.until(lambda: not b.core.peers, "gone")
        await a.start()
        assert await a.do(a.api.space("jobs").here.read_all(JOB)) == [("job", 1)]

    play(lambda loop: VirtualFederation(loop, WorldHost, ["ba"], folder=tmp_path), scene, seed=1)
