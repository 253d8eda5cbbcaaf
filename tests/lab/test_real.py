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


def test_a_machine_that_does_not_allow_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(host: Any) -> None:
        pass

    monkeypatch.setattr(os, "geteuid", lambda: 1_000, raising=False)
    with pytest.raises(lab.LabError, match="root"):
        lab.World(2, network=lab.Radio(), real=True).run(nothing, seconds=1)
    with pytest.raises(lab.LabError, match="scene"):
        lab.World(2, network=lab.Radio(), real=True).run(seconds=1, scene=nothing)
    with pytest.raises(BadArgument, match="network"):
        lab.World(2, real=True)
