"""JavaSpaces at both doors, on every kind of space."""

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.kinds import DOORS, MODEL_PLACES, take_turns
from tests.models.javaspaces.doors import WakeupClock, World

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """A test runs at both doors on a space in memory, with all parameters of its own. On each other
    kind of space it runs at one door, with one of its parameters, in turn: what a kind of space
    does at each door is what `tests/laws` are about."""

    def is_full(test: str, place: tuple[str, str]) -> bool | None:
        if place[1] == "memory":
            return True
        return False if place[0] == DOORS[crc32(test.encode()) % 2] else None

    take_turns(config, items, HERE, is_full)


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
