"""Bytes and messages that a message costs, by payload and paradigm (MELON, 3.2.3.1 and 7.1.2)

One sender and one receiver, side by side. What the hosts exchange without a message (heartbeats,
membership) is measured in a first phase of the same length, and subtracted.
"""

import asyncio

from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.experiment import Claim, Settings, Share
from tupelo.lab.paradigms import open_channel

DEFAULTS = {
    "hosts": 2,
    "duration": 130.0,
    "network": "wired",
    "paradigm": "melon",
    "messages": 100,
    "size": 1_000,
    "poll": 0.5,
}
SWEEP = {
    "paradigm": ["pubsub", "rpc", "tuples", "melon"],
    "size": [1, 10, 100, 1_000, 10_000, 100_000],
}
FRAMES = "messages are MessagePack, in few bytes"
PAPER = [
    Claim("MELON table 3.2", {"paradigm": "pubsub", "size": 1_000}, "overhead", 357.0, why=FRAMES),
    Claim("MELON table 3.2", {"paradigm": "rpc", "size": 1_000}, "overhead", 571.0, why=FRAMES),
    Claim(
        "MELON table 3.2",
        {"paradigm": "tuples", "size": 1_000},
        "overhead",
        1_915.0,
        why="here the receiver reads all tuples twice a second (poll) until the end; the table, and"
        " the experiment sequence, count one read of one tuple",
    ),
]
BEGIN_SECONDS, PHASE_SECONDS = 20.0, 50.0


def run(settings: Settings) -> lab.Result:
    if settings.duration < BEGIN_SECONDS + 2 * PHASE_SECONDS + 1:
        raise BadArgument("duration", "121 or more, for the two phases", settings.duration)

    async def scene(_):
        await asyncio.sleep(BEGIN_SECONDS)
        for phase in ("idle", "busy"):
            before = lab.sent()
            await asyncio.sleep(PHASE_SECONDS)
            after = lab.sent()
            spent = {"bytes": after.bytes - before.bytes, "frames": after.frames - before.frames}
            lab.record(phase, **spent)

    async def sender(host):
        channel = open_channel(settings["paradigm"], host, settings["poll"])
        await asyncio.sleep(BEGIN_SECONDS + 1 + PHASE_SECONDS - lab.now())
        for number in range(settings["messages"]):
            await channel.send(("message", host.name, number, lab.now(), bytes(settings["size"])))
            await asyncio.sleep(0.9 * PHASE_SECONDS / settings["messages"])

    async def receiver(host):
        channel = open_channel(settings["paradigm"], host, settings["poll"])

        def received(message):
            lab.record("received", number=message[2])

        await channel.receive(received, "message")

    world = settings.world()
    programs = {world.names[0]: sender, "*": receiver}
    result = world.run(programs, seconds=settings.duration, scene=scene)
    result.parameters |= {"size": settings["size"], "sent": settings["messages"]}
    return result


def figures(result: lab.Result) -> dict[str, float]:
    phases = {row["name"]: row for row in result.rows if row["name"] in ("idle", "busy")}
    idle, busy = phases["idle"], phases["busy"]
    sent = result.parameters["sent"]
    cost = (busy["bytes"] - idle["bytes"]) / sent
    return {
        "delivered": Share(result.count("received"), sent),
        "bytes": cost,
        "overhead": cost - result.parameters["size"],
        "messages": (busy["frames"] - idle["frames"]) / sent,
    }
