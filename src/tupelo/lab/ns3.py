"""A radio that is simulated by ns-3: 802.11b in ad hoc mode with AODV or DSR, packet by packet.

This needs ns-3 (GPL-2.0-only): `pip install "tupelo[ns3]"` compiles, and takes 520 MB. Nothing else
in Tupelo imports it. The event loop lets ns-3 run up to the next timer, or to the next packet that
arrives, so both have one clock, and a seed still decides all.

Hosts move as their `Mobility` says, and a position holds for `step` seconds. The received power is
that of two-ray ground, and zero beyond `range`. `loss` is the share of the frames of the radio that
is lost besides, acknowledgements included; the MAC repeats them.

Simplified: a link is no TCP of ns-3. Its messages go in datagrams of UDP, at most 16 of them
unacknowledged, each of which is acknowledged, and repeated after 0.2 to 10 seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tupelo.errors import BadArgument
from tupelo.lab.loop import LabError, VirtualLoop
from tupelo.lab.mobility import Course, Mobility, Point, Still
from tupelo.lab.network import (
    RETRY_SECONDS,
    Direction,
    LinkSignal,
    VirtualLink,
    VirtualNetwork,
    size_of,
)
from tupelo.lab.radio import AirStatistics

DATAGRAM_BYTES = 1_400
HEADER_BYTES = 24
"""What TCP would need besides: the sequence number, the window and so on."""
UNACKNOWLEDGED_MAX = 16
ACKNOWLEDGES = 1 << 62
RATES = {1e6: 1, 2e6: 2, 5.5e6: 5.5, 11e6: 11}

_CODE = r"""
#include "ns3/core-module.h"
#include "ns3/network-module.h"
#include "ns3/internet-module.h"
#include "ns3/mobility-module.h"
namespace tupelo {
using namespace ns3;
std::vector<uint64_t> arrived;
std::vector<Ptr<Socket>> sockets;
std::vector<Ipv4Address> addresses;
NodeContainer nodes;
uint64_t packets = 0, bytes = 0;
void received(Ptr<Socket> socket) {
  Address from;
  while (Ptr<Packet> packet = socket->RecvFrom(from)) {
    uint64_t tag = 0;
    packet->CopyData((uint8_t*)&tag, 8);
    arrived.push_back(tag);
  }
  Simulator::Stop();
}
void sent(Ptr<const Packet> packet, double) { packets++; bytes += packet->GetSize(); }
void open(NodeContainer given) {
  nodes = given;
  for (uint32_t i = 0; i < nodes.GetN(); i++) {
    auto socket = Socket::CreateSocket(nodes.Get(i), UdpSocketFactory::GetTypeId());
    socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), 7700));
    socket->SetRecvCallback(MakeCallback(&received));
    sockets.push_back(socket);
    addresses.push_back(nodes.Get(i)->GetObject<Ipv4>()->GetAddress(1, 0).GetLocal());
  }
  Config::ConnectWithoutContext(
    "/NodeList/*/DeviceList/*/$ns3::WifiNetDevice/Phy/PhyTxBegin", MakeCallback(&sent));
}
void close() {
  sockets.clear(); addresses.clear(); arrived.clear(); nodes = NodeContainer();
  packets = bytes = 0;
  Simulator::Destroy();
}
void transmit(uint32_t from, uint32_t to, uint32_t size, uint64_t tag) {
  Ptr<Packet> packet = Create<Packet>((uint8_t*)&tag, 8);
  if (size > 8) packet->AddAtEnd(Create<Packet>(size - 8));
  sockets[from]->SendTo(packet, 0, InetSocketAddress(addresses[to], 7700));
}
void send(uint32_t from, uint32_t to, uint32_t size, uint64_t tag) {
  auto context = nodes.Get(from)->GetId();
  Simulator::ScheduleWithContext(context, Seconds(0), &transmit, from, to, size, tag);
}
void place(uint32_t node, double x, double y) {
  nodes.Get(node)->GetObject<MobilityModel>()->SetPosition(Vector(x, y, 1.5));
}
double run(double until) {
  EventId end = Simulator::Schedule(Seconds(until) - Simulator::Now(), &Simulator::Stop);
  Simulator::Run();
  end.Cancel();
  return Simulator::Now().GetSeconds();
}
}
"""


@dataclass(frozen=True, kw_only=True)
class Ns3:
    """The radio of a world, simulated by ns-3: `World(hosts=20, network=Ns3(routing="dsr"))`. The
    values are those of `Radio`; `bandwidth` is 1, 2, 5.5 or 11 Mb/s."""

    range: float = 250.0
    mobility: Mobility = field(default_factory=Still)
    loss: float = 0.0
    bandwidth: float = 11e6
    routing: Literal["aodv", "dsr"] = "aodv"
    step: float = 0.5

    def __post_init__(self) -> None:
        for name in ("range", "step"):
            if not getattr(self, name) > 0:
                raise BadArgument(name, "a positive number", getattr(self, name))
        if not 0 <= self.loss < 1:
            raise BadArgument("loss", "a share from 0 to below 1", self.loss)
        if self.bandwidth not in RATES:
            raise BadArgument("bandwidth", "1e6, 2e6, 5.5e6 or 11e6", self.bandwidth)
        if self.routing not in ("aodv", "dsr"):
            raise BadArgument("routing", "aodv or dsr", self.routing)

    def build(self, loop: VirtualLoop, names: Sequence[str]) -> Ns3Network:
        """The network of the hosts of these names. LabError if ns-3 is not installed."""
        return Ns3Network(loop, self, names)


class Ns3Network(VirtualNetwork):
    """A virtual network whose messages go through ns-3."""

    def __init__(self, loop: VirtualLoop, radio: Ns3, names: Sequence[str]) -> None:
        super().__init__(loop)
        self.radio = radio
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._courses: list[Course] = [
            radio.mobility.course(name, number, len(names), loop.seed)
            for number, name in enumerate(names)
        ]
        self._placed = -1
        self._tags: dict[int, tuple[_Ns3Direction, int]] = {}
        self._outside = _start(radio, len(names), loop.seed)
        loop.jump = self._jump

    @property
    def air(self) -> AirStatistics:
        """The frames of the radio, those of routing, of acknowledgements and repeated ones
        included."""
        return AirStatistics(packets=int(self._outside.packets), bytes=int(self._outside.bytes))

    def position(self, name: str) -> Point:
        return self._courses[self._numbers[name]].at(self.loop.time())

    def direction(self, source: VirtualLink, target: VirtualLink) -> Direction:
        if source.name in self._numbers and target.name in self._numbers:
            return _Ns3Direction(self, source, target)
        return super().direction(source, target)

    def send(self, direction: _Ns3Direction, part: int, tag: int, size: int) -> None:
        """Send a datagram of a direction."""
        self._tags[tag] = direction, part
        self._transmit(direction.source_name, direction.target_name, size, tag)

    def _transmit(self, source: str, target: str, size: int, tag: int) -> None:
        if not self.parted(source, target):
            self._outside.send(self._numbers[source], self._numbers[target], size, tag)

    def _jump(self, moment: float) -> float:
        """Let ns-3 run until this moment, or until something arrives: how far it has got."""
        step = int(self.loop.time() / self.radio.step)
        if step != self._placed:
            self._placed = step
            for number, course in enumerate(self._courses):
                self._outside.place(number, *course.at(step * self.radio.step))
        moment = min(moment, (step + 1) * self.radio.step)
        reached: float = self._outside.run(moment)
        arrived = [int(tag) for tag in self._outside.arrived]
        if not arrived:
            return moment
        self._outside.arrived.clear()
        for tag in arrived:
            self.loop.call_soon(self._arrived, tag)
        return min(moment, reached)

    def _arrived(self, tag: int) -> None:
        direction, part = self._tags.get(tag & ~ACKNOWLEDGES, (None, 0))
        if direction is None or self.parted(direction.source_name, direction.target_name):
            return
        if tag & ACKNOWLEDGES:
            del self._tags[tag & ~ACKNOWLEDGES]
            direction.acknowledged(part)
        else:
            self._transmit(
                direction.target_name, direction.source_name, HEADER_BYTES, tag | ACKNOWLEDGES
            )
            direction.part_arrived(part)


class _Ns3Direction(Direction):
    """One direction of a link: its messages are cut into numbered parts, which arrive in any order,
    and messages are delivered in theirs."""

    def __init__(self, network: Ns3Network, source: VirtualLink, target: VirtualLink) -> None:
        super().__init__(network, source, target)
        self.source_name, self.target_name = source.name, target.name
        self._outside = network
        self._parts = 0  # how many there are so far
        self._waiting_parts: deque[tuple[int, int]] = deque()  # number and size
        self._sent: dict[int, asyncio.TimerHandle] = {}  # not acknowledged
        self._arrived_parts: set[int] = set()
        self._last_parts: deque[int] = deque()  # of each message that has not arrived
        self._complete = 0  # so many parts have arrived without a gap

    @property
    def empty(self) -> bool:
        return super().empty and not self._sent

    def push(self, thing: bytes | LinkSignal) -> None:
        self._unsent.append(thing)
        self.waiting += size_of(thing)
        left = size_of(thing)
        while True:
            self._waiting_parts.append((self._parts, min(left, DATAGRAM_BYTES) + HEADER_BYTES))
            self._parts += 1
            left -= DATAGRAM_BYTES
            if left <= 0:
                break
        self._last_parts.append(self._parts - 1)
        self._send_parts()

    def _send_parts(self) -> None:
        while self._waiting_parts and len(self._sent) < UNACKNOWLEDGED_MAX:
            number, size = self._waiting_parts.popleft()
            self._send(number, self._outside.loop.number("datagram"), size, RETRY_SECONDS[0])

    def _send(self, number: int, tag: int, size: int, pause: float) -> None:
        self._outside.send(self, number, tag, size)
        again = min(RETRY_SECONDS[1], 2 * pause)
        self._sent[number] = self._outside.loop.call_later(
            pause, self._send, number, tag, size, again
        )

    def acknowledged(self, number: int) -> None:
        """The source knows that this part has arrived."""
        timer = self._sent.pop(number, None)
        if timer is not None:
            timer.cancel()
            self._send_parts()
            self._source.arrived()

    def part_arrived(self, number: int) -> None:
        """This part is at the target, perhaps once more."""
        self._arrived_parts.add(number)
        while self._complete in self._arrived_parts:
            self._arrived_parts.remove(self._complete)
            self._complete += 1
        now = self._outside.loop.time()
        while self._last_parts and self._last_parts[0] < self._complete and self._unsent:
            self._last_parts.popleft()
            self._under_way.append((now, self._unsent.popleft()))
        self.schedule()

    def clear(self) -> None:
        super().clear()
        for timer in self._sent.values():
            timer.cancel()
        self._sent.clear()
        self._waiting_parts.clear()
        self._last_parts.clear()


_loaded: list[Any] = []
"""The bindings and our code in them, after the first world."""


def _start(radio: Ns3, hosts: int, seed: int) -> Any:
    """Build the nodes; return the functions of `_CODE`."""
    if not _loaded:
        try:
            from ns import ns
        except ImportError as error:
            raise LabError('ns-3 is not installed: pip install "tupelo[ns3]"') from error
        ns.cppyy.cppdef(_CODE)
        _loaded.extend((ns, ns.cppyy.gbl.tupelo))
    ns, outside = _loaded
    outside.close()
    ns.RngSeedManager.SetSeed(1 + seed % 0xFFFFFFFE)
    ns.RngSeedManager.ResetNextStreamIndex()
    nodes = ns.NodeContainer()
    nodes.Create(hosts)
    channel = ns.YansWifiChannelHelper()
    channel.SetPropagationDelay("ns3::ConstantSpeedPropagationDelayModel")
    channel.AddPropagationLoss(
        "ns3::TwoRayGroundPropagationLossModel",
        "Frequency",
        ns.DoubleValue(2.4e9),
        "HeightAboveZ",
        ns.DoubleValue(0.0),
    )
    channel.AddPropagationLoss(
        "ns3::RangePropagationLossModel", "MaxRange", ns.DoubleValue(radio.range)
    )
    phy = ns.YansWifiPhyHelper()
    phy.SetChannel(channel.Create())
    mac = ns.WifiMacHelper()
    mac.SetType("ns3::AdhocWifiMac")
    wifi = ns.WifiHelper()
    wifi.SetStandard(ns.WIFI_STANDARD_80211b)
    rate = f"DsssRate{str(RATES[radio.bandwidth]).replace('.', '_')}Mbps"
    wifi.SetRemoteStationManager(
        "ns3::ConstantRateWifiManager",
        "DataMode",
        ns.StringValue(rate),
        "ControlMode",
        ns.StringValue("DsssRate1Mbps"),
    )
    devices = wifi.Install(phy, mac, nodes)
    mobility = ns.MobilityHelper()
    mobility.SetMobilityModel("ns3::ConstantPositionMobilityModel")
    mobility.Install(nodes)
    internet = ns.InternetStackHelper()
    if radio.routing == "dsr":
        internet.Install(nodes)
        ns.DsrMainHelper().Install(ns.DsrHelper(), nodes)
    else:
        internet.SetRoutingHelper(ns.AodvHelper())
        internet.Install(nodes)
    addresses = ns.Ipv4AddressHelper()
    addresses.SetBase(ns.Ipv4Address("10.77.0.0"), ns.Ipv4Mask("255.255.0.0"))
    addresses.Assign(devices)
    if radio.loss:
        for number in range(hosts):
            errors = ns.CreateObject[ns.RateErrorModel]()
            errors.SetUnit(ns.RateErrorModel.ERROR_UNIT_PACKET)
            errors.SetRate(radio.loss)
            errors.AssignStreams(1_000_000 + number)
            devices.Get(number).GetPhy().SetPostReceptionErrorModel(errors)
    outside.open(nodes)
    return outside
