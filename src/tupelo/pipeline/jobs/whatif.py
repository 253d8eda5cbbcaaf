"""What one worker more or one less would have done: a replay of the log against a queue model.

The transactions of a space arrive when their entries can be taken, wait in one queue, first come
first served, and take as long as they took. As many are served at a time as there were workers: a
worker is there from the first to the last of its transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from tupelo.pipeline.jobs.columns import WORKER
from tupelo.pipeline.jobs.owner import attempts
from tupelo.pipeline.schema import ddl_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

CHANGES_OF_STAFF = (-1, 0, 1)
_SHARES = (50, 90, 99)
_NUMBERS = (
    "mean",
    *(f"p{share}" for share in _SHARES),
    "really",
    "error",
    "wait",
    "last",
    "utilisation",
)
_ROW = pa.schema(
    [
        ("space", pa.string()),
        ("workers", pa.int64()),
        ("more", pa.int64()),
        ("transactions", pa.int64()),
        *((name, pa.float64()) for name in _NUMBERS),
    ]
)


def whatif(changes: DataFrame) -> DataFrame:
    """One row per space and number of workers: those that were at work at the same time at most,
    one less and one `more`. In seconds: the mean and percentiles of the time from when a
    transaction's entries could be taken until its end, what that mean was `really`, the mean
    `wait`, and the end of the `last` one, after the first arrival. `error` is the relative error of
    the replay where it has as many workers as there were. Spaces without takes in transactions have
    no row."""
    done = (
        attempts(changes)
        .where("in_transaction and there is not null")
        .groupBy("space", *WORKER, "txn")
        .agg(
            f.min(f.unix_micros("there")).alias("arrives"),
            f.min(f.unix_micros("since")).alias("since"),
            f.max(f.unix_micros("until")).alias("until"),
        )
        .select("space", f.struct(*WORKER).alias("worker"), "arrives", "since", "until")
        .withColumn("worker", f.xxhash64("worker"))
    )
    return done.groupBy("space").applyInArrow(_replayed, ddl_of(_ROW))


def _replayed(done: pa.Table) -> pa.Table:
    """The rows of one space."""
    arrives, since, until = (
        done.column(name).to_numpy().astype(np.float64) / 1e6
        for name in ("arrives", "since", "until")
    )
    begin = arrives.min()
    arrives, since, until = arrives - begin, since - begin, until - begin
    steps = staff(done.column("worker").to_numpy(), since, until)
    real = float((until - arrives).mean())
    order = np.lexsort((until, since, arrives))
    arrives, seconds = arrives[order], (until - since)[order]
    present = max(number for _, number in steps)
    rows = []
    error = None
    for more in sorted(CHANGES_OF_STAFF, key=abs):
        if present + more < 1:
            continue
        starts = replay(arrives, seconds, changed(steps, more))
        settled = starts + seconds - arrives
        mean = float(settled.mean())
        if more == 0:
            error = (mean - real) / real if real else None
        last = float((starts + seconds).max())
        rows.append(
            {
                "space": done.column("space")[0].as_py(),
                "workers": present + more,
                "more": more,
                "transactions": len(arrives),
                "mean": mean,
                **{
                    f"p{share}": float(np.percentile(settled, share, method="inverted_cdf"))
                    for share in _SHARES
                },
                "really": real if more == 0 else None,
                "error": error if more == 0 else None,
                "wait": float((starts - arrives).mean()),
                "last": last,
                "utilisation": float(seconds.sum()) / (last * (present + more)) if last else None,
            }
        )
    return pa.Table.from_pylist(rows, _ROW)


CountSteps = list[tuple[float, int]]
"""From which time on how many workers are there."""


def staff(workers: Any, since: Numbers, until: Numbers) -> CountSteps:
    """How many workers were there, each from its first begin to its last end."""
    _, places = np.unique(workers, return_inverse=True)
    first = np.full(places.max() + 1, np.inf)
    last = np.full(places.max() + 1, -np.inf)
    np.minimum.at(first, places, since)
    np.maximum.at(last, places, until)
    moves = sorted([(time, 1) for time in first.tolist()] + [(time, -1) for time in last.tolist()])
    steps: CountSteps = []
    there = 0
    for time, move in moves:
        there += move
        if steps and steps[-1][0] == time:
            steps.pop()
        steps.append((time, there))
    return steps


def changed(steps: CountSteps, more: int) -> CountSteps:
    """With so many more or fewer, but one at least where there was one; and from the beginning, so
    that one more also works while there was none. The last number that is not 0 stays."""
    numbers = [(time, max(there + more, min(there, 1))) for time, there in [(0.0, 0), *steps]]
    while len(numbers) > 1 and not steps[len(numbers) - 2][1]:
        numbers.pop()
    return numbers


def replay(arrives: Numbers, seconds: Numbers, steps: Sequence[tuple[float, int]]) -> Numbers:
    """When each transaction begins; they are in the order of their arrival."""
    starts = np.empty(len(arrives))
    ends: list[float] = []
    place, there, now = 0, 0, 0.0
    for number, (arrival, service) in enumerate(
        zip(arrives.tolist(), seconds.tolist(), strict=True)
    ):
        now = max(now, arrival)
        while True:
            while place < len(steps) and steps[place][0] <= now:
                there = steps[place][1]
                place += 1
            while ends and ends[0] <= now:
                heappop(ends)
            if len(ends) < there:
                break
            following = [ends[0]] if ends else []
            if place < len(steps):
                following.append(steps[place][0])
            now = min(following)
        starts[number] = now
        heappush(ends, now + service)
    return starts
