"""One text, many spaces: each law runs at every door, blocking and async, on every store."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.laws.doors import Door, LoopThread

DOORS = ("blocking", "async")
STORES: dict[str, dict[str, Any]] = {
    "memory": {},
    "memory+log": {"log_keep": 10_000},
    "full": {"durability": "full"},
    "process": {"durability": "process"},
    "none": {"durability": "none"},
}
PLACES = [(door, store) for door in DOORS for store in STORES]
MEMORY_DISK = Path("/dev/shm")  # The laws do not ask how long a disk takes; tests/store has one.


@pytest.fixture(scope="session")
def loop_thread():
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(params=PLACES, ids="-".join)
def place(request):
    """A door and a store."""
    return request.param


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def make_space(place, loop_thread, clock, folder):
    """`make_space(**options)`: a new space at this door and on this store."""
    door, store = place
    made: list[Any] = []

    def make(**options: Any) -> Any:
        if store in ("full", "process", "none"):
            options.setdefault("path", folder / f"{len(made)}.tupelo")
        options = {"clock": clock, **STORES[store], **options}
        if door == "blocking":
            space: Any = tupelo.Space("laws", **options)
        else:
            space = Door(loop_thread.call(tupelo.aio.Space, "laws", **options), loop_thread)
        made.append(space)
        return space

    yield make
    for space in made:
        space.close()


@pytest.fixture
def space(make_space):
    return make_space()


@pytest.fixture
def has_log(place):
    return place[1] != "memory"
