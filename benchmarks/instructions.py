"""Compare two source trees by instructions, which a busy machine does not change.

`python -m benchmarks.instructions BEFORE [NOW]` runs each operation under valgrind (callgrind) in
both trees, with a few and with many repetitions, and divides the difference. A ratio below 1 means
that the operation has become more expensive. The trees need compiled bytecode
(`python -m compileall src`).
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import tupelo
from tupelo import aio

JOB = ("job", int, str)


def memory_pair(count: int) -> None:
    _pairs(tupelo.Space(), count)


def memory_read(count: int) -> None:
    space = tupelo.Space()
    space.write(("job", 1, "resize"))
    for _ in range(count):
        space.read(JOB, wait=0)


def keyed_read(count: int) -> None:
    space = tupelo.Space()
    for n in range(2_000):
        space.write(("job", n, "resize"))
    for n in range(100 + count):
        space.read(("job", n % 2_000, str), wait=0)


def durable_pair(count: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        tupelo.Space("jobs", path=Path(folder, "jobs.tupelo"), durability="process") as space,
    ):
        _pairs(space, count)


def async_pair(count: int) -> None:
    async def pairs() -> None:
        space = aio.Space()
        for n in range(count):
            await space.write(("job", n, "resize"))
            await space.take(JOB, wait=0)

    asyncio.run(pairs())


def remote_pair(count: int) -> None:
    with (
        tupelo.Host("host", listen=0) as host,
        tupelo.connect(f"tupelo://{host.address}/jobs") as space,
    ):
        _pairs(space, count)


def federated_take(count: int) -> None:
    with tupelo.Host("one", listen=0) as one, tupelo.Host("other", listen=0) as other:
        here, there = one.space("jobs"), other.space("jobs")
        one.engage(other.address)
        for n in range(count):
            there.write(("job", n, "resize"))
            here.take(JOB)


def _pairs(space: tupelo.SpaceLike, count: int) -> None:
    for n in range(count):
        space.write(("job", n, "resize"))
        space.take(JOB, wait=0)


OPERATIONS: dict[str, tuple[Callable[[int], None], int, int]] = {
    "memory_pair": (memory_pair, 500, 3_500),
    "memory_read": (memory_read, 500, 5_500),
    "keyed_read": (keyed_read, 500, 5_500),
    "durable_pair": (durable_pair, 100, 900),
    "async_pair": (async_pair, 200, 1_700),
    "remote_pair": (remote_pair, 30, 230),
    "federated_take": (federated_take, 30, 150),
}
"""Each operation, with a small and a large number of repetitions."""


def instructions(tree: Path, name: str, count: int) -> int:
    """The instructions of a process that does an operation so often, with the tree's source."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    done = subprocess.run(
        [*command, __file__, "--do", name, str(count)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


def main() -> None:
    if sys.argv[1] == "--do":
        OPERATIONS[sys.argv[2]][0](int(sys.argv[3]))
        return
    trees = [Path(tree).resolve() for tree in (*sys.argv[1:3], ".")][:2]
    for name, (_, few, many) in OPERATIONS.items():
        costs = [
            (instructions(tree, name, many) - instructions(tree, name, few)) / (many - few)
            for tree in trees
        ]
        print(f"{name:16}{costs[0]:12,.0f}{costs[1]:12,.0f}{costs[0] / costs[1]:8.3f}", flush=True)


if __name__ == "__main__":
    main()
