"""JavaSpaces at every door, blocking and async, in memory and durable."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.laws.doors import LoopThread
from tests.models.javaspaces.doors import WakeupClock, World

DOORS = ("blocking", "async")
STORES: dict[str, dict[str, Any]] = {"memory": {}, "full": {"durability": "full"}}
PLACES = [(door, store) for door in DOORS for store in STORES]
MEMORY_DISK = Path("/dev/shm")  # Nobody asks here how long a disk takes.


@pytest.fixture
def clock():
    return WakeupClock()


@pytest.fixture(scope="session")
def javaspaces_loop():
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(params=PLACES, ids="-".join)
def world(request, javaspaces_loop, clock):
    """A door and a store, where JavaSpaces and transactions come from."""
    door, store = request.param
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as name:
        world = World(door, STORES[store], javaspaces_loop, clock, Path(name))
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
