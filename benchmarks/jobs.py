"""`tupelo.queue` against Celery and RQ with Redis: jobs a second, through one worker process.

One process submits jobs that return their argument, and waits for every result; another, which runs
already, is the worker: one thread of `JobQueue.work`, a solo pool of Celery, a SimpleWorker of RQ
(which does not fork a process for each job). The host of Tupelo and the Redis server are processes
of their own, and keep nothing on disk.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import Any

from redis import Redis

import tupelo
from benchmarks.elsewhere import NO_REDIS, SPACE, Elsewhere, redis_server, run_site
from benchmarks.measure import Line, Sample, Settings, Target, compare, require
from tupelo.queue import JobQueue

JOBS = 1_000
READY_SECONDS = 60.0


def run(settings: Settings) -> list[Line]:
    count = settings.size(JOBS)
    with ExitStack() as stack:
        port = stack.enter_context(redis_server())
        ours = partial(jobs_a_second, stack.enter_context(_tupelo()), count)
        lines = []
        for name, module, start in (("Celery", "celery", _celery), ("RQ", "rq", _rq)):
            theirs: Sample | None = None
            absent = NO_REDIS
            if importlib.util.find_spec(module) is None:
                absent = f'{name} is not installed: pip install "tupelo[bench]"'
            elif port is not None:
                theirs = partial(jobs_a_second, stack.enter_context(start(port)), count)
            lines.append(
                compare(
                    f"tupelo.queue, {count:,} jobs through one worker",
                    f"{name} with Redis",
                    "/s",
                    Target("≥", 1.0),
                    ours,
                    theirs,
                    settings.rounds,
                    absent=absent,
                )
            )
        return lines


Submit = Callable[[int], Callable[[], Any]]
"""Submits a job; the function that it returns waits for the result."""


def jobs_a_second(submit: Submit, count: int) -> float:
    start = perf_counter()
    results = [submit(n) for n in range(count)]
    values = [result() for result in results]
    seconds = perf_counter() - start
    require(values == list(range(count)), "every job has its result")
    return count / seconds


# Tupelo


@contextmanager
def _tupelo() -> Iterator[Submit]:
    with Elsewhere(run_site) as site, tupelo_jobs(f"tupelo://{site.said()}/{SPACE}") as submit:
        yield submit


@contextmanager
def tupelo_jobs(url: str) -> Iterator[Submit]:
    """Jobs in the space at a URL, with a worker process."""
    with process("tupelo", url), tupelo.connect(url) as space:
        queue = JobQueue(space)

        def submit(n: int) -> Callable[[], Any]:
            return partial(queue.submit("echo", n).result, READY_SECONDS)

        submit(0)()
        yield submit


# Celery


def celery_app(port: int) -> Any:
    """The application, for the worker and for the program that submits."""
    celery = importlib.import_module("celery")
    redis = f"redis://127.0.0.1:{port}/0"
    app = celery.Celery("jobs", broker=redis, backend=redis)
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)
    app.task(name="echo")(echo)
    return app


@contextmanager
def _celery(port: int) -> Iterator[Submit]:
    with process("celery", str(port)):
        app = celery_app(port)

        def submit(n: int) -> Callable[[], Any]:
            return partial(app.send_task("echo", [n]).get, timeout=READY_SECONDS)

        submit(0)()
        try:
            yield submit
        finally:
            gc.collect()  # A result that is freed later looks for the server, in vain and for long.


# RQ


@contextmanager
def _rq(port: int) -> Iterator[Submit]:
    rq = importlib.import_module("rq")
    with process("rq", str(port)), Redis(port=port, db=1) as redis:
        queue = rq.Queue(connection=redis)

        def submit(n: int) -> Callable[[], Any]:
            return partial(_rq_result, queue.enqueue(echo, n))

        submit(0)()
        yield submit


def _rq_result(job: Any) -> Any:
    return job.latest_result(timeout=int(READY_SECONDS)).return_value


# The worker


def echo(n: int) -> int:
    return n


@contextmanager
def process(kind: str, where: str) -> Iterator[None]:
    worker = subprocess.Popen(
        [sys.executable, "-m", __name__, kind, where],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    try:
        yield
    finally:
        worker.terminate()
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def main(kind: str, where: str) -> None:
    if kind == "tupelo":
        queue = JobQueue(tupelo.connect(where))
        queue.task(echo)
        queue.work()
    elif kind == "celery":
        arguments = ["worker", "--pool=solo", "--without-gossip", "--without-mingle"]
        celery_app(int(where)).worker_main([*arguments, "--without-heartbeat"])
    elif kind == "procrastinate":
        library = importlib.import_module("procrastinate")
        app = library.App(connector=library.PsycopgConnector(conninfo=where))
        app.task(name="echo")(echo)
        app.run_worker(concurrency=1, delete_jobs="never")
    else:
        rq = importlib.import_module("rq")
        with Redis(port=int(where), db=1) as redis:
            rq.SimpleWorker([rq.Queue(connection=redis)], connection=redis).work()


if __name__ == "__main__":
    main(*sys.argv[1:])
