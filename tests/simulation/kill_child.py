"""The victims of `test_kill`: processes that use a durable space until they are killed.

Run as a program it is a nursery: it reads orders from its input, one JSON object a line, and
forks a child for each; a fork of a warm process is much quicker than a start. What the children
say goes to its output, a line each, in one `os.write`:

    ["born", pid]                       a child is there
    ["seen", [entries], [txn ids]]      what the child found when it opened the space
    ["begin", worker, operation]        a worker is about to do this
    ["done", worker, answer]            and it was done: the call has returned
    ["failed", error]                   something that must not happen has happened
    ["dead", pid, status]               the nursery has buried the child

Entries are ("own", worker, number), which only this worker touches, ("pool", number), which any
may take, and ("leased", worker, number).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import tupelo
from tupelo import aio
from tupelo.errors import LogTrimmed

THREADS = 4
TASKS = 2
LOOP = THREADS  # The workers from here on are tasks of one event loop.
OWNER = -1
OWN_MAX, POOL_MAX, OLD_MAX = 12, 40, 40
LEASE_SECONDS = 1_000.0
LOG_KEEP = 40


def say(*words: Any) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


class Worker:
    """Does one random thing after the other, and says so before and after."""

    def __init__(self, space: tupelo.Space, number: int, seed: str, first: int) -> None:
        self.space = space
        self.number = number
        self.random = random.Random(f"{seed} {number}")
        self.numbers = itertools.count(first + number, THREADS + TASKS)
        self.own: list[int] = [entry[2] for entry in space.read_all(("own", number, int))]
        self.leased: list[tuple[int, tupelo.Lease]] = []
        self.prepared: tuple[tupelo.Transaction, list[int], list[int]] | None = None

    def work(self) -> None:
        operations = [
            *[self.write, self.write_many, self.take, self.write_pool, self.take_pool] * 3,
            *[self.commit, self.commit_nested, self.abort, self.lease, self.renew] * 2,
            *[self.take_pool_all, self.promise, self.tidy],
        ]
        while True:
            self.random.choice(operations)()

    def begin(self, *operation: Any) -> None:
        say("begin", self.number, operation)

    def done(self, answer: Any = None) -> None:
        say("done", self.number, answer)

    def new(self, count: int = 1) -> list[int]:
        return [next(self.numbers) for _ in range(count)]

    def entry(self, number: int) -> tuple[str, int, int]:
        return "own", self.number, number

    # Single operations

    def write(self) -> None:
        if len(self.own) < OWN_MAX:
            (number,) = self.new()
            self.begin("write", number)
            self.space.write(self.entry(number))
            self.done()
            self.own.append(number)

    def write_many(self) -> None:
        if len(self.own) < OWN_MAX:
            numbers = self.new(self.random.randint(2, 5))
            self.begin("all", [], numbers)
            self.space.write_all(map(self.entry, numbers))
            self.done()
            self.own += numbers

    def take(self) -> None:
        if self.own:
            number = self.own.pop(self.random.randrange(len(self.own)))
            self.begin("all", [number], [])
            taken = self.space.take(self.entry(number), wait=0)
            self.done()
            assert taken == self.entry(number)

    def write_pool(self) -> None:
        if self.space.count(("pool", int)) < POOL_MAX:
            (number,) = self.new()
            self.begin("pool", number)
            self.space.write(("pool", number))
            self.done()

    def take_pool(self) -> None:
        self.begin("take", 1)
        taken = self.space.take(("pool", int), wait=self.random.choice([0, 0.002]))
        self.done([taken[1]] if taken else [])

    def take_pool_all(self) -> None:
        self.begin("take", 3)
        taken = self.space.take_all(("pool", int), limit=3)
        self.done([entry[1] for entry in taken])

    def lease(self) -> None:
        if len(self.leased) < OWN_MAX:
            (number,) = self.new()
            self.begin("lease", number)
            lease = self.space.write(("leased", self.number, number), lease=LEASE_SECONDS)
            self.done()
            self.leased.append((number, lease))

    def renew(self) -> None:
        """For ever; or end it."""
        if self.leased:
            number, lease = self.leased.pop()
            ends = self.random.random() < 0.5
            self.begin("cancel" if ends else "renew", number)
            lease.cancel() if ends else lease.renew(None)
            self.done()

    def tidy(self) -> None:
        self.begin("tidy")
        if self.random.random() < 0.3:
            self.space.compact()
        else:
            try:
                kept = self.space.changes(since=0)
                first = kept[0].position if kept else 0  # Nothing may have happened yet.
            except LogTrimmed as error:
                first = error.first
            self.space.trim(before=first + 5)
        self.done()

    # Transactions

    def change(self, txn: tupelo.Transaction) -> tuple[list[int], list[int]]:
        """Take some of our own and write others, within the transaction."""
        many = 3 if len(self.own) > OWN_MAX else self.random.randint(0, 2)
        taken = [self.own.pop() for _ in range(min(len(self.own), many))]
        written = self.new(self.random.randint(1, 2))
        for number in taken:
            assert self.space.take(self.entry(number), wait=0, txn=txn)
        for number in written:
            self.space.write(self.entry(number), txn=txn)
        return taken, written

    def commit(self) -> None:
        with self.space.transaction() as txn:
            taken, written = self.change(txn)
            self.begin("all", taken, written)
        self.done()
        self.own += written

    def commit_nested(self) -> None:
        with self.space.transaction() as txn:
            taken, written = self.change(txn)
            with txn.transaction() as nested:
                more_taken, more_written = self.change(nested)
            lost = txn.transaction()
            undone, _ = self.change(lost)
            lost.abort()
            self.begin("all", taken + more_taken, written + more_written)
        self.done()
        self.own += undone + written + more_written

    def abort(self) -> None:
        self.begin("all", [], [])
        txn = self.space.transaction(lease=LEASE_SECONDS)
        taken, _ = self.change(txn)
        txn.abort()
        self.done()
        self.own += taken

    def promise(self) -> None:
        """Prepare a transaction, or decide about the one that was."""
        if self.prepared is None:
            txn = self.space.transaction()
            taken, written = self.change(txn)
            self.begin("prepare", txn.id, taken, written)
            txn.prepare()
            self.done()
            self.prepared = txn, taken, written
        else:
            txn, taken, written = self.prepared
            self.prepared = None
            commits = self.random.random() < 0.5
            self.begin("decide", txn.id, commits)
            txn.commit() if commits else txn.abort()
            self.done()
            self.own += written if commits else taken


class TaskWorker(Worker):
    """The same through the async door, for those operations whose waiting can be cancelled."""

    async def work_in_task(self) -> None:
        door = aio.Space(self.space)
        while True:
            await self.random.choice([self.put, self.get, self.get_or_not, self.put_many])(door)

    async def put(self, door: aio.Space) -> None:
        if self.space.count(("pool", int)) < POOL_MAX:
            (number,) = self.new()
            self.begin("pool", number)
            await door.write(("pool", number))
            self.done()

    async def put_many(self, door: aio.Space) -> None:
        async with door.transaction() as txn:
            taken, written = self.change(txn)  # type: ignore[arg-type]
            self.begin("all", taken, written)
        self.done()
        self.own += written

    async def get(self, door: aio.Space) -> None:
        self.begin("take", 1)
        taken = await door.take(("pool", int), wait=self.random.choice([0, 0.002]))
        self.done([taken[1]] if taken else [])

    async def get_or_not(self, door: aio.Space) -> None:
        """Cancelled, perhaps just when it got something; then it got nothing."""
        self.begin("take", 1)
        task = asyncio.create_task(door.take(("pool", int)))
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        taken = None if task.cancelled() else task.result()
        self.done([] if taken is None else [taken[1]])


def live(order: dict[str, Any]) -> None:
    """Open the space, say what is there, decide what is in doubt, and use it until killed."""
    seed, first = order["seed"], order["first"]
    space = tupelo.Space(
        "kill", path=order["path"], durability=order["durability"], log_keep=LOG_KEEP
    )
    promises = space.in_doubt()
    say("seen", space.read_all(), [txn.id for txn in promises])
    decision = random.Random(seed)
    for txn in promises:
        commits = decision.random() < 0.5
        say("begin", OWNER, ["decide", txn.id, commits])
        txn.commit() if commits else txn.abort()
        say("done", OWNER, None)
    old = [number for _, _, number in space.read_all(("leased", int, int))]
    if len(old) > OLD_MAX:
        say("begin", OWNER, ["all", old, []])
        space.take_all(("leased", int, int))
        say("done", OWNER, None)
    for number in range(THREADS):
        worker = Worker(space, number, seed, first)
        threading.Thread(target=guard, args=(worker.work,), daemon=True).start()
    tasks = [TaskWorker(space, LOOP + number, seed, first) for number in range(TASKS)]

    async def work_in_tasks() -> None:
        await asyncio.gather(*(worker.work_in_task() for worker in tasks))

    guard(lambda: asyncio.run(work_in_tasks()))


def be_born(order: dict[str, Any]) -> None:
    """Make a space where there is none, write one entry, and close."""
    space = tupelo.Space("new", path=order["path"], durability=order["durability"])
    say("seen", space.read_all(), [])
    say("begin", 0, ["pool", order["first"]])
    space.write(("pool", order["first"]))
    say("done", 0, None)
    space.close()


def guard(work: Callable[[], object]) -> None:
    """The child ends here; an error ends it in the parent's sight."""
    try:
        work()
    except BaseException:
        say("failed", traceback.format_exc())
    os._exit(0)


def nurse() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            say("born", os.getpid())
            guard(partial(live if order["do"] == "live" else be_born, order))
        _, status = os.waitpid(pid, 0)
        say("dead", pid, status)


if __name__ == "__main__":
    nurse()
