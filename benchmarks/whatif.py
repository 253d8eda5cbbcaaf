"""What the replay of a log predicts for one worker less and one more, against what really happens
with so many: threads that sleep for as long as each job says. Each round has other jobs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
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


MEASURES = ("mean", "p50", "p90", "p99")


def run(settings: Settings) -> list[Line]:
    from tupelo.pipeline import session

    OUT.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=OUT) as name:
        spark = session("local[2]")
        try:
            rounds = [
                compared(spark, Path(name) / f"{number}", settings.size(JOBS), number)
                for number in range(settings.rounds)
            ]
        finally:
            spark.stop()
    lines = []
    for number, measure in rounds[0]:
        predicted, real = zip(*(found[number, measure] for found in rounds), strict=True)
        lines.append(
            Line(
                f"{measure} until settled with {number} workers, by a replay of a run with"
                f" {WORKERS}: {median(predicted) * 1e3:.0f} ms; really {median(real) * 1e3:.0f} ms."
                " The error",
                "nothing",
                "%",
                Target("≤", 25, of="ours"),
                [abs(p - r) / r * 100 for p, r in zip(predicted, real, strict=True)],
                [],
            )
        )
    return lines


def compared(
    spark: SparkSession, directory: Path, count: int, seed: int
) -> dict[tuple[int, str], tuple[float, float]]:
    """By number of workers and measure: the seconds until a job is settled, as predicted from the
    run with three, and as they really were."""
    from tupelo.pipeline import changes
    from tupelo.pipeline.jobs import turnaround, whatif

    folders = {number: directory / f"{number}" for number in (WORKERS - 1, WORKERS, WORKERS + 1)}
    # At the same time, because what else is at work on the machine should hold up all alike.
    with ThreadPoolExecutor(len(folders)) as pool:
        for done in [pool.submit(work, folders[n], n, count, seed) for n in folders]:
            done.result()
    predicted = {
        row["workers"]: row
        for row in whatif(changes(spark, str(folders[WORKERS]), space="jobs")).collect()
    }
    found = {}
    for number, folder in folders.items():
        table = changes(spark, str(folder), space="jobs")
        (mean,) = whatif(table).where("more = 0").collect()
        (shares,) = turnaround(table).where("worker is null").collect()
        real = {**shares.asDict(), "mean": mean["really"]}
        for measure in MEASURES:
            found[number, measure] = predicted[number][measure], real[measure]
    return found


def work(folder: Path, workers: int, count: int, seed: int) -> None:
    """Jobs come at random, the same for each seed, and so many workers do them."""
    rng = Random(seed)
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
