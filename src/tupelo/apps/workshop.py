"""The workshop of the tour: producers that write jobs and workers that do them, in one space.

As a program it owns the space: a file, or a host with its console. It reads commands (`produce`,
`work`, `fail`) and reports one event per line, each after the space has acknowledged it. It ends
with its standard input.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec

from tupelo import Host, Space, Step
from tupelo.errors import TransactionEnded

SPACE = "workshop"
HOST = "base"
JOB = ("job", int, str, float)  # number, what to do, how many seconds it takes
RESULT = ("result", int, str, str)  # number, what was done, by whom
TALLY = ("tally", int)  # how many results there are

PRODUCERS = ("north", "south")
WORKERS = ("ada", "ben", "cleo")
DOOMED = "dan"
TASKS = ("resize", "rotate", "crop", "sharpen")
BURST = 4

ReportStep = Callable[[str, int, str], object]
"""(event, number of the job, name of the producer or worker)"""


class Pace(msgspec.Struct, frozen=True):
    """The speed of the workshop, in seconds."""

    job_min: float
    job_max: float
    write_every: float
    lease: float


class WorkshopPlace(msgspec.Struct, frozen=True):
    """The place of the space: the file `path`, or, if `listen` is given, a host that keeps its
    spaces in the folder `path` and serves its console at `console`."""

    path: str
    listen: str | None = None
    console: str = ""
    token: str | None = None

    @property
    def console_url(self) -> str:
        return f"http://{self.console}/#token={self.token}"

    @property
    def log(self) -> str:
        """The file of the space."""
        return self.path if self.listen is None else f"{self.path}/{SPACE}.tupelo"

    @property
    def report(self) -> Path:
        """The folder of the report, which the console of the host shows."""
        return Path(self.path).parent / "report"

    @contextmanager
    def open(self) -> Iterator[tuple[Space, Host | None]]:
        """The space, and its host if it has one."""
        if self.listen is None:
            with Space(SPACE, path=self.path) as space:
                yield space, None
            return
        from tupelo.apps.console import Console

        with (
            Host(HOST, path=self.path, listen=self.listen) as host,
            Console(host.url, listen=self.console, token=self.token, report=self.report),
        ):
            yield host.space(SPACE).here, host


class WorkshopEvent(msgspec.Struct, array_like=True):
    """One line of the child's report."""

    what: str
    job: int
    by: str


def produce(space: Space, producer: int, seed: int, pace: Pace, report: ReportStep) -> None:
    """Write some jobs at once, and then one after the other until the process ends."""
    name, chance = PRODUCERS[producer], random.Random(f"{seed} {producer}")

    def job(i: int) -> tuple[Any, ...]:
        seconds = round(chance.uniform(pace.job_min, pace.job_max), 3)
        return "job", 1_000 * (producer + 1) + i, chance.choice(TASKS), seconds

    jobs = [job(i) for i in range(1, BURST + 1)]
    space.write_all(jobs)
    for _, number, _, _ in jobs:
        report("written", number, name)
    report("stocked", len(jobs), name)
    for i in range(BURST + 1, 1_000):
        time.sleep(pace.write_every)
        _, number, _, _ = one = job(i)
        space.write(one)
        report("written", number, name)


def work(
    space: Space, name: str, pace: Pace, report: ReportStep, *, to_the_end: bool = False
) -> None:
    """Do one job after the other; with `to_the_end`, until no job is left or can come back."""
    wait = None if to_the_end else pace.lease / 2
    while True:
        try:
            with space.transaction(lease=pace.lease) as txn:
                job = space.take(JOB, wait=wait, txn=txn, if_exists=to_the_end)
                if job is not None:
                    txn.lease.renew(pace.lease)  # Waiting has used up some of it.
                    _, number, task, seconds = job
                    report("begun", number, name)
                    time.sleep(seconds)
                    space.write(("result", number, task, name), txn=txn)
        except TransactionEnded:  # Too slow: the job is in the space again.
            continue
        if job is not None:
            report("finished", number, name)
        elif to_the_end:
            report("left", 0, name)
            return


def fail(space: Space, pace: Pace, report: ReportStep) -> None:
    """Take a job and stop in the middle: no commit, no abort."""
    txn = space.transaction(lease=pace.lease)
    job = space.take(JOB, txn=txn)
    assert job is not None  # It waits for ever.
    _, number, _, seconds = job
    txn.lease.renew(pace.lease)
    report("begun", number, DOOMED)
    time.sleep(seconds / 2)
    report("died", number, DOOMED)


def watch(space: Space, report: ReportStep) -> None:
    """Report every result as it becomes visible."""
    with space.subscribe(RESULT) as notices:
        for notice in notices:
            _, number, _, name = notice.entry
            report("notice", number, name)


def count_result(result: tuple[Any, ...], step: Step) -> None:
    """A reaction: the tally changes in the atomic step in which the result appears."""
    _, tally = step.take(TALLY)
    step.write(("tally", tally + 1))


def start(function: Callable[..., None], *args: Any, **options: Any) -> Thread:
    thread = Thread(target=function, args=args, kwargs=options, daemon=True)
    thread.start()
    return thread


def tell(what: str, job: int, by: str) -> None:
    # A small write to a pipe is atomic, also when this process is killed.
    os.write(sys.stdout.fileno(), msgspec.json.encode(WorkshopEvent(what, job, by)) + b"\n")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tour, which ends this process.
    place, seed = msgspec.json.decode(sys.argv[1], type=WorkshopPlace), int(sys.argv[2])
    pace = msgspec.json.decode(sys.argv[3], type=Pace)
    with place.open() as (space, _):
        space.write(("tally", 0))
        space.react(RESULT, count_result)
        for line in sys.stdin:
            match line.strip():
                case "produce":
                    for producer in range(len(PRODUCERS)):
                        start(produce, space, producer, seed, pace, tell)
                case "work":
                    start(watch, space, tell)
                    for name in WORKERS:
                        start(work, space, name, pace, tell)
                case "fail":
                    start(fail, space, pace, tell)
        os._exit(1)  # The tour has ended.


if __name__ == "__main__":
    main()
