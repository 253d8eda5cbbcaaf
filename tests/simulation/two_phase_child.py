"""The victims of `test_two_phase`: processes that move tokens between two durable spaces until
they are killed, most of them by their own hand at a chosen step of the protocol.

Run as a program it is a nursery, as `kill_child` is, and says on its output:

    ["born", pid]                                a child is there
    ["seen", [left], [right], in doubt, log]     what it found, after recovery
    ["begin", worker, [[token, hop], ...]]       a worker is about to commit these moves, together
    ["done", worker, [[token, hop], ...]]        and the commit has returned
    ["failed", error]                            something that must not happen has happened
    ["dead", pid, status]                        the nursery has buried the child

A token is ("token", number, hop): it is on the left if it has moved an even number of times.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import tupelo
from tests.simulation.kill_child import guard, say
from tupelo.models.javaspaces import TransactionManager
from tupelo.space.engine import Engine
from tupelo.space.shared import Branch
from tupelo.space.twophase import DecisionLog

WORKERS = 3
TOKENS = 9
STEPS = [
    (Branch, "prepare"),
    (Branch, "commit"),
    (Branch, "abort"),
    (DecisionLog, "record"),
    (DecisionLog, "forget"),
    (Engine, "flush"),
]


def die_at(tick: int) -> None:
    """Let every step of the protocol count, before and after, and die at one of them."""
    ticks = itertools.count()

    def count() -> None:
        if next(ticks) == tick:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any) -> Any:
            count()
            answer = method(*args)
            count()
            return answer

        return call

    for owner, name in STEPS:
        setattr(owner, name, counted(getattr(owner, name)))


class Worker:
    """Moves tokens of its own, one or several in a transaction; some of these it calls off."""

    def __init__(self, number: int, seed: str, manager: TransactionManager, hops: dict[int, int]):
        self.number = number
        self.random = random.Random(f"{seed} {number}")
        self.manager = manager
        self.hops = {token: hop for token, hop in hops.items() if token % WORKERS == number}

    def work(self, spaces: list[tupelo.Space]) -> None:
        while True:
            tokens = self.random.sample(sorted(self.hops), self.random.randint(1, 3))
            moves = [(token, self.hops[token] + 1) for token in tokens]
            txn = self.manager.create().transaction
            for token, hop in moves:
                taken = spaces[(hop - 1) % 2].take(("token", token, hop - 1), wait=0, txn=txn)
                assert taken is not None, (token, hop)
                spaces[hop % 2].write(("token", token, hop), txn=txn)
            if self.random.random() < 0.2:
                txn.abort()
                continue
            say("begin", self.number, moves)
            txn.commit()
            say("done", self.number, moves)
            self.hops.update(moves)


def live(order: dict[str, Any]) -> None:
    folder = Path(order["folder"])
    if order["tick"] is not None:
        die_at(order["tick"])
    manager = TransactionManager(folder / "log")
    spaces = [tupelo.Space(side, path=folder / side) for side in ("left", "right")]
    manager.recover(*spaces)
    left, right = (space.read_all() for space in spaces)
    in_doubt = [txn.id for space in spaces for txn in space.in_doubt()]
    say("seen", left, right, in_doubt, manager.log.read_all())
    hops = {token: hop for _, token, hop in left + right}
    workers = [Worker(number, order["seed"], manager, hops) for number in range(WORKERS)]
    for worker in workers[1:]:
        threading.Thread(target=guard, args=(lambda w=worker: w.work(spaces),), daemon=True).start()
    workers[0].work(spaces)


def nurse() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            say("born", os.getpid())
            guard(lambda order=order: live(order))  # type: ignore[misc]
        _, status = os.waitpid(pid, 0)
        say("dead", pid, status)


if __name__ == "__main__":
    nurse()
