"""The radio against closed forms, its routes, and worlds on it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from math import pi
from typing import Any

import pytest

from tupelo import lab
from tupelo.errors import BadArgument, CannotReach
from tupelo.lab.loop import VirtualLoop, run
from tupelo.lab.radio import DIFS_SECONDS as DIFS
from tupelo.lab.radio import SENDS_MAX, WINDOW_MIN, Radio, RadioNetwork
from tupelo.lab.radio import SLOT_SECONDS as SLOT
from tupelo.models.melon import Melon


def on_air(radio: Radio, hosts: int, scene: Any, seed: int = 1) -> Any:
    """Run `scene(network)` for hosts a, b, c ... on this radio."""

    async def main(loop: VirtualLoop) -> Any:
        return await scene(RadioNetwork(loop, radio, "abcdefghijklmnop"[:hosts]))

    return run(main, seed)


def test_the_airtime_of_a_packet_is_that_of_80211b() -> None:
    async def scene(network: RadioNetwork) -> None:
        # preamble + bits / rate + SIFS + preamble + acknowledgement at 1 Mb/s, by hand
        bits = 8 * (1_000 + 36)
        expected = 192e-6 + bits / 11e6 + 10e-6 + 192e-6 + 112e-6
        assert network.airtime(1_000) == pytest.approx(expected)
        sent = network.transmit("a", "b", 948, 0.0)  # with TCP and IP 1,000 bytes
        assert sent is not None
        waited = sent[0] - expected - DIFS
        assert waited / SLOT == pytest.approx(round(waited / SLOT), abs=1e-6)
        assert 0 <= round(waited / SLOT) <= WINDOW_MIN

    on_air(Radio(range=100), 2, scene)


@pytest.mark.parametrize(("spacing", "reached"), [(99.9, True), (100.1, False)])
def test_the_range_ends_where_it_says(spacing: float, reached: bool) -> None:
    async def scene(network: RadioNetwork) -> None:
        assert (network.transmit("a", "b", 10, 0.0) is not None) == reached
        assert network.neighbours("a") == (["b"] if reached else [])

    on_air(Radio(range=100, mobility=lab.Still(spacing=spacing)), 2, scene)


def test_two_ray_range_falls_with_the_fourth_power_beyond_the_crossover() -> None:
    near, far = lab.two_ray_range(power=0, sensitivity=-60), lab.two_ray_range(power=15)
    wavelength = 299_792_458 / 2.4e9
    crossover = 4 * pi * 1.5**2 / wavelength
    assert near < crossover < far
    assert near == pytest.approx(wavelength / (4 * pi) * 10**3)
    assert lab.two_ray_range(power=15 + 40) == pytest.approx(10 * far)
    assert lab.two_ray_range(power=20, sensitivity=-40) == pytest.approx(near)
    with pytest.raises(BadArgument, match="sensitivity"):
        lab.two_ray_range(power=-90)


@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_the_share_of_lost_packets_is_the_loss(loss: float) -> None:
    async def scene(network: RadioNetwork) -> None:
        for number in range(4_000):
            network.transmit("a", "b", 100, float(number))
        share = network.air.lost / network.air.packets
        assert share == pytest.approx(loss, rel=0.1)
        # A packet is given up with probability loss ** 7.
        assert network.air.broken <= 4_000 * loss**SENDS_MAX * 4 + 3

    on_air(Radio(range=100, loss=loss, mobility=lab.Still(spacing=10)), 2, scene)


def test_two_senders_that_wait_for_the_same_air_collide_as_often_as_they_draw_one_slot() -> None:
    async def scene(network: RadioNetwork) -> None:
        first = sends = 0
        for number in range(8_000):
            before = network.air.collisions, network.air.packets
            network.transmit("ab"[number % 2], "c", 100, 0.0)
            first += network.air.collisions > before[0]
            sends += 1
        assert first / sends == pytest.approx(1 / (WINDOW_MIN + 1), rel=0.2)

    on_air(Radio(range=100, mobility=lab.Still([(0, 0), (10, 0), (5, 5)])), 3, scene)


def test_hosts_in_range_of_each_other_share_the_air_and_distant_ones_do_not() -> None:
    async def scene(network: RadioNetwork) -> tuple[float, float]:
        for _ in range(200):
            near = network.transmit("a", "b", 1_400, 0.0)
            network.transmit("c", "d", 1_400, 0.0)
        far = network.transmit("a", "b", 1_400, 0.0)
        assert near is not None
        assert far is not None
        return far[0], network.air.airtime

    together = lab.Still([(0, 0), (50, 0), (0, 50), (50, 50)])
    apart = lab.Still([(0, 0), (50, 0), (5_000, 0), (5_050, 0)])
    shared, _ = on_air(Radio(range=100, mobility=together), 4, scene)
    alone, _ = on_air(Radio(range=100, mobility=apart), 4, scene)
    assert shared == pytest.approx(2 * alone, rel=0.15)


def test_a_hidden_terminal_makes_collisions() -> None:
    async def scene(network: RadioNetwork) -> int:
        for _ in range(50):
            network.transmit("a", "b", 1_400, 0.0)
            network.transmit("c", "b", 1_400, 0.0)
        return network.air.collisions

    # a and c hear b, but do not sense each other.
    line = lab.Still(spacing=90, line=True)
    assert on_air(Radio(range=100, sensing=1.0, mobility=line), 3, scene) > 20
    assert on_air(Radio(range=100, sensing=2.0, mobility=line), 3, scene) < 20


@pytest.mark.parametrize("routing", ["aodv", "dsr"])
def test_packets_go_hop_by_hop_along_a_route(routing: Any) -> None:
    async def scene(network: RadioNetwork) -> None:
        first = network.transmit("a", "e", 100, 0.0)
        assert first is not None
        packets, asked = network.air.packets, network.air.routing_packets
        assert packets >= 4, "four hops"
        assert asked >= 5 + 4, "a request by each host, and an answer over four hops"
        second = network.transmit("a", "e", 100, 1.0)
        assert second is not None
        assert network.air.routing_packets == asked, "the route is known"
        assert second[1] - 1.0 < first[1]
        assert network.transmit("a", "e", 100, 9.0) is not None
        expired = network.air.routing_packets > asked
        assert expired == (routing == "aodv"), "aodv forgets a route after 3 s, dsr does not"

    line = lab.Still(spacing=90, line=True)
    on_air(Radio(range=100, routing=routing, mobility=line), 5, scene)


@pytest.mark.parametrize("routing", ["aodv", "dsr"])
def test_a_broken_route_is_replaced(routing: Any, tmp_path: Any) -> None:
    # b leaves; c stands where it also joins a and d.
    (tmp_path / "trace").write_text("0 0 0\n0 90 0 5 90 0 6 90 900\n0 90 20\n0 180 0\n")
    radio = Radio(range=100, routing=routing, mobility=lab.Trace(tmp_path / "trace"))

    async def scene(network: RadioNetwork) -> None:
        assert network.transmit("a", "d", 100, 0.0) is not None
        await asyncio.sleep(2)
        assert network.transmit("a", "d", 100, 2.0) is not None
        broken = network.air.broken
        await asyncio.sleep(5)
        tries = 0
        while network.transmit("a", "d", 100, network.loop.time()) is None:
            tries += 1
            await asyncio.sleep(1)
        assert tries <= 2
        assert routing == "aodv" or network.air.broken > broken

    on_air(radio, 4, scene)


def test_nobody_is_reached_without_a_route() -> None:
    async def scene(network: RadioNetwork) -> None:
        assert network.transmit("a", "b", 10, 0.0) is None
        asked = network.air.routing_packets
        assert asked > 0
        assert network.transmit("a", "b", 10, 0.1) is None
        assert network.air.routing_packets == asked, "it waits before it asks again"

    on_air(Radio(range=100, routing="aodv", mobility=lab.Still(spacing=101)), 2, scene)


def test_a_dial_out_of_range_ends_and_leaves_nothing_behind() -> None:
    async def scene(network: RadioNetwork) -> None:
        await network.place("b").listen("b:1", lambda link: None)  # type: ignore[arg-type,return-value]
        with pytest.raises(CannotReach, match="no answer"):
            await network.place("a").dial("b:1", lambda link: None)  # type: ignore[arg-type,return-value]
        await asyncio.sleep(60)
        assert not network._links

    on_air(Radio(range=100, mobility=lab.Still(spacing=101)), 2, scene)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"range": 0}, "range"),
        ({"loss": 1.0}, "loss"),
        ({"loss": -0.1}, "loss"),
        ({"bandwidth": 0}, "bandwidth"),
        ({"sensing": 0.5}, "sensing"),
        ({"routing": "rip"}, "routing"),
        ({"delay": -1}, "delay"),
        ({"step": 0}, "step"),
    ],
)
def test_a_bad_radio_is_refused(options: dict[str, Any], argument: str) -> None:
    with pytest.raises(BadArgument, match=argument):
        Radio(**options)


# Worlds


async def gossip(host: Any) -> None:
    """Everybody says hello; everybody hears who comes near."""
    space = host.space("hello")
    await space.write(("hello", host.name), lease=None)
    heard: set[str] = set()
    while True:
        for _, name in await space.read_all(("hello", str)):
            if name not in heard:
                heard.add(name)
                lab.record("heard", of=name, at=lab.position()[0])
        await asyncio.sleep(lab.random().uniform(0.5, 1.5))


WALK = lab.RandomWaypoint(area=(300, 300), speed=(5, 10), pause=1)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    world = lab.World(hosts=5, seed=3, network=Radio(range=120, loss=0.1, mobility=WALK))
    one, two = (world.run(gossip, seconds=20) for _ in range(2))
    assert one.rows == two.rows
    assert one.digest == two.digest
    assert one.count("heard") > 5
    other = lab.World(hosts=5, seed=4, network=Radio(range=120, loss=0.1, mobility=WALK))
    assert other.run(gossip, seconds=20).digest != one.digest
    code = (
        "from tests.lab.test_radio import *\n"
        "world = lab.World(hosts=5, seed=3, network=Radio(range=120, loss=0.1, mobility=WALK))\n"
        "print(world.run(gossip, seconds=20).digest)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert process.stdout.strip() == one.digest


def test_hosts_are_found_by_beacons_and_lost_out_of_range(tmp_path: Any) -> None:
    (tmp_path / "trace").write_text("0 0 0\n0 900 0 10 900 0 19 0 0 40 0 0 49 900 0\n")
    radio = Radio(range=100, mobility=lab.Trace(tmp_path / "trace"))

    async def look(host: Any) -> None:
        while True:
            peers = await host.presence.count()
            lab.record("peers", count=peers)
            await asyncio.sleep(1)

    result = lab.World(["a", "b"], network=radio).run({"a": look}, seconds=70)
    seen = {round(row["time"]): row["count"] for row in result.rows}
    alone, together = seen[5], seen[30]
    assert together > alone
    assert seen[65] < together


@pytest.mark.parametrize("wait", [None, 0])
def test_readers_who_share_the_air_hear_every_writer(wait: float | None) -> None:
    """Reading one by one, while all write. Questions without waiting fill the air, but no host
    hides the others."""

    async def chat(host: Any) -> None:
        melon = Melon(host)

        async def write() -> None:
            for number in range(8):
                await melon.write(("line", host.name, number))
                lab.record("wrote")
                await asyncio.sleep(2)

        writing = asyncio.ensure_future(write())
        while True:
            if line := await melon.read(("line", str, int), wait=wait):
                lab.record("heard", of=line[1], number=line[2])
            else:
                await asyncio.sleep(0.25)
            assert not writing.done() or writing.exception() is None

    radio = Radio(range=100, mobility=lab.RandomWaypoint(area=(60, 60), speed=(1, 2), pause=5))
    result = lab.World(hosts=10, seed=1, network=radio).run(chat, seconds=18)
    heard = [row for row in result.rows if row["name"] == "heard"]
    assert len({(row["host"], row["of"]) for row in heard if row["time"] < 10}) == 100
    if wait is not None:
        return
    assert len(heard) == 10 * result.count("wrote") == 800
    assert result.messages < 6_000, "20,000 when each read asked all hosts"


def test_a_scene_crashes_and_restarts_a_host() -> None:
    async def program(host: Any) -> None:
        lab.record("up", name_=host.name)
        await asyncio.sleep(1_000)

    async def scene(world: Any) -> None:
        await asyncio.sleep(5)
        await world["b"].crash()
        await asyncio.sleep(5)
        await world["b"].start()

    result = lab.World(["a", "b"]).run(program, seconds=20, scene=scene)
    assert sorted(result.values("up", "name_")) == ["a", "b", "b"]


def test_an_error_in_a_program_names_the_host_and_the_time() -> None:
    async def program(host: Any) -> None:
        await asyncio.sleep(2)
        raise ValueError("broken")

    with pytest.raises(ExceptionGroup) as caught:
        lab.World(["a"]).run(program, seconds=5)
    (error,) = caught.value.exceptions
    assert isinstance(error, ValueError)
    assert "in a, at 2.000 s" in error.__notes__[0]


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"hosts": 0}, "hosts"),
        ({"hosts": ["a", "a"]}, "hosts"),
        ({"hosts": "ab"}, "hosts"),
        ({"hosts": ["a:1"]}, "hosts"),
        ({"seed": 1.5}, "seed"),
        ({"network": 3}, "network"),
        ({"heartbeat": 0}, "heartbeat"),
        ({"discovery": "beacons"}, "discovery"),
        ({"discovery": "luck"}, "discovery"),
    ],
)
def test_a_bad_world_is_refused(options: dict[str, Any], argument: str) -> None:
    with pytest.raises(BadArgument, match=argument):
        lab.World(**options)
    with pytest.raises(BadArgument, match="seconds"):
        lab.World(1).run(seconds=0)
    with pytest.raises(BadArgument, match="program"):
        lab.World(1).run({"h9": gossip}, seconds=1)


def test_the_lab_is_told_apart_from_the_world_outside() -> None:
    with pytest.raises(lab.LabError, match="not called by a program"):
        lab.record("x")


def test_results_are_saved_as_tables(tmp_path: Any) -> None:
    from pyarrow import parquet

    result = lab.World(3).run(gossip, seconds=5)
    result.save(tmp_path)
    table = parquet.read_table(tmp_path / "records.parquet")
    assert table.num_rows == len(result.rows) > 0
    assert table.column_names == ["time", "host", "name", "of", "at"]
    lines = (tmp_path / "records.csv").read_text().splitlines()
    assert len(lines) == 1 + len(result.rows)
    assert '"seed": 1' in (tmp_path / "run.json").read_text()


def test_a_packet_is_sent_so_often_on_a_hop_as_the_radio_says() -> None:
    async def scene(network: RadioNetwork) -> None:
        arrived = [network.forward(0, 1, 100) for _ in range(4_000)]
        assert network.air.packets == 4_000
        assert arrived.count(None) / 4_000 == pytest.approx(0.2, rel=0.1)
        assert network.reserved(0) > 1, "they have waited for each other"

    on_air(Radio(range=100, loss=0.2, sends=1, mobility=lab.Still(spacing=10)), 2, scene)
