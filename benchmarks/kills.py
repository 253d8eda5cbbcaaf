"""Exactly once: a stream into a space on a cluster, whose parts are killed again and again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Findings, Settings, Table
from tests.pipeline import kills
from tests.pipeline.cluster import Cluster
from tests.pipeline.kills import VICTIMS, Outcome, chosen

ROWS = 100_000
KILLS, KILLS_MIN = 24, len(VICTIMS)
BATCH = 2_000
SEED = 6


def run(settings: Settings) -> Findings:
    outcome = _outcome(settings)
    return Findings(
        tables=[
            Table(
                "A stream into a durable space, with SIGKILL for all that has a part in it",
                ("rows", "kills", *VICTIMS, "missing", "repeated", "out of place", "given up", "s"),
                [
                    (
                        f"{outcome.rows:,}",
                        str(sum(outcome.kills.values())),
                        *[str(outcome.kills[victim]) for victim in VICTIMS],
                        str(outcome.missing),
                        str(outcome.repeated),
                        str(outcome.misplaced),
                        str(outcome.restarts),
                        f"{outcome.seconds:.0f}",
                    )
                ],
                f"from the log of one host into another, by a master and two workers; seed {SEED};"
                f" {BATCH:,} rows a micro-batch in 4 tasks; given up: drivers that ended by "
                "themselves and were started again",
            )
        ]
    )


def _outcome(settings: Settings) -> Outcome:
    victims = chosen(max(KILLS_MIN, settings.size(KILLS)), SEED)
    with TemporaryDirectory() as name:
        cluster = Cluster(Path(name, "spark"))
        try:
            rows = settings.size(ROWS)
            folder = Path(name)
            return kills.run(cluster, folder, rows=rows, batch=BATCH, victims=victims, seed=SEED)
        finally:
            cluster.close()
