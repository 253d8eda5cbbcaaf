"""Bytes of overhead a message, as in 7.1.2 of the dissertation: what two hosts say for a message of
1 KB, less the message.

They are counted by the kernel, on the one link between the two.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

import uvloop

from benchmarks.measure import Settings, Table, require
from benchmarks.tracking import SparseBitSet
from tupelo import Identity, Trust, aio
from tupelo.models.melon import Melon
from tupelo.models.pubsub import PubSub

MESSAGES = 1_000
PAYLOAD = bytes(1_000)
"""1 KB, as table 3.2 counts it."""
BEFORE = 100
AGAIN = f"read, after {BEFORE} times as many"
OPERATIONS = ("read", AGAIN, "read_all", "take", "take_all")
TEMPLATE = ("news", int, bytes)
_HEADERS = 52
"""Of a segment of TCP over IPv4, with its time stamps."""


@dataclass(frozen=True)
class Sent:
    """Bytes over one link, in both directions: of the messages, and with the headers of TCP/IP."""

    content: int
    whole: int

    def __sub__(self, other: Sent) -> Sent:
        return Sent(self.content - other.content, self.whole - other.whole)


def table(settings: Settings) -> Table:
    count = settings.size(MESSAGES)
    found = uvloop.run(_count_bytes(count))
    rows: list[tuple[str, ...]] = []
    for what, sent in found.items():
        each = 0 if what.endswith("nobody waiting") else len(PAYLOAD)
        rows.append(
            (
                what,
                f"{sent.content / count - each:,.1f}",
                f"{sent.whole / count - each:,.1f}",
            )
        )
    carried = _carried(count)
    return Table(
        "Bytes of overhead a message",
        ("operation", "of the messages", "with TCP/IP headers"),
        rows,
        f"{count:,} messages (text, number, 1,000 bytes) from one host to one other: what the "
        "kernel counts on their link, in both directions, heartbeats included, less the payload. "
        "Headers are 52 bytes a segment, acknowledgements included. In the dissertation a read "
        "carries what was read before: as a sparse bit set that is "
        f"{carried:,.0f} bytes a message on average here, and at 100,000 read messages "
        f"{_carried_at(100_000):,.0f} with each request. Its figure 7.3 has no numbers in the "
        "text; table 3.2 says 357 for publish-subscribe, 571 for RPC and 1,915 for tuple spaces.",
    )


def _carried(count: int) -> float:
    """What the requests of the dissertation carry of what was read, on average."""
    sparse, total = SparseBitSet(), 0
    for n in range(1, count + 1):
        total += len(sparse.serialised())
        sparse.add(n)
    return total / count


def _carried_at(count: int) -> int:
    sparse = SparseBitSet()
    for n in range(1, count + 1):
        sparse.add(n)
    return len(sparse.serialised())


async def _count_bytes(count: int) -> dict[str, Sent]:
    """What each operation sends for so many messages. Both hosts are on this loop."""
    found: dict[str, Sent] = {}
    async with (
        aio.Host("writer", listen="127.0.0.1:0") as there,
        aio.Host("reader", listen="127.0.0.1:0", peers=[there.address]) as here,
        PubSub(there) as publisher,
        PubSub(here) as subscriber,
    ):
        while not (here.engaged and there.engaged) or len(subscriber.hosts) < 2:
            await asyncio.sleep(0.01)
        for operation in OPERATIONS:
            writer, reader = Melon(there, operation), Melon(here, operation)
            if operation == AGAIN:
                await _read_before(writer, reader, count * BEFORE)
            put = writer.write if operation.startswith("read") else writer.store
            before = await _sent(here)
            for i in range(count):
                await put(("news", i, PAYLOAD))
            put_name = "write" if operation.startswith("read") else "store"
            found.setdefault(f"{put_name}, with nobody waiting", await _sent(here) - before)
            before = await _sent(here)
            numbers: list[int] = []
            while len(numbers) < count:
                got = await getattr(reader, operation.split(",")[0])(TEMPLATE)
                numbers += [one[1] for one in (got if operation.endswith("_all") else [got])]
            found[operation] = await _sent(here) - before
            require(numbers == list(range(count)), "all should come, in order")
        async with await subscriber.subscribe(TEMPLATE) as replies:
            before = await _sent(here)
            for i in range(count):
                await publisher.publish(("news", i, PAYLOAD))
                require((await replies.get()).items[0][1] == i, "all should come, in order")
            found["publish-subscribe"] = await _sent(here) - before
    found["store to an identity, and its take"] = await _count_directed(count)
    return found


async def _read_before(writer: Melon, reader: Melon, count: int) -> None:
    """So many messages have been read, every other one: so they are no single range."""
    for i in range(2 * count):
        await writer.write(("old", i % 2, i))
    read = 0
    while read < count:
        read += len(await reader.read_all(("old", 0, int)))


async def _count_directed(count: int) -> Sent:
    """They travel when they are stored, and their receipts when they are taken."""
    ada, ben = Identity.new(), Identity.new()
    trust = Trust.known([ada.key, ben.key])
    async with (
        aio.Host("ada", listen="127.0.0.1:0", identity=ada, trust=trust) as there,
        aio.Host("ben", listen="127.0.0.1:0", identity=ben, trust=trust, peers=[there.address]) as (
            here
        ),
    ):
        while not (here.engaged and there.engaged):
            await asyncio.sleep(0.01)
        writer, reader = Melon(there), Melon(here)
        await writer.store(("first", 0), to=ben.key)
        await reader.take(("first", int))
        before = await _sent(here)
        for i in range(count):
            await writer.store(("news", i, PAYLOAD), to=ben.key)
            require((await reader.take(TEMPLATE))[1] == i, "all should come, in order")
        return await _sent(here) - before


async def _sent(host: aio.Host) -> Sent:
    """What went over the one link of this host, once all is said."""
    await asyncio.sleep(0.2)
    network: Any = host._core.network
    (link,) = network._links
    number = link._transport.get_extra_info("socket").fileno()
    with socket.socket(fileno=os.dup(number)) as twin:
        told = twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    acknowledged, received, segments_out, segments_in = struct.unpack_from("QQII", told, 120)
    content = acknowledged + received
    return Sent(content, content + _HEADERS * (segments_out + segments_in))
