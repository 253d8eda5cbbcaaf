"""What a reader tells of the messages that it has read, by how many there are (MELON, 5.7.1)

`h1` writes `messages` messages, of which a share `mine`, drawn at random, matches the template of
the reader `h2`. It reads them, then one more, and one more: `request` is the size of the messages
with which it asks for that one. A third host, which knows nothing, joins then: what the reader
tells it of all that it has read is `record`, in bytes, and `bits` is that for each read message.
The speed of the record is measured by `make bench ARGS=tracking`.
"""

import asyncio

from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.experiment import Claim, Settings
from tupelo.models.melon import Melon

DEFAULTS = {
    "hosts": 3,
    "duration": 60.0,
    "network": "wired",
    "heartbeat": 1_000.0,
    "messages": 10_000,
    "mine": 1.0,
}
SWEEP = {"mine": [1.0, 0.5], "messages": [1_000, 10_000, 100_000]}
RANGES = "consecutive numbers are one range; there the record is sent with each request"
PAPER = [
    Claim("MELON 5.3", {"mine": 1.0}, "bits", 1.6, "above 1,000 messages", why=RANGES),
    Claim("MELON 5.3", {"messages": 1_000_000, "mine": 1.0}, "record", 192_000.0, "192 KB"),
]
KIND = ("mine", int)


def run(settings: Settings) -> lab.Result:
    if settings.duration < 45:
        raise BadArgument("duration", "45 or more, for all steps", settings.duration)

    async def write(host):
        melon, rng = Melon(host), lab.random()
        for number in range(settings["messages"]):
            await melon.write(("mine" if rng.random() < settings["mine"] else "other", number))
        await asyncio.sleep(30 - lab.now())
        for number in (1, 2):
            await melon.write(("mine", -number))
            await asyncio.sleep(2)
        await asyncio.Event().wait()

    async def read(host):
        melon = Melon(host)
        await asyncio.sleep(20 - lab.now())
        lab.record("read", count=len(await melon.read_all(KIND)))
        await asyncio.sleep(31 - lab.now())
        await melon.read(KIND)
        await asyncio.sleep(2)
        before = lab.sent(by="h2").bytes
        await melon.read(KIND)
        lab.record("request", bytes=lab.sent(by="h2").bytes - before)
        await asyncio.sleep(41 - lab.now())
        before = lab.sent(by="h2").bytes
        await melon.read_all(KIND, wait=0)
        lab.record("record", bytes=lab.sent(by="h2").bytes - before)

    async def open_only(host):
        Melon(host)
        await asyncio.Event().wait()

    async def scene(world):
        await world["h3"].crash()
        await asyncio.sleep(40 - lab.now())
        await world["h3"].start()

    world = settings.world()
    return world.run(
        {"h1": write, "h2": read, "h3": open_only}, seconds=settings.duration, scene=scene
    )


def figures(result: lab.Result) -> dict[str, float]:
    (read,), (request,), (record,) = (
        result.values(name, key)
        for name, key in (("read", "count"), ("request", "bytes"), ("record", "bytes"))
    )
    return {"read": read, "request": request, "record": record, "bits": 8 * record / read}
