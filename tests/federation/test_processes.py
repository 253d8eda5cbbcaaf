"""Three durable hosts, each a process, are killed and stopped at random moments while all of them
write and take.

Nothing that was acknowledged is lost. Nothing is taken twice, but what a host had got just before
it was killed, so that the owner had not heard of it. A transaction has happened as a whole or not
at all. `TUPELO_HOST_KILLS=500` does it that often, from a new seed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import Any

import pytest

from tests.conftest import until_true
from tests.federation.company import ChildHost, Company, port_number

KILLS = int(os.environ.get("TUPELO_HOST_KILLS", "0"))
SEED = random.randrange(10**9) if KILLS else 5
HOSTS = 3
STOP_SECONDS = 1.5
"""Longer than the others wait for a heart that does not beat."""

if KILLS:
    pytestmark = pytest.mark.timeout(0)


class Town:
    """The hosts, and what is known of their entries, which are never written twice."""

    def __init__(self, company: Company, folder: Any, rng: random.Random) -> None:
        self.rng = rng
        self._company = company
        self._folder = folder
        self._numbers = 0
        self.written: set[int] = set()
        self.perhaps_written: set[int] = set()
        self.taken: list[int] = []
        self.perhaps_taken = 0
        self.taken_by_the_dead: set[int] = set()
        self.pairs = self.perhaps_pairs = 0  # Each stays a pair, or becomes two halves.
        self.children: list[ChildHost] = []
        for number in range(HOSTS):
            peers = [child.address for child in self.children]
            self.children.append(self._start(number, 0, peers))

    def _start(self, number: int, port: int, peers: list[str]) -> ChildHost:
        return self._company.child(
            f"host {number}",
            listen=port,
            path=str(self._folder / str(number)),
            peers=peers,
            doubt=600.0,
        )

    def restart(self, number: int) -> None:
        port = port_number(self.children[number].address)
        others = [child.address for child in self.children if child is not self.children[number]]
        self.children[number] = self._start(number, port, others)

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # What is done

    def orders(self) -> list[tuple[int, int, str, list[Any]]]:
        """Something for every host to do: its place, the number of the order, the order."""
        given = []
        writer = self.rng.randrange(HOSTS)
        for place, child in enumerate(self.children):
            for _ in range(12):
                verb, args = self._order(place == writer)
                given.append((place, child.order(verb, *args), verb, args))
        return given

    def _order(self, writes: bool) -> tuple[str, list[Any]]:
        """One host writes and the others take, so that most takes are hand-overs."""
        chance = self.rng.random()
        if chance < 0.7 and writes:
            count = self.rng.randrange(1, 4)
            return "write", [["job", self.new_number()] for _ in range(count)]
        if chance < 0.7:
            return "take", ["job", self.rng.choice([0, 0.3])]
        if chance < 0.85:
            return "write", [["pair", self.new_number()]]
        return "swap", [2 * self.new_number()]

    def hear(self, child: ChildHost, number: int, verb: str, args: list[Any]) -> None:
        """Take in what became of an order; one that a dead host has not answered is in doubt."""
        said: Any = child.hear(number) if child.is_alive or child.has_said(number) else None
        answered = said is not None and said[0] == "answer"
        if verb == "write":
            kind, numbers = args[0][0], {entry[1] for entry in args}
            assert answered or said is None, said
            if kind == "job":
                (self.written if answered else self.perhaps_written).update(numbers)
            elif answered:
                self.pairs += 1
            else:
                self.perhaps_pairs += 1
        elif verb == "take":
            if answered and said[2] is not None:
                self.taken.append(said[2][1])
                if not child.is_alive:
                    self.taken_by_the_dead.add(said[2][1])
            elif said is None:
                self.perhaps_taken += 1
            else:
                assert answered or said[2] == "NotAllAnswered", said

    # What must hold

    def check(self) -> None:
        """All hosts are there and engaged, and what was in doubt is settled."""
        until_true(
            lambda: all(len(child.do("engaged")) == HOSTS - 1 for child in self.children),
            "they meet again",
        )
        # Until then an owner that was restarted may not have heard what the living have got.
        until_true(lambda: not any(child.do("in_doubt") for child in self.children), "all settled")
        taken = Counter(self.taken)
        twice = {number for number, count in taken.items() if count > 1}
        assert twice <= self.taken_by_the_dead, "an entry was taken twice"
        left: Counter[int] = Counter()

        def is_complete() -> bool:
            jobs = [job for child in self.children for job in child.do("here", "job")]
            left.clear()
            left.update(number for _, number in jobs)
            lost = self.written - set(taken) - set(left)
            return len(lost) <= self.perhaps_taken

        until_true(is_complete, "no more are missing than those that a dead host may have taken")
        assert all(count == 1 for count in left.values()), "an entry is at two places"
        assert set(left) & set(taken) <= self.taken_by_the_dead, "what was taken is there"
        assert set(left) | set(taken) <= self.written | self.perhaps_written
        self._check_pairs()

    def _check_pairs(self) -> None:
        for child in self.children:
            halves = {number for _, number in child.do("here", "half")}
            assert all(number ^ 1 in halves for number in halves), "half of a transaction"
        assert self.pairs <= self._pairs_there() <= self.pairs + self.perhaps_pairs

    def _pairs_there(self) -> int:
        whole = sum(len(child.do("here", "pair")) for child in self.children)
        return whole + sum(len(child.do("here", "half")) for child in self.children) // 2

    def settle(self) -> None:
        """What may have been taken is known now; forget what can never be lost any more."""
        left = {number for child in self.children for _, number in child.do("here", "job")}
        self.taken = [number for number in self.taken if number not in left]
        self.taken_by_the_dead = set()
        self.written = left | set(self.taken)
        self.perhaps_written = set()
        self.perhaps_taken = 0
        self.pairs, self.perhaps_pairs = self._pairs_there(), 0


@pytest.mark.parametrize("how", ["kill", "stop", "both"])
def test_nothing_is_lost_or_taken_twice_when_hosts_die_or_fall_silent(threads, tmp_path, how):
    rng = random.Random(f"{SEED} {how}")
    town = Town(threads, tmp_path, rng)
    print(f"the seed is {SEED}")
    for _ in range(KILLS or 4):
        given = town.orders()
        victim = rng.randrange(HOSTS)
        child = town.children[victim]
        moment = rng.randrange(len(given))
        for place, number, verb, _ in given[:moment]:
            if place != victim and verb == "write":
                town.children[place].wait_for(number)
        time.sleep(rng.uniform(0, 0.05))  # Any moment is as good as another.
        living = list(town.children)
        if how == "kill" or (how == "both" and rng.random() < 0.5):
            child.kill()
            town.restart(victim)
        else:
            child.stop()
            time.sleep(rng.uniform(0, STOP_SECONDS))
            child.go_on()
        for place, number, verb, args in given:
            town.hear(living[place], number, verb, args)
        town.check()
        town.settle()
