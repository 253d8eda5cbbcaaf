"""The radio of ns-3 under the clock of the lab, and ours beside it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.util import find_spec
from statistics import median
from typing import Any

import pytest

from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.experiment import load

IS_INSTALLED = find_spec("ns") is not None
needs_ns3 = pytest.mark.skipif(not IS_INSTALLED, reason='needs ns-3: pip install "tupelo[ns3]"')
LINE = lab.Still(spacing=90, line=True)


async def deliver(host: Any) -> None:
    """The first host sends to the last one, which knows when."""
    space = host.space("post")
    if host.name == "h1":
        await asyncio.sleep(8)
        for number in range(20):
            await space.write((number, lab.now(), bytes(1_000)))
            await asyncio.sleep(0.2)
    elif host.name == "h3":
        while True:
            number, sent, _ = await space.take((int, float, bytes))
            lab.record("took", number=number, after=lab.now() - sent)


def run(network: Any) -> lab.Result:
    return lab.World(3, seed=5, network=network).run(deliver, seconds=15)


@needs_ns3
@pytest.mark.parametrize("routing", ["aodv", "dsr"])
def test_messages_pass_several_hops_of_ns3_and_a_seed_decides_all(routing: Any) -> None:
    one, two = (run(lab.Ns3(range=100, routing=routing, loss=0.1, mobility=LINE)) for _ in "12")
    took = one.values("took", "number")
    assert took == list(range(len(took))), "in order, without a gap"
    assert len(took) == 20 if routing == "aodv" else took, "the routes of dsr heal slowly"
    assert one.digest == two.digest
    assert one.air is not None
    assert one.air.packets > 100
    if routing == "aodv":
        code = (
            "from tests.lab.test_ns3 import *\n"
            "print(run(lab.Ns3(range=100, loss=0.1, mobility=LINE)).digest)"
        )
        command = [sys.executable, "-c", code]
        other = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert other.stdout.split()[-1] == one.digest, "also in another process"


@needs_ns3
def test_our_radio_takes_about_as_long_as_that_of_ns3() -> None:
    ours = run(lab.Radio(range=100, routing="aodv", mobility=LINE)).values("took", "after")
    theirs = run(lab.Ns3(range=100, routing="aodv", mobility=LINE)).values("took", "after")
    assert len(ours) == len(theirs) == 20
    assert 0.4 < median(ours) / median(theirs) < 2.5


@needs_ns3
def test_nobody_hears_beyond_the_range_of_ns3() -> None:
    far = lab.Ns3(range=100, mobility=lab.Still(spacing=110, line=True))
    assert run(far).count("took") == 0


@pytest.mark.skipif(IS_INSTALLED, reason="ns-3 is installed")
def test_without_ns3_it_is_told_how_to_get_it() -> None:
    with pytest.raises(lab.LabError, match="not installed"):
        run(lab.Ns3())


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"range": 0}, "range"),
        ({"loss": 1}, "loss"),
        ({"bandwidth": 3e6}, "bandwidth"),
        ({"routing": "direct"}, "routing"),
    ],
)
def test_a_bad_radio_of_ns3_is_refused(options: dict[str, Any], argument: str) -> None:
    with pytest.raises(BadArgument, match=argument):
        lab.Ns3(**options)


def test_an_experiment_chooses_ns3_by_a_setting() -> None:
    settings = load("whiteboard").defaults.with_changes({"network": "ns3"})
    assert isinstance(settings.world().network, lab.Ns3)
    with pytest.raises(BadArgument, match="routing"):
        settings.with_changes({"routing": "direct"}).world()
