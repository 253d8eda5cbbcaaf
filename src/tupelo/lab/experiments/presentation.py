"""A whiteboard on which one host draws and six look on, under AODV and DSR (MELON, 3.2.3.3-4)

`scenario` is

- `single`: all hosts are in one hop of each other;
- `multihop`: they stand in a grid, in reach of their neighbours only;
- `mobile`: four further hosts stand so that there is always a route, as in the dissertation; the
  others walk. There the area is 1,500 m by 1,500 m with a range of 50 m, which four hosts cannot
  cover; here it is 200 m by 200 m with a range of 100 m, in which they do.

As there, 250 updates go out over 10 minutes. The sizes are those of the experiment `whiteboard`.
"""

from dataclasses import replace

from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.experiment import Claim, Settings
from tupelo.lab.experiments import whiteboard

DEFAULTS = whiteboard.DEFAULTS | {"drawers": 1, "scenario": "single", "area": 200.0}
SWEEP = {
    "paradigm": ["pubsub", "rpc", "tuples", "melon"],
    "scenario": ["single", "multihop", "mobile"],
    "routing": ["dsr", "aodv"],
}
POLLS = "hosts look once a second (poll), and one read gets all new tuples"
PAPER = [
    *(
        Claim(
            "MELON 3.16 and 3.17",
            {"scenario": "single", "paradigm": one},
            "delivered",
            1.0,
            "nearly",
        )
        for one in ("pubsub", "rpc", "tuples")
    ),
    Claim(
        "MELON 3.16",
        {"scenario": "multihop", "routing": "dsr"},
        "delivered",
        1.0,
        "nearly, all paradigms",
    ),
    Claim(
        "MELON 3.16",
        {"scenario": "mobile", "routing": "dsr", "paradigm": "rpc"},
        "delivered",
        0.25,
        why="links repeat what is lost until a route is found, and a call waits 30 s; the area is"
        " smaller than in the paper, where four fixed hosts cannot cover it",
    ),
    Claim("MELON 3.17", {"scenario": "mobile", "paradigm": "tuples"}, "delivered", 1.0),
    Claim(
        "MELON 3.19",
        {"routing": "aodv", "paradigm": "tuples"},
        "latency_median",
        8.486,
        "the highest median",
        "max",
        POLLS,
    ),
    Claim(
        "MELON 3.18",
        {"routing": "dsr", "paradigm": "tuples"},
        "latency_median",
        3.357,
        "the highest median",
        "max",
        POLLS,
    ),
    Claim("MELON 3.18 and 3.19", {"paradigm": "pubsub"}, "latency_median", 0.4, "", "<"),
    Claim("MELON 3.18 and 3.19", {"paradigm": "rpc"}, "latency_median", 0.4, "", "<"),
]
RELAYS = ((0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75))
"""Where the further hosts of the mobile scenario stand, in shares of the area."""


def run(settings: Settings) -> lab.Result:
    scenario = settings["scenario"]
    if scenario == "mobile":
        return _mobile(settings)
    spacings = {"single": settings.range / 5, "multihop": 0.9 * settings.range}
    if scenario not in spacings:
        raise BadArgument("scenario", "single, multihop or mobile", scenario)
    return whiteboard.run(
        settings.with_changes({"mobility": "still", "spacing": spacings[scenario]})
    )


def _mobile(settings: Settings) -> lab.Result:
    side, relays = settings.area, ("relay1", "relay2", "relay3", "relay4")
    walk = lab.RandomWaypoint(
        area=(side, side),
        speed=(0.1, settings.speed),
        pause=settings.pause,
        fixed=[(x * side, y * side) for x, y in RELAYS],
    )
    names = [*relays, *(f"h{number + 1}" for number in range(settings.hosts))]
    radio = settings.world().network
    if not isinstance(radio, lab.Radio):
        raise BadArgument("network", "radio in the mobile scenario", settings.network)
    radio = replace(radio, mobility=walk)
    return whiteboard.run(settings, settings.world(hosts=names, network=radio), relays)


figures = whiteboard.figures
