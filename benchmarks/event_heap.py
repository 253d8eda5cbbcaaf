"""The Event Heap: a total view shared by hosts in processes of their own, and a session shared by
two hosts of one program.

Each host puts events and reads the view until it has all of them; then the orders of all hosts are
compared, and must be equal. All processes use the clock of the machine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import uvloop
from matplotlib.figure import Figure

from benchmarks.elsewhere import PATIENCE_SECONDS, Elsewhere
from benchmarks.measure import Findings, Plot, Settings, Table, require
from tupelo import ANY, aio
from tupelo.models.event_heap import Event, EventHeap, View

HOSTS = (2, 5, 10)
EVENTS = 200
SEEN = (1_000, 10_000, 50_000)
HAND_OVERS = 40
LONE = 9
"""Rounds in which each source puts one event."""
AHEAD_SECONDS = 0.1
"""All hosts are told of a round this long before it starts."""


@dataclass(frozen=True)
class Way:
    """Which hosts put, through what, and how many events at a time."""

    what: str
    all_put: bool
    through_view: bool
    at_a_time: int = 1


WAYS = (
    Way("one host, heap.put", False, False),
    Way("one host, view.put", False, True),
    Way("all hosts, heap.put", True, False),
    Way("all hosts, view.put", True, True),
    Way("all hosts, view.put, 16 at a time", True, True, 16),
)


@dataclass(frozen=True)
class Row:
    """Medians of the rounds."""

    way: str
    hosts: int
    per_second: float
    settled_ms: float
    """from the last put's end until all hosts have one order"""
    lone_ms: float
    """the same from the start, if each source puts one event"""
    lone_most_ms: float


def run(settings: Settings) -> Findings:
    rows = [row for hosts in HOSTS for row in _rows(hosts, settings)]
    return Findings(
        tables=[_table(rows, settings), uvloop.run(_hand_overs(settings))],
        plot=Plot("a view of total order", plot, rows),
    )


def _table(rows: list[Row], settings: Settings) -> Table:
    return Table(
        "A view of total order",
        (
            "who puts",
            "hosts",
            "events/s",
            "from the last put until all have one order, ms",
            "one event of each: until all have one order, ms",
            "the most of the rounds",
        ),
        [
            (
                row.way,
                str(row.hosts),
                f"{row.per_second:,.0f}",
                f"{row.settled_ms:,.1f}",
                f"{row.lone_ms:,.1f}",
                f"{row.lone_most_ms:,.1f}",
            )
            for row in sorted(rows, key=lambda row: [way.what for way in WAYS].index(row.way))
        ],
        f"Medians of {_rounds(settings)} rounds of {settings.size(EVENTS)} events, and of {LONE} "
        "in which each source puts a single one. Events a second are counted from the first put "
        "until the last host has all of them in the order of the view; the orders of all hosts are "
        "compared and must be equal. Puts of a host are awaited one after another unless stated. "
        f"Hosts are processes of their own, all engaged with all, on {os.cpu_count()} cores.",
    )


def _rounds(settings: Settings) -> int:
    return max(3, settings.rounds // 3)


@dataclass(frozen=True)
class HostRound:
    """The result of one host in a round."""

    first: float
    """start of the first put"""
    put: float
    """end of the last put"""
    last: float
    """when the host had all events"""
    order: list[tuple[int, int]]


def _rows(hosts: int, settings: Settings) -> list[Row]:
    full: dict[Way, list[tuple[float, float]]] = {way: [] for way in WAYS}
    lone: dict[Way, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        members: list[Elsewhere] = []
        addresses: list[str] = []
        for i in range(hosts):
            members.append(stack.enter_context(Elsewhere(run_member, i, addresses)))
            addresses = [*addresses, members[-1].said()]
        for way in WAYS:
            view = members[0].ask(("make", way.what))
            _ask_all(members, [("open", way.what, view, hosts - 1)] * hosts)
        for turn in range(_rounds(settings) + 1):
            for way in WAYS:
                count = settings.size(EVENTS)
                seconds, settled, total = _round(members, way, count if turn else hosts)
                if turn:  # The first only warms up.
                    full[way].append((total / seconds, settled))
        for _ in range(LONE):
            for way in WAYS:
                lone[way].append(_round(members, way, hosts if way.all_put else 1)[0])
    return [
        Row(
            way.what,
            hosts,
            median(rate for rate, _ in full[way]),
            median(settled for _, settled in full[way]) * 1e3,
            median(lone[way]) * 1e3,
            max(lone[way]) * 1e3,
        )
        for way in WAYS
    ]


def _ask_all(members: list[Elsewhere], questions: list[Any]) -> list[Any]:
    for member, question in zip(members, questions, strict=True):
        member.tell(question)
    return [member.said() for member in members]


def _round(members: list[Elsewhere], way: Way, count: int) -> tuple[float, float, int]:
    """Seconds from the first put, and from the end of the last one, until all hosts have all
    events; and the number of events."""
    sources = len(members) if way.all_put else 1
    each = max(1, count // sources)
    start = perf_counter() + AHEAD_SECONDS
    results: list[HostRound] = _ask_all(
        members,
        [
            ("round", way, start, each if i < sources else 0, each * sources)
            for i in range(len(members))
        ],
    )
    require(all(one.order == results[0].order for one in results), "all should have one order")
    for source in range(sources):
        numbers = [n for host, n in results[0].order if host == source]
        require(numbers == list(range(each)), "each source's events should be there, in its order")
    last = max(one.last for one in results)
    putting = results[:sources]
    return (
        last - min(one.first for one in putting),
        max(0.0, last - max(one.put for one in putting)),
        each * sources,
    )


# A shared session


async def _hand_overs(settings: Settings) -> Table:
    rows = [
        (f"{seen:,}", *[f"{await _hand_over(seen, every):,.2f}" for every in (1, 2)])
        for seen in map(settings.size, SEEN)
    ]
    return Table(
        "A session that two hosts share",
        ("events seen", "a read of any, ms", "every second event was seen: a read of others, ms"),
        rows,
        f"Two hosts of one program read in turns, so that each read is a hand-over: the median of "
        f"{HAND_OVERS}, after each has read once.",
    )


async def _hand_over(seen: int, every: int) -> float:
    """Milliseconds of a read after so many events were seen: every event, or every second one."""
    async with (
        aio.Host("one", listen="127.0.0.1:0") as one,
        aio.Host("two", peers=[one.address]) as two,
    ):
        heaps = EventHeap(one, "jobs"), EventHeap(two, "jobs")
        while not all(heap.hosts for heap in heaps):
            await asyncio.sleep(0.01)
        many = seen * every
        for start in range(0, many, 1_000):
            part = range(start, min(start + 1_000, many))
            kinds = ["other" if i % every else "seen" for i in part]
            await heaps[0].put_all([Event(kind, n=-1) for kind in kinds])
        mine = await heaps[0].session()
        require(len(await mine.get_all(Event("seen"))) == seen, "all should be there")
        shared = await mine.share()
        await heaps[0].put_all([Event("next", n=n) for n in range(HAND_OVERS + 2)])
        sessions = [await heap.session(shared, wait=PATIENCE_SECONDS) for heap in heaps]
        took = []
        for n in range(HAND_OVERS + 2):
            begun = perf_counter()
            asked = ANY if every == 1 else Event("next")
            event = await sessions[n % 2].wait(asked, wait=PATIENCE_SECONDS)
            took.append(perf_counter() - begun)
            require(event["n"] == n, "each should be read once, in order")
        return median(took[2:]) * 1e3


# A host in a process of its own


def run_member(pipe: Connection, number: int, peers: list[str]) -> None:
    """A host: sends its address, then makes a view, opens it and takes part in rounds as the parent
    asks."""
    uvloop.run(_run_member(pipe, number, peers))


async def _run_member(pipe: Connection, number: int, peers: list[str]) -> None:
    async with aio.Host(f"host-{number}", listen="127.0.0.1:0", peers=peers) as host:
        pipe.send(host.address)
        member = Member(host, number)
        while (question := await asyncio.to_thread(pipe.recv)) is not None:
            verb, *rest = question
            async with asyncio.timeout(PATIENCE_SECONDS):
                pipe.send(await getattr(member, verb)(*rest))


class Member:
    def __init__(self, host: aio.Host, number: int) -> None:
        self._host = host
        self._number = number
        self._views: dict[str, tuple[EventHeap, View]] = {}

    async def make(self, heap_name: str) -> str | None:
        heap = EventHeap(self._host, heap_name)
        view: View = await heap.view()
        self._views[heap_name] = heap, view
        return view.id

    async def open(self, heap_name: str, view: str, others: int) -> str:
        if heap_name not in self._views:
            heap = EventHeap(self._host, heap_name)
            self._views[heap_name] = heap, await heap.view(view, wait=PATIENCE_SECONDS)
        while len(self._views[heap_name][0].hosts) < others:
            await asyncio.sleep(0.01)
        return "open"

    async def round(self, way: Way, start: float, puts: int, expected: int) -> HostRound:
        heap, view = self._views[way.what]
        reading = asyncio.ensure_future(self._read(view, expected))
        await asyncio.sleep(start - perf_counter())
        first = perf_counter()
        await self._put(view.put if way.through_view else heap.put, puts, way.at_a_time)
        put = perf_counter()
        order, last = await reading
        return HostRound(first, put, last, order)

    async def _put(self, put: Callable[[Any], Any], puts: int, at_a_time: int) -> None:
        for i in range(0, puts, at_a_time):
            many = range(i, min(i + at_a_time, puts))
            events = [Event("stroke", source=self._number, n=n) for n in many]
            if at_a_time == 1:
                await put(events[0])
            else:
                await asyncio.gather(*(put(event) for event in events))

    async def _read(self, view: View, expected: int) -> tuple[list[tuple[int, int]], float]:
        order = []
        for _ in range(expected):
            event = await view.wait()
            order.append((event["source"], event["n"]))
        return order, perf_counter()


# The plot


def plot(rows: list[Row], path: Path) -> None:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    for way, mark in zip(WAYS, ("o-", "s-", "^-", "v-", "D-"), strict=True):
        found = [row for row in rows if row.way == way.what]
        hosts = [row.hosts for row in found]
        axes[0].plot(hosts, [row.per_second for row in found], mark, label=way.what)
        axes[1].plot(hosts, [row.lone_ms for row in found], mark)
    axes[0].set(xlabel="hosts", ylabel="events/s", ylim=(0, None))
    axes[1].set(xlabel="hosts", ylabel="ms until all have one order", ylim=(0, None))
    for one in axes:
        one.grid(True, alpha=0.3)
    axes[0].legend()
    figure.suptitle("A view of total order, over hosts in processes of their own")
    figure.savefig(path, dpi=120)
