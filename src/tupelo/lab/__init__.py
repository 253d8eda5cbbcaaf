"""Virtual time, faulty links, and checks of what happened there: a seed decides, and it replays.

The public part is a `World` of hosts for experiments, see `tupelo.lab.world`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tupelo.lab.loop import LabError
    from tupelo.lab.mobility import Mobility, RandomWaypoint, Still, Trace
    from tupelo.lab.ns3 import Ns3
    from tupelo.lab.radio import Radio, two_ray_range
    from tupelo.lab.world import Result, Wired, World, now, position, random, record, sent

__all__ = [
    "LabError",
    "Mobility",
    "Ns3",
    "Radio",
    "RandomWaypoint",
    "Result",
    "Still",
    "Trace",
    "Wired",
    "World",
    "now",
    "position",
    "random",
    "record",
    "sent",
    "two_ray_range",
]

_MODULES = {
    "LabError": "loop",
    "Mobility": "mobility",
    "Ns3": "ns3",
    "Radio": "radio",
    "RandomWaypoint": "mobility",
    "Still": "mobility",
    "Trace": "mobility",
    "two_ray_range": "radio",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'world')}"), name)
