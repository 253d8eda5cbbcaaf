"""The ledger: whether logs can be true, told in plain Python, one entry after the other.

An entry is (space, origin, n). At each host it is there or not, and what the log says of it must
fit: only what is not there is written, only what is there ends. It is first written at the host of
its origin. Anywhere else, or once more, it is written because it has moved there, or because it
was taken by an agent of that host who then did not get it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tupelo.pipeline.source.locations import resolve
from tupelo.pipeline.source.options import ReadOptions

ENDINGS = {"taken", "moved", "expired", "cancelled", "evicted"}
STAYS = {"renewed", "released", "engaged", "disengaged"}
SEEN = ("host", "space", "position", "time", "kind", "origin", "n", "agent", "expires", "fields")

Change = dict[str, Any]
Numbers = dict[str, list[int]]
"""Entries, by who wrote them and the number that is their third field."""


def changes_in(folder: Path) -> Iterator[Change]:
    """All that the logs of the hosts in a folder say, one log after the other."""
    for log in resolve(ReadOptions(tuple(str(host) for host in folder.iterdir()))):
        for batch in log.batches(*log.bounds(), SEEN):
            yield from batch.to_pylist()


def faults_in(changes: Iterable[Change]) -> list[str]:
    """What cannot be."""
    faults: list[str] = []
    last: Counter[tuple[str, str]] = Counter()
    of_entries: dict[tuple[str, str, int], dict[str, list[Change]]] = defaultdict(dict)
    for change in changes:
        host, space, position = change["host"], change["space"], change["position"]
        if position != last[host, space] + 1:
            faults.append(f"{space} at {host}: {position} comes after {last[host, space]}")
        last[host, space] = position
        if change["n"] is not None:
            entry = of_entries[space, change["origin"], change["n"]]
            entry.setdefault(host, []).append(change)
    for name, at in of_entries.items():
        wrong = [*_at_each_host(at), *_over_all(name[1], at)]
        faults += [f"{name}: {fault}" for fault in wrong]
    return faults


def _at_each_host(at: dict[str, list[Change]]) -> Iterator[str]:
    there: list[str] = []
    for host, changes in at.items():
        here = False
        for change in changes:
            kind = change["kind"]
            if kind in ("written", "returned") and here:
                yield f"{kind} at {change['position']} of {host}, where it is"
            if (kind in ENDINGS or kind in STAYS) and not here:
                yield f"{kind} at {change['position']} of {host}, where it is not"
            here = kind in ("written", "returned") or (here and kind not in ENDINGS)
        if here:
            there.append(host)
    if len(there) > 1:
        yield f"it is at {len(there)} hosts: {there}"


def _over_all(origin: str, at: dict[str, list[Change]]) -> Iterator[str]:
    every = [(host, change) for host, changes in at.items() for change in changes]
    written = Counter(host for host, change in every if change["kind"] == "written")
    moved = [change for _, change in every if change["kind"] == "moved"]
    takers = Counter(_host_of(c["agent"]) for _, c in every if c["kind"] == "taken")
    written[_host_of(origin)] -= 1  # the first time
    if min(written.values()) < 0:
        yield "it was never written at its origin"
    came = sum(max(0, times - takers[host]) for host, times in written.items())
    if came > len(moved):
        yield f"it came {came} times, moved {len(moved)} times, and nobody gave it back"
    ran_out = any(c["expires"] is not None and c["expires"] <= c["time"] for c in moved)
    if came < len(moved) and not ran_out and not takers:
        yield f"it moved {len(moved)} times, and came {came} times"


def _host_of(agent: str) -> str:
    return agent.rpartition("@")[2]


def promises_broken(changes: Iterable[Change], written: Numbers, taken: Numbers) -> list[str]:
    """What workers were told that they wrote and took, and the logs know nothing of; and what two
    of them have."""
    logged: dict[str, set[tuple[str, int]]] = {"written": set(), "taken": set()}
    for change in changes:
        if change["kind"] in logged and not change["space"].startswith("tupelo."):
            _, writer, number, _ = json.loads(change["fields"])
            logged[change["kind"]].add((writer, number))
    broken = []
    for kind, told in (("written", written), ("taken", taken)):
        count = Counter((writer, number) for writer in told for number in told[writer])
        broken += [f"{kind} twice: {entry}" for entry, times in count.items() if times > 1]
        broken += [f"{kind}, and not in a log: {entry}" for entry in count.keys() - logged[kind]]
    return broken
