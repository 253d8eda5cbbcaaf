"""Both doors of the Capi, in memory and in a folder; the containers are in this program, or at a
site elsewhere that is used over a real socket."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests.conftest import Call, core_of, parked_at, until_true
from tests.kinds import start_host, take_turns
from tests.laws.doors import LoopThread
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import AsyncHost
from tupelo.models.xvsm import AsyncCapi, Capi
from tupelo.models.xvsm.container import Container
from tupelo.models.xvsm.site import RemoteContainer

PLACES = [
    (door, store, where)
    for where in ("here", "elsewhere")
    for store in ("memory", "folder")
    for door in ("blocking", "async")
]
HERE = Path(__file__).parent
DOORS = Path(__file__).parents[3] / "docs" / "DOORS.md"
EXCEPTIONS = dict(
    re.findall(r"^\| `(test_\w+)` \| (.+) \|$", DOORS.read_text("utf-8"), re.MULTILINE)
)
"""The laws that a container elsewhere does not keep, each with the reason, as the page says."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """In memory, here, a test runs with all parameters of its own; at other places with one, in
    turn: a selector or coordinator does not see where its container is, or what keeps it. With a
    folder elsewhere it runs at one door."""

    def is_full(test: str, place: tuple[str, str, str]) -> bool | None:
        door, *where = place
        if where == ["folder", "elsewhere"] and door != PLACES[crc32(test.encode()) % 2][0]:
            return None
        return where == ["memory", "here"]

    take_turns(config, items, HERE, is_full)


class SeenContainer(RemoteContainer):
    """A container elsewhere of which tests may look at the insides."""

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["there"], name)


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


class Elsewhere:
    """A Capi at a site elsewhere. Since code is not sent, the program that has the containers adds
    aspects, and makes containers with coordinators of the tests' own."""

    def __init__(self, capi: Any, there: Capi) -> None:
        self._capi = capi
        self._there = there
        self.embedded = there.embedded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._capi, name)

    def create_container(
        self, tx: Any, site: Any, name: Any, size: Any, *args: Any, **kw: Any
    ) -> Any:
        if any(type(one).__module__.startswith("tests.") for one in args) and tx is None:
            made = self._there.create_container(None, None, name, size, *args, **kw)
            return self.lookup_container(None, site, made.name)
        return self._seen(self._capi.create_container(tx, site, name, size, *args, **kw))

    def lookup_container(self, *args: Any) -> Any:
        return self._seen(self._capi.lookup_container(*args))

    def add_aspect(self, cref: Any, points: Any, aspect: Any) -> Any:
        return self._there.add_aspect(self._container(cref), points, aspect)

    def remove_aspect(self, cref: Any, points: Any, registration: Any) -> Any:
        return self._there.remove_aspect(self._container(cref), points, registration)

    def _container(self, cref: Any) -> Container | None:
        if not isinstance(cref, RemoteContainer):
            assert cref is None
            return None
        assert cref.id is not None
        container = self.embedded.known(cref.id)
        assert container is not None
        return container

    def _seen(self, cref: RemoteContainer) -> RemoteContainer:
        container = self._container(cref)
        if type(cref) is RemoteContainer:
            vars(cref)["there"] = container
            cref.__class__ = SeenContainer
        return cref


def answered(capi: Any, answer: Any) -> Any:
    """The answer of a method of a lease; that of the async door is awaited."""
    return capi._loop.call(lambda: answer) if inspect.isawaitable(answer) else answer


def cancel(capi: Any, lease: Any) -> None:
    answered(capi, lease.cancel())


@pytest.fixture(params=PLACES, ids="-".join)
def place(request):
    """A door, a store, and where the containers are."""
    reason = EXCEPTIONS.get(request.node.originalname)
    if request.param[2] == "elsewhere" and reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return request.param


@pytest.fixture
def make_site(host_thread, clock):
    """`make_site(capi)`: a host that offers the containers of a Capi; the URI of the site."""
    hosts: list[HostCore] = []

    async def begin(capi: Capi) -> str:
        core = await start_host(f"h{len(hosts)}", clock)
        hosts.append(core)
        host = AsyncHost("host", listen=0)
        host._core = core
        return str(capi.offer(host))

    yield lambda capi: host_thread.call(begin, capi)
    for core in hosts:
        host_thread.call(core.stop)


@pytest.fixture
def make_capi(place, loop_thread, make_site, clock, folder):
    """`make_capi()`: a Capi of its own; `make_capi(other)`: another door to the same space."""
    door, store, where = place
    made: list[Any] = []
    sites: dict[Any, str] = {}

    def make(other: Any = None, **options: Any) -> Any:
        path = folder / "space" if store == "folder" else None
        if where == "elsewhere":
            there = Capi(path, clock=clock, **options) if other is None else other._there
            if other is None:
                made.append(there)
                sites[there.embedded] = make_site(there)
            return Elsewhere(opened(site=sites[there.embedded]), there)
        if other is None:
            return opened(path, clock=clock, **options)
        return opened(getattr(other, "_inner", other))

    def opened(*args: Any, **options: Any) -> Any:
        if door == "blocking":
            capi: Any = Capi(*args, **options)
        else:
            capi = Door(loop_thread.call(lambda: AsyncCapi(*args, **options)), loop_thread)
        made.append(capi)
        return capi

    yield make
    for capi in reversed(made):
        capi.close()


@pytest.fixture
def here():
    """`here(cref)`: the container itself, for a door of the program that has it."""
    return lambda cref: vars(cref).get("there", cref)


@pytest.fixture
def capi(make_capi):
    return make_capi()


@pytest.fixture
def wait_at(clock):
    """`wait_at(cref, capi.take, ...)` starts an operation and returns when it waits there."""

    def start(cref: Any, operation: Any, *args: Any, timed: bool = False) -> Call:
        core = core_of(cref.space)
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
