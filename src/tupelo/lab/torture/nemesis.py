"""The nemesis of a round: it injects faults of links and processes, as the seed decides."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from tupelo.lab.torture.proxy import LINK_FAULTS, Direction, LinkFault, Proxy

if TYPE_CHECKING:
    from tupelo.lab.torture.round import RestartedProcess, RoundHost

PROCESS_FAULTS = ("kill", "pause", "full disk", "kill client", "pause client")
FAULTS: tuple[str, ...] = (*LINK_FAULTS, *PROCESS_FAULTS)
WEIGHTS = {"kill": 3, "kill client": 2}
"""The weights of the faults; 1 for those that are not listed."""
BETWEEN_SECONDS = 0.5
"""The mean time between two faults."""
FAULT_SECONDS_MAX = 2.5
DELAY_SECONDS_MAX = 0.4
REST_SECONDS_MAX = 15.0
"""A target has no faults for as long as its last fault took, but no longer than this."""


class FaultRecord(msgspec.Struct):
    """A fault, with its begin and end; `at` is the moment of a kill."""

    kind: str
    target: str
    began: float
    ended: float = 0.0
    at: float = 0.0


@dataclass
class ProcessNemesis:
    """Injects faults of links, hosts and client processes; each target has one at a time."""

    rng: Random
    links: dict[str, Proxy]
    hosts: Sequence[RoundHost]
    clients: Sequence[RestartedProcess]
    kinds: Sequence[str]
    records: list[FaultRecord]
    file: Path

    def __post_init__(self) -> None:
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def counts(self) -> Counter[str]:
        return Counter(record.kind for record in self.records)

    async def run(self, seconds: float, faults: int | None, told: Callable[[float], None]) -> None:
        """Inject faults for so long, or so many if that is given; then wait until all are over."""
        began = time.monotonic()
        while True:
            elapsed = time.monotonic() - began
            share = elapsed / seconds if faults is None else (1 + len(self.records)) / (1 + faults)
            told(min(1.0, share))
            if share >= 1.0:
                break
            if self.kinds:
                self._begin_one()
            await asyncio.sleep(self.rng.expovariate(1 / BETWEEN_SECONDS))
            for task in list(self._tasks):
                if task.done():
                    self._tasks.discard(task)
                    task.result()
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin_one(self) -> None:
        weights = [WEIGHTS.get(kind, 1) for kind in self.kinds]
        (kind,) = self.rng.choices(self.kinds, weights)
        seconds = self.rng.uniform(0.05, FAULT_SECONDS_MAX)
        work: Callable[[FaultRecord], Awaitable[None]]
        if kind in LINK_FAULTS:
            target = self.rng.choice(list(self.links))
            direction: Direction = self.rng.choice(("there", "back"))
            fault = LinkFault(kind, direction, self.rng.uniform(0.01, DELAY_SECONDS_MAX))
            work = partial(self._link, self.links[target], fault, seconds)
        elif kind == "full disk":
            hosts = [host for host in self.hosts if host.has_disk]
            if not hosts:
                return
            host = self.rng.choice(hosts)
            target, work = host.name, partial(self._full_disk, host, seconds)
        else:
            is_client = kind.endswith("client")
            victims: Sequence[RestartedProcess] = self.clients if is_client else self.hosts
            if not victims:
                return
            victim = self.rng.choice(victims)
            target, work = victim.name, partial(self._process, kind, victim, seconds)
        if target not in self._busy:
            self._busy.add(target)
            record = FaultRecord(kind, target, time.monotonic())
            self.records.append(record)
            self._tasks.add(asyncio.ensure_future(self._during(record, work)))

    async def _during(
        self, record: FaultRecord, work: Callable[[FaultRecord], Awaitable[None]]
    ) -> None:
        try:
            await work(record)
        finally:
            record.ended = time.monotonic()
            with self.file.open("ab") as lines:
                lines.write(msgspec.json.encode(record) + b"\n")
        # On a busy machine a process starts slowly: let it work for as long as it was down.
        loop = asyncio.get_running_loop()
        rest = min(REST_SECONDS_MAX, record.ended - record.began)
        loop.call_later(rest, self._busy.discard, record.target)

    async def _link(
        self, link: Proxy, fault: LinkFault, seconds: float, record: FaultRecord
    ) -> None:
        link.fail(fault)
        try:
            await asyncio.sleep(seconds)
        finally:
            link.heal()

    async def _process(
        self, kind: str, victim: RestartedProcess, seconds: float, record: FaultRecord
    ) -> None:
        if kind.startswith("pause"):
            victim.pause()
            try:
                await asyncio.sleep(seconds)
            finally:
                victim.resume()
            return
        await victim.kill()
        record.at = time.monotonic()
        if kind == "kill":
            await asyncio.sleep(seconds / 2)
        await victim.start()

    async def _full_disk(self, host: RoundHost, seconds: float, record: FaultRecord) -> None:
        host.fill_disk()
        await asyncio.sleep(seconds)
        await host.kill()
        record.at = time.monotonic()
        await host.start()
