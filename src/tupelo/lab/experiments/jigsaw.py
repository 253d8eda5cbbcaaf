"""ROAMINGJIGSAW by scripted players, who walk, part and meet again (LIME, 5.1)

The players are `tupelo.apps.jigsaw`, as in the console. The first one lays out a puzzle of
`columns` by `rows` pieces, and each player makes a move every `think` seconds on average: selects a
piece of another player, or assembles pieces of its own. Who walks out of range goes on with the
pieces that it has. The paper describes the game and measures nothing.

`lost` and `doubled` are pieces that no player, or more than one, has in the end; `beeps` are moves
that failed, because another player was faster or was away.
"""

import asyncio
import json
from collections import Counter

from tupelo import lab
from tupelo.apps.jigsaw import Player
from tupelo.lab.experiment import Claim, Settings
from tupelo.models import lime

DEFAULTS = {
    "hosts": 4,
    "duration": 300.0,
    "mobility": "waypoint",
    "area": 200.0,
    "range": 80.0,
    "pause": 10.0,
    "speed": 2.0,
    "columns": 6,
    "rows": 5,
    "think": 5.0,
    "embedded": True,
}
SWEEP = {"range": [60.0, 80.0, 120.0]}
PAPER = [
    Claim("LIME 5.1", {}, "lost", 0.0, "a piece is a tuple, and has one owner"),
    Claim("LIME 5.1", {}, "doubled", 0.0, "a piece is a tuple, and has one owner"),
]
END_SECONDS = 5.0
"""Nobody moves at the end, so that what was begun is done."""


def run(settings: Settings) -> lab.Result:
    async def play(host):
        player = await Player.join(await lime.Host(host).start())
        rng = lab.random()
        if host.name == "h1":
            await player.new_puzzle(settings["columns"], settings["rows"])
        whole = False
        while (left := settings.duration - END_SECONDS - lab.now()) > 0:
            await asyncio.sleep(min(left, rng.expovariate(1 / settings["think"])))
            for puzzle in player.tray.puzzles:
                if whole:
                    break
                before = len(player.own(puzzle))
                moved = await player.move(puzzle, rng)
                lab.record("moved" if moved else "waited", had=before)
                whole = any(piece.is_whole for piece in player.tray.pieces(puzzle))
                if whole:
                    lab.record("whole")
        await asyncio.sleep(settings.duration - 1 - lab.now())
        mine = [piece for puzzle in player.tray.puzzles for piece in player.own(puzzle)]
        cells = [cell for piece in mine for cell in piece.cells]
        lab.record("has", cells=json.dumps(sorted(cells)))
        await asyncio.Event().wait()

    result = settings.world().run(play, seconds=settings.duration)
    result.parameters["pieces"] = settings["columns"] * settings["rows"]
    return result


def figures(result: lab.Result) -> dict[str, float]:
    pieces = result.parameters["pieces"]
    owned = Counter(cell for cells in result.values("has", "cells") for cell in json.loads(cells))
    whole = [row["time"] for row in result.rows if row["name"] == "whole"]
    return {
        "lost": pieces - len(owned),
        "doubled": sum(count - 1 for count in owned.values()),
        "moves": result.count("moved"),
        "beeps": result.count("waited"),
        "trays_whole": len(whole),
        "first_whole": min(whole, default=float("nan")),
        "last_whole": max(whole, default=float("nan")),
        "messages": result.messages,
    }
