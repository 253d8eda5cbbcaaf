"""Threads and tasks together on one space: in the end, every entry was taken exactly once.

Some wait, some run out of patience, some are cancelled at any moment, some work in transactions
of which some abort and some expire. What an actor decides comes from a seed; how the actors
interleave does not. `TUPELO_STRESS=20` makes every actor work so many times as long.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import tupelo
from tupelo import aio
from tupelo.errors import Deadlock, TransactionEnded

LONGER = int(os.environ.get("TUPELO_STRESS", "1"))
SEED = random.randrange(10**9) if LONGER > 1 else 7
WRITES = {"memory": 1_500 * LONGER, "process": 500 * LONGER}  # by each producer
JOB = tupelo.Template(("job", int, int))
STOP = ("stop",)
JOB_OR_STOP = JOB | STOP

if LONGER > 1:
    pytestmark = pytest.mark.timeout(0)

Job = tuple[int, int]


class Ledger:
    """Who has written and taken what. Appending to a list is atomic."""

    def __init__(self) -> None:
        self.written: list[Job] = []
        self.perhaps_written: list[Job] = []  # The writer was cancelled.
        self.taken: list[Job] = []
        self.outcomes: list[str] = []

    def check(self, left: list[Job]) -> None:
        times = Counter(self.taken)
        times.update(left)
        twice = {job: count for job, count in times.items() if count > 1}
        assert not twice
        lost = set(self.written) - set(times)
        assert not lost
        assert set(times) <= {*self.written, *self.perhaps_written}


class Actor:
    """One producer or consumer; `number` is its name in what it writes."""

    def __init__(self, space: tupelo.Space, ledger: Ledger, number: int, writes: int) -> None:
        self.space = space
        self.ledger = ledger
        self.number = number
        self.writes = writes
        self.random = random.Random(f"{SEED} {number}")
        self._next = 0

    def new(self, most: int = 1) -> list[Job]:
        jobs = [(self.number, self._next + i) for i in range(self.random.randint(1, most))]
        self._next += len(jobs)
        return jobs

    def is_done(self) -> bool:
        return self._next >= self.writes

    def note(self, outcome: str) -> None:
        self.ledger.outcomes.append(outcome)

    def takes(self, *found: Any) -> bool:
        """Enter what was taken in the ledger; True if it is time to stop."""
        self.ledger.taken += [entry[1:] for entry in found if entry[0] == "job"]
        return STOP in found


# Threads


class ThreadProducer(Actor):
    def run(self) -> None:
        while not self.is_done():
            self.random.choice([self.write, self.write_all, self.commit, self.abort, self.expire])()

    def write(self) -> None:
        for job in self.new():
            self.space.write(("job", *job))
            self.ledger.written.append(job)

    def write_all(self) -> None:
        jobs = self.new(5)
        self.space.write_all([("job", *job) for job in jobs])
        self.ledger.written += jobs

    def commit(self) -> None:
        jobs = self.new(4)
        with self.space.transaction() as txn:
            for job in jobs:
                self.space.write(("job", *job), txn=txn)
        self.ledger.written += jobs

    def abort(self) -> None:
        txn = self.space.transaction()
        for job in self.new(4):
            self.space.write(("job", *job), txn=txn)
        txn.abort()

    def expire(self) -> None:
        """The lease may run out before the commit, or not."""
        jobs = self.new(3)
        try:
            with self.space.transaction(lease=self.random.uniform(0.00001, 0.002)) as txn:
                for job in jobs:
                    self.space.write(("job", *job), txn=txn)
            self.ledger.written += jobs
            self.note("committed in time")
        except TransactionEnded:
            self.note("expired")


class ThreadConsumer(Actor):
    def run(self) -> None:
        ways = [self.take, self.take, self.take_all, self.commit, self.abort, self.expire]
        while not self.random.choice(ways)():
            pass

    def wait(self) -> float | None:
        return self.random.choice([0, 0.0005, 0.01, None])

    def take(self) -> bool:
        found = self.space.take(JOB_OR_STOP, wait=self.wait())
        return found is not None and self.takes(found)

    def take_all(self) -> bool:
        limit = self.random.randint(1, 4)  # Jobs only: one is to stop by one entry alone.
        return self.takes(*self.space.take_all(JOB, wait=0.001, limit=limit))

    def commit(self) -> bool:
        found = []
        try:
            with self.space.transaction() as txn:
                for _ in range(self.random.randint(1, 3)):
                    entry = self.space.take(JOB, wait=0.001, txn=txn)
                    found += [entry] if entry else []
        except Deadlock:
            self.note("deadlock")
            return False
        return self.takes(*found)

    def abort(self) -> bool:
        txn = self.space.transaction()
        self.space.read(JOB, wait=0, txn=txn)
        self.space.take(JOB, wait=0, txn=txn)
        txn.abort()
        return False

    def expire(self) -> bool:
        """It is left to its lease; but a commit may come before that."""
        txn = self.space.transaction(lease=self.random.uniform(0.00001, 0.003))
        try:
            found = self.space.take(JOB, wait=0, txn=txn)
            if found and self.random.random() < 0.5:
                txn.commit()
                self.takes(found)
                self.note("took in time")
        except TransactionEnded:
            self.note("took too late")
        return False


# Tasks


class TaskActor(Actor):
    """Its door is made in the loop's thread."""

    door: aio.Space

    async def run(self) -> None:
        self.door = aio.Space(self.space)
        await self.work()

    async def work(self) -> None:
        raise NotImplementedError

    async def cancelled(self, operation: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
        """Start it and cancel it a little later. (Was it cancelled? If not: its answer.)"""
        task = asyncio.create_task(operation)
        for _ in range(self.random.choice([0, 1, 2, 3, 10])):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        self.note("cancelled" if task.cancelled() else "too late to cancel")
        return task.cancelled(), None if task.cancelled() else task.result()


class TaskProducer(TaskActor):
    async def work(self) -> None:
        while not self.is_done():
            await self.random.choice([self.write, self.write_all, self.commit, self.give_up])()
            await asyncio.sleep(0)

    async def write(self) -> None:
        for job in self.new():
            await self.door.write(("job", *job))
            self.ledger.written.append(job)

    async def write_all(self) -> None:
        jobs = self.new(5)
        await self.door.write_all([("job", *job) for job in jobs])
        self.ledger.written += jobs

    async def commit(self) -> None:
        jobs = self.new(4)
        async with self.door.transaction() as txn:
            for job in jobs:
                await self.door.write(("job", *job), txn=txn)
        self.ledger.written += jobs

    async def give_up(self) -> None:
        for job in self.new():
            cancelled, _ = await self.cancelled(self.door.write(("job", *job)))
            (self.ledger.perhaps_written if cancelled else self.ledger.written).append(job)


class TaskConsumer(TaskActor):
    async def work(self) -> None:
        ways = [self.take, self.take_all, self.give_up, self.time_out, self.commit, self.abort]
        while not await self.random.choice(ways)():
            await asyncio.sleep(0)

    async def take(self) -> bool:
        found = await self.door.take(JOB_OR_STOP, wait=self.random.choice([0, 0.001, 0.01, None]))
        return found is not None and self.takes(found)

    async def take_all(self) -> bool:
        return self.takes(*await self.door.take_all(JOB, wait=0.001, limit=3))

    async def give_up(self) -> bool:
        cancelled, found = await self.cancelled(self.door.take(JOB_OR_STOP))
        return not cancelled and self.takes(found)

    async def time_out(self) -> bool:
        try:
            patience = self.random.uniform(0, 0.002)
            found = await asyncio.wait_for(self.door.take(JOB_OR_STOP), patience)
        except TimeoutError:
            self.note("timed out")
            return False
        return self.takes(found)

    async def commit(self) -> bool:
        found = []
        txn = self.door.transaction()
        try:
            for _ in range(self.random.randint(1, 3)):
                _, entry = await self.cancelled(self.door.take(JOB, wait=0.001, txn=txn))
                found += [entry] if entry else []
        except Deadlock:
            self.note("deadlock")
            await txn.abort()
            return False
        await txn.commit()
        return self.takes(*found)

    async def abort(self) -> bool:
        txn = self.door.transaction(lease=60)
        await self.cancelled(self.door.take(JOB, wait=0.001, txn=txn))
        if self.random.random() < 0.5:
            await txn.abort()
        else:
            await txn.lease.renew(0.0001)
        return False


# Onlookers


class Reader(Actor):
    """Reads with a session until the space is closed: nothing twice."""

    def run(self) -> None:
        seen: set[Job] = set()
        with self.space.session() as session:
            while not self.space.read(("over",), wait=0):
                for entry in session.read_all(JOB, wait=0.005, limit=3):
                    assert entry[1:] not in seen
                    seen.add(entry[1:])
        self.note("read something" if seen else "read nothing")


class Listener(Actor):
    """Notices have a sequence without gaps, but for those that were missed."""

    def run(self) -> None:
        sequence = 0
        with self.space.subscribe(JOB | ("over",), backlog_max=50) as notices:
            for notice in notices:
                sequence += 1 + notice.missed
                assert notice.sequence == sequence
                if notice.entry == ("over",):
                    break
        self.note("listened")


class Together:
    """Runs actors in threads, and those that are tasks in event loops in two more threads."""

    def __init__(self) -> None:
        self._errors: list[BaseException] = []

    def start(self, *actors: Any) -> list[threading.Thread]:
        tasks = [actor for actor in actors if isinstance(actor, TaskActor)]
        targets = [actor.run for actor in actors if not isinstance(actor, TaskActor)]
        if tasks:
            targets.append(lambda: self._run_loop(tasks[::2], asyncio.new_event_loop))
            targets.append(lambda: self._run_loop(tasks[1::2], uvloop.new_event_loop))
        threads = [threading.Thread(target=self._guard, args=(target,)) for target in targets]
        for thread in threads:
            thread.start()
        return threads

    def join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(200)
        assert not self._errors, self._errors
        assert not any(thread.is_alive() for thread in threads), "someone waits for ever"

    def _run_loop(
        self, actors: list[TaskActor], factory: Callable[[], asyncio.AbstractEventLoop]
    ) -> None:
        async def run_all() -> None:
            await asyncio.gather(*(actor.run() for actor in actors))

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run_all())

    def _guard(self, target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as error:
            self._errors.append(error)


@pytest.mark.parametrize("kept", ["memory", "process"])
def test_threads_and_tasks_take_every_entry_exactly_once(kept: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {}
    if kept == "process":
        options = {"path": tmp_path / "space", "durability": "process", "log_keep": 500}
    ledger = Ledger()
    together = Together()
    with tupelo.Space("stress", **options) as space:

        def actors(kind: type[Actor], first: int, count: int) -> list[Actor]:
            return [kind(space, ledger, first + i, WRITES[kept]) for i in range(count)]

        onlookers = together.start(*actors(Reader, 900, 1), *actors(Listener, 901, 1))
        consumers = actors(ThreadConsumer, 100, 4) + actors(TaskConsumer, 200, 6)
        producers = actors(ThreadProducer, 0, 4) + actors(TaskProducer, 50, 4)
        consuming = together.start(*consumers)
        together.join(together.start(*producers))
        for _ in consumers:
            space.write(STOP)
        together.join(consuming)
        space.write(("over",))
        together.join(onlookers)
        left = [entry[1:] for entry in space.read_all(JOB)]
        ledger.check(left)
    if kept == "process":
        with tupelo.Space("stress", **options) as space:
            assert [entry[1:] for entry in space.read_all(JOB)] == left
    print(f"{len(ledger.taken)} taken, {len(left)} left; seed {SEED}; {Counter(ledger.outcomes)}")
