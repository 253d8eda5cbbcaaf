"""A recording: hosts and workers as processes, with proxies between them; a nemesis kills hosts and
cuts links. At the end all faults are over, and the processes leave; their logs stay.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from tupelo.lab.recording import member, worker
from tupelo.lab.recording.member import HostOrder, PrintedDoubts
from tupelo.lab.recording.worker import RecordedAnswer, RecordingTask
from tupelo.lab.torture.processes import Command, TortureFailed
from tupelo.lab.torture.proxy import LinkFault, Proxy

T = TypeVar("T")
WORKERS = 2
CLIENTS = 3
"""The clients of each worker, at each host."""
BATCH_MIN, BATCH_MAX = 4, 200
HEARTBEAT_SECONDS = 0.4
LOOK_SECONDS = 0.05
AWAY_SECONDS = 1.5
"""A host that was killed is down for no longer."""
CUT_SECONDS = 3.0
"""A link is cut for no longer; a host is dropped after three missed heartbeats."""
STILL_SECONDS = 60.0
"""If there is no progress for so long, the recording has failed."""


class RecordingFailed(TortureFailed):
    """The recording does not go on: a host does not start, or does not settle."""


@dataclass(frozen=True)
class RecordingConfig:
    """How much is recorded, and how many faults there are."""

    folder: Path
    changes: int
    hosts: int = 3
    kills: int = 10
    cuts: int = 10
    seed: int = 0

    @property
    def batch(self) -> int:
        return max(BATCH_MIN, min(BATCH_MAX, self.changes // 1_000))


@dataclass
class Recorded:
    """The faults of a recording by host, and the reports of the workers."""

    kills: Counter[str] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    told: RecordedAnswer = field(default_factory=RecordedAnswer)


async def start_child(module: str, argument: Any, name: str) -> Command:
    """Start a process that answers each line with a line."""
    encoded = msgspec.json.encode(argument).decode()
    return await Command.start(name, [sys.executable, "-m", module, encoded])


class RecordedHost:
    """One host: its process, which may be restarted, and the proxies that lead to it."""

    def __init__(self, name: str, orders: HostOrder, lines: list[Proxy]) -> None:
        self.name = name
        self.orders = orders
        self.lines = lines
        self.child: Command | None = None
        self.changes = 0

    async def start(self) -> None:
        child = await start_child(member.__name__, self.orders, f"the host {self.name}")
        try:
            address = await child.hear(str)
        except BaseException:
            await child.kill()
            raise
        self.child = child
        self.orders.listen = address  # the same in every life
        for line in self.lines:
            line.lead_to(address)

    async def kill(self) -> None:
        child, self.child = self.child, None
        assert child is not None
        await child.kill()

    async def _ask(self, order: str, kind: type[T]) -> T | None:
        """Send a line, and return the answer; None if the process is or was killed."""
        child = self.child
        if child is None:
            return None
        await child.tell(order)
        try:
            return await child.hear(kind)
        except TortureFailed:
            if self.child is child:
                raise
            return None

    async def count(self) -> int:
        """The number of changes in its logs, or the last known one."""
        self.changes = await self._ask("count", int) or self.changes
        return self.changes

    async def doubts(self) -> PrintedDoubts:
        return await self._ask("doubts", PrintedDoubts) or PrintedDoubts(0, [])

    async def stop(self) -> None:
        await self._ask("stop", str)
        await self.kill()


class Recording:
    """A recording in progress. `told` is called with the number of changes."""

    def __init__(self, plan: RecordingConfig, told: Callable[[int], None]) -> None:
        self._plan = plan
        self._told = told
        self._rng = Random(plan.seed)
        self._recorded = Recorded()
        self._members: list[RecordedHost] = []
        self._workers: list[Command] = []
        self._lines: dict[str, Proxy] = {}
        self._changes = 0
        self._faults: list[asyncio.Task[None]] = []

    async def run(self) -> Recorded:
        try:
            await self._begin()
            await self._nemesis()
            await self._reach(self._plan.changes)
            await self._end()
        finally:
            await self._clear_up()
        return self._recorded

    # Beginning

    async def _begin(self) -> None:
        names = [f"h{number + 1}" for number in range(self._plan.hosts)]
        for place, name in enumerate(names):
            to_it = [await self._line(f"clients and {name}")]
            to_it += [await self._line(f"{name} and {other}") for other in names[place + 1 :]]
            from_it = [self._lines[f"{other} and {name}"] for other in names[:place]]
            self._members.append(RecordedHost(name, self._orders(place, name, from_it), to_it))
        await asyncio.gather(*(one.start() for one in self._members))
        addresses = [self._lines[f"clients and {name}"].address for name in names]
        for number in range(WORKERS):
            task = RecordingTask(self._plan.seed, number, addresses, CLIENTS, self._plan.batch)
            self._workers.append(await start_child(worker.__name__, task, f"the worker {number}"))

    async def _line(self, name: str) -> Proxy:
        line = self._lines[name] = Proxy()
        await line.start()
        return line

    def _orders(self, place: int, name: str, lines: list[Proxy]) -> HostOrder:
        """The first host seals its logs and keeps the rest short; the last one logs reads."""
        keep = max(200, self._plan.changes // 20)
        seals = place == 0
        return HostOrder(
            name,
            str(self._plan.folder / name),
            "127.0.0.1:0",
            [line.address for line in lines],
            HEARTBEAT_SECONDS,
            log_reads=place == self._plan.hosts - 1,
            log_keep=keep if seals else "all",
            sealed_each=keep // 2 if seals else 0,
        )

    # Faults

    async def _nemesis(self) -> None:
        """Kill and cut, spread over the recording; faults may overlap."""
        plan, rng = self._plan, self._rng
        kinds: list[Callable[[], Coroutine[Any, Any, None]]]
        kinds = [self._kill] * plan.kills + [self._cut] * plan.cuts
        rng.shuffle(kinds)
        moments = sorted(rng.uniform(0.05, 0.9) for _ in kinds)
        for moment, nemesis in zip(moments, kinds, strict=True):
            await self._reach(int(moment * plan.changes))
            await asyncio.sleep(rng.uniform(0.0, LOOK_SECONDS))
            self._faults = [task for task in self._faults if not _is_over(task)]
            self._faults.append(asyncio.ensure_future(nemesis()))
        await asyncio.gather(*self._faults)

    async def _kill(self) -> None:
        there = [one for one in self._members if one.child is not None]
        while not there:
            await asyncio.sleep(LOOK_SECONDS)
            there = [one for one in self._members if one.child is not None]
        victim = self._rng.choice(there)
        self._recorded.kills[victim.name] += 1
        await victim.kill()
        await asyncio.sleep(self._rng.uniform(0.0, AWAY_SECONDS))
        await victim.start()

    async def _cut(self) -> None:
        """Cut one link, or all links of a host to others."""
        rng = self._rng
        names = [rng.choice(list(self._lines))]
        if rng.random() < 0.3:
            alone = rng.choice(self._members).name
            names = [n for n in self._lines if alone in n.split() and not n.startswith("clients")]
        self._recorded.cuts.update(names)
        fault = LinkFault("cut" if rng.random() < 0.4 else "hold")
        for name in names:
            self._lines[name].fail(fault)
        await asyncio.sleep(rng.uniform(0.0, CUT_SECONDS))
        for name in names:
            self._lines[name].heal()

    async def _reach(self, changes: int) -> None:
        """Wait until so many changes are in the logs."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while self._changes < changes:
            await asyncio.sleep(LOOK_SECONDS)
            now = sum([await one.count() for one in self._members])
            if now > self._changes:
                self._changes, since = now, loop.time()
                self._told(now)
            elif loop.time() - since > STILL_SECONDS:
                raise RecordingFailed(f"nothing has happened for {STILL_SECONDS:.0f} s")
            for task in self._faults:
                _is_over(task)

    # Ending

    async def _end(self) -> None:
        """Stop the workers, wait until deliveries are settled, and stop the hosts, one by one."""
        for one in self._workers:
            await one.tell("stop")
        for one in self._workers:
            self._recorded.told.add(await one.hear(RecordedAnswer))
        try:
            async with asyncio.timeout(STILL_SECONDS):
                while not await self._is_at_rest():
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            left = {one.name: await one.doubts() for one in self._members}
            raise RecordingFailed(f"the hosts do not come to rest: {left}") from None
        for host in self._members:
            await host.stop()

    async def _is_at_rest(self) -> bool:
        at_rest = PrintedDoubts(len(self._members) - 1, [])
        return all([await one.doubts() == at_rest for one in self._members])

    async def _clear_up(self) -> None:
        for task in self._faults:
            task.cancel()
        await asyncio.gather(*self._faults, return_exceptions=True)
        for child in [*self._workers, *(one.child for one in self._members)]:
            if child is not None:
                await child.kill()
        for line in self._lines.values():
            await line.close()


def _is_over(task: asyncio.Task[None]) -> bool:
    """Whether a task is done. Raises its exception."""
    if task.done():
        task.result()
    return task.done()


def record(plan: RecordingConfig, told: Callable[[int], None] = lambda changes: None) -> Recorded:
    """Make a recording in its folder, which must be empty or not there yet."""
    if plan.folder.exists() and any(plan.folder.iterdir()):
        raise RecordingFailed(f"{plan.folder} is not empty")
    plan.folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(Recording(plan, told).run())


def kinds_in(folder: Path) -> dict[str, Counter[str]]:
    """The number of changes of each kind in a recording, by host. It needs the pipeline."""
    from tupelo.pipeline.source.locations import resolve
    from tupelo.pipeline.source.options import ReadOptions

    found: dict[str, Counter[str]] = {}
    for host in sorted(folder.iterdir()):
        count = found[host.name] = Counter[str]()
        for log in resolve(ReadOptions((str(host),))):
            for batch in log.batches(*log.bounds(), ["kind"]):
                for row in batch.column("kind").value_counts().to_pylist():
                    count[row["values"]] += row["counts"]
    return found
