"""The proxy: every kind of fault, on a link to a server that echoes what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tupelo.lab.torture.proxy import LinkFault, Proxy

PATIENCE_SECONDS = 30.0
SAID = bytes(range(200))


@dataclass
class Echo:
    """What a server has heard, and how its last connection ended."""

    heard: bytearray = field(default_factory=bytearray)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1_000):
                self.heard += data
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()

    async def hears(self, said: bytes) -> None:
        while bytes(self.heard) != said:
            assert said.startswith(self.heard)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy = Proxy()
    await proxy.start()
    proxy.lead_to(f"{host}:{port}")
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield proxy, echo
    finally:
        await proxy.close()
        server.close()
        await server.wait_closed()


async def dial(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = proxy.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def is_reset(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


@pytest.mark.parametrize("fault", [None, LinkFault("delay", seconds=0.01), LinkFault("trickle")])
def test_all_bytes_arrive_in_their_order(fault):
    async def work() -> None:
        async with proxied() as (proxy, _):
            if fault is not None:
                proxy.fail(fault)
            reader, writer = await dial(proxy)
            writer.write(SAID)
            assert await reader.readexactly(len(SAID)) == SAID
            writer.close()

    run(work)


def test_a_cut_link_resets_what_is_there_and_what_comes_until_it_heals():
    async def work() -> None:
        async with proxied() as (proxy, _):
            reader, writer = await dial(proxy)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            proxy.fail(LinkFault("cut"))
            assert await is_reset(reader)
            again, other = await dial(proxy)
            assert await is_reset(again)
            proxy.heal()
            healed, third = await dial(proxy)
            third.write(b"b")
            assert await healed.readexactly(1) == b"b"
            for one in (writer, other, third):
                one.close()

    run(work)


def test_a_reset_ends_the_connections_that_are_there():
    async def work() -> None:
        async with proxied() as (proxy, echo):
            reader, writer = await dial(proxy)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            proxy.fail(LinkFault("reset"))
            assert await is_reset(reader)
            await echo.ended.wait()
            again, other = await dial(proxy)
            other.write(b"b")
            assert await again.readexactly(1) == b"b"
            writer.close()
            other.close()

    run(work)


def test_what_a_link_holds_arrives_when_it_heals():
    async def work() -> None:
        async with proxied() as (proxy, echo):
            reader, writer = await dial(proxy)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            proxy.fail(LinkFault("hold"))
            writer.write(b"b")
            await writer.drain()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(1), 0.05)
            assert bytes(echo.heard) == b"a"
            proxy.heal()
            await echo.hears(b"ab")
            writer.close()

    run(work)


def test_a_half_open_link_carries_one_direction_and_is_reset_when_it_heals():
    async def work() -> None:
        async with proxied() as (proxy, echo):
            reader, writer = await dial(proxy)
            proxy.fail(LinkFault("swallow", "back"))
            writer.write(b"a")
            await echo.hears(b"a")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(1), 0.05)
            proxy.heal()
            assert await is_reset(reader)
            writer.close()

    run(work)


def test_a_truncated_frame_arrives_in_part_and_nothing_after_it():
    async def work() -> None:
        async with proxied() as (proxy, echo):
            proxy.fail(LinkFault("truncate", "there"))
            reader, writer = await dial(proxy)
            writer.write(SAID)
            await echo.ended.wait()
            assert bytes(echo.heard) == SAID[: len(SAID) // 2]
            assert await reader.read() in (b"", SAID[: len(SAID) // 2])
            writer.close()

    run(work)


def test_a_link_waits_for_a_target_that_is_not_known_yet():
    async def work() -> None:
        echo = Echo()
        server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        proxy = Proxy()
        await proxy.start()
        reader, writer = await dial(proxy)
        writer.write(b"a")
        proxy.lead_to(f"{host}:{port}")
        assert await asyncio.wait_for(reader.readexactly(1), PATIENCE_SECONDS) == b"a"
        writer.close()
        await proxy.close()
        server.close()
        await server.wait_closed()

    run(work)
