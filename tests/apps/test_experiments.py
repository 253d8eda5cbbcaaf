"""The experiment coordinator: programs on many hosts, let go at once, their output in order."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from threading import Thread

import pytest

import tupelo
from tupelo.apps.experiments import Client, Coordinator, Program
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


def python(text: str, ready: str = "") -> Program:
    return Program([sys.executable, "-c", text], ready)


@pytest.fixture
def lab():
    """A coordinator and two clients, at three hosts."""
    with ExitStack() as stack:
        enter = stack.enter_context
        here = enter(tupelo.Host("coordinator", listen=0))
        hosts = [enter(tupelo.Host(name, peers=[here.address])) for name in ("source", "sink")]
        clients = [Client(Melon(host), host.name, host.name) for host in hosts]
        threads = [Thread(target=client.serve, daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        coordinator = Coordinator(Melon(here), ["source", "sink"])
        yield coordinator
        coordinator.dismiss("source", "sink")
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


def test_a_program_that_does_not_end_is_stopped(lab):
    outcomes = lab.run(
        {"source": python(FOREVER, ready="begun"), "sink": python(COUNTS)},
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


def test_clients_and_coordinators_have_a_melon():
    with pytest.raises(BadArgument, match="melon"):
        Coordinator("here", [])  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="melon"):
        Client("here", "a")  # type: ignore[arg-type]
