"""REDROVER by scripted players: how true the maps are that they see (LIME, 5.2)

Two teams walk about. The position of a player is a tuple, which a weak reaction shows on the maps
of all players in range; whom LimeSystem reports as departed is a ghost, at the last known position.
`finder` finds the flag after half of the time, and its team is told. The paper describes the game
and measures nothing.

Every second each player compares its map with the truth: `ghosts_right` is the share of the other
players who are shown as ghosts if and only if no chain of hosts in range leads to them; `error` is
how far the shown position is from the true one, in metres, of those who are no ghosts.
"""

import asyncio
from math import dist
from statistics import median
from typing import Any

from tupelo import lab
from tupelo.lab.experiment import Claim, Settings, Share
from tupelo.models import lime
from tupelo.models.lime import ONCE, ONCE_PER_TUPLE, LimeTupleSpace, UbiquitousReaction

DEFAULTS = {
    "hosts": 6,
    "duration": 240.0,
    "mobility": "waypoint",
    "area": 200.0,
    "range": 90.0,
    "speed": 2.0,
    "pause": 10.0,
    "finder": "h1",
    "embedded": True,
}
SWEEP = {"range": [60.0, 90.0, 150.0]}
PAPER = [
    Claim("LIME 5.2", {}, "told", 1.0, "the team in range is told of the flag, and nobody else"),
    Claim("LIME 5.2", {}, "opponents_told", 0.0),
]


class Device:
    """The device of one player: the map, and what the team knows."""

    def __init__(self):
        self.seen = {}  # position by name
        self.ghosts = set()

    async def join(self, host, team):
        runtime = await lime.Host(host).start()
        self.agent = await runtime.agent(host.name)
        self.game, self.team = (LimeTupleSpace(name, self.agent) for name in ("game", team))
        await self.game.set_shared(True)
        await self.team.set_shared(True)
        system = lime.LimeSystemTupleSpace(self.agent)
        place, flag = ("at", str, int, int), ("flag", str)
        await self.game.add_weak_reaction(UbiquitousReaction(place, self.moved, ONCE_PER_TUPLE))
        await self.team.add_weak_reaction(UbiquitousReaction(flag, self.found, ONCE))
        await system.add_weak_reaction(
            UbiquitousReaction(("departed host", str, str), self.departed, ONCE_PER_TUPLE),
            UbiquitousReaction(("host", str, str), self.arrived, ONCE_PER_TUPLE),
        )

    def moved(self, event):
        _, name, x, y = event.tuple
        self.seen[name] = (x, y)

    def found(self, event):
        lab.record("told", of=event.tuple[1])

    def departed(self, event):
        self.ghosts.add(event.tuple[2])

    def arrived(self, event):
        self.ghosts.discard(event.tuple[2])


def run(settings: Settings) -> lab.Result:
    world = settings.world()
    teams = {name: ("red", "blue")[number % 2] for number, name in enumerate(world.names)}

    async def play(host):
        lab.record("plays", team=teams[host.name])
        device = Device()
        await device.join(host, teams[host.name])
        place, is_found = None, False
        while True:
            here = tuple(map(round, lab.position()))
            if here != place:
                await device.game.inp(("at", host.name, int, int), current=device.agent.location)
                await device.game.out(("at", host.name, *here))
                place = here
            for other, shown in device.seen.items():
                if other != host.name:
                    x, y = shown
                    ghost = int(other in device.ghosts)
                    lab.record("sees", other=other, ghost=ghost, x=x, y=y)
            if (
                host.name == settings["finder"]
                and not is_found
                and lab.now() > settings.duration / 2
            ):
                is_found = True
                lab.record("found")
                await device.team.out(("flag", host.name))
            await asyncio.sleep(1)

    async def watch(world):
        while True:
            await asyncio.sleep(0.5)
            for group in groups(world.network):
                for name in group:
                    x, y = world.network.position(name)
                    lab.record("is", player=name, group=" ".join(sorted(group)), x=x, y=y)

    return world.run(play, seconds=settings.duration, scene=watch)


def groups(network):
    """The hosts that are connected, directly or through others."""
    left = dict.fromkeys(network.names)
    while left:
        group = [left.popitem()[0]]
        for name in group:
            for near in network.neighbours(name):
                if near in left:
                    del left[near]
                    group.append(near)
        yield group


def figures(result: lab.Result) -> dict[str, float]:
    truth: dict[str, dict[str, Any]] = {}
    right, errors, told, found = [], [], {}, {}
    for row in result.rows:
        if row["name"] == "is":
            truth[row["player"]] = row
        elif row["name"] == "sees" and row["host"] in truth:
            other = truth[row["other"]]
            is_away = row["host"] not in other["group"].split()
            right.append(bool(row["ghost"]) == is_away)
            if not row["ghost"]:
                errors.append(dist((row["x"], row["y"]), (other["x"], other["y"])))
        elif row["name"] == "found":
            found = row | {"group": truth[row["host"]]["group"].split()}
        elif row["name"] == "told":
            told[row["host"]] = row["time"]
    teams = {row["host"]: row["team"] for row in result.rows if row["name"] == "plays"}
    team = {name for name in teams if found and teams[name] == teams[found["host"]]}
    near = team.intersection(found["group"]) if found else set()
    return {
        "ghosts_right": Share(sum(right), len(right)),
        "error_median": median(errors) if errors else float("nan"),
        "told": Share(len(near.intersection(told)), len(near)),
        "told_after": median(told[one] - found["time"] for one in told) if told else float("nan"),
        "opponents_told": len(set(told) - team),
        "messages": result.messages,
    }
