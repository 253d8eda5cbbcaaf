"""LIME: the messages of its operations on publish-subscribe, on collect and on pruned collect.

Messages and bytes are counted in the lab's network, without heartbeats. The host that asks has a
standing reaction with the same template, because pruning needs one; then all is repeated without it
("alone"). The operations must find the same on all three ways, or the benchmark fails.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from matplotlib.figure import Figure

from benchmarks.field import QUIET_SECONDS, TEMPLATE, Camp, Field, Traffic, grouped, reading
from benchmarks.measure import Findings, Plot, Settings, Table, require
from tupelo.lab.loop import VirtualLoop
from tupelo.lab.loop import run as run_virtually
from tupelo.models.lime.reactions import ReactionCall

SIZES = (2, 5, 10, 20)
SHARES = (0, 30, 60, 90)
WAYS: dict[str, dict[str, Any]] = {
    "publish": {"over": "publish"},
    "collect": {"over": "collect", "prune": False},
    "pruned": {"over": "collect", "prune": True},
}
TREES = {"a random tree": 5, "a mesh": 2}
"""How the hosts are connected, and how many such are averaged."""
REPEATS = 5
FIRST, RDP, RDG, RD, REACTION = "first reaction", "rdp", "rdg", "rd", "reaction"
INP, IN = "inp", "in_"
ASKING = (RDP, RDG, RD, INP, IN)
ALONE = {operation: f"{operation} alone" for operation in ASKING}
OPERATIONS = (RDP, RDG, RD, REACTION, INP, IN, FIRST, *ALONE.values())

HEADS = (
    "operation",
    "hosts",
    "empty",
    *("publish, messages", "collect", "pruned", "÷ collect", "÷ publish"),
    *("publish, bytes", "collect", "pruned", "÷ collect", "÷ publish"),
    "least",
)


@dataclass(frozen=True)
class Row:
    """The average traffic of one operation, by the way it is done."""

    links: str
    operation: str
    hosts: int
    share: int
    """of the hosts that do not ask, in percent"""

    sent: dict[str, Traffic]


def run(settings: Settings) -> Findings:
    rows = [row for links in TREES for n in SIZES for row in _rows(links, n, settings)]
    tables = [_table(links, rows, settings) for links in TREES]
    return Findings(tables=tables, plot=Plot("messages of LIME's operations", plot, rows))


def _table(links: str, rows: list[Row], settings: Settings) -> Table:
    ordered = sorted(
        (row for row in rows if row.links == links), key=lambda row: OPERATIONS.index(row.operation)
    )
    empty = "whole branches" if links == "a random tree" else "any"
    return Table(
        f"LIME's operations among hosts that are connected as {links}",
        HEADS,
        [_cells(row) for row in ordered],
        f"Averages of {_many(links, settings)} such groups. The host that asks has a standing "
        "reaction with the same template, and no match; every other host has one match, except "
        f"the empty ones, which are {empty}. A reaction is a further one: its registration, and "
        "one tuple written at each other host in turn, also at the empty ones. The first reaction "
        "is the registration of the standing one, before any promise. On publish-subscribe an rd "
        "subscribes before it queries, and answers go along the tree, also in a mesh.",
    )


def _many(links: str, settings: Settings) -> int:
    return settings.size(TREES[links])


def _cells(row: Row) -> tuple[str, ...]:
    cells = [row.operation, str(row.hosts), f"{row.share} %: {_empties(row.hosts, row.share)}"]
    for what in ("messages", "bytes"):
        publish, collect, pruned = (getattr(row.sent[way], what) for way in WAYS)
        style = ",.0f" if what == "bytes" else ",.1f"
        cells += [f"{one:{style}}" for one in (publish, collect, pruned)]
        cells += [_ratio(pruned, collect), _ratio(pruned, publish)]
    return (*cells, _least(row))


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "–"


def _least(row: Row) -> str:
    """Which other ways need fewer messages or bytes than pruned collect."""
    less = [
        f"{way}: {what}"
        for what in ("messages", "bytes")
        for way in ("publish", "collect")
        if getattr(row.sent[way], what) < getattr(row.sent["pruned"], what)
    ]
    return ", ".join(less) or "pruned"


# One group


@dataclass(frozen=True)
class Layout:
    """How hosts are linked, which one asks, and in which order the others become empty."""

    links: list[list[int]]
    asker: int
    emptied: list[int]


def _lay_out(links: str, hosts: int, rng: Random) -> Layout:
    asker = rng.randrange(hosts)
    others = [host for host in range(hosts) if host != asker]
    if links == "a mesh":
        rng.shuffle(others)
        return Layout([list(range(host)) for host in range(hosts)], asker, others)
    tree = [[rng.randrange(host)] if host else [] for host in range(hosts)]
    edges = {(host, near[0]) for host, near in enumerate(tree) if near}
    emptied = []
    while edges:  # From the tips inward, so that whole branches are empty.
        ends = [host for edge in edges for host in edge]
        tip = rng.choice(sorted(host for host in set(ends) - {asker} if ends.count(host) == 1))
        emptied.append(tip)
        edges = {edge for edge in edges if tip not in edge}
    return Layout(tree, asker, emptied)


def _empties(hosts: int, share: int) -> int:
    return round((hosts - 1) * share / 100)


Counted = dict[tuple[int, str], Traffic]
Results = list[Any]


def _rows(links: str, hosts: int, settings: Settings) -> list[Row]:
    """All operations in groups of one size, averaged over several of them."""
    sums: dict[tuple[int, str], dict[str, list[Traffic]]] = defaultdict(lambda: defaultdict(list))
    for seed in range(_many(links, settings)):
        layout = _lay_out(links, hosts, Random(f"{links} {hosts} {seed}"))
        results: dict[str, Results] = {}
        for way in WAYS:
            counted, results[way] = run_virtually(_counting(layout, way), seed)
            for key, one in counted.items():
                sums[key][way].append(one)
        for way in WAYS:
            require(results[way] == results["collect"], f"{way} should find what collect does")
    return [
        Row(links, operation, hosts, share, {way: _mean(all_of) for way, all_of in ways.items()})
        for (share, operation), ways in sums.items()
    ]


def _mean(all_of: list[Traffic]) -> Traffic:
    n = len(all_of)
    return Traffic(sum(one.messages for one in all_of) / n, sum(one.bytes for one in all_of) / n)


def _counting(layout: Layout, way: str) -> Callable[[VirtualLoop], Any]:
    return lambda loop: _count(loop, layout, way)


async def _count(loop: VirtualLoop, layout: Layout, way: str) -> tuple[Counted, Results]:
    field = Field(loop)
    camps = [await field.add(peers, **WAYS[way]) for peers in layout.links]
    await grouped(camps, len(camps))
    asker = camps[layout.asker]
    others = [camp for camp in camps if camp is not asker]
    for i, camp in enumerate(camps):
        for k in range(3):
            await camp.out(("another", k))
        if camp is not asker:
            await camp.out(reading(i))
    for camp in camps:
        await camp.share()
    await asyncio.sleep(QUIET_SECONDS)
    counted: Counted = {}
    results: Results = []
    empty = 0
    for share in SHARES:
        for host in layout.emptied[empty : _empties(len(camps), share)]:
            await _empty(camps[host])
        empty = _empties(len(camps), share)
        for operation in ASKING:
            found, counted[share, ALONE[operation]] = await _repeat(field, camps, asker, operation)
            results.append(found)
        heard: list[ReactionCall] = []
        standing, counted[share, FIRST] = await field.counted(asker.react(heard.append))
        results.append(sorted(event.tuple for event in heard))
        for operation in ASKING:
            found, counted[share, operation] = await _repeat(field, camps, asker, operation)
            results.append(found)
        told, counted[share, REACTION] = await _react_to_each(field, asker, others)
        results.append(told)
        await asker.server.remove_reaction(standing)
        await asyncio.sleep(QUIET_SECONDS)
    await field.stop()
    return counted, results


async def _empty(camp: Camp) -> None:
    require(await camp.server.inp(camp.interface, TEMPLATE) is not None, "it should have had one")


async def _repeat(
    field: Field, camps: list[Camp], asker: Camp, operation: str
) -> tuple[Any, Traffic]:
    """What it finds: all, or else only whether there is any, for it may be any. What it takes is
    written again by its host."""
    all_of = []
    found: Any = None
    for _ in range(REPEATS):
        found, sent = await field.counted(_operate(asker, operation))
        all_of.append(sent)
        if found is not None and operation in (INP, IN):
            await camps[found[1]].out(found)
            await asyncio.sleep(QUIET_SECONDS)
    return sorted(found) if operation == RDG else found is not None, _mean(all_of)


async def _operate(asker: Camp, operation: str) -> Any:
    if operation in (RD, IN):
        waiting = getattr(asker.server, operation)
        return await waiting(asker.interface, TEMPLATE, wait=QUIET_SECONDS)
    return await getattr(asker.server, operation)(asker.interface, TEMPLATE)


async def _react_to_each(field: Field, asker: Camp, others: list[Camp]) -> tuple[Any, Traffic]:
    told, all_of = [], []
    for i, camp in enumerate(others):
        heard, sent = await field.counted(_react(asker, camp, reading(1_000 + i)))
        told.append(sorted(event.tuple for event in heard[1]))
        all_of.append(sent)
        await asker.server.remove_reaction(heard[0])
        await camp.server.inp(camp.interface, reading(1_000 + i))
        await asyncio.sleep(QUIET_SECONDS)
    return told, _mean(all_of)


async def _react(asker: Camp, other: Camp, value: object) -> tuple[Any, list[ReactionCall]]:
    heard: list[ReactionCall] = []
    registered = await asker.react(heard.append)
    await asyncio.sleep(QUIET_SECONDS)
    await other.out(value)
    await asyncio.sleep(QUIET_SECONDS)
    return registered, heard


# The plot


def plot(rows: list[Row], path: Path) -> None:
    """In a random tree: messages and bytes over the share that is empty, messages over hosts."""
    links = "a random tree"
    found = {(r.operation, r.hosts, r.share): r.sent for r in rows if r.links == links}
    figure = Figure(figsize=(13, 9), layout="constrained")
    axes = figure.subplots(3, 4, squeeze=False)
    most = SIZES[-1]
    for column, operation in enumerate(OPERATIONS[:4]):
        for way, mark in zip(WAYS, ("^-", "s-", "o-"), strict=True):
            over_shares = [found[operation, most, share][way] for share in SHARES]
            over_hosts = [found[operation, hosts, 60][way] for hosts in SIZES]
            axes[0][column].plot(SHARES, [sent.messages for sent in over_shares], mark, label=way)
            axes[1][column].plot(SHARES, [sent.bytes / 1024 for sent in over_shares], mark)
            axes[2][column].plot(SIZES, [sent.messages for sent in over_hosts], mark)
        for row, label in enumerate(("empty, %", "empty, %", "hosts")):
            axes[row][column].set(xlabel=label, ylim=(0, None))
            axes[row][column].grid(True, alpha=0.3)
        axes[0][column].set_title(operation)
    for row, label in enumerate(
        (f"messages, {most} hosts", f"KiB, {most} hosts", "messages, 60 %")
    ):
        axes[row][0].set_ylabel(label)
    axes[0][0].legend()
    figure.suptitle("LIME's operations in a random tree of hosts")
    figure.savefig(path, dpi=120)
