"""Feeds of hosts that meet over real sockets, at both doors, through whatever door is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tupelo import aio
from tupelo.errors import NotAllowed
from tupelo.federation.identity.access import Access
from tupelo.federation.replication.feeds import Feed, replication_of
from tupelo.federation.replication.placement import CopyAll

FEED = "news"
PATIENCE_SECONDS = 30.0


def copies(feed: Feed) -> list[tuple[Any, ...]]:
    streams = feed.exchange.streams.values()
    return [entry.fields for stream in streams for entry in stream.items.values()]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def row_of_three(tmp_path: Path) -> None:
    async with (
        aio.Host("one", listen=0) as one,
        aio.Host("two", listen=0, peers=[one.address], path=tmp_path) as two,
        aio.Host("three", listen=0, peers=[two.address]) as three,
    ):
        hosts = [one, two, three]
        feeds = [replication_of(host.core).feed(FEED, CopyAll()) for host in hosts]
        for number in range(500):
            await one.space(FEED).write(("n", number))
        await until(lambda: len(copies(feeds[2])) == 500)
        assert copies(feeds[2]) == copies(feeds[1]) == [("n", number) for number in range(500)]
        # A take anywhere is made where the entry lives, and its copies go with it.
        assert await two.space(FEED).take(("n", 7), wait=5) == ("n", 7)
        await until(lambda: ("n", 7) not in copies(feeds[2]) + copies(feeds[1]))
        seen = feeds[2].copies.door
        async with seen.session() as session:
            assert await session.read(("n", int), wait=0) == ("n", 0)
            assert await session.read(("n", int), wait=0) == ("n", 1)
        waiting = asyncio.create_task(seen.read(("later", str)))
        await two.space(FEED).write(("later", "on"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await waiting == ("later", "on")


def test_three_hosts_in_a_row_have_the_same(tmp_path):
    asyncio.run(row_of_three(tmp_path))


def test_what_threads_and_clients_write_is_copied(tmp_path):
    with (
        tupelo.Host("one", listen=0, path=tmp_path) as one,
        tupelo.Host("two", listen=0, peers=[one.address]) as two,
    ):

        async def begin(host: tupelo.Host) -> Feed:
            return replication_of(host.core).feed(FEED, CopyAll())

        feeds = [host.now(begin(host)) for host in (one, two)]
        with tupelo.connect(f"tupelo://{one.address}/{FEED}") as remote:
            remote.write(("by", "a client"))
            one.space(FEED).write(("by", "a thread"))
            with one.space(FEED).transaction() as txn:
                one.space(FEED).write(("by", "a transaction"), txn=txn)
                one.space(FEED).take(("by", "a thread"), txn=txn, wait=0)
            wanted = [("by", "a client"), ("by", "a transaction")]

            async def arrived() -> None:
                await until(lambda: copies(feeds[1]) == wanted)

            two.now(arrived())


async def refused() -> None:
    async with aio.Host("one") as one:
        one.space("secret", access=Access(password="x"))
        with pytest.raises(NotAllowed):
            replication_of(one.core).feed("secret", CopyAll())


def test_a_space_that_is_not_shared_is_not_copied():
    asyncio.run(refused())
