"""Messages of a collect, with and without pruning of empty branches (LIME over REDS, 7.4)

The paper announces this measurement and has none. The hosts stand in a grid, each in reach of its
four neighbours, and the first one, in a corner, collects the state of all again and again. `empty`
is the share of the hosts without state: with `where=branches` the farthest ones, so that whole
branches of the tree are empty, with `where=anywhere` random ones. With `standing` the first host
also has a standing collect of all, as the reaction of a LIME program. With `offers` so many entries
are offered between two collects, by any hosts: an update ends what the cache knew of its branch.

There are no heartbeats in the short time of a run, so that all messages are those of the brokers.
"""

import asyncio
from math import ceil, sqrt
from random import Random
from statistics import mean

from tupelo import lab
from tupelo.lab.experiment import Claim, Settings
from tupelo.models.pubsub import PubSub

DEFAULTS = {
    "hosts": 25,
    "duration": 60.0,
    "spacing": 50.0,
    "range": 60.0,
    "heartbeat": 1_000.0,
    "prune": True,
    "standing": True,
    "empty": 0.6,
    "where": "branches",
    "offers": 0,
    "collects": 10,
}
SWEEP = {
    "prune": [False, True],
    "standing": [False, True],
    "hosts": [10, 25, 50],
    "empty": [0.2, 0.6, 0.9],
}
_SETTING = {"hosts": 25, "standing": True, "where": "branches", "empty": 0.6, "offers": 0}
PAPER = [
    Claim(
        "REDS figure 3 (a)",
        {**_SETTING, "prune": False},
        "asked",
        1.0,
        "all hosts are asked each time",
    ),
    Claim(
        "REDS figure 3 (b)",
        {**_SETTING, "prune": True},
        "asked",
        0.4,
        "only branches with state: the share of the hosts that have some",
        why="hosts without state on the way to one with state are asked too: the tree is that of"
        " the connections, not the one of the figure",
    ),
]
STATE = ("state", str, int)


def run(settings: Settings) -> lab.Result:
    plan = Random(f"{settings.seed} plan")  # the same with and without pruning
    names = [f"h{number + 1}" for number in range(settings.hosts)]
    with_state = _with_state(settings, names, plan)
    begin = settings.duration / 2
    interval = begin / (settings["collects"] + 1)
    # The moments of the offers between two collects:
    coming: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(settings["collects"]):
        for _ in range(settings["offers"]):
            coming[plan.choice(names)].append(begin + interval * (turn + plan.uniform(0.3, 0.7)))

    async def ask(host):
        async with PubSub(host, "lab", prune=settings["prune"]) as broker:
            await offer(host, broker)
            if settings["standing"]:
                await asyncio.sleep(begin - 2 - lab.now())
                await broker.collect(STATE, "persistent", "all")
            for turn in range(settings["collects"]):
                await asyncio.sleep(begin + interval * turn - lab.now())
                before = lab.sent()
                found = await broker.collect(STATE)
                after = lab.sent()
                items = sorted(item for reply in found.replies for item in reply.items)
                lab.record(
                    "collected",
                    items=len(items),
                    found=str(items),
                    lost=len(found.lost),
                    messages=after.frames - before.frames,
                    bytes=after.bytes - before.bytes,
                    latency=lab.now() - begin - interval * turn,
                )
            await asyncio.sleep(interval / 2)

    async def answer(host):
        async with PubSub(host, "lab", prune=settings["prune"]) as broker:
            await offer(host, broker)
            for number, moment in enumerate(sorted(coming[host.name])):
                await asyncio.sleep(moment - lab.now())
                await broker.offer(("state", host.name, number + 1))
            await asyncio.Event().wait()

    async def offer(host, broker):
        if host.name in with_state:
            await asyncio.sleep(begin / 2 - lab.now())
            await broker.offer(("state", host.name, 0))

    result = settings.world().run({names[0]: ask, "*": answer}, seconds=settings.duration)
    result.parameters["offers"] = settings["offers"]
    return result


def _with_state(settings, names, plan):
    """The names of the hosts that have state."""
    width = ceil(sqrt(settings.hosts))
    others = list(range(1, settings.hosts))
    plan.shuffle(others)
    if settings["where"] == "branches":
        others.sort(key=lambda number: number % width + number // width)
    return {names[number] for number in others[: round((1 - settings["empty"]) * len(others))]}


def figures(result: lab.Result) -> dict[str, float]:
    collected = [row for row in result.rows if row["name"] == "collected"]
    first, *later = collected
    edges = result.parameters["hosts"] - 1
    return {
        "first_messages": first["messages"],
        "messages": mean(row["messages"] for row in later),
        "bytes": mean(row["bytes"] for row in later),
        # A collect of all takes a request and an answer for each edge of the tree.
        "asked": mean(row["messages"] for row in later) / 2 / edges,
        "items": collected[-1]["items"],
        "latency": mean(row["latency"] for row in later),
        "all_messages": result.messages,
    }
