"""MELON as the dissertation measured it (7.1.2 to 7.1.4): one host writes, one to six others read.

Every host is a process, and all are engaged with all, over the loopback of this machine. The
dissertation used an emulated wireless network, so its figures cannot be compared with these; the
relation of the ways to get a message can: MELON's read, one by one, and read_all; the brokers of
publish-subscribe; and a plain subscription of a space.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import uvloop
from matplotlib.figure import Figure

from benchmarks.elsewhere import PATIENCE_SECONDS, Elsewhere
from benchmarks.measure import Findings, Plot, Settings, Table, require
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

READERS = (1, 2, 3, 4, 5, 6)
PACED, PACE_SECONDS = 30, 0.010
READ, READ_ALL, PUBLISH, SUBSCRIBE = "read", "read_all", "publish-subscribe", "subscription"
WAYS = (READ, READ_ALL, PUBLISH, SUBSCRIBE)


@dataclass(frozen=True)
class Row:
    """The figures of the average reader, for one way and number of readers; medians of the
    rounds."""

    way: str
    readers: int
    per_second: float
    """messages"""
    wait_p50: float
    """microseconds from the request to the receipt, or between two receipts if nobody requests"""
    wait_p95: float
    age_p50: float
    """microseconds from the write to the receipt, where writes are few"""
    age_p95: float


def run(settings: Settings) -> Findings:
    rows = [row for readers in READERS for row in _rows(readers, settings)]
    return Findings(
        tables=[_table(rows, settings), _overhead_table(settings)],
        plot=Plot("messages from one host to its readers", plot, rows),
    )


def _table(rows: list[Row], settings: Settings) -> Table:
    base = {row.readers: row.per_second for row in rows if row.way == PUBLISH}
    return Table(
        f"{settings.size(MESSAGES):,} messages of 1 KB from one host to one to six readers",
        (
            "way",
            "readers",
            "messages/s a reader",
            "all readers",
            "÷ publish-subscribe",
            "latency p50, µs",
            "p95",
            "from write to receipt p50, µs",
            "p95",
        ),
        [
            (
                row.way,
                str(row.readers),
                f"{row.per_second:,.0f}",
                f"{row.per_second * row.readers:,.0f}",
                f"{row.per_second / base[row.readers]:.2f}",
                f"{row.wait_p50:,.0f}",
                f"{row.wait_p95:,.0f}",
                f"{row.age_p50:,.0f}",
                f"{row.age_p95:,.0f}",
            )
            for row in sorted(rows, key=lambda row: WAYS.index(row.way))
        ],
        f"Medians of {_rounds(settings)} rounds in turns. The writer goes as fast as it can, while "
        "the others read; messages a second are those of a reader from the first write on, on "
        "average. Latency is, as in 7.1.3, from a reader's request to the receipt (of read_all, of "
        "a whole batch), and between two receipts where nobody requests. From write to receipt is "
        f"measured apart, with a message every {PACE_SECONDS * 1e3:.0f} ms, for which all wait. "
        "Writer and readers are hosts in processes of their own, all engaged with all, on "
        f"{os.cpu_count()} cores.",
    )


def _rounds(settings: Settings) -> int:
    return max(3, settings.rounds // 3)


# Rounds


@dataclass(frozen=True)
class Got:
    """The measurements of one reader, in seconds."""

    waits: list[float]
    ages: list[float]
    last: float


def _rows(readers: int, settings: Settings) -> list[Row]:
    count = settings.size(MESSAGES)
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        members: list[Elsewhere] = []
        addresses: list[str] = []
        for i in range(readers + 1):
            members.append(stack.enter_context(Elsewhere(run_member, f"host-{i}", addresses)))
            addresses = [*addresses, members[-1].said()]
        for member in members:
            member.tell(("meet", readers))
        for member in members:
            require(member.said() == "met", "all should be engaged with all")
        for way in WAYS:
            _round(members, way, f"{way}, to warm up", max(2, count // 10), 0.0)
        for turn in range(_rounds(settings)):
            for way in WAYS:
                start, flood = _round(members, way, f"{way} {turn}", count, 0.0)
                _, paced = _round(members, way, f"{way} {turn}, paced", PACED, PACE_SECONDS)
                waits = [wait for got in flood for wait in got.waits]
                ages = [age for got in paced for age in got.ages]
                rates = [count / (got.last - start) for got in flood]
                found[way].append((sum(rates) / readers, *_spread(waits), *_spread(ages)))
    return [
        Row(way, readers, *(median(column) for column in zip(*rounds, strict=True)))
        for way, rounds in found.items()
    ]


def _spread(seconds: list[float]) -> tuple[float, float]:
    """The median and the 95th percentile, in microseconds."""
    if len(seconds) < 2:
        return seconds[0] * 1e6, seconds[0] * 1e6
    return median(seconds) * 1e6, quantiles(seconds, n=20)[-1] * 1e6


def _round(
    members: list[Elsewhere], way: str, tag: str, count: int, pace: float
) -> tuple[float, list[Got]]:
    """When the first message was written, and the measurements of each reader."""
    writer, *readers = members
    writer.ask(("open", way, tag))
    for reader in readers:
        reader.tell(("get", way, tag, count))
    for reader in readers:
        require(reader.said() == "ready", "all should wait for the first")
    start: float = writer.ask(("put", way, tag, count, pace))
    return start, [reader.said() for reader in readers]


# A host in a process of its own


def run_member(pipe: Connection, name: str, peers: list[str]) -> None:
    """A host. Sends its address; then commands tell it to meet so many others, to put messages, and
    to get them. Times are of the machine's clock, which all processes share."""
    uvloop.run(_run_member(pipe, name, peers))


async def _run_member(pipe: Connection, name: str, peers: list[str]) -> None:
    async with aio.Host(name, listen="127.0.0.1:0", peers=peers) as host, PubSub(host) as pubsub:
        pipe.send(host.address)
        member = Member(host, pubsub)
        while (question := await asyncio.to_thread(pipe.recv)) is not None:
            verb, *rest = question
            if verb == "meet":
                pipe.send(await member.meet(*rest))
            elif verb == "open":
                pipe.send(member.open(*rest))
            elif verb == "put":
                pipe.send(await member.put(*rest))
            else:
                pipe.send(await member.get(lambda: pipe.send("ready"), *rest))


class Member:
    def __init__(self, host: aio.Host, pubsub: PubSub) -> None:
        self._host = host
        self._pubsub = pubsub
        self._melons: dict[str, Melon] = {}

    async def meet(self, others: int) -> str:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self._host.engaged) < others or len(self._pubsub.hosts) < others + 1:
                await asyncio.sleep(0.01)
        return "met"

    def open(self, way: str, tag: str) -> str:
        if way in (READ, READ_ALL):
            self._melons[tag] = Melon(self._host, tag)
        return "open"

    async def put(self, way: str, tag: str, count: int, pace: float) -> float:
        if way in (READ, READ_ALL):
            put: Callable[[Any], Any] = self._melons[tag].write
        else:
            put = self._pubsub.publish if way == PUBLISH else self._host.space("news").write
        first = perf_counter()
        for i in range(count):
            await put((tag, i, perf_counter(), PAYLOAD))
            await asyncio.sleep(pace)  # Also if it is 0, others have their turn.
        return first

    async def get(self, ready: Callable[[], None], way: str, tag: str, count: int) -> Got:
        template = (tag, int, float, bytes)
        waits: list[float] = []
        ages: list[float] = []
        self.open(way, tag)
        async with self._source(way, tag, template) as get, asyncio.timeout(PATIENCE_SECONDS):
            ready()
            asked = perf_counter()
            while len(ages) < count:
                messages = await get()
                now = perf_counter()
                waits.append(now - asked)
                for _, i, written, payload in messages:
                    require(i == len(ages) and payload == PAYLOAD, "all should come, in order")
                    ages.append(now - written)
                # Without a request, the time since the last receipt counts; the first has none.
                asked = perf_counter() if way in (READ, READ_ALL) else now
        return Got(waits if way in (READ, READ_ALL) else waits[1:], ages, now)

    @asynccontextmanager
    async def _source(self, way: str, tag: str, template: Any) -> AsyncIterator[Callable[[], Any]]:
        """A function that returns the next messages."""
        if way in (READ, READ_ALL):
            melon = self._melons[tag]
            verb = melon.read if way == READ else melon.read_all

            async def ask() -> Any:
                got = await verb(template)
                return [got] if way == READ else got

            yield ask
        elif way == PUBLISH:
            async with await self._pubsub.subscribe(template) as replies:
                await self._told()

                async def reply() -> Any:
                    return (await replies.get()).items

                yield reply
        else:
            async with self._host.space("news").subscribe(template) as listening:
                await self._told()

                async def notice() -> Any:
                    return [(await anext(notices)).entry]

                notices = aiter(listening)
                yield notice

    async def _told(self) -> None:
        """Wait until the other hosts know the subscription: links keep the order, so these calls
        are answered after it has arrived."""
        await self._host.space("news").count()
        await self._pubsub.collect(("nothing is offered",))


# Bytes of overhead a message (7.1.2): counted by the kernel, on the one link between two hosts


@dataclass(frozen=True)
class Sent:
    """Bytes over one link, in both directions: of the messages, and with the headers of TCP/IP."""

    content: int
    whole: int

    def __sub__(self, other: Sent) -> Sent:
        return Sent(self.content - other.content, self.whole - other.whole)


def _overhead_table(settings: Settings) -> Table:
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
    """The average size of the sparse bit set in the requests of the dissertation."""
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
    """The bytes that each operation sends for so many messages. Both hosts are on this loop."""
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
    """Read so many messages before, every other one, so that their numbers are no single range."""
    for i in range(2 * count):
        await writer.write(("old", i % 2, i))
    read = 0
    while read < count:
        read += len(await reader.read_all(("old", 0, int)))


async def _count_directed(count: int) -> Sent:
    """Directed messages are sent when they are stored, and their receipts when they are taken."""
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
    """The bytes over the one link of this host so far, once nothing is sent any more."""
    await asyncio.sleep(0.2)
    network: Any = host._core.network
    (link,) = network._links
    number = link._transport.get_extra_info("socket").fileno()
    with socket.socket(fileno=os.dup(number)) as twin:
        told = twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    acknowledged, received, segments_out, segments_in = struct.unpack_from("QQII", told, 120)
    content = acknowledged + received
    return Sent(content, content + _HEADERS * (segments_out + segments_in))


# The plot


def plot(rows: list[Row], path: Path) -> None:
    """As figures 7.4 and 7.6: latency and throughput over the number of readers."""
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    axes = figure.subplots(1, 3)
    for way, mark in zip(WAYS, ("o-", "s-", "^-", "v-"), strict=True):
        found = [row for row in rows if row.way == way]
        readers = [row.readers for row in found]
        axes[0].semilogy(readers, [row.per_second for row in found], mark, label=way)
        axes[1].semilogy(readers, [row.wait_p50 for row in found], mark)
        axes[2].semilogy(readers, [row.age_p50 for row in found], mark)
    for one, title, label in zip(
        axes,
        ("throughput", "latency, as 7.1.3 has it", "from write to receipt, paced"),
        ("messages/s a reader", "µs, p50", "µs, p50"),
        strict=True,
    ):
        one.set(xlabel="readers", title=title, ylabel=label)
        one.grid(True, alpha=0.3)
    axes[0].legend()
    figure.suptitle("1,000 messages of 1 KB from one host to its readers")
    figure.savefig(path, dpi=120)
