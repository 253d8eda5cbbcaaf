"""Total views of an Event Heap under a partition: clones, lost events, time to one order

Each host puts an event every `every` seconds through one view with a total order. From 20 seconds
on the hosts are in two groups for `apart` seconds; the group that lacks the owner of the view
clones it after `patience`. When they meet again, one order remains. The paper (Storz, Friday and
Davies) describes this and measures nothing.

`to_one_order` is how many seconds after the meeting all hosts have the same order of all events
until then; `lost` are events that were put, with success, and are not there in the end; `refused`
are those that got no place in time, which the program is told; `moved` is the share of the events
that a reader got before another one that is before them in the end.
"""

import asyncio
import json
from zlib import crc32

from tupelo import lab
from tupelo.errors import TokenAway
from tupelo.lab.experiment import Claim, Settings, Share
from tupelo.models.event_heap import EventHeap

DEFAULTS = {
    "hosts": 4,
    "duration": 80.0,
    "network": "wired",
    "apart": 20.0,
    "patience": 3.0,
    "every": 1.0,
    "embedded": True,
}
SWEEP = {"apart": [1.0, 5.0, 20.0], "hosts": [2, 4, 8]}
PAPER = [
    Claim("Event Heap", {}, "lost", 0.0, "it may be used while disconnected"),
    Claim("Event Heap", {}, "agreed", 1.0, "a total order is the same for all users of the view"),
]
BEGIN, QUIET = 20.0, 20.0
"""When the hosts part, and how long nobody puts at the end."""
VIEW, STROKE = ("view", str), ("stroke", str, int, float)


def run(settings: Settings) -> lab.Result:
    world = settings.world()
    meeting = BEGIN + settings["apart"]
    half = len(world.names) // 2

    async def use(host):
        heap = await EventHeap(host, "room", patience=settings["patience"]).__aenter__()
        if host.name == world.names[0]:
            view = await heap.view(on_clone=told)
            await heap.put(("view", view.id))
        else:
            _, id = await heap.wait(VIEW)
            view = await heap.view(id, wait=10, on_clone=told)
        await asyncio.gather(put(host, view), read(view), look(view))

    def told(clone):
        lab.record("cloned")

    async def put(host, view):
        rng = lab.random()
        for number in range(100_000):
            await asyncio.sleep(rng.uniform(0.5, 1.5) * settings["every"])
            if lab.now() > settings.duration - QUIET:
                break
            try:
                await view.put(("stroke", host.name, number, lab.now()), wait=10)
            except TokenAway:  # This host does not get the view in time.
                lab.record("refused", number=number)
            else:
                lab.record("put", number=number)

    async def read(view):
        while True:
            _, author, number, _ = await view.wait(STROKE)
            lab.record("got", author=author, number=number)

    async def look(view):
        while True:
            await asyncio.sleep(0.02 if 0 <= lab.now() - meeting < 2 else 0.5)
            order = [stroke[1:3] for stroke in await view.replay(STROKE) if stroke[3] < meeting]
            lab.record("order", digest=crc32(json.dumps(order).encode()))
            if lab.now() > settings.duration - 2:
                everything = [stroke[1:3] for stroke in await view.replay(STROKE)]
                lab.record("end", order=json.dumps(everything))
                break

    async def part(running):
        await asyncio.sleep(BEGIN)
        running.network.partition(world.names[:half], world.names[half:])
        await asyncio.sleep(settings["apart"])
        running.network.heal()

    result = world.run(use, seconds=settings.duration, scene=part)
    result.parameters["meeting"] = meeting
    return result


def figures(result: lab.Result) -> dict[str, float]:
    hosts, meeting = result.parameters["hosts"], result.parameters["meeting"]
    ends = [json.loads(order) for order in result.values("end", "order")]
    last = {tuple(stroke): place for place, stroke in enumerate(ends[0])} if ends else {}
    put = {(row["host"], row["number"]) for row in result.rows if row["name"] == "put"}

    one_since, digests = None, {}  # since when all hosts have one order; that of each host
    for row in result.rows:
        if row["name"] == "order":
            digests[row["host"]] = row["digest"]
            if row["time"] > meeting:
                is_one = len(digests) == hosts and len(set(digests.values())) == 1
                one_since = (one_since or row["time"]) if is_one else None

    furthest: dict[str, int] = {}
    got = moved = 0
    for row in result.rows:
        if row["name"] == "got" and (row["author"], row["number"]) in last:
            place = last[row["author"], row["number"]]
            got += 1
            moved += place < furthest.get(row["host"], -1)
            furthest[row["host"]] = max(place, furthest.get(row["host"], -1))
    return {
        "agreed": Share(len(ends) == hosts and all(end == ends[0] for end in ends), 1),
        "to_one_order": float("nan") if one_since is None else one_since - meeting,
        "clones": result.count("cloned") / hosts,
        "put": len(put),
        "lost": len(put - set(last)),
        "refused": result.count("refused"),
        "moved": Share(moved, got),
        "messages": result.messages,
    }
