"""One text, many spaces: each law runs at every door, blocking and async, on every store; and at
both doors of a space that a host elsewhere keeps, over a real socket."""

import itertools
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.laws.afar import keep_what_holds
from tests.laws.doors import Door, LoopThread
from tupelo.federation.client.connect import connect, connect_async
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.links.tcp import TcpNetwork

DOORS = ("blocking", "async")
STORES: dict[str, dict[str, Any]] = {
    "memory": {},
    "memory+log": {"log_keep": 10_000},
    "full": {"durability": "full"},
    "process": {"durability": "process"},
    "none": {"durability": "none"},
}
AFAR = {"memory afar": "memory", "full afar": "full"}
"""Stores of spaces that a host elsewhere keeps."""

PLACES = [(door, store) for door in DOORS for store in (*STORES, *AFAR)]
MEMORY_DISK = Path("/dev/shm")  # The laws do not ask how long a disk takes; tests/store has one.


@pytest.fixture(scope="session")
def loop_thread():
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="session")
def host_thread():
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
def make_space(place, loop_thread, host_thread, clock, folder):
    """`make_space(**options)`: a new space at this door and on this store."""
    door, store = place
    made: list[Any] = []
    hosts: list[HostCore] = []

    def make(**options: Any) -> Any:
        kept = AFAR.get(store, store)
        if kept in ("full", "process", "none"):
            options.setdefault("path", folder / f"{len(made)}.tupelo")
        options = {"clock": clock, **STORES[kept], **options}
        if store in AFAR:
            host, space = host_thread.call(keep_at_host, clock, options)
            hosts.append(host)
            space_afar = reach(host, door, loop_thread)
            if door == "async":
                space_afar._inner._operations = space._operations  # to see who waits there
            else:
                space_afar._operations = space._operations
            made.append(space_afar)
            return space_afar
        if door == "blocking":
            space = tupelo.Space("laws", **options)
        else:
            space = Door(loop_thread.call(tupelo.aio.Space, "laws", **options), loop_thread)
        made.append(space)
        return space

    yield make
    for space in made:
        space.close()
    for host in hosts:
        host_thread.call(host.stop)


async def keep_at_host(clock: Any, options: dict[str, Any]) -> tuple[HostCore, Any]:
    """A host of its own, with a space that has these options."""
    ids = itertools.count()
    host = HostCore(
        "host",
        host_id="h",
        network=TcpNetwork(),
        clock=clock,
        rng=random.Random(0),
        new_id=lambda: f"id{next(ids)}",
        listen="127.0.0.1:0",
    )
    await host.start()
    return host, host.make_space("laws", **options).space


def reach(host: HostCore, door: str, loop_thread: LoopThread) -> Any:
    url = f"tupelo://{host.address}/laws"
    if door == "blocking":
        return connect(url)
    return Door(loop_thread.call(connect_async, url), loop_thread)


@pytest.fixture
def space(make_space):
    return make_space()


@pytest.fixture
def has_log(place):
    return place[1] not in ("memory", "memory afar")


@pytest.fixture(autouse=True)
def _keep_what_holds(request):
    """Skip what a space afar cannot keep, by name."""
    callspec = getattr(request.node, "callspec", None)
    place = callspec.params.get("place") if callspec is not None else None
    if place is not None and place[1] in AFAR:
        keep_what_holds(request.node)
