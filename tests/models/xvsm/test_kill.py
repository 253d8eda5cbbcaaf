"""Programs are killed at random moments while they use durable containers over a real socket: the
clients that write, take and move entries in transactions, and the program that has the containers.

Nothing that was acknowledged is lost, and nothing is taken twice. `TUPELO_XVSM_KILLS=100` kills so
often, from a new seed.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.models.xvsm.site_child import CONTAINERS, open_site
from tupelo.federation.spaces.hosted import Doubt
from tupelo.models.xvsm import COUNT_MAX, AnySelector, Capi, FifoSelector

KILLS = int(os.environ.get("TUPELO_XVSM_KILLS", "0"))
SEED = random.randrange(10**9) if KILLS else 11
PATIENCE_SECONDS = 30.0
PROGRESS = 3
"""So much must every client have done since the last kill: it has a link, and what it had received
is settled at the site."""

if KILLS:
    pytestmark = pytest.mark.timeout(0)


PROGRAM = Path(__file__).with_name("site_child.py")


class Ledger:
    """What is known of the numbers that are written, of which no two are alike."""

    def __init__(self) -> None:
        self.written: set[int] = set()
        self.doubtful: set[int] = set()
        self.refused: set[int] = set()
        self.taken: list[tuple[str, int]] = []
        self.moved = 0
        self.lost_max = 0  # what takers may have had when they were killed
        self._under_way: dict[str, Any] = {}

    def hear(self, name: str, words: list[Any]) -> None:
        match words:
            case ["writing", number]:
                self._under_way[name] = number
            case ["wrote", number]:
                self.written.add(self._under_way.pop(name))
            case ["doubt", number]:
                self.doubtful.add(self._under_way.pop(name))
            case ["not", number]:
                self.refused.add(self._under_way.pop(name))
            case ["taking"]:
                self._under_way[name] = "take"
            case ["took", container, number]:
                self._under_way.pop(name)
                if number is not None:
                    self.taken.append((container, number))
            case ["moved", number]:
                self.moved += number is not None
            case _:
                raise AssertionError((name, words))

    def died(self, name: str) -> None:
        match self._under_way.pop(name, None):
            case "take":
                self.lost_max += 1
            case int() as number:
                self.doubtful.add(number)

    def check(self, left: dict[str, list[int]]) -> int:
        """This is in the containers in the end; how many had takers when they were killed?"""
        places = Counter(number for name in (*CONTAINERS, "moved") for number in left[name])
        taken = Counter(number for _, number in self.taken)
        assert set(taken.values()) <= {1}, "an entry was taken twice"
        assert set(places.values()) <= {1}, "an entry is there twice"
        assert not places.keys() & taken.keys(), "an entry was taken, and is there"
        assert not self.refused & (places.keys() | taken.keys()), "done, though it was not"
        assert places.keys() | taken.keys() <= self.written | self.doubtful
        lost = self.written - places.keys() - taken.keys()
        assert len(lost) <= self.lost_max, ("lost", lost)
        log = Counter(left["log"])
        audited = {number for container, number in self.taken if container == "audited"}
        assert set(log.values()) <= {1} and audited <= log.keys(), "a delivery was half done"
        assert not log.keys() & set(left["audited"]), "a delivery was half done"
        assert len(log.keys() - audited) <= self.lost_max
        return len(lost)


class World:
    """The processes."""

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        program: Path = PROGRAM,
    ) -> None:
        self.chance = chance
        self.ledger = Ledger()
        self._folder = folder
        self._pids: dict[str, int] = {}
        self._roles: dict[str, str] = {}
        self._done: Counter[str] = Counter()
        self._count = 0
        self._port = 0
        self._nursery = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._said: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._nursery.stdout is not None
        for line in self._nursery.stdout:
            self._said.put(json.loads(line))

    # Living

    def start_site(self) -> None:
        self._count += 1
        name = f"site {self._count}"
        self._order(name, "site", port=self._port, path=str(self._folder), doubt=30.0)
        uri = self._until(lambda said: said[:2] == [name, "ready"])[2]
        self._port = int(uri.rpartition(":")[2])
        self.uri = uri

    def start_client(self, role: str) -> None:
        self._count += 1
        first = self._count * 1_000_000
        self._order(
            f"{role} {self._count}", role, site=self.uri, first=first, seed=self.chance.random()
        )

    def _order(self, name: str, role: str, **options: Any) -> None:
        assert self._nursery.stdin is not None
        self._nursery.stdin.write((json.dumps([name, {"role": role, **options}]) + "\n").encode())
        self._nursery.stdin.flush()
        self._pids[name] = self._until(lambda said: said[:2] == [name, "born"])[2]
        self._roles[name] = role

    def clients(self) -> list[str]:
        return [name for name, role in self._roles.items() if role != "site"]

    def go_on(self) -> None:
        """Until every client has done something since the last time."""
        before = Counter(self._done)
        self._until(lambda said: self._have_done(before))

    def _have_done(self, before: Counter[str]) -> bool:
        return all(self._done[name] >= before[name] + PROGRESS for name in self.clients())

    def _until(self, heard: Any) -> list[Any]:
        """Take in what is said, until this is."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                said = self._said.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                idle = {name: self._done[name] for name in self.clients()}
                raise AssertionError(f"nothing goes on any more: {idle}") from None
            self._hear(said)
            if heard(said):
                return said

    def _hear(self, said: list[Any]) -> None:
        name, what = said[:2]
        assert what != "failed", said
        if what == "dead":
            self.ledger.died(name)
            del self._pids[name], self._roles[name]
        elif what not in ("born", "ready"):
            self.ledger.hear(name, said[1:])
            self._done[name] += what not in ("writing", "taking")

    # Dying

    def kill(self) -> str:
        """Kill one of the processes, and start another one like it."""
        sites = [name for name, role in self._roles.items() if role == "site"]
        site = self.chance.random() < 0.4
        name = self.chance.choice(sites if site else self.clients())
        role = self._roles[name]
        self._end(name, signal.SIGKILL)
        if site:
            self.start_site()
        else:
            self.start_client(role)
        return role

    def _end(self, name: str, how: signal.Signals) -> None:
        os.kill(self._pids[name], how)
        self._until(lambda said: said[:2] == [name, "dead"])

    def stop(self) -> None:
        """Let all of them end as programs should: the clients first."""
        for name in [*self.clients(), *self._roles]:
            if name in self._roles:
                self._end(name, signal.SIGTERM)

    def close(self) -> None:
        assert self._nursery.stdin is not None and self._nursery.stdout is not None
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        self._nursery.stdin.close()
        self._nursery.wait()
        self._reader.join(PATIENCE_SECONDS)
        self._nursery.stdout.close()


def contents(capi: Capi) -> dict[str, list[int]]:
    return {
        name: capi.read(capi.lookup_container(None, None, name), 0, None, AnySelector(COUNT_MAX))
        for name in (*CONTAINERS, "moved", "log")
    }


@dataclass
class OnlyHere:
    """A class that the programs with containers do not have."""

    name: str | None = None
    size: int | None = None


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_program_need_not_have_the_classes_of_what_it_keeps(folder, name):
    world = World(folder, random.Random(0))
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    try:
        world.start_site()
        with Capi(site=world.uri) as capi:
            cref = capi.lookup_container(None, None, name)
            capi.create_notification(cref, lambda *told: heard.put(told[1:]), "write", "take")
            capi.write(cref, 0, None, OnlyHere("a", 1), ("tuple", [OnlyHere("b")]))
            assert capi.take(cref, 0, None, FifoSelector(2)) == [
                OnlyHere("a", 1),
                ("tuple", [OnlyHere("b")]),
            ]
            both = [OnlyHere("a", 1), ("tuple", [OnlyHere("b")])]
            for operation in ("write", "take"):
                assert heard.get(timeout=PATIENCE_SECONDS) == (operation, both)
        world.stop()
    finally:
        world.close()


@pytest.mark.timeout(180)
def test_nothing_is_lost_or_taken_twice_when_programs_are_killed(folder):
    world = World(folder, random.Random(SEED))
    try:
        world.start_site()
        for role in ("writer", "writer", "taker", "taker", "mover"):
            world.start_client(role)
        killed: Counter[str] = Counter()
        for _ in range(KILLS or 20):
            world.go_on()
            time.sleep(world.chance.uniform(0, 0.1))  # The kill comes at any moment.
            killed[world.kill()] += 1
        world.go_on()
        world.stop()
    finally:
        world.close()
    # What those who were killed had not confirmed comes back when they are given up.
    with (
        tupelo.Host("last", listen="127.0.0.1:0") as host,
        open_site(str(folder)) as capi,
    ):
        capi.offer(host, doubt=Doubt(0.1))
        end = time.monotonic() + PATIENCE_SECONDS
        while capi.embedded.deliveries_in_doubt():
            assert time.monotonic() < end, "deliveries are in doubt for ever"
            time.sleep(0.01)
        lost = world.ledger.check(contents(capi))
    ledger = world.ledger
    assert ledger.taken and ledger.moved, "nothing has happened"
    print(
        f"{sum(killed.values())} kills {dict(killed)}: {len(ledger.written)} written, "
        f"{len(ledger.doubtful)} in doubt, {len(ledger.taken)} taken, {ledger.moved} moved; "
        f"{lost} were with takers that were killed; seed {SEED}"
    )
