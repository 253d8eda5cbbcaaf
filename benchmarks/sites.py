"""XVSM over loopback: containers at a host in a process of its own, used by a Capi here.

Beside it the same work is done in a space of the same host by `tupelo.connect`; both are in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import tupelo
from benchmarks.elsewhere import JOBS, SPACE, Elsewhere, Job, job, run_site
from benchmarks.measure import Line, Settings, Target, compare, require
from tupelo.models.xvsm import Capi, LindaSelector


def run(settings: Settings) -> list[Line]:
    jobs = [job(i) for i in range(settings.size(2_000))]
    with Elsewhere(run_site) as site:
        address = site.said()
        with (
            tupelo.connect(f"tupelo://{address}/{SPACE}") as space,
            Capi(site=f"xvsm://{address}") as capi,
        ):
            cref = capi.lookup_container(None, None, SPACE)
            return [
                compare(
                    "xvsm at a host elsewhere: write and take, one after another",
                    "`tupelo.connect`",
                    "/s",
                    Target("≥", 0.6),
                    lambda: _through(
                        jobs,
                        lambda one: capi.write(cref, 0, None, one),
                        lambda: capi.take(cref, 0, None, LindaSelector(JOBS))[0],
                    ),
                    lambda: _through(jobs, space.write, lambda: space.take(JOBS, wait=0)),
                    settings.rounds,
                )
            ]


def _through(jobs: list[Job], write: Callable[[Job], object], take: Callable[[], Any]) -> float:
    start = perf_counter()
    for one in jobs:
        write(one)
        taken = take()
    seconds = perf_counter() - start
    require(taken == jobs[-1], "the last one taken")
    return 2 * len(jobs) / seconds
