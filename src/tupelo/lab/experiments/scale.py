"""10 to 500 hosts: messages a host and second, time to engage, and what an operation costs

Every host knows its neighbours by their beacons; each writes one entry, and counts whom it sees.
`density` is how many neighbours a host has on average.
"""

import asyncio
from statistics import mean

from tupelo import lab
from tupelo.errors import NotAllAnswered
from tupelo.lab.experiment import Settings

DEFAULTS = {"hosts": 50, "duration": 30.0, "mobility": "waypoint", "range": 100.0, "density": 6.0}
SWEEP = {"hosts": [10, 20, 50, 100, 200, 500]}


def run(settings: Settings) -> lab.Result:
    async def look(host):
        space = host.space("here")
        await space.write((host.name,))
        while True:
            await asyncio.sleep(lab.random().uniform(4, 6))
            began = lab.now()
            try:
                seen = await space.count((str,))
            except NotAllAnswered:  # A host went out of range meanwhile.
                lab.record("missed")
                continue
            lab.record("looked", seen=seen, latency=lab.now() - began)

    # The area in which the hosts have so many neighbours on average.
    circle = 3.14159 * settings.range**2
    area = (circle * settings.hosts / settings["density"]) ** 0.5
    return settings.with_changes({"area": area}).world().run(look, seconds=settings.duration)


def figures(result: lab.Result) -> dict[str, float]:
    hosts, seconds = result.parameters["hosts"], result.seconds
    looks = [row for row in result.rows if row["name"] == "looked"]
    last = {row["host"]: row["seen"] for row in looks}
    return {
        "messages_a_host_and_second": result.messages / hosts / seconds,
        "bytes_a_host_and_second": result.bytes / hosts / seconds,
        "seen": mean(last.values()) if last else 0.0,
        "latency": mean(row["latency"] for row in looks) if looks else float("nan"),
        "missed": result.count("missed"),
        "real_seconds": result.real_seconds,
    }
