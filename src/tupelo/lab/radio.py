"""A radio in virtual time: hosts hear each other within a range, share the air, and move.

`Radio` describes it, `RadioNetwork` is it. A link between two hosts still behaves like a TCP
connection: frames arrive in order, and what cannot be sent now is tried again with back-off; but
its packets go through the air, hop by hop along a route.

What is modelled, after 802.11b in ad hoc mode:

- **Range.** Two hosts hear each other within `range` metres, and sense each other's transmissions
  within `sensing` times that. `two_ray_range` gives the range of a transmitter.
- **Airtime.** A packet has at most 1,460 bytes of a frame, with the headers of TCP, IP and the
  MAC, a preamble, and an acknowledgement. Hosts that sense a transmission wait until it is over,
  then for a random number of slots.
- **Collisions.** A packet collides if the receiver hears a host that the sender does not sense
  (a hidden terminal), or if another host that waits for the same air draws the same slot.
- **Loss.** Each packet on each hop is lost with the probability `loss`, besides.
- **Retries.** A packet is sent up to `sends` times on a hop, 7 by default; then the hop counts as
  broken, the router is told, and the link tries again later.
- **Routes**: `direct` (one hop only), `aodv` or `dsr`, see `tupelo.lab.routing`.

What is simplified: the air is reserved when a frame is sent, in the order of the sends, instead of
slot by slot, so that one frame costs one event; of two packets that collide, the one that was there
first is received; back-off does not count down while the air is busy; TCP's window is not limited,
and its acknowledgements take airtime, but are never lost; there is no noise that grows with the
distance, and a position holds for `step` seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import dist, log10, pi
from random import Random
from typing import TYPE_CHECKING, Literal

from tupelo.errors import BadArgument
from tupelo.lab.mobility import Course, Mobility, Point, Still
from tupelo.lab.network import VirtualNetwork

if TYPE_CHECKING:
    from tupelo.lab.loop import VirtualLoop
    from tupelo.lab.routing import Route, Router

SLOT_SECONDS = 20e-6
SIFS_SECONDS = 10e-6
DIFS_SECONDS = 50e-6
PREAMBLE_SECONDS = 192e-6
ACK_BYTES = 14
BASIC_RATE = 1e6
"""The rate of acknowledgements and broadcasts, in bits a second."""
MAC_BYTES = 36
TCP_IP_BYTES = 52
SEGMENT_BYTES = 1_460
WINDOW_MIN, WINDOW_MAX = 31, 1_023
"""The contention window, in slots; it doubles with each retry."""
SENDS_MAX = 7
"""How often a packet is sent on a hop, by default, before the hop counts as broken."""

Routing = Literal["direct", "aodv", "dsr"]


@dataclass(frozen=True, kw_only=True)
class Radio:
    """The radio of a world: `World(hosts=20, network=Radio(range=80, loss=0.1))`.

    `range` is in metres, `bandwidth` in bits a second, `loss` the share of the packets that is lost
    on each hop, `delay` what a host needs to handle a packet, in seconds. `sensing` is how many
    times the range a transmission is sensed, `step` how many seconds a position holds, `sends` how
    often a packet is sent on a hop at most.
    """

    range: float = 250.0
    mobility: Mobility = field(default_factory=Still)
    loss: float = 0.0
    bandwidth: float = 11e6
    delay: float = 0.0005
    routing: Routing = "direct"
    sensing: float = 2.0
    step: float = 0.5
    sends: int = SENDS_MAX

    def __post_init__(self) -> None:
        for name in ("range", "bandwidth", "step"):
            if not getattr(self, name) > 0:
                raise BadArgument(name, "a positive number", getattr(self, name))
        if not 0 <= self.loss < 1:
            raise BadArgument("loss", "a share from 0 to below 1", self.loss)
        if not self.delay >= 0:
            raise BadArgument("delay", "a number of seconds", self.delay)
        if not self.sensing >= 1:
            raise BadArgument("sensing", "1 or more", self.sensing)
        if not isinstance(self.sends, int) or self.sends < 1:
            raise BadArgument("sends", "an integer from 1", self.sends)
        if self.routing not in ("direct", "aodv", "dsr"):
            raise BadArgument("routing", "direct, aodv or dsr", self.routing)

    def build(self, loop: VirtualLoop, names: Sequence[str]) -> RadioNetwork:
        """The network of the hosts of these names."""
        return RadioNetwork(loop, self, names)


@dataclass
class AirStatistics:
    """What went through the air."""

    packets: int = 0
    """Of frames, each transmission counted: every hop, every retry."""
    routing_packets: int = 0
    beacons: int = 0
    bytes: int = 0
    collisions: int = 0
    lost: int = 0
    """Packets that were lost by `loss`."""
    broken: int = 0
    """Packets that were given up after the last retry."""
    airtime: float = 0.0
    """Seconds, of all transmissions."""


class RadioNetwork(VirtualNetwork):
    """A virtual network whose frames go through the air. Hosts have numbers, from 0."""

    def __init__(self, loop: VirtualLoop, radio: Radio, names: Sequence[str]) -> None:
        super().__init__(loop)
        from tupelo.lab.routing import router

        self.radio = radio
        self.names = list(names)
        self.air = AirStatistics()
        self._numbers = {name: number for number, name in enumerate(names)}
        self._courses: list[Course] = [
            radio.mobility.course(name, number, len(names), loop.seed)
            for number, name in enumerate(names)
        ]
        self._rng = Random(f"{loop.seed} radio")
        self._busy = [0.0] * len(names)  # until when each host senses a transmission
        self._queued = [0.0] * len(names)  # when the last packet of each host begins
        self._topology_of = -1.0
        self._heard: list[list[int]] = []
        self._sensed: list[list[int]] = []
        self._router: Router = router(radio.routing, self)

    # Where the hosts are

    def position(self, name: str) -> Point:
        """Where the host of this name is now, in metres."""
        return self._courses[self._numbers[name]].at(self.loop.time())

    def neighbours(self, name: str) -> list[str]:
        """The hosts within range."""
        return [self.names[number] for number in self.heard(self._numbers[name])]

    def heard(self, number: int) -> list[int]:
        """The numbers of the hosts within range of this one, in order."""
        self._look_around()
        return self._heard[number]

    def _look_around(self) -> None:
        step = int(self.loop.time() / self.radio.step) * self.radio.step
        if step == self._topology_of:
            return
        self._topology_of = step
        places = [course.at(step) for course in self._courses]
        far = self.radio.range * self.radio.sensing
        cells: dict[tuple[int, int], list[int]] = {}
        for number, (x, y) in enumerate(places):
            cells.setdefault((int(x // far), int(y // far)), []).append(number)
        self._heard, self._sensed = [], []
        for number, (x, y) in enumerate(places):
            column, row = int(x // far), int(y // far)
            near = sorted(
                (other, distance)
                for across in (column - 1, column, column + 1)
                for up in (row - 1, row, row + 1)
                for other in cells.get((across, up), ())
                if other != number and (distance := dist((x, y), places[other])) <= far
            )
            self._sensed.append([other for other, _ in near])
            self._heard.append([other for other, away in near if away <= self.radio.range])

    # Sending

    def transmit(
        self, source: str, target: str, size: int, earliest: float
    ) -> tuple[float, float] | None:
        here, there = self._numbers.get(source), self._numbers.get(target)
        if here is None or there is None or here == there:
            return super().transmit(source, target, size, earliest)
        if self.parted(source, target):
            return None
        found = self._router.route(here, there, earliest)
        if found is None:
            return None
        route, free = found
        left = size
        while True:
            segment = min(left, SEGMENT_BYTES)
            passed = self._pass(here, route, segment + TCP_IP_BYTES, free)
            if passed is None:
                return None
            free, arrival = passed
            for near in route:  # The acknowledgement of TCP goes back the same way.
                self._acknowledge(near)
            left -= segment
            if left <= 0:
                return free, arrival

    def forward(self, source: int, target: int, size: int) -> float | None:
        """Send a packet of a real program now, with all headers of its own: when it arrives. None
        if it is lost; nobody repeats it here."""
        found = self._router.route(source, target, self.loop.time())
        passed = None if found is None else self._pass(source, found[0], size, found[1])
        return None if passed is None else passed[1]

    def reserved(self, sender: int) -> float:
        """For how many seconds from now the air around this host is reserved."""
        return self._busy[sender] - self.loop.time()

    def _pass(
        self, source: int, route: Route, size: int, earliest: float
    ) -> tuple[float, float] | None:
        """Send a packet along a route: when the sender is free again, and when it arrives. None if
        a hop is broken, of which the router is told."""
        free = arrival = earliest
        size += self._router.header_bytes(route)
        for near, far in zip((source, *route), route, strict=False):
            there_at = self._hop(near, far, size, arrival)
            if there_at is None:
                self._router.broken(source, route[-1], (near, far))
                return None
            if near == source:
                free = there_at
            arrival = there_at + self.radio.delay
        return free, arrival

    def airtime(self, size: int) -> float:
        """How long a packet with so many bytes above the MAC occupies the air, with its
        acknowledgement."""
        return _airtime(size, self.radio.bandwidth)

    def _hop(self, sender: int, receiver: int, size: int, earliest: float) -> float | None:
        """Send a packet to a neighbour: when it is there. None if it was given up."""
        self._look_around()
        air, rng, loss = self.air, self._rng, self.radio.loss
        near = receiver in self._heard[sender]
        seconds = self.airtime(size)
        time = earliest
        for sends in range(self.radio.sends):
            window = min(WINDOW_MAX, (WINDOW_MIN + 1 << sends) - 1)
            waiting = self._waiting_for_the_air(sender, time)
            start = max(time, self._busy[sender]) + DIFS_SECONDS
            start += rng.randint(0, window) * SLOT_SECONDS
            hidden = near and self._busy[receiver] > start
            same_slot = waiting and rng.random() > (1 - 1 / (window + 1)) ** waiting
            self._occupy(sender, start, seconds)
            self._queued[sender] = start
            air.packets += 1
            air.bytes += size
            time = start + seconds
            if not near:
                continue
            if hidden or same_slot:
                air.collisions += 1
            elif loss and rng.random() < loss:
                air.lost += 1
            else:
                return time
        air.broken += 1
        return None

    def _waiting_for_the_air(self, sender: int, time: float) -> int:
        """How many hosts that the sender senses have a packet that has not begun by this time."""
        if self._busy[sender] <= time:
            return 0
        queued = self._queued
        return sum(1 for other in self._sensed[sender] if queued[other] > time)

    def _occupy(self, sender: int, start: float, seconds: float) -> None:
        """The air around the sender is in use: from `start`, or after what it senses."""
        busy = self._busy
        end = max(start, busy[sender]) + seconds
        busy[sender] = end
        for other in self._sensed[sender]:
            if busy[other] < end:
                busy[other] = end
        self.air.airtime += seconds

    def _acknowledge(self, sender: int) -> None:
        """Somewhen the air around the sender is in use for an acknowledgement of TCP."""
        now, busy, seconds = self.loop.time(), self._busy, self.airtime(TCP_IP_BYTES)
        for host in (sender, *self._sensed[sender]):
            busy[host] = max(busy[host], now) + seconds
        self.air.airtime += seconds

    def broadcast(self, sender: int, size: int, *, routing: bool = False) -> list[int]:
        """Send a packet to all neighbours, once: the numbers of those that have received it."""
        self._look_around()
        now = self.loop.time()
        seconds = PREAMBLE_SECONDS + 8 * (size + MAC_BYTES) / BASIC_RATE
        self._occupy(sender, now, DIFS_SECONDS + seconds)
        if routing:
            self.air.routing_packets += 1
        else:
            self.air.beacons += 1
        self.air.bytes += size
        loss, rng = self.radio.loss, self._rng
        name = self.names[sender]
        return [
            other
            for other in self._heard[sender]
            if not (loss and rng.random() < loss) and not self.parted(name, self.names[other])
        ]

    def control(self, path: Sequence[int], size: int) -> None:
        """A packet of the router goes along this path, hop by hop."""
        for sender in path[:-1]:
            self._occupy(sender, self.loop.time(), self.airtime(size))
            self.air.routing_packets += 1
            self.air.bytes += size


@lru_cache(maxsize=10_000)
def _airtime(size: int, bandwidth: float) -> float:
    packet = PREAMBLE_SECONDS + 8 * (size + MAC_BYTES) / bandwidth
    return packet + SIFS_SECONDS + PREAMBLE_SECONDS + 8 * ACK_BYTES / BASIC_RATE


def two_ray_range(
    power: float = 15.0,
    sensitivity: float = -83.0,
    height: float = 1.5,
    frequency: float = 2.4e9,
) -> float:
    """The range in metres by the two-ray ground model: free space up to the crossover distance,
    beyond it the received power falls with the fourth power of the distance.

    `power` (sent) and `sensitivity` (the weakest signal that is received) are in dBm, `height` is
    that of both antennas in metres, `frequency` is in hertz.
    """
    if not power > sensitivity:
        raise BadArgument("sensitivity", "less than power", sensitivity)
    wavelength = 299_792_458 / frequency
    crossover = 4 * pi * height**2 / wavelength
    budget = power - sensitivity
    at_crossover = 20 * log10(4 * pi * crossover / wavelength)
    if budget <= at_crossover:
        return float(wavelength / (4 * pi) * 10 ** (budget / 20))
    return float(height * 10 ** (budget / 40))
