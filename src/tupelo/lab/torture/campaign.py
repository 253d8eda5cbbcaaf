"""A campaign: rounds of one or all models, one after the other, until the time is over."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tupelo.lab.torture.journal import run_journal
from tupelo.lab.torture.round import RoundConfig, RoundResult, run_round

ROUND_SECONDS = 45.0
"""How long there are faults in a round; then they end, and the history is checked."""
WITH_IDENTITIES = frozenset({"melon"})
"""Models that need hosts with an identity for some operations, so links under TLS."""


def run_campaign(
    folder: Path,
    models: tuple[str, ...],
    seconds: float,
    seed: int,
    hosts: int,
    tls: bool,
    told: Callable[[str, float], None],
) -> Iterator[tuple[str, int, Path, RoundResult]]:
    """Run rounds of all models in turn: yields the model, the seed, the folder and the result of
    each round. `told` is called with the model and the progress of the campaign, from 0 to 1."""
    began = time.monotonic()
    for number, model in enumerate(itertools.cycle(models)):
        elapsed = time.monotonic() - began
        if elapsed >= seconds and number >= len(models):
            return
        each = min(ROUND_SECONDS, max(1.0, seconds / len(models)))
        round_seed = seed + number
        place = folder / f"{model}-{round_seed}"
        secure = tls or model in WITH_IDENTITIES
        plan = RoundConfig(place, (model,), each, round_seed, hosts, secure)

        def tell(share: float, model: str = model) -> None:
            told(model, min(1.0, (time.monotonic() - began) / seconds))

        runs = run_journal if model == "journal" else run_round
        result = runs(plan, tell)
        (place / "violations.txt").write_text("".join(f"{one}\n\n" for one in result.violations))
        yield model, round_seed, place, result
