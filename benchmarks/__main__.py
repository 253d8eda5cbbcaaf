"""Run the benchmarks: `python -m benchmarks [sections...] [--rounds N] [--quick]`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from time import perf_counter

from rich.console import Console

from benchmarks import (
    backlog,
    console,
    crowd,
    doors,
    durable,
    engagement,
    event_heap,
    federation,
    handover,
    index,
    jobs,
    joining,
    kills,
    lime,
    melon,
    memory,
    pipeline,
    pipeline_jobs,
    postgres,
    queues,
    remote,
    report,
    sites,
    strangers,
    thesis,
    unread,
    whatif,
    worst,
)
from benchmarks.measure import ROUNDS, ROUNDS_MIN, Findings, Line, Settings, in_fresh_process
from tupelo.pipeline import TITLES

SECTIONS: dict[str, Callable[[Settings], Findings | list[Line]]] = {
    "queues": queues.run,
    "index": index.run,
    "handover": handover.run,
    "durable": durable.run,
    "memory": memory.run,
    "thesis": thesis.run,
    "doors": doors.run,
    "remote": remote.run,
    "console": console.run,
    "sites": sites.run,
    "worst": worst.run,
    "crowd": crowd.run,
    "strangers": strangers.run,
    "federation": federation.run,
    "lime": lime.run,
    "engagement": engagement.run,
    "joining": joining.run,
    "melon": melon.run,
    "backlog": backlog.run,
    "unread": unread.run,
    "event_heap": event_heap.run,
    "jobs": jobs.run,
    "postgres": postgres.run,
    "pipeline": pipeline.run,
    "tail": pipeline.tail,
    "pipeline_jobs": pipeline_jobs.run,
    "whatif": whatif.run,
    "kills": kills.run,
}


def main() -> None:
    names, settings = _arguments()
    progress = Console(stderr=True)
    load_before = os.getloadavg()[0]
    found: dict[str, Findings] = {}
    for name in names:
        start = perf_counter()
        with progress.status(f"{name} …"):
            # Each in a process of its own, so that none meets the heap that another has left.
            made = in_fresh_process(SECTIONS[name], settings)
        found[name] = made if isinstance(made, Findings) else Findings(made)
        progress.print(f"{name}: {perf_counter() - start:.0f} s")
    circumstances = report.circumstances_of(settings, load_before)
    report.show(found, circumstances)
    report.keep(found, circumstances)
    progress.print(f"kept in {report.OUT}")


def _arguments() -> tuple[list[str], Settings]:
    sections = ", ".join(SECTIONS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="section", help=f"which: {sections}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"at least {ROUNDS_MIN}")
    parser.add_argument("--quick", action="store_true", help="cut the sizes by 10, to try it")
    parser.add_argument("--only", nargs="+", default=[], help="only these jobs of pipeline_jobs")
    given = parser.parse_args()
    if unknown := set(given.names) - set(SECTIONS):
        parser.error(f"no section is called {', '.join(sorted(unknown))}: try {sections}")
    if unknown := set(given.only) - set(TITLES):
        parser.error(f"no job is called {', '.join(sorted(unknown))}: try {', '.join(TITLES)}")
    if given.rounds < ROUNDS_MIN:
        parser.error(f"--rounds is at least {ROUNDS_MIN}, or the median means little")
    names = [name for name in SECTIONS if name in given.names or not given.names]
    return names, Settings(given.rounds, 10 if given.quick else 1, tuple(given.only))


if __name__ == "__main__":
    main()
