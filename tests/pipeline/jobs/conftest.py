"""The logs of random runs, which several tests look at."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.pipeline.jobs.recorded import RandomRun, Row, rows_of, table_of

SEEDS = 12
WORKERS = (("ann", "first"), ("ann", "second"), ("bob", None))


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The logs of some random runs, in which several workers took what was taken."""
    folder = tmp_path_factory.mktemp("runs")
    found: list[Row] = []
    for seed in range(SEEDS):
        RandomRun(folder / f"{seed}.tupelo", seed).play(120)
        rng, named = Random(seed), dict[str, Any]()
        for row in rows_of(folder / f"{seed}.tupelo", space=str(seed)):
            if row["kind"] in ("taken", "released", "returned"):
                worker = named.setdefault(row["txn"] or str(rng.random()), rng.choice(WORKERS))
                row |= {"agent": worker[0], "agent_name": worker[1]}
            found.append(row)
    assert {"taken", "released", "returned", "expired", "delayed"} <= {row["kind"] for row in found}
    return found


@pytest.fixture(scope="session")
def changes(spark: Any, rows: list[Row]) -> Any:
    return table_of(spark, rows).persist()
