"""The experiment coordinator: programs on many hosts, let go at once, their output in order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import tupelo
from tupelo import Identity, Trust
from tupelo.apps.experiments import (
    COMMAND,
    DONE,
    GO,
    RESULT,
    Client,
    ExperimentCoordinator,
    Program,
)
from tupelo.errors import BadArgument
from tupelo.models.melon import Melon

READY_WAIT = 30.0

COUNTS = "for n in range(5): print(n)"
BARRIER = """
import sys
print("set", flush=True)
print("heard", sys.stdin.readline().strip())
sys.exit(3)
"""
FOREVER = """
import time
print("begun", flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("begun", flush=True)
time.sleep(600)
"""


def python(text: str, ready: str = "") -> Program:
    return Program([sys.executable, "-c", text], ready)


class Lab:
    """A coordinator and two clients, at three hosts that have identities."""

    def __init__(self, stack: ExitStack) -> None:
        self.identities = {name: Identity.new() for name in ("coordinator", "source", "sink")}
        keys = {name: identity.key for name, identity in self.identities.items()}
        trust = Trust.known(list(keys.values()))

        def host(name: str, *peers: str) -> tupelo.Host:
            identity = self.identities[name]
            made = tupelo.Host(name, listen=0, identity=identity, trust=trust, peers=peers)
            return stack.enter_context(made)

        here = host("coordinator")
        self.hosts = {name: host(name, here.address) for name in ("source", "sink")}
        self.clients = [
            Client(Melon(host), name, name, coordinator=keys["coordinator"])
            for name, host in self.hosts.items()
        ]
        self.melon = Melon(here)
        self.keys = {name: keys[name] for name in self.hosts}
        self.coordinator = ExperimentCoordinator(self.melon, self.keys)
        self.run = self.coordinator.run


@pytest.fixture
def lab() -> Iterator[Lab]:
    with ExitStack() as stack:
        lab = Lab(stack)
        threads = [Thread(target=client.serve, daemon=True) for client in lab.clients]
        for thread in threads:
            thread.start()
        yield lab
        lab.coordinator.dismiss("source", "sink")
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


def test_programs_are_let_go_and_their_output_comes_in_order(lab):
    programs = {"source": python(COUNTS), "sink": python(BARRIER, ready="set")}
    outcomes = lab.run(programs, ready_wait=READY_WAIT)
    assert outcomes["source"].lines == ["0", "1", "2", "3", "4"]
    assert outcomes["sink"].lines == ["heard go"]
    assert (outcomes["source"].code, outcomes["sink"].code) == (0, 3)
    assert not outcomes["sink"].stopped
    # And the same clients are there for the next.
    again = lab.run({"source": python("print('a')"), "sink": python("print('b')")})
    assert (again["source"].lines, again["sink"].lines) == (["a"], ["b"])


@pytest.mark.parametrize("program", [FOREVER, PARENT], ids=["alone", "with children"])
def test_a_program_that_does_not_end_is_stopped(lab: Lab, program: str) -> None:
    outcomes = lab.run(
        {"source": python(program, ready="begun"), "sink": python(COUNTS)},
        wait=1.0,
        ready_wait=READY_WAIT,
    )
    assert outcomes["source"].stopped
    assert outcomes["source"].code not in (0, None)
    assert outcomes["sink"].code == 0


def test_what_cannot_run_says_so(lab):
    broken = Program(["/nowhere/at/all"])
    outcomes = lab.run({"source": broken, "sink": python("", ready="never")})
    assert outcomes["source"].lines[0].startswith("it cannot run: ")
    assert outcomes["sink"].lines == ["it cannot run: it ended before it said 'never'"]
    assert (outcomes["source"].code, outcomes["sink"].code) == (-1, -1)


def test_one_that_is_never_ready_is_stopped_and_there_for_the_next(lab: Lab) -> None:
    never = python(FOREVER, ready="never")
    outcomes = lab.run({"source": never, "sink": python(COUNTS)}, ready_wait=3.0)
    assert outcomes["source"].code is None
    assert outcomes["sink"].lines == ["0", "1", "2", "3", "4"]
    again = lab.run({"source": python("print('a')"), "sink": python("print('b')")})
    assert (again["source"].lines, again["sink"].lines) == (["a"], ["b"])


def test_a_coordinator_that_fails_lets_its_clients_go(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are ready, and wait for the word to go."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lab.coordinator, "_await", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lab.run({"source": python(COUNTS), "sink": python(BARRIER, ready="set")})
    again = lab.run(
        {"source": python("print('a')"), "sink": python("print('b')")}, ready_wait=READY_WAIT
    )
    assert (again["source"].lines, again["sink"].lines) == (["a"], ["b"])


def test_a_client_runs_nothing_for_others(lab: Lab, tmp_path: Path) -> None:
    there = tmp_path / "there"
    touch = [["source", sys.executable, ["-c", f"open({str(there)!r}, 'w')"], ""]]
    command = (COMMAND, "mine", "source", touch)
    other = Melon(lab.hosts["sink"])
    other.store(command)
    other.write(command)
    other.store(command, to=lab.keys["source"])  # which is directed to it, by another
    other.write((GO, "mine"))
    outcomes = lab.run({"source": python("print('a')"), "sink": python("print('b')")})
    assert outcomes["source"].lines == ["a"]
    assert not there.exists()
    assert other.take((COMMAND, str, str, list), wait=0) == command


def test_what_others_say_is_not_the_word_of_a_client(lab: Lab) -> None:
    other = Melon(lab.hosts["sink"])

    def lie() -> None:
        _, experiment = other.read((GO, str))
        for to in (None, lab.melon.identity):
            other.store((RESULT, experiment, "source", "a lie"), to=to)
            other.store((DONE, experiment, "source", 7), to=to)

    lying = Thread(target=lie, daemon=True)
    lying.start()
    outcomes = lab.run({"source": python(COUNTS), "sink": python(COUNTS)})
    lying.join(30)
    assert outcomes["source"].lines == ["0", "1", "2", "3", "4"]
    assert outcomes["source"].code == 0


def test_what_is_wrong_is_said_by_its_name(lab: Lab) -> None:
    key = Identity.new().key
    with tupelo.Host("nameless") as host, Melon(host) as nameless:
        for melon in ("here", nameless):
            with pytest.raises(BadArgument, match="melon"):
                ExperimentCoordinator(melon, {})  # type: ignore[arg-type]
            with pytest.raises(BadArgument, match="melon"):
                Client(melon, "a", coordinator=key)  # type: ignore[arg-type]
    wrong: Any
    for wrong in (["source"], {"source": "ben"}, {7: key}):
        with pytest.raises(BadArgument, match="clients"):
            ExperimentCoordinator(lab.melon, wrong)
    for argument, wrong in (("name", ""), ("kind", 7), ("coordinator", "ben")):
        with pytest.raises(BadArgument, match=argument):
            Client(lab.melon, **{"name": "a", "coordinator": key, argument: wrong})
    for wrong in ("ls", [], [7], None):
        with pytest.raises(BadArgument, match="arguments"):
            Program(wrong)
    with pytest.raises(BadArgument, match="ready"):
        Program(["ls"], 7)  # type: ignore[arg-type]
    for wrong in ([], {"source": ["ls"]}):
        with pytest.raises(BadArgument, match="programs"):
            lab.run(wrong)
    for argument in ("wait", "ready_wait"):
        with pytest.raises(BadArgument, match=argument):
            lab.run({}, **{argument: -1})
