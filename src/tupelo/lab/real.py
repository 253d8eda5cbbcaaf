"""The real network of the lab: hosts as processes in network namespaces, and a radio in user space.

For each host of a world there are `tupelo host`, as users run it, and the program of the experiment
as its client (see `HostOfClient`), both in a namespace of their own, with real sockets and a real
clock. In a world with `embedded` hosts, the host is in the process of the program. Their packets go
through a TUN device to the hub, which is in the process that runs the experiment. For each packet
it asks the model of `tupelo.lab.radio` (range, mobility, shared air, collisions, loss, retries,
routes) when it arrives, if at all, and writes it to the device of the target then. So topology,
loss and delay are those of the virtual network, while TCP, TLS, the operating system and the
scheduling are real.

This needs Linux, root and /dev/net/tun; LabError says what is missing. Nothing is left behind: the
namespaces and devices end with their processes.

Not modelled: multicast and broadcast, which are dropped, so hosts are told the addresses of others.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from tupelo import aio
from tupelo.errors import BadArgument
from tupelo.federation.hosts.doors import own_identity
from tupelo.federation.identity.trust import Trust
from tupelo.lab.loop import LabError, VirtualLoop
from tupelo.lab.network import Traffic
from tupelo.lab.paradigms import HostOfClient
from tupelo.lab.radio import Radio, RadioNetwork
from tupelo.lab.torture.processes import HOST_COMMAND, Command, TortureFailed, end_with_parent
from tupelo.lab.world import PLACE, Program, Result, Row, RunningWorld, World, total, versions

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

TUN = "/dev/net/tun"
DEVICE = b"radio0"
FIRST_ADDRESS = IPv4Address("10.77.0.1")
NETMASK = IPv4Address("255.255.0.0")
PORT = 7700
PACKET_BYTES_MAX = 2_048
PACKETS_AT_ONCE = 32
QUEUE_SECONDS = 0.5
"""A packet is dropped if the air around its sender is reserved for longer."""
READY_SECONDS = 120.0
END_SECONDS = 30.0
LINE_BYTES_MAX = 1 << 30

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
IFF_UP = 0x1


Scene: TypeAlias = Callable[[RunningWorld], Awaitable[Any]]
Streams: TypeAlias = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


class _FromMember(msgspec.Struct):
    """What the process of a host reports: that it is ready, and later that its program has
    returned; its records, or why it failed."""

    ready: bool = False
    rows: list[dict[str, Any]] = []
    error: str = ""


def run_real(
    world: World,
    programs: Mapping[str, Program],
    seconds: float,
    scene: Scene | None,
    progress: Callable[[float], object] | None,
) -> Result:
    """Run the programs at hosts that are processes, until the time is over, or all have returned.
    The scene runs in this process, with a world that has only a network. Raises LabError if the
    machine does not allow it, or if a program fails."""
    _require_machine()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tupelo-lab-", ignore_cleanup_errors=True) as home:
        numbers = range(len(world.names))
        members = [_Member(world, number, programs, seconds, home) for number in numbers]
        try:
            tuns = [member.start() for member in members]
            hub = _Hub(world, tuns)
            rows = asyncio.run(_conduct(members, hub, seconds, scene, progress))
        finally:
            for member in members:
                member.end()
    late = sorted(hub.late) or [0.0]
    lateness = {"late_median": late[len(late) // 2], "late_99": late[len(late) * 99 // 100]}
    return Result(
        parameters=world.parameters() | lateness,
        rows=sorted(rows, key=lambda row: float(row["time"])),
        traffic=hub.traffic,
        air=hub.network.air,
        digest="",
        seconds=seconds,
        real_seconds=time.perf_counter() - began,
        versions=versions(),
    )


def _require_machine() -> None:
    missing = [
        what
        for what, is_there in (
            ("Linux", sys.platform == "linux"),
            ("root", hasattr(os, "geteuid") and os.geteuid() == 0),
            (TUN, Path(TUN).exists()),
        )
        if not is_there
    ]
    if missing:
        raise LabError(
            f"a real network needs {' and '.join(missing)}, which this machine does not offer; "
            "without --real the network is virtual"
        )


def _address(number: int) -> str:
    return str(FIRST_ADDRESS + number)


# In the process that runs the experiment


async def _conduct(
    members: list[_Member],
    hub: _Hub,
    seconds: float,
    scene: Scene | None,
    progress: Callable[[float], object] | None,
) -> list[Row]:
    """Wait until all hosts are ready, start the programs, and collect their records."""
    hub.open()
    try:
        streams = [
            await asyncio.open_connection(sock=member.control, limit=LINE_BYTES_MAX)
            for member in members
        ]
        await asyncio.gather(*(_heard(reader, READY_SECONDS) for reader, _ in streams))
        start = hub.begin()
        for _, writer in streams:
            writer.write(msgspec.json.encode(start) + b"\n")
        beside = [asyncio.ensure_future(_tell(progress, hub, seconds))]
        place = _HubPlace(hub)
        if scene is not None:
            beside.append(asyncio.ensure_future(_direct(scene, place)))
        try:
            running = {reader for reader, _ in streams}
            reports = await asyncio.gather(
                *(_report_of(reader, streams, running, seconds) for reader, _ in streams)
            )
        finally:
            for task in beside:
                task.cancel()
            for ended in await asyncio.gather(*beside, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
        for member in members:
            member.is_over = True
        return place.rows + [row for report in reports for row in report.rows]
    finally:
        hub.close()


async def _report_of(
    reader: asyncio.StreamReader, streams: Streams, running: set[asyncio.StreamReader], wait: float
) -> _FromMember:
    """The records of one host. When no program is `running` any more, all hosts are stopped."""
    report = await _heard(reader, wait + END_SECONDS)
    if report.ready:
        running.discard(reader)
        if not running:
            for _, writer in streams:
                writer.write(b"\n")
        report = await _heard(reader, wait + END_SECONDS)
    return report


@dataclass
class _HubPlace:
    """Where a scene runs."""

    hub: _Hub
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = Random(f"{self.hub.seed} scene")

    def now(self) -> float:
        return self.hub.time()

    def keep(self, name: str, values: Row) -> None:
        self.rows.append({"time": self.now(), "host": "", "name": name, **values})

    def sent(self, by: str | None) -> Traffic:
        sent = self.hub.traffic.items()
        return total(traffic for (source, _), traffic in sent if by in (None, source))

    def position(self) -> tuple[float, float]:
        return 0.0, 0.0


class _NetworkOnly:
    """The world of a scene in a real network, which can look at the hosts and part them."""

    def __init__(self, network: RadioNetwork) -> None:
        self.network = network

    def __getattr__(self, name: str) -> Any:
        raise LabError(f"in a real network a scene has world.network, but not world.{name}")

    def __getitem__(self, name: str) -> Any:
        raise LabError("in a real network a scene has world.network, but no hosts")


async def _direct(scene: Scene, place: _HubPlace) -> None:
    PLACE.set(place)
    await scene(cast(RunningWorld, _NetworkOnly(place.hub.network)))


async def _tell(progress: Callable[[float], object] | None, hub: _Hub, seconds: float) -> None:
    while progress is not None:
        progress(min(seconds, hub.time()))
        await asyncio.sleep(1)


async def _heard(reader: asyncio.StreamReader, wait: float) -> _FromMember:
    try:
        async with asyncio.timeout(wait):
            line = await reader.readline()
    except TimeoutError:
        raise LabError(f"a host of the real network said nothing for {wait:.0f} s") from None
    if not line:
        raise LabError("a host of the real network has ended")
    report = msgspec.json.decode(line, type=_FromMember)
    if report.error:
        raise LabError(report.error)
    return report


@dataclass
class _Member:
    """A host, as the hub sees it: `control` is the connection to its process."""

    world: World
    number: int
    programs: Mapping[str, Program]
    seconds: float
    home: str
    control: socket.socket = field(init=False)
    process: BaseProcess | None = None
    is_over: bool = False
    """Whether it has reported, and ends by itself."""

    def start(self) -> int:
        """Start its process, which makes the namespace: the TUN device in there."""
        self.control, theirs = socket.socketpair()
        # A fork, because programs are closures of the experiment.
        forked = multiprocessing.get_context("fork")
        self.process = forked.Process(target=_run_member, args=(self, theirs), daemon=False)
        self.process.start()
        theirs.close()
        told, files, _, _ = socket.recv_fds(self.control, 1_000, 1)
        if not files:
            raise LabError(told.decode() or f"the process of {self.name} has ended")
        os.set_blocking(files[0], False)
        return files[0]

    @property
    def name(self) -> str:
        return self.world.names[self.number]

    @property
    def address(self) -> str:
        return f"{_address(self.number)}:{PORT}"

    @property
    def peers(self) -> list[str]:
        """The addresses that the host connects to: one of two connects."""
        return [f"{_address(number)}:{PORT}" for number in range(self.number)]

    @property
    def folder(self) -> Path | None:
        return None if self.world.folder is None else self.world.folder / self.name

    def end(self) -> None:
        """End its process, with all that it has started."""
        if self.process is not None:
            self.control.close()
            self.process.join(END_SECONDS if self.is_over else 0.0)
            self.process.kill()
            self.process.join()


class _Hub:
    """The radio: passes packets between the devices, as `RadioNetwork` decides.

    It is what a `RadioNetwork` needs of a loop, too: time, seed and random numbers."""

    def __init__(self, world: World, tuns: list[int]) -> None:
        assert isinstance(world.network, Radio)
        self.seed = world.seed
        self.rng = Random(f"{world.seed} hub")
        self.late: list[float] = []
        """By how many seconds each packet was delivered too late."""
        self._radio = world.network
        self._names = world.names
        self._tuns = tuns
        self._began = time.monotonic()
        self._reset()

    def _reset(self) -> None:
        self.traffic: dict[tuple[str, str], Traffic] = {}
        self.network = RadioNetwork(cast(VirtualLoop, self), self._radio, self._names)
        self.late.clear()

    def time(self) -> float:
        """Seconds since `begin`."""
        return time.monotonic() - self._began

    def begin(self) -> float:
        """From now on it is the time of the experiment: the moment, on the monotonic clock."""
        self._began = time.monotonic()
        self._reset()
        return self._began

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        for number, tun in enumerate(self._tuns):
            self._loop.add_reader(tun, self._heard, number)

    def close(self) -> None:
        for tun in self._tuns:
            self._loop.remove_reader(tun)
            os.close(tun)
        self._tuns = []

    def _heard(self, source: int) -> None:
        for _ in range(PACKETS_AT_ONCE):
            try:
                packet = os.read(self._tuns[source], PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:  # Its process has ended.
                self._loop.remove_reader(self._tuns[source])
                return
            target = _target_of(packet)
            if target is not None and 0 <= target < len(self._names) and target != source:
                self._forward(source, target, packet)

    def _forward(self, source: int, target: int, packet: bytes) -> None:
        ends = self._names[source], self._names[target]
        traffic = self.traffic.setdefault(ends, Traffic())
        traffic.frames += 1
        traffic.bytes += len(packet)
        if self.network.reserved(source) > QUEUE_SECONDS or self.network.parted(*ends):
            return
        arrival = self.network.forward(source, target, len(packet))
        if arrival is not None:
            due = self._began + arrival
            self._loop.call_later(due - time.monotonic(), self._deliver, target, packet, due)

    def _deliver(self, target: int, packet: bytes, due: float) -> None:
        self.late.append(time.monotonic() - due)
        if self._tuns:
            with suppress(OSError):  # Its process has ended, or its queue is full.
                os.write(self._tuns[target], packet)


def _target_of(packet: bytes) -> int | None:
    """The number of the host to which an IPv4 packet goes; None for any other packet."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return None
    return int.from_bytes(packet[16:20], "big") - int(FIRST_ADDRESS)


# In the process of a host


@dataclass
class _RealPlace:
    """Where the program of a host runs."""

    member: _Member
    start: float
    rng: Random
    rows: list[Row] = field(default_factory=list)

    def now(self) -> float:
        return time.monotonic() - self.start

    def keep(self, name: str, values: Row) -> None:
        row = {"time": self.now(), "host": self.member.name, "name": name, **values}
        self.rows.append(row)

    def sent(self, by: str | None) -> Traffic:
        raise LabError("a program of a real network does not see what is sent: the result does")

    def position(self) -> tuple[float, float]:
        world, number = self.member.world, self.member.number
        assert isinstance(world.network, Radio)
        course = world.network.mobility.course(
            self.member.name, number, len(world.names), world.seed
        )
        return course.at(self.now())


def _run_member(member: _Member, control: socket.socket) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends it.
    try:
        tun = _make_network(member.number)
    except OSError as error:
        control.sendall(f"a network namespace cannot be made: {error}".encode())
        return
    socket.send_fds(control, [b"tun"], [tun])
    os.close(tun)
    os.environ["TUPELO_HOME"] = str(Path(member.home) / member.name)
    asyncio.run(_live(member, control))


async def _live(member: _Member, control: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=control)
    try:
        report = _FromMember(rows=await _play(member, reader, writer))
    except Exception as error:
        said = f"in {member.name}: {type(error).__name__}: {error}"
        if isinstance(error, BadArgument) and not member.world.embedded:
            said += "; with --set embedded=true the host is in the process of the program"
        report = _FromMember(error=said)
    writer.write(msgspec.json.encode(report) + b"\n")
    await writer.drain()
    writer.close()


async def _play(
    member: _Member, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> list[Row]:
    """Start the host, say that it is ready, and run the program until the time is over."""
    world, name = member.world, member.name
    place = _RealPlace(member, time.monotonic(), Random(f"{world.seed} {name} program 1"))
    PLACE.set(place)  # Whatever runs at an embedded host, also a call from elsewhere, may record.
    async with (_embedded if world.embedded else _beside)(member) as host:
        writer.write(msgspec.json.encode(_FromMember(ready=True)) + b"\n")
        place.start = msgspec.json.decode(await reader.readline(), type=float)
        program = member.programs.get(name) or member.programs.get("*")
        with suppress(TimeoutError):
            async with asyncio.timeout(member.seconds - place.now()):
                if program is not None:
                    await program(cast(Any, host))
                writer.write(msgspec.json.encode(_FromMember(ready=True)) + b"\n")
                await reader.readline()  # Other programs may need this host.
        return place.rows


@asynccontextmanager
async def _embedded(member: _Member) -> AsyncIterator[aio.Host]:
    """The host in the process of its program."""
    async with aio.Host(
        member.name,
        listen=member.address,
        peers=member.peers,
        path=member.folder,
        identity=own_identity(member.name, None),
        trust=Trust.anyone(),
        heartbeat=member.world.heartbeat,
    ) as host:
        yield host


@asynccontextmanager
async def _beside(member: _Member) -> AsyncIterator[HostOfClient]:
    """The host as `tupelo host`, and a client of it."""
    name = member.name
    home = Path(os.environ["TUPELO_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    options = ["--listen", member.address, "--trust", "anyone"]
    options += ["--heartbeat", str(member.world.heartbeat)]
    for peer in member.peers:
        options += ["--peer", peer]
    if member.folder is not None:
        options += ["--path", str(member.folder)]
    process = await Command.start(name, [*HOST_COMMAND, "host", name, *options], home, home)
    host = HostOfClient(name, f"tupelo://{member.address}/")
    try:
        try:
            await process.line()  # It listens.
        except TortureFailed:
            said = (home / f"{name}.log").read_text().strip()
            raise LabError(f"tupelo host does not start: {said}") from None
        process.discard_output()
        await host.open()
        yield host
    finally:
        await process.kill()


def _make_network(number: int) -> int:
    """Enter a new network namespace with a TUN device, and return its file. Raises OSError."""
    import fcntl  # which only Unix has

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    with suppress(OSError):
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    tun = os.open(TUN, os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", DEVICE, IFF_TUN | IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as configured:

        def set_address(request: int, address: IPv4Address) -> None:
            family = socket.AF_INET
            asked = struct.pack("16sH2x4s16x", DEVICE, family, address.packed)
            fcntl.ioctl(configured, request, asked)

        def set_up(device: bytes) -> None:
            asked = fcntl.ioctl(configured, SIOCGIFFLAGS, struct.pack("16sH22x", device, 0))
            (flags,) = struct.unpack_from("16xH", asked)
            asked = struct.pack("16sH22x", device, flags | IFF_UP)
            fcntl.ioctl(configured, SIOCSIFFLAGS, asked)

        set_up(b"lo")
        set_address(SIOCSIFADDR, FIRST_ADDRESS + number)
        set_address(SIOCSIFNETMASK, NETMASK)
        set_up(DEVICE)
    return tun
