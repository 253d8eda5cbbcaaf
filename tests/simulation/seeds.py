"""Tests that all simulations share: run seeds, replay one, and find planted bugs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import seeds
from tupelo.lab.simulate import simulate, simulate_many


def check_seeds(model: str, count: int) -> None:
    """Run so many seeds of a model, or `TUPELO_SEEDS`: none has a fault."""
    reports = simulate_many(seeds(count), os.cpu_count() or 1, model)
    faulty = [report for report in reports if report.faults]
    assert not faulty, "\n".join(
        f"tupelo lab simulate --model {model} --seeds 1 --first {report.seed} --trace\n  "
        + "\n  ".join(map(str, report.faults))
        for report in faulty
    )


def check_replay(model: str, seed: int, *hash_seeds: int, disks: bool = False) -> None:
    """A seed gives the same digest in other processes, with other orders of sets."""
    call = f"simulate({seed}, {model!r}, disks={disks})"
    program = f"from tupelo.lab.simulate import simulate; print({call}.digest)"
    report = simulate(seed, model, trace=True, disks=disks)
    for hash_seed in hash_seeds or (seed,):
        other = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert report.digest == other.stdout.strip()
    assert report.trace
    assert report.acts > 0


def found(model: str, *invariants: str, seeds: int, first: int = 0) -> None:
    """Within so many seeds, one of these invariants is reported as broken. The search begins at
    `first`, a seed that has found the bug before, and goes on at 0."""
    for seed in (first, *(seed for seed in range(seeds) if seed != first)):
        if any(fault.invariant in invariants for fault in simulate(seed, model).faults):
            print(f"{invariants} found by seed {seed}")
            return
    pytest.fail(f"the checker did not find: {', '.join(invariants)}")
