"""MELON's read of the next unread message, and the size of the record of read messages.

All but the last messages were read before, by one Melon at the writer's own host and by one at
another host, in another process. So the next unread message is behind all read ones, and the record
of these is at its largest.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import median, quantiles
from time import perf_counter

import uvloop

from benchmarks import tracking
from benchmarks.elsewhere import Elsewhere
from benchmarks.measure import Findings, Line, Plot, Settings, Table, Target, require
from tupelo import aio
from tupelo.models.melon import Melon

STORED = (1_000, 10_000, 100_000, 1_000_000)
EACH = 40
"""The maximum number of messages that are read in a round, one by one."""
AT_ONCE = 10_000
TEMPLATE = ("news", int, str)
PLACES = ("at the writer's own host", "from another host")


def run(settings: Settings) -> Findings:
    reads = uvloop.run(_time_reads(settings))
    lines = [_line(place, reads, settings) for place in PLACES]
    sizes = tracking.measure_sizes(settings)
    return Findings(
        [*lines, *tracking.lines(sizes)],
        [_table(reads, settings), *tracking.tables(sizes, settings)],
        Plot("the size of a record of what was read", tracking.plot, sizes),
    )


@dataclass
class Reads:
    """Microseconds of each read, by round."""

    rounds: list[list[float]] = field(default_factory=list)
    first: float = 0.0
    """The first read after read_all has got all other messages."""

    @property
    def medians(self) -> list[float]:
        return [median(one) for one in self.rounds]


AllReads = dict[tuple[int, str], Reads]


def _line(place: str, reads: AllReads, settings: Settings) -> Line:
    least, most = (settings.size(STORED[place]) for place in (0, -1))
    return Line(
        f"MELON read of the next unread message {place}, {most:,} stored",
        f"with {least:,}",
        "µs",
        Target("≤", 1.5),
        reads[most, place].medians,
        reads[least, place].medians,
    )


def _table(reads: AllReads, settings: Settings) -> Table:
    rows = []
    for stored in map(settings.size, STORED):
        cells: list[str] = []
        for place in PLACES:
            found = reads[stored, place]
            p95 = quantiles([one for micros in found.rounds for one in micros], n=20)[-1]
            cells += [f"{median(found.medians):,.0f}", f"{p95:,.0f}", f"{found.first / 1e3:,.2f}"]
        rows.append((f"{stored:,}", *cells))
    heads = [f"{what}, {place}" for place in PLACES for what in ("p50, µs", "p95", "first, ms")]
    return Table(
        "MELON read of the next unread message",
        ("stored", *heads),
        rows,
        "Messages of three fields, one writer. All but the last were read by read_all, "
        f"{AT_ONCE:,} at a time; then these are read one by one, at most {EACH} in a round, "
        f"{settings.rounds} rounds, the sizes in turns. p50 is the median of the rounds' own, p95 "
        "is of all rounds together. First is the very first read after read_all, which is in no "
        "round.",
    )


async def _time_reads(settings: Settings) -> AllReads:
    sizes = [settings.size(stored) for stored in STORED]
    turns = settings.rounds + 2
    each = max(1, min(EACH, sizes[0] // (2 * turns)))
    reads = {(stored, place): Reads() for stored in sizes for place in PLACES}
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(aio.Host("writer", listen="127.0.0.1:0"))
        there = stack.enter_context(Elsewhere(run_reader, host.address))
        require(await asyncio.to_thread(there.said) == "engaged", "the reader should be there")
        stores = {stored: Store(host, there, stored) for stored in sizes}
        for stored, store in stores.items():
            await store.fill(stored - turns * each)
        for turn in range(turns):
            for stored, store in stores.items():
                await store.write(each)
                for place in PLACES:
                    micros = await store.time_reads(place, each)
                    if turn == 0:
                        reads[stored, place].first = micros[0]
                    elif turn > 1:  # The first rounds only warm up.
                        reads[stored, place].rounds.append(micros)
        for store in stores.values():
            require(await store.here.read(TEMPLATE, wait=0) is None, "all should be read")
    return reads


class Store:
    """The messages of one name, with a reader at the writer's host and one at another host."""

    def __init__(self, host: aio.Host, there: Elsewhere, stored: int) -> None:
        self.name = f"melon-{stored}"
        self.here = Melon(host, self.name)
        self._writer = Melon(host, self.name)
        self._there = there
        self._written = 0

    async def write(self, count: int) -> None:
        for i in range(self._written, self._written + count):
            await self._writer.write(("news", i, "x" * 20))
        self._written += count

    async def fill(self, count: int) -> None:
        """Write so many messages, which both readers read."""
        while self._written < count:
            many = min(AT_ONCE, count - self._written)
            await self.write(many)
            require(len(await self.here.read_all(TEMPLATE)) == many, "all should be read here")
            read = await asyncio.to_thread(self._there.ask, (self.name, None))
            require(read == many, "all should be read there")

    async def time_reads(self, place: str, count: int) -> list[float]:
        if place == PLACES[0]:
            return await _time_each(self.here, count)
        micros: list[float] = await asyncio.to_thread(self._there.ask, (self.name, count))
        return micros


async def _time_each(melon: Melon, count: int) -> list[float]:
    micros, numbers = [], []
    for _ in range(count):
        start = perf_counter()
        message = await melon.read(TEMPLATE)
        micros.append((perf_counter() - start) * 1e6)
        numbers.append(message[1])
    require(numbers == list(range(numbers[0], numbers[0] + count)), "the oldest should come first")
    return micros


def run_reader(pipe: Connection, address: str) -> None:
    """A host that reads the messages of another. The command (name, count) reads so many, one by
    one, and is answered with the microseconds of each; with count None it reads all and is answered
    with their number."""
    uvloop.run(_run_reader(pipe, address))


async def _run_reader(pipe: Connection, address: str) -> None:
    async with aio.Host("reader", listen="127.0.0.1:0", peers=[address]) as host:
        while not host.engaged:
            await asyncio.sleep(0.01)
        pipe.send("engaged")
        melons: dict[str, Melon] = {}
        while (question := await asyncio.to_thread(pipe.recv)) is not None:
            name, count = question
            if name not in melons:
                melons[name] = Melon(host, name)
            if count is None:
                pipe.send(len(await melons[name].read_all(TEMPLATE)))
            else:
                pipe.send(await _time_each(melons[name], count))
