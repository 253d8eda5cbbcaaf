"""One sender, 1 to 6 receivers: latency, throughput and round trips by paradigm (MELON, 7.1.3-4)

The first host sends `messages` messages of `size` bytes, `rate` a second; each receiver answers
each of them. `latency` is the time from the send to the receipt, `round_trip` to the receipt of the
answer.
"""

import asyncio
from statistics import median

from tupelo import lab
from tupelo.lab.experiment import Claim, Settings, Share
from tupelo.lab.paradigms import open_channel

DEFAULTS = {
    "hosts": 3,
    "duration": 60.0,
    "mobility": "still",
    "spacing": 40.0,
    "range": 250.0,
    "routing": "dsr",
    "paradigm": "melon",
    "messages": 200,
    "rate": 10.0,
    "size": 1_000,
    "answers": True,
    "poll": 0.5,
}
SWEEP = {"paradigm": ["pubsub", "rpc", "tuples", "melon"], "hosts": [2, 3, 4, 5, 6, 7]}
PAPER = [
    Claim("MELON 3.2.3.2", {"paradigm": "pubsub"}, "answered", 0.99, "one hop", ">"),
    Claim("MELON 3.2.3.2", {"paradigm": "tuples"}, "answered", 0.99, "one hop", ">"),
]


def run(settings: Settings) -> lab.Result:
    async def sender(host):
        channel = open_channel(settings["paradigm"], host, settings["poll"])

        def answered(message):
            _, author, number, sent, _ = message
            lab.record("answered", author=author, number=number, latency=lab.now() - sent)

        receiving = asyncio.ensure_future(channel.receive(answered, "answer"))
        await asyncio.sleep(10)  # until the hosts know each other
        for number in range(settings["messages"]):
            lab.record("sent", number=number)
            await channel.send(("message", host.name, number, lab.now(), bytes(settings["size"])))
            await asyncio.sleep(1 / settings["rate"])
        await receiving

    async def receiver(host):
        lab.record("joined")
        channel = open_channel(settings["paradigm"], host, settings["poll"])
        arrived: asyncio.Queue[tuple[str, str, int, float, bytes]] = asyncio.Queue()
        receiving = asyncio.ensure_future(channel.receive(arrived.put_nowait, "message"))
        while True:
            _, author, number, sent, payload = await arrived.get()
            lab.record("received", author=author, number=number, latency=lab.now() - sent)
            if settings["answers"]:
                await channel.send(("answer", host.name, number, sent, payload[:0]))
        await receiving

    world = settings.world()
    return world.run({world.names[0]: sender, "*": receiver}, seconds=settings.duration)


def figures(result: lab.Result) -> dict[str, float]:
    receivers = result.count("joined")
    sent = result.count("sent")
    latencies = sorted(result.values("received", "latency"))
    trips = sorted(result.values("answered", "latency"))
    times = [row["time"] for row in result.rows if row["name"] == "received"]
    span = max(times) - min(times) if len(times) > 1 else float("nan")
    return {
        "delivered": Share(len(latencies), sent * receivers),
        "answered": Share(len(trips), sent * receivers),
        "latency_median": median(latencies) if latencies else float("nan"),
        "latency_95": latencies[int(0.95 * len(latencies))] if latencies else float("nan"),
        "round_trip_median": median(trips) if trips else float("nan"),
        "received_a_second": len(times) / receivers / span,
        "bytes_per_message": result.bytes / max(1, sent),
        "messages_per_message": result.messages / max(1, sent),
    }
