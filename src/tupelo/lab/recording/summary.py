"""What a recording has in its logs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tupelo.pipeline.source.locations import resolve
from tupelo.pipeline.source.options import ReadOptions


def kinds_in(folder: Path) -> dict[str, Counter[str]]:
    """How many changes of each kind there are, by host."""
    found: dict[str, Counter[str]] = {}
    for host in sorted(folder.iterdir()):
        count = found[host.name] = Counter[str]()
        for log in resolve(ReadOptions((str(host),))):
            for batch in log.batches(*log.bounds(), ["kind"]):
                for told in batch.column("kind").value_counts().to_pylist():
                    count[told["values"]] += told["counts"]
    return found
