"""Where the hosts of a world are, and how they move: on straight lines between waypoints.

A `Mobility` gives each host a `Course`. `Still` hosts stay where they are; `RandomWaypoint` hosts
walk to a random point, pause, and walk on; a `Trace` is read from a file of ns-2 or BonnMotion.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from math import ceil, dist, inf, isfinite, sqrt
from pathlib import Path
from random import Random
from typing import TypeAlias

from tupelo.errors import BadArgument

Point: TypeAlias = tuple[float, float]
"""Metres from the west, and from the south."""
Waypoint: TypeAlias = tuple[float, Point]
"""At this second the host is at this point."""


class Course:
    """The way of one host. It walks straight from waypoint to waypoint, and stays at the last.

    Waypoints are drawn when they are needed, so that there may be infinitely many.
    """

    def __init__(self, waypoints: Iterator[Waypoint]) -> None:
        self._coming = waypoints
        self._times: list[float] = []
        self._points: list[Point] = []
        self._all_drawn = False

    def at(self, time: float) -> Point:
        """The position at this second."""
        while not self._all_drawn and (not self._times or self._times[-1] <= time):
            drawn = next(self._coming, None)
            if drawn is None:
                self._all_drawn = True
            else:
                self._times.append(drawn[0])
                self._points.append(drawn[1])
        after = bisect_right(self._times, time)
        if after == 0:
            return self._points[0]
        if after == len(self._times):
            return self._points[-1]
        began, ends = self._times[after - 1], self._times[after]
        (x, y), (to_x, to_y) = self._points[after - 1], self._points[after]
        share = (time - began) / (ends - began)
        return x + share * (to_x - x), y + share * (to_y - y)


class Mobility(ABC):
    """How hosts move."""

    @abstractmethod
    def course(self, name: str, number: int, hosts: int, seed: int) -> Course:
        """The course of the host of this name, which is the `number`-th (from 0) of `hosts`."""


@dataclass(frozen=True)
class Still(Mobility):
    """Hosts that do not move. `positions` are those of the hosts in their order, or by name.
    Without them the hosts stand in a square grid, `spacing` metres apart; with `line=True` in a
    row."""

    positions: Sequence[Point] | Mapping[str, Point] | None = None
    spacing: float = 100.0
    line: bool = False

    def __post_init__(self) -> None:
        _check_positive("spacing", self.spacing)

    def course(self, name: str, number: int, hosts: int, seed: int) -> Course:
        return Course(iter([(0.0, self._position(name, number, hosts))]))

    def _position(self, name: str, number: int, hosts: int) -> Point:
        if self.positions is None:
            width = hosts if self.line else ceil(sqrt(hosts))
            return number % width * self.spacing, number // width * self.spacing
        try:
            if isinstance(self.positions, Mapping):
                return self.positions[name]
            return self.positions[number]
        except LookupError:
            raise BadArgument("positions", f"a position for {name!r} too", self.positions) from None


@dataclass(frozen=True)
class RandomWaypoint(Mobility):
    """Each host walks to a random point of the area, at a random speed, pauses there, and walks to
    the next. `area` is in metres, `speed` in metres a second, `pause` in seconds.

    The slowest speed must be above 0: with 0 the hosts come to a halt in the long run. `fixed`
    hosts stand still at these points: the first hosts, in their order.
    """

    area: tuple[float, float] = (1_000.0, 1_000.0)
    speed: tuple[float, float] = (0.5, 1.5)
    pause: float = 30.0
    fixed: Sequence[Point] = ()

    def __post_init__(self) -> None:
        for name, pair, wanted in (
            ("area", self.area, "a pair: the width and the height"),
            ("speed", self.speed, "a pair: the slowest and the fastest"),
        ):
            if not isinstance(pair, Sequence) or len(pair) != 2:
                raise BadArgument(name, wanted, pair)
        for side in self.area:
            _check_positive("area", side)
        slowest, fastest = self.speed
        _check_positive("speed", slowest)
        if not slowest <= fastest < inf:
            raise BadArgument("speed", "the slowest and the fastest", self.speed)
        if not 0 <= self.pause < inf:
            raise BadArgument("pause", "a number of seconds", self.pause)

    def course(self, name: str, number: int, hosts: int, seed: int) -> Course:
        if number < len(self.fixed):
            return Course(iter([(0.0, self.fixed[number])]))
        return Course(self._walk(Random(f"{seed} {name} walks")))

    def _walk(self, rng: Random) -> Iterator[Waypoint]:
        def anywhere() -> Point:
            return rng.uniform(0, self.area[0]), rng.uniform(0, self.area[1])

        time, here = 0.0, anywhere()
        while True:
            yield time, here
            if self.pause:
                time += self.pause
                yield time, here
            there = anywhere()
            time += dist(here, there) / rng.uniform(*self.speed)
            here = there


@dataclass(frozen=True)
class Trace(Mobility):
    """Courses from a file: the movements of ns-2 (`setdest`), or of BonnMotion (one line a host,
    with time, x and y again and again). The n-th node of the file is the n-th host."""

    path: str | Path

    def course(self, name: str, number: int, hosts: int, seed: int) -> Course:
        try:
            return Course(iter(self._nodes[number]))
        except LookupError:
            wanted = f"a file with {hosts} nodes; {self.path} has {len(self._nodes)}"
            raise BadArgument("path", wanted) from None

    @cached_property
    def _nodes(self) -> dict[int, list[Waypoint]]:
        try:
            text = Path(self.path).read_text()
        except OSError as error:
            raise BadArgument("path", f"a file that can be read ({error})") from error
        try:
            nodes = _read_ns2(text) if "$node_" in text else _read_bonnmotion(text)
        except ValueError as error:
            wanted = f"a trace of ns-2 or BonnMotion ({error})"
            raise BadArgument("path", wanted, str(self.path)) from error
        return nodes


_NS2_START = re.compile(r"\$node_\((\d+)\)\s+set\s+([XY])_\s+(\S+)")
_NS2_WALK = re.compile(
    r'\$ns_\s+at\s+(\S+)\s+"\$node_\((\d+)\)\s+setdest\s+(\S+)\s+(\S+)\s+(\S+?)"'
)


def _read_ns2(text: str) -> dict[int, list[Waypoint]]:
    """`setdest` at a moment changes the direction at once, wherever the node is by then."""
    starts: dict[int, dict[str, float]] = {}
    walks: dict[int, list[tuple[float, Point, float]]] = {}
    for line in text.splitlines():
        line = line.strip()
        if found := _NS2_START.fullmatch(line):
            starts.setdefault(int(found[1]), {})[found[2]] = _number(found[3])
        elif found := _NS2_WALK.fullmatch(line):
            time, node, x, y, speed = found.groups()
            walk = _number(time), (_number(x), _number(y)), _number(speed)
            walks.setdefault(int(node), []).append(walk)
        elif line and not line.startswith(("#", "$god_")) and "set Z_" not in line:
            raise ValueError(f"not understood: {line!r}")
    nodes: dict[int, list[Waypoint]] = {}
    for node, start in sorted(starts.items()):
        if len(start) < 2:
            raise ValueError(f"node {node} has no start")
        points: list[Waypoint] = [(0.0, (start["X"], start["Y"]))]
        for time, there, speed in sorted(walks.pop(node, [])):
            here = Course(iter(points)).at(time)
            points = [point for point in points if point[0] < time]
            points.append((time, here))
            if speed > 0 and here != there:
                points.append((time + dist(here, there) / speed, there))
        nodes[node] = points
    if walks:
        raise ValueError(f"node {min(walks)} has no start")
    return nodes


def _read_bonnmotion(text: str) -> dict[int, list[Waypoint]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    nodes: dict[int, list[Waypoint]] = {}
    for node, line in zip(count(), lines, strict=False):
        numbers = list(map(_number, line.split()))
        if not numbers or len(numbers) % 3:
            raise ValueError(f"line {node + 1} is not a list of time, x and y")
        points = [
            (numbers[at], (numbers[at + 1], numbers[at + 2])) for at in range(0, len(numbers), 3)
        ]
        if any(one[0] >= two[0] for one, two in pairwise(points)):
            raise ValueError(f"the times of line {node + 1} do not rise")
        nodes[node] = points
    if not nodes:
        raise ValueError("it has no node")
    return nodes


def _number(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"not a number: {text}")
    return number


def _check_positive(argument: str, value: float) -> None:
    if not 0 < value < inf:
        raise BadArgument(argument, "a positive number", value)
