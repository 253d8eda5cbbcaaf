"""A process that uses a durable space is killed at random moments, hundreds of times.

The same file is opened again and again, always as the last kill has left it. Whatever was
acknowledged must be there, whatever was taken must be gone, and what was under way has happened
as a whole or not at all. `TUPELO_KILLS=5000` kills that often, from a new seed.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tupelo
from tests.simulation.kill_child import LEASE_SECONDS

KILLS = int(os.environ.get("TUPELO_KILLS", "0"))
SEED = random.randrange(10**9) if KILLS else 2
PATIENCE_SECONDS = 30.0

if KILLS:
    pytestmark = pytest.mark.timeout(0)


class Nursery:
    """The process that makes the children, by default those of `kill_child`."""

    module = "tests.simulation.kill_child"

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._unread = b""
        self._lines: list[Any] = []
        self._child = 0

    def order(self, **order: Any) -> int:
        """A new child; its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write((json.dumps(order) + "\n").encode())
        said = self.hear(PATIENCE_SECONDS)
        assert said is not None and said[0] == "born", said
        self._child = int(said[1])
        return self._child

    def hear(self, seconds: float) -> Any:
        """What was said next, or None if nothing was said for so long."""
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while not self._lines:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            read = self._process.stdout.read(65_536)
            assert read, "the nursery has died"
            *whole, self._unread = (self._unread + read).split(b"\n")
            self._lines += map(json.loads, whole)
        said = self._lines.pop(0)
        if said[0] == "dead":
            self._child = 0
        return said

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._child:
            os.kill(self._child, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def a_nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    try:
        yield nursery
    finally:
        nursery.close()


class Ledger:
    """What the parent knows: what is there for sure, and what was under way when the child died.

    Entries are known by their number alone, which is never used twice.
    """

    def __init__(self) -> None:
        self.there: dict[int, str] = {}  # number → kind of entry
        self.promised: dict[str, tuple[list[int], list[int]]] = {}
        self.taken_early: set[int] = set()
        self.forever: set[int] = set()  # leases that were renewed
        self.perhaps_forever: set[int] = set()
        self.under_way: dict[int, list[Any]] = {}  # worker → operation
        self.operations = 0

    def hear(self, said: Any) -> None:
        match said:
            case ["begin", worker, operation]:
                assert worker not in self.under_way
                self.under_way[worker] = operation
            case ["done", worker, answer]:
                self.operations += 1
                self._happened(self.under_way.pop(worker), answer)
            case ["seen", entries, txn_ids]:
                self.settle({entry[-1]: entry[0] for entry in entries}, set(txn_ids))
            case ["failed", error]:
                pytest.fail(error)
            case _:
                raise AssertionError(said)

    def _happened(self, operation: list[Any], answer: Any) -> None:
        match operation:
            case ["write", number]:
                self.there[number] = "own"
            case ["pool", number]:
                self._came(number)
            case ["all", taken, written]:
                self._replace(taken, written)
            case ["take", _]:
                for number in answer:
                    if self.there.pop(number, None) is None:
                        assert ["pool", number] in self.under_way.values(), ("taken twice", number)
                        self.taken_early.add(number)
            case ["lease", number]:
                self.there[number] = "leased"
            case ["renew", number]:
                assert number in self.there
                self.forever.add(number)
            case ["cancel", number]:
                del self.there[number]
            case ["prepare", txn_id, taken, written]:
                self._replace(taken, [])
                self.promised[txn_id] = taken, written
            case ["decide", txn_id, commits]:
                taken, written = self.promised.pop(txn_id)
                self._replace([], written if commits else taken)
            case ["tidy"]:
                pass
            case _:
                raise AssertionError(operation)

    def _came(self, number: int) -> None:
        """It is in the pool now, unless it was taken before its writer could say so."""
        if number in self.taken_early:
            self.taken_early.remove(number)
        else:
            self.there[number] = "pool"

    def _replace(self, taken: list[int], written: list[int]) -> None:
        for number in taken:
            del self.there[number]  # It was there, or nobody could have taken it.
        self.there.update(dict.fromkeys(written, "own"))

    def settle(self, seen: dict[int, str], in_doubt: set[str]) -> None:
        """The child is dead, and this is what is left. Does it agree with all that was said?"""
        takers = []
        for operation in self.under_way.values():
            if operation[0] == "take":
                takers.append(operation)
            elif operation[0] == "pool":
                self.there[operation[1]] = (
                    "pool"  # If it is missing, it is no matter why: see below
                )
                takers.append(["take", 1])
            elif operation[0] == "renew":
                self.perhaps_forever.add(operation[1])
            elif self._has_happened(operation, seen, in_doubt):
                self._happened(operation, None)
        self.under_way.clear()
        missing = {number for number in self.there if number not in seen}
        assert all(self.there[number] == "pool" for number in missing), ("lost", missing)
        assert len(missing) <= sum(most for _, most in takers), ("lost", missing, takers)
        for number in missing:
            del self.there[number]
        again = {number: kind for number, kind in seen.items() if number not in self.there}
        assert not again, ("taken or never written, and there again", again)
        assert seen == self.there
        assert in_doubt == set(self.promised)

    def _has_happened(self, operation: list[Any], seen: dict[int, str], in_doubt: set[str]) -> bool:
        """Was it done before the child died? Whatever it changes must have changed together."""
        match operation:
            case ["prepare", txn_id, _, _]:
                return txn_id in in_doubt
            case ["decide", txn_id, _]:
                return txn_id not in in_doubt
            case ["all", taken, written]:
                signs = [n not in seen for n in taken] + [n in seen for n in written]
            case ["write" | "lease", number]:
                signs = [number in seen]
            case ["cancel", number]:
                signs = [number not in seen]
            case _:
                signs = []
        assert len(set(signs)) < 2, ("half done", operation, signs)
        return bool(signs) and signs[0]

    def check_leases(self, path: Path) -> None:
        """In a copy of the file, long after every lease has ended: what was renewed is there."""
        copy = path.with_name("copy")
        for suffix in ("", "-wal"):
            if path.with_name(path.name + suffix).exists():
                shutil.copy(path.with_name(path.name + suffix), copy.with_name("copy" + suffix))
        with tupelo.Space("kill", path=copy) as space:
            entries = space.read_all()
            in_doubt = {txn.id for txn in space.in_doubt()}
        self.settle({entry[-1]: entry[0] for entry in entries}, in_doubt)
        late = tupelo.ManualClock(time.time() + 2 * LEASE_SECONDS)
        with tupelo.Space("kill", path=copy, clock=late) as space:
            left = {entry[-1] for entry in space.read_all()}
        lasting = {n for n, kind in self.there.items() if kind != "leased" or n in self.forever}
        assert lasting <= left
        assert left - lasting <= self.perhaps_forever
        for file in path.parent.glob("copy*"):
            file.unlink()


def test_whatever_was_acknowledged_survives_hundreds_of_kills(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    path = tmp_path / "space"
    ledger = Ledger()
    with a_nursery() as nursery:
        for generation in range(KILLS or 200):
            pid = nursery.order(
                do="live",
                path=str(path),
                seed=f"{SEED} {generation}",
                first=generation * 1_000_000,
                durability=chance.choice(["full", "process"]),
            )
            live_and_die(nursery, ledger, pid, chance)
            if generation % 20 == 19:
                ledger.check_leases(path)
        ledger.check_leases(path)
    print(f"{ledger.operations} operations, {len(ledger.there)} entries; seed {SEED}")


def live_and_die(nursery: Nursery, ledger: Ledger, pid: int, chance: random.Random) -> None:
    """Let the child work for some milliseconds; or kill it while it is opening the space."""
    soon = chance.random() < 0.15
    until = time.monotonic() + (chance.uniform(0, 0.006) if soon else PATIENCE_SECONDS)
    killed = False
    while True:
        said = nursery.hear(max(0.0, until - time.monotonic()) if not killed else PATIENCE_SECONDS)
        if said is None:
            assert not killed and (soon or time.monotonic() < until + 1), "the child hangs"
            os.kill(pid, signal.SIGKILL)
            killed = True
        elif said[0] == "dead":
            assert killed and os.WIFSIGNALED(said[2]), said
            return
        else:
            ledger.hear(said)
            if said[0] == "seen" and not soon:
                soon = True
                until = time.monotonic() + chance.uniform(0.003, 0.06)


def test_a_process_killed_while_it_makes_the_file_leaves_one_that_opens(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with a_nursery() as nursery:
        for round_ in range((KILLS or 200) // 4):
            path = tmp_path / f"new {round_}"
            durability = chance.choice(["full", "process"])
            pid = nursery.order(do="be born", path=str(path), first=round_, durability=durability)
            until = time.monotonic() + chance.uniform(0, 0.008)
            lines: list[Any] = []
            while not lines or lines[-1][0] != "dead":
                said = nursery.hear(max(0.0, until - time.monotonic()))
                if said is not None:
                    lines.append(said)
                else:
                    os.kill(pid, signal.SIGKILL)
                    until = time.monotonic() + PATIENCE_SECONDS
            kinds = [line[0] for line in lines]
            assert "failed" not in kinds, lines
            with tupelo.Space("new", path=path) as space:
                found = space.read_all()
                assert found == [("pool", round_)] or (not found and "done" not in kinds)
                space.write(("later",))
            with tupelo.Space("new", path=path) as space:
                assert space.read_all() == [*found, ("later",)]
