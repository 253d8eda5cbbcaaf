"""Courses of hosts: still, random waypoints, and traces of ns-2 and BonnMotion."""

from __future__ import annotations

from itertools import pairwise
from math import dist
from pathlib import Path

import pytest

from tupelo import lab
from tupelo.errors import BadArgument


def test_hosts_that_stand_still_form_a_grid_or_a_line() -> None:
    grid = [lab.Still(spacing=10).course(str(n), n, 5, 1).at(99) for n in range(5)]
    assert grid == [(0, 0), (10, 0), (20, 0), (0, 10), (10, 10)]
    line = [lab.Still(spacing=10, line=True).course(str(n), n, 5, 1).at(0) for n in range(5)]
    assert line == [(10 * n, 0) for n in range(5)]
    named = lab.Still({"a": (1, 2), "b": (3, 4)})
    assert named.course("b", 0, 2, 1).at(7) == (3, 4)
    with pytest.raises(BadArgument, match="positions"):
        named.course("c", 2, 3, 1)


def test_random_waypoints_keep_to_the_area_the_speed_and_the_pause() -> None:
    walk = lab.RandomWaypoint(area=(100, 50), speed=(1, 2), pause=5)
    course = walk.course("a", 0, 1, 1)
    places = [course.at(second / 10) for second in range(6_000)]
    steps = [dist(one, two) for one, two in pairwise(places)]
    assert all(0 <= x <= 100 and 0 <= y <= 50 for x, y in places)
    assert max(steps) <= 0.2 + 1e-9
    assert places[0] == places[49], "it pauses before it walks"
    assert places[0] != places[80]
    assert [walk.course("a", 0, 1, 1).at(300), course.at(300)] == [course.at(300)] * 2
    assert walk.course("a", 0, 1, 2).at(300) != course.at(300) != walk.course("b", 1, 2, 1).at(300)


def test_fixed_hosts_of_random_waypoints_stay() -> None:
    walk = lab.RandomWaypoint(fixed=[(7, 8)])
    assert walk.course("a", 0, 2, 1).at(1_000) == (7, 8)
    assert walk.course("b", 1, 2, 1).at(0) != walk.course("b", 1, 2, 1).at(1_000)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"speed": (0, 1)}, "speed"),
        ({"speed": (2, 1)}, "speed"),
        ({"pause": -1}, "pause"),
        ({"area": (0, 1)}, "area"),
    ],
)
def test_bad_waypoints_are_refused(options: dict[str, object], argument: str) -> None:
    with pytest.raises(BadArgument, match=argument):
        lab.RandomWaypoint(**options)  # type: ignore[arg-type]


NS2 = """\
# a comment
$node_(0) set X_ 0.0
$node_(0) set Y_ 0.0
$node_(0) set Z_ 0.0
$node_(1) set X_ 5
$node_(1) set Y_ 5
$ns_ at 10.0 "$node_(0) setdest 10.0 0.0 1.0"
$ns_ at 15.0 "$node_(0) setdest 5.0 10.0 2.0"
"""


def test_a_trace_of_ns2_changes_direction_at_once(tmp_path: Path) -> None:
    (tmp_path / "walk.tcl").write_text(NS2)
    trace = lab.Trace(tmp_path / "walk.tcl")
    course = trace.course("a", 0, 2, 1)
    assert [course.at(t) for t in (0, 10, 12, 15, 20, 99)] == [
        (0, 0),
        (0, 0),
        (2, 0),
        (5, 0),
        (5, 10),
        (5, 10),
    ]
    assert trace.course("b", 1, 2, 1).at(50) == (5, 5)
    with pytest.raises(BadArgument, match=r"3 nodes; .* has 2"):
        trace.course("c", 2, 3, 1)


def test_a_trace_of_bonnmotion(tmp_path: Path) -> None:
    (tmp_path / "walk.movements").write_text("0 1 1 10 11 1\n0.0 2.0 2.0\n")
    trace = lab.Trace(str(tmp_path / "walk.movements"))
    assert trace.course("a", 0, 2, 1).at(5) == (6, 1)
    assert trace.course("b", 1, 2, 1).at(5) == (2, 2)


@pytest.mark.parametrize(
    "text",
    ["", "0 1", "0 1 1 0 2 2", "1 nan 2", "abc", NS2 + "$god_x\nfoo bar", "$node_(0) set X_ 1"],
)
def test_a_bad_trace_says_what_is_wrong(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(BadArgument, match="trace of ns-2 or BonnMotion"):
        lab.Trace(tmp_path / "bad").course("a", 0, 1, 1)
