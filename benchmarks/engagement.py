"""LIME: hosts that engage, and weak reactions to tuples that are written at another host.

Times are measured on sockets of this machine, with all hosts on one loop; messages and bytes are
counted in the lab's network, in the same scenario.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Any

import uvloop

from benchmarks.field import TEMPLATE, Camp, Field, Traffic, grouped, on_sockets, reading
from benchmarks.measure import Findings, Settings, Table, require
from tupelo import aio
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.loop import run as run_virtually
from tupelo.models import lime
from tupelo.models.lime.messages import place_of

EACH = 1_000
MISPLACED_EACH = 100
DELAY_SECONDS = 0.005
WAVE = frozenset(("Here", "Gone", "Probe", "Echo", "Commit", "Flush", "Done", "Resume"))
"""The messages that agree on a membership. All others move tuples and tables."""
LISTENED = 200


@dataclass(frozen=True)
class Meeting:
    """Groups of so many hosts, and which hosts meet: one of each group, or all."""

    what: str
    groups: tuple[int, int]
    all_meet: bool


MEETINGS = (
    Meeting("a 10th host meets one of nine", (9, 1), False),
    Meeting("a 10th host meets all nine", (9, 1), True),
    Meeting("two groups of five meet, by one link", (5, 5), False),
    Meeting("two groups of five meet, by 25 links", (5, 5), True),
)


def run(settings: Settings) -> Findings:
    return Findings(tables=[_meetings(settings), _reactions(settings)])


# Hosts that engage

Timed = tuple[float, float, float]
"""Seconds until both groups are one, seconds of processor time, and how long operations were
held."""


def _meetings(settings: Settings) -> Table:
    rounds = max(3, settings.rounds // 2)
    timed: dict[Meeting, list[Timed]] = {meeting: [] for meeting in MEETINGS}
    for _ in range(rounds):
        for meeting in MEETINGS:
            timed[meeting].append(uvloop.run(_time_meeting(meeting, settings)))
    rows: list[tuple[str, ...]] = []
    for meeting in MEETINGS:
        whole, worked, held = zip(*timed[meeting], strict=True)
        counted = run_virtually(_counting(meeting, settings), seed=1)
        rows.append(
            (
                meeting.what,
                f"{median(whole) * 1e3:,.0f}",
                f"{min(whole) * 1e3:,.0f}–{max(whole) * 1e3:,.0f}",
                f"{median(worked) * 1e3:,.0f}",
                f"{median(held) * 1e3:,.0f}",
                f"{counted.held * 1e3:,.0f}",
                f"{counted.waves:,.0f}",
                f"{counted.sent.messages:,.0f}",
                f"{counted.of_waves:,.0f}",
                f"{counted.sent.bytes / 1024:,.0f}",
            )
        )
    each, misplaced = settings.size(EACH), settings.size(MISPLACED_EACH)
    return Table(
        "Groups that engage",
        (
            "what",
            "median, ms",
            "least–most",
            "of the processor, ms",
            "held, ms",
            f"held at {DELAY_SECONDS * 1e3:.0f} ms a message",
            "changes",
            "messages",
            "of the membership protocol",
            "KiB",
        ),
        rows,
        f"Each of the ten hosts has {each:,} tuples; {misplaced} of each host that is met are for "
        "an agent of the other group, and have moved when operations continue. Medians of "
        f"{rounds} rounds, from the first dialling until operations continue at all ten hosts, "
        "which share one loop of one process. Held is the longest time that the operations of one "
        "host had to wait. Messages and bytes, handshakes included, are counted in the lab, where "
        "every message takes the same time.",
    )


async def _time_meeting(meeting: Meeting, settings: Settings) -> Timed:
    async with on_sockets(list(meeting.groups)) as groups:
        await _prepare(groups, settings)
        start, worked = perf_counter(), process_time()
        await _meet(meeting, groups)
        seconds, worked = perf_counter() - start, process_time() - worked
        held = max(sum(camp.server.group.held) for group in groups for camp in group)
        await _check(groups, settings)
    return seconds, worked, held


async def _prepare(groups: list[list[Camp]], settings: Settings) -> None:
    """Give each agent its tuples, some of them for agents that have not arrived yet."""
    for group in groups:
        await grouped(group, len(group))
    for group, others in (groups, groups[::-1]):
        misplaced = settings.size(MISPLACED_EACH) if len(group) > 1 else 0
        for camp in group:
            for i in range(settings.size(EACH)):
                other = others[i % len(others)]
                await camp.out(reading(i), other.location if i < misplaced else None)
        for camp in group:
            await camp.share()
        await grouped(group, len(group))
    for camp in [*groups[0], *groups[1]]:
        camp.server.group.held.clear()
        camp.server.group.sent.clear()


async def _meet(meeting: Meeting, groups: list[list[Camp]]) -> None:
    met, coming = groups
    for camp in coming if meeting.all_meet else coming[:1]:
        for other in met if meeting.all_meet else met[:1]:
            camp.core.dial(other.core.address)
    everyone = [*met, *coming]
    await grouped(everyone, len(everyone))


async def _check(groups: list[list[Camp]], settings: Settings) -> None:
    """Require that every tuple is with its agent."""
    everyone = [*groups[0], *groups[1]]
    found = 0
    for camp in everyone:
        held = await camp.server.rdg(camp.interface, TEMPLATE, place_of(camp.location, None))
        at_home = await camp.server.rdg(
            camp.interface, TEMPLATE, place_of(camp.location, camp.location)
        )
        require(len(held) == len(at_home), "what an agent has should be its own")
        found += len(held)
    require(found == len(everyone) * settings.size(EACH), "nothing should be lost or doubled")


@dataclass(frozen=True)
class Counted:
    """The cost of a meeting in the lab."""

    sent: Traffic
    of_waves: int
    waves: int
    held: float


def _counting(meeting: Meeting, settings: Settings) -> Callable[[VirtualLoop], Any]:
    return lambda loop: _count(loop, meeting, settings)


async def _count(loop: VirtualLoop, meeting: Meeting, settings: Settings) -> Counted:
    field = Field(loop, (DELAY_SECONDS, DELAY_SECONDS))
    for size in meeting.groups:
        first = len(field.camps)
        for i in range(size):
            await field.add(range(first, first + i))
    groups = [field.camps[: meeting.groups[0]], field.camps[meeting.groups[0] :]]
    await _prepare(groups, settings)
    _, sent = await field.counted(_meet(meeting, groups))
    spoken: Counter[str] = Counter()
    for camp in field.camps:
        spoken += camp.server.group.sent
    held = [camp.server.group.held for camp in field.camps]
    counted = Counted(
        sent,
        sum(many for kind, many in spoken.items() if kind in WAVE),
        max(map(len, held)),
        max(map(sum, held)),
    )
    await _check(groups, settings)
    await field.stop()
    return counted


# Weak reactions


def _reactions(settings: Settings) -> Table:
    weak, plain = uvloop.run(_time_listening(settings))
    ratios = [ours / theirs for ours, theirs in zip(weak, plain, strict=True)]
    return Table(
        "From the write at one host to the listener at another",
        ("what", "p50, µs", "least–most of the rounds"),
        [
            ("a weak reaction, from out to its listener", *_spread(weak, ",.0f")),
            ("a plain subscription, from write to its callback", *_spread(plain, ",.0f")),
            ("the one as a multiple of the other", *_spread(ratios, ".2f")),
        ],
        f"In turns, {settings.rounds} rounds of {settings.size(LISTENED)} each, between the same "
        "two hosts, both on one loop; the median of the rounds' own p50.",
    )


def _spread(rounds: list[float], style: str) -> tuple[str, str]:
    return f"{median(rounds):{style}}", f"{min(rounds):{style}}–{max(rounds):{style}}"


async def _time_listening(settings: Settings) -> tuple[list[float], list[float]]:
    """The p50 of each round, in microseconds: of a weak reaction, and of a subscription."""
    moments: asyncio.Queue[float] = asyncio.Queue()

    def listener(event: object) -> None:
        moments.put_nowait(perf_counter())

    async with (
        aio.Host("writer", listen="127.0.0.1:0") as there,
        aio.Host("listener", listen="127.0.0.1:0", peers=[there.address]) as here,
        lime.Host(there) as camp_there,
        lime.Host(here) as camp_here,
    ):
        while len(camp_here.hosts) < 2 or len(camp_there.hosts) < 2:
            await asyncio.sleep(0.001)
        writer = lime.LimeTupleSpace("weak", await camp_there.agent("writer"))
        watcher = lime.LimeTupleSpace("weak", await camp_here.agent("watcher"))
        await writer.set_shared(True)
        await watcher.set_shared(True)
        await watcher.add_weak_reaction(
            lime.UbiquitousReaction(TEMPLATE, listener, lime.ONCE_PER_TUPLE)
        )
        plain_there, plain_here = there.space("plain"), here.space("plain")
        async with plain_here.subscribe(TEMPLATE, listener):
            await asyncio.sleep(0.1)
            weak: list[float] = []
            plain: list[float] = []
            for _ in range(settings.rounds + 1):
                weak.append(await _time_each(writer.out, moments, settings))
                plain.append(await _time_each(plain_there.write, moments, settings))
                await writer.ing(TEMPLATE)
                await plain_there.take_all(TEMPLATE)
        require(moments.empty(), "each should be told of once")
    return weak[1:], plain[1:]  # The first round only warms up.


async def _time_each(
    write: Callable[[Any], Awaitable[Any]], moments: asyncio.Queue[float], settings: Settings
) -> float:
    """The median time from a write to the call of its listener, in microseconds."""
    micros = []
    for i in range(settings.size(LISTENED)):
        start = perf_counter()
        await write(reading(i))
        micros.append((await moments.get() - start) * 1e6)
    return median(micros)
