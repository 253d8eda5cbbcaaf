"""The sequence of messages for one message of 1 KB, by paradigm (MELON, table 3.2)

One sender and one receiver, who opens its channel after 10 seconds, alone with the network: no
heartbeats. Each message between the hosts is a record, with its type and its size; `tupelo lab run
sequence --to DIR` writes them to `records.csv`. The receiver knows the sender before, which the
table does not count either.
"""

import asyncio

from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.experiment import Claim, Settings
from tupelo.lab.paradigms import open_channel

DEFAULTS = {
    "hosts": 2,
    "duration": 25.0,
    "network": "wired",
    "heartbeat": 1_000.0,
    "paradigm": "melon",
    "size": 1_000,
    "poll": 4.0,
}
SWEEP = {"paradigm": ["pubsub", "rpc", "tuples", "melon"]}
FRAMES = "messages are MessagePack, in few bytes"
ONE_READ = "a question and an answer, which has the tuple"
PAPER = [
    Claim("MELON table 3.2", {"paradigm": "pubsub", "size": 1_000}, "bytes", 1_357.0, why=FRAMES),
    Claim("MELON table 3.2", {"paradigm": "rpc", "size": 1_000}, "bytes", 1_571.0, why=FRAMES),
    Claim("MELON table 3.2", {"paradigm": "tuples", "size": 1_000}, "bytes", 2_915.0, why=ONE_READ),
    Claim(
        "MELON table 3.2",
        {"paradigm": "pubsub", "size": 1_000},
        "messages",
        2.0,
        why="the update itself; links acknowledge it below the messages",
    ),
    Claim(
        "MELON table 3.2",
        {"paradigm": "rpc", "size": 1_000},
        "messages",
        4.0,
        why="two to find the receivers, two for the call, two for its result: each is acknowledged",
    ),
    Claim(
        "MELON table 3.2",
        {"paradigm": "tuples", "size": 1_000},
        "messages",
        4.0,
        why=ONE_READ,
    ),
]
OPENS, SENDS, ENDS = 10.0, 15.0, 19.0


def run(settings: Settings) -> lab.Result:
    if settings.duration <= ENDS:
        raise BadArgument("duration", f"more than {ENDS}", settings.duration)

    async def sender(host):
        channel = open_channel(settings["paradigm"], host, settings["poll"])
        await asyncio.sleep(SENDS - lab.now())
        await channel.send(("message", host.name, 0, lab.now(), bytes(settings["size"])))
        await asyncio.Event().wait()

    async def receiver(host):
        channel = open_channel(settings["paradigm"], host, settings["poll"])
        await asyncio.sleep(OPENS - lab.now())
        await channel.receive(lambda message: lab.record("received", number=message[2]), "message")

    async def scene(world):
        await asyncio.sleep(ENDS)
        for frame in world.network.frames:
            if frame.time >= OPENS:
                phase = "message" if frame.time >= SENDS else "opening"
                by = "sender" if frame.source == world.members[0].name else "receiver"
                lab.record(phase, by=by, kind=frame.kind, bytes=frame.bytes, at=frame.time)

    world = settings.world()
    programs = {world.names[0]: sender, world.names[1]: receiver}
    return world.run(programs, seconds=settings.duration, scene=scene)


def figures(result: lab.Result) -> dict[str, float]:
    opening = [row for row in result.rows if row["name"] == "opening"]
    rows = [row for row in result.rows if row["name"] == "message"]
    return {
        "delivered": result.count("received"),
        "opening_messages": len(opening),
        "opening_bytes": sum(row["bytes"] for row in opening),
        "messages": len(rows),
        "messages_of_sender": sum(row["by"] == "sender" for row in rows),
        "messages_of_receiver": sum(row["by"] == "receiver" for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
    }
