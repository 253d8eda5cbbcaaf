"""A stream from the log of a host into a space of another, while the driver, workers and both hosts
are killed at random moments and started again: is every row there, and once?

python -m tests.pipeline.kills --rows 100000 --kills 24 --seed 6
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tupelo
from tests.federation.company import ChildHost, port_number
from tests.pipeline.cluster import Cluster, Process, driver
from tupelo.errors import LinkError

VICTIMS = ("driver", "worker", "source", "sink")
DELAY_SECONDS = 1.0
"""A kill comes so long, at most, after rows were seen to arrive."""
STUCK_SECONDS = 300.0
CHUNK = 1_000
CHILD = Path(__file__).with_name("kills_child.py")


@dataclass(frozen=True)
class Outcome:
    """What became of the rows; `restarts` counts the drivers that gave up by themselves, since
    they met what was killed too often."""

    rows: int
    kills: dict[str, int]
    missing: int
    repeated: int
    misplaced: int
    restarts: int
    seconds: float
    answer: dict[str, Any]


class Scene:
    """Two hosts and a driver, each in a process of its own, on a cluster. The first driver may be
    asked about a table before it begins."""

    def __init__(
        self, cluster: Cluster, folder: Path, batch: int, table: str | None = None
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._drivers = 0
        self.hosts: dict[str, ChildHost] = {}
        self._driver: Process | None = None
        try:
            for name in ("source", "sink"):
                self.hosts[name] = self._host(name, 0)
            urls = {name: f"tupelo://{host.address}/jobs" for name, host in self.hosts.items()}
            self._urls = urls
            checkpoint = str(folder / "checkpoint")
            asked = {"master": cluster.url, "checkpoint": checkpoint, "rows": batch, **urls}
            self._asked = json.dumps(asked)
            self.start_driver(json.dumps({**asked, "table": table}))
        except BaseException:
            self.close()
            raise

    def _host(self, name: str, port: int) -> ChildHost:
        path = str(self._folder / name)
        return ChildHost({"name": name, "path": path, "listen": port, "heartbeat": 1.0}, "")

    def connect(self, name: str) -> Any:
        return closing(tupelo.connect(self._urls[name], reconnect=0))

    # The driver

    def start_driver(self, asked: str | None = None) -> None:
        self._drivers += 1
        log = self._folder / f"driver-{self._drivers}.log"
        self._driver = driver(CHILD, log, asked or self._asked)

    @property
    def driver(self) -> Process:
        assert self._driver is not None
        return self._driver

    @property
    def is_drained(self) -> bool:
        return self.driver.ended is None and "drained" in self.driver.said

    # Killing

    def kill(self, victim: str, chance: random.Random) -> None:
        """Kill it, and start it again."""
        if victim == "driver":
            self.driver.kill()
            self.start_driver()
        elif victim == "worker":
            self._cluster.kill_worker(chance.randrange(len(self._cluster.workers)))
            self._cluster.add_worker()
        else:
            port = port_number(self.hosts[victim].address)
            self.hosts[victim].end()
            self.hosts[victim] = self._host(victim, port)

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill()
        for host in self.hosts.values():
            host.end()


class Feeder:
    """Writes numbers into the source while the stream runs, each once, also if it is killed."""

    def __init__(self, scene: Scene, rows: int, ahead: int) -> None:
        self._scene = scene
        self._rows = rows
        self._ahead = ahead
        self.written = 0

    def feed(self, sunk: int) -> None:
        while self.written < min(self._rows, sunk + self._ahead):
            upto = min(self.written + CHUNK, self._rows)
            try:
                with self._scene.connect("source") as jobs:
                    if not jobs.count(("job", self.written)):  # It may be there, in doubt.
                        jobs.write_all([("job", n) for n in range(self.written, upto)])
            except LinkError:
                return
            self.written = upto


def run(
    cluster: Cluster,
    folder: Path,
    *,
    rows: int,
    batch: int,
    victims: Sequence[str],
    seed: int,
    tell: Callable[[str], object] = lambda line: None,
    table: str | None = None,
) -> Outcome:
    """Stream so many rows, and kill these in this order, at moments that the seed chooses. If the
    address of a `table` is given, the first driver answers what it finds there; see
    `kills_child`."""
    chance = random.Random(seed)
    moments = sorted(chance.randrange(1, rows) for _ in victims)
    begun = moved = time.monotonic()
    plan = list(zip(moments, victims, strict=True))
    sunk = restarts = 0
    answer: dict[str, Any] = {}
    scene = Scene(cluster, folder, batch, table)
    feeder = Feeder(scene, rows, 10 * batch)
    try:
        if table is not None:
            answer = json.loads(scene.driver.hear("answer: (.*)\n")[1])
        while plan or sunk < rows or not scene.is_drained:
            feeder.feed(sunk)
            if scene.driver.ended is not None:
                restarts += 1
                tell(f"the driver gave up: {_last_words(scene.driver)}")
                scene.start_driver()
            now = _count(scene, sunk)
            if now > sunk:
                sunk, moved = now, time.monotonic()
            if plan and sunk >= plan[0][0]:
                _, victim = plan.pop(0)
                time.sleep(chance.random() * DELAY_SECONDS)  # a moment, to die in
                tell(f"{sunk:,} rows: kill the {victim}")
                scene.kill(victim, chance)
            if time.monotonic() - moved > STUCK_SECONDS:
                raise AssertionError(f"stuck at {sunk} rows:\n{scene.driver.said[-3_000:]}")
            time.sleep(0.02)
    finally:
        scene.close()
    seconds = time.monotonic() - begun
    return _judge(folder, rows, victims, restarts, seconds, answer)


def _count(scene: Scene, before: int) -> int:
    try:
        with scene.connect("sink") as jobs:
            found: int = jobs.count(("job", int, int))
            return found
    except LinkError:
        return before


def _last_words(process: Process) -> str:
    lines = [line for line in process.said.splitlines() if "tupelo.errors" in line]
    return (lines or process.said.splitlines() or ["nothing"])[-1][:300]


def _judge(
    folder: Path,
    rows: int,
    victims: Sequence[str],
    restarts: int,
    seconds: float,
    answer: dict[str, Any],
) -> Outcome:
    """By what is in the file of the sink, whose host was killed as well."""
    (file,) = (folder / "sink").glob("jobs*.tupelo")
    with tupelo.Space(path=file) as jobs:
        found = [(entry[1], entry[2]) for entry in jobs.read_all(("job", int, int))]
    times = Counter(n for n, _ in found)
    return Outcome(
        rows,
        {name: list(victims).count(name) for name in VICTIMS},
        missing=sum(times[n] == 0 for n in range(rows)),
        repeated=sum(count - 1 for count in times.values()),
        misplaced=sum(position != n + 1 for n, position in found),
        restarts=restarts,
        seconds=seconds,
        answer=answer,
    )


def chosen(kills: int, seed: int) -> list[str]:
    """So many victims, of each kind as many as of the others, in an order that the seed chooses."""
    victims = [VICTIMS[n % len(VICTIMS)] for n in range(kills)]
    random.Random(seed).shuffle(victims)
    return victims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=24)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--batch", type=int, default=2_000)
    asked = parser.parse_args()
    with TemporaryDirectory() as name:
        cluster = Cluster(Path(name, "spark"))
        try:
            outcome = run(
                cluster,
                Path(name),
                rows=asked.rows,
                batch=asked.batch,
                victims=chosen(asked.kills, asked.seed),
                seed=asked.seed,
                tell=lambda line: print(time.strftime("%H:%M:%S"), line, flush=True),
            )
        finally:
            cluster.close()
    print(outcome)


if __name__ == "__main__":
    main()
