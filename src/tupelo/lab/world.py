"""The public lab: a world of hosts in virtual time, on which ordinary async programs run.

    from tupelo import lab

    async def program(host):
        space = host.space("news")
        await space.write(("hello", host.name))
        while True:
            entry = await space.take(("hello", str))
            lab.record("received", of=entry[1])

    world = lab.World(hosts=20, seed=1, network=lab.Radio(range=80))
    result = world.run(program, seconds=60)

A program gets a `tupelo.aio.Host`, and the models open on it as on any host. It must take time and
randomness from asyncio and from `lab.random()`; then the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import csv
import json
import platform
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Any, Literal, Protocol, TypeAlias

from tupelo.errors import BadArgument
from tupelo.federation.hosts.doors import RunningHost
from tupelo.lab.loop import LabError, VirtualLoop, run
from tupelo.lab.network import Traffic, VirtualNetwork
from tupelo.lab.ns3 import Ns3
from tupelo.lab.radio import AirStatistics, Radio, RadioNetwork
from tupelo.lab.virtual_world import VirtualWorld, WorldHost, address_of
from tupelo.values.checks import is_int

Program: TypeAlias = Callable[[RunningHost], Awaitable[Any]]
"""What runs at a host: `async def program(host)`."""
Discovery: TypeAlias = Literal["all", "beacons"]
Row: TypeAlias = dict[str, Any]

PROGRESS: ContextVar[Callable[[float], object] | None] = ContextVar("progress", default=None)
"""The `progress` of worlds that are run without one, for commands with a bar."""
BEACON_SECONDS = 1.0
BEACON_BYTES = 100
ANSWER_SECONDS = 5.0
"""As in `tupelo.Host`. The simulations have less patience."""
BEACONS_MISSED = 3
"""A host that was not heard for so many beacons is not dialled any more."""


@dataclass(frozen=True, kw_only=True)
class Wired:
    """A network of cables: every host reaches every other. `delay` is the shortest and the longest
    delay of a message in seconds, `bandwidth` of each direction of a connection in bytes a
    second."""

    delay: tuple[float, float] = (0.0002, 0.001)
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.delay[0] <= self.delay[1] < inf:
            raise BadArgument("delay", "the shortest and the longest delay", self.delay)
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise BadArgument("bandwidth", "a positive number, or None", self.bandwidth)

    def build(self, loop: VirtualLoop, names: Sequence[str]) -> VirtualNetwork:
        """The network of the hosts of these names."""
        return VirtualNetwork(loop, delay=self.delay, bandwidth=self.bandwidth)


@dataclass
class Result:
    """What a run has given. `rows` are the records of the programs, in order of time."""

    parameters: Row
    rows: list[Row]
    traffic: dict[tuple[str, str], Traffic]
    """Messages and bytes from host to host, as the programs' links sent them."""
    air: AirStatistics | None
    """What went through the air, if the network was a radio."""
    digest: str
    """Two runs with the same digest had the same messages and records at the same moments."""
    seconds: float
    real_seconds: float
    versions: dict[str, str] = field(default_factory=dict)

    def values(self, name: str, key: str) -> list[Any]:
        """The values of this key in the records of this name."""
        return [row[key] for row in self.rows if row["name"] == name]

    def count(self, name: str) -> int:
        """How many records have this name."""
        return sum(row["name"] == name for row in self.rows)

    @property
    def messages(self) -> int:
        """How many messages all hosts have sent."""
        return total(self.traffic.values()).frames

    @property
    def bytes(self) -> int:
        """How many bytes all hosts have sent, without the headers of the network."""
        return total(self.traffic.values()).bytes

    def summary(self) -> Row:
        """The run in one row: parameters, totals, versions."""
        return {
            **self.parameters,
            "seconds": self.seconds,
            "real_seconds": round(self.real_seconds, 3),
            "messages": self.messages,
            "bytes": self.bytes,
            **{f"air_{name}": value for name, value in asdict(self.air or AirStatistics()).items()},
            "digest": self.digest,
            **self.versions,
        }

    def save(self, folder: str | Path) -> None:
        """Write `run.json`, `records.csv`, and `records.parquet` if pyarrow is there."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(self.summary(), indent=1, default=str) + "\n")
        save_rows(self.rows, folder / "records")


def save_rows(rows: list[Row], path: Path) -> None:
    """Write a table to the path with `.csv` at its end, and with `.parquet` if pyarrow is there."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return
    table = {key: [row.get(key) for row in rows] for key in columns}
    parquet.write_table(pyarrow.table(table), path.with_suffix(".parquet"))


class World:
    """Hosts in virtual time. `run` starts them anew each time, and may be called again.

    - `hosts`: how many (they are called `h1`, `h2`, ...), or their names.
    - `seed`: decides all that is random.
    - `network`: a `Radio`, `Wired`, or `Ns3`.
    - `discovery`: "all" hosts know each other's address and connect; by "beacons" a host connects
      to those that it hears, which is usual for a radio without routes.
    - `heartbeat`: seconds; a host is missed after three.
    - `folder`: the hosts are durable, with their spaces and logs in `folder/NAME`, which a pipeline
      can read; a folder that is not empty is refused. Otherwise they are in memory.
    - `real`: the hosts are processes on this machine, with sockets, and the network is a radio of
      `tupelo.lab.real`. Time is real, and the run cannot be repeated exactly.
    - `embedded`: in a real world a host is in the process of its program, as it is in virtual time,
      not a `tupelo host` beside it.
    """

    def __init__(
        self,
        hosts: int | Sequence[str] = 3,
        *,
        seed: int = 1,
        network: Radio | Wired | Ns3 | None = None,
        discovery: Discovery | None = None,
        heartbeat: float = 1.0,
        folder: str | Path | None = None,
        real: bool = False,
        embedded: bool = False,
    ) -> None:
        names = hosts
        if isinstance(names, int):
            names = [f"h{number + 1}" for number in range(names)]
        if (
            isinstance(names, str)
            or not names
            or len(set(names)) < len(names)
            or not all(isinstance(name, str) and name and ":" not in name for name in names)
        ):
            raise BadArgument("hosts", "a number from 1, or different names without a colon", hosts)
        if not is_int(seed):
            raise BadArgument("seed", "an int", seed)
        if not isinstance(network, Radio | Wired | Ns3 | None):
            raise BadArgument("network", "a Radio, Wired or Ns3", network)
        if not 0 < heartbeat < inf:
            raise BadArgument("heartbeat", "a number of seconds", heartbeat)
        self.names = list(names)
        self.seed = seed
        self.network = network or Wired()
        by_beacons = isinstance(self.network, Radio) and self.network.routing == "direct"
        self.discovery: Discovery = discovery or ("beacons" if by_beacons else "all")
        if self.discovery not in ("all", "beacons"):
            raise BadArgument("discovery", "all or beacons", discovery)
        if self.discovery == "beacons" and not isinstance(self.network, Radio):
            raise BadArgument("discovery", "all, if the network is no radio", discovery)
        if real and not isinstance(self.network, Radio):
            raise BadArgument("network", "a Radio, if the world is real", network)
        self.real = real
        self.embedded = embedded
        self.heartbeat = heartbeat
        self.folder = None if folder is None else Path(folder)

    def __repr__(self) -> str:
        return f"<World of {', '.join(self.names)}; seed {self.seed}>"

    def run(
        self,
        program: Program | Mapping[str, Program] | None = None,
        *,
        seconds: float,
        scene: Callable[[RunningWorld], Awaitable[Any]] | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> Result:
        """Start the hosts, run the program at each of them for so many virtual seconds, and end.

        `program` may differ by host: a mapping from names to programs, `"*"` for all others. A
        program that is still running at the end is cancelled. `scene(world)` runs beside them, to
        part, crash and restart hosts. `progress` is called with each virtual second.

        Raises an ExceptionGroup of the errors of programs and scene, and LabError if the world is
        real and this machine does not allow it.
        """
        if not 0 < seconds < inf:
            raise BadArgument("seconds", "a positive number", seconds)
        if self.folder is not None and self.folder.exists() and any(self.folder.iterdir()):
            raise BadArgument("folder", "empty, or new", str(self.folder))
        programs = program if isinstance(program, Mapping) else {"*": program} if program else {}
        if unknown := set(programs) - {*self.names, "*"}:
            raise BadArgument("program", f"names of hosts, not {sorted(unknown)}", programs)
        progress = progress or PROGRESS.get()
        if self.real:
            from tupelo.lab.real import run_real

            return run_real(self, programs, seconds, scene, progress)
        began = time.perf_counter()

        async def main(loop: VirtualLoop) -> RunningWorld:
            world = RunningWorld(self, loop)
            try:
                await world.play(programs, seconds, scene, progress)
            finally:
                world.clear()
            return world

        world = run(main, self.seed)
        if world.errors:
            raise ExceptionGroup("programs of the world have failed", world.errors)
        return Result(
            parameters=self.parameters(),
            rows=world.rows,
            traffic=world.network.sent,
            air=getattr(world.network, "air", None),
            digest=world.network.digest,
            seconds=seconds,
            real_seconds=time.perf_counter() - began,
            versions=versions(),
        )

    def parameters(self) -> Row:
        """The description of this world, in one row."""
        parts = {key: value for key, value in vars(self.network).items() if key != "mobility"}
        mobility = getattr(self.network, "mobility", None)
        return {
            "hosts": len(self.names),
            "seed": self.seed,
            "network": type(self.network).__name__,
            **parts,
            **({} if mobility is None else {"mobility": repr(mobility)}),
            "discovery": self.discovery,
            "heartbeat": self.heartbeat,
            **({"real": True, "embedded": self.embedded} if self.real else {}),
        }


class RunningWorld(VirtualWorld[WorldHost]):
    """A world while it runs, for its scene."""

    def __init__(self, described: World, loop: VirtualLoop) -> None:
        super().__init__(loop, described.network.build(loop, described.names))
        self.rows: list[Row] = []
        self.errors: list[Exception] = []
        self._programs: Mapping[str, Program] = {}
        self._running: list[asyncio.Task[Any]] = []  # The loop itself keeps only weak references.
        self._by_beacons = described.discovery == "beacons"
        for number, name in enumerate(described.names):
            self.members.append(
                _ProgramHost(
                    self,
                    name,
                    peers=() if self._by_beacons else described.names[:number],
                    path=None if described.folder is None else described.folder / name,
                    heartbeat=described.heartbeat,
                    answer_seconds=ANSWER_SECONDS,
                )
            )

    def host(self, name: str) -> RunningHost:
        """The host of this name, which is up."""
        return self[name].api

    async def play(
        self,
        programs: Mapping[str, Program],
        seconds: float,
        scene: Callable[[RunningWorld], Awaitable[Any]] | None,
        progress: Callable[[float], object] | None,
    ) -> None:
        self._programs = programs
        await asyncio.gather(*(member.start() for member in self.members))
        beside: list[asyncio.Task[Any]] = []
        if self._by_beacons:
            beside += [asyncio.ensure_future(self._beacon(one)) for one in self.members]
        if scene is not None:
            beside.append(asyncio.ensure_future(self._guarded(self._direct(scene), "scene")))
        try:
            while (left := seconds - self.loop.time()) > 0:
                await asyncio.sleep(min(1.0, left))
                if progress is not None:
                    progress(self.loop.time())
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            for member in self.members:
                await member.crash()  # Nobody says goodbye: the run is over.

    def program_at(self, member: WorldHost) -> None:
        """Start the program of a host that has come up."""
        program = self._programs.get(member.name) or self._programs.get("*")
        if program is not None:
            self._running.append(member.do(self._guarded(program(member.api), member.name)))

    async def _direct(self, scene: Callable[[RunningWorld], Awaitable[Any]]) -> None:
        PLACE.set(_VirtualPlace(self, "", Random(f"{self.seed} scene")))
        await scene(self)

    async def _guarded(self, work: Awaitable[Any], where: str) -> None:
        try:
            await work
        except Exception as error:
            error.add_note(f"in {where}, at {self.loop.time():.3f} s")
            self.errors.append(error)

    async def _beacon(self, member: WorldHost) -> None:
        """Announce a host to those in its range, which connect to it, and let them forget it."""
        network = self.network
        assert isinstance(network, RadioNetwork)
        number = network.names.index(member.name)
        address = address_of(member.name)
        heard: dict[int, float] = {}  # by whom, and when for the last time
        rng = Random(f"{self.seed} {member.name} beacons")
        while True:
            await asyncio.sleep(BEACON_SECONDS * rng.uniform(0.9, 1.1))
            now = self.loop.time()
            if member.is_up:
                for other in network.broadcast(number, BEACON_BYTES):
                    if other > number:  # One of two connects.
                        if other not in heard and self.members[other].is_up:
                            self.members[other].dial(member.name)
                        heard[other] = now
            for other, when in list(heard.items()):
                if now - when > BEACONS_MISSED * BEACON_SECONDS:
                    del heard[other]
                    if self.members[other].is_up:
                        self.members[other].call(self.members[other].core.undial, address)


class _ProgramHost(WorldHost):
    world: RunningWorld

    def prepare(self) -> None:
        """Whatever runs at the host, also a call from elsewhere, may record."""
        rng = Random(f"{self.world.seed} {self.name} program {self.lives}")
        place = _VirtualPlace(self.world, self.name, rng)
        assert self.life is not None
        self.life.set(PLACE, place)
        PLACE.set(place)

    async def open(self) -> None:
        self.world.program_at(self)


class ProgramPlace(Protocol):
    """Where a program runs, for the functions below."""

    rng: Random

    def now(self) -> float: ...
    def keep(self, name: str, values: Row) -> None: ...
    def sent(self, by: str | None) -> Traffic: ...
    def position(self) -> tuple[float, float]: ...


@dataclass
class _VirtualPlace:
    """At a host of a world, or in its scene."""

    world: RunningWorld
    host: str
    rng: Random

    def now(self) -> float:
        return self.world.loop.time()

    def keep(self, name: str, values: Row) -> None:
        row = {"time": self.now(), "host": self.host, "name": name, **values}
        self.world.rows.append(row)
        self.world.note(f"record {row!r}")

    def sent(self, by: str | None) -> Traffic:
        sent = self.world.network.sent
        return total(one for (source, _), one in sent.items() if by in (None, source))

    def position(self) -> tuple[float, float]:
        return self.world.network.position(self.host) if self.host else (0.0, 0.0)


PLACE: ContextVar[ProgramPlace] = ContextVar("place")


def record(name: str, **values: Any) -> None:
    """Keep a measurement of the program that calls it: a row with the time, the host, this name and
    these values (texts, numbers, None). In a scene the host is "". Raises LabError outside of a
    world."""
    place = _place()
    for key, value in values.items():
        if key in ("time", "host") or not isinstance(value, str | int | float | None):
            raise BadArgument(key, "another key than time and host, and a text or number", value)
    place.keep(name, values)


def now() -> float:
    """The time of the world, in seconds from its start."""
    return _place().now()


def sent(by: str | None = None) -> Traffic:
    """The messages and bytes that all hosts, or the host of this name, have sent so far."""
    return _place().sent(by)


def random() -> Random:
    """The random numbers of this program: the same in every run of the seed."""
    return _place().rng


def position() -> tuple[float, float]:
    """Where the host of this program is, in metres; (0, 0) in a wired network, and in a scene."""
    return _place().position()


def _place() -> ProgramPlace:
    try:
        return PLACE.get()
    except LookupError:
        raise LabError("this is not called by a program that runs in a world") from None


def total(traffics: Iterable[Traffic]) -> Traffic:
    """The sum of messages and bytes."""
    total = Traffic()
    for traffic in traffics:
        total.frames += traffic.frames
        total.bytes += traffic.bytes
    return total


def versions() -> dict[str, str]:
    """Of Tupelo and Python."""
    from tupelo import __version__

    return {"tupelo": __version__, "python": platform.python_version()}
