"""10 to 500 hosts: time to engage, messages a host and second, and what an operation costs

Every host knows its neighbours by their beacons; each writes one entry, and counts whom it sees.
`density` is how many neighbours a host has on average. All hosts start at once, and stand still for
`pause` seconds: a host needs `engage_seconds` until it is connected with the last of those that it
hears. With `--set folder=DIR` the hosts are durable; `bytes_at_rest` are those of the files of a
host.
"""

import asyncio
from math import nan
from pathlib import Path
from statistics import mean, median

from tupelo import HostPresence, lab
from tupelo.errors import NotAllAnswered
from tupelo.lab.experiment import Settings

DEFAULTS = {"hosts": 50, "duration": 30.0, "mobility": "waypoint", "range": 100.0, "density": 6.0}
SWEEP = {"hosts": [10, 20, 50, 100, 200, 500]}


def run(settings: Settings) -> lab.Result:
    async def use(host):
        await asyncio.gather(watch(host), look(host))

    async def watch(host):
        async with await host.presence.subscribe(HostPresence(state="engaged")) as engaged:
            async for notice in engaged:
                if lab.now() < settings.pause:
                    lab.record("engaged", peer=notice.entry.name)

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
    result = settings.with_changes({"area": area}).world().run(use, seconds=settings.duration)
    if settings.folder is not None:
        files = (file for file in Path(settings.folder).rglob("*") if file.is_file())
        result.parameters["bytes_at_rest"] = sum(file.stat().st_size for file in files)
    return result


def figures(result: lab.Result) -> dict[str, float]:
    hosts, seconds = result.parameters["hosts"], result.seconds
    looks = [row for row in result.rows if row["name"] == "looked"]
    last = {row["host"]: row["seen"] for row in looks}
    engaged: dict[str, dict[str, float]] = {}
    for row in result.rows:
        if row["name"] == "engaged" and row["peer"] != row["host"]:
            engaged.setdefault(row["host"], {}).setdefault(row["peer"], row["time"])
    return {
        "engage_seconds": median(max(one.values()) for one in engaged.values()) if engaged else nan,
        "messages_a_host_and_second": result.messages / hosts / seconds,
        "bytes_a_host_and_second": result.bytes / hosts / seconds,
        "bytes_at_rest": result.parameters.get("bytes_at_rest", nan) / hosts,
        "seen": mean(last.values()) if last else 0.0,
        "latency": mean(row["latency"] for row in looks) if looks else nan,
        "missed": result.count("missed"),
        "real_seconds": result.real_seconds,
    }
