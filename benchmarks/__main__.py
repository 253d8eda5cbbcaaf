"""Run the benchmarks: `python -m benchmarks [names...] [--rounds N] [--quick]`."""

from __future__ import annotations

import argparse
import os
from time import perf_counter

from rich.console import Console

from benchmarks import (
    backlog,
    console,
    doors,
    durable,
    event_heap,
    federation,
    handover,
    index,
    jobs,
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
    thesis,
    unread,
    whatif,
    worst,
)
from benchmarks.measure import ROUNDS, ROUNDS_MIN, Line, Settings, Table, in_fresh_process
from tupelo.pipeline import TITLES

THEMES = {
    "queues": queues.run,
    "index": index.run,
    "handover": handover.run,
    "durable": durable.run,
    "memory": memory.run,
    "doors": doors.run,
    "remote": remote.run,
    "console": console.run,
    "sites": sites.run,
    "federation": federation.run,
    "backlog": backlog.run,
    "jobs": jobs.run,
    "postgres": postgres.run,
    "pipeline": pipeline.run,
    "tail": pipeline.tail,
    "whatif": whatif.run,
}
NAMES = [
    *THEMES,
    "kills",
    "lime",
    "melon",
    "unread",
    "event_heap",
    "pipeline_jobs",
    "worst",
    "thesis",
]


def main() -> None:
    names, settings = _arguments()
    progress = Console(stderr=True)
    load_before = os.getloadavg()[0]
    lines: list[Line] = []
    rows: list[thesis.Row] = []
    door_rows: list[doors.Row] = []
    plots: report.Plots = {}
    tables: list[Table] = []
    for name in names:
        start = perf_counter()
        with progress.status(f"{name} …"):
            # Each in a process of its own, so that none meets the heap that another has left.
            if name == "thesis":
                rows = in_fresh_process(thesis.run, settings)
            elif name == "worst":
                tables += in_fresh_process(worst.tables, settings)
            elif name == "kills":
                tables += in_fresh_process(kills.tables, settings)
            elif name == "lime":
                traffic = in_fresh_process(lime.traffic, settings)
                tables += in_fresh_process(lime.tables, settings, traffic)
                plots[name] = lime.plot, traffic
            elif name == "melon":
                more, readers = in_fresh_process(melon.run, settings)
                tables += more
                plots[name] = melon.plot, readers
            elif name == "unread":
                promised, more, sizes = in_fresh_process(unread.run, settings)
                lines += promised
                tables += more
                plots[name] = unread.plot, sizes
            elif name == "event_heap":
                more, orders = in_fresh_process(event_heap.run, settings)
                tables += more
                plots[name] = event_heap.plot, orders
            elif name == "pipeline_jobs":
                promised, more = in_fresh_process(pipeline_jobs.run, settings)
                lines += promised
                tables += more
            else:
                lines += in_fresh_process(THEMES[name], settings)
            if name == "doors":
                door_rows = in_fresh_process(doors.table, settings)
            if name == "federation":
                tables += in_fresh_process(federation.tables, settings)
        progress.print(f"{name}: {perf_counter() - start:.0f} s")
    circumstances = report.circumstances_of(settings, load_before)
    report.show(lines, rows, door_rows, tables, circumstances)
    report.keep(lines, rows, door_rows, plots, tables, circumstances)
    progress.print(f"kept in {report.OUT}")


def _arguments() -> tuple[list[str], Settings]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which: {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"at least {ROUNDS_MIN}")
    parser.add_argument("--quick", action="store_true", help="cut the sizes by 10, to try it")
    parser.add_argument("--only", nargs="+", default=[], help="only these jobs of pipeline_jobs")
    found = parser.parse_args()
    if unknown := set(found.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}: try {', '.join(NAMES)}")
    if unknown := set(found.only) - set(TITLES):
        parser.error(f"no job is called {', '.join(sorted(unknown))}: try {', '.join(TITLES)}")
    if found.rounds < ROUNDS_MIN:
        parser.error(f"--rounds is at least {ROUNDS_MIN}, or the median means little")
    names = [name for name in NAMES if name in found.names or not found.names]
    return names, Settings(found.rounds, 10 if found.quick else 1, tuple(found.only))


if __name__ == "__main__":
    main()
