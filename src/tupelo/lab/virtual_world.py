"""A world: hosts on a virtual network and a virtual clock, in one process.

`VirtualWorld` has the loop, the network and the hosts; a `WorldHost` can crash, leave and start
again. The simulations of the models build on it (`simulation`), the public `world`, and the tests
that need several hosts.

All programs of a world share one process and one event loop. A `ProgramLife` is one program from
its start to its end: its tasks, timers and callbacks run in a context of their own, so that all of
them can be stopped at once, as if the process had been killed."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Generic, TypeVar, TypeVarTuple

from tupelo.errors import BadArgument, JournalError
from tupelo.federation.hosts.core import HostCore
from tupelo.federation.hosts.doors import RunningHost
from tupelo.federation.identity.keys import Identity, id_of
from tupelo.federation.links.link import Answering, FrameReceiver, Link, LinkListener, Network
from tupelo.lab.loop import LabError, VirtualLoop, run
from tupelo.lab.network import VirtualNetwork
from tupelo.space.clock import LoopClock
from tupelo.space.port import Port, port_of
from tupelo.space.tasks import Flusher
from tupelo.store.sqlite import SqliteJournal

PORT = 7700
HEARTBEAT_SECONDS = 0.5
ANSWER_SECONDS = 2.0
MEMORY_DISK = Path("/dev/shm")
"""Folders of hosts are here, if the machine has it: a simulation does not measure the disk."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LIFE: ContextVar[ProgramLife | None] = ContextVar("life", default=None)
_CANCEL_ROUNDS_MAX = 1_000
"""A cancelled task may clean up, but not for ever."""


class ProgramLife:
    """One run of a program at a place of the network, until it ends or is killed.

    It is also the network of the program: frames are received in the context of the life.
    """

    def __init__(self, loop: VirtualLoop, network: VirtualNetwork, name: str) -> None:
        self.name = name
        self.leaving = False
        """The program is about to end: its pending operations may never return."""
        self.over = False
        self.killed = False
        self._loop = loop
        self._network = network
        self._place = network.place(name)
        self._context = copy_context()
        self._context.run(_LIFE.set, self)

    def set(self, variable: ContextVar[T], value: T) -> None:
        """Set a context variable for what starts from now on in this program."""
        self._context.run(variable.set, value)

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Start a task of this program."""
        return self._loop.create_task(work, name=name, context=self._context.copy())

    async def listen(self, address: str, answer: Answering) -> LinkListener:
        return await self._place.listen(address, self._answering(answer))

    async def dial(self, address: str, answer: Answering) -> Link:
        return await self._place.dial(address, self._answering(answer))

    def _answering(self, answer: Answering) -> Answering:
        return lambda link: _LivingReceiver(self, self.call(answer, link))

    def call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function as part of this program."""
        return self._context.copy().run(function, *args)

    async def kill(self, ports: list[Port]) -> None:
        """Stop the program as SIGKILL would: the disk keeps what was committed to the spaces of
        these ports, frames that were sent still arrive, and nothing else happens."""
        self.leaving = self.over = self.killed = True
        for port in ports:
            port.crash()
        self._network.crash(self.name)
        await self.end()

    async def end(self) -> None:
        """Cancel the remaining tasks, timers and callbacks. LabError if a task refuses to end."""
        self.leaving = self.over = True
        for _ in range(_CANCEL_ROUNDS_MAX):
            tasks = self._loop.tasks_of(self._is_mine)
            if not tasks:
                await asyncio.sleep(0)  # for the callbacks of the tasks that are done
                if self._loop.tasks_of(self._is_mine):  # which may have started other tasks
                    continue
                self._loop.drop(self._is_mine)
                return
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
        raise LabError(f"these tasks of {self.name} cannot be cancelled: {tasks}")

    def _is_mine(self, context: Context) -> bool:
        return context.get(_LIFE) is self


class _LivingReceiver:
    """Passes the events of a link to a program, in its context, until the program is over."""

    def __init__(self, life: ProgramLife, receiver: FrameReceiver) -> None:
        self._life = life
        self._receiver = receiver

    def heard(self, contents: list[bytes]) -> None:
        if not self._life.over:
            self._life.call(self._receiver.heard, contents)

    def eased(self) -> None:
        if not self._life.over:
            self._life.call(self._receiver.eased)

    def lost(self, reason: str) -> None:
        if not self._life.over:
            self._life.call(self._receiver.lost, reason)


class SeededIdentity(Identity):
    """An identity whose keys are drawn from a seed, so that a run can be repeated."""

    rng: Random

    @classmethod
    def drawn(cls, rng: Random) -> SeededIdentity:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        identity = cls(Ed25519PrivateKey.from_private_bytes(rng.randbytes(32)))
        identity.rng = rng
        return identity

    def draw(self) -> bytes:
        return self.rng.randbytes(32)


class SlowFlusher(Flusher):
    """A flusher whose commits take up to so many seconds, as on a slow disk."""

    def __init__(self, port: Port, rng: Random, seconds: float) -> None:
        super().__init__(port)
        self._rng = rng
        self._seconds = seconds

    async def flush(self, position: int) -> None:
        await asyncio.sleep(self._rng.uniform(0.0, self._seconds))
        self._journaled.flush(position)


class Disk:
    """The disk of a durable host. While it is `full`, there is no room and no commit succeeds; once
    it has `failed`, nothing can be read or written."""

    def __init__(self) -> None:
        self.full = False
        self.failed = False

    def hold(self, journal: SqliteJournal) -> None:
        """From now on, this journal is on this disk."""
        if not isinstance(journal._db, DiskConnection):
            free = journal.room.free
            journal.room.free = lambda: 0 if self.full else free()
            journal._db = DiskConnection(self, journal._db)  # type: ignore[assignment]
            journal.room.look()


class DiskConnection:
    """A connection to SQLite that fails as the disk does."""

    def __init__(self, disk: Disk, db: sqlite3.Connection) -> None:
        self._disk = disk
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
        if self._disk.failed:
            raise _disk_error("disk I/O error", sqlite3.SQLITE_IOERR)
        if self._disk.full and statement.startswith(("INSERT", "UPDATE", "COMMIT")):
            raise _disk_error("database or disk is full", sqlite3.SQLITE_FULL)
        return self._db.execute(statement, *args)


def _disk_error(text: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


class WorldHost:
    """A host of a world. `start` begins a life; `crash` and `leave` end it; with a `path` the next
    life goes on with what is on disk.

    `peers` are the names of the hosts that it dials; `options` go to `HostCore`. A subclass opens
    its models in `prepare` (before the host listens) or in `open` (after).
    """

    def __init__(
        self,
        world: VirtualWorld[Any],
        name: str,
        *,
        peers: Iterable[str] = (),
        identity: Identity | None = None,
        path: Path | None = None,
        **options: Any,
    ) -> None:
        self.world = world
        self.name = name
        self.address = address_of(name)
        self.peers = list(peers)
        self.identity = identity
        self.id = name
        if identity is not None:
            self.id = id_of(identity.key)
            world.network.identities[name] = identity.key
        self.path = path
        self.options = options
        self.disk = Disk()
        self.lives = 0
        self.life: ProgramLife | None = None
        self.core: HostCore
        self.api: RunningHost

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{'' if self.is_up else ', down'}>"

    @property
    def is_up(self) -> bool:
        return self.life is not None

    async def start(self) -> None:
        """Begin a new life."""
        self.lives += 1
        self.disk = Disk()
        life = self.life = ProgramLife(self.world.loop, self.world.network, self.name)
        await life.start(self._start(life), f"{self.name} starts")
        self.world.note(f"{self.name} has started, life {self.lives}")

    async def _start(self, life: ProgramLife) -> None:
        peers = map(address_of, self.peers)
        self.core = self.world.host_core(
            self.name,
            life,
            self.lives,
            host_id=self.id,
            peers=peers,
            path=self.path,
            **self.options,
        )
        self.core.identity = self.identity
        self.api = RunningHost(self.core)
        self.prepare()
        await self.core.start()
        await self.open()

    def prepare(self) -> None:
        """Called in each life, before the host listens and dials."""

    async def open(self) -> None:
        """Called in each life, when the host listens."""

    def ending(self, crashes: bool) -> None:
        """Called right before the host crashes or leaves."""

    def left(self) -> None:
        """Called when the host has left."""

    async def crash(self) -> None:
        """End this life as a killed process does. Nothing happens to a host that is down."""
        life = self.life
        if life is not None:
            self.world.note(f"{self.name} crashes")
            life.leaving = True
            self.ending(crashes=True)
            self.life = None
            await life.kill(self.ports)

    @property
    def ports(self) -> list[Port]:
        """The spaces of this host."""
        spaces = [hosted.port for hosted in self.core.spaces.values()]
        return [*spaces, port_of(self.core.deciding.space)]

    def fill_disk(self) -> None:
        """From now on there is no room on the disk of this host, until `disk.full` is reset."""
        self.world.note(f"the disk of {self.name} is full")
        self._hold_journals()
        self.disk.full = True

    async def fail_disk(self, seconds: float) -> None:
        """The disk of this host fails, and so many seconds later the host crashes. With its next
        life it has a good disk, with what was committed."""
        if self.life is not None:
            self.world.note(f"the disk of {self.name} fails")
            self.life.leaving = True
            self._hold_journals()
            self.disk.failed = True
            await asyncio.sleep(seconds)
            await self.crash()

    def _hold_journals(self) -> None:
        for port in self.ports:
            if port.saved is not None:
                self.disk.hold(port.saved)

    async def leave(self) -> None:
        """Say goodbye, close the spaces, and end. Nothing happens to a host that is down."""
        life = self.life
        if life is not None:
            self.world.note(f"{self.name} leaves")
            self.ending(crashes=False)
            self.life = None
            life.leaving = True
            with suppress(JournalError):  # The disk is full: the last changes are in doubt.
                await life.start(self.core.stop("for a while"), f"{self.name} leaves")
            await life.end()
            self.world.network.crash(self.name)  # closes the links that are left
            self.left()

    def do(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task at this host."""
        assert self.life is not None, f"{self.name} is down"
        return self.life.start(work, f"at {self.name}")

    def call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function as part of the program of this host."""
        assert self.life is not None, f"{self.name} is down"
        return self.life.call(function, *args)

    def dial(self, name: str) -> None:
        """From now on, connect to the host of this name."""
        self.call(self.core.dial, address_of(name))


Member = TypeVar("Member", bound=WorldHost)


class VirtualWorld(Generic[Member]):
    """Hosts on one virtual network; the seed of the loop decides all that is random.

    `members` is filled by the subclass or by the test.
    """

    def __init__(self, loop: VirtualLoop, network: VirtualNetwork | None = None) -> None:
        self.loop = loop
        self.seed = loop.seed
        self.network = network or VirtualNetwork(loop)
        self.clock = LoopClock(loop)
        self.members: list[Member] = []

    def __getitem__(self, name: str) -> Member:
        """The host of this name."""
        for member in self.members:
            if member.name == name:
                return member
        raise BadArgument("name", f"one of {[member.name for member in self.members]}", name)

    @cached_property
    def folder(self) -> Path:
        """A folder for the durable hosts; `clear` deletes it."""
        root = MEMORY_DISK if MEMORY_DISK.is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="tupelo-", dir=root))
        self.network.hide(folder.name)  # It is in the messages of errors.
        return folder

    def clear(self) -> None:
        """Delete the folders of its hosts."""
        if "folder" in self.__dict__:
            shutil.rmtree(self.folder, ignore_errors=True)

    def new_id(self) -> str:
        """An id that is the same in every run of the seed."""
        return f"id{self.loop.number('id')}"

    def new_identity(self, name: str) -> SeededIdentity:
        """The identity of the host of this name: the same in every run of the seed."""
        return SeededIdentity.drawn(Random(f"{self.seed} {name} identity"))

    def host_core(
        self, name: str, network: Network, lives: int = 1, *, host_id: str = "", **options: Any
    ) -> HostCore:
        """A host on the clock, the network and the randomness of this world, not yet started."""
        defaults: dict[str, Any] = {
            "heartbeat": HEARTBEAT_SECONDS,
            "answer_seconds": ANSWER_SECONDS,
            "commit_in_place": True,
        }
        return HostCore(
            name,
            host_id=host_id or name,
            network=network,
            clock=self.clock,
            rng=Random(f"{self.seed} {name} {lives}"),
            new_id=self.new_id,
            listen=address_of(name),
            **defaults | options,
        )

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.network.note(text)

    async def start(self) -> None:
        """Start all hosts."""
        for member in self.members:
            await member.start()

    async def stop(self) -> None:
        """Stop all hosts."""
        for member in self.members:
            await member.leave()

    async def wait_for(self, condition: Callable[[], Any], seconds: float = 60.0) -> bool:
        """Let virtual time pass until the condition holds. False if it does not within so long."""
        end = self.loop.time() + seconds
        while not condition():
            if self.loop.time() >= end:
                return False
            await asyncio.sleep(0.05)
        return True


W = TypeVar("W", bound=VirtualWorld[Any])


def play(
    build: Callable[[VirtualLoop], W], scene: Callable[[W], Awaitable[Any]], seed: int
) -> None:
    """Build a world, start its hosts, run the scene, and stop the hosts."""

    async def main(loop: VirtualLoop) -> None:
        world = build(loop)
        try:
            await world.start()
            await scene(world)
        finally:
            await world.stop()
            world.clear()

    run(main, seed)


def address_of(name: str) -> str:
    """The address at which the host of this name listens."""
    return f"{name}:{PORT}"
