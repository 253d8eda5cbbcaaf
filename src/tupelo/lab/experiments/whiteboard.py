"""A shared whiteboard: what is lost, late and out of order, by paradigm and loss (MELON, 7.1.5)

Every host draws, or with `drawers` only the first ones: `updates` figures in all, at random moments
during the first nine tenths of the time, so that the last ones can arrive. Sizes follow no trace of
a real whiteboard, as in the dissertation, but an exponential distribution with the same idea: most
figures are small.

Global order: a figure that was drawn after its author had seen another one is out of order where it
arrives before that other one.
"""

import asyncio
from statistics import median

from tupelo import lab
from tupelo.lab.experiment import Claim, Settings, Share
from tupelo.lab.paradigms import open_channel

DEFAULTS = {
    "hosts": 7,
    "duration": 600.0,
    "mobility": "waypoint",
    "area": 150.0,
    "range": 100.0,
    "routing": "aodv",
    "paradigm": "melon",
    "drawers": 0,
    "updates": 250,
    "size": 400,
    "poll": 1.0,
}
SWEEP = {"paradigm": ["pubsub", "rpc", "tuples", "melon"], "loss": [0.0, 0.1, 0.2, 0.3]}
PAPER = [
    Claim("MELON 7.11", {"paradigm": "melon"}, "delivered", 1.0, "at every loss"),
    Claim("MELON 7.8", {"paradigm": "melon"}, "host_disordered", 0.0, "guaranteed"),
    Claim("MELON 7.8", {"paradigm": "tuples"}, "host_disordered", 0.0, "by accident"),
    Claim(
        "MELON 7.11",
        {"paradigm": "pubsub", "loss": 0.0},
        "delivered",
        0.986,
        why="links repeat what is not acknowledged, also on a new route; only what is published"
        " while a host is out of reach is lost, here in one run of ten",
    ),
    Claim(
        "MELON 7.10",
        {"paradigm": "tuples"},
        "global_disordered",
        0.67,
        relation="max",
        why="out of order are only figures that one read gets together with their cause; here few"
        " are: a read each second, a figure every 2.4 seconds",
    ),
    Claim(
        "MELON 7.8",
        {"paradigm": "pubsub"},
        "host_disordered",
        0.022,
        relation="max",
        why="the updates of a host go over one link to each other host, which keeps their order",
    ),
]


def run(
    settings: Settings, world: lab.World | None = None, relays: tuple[str, ...] = ()
) -> lab.Result:
    """`relays` are hosts without a board, which only pass packets on."""
    world = world or settings.world()
    boards = [name for name in world.names if name not in relays]
    drawers = boards[: settings["drawers"] or None]
    each = settings["updates"] // len(drawers)

    async def draw(host):
        lab.record("joined")
        channel = open_channel(settings["paradigm"], host, settings["poll"])
        seen = []  # the figures on this board, of which the last one is the cause of the next

        def add_figure(message):
            _, author, number, sent, _ = message
            if author != host.name:
                lab.record("received", author=author, number=number, latency=lab.now() - sent)
                seen.append((author, number))

        receiving = asyncio.ensure_future(channel.receive(add_figure, "figure"))
        rng = lab.random()
        count = each if host.name in drawers else 0
        moments = sorted(rng.uniform(5, 0.9 * settings.duration) for _ in range(count))
        for number, moment in enumerate(moments):
            await asyncio.sleep(max(0.0, moment - lab.now()))
            author, last = seen[-1] if seen else (None, None)
            size = min(20_000, int(rng.expovariate(1 / settings["size"])))
            payload = bytes(size)
            lab.record("sent", number=number, cause_author=author, cause_number=last)
            await channel.send(("figure", host.name, number, lab.now(), payload))
        await receiving

    return world.run(dict.fromkeys(boards, draw), seconds=settings.duration)


def figures(result: lab.Result) -> dict[str, float]:
    boards = result.count("joined")
    sent = {(row["host"], row["number"]): row for row in result.rows if row["name"] == "sent"}
    received = [row for row in result.rows if row["name"] == "received"]
    latencies = [row["latency"] for row in received]
    at: dict[str, dict[tuple[str, int], int]] = {}
    host_disordered = 0
    latest: dict[tuple[str, str], int] = {}
    for place, row in enumerate(received):
        at.setdefault(row["host"], {})[row["author"], row["number"]] = place
        key = row["host"], row["author"]
        host_disordered += row["number"] < latest.get(key, -1)
        latest[key] = max(latest.get(key, -1), row["number"])
    global_disordered = 0
    for host, places in at.items():
        for figure, place in places.items():
            cause = sent[figure]["cause_author"], sent[figure]["cause_number"]
            if cause[0] not in (None, host):
                global_disordered += places.get(cause, len(received)) > place
    shown = sum(map(len, at.values()))
    return {
        "delivered": Share(shown, len(sent) * (boards - 1)),
        "host_disordered": Share(host_disordered, len(received)),
        "global_disordered": Share(global_disordered, shown),
        "latency_median": median(latencies) if latencies else float("nan"),
        "latency_95": sorted(latencies)[int(0.95 * len(latencies))] if latencies else float("nan"),
        "bytes_per_update": result.bytes / max(1, len(sent)),
        "routing_packets": result.air.routing_packets if result.air else 0,
        "real_seconds": result.real_seconds,
    }
