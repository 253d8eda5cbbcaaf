"""A flood of altered frames: what it leaves in a host, and whether a client notices.

Half of the lines begin with a Hello that was altered, half are let in and send altered messages
then. A line ends with its first frame that cannot be understood; what was sent after it is thrown
away unread, as it should be. The host is a process of its own; meanwhile a client with a heartbeat
of a second writes and takes, and does not dial again if it loses its link.
"""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from statistics import median
from time import perf_counter
from uuid import uuid4

import tupelo
from benchmarks.elsewhere import SPACE, Elsewhere, run_hosts
from benchmarks.measure import Findings, Line, Settings, Table, Target
from tupelo.errors import LinkError
from tupelo.federation.links import wire
from tupelo.federation.links.tcp import PLAIN, PREAMBLE
from tupelo.values.codec import entry_to_wire
from tupelo.values.entry import shape_of
from tupelo.values.kind import kind_named
from tupelo.values.template_encoding import template_to_wire

FRAMES, SEED = 1_000_000, 7
FRAMES_A_LINE = 25
ALTERED = 50_000
"""How many different frames are sent, beside the Hello of each connection."""
WARM_UP = 20_000
RATIO_MAX = 1.2
MEBI = 2**20


class Client:
    """A client that works during the flood, and the time of each of its rounds."""

    def __init__(self, url: str) -> None:
        self._space = tupelo.connect(url, reconnect=0)
        self._over = threading.Event()
        self.seconds: list[float] = []
        self.lost = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.02):
            number += 1
            start = perf_counter()
            try:
                self._space.write(("round", number))
                self._space.take(("round", number), wait=60)
            except LinkError as error:
                self.lost = str(error)
                return
            self.seconds.append(perf_counter() - start)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._space.close()


def flood(address: str, frames: int, rng: random.Random) -> int:
    """Send so many altered frames; the number of connections that this took."""
    host, _, port = address.rpartition(":")
    lines = 0
    altered = [_altered(rng, wire.encode(rng.choice(_messages(rng)))) for _ in range(ALTERED)]
    for _ in range(0, frames, FRAMES_A_LINE):
        lines += 1
        hello = wire.encode(wire.Hello(wire.VERSION, "client", uuid4().hex, "x", uuid4().hex))
        first = hello if lines % 2 else _altered(rng, hello)
        said = rng.choices(altered, k=FRAMES_A_LINE - 1)
        with socket.create_connection((host, int(port))) as line, suppress(OSError):
            line.sendall(PREAMBLE + PLAIN + b"".join(map(wire.frame, [first, *said])))
            line.settimeout(20)
            line.shutdown(socket.SHUT_WR)
            while line.recv(65_536):  # until the host has hung up
                pass
    return lines


def _messages(rng: random.Random) -> list[wire.Message]:
    number = rng.randrange(1_000_000)
    kind = kind_named(f"far.Class{number}", (f"field{number}",), (f"far.Class{number}",))
    strange = entry_to_wire(shape_of(kind, (int,)), (number,))
    return [
        wire.Ping(),
        wire.DescribeHost(1),
        wire.Open(2, SPACE),
        wire.Write(3, SPACE, [strange], 1.0),
        wire.Write(4, SPACE, [["job", number, *[None] * (number % 40)]], 1.0),
        wire.Get(5, SPACE, template_to_wire(("job", number, str)), False, 0.0),
        wire.CountRequest(6, SPACE, template_to_wire(tupelo.Named(a=number))),
        wire.Confirm([number]),
        wire.Cancel([number]),
    ]


def _altered(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(max(1, len(changed)))
        match rng.randrange(3):
            case 0 if changed:
                changed[place] = rng.randrange(256)
            case 1:
                del changed[place : place + rng.randrange(1, 8)]
            case _:
                changed[place:place] = rng.randbytes(rng.randrange(8))
    return bytes(changed)


def run(settings: Settings) -> Findings:
    rng = random.Random(SEED)
    frames, warm_up = settings.size(FRAMES), settings.size(WARM_UP)
    with Elsewhere(run_hosts, ["host"]) as host:
        (address,) = host.said()
        client = Client(f"tupelo://{address}/{SPACE}")
        fresh = host.resident_bytes
        flood(address, warm_up, rng)
        before = host.resident_bytes
        start = perf_counter()
        lines = flood(address, frames, rng)
        seconds = perf_counter() - start
        after = host.resident_bytes
        client.stop()
    memory = [
        Line(
            f"memory of a host after {frames:,} altered frames",
            against,
            "MiB",
            Target("≤", RATIO_MAX),
            [after / MEBI],
            [other / MEBI],
        )
        for against, other in (("fresh", fresh), (f"after the first {warm_up:,}", before))
    ]
    times = [one * 1e3 for one in client.seconds]
    table = Table(
        "A client while altered frames come",
        ("its link", "rounds", "median, ms", "longest, ms"),
        [
            (
                f"lost: {client.lost}" if client.lost else "kept",
                f"{len(times):,}",
                f"{median(times):.1f}",
                f"{max(times):,.0f}",
            )
        ],
        f"A round is a write and a take. {frames:,} frames over {lines:,} connections in "
        f"{seconds:.0f} s, seed {SEED}.",
    )
    return Findings(memory, [table])
