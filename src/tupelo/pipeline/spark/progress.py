"""How far Spark is, as a bar: the tasks that are done, of those that are known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.2


@contextmanager
def spark_progress(spark: SparkSession, what: str) -> Iterator[None]:
    """While Spark works: on a terminal a bar, else nothing. Through Spark Connect it is not known
    how far it is, only that it goes on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(what, total=None)
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(spark, progress, bar, over), daemon=True)
        if console.is_terminal and hasattr(spark, "_jsc"):
            watch.start()
        try:
            yield
        finally:
            over.set()
            if watch.ident is not None:
                watch.join()


def _watch(spark: SparkSession, progress: Progress, bar: TaskID, over: threading.Event) -> None:
    tracker: Any = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}  # of each stage, the tasks that are done, and all
    while not over.wait(LOOK_SECONDS):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = info.numCompletedTasks, info.numTasks
        active = set(tracker.getActiveStageIds())
        done = sum(all_ if stage not in active else some for stage, (some, all_) in seen.items())
        total = sum(all_ for _, all_ in seen.values())
        progress.update(bar, completed=done, total=total or None)
