"""What the replay of a log predicts for one worker less and one more, against what really happens
with so many: threads that sleep for as long as each job says."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING

import tupelo
from benchmarks.measure import Line, Settings, Target
from benchmarks.report import OUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = 300
WORKERS = 3
MEAN_SECONDS = 0.1
USED = 0.6
"""The share of the time in which three workers have work."""


def run(settings: Settings) -> list[Line]:
    from tupelo.pipeline import session

    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=OUT) as name:
        spark = session("local[2]")
        try:
            return compared(settings, spark, Path(name))
        finally:
            spark.stop()


def compared(settings: Settings, spark: SparkSession, directory: Path) -> list[Line]:
    """A line for each number of workers: predicted from the run with three, and real."""
    from tupelo.pipeline import changes
    from tupelo.pipeline.jobs import whatif

    count = settings.size(JOBS)
    folders = {number: directory / f"{number}" for number in (WORKERS - 1, WORKERS, WORKERS + 1)}
    for number, folder in folders.items():
        work(folder, number, count)
    predicted = {
        row["workers"]: row["mean"]
        for row in whatif(changes(spark, str(folders[WORKERS]), space="jobs")).collect()
    }
    lines = []
    for number, folder in folders.items():
        rows = whatif(changes(spark, str(folder), space="jobs")).where("more = 0").collect()
        lines.append(
            Line(
                f"mean until settled, {number} workers, by a replay of a run with {WORKERS}",
                f"a real run with {number}",
                "ms",
                Target("≤", 1.25),
                [predicted[number] * 1e3],
                [rows[0]["really"] * 1e3],
            )
        )
    return lines


def work(folder: Path, workers: int, count: int) -> None:
    """Jobs come at random, the same each time, and so many workers do them."""
    rng = Random(21)
    jobs = [
        (rng.expovariate(WORKERS * USED / MEAN_SECONDS), rng.uniform(0.2, 1.8) * MEAN_SECONDS)
        for _ in range(count)
    ]
    with tupelo.Host("bench", listen="127.0.0.1:0", path=folder) as host:
        space = host.space("jobs", log_keep="all")

        def worker(number: int) -> None:
            # A connection of its own: the log tells workers apart by agent and name.
            with tupelo.connect(host.url + "jobs", name=f"worker-{number}") as own:
                while True:
                    with own.transaction() as txn:
                        job = own.take(("job", float), txn=txn)
                        assert job is not None
                        if job[1] < 0:
                            return
                        sleep(job[1])

        threads = [Thread(target=worker, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        due = monotonic()
        for between, seconds in jobs:
            due += between
            sleep(max(0.0, due - monotonic()))
            space.write(("job", seconds))
        for _ in threads:
            space.write(("job", -1.0))
        for thread in threads:
            thread.join()
