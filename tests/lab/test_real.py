"""The real network: processes in network namespaces, behind a radio hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tupelo import lab
from tupelo.errors import BadArgument
from tupelo.lab.real import TUN

IS_ALLOWED = sys.platform == "linux" and os.geteuid() == 0 and os.access(TUN, os.R_OK | os.W_OK)

HELLO = '''
"""Hello: what two hosts and a third out of range read of each other"""
import asyncio
from tupelo import lab
from tupelo.lab.paradigms import open_channel

DEFAULTS = {"hosts": 3, "duration": 60.0, "mobility": "line", "spacing": 90.0, "range": 100.0,
            "routing": "direct", "loss": 0.2, "sends": 2, "words": 5}

def run(settings):
    async def program(host):
        channel, left = open_channel("melon", host), asyncio.Event()
        expected = settings["words"] * (2 if host.name == "h2" else 1)
        heard = []

        def hear(message):
            lab.record("heard", of=message[1], number=message[2])
            if message[1] != host.name:
                heard.append(message)
            if len(heard) == expected:
                left.set()

        reading = asyncio.ensure_future(channel.receive(hear, "hello"))
        for number in range(settings["words"]):
            await channel.send(("hello", host.name, number, lab.now(), b""))
        await left.wait()
        reading.cancel()
    return settings.world().run(program, seconds=settings.duration)

def figures(result):
    return {f"{row['host']} of {row['of']} {row['number']}": row["time"] for row in result.rows}
'''


@pytest.mark.skipif(not IS_ALLOWED, reason=f"needs Linux, root and {TUN}")
def test_hosts_are_processes_that_hear_those_in_range_and_lose_packets(tmp_path: Path) -> None:
    # It takes the start of three hosts, and ends when all have heard what they can.
    (tmp_path / "hello.py").write_text(HELLO)
    command = [sys.executable, "-m", "tupelo", "lab", "run", str(tmp_path / "hello.py"), "--real"]
    to = tmp_path / "results"
    done = subprocess.run(
        [*command, "--to", str(to)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    heard: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        pair, _, number = json.loads(line)["figure"].rpartition(" ")
        heard.setdefault(pair, []).append(number)
    neighbours = {"h1 of h2", "h2 of h1", "h2 of h3", "h3 of h2"}
    others = {pair for pair in heard if pair[:2] != pair[-2:]}
    assert others == neighbours, "h1 and h3 are out of each other's range"
    assert all(heard[pair] == list("01234") for pair in neighbours), "all, in order"
    (run,) = to.rglob("run.json")
    told = json.loads(run.read_text())
    assert told["air_lost"] > 0
    assert told["real"] is True
    assert told["late_99"] >= told["late_median"] >= 0


CALLS = '''
"""Calls between hosts in the processes of their programs, which a scene keeps apart for a while"""
import asyncio
from tupelo import lab
from tupelo.lab.paradigms import open_channel

DEFAULTS = {"hosts": 2, "duration": 60.0, "embedded": True, "apart": 2.0}

def run(settings):
    async def program(host):
        channel, left = open_channel("rpc", host), asyncio.Event()

        def accept(message):
            if message[1] != host.name:
                lab.record("received", author=message[1], number=message[2])
                left.set()

        receiving = asyncio.ensure_future(channel.receive(accept, "hello"))
        number, more = 0, 5
        while more:  # After the first call from the other host, it may still wait for ours.
            await channel.send(("hello", host.name, number, lab.now(), b""))
            await asyncio.sleep(0.1)
            number, more = number + 1, more - left.is_set()
        receiving.cancel()

    async def scene(world):
        world.network.partition({"h1"}, {"h2"})
        lab.record("apart", near=" ".join(world.network.neighbours("h1")), sent=lab.sent().frames)
        await asyncio.sleep(settings["apart"])
        world.network.heal()
        try:
            world["h1"]
        except lab.LabError as error:
            lab.record("refused", said=str(error))

    return settings.world().run(program, seconds=settings.duration, scene=scene)

def figures(result):
    assert result.values("apart", "near") == ["h2"]
    assert "no hosts" in result.values("refused", "said")[0]
    return {row["host"]: row["time"] for row in result.rows if row["name"] == "received"}
'''


@pytest.mark.skipif(not IS_ALLOWED, reason=f"needs Linux, root and {TUN}")
def test_hosts_in_the_processes_of_programs_call_each_other_when_a_scene_has_parted_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    command = [sys.executable, "-m", "tupelo", "lab", "run", str(tmp_path / "calls.py"), "--real"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    times = {one["figure"]: one["median"] for one in map(json.loads, done.stdout.splitlines())}
    assert set(times) == {"h1", "h2"}
    assert all(time > 2.0 for time in times.values()), "nothing arrives before they meet"
    refused = [*command, "--set", "embedded=false"]
    done = subprocess.run(refused, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "--set embedded=true" in done.stderr


def test_a_machine_that_does_not_allow_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(host: Any) -> None:
        pass

    monkeypatch.setattr(os, "geteuid", lambda: 1_000, raising=False)
    with pytest.raises(lab.LabError, match="root"):
        lab.World(2, network=lab.Radio(), real=True).run(nothing, seconds=1)
    with pytest.raises(BadArgument, match="network"):
        lab.World(2, real=True)
