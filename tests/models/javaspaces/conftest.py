"""JavaSpaces at both doors, on every kind of space."""

from collections import defaultdict
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.kinds import DOORS, MODEL_PLACES
from tests.models.javaspaces.doors import WakeupClock, World

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """A test runs at both doors on a space in memory, with all parameters of its own. On each other
    kind of space it runs at one door, with one of its parameters, in turn: what a kind of space
    does at each door is what `tests/laws` are about."""
    cases: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        test, case = _case(item)
        if case not in cases[test]:
            cases[test].append(case)
    left_out = []
    for item in items:
        place = _params(item).get("place")
        if place is not None and HERE in item.path.parents and place[1] != "memory":
            test, case = _case(item)
            turn = crc32(test.encode())
            nth = (turn + MODEL_PLACES.index(place)) % len(cases[test])
            if DOORS[turn % 2] != place[0] or cases[test][nth] != case:
                left_out.append(item)
    gone = set(map(id, left_out))
    items[:] = [item for item in items if id(item) not in gone]
    config.hook.pytest_deselected(items=left_out)


def _case(item: Any) -> tuple[str, dict[str, Any]]:
    """A test, and which of its own parameters it has."""
    numbers = {name: item.callspec.indices[name] for name in _params(item) if name != "place"}
    return item.nodeid.partition("[")[0], numbers


def _params(item: Any) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


@pytest.fixture
def clock():
    return WakeupClock()


@pytest.fixture(params=MODEL_PLACES, ids="-".join)
def place(request):
    """A door and a kind of space."""
    return request.param


@pytest.fixture
def world(place, loop_thread, host_thread, clock, folder):
    """A door and a kind of space, where JavaSpaces and transactions come from."""
    world = World(place, clock, folder, loop_thread, host_thread)
    yield world
    world.close()


@pytest.fixture
def javaspace(world):
    """An empty JavaSpace."""
    return world.javaspace()


@pytest.fixture
def begin(world):
    """`begin(lease)` makes a transaction of the manager."""
    return world.begin
