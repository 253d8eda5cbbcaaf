"""Both doors of the Capi, in memory and in a folder."""

import inspect
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Call, parked_at, until_true
from tests.laws.conftest import MEMORY_DISK
from tests.laws.doors import LoopThread
from tupelo.models.xvsm import AsyncCapi, Capi


class Door:
    """An AsyncCapi that is called like a Capi: each call runs on a loop in a thread."""

    def __init__(self, inner: AsyncCapi, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.ismethod(found):
            return found
        return lambda *args, **kwargs: self._loop.call(found, *args, **kwargs)


@pytest.fixture(scope="session")
def loop_thread():
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(params=["blocking-memory", "async-memory", "blocking-folder", "async-folder"])
def place(request):
    return request.param.split("-")


@pytest.fixture
def make_capi(place, loop_thread, clock, folder):
    """`make_capi()`: a Capi of its own; `make_capi(other)`: another door to the same space."""
    made: list[Any] = []

    def make(other: Any = None, **options: Any) -> Any:
        if other is None:
            options = {"clock": clock, **options}
            path = folder / "space" if place[1] == "folder" else None
        else:
            path = getattr(other, "_inner", other)
        if place[0] == "blocking":
            capi: Any = Capi(path, **options)
        else:
            capi = Door(loop_thread.call(lambda: AsyncCapi(path, **options)), loop_thread)
        made.append(capi)
        return capi

    yield make
    for capi in made:
        capi.close()


@pytest.fixture
def capi(make_capi):
    return make_capi()


@pytest.fixture
def wait_at(clock):
    """`wait_at(cref, capi.take, ...)` starts an operation and returns when it waits there."""

    def start(cref: Any, operation: Any, *args: Any, timed: bool = False) -> Call:
        core = cref.space._operations.core
        before, sleepers = parked_at(core), clock.sleepers
        call = Call(operation, *args)
        until_true(
            lambda: (
                not call.waits
                or (parked_at(core) > before and (not timed or clock.sleepers > sleepers))
            ),
            "the call waits",
        )
        assert call.waits, f"the call did not wait: {call.result()!r}"
        return call

    return start
